//! Volumes with any field of any structure changed and all checksums corrected, so that only the meaning of the fields
//! reveals the change: none is reported clean that e2fsck does not report clean, and a repaired volume is clean for
//! both.

use crate::repaired::{Wrong, wrong_with};
use damage::Structures;
use std::path::Path;
use std::sync::OnceLock;
use testkit::oracle::e2fsck;
use testkit::{Image, Rng, Spec, Tree, cases, need};

/// A clean volume.
pub(crate) struct Seed {
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
    pub(crate) structures: Structures,
}

/// Volumes small enough for thousands of cases, which together have all structures. Created once.
pub(crate) fn seeds() -> &'static [Seed] {
    static SEEDS: OnceLock<Vec<Seed>> = OnceLock::new();
    SEEDS.get_or_init(make_seeds)
}

fn make_seeds() -> Vec<Seed> {
    const KINDS: [&[&str]; 12] = [
        &["-t", "ext2", "-b", "1024"],
        &["-t", "ext2", "-b", "1024", "-I", "128", "-O", "^dir_index"],
        &["-t", "ext3", "-b", "1024", "-J", "size=1"],
        &["-t", "ext2", "-b", "4096"],
        &["-t", "ext4", "-b", "1024", "-J", "size=1"],
        &["-t", "ext4", "-b", "4096", "-O", "^has_journal,^64bit,metadata_csum_seed"],
        &["-t", "ext4", "-b", "1024", "-O", "orphan_file,quota,project,inline_data", "-J", "size=1"],
        &["-t", "ext4", "-b", "1024", "-O", "ea_inode,large_dir,casefold,^has_journal"],
        &["-t", "ext4", "-b", "1024", "-O", "^has_journal,^resize_inode,meta_bg,^flex_bg", "-g", "1024"],
        &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,uninit_bg,^has_journal"],
        &["-t", "ext4", "-b", "1024", "-O", "bigalloc,^has_journal", "-C", "4096"],
        &["-t", "ext4", "-b", "1024", "-O", "^has_journal,sparse_super2,^resize_inode", "-I", "128"],
    ];
    let tree = Tree::new(7, &Spec { files: 80, wide: 150, ..Spec::small() });
    KINDS
        .iter()
        .filter_map(|args| {
            let image = Image::mke2fs(args, 8 << 20).with_tree(&tree).indexed().build();
            let bytes = image.bytes();
            let structures = Structures::of(&bytes).expect("a clean volume");
            // a volume with errors from mke2fs itself is left out
            e2fsck(image.path()).clean.then(|| Seed { name: args.join(" "), bytes, structures })
        })
        .collect()
}

/// Changes a few fields of a volume; returns a description of the changes.
fn mutate(seed: &Seed, bytes: &mut Vec<u8>, rng: &mut Rng) -> String {
    let changes = *rng.pick(&[1, 1, 1, 2, 2, 3, 5, 9]);
    let mut said = seed.structures.mutate(bytes, rng.next_u64(), changes);
    if rng.chance(90) {
        seed.structures.set_checksum(bytes);
    } else {
        said.push("checksums as they were".to_owned());
    }
    said.join("; ")
}

/// The error in the check or repair of these bytes; `None` where there is none.
fn disagreement(bytes: &[u8], scratch: &Image, said: &str) -> Option<Wrong> {
    if crate::is_clean(bytes, said) {
        scratch.set_bytes(bytes);
        let verdict = e2fsck(scratch.path());
        if verdict.exit == Some(4) {
            let text = verdict.text.lines().filter(|l| !l.is_empty() && !l.starts_with("Pass")).take(4);
            return Some(Wrong::Damaged(format!("called clean; e2fsck: {:?}", text.collect::<Vec<_>>())));
        }
    }
    wrong_with(bytes, scratch)
}

/// The resize inode is a large file, and the only one: without the feature the volume has errors.
#[test]
fn large_files_of_the_volumes_own_need_their_feature() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let image = Image::mke2fs(&["-t", "ext2", "-b", "4096", "-O", "resize_inode"], 8 << 20).build();
    assert!(crate::is_clean(&image.bytes(), "a new volume"));
    image.debugfs(&["feature -large_file"]);
    assert!(!e2fsck(image.path()).clean);
    let bytes = image.bytes();
    assert!(!crate::is_clean(&bytes, "no large_file"));
    assert!(wrong_with(&bytes, &image).is_none(), "the repair and e2fsck disagree");
}

#[test]
fn the_verdict_on_mutated_volumes_is_e2fscks() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let seeds = seeds();
    assert!(seeds.len() >= 10, "only {} clean volumes to start from", seeds.len());
    let scratch = Image::from_bytes(&[]);
    let (mut findings, mut left, mut count) = (Vec::new(), 0, 0);
    for case in cases("mutated volumes", 60) {
        let mut rng = case.rng();
        let volume = rng.pick(seeds);
        let mut bytes = volume.bytes.clone();
        let said = mutate(volume, &mut bytes, &mut rng);
        count += 1;
        let Some(wrong) = disagreement(&bytes, &scratch, &said) else { continue };
        let saved = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("mutated-{:#x}.img", case.seed));
        std::fs::write(&saved, &bytes).expect("saving a volume");
        let (name, text, saved) = (&volume.name, wrong.text(), saved.display());
        let finding = format!("EXTANT_SEED={:#x} mke2fs {name}: {said}\n  {text}\n  {saved}", case.seed);
        // a campaign of hours reports at once
        println!("{finding}");
        match wrong {
            // it lost nothing, and reported that errors remain
            Wrong::Left(_) => left += 1,
            Wrong::Damaged(_) => findings.push(finding),
        }
    }
    println!("{count} volumes, {} found otherwise, {left} left that e2fsck repairs", findings.len());
    assert!(findings.is_empty(), "{} of {count} volumes are found otherwise:\n{}", findings.len(), findings.join("\n"));
}
