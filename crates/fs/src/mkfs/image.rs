//! The image of a new volume: its bytes and their locations.

use super::error::{Result, refuse};
use super::files::{self, Content};
use super::physical_layer::PhysicalLayer;
use super::plan::{RESERVED_INODES, VolumePlan};
use super::used::{Used, clusters};
use super::{MkfsOptions, space_maps, tables};
use format::feature::{Compat, Features};
use format::group::{Group, GroupFlags, bitmap_checksum};
use format::inode::InodeBuf;
use format::space_map::SpaceMaps;
use format::superblock::{Geometry, Superblock};
use format::{FsBlock, GroupNo, InodeNo};
use std::fmt;
use std::ops::Range;
use zerocopy::IntoBytes;

/// A warning about a volume that differs from the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Warning {
    /// The volume is too small to have a journal.
    NoJournal,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Warning::NoJournal => "the volume is too small for a journal and is created without one",
        })
    }
}

/// The complete description of a volume to be created, in every byte.
#[derive(Debug, Clone)]
pub struct VolumeImage {
    superblock: Superblock,
    groups: Vec<Group>,
    used: Used,
    content: Content,
    warnings: Vec<Warning>,
    pub(super) options: MkfsOptions,
    /// The layer beneath the volume.
    pub(super) layer: PhysicalLayer,
    /// Set if free space is recorded in space maps.
    pub(super) maps: Option<SpaceMaps>,
}

impl VolumeImage {
    /// Plans a volume on a device of `device_len` bytes with sectors of `sector` bytes.
    ///
    /// # Errors
    /// [`super::Error::Options`] if the options exclude each other, or are not possible on such a device.
    pub fn new(device_len: u64, sector: u32, options: &MkfsOptions) -> Result<Self> {
        let mut plan = VolumePlan::new(device_len, sector, options)?;
        let geometry = plan.geometry.clone();
        let maps = plan.maps(options);
        let (mut groups, mut used, maps) = plan.layer.place(&geometry, maps, options)?;
        if let Some(maps) = &maps {
            plan.disk.x_map_start = maps.table().start.into();
        }
        let mut regions: Vec<Range<u64>> = plan.layer.metadata_blocks().into_iter().collect();
        if geometry.has_regions() {
            let blocks = region_blocks(&geometry, options)?;
            tables::place_regions(&geometry, &used, &mut groups, u64::from(blocks));
            plan.disk.x_region_blocks = blocks.into();
            let each = geometry.group_numbers().zip(&groups);
            regions.extend(each.flat_map(|(number, group)| geometry.region_blocks(number, group.regions)));
        }
        let metadata = clusters(&geometry, &used, 0..geometry.blocks) + u64::from(geometry.first_data_block);
        let mut content = files::make(&mut plan, &mut used, regions, options)?;
        let journal = u64::from(plan.journal_blocks).div_ceil(u64::from(geometry.cluster_blocks));
        plan.disk.s_overhead_blocks = u32::try_from(metadata + journal).unwrap_or(0).into();
        for (number, inode) in &mut content.inodes {
            inode.set_checksum(&geometry, *number);
        }
        let (superblock, groups) = count(plan.clone(), groups, &used, (&content, maps.is_some()), options)?;
        let VolumePlan { warnings, layer, .. } = plan;
        Ok(Self { superblock, groups, used, content, warnings, options: options.clone(), layer, maps })
    }

    /// The superblock that the volume will have.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// The name of the resulting type.
    #[must_use]
    pub fn format_name(&self) -> &'static str {
        self.options.kind.name_with(&self.features())
    }

    /// Blocks of the device used by the volume.
    #[must_use]
    pub fn device_blocks(&self) -> u64 {
        self.layer.device_blocks(&self.superblock.geometry)
    }

    /// Unused blocks among those of [`VolumeImage::device_blocks`].
    #[must_use]
    pub fn free_blocks(&self) -> u64 {
        self.layer.free_blocks(&self.superblock, &self.used)
    }

    /// Warnings for the user.
    #[must_use]
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// Groups that will contain a backup of the superblock.
    pub fn backups(&self) -> impl Iterator<Item = GroupNo> + '_ {
        self.superblock.geometry.backup_groups()
    }

    /// Blocks of the journal, 0 for none; includes the fast-commit area.
    #[must_use]
    pub fn journal_blocks(&self) -> u64 {
        self.content.journal.iter().map(|run| run.end - run.start).sum()
    }

    /// The nonzero blocks of space maps, as runs; none on volumes with block bitmaps.
    pub(super) fn map_runs(&self) -> Vec<(FsBlock, Vec<u8>)> {
        self.maps.as_ref().map_or_else(Vec::new, |maps| space_maps::content(maps, &self.used, &self.groups))
    }

    pub(super) fn groups(&self) -> &[Group] {
        &self.groups
    }

    pub(super) fn content(&self) -> &Content {
        &self.content
    }

    /// The descriptors of all groups, padded to whole blocks.
    pub(super) fn descriptors(&self) -> Vec<u8> {
        let geometry = &self.superblock.geometry;
        let size = geometry.descriptor_size as usize;
        let per_block = geometry.descriptors_per_block() as usize;
        let mut bytes = vec![0; geometry.descriptor_blocks as usize * geometry.block_size as usize];
        for (n, group) in self.groups.iter().enumerate() {
            let at = n / per_block * geometry.block_size as usize + n % per_block * size;
            group.write(&mut bytes[at..at + size]);
        }
        bytes
    }

    /// The block bitmap of a group, a whole block; bits behind the group's last cluster are set.
    pub(super) fn block_bitmap(&self, group: GroupNo) -> Vec<u8> {
        block_bitmap(&self.superblock.geometry, &self.used, group)
    }

    /// The inode bitmap of a group, a whole block; bits behind the group's last inode are set.
    pub(super) fn inode_bitmap(&self, group: GroupNo) -> Vec<u8> {
        inode_bitmap(&self.superblock.geometry, &self.content, group)
    }

    /// The blocks of inode tables that contain an inode in use, each whole.
    pub(super) fn inode_blocks(&self) -> Vec<(FsBlock, Vec<u8>)> {
        let geometry = &self.superblock.geometry;
        let mut blocks: Vec<(FsBlock, Vec<u8>)> = Vec::new();
        for (number, inode) in &self.content.inodes {
            let Some(slot) = geometry.inode_slot(*number) else { continue };
            let table = self.groups[slot.group.get() as usize].inode_table;
            let at = FsBlock(table.get() + u64::from(slot.table_block));
            let place = blocks.iter().position(|(block, _)| *block == at).unwrap_or_else(|| {
                blocks.push((at, vec![0; geometry.block_size as usize]));
                blocks.len() - 1
            });
            let start = slot.offset as usize;
            blocks[place].1[start..start + inode.bytes().len()].copy_from_slice(inode.bytes());
        }
        blocks
    }
}

/// Blocks of a group's initial metadata region.
fn region_blocks(geometry: &Geometry, options: &MkfsOptions) -> Result<u32> {
    let Some(bytes) = options.region_bytes else { return Ok(geometry.chunk_blocks()) };
    match u32::try_from(bytes.div_ceil(u64::from(geometry.block_size))) {
        Ok(blocks) if (1..=geometry.blocks_per_group / 2).contains(&blocks) => Ok(blocks),
        _ => refuse(format!(
            "region={bytes}: use a size from one block to half a group ({} bytes)",
            u64::from(geometry.blocks_per_group / 2) * u64::from(geometry.block_size)
        )),
    }
}

/// Sets the counts of used and free space and the checksums, and validates the superblock.
fn count(
    mut plan: VolumePlan,
    mut groups: Vec<Group>,
    used: &Used,
    (content, has_maps): (&Content, bool),
    options: &MkfsOptions,
) -> Result<(Superblock, Vec<Group>)> {
    let geometry = plan.geometry.clone();
    let summed = geometry.metadata_csum || geometry.gdt_csum;
    let (mut free_blocks, mut free_inodes) = (0, 0);
    for (number, group) in geometry.group_numbers().zip(&mut groups) {
        let blocks = geometry.group_blocks(number);
        let whole = (blocks.end - blocks.start).div_ceil(u64::from(geometry.cluster_blocks));
        group.free_clusters = (whole - clusters(&geometry, used, blocks)) as u32;
        let inodes = inodes_in(&geometry, content, number);
        group.free_inodes = geometry.inodes_per_group - inodes;
        group.directories = content
            .inodes
            .iter()
            .filter(|(inode, buf)| is_directory(buf) && geometry.inode_slot(*inode).is_some_and(|s| s.group == number))
            .count() as u32;
        free_blocks += u64::from(group.free_clusters);
        free_inodes += u64::from(group.free_inodes);
        if summed {
            // inodes are allocated from the front
            group.itable_unused = group.free_inodes;
            group.flags.set(GroupFlags::INODE_UNINIT, inodes == 0);
            group.flags.set(GroupFlags::INODE_ZEROED, !options.lazy_inode_tables);
            let last = number.get() + 1 == geometry.groups;
            let untouched = !last && inodes == 0 && contains_only_itself(&geometry, used, number, group);
            group.flags.set(GroupFlags::BLOCK_UNINIT, untouched && !has_maps);
        }
        if geometry.metadata_csum {
            if !group.flags.contains(GroupFlags::BLOCK_UNINIT) && !has_maps {
                let bitmap = block_bitmap(&geometry, used, number);
                group.block_bitmap_csum = bitmap_checksum(&geometry, &bitmap, geometry.clusters_per_group());
            }
            if !group.flags.contains(GroupFlags::INODE_UNINIT) {
                let bitmap = inode_bitmap(&geometry, content, number);
                group.inode_bitmap_csum = bitmap_checksum(&geometry, &bitmap, geometry.inodes_per_group);
            }
        }
        if has_maps {
            // only the space maps record free space
            group.free_clusters = 0;
        }
        if summed {
            let mut bytes = vec![0; geometry.descriptor_size as usize];
            group.set_checksum(&plan.disk, &geometry, number, &mut bytes);
        }
    }
    plan.disk.set_free_blocks_count(free_blocks * u64::from(geometry.cluster_blocks));
    // fits: the number of inodes has 32 bits
    plan.disk.s_free_inodes_count = (free_inodes as u32).into();
    plan.disk.set_features(plan.features);
    plan.disk.set_checksum();
    match Superblock::parse(plan.disk.as_bytes()) {
        Ok(superblock) => Ok((superblock, groups)),
        Err(e) => refuse(format!("a volume with these options is invalid: {e}")),
    }
}

fn is_directory(inode: &InodeBuf) -> bool {
    inode.kind() == Some(format::inode::FileKind::Directory)
}

/// Whether only the group's own metadata is in use, so that its bitmap can be derived from its descriptor.
fn contains_only_itself(geometry: &Geometry, used: &Used, number: GroupNo, group: &Group) -> bool {
    let blocks = geometry.group_blocks(number);
    let head = geometry.group_head(number);
    let table = group.inode_table.get();
    let own = [
        group.block_bitmap.get()..group.block_bitmap.get() + 1,
        group.inode_bitmap.get()..group.inode_bitmap.get() + 1,
        table..table + u64::from(geometry.itable_blocks),
    ];
    let inside = |run: Range<u64>| run.end.min(blocks.end).saturating_sub(run.start.max(blocks.start));
    let expected = (head.end - head.start) + own.into_iter().map(inside).sum::<u64>();
    used.inside(blocks.clone()).map(|run| run.end - run.start).sum::<u64>() == expected
}

fn block_bitmap(geometry: &Geometry, used: &Used, group: GroupNo) -> Vec<u8> {
    let mut bitmap = vec![0; geometry.block_size as usize];
    let blocks = geometry.group_blocks(group);
    let ratio = u64::from(geometry.cluster_blocks);
    for run in used.inside(blocks.clone()) {
        set_bits(&mut bitmap, (run.start - blocks.start) / ratio..(run.end - blocks.start).div_ceil(ratio));
    }
    let whole = (blocks.end - blocks.start).div_ceil(ratio);
    let bits = bitmap.len() as u64 * 8;
    set_bits(&mut bitmap, whole..bits);
    bitmap
}

fn inode_bitmap(geometry: &Geometry, content: &Content, group: GroupNo) -> Vec<u8> {
    let mut bitmap = vec![0; geometry.block_size as usize];
    set_bits(&mut bitmap, 0..u64::from(inodes_in(geometry, content, group)));
    let bits = bitmap.len() as u64 * 8;
    set_bits(&mut bitmap, u64::from(geometry.inodes_per_group)..bits);
    bitmap
}

/// Number of inodes of the group up to the last one that is in use or reserved.
fn inodes_in(geometry: &Geometry, content: &Content, group: GroupNo) -> u32 {
    let last = content.last_inode.max(RESERVED_INODES);
    let first = u64::from(group.get()) * u64::from(geometry.inodes_per_group);
    u64::from(last).saturating_sub(first).min(u64::from(geometry.inodes_per_group)) as u32
}

fn set_bits(bitmap: &mut [u8], bits: Range<u64>) {
    let mut bit = bits.start;
    while bit < bits.end {
        let byte = (bit / 8) as usize;
        if bit.is_multiple_of(8) && bit + 8 <= bits.end {
            let whole = ((bits.end - bit) / 8) as usize;
            bitmap[byte..byte + whole].fill(0xFF);
            bit += whole as u64 * 8;
        } else {
            bitmap[byte] |= 1 << (bit % 8);
            bit += 1;
        }
    }
}

impl VolumeImage {
    /// The features of the volume.
    #[must_use]
    pub fn features(&self) -> Features {
        self.superblock.features
    }

    /// Whether the volume will have a journal.
    #[must_use]
    pub fn has_journal(&self) -> bool {
        self.features().compat.contains(Compat::HAS_JOURNAL)
    }

    /// The content of an inode that is in use, or reserved with a checksum.
    #[must_use]
    pub fn inode(&self, number: InodeNo) -> Option<&InodeBuf> {
        self.content.inodes.iter().find(|(other, _)| *other == number).map(|(_, inode)| inode)
    }
}
