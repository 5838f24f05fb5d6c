//! The list of linked writes: the planned changes to an ext2 volume, stored as the content of inode 5.
//!
//! The list is one run of blocks in three areas: two *slots*, which are written alternately, and a *redo area* for the
//! repair after a crash ([`Areas`]). A slot describes one generation of changes by records, 16 to 20 bytes each, and by
//! copies of the changed sectors of directories and attributes. It is valid as a whole or not at all: one checksum
//! covers it.
//!
//! The inode is the unit of atomicity: its slot in the inode table is within one sector, so that the device has its
//! state before or after the generation, and a checksum shows which. Pointers in indirect blocks and bits of bitmaps
//! follow it.

mod redo;
mod slot;

pub use redo::{DiskListRedo, REDO_MAGIC, Redo};
pub use slot::{Copied, Slot};

use crate::checksum::crc32c;
use crate::superblock::DiskSuperblock;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32, U64};

/// The inode with the list.
pub const INODE: crate::InodeNo = crate::InodeNo(5);
/// `ll_magic`: "Link" in ASCII.
pub const MAGIC: u32 = 0x6B6E_694C;
/// Bytes in a sector: the unit that is copied, and that a device writes atomically.
pub const SECTOR: usize = 512;
/// Maximum inode size with linked writes: a larger inode is not within a sector.
pub const INODE_SIZE_MAX: u32 = 512;
/// Smallest list in bytes.
pub const LEAST: u64 = 128 << 10;
/// Largest list in bytes.
pub const MOST: u64 = 16 << 20;

disk_struct! {
    /// The start of a slot of the list.
    pub struct DiskListSlot[128] {
        /// 0x6B6E694C
        0x00 ll_magic: U32,
        /// CRC32C of the slot's `ll_length` bytes, this field as 0
        0x04 ll_checksum: U32,
        /// the volume's `s_uuid`
        0x08 ll_uuid: [u8; 16],
        /// number of the slot, one more than the previous one; even in the first area, odd in the second
        0x18 ll_counter: U64,
        /// bytes of the slot in use, this header included
        0x20 ll_length: U32,
        /// 1: incomplete; 2: the changes of the previous slot were durable when this one was written
        0x24 ll_flags: U32,
        /// bytes in a block of the volume
        0x28 ll_block_size: U32,
        /// bytes in an inode of the volume
        0x2C ll_inode_size: U32,
        /// CRC32C of the superblock's mount count, mount time and last check before the mount
        0x30 ll_mount_before: U32,
        /// the same after the mount
        0x34 ll_mount_after: U32,
        /// `s_last_orphan` after the generation
        0x38 ll_last_orphan: U32,
        /// `s_feature_compat` after the generation
        0x3C ll_compat: U32,
        /// `s_feature_ro_compat` after the generation
        0x40 ll_ro_compat: U32,
        /// the volume's free blocks before the generation
        0x44 ll_free_blocks: U32,
        /// the volume's free inodes before the generation
        0x48 ll_free_inodes: U32,
        /// inodes that follow
        0x4C ll_inodes: U32,
        /// ranges of pointers that follow
        0x50 ll_pointers: U32,
        /// runs of blocks that follow
        0x54 ll_runs: U32,
        /// groups that follow
        0x58 ll_groups: U32,
        /// fresh blocks that follow
        0x5C ll_fresh: U32,
        /// whole inodes that follow, as many as inodes have flag 8
        0x60 ll_whole: U32,
        /// copies of sectors that follow
        0x64 ll_copies: U32,
        /// 0
        0x68 ll_reserved: [U32; 6],
    }
}

disk_struct! {
    /// An inode that the generation changed.
    pub struct DiskListInode[20] {
        /// its number
        0x00 li_number: U32,
        /// CRC32C of its slot in the inode table before
        0x04 li_before: U32,
        /// CRC32C of its slot after
        0x08 li_after: U32,
        /// `i_dtime` after: of an orphan, the next one
        0x0C li_dtime: U32,
        /// links after
        0x10 li_links: U16,
        /// 1 new, 2 freed, 4 directory, 8 its slot follows among the whole ones
        0x12 li_flags: U16,
    }
}

disk_struct! {
    /// Adjacent pointers that the generation changed in an existing indirect block.
    pub struct DiskListPointers[20] {
        /// the indirect block
        0x00 lp_block: U32,
        /// the inode that it belongs to
        0x04 lp_owner: U32,
        /// the first pointer
        0x08 lp_index: U16,
        /// how many
        0x0A lp_count: U16,
        /// the first one's value before, each next one is one more; 0 if all were 0
        0x0C lp_before: U32,
        /// the same after
        0x10 lp_after: U32,
    }
}

disk_struct! {
    /// Adjacent blocks that the generation allocated or freed.
    pub struct DiskListRun[16] {
        /// the inode they belong to
        0x00 lr_owner: U32,
        /// the first
        0x04 lr_first: U32,
        /// how many
        0x08 lr_count: U32,
        /// 1 allocated, 0 freed
        0x0C lr_allocated: U32,
    }
}

disk_struct! {
    /// A group that the generation changed.
    pub struct DiskListGroup[16] {
        /// its number
        0x00 lg_number: U32,
        /// free blocks before
        0x04 lg_free_blocks: U32,
        /// free inodes before
        0x08 lg_free_inodes: U32,
        /// directories before
        0x0C lg_directories: U32,
    }
}

disk_struct! {
    /// A metadata block that the generation allocated. It is written with the slot, which is valid only with it.
    pub struct DiskListFresh[12] {
        /// the block
        0x00 lf_block: U32,
        /// CRC32C of its content
        0x04 lf_checksum: U32,
        /// 1 of a directory, 0 other
        0x08 lf_kind: U32,
    }
}

disk_struct! {
    /// A changed sector of an existing block; its new content, 512 bytes, follows.
    pub struct DiskListCopy[16] {
        /// the block
        0x00 lc_block: U32,
        /// the sector within the block
        0x04 lc_sector: U16,
        /// 1 of a directory, 2 of extended attributes
        0x06 lc_kind: U16,
        /// CRC32C of the sector before
        0x08 lc_before: U32,
        /// CRC32C of the sector after
        0x0C lc_after: U32,
    }
}

/// `ll_flags`: the slot does not describe all changes of its generation.
pub const INCOMPLETE: u32 = 1;
/// `ll_flags`: the changes of the previous slot were durable when this one was written.
pub const PREVIOUS_DURABLE: u32 = 2;
/// `li_flags`: the inode was free before.
pub const NEW: u16 = 1;
/// `li_flags`: the inode is free after.
pub const FREED: u16 = 2;
/// `li_flags`: the inode is, or was, a directory.
pub const DIRECTORY: u16 = 4;
/// `li_flags`: the inode's slot in the inode table after the generation is among the whole ones.
pub const WHOLE: u16 = 8;
/// `lf_kind`, `lc_kind`: a block of directory entries.
pub const KIND_DIRECTORY: u16 = 1;
/// `lc_kind`: a block of extended attributes.
pub const KIND_ATTRIBUTES: u16 = 2;

/// The areas of a list, in bytes from its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Areas {
    /// Bytes in each of the two slots, which are at the start, one after the other.
    pub slot: u64,
    /// Bytes in the redo area after them.
    pub redo: u64,
}

impl Areas {
    /// The areas of a list of `len` bytes on a volume with blocks of `block_size`: each slot is a quarter of it. `None`
    /// for an invalid size.
    #[must_use]
    pub fn of(len: u64, block_size: u32) -> Option<Self> {
        let block = u64::from(block_size);
        if !(LEAST..=MOST).contains(&len) || !block.is_power_of_two() || !len.is_multiple_of(block) {
            return None;
        }
        let slot = len / 4 / block * block;
        (slot > 0).then_some(Self { slot, redo: len - 2 * slot })
    }

    /// Total bytes of both slots and the redo area.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "none is")]
    pub const fn len(&self) -> u64 {
        2 * self.slot + self.redo
    }

    /// The byte offset of the slot with a counter.
    #[must_use]
    pub const fn slot_at(&self, counter: u64) -> u64 {
        (counter & 1) * self.slot
    }

    /// The byte offset of the redo area.
    #[must_use]
    pub const fn redo_at(&self) -> u64 {
        2 * self.slot
    }
}

/// The checksum that distinguishes one mount of a volume from another, over mount count, mount time and last check of
/// its superblock.
#[must_use]
pub fn mount_sum(superblock: &DiskSuperblock) -> u32 {
    let sum = crc32c(!0, superblock.s_mnt_count.as_bytes());
    let sum = crc32c(sum, superblock.s_mtime.as_bytes());
    crc32c(sum, superblock.s_lastcheck.as_bytes())
}

/// The checksum of a sector, a block or an inode's slot, as used in the list.
#[must_use]
pub fn sum(bytes: &[u8]) -> u32 {
    crc32c(!0, bytes)
}

/// Whether the first sector of an area was written by linked writes for this volume, even if the area is torn.
#[must_use]
pub fn is_ours(sector: &[u8], uuid: &[u8; 16]) -> bool {
    sector.get(..4) == Some(MAGIC.to_le_bytes().as_slice()) && sector.get(8..24) == Some(uuid.as_slice())
}

#[cfg(test)]
mod tests;
