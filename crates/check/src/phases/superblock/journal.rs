//! Phase 0: the journal's inode and superblock. Nothing is replayed: the volume is checked as it is on the device.

use crate::problem::{Problem, Problems};
use crate::scan::Scanner;
use crate::system_inode::{self, SystemInode};
use crate::table::Code;
use crate::volume::Volume;
use format::InodeNo;
use format::feature::{Compat, Incompat};
use format::inode::{FileKind, RawInode};
use format::jbd2::{self, BlockType, DiskSuperblock, Header, JournalSuperblock, SuperblockProblem};
use zerocopy::IntoBytes;

/// Minimum number of blocks of a journal.
const MIN_BLOCKS: u64 = 1024;
/// Maximum number of log blocks that are read to count its transactions.
const LOG_READS: u32 = 1 << 16;
/// `s_jnl_backup_type`: `s_jnl_blocks` is a copy of the inode's block map and size.
const BACKUP_BLOCKS: u8 = 1;

/// Checks the journal, where the superblock has one.
pub(crate) fn check(scanner: &Scanner<'_>, volume: &Volume, problems: &Problems) {
    let disk = &volume.disk;
    let has_journal = volume.features.compat.contains(Compat::HAS_JOURNAL);
    let recover = volume.features.incompat.contains(Incompat::NEEDS_RECOVERY);
    let inode = InodeNo(disk.s_journal_inum.get());
    // e2fsck searches for the device even where there is also an inode, and where the journal feature is not set
    if disk.s_journal_uuid != [0; 16] {
        let problem = Problem::new(Code::JournalDeviceNotFound).found(disk.s_journal_dev.get().into());
        return problems.report(if is_mere_reference(volume) { problem.expected(0) } else { problem });
    }
    if inode.get() == 0 && !has_journal {
        if recover {
            problems.report(Problem::new(Code::JournalRecoveryWithoutJournal));
        }
        return;
    }
    let Some(FoundJournal { number, file, bytes, from_copy }) = find(scanner, volume, inode) else {
        return problems.report(Problem::new(Code::JournalInodeBad).inode(inode));
    };
    if has_journal && disk.s_journal_dev.get() != 0 {
        let problem = Problem::new(Code::JournalDeviceBesideInode).inode(inode);
        problems.report(problem.found(disk.s_journal_dev.get().into()));
    }
    if number != inode {
        problems.report(Problem::new(Code::JournalInodeElsewhere).inode(number).found(inode.get().into()));
    }
    if from_copy {
        problems.report(Problem::new(Code::JournalInodeRestorable).inode(number));
    }
    if !has_journal {
        problems.report(Problem::new(Code::JournalFeatureMissing).inode(inode));
    }
    if check_superblock(volume, &file, &bytes, problems) && (recover || has_log(&bytes)) {
        match transactions(scanner, volume, &file, &bytes) {
            // it may be newer or older than the volume: -p must not decide
            _ if !recover => problems.report(Problem::new(Code::JournalRecoveryFlagMissing)),
            0 => problems.report(Problem::new(Code::JournalRecoveryOfNothing)),
            count => problems.report(Problem::new(Code::JournalNotReplayed).count(count)),
        }
    }
}

/// Whether the volume has nothing but the UUID of a journal on another device, as after `tune2fs -O ^has_journal`: then
/// it has no journal, and the UUID can be cleared.
pub(crate) fn is_mere_reference(volume: &Volume) -> bool {
    let disk = &volume.disk;
    let named = disk.s_journal_inum.get() != 0 || disk.s_journal_dev.get() != 0;
    let recover = volume.features.incompat.contains(Incompat::NEEDS_RECOVERY);
    !named && !recover && !volume.features.compat.contains(Compat::HAS_JOURNAL)
}

/// The journal as it was found.
pub(crate) struct FoundJournal {
    /// Its inode: the one in the superblock, or the reserved one.
    pub(crate) number: InodeNo,
    pub(crate) file: SystemInode,
    /// Its first block.
    pub(crate) bytes: Vec<u8>,
    /// Whether the inode is invalid, and map and size are from the copy in the superblock.
    pub(crate) from_copy: bool,
}

/// The journal and its first block.
///
/// The superblock may name any inode: old kernels allowed an ordinary file as the journal. Where that inode is not a
/// journal, the number may be wrong, and the reserved inode is tried: it is the journal on nearly all volumes, and can
/// be nothing else. Where that inode is invalid too, the copy of its block map in the superblock is tried, as in
/// e2fsck: no other check detects that an inode not in use should be the journal.
pub(crate) fn find(scanner: &Scanner<'_>, volume: &Volume, named: InodeNo) -> Option<FoundJournal> {
    let reserved = InodeNo::JOURNAL;
    let ours = || at(scanner, volume, reserved).or_else(|| from_copy(scanner, volume));
    if named == reserved {
        return ours();
    }
    // a user's file may contain an image of a journal: the reserved inode is preferred where the copy is that of its
    // map
    let confirmed = || at(scanner, volume, reserved).filter(|_| is_copied(scanner, volume));
    confirmed().or_else(|| at(scanner, volume, named)).or_else(ours)
}

/// The journal in this inode, if there is one.
fn at(scanner: &Scanner<'_>, volume: &Volume, number: InodeNo) -> Option<FoundJournal> {
    volume.geometry.inode_slot(number)?;
    usable(scanner, volume, number, SystemInode::read(scanner, volume, number)?, false)
}

/// The journal, where the superblock's copy of the reserved inode's block map leads to one.
fn from_copy(scanner: &Scanner<'_>, volume: &Volume) -> Option<FoundJournal> {
    let (root, size) = copy(volume)?;
    let file = SystemInode::of_map(scanner, volume, &root, size);
    // the inode is rewritten from the copy: if overlapping blocks were then removed from the map, no journal would
    // remain, in every run
    if file.overlaps() {
        return None;
    }
    usable(scanner, volume, InodeNo::JOURNAL, file, true)
}

fn usable(
    scanner: &Scanner<'_>,
    volume: &Volume,
    number: InodeNo,
    file: SystemInode,
    from_copy: bool,
) -> Option<FoundJournal> {
    let blocks = file.size / u64::from(volume.geometry.block_size);
    let valid = file.valid && file.kind == Some(FileKind::Regular) && file.links > 0 && blocks >= MIN_BLOCKS;
    if !valid {
        return None;
    }
    let bytes = file.read_block(scanner, volume, 0)?;
    Header::parse(&bytes)?;
    // a stray block after the log makes the file longer, with a hole in between; the log is still intact
    let log = superblock(&bytes).map_or(blocks, |disk| blocks.min(MIN_BLOCKS.max(disk.s_maxlen.get().into())));
    // e2fsck rejects a journal that ends within a block
    let whole = file.size.is_multiple_of(volume.geometry.block_size.into());
    if file.blocks_without_hole() < log || file.end() < blocks || !whole {
        return None;
    }
    Some(FoundJournal { number, file, bytes, from_copy })
}

/// Whether the superblock's copy matches the reserved inode's block map.
fn is_copied(scanner: &Scanner<'_>, volume: &Volume) -> bool {
    let slot = system_inode::read_slot(scanner, volume, InodeNo::JOURNAL);
    let raw = slot.as_deref().and_then(RawInode::from_slot);
    raw.zip(copy(volume)).is_some_and(|(raw, (root, size))| raw.disk.i_block == root && raw.size() == size)
}

/// The superblock's copy of the journal inode's `i_block` and size.
pub(crate) fn copy(volume: &Volume) -> Option<([u8; 60], u64)> {
    let disk = &volume.disk;
    if disk.s_jnl_backup_type != BACKUP_BLOCKS {
        return None;
    }
    let [map @ .., high, low] = disk.s_jnl_blocks.map(|n| n.get());
    let mut root = [0; 60];
    for (bytes, word) in root.chunks_exact_mut(4).zip(map) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    Some((root, u64::from(high) << 32 | u64::from(low)))
}

/// Checks the journal's superblock; returns whether the log can be read.
fn check_superblock(volume: &Volume, file: &SystemInode, bytes: &[u8], problems: &Problems) -> bool {
    let bad = || Problem::new(Code::JournalSuperblockBad);
    let Some(disk) = superblock(bytes) else {
        problems.report(bad());
        return false;
    };
    let block_size = volume.geometry.block_size;
    let blocks = file.size / u64::from(block_size);
    let found = disk.problems(block_size, blocks);
    // with an unknown feature any other apparent error may be correct; but where several volumes share the journal,
    // e2fsck treats all but the fields of version 1 as leftovers
    let typed = !found.iter().any(|p| matches!(p, SuperblockProblem::BlockType { .. }));
    let shared = typed && disk.s_nr_users.get() > 1;
    let mut unknown = found.iter().filter_map(unknown_format).peekable();
    if unknown.peek().is_some() {
        if shared {
            problems.report(Problem::new(Code::JournalSharedUnsupported));
        } else {
            unknown.for_each(|problem| problems.report(problem));
        }
        return false;
    }
    // bytes after the fields of a version 1 journal superblock are leftovers, which e2fsck ignores
    let version1 = Header::parse(bytes).is_some_and(|h| h.block_type == Some(BlockType::SuperblockV1));
    let has_more = disk.s_feature_compat.get() | disk.s_feature_incompat.get() | disk.s_feature_ro_compat.get() != 0;
    if version1 && (has_more || disk.s_nr_users.get() != 0) {
        problems.report(Problem::new(Code::JournalVersion1HasFeatures));
    }
    if !version1 && shared {
        problems.report(Problem::new(Code::JournalSharedUnsupported));
    }
    for problem in &found {
        let problem = match *problem {
            SuperblockProblem::UnknownIncompat(_)
            | SuperblockProblem::UnknownRoCompat(_)
            | SuperblockProblem::Magic { .. }
            | SuperblockProblem::BlockType { .. }
            | SuperblockProblem::ConflictingChecksums
            | SuperblockProblem::ChecksumType { .. }
            | SuperblockProblem::Checksum { .. }
            | SuperblockProblem::BlockSize { .. }
            | SuperblockProblem::FastCommitArea { .. }
            | SuperblockProblem::First { .. }
            | SuperblockProblem::Start { .. }
            | SuperblockProblem::TooLong { .. } => bad(),
            // an error recorded by the kernel does not mean that the bytes are damaged
            SuperblockProblem::Errno(_) => continue,
        };
        problems.report(problem);
    }
    // the kernel rejects a shorter log; it sets up the fast commit area at mount, also after an empty log
    let (first, end) = (u64::from(disk.s_first.get()), u64::from(disk.s_maxlen.get()));
    let area = disk.s_num_fc_blks.get().into();
    let later = area > 0 && volume.features.compat.contains(Compat::FAST_COMMIT) && disk.fast_commit_blocks() == 0;
    let short = first + MIN_BLOCKS > end + 1 || later && end.saturating_sub(area) < MIN_BLOCKS;
    let valid = found.iter().all(|p| matches!(p, SuperblockProblem::Errno(_)));
    if valid && blocks >= MIN_BLOCKS && short {
        problems.report(bad());
    }
    readable(bytes, block_size, blocks).is_some()
}

/// The problem of a journal with a superblock of an unknown type, or with unknown features.
fn unknown_format(problem: &SuperblockProblem) -> Option<Problem> {
    match *problem {
        // a type of another block of the log is no later format
        SuperblockProblem::BlockType { found } if BlockType::from_number(found).is_none() => {
            Some(Problem::new(Code::JournalTypeUnknown).found(found.into()))
        }
        SuperblockProblem::UnknownIncompat(bits) => Some(Problem::new(Code::JournalFeatureUnknown).found(bits.into())),
        SuperblockProblem::UnknownRoCompat(bits) => {
            Some(Problem::new(Code::JournalReadOnlyFeatureUnknown).found(bits.into()))
        }
        _ => None,
    }
}

/// The journal's superblock, where the log can be read by it. Every log begins in block 1; where `s_first` is not a
/// block of the journal, the log is read from block 1, as in e2fsck, since its transactions are still there. For the
/// same reason a fast-commit area longer than the whole journal is ignored.
pub(crate) fn readable(bytes: &[u8], block_size: u32, blocks: u64) -> Option<JournalSuperblock> {
    let parse = |bytes: &[u8]| JournalSuperblock::parse(bytes, block_size, blocks);
    parse(bytes).ok().or_else(|| {
        let mut disk = superblock(bytes)?;
        let no_area = disk.fast_commit_blocks() > disk.s_maxlen.get();
        let begins = |p: &SuperblockProblem| {
            matches!(p, SuperblockProblem::First { .. } | SuperblockProblem::Start { .. } | SuperblockProblem::Errno(_))
                || no_area && matches!(p, SuperblockProblem::FastCommitArea { .. })
        };
        if !disk.problems(block_size, blocks).iter().all(begins) {
            return None;
        }
        disk.s_first = 1.into();
        if no_area {
            let without = disk.s_feature_incompat.get() & !jbd2::Incompat::FAST_COMMIT.bits();
            disk.s_feature_incompat = without.into();
        }
        disk.set_checksum();
        parse(disk.as_bytes()).ok()
    })
}

fn superblock(bytes: &[u8]) -> Option<DiskSuperblock> {
    zerocopy::FromBytes::read_from_prefix(bytes).ok().map(|(disk, _)| disk)
}

fn has_log(bytes: &[u8]) -> bool {
    superblock(bytes).is_some_and(|disk| disk.s_start.get() != 0)
}

/// The number of complete transactions in the log, counted by their commit blocks. Checksums are not verified: the
/// replay does that.
fn transactions(scanner: &Scanner<'_>, volume: &Volume, file: &SystemInode, bytes: &[u8]) -> u64 {
    let block_size = volume.geometry.block_size;
    let blocks = file.size / u64::from(block_size);
    let Some(journal) = readable(bytes, block_size, blocks) else { return 0 };
    let Some(start) = journal.start() else { return 0 };
    let log = journal.log_blocks();
    let length = u64::from(log.end.saturating_sub(log.start));
    let (mut at, mut left) = (u64::from(start.saturating_sub(log.start)), length);
    let (mut sequence, mut count) = (journal.sequence(), 0);
    for _ in 0..LOG_READS {
        if left == 0 {
            break;
        }
        let Some(block) = file.read_block(scanner, volume, u64::from(log.start) + at) else { break };
        let Some(header) = Header::parse(&block).filter(|h| h.sequence == sequence) else { break };
        let steps = match header.block_type {
            Some(BlockType::Descriptor) => 1 + journal.log().tags(&block).count() as u64,
            Some(BlockType::Revoke) => 1,
            Some(BlockType::Commit) => {
                count += 1;
                sequence = sequence.wrapping_add(1);
                1
            }
            _ => break,
        };
        left = left.saturating_sub(steps);
        at = (at + steps) % length;
    }
    count
}
