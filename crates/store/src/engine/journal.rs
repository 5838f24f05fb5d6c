//! The journal of ext3 and ext4 (jbd2): changed blocks are written to a log first, and home later.
//!
//! A generation is a transaction. Its plan is two stages: its changes are written to the log as one run (the first
//! flush makes them durable, together with the file data that they rely on, written before), then the commit block
//! makes it valid (the second flush). Blocks are written home when the log fills, in quiet moments and at the end: a
//! *checkpoint*.
//!
//! 1. The commit block of a transaction is written after all its other blocks, all transactions before it, and all file
//!    data written before it closed are flushed. A log never contains a complete transaction without them.
//! 2. A block is written home only with content of a durable transaction, and always with the newest such content.
//! 3. The log's tail (`s_start`, `s_sequence`) passes a transaction only when each block that it logged is home and
//!    flushed, or has a newer copy in a transaction that stays in the log. So hot blocks are not written home again and
//!    again.
//! 4. Log blocks that the tail has passed are reused only after the new tail is flushed.
//! 5. `live` contains exactly the blocks whose newest copy in the log is not home yet. A block that a transaction frees
//!    is removed from it with that transaction; if it was there, and the transaction does not log it, the transaction
//!    revokes it: so no replay writes an old copy over the next content of the block.
//! 6. `s_start` is 0 exactly while the log is empty; the tail is written together with the first transaction that
//!    follows. While it is not 0 the volume's superblock is marked as needing a replay: that mark is flushed before the
//!    first transaction, and cleared when the emptied log is flushed. Between the two no copy of the superblock is
//!    written home that was closed before the mark, so none clears it.
//! 7. Each block in `live` has one pin in the cache, that of the newest transaction that logged it.
//!
//! The state changes when a plan is made, not when it was executed: the store executes it completely, or requests no
//! further plan.
//!
//! Data modes: `ordered` and `writeback` differ in the file system, in whether delayed data is written before the
//! generation closes; with `journal_data` all file data is logged like metadata.

mod log;
#[cfg(test)]
mod tests;
mod transaction;

use super::{Engine, Idle, Limits, fresh_writes, state_stage};
use crate::recovery::{self, BlockExtent};
use crate::{ClosedGeneration, CommitReason, Error, Kind, Plan, PlannedWrite, Result, Stage, StateSource, VolumeState};
use format::FsBlock;
use format::jbd2::{BlockType, Compat, DiskSuperblock, Incompat, JournalSuperblock};
use log::Log;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use zerocopy::IntoBytes;

/// The minimum length of a log for writing, in blocks; the kernel's limit.
const SHORTEST_LOG: u32 = 1023;
/// A generation contains at most a quarter of the log, as in the kernel, but not less than this many blocks if half the
/// log is as long: operations must fit into the smallest logs.
const SMALL_GENERATION: u32 = 512;
/// The maximum fill of the log in bytes, however long it is: the logged blocks stay in memory. Nor does it contain more
/// than a generation may, so smaller generations save memory here, too.
const MOST_LOGGED: u32 = 64 << 20;
/// The quiet time after which blocks are written home.
const QUIET: Duration = Duration::from_secs(5);
/// The approximate number of log blocks that one quiet moment frees: a sync has to wait for it meanwhile.
const QUIET_BLOCKS: u32 = 2048;

/// The options with which a journal is used.
#[derive(Clone)]
pub struct JournalOptions {
    /// File data is logged, too (data=journal).
    pub journal_data: bool,
    /// The volume has checksums (metadata_csum), so the log gets them if it has none.
    pub checksums: bool,
    /// The volume has 64-bit block numbers, so the log has them, too.
    pub wide: bool,
    /// The maximum number of blocks in a generation; a short log lowers it.
    pub dirty_blocks: usize,
    /// Returns the time since the beginning of 1970, for commit blocks.
    pub clock: Arc<dyn Fn() -> Duration + Send + Sync>,
}

/// The engine `journal`.
pub struct Journal {
    log: Log,
    superblock: DiskSuperblock,
    superblock_at: u64,
    limits: Limits,
    clock: Arc<dyn Fn() -> Duration + Send + Sync>,
    /// The time of the last commit; commit times do not run backwards.
    committed_at: Duration,
    /// The sequence number of the next transaction.
    sequence: u32,
    /// The transactions in the log, oldest first.
    transactions: VecDeque<Transaction>,
    /// The blocks of invariant 5.
    live: HashMap<FsBlock, Live>,
    /// The maximum number of log blocks in use after a plan.
    most_used: u32,
}

/// A transaction in the log.
struct Transaction {
    sequence: u32,
    /// Its first block in the log, and its number of blocks.
    start: u32,
    len: u32,
    blocks: Vec<FsBlock>,
}

/// The newest content of a block by a transaction.
struct Live {
    data: Arc<[u8]>,
    kind: Kind,
    sequence: u32,
}

impl Journal {
    /// Creates the engine on the journal at `place`, which must not need a replay. Reads its superblock.
    ///
    /// # Errors
    /// [`Error::Journal`] for a journal on a device of its own, one that is not empty, was aborted by the kernel, or is
    /// too short. Those of [`recovery::JournalLocation::read_superblock`].
    pub fn new(place: recovery::JournalLocation, options: JournalOptions) -> Result<Self> {
        let refuse = |what: &str| Err(Error::Journal(what.to_owned()));
        if place.is_external() {
            return refuse("the journal is on a device of its own, which is not supported for writing");
        }
        let found = place.read_superblock()?;
        if found.start().is_some() {
            return refuse("the journal is not empty: it must be replayed first");
        }
        if found.errno() != 0 {
            return refuse("the kernel aborted the journal after an error: the volume needs a check");
        }
        let superblock = with_features(found.disk(), &options);
        let parsed =
            JournalSuperblock::parse(superblock.as_bytes(), place.block_size, superblock.s_maxlen.get().into())?;
        let superblock_at = place.superblock_position()?;
        let block_size = place.block_size;
        let log = Log::new(place, &parsed);
        if log.len() < SHORTEST_LOG {
            return refuse("the journal is too short");
        }
        let generation = (log.len() / 4).max(SMALL_GENERATION.min(log.len() / 2));
        let generation = generation as usize - log.overhead(generation as usize);
        let limits = Limits {
            journals_data: options.journal_data,
            wants_forgotten: true,
            defers_reuse: true,
            atomic: true,
            ..Limits::new(VolumeState::NeedsReplay, generation.min(options.dirty_blocks))
        };
        let generations = u32::try_from(options.dirty_blocks).unwrap_or(u32::MAX).max(2 * SMALL_GENERATION);
        let most_used = (log.len() / 2).min(MOST_LOGGED / block_size).min(generations);
        Ok(Self {
            sequence: superblock.s_sequence.get(),
            log,
            superblock,
            superblock_at,
            limits,
            clock: options.clock,
            committed_at: Duration::ZERO,
            transactions: VecDeque::new(),
            live: HashMap::new(),
            most_used,
        })
    }

    /// The write of the journal's superblock with the tail at the oldest transaction, or with an empty log.
    fn tail_write(&mut self) -> PlannedWrite {
        let (start, sequence) = self.transactions.front().map_or((0, self.sequence), |t| (t.start, t.sequence));
        self.superblock.s_start = start.into();
        self.superblock.s_sequence = sequence.into();
        self.superblock.set_checksum();
        PlannedWrite { at: self.superblock_at, data: Arc::from(self.superblock.as_bytes()), kind: Kind::Engine }
    }

    /// The freed blocks that are live, ascending.
    fn freed_live(&self, forgotten: &[BlockExtent]) -> Vec<FsBlock> {
        let count: u64 = forgotten.iter().fold(0, |sum, run| sum.saturating_add(run.count));
        let numbers = |run: &BlockExtent| run.first.get()..run.first.get().saturating_add(run.count);
        let mut freed: Vec<FsBlock> = if count <= self.live.len() as u64 {
            let blocks = forgotten.iter().flat_map(numbers).map(FsBlock);
            blocks.filter(|block| self.live.contains_key(block)).collect()
        } else {
            let runs = joined(forgotten);
            let freed = |block: &FsBlock| {
                let behind = runs.partition_point(|run| run.first <= *block);
                behind > 0 && numbers(&runs[behind - 1]).contains(&block.get())
            };
            self.live.keys().copied().filter(freed).collect()
        };
        freed.sort_unstable();
        freed.dedup();
        freed
    }

    /// Removes the oldest transactions from the log while `more` returns true. Returns the writes to home locations of
    /// their blocks without a newer copy in the log, and adds these blocks to `home`. The caller moves the tail after
    /// the writes are flushed.
    fn retire(&mut self, home: &mut Vec<FsBlock>, mut more: impl FnMut(&Log) -> bool) -> Vec<PlannedWrite> {
        let mut writes = Vec::new();
        while more(&self.log)
            && let Some(oldest) = self.transactions.pop_front()
        {
            self.log.release(oldest.len);
            for block in oldest.blocks {
                if self.live.get(&block).is_none_or(|live| live.sequence != oldest.sequence) {
                    continue;
                }
                if let Some(Live { data, kind, .. }) = self.live.remove(&block) {
                    writes.push(PlannedWrite { at: self.log.home(block), data, kind });
                    home.push(block);
                }
            }
        }
        writes
    }

    /// Adds a separate checkpoint: home locations, flush, tail, flush.
    fn checkpoint(&mut self, plan: &mut Plan, more: impl FnMut(&Log) -> bool) {
        let writes = self.retire(&mut plan.home, more);
        plan.stages.push(Stage { writes, flush: true });
        plan.stages.push(Stage { writes: vec![self.tail_write()], flush: true });
    }

    fn commit_time(&mut self) -> Duration {
        self.committed_at = self.committed_at.max((self.clock)());
        self.committed_at
    }
}

/// Merges overlapping and adjacent extents; ascending.
fn joined(runs: &[BlockExtent]) -> Vec<BlockExtent> {
    let mut sorted = runs.to_vec();
    sorted.sort_unstable_by_key(|run| run.first);
    let mut joined: Vec<BlockExtent> = Vec::with_capacity(sorted.len());
    for run in sorted {
        let end = run.first.get().saturating_add(run.count);
        match joined.last_mut() {
            Some(last) if last.first.get().saturating_add(last.count) >= run.first.get() => {
                last.count = last.count.max(end - last.first.get());
            }
            _ => joined.push(run),
        }
    }
    joined
}

/// The superblock of an empty journal with the features needed for writing, as the kernel sets it at mount.
fn with_features(found: &DiskSuperblock, options: &JournalOptions) -> DiskSuperblock {
    let mut sb = *found;
    if BlockType::from_number(sb.s_header.h_blocktype.get()) == Some(BlockType::SuperblockV1) {
        // version 1 ends after the errno; the bytes after it are undefined
        let rest = std::mem::offset_of!(DiskSuperblock, s_feature_compat);
        sb.as_mut_bytes()[rest..].fill(0);
        sb.s_header.h_blocktype = 4.into();
        sb.s_nr_users = 1.into();
    }
    let (mut compat, mut incompat) = (sb.compat(), sb.incompat());
    incompat.insert(Incompat::REVOKE);
    // commits will not be asynchronous
    incompat.remove(Incompat::ASYNC_COMMIT);
    incompat.set(Incompat::BIT64, options.wide || incompat.contains(Incompat::BIT64));
    if options.checksums && !incompat.contains(Incompat::CSUM_V2) {
        compat.remove(Compat::CHECKSUM);
        incompat.insert(Incompat::CSUM_V3);
    }
    sb.set_features(compat, incompat);
    sb.set_checksum();
    sb
}

impl Engine for Journal {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn open(&mut self, superblock: &dyn StateSource) -> Result<Plan> {
        // an empty log needs no replay, so the two may become durable in any order
        let mut stage = state_stage(superblock, VolumeState::NeedsReplay);
        stage.writes.push(self.tail_write());
        Ok(Plan { stages: vec![stage], ..Plan::default() })
    }

    fn plan(&mut self, closed: ClosedGeneration, _: &dyn StateSource) -> Result<Plan> {
        let mut plan = Plan { durable: closed.number, ..Plan::default() };
        let freed = self.freed_live(&closed.forgotten);
        let logged_again = |b: &FsBlock| closed.blocks.binary_search_by_key(b, |write| write.block).is_ok();
        let revoked: Vec<FsBlock> = freed.iter().copied().filter(|block| !logged_again(block)).collect();
        if closed.blocks.is_empty() && revoked.is_empty() {
            if closed.unflushed && closed.reason == CommitReason::Sync {
                plan.stages.push(Stage { writes: Vec::new(), flush: true });
            }
            return Ok(plan);
        }
        let need = self.log.blocks_for(closed.blocks.len(), revoked.len());
        let need = u32::try_from(need).ok().filter(|&need| need <= self.log.capacity()).ok_or_else(|| {
            let (blocks, log) = (closed.blocks.len(), self.log.len());
            Error::Journal(format!("a generation of {blocks} blocks does not fit into a journal of {log}"))
        })?;
        if need > self.log.free() {
            self.checkpoint(&mut plan, |_| true);
        }
        let was_empty = self.transactions.is_empty();
        let sequence = self.sequence;
        self.sequence = sequence.wrapping_add(1);
        let time = self.commit_time();
        let start = self.log.head();
        let uuid = self.superblock.s_uuid;
        let transaction::Written { writes, commit } =
            transaction::write(&mut self.log, sequence, &uuid, &closed.blocks, &revoked, time)?;
        let mut first = Stage { writes, flush: true };
        first.writes.extend(fresh_writes(&closed, |block| self.log.home(block)));
        let mut last = Stage { writes: vec![commit], flush: true };

        // Blocks that are written home together with this transaction have the content of older ones: if this one does
        // not become complete, the tail may have moved all the same.
        let enough = self.most_used / 2;
        let overfull = self.log.used() > self.most_used;
        let home = self.retire(&mut plan.home, |log| overfull && log.used().saturating_sub(need) > enough);
        let retired = overfull && !was_empty;
        first.writes.extend(home);

        for block in &freed {
            plan.home.extend(self.live.remove(block).map(|_| *block));
        }
        let blocks = closed.blocks.iter().map(|write| write.block).collect();
        for write in closed.blocks {
            let live = Live { data: write.data, kind: write.tag.kind, sequence };
            plan.home.extend(self.live.insert(write.block, live).map(|_| write.block));
        }
        self.transactions.push_back(Transaction { sequence, start, len: need, blocks });
        if was_empty {
            first.writes.push(self.tail_write());
        } else if retired {
            last.writes.push(self.tail_write());
        }
        plan.stages.extend([first, last]);
        Ok(plan)
    }

    fn idle(&mut self, quiet: Duration, dirty: bool, _: &dyn StateSource) -> Idle {
        if dirty || self.transactions.is_empty() {
            return Idle::Nothing;
        }
        if quiet < QUIET {
            return Idle::After(QUIET);
        }
        let mut plan = Plan::default();
        let goal = self.log.used().saturating_sub(QUIET_BLOCKS);
        self.checkpoint(&mut plan, |log| log.used() > goal);
        Idle::Run(plan)
    }

    fn close(&mut self, superblock: &dyn StateSource) -> Result<Plan> {
        let mut plan = Plan::default();
        if !self.transactions.is_empty() {
            self.checkpoint(&mut plan, |_| true);
        }
        plan.stages.push(state_stage(superblock, VolumeState::Clean));
        Ok(plan)
    }
}
