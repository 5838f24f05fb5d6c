//! Any two kinds of damage on a volume are repaired by one run: a second check finds nothing, and neither does e2fsck.

use crate::repaired::{Wrong, contents, wrong_with};
use blockdev::MemoryDevice;
use damage::{Kind, damage};
use testkit::oracle::e2fsck;
use testkit::tools::run;
use testkit::{Image, Rng, Spec, Tree, cases, need};

/// A clean volume.
struct Base {
    name: String,
    bytes: Vec<u8>,
}

/// Volumes with and without checksums, inline data and values in inodes of their own.
fn bases() -> Vec<Base> {
    const ALL: [&[&str]; 10] = [
        &["-t", "ext2", "-b", "1024", "-g", "4096"],
        &["-t", "ext3", "-b", "1024", "-g", "4096", "-J", "size=1"],
        &["-t", "ext4", "-b", "1024", "-g", "4096", "-J", "size=1"],
        &["-t", "ext4", "-b", "1024", "-g", "4096", "-J", "size=1", "-O", "^metadata_csum"],
        &["-t", "ext4", "-b", "1024", "-g", "4096", "-I", "256", "-O", "inline_data,^has_journal"],
        &["-t", "ext4", "-b", "1024", "-g", "4096", "-I", "256", "-O", "inline_data,^metadata_csum,^has_journal"],
        &["-t", "ext4", "-b", "1024", "-g", "4096", "-I", "256", "-O", "ea_inode,^has_journal"],
        &["-t", "ext4", "-b", "1024", "-g", "4096", "-I", "256", "-O", "ea_inode,^metadata_csum,^has_journal"],
        &["-t", "ext4", "-b", "1024", "-g", "4096", "-I", "256", "-O", "ea_inode,inline_data,^has_journal"],
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-g",
            "4096",
            "-I",
            "256",
            "-O",
            "ea_inode,inline_data,^metadata_csum,^has_journal",
        ],
    ];
    let tree = Tree::new(7, &Spec { files: 60, wide: 120, ..Spec::small() });
    let folder = tempfile::tempdir().expect("a folder");
    let value = folder.path().join("value");
    std::fs::write(&value, vec![b'v'; 5000]).expect("a file");
    ALL.iter()
        .filter_map(|args| {
            let set: Vec<String> = (0..4)
                .flat_map(|n| {
                    let name = if n == 3 { "user.second" } else { "user.large" };
                    [
                        format!("write {} valued{n}", value.display()),
                        format!("ea_set -f {} valued{n} {name}", value.display()),
                    ]
                })
                .collect();
            let set: Vec<&str> = set.iter().map(String::as_str).collect();
            let named = args.iter().any(|arg| arg.contains("ea_inode"));
            let image = Image::mke2fs(args, 8 << 20).with_tree(&tree).debugfs(if named { &set } else { &[] });
            let image = image.indexed().build();
            // debugfs does not count the blocks of such a value
            run("e2fsck", &["-fy".as_ref(), image.path().as_os_str()]);
            // a volume with errors from the tools themselves is left out
            e2fsck(image.path()).clean.then(|| Base { name: args.join(" "), bytes: image.bytes() })
        })
        .collect()
}

/// Damages a volume in this way; `false` where it lacks the structure for it.
fn damage_once(bytes: &mut Vec<u8>, kind: Kind, seed: u64) -> bool {
    let device = MemoryDevice::from_vec(bytes.clone());
    let done = damage(&device, kind, seed).is_ok();
    if done {
        *bytes = contents(&device);
    }
    done
}

/// Damages a volume in two ways that it has the structures for; returns their description.
fn damage_twice(bytes: &mut Vec<u8>, kinds: &[Kind], rng: &mut Rng) -> String {
    let mut said = Vec::new();
    for _ in 0..40 {
        let (kind, seed) = (*rng.pick(kinds), rng.next_u64());
        if damage_once(bytes, kind, seed) {
            said.push(format!("{kind:x?}, seed {seed:#x}"));
        }
        if said.len() == 2 {
            break;
        }
    }
    said.join("; ")
}

#[test]
fn pairs_of_damage_are_repaired_in_one_run() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let bases = bases();
    assert!(bases.len() >= 8, "only {} clean volumes to start from", bases.len());
    let kinds: Vec<Kind> = Kind::all().collect();
    let scratch = Image::from_bytes(&[]);
    let mut findings = Vec::new();
    for case in cases("pairs of damage", 60) {
        let mut rng = case.rng();
        let base = rng.pick(&bases);
        let mut bytes = base.bytes.clone();
        let said = damage_twice(&mut bytes, &kinds, &mut rng);
        let Some(wrong) = wrong_with(&bytes, &scratch) else { continue };
        let finding = format!("EXTANT_SEED={:#x} mke2fs {}: {said}\n  {}", case.seed, base.name, wrong.text());
        // a campaign of hours prints at once
        println!("{finding}");
        // a repair that reports that it is not done has lost nothing
        if let Wrong::Damaged(_) = wrong {
            findings.push(finding);
        }
    }
    assert!(findings.is_empty(), "{} not repaired:\n{}", findings.len(), findings.join("\n"));
}
