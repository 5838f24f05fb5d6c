//! A repair that is interrupted at any write: the next one has the same result as an uninterrupted one.

use crate::repaired::{contents, corrupt, fix, options};
use crate::volumes;
use blockdev::undo::{Planned, record};
use blockdev::{BlockDevice, MemoryDevice};
use damage::{Kind, damage};
use extant_check::render::verdict;
use extant_check::report::{Report, exit};
use extant_check::table::Code;
use extant_check::{Progress, Repair, check, half_written, repair, undo, unfinished};
use format::checksum::crc32c;
use format::feature::RoCompat;
use format::redo::{DiskRedoEntry, DiskRedoIndex, DiskRedoPointer, INDEX_MAGIC, POINTER_AT, POINTER_MAGIC, SUPERBLOCK};
use format::superblock::{DiskSuperblock, State};
use simdev::{Log, Logged, Record};
use std::path::Path;
use std::sync::Arc;
use testkit::{Image, cases, need};
use zerocopy::IntoBytes;

/// Repairs these bytes on a device that records every change. Returns the content and the log of the changes, if the
/// volume is clean then.
pub(crate) fn recorded(bytes: &[u8]) -> Option<(Vec<u8>, Log)> {
    let device = Arc::new(Record::in_memory(MemoryDevice::from_vec(bytes.to_vec())));
    let as_device: Arc<dyn BlockDevice> = Arc::<Record<MemoryDevice, Vec<u8>>>::clone(&device);
    let report = repair("volume", &as_device, &options(Repair::All), &(), None).ok()?;
    (report.exit == exit::REPAIRED).then(|| (contents(&*as_device), device.log().expect("a whole log")))
}

/// Repeats one write of the log in `state`, but only the first `sectors` sectors of it.
pub(crate) fn redo(log: &Log, entry: usize, state: &mut [u8], sectors: u64) {
    for (offset, piece) in log.parts(entry) {
        let start = match log.entries()[entry].what {
            Logged::Write { offset, .. } => offset,
            _ => continue,
        };
        let end = (start + sectors * 512).saturating_sub(offset).min(piece.len() as u64) as usize;
        state[offset as usize..offset as usize + end].copy_from_slice(&piece[..end]);
    }
}

#[test]
fn a_repair_cut_at_any_write_is_finished_by_the_next() {
    if !need(&["mke2fs", "e2fsck", "e2image"]) {
        return;
    }
    let volumes = volumes();
    let (mut cuts, mut finished) = (0, 0);
    for case in cases("repair cut", 6) {
        let mut rng = case.rng();
        let volume = rng.pick(&volumes);
        let mut bytes = volume.bytes.clone();
        let said = corrupt(volume, &mut bytes, &mut rng);
        let said = format!("EXTANT_SEED={:#x} mke2fs {}: {said}", case.seed, volume.name);
        let Some((repaired, log)) = recorded(&bytes) else { continue };
        let mut check = |state: &[u8], when: String| {
            let device = MemoryDevice::from_vec(state.to_vec());
            finished += u32::from(unfinished(&device));
            cuts += 1;
            let mut again = device.into_vec();
            let report = fix(&mut again, Repair::All).unwrap_or_else(|e| panic!("{said}: {when}: {e}"));
            assert_eq!(report.exit & !exit::REPAIRED, 0, "{said}: {when}: {:?}", report.problems);
            assert!(again == repaired, "{said}: {when}: it ends elsewhere");
        };
        // the durable state; all later writes in order; and a part of them in any order
        let (mut safe, mut in_order) = (bytes.clone(), bytes.clone());
        let mut epoch = Vec::new();
        for (n, entry) in log.entries().iter().enumerate() {
            match entry.what {
                Logged::Write { len, .. } => {
                    redo(&log, n, &mut in_order, rng.below(len / 512 + 1));
                    check(&in_order, format!("torn in write {n}"));
                    redo(&log, n, &mut in_order, len / 512);
                    check(&in_order, format!("after write {n}"));
                    epoch.push((n, len / 512));
                }
                _ => {
                    let mut some = safe.clone();
                    for (n, sectors) in epoch.drain(..) {
                        if rng.chance(50) {
                            redo(&log, n, &mut some, sectors);
                        }
                        redo(&log, n, &mut safe, sectors);
                    }
                    check(&some, format!("with some of the writes before flush {n}"));
                    safe.clone_from(&in_order);
                }
            }
        }
    }
    println!("{cuts} cuts, {finished} of them finished from a redo log");
    assert!(cuts > 50 && finished > 10, "only {cuts} cuts, {finished} of them with a redo log");
}

/// A repair that was interrupted after its pointer is finished later, and can be undone by the file of either run; by
/// that of the second also where the volume was damaged between them, so that more is repaired.
#[test]
fn what_was_cut_and_finished_can_be_undone() {
    if !need(&["mke2fs", "e2fsck", "e2image"]) {
        return;
    }
    let volumes = volumes();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (mut finished, mut damaged_between) = (0, 0);
    for case in cases("undo of what was cut", 24) {
        let mut rng = case.rng();
        let volume = rng.pick(&volumes);
        let mut bytes = volume.bytes.clone();
        let said = corrupt(volume, &mut bytes, &mut rng);
        let said = format!("EXTANT_SEED={:#x} mke2fs {}: {said}", case.seed, volume.name);
        let first = folder.path().join(format!("first-{:x}", case.seed));
        let device = Arc::new(Record::in_memory(MemoryDevice::from_vec(bytes.clone())));
        let as_device: Arc<dyn BlockDevice> = Arc::<Record<MemoryDevice, Vec<u8>>>::clone(&device);
        let Ok(report) = repair("volume", &as_device, &options(Repair::All), &(), Some(&first)) else { continue };
        if report.exit != exit::REPAIRED {
            continue;
        }
        let log = device.log().expect("a whole log");
        let mut state = bytes.clone();
        for (n, _) in log.entries().iter().enumerate() {
            redo(&log, n, &mut state, 1 << 40);
            if unfinished(&MemoryDevice::from_vec(state.clone())) {
                break;
            }
        }
        let is_damaged = rng.chance(50);
        let said =
            if is_damaged { format!("{said}; between: {}", corrupt(volume, &mut state, &mut rng)) } else { said };
        if !unfinished(&MemoryDevice::from_vec(state.clone())) {
            continue;
        }
        finished += 1;
        damaged_between += u32::from(is_damaged);
        let second = folder.path().join(format!("second-{:x}", case.seed));
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_vec(state.clone()));
        // a while later
        let later = extant_check::Options { now: options(Repair::All).now.map(|now| now + 60), ..options(Repair::All) };
        let report = repair("volume", &device, &later, &(), Some(&second));
        assert!(report.is_ok() || is_damaged, "{said}: {report:?}");
        undo(&second, &*device).unwrap_or_else(|e| panic!("{said}: the second: {e}"));
        assert!(contents(&*device) == state, "{said}: the second restores what was cut");
        if is_damaged {
            continue;
        }
        repair("volume", &device, &later, &(), None).unwrap_or_else(|e| panic!("{said}: {e}"));
        undo(&first, &*device).unwrap_or_else(|e| panic!("{said}: the first: {e}"));
        assert!(contents(&*device) == bytes, "{said}: the first puts every byte back");
    }
    assert!(finished > 9 && damaged_between > 4, "only {finished} finished, {damaged_between} with damage between");
}

#[test]
fn an_undo_file_puts_every_byte_back() {
    if !need(&["mke2fs", "e2fsck", "e2image"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let volumes = volumes();
    let mut undone = 0;
    for case in cases("repair undo", 20) {
        let mut rng = case.rng();
        let volume = rng.pick(&volumes);
        let mut bytes = volume.bytes.clone();
        let said = corrupt(volume, &mut bytes, &mut rng);
        let said = format!("EXTANT_SEED={:#x} mke2fs {}: {said}", case.seed, volume.name);
        let path = folder.path().join(format!("{:x}", case.seed));
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_vec(bytes.clone()));
        if repair("volume", &device, &options(Repair::All), &(), Some(&path)).is_err() || !path.exists() {
            assert!(contents(&*device) == bytes, "{said}: changed without an undo file");
            continue;
        }
        // a mount within the second of the repair may change nothing else in the superblock
        let mut used = contents(&*device);
        used[1024 + 0x34] ^= 1;
        let mounted = MemoryDevice::from_vec(used.clone());
        assert!(undo(&path, &mounted).is_err() && contents(&mounted) == used, "{said}: undone after a mount");
        undo(&path, &*device).unwrap_or_else(|e| panic!("{said}: {e}"));
        assert!(contents(&*device) == bytes, "{said}: not as it was");
        undone += 1;
    }
    assert!(undone > 5, "only {undone} undone");
}

/// Sets the last four bytes of a block so that its CRC32C is `wanted`: each of their bits changes the checksum by a
/// fixed word.
fn force_checksum(block: &mut [u8], wanted: u32) {
    let end = block.len() - 4;
    let with = |block: &mut [u8], tail: u32| {
        block[end..].copy_from_slice(&tail.to_le_bytes());
        crc32c(!0, block)
    };
    let zero = with(block, 0);
    // for each highest bit at most one pair: a change of the checksum, and the tail that causes it
    let mut rows: Vec<(u32, u32)> = Vec::new();
    let reduced = |mut sum: u32, mut tail: u32, rows: &[(u32, u32)]| {
        for (row, of) in rows {
            if sum ^ row < sum {
                (sum, tail) = (sum ^ row, tail ^ of);
            }
        }
        (sum, tail)
    };
    for bit in 0..32 {
        let changed = with(block, 1 << bit) ^ zero;
        rows.push(reduced(changed, 1 << bit, &rows));
        rows.sort_unstable_by(|a, b| b.cmp(a));
    }
    let (left, tail) = reduced(zero ^ wanted, 0, &rows);
    assert_eq!(left, 0);
    assert_eq!(with(block, tail), wanted);
}

/// An index that refers to itself with a valid checksum is not a redo log, and reading it terminates.
#[test]
fn a_redo_log_in_a_circle_is_none() {
    if !need(&["mke2fs"]) {
        return;
    }
    const SUM: u32 = 0x1234_5678;
    let size = 1024;
    let mut bytes = Image::mke2fs(&["-t", "ext4", "-b", "1024"], 8 << 20).build().bytes();
    let (index, copy) = (bytes.len() / size - 2, bytes.len() / size - 1);
    let superblock = bytes[1024..2048].to_vec();
    bytes[copy * size..].copy_from_slice(&superblock);
    let entry = DiskRedoEntry {
        re_home: SUPERBLOCK.into(),
        re_copy: (copy as u64).into(),
        re_checksum: crc32c(!0, &superblock).into(),
        re_reserved: 0.into(),
    };
    let sector = crc32c(!0, &superblock[..512]);
    for (next, sum, whole) in [(index as u64, SUM, false), (0, 0, true)] {
        let head = DiskRedoIndex {
            ri_magic: INDEX_MAGIC.into(),
            ri_count: 1.into(),
            ri_next: next.into(),
            ri_next_checksum: sum.into(),
            ri_reserved: 0.into(),
        };
        let mut block = [head.as_bytes(), entry.as_bytes()].concat();
        block.resize(size, 0);
        force_checksum(&mut block, SUM);
        bytes[index * size..][..size].copy_from_slice(&block);
        let mut pointer = DiskRedoPointer {
            rp_magic: POINTER_MAGIC.into(),
            rp_block_size: (size as u32).into(),
            rp_block: (index as u64).into(),
            rp_before: sector.into(),
            rp_after: sector.into(),
            rp_index: SUM.into(),
            rp_checksum: 0.into(),
        };
        pointer.set_checksum();
        bytes[1024 + POINTER_AT..][..DiskRedoPointer::SIZE].copy_from_slice(pointer.as_bytes());
        // the log is valid where it does not refer to itself
        assert_eq!(unfinished(&MemoryDevice::from_vec(bytes.clone())), whole, "next {next}");
        assert!(half_written(&MemoryDevice::from_vec(bytes.clone())), "next {next}");
    }
}

/// A log that overwrites its own copies or indexes or the superblock that points to it, or writes a block twice, is not
/// valid: the result would depend on the order of its writes. Nor is one with another superblock than the pointer
/// states, or with one that points to a log again.
#[test]
fn a_redo_log_that_writes_over_itself_is_none() {
    if !need(&["mke2fs"]) {
        return;
    }
    let size = 1024;
    let bytes = Image::mke2fs(&["-t", "ext4", "-b", "1024"], 8 << 20).build().bytes();
    let end = bytes.len() / size;
    let original = bytes[1024..2048].to_vec();
    let mut changed = original.clone();
    changed[0x7F] ^= 1;
    let mut leads_on = original.clone();
    let mut pointer = DiskRedoPointer {
        rp_magic: POINTER_MAGIC.into(),
        rp_block_size: (size as u32).into(),
        rp_block: ((end - 2) as u64).into(),
        rp_before: 0.into(),
        rp_after: 0.into(),
        rp_index: 0.into(),
        rp_checksum: 0.into(),
    };
    pointer.set_checksum();
    leads_on[POINTER_AT..][..DiskRedoPointer::SIZE].copy_from_slice(pointer.as_bytes());
    // home and copy of two blocks, near the end
    for (homes, copies, superblock, whole) in [
        ([40, 41], [3, 4], &original, true),
        ([40, 40], [3, 4], &original, false),
        ([40, end - 3], [3, 4], &original, false),
        ([40, end - 2], [3, 4], &original, false),
        ([1, 40], [3, 4], &original, false),
        ([40, end - 1], [3, 4], &original, false),
        ([40, 41], [3, 4], &changed, false),
        ([40, 41], [3, 4], &leads_on, false),
    ] {
        let mut bytes = bytes.clone();
        bytes[(end - 1) * size..].copy_from_slice(superblock);
        let sum_of = |bytes: &[u8], block: usize| crc32c(!0, &bytes[block * size..][..size]);
        let mut entries = vec![(SUPERBLOCK, end - 1)];
        entries.extend(homes.iter().zip(copies).map(|(home, copy)| (*home as u64, end - copy)));
        let mut index = [DiskRedoIndex {
            ri_magic: INDEX_MAGIC.into(),
            ri_count: (entries.len() as u32).into(),
            ri_next: 0.into(),
            ri_next_checksum: 0.into(),
            ri_reserved: 0.into(),
        }
        .as_bytes()]
        .concat();
        for (home, copy) in entries {
            let entry = DiskRedoEntry {
                re_home: home.into(),
                re_copy: (copy as u64).into(),
                re_checksum: sum_of(&bytes, copy).into(),
                re_reserved: 0.into(),
            };
            index.extend(entry.as_bytes());
        }
        index.resize(size, 0);
        bytes[(end - 2) * size..][..size].copy_from_slice(&index);
        let sector = crc32c(!0, &original[..512]);
        let mut pointer = DiskRedoPointer {
            rp_magic: POINTER_MAGIC.into(),
            rp_block_size: (size as u32).into(),
            rp_block: ((end - 2) as u64).into(),
            rp_before: sector.into(),
            rp_after: sector.into(),
            rp_index: sum_of(&bytes, end - 2).into(),
            rp_checksum: 0.into(),
        };
        pointer.set_checksum();
        bytes[1024 + POINTER_AT..][..DiskRedoPointer::SIZE].copy_from_slice(pointer.as_bytes());
        assert_eq!(unfinished(&MemoryDevice::from_vec(bytes.clone())), whole, "{homes:?}");
        assert!(half_written(&MemoryDevice::from_vec(bytes)), "{homes:?}");
    }
}

/// A log with a copy in the superblock's block is not valid: the block changes while the log is applied.
#[test]
fn a_redo_log_in_the_superblock_is_none() {
    if !need(&["mke2fs"]) {
        return;
    }
    const SUM: u32 = 0x1234_5678;
    let size = 1024;
    let mut bytes = Image::mke2fs(&["-t", "ext4", "-b", "1024"], 8 << 20).build().bytes();
    let end = bytes.len() / size;
    let original = bytes[1024..2048].to_vec();
    bytes[(end - 1) * size..].copy_from_slice(&original);
    let sector = crc32c(!0, &original[..512]);
    let mut pointer = DiskRedoPointer {
        rp_magic: POINTER_MAGIC.into(),
        rp_block_size: (size as u32).into(),
        rp_block: ((end - 2) as u64).into(),
        rp_before: sector.into(),
        rp_after: sector.into(),
        rp_index: SUM.into(),
        rp_checksum: 0.into(),
    };
    pointer.set_checksum();
    bytes[1024 + POINTER_AT..][..DiskRedoPointer::SIZE].copy_from_slice(pointer.as_bytes());
    for (copy, whole) in [(end - 3, true), (1, false)] {
        let head = DiskRedoIndex {
            ri_magic: INDEX_MAGIC.into(),
            ri_count: 2.into(),
            ri_next: 0.into(),
            ri_next_checksum: 0.into(),
            ri_reserved: 0.into(),
        };
        let mut index = head.as_bytes().to_vec();
        for (home, copy) in [(SUPERBLOCK, end - 1), (40, copy)] {
            let entry = DiskRedoEntry {
                re_home: home.into(),
                re_copy: (copy as u64).into(),
                re_checksum: crc32c(!0, &bytes[copy * size..][..size]).into(),
                re_reserved: 0.into(),
            };
            index.extend(entry.as_bytes());
        }
        index.resize(size, 0);
        force_checksum(&mut index, SUM);
        bytes[(end - 2) * size..][..size].copy_from_slice(&index);
        assert_eq!(unfinished(&MemoryDevice::from_vec(bytes.clone())), whole, "copy in block {copy}");
    }
}

/// A volume with a link count that is wrong, whose repair was interrupted after the write of the pointer.
fn interrupted_repair() -> Vec<u8> {
    let args = ["-t", "ext4", "-b", "1024", "-J", "size=1"];
    let image = Image::mke2fs(&args, 16 << 20).debugfs(&["mkdir a", "mkdir a/b", "sif a links_count 9"]).build();
    let mut state = image.bytes();
    let (_, log) = recorded(&state).expect("a repair");
    for n in 0..log.entries().len() {
        redo(&log, n, &mut state, 1 << 40);
        if unfinished(&MemoryDevice::from_vec(state.clone())) {
            return state;
        }
    }
    panic!("no pointer to a log");
}

/// The report of a check that changes nothing.
fn look(bytes: &[u8]) -> Report {
    check("volume", &MemoryDevice::from_vec(bytes.to_vec()), &options(Repair::No), &()).expect("a volume")
}

/// Whether the problems with this code were fixed.
fn fixed(report: &Report, code: Code) -> Vec<bool> {
    report.problems.iter().filter(|problem| problem.code == code).map(|problem| problem.fixed).collect()
}

/// Cancels a check at once.
struct Cancelled;

impl Progress for Cancelled {
    fn cancelled(&self) -> bool {
        true
    }
}

/// The completion of an interrupted repair is reported as an error that was fixed, also where `-p` then stops and
/// writes nothing, and where the check is cancelled.
#[test]
fn a_completed_repair_is_reported() {
    if !need(&["mke2fs", "debugfs"]) {
        return;
    }
    let state = interrupted_repair();
    let found = look(&state);
    assert_eq!((found.exit, fixed(&found, Code::RepairUnfinished)), (exit::LEFT, vec![false]));
    for mode in [Repair::Safe, Repair::All] {
        let report = fix(&mut state.clone(), mode).expect("a volume");
        let problems = &report.problems;
        assert_eq!((report.exit, report.errors), (exit::REPAIRED, 1), "{mode:?}: {problems:?}");
        assert_eq!(fixed(&report, Code::RepairUnfinished), [true], "{mode:?}: {problems:?}");
        let said = verdict(&report);
        assert!(said.starts_with("Repaired: 1 error fixed; no errors remain"), "{mode:?}: {said}");
    }
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_vec(state));
    match repair("volume", &device, &options(Repair::All), &Cancelled, None) {
        Ok(report) => {
            assert_eq!(fixed(&report, Code::RepairUnfinished), [true]);
            assert!(verdict(&report).contains("only an interrupted repair was completed"), "{}", verdict(&report));
        }
        Err(refusal) => assert!(refusal.sentence.starts_with("an interrupted repair was completed"), "{refusal}"),
    }

    // marked with errors already, and with a directory that the administrator must decide on
    let args = ["-t", "ext4", "-b", "1024", "-O", "^has_journal"];
    let image = Image::mke2fs(&args, 16 << 20).debugfs(&["mkdir a", "mkdir a/b", "unlink a", "ssv state 2"]).build();
    let device = MemoryDevice::from_vec(image.bytes());
    assert!((1..9).any(|seed| damage(&device, Kind::Problem(Code::RepairUnfinished.number()), seed).is_ok()));
    let mut bytes = device.into_vec();
    let report = fix(&mut bytes, Repair::Safe).expect("a volume");
    assert!(report.stopped_at.is_some() && report.repaired, "{:?}", report.problems);
    assert_eq!((report.exit, fixed(&report, Code::RepairUnfinished)), (exit::LEFT, vec![true]));
    assert!(!half_written(&MemoryDevice::from_vec(bytes)));
}

/// An interrupted repair whose log is damaged is reported until a repair clears the pointer to the log.
#[test]
fn a_damaged_redo_log_is_reported_once() {
    if !need(&["mke2fs", "debugfs"]) {
        return;
    }
    let mut state = interrupted_repair();
    let pointer = DiskRedoPointer::of(&state[1024..2048]).expect("a pointer to a log");
    state[(pointer.rp_block.get() * u64::from(pointer.rp_block_size.get())) as usize] ^= 1;
    let found = look(&state);
    assert_eq!(fixed(&found, Code::RepairLogDamaged), [false], "{:?}", found.problems);
    assert!(fixed(&found, Code::RepairUnfinished).is_empty(), "{:?}", found.problems);
    assert_eq!(fixed(&found, Code::LinkCountWrong), [false], "{:?}", found.problems);
    for mode in [Repair::Safe, Repair::All] {
        let mut bytes = state.clone();
        let report = fix(&mut bytes, mode).expect("a volume");
        assert_eq!(report.exit, exit::REPAIRED, "{mode:?}: {:?}", report.problems);
        assert_eq!(fixed(&report, Code::RepairLogDamaged), [true], "{mode:?}: {:?}", report.problems);
        assert!(!half_written(&MemoryDevice::from_vec(bytes.clone())), "{mode:?}: the pointer is still there");
        let second = look(&bytes);
        assert!(second.clean && fixed(&second, Code::RepairLogDamaged).is_empty(), "{:?}", second.problems);
    }
}

/// Whether programs that do not read redo logs treat the volume as clean: it is marked clean, and its superblock
/// matches its checksum.
fn seems_clean(bytes: &[u8]) -> bool {
    let disk = DiskSuperblock::from_slice(&bytes[1024..2048]).expect("a superblock");
    let state = State::from_bits_retain(disk.s_state.get());
    let summed = disk.features().ro_compat.contains(RoCompat::METADATA_CSUM);
    state.contains(State::VALID)
        && !state.contains(State::ERROR)
        && (!summed || disk.checksum() == disk.s_checksum.get())
}

/// While a repair writes home locations, the superblock of a volume that was marked clean is marked with errors and
/// matches its checksum; a repair that was interrupted before that mark writes the mark first when it is finished.
#[test]
fn a_volume_that_is_half_repaired_does_not_say_that_it_is_clean() {
    if !need(&["mke2fs", "debugfs"]) {
        return;
    }
    for args in [
        &["-t", "ext2", "-b", "1024"][..],
        &["-t", "ext4", "-b", "1024", "-J", "size=1"],
        &["-t", "ext4", "-b", "4096", "-O", "^has_journal"],
    ] {
        let image = Image::mke2fs(args, 16 << 20).debugfs(&["mkdir a", "mkdir a/b", "sif a links_count 9"]).build();
        let bytes = image.bytes();
        assert!(seems_clean(&bytes), "{args:?}: as it was made");
        let (repaired, log) = recorded(&bytes).expect("a repair");
        assert!(seems_clean(&repaired), "{args:?}: at the end");
        let (homes, first) = half_repaired(&bytes, &repaired, &log, args);
        assert!(homes > 0, "{args:?}: no block was written home");
        // interrupted after the write of the pointer
        let device = Arc::new(Record::in_memory(MemoryDevice::from_vec(first.clone())));
        let as_device: Arc<dyn BlockDevice> = Arc::<Record<MemoryDevice, Vec<u8>>>::clone(&device);
        repair("volume", &as_device, &options(Repair::All), &(), None).expect("a volume");
        assert!(contents(&*as_device) == repaired, "{args:?}: it ends elsewhere");
        let (homes, _) = half_repaired(&first, &repaired, &device.log().expect("a whole log"), args);
        assert!(homes > 0, "{args:?}: no block was written home the second time");
    }
}

/// Checks the superblock before each write, and its mark before each write after the pointer other than its own; returns
/// the number of these, and the volume with no write after the pointer.
fn half_repaired(before: &[u8], repaired: &[u8], log: &Log, args: &[&str]) -> (u32, Vec<u8>) {
    let (mut state, mut first, mut homes) = (before.to_vec(), None, 0);
    for (n, entry) in log.entries().iter().enumerate() {
        let pointed = unfinished(&MemoryDevice::from_vec(state.clone()));
        let disk = DiskSuperblock::from_slice(&state[1024..2048]).expect("a superblock");
        // for other programs it is valid at any time
        let summed = disk.features().ro_compat.contains(RoCompat::METADATA_CSUM);
        assert!(!summed || disk.checksum() == disk.s_checksum.get(), "{args:?}: checksum before write {n}");
        if pointed {
            first.get_or_insert_with(|| state.clone());
        }
        if let Logged::Write { offset, .. } = entry.what
            && pointed
            && !(1024..2048).contains(&offset)
        {
            homes += 1;
            let marked = State::from_bits_retain(disk.s_state.get());
            assert!(marked.contains(State::ERROR) && !marked.contains(State::VALID), "{args:?}: before write {n}");
        }
        redo(log, n, &mut state, 1 << 40);
    }
    assert!(state == repaired, "{args:?}: the log ends elsewhere");
    (homes, first.expect("a pointer to a log"))
}

/// An undo that is interrupted at any write is finished by a repetition, and until it is finished the volume is not
/// marked clean; also with a file that does not state the mark, as those of earlier versions.
#[test]
fn a_volume_that_is_half_undone_does_not_say_that_it_is_clean() {
    if !need(&["mke2fs", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    for (n, args) in [
        &["-t", "ext2", "-b", "1024"][..],
        &["-t", "ext4", "-b", "1024", "-J", "size=1"],
        &["-t", "ext4", "-b", "4096", "-O", "^has_journal"],
    ]
    .into_iter()
    .enumerate()
    {
        let image = Image::mke2fs(args, 8 << 20).debugfs(&["mkdir a", "mkdir a/b", "sif a links_count 9"]).build();
        let before = image.bytes();
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_vec(before.clone()));
        let (path, older) = (folder.path().join(format!("undo-{n}")), folder.path().join(format!("older-{n}")));
        let report = repair("volume", &device, &options(Repair::All), &(), Some(&path)).expect("a volume");
        let after = contents(&*device);
        assert_eq!(report.exit, exit::REPAIRED, "{args:?}: {:?}", report.problems);
        assert!(seems_clean(&before) && seems_clean(&after), "{args:?}: before and after");
        let sectors = (0u64..).zip(before.chunks(512).zip(after.chunks(512)));
        let changes = sectors.filter(|(n, (old, new))| old != new || (2..4).contains(n));
        let changes = changes.map(|(n, (_, new))| Ok(Planned { offset: n * 512, data: new.to_vec() }));
        record(&older, &MemoryDevice::from_vec(before.clone()), changes).expect("a file without the mark");
        let last = half_undone(&path, &before, &after, &format!("{args:?}"));
        assert_eq!(last, (1024, 1024), "{args:?}: the superblock in one write");
        let last = half_undone(&older, &before, &after, &format!("{args:?}, without the mark in the file"));
        assert_eq!(last, (1024, 512), "{args:?}: the first sector last");
    }
}

/// Undoes a repair, cuts that at and in every write, and repeats each; returns offset and length of the last write.
fn half_undone(path: &Path, before: &[u8], after: &[u8], said: &str) -> (u64, u64) {
    let device = Record::in_memory(MemoryDevice::from_vec(after.to_vec()));
    undo(path, &device).unwrap_or_else(|e| panic!("{said}: {e}"));
    let log = device.log().expect("a whole log");
    let repeated = |cut: &[u8], when: &str| {
        assert!(!seems_clean(cut) || cut == before || cut == after, "{said}: {when}: it seems clean");
        let device = MemoryDevice::from_vec(cut.to_vec());
        undo(path, &device).unwrap_or_else(|e| panic!("{said}: {when}: {e}"));
        assert!(device.into_vec() == before, "{said}: {when}: not as it was");
    };
    let (mut state, mut writes) = (after.to_vec(), Vec::new());
    for (n, entry) in log.entries().iter().enumerate() {
        let Logged::Write { offset, len } = entry.what else { continue };
        writes.push((offset, len));
        let mut cut = state.clone();
        redo(&log, n, &mut cut, 1);
        repeated(&cut, &format!("only the first sector of write {n}"));
        redo(&log, n, &mut cut, len / 512);
        let whole = cut.clone();
        let first = offset as usize..offset as usize + 512;
        cut[first.clone()].copy_from_slice(&state[first]);
        repeated(&cut, &format!("without the first sector of write {n}"));
        repeated(&whole, &format!("after write {n}"));
        state = whole;
    }
    assert!(state == before, "{said}: the log ends elsewhere");
    assert!(writes.len() > 2, "{said}: {writes:?}");
    assert_eq!(writes.first(), Some(&(1024, 1024)), "{said}: the mark");
    *writes.last().expect("a write")
}
