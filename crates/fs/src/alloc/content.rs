//! Overwriting of content in place: which blocks allow it.
//!
//! For other blocks, a write allocates new blocks and frees the old ones in one change.

use super::Space;
use crate::Result;
use crate::mutant::Mutant;
use format::FsBlock;
use std::sync::atomic::Ordering;
use store::Operation;

impl Space {
    /// Whether content may be overwritten in place: the answer for block `first`, and the number of blocks, at most
    /// `len`, that it applies to. It is valid as long as the operation.
    ///
    /// Blocks allocated in the open generation may always be overwritten: no durable generation refers to them.
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

    /// Records blocks allocated for content.
    pub(super) fn record_allocated(&self, first: FsBlock, count: u32) {
        if self.copies.load(Ordering::Acquire) {
            self.allocated.lock().add(first.get(), count.into());
        }
    }

    /// Clears the record at the close of a generation: its blocks are part of that generation from then on.
    pub(crate) fn forget_allocated(&self) {
        self.allocated.lock().clear();
    }
}
