//! Space maps: free space as extents and a log, instead of block bitmaps.
//!
//! A *metablockgroup* has `x_map_groups` groups. For each there is a [*head*](head) in the table, and two locations for
//! a [*tree*](tree) with a container for each of its groups; the head selects the valid one. For the volume there is
//! one log, a [*ring*](ring) of blocks with later allocations and frees. The free space of a group is that in its tree,
//! changed by the records of the ring with a greater sequence than the head's.
//!
//! 1. `x_map_start` is the first block of the table; the ring of `x_space_map_log` blocks follows it.
//! 2. The two tree locations of a metablockgroup are adjacent. The first begins at the `bg_block_bitmap` of its first
//!    group, and that of group *i* is block *i* of it: distinct and inside the volume, as every reader of ext4
//!    requires.
//! 3. A sequence is the number of a generation that changed free space: 64 bits, never used twice on a volume.
//! 4. Heads, trees and blocks of the ring have CRC32C from the volume seed, whether the volume has metadata_csum or
//!    not.

pub mod head;
pub mod ring;
pub mod tree;

use crate::feature::{ExtantRo, Incompat, RoCompat};
use crate::superblock::{Geometry, Superblock};
use crate::{Error, FsBlock, GroupNo, Result, Structure};
use head::DiskMapHead;
use std::ops::Range;
use tree::{DiskContainer, DiskTree};

/// Maximum number of groups in a metablockgroup: more than any of 8 GB has.
pub const MOST_GROUPS: u32 = 4096;
/// Minimum number of blocks of a ring.
pub const LEAST_LOG: u32 = 4;
/// Maximum number of blocks of a ring, all of which are read when the volume is opened.
pub const MOST_LOG: u32 = 16_384;
/// Maximum sequence and position; higher ones cannot be reached by counting. Each has a successor.
pub const MOST_SEQUENCE: u64 = u64::MAX / 2;

/// The locations of a volume's space maps: arithmetic on validated numbers of the superblock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpaceMaps {
    geometry: Geometry,
    groups: u32,
    start: u64,
    log: u32,
}

impl SpaceMaps {
    /// The space maps of a volume; `None` where it has block bitmaps.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where a feature in `x_ro_features` is unknown, so that only reading is possible;
    /// [`Error::Corrupt`] with the field of the superblock that contradicts the others.
    pub fn of(sb: &Superblock) -> Result<Option<Self>> {
        let extant = sb.disk.extant_ro();
        extant.check_writable()?;
        if !extant.contains(ExtantRo::SPACE_MAPS) {
            return Ok(None);
        }
        let bad = |what| Err(Error::corrupt(Structure::Superblock, what));
        if !sb.features.incompat.contains(Incompat::FLEX_BG) {
            return bad("x_ro_features: space maps need the feature flex_bg");
        }
        if sb.features.ro_compat.contains(RoCompat::BIGALLOC) {
            return bad("x_ro_features: space maps exclude bigalloc");
        }
        let (groups, start, log) =
            (sb.disk.x_map_groups.get(), sb.disk.x_map_start.get(), sb.disk.x_space_map_log.get());
        let geometry = sb.geometry.clone();
        let Some(maps) = Self::new(&geometry, groups, start, log) else {
            return bad("x_map_groups, x_map_start or x_space_map_log: the space maps do not lie inside the volume");
        };
        Ok(Some(maps))
    }

    /// Space maps with these numbers; `None` where `groups` is not a power of two up to [`MOST_GROUPS`], the ring has
    /// fewer blocks than [`LEAST_LOG`] or more than [`MOST_LOG`], or table and ring are not inside the volume.
    #[must_use]
    pub fn new(geometry: &Geometry, groups: u32, start: u64, log: u32) -> Option<Self> {
        let maps = Self { geometry: geometry.clone(), groups, start, log };
        let counts = groups.is_power_of_two() && groups <= MOST_GROUPS && (LEAST_LOG..=MOST_LOG).contains(&log);
        if !counts || start <= u64::from(geometry.first_data_block) || geometry.cluster_blocks != 1 {
            return None;
        }
        let end = start.checked_add(maps.table_blocks())?.checked_add(log.into())?;
        (end <= geometry.blocks).then_some(maps)
    }

    /// The volume's geometry.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Groups in a metablockgroup; the last may have fewer.
    #[must_use]
    pub fn groups_per_map(&self) -> u32 {
        self.groups
    }

    /// Metablockgroups.
    #[must_use]
    pub fn maps(&self) -> u32 {
        self.geometry.groups.div_ceil(self.groups)
    }

    /// The metablockgroup of a group.
    #[must_use]
    pub fn map_of(&self, group: GroupNo) -> u32 {
        group.get() / self.groups
    }

    /// The groups of a metablockgroup; empty for one that does not exist.
    #[must_use]
    pub fn groups_of(&self, map: u32) -> Range<u32> {
        let first = map.saturating_mul(self.groups).min(self.geometry.groups);
        first..first.saturating_add(self.groups).min(self.geometry.groups)
    }

    /// Blocks of a group.
    #[must_use]
    pub fn units(&self, group: GroupNo) -> u32 {
        let blocks = self.geometry.group_blocks(group);
        // fits: a bitmap block can count them
        (blocks.end - blocks.start) as u32
    }

    /// Heads in a block of the table.
    #[must_use]
    pub fn heads_per_block(&self) -> u32 {
        self.geometry.block_size / DiskMapHead::SIZE as u32
    }

    fn table_blocks(&self) -> u64 {
        u64::from(self.maps().div_ceil(self.heads_per_block()))
    }

    /// The blocks of the table of heads.
    #[must_use]
    pub fn table(&self) -> Range<u64> {
        self.start..self.start + self.table_blocks()
    }

    /// The blocks of the ring.
    #[must_use]
    pub fn ring(&self) -> Range<u64> {
        let start = self.table().end;
        start..start + u64::from(self.log)
    }

    /// The location of a metablockgroup's head: the block, and the offset in bytes.
    #[must_use]
    pub fn head_at(&self, map: u32) -> (FsBlock, usize) {
        let per_block = self.heads_per_block();
        let block = self.start + u64::from(map / per_block);
        (FsBlock(block), (map % per_block) as usize * DiskMapHead::SIZE)
    }

    /// The block of the ring with this position.
    #[must_use]
    pub fn ring_block(&self, position: u64) -> FsBlock {
        FsBlock(self.ring().start + position % u64::from(self.log))
    }

    /// Blocks of one tree location of a metablockgroup: one per group, and those for the tree's header.
    #[must_use]
    pub fn place_blocks(&self, map: u32) -> u64 {
        let groups = self.groups_of(map).len();
        let head = DiskTree::SIZE + groups * DiskContainer::SIZE;
        groups as u64 + head.div_ceil(self.geometry.block_size as usize) as u64
    }

    /// The two tree locations of a metablockgroup, the first of which begins at this block. They may be outside the
    /// volume, see [`are_inside`](Self::are_inside).
    #[must_use]
    pub fn places(&self, map: u32, first: FsBlock) -> [Range<u64>; 2] {
        let blocks = self.place_blocks(map);
        let middle = first.get().saturating_add(blocks);
        [first.get()..middle, middle..middle.saturating_add(blocks)]
    }

    /// Whether both tree locations are inside the volume and do not overlap table or ring.
    #[must_use]
    pub fn are_inside(&self, places: &[Range<u64>; 2]) -> bool {
        let [first, second] = places;
        let inside = first.start > u64::from(self.geometry.first_data_block) && second.end <= self.geometry.blocks;
        inside && (second.end <= self.start || first.start >= self.ring().end)
    }

    /// Whether a run is inside one group.
    #[must_use]
    pub fn is_in_one_group(&self, start: u64, length: u32) -> bool {
        let Some(last) = start.checked_add(u64::from(length)).and_then(|end| end.checked_sub(1)) else { return false };
        let group = self.geometry.group_of(FsBlock(start));
        length > 0 && group.is_some() && group == self.geometry.group_of(FsBlock(last))
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use super::SpaceMaps;
    use crate::superblock::{DiskSuperblock, Superblock};
    use zerocopy::IntoBytes;

    /// Space maps of 20 groups of 8 192 blocks of 1 KiB, the last with 100 blocks, eight to a metablockgroup.
    pub(crate) fn maps() -> SpaceMaps {
        SpaceMaps::of(&volume(|_| ())).unwrap().unwrap()
    }

    pub(crate) fn volume(change: impl FnOnce(&mut DiskSuperblock)) -> Superblock {
        let mut sb = DiskSuperblock::from_slice(&[0; 1024]).unwrap();
        sb.s_magic = crate::superblock::MAGIC.into();
        sb.s_rev_level = 1.into();
        sb.s_first_data_block = 1.into();
        sb.s_inode_size = 128.into();
        sb.s_first_ino = 11.into();
        sb.s_blocks_per_group = 8192.into();
        sb.s_clusters_per_group = 8192.into();
        sb.s_inodes_per_group = 64.into();
        sb.s_inodes_count = (20 * 64).into();
        sb.s_uuid = [7; 16];
        sb.s_feature_incompat = 0x200.into();
        sb.s_feature_ro_compat = 0x1000_0000.into();
        sb.x_ro_features = 1.into();
        sb.x_map_groups = 8.into();
        sb.x_map_start = 300.into();
        sb.x_space_map_log = 16.into();
        sb.set_blocks_count(1 + 19 * 8192 + 100);
        change(&mut sb);
        Superblock::parse(sb.as_bytes()).unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{maps, volume};
    use super::*;

    #[test]
    fn places_follow_from_three_numbers() {
        let maps = maps();
        assert_eq!(
            (maps.maps(), maps.map_of(GroupNo(16)), maps.groups_of(2), maps.groups_of(3)),
            (3, 2, 16..20, 20..20)
        );
        assert_eq!((maps.units(GroupNo(0)), maps.units(GroupNo(19))), (8192, 100));
        assert_eq!((maps.table(), maps.ring()), (300..301, 301..317));
        assert_eq!((maps.head_at(2), maps.ring_block(17)), ((FsBlock(300), 128), FsBlock(302)));
        assert_eq!((maps.place_blocks(0), maps.place_blocks(2)), (9, 5));
        assert_eq!(maps.places(2, FsBlock(400)), [400..405, 405..410]);
        assert!(maps.are_inside(&maps.places(0, FsBlock(282))) && maps.are_inside(&maps.places(0, FsBlock(317))));
        for first in [0, 1, 283, 300, 316, 1 + 19 * 8192 + 83, u64::MAX - 1] {
            assert!(!maps.are_inside(&maps.places(0, FsBlock(first))), "{first}");
        }
        assert!(maps.is_in_one_group(1, 8192) && !maps.is_in_one_group(2, 8192));
        assert!(!maps.is_in_one_group(1, 0) && !maps.is_in_one_group(u64::MAX, 2) && !maps.is_in_one_group(0, 1));
    }

    #[test]
    fn many_groups_need_more_blocks_for_a_head() {
        let maps = SpaceMaps::new(maps().geometry(), 16, 300, 16).unwrap();
        let maps = SpaceMaps { groups: 1024, geometry: Geometry { groups: 5000, ..maps.geometry().clone() }, ..maps };
        assert_eq!(maps.place_blocks(0), 1024 + 9);
    }

    #[test]
    fn numbers_that_lead_nowhere_are_refused_and_the_volume_is_still_read() {
        type Change = fn(&mut DiskSuperblock);
        let refused: [(&str, Change); 8] = [
            ("x_map_groups", |sb| sb.x_map_groups = 0.into()),
            ("x_map_groups", |sb| sb.x_map_groups = 12.into()),
            ("x_map_groups", |sb| sb.x_map_groups = (1 << 13).into()),
            ("x_map_start", |sb| sb.x_map_start = 0.into()),
            ("x_map_start", |sb| sb.x_map_start = u64::MAX.into()),
            ("x_space_map_log", |sb| sb.x_space_map_log = 3.into()),
            ("flex_bg", |sb| sb.s_feature_incompat = 0.into()),
            ("FEATURE_Y7", |sb| sb.x_ro_features = 0x81.into()),
        ];
        for (word, change) in refused {
            let error = SpaceMaps::of(&volume(change)).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
        let without = |change: fn(&mut DiskSuperblock)| SpaceMaps::of(&volume(change)).unwrap();
        assert_eq!(without(|sb| sb.x_ro_features = 0.into()), None);
        assert_eq!(without(|sb| sb.s_feature_ro_compat = 0.into()), None);
    }

    use crate::superblock::DiskSuperblock;
}
