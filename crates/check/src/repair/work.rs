//! The common functions of all fixers: blocks, inodes and superblock in the overlay, and free space.
//!
//! A fixer sees the volume as of the last check, plus all writes since. Blocks without a claim in that check are free;
//! blocks released in an iteration are free in the next. Files with an unreadable map have no claims, and only the
//! bitmaps record their blocks: blocks marked there are allocated last.

use super::entries;
use crate::problem::Problem;
use crate::view::{View, Walk};
use crate::volume::Volume;
use blockdev::{BlockDevice, Overlay, Result};
use format::group::{Group, GroupFlags};
use format::inode::{InodeBuf, InodeFlags};
use format::superblock::{DiskSuperblock, MAGIC, OFFSET};
use format::tail::Tailed;
use format::{FsBlock, GroupNo, InodeNo};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use zerocopy::IntoBytes;

pub(super) struct Work<'a> {
    pub(super) view: &'a View<'a>,
    pub(super) device: &'a Overlay,
    /// Seconds since 1970.
    pub(super) now: u64,
    stale: Cell<bool>,
    /// Clusters that are not allocated although they have no claim, ascending and disjoint.
    in_use: Vec<Range<u64>>,
    /// Inodes with problems in their maps, sizes or block counts, also if those are repaired by now.
    damaged: HashSet<InodeNo>,
    /// Clusters allocated in this iteration.
    taken: RefCell<HashSet<u64>>,
    /// Those of the allocated clusters that are also free in the volume's own bitmaps.
    recorded_free: RefCell<Vec<u64>>,
    /// The cluster at which the search for a free one continues.
    cursor: Cell<u64>,
    /// Whether clusters marked in the volume's bitmaps are allocated as well, as no others are left.
    marked_too: Cell<bool>,
    /// The last block bitmap that was read, and its group.
    bitmap: RefCell<Option<(GroupNo, Vec<u8>)>>,
    /// Whether no cluster is free, not even in a metadata region.
    full: Cell<bool>,
    /// Number of leading groups without free space in their metadata regions.
    full_regions: Cell<usize>,
    inodes_taken: RefCell<HashSet<InodeNo>>,
    /// Descriptors that were changed in this iteration.
    groups: RefCell<HashMap<GroupNo, Group>>,
    /// Problems that a repair met.
    met: RefCell<Vec<Problem>>,
    /// Whether blocks of superblocks and descriptors are written as any others, as a journal may contain them.
    fixed_too: Cell<bool>,
}

impl<'a> Work<'a> {
    pub(super) fn new(view: &'a View<'a>, device: &'a Overlay, now: u64) -> Self {
        Self {
            view,
            device,
            now,
            stale: Cell::new(false),
            damaged: HashSet::new(),
            in_use: Vec::new(),
            taken: RefCell::default(),
            recorded_free: RefCell::default(),
            cursor: Cell::new(0),
            marked_too: Cell::new(false),
            bitmap: RefCell::default(),
            full: Cell::new(false),
            full_regions: Cell::new(0),
            inodes_taken: RefCell::default(),
            groups: RefCell::default(),
            met: RefCell::default(),
            fixed_too: Cell::new(false),
        }
    }

    /// Treats the maps of these inodes as damaged, whatever problems are still found in them.
    pub(super) fn with_damaged_maps(self, damaged: HashSet<InodeNo>) -> Self {
        Self { damaged, ..self }
    }

    /// Whether the map, the size or the block count of an inode was or is wrong.
    pub(super) fn has_damaged_map(&self, number: InodeNo) -> bool {
        self.damaged.contains(&number)
    }

    /// Treats these clusters as in use.
    pub(super) fn with_used(self, in_use: Vec<Range<u64>>) -> Self {
        Self { in_use, ..self }
    }

    /// Records a problem that is met only during the repair, and was repaired.
    pub(super) fn report(&self, problem: Problem) {
        self.met.borrow_mut().push(problem);
    }

    /// Returns the problems that were recorded since the last call.
    pub(super) fn take_reported(&self) -> Vec<Problem> {
        self.met.take()
    }

    /// Runs `write` with [`Self::put_block`] not limited to blocks outside the superblocks and descriptors: the replay
    /// of a journal writes these too, and fails where a block cannot be written.
    pub(super) fn with_fixed_blocks<T>(&self, write: impl FnOnce() -> T) -> T {
        let before = self.fixed_too.replace(true);
        let result = write();
        self.fixed_too.set(before);
        result
    }

    pub(super) fn volume(&self) -> &'a Volume {
        self.view.volume
    }

    pub(super) fn walk(&self) -> Option<&'a Walk<'a>> {
        self.view.walk.as_ref()
    }

    pub(super) fn block_size(&self) -> usize {
        self.volume().geometry.block_size as usize
    }

    /// The time for 32-bit fields.
    pub(super) fn now32(&self) -> u32 {
        self.now as u32
    }

    /// Marks the results of the check as outdated: the later fixers run after the next check.
    pub(super) fn make_stale(&self) {
        self.stale.set(true);
    }

    pub(super) fn is_stale(&self) -> bool {
        self.stale.get()
    }

    /// The bytes of a block; `None` outside the volume.
    pub(super) fn block(&self, block: u64) -> Result<Option<Vec<u8>>> {
        let Some(offset) = self.volume().offset(block) else { return Ok(None) };
        let mut bytes = vec![0; self.block_size()];
        self.device.read(offset, &mut bytes)?;
        Ok(Some(bytes))
    }

    /// Whether superblock, descriptors or their copies are at `block`, or the boot block. They have places of their
    /// own: whatever else is to be written there has a wrong location.
    fn is_fixed(&self, block: u64) -> bool {
        let geometry = &self.volume().geometry;
        let Some(group) = geometry.group_of(FsBlock(block)) else { return true };
        let head = geometry.group_head(group);
        let end = head.end.saturating_sub(geometry.reserved_descriptor_blocks.into());
        (head.start..end).contains(&block)
    }

    /// Writes bytes; those beyond the end of the device are ignored, and the next check reports them.
    fn put_bytes(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let end = offset.checked_add(bytes.len() as u64);
        match end.is_some_and(|end| end <= self.device.geometry().len) {
            true => self.device.write(offset, bytes),
            false => Ok(()),
        }
    }

    /// Writes a block; one outside the volume is ignored, and so is one of a superblock or of descriptors.
    pub(super) fn put_block(&self, block: u64, bytes: &[u8]) -> Result<()> {
        match self.volume().offset(block) {
            Some(offset) if self.fixed_too.get() => self.device.write(offset, bytes),
            Some(offset) if !self.is_fixed(block) => self.put_bytes(offset, bytes),
            _ => Ok(()),
        }
    }

    /// Copies contiguous blocks; those outside the volume are skipped.
    pub(super) fn copy_blocks(&self, from: u64, to: u64, blocks: u64) -> Result<()> {
        let end = self.volume().geometry.blocks;
        let blocks = blocks.min(end.saturating_sub(from)).min(end.saturating_sub(to));
        let (Some(source), Some(target)) = (self.volume().offset(from), self.volume().offset(to)) else {
            return Ok(());
        };
        let mut bytes = vec![0; blocks as usize * self.block_size()];
        self.device.read(source, &mut bytes)?;
        self.device.write(target, &bytes)
    }

    fn inode_offset(&self, inode: InodeNo) -> Option<u64> {
        let slot = self.volume().geometry.inode_slot(inode)?;
        let table = self.group(slot.group)?.inode_table.get();
        let block = table.checked_add(slot.table_block.into()).filter(|_| self.volume().contains(table))?;
        let offset = self.volume().offset(block).filter(|_| !self.is_fixed(block))?;
        offset.checked_add(slot.offset.into())
    }

    /// An inode; `None` where it does not exist.
    pub(super) fn inode(&self, inode: InodeNo) -> Result<Option<InodeBuf>> {
        let Some(offset) = self.inode_offset(inode) else { return Ok(None) };
        let mut bytes = vec![0; self.volume().geometry.inode_size as usize];
        self.device.read(offset, &mut bytes)?;
        Ok(InodeBuf::from_slot(&bytes))
    }

    /// Writes an inode with its checksum.
    pub(super) fn put_inode(&self, number: InodeNo, mut inode: InodeBuf) -> Result<()> {
        if !inode.raw().is_zero() {
            inode.set_checksum(&self.volume().geometry, number);
        }
        match self.inode_offset(number) {
            Some(offset) => self.put_bytes(offset, inode.bytes()),
            None => Ok(()),
        }
    }

    /// Changes an inode.
    pub(super) fn edit_inode(&self, number: InodeNo, edit: impl FnOnce(&mut InodeBuf)) -> Result<()> {
        let Some(mut inode) = self.inode(number)? else { return Ok(()) };
        edit(&mut inode);
        self.put_inode(number, inode)
    }

    /// An empty inode slot.
    pub(super) fn blank_inode(&self) -> InodeBuf {
        let size = self.volume().geometry.inode_size;
        InodeBuf::new(size, if size > 128 { format::inode::EXTRA_ISIZE } else { 0 })
    }

    /// Zeroes an inode's slot.
    pub(super) fn wipe_inode(&self, number: InodeNo) -> Result<()> {
        match self.inode_offset(number) {
            Some(offset) => self.put_bytes(offset, &vec![0; self.volume().geometry.inode_size as usize]),
            None => Ok(()),
        }
    }

    /// Frees an inode and all its blocks. Its fields remain readable.
    pub(super) fn clear_inode(&self, number: InodeNo) -> Result<()> {
        self.make_stale();
        self.edit_inode(number, |inode| {
            inode.set_flags(InodeFlags::empty());
            inode.set_links(0);
            inode.disk_mut().i_dtime = self.now32().into();
        })
    }

    /// The superblock in the overlay.
    pub(super) fn superblock(&self) -> Result<DiskSuperblock> {
        read_superblock(self.device)
    }

    /// Changes the superblock.
    pub(super) fn edit_superblock(&self, edit: impl FnOnce(&mut DiskSuperblock)) -> Result<()> {
        let mut superblock = self.superblock()?;
        edit(&mut superblock);
        write_superblock(self.device, superblock)
    }

    /// A group's descriptor, with the changes of this iteration.
    pub(super) fn group(&self, group: GroupNo) -> Option<Group> {
        self.groups.borrow().get(&group).copied().or_else(|| self.volume().group(group).copied())
    }

    /// Writes a group's descriptor with its checksum.
    pub(super) fn put_group(&self, number: GroupNo, mut group: Group) -> Result<()> {
        let geometry = &self.volume().geometry;
        let per_block = geometry.descriptors_per_block().max(1);
        let block = geometry.descriptor_block(number.get() / per_block);
        let Some(offset) = geometry.byte_offset(block) else { return Ok(()) };
        let offset = offset + u64::from(number.get() % per_block) * u64::from(geometry.descriptor_size);
        let mut bytes = vec![0; geometry.descriptor_size as usize];
        self.device.read(offset, &mut bytes)?;
        let superblock = self.superblock()?;
        group.set_checksum(&superblock, geometry, number, &mut bytes);
        self.device.write(offset, &bytes)?;
        self.groups.borrow_mut().insert(number, group);
        Ok(())
    }

    /// Bytes of the tail of a directory's leaf block; 0 where it has none, also where the apparent tail is space of the
    /// last entry.
    pub(super) fn leaf_tail(&self, block: &[u8]) -> usize {
        let tail = self.volume().geometry.leaf_tail();
        let last = entries::spots(block, self.volume().geometry.block_size).pop();
        let covered = last.is_some_and(|last| last.at + last.rec_len == block.len() && last.rec_len != tail.size());
        if tail.ends(block) && !covered { tail.size() } else { 0 }
    }

    /// Writes the tail of leaf block `at` of a directory, with its checksum; `seed` is the directory's.
    pub(super) fn set_leaf_checksum(&self, block: &mut [u8], dir: InodeNo, at: u64, seed: u32) {
        let tail = self.volume().geometry.tail(Tailed::Leaf);
        // a block is longer than a tail, whose checksum does not cover the block's location
        let _ = tail.write(block, dir, at);
        let _ = tail.set_checksum(block, FsBlock(0), seed);
    }

    /// Writes the tail of an index block of a directory: its owner, where the volume has owners, and its checksum,
    /// where it has one.
    pub(super) fn set_index_checksum(&self, block: &mut [u8], dir: InodeNo, seed: u32) {
        let tail = self.volume().geometry.tail(Tailed::Index);
        // a block without space for a checksum has none, and the checksum does not cover the block's location
        let _ = tail.write(block, dir, 0);
        let _ = tail.set_checksum(block, FsBlock(0), seed);
    }

    fn is_free(&self, walk: &Walk<'_>, cluster: u64) -> bool {
        let next = self.in_use.get(self.in_use.partition_point(|run| run.end <= cluster));
        !walk.ctx.claims.contains(cluster)
            && !self.taken.borrow().contains(&cluster)
            && next.is_none_or(|run| run.start > cluster)
    }

    /// Whether a cluster is in use by the volume's own bitmaps, which may be wrong.
    fn is_marked(&self, cluster: u64) -> bool {
        let per_group = u64::from(self.volume().geometry.clusters_per_group()).max(1);
        let (number, at) = (GroupNo((cluster / per_group) as u32), cluster % per_group);
        let Some(group) = self.volume().group(number).filter(|_| self.volume().space_maps.is_none()) else {
            return false;
        };
        if group.flags.contains(GroupFlags::BLOCK_UNINIT) {
            return false;
        }
        let mut last = self.bitmap.borrow_mut();
        if last.as_ref().is_none_or(|(of, _)| *of != number) {
            let bytes = self.block(group.block_bitmap.get()).ok().flatten();
            *last = Some((number, bytes.unwrap_or_default()));
        }
        let byte = last.as_ref().and_then(|(_, bytes)| bytes.get((at / 8) as usize));
        byte.is_some_and(|byte| byte >> (at % 8) & 1 == 1)
    }

    /// Whether the volume has a trustworthy record of the free clusters in the group of a cluster. The group's bitmap
    /// was the last one read.
    fn is_recorded(&self, cluster: u64) -> bool {
        let volume = self.volume();
        let per_group = u64::from(volume.geometry.clusters_per_group()).max(1);
        let number = GroupNo((cluster / per_group) as u32);
        let believed =
            volume.space_maps.is_none() && !volume.is_copy && volume.untrusted.binary_search(&number).is_err();
        let Some(group) = volume.group(number).filter(|_| believed) else { return false };
        if group.flags.contains(GroupFlags::BLOCK_UNINIT) {
            return volume.geometry.metadata_csum || volume.geometry.gdt_csum;
        }
        self.bitmap.borrow().as_ref().is_some_and(|(of, bytes)| *of == number && !bytes.is_empty())
    }

    /// The clusters that were allocated in this iteration and are free by the volume's own record.
    pub(super) fn handed_out(&self) -> Vec<u64> {
        self.recorded_free.take()
    }

    /// The clusters that were allocated in this iteration.
    pub(super) fn allocated(&self) -> Vec<u64> {
        self.taken.borrow().iter().copied().collect()
    }

    pub(super) fn clusters(&self) -> u64 {
        let geometry = &self.volume().geometry;
        let first = u64::from(geometry.first_data_block);
        let on_device = (self.device.geometry().len / u64::from(geometry.block_size)).min(geometry.blocks);
        on_device.saturating_sub(first) / u64::from(geometry.cluster_blocks)
    }

    /// The number of clusters without a claim.
    pub(super) fn free_clusters(&self) -> u64 {
        let Some(walk) = self.walk() else { return 0 };
        (0..self.clusters()).filter(|cluster| self.is_free(walk, *cluster)).count() as u64
    }

    /// Allocates a cluster for metadata and returns its first block: in a metadata region where one has space. `None`
    /// where none is free.
    pub(super) fn allocate_metadata(&self) -> Option<u64> {
        let geometry = &self.volume().geometry;
        if geometry.has_regions() {
            let groups = geometry.group_numbers().zip(&self.volume().groups);
            for (number, group) in groups.skip(self.full_regions.get()) {
                let region = geometry.region_blocks(number, group.regions).find_map(|run| self.allocate_run(1, run));
                if region.is_some() {
                    return region;
                }
                self.full_regions.set(self.full_regions.get() + 1);
            }
        }
        self.allocate()
    }

    /// Whether a cluster lies in a metadata region.
    fn is_region(&self, cluster: u64) -> bool {
        let geometry = &self.volume().geometry;
        let per_group = u64::from(geometry.clusters_per_group());
        let chunk = cluster % per_group / u64::from(geometry.chunk_blocks()).max(1);
        let group = self.volume().groups.get((cluster / per_group) as usize);
        geometry.has_regions() && group.is_some_and(|group| group.regions >> chunk.min(63) & 1 == 1)
    }

    /// Allocates a cluster and returns its first block; in a metadata region only where there is no other. `None` where
    /// none is free.
    pub(super) fn allocate(&self) -> Option<u64> {
        let mut found = self.allocate_outside(true);
        if found.is_none() && !self.marked_too.replace(true) {
            self.cursor.set(0);
            found = self.allocate_outside(true);
        }
        // each of very many files may ask for a block of a full volume
        if found.is_some() || !self.volume().geometry.has_regions() || self.full.get() {
            return found;
        }
        self.cursor.set(0);
        let found = self.allocate_outside(false);
        self.full.set(found.is_none());
        found
    }

    /// Allocates `blocks` blocks for a file without holes.
    pub(super) fn allocate_dense(&self, blocks: usize) -> Option<Vec<u64>> {
        let mut places = Vec::new();
        self.extend_dense(&mut places, blocks).then_some(places)
    }

    /// Extends the blocks of a file without holes to `blocks` blocks, by whole clusters. `false` where too few are
    /// free.
    pub(super) fn extend_dense(&self, places: &mut Vec<u64>, blocks: usize) -> bool {
        let ratio = self.volume().geometry.cluster_blocks as usize;
        while places.len() < blocks {
            let next = match places.last() {
                Some(last) if !places.len().is_multiple_of(ratio) => Some(last + 1),
                _ => self.allocate(),
            };
            let Some(next) = next else { return false };
            places.push(next);
        }
        true
    }

    fn allocate_outside(&self, regions: bool) -> Option<u64> {
        let walk = self.walk()?;
        let end = self.clusters();
        let mut at = self.cursor.get();
        while at < end {
            // whole words in use are skipped
            let per_group = u64::from(self.volume().geometry.clusters_per_group());
            let (group, place) = (at / per_group, at % per_group);
            if place.is_multiple_of(64)
                && place + 64 <= per_group
                && walk.ctx.claims.word(GroupNo(group as u32), (place / 64) as usize) == u64::MAX
            {
                at += 64;
                continue;
            }
            // the bitmap, which may have to be read, is checked last
            let passed_over = || regions && self.is_region(at) || !self.marked_too.get() && self.is_marked(at);
            if self.is_free(walk, at) && !passed_over() {
                self.cursor.set(at + 1);
                self.taken.borrow_mut().insert(at);
                if !self.marked_too.get() && self.is_recorded(at) {
                    self.recorded_free.borrow_mut().push(at);
                }
                return Some(self.first_block(at));
            }
            at += 1;
        }
        self.cursor.set(end);
        None
    }

    fn first_block(&self, cluster: u64) -> u64 {
        let geometry = &self.volume().geometry;
        u64::from(geometry.first_data_block) + cluster * u64::from(geometry.cluster_blocks)
    }

    /// Allocates `blocks` contiguous blocks in a range and returns the first.
    pub(super) fn allocate_run(&self, blocks: u64, within: Range<u64>) -> Option<u64> {
        let unmarked = || self.find_run(blocks, &within, |cluster| !self.is_marked(cluster));
        unmarked().or_else(|| self.find_run(blocks, &within, |_| true))
    }

    fn find_run(&self, blocks: u64, within: &Range<u64>, good: impl Fn(u64) -> bool) -> Option<u64> {
        let walk = self.walk()?;
        let claims = &walk.ctx.claims;
        let ratio = u64::from(self.volume().geometry.cluster_blocks);
        let wanted = blocks.div_ceil(ratio);
        let within = claims.clusters_of(within);
        let end = within.end.min(self.clusters());
        let (mut start, mut at) = (within.start, within.start);
        while at < end {
            if !self.is_free(walk, at) || !good(at) {
                start = at + 1;
            } else if at + 1 - start == wanted {
                self.taken.borrow_mut().extend(start..at + 1);
                return Some(self.first_block(start));
            }
            at += 1;
        }
        None
    }

    /// Allocates an inode for a user's file. Where it is in a part of its table that was never used, the descriptor is
    /// updated.
    pub(super) fn allocate_inode(&self) -> Result<Option<InodeNo>> {
        let Some(walk) = self.walk() else { return Ok(None) };
        let geometry = &self.volume().geometry;
        let free = (geometry.first_inode..=geometry.inodes)
            .map(InodeNo)
            .find(|n| !walk.ctx.inodes.is_used(*n) && !self.inodes_taken.borrow().contains(n));
        let Some(inode) = free else { return Ok(None) };
        self.inodes_taken.borrow_mut().insert(inode);
        self.open_inode(inode)?;
        Ok(Some(inode))
    }

    /// Extends the used part of the inode table so that the next check reads an inode.
    pub(super) fn open_inode(&self, inode: InodeNo) -> Result<()> {
        let geometry = &self.volume().geometry;
        if let Some(slot) = geometry.inode_slot(inode)
            && let Some(mut group) = self.group(slot.group)
            && (geometry.metadata_csum || geometry.gdt_csum)
        {
            let used = self.volume().used_inodes.get(slot.group.get() as usize).copied().unwrap_or(0);
            if slot.index >= used {
                // the slots in between were never written
                for index in used..=slot.index {
                    self.wipe_inode(geometry.inode_at(slot.group, index))?;
                }
                group.flags -= GroupFlags::INODE_UNINIT;
                group.itable_unused = group.itable_unused.min(geometry.inodes_per_group.saturating_sub(slot.index + 1));
                self.put_group(slot.group, group)?;
            }
        }
        Ok(())
    }

    /// The number of 512-byte sectors in `blocks` blocks of a file.
    pub(super) fn sectors(&self, blocks: u64) -> u64 {
        let geometry = &self.volume().geometry;
        let clusters = blocks.div_ceil(u64::from(geometry.cluster_blocks));
        clusters * u64::from(geometry.cluster_blocks) * u64::from(geometry.block_size / 512)
    }

    /// Sets `i_blocks`.
    pub(super) fn set_sectors(&self, inode: &mut InodeBuf, sectors: u64) {
        let huge = self.volume().features.ro_compat.contains(format::feature::RoCompat::HUGE_FILE);
        // a count that does not fit is reported by the next check
        let _ = inode.set_sectors(sectors, huge, self.volume().geometry.block_size);
    }
}

/// The primary superblock of a device.
pub(super) fn read_superblock(device: &Overlay) -> Result<DiskSuperblock> {
    let mut superblock: DiskSuperblock = zerocopy::FromZeros::new_zeroed();
    device.read(OFFSET, superblock.as_mut_bytes())?;
    Ok(superblock)
}

/// Writes the primary superblock with its checksum. The remains of a destroyed one are not written: it is restored from
/// a copy as a whole.
pub(super) fn write_superblock(device: &Overlay, mut superblock: DiskSuperblock) -> Result<()> {
    if superblock.s_magic.get() != MAGIC {
        return Ok(());
    }
    superblock.set_checksum();
    device.write(OFFSET, superblock.as_bytes())
}
