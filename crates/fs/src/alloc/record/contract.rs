//! The interface of a record of free space to the allocator.

use format::GroupNo;
use format::group::Group;
use space::ContainerMap;
use store::{Closing, Operation, Store};

/// Why a group's free space is not known.
pub(crate) enum LoadError {
    /// The device did not read; it may the next time.
    Device(store::Error),
    /// The stored record contradicts the volume; the group must not be used.
    Corrupt(&'static str),
}

impl LoadError {
    /// The error of a read of what must be there.
    pub(crate) fn read(error: store::Error) -> Self {
        match error {
            e @ store::Error::Device(_) => LoadError::Device(e),
            _ => LoadError::Corrupt("its bitmap cannot be read"),
        }
    }
}

/// The hint on a group's free space before it is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FreeBlocksHint {
    /// Free blocks, about; for policies.
    pub(crate) mean: u32,
    /// It has no more free blocks, and no longer run.
    pub(crate) most: u32,
    /// Why the group must not be used.
    pub(crate) corrupt: Option<&'static str>,
}

/// A record of free space on the device.
pub(crate) trait FreeSpaceRecord: Send + Sync {
    /// The free space of a group; `descriptor` is the group's as it is now. No lock is taken or needed.
    ///
    /// # Errors
    /// Those of the device, and what contradicts the volume.
    fn load(&self, store: &Store, group: GroupNo, descriptor: &Group) -> Result<ContainerMap, LoadError>;

    /// A group's free space is about to change for the first time in the operation's generation.
    fn announce(&self, op: &Operation<'_>, group: GroupNo, descriptor: &Group, free: &ContainerMap);

    /// As [`announce`](Self::announce), by what changes while the generation closes.
    fn announce_closing(&self, closing: &Closing<'_>, descriptor: &Group);

    /// Brings a group's free space into the closing generation. What the descriptor says of it is changed here.
    fn write(&self, closing: &Closing<'_>, group: GroupNo, descriptor: &mut Group, free: &ContainerMap);

    /// All groups that were announced to the closing generation were written.
    ///
    /// # Errors
    /// Those that make the generation one that cannot be written.
    fn finish(&self, _closing: &Closing<'_>) -> store::Result<()> {
        Ok(())
    }

    /// A run of so many blocks is allocated or freed in the open generation.
    fn count_run(&self, _blocks: u32) {}

    /// Whether the open generation should close before another operation changes free space.
    fn is_full(&self) -> bool {
        false
    }

    /// Most blocks that a close writes beyond those that were announced.
    fn closing_credits(&self) -> usize;

    /// The generation and all before it are durable.
    fn durable(&self, _generation: u64) {}

    /// Whether descriptors say something of free space, so that they change with it.
    fn is_in_descriptors(&self) -> bool {
        true
    }

    /// Whether it records extents: a search then chooses among them by where they lie and by their length.
    fn is_by_extents(&self) -> bool {
        false
    }

    /// Changes what a descriptor in memory says of free space to what is stored.
    fn stored(&self, _descriptor: &mut Group) {}

    /// The hint on a group before it is loaded; `None` where its descriptor counts its free blocks.
    fn free_blocks_hint(&self, _group: GroupNo) -> Option<FreeBlocksHint> {
        None
    }

    /// Free blocks of all groups; `None` where the descriptors count them.
    fn free_blocks(&self) -> Option<u64> {
        None
    }
}
