//! Volumes with space maps: after reopening, allocations and frees are in the maps, whatever the log and the trees had
//! to do, and e2fsck finds no error in the same volume converted to block bitmaps.

mod common;

use blockdev::{BlockDevice, MemoryDevice};
use common::{content, manifest};
use extant_fs::mkfs::{self, Kind, MkfsOptions};
use extant_fs::{Consistency, DataMode, FileBlock, FileKind, InodeNo, NewFile, OpenOptions, Volume, WriteOptions};
use format::space_map::SpaceMaps;
use format::space_map::head::Head;
use format::superblock::{DiskSuperblock, State, Superblock};
use std::sync::Arc;
use testkit::{Field, Image, Manifest, Rng, cases, need, oracle, space_maps};
use zerocopy::IntoBytes;

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
    (options.uuid, options.block_size, options.space_map_log) = ([5; 16], Some(1024), Some(8));
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

/// Asserts that e2fsck finds no error in the volume converted to block bitmaps, and returns the number of free blocks
/// according to the maps.
fn assert_valid(device: &MemoryDevice) -> u64 {
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
fn a_new_volume_is_consistent() {
    if !need(&["e2fsck"]) {
        return;
    }
    for (len, size, more) in [(9u64, 1024, 8), (64, 1024, 16), (300, 4096, 128), (64, 2048, 16), (40, 1024, 64)] {
        let device = make(len << 20, |options| {
            let bytes = if size == 4096 { more << 20 } else { u64::from(size * size * 8) * (more / 8) };
            (options.block_size, options.metablockgroup_bytes) = (Some(size), Some(bytes));
        });
        assert_valid(&device);
        let volume = open(&device, MODES[2]);
        assert!(volume.damaged_groups().is_empty());
        volume.unmount().expect("unmounted");
        assert_valid(&device);
    }
}

/// The blocks of a file.
fn blocks(volume: &Volume, number: InodeNo) -> Vec<u64> {
    let inode = volume.inode(number).expect("an inode");
    let block = |n| volume.map(&inode, FileBlock(n)).expect("a map").physical().expect("a block").get();
    (0..inode.size.div_ceil(1024)).map(block).collect()
}

#[test]
fn what_was_freed_nearby_is_used_first() {
    let device = make(48 << 20, |_| ());
    let volume = open(&device, MODES[2]);
    let made = |n: u32| {
        let number = file(&volume, &format!("f{n}"));
        volume.write_at(number, 0, &[1; 4096]).expect("written");
        volume.sync().expect("synced");
        number
    };
    let files: Vec<InodeNo> = (0..20).map(made).collect();
    let (hole, end) = (blocks(&volume, files[15]), blocks(&volume, files[17])[3] + 1);
    assert_eq!(blocks(&volume, files[18])[0], end, "the files are contiguous");
    volume.unlink(InodeNo::ROOT, b"f15").expect("removed");
    // durable, and therefore available
    volume.sync().expect("synced");
    volume.sync().expect("synced");
    volume.write_at(files[17], 4096, &[2; 1024]).expect("written");
    volume.sync().expect("synced");
    let more = blocks(&volume, files[17])[4];
    assert!(hole.contains(&more), "{more} is not in {hole:?}");
    volume.unmount().expect("unmounted");
}

/// Writes and removes files, in many small generations so that the ring wraps several times.
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
            assert_eq!(assert_valid(&device), free, "{mode:?}");
            let reader = common::open_bytes(bytes(&device)).expect("opening for reading");
            assert_eq!(reader.statfs().blocks_free, free);
            manifest(&reader).assert_same(&seen);
        }
    }
}

/// The maps, and the offsets in bytes of the heads, the log and the first tree.
fn places(device: &MemoryDevice) -> (SpaceMaps, [usize; 3]) {
    let bytes = bytes(device);
    let sb = Superblock::parse(&bytes[1024..]).expect("a superblock");
    let maps = SpaceMaps::of(&sb).expect("numbers").expect("space maps");
    let head = Head::parse(&bytes[maps.table().start as usize * 1024..], &maps, 0).expect("a head");
    let at = [maps.table().start, maps.ring().start, head.tree(&maps).get()].map(|block| block as usize * 1024);
    (maps, at)
}

/// Damage affects only its own groups: the others are still read and written.
#[test]
fn damage_costs_its_own_groups() {
    let device = make(64 << 20, |_| ());
    let volume = open(&device, MODES[2]);
    let file_number = file(&volume, "stays");
    volume.write_at(file_number, 0, &[3; 50_000]).expect("written");
    volume.unmount().expect("unmounted");
    let (maps, [head, ring, tree]) = places(&device);
    assert_eq!(maps.maps(), 4);
    let good = bytes(&device);
    // the record of the first generation is in the log, and not included in any head
    for (at, lost) in [(head + 9, 2), (tree + 30, 2), (tree, 2), (ring + 33, 8), (head + 64 + 9, 2)] {
        let mut bad = good.clone();
        bad[at] ^= 1;
        let device = Arc::new(MemoryDevice::from_vec(bad));
        let volume = open(&device, MODES[2]);
        assert_eq!(content(&volume, file_number), vec![3; 50_000]);
        // blocks in use in such a group stay in use, and the volume is marked for a check
        let freed = volume.unlink(InodeNo::ROOT, b"stays");
        let number = if lost < 8 { Some(file(&volume, "more")) } else { None };
        let written = number.map(|number| volume.write_at(number, 0, &vec![1; 400_000]));
        assert!(freed.is_ok() && written.is_none_or(|written| written.is_ok()), "byte {at}");
        volume.sync().expect("synced");
        let damaged = volume.damaged_groups();
        assert!(!damaged.is_empty() && damaged.len() <= lost, "byte {at}: {damaged:?}");
        volume.unmount().expect("unmounted");
        let sb = Superblock::parse(&bytes(&device)[1024..]).expect("a superblock");
        assert!(State::from_bits_retain(sb.disk.s_state.get()).contains(State::ERROR), "byte {at}");
    }
    // invalid numbers, and a feature of a newer version
    let wrong: [fn(&mut DiskSuperblock); 3] =
        [|sb| sb.x_map_groups = 3.into(), |sb| sb.x_map_start = 0.into(), |sb| sb.x_ro_features = 3.into()];
    for change in wrong {
        let mut bad = good.clone();
        let mut sb = DiskSuperblock::from_slice(&bad[1024..]).expect("a superblock");
        change(&mut sb);
        bad[1024..2048].copy_from_slice(sb.as_bytes());
        testkit::repair_checksums(&mut bad);
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_vec(bad));
        let reader = Volume::open(device.clone(), &OpenOptions::default()).expect("it can be read");
        assert_eq!(content(&reader, file_number), vec![3; 50_000]);
        let options = OpenOptions { write: Some(WriteOptions::default()), ..OpenOptions::default() };
        let Err(error) = Volume::open(device, &options) else { panic!("it is written") };
        assert!(error.to_string().contains("cannot be written"), "{error}");
    }
}

#[test]
fn what_does_not_go_together_is_refused() {
    let refused = |word: &str, change: fn(&mut MkfsOptions)| {
        let device = MemoryDevice::zeroed(64 << 20).expect("a device");
        let mut options = MkfsOptions::new(Kind::SpaceMap);
        change(&mut options);
        let error = mkfs::make(&device, &options).expect_err(word).to_string();
        assert!(error.contains(word), "{error}");
    };
    refused("power of two", |options| options.metablockgroup_bytes = Some(100 << 20));
    refused("power of two", |options| options.metablockgroup_bytes = Some(0));
    refused("from 4 to 16384", |options| options.space_map_log = Some(3));
    refused("flex_bg", |options| options.features.add("^flex_bg").expect("a feature"));
    refused("bigalloc", |options| options.features.add("bigalloc").expect("a feature"));
    refused("resize_inode", |options| options.features.add("resize_inode").expect("a feature"));
    refused("needs the feature space_maps", |options| options.features.add("^space_maps").expect("a feature"));
    refused("flex_bg", |options| {
        options.kind = Kind::Ext2;
        options.features.add("space_maps").expect("a feature");
    });
    refused("needs the feature space_maps", |options| {
        (options.kind, options.metablockgroup_bytes) = (Kind::Ext4, Some(8 << 30));
    });
}

/// The volume is left as after a loss of power: the kernel reads it and replays its journal, and then Extant writes it.
#[test]
fn a_cut_volume_is_read_by_the_kernel_and_then_by_us() {
    if !need(&["e2fsck"]) {
        return;
    }
    let device = make(48 << 20, |_| ());
    let mut rng = Rng::new(5);
    let volume = open(&device, MODES[2]);
    let mut files = Vec::new();
    work(&volume, &mut rng, &mut files, 60);
    volume.sync().expect("synced");
    // not unmounted: the journal has not been checkpointed
    let image = Image::from_bytes(&bytes(&device));
    let seen = manifest(&volume);
    match oracle::kernel_mount(image.path(), "ro") {
        Ok(mounted) => manifest_of(&seen).assert_same(&manifest_of(&testkit::walk(mounted.path()).expect("walked"))),
        Err(why) => println!("SKIPPED: {why}"),
    }
    let replayed = Arc::new(MemoryDevice::from_vec(image.bytes()));
    let again = open(&replayed, MODES[2]);
    assert!(again.damaged_groups().is_empty());
    manifest(&again).assert_same(&seen);
    assert_eq!(again.statfs().blocks_free, volume.statfs().blocks_free);
    again.unmount().expect("unmounted");
    assert_valid(&replayed);
}

/// The manifest without what reading itself changes.
fn manifest_of(manifest: &Manifest) -> Manifest {
    Manifest(manifest.0.clone()).forget(&[Field::Accessed])
}
