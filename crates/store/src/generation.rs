//! A closed generation: the changed blocks, what they are, and why it closed.

use crate::ChangeRecord;
use crate::recovery::BlockExtent;
use format::{FsBlock, InodeNo};
use std::sync::Arc;

/// The kind of an operation by what it does to the space of the volume. The file system knows it and states it for any
/// engine; only one with space of its own has a limit for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperationKind {
    /// Any operation.
    Ordinary,
    /// One that allocates blocks for delayed data, for which space is reserved.
    Reserved,
    /// One that frees, or only changes what is there.
    Freeing,
    /// One that takes a snapshot.
    Snapshot,
    /// One that deletes a snapshot.
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
    /// File data that goes the way of metadata: the target of a link, the value of an attribute inode, and all file
    /// data under an engine that journals it.
    Data,
    /// An engine's own block, of a log or a list. Only plans have such blocks.
    Engine,
}

/// The kind and owner of a changed block, for the engine that orders it, and what its checksum is computed from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tag {
    /// Its kind.
    pub kind: Kind,
    /// The inode it belongs to; number 0 where it belongs to none.
    pub owner: InodeNo,
    /// The start of its checksum: the owner's, or the volume's; 0 where its checksum begins with neither.
    pub seed: u32,
    /// Of a block of an inode table (whose owner is one of its inodes): bit n is set where its n-th inode has changed
    /// and its checksum is deferred; with each change more are. 0 of other blocks.
    pub deferred_slots: u32,
}

impl Tag {
    /// The tag of a block without a checksum seed.
    #[must_use]
    pub const fn new(kind: Kind, owner: InodeNo) -> Self {
        Self { kind, owner, seed: 0, deferred_slots: 0 }
    }
}

/// The state that the superblock shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VolumeState {
    /// In use: needs a full check after a crash.
    NeedsCheck,
    /// In use: needs its journal replayed after a crash.
    NeedsReplay,
    /// Consistent as it stands.
    Clean,
}

/// Why a generation closes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitReason {
    /// It contains as many changes as it may.
    DirtyLimit,
    /// It has been open for as long as it may.
    Timeout,
    /// It is to be durable: sync, fsync, unmount, or work of the engine's own.
    Sync,
}

/// The volume's superblock, for an engine that sets its state.
pub trait StateSource {
    /// From now on the volume has this state: the superblock's bytes as they were last closed, with that state, and the
    /// byte at which they lie.
    fn with_state(&self, state: VolumeState) -> (u64, Arc<[u8]>);
}

/// One changed block of a closed generation.
#[derive(Debug, Clone)]
pub struct BlockWrite {
    /// Its block number.
    pub block: FsBlock,
    /// Its kind and owner.
    pub tag: Tag,
    /// Its content when the generation closed. It does not change, whatever later operations do.
    pub data: Arc<[u8]>,
    /// It was allocated in this generation, so nothing durable leads to it; as far as blocks that were freed are not
    /// allocated again before that is durable ([`Limits::defers_reuse`](crate::engine::Limits)).
    pub fresh: bool,
    /// Its content before the generation, of a directory's blocks, attributes and indirect blocks, where the engine
    /// wants [change records](crate::engine::Limits::wants_change_records) and it is not fresh.
    pub before: Option<Arc<[u8]>>,
}

/// Blocks that follow each other and that nothing durable leads to, written beside the changed blocks of a generation.
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
    /// Why it closed.
    pub reason: CommitReason,
    /// The changed blocks, ascending.
    pub blocks: Vec<BlockWrite>,
    /// Blocks that are home before anything of `blocks` counts: a log never has them. They are none of `blocks`, of
    /// those of earlier generations, or of what was freed.
    pub fresh_extents: Vec<FreshExtent>,
    /// Blocks freed in it that had contained metadata (or journaled data), ascending; they may overlap. Empty unless
    /// the engine [wants](crate::engine::Limits::wants_forgotten) them.
    pub forgotten: Vec<BlockExtent>,
    /// File data, or an earlier generation, was written to the device and not flushed yet.
    pub unflushed: bool,
    /// The change records of its operations, in their order, for an engine that
    /// [wants](crate::engine::Limits::wants_change_records) them.
    pub change_records: Vec<ChangeRecord>,
}

impl ClosedGeneration {
    /// These blocks alone, ascending: a generation that no store closed.
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
