//! How a volume records free space on its device: the seam between the allocator, which knows free space as sets in memory,
//! and what is stored.
//!
//! 1. [`load`](FreeSpaceRecord::load) reads a group's free space once, before anything of it changes; from then on memory is
//!    the truth, and the caller may drop it again only while nothing of it waits to be written.
//! 2. [`announce`](FreeSpaceRecord::announce) is called before the first change of a group's free space in a generation, so
//!    that the blocks that will be written count towards the generation's size.
//! 3. [`write`](FreeSpaceRecord::write) is called when that generation closes, once for each group that was announced.
//! 4. What is written beyond announced blocks is at most [`closing_credits`](FreeSpaceRecord::closing_credits) blocks.
//!
//! Groups stay the unit of locks, of totals and of searches, whatever is stored.

mod bitmaps;

pub(super) use bitmaps::{BlockBitmaps, check_bitmap, write_bitmap};

use format::GroupNo;
use format::group::Group;
use space::ContainerMap;
use store::{Closing, Operation, Store};

/// Why a group's free space is not known.
pub(crate) enum LoadError {
    /// The device did not read; it may the next time.
    Device(store::Error),
    /// What is stored contradicts the volume; the group must not be used.
    Corrupt(&'static str),
}

impl LoadError {
    /// The error of a read of what must be there.
    pub(super) fn read(error: store::Error) -> Self {
        match error {
            e @ store::Error::Device(_) => LoadError::Device(e),
            _ => LoadError::Corrupt("its bitmap cannot be read"),
        }
    }
}

/// How free space is recorded on the device.
pub(crate) trait FreeSpaceRecord: Send + Sync {
    /// The free space of a group; `descriptor` is the group's as it is now. No lock is taken or needed.
    ///
    /// # Errors
    /// Those of the device, and what contradicts the volume.
    fn load(&self, store: &Store, group: GroupNo, descriptor: &Group) -> Result<ContainerMap, LoadError>;

    /// A group's free space is about to change for the first time in the operation's generation.
    fn announce(&self, op: &Operation<'_>, descriptor: &Group, free: &ContainerMap);

    /// As [`announce`](Self::announce), by what changes while the generation closes.
    fn announce_closing(&self, closing: &Closing<'_>, descriptor: &Group);

    /// Brings a group's free space into the closing generation. What the descriptor says of it is changed here.
    fn write(&self, closing: &Closing<'_>, descriptor: &mut Group, free: &ContainerMap);

    /// Most blocks that a close writes beyond those that were announced.
    fn closing_credits(&self) -> usize;
}
