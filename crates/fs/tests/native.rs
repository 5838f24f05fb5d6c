//! Volumes of the native format: created, used, reopened, filled to the last block, and checked by e2fsck through the
//! map.

use blockdev::{BlockDevice, MemoryDevice};
use extant_fs::mkfs::{Kind, MkfsOptions, make};
use extant_fs::{Consistency, Error, FileKind, InodeNo, NewFile, OpenOptions, Timestamp, Volume, WriteOptions};
use simdev::Trace;
use std::sync::Arc;
use store::native::{Mapped, superblock};
use testkit::{Image, Rng, need};

const MIB: u64 = 1 << 20;

fn options() -> MkfsOptions {
    let mut options = MkfsOptions::new(Kind::Extant);
    options.uuid = *b"a native volume!";
    options.hash_seed = [3; 16];
    options.time = Timestamp { seconds: 1_600_000_000, nanos: 0 };
    options
}

fn made(len: u64) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::from_vec(vec![0; len as usize]));
    make(&*device, &options()).expect("a volume");
    device
}

fn open(device: Arc<dyn BlockDevice>, consistency: Option<Consistency>) -> Volume {
    let write = WriteOptions { consistency, seed: Some(7), superuser: true, ..WriteOptions::default() };
    Volume::open(device, &OpenOptions { write: Some(write), ..OpenOptions::default() }).expect("opening")
}

fn new(kind: FileKind) -> NewFile {
    NewFile { kind, mode: 0o755, umask: 0, uid: 1000, gid: 1000, device: (0, 0) }
}

fn content(volume: &Volume, number: InodeNo) -> Vec<u8> {
    let inode = volume.inode(number).expect("the inode");
    let mut bytes = vec![0; inode.size as usize];
    let read = volume.read_at(&inode, 0, &mut bytes).expect("reading");
    assert_eq!(read, bytes.len());
    bytes
}

/// Verifies the output of e2fsck for the volume above the map. It does not know physical blocks: blocks of the regions
/// are in use, but belong to no inode, and it may report only that.
fn assert_valid_above(device: &Arc<dyn BlockDevice>) {
    if !need(&["e2fsck"]) {
        return;
    }
    let (sb, _) = superblock(&**device).expect("a superblock");
    let mapped = Mapped::new(Arc::clone(device), &sb);
    let len = mapped.geometry().len;
    let image = Image::from_bytes(&[]);
    let file = std::fs::File::options().write(true).open(image.path()).expect("the image");
    file.set_len(len).expect("its length");
    let mut block = vec![0; MIB as usize];
    for at in (0..len).step_by(block.len()) {
        // e2fsck does not read file data
        if at > 0 && at < sb.layout.metadata_start() * 4096 {
            continue;
        }
        mapped.read(at, &mut block).expect("reading through the map");
        std::os::unix::fs::FileExt::write_all_at(&file, &block, at).expect("writing the image");
    }
    let ran = std::process::Command::new("e2fsck").arg("-fn").arg(image.path()).output().expect("e2fsck");
    let text = String::from_utf8_lossy(&ran.stdout).into_owned();
    let known = |line: &&str| {
        line.starts_with("Pass ")
            || line.is_empty()
            || line.starts_with("Block bitmap differences:")
            || line.starts_with("Fix?")
            || line.contains("WARNING: Filesystem still has errors")
            || line.contains(" files (")
            || line.starts_with("Free blocks count wrong")
            || line.starts_with(" -(")
    };
    let wrong: Vec<_> = text.lines().filter(|line| !known(line)).collect();
    assert!(wrong.is_empty(), "{text}");
    assert!(!text.contains(" +"), "blocks in use are free in a bitmap: {text}");
}

#[test]
fn what_is_written_is_found_again() {
    for consistency in [None, Some(Consistency::None)] {
        let device: Arc<dyn BlockDevice> = made(64 * MIB);
        assert_valid_above(&device);
        let mut contents = Vec::new();
        for round in 0..3u64 {
            let mut rng = Rng::new(round);
            let volume = open(Arc::clone(&device), consistency);
            assert!(volume.damaged_groups().is_empty());
            let dir = volume
                .create(InodeNo::ROOT, format!("d{round}").as_bytes(), &new(FileKind::Directory))
                .expect("a directory");
            for n in 0..300u64 {
                let name = format!("f{n}");
                let file = volume.create(dir.number, name.as_bytes(), &new(FileKind::Regular)).expect("a file");
                let data = rng.bytes((n * 37 % 20_000) as usize);
                volume.write_at(file.number, 0, &data).expect("writing");
                if n % 3 == 0 {
                    volume.unlink(dir.number, name.as_bytes()).expect("removing");
                } else {
                    contents.push((format!("/d{round}/{name}"), data));
                }
                if n % 100 == 50 {
                    volume.sync().expect("a sync");
                }
            }
            volume.unmount().expect("unmounting");
            assert_valid_above(&device);
            let volume = Volume::open(Arc::clone(&device), &OpenOptions::default()).expect("reading");
            for (path, data) in &contents {
                let number = volume.resolve(path.as_bytes()).expect("the file");
                assert_eq!(content(&volume, number), *data, "{path}");
            }
        }
    }
}

#[test]
fn what_is_made_and_removed_in_one_generation_is_not_written() {
    let device = Arc::new(Trace::new(made(64 * MIB)));
    let volume = open(device.clone(), None);
    let dir = volume.create(InodeNo::ROOT, b"d", &new(FileKind::Directory)).expect("a directory").number;
    volume.create(dir, b"stays", &new(FileKind::Regular)).expect("a file");
    volume.sync().expect("a sync");
    let before = device.counters().writes.bytes;
    for n in 0..1000 {
        let name = format!("f{n}");
        let file = volume.create(dir, name.as_bytes(), &new(FileKind::Regular)).expect("a file");
        volume.write_at(file.number, 0, &[1; 5000]).expect("writing");
        volume.unlink(dir, name.as_bytes()).expect("removing");
    }
    volume.sync().expect("a sync");
    // the directory with its times, counts, and their map entries
    let written = (device.counters().writes.bytes - before) / 4096;
    assert!(written <= 24, "{written} blocks");
    volume.unmount().expect("unmounting");
}

#[test]
fn a_volume_can_be_filled_and_emptied_over_and_over() {
    let device: Arc<dyn BlockDevice> = made(32 * MIB);
    let volume = open(Arc::clone(&device), None);
    let mut filled = Vec::new();
    for round in 0..6u64 {
        let mut rng = Rng::new(round);
        let mut names = Vec::new();
        let full = (0u64..).find(|n| {
            let name = format!("f{n}");
            match volume.create(InodeNo::ROOT, name.as_bytes(), &new(FileKind::Regular)) {
                Ok(file) => {
                    names.push(name);
                    let data = vec![*n as u8; 1 + rng.index(if round % 2 == 0 { 900_000 } else { 9_000 })];
                    let wrote = volume.write_at(file.number, 0, &data);
                    wrote.is_err() || wrote.is_ok_and(|len| len < data.len())
                }
                Err(e) => {
                    assert!(matches!(e, Error::NoSpace), "{e}");
                    true
                }
            }
        });
        assert!(full.is_some());
        volume.sync().expect("a sync of a full volume");
        filled.push(names.len());
        for name in &names {
            volume.unlink(InodeNo::ROOT, name.as_bytes()).expect("removing from a full volume");
        }
        volume.sync().expect("a sync");
    }
    // no later iteration leaves less space than one of its kind before
    assert!(filled[4] * 10 >= filled[0] * 8 && filled[5] * 10 >= filled[1] * 8, "{filled:?}");
    volume.unmount().expect("unmounting");
    assert_valid_above(&device);
}

/// A block that begins like the backup superblock of an ext4 volume of the device's size.
fn backup(len: u64) -> Vec<u8> {
    let other = MemoryDevice::from_vec(vec![0; len as usize]);
    let mut options = options();
    options.kind = Kind::Ext4;
    options.block_size = Some(1024);
    let sb = make(&other, &options).expect("an ext4 volume");
    let mut block = vec![0; 4096];
    // with blocks of 1 KiB the copy is the second KiB
    other.read((8192 + 1) * 1024, &mut block[1024..2048]).expect("reading");
    assert_eq!(block[1024 + 56..][..2], format::superblock::MAGIC.to_le_bytes());
    assert_eq!(sb.geometry.block_size, 1024);
    block
}

#[test]
fn no_content_lies_where_other_programs_look_for_their_superblocks() {
    const LEN: u64 = 48 * MIB;
    let trap = backup(LEN);
    for directories in [false, true] {
        let device: Arc<dyn BlockDevice> = made(LEN);
        let volume = open(Arc::clone(&device), None);
        let file = volume.create(InodeNo::ROOT, b"traps", &new(FileKind::Regular)).expect("a file");
        let mut n = 0u64;
        loop {
            let outcome = if directories {
                let name = format!("{n:0>250}");
                volume.create(InodeNo::ROOT, name.as_bytes(), &new(FileKind::Directory)).map(drop)
            } else {
                volume.write_at(file.number, n * 4096, &trap).map(drop)
            };
            match outcome {
                Ok(()) => n += 1,
                Err(Error::NoSpace) => break,
                Err(e) => panic!("{e}"),
            }
        }
        assert!(n > if directories { 1000 } else { 8000 }, "{n}");
        volume.unmount().expect("unmounting");
        assert_valid_above(&device);
        let (sb, _) = superblock(&*device).expect("a superblock");
        assert!(sb.reserved);
        let blocks: Vec<u64> = format::native::HEAD.chain(sb.layout.backup_blocks()).collect();
        assert!(blocks.contains(&2048) && blocks.contains(&8192) && blocks.contains(&16));
        for number in blocks {
            let mut block = vec![0xFF; 4096];
            device.read(number * 4096, &mut block).expect("reading");
            assert!(block.iter().all(|byte| *byte == 0), "block {number} is not zero, {n} files");
        }
        if need(&["e2fsck"]) {
            let mut before = vec![0; LEN as usize];
            device.read(0, &mut before).expect("reading");
            let image = Image::from_bytes(&before);
            let ran = std::process::Command::new("e2fsck").arg("-fy").arg(image.path()).output().expect("e2fsck");
            assert_eq!(ran.status.code(), Some(8), "{}", String::from_utf8_lossy(&ran.stdout));
            assert!(std::fs::read(image.path()).expect("the image") == before, "e2fsck has written the volume");
        }
    }
}
