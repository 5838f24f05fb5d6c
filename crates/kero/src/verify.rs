//! Reading content of the log that leaves it, or is appended again: it is compared with the checksum in the header of
//! its record, as afterwards nothing would reveal damage any more.
//!
//! A segment begins with a header, and each following record names the checksum of the header before it: a copy of a
//! header in the content of a block is none. Behind a damaged header nothing is known against the content of the segment.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use blockdev::BlockDevice;

use crate::bytes::{Entry, Record};
use crate::error::{Error, Result};
use crate::layout::BLOCK;
use crate::state::State;

/// Blocks with their content, ascending.
pub(crate) type Contents = BTreeMap<u32, Box<[u8]>>;

impl State {
    /// Reads and verifies blocks, each with its slot; ascending within a segment.
    ///
    /// # Errors
    /// Those of the device, and [`Error::Damaged`].
    pub(crate) fn read_slots(&self, device: &dyn BlockDevice, slots: &[(u32, u32)]) -> Result<Contents> {
        let mut contents = Contents::new();
        let segment = self.layout.segment;
        for slots in slots.chunk_by(|a, b| a.1 / segment == b.1 / segment) {
            let (Some((_, first)), Some((_, last))) = (slots.first(), slots.last()) else { continue };
            let first = if self.unverified { *first } else { first / segment * segment };
            let part = Part::read(self, device, first..last + 1);
            let checksums = if self.unverified { BTreeMap::new() } else { part.checksums() };
            for (address, slot) in slots {
                let Some(bytes) = part.content(*slot) else {
                    // for the device's error
                    let mut bytes = vec![0; BLOCK as usize].into_boxed_slice();
                    device.read(self.layout.slot(*slot), &mut bytes)?;
                    contents.insert(*address, bytes);
                    continue;
                };
                if checksums.get(&(*address, *slot)).is_some_and(|checksum| *checksum != crc32c::crc32c(bytes)) {
                    let data = u64::from(*address) * BLOCK;
                    return Err(Error::Damaged { data, offset: self.layout.slot(*slot) });
                }
                contents.insert(*address, bytes.into());
            }
        }
        Ok(contents)
    }
}

/// Blocks of a segment.
struct Part<'a> {
    state: &'a State,
    slots: Range<u32>,
    bytes: Vec<u8>,
    /// Those that cannot be read.
    unreadable: BTreeSet<u32>,
}

impl<'a> Part<'a> {
    /// Reads blocks at once; if that fails one by one.
    fn read(state: &'a State, device: &dyn BlockDevice, slots: Range<u32>) -> Self {
        let (mut bytes, mut unreadable) = (vec![0; slots.len() * BLOCK as usize], BTreeSet::new());
        if device.read(state.layout.slot(slots.start), &mut bytes).is_err() {
            for (slot, block) in slots.clone().zip(bytes.chunks_mut(BLOCK as usize)) {
                if device.read(state.layout.slot(slot), block).is_err() {
                    unreadable.insert(slot);
                }
            }
        }
        Self { state, slots, bytes, unreadable }
    }

    /// The content of a block; `None` if it cannot be read.
    fn content(&self, slot: u32) -> Option<&[u8]> {
        let at = slot.checked_sub(self.slots.start)? as usize * BLOCK as usize;
        self.bytes.get(at..at + BLOCK as usize).filter(|_| !self.unreadable.contains(&slot))
    }

    /// The checksum of each block and slot in the records from the start on, up to one that is damaged.
    fn checksums(&self) -> BTreeMap<(u32, u32), u32> {
        let mut checksums = BTreeMap::new();
        let mut before: Option<(u64, u32)> = None;
        let mut at = self.slots.start;
        while let Some((header, record, checksum)) = self.next_record(at, before) {
            before = Some((record.sequence, checksum));
            at = header + 1;
            for entry in record.entries.iter().filter(|entry| entry.has_payload()) {
                if let Entry::Block { address, checksum } = entry {
                    checksums.insert((*address, at), *checksum);
                }
                at += 1;
            }
        }
        checksums
    }

    /// The record at a block or behind a gap that follows this one, or any at the start of the segment: its block, and
    /// its checksum.
    fn next_record(&self, at: u32, before: Option<(u64, u32)>) -> Option<(u32, Record, u32)> {
        let gap = if before.is_some() { self.state.layout.most_gap() } else { 0 };
        (at..(at + gap + 1).min(self.slots.end)).find_map(|slot| {
            let bytes = self.content(slot)?;
            let (record, checksum) = Record::parse(bytes, &self.state.uuid, &self.state.layout).ok()?;
            let follows = before.is_none_or(|(sequence, of)| record.sequence == sequence + 1 && record.before == of);
            follows.then_some((slot, record, checksum))
        })
    }
}
