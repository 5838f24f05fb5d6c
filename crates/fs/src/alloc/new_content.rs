//! Blocks allocated for content in the open generation.

use super::block_ranges::BlockRanges;
use format::FsBlock;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// The blocks allocated for content in the open generation, recorded while content is not overwritten in place.
pub(crate) struct NewContent {
    /// Content is never overwritten in place, whether or not a transaction runs.
    always: bool,
    /// Content is not overwritten in place now, except these blocks.
    copied: AtomicBool,
    blocks: Mutex<BlockRanges>,
}

impl NewContent {
    pub(super) fn new(always: bool) -> Self {
        Self { always, copied: AtomicBool::new(always), blocks: Mutex::default() }
    }

    pub(super) fn is_copied(&self) -> bool {
        self.copied.load(Ordering::Acquire)
    }

    /// Sets whether content is not overwritten in place; where that is always so it stays so.
    pub(crate) fn set_copied(&self, copied: bool) {
        self.copied.store(copied || self.always, Ordering::Release);
    }

    /// Records blocks allocated for content.
    pub(super) fn record(&self, first: FsBlock, count: u32) {
        if self.is_copied() {
            self.blocks.lock().add(first.get(), count.into());
        }
    }

    /// Whether the block `first` may be overwritten, and the number of blocks from it on, at most `len`, with the same
    /// answer.
    pub(super) fn answer(&self, first: FsBlock, len: u64) -> (bool, u64) {
        self.blocks.lock().answer(first.get(), len)
    }

    /// Clears the record at the close of a generation: its blocks are part of that generation from then on.
    pub(crate) fn clear(&self) {
        self.blocks.lock().clear();
    }
}
