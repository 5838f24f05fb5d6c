//! Numbers of inodes that are free and not allocated: files that a rollback undid had them, and the kernel goes on
//! asking for these files. Under another file's number it would get that file.
//!
//! A parked number is deferred in its group's free inodes, so the search for one does not see it. Nothing of it is on
//! the device: when the volume is opened again no process uses any.

use format::InodeSlot;
use parking_lot::Mutex;
use space::{ContainerMap, Run};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Parked inodes: by their group, their index in it.
#[derive(Default)]
pub(super) struct Parked {
    /// The number of parked inodes; where there are none, no lock is needed.
    count: AtomicUsize,
    groups: Mutex<BTreeMap<u32, BTreeSet<u32>>>,
}

fn one(index: u32) -> Run {
    Run { start: index, len: 1 }
}

impl Parked {
    /// Parks an inode, of whose group `free` are the free inodes if they are in memory.
    pub(super) fn park(&self, slot: InodeSlot, free: Option<&mut ContainerMap>) {
        if self.groups.lock().entry(slot.group.get()).or_default().insert(slot.index) {
            self.count.fetch_add(1, Ordering::Release);
        }
        // else it is deferred when the bitmap is read
        if let Some(free) = free {
            free.defer_available(one(slot.index));
        }
    }

    /// The inverse of [`Parked::park`]; nothing for one that is not parked.
    pub(super) fn unpark(&self, slot: InodeSlot, free: Option<&mut ContainerMap>) {
        let mut groups = self.groups.lock();
        let Some(group) = groups.get_mut(&slot.group.get()) else { return };
        if !group.remove(&slot.index) {
            return;
        }
        self.count.fetch_sub(1, Ordering::Release);
        if group.is_empty() {
            groups.remove(&slot.group.get());
        }
        if let Some(free) = free {
            free.release(one(slot.index));
        }
    }

    /// Whether there is any.
    pub(super) fn any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// Whether an inode is parked.
    pub(super) fn contains(&self, slot: InodeSlot) -> bool {
        self.groups.lock().get(&slot.group.get()).is_some_and(|group| group.contains(&slot.index))
    }

    /// Defers what is parked of a group's free inodes that were just read, by the holder of the group's lock.
    pub(super) fn defer_in(&self, group: u32, free: &mut ContainerMap) {
        if self.any()
            && let Some(parked) = self.groups.lock().get(&group)
        {
            parked.iter().for_each(|index| free.defer_available(one(*index)));
        }
    }
}
