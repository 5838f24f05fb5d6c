//! Volumes on which the superblock, or all records of where a group's structures are, are destroyed: a repair restores
//! the superblock and all files, or writes nothing. It never writes over superblocks and descriptors.

use crate::repaired::{fix, options};
use blockdev::MemoryDevice;
use extant_check::report::{Report, exit};
use extant_check::table::Code;
use extant_check::{Repair, check, first_sight};
use format::superblock::DiskSuperblock;
use testkit::oracle::e2fsck;
use testkit::{Image, Spec, Tree, need};
use zerocopy::FromBytes;

/// The blocks of the superblock and its copies on a volume of five groups.
const SUPERBLOCKS: [usize; 3] = [1, 8193, 24577];
const BLOCK: usize = 1024;
/// Size in bytes of a descriptor.
const DESCRIPTOR: usize = 64;

fn volume(features: &str) -> Image {
    let args = ["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", features];
    Image::mke2fs(&args, 40 << 20).with_tree(&Tree::new(7, &Spec::small())).build()
}

fn look(bytes: &[u8]) -> Report {
    check("volume", &MemoryDevice::from_vec(bytes.to_vec()), &options(Repair::No), &()).expect("a volume")
}

/// The bytes of a group's descriptor that follows the superblock in this block.
fn descriptor(bytes: &mut [u8], superblock: usize, group: usize) -> &mut [u8] {
    let at = (superblock + 1) * BLOCK + group * DESCRIPTOR;
    &mut bytes[at..at + DESCRIPTOR]
}

/// Repairs a damaged volume. Returns whether that was possible, with all files; otherwise nothing was written.
fn all_or_nothing(said: &str, image: &Image, intact: &[u8], damaged: &[u8]) -> bool {
    let mut bytes = damaged.to_vec();
    match fix(&mut bytes, Repair::All) {
        Err(refusal) => {
            assert_eq!(refusal.exit, exit::LEFT, "{said}: {refusal}");
            assert!(bytes == damaged, "{said}: something was written");
            false
        }
        Ok(report) => {
            assert_eq!(report.exit, exit::REPAIRED, "{said}: {:?}", report.problems);
            for block in SUPERBLOCKS {
                assert_eq!(bytes[block * BLOCK + 0x38..][..2], [0x53, 0xEF], "{said}: superblock in block {block}");
            }
            let after = look(&bytes);
            assert!(after.problems.is_empty(), "{said}: {:?}", after.problems);
            let (counts, before) = (after.counts, look(intact).counts);
            assert_eq!((counts.inodes, counts.links), (before.inodes, before.links), "{said}: a file is lost");
            image.set_bytes(&bytes);
            let verdict = e2fsck(image.path());
            assert!(verdict.clean, "{said}: {}", verdict.text);
            true
        }
    }
}

/// Each copy of the descriptors has the same error, so that all make no sense, and the primary superblock is lost.
#[test]
fn the_superblock_is_restored_although_no_descriptors_make_sense() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    let image = volume("has_journal");
    let intact = image.bytes();
    // the first byte of the field, its length, the value
    let cases = [
        ("no block bitmap", 0, 4, 0),
        ("no inode bitmap", 4, 4, 0),
        ("no inode table", 8, 4, 0),
        ("nothing", 0, DESCRIPTOR, 0),
        ("the block bitmap in a copy", 0, 4, 8193),
        ("the inode bitmap in a copy", 4, 4, 8193),
        ("the inode bitmap in copied descriptors", 4, 4, 24578),
        ("the inode bitmap in the superblock", 4, 4, 1),
    ];
    for (said, at, len, value) in cases {
        for lost in [true, false] {
            let mut bytes = intact.clone();
            for superblock in SUPERBLOCKS {
                let field = &mut descriptor(&mut bytes, superblock, 2)[at..at + len];
                field.fill(0);
                field[..4].copy_from_slice(&u32::to_le_bytes(value));
            }
            if lost {
                bytes[1024..2048].fill(0);
            }
            let said = format!("{said}, primary lost: {lost}");
            assert!(all_or_nothing(&said, &image, &intact, &bytes), "{said}: not repaired");
        }
    }
    // the copies contradict themselves as well
    for groups in [1..5, 0..5] {
        let mut bytes = intact.clone();
        for superblock in SUPERBLOCKS {
            groups.clone().for_each(|group| descriptor(&mut bytes, superblock, group).fill(0));
        }
        bytes[1024..2048].fill(0);
        all_or_nothing(&format!("no descriptors of groups {groups:?}"), &image, &intact, &bytes);
    }
}

/// With the superblock intact, the tables are where mkfs puts them.
#[test]
fn tables_are_found_without_any_descriptor() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    for features in ["flex_bg", "^flex_bg"] {
        let image = volume(features);
        let mut intact = image.bytes();
        let mut bytes = intact.clone();
        for superblock in SUPERBLOCKS {
            (0..5).for_each(|group| descriptor(&mut bytes, superblock, group).fill(0));
        }
        assert!(all_or_nothing(features, &image, &intact, &bytes), "{features}: not repaired");
        // without the root nothing proves that a table is there
        let table = descriptor(&mut intact, SUPERBLOCKS[0], 0)[8..12].to_vec();
        let table = u32::from_le_bytes(table.try_into().expect("four bytes")) as usize;
        bytes[table * BLOCK + 256..][..256].fill(0);
        let damaged = bytes.clone();
        let refusal = fix(&mut bytes, Repair::All).expect_err("the files would be lost");
        assert_eq!(refusal.exit, exit::LEFT, "{features}: {refusal}");
        assert!(refusal.sentence.contains("cannot be found"), "{features}: {refusal}");
        assert!(bytes == damaged, "{features}: something was written");
    }
}

/// A volume that is marked clean is checked where its primary superblock is not the one that the check uses.
#[test]
fn a_rejected_superblock_is_not_taken_at_its_word() {
    if !need(&["mke2fs"]) {
        return;
    }
    let mut bytes = volume("has_journal").bytes();
    let trusted = |bytes: &[u8]| first_sight(&MemoryDevice::from_vec(bytes.to_vec()), &options(Repair::Safe), &());
    assert!(trusted(&bytes));
    let superblock = DiskSuperblock::mut_from_bytes(&mut bytes[1024..2048]).expect("a superblock");
    superblock.s_inode_size = 128.into();
    superblock.set_checksum();
    assert!(look(&bytes).problems.iter().any(|problem| problem.code == Code::SuperblockFieldTryBackup));
    assert!(!trusted(&bytes));
    let report = fix(&mut bytes, Repair::Safe).expect("a volume");
    assert!(report.exit & exit::LEFT != 0 && !report.clean, "{:?}", report.problems);
}

/// With twice the block size the volume is twice as long as its device, and nothing is where the superblock says.
#[test]
fn a_wrong_block_size_is_named() {
    if !need(&["mke2fs"]) {
        return;
    }
    let args = ["-t", "ext4", "-b", "4096", "-O", "^has_journal"];
    let mut bytes = Image::mke2fs(&args, 32 << 20).with_tree(&Tree::new(7, &Spec::small())).build().bytes();
    let superblock = DiskSuperblock::mut_from_bytes(&mut bytes[1024..2048]).expect("a superblock");
    superblock.s_log_block_size = (superblock.s_log_block_size.get() + 1).into();
    superblock.s_log_cluster_size = superblock.s_log_block_size;
    superblock.set_checksum();
    let damaged = bytes.clone();
    let refusal = fix(&mut bytes, Repair::All).expect_err("nothing can be repaired");
    assert!(refusal.sentence.contains("the block size or the number of blocks is wrong"), "{refusal}");
    assert!(bytes == damaged, "something was written");
}
