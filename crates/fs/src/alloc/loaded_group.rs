//! A group in memory: its descriptor, its free space and free inodes once they are needed, and flags for their changes.

use super::record::FreeBlocksHint;
use format::FsBlock;
use format::group::Group;
use parking_lot::Mutex;
use space::ContainerMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A group.
pub(crate) struct GroupCell {
    /// The first block of its inode table, which never moves.
    pub(crate) table: FsBlock,
    /// Blocks that may be allocated.
    pub(super) blocks: AtomicU32,
    /// Upper bound on the available blocks while `blocks` is only a hint for policies; else 0.
    most: AtomicU32,
    pub(super) inodes: AtomicU32,
    pub(super) directories: AtomicU32,
    /// The chunks set aside for metadata.
    pub(super) mask: AtomicU64,
    pub(super) state: Mutex<GroupState>,
}

/// The state that a group's lock protects.
pub(crate) struct GroupState {
    pub(super) descriptor: Group,
    /// Whether the group is in the list of changed groups.
    pub(super) changed: bool,
    /// Whether its descriptor's block is counted in the open generation.
    pub(super) descriptor_changed: bool,
    pub(super) corrupt: bool,
    pub(super) space: SpaceArea,
    pub(super) inodes: InodeGroup,
}

/// The free space of a group.
#[derive(Default)]
pub(super) struct SpaceArea {
    /// Set once it has been needed.
    pub(super) free: Option<ContainerMap>,
    /// Whether it has been announced to the open generation.
    pub(super) changed: bool,
    /// The number of snapshots taken into account; see [`SnapshotPins`](super::snapshot_pins::SnapshotPins).
    pub(super) snapshot_count: u64,
    /// The generation that last changed it.
    pub(super) generation: u64,
}

/// The free inodes of a group.
#[derive(Default)]
pub(super) struct InodeGroup {
    /// Set once they have been needed.
    pub(super) free: Option<ContainerMap>,
    /// Whether they were changed in the open generation.
    pub(super) changed: bool,
}

impl GroupCell {
    /// Resets the group to its state on the device, with `available` blocks that may be allocated; known corruption
    /// stays. No operation uses the group.
    pub(super) fn reset(&self, descriptor: Group, available: u32) {
        let mut state = self.state.lock();
        let usable = if state.corrupt { 0 } else { u32::MAX };
        let (corrupt, generation) = (state.corrupt, state.space.generation);
        *state = GroupState { corrupt, ..GroupState::new(descriptor) };
        state.space.generation = generation;
        self.blocks.store(available & usable, Ordering::Relaxed);
        self.inodes.store(descriptor.free_inodes & usable, Ordering::Relaxed);
        self.directories.store(descriptor.directories, Ordering::Relaxed);
    }

    /// The free blocks are those of `hint` if present, else `available`.
    pub(super) fn new(descriptor: Group, mask: u64, available: u32, hint: Option<FreeBlocksHint>) -> Self {
        let available = hint.map_or(available, |hint| hint.mean);
        Self {
            most: AtomicU32::new(hint.map_or(0, |hint| hint.most)),
            mask: AtomicU64::new(mask),
            table: descriptor.inode_table,
            blocks: AtomicU32::new(available),
            inodes: AtomicU32::new(descriptor.free_inodes),
            directories: AtomicU32::new(descriptor.directories),
            state: Mutex::new(GroupState::new(descriptor)),
        }
    }
}

impl GroupCell {
    /// Upper bound on the blocks that may be allocated.
    pub(super) fn most_blocks(&self) -> u32 {
        self.blocks.load(Ordering::Relaxed).max(self.most.load(Ordering::Relaxed))
    }

    /// Records that the group's free space is in memory and its count exact.
    pub(super) fn set_known(&self, state: &mut GroupState, free: &ContainerMap) {
        state.descriptor.free_clusters = free.free_units();
        self.blocks.store(free.available(), Ordering::Relaxed);
        self.most.store(0, Ordering::Relaxed);
    }

    /// Whether the group's free space was never read, so that its count of blocks is only a hint.
    pub(super) fn has_only_hint(&self) -> bool {
        self.most.load(Ordering::Relaxed) > 0
    }

    /// Stops allocation in the group; returns the blocks that were available, as far as known.
    pub(super) fn close(&self) -> u32 {
        self.most.store(0, Ordering::Relaxed);
        self.inodes.store(0, Ordering::Relaxed);
        self.blocks.swap(0, Ordering::Relaxed)
    }
}

impl GroupState {
    fn new(descriptor: Group) -> Self {
        let (space, inodes) = Default::default();
        Self { descriptor, changed: false, descriptor_changed: false, corrupt: false, space, inodes }
    }

    pub(super) fn is_corrupt(&self) -> bool {
        self.corrupt
    }

    /// Whether nothing in memory is pending, so that it can be dropped and read again.
    pub(super) fn is_clean(&self) -> bool {
        let defers = |free: &Option<ContainerMap>| free.as_ref().is_some_and(|free| free.deferred() > 0);
        !self.changed && !defers(&self.space.free) && !defers(&self.inodes.free)
    }

    pub(super) fn forget_free(&mut self) {
        (self.space.free, self.inodes.free) = (None, None);
    }
}
