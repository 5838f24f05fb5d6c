//! Generations of a volume that is open for writing: when they close, and how they reach the device.
//!
//! 1. Operations hold the gate shared, closing holds it alone: a generation consists of whole operations.
//! 2. Closing takes memory operations only; the device is written after the gate is open again, so operations of the
//!    next generation go on meanwhile.
//! 3. One generation is on its way at a time (the `committer` lock): a later one never overtakes an earlier one.
//! 4. After a write or flush has failed, no operation begins and nothing is written, and everyone who asks for durability
//!    hears of it.
//! 5. A panic in the middle of an operation, of closing or of planning is such a failure: what is half done stays in memory.
//! 6. Writes that no flush has followed are known by two counts: `written` grows after each write has returned, `flushed`
//!    is what `written` was before the newest flush that has returned began. So nobody takes a flush that is still under
//!    way for one that is done.
//!
//! There is no thread in here: [`Store::tick`] is called by whoever keeps time, with the time.

use crate::engine::{Idle, Limits};
use crate::recovery::Run;
use crate::{
    Cause, Client, ClosedGeneration, Closing, Engine, Error, Kind, Need, Operation, Plan, Result, Room, Store, Tag,
    VersionChange,
};
use blockdev::BlockDevice;
use format::{FsBlock, InodeNo};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, TryLockError};
use std::time::Duration;

/// What a store needs to write.
pub(crate) struct Writer {
    client: Arc<dyn Client>,
    limits: Limits,
    /// Most blocks that a generation may change as long as memory is what it is: no more than the engine can take.
    most_dirty: AtomicUsize,
    interval: Duration,
    /// The number of the open generation; numbers begin at 1.
    pub(crate) gate: RwLock<u64>,
    pub(crate) committer: Mutex<Committer>,
    /// Somebody holds the open generation: see [`Store::hold_generation`].
    pub(crate) held: AtomicBool,
    /// The newest generation that is durable.
    durable: AtomicU64,
    /// Blocks that running operations may still change.
    credits: AtomicUsize,
    /// What the open generation may change.
    pub(crate) room: Mutex<Room>,
    /// Operations that have ended; tells whether the volume is quiet.
    operations: AtomicU64,
    /// Requests of any kind written; see the invariants.
    written: AtomicU64,
    flushed: AtomicU64,
    /// Held by who flushes for file data alone, so that all who wait share one flush.
    flusher: Mutex<()>,
    /// Freed in the open generation.
    forgotten: Mutex<Vec<Run>>,
    /// What becomes of the snapshots when the open generation closes.
    versions: Mutex<Vec<VersionChange>>,
    failed: OnceLock<Arc<str>>,
    stopped: AtomicBool,
}

impl Writer {
    fn most_dirty(&self) -> usize {
        self.most_dirty.load(Ordering::Relaxed)
    }

    fn has_unflushed(&self) -> bool {
        self.written.load(Ordering::Acquire) > self.flushed.load(Ordering::Acquire)
    }

    /// What the open generation has besides its blocks goes with it.
    pub(crate) fn discard(&self) {
        lock(&self.forgotten).clear();
        lock(&self.versions).clear();
    }

    /// Writing goes on.
    fn check(&self) -> Result<()> {
        if self.stopped.load(Ordering::Acquire) {
            return Err(Error::ReadOnly);
        }
        self.failed.get().map_or(Ok(()), |why| Err(Error::Failed(Arc::clone(why))))
    }
}

pub(crate) struct Committer {
    pub(crate) engine: Box<dyn Engine>,
    clock: Clock,
}

/// What [`Store::tick`] remembers from call to call.
#[derive(Default)]
struct Clock {
    /// Since when the open generation holds changes, or something written waits for a flush.
    dirty_since: Option<Duration>,
    /// When an operation was last seen to have ended, and how many had by then.
    active: Duration,
    operations: u64,
}

impl Clock {
    /// How long no operation has ended, at `now`.
    fn quiet(&mut self, writer: &Writer, now: Duration) -> Duration {
        let operations = writer.operations.load(Ordering::Relaxed);
        if operations != self.operations {
            (self.operations, self.active) = (operations, now);
        }
        now.saturating_sub(self.active)
    }
}

/// Ends writing if the thread panics while this exists. Made after a lock is taken, so that it acts before the lock is free.
struct EndOnPanic<'a>(&'a Store);

impl Drop for EndOnPanic<'_> {
    fn drop(&mut self) {
        self.0.end_on_panic();
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Store {
    /// Opens the volume for writing: from now on operations may begin. Generations close after `interval` at the latest
    /// (as far as [`Store::tick`] is called).
    ///
    /// # Errors
    /// Those of the device, while the volume is marked as the engine wants it.
    ///
    /// # Panics
    /// On a second call.
    pub fn start_writing(
        &self,
        mut engine: Box<dyn Engine>,
        client: Arc<dyn Client>,
        interval: Duration,
    ) -> Result<()> {
        engine.open(&*client)?.execute(&*self.storage)?;
        let room = Mutex::new(engine.room());
        let writer = Writer {
            room,
            client,
            limits: engine.limits(),
            most_dirty: AtomicUsize::new(engine.limits().dirty_blocks),
            interval,
            gate: RwLock::new(1),
            committer: Mutex::new(Committer { engine, clock: Clock::default() }),
            held: AtomicBool::new(false),
            durable: AtomicU64::new(0),
            credits: AtomicUsize::new(0),
            operations: AtomicU64::new(0),
            written: AtomicU64::new(0),
            flushed: AtomicU64::new(0),
            flusher: Mutex::new(()),
            forgotten: Mutex::new(Vec::new()),
            versions: Mutex::new(Vec::new()),
            failed: OnceLock::new(),
            stopped: AtomicBool::new(false),
        };
        assert!(self.writer.set(writer).is_ok(), "the store is open for writing already");
        Ok(())
    }

    pub(crate) fn writer(&self) -> Result<&Writer> {
        let writer = self.writer.get().ok_or(Error::ReadOnly)?;
        writer.check().map(|()| writer)
    }

    /// Whether file data goes the way of metadata.
    pub fn journals_data(&self) -> bool {
        self.writer.get().is_some_and(|w| w.limits.journals_data)
    }

    /// Most metadata blocks one operation may announce.
    pub fn max_credits(&self) -> usize {
        self.writer.get().map_or(0, |w| w.limits.dirty_blocks / 4)
    }

    /// What the store may take of memory from now on: bytes of unchanged metadata in its cache, and bytes of metadata
    /// that a generation changes. Of the latter never more than the engine can take, nor less than one operation may
    /// announce.
    pub fn limit_memory(&self, cache: usize, dirty: usize) {
        self.cache.set_capacity(cache);
        if let Some(writer) = self.writer.get() {
            let blocks = dirty / self.block_size() as usize;
            let most = writer.limits.dirty_blocks;
            writer.most_dirty.store(blocks.clamp(self.max_credits().min(most), most), Ordering::Relaxed);
        }
    }

    /// Whether the open generation holds half of what it may: [`Store::tick`] closes it then.
    pub fn is_half_full(&self) -> bool {
        self.writer.get().is_some_and(|writer| self.cache.dirty() > writer.most_dirty() / 2)
    }

    /// Begins an operation that changes at most `credits` metadata blocks (with journaled data: and blocks of data).
    /// May first have to close a generation and wait until it is written.
    ///
    /// # Errors
    /// [`Error::ReadOnly`], [`Error::Failed`], [`Error::TooLarge`].
    pub fn begin(&self, credits: usize) -> Result<Operation<'_>> {
        self.begin_with(credits, |room| room.ordinary)
    }

    /// As [`Store::begin`]; `room` says what of the engine's room the operation may use: one that frees may use more.
    ///
    /// # Errors
    /// As [`Store::begin`]; [`Error::NoRoom`].
    pub fn begin_with(&self, credits: usize, room: fn(Room) -> usize) -> Result<Operation<'_>> {
        let writer = self.writer()?;
        let mut alone = false;
        if credits > self.max_credits() {
            return Err(Error::TooLarge { credits, limit: writer.limits.dirty_blocks });
        }
        loop {
            let open = writer.gate.read().unwrap_or_else(PoisonError::into_inner);
            // it may have ended while this thread waited at the gate
            writer.check()?;
            let announced = writer.credits.fetch_add(credits, Ordering::Relaxed) + credits;
            let held = writer.is_held();
            let limit = if held { writer.limits.held_blocks } else { writer.most_dirty() };
            let most = room(*lock(&writer.room));
            let dirty = self.cache.dirty();
            if dirty + announced <= limit.min(most) {
                return Ok(Operation::new(self, open, credits));
            }
            let full = *open;
            drop(open);
            writer.credits.fetch_sub(credits, Ordering::Relaxed);
            if held {
                let wanted = dirty + announced;
                if wanted <= limit && room(self.widen(writer, wanted)?) >= wanted {
                    continue;
                }
                return Err(Error::HeldTooLarge { limit: limit.min(most) });
            }
            // a generation of its own is not large enough, and the one before it is durable
            if credits > most
                && dirty == 0
                && self.durable_generation() + 1 == full
                && std::mem::replace(&mut alone, true)
            {
                return Err(Error::NoRoom);
            }
            self.commit(full, Cause::DirtyLimit)?;
        }
    }

    /// Makes room for so many blocks in the generation that is held, as far as there is any: the room there is.
    fn widen(&self, writer: &Writer, blocks: usize) -> Result<Room> {
        let mut committer = lock(&writer.committer);
        let _guard = EndOnPanic(self);
        writer.check()?;
        let gate = writer.gate.write().unwrap_or_else(PoisonError::into_inner);
        let engine = &mut *committer.engine;
        let closing = Closing { store: self, generation: *gate, versions: &[] };
        let need = Need { must: engine.wanted_chunks(blocks).must, should: 0 };
        let chunks = writer.client.give_chunks(&closing, need).inspect_err(|e| self.fail(e))?;
        engine.give_chunks(&chunks);
        *lock(&writer.room) = engine.room();
        Ok(engine.room())
    }

    fn end_on_panic(&self) {
        if std::thread::panicking() {
            self.fail(&"an internal error left a change half done");
        }
    }

    pub(crate) fn operation_ends(&self, credits: usize) {
        self.end_on_panic();
        if let Some(writer) = self.writer.get() {
            writer.credits.fetch_sub(credits, Ordering::Relaxed);
            writer.operations.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn forget(&self, first: FsBlock, count: u64) {
        let Some(writer) = self.writer.get() else { return };
        self.cache.forget(Run { first, count });
        if writer.limits.wants_forgotten {
            lock(&writer.forgotten).push(Run { first, count });
        }
    }

    pub(crate) fn change_versions(&self, change: VersionChange) {
        let Some(writer) = self.writer.get() else { return };
        lock(&writer.versions).push(change);
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
        let tag = Tag { kind: Kind::Data, owner, seed: 0 };
        // what of a block is not written is read first: an error leaves all as it was
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
                self.cache.fresh(block, tag, |bytes| bytes.copy_from_slice(part));
            } else {
                self.cache.edit(block, tag, |bytes| bytes[inside..inside + part.len()].copy_from_slice(part))?;
            }
            at += part.len() as u64;
            rest = after;
        }
        Ok(())
    }

    /// Why nothing is written any more, if something failed.
    pub fn failure(&self) -> Option<Arc<str>> {
        self.writer.get()?.failed.get().cloned()
    }

    /// Turns the volume read-only for good: what is in memory can no longer be trusted to reach the device.
    pub fn fail(&self, why: &dyn std::fmt::Display) {
        if let Some(writer) = self.writer.get() {
            writer.failed.get_or_init(|| Arc::from(why.to_string()));
        }
    }

    /// The number of the generation that is open now.
    pub fn open_generation(&self) -> u64 {
        self.writer.get().map_or(0, |w| *w.gate.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The newest generation that would survive a loss of power.
    pub fn durable_generation(&self) -> u64 {
        self.writer.get().map_or(0, |w| w.durable.load(Ordering::Acquire))
    }

    /// Returns when everything that was done before the call would survive a loss of power, as far as the engine
    /// promises it.
    ///
    /// # Errors
    /// Those of the device; then the volume is read-only, and every later call fails.
    pub fn sync(&self) -> Result<()> {
        self.sync_generation(self.open_generation())
    }

    /// As [`Store::sync`] for what was done up to a generation (and for all file data written): nothing is waited for
    /// where that is durable already.
    ///
    /// # Errors
    /// As [`Store::sync`].
    pub fn sync_generation(&self, generation: u64) -> Result<()> {
        let writer = self.writer()?;
        if self.durable_generation() < generation {
            return self.commit(generation, Cause::Sync);
        }
        self.flush_data(writer)
    }

    /// Flushes what was written beside the generations.
    fn flush_data(&self, writer: &Writer) -> Result<()> {
        if !writer.has_unflushed() {
            return Ok(());
        }
        let _alone = lock(&writer.flusher);
        writer.check()?;
        // whoever held the lock before may have flushed for this thread too
        if writer.has_unflushed() {
            let written = writer.written.load(Ordering::Acquire);
            self.device.flush().map_err(Error::from).inspect_err(|e| self.fail(e))?;
            writer.flushed.fetch_max(written, Ordering::AcqRel);
        }
        Ok(())
    }

    /// Closes generations until `generation` is durable.
    fn commit(&self, generation: u64, cause: Cause) -> Result<()> {
        let writer = self.writer()?;
        let mut committer = lock(&writer.committer);
        let _guard = EndOnPanic(self);
        writer.check()?;
        // another thread may have written it while this one waited; one that is held is not waited for
        if self.durable_generation() >= generation || writer.is_held() {
            return Ok(());
        }
        self.close_and_write(writer, &mut committer, cause).inspect_err(|e| self.fail(e))
    }

    /// Closes the open generation, whatever it holds.
    pub(crate) fn commit_now(&self, writer: &Writer, cause: Cause) -> Result<()> {
        let mut committer = lock(&writer.committer);
        let _guard = EndOnPanic(self);
        writer.check()?;
        self.close_and_write(writer, &mut committer, cause).inspect_err(|e| self.fail(e))
    }

    fn close_and_write(&self, writer: &Writer, committer: &mut Committer, cause: Cause) -> Result<()> {
        self.cache.seal_tables(|block, tag, bytes| writer.client.seal(block, tag, bytes));
        let mut gate = writer.gate.write().unwrap_or_else(PoisonError::into_inner);
        let closed = self.close(writer, &mut *committer.engine, &mut gate, cause)?;
        drop(gate);
        self.write_closed(writer, committer, closed)
    }

    fn write_closed(&self, writer: &Writer, committer: &mut Committer, closed: ClosedGeneration) -> Result<()> {
        committer.clock.dirty_since = None;
        let number = closed.number;
        let plan = committer.engine.plan(closed, &*writer.client)?;
        self.carry_out(writer, &plan)?;
        committer.engine.durable();
        *lock(&writer.room) = committer.engine.room();
        writer.durable.store(number, Ordering::Release);
        writer.client.durable(number);
        Ok(())
    }

    fn carry_out(&self, writer: &Writer, plan: &Plan) -> Result<()> {
        let before = writer.written.load(Ordering::Acquire);
        plan.execute(&*self.storage)?;
        if plan.stages.iter().any(|stage| stage.flush) {
            writer.flushed.fetch_max(before, Ordering::AcqRel);
        }
        if plan.stages.last().is_some_and(|last| !last.flush && !last.writes.is_empty()) {
            writer.written.fetch_add(1, Ordering::Release);
        }
        self.cache.unpin(&plan.home);
        Ok(())
    }

    /// Ends the open generation and opens the next. `gate` is held alone.
    fn close(
        &self,
        writer: &Writer,
        engine: &mut dyn Engine,
        gate: &mut u64,
        cause: Cause,
    ) -> Result<ClosedGeneration> {
        let number = *gate;
        let mut forgotten = std::mem::take(&mut *lock(&writer.forgotten));
        let versions = std::mem::take(&mut *lock(&writer.versions));
        let closing = Closing { store: self, generation: number, versions: &versions };
        let need = engine.wanted_chunks(self.cache.dirty());
        if need != Need::default() {
            engine.give_chunks(&writer.client.give_chunks(&closing, need)?);
        } else if matches!(cause, Cause::Idle | Cause::Tidy) {
            let spare = engine.spare_chunks(cause);
            if !spare.is_empty() {
                writer.client.take_chunks_back(&closing, &spare)?;
            }
        }
        if self.cache.dirty() > 0 || !forgotten.is_empty() || !versions.is_empty() {
            writer.client.finish(&closing)?;
        }
        *lock(&writer.room) = engine.room_behind(self.cache.dirty());
        let blocks = self.cache.close(|block, tag, bytes| writer.client.seal(block, tag, bytes));
        forgotten.sort_unstable_by_key(|run| run.first);
        *gate = number + 1;
        Ok(ClosedGeneration { number, cause, blocks, forgotten, unflushed: writer.has_unflushed(), versions })
    }

    /// Whether nothing has happened for so long that the engine wants all there is on the device, also content that no
    /// operation has given a place yet.
    pub fn rests(&self, now: Duration) -> bool {
        let Some(writer) = self.writer.get() else { return false };
        let Ok(mut committer) = writer.committer.try_lock() else { return false };
        let quiet = committer.clock.quiet(writer, now);
        committer.engine.rests(quiet)
    }

    /// The operations up to now were made to bring to the device what others did: they do not end the quiet.
    pub fn stay_quiet(&self) {
        let Some(writer) = self.writer.get() else { return };
        if let Ok(mut committer) = writer.committer.try_lock() {
            committer.clock.operations = writer.operations.load(Ordering::Relaxed);
        }
    }

    /// Does what is due at `now` (counted from any fixed moment): closes a generation that is open for too long or half
    /// full, flushes content that was overwritten in its place as long ago, and lets the engine use a quiet moment. To
    /// be called a few times a second.
    ///
    /// # Errors
    /// As [`Store::sync`].
    pub fn tick(&self, now: Duration) -> Result<()> {
        self.tick_with(now, false)
    }

    /// As [`Store::tick`]; `content_waits` says that there is content which no operation has given a place, so that the
    /// engine does not take what is on the device for all there is.
    ///
    /// # Errors
    /// As [`Store::sync`].
    pub fn tick_with(&self, now: Duration, content_waits: bool) -> Result<()> {
        let writer = self.writer()?;
        // whoever commits just now does what is due
        let mut committer = match writer.committer.try_lock() {
            Ok(committer) => committer,
            Err(TryLockError::Poisoned(committer)) => committer.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(()),
        };
        let _guard = EndOnPanic(self);
        writer.check()?;
        if writer.is_held() {
            return Ok(());
        }
        let dirty = self.cache.dirty() > 0;
        let clock = &mut committer.clock;
        let quiet = clock.quiet(writer, now);
        let waits = dirty || writer.has_unflushed();
        let since = if waits { Some(*clock.dirty_since.get_or_insert(now)) } else { None };
        clock.dirty_since = since;
        // soon operations would have to wait for it
        let outcome = if self.is_half_full() {
            self.close_and_write(writer, &mut committer, Cause::DirtyLimit)
        } else if since.is_some_and(|since| now.saturating_sub(since) >= writer.interval) {
            if dirty { self.close_and_write(writer, &mut committer, Cause::Timeout) } else { self.flush_data(writer) }
        } else {
            let rests = committer.engine.rests(quiet);
            let idle = match rests && content_waits && !dirty {
                true => Idle::Nothing,
                false => committer.engine.idle(quiet, dirty, &*writer.client),
            };
            match idle {
                Idle::Nothing => Ok(()),
                // what was written over in its place counts as well
                Idle::Run(plan) if rests => self.flush_data(writer).and_then(|()| self.carry_out(writer, &plan)),
                Idle::Commit => self.close_and_write(writer, &mut committer, Cause::Sync),
                Idle::Tidy => self.close_and_write(writer, &mut committer, Cause::Idle),
                Idle::Run(plan) => self.carry_out(writer, &plan),
            }
        };
        outcome.inspect_err(|e| self.fail(e))
    }

    /// Lets the engine give back some of what it does not need; false where there is nothing.
    ///
    /// # Errors
    /// As [`Store::sync`].
    pub fn tidy(&self) -> Result<bool> {
        let writer = self.writer()?;
        let mut committer = lock(&writer.committer);
        let _guard = EndOnPanic(self);
        writer.check()?;
        if committer.engine.is_tidy() {
            return Ok(false);
        }
        self.close_and_write(writer, &mut committer, Cause::Tidy).inspect_err(|e| self.fail(e))?;
        Ok(true)
    }

    /// Brings everything to its home place and marks the volume clean: the last thing before it is put away. Afterwards
    /// no operation begins.
    ///
    /// # Errors
    /// As [`Store::sync`].
    pub fn stop_writing(&self) -> Result<()> {
        self.sync()?;
        let writer = self.writer()?;
        let mut committer = lock(&writer.committer);
        // operations that began since the sync have ended when the gate is held; those that wait there do not begin
        let mut gate = writer.gate.write().unwrap_or_else(PoisonError::into_inner);
        let _guard = EndOnPanic(self);
        writer.check()?;
        let outcome = self.put_away(writer, &mut committer, &mut gate).inspect_err(|e| self.fail(e));
        writer.stopped.store(true, Ordering::Release);
        outcome
    }

    fn put_away(&self, writer: &Writer, committer: &mut Committer, gate: &mut u64) -> Result<()> {
        let last = self.close(writer, &mut *committer.engine, gate, Cause::Sync)?;
        self.write_closed(writer, committer, last)?;
        let plan = committer.engine.close(&*writer.client)?;
        self.carry_out(writer, &plan)
    }
}
