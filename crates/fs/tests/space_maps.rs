//! Volumes with space maps: what is allocated and freed is in the maps when they are opened again, whatever the log and the
//! trees had to do, and e2fsck finds nothing wrong with the same volume with block bitmaps.

mod common;

use blockdev::{BlockDevice, MemoryDevice};
use common::manifest;
use extant_fs::mkfs::{self, Kind, MkfsOptions};
use extant_fs::{Consistency, DataMode, FileKind, InodeNo, NewFile, OpenOptions, Volume, WriteOptions};
use std::sync::Arc;
use testkit::{Image, Rng, cases, need, oracle, space_maps};

/// Modes in which such a volume can be written.
const MODES: [(Consistency, DataMode); 5] = [
    (Consistency::None, DataMode::Ordered),
    (Consistency::DirtyBit, DataMode::Ordered),
    (Consistency::Journal, DataMode::Ordered),
    (Consistency::Journal, DataMode::Writeback),
    (Consistency::Journal, DataMode::Journal),
];

fn make(len: u64, change: impl FnOnce(&mut MkfsOptions)) -> Arc<MemoryDevice> {
    let device = MemoryDevice::zeroed(len).expect("a device");
    let mut options = MkfsOptions::new(Kind::SpaceMap);
    (options.uuid, options.block_size, options.map_log) = ([5; 16], Some(1024), Some(8));
    options.metablockgroup_bytes = Some(16 << 20);
    change(&mut options);
    mkfs::make(&device, &options).expect("a volume");
    Arc::new(device)
}

fn open(device: &Arc<MemoryDevice>, mode: (Consistency, DataMode)) -> Volume {
    let device: Arc<dyn BlockDevice> = device.clone();
    let write = WriteOptions { consistency: Some(mode.0), data: mode.1, seed: Some(1), ..WriteOptions::default() };
    let options = OpenOptions { write: Some(write), cache_bytes: 1 << 20, ..OpenOptions::default() };
    Volume::open(device, &options).expect("opening a volume")
}

fn bytes(device: &MemoryDevice) -> Vec<u8> {
    let mut bytes = vec![0; device.geometry().len as usize];
    device.read(0, &mut bytes).expect("reading");
    bytes
}

/// What e2fsck says of the volume with block bitmaps, and how many blocks are free with the maps.
fn assert_sound(device: &MemoryDevice) -> u64 {
    let bytes = bytes(device);
    let free = space_maps::free_blocks(&bytes).unwrap_or_else(|what| panic!("{what}"));
    let image = Image::from_bytes(&space_maps::with_bitmaps(&bytes).unwrap_or_else(|what| panic!("{what}")));
    let verdict = oracle::e2fsck(image.path());
    assert!(verdict.clean, "{}", verdict.text);
    free.iter().map(|free| u64::from(*free)).sum()
}

fn file(volume: &Volume, name: &str) -> InodeNo {
    let new = NewFile { kind: FileKind::Regular, mode: 0o644, umask: 0, uid: 0, gid: 0, device: (0, 0) };
    volume.create(InodeNo::ROOT, name.as_bytes(), &new).expect("created").number
}

#[test]
fn a_new_volume_is_sound() {
    if !need(&["e2fsck"]) {
        return;
    }
    for (len, size, more) in [(9u64, 1024, 8), (64, 1024, 16), (300, 4096, 128), (64, 2048, 16), (40, 1024, 64)] {
        let device = make(len << 20, |options| {
            let bytes = if size == 4096 { more << 20 } else { u64::from(size * size * 8) * (more / 8) };
            (options.block_size, options.metablockgroup_bytes) = (Some(size), Some(bytes));
        });
        assert_sound(&device);
        let volume = open(&device, MODES[2]);
        assert!(volume.damaged_groups().is_empty());
        volume.unmount().expect("unmounted");
        assert_sound(&device);
    }
}

/// Files are written and removed, in many small generations so that the ring goes round and round.
fn work(volume: &Volume, rng: &mut Rng, files: &mut Vec<String>, steps: u32) {
    for _ in 0..steps {
        match rng.below(10) {
            0..5 => {
                let name = format!("f{}", rng.next_u64());
                let number = file(volume, &name);
                let len = *rng.pick(&[100usize, 5000, 60_000, 700_000]);
                let written = volume.write_at(number, 0, &vec![7; len]);
                if written.is_err() {
                    volume.unlink(InodeNo::ROOT, name.as_bytes()).expect("removed");
                    continue;
                }
                files.push(name);
            }
            5..8 if !files.is_empty() => {
                let name = files.swap_remove(rng.below(files.len() as u64) as usize);
                volume.unlink(InodeNo::ROOT, name.as_bytes()).expect("removed");
            }
            _ => volume.sync().expect("synced"),
        }
    }
}

#[test]
fn what_was_done_is_in_the_maps() {
    if !need(&["e2fsck"]) {
        return;
    }
    for case in cases("what was done is in the maps", 10) {
        let mut rng = case.rng();
        let mode = *rng.pick(&MODES);
        let device = make(48 << 20, |_| ());
        let mut files = Vec::new();
        for _ in 0..4 {
            let volume = open(&device, mode);
            assert!(volume.damaged_groups().is_empty(), "{mode:?}: {:?}", volume.damaged_groups());
            work(&volume, &mut rng, &mut files, 120);
            volume.sync().expect("synced");
            assert!(volume.damaged_groups().is_empty(), "{mode:?}: {:?}", volume.damaged_groups());
            let (free, seen) = (volume.statfs().blocks_free, manifest(&volume));
            volume.unmount().expect("unmounted");
            assert_eq!(assert_sound(&device), free, "{mode:?}");
            let reader = common::open_bytes(bytes(&device)).expect("opening for reading");
            assert_eq!(reader.statfs().blocks_free, free);
            manifest(&reader).assert_same(&seen);
        }
    }
}
