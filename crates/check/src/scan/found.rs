//! The findings of one round that a later one reads: tree nodes, directories, link targets, attribute blocks.

use format::InodeNo;

/// The first block of a file that may be below its doubly indirect block: 12 are direct, and an indirect block lists at
/// least 256.
const BELOW_DOUBLE: u32 = 12 + 256;

/// The kind of a tree block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum NodeKind {
    /// A node of an extent tree of this depth: 0 is a leaf.
    Extents(u16),
    /// An indirect block of this level: 1 contains numbers of data blocks.
    Indirect(u16),
}

/// A tree block to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Node {
    /// Its block number.
    pub(crate) block: u64,
    /// The inode it belongs to.
    pub(crate) inode: InodeNo,
    /// The first block of the file that it covers.
    pub(crate) first: u32,
    /// The last one it may cover.
    pub(crate) last: u32,
    /// Its kind.
    pub(crate) kind: NodeKind,
}

impl Node {
    /// Whether it is an indirect block below the doubly indirect one of the resize inode that is itself a descriptor block reserved for growth: these
    /// belong to the groups, not to inode 7, which lists them.
    pub(crate) fn is_growth_copy(&self) -> bool {
        self.inode == InodeNo::RESIZE && self.kind == NodeKind::Indirect(1) && self.first >= BELOW_DOUBLE
    }
}

/// Contiguous blocks of a directory to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DirRun {
    /// The first of them.
    pub(crate) block: u64,
    /// The number of them.
    pub(crate) len: u32,
    /// The inode they belong to.
    pub(crate) inode: InodeNo,
    /// The directory block number of the first one.
    pub(crate) first: u32,
    /// Under bigalloc: the first cluster belongs to a neighbouring run of the same directory too, which claims it.
    pub(crate) shares_first: bool,
    /// Likewise the last cluster.
    pub(crate) shares_last: bool,
}

/// The block of a symbolic link's target, to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LinkTarget {
    /// Its block number.
    pub(crate) block: u64,
    /// The inode it belongs to.
    pub(crate) inode: InodeNo,
}

/// The findings in a map that are handed on to later rounds.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) nodes: Vec<Node>,
    pub(crate) dir_runs: Vec<DirRun>,
    pub(crate) links: Vec<LinkTarget>,
    /// Under bigalloc: clusters at the ends of a leaf that the next leaf may share, claimed when all leaves are known.
    pub(crate) edges: Vec<Edge>,
}

/// A cluster in which an extent tree leaf begins or ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Edge {
    pub(crate) inode: InodeNo,
    /// The cluster's number in the file.
    pub(crate) logical: u64,
    pub(crate) cluster: u64,
}

impl Found {
    /// Moves everything from `other` to the end of this.
    pub(crate) fn append(&mut self, other: &mut Self) {
        self.nodes.append(&mut other.nodes);
        self.dir_runs.append(&mut other.dir_runs);
        self.links.append(&mut other.links);
        self.edges.append(&mut other.edges);
    }
}

/// An inode that names an attribute block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct XattrRef {
    pub(crate) block: u64,
    pub(crate) inode: InodeNo,
}

/// An inline directory, stored until all inodes are known.
#[derive(Debug)]
pub(crate) struct InlineDirectory {
    pub(crate) inode: InodeNo,
    pub(crate) i_block: [u8; 60],
    pub(crate) system_data: Box<[u8]>,
}
