//! The journal's superblock.

use super::log::{Checksums, LogFormat};
use super::{BlockType, DiskHeader, MAGIC};
use crate::checksum::crc32c;
use crate::{Error, Result, Structure};
use bitflags::bitflags;
use std::fmt;
use std::ops::Range;
use zerocopy::big_endian::U32;
use zerocopy::{FromBytes, IntoBytes};

bitflags! {
    /// `s_feature_compat`
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct Compat: u32 {
        /// commit blocks carry a CRC-32 over the transaction's blocks (first scheme)
        const CHECKSUM = 0x1;
    }

    /// `s_feature_incompat`
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct Incompat: u32 {
        /// there may be revoke blocks
        const REVOKE = 0x1;
        /// block numbers of 64 bits
        const BIT64 = 0x2;
        /// commit blocks may reach the device before the blocks they commit
        const ASYNC_COMMIT = 0x4;
        /// CRC32C over every block of the journal; 16 bits of it in a tag
        const CSUM_V2 = 0x8;
        /// CRC32C over every block of the journal; all of it in a larger tag
        const CSUM_V3 = 0x10;
        /// fast commits in an area after the log
        const FAST_COMMIT = 0x20;
    }
}

disk_struct! {
    /// The journal's superblock (`journal_superblock_t`): block 0 of a journal inside the volume.
    ///
    /// Version 1 (block type 3) ends after `s_errno`; the following fields are treated as zero.
    pub struct DiskSuperblock[1024] {
        /// magic, 3 or 4, unused
        0x000 s_header: DiskHeader,
        /// bytes in a block of the journal; equals the volume's block size
        0x00C s_blocksize: U32,
        /// blocks in the journal, this one and the fast-commit area included
        0x010 s_maxlen: U32,
        /// first block of the log
        0x014 s_first: U32,
        /// sequence number of the first transaction in the log
        0x018 s_sequence: U32,
        /// block at which the log begins; 0 where there is nothing to replay
        0x01C s_start: U32,
        /// error that made the kernel abort the journal, a negative errno
        0x020 s_errno: U32,
        /// compatible features
        0x024 s_feature_compat: U32,
        /// incompatible features
        0x028 s_feature_incompat: U32,
        /// features a reader may ignore (none defined)
        0x02C s_feature_ro_compat: U32,
        /// the journal's UUID; inside a volume, the volume's
        0x030 s_uuid: [u8; 16],
        /// volumes that share this journal
        0x040 s_nr_users: U32,
        /// block of a copy of the superblock (unused)
        0x044 s_dynsuper: U32,
        /// most journal blocks in a transaction (unused)
        0x048 s_max_transaction: U32,
        /// most data blocks in a transaction (unused)
        0x04C s_max_trans_data: U32,
        /// algorithm of the checksums: 4 (CRC32C) with CSUM_V2 or CSUM_V3
        0x050 s_checksum_type: u8,
        /// unused
        0x051 s_padding2: [u8; 3],
        /// blocks of the fast-commit area; 0 means 256
        0x054 s_num_fc_blks: U32,
        /// block after the last transaction, for a cleanly emptied journal
        0x058 s_head: U32,
        /// unused
        0x05C s_padding: [U32; 40],
        /// CRC32C over these 1 024 bytes with this field zero (CSUM_V2, CSUM_V3)
        0x0FC s_checksum: U32,
        /// UUIDs of the volumes that share this journal
        0x100 s_users: [[u8; 16]; 48],
    }
}

/// `s_checksum_type`: CRC32C.
pub(super) const CRC32C: u8 = 4;
/// Fast-commit blocks where `s_num_fc_blks` is 0.
const DEFAULT_FAST_COMMIT_BLOCKS: u32 = 256;
/// Minimum number of blocks of a log beside a fast-commit area.
const MIN_LOG_BLOCKS: u32 = 1024;

/// A defect of a journal's superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SuperblockProblem {
    /// `h_magic` is not [`MAGIC`].
    Magic {
        /// The value in the superblock.
        found: u32,
    },
    /// `h_blocktype` is neither 3 nor 4.
    BlockType {
        /// The value in the superblock.
        found: u32,
    },
    /// Unknown incompatible features; bits of [`Incompat`].
    UnknownIncompat(u32),
    /// Read-only compatible features; none is defined.
    UnknownRoCompat(u32),
    /// CSUM_V2 and CSUM_V3 together, or one of them with CHECKSUM.
    ConflictingChecksums,
    /// CSUM_V2 or CSUM_V3 with an algorithm other than CRC32C.
    ChecksumType {
        /// `s_checksum_type`
        found: u8,
    },
    /// `s_checksum` does not match the bytes.
    Checksum {
        /// The value in the superblock.
        stored: u32,
        /// The correct value.
        computed: u32,
    },
    /// `s_blocksize` is not the volume's.
    BlockSize {
        /// The superblock's, in bytes.
        found: u32,
        /// The volume's, in bytes.
        volume: u32,
    },
    /// `s_maxlen` exceeds the blocks of the journal.
    TooLong {
        /// `s_maxlen`
        maxlen: u32,
        /// Blocks in the journal's inode or device.
        blocks: u64,
    },
    /// `s_first` is 0 or leaves no log.
    First {
        /// The value in the superblock.
        found: u32,
    },
    /// The fast-commit area leaves a log of fewer than 1 024 blocks.
    FastCommitArea {
        /// Blocks of the area.
        blocks: u32,
    },
    /// `s_start` lies outside the log.
    Start {
        /// The value in the superblock.
        found: u32,
    },
    /// `s_errno` is set. The journal can still be read.
    Errno(i32),
}

impl fmt::Display for SuperblockProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Magic { found } => write!(f, "magic number {found:#010x}"),
            Self::BlockType { found } => write!(f, "block type {found}"),
            Self::UnknownIncompat(bits) => write!(f, "unknown journal features (incompat {bits:#x})"),
            Self::UnknownRoCompat(bits) => write!(f, "unknown journal features (ro_compat {bits:#x})"),
            Self::ConflictingChecksums => f.write_str("more than one scheme of checksums"),
            Self::ChecksumType { found } => write!(f, "journal checksums of type {found}"),
            Self::Checksum { stored, computed } => write!(f, "checksum {stored:#010x}, computed {computed:#010x}"),
            Self::BlockSize { found, volume } => write!(f, "blocks of {found} bytes in a volume of {volume}"),
            Self::TooLong { maxlen, blocks } => write!(f, "length of {maxlen} blocks where {blocks} exist"),
            Self::First { found } => write!(f, "log begins at block {found}"),
            Self::FastCommitArea { blocks } => write!(f, "{blocks} fast-commit blocks leave too short a log"),
            Self::Start { found } => write!(f, "first transaction at block {found}, outside the log"),
            Self::Errno(errno) => write!(f, "the kernel aborted the journal with error {errno}"),
        }
    }
}

impl From<SuperblockProblem> for Error {
    fn from(problem: SuperblockProblem) -> Self {
        let what = match problem {
            SuperblockProblem::UnknownIncompat(_)
            | SuperblockProblem::UnknownRoCompat(_)
            | SuperblockProblem::ChecksumType { .. } => return Error::Unsupported(problem.to_string()),
            SuperblockProblem::Magic { .. } => "superblock without the magic number",
            SuperblockProblem::BlockType { .. } => "superblock of unknown version",
            SuperblockProblem::ConflictingChecksums => "more than one scheme of checksums",
            SuperblockProblem::Checksum { .. } => "superblock checksum does not match",
            SuperblockProblem::BlockSize { .. } => "block size differs from the volume's",
            SuperblockProblem::TooLong { .. } => "longer than the blocks it has",
            SuperblockProblem::First { .. } => "first block of the log out of range",
            SuperblockProblem::FastCommitArea { .. } => "fast-commit area leaves too short a log",
            SuperblockProblem::Start { .. } => "start of the log out of range",
            SuperblockProblem::Errno(_) => "aborted by the kernel after an error",
        };
        Error::corrupt(Structure::Journal, what)
    }
}

impl DiskSuperblock {
    /// The superblock of an empty journal (version 2, no features, sequence 1) of `blocks` blocks of `block_size`
    /// bytes, those for fast commits included. For an internal journal `uuid` is the volume's.
    #[must_use]
    pub fn empty(block_size: u32, blocks: u32, fast_commit_blocks: u32, uuid: [u8; 16]) -> Self {
        let Ok(mut sb) = Self::read_from_bytes(&[0; Self::SIZE]) else {
            unreachable!("the array has the structure's size")
        };
        sb.s_header = DiskHeader { h_magic: MAGIC.into(), h_blocktype: 4.into(), h_sequence: U32::ZERO };
        sb.s_blocksize = block_size.into();
        sb.s_maxlen = blocks.into();
        sb.s_first = 1.into();
        sb.s_sequence = 1.into();
        sb.s_uuid = uuid;
        sb.s_nr_users = 1.into();
        sb.s_num_fc_blks = fast_commit_blocks.into();
        sb
    }

    /// Writes the checksum under CSUM_V2 or CSUM_V3, otherwise 0. The last step before the bytes go to the device.
    pub fn set_checksum(&mut self) {
        let summed = self.incompat().intersects(Incompat::CSUM_V2 | Incompat::CSUM_V3);
        self.s_checksum = if summed { self.checksum() } else { 0 }.into();
    }

    /// Whether it has version 2: features, a UUID and the following fields.
    fn is_v2(&self) -> bool {
        BlockType::from_number(self.s_header.h_blocktype.get()) == Some(BlockType::SuperblockV2)
    }

    /// Known compatible features; none in version 1.
    pub fn compat(&self) -> Compat {
        if self.is_v2() { Compat::from_bits_retain(self.s_feature_compat.get()) } else { Compat::empty() }
    }

    /// Incompatible features, unknown bits included; none in version 1.
    pub fn incompat(&self) -> Incompat {
        if self.is_v2() { Incompat::from_bits_retain(self.s_feature_incompat.get()) } else { Incompat::empty() }
    }

    /// The correct value of `s_checksum`.
    pub fn checksum(&self) -> u32 {
        let mut copy = *self;
        copy.s_checksum = U32::ZERO;
        crc32c(!0, copy.as_bytes())
    }

    /// Blocks of the fast-commit area: 0 without that feature.
    pub fn fast_commit_blocks(&self) -> u32 {
        match (self.incompat().contains(Incompat::FAST_COMMIT), self.s_num_fc_blks.get()) {
            (false, _) => 0,
            (true, 0) => DEFAULT_FAST_COMMIT_BLOCKS,
            (true, blocks) => blocks,
        }
    }

    /// The block after the log's last, where the log wraps around.
    fn log_end(&self) -> u32 {
        self.s_maxlen.get().saturating_sub(self.fast_commit_blocks())
    }

    /// All problems of this superblock, for a volume with blocks of `block_size` bytes and a journal of `blocks`
    /// blocks. Without the magic number and a known type, nothing else is checked.
    pub fn problems(&self, block_size: u32, blocks: u64) -> Vec<SuperblockProblem> {
        if self.s_header.h_magic != MAGIC {
            return vec![SuperblockProblem::Magic { found: self.s_header.h_magic.get() }];
        }
        let found = self.s_header.h_blocktype.get();
        if !matches!(BlockType::from_number(found), Some(BlockType::SuperblockV1 | BlockType::SuperblockV2)) {
            return vec![SuperblockProblem::BlockType { found }];
        }
        let mut problems = Vec::new();
        let mut check = |bad: bool, problem| {
            if bad {
                problems.push(problem)
            }
        };

        let incompat = self.incompat();
        let checksummed = incompat.intersects(Incompat::CSUM_V2 | Incompat::CSUM_V3);
        let unknown = incompat.difference(Incompat::all()).bits();
        check(unknown != 0, SuperblockProblem::UnknownIncompat(unknown));
        let ro_compat = if self.is_v2() { self.s_feature_ro_compat.get() } else { 0 };
        check(ro_compat != 0, SuperblockProblem::UnknownRoCompat(ro_compat));
        let conflict = incompat.contains(Incompat::CSUM_V2 | Incompat::CSUM_V3)
            || (checksummed && self.compat().contains(Compat::CHECKSUM));
        check(conflict, SuperblockProblem::ConflictingChecksums);
        let algorithm = self.s_checksum_type;
        check(checksummed && algorithm != CRC32C, SuperblockProblem::ChecksumType { found: algorithm });
        if checksummed && algorithm == CRC32C {
            let (stored, computed) = (self.s_checksum.get(), self.checksum());
            check(stored != computed, SuperblockProblem::Checksum { stored, computed });
        }

        let (found, volume) = (self.s_blocksize.get(), block_size);
        check(found != volume, SuperblockProblem::BlockSize { found, volume });
        let maxlen = self.s_maxlen.get();
        check(u64::from(maxlen) > blocks, SuperblockProblem::TooLong { maxlen, blocks });
        let fast = self.fast_commit_blocks();
        let end = self.log_end();
        check(fast > 0 && end < MIN_LOG_BLOCKS, SuperblockProblem::FastCommitArea { blocks: fast });
        let first = self.s_first.get();
        check(first == 0 || first >= end, SuperblockProblem::First { found: first });
        let start = self.s_start.get();
        check(start != 0 && !(first..end).contains(&start), SuperblockProblem::Start { found: start });
        let errno = self.s_errno.get().cast_signed();
        check(errno != 0, SuperblockProblem::Errno(errno));
        problems
    }
}

/// A validated journal superblock: the log is inside the journal and every feature is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalSuperblock {
    disk: DiskSuperblock,
    log: LogFormat,
}

impl JournalSuperblock {
    /// Reads the superblock from the start of `block`, for a volume with blocks of `block_size` bytes and a journal of
    /// `blocks` blocks.
    ///
    /// # Errors
    /// `Unsupported` for an unknown feature or checksum, `Corrupt` for everything else that
    /// [`DiskSuperblock::problems`] finds, except an errno recorded by the kernel ([`Self::errno`]).
    pub fn parse(block: &[u8], block_size: u32, blocks: u64) -> Result<Self> {
        let (disk, _) = DiskSuperblock::read_from_prefix(block)
            .map_err(|_| Error::corrupt(Structure::Journal, "superblock cut short"))?;
        let fatal = |p: &SuperblockProblem| !matches!(p, SuperblockProblem::Errno(_));
        if let Some(problem) = disk.problems(block_size, blocks).into_iter().find(fatal) {
            return Err(problem.into());
        }
        let incompat = disk.incompat();
        let checksums = if incompat.contains(Incompat::CSUM_V3) {
            Checksums::V3
        } else if incompat.contains(Incompat::CSUM_V2) {
            Checksums::V2
        } else if disk.compat().contains(Compat::CHECKSUM) {
            Checksums::V1
        } else {
            Checksums::None
        };
        let log = LogFormat {
            block_size,
            wide: incompat.contains(Incompat::BIT64),
            async_commit: incompat.contains(Incompat::ASYNC_COMMIT),
            checksums,
            seed: crc32c(!0, &disk.s_uuid),
        };
        Ok(Self { disk, log })
    }

    /// The superblock's fields.
    pub fn disk(&self) -> &DiskSuperblock {
        &self.disk
    }

    /// The format of the blocks of the log.
    pub fn log(&self) -> &LogFormat {
        &self.log
    }

    /// The blocks of the log, which wraps around at their end.
    pub fn log_blocks(&self) -> Range<u32> {
        self.disk.s_first.get()..self.disk.log_end()
    }

    /// The blocks of the fast-commit area; empty without that feature.
    pub fn fast_commit_blocks(&self) -> Range<u32> {
        let end = self.disk.s_maxlen.get();
        // the kernel leaves the block between the log and this area unused
        let first = if self.disk.fast_commit_blocks() > 0 { self.disk.log_end().saturating_add(1) } else { end };
        first..end
    }

    /// The block of the first transaction, or `None` where there is nothing to replay.
    pub fn start(&self) -> Option<u32> {
        Some(self.disk.s_start.get()).filter(|&start| start != 0)
    }

    /// The sequence number of the first transaction.
    pub fn sequence(&self) -> u32 {
        self.disk.s_sequence.get()
    }

    /// The error that made the kernel abort the journal, as a negative errno; 0 for none.
    pub fn errno(&self) -> i32 {
        self.disk.s_errno.get().cast_signed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn valid() -> DiskSuperblock {
        let mut sb = DiskSuperblock::read_from_bytes(&[0; 1024]).unwrap();
        sb.s_header.h_magic = MAGIC.into();
        sb.s_header.h_blocktype = 4.into();
        sb.s_blocksize = 4096.into();
        sb.s_maxlen = 4096.into();
        sb.s_first = 1.into();
        sb.s_sequence = 7.into();
        sb.s_start = 9.into();
        sb.s_feature_incompat = (Incompat::CSUM_V3 | Incompat::BIT64 | Incompat::FAST_COMMIT).bits().into();
        sb.s_checksum_type = CRC32C;
        sb.s_checksum = sb.checksum().into();
        sb
    }

    fn problems_after(change: impl FnOnce(&mut DiskSuperblock)) -> Vec<SuperblockProblem> {
        let mut sb = valid();
        change(&mut sb);
        sb.s_checksum = sb.checksum().into();
        sb.problems(4096, 4096)
    }

    #[test]
    fn a_valid_superblock_is_parsed() {
        let sb = JournalSuperblock::parse(valid().as_bytes(), 4096, 4096).unwrap();
        assert_eq!(sb.log_blocks(), 1..3840);
        assert_eq!(sb.fast_commit_blocks(), 3841..4096);
        assert_eq!((sb.start(), sb.sequence(), sb.errno()), (Some(9), 7, 0));
        assert!(JournalSuperblock::parse(&valid().as_bytes()[..1023], 4096, 4096).is_err());
    }

    #[test]
    fn an_empty_journal_is_valid() {
        let mut sb = DiskSuperblock::empty(1024, 2048, 0, [3; 16]);
        sb.s_feature_incompat = Incompat::CSUM_V3.bits().into();
        sb.s_checksum_type = CRC32C;
        sb.set_checksum();
        let parsed = JournalSuperblock::parse(sb.as_bytes(), 1024, 2048).unwrap();
        assert_eq!((parsed.start(), parsed.log_blocks()), (None, 1..2048));
        sb.s_feature_incompat = 0.into();
        sb.set_checksum();
        assert_eq!(sb.s_checksum, 0);
    }

    #[test]
    fn each_problem_is_found() {
        use SuperblockProblem as P;
        assert_eq!(problems_after(|_| ()), []);
        assert_eq!(problems_after(|sb| sb.s_header.h_magic = 1.into()), [P::Magic { found: 1 }]);
        assert_eq!(problems_after(|sb| sb.s_header.h_blocktype = 1.into()), [P::BlockType { found: 1 }]);
        assert_eq!(problems_after(|sb| sb.s_feature_ro_compat = 2.into()), [P::UnknownRoCompat(2)]);
        assert_eq!(problems_after(|sb| sb.s_feature_compat = 1.into()), [P::ConflictingChecksums]);
        assert_eq!(problems_after(|sb| sb.s_checksum_type = 1), [P::ChecksumType { found: 1 }]);
        assert_eq!(problems_after(|sb| sb.s_blocksize = 1.into()), [P::BlockSize { found: 1, volume: 4096 }]);
        assert_eq!(problems_after(|sb| sb.s_maxlen = 4097.into()), [P::TooLong { maxlen: 4097, blocks: 4096 }]);
        assert_eq!(problems_after(|sb| sb.s_first = 0.into()), [P::First { found: 0 }]);
        assert_eq!(problems_after(|sb| sb.s_start = 3840.into()), [P::Start { found: 3840 }]);
        assert_eq!(problems_after(|sb| sb.s_num_fc_blks = 3073.into()), [P::FastCommitArea { blocks: 3073 }]);
        assert_eq!(problems_after(|sb| sb.s_errno = (-5i32).cast_unsigned().into()), [P::Errno(-5)]);
        let unknown = problems_after(|sb| sb.s_feature_incompat = (sb.s_feature_incompat.get() | 0x40).into());
        assert_eq!(unknown, [P::UnknownIncompat(0x40)]);

        let mut sb = valid();
        sb.s_head = 1.into();
        assert_eq!(
            sb.problems(4096, 4096),
            [P::Checksum { stored: valid().s_checksum.get(), computed: sb.checksum() }]
        );
    }

    #[test]
    fn errors_distinguish_unsupported_from_corrupt() {
        let parse = |sb: DiskSuperblock| JournalSuperblock::parse(sb.as_bytes(), 4096, 4096);
        let mut sb = valid();
        sb.s_feature_incompat = 0x40.into();
        assert!(matches!(parse(sb), Err(Error::Unsupported(what)) if what.contains("0x40")));
        let mut sb = valid();
        sb.s_first = 0.into();
        assert!(matches!(parse(sb), Err(Error::Corrupt { structure: Structure::Journal, .. })));
    }
}
