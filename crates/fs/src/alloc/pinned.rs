//! Numbers of inodes that are free and not given out: files that a rollback took back had them, and somebody outside goes
//! on asking for these files. Under another file's number it would get that file.
//!
//! A pinned number is deferred in its group's free inodes, so the search for one does not see it. Nothing of it is on the
//! device: when the volume is opened again no process uses any.

use super::{Space, lock};
use crate::InodeNo;
use space::{ContainerMap, Run};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Pinned inodes: by their group, their index in it.
#[derive(Default)]
pub(super) struct Pinned {
    /// How many there are; nobody has to lock where there are none.
    count: AtomicUsize,
    groups: Mutex<BTreeMap<u32, BTreeSet<u32>>>,
}

fn one(index: u32) -> Run {
    Run { start: index, len: 1 }
}

impl Space {
    /// A number that is free is not given out before it is unpinned.
    pub(crate) fn pin_inode(&self, number: InodeNo) {
        let Some(slot) = self.sb.geometry.inode_slot(number) else { return };
        let Some(cell) = self.cell(slot.group) else { return };
        let mut state = lock(&cell.state);
        if lock(&self.pinned.groups).entry(slot.group.get()).or_default().insert(slot.index) {
            self.pinned.count.fetch_add(1, Ordering::Release);
        }
        // else it is deferred when the bitmap is read
        if let Some(free) = &mut state.inodes.free {
            free.defer_available(one(slot.index));
        }
    }

    /// A number that was pinned may be given out.
    pub(crate) fn unpin_inode(&self, number: InodeNo) {
        let Some(slot) = self.sb.geometry.inode_slot(number).filter(|_| self.any_pinned()) else { return };
        let Some(cell) = self.cell(slot.group) else { return };
        let mut state = lock(&cell.state);
        let mut groups = lock(&self.pinned.groups);
        let Some(group) = groups.get_mut(&slot.group.get()) else { return };
        if !group.remove(&slot.index) {
            return;
        }
        self.pinned.count.fetch_sub(1, Ordering::Release);
        if group.is_empty() {
            groups.remove(&slot.group.get());
        }
        if let Some(free) = &mut state.inodes.free {
            free.release(one(slot.index));
        }
    }

    fn any_pinned(&self) -> bool {
        self.pinned.count.load(Ordering::Acquire) > 0
    }

    /// Whether a number is pinned: no file has it.
    pub(crate) fn is_pinned(&self, number: InodeNo) -> bool {
        if !self.any_pinned() {
            return false;
        }
        let Some(slot) = self.sb.geometry.inode_slot(number) else { return false };
        lock(&self.pinned.groups).get(&slot.group.get()).is_some_and(|group| group.contains(&slot.index))
    }

    /// Defers what is pinned of a group's free inodes that were just read, by the holder of the group's lock.
    pub(super) fn defer_pinned(&self, group: u32, free: &mut ContainerMap) {
        if self.any_pinned()
            && let Some(pinned) = lock(&self.pinned.groups).get(&group)
        {
            pinned.iter().for_each(|index| free.defer_available(one(*index)));
        }
    }
}
