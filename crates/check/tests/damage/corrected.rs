//! Superblocks with one wrong field in the primary and all copies, or on a volume of one group, which has no copy: the
//! field is corrected from the others, the descriptors and the device, and no file is lost.

use crate::misled::{filled_folder, look, superblock, tree};
use crate::repaired::{fix, only_marked};
use extant_check::Repair;
use extant_check::report::exit;
use extant_check::table::Code;
use format::feature::Incompat;
use format::superblock::{DiskSuperblock, MAGIC};
use testkit::oracle::e2fsck;
use testkit::{Image, need};
use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

type Change = fn(&mut DiskSuperblock);

const CHANGES: [(&str, Change); 18] = [
    ("s_inodes_count", |sb| sb.s_inodes_count = (sb.s_inodes_count.get() + 1).into()),
    ("s_inodes_count", |sb| sb.s_inodes_count = (sb.s_inodes_count.get() / 2).into()),
    ("s_inodes_count", |sb| sb.s_inodes_count = (sb.s_inodes_count.get() * 2).into()),
    ("s_inodes_per_group", |sb| sb.s_inodes_per_group = (sb.s_inodes_per_group.get() / 2).into()),
    ("s_inodes_per_group", |sb| sb.s_inodes_per_group = (sb.s_inodes_per_group.get() + 8).into()),
    ("s_inodes_per_group", |sb| sb.s_inodes_per_group = (sb.s_inodes_per_group.get() + 2).into()),
    ("s_reserved_gdt_blocks", |sb| sb.s_reserved_gdt_blocks = (sb.s_reserved_gdt_blocks.get() + 20).into()),
    ("s_inode_size", |sb| sb.s_inode_size = (sb.s_inode_size.get() / 2).into()),
    ("s_inode_size", |sb| sb.s_inode_size = (sb.s_inode_size.get() * 2).into()),
    ("s_inode_size", |sb| sb.s_inode_size = 77.into()),
    ("s_first_ino", |sb| sb.s_first_ino = 3.into()),
    ("s_first_data_block", |sb| sb.s_first_data_block = (1 - sb.s_first_data_block.get().min(1)).into()),
    ("s_blocks_per_group", |sb| sb.s_blocks_per_group = (sb.s_blocks_per_group.get() / 2).into()),
    ("s_clusters_per_group", |sb| sb.s_clusters_per_group = (sb.s_clusters_per_group.get() / 2).into()),
    // with numbers that no mkfs writes, although they agree
    ("s_inodes_per_group", |sb| with_inodes(sb, sb.s_inodes_per_group.get() + 4)),
    ("s_blocks_per_group", |sb| with_groups(sb, sb.s_blocks_per_group.get() - 2)),
    ("s_blocks_per_group", |sb| (sb.s_blocks_per_group, sb.s_clusters_per_group) = odd_and_wrong(sb)),
    ("s_log_cluster_size", |sb| sb.s_log_cluster_size = (sb.s_log_cluster_size.get() + 1).into()),
];

fn with_inodes(sb: &mut DiskSuperblock, per_group: u32) {
    let groups = sb.s_inodes_count.get() / sb.s_inodes_per_group.get();
    (sb.s_inodes_per_group, sb.s_inodes_count) = (per_group.into(), (groups * per_group).into());
}

fn with_groups(sb: &mut DiskSuperblock, blocks: u32) {
    (sb.s_blocks_per_group, sb.s_clusters_per_group) = (blocks.into(), blocks.into());
}

/// Both numbers are wrong, and neither is that of the other.
fn odd_and_wrong(sb: &DiskSuperblock) -> (U32, U32) {
    ((sb.s_blocks_per_group.get() - 2).into(), 8.into())
}

/// Changes the superblock and all its copies; their checksums are right.
fn change_all(bytes: &mut [u8], change: Change) {
    let uuid = superblock(bytes).s_uuid;
    for place in bytes.chunks_exact_mut(1024) {
        let copy = DiskSuperblock::mut_from_bytes(place).expect("1 024 bytes");
        if copy.s_magic.get() == MAGIC && copy.s_uuid == uuid {
            change(copy);
            copy.set_checksum();
        }
    }
}

/// The field is corrected with all files, by -y alone.
fn is_corrected(said: &str, image: &Image, intact: &[u8], field: &str, change: Change) {
    image.set_bytes(intact);
    let before = tree(image);
    let mut bytes = intact.to_vec();
    change_all(&mut bytes, change);
    let report = look(&bytes);
    let found = report.problems.iter().find(|problem| problem.code == Code::SuperblockFieldMisleads);
    let problem = found.unwrap_or_else(|| panic!("{said}: {:?}", report.problems));
    assert!(problem.text.contains(field), "{said}: {problem:?}");
    let mut safe = bytes.clone();
    let report = fix(&mut safe, Repair::Safe).expect("a volume");
    assert!(report.exit & exit::LEFT != 0 && only_marked(&bytes, &safe), "{said}: {:?}", report.problems);
    let report = fix(&mut bytes, Repair::All).expect("a volume");
    assert_eq!(report.exit, exit::REPAIRED, "{said}: {:?}", report.problems);
    assert!(look(&bytes).problems.is_empty(), "{said}: {:?}", look(&bytes).problems);
    image.set_bytes(&bytes);
    let verdict = e2fsck(image.path());
    assert!(verdict.clean, "{said}: {}", verdict.text);
    assert_eq!(tree(image), before, "{said}");
}

#[test]
fn a_field_that_is_wrong_in_all_copies_is_corrected() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let volumes: [(&str, &[&str], u64); 5] = [
        ("ext2 of one group", &["-t", "ext2", "-b", "1024"], 4),
        ("ext4 of one group", &["-t", "ext4", "-b", "1024", "-J", "size=1"], 7),
        ("ext3 of three groups", &["-t", "ext3", "-b", "1024", "-J", "size=1"], 20),
        ("ext4 of five groups", &["-t", "ext4", "-b", "1024", "-J", "size=1"], 40),
        ("ext4 of small groups", &["-t", "ext4", "-b", "4096", "-g", "1024", "-O", "^has_journal"], 16),
    ];
    for (kind, args, size) in volumes {
        let image = Image::mke2fs(args, size << 20).with_folder(filled_folder().path()).build();
        let intact = image.bytes();
        for (n, (field, change)) in CHANGES.into_iter().enumerate() {
            let mut changed = intact.clone();
            change(superblock(&mut changed));
            if *superblock(&mut changed) != *superblock(&mut intact.clone()) {
                is_corrected(&format!("{kind}, change {n} of {field}"), &image, &intact, field, change);
            }
        }
    }
}

/// Without the feature all tables of the other groups are at impossible locations.
#[test]
fn a_feature_that_the_locations_of_tables_require_is_set_again() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let volumes: [&[&str]; 3] = [
        &["-t", "ext4", "-b", "1024", "-J", "size=1"],
        &["-t", "ext4", "-b", "1024", "-I", "128", "-O", "^metadata_csum,uninit_bg", "-J", "size=1"],
        &["-t", "ext4", "-b", "4096", "-g", "1024", "-O", "^metadata_csum,^uninit_bg,^has_journal"],
    ];
    for args in volumes {
        let image = Image::mke2fs(args, 20 << 20).with_folder(filled_folder().path()).build();
        let change: Change = |sb| {
            let features = sb.features().incompat - Incompat::FLEX_BG;
            sb.s_feature_incompat = features.bits().into();
        };
        is_corrected(&format!("{args:?}"), &image, &image.bytes(), "s_feature_incompat", change);
    }
}

/// A number of blocks for fewer groups than the inodes are for.
#[test]
fn a_halved_number_of_blocks_is_corrected() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let args = ["-t", "ext4", "-b", "1024", "-J", "size=1"];
    let image = Image::mke2fs(&args, 40 << 20).with_folder(filled_folder().path()).build();
    is_corrected("half", &image, &image.bytes(), "s_blocks_count", |sb| sb.set_blocks_count(sb.blocks_count() / 2));
}

/// Volumes with wrong fields that no correction explains: nothing is guessed and nothing written. An impossible block size
/// beside the right cluster size is explained.
#[test]
fn fields_that_nothing_explains_are_left() {
    if !need(&["mke2fs"]) {
        return;
    }
    let image = Image::mke2fs(&["-t", "ext2", "-b", "1024"], 4 << 20).with_folder(filled_folder().path()).build();
    let changes: [Change; 4] = [
        |sb| {
            sb.s_inodes_count = (sb.s_inodes_count.get() + 1).into();
            sb.s_inode_size = 77.into();
        },
        |sb| (sb.s_log_block_size, sb.s_log_cluster_size) = (54.into(), 54.into()),
        |sb| (sb.s_blocks_per_group, sb.s_clusters_per_group) = (0.into(), 0.into()),
        |sb| (sb.s_inodes_per_group, sb.s_inodes_count) = (0.into(), 0.into()),
    ];
    for (n, change) in changes.into_iter().enumerate() {
        let mut bytes = image.bytes();
        change_all(&mut bytes, change);
        let before = bytes.clone();
        let outcome = fix(&mut bytes, Repair::All);
        assert!(outcome.is_err() && bytes == before, "{n}: something was written");
    }
    let mut bytes = image.bytes();
    change_all(&mut bytes, |sb| sb.s_log_block_size = 60.into());
    assert_eq!(fix(&mut bytes, Repair::All).expect("a volume").exit, exit::REPAIRED);
}

/// Flags of a descriptor that its checksum does not cover are not trusted because another field was corrected.
#[test]
fn the_flags_of_a_descriptor_with_a_wrong_checksum_stay_untrusted() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let args = ["-t", "ext4", "-b", "1024", "-g", "1024", "-J", "size=1"];
    let image = Image::mke2fs(&args, 16 << 20).with_folder(filled_folder().path()).build();
    let mut flagged = image.bytes();
    // BLOCK_UNINIT and INODE_UNINIT of the first group
    flagged[2048 + 0x12] |= 3;
    for (field, change) in CHANGES.into_iter().take(3) {
        let mut bytes = flagged.clone();
        change_all(&mut bytes, change);
        let before = tree(&image);
        let report = fix(&mut bytes, Repair::All).expect("a volume");
        assert_eq!(report.exit, exit::REPAIRED, "{field}: {:?}", report.problems);
        let after = Image::from_bytes(&bytes);
        assert!(e2fsck(after.path()).clean, "{field}");
        assert_eq!(tree(&after), before, "{field}");
    }
}

/// A number of the first inode under which files are reserved inodes, and a revision without features.
#[test]
fn values_that_mkfs_never_writes_are_corrected() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let cases: [(&str, Change); 3] = [
        ("s_first_ino", |sb| sb.s_first_ino = 13.into()),
        ("s_first_ino", |sb| sb.s_first_ino = 80.into()),
        ("s_rev_level", |sb| sb.s_rev_level = 0.into()),
    ];
    for args in [&["-t", "ext2", "-b", "1024"][..], &["-t", "ext4", "-b", "1024", "-g", "1024", "-O", "^flex_bg"]] {
        let image = Image::mke2fs(args, 7 << 20).with_folder(filled_folder().path()).build();
        let intact = image.bytes();
        for (field, change) in cases {
            is_corrected(&format!("{args:?}: {field}"), &image, &intact, field, change);
        }
    }
}

/// A wrong field in all superblocks beside other damage: either no file is lost, or nothing is written.
#[test]
fn a_correction_beside_other_damage_loses_no_file() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let kinds: [&[&str]; 4] = [
        &["-t", "ext2", "-b", "1024"],
        &["-t", "ext4", "-b", "1024", "-I", "128", "-O", "^has_journal"],
        &["-t", "ext4", "-b", "1024", "-g", "512", "-G", "1", "-O", "^has_journal"],
        &["-t", "ext4", "-b", "1024", "-g", "1024", "-O", "^flex_bg,^has_journal"],
    ];
    let changes: [(&str, Change); 4] = [
        ("s_inode_size", |sb| sb.s_inode_size = (sb.s_inode_size.get() * 2).into()),
        ("s_inode_size", |sb| sb.s_inode_size = (sb.s_inode_size.get() * 4).into()),
        ("s_inodes_per_group", |sb| sb.s_inodes_per_group = (sb.s_inodes_per_group.get() * 2).into()),
        ("s_inodes_per_group", |sb| sb.s_inodes_per_group = (sb.s_inodes_per_group.get() / 2).into()),
    ];
    let word = |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    for args in kinds {
        let image = Image::mke2fs(args, 6 << 20).with_folder(filled_folder().path()).build();
        let (intact, before) = (image.bytes(), tree(&image));
        let bitmap = word(&intact, 2048 + 4) as usize * 1024;
        for damage in ["inode bitmap set", "inode bitmap clear", "block bitmap at 0"] {
            for (field, change) in changes {
                let said = format!("{args:?}: {damage}, {field}");
                let mut bytes = intact.clone();
                match damage {
                    "inode bitmap set" => bytes[bitmap..bitmap + 1024].fill(0xFF),
                    "inode bitmap clear" => bytes[bitmap..bitmap + 1024].fill(0),
                    _ => bytes[2048..2052].fill(0),
                }
                change_all(&mut bytes, change);
                let damaged = bytes.clone();
                match fix(&mut bytes, Repair::All) {
                    Err(refusal) => {
                        assert!(refusal.exit & (exit::LEFT | exit::OPERATIONAL) != 0, "{said}: {refusal}");
                        assert!(bytes == damaged, "{said}: something was written");
                    }
                    Ok(report) => {
                        assert_eq!(report.exit, exit::REPAIRED, "{said}: {:?}", report.problems);
                        let after = Image::from_bytes(&bytes);
                        assert!(e2fsck(after.path()).clean, "{said}");
                        assert_eq!(tree(&after), before, "{said}");
                    }
                }
            }
        }
    }
}

/// A wrong location of a bitmap is not taken for a wrong number of reserved blocks.
#[test]
fn a_wrong_bitmap_location_is_not_a_wrong_superblock() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    for (args, size) in [(&["-b", "1024", "-O", "^has_journal"], 4), (&["-b", "1024", "-J", "size=1"], 40)] {
        let image = Image::mke2fs(args, size << 20).with_folder(filled_folder().path()).build();
        let before = tree(&image);
        let mut bytes = image.bytes();
        for at in [0x00, 0x04] {
            bytes[2048 + at..2048 + at + 4].copy_from_slice(&u32::to_le_bytes(15));
            let mut repaired = bytes.clone();
            let report = fix(&mut repaired, Repair::All).expect("a volume");
            assert_eq!(report.exit, exit::REPAIRED, "{args:?}: {:?}", report.problems);
            assert!(report.problems.iter().all(|p| p.code != Code::SuperblockFieldMisleads), "{args:?}");
            let after = Image::from_bytes(&repaired);
            assert!(e2fsck(after.path()).clean, "{args:?}");
            assert_eq!(tree(&after), before, "{args:?}");
        }
    }
}

/// A wrong number of inodes beside a damaged group of the upper half: the volume is not cut off there.
#[test]
fn no_groups_are_cut_off_because_one_is_damaged() {
    if !need(&["mke2fs", "debugfs"]) {
        return;
    }
    for kind in ["ext2", "ext4"] {
        let args = ["-t", kind, "-b", "1024", "-g", "4096", "-N", "2048", "-O", "^has_journal"];
        let image = Image::mke2fs(&args, 32 << 20).with_folder(filled_folder().path()).build();
        let before = tree(&image);
        let mut intact = image.bytes();
        let descriptor = if kind == "ext4" { 64 } else { 32 };
        for (what, at, value) in [("inode bitmap", 4, None), ("inode table", 8, Some(5))] {
            for group in [5, 7] {
                let said = format!("{kind}, {what} of group {group}");
                let place = 2048 + group * descriptor + at;
                let mut bytes = intact.clone();
                match value {
                    // in all copies
                    Some(wrong) => {
                        for superblock in [1, 4097, 12289, 20481, 28673] {
                            let place = (superblock + 1) * 1024 + group * descriptor + at;
                            bytes[place..place + 4].copy_from_slice(&u32::to_le_bytes(wrong));
                        }
                    }
                    None => {
                        let block = u32::from_le_bytes(bytes[place..place + 4].try_into().expect("four bytes"));
                        bytes[block as usize * 1024..][..32].fill(0);
                    }
                }
                change_all(&mut bytes, |sb| sb.s_inodes_count = 1024.into());
                let damaged = bytes.clone();
                if fix(&mut bytes, Repair::All).is_ok_and(|report| report.exit == exit::REPAIRED) {
                    assert_eq!(tree(&Image::from_bytes(&bytes)), before, "{said}");
                    let blocks = superblock(&mut intact).blocks_count();
                    assert_eq!(superblock(&mut bytes).blocks_count(), blocks, "{said}");
                } else {
                    assert!(bytes == damaged, "{said}: something was written");
                }
            }
        }
    }
}
