//! File content that was written and has no place on the device yet.
//!
//! Blocks are allocated when the content leaves memory, many at once: so a file that grows in small steps lies in one
//! piece, and one that is removed soon costs nothing.

use std::collections::BTreeMap;

/// The delayed content of one file: whole blocks by their number in the file.
#[derive(Default)]
pub(crate) struct Delayed {
    blocks: BTreeMap<u64, Box<[u8]>>,
}

impl Delayed {
    /// There is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }
}
