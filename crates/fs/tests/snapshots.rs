//! Snapshots of native volumes compared with a model: each reads as the tree at the time of its creation, whatever
//! happens to the volume, and all blocks that it pinned are freed after its deletion.

use blockdev::{BlockDevice, FileDevice, MemoryDevice};
use extant_fs::mkfs::{Kind, MkfsOptions, make};
use extant_fs::{
    AllocateMode, DataMode, Error, FileBlock, FileKind, InodeNo, Mapping, NewFile, OpenOptions, Timestamp, Volume,
    WriteOptions, rollback,
};
use simdev::Trace;
use std::collections::BTreeMap;
use std::sync::Arc;
use store::native::Summary;
use testkit::{Rng, cases, rounds};

const MIB: u64 = 1 << 20;

fn made(len: u64) -> Arc<dyn BlockDevice> {
    let device = Arc::new(MemoryDevice::zeroed(len).expect("memory"));
    make(&*device, &made_with()).expect("a volume");
    device
}

fn made_with() -> MkfsOptions {
    let mut options = MkfsOptions::new(Kind::Extant);
    options.uuid = *b"a native volume!";
    options.hash_seed = [3; 16];
    options.time = Timestamp { seconds: 1_600_000_000, nanos: 0 };
    options
}

/// Opens with the smallest cache: bitmaps are dropped and read again.
fn open(device: &Arc<dyn BlockDevice>) -> Volume {
    let write = WriteOptions { seed: Some(7), superuser: true, ..WriteOptions::default() };
    let options = OpenOptions { write: Some(write), cache_bytes: 256 << 10, ..OpenOptions::default() };
    let volume = Volume::open(Arc::clone(device), &options).expect("opening");
    assert!(volume.damaged_groups().is_empty());
    volume
}

fn new(kind: FileKind) -> NewFile {
    NewFile { kind, mode: 0o755, umask: 0, uid: 1000, gid: 1000, device: (0, 0) }
}

/// Names of files in the root, with their content.
type Tree = BTreeMap<Vec<u8>, Vec<u8>>;

fn read(volume: &Volume) -> Tree {
    let mut tree = Tree::new();
    for entry in volume.read_dir(&volume.inode(InodeNo::ROOT).expect("the root"), 0).expect("the root's names") {
        let entry = entry.expect("an entry");
        let inode = volume.inode(entry.inode).expect("an inode");
        if inode.kind == FileKind::Regular {
            let size = volume.attributes_of(entry.inode).expect("its size").size;
            let mut content = vec![0; size as usize];
            assert_eq!(volume.read_at(&inode, 0, &mut content).expect("reading"), content.len());
            tree.insert(entry.name.to_vec(), content);
        }
    }
    tree
}

fn assert_same(found: &Tree, wanted: &Tree, what: &str) {
    assert!(found.keys().eq(wanted.keys()), "{what}: names {:?}", found.keys());
    for (name, content) in found {
        let wanted = &wanted[name];
        let name = String::from_utf8_lossy(name);
        let at = content.iter().zip(wanted).position(|(found, wanted)| found != wanted);
        assert_eq!((content.len(), at), (wanted.len(), None), "{what}: length and first difference of {name}");
    }
}

fn number(volume: &Volume, name: &[u8]) -> InodeNo {
    volume.lookup(&volume.inode(InodeNo::ROOT).expect("the root"), name).expect("the file")
}

/// A volume and its expected content.
struct World {
    device: Arc<dyn BlockDevice>,
    volume: Volume,
    tree: Tree,
    taken: BTreeMap<Vec<u8>, Tree>,
    rng: Rng,
}

impl World {
    fn new(device: Arc<dyn BlockDevice>, rng: Rng) -> Self {
        let volume = open(&device);
        // from here on it has everything it needs when idle
        volume.create(InodeNo::ROOT, b"f", &new(FileKind::Regular)).expect("a file");
        volume.unlink(InodeNo::ROOT, b"f").expect("removing");
        volume.sync().expect("a sync");
        volume.compact().expect("compacting");
        Self { device, volume, tree: Tree::new(), taken: BTreeMap::new(), rng }
    }

    fn some_file(&mut self) -> Option<Vec<u8>> {
        let names: Vec<_> = self.tree.keys().cloned().collect();
        (!names.is_empty()).then(|| self.rng.pick(&names).clone())
    }

    fn step(&mut self) {
        match self.rng.below(23) {
            0..4 => {
                let name = format!("f{}", self.rng.below(40)).into_bytes();
                if !self.tree.contains_key(&name) {
                    self.volume.create(InodeNo::ROOT, &name, &new(FileKind::Regular)).expect("a file");
                    self.tree.insert(name, Vec::new());
                }
            }
            4..11 => {
                let Some(name) = self.some_file() else { return };
                let at = self.rng.below(60_000);
                let len = self.rng.magnitude(30_000) as usize + 1;
                let data = self.rng.bytes(len);
                let written = self.volume.write_at(number(&self.volume, &name), at, &data).expect("writing");
                assert_eq!(written, len);
                let content = self.tree.get_mut(&name).expect("it is there");
                content.resize(content.len().max(at as usize + len), 0);
                content[at as usize..][..len].copy_from_slice(&data);
            }
            11 => {
                let Some(name) = self.some_file() else { return };
                let size = self.rng.below(70_000);
                self.volume.truncate(number(&self.volume, &name), size).expect("truncating");
                self.tree.get_mut(&name).expect("it is there").resize(size as usize, 0);
            }
            12..14 => {
                let Some(name) = self.some_file() else { return };
                self.volume.unlink(InodeNo::ROOT, &name).expect("removing");
                self.tree.remove(&name);
            }
            14 => self.volume.sync().expect("a sync"),
            15 => self.remount(),
            16..18 if self.taken.len() < 5 => {
                let name = format!("s{}", self.rng.next_u64()).into_bytes();
                let info = self.volume.create_snapshot(&name).expect("a snapshot");
                assert_eq!(info.name, name);
                self.taken.insert(name, self.tree.clone());
            }
            18 => {
                let names: Vec<_> = self.taken.keys().cloned().collect();
                if !names.is_empty() {
                    let name = self.rng.pick(&names).clone();
                    let alone = self.volume.snapshot_space(&name).expect("its space");
                    assert!(alone > 0, "its root at least");
                    self.volume.delete_snapshot(&name).expect("deleting");
                    self.taken.remove(&name);
                }
            }
            19 => self.go_back(),
            20 => {
                let Some(name) = self.some_file() else { return };
                let modes =
                    [AllocateMode::PunchHole, AllocateMode::Zero, AllocateMode::ZeroKeepSize, AllocateMode::Extend];
                let mode = *self.rng.pick(&modes);
                let (at, len) = (self.rng.below(60_000), self.rng.below(30_000) + 1);
                self.volume.allocate(number(&self.volume, &name), mode, at, len).expect("allocating");
                let content = self.tree.get_mut(&name).expect("it is there");
                if matches!(mode, AllocateMode::Zero | AllocateMode::Extend) {
                    content.resize(content.len().max((at + len) as usize), 0);
                }
                let end = ((at + len) as usize).min(content.len());
                if mode != AllocateMode::Extend && (at as usize) < end {
                    content[at as usize..end].fill(0);
                }
            }
            21 => {
                let Some(name) = self.some_file() else { return };
                let content = self.tree.get_mut(&name).expect("it is there");
                let blocks = content.len() as u64 / 4096;
                if blocks < 4 {
                    return;
                }
                let (at, len) = (self.rng.below(blocks - 2), self.rng.below(2) + 1);
                let (start, bytes) = (at as usize * 4096, len as usize * 4096);
                let mode = if self.rng.chance(50) { AllocateMode::Collapse } else { AllocateMode::Insert };
                if mode == AllocateMode::Collapse {
                    content.drain(start..start + bytes);
                } else {
                    content.splice(start..start, std::iter::repeat_n(0, bytes));
                }
                self.volume.allocate(number(&self.volume, &name), mode, at * 4096, len * 4096).expect("moving");
            }
            _ => self.look(),
        }
    }

    fn go_back(&mut self) {
        let names: Vec<_> = self.taken.keys().cloned().collect();
        if names.is_empty() {
            return;
        }
        let name = self.rng.pick(&names).clone();
        self.volume.unmount().expect("unmounting");
        rollback(Arc::clone(&self.device), &name).expect("rolling back");
        self.tree = self.taken[&name].clone();
        self.volume = open(&self.device);
    }

    fn remount(&mut self) {
        self.volume.unmount().expect("unmounting");
        self.volume = open(&self.device);
    }

    /// Asserts that the volume and its snapshots have the expected content.
    fn look(&self) {
        assert_same(&read(&self.volume), &self.tree, "the volume");
        let names: Vec<_> = self.volume.snapshots().expect("the list").into_iter().map(|info| info.name).collect();
        assert_eq!(names.len(), self.taken.len());
        for name in names {
            let snapshot = self.volume.open_snapshot(&name, 64 << 10).expect("opening a snapshot");
            assert_same(&read(&snapshot), &self.taken[&name], &String::from_utf8_lossy(&name));
        }
        assert!(self.volume.damaged_groups().is_empty(), "{:?}", self.volume.damaged_groups());
    }

    fn empty(&mut self) {
        for name in std::mem::take(&mut self.tree).into_keys() {
            self.volume.unlink(InodeNo::ROOT, &name).expect("removing");
        }
        while let Some((name, _)) = self.taken.pop_first() {
            self.volume.delete_snapshot(&name).expect("deleting");
        }
        self.volume.sync().expect("a sync");
        self.volume.compact().expect("compacting");
    }
}

#[test]
fn snapshots_are_what_the_tree_was() {
    for case in cases("snapshots_are_what_the_tree_was", 6) {
        let mut world = World::new(made(32 * MIB), case.rng());
        let free = world.volume.statfs().blocks_free;
        for _ in 0..rounds(150) {
            world.step();
        }
        world.look();
        world.remount();
        world.look();
        world.empty();
        assert_eq!(world.volume.statfs().blocks_free, free);
        world.volume.unmount().expect("unmounting");
        let summary = Summary::read(&world.device).expect("a summary");
        assert_eq!((summary.pinned, summary.snapshots.len(), summary.superblock.snapshots), (0, 0, 0));
    }
}

/// With EXTANT_CAMPAIGN=1500 there are 1.5 million files; `--nocapture` prints the time taken.
#[test]
fn a_snapshot_is_made_at_the_same_cost_on_any_volume() {
    let mut costs = Vec::new();
    for len in [64 * MIB, 64 << 30] {
        let file = tempfile::NamedTempFile::new().expect("a file");
        file.as_file().set_len(len).expect("its length");
        let writable = blockdev::OpenOptions { write: true, ..blockdev::OpenOptions::default() };
        let device = Arc::new(Trace::new(FileDevice::open(file.path(), writable).expect("a device")));
        make(&*device, &made_with()).expect("a volume");
        let volume = open(&(device.clone() as Arc<dyn BlockDevice>));
        let files = if len > 1 << 30 { rounds(1000) } else { 0 };
        let mut dir = InodeNo::ROOT;
        for n in 0..files {
            if n % 1000 == 0 {
                let name = format!("d{n}");
                dir =
                    volume.create(InodeNo::ROOT, name.as_bytes(), &new(FileKind::Directory)).expect("a folder").number;
            }
            volume.create(dir, format!("f{n}").as_bytes(), &new(FileKind::Regular)).expect("a file");
        }
        volume.sync().expect("a sync");
        let before = device.counters().writes.bytes;
        let start = std::time::Instant::now();
        volume.create_snapshot(b"monday").expect("a snapshot");
        println!("{files} files on {} GiB: a snapshot in {:?}", len >> 30, start.elapsed());
        costs.push((device.counters().writes.bytes - before) / 4096);
        volume.unmount().expect("unmounting");
    }
    // the list, the chunk table, the nodes above them, two superblocks; one more level on the large volume
    assert!(costs[1] <= 24 && costs[1] - costs[0] <= 6, "{costs:?}");
}

fn fill(volume: &Volume, name: &[u8]) -> u64 {
    let file = volume.create(InodeNo::ROOT, name, &new(FileKind::Regular)).expect("a file").number;
    let mut at = 0;
    loop {
        match volume.write_at(file, at, &[0x77; 64 << 10]) {
            Ok(written) => at += written as u64,
            Err(Error::NoSpace) => return at,
            Err(e) => panic!("{e}"),
        }
    }
}

#[test]
fn a_volume_that_snapshots_have_filled_can_be_emptied() {
    let device = made(48 * MIB);
    let World { volume, .. } = World::new(Arc::clone(&device), Rng::new(0));
    let free = volume.statfs().blocks_free;
    let mut made = 0u64;
    // in each iteration a snapshot pins what the one before has written, until nothing is free
    for round in 0u64.. {
        let name = format!("f{round}").into_bytes();
        let file = match volume.create(InodeNo::ROOT, &name, &new(FileKind::Regular)) {
            Ok(file) => file.number,
            Err(Error::NoSpace) => break,
            Err(e) => panic!("{e}"),
        };
        let written = volume.write_at(file, 0, &vec![round as u8; 3 << 20]);
        match volume.create_snapshot(format!("s{round}").as_bytes()) {
            Ok(_) => made += 1,
            Err(Error::NoSpace) => {}
            Err(e) => panic!("{e}"),
        }
        volume.unlink(InodeNo::ROOT, &name).expect("removing from a full volume");
        if !matches!(written, Ok(n) if n == 3 << 20) {
            break;
        }
    }
    assert!(made >= 8, "{made}");
    fill(&volume, b"last");
    volume.unlink(InodeNo::ROOT, b"last").expect("removing");
    volume.sync().expect("a sync");
    let names: Vec<_> = volume.snapshots().expect("the list").into_iter().map(|info| info.name).collect();
    for (n, name) in names.iter().enumerate() {
        let before = volume.statfs().blocks_free;
        let alone = volume.snapshot_space(name).expect("its space") / 4096;
        volume.delete_snapshot(name).unwrap_or_else(|e| panic!("snapshot {n}: {e}"));
        assert!(volume.statfs().blocks_free >= before, "{n}: {alone}");
    }
    for entry in read(&volume).keys() {
        volume.unlink(InodeNo::ROOT, entry).expect("removing");
    }
    volume.sync().expect("a sync");
    volume.compact().expect("compacting");
    assert_eq!(volume.statfs().blocks_free, free);
    volume.unmount().expect("unmounting");
    let volume = open(&device);
    assert_eq!(volume.statfs().blocks_free, free);
    volume.unmount().expect("unmounting");
}

#[test]
fn names_and_numbers_of_snapshots_have_limits() {
    let device = made(64 * MIB);
    let volume = open(&device);
    for bad in [&b""[..], b".", b"..", b"a/b", b"a\0b", &[b'x'; 129]] {
        assert!(matches!(volume.create_snapshot(bad), Err(Error::Invalid(_))), "{bad:?}");
    }
    volume.create_snapshot(&[b'x'; 128]).expect("the longest name");
    assert!(matches!(volume.create_snapshot(&[b'x'; 128]), Err(Error::Exists)));
    assert!(matches!(volume.delete_snapshot(b"none"), Err(Error::NotFound)));
    assert!(matches!(volume.snapshot_space(b"none"), Err(Error::NotFound)));
    assert!(matches!(volume.open_snapshot(b"none", 1 << 20), Err(Error::NotFound)));
    volume.unmount().expect("unmounting");
    assert!(matches!(rollback(Arc::clone(&device), b"none"), Err(Error::NotFound)));
    let at = |write| OpenOptions { snapshot: Some(vec![b'x'; 128]), write, ..OpenOptions::default() };
    let snapshot = Volume::open(Arc::clone(&device), &at(None)).expect("a snapshot, for reading");
    assert!(snapshot.snapshots().expect("a list").is_empty());
    assert!(matches!(snapshot.create(InodeNo::ROOT, b"f", &new(FileKind::Regular)), Err(Error::ReadOnly(_))));
    assert!(matches!(snapshot.create_snapshot(b"f"), Err(Error::ReadOnly(_))));
    assert!(matches!(Volume::open(device, &at(Some(WriteOptions::default()))), Err(Error::ReadOnly(_))));
}

#[test]
fn a_damaged_list_is_an_error_and_the_volume_can_be_read() {
    let memory = Arc::new(MemoryDevice::zeroed(64 * MIB).expect("memory"));
    make(&*memory, &made_with()).expect("a volume");
    let device: Arc<dyn BlockDevice> = memory;
    let volume = open(&device);
    volume.create(InodeNo::ROOT, b"f", &new(FileKind::Regular)).expect("a file");
    volume.create_snapshot(b"a name like no other").expect("a snapshot");
    volume.unmount().expect("unmounting");
    let mut block = vec![0; 4096];
    let physical = (0..16384).find(|physical| {
        device.read(physical * 4096, &mut block).expect("reading");
        block.starts_with(b"a name like no other")
    });
    let offset = physical.expect("the list") * 4096;
    block[130] ^= 4;
    device.write(offset, &block).expect("writing");
    let volume = Volume::open(Arc::clone(&device), &OpenOptions::default()).expect("opening for reading");
    assert_eq!(read(&volume).len(), 1);
    assert!(volume.snapshots().expect_err("damaged").is_corruption());
    let write = OpenOptions { write: Some(WriteOptions::default()), ..OpenOptions::default() };
    assert!(Volume::open(Arc::clone(&device), &write).err().expect("damaged").is_corruption());
    assert!(rollback(device, b"a name like no other").expect_err("damaged").is_corruption());
}

/// With EXTANT_CAMPAIGN=40 a thousand snapshots.
#[test]
fn snapshots_deleted_in_any_order_leave_no_trace() {
    let all = rounds(25);
    let mut world = World::new(made((64 + all) * MIB), Rng::new(77));
    let free = world.volume.statfs().blocks_free;
    let mut names: Vec<Vec<u8>> = Vec::new();
    for n in 0..all {
        for _ in 0..4 {
            let name = format!("f{}", world.rng.below(30)).into_bytes();
            let file = match world.volume.create(InodeNo::ROOT, &name, &new(FileKind::Regular)) {
                Ok(file) => file.number,
                Err(Error::Exists) => number(&world.volume, &name),
                Err(e) => panic!("{e}"),
            };
            let (at, len) = (world.rng.below(20_000), world.rng.below(3000) as usize + 1);
            let data = world.rng.bytes(len);
            assert_eq!(world.volume.write_at(file, at, &data).expect("writing"), len);
        }
        let name = format!("s{n}").into_bytes();
        world.volume.create_snapshot(&name).expect("a snapshot");
        names.push(name);
        if n % 3 == 2 {
            let gone = names.swap_remove(world.rng.index(names.len()));
            world.volume.delete_snapshot(&gone).expect("deleting");
        }
    }
    world.remount();
    while !names.is_empty() {
        let gone = names.swap_remove(world.rng.index(names.len()));
        world.volume.delete_snapshot(&gone).expect("deleting");
    }
    world.tree = read(&world.volume);
    world.empty();
    assert_eq!(world.volume.statfs().blocks_free, free);
    world.volume.unmount().expect("unmounting");
    let summary = Summary::read(&world.device).expect("a summary");
    assert_eq!((summary.pinned, summary.superblock.snapshots), (0, 0));
}

#[test]
fn snapshots_stay_what_they_are_while_others_work() {
    let device = made(96 * MIB);
    let volume = Arc::new(open(&device));
    volume.start_background();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for worker in 0..3u64 {
            let (volume, stop) = (&volume, &stop);
            scope.spawn(move || {
                let mut rng = Rng::new(worker);
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let name = format!("w{worker}-{}", rng.below(12)).into_bytes();
                    match volume.create(InodeNo::ROOT, &name, &new(FileKind::Regular)) {
                        Ok(_) | Err(Error::Exists) => {}
                        Err(e) => panic!("{e}"),
                    }
                    let file = number(volume, &name);
                    match rng.below(5) {
                        0 => volume.unlink(InodeNo::ROOT, &name).expect("removing"),
                        1 => volume.truncate(file, rng.below(40_000)).expect("truncating"),
                        2 => volume.fsync(file, false).expect("fsync"),
                        _ => {
                            let (at, len) = (rng.below(30_000), rng.below(20_000) as usize + 1);
                            let data = rng.bytes(len);
                            assert_eq!(volume.write_at(file, at, &data).expect("writing"), len);
                        }
                    }
                }
            });
        }
        let mut rng = Rng::new(99);
        let mut taken: Vec<(Vec<u8>, Tree)> = Vec::new();
        for n in 0..rounds(40) {
            let name = format!("s{n}").into_bytes();
            volume.create_snapshot(&name).expect("a snapshot");
            let tree = read(&volume.open_snapshot(&name, 64 << 10).expect("opening it"));
            taken.push((name, tree));
            if taken.len() > 4 {
                let (name, tree) = taken.swap_remove(rng.index(taken.len()));
                let found = read(&volume.open_snapshot(&name, 64 << 10).expect("opening it"));
                assert_same(&found, &tree, &String::from_utf8_lossy(&name));
                volume.delete_snapshot(&name).expect("deleting");
            }
        }
        for (name, tree) in &taken {
            let found = read(&volume.open_snapshot(name, 64 << 10).expect("opening it"));
            assert_same(&found, tree, &String::from_utf8_lossy(name));
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert!(volume.damaged_groups().is_empty(), "{:?}", volume.damaged_groups());
    volume.unmount().expect("unmounting");
    drop(volume);
    let volume = open(&device);
    // each bitmap is compared with the counts of the descriptors when it is read
    for (n, name) in volume.snapshots().expect("the list").into_iter().map(|info| info.name).enumerate() {
        volume.delete_snapshot(&name).unwrap_or_else(|e| panic!("{n}: {e}"));
    }
    for name in read(&volume).keys() {
        volume.unlink(InodeNo::ROOT, name).expect("removing");
    }
    assert!(volume.damaged_groups().is_empty(), "{:?}", volume.damaged_groups());
    volume.unmount().expect("unmounting");
    assert_eq!(Summary::read(&device).expect("summary").pinned, 0);
}

#[test]
fn what_was_not_yet_written_in_one_snapshot_may_be_content_in_another() {
    let device = made(32 * MIB);
    let volume = open(&device);
    let file = volume.create(InodeNo::ROOT, b"f", &new(FileKind::Regular)).expect("a file").number;
    volume.allocate(file, AllocateMode::Extend, 0, 64 << 10).expect("allocating");
    volume.create_snapshot(b"before").expect("a snapshot");
    volume.write_at(file, 0, &[1; 64 << 10]).expect("writing");
    volume.create_snapshot(b"behind").expect("a snapshot");
    volume.unmount().expect("unmounting");
    rollback(Arc::clone(&device), b"before").expect("rolling back");
    let volume = open(&device);
    assert_same(&read(&volume), &Tree::from([(b"f".to_vec(), vec![0; 64 << 10])]), "the volume");
    volume.write_at(number(&volume, b"f"), 0, &[2; 64 << 10]).expect("writing");
    volume.sync().expect("a sync");
    let behind = volume.open_snapshot(b"behind", 1 << 20).expect("opening it");
    assert_same(&read(&behind), &Tree::from([(b"f".to_vec(), vec![1; 64 << 10])]), "the later snapshot");
    assert_same(&read(&volume), &Tree::from([(b"f".to_vec(), vec![2; 64 << 10])]), "the volume");
    volume.unmount().expect("unmounting");
}

/// One thread writes an increasing number into one file after another. In any snapshot no file has a newer number than
/// the files before it, and none an older one than the next, except for the iteration in progress: in place, copied,
/// and with growing files.
#[test]
fn a_snapshot_is_of_one_moment() {
    for grow in [false, true] {
        let device = made(256 * MIB);
        let write =
            WriteOptions { seed: Some(7), superuser: true, data: DataMode::NewBlocks, ..WriteOptions::default() };
        let options = OpenOptions { write: Some(write), ..OpenOptions::default() };
        let volume = Volume::open(Arc::clone(&device), &options).expect("opening");
        let files: Vec<InodeNo> = (0..64u8)
            .map(|n| volume.create(InodeNo::ROOT, &[b'0' + n], &new(FileKind::Regular)).expect("a file").number)
            .collect();
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1u64.. {
                    for file in &files {
                        let at = if grow { round % 16384 * 8 } else { round % 4 * 4096 };
                        volume.write_at(*file, at, &round.to_le_bytes()).expect("writing");
                    }
                    if stop.load(std::sync::atomic::Ordering::Relaxed) {
                        break;
                    }
                }
            });
            for n in 0..rounds(40) {
                let name = format!("s{n}");
                volume.create_snapshot(name.as_bytes()).expect("a snapshot");
                let snapshot = volume.open_snapshot(name.as_bytes(), 1 << 20).expect("the snapshot");
                let tree = read(&snapshot);
                let numbers = |content: &Vec<u8>| {
                    content
                        .chunks_exact(8)
                        .map(|word| u64::from_le_bytes(word.try_into().expect("8")))
                        .max()
                        .unwrap_or(0)
                };
                let found: Vec<u64> = tree.values().map(numbers).collect();
                let valid = found.is_sorted_by(|a, b| a >= b)
                    && found.first().zip(found.last()).is_none_or(|(a, b)| a - b <= 1);
                if !valid {
                    stop.store(true, std::sync::atomic::Ordering::Relaxed);
                }
                assert!(valid, "grow {grow}, snapshot {n}: {found:?}");
                if n > 3 {
                    volume.delete_snapshot(format!("s{}", n - 3).as_bytes()).expect("deleting");
                }
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    }
}

/// Blocks shared with a snapshot cannot be marked as unwritten: they are replaced by others, so that a write needs no
/// space.
#[test]
fn a_zeroed_range_has_blocks_of_its_own_beside_a_snapshot() {
    let device = made(32 << 20);
    let volume = open(&device);
    let file = volume.create(InodeNo::ROOT, b"f", &new(FileKind::Regular)).expect("a file").number;
    volume.write_at(file, 0, &[7; 1 << 20]).expect("a write");
    volume.truncate(file, 2 << 20).expect("a hole behind it");
    volume.create_snapshot(b"before").expect("a snapshot");
    volume.allocate(file, AllocateMode::Zero, 4096, (2 << 20) - 4096).expect("zeroed");
    let inode = volume.inode(file).expect("the file");
    let mut at = FileBlock(0);
    while at.get() < (2 << 20) / 4096 {
        let run = volume.map(&inode, at).expect("a run");
        assert!(!matches!(run.mapping, Mapping::Hole), "a hole at {at:?}");
        at = run.end();
    }
    let mut bytes = vec![1; 2 << 20];
    assert_eq!(volume.read_at(&inode, 0, &mut bytes).expect("read"), 2 << 20);
    assert!(bytes[..4096] == [7; 4096] && bytes[4096..].iter().all(|byte| *byte == 0));
}
