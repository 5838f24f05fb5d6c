//! Writing to damaged volumes: whatever the content of maps, inodes and bitmaps, no call panics or runs for ever, and a
//! change that is not possible returns an error.

mod common;

use blockdev::{BlockDevice, MemoryDevice};
use common::{number, open_writable};
use extant_fs::{AllocateMode, InodeNo, OpenOptions, Volume, WriteOptions};
use std::ops::Range;
use std::sync::Arc;
use testkit::damage::{Damager, metadata_ranges};
use testkit::{Image, Rng, cases, need, repair_checksums};

const FILES: u64 = 4;

/// Volumes with files of many extents.
fn bases() -> Vec<(Image, usize, Vec<InodeNo>)> {
    let make = |args: &[&str], block: usize| {
        let commands: Vec<String> = (0..FILES).map(|n| format!("write /dev/null f{n}")).collect();
        let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
        let image = Image::mke2fs(args, 8 << 20).debugfs(&commands).build();
        let volume = open_writable(image.path(), WriteOptions::default());
        let files: Vec<_> = (0..FILES).map(|n| number(&volume, &format!("/f{n}"))).collect();
        for (n, file) in (0u64..).zip(&files) {
            for piece in 0..200 * n {
                let at = piece * (n + 1) * block as u64;
                volume.write_at(*file, at, &vec![n as u8; block]).expect("write");
            }
            volume.write_at(*file, 0, b"head").expect("write");
        }
        volume.unmount().expect("unmount");
        drop(volume);
        (image, block, files)
    };
    vec![
        make(&["-t", "ext2", "-b", "1024"], 1024),
        make(&["-t", "ext4", "-b", "1024", "-O", "^has_journal"], 1024),
        make(&["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,inline_data", "-J", "size=1"], 1024),
    ]
}

fn change(volume: &Volume, file: InodeNo, rng: &mut Rng) -> bool {
    let offset = rng.below(900_000);
    let len = rng.magnitude(400_000);
    let modes = [
        AllocateMode::Extend,
        AllocateMode::KeepSize,
        AllocateMode::PunchHole,
        AllocateMode::Zero,
        AllocateMode::Collapse,
        AllocateMode::Insert,
    ];
    let outcome = match rng.below(10) {
        0..4 => volume.write_at(file, offset, &rng.bytes(len as usize)).map(drop),
        4 => volume.truncate(file, offset),
        5 => volume.truncate(file, 0),
        6 | 7 => volume.allocate(file, *rng.pick(&modes), offset / 1024 * 1024, len.next_multiple_of(1024)),
        8 => volume.fsync(file, false),
        _ => volume.inode(file).and_then(|inode| volume.read_at(&inode, offset, &mut vec![0; len as usize])).map(drop),
    };
    outcome.is_ok()
}

#[test]
fn a_size_that_no_inode_holds_is_refused() {
    if !need(&["mke2fs", "debugfs"]) {
        return;
    }
    let args = ["-t", "ext4", "-b", "1024", "-O", "inline_data"];
    let image = Image::mke2fs(&args, 8 << 20).debugfs(&["write /dev/null f"]).build();
    let volume = open_writable(image.path(), WriteOptions::default());
    let file = number(&volume, "/f");
    volume.write_at(file, 0, b"short").expect("write");
    volume.unmount().expect("unmount");
    drop(volume);
    image.debugfs(&["set_inode_field /f size 4611686018427387908"]);
    let volume = open_writable(image.path(), WriteOptions::default());
    for outcome in [
        volume.write_at(file, 3, b"x").map(drop),
        volume.write_at(file, 3000, b"x").map(drop),
        volume.truncate(file, 2000),
        volume.allocate(file, AllocateMode::KeepSize, 0, 1),
    ] {
        assert!(outcome.is_err_and(|e| e.is_corruption()));
    }
}

#[test]
fn damaged_files_are_changed_without_harm() {
    if !need(&["mke2fs", "debugfs", "dumpe2fs"]) {
        return;
    }
    let bases = bases();
    let (mut done, mut refused) = (0, 0);
    for case in cases("damaged_files_are_changed", 250) {
        let mut rng = case.rng();
        let (image, block, files) = rng.pick(&bases);
        let mut bytes = image.bytes();
        let damager = if rng.chance(80) {
            let ranges: Vec<Range<usize>> = metadata_ranges(image.path(), *block);
            Damager::within(*block, ranges)
        } else {
            Damager::anywhere(*block, bytes.len())
        };
        for _ in 0..rng.between(1, 4) {
            damager.any(&mut bytes, &mut rng);
        }
        if rng.chance(70) {
            repair_checksums(&mut bytes);
        }
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_vec(bytes));
        let write = Some(WriteOptions {
            seed: Some(3),
            dirty_bytes: 1 << 20,
            delayed_bytes: 1 << 20,
            ..WriteOptions::default()
        });
        let Ok(volume) = Volume::open(device, &OpenOptions { write, ..OpenOptions::default() }) else { continue };
        for _ in 0..40 {
            if change(&volume, *rng.pick(files), &mut rng) {
                done += 1;
            } else {
                refused += 1;
            }
        }
        // lost data has been reported, or is reported now
        let _ = volume.unmount();
    }
    assert!(done > refused && refused > 0, "{done} done, {refused} refused");
}
