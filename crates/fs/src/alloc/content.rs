//! Content that stays where it is: which blocks of it may be overwritten in their places.
//!
//! Where they may not, a write allocates new blocks and frees the old ones in one change.

use super::Space;
use crate::Result;
use crate::mutant::Mutant;
use format::FsBlock;
use std::sync::atomic::Ordering;
use store::Operation;

impl Space {
    /// Whether content may be written over in its place, asked for the blocks from `first` on: the answer for the
    /// first, and for how many of `len` it holds. It holds as long as the operation.
    ///
    /// Blocks that no durable generation leads to always may: they were allocated in the open one.
    pub(crate) fn in_place(&self, op: &Operation<'_>, first: FsBlock, len: u64) -> Result<(bool, u64)> {
        if self.options.mutant.is(Mutant::OverwritePinned) {
            return Ok((true, len));
        }
        let (unpinned, len) = self.is_unpinned(op.store(), first, len)?;
        if !unpinned || !self.copies.load(Ordering::Acquire) {
            return Ok((unpinned, len));
        }
        Ok(self.allocated.lock().answer(first.get(), len))
    }

    /// Blocks were allocated for content.
    pub(super) fn record_allocated(&self, first: FsBlock, count: u32) {
        if self.copies.load(Ordering::Acquire) {
            self.allocated.lock().add(first.get(), count.into());
        }
    }

    /// A generation closes: what it allocated is content that counts.
    pub(crate) fn forget_allocated(&self) {
        self.allocated.lock().clear();
    }
}
