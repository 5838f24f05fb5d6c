//! A repair that is cut at any write: the next one ends where the uninterrupted one does.

use crate::repaired::{contents, fix, options, spoil};
use crate::volumes;
use blockdev::{BlockDevice, MemoryDevice, undo};
use extant_check::report::exit;
use extant_check::{Repair, repair, unfinished};
use simdev::{Log, Logged, Record};
use std::sync::Arc;
use testkit::{cases, need};

/// Repairs these bytes on a device that records every change; where that leaves a sound volume, what it holds and how it
/// came to.
fn recorded(bytes: &[u8]) -> Option<(Vec<u8>, Log)> {
    let device = Arc::new(Record::in_memory(MemoryDevice::from_vec(bytes.to_vec())));
    let as_device: Arc<dyn BlockDevice> = Arc::<Record<MemoryDevice, Vec<u8>>>::clone(&device);
    let report = repair("volume", &as_device, &options(Repair::All), &(), None).ok()?;
    (report.exit == exit::REPAIRED).then(|| (contents(&*as_device), device.log().expect("a whole log")))
}

/// Writes to `state` what one write of the log did, but of the last of `sectors` sectors only.
fn redo(log: &Log, entry: usize, state: &mut [u8], sectors: u64) {
    for (offset, piece) in log.pieces(entry) {
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
        let said = spoil(volume, &mut bytes, &mut rng);
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
        // all that is safe, all that was written since in order, and what is on the device of that in no order
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
        let said = spoil(volume, &mut bytes, &mut rng);
        let said = format!("EXTANT_SEED={:#x} mke2fs {}: {said}", case.seed, volume.name);
        let path = folder.path().join(format!("{:x}", case.seed));
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_vec(bytes.clone()));
        if repair("volume", &device, &options(Repair::All), &(), Some(&path)).is_err() || !path.exists() {
            assert!(contents(&*device) == bytes, "{said}: changed without an undo file");
            continue;
        }
        undo::restore(&path, &*device).unwrap_or_else(|e| panic!("{said}: {e}"));
        assert!(contents(&*device) == bytes, "{said}: not as it was");
        undone += 1;
    }
    assert!(undone > 5, "only {undone} undone");
}
