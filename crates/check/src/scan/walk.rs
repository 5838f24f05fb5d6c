//! The two receivers of a walk over all metadata: of its claims, and of the blocks that it reads.

use super::found::{InlineDirectory, XattrRef};
use crate::claims::Claims;
use crate::inode_records::Directory;
use format::{FsBlock, GroupNo, InodeNo};
use std::ops::Range;

/// The receiver of claims, which records the owner of clusters.
pub(crate) trait Claimer: Sync {
    /// Claims clusters for an inode. `false` where they were claimed before, even by the same inode.
    fn claim(&self, inode: InodeNo, clusters: Range<u64>) -> bool;

    /// Whether problems are reported and records filled; otherwise the walk only determines owners.
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

/// The kind of a group's bitmap.
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
    /// A part of the inode table; `.1` is the index of its first inode in the group.
    Table(GroupNo, u32),
    /// Blocks of a region.
    Region,
}

/// The receiver of blocks that the rounds read but do not check.
pub(crate) trait Visitor: Sync {
    /// Receives a bitmap.
    fn bitmap(&self, group: GroupNo, kind: BitmapKind, bytes: Result<&[u8], &blockdev::Error>);

    /// Receives all directories and inline directories, after all inodes were checked and before the first
    /// [`dir_block`](Self::dir_block).
    fn directories(&self, directories: Vec<Directory>, inline: Vec<InlineDirectory>);

    /// Receives a block of a directory.
    fn dir_block(&self, dir: InodeNo, file_block: u32, block: FsBlock, bytes: Result<&[u8], &blockdev::Error>);

    /// Receives a block of extended attributes and all inodes that refer to it. Returns the clusters of values in other
    /// inodes.
    fn xattr_block(&self, block: FsBlock, inodes: &[XattrRef], bytes: Result<&[u8], &blockdev::Error>) -> u64;
}
