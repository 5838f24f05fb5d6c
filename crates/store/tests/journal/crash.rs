//! Every state that a loss of power can leave: replayed by us, by e2fsck and by the kernel.

use crate::toy::{State, Volume, Work, open};
use blockdev::{BlockDevice, Log, Logged, MemoryDevice, Overlay, Record};
use format::jbd2::{Compat, Incompat};
use std::sync::Arc;
use std::time::Duration;
use testkit::{Image, Rng, cases, need, oracle, tools};

/// What went over the device, and what each generation should have left.
struct History {
    volume: Volume,
    log: Log,
    work: Work,
}

/// Random work with a sync now and then, quiet moments, and at the end an unmount.
fn history(volume: Volume, rng: Rng, steps: u32, most: u64, journal_data: bool) -> History {
    let record = Arc::new(Record::in_memory(volume.device()));
    let device: Arc<dyn BlockDevice> = record.clone();
    let options = extant_store::engine::JournalOptions { journal_data, ..volume.options() };
    let (_, store) = open(&volume, &device, options);
    let mut work = Work::new(&volume, rng, most);
    let mut now = Duration::ZERO;
    for _ in 0..steps {
        work.step(&store, volume.size);
        if work.rng.chance(40) {
            store.sync().unwrap();
        }
        now += Duration::from_secs(if work.rng.chance(8) { 20 } else { 1 });
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

/// The volume as a loss of power after `point` entries may leave it: what was written since the last flush is there, or
/// not, in pieces of 1 KiB.
fn cut(history: &History, base: &Arc<dyn BlockDevice>, point: usize, lossy: Option<&mut Rng>) -> Overlay {
    let state = Overlay::new(Arc::clone(base));
    let Some(rng) = lossy else {
        history.log.replay_to(point, &state).unwrap();
        return state;
    };
    let entries = &history.log.entries()[..point];
    let epoch = entries.iter().map(|entry| entry.epoch + u64::from(entry.what == Logged::Flush)).max().unwrap_or(0);
    let likely = rng.between(10, 90);
    for (index, entry) in entries.iter().enumerate() {
        if entry.epoch < epoch {
            history.log.apply(index, &state).unwrap();
            continue;
        }
        for (at, bytes) in history.log.pieces(index) {
            for (n, part) in bytes.chunks(1024).enumerate() {
                if rng.chance(likely) {
                    state.write(at + n as u64 * 1024, part).unwrap();
                }
            }
        }
    }
    state
}

fn holds(volume: &Volume, device: &dyn BlockDevice, state: &State) -> bool {
    state.iter().all(|(&block, content)| content.as_ref().is_none_or(|c| *c == volume.read(device, block)))
}

/// The generation whose state the volume holds.
fn generation_of(history: &History, device: &dyn BlockDevice, at_least: u64) -> Option<u64> {
    let known = at_least.min(*history.work.states.keys().last().unwrap());
    // a generation in which nothing happened leaves what the one before it left
    let start = *history.work.states.range(..=known).next_back().unwrap().0;
    history
        .work
        .states
        .range(start..)
        .find(|(_, state)| holds(&history.volume, device, state))
        .map(|(number, _)| *number)
}

fn bytes_of(device: &dyn BlockDevice) -> Vec<u8> {
    let mut bytes = vec![0; device.geometry().len as usize];
    device.read(0, &mut bytes).unwrap();
    bytes
}

/// The file's blocks after somebody else replayed the journal.
fn blocks_in(volume: &Volume, image: &Image) -> Vec<Vec<u8>> {
    let device = MemoryDevice::from_vec(image.bytes());
    volume.blocks.iter().map(|&block| volume.read(&device, block)).collect()
}

/// e2fsck and the kernel replay the same state, and come to the same blocks.
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

/// Cuts the history at every write, and gives how many states were seen.
fn explore(history: &History, rng: &mut Rng, others: usize) -> usize {
    let base: Arc<dyn BlockDevice> = history.volume.device();
    let points = history.log.entries().len();
    let mut ask: Vec<usize> = (0..others).map(|_| rng.index(points + 1)).collect();
    ask.push(points);
    let mut states = 0;
    for point in 0..=points {
        if point < points && !matches!(history.log.entries()[point].what, Logged::Write { .. } | Logged::Flush) {
            continue;
        }
        for lossy in [false, true] {
            let state = Arc::new(cut(history, &base, point, lossy.then_some(&mut *rng)));
            let before = ask.contains(&point).then(|| bytes_of(&*state));
            let device: Arc<dyn BlockDevice> = state.clone();
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

/// The forms of a log: what mke2fs makes, and what the journal's superblock is made to say.
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
            let history = history(volume, rng.clone(), 40, 60, number == 3);
            let states = explore(&history, &mut rng, 2);
            assert!(states > 100, "{form:?}: {states}");
        }
    }
}
