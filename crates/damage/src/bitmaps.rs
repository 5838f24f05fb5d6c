//! Damage to bitmaps, counts and quota.

use crate::error::{Error, Result, need};
use crate::recipe::Recipe;
use crate::volume::{Volume, bit, set_bit};
use format::feature::RoCompat;
use format::group::GroupFlags;
use format::{GroupNo, InodeNo};
use std::ops::Range;

/// A run of `len` bits in a group's bitmap that are all set (`used`) or all clear; never the group's first.
fn row(v: &mut Volume<'_>, inodes: bool, used: bool, len: usize) -> Result<(GroupNo, Range<usize>)> {
    need(inodes || !v.has_space_maps(), "the volume has no block bitmaps")?;
    let uninit = if inodes { GroupFlags::INODE_UNINIT } else { GroupFlags::BLOCK_UNINIT };
    for (n, group) in (0u32..).zip(v.groups.clone()).filter(|(_, group)| !group.flags.contains(uninit)) {
        let (block, bits) = if inodes {
            (group.inode_bitmap, v.geometry.inodes_per_group as usize)
        } else {
            let blocks = v.geometry.group_blocks(GroupNo(n));
            (group.block_bitmap, ((blocks.end - blocks.start) / u64::from(v.geometry.cluster_blocks)) as usize)
        };
        let bytes = v.block(block.get())?;
        let first = if inodes { v.geometry.first_inode as usize + 1 } else { 1 };
        let fit: Vec<usize> =
            (first..bits.saturating_sub(len)).filter(|at| (*at..at + len).all(|n| bit(&bytes, n) == used)).collect();
        if let Some(at) = v.rng.choice(&fit) {
            return Ok((GroupNo(n), *at..at + len));
        }
    }
    Err(Error::Unfit("no bitmap has such a run of bits"))
}

fn flip(v: &mut Volume<'_>, inodes: bool, used: bool, len: usize) -> Result<()> {
    let (group, row) = row(v, inodes, used, len)?;
    v.bitmap(group, inodes, |bits| row.for_each(|n| set_bit(bits, n, !used)))
}

fn written(v: &mut Volume<'_>) -> Result<GroupNo> {
    v.any_group(|group| !group.flags.intersects(GroupFlags::BLOCK_UNINIT | GroupFlags::INODE_UNINIT))
}

fn checksums(v: &Volume<'_>) -> Result<()> {
    need(v.geometry.metadata_csum || v.geometry.gdt_csum, "the volume has no checksums")
}

/// A bit of the bitmap must be one block: the blocks of a cluster are a range.
fn single(v: &Volume<'_>) -> Result<()> {
    need(v.geometry.cluster_blocks == 1, "the volume's bitmaps count clusters of several blocks")
}

pub(crate) const RECIPES: &[(u32, Recipe)] = &[
    (0x05_0001, |v| {
        let bits = v.geometry.inodes_per_group as usize;
        need(bits < v.block_size() * 8, "the bitmaps of inodes are full")?;
        let group = written(v)?;
        v.bitmap(group, true, |bytes| set_bit(bytes, bits, false))
    }),
    (0x05_0002, |v| {
        let last = GroupNo(v.geometry.groups - 1);
        let blocks = v.geometry.group_blocks(last);
        let bits = ((blocks.end - blocks.start).div_ceil(u64::from(v.geometry.cluster_blocks))) as usize;
        need(bits < v.block_size() * 8, "the last group is full")?;
        v.bitmap(last, false, |bytes| set_bit(bytes, bits, false))
    }),
    (0x05_0004, |v| {
        single(v)?;
        let block = v.free_block()?;
        v.mark_block(block, true)
    }),
    (0x05_0005, |v| {
        single(v)?;
        flip(v, false, true, 1)
    }),
    (0x05_0008, |v| flip(v, true, false, 1)),
    (0x05_0009, |v| flip(v, true, true, 1)),
    (0x05_000B, |v| {
        let uninit = GroupFlags::BLOCK_UNINIT | GroupFlags::INODE_UNINIT;
        let group = v.any_group(|group| !group.flags.intersects(uninit) && group.free_inodes > 0)?;
        v.group(group, |group| group.free_inodes -= 1)
    }),
    (0x05_000C, |v| {
        let group = written(v)?;
        v.group(group, |group| group.directories += 3)
    }),
    (0x05_000D, |v| v.superblock(|sb| sb.s_free_inodes_count = (sb.s_free_inodes_count.get() ^ 1).into())),
    (0x05_000E, |v| {
        let group = written(v)?;
        v.group(group, |group| group.free_clusters ^= 1)
    }),
    (0x05_000F, |v| {
        let free = v.sb.free_blocks_count() ^ 1;
        v.superblock(|sb| sb.set_free_blocks_count(free))
    }),
    (0x05_0014, |v| flip(v, false, false, 20)),
    (0x05_0015, |v| flip(v, false, true, 20)),
    (0x05_0016, |v| flip(v, true, false, 20)),
    (0x05_0017, |v| flip(v, true, true, 20)),
    (0x05_0018, |v| {
        checksums(v)?;
        need(v.geometry.groups > 1, "the volume has one group")?;
        let file = v.file(None)?;
        let block = v.map_of(file)?.data.first().map_or(0, |(_, block)| *block);
        let group = v.geometry.group_of(format::FsBlock(block)).ok_or(Error::Unfit("a block is outside the volume"))?;
        need(group.get() + 1 < v.geometry.groups, "the file lies in the last group")?;
        v.group(group, |group| group.flags |= GroupFlags::BLOCK_UNINIT)
    }),
    (0x05_0019, |v| {
        need(!v.geometry.metadata_csum && !v.geometry.gdt_csum, "the volume has checksums")?;
        let group = v.any_group(|group| group.directories > 0)?;
        v.group(group, |group| group.flags |= GroupFlags::INODE_UNINIT)
    }),
    (0x05_001A, |v| {
        need(v.geometry.metadata_csum, "the volume has no checksums")?;
        let group = written(v)?;
        v.group(group, |group| group.inode_bitmap_csum ^= 0x55)
    }),
    (0x05_001B, |v| {
        need(v.geometry.metadata_csum, "the volume has no checksums")?;
        let group = written(v)?;
        v.group(group, |group| group.block_bitmap_csum ^= 0x55)
    }),
    (0x06_0002, |v| {
        need(v.has_ro(RoCompat::QUOTA), "the volume has no quota")?;
        let file = v.file(None)?;
        v.edit(file, |inode| inode.set_uid(4711))
    }),
    (0x01_0062, |v| {
        need(v.has_ro(RoCompat::QUOTA), "the volume has no quota")?;
        v.edit(InodeNo::USER_QUOTA, |inode| inode.set_mode(0o040_755))
    }),
    (0x01_0063, |v| {
        need(!v.has_ro(RoCompat::QUOTA), "the volume has quota")?;
        v.edit(InodeNo::USER_QUOTA, |inode| {
            inode.set_mode(0o100_600);
            inode.set_links(1);
        })
    }),
    (0x04_0001, |v| {
        let free = v.free_inode()?;
        let slot = v.geometry.inode_slot(free).ok_or(Error::Unfit("the inode does not exist"))?;
        v.edit(free, |inode| {
            inode.set_mode(0o100_644);
            inode.set_links(1);
        })?;
        v.mark_inode(free, true)?;
        v.group(slot.group, |group| group.free_inodes = group.free_inodes.saturating_sub(1))?;
        v.superblock(|sb| sb.s_free_inodes_count = (sb.s_free_inodes_count.get() - 1).into())
    }),
];
