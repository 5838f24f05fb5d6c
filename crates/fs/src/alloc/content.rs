//! Overwriting of content in place: which blocks allow it.
//!
//! For other blocks, a write allocates new blocks and frees the old ones in one change.

use super::Space;
use crate::Result;
use crate::mutant::Mutant;
use format::FsBlock;
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
        if !unpinned || !self.new_content.is_copied() {
            return Ok((unpinned, len));
        }
        Ok(self.new_content.answer(first, len))
    }
}
