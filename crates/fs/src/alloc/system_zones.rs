//! The system zones, which contain the volume's own structures: superblocks, descriptors, the record of free space,
//! inode bitmaps and tables.

use crate::{Error, Result};
use format::group::Group;
use format::superblock::Geometry;
use format::{Structure, Where};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The blocks of the volume's own structures, at the locations in the descriptors.
pub(crate) struct SystemZones {
    /// Ascending, with a gap between each and the next.
    zones: Vec<Range<u64>>,
    /// The index of the zone behind the most recently queried blocks: most queries are about the same gap.
    last_gap: AtomicUsize,
}

impl SystemZones {
    /// As [`SystemZones::new`].
    ///
    /// # Errors
    /// [`Error::Corrupt`] if two structures overlap, or one is outside the groups.
    pub(crate) fn of_volume(geometry: &Geometry, groups: &[Group], record: Vec<Range<u64>>) -> Result<Self> {
        let what = "the group descriptors assign the same block to two structures";
        let overlap = || Error::corrupt(Structure::GroupDescriptor, Where::Volume, what);
        Self::new(geometry, groups, record).ok_or_else(overlap)
    }

    /// The system zones of a volume from its descriptors, in the order of their groups, and the blocks of its free
    /// space record. `None` if two structures overlap, or one is outside the groups.
    pub(crate) fn new(geometry: &Geometry, groups: &[Group], record: Vec<Range<u64>>) -> Option<Self> {
        let mut all = record;
        all.reserve(groups.len() * 2);
        for (number, group) in geometry.group_numbers().zip(groups) {
            let table = group.inode_table.get();
            let own = [
                geometry.group_head(number),
                group.inode_bitmap.get()..group.inode_bitmap.get().saturating_add(1),
                table..table.saturating_add(u64::from(geometry.itable_blocks)),
            ];
            all.extend(own.into_iter().filter(|zone| !zone.is_empty()));
        }
        all.sort_unstable_by_key(|zone| (zone.start, zone.end));
        let mut consistent = all.first().is_some_and(|zone| zone.start >= u64::from(geometry.first_data_block));
        consistent &= all.last().is_some_and(|zone| zone.end <= geometry.blocks);
        all.dedup_by(|next, before| {
            consistent &= next.start >= before.end;
            let joins = next.start <= before.end;
            if joins {
                before.end = before.end.max(next.end);
            }
            joins
        });
        all.shrink_to_fit();
        consistent.then_some(Self { zones: all, last_gap: AtomicUsize::new(0) })
    }

    /// Memory on the heap in bytes.
    pub(crate) fn memory(&self) -> usize {
        self.zones.capacity() * size_of::<Range<u64>>()
    }

    /// Whether one of these blocks, at least one, is in a zone.
    pub(crate) fn overlap(&self, blocks: &Range<u64>) -> bool {
        let last = self.last_gap.load(Ordering::Relaxed);
        if self.is_gap_before(last, blocks) {
            return false;
        }
        let gap = self.zones.partition_point(|zone| zone.end <= blocks.start);
        self.last_gap.store(gap, Ordering::Relaxed);
        !self.is_gap_before(gap, blocks)
    }

    /// Whether `blocks` are between this zone and the one before.
    fn is_gap_before(&self, zone: usize, blocks: &Range<u64>) -> bool {
        let before = zone.checked_sub(1).and_then(|n| self.zones.get(n));
        before.is_none_or(|zone| zone.end <= blocks.start)
            && self.zones.get(zone).is_none_or(|zone| blocks.end <= zone.start)
    }

    /// The parts of `blocks` that are in a zone, ascending.
    pub(crate) fn within(&self, blocks: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let first = self.zones.partition_point(|zone| zone.end <= blocks.start);
        let there = self.zones.get(first..).unwrap_or_default().iter();
        let (start, end) = (blocks.start, blocks.end);
        there.take_while(move |zone| zone.start < end).map(move |zone| zone.start.max(start)..zone.end.min(end))
    }

    /// The number of these blocks, from the first on, that are in zones without a gap.
    pub(crate) fn front(&self, blocks: Range<u64>) -> u64 {
        let start = blocks.start;
        self.within(blocks).take_while(|zone| zone.start == start).map(|zone| zone.end - start).next().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overlap_is_found_whatever_was_asked_before() {
        let zones = SystemZones { zones: vec![2..4, 7..8, 20..30], last_gap: AtomicUsize::new(0) };
        for step in [1, 5, 17] {
            for n in 0..36 * 12 {
                let n = n * step % (36 * 12);
                let blocks = n / 12..n / 12 + n % 12 + 1;
                assert_eq!(zones.overlap(&blocks), zones.within(blocks.clone()).next().is_some(), "{blocks:?}");
            }
        }
    }
}
