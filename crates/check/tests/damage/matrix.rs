//! Each 16-bit field of a structure of each kind, with each of a few values and all checksums corrected: our verdict is
//! e2fsck's, e2fsck finds nothing after a repair, and no file is lost that e2fsck's repair preserves.
//!
//! `make test` takes a few of them, evenly; with a high `EXTANT_CAMPAIGN` it is all.

use crate::kinds::lost;
use crate::mutated::{Seed, seeds};
use crate::repaired::{Wrong, options, wrong_with};
use blockdev::MemoryDevice;
use extant_check::report::Report;
use extant_check::table::{Code, Severity};
use extant_check::{Refusal, Repair, check};
use std::path::Path;
use testkit::oracle::e2fsck;
use testkit::tools::has_loop;
use testkit::{Image, need, rounds};

/// The problems that are errors in Extant but not in e2fsck, and why.
const STRICTER: [(Code, &str); 8] = [
    (Code::JournalInodeRestorable, "the superblock's copy of the journal's map and size differs"),
    (Code::BeyondDevice, "file data that lay beyond the device is lost"),
    (
        Code::EntryDuplicate,
        "of one name in two leaves lookups find one; e2fsck compares whole directories only to optimise them",
    ),
    (Code::HtreeMaximumHashWrong, "lookups miss names above the range that an ancestor node allows for a leaf"),
    (Code::HtreeInvalid, "follows from the one before"),
    (Code::ExtentTreeTooDeep, "the kernel rejects a tree with levels but no entries"),
    (Code::InodeXattrNameLengthWrong, "the kernel rejects an inode with a zero byte in an attribute's name"),
    (Code::XattrNameBad, "the same in an attribute block"),
];

/// The difference between our verdict on these bytes and e2fsck's; `None` where they agree.
fn verdict(bytes: &[u8], scratch: &Image) -> Option<String> {
    let ours: Result<Report, Refusal> =
        check("volume", &MemoryDevice::from_vec(bytes.to_vec()), &options(Repair::No), &());
    scratch.set_bytes(bytes);
    let theirs = e2fsck(scratch.path());
    let exit = theirs.exit?;
    let lines = theirs.text.lines().filter(|line| !line.is_empty() && !line.starts_with("Pass"));
    let said: Vec<_> = lines.take(4).collect();
    match ours {
        Ok(report) if report.clean && exit & 4 != 0 => Some(format!("called clean; e2fsck: {said:?}")),
        Ok(report) if !report.clean && exit == 0 => {
            let errors = report.problems.iter().filter(|problem| problem.severity >= Severity::Error);
            let errors: Vec<_> = errors.filter(|p| !STRICTER.iter().any(|(code, _)| *code == p.code)).collect();
            let found = errors.iter().take(4).map(|problem| &problem.text).collect::<Vec<_>>();
            (!errors.is_empty()).then(|| format!("e2fsck calls it clean; ours: {found:?}"))
        }
        Err(refusal) if exit == 0 => Some(format!("e2fsck calls it clean; ours refuses: {refusal}")),
        _ => None,
    }
}

/// All errors in the check and repair of a changed volume; and whether it is one that we leave and e2fsck repairs.
fn findings(volume: &Seed, bytes: &[u8], scratch: &Image) -> (Vec<String>, bool) {
    let mut found: Vec<String> = verdict(bytes, scratch).into_iter().collect();
    let mut left = false;
    match wrong_with(bytes, scratch) {
        Some(Wrong::Damaged(text)) => found.push(text),
        Some(Wrong::Left(_)) => left = true,
        None if has_loop() => found.extend(lost(bytes, &volume.bytes)),
        None => {}
    }
    (found, left)
}

#[test]
fn each_field_is_checked_and_repaired_as_e2fsck_does() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let seeds = seeds();
    let mut cases = Vec::new();
    for volume in seeds {
        for field in volume.structures.fields(&volume.bytes) {
            cases.extend(field.values(&volume.bytes).into_iter().map(|value| (volume, field.clone(), value)));
        }
    }
    let step = (cases.len() / rounds(60) as usize).max(1);
    let start = std::env::var("EXTANT_DRAW").ok().and_then(|text| text.parse().ok()).unwrap_or(0) % step;
    let scratch = Image::from_bytes(&[]);
    let (mut all, mut left, mut count) = (Vec::new(), 0, 0);
    for (number, (volume, field, value)) in cases.iter().enumerate().skip(start).step_by(step) {
        let mut bytes = volume.bytes.clone();
        field.set(&mut bytes, *value);
        volume.structures.set_checksum(&mut bytes);
        // a checksum, which was corrected
        if bytes == volume.bytes {
            continue;
        }
        count += 1;
        let (found, is_left) = findings(volume, &bytes, &scratch);
        left += usize::from(is_left);
        if found.is_empty() {
            continue;
        }
        let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("matrix-{number}.img"));
        std::fs::write(&place, &bytes).expect("writing a volume");
        let (name, said, now, place) = (&volume.name, &field.said, field.get(&volume.bytes), place.display());
        let finding = format!("mke2fs {name}: {said}, {now:#x} to {value:#x}\n  {}\n  {place}", found.join("\n  "));
        // a campaign of hours prints each at once
        println!("{finding}");
        all.push(finding);
    }
    println!("{count} volumes of {}, {} taken otherwise, {left} left that e2fsck repairs", cases.len(), all.len());
    assert!(all.is_empty(), "{} of {count} volumes are taken otherwise:\n{}", all.len(), all.join("\n"));
}
