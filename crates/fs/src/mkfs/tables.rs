//! The locations of superblock copies, descriptors, bitmaps and inode tables.
//!
//! 1. Copies of the superblock, descriptors and blocks reserved for them have fixed locations at the start of groups.
//! 2. Without flex_bg each group contains its own bitmaps and table, right behind those.
//! 3. With flex_bg the groups of a flexible group have their block bitmaps consecutively, then their inode bitmaps,
//!    then their tables, all from its first group on; a table that would overlap a copy of a superblock is moved behind
//!    it. A flexible group of one group has the distances of a full one, so that it can grow. With space maps instead
//!    of block bitmaps, each metablockgroup begins with its trees.
//! 4. With packed_meta_blocks, the whole volume is one such flexible group.

use super::error::{Result, refuse};
use super::space_maps;
use super::used::Used;
use format::group::{Group, GroupFlags};
use format::native::{CHUNK_BLOCKS, Layout as NativeLayout};
use format::space_map::SpaceMaps;
use format::superblock::Geometry;
use format::{FsBlock, GroupNo};
use std::ops::Range;

/// Places the metadata of all groups and allocates its blocks. Only the three locations of each group are set.
///
/// `maps` is the number of groups in a metablockgroup and of blocks in the log, on a volume with space maps.
pub(super) fn place(
    geometry: &Geometry,
    packed: bool,
    stride: u64,
    maps: Option<(u32, u32)>,
) -> Result<(Vec<Group>, Used, Option<SpaceMaps>)> {
    let mut used = Used::new(geometry.blocks);
    used.take(0..u64::from(geometry.first_data_block));
    for group in geometry.group_numbers() {
        used.take(geometry.group_head(group));
    }
    let within = u64::from(geometry.first_data_block)..geometry.blocks;
    let mut groups = vec![EMPTY; geometry.groups as usize];
    let place_maps = |(size, log)| space_maps::place(geometry, size, log, &mut used, &mut groups);
    let maps = maps.map(place_maps).transpose()?;
    let mut placer = Placer { geometry, used, groups, within, has_bitmaps: maps.is_none() };
    if packed {
        placer.packed()?;
    } else if geometry.flex_groups > 1 || maps.is_some() {
        placer.flexible()?;
    } else {
        placer.each_in_its_own(stride)?;
    }
    Ok((placer.groups, placer.used, maps))
}

/// As [`place`] above the map of a native volume: all of it in the metadata groups. The `chunks` of the metadata
/// regions, the missing part of the last data group, and the reserved blocks are marked as used.
pub(super) fn place_native(geometry: &Geometry, native: &NativeLayout, chunks: &[u32]) -> Result<(Vec<Group>, Used)> {
    let mut used = Used::new(geometry.blocks);
    used.take(geometry.group_head(GroupNo(0)));
    let size = u64::from(CHUNK_BLOCKS);
    chunks.iter().for_each(|chunk| used.take(u64::from(*chunk) * size..(u64::from(*chunk) + 1) * size));
    native.backup_blocks().into_iter().for_each(|block| used.take(block..block + 1));
    used.take(native.blocks()..native.metadata_start());
    let within = native.metadata_start()..geometry.blocks;
    let groups = vec![EMPTY; geometry.groups as usize];
    let mut placer = Placer { geometry, used, groups, within, has_bitmaps: true };
    placer.packed()?;
    Ok((placer.groups, placer.used))
}

/// Sets metadata regions aside, `blocks` blocks for each group: those of a flexible group are together, right behind
/// its inode tables, and continue in its next groups if they do not fit. They are whole chunks, starting with the one
/// that contains the end of the structures before them. `used` are the blocks of those structures.
pub(super) fn place_regions(geometry: &Geometry, used: &Used, groups: &mut [Group], blocks: u64) {
    let chunk = u64::from(geometry.chunk_blocks());
    let flex = geometry.flex_groups.max(1) as usize;
    let numbers: Vec<GroupNo> = geometry.group_numbers().collect();
    for (mates, numbers) in groups.chunks_mut(flex).zip(numbers.chunks(flex)) {
        let mut missing = blocks.saturating_mul(mates.len() as u64);
        for (group, number) in mates.iter_mut().zip(numbers) {
            let whole = geometry.group_blocks(*number);
            let start = used.inside(whole.clone()).last().map_or(whole.start, |run| run.end);
            let first = (start - whole.start) / chunk;
            let last = (start.saturating_add(missing).min(whole.end) - whole.start).div_ceil(chunk).min(64);
            group.regions = (first..last).fold(0, |mask, bit| mask | 1 << bit);
            let end = whole.end.min(whole.start + last * chunk);
            missing = missing.saturating_sub(end.saturating_sub(start));
            if missing == 0 {
                break;
            }
        }
    }
}

const EMPTY: Group = Group {
    block_bitmap: FsBlock(0),
    inode_bitmap: FsBlock(0),
    inode_table: FsBlock(0),
    free_clusters: 0,
    free_inodes: 0,
    directories: 0,
    itable_unused: 0,
    flags: GroupFlags::empty(),
    regions: 0,
    block_bitmap_csum: 0,
    inode_bitmap_csum: 0,
    checksum: 0,
};

struct Placer<'a> {
    geometry: &'a Geometry,
    used: Used,
    groups: Vec<Group>,
    /// The blocks in which structures may be placed.
    within: Range<u64>,
    /// Whether there are block bitmaps; without them the groups contain the locations of their space maps.
    has_bitmaps: bool,
}

impl Placer<'_> {
    fn whole(&self) -> Range<u64> {
        self.within.clone()
    }

    /// Allocates `len` consecutive free blocks: inside `within` the start of the first `total` consecutive free ones,
    /// else the first long enough run, else anywhere.
    fn take(&mut self, within: Range<u64>, total: u64, len: u64) -> Result<FsBlock> {
        let whole = self.whole();
        let found = self
            .used
            .find(within.clone(), total.max(len), 1)
            .or_else(|| self.used.find(within, len, 1))
            .or_else(|| self.used.find(whole, len, 1));
        match found {
            Some(start) => Ok(self.take_at(start, len)),
            None => refuse("there is no space for the inode tables: fewer inodes or smaller ones are needed"),
        }
    }

    fn take_at(&mut self, start: u64, len: u64) -> FsBlock {
        self.used.take(start..start + len);
        FsBlock(start)
    }

    fn packed(&mut self) -> Result<()> {
        for at in 0..self.groups.len() {
            self.groups[at].block_bitmap = self.take(self.whole(), 1, 1)?;
        }
        for at in 0..self.groups.len() {
            self.groups[at].inode_bitmap = self.take(self.whole(), 1, 1)?;
        }
        let length = u64::from(self.geometry.itable_blocks);
        for at in 0..self.groups.len() {
            self.groups[at].inode_table = self.take(self.whole(), length, length)?;
        }
        Ok(())
    }

    fn flexible(&mut self) -> Result<()> {
        let flex = self.geometry.flex_groups as usize;
        for first in (0..self.groups.len()).step_by(flex) {
            let count = flex.min(self.groups.len() - first);
            self.flexible_group(first, count)?;
        }
        Ok(())
    }

    fn flexible_group(&mut self, first: usize, count: usize) -> Result<()> {
        let blocks = |group: usize| self.geometry.group_blocks(GroupNo(group as u32));
        let within = blocks(first).start..blocks(first + count - 1).end;
        let distance = if count == 1 { u64::from(self.geometry.flex_groups) } else { count as u64 };
        let most = u64::from(self.geometry.blocks_per_group / 4);
        let table = u64::from(self.geometry.itable_blocks);

        let bitmaps = if self.has_bitmaps { self.take(within.clone(), distance.min(most), 1)?.get() } else { 0 };
        let behind = if self.has_bitmaps { bitmaps + distance } else { within.start };
        let inode_bitmaps = self.take(behind..within.end, (count as u64).min(most), 1)?.get();
        let tables_from = inode_bitmaps + distance..within.end;
        let tables = self.take(tables_from, (count as u64 * table).min(most), table)?.get();
        let (mut bitmap, mut inode_bitmap, mut inode_table) = (bitmaps, inode_bitmaps, tables);
        for (place, group) in (first..first + count).enumerate() {
            if place > 0 {
                let left = (count - place) as u64;
                if self.has_bitmaps {
                    bitmap = self.next_to(bitmap, 1, left.min(most), &within)?;
                }
                inode_bitmap = self.next_to(inode_bitmap, 1, left.min(most), &within)?;
                inode_table = self.next_to(inode_table, table, (left * table).min(most), &within)?;
            }
            let group = &mut self.groups[group];
            if self.has_bitmaps {
                group.block_bitmap = FsBlock(bitmap);
            }
            group.inode_bitmap = FsBlock(inode_bitmap);
            group.inode_table = FsBlock(inode_table);
        }
        Ok(())
    }

    /// Allocates `len` blocks right behind the `len` at `before`, or elsewhere if these are in use.
    fn next_to(&mut self, before: u64, len: u64, total: u64, within: &Range<u64>) -> Result<u64> {
        let next = before + len;
        if self.used.is_free(&(next..next + len)) && next + len <= within.end {
            return Ok(self.take_at(next, len).get());
        }
        Ok(self.take(within.clone(), total, len)?.get())
    }

    /// Places the metadata of each group in the group itself. A RAID stride shifts the bitmaps of each group by one
    /// more stride, so that they are not all on one disk.
    fn each_in_its_own(&mut self, stride: u64) -> Result<()> {
        let table = u64::from(self.geometry.itable_blocks);
        for at in 0..self.groups.len() {
            let blocks = self.geometry.group_blocks(GroupNo(at as u32));
            let bitmaps = self.spread(at as u64, &blocks, stride);
            let bitmap = self.take(bitmaps..blocks.end, 1, 1)?;
            let inode_bitmap = self.take(bitmap.get()..blocks.end, 1, 1)?;
            let inode_table = self.take(blocks, table, table)?;
            let group = &mut self.groups[at];
            (group.block_bitmap, group.inode_bitmap, group.inode_table) = (bitmap, inode_bitmap, inode_table);
        }
        Ok(())
    }

    fn spread(&self, group: u64, blocks: &Range<u64>, stride: u64) -> u64 {
        let table = u64::from(self.geometry.itable_blocks);
        let free = self.used.find(blocks.clone(), table, 1);
        let Some(start) = free.map(|free| free + table).filter(|start| stride > 0 && *start < blocks.end) else {
            return blocks.start;
        };
        start + (stride * group) % (blocks.end - start)
    }
}
