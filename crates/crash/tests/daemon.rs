//! The requests of a real mount with several concurrent programs: recorded beneath the FUSE server, with verification
//! of a sample of all kinds of states that a loss of power can leave. The library exploration is single-threaded; here
//! a generation is written while the next one grows, with the server's threads and its background thread as in real
//! use.
//!
//! Each thread has a directory, and a history of it: its content must satisfy the mode's guarantee for that history,
//! regardless of the other threads.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use blockdev::{BlockDevice, Geometry, Overlay, Read, Write};
use extant_crash::directory::Directory;
use extant_crash::enumerate::{self, Limits};
use extant_crash::extant_system::Ext;
use extant_crash::guarantee::{self, Moment};
use extant_crash::history::History;
use extant_crash::model::State;
use extant_crash::op::{Op, RenameHow};
use extant_crash::system::{Session, System};
use simdev::{Log, Logged, Record};
use testkit::{cases, tools};

/// Number of concurrent threads.
const THREADS: usize = 4;
/// Number of operations per thread.
const OPS: usize = 60;

type Recorder = Record<Overlay, Vec<u8>>;

/// A device with slow flushes. Writes during a flush are not part of it; `beside` counts the flushes with concurrent
/// requests.
struct Slow {
    record: Arc<Recorder>,
    beside: Arc<AtomicUsize>,
}

impl BlockDevice for Slow {
    fn geometry(&self) -> Geometry {
        self.record.geometry()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> blockdev::Result<()> {
        self.record.read(offset, buf)
    }

    fn read_many(&self, reads: &mut [Read<'_>]) {
        self.record.read_many(reads);
    }

    fn write(&self, offset: u64, data: &[u8]) -> blockdev::Result<()> {
        self.record.write(offset, data)
    }

    fn write_many(&self, writes: &mut [Write<'_>]) {
        self.record.write_many(writes);
    }

    fn flush(&self) -> blockdev::Result<()> {
        self.record.flush()?;
        let before = self.record.point();
        std::thread::sleep(Duration::from_millis(3));
        self.beside.fetch_add(usize::from(self.record.point() > before), Ordering::Relaxed);
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> blockdev::Result<()> {
        self.record.discard(offset, len)
    }
}

fn folder(thread: usize) -> String {
    format!("d{thread}")
}

/// The content of the directory of one thread.
fn of_thread(state: &State, thread: usize) -> Option<State> {
    Some(State { root: state.resolve(&folder(thread)).ok()?, ..state.clone() })
}

/// A volume with a directory and a few files for each thread.
fn start(ext: &Ext) -> (Overlay, State) {
    let fresh = Arc::new(Overlay::new(ext.format().expect("a volume")));
    let mut session = ext.mount(fresh.clone()).expect("mounted");
    for thread in 0..THREADS {
        let dir = folder(thread);
        for op in [format!("mkdir {dir}"), format!("create {dir}/old"), format!("append {dir}/old 6000 ={thread}")] {
            session.apply(&op.parse().expect("an operation")).expect("done");
        }
    }
    session.unmount().expect("unmounted");
    let state = ext.observe(fresh.clone()).expect("read");
    (Overlay::clone(&fresh), state)
}

/// A random operation that succeeds in this state.
fn draw(numbers: &mut fastrand::Rng, state: &State, seed: u32) -> Op {
    let names = ["old", "a", "b", "c", "d"];
    let name = |numbers: &mut fastrand::Rng| names[numbers.usize(..names.len())].to_owned();
    loop {
        let (path, to, seed) = (name(numbers), name(numbers), seed + 1);
        let op = match numbers.u32(..20) {
            0..4 => Op::Create { path },
            4..8 => Op::Append { path, len: numbers.u64(1..9000), seed },
            8..10 => Op::Write { path, offset: numbers.u64(..6000), len: numbers.u64(1..6000), seed },
            10..14 => Op::Fsync { path },
            14 => Op::Fdatasync { path },
            15 => Op::Truncate { path, size: numbers.u64(..5000) },
            16 | 17 => Op::Unlink { path },
            _ => Op::Rename { from: path, to, how: RenameHow::Replace },
        };
        if state.clone().apply(&op, 4096).is_ok() {
            return op;
        }
    }
}

/// Runs the operations of one thread in its directory; each is enclosed by two marks in the log.
fn work(record: &Recorder, dir: &Path, thread: usize, first: State, seed: u64, block_size: u64) -> History {
    let mut numbers = fastrand::Rng::with_seed(seed ^ thread as u64);
    let mut history = History::new(first, block_size);
    let mut session = Directory::new(dir);
    for number in 0..OPS {
        let op = draw(&mut numbers, history.last(), (1000 * thread + 2 * number) as u32);
        history.push(&op).expect("it was tried");
        record.mark(&format!("begin {thread}")).expect("marked");
        session.apply(&op).unwrap_or_else(|e| panic!("`{op}`: {e}"));
        record.mark(&format!("end {thread}")).expect("marked");
    }
    history
}

/// The recording of a mount.
struct Recorded {
    base: Overlay,
    log: Log,
    histories: Vec<History>,
    /// Number of flushes with concurrent requests.
    beside: usize,
}

fn record(ext: &Ext, seed: u64) -> Recorded {
    let (base, state) = start(ext);
    let record = Arc::new(Record::in_memory(base.clone()));
    let mut options =
        fuse::MountOptions::parse(&[format!("rw,nofuseblk,{}", ext.guarantee().mode.options())]).expect("options");
    let mut way = options.volume_options().pop().expect("one way to open it");
    if let Some(write) = &mut way.write {
        // so that generations also close by themselves
        write.commit = Duration::from_millis(150);
        write.mutant = ext.mutant;
    }
    options.mount.device = Some("/dev/null".into());
    let beside = Arc::new(AtomicUsize::new(0));
    let slow = Slow { record: record.clone(), beside: beside.clone() };
    let volume = fs::Volume::open(Arc::new(slow), &way).expect("a volume");
    let dir = tempfile::tempdir().expect("a folder");
    let session = fuse::mount(Arc::new(volume), dir.path(), &options, |why: &str| eprintln!("{why}")).expect("mounted");
    let unmounter = session.unmounter();
    let served = std::thread::spawn(move || session.run());
    let histories = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (record, dir) = (&record, dir.path().join(folder(thread)));
                let mut first = of_thread(&state, thread).expect("its directory");
                // nodes of other threads are not expected in its directory
                let own: Vec<u64> = first.paths().into_iter().map(|(_, id)| id).collect();
                first.nodes.retain(|id, _| own.contains(id) || *id == first.root);
                scope.spawn(move || work(record, &dir, thread, first, seed, ext.block_size()))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("it worked")).collect()
    });
    unmounter.unmount().expect("unmounted");
    served.join().expect("no panic").expect("the session ends well");
    let beside = beside.load(Ordering::Relaxed);
    Recorded { base, log: record.log().expect("a log"), histories, beside }
}

/// The progress of each thread at the end of each epoch.
fn moments(log: &Log) -> Vec<Vec<Moment>> {
    let mut now = vec![Moment { returned: 0, begun: 0, torn: false }; THREADS];
    let mut all = Vec::new();
    for entry in log.entries() {
        match &entry.what {
            Logged::Flush => all.push(now.clone()),
            Logged::Mark(mark) => {
                let (word, thread) = mark.split_once(' ').expect("a mark of this test");
                let moment = &mut now[thread.parse::<usize>().expect("a thread")];
                match word {
                    "begin" => moment.begun += 1,
                    _ => moment.returned += 1,
                }
            }
            _ => {}
        }
    }
    all.push(now);
    all
}

/// Verifies states of a recording; returns their number.
fn verify(ext: &Ext, recorded: &Recorded, seed: u64, most: usize) -> Result<usize, String> {
    let moments = moments(&recorded.log);
    let limits = Limits {
        every_subset: 3,
        lacking_two: 0,
        samples: 10,
        ends: false,
        most,
        whole: ext.whole(),
        seed,
        torn: true,
    };
    let mut seen: BTreeMap<u128, ()> = BTreeMap::new();
    let found = enumerate::states(&recorded.log, &recorded.base, &limits, |crash| {
        let before = seen.len();
        seen.entry(crash.device.fingerprint()).or_default();
        if seen.len() == before {
            return ControlFlow::Continue(());
        }
        let verdict = (|| {
            let device = Arc::new(crash.device.clone());
            let clean = ext.recover(device.clone())?;
            if let Some(problem) = ext.problems(&device)?.first() {
                return Err(format!("damaged: {problem}"));
            }
            let observed = ext.observe(device)?;
            for (thread, history) in recorded.histories.iter().enumerate() {
                let moment = Moment { torn: crash.moment.torn, ..moments[crash.choice.epoch][thread] };
                let there = of_thread(&observed, thread).ok_or_else(|| format!("no directory of thread {thread}"))?;
                guarantee::verify(ext.guarantee(), history, moment, clean, &there)
                    .map_err(|why| format!("thread {thread}, {} of {}: {why}", moment.returned, moment.begun))?;
            }
            Ok(())
        })();
        match verdict {
            Ok(()) => ControlFlow::Continue(()),
            Err(why) => ControlFlow::Break(format!("{}: {why}", crash.choice)),
        }
    });
    match found.expect("a device in memory") {
        None => Ok(seen.len()),
        Some(why) => Err(why),
    }
}

/// Records mounts in a mode and verifies their states.
fn explore(mode: &str) {
    if !ready() {
        return;
    }
    let ext = Ext::new(mode, None).expect("a mode");
    for case in cases(&format!("daemon {mode}"), 1) {
        let seed = case.rng().next_u64();
        let recorded = record(&ext, seed);
        let (epochs, beside) = (moments(&recorded.log).len(), recorded.beside);
        let begun = std::time::Instant::now();
        let states = verify(&ext, &recorded, seed, 16).unwrap_or_else(|why| panic!("{mode}, seed {seed}: {why}"));
        println!(
            "{mode}: {epochs} epochs, {beside} flushes with concurrent requests; {states} states in {:.1} s",
            begun.elapsed().as_secs_f64()
        );
        assert!(epochs > 20 && states > 150, "{epochs} epochs, {states} states");
        assert!(beside > 3, "no thread worked while a generation was written");
    }
}

/// Whether a mount can be recorded here, with the modes requested by its programs.
fn ready() -> bool {
    let ready = tools::has_fuse() && tools::is_root();
    rustix::process::umask(rustix::fs::Mode::empty());
    ready
}

#[test]
fn an_engine_that_reuses_physical_blocks_too_early_is_caught() {
    if !ready() {
        return;
    }
    let mut ext = Ext::new("snapshot", None).expect("a mode");
    ext.mutant = fs::Mutant::Store(store::Mutant::ReusePhysical);
    let caught = verify(&ext, &record(&ext, 1), 1, 16);
    assert!(caught.is_err(), "{caught:?} states");
}

/// Makes a test of each mode, and the list of their names.
macro_rules! modes {
    ($($test:ident = $mode:literal),+ $(,)?) => {
        const EXPLORED: &[&str] = &[$($mode),+];

        $(#[test]
        fn $test() {
            explore($mode);
        })+
    };
}

modes! {
    none = "none",
    dirty_bit = "dirty-bit",
    linked_writes = "linked",
    journal = "journal",
    journal_with_all_data = "journal-data",
    journal_without_order_of_data = "journal-writeback",
    snapshot = "snapshot",
    snapshot_with_content_copied = "snapshot-cow",
}

#[test]
fn every_mode_is_explored() {
    assert_eq!(EXPLORED, fs::MODES.map(|mode| mode.name), "a test for each mode, in the order of their table");
}
