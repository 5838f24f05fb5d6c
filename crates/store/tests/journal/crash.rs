//! Every state that a loss of power can leave: replayed by Extant, by e2fsck and by the kernel.

use crate::toy::{State, Volume, Work, open};
use blockdev::{BlockDevice, MemoryDevice, Overlay};
use extant_store::engine::JournalOptions;
use format::feature::Incompat as VolumeIncompat;
use format::jbd2::{Compat, Incompat};
use format::superblock::DiskSuperblock;
use simdev::{Log, Logged, Record};
use std::sync::Arc;
use std::time::Duration;
use testkit::{Image, Rng, cases, need, oracle, tools};

/// The requests to the device, and the content that each generation should have left.
struct History {
    volume: Volume,
    log: Log,
    work: Work,
}

/// The parameters of a history.
#[derive(Clone, Copy)]
struct Plot {
    steps: u32,
    /// The maximum number of blocks that an operation changes.
    most: u64,
    /// The percentage of operations that are followed by a sync.
    syncs: u64,
    journal_data: bool,
}

/// Random work with a sync now and then, quiet moments, and at the end an unmount.
fn history(volume: Volume, rng: Rng, plot: Plot) -> History {
    let record = Arc::new(Record::in_memory(volume.device()));
    let device: Arc<dyn BlockDevice> = record.clone();
    let options = JournalOptions { journal_data: plot.journal_data, ..volume.options() };
    let (_, store) = open(&volume, &device, options);
    let mut work = Work::new(&volume, rng, plot.most);
    let mut now = Duration::ZERO;
    for _ in 0..plot.steps {
        work.step(&store, volume.size);
        if work.rng.chance(plot.syncs) {
            store.sync().unwrap();
        }
        // sometimes long enough for a checkpoint
        now += Duration::from_millis(if work.rng.chance(5) { 10_000 } else { 300 });
        store.tick(now).unwrap();
        record.mark(&store.durable_generation().to_string()).unwrap();
    }
    store.stop_writing().unwrap();
    record.mark(&store.durable_generation().to_string()).unwrap();
    History { log: record.log().unwrap(), volume, work }
}

/// The generation that was known to be durable at `point`.
fn durable_at(log: &Log, point: usize) -> u64 {
    let marks = log.entries()[..point].iter().rev();
    marks.filter_map(|e| if let Logged::Mark(text) = &e.what { text.parse().ok() } else { None }).next().unwrap_or(0)
}

/// A log that is applied to a device entry by entry.
struct Progress<'a> {
    log: &'a Log,
    /// The number of entries applied.
    point: usize,
    now: Overlay,
    /// The device when the last flush returned, and the number of entries then.
    flushed: (Overlay, usize),
}

impl<'a> Progress<'a> {
    fn new(log: &'a Log, base: &Arc<dyn BlockDevice>) -> Self {
        let now = Overlay::new(Arc::clone(base));
        Self { log, point: 0, flushed: (now.clone(), 0), now }
    }

    fn go_to(&mut self, point: usize) {
        while self.point < point {
            self.log.apply(self.point, &self.now).unwrap();
            self.point += 1;
            if self.log.entries()[self.point - 1].what == Logged::Flush {
                self.flushed = (self.now.clone(), self.point);
            }
        }
    }

    /// The device as a loss of power may leave it now: each write since the last flush is complete, missing, or there
    /// in part, in units of `piece` bytes.
    fn cut(&self, rng: &mut Rng, piece: usize) -> Overlay {
        let state = self.flushed.0.clone();
        let likely = rng.between(10, 90);
        for index in self.flushed.1..self.point {
            for (at, bytes) in self.log.parts(index) {
                for (n, part) in bytes.chunks(piece).enumerate() {
                    if rng.chance(likely) {
                        state.write(at + (n * piece) as u64, part).unwrap();
                    }
                }
            }
        }
        state
    }
}

fn contains(volume: &Volume, device: &dyn BlockDevice, state: &State) -> bool {
    state.iter().all(|(&block, content)| content.as_ref().is_none_or(|c| *c == volume.read(device, block)))
}

/// The generation whose state the volume has, not before `at_least`.
fn generation_of(history: &History, device: &dyn BlockDevice, at_least: u64) -> Option<u64> {
    let known = at_least.min(*history.work.states.keys().last().unwrap());
    // a generation without changes leaves the state of the previous one
    let start = *history.work.states.range(..=known).next_back().unwrap().0;
    history
        .work
        .states
        .range(start..)
        .find(|(_, state)| contains(&history.volume, device, state))
        .map(|(number, _)| *number)
}

fn bytes_of(device: &dyn BlockDevice) -> Vec<u8> {
    let mut bytes = vec![0; device.geometry().len as usize];
    device.read(0, &mut bytes).unwrap();
    bytes
}

/// The file's blocks after another program replayed the journal.
fn blocks_in(volume: &Volume, image: &Image) -> Vec<Vec<u8>> {
    let device = MemoryDevice::from_vec(image.bytes());
    volume.blocks.iter().map(|&block| volume.read(&device, block)).collect()
}

/// Checks that e2fsck and the kernel replay the same state with the same result.
fn others_agree(volume: &Volume, before: &[u8], ours: &dyn BlockDevice) {
    let expected: Vec<_> = volume.blocks.iter().map(|&block| volume.read(ours, block)).collect();
    let image = Image::from_bytes(before);
    let ran = tools::run("e2fsck", &["-y".as_ref(), "-E".as_ref(), "journal_only".as_ref(), image.path().as_os_str()]);
    assert_eq!(ran.exit, Some(0), "{}", ran.text());
    assert!(blocks_in(volume, &image) == expected, "e2fsck replays otherwise: {}", ran.text());
    let verdict = oracle::e2fsck(image.path());
    assert!(verdict.clean, "{}", verdict.text);
    let verdict = oracle::e2fsck(Image::from_bytes(&bytes_of(ours)).path());
    assert!(verdict.clean, "after our replay: {}", verdict.text);
    if tools::has_loop() {
        let image = Image::from_bytes(before);
        oracle::kernel_mount(image.path(), "").unwrap().unmount();
        assert!(blocks_in(volume, &image) == expected, "the kernel replays otherwise");
        assert!(oracle::e2fsck(image.path()).clean);
    }
}

fn needs_recovery(device: &dyn BlockDevice) -> bool {
    let mut bytes = [0; 1024];
    device.read(1024, &mut bytes).unwrap();
    DiskSuperblock::from_slice(&bytes).unwrap().features().incompat.contains(VolumeIncompat::NEEDS_RECOVERY)
}

/// Interrupts the history at every write, and returns the number of states.
fn explore(history: &History, rng: &mut Rng, others: usize) -> usize {
    let base: Arc<dyn BlockDevice> = history.volume.device();
    let points = history.log.entries().len();
    let mut ask: Vec<usize> = (0..others).map(|_| rng.index(points + 1)).collect();
    ask.push(points);
    let mut progress = Progress::new(&history.log, &base);
    let mut states = 0;
    for point in 0..=points {
        progress.go_to(point);
        if point < points && matches!(history.log.entries()[point].what, Logged::Mark(_)) {
            continue;
        }
        for lossy in [false, true] {
            // e2fsck reports a torn commit block as damage; the kernel does not
            let piece = if ask.contains(&point) { history.volume.size } else { 1024 };
            let state = Arc::new(if lossy { progress.cut(rng, piece) } else { progress.now.clone() });
            let before = ask.contains(&point).then(|| bytes_of(&*state));
            let device: Arc<dyn BlockDevice> = state.clone();
            let marked = needs_recovery(&*state);
            let empty = history.volume.place(Arc::clone(&device)).read_superblock().unwrap().start().is_none();
            assert!(marked || empty, "point {point} of {points}, lossy {lossy}: a log in use, and no mark");
            history.volume.replay(&device).unwrap_or_else(|e| panic!("point {point}, lossy {lossy}: {e}"));
            let durable = durable_at(&history.log, point);
            let found = generation_of(history, &*device, durable);
            assert!(found.is_some(), "point {point} of {points}, lossy {lossy}: no generation from {durable} on");
            let once = state.fingerprint();
            history.volume.replay(&device).unwrap();
            assert_eq!(state.fingerprint(), once, "a second replay changes something");
            if let Some(before) = before {
                others_agree(&history.volume, &before, &*device);
            }
            states += 1;
        }
    }
    states
}

/// The forms of a log: those of mke2fs, and those that result from changes to the journal's superblock.
fn forms() -> Vec<(Vec<&'static str>, u64, Compat, Incompat)> {
    let (none, v1) = (Compat::empty(), Compat::CHECKSUM);
    let (v2, wide) = (Incompat::CSUM_V2, Incompat::BIT64);
    vec![
        (vec!["-t", "ext3", "-b", "1024", "-J", "size=1"], 8, none, Incompat::empty()),
        (vec!["-t", "ext4", "-b", "1024", "-J", "size=1"], 8, none, Incompat::empty()),
        (vec!["-t", "ext4", "-b", "2048", "-O", "^64bit", "-J", "size=2"], 8, none, Incompat::empty()),
        (vec!["-t", "ext4", "-b", "4096", "-J", "size=4"], 16, none, Incompat::empty()),
        (vec!["-t", "ext4", "-b", "1024", "-O", "64bit,^metadata_csum", "-J", "size=1"], 8, v1, Incompat::empty()),
        (vec!["-t", "ext4", "-b", "1024", "-O", "^64bit", "-J", "size=1"], 8, none, v2),
        (vec!["-t", "ext4", "-b", "1024", "-J", "size=1"], 8, none, v2 | wide),
    ]
}

fn volume(form: &(Vec<&'static str>, u64, Compat, Incompat), blocks: usize, sequence: u32) -> Volume {
    let (args, mib, compat, incompat) = form;
    let mut volume = Volume::new(args, *mib, blocks);
    volume.set_journal(|sb| {
        sb.set_features(*compat, *incompat);
        sb.s_sequence = sequence.into();
    });
    volume
}

#[test]
fn every_cut_leaves_a_prefix_of_generations() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    for (number, form) in forms().iter().enumerate() {
        for case in cases(&format!("cuts {number}"), 1) {
            let mut rng = case.rng();
            // the sequence numbers of one log wrap around
            let sequence = if number == 1 { u32::MAX - 6 } else { 7 };
            let volume = volume(form, 150, sequence);
            let plot = Plot { steps: 80, most: 60, syncs: 50, journal_data: number == 3 };
            let history = history(volume, rng.clone(), plot);
            let states = explore(&history, &mut rng, 2);
            assert!(states > 300, "{form:?}: {states}");
        }
    }
}

#[test]
fn a_log_that_is_always_full() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    for (number, form) in forms().iter().take(3).enumerate() {
        for case in cases(&format!("full {number}"), 1) {
            let mut rng = case.rng();
            let volume = volume(form, 800, 7);
            let plot = Plot { steps: 70, most: 110, syncs: 4, journal_data: false };
            let history = history(volume, rng.clone(), plot);
            explore(&history, &mut rng, 1);
        }
    }
}

/// A replay that is interrupted at any point is repeated with the same result.
#[test]
fn a_replay_that_is_cut_is_done_again() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let form = &forms()[1];
    for case in cases("cut replay", 2) {
        let mut rng = case.rng();
        let plot = Plot { steps: 30, most: 60, syncs: 50, journal_data: false };
        let history = history(volume(form, 150, 7), rng.clone(), plot);
        let base: Arc<dyn BlockDevice> = history.volume.device();
        // at the point with the fullest log
        let point = history.log.entries().len() * 2 / 3;
        let mut progress = Progress::new(&history.log, &base);
        progress.go_to(point);
        let full: Arc<dyn BlockDevice> = Arc::new(progress.now);
        let record = Arc::new(Record::in_memory(Overlay::new(Arc::clone(&full))));
        let device: Arc<dyn BlockDevice> = record.clone();
        history.volume.replay(&device).unwrap();
        let expected = bytes_of(&*device);
        let replay = History { log: record.log().unwrap(), ..history };
        let writes = replay.log.entries().len();
        assert!(writes > 20);
        let mut progress = Progress::new(&replay.log, &full);
        for point in 0..=writes {
            progress.go_to(point);
            for state in [progress.now.clone(), progress.cut(&mut rng, 1024)] {
                let state: Arc<dyn BlockDevice> = Arc::new(state);
                replay.volume.replay(&state).unwrap();
                let mut now = bytes_of(&*state);
                // a replay that was interrupted after it had emptied the log does not use up another number
                let journal = replay.volume.journal[0].first.get() as usize * replay.volume.size;
                now[journal..journal + 1024].copy_from_slice(&expected[journal..journal + 1024]);
                assert!(now == expected, "point {point} of {writes}");
            }
        }
    }
}
