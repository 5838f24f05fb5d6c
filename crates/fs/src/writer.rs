//! Durability of a volume: syncs, work that becomes due after a while, the background thread, unmounting.

use crate::alloc::DamagedGroup;
use crate::memory_budget::{self, Budget};
use crate::mmp::Heartbeat;
use crate::wakeup::Wakeup;
use crate::{InodeNo, Result, Volume};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A function that makes the kernel prune those of these inodes that it does not use from its caches, and their names
/// (FUSE_NOTIFY_PRUNE), so that they are forgotten here. It must not wait for that.
pub type Prune = Box<dyn Fn(Vec<InodeNo>) + Send + Sync>;

/// The state for writing changes of a volume in time.
pub(crate) struct Writer {
    /// Marks the volume as in use, if it has a block for that.
    heartbeat: Mutex<Option<Heartbeat>>,
    /// Maximum number of bytes of the cache, however much memory is available.
    most_cached: usize,
    /// Prunes the kernel's unused inodes and names from its caches (FUSE_NOTIFY_PRUNE), if too many inodes have a
    /// lookup count.
    prune: OnceLock<Prune>,
    background: Mutex<Option<Background>>,
    /// The time since which data is delayed.
    delayed_since: Mutex<Option<Duration>>,
    /// The allocation of delayed data failed when the volume was idle.
    refused: AtomicBool,
}

impl Writer {
    pub(crate) fn new(most_cached: usize, heartbeat: Option<Heartbeat>) -> Self {
        Self {
            heartbeat: Mutex::new(heartbeat),
            most_cached,
            prune: OnceLock::new(),
            background: Mutex::default(),
            delayed_since: Mutex::default(),
            refused: AtomicBool::new(false),
        }
    }
}

/// The thread that calls `tick` for a volume. It ends on drop.
struct Background {
    wakeup: Arc<Wakeup>,
    thread: Option<JoinHandle<()>>,
}

/// The interval of memory checks while the volume is in use.
const MEMORY_INTERVAL: Duration = Duration::from_secs(1);
/// Number of memory checks after the last use of the volume: unneeded memory is found by the second one. Later the
/// volume's memory does not change.
const LOOKS: u32 = 3;

impl Volume {
    /// Groups whose bitmaps contradict the volume. Nothing is allocated there, and the volume is marked as having
    /// errors.
    #[must_use]
    pub fn damaged_groups(&self) -> Vec<DamagedGroup> {
        self.space().map(|space| space.damaged()).unwrap_or_default()
    }

    /// Marks the volume as having errors, so that it is checked before it is written again: something contradicts the
    /// format. Does nothing if it is already marked, or open for reading only. Must not be called within a call into
    /// the volume.
    pub fn mark_for_check(&self) {
        let Ok(space) = self.space() else { return };
        if space.superblock.has_errors() {
            return;
        }
        space.superblock.record_error();
        // if nothing can be written any more, the volume is not marked as clean either; during a transaction the mark
        // is written by the next change
        let Some(_guard) = self.try_change() else { return };
        if let Ok(change) = self.change(1) {
            change.edit_superblock(|_| ()).ok();
        }
    }

    /// Returns when everything done before the call is durable, as far as the consistency mode guarantees it.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if there is no space for delayed data after all; [`Error::Io`], and from then on
    /// [`Error::ReadOnly`], if the device fails; [`Error::ReadOnly`] if the volume was not opened for writing.
    pub fn sync(&self) -> Result<()> {
        self.writing()?;
        let Some(_guard) = self.change_guard_for_sync()? else { return Ok(()) };
        self.flush_all_delayed()?;
        Ok(self.store.sync()?)
    }

    /// Does the work due at `now`, counted from any fixed moment: data delayed for longer than [`WriteOptions::commit`]
    /// is allocated, a generation open for that long is written, and both are durable on return. A generation that is
    /// half full is also written, and delayed data is allocated when it reaches half of its limit; under the dirty bit
    /// all delayed data is written when the volume is idle, before the volume is marked clean. Must be called a few
    /// times a second while the volume is in use, by one thread; [`Volume::start_background`] does that.
    ///
    /// # Errors
    /// As [`Volume::sync`].
    pub fn tick(&self, now: Duration) -> Result<()> {
        let (writing, writer) = (self.writing()?, self.writer()?);
        if let Some(heartbeat) = writer.heartbeat.lock().as_mut() {
            heartbeat.tick(now, &writing.options).inspect_err(|e| self.store.fail(e))?;
        }
        if self.has_transaction() {
            return Ok(());
        }
        let Some(_guard) = self.try_change() else { return Ok(()) };
        let due = {
            let mut since = writer.delayed_since.lock();
            let oldest = (self.nodes.delayed() > 0).then(|| *since.get_or_insert(now));
            *since = oldest.filter(|oldest| now.saturating_sub(*oldest) < writing.options.commit);
            *since != oldest
        };
        // data without space is retried when it is due
        let may_rest = self.nodes.delayed() > 0 && !writer.refused.load(Ordering::Relaxed);
        let rests = may_rest && self.store.rests(now);
        // a file without space for its content does not delay the rest
        let placed = if due || rests || self.has_much_delayed() { self.flush_all_delayed() } else { Ok(()) };
        if due || rests {
            writer.refused.store(rests && placed.is_err(), Ordering::Relaxed);
        }
        if due {
            // data allocated now has waited for the maximum time
            self.store.sync()?;
        }
        if rests {
            self.store.stay_quiet();
        }
        let is_delayed = self.nodes.delayed() > 0;
        if is_delayed && self.store.next_due(now, true, false).is_some_and(|due| due <= now) {
            self.flush_rewritten();
        }
        self.store.tick_with(now, self.nodes.delayed() > 0)?;
        placed
    }

    /// Writes everything to the device and marks the volume as clean. Afterwards it can be read, but not changed: a
    /// concurrent change is either included, or refused with [`Error::ReadOnly`](crate::Error::ReadOnly).
    ///
    /// # Errors
    /// As [`Volume::sync`].
    pub fn unmount(&self) -> Result<()> {
        let (writing, writer) = (self.writing()?, self.writer()?);
        if let Some(background) = writer.background.lock().take() {
            background.stop();
        }
        let _guard = self.last_change_guard()?;
        // requests may continue: later reservations would be lost, so they are refused
        writing.space.close();
        // earlier operations end first: they may leave files without a name
        let ended = self.store.sync().map_err(crate::Error::from);
        // a file whose delayed data finds no space does not prevent the unmount
        let outcome = ended.and_then(|()| self.end_orphans()).and(self.flush_all_delayed());
        self.store.stop_writing()?;
        self.end_heartbeat()?;
        outcome
    }

    /// Marks the volume as no longer in use.
    pub(crate) fn end_heartbeat(&self) -> Result<()> {
        let heartbeat = self.writer()?.heartbeat.lock().take();
        heartbeat.map_or(Ok(()), |mut heartbeat| heartbeat.clear(&self.writing()?.options))
    }

    fn writer(&self) -> Result<&Writer> {
        self.writer.as_ref().ok_or_else(|| store::Error::ReadOnly.into())
    }

    /// Stops all writing: the state in memory may be wrong, for example after a panic in a call into the volume. The
    /// volume can still be read.
    pub fn abort(&self, why: &str) {
        self.store.fail(&why);
    }

    /// Limits each kind of memory to its share.
    pub(crate) fn follow_memory(&self, budget: Budget) {
        let (Some(writing), Some(writer)) = (&self.writing, &self.writer) else { return };
        let options = &writing.options;
        writing.most_delayed.store(options.delayed_bytes.min(budget.delayed), Ordering::Relaxed);
        let cache = writer.most_cached.min(budget.cache);
        self.store.limit_memory(cache, options.dirty_bytes.min(budget.dirty));
    }

    /// Adapts the use of memory, in the background thread, which has no lock: the available memory may have changed,
    /// and unneeded memory is freed.
    fn adapt_memory_use(&self) {
        let budget = memory_budget::budget();
        self.follow_memory(budget);
        self.nodes.drop_idle();
        self.limit_looked_up(budget.looked_up);
    }

    /// If more than `most` inodes have a lookup count, prunes some that were not used recently from the kernel's
    /// caches. The background thread calls it with the number that memory allows.
    pub fn limit_looked_up(&self, most: usize) {
        let Some(prune) = self.writer.as_ref().and_then(|writer| writer.prune.get()) else { return };
        let looked_up = self.nodes.looked_up();
        if looked_up > most {
            // some more, so that this is not needed for each new one
            prune(self.nodes.only_looked_up(looked_up - most / 4 * 3));
        }
    }

    /// Sets the function called with inodes that were not used recently if many have a [lookup
    /// count](crate::Inodes::add_lookup) and memory is short, so that they are [forgotten](crate::Orphans::forget):
    /// periodically, by the background thread. May be called once.
    pub fn on_many_looked_up(&self, prune: Prune) {
        if let Some(writer) = &self.writer {
            // the first caller's function stays
            let _ = writer.prune.set(prune);
        }
    }

    /// The time at which [`Volume::tick`] next has work if nothing happens until then, on the same clock; `now` if that
    /// is unknown, `None` if it has no work.
    fn next_due(&self, now: Duration) -> Option<Duration> {
        let (writing, writer) = (self.writing().ok()?, self.writer().ok()?);
        // during a transaction, or a call with exclusive use, only its timeout and its end matter
        if self.try_change().is_none() || self.has_much_delayed() {
            return Some(now);
        }
        let is_delayed = self.nodes.delayed() > 0;
        let heartbeat = writer.heartbeat.lock().as_ref().map(Heartbeat::due);
        let since = *writer.delayed_since.lock();
        let placing = since.map_or(now, |since| since.saturating_add(writing.options.commit));
        let placing = is_delayed.then_some(placing);
        let stored = self.store.next_due(now, is_delayed, writer.refused.load(Ordering::Relaxed));
        [heartbeat, placing, stored].into_iter().flatten().min()
    }

    /// Starts a thread that calls [`Volume::tick`] when something is due, when memory fills, and about ten times a
    /// second while the volume is in use, until [`Volume::unmount`] or until the volume is dropped. It sleeps while the
    /// volume is idle. Does nothing if it is already running, or if the volume is open for reading only.
    pub fn start_background(self: &Arc<Self>) {
        let (Ok(writing), Ok(writer)) = (self.writing(), self.writer()) else { return };
        let mut place = writer.background.lock();
        if place.is_some() {
            return;
        }
        let wakeup = Arc::clone(&writing.wakeup);
        self.store.on_work(Box::new(move || wakeup.report_work()));
        let (volume, wakeup) = (Arc::downgrade(self), Arc::clone(&writing.wakeup));
        let thread = std::thread::spawn(move || work(&volume, &wakeup));
        *place = Some(Background { wakeup: Arc::clone(&writing.wakeup), thread: Some(thread) });
    }
}

impl Background {
    fn stop(mut self) {
        self.wakeup.wake(|call| call.stop = true);
        if let Some(thread) = self.thread.take() {
            // a thread that panicked has reported it
            thread.join().ok();
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // not joined: the thread itself may drop the volume
        self.wakeup.wake(|call| call.stop = true);
    }
}

/// Does the work due on a volume until it is stopped.
fn work(volume: &Weak<Volume>, wakeup: &Wakeup) {
    let start = Instant::now();
    let (mut looked, mut looks) = (start, LOOKS);
    let mut due = Some(Duration::ZERO);
    loop {
        let call = wakeup.wait(due);
        if call.stop {
            return;
        }
        let Some(volume) = volume.upgrade() else { return };
        if wakeup.begin_check() {
            looks = LOOKS;
        }
        // calls that change or sync the volume return the error from the store
        if volume.tick(start.elapsed()).is_err() && volume.store.failure().is_some() {
            return;
        }
        if looks > 0 && looked.elapsed() >= MEMORY_INTERVAL {
            volume.adapt_memory_use();
            (looked, looks) = (Instant::now(), looks - 1);
        }
        // work that is not possible now, as during a transaction, is not requested by each operation
        let waits = call.tick && volume.is_half_full();
        if !waits {
            wakeup.requested.store(false, Ordering::Relaxed);
        }
        let now = start.elapsed();
        let next = if waits { Some(now) } else { volume.next_due(now) };
        let look = (looks > 0).then(|| MEMORY_INTERVAL.saturating_sub(looked.elapsed()));
        due = next.map(|next| next.saturating_sub(now)).into_iter().chain(look).min();
    }
}

#[cfg(test)]
mod tests;
