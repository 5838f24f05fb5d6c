//! Mutants: deliberately broken file systems must be detected, or a successful run proves nothing.
//!
//! Each is this repository's file system over a device with one fault (`device_mutant`), so that it appears as an
//! engine with that fault. Some need a switch in the engine, which is off by default: data blocks and physical blocks
//! reused too early, pinned content overwritten, a generation number reused, leaves of the map not updated, a sync that
//! is one generation short.
//!
//! The effort to detect each is printed: `cargo test --release -p extant-crash --test mutants -- --show-output`.

mod device_mutant;
mod space_maps;

use blockdev::BlockDevice;
use device_mutant::{DeviceMutant, Mutated};
use extant_crash::enumerate::Limits;
use extant_crash::explore::{Explorer, Finding, FindingKind, Options};
use extant_crash::extant_system::Ext;
use extant_crash::generate;
use extant_crash::guarantee::Guarantee;
use extant_crash::model::State;
use extant_crash::op::{Op, Workload};
use extant_crash::system::{Refused, Session, System};
use fs::{FileBlock, Mutant, OpenOptions, Volume};
use rustix::io::Errno;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// The file system over a mutated device.
struct Broken {
    ext: Ext,
    mutant: DeviceMutant,
    journal: Range<u64>,
}

impl Broken {
    fn new(mode: &str, format: &str, mutant: DeviceMutant) -> Self {
        Self::of(Ext::new(mode, Some(format)).expect("a mode"), mutant)
    }

    fn of(mut ext: Ext, mutant: DeviceMutant) -> Self {
        ext.mutant = match mutant {
            DeviceMutant::ReuseAtOnce => Mutant::ReuseAtOnce,
            DeviceMutant::OverwritePinned => Mutant::OverwritePinned,
            DeviceMutant::ReusePhysical => Mutant::Store(store::Mutant::ReusePhysical),
            DeviceMutant::ReuseNumber => Mutant::Store(store::Mutant::ReuseNumber),
            DeviceMutant::SkipLogLeaves => Mutant::Store(store::Mutant::SkipLogLeaves),
            DeviceMutant::ShortSync => Mutant::ShortSync,
            _ => Mutant::Identity,
        };
        let volume = Volume::open(ext.format().expect("a volume"), &OpenOptions::default()).expect("a volume");
        Self { journal: journal(&volume), ext, mutant }
    }
}

/// The range of the journal, in bytes: mkfs allocates it contiguously, with its map blocks in between.
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
        format!("{} with {:?}", self.ext.arguments(), self.mutant)
    }

    fn guarantee(&self) -> &'static Guarantee {
        self.ext.guarantee()
    }

    fn whole(&self) -> Range<u64> {
        self.ext.whole()
    }

    fn block_size(&self) -> u64 {
        self.ext.block_size()
    }

    fn format(&self) -> Result<Arc<dyn BlockDevice>, Refused> {
        let device = self.ext.format()?;
        if self.mutant == DeviceMutant::NoCopy {
            // the superblock of group 1
            device.write((1 + 8192) * 1024, &[0; 1024]).map_err(|e| e.to_string())?;
        }
        Ok(device)
    }

    fn mount(&self, device: Arc<dyn BlockDevice>) -> Result<Box<dyn Session>, Refused> {
        // it shows only in recovery
        let mutant = if self.mutant == DeviceMutant::RecoveryTailFirst { DeviceMutant::None } else { self.mutant };
        let mutated = Arc::new(Mutated::new(device, mutant, self.block_size(), self.journal.clone()));
        let inner = self.ext.mount(mutated.clone())?;
        Ok(match self.mutant {
            DeviceMutant::NoFlushBeforeCleanMark => Box::new(Patient(inner, mutated)),
            DeviceMutant::FsyncForgotten => {
                Box::new(Forgetful(inner, |op| matches!(op, Op::Fsync { .. } | Op::Fdatasync { .. })))
            }
            DeviceMutant::NoTransactions => Box::new(Forgetful(inner, |op| matches!(op, Op::Begin | Op::Commit))),
            _ => inner,
        })
    }

    fn recover(&self, device: Arc<dyn BlockDevice>) -> Result<bool, Refused> {
        if self.mutant == DeviceMutant::NoReplay {
            // s_start of the journal's superblock: nothing to replay
            device.write(self.journal.start + 0x1C, &[0; 4]).map_err(|e| e.to_string())?;
        }
        if self.mutant == DeviceMutant::RecoveryTailFirst {
            let mutated = Mutated::new(device, self.mutant, self.block_size(), self.journal.clone());
            return self.ext.recover(Arc::new(mutated));
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

/// Notifies the device when time passes.
struct Patient(Box<dyn Session>, Arc<Mutated>);

impl Session for Patient {
    fn apply(&mut self, op: &Op) -> Result<u64, Errno> {
        let waits = matches!(op, Op::Wait { .. });
        self.1.waits(waits).map_err(|_| Errno::IO)?;
        let done = self.0.apply(op);
        self.1.waits(false).map_err(|_| Errno::IO)?;
        done
    }

    fn read(&mut self, path: &str) -> Result<Vec<u8>, Errno> {
        self.0.read(path)
    }

    fn unmount(self: Box<Self>) -> Result<(), Refused> {
        self.0.unmount()
    }
}

/// Acknowledges certain operations without running them.
struct Forgetful(Box<dyn Session>, fn(&Op) -> bool);

impl Session for Forgetful {
    fn apply(&mut self, op: &Op) -> Result<u64, Errno> {
        if self.1(op) { Ok(0) } else { self.0.apply(op) }
    }

    fn read(&mut self, path: &str) -> Result<Vec<u8>, Errno> {
        self.0.read(path)
    }

    fn unmount(self: Box<Self>) -> Result<(), Refused> {
        self.0.unmount()
    }
}

/// Workloads in which the fault of each mutant matters, and some general ones.
fn workloads() -> Vec<Workload> {
    let special = [
        "create a | create b; append b 20000 =1; fsync b; truncate b 0; sync; create c; append c 20000 =2; fsync c; \
         create d; fsync d",
        "create f; append f 5000 =1 | append f 9000 =2; fsync f; rename f g; sync; create h; append h 3000 =3; wait 12",
        "mkdir A; create A/f; append A/f 9000 =1 | truncate A/f 0; append A/f 5000 =2; fsync A/f; unlink A/f; mkdir B; \
         sync; wait 2; create B/g; append B/g 300 =3; fsync B/g",
        "create f; append f 9000 =1 | open f; unlink f; sync; create g; append g 2000 =2; fsync g",
        "create f; append f 9000 =1 | unlink f; create g; append g 9000 =2; fsync g",
    ];
    let mut all: Vec<Workload> = special.iter().map(|text| text.parse().expect("a workload")).collect();
    all.extend(generate::one().into_iter().step_by(23));
    all
}

/// The same for the native format, with snapshots and transactions.
fn native_workloads() -> Vec<Workload> {
    let special = [
        "create f; append f 9000 =1 | snapshot create s; write f 0 9000 =2; sync",
        "create f; append f 9000 =1 | snapshot create s; unlink f; sync; create g; append g 9000 =2; fsync g",
        "create f; append f 9000 =1 | append f 9000 =2; begin; rename f g; create f; append f 300 =3; commit; unlink g; sync",
        "create f; append f 9000 =1 | begin; unlink f; mkdir d; sync; create d/g; commit; fsync d/g; create h; sync",
        "create f; append f 9000 =1 | unlink f; create g; append g 9000 =2; fsync g; create h; append h 9000 =3; fsync h",
    ];
    special.iter().map(|text| text.parse().expect("a workload")).collect()
}

/// The first finding, and the number of states explored before it.
fn explore(broken: &Broken, workloads: &[Workload]) -> (Option<Finding>, u64) {
    let nested_every = u64::from(broken.mutant == DeviceMutant::RecoveryTailFirst);
    let again_every = u64::from(broken.mutant == DeviceMutant::ReuseNumber);
    let mut options = Options { work_on_every: 0, nested_every, deeper_every: 0, again_every, ..Options::default() };
    if broken.ext.inodes > 96 {
        options.limits = Limits { every_subset: 4, most: 20, ..options.limits };
    }
    let mut explorer = Explorer::new(broken, &options);
    let found = workloads.iter().find_map(|workload| explorer.explore(workload));
    (found, explorer.counts.distinct)
}

#[track_caller]
fn caught(mode: &str, format: &str, mutant: DeviceMutant) {
    caught_in(&Broken::new(mode, format, mutant), &workloads());
}

#[track_caller]
fn caught_in(broken: &Broken, workloads: &[Workload]) {
    let begun = Instant::now();
    let (found, states) = explore(broken, workloads);
    let seconds = begun.elapsed().as_secs_f64();
    let found = found.unwrap_or_else(|| panic!("{} is not detected in {states} states", broken.arguments()));
    // results of operations do not depend on the device
    assert!(!matches!(found.kind, FindingKind::Answer | FindingKind::Panic), "{found}");
    println!("{}: detected after {states} states, {seconds:.2} s: {found}", broken.arguments());
}

#[test]
fn a_correct_device_passes() {
    for (mode, format) in [("none", "ext2"), ("dirty-bit", "ext2"), ("journal", "ext3")] {
        let (found, states) = explore(&Broken::new(mode, format, DeviceMutant::None), &workloads());
        assert!(found.is_none(), "{}", found.expect("just looked"));
        assert!(states > 500, "{mode}: {states}");
    }
}

#[test]
fn the_native_format_on_a_correct_device_passes() {
    let (found, states) = explore(&Broken::new("snapshot", "extant", DeviceMutant::None), &native_workloads());
    assert!(found.is_none(), "{}", found.expect("just looked"));
    assert!(states > 100, "{states}");
}

#[test]
fn faults_under_the_native_format() {
    let all = [
        DeviceMutant::NoFlush,
        DeviceMutant::LateFlush,
        DeviceMutant::FsyncForgotten,
        DeviceMutant::SuperblockFirst,
        DeviceMutant::OneSuperblock,
        DeviceMutant::OverwritePinned,
        DeviceMutant::NoTransactions,
        DeviceMutant::ReuseAtOnce,
        DeviceMutant::LostWrite,
        DeviceMutant::MisplacedWrite,
    ];
    for mutant in all {
        caught_in(&Broken::new("snapshot", "extant", mutant), &native_workloads());
    }
}

#[test]
fn faults_of_the_native_engine() {
    let every_flush =
        [DeviceMutant::NoFlushBeforeSuperblock, DeviceMutant::NoFlushAfterSuperblock, DeviceMutant::ShortSync];
    for mutant in every_flush {
        caught_in(&Broken::new("snapshot", "extant", mutant), &native_workloads());
    }
    let parse = |text: &str| text.parse::<Workload>().expect("a workload");
    // two consecutive crashes: the second leaves what the first superblock lacked
    let short = parse("create f; append f 300 =1 | append f 300 =2; fsync f");
    caught_in(&Broken::new("snapshot", "extant", DeviceMutant::ReuseNumber), std::slice::from_ref(&short));
    let twice = Options { again_every: 1, ..Options::default() };
    let correct = Ext::new("snapshot", None).expect("a mode");
    assert_eq!(Explorer::new(&correct, &twice).explore(&short), None);
    caught_in(&Broken::new("snapshot", "extant", DeviceMutant::ReusePhysical), &native_workloads());
}

#[test]
fn leaves_of_the_map_that_stay_old() {
    // a leaf has the entries of about 120 blocks: the log entry belongs to one leaf, the later writes to another
    let setup: Vec<_> = (0..150).map(|n| format!("create f{n}; setxattr f{n} user.a 3000 =1")).collect();
    let many: Vec<_> = (0..85).map(|n| format!("setxattr f{n} user.a 3000 =2")).collect();
    let text = format!("{} | setxattr f149 user.a 3000 =3; fsync f149; {}; sync", setup.join("; "), many.join("; "));
    let workload: Workload = text.parse().expect("a workload");
    for mutant in [DeviceMutant::None, DeviceMutant::SkipLogLeaves] {
        let mut ext = Ext::new("snapshot", None).expect("a mode");
        ext.inodes = 256;
        let broken = Broken::of(ext, mutant);
        let (found, states) = explore(&broken, std::slice::from_ref(&workload));
        assert_eq!(found.is_some(), mutant == DeviceMutant::SkipLogLeaves, "{mutant:?}: {states} states, {found:?}");
    }
}

#[test]
fn a_mark_of_use_that_is_not_flushed() {
    caught("dirty-bit", "ext2", DeviceMutant::NoFlushAfterDirtyMark);
}

#[test]
fn a_clean_mark_that_no_flush_precedes() {
    caught("dirty-bit", "ext2", DeviceMutant::NoFlushBeforeCleanMark);
}

#[test]
fn missing_flushes() {
    for (mode, format) in [("none", "ext2"), ("dirty-bit", "ext2"), ("journal", "ext4")] {
        caught(mode, format, DeviceMutant::NoFlush);
    }
}

#[test]
fn late_flushes() {
    for (mode, format) in [("none", "ext2"), ("dirty-bit", "ext2"), ("journal", "ext4")] {
        caught(mode, format, DeviceMutant::LateFlush);
    }
}

#[test]
fn fsync_that_does_nothing() {
    caught("none", "ext2", DeviceMutant::FsyncForgotten);
    caught("journal", "ext4", DeviceMutant::FsyncForgotten);
}

#[test]
fn a_commit_before_what_it_commits() {
    caught("journal", "ext3", DeviceMutant::CommitBeforeBlocks);
}

#[test]
fn data_after_the_commit() {
    caught("journal", "ext4", DeviceMutant::HomeAfterCommit);
}

#[test]
fn home_places_before_the_journal() {
    caught("journal", "ext4", DeviceMutant::HomeBeforeJournal);
}

#[test]
fn a_journal_that_forgets_too_early() {
    caught("journal", "ext4", DeviceMutant::TailBeforeHome);
}

#[test]
fn a_lost_revoke() {
    let mut small = Ext::new("journal", Some("ext3")).expect("a mode");
    small.len = 3 << 20;
    let broken = Broken::of(small.clone(), DeviceMutant::LostRevoke);
    // a map block is freed, and since no other space is free, data replaces it while it is still in the journal
    let volume = Volume::open(broken.format().expect("a volume"), &OpenOptions::default()).expect("a volume");
    let left = volume.statfs().blocks_available - 46;
    let filler = left - left.div_ceil(256) - 1;
    // the new files are long enough for the block to become a data block, not another map block
    let text = format!(
        "create x; append x {} =1 | create b; append b 40960 =2; fsync b; truncate b 0; sync; create c; append c 5120 =3; \
         create d; append d 12288 =4; fsync d; fsync c",
        filler * 1024
    );
    caught_in(&broken, &[text.parse().expect("a workload")]);
    let correct = Broken::of(small, DeviceMutant::None);
    let (found, _) = explore(&correct, &[text.parse().expect("a workload")]);
    assert_eq!(found, None);
}

#[test]
fn a_replay_that_is_left_out() {
    caught("journal", "ext3", DeviceMutant::NoReplay);
}

#[test]
fn half_a_superblock() {
    caught("journal", "ext4", DeviceMutant::HalfSuperblock);
}

#[test]
fn no_mark_of_use() {
    caught("dirty-bit", "ext2", DeviceMutant::NoDirtyMark);
}

#[test]
fn a_clean_mark_too_early() {
    caught("dirty-bit", "ext2", DeviceMutant::CleanMarkFirst);
}

#[test]
fn a_missing_flush_before_or_after_a_commit() {
    caught("journal", "ext3", DeviceMutant::NoFlushBeforeCommit);
    caught("journal", "ext4", DeviceMutant::NoFlushAfterCommit);
}

#[test]
fn files_without_a_name_forgotten() {
    caught("journal", "ext3", DeviceMutant::NoOrphans);
}

#[test]
fn a_superblock_without_a_copy() {
    caught("dirty-bit", "ext4", DeviceMutant::NoCopy);
}

#[test]
fn a_freed_block_reused_too_early() {
    for (mode, format) in [("journal", "ext4"), ("dirty-bit", "ext2")] {
        caught(mode, format, DeviceMutant::ReuseAtOnce);
    }
}

#[test]
fn a_recovery_that_forgets_too_early() {
    caught("journal", "ext4", DeviceMutant::RecoveryTailFirst);
}

#[test]
fn lost_and_misplaced_writes() {
    caught("none", "ext2", DeviceMutant::LostWrite);
    caught("journal", "ext4", DeviceMutant::LostWrite);
    caught("journal", "ext4", DeviceMutant::MisplacedWrite);
}
