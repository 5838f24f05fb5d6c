//! The record of a volume's free space on its device: the interface between the allocator, which works with sets in
//! memory, and the stored form.
//!
//! 1. [`load`](FreeSpaceRecord::load) reads a group's free space once, before any change to it; from then on the state
//!    in memory is authoritative, and the caller may drop it only while it has no unwritten changes.
//! 2. [`announce`](FreeSpaceRecord::announce) is called before the first change of a group's free space in a
//!    generation, so that the blocks to be written count towards the generation's size.
//! 3. [`write`](FreeSpaceRecord::write) is called when that generation closes, once for each announced group.
//! 4. At most [`closing_credits`](FreeSpaceRecord::closing_credits) blocks are written beyond those that were
//!    announced.
//!
//! 5. [`finish`](FreeSpaceRecord::finish) is called after all groups of a closing generation were written.
//!
//! Groups stay the unit of locks, of totals and of searches, whatever the stored form.

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

/// The kind of record of a volume's free space, determined when the volume is opened: the only place that chooses.
pub(super) enum Opening {
    BlockBitmaps,
    SpaceMaps(Box<Found>),
}

impl Opening {
    /// Reads the record of a volume.
    ///
    /// # Errors
    /// Those of the device; invalid superblock fields of the record, and contradictions to the volume.
    pub(super) fn read(volume: &Disk) -> Result<Self> {
        Ok(Found::read(volume)?.map_or(Self::BlockBitmaps, |found| Self::SpaceMaps(Box::new(found))))
    }

    /// The blocks used by the record itself, according to the descriptors of all groups.
    pub(super) fn own_blocks(&mut self, groups: &[Group]) -> Vec<Range<u64>> {
        let bitmap = |group: &Group| group.block_bitmap.get()..group.block_bitmap.get().saturating_add(1);
        match self {
            Self::BlockBitmaps => groups.iter().map(bitmap).collect(),
            Self::SpaceMaps(found) => found.own_blocks(groups),
        }
    }

    /// Converts into the record of a volume with these system zones.
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

/// Free blocks according to the record, for a volume open for reading; `None` if the descriptors count them.
///
/// # Errors
/// As [`Opening::read`].
pub(crate) fn free_blocks(volume: &Disk) -> Result<Option<u64>> {
    Ok(Found::read(volume)?.map(|found| found.free_blocks()))
}
