//! The engine `snapshot` on a native volume without a file system: the states after each interruption of its plans, and
//! its costs.

use blockdev::{BlockDevice, MemoryDevice, Overlay};
use extant_store::engine::{CopyOnWrite, Engine, NativeUnordered, first_chunks, make};
use extant_store::native::{Mapped, superblock};
use extant_store::{
    BlockWrite, Closing, CommitHooks, EngineWithSpace, Error, Kind, Need, OperationKind, Result, SpaceHooks,
    StateSource, Store, Tag, VolumeState,
};
use format::native::{BLOCK_SIZE, CHUNK_BLOCKS, Layout};
use format::{FsBlock, InodeNo};
use parking_lot::Mutex;
use simdev::{Log, Logged, Record, Trace};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use testkit::{Rng, cases};

const BLOCKS: u64 = 8192;
const SIZE: usize = BLOCK_SIZE as usize;
const TAG: Tag = Tag::new(Kind::Directory, InodeNo(12));

/// Commit hooks without state of their own except chunks to grant.
struct Toy {
    chunks: Mutex<std::ops::Range<u32>>,
}

impl CommitHooks for Toy {
    fn finish(&self, _: &Closing<'_>) -> Result<()> {
        Ok(())
    }

    fn set_checksum(&self, _: FsBlock, _: &Tag, _: &mut [u8]) {}

    fn durable(&self, _: u64) {}
}

impl SpaceHooks for Toy {
    fn grant_chunks(&self, _: &Closing<'_>, need: Need<u64>) -> Result<Vec<u32>> {
        Ok(self.chunks.lock().by_ref().take(need.must as usize).collect())
    }

    fn return_chunks(&self, _: &Closing<'_>, _: &[u32]) -> Result<()> {
        Ok(())
    }
}

impl StateSource for Toy {
    fn with_state(&self, _: VolumeState) -> (u64, Arc<[u8]>) {
        unreachable!("this engine marks nothing")
    }
}

fn layout() -> Layout {
    Layout::new(BLOCKS).unwrap()
}

/// A metadata block of the volume above the map.
fn block(number: u64) -> FsBlock {
    FsBlock(layout().metadata_start() + number)
}

fn content(seed: u64) -> Vec<u8> {
    Rng::new(seed).bytes(SIZE)
}

fn made() -> MemoryDevice {
    let device = MemoryDevice::zeroed(BLOCKS * u64::from(BLOCK_SIZE)).unwrap();
    let first = BlockWrite { block: block(0), tag: TAG, data: Arc::from(content(0)), fresh: true, before: None };
    let chunks: Vec<u32> = (0..first_chunks(&layout(), 1)).collect();
    make(&device, layout(), [5; 16], &chunks, vec![first]).unwrap();
    device
}

/// Opens the volume; `chunks` may be granted to it.
fn open(device: Arc<dyn BlockDevice>, ordered: bool, chunks: std::ops::Range<u32>) -> Store {
    let (sb, _) = superblock(&*device).unwrap();
    let mapped = Arc::new(Mapped::new(device, &sb));
    let engine: Box<dyn EngineWithSpace> = match ordered {
        true => Box::new(CopyOnWrite::new(&mapped, 256).unwrap()),
        false => Box::new(NativeUnordered::new(&mapped, 256).unwrap()),
    };
    let store = Store::native(mapped, 64 * SIZE);
    let toy = Arc::new(Toy { chunks: Mutex::new(chunks) });
    store.start_writing_with_space(engine, toy, Duration::from_secs(5)).unwrap();
    store
}

fn write(store: &Store, number: u64, seed: u64) {
    let op = store.begin(1).unwrap();
    op.fresh(block(number), TAG, |bytes| bytes.copy_from_slice(&content(seed)));
}

type Model = BTreeMap<u64, u64>;

/// Checks that a device contains the state of a model, seen through its newest superblock.
fn contains(device: Arc<dyn BlockDevice>, model: &Model) -> std::result::Result<(), String> {
    let (sb, _) = superblock(&*device).map_err(|e| e.to_string())?;
    let mapped = Mapped::new(device, &sb);
    let mut bytes = vec![0; SIZE];
    for number in 0..200 {
        mapped.read(block(number).get() * SIZE as u64, &mut bytes).map_err(|e| format!("block {number}: {e}"))?;
        let expected = model.get(&number).map_or_else(|| vec![0; SIZE], |seed| content(*seed));
        if bytes != expected {
            return Err(format!("block {number} is not that of its generation"));
        }
    }
    Ok(())
}

/// Calls `see` with states of the device after a loss of power before entry `point`: all flushed writes, and some of
/// the others, some of these torn between sectors.
fn states(log: &Log, base: &Arc<dyn BlockDevice>, point: usize, rng: &mut Rng, mut see: impl FnMut(Overlay)) {
    let entries = log.entries();
    let flushed = entries[..point].iter().rposition(|e| e.what == Logged::Flush).map_or(0, |n| n + 1);
    let fixed = Overlay::new(Arc::clone(base));
    (0..flushed).for_each(|n| log.apply(n, &fixed).unwrap());
    let whole = fixed.clone();
    (flushed..point).for_each(|n| log.apply(n, &whole).unwrap());
    see(fixed.clone());
    see(whole.clone());
    for _ in 0..3 {
        let some = fixed.clone();
        // a random choice of the sectors that differ
        let mut changed = Vec::new();
        whole.each_change(|at, bytes| changed.push((at, bytes.to_vec())));
        for (at, bytes) in changed {
            for (n, sector) in bytes.chunks(512).enumerate() {
                if rng.chance(50) {
                    some.write(at + 512 * n as u64, sector).unwrap();
                }
            }
        }
        see(some);
    }
}

#[test]
fn every_cut_leaves_the_old_generation_or_the_new_one() {
    for case in cases("every_cut_leaves_the_old_generation_or_the_new_one", 4) {
        let mut rng = case.rng();
        let base: Arc<dyn BlockDevice> = Arc::new(made());
        let record = Arc::new(Record::in_memory(Overlay::new(Arc::clone(&base))));
        let first = first_chunks(&layout(), 1);
        let store = open(record.clone(), true, first..first + 2);
        let mut model = Model::from([(0, 0)]);
        let mut models = vec![model.clone()];
        let mut points = vec![0];
        for step in 1..25u64 {
            for _ in 0..rng.index(40) {
                let number = rng.index(200) as u64;
                if rng.chance(20) && model.remove(&number).is_some() {
                    store.begin(0).unwrap().forget(block(number), 1);
                } else {
                    let seed = 1000 * step + rng.index(900) as u64;
                    write(&store, number, seed);
                    model.insert(number, seed);
                }
            }
            store.sync().unwrap();
            models.push(model.clone());
            points.push(record.log().unwrap().entries().len());
        }
        store.stop_writing().unwrap();
        let log = record.log().unwrap();
        let mut seen = 0;
        for point in 0..=log.entries().len() {
            // generations that were durable before, and the one being written
            let durable = points.iter().rposition(|end| *end <= point).unwrap();
            states(&log, &base, point, &mut rng, |state| {
                let state: Arc<dyn BlockDevice> = Arc::new(state);
                let fits = |n: usize| models.get(n).is_some_and(|model| contains(state.clone(), model).is_ok());
                assert!(
                    fits(durable) || fits(durable + 1),
                    "point {point}: {:?}",
                    contains(state.clone(), &models[durable])
                );
                seen += 1;
            });
        }
        assert!(seen > 200, "only {seen} states");
    }
}

#[test]
fn it_goes_on_after_any_cut() {
    let base: Arc<dyn BlockDevice> = Arc::new(made());
    let first = first_chunks(&layout(), 1);
    let mut model = Model::from([(0, 0)]);
    let device: Arc<dyn BlockDevice> = Arc::new(Overlay::new(base));
    for round in 0..60u64 {
        let store = open(Arc::clone(&device), true, first..first);
        for n in 0..30 {
            let (number, seed) = ((round * 7 + n * 3) % 200, round * 100 + n);
            write(&store, number, seed);
            model.insert(number, seed);
        }
        store.sync().unwrap();
        // lost: never synced
        write(&store, 1, 77_777);
        drop(store);
        contains(Arc::clone(&device), &model).unwrap();
    }
}

#[test]
fn an_unchanged_block_and_one_that_is_gone_are_not_written() {
    let device = Arc::new(Trace::new(made()));
    let store = open(device.clone(), true, 0..0);
    write(&store, 3, 9);
    store.sync().unwrap();
    let before = device.counters().writes.requests;
    write(&store, 3, 10);
    write(&store, 3, 9);
    let op = store.begin(1).unwrap();
    op.fresh(block(50), TAG, |bytes| bytes.fill(7));
    op.forget(block(50), 1);
    op.fresh(block(51), TAG, |_| ());
    drop(op);
    store.sync().unwrap();
    assert_eq!(device.counters().writes.requests, before);
}

#[test]
fn a_generation_is_one_run_and_a_superblock() {
    let device = Arc::new(Trace::new(made()));
    let store = open(device.clone(), true, 0..0);
    let before = device.counters();
    for n in 0..100 {
        write(&store, (n * 37) % 200, n);
    }
    store.sync().unwrap();
    let after = device.counters();
    assert_eq!(after.writes.requests - before.writes.requests, 2);
    assert_eq!(after.flushes - before.flushes, 2);
}

#[test]
fn full_regions_refuse_what_grows_and_take_what_frees() {
    let first = first_chunks(&layout(), 1);
    let device: Arc<dyn BlockDevice> = Arc::new(made());
    let store = open(Arc::clone(&device), true, first..first + 1);
    let mut written = 0;
    let refused = loop {
        match store.begin(4) {
            Ok(op) => {
                for n in 0..4 {
                    op.fresh(block(written + n), TAG, |bytes| bytes.fill(written as u8 | 1));
                }
                written += 4;
            }
            Err(e) => break e,
        }
        assert!(written < u64::from((first + 2) * CHUNK_BLOCKS), "the volume never fills");
    };
    assert!(matches!(refused, Error::NoSpace), "{refused}");
    assert!(written > u64::from(CHUNK_BLOCKS), "{written}");
    // over and over, on the full volume
    for round in 0..20u64 {
        for n in 0..40 {
            let op = store.begin_with(4, OperationKind::Freeing).unwrap();
            op.edit(block((round * 40 + n) % written), TAG, |bytes| bytes.fill(round as u8 | 2)).unwrap();
        }
        store.sync().unwrap();
    }
    let op = store.begin_with(0, OperationKind::Freeing).unwrap();
    op.forget(block(0), written);
    drop(op);
    store.sync().unwrap();
    store.sync().unwrap();
    store.begin(64).unwrap();
}

#[test]
fn without_order_blocks_stay_where_they_are() {
    let device = Arc::new(Trace::new(made()));
    let store = open(device.clone(), false, 0..0);
    write(&store, 3, 1);
    store.sync().unwrap();
    let (sb, _) = superblock(&*device).unwrap();
    assert!(sb.unordered);
    let mapped = Mapped::new(device.clone(), &sb);
    assert!(CopyOnWrite::new(&mapped, 256).is_err(), "a volume that needs a check was accepted");
    write(&store, 3, 2);
    store.stop_writing().unwrap();
    let mut both = vec![0; 2 * SIZE];
    device.read(0, &mut both).unwrap();
    for block in both.chunks(SIZE) {
        assert!(!format::native::superblock::NativeSuperblock::parse(block).unwrap().unordered);
    }
    contains(device.clone(), &Model::from([(0, 0), (3, 2)])).unwrap();
    let (after, _) = superblock(&*device).unwrap();
    let mapped = Mapped::new(device, &after);
    assert!(!after.unordered && CopyOnWrite::new(&mapped, 256).unwrap().limits().atomic);
    assert_eq!(sb.root.physical, after.root.physical);
}

#[test]
fn damage_is_an_error_where_it_lies() {
    let device = Arc::new(made());
    let (sb, _) = superblock(&*device).unwrap();
    let mapped = Mapped::new(device.clone(), &sb);
    let mut bytes = vec![0; SIZE];
    let at = block(0).get() * SIZE as u64;
    mapped.read(at, &mut bytes).unwrap();
    // the only block of the volume is after the superblocks
    let mut wrong = bytes.clone();
    wrong[100] ^= 1;
    let physical = (2..u64::from(CHUNK_BLOCKS)).find(|physical| {
        let mut there = vec![0; SIZE];
        device.read(physical * SIZE as u64, &mut there).unwrap();
        there == bytes
    });
    device.write(physical.unwrap() * SIZE as u64, &wrong).unwrap();
    assert!(mapped.read(at, &mut bytes).is_err());
    mapped.read(at + SIZE as u64, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0));
    device.write(sb.root.physical * SIZE as u64, &wrong).unwrap();
    assert!(Mapped::new(device, &sb).read(at, &mut bytes).is_err());
}
