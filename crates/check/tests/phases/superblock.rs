//! Fields of the superblock, and its copies.

use super::{Finds, Volume, compare, compare_repaired, no_difference, ours};
use extant_check::table::Code;
use testkit::{Image, need};

/// The superblock's first byte.
const SB: usize = 1024;

/// Five groups of 1 KiB blocks; copies in groups 1 and 3.
fn ext2() -> Volume {
    Volume::of(&Image::mke2fs(&["-t", "ext2", "-b", "1024", "-I", "128"], 40 << 20).build())
}

fn ext4() -> Volume {
    Volume::of(&Image::mke2fs(&["-t", "ext4", "-b", "1024", "-O", "^has_journal"], 40 << 20).build())
}

#[test]
fn fields_of_ext2() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    use Finds::{Anything, Nothing, Refusal, This};
    let backup = This(Code::SuperblockTryBackup);
    let cases: &[(&str, usize, u32, Finds)] = &[
        ("as it was made", 0x38, 0x0001_EF53, Nothing),
        ("magic", 0x38, 0, backup),
        ("inodes", 0x00, 10241, backup),
        ("no blocks", 0x04, 0, backup),
        ("one more block than the device", 0x04, 40961, This(Code::BeyondDevice)),
        ("another group's blocks", 0x04, 40960 + 8192, backup),
        ("a tenth of the blocks missing", 0x04, 40860, Anything),
        ("far too many blocks", 0x04, u32::MAX, backup),
        ("reserved blocks: half", 0x08, 20480, Nothing),
        ("reserved blocks: more", 0x08, 20481, This(Code::SuperblockFieldWrong)),
        ("free blocks", 0x0C, 7, This(Code::FreeBlockCountWrong)),
        ("free inodes", 0x10, 7, This(Code::FreeInodeCountWrong)),
        ("first data block", 0x14, 0, This(Code::SuperblockFieldTryBackup)),
        ("block size", 0x18, 9, backup),
        ("cluster size", 0x1C, 5, backup),
        ("blocks of a group", 0x20, 8184, backup),
        ("clusters of a group", 0x24, 4096, backup),
        ("inodes of a group", 0x28, 0, backup),
        ("last mount", 0x2C, 0xF000_0000, This(Code::LastMountInFuture)),
        ("last write", 0x30, 0xF000_0000, This(Code::LastWriteInFuture)),
        ("revision 2", 0x4C, 2, Refusal),
        ("made by the Hurd", 0x48, 1, This(Code::HurdHasFileType)),
        ("first inode too small", 0x54, 5, This(Code::SuperblockFieldTryBackup)),
        ("first inode beyond the last", 0x54, 100_000, This(Code::SuperblockFieldTryBackup)),
        ("orphans begin nowhere", 0xE8, 99_999, This(Code::OrphanHeadOutOfRange)),
        ("an orphan", 0xE8, 12, This(Code::OrphanPending)),
        ("a journal on another device too", 0xE4, 5, Nothing),
        ("a journal's inode without a journal", 0xE0, 8, This(Code::JournalInodeBad)),
        ("user quota in the root", 0x240, 2, This(Code::EntryInodeOutOfRange)),
        ("user quota in a reserved inode", 0x240, 5, This(Code::QuotaInodeNumberWrong)),
        ("project quota in lost+found", 0x26C, 11, This(Code::EntryInodeOutOfRange)),
        ("orphans in the root", 0x280, 2, This(Code::EntryInodeOutOfRange)),
    ];
    let volume = ext2();
    no_difference(cases.iter().map(|(said, at, value, finds)| {
        compare(&volume, said, *finds, |volume| volume.put(SB + at, &value.to_le_bytes()))
    }));
}

#[test]
fn features_of_ext2() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    use Finds::{Anything, Refusal, This};
    const COMPAT: usize = SB + 0x5C;
    const INCOMPAT: usize = SB + 0x60;
    const RO_COMPAT: usize = SB + 0x64;
    let volume = ext2();
    let known = |word: usize, bit: u32| match (word, 1 << bit) {
        (COMPAT, 0x4) => This(Code::JournalInodeBad),
        (COMPAT, 0x1000) => This(Code::OrphanFileWithoutJournal),
        (COMPAT, 0x40 | 0x80 | 0x100) => Refusal,
        (INCOMPAT, 0x4) => This(Code::JournalRecoveryWithoutJournal),
        (INCOMPAT, 0x10) => This(Code::ResizeInodeWithMetaGroups),
        (INCOMPAT, 0x100) => This(Code::MmpBlockOutOfRange),
        (INCOMPAT, 0x2000) => This(Code::ChecksumSeedWithoutChecksums),
        (INCOMPAT, 0x80) => This(Code::SuperblockFieldTryBackup),
        (INCOMPAT, 0x1 | 0x8 | 0x20 | 0x800 | 0x1000 | 0x2_0000 | 0x4_0000..) => Refusal,
        (RO_COMPAT, 0x10) => This(Code::GroupChecksumWrong),
        (RO_COMPAT, 0x1_0000) => This(Code::OrphanPresentWithoutFile),
        (RO_COMPAT, 0x400) => This(Code::SuperblockTryBackup),
        (RO_COMPAT, 0x4 | 0x80 | 0x800 | 0x2_0000..) => Refusal,
        _ => Anything,
    };
    let words = [(COMPAT, 13), (INCOMPAT, 19), (RO_COMPAT, 18)];
    no_difference(words.into_iter().flat_map(|(word, bits)| (0..bits).map(move |bit| (word, bit))).map(
        |(word, bit)| {
            compare(&volume, &format!("{word:#x} bit {bit}"), known(word, bit), |volume| volume.set_u32(word, 1 << bit))
        },
    ));
    no_difference([
        compare(&volume, "no resize_inode", This(Code::ReservedGdtBlocksWithoutFeature), |v| v.clear_u32(COMPAT, 0x10)),
        compare(&volume, "no UUID", This(Code::UuidMissing), |v| v.put(SB + 0x68, &[0; 16])),
        compare(&volume, "a size of descriptors", This(Code::SuperblockFieldTryBackup), |v| v.put(SB + 0xFE, &[48, 0])),
        compare(&volume, "flexible groups", This(Code::SuperblockTryBackup), |v| v.put(SB + 0x174, &[40])),
        compare(&volume, "a test volume", This(Code::TestFlagSet), |v| v.put(SB + 0x160, &[5])),
        compare(&volume, "hashes of no sign", This(Code::DirectoryHashSignUnknown), |v| v.put(SB + 0x160, &[0])),
    ]);
}

#[test]
fn fields_of_ext4() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    use Finds::{Anything, Refusal, This};
    let volume = ext4();
    let corrupt = |at: usize, value: &'static [u8]| move |volume: &mut Volume| volume.put(SB + at, value);
    no_difference([
        compare(&volume, "its checksum", This(Code::SuperblockTryBackup), corrupt(0x3FC, b"abcd")),
        compare_repaired(&volume, "kind of checksums", Refusal, corrupt(0x175, &[7])),
        compare_repaired(
            &volume,
            "no size of descriptors",
            This(Code::SuperblockFieldTryBackup),
            corrupt(0xFE, &[0, 0]),
        ),
        compare_repaired(&volume, "least extra size", This(Code::MinExtraSizeWrong), corrupt(0x15C, &[200, 0])),
        compare_repaired(&volume, "wished extra size", This(Code::WantExtraSizeWrong), corrupt(0x15E, &[3, 0])),
        compare_repaired(&volume, "both checksums", This(Code::BothChecksumFeatures), |v| v.set_u32(SB + 0x64, 0x10)),
        compare_repaired(&volume, "no extents", This(Code::SixtyFourBitWithoutExtents), |v| {
            v.clear_u32(SB + 0x60, 0x40);
        }),
        compare_repaired(&volume, "groups of a flexible group", Anything, corrupt(0x174, &[3])),
        compare(&volume, "all checksums of superblocks", Refusal, |v| {
            for block in [1, 8193, 24577] {
                v.put(block * 1024 + 0x3FC, b"abcd");
            }
        }),
    ]);
}

#[test]
fn devices_that_end_early() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    let volume = ext2();
    no_difference([
        compare(&volume, "a block", Finds::This(Code::BeyondDevice), |v| v.0.truncate((40 << 20) - 1024)),
        compare(&volume, "a group and more", Finds::This(Code::ReadError), |v| v.0.truncate(31 << 20)),
        compare(&volume, "most of it", Finds::Refusal, |v| v.0.truncate(9 << 20)),
        compare(&volume, "nearly all", Finds::Refusal, |v| v.0.truncate(2047)),
    ]);
}

#[test]
fn what_is_no_volume_is_named() {
    let sentence = |bytes: &[u8]| ours(bytes).expect_err("nothing to check").sentence;
    assert!(sentence(&[]).contains("empty"));
    assert!(sentence(&[0; 8192]).contains("zeros"));
    assert!(sentence(b"a text, and a short one").contains("device ends"));
    let mut xfs = vec![0; 1 << 17];
    xfs[..4].copy_from_slice(b"XFSB");
    assert!(sentence(&xfs).contains("XFS"));
    let refusal = ours(&[7; 1 << 17]).expect_err("nothing to check");
    assert_eq!(refusal.exit, extant_check::report::exit::OPERATIONAL);
}

#[test]
fn a_named_superblock_is_the_one_used() {
    if !need(&["mke2fs"]) {
        return;
    }
    let mut volume = ext2();
    volume.put(SB + 0x38, &[0, 0]);
    let device = blockdev::MemoryDevice::from_vec(volume.0);
    let check = |superblock, block_size| {
        let options = extant_check::Options { superblock: Some(superblock), block_size, ..Default::default() };
        extant_check::check("volume", &device, &options, &())
    };
    assert!(check(8193, None).expect("a copy").clean);
    assert!(check(24577, Some(1024)).expect("a copy").clean);
    assert!(check(8193, Some(4096)).expect_err("no copy").sentence.contains("block 8193"));
    assert!(check(1, Some(1024)).is_err());
}

/// The first copy is a stale one from before the volume grew, consistent in itself. Copies that agree with each other,
/// or with the length of the device, are newer; a copy that the user specifies is used nevertheless.
#[test]
fn a_copy_from_before_a_resize_is_passed_over() {
    if !need(&["mke2fs"]) {
        return;
    }
    // copies in groups 1 and 3, and with eight groups in 5 and 7 too
    for (size, longer) in [(40 << 20, 0), (64 << 20, 0), (64 << 20, 1 << 20)] {
        let mut volume = Volume::of(&Image::mke2fs(&["-t", "ext2", "-b", "1024", "-I", "128"], size).build());
        let blocks = u64::from(volume.u32(SB + 4));
        let inodes = volume.u32(SB + 0x28) * 4;
        volume.put(SB + 0x38, &[0, 0]);
        volume.put(8193 << 10, &inodes.to_le_bytes());
        volume.put((8193 << 10) + 4, &32769u32.to_le_bytes());
        let len = volume.0.len();
        volume.0.resize(len + longer, 0);
        let report = ours(&volume.0).expect("a volume");
        let said = format!("{size} and {longer}: {:?}", report.problems);
        assert_eq!(report.counts.blocks_total, blocks, "{said}");
        let primary = report.problems.iter().find(|p| p.code == Code::SuperblockTryBackup);
        assert!(primary.is_some_and(|p| p.text.contains("24577")), "{said}");
        let passed = report.problems.iter().find(|p| p.code == Code::BackupSuperblockUnusable);
        assert!(passed.is_some_and(|p| p.text.contains("not that of the device")), "{said}");
        let device = blockdev::MemoryDevice::from_vec(volume.0);
        let options = extant_check::Options { superblock: Some(8193), ..Default::default() };
        let named = extant_check::check("volume", &device, &options, &()).expect("a volume");
        assert_eq!(named.counts.blocks_total, 32769, "{said}");
    }
}

/// The groups have another size than by default, so that the copies are found only by the search.
#[test]
fn a_copy_from_before_a_resize_is_passed_over_in_groups_of_any_size() {
    if !need(&["mke2fs"]) {
        return;
    }
    let args = ["-t", "ext2", "-b", "1024", "-I", "128", "-g", "2048"];
    let mut volume = Volume::of(&Image::mke2fs(&args, 16 << 20).build());
    let blocks = u64::from(volume.u32(SB + 4));
    let inodes = volume.u32(SB + 0x28) * 4;
    volume.put(SB + 0x38, &[0, 0]);
    volume.put(2049 << 10, &inodes.to_le_bytes());
    volume.put((2049 << 10) + 4, &8193u32.to_le_bytes());
    let report = ours(&volume.0).expect("a volume");
    assert_eq!(report.counts.blocks_total, blocks, "{:?}", report.problems);
}

/// Five groups of 1 KiB blocks: the first copy of the superblock is in block 8193, followed by the descriptors.
#[test]
fn copies_of_superblock_and_descriptors() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    use Finds::{Nothing, This};
    const COPY: usize = 8193 << 10;
    let (superblock, descriptors) = (This(Code::SuperblockCopyDiffers), This(Code::DescriptorCopyDiffers));
    let cases: &[(&str, usize, u32, Finds)] = &[
        ("as it was made", COPY + 0x48, 0, Nothing),
        ("no magic", COPY + 0x38, 0, superblock),
        ("fewer blocks", COPY + 0x04, 32769, superblock),
        ("another volume's", COPY + 0x68, 0x1234_5678, superblock),
        ("a feature less", COPY + 0x60, 0, superblock),
        ("in the last group", (24577 << 10) + 0x38, 0, superblock),
        ("table of group 0", COPY + 1024 + 8, 999, descriptors),
        ("bitmap of group 2", COPY + 1024 + 64, 16999, descriptors),
        ("free blocks", COPY + 0x0C, 7, Nothing),
        ("label", COPY + 0x78, 0x4141_4141, Nothing),
        ("a large file since", SB + 0x64, 3, Nothing),
        ("free blocks of group 1", COPY + 1024 + 32 + 12, 7, Nothing),
    ];
    let volume = ext2();
    no_difference(cases.iter().map(|(said, at, value, finds)| {
        compare(&volume, said, *finds, |volume| volume.put(*at, &value.to_le_bytes()))
    }));
    let checksum = |volume: &mut Volume| volume.put(COPY + 0x3FC, &[1, 2, 3, 4]);
    no_difference([compare(&ext4(), "checksum", superblock, checksum)]);
}

/// e2fsck assumes as many descriptor blocks after the superblock as the first meta group implies.
#[test]
fn meta_groups_that_begin_behind_the_descriptors() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    use Finds::This;
    const FIRST: usize = 0x104;
    let made = |features: &str, group: &str| {
        Volume::of(&Image::mke2fs(&["-t", "ext2", "-b", "1024", "-O", features, "-g", group], 8 << 20).build())
    };
    let volume = made("meta_bg,^resize_inode", "2048");
    let everywhere = |first: u32| {
        move |volume: &mut Volume| {
            for superblock in [SB, 2049 << 10, 6145 << 10] {
                volume.put(superblock + FIRST, &first.to_le_bytes());
            }
        }
    };
    let primary = |first: u32| move |volume: &mut Volume| volume.put(SB + FIRST, &first.to_le_bytes());
    no_difference([
        compare(&volume, "2 everywhere", This(Code::FirstMetaGroupMisleads), everywhere(2)),
        compare(&volume, "3 everywhere", This(Code::FirstMetaGroupMisleads), everywhere(3)),
        compare(&volume, "2 in the primary", This(Code::SuperblockTryBackup), primary(2)),
        compare(&volume, "a million in the primary", This(Code::SuperblockTryBackup), primary(1_000_000)),
        compare(&volume, "-1 in the primary", This(Code::SuperblockFieldTryBackup), primary(u32::MAX)),
        compare(&volume, "-2 in the primary", This(Code::SuperblockFieldTryBackup), primary(u32::MAX - 1)),
    ]);
    // one group; what was reserved for growth counts as descriptors, so that nothing contradicts the field
    let volume = made("resize_inode", "8192");
    no_difference([compare(&volume, "nothing behind the descriptors", This(Code::FirstMetaGroupTooLarge), |v| {
        let reserved = u32::from(v.u16(SB + 0xCE));
        v.put(SB + 0xCE, &[0, 0]);
        v.put(SB + FIRST, &(1 + reserved).to_le_bytes());
        v.clear_u32(SB + 0x5C, 0x10);
        v.set_u32(SB + 0x60, 0x10);
        let (inode_size, table, bitmap) = (usize::from(v.u16(SB + 0x58)), v.u32(2048 + 8), v.u32(2048));
        let resize = ((table as usize) << 10) + 6 * inode_size;
        let map = v.u32(resize + 40 + 13 * 4) as usize - 1;
        v.put(resize, &vec![0; inode_size]);
        let byte = ((bitmap as usize) << 10) + map / 8;
        let bits = v.0[byte] & !(1 << (map % 8));
        v.put(byte, &[bits]);
        let (free, in_group) = (v.u32(SB + 0x0C) + 1, v.u16(2048 + 12) + 1);
        v.put(SB + 0x0C, &free.to_le_bytes());
        v.put(2048 + 12, &in_group.to_le_bytes());
    })]);
}
