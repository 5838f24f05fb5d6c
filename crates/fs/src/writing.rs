//! A volume that is open for writing: how it was asked to be, and what it keeps beside the cache.

use crate::alloc::{DamagedGroup, Space, lock};
use crate::gate::Gate;
use crate::memory::{self, Budget};
use crate::mmp::Beacon;
use crate::orphan::Orphans;
use crate::transaction::Before;
use crate::{InodeNo, Result, Timestamp, Volume};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How a volume stays sound through a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Consistency {
    /// Not at all: a crash is followed by a full check.
    None,
    /// A full check only after a crash while metadata was on its way.
    DirtyBit,
    /// The journal of ext3 and ext4: a crash is followed by its replay.
    Journal,
    /// Meta-data snapshotting on a native volume: the device holds a whole generation at every instant, so a crash is
    /// followed by nothing.
    Snapshot,
}

/// What is done about file data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum DataMode {
    /// Data is on the device before the metadata that leads to it.
    #[default]
    Ordered,
    /// No order between data and metadata.
    Writeback,
    /// Data goes through the journal as well.
    Journal,
    /// On a native volume with snapshots: content is never overwritten in its place, so that after a crash it is that of
    /// the newest whole generation, as all else is.
    CopyOnWrite,
}

/// Where new blocks go, on a volume whose format leaves it open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Placement {
    /// Near what they belong to.
    #[default]
    Usual,
    /// Metadata to the front of each group, into about 4 % of it, and content behind that, as long as there is room for
    /// both: a check has to go to fewer places then. A file's first indirect block stays with its content.
    Hint,
}

impl Placement {
    /// The placement of that name: `usual` or `hint`.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "usual" => Some(Self::Usual),
            "hint" => Some(Self::Hint),
            _ => None,
        }
    }
}

/// Where the time of day comes from.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// How to write to a volume.
#[derive(Clone)]
pub struct WriteOptions {
    /// How it stays sound. Unless set, the best the volume has: snapshots on a native one, its journal, else the dirty bit.
    pub consistency: Option<Consistency>,
    /// What is done about file data.
    pub data: DataMode,
    /// What `data` says was asked for: a volume that cannot do that is not opened ([`crate::Error::Impossible`]).
    pub data_insisted: bool,
    /// How long a change may stay in memory only, as far as [`Volume::tick`] is called. 5 s unless set.
    pub commit: Duration,
    /// Most bytes of changed metadata a generation holds; a journal may allow less, and where there is little memory it is
    /// a share of that. 64 MiB unless set.
    pub dirty_bytes: usize,
    /// Most bytes of file content that wait for their place. 1 GiB unless set: what is removed again before it had to leave
    /// memory costs no write. Where it is less: a sixteenth of the memory that the process may use, but at least 64 MiB as
    /// long as no control group limits it. A volume with multiple mount protection takes no more than 64 MiB, so that it can
    /// say in time that it is in use.
    pub delayed_bytes: usize,
    /// The time of day; the system's unless set.
    pub clock: Clock,
    /// Where the numbers begin that tell one use of an inode from the next; from the time of day unless set.
    pub seed: Option<u64>,
    /// Whoever works on the volume may use the blocks that are kept for the superuser. Not unless set.
    pub superuser: bool,
    /// Where new blocks go. A volume with metadata regions has its own rule, whatever this says.
    pub placement: Placement,
    /// Where the volume is mounted, for its superblock; at most 63 bytes of it are kept.
    pub mounted_at: Option<Vec<u8>>,
    /// Breaks the promises of every mode: blocks are given out again at once when they are freed, although a crash may
    /// bring back what used them. For the test that this is caught.
    #[doc(hidden)]
    pub reuse_at_once: bool,
    /// Breaks what snapshots promise: content that they keep is written over in its place. For the test that this is caught.
    #[doc(hidden)]
    pub overwrite_kept: bool,
    /// The same of what engines promise.
    #[doc(hidden)]
    pub broken: store::engine::Broken,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self {
            consistency: None,
            data: DataMode::default(),
            data_insisted: false,
            commit: Duration::from_secs(5),
            dirty_bytes: 64 << 20,
            delayed_bytes: 1 << 30,
            clock: Arc::new(system_time),
            seed: None,
            superuser: false,
            placement: Placement::Usual,
            mounted_at: None,
            reuse_at_once: false,
            overwrite_kept: false,
            broken: store::engine::Broken::default(),
        }
    }
}

impl WriteOptions {
    /// Where numbers begin that should not repeat.
    pub(crate) fn seed(&self) -> u64 {
        let now = (self.clock)();
        self.seed.unwrap_or((now.seconds as u64) << 30 ^ u64::from(now.nanos))
    }
}

fn system_time() -> Timestamp {
    // a clock before 1970 counts as 1970
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp { seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX), nanos: since.subsec_nanos() }
}

/// Asks whoever holds inodes from outside to let go of these. It must not wait for that.
pub type LetGo = Box<dyn Fn(Vec<InodeNo>) + Send + Sync>;

/// What a volume that is open for writing keeps beside the cache.
pub(crate) struct Writing {
    pub(crate) options: WriteOptions,
    pub(crate) consistency: Consistency,
    pub(crate) space: Arc<Space>,
    /// Blocks taken by the volume's own structures, once somebody asked.
    pub(crate) overhead: OnceLock<u64>,
    /// Inodes without a name that somebody holds, and those whose truncation has not finished.
    pub(crate) orphans: Orphans,
    /// Where transactions are possible.
    pub(crate) gate: Option<Gate<Before>>,
    /// Says that the volume is in use, where it has a block for that.
    pub(crate) beacon: Mutex<Option<Beacon>>,
    /// Most bytes the cache may have, however much memory there is.
    most_cached: usize,
    /// Most bytes of content that may wait for their place as long as memory is what it is.
    most_delayed: AtomicUsize,
    /// Whom to ask where too many inodes are held.
    let_go: OnceLock<LetGo>,
    background: Mutex<Option<Background>>,
    bell: Arc<Bell>,
    /// Since when content waits for its place.
    delayed_since: Mutex<Option<Duration>>,
    /// In the quiet it found none.
    refused: AtomicBool,
}

/// The thread that keeps time for a volume.
struct Background {
    bell: Arc<Bell>,
    thread: JoinHandle<()>,
}

/// Wakes the background thread before its time.
#[derive(Default)]
struct Bell {
    call: Mutex<Call>,
    changed: Condvar,
    /// It was rung, and what it was rung for may not be done yet.
    rung: AtomicBool,
}

/// What the background thread is called for.
#[derive(Default, Clone, Copy)]
struct Call {
    tick: bool,
    stop: bool,
}

impl Bell {
    fn ring(&self, set: impl FnOnce(&mut Call)) {
        set(&mut lock(&self.call));
        self.changed.notify_all();
    }

    /// Waits for a call, or for the next tick.
    fn wait(&self) -> Call {
        let waits = |call: &mut Call| !call.tick && !call.stop;
        let (mut call, _) =
            self.changed.wait_timeout_while(lock(&self.call), TICK, waits).unwrap_or_else(PoisonError::into_inner);
        let heard = *call;
        call.tick = false;
        heard
    }
}

/// How often the background thread looks at the clock.
const TICK: Duration = Duration::from_millis(100);
/// How often it looks after memory.
const LOOK: Duration = Duration::from_secs(1);

impl Writing {
    pub(crate) fn new(options: WriteOptions, most_cached: usize, consistency: Consistency, space: Arc<Space>) -> Self {
        Self {
            most_cached,
            most_delayed: AtomicUsize::new(options.delayed_bytes),
            let_go: OnceLock::new(),
            options,
            consistency,
            space,
            overhead: OnceLock::new(),
            orphans: Orphans::default(),
            gate: (consistency == Consistency::Snapshot).then(Gate::new),
            beacon: Mutex::default(),
            background: Mutex::default(),
            bell: Arc::default(),
            delayed_since: Mutex::default(),
            refused: AtomicBool::new(false),
        }
    }

    /// Most bytes of content that may wait for their place.
    pub(crate) fn most_delayed(&self) -> usize {
        self.most_delayed.load(Ordering::Relaxed)
    }
}

impl Volume {
    pub(crate) fn writing(&self) -> Result<&Writing> {
        self.writing.as_ref().ok_or_else(|| store::Error::ReadOnly.into())
    }

    pub(crate) fn space(&self) -> Result<&Arc<Space>> {
        Ok(&self.writing()?.space)
    }

    /// How the volume stays sound through a crash; `None` where it is open for reading only.
    #[must_use]
    pub fn consistency(&self) -> Option<Consistency> {
        self.writing.as_ref().map(|writing| writing.consistency)
    }

    /// Groups whose bitmaps contradict the volume. Nothing is allocated there, and the volume is marked as having errors.
    #[must_use]
    pub fn damaged_groups(&self) -> Vec<DamagedGroup> {
        self.space().map(|space| space.damaged()).unwrap_or_default()
    }

    /// Something in the volume contradicts the format: it is marked as having errors, so that it is checked before it is
    /// written again. Does nothing where it is marked already, or open for reading only. Not to be called within a call into
    /// the volume.
    pub fn mark_for_check(&self) {
        let Ok(space) = self.space() else { return };
        if space.has_errors() {
            return;
        }
        space.note_error();
        // where nothing can be written any more, the volume is not marked as sound either; behind a transaction the next
        // change brings it along
        let Some(_pass) = self.try_change() else { return };
        if let Ok(change) = self.change(1) {
            change.edit_superblock(|_| ()).ok();
        }
    }

    /// Returns when everything that was done before the call would survive a loss of power, as far as the volume's
    /// consistency promises it.
    ///
    /// # Errors
    /// [`Error::NoSpace`] where content finds no place after all; [`Error::Io`], and from then on [`Error::ReadOnly`], where
    /// the device fails; [`Error::ReadOnly`] where the volume was not opened for writing.
    pub fn sync(&self) -> Result<()> {
        self.writing()?;
        let Some(_pass) = self.changing_to_sync()? else { return Ok(()) };
        self.flush_all_delayed()?;
        Ok(self.store.sync()?)
    }

    /// Does what is due at `now`, counted from any fixed moment: content that has waited for longer than
    /// [`WriteOptions::commit`] gets its place, a generation that is open for as long is written, and both are durable when
    /// it returns. So is a generation that is half full, and content that takes half of what it may gets its place; under the
    /// dirty bit all content does when nothing happens, before the volume is marked clean. To be called a few times a
    /// second, by one thread; [`Volume::start_background`] does.
    ///
    /// # Errors
    /// As [`Volume::sync`].
    pub fn tick(&self, now: Duration) -> Result<()> {
        let writing = self.writing()?;
        if let Some(beacon) = lock(&writing.beacon).as_mut() {
            beacon.tick(now, &writing.options).inspect_err(|e| self.store.fail(e))?;
        }
        if self.has_transaction() {
            return Ok(());
        }
        let Some(_pass) = self.try_change() else { return Ok(()) };
        let due = {
            let mut since = lock(&writing.delayed_since);
            let oldest = (self.nodes.delayed() > 0).then(|| *since.get_or_insert(now));
            *since = oldest.filter(|oldest| now.saturating_sub(*oldest) < writing.options.commit);
            *since != oldest
        };
        // what found no room is tried again when it is due
        let may_rest = self.nodes.delayed() > 0 && !writing.refused.load(Ordering::Relaxed);
        let rests = may_rest && self.store.rests(now);
        // what has no room for its content does not keep the rest in memory
        let placed = if due || rests || self.has_much_delayed() { self.flush_all_delayed() } else { Ok(()) };
        if due || rests {
            writing.refused.store(rests && placed.is_err(), Ordering::Relaxed);
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

    /// Brings everything to the device and marks the volume as sound. Afterwards it can be read, but not changed: a change
    /// made meanwhile is there, or was refused with [`Error::ReadOnly`](crate::Error::ReadOnly).
    ///
    /// # Errors
    /// As [`Volume::sync`].
    pub fn unmount(&self) -> Result<()> {
        let writing = self.writing()?;
        if let Some(background) = lock(&writing.background).take() {
            background.stop();
        }
        let _pass = self.changing_at_last()?;
        // requests may go on: what they are promised from here on would be lost, so they are refused
        writing.space.close();
        // operations that began before end first: they may leave files without a name
        let ended = self.store.sync().map_err(crate::Error::from);
        // what one file cannot have does not keep the volume from being put away
        let outcome = ended.and_then(|()| self.end_orphans()).and(self.flush_all_delayed());
        self.store.stop_writing()?;
        if let Some(mut beacon) = lock(&writing.beacon).take() {
            beacon.clear(&writing.options)?;
        }
        outcome
    }

    /// Writes nothing any more: what is in memory may be wrong, as after a panic in a call into the volume. The volume can
    /// be read as before.
    pub fn distrust(&self, why: &str) {
        self.store.fail(&why);
    }

    /// Whether content that waits for its place takes half of what it may.
    fn has_much_delayed(&self) -> bool {
        self.writing.as_ref().is_some_and(|writing| self.nodes.delayed() > writing.most_delayed() / 2)
    }

    /// Whether operations will soon have to wait until something of what is in memory has left it.
    fn is_half_full(&self) -> bool {
        self.store.is_half_full() || self.has_much_delayed()
    }

    /// Wakes the background thread where it has something to do before operations have to wait for it.
    pub(crate) fn wake_background(&self) {
        let Some(writing) = self.writing.as_ref().filter(|_| self.is_half_full()) else { return };
        if !writing.bell.rung.swap(true, Ordering::Relaxed) {
            writing.bell.ring(|call| call.tick = true);
        }
    }

    /// Takes no more of each kind of memory than its share.
    pub(crate) fn follow_memory(&self, budget: Budget) {
        let Some(writing) = &self.writing else { return };
        let options = &writing.options;
        writing.most_delayed.store(options.delayed_bytes.min(budget.delayed), Ordering::Relaxed);
        let cache = writing.most_cached.min(budget.cache);
        self.store.limit_memory(cache, options.dirty_bytes.min(budget.dirty));
    }

    /// What is done about memory now and then, by the thread in the background and with no lock held: what there is may
    /// have changed, and what nobody needs is given back.
    fn look_after_memory(&self) {
        let budget = memory::budget();
        self.follow_memory(budget);
        self.nodes.tidy();
        self.limit_holds(budget.holds);
    }

    /// Where more than `most` inodes are held from outside, asks for some that have not been in use lately. The thread in
    /// the background calls it with as many as memory allows.
    pub fn limit_holds(&self, most: usize) {
        let Some(let_go) = self.writing.as_ref().and_then(|writing| writing.let_go.get()) else { return };
        let held = self.nodes.held();
        if held > most {
            // some more, so that it is not for each new one
            let_go(self.nodes.only_held(held - most / 4 * 3));
        }
    }

    /// How many inodes are [held](Volume::hold).
    #[must_use]
    pub fn held(&self) -> usize {
        self.nodes.held()
    }

    /// Where many inodes are [held](Volume::hold) and memory is little, `let_go` is called with some that have not been in
    /// use lately, so that they are [released](Volume::release): now and then, by the thread in the background. May be called
    /// once.
    pub fn on_many_holds(&self, let_go: LetGo) {
        if let Some(writing) = &self.writing {
            // whoever came first is asked
            let _ = writing.let_go.set(let_go);
        }
    }

    /// Starts a thread that calls [`Volume::tick`] about ten times a second, and when memory fills, until
    /// [`Volume::unmount`] or until nobody has the volume any more. Does nothing where there is one already, or where the
    /// volume is open for reading only.
    pub fn start_background(self: &Arc<Self>) {
        let Ok(writing) = self.writing() else { return };
        let mut place = lock(&writing.background);
        if place.is_some() {
            return;
        }
        let (volume, bell) = (Arc::downgrade(self), Arc::clone(&writing.bell));
        let thread = std::thread::spawn(move || {
            let start = Instant::now();
            let mut looked = start;
            loop {
                let call = bell.wait();
                if call.stop {
                    return;
                }
                let Some(volume) = volume.upgrade() else { return };
                // who works on the volume, or syncs it, hears of an error from the store
                if volume.tick(start.elapsed()).is_err() && volume.store.failure().is_some() {
                    return;
                }
                if looked.elapsed() >= LOOK {
                    volume.look_after_memory();
                    looked = Instant::now();
                }
                // what could not be done now, as behind a transaction, is not called for at each operation
                if !call.tick || !volume.is_half_full() {
                    bell.rung.store(false, Ordering::Relaxed);
                }
            }
        });
        *place = Some(Background { bell: Arc::clone(&writing.bell), thread });
    }

    /// The time of day.
    pub(crate) fn now(&self) -> Timestamp {
        self.writing.as_ref().map_or_else(system_time, |w| (w.options.clock)())
    }

    /// Whether an inode has no name any more, but is still in use.
    pub(crate) fn is_orphan(&self, number: InodeNo) -> bool {
        self.writing.as_ref().is_some_and(|w| w.orphans.contains(number))
    }
}

impl Background {
    fn stop(self) {
        self.bell.ring(|call| call.stop = true);
        // a thread that panicked has told so
        self.thread.join().ok();
    }
}
