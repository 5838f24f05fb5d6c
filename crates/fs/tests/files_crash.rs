//! A crash at any point of work on files: replay leaves the volume in a consistent state, in which no file exposes the
//! old content of a block, and an interrupted truncation is completed.

mod common;

use blockdev::{BlockDevice, MemoryDevice};
use common::{assert_valid, content, number};
use extant_fs::{
    AllocateMode, DataMode, FileBlock, FileKind, InodeNo, Mapping, NewFile, OpenOptions, RenameFlags, SetAttributes,
    Volume, WriteOptions,
};
use simdev::Record;
use std::sync::Arc;
use testkit::{Image, Rng, cases, need, rounds};

/// The byte that fills every free block.
const STALE: u8 = 0xEE;

fn open(device: Arc<dyn BlockDevice>, data: DataMode) -> Volume {
    let write =
        WriteOptions { data, dirty_bytes: 300_000, delayed_bytes: 300_000, seed: Some(1), ..WriteOptions::default() };
    Volume::open(device, &OpenOptions { write: Some(write), ..OpenOptions::default() }).expect("open")
}

/// A volume whose free blocks have content, with two empty files.
fn base(args: &[&str]) -> Vec<u8> {
    let image = Image::mke2fs(args, 12 << 20).debugfs(&["write /dev/null a", "write /dev/null b"]).build();
    let device = Arc::new(MemoryDevice::from_vec(image.bytes()));
    let volume = open(Arc::<MemoryDevice>::clone(&device), DataMode::Ordered);
    let file = number(&volume, "/a");
    let mut size = 0;
    while let Ok(len) = volume.write_at(file, size, &[STALE; 100_000]) {
        size += len as u64;
    }
    assert!(size > 4 << 20, "{size}");
    volume.truncate(file, 0).expect("truncate");
    volume.unmount().expect("unmount");
    drop(volume);
    Arc::into_inner(device).expect("no other reference").into_vec()
}

fn data(rng: &mut Rng, len: usize) -> Vec<u8> {
    let mut bytes = rng.bytes(len);
    bytes.iter_mut().filter(|byte| **byte == STALE).for_each(|byte| *byte = 1);
    bytes
}

/// Makes a random change to a file.
fn work(volume: &Volume, file: InodeNo, rng: &mut Rng) {
    let size = volume.attributes_of(file).expect("attributes").size;
    let offset = rng.below(size.min(2 << 20) + 100_000);
    let len = rng.magnitude(400_000);
    let outcome = match rng.below(12) {
        0..6 => {
            let bytes = data(rng, len as usize);
            volume.write_at(file, offset, &bytes).map(drop)
        }
        6 => volume.truncate(file, offset),
        7 => volume.allocate(file, AllocateMode::PunchHole, offset, len),
        8 => volume.allocate(file, AllocateMode::Extend, offset, len),
        9 => volume.allocate(file, AllocateMode::Zero, offset, len),
        10 => volume.fsync(file, rng.chance(50)),
        _ => volume.sync(),
    };
    match outcome {
        Ok(()) | Err(extant_fs::Error::Unsupported(_) | extant_fs::Error::NoSpace) => {}
        Err(e) => panic!("{e}"),
    }
}

/// Verifies the invariants after a crash, whatever was done.
fn verify(bytes: Vec<u8>, about: &str) {
    let device = Arc::new(MemoryDevice::from_vec(bytes));
    let volume = open(Arc::<MemoryDevice>::clone(&device), DataMode::Ordered);
    for path in ["/a", "/b"] {
        let file = number(&volume, path);
        let stale = content(&volume, file).iter().filter(|byte| **byte == STALE).count();
        assert_eq!(stale, 0, "{about}: {path} shows the old content of a block");
    }
    volume.unmount().expect("unmount");
    drop(volume);
    let image = Image::from_bytes(&Arc::into_inner(device).expect("no other reference").into_vec());
    assert_valid(image.path(), &about);
}

#[test]
fn no_crash_shows_what_a_block_contained_before() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let shapes: [(&[&str], DataMode); 4] = [
        (&["-t", "ext4", "-b", "1024"], DataMode::Ordered),
        (&["-t", "ext4", "-b", "4096", "-J", "size=4"], DataMode::Ordered),
        (&["-t", "ext3", "-b", "1024"], DataMode::Ordered),
        (&["-t", "ext4", "-b", "1024"], DataMode::Journal),
    ];
    for (args, mode) in shapes {
        let base = base(args);
        for case in cases("no_crash_shows", 3) {
            let mut rng = case.rng();
            let record = Arc::new(Record::in_memory(MemoryDevice::from_vec(base.clone())));
            let volume = open(Arc::<Record<MemoryDevice, Vec<u8>>>::clone(&record), mode);
            let files = [number(&volume, "/a"), number(&volume, "/b")];
            for _ in 0..60 {
                work(&volume, *rng.pick(&files), &mut rng);
            }
            for file in files {
                assert!(!content(&volume, file).contains(&STALE), "{args:?} {mode:?}: it shows even without a crash");
            }
            volume.sync().expect("sync");
            let log = record.log().expect("the log");
            for _ in 0..rounds(12) {
                let point = rng.index(log.entries().len() + 1);
                let device = MemoryDevice::from_vec(base.clone());
                log.replay_to(point, &device).expect("replay");
                verify(device.into_vec(), &format!("{args:?} {mode:?} at {point} of {}", log.entries().len()));
            }
        }
    }
}

#[test]
fn a_truncation_cut_short_is_finished() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    for args in [&["-t", "ext4", "-b", "1024"][..], &["-t", "ext3", "-b", "1024"]] {
        let image = Image::mke2fs(args, 32 << 20).debugfs(&["write /dev/null a", "write /dev/null b"]).build();
        let device = Arc::new(MemoryDevice::from_vec(image.bytes()));
        let volume = open(Arc::<MemoryDevice>::clone(&device), DataMode::Ordered);
        let file = number(&volume, "/a");
        // with many extents
        for block in 0..9_000u64 {
            volume.write_at(file, block * 2048, &[7; 1024]).expect("write");
        }
        volume.unmount().expect("unmount");
        drop(volume);
        let base = Arc::into_inner(device).expect("no other reference").into_vec();

        let record = Arc::new(Record::in_memory(MemoryDevice::from_vec(base.clone())));
        let volume = open(Arc::<Record<MemoryDevice, Vec<u8>>>::clone(&record), DataMode::Ordered);
        volume.truncate(file, 5000).expect("truncate");
        volume.sync().expect("sync");
        let log = record.log().expect("the log");
        let (mut cut, mut whole) = (0, 0);
        for n in 0..30 {
            let point = log.entries().len() * n / 29;
            let device = Arc::new(MemoryDevice::from_vec(base.clone()));
            log.replay_to(point, &*device).expect("replay");
            let volume = open(Arc::<MemoryDevice>::clone(&device), DataMode::Ordered);
            let inode = volume.inode(file).expect("the inode");
            if inode.size == 5000 {
                cut += 1;
                let mut at = FileBlock(5);
                while at.get() < 18_000 {
                    let run = volume.map(&inode, at).expect("map");
                    assert_eq!(run.mapping, Mapping::Hole, "{args:?} {run:?}");
                    at = run.end();
                }
            } else {
                whole += 1;
                assert_eq!(inode.size, 8_999 * 2048 + 1024);
            }
            volume.unmount().expect("unmount");
            drop(volume);
            let image = Image::from_bytes(&Arc::into_inner(device).expect("no other reference").into_vec());
            assert_valid(image.path(), &(args, point));
        }
        assert!(cut > 0 && whole > 0, "{args:?} {cut} {whole}");
    }
}

/// Programs that rewrite a file by truncation and close it without fsync(2) lose neither content by a sync of another
/// file.
#[test]
fn a_file_rewritten_by_truncation_is_never_empty() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let (old, new) = (vec![7; 9_000], vec![8; 5_000]);
    for data in [DataMode::Ordered, DataMode::Journal] {
        let image = Image::mke2fs(&["-t", "ext4", "-b", "1024"], 12 << 20)
            .debugfs(&["write /dev/null a", "write /dev/null b"])
            .build();
        let device = Arc::new(MemoryDevice::from_vec(image.bytes()));
        let volume = open(Arc::<MemoryDevice>::clone(&device), data);
        volume.write_at(number(&volume, "/a"), 0, &old).expect("write");
        volume.unmount().expect("unmount");
        drop(volume);
        let base = Arc::into_inner(device).expect("no other reference").into_vec();

        let record = Arc::new(Record::in_memory(MemoryDevice::from_vec(base.clone())));
        let volume = open(Arc::<Record<MemoryDevice, Vec<u8>>>::clone(&record), data);
        let (file, other) = (number(&volume, "/a"), number(&volume, "/b"));
        volume.truncate(file, 0).expect("truncate");
        volume.write_at(file, 0, &new).expect("write");
        volume.write_at(other, 0, b"durable").expect("write");
        volume.fsync(other, false).expect("fsync");
        let log = record.log().expect("the log");
        let mut found = [0; 2];
        for point in 0..=log.entries().len() {
            let device = MemoryDevice::from_vec(base.clone());
            log.replay_to(point, &device).expect("replay");
            let volume = open(Arc::new(device), DataMode::Ordered);
            let content = content(&volume, number(&volume, "/a"));
            assert!(content == old || content == new, "{data:?}, {point}: {} bytes", content.len());
            found[usize::from(content == new)] += 1;
        }
        assert!(found.iter().all(|count| *count > 0), "{data:?}: {found:?}");
    }
}

/// A device that records the requests to it.
type Recorder = Record<MemoryDevice, Vec<u8>>;

/// A volume with files of this content and an empty one, all durable: the device's content, the device, and the volume.
fn recorded(args: &[&str], files: usize, old: &[u8]) -> (Vec<u8>, Arc<Recorder>, Volume) {
    let image = Image::mke2fs(args, 48 << 20).build();
    let device = Arc::new(MemoryDevice::from_vec(image.bytes()));
    let volume = open_for_many(Arc::<MemoryDevice>::clone(&device));
    for file in 0..files {
        let file = volume.create(InodeNo::ROOT, &name(file), &plain()).expect("create").number;
        volume.write_at(file, 0, old).expect("write");
    }
    volume.create(InodeNo::ROOT, b"other", &plain()).expect("create");
    volume.unmount().expect("unmount");
    drop(volume);
    let base = Arc::into_inner(device).expect("no other reference").into_vec();
    let record = Arc::new(Record::in_memory(MemoryDevice::from_vec(base.clone())));
    let volume = open_for_many(Arc::<Recorder>::clone(&record));
    (base, record, volume)
}

/// As [`open`], with much memory: files are not written because of a limit.
fn open_for_many(device: Arc<dyn BlockDevice>) -> Volume {
    let write = WriteOptions { seed: Some(1), ..WriteOptions::default() };
    Volume::open(device, &OpenOptions { write: Some(write), ..OpenOptions::default() }).expect("open")
}

fn plain() -> NewFile {
    NewFile { kind: FileKind::Regular, mode: 0o644, umask: 0, uid: 0, gid: 0, device: (0, 0) }
}

fn name(file: usize) -> Vec<u8> {
    format!("f{file}").into_bytes()
}

/// The volume after a crash following the last request.
fn crashed(base: &[u8], record: &Recorder) -> Volume {
    let log = record.log().expect("the log");
    let device = MemoryDevice::from_vec(base.to_vec());
    log.replay_to(log.entries().len(), &device).expect("replay");
    open_for_many(Arc::new(device))
}

fn sync_other(volume: &Volume) {
    let other = number(volume, "/other");
    volume.write_at(other, 0, b"durable").expect("write");
    volume.fsync(other, false).expect("fsync");
}

/// A file may be written in several parts, with syncs of other files between them, however many.
#[test]
fn all_parts_of_a_rewritten_file_are_durable_with_another_file() {
    if !need(&["mke2fs"]) {
        return;
    }
    for args in [&["-t", "ext4"][..], &["-t", "ext4", "-b", "1024"], &["-t", "ext3"]] {
        let (base, record, volume) = recorded(args, 1, &[7; 30_000]);
        let file = number(&volume, "/f0");
        volume.truncate(file, 0).expect("truncate");
        for part in 0..4 {
            volume.write_at(file, part * 10_000, &[8; 10_000]).expect("write");
            sync_other(&volume);
            let volume = crashed(&base, &record);
            assert!(
                content(&volume, number(&volume, "/f0")) == vec![8; 10_000 * (part as usize + 1)],
                "{args:?} {part}"
            );
        }
        // passes over all delayed data do not end it
        for _ in 0..3 {
            volume.sync().expect("sync");
        }
        volume.write_at(file, 40_000, &[8; 10_000]).expect("write");
        sync_other(&volume);
        let volume = crashed(&base, &record);
        assert!(content(&volume, number(&volume, "/f0")) == vec![8; 50_000], "{args:?}");
    }
}

/// Also where the other file's own changes are durable already, by a sync that came between the parts.
#[test]
fn an_fsync_with_nothing_of_its_own_waits_for_a_rewritten_file() {
    if !need(&["mke2fs"]) {
        return;
    }
    let (base, record, volume) = recorded(&["-t", "ext4"], 1, &[7; 30_000]);
    let (file, other) = (number(&volume, "/f0"), number(&volume, "/other"));
    volume.truncate(file, 0).expect("truncate");
    volume.write_at(other, 0, b"durable").expect("write");
    volume.sync().expect("sync");
    volume.write_at(file, 0, &[8; 30_000]).expect("write");
    volume.fsync(other, false).expect("fsync");
    let volume = crashed(&base, &record);
    assert!(content(&volume, number(&volume, "/f0")) == vec![8; 30_000]);
}

/// Not even where their content fills several generations.
#[test]
fn none_of_many_rewritten_files_is_empty() {
    if !need(&["mke2fs"]) {
        return;
    }
    const FILES: usize = 1500;
    for args in [&["-t", "ext4", "-N", "4096"][..], &["-t", "ext3", "-b", "1024", "-N", "4096", "-J", "size=1"]] {
        let (base, record, volume) = recorded(args, FILES, &[7; 300]);
        // more than 12 blocks need an indirect one
        let new = vec![8; 12_500];
        for file in 0..FILES {
            let file = number(&volume, &format!("/f{file}"));
            volume.truncate(file, 0).expect("truncate");
            volume.write_at(file, 0, &new).expect("write");
        }
        sync_other(&volume);
        let volume = crashed(&base, &record);
        let whole = |file: &usize| content(&volume, number(&volume, &format!("/f{file}"))) == new;
        assert_eq!((0..FILES).filter(whole).count(), FILES, "{args:?}");
    }
}

/// Files that need no protection do not use it up: those that stay empty, and those that are removed.
#[test]
fn files_truncated_for_good_do_not_displace_a_rewritten_one() {
    if !need(&["mke2fs"]) {
        return;
    }
    const FILES: usize = 2500;
    for (removed, late) in [(false, false), (true, false), (false, true)] {
        let (base, record, volume) = recorded(&["-t", "ext4", "-N", "4096"], FILES + 1, &[7; 300]);
        let file = number(&volume, &format!("/f{FILES}"));
        let mut size = 0;
        let mut write = || {
            volume.write_at(file, size, &[8; 100]).expect("write");
            size += 100;
        };
        if late {
            volume.truncate(file, 0).expect("truncate");
        }
        for other in 0..FILES {
            volume.truncate(number(&volume, &format!("/f{other}")), 0).expect("truncate");
            if removed {
                volume.unlink(InodeNo::ROOT, &name(other)).expect("remove");
            }
            if late && other % 400 == 0 {
                write();
            }
        }
        if !late {
            volume.truncate(file, 0).expect("truncate");
        }
        write();
        sync_other(&volume);
        let volume = crashed(&base, &record);
        let found = content(&volume, number(&volume, &format!("/f{FILES}")));
        assert!(found == vec![8; size as usize], "{removed} {late}: {} of {size} bytes", found.len());
    }
}

/// A generation is also closed when it is full.
#[test]
fn a_full_generation_contains_the_content_of_a_rewritten_file() {
    if !need(&["mke2fs"]) {
        return;
    }
    let args = ["-t", "ext4", "-b", "1024", "-N", "8192", "-J", "size=1"];
    for kind in ["create", "rename", "chmod", "unlink"] {
        let (base, record, volume) = recorded(&args, 3000, &[7; 300]);
        let file = number(&volume, "/f7");
        volume.truncate(file, 0).expect("truncate");
        volume.write_at(file, 0, &[8; 5000]).expect("write");
        let mut closed = 0;
        for other in 8..3000 {
            match kind {
                "create" => drop(volume.create(InodeNo::ROOT, &name(other + 9000), &plain()).expect("create")),
                "rename" => {
                    let to = name(other + 9000);
                    volume
                        .rename(InodeNo::ROOT, &name(other), InodeNo::ROOT, &to, RenameFlags::default())
                        .expect("rename");
                }
                "chmod" => {
                    let number = number(&volume, &format!("/f{other}"));
                    volume
                        .set_attributes(number, &SetAttributes { mode: Some(0o600), ..SetAttributes::default() })
                        .expect("chmod");
                }
                _ => volume.unlink(InodeNo::ROOT, &name(other)).expect("unlink"),
            }
            if other % 100 == 0 {
                let volume = crashed(&base, &record);
                let content = content(&volume, number(&volume, "/f7"));
                assert!(content == [7; 300] || content == [8; 5000], "{kind} {other}: {} bytes", content.len());
                closed += usize::from(content.len() == 5000);
            }
        }
        assert!(closed > 0, "{kind}");
    }
}
