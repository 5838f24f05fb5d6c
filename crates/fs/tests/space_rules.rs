//! The rules for the use of blocks and numbers by users: reserved blocks, freed blocks and numbers, unreadable bitmaps,
//! and the free blocks discarded on a device.

mod common;

use blockdev::{BlockDevice, FileDevice, MemoryDevice};
use common::{assert_valid, open, open_writable};
use extant_fs::{Consistency, Error, FileKind, GroupNo, InodeNo, NewFile, OpenOptions, Volume, WriteOptions};
use format::superblock::DiskSuperblock;
use simdev::{Fault, Faulty};
use std::sync::Arc;
use testkit::{Image, need};
use zerocopy::{FromBytes, IntoBytes};

const ROOT: InodeNo = InodeNo::ROOT;
const FILE: NewFile = NewFile { kind: FileKind::Regular, mode: 0o644, umask: 0, uid: 0, gid: 0, device: (0, 0) };

fn with(consistency: Consistency) -> WriteOptions {
    WriteOptions { consistency: Some(consistency), ..WriteOptions::default() }
}

/// Writes to a new file until there is no space; returns the number of bytes written.
fn fill(volume: &Volume, name: &[u8]) -> u64 {
    let file = volume.create(ROOT, name, &FILE).expect("a file").number;
    let mut at = 0;
    loop {
        match volume.write_at(file, at, &[1; 10_000]) {
            Ok(written) => at += written as u64,
            Err(Error::NoSpace) => return at,
            Err(e) => panic!("{e}"),
        }
    }
}

#[test]
fn reserved_blocks_are_for_whom_the_superblock_says() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    let image = Image::mke2fs(&["-t", "ext2", "-b", "1024", "-m", "20"], 8 << 20).build();
    let mut bytes = image.bytes();
    let mut sb = DiskSuperblock::read_from_prefix(&bytes[1024..]).expect("a superblock").0;
    (sb.s_def_resuid, sb.s_def_resgid) = (50.into(), 60.into());
    sb.set_checksum();
    bytes[1024..2048].copy_from_slice(sb.as_bytes());
    std::fs::write(image.path(), bytes).expect("writing the image");
    let volume = open_writable(image.path(), WriteOptions::default());
    let most = volume.on_behalf_of(1000, 1000, || fill(&volume, b"anybody"));
    // a fifth of 8 MiB is reserved
    assert!((5 << 20..7 << 20).contains(&most), "{most}");
    for (uid, gid, may) in [(1000, 1000, false), (50, 1000, true), (1000, 60, true), (0, 0, true), (1000, 0, false)] {
        let file = volume.inode(volume.lookup(&volume.inode(ROOT).expect("root"), b"anybody").expect("there"));
        let number = file.expect("a file").number;
        let end = volume.attributes_of(number).expect("attributes").size.next_multiple_of(1024);
        let wrote = volume.on_behalf_of(uid, gid, || volume.write_at(number, end, &[2; 1024]));
        assert_eq!(wrote.is_ok(), may, "user {uid}, group {gid}: {wrote:?}");
    }
    // and only while the reserve exists
    assert!(matches!(
        volume.create(ROOT, b"more", &FILE).and_then(|f| volume.write_at(f.number, 0, &[3; 9999])),
        Err(Error::NoSpace)
    ));
    volume.unmount().expect("unmounted");
    assert_valid(image.path(), &"reserved blocks");
}

#[test]
fn a_bitmap_that_cannot_be_read_is_an_error_of_the_device() {
    if !need(&["mke2fs"]) {
        return;
    }
    // one group
    let image = Image::mke2fs(&["-t", "ext4", "-b", "1024", "-O", "^has_journal"], 8 << 20).build();
    let descriptor = open(image.path()).group(GroupNo(0)).expect("a descriptor");
    for bitmap in [descriptor.block_bitmap, descriptor.inode_bitmap] {
        let start = bitmap.get() * 1024;
        let plan = vec![Fault::ReadError { range: start..start + 1024 }];
        let device = Faulty::new(MemoryDevice::from_vec(image.bytes()), plan);
        let options = OpenOptions { write: Some(WriteOptions::default()), ..OpenOptions::default() };
        let volume = Volume::open(Arc::new(device), &options).expect("opened");
        let made = volume.create(ROOT, b"f", &FILE);
        assert!(matches!(made, Err(Error::Io(_))), "{made:?}");
        assert!(volume.damaged_groups().is_empty(), "the group is as usable as before");
    }
}

#[test]
fn numbers_are_used_again_when_a_crash_cannot_bring_back_their_files() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    let image = Image::mke2fs(&["-t", "ext4"], 16 << 20).build();
    for (consistency, at_once) in
        [(Consistency::None, false), (Consistency::DirtyBit, false), (Consistency::Journal, true)]
    {
        let volume = open_writable(image.path(), with(consistency));
        let make = |name: &[u8]| volume.create(ROOT, name, &FILE).expect("a file").number;
        let first = make(b"first");
        volume.unlink(ROOT, b"first").expect("unlink");
        assert!(matches!(volume.inode(first), Err(Error::Stale(number)) if number == first));
        let second = make(b"second");
        assert_eq!(first == second, at_once, "{consistency:?}");
        volume.sync().expect("sync");
        volume.unlink(ROOT, b"second").expect("unlink");
        volume.sync().expect("sync");
        assert_eq!(make(b"third"), first, "{consistency:?}");
        volume.unlink(ROOT, b"third").expect("unlink");
        volume.unmount().expect("unmounted");
        assert_valid(image.path(), &consistency);
    }
}

#[test]
fn all_numbers_can_be_used_again_and_again() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    let image = Image::mke2fs(&["-t", "ext2", "-N", "64"], 4 << 20).build();
    let volume = open_writable(image.path(), with(Consistency::None));
    for round in 0..3 {
        let mut made = 0;
        while volume.create(ROOT, format!("{round}-{made}").as_bytes(), &FILE).is_ok() {
            made += 1;
        }
        // all except the reserved ones and lost+found
        assert_eq!(made, 64 - 11);
        for n in 0..made {
            volume.unlink(ROOT, format!("{round}-{n}").as_bytes()).expect("unlink");
        }
    }
    volume.unmount().expect("unmounted");
    assert_valid(image.path(), &"numbers");
}

#[test]
fn trimming_reports_free_blocks_and_no_others() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    for (args, consistency) in [
        (&["-t", "ext2", "-b", "1024"][..], Consistency::None),
        (&["-t", "ext4", "-b", "1024"], Consistency::Journal),
        (&["-t", "ext4", "-b", "4096"], Consistency::Journal),
    ] {
        let image = Image::mke2fs(args, 32 << 20).build();
        let device = FileDevice::open(image.path(), blockdev::OpenOptions { write: true, ..Default::default() });
        let device: Arc<dyn BlockDevice> = Arc::new(device.expect("the image"));
        let options = OpenOptions { write: Some(with(consistency)), ..OpenOptions::default() };
        let volume = Volume::open(Arc::clone(&device), &options).expect("opened");
        let left = volume.create(ROOT, b"left", &FILE).expect("a file").number;
        let gone = volume.create(ROOT, b"gone", &FILE).expect("a file").number;
        let content = vec![7; 3 << 20];
        volume.write_at(left, 0, &content).expect("written");
        volume.write_at(gone, 0, &content).expect("written");
        volume.sync().expect("sync");
        let mapping = volume.map(&volume.inode(gone).expect("a file"), extant_fs::FileBlock(0)).expect("a map").mapping;
        let extant_fs::Mapping::Data(block) = mapping else { panic!("it has no block") };
        let there = || {
            let mut bytes = [1; 1024];
            device.read(block.get() * u64::from(volume.superblock().geometry.block_size), &mut bytes).expect("read");
            bytes[0]
        };
        volume.unlink(ROOT, b"gone").expect("unlink");
        if consistency == Consistency::Journal {
            // a crash would restore it
            volume.trim(0, u64::MAX, 0).expect("trimmed");
            assert_eq!(there(), 7);
        }
        volume.sync().expect("sync");
        let free = volume.statfs().blocks_free * u64::from(volume.superblock().geometry.block_size);
        assert_eq!(volume.trim(0, u64::MAX, 0).expect("trimmed"), free);
        assert_eq!(there(), 0, "a hole in the image");
        assert!(volume.trim(0, u64::MAX, 4 << 20).expect("trimmed") <= free);
        assert_eq!(volume.trim(0, 2 << 20, 0).expect("trimmed") % 1024, 0);
        for (start, length, least) in [(32 << 20, 1 << 20, 0), (0, 1, 0), (0, u64::MAX, 1 << 40)] {
            assert!(matches!(volume.trim(start, length, least), Err(Error::Invalid(_))));
        }
        // no block stays unavailable afterwards, and the remaining file is unchanged
        assert_eq!(volume.statfs().blocks_free * u64::from(volume.superblock().geometry.block_size), free);
        let mut read = vec![0; content.len()];
        volume.read_at(&volume.inode(left).expect("a file"), 0, &mut read).expect("read");
        assert!(read == content);
        fill(&volume, b"more");
        volume.unmount().expect("unmounted");
        assert_valid(image.path(), &args);
    }
}

#[test]
fn files_that_grow_at_once_lie_in_long_pieces() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    const EACH: u64 = 16 << 20;
    for args in [
        &["-t", "ext4", "-b", "4096"][..],
        &["-t", "ext2", "-b", "4096"],
        &["-t", "ext4", "-b", "4096", "-O", "^flex_bg"],
    ] {
        let image = Image::mke2fs(args, 256 << 20).build();
        let volume = open_writable(image.path(), WriteOptions::default());
        let files: Vec<_> = (0..3).map(|n| volume.create(ROOT, &[b'a' + n], &FILE).expect("a file").number).collect();
        let piece = vec![1; 1 << 20];
        for at in (0..EACH).step_by(piece.len()) {
            files.iter().for_each(|file| assert!(volume.write_at(*file, at, &piece).expect("written") > 0));
        }
        volume.sync().expect("sync");
        for file in files {
            let inode = volume.inode(file).expect("a file");
            let (mut at, mut pieces, mut end) = (0, 0, None);
            while at < inode.size.div_ceil(u64::from(volume.superblock().geometry.block_size)) {
                let run = volume.map(&inode, extant_fs::FileBlock(at)).expect("a map");
                let first = run.physical().expect("a block").get();
                // an indirect block or two may be between
                pieces += u32::from(end.is_none_or(|end| first < end || first > end + 2));
                end = Some(first + run.len);
                at += run.len;
            }
            assert!(pieces <= 4, "{args:?}: {pieces} pieces");
        }
        volume.unmount().expect("unmounted");
        assert_valid(image.path(), &args);
    }
}
