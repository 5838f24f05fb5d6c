//! The whole checker, and its repair. Their inputs are not volumes but changes to one: a few bytes that libFuzzer can
//! mutate with effect, where a volume is megabytes of which nearly none matter.
//!
//! An input is two bytes (which volume; whether checksums are put right afterwards) and then changes of eight bytes
//! each: three for the place among the bytes of the volume's metadata, one for what to do, four for a value.

use crate::seeds::{Volume, volumes};
use blockdev::{BlockDevice, MemoryDevice};
use std::sync::Arc;
use testkit::Rng;

const CHANGE: usize = 8;

/// Inputs to start from: each volume unchanged, and with one to eight changes and its checksums put right.
pub(crate) fn patches() -> Vec<Vec<u8>> {
    let mut rng = Rng::new(1);
    let mut seeds = Vec::new();
    for number in 0..volumes().len() as u8 {
        seeds.push(vec![number, 0]);
        for _ in 0..20 {
            let mut seed = vec![number, 1];
            let changes = rng.between(1, 8) as usize;
            seed.extend(rng.bytes(changes * CHANGE));
            seeds.push(seed);
        }
    }
    seeds
}

/// The volume that an input says, and whether it is as it was.
fn changed(data: &[u8]) -> Option<(Vec<u8>, bool)> {
    let (&[number, flags], changes) = data.split_first_chunk()?;
    let volumes = volumes();
    let volume = &volumes[usize::from(number) % volumes.len()];
    let mut bytes = volume.bytes.clone();
    for change in changes.as_chunks::<CHANGE>().0.iter().take(64) {
        apply(change, volume, &mut bytes);
    }
    if flags & 1 != 0 {
        testkit::repair_checksums(&mut bytes);
    }
    let unchanged = bytes == volume.bytes;
    Some((bytes, unchanged))
}

/// A volume with some of its metadata changed. Promise: the checker comes to an end and says what it found; a volume
/// that nobody changed is sound.
pub fn check(data: &[u8]) {
    let Some((bytes, unchanged)) = changed(data) else { return };
    let options = check::Options { threads: 1, ..check::Options::default() };
    match check::check("volume", &MemoryDevice::from_vec(bytes), &options, &()) {
        Ok(report) => {
            assert!(report.clean || !unchanged, "{:?}", report.problems);
            assert_eq!(report.clean, report.errors == 0);
            assert_eq!(report.clean, report.exit == 0);
            report.problems.iter().for_each(|problem| assert!(!problem.text.is_empty()));
        }
        Err(refusal) => assert!(!unchanged, "{refusal}"),
    }
}

/// A volume with some of its metadata changed is mended. Promise: the repair comes to an end; where it says that all is
/// mended a check finds nothing, and where it refuses it has written nothing but what an unfinished repair left to do.
pub fn repair(data: &[u8]) {
    let Some((bytes, unchanged)) = changed(data) else { return };
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_vec(bytes));
    let now = Some(1_760_000_000);
    let options = check::Options { threads: 1, repair: check::Repair::All, now, ..check::Options::default() };
    match check::repair("volume", &device, &options, &(), None) {
        Ok(report) if report.exit & !1 == 0 => {
            let second = check::check("volume", &*device, &options, &()).expect("a volume that was mended");
            assert!(second.clean, "{:?}", second.problems);
        }
        Ok(report) => assert!(report.errors > 0 && !unchanged, "{:?}", report.problems),
        Err(refusal) => assert!(!unchanged && !refusal.sentence.is_empty(), "{refusal}"),
    }
}

fn apply(&[p0, p1, p2, what, v0, v1, v2, v3]: &[u8; CHANGE], volume: &Volume, bytes: &mut Vec<u8>) {
    let value = [v0, v1, v2, v3];
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
