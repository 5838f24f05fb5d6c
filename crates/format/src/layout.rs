//! The layout of classic volumes: arithmetic on [`Geometry`], no I/O.

use crate::feature::Extant;
use crate::group::mask_runs;
use crate::superblock::Geometry;
use crate::{FsBlock, GroupNo, InodeNo};
use std::ops::Range;

/// The location of an inode in its group's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InodeSlot {
    /// The group.
    pub group: GroupNo,
    /// The inode's index in the group, from 0.
    pub index: u32,
    /// The table's block, from 0.
    pub table_block: u32,
    /// Bytes from that block's start.
    pub offset: u32,
}

impl Geometry {
    /// The group of `block`; `None` for blocks outside the volume or before the first group.
    #[inline]
    #[must_use]
    pub fn group_of(&self, block: FsBlock) -> Option<GroupNo> {
        if block.get() >= self.blocks {
            return None;
        }
        let from_first = block.get().checked_sub(u64::from(self.first_data_block))?;
        // fits: `groups` does
        Some(GroupNo((from_first / u64::from(self.blocks_per_group)) as u32))
    }

    /// The first block of a group. Any group number is accepted; the result for one that does not exist is beyond the
    /// volume.
    #[inline]
    #[must_use]
    pub fn group_start(&self, group: GroupNo) -> FsBlock {
        FsBlock(u64::from(self.first_data_block) + u64::from(group.get()) * u64::from(self.blocks_per_group))
    }

    /// The blocks of a group; the last group may be short, one that does not exist is empty.
    #[inline]
    #[must_use]
    pub fn group_blocks(&self, group: GroupNo) -> Range<u64> {
        let start = self.group_start(group).get();
        let end = start.saturating_add(u64::from(self.blocks_per_group)).min(self.blocks);
        start.min(end)..end
    }

    /// Clusters in a full group: the bits of a block bitmap.
    #[inline]
    #[must_use]
    pub fn clusters_per_group(&self) -> u32 {
        self.blocks_per_group / self.cluster_blocks
    }

    /// Blocks in a chunk, of which a group has 64 (a last one may be short, or empty). Metadata regions consist of
    /// whole chunks.
    #[inline]
    #[must_use]
    pub fn chunk_blocks(&self) -> u32 {
        self.blocks_per_group.div_ceil(u64::BITS)
    }

    /// Whether groups have metadata regions, see [`Group::regions`](crate::group::Group::regions).
    #[inline]
    #[must_use]
    pub fn has_regions(&self) -> bool {
        self.extant.contains(Extant::REGIONS)
    }

    /// Whether metadata blocks have their owner in a tail.
    #[inline]
    #[must_use]
    pub fn is_owned(&self) -> bool {
        self.extant.contains(Extant::OWNED)
    }

    /// The blocks of a group's metadata regions by this mask, as runs in ascending order.
    pub fn region_blocks(&self, group: GroupNo, mask: u64) -> impl Iterator<Item = Range<u64>> + use<> {
        let blocks = self.group_blocks(group);
        let chunk = u64::from(self.chunk_blocks());
        mask_runs(mask).filter_map(move |chunks| {
            let start = blocks.start + u64::from(chunks.start) * chunk;
            let end = (blocks.start + u64::from(chunks.end) * chunk).min(blocks.end);
            (start < end).then_some(start..end)
        })
    }

    /// All groups.
    pub fn group_numbers(&self) -> impl ExactSizeIterator<Item = GroupNo> + use<> {
        (0..self.groups).map(GroupNo)
    }

    /// The group of an inode; `None` for 0 and for numbers beyond the last.
    #[inline]
    #[must_use]
    pub fn inode_slot(&self, inode: InodeNo) -> Option<InodeSlot> {
        if inode.get() > self.inodes {
            return None;
        }
        let n = inode.get().checked_sub(1)?;
        let index = n % self.inodes_per_group;
        let per_block = self.block_size / self.inode_size;
        Some(InodeSlot {
            group: GroupNo(n / self.inodes_per_group),
            index,
            table_block: index / per_block,
            offset: index % per_block * self.inode_size,
        })
    }

    /// The inode at an index in a group. The caller ensures that both are in range.
    #[inline]
    #[must_use]
    pub fn inode_at(&self, group: GroupNo, index: u32) -> InodeNo {
        InodeNo(group.get().wrapping_mul(self.inodes_per_group).wrapping_add(index).wrapping_add(1))
    }

    /// Group descriptors in a block.
    #[inline]
    #[must_use]
    pub fn descriptors_per_block(&self) -> u32 {
        self.block_size / self.descriptor_size
    }

    /// Whether descriptors have checksums, so that their flags and `bg_itable_unused` are valid.
    #[must_use]
    pub fn has_descriptor_checksums(&self) -> bool {
        self.metadata_csum || self.gdt_csum
    }

    /// The location of a group's descriptor, in the primary copy.
    #[must_use]
    pub fn descriptor_location(&self, group: GroupNo) -> FsBlock {
        self.descriptor_block(group.get() / self.descriptors_per_block())
    }

    /// The location of block `n` of the descriptor table, in the primary copy. Under meta_bg the meta groups from
    /// `s_first_meta_bg` on have their own block in their first group, after its superblock if it has one.
    #[must_use]
    pub fn descriptor_block(&self, n: u32) -> FsBlock {
        if n < self.first_meta_group {
            let at = u64::from(self.first_data_block) + self.superblock_shift() + 1 + u64::from(n);
            return FsBlock(at);
        }
        let group = GroupNo(n.saturating_mul(self.descriptors_per_block()));
        self.meta_descriptor_block(group)
    }

    /// The copies of descriptor block `n` besides the primary, nearest first.
    #[must_use]
    pub fn descriptor_block_backups(&self, n: u32) -> Vec<FsBlock> {
        if n >= self.first_meta_group {
            let first = n.saturating_mul(self.descriptors_per_block());
            let last = first.saturating_add(self.descriptors_per_block() - 1);
            return [first.saturating_add(1), last]
                .into_iter()
                .filter(|g| *g < self.groups && *g > first)
                .map(|g| self.meta_descriptor_block(GroupNo(g)))
                .collect();
        }
        self.backup_groups().map(|g| FsBlock(self.group_start(g).get() + 1 + u64::from(n))).collect()
    }

    fn meta_descriptor_block(&self, group: GroupNo) -> FsBlock {
        let shift = if group.get() == 0 { self.superblock_shift() } else { 0 };
        let after_superblock = u64::from(self.backups.contains(group));
        FsBlock(self.group_start(group).get() + shift + after_superblock)
    }

    // with blocks of 1 024 bytes and first_data_block 0 (bigalloc) the superblock is block 1 of group 0
    fn superblock_shift(&self) -> u64 {
        u64::from(self.block_size == 1024 && self.first_data_block == 0)
    }

    /// The groups other than 0 with a copy of the superblock, in order; the groups between them cost nothing.
    pub fn backup_groups(&self) -> impl Iterator<Item = GroupNo> + '_ {
        let first = self.backups.after(GroupNo(0));
        std::iter::successors(first, |g| self.backups.after(*g)).take_while(|g| g.get() < self.groups)
    }

    /// The block of the superblock's copy in `group`, where it has one.
    #[must_use]
    pub fn superblock_block(&self, group: GroupNo) -> Option<FsBlock> {
        let shift = if group.get() == 0 { self.superblock_shift() } else { 0 };
        self.backups.contains(group).then(|| FsBlock(self.group_start(group).get() + shift))
    }

    /// The blocks at the start of a group with the superblock, the descriptors and those reserved for growth. Empty
    /// where the group has none. Where blocks of 1 024 bytes start at 0, the boot block is counted with group 0.
    #[must_use]
    pub fn group_head(&self, group: GroupNo) -> Range<u64> {
        let blocks = self.group_blocks(group);
        let start = blocks.start;
        let mut length = 0;
        if self.backups.contains(group) {
            length += 1;
            if group.get() == 0 {
                length += self.superblock_shift();
            }
        }
        let per_block = self.descriptors_per_block();
        let meta_group = group.get() / per_block;
        if meta_group < self.first_meta_group {
            if self.backups.contains(group) {
                let own = self.descriptor_blocks.min(self.first_meta_group);
                length += u64::from(own) + u64::from(self.reserved_descriptor_blocks);
            }
        } else {
            let place = group.get() % per_block;
            if place == 0 || place == 1 || place == per_block - 1 {
                length += 1;
            }
        }
        start..start.saturating_add(length).min(blocks.end)
    }

    /// The byte offset of a block; `None` where it is outside the volume.
    #[inline]
    #[must_use]
    pub fn byte_offset(&self, block: FsBlock) -> Option<u64> {
        (block.get() < self.blocks).then(|| block.get().checked_mul(u64::from(self.block_size))).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::superblock::Backups;

    #[test]
    fn groups_with_copies_are_those_that_contain_one() {
        let mut geometry = crate::testing::volume().geometry;
        geometry.groups = 20_000;
        for backups in [Backups::Every, Backups::Sparse, Backups::Two([0, 9]), Backups::Two([19_999, 1])] {
            geometry.backups = backups;
            let copies = geometry.group_numbers().skip(1).filter(|g| geometry.backups.contains(*g));
            assert!(geometry.backup_groups().eq(copies), "{:?}", geometry.backups);
        }
        (geometry.groups, geometry.backups) = (u32::MAX, Backups::Sparse);
        assert_eq!(geometry.backup_groups().count(), 1 + 20 + 13 + 11);
    }

    #[test]
    fn regions_end_with_their_group() {
        let geometry = crate::testing::volume().geometry;
        assert_eq!(geometry.chunk_blocks(), 512);
        let runs: Vec<_> = geometry.region_blocks(GroupNo(0), 0b110 | 1 << 38 | 1 << 39 | 1 << 50).collect();
        assert_eq!(runs, [512..1536, 38 * 512..20_000]);
    }
}
