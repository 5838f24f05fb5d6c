//! Replays the journal into the overlay, and leaves it empty.
//!
//! Two passes over the log: the first finds the complete transactions, the blocks they name and those they revoke; the
//! second copies. A log ends where a transaction has no commit block, or one left from an earlier round. One whose
//! commit block is there and does not match is damage: nothing behind it can be replayed, and of what can be the volume
//! needs a check. Where a descriptor or a revoke block of it is damaged, nothing at all is replayed, as jbd2 does: a block
//! that it revokes may be a file's content by now, and the older copy in the log would be written over it.

use super::Replay;
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
    /// Which block of the journal.
    at: u64,
    sequence: u32,
    /// Its first four bytes are the magic number, which the log cannot hold.
    escaped: bool,
}

/// The content of a log.
#[derive(Default)]
struct Log {
    copies: Vec<Copy>,
    /// The last transaction that revoked a block.
    revoked: HashMap<u64, u32>,
    /// The transaction that would come next.
    next: u32,
    /// The maximum number of transactions that the journal has space for.
    most: u32,
    /// A transaction that was committed cannot be replayed, or not whole.
    damaged: bool,
}

/// A journal that was replayed and still has to be emptied.
pub(super) struct Replayed {
    file: SystemInode,
    next: u32,
    /// The kernel noted an error in it.
    failed: bool,
    /// Not all that was committed could be copied.
    pub(super) damaged: bool,
}

/// Replays the journal and clears the flag that asks for it; [`Replay::Nothing`] where that cannot be done.
pub(super) fn repair(work: &Work<'_>) -> Result<Replay> {
    let Some(replayed) = copy(work)? else { return Ok(Replay::Nothing) };
    close(work, &replayed)?;
    Ok(if replayed.damaged { Replay::Damaged } else { Replay::Whole })
}

/// Copies the blocks of the log to their places; `None` where the journal cannot be replayed.
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
        // only a file system knows what they mean: left as it is, so that a mount can replay them
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
    // numbers are passed over, so that the kernel takes nothing old for new: one that was not committed, or all that
    // may stand behind the damage
    let passed = if log.damaged { log.most } else { 1 };
    let (next, failed) = (log.next.wrapping_add(passed), superblock.errno() != 0);
    Ok(Some(Replayed { file, next, failed, damaged: log.damaged }))
}

/// Leaves the journal empty, and says in the superblock that it is.
pub(super) fn close(work: &Work<'_>, replayed: &Replayed) -> Result<()> {
    empty(work, &replayed.file, replayed.next)?;
    work.edit_superblock(|sb| {
        sb.s_feature_incompat = (sb.s_feature_incompat.get() & !Incompat::NEEDS_RECOVERY.bits()).into();
        if replayed.failed || replayed.damaged {
            sb.s_state = (sb.s_state.get() | State::ERROR.bits()).into();
        }
    })
}

/// Leaves the journal empty; the next transaction will be number `next`.
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

/// Whether there are fast commits behind the last transaction.
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

/// The part read so far of a transaction whose commit block has not come yet.
#[derive(Default)]
struct Pending {
    copies: Vec<Copy>,
    revoked: Vec<u64>,
    /// Its blocks are not known: one of the log cannot be read, or a descriptor or a revoke block is damaged.
    invalid: bool,
    /// The blocks that it revokes are not known.
    revokes_lost: bool,
    /// A copy does not.
    torn: bool,
}

impl Pending {
    /// Notes that a descriptor or a revoke block is damaged, unless it is `intact`.
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
    // with asynchronous commits the last commit block may have come before what it commits
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
                    // the others of the transaction are still good
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
                // another commit behind it: it was not the end of the log after all
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
                    // older than the last one: left from an earlier round of the log, which ends here
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

/// Puts an empty superblock into a journal whose own cannot be used.
pub(super) fn renew(work: &Work<'_>, file: &SystemInode) -> Result<()> {
    work.make_stale();
    let block_size = work.volume().geometry.block_size;
    let blocks = u32::try_from(file.size / u64::from(block_size)).unwrap_or(u32::MAX);
    let Some(block) = file.block(0) else { return Ok(()) };
    let mut bytes = vec![0; work.block_size()];
    let mut superblock = DiskSuperblock::empty(block_size, blocks, 0, work.volume().disk.s_uuid);
    // what stands in the log is not taken for what comes: a number that no log before has begun with. The superblock's
    // own checksum, its last word, would make it the same for all
    let volume = work.volume().disk.as_bytes();
    let summed = volume.split_last_chunk::<4>().map_or(volume, |(summed, _)| summed);
    superblock.s_sequence = crc32c(!0, summed).max(1).into();
    if let Some(start) = bytes.get_mut(..DiskSuperblock::SIZE) {
        start.copy_from_slice(superblock.as_bytes());
    }
    work.put_block(block, &bytes)
}
