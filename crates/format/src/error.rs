use crate::{FsBlock, GroupNo, InodeNo};
use std::fmt;

/// The structure with an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Structure {
    /// The superblock or a copy of it.
    Superblock,
    /// A group descriptor.
    GroupDescriptor,
    /// A block or inode bitmap.
    Bitmap,
    /// An inode.
    Inode,
    /// An extent header, index or leaf.
    ExtentTree,
    /// An indirect block.
    IndirectBlock,
    /// A directory block or inline directory.
    Directory,
    /// The hash tree of a directory.
    HashTree,
    /// Extended attributes, in the inode, in a block or in an inode of their own.
    ExtendedAttribute,
    /// A symbolic link's target.
    Symlink,
    /// Data inside the inode.
    InlineData,
    /// The journal.
    Journal,
    /// The multiple-mount-protection block.
    Mmp,
    /// The list or file of orphan inodes.
    Orphans,
    /// A quota file.
    Quota,
    /// The superblock of the native format.
    NativeSuperblock,
    /// The native format's map.
    Map,
    /// The native format's table of chunks with metadata.
    ChunkTable,
    /// The native format's list of snapshots.
    SnapshotList,
    /// A head, a tree or a block of the log of space maps.
    SpaceMap,
    /// The list of linked writes.
    LinkedList,
}

impl fmt::Display for Structure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Structure::Superblock => "superblock",
            Structure::GroupDescriptor => "group descriptor",
            Structure::Bitmap => "bitmap",
            Structure::Inode => "inode",
            Structure::ExtentTree => "extent tree",
            Structure::IndirectBlock => "indirect block",
            Structure::Directory => "directory",
            Structure::HashTree => "directory hash tree",
            Structure::ExtendedAttribute => "extended attribute",
            Structure::Symlink => "symbolic link",
            Structure::InlineData => "inline data",
            Structure::Journal => "journal",
            Structure::Mmp => "multiple-mount-protection block",
            Structure::Orphans => "orphan list",
            Structure::Quota => "quota file",
            Structure::NativeSuperblock => "native superblock",
            Structure::Map => "map",
            Structure::ChunkTable => "chunk table",
            Structure::SnapshotList => "list of snapshots",
            Structure::SpaceMap => "space map",
            Structure::LinkedList => "list of linked writes",
        })
    }
}

/// The location of an error, as precisely as known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Where {
    /// Unknown.
    #[default]
    Volume,
    /// A group.
    Group(GroupNo),
    /// An inode.
    Inode(InodeNo),
    /// A block of the volume.
    Block(FsBlock),
}

impl fmt::Display for Where {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Where::Volume => Ok(()),
            Where::Group(g) => write!(f, " of group {g}"),
            Where::Inode(i) => write!(f, " of inode {i}"),
            Where::Block(b) => write!(f, " in block {b}"),
        }
    }
}

/// The reason why bytes were rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The volume is consistent as far as checked, but needs an unsupported feature.
    #[error("unsupported: {0}")]
    Unsupported(String),
    /// The bytes contradict the format.
    #[error("corrupt {structure}{at}: {what}")]
    Corrupt {
        /// The structure.
        structure: Structure,
        /// Its location.
        at: Where,
        /// The defect, as a phrase without a full stop.
        what: &'static str,
    },
}

impl Error {
    /// A corruption without a location, which the caller adds with [`Error::at`].
    pub fn corrupt(structure: Structure, what: &'static str) -> Self {
        Error::Corrupt { structure, at: Where::Volume, what }
    }

    /// Adds the location of a corruption, unless it has one.
    #[must_use]
    pub fn at(self, place: Where) -> Self {
        match self {
            Error::Corrupt { structure, at: Where::Volume, what } => Error::Corrupt { structure, at: place, what },
            other => other,
        }
    }
}

/// The result of a parse.
pub type Result<T, E = Error> = std::result::Result<T, E>;
