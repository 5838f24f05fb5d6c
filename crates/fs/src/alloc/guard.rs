//! The blocks that the maps of files may lead to.
//!
//! A map says where a file's blocks are, and a damaged or hostile one may lead to the volume's own structures: a user
//! who may read or write that file would read or write these. So where a map leads is checked before it is followed. Of
//! volumes that are only read less is known, and less is checked.

use super::Space;
use crate::{Base, Error, Inode, Result};
use format::{FsBlock, Structure, Where};
use space::Purpose;
use std::ops::Range;

impl Base {
    /// Refuses blocks to which a file's map leads, or which hold its attributes, where they cannot be a file's.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub(crate) fn may_lead_to(&self, inode: &Inode, first: FsBlock, count: u64, purpose: Purpose) -> Result<()> {
        let blocks = first.get()..first.get().saturating_add(count);
        // the maps of the volume's own inodes lead where those of others do not
        let refused = self.may_be_named(inode.number)
            && (!self.layout.may_contain(purpose, &blocks)
                || self.writing.as_ref().is_some_and(|writing| writing.space.is_own(&blocks)));
        if refused {
            let what = "its block map points into the system zone";
            return Err(Error::corrupt(Structure::Inode, Where::Inode(inode.number), what));
        }
        Ok(())
    }
}

impl Space {
    /// Whether the volume's own structures, its journal among them, lie in these blocks.
    pub(super) fn is_own(&self, blocks: &Range<u64>) -> bool {
        let before_end = self.options.journal.partition_point(|run| run.start < blocks.end);
        let last = before_end.checked_sub(1).and_then(|n| self.options.journal.get(n));
        self.system_zones.overlap(blocks) || last.is_some_and(|run| blocks.start < run.end)
    }
}
