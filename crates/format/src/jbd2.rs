//! The journal (jbd2): the blocks of its log and the checksums over them.
//!
//! Everything in the journal is big-endian, except fast commits, which are ext4's own and little-endian.
//!
//! A journal is a superblock followed by a log that wraps around. A transaction in the log is one or more *descriptor
//! blocks*, each followed by the blocks its tags describe, then *revoke blocks* in any place, then a *commit block*.
//! All have the transaction's sequence number, and the log ends at a block without the next number.

mod checksum;
pub mod fast_commit;
mod log;
mod superblock;
mod write;

pub use checksum::crc32_be;
pub use log::{LogFormat, Revoked, Tag, TagFlags, Tags};
pub use superblock::{Compat, DiskSuperblock, Incompat, JournalSuperblock, SuperblockProblem};
pub use write::{LoggedBlock, needs_escape};

use zerocopy::FromBytes;
use zerocopy::big_endian::{U16, U32, U64};

/// `h_magic`: the first four bytes of every block that belongs to the journal itself.
pub const MAGIC: u32 = 0xC03B_3998;

/// The type of a block of the journal (`h_blocktype`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BlockType {
    /// 1: tags, followed by the blocks that they describe.
    Descriptor,
    /// 2: the transaction is complete.
    Commit,
    /// 3: superblock without features.
    SuperblockV1,
    /// 4: superblock with features.
    SuperblockV2,
    /// 5: blocks whose earlier copies must not be replayed.
    Revoke,
}

impl BlockType {
    /// The type for a number in `h_blocktype`, or `None` for an undefined number.
    pub const fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            1 => Self::Descriptor,
            2 => Self::Commit,
            3 => Self::SuperblockV1,
            4 => Self::SuperblockV2,
            5 => Self::Revoke,
            _ => return None,
        })
    }
}

disk_struct! {
    /// The head of every block of the journal (`journal_header_t`).
    pub struct DiskHeader[12] {
        /// 0xC03B3998
        0x00 h_magic: U32,
        /// [`BlockType`](crate::jbd2::BlockType)
        0x04 h_blocktype: U32,
        /// the transaction's sequence number
        0x08 h_sequence: U32,
    }
}

disk_struct! {
    /// A tag of a descriptor block, before version 3 of the checksums (`journal_block_tag_t`).
    ///
    /// Without the feature 64BIT it ends before `t_blocknr_high`; with CSUM_V2 two unused bytes follow. Where
    /// SAME_UUID is not set, the 16 bytes of a UUID come after it.
    pub struct DiskTag[12] {
        /// home block, low half
        0x00 t_blocknr: U32,
        /// CSUM_V2: low half of the checksum over the sequence number and the block as logged
        0x04 t_checksum: U16,
        /// [`TagFlags`](crate::jbd2::TagFlags)
        0x06 t_flags: U16,
        /// home block, high half (64BIT)
        0x08 t_blocknr_high: U32,
    }
}

disk_struct! {
    /// A tag of a descriptor block with version 3 of the checksums (`journal_block_tag3_t`). Always whole.
    pub struct DiskTag3[16] {
        /// home block, low half
        0x00 t_blocknr: U32,
        /// [`TagFlags`](crate::jbd2::TagFlags)
        0x04 t_flags: U32,
        /// home block, high half (64BIT)
        0x08 t_blocknr_high: U32,
        /// checksum over the sequence number and the block as logged
        0x0C t_checksum: U32,
    }
}

disk_struct! {
    /// The end of a descriptor or revoke block with CSUM_V2 or CSUM_V3 (`jbd2_journal_block_tail`).
    pub struct DiskBlockTail[4] {
        /// checksum over the block with this field zero
        0x00 t_checksum: U32,
    }
}

disk_struct! {
    /// A commit block (`commit_header`); the rest of the block is zero.
    pub struct DiskCommit[60] {
        /// magic, 2, sequence number
        0x00 h_header: DiskHeader,
        /// 1 with the feature CHECKSUM (CRC-32); not used by CSUM_V2 and CSUM_V3
        0x0C h_chksum_type: u8,
        /// 4 with the feature CHECKSUM: bytes in the checksum
        0x0D h_chksum_size: u8,
        /// unused
        0x0E h_padding: [u8; 2],
        /// the first is the checksum; the others are unused
        0x10 h_chksum: [U32; 8],
        /// when the transaction was committed, seconds
        0x30 h_commit_sec: U64,
        /// when the transaction was committed, nanoseconds
        0x38 h_commit_nsec: U32,
    }
}

disk_struct! {
    /// The start of a revoke block (`jbd2_journal_revoke_header_t`); block numbers of 4 or, with 64BIT, 8 bytes follow.
    pub struct DiskRevoke[16] {
        /// magic, 5, sequence number
        0x00 r_header: DiskHeader,
        /// bytes used in the block, this header included
        0x0C r_count: U32,
    }
}

/// The header of a block that belongs to the journal itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The type of the block; `None` where the type number has no meaning.
    pub block_type: Option<BlockType>,
    /// The transaction's sequence number.
    pub sequence: u32,
}

impl Header {
    /// Reads the header; `None` where the magic number is missing or the block has less than 12 bytes.
    pub fn parse(block: &[u8]) -> Option<Self> {
        let (header, _) = DiskHeader::read_from_prefix(block).ok()?;
        (header.h_magic == MAGIC).then(|| Self {
            block_type: BlockType::from_number(header.h_blocktype.get()),
            sequence: header.h_sequence.get(),
        })
    }
}

/// Whether `a` is later than `b`. Sequence numbers wrap around, so only their difference is compared.
pub const fn later(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_numbers_wrap() {
        assert!(later(2, 1));
        assert!(!later(1, 1));
        assert!(later(1, u32::MAX));
        assert!(!later(u32::MAX, 1));
    }

    #[test]
    fn a_header_needs_the_magic_number() {
        let block = [0xC0, 0x3B, 0x39, 0x98, 0, 0, 0, 2, 0, 0, 1, 0];
        assert_eq!(Header::parse(&block), Some(Header { block_type: Some(BlockType::Commit), sequence: 256 }));
        assert_eq!(Header::parse(&block[..11]), None);
        let mut other = block;
        other[0] = 0;
        assert_eq!(Header::parse(&other), None);
        other = block;
        other[7] = 9;
        assert_eq!(Header::parse(&other).map(|h| h.block_type), Some(None));
    }
}
