//! Helpers shared by the tests of this crate: opening an image, and the manifest of a volume.

#![allow(dead_code, unused_imports, reason = "each test program uses some of it")]

pub(crate) mod plain;

pub(crate) use plain::assert_valid;

use blockdev::{BlockDevice, FileDevice, MemoryDevice};
use extant_fs::{Clock, FileKind, Inode, InodeNo, OpenOptions, Result, Timestamp, Volume, WriteOptions};
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use testkit::{ContentHash, Entry, Manifest, Time};

/// The device of an image file.
pub(crate) fn device(image: &Path) -> Arc<dyn BlockDevice> {
    Arc::new(FileDevice::open(image, blockdev::OpenOptions::default()).expect("opening an image"))
}

/// The volume in an image file.
pub(crate) fn open(image: &Path) -> Volume {
    Volume::open(device(image), &OpenOptions::default()).expect("opening a volume")
}

/// The volume in a buffer.
pub(crate) fn open_bytes(bytes: Vec<u8>) -> Result<Volume> {
    Volume::open(Arc::new(MemoryDevice::from_vec(bytes)), &OpenOptions::default())
}

/// The content of a file, read in parts of an odd length.
struct Content<'a> {
    volume: &'a Volume,
    inode: &'a Inode,
    at: u64,
}

impl Read for Content<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let len = buf.len().min(150_001);
        let n = self.volume.read_at(self.inode, self.at, &mut buf[..len]).map_err(io::Error::other)?;
        self.at += n as u64;
        Ok(n)
    }
}

/// Everything that the library returns of a volume. Panics at the first error.
pub(crate) fn manifest(volume: &Volume) -> Manifest {
    let mut manifest = Manifest::default();
    let mut inodes = HashMap::new();
    for (path, inode) in volume.walk(InodeNo::ROOT) {
        let path = if path.is_empty() { PathBuf::from(".") } else { PathBuf::from(OsString::from_vec(path)) };
        let inode = inode.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let entry = entry(volume, &inode).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        inodes.insert(path.clone(), inode.number);
        manifest.0.insert(path, entry);
    }
    let mut first_names: HashMap<InodeNo, PathBuf> = HashMap::new();
    for (path, entry) in &mut manifest.0 {
        entry.first_name = Some(first_names.entry(inodes[path]).or_insert_with(|| path.clone()).clone());
    }
    manifest
}

fn entry(volume: &Volume, inode: &Inode) -> Result<Entry> {
    let a = volume.attributes(inode);
    let time = |t: Timestamp| Some(Time { seconds: t.seconds, nanoseconds: t.nanos });
    let mut xattrs = BTreeMap::new();
    for name in volume.list_xattrs(inode)? {
        let value = volume.get_xattr(inode, &name)?;
        xattrs.insert(OsString::from_vec(name), value);
    }
    Ok(Entry {
        owner: Some((a.uid, a.gid)),
        links: Some(a.links.into()),
        size: Some(a.size),
        blocks: Some(a.blocks),
        accessed: time(a.atime),
        modified: time(a.mtime),
        changed: time(a.ctime),
        device: a.device,
        xattrs: Some(xattrs),
        target: if a.kind == FileKind::Symlink { Some(volume.read_link(inode)?) } else { None },
        content: if a.kind == FileKind::Regular {
            Some(ContentHash::of(Content { volume, inode, at: 0 }).expect("reading a file"))
        } else {
            None
        },
        ..Entry::new(kind(a.kind), (a.mode & 0o7777).into())
    })
}

pub(crate) fn kind(kind: FileKind) -> testkit::FileKind {
    match kind {
        FileKind::Regular => testkit::FileKind::Regular,
        FileKind::Directory => testkit::FileKind::Directory,
        FileKind::Symlink => testkit::FileKind::Symlink,
        FileKind::CharDevice => testkit::FileKind::CharDevice,
        FileKind::BlockDevice => testkit::FileKind::BlockDevice,
        FileKind::Fifo => testkit::FileKind::Fifo,
        FileKind::Socket => testkit::FileKind::Socket,
    }
}

/// The volume in an image file, open for writing. Its clock is constant, and it has a seed, so each run writes the
/// same.
pub(crate) fn open_writable(image: &Path, write: WriteOptions) -> Volume {
    let open = || FileDevice::open(image, blockdev::OpenOptions { write: true, ..blockdev::OpenOptions::default() });
    // a process that another test starts at this moment inherits the lock of the file just closed, until its exec
    let mut device = open();
    for _ in 0..100 {
        if device.is_ok() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
        device = open();
    }
    let device: Arc<dyn BlockDevice> = Arc::new(device.expect("opening an image"));
    let clock: Clock = Arc::new(|| Timestamp { seconds: 1_800_000_000, nanos: 0 });
    let write = Some(WriteOptions { clock, seed: Some(7), ..write });
    Volume::open(device, &OpenOptions { write, ..OpenOptions::default() }).expect("opening a volume for writing")
}

/// The number of the inode at a path.
pub(crate) fn number(volume: &Volume, path: &str) -> InodeNo {
    volume.resolve(path.as_bytes()).expect("the file is there")
}

/// The whole content of a file, read in parts of an odd length.
pub(crate) fn content(volume: &Volume, number: InodeNo) -> Vec<u8> {
    let inode = volume.inode(number).expect("the inode");
    let mut bytes = Vec::new();
    Content { volume, inode: &inode, at: 0 }.read_to_end(&mut bytes).expect("reading a file");
    bytes
}
