//! Canaries: file systems that are broken on purpose must be caught, or a green run proves nothing.
//!
//! Each is the file system of this repository over a device that does one thing wrong (`bend`), so that it looks like an
//! engine with that fault; none needs a line of the engine to be changed.

mod bend;

use bend::{Bend, Bent};
use blockdev::BlockDevice;
use extant_crash::explore::{Explorer, Finding, Kind as Wrong, Options};
use extant_crash::ext::Ext;
use extant_crash::generate;
use extant_crash::model::State;
use extant_crash::op::{Op, Workload};
use extant_crash::promise::Promise;
use extant_crash::system::{Refused, Session, System};
use fs::mkfs::Kind;
use fs::{FileBlock, OpenOptions, Volume};
use rustix::io::Errno;
use std::ops::Range;
use std::sync::Arc;

/// The file system over a bent device.
struct Broken {
    ext: Ext,
    bend: Bend,
    journal: Range<u64>,
}

impl Broken {
    fn new(mode: &str, kind: Kind, bend: Bend) -> Self {
        Self::of(Ext::new(mode, kind).expect("a mode"), bend)
    }

    fn of(ext: Ext, bend: Bend) -> Self {
        let volume = Volume::open(ext.format().expect("a volume"), &OpenOptions::default()).expect("a volume");
        Self { journal: journal(&volume), ext, bend }
    }
}

/// Where the journal lies, in bytes: mkfs makes it in one piece, with the blocks of its map in between.
fn journal(volume: &Volume) -> Range<u64> {
    let Some(number) = volume.superblock().journal_inode() else { return 0..0 };
    let inode = volume.inode(number).expect("the journal's inode");
    let place = |block| volume.map(&inode, FileBlock(block)).expect("the journal's map").physical();
    let (first, last) = (place(0).expect("its first block"), place(inode.size / 1024 - 1).expect("its last block"));
    let range = first.get() * 1024..(last.get() + 1) * 1024;
    assert!(range.end - range.start < inode.size + inode.size / 100, "the journal is in one piece");
    range
}

impl System for Broken {
    fn arguments(&self) -> String {
        format!("{} with {:?}", self.ext.arguments(), self.bend)
    }

    fn promise(&self) -> &'static Promise {
        self.ext.promise()
    }

    fn whole(&self) -> Range<u64> {
        self.ext.whole()
    }

    fn block_size(&self) -> u64 {
        self.ext.block_size()
    }

    fn format(&self) -> Result<Arc<dyn BlockDevice>, Refused> {
        self.ext.format()
    }

    fn mount(&self, device: Arc<dyn BlockDevice>) -> Result<Box<dyn Session>, Refused> {
        let inner = self.ext.mount(Arc::new(Bent::new(device, self.bend, self.journal.clone())))?;
        Ok(if self.bend == Bend::FsyncForgotten { Box::new(Forgetful(inner)) } else { inner })
    }

    fn recover(&self, device: Arc<dyn BlockDevice>) -> Result<bool, Refused> {
        if self.bend == Bend::NoReplay {
            // s_start of the journal's superblock: nothing to replay
            device.write(self.journal.start + 0x1C, &[0; 4]).map_err(|e| e.to_string())?;
        }
        self.ext.recover(device)
    }

    fn problems(&self, device: &dyn BlockDevice) -> Result<Vec<String>, Refused> {
        self.ext.problems(device)
    }

    fn observe(&self, device: Arc<dyn BlockDevice>) -> Result<State, Refused> {
        self.ext.observe(device)
    }
}

/// Says that everything is durable, and does nothing for it.
struct Forgetful(Box<dyn Session>);

impl Session for Forgetful {
    fn apply(&mut self, op: &Op) -> Result<(), Errno> {
        if matches!(op, Op::Fsync { .. } | Op::Fdatasync { .. }) { Ok(()) } else { self.0.apply(op) }
    }

    fn unmount(self: Box<Self>) -> Result<(), Refused> {
        self.0.unmount()
    }
}

/// Workloads in which what each canary breaks matters; and some of those that everybody runs.
fn workloads() -> Vec<Workload> {
    let special = [
        "create keep | create b; append b 20000 =1; fsync b; truncate b 0; sync; create c; append c 20000 =2; fsync c; \
         create d; fsync d",
        "create f; append f 5000 =1 | append f 9000 =2; fsync f; rename f g; sync; create h; append h 3000 =3; wait 12",
        "mkdir A; create A/f; append A/f 9000 =1 | truncate A/f 0; append A/f 5000 =2; fsync A/f; unlink A/f; mkdir B; \
         sync; wait 2; create B/g; append B/g 300 =3; fsync B/g",
    ];
    let mut all: Vec<Workload> = special.iter().map(|text| text.parse().expect("a workload")).collect();
    all.extend(generate::one().into_iter().step_by(23));
    all
}

/// The first finding, and what was explored until then.
fn explore(broken: &Broken, workloads: &[Workload]) -> (Option<Finding>, u64) {
    let options = Options { work_on_every: 0, nested_every: 0, ..Options::default() };
    let mut explorer = Explorer::new(broken, &options);
    let found = workloads.iter().find_map(|workload| explorer.explore(workload));
    (found, explorer.counts.distinct)
}

#[track_caller]
fn caught(mode: &str, kind: Kind, bend: Bend) {
    caught_in(&Broken::new(mode, kind, bend), &workloads());
}

#[track_caller]
fn caught_in(broken: &Broken, workloads: &[Workload]) {
    let (found, states) = explore(broken, workloads);
    let found = found.unwrap_or_else(|| panic!("{} is not caught in {states} states", broken.arguments()));
    // what an operation answers does not depend on the device
    assert!(!matches!(found.kind, Wrong::Answer | Wrong::Panic), "{found}");
    println!("caught after {states} states: {found}");
}

#[test]
fn a_straight_device_passes() {
    for (mode, kind) in [("none", Kind::Ext2), ("dirty-bit", Kind::Ext2), ("journal", Kind::Ext3)] {
        let (found, states) = explore(&Broken::new(mode, kind, Bend::Straight), &workloads());
        assert!(found.is_none(), "{}", found.expect("just looked"));
        assert!(states > 500, "{mode}: {states}");
    }
}

#[test]
fn missing_flushes() {
    for (mode, kind) in [("none", Kind::Ext2), ("dirty-bit", Kind::Ext2), ("journal", Kind::Ext4)] {
        caught(mode, kind, Bend::NoFlush);
    }
}

#[test]
fn late_flushes() {
    for (mode, kind) in [("none", Kind::Ext2), ("dirty-bit", Kind::Ext2), ("journal", Kind::Ext4)] {
        caught(mode, kind, Bend::LateFlush);
    }
}

#[test]
fn fsync_that_does_nothing() {
    caught("none", Kind::Ext2, Bend::FsyncForgotten);
    caught("journal", Kind::Ext4, Bend::FsyncForgotten);
}

#[test]
fn a_commit_before_what_it_commits() {
    caught("journal", Kind::Ext3, Bend::CommitBeforeBlocks);
}

#[test]
fn data_after_the_commit() {
    caught("journal", Kind::Ext4, Bend::HomeAfterCommit);
}

#[test]
fn home_places_before_the_journal() {
    caught("journal", Kind::Ext4, Bend::HomeBeforeJournal);
}

#[test]
fn a_journal_that_forgets_too_early() {
    caught("journal", Kind::Ext4, Bend::TailBeforeHome);
}

#[test]
fn a_lost_revoke() {
    let mut small = Ext::new("journal", Kind::Ext3).expect("a mode");
    small.len = 3 << 20;
    let broken = Broken::of(small.clone(), Bend::LostRevoke);
    // the block of a map is freed, and as nothing else is free, data takes its place while the journal still has it
    let volume = Volume::open(broken.format().expect("a volume"), &OpenOptions::default()).expect("a volume");
    let left = volume.statfs().blocks_available - 46;
    let filler = left - left.div_ceil(256) - 1;
    // the new files are so long that the block becomes one of data, not of another map
    let text = format!(
        "create x; append x {} =1 | create b; append b 40960 =2; fsync b; truncate b 0; sync; create c; append c 5120 =3; \
         create d; append d 12288 =4; fsync d; fsync c",
        filler * 1024
    );
    caught_in(&broken, &[text.parse().expect("a workload")]);
    let straight = Broken::of(small, Bend::Straight);
    let (found, _) = explore(&straight, &[text.parse().expect("a workload")]);
    assert_eq!(found, None);
}

#[test]
fn a_replay_that_is_left_out() {
    caught("journal", Kind::Ext3, Bend::NoReplay);
}

#[test]
fn half_a_superblock() {
    caught("journal", Kind::Ext4, Bend::HalfSuperblock);
}

#[test]
fn no_mark_of_use() {
    caught("dirty-bit", Kind::Ext2, Bend::NoDirtyMark);
}

#[test]
fn a_clean_mark_too_early() {
    caught("dirty-bit", Kind::Ext2, Bend::CleanMarkFirst);
}

#[test]
fn lost_and_misplaced_writes() {
    caught("none", Kind::Ext2, Bend::LostWrite);
    caught("journal", Kind::Ext4, Bend::LostWrite);
    caught("journal", Kind::Ext4, Bend::MisplacedWrite);
}
