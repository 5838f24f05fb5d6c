//! Change records of operations: information on a generation for an engine that repairs after a crash instead of
//! replaying.

use format::{FsBlock, GroupNo, InodeNo};

/// A record of one change by an operation, in addition to the changed blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangeRecord {
    /// An inode changed.
    Inode {
        /// Its number.
        number: InodeNo,
        /// Its slot in the inode table before the operation; zeroes if it was never used.
        before: Box<[u8]>,
        /// Its slot after the operation; the checksum may be deferred.
        after: Box<[u8]>,
    },
    /// Adjacent blocks were allocated or freed.
    Run {
        /// Their owner.
        owner: InodeNo,
        /// The owner's use of them.
        part: Part,
        /// The first of them.
        first: FsBlock,
        /// The number of blocks.
        count: u64,
        /// `true` for an allocation, `false` for a free.
        allocated: bool,
    },
    /// An inode number was allocated or freed.
    Number {
        /// The number.
        number: InodeNo,
        /// `true` for an allocation, `false` for a free.
        allocated: bool,
    },
    /// A file takes over the name of another: after a crash it must exist with the content that the generation leaves.
    Whole {
        /// Its number.
        number: InodeNo,
    },
    /// A group's totals before the generation's first change to the group.
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
    /// File content, from this block of the file on.
    Content(u64),
    /// A node of the file's block map.
    Map,
    /// Extended attributes.
    Attributes,
}
