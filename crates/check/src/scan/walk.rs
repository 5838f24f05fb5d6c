//! The two sides of a walk over all metadata: what is done with the claims that it meets, and with the blocks that it
//! reads.

use super::found::{InlineDirectory, XattrRef};
use crate::claims::Claims;
use crate::inode_records::Directory;
use format::{FsBlock, GroupNo, InodeNo};
use std::ops::Range;

/// Records which clusters belong to which inode.
pub(crate) trait Claimer: Sync {
    /// These clusters belong to the inode. `false` where another claim came first, or this very one before.
    fn claim(&self, inode: InodeNo, clusters: Range<u64>) -> bool;

    /// Problems are reported and records filled; otherwise the walk only looks for owners.
    fn is_checking(&self) -> bool;
}

impl Claimer for Claims {
    fn claim(&self, inode: InodeNo, clusters: Range<u64>) -> bool {
        !self.claim_for(inode, clusters)
    }

    fn is_checking(&self) -> bool {
        true
    }
}

/// Which of a group's two bitmaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum BitmapKind {
    /// Blocks (clusters) in use.
    Block,
    /// Inodes in use.
    Inode,
}

/// A part that round 0 reads.
#[derive(Debug, Clone, Copy)]
pub(crate) enum GroupPart {
    /// A bitmap.
    Bitmap(GroupNo, BitmapKind),
    /// A piece of the inode table; `.1` is the place in the group of its first inode.
    Table(GroupNo, u32),
    /// Blocks of a region.
    Region,
}

/// The receiver of blocks that the rounds read and that are not theirs to check.
pub(crate) trait Visitor: Sync {
    /// A bitmap.
    fn bitmap(&self, group: GroupNo, kind: BitmapKind, bytes: Result<&[u8], &blockdev::Error>);

    /// All inodes were checked: directories and inline directories, before the first [`dir_block`](Self::dir_block).
    fn directories(&self, directories: Vec<Directory>, inline: Vec<InlineDirectory>);

    /// A block of a directory.
    fn dir_block(&self, dir: InodeNo, file_block: u32, block: FsBlock, bytes: Result<&[u8], &blockdev::Error>);

    /// A block of extended attributes, and all inodes that name it. Returns the clusters of values that live elsewhere.
    fn xattr_block(&self, block: FsBlock, inodes: &[XattrRef], bytes: Result<&[u8], &blockdev::Error>) -> u64;
}
