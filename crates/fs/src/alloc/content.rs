//! Content that stays where it is: which blocks of it may be overwritten in their places.
//!
//! Where they may not, whoever changes content gives it new blocks and frees the old ones in one change.

use super::{Space, lock};
use crate::Result;
use format::FsBlock;
use std::sync::atomic::Ordering;
use store::{Mutant, Operation};

impl Space {
    /// Whether content may be written over in its place, asked for the blocks from `first` on: the answer for the first,
    /// and for how many of `len` it holds. It holds as long as the operation.
    ///
    /// Blocks that no durable generation leads to always may: they were given out in the open one.
    pub(crate) fn in_place(&self, op: &Operation<'_>, first: FsBlock, len: u64) -> Result<(bool, u64)> {
        if self.options.mutant == Mutant::OverwritePinned {
            return Ok((true, len));
        }
        let (unpinned, len) = self.is_unpinned(op.store(), first, len)?;
        if !unpinned || !self.copies.load(Ordering::Acquire) {
            return Ok((unpinned, len));
        }
        Ok(lock(&self.given).answer(first.get(), len))
    }

    /// Blocks were given out for content.
    pub(super) fn note_given(&self, first: FsBlock, count: u32) {
        if self.copies.load(Ordering::Acquire) {
            lock(&self.given).add(first.get(), count.into());
        }
    }

    /// A generation closes: what it gave out is content that counts.
    pub(crate) fn forget_given(&self) {
        lock(&self.given).clear();
    }
}
