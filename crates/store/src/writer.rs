//! Generations of a volume that is open for writing: when they close, and how they are written.
//!
//! 1. Operations lock the generation lock shared, closing locks it exclusively: a generation consists of whole
//!    operations.
//! 2. Closing takes memory operations only; the device is written after the generation lock is released, so operations
//!    of the next generation continue meanwhile.
//! 3. One generation is written at a time (the `committer` lock): a later one never overtakes an earlier one.
//! 4. After a write or flush has failed, no operation begins and nothing is written, and every sync fails.
//! 5. A panic in the middle of an operation, of closing or of planning is such a failure: an incomplete change stays in
//!    memory.
//! 6. Unflushed writes are tracked by two counters: `written` grows after each write has returned, `flushed` is the
//!    value that `written` had before the newest completed flush began. So a flush in progress does not count as
//!    completed.
//! 7. The executed plans determine which generation is durable ([`Plan::durable`]), not the fact that they were
//!    executed.
//!
//! There is no thread here: the caller of [`Store::tick`] supplies the time.

use crate::engine::{Idle, Limits};
use crate::recovery::BlockExtent;
use crate::{
    ChangeRecord, ClosedGeneration, Closing, CommitHooks, CommitReason, Compaction, DirtyLimits, Engine,
    EngineWithSpace, Error, FreshExtent, Kind, MetadataSpace, Need, Operation, OperationKind, Plan, Result, SpaceHooks,
    Store, Tag,
};
use blockdev::BlockDevice;
use format::{FsBlock, InodeNo};
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The state that a store needs to write.
pub(crate) struct Writer {
    pub(crate) hooks: Arc<dyn CommitHooks>,
    limits: Limits,
    /// The maximum number of blocks that a generation may change with the present memory limit: no more than the engine
    /// allows.
    most_dirty: AtomicUsize,
    interval: Duration,
    /// The number of the open generation; numbers begin at 1.
    generation: RwLock<u64>,
    pub(crate) committer: Mutex<Committer>,
    /// The open generation is that of a transaction: see [`Store::open_for_transaction`].
    pub(crate) in_transaction: AtomicBool,
    /// The newest durable generation.
    durable: AtomicU64,
    /// Blocks that running operations may still change.
    credits: AtomicUsize,
    /// The dirty limits of the open generation; without effect if the engine has no space of its own.
    pub(crate) dirty_limits: Mutex<DirtyLimits>,
    /// The number of operations that have ended, for detecting quiet.
    operations: AtomicU64,
    /// The number of completed writes of any kind; see the invariants.
    written: AtomicU64,
    flushed: AtomicU64,
    /// Locked by a thread that flushes for file data alone, so that all waiting threads share one flush.
    flusher: Mutex<()>,
    /// Extents freed in the open generation.
    forgotten: Mutex<Vec<BlockExtent>>,
    /// Change records of operations of the open generation.
    change_records: Mutex<Vec<ChangeRecord>>,
    /// Fresh extents added while the open generation closes.
    fresh_extents: Mutex<Vec<FreshExtent>>,
    failed: OnceLock<Arc<str>>,
    stopped: AtomicBool,
    /// Called when [`Store::tick`] may have more to do than before.
    on_work: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Writer {
    /// Records that an operation ended or a plan was executed.
    fn worked(&self) {
        if let Some(call) = self.on_work.get() {
            call();
        }
    }

    fn most_dirty(&self) -> usize {
        self.most_dirty.load(Ordering::Relaxed)
    }

    fn has_unflushed(&self) -> bool {
        self.written.load(Ordering::Acquire) > self.flushed.load(Ordering::Acquire)
    }

    /// Discards the state of the open generation other than its blocks.
    pub(crate) fn discard(&self) {
        self.forgotten.lock().clear();
        self.change_records.lock().clear();
    }

    fn generation(&self) -> RwLockReadGuard<'_, u64> {
        self.generation.read()
    }

    /// Locks the generation exclusively: no operation runs meanwhile.
    pub(crate) fn lock_generation(&self) -> RwLockWriteGuard<'_, u64> {
        self.generation.write()
    }

    /// Checks that the volume can still be written.
    pub(crate) fn check(&self) -> Result<()> {
        if self.stopped.load(Ordering::Acquire) {
            return Err(Error::ReadOnly);
        }
        self.failed.get().map_or(Ok(()), |why| Err(Error::Failed(Arc::clone(why))))
    }

    /// Flushes writes to the store's device that are not part of generations.
    fn flush_data(&self, store: &Store) -> Result<()> {
        if !self.has_unflushed() {
            return Ok(());
        }
        let _alone = self.flusher.lock();
        self.check()?;
        // the previous owner of the lock may have flushed for this thread, too
        if self.has_unflushed() {
            let written = self.written.load(Ordering::Acquire);
            store.device.flush().map_err(Error::from).inspect_err(|e| store.fail(e))?;
            self.flushed.fetch_max(written, Ordering::AcqRel);
        }
        Ok(())
    }
}

pub(crate) struct Committer {
    pub(crate) engine: RunningEngine,
    clock: Clock,
}

/// The state of [`Store::tick`] from call to call.
#[derive(Default)]
struct Clock {
    /// The time since which the open generation contains changes, or a write waits for a flush.
    dirty_since: Option<Duration>,
    /// The time when the end of an operation was last seen, and the number of ended operations then.
    active: Duration,
    operations: u64,
}

impl Clock {
    /// The time for which no operation has ended, at `now`.
    fn quiet(&mut self, writer: &Writer, now: Duration) -> Duration {
        let operations = writer.operations.load(Ordering::Relaxed);
        if operations != self.operations {
            (self.operations, self.active) = (operations, now);
        }
        now.saturating_sub(self.active)
    }
}

/// Ends writing if the thread panics while this exists. Created after a lock is taken, so that it acts before the lock
/// is released.
pub(crate) struct EndOnPanic<'a>(&'a Store);

impl Drop for EndOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(&"an internal error left a change incomplete");
        }
    }
}

/// The engine of a volume that is open for writing.
pub(crate) enum RunningEngine {
    /// An engine without space of its own.
    Plain(Box<dyn Engine>),
    /// An engine with space of its own, and the file system's functions for it.
    WithSpace(Box<dyn EngineWithSpace>, Arc<dyn SpaceHooks>),
}

impl RunningEngine {
    pub(crate) fn engine(&mut self) -> &mut dyn Engine {
        match self {
            Self::Plain(engine) => &mut **engine,
            Self::WithSpace(engine, _) => &mut **engine,
        }
    }

    pub(crate) fn space(&mut self) -> Option<&mut dyn MetadataSpace> {
        match self {
            Self::Plain(_) => None,
            Self::WithSpace(engine, _) => Some(engine.metadata_space()),
        }
    }

    /// Before a generation of `blocks` blocks closes: requests the chunks that the engine needs for it, or returns
    /// some.
    pub(crate) fn supply(&mut self, closing: &Closing<'_>, blocks: usize) -> Result<()> {
        let Self::WithSpace(engine, hooks) = self else { return Ok(()) };
        let space = engine.metadata_space();
        let need = space.wanted_chunks(blocks);
        if need != Need::default() {
            space.grant_chunks(&hooks.grant_chunks(closing, need)?);
            return Ok(());
        }
        let surplus = space.surplus_chunks();
        if surplus.is_empty() { Ok(()) } else { hooks.return_chunks(closing, &surplus) }
    }
}

impl Store {
    /// Opens the volume for writing: operations may begin afterwards. Generations close after `interval` at the latest
    /// (provided that [`Store::tick`] is called).
    ///
    /// # Errors
    /// Those of the device, while the volume is marked as the engine requires.
    ///
    /// # Panics
    /// On a second call.
    pub fn start_writing(
        &self,
        engine: Box<dyn Engine>,
        hooks: Arc<dyn CommitHooks>,
        interval: Duration,
    ) -> Result<()> {
        self.start(RunningEngine::Plain(engine), hooks, interval)
    }

    pub(crate) fn start(
        &self,
        mut engine: RunningEngine,
        hooks: Arc<dyn CommitHooks>,
        interval: Duration,
    ) -> Result<()> {
        engine.engine().open(&*hooks)?.execute(&*self.storage)?;
        let dirty_limits = engine.space().map_or(DirtyLimits::ANY, |space| space.limits());
        let limits = engine.engine().limits();
        if limits.wants_change_records {
            self.cache.record_previous();
        }
        // the credits of the close stay announced as long as the volume is open
        let credits = hooks.closing_credits().min(limits.dirty_blocks / 4);
        let writer = Writer {
            dirty_limits: Mutex::new(dirty_limits),
            hooks,
            limits,
            most_dirty: AtomicUsize::new(limits.dirty_blocks),
            interval,
            generation: RwLock::new(1),
            committer: Mutex::new(Committer { engine, clock: Clock::default() }),
            in_transaction: AtomicBool::new(false),
            durable: AtomicU64::new(0),
            credits: AtomicUsize::new(credits),
            operations: AtomicU64::new(0),
            written: AtomicU64::new(0),
            flushed: AtomicU64::new(0),
            flusher: Mutex::new(()),
            forgotten: Mutex::new(Vec::new()),
            change_records: Mutex::new(Vec::new()),
            fresh_extents: Mutex::new(Vec::new()),
            failed: OnceLock::new(),
            stopped: AtomicBool::new(false),
            on_work: OnceLock::new(),
        };
        assert!(self.writer.set(writer).is_ok(), "the store is open for writing already");
        Ok(())
    }

    pub(crate) fn writer(&self) -> Result<&Writer> {
        let writer = self.writer.get().ok_or(Error::ReadOnly)?;
        writer.check().map(|()| writer)
    }

    /// Locks the committer, if the volume can still be written. The guard comes last, so that it acts before the lock
    /// is released.
    pub(crate) fn lock_committer<'a>(
        &'a self,
        writer: &'a Writer,
    ) -> Result<(MutexGuard<'a, Committer>, EndOnPanic<'a>)> {
        let locked = (writer.committer.lock(), EndOnPanic(self));
        writer.check().map(|()| locked)
    }

    /// Whether file data is written in the same way as metadata.
    pub fn journals_data(&self) -> bool {
        self.writer.get().is_some_and(|w| w.limits.journals_data)
    }

    /// The credits that an operation needs to write `blocks` blocks of file data.
    pub fn credits_for_data(&self, blocks: usize) -> usize {
        if self.journals_data() { blocks } else { 0 }
    }

    /// The maximum number of metadata blocks that one operation may announce.
    pub fn max_credits(&self) -> usize {
        self.writer.get().map_or(0, |w| w.limits.dirty_blocks / 4)
    }

    /// Limits the memory of the store: `cache` bytes of unchanged metadata in its cache, and `dirty` bytes of metadata
    /// changed by a generation. The latter is never more than the engine allows, nor less than one operation may
    /// announce.
    pub fn limit_memory(&self, cache: usize, dirty: usize) {
        self.cache.set_capacity(cache);
        if let Some(writer) = self.writer.get() {
            let blocks = dirty / self.block_size() as usize;
            let most = writer.limits.dirty_blocks;
            writer.most_dirty.store(blocks.clamp(self.max_credits().min(most), most), Ordering::Relaxed);
        }
    }

    /// Whether the open generation contains half of its limit, or as much as a close should have to do: [`Store::tick`]
    /// closes it then.
    pub fn is_half_full(&self) -> bool {
        let is_full = |writer: &Writer| self.cache.dirty() > writer.most_dirty() / 2 || writer.hooks.is_full();
        self.writer.get().is_some_and(is_full)
    }

    /// Begins an operation that changes at most `credits` metadata blocks (with journaled data: including blocks of
    /// data). May first have to close a generation and wait until it is written.
    ///
    /// # Errors
    /// [`Error::ReadOnly`], [`Error::Failed`], [`Error::TooLarge`].
    pub fn begin(&self, credits: usize) -> Result<Operation<'_>> {
        self.begin_with(credits, OperationKind::Ordinary)
    }

    /// As [`Store::begin`], for an operation of a kind: on a full volume one that frees may use more space.
    ///
    /// # Errors
    /// As [`Store::begin`]; [`Error::NoSpace`].
    pub fn begin_with(&self, credits: usize, kind: OperationKind) -> Result<Operation<'_>> {
        let writer = self.writer()?;
        let (mut alone, mut closed) = (false, false);
        if credits > self.max_credits() {
            return Err(Error::TooLarge { credits, limit: writer.limits.dirty_blocks });
        }
        loop {
            let open = writer.generation();
            // writing may have ended while this thread waited for the lock
            writer.check()?;
            let announced = writer.credits.fetch_add(credits, Ordering::Relaxed) + credits;
            let in_transaction = writer.is_in_transaction();
            let limit = if in_transaction { writer.limits.transaction_blocks } else { writer.most_dirty() };
            let most = writer.dirty_limits.lock().of(kind);
            let dirty = self.cache.dirty();
            // once is enough: an operation that changed no block does not call the hooks
            let is_full = !closed && !in_transaction && writer.hooks.is_full();
            if dirty + announced <= limit.min(most) && !is_full {
                return Ok(Operation::new(self, open, credits, kind));
            }
            let full = *open;
            drop(open);
            writer.credits.fetch_sub(credits, Ordering::Relaxed);
            if in_transaction {
                let wanted = dirty + announced;
                if wanted <= limit && self.widen(writer, wanted)?.of(kind) >= wanted {
                    continue;
                }
                return Err(Error::TransactionTooLarge { limit: limit.min(most) });
            }
            // an empty generation is not large enough, and the previous one is durable
            if credits > most
                && dirty == 0
                && self.durable_generation() + 1 == full
                && std::mem::replace(&mut alone, true)
            {
                return Err(Error::NoSpace);
            }
            closed |= is_full;
            self.commit(full, CommitReason::DirtyLimit)?;
        }
    }

    /// Announces `more` blocks for an operation that announced `credits`; see [`Operation::extend`].
    pub(crate) fn extend_credits(&self, credits: usize, more: usize, kind: OperationKind) -> bool {
        let Some(writer) = self.writer.get().filter(|_| credits + more <= self.max_credits()) else { return false };
        let limit = if writer.is_in_transaction() { writer.limits.transaction_blocks } else { writer.most_dirty() };
        let most = writer.dirty_limits.lock().of(kind).min(limit);
        let announced = writer.credits.fetch_add(more, Ordering::Relaxed) + more;
        let fits = self.cache.dirty() + announced <= most;
        if !fits {
            writer.credits.fetch_sub(more, Ordering::Relaxed);
        }
        fits
    }

    pub(crate) fn operation_ends(&self, credits: usize) {
        drop(EndOnPanic(self));
        if let Some(writer) = self.writer.get() {
            writer.credits.fetch_sub(credits, Ordering::Relaxed);
            writer.operations.fetch_add(1, Ordering::Relaxed);
            writer.worked();
        }
    }

    pub(crate) fn forget(&self, first: FsBlock, count: u64) {
        let Some(writer) = self.writer.get() else { return };
        self.cache.forget(BlockExtent { first, count });
        if writer.limits.wants_forgotten {
            writer.forgotten.lock().push(BlockExtent { first, count });
        }
    }

    pub(crate) fn write_fresh_extent(&self, run: FreshExtent) {
        if let Some(writer) = self.writer.get() {
            writer.fresh_extents.lock().push(run);
        }
    }

    pub(crate) fn wants_change_records(&self) -> bool {
        self.writer.get().is_some_and(|writer| writer.limits.wants_change_records)
    }

    pub(crate) fn record_change(&self, record: impl FnOnce() -> ChangeRecord) {
        if let Some(writer) = self.writer.get().filter(|_| self.wants_change_records()) {
            writer.change_records.lock().push(record());
        }
    }

    pub(crate) fn write_data(&self, owner: InodeNo, first: FsBlock, offset: u64, data: &[u8]) -> Result<()> {
        let writer = self.writer()?;
        let at = self.cache.position(first, offset, data.len() as u64)?;
        if writer.limits.journals_data {
            return self.journal_data(owner, at, data);
        }
        let outcome = self.device.write(at, data).map_err(Error::from);
        writer.written.fetch_add(1, Ordering::Release);
        outcome.inspect_err(|e| self.fail(e))
    }

    fn journal_data(&self, owner: InodeNo, at: u64, data: &[u8]) -> Result<()> {
        let size = u64::from(self.block_size());
        let tag = Tag::new(Kind::Data, owner);
        // the unwritten parts of blocks are read first: an error leaves everything unchanged
        let end = at + data.len() as u64;
        for edge in [at, end].into_iter().filter(|edge| !edge.is_multiple_of(size)) {
            self.block(FsBlock(edge / size))?;
        }
        let mut at = at;
        let mut rest = data;
        while !rest.is_empty() {
            let (block, inside) = (FsBlock(at / size), (at % size) as usize);
            let (part, after) = rest.split_at(rest.len().min(size as usize - inside));
            if part.len() as u64 == size {
                self.cache.replace(block, tag, |bytes| bytes.copy_from_slice(part));
            } else {
                self.cache.edit(block, tag, |bytes| bytes[inside..inside + part.len()].copy_from_slice(part))?;
            }
            at += part.len() as u64;
            rest = after;
        }
        Ok(())
    }

    /// The reason why nothing is written any more, after a failure.
    pub fn failure(&self) -> Option<Arc<str>> {
        self.writer.get()?.failed.get().cloned()
    }

    /// Turns the volume read-only permanently: changes in memory cannot be relied on to reach the device any more.
    pub fn fail(&self, why: &dyn std::fmt::Display) {
        if let Some(writer) = self.writer.get() {
            writer.failed.get_or_init(|| Arc::from(why.to_string()));
        }
    }

    /// The number of the open generation.
    pub fn open_generation(&self) -> u64 {
        self.writer.get().map_or(0, |w| *w.generation())
    }

    /// The number of the newest durable generation.
    pub fn durable_generation(&self) -> u64 {
        self.writer.get().map_or(0, |w| w.durable.load(Ordering::Acquire))
    }

    /// Returns when everything that was done before the call is durable, as far as the engine guarantees it.
    ///
    /// # Errors
    /// Those of the device; then the volume is read-only, and every later call fails.
    pub fn sync(&self) -> Result<()> {
        self.sync_generation(self.open_generation())
    }

    /// As [`Store::sync`] for everything done up to a generation (and for all file data written): does not wait if that
    /// is durable already.
    ///
    /// # Errors
    /// As [`Store::sync`].
    pub fn sync_generation(&self, generation: u64) -> Result<()> {
        let writer = self.writer()?;
        if self.durable_generation() < generation {
            return self.commit(generation, CommitReason::Sync);
        }
        writer.flush_data(self)
    }

    /// Closes generations until `generation` is written, and for a sync until it is durable.
    fn commit(&self, generation: u64, reason: CommitReason) -> Result<()> {
        let writer = self.writer()?;
        let (mut committer, _guard) = self.lock_committer(writer)?;
        loop {
            // another thread may have written it while this one waited
            let newest = match reason {
                CommitReason::Sync => self.durable_generation(),
                _ => self.open_generation() - 1,
            };
            // a generation that is open for a transaction is not waited for
            if newest >= generation || writer.is_in_transaction() {
                return Ok(());
            }
            self.close_and_write(writer, &mut committer, reason).inspect_err(|e| self.fail(e))?;
        }
    }

    /// Closes the open generation, whatever it contains, and returns when it is durable.
    pub(crate) fn commit_now(&self, writer: &Writer) -> Result<()> {
        let (mut committer, _guard) = self.lock_committer(writer)?;
        let generation = self.open_generation();
        while self.durable_generation() < generation {
            self.close_and_write(writer, &mut committer, CommitReason::Sync).inspect_err(|e| self.fail(e))?;
        }
        Ok(())
    }

    pub(crate) fn close_and_write(
        &self,
        writer: &Writer,
        committer: &mut Committer,
        reason: CommitReason,
    ) -> Result<()> {
        self.cache.set_table_checksums(|block, tag, bytes| writer.hooks.set_checksum(block, tag, bytes));
        let mut generation = writer.lock_generation();
        let closed = self.close(writer, &mut committer.engine, &mut generation, reason)?;
        drop(generation);
        self.write_closed(writer, committer, closed)
    }

    fn write_closed(&self, writer: &Writer, committer: &mut Committer, closed: ClosedGeneration) -> Result<()> {
        committer.clock.dirty_since = None;
        let plan = committer.engine.engine().plan(closed, &*writer.hooks)?;
        self.carry_out(writer, &mut committer.engine, &plan)
    }

    fn carry_out(&self, writer: &Writer, engine: &mut RunningEngine, plan: &Plan) -> Result<()> {
        let before = writer.written.load(Ordering::Acquire);
        plan.execute(&*self.storage)?;
        if plan.stages.iter().any(|stage| stage.flush) {
            writer.flushed.fetch_max(before, Ordering::AcqRel);
        }
        if plan.stages.last().is_some_and(|last| !last.flush && !last.writes.is_empty()) {
            writer.written.fetch_add(1, Ordering::Release);
        }
        self.cache.unpin(&plan.home);
        if plan.durable > self.durable_generation() {
            if let Some(space) = engine.space() {
                space.durable();
                *writer.dirty_limits.lock() = space.limits();
            }
            writer.durable.store(plan.durable, Ordering::Release);
            writer.hooks.durable(plan.durable);
        }
        writer.worked();
        Ok(())
    }

    /// Closes the open generation, which is locked, and opens the next.
    fn close(
        &self,
        writer: &Writer,
        engine: &mut RunningEngine,
        generation: &mut u64,
        reason: CommitReason,
    ) -> Result<ClosedGeneration> {
        let number = *generation;
        let mut forgotten = std::mem::take(&mut *writer.forgotten.lock());
        let closing = Closing { store: self, generation: number };
        engine.supply(&closing, self.cache.dirty())?;
        let has_requests = engine.space().is_some_and(|space| space.has_requests(number));
        if self.cache.dirty() > 0 || !forgotten.is_empty() || has_requests {
            writer.hooks.finish(&closing)?;
        }
        if let Some(space) = engine.space() {
            *writer.dirty_limits.lock() = space.limits_behind(self.cache.dirty());
        }
        let blocks = self.cache.close(|block, tag, bytes| writer.hooks.set_checksum(block, tag, bytes));
        let change_records = std::mem::take(&mut *writer.change_records.lock());
        let fresh_extents = std::mem::take(&mut *writer.fresh_extents.lock());
        forgotten.sort_unstable_by_key(|run| run.first);
        *generation = number + 1;
        let unflushed = writer.has_unflushed();
        Ok(ClosedGeneration { number, reason, blocks, fresh_extents, forgotten, unflushed, change_records })
    }

    /// Whether the volume has been quiet for so long that the engine wants everything on the device, including delayed
    /// data.
    pub fn rests(&self, now: Duration) -> bool {
        let Some(writer) = self.writer.get() else { return false };
        let Some(mut committer) = writer.committer.try_lock() else { return false };
        writer.limits.rests_after.is_some_and(|after| committer.clock.quiet(writer, now) >= after)
    }

    /// Excludes the operations up to now from activity: they only wrote the changes of others to the device, and do not
    /// end the quiet.
    pub fn stay_quiet(&self) {
        let Some(writer) = self.writer.get() else { return };
        if let Some(mut committer) = writer.committer.try_lock() {
            committer.clock.operations = writer.operations.load(Ordering::Relaxed);
        }
    }

    /// Does the work that is due at `now` (counted from any fixed moment): closes a generation that has been open for
    /// too long or is half full, flushes content that was overwritten in place as long ago, and lets the engine use a
    /// quiet moment. To be called a few times a second.
    ///
    /// # Errors
    /// As [`Store::sync`].
    pub fn tick(&self, now: Duration) -> Result<()> {
        self.tick_with(now, false)
    }

    /// As [`Store::tick`]; `is_delayed`: there is delayed data, so that the engine does not regard the content
    /// of the device as complete.
    ///
    /// # Errors
    /// As [`Store::sync`].
    pub fn tick_with(&self, now: Duration, is_delayed: bool) -> Result<()> {
        let writer = self.writer()?;
        // a thread that is committing does the work that is due
        let Some(mut committer) = writer.committer.try_lock() else { return Ok(()) };
        let _guard = EndOnPanic(self);
        writer.check()?;
        if writer.is_in_transaction() {
            return Ok(());
        }
        let dirty = self.cache.dirty() > 0;
        let clock = &mut committer.clock;
        let quiet = clock.quiet(writer, now);
        let waits = dirty || writer.has_unflushed();
        let since = if waits { Some(*clock.dirty_since.get_or_insert(now)) } else { None };
        clock.dirty_since = since;
        // operations would soon have to wait for it
        let outcome = if self.is_half_full() {
            self.close_and_write(writer, &mut committer, CommitReason::DirtyLimit)
        } else if since.is_some_and(|since| now.saturating_sub(since) >= writer.interval) {
            if dirty {
                self.close_and_write(writer, &mut committer, CommitReason::Timeout)
            } else {
                writer.flush_data(self)
            }
        } else {
            self.use_quiet(writer, &mut committer, quiet, dirty, is_delayed)
        };
        outcome.inspect_err(|e| self.fail(e))
    }

    /// Sets a function that is called after each operation and each executed plan: [`Store::tick`] may then have new
    /// work. It must be cheap, and must not use the store. May be called once.
    pub fn on_work(&self, call: Box<dyn Fn() + Send + Sync>) {
        if let Some(writer) = self.writer.get() {
            // the function of the first call stays
            let _ = writer.on_work.set(call);
        }
    }

    /// The time at which [`Store::tick_with`] next has work if nothing happens until then, or at which the volume
    /// [rests](Store::rests) while there is delayed data; `now` if that is unknown, as while another thread commits,
    /// and `None` if there is no work. To be called after it, with the same `is_delayed`; `is_refused`: no
    /// space was found for the delayed data in this quiet.
    pub fn next_due(&self, now: Duration, is_delayed: bool, is_refused: bool) -> Option<Duration> {
        let writer = self.writer.get()?;
        let Some(mut committer) = writer.committer.try_lock() else { return Some(now) };
        if writer.check().is_err() || writer.is_in_transaction() {
            return None;
        }
        if self.is_half_full() {
            return Some(now);
        }
        let Committer { engine, clock } = &mut *committer;
        let dirty = self.cache.dirty() > 0;
        let waits = dirty || writer.has_unflushed();
        let by_time = waits.then(|| clock.dirty_since.map_or(now, |since| since.saturating_add(writer.interval)));
        let compaction = if dirty { None } else { engine.space().and_then(|space| space.compaction_after()) };
        let idle = match writer.limits.rests_after {
            // the engine waits for delayed data
            Some(after) if is_delayed && !dirty => (!is_refused).then_some(after),
            _ => match engine.engine().idle(Duration::ZERO, dirty, &*writer.hooks) {
                Idle::Nothing => None,
                Idle::After(after) => Some(after),
                Idle::Commit | Idle::Run(_) => Some(Duration::ZERO),
            },
        };
        let by_quiet = compaction.into_iter().chain(idle).min().map(|after| clock.active.saturating_add(after));
        by_time.into_iter().chain(by_quiet).min()
    }

    /// Lets the engine use the moment when no operation ended for `quiet`, with or without changed blocks (`dirty`) and
    /// delayed data (`is_delayed`).
    fn use_quiet(
        &self,
        writer: &Writer,
        committer: &mut Committer,
        quiet: Duration,
        dirty: bool,
        is_delayed: bool,
    ) -> Result<()> {
        let compaction = if dirty { None } else { committer.engine.space().and_then(|space| space.compaction_after()) };
        if compaction.is_some_and(|after| quiet >= after) {
            return self.close_compacting(writer, committer, Compaction::Quiet);
        }
        let rests = writer.limits.rests_after.is_some_and(|after| quiet >= after);
        if rests && is_delayed && !dirty {
            return Ok(());
        }
        match committer.engine.engine().idle(quiet, dirty, &*writer.hooks) {
            Idle::Nothing | Idle::After(_) => Ok(()),
            Idle::Commit => self.close_and_write(writer, committer, CommitReason::Sync),
            Idle::Run(plan) => {
                // data overwritten in place counts as well
                if rests {
                    writer.flush_data(self)?;
                }
                self.carry_out(writer, &mut committer.engine, &plan)
            }
        }
    }

    /// Writes everything to its home location and marks the volume clean: the last step before unmounting. Afterwards
    /// no operation begins.
    ///
    /// # Errors
    /// As [`Store::sync`].
    pub fn stop_writing(&self) -> Result<()> {
        self.sync()?;
        let writer = self.writer()?;
        let (mut committer, _committing) = self.lock_committer(writer)?;
        // operations that began since the sync have ended when it is locked; those that wait for it do not begin
        let mut generation = writer.lock_generation();
        let _guard = EndOnPanic(self);
        writer.check()?;
        let outcome = self.close_last(writer, &mut committer, &mut generation).inspect_err(|e| self.fail(e));
        writer.stopped.store(true, Ordering::Release);
        outcome
    }

    fn close_last(&self, writer: &Writer, committer: &mut Committer, generation: &mut u64) -> Result<()> {
        let last = self.close(writer, &mut committer.engine, generation, CommitReason::Sync)?;
        self.write_closed(writer, committer, last)?;
        let plan = committer.engine.engine().close(&*writer.hooks)?;
        self.carry_out(writer, &mut committer.engine, &plan)
    }
}
