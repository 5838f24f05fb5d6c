//! Group descriptors, bitmaps and free counts.

use super::{Finds, Volume, compare, compare_repaired, no_difference};
use extant_check::table::Code;
use testkit::{Image, need};

/// The first byte of the descriptors of volumes with 1 KiB blocks.
const TABLE: usize = 2048;

/// Five groups; all descriptors have `SIZE` bytes.
struct Groups<const SIZE: usize>(Volume);

impl<const SIZE: usize> Groups<SIZE> {
    fn field(group: usize, at: usize) -> usize {
        TABLE + group * SIZE + at
    }

    /// The first byte of the block that the descriptor's field names.
    fn block(&self, group: usize, at: usize) -> usize {
        self.0.u32(Self::field(group, at)) as usize * 1024
    }
}

fn ext2() -> Groups<32> {
    Groups(Volume::of(&Image::mke2fs(&["-t", "ext2", "-b", "1024", "-I", "128"], 40 << 20).build()))
}

fn ext4() -> Groups<64> {
    let image = Image::mke2fs(&["-t", "ext4", "-b", "1024", "-O", "^has_journal"], 40 << 20).build();
    image.debugfs(&["mkdir a", "mkdir a/b"]);
    Groups(Volume::of(&image))
}

const BLOCK_BITMAP: usize = 0;
const INODE_BITMAP: usize = 4;
const INODE_TABLE: usize = 8;
const FREE_BLOCKS: usize = 12;
const FREE_INODES: usize = 14;
const DIRECTORIES: usize = 16;
const FLAGS: usize = 18;
const UNUSED: usize = 28;
const CHECKSUM: usize = 30;

#[test]
fn descriptors_of_ext2() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    use Finds::{Anything, This};
    let volume = ext2();
    let field = Groups::<32>::field;
    let put32 = |at: usize, value: u32| move |v: &mut Volume| v.put(at, &value.to_le_bytes());
    let put16 = |at: usize, value: u16| move |v: &mut Volume| v.put(at, &value.to_le_bytes());
    // the primary and both copies
    let all = |at: usize, value: u32| {
        move |v: &mut Volume| {
            for table in [TABLE, 8194 * 1024, 24578 * 1024] {
                v.put(table + at - TABLE, &value.to_le_bytes());
            }
        }
    };
    let v = &volume.0;
    no_difference([
        compare(
            v,
            "block bitmap outside everywhere",
            This(Code::BlockBitmapNotInGroup),
            all(field(1, BLOCK_BITMAP), 99_999),
        ),
        compare(
            v,
            "inode bitmap outside everywhere",
            This(Code::InodeBitmapNotInGroup),
            all(field(1, INODE_BITMAP), 99_999),
        ),
        compare(
            v,
            "inode table outside everywhere",
            This(Code::InodeTableNotInGroup),
            all(field(1, INODE_TABLE), 99_999),
        ),
        compare(
            v,
            "block bitmap in another group",
            This(Code::BlockBitmapNotInGroup),
            all(field(1, BLOCK_BITMAP), 300),
        ),
        compare(v, "block bitmap among data", Anything, put32(field(1, BLOCK_BITMAP), 9000)),
        compare(v, "inode bitmap among data", Anything, put32(field(1, INODE_BITMAP), 9000)),
        compare(v, "free blocks", This(Code::GroupFreeBlockCountWrong), put16(field(1, FREE_BLOCKS), 7)),
        compare(v, "free inodes", This(Code::GroupFreeInodeCountWrong), put16(field(1, FREE_INODES), 7)),
        compare(v, "directories", This(Code::GroupDirectoryCountWrong), put16(field(1, DIRECTORIES), 7)),
        compare(v, "uninitialised inodes", This(Code::GroupUninitWithoutFeature), put16(field(1, FLAGS), 1)),
        compare(v, "uninitialised blocks", This(Code::GroupUninitWithoutFeature), put16(field(1, FLAGS), 2)),
        compare(v, "uninitialised root", This(Code::GroupInodeUninitInUse), put16(field(0, FLAGS), 3)),
        compare(v, "unused inodes", This(Code::GroupUninitWithoutFeature), put16(field(1, UNUSED), 10)),
        compare(v, "a checksum without its feature", Finds::Nothing, put16(field(1, CHECKSUM), 10)),
    ]);
}

#[test]
fn descriptors_that_make_no_sense_are_taken_from_a_copy() {
    if !need(&["mke2fs"]) {
        return;
    }
    let volume = ext2();
    let inode_bitmap = volume.0.u32(Groups::<32>::field(1, INODE_BITMAP));
    for (group, at, value) in [
        (0, BLOCK_BITMAP, 0),
        (0, BLOCK_BITMAP, 99_999),
        (1, INODE_TABLE, 40_900),
        (1, INODE_TABLE, 300),
        (1, BLOCK_BITMAP, inode_bitmap),
    ] {
        let mut damaged = volume.0.clone();
        damaged.put(Groups::<32>::field(group, at), &value.to_le_bytes());
        let report = super::ours(&damaged.0).expect("a volume");
        let codes: Vec<_> = report.problems.iter().map(|p| (p.code, p.group)).collect();
        assert_eq!(codes, [(Code::GroupDescriptorsTryBackup, Some(1))], "{group} {at} {value}");
    }
}

#[test]
fn descriptors_of_ext4() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    use Finds::{Anything, Nothing, This};
    let volume = ext4();
    let field = Groups::<64>::field;
    let v = &volume.0;
    let put16 = |at: usize, value: u16| move |v: &mut Volume| v.put(at, &value.to_le_bytes());
    let flags = |group: usize, set: u16, clear: u16| {
        let value = v.u16(field(group, FLAGS)) & !clear | set;
        put16(field(group, FLAGS), value)
    };
    let unused = v.u16(field(0, UNUSED));
    no_difference([
        compare_repaired(v, "as it was made", Nothing, |_| ()),
        compare(v, "checksum of group 0", This(Code::GroupChecksumWrong), put16(field(0, CHECKSUM), 5)),
        compare(v, "checksum of an empty group", This(Code::GroupChecksumWrong), put16(field(1, CHECKSUM), 5)),
        compare(v, "checksum of the last group", This(Code::GroupChecksumWrong), put16(field(4, CHECKSUM), 5)),
        compare_repaired(v, "nothing unused", Nothing, put16(field(0, UNUSED), 0)),
        compare_repaired(v, "fewer unused", Nothing, put16(field(0, UNUSED), unused - 5)),
        compare_repaired(v, "one unused is in use", Anything, put16(field(0, UNUSED), unused + 1)),
        compare_repaired(v, "all unused", Anything, put16(field(0, UNUSED), 2048)),
        compare_repaired(
            v,
            "more unused than there are",
            This(Code::GroupUnusedInodesWrong),
            put16(field(0, UNUSED), 9999),
        ),
        compare_repaired(
            v,
            "unused more than free",
            This(Code::GroupUnusedInodesWrong),
            put16(field(1, FREE_INODES), 5),
        ),
        compare_repaired(v, "inodes uninitialised in use", Anything, flags(0, 1, 0)),
        compare_repaired(v, "blocks uninitialised in use", This(Code::GroupBlockUninitInUse), flags(0, 2, 0)),
        compare_repaired(v, "inodes not uninitialised", This(Code::InodeBitmapPaddingWrong), flags(1, 0, 1)),
        compare_repaired(v, "blocks not uninitialised", This(Code::BlockRangeUsedButUnmarked), flags(1, 0, 2)),
        compare_repaired(v, "the last group's blocks", This(Code::LastGroupBlockUninit), flags(4, 2, 0)),
        compare_repaired(v, "free blocks", This(Code::GroupFreeBlockCountWrong), put16(field(1, FREE_BLOCKS), 5)),
        compare_repaired(v, "directories", This(Code::GroupDirectoryCountWrong), put16(field(1, DIRECTORIES), 5)),
    ]);
}

#[test]
fn bitmaps() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    use Finds::{Nothing, This};
    let volume = ext4();
    let v = &volume.0;
    let flip = |group: usize, bitmap: usize, at: usize, bits: u8| {
        let at = volume.block(group, bitmap) + at;
        move |v: &mut Volume| v.0[at] ^= bits
    };
    no_difference([
        compare_repaired(v, "a free block marked", This(Code::BlockMarkedButUnused), flip(0, BLOCK_BITMAP, 900, 1)),
        compare_repaired(v, "free blocks marked", This(Code::BlockRangeMarkedButUnused), flip(0, BLOCK_BITMAP, 900, 6)),
        compare_repaired(v, "a used block not marked", This(Code::BlockUsedButUnmarked), flip(0, BLOCK_BITMAP, 0, 1)),
        compare_repaired(
            v,
            "used blocks not marked",
            This(Code::BlockRangeUsedButUnmarked),
            flip(0, BLOCK_BITMAP, 0, 7),
        ),
        compare_repaired(v, "a free inode marked", This(Code::InodeMarkedButUnused), flip(0, INODE_BITMAP, 100, 1)),
        compare_repaired(v, "free inodes marked", This(Code::InodeRangeMarkedButUnused), flip(0, INODE_BITMAP, 100, 3)),
        compare_repaired(v, "a used inode not marked", This(Code::InodeUsedButUnmarked), flip(0, INODE_BITMAP, 0, 2)),
        compare_repaired(
            v,
            "used inodes not marked",
            This(Code::InodeRangeUsedButUnmarked),
            flip(0, INODE_BITMAP, 0, 7),
        ),
        compare_repaired(v, "inode padding", This(Code::InodeBitmapPaddingWrong), flip(0, INODE_BITMAP, 1000, 1)),
        compare_repaired(v, "block padding", This(Code::BlockBitmapPaddingWrong), flip(4, BLOCK_BITMAP, 1023, 0x80)),
        compare_repaired(v, "bitmaps that were never written", Nothing, |v| {
            flip(1, BLOCK_BITMAP, 900, 1)(v);
            flip(1, INODE_BITMAP, 0, 1)(v);
        }),
        compare(v, "checksums", This(Code::BlockBitmapChecksumWrong), flip(0, BLOCK_BITMAP, 900, 1)),
        compare(v, "checksums of inodes", This(Code::InodeBitmapChecksumWrong), flip(0, INODE_BITMAP, 100, 1)),
        compare(v, "free blocks in the superblock", This(Code::FreeBlockCountWrong), |v| {
            v.put(1024 + 0x0C, &[1, 2]);
            testkit::repair_checksums(&mut v.0);
        }),
    ]);
}

#[test]
fn short_groups_have_padding_everywhere() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    let args = ["-t", "ext2", "-b", "1024", "-g", "4096", "-I", "128", "-N", "2000"];
    let volume = Groups::<32>(Volume::of(&Image::mke2fs(&args, 40 << 20).build()));
    let flip = |group: usize, at: usize, bits: u8| {
        let at = volume.block(group, BLOCK_BITMAP) + at;
        move |v: &mut Volume| v.0[at] ^= bits
    };
    let padding = Finds::This(Code::BlockBitmapPaddingWrong);
    no_difference([
        compare(&volume.0, "as it was made", Finds::Nothing, |_| ()),
        compare(&volume.0, "behind group 0", padding, flip(0, 700, 1)),
        compare(&volume.0, "behind the last group", padding, flip(9, 700, 1)),
        compare(&volume.0, "behind the last block", padding, flip(9, 511, 0x80)),
        compare(&volume.0, "before it", Finds::This(Code::BlockMarkedButUnused), flip(9, 500, 1)),
    ]);
}

#[test]
fn clusters() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let args = ["-t", "ext4", "-b", "1024", "-C", "4096", "-O", "bigalloc,^has_journal"];
    let volume = Groups::<64>(Volume::of(&Image::mke2fs(&args, 64 << 20).build()));
    let field = Groups::<64>::field;
    let bitmap = volume.block(0, BLOCK_BITMAP);
    let other = volume.0.u32(field(0, INODE_BITMAP));
    no_difference([
        compare(&volume.0, "as it was made", Finds::Nothing, |_| ()),
        compare_repaired(&volume.0, "a free cluster marked", Finds::This(Code::BlockRangeMarkedButUnused), |v| {
            v.0[bitmap + 1000] ^= 1;
        }),
        compare_repaired(&volume.0, "two inode bitmaps in one place", Finds::Anything, |v| {
            v.put(field(1, INODE_BITMAP), &other.to_le_bytes());
        }),
    ]);
}
