//! Reading the blocks of a log: tags, revoked blocks, and the checksums over them.

use super::{DiskBlockTail, DiskCommit, DiskHeader, DiskRevoke, DiskTag, DiskTag3};
use crate::checksum::crc32c;
use crate::{Error, FsBlock, Result, Structure};
use bitflags::bitflags;
use std::mem::offset_of;
use zerocopy::FromBytes;
use zerocopy::big_endian::{U32, U64};

bitflags! {
    /// Flags of a tag (`t_flags`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct TagFlags: u32 {
        /// the block began with the journal's magic number, which was replaced by zero in the log
        const ESCAPE = 0x1;
        /// no UUID follows this tag
        const SAME_UUID = 0x2;
        /// the block was deleted by this transaction (never written)
        const DELETED = 0x4;
        /// the last tag of this descriptor block
        const LAST_TAG = 0x8;
    }
}

/// The checksum scheme of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Checksums {
    None,
    V1,
    V2,
    V3,
}

/// The format of the blocks of a log: sizes and checksum scheme. Returned by
/// [`JournalSuperblock::log`](super::JournalSuperblock::log).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFormat {
    pub(super) block_size: u32,
    pub(super) wide: bool,
    pub(super) async_commit: bool,
    pub(super) checksums: Checksums,
    /// CRC32C over the journal's UUID
    pub(super) seed: u32,
}

/// A tag: the next block of the log is a copy of block `home`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tag {
    /// The block's home on the volume; any number.
    pub home: FsBlock,
    /// Flags, unknown bits included.
    pub flags: TagFlags,
    checksum: u32,
}

impl LogFormat {
    /// Bytes in a block.
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Whether commit blocks may reach the device before the blocks they commit, so that a commit block with a wrong
    /// checksum is an ordinary end of the log.
    pub fn async_commit(&self) -> bool {
        self.async_commit
    }

    /// Whether commit blocks have a checksum over all the transaction's descriptor and data blocks: the first scheme,
    /// [`crc32_be`](super::crc32_be) from the seed `!0`.
    pub fn sums_transactions(&self) -> bool {
        self.checksums == Checksums::V1
    }

    pub(super) fn sums_blocks(&self) -> bool {
        matches!(self.checksums, Checksums::V2 | Checksums::V3)
    }

    /// Bytes in a tag, without the UUID that may follow.
    pub fn tag_size(&self) -> usize {
        let high = if self.wide { 4 } else { 0 };
        match self.checksums {
            Checksums::V3 => DiskTag3::SIZE,
            // two bytes more than needed: the format was already fixed when that was noticed
            Checksums::V2 => 10 + high,
            Checksums::V1 | Checksums::None => 8 + high,
        }
    }

    /// The tags of a descriptor block, in order. Ends at the flag LAST_TAG or where no further tag fits.
    pub fn tags<'a>(&self, descriptor: &'a [u8]) -> Tags<'a> {
        let end = descriptor.len().saturating_sub(if self.sums_blocks() { DiskBlockTail::SIZE } else { 0 });
        let rest = descriptor.get(DiskHeader::SIZE..end).unwrap_or_default();
        Tags { rest, size: self.tag_size(), wide: self.wide, v3: self.checksums == Checksums::V3 }
    }

    /// The block numbers in a revoke block; none, as in jbd2, where the count of used bytes is smaller than the header.
    ///
    /// # Errors
    /// `Corrupt` where the count of used bytes is more than the block has.
    pub fn revoked<'a>(&self, block: &'a [u8]) -> Result<Revoked<'a>> {
        let tail = if self.sums_blocks() { DiskBlockTail::SIZE } else { 0 };
        let size = if self.wide { 8 } else { 4 };
        DiskRevoke::read_from_prefix(block)
            .ok()
            .map(|(head, _)| head.r_count.get() as usize)
            .filter(|&used| used <= block.len().saturating_sub(tail))
            .and_then(|used| block.get(DiskRevoke::SIZE..used.max(DiskRevoke::SIZE)))
            .map(|records| Revoked { records: records.chunks_exact(size) })
            .ok_or_else(|| Error::corrupt(Structure::Journal, "count of a revoke block is larger than the block"))
    }

    /// Whether the checksum at the end of a descriptor or revoke block matches, or the log has none there.
    pub fn tail_matches(&self, block: &[u8]) -> bool {
        if !self.sums_blocks() {
            return true;
        }
        DiskBlockTail::read_from_suffix(block)
            .is_ok_and(|(rest, tail)| tail.t_checksum == crc32c(crc32c(self.seed, rest), &[0; DiskBlockTail::SIZE]))
    }

    /// Whether the checksum in a commit block matches, or the log has none there. `transaction` is the result of
    /// [`crc32_be`](super::crc32_be) for the transaction's descriptor and data blocks; only the first scheme
    /// ([`Self::sums_transactions`]) uses it.
    pub fn commit_matches(&self, block: &[u8], transaction: u32) -> bool {
        const AT: usize = offset_of!(DiskCommit, h_chksum);
        let Ok((commit, _)) = DiskCommit::read_from_prefix(block) else { return false };
        let stored = commit.h_chksum[0].get();
        match self.checksums {
            Checksums::None => true,
            Checksums::V1 => match (commit.h_chksum_type, commit.h_chksum_size, stored) {
                (1, 4, stored) => stored == transaction,
                // written before the feature was enabled
                (0, 0, 0) => true,
                _ => false,
            },
            Checksums::V2 | Checksums::V3 => {
                let sum = |rest: &[u8]| {
                    let before = crc32c(crc32c(self.seed, &block[..AT]), &[0; 4]);
                    crc32c(crc32c(before, &block[AT + 4..DiskCommit::SIZE]), rest)
                };
                let rest = &block[DiskCommit::SIZE..];
                // only its first sectors may have reached the device before a power failure: then the rest is old
                // content instead of zeros
                stored == sum(rest) || stored == sum(&vec![0; rest.len()])
            }
        }
    }

    /// Whether the tag's checksum matches the block as logged, or the log has none there.
    pub fn data_matches(&self, tag: &Tag, sequence: u32, data: &[u8]) -> bool {
        let computed = || crc32c(crc32c(self.seed, &sequence.to_be_bytes()), data);
        match self.checksums {
            Checksums::None | Checksums::V1 => true,
            Checksums::V2 => tag.checksum == computed() & 0xFFFF,
            Checksums::V3 => tag.checksum == computed(),
        }
    }

    /// The time of a commit block in seconds, not validated.
    pub fn commit_seconds(&self, block: &[u8]) -> u64 {
        DiskCommit::read_from_prefix(block).map_or(0, |(commit, _)| commit.h_commit_sec.get())
    }
}

/// The tags of a descriptor block; see [`LogFormat::tags`].
#[derive(Debug, Clone)]
pub struct Tags<'a> {
    rest: &'a [u8],
    size: usize,
    wide: bool,
    v3: bool,
}

impl Iterator for Tags<'_> {
    type Item = Tag;

    fn next(&mut self) -> Option<Tag> {
        let (raw, mut after) = self.rest.split_at_checked(self.size)?;
        let (low, high, flags, checksum) = if self.v3 {
            let tag = DiskTag3::read_from_bytes(raw).ok()?;
            (tag.t_blocknr, tag.t_blocknr_high, tag.t_flags.get(), tag.t_checksum.get())
        } else {
            // a tag without its high half is read with zero instead
            let mut whole = [0; DiskTag::SIZE];
            let have = raw.len().min(whole.len());
            whole[..have].copy_from_slice(&raw[..have]);
            let tag = DiskTag::read_from_bytes(&whole).ok()?;
            (tag.t_blocknr, tag.t_blocknr_high, tag.t_flags.get().into(), tag.t_checksum.get().into())
        };
        let high = if self.wide { high.get() } else { 0 };
        let flags = TagFlags::from_bits_retain(flags);
        if !flags.contains(TagFlags::SAME_UUID) {
            after = after.get(16..).unwrap_or_default();
        }
        self.rest = if flags.contains(TagFlags::LAST_TAG) { &[] } else { after };
        Some(Tag { home: FsBlock((u64::from(high) << 32) | u64::from(low.get())), flags, checksum })
    }
}

/// The block numbers in a revoke block; see [`LogFormat::revoked`].
#[derive(Debug, Clone)]
pub struct Revoked<'a> {
    records: std::slice::ChunksExact<'a, u8>,
}

impl Iterator for Revoked<'_> {
    type Item = FsBlock;

    fn next(&mut self) -> Option<FsBlock> {
        let record = self.records.next()?;
        let wide = || U64::read_from_bytes(record).ok().map(U64::get);
        let narrow = || U32::read_from_bytes(record).ok().map(|n| n.get().into());
        wide().or_else(narrow).map(FsBlock)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn format(checksums: Checksums, wide: bool) -> LogFormat {
        LogFormat { block_size: 1024, wide, async_commit: false, checksums, seed: 7 }
    }

    /// A descriptor block with two tags, the first followed by a UUID, in the format's own layout.
    fn descriptor(format: &LogFormat) -> Vec<u8> {
        let mut block = vec![0; DiskHeader::SIZE];
        for (home, flags) in [(0x1_0000_0005u64, TagFlags::ESCAPE), (9, TagFlags::SAME_UUID | TagFlags::LAST_TAG)] {
            let mut tag = (home as u32).to_be_bytes().to_vec();
            if format.checksums == Checksums::V3 {
                tag.extend(flags.bits().to_be_bytes());
            } else {
                tag.extend([0xAB, 0xCD, 0, flags.bits() as u8]);
            }
            tag.extend(((home >> 32) as u32).to_be_bytes());
            tag.resize(format.tag_size(), 0xEE);
            block.extend(tag);
            if !flags.contains(TagFlags::SAME_UUID) {
                block.extend([0x55; 16]);
            }
        }
        block.resize(1024, 0xFF);
        block
    }

    #[test]
    fn tags_of_every_form() {
        for (checksums, wide, size) in [
            (Checksums::None, false, 8),
            (Checksums::V1, true, 12),
            (Checksums::V2, false, 10),
            (Checksums::V2, true, 14),
            (Checksums::V3, false, 16),
            (Checksums::V3, true, 16),
        ] {
            let format = format(checksums, wide);
            assert_eq!(format.tag_size(), size);
            let tags: Vec<_> = format.tags(&descriptor(&format)).collect();
            let homes: Vec<_> = tags.iter().map(|t| t.home.get()).collect();
            assert_eq!(homes, [if wide { 0x1_0000_0005 } else { 5 }, 9], "{checksums:?} {wide}");
            assert_eq!(tags[0].flags, TagFlags::ESCAPE);
        }
    }

    #[test]
    fn tags_end_with_the_block() {
        // no LAST_TAG anywhere: as many as fit, none across the end
        let format = format(Checksums::V3, true);
        for len in [0, 11, 12, 27, 32, 60, 1024] {
            let mut block = vec![0; len];
            block.iter_mut().skip(19).step_by(16).for_each(|b| *b = TagFlags::SAME_UUID.bits() as u8);
            assert_eq!(format.tags(&block).count(), len.saturating_sub(16) / 16, "{len}");
        }
    }

    #[test]
    fn revoke_records() {
        let mut block = vec![0; 64];
        block[15] = 16 + 8;
        block[23] = 3;
        let narrow = format(Checksums::None, false);
        assert_eq!(narrow.revoked(&block).unwrap().collect::<Vec<_>>(), [FsBlock(0), FsBlock(3)]);
        let wide = format(Checksums::V3, true);
        assert_eq!(wide.revoked(&block).unwrap().collect::<Vec<_>>(), [FsBlock(3)]);
        for (used, fits) in [(0, true), (15, true), (16, true), (60, true), (61, false), (255, false)] {
            block[15] = used;
            assert_eq!(wide.revoked(&block).is_ok(), fits, "{used}");
            assert!(used > 16 || wide.revoked(&block).unwrap().next().is_none(), "{used}");
        }
        assert!(wide.revoked(&[]).is_err());
    }

    #[test]
    fn a_changed_byte_breaks_every_checksum() {
        let format = format(Checksums::V3, true);
        let mut block = descriptor(&format);
        let sum = crc32c(crc32c(7, &block[..1020]), &[0; 4]);
        block[1020..].copy_from_slice(&sum.to_be_bytes());
        assert!(format.tail_matches(&block));
        block[500] ^= 1;
        assert!(!format.tail_matches(&block));
        assert!(!format.tail_matches(&[1, 2]));

        let mut commit = vec![0; 1024];
        let sum = crc32c(7, &commit);
        commit[16..20].copy_from_slice(&sum.to_be_bytes());
        assert!(format.commit_matches(&commit, 0));
        commit[1023] = 1;
        assert!(format.commit_matches(&commit, 0), "cut behind its first sector");
        commit[59] = 1;
        assert!(!format.commit_matches(&commit, 0));

        let sum = crc32c(crc32c(7, &5u32.to_be_bytes()), &block);
        let tag = Tag { home: FsBlock(1), flags: TagFlags::empty(), checksum: sum };
        assert!(format.data_matches(&tag, 5, &block));
        assert!(!format.data_matches(&tag, 6, &block));
    }

    #[test]
    fn the_first_scheme_sums_the_transaction() {
        let format = format(Checksums::V1, false);
        let mut commit = vec![0; 60];
        assert!(format.commit_matches(&commit, 99), "no checksum at all is accepted");
        commit[12] = 1;
        commit[13] = 4;
        commit[19] = 99;
        assert!(format.commit_matches(&commit, 99));
        assert!(!format.commit_matches(&commit, 98));
    }
}
