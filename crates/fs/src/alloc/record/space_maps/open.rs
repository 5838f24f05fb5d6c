//! Space maps when a volume is opened: the heads, and the records of the log beyond them.

use super::area::Area;
use super::close::share;
use super::open_generation::OpenGeneration;
use super::{Log, SpaceMapRecord};
use crate::alloc::system_zones::SystemZones;
use crate::mutant::{Injected, Mutant};
use crate::{Disk, Result};
use format::FsBlock;
use format::group::Group;
use format::space_map::SpaceMaps;
use format::space_map::head::Head;
use format::space_map::ring::RingBlock;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// The space maps of a volume that is being opened.
pub(crate) struct Found {
    pub(super) maps: SpaceMaps,
    pub(super) areas: Vec<Area>,
    /// Sequence of the next generation.
    pub(super) sequence: u64,
    /// Position of the next block of the log.
    pub(super) position: u64,
}

impl Found {
    /// Reads the space maps of a volume; `None` if it has block bitmaps.
    ///
    /// # Errors
    /// Those of the device; invalid numbers in the superblock.
    pub(crate) fn read(volume: &Disk) -> Result<Option<Self>> {
        let Some(maps) = SpaceMaps::of(&volume.sb)? else { return Ok(None) };
        let blocks = |range: Range<u64>| {
            let blocks: Vec<FsBlock> = range.map(FsBlock).collect();
            volume.store.blocks(&blocks)
        };
        let table = blocks(maps.table())?;
        let heads: Vec<_> = (0..maps.maps())
            .map(|map| {
                let n = (maps.head_at(map).0.get() - maps.table().start) as usize;
                let block = table.get(n).map_or(&[][..], |block| &block[..]);
                Head::parse(block, &maps, map).map_err(|_| "the head of its space map is damaged")
            })
            .collect();
        let sequence = heads.iter().flatten().map(|head| head.sequence).max().unwrap_or(0);
        let mut found =
            Self { areas: heads.into_iter().map(Area::new).collect(), sequence: sequence + 1, position: 0, maps };
        let ring = blocks(found.maps.ring())?;
        found.replay((0..).zip(&ring).map(|(place, block)| RingBlock::parse(block, &found.maps, place)).collect());
        Ok(Some(found))
    }

    /// Replays the records of the log beyond the heads. If some are lost, the maps that they may belong to become
    /// corrupt.
    fn replay(&mut self, ring: Vec<format::Result<Option<RingBlock>>>) {
        let length = ring.len() as u64;
        let newest = ring.iter().flatten().flatten().map(|block| block.position).max();
        let damaged: Vec<u64> = (0..).zip(&ring).filter(|(_, block)| block.is_err()).map(|(place, _)| place).collect();
        let Some(newest) = newest else {
            if !damaged.is_empty() {
                self.lost(u64::MAX);
            }
            return;
        };
        self.position = newest + 1;
        // from the newest back to the first gap
        let mut blocks: Vec<RingBlock> = ring.into_iter().flatten().flatten().collect();
        blocks.sort_unstable_by_key(|block| std::cmp::Reverse(block.position));
        let gapless = blocks.iter().zip((0..=newest).rev()).take_while(|(block, position)| block.position == *position);
        let gapless = gapless.count();
        blocks.truncate(gapless);
        let highest = blocks.iter().map(|block| block.sequence).max().unwrap_or(0);
        self.sequence = self.sequence.max(highest + 1);
        blocks.reverse();
        let is_whole = blocks.len() as u64 == length.min(newest + 1);
        let ascends = blocks.is_sorted_by_key(|block| block.sequence);
        // a damaged block may be newer than all of these
        let next = self.position % length;
        let is_newest_lost = blocks.last().is_none_or(|last| last.left > 0) || damaged.contains(&next);
        let is_beyond = damaged.iter().any(|place| *place > newest);
        if !ascends || is_newest_lost || is_beyond {
            self.lost(u64::MAX);
        } else if !is_whole {
            self.lost(blocks.first().map_or(u64::MAX, |oldest| oldest.sequence));
        }
        for block in &blocks {
            for record in &block.records {
                let Some(group) = self.maps.geometry().group_of(record.start) else { continue };
                let Some(area) = self.areas.get_mut(self.maps.map_of(group) as usize) else { continue };
                if area.head().is_some_and(|head| head.sequence < block.sequence) {
                    area.add_record(*record, block.position);
                }
            }
        }
    }

    /// Records that blocks of the log up to a sequence are missing.
    fn lost(&mut self, sequence: u64) {
        for area in &mut self.areas {
            if area.head().is_none_or(|head| head.sequence < sequence) {
                area.mark_corrupt("a part of the log of its space map is damaged");
            }
        }
    }

    /// The blocks of the record itself, according to the descriptors of all groups: table, log, and two tree copies for
    /// each metablockgroup. A metablockgroup whose descriptors contradict each other or its head is corrupt: then only
    /// the locations in its head are included.
    pub(crate) fn own_blocks(&mut self, groups: &[Group]) -> Vec<Range<u64>> {
        let mut own = vec![self.maps.table(), self.maps.ring()];
        for (map, area) in (0..).zip(&mut self.areas) {
            let members = groups.get(self.maps.groups_of(map).start as usize..self.maps.groups_of(map).end as usize);
            let members = members.unwrap_or_default();
            let first = members.first().map_or(FsBlock(0), |group| group.block_bitmap);
            let places = self.maps.places(map, first);
            let in_a_row = (first.get()..).zip(members).all(|(block, group)| group.block_bitmap.get() == block);
            if in_a_row && self.maps.are_inside(&places) && area.head().is_none_or(|head| head.places == first) {
                own.extend(places);
                continue;
            }
            area.mark_corrupt("its descriptors do not contain the location of its space map");
            let places = area.head().map(|head| self.maps.places(map, head.places));
            own.extend(places.into_iter().flatten());
        }
        own
    }

    /// Free blocks.
    pub(crate) fn free_blocks(&self) -> u64 {
        self.areas.iter().filter(|area| area.corrupt().is_none()).map(Area::free).sum()
    }

    /// Converts into the record of a volume with these system zones.
    pub(crate) fn into_record(self, system_zones: &Arc<SystemZones>, mutant: Injected) -> SpaceMapRecord {
        let restarts = mutant.is(Mutant::RestartSequence);
        let sequence = if restarts { 1 } else { self.sequence };
        let log = Log { sequence, position: self.position, changed: BTreeSet::new(), late: Vec::new() };
        let records = share(&self.maps) * RingBlock::space(&self.maps);
        SpaceMapRecord {
            open: OpenGeneration::new(self.areas.len(), records),
            maps: self.maps,
            system_zones: Arc::clone(system_zones),
            areas: self.areas.into_iter().map(Mutex::new).collect(),
            log: Mutex::new(log),
            durable: AtomicU64::new(0),
            mutant,
        }
    }
}
