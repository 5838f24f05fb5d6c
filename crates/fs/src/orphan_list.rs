//! The list of orphans in memory, with their positions on the device.

use format::{FsBlock, InodeNo};
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use store::Tag;

/// Metadata blocks that adding to or removing from the list may dirty besides the inode's own: the neighbour in the
/// chain, or the block of the file.
pub(crate) const LISTING: usize = 2;

/// All orphans of a volume.
#[derive(Default)]
pub(crate) struct OrphanList {
    /// The number of orphans; no lock is needed if it is 0.
    pub(crate) count: AtomicUsize,
    pub(crate) chain: Mutex<Chain>,
}

/// All orphans, with their positions on the device.
#[derive(Clone, Default)]
pub(crate) struct Chain {
    pub(crate) all: BTreeMap<InodeNo, Orphan>,
    /// The first inode of the chain; 0 for none.
    pub(crate) first: u32,
    pub(crate) file: Option<OrphanFile>,
}

#[derive(Clone)]
pub(crate) struct Orphan {
    pub(crate) entry: OrphanEntry,
    /// Whether it never had a name, and may still get one.
    pub(crate) may_be_linked: bool,
    /// Whether a thread is freeing it.
    pub(crate) being_freed: bool,
}

#[derive(Clone)]
pub(crate) enum OrphanEntry {
    /// In the chain: the previous inode, 0 for the superblock, and the next one, 0 for none.
    Chain { before: u32, next: u32 },
    /// In this block of the orphan file, by its index among the file's blocks.
    File { block: usize },
}

#[derive(Clone)]
pub(crate) struct OrphanFile {
    pub(crate) tag: Tag,
    /// Its blocks, with the number of used slots of each.
    pub(crate) blocks: Vec<(FsBlock, u32)>,
}

impl Chain {
    /// The link of an inode in the chain.
    pub(crate) fn next_of(&self, number: InodeNo) -> Option<u32> {
        match self.all.get(&number)?.entry {
            OrphanEntry::Chain { next, .. } => Some(next),
            OrphanEntry::File { .. } => None,
        }
    }
}

impl OrphanList {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Chain> {
        self.chain.lock()
    }

    /// The chain, locked; `None` if there are no orphans.
    pub(crate) fn chain(&self) -> Option<MutexGuard<'_, Chain>> {
        (self.count.load(Ordering::Acquire) > 0).then(|| self.lock())
    }

    pub(crate) fn contains(&self, number: InodeNo) -> bool {
        self.chain().is_some_and(|chain| chain.all.contains_key(&number))
    }

    /// Whether an inode without names may get one.
    pub(crate) fn may_be_linked(&self, number: InodeNo) -> bool {
        self.chain().is_some_and(|chain| chain.all.get(&number).is_some_and(|o| o.may_be_linked))
    }

    /// A copy of the current orphans.
    pub(crate) fn remember(&self) -> Chain {
        self.lock().clone()
    }

    /// Restores an earlier set of orphans.
    pub(crate) fn undo(&self, before: Chain) {
        self.count.store(before.all.len(), Ordering::Release);
        *self.lock() = before;
    }

    /// Marks an orphan as being freed by the caller; `false` if another thread is already freeing it, or it is not an
    /// orphan.
    pub(crate) fn begin_freeing(&self, number: InodeNo) -> bool {
        let mut chain = self.lock();
        chain.all.get_mut(&number).is_some_and(|orphan| !std::mem::replace(&mut orphan.being_freed, true))
    }

    /// Clears the mark of [`OrphanList::begin_freeing`] after a failure.
    pub(crate) fn stop_freeing(&self, number: InodeNo) {
        if let Some(orphan) = self.lock().all.get_mut(&number) {
            orphan.being_freed = false;
        }
    }
}
