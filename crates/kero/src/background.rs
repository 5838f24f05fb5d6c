//! A layer with a background thread, which supplies the time and moves blocks home when there are no other requests. If
//! no group is open and no block can move home, it sleeps until the next write. Also the scheme `kero:`, which opens
//! such a layer.
//!
//! No write is missed: a caller writes, then reads `sleeps`, with a fence between; the thread sets `sleeps`, then
//! checks for an open group, with a fence between. So either the caller finds that the thread sleeps and wakes it, by a
//! flag under the lock with which the thread waits, or the thread finds the group.

use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use blockdev::{BlockDevice, Extent, Geometry, OpenOptions, Read, Scheme};

use crate::device::{Kero, Options};
use crate::error::{Error, Result};
use crate::gap::Gap;
use crate::joined::Joined;

/// The interval of checks for work, while there is any.
const STEP: Duration = Duration::from_millis(100);
/// The maximum number of blocks that move home in a step: the longest wait of a call.
const BUDGET: usize = 64;

/// `kero:DEVICE`, `kero:log=DEVICE,DEVICE` and `kero:force,DEVICE`: the layer of a device.
pub const SCHEME: Scheme = Scheme::new("kero:", open, |rest| SchemeOptions::of(rest).device);

/// The options before DEVICE.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct SchemeOptions<'a> {
    /// The device that contains the log.
    log: Option<&'a str>,
    /// Open read-only although a placeholder is missing.
    force: bool,
    device: &'a str,
}

impl<'a> SchemeOptions<'a> {
    fn of(text: &'a str) -> Self {
        let mut options = SchemeOptions { device: text, ..Self::default() };
        while let Some((option, rest)) = options.device.split_once(',') {
            match option.strip_prefix("log=") {
                Some(log) => options.log = Some(log),
                None if option == "force" => options.force = true,
                None => break,
            }
            options.device = rest;
        }
        options
    }
}

fn open(rest: &str, options: OpenOptions, schemes: &[Scheme]) -> blockdev::Result<Arc<dyn BlockDevice>> {
    let of_layer = SchemeOptions::of(rest);
    let device = beneath(of_layer.device, of_layer.log, options, schemes)?;
    // a device written without the layer is opened read-only: for writing, the layer has to be removed
    let how = Options { force: of_layer.force, read_only: of_layer.force, ..Options::default() };
    match Background::open(device, how) {
        Ok(layer) => Ok(Arc::new(layer)),
        Err(error) => Err(error.into_open(&format!("kero:{rest}"))),
    }
}

/// Opens the device of a layer, and the one with its log if that is another. No other process may write to them, even
/// if they are opened read-only: changes by others cannot be tracked.
///
/// # Errors
/// Those of opening the devices.
pub fn beneath(
    device: &str,
    log: Option<&str>,
    options: OpenOptions,
    schemes: &[Scheme],
) -> blockdev::Result<Arc<dyn BlockDevice>> {
    let options = OpenOptions { exclusive: true, ..options };
    let data = blockdev::open_with(device, options, schemes)?;
    match log {
        Some(log) => Ok(Arc::new(Joined::new(data, blockdev::open_with(log, options, schemes)?))),
        None => Ok(data),
    }
}

/// The state shared by the thread and its owner.
#[derive(Debug)]
struct Calls {
    /// The moment from which times are counted.
    begun: Instant,
    asked: Mutex<Asked>,
    changed: Condvar,
    /// The thread sleeps until it is notified, or is about to.
    sleeps: AtomicBool,
}

/// The reasons for notifying the thread.
#[derive(Debug, Default)]
struct Asked {
    stop: bool,
    work: bool,
}

impl Calls {
    fn new() -> Self {
        let (asked, changed) = (Mutex::default(), Condvar::new());
        Self { begun: Instant::now(), asked, changed, sleeps: AtomicBool::new(false) }
    }

    fn call(&self, set: impl FnOnce(&mut Asked)) {
        set(&mut self.asked.lock());
        self.changed.notify_all();
    }
}

/// A layer with a background thread: groups end by time, and blocks move home when the layer is idle. Flushed when
/// dropped.
pub struct Background {
    kero: Arc<Kero<Arc<dyn BlockDevice>>>,
    calls: Arc<Calls>,
    worker: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Background {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Background").field("layout", &self.kero.layout()).finish_non_exhaustive()
    }
}

impl Background {
    /// Opens the layer of a device. Groups end by time, whatever the options: a caller that never flushes, like the
    /// kernel's ext2, still has its writes on the device some seconds later.
    ///
    /// # Errors
    /// Those of [`Kero::open`].
    pub fn open(device: Arc<dyn BlockDevice>, options: Options) -> Result<Self> {
        let options = Options { by_time: true, gap: Gap::Measured, ..options };
        let kero = Arc::new(Kero::open(device, options)?);
        let calls = Arc::new(Calls::new());
        let worker = if kero.geometry().read_only {
            None
        } else {
            let (kero, calls) = (Arc::clone(&kero), Arc::clone(&calls));
            let worker = std::thread::Builder::new().name("kero".into()).spawn(move || work(&kero, &calls));
            Some(worker.map_err(|source| Error::Thread(source.to_string()))?)
        };
        Ok(Self { kero, calls, worker })
    }

    /// The layer.
    #[must_use]
    pub fn layer(&self) -> &Kero<Arc<dyn BlockDevice>> {
        &self.kero
    }

    /// Executes a change of the layer, and wakes the thread if it sleeps.
    fn change<R>(&self, change: impl FnOnce() -> R) -> R {
        if self.calls.sleeps.load(Ordering::Relaxed) {
            // no group is open, so this only sets the time
            let _ = self.kero.tick(self.calls.begun.elapsed());
        }
        let outcome = change();
        fence(Ordering::SeqCst);
        if self.calls.sleeps.load(Ordering::Relaxed) && self.calls.sleeps.swap(false, Ordering::SeqCst) {
            self.calls.call(|asked| asked.work = true);
        }
        outcome
    }
}

fn work(kero: &Kero<Arc<dyn BlockDevice>>, calls: &Calls) {
    let mut before = (0, 0);
    let mut rests = false;
    loop {
        let sleeps = rests && {
            calls.sleeps.store(true, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            !kero.has_open_group()
        };
        let mut asked = calls.asked.lock();
        if sleeps {
            calls.changed.wait_while(&mut asked, |asked| !asked.stop && !asked.work);
        } else {
            calls.changed.wait_while_for(&mut asked, |asked| !asked.stop, STEP);
        }
        asked.work = false;
        if asked.stop {
            return;
        }
        drop(asked);
        calls.sleeps.store(false, Ordering::SeqCst);
        // a failure is reported to the next write or flush
        let _ = kero.tick(calls.begun.elapsed());
        let stats = kero.stats();
        let now = (stats.read_bytes, stats.written_bytes);
        let quiet = now == before;
        let moved = quiet && stats.log_mapped > 0 && kero.idle(BUDGET).is_ok_and(|moved| moved > 0);
        // if nothing moved, nothing will before the next group ends
        rests = quiet && !moved && !kero.has_open_group();
        before = now;
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.calls.call(|asked| asked.stop = true);
        if let Some(worker) = self.worker.take() {
            // the error of a thread that panicked is not needed
            let _ = worker.join();
        }
        if !self.kero.geometry().read_only {
            // a caller that needs the outcome has flushed before
            let _ = self.kero.flush();
        }
    }
}

impl BlockDevice for Background {
    fn geometry(&self) -> Geometry {
        self.kero.geometry()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> blockdev::Result<()> {
        self.kero.read(offset, buf)
    }

    fn read_many(&self, reads: &mut [Read<'_>]) {
        self.kero.read_many(reads);
    }

    fn read_cached(&self, reads: &mut [Read<'_>]) -> usize {
        self.kero.read_cached(reads)
    }

    fn virtual_clock(&self) -> Option<Duration> {
        self.kero.virtual_clock()
    }

    fn write(&self, offset: u64, data: &[u8]) -> blockdev::Result<()> {
        self.change(|| self.kero.write(offset, data))
    }

    fn write_fresh(&self, offset: u64, data: &[u8]) -> blockdev::Result<()> {
        self.change(|| self.kero.write_fresh(offset, data))
    }

    fn flush(&self) -> blockdev::Result<()> {
        self.kero.flush()
    }

    fn extent(&self, offset: u64, len: u64) -> blockdev::Result<Extent> {
        self.kero.extent(offset, len)
    }

    fn discard(&self, offset: u64, len: u64) -> blockdev::Result<()> {
        self.change(|| self.kero.discard(offset, len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::make::{FormatOptions, format};
    use blockdev::MemoryDevice;

    fn until(what: &str, done: impl Fn() -> bool) {
        let end = Instant::now() + Duration::from_secs(60);
        while !done() {
            assert!(Instant::now() < end, "{what}");
            std::thread::sleep(STEP / 10);
        }
    }

    #[test]
    fn it_sleeps_when_there_is_nothing_to_do_and_a_write_wakes_it() {
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::zeroed(6 << 20).expect("memory"));
        let format_options = FormatOptions { log: Some(1 << 20), least_log: 256 << 10, ..FormatOptions::default() };
        format(&device, &format_options).expect("formatted");
        let layer = Background::open(device, Options { quiet: STEP, ..Options::default() }).expect("opened");
        for groups in 1..=2 {
            until("the thread does not sleep", || layer.calls.sleeps.load(Ordering::SeqCst));
            std::thread::sleep(STEP * 3);
            assert!(layer.calls.sleeps.load(Ordering::SeqCst), "the thread woke without work");
            layer.write(0, &[groups; 4096]).expect("written");
            until("the group does not end", || layer.kero.stats().by_time >= u64::from(groups));
        }
    }

    #[test]
    fn options_before_the_device_are_read() {
        let options = |log, force, device| SchemeOptions { log, force, device };
        assert_eq!(SchemeOptions::of("a.img"), options(None, false, "a.img"));
        assert_eq!(SchemeOptions::of("log=/dev/b,model:hdd:a"), options(Some("/dev/b"), false, "model:hdd:a"));
        assert_eq!(SchemeOptions::of("force,log=b,a,c"), options(Some("b"), true, "a,c"));
        assert_eq!(SchemeOptions::of("./force,a"), options(None, false, "./force,a"));
    }
}
