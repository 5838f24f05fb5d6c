//! Superblocks with one wrong field in the primary and all copies, or on a volume of one group, which has no copy: the
//! field is corrected from the others, the descriptors and the device, and no file is lost.

use crate::misled::{filled_folder, look, superblock, tree};
use crate::repaired::{fix, only_marked};
use extant_check::Repair;
use extant_check::report::exit;
use extant_check::table::Code;
use format::superblock::{DiskSuperblock, MAGIC};
use testkit::oracle::e2fsck;
use testkit::{Image, need};
use zerocopy::FromBytes;

type Change = fn(&mut DiskSuperblock);

const CHANGES: [(&str, Change); 14] = [
    ("s_inodes_count", |sb| sb.s_inodes_count = (sb.s_inodes_count.get() + 1).into()),
    ("s_inodes_count", |sb| sb.s_inodes_count = (sb.s_inodes_count.get() / 2).into()),
    ("s_inodes_count", |sb| sb.s_inodes_count = (sb.s_inodes_count.get() * 2).into()),
    ("s_inodes_per_group", |sb| sb.s_inodes_per_group = (sb.s_inodes_per_group.get() / 2).into()),
    ("s_inodes_per_group", |sb| sb.s_inodes_per_group = (sb.s_inodes_per_group.get() + 8).into()),
    ("s_reserved_gdt_blocks", |sb| sb.s_reserved_gdt_blocks = (sb.s_reserved_gdt_blocks.get() + 20).into()),
    ("s_inode_size", |sb| sb.s_inode_size = (sb.s_inode_size.get() / 2).into()),
    ("s_inode_size", |sb| sb.s_inode_size = (sb.s_inode_size.get() * 2).into()),
    ("s_inode_size", |sb| sb.s_inode_size = 77.into()),
    ("s_first_ino", |sb| sb.s_first_ino = 3.into()),
    ("s_first_data_block", |sb| sb.s_first_data_block = (1 - sb.s_first_data_block.get().min(1)).into()),
    ("s_blocks_per_group", |sb| sb.s_blocks_per_group = (sb.s_blocks_per_group.get() / 2).into()),
    ("s_clusters_per_group", |sb| sb.s_clusters_per_group = (sb.s_clusters_per_group.get() / 2).into()),
    ("s_log_cluster_size", |sb| sb.s_log_cluster_size = (sb.s_log_cluster_size.get() + 1).into()),
];

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

/// A volume with two wrong fields, which no correction explains: nothing is guessed and nothing written.
#[test]
fn fields_that_nothing_explains_are_left() {
    if !need(&["mke2fs"]) {
        return;
    }
    let image = Image::mke2fs(&["-t", "ext2", "-b", "1024"], 4 << 20).with_folder(filled_folder().path()).build();
    let mut bytes = image.bytes();
    change_all(&mut bytes, |sb| {
        sb.s_inodes_count = (sb.s_inodes_count.get() + 1).into();
        sb.s_inode_size = 77.into();
    });
    let before = bytes.clone();
    assert!(fix(&mut bytes, Repair::All).is_err());
    assert!(bytes == before, "something was written");
}
