//! Change records: an engine that uses them receives what the file system did.

use crate::engine::NewEngine;
use crate::open;
use crate::writer::Writer;
use crate::{
    Consistency, FileBlock, FileKind, FsBlock, GroupNo, InodeNo, Mapping, NewFile, OpenOptions, Volume, WriteOptions,
    XattrMode,
};
use blockdev::{BlockDevice, FileDevice};
use format::inode::RawInode;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use store::engine::{DirtyBit, Idle, Limits};
use store::{ChangeRecord, ClosedGeneration, Engine, Part, Plan, StateSource};
use testkit::{Image, need};

/// The dirty bit, and the records it received.
struct Recording {
    engine: DirtyBit,
    records: Arc<Mutex<Vec<ChangeRecord>>>,
}

impl Engine for Recording {
    fn limits(&self) -> Limits {
        Limits { wants_change_records: true, ..self.engine.limits() }
    }

    fn open(&mut self, superblock: &dyn StateSource) -> store::Result<Plan> {
        self.engine.open(superblock)
    }

    fn plan(&mut self, mut closed: ClosedGeneration, superblock: &dyn StateSource) -> store::Result<Plan> {
        self.records.lock().append(&mut closed.change_records);
        self.engine.plan(closed, superblock)
    }

    fn idle(&mut self, quiet: Duration, dirty: bool, superblock: &dyn StateSource) -> Idle {
        self.engine.idle(quiet, dirty, superblock)
    }

    fn close(&mut self, superblock: &dyn StateSource) -> store::Result<Plan> {
        self.engine.close(superblock)
    }
}

fn open(image: &Image) -> (Volume, Arc<Mutex<Vec<ChangeRecord>>>) {
    let writable = blockdev::OpenOptions { write: true, ..blockdev::OpenOptions::default() };
    let device: Arc<dyn BlockDevice> = Arc::new(FileDevice::open(image.path(), writable).expect("an image"));
    let (mut base, _) = open::open(device, &OpenOptions::default()).expect("a volume");
    let records = Arc::default();
    let engine = DirtyBit::new(base.sb.geometry.block_size, 4096);
    let engine = NewEngine::plain(Recording { engine, records: Arc::clone(&records) });
    base.start_with(engine, Consistency::DirtyBit, WriteOptions::default(), 1 << 20).expect("an engine");
    let mut volume = Volume::over(base);
    volume.writer = Some(Writer::new(1 << 20, None));
    (volume, records)
}

/// The state of an inode according to the records.
#[derive(Default)]
struct Known {
    content: BTreeMap<u64, u64>,
    others: BTreeSet<u64>,
    slot: Option<Box<[u8]>>,
}

#[test]
fn change_records_say_what_changed() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    for features in [&["-t", "ext2"][..], &["-t", "ext4", "-O", "^has_journal,^metadata_csum"]] {
        let image = Image::mke2fs(&[features, &["-b", "1024", "-I", "128"]].concat(), 20 << 20).build();
        let (volume, records) = open(&image);
        let free = volume.group(GroupNo(0)).expect("group 0").free_inodes;
        let file = NewFile { kind: FileKind::Regular, mode: 0o644, umask: 0, uid: 0, gid: 0, device: (0, 0) };
        let make = |name: &[u8]| volume.create(InodeNo::ROOT, name, &file).expect("a file").number;
        let (a, b, gone) = (make(b"a"), make(b"b"), make(b"gone"));
        for n in 0..90u64 {
            volume.write_at(a, n * 9000, &[1; 5000]).expect("content");
            volume.write_at(gone, n * 1024, &[2; 1024]).expect("content");
        }
        volume.link(b, InodeNo::ROOT, b"linked").expect("a link");
        volume.set_xattr(b, b"user.x", &[3; 300], XattrMode::Any).expect("an attribute");
        volume.sync().expect("a sync");
        volume.truncate(a, 300_000).expect("shorter");
        volume.unlink(InodeNo::ROOT, b"gone").expect("one file less");
        volume.sync().expect("a sync");

        let mut known: BTreeMap<u32, Known> = BTreeMap::new();
        let mut groups = BTreeMap::new();
        for record in records.lock().drain(..) {
            match record {
                ChangeRecord::Inode { number, before, after } => {
                    let slot = &mut known.entry(number.get()).or_default().slot;
                    assert!(slot.as_ref().is_none_or(|slot| *slot == before), "inode {}", number.get());
                    *slot = Some(after);
                }
                ChangeRecord::Run { owner, part, first, count, allocated } => {
                    let of = known.entry(owner.get()).or_default();
                    for n in 0..count {
                        let block = first.get() + n;
                        let fits = match (part, allocated) {
                            (Part::Content(at), true) => of.content.insert(at + n, block).is_none(),
                            (Part::Content(at), false) => of.content.remove(&(at + n)) == Some(block),
                            (_, true) => of.others.insert(block),
                            (_, false) => of.others.remove(&block),
                        };
                        assert!(fits, "{part:?}, block {block}, allocated {allocated}");
                    }
                }
                ChangeRecord::Number { .. } | ChangeRecord::Whole { .. } => {}
                ChangeRecord::Group { number, free_inodes, .. } => drop(groups.entry(number).or_insert(free_inodes)),
            }
        }
        assert_eq!(groups.get(&GroupNo(0)), Some(&free), "as before");
        for (number, places) in [(a, true), (b, false)] {
            let inode = volume.inode(number).expect("the file");
            let of = &known[&number.get()];
            let raw = RawInode::from_slot(of.slot.as_deref().expect("its slot")).expect("its slot");
            assert_eq!(raw.bytes(), inode.raw().bytes());
            assert_eq!(u64::from(raw.disk.i_blocks_lo.get()), 2 * (of.content.len() + of.others.len()) as u64);
            for (at, block) in &of.content {
                let mapping = volume.map(&inode, FileBlock(*at)).expect("the map").mapping;
                assert!(matches!(mapping, Mapping::Data(first) if first == FsBlock(*block)));
            }
            assert_eq!(!of.content.is_empty(), places);
            assert!(!of.others.is_empty(), "its map, or its attributes");
        }
        let last = &known[&gone.get()];
        assert!(last.content.is_empty() && last.others.is_empty(), "what was freed");
        let slot = RawInode::from_slot(last.slot.as_deref().expect("its slot")).expect("its slot");
        assert_eq!(slot.disk.i_links_count.get(), 0);
    }
}
