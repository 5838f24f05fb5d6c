//! Inode numbers that are free but not allocated: they belonged to files that a rollback undid, and the kernel still
//! refers to these files. If the number were reused, it would get another file.
//!
//! A parked number is deferred in its group's free inodes, so searches skip it. Nothing is stored on the device: after
//! the volume is opened again no process uses such a number.

use format::InodeSlot;
use parking_lot::Mutex;
use space::{ContainerMap, Run};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Parked inodes: indexes by group.
#[derive(Default)]
pub(super) struct Parked {
    /// The number of parked inodes; no lock is needed if it is 0.
    count: AtomicUsize,
    groups: Mutex<BTreeMap<u32, BTreeSet<u32>>>,
}

fn one(index: u32) -> Run {
    Run { start: index, len: 1 }
}

impl Parked {
    /// Parks an inode; `free` are the free inodes of its group, if they are in memory.
    pub(super) fn park(&self, slot: InodeSlot, free: Option<&mut ContainerMap>) {
        if self.groups.lock().entry(slot.group.get()).or_default().insert(slot.index) {
            self.count.fetch_add(1, Ordering::Release);
        }
        // else it is deferred when the bitmap is read
        if let Some(free) = free {
            free.defer_available(one(slot.index));
        }
    }

    /// The inverse of [`Parked::park`]; does nothing for an inode that is not parked.
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

    /// Whether any inode is parked.
    pub(super) fn any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// Whether an inode is parked.
    pub(super) fn contains(&self, slot: InodeSlot) -> bool {
        self.groups.lock().get(&slot.group.get()).is_some_and(|group| group.contains(&slot.index))
    }

    /// Defers the parked inodes of a group in its free inodes, which were just read, under the group's lock.
    pub(super) fn defer_in(&self, group: u32, free: &mut ContainerMap) {
        if self.any()
            && let Some(parked) = self.groups.lock().get(&group)
        {
            parked.iter().for_each(|index| free.defer_available(one(*index)));
        }
    }
}
