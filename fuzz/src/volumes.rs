//! The whole checker, and its repair. Their inputs are not volumes but changes to one: a few bytes that libFuzzer can
//! mutate with effect, where a volume is megabytes of which nearly none matter.
//!
//! An input is two bytes (which volume; whether checksums are corrected afterwards, and which) and then changes of
//! eight bytes each: three for the place among the bytes of the volume's metadata, one for what to do, four for a
//! value.

use crate::made::contents;
use crate::seeds::{Volume, volumes};
use blockdev::{BlockDevice, MemoryDevice};
use simdev::{Log, Logged, Record};
use std::sync::Arc;
use tempfile::tempdir;
use testkit::Rng;

/// Bytes of a change.
pub(crate) const CHANGE: usize = 8;
/// In the second byte of an input: the checksums that sum up others are corrected where the changed volume says they
/// are.
const REPAIR: u8 = 1;
/// All of them are, where they are on the unchanged volume.
const SET_CHECKSUMS: u8 = 2;
/// In what a change does: it is one by chance, to a field of a structure.
const FIELD: u8 = 0x80;

/// Inputs to start from: each volume unchanged, and with one to eight changes and its checksums corrected.
pub(crate) fn patches() -> Vec<Vec<u8>> {
    let mut rng = Rng::new(1);
    let mut seeds = Vec::new();
    for number in 0..volumes().len() as u8 {
        seeds.push(vec![number, 0]);
        for n in 0..24 {
            let mut seed = vec![number, if n % 4 == 0 { REPAIR } else { SET_CHECKSUMS }];
            let changes = rng.between(1, 8) as usize;
            seed.extend(rng.bytes(changes * CHANGE));
            if n % 2 == 0 {
                seed[2..].chunks_mut(CHANGE).for_each(|change| change[3] |= FIELD);
            }
            seeds.push(seed);
        }
    }
    seeds
}

/// The same for repairs that are cut somewhere.
pub(crate) fn cuts() -> Vec<Vec<u8>> {
    let mut rng = Rng::new(2);
    patches().into_iter().map(|seed| [&[rng.below(60) as u8, 0, rng.below(4) as u8, 0], &seed[..]].concat()).collect()
}

/// The volume that an input says, and whether it is as it was.
pub(crate) fn changed(data: &[u8]) -> Option<(Vec<u8>, bool)> {
    let (&[number, flags], changes) = data.split_first_chunk()?;
    let volumes = volumes();
    let volume = &volumes[usize::from(number) % volumes.len()];
    let mut bytes = volume.bytes.clone();
    for change in changes.as_chunks::<CHANGE>().0.iter().take(64) {
        apply(change, volume, &mut bytes);
    }
    if flags & REPAIR != 0 {
        testkit::repair_checksums(&mut bytes);
    }
    if flags & SET_CHECKSUMS != 0 {
        volume.structures.set_checksum(&mut bytes);
    }
    let unchanged = bytes == volume.bytes;
    Some((bytes, unchanged))
}

/// A volume with some of its metadata changed. Guarantee: the checker comes to an end and reports what it found; an
/// unchanged volume has no errors.
pub fn check(data: &[u8]) {
    let Some((bytes, unchanged)) = changed(data) else { return };
    let options = check::Options { threads: 1, ..check::Options::default() };
    match check::check("volume", &MemoryDevice::from_vec(bytes), &options, &()) {
        Ok(report) => {
            assert!(report.clean || !unchanged, "{:?}", report.problems);
            assert_eq!(report.clean, report.errors == 0);
            // as with e2fsck, the exit status is 0 where the volume can only not be mounted
            let errors =
                report.problems.iter().filter(|problem| problem.severity >= check::table::Severity::Error).count();
            assert_eq!(errors == 0, report.exit == 0);
            assert!(!report.clean || report.exit == 0);
            report.problems.iter().for_each(|problem| assert!(!problem.text.is_empty()));
        }
        Err(refusal) => assert!(!unchanged, "{refusal}"),
    }
}

/// A volume with some of its metadata changed is repaired. Guarantee: the repair comes to an end; where it says that
/// all is repaired a check finds nothing, and where it refuses it has written nothing but what an unfinished repair
/// left to do.
pub fn repair(data: &[u8]) {
    let Some((bytes, unchanged)) = changed(data) else { return };
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_vec(bytes));
    let options = options();
    match check::repair("volume", &device, &options, &(), None) {
        Ok(report) if report.exit & !1 == 0 => {
            let second = check::check("volume", &*device, &options, &()).expect("a volume that was repaired");
            assert!(second.clean, "{:?}", second.problems);
        }
        Ok(report) => assert!(report.errors > 0 && !unchanged, "{:?}", report.problems),
        Err(refusal) => assert!(!unchanged && !refusal.sentence.is_empty(), "{refusal}"),
    }
}

/// The options of repairs: so that two repairs of the same volume end alike.
fn options() -> check::Options {
    check::Options { threads: 1, repair: check::Repair::All, now: Some(1_760_000_000), ..check::Options::default() }
}

/// Repairs these bytes; the report, and the content of the device then.
fn repaired(bytes: Vec<u8>) -> (Result<check::report::Report, check::Refusal>, Vec<u8>) {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_vec(bytes));
    let report = check::repair("volume", &device, &options(), &(), None);
    (report, contents(&*device))
}

/// A repair is interrupted. The first four bytes say where: behind which write, and how much of the next one is there.
/// Guarantee: where the whole repair leaves a consistent volume, and had space for its redo log, the next one ends at
/// the very same bytes.
pub fn repair_cut(data: &[u8]) {
    let Some((&[w0, w1, s0, s1], input)) = data.split_first_chunk() else { return };
    let Some((bytes, _)) = changed(input) else { return };
    let device = Arc::new(Record::in_memory(MemoryDevice::from_vec(bytes.clone())));
    let as_device: Arc<dyn BlockDevice> = Arc::<Record<MemoryDevice, Vec<u8>>>::clone(&device);
    let report = check::repair("volume", &as_device, &options(), &(), None);
    if !report.is_ok_and(|report| report.exit == check::report::exit::REPAIRED) {
        return;
    }
    let log = device.log().expect("a log in memory");
    let (at, sectors) = (u16::from_le_bytes([w0, w1]).into(), u16::from_le_bytes([s0, s1]).into());
    let cut = as_of(&bytes, &log, at, sectors);
    let (again, ended) = repaired(cut);
    // without a log there is nothing to go on from
    if has_redo_log(&bytes, &log) {
        assert!(again.is_ok_and(|report| report.exit & !1 == 0), "the second repair does not end");
        assert!(ended == contents(&*as_device), "it ends elsewhere");
    }
}

/// Whether a repair wrote a redo log: at some moment there was one that leads on.
fn has_redo_log(before: &[u8], log: &Log) -> bool {
    // a sector of the superblock points to it
    const POINTER: u64 = 1536;
    writes(log)
        .into_iter()
        .enumerate()
        .filter(|(_, entry)| matches!(log.entries()[*entry].what, Logged::Write { offset: POINTER, len: 512 }))
        .any(|(n, _)| check::unfinished(&MemoryDevice::from_vec(as_of(before, log, n + 1, 0))))
}

fn writes(log: &Log) -> Vec<usize> {
    (0..log.entries().len()).filter(|n| matches!(log.entries()[*n].what, Logged::Write { .. })).collect()
}

/// The content of the device when the repair was cut.
fn as_of(before: &[u8], log: &Log, at: usize, sectors: u64) -> Vec<u8> {
    let mut state = before.to_vec();
    let writes = writes(log);
    let at = at % (writes.len() + 1);
    for (n, &entry) in writes.iter().enumerate().take(at + 1) {
        let Logged::Write { offset: start, len, .. } = log.entries()[entry].what else { continue };
        let most = if n == at { sectors % (len / 512 + 1) * 512 } else { len };
        for (offset, piece) in log.parts(entry) {
            let there = (start + most).saturating_sub(offset).min(piece.len() as u64) as usize;
            state[offset as usize..offset as usize + there].copy_from_slice(&piece[..there]);
        }
    }
    state
}

/// A repair with an undo file. Guarantee: the file restores every byte, and without a file nothing was changed.
pub fn repair_undo(data: &[u8]) {
    let Some((bytes, _)) = changed(data) else { return };
    let folder = tempdir().expect("a temporary folder");
    let path = folder.path().join("undo");
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_vec(bytes.clone()));
    let report = check::repair("volume", &device, &options(), &(), Some(&path));
    if path.exists() {
        check::undo(&path, &*device).unwrap_or_else(|e| panic!("{e}: {report:?}"));
    }
    assert!(contents(&*device) == bytes, "not as it was: {report:?}");
}

fn apply(&[p0, p1, p2, what, v0, v1, v2, v3]: &[u8; CHANGE], volume: &Volume, bytes: &mut Vec<u8>) {
    let value = [v0, v1, v2, v3];
    if what & FIELD != 0 {
        volume.structures.mutate(bytes, u64::from_le_bytes([p0, p1, p2, what, v0, v1, v2, v3]), 1);
        return;
    }
    let number = u32::from_le_bytes(value) as usize;
    let at = volume.place(u32::from_le_bytes([p0, p1, p2, 0]) as usize);
    let block = |at: usize, bytes: &[u8]| at / 1024 * 1024..bytes.len().min(at / 1024 * 1024 + 1024);
    let width = match what % 8 {
        0 => 1,
        1 | 2 => 2,
        3 | 4 => 4,
        5 => {
            let range = block(at, bytes);
            bytes.get_mut(range).unwrap_or_default().fill(0);
            return;
        }
        6 => {
            let (from, to) = (block(volume.place(number), bytes), block(at, bytes).start);
            if !from.is_empty() && to + from.len() <= bytes.len() {
                bytes.copy_within(from, to);
            }
            return;
        }
        _ => {
            bytes.truncate(bytes.len().min(at + number % 65536));
            return;
        }
    };
    let at = at / width * width;
    if let Some(field) = bytes.get_mut(at..at + width) {
        field.copy_from_slice(&value[..width]);
    }
}

impl Volume {
    /// The byte with this number among those of the metadata.
    fn place(&self, number: usize) -> usize {
        let total: usize = self.metadata.iter().map(ExactSizeIterator::len).sum();
        let mut left = number % total.max(1);
        for range in &self.metadata {
            if left < range.len() {
                return range.start + left;
            }
            left -= range.len();
        }
        0
    }
}
