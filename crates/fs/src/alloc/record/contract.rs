//! The interface between a record of free space and the allocator.

use format::GroupNo;
use format::group::Group;
use space::ContainerMap;
use store::{Closing, Operation, Store};

/// The reason why a group's free space could not be loaded.
pub(crate) enum LoadError {
    /// A read error of the device; a later read may succeed.
    Device(store::Error),
    /// The stored record contradicts the volume; the group must not be used.
    Corrupt(&'static str),
}

impl LoadError {
    /// Converts the error of reading a block that must exist.
    pub(crate) fn read(error: store::Error) -> Self {
        match error {
            e @ store::Error::Device(_) => LoadError::Device(e),
            _ => LoadError::Corrupt("its bitmap cannot be read"),
        }
    }
}

/// A hint at a group's free space before it is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FreeBlocksHint {
    /// Approximate number of free blocks; for policies.
    pub(crate) mean: u32,
    /// Upper bound on its free blocks and on the length of its runs.
    pub(crate) most: u32,
    /// The reason why the group must not be used.
    pub(crate) corrupt: Option<&'static str>,
}

/// A record of free space on the device.
pub(crate) trait FreeSpaceRecord: Send + Sync {
    /// Loads the free space of a group; `descriptor` is its current descriptor. Takes and needs no lock.
    ///
    /// # Errors
    /// Those of the device, and contradictions to the volume.
    fn load(&self, store: &Store, group: GroupNo, descriptor: &Group) -> Result<ContainerMap, LoadError>;

    /// Announces the first change of a group's free space in the operation's generation.
    fn announce(&self, op: &Operation<'_>, group: GroupNo, descriptor: &Group, free: &ContainerMap);

    /// As [`announce`](Self::announce), for changes while the generation closes.
    fn announce_closing(&self, closing: &Closing<'_>, descriptor: &Group);

    /// Writes a group's free space into the closing generation, and updates its descriptor.
    fn write(&self, closing: &Closing<'_>, group: GroupNo, descriptor: &mut Group, free: &ContainerMap);

    /// Called after all groups announced to the closing generation were written.
    ///
    /// # Errors
    /// Those that prevent the generation from being written.
    fn finish(&self, _closing: &Closing<'_>) -> store::Result<()> {
        Ok(())
    }

    /// Records that a run of this many blocks is allocated or freed in the open generation.
    fn count_run(&self, _blocks: u32) {}

    /// Whether the open generation should close before another operation changes free space.
    fn is_full(&self) -> bool {
        false
    }

    /// Maximum number of blocks that a close writes beyond those that were announced.
    fn closing_credits(&self) -> usize;

    /// Called when the generation and all before it are durable.
    fn durable(&self, _generation: u64) {}

    /// Whether descriptors contain information on free space, so that they change with it.
    fn is_in_descriptors(&self) -> bool {
        true
    }

    /// Whether it records extents: a search then chooses among them by position and length.
    fn is_by_extents(&self) -> bool {
        false
    }

    /// Converts a descriptor in memory to its stored form with respect to free space.
    fn stored(&self, _descriptor: &mut Group) {}

    /// The hint on a group before it is loaded; `None` if its descriptor counts its free blocks.
    fn free_blocks_hint(&self, _group: GroupNo) -> Option<FreeBlocksHint> {
        None
    }

    /// Free blocks of all groups; `None` if the descriptors count them.
    fn free_blocks(&self) -> Option<u64> {
        None
    }

    /// Memory of its own structures in bytes, without the sets that [`load`](Self::load) returned.
    fn memory(&self) -> usize {
        0
    }
}
