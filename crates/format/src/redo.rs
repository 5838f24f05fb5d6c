//! The redo log of a repair: the new content of blocks, stored in free blocks, with a pointer in the superblock.
//!
//! Only Extant's checker reads it: the pointer is in unused words of the superblock, and the log in free blocks.

use crate::checksum::crc32c;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

/// `rp_magic`: "Redo" in ASCII.
pub const POINTER_MAGIC: u32 = 0x6F64_6552;
/// `ri_magic`: "Rlog" in ASCII.
pub const INDEX_MAGIC: u32 = 0x676F_6C52;
/// The offset of the pointer in the superblock: the last words that are reserved, in its second sector.
pub const POINTER_AT: usize = 0x3DC;
/// `re_home` of the superblock's own 1 024 bytes.
pub const SUPERBLOCK: u64 = u64::MAX;

disk_struct! {
    /// The pointer to the redo log of an unfinished repair, at byte 0x3DC of the superblock.
    pub struct DiskRedoPointer[32] {
        /// 0x6F646552
        0x00 rp_magic: U32,
        /// bytes in a block of the log
        0x04 rp_block_size: U32,
        /// first block of the log
        0x08 rp_block: U64,
        /// CRC32C of the superblock's first 512 bytes while the repair is written
        0x10 rp_before: U32,
        /// CRC32C of the superblock's first 512 bytes after the repair
        0x14 rp_after: U32,
        /// CRC32C of the log's first block
        0x18 rp_index: U32,
        /// CRC32C of the 28 bytes before
        0x1C rp_checksum: U32,
    }
}

disk_struct! {
    /// The start of an index block of a redo log.
    pub struct DiskRedoIndex[24] {
        /// 0x676F6C52
        0x00 ri_magic: U32,
        /// entries that follow
        0x04 ri_count: U32,
        /// the next index block; 0 in the last one
        0x08 ri_next: U64,
        /// CRC32C of the next index block; 0 in the last one
        0x10 ri_next_checksum: U32,
        /// 0
        0x14 ri_reserved: U32,
    }
}

disk_struct! {
    /// An entry of an index block: a block's new content and its home location.
    pub struct DiskRedoEntry[24] {
        /// the home block; all ones for the superblock's 1 024 bytes
        0x00 re_home: U64,
        /// the block of the log with the content
        0x08 re_copy: U64,
        /// CRC32C of that block
        0x10 re_checksum: U32,
        /// 0
        0x14 re_reserved: U32,
    }
}

impl DiskRedoPointer {
    /// The pointer in a superblock's 1 024 bytes, if there is one with a right checksum.
    #[must_use]
    pub fn of(superblock: &[u8]) -> Option<Self> {
        let (pointer, _) = Self::read_from_prefix(superblock.get(POINTER_AT..)?).ok()?;
        (pointer.rp_magic.get() == POINTER_MAGIC && pointer.rp_checksum.get() == pointer.checksum()).then_some(pointer)
    }

    /// Computes the checksum; the last step before the bytes go to the device.
    pub fn set_checksum(&mut self) {
        self.rp_checksum = self.checksum().into();
    }

    fn checksum(&self) -> u32 {
        let bytes = self.as_bytes();
        crc32c(!0, bytes.get(..Self::SIZE - 4).unwrap_or_default())
    }
}

impl DiskRedoIndex {
    /// Capacity in entries of an index block of `bytes` bytes.
    #[must_use]
    pub fn capacity(block_size: usize) -> usize {
        block_size.saturating_sub(Self::SIZE) / DiskRedoEntry::SIZE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_is_found_only_whole() {
        let mut superblock = [7u8; 1024];
        assert!(DiskRedoPointer::of(&superblock).is_none());
        let mut pointer = DiskRedoPointer {
            rp_magic: POINTER_MAGIC.into(),
            rp_block_size: 4096.into(),
            rp_block: 77.into(),
            rp_before: 1.into(),
            rp_after: 2.into(),
            rp_index: 3.into(),
            rp_checksum: 0.into(),
        };
        pointer.set_checksum();
        superblock[POINTER_AT..POINTER_AT + DiskRedoPointer::SIZE].copy_from_slice(pointer.as_bytes());
        assert_eq!(DiskRedoPointer::of(&superblock), Some(pointer));
        // in the second sector, and before the superblock's own checksum
        const { assert!(POINTER_AT >= 512 && POINTER_AT + DiskRedoPointer::SIZE == 0x3FC) };
        superblock[POINTER_AT + 8] ^= 1;
        assert!(DiskRedoPointer::of(&superblock).is_none());
    }
}
