//! A closed generation: the changed blocks with their tags, and the reason for closing.

use crate::ChangeRecord;
use crate::recovery::BlockExtent;
use format::{FsBlock, InodeNo};
use std::sync::Arc;

/// The kind of an operation by its effect on the space of the volume. The file system states it for any engine; only an
/// engine with space of its own has a limit for each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperationKind {
    /// Any operation.
    Ordinary,
    /// An operation that allocates blocks for delayed data, for which space is reserved.
    Reserved,
    /// An operation that frees, or changes only existing structures.
    Freeing,
    /// An operation that takes a snapshot.
    Snapshot,
    /// An operation that deletes a snapshot.
    Deletion,
}

/// The kind of a metadata block. Engines that order writes do so by these kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// The block with the superblock.
    Superblock,
    /// Group descriptors.
    Descriptors,
    /// A group's block bitmap.
    BlockBitmap,
    /// A group's inode bitmap.
    InodeBitmap,
    /// A head, a tree or a block of the log of space maps.
    SpaceMap,
    /// Inodes.
    InodeTable,
    /// A node of an extent tree.
    ExtentNode,
    /// An indirect block.
    Indirect,
    /// A block of directory entries.
    Directory,
    /// An index block of a hashed directory.
    DirectoryIndex,
    /// Extended attributes.
    Attributes,
    /// A block of the orphan file.
    OrphanFile,
    /// File data that is written in the same way as metadata: the target of a symbolic link, the value of an attribute
    /// inode, and all file data under an engine that journals it.
    Data,
    /// An engine's own block, of a log or a list. Only plans have such blocks.
    Engine,
}

/// The kind and owner of a changed block, for the engine that orders it, and the inputs of its checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tag {
    /// The block's kind.
    pub kind: Kind,
    /// The inode that the block belongs to; number 0 if it belongs to none.
    pub owner: InodeNo,
    /// The seed of its checksum: the owner's, or the volume's; 0 for a checksum without either.
    pub seed: u32,
    /// For a block of an inode table (whose owner is one of its inodes): bit n is set if its n-th inode has changed and
    /// its checksum is deferred; further changes add bits. 0 for other blocks.
    pub deferred_slots: u32,
}

impl Tag {
    /// The tag of a block without a checksum seed.
    #[must_use]
    pub const fn new(kind: Kind, owner: InodeNo) -> Self {
        Self { kind, owner, seed: 0, deferred_slots: 0 }
    }
}

/// The volume state in the superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VolumeState {
    /// In use: needs a full check after a crash.
    NeedsCheck,
    /// In use: needs its journal replayed after a crash.
    NeedsReplay,
    /// Consistent without recovery.
    Clean,
}

/// The reason why a generation closes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitReason {
    /// It has reached its dirty limit.
    DirtyLimit,
    /// It has been open for the commit interval.
    Timeout,
    /// It must become durable: sync, fsync, unmount, or work of the engine itself.
    Sync,
}

/// The volume's superblock, for an engine that sets its state.
pub trait StateSource {
    /// Sets the state of the volume: returns the superblock's bytes of the last close, with that state, and their first
    /// byte on the device.
    fn with_state(&self, state: VolumeState) -> (u64, Arc<[u8]>);
}

/// One changed block of a closed generation.
#[derive(Debug, Clone)]
pub struct BlockWrite {
    /// Its block number.
    pub block: FsBlock,
    /// Its kind and owner.
    pub tag: Tag,
    /// Its content when the generation closed; later operations do not change it.
    pub data: Arc<[u8]>,
    /// It was allocated in this generation, so nothing durable references it, provided that freed blocks are not
    /// allocated again before the free is durable ([`Limits::defers_reuse`](crate::engine::Limits)).
    pub fresh: bool,
    /// Its content before the generation, for blocks of directories, attributes and indirect blocks, if the engine
    /// wants [change records](crate::engine::Limits::wants_change_records) and the block is not fresh.
    pub before: Option<Arc<[u8]>>,
}

/// Adjacent blocks that nothing durable references, written in addition to the changed blocks of a generation.
#[derive(Debug, Clone)]
pub struct FreshExtent {
    /// The first block.
    pub first: FsBlock,
    /// Their kind.
    pub kind: Kind,
    /// Whole blocks.
    pub data: Arc<[u8]>,
}

/// The changes of a generation, for the engine.
#[derive(Debug)]
pub struct ClosedGeneration {
    /// Its number; generations close in the order of their numbers.
    pub number: u64,
    /// The reason why it closed.
    pub reason: CommitReason,
    /// The changed blocks, ascending.
    pub blocks: Vec<BlockWrite>,
    /// Blocks that are written home before any of `blocks` is valid: a log never contains them. They overlap neither
    /// `blocks`, nor those of earlier generations, nor freed blocks.
    pub fresh_extents: Vec<FreshExtent>,
    /// Blocks freed in it that had contained metadata (or journaled data), ascending; extents may overlap. Empty unless
    /// the engine [wants](crate::engine::Limits::wants_forgotten) them.
    pub forgotten: Vec<BlockExtent>,
    /// File data, or an earlier generation, was written to the device and not flushed yet.
    pub unflushed: bool,
    /// The change records of its operations, in their order, for an engine that
    /// [wants](crate::engine::Limits::wants_change_records) them.
    pub change_records: Vec<ChangeRecord>,
}

impl ClosedGeneration {
    /// Creates a generation of these blocks only, ascending, which no store closed.
    pub(crate) fn of(blocks: Vec<BlockWrite>) -> Self {
        let (forgotten, change_records, fresh_extents) = (Vec::new(), Vec::new(), Vec::new());
        Self {
            number: 0,
            reason: CommitReason::Sync,
            blocks,
            fresh_extents,
            forgotten,
            unflushed: true,
            change_records,
        }
    }
}
