//! Snapshots of native volumes beside a model: each reads as the tree was at its moment, whatever happens to the volume, and
//! what they held comes back to the last block.

use blockdev::{BlockDevice, FileDevice, MemoryDevice, Trace};
use extant_fs::mkfs::{Kind, MkfsOptions, make};
use extant_fs::{FileKind, InodeNo, NewFile, OpenOptions, Timestamp, Volume, WriteOptions};
use std::collections::BTreeMap;
use std::sync::Arc;
use store::native::Facts;
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

/// The least memory: bitmaps are dropped and read again.
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

/// A volume and what it should hold.
struct World {
    device: Arc<dyn BlockDevice>,
    volume: Volume,
    tree: Tree,
    kept: BTreeMap<Vec<u8>, Tree>,
    rng: Rng,
}

impl World {
    fn new(device: Arc<dyn BlockDevice>, rng: Rng) -> Self {
        let volume = open(&device);
        Self { device, volume, tree: Tree::new(), kept: BTreeMap::new(), rng }
    }

    fn some_file(&mut self) -> Option<Vec<u8>> {
        let names: Vec<_> = self.tree.keys().cloned().collect();
        (!names.is_empty()).then(|| self.rng.pick(&names).clone())
    }

    fn step(&mut self) {
        match self.rng.below(20) {
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
            16..18 if self.kept.len() < 5 => {
                let name = format!("s{}", self.rng.next_u64()).into_bytes();
                let info = self.volume.create_snapshot(&name).expect("a snapshot");
                assert_eq!(info.name, name);
                self.kept.insert(name, self.tree.clone());
            }
            18 => {
                let names: Vec<_> = self.kept.keys().cloned().collect();
                if !names.is_empty() {
                    let name = self.rng.pick(&names).clone();
                    let alone = self.volume.snapshot_space(&name).expect("its space");
                    assert!(alone > 0, "its root at least");
                    self.volume.delete_snapshot(&name).expect("deleting");
                    self.kept.remove(&name);
                }
            }
            _ => self.look(),
        }
    }

    fn remount(&mut self) {
        self.volume.unmount().expect("unmounting");
        self.volume = open(&self.device);
    }

    /// The volume and its snapshots are as they should be.
    fn look(&self) {
        assert_same(&read(&self.volume), &self.tree, "the volume");
        let names: Vec<_> = self.volume.snapshots().expect("the list").into_iter().map(|info| info.name).collect();
        assert_eq!(names.len(), self.kept.len());
        for name in names {
            let snapshot = self.volume.open_snapshot(&name, 64 << 10).expect("opening a snapshot");
            assert_same(&read(&snapshot), &self.kept[&name], &String::from_utf8_lossy(&name));
        }
        assert!(self.volume.damaged_groups().is_empty(), "{:?}", self.volume.damaged_groups());
    }

    fn empty(&mut self) {
        for name in std::mem::take(&mut self.tree).into_keys() {
            self.volume.unlink(InodeNo::ROOT, &name).expect("removing");
        }
        while let Some((name, _)) = self.kept.pop_first() {
            self.volume.delete_snapshot(&name).expect("deleting");
        }
        self.volume.sync().expect("a sync");
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
        let facts = Facts::read(&world.device).expect("facts");
        assert_eq!((facts.held, facts.snapshots.len(), facts.superblock.snapshots), (0, 0, 0));
    }
}

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
        volume.sync().expect("a sync");
        let before = device.snapshot().writes.bytes;
        volume.create_snapshot(b"monday").expect("a snapshot");
        costs.push((device.snapshot().writes.bytes - before) / 4096);
        volume.unmount().expect("unmounting");
    }
    // the list, the place table, the nodes above them, two superblocks; one level more on the large volume
    assert!(costs[1] <= 24 && costs[1] - costs[0] <= 6, "{costs:?}");
}
