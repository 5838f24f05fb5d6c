//! `data=cow`: content is correct, and after a crash it is that of the newest complete generation.

use crate::support::{
    MIB, assert_consistent, assert_same, ground, made, new, open, reading, tree, work, write_options,
};
use blockdev::{BlockDevice, MemoryDevice, Overlay};
use extant_crash::enumerate::{Limits, states};
use fs::{AllocateMode, Consistency, DataMode, FileKind, InodeNo, OpenOptions, Volume, WriteOptions};
use simdev::Record;
use std::ops::ControlFlow;
use std::sync::Arc;
use testkit::{Rng, cases, rounds};

/// Changes a file and its expected content.
fn change(volume: &Volume, file: InodeNo, model: &mut Vec<u8>, rng: &mut Rng) {
    const MOST: u64 = 900_000;
    let (offset, len) = (rng.below(MOST) as usize, 1 + rng.magnitude(400_000) as usize);
    let size = model.len();
    let clear = |model: &mut Vec<u8>, from: usize, to: usize| {
        let to = to.min(model.len());
        model.get_mut(from..to).unwrap_or_default().fill(0);
    };
    match rng.below(12) {
        0..6 => {
            let data = rng.bytes(len);
            assert_eq!(volume.write_at(file, offset as u64, &data).expect("writing"), len);
            model.resize(size.max(offset + len), 0);
            model[offset..offset + len].copy_from_slice(&data);
        }
        6 => {
            volume.truncate(file, offset as u64).expect("a truncation");
            model.resize(offset, 0);
        }
        7 => {
            volume.allocate(file, AllocateMode::PunchHole, offset as u64, len as u64).expect("a hole");
            clear(model, offset, offset + len);
        }
        8 => {
            volume.allocate(file, AllocateMode::Zero, offset as u64, len as u64).expect("zeroes");
            model.resize(size.max(offset + len), 0);
            clear(model, offset, offset + len);
        }
        9 => {
            volume.allocate(file, AllocateMode::Extend, offset as u64, len as u64).expect("blocks");
            model.resize(size.max(offset + len), 0);
        }
        10 => {
            let (from, by) = (offset / 4096 * 4096, 4096 * (1 + len / 40_000));
            if from + by < size {
                volume.allocate(file, AllocateMode::Collapse, from as u64, by as u64).expect("a collapse");
                model.drain(from..from + by);
            }
        }
        _ => {
            let from = offset / 4096 * 4096;
            if from < size {
                volume.allocate(file, AllocateMode::Insert, from as u64, 8192).expect("an insertion");
                model.splice(from..from, [0; 8192]);
            }
        }
    }
}

fn content(volume: &Volume, file: InodeNo) -> Vec<u8> {
    let size = volume.attributes_of(file).expect("attributes").size;
    let mut bytes = vec![0; size as usize];
    let inode = volume.inode(file).expect("the inode");
    assert_eq!(volume.read_at(&inode, 0, &mut bytes).expect("reading"), bytes.len());
    bytes
}

#[test]
fn a_file_is_what_was_written_to_it() {
    for case in cases("a_file_is_what_was_written_to_it", 12) {
        let mut rng = case.rng();
        let device: Arc<dyn BlockDevice> = made(48 * MIB);
        let mut models = [Vec::new(), Vec::new()];
        for round in 0..3 {
            let volume = open(Arc::clone(&device), DataMode::NewBlocks);
            let files = [&b"x"[..], b"y"].map(|name| match round {
                0 => volume.create(InodeNo::ROOT, name, &new(FileKind::Regular)).expect("a file").number,
                _ => volume.lookup(&volume.inode(InodeNo::ROOT).expect("the root"), name).expect("the file"),
            });
            for _ in 0..40 {
                let n = rng.index(2);
                change(&volume, files[n], &mut models[n], &mut rng);
                match rng.below(6) {
                    0 => volume.sync().expect("a sync"),
                    1 => volume.fsync(files[n], true).expect("an fsync"),
                    2 => assert!(content(&volume, files[n]) == models[n]),
                    _ => {}
                }
            }
            for (file, model) in files.iter().zip(&models) {
                assert!(content(&volume, *file) == *model, "round {round}");
            }
            volume.unmount().expect("unmounting");
            drop(volume);
            assert_consistent(&*device, "after unmounting");
        }
    }
}

#[test]
fn a_crash_leaves_the_content_of_a_whole_generation() {
    for case in cases("a_crash_leaves_the_content_of_a_whole_generation", 3) {
        let mut rng = case.rng();
        let base = made(32 * MIB);
        let volume = open(Arc::clone(&base) as Arc<dyn BlockDevice>, DataMode::NewBlocks);
        ground(&volume);
        (0..60).for_each(|_| work(&volume, &mut rng));
        volume.unmount().expect("unmounting");
        drop(volume);

        let below: Arc<dyn BlockDevice> = base;
        let record = Arc::new(Record::in_memory(Overlay::new(Arc::clone(&below))));
        let volume = open(Arc::<Record<Overlay, Vec<u8>>>::clone(&record), DataMode::NewBlocks);
        let mut generations = vec![tree(&volume)];
        for _ in 0..5 {
            (0..6).for_each(|_| work(&volume, &mut rng));
            // this sync closes it
            volume.sync().expect("a sync");
            generations.push(tree(&volume));
        }
        let log = record.log().expect("the log");
        let most = rounds(25) as usize;
        let limits = Limits { samples: 12, most, every_subset: 4, ..Limits::default() };
        let (mut seen, mut met) = (0, std::collections::BTreeSet::new());
        let broken: Option<()> = states(&log, &Overlay::new(below), &limits, |crash| {
            let found = tree(&reading(Arc::new(crash.device.clone())));
            // fsync and the dirty limit close generations in between
            if let Some(n) = generations.iter().position(|tree| *tree == found) {
                met.insert(n);
            }
            if seen % 16 == 0 {
                assert_consistent(crash.device, &crash.choice.to_string());
            }
            seen += 1;
            ControlFlow::Continue(())
        })
        .expect("the states");
        assert!(broken.is_none());
        assert!(seen > 50 && met.len() >= 3, "{seen} states, of these generations: {met:?}");
    }
}

/// Overwrites with uniform content: after a crash the content is uniform.
#[test]
fn no_crash_shows_a_part_of_an_overwrite() {
    let base = made(24 * MIB);
    let below: Arc<dyn BlockDevice> = base;
    let volume = open(Arc::clone(&below), DataMode::NewBlocks);
    let file = volume.create(InodeNo::ROOT, b"x", &new(FileKind::Regular)).expect("a file").number;
    const LEN: usize = 150_000;
    volume.write_at(file, 0, &[1; LEN]).expect("writing");
    volume.unmount().expect("unmounting");
    drop(volume);
    let record = Arc::new(Record::in_memory(Overlay::new(Arc::clone(&below))));
    let volume = open(Arc::<Record<Overlay, Vec<u8>>>::clone(&record), DataMode::NewBlocks);
    for number in 2..8u8 {
        let mut at = 0;
        // in parts that are not aligned to blocks
        while at < LEN {
            let len = 7_001.min(LEN - at);
            volume.write_at(file, at as u64, &vec![number; len]).expect("writing");
            at += len;
        }
        volume.sync().expect("a sync");
    }
    let mut met = std::collections::BTreeSet::new();
    let limits = Limits { most: 40, samples: 24, ..Limits::default() };
    let log = record.log().expect("the log");
    let broken: Option<()> = states(&log, &Overlay::new(below), &limits, |crash| {
        let volume = reading(Arc::new(crash.device.clone()));
        let bytes = content(&volume, file);
        assert!(bytes.len() == LEN && bytes.iter().all(|byte| *byte == bytes[0]), "{}", crash.choice);
        met.insert(bytes[0]);
        ControlFlow::Continue(())
    })
    .expect("the states");
    assert!(broken.is_none() && met.len() >= 7, "{met:?}");
}

#[test]
fn a_full_volume_refuses_overwrites_and_can_be_emptied() {
    let device: Arc<dyn BlockDevice> = made(16 * MIB);
    let volume = open(Arc::clone(&device), DataMode::NewBlocks);
    let file = volume.create(InodeNo::ROOT, b"x", &new(FileKind::Regular)).expect("a file").number;
    let mut size = 0;
    while let Ok(written) = volume.write_at(file, size, &[9; 50_000]) {
        size += written as u64;
    }
    assert!(size > 4 * MIB);
    volume.sync().expect("a sync");
    // there is space for a few overwrites, but not for all
    let outcome = (0..size / 50_000).try_for_each(|n| volume.write_at(file, n * 50_000, &[8; 50_000]).map(drop));
    assert!(matches!(outcome, Err(fs::Error::NoSpace)), "{outcome:?}");
    volume.sync().expect("a sync");
    volume.truncate(file, 12_345).expect("a truncation inside a block");
    volume.sync().expect("a sync");
    volume.truncate(file, 20_000).expect("making it longer");
    let bytes = content(&volume, file);
    assert!(bytes[12_345..].iter().all(|byte| *byte == 0));
    volume.unlink(InodeNo::ROOT, b"x").expect("removing");
    volume.unmount().expect("unmounting");
    drop(volume);
    assert_consistent(&*device, "after unmounting");
}

#[test]
fn other_modes_refuse_it() {
    let device = made(16 * MIB);
    let write = WriteOptions { consistency: Some(Consistency::None), ..write_options(DataMode::NewBlocks) };
    let options = OpenOptions { write: Some(write), ..OpenOptions::default() };
    let refused = Volume::open(device as Arc<MemoryDevice>, &options).map(drop);
    assert!(matches!(&refused, Err(fs::Error::Impossible(why)) if why.contains("data=cow")), "{refused:?}");
}

#[test]
fn a_clone_of_generations_is_no_wish() {
    // without it an overwrite goes to the home location, and is visible before its generation closes
    let base: Arc<dyn BlockDevice> = made(16 * MIB);
    for (data, seen) in [(DataMode::Ordered, 2), (DataMode::NewBlocks, 1)] {
        let volume = open(Arc::clone(&base), data);
        let root = volume.inode(InodeNo::ROOT).expect("the root");
        let file = match volume.lookup(&root, b"x") {
            Ok(file) => file,
            Err(_) => volume.create(InodeNo::ROOT, b"x", &new(FileKind::Regular)).expect("a file").number,
        };
        volume.write_at(file, 0, &[1; 4096]).expect("writing");
        volume.sync().expect("a sync");
        let before = tree(&volume);
        volume.write_at(file, 0, &[2; 4096]).expect("writing");
        volume.flush_all_delayed().expect("a place");
        let other = reading(Arc::clone(&base));
        assert_eq!(content(&other, file), [seen; 4096]);
        if data == DataMode::NewBlocks {
            assert_same(&tree(&other), &before, "before the generation closes");
        }
        volume.unmount().expect("unmounting");
    }
}
