//! The list of orphans in memory: which there are, and where each stands on the device.

use format::{FsBlock, InodeNo};
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use store::Tag;

/// Metadata blocks that getting onto the list or off it may dirty besides the inode's own: the neighbour in the chain,
/// or the block of the file.
pub(crate) const LISTING: usize = 2;

/// All orphans of a volume.
#[derive(Default)]
pub(crate) struct OrphanList {
    /// The number of orphans; where there are none, no lock is needed.
    pub(crate) count: AtomicUsize,
    pub(crate) chain: Mutex<Chain>,
}

/// Which orphans there are, and where they stand on the device.
#[derive(Clone, Default)]
pub(crate) struct Chain {
    pub(crate) all: BTreeMap<InodeNo, Orphan>,
    /// The first of the chain; 0 for none.
    pub(crate) first: u32,
    pub(crate) file: Option<OrphanFile>,
}

#[derive(Clone)]
pub(crate) struct Orphan {
    pub(crate) entry: OrphanEntry,
    /// It never had a name, and may get one.
    pub(crate) may_be_linked: bool,
    /// A thread is about to free it.
    pub(crate) being_freed: bool,
}

#[derive(Clone)]
pub(crate) enum OrphanEntry {
    /// In the chain: the one before it, 0 for the superblock, and the one behind it, 0 for none.
    Chain { before: u32, next: u32 },
    /// In this block of the orphan file, counted among its blocks.
    File { block: usize },
}

#[derive(Clone)]
pub(crate) struct OrphanFile {
    pub(crate) tag: Tag,
    /// Its blocks, and how many of each one's slots are taken.
    pub(crate) blocks: Vec<(FsBlock, u32)>,
}

impl Chain {
    /// The link of an inode that is in the chain.
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

    /// The chain, locked; `None` where there are no orphans.
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

    /// Which orphans there are now.
    pub(crate) fn remember(&self) -> Chain {
        self.lock().clone()
    }

    /// There are those again that there were, and no others.
    pub(crate) fn undo(&self, before: Chain) {
        self.count.store(before.all.len(), Ordering::Release);
        *self.lock() = before;
    }

    /// Says that the caller will free an orphan; false where another thread does already, or it is not an orphan.
    pub(crate) fn begin_freeing(&self, number: InodeNo) -> bool {
        let mut chain = self.lock();
        chain.all.get_mut(&number).is_some_and(|orphan| !std::mem::replace(&mut orphan.being_freed, true))
    }

    /// The thread that was to free it could not.
    pub(crate) fn stop_freeing(&self, number: InodeNo) {
        if let Some(orphan) = self.lock().all.get_mut(&number) {
            orphan.being_freed = false;
        }
    }
}
