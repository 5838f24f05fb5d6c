//! Volumes of formats that no other program makes, filled by the library.

use blockdev::{BlockDevice, MemoryDevice};
use fs::mkfs::{Kind, MkfsOptions, make};
use fs::{Clock, FileKind, InodeNo, NewFile, OpenOptions, Timestamp, Volume, WriteOptions, XattrMode};
use std::sync::Arc;
use testkit::Rng;

/// The time of everything, in seconds since 1970.
pub(crate) const NOW: i64 = 1_700_000_000;

/// The options for opening volumes for writing: at one time, with one seed.
pub(crate) fn writing() -> OpenOptions {
    let clock: Clock = Arc::new(|| Timestamp { seconds: NOW, nanos: 0 });
    let write = WriteOptions { clock, seed: Some(3), delayed_bytes: 4 << 20, ..WriteOptions::default() };
    OpenOptions { write: Some(write), cache_bytes: 4 << 20, ..OpenOptions::default() }
}

/// A new file of a kind.
pub(crate) fn new(kind: FileKind) -> NewFile {
    NewFile { kind, mode: 0o755, umask: 0, uid: 0, gid: 0, device: (1, 3) }
}

/// The whole content of a device in memory.
pub(crate) fn contents(device: &dyn BlockDevice) -> Vec<u8> {
    let mut bytes = vec![0; device.geometry().len as usize];
    device.read(0, &mut bytes).expect("memory can be read");
    bytes
}

/// A volume of a format, with files of every kind, and snapshots where it has them.
pub(crate) fn volume(kind: Kind, len: u64, block_size: Option<u32>, features: &str) -> Vec<u8> {
    let device = Arc::new(MemoryDevice::zeroed(len).expect("memory"));
    let mut options = MkfsOptions::new(kind);
    (options.uuid, options.hash_seed, options.block_size) = (*b"made for fuzzing", [3; 16], block_size);
    options.time = Timestamp { seconds: NOW, nanos: 0 };
    options.inodes = Some(256);
    options.features.add(features).expect("features");
    make(&*device, &options).expect("a volume");
    let as_device: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(&device);
    let volume = Volume::open(as_device, &writing()).expect("a volume that was just made");
    populate(&volume).expect("space for files");
    volume.unmount().expect("a volume in memory");
    contents(&*device)
}

fn populate(volume: &Volume) -> fs::Result<()> {
    let mut rng = Rng::new(5);
    let dir = volume.create(InodeNo::ROOT, b"dir", &new(FileKind::Directory))?.number;
    let deep = volume.create(dir, b"deep", &new(FileKind::Directory))?.number;
    for n in 0..60 {
        // long names: the directory gets an index
        volume.create(dir, format!("{n:>90}").as_bytes(), &new(FileKind::Regular))?;
    }
    let file = volume.create(InodeNo::ROOT, b"pieces", &new(FileKind::Regular))?.number;
    let other = volume.create(deep, b"other", &new(FileKind::Regular))?.number;
    for n in 0..14 {
        volume.write_at(file, n * 9000, &rng.bytes(3000))?;
        volume.write_at(other, n * 5000, &rng.bytes(1100))?;
        volume.sync()?;
    }
    let large = volume.create(deep, b"large", &new(FileKind::Regular))?.number;
    volume.write_at(large, 0, &rng.bytes(300 << 10))?;
    volume.set_xattr(file, b"user.long", &[7; 700], XattrMode::Any)?;
    volume.set_xattr(other, b"user.short", b"value", XattrMode::Any)?;
    volume.set_xattr(dir, b"trusted.dir", &[9; 300], XattrMode::Any)?;
    volume.symlink(InodeNo::ROOT, b"link", b"dir/deep/other", 0, 0)?;
    volume.symlink(InodeNo::ROOT, b"long link", &[b'x'; 300], 0, 0)?;
    volume.create(InodeNo::ROOT, b"pipe", &new(FileKind::Fifo))?;
    volume.create(InodeNo::ROOT, b"device", &new(FileKind::CharDevice))?;
    volume.link(other, InodeNo::ROOT, b"hard")?;
    volume.sync()?;
    if volume.snapshots().is_ok() {
        volume.create_snapshot(b"first")?;
        volume.write_at(file, 0, &rng.bytes(9000))?;
        volume.unlink(deep, b"large")?;
        volume.create_snapshot(b"second")?;
        volume.write_at(other, 0, &rng.bytes(3000))?;
        volume.sync()?;
    }
    Ok(())
}
