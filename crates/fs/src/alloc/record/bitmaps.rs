//! Block bitmaps: one block for each group, as in ext2, ext3 and ext4, and in formats above a map.

use super::contract::{FreeSpaceRecord, LoadError};
use crate::alloc::system_zones::SystemZones;
use format::group::{Group, GroupFlags, bitmap_checksum};
use format::superblock::Geometry;
use format::{FsBlock, GroupNo, InodeNo};
use space::{ContainerMap, Run};
use std::ops::Range;
use std::sync::Arc;
use store::{Closing, Kind, Operation, Store, Tag};

const TAG: Tag = Tag::new(Kind::BlockBitmap, InodeNo(0));

/// The block bitmaps of a volume.
pub(crate) struct BlockBitmaps {
    geometry: Geometry,
    system_zones: Arc<SystemZones>,
}

impl BlockBitmaps {
    /// The block bitmaps of a volume with these system zones.
    pub(crate) fn new(geometry: &Geometry, system_zones: &Arc<SystemZones>) -> Self {
        Self { geometry: geometry.clone(), system_zones: Arc::clone(system_zones) }
    }

    /// Clusters of a group used by the volume's own structures, ascending and disjoint.
    fn own(&self, blocks: &Range<u64>) -> impl Iterator<Item = Run> {
        let (start, size) = (blocks.start, u64::from(self.geometry.cluster_blocks));
        let mut from = 0;
        self.system_zones.within(blocks.clone()).filter_map(move |zone| {
            // two structures can share a cluster
            let first = ((zone.start - start) / size).max(from);
            from = (zone.end - start).div_ceil(size).max(from);
            (first < from).then(|| Run { start: first as u32, len: (from - first) as u32 })
        })
    }

    /// Number of clusters of a group.
    fn units(&self, group: GroupNo) -> u32 {
        let blocks = self.geometry.group_blocks(group);
        (blocks.end - blocks.start).div_ceil(u64::from(self.geometry.cluster_blocks)) as u32
    }

    /// The free space of a group whose bitmap was never written.
    fn first(&self, group: GroupNo, descriptor: &Group) -> Result<ContainerMap, &'static str> {
        let blocks = self.geometry.group_blocks(group);
        let mut free = ContainerMap::new(self.units(group));
        if !self.own(&blocks).all(|zone| free.allocate(zone)) {
            return Err("its own structures overlap");
        }
        if free.free_units() != descriptor.free_clusters {
            return Err("its count of free blocks contradicts BLOCK_UNINIT");
        }
        Ok(free)
    }

    /// The free space in a bitmap, if it is consistent.
    fn accept(&self, group: GroupNo, descriptor: &Group, bytes: &[u8]) -> Result<ContainerMap, &'static str> {
        let geometry = &self.geometry;
        if !check_bitmap(geometry, bytes, geometry.clusters_per_group(), descriptor.block_bitmap_csum) {
            return Err("the checksum of its block bitmap does not match");
        }
        let blocks = geometry.group_blocks(group);
        let free = ContainerMap::from_bytes(bytes, self.units(group));
        if free.free_units() != descriptor.free_clusters {
            return Err("its block bitmap and its count of free blocks contradict each other");
        }
        if !self.own(&blocks).all(|zone| free.is_used(zone)) {
            return Err("its block bitmap shows blocks of the system zone as free");
        }
        Ok(free)
    }
}

impl FreeSpaceRecord for BlockBitmaps {
    fn load(&self, store: &Store, group: GroupNo, descriptor: &Group) -> Result<ContainerMap, LoadError> {
        let geometry = &self.geometry;
        let has_flags = geometry.metadata_csum || geometry.gdt_csum;
        let free = if has_flags && descriptor.flags.contains(GroupFlags::BLOCK_UNINIT) {
            self.first(group, descriptor)
        } else {
            let bytes = store.block(descriptor.block_bitmap).map_err(LoadError::read)?;
            self.accept(group, descriptor, &bytes)
        };
        free.map_err(LoadError::Corrupt)
    }

    fn announce(&self, op: &Operation<'_>, _: GroupNo, descriptor: &Group, free: &ContainerMap) {
        op.replace(descriptor.block_bitmap, TAG, |bytes| free.write(bytes));
    }

    fn announce_closing(&self, closing: &Closing<'_>, descriptor: &Group) {
        closing.replace(descriptor.block_bitmap, TAG, |_| ());
    }

    fn write(&self, closing: &Closing<'_>, _: GroupNo, descriptor: &mut Group, free: &ContainerMap) {
        let bits = self.geometry.clusters_per_group();
        descriptor.block_bitmap_csum =
            write_bitmap(closing, &self.geometry, (descriptor.block_bitmap, TAG), bits, free);
    }

    fn closing_credits(&self) -> usize {
        // every bitmap is announced
        0
    }
}

/// Whether the checksum of a bitmap of `bits` bits matches the one stored in its group's descriptor.
pub(crate) fn check_bitmap(geometry: &Geometry, bytes: &[u8], bits: u32, stored: u32) -> bool {
    !geometry.metadata_csum || bitmap_checksum(geometry, bytes, bits) == stored
}

/// Writes a bitmap into the closing generation; returns its checksum, 0 on volumes without checksums.
pub(crate) fn write_bitmap(
    closing: &Closing<'_>,
    geometry: &Geometry,
    (block, tag): (FsBlock, Tag),
    bits: u32,
    free: &ContainerMap,
) -> u32 {
    closing.replace(block, tag, |bytes| {
        free.write(bytes);
        if geometry.metadata_csum { bitmap_checksum(geometry, bytes, bits) } else { 0 }
    })
}
