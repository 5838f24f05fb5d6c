//! The location of a journal, and reads of its blocks.

use crate::{Error, Result};
use blockdev::{BlockDevice, Read};
use format::feature::Incompat;
use format::jbd2::JournalSuperblock;
use format::{FsBlock, Structure, superblock};
use std::{ops::Range, sync::Arc};

/// Adjacent blocks of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockExtent {
    /// The first block.
    pub first: FsBlock,
    /// The number of blocks.
    pub count: u64,
}

/// The location of a journal.
#[derive(Clone)]
pub struct JournalLocation {
    pub(crate) device: Arc<dyn BlockDevice>,
    pub(crate) block_size: u32,
    /// each with its first block's number in the journal; ascending
    runs: Vec<(u64, BlockExtent)>,
    blocks: u64,
    /// the number of the superblock's block in the journal
    superblock: u32,
}

fn corrupt(what: &'static str) -> Error {
    format::Error::corrupt(Structure::Journal, what).into()
}

impl JournalLocation {
    /// A journal inside the volume: `runs` are the blocks of the journal's inode, all of them and in the file's order;
    /// the caller has to refuse a file with a hole before its end.
    pub fn internal(
        volume: Arc<dyn BlockDevice>,
        block_size: u32,
        runs: impl IntoIterator<Item = BlockExtent>,
    ) -> Self {
        let mut blocks = 0u64;
        let runs = runs
            .into_iter()
            .map(|run| {
                let start = blocks;
                blocks = blocks.saturating_add(run.count);
                (start, run)
            })
            .collect();
        Self { device: volume, block_size, runs, blocks, superblock: 0 }
    }

    /// A journal on a device of its own, for a volume with blocks of `block_size` bytes whose superblock names the
    /// journal's `uuid`.
    ///
    /// # Errors
    /// `Corrupt` if the device is not a journal, is that of another volume, or has another block size.
    pub fn external(device: Arc<dyn BlockDevice>, block_size: u32, uuid: &[u8; 16]) -> Result<Self> {
        let mut bytes = [0; superblock::DiskSuperblock::SIZE];
        device.read(superblock::OFFSET, &mut bytes)?;
        let disk = superblock::DiskSuperblock::from_slice(&bytes)
            .filter(|disk| disk.s_magic == superblock::MAGIC)
            .filter(|disk| disk.features().incompat.contains(Incompat::JOURNAL_DEV))
            .ok_or_else(|| corrupt("the specified journal device contains no journal"))?;
        if disk.s_uuid != *uuid {
            return Err(corrupt("the specified journal device belongs to another volume"));
        }
        if 1024u32.checked_shl(disk.s_log_block_size.get()) != Some(block_size) {
            return Err(corrupt("the block size of its device differs from that of the volume"));
        }
        // on such a device the log's block numbers are the device's own
        let blocks = disk.blocks_count();
        let superblock = if block_size == 1024 { 2 } else { 1 };
        Ok(Self {
            device,
            block_size,
            runs: vec![(0, BlockExtent { first: FsBlock(0), count: blocks })],
            blocks,
            superblock,
        })
    }

    /// Whether it has a device of its own.
    pub fn is_external(&self) -> bool {
        // inside the volume the journal begins with its superblock
        self.superblock != 0
    }

    /// Reads its superblock.
    ///
    /// # Errors
    /// Those of the device; `Unsupported` and `Corrupt` for a superblock that cannot be used.
    pub fn read_superblock(&self) -> Result<JournalSuperblock> {
        let mut block = vec![0; self.block_size as usize];
        self.read(self.superblock, &mut block)?;
        Ok(JournalSuperblock::parse(&block, self.block_size, self.blocks)?)
    }

    /// The first byte of its superblock on the device.
    pub(crate) fn superblock_position(&self) -> Result<u64> {
        self.position(self.superblock)
    }

    /// The first byte of the journal's block `block` on the device, and the number of journal blocks that are adjacent
    /// from there on.
    fn find(&self, block: u32) -> Result<(u64, u64)> {
        let block = u64::from(block);
        let index = self.runs.partition_point(|&(start, _)| start <= block);
        index
            .checked_sub(1)
            .and_then(|index| self.runs.get(index))
            .and_then(|&(start, run)| {
                let inside = block - start;
                let left = run.count.checked_sub(inside).filter(|&left| left > 0)?;
                let at = run.first.checked_add(inside)?.get().checked_mul(self.block_size.into())?;
                Some((at, left))
            })
            .ok_or_else(|| corrupt("one of its blocks is beyond its end"))
    }

    /// The first byte of the journal's block `block` on the device.
    pub(crate) fn position(&self, block: u32) -> Result<u64> {
        self.find(block).map(|(at, _)| at)
    }

    /// Fills `buf`, a whole number of blocks, from the journal's block `first` on.
    pub(super) fn read(&self, first: u32, buf: &mut [u8]) -> Result<()> {
        let mut reads = Vec::new();
        let mut rest = buf;
        let mut block = first;
        while !rest.is_empty() {
            let (at, follow) = self.find(block)?;
            let want = (rest.len() / self.block_size as usize).max(1) as u64;
            let count = want.min(follow) as u32; // a buffer has far fewer blocks than that
            let len = (count as usize * self.block_size as usize).min(rest.len());
            let (part, after) = rest.split_at_mut(len);
            reads.push(Read::new(at, part));
            rest = after;
            block = block.saturating_add(count);
        }
        self.device.read_many(&mut reads);
        Ok(reads.into_iter().try_for_each(|r| r.result)?)
    }
}

/// Bytes read ahead at a time.
const WINDOW: usize = 512 << 10;

/// Reads a range of the journal's blocks ahead of use, in large requests.
pub(super) struct Window<'a> {
    journal: &'a JournalLocation,
    bounds: Range<u32>,
    first: u32,
    bytes: Vec<u8>,
}

impl<'a> Window<'a> {
    pub(super) fn new(journal: &'a JournalLocation, bounds: Range<u32>) -> Self {
        Self { journal, first: bounds.start, bounds, bytes: Vec::new() }
    }

    pub(super) fn block(&mut self, block: u32) -> Result<&[u8]> {
        let size = self.journal.block_size as usize;
        if block < self.first || (block - self.first) as usize >= self.bytes.len() / size {
            let blocks = (self.bounds.end.saturating_sub(block) as usize).min(WINDOW / size).max(1);
            self.bytes.resize(blocks * size, 0);
            self.first = block;
            let read = self.journal.read(block, &mut self.bytes);
            if read.is_err() {
                self.bytes.clear();
            }
            read?;
        }
        let at = (block - self.first) as usize * size;
        Ok(&self.bytes[at..at + size])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockdev::MemoryDevice;

    /// A device of 64 blocks of 1 024 bytes, each filled with its number, and a journal of three runs on it.
    fn journal() -> JournalLocation {
        let bytes = (0..64u8).flat_map(|n| [n; 1024]).collect();
        let runs = [(10, 2), (30, 3), (5, 1)].map(|(first, count)| BlockExtent { first: FsBlock(first), count });
        JournalLocation::internal(Arc::new(MemoryDevice::from_vec(bytes)), 1024, runs)
    }

    #[test]
    fn blocks_are_found_across_runs() {
        let journal = journal();
        let mut all = vec![0; 6 * 1024];
        journal.read(0, &mut all).unwrap();
        assert_eq!(all.chunks(1024).map(|b| b[0]).collect::<Vec<_>>(), [10, 11, 30, 31, 32, 5]);
        assert!(journal.read(1, &mut all).is_err(), "beyond the end");
        assert_eq!(journal.position(5).unwrap(), 5 * 1024);
        assert!(journal.position(6).is_err());
    }

    #[test]
    fn a_window_moves_both_ways() {
        let journal = journal();
        let mut window = Window::new(&journal, 1..5);
        let seen: Vec<_> = [1, 4, 0, 2].map(|n| window.block(n).unwrap()[7]).into();
        assert_eq!(seen, [11, 32, 10, 30]);
        assert!(window.block(6).is_err());
        assert_eq!(window.block(3).unwrap()[7], 31);
    }
}
