//! Native volumes in memory, complete reads of trees, and random operations on them.

use blockdev::{BlockDevice, MemoryDevice};
use check::Options as CheckOptions;
use fs::mkfs::{Kind, MkfsOptions, make};
use fs::{
    AllocateMode, DataMode, Error, FileKind, InodeNo, NewFile, OpenOptions, RenameFlags, SetAttributes, Timestamp,
    Volume, WriteOptions, XattrMode,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use testkit::Rng;

pub(crate) const MIB: u64 = 1 << 20;

pub(crate) fn made(len: u64) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::from_vec(vec![0; len as usize]));
    let mut options = MkfsOptions::new(Kind::Extant);
    options.uuid = [5; 16];
    options.hash_seed = [3; 16];
    options.time = Timestamp { seconds: 1_600_000_000, nanos: 0 };
    make(&*device, &options).expect("a volume");
    device
}

pub(crate) fn write_options(data: DataMode) -> WriteOptions {
    WriteOptions {
        data,
        seed: Some(7),
        superuser: true,
        dirty_bytes: 400_000,
        delayed_bytes: 400_000,
        clock: Arc::new(|| Timestamp { seconds: 1_700_000_000, nanos: 0 }),
        ..WriteOptions::default()
    }
}

pub(crate) fn open(device: Arc<dyn BlockDevice>, data: DataMode) -> Arc<Volume> {
    let write = Some(write_options(data));
    Arc::new(Volume::open(device, &OpenOptions { write, ..OpenOptions::default() }).expect("opening"))
}

pub(crate) fn reading(device: Arc<dyn BlockDevice>) -> Volume {
    Volume::open(device, &OpenOptions::default()).expect("opening for reading")
}

/// A separate copy of the device's current content.
pub(crate) fn copy(device: &dyn BlockDevice) -> Arc<MemoryDevice> {
    let mut bytes = vec![0; device.geometry().len as usize];
    device.read(0, &mut bytes).expect("reading");
    Arc::new(MemoryDevice::from_vec(bytes))
}

pub(crate) fn assert_consistent(device: &dyn BlockDevice, about: &str) {
    let options = CheckOptions { threads: 1, ..CheckOptions::default() };
    let report = check::check("volume", device, &options, &()).expect("a check");
    let texts: Vec<_> = report.problems.iter().map(|problem| &problem.text).collect();
    assert!(report.clean, "{about}: {texts:?}");
}

pub(crate) fn new(kind: FileKind) -> NewFile {
    NewFile { kind, mode: 0o755, umask: 0, uid: 1000, gid: 1000, device: (0, 0) }
}

/// A file with all visible properties.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    kind: FileKind,
    mode: u16,
    links: u16,
    size: u64,
    times: (Timestamp, Timestamp),
    pub(crate) content: Vec<u8>,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

pub(crate) type Tree = BTreeMap<Vec<u8>, Seen>;

/// All files, by path.
pub(crate) fn tree(volume: &Volume) -> Tree {
    let mut tree = Tree::new();
    for (path, inode) in volume.walk(InodeNo::ROOT) {
        let inode = inode.unwrap_or_else(|e| panic!("{}: {e}", String::from_utf8_lossy(&path)));
        let a = volume.attributes_of(inode.number).expect("attributes");
        let content = match inode.kind {
            FileKind::Regular => {
                let mut content = vec![0; a.size as usize];
                assert_eq!(volume.read_at(&inode, 0, &mut content).expect("content"), content.len());
                content
            }
            FileKind::Symlink => volume.read_link(&inode).expect("a target"),
            _ => Vec::new(),
        };
        let mut xattrs: Vec<_> = volume.list_xattrs(&inode).expect("attributes").into_iter().collect();
        xattrs.sort();
        let value = |name: Vec<u8>| {
            let value = volume.get_xattr(&inode, &name).expect("a value");
            (name, value)
        };
        let xattrs = xattrs.into_iter().map(value).collect();
        let size = if inode.kind == FileKind::Directory { 0 } else { a.size };
        let times = (a.mtime, a.ctime);
        tree.insert(path, Seen { kind: inode.kind, mode: a.mode, links: a.links, size, times, content, xattrs });
    }
    tree
}

/// The first difference between two trees, in brief.
pub(crate) fn difference(a: &Tree, b: &Tree) -> Option<String> {
    let mut paths = a.keys().chain(b.keys());
    let different = paths.find(|path| a.get(*path) != b.get(*path))?;
    let of = |tree: &Tree| match tree.get(different) {
        None => "missing".to_owned(),
        Some(seen) => format!("{:?} of {} bytes, {} links", seen.kind, seen.size, seen.links),
    };
    Some(format!("{}: {} against {}", String::from_utf8_lossy(different), of(a), of(b)))
}

pub(crate) fn assert_same(a: &Tree, b: &Tree, about: &str) {
    if let Some(difference) = difference(a, b) {
        panic!("{about}: {difference}");
    }
}

/// Creates directories and a few files as a start for [`work`].
pub(crate) fn ground(volume: &Volume) {
    for path in ["a", "b", "a/c"] {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        let dir = volume.resolve(format!("/{dir}").as_bytes()).expect("the directory");
        volume.create(dir, name.as_bytes(), &new(FileKind::Directory)).expect("a directory");
    }
    for path in ["/", "/a", "/b", "/a/c"] {
        let dir = volume.resolve(path.as_bytes()).expect("the directory");
        for n in 0..6 {
            let file = volume.create(dir, format!("f{n}").as_bytes(), &new(FileKind::Regular)).expect("a file");
            volume.write_at(file.number, 0, &vec![n; 5_000 * usize::from(n)]).expect("writing");
        }
    }
}

/// Runs a random operation. An impossible one must be refused; any other error fails the test.
pub(crate) fn work(volume: &Volume, rng: &mut Rng) {
    let dirs = [&b"/"[..], b"/a", b"/b", b"/a/c"];
    let dir = |rng: &mut Rng| {
        let path: &&[u8] = rng.pick(&dirs);
        volume.resolve(path)
    };
    let name = |rng: &mut Rng| format!("f{}", rng.below(12)).into_bytes();
    let outcome = (|| {
        let at = dir(rng)?;
        let named = name(rng);
        let file = |rng: &mut Rng| -> Result<InodeNo, Error> {
            let at = dir(rng)?;
            volume.lookup(&*volume.inode(at)?, &name(rng))
        };
        match rng.below(20) {
            0 => {
                let name: &&[u8] = rng.pick(&[b"a", b"b"]);
                volume.create(InodeNo::ROOT, name, &new(FileKind::Directory)).map(drop)
            }
            1 => volume.create(volume.resolve(b"/a")?, b"c", &new(FileKind::Directory)).map(drop),
            2..5 => volume.create(at, &named, &new(FileKind::Regular)).map(drop),
            5 => {
                let len = 1 + rng.index(200);
                volume.symlink(at, &named, &vec![b'x'; len], 0, 0).map(drop)
            }
            6 => volume.unlink(at, &named),
            7 => volume.rmdir(InodeNo::ROOT, b"b"),
            8 => {
                let to = dir(rng)?;
                volume.rename(at, &named, to, &name(rng), RenameFlags::default())
            }
            9 => volume.link(file(rng)?, at, &named).map(drop),
            10..14 => {
                let offset = rng.magnitude(200_000);
                let len = rng.magnitude(120_000) as usize;
                let data = rng.bytes(len);
                volume.write_at(file(rng)?, offset, &data).map(drop)
            }
            14 => volume.truncate(file(rng)?, rng.magnitude(300_000)),
            15 => {
                let mode = *rng.pick(&[
                    AllocateMode::PunchHole,
                    AllocateMode::Zero,
                    AllocateMode::Extend,
                    AllocateMode::KeepSize,
                ]);
                volume.allocate(file(rng)?, mode, rng.magnitude(200_000), 1 + rng.magnitude(60_000))
            }
            16 => {
                let mode = Some(0o700 | rng.below(8) as u16);
                volume.set_attributes(file(rng)?, &SetAttributes { mode, ..SetAttributes::default() }).map(drop)
            }
            17 => {
                let len = rng.magnitude(3000) as usize;
                let value = rng.bytes(len);
                volume.set_xattr(file(rng)?, b"user.x", &value, XattrMode::Any)
            }
            18 => volume.fsync(file(rng)?, rng.chance(50)),
            _ => {
                // removed while referenced
                let number = file(rng)?;
                volume.add_lookup(number);
                let removed = volume.unlink(at, &named);
                volume.forget(number, 1)?;
                removed
            }
        }
    })();
    match outcome {
        Ok(())
        | Err(
            Error::NotFound
            | Error::Exists
            | Error::NotEmpty
            | Error::NotADirectory
            | Error::IsADirectory
            | Error::Invalid(_)
            | Error::NotPermitted(_)
            | Error::NoSpace
            | Error::TransactionTooLarge { .. },
        ) => {}
        Err(e) => panic!("{e}"),
    }
}
