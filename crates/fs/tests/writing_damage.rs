//! Opening for writing on volumes with damaged structures of their own (superblock, descriptors, bitmaps, journal):
//! they are refused, or used with some errors; no call panics, hangs, or runs for ever.

mod common;

use blockdev::MemoryDevice;
use common::open;
use extant_fs::{
    Clock, Consistency, FileKind, GroupNo, InodeNo, NewFile, OpenOptions, Timestamp, Volume, WriteOptions,
};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use testkit::damage::Damager;
use testkit::{Image, Rng, Spec, Tree, cases, need, repair_checksums};

/// The bytes of the volume's own structures, without inode tables.
fn structures(image: &Image, block: usize) -> Vec<Range<usize>> {
    let volume = open(image.path());
    let geometry = &volume.superblock().geometry;
    let superblock = 1024..2048;
    let mut ranges = Vec::from([superblock]);
    for group in 0..geometry.groups {
        let found = volume.group(GroupNo(group)).expect("a valid group");
        let descriptors = geometry.descriptor_block(group / geometry.descriptors_per_block());
        for first in [descriptors, found.block_bitmap, found.inode_bitmap] {
            let at = first.get() as usize * block;
            ranges.push(at..at + block);
        }
    }
    if let Some(journal) = volume.superblock().journal_inode() {
        let inode = volume.inode(journal).expect("the journal's inode");
        if let extant_fs::Mapping::Data(first) = volume.map(&inode, extant_fs::FileBlock(0)).expect("its map").mapping {
            let at = first.get() as usize * block;
            ranges.push(at..at + block);
        }
    }
    ranges
}

/// Makes as many changes as possible, and returns the number of successful calls.
fn work(volume: &Volume, rng: &mut Rng) -> u32 {
    let mut paths: Vec<Vec<u8>> = Vec::new();
    for (path, inode) in volume.walk(InodeNo::ROOT).take(60) {
        if inode.is_ok_and(|inode| inode.kind == FileKind::Regular) {
            paths.push(path);
        }
    }
    let mut done = 0;
    for step in 0..60u32 {
        let kind = if rng.chance(30) { FileKind::Directory } else { FileKind::Regular };
        let file = NewFile { kind, mode: 0o755, umask: 0, uid: 0, gid: 0, device: (0, 0) };
        let made = volume.create(InodeNo::ROOT, format!("new{step}").as_bytes(), &file);
        if let Ok(inode) = &made {
            let len = rng.magnitude(200_000) as usize;
            done += 1 + u32::from(volume.write_at(inode.number, rng.below(5000), &rng.bytes(len)).is_ok());
        }
        if !paths.is_empty() {
            let path = paths.swap_remove(rng.index(paths.len()));
            let number = volume.resolve(&path);
            if let Ok(number) = number {
                done += u32::from(volume.truncate(number, rng.below(3000)).is_ok());
                let (dir, name) = split(&path);
                let dir = if dir.is_empty() { Ok(InodeNo::ROOT) } else { volume.resolve(dir) };
                done += u32::from(dir.is_ok_and(|dir| volume.unlink(dir, name).is_ok()));
            }
        }
        if rng.chance(10) {
            done += u32::from(volume.sync().is_ok());
            done += u32::from(volume.tick(Duration::from_secs(u64::from(step) * 3)).is_ok());
        }
    }
    done + u32::from(volume.unmount().is_ok())
}

/// The parts of a path before and after its last slash.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (&[], path),
    }
}

#[test]
fn any_damage_of_the_space_is_survived() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    let tree = Tree::new(72, &Spec { wide: 60, largest: 60_000, largest_sparse: 300_000, ..Spec::small() });
    let bases = [
        (&["-t", "ext2", "-b", "1024"][..], 1024),
        (&["-t", "ext3", "-b", "1024"], 1024),
        (&["-t", "ext4", "-b", "1024", "-g", "2048"], 1024),
        (&["-t", "ext4", "-b", "4096", "-O", "^metadata_csum,uninit_bg"], 4096),
    ];
    let bases = bases.map(|(shape, block)| {
        let image = Image::mke2fs(shape, 24 << 20).with_tree(&tree).build();
        let ranges = structures(&image, block);
        (image, block, ranges)
    });
    let clock: Clock = Arc::new(|| Timestamp { seconds: 1_800_000_000, nanos: 0 });
    let (mut total, mut worked) = (0, 0);
    for case in cases("any_damage_of_the_space_is_survived", 150) {
        let mut rng = case.rng();
        let (image, block, ranges) = rng.pick(&bases);
        let mut bytes = image.bytes();
        let damager = Damager::within(*block, ranges.iter().cloned());
        for _ in 0..rng.between(1, 4) {
            damager.any(&mut bytes, &mut rng);
        }
        if rng.chance(80) {
            repair_checksums(&mut bytes);
        }
        let consistency = *rng.pick(&[None, Some(Consistency::None), Some(Consistency::DirtyBit)]);
        let write = WriteOptions { consistency, clock: Arc::clone(&clock), seed: Some(1), ..WriteOptions::default() };
        let options = OpenOptions { write: Some(write), ..OpenOptions::default() };
        total += 1;
        if let Ok(volume) = Volume::open(Arc::new(MemoryDevice::from_vec(bytes)), &options) {
            worked += u32::from(work(&volume, &mut rng) > 20);
        }
    }
    assert!(total == 1 || worked > total / 4, "{worked} of {total}");
}
