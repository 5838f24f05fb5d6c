//! The locations of the structures of a consistent volume, and the computation of their checksums after changes.

use crate::error::Result;
use crate::native::{Map, View};
use crate::volume::Volume;
use format::feature::{Compat, Incompat, RoCompat};
use format::group::{Group, GroupFlags, bitmap_checksum, descriptor_checksum};
use format::inode::{FileKind, InodeFlags, RawInode, set_slot_checksum};
use format::mmp::DiskMmp;
use format::native::BLOCK_SIZE;
use format::native::map::Position;
use format::superblock::{self, DiskSuperblock, Geometry};
use format::tail::Tailed;
use format::{FsBlock, GroupNo, InodeNo, htree, jbd2, orphan, xattr};
use std::collections::HashMap;
use std::ops::Range;
use zerocopy::{FromBytes, IntoBytes};

/// Maximum number of journal blocks that are listed.
const JOURNAL: usize = 200;

/// A kind of structure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum What {
    Superblock,
    Descriptor(GroupNo),
    BlockBitmap(GroupNo),
    InodeBitmap(GroupNo),
    Inode(InodeNo),
    /// A block of a directory with names.
    Names(InodeNo),
    /// A block of its hash tree.
    Index(InodeNo),
    Extents(InodeNo),
    Pointers,
    Link,
    Attributes,
    JournalSuperblock,
    Journal,
    Orphans(InodeNo),
    Quota,
    MultipleMount,
    /// A superblock of a native volume.
    NativeSuperblock,
    MapNode,
    ChunkTable,
    Snapshots,
}

/// A structure.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StructureRange {
    pub(crate) what: What,
    /// Its block of the volume, or the block that contains it.
    pub(crate) block: FsBlock,
    /// Its first byte on the device.
    pub(crate) at: usize,
    pub(crate) len: usize,
}

impl StructureRange {
    pub(crate) fn range(&self) -> Range<usize> {
        self.at..self.at + self.len
    }
}

/// The structures of a volume, found while it was consistent. After later changes their checksums can be corrected, so
/// that checksums do not reveal the changes.
#[derive(Debug)]
pub struct Structures {
    pub(crate) geometry: Geometry,
    pub(crate) list: Vec<StructureRange>,
    /// Inodes in use.
    pub(crate) inodes: Vec<InodeNo>,
    /// The location of each of them.
    slots: HashMap<InodeNo, usize>,
    map: Option<Map>,
}

impl Structures {
    /// The structures of the volume in `bytes`, the whole of a device, of any format of this project.
    ///
    /// # Errors
    /// [`crate::Error`] where the volume is damaged.
    pub fn of(bytes: &[u8]) -> Result<Self> {
        let map = Map::of(bytes)?;
        let view = View::new(bytes, map.as_ref());
        let volume = Volume::open(&view, 0)?;
        let mut list = List { volume: &volume, view: &view, found: Vec::new() };
        list.add_offset(What::Superblock, superblock::OFFSET, DiskSuperblock::SIZE);
        list.groups();
        let inodes = volume.all_inodes(|_, _, raw| raw.disk.i_mode.get() != 0 || raw.disk.i_links_count.get() != 0)?;
        let mut slots = HashMap::new();
        for &number in &inodes {
            if let Some(at) = list.inode(number)? {
                slots.insert(number, at);
            }
        }
        if volume.has_incompat(Incompat::MMP) {
            list.add_block(What::MultipleMount, volume.sb.s_mmp_block.get());
        }
        let mut list = list.found;
        if let Some(map) = &map {
            list.extend(of_map(map));
        }
        Ok(Self { geometry: volume.geometry.clone(), list, inodes, slots, map })
    }

    /// The bytes of all structures, ascending and disjoint.
    #[must_use]
    pub fn ranges(&self) -> Vec<Range<usize>> {
        let mut ranges: Vec<_> = self.list.iter().map(StructureRange::range).collect();
        ranges.sort_unstable_by_key(|range| range.start);
        let mut apart: Vec<Range<usize>> = Vec::new();
        for range in ranges {
            match apart.last_mut().filter(|last| range.start <= last.end) {
                Some(last) => last.end = last.end.max(range.end),
                None => apart.push(range),
            }
        }
        apart
    }

    /// Corrects the checksums of all structures; those outside `bytes` are skipped.
    pub fn set_checksum(&self, bytes: &mut [u8]) {
        let mut geometry = self.geometry.clone();
        let superblock = self.list.iter().find(|structure| structure.what == What::Superblock);
        let disk = superblock.and_then(|structure| DiskSuperblock::from_slice(bytes.get(structure.range())?));
        // the seed of all checksums may have changed
        if let Some(Ok(changed)) = disk.as_ref().map(Geometry::of) {
            geometry.checksum_seed = changed.checksum_seed;
        }
        // in an order in which each checksum covers only finished ones
        self.list.iter().for_each(|structure| self.set_block_checksum(structure, &geometry, bytes));
        if geometry.metadata_csum {
            for (&number, &at) in &self.slots {
                if let Some(slot) = bytes.get_mut(at..at + geometry.inode_size as usize) {
                    set_slot_checksum(slot, &geometry, number);
                }
            }
            self.set_bitmap_checksums(&geometry, bytes);
        }
        for structure in &self.list {
            let (What::Descriptor(group), Some(sb)) = (structure.what, &disk) else { continue };
            let Some(descriptor) = bytes.get_mut(structure.range()) else { continue };
            if geometry.metadata_csum || geometry.gdt_csum {
                let sum = descriptor_checksum(sb, &geometry, group, descriptor);
                descriptor[0x1E..0x20].copy_from_slice(&sum.to_le_bytes());
            }
        }
        if let (Some(mut disk), Some(structure)) = (disk, superblock) {
            disk.set_checksum();
            bytes[structure.range()].copy_from_slice(disk.as_bytes());
        }
        if let Some(map) = &self.map {
            map.set_checksum(bytes);
        }
    }

    fn set_block_checksum(&self, structure: &StructureRange, geometry: &Geometry, bytes: &mut [u8]) {
        let seed = |owner: InodeNo, bytes: &[u8]| {
            let slot = self.slots.get(&owner).and_then(|at| bytes.get(*at..at + geometry.inode_size as usize));
            slot.and_then(RawInode::from_slot).map(|raw| raw.seed(geometry, owner))
        };
        let (at, volume, sums) = (structure.block, geometry.checksum_seed, geometry.metadata_csum);
        let owner = match structure.what {
            What::Names(owner) | What::Index(owner) | What::Extents(owner) | What::Orphans(owner) => seed(owner, bytes),
            _ => Some(0),
        };
        let (Some(seed), Some(block)) = (owner, bytes.get_mut(structure.range())) else { return };
        // a block without space for a checksum has none
        let _ = match structure.what {
            What::Names(_) => geometry.tail(Tailed::Leaf).set_checksum(block, at, seed),
            What::Index(_) => geometry.tail(Tailed::Index).set_checksum(block, at, seed),
            What::Extents(_) => geometry.tail(Tailed::ExtentNode).set_checksum(block, at, seed),
            What::Pointers => geometry.tail(Tailed::Indirect).set_checksum(block, at, seed),
            What::Attributes if sums => xattr::write_block_checksum(block, at, volume),
            What::Orphans(_) if sums => set_orphan_checksums(block, at, seed),
            What::JournalSuperblock => {
                jbd2::DiskSuperblock::mut_from_prefix(block).ok().map(|(disk, _)| disk.set_checksum())
            }
            What::MultipleMount if sums => DiskMmp::mut_from_prefix(block).ok().map(|(disk, _)| {
                disk.mmp_checksum = disk.checksum(volume).into();
            }),
            _ => None,
        };
    }

    fn set_bitmap_checksums(&self, geometry: &Geometry, bytes: &mut [u8]) {
        let descriptors: HashMap<GroupNo, Range<usize>> = self
            .list
            .iter()
            .filter_map(|structure| match structure.what {
                What::Descriptor(group) => Some((group, structure.range())),
                _ => None,
            })
            .collect();
        for structure in &self.list {
            let (group, bits, low, high) = match structure.what {
                What::BlockBitmap(group) => (group, geometry.clusters_per_group(), 0x18, 0x38),
                What::InodeBitmap(group) => (group, geometry.inodes_per_group, 0x1A, 0x3A),
                _ => continue,
            };
            let Some(sum) = bytes.get(structure.range()).map(|bitmap| bitmap_checksum(geometry, bitmap, bits)) else {
                continue;
            };
            let Some(descriptor) = descriptors.get(&group).and_then(|range| bytes.get_mut(range.clone())) else {
                continue;
            };
            let sum = sum.to_le_bytes();
            descriptor[low..low + 2].copy_from_slice(&sum[..2]);
            if let Some(field) = descriptor.get_mut(high..high + 2) {
                field.copy_from_slice(&sum[2..]);
            }
        }
    }
}

/// Sets only the checksum, as the magic number may have been changed.
fn set_orphan_checksums(block: &mut [u8], at: FsBlock, seed: u32) -> Option<()> {
    let sum = orphan::checksum(block, at, seed);
    let field = block.last_chunk_mut::<4>()?;
    *field = sum.to_le_bytes();
    Some(())
}

/// The structures of a native volume in addition to those of its ext volume.
fn of_map(map: &Map) -> Vec<StructureRange> {
    let len = BLOCK_SIZE as usize;
    let structure = |what, at| StructureRange { what, block: FsBlock(0), at, len };
    let mut list = vec![structure(What::NativeSuperblock, map.superblock)];
    let nodes = map.nodes.iter().filter(|(position, _)| matches!(position, Position::Node { .. }));
    list.extend(nodes.map(|(_, mapped)| structure(What::MapNode, mapped.at)));
    for (what, range) in [(What::ChunkTable, map.layout.table()), (What::Snapshots, map.layout.list())] {
        list.extend(map.blocks.range(range).map(|(_, mapped)| structure(what, mapped.at)));
    }
    list
}

/// Lists the structures of a volume.
struct List<'v, 'd> {
    volume: &'v Volume<'d>,
    view: &'v View<'d>,
    found: Vec<StructureRange>,
}

impl List<'_, '_> {
    /// Adds the structure at a byte of the ext volume; nothing where the byte has no location on the device.
    fn add_offset(&mut self, what: What, offset: u64, len: usize) -> Option<usize> {
        let at = self.view.physical(offset)?;
        let block = FsBlock(offset / u64::from(self.volume.geometry.block_size));
        self.found.push(StructureRange { what, block, at, len });
        Some(at)
    }

    fn add_block(&mut self, what: What, block: u64) {
        if let Some(offset) = self.volume.geometry.byte_offset(FsBlock(block)) {
            self.add_offset(what, offset, self.volume.block_size());
        }
    }

    fn groups(&mut self) {
        let volume = self.volume;
        let sums = volume.geometry.metadata_csum || volume.geometry.gdt_csum;
        for (n, group) in (0u32..).map(GroupNo).zip(&volume.groups) {
            if let Some(offset) = volume.descriptor_offset(n, None) {
                self.add_offset(What::Descriptor(n), offset, volume.geometry.descriptor_size as usize);
            }
            let written = |group: &Group, flag| !(sums && group.flags.contains(flag));
            if written(group, GroupFlags::BLOCK_UNINIT) {
                self.add_block(What::BlockBitmap(n), group.block_bitmap.get());
            }
            if written(group, GroupFlags::INODE_UNINIT) {
                self.add_block(What::InodeBitmap(n), group.inode_bitmap.get());
            }
        }
    }

    /// Adds an inode and all its blocks; returns the inode's byte offset.
    fn inode(&mut self, number: InodeNo) -> Result<Option<usize>> {
        let volume = self.volume;
        let (inode, wide) = (volume.inode(number)?, volume.has_incompat(Incompat::BIT64));
        let raw = inode.raw();
        let at =
            self.add_offset(What::Inode(number), volume.inode_offset(number)?, volume.geometry.inode_size as usize);
        let attributes = raw.file_acl(wide).get();
        if attributes != 0 {
            self.add_block(What::Attributes, attributes);
        }
        let map = volume.map(&raw)?;
        let extents = raw.flags().contains(InodeFlags::EXTENTS);
        for (block, _) in &map.nodes {
            self.add_block(if extents { What::Extents(number) } else { What::Pointers }, *block);
        }
        match raw.kind() {
            Some(FileKind::Directory) => self.directory(number, raw.flags().contains(InodeFlags::INDEX), &map.data)?,
            Some(FileKind::Symlink) => map.data.iter().for_each(|(_, block)| self.add_block(What::Link, *block)),
            _ if self.is_journal(number) => self.journal(&map.data)?,
            _ if self.is_orphan_file(number) => {
                map.data.iter().for_each(|(_, block)| self.add_block(What::Orphans(number), *block));
            }
            _ if self.is_quota(number) => map.data.iter().for_each(|(_, block)| self.add_block(What::Quota, *block)),
            _ => {}
        }
        Ok(at)
    }

    fn is_journal(&self, number: InodeNo) -> bool {
        self.volume.has_compat(Compat::HAS_JOURNAL) && self.volume.sb.s_journal_inum.get() == number.get()
    }

    fn is_orphan_file(&self, number: InodeNo) -> bool {
        self.volume.has_compat(Compat::ORPHAN_FILE) && self.volume.sb.s_orphan_file_inum.get() == number.get()
    }

    fn is_quota(&self, number: InodeNo) -> bool {
        let sb = &self.volume.sb;
        let files = [&sb.s_usr_quota_inum, &sb.s_grp_quota_inum, &sb.s_prj_quota_inum];
        self.volume.has_ro(RoCompat::QUOTA) && files.iter().any(|file| file.get() == number.get())
    }

    fn directory(&mut self, number: InodeNo, indexed: bool, data: &[(u64, u64)]) -> Result<()> {
        let volume = self.volume;
        for (_, block) in data {
            let bytes = volume.block(*block)?;
            let index = indexed
                && htree::count_limit_offset(&bytes, volume.geometry.block_size).is_some()
                && !volume.geometry.leaf_tail().ends(&bytes);
            self.add_block(if index { What::Index(number) } else { What::Names(number) }, *block);
        }
        Ok(())
    }

    fn journal(&mut self, data: &[(u64, u64)]) -> Result<()> {
        for (n, (_, block)) in data.iter().enumerate().take(JOURNAL) {
            let bytes = self.volume.block(*block)?;
            if n == 0 {
                self.add_block(What::JournalSuperblock, *block);
            } else if bytes.starts_with(&jbd2::MAGIC.to_be_bytes()) {
                self.add_block(What::Journal, *block);
            }
        }
        Ok(())
    }
}
