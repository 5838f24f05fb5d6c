//! Space maps: the free space of a metablockgroup as a tree of containers, with one log for the volume.
//!
//! 1. The heads and the log are read when the volume is opened; a tree is read when a group of its metablockgroup is
//!    first needed, updated with the records of the log, and stays in memory.
//! 2. The free space at the last close is in memory as containers. When a group is written, the generation records the
//!    difference to it: blocks that were allocated and freed again appear in none of its records.
//! 3. A generation is one append to the ring. What exceeds its share of a close, or the space in the ring, is *folded*:
//!    the tree is rewritten to the inactive copy, and the head is written in the same generation.
//! 4. A copy is written only when the generation whose head switched away from it is durable. The tree is written
//!    together with the generation's blocks, before these take effect.
//! 5. A block of the ring is overwritten only when all its records are in trees that the heads of the closing
//!    generation, or of earlier ones, refer to.
//! 6. Sequences and positions continue from the highest on the device.
//! 7. Inconsistent data makes its metablockgroup corrupt, and is not changed.
//!
//! Lock order: a group's, then its area's, then the log's.

mod area;
mod close;
mod open;
mod open_generation;
mod summary;
#[cfg(test)]
mod tests;

use super::contract::{FreeBlocksHint, FreeSpaceRecord, LoadError};
use crate::alloc::system_zones::SystemZones;
use crate::mutant::Injected;
pub(crate) use open::Found;
pub use summary::{SpaceMapHead, SpaceMapSummary, SpaceMapTree};

use area::Area;
use format::group::{Group, GroupFlags};
use format::space_map::SpaceMaps;
use format::{GroupNo, InodeNo};
use open_generation::OpenGeneration;
use parking_lot::Mutex;
use space::{ContainerMap, Run};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use store::{Closing, Kind, Operation, Store, Tag};

const TAG: Tag = Tag::new(Kind::SpaceMap, InodeNo(0));

/// The space maps of a volume.
pub(crate) struct SpaceMapRecord {
    maps: SpaceMaps,
    system_zones: Arc<SystemZones>,
    areas: Box<[Mutex<Area>]>,
    log: Mutex<Log>,
    open: OpenGeneration,
    /// The newest durable generation.
    durable: AtomicU64,
    /// The defect that is injected on purpose.
    mutant: Injected,
}

/// The end of the log.
struct Log {
    /// Sequence of the next generation.
    sequence: u64,
    /// Position of the next block.
    position: u64,
    /// Metablockgroups changed in the closing generation.
    changed: BTreeSet<u32>,
    /// Blocks that a mutant writes one generation too late.
    late: Vec<(format::FsBlock, Arc<[u8]>)>,
}

impl SpaceMapRecord {
    /// The area of a group, and the group's index in it.
    fn area(&self, group: GroupNo) -> Option<(&Mutex<Area>, usize)> {
        let map = self.maps.map_of(group);
        let place = group.get().checked_sub(self.maps.groups_of(map).start)?;
        Some((self.areas.get(map as usize)?, place as usize))
    }

    /// Whether all of the volume's own structures in a group are in use.
    fn has_own_in_use(&self, group: GroupNo, free: &ContainerMap) -> bool {
        let blocks = self.maps.geometry().group_blocks(group);
        let inside = |block: u64| (block - blocks.start) as u32;
        let mut own = self.system_zones.within(blocks.clone());
        own.all(|zone| free.is_used(Run { start: inside(zone.start), len: (zone.end - zone.start) as u32 }))
    }
}

impl FreeSpaceRecord for SpaceMapRecord {
    fn load(&self, store: &Store, group: GroupNo, _: &Group) -> Result<ContainerMap, LoadError> {
        let Some((area, place)) = self.area(group) else { return Err(LoadError::Corrupt("it has no space map")) };
        let free = area.lock().groups(store, &self.maps)?.get(place).cloned();
        let free = ContainerMap::from_available(free.ok_or(LoadError::Corrupt("it has no space map"))?);
        if !self.has_own_in_use(group, &free) {
            return Err(LoadError::Corrupt("its space map shows blocks of the system zone as free"));
        }
        Ok(free)
    }

    fn announce(&self, op: &Operation<'_>, group: GroupNo, _: &Group, _: &ContainerMap) {
        // the blocks of the ring written by a close are bounded, however many groups changed; folds are bounded by
        // closing in time
        self.open.add_map(self.maps.map_of(group), op.generation());
    }

    fn count_run(&self, blocks: u32) {
        self.open.add_run(blocks);
    }

    fn is_full(&self) -> bool {
        self.open.is_full()
    }

    fn announce_closing(&self, _: &Closing<'_>, _: &Group) {}

    fn write(&self, _: &Closing<'_>, group: GroupNo, _: &mut Group, free: &ContainerMap) {
        let Some((area, place)) = self.area(group) else { return };
        let start = self.maps.geometry().group_start(group);
        if area.lock().change(place, start, free.as_stored()) {
            self.log.lock().changed.insert(self.maps.map_of(group));
        }
    }

    fn finish(&self, closing: &Closing<'_>) -> store::Result<()> {
        self.close(closing)
    }

    fn closing_credits(&self) -> usize {
        let table = self.maps.table();
        self.share() + (table.end - table.start) as usize
    }

    fn durable(&self, generation: u64) {
        self.durable.fetch_max(generation, Ordering::AcqRel);
    }

    fn is_in_descriptors(&self) -> bool {
        false
    }

    fn is_by_extents(&self) -> bool {
        true
    }

    fn stored(&self, descriptor: &mut Group) {
        (descriptor.free_clusters, descriptor.block_bitmap_csum) = (0, 0);
        descriptor.flags.remove(GroupFlags::BLOCK_UNINIT);
    }

    fn free_blocks_hint(&self, group: GroupNo) -> Option<FreeBlocksHint> {
        let (area, _) = self.area(group)?;
        let groups = self.maps.groups_of(self.maps.map_of(group));
        let blocks: u64 = groups.map(|group| u64::from(self.maps.units(GroupNo(group)))).sum();
        let units = self.maps.units(group);
        let area = area.lock();
        let free = if area.corrupt().is_some() { 0 } else { area.free() };
        // at most the number of units
        let mean = (u64::from(units) * free / blocks.max(1)) as u32;
        Some(FreeBlocksHint { mean, most: u64::from(units).min(free) as u32, corrupt: area.corrupt() })
    }

    fn free_blocks(&self) -> Option<u64> {
        let free = self.areas.iter().map(|area| {
            let area = area.lock();
            if area.corrupt().is_some() { 0 } else { area.free() }
        });
        Some(free.sum())
    }

    fn memory(&self) -> usize {
        self.areas.iter().map(|area| size_of::<Mutex<Area>>() + area.lock().memory()).sum()
    }
}
