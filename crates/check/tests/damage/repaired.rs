//! Repair of damaged volumes: it terminates, a second run is clean, and e2fsck finds nothing either.

use crate::{Volume, volumes};
use blockdev::{BlockDevice, MemoryDevice};
use extant_check::report::{Report, exit};
use extant_check::table::Code;
use extant_check::{Options, Refusal, Repair, Replay, check, repair};
use format::jbd2::DiskSuperblock;
use format::superblock;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use testkit::oracle::e2fsck;
use testkit::tools::run;
use testkit::{Case, Image, Rng, cases, need, repair_checksums};
use zerocopy::{FromBytes, IntoBytes};

/// The time of all repairs, so that two of the same volume have the same result.
pub(crate) const NOW: u64 = 1_760_000_000;

/// Whether `-p` changed nothing except that it set the error flag of a volume marked clean.
pub(crate) fn only_marked(before: &[u8], after: &[u8]) -> bool {
    const STATE: usize = 1024 + 0x3A;
    const CHECKSUM: usize = 1024 + 1020;
    let mut marked = before.to_vec();
    if marked[STATE] & 3 == 1 {
        marked[STATE] |= 2;
        marked[CHECKSUM..CHECKSUM + 4].copy_from_slice(&after[CHECKSUM..CHECKSUM + 4]);
    }
    after == marked
}

pub(crate) fn options(mode: Repair) -> Options {
    Options { threads: 2, repair: mode, now: Some(NOW), ..Options::default() }
}

/// The whole content of a device.
pub(crate) fn contents(device: &dyn BlockDevice) -> Vec<u8> {
    let mut bytes = vec![0; device.geometry().len as usize];
    device.read(0, &mut bytes).expect("memory can be read");
    bytes
}

/// Repairs these bytes.
pub(crate) fn fix(bytes: &mut Vec<u8>, mode: Repair) -> Result<Report, Refusal> {
    let device = Arc::new(MemoryDevice::from_vec(std::mem::take(bytes)));
    let as_device: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(&device);
    let report = repair("volume", &as_device, &options(mode), &(), None);
    drop(as_device);
    *bytes = Arc::into_inner(device).expect("a repair that ended releases the device").into_vec();
    report
}

/// Corrupts a volume in a few places.
pub(crate) fn corrupt(volume: &Volume, bytes: &mut Vec<u8>, rng: &mut Rng) -> String {
    let faults = 1 + rng.magnitude(20);
    let said: Vec<_> = (0..faults).map(|_| volume.damager.any(bytes, rng)).collect();
    // a file ends at its last block
    bytes.resize(volume.bytes.len(), 0);
    if rng.chance(70) {
        repair_checksums(bytes);
    }
    said.join("; ")
}

/// The error in a repair.
pub(crate) enum Wrong {
    /// It reports that errors remain, where e2fsck repairs them.
    Left(String),
    /// It fails, or reports a damaged volume as clean.
    Damaged(String),
}

impl Wrong {
    pub(crate) fn text(&self) -> &str {
        match self {
            Self::Left(text) | Self::Damaged(text) => text,
        }
    }
}

/// The error in the repair of a volume; `None` where there is none.
pub(crate) fn wrong_with(bytes: &[u8], scratch: &Image) -> Option<Wrong> {
    let mut repaired = bytes.to_vec();
    let outcome = match catch_unwind(AssertUnwindSafe(|| fix(&mut repaired, Repair::All))) {
        Err(_) => return Some(Wrong::Damaged("the repair panicked".to_owned())),
        Ok(outcome) => outcome,
    };
    let left = match &outcome {
        Err(refusal) => Some(refusal.sentence.clone()),
        Ok(report) if report.exit & !exit::REPAIRED != 0 => {
            let left = report.problems.iter().filter(|p| !p.fixed).take(3).map(|p| p.text.clone());
            Some(left.collect::<Vec<_>>().join(" "))
        }
        Ok(_) => None,
    };
    if let Some(left) = left {
        // not a failure where e2fsck does not finish either
        scratch.set_bytes(bytes);
        run("e2fsck", &["-fy".as_ref(), scratch.path().as_os_str()]);
        // nor where it completes with none of the files that the refusal names
        if left.contains("would be lost") && files(&scratch.bytes()) <= OWN_INODES {
            return None;
        }
        return e2fsck(scratch.path()).clean.then(|| Wrong::Left(format!("left: {left}")));
    }
    let device = MemoryDevice::from_vec(repaired.clone());
    let found = match check("volume", &device, &options(Repair::No), &()) {
        Ok(report) if report.clean => None,
        Ok(report) => Some(format!("the second run finds: {:?}", report.problems.first().map(|p| &p.text))),
        Err(refusal) => Some(format!("the second run is refused: {refusal}")),
    };
    if let Some(found) = found {
        return Some(Wrong::Damaged(found));
    }
    scratch.set_bytes(&repaired);
    let verdict = e2fsck(scratch.path());
    if verdict.clean || verdict.exit.is_none() {
        return None;
    }
    let text = verdict.text.lines().filter(|l| !l.is_empty() && !l.starts_with("Pass"));
    Some(Wrong::Damaged(format!("e2fsck ({:?}): {:?}", verdict.exit, text.take(4).collect::<Vec<_>>())))
}

/// The inodes that mke2fs itself creates.
const OWN_INODES: u32 = 11;

/// The number of inodes in use by the superblock's count.
fn files(bytes: &[u8]) -> u32 {
    let disk = superblock::DiskSuperblock::from_slice(&bytes[1024..2048]).expect("a superblock");
    disk.s_inodes_count.get() - disk.s_free_inodes_count.get()
}

/// Regression: an indirect block in the inode table, whose numbers led to the superblock; clusters that one file maps
/// twice; a quota inode without the feature; a journal device number without the feature.
const FOUND: [u64; 4] = [0xE89B_DDCC_5CD3_B7B1, 0xEE68_385C_B36D_EA89, 0x76C2_E188_1265_814D, 0x732C_7DBA_17D4_8A59];

#[test]
fn damaged_volumes_are_repaired_and_e2fsck_agrees() {
    if !need(&["mke2fs", "e2fsck", "e2image"]) {
        return;
    }
    let volumes = volumes();
    let scratch = Image::from_bytes(&[]);
    let mut findings = Vec::new();
    for case in cases("repair", 60).chain(FOUND.map(|seed| Case { seed })) {
        let mut rng = case.rng();
        let volume = rng.pick(&volumes);
        let mut bytes = volume.bytes.clone();
        let said = corrupt(volume, &mut bytes, &mut rng);
        if let Some(wrong) = wrong_with(&bytes, &scratch) {
            let (seed, name) = (case.seed, &volume.name);
            findings.push(format!("EXTANT_SEED={seed:#x} mke2fs {name}: {said}\n  {}", wrong.text()));
        }
    }
    assert!(findings.is_empty(), "{} not repaired:\n{}", findings.len(), findings.join("\n"));
}

#[test]
fn an_intact_volume_is_only_marked() {
    if !need(&["mke2fs", "e2fsck", "e2image"]) {
        return;
    }
    for volume in volumes() {
        for mode in [Repair::Safe, Repair::All] {
            let mut bytes = volume.bytes.clone();
            let report = fix(&mut bytes, mode).expect("a volume");
            assert_eq!((report.exit, report.repaired, report.errors), (exit::CLEAN, false, 0), "{}", volume.name);
            let changed = (0..bytes.len()).filter(|n| bytes[*n] != volume.bytes[*n]);
            let outside: BTreeSet<_> = changed.filter(|n| !(1024..2048).contains(n)).map(|n| n / 4096).collect();
            // the redo log of the superblock's two sectors, in free blocks
            assert!(outside.len() <= 2, "{}: changed at {outside:?}", volume.name);
        }
    }
}

#[test]
fn what_a_person_has_to_decide_is_left_alone() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let image = Image::mke2fs(&["-t", "ext4", "-b", "1024", "-O", "^has_journal"], 8 << 20)
        .debugfs(&["mkdir a", "mkdir a/b", "unlink a/b"])
        .build();
    let before = image.bytes();
    let mut bytes = before.clone();
    let report = fix(&mut bytes, Repair::Safe).expect("a volume");
    assert_eq!((report.exit, report.repaired), (exit::LEFT, false));
    // only the flag that makes the next run check the volume
    assert!(bytes != before && only_marked(&before, &bytes), "only the mark is written");
    let marked = bytes.clone();
    image.set_bytes(&bytes);
    let theirs = run("e2fsck", &[std::ffi::OsStr::new("-p"), image.path().as_os_str()]);
    assert!(theirs.text().contains("contains a file system with errors, check forced"), "{}", theirs.text());
    // and it is written once
    let again = fix(&mut bytes, Repair::Safe).expect("a volume");
    assert_eq!((again.exit, bytes == marked), (exit::LEFT, true));
    let report = fix(&mut bytes, Repair::All).expect("a volume");
    assert_eq!((report.exit, report.repaired), (exit::REPAIRED, true));
    image.set_bytes(&bytes);
    assert!(e2fsck(image.path()).clean);
    // and safe repairs are made without asking
    image.debugfs(&["set_inode_field a links_count 9", "setb 4000 20"]);
    let mut bytes = image.bytes();
    let report = fix(&mut bytes, Repair::Safe).expect("a volume");
    assert_eq!((report.exit, report.repaired), (exit::REPAIRED, true), "{:?}", report.problems);
    image.set_bytes(&bytes);
    assert!(e2fsck(image.path()).clean);
}

/// A volume whose journal contains three transactions of one free block each: 7001 to 7003, filled with 0xA1 to 0xA3.
pub(crate) fn three_transactions() -> Image {
    let image = Image::mke2fs(&["-t", "ext4", "-b", "1024", "-J", "size=1"], 8 << 20).build();
    add_three_transactions(&image);
    image
}

/// Writes the transactions of [`three_transactions`] into the journal of a volume.
pub(crate) fn add_three_transactions(image: &Image) {
    let folder = tempfile::tempdir().expect("a folder");
    // three transactions of one free block each
    let mut commands = vec!["jo -c".to_owned()];
    for (n, block) in [(1u8, 7001), (2, 7002), (3, 7003)] {
        let path = folder.path().join(n.to_string());
        std::fs::write(&path, vec![0xA0 + n; 1024]).expect("a block");
        commands.push(format!("jw -b {block} {}", path.display()));
    }
    commands.push("jc".to_owned());
    image.debugfs(&commands.iter().map(String::as_str).collect::<Vec<_>>());
}

/// The first bytes of the blocks of [`three_transactions`].
pub(crate) fn home(bytes: &[u8]) -> [u8; 3] {
    [7001, 7002, 7003].map(|block: usize| bytes[block * 1024])
}

/// The first byte of the journal, and its superblock.
pub(crate) fn journal(image: &Image) -> (usize, DiskSuperblock) {
    let said = testkit::oracle::debugfs(image.path(), "bmap <8> 0");
    let at = said.lines().next().unwrap_or_default().parse::<usize>().unwrap_or_else(|_| panic!("{said}")) * 1024;
    (at, DiskSuperblock::read_from_prefix(&image.bytes()[at..]).expect("the journal's superblock").0)
}

/// Writes a journal's superblock with its checksum.
pub(crate) fn put(bytes: &mut [u8], at: usize, mut disk: DiskSuperblock) {
    disk.set_checksum();
    bytes[at..at + DiskSuperblock::SIZE].copy_from_slice(disk.as_bytes());
}

/// `s_first` must be 1: the transactions of a log with another value are found from block 1 on.
#[test]
fn a_log_that_begins_nowhere_is_read_all_the_same() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let image = three_transactions();
    let (at, disk) = journal(&image);
    let whole = image.bytes();
    for first in [0, disk.s_maxlen.get() + 7] {
        let mut bytes = whole.clone();
        let mut wrong = disk;
        wrong.s_first = first.into();
        put(&mut bytes, at, wrong);
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_vec(bytes.clone()));
        assert!(!extant_check::first_sight(&*device, &options(Repair::Safe), &()), "{first}: taken at its word");
        let report = check("volume", &*device, &Options::default(), &()).expect("a volume");
        assert!(report.exit == exit::LEFT && !report.clean, "{first}: {:?}", report.problems);
        assert!(report.problems.iter().any(|p| p.code == Code::JournalNotReplayed), "{first}: {:?}", report.problems);
        let outcome = extant_check::replay(&device, &options(Repair::Safe)).expect("a volume");
        assert!(outcome == Replay::Damaged && contents(&*device) == bytes, "{first}: {outcome:?}");
        for mode in [Repair::Safe, Repair::All] {
            let mut repaired = bytes.clone();
            let report = fix(&mut repaired, mode).expect("a volume");
            assert_eq!((report.exit, home(&repaired)), (exit::REPAIRED, [0xA1, 0xA2, 0xA3]), "{first}: {report:?}");
            assert!(report.problems.iter().any(|p| p.code == Code::JournalSuperblockBad && p.fixed), "{first}");
            image.set_bytes(&repaired);
            assert!(e2fsck(image.path()).clean, "{first}");
            let (_, after) = journal(&image);
            assert_eq!((after.s_first.get(), after.s_start.get()), (1, 0), "{first}");
            // no old block in the log is taken for a new transaction
            let (before, now) = (disk.s_sequence.get(), after.s_sequence.get());
            assert!(now.abs_diff(before) > 1000, "{first}: {now} after {before}");
        }
    }
}

/// A fast-commit area that is longer than the journal proves nothing about the length of the log: e2fsck replays its
/// transactions, and so does Extant, with a new superblock for the empty journal. Both discard a log that is too short
/// beside an area within the journal.
#[test]
fn a_log_beside_too_many_fast_commit_blocks_is_read_all_the_same() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let image = three_transactions();
    let (at, disk) = journal(&image);
    let whole = image.bytes();
    let most = disk.s_maxlen.get();
    let all = [0xA1, 0xA2, 0xA3];
    for (area, replayed) in [(most, [0; 3]), (most + 1, all), (5000, all), (u32::MAX, all)] {
        let (mut bytes, mut wrong) = (whole.clone(), disk);
        wrong.s_feature_incompat = (wrong.s_feature_incompat.get() | 0x20).into();
        wrong.s_num_fc_blks = area.into();
        put(&mut bytes, at, wrong);
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_vec(bytes.clone()));
        let report = check("volume", &*device, &Options::default(), &()).expect("a volume");
        assert!(report.exit == exit::LEFT && !report.clean, "{area}: {:?}", report.problems);
        for (mode, theirs) in [(Repair::Safe, "-fp"), (Repair::All, "-fy")] {
            image.set_bytes(&bytes);
            let said = run("e2fsck", &[theirs.as_ref(), image.path().as_os_str()]);
            assert_eq!(home(&image.bytes()), replayed, "{area}: e2fsck {theirs}: {}", said.text());
            let mut repaired = bytes.clone();
            let report = fix(&mut repaired, mode).expect("a volume");
            assert_eq!((report.exit, home(&repaired)), (exit::REPAIRED, replayed), "{area}: {report:?}");
            assert!(report.problems.iter().any(|p| p.code == Code::JournalSuperblockBad && p.fixed), "{area}");
            image.set_bytes(&repaired);
            assert!(e2fsck(image.path()).clean, "{area}");
            let (_, after) = journal(&image);
            assert_eq!((after.fast_commit_blocks(), after.s_start.get()), (0, 0), "{area}");
        }
    }
}

/// Such a log may be older or newer than the volume: the administrator must decide.
#[test]
fn a_log_that_the_volume_does_not_ask_for_is_not_replayed_at_boot() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let image = three_transactions();
    let mut bytes = image.bytes();
    bytes[1024 + 0x60] &= !4;
    repair_checksums(&mut bytes);
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_vec(bytes.clone()));
    let outcome = extant_check::replay(&device, &options(Repair::Safe)).expect("a volume");
    assert!(outcome == Replay::Nothing && contents(&*device) == bytes, "{outcome:?}");
    let mut after = bytes.clone();
    let report = fix(&mut after, Repair::Safe).expect("a volume");
    assert!(report.exit == exit::LEFT && only_marked(&bytes, &after), "{report:?}");
    let mut repaired = bytes.clone();
    let report = fix(&mut repaired, Repair::All).expect("a volume");
    assert_eq!((report.exit, home(&repaired)), (exit::REPAIRED, [0xA1, 0xA2, 0xA3]), "{report:?}");
    image.set_bytes(&repaired);
    assert!(e2fsck(image.path()).clean);
}

/// The kernel rejects a journal with fewer log blocks.
#[test]
fn a_log_that_is_too_short_for_the_kernel_is_made_anew() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let image = Image::mke2fs(&["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", "fast_commit"], 8 << 20).build();
    let (at, disk) = journal(&image);
    let whole = image.bytes();
    assert!(check("volume", &MemoryDevice::from_vec(whole.clone()), &Options::default(), &()).expect("a volume").clean);
    let most = disk.s_maxlen.get();
    let cases = [("length", 10, 1, 0), ("first block", most, most - 1000, 0), ("fast commits", most, 1, most - 1)];
    for (said, length, first, area) in cases {
        let mut bytes = whole.clone();
        let mut wrong = disk;
        (wrong.s_maxlen, wrong.s_first, wrong.s_num_fc_blks) = (length.into(), first.into(), area.into());
        // the kernel recorded an error as well
        wrong.s_errno = u32::MAX.into();
        put(&mut bytes, at, wrong);
        let report = fix(&mut bytes, Repair::All).expect("a volume");
        assert!(report.problems.iter().any(|p| p.code == Code::JournalSuperblockBad && p.fixed), "{said}: {report:?}");
        assert!(check("volume", &MemoryDevice::from_vec(bytes.clone()), &Options::default(), &()).expect("it").clean);
        image.set_bytes(&bytes);
        assert!(e2fsck(image.path()).clean, "{said}");
    }
}

/// Transactions committed after one that does not match its checksums are lost, and the volume's clean flag is not
/// trusted.
#[test]
fn a_journal_that_is_damaged_before_its_end_is_no_shorter_one() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let image = three_transactions();
    let whole = image.bytes();
    let in_log =
        |fill: u8| whole.chunks(1024).position(|block| block.iter().all(|byte| *byte == fill)).expect("a copy");
    let commit = in_log(0xA2) + 1;
    let (journal, disk) = journal(&image);
    let sequence = disk.s_sequence.get();
    let replay = |bytes: &[u8]| {
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_vec(bytes.to_vec()));
        let outcome = extant_check::replay(&device, &options(Repair::Safe)).expect("a volume");
        (outcome, contents(&*device))
    };
    let (outcome, after) = replay(&whole);
    assert_eq!((outcome, home(&after)), (Replay::Whole, [0xA1, 0xA2, 0xA3]));
    assert_eq!(after[1024 + 0x3A] & 2, 0, "no errors are noted");
    // damage to a data block: the others are replayed; to a commit block: nothing after it; to a descriptor: nothing at
    // all
    for (said, at, left) in [
        ("a copy", in_log(0xA2) * 1024 + 5, [0xA1, 0, 0xA3]),
        ("the last copy", in_log(0xA3) * 1024 + 5, [0xA1, 0xA2, 0]),
        ("a commit block", commit * 1024 + 0x10, [0xA1, 0, 0]),
        // revokes of older blocks may have followed it
        ("a descriptor", (in_log(0xA2) - 1) * 1024 + 0x200, [0, 0, 0]),
    ] {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        let (outcome, after) = replay(&bytes);
        assert!(outcome == Replay::Damaged && after == bytes, "{said}: {outcome:?}");
        let mut after = bytes.clone();
        // as at boot
        let report = fix(&mut after, Repair::Safe).expect("a volume");
        assert_eq!((report.exit, home(&after)), (exit::REPAIRED, left), "{said}: {:?}", report.problems);
        assert!(report.problems.iter().any(|p| p.code == Code::JournalDamaged && p.fixed), "{said}");
        // no old transaction in the log is taken for a new one
        let (disk, _) = DiskSuperblock::read_from_prefix(&after[journal..]).expect("the journal's superblock");
        assert_eq!(disk.s_start.get(), 0, "{said}");
        assert!(disk.s_sequence.get() > sequence + 1000, "{said}: {} behind {sequence}", disk.s_sequence.get());
        let mut repaired = bytes.clone();
        let report = fix(&mut repaired, Repair::All).expect("a volume");
        assert_eq!((report.exit, home(&repaired)), (exit::REPAIRED, left), "{said}: {:?}", report.problems);
        image.set_bytes(&repaired);
        assert!(e2fsck(image.path()).clean, "{said}");
    }
}

/// A journal with an unknown feature, or a superblock of an unknown type, may contain committed transactions: e2fsck
/// stops with -p and with -y, and so does Extant, even with other errors in the journal's superblock. Two kinds of
/// checksums at once are not an unknown feature.
#[test]
fn a_journal_with_unknown_features_is_not_discarded() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let image = three_transactions();
    let (at, disk) = journal(&image);
    let whole = image.bytes();
    let typed = |block_type: u32| {
        let (mut bytes, mut wrong) = (whole.clone(), disk);
        wrong.s_header.h_blocktype = block_type.into();
        put(&mut bytes, at, wrong);
        bytes
    };
    let wrong = |incompat: u32, ro_compat: u32| {
        let (mut bytes, mut wrong) = (whole.clone(), disk);
        wrong.s_feature_incompat = (wrong.s_feature_incompat.get() | incompat).into();
        wrong.s_feature_ro_compat = ro_compat.into();
        put(&mut bytes, at, wrong);
        bytes
    };
    for (said, bytes) in [
        ("s_feature_incompat 0x80", wrong(0x80, 0)),
        ("s_feature_incompat 0x80", wrong(0x98, 0)),
        ("s_feature_ro_compat 0x4", wrong(0, 4)),
        ("h_blocktype 0x0", typed(0)),
        ("h_blocktype 0x7", typed(7)),
    ] {
        let mut repaired = bytes.clone();
        let refusal = fix(&mut repaired, Repair::All).expect_err("it cannot be repaired");
        assert!(refusal.sentence.contains(said), "{refusal}");
        assert_eq!(refusal.exit, exit::LEFT | exit::OPERATIONAL, "{said}");
        assert!(repaired == bytes, "{said}: something was written");
        let report = fix(&mut repaired, Repair::Safe).expect("a volume");
        assert!(report.exit == exit::LEFT && report.stopped_at.is_some(), "{said}: {:?}", report.problems);
        assert!(only_marked(&bytes, &repaired), "{said}: more than the mark was written");
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_vec(bytes.clone()));
        let refusal = extant_check::replay(&device, &options(Repair::Safe)).expect_err("it cannot be replayed");
        assert!(refusal.sentence.contains(said), "{refusal}");
        image.set_bytes(&bytes);
        for mode in ["-fp", "-fy"] {
            let theirs = run("e2fsck", &[mode.as_ref(), image.path().as_os_str()]);
            assert!(theirs.exit.is_some_and(|exit| exit & 4 != 0), "{said}: e2fsck {mode}: {}", theirs.text());
        }
        let (_, after) = journal(&image);
        assert_ne!(after.s_start.get(), 0, "{said}: e2fsck discards the log");
    }
    // e2fsck -p and -y both clear such a journal, and one whose superblock has the type of a revoke block
    for mut bytes in [wrong(0x18, 0), typed(5)] {
        let report = fix(&mut bytes, Repair::All).expect("a volume");
        assert!(report.exit == exit::REPAIRED, "{:?}", report.problems);
        let bad = report.problems.iter().any(|p| p.code == Code::JournalSuperblockBad && p.fixed);
        assert!(bad, "{:?}", report.problems);
    }
}

/// Only the kernel interprets fast commits: the volume is unchanged, and the message has the next step.
#[test]
fn fast_commits_are_left_to_a_mount() {
    if !need(&["mke2fs", "debugfs"]) {
        return;
    }
    const BLOCK: usize = 1024;
    let image = Image::mke2fs(&["-t", "ext4", "-b", "1024", "-J", "size=4", "-O", "fast_commit"], 16 << 20).build();
    let at = |block: u32| {
        let said = testkit::oracle::debugfs(image.path(), &format!("bmap <8> {block}"));
        said.lines().next().unwrap_or_default().parse::<usize>().unwrap_or_else(|_| panic!("{said}")) * BLOCK
    };
    let mut bytes = image.bytes();
    let journal = at(0);
    let (mut disk, _) = DiskSuperblock::read_from_prefix(&bytes[journal..]).expect("the journal's superblock");
    disk.s_feature_incompat = (disk.s_feature_incompat.get() | 0x20).into();
    disk.s_num_fc_blks = 64.into();
    put(&mut bytes, journal, disk);
    // a head, an unlink of a missing name, and the tail that makes it valid
    let record = |tag: u16, value: &[u8]| [&tag.to_le_bytes()[..], &(value.len() as u16).to_le_bytes(), value].concat();
    let words = |words: [u32; 2]| words.map(u32::to_le_bytes).concat();
    let tid = disk.s_sequence.get();
    let mut area = [record(9, &words([0, tid])), record(5, &[&words([2, 12])[..], b"none"].concat())].concat();
    let tail = area.len();
    area.extend(record(8, &[&words([tid, 0])[..], &vec![0; BLOCK - tail - 12]].concat()));
    let crc = format::checksum::crc32c(0, &area[..tail + 8]);
    area[tail + 8..tail + 12].copy_from_slice(&crc.to_le_bytes());
    let place = at(disk.s_maxlen.get() - 64 + 1);
    bytes[place..place + area.len()].copy_from_slice(&area);
    // needs_recovery
    bytes[1024 + 0x60] |= 4;
    repair_checksums(&mut bytes);
    for mode in [Repair::Safe, Repair::All] {
        let mut repaired = bytes.clone();
        let refusal = fix(&mut repaired, mode).expect_err("it cannot be repaired");
        assert!(refusal.sentence.contains("mount the volume once"), "{refusal}");
        assert!(repaired == bytes, "something was written");
    }
}

/// Unusable copies are rewritten, also those of meta group descriptor blocks; e2fsck can then use them. While errors
/// remain they are not changed: they may be the only record of the original volume.
#[test]
fn copies_are_written_anew_once_all_else_is_right() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    let copy = 8193 << 10;
    for features in ["resize_inode", "^resize_inode,meta_bg", "^has_journal,^sparse_super,^resize_inode"] {
        let whole = Image::mke2fs(&["-t", "ext4", "-b", "1024", "-O", features], 40 << 20).build().bytes();
        let mut bytes = whole.clone();
        bytes[copy..copy + 2048].fill(0);
        let report = fix(&mut bytes, Repair::All).expect("a volume");
        assert!(report.clean && report.exit == exit::REPAIRED, "{features}: {report:?}");
        assert_eq!(bytes[copy + 1024..copy + 2048], whole[copy + 1024..copy + 2048], "{features}: descriptors");
        let again =
            check("volume", &MemoryDevice::from_vec(bytes.clone()), &Options::default(), &()).expect("a volume");
        assert!(again.clean && again.problems.is_empty(), "{features}: {:?}", again.problems);
        let image = Image::from_bytes(&bytes);
        assert!(e2fsck(image.path()).clean, "{features}");
        bytes[1024..2048].fill(0);
        let report = fix(&mut bytes, Repair::All).expect("the copy serves");
        assert!(report.clean && e2fsck(Image::from_bytes(&bytes).path()).clean, "{features}: {report:?}");

        let mut cut = whole;
        cut[copy..copy + 1024].fill(0);
        cut.truncate((40 << 20) - 1024);
        let report = fix(&mut cut, Repair::All).expect("a volume");
        assert!(!report.clean, "{features}: a block is missing");
        assert!(cut[copy..copy + 1024].iter().all(|byte| *byte == 0), "{features}: the copy was written");
    }
}
