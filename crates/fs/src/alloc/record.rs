//! The record of a volume's free space on its device: the seam between the allocator, which knows free space as sets in
//! memory, and what is stored.
//!
//! 1. [`load`](FreeSpaceRecord::load) reads a group's free space once, before anything of it changes; from then on
//!    memory is the truth, and the caller may drop it again only while nothing of it waits to be written.
//! 2. [`announce`](FreeSpaceRecord::announce) is called before the first change of a group's free space in a
//!    generation, so that the blocks that will be written count towards the generation's size.
//! 3. [`write`](FreeSpaceRecord::write) is called when that generation closes, once for each group that was announced.
//! 4. What is written beyond announced blocks is at most [`closing_credits`](FreeSpaceRecord::closing_credits) blocks.
//!
//! 5. [`finish`](FreeSpaceRecord::finish) is called when all groups of a closing generation were written.
//!
//! Groups stay the unit of locks, of totals and of searches, whatever is stored.

mod bitmaps;
mod contract;
mod space_maps;

pub(super) use bitmaps::{check_bitmap, write_bitmap};
pub(crate) use contract::{FreeBlocksHint, FreeSpaceRecord, LoadError};
pub use space_maps::{SpaceMapHead, SpaceMapSummary, SpaceMapTree};

use super::system_zones::SystemZones;
use crate::mutant::Injected;
use crate::{Disk, Result};
use bitmaps::BlockBitmaps;
use format::group::Group;
use space_maps::Found;
use std::ops::Range;
use std::sync::Arc;

/// The kind of record that a volume's free space has, as it is found when the volume is opened: the one place that
/// chooses.
pub(super) enum Opening {
    BlockBitmaps,
    SpaceMaps(Box<Found>),
}

impl Opening {
    /// The record of a volume.
    ///
    /// # Errors
    /// Those of the device; what the superblock says of the record and what contradicts the volume.
    pub(super) fn read(volume: &Disk) -> Result<Self> {
        Ok(Found::read(volume)?.map_or(Self::BlockBitmaps, |found| Self::SpaceMaps(Box::new(found))))
    }

    /// The blocks that the record itself takes, by the descriptors of all groups.
    pub(super) fn own_blocks(&mut self, groups: &[Group]) -> Vec<Range<u64>> {
        let bitmap = |group: &Group| group.block_bitmap.get()..group.block_bitmap.get().saturating_add(1);
        match self {
            Self::BlockBitmaps => groups.iter().map(bitmap).collect(),
            Self::SpaceMaps(found) => found.own_blocks(groups),
        }
    }

    /// The record of the volume whose own structures lie in these system zones.
    pub(super) fn into_record(
        self,
        volume: &Disk,
        system_zones: &Arc<SystemZones>,
        mutant: Injected,
    ) -> Box<dyn FreeSpaceRecord> {
        match self {
            Self::BlockBitmaps => Box::new(BlockBitmaps::new(&volume.sb.geometry, system_zones)),
            Self::SpaceMaps(found) => Box::new(found.into_record(system_zones, mutant)),
        }
    }
}

/// Free blocks by the record of a volume that is only read; `None` where the descriptors count them.
///
/// # Errors
/// As [`Opening::read`].
pub(crate) fn free_blocks(volume: &Disk) -> Result<Option<u64>> {
    Ok(Found::read(volume)?.map(|found| found.free_blocks()))
}
