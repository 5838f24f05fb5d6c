//! The write that an interruption left unfinished: finds its log by the pointer in the superblock, verifies it, and
//! finishes it.

use super::{complete, marked, marked_superblock, sector_sum, set_checksum, with_pointer};
use blockdev::undo::{self, Planned};
use blockdev::{BlockDevice, Result};
use format::checksum::crc32c;
use format::feature::RoCompat;
use format::redo::{DiskRedoEntry, DiskRedoIndex, DiskRedoPointer, INDEX_MAGIC, SUPERBLOCK};
use format::superblock::{self, DiskSuperblock, OFFSET};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use zerocopy::FromBytes;

/// An interrupted write: its log, complete and valid for the current state of the volume.
pub(crate) struct InterruptedWrite {
    block_size: u64,
    /// Home location and copy of each block, ascending.
    blocks: Vec<(u64, u64)>,
    superblock: Vec<u8>,
    pointer: DiskRedoPointer,
    /// The block of the log with the superblock.
    superblock_copy: u64,
    /// The superblock with the mark that should have preceded the blocks, where it is missing.
    mark: Option<Vec<u8>>,
}

impl InterruptedWrite {
    /// The new content of a block.
    fn copy(&self, device: &dyn BlockDevice, block: u64) -> Result<Vec<u8>> {
        let copy = self.blocks.binary_search_by_key(&block, |(home, _)| *home).ok().and_then(|n| self.blocks.get(n));
        let mut bytes = vec![0; self.block_size as usize];
        device.read(copy.map_or(0, |(_, copy)| *copy) * self.block_size, &mut bytes)?;
        Ok(bytes)
    }

    /// All writes that finish it.
    pub(super) fn changes<'a>(&'a self, device: &'a dyn BlockDevice) -> impl Iterator<Item = Result<Planned>> + 'a {
        let blocks = self.blocks.iter();
        let blocks =
            blocks.map(|(home, _)| Ok(Planned { offset: home * self.block_size, data: self.copy(device, *home)? }));
        let mark = self.mark.iter().map(|mark| Ok(Planned { offset: OFFSET, data: mark.clone() }));
        let superblocks = [with_pointer(&self.superblock, &self.pointer), self.superblock.clone()];
        let superblocks = superblocks.into_iter().chain(marked_superblock(&self.superblock));
        blocks.chain(mark).chain(superblocks.map(|data| Ok(Planned { offset: OFFSET, data })))
    }

    /// Whether the log was written by this code: its superblock is the one that the pointer states, and it
    /// neither overwrites blocks of the log nor writes a block twice, so the result does not depend on the write order.
    fn is_consistent(&self, indexes: &BTreeSet<u64>) -> bool {
        let is_home = |block: u64| self.blocks.binary_search_by_key(&block, |(home, _)| *home).is_ok();
        let twice = self.blocks.windows(2).any(|pair| matches!(pair, [a, b] if a.0 == b.0));
        let over_itself = self.blocks.iter().any(|(_, copy)| is_home(*copy))
            || indexes.iter().any(|index| is_home(*index))
            || is_home(self.superblock_copy)
            || is_home(OFFSET / self.block_size);
        // one with a pointer to another log could form an endless chain
        let leads_on = DiskRedoPointer::of(&self.superblock).is_some();
        let is_of_volume = DiskSuperblock::from_slice(&self.superblock).is_some_and(|disk| {
            disk.s_magic.get() == superblock::MAGIC
                && 1024u64.checked_shl(disk.s_log_block_size.get()) == Some(self.block_size)
        });
        is_of_volume
            && sector_sum(&self.superblock) == self.pointer.rp_after.get()
            && !twice
            && !over_itself
            && !leads_on
    }

    pub(super) fn finish(&self, device: &dyn BlockDevice) -> Result<()> {
        if let Some(mark) = self.mark.as_ref().filter(|_| !self.blocks.is_empty()) {
            device.write(OFFSET, mark)?;
            device.flush()?;
        }
        let homes = self.blocks.iter().map(|(home, _)| *home);
        complete(device, self.block_size, homes, |block| self.copy(device, block), &self.pointer, &self.superblock)
    }
}

/// The state of the device after an interrupted write is finished, for reading only. It has no copies in memory: a log
/// may name every block of a device.
pub(crate) struct Finished {
    pub(crate) device: Arc<dyn BlockDevice>,
    pub(crate) log: Arc<InterruptedWrite>,
}

impl BlockDevice for Finished {
    fn geometry(&self) -> blockdev::Geometry {
        self.device.geometry()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.device.read(offset, buf)?;
        let (end, size) = (offset + buf.len() as u64, self.log.block_size);
        let first = self.log.blocks.partition_point(|(home, _)| (home + 1) * size <= offset);
        for (home, copy) in self.log.blocks.iter().skip(first).take_while(|(home, _)| home * size < end) {
            let part = (home * size).max(offset)..((home + 1) * size).min(end);
            if let Some(into) = buf.get_mut((part.start - offset) as usize..(part.end - offset) as usize) {
                self.device.read(copy * size + (part.start - home * size), into)?;
            }
        }
        let part = OFFSET.max(offset)..(OFFSET + self.log.superblock.len() as u64).min(end);
        if part.start < part.end
            && let Some(into) = buf.get_mut((part.start - offset) as usize..(part.end - offset) as usize)
            && let Some(from) = self.log.superblock.get((part.start - OFFSET) as usize..(part.end - OFFSET) as usize)
        {
            into.copy_from_slice(from);
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        blockdev::ReadOnly::new(Arc::clone(&self.device)).write(offset, data)
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        blockdev::ReadOnly::new(Arc::clone(&self.device)).discard(offset, len)
    }
}

/// Whether a write of the volume was interrupted and can be finished; `false` where the device cannot be read.
#[must_use]
pub fn unfinished(device: &dyn BlockDevice) -> bool {
    matches!(interrupted(device), Ok(Some(_)))
}

/// Whether a write of the volume was interrupted, even if it cannot be finished; `true` where the superblock cannot be
/// read. Where its log is damaged, the volume may be partly written, so its clean flag is not to be trusted.
#[must_use]
pub fn half_written(device: &dyn BlockDevice) -> bool {
    !matches!(pointer(device), Ok(None))
}

/// Whether a write of the volume was interrupted and cannot be finished, as its log is damaged or cannot be read.
pub(crate) fn has_lost_log(device: &dyn BlockDevice) -> bool {
    matches!(pointer(device), Ok(Some(_))) && !unfinished(device)
}

/// A valid pointer and the superblock that contains it.
struct Pointed {
    pointer: DiskRedoPointer,
    superblock: Vec<u8>,
}

impl Pointed {
    /// The superblock with its mark, where the pointer requires the mark and it is missing.
    fn missing_mark(&self) -> Option<Vec<u8>> {
        let mut marked =
            marked(&self.superblock).filter(|marked| sector_sum(marked) == self.pointer.rp_before.get())?;
        if DiskSuperblock::from_slice(&marked)?.features().ro_compat.contains(RoCompat::METADATA_CSUM) {
            set_checksum(&mut marked);
        }
        Some(marked)
    }
}

/// The pointer in the superblock to the log of an interrupted write; `None` where there is none, or the superblock was
/// written by another program since.
fn pointer(device: &dyn BlockDevice) -> Result<Option<Pointed>> {
    let mut superblock = vec![0; DiskSuperblock::SIZE];
    if device.geometry().len < OFFSET + superblock.len() as u64 {
        return Ok(None);
    }
    device.read(OFFSET, &mut superblock)?;
    let Some(pointer) = DiskRedoPointer::of(&superblock) else { return Ok(None) };
    let sector = sector_sum(&superblock);
    let meant = sector == pointer.rp_before.get() || sector == pointer.rp_after.get();
    let pointed = Pointed { pointer, superblock };
    Ok(Some(pointed).filter(|pointed| meant || pointed.missing_mark().is_some()))
}

/// Finishes an interrupted write and returns whether there was one. `undo` names a file that receives the old content
/// of every block written.
///
/// # Errors
/// The error of the device or of the undo file.
pub fn finish(device: &dyn BlockDevice, undo: Option<&Path>) -> Result<bool> {
    let Some(log) = interrupted(device)? else { return Ok(false) };
    if let Some(path) = undo {
        undo::record(path, device, log.changes(device))?;
    }
    log.finish(device)?;
    Ok(true)
}

/// Reads the log that the superblock points to; `None` where there is none, or it is incomplete or no longer valid.
pub(crate) fn interrupted(device: &dyn BlockDevice) -> Result<Option<InterruptedWrite>> {
    let Some(pointed) = pointer(device)? else { return Ok(None) };
    let pointer = &pointed.pointer;
    let block_size = u64::from(pointer.rp_block_size.get());
    if !block_size.is_power_of_two() || !(1024..=65536).contains(&block_size) {
        return Ok(None);
    }
    let end = device.geometry().len / block_size;
    let read = |block: u64, checksum: u32| -> Result<Option<Vec<u8>>> {
        // the superblock's block changes while the log is applied
        if block <= OFFSET / block_size || block >= end {
            return Ok(None);
        }
        let mut bytes = vec![0; block_size as usize];
        device.read(block * block_size, &mut bytes)?;
        Ok(Some(bytes).filter(|bytes| crc32c(!0, bytes) == checksum))
    };
    let mark = pointed.missing_mark();
    let (blocks, superblock, superblock_copy) = (Vec::new(), Vec::new(), 0);
    let mut found =
        InterruptedWrite { block_size, blocks, superblock, pointer: pointed.pointer, superblock_copy, mark };
    let (mut next, mut checksum) = (pointer.rp_block.get(), pointer.rp_index.get());
    // a crafted index can refer to itself with a matching checksum
    let mut indexes = BTreeSet::new();
    while next != 0 {
        if !indexes.insert(next) {
            return Ok(None);
        }
        let Some(bytes) = read(next, checksum)? else { return Ok(None) };
        let Ok((head, rest)) = DiskRedoIndex::ref_from_prefix(&bytes) else { return Ok(None) };
        let count = head.ri_count.get() as usize;
        if head.ri_magic.get() != INDEX_MAGIC || count > DiskRedoIndex::capacity(bytes.len()) {
            return Ok(None);
        }
        let Ok((entries, _)) = <[DiskRedoEntry]>::ref_from_prefix_with_elems(rest, count) else { return Ok(None) };
        for entry in entries {
            let Some(copy) = read(entry.re_copy.get(), entry.re_checksum.get())? else { return Ok(None) };
            match entry.re_home.get() {
                // at most once, or a chain of indexes that name nothing else would be unbounded
                SUPERBLOCK if !found.superblock.is_empty() => return Ok(None),
                SUPERBLOCK => {
                    found.superblock = copy.get(..DiskSuperblock::SIZE).unwrap_or_default().to_vec();
                    found.superblock_copy = entry.re_copy.get();
                }
                home if home < end => found.blocks.push((home, entry.re_copy.get())),
                _ => return Ok(None),
            }
        }
        // each block of the volume once
        if found.blocks.len() as u64 > end || count == 0 {
            return Ok(None);
        }
        (next, checksum) = (head.ri_next.get(), head.ri_next_checksum.get());
    }
    found.blocks.sort_unstable();
    Ok(Some(found).filter(|found| found.is_consistent(&indexes)))
}
