//! Operations, and the file system's additions to their generation when it closes.

use crate::{ChangeRecord, FreshExtent, Kind, Need, OperationKind, Result, StateSource, Store, Tag};
use format::{FsBlock, InodeNo};
use parking_lot::RwLockReadGuard;
use std::sync::Arc;

/// The functions of the file system that the store calls when a generation closes.
///
/// None of these may begin an operation, or take a lock that is also taken by a thread that begins an operation.
pub trait CommitHooks: StateSource + Send + Sync {
    /// Adds the changes outside the cache (bitmaps, descriptors, the superblock's counts) to the closing generation. No
    /// operation is running. Blocks that are changed here for the first time count only up to
    /// [`CommitHooks::closing_credits`]: an operation that causes a change of a block here edits that block, too.
    ///
    /// # Errors
    /// Any error turns the volume read-only: the generation cannot be written as a whole.
    fn finish(&self, closing: &Closing<'_>) -> Result<()>;

    /// The maximum number of blocks that every close changes and no operation edited before; at most a quarter of a
    /// generation's limit. A few more than that do no harm. Constant.
    fn closing_credits(&self) -> usize {
        0
    }

    /// Whether a close would have too much to do in addition to the blocks that operations changed: the open generation
    /// then closes before another operation begins. Called often, and `false` after [`CommitHooks::finish`].
    fn is_full(&self) -> bool {
        false
    }

    /// Sets the checksum of a block that was changed in the closing generation; once, however often it was changed.
    fn set_checksum(&self, block: FsBlock, tag: &Tag, bytes: &mut [u8]);

    /// Records that the generation and all before it are durable, so that everything freed in them may be reused.
    fn durable(&self, generation: u64);
}

/// The functions of the file system that the store calls for an engine with [space of its own](crate::MetadataSpace).
pub trait SpaceHooks: CommitHooks {
    /// Grants chunks of the volume's data to the engine's metadata: `need.must` of them if there is any space, up to
    /// `need.should` if there is plenty. Marks their blocks as used in the closing generation, and returns the numbers
    /// of the chunks.
    ///
    /// # Errors
    /// As [`CommitHooks::finish`].
    fn grant_chunks(&self, closing: &Closing<'_>, need: Need<u64>) -> Result<Vec<u32>>;

    /// Takes back chunks that the engine does not need: frees their blocks in the closing generation.
    ///
    /// # Errors
    /// As [`CommitHooks::finish`].
    fn return_chunks(&self, closing: &Closing<'_>, chunks: &[u32]) -> Result<()>;
}

/// An operation in progress: all its changes belong to one generation.
///
/// While one exists no generation closes, so it must be short: everything that can fail or take time (look-ups, reads)
/// comes before it where possible. A thread must drop its operation before it begins another one.
pub struct Operation<'a> {
    store: &'a Store,
    open: RwLockReadGuard<'a, u64>,
    credits: usize,
    kind: OperationKind,
}

impl<'a> Operation<'a> {
    pub(crate) fn new(store: &'a Store, open: RwLockReadGuard<'a, u64>, credits: usize, kind: OperationKind) -> Self {
        Self { store, open, credits, kind }
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

    /// Announces `credits` more metadata blocks, if the open generation has space for them; never waits. `false` if it
    /// has none: then this operation must end and another one begin.
    #[must_use]
    pub fn extend(&mut self, credits: usize) -> bool {
        let extended = self.store.extend_credits(self.credits, credits, self.kind);
        if extended {
            self.credits += credits;
        }
        extended
    }

    /// Changes a block. `change` runs under the cache's lock: it must be short and must not use the store.
    ///
    /// # Errors
    /// Only if the block had to be read first and the read failed; then `change` did not run.
    pub fn edit<R>(&self, block: FsBlock, tag: Tag, change: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        self.store.cache.edit(block, tag, change)
    }

    /// Sets the first content of a block that was just allocated, starting from zeroes; the device is not read.
    pub fn fresh<R>(&self, block: FsBlock, tag: Tag, change: impl FnOnce(&mut [u8]) -> R) -> R {
        self.store.cache.fresh(block, tag, change)
    }

    /// Sets the whole content of a block that is in use, starting from zeroes; the device is not read.
    pub fn replace<R>(&self, block: FsBlock, tag: Tag, change: impl FnOnce(&mut [u8]) -> R) -> R {
        self.store.cache.replace(block, tag, change)
    }

    /// Forgets freed blocks from `first` on that contained metadata: their changes need not be written, and copies of
    /// them in the engine must not overwrite their next content.
    pub fn forget(&self, first: FsBlock, count: u64) {
        self.store.forget(first, count);
    }

    /// As [`Operation::forget`], for blocks of file data: no effect unless the engine journals data. Not for data that
    /// was written with [`Operation::edit`] or [`Operation::fresh`], which is treated as metadata.
    pub fn forget_data(&self, first: FsBlock, count: u64) {
        if self.store.journals_data() {
            self.store.forget(first, count);
        }
    }

    /// Whether the engine wants change records.
    #[must_use]
    pub fn wants_change_records(&self) -> bool {
        self.store.wants_change_records()
    }

    /// Adds a change record for an engine that wants them; for others `record` is not called. `record` must not use the
    /// store.
    pub fn record_change(&self, record: impl FnOnce() -> ChangeRecord) {
        self.store.record_change(record);
    }

    /// Writes file data from byte `offset` of block `first` on. Blocks that were just allocated must be written whole.
    /// The data is on the device before the generation counts as durable.
    ///
    /// # Errors
    /// Those of the device. The content of the blocks is undefined then, and the volume is read-only.
    pub fn write_data(&self, owner: InodeNo, first: FsBlock, offset: u64, data: &[u8]) -> Result<()> {
        self.store.write_data(owner, first, offset, data)
    }
}

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        self.store.operation_ends(self.credits);
    }
}

/// A closing generation: no operation runs, and the file system adds its changes outside the cache.
pub struct Closing<'a> {
    pub(crate) store: &'a Store,
    pub(crate) generation: u64,
}

impl Closing<'_> {
    /// The generation's number.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The store, for reading.
    #[must_use]
    pub fn store(&self) -> &Store {
        self.store
    }

    /// As [`Operation::edit`].
    ///
    /// # Errors
    /// If the block had to be read first and the read failed.
    pub fn edit<R>(&self, block: FsBlock, tag: Tag, change: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        self.store.cache.edit(block, tag, change)
    }

    /// As [`Operation::replace`].
    pub fn replace<R>(&self, block: FsBlock, tag: Tag, change: impl FnOnce(&mut [u8]) -> R) -> R {
        self.store.cache.replace(block, tag, change)
    }

    /// Writes whole blocks home before anything of the generation is valid, in addition to its changed blocks: a
    /// journal never contains them, and so they need no credits. Nothing durable may reference them, and they are never
    /// changed or read like other blocks, except with [`Store::read`] after the generation was written.
    pub fn write_fresh(&self, first: FsBlock, kind: Kind, data: Arc<[u8]>) {
        self.store.write_fresh_extent(FreshExtent { first, kind, data });
    }
}
