//! Reading content of the log that leaves it, or is appended again: it is compared with the checksum in the header of
//! its record, as afterwards nothing would reveal damage any more.
//!
//! The header of a block's record is the nearest one before it in its segment that lists the block. Content is accepted
//! if that header cannot be read or is damaged itself.

use std::collections::BTreeMap;
use std::ops::Range;

use blockdev::{BlockDevice, Read};

use crate::bytes::{Entry, Record};
use crate::error::{Error, Result};
use crate::layout::BLOCK;
use crate::state::State;

/// The maximum number of blocks whose content and headers are in memory at once.
const BATCH: usize = 64;
/// The number of blocks before one that are read together with it, as they may contain the header: those of small
/// groups.
const BEFORE: u32 = 16;

/// Blocks with their content, ascending.
pub(crate) type Contents = BTreeMap<u32, Box<[u8]>>;

impl State {
    /// Reads and verifies blocks, each with its slot; ascending within a segment.
    ///
    /// # Errors
    /// Those of the device, and [`Error::Damaged`].
    pub(crate) fn read_slots(&self, device: &dyn BlockDevice, slots: &[(u32, u32)]) -> Result<Contents> {
        let mut contents = Contents::new();
        for batch in slots.chunks(BATCH) {
            let mut reader = Reader { state: self, device, blocks: BTreeMap::new() };
            reader.read(&self.ranges(batch));
            for (address, slot) in batch {
                contents.insert(*address, reader.verified(*address, *slot)?);
            }
        }
        Ok(contents)
    }

    /// The blocks of the log to read for these: each, and those before it that may contain its header.
    fn ranges(&self, batch: &[(u32, u32)]) -> Vec<Range<u32>> {
        let mut ranges: Vec<Range<u32>> = Vec::new();
        for (_, slot) in batch {
            let before = if self.unverified { 0 } else { BEFORE.min(slot % self.layout.segment) };
            match ranges.last_mut() {
                Some(range) if (range.start..=range.end).contains(&(slot - before)) => range.end = slot + 1,
                _ => ranges.push(slot - before..slot + 1),
            }
        }
        ranges
    }
}

/// Blocks of the log that were read; those that cannot be read are `None`.
struct Reader<'a> {
    state: &'a State,
    device: &'a dyn BlockDevice,
    blocks: BTreeMap<u32, Option<Box<[u8]>>>,
}

impl Reader<'_> {
    /// Reads ranges of blocks. One that fails is read block by block.
    fn read(&mut self, ranges: &[Range<u32>]) {
        let layout = &self.state.layout;
        let mut buffers: Vec<Vec<u8>> = ranges.iter().map(|range| vec![0; range.len() * BLOCK as usize]).collect();
        let mut reads: Vec<Read<'_>> =
            ranges.iter().zip(&mut buffers).map(|(range, bytes)| Read::new(layout.slot(range.start), bytes)).collect();
        self.device.read_many(&mut reads);
        let complete: Vec<bool> = reads.into_iter().map(|read| read.result.is_ok()).collect();
        for ((range, bytes), complete) in ranges.iter().zip(&mut buffers).zip(complete) {
            for (slot, block) in range.clone().zip(bytes.chunks_mut(BLOCK as usize)) {
                let read = complete || self.device.read(layout.slot(slot), block).is_ok();
                self.blocks.insert(slot, read.then(|| (&*block).into()));
            }
        }
    }

    /// The content of a block.
    fn verified(&mut self, address: u32, slot: u32) -> Result<Box<[u8]>> {
        let Some(bytes) = self.blocks.get(&slot).cloned().flatten() else {
            // for the device's error
            let mut bytes = vec![0; BLOCK as usize].into_boxed_slice();
            self.device.read(self.state.layout.slot(slot), &mut bytes)?;
            return Ok(bytes);
        };
        if !self.state.unverified
            && let Some(checksum) = self.checksum(address, slot)
            && checksum != crc32c::crc32c(&bytes)
        {
            let data = u64::from(address) * BLOCK;
            return Err(Error::Damaged { data, offset: self.state.layout.slot(slot) });
        }
        Ok(bytes)
    }

    /// The checksum of a block in the header of its record; `None` if there is no intact one.
    fn checksum(&mut self, address: u32, slot: u32) -> Option<u32> {
        let state = self.state;
        let first = slot - slot % state.layout.segment;
        for at in (first..slot).rev() {
            // a slot with content is no header
            if state.table.address_of(at).is_some() {
                continue;
            }
            if !self.blocks.contains_key(&at) {
                let start = (at + 1).saturating_sub(2 * BEFORE).max(first);
                self.read(std::slice::from_ref(&(start..at + 1)));
            }
            let Some(Some(bytes)) = self.blocks.get(&at) else { continue };
            let Ok((record, _)) = Record::parse(bytes, &state.uuid, &state.layout) else { continue };
            let listed = record.entries.iter().filter(|entry| entry.has_payload()).nth((slot - at - 1) as usize);
            if let Some(Entry::Block { address: of, checksum }) = listed
                && *of == address
            {
                return Some(*checksum);
            }
        }
        None
    }
}
