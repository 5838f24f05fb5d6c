//! Space maps on a device that loses power, compared with a plain list of blocks: many generations that allocate, free,
//! set aside and reserve, with folds, crashes and mounts between them. No block is allocated twice, and none is lost.

use crate::alloc::blocks::Extent;
use crate::alloc::{Purpose, Reservation, Role};
use crate::mkfs::{self, Kind, MkfsOptions};
use crate::{Clock, Consistency, Error, InodeNo, OpenOptions, Timestamp, Volume, WriteOptions};
use blockdev::{BlockDevice, Geometry, MemoryDevice, Op};
use format::{FsBlock, GroupNo};
use parking_lot::Mutex;
use space::{Privilege, Run};
use std::sync::Arc;
use testkit::{Rng, cases, space_maps};

const LEN: u64 = 40 << 20;
const SIZE: usize = 1024;
/// Number of random runs, and steps of all runs together.
const CASES: u64 = 40;
const STEPS: u64 = 200_000;

/// A device whose power fails after a number of requests. Of the writes without a later flush any subset of blocks
/// survives.
struct Power(Mutex<Storage>);

struct Storage {
    bytes: Vec<u8>,
    pending: Vec<Pending>,
    /// Requests left before the power fails.
    left: u64,
}

/// A block without a later flush.
struct Pending {
    at: usize,
    before: Vec<u8>,
    /// Absent if it was written after the power failed.
    after: Option<Vec<u8>>,
}

impl Power {
    fn new(bytes: Vec<u8>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Storage { bytes, pending: Vec::new(), left: u64::MAX })))
    }

    fn cut_after(&self, requests: u64) {
        self.0.lock().left = requests;
    }

    fn is_off(&self) -> bool {
        self.0.lock().left == 0
    }

    /// The bytes on the device after power is restored. Nothing uses the device any more.
    fn after_crash(&self, rng: &mut Rng) -> Vec<u8> {
        let mut storage = self.0.lock();
        let (mut bytes, pending) = (std::mem::take(&mut storage.bytes), std::mem::take(&mut storage.pending));
        for Pending { at, before, .. } in pending.iter().rev() {
            bytes[*at..at + before.len()].copy_from_slice(before);
        }
        let percent = *rng.pick(&[0, 30, 70, 100]);
        for Pending { at, after, .. } in &pending {
            if let Some(after) = after.as_ref().filter(|_| rng.chance(percent)) {
                bytes[*at..at + after.len()].copy_from_slice(after);
            }
        }
        bytes
    }
}

impl BlockDevice for Power {
    fn geometry(&self) -> Geometry {
        Geometry::new(LEN)
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> blockdev::Result<()> {
        self.geometry().admit(Op::Read, offset, buf.len() as u64)?;
        let start = offset as usize;
        buf.copy_from_slice(&self.0.lock().bytes[start..start + buf.len()]);
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> blockdev::Result<()> {
        self.geometry().admit(Op::Write, offset, data.len() as u64)?;
        let mut storage = self.0.lock();
        let Storage { bytes, pending, left } = &mut *storage;
        let is_on = *left > 0;
        *left = left.saturating_sub(1);
        for (n, part) in data.chunks(SIZE).enumerate() {
            let at = offset as usize + n * SIZE;
            let there = &mut bytes[at..at + part.len()];
            pending.push(Pending { at, before: there.to_vec(), after: is_on.then(|| part.to_vec()) });
            there.copy_from_slice(part);
        }
        Ok(())
    }

    fn flush(&self) -> blockdev::Result<()> {
        let mut storage = self.0.lock();
        if storage.left > 0 {
            storage.left -= 1;
            storage.pending.clear();
        }
        Ok(())
    }

    fn discard(&self, _: u64, _: u64) -> blockdev::Result<()> {
        Ok(())
    }
}

/// The bytes of a new volume of five metablockgroups, with a log of `log` blocks.
fn made(log: u32) -> Vec<u8> {
    let device = MemoryDevice::zeroed(LEN).expect("a device");
    let mut options = MkfsOptions::new(Kind::SpaceMap);
    (options.uuid, options.block_size, options.space_map_log) = ([5; 16], Some(1024), Some(log));
    (options.metablockgroup_bytes, options.journal_mib) = (Some(8 << 20), Some(1));
    mkfs::make(&device, &options).expect("a volume");
    device.into_vec()
}

fn open(device: &Arc<Power>) -> Volume {
    let clock: Clock = Arc::new(|| Timestamp { seconds: 1_800_000_000, nanos: 0 });
    let consistency = Some(Consistency::Journal);
    let write = WriteOptions { consistency, superuser: true, clock, seed: Some(7), ..WriteOptions::default() };
    let options = OpenOptions { cache_bytes: 64 << 10, write: Some(write), ..OpenOptions::default() };
    let device: Arc<dyn BlockDevice> = device.clone();
    let volume = Volume::open(device, &options).expect("opening a volume");
    assert_eq!(volume.damaged_groups(), []);
    volume
}

/// For each block, 1 if it is free on the volume.
fn free(volume: &Volume) -> Vec<u8> {
    let space = volume.space().expect("writable");
    let geometry = &volume.sb.geometry;
    let mut all = vec![0; geometry.blocks as usize];
    let _change = volume.change(0).expect("a change");
    for group in geometry.group_numbers() {
        let start = geometry.group_start(group).get() as usize;
        let state = space.lock_space(&volume.store, group.get()).expect("read").expect("consistent");
        for run in state.space.free.as_ref().expect("loaded").as_stored().runs() {
            all[start + run.start as usize..start + run.end() as usize].fill(1);
        }
    }
    all
}

/// The use of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    /// Used by the volume itself from the beginning.
    Own,
    Used,
    Free,
    /// Freed in the open generation.
    Deferred,
    /// Set aside.
    Aside,
}

/// Counts of events.
#[derive(Debug, Default)]
struct Seen {
    /// Crashes that left the last generation, and crashes that left the one being written.
    crashes: [u64; 2],
    mounts: u64,
    /// Metablockgroups whose tree has changed since the last mount.
    folds: u64,
}

/// The plain list.
struct Model {
    own: Vec<u8>,
    units: Vec<Unit>,
    free: u64,
    extents: Vec<Extent>,
    deferred: Vec<Extent>,
    aside: Vec<(GroupNo, Run)>,
    reserved: Option<Reservation>,
    /// The extents when a sync last returned, and when one was last called.
    durable: Vec<Extent>,
    closing: Vec<Extent>,
    /// The sequences of the trees.
    trees: Vec<u64>,
}

impl Model {
    /// The list for a new volume with these free blocks.
    fn new(free: Vec<u8>) -> Self {
        let mut model = Self {
            own: free,
            units: Vec::new(),
            free: 0,
            extents: Vec::new(),
            deferred: Vec::new(),
            aside: Vec::new(),
            reserved: None,
            durable: Vec::new(),
            closing: Vec::new(),
            trees: Vec::new(),
        };
        model.restart(Vec::new());
        model
    }

    /// For each block, 1 if it is free when only these extents are allocated.
    fn free_beside(&self, extents: &[Extent]) -> Vec<u8> {
        let mut free = self.own.clone();
        for extent in extents {
            free[place(*extent)].fill(0);
        }
        free
    }

    /// Resets the list to these extents, all durable.
    fn restart(&mut self, extents: Vec<Extent>) {
        self.units = self.own.iter().map(|free| if *free == 1 { Unit::Free } else { Unit::Own }).collect();
        self.free = self.own.iter().map(|free| u64::from(*free)).sum();
        (self.deferred, self.aside, self.reserved) = (Vec::new(), Vec::new(), None);
        (self.durable, self.closing, self.extents) = (extents.clone(), extents.clone(), extents.clone());
        for extent in extents {
            self.free -= u64::from(extent.count);
            self.set(extent, Unit::Free, Unit::Used);
        }
    }

    fn set(&mut self, extent: Extent, from: Unit, to: Unit) {
        for unit in &mut self.units[place(extent)] {
            assert_eq!(*unit, from, "{extent:?} becomes {to:?}");
            *unit = to;
        }
    }

    /// Makes one change; a phase allocates more than it frees, or vice versa.
    fn step(&mut self, volume: &Volume, rng: &mut Rng, fills: bool) {
        match rng.below(100) {
            0..10 => self.set_aside(volume, rng),
            10..14 => self.reserve(volume, rng),
            at if (at < 70) == fills => self.allocate(volume, rng),
            _ => self.free(volume, rng),
        }
        let pool = volume.space().expect("writable").pool.lock().clone();
        assert_eq!(pool.free_units(), self.free);
        assert!(pool.available(Privilege::Reserved) >= pool.reserved());
    }

    fn allocate(&mut self, volume: &Volume, rng: &mut Rng) {
        let (goal, want) = (FsBlock(rng.below(LEN / SIZE as u64 + 5)), rng.magnitude(900) as u32);
        let change = volume.change(0).expect("a change");
        match change.allocate(InodeNo::ROOT, goal, want, Role::Content) {
            Ok(extent) => {
                assert!((1..=want).contains(&extent.count));
                self.set(extent, Unit::Free, Unit::Used);
                self.free -= u64::from(extent.count);
                self.extents.push(extent);
            }
            Err(e) => assert!(matches!(e, Error::NoSpace), "{e}"),
        }
    }

    /// Frees an extent, or the rest of it behind a position.
    fn free(&mut self, volume: &Volume, rng: &mut Rng) {
        if self.extents.is_empty() {
            return;
        }
        let at = rng.index(self.extents.len());
        let whole = self.extents.swap_remove(at);
        let stays = if rng.chance(40) { rng.below(whole.count.into()) as u32 } else { 0 };
        let gone = Extent { first: FsBlock(whole.first.get() + u64::from(stays)), count: whole.count - stays };
        if stays > 0 {
            self.extents.push(Extent { count: stays, ..whole });
        }
        let purpose = if rng.chance(50) { Purpose::Data } else { Purpose::Metadata };
        let change = volume.change(0).expect("a change");
        change.free(gone.first, gone.count.into(), purpose).expect("freed");
        self.set(gone, Unit::Used, Unit::Deferred);
        self.free += u64::from(gone.count);
        self.deferred.push(gone);
    }

    /// Sets a free run aside, or releases one.
    fn set_aside(&mut self, volume: &Volume, rng: &mut Rng) {
        let (space, geometry) = (volume.space().expect("writable"), &volume.sb.geometry);
        if self.aside.len() > 3 || rng.chance(30) {
            if let Some((group, run)) = self.aside.pop() {
                space.release_run(group.get(), run);
                self.set(extent(volume, group, run), Unit::Aside, Unit::Free);
            }
            return;
        }
        let group = GroupNo(rng.below(geometry.groups.into()) as u32);
        let from = rng.below(geometry.blocks_per_group.into()) as u32;
        let least = 1 + rng.below(20) as u32;
        let change = volume.change(0).expect("a change");
        if let Some(run) = space.set_aside(change.operation(), group, from..from + 200, least).expect("read") {
            self.set(extent(volume, group, run), Unit::Free, Unit::Aside);
            self.aside.push((group, run));
        }
    }

    /// Reserves blocks, or releases the reservation.
    fn reserve(&mut self, volume: &Volume, rng: &mut Rng) {
        if self.reserved.take().is_some() {
            return;
        }
        let blocks = 1 + rng.below(300);
        // with fewer blocks it would wait until freed ones are durable
        if volume.space().expect("writable").pool.lock().available(Privilege::Ordinary) > blocks {
            self.reserved = Some(volume.reserve(blocks).expect("there is space"));
        }
    }

    /// Releases everything set aside or reserved.
    fn release(&mut self, volume: &Volume) {
        self.reserved = None;
        let space = volume.space().expect("writable");
        for (group, run) in std::mem::take(&mut self.aside) {
            space.release_run(group.get(), run);
            self.set(extent(volume, group, run), Unit::Aside, Unit::Free);
        }
    }

    /// Closes the generation; space freed in it may be used while the power stays on.
    fn sync(&mut self, volume: &Volume, device: &Power) {
        volume.change(1).expect("a change").edit_superblock(|_| ()).expect("the superblock");
        self.closing.clone_from(&self.extents);
        volume.sync().expect("synced");
        if !device.is_off() {
            self.durable.clone_from(&self.extents);
            for extent in std::mem::take(&mut self.deferred) {
                self.set(extent, Unit::Deferred, Unit::Free);
            }
        }
    }

    /// Compares the volume with the last sync, or with one that was in progress.
    fn crash(&mut self, volume: &Volume, seen: &mut Seen) {
        let found = free(volume);
        let states = [&self.durable, &self.closing];
        let state = states.iter().position(|extents| self.free_beside(extents) == found);
        let state = state.expect("the free blocks match those of a sync");
        seen.crashes[state] += 1;
        let extents = states[state].clone();
        self.restart(extents);
        self.count_folds(volume, seen);
    }

    /// Compares the allocated blocks on the device, as found by an independent reader.
    fn compare(&self, device: &Power) {
        let found = space_maps::free_blocks(&device.0.lock().bytes).unwrap_or_else(|what| panic!("{what}"));
        assert!(found == self.free_beside(&self.extents), "a reader finds other blocks free");
    }

    fn count_folds(&mut self, volume: &Volume, seen: &mut Seen) {
        let summary = volume.space_maps().expect("read").expect("space maps");
        let trees: Vec<u64> = summary.maps.iter().map(|map| map.tree.expect("a tree").sequence).collect();
        seen.folds += trees.iter().zip(&self.trees).filter(|(now, before)| now != before).count() as u64;
        self.trees = trees;
    }
}

fn place(extent: Extent) -> std::ops::Range<usize> {
    let first = extent.first.get() as usize;
    first..first + extent.count as usize
}

fn extent(volume: &Volume, group: GroupNo, run: Run) -> Extent {
    let start = volume.sb.geometry.group_start(group).get();
    Extent { first: FsBlock(start + u64::from(run.start)), count: run.len }
}

/// With EXTANT_CAMPAIGN=50 ten million steps.
#[test]
fn no_block_is_allocated_twice_and_none_is_lost() {
    let (mut seen, mut runs) = (Seen::default(), 0);
    for case in cases("no_block_is_allocated_twice_and_none_is_lost", CASES) {
        let mut rng = case.rng();
        let bytes = made(*rng.pick(&[4, 5, 8, 16]));
        let own = space_maps::free_blocks(&bytes).unwrap_or_else(|what| panic!("{what}"));
        let mut device = Power::new(bytes);
        let mut volume = open(&device);
        assert!(free(&volume) == own, "a reader finds other blocks free");
        let mut model = Model::new(own);
        model.count_folds(&volume, &mut seen);
        // generations of a few changes, and of more than their share of the log
        let per_sync = *rng.pick(&[5, 30, 300]);
        for n in 0..STEPS / CASES {
            model.step(&volume, &mut rng, n / 500 % 2 == 0);
            if rng.below(per_sync) == 0 {
                if rng.chance(4) {
                    device.cut_after(1 + rng.below(12));
                }
                model.sync(&volume, &device);
            }
            if rng.below(1000) == 0 {
                device.cut_after(0);
            }
            if device.is_off() {
                model.reserved = None;
                drop(volume);
                device = Power::new(device.after_crash(&mut rng));
                volume = open(&device);
                model.crash(&volume, &mut seen);
            } else if rng.below(1000) == 0 {
                model.release(&volume);
                device.cut_after(u64::MAX);
                model.sync(&volume, &device);
                volume.unmount().expect("unmounted");
                model.compare(&device);
                volume = open(&device);
                model.count_folds(&volume, &mut seen);
                seen.mounts += 1;
            }
        }
        runs += 1;
    }
    println!("{runs} runs: {seen:?}");
    // a single case may lack some
    let all = [seen.crashes[0], seen.crashes[1], seen.mounts, seen.folds];
    assert!(runs < CASES || all.iter().all(|count| *count > 10), "{seen:?}");
}
