//! Maps of files with very many extents: extent trees of several levels, indirect blocks of all three levels; grown,
//! changed, and removed again.

mod common;

use common::{assert_valid, content, number, open_writable};
use extant_fs::{AllocateMode, Error, InodeNo, Mapping, Volume, WriteOptions};
use testkit::{Image, Rng, need, oracle};

fn volume_with_file(args: &[&str], size: u64) -> (Image, Volume, InodeNo) {
    let image = Image::mke2fs(args, size).debugfs(&["write /dev/null file"]).build();
    let volume = open_writable(image.path(), WriteOptions::default());
    let file = number(&volume, "/file");
    (image, volume, file)
}

/// The depth of the tree, from the inode.
fn depth(volume: &Volume, file: InodeNo) -> u16 {
    let inode = volume.inode(file).unwrap();
    u16::from_le_bytes([inode.raw().disk.i_block[6], inode.raw().disk.i_block[7]])
}

fn unmounted(image: &Image, volume: Volume, about: &str) {
    volume.unmount().expect("unmount");
    drop(volume);
    assert_valid(image.path(), &about);
}

/// Bytes that identify their block.
fn pattern(block: u64) -> Vec<u8> {
    block.to_le_bytes().repeat(128)
}

fn assert_pattern(volume: &Volume, file: InodeNo, block: u64, is_there: bool) {
    let inode = volume.inode(file).unwrap();
    let mut buf = [0; 1024];
    let len = volume.read_at(&inode, block * 1024, &mut buf).unwrap();
    let expected = if is_there { pattern(block) } else { vec![0; 1024] };
    assert!(buf[..len] == expected[..len], "block {block}");
}

#[test]
fn a_tree_grows_three_levels_and_goes_again() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let args = ["-t", "ext4", "-b", "1024", "-O", "^has_journal", "-N", "64"];
    let (image, volume, file) = volume_with_file(&args, 80 << 20);
    let free = volume.statfs().blocks_free;
    // every other block of a file, so each is a separate extent
    let blocks = 40_000u64;
    for block in 0..blocks {
        volume.write_at(file, block * 2048, &pattern(block * 2)).unwrap();
    }
    volume.flush_delayed(file).unwrap();
    assert_eq!(depth(&volume, file), 3);
    for block in [0, 1, 2, 39_999, 40_000, 79_998] {
        assert_pattern(&volume, file, block, block % 2 == 0);
    }
    // a tree that is written sequentially has full nodes
    let used = free - volume.statfs().blocks_free;
    assert!(used - blocks <= blocks / 84 + 16, "{} blocks for the tree", used - blocks);
    volume.sync().unwrap();

    // filled holes are merged with adjacent extents if contiguous, and split nodes if not
    let mut rng = Rng::new(5);
    for _ in 0..3_000 {
        let block = rng.below(blocks) * 2 + 1;
        volume.write_at(file, block * 1024, &pattern(block)).unwrap();
        assert_pattern(&volume, file, block, true);
    }
    for _ in 0..2_000 {
        let block = rng.below(2 * blocks);
        let len = rng.below(6);
        volume.allocate(file, AllocateMode::PunchHole, block * 1024, (len + 1) * 1024).unwrap();
        assert_pattern(&volume, file, block, false);
    }
    volume.unmount().unwrap();
    drop(volume);
    assert_valid(image.path(), &"changed everywhere");

    let volume = open_writable(image.path(), WriteOptions::default());
    let before = content(&volume, file);
    // moves every extent behind it, in many changes
    volume.allocate(file, AllocateMode::Insert, 30 * 1024, 1024).unwrap();
    volume.allocate(file, AllocateMode::Collapse, 10 * 1024, 3 * 1024).unwrap();
    let after = content(&volume, file);
    assert!(after[..10 * 1024] == before[..10 * 1024] && after[27 * 1024..28 * 1024] == [0; 1024]);
    assert!(after[10 * 1024..27 * 1024] == before[13 * 1024..30 * 1024]);
    assert!(after[28 * 1024..] == before[30 * 1024..]);
    volume.unmount().unwrap();
    drop(volume);
    assert_valid(image.path(), &"moved");

    let volume = open_writable(image.path(), WriteOptions::default());
    volume.truncate(file, 30 * 1024).unwrap();
    assert!(depth(&volume, file) <= 1);
    assert!(content(&volume, file) == after[..30 * 1024]);
    volume.truncate(file, 0).unwrap();
    assert_eq!(depth(&volume, file), 0);
    volume.sync().unwrap();
    assert_eq!(volume.statfs().blocks_free, free);
    unmounted(&image, volume, "empty");
}

#[test]
fn unwritten_extents_are_split_and_joined() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let (image, volume, file) = volume_with_file(&["-t", "ext4", "-b", "1024", "-O", "^has_journal"], 60 << 20);
    // longer than one extent can be
    volume.allocate(file, AllocateMode::Extend, 0, 40_000 * 1024).unwrap();
    let inode = volume.inode(file).unwrap();
    assert_eq!(inode.size, 40_000 * 1024);
    assert_eq!(volume.seek_data(&inode, 0).unwrap(), None);
    let mut rng = Rng::new(9);
    let mut written = std::collections::BTreeSet::new();
    for _ in 0..2_500 {
        let block = rng.below(40_000);
        volume.write_at(file, block * 1024, &pattern(block)).unwrap();
        written.insert(block);
    }
    volume.flush_delayed(file).unwrap();
    assert!(depth(&volume, file) >= 1);
    for block in (0..40_000).step_by(7) {
        assert_pattern(&volume, file, block, written.contains(&block));
    }
    // all of it written: extents reach their maximum length
    let all: Vec<u8> = (0..40_000).flat_map(pattern).collect();
    for (piece, at) in all.chunks(1 << 20).zip((0u64..).step_by(1 << 20)) {
        assert_eq!(volume.write_at(file, at, piece).unwrap(), piece.len());
    }
    assert!(content(&volume, file) == all);
    volume.flush_delayed(file).unwrap();
    let inode = volume.inode(file).unwrap();
    let (mut at, mut runs) = (extant_fs::FileBlock(0), 0);
    while at.get() < 40_000 {
        let run = volume.map(&inode, at).unwrap();
        assert!(matches!(run.mapping, Mapping::Data(_)));
        (at, runs) = (run.end(), runs + 1);
    }
    assert!(runs < 100, "{runs} runs");
    volume.allocate(file, AllocateMode::Zero, 5000, 30_000 * 1024).unwrap();
    let zeroed = content(&volume, file);
    let end = 5000 + 30_000 * 1024;
    assert!(zeroed[..5000] == all[..5000] && zeroed[end..] == all[end..]);
    assert!(zeroed[5000..end].iter().all(|b| *b == 0));
    unmounted(&image, volume, "written");
}

#[test]
fn indirect_maps_reach_three_levels() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    for args in [&["-t", "ext2", "-b", "1024"], &["-t", "ext3", "-b", "1024"]] {
        let (image, volume, file) = volume_with_file(args, 120 << 20);
        let free = volume.statfs().blocks_free;
        let first_triple = 12 + 256 + 65_536;
        // the boundaries of each level, and blocks that need a path of their own
        let blocks =
            [0, 11, 12, 267, 268, 523, 524, 40_000, first_triple - 1, first_triple, first_triple + 255, 900_000];
        for block in blocks {
            volume.write_at(file, block * 1024, &pattern(block)).unwrap();
        }
        volume.flush_delayed(file).unwrap();
        for block in blocks {
            assert_pattern(&volume, file, block, true);
            assert_pattern(&volume, file, block + 1, blocks.contains(&(block + 1)));
        }
        // a range across the boundary of the double and the triple map
        let start = first_triple - 3_000;
        let bytes: Vec<u8> = (start..start + 6_000).flat_map(pattern).collect();
        let mut done = 0;
        while done < bytes.len() {
            done += volume.write_at(file, start * 1024 + done as u64, &bytes[done..]).unwrap();
        }
        for block in (start..start + 6_000).step_by(97) {
            assert_pattern(&volume, file, block, true);
        }
        volume.allocate(file, AllocateMode::PunchHole, (first_triple - 500) * 1024, 1000 * 1024).unwrap();
        assert_pattern(&volume, file, first_triple - 501, true);
        assert_pattern(&volume, file, first_triple, false);
        assert_pattern(&volume, file, first_triple + 500, true);
        assert!(matches!(volume.allocate(file, AllocateMode::Extend, 0, 4096), Err(Error::Unsupported(_))));
        volume.sync().unwrap();
        volume.unmount().unwrap();
        drop(volume);
        assert_valid(image.path(), args);
        let seen = oracle::debugfs_dump(image.path(), "/file");
        assert!(seen.len() == 900_001 * 1024 && seen[40_000 * 1024..40_001 * 1024] == pattern(40_000));

        let volume = open_writable(image.path(), WriteOptions::default());
        volume.truncate(file, 12 * 1024 + 5).unwrap();
        assert_pattern(&volume, file, 11, true);
        volume.truncate(file, 0).unwrap();
        volume.sync().unwrap();
        assert_eq!(volume.statfs().blocks_free, free);
        unmounted(&image, volume, "truncated");
    }
}

#[test]
fn files_end_where_their_format_ends() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let huge = i64::MAX as u64;
    // with extents all but the last of 2^32 blocks; with block maps the range of three levels; without large_file 2 GiB
    for (args, most) in [
        (&["-t", "ext4", "-b", "1024"][..], 1024 * ((1u64 << 32) - 1)),
        (&["-t", "ext4", "-b", "4096"], 4096 * ((1u64 << 32) - 1)),
        (&["-t", "ext2", "-b", "1024"], 1024 * (12 + 256 + (1 << 16) + (1 << 24))),
        (&["-t", "ext2", "-b", "1024", "-O", "^large_file"], (1 << 31) - 1),
    ] {
        let (image, volume, file) = volume_with_file(args, 8 << 20);
        assert_eq!(volume.max_file_size(&volume.inode(file).unwrap()), most, "{args:?}");
        assert_eq!(volume.write_at(file, most - 3, b"the end").unwrap(), 3, "{args:?}");
        for offset in [most, most + 1, huge - 1, huge, u64::MAX - 2] {
            assert!(matches!(volume.write_at(file, offset, b"x"), Err(Error::FileTooLarge)), "{args:?} {offset}");
        }
        for size in [most + 1, huge, u64::MAX] {
            assert!(matches!(volume.truncate(file, size), Err(Error::FileTooLarge)), "{args:?} {size}");
        }
        let inode = volume.inode(file).unwrap();
        let mut buf = [0; 10];
        assert_eq!(volume.read_at(&inode, most - 4, &mut buf).unwrap(), 4);
        assert_eq!(buf[..4], *b"\0the");
        assert_eq!(volume.read_at(&inode, u64::MAX, &mut buf).unwrap(), 0);
        volume.truncate(file, most).unwrap();
        unmounted(&image, volume, &format!("{args:?}"));
    }
}
