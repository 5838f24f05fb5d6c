//! The blocks that hold the volume's own structures: superblocks, descriptors, the record of free space, inode bitmaps and
//! tables.

use crate::{Error, Result};
use format::group::Group;
use format::superblock::Geometry;
use format::{Structure, Where};
use std::ops::Range;

/// Where the volume's own structures lie, wherever the descriptors put them.
pub(crate) struct Zones(Vec<Range<u64>>);

impl Zones {
    /// As [`Zones::new`].
    ///
    /// # Errors
    /// [`Error::Corrupt`] where two structures overlap, or one lies outside the groups.
    pub(crate) fn of_volume(geometry: &Geometry, groups: &[Group], record: Vec<Range<u64>>) -> Result<Self> {
        let what = "the group descriptors put two structures into one place";
        let overlap = || Error::corrupt(Structure::GroupDescriptor, Where::Volume, what);
        Self::new(geometry, groups, record).ok_or_else(overlap)
    }

    /// The zones of a volume with these descriptors, which are in the order of their groups, and of the blocks that the
    /// record of its free space takes. `None` where two structures
    /// overlap, or one lies outside the groups.
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
        let mut sound = all.first().is_some_and(|zone| zone.start >= u64::from(geometry.first_data_block));
        sound &= all.last().is_some_and(|zone| zone.end <= geometry.blocks);
        all.dedup_by(|next, before| {
            sound &= next.start >= before.end;
            let joins = next.start <= before.end;
            if joins {
                before.end = before.end.max(next.end);
            }
            joins
        });
        all.shrink_to_fit();
        sound.then_some(Self(all))
    }

    /// The parts of `blocks` that lie in a zone, ascending.
    pub(crate) fn within(&self, blocks: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let first = self.0.partition_point(|zone| zone.end <= blocks.start);
        let there = self.0.get(first..).unwrap_or_default().iter();
        let (start, end) = (blocks.start, blocks.end);
        there.take_while(move |zone| zone.start < end).map(move |zone| zone.start.max(start)..zone.end.min(end))
    }

    /// How many of these blocks, from the first on, lie in zones without a gap.
    pub(crate) fn front(&self, blocks: Range<u64>) -> u64 {
        let start = blocks.start;
        self.within(blocks).take_while(|zone| zone.start == start).map(|zone| zone.end - start).next().unwrap_or(0)
    }
}
