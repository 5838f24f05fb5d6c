//! The durability of a volume: syncs, what is due after a while, the thread in the background, unmounting.

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

/// Asks the kernel to prune from its caches those of these inodes that it does not use, and their names
/// (FUSE_NOTIFY_PRUNE), so that they are forgotten here. It must not wait for that.
pub type Prune = Box<dyn Fn(Vec<InodeNo>) + Send + Sync>;

/// The state by which a volume that is open for writing is written in time.
pub(crate) struct Writer {
    /// Says that the volume is in use, where it has a block for that.
    heartbeat: Mutex<Option<Heartbeat>>,
    /// Most bytes the cache may have, however much memory there is.
    most_cached: usize,
    /// Prunes the kernel's unused inodes and names from its caches (FUSE_NOTIFY_PRUNE), where too many inodes are
    /// looked up.
    prune: OnceLock<Prune>,
    background: Mutex<Option<Background>>,
    /// Since when content waits for its place.
    delayed_since: Mutex<Option<Duration>>,
    /// In the quiet it found none.
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

/// The thread that calls `tick` for a volume. It ends when this is dropped.
struct Background {
    wakeup: Arc<Wakeup>,
    thread: Option<JoinHandle<()>>,
}

/// The interval at which it looks after memory while the volume is in use.
const LOOK: Duration = Duration::from_secs(1);
/// So often it does so when the volume is not in use any more: what is not needed then is found by the second time.
/// Later nothing changes that the volume has.
const LOOKS: u32 = 3;

impl Volume {
    /// Groups whose bitmaps contradict the volume. Nothing is allocated there, and the volume is marked as having
    /// errors.
    #[must_use]
    pub fn damaged_groups(&self) -> Vec<DamagedGroup> {
        self.space().map(|space| space.damaged()).unwrap_or_default()
    }

    /// Something in the volume contradicts the format: it is marked as having errors, so that it is checked before it
    /// is written again. Does nothing where it is marked already, or open for reading only. Not to be called within a
    /// call into the volume.
    pub fn mark_for_check(&self) {
        let Ok(space) = self.space() else { return };
        if space.has_errors() {
            return;
        }
        space.record_error();
        // where nothing can be written any more, the volume is not marked as clean either; behind a transaction the
        // next change brings it along
        let Some(_guard) = self.try_change() else { return };
        if let Ok(change) = self.change(1) {
            change.edit_superblock(|_| ()).ok();
        }
    }

    /// Returns when everything that was done before the call would survive a loss of power, as far as the volume's
    /// consistency promises it.
    ///
    /// # Errors
    /// [`Error::NoSpace`] where content finds no place after all; [`Error::Io`], and from then on [`Error::ReadOnly`],
    /// where the device fails; [`Error::ReadOnly`] where the volume was not opened for writing.
    pub fn sync(&self) -> Result<()> {
        self.writing()?;
        let Some(_guard) = self.changing_to_sync()? else { return Ok(()) };
        self.flush_all_delayed()?;
        Ok(self.store.sync()?)
    }

    /// Does what is due at `now`, counted from any fixed moment: content that has waited for longer than
    /// [`WriteOptions::commit`] gets its place, a generation that is open for as long is written, and both are durable
    /// when it returns. So is a generation that is half full, and content that takes half of what it may gets its
    /// place; under the dirty bit all content does when nothing happens, before the volume is marked clean. To be
    /// called a few times a second while the volume is in use, by one thread; [`Volume::start_background`] does.
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
        // what found no space is tried again when it is due
        let may_rest = self.nodes.delayed() > 0 && !writer.refused.load(Ordering::Relaxed);
        let rests = may_rest && self.store.rests(now);
        // a file without space for its content does not delay the rest
        let placed = if due || rests || self.has_much_delayed() { self.flush_all_delayed() } else { Ok(()) };
        if due || rests {
            writer.refused.store(rests && placed.is_err(), Ordering::Relaxed);
        }
        if due {
            // what got its place now has waited for as long as anything may
            self.store.sync()?;
        }
        if rests {
            self.store.stay_quiet();
        }
        self.store.tick_with(now, self.nodes.delayed() > 0)?;
        placed
    }

    /// Brings everything to the device and marks the volume as clean. Afterwards it can be read, but not changed: a
    /// change made meanwhile is there, or was refused with [`Error::ReadOnly`](crate::Error::ReadOnly).
    ///
    /// # Errors
    /// As [`Volume::sync`].
    pub fn unmount(&self) -> Result<()> {
        let (writing, writer) = (self.writing()?, self.writer()?);
        if let Some(background) = writer.background.lock().take() {
            background.stop();
        }
        let _guard = self.changing_at_last()?;
        // requests may go on: what is reserved for them from here on would be lost, so they are refused
        writing.space.close();
        // operations that began before end first: they may leave files without a name
        let ended = self.store.sync().map_err(crate::Error::from);
        // a file whose delayed data finds no space does not prevent the unmount
        let outcome = ended.and_then(|()| self.end_orphans()).and(self.flush_all_delayed());
        self.store.stop_writing()?;
        self.end_heartbeat()?;
        outcome
    }

    /// Marks the volume as not in use any more.
    pub(crate) fn end_heartbeat(&self) -> Result<()> {
        let heartbeat = self.writer()?.heartbeat.lock().take();
        heartbeat.map_or(Ok(()), |mut heartbeat| heartbeat.clear(&self.writing()?.options))
    }

    fn writer(&self) -> Result<&Writer> {
        self.writer.as_ref().ok_or_else(|| store::Error::ReadOnly.into())
    }

    /// Writes nothing any more: what is in memory may be wrong, as after a panic in a call into the volume. The volume
    /// can be read as before.
    pub fn abort(&self, why: &str) {
        self.store.fail(&why);
    }

    /// Takes no more of each kind of memory than its share.
    pub(crate) fn follow_memory(&self, budget: Budget) {
        let (Some(writing), Some(writer)) = (&self.writing, &self.writer) else { return };
        let options = &writing.options;
        writing.most_delayed.store(options.delayed_bytes.min(budget.delayed), Ordering::Relaxed);
        let cache = writer.most_cached.min(budget.cache);
        self.store.limit_memory(cache, options.dirty_bytes.min(budget.dirty));
    }

    /// Adapts the use of memory now and then, on the thread in the background, which has no lock: what there is may
    /// have changed, and what is not needed is freed.
    fn look_after_memory(&self) {
        let budget = memory_budget::budget();
        self.follow_memory(budget);
        self.nodes.drop_idle();
        self.limit_looked_up(budget.looked_up);
    }

    /// Where more than `most` inodes are looked up, has some that have not been in use lately pruned from the kernel's
    /// caches. The thread in the background calls it with as many as memory allows.
    pub fn limit_looked_up(&self, most: usize) {
        let Some(prune) = self.writer.as_ref().and_then(|writer| writer.prune.get()) else { return };
        let looked_up = self.nodes.looked_up();
        if looked_up > most {
            // some more, so that it is not for each new one
            prune(self.nodes.only_looked_up(looked_up - most / 4 * 3));
        }
    }

    /// Where many inodes are [looked up](crate::Inodes::add_lookup) and memory is little, `prune` is called with some
    /// that have not been in use lately, so that they are [forgotten](crate::Orphans::forget): now and then, by the
    /// thread in the background. May be called once.
    pub fn on_many_looked_up(&self, prune: Prune) {
        if let Some(writer) = &self.writer {
            // the first caller's stays
            let _ = writer.prune.set(prune);
        }
    }

    /// The time at which [`Volume::tick`] next has something to do if nothing happens until then, on the same clock;
    /// `now` where that cannot be said, `None` where it has nothing to do.
    fn next_due(&self, now: Duration) -> Option<Duration> {
        let (writing, writer) = (self.writing().ok()?, self.writer().ok()?);
        // no more than the time of a transaction is looked for, and its end; so it is with a call that is alone
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
    /// second while the volume is in use, until [`Volume::unmount`] or until the volume is dropped. In quiet it sleeps.
    /// Does nothing where there is one already, or where the volume is open for reading only.
    pub fn start_background(self: &Arc<Self>) {
        let (Ok(writing), Ok(writer)) = (self.writing(), self.writer()) else { return };
        let mut place = writer.background.lock();
        if place.is_some() {
            return;
        }
        let wakeup = Arc::clone(&writing.wakeup);
        self.store.on_work(Box::new(move || wakeup.news()));
        let (volume, wakeup) = (Arc::downgrade(self), Arc::clone(&writing.wakeup));
        let thread = std::thread::spawn(move || work(&volume, &wakeup));
        *place = Some(Background { wakeup: Arc::clone(&writing.wakeup), thread: Some(thread) });
    }
}

impl Background {
    fn stop(mut self) {
        self.wakeup.ring(|call| call.stop = true);
        if let Some(thread) = self.thread.take() {
            // a thread that panicked has reported it
            thread.join().ok();
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // not waited for: it may be the thread itself that drops the volume
        self.wakeup.ring(|call| call.stop = true);
    }
}

/// Does what is due on a volume until it is called to stop.
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
        if wakeup.look() {
            looks = LOOKS;
        }
        // who works on the volume, or syncs it, hears of an error from the store
        if volume.tick(start.elapsed()).is_err() && volume.store.failure().is_some() {
            return;
        }
        if looks > 0 && looked.elapsed() >= LOOK {
            volume.look_after_memory();
            (looked, looks) = (Instant::now(), looks - 1);
        }
        // what could not be done now, as behind a transaction, is not called for at each operation
        let waits = call.tick && volume.is_half_full();
        if !waits {
            wakeup.rung.store(false, Ordering::Relaxed);
        }
        let now = start.elapsed();
        let next = if waits { Some(now) } else { volume.next_due(now) };
        let look = (looks > 0).then(|| LOOK.saturating_sub(looked.elapsed()));
        due = next.map(|next| next.saturating_sub(now)).into_iter().chain(look).min();
    }
}

#[cfg(test)]
mod tests;
