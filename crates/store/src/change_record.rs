//! Change records of operations: what an engine that repairs after a crash, instead of replaying, must know of a generation.

use format::{FsBlock, GroupNo, InodeNo};

/// A fact about what an operation changed, beside the changed blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangeRecord {
    /// An inode changed.
    Inode {
        /// Its number.
        number: InodeNo,
        /// Its slot in the inode table before the operation; zeroes where it was never used.
        before: Box<[u8]>,
        /// Its slot after, whose checksum may be deferred.
        after: Box<[u8]>,
    },
    /// Neighbouring blocks were allocated or freed.
    Run {
        /// Their owner.
        owner: InodeNo,
        /// The owner's use of them.
        part: Part,
        /// The first of them.
        first: FsBlock,
        /// The number of blocks.
        count: u64,
        /// Allocated, or freed.
        allocated: bool,
    },
    /// An inode's number was allocated or freed.
    Number {
        /// The number.
        number: InodeNo,
        /// Allocated, or freed.
        allocated: bool,
    },
    /// After a crash a file must be there as the generation leaves it: it takes the name of another.
    Whole {
        /// Its number.
        number: InodeNo,
    },
    /// A group's totals as they were before the generation changed anything of the group.
    Group {
        /// The group.
        number: GroupNo,
        /// Free blocks, or clusters.
        free: u32,
        /// Free inodes.
        free_inodes: u32,
        /// Directories.
        directories: u32,
    },
}

/// The part of a file that a block belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Content, from this block of the file on.
    Content(u64),
    /// A node of its map.
    Map,
    /// Extended attributes.
    Attributes,
}
