//! Protection of the volume's own structures from the maps of files.
//!
//! A map states the blocks of a file; a damaged or hostile one may point to the volume's own structures, so that a user
//! who may read or write the file could read or write these. So the target of a mapping is checked before use. For
//! volumes open for reading, less is known and less is checked.

use super::Space;
use crate::{Base, Error, Inode, Result};
use format::{FsBlock, Structure, Where};
use space::Purpose;
use std::ops::Range;

impl Base {
    /// Refuses blocks that a file's map points to, or that contain its attributes, if they cannot belong to a file.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub(crate) fn may_lead_to(&self, inode: &Inode, first: FsBlock, count: u64, purpose: Purpose) -> Result<()> {
        let blocks = first.get()..first.get().saturating_add(count);
        // the maps of the volume's own inodes point to blocks that other files must not use
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
    /// Whether some of these blocks belong to the volume's own structures, including its journal.
    pub(super) fn is_own(&self, blocks: &Range<u64>) -> bool {
        let before_end = self.options.journal.partition_point(|run| run.start < blocks.end);
        let last = before_end.checked_sub(1).and_then(|n| self.options.journal.get(n));
        self.system_zones.overlap(blocks) || last.is_some_and(|run| blocks.start < run.end)
    }
}
