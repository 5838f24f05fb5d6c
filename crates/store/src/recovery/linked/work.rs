//! The steps of the repair, on a copy of the volume in memory: bitmaps, groups, directories and the superblock.

use super::files::{Files, landed};
use super::names;
use crate::{Error, Result};
use blockdev::{BlockDevice, Overlay};
use format::feature::Compat;
use format::group::DiskGroup;
use format::linked::{DiskListRun, SECTOR, Slot, sum};
use format::superblock::{DiskSuperblock, OFFSET, Superblock};
use format::{FsBlock, GroupNo, InodeNo};
use std::collections::BTreeMap;
use std::ops::Range;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, IntoBytes};

/// An error: the volume's structures contradict its list.
pub(super) fn contradiction<T>(what: &'static str) -> Result<T> {
    Err(Error::Linked(what))
}

pub(super) const NOT_NAMED: &str = "its list of linked writes contradicts itself";
pub(super) const BEYOND: &str = "its list of linked writes refers to blocks beyond the end of the volume";
pub(super) const OWN: &str = "its list of linked writes names blocks of the system zone as file data";
pub(super) const CHANGED: &str = "blocks in its list of linked writes were changed by another program";

/// The volume, and the valid slots, the older one first.
pub(super) struct Work<'a> {
    pub(super) volume: &'a Overlay,
    pub(super) sb: &'a Superblock,
    pub(super) slots: &'a [Slot],
    /// The blocks of the list itself.
    pub(super) list: Range<u64>,
}

/// The change of a group's totals, and of the volume's.
#[derive(Debug, Clone, Copy, Default)]
struct Delta {
    blocks: i64,
    inodes: i64,
    directories: i64,
}

impl Work<'_> {
    /// Carries out all steps; returns the number of new files that were lost.
    pub(super) fn all(&self) -> Result<usize> {
        self.within_bounds()?;
        self.beside_own_structures()?;
        let files = Files::find(self)?;
        let mut deltas: BTreeMap<u32, Delta> = BTreeMap::new();
        self.sectors()?;
        files.pointers(self)?;
        self.runs(&files, &mut deltas)?;
        self.numbers(&files, &mut deltas)?;
        names::remove(self, &files)?;
        let orphan = files.write(self)?;
        self.groups(&deltas)?;
        self.superblock(&deltas, orphan)?;
        Ok(files.lost())
    }

    /// Checks that everything named is on the volume, and that no more is named than it has.
    fn within_bounds(&self) -> Result<()> {
        let geometry = &self.sb.geometry;
        let has = |block: u32| u64::from(block) < geometry.blocks && block >= geometry.first_data_block;
        for slot in self.slots {
            let mut in_runs = 0u64;
            for run in &slot.runs {
                let count = u64::from(run.lr_count.get());
                in_runs += count;
                if !has(run.lr_first.get()) || u64::from(run.lr_first.get()) + count > geometry.blocks {
                    return contradiction(BEYOND);
                }
            }
            let pointers: u64 = slot.pointers.iter().map(|p| u64::from(p.lp_count.get())).sum();
            let fits = in_runs <= geometry.blocks
                && pointers <= 2 * geometry.blocks
                && slot.pointers.iter().all(|p| has(p.lp_block.get()))
                && slot.copies.iter().all(|copy| has(copy.head.lc_block.get()))
                && slot.groups.iter().all(|group| group.lg_number.get() < geometry.groups)
                && slot.inodes.iter().all(|i| geometry.inode_slot(InodeNo(i.li_number.get())).is_some());
            if !fits {
                return contradiction(BEYOND);
            }
        }
        Ok(())
    }

    /// Checks that none of the blocks named as content of files belongs to the volume's own structures: superblocks,
    /// descriptors, bitmaps, inode tables, the list.
    fn beside_own_structures(&self) -> Result<()> {
        let geometry = &self.sb.geometry;
        let mut named: Vec<Range<u64>> = Vec::new();
        for slot in self.slots {
            let blocks = slot.copies.iter().map(|copy| copy.head.lc_block.get());
            let blocks = blocks.chain(slot.pointers.iter().map(|p| p.lp_block.get()));
            let blocks = blocks.chain(slot.fresh.iter().map(|fresh| fresh.lf_block.get()));
            named.extend(blocks.map(|block| block.into()..u64::from(block) + 1));
            let runs = slot.runs.iter().map(|run| (u64::from(run.lr_first.get()), u64::from(run.lr_count.get())));
            named.extend(runs.map(|(first, count)| first..first + count));
        }
        named.sort_unstable_by_key(|blocks| blocks.start);
        let mut known: Option<(GroupNo, [Range<u64>; 4])> = None;
        for blocks in named {
            let mut at = blocks.start;
            while at < blocks.end {
                let group = geometry.group_of(FsBlock(at)).ok_or(Error::Linked(BEYOND))?;
                let own = match &known {
                    Some((of, own)) if *of == group => own,
                    _ => &known.insert((group, self.own_structures(group)?)).1,
                };
                let end = blocks.end.min(geometry.group_blocks(group).end);
                if own.iter().chain([&self.list]).any(|own| own.start < end && at < own.end) {
                    return contradiction(OWN);
                }
                at = end;
            }
        }
        Ok(())
    }

    /// The superblock with the descriptors and those reserved after it, both bitmaps and the inode table of a group.
    fn own_structures(&self, group: GroupNo) -> Result<[Range<u64>; 4]> {
        let geometry = &self.sb.geometry;
        let start = geometry.group_blocks(group).start;
        let descriptors = u64::from(geometry.descriptor_blocks) + u64::from(geometry.reserved_descriptor_blocks);
        let head = if geometry.backups.contains(group) { 1 + descriptors } else { 0 };
        let (_, disk) = self.group(group)?;
        let from = |first: u32, count: u32| u64::from(first)..u64::from(first) + u64::from(count);
        Ok([
            start..start + head,
            from(disk.bg_block_bitmap_lo.get(), 1),
            from(disk.bg_inode_bitmap_lo.get(), 1),
            from(disk.bg_inode_table_lo.get(), geometry.itable_blocks),
        ])
    }

    /// Directories and attributes: sets each sector to its content in the newest slot that contains it.
    fn sectors(&self) -> Result<()> {
        // the checksums that each sector may have now, and its new content
        let mut wanted: BTreeMap<u64, (Vec<u32>, &[u8; SECTOR])> = BTreeMap::new();
        for copy in self.slots.iter().flat_map(|slot| &slot.copies) {
            let head = &copy.head;
            let at = self.at(head.lc_block.get())? + u64::from(head.lc_sector.get()) * SECTOR as u64;
            let entry = wanted.entry(at).or_insert_with(|| (Vec::new(), &*copy.after));
            entry.0.extend([head.lc_before.get(), head.lc_after.get()]);
            entry.1 = &copy.after;
        }
        for (at, (known, after)) in wanted {
            let mut now = [0; SECTOR];
            self.volume.read(at, &mut now)?;
            if !known.contains(&sum(&now)) {
                return contradiction(CHANGED);
            }
            self.volume.write(at, after)?;
        }
        Ok(())
    }

    /// The first byte of a block.
    pub(super) fn at(&self, block: u32) -> Result<u64> {
        self.sb.geometry.byte_offset(FsBlock(block.into())).ok_or(Error::Linked(BEYOND))
    }

    /// The descriptor of a group, and its first byte.
    pub(super) fn group(&self, group: GroupNo) -> Result<(u64, DiskGroup)> {
        let geometry = &self.sb.geometry;
        let per_block = geometry.descriptors_per_block();
        let block = geometry.descriptor_block(group.get() / per_block);
        let inside = u64::from(group.get() % per_block) * u64::from(geometry.descriptor_size);
        let at = geometry.byte_offset(block).ok_or(Error::Linked(BEYOND))? + inside;
        let mut bytes = [0; DiskGroup::SIZE];
        let own = bytes.get_mut(..(geometry.descriptor_size as usize).min(DiskGroup::SIZE)).unwrap_or_default();
        self.volume.read(at, own)?;
        Ok((at, DiskGroup::read_from_bytes(&bytes).map_err(|_| Error::Linked(BEYOND))?))
    }

    /// Sets the bits of blocks that were allocated or freed, according to the present version of the owner.
    fn runs(&self, files: &Files<'_>, deltas: &mut BTreeMap<u32, Delta>) -> Result<()> {
        let mut steps: Vec<(&DiskListRun, bool)> = Vec::new();
        let (forward, backward) =
            landed(self.slots, |slot| &slot.runs, |run, slot| files.landed(run.lr_owner.get(), slot))?;
        steps.extend(forward.into_iter().map(|run| (run, true)));
        steps.extend(backward.into_iter().map(|run| (run, false)));
        let geometry = &self.sb.geometry;
        for (run, is_landed) in steps {
            let allocated = run.lr_allocated.get() != 0;
            let (mut at, end) =
                (u64::from(run.lr_first.get()), u64::from(run.lr_first.get()) + u64::from(run.lr_count.get()));
            while at < end {
                let group = geometry.group_of(FsBlock(at)).ok_or(Error::Linked(BEYOND))?;
                let blocks = geometry.group_blocks(group);
                let stop = end.min(blocks.end);
                let bitmap = self.group(group)?.1.bg_block_bitmap_lo.get();
                self.set_bits(bitmap, at - blocks.start..stop - blocks.start, allocated == is_landed)?;
                if is_landed {
                    let count = (stop - at) as i64;
                    deltas.entry(group.get()).or_default().blocks += if allocated { -count } else { count };
                }
                at = stop;
            }
        }
        Ok(())
    }

    /// Sets the bits of inodes that are new or freed.
    fn numbers(&self, files: &Files<'_>, deltas: &mut BTreeMap<u32, Delta>) -> Result<()> {
        for (number, in_use, change) in files.numbers() {
            let slot = self.sb.geometry.inode_slot(number).ok_or(Error::Linked(BEYOND))?;
            let bitmap = self.group(slot.group)?.1.bg_inode_bitmap_lo.get();
            let index = u64::from(slot.index);
            self.set_bits(bitmap, index..index + 1, in_use)?;
            let delta = deltas.entry(slot.group.get()).or_default();
            delta.inodes -= change.0;
            delta.directories += change.1;
        }
        Ok(())
    }

    fn set_bits(&self, bitmap: u32, bits: Range<u64>, value: bool) -> Result<()> {
        let at = self.at(bitmap)?;
        let bytes = bits.start / 8..bits.end.div_ceil(8);
        if bytes.end > self.sb.geometry.block_size.into() {
            return contradiction(BEYOND);
        }
        let mut buffer = vec![0; (bytes.end - bytes.start) as usize];
        self.volume.read(at + bytes.start, &mut buffer)?;
        for bit in bits {
            let Some(byte) = buffer.get_mut((bit / 8 - bytes.start) as usize) else { continue };
            let mask = 1 << (bit % 8);
            *byte = if value { *byte | mask } else { *byte & !mask };
        }
        Ok(self.volume.write(at + bytes.start, &buffer)?)
    }

    /// Writes the totals of each group that a slot names: the previous ones, and the changes that reached the device.
    fn groups(&self, deltas: &BTreeMap<u32, Delta>) -> Result<()> {
        let mut before = BTreeMap::new();
        for group in self.slots.iter().flat_map(|slot| &slot.groups) {
            before.entry(group.lg_number.get()).or_insert(group);
        }
        if deltas.keys().any(|group| !before.contains_key(group)) {
            return contradiction(NOT_NAMED);
        }
        for (number, group) in before {
            let delta = deltas.get(&number).copied().unwrap_or_default();
            let total = |before: u32, more: i64| {
                u16::try_from(i64::from(before) + more).map_err(|_| Error::Linked(NOT_NAMED)).map(Into::into)
            };
            let (at, mut disk) = self.group(GroupNo(number))?;
            disk.bg_free_blocks_count_lo = total(group.lg_free_blocks.get(), delta.blocks)?;
            disk.bg_free_inodes_count_lo = total(group.lg_free_inodes.get(), delta.inodes)?;
            disk.bg_used_dirs_count_lo = total(group.lg_directories.get(), delta.directories)?;
            let len = (self.sb.geometry.descriptor_size as usize).min(DiskGroup::SIZE);
            self.volume.write(at, disk.as_bytes().get(..len).unwrap_or_default())?;
        }
        Ok(())
    }

    /// Writes the totals, the orphan list and the features; of these, operations set only the one for attributes.
    fn superblock(&self, deltas: &BTreeMap<u32, Delta>, orphan: u32) -> Result<()> {
        let (Some(oldest), Some(newest)) = (self.slots.first(), self.slots.last()) else { return Ok(()) };
        // also if no change is described: the in-use mark wrote the totals of a generation whose slot did not reach the
        // device
        let total = |before: u32, more: i64| {
            u32::try_from(i64::from(before) + more).map_err(|_| Error::Linked(NOT_NAMED)).map(Into::into)
        };
        let mut bytes = [0; DiskSuperblock::SIZE];
        self.volume.read(OFFSET, &mut bytes)?;
        let mut sb = DiskSuperblock::from_slice(&bytes).ok_or(Error::Linked(BEYOND))?;
        sb.s_free_blocks_count_lo =
            total(oldest.header.ll_free_blocks.get(), deltas.values().map(|delta| delta.blocks).sum())?;
        sb.s_free_inodes_count =
            total(oldest.header.ll_free_inodes.get(), deltas.values().map(|delta| delta.inodes).sum())?;
        sb.s_last_orphan = orphan.into();
        let others = |before: U32, after: U32, of_operations: u32| (before.get() ^ after.get()) & !of_operations != 0;
        if others(sb.s_feature_compat, newest.header.ll_compat, Compat::EXT_ATTR.bits())
            || others(sb.s_feature_ro_compat, newest.header.ll_ro_compat, 0)
        {
            return contradiction(CHANGED);
        }
        sb.s_feature_compat = newest.header.ll_compat;
        Ok(self.volume.write(OFFSET, sb.as_bytes())?)
    }
}
