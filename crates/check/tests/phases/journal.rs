//! The journal's inode and superblock.

use super::{Finds, Volume, compare, no_difference, ours};
use extant_check::table::Code;
use testkit::{Image, need, oracle};

/// The superblock's first byte.
const SB: usize = 1024;

/// A case of damage: fields of the journal's superblock and their values.
type Case = (&'static str, &'static [(usize, u32)], Finds);

/// A volume, and the first byte of its journal.
fn volume(kind: &str, commands: &[&str]) -> (Volume, usize) {
    let image = Image::mke2fs(&["-t", kind, "-b", "1024", "-J", "size=4"], 40 << 20).build();
    let said = oracle::debugfs(image.path(), "bmap <8> 0");
    let number = said.lines().find_map(|line| line.trim().parse::<usize>().ok());
    if !commands.is_empty() {
        image.debugfs(commands);
    }
    (Volume::of(&image), number.expect("the journal's first block") * 1024)
}

#[test]
fn superblocks_of_journals() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    use Finds::{Anything, Nothing, This};
    let (bad, advice) = (This(Code::JournalSuperblockBad), This(Code::JournalVersion1HasFeatures));
    let cases: &[Case] = &[
        ("magic", &[(0, 0)], This(Code::JournalInodeBad)),
        ("of version 1", &[(4, 3), (0x28, 1)], advice),
        ("a revoke block", &[(4, 5)], bad),
        ("of an unknown type", &[(4, 7)], This(Code::JournalTypeUnknown)),
        ("of an unknown type, two users", &[(4, 7), (0x40, 2)], This(Code::JournalTypeUnknown)),
        ("block size", &[(12, 4096)], bad),
        ("too long", &[(16, 0x00FF_FFFF)], bad),
        ("first block", &[(20, 5)], Nothing),
        ("a log", &[(28, 5)], This(Code::JournalRecoveryFlagMissing)),
        ("an error", &[(32, 0xFFFF_FFFB)], Anything),
        ("unknown feature", &[(0x28, 0x40)], This(Code::JournalFeatureUnknown)),
        ("unknown read-only feature", &[(0x2C, 1)], This(Code::JournalReadOnlyFeatureUnknown)),
        ("checksums it does not have", &[(0x28, 0x10)], bad),
        ("two schemes of checksums", &[(0x28, 0x18)], bad),
        ("fast commits that leave too short a log", &[(0x28, 0x20), (16, 1200)], bad),
        ("fast commits that leave a log", &[(0x28, 0x20), (16, 1280)], Nothing),
        ("two users", &[(0x40, 2)], This(Code::JournalSharedUnsupported)),
    ];
    for kind in ["ext3", "ext4"] {
        let (volume, at) = volume(kind, &[]);
        no_difference(cases.iter().map(|(said, fields, finds)| {
            compare(&volume, &format!("{kind}: {said}"), *finds, |v| {
                for (field, value) in *fields {
                    v.put(at + field, &value.to_be_bytes());
                }
            })
        }));
    }
}

#[test]
fn what_the_superblock_says_of_the_journal() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    use Finds::{Anything, This};
    let corrupt = |at: usize, value: u32| move |v: &mut Volume| v.put(SB + at, &value.to_le_bytes());
    let (volume, _) = volume("ext3", &[]);
    no_difference([
        compare(&volume, "no inode", This(Code::JournalInodeElsewhere), corrupt(0xE0, 0)),
        compare(&volume, "no such inode", This(Code::JournalInodeElsewhere), corrupt(0xE0, 99_999)),
        compare(&volume, "another device", This(Code::JournalDeviceNotFound), corrupt(0xD0, 5)),
        compare(&volume, "no feature", This(Code::JournalFeatureMissing), |v| v.clear_u32(SB + 0x5C, 4)),
        compare(&volume, "recovery", This(Code::JournalRecoveryOfNothing), |v| v.set_u32(SB + 0x60, 4)),
        compare(&volume, "no journal", Anything, |v| {
            v.clear_u32(SB + 0x5C, 4);
            v.put(SB + 0xE0, &[0; 4]);
        }),
        compare(&volume, "another device, but no journal", This(Code::JournalDeviceNotFound), |v| {
            v.clear_u32(SB + 0x5C, 4);
            v.put(SB + 0xE0, &[0; 4]);
            v.put(SB + 0xD0, &[0xFE, 0xFF]);
        }),
    ]);
}

#[test]
fn inodes_of_journals() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    use Finds::{Nothing, This};
    // where e2fsck drops the journal as its copy is that of an extent tree, Extant restores it
    let bad = This(Code::JournalInodeRestorable);
    for (command, finds) in [
        ("sif <8> mode 0", bad),
        ("sif <8> mode 040600", bad),
        ("sif <8> links_count 0", bad),
        ("sif <8> size 1000", bad),
        ("sif <8> size 1048576", This(Code::JournalSuperblockBad)),
        ("sif <8> size 100000000", bad),
        ("sif <8> block[0] 0", bad),
        ("sif <8> flags 0", bad),
        ("clri <8>", bad),
        ("sif <8> uid 5", Nothing),
    ] {
        let (volume, _) = volume("ext4", &[command]);
        no_difference([compare(&volume, &format!("ext4: {command}"), finds, |_| ())]);
    }
    // the superblock's copy of the block map helps
    for command in ["sif <8> mode 0", "sif <8> block[0] 0", "sif <8> block[5] 99999", "clri <8>"] {
        let (volume, _) = volume("ext3", &[command]);
        no_difference([compare(&volume, &format!("ext3: {command}"), bad, |_| ())]);
    }
    // e2fsck -n does not report this, and -y restores the inode silently
    let (volume, _) = volume("ext3", &["sif <8> size 100000000"]);
    let report = ours(&volume.0).expect("a volume");
    assert!(report.problems.iter().any(|problem| problem.code == Code::JournalInodeRestorable));
}
