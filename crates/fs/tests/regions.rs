//! Metadata regions: the location of blocks with and without free space in them; and the same for the placement hint.

mod common;

use common::assert_valid;
use common::plain::{Plain, image, plain};
use common::{content, open, open_writable};
use extant_fs::{
    AllocateMode, Consistency, Error, FileKind, FsBlock, GroupNo, InodeNo, NewFile, Placement, Volume, WriteOptions,
};
use std::path::Path;
use testkit::{Image, need};

const BLOCK: u64 = 1024;
/// Number of blocks mapped by one indirect block.
const REACH: u64 = 254;

fn options() -> WriteOptions {
    WriteOptions { superuser: true, ..WriteOptions::default() }
}

fn new_file(volume: &Volume, name: &[u8]) -> InodeNo {
    let new = NewFile { kind: FileKind::Regular, mode: 0o644, umask: 0, uid: 0, gid: 0, device: (0, 0) };
    volume.create(InodeNo::ROOT, name, &new).expect("create").number
}

/// Writes a block so far from all others that it needs an indirect block of its own.
fn write_far(volume: &Volume, number: InodeNo, n: u64) -> Result<(), Error> {
    let at = 12 + REACH * (n + 2);
    volume.write_at(number, at * BLOCK, &[n as u8; BLOCK as usize])?;
    volume.flush_delayed(number)
}

/// The chunks of all groups that belong to a region.
fn masks(volume: &Volume) -> Vec<u64> {
    let groups = volume.superblock().geometry.group_numbers();
    groups.map(|group| volume.group(group).expect("a descriptor").regions).collect()
}

fn shown(path: &Path) -> Plain {
    plain(std::fs::read(path).expect("an image")).expect("a volume with regions")
}

/// The groups of the indirect blocks.
fn groups_of_tables(volume: &Volume, number: InodeNo) -> Vec<u32> {
    let inode = volume.inode(number).expect("there");
    let geometry = &volume.superblock().geometry;
    let double = FsBlock(inode.raw().block_words::<15>()[13].into());
    let bytes = volume.device();
    let mut block = vec![0; BLOCK as usize];
    bytes.read(double.get() * BLOCK, &mut block).expect("reading");
    let tables = geometry.indirect().pointers(&block).iter().map(|word| FsBlock(word.get().into()));
    let found = tables.filter(|block| block.get() != 0).filter_map(|block| geometry.group_of(block));
    found.map(GroupNo::get).collect()
}

#[test]
fn regions_fill_and_spill_and_grow() {
    if !need(&["e2fsck"]) {
        return;
    }
    let image =
        image(&["-t", "rext3", "-b", "1024", "-g", "1024", "-N", "256", "-O", "^has_journal,^flex_bg"], 8 << 20);
    let volume = open_writable(image.path(), options());
    let first = masks(&volume);
    let capacity = shown(image.path()).region;
    let number = new_file(&volume, b"far");
    let (mut written, mut spilled, mut grown) = (0, 0, 0);
    while grown < 10 {
        write_far(&volume, number, written).expect("there is space");
        written += 1;
        let now = masks(&volume);
        if now == first && written % 16 == 0 {
            volume.sync().expect("sync");
            spilled = groups_of_tables(&volume, number).iter().filter(|group| **group > 0).count();
        } else if now != first {
            assert!(first.iter().zip(&now).all(|(before, now)| before & now == *before), "no chunk is freed");
            grown = now.iter().zip(&first).map(|(now, first)| (now & !first).count_ones()).sum();
        }
        assert!(grown == 0 || written + 20 > capacity, "{written} indirect blocks where {capacity} blocks are region");
    }
    assert!(spilled > 0, "the other groups' regions were used before a larger one");
    volume.unmount().expect("unmount");
    drop(volume);
    let shown = shown(image.path());
    assert_eq!((&shown.strays[..], &shown.guests[..]), (&[][..], &[][..]));
    assert!(shown.region > capacity);
    assert_valid(image.path(), &"grown");
    let again = open(image.path());
    let bytes = content(&again, again.resolve(b"/far").expect("there"));
    for n in 0..written {
        let at = ((12 + REACH * (n + 2)) * BLOCK) as usize;
        assert!(bytes[at..at + BLOCK as usize].iter().all(|byte| *byte == n as u8), "block {n}");
    }
}

#[test]
fn what_has_no_other_place_goes_where_it_does_not_belong() {
    if !need(&["e2fsck"]) {
        return;
    }
    for extents in ["^has_journal,^flex_bg", "^has_journal,extents"] {
        // so large that more of it is left at the end than is reserved for metadata
        let args = ["-t", "rext3", "-b", "1024", "-g", "1024", "-N", "256", "-O", extents, "-E", "region=65536"];
        let image = image(&args, 8 << 20);
        let volume = open_writable(image.path(), options());
        let free = volume.statfs();
        let (large, small) = (new_file(&volume, b"large"), new_file(&volume, b"small"));
        // writes content until no block is left
        let piece = vec![7; 64 << 10];
        let mut size = 0;
        let full = loop {
            match volume.write_at(large, size, &piece[..if size < 7 << 20 { piece.len() } else { BLOCK as usize }]) {
                Ok(n) => size += n as u64,
                Err(e) => break e,
            }
        };
        assert!(matches!(full, Error::NoSpace), "{full}");
        volume.sync().expect("sync");
        let seen = shown(image.path());
        // after it had also used the regions, the last of its own metadata found no space in them
        assert!(
            seen.strays.len() < 5 && seen.guests.len() > 100,
            "{} {} {size} {:?} {free:?}",
            seen.strays.len(),
            seen.guests.len(),
            volume.statfs()
        );
        assert_eq!(volume.statfs().blocks_available, 0);
        // single free blocks, so that no chunk can become a region
        for n in (2_000..3_000).step_by(2) {
            volume.allocate(large, AllocateMode::PunchHole, n * BLOCK, BLOCK).expect("a hole");
        }
        volume.sync().expect("sync");
        volume.sync().expect("what was freed can be used");
        let before = masks(&volume);
        let mut written = 0;
        let full = loop {
            match write_far(&volume, small, written) {
                Ok(()) => written += 1,
                Err(e) => break e,
            }
        };
        assert!(matches!(full, Error::NoSpace), "{full}");
        assert!(written > 200, "{written}");
        assert_eq!(masks(&volume), before);
        volume.unmount().expect("unmount");
        drop(volume);
        let seen = shown(image.path());
        // the few nodes of an extent tree fit into the reserved blocks
        assert!(extents.contains("extents") || seen.strays.len() > 100, "{}", seen.strays.len());
        assert_valid(image.path(), &"full");
        let volume = open_writable(image.path(), options());
        volume.unlink(InodeNo::ROOT, b"large").expect("unlink");
        volume.unlink(InodeNo::ROOT, b"small").expect("unlink");
        volume.sync().expect("sync");
        assert_eq!(volume.statfs(), free);
        volume.unmount().expect("unmount");
        drop(volume);
        assert_valid(image.path(), &"emptied");
    }
}

#[test]
fn all_engines_of_ext3_use_the_regions() {
    if !need(&["e2fsck"]) {
        return;
    }
    let mut images = Vec::new();
    for consistency in [Consistency::None, Consistency::DirtyBit, Consistency::Journal] {
        let image = image(&["-t", "rext3", "-b", "4096"], 48 << 20);
        let options = WriteOptions { consistency: Some(consistency), ..options() };
        let volume = open_writable(image.path(), options);
        let dir = NewFile { kind: FileKind::Directory, mode: 0o755, umask: 0, uid: 0, gid: 0, device: (0, 0) };
        let top = volume.create(InodeNo::ROOT, b"top", &dir).expect("mkdir").number;
        let file = NewFile { kind: FileKind::Regular, ..dir };
        for n in 0..600u32 {
            let number = volume.create(top, format!("a name of some length {n}").as_bytes(), &file).expect("create");
            let len = if n % 50 == 0 { 90_000 } else { 5_000 };
            volume.write_at(number.number, 0, &vec![n as u8; len]).expect("write");
        }
        for n in (0..600u32).step_by(3) {
            volume.unlink(top, format!("a name of some length {n}").as_bytes()).expect("unlink");
        }
        volume.unmount().expect("unmount");
        drop(volume);
        assert_valid(image.path(), &consistency);
        let seen = shown(image.path());
        assert_eq!((&seen.strays[..], &seen.guests[..]), (&[][..], &[][..]), "{consistency:?}");
        images.push(common::manifest(&open(image.path())));
    }
    images[0].assert_same(&images[1]);
    images[0].assert_same(&images[2]);
}

/// Metadata blocks of a file, and the start of its content in its group.
fn tables(image: &Image, name: &str) -> Vec<u64> {
    let said = testkit::oracle::debugfs(image.path(), &format!("stat {name}"));
    let blocks = said.split(if said.contains("EXTENTS:") { "EXTENTS:" } else { "BLOCKS:" }).nth(1).unwrap_or_default();
    let of_tables = blocks.split(", ").filter(|part| part.contains("IND)") || part.contains("ETB"));
    of_tables.filter_map(|part| part.rsplit(':').next()?.trim().parse().ok()).collect()
}

#[test]
fn the_hint_brings_metadata_to_the_front() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    for (args, kind) in [
        (&["-t", "ext2", "-b", "1024"][..], "ext2"),
        (&["-t", "ext4", "-b", "1024", "-O", "^flex_bg,^has_journal"], "ext4"),
    ] {
        let image = Image::mke2fs(args, 32 << 20).build();
        let volume = open_writable(image.path(), WriteOptions { placement: Placement::Hint, ..options() });
        let number = new_file(&volume, b"file");
        // fragmented, so that extents need a tree
        for n in 0..3_000u64 {
            volume.write_at(number, n * 2 * BLOCK, &[1; BLOCK as usize]).expect("write");
        }
        volume.unmount().expect("unmount");
        let geometry = volume.superblock().geometry.clone();
        let table = volume.group(GroupNo(0)).expect("a group").inode_table.get() + u64::from(geometry.itable_blocks);
        drop(volume);
        assert_valid(image.path(), &kind);
        let tables = tables(&image, "file");
        assert!(tables.len() > 5, "{kind}: {tables:?}");
        // the first group's front: about 4 % behind the group's own structures, in whole chunks
        let front = table..table + u64::from(3 * geometry.chunk_blocks());
        let inside = tables.iter().filter(|block| front.contains(block)).count();
        let expected = if kind == "ext2" { tables.len() - 1 } else { tables.len() };
        assert!(inside >= expected, "{kind}: {inside} of {tables:?} in {front:?}");
    }
}
