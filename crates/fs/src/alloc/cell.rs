//! A group in memory: its descriptor, its free space and its free inodes once they are needed, and what of them has changed.

use crate::lock::lock;
use format::FsBlock;
use format::group::Group;
use space::ContainerMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A group.
pub(crate) struct GroupCell {
    /// The first block of its inode table; it does not move.
    pub(crate) table: FsBlock,
    /// Blocks that may be given out.
    pub(super) blocks: AtomicU32,
    pub(super) inodes: AtomicU32,
    pub(super) directories: AtomicU32,
    /// The chunks that are set aside for metadata.
    pub(super) mask: AtomicU64,
    pub(super) state: Mutex<GroupState>,
}

/// What a group's lock protects.
pub(crate) struct GroupState {
    pub(super) descriptor: Group,
    /// The group stands in the list of changed groups; its descriptor's block counts to the open generation.
    pub(super) changed: bool,
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
    /// How many snapshots it has taken note of; see [`SnapshotPins`](super::snapshot_pins::SnapshotPins).
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
        let mut state = lock(&self.state);
        let usable = if state.corrupt { 0 } else { u32::MAX };
        let (corrupt, generation) = (state.corrupt, state.space.generation);
        *state = GroupState { corrupt, ..GroupState::new(descriptor) };
        state.space.generation = generation;
        self.blocks.store(available & usable, Ordering::Relaxed);
        self.inodes.store(descriptor.free_inodes & usable, Ordering::Relaxed);
        self.directories.store(descriptor.directories, Ordering::Relaxed);
    }

    pub(super) fn new(descriptor: Group, mask: u64, available: u32) -> Self {
        Self {
            mask: AtomicU64::new(mask),
            table: descriptor.inode_table,
            blocks: AtomicU32::new(available),
            inodes: AtomicU32::new(descriptor.free_inodes),
            directories: AtomicU32::new(descriptor.directories),
            state: Mutex::new(GroupState::new(descriptor)),
        }
    }
}

impl GroupState {
    fn new(descriptor: Group) -> Self {
        let (space, inodes) = Default::default();
        Self { descriptor, changed: false, corrupt: false, space, inodes }
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
