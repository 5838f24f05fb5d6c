//! Damaged volumes: the check terminates, never reports clean what e2fsck does not, and the repair works.

mod astray;
mod bitmaps_in_tables;
mod clusters;
mod corrected;
mod cuts;
mod destroyed;
mod interrupted;
mod kinds;
mod links;
mod lost;
mod lost_tables;
mod matrix;
mod misled;
mod mutated;
mod pairs;
mod pending;
mod released;
mod renamed;
mod repaired;
mod resize;
mod shared;
mod sharers;
mod stopped;
mod unshared;
mod values;

use blockdev::MemoryDevice;
use extant_check::{Options, check};
use std::panic::{AssertUnwindSafe, catch_unwind};
use testkit::damage::{self, Damager};
use testkit::oracle::e2fsck;
use testkit::{Image, Rng, Spec, Tree, cases, need, repair_checksums};

/// Volumes of every format, small enough for thousands of cases.
fn volumes() -> Vec<Volume> {
    let tree = Tree::new(7, &Spec::small());
    [
        &["-t", "ext2", "-b", "1024"] as &[_],
        &["-t", "ext3", "-b", "1024", "-J", "size=1"],
        &["-t", "ext4", "-b", "1024", "-J", "size=1"],
        &["-t", "ext4", "-b", "4096", "-O", "^has_journal"],
        &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,^has_journal"],
        &["-t", "ext4", "-b", "1024", "-O", "uninit_bg,^metadata_csum,^has_journal"],
        &["-t", "ext4", "-b", "1024", "-g", "1024", "-O", "meta_bg,^resize_inode,^metadata_csum,^has_journal"],
        &["-t", "ext4", "-b", "1024", "-O", "ea_inode,^metadata_csum,^has_journal"],
        &["-t", "ext4", "-b", "1024", "-C", "4096", "-O", "bigalloc,^metadata_csum,^has_journal"],
        &["-t", "ext4", "-b", "1024", "-O", "inline_data,quota,^metadata_csum,^has_journal"],
    ]
    .into_iter()
    .map(|args| {
        let image = Image::mke2fs(args, 16 << 20).with_tree(&tree).build();
        let block = if args.contains(&"4096") && !args.contains(&"-C") { 4096 } else { 1024 };
        let damager = Damager::within(block, damage::metadata_ranges(image.path(), block));
        let before = e2fsck(image.path());
        // a volume with errors from mke2fs itself is left out
        Volume { name: args.join(" "), bytes: image.bytes(), damager, intact: before.clean }
    })
    .filter(|volume| volume.intact)
    .collect()
}

struct Volume {
    name: String,
    bytes: Vec<u8>,
    damager: Damager,
    intact: bool,
}

/// Whether the check reports these bytes as clean. Panics with a description of the damage where the check panics.
fn is_clean(bytes: &[u8], said: &str) -> bool {
    let device = MemoryDevice::from_vec(bytes.to_vec());
    let options = Options { threads: 2, ..Options::default() };
    match catch_unwind(AssertUnwindSafe(|| check("volume", &device, &options, &()))) {
        Ok(Ok(report)) => report.clean,
        Ok(Err(refusal)) => {
            assert!(!refusal.sentence.is_empty() && !refusal.sentence.contains('\n'), "{said}");
            false
        }
        Err(_) => panic!("the check panicked: {said}"),
    }
}

/// Corrupts volumes case by case and runs e2fsck on each that the check reports as clean. Reports all differences.
fn campaign(name: &str, count: u64, corrupt: impl Fn(&Volume, &mut Vec<u8>, &mut Rng) -> String) {
    let volumes = volumes();
    let scratch = Image::from_bytes(&[]);
    let mut findings = Vec::new();
    for case in cases(name, count) {
        let mut rng = case.rng();
        let volume = rng.pick(&volumes);
        let mut bytes = volume.bytes.clone();
        let said = corrupt(volume, &mut bytes, &mut rng);
        if is_clean(&bytes, &said) {
            scratch.set_bytes(&bytes);
            let verdict = e2fsck(scratch.path());
            if !verdict.clean {
                let text = verdict.text.lines().filter(|l| !l.is_empty() && !l.starts_with("Pass"));
                let text: Vec<_> = text.take(4).collect();
                let (exit, seed) = (verdict.exit, case.seed);
                let volume = &volume.name;
                findings.push(format!("EXTANT_SEED={seed:#x} mke2fs {volume}: {said}\n  e2fsck ({exit:?}): {text:?}"));
            }
        }
    }
    assert!(findings.is_empty(), "{} called clean against e2fsck:\n{}", findings.len(), findings.join("\n"));
}

#[test]
fn intact_volumes_are_clean() {
    if !need(&["mke2fs", "e2fsck", "e2image"]) {
        return;
    }
    let volumes = volumes();
    assert!(volumes.len() >= 8, "only {} clean volumes to start from", volumes.len());
    for volume in volumes {
        let device = MemoryDevice::from_vec(volume.bytes);
        let report = check("volume", &device, &Options::default(), &()).expect("a volume");
        assert!(report.clean, "{}: {:?}", volume.name, report.problems);
    }
}

#[test]
fn flipped_bytes_are_never_called_clean_against_e2fsck() {
    if !need(&["mke2fs", "e2fsck", "e2image"]) {
        return;
    }
    campaign("flips", 400, |volume, bytes, rng| {
        let said = volume.damager.any(bytes, rng);
        if rng.chance(50) {
            repair_checksums(bytes);
        }
        said
    });
}

#[test]
fn truncated_volumes_are_never_called_clean_against_e2fsck() {
    if !need(&["mke2fs", "e2fsck", "e2image"]) {
        return;
    }
    campaign("truncations", 60, |_, bytes, rng| damage::truncate(bytes, rng));
}

#[test]
fn any_bytes_at_all_get_one_sentence() {
    for case in cases("noise", 200) {
        let mut rng = case.rng();
        let len = rng.magnitude(1 << 16) as usize;
        let mut bytes = rng.bytes(len);
        if let Some(magic) = bytes.get_mut(1080..1082)
            && rng.chance(70)
        {
            magic.copy_from_slice(&[0x53, 0xEF]);
        }
        assert!(!is_clean(&bytes, "noise"));
    }
}
