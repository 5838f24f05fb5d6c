//! Writing the blocks of a log: descriptor, revoke and commit blocks, and the checksums over them.
//!
//! The other half of [`LogFormat`] reads these blocks.

use super::log::{Checksums, LogFormat, TagFlags};
use super::superblock::CRC32C;
use super::{
    BlockType, Compat, DiskBlockTail, DiskCommit, DiskHeader, DiskRevoke, DiskSuperblock, DiskTag, DiskTag3, Incompat,
    MAGIC, crc32_be,
};
use crate::FsBlock;
use crate::checksum::crc32c;
use std::time::Duration;
use zerocopy::IntoBytes;
use zerocopy::big_endian::U32;

/// Bytes of the UUID after the first tag.
const UUID: usize = 16;

/// A block to be written to the log.
#[derive(Debug, Clone, Copy)]
pub struct LoggedBlock<'a> {
    /// Its home on the volume.
    pub home: FsBlock,
    /// Whether its first four bytes are the magic number, which is replaced by zeros in `data`.
    pub escaped: bool,
    /// The bytes as logged.
    pub data: &'a [u8],
}

/// Whether a block begins with the journal's magic number, which must be replaced by zeros in the log.
#[must_use]
pub fn needs_escape(data: &[u8]) -> bool {
    data.starts_with(&MAGIC.to_be_bytes())
}

fn put(block: &mut [u8], at: usize, bytes: &[u8]) {
    block[at..at + bytes.len()].copy_from_slice(bytes);
}

fn header(block_type: BlockType, sequence: u32) -> DiskHeader {
    let number: u32 = match block_type {
        BlockType::Descriptor => 1,
        BlockType::Commit => 2,
        BlockType::SuperblockV1 => 3,
        BlockType::SuperblockV2 => 4,
        BlockType::Revoke => 5,
    };
    DiskHeader { h_magic: MAGIC.into(), h_blocktype: number.into(), h_sequence: sequence.into() }
}

impl DiskSuperblock {
    /// Sets the features, and the checksum algorithm where they need one. The checksum must be set afterwards.
    pub fn set_features(&mut self, compat: Compat, incompat: Incompat) {
        self.s_feature_compat = compat.bits().into();
        self.s_feature_incompat = incompat.bits().into();
        let summed = incompat.intersects(Incompat::CSUM_V2 | Incompat::CSUM_V3);
        self.s_checksum_type = if summed { CRC32C } else { 0 };
    }
}

impl LogFormat {
    fn tail_size(&self) -> usize {
        if self.sums_blocks() { DiskBlockTail::SIZE } else { 0 }
    }

    /// Maximum number of blocks of one descriptor block.
    #[must_use]
    pub fn tags_per_block(&self) -> usize {
        (self.block_size as usize - DiskHeader::SIZE - UUID - self.tail_size()) / self.tag_size()
    }

    /// Maximum number of blocks in one revoke block.
    #[must_use]
    pub fn revokes_per_block(&self) -> usize {
        (self.block_size as usize - DiskRevoke::SIZE - self.tail_size()) / self.revoke_size()
    }

    fn revoke_size(&self) -> usize {
        if self.wide { 8 } else { 4 }
    }

    /// The descriptor block of transaction `sequence` for the blocks that follow it in the log, with the journal's
    /// `uuid` after its first tag.
    ///
    /// # Panics
    /// For more blocks than [`Self::tags_per_block`].
    #[must_use]
    pub fn descriptor(&self, sequence: u32, uuid: &[u8; 16], blocks: &[LoggedBlock<'_>]) -> Vec<u8> {
        assert!(blocks.len() <= self.tags_per_block(), "{} tags for one block", blocks.len());
        let mut out = vec![0; self.block_size as usize];
        put(&mut out, 0, header(BlockType::Descriptor, sequence).as_bytes());
        let mut at = DiskHeader::SIZE;
        let start = crc32c(self.seed, &sequence.to_be_bytes());
        for (number, block) in blocks.iter().enumerate() {
            let mut flags = TagFlags::empty();
            flags.set(TagFlags::ESCAPE, block.escaped);
            flags.set(TagFlags::SAME_UUID, number > 0);
            flags.set(TagFlags::LAST_TAG, number + 1 == blocks.len());
            let checksum = if self.sums_blocks() { crc32c(start, block.data) } else { 0 };
            let (low, high) = (block.home.get() as u32, (block.home.get() >> 32) as u32);
            if self.checksums == Checksums::V3 {
                let tag = DiskTag3 {
                    t_blocknr: low.into(),
                    t_flags: flags.bits().into(),
                    t_blocknr_high: high.into(),
                    t_checksum: checksum.into(),
                };
                put(&mut out, at, tag.as_bytes());
            } else {
                let tag = DiskTag {
                    t_blocknr: low.into(),
                    t_checksum: (checksum as u16).into(), // the low half, as version 2 has it
                    t_flags: (flags.bits() as u16).into(), // four bits
                    t_blocknr_high: high.into(),
                };
                let used = if self.wide { DiskTag::SIZE } else { DiskTag::SIZE - 4 };
                put(&mut out, at, &tag.as_bytes()[..used]);
            }
            at += self.tag_size();
            if number == 0 {
                put(&mut out, at, uuid);
                at += UUID;
            }
        }
        self.set_tail_checksum(&mut out);
        out
    }

    /// A revoke block of transaction `sequence`: copies of `blocks` in it and in all earlier transactions must not be
    /// replayed.
    ///
    /// # Panics
    /// For more blocks than [`Self::revokes_per_block`].
    #[must_use]
    pub fn revoke(&self, sequence: u32, blocks: &[FsBlock]) -> Vec<u8> {
        assert!(blocks.len() <= self.revokes_per_block(), "{} revoked blocks in one", blocks.len());
        let mut out = vec![0; self.block_size as usize];
        let size = self.revoke_size();
        let used = DiskRevoke::SIZE + blocks.len() * size;
        let head = DiskRevoke { r_header: header(BlockType::Revoke, sequence), r_count: (used as u32).into() };
        put(&mut out, 0, head.as_bytes());
        for (number, block) in blocks.iter().enumerate() {
            put(&mut out, DiskRevoke::SIZE + number * size, &block.get().to_be_bytes()[8 - size..]);
        }
        self.set_tail_checksum(&mut out);
        out
    }

    /// The commit block of transaction `sequence`, written `time` after the beginning of 1970. `transaction` is the
    /// result of [`Self::sum_transaction`] for all its descriptor blocks and the blocks they describe, in order.
    #[must_use]
    pub fn commit(&self, sequence: u32, time: Duration, transaction: u32) -> Vec<u8> {
        let v1 = self.checksums == Checksums::V1;
        let mut commit = DiskCommit {
            h_header: header(BlockType::Commit, sequence),
            h_chksum_type: u8::from(v1),
            h_chksum_size: if v1 { 4 } else { 0 },
            h_padding: [0; 2],
            h_chksum: [U32::ZERO; 8],
            h_commit_sec: time.as_secs().into(),
            h_commit_nsec: time.subsec_nanos().into(),
        };
        let mut out = vec![0; self.block_size as usize];
        put(&mut out, 0, commit.as_bytes());
        commit.h_chksum[0] = match self.checksums {
            Checksums::None => 0,
            Checksums::V1 => transaction,
            Checksums::V2 | Checksums::V3 => crc32c(self.seed, &out),
        }
        .into();
        put(&mut out, 0, commit.as_bytes());
        out
    }

    /// The checksum of a transaction for its commit block under the first scheme, continued over one more block; begins
    /// with `!0`. Unchanged under the other schemes.
    #[must_use]
    pub fn sum_transaction(&self, sum: u32, block: &[u8]) -> u32 {
        if self.sums_transactions() { crc32_be(sum, block) } else { sum }
    }

    fn set_tail_checksum(&self, block: &mut [u8]) {
        if self.sums_blocks() {
            let sum = crc32c(self.seed, block); // the field is zero still
            let at = block.len() - DiskBlockTail::SIZE;
            put(block, at, &sum.to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jbd2::Header;

    fn forms() -> impl Iterator<Item = LogFormat> {
        [Checksums::None, Checksums::V1, Checksums::V2, Checksums::V3].into_iter().flat_map(|checksums| {
            [(1024, false), (1024, true), (4096, true)].map(|(block_size, wide)| LogFormat {
                block_size,
                wide,
                async_commit: false,
                checksums,
                seed: 7,
            })
        })
    }

    #[test]
    fn a_full_descriptor_is_read_back() {
        for format in forms() {
            let count = format.tags_per_block();
            let data: Vec<Vec<u8>> = (0..count).map(|n| vec![n as u8; format.block_size as usize]).collect();
            let wide = if format.wide { 7 << 32 } else { 0 };
            let blocks: Vec<_> = data
                .iter()
                .enumerate()
                .map(|(n, data)| LoggedBlock { home: FsBlock(wide + 5 * n as u64), escaped: n % 3 == 1, data })
                .collect();
            let descriptor = format.descriptor(9, &[0xAA; 16], &blocks);
            assert_eq!(
                Header::parse(&descriptor).map(|h| (h.block_type, h.sequence)),
                Some((Some(BlockType::Descriptor), 9))
            );
            assert!(format.tail_matches(&descriptor));
            let tags: Vec<_> = format.tags(&descriptor).collect();
            assert_eq!(tags.len(), count, "{format:?}");
            for (tag, block) in tags.iter().zip(&blocks) {
                assert_eq!(tag.home, block.home);
                assert_eq!(tag.flags.contains(TagFlags::ESCAPE), block.escaped);
                assert!(format.data_matches(tag, 9, block.data));
                assert_eq!(format.data_matches(tag, 10, block.data), !format.sums_blocks());
            }
            // one more would not fit
            assert!(
                DiskHeader::SIZE + UUID + (count + 1) * format.tag_size() + format.tail_size()
                    > format.block_size as usize
            );
        }
    }

    #[test]
    fn a_full_revoke_block_is_read_back() {
        for format in forms() {
            let wide = if format.wide { 1 << 40 } else { 0 };
            let blocks: Vec<_> = (0..format.revokes_per_block() as u64).map(|n| FsBlock(wide + n)).collect();
            let block = format.revoke(3, &blocks);
            assert!(format.tail_matches(&block));
            assert_eq!(format.revoked(&block).unwrap().collect::<Vec<_>>(), blocks);
        }
    }

    #[test]
    fn a_commit_block_is_read_back() {
        for format in forms() {
            let sum = format.sum_transaction(format.sum_transaction(!0, b"one"), b"two");
            let mut block = format.commit(3, Duration::new(77, 5), sum);
            assert!(format.commit_matches(&block, crc32_be(!0, b"onetwo")), "{format:?}");
            assert_eq!(format.commit_seconds(&block), 77);
            assert_eq!(format.commit_matches(&block, 1), !format.sums_transactions());
            block[0x37] ^= 1;
            assert_eq!(format.commit_matches(&block, sum), !format.sums_blocks());
        }
    }

    #[test]
    fn the_magic_number_is_escaped() {
        assert!(needs_escape(&[0xC0, 0x3B, 0x39, 0x98, 1]));
        assert!(!needs_escape(&[0xC0, 0x3B, 0x39]) && !needs_escape(&[0; 8]));
    }
}
