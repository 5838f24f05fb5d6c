//! Group descriptors, of 32 or 64 bytes.

use crate::checksum::{crc16, crc32c};
use crate::superblock::{DiskSuperblock, Geometry};
use crate::{FsBlock, GroupNo};
use bitflags::bitflags;
use std::ops::Range;
use zerocopy::FromBytes;
use zerocopy::little_endian::{U16, U32};

disk_struct! {
    /// A group descriptor of 64 bytes (`ext4_group_desc`). One of 32 bytes is its first half.
    pub struct DiskGroup[64] {
        /// block bitmap's block, low half
        0x00 bg_block_bitmap_lo: U32,
        /// inode bitmap's block, low half
        0x04 bg_inode_bitmap_lo: U32,
        /// inode table's first block, low half
        0x08 bg_inode_table_lo: U32,
        /// free clusters, low half
        0x0C bg_free_blocks_count_lo: U16,
        /// free inodes, low half
        0x0E bg_free_inodes_count_lo: U16,
        /// directories, low half
        0x10 bg_used_dirs_count_lo: U16,
        /// [`GroupFlags`]
        0x12 bg_flags: U16,
        /// snapshot exclusion bitmap, low half (unused); under regions [`Group::regions`], on a native volume
        /// [`Group::pinned`], low half
        0x14 bg_exclude_bitmap_lo: U32,
        /// checksum of the block bitmap, low half
        0x18 bg_block_bitmap_csum_lo: U16,
        /// checksum of the inode bitmap, low half
        0x1A bg_inode_bitmap_csum_lo: U16,
        /// inodes at the table's end that were never used, low half
        0x1C bg_itable_unused_lo: U16,
        /// checksum of this descriptor
        0x1E bg_checksum: U16,
        /// block bitmap's block, high half
        0x20 bg_block_bitmap_hi: U32,
        /// inode bitmap's block, high half
        0x24 bg_inode_bitmap_hi: U32,
        /// inode table's first block, high half
        0x28 bg_inode_table_hi: U32,
        /// free clusters, high half
        0x2C bg_free_blocks_count_hi: U16,
        /// free inodes, high half
        0x2E bg_free_inodes_count_hi: U16,
        /// directories, high half
        0x30 bg_used_dirs_count_hi: U16,
        /// never used inodes, high half
        0x32 bg_itable_unused_hi: U16,
        /// snapshot exclusion bitmap, high half (unused); under regions [`Group::regions`], on a native volume
        /// [`Group::pinned`], high half
        0x34 bg_exclude_bitmap_hi: U32,
        /// checksum of the block bitmap, high half
        0x38 bg_block_bitmap_csum_hi: U16,
        /// checksum of the inode bitmap, high half
        0x3A bg_inode_bitmap_csum_hi: U16,
        /// unused
        0x3C bg_reserved: U32,
    }
}

bitflags! {
    /// `bg_flags`
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct GroupFlags: u16 {
        /// the inode bitmap and table were never written; no inode is in use
        const INODE_UNINIT = 1;
        /// the block bitmap was never written; only the group's own metadata is in use
        const BLOCK_UNINIT = 2;
        /// the inode table was zeroed
        const INODE_ZEROED = 4;
    }
}

/// A group descriptor with its halves joined. Not validated: fields may have any values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group {
    /// The block of the block bitmap.
    pub block_bitmap: FsBlock,
    /// The block of the inode bitmap.
    pub inode_bitmap: FsBlock,
    /// The first block of the inode table.
    pub inode_table: FsBlock,
    /// Free clusters (blocks where there is no bigalloc).
    pub free_clusters: u32,
    /// Free inodes.
    pub free_inodes: u32,
    /// Directories.
    pub directories: u32,
    /// Inodes at the end of the table that were never used; meaningful only under a descriptor checksum.
    pub itable_unused: u32,
    /// Flags; unknown bits preserved.
    pub flags: GroupFlags,
    /// Under regions: the group's chunks that are metadata regions, bit n for chunk n, see [`Geometry::chunk_blocks`].
    /// Otherwise the block of the exclusion bitmap, which is preserved.
    pub regions: u64,
    /// Checksum of the block bitmap; 16 bits where descriptors have 32 bytes.
    pub block_bitmap_csum: u32,
    /// Checksum of the inode bitmap; 16 bits where descriptors have 32 bytes.
    pub inode_bitmap_csum: u32,
    /// Checksum of the descriptor.
    pub checksum: u16,
}

impl Group {
    /// Whether the bitmaps or the inode table have other locations in the descriptor `other`.
    #[must_use]
    pub fn is_elsewhere(&self, other: &Self) -> bool {
        let places = |group: &Self| (group.block_bitmap, group.inode_bitmap, group.inode_table);
        places(self) != places(other)
    }

    /// For a data group of a native volume: the number of blocks that are free in its bitmap and pinned by a snapshot.
    /// Stored in place of [`Group::regions`], which native volumes do not use.
    #[must_use]
    pub fn pinned(&self) -> u64 {
        self.regions
    }

    /// Sets [`Group::pinned`].
    pub fn set_pinned(&mut self, blocks: u64) {
        self.regions = blocks;
    }

    /// Joins the fields of a descriptor. `bytes` is one descriptor of the volume's descriptor size; the high halves are
    /// used only if that is 64 bytes or more. Input of less than 32 bytes reads as zeros.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut full = [0u8; DiskGroup::SIZE];
        let used = if bytes.len() >= DiskGroup::SIZE { DiskGroup::SIZE } else { bytes.len().min(32) };
        if let (Some(to), Some(from)) = (full.get_mut(..used), bytes.get(..used)) {
            to.copy_from_slice(from);
        }
        let Ok(d) = DiskGroup::read_from_bytes(&full) else { unreachable!("the array has the structure's size") };
        let wide = |lo: U32, hi: U32| u64::from(hi.get()) << 32 | u64::from(lo.get());
        let half = |lo: U16, hi: U16| u32::from(hi.get()) << 16 | u32::from(lo.get());
        Self {
            block_bitmap: FsBlock(wide(d.bg_block_bitmap_lo, d.bg_block_bitmap_hi)),
            inode_bitmap: FsBlock(wide(d.bg_inode_bitmap_lo, d.bg_inode_bitmap_hi)),
            inode_table: FsBlock(wide(d.bg_inode_table_lo, d.bg_inode_table_hi)),
            free_clusters: half(d.bg_free_blocks_count_lo, d.bg_free_blocks_count_hi),
            free_inodes: half(d.bg_free_inodes_count_lo, d.bg_free_inodes_count_hi),
            directories: half(d.bg_used_dirs_count_lo, d.bg_used_dirs_count_hi),
            itable_unused: half(d.bg_itable_unused_lo, d.bg_itable_unused_hi),
            flags: GroupFlags::from_bits_retain(d.bg_flags.get()),
            regions: wide(d.bg_exclude_bitmap_lo, d.bg_exclude_bitmap_hi),
            block_bitmap_csum: half(d.bg_block_bitmap_csum_lo, d.bg_block_bitmap_csum_hi),
            inode_bitmap_csum: half(d.bg_inode_bitmap_csum_lo, d.bg_inode_bitmap_csum_hi),
            checksum: d.bg_checksum.get(),
        }
    }

    /// Writes the fields, including the current checksum, into a descriptor of the volume's descriptor size. High
    /// halves are written only if there are 64 bytes; other bytes are preserved. Nothing is written to fewer than 32
    /// bytes.
    pub fn write(&self, bytes: &mut [u8]) {
        let mut full = [0u8; DiskGroup::SIZE];
        let used = if bytes.len() >= DiskGroup::SIZE { DiskGroup::SIZE } else { DiskGroup::SIZE / 2 };
        let (Some(space), Some(known)) = (bytes.get_mut(..used), full.get_mut(..used)) else { return };
        known.copy_from_slice(space);
        let Ok(d) = DiskGroup::mut_from_bytes(&mut full) else { unreachable!("the array has the structure's size") };
        let wide = |block: FsBlock| (U32::new(block.get() as u32), U32::new((block.get() >> 32) as u32));
        let half = |count: u32| (U16::new(count as u16), U16::new((count >> 16) as u16));
        (d.bg_block_bitmap_lo, d.bg_block_bitmap_hi) = wide(self.block_bitmap);
        (d.bg_inode_bitmap_lo, d.bg_inode_bitmap_hi) = wide(self.inode_bitmap);
        (d.bg_inode_table_lo, d.bg_inode_table_hi) = wide(self.inode_table);
        (d.bg_free_blocks_count_lo, d.bg_free_blocks_count_hi) = half(self.free_clusters);
        (d.bg_free_inodes_count_lo, d.bg_free_inodes_count_hi) = half(self.free_inodes);
        (d.bg_used_dirs_count_lo, d.bg_used_dirs_count_hi) = half(self.directories);
        (d.bg_itable_unused_lo, d.bg_itable_unused_hi) = half(self.itable_unused);
        d.bg_flags = self.flags.bits().into();
        (d.bg_exclude_bitmap_lo, d.bg_exclude_bitmap_hi) = wide(FsBlock(self.regions));
        (d.bg_block_bitmap_csum_lo, d.bg_block_bitmap_csum_hi) = half(self.block_bitmap_csum);
        (d.bg_inode_bitmap_csum_lo, d.bg_inode_bitmap_csum_hi) = half(self.inode_bitmap_csum);
        d.bg_checksum = self.checksum.into();
        space.copy_from_slice(&full[..used]);
    }

    /// Writes the fields as [`write`](Self::write), with the right checksum, which is also stored in
    /// [`checksum`](Self::checksum).
    pub fn set_checksum(&mut self, sb: &DiskSuperblock, geometry: &Geometry, group: GroupNo, bytes: &mut [u8]) {
        self.write(bytes);
        self.checksum = descriptor_checksum(sb, geometry, group, bytes);
        self.write(bytes);
    }
}

/// The right checksum of a group's descriptor: the low half of a CRC32C under metadata_csum, a CRC-16 under gdt_csum,
/// otherwise zero. Both cover the volume's identity, the group's number and the descriptor without its checksum.
#[must_use]
pub fn descriptor_checksum(sb: &DiskSuperblock, geometry: &Geometry, group: GroupNo, bytes: &[u8]) -> u16 {
    const AT: usize = 0x1E;
    let number = group.get().to_le_bytes();
    let (Some(head), tail) = (bytes.get(..AT), bytes.get(AT + 2..).unwrap_or_default()) else { return 0 };
    if geometry.metadata_csum {
        let crc = crc32c(geometry.checksum_seed, &number);
        let crc = crc32c(crc, head);
        let crc = crc32c(crc, &[0, 0]);
        crc32c(crc, tail) as u16
    } else if geometry.gdt_csum {
        let crc = crc16(!0, &sb.s_uuid);
        let crc = crc16(crc, &number);
        let crc = crc16(crc, head);
        // descriptors of 32 bytes end here; the high half is included only under 64bit
        if geometry.wide_descriptors { crc16(crc, tail) } else { crc }
    } else {
        0
    }
}

/// The checksum of a bitmap of `bits` entries, under metadata_csum. 16 bits where descriptors have 32 bytes.
#[must_use]
pub fn bitmap_checksum(geometry: &Geometry, bitmap: &[u8], bits: u32) -> u32 {
    let bytes = (bits as usize / 8).min(bitmap.len());
    let crc = crc32c(geometry.checksum_seed, bitmap.get(..bytes).unwrap_or_default());
    if geometry.descriptor_size >= DiskGroup::SIZE as u32 { crc } else { crc & 0xFFFF }
}

/// The runs of set bits, in ascending order, as half-open ranges.
pub fn mask_runs(mask: u64) -> impl Iterator<Item = Range<u32>> + Clone {
    let mut at = 0;
    std::iter::from_fn(move || {
        let rest = mask.checked_shr(at).filter(|rest| *rest != 0)?;
        let start = at + rest.trailing_zeros();
        at = start + (mask >> start).trailing_ones();
        Some(start..at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::volume;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(bytes in proptest::collection::vec(any::<u8>(), 64), wide: bool, number: u32) {
            let length = if wide { 64 } else { 32 };
            let group = Group::from_bytes(&bytes[..length]);
            let mut same = bytes.clone();
            group.write(&mut same[..length]);
            prop_assert_eq!(&same, &bytes);

            let sb = volume();
            let mut written = vec![0; length];
            let mut group = group;
            group.set_checksum(&sb.disk, &sb.geometry, GroupNo(number), &mut written);
            prop_assert_eq!(Group::from_bytes(&written), group);
            let right = descriptor_checksum(&sb.disk, &sb.geometry, GroupNo(number), &written);
            prop_assert_eq!(group.checksum, right);
        }
    }

    #[test]
    fn runs_of_bits() {
        let runs = |mask| mask_runs(mask).map(|run| (run.start, run.end)).collect::<Vec<_>>();
        assert_eq!(runs(0), []);
        assert_eq!(runs(!0), [(0, 64)]);
        assert_eq!(runs(1 | 1 << 63), [(0, 1), (63, 64)]);
        assert_eq!(runs(0b0111_0110 << 40), [(41, 43), (44, 47)]);
    }

    #[test]
    fn too_short_a_place_is_left_alone() {
        let mut bytes = [7; 31];
        Group::from_bytes(&[0; 64]).write(&mut bytes);
        assert_eq!(bytes, [7; 31]);
    }
}
