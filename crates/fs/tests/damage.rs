//! Reading damaged volumes in every way: no call may panic, hang, or run for ever.

mod common;

use common::open_bytes;
use extant_fs::{FileBlock, FileKind, InodeNo, Result, Volume};
use std::ops::Range;
use std::path::Path;
use testkit::damage::{Damager, metadata_ranges};
use testkit::{Image, Rng, Spec, Tree, cases, need, repair_checksums};

/// Maximum number of bytes read of one file: a damaged size may be far larger than the file.
const READ: u64 = 4 << 20;

/// Makes every kind of read, and returns the number of results and the number of errors among them.
fn ask_everything(volume: &Volume) -> (u64, u64) {
    let (mut asked, mut errors) = (0u64, 0u64);
    let mut count = |ok: bool| {
        asked += 1;
        errors += u64::from(!ok);
        // each directory's blocks may be those of another, but no block contains more than 5 000 entries
        assert!(asked < 20_000_000, "it does not end");
    };
    let _ = volume.statfs();
    for note in volume.warnings() {
        assert!(!note.to_string().is_empty());
    }
    let mut buf = vec![0; 100_000];
    for (path, inode) in volume.walk(InodeNo::ROOT) {
        count(inode.is_ok());
        let Ok(inode) = inode else { continue };
        let attributes = volume.attributes(&inode);
        assert_eq!(attributes.inode, inode.number);
        match volume.list_xattrs(&inode) {
            Ok(names) => names.iter().for_each(|name| count(volume.get_xattr(&inode, name).is_ok())),
            Err(_) => count(false),
        }
        match inode.kind {
            FileKind::Regular => count(read(volume, &inode, &mut buf).is_ok()),
            FileKind::Symlink => count(volume.read_link(&inode).is_ok()),
            FileKind::Directory => {
                let names = [&b"."[..], b"..", b"entry-000007", b"absent", path.rsplit(|&b| b == b'/').next().unwrap()];
                names.iter().for_each(|name| count(volume.lookup(&inode, name).is_ok()));
                for cookie in [1, 12, 30, 1000, inode.size / 2, u64::MAX] {
                    if let Ok(entries) = volume.read_dir(&inode, cookie) {
                        entries.take(1000).for_each(|entry| count(entry.is_ok()));
                    }
                }
            }
            _ => {}
        }
        count(volume.resolve(&path).is_ok() || path.is_empty());
    }
    (asked, errors)
}

fn read(volume: &Volume, inode: &extant_fs::Inode, buf: &mut [u8]) -> Result<()> {
    let mut at = 0;
    while at < inode.size.min(READ) {
        at += volume.read_at(inode, at, buf)? as u64;
    }
    volume.read_at(inode, inode.size.saturating_sub(10), buf)?;
    let mut at = FileBlock(0);
    for _ in 0..1000 {
        at = volume.map(inode, at)?.end();
    }
    // a damaged map has no more extents than the volume has bytes, but those are many
    let mut at = 0;
    for _ in 0..200 {
        let Some(data) = volume.seek_data(inode, at)? else { break };
        let Some(hole) = volume.seek_hole(inode, data)? else { break };
        assert!(hole > data && data >= at);
        at = hole;
    }
    Ok(())
}

fn bases() -> Vec<(Image, usize)> {
    let tree = Tree::new(71, &Spec { wide: 150, largest: 60_000, largest_sparse: 300_000, ..Spec::small() });
    let make = |args: &[&str], block| (Image::mke2fs(args, 8 << 20).with_tree(&tree).indexed().build(), block);
    vec![
        make(&["-t", "ext2", "-b", "1024"], 1024),
        make(&["-t", "ext4", "-b", "1024", "-g", "2048"], 1024),
        make(&["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,inline_data,large_dir", "-I", "512"], 1024),
        make(&["-t", "ext4", "-b", "4096", "-O", "bigalloc,^metadata_csum", "-C", "16384"], 4096),
    ]
}

/// A damager of the volume's metadata, or of the whole volume.
fn damager(image: &Path, bytes: &[u8], block: usize, rng: &mut Rng) -> Damager {
    if rng.chance(80) {
        let ranges: Vec<Range<usize>> = metadata_ranges(image, block);
        Damager::within(block, ranges)
    } else {
        Damager::anywhere(block, bytes.len())
    }
}

#[test]
fn consistent_volumes_return_no_error() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    for (image, _) in bases() {
        let (asked, errors) = ask_everything(&open_bytes(image.bytes()).unwrap());
        // lookups of names that do not exist are errors, too
        assert!(asked > 1000 && errors < asked / 3, "{asked} {errors}");
    }
}

#[test]
fn any_damage_is_survived() {
    if !need(&["mke2fs", "e2fsck", "dumpe2fs", "debugfs"]) {
        return;
    }
    let bases = bases();
    let (mut opened, mut total) = (0, 0);
    for case in cases("any_damage_is_survived", 300) {
        let mut rng = case.rng();
        let (image, block) = rng.pick(&bases);
        let mut bytes = image.bytes();
        let damager = damager(image.path(), &bytes, *block, &mut rng);
        for _ in 0..rng.between(1, 4) {
            damager.any(&mut bytes, &mut rng);
        }
        if rng.chance(70) {
            repair_checksums(&mut bytes);
        }
        total += 1;
        if let Ok(volume) = open_bytes(bytes) {
            opened += 1;
            ask_everything(&volume);
        }
    }
    assert!(total == 1 || opened > total / 3, "{opened} of {total}");
}
