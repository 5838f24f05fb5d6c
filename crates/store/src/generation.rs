//! Operations, the generation they belong to, and what the file system adds when it closes.

use crate::recovery::Run;
use crate::{Need, Result, Store};
use format::{FsBlock, InodeNo};
use std::sync::{Arc, RwLockReadGuard};

/// What a metadata block is. Engines that order writes do so by these kinds.
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
    /// File data that goes the way of metadata: the target of a link, the value of an attribute inode, and all file data
    /// under an engine that journals it.
    Data,
    /// What an engine writes for itself: a log, a list. Only plans hold such blocks.
    Engine,
}

/// What a changed block is, for the engine that orders it and for whoever computes its checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tag {
    /// Its kind.
    pub kind: Kind,
    /// The inode it belongs to; number 0 where it belongs to none.
    pub owner: InodeNo,
    /// The start of its checksum: the owner's, or the volume's. Of a block of an inode table (whose owner is one of its
    /// inodes) bit n is set where its n-th inode has changed and waits for its checksum; with each change more are.
    pub seed: u32,
}

/// How the volume is marked in its superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// In use: needs a full check after a crash.
    NeedsCheck,
    /// In use: needs its journal replayed after a crash.
    NeedsReplay,
    /// Sound as it stands.
    Clean,
}

/// Why a generation closes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// It holds as much as it may.
    DirtyLimit,
    /// It has been open for as long as it may.
    Timeout,
    /// Somebody waits for it to be durable: sync, fsync, unmount.
    Sync,
    /// Nothing happens: the engine gives back what it will hardly need.
    Idle,
    /// The engine was asked to give back all that it can do without.
    Tidy,
}

/// A change to a volume's list of snapshots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VersionChange {
    /// The generation that closes is kept, all of it.
    Create {
        /// What [`format::native::snapshots::Snapshot::is_name`] accepts, and no snapshot has.
        name: Vec<u8>,
        /// When it was made, in seconds since 1970.
        time: i64,
    },
    /// A snapshot is not kept any more.
    Delete {
        /// Its name.
        name: Vec<u8>,
    },
}

/// The file system, as a generation that closes sees it.
///
/// None of these may begin an operation, or take a lock that is held by someone who begins one.
pub trait Client: Send + Sync {
    /// Brings what is kept outside the cache (bitmaps, descriptors, the superblock's counts) into the closing generation.
    /// No operation is running. Nothing reckons with blocks that are changed here for the first time, so they must be few:
    /// an operation that will make a block change here edits it too, so that it counts.
    ///
    /// # Errors
    /// Any error turns the volume read-only: the generation cannot be written as a whole.
    fn finish(&self, closing: &Closing<'_>) -> Result<()>;

    /// Gives chunks of the volume's data to the engine: `need.must` of them where there is any room, up to `need.should`
    /// where there is plenty. In the closing generation their blocks are in use. The numbers of those given.
    ///
    /// # Errors
    /// As [`Client::finish`].
    fn give_chunks(&self, _closing: &Closing<'_>, _need: Need<u64>) -> Result<Vec<u32>> {
        Ok(Vec::new())
    }

    /// Chunks that the engine has no use for come back: in the closing generation their blocks are free.
    ///
    /// # Errors
    /// As [`Client::finish`].
    fn take_chunks_back(&self, _closing: &Closing<'_>, _chunks: &[u32]) -> Result<()> {
        Ok(())
    }

    /// Puts the checksum into a block that was changed in the closing generation, once however often it was changed.
    fn seal(&self, block: FsBlock, tag: &Tag, bytes: &mut [u8]);

    /// The generation, and so everything that was freed in it, is on the device for good.
    fn durable(&self, generation: u64);

    /// From now on the volume is marked so: the superblock's bytes as they were last closed, with that mark, and the
    /// byte at which they lie.
    fn mark(&self, mark: Mark) -> (u64, Arc<[u8]>);
}

/// A whole operation under way: what it changes belongs to one generation.
///
/// While one exists no generation closes, so it must be short: all that can fail or take time (look-ups, reads) comes
/// before it where possible. A thread must not begin a second one before it has dropped the first.
pub struct Operation<'a> {
    store: &'a Store,
    open: RwLockReadGuard<'a, u64>,
    credits: usize,
}

impl<'a> Operation<'a> {
    pub(crate) fn new(store: &'a Store, open: RwLockReadGuard<'a, u64>, credits: usize) -> Self {
        Self { store, open, credits }
    }

    /// The number of the generation it belongs to.
    #[must_use]
    pub fn generation(&self) -> u64 {
        *self.open
    }

    /// The store it changes.
    #[must_use]
    pub fn store(&self) -> &'a Store {
        self.store
    }

    /// Changes a block. `change` runs under the cache's lock: it must be short and must not use the store.
    ///
    /// # Errors
    /// Only where the block had to be read first and could not be; then `change` did not run.
    pub fn edit<R>(&self, block: FsBlock, tag: Tag, change: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        self.store.cache.edit(block, tag, change)
    }

    /// Gives a block that was just allocated its first content. It begins as zeroes; the device is not read.
    pub fn fresh<R>(&self, block: FsBlock, tag: Tag, change: impl FnOnce(&mut [u8]) -> R) -> R {
        self.store.cache.fresh(block, tag, change)
    }

    /// Blocks from `first` on that held metadata were freed: their changes need not be written, and what an engine still
    /// holds of them must not overwrite what they hold next.
    pub fn forget(&self, first: FsBlock, count: u64) {
        self.store.forget(first, count);
    }

    /// As [`Operation::forget`] for blocks that held file data: nothing to do unless the engine journals data. Not for data
    /// that was written with [`Operation::edit`] or [`Operation::fresh`], which went the way of metadata.
    pub fn forget_data(&self, first: FsBlock, count: u64) {
        if self.store.journals_data() {
            self.store.forget(first, count);
        }
    }

    /// Changes the volume's list of snapshots, when the generation closes. Only on the native format; who asks for it
    /// sees to it that the change can be made.
    pub fn versions(&self, change: VersionChange) {
        self.store.change_versions(change);
    }

    /// Writes file data from byte `offset` of block `first` on. Blocks that were just allocated must be written whole.
    /// It is on the device before the generation counts as durable.
    ///
    /// # Errors
    /// Those of the device. Nothing is promised about the bytes then, and the volume is read-only.
    pub fn write_data(&self, owner: InodeNo, first: FsBlock, offset: u64, data: &[u8]) -> Result<()> {
        self.store.write_data(owner, first, offset, data)
    }
}

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        self.store.operation_ends(self.credits);
    }
}

/// A generation that closes: no operation runs, and the file system adds what it keeps elsewhere.
pub struct Closing<'a> {
    pub(crate) store: &'a Store,
    pub(crate) generation: u64,
    pub(crate) versions: &'a [VersionChange],
}

impl Closing<'_> {
    /// The generation's number.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// What becomes of the volume's snapshots with it.
    #[must_use]
    pub fn versions(&self) -> &[VersionChange] {
        self.versions
    }

    /// The store, for reading.
    #[must_use]
    pub fn store(&self) -> &Store {
        self.store
    }

    /// As [`Operation::edit`].
    ///
    /// # Errors
    /// Where the block had to be read first and could not be.
    pub fn edit<R>(&self, block: FsBlock, tag: Tag, change: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        self.store.cache.edit(block, tag, change)
    }

    /// As [`Operation::fresh`]: the block's whole content, without reading it.
    pub fn fresh<R>(&self, block: FsBlock, tag: Tag, change: impl FnOnce(&mut [u8]) -> R) -> R {
        self.store.cache.fresh(block, tag, change)
    }
}

/// One changed block of a closed generation.
#[derive(Debug, Clone)]
pub struct BlockWrite {
    /// Where it belongs.
    pub block: FsBlock,
    /// What it is.
    pub tag: Tag,
    /// Its content when the generation closed. It does not change, whatever later operations do.
    pub data: Arc<[u8]>,
}

/// What a generation changed, for the engine.
#[derive(Debug)]
pub struct ClosedGeneration {
    /// Its number; generations close in the order of their numbers.
    pub number: u64,
    /// Why it closed.
    pub cause: Cause,
    /// The changed blocks, ascending.
    pub blocks: Vec<BlockWrite>,
    /// Blocks freed in it that had held metadata (or journaled data), ascending; they may overlap. Empty unless the engine
    /// [wants](crate::engine::Limits::wants_forgotten) them.
    pub forgotten: Vec<Run>,
    /// File data, or an earlier generation, was written to the device and not flushed yet.
    pub unflushed: bool,
    /// Changes to the list of snapshots.
    pub versions: Vec<VersionChange>,
}

impl ClosedGeneration {
    /// These blocks alone, ascending: a generation that no store closed.
    pub(crate) fn of(blocks: Vec<BlockWrite>) -> Self {
        let (forgotten, versions) = (Vec::new(), Vec::new());
        Self { number: 0, cause: Cause::Sync, blocks, forgotten, unflushed: true, versions }
    }
}
