//! One round: a volume and its mount, the shared state of all actors, and the errors found.

use parking_lot::{Mutex, RwLock};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsStr;
use std::fmt::Display;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use testkit::tools::{Ran, run, run_with};

use crate::agent;
use crate::looks::{self, Tree};

/// Time after which anything counts as stuck: far more than a loaded machine needs.
pub(crate) const STUCK: Duration = Duration::from_secs(90);
/// Number of operations per actor shown with an error.
const TRACED: usize = 40;

/// The way in which the mount of a round ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// All actors stop, then `extant umount`.
    Unmount,
    /// `umount -l` during the work; the server ends with the last descriptor.
    Lazy,
    /// SIGTERM to the server during the work.
    Terminate,
    /// SIGKILL to the server during the work.
    Kill,
}

impl Ending {
    /// Whether data acknowledged by write(2) must be there afterwards, not only data acknowledged by fsync(2).
    pub(crate) fn is_orderly(self) -> bool {
        self != Self::Kill
    }
}

/// A thread that works on the mounted volume, and knows its expected content.
pub(crate) trait Actor: Send {
    /// Creates its initial files. No other actor runs.
    fn prepare(&mut self, world: &World);
    /// Works until [`World::stops`].
    fn act(&mut self, world: &World);
    /// Verifies its files when the volume is mounted again. No other actor runs.
    fn verify(&mut self, world: &World, ending: Ending);
}

/// An operation, with repetitions.
#[derive(Debug)]
struct Noted {
    time: u128,
    /// The time of the last repetition.
    until: u128,
    times: u32,
    phase: u64,
    what: String,
}

#[derive(Debug)]
pub(crate) struct World {
    folder: PathBuf,
    options: String,
    pub(crate) native: bool,
    started: Instant,
    /// The mounted root and a path to it that is also valid after a detach.
    root: RwLock<Option<(OwnedFd, PathBuf)>>,
    server: AtomicU64,
    stop: AtomicBool,
    hurry: AtomicBool,
    ending: AtomicBool,
    detached: AtomicBool,
    /// 2n before transaction n, 2n + 1 while it may run.
    phase: AtomicU64,
    /// The transaction that certainly runs and will be rolled back, or 0.
    doomed: AtomicU64,
    /// A lock, taken for reading by actors that need that no transaction runs.
    calm: RwLock<()>,
    /// The files that transactions change only if they are rolled back: constant content.
    victims: OnceLock<Tree>,
    /// The last operations of each actor, with repetitions merged.
    trace: Mutex<BTreeMap<String, VecDeque<Noted>>>,
    wrong: Mutex<Vec<(&'static str, String)>>,
}

/// The program under test: EXTANT_PROGRAM names another build of it.
pub(crate) fn extant() -> Command {
    let program = std::env::var_os("EXTANT_PROGRAM").unwrap_or_else(|| env!("CARGO_BIN_EXE_extant").into());
    let mut command = Command::new(program);
    command.env("TZ", "UTC");
    command
}

impl World {
    pub(crate) fn new(folder: &Path, native: bool, options: &str) -> Self {
        std::fs::create_dir(folder.join("mnt")).unwrap();
        let world = Self {
            folder: folder.to_owned(),
            options: options.to_owned(),
            native,
            started: Instant::now(),
            root: RwLock::default(),
            server: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            hurry: AtomicBool::new(false),
            ending: AtomicBool::new(false),
            detached: AtomicBool::new(false),
            phase: AtomicU64::new(0),
            doomed: AtomicU64::new(0),
            calm: RwLock::new(()),
            victims: OnceLock::new(),
            trace: Mutex::default(),
            wrong: Mutex::default(),
        };
        std::fs::write(world.outside(agent::SCRIPT), agent::TEXT).unwrap();
        let kind = if native { "extant" } else { "ext4" };
        world.must(&["mkfs", "-q", "-t", kind, &world.image_text(), "192M"]);
        world.mount();
        world
    }

    // --- running the program -----------------------------------------------------------------------------------------

    /// Runs the program; a program that does not end counts as stuck.
    pub(crate) fn run<A: AsRef<OsStr>>(&self, args: &[A]) -> Ran {
        let ran = run_with(extant().args(args), b"", STUCK);
        if ran.timed_out {
            let words: Vec<_> = args.iter().map(|word| word.as_ref().to_string_lossy()).collect();
            self.wrong("stuck", format!("extant {} did not end in {STUCK:?}", words.join(" ")));
        }
        ran
    }

    fn must(&self, args: &[&str]) {
        let ran = self.run(args);
        assert_eq!(ran.exit, Some(0), "extant {args:?}: {}", ran.text());
    }

    fn image_text(&self) -> String {
        self.folder.join("volume").to_str().expect("UTF-8").to_owned()
    }

    /// The folder that the volume is, or was, mounted on.
    pub(crate) fn mnt(&self) -> PathBuf {
        self.folder.join("mnt")
    }

    /// A path outside of the volume.
    pub(crate) fn outside(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// A path in the mounted volume, also when it has been detached.
    pub(crate) fn at(&self, name: &str) -> PathBuf {
        let root = self.root.read();
        root.as_ref().map_or_else(|| self.mnt(), |(_, path)| path.clone()).join(name)
    }

    pub(crate) fn mount(&self) {
        let mnt = self.mnt();
        self.must(&["mount", "-o", &self.options, &self.image_text(), mnt.to_str().expect("UTF-8")]);
        let mut text = [0; 32];
        let length = rustix::fs::getxattr(&mnt, "extant.daemon", &mut text[..]).expect("the server's number");
        let number = std::str::from_utf8(&text[..length]).unwrap().trim().parse().expect("a number");
        self.server.store(number, Ordering::SeqCst);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(&mnt, flags, Mode::empty()).expect("the mounted root");
        let path = format!("/proc/{}/fd/{}", std::process::id(), root.as_raw_fd()).into();
        *self.root.write() = Some((root, path));
        self.ending.store(false, Ordering::SeqCst);
    }

    /// Closes the mounted root.
    pub(crate) fn leave(&self) {
        *self.root.write() = None;
    }

    pub(crate) fn syncfs(&self) {
        let Some((root, _)) = &*self.root.read() else { return };
        // the kernel reports refused pages to each process that has the mount open: those of transactions rolled back,
        // also while their members still exist and change them
        let mut outcome = rustix::fs::syncfs(root);
        let until = Instant::now() + STUCK;
        while self.native && outcome == Err(Errno::IO) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
            outcome = rustix::fs::syncfs(root);
        }
        if let Err(e) = outcome {
            self.failed("everybody", "syncfs", &e.into());
        }
    }

    /// Free bytes and free inodes.
    pub(crate) fn free(&self) -> (u64, u64) {
        let all = rustix::fs::statvfs(self.at("")).expect("statfs");
        (all.f_bfree * all.f_frsize, all.f_ffree)
    }

    /// Unmounts it after all descriptors are closed.
    pub(crate) fn unmount(&self) {
        self.leave();
        let until = Instant::now() + STUCK;
        loop {
            let ran = self.run(&["umount", self.mnt().to_str().unwrap()]);
            if ran.exit == Some(0) {
                return;
            }
            if Instant::now() > until {
                return self.wrong("stuck", format!("it cannot be unmounted: {}", ran.text()));
            }
            // a program that another test starts may have a descriptor of this process for a moment
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// `umount -l`: the server ends with the last descriptor.
    pub(crate) fn detach(&self) {
        self.detached.store(true, Ordering::SeqCst);
        run("umount", &["-l".as_ref(), self.mnt().as_os_str()]);
    }

    fn server(&self) -> Option<Pid> {
        i32::try_from(self.server.load(Ordering::SeqCst)).ok().and_then(Pid::from_raw)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.log("everybody", format_args!("the server gets {signal:?}"));
        self.server().map(|server| kill_process(server, signal));
    }

    /// Returns when the server has ended; one that does not is killed, so that all waiting processes continue.
    pub(crate) fn await_server(&self) {
        let Some(process) = self.server().and_then(|server| pidfd_open(server, PidfdFlags::empty()).ok()) else {
            return;
        };
        let time = Timespec { tv_sec: STUCK.as_secs().cast_signed(), tv_nsec: 0 };
        if poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&time)).is_ok_and(|ready| ready == 0) {
            self.wrong("stuck", "the server does not end".to_owned());
            self.signal(Signal::KILL);
            let _ = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&time));
        }
    }

    /// Checks that `extant check -fn` finds no errors.
    pub(crate) fn check(&self, when: &str) {
        let ran = self.run(&["check", "-fn", &self.image_text()]);
        if ran.exit != Some(0) {
            self.wrong("check", format!("{when}: {}", ran.text()));
        }
    }

    // --- what all know of each other ---------------------------------------------------------------------------------

    pub(crate) fn stops(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }

    /// Waits briefly, except shortly before the end, when as many operations as possible should be under way.
    pub(crate) fn pause(&self, time: Duration) {
        if !self.hurry.load(Ordering::SeqCst) && !self.stops() {
            std::thread::sleep(time);
        }
    }

    pub(crate) fn hurry(&self) {
        self.hurry.store(true, Ordering::SeqCst);
    }

    /// From now on, calls may fail with any error.
    pub(crate) fn end(&self) {
        self.ending.store(true, Ordering::SeqCst);
    }

    /// Whether the mount is detached, so that only open descriptors reach it.
    pub(crate) fn is_detached(&self) -> bool {
        self.detached.load(Ordering::SeqCst)
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::SeqCst)
    }

    pub(crate) fn phase(&self) -> u64 {
        self.phase.load(Ordering::SeqCst)
    }

    pub(crate) fn set_phase(&self, phase: u64) {
        self.phase.store(phase, Ordering::SeqCst);
    }

    /// The transaction that certainly runs and will be rolled back, or 0.
    pub(crate) fn doomed(&self) -> u64 {
        self.doomed.load(Ordering::SeqCst)
    }

    pub(crate) fn set_doomed(&self, transaction: u64) {
        self.doomed.store(transaction, Ordering::SeqCst);
    }

    /// Runs `work` while no transaction runs, or not at all.
    pub(crate) fn in_calm<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        let _calm = self.calm.try_read()?;
        Some(work())
    }

    /// Runs `work` while no thread is [`in_calm`](Self::in_calm).
    pub(crate) fn in_storm<T>(&self, work: impl FnOnce() -> T) -> T {
        let _storm = self.calm.write();
        work()
    }

    pub(crate) fn set_victims(&self, victims: Tree) {
        let _ = self.victims.set(victims);
    }

    /// Checks, after a change by another process that waited for transaction `number`, which has therefore been rolled
    /// back, that nothing of the transaction is visible.
    pub(crate) fn look_after_rollback(&self, number: u64, rng: &mut testkit::Rng) {
        let Some(victims) = self.victims.get() else { return };
        let names: Vec<_> = victims.keys().collect();
        let name = *rng.pick(&names);
        let seen = looks::one(&self.at("v").join(name));
        // if the next transaction has begun, the result is meaningless
        if self.is_ending() || self.phase() > 2 * number + 2 {
            return;
        }
        let difference = match &seen {
            Ok(seen) => looks::difference(&victims[name], seen),
            Err(e) => Some(e.to_string()),
        };
        if let Some(difference) = difference {
            self.wrong(
                "undone is seen",
                format!("v/{name}, after a write that waited for transaction {number}: {difference}"),
            );
        }
    }

    // --- what went wrong ---------------------------------------------------------------------------------------------

    pub(crate) fn log(&self, who: &str, what: impl Display) {
        let (time, phase, what) = (self.started.elapsed().as_millis(), self.phase(), what.to_string());
        let mut trace = self.trace.lock();
        let own = trace.entry(who.to_owned()).or_default();
        if let Some(last) = own.back_mut().filter(|last| last.what == what && last.phase == phase) {
            (last.until, last.times) = (time, last.times + 1);
            return;
        }
        if own.len() == TRACED {
            own.pop_front();
        }
        own.push_back(Noted { time, until: time, times: 1, phase, what });
    }

    /// Records an error. `class` distinguishes kinds of findings: only the first of each is recorded.
    pub(crate) fn wrong(&self, class: &'static str, what: String) {
        let mut wrong = self.wrong.lock();
        if !wrong.iter().any(|(known, _)| *known == class) {
            self.log("WRONG", format_args!("[{class}] {what}"));
            let time = self.started.elapsed().as_millis();
            wrong.push((class, format!("[{class}] after {time} ms of the round: {what}")));
        }
    }

    /// Records a failed call, unless the end is near or another process blocks a member.
    pub(crate) fn failed(&self, who: &str, what: &str, error: &io::Error) {
        self.log(who, format_args!("{what}: {error}"));
        if !self.is_ending() && Errno::from_io_error(error) != Some(Errno::BUSY) {
            self.wrong("answer", format!("{who}: {what}: {error}"));
        }
    }

    /// Everything that went wrong, with the last operations; `None` if nothing did.
    pub(crate) fn report(&self) -> Option<String> {
        let wrong = self.wrong.lock();
        if wrong.is_empty() {
            return None;
        }
        let found: Vec<_> = wrong.iter().map(|(_, text)| text.as_str()).collect();
        let trace = self.trace.lock();
        let mut trace: Vec<_> = trace.iter().flat_map(|(who, all)| all.iter().map(move |noted| (noted, who))).collect();
        trace.sort_by_key(|(noted, _)| noted.time);
        let line = |(noted, who): &(&Noted, &String)| {
            let Noted { time, until, times, phase, what } = noted;
            let again = if *times > 1 { format!(" ({times} times, until {until} ms)") } else { String::new() };
            format!("{time:6} ms, phase {phase:3}: {who}: {what}{again}")
        };
        let trace: Vec<_> = trace.iter().map(line).collect();
        Some(format!(
            "{}\nmounted with {}\nthe last operations:\n{}\nthe volume: {}",
            found.join("\n"),
            self.options,
            trace.join("\n"),
            self.image_text()
        ))
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.leave();
        if std::fs::symlink_metadata(self.mnt()).is_err() || looks::is_mounted(&self.mnt()) {
            self.signal(Signal::KILL);
            self.detach();
        }
    }
}
