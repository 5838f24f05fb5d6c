//! A volume to be damaged: access to single structures, written with their checksums.
//!
//! The volume is assumed to be consistent: its structures are followed unchecked, within bounds.

use crate::error::{Error, Result, need};
use blockdev::BlockDevice;
use format::dir::{DirEntry, decode_rec_len};
use format::extent::{self, RawNode};
use format::feature::{Compat, ExtantRo, Incompat, RoCompat};
use format::group::{Group, GroupFlags, bitmap_checksum};
use format::inode::{FileKind, InodeBuf, InodeFlags, RawInode};
use format::superblock::{self, DiskSuperblock, Geometry};
use format::tail::Tailed;
use format::{FsBlock, GroupNo, InodeNo, htree};
use std::collections::HashSet;
use zerocopy::{FromBytes, IntoBytes};

/// Maximum number of blocks of one file that are followed.
const MAP_BLOCKS: usize = 1 << 22;

pub(crate) struct Volume<'a> {
    device: &'a dyn BlockDevice,
    pub(crate) sb: DiskSuperblock,
    pub(crate) geometry: Geometry,
    pub(crate) groups: Vec<Group>,
    pub(crate) rng: fastrand::Rng,
    changed: Vec<String>,
    chosen: HashSet<InodeNo>,
}

/// The blocks that a file's map leads to.
#[derive(Debug, Default)]
pub(crate) struct Map {
    /// Block of the file, block of the volume.
    pub(crate) data: Vec<(u64, u64)>,
    /// Blocks of the map with their levels: 0 for an extent leaf, 1 for an indirect block of data blocks.
    pub(crate) nodes: Vec<(u64, u16)>,
}

/// The location of a directory entry.
#[derive(Debug, Clone)]
pub(crate) struct Named {
    pub(crate) file_block: u64,
    pub(crate) block: u64,
    pub(crate) offset: usize,
    pub(crate) len: usize,
    pub(crate) inode: InodeNo,
    pub(crate) name: Vec<u8>,
}

impl<'a> Volume<'a> {
    pub(crate) fn open(device: &'a dyn BlockDevice, seed: u64) -> Result<Self> {
        let mut bytes = vec![0; DiskSuperblock::SIZE];
        device.read(superblock::OFFSET, &mut bytes)?;
        let sb = superblock::Superblock::parse(&bytes)?;
        let rng = fastrand::Rng::with_seed(seed);
        let (geometry, changed) = (sb.geometry, Vec::new());
        let mut volume =
            Self { device, sb: sb.disk, geometry, groups: Vec::new(), rng, changed, chosen: HashSet::new() };
        let bytes_needed = u64::from(volume.geometry.groups) * u64::from(volume.geometry.descriptor_size);
        if bytes_needed > device.geometry().len {
            return Err(Error::Unfit("the device is shorter than its group descriptors"));
        }
        volume.groups = (0..volume.geometry.groups)
            .map(|n| volume.descriptor(GroupNo(n), None).map(|bytes| Group::from_bytes(&bytes)))
            .collect::<Result<_>>()?;
        Ok(volume)
    }

    /// The structures that were changed, in order, each once.
    pub(crate) fn changed(self) -> Vec<String> {
        let mut seen = HashSet::new();
        self.changed.into_iter().filter(|what| seen.insert(what.clone())).collect()
    }

    pub(crate) fn record(&mut self, what: String) {
        self.changed.push(what);
    }

    pub(crate) fn block_size(&self) -> usize {
        self.geometry.block_size as usize
    }

    pub(crate) fn has_compat(&self, feature: Compat) -> bool {
        self.sb.features().compat.contains(feature)
    }

    pub(crate) fn has_incompat(&self, feature: Incompat) -> bool {
        self.sb.features().incompat.contains(feature)
    }

    pub(crate) fn has_ro(&self, feature: RoCompat) -> bool {
        self.sb.features().ro_compat.contains(feature)
    }

    /// Whether free space is recorded in space maps instead of block bitmaps.
    pub(crate) fn has_space_maps(&self) -> bool {
        self.sb.extant_ro().contains(ExtantRo::SPACE_MAPS)
    }

    // the device

    pub(crate) fn read_at(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.device.read(offset, &mut bytes)?;
        Ok(bytes)
    }

    pub(crate) fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        Ok(self.device.write(offset, bytes)?)
    }

    fn offset(&self, block: u64) -> Result<u64> {
        self.geometry.byte_offset(FsBlock(block)).ok_or(Error::Unfit("a block lies outside the volume"))
    }

    pub(crate) fn block(&self, block: u64) -> Result<Vec<u8>> {
        self.read_at(self.offset(block)?, self.block_size())
    }

    pub(crate) fn put_block(&mut self, block: u64, bytes: &[u8]) -> Result<()> {
        self.record(format!("block {block}"));
        self.write_at(self.offset(block)?, bytes)
    }

    pub(crate) fn edit_block(&mut self, block: u64, edit: impl FnOnce(&mut [u8])) -> Result<()> {
        let mut bytes = self.block(block)?;
        edit(&mut bytes);
        self.put_block(block, &bytes)
    }

    // the superblock

    /// Changes the primary superblock and its checksum.
    pub(crate) fn superblock(&mut self, edit: impl FnOnce(&mut DiskSuperblock)) -> Result<()> {
        self.record("the superblock".into());
        edit(&mut self.sb);
        self.sb.set_checksum();
        self.write_at(superblock::OFFSET, self.sb.as_bytes())
    }

    /// Changes the copy of the superblock in a group.
    pub(crate) fn copy_of_superblock(&mut self, group: GroupNo, edit: impl FnOnce(&mut DiskSuperblock)) -> Result<()> {
        let block = self.geometry.superblock_block(group).ok_or(Error::Unfit("the group has no copy"))?;
        let offset = self.offset(block.get())?;
        let bytes = self.read_at(offset, DiskSuperblock::SIZE)?;
        let mut copy = DiskSuperblock::from_slice(&bytes).ok_or(Error::Unfit("the copy is cut off"))?;
        edit(&mut copy);
        copy.set_checksum();
        self.record(format!("the copy of the superblock in group {group}"));
        self.write_at(offset, copy.as_bytes())
    }

    // groups

    pub(crate) fn descriptor_offset(&self, group: GroupNo, copy: Option<GroupNo>) -> Option<u64> {
        let per_block = self.geometry.descriptors_per_block().max(1);
        let n = group.get() / per_block;
        let block = match copy {
            None => self.geometry.descriptor_block(n).get(),
            Some(copy) if n < self.geometry.first_meta_group => {
                self.geometry.group_start(copy).get() + 1 + u64::from(n)
            }
            Some(_) => return None,
        };
        let within = u64::from(group.get() % per_block) * u64::from(self.geometry.descriptor_size);
        Some(self.geometry.byte_offset(FsBlock(block))? + within)
    }

    fn descriptor(&self, group: GroupNo, copy: Option<GroupNo>) -> Result<Vec<u8>> {
        let offset = self.descriptor_offset(group, copy).ok_or(Error::Unfit("the group has no descriptor"))?;
        self.read_at(offset, self.geometry.descriptor_size as usize)
    }

    /// Changes a descriptor and its checksum.
    pub(crate) fn group(&mut self, number: GroupNo, edit: impl FnOnce(&mut Group)) -> Result<()> {
        self.edit_group(number, edit, true, None)
    }

    /// Changes a descriptor without its checksum.
    pub(crate) fn group_without_checksum(&mut self, number: GroupNo, edit: impl FnOnce(&mut Group)) -> Result<()> {
        self.edit_group(number, edit, false, None)
    }

    /// Changes the copy of a descriptor that follows a copy of the superblock.
    pub(crate) fn copy_of_group(
        &mut self,
        number: GroupNo,
        copy: GroupNo,
        edit: impl FnOnce(&mut Group),
    ) -> Result<()> {
        self.edit_group(number, edit, true, Some(copy))
    }

    /// Changes a descriptor and all copies of it.
    pub(crate) fn group_everywhere(&mut self, number: GroupNo, edit: impl Fn(&mut Group)) -> Result<()> {
        self.group(number, &edit)?;
        let copies: Vec<_> = self.geometry.backup_groups().collect();
        for copy in copies {
            if self.descriptor_offset(number, Some(copy)).is_some() {
                self.edit_group(number, &edit, true, Some(copy))?;
            } else {
                let n = number.get() / self.geometry.descriptors_per_block().max(1);
                for block in self.geometry.descriptor_block_backups(n) {
                    self.edit_block(block.get(), |bytes| bytes.fill(0xFF))?;
                }
            }
        }
        Ok(())
    }

    fn edit_group(
        &mut self,
        number: GroupNo,
        edit: impl FnOnce(&mut Group),
        checksum: bool,
        copy: Option<GroupNo>,
    ) -> Result<()> {
        let mut bytes = self.descriptor(number, copy)?;
        let mut group = Group::from_bytes(&bytes);
        edit(&mut group);
        if checksum {
            group.set_checksum(&self.sb, &self.geometry, number, &mut bytes);
        } else {
            group.write(&mut bytes);
        }
        let offset = self.descriptor_offset(number, copy).ok_or(Error::Unfit("the group has no descriptor"))?;
        self.write_at(offset, &bytes)?;
        self.record(format!("the descriptor of group {number}"));
        if let (None, Some(cached)) = (copy, self.groups.get_mut(number.get() as usize)) {
            *cached = group;
        }
        Ok(())
    }

    pub(crate) fn group_of(&self, number: GroupNo) -> Result<Group> {
        self.groups.get(number.get() as usize).copied().ok_or(Error::Unfit("the group does not exist"))
    }

    /// A group with a written block bitmap and inode bitmap; with `last` the one with the highest number.
    pub(crate) fn any_group(&mut self, fits: impl Fn(&Group) -> bool) -> Result<GroupNo> {
        let all: Vec<u32> = (0u32..).zip(&self.groups).filter(|(_, group)| fits(group)).map(|(n, _)| n).collect();
        let at = if all.is_empty() { 0 } else { self.rng.usize(0..all.len()) };
        all.get(at).map(|n| GroupNo(*n)).ok_or(Error::Unfit("no group is fit for this"))
    }

    /// A group without inodes in use.
    pub(crate) fn group_without_inodes(&mut self) -> Result<GroupNo> {
        let all = self.geometry.inodes_per_group;
        self.any_group(|group| group.free_inodes == all)
    }

    /// Changes bits of a group's bitmap, and the bitmap's checksum.
    pub(crate) fn bitmap(&mut self, number: GroupNo, inodes: bool, edit: impl FnOnce(&mut [u8])) -> Result<()> {
        let group = self.group_of(number)?;
        need(inodes || !self.has_space_maps(), "the volume has no block bitmaps")?;
        let (block, bits) = if inodes {
            (group.inode_bitmap, self.geometry.inodes_per_group)
        } else {
            (group.block_bitmap, self.geometry.clusters_per_group())
        };
        self.edit_block(block.get(), edit)?;
        if self.geometry.metadata_csum {
            let sum = bitmap_checksum(&self.geometry, &self.block(block.get())?, bits);
            self.group(number, |group| {
                if inodes {
                    group.inode_bitmap_csum = sum;
                } else {
                    group.block_bitmap_csum = sum;
                }
            })?;
        }
        Ok(())
    }

    fn place_of(&self, block: u64) -> Result<(GroupNo, usize)> {
        let group = self.geometry.group_of(FsBlock(block)).ok_or(Error::Unfit("a block lies outside the volume"))?;
        let start = self.geometry.group_start(group).get();
        Ok((group, ((block - start) / u64::from(self.geometry.cluster_blocks)) as usize))
    }

    pub(crate) fn mark_block(&mut self, block: u64, used: bool) -> Result<()> {
        let (group, bit) = self.place_of(block)?;
        self.bitmap(group, false, |bits| set_bit(bits, bit, used))
    }

    pub(crate) fn mark_inode(&mut self, inode: InodeNo, used: bool) -> Result<()> {
        let slot = self.geometry.inode_slot(inode).ok_or(Error::Unfit("the inode does not exist"))?;
        self.bitmap(slot.group, true, |bits| set_bit(bits, slot.index as usize, used))
    }

    /// A free block in a group whose bitmap is written.
    pub(crate) fn free_block(&mut self) -> Result<u64> {
        need(!self.has_space_maps(), "the volume has no block bitmaps")?;
        for (n, group) in (0u32..).zip(self.groups.clone()) {
            if group.flags.contains(GroupFlags::BLOCK_UNINIT) || group.free_clusters == 0 {
                continue;
            }
            let bits = self.block(group.block_bitmap.get())?;
            let range = self.geometry.group_blocks(GroupNo(n));
            let ratio = u64::from(self.geometry.cluster_blocks);
            let free: Vec<u64> = range
                .clone()
                .step_by(ratio as usize)
                .filter(|block| block + ratio <= range.end)
                .filter(|block| !bit(&bits, ((block - range.start) / ratio) as usize))
                .collect();
            if let Some(block) = self.rng.choice(&free) {
                return Ok(*block);
            }
        }
        Err(Error::Unfit("no block is free"))
    }

    /// Allocates a block: marks a free block as used.
    pub(crate) fn take_block(&mut self) -> Result<u64> {
        let block = self.free_block()?;
        let (group, _) = self.place_of(block)?;
        self.mark_block(block, true)?;
        self.group(group, |group| group.free_clusters = group.free_clusters.saturating_sub(1))?;
        let free = self.sb.free_blocks_count().saturating_sub(u64::from(self.geometry.cluster_blocks));
        self.superblock(|sb| sb.set_free_blocks_count(free))?;
        Ok(block)
    }

    /// A free inode in the part of a table that is in use, with its slot.
    pub(crate) fn free_inode(&mut self) -> Result<InodeNo> {
        let free = self.all_inodes(|volume, number, raw| {
            raw.disk.i_links_count.get() == 0
                && number.get() >= volume.geometry.first_inode
                && raw.disk.i_mode.get() == 0
        })?;
        self.choose(free, "no inode of the used part of a table is free")
    }

    // inodes

    pub(crate) fn inode_offset(&self, number: InodeNo) -> Result<u64> {
        let unfit = Error::Unfit("the inode does not exist");
        let Some(slot) = self.geometry.inode_slot(number) else { return Err(unfit) };
        let table = self.group_of(slot.group)?.inode_table.get();
        Ok(self.offset(table + u64::from(slot.table_block))? + u64::from(slot.offset))
    }

    pub(crate) fn inode(&self, number: InodeNo) -> Result<InodeBuf> {
        let bytes = self.read_at(self.inode_offset(number)?, self.geometry.inode_size as usize)?;
        InodeBuf::from_slot(&bytes).ok_or(Error::Unfit("the inode is cut off"))
    }

    pub(crate) fn put_inode(&mut self, number: InodeNo, inode: &InodeBuf) -> Result<()> {
        self.record(format!("inode {number}"));
        self.write_at(self.inode_offset(number)?, inode.bytes())
    }

    /// Changes an inode and its checksum.
    pub(crate) fn edit(&mut self, number: InodeNo, edit: impl FnOnce(&mut InodeBuf)) -> Result<()> {
        let mut inode = self.inode(number)?;
        edit(&mut inode);
        inode.set_checksum(&self.geometry, number);
        self.put_inode(number, &inode)
    }

    /// Changes a pointer or another word of `i_block`.
    pub(crate) fn edit_words(&mut self, number: InodeNo, edit: impl FnOnce(&mut [u32; 15])) -> Result<()> {
        self.edit(number, |inode| {
            let mut words = inode.raw().block_words::<15>();
            edit(&mut words);
            inode.set_block_words(&words);
        })
    }

    pub(crate) fn set_flags(&mut self, number: InodeNo, flags: InodeFlags, on: bool) -> Result<()> {
        self.edit(number, |inode| {
            let mut all = inode.raw().flags();
            all.set(flags, on);
            inode.set_flags(all);
        })
    }

    /// All inodes in the used parts of the tables for which `fits` is true.
    pub(crate) fn all_inodes(&self, fits: impl Fn(&Self, InodeNo, &RawInode<'_>) -> bool) -> Result<Vec<InodeNo>> {
        let mut found = Vec::new();
        let size = self.geometry.inode_size as usize;
        let sums = self.geometry.metadata_csum || self.geometry.gdt_csum;
        for (n, group) in (0u32..).zip(&self.groups) {
            let used = match (sums, group.flags.contains(GroupFlags::INODE_UNINIT)) {
                (true, true) => 0,
                (true, false) => self.geometry.inodes_per_group.saturating_sub(group.itable_unused),
                _ => self.geometry.inodes_per_group,
            };
            let table = self.read_at(self.offset(group.inode_table.get())?, used as usize * size)?;
            for (index, slot) in (0u32..).zip(table.chunks_exact(size)) {
                let number = self.geometry.inode_at(GroupNo(n), index);
                if let Some(raw) = RawInode::from_slot(slot)
                    && fits(self, number, &raw)
                {
                    found.push(number);
                }
            }
        }
        Ok(found)
    }

    fn choose(&mut self, mut from: Vec<InodeNo>, without: &'static str) -> Result<InodeNo> {
        from.retain(|inode| !self.chosen.contains(inode));
        let inode = *self.rng.choice(&from).ok_or(Error::Unfit(without))?;
        self.chosen.insert(inode);
        Ok(inode)
    }

    /// A random inode in use, not reserved, for which `fits` is true; never the same twice.
    pub(crate) fn pick(
        &mut self,
        without: &'static str,
        fits: impl Fn(&Self, &RawInode<'_>) -> Result<bool>,
    ) -> Result<InodeNo> {
        let own = [self.sb.s_orphan_file_inum.get(), self.sb.s_prj_quota_inum.get()];
        let lost = self.entries(InodeNo::ROOT)?.into_iter().find(|e| e.name == b"lost+found").map(|e| e.inode);
        let used = self.all_inodes(|volume, number, raw| {
            raw.disk.i_links_count.get() != 0
                && number.get() >= volume.geometry.first_inode
                && !own.contains(&number.get())
                && Some(number) != lost
                && fits(volume, raw).unwrap_or(false)
        })?;
        self.choose(used, without)
    }

    pub(crate) fn pick_kind(&mut self, kind: FileKind, without: &'static str) -> Result<InodeNo> {
        self.pick(without, |_, raw| Ok(raw.kind() == Some(kind)))
    }

    /// A regular file with blocks, mapped by block numbers in the inode or by extents.
    pub(crate) fn file(&mut self, extents: Option<bool>) -> Result<InodeNo> {
        self.pick("no file has such blocks", |volume, raw| {
            let flags = raw.flags();
            Ok(raw.kind() == Some(FileKind::Regular)
                && !flags.intersects(InodeFlags::INLINE_DATA | InodeFlags::EA_INODE)
                && extents.is_none_or(|extents| flags.contains(InodeFlags::EXTENTS) == extents)
                && volume.map(raw)?.data.len() > 1)
        })
    }

    /// A regular file with at least one map block outside its inode, of level `level` or higher.
    pub(crate) fn file_with_nodes(&mut self, extents: Option<bool>, level: u16) -> Result<InodeNo> {
        self.pick("no file has such a map", |volume, raw| {
            let flags = raw.flags();
            let mapped = raw.kind() == Some(FileKind::Regular)
                && !flags.contains(InodeFlags::INLINE_DATA)
                && extents.is_none_or(|extents| flags.contains(InodeFlags::EXTENTS) == extents);
            Ok(mapped && volume.map(raw)?.nodes.iter().any(|(_, at)| *at >= level))
        })
    }

    /// A directory with a minimum number of blocks, with or without a hash tree; not the root.
    pub(crate) fn directory(&mut self, blocks: usize, indexed: Option<bool>) -> Result<InodeNo> {
        self.pick("no directory is fit for this", |volume, raw| {
            let flags = raw.flags();
            Ok(raw.kind() == Some(FileKind::Directory)
                && !flags.contains(InodeFlags::INLINE_DATA)
                && indexed.is_none_or(|indexed| flags.contains(InodeFlags::INDEX) == indexed)
                && volume.map(raw)?.data.len() >= blocks)
        })
    }

    // maps

    pub(crate) fn map_of(&self, number: InodeNo) -> Result<Map> {
        self.map(&self.inode(number)?.raw())
    }

    pub(crate) fn map(&self, raw: &RawInode<'_>) -> Result<Map> {
        let mut map = Map::default();
        let flags = raw.flags();
        let mapped = matches!(raw.kind(), Some(FileKind::Regular | FileKind::Directory | FileKind::Symlink));
        let short = raw.kind() == Some(FileKind::Symlink) && raw.size() < 60;
        if !mapped || short || flags.contains(InodeFlags::INLINE_DATA) {
            return Ok(map);
        }
        if flags.contains(InodeFlags::EXTENTS) {
            self.extents(&raw.disk.i_block, &mut map, extent::MAX_DEPTH)?;
        } else {
            let words = raw.block_words::<15>();
            map.data
                .extend((0u64..).zip(&words[..12]).filter(|(_, block)| **block != 0).map(|(n, b)| (n, u64::from(*b))));
            for (level, block) in (1u16..).zip(&words[12..]) {
                let first = self.geometry.indirect().first_of_level(level.into()).get();
                self.indirect(u64::from(*block), level, first, &mut map)?;
            }
        }
        Ok(map)
    }

    fn extents(&self, node: &[u8], map: &mut Map, left: u16) -> Result<()> {
        let Some(node) = RawNode::from_bytes(node) else { return Ok(()) };
        if node.header.eh_depth.get() == 0 {
            for e in node.extents() {
                let (logical, physical) = (u64::from(e.ee_block.get()), e.start().get());
                map.data.extend((0..u64::from(e.len())).map(|n| (logical + n, physical + n)));
            }
            return Ok(());
        }
        for child in node.indexes() {
            if left == 0 || map.data.len() > MAP_BLOCKS {
                return Err(Error::Unfit("a file's map is damaged"));
            }
            map.nodes.push((child.child().get(), node.header.eh_depth.get() - 1));
            self.extents(&self.block(child.child().get())?, map, left - 1)?;
        }
        Ok(())
    }

    fn indirect(&self, block: u64, level: u16, first: u64, map: &mut Map) -> Result<()> {
        if block == 0 {
            return Ok(());
        }
        if map.data.len() > MAP_BLOCKS {
            return Err(Error::Unfit("a file's map is damaged"));
        }
        map.nodes.push((block, level));
        let bytes = self.block(block)?;
        let indirect = self.geometry.indirect();
        for (n, pointer) in (0u64..).zip(indirect.pointers(&bytes)) {
            let at = first + n * indirect.span(u32::from(level) - 1);
            match (level, pointer.get()) {
                (_, 0) => {}
                (1, block) => map.data.push((at, block.into())),
                (_, block) => self.indirect(block.into(), level - 1, at, map)?,
            }
        }
        Ok(())
    }

    /// Changes a block of a file's map, with the checksum it has.
    pub(crate) fn edit_node(&mut self, number: InodeNo, block: u64, edit: impl FnOnce(&mut [u8])) -> Result<()> {
        let inode = self.inode(number)?;
        let extents = inode.raw().flags().contains(InodeFlags::EXTENTS);
        let seed = inode.raw().seed(&self.geometry, number);
        let tail = self.geometry.tail(if extents { Tailed::ExtentNode } else { Tailed::Indirect });
        self.edit_block(block, |bytes| {
            edit(bytes);
            // a block without space for a checksum has none
            let _ = tail.set_checksum(bytes, FsBlock(block), seed);
        })
    }

    // directories

    pub(crate) fn entries(&self, dir: InodeNo) -> Result<Vec<Named>> {
        let inode = self.inode(dir)?;
        let indexed = inode.raw().flags().contains(InodeFlags::INDEX);
        let mut found = Vec::new();
        for (file_block, block) in self.map(&inode.raw())?.data {
            let bytes = self.block(block)?;
            let index = indexed && htree::count_limit_offset(&bytes, self.geometry.block_size).is_some();
            // an index root has only its first two names, a node none
            let end = match (index, file_block) {
                (false, _) => usize::MAX,
                (true, 0) => 24,
                (true, _) => 0,
            };
            self.chain(&bytes, (file_block, block), end, &mut found);
        }
        Ok(found)
    }

    /// The entries of a block that is not an index block.
    pub(crate) fn names_in(&self, block: u64) -> Result<Vec<Named>> {
        let bytes = self.block(block)?;
        let mut found = Vec::new();
        self.chain(&bytes, (0, block), usize::MAX, &mut found);
        found.retain(|e| e.inode.get() != 0 && e.name != b"." && e.name != b"..");
        Ok(found)
    }

    fn chain(&self, bytes: &[u8], (file_block, block): (u64, u64), end: usize, found: &mut Vec<Named>) {
        let mut offset = 0;
        while let Some((head, rest)) = bytes.get(offset..).and_then(|rest| DirEntry::ref_from_prefix(rest).ok()) {
            let len = decode_rec_len(head.rec_len.get(), self.geometry.block_size) as usize;
            if len < 12 || offset >= end {
                break;
            }
            let name = rest.get(..usize::from(head.name_len)).unwrap_or_default().to_vec();
            let inode = InodeNo(head.inode.get());
            found.push(Named { file_block, block, offset, len, inode, name });
            offset += len;
        }
    }

    /// A random entry of `dir` for which `fits` is true, other than ".", ".." and lost+found.
    pub(crate) fn entry(&mut self, dir: InodeNo, fits: impl Fn(&Named) -> bool) -> Result<Named> {
        let all = self.entries(dir)?;
        let all: Vec<_> = all
            .into_iter()
            .filter(|e| e.inode.get() != 0 && e.name != b"." && e.name != b".." && e.name != b"lost+found" && fits(e))
            .collect();
        self.rng.choice(&all).cloned().ok_or(Error::Unfit("the directory has no such entry"))
    }

    /// Changes a leaf block of a directory, with its checksum.
    pub(crate) fn edit_leaf(&mut self, dir: InodeNo, block: u64, edit: impl FnOnce(&mut [u8])) -> Result<()> {
        let seed = self.inode(dir)?.raw().seed(&self.geometry, dir);
        let (tail, size) = (self.geometry.leaf_tail(), self.geometry.block_size);
        self.edit_block(block, |bytes| {
            edit(bytes);
            let _ = match htree::count_limit_offset(bytes, size) {
                Some(_) if tail != format::dir::LeafTail::None && !tail.ends(bytes) => {
                    htree::write_index_checksum(bytes, size, seed)
                }
                _ => tail.set_checksum(bytes, seed),
            };
        })
    }

    /// Changes an index block of a directory, with its checksum.
    pub(crate) fn edit_index(&mut self, dir: InodeNo, block: u64, edit: impl FnOnce(&mut [u8])) -> Result<()> {
        let seed = self.inode(dir)?.raw().seed(&self.geometry, dir);
        let (sums, size) = (self.geometry.metadata_csum, self.geometry.block_size);
        self.edit_block(block, |bytes| {
            edit(bytes);
            if sums {
                let _ = htree::write_index_checksum(bytes, size, seed);
            }
        })
    }

    /// The block of the volume that contains this block of a file.
    pub(crate) fn block_of(&self, number: InodeNo, file_block: u64) -> Result<u64> {
        let map = self.map_of(number)?;
        let found = map.data.into_iter().find(|(at, _)| *at == file_block);
        found.map(|(_, block)| block).ok_or(Error::Unfit("the file has no such block"))
    }

    /// The name of a file: the directory and the entry.
    pub(crate) fn name_of(&self, number: InodeNo) -> Result<(InodeNo, Named)> {
        let dirs =
            self.all_inodes(|_, _, raw| raw.kind() == Some(FileKind::Directory) && raw.disk.i_links_count.get() != 0)?;
        for dir in dirs {
            let named = self.entries(dir)?.into_iter().find(|e| e.inode == number && e.name != b"." && e.name != b"..");
            if let Some(named) = named {
                return Ok((dir, named));
            }
        }
        Err(Error::Unfit("the file has no name"))
    }
}

pub(crate) fn bit(bits: &[u8], n: usize) -> bool {
    bits.get(n / 8).is_some_and(|byte| byte >> (n % 8) & 1 == 1)
}

pub(crate) fn set_bit(bits: &mut [u8], n: usize, on: bool) {
    if let Some(byte) = bits.get_mut(n / 8) {
        *byte = if on { *byte | 1 << (n % 8) } else { *byte & !(1 << (n % 8)) };
    }
}

/// Writes a number of 2 or 4 bytes.
pub(crate) fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(place) = bytes.get_mut(at..at + value.len()) {
        place.copy_from_slice(value);
    }
}
