//! The replay of the journal into the overlay, which leaves the journal empty.
//!
//! Two passes over the log: the first finds the complete transactions, their blocks and their revoked blocks; the
//! second copies. A log ends where a transaction has no commit block, or one left from an earlier cycle of the log. A
//! commit block that does not match is damage: nothing after it can be replayed, and after the replay of the rest the
//! volume needs a check. Where a descriptor or revoke block of a committed transaction is damaged, nothing at all is
//! replayed, as in jbd2: a revoked block may contain file data by now, and the older copy in the log would overwrite
//! it.

use super::work::Work;
use crate::phases::superblock::journal::{self, FoundJournal};
use crate::system_inode::SystemInode;
use blockdev::Result;
use format::checksum::crc32c;
use format::feature::Incompat;
use format::jbd2::{
    BlockType, DiskSuperblock, Header, JournalSuperblock, MAGIC, TagFlags, crc32_be, fast_commit, later,
};
use format::superblock::State;
use format::{FsBlock, InodeNo};
use std::collections::HashMap;
use zerocopy::{FromBytes, IntoBytes};

/// A block of the log and where it belongs.
struct Copy {
    home: FsBlock,
    /// Its block number in the journal.
    at: u64,
    sequence: u32,
    /// Whether its first four bytes were the magic number, which is escaped in the log.
    escaped: bool,
}

/// The content of a log.
#[derive(Default)]
struct Log {
    copies: Vec<Copy>,
    /// The last transaction that revoked a block.
    revoked: HashMap<u64, u32>,
    /// The sequence number of the next transaction.
    next: u32,
    /// The maximum number of transactions in the journal.
    most: u32,
    /// Whether a committed transaction cannot be replayed, or only in part.
    damaged: bool,
}

/// A replayed journal that still has to be emptied.
pub(super) struct Replayed {
    file: SystemInode,
    next: u32,
    /// Whether some committed blocks could not be copied.
    pub(super) damaged: bool,
}

/// Copies the blocks of the log to their home locations; `None` where the journal cannot be replayed.
pub(super) fn copy(work: &Work<'_>) -> Result<Option<Replayed>> {
    let volume = work.volume();
    let inode = InodeNo(volume.disk.s_journal_inum.get());
    let Some(FoundJournal { file, bytes, .. }) = journal::find(work.view.scanner, volume, inode) else {
        return Ok(None);
    };
    let block_size = volume.geometry.block_size;
    let blocks = file.size / u64::from(block_size);
    let Some(superblock) = journal::readable(&bytes, block_size, blocks) else { return Ok(None) };
    let log = scan(work, &file, &superblock)?;
    if has_fast_commits(work, &file, &superblock, log.next) {
        // only a file system can interpret fast commits: left unchanged, so that a mount can replay them
        return Ok(None);
    }
    work.make_stale();
    for copy in &log.copies {
        let revoked = log.revoked.get(&copy.home.get()).is_some_and(|by| !later(copy.sequence, *by));
        if revoked {
            continue;
        }
        let Some(mut bytes) = file.read_block(work.view.scanner, volume, copy.at) else { continue };
        if let (true, Some(first)) = (copy.escaped, bytes.get_mut(..4)) {
            first.copy_from_slice(&MAGIC.to_be_bytes());
        }
        work.put_block(copy.home.get(), &bytes)?;
    }
    // sequence numbers are skipped, so that old blocks are not taken for new ones: one for an uncommitted transaction,
    // or all that may follow the damage
    let passed = if log.damaged { log.most } else { 1 };
    let (next, failed) = (log.next.wrapping_add(passed), superblock.errno() != 0);
    // before the journal, which may have the only record of an error, is emptied; and the superblock in it may be older
    // than the mark on the device
    let marked = State::from_bits_retain(volume.disk.s_state.get()).contains(State::ERROR);
    if failed || log.damaged || marked {
        work.edit_superblock(|sb| sb.s_state = (sb.s_state.get() | State::ERROR.bits()).into())?;
    }
    Ok(Some(Replayed { file, next, damaged: log.damaged }))
}

/// Empties the journal and clears needs_recovery in the superblock.
pub(super) fn close(work: &Work<'_>, replayed: &Replayed) -> Result<()> {
    empty(work, &replayed.file, replayed.next)?;
    work.edit_superblock(|sb| {
        sb.s_feature_incompat = (sb.s_feature_incompat.get() & !Incompat::NEEDS_RECOVERY.bits()).into();
    })
}

/// Empties the journal; the next transaction will have number `next`.
fn empty(work: &Work<'_>, file: &SystemInode, next: u32) -> Result<()> {
    let (Some(block), Some(mut bytes)) = (file.block(0), file.read_block(work.view.scanner, work.volume(), 0)) else {
        return Ok(());
    };
    let Ok((disk, _)) = DiskSuperblock::mut_from_prefix(&mut bytes) else { return Ok(()) };
    disk.s_start = 0.into();
    disk.s_sequence = next.into();
    disk.s_errno = 0.into();
    disk.set_checksum();
    work.put_block(block, &bytes)
}

/// Whether there are fast commits after the last transaction.
fn has_fast_commits(work: &Work<'_>, file: &SystemInode, superblock: &JournalSuperblock, next: u32) -> bool {
    let mut scan = fast_commit::Scan::new(next);
    for block in superblock.fast_commit_blocks() {
        let bytes = file.read_block(work.view.scanner, work.volume(), u64::from(block));
        match bytes.map(|bytes| scan.block(&bytes)) {
            Some(Ok(true)) => {}
            _ => break,
        }
    }
    scan.commits() > 0
}

/// The part of a transaction that was read before its commit block.
#[derive(Default)]
struct Pending {
    copies: Vec<Copy>,
    revoked: Vec<u64>,
    /// Whether its blocks are unknown: a block of the log cannot be read, or a descriptor or revoke block is damaged.
    invalid: bool,
    /// Whether its revoked blocks are unknown.
    revokes_lost: bool,
    /// Whether a data block does not match its checksum.
    torn: bool,
}

impl Pending {
    /// Records that a descriptor or revoke block is damaged, unless it is `intact`.
    fn damage_unless(&mut self, intact: bool) {
        self.invalid |= !intact;
        self.revokes_lost |= !intact;
    }

    /// Adds the transaction to the log.
    fn commit(self, log: &mut Log) {
        log.damaged |= self.torn;
        log.copies.extend(self.copies);
        log.revoked.extend(self.revoked.into_iter().map(|block| (block, log.next)));
        log.next = log.next.wrapping_add(1);
    }
}

/// Finds the complete transactions.
fn scan(work: &Work<'_>, file: &SystemInode, superblock: &JournalSuperblock) -> Result<Log> {
    let mut log = Log { next: superblock.sequence(), ..Log::default() };
    let Some(start) = superblock.start() else { return Ok(log) };
    let format = superblock.log();
    let area = superblock.log_blocks();
    log.most = area.end.saturating_sub(area.start).max(1);
    let length = u64::from(log.most);
    let mut at = u64::from(start.saturating_sub(area.start));
    let mut left = length;
    let block_at = |at: u64| u64::from(area.start) + at % length;
    let read = |at: u64| file.read_block(work.view.scanner, work.volume(), block_at(at));
    let (mut pending, mut sum) = (Pending::default(), !0);
    // with asynchronous commits the last commit block may have been written before the transaction's other blocks
    let (mut committed_at, mut unfinished) = (0, false);
    while left > 0 {
        let Some(block) = read(at) else { break };
        let sequence = log.next.wrapping_add(u32::from(unfinished));
        let Some(header) = Header::parse(&block).filter(|h| h.sequence == sequence) else { break };
        (at, left) = (at + 1, left - 1);
        match header.block_type {
            Some(BlockType::Descriptor) => {
                pending.damage_unless(format.tail_matches(&block));
                sum = crc32_be(sum, &block);
                for tag in format.tags(&block) {
                    let Some(data) = (left > 0).then(|| read(at)).flatten() else {
                        (pending.invalid, log.damaged) = (true, true);
                        break;
                    };
                    sum = crc32_be(sum, &data);
                    // the other blocks of the transaction are still valid
                    if format.data_matches(&tag, sequence, &data) {
                        let escaped = tag.flags.contains(TagFlags::ESCAPE);
                        pending.copies.push(Copy { home: tag.home, at: block_at(at), sequence, escaped });
                    } else {
                        pending.torn = true;
                    }
                    (at, left) = (at + 1, left - 1);
                }
            }
            Some(BlockType::Revoke) => {
                pending.damage_unless(format.tail_matches(&block));
                match format.revoked(&block) {
                    Ok(revoked) => pending.revoked.extend(revoked.map(FsBlock::get)),
                    Err(_) => pending.damage_unless(false),
                }
            }
            Some(BlockType::Commit) => {
                // another commit follows: the transaction was not the end of the log
                log.damaged |= unfinished;
                if unfinished {
                    break;
                }
                let time = format.commit_seconds(&block);
                let transaction = std::mem::take(&mut pending);
                if !transaction.invalid && format.commit_matches(&block, sum) {
                    transaction.commit(&mut log);
                    committed_at = time;
                } else if time < committed_at {
                    // older than the last one: left from an earlier cycle of the log, which ends here
                    break;
                } else if !transaction.invalid && format.async_commit() {
                    unfinished = true;
                } else {
                    log.damaged = true;
                    if transaction.revokes_lost {
                        log.copies.clear();
                    }
                    break;
                }
                sum = !0;
            }
            _ => break,
        }
    }
    Ok(log)
}

/// Writes a new superblock for an empty journal, where the old one is unusable.
pub(super) fn renew(work: &Work<'_>, file: &SystemInode) -> Result<()> {
    work.make_stale();
    let block_size = work.volume().geometry.block_size;
    let blocks = u32::try_from(file.size / u64::from(block_size)).unwrap_or(u32::MAX);
    let Some(block) = file.block(0) else { return Ok(()) };
    let mut bytes = vec![0; work.block_size()];
    let mut superblock = DiskSuperblock::empty(block_size, blocks, 0, work.volume().disk.s_uuid);
    // old blocks in the log must not match new transactions: a sequence number that no earlier log began with. The
    // superblock's checksum, its last word, is excluded, as a CRC over its own CRC is constant
    let volume = work.volume().disk.as_bytes();
    let summed = volume.split_last_chunk::<4>().map_or(volume, |(summed, _)| summed);
    superblock.s_sequence = crc32c(!0, summed).max(1).into();
    if let Some(start) = bytes.get_mut(..DiskSuperblock::SIZE) {
        start.copy_from_slice(superblock.as_bytes());
    }
    work.put_block(block, &bytes)
}
