//! A group in memory: its descriptor, its free space and its free inodes once they are needed, and what of them has
//! changed.

use super::record::FreeBlocksHint;
use format::FsBlock;
use format::group::Group;
use parking_lot::Mutex;
use space::ContainerMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A group.
pub(crate) struct GroupCell {
    /// The first block of its inode table; it does not move.
    pub(crate) table: FsBlock,
    /// Blocks that may be allocated.
    pub(super) blocks: AtomicU32,
    /// Most blocks that there can be while that is not known, and `blocks` is what a policy takes it for; else 0.
    most: AtomicU32,
    pub(super) inodes: AtomicU32,
    pub(super) directories: AtomicU32,
    /// The chunks that are set aside for metadata.
    pub(super) mask: AtomicU64,
    pub(super) state: Mutex<GroupState>,
}

/// The state that a group's lock protects.
pub(crate) struct GroupState {
    pub(super) descriptor: Group,
    /// The group stands in the list of changed groups.
    pub(super) changed: bool,
    /// Its descriptor's block counts to the open generation.
    pub(super) descriptor_changed: bool,
    pub(super) corrupt: bool,
    pub(super) space: SpaceArea,
    pub(super) inodes: InodeGroup,
}

/// The free space of a group.
#[derive(Default)]
pub(super) struct SpaceArea {
    /// Set once it was needed.
    pub(super) free: Option<ContainerMap>,
    /// It was announced to the open generation.
    pub(super) changed: bool,
    /// The number of snapshots it has taken note of; see [`SnapshotPins`](super::snapshot_pins::SnapshotPins).
    pub(super) epoch: u64,
    /// The generation that last changed it.
    pub(super) generation: u64,
}

/// The free inodes of a group.
#[derive(Default)]
pub(super) struct InodeGroup {
    /// Set once they were needed.
    pub(super) free: Option<ContainerMap>,
    /// They changed in the open generation.
    pub(super) changed: bool,
}

impl GroupCell {
    /// The group is again as the device has it, with so many blocks that may be allocated, but for what is known to be
    /// corrupt. No operation uses it.
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

    /// The `hint` counts where there is one, else `available`.
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
    /// Most blocks that may be allocated.
    pub(super) fn most_blocks(&self) -> u32 {
        self.blocks.load(Ordering::Relaxed).max(self.most.load(Ordering::Relaxed))
    }

    /// The group's free space is in memory, and known.
    pub(super) fn set_known(&self, state: &mut GroupState, free: &ContainerMap) {
        state.descriptor.free_clusters = free.free_units();
        self.blocks.store(free.available(), Ordering::Relaxed);
        self.most.store(0, Ordering::Relaxed);
    }

    /// Whether the group's free space was never read, and its count of blocks is a hint only.
    pub(super) fn has_only_hint(&self) -> bool {
        self.most.load(Ordering::Relaxed) > 0
    }

    /// Nothing can be allocated any more; the blocks that could be, as far as that was known.
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

    /// Nothing of what is in memory waits for anything: it can be read again.
    pub(super) fn is_clean(&self) -> bool {
        let defers = |free: &Option<ContainerMap>| free.as_ref().is_some_and(|free| free.deferred() > 0);
        !self.changed && !defers(&self.space.free) && !defers(&self.inodes.free)
    }

    pub(super) fn forget_free(&mut self) {
        (self.space.free, self.inodes.free) = (None, None);
    }
}
