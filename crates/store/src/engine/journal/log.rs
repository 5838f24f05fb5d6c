//! The log as a ring: which of its blocks are in use, and their positions on the device.

use crate::{Result, recovery};
use format::FsBlock;
use format::jbd2::{JournalSuperblock, LogFormat};

/// The log's blocks; those from the tail to the head are in use.
pub(super) struct Log {
    place: recovery::JournalLocation,
    format: LogFormat,
    first: u32,
    end: u32,
    /// The next block to write.
    head: u32,
    used: u32,
}

impl Log {
    /// Creates the log of an empty journal.
    pub(super) fn new(place: recovery::JournalLocation, superblock: &JournalSuperblock) -> Self {
        let blocks = superblock.log_blocks();
        let format = superblock.log().clone();
        Self { place, format, first: blocks.start, end: blocks.end, head: blocks.start, used: 0 }
    }

    pub(super) fn format(&self) -> &LogFormat {
        &self.format
    }

    /// Blocks in the log.
    pub(super) fn len(&self) -> u32 {
        self.end - self.first
    }

    /// The maximum number of blocks in use: one stays free, so that the head never reaches the tail.
    pub(super) fn capacity(&self) -> u32 {
        self.len() - 1
    }

    pub(super) fn used(&self) -> u32 {
        self.used
    }

    pub(super) fn free(&self) -> u32 {
        self.capacity() - self.used
    }

    pub(super) fn head(&self) -> u32 {
        self.head
    }

    /// The number of log blocks that a transaction needs in addition to copies of `blocks` changed blocks, including as
    /// many revokes.
    pub(super) fn overhead(&self, blocks: usize) -> usize {
        self.blocks_for(blocks, blocks) - blocks
    }

    /// The number of log blocks of a transaction.
    pub(super) fn blocks_for(&self, logged: usize, revoked: usize) -> usize {
        let descriptors = logged.div_ceil(self.format.tags_per_block());
        let revokes = revoked.div_ceil(self.format.revokes_per_block());
        revokes + descriptors + logged + 1
    }

    /// Allocates the next block; returns its first byte on the device.
    ///
    /// # Panics
    /// If no block is free: the caller has to check that first.
    pub(super) fn take(&mut self) -> Result<u64> {
        assert!(self.used < self.capacity(), "the log is full");
        let at = self.place.position(self.head)?;
        self.used += 1;
        self.head = if self.head + 1 == self.end { self.first } else { self.head + 1 };
        Ok(at)
    }

    /// Frees the `count` oldest blocks.
    pub(super) fn release(&mut self, count: u32) {
        self.used -= count;
    }

    /// The first byte of a block of the volume on the device.
    pub(super) fn home(&self, block: FsBlock) -> u64 {
        block.get() * u64::from(self.format.block_size())
    }
}
