//! Files without a name: with a lookup count, released, and after a crash.

mod common;

use common::{assert_valid, content, open, open_writable};
use extant_fs::{Error, FileKind, InodeNo, NewFile, Volume, WriteOptions};
use testkit::oracle::kernel_mount;
use testkit::{Image, cases, need, tools};

const ROOT: InodeNo = InodeNo::ROOT;

const SHAPES: &[&[&str]] = &[
    &["-t", "ext3", "-b", "1024"],
    &["-t", "ext4", "-b", "4096"],
    &["-t", "ext4", "-b", "1024", "-O", "orphan_file"],
    &["-t", "ext4", "-b", "1024", "-I", "512", "-O", "inline_data,ea_inode"],
];

fn new(kind: FileKind) -> NewFile {
    NewFile { kind, mode: 0o644, umask: 0, uid: 0, gid: 0, device: (0, 0) }
}

fn free(volume: &Volume) -> (u64, u64) {
    volume.sync().expect("sync");
    (volume.statfs().blocks_free, volume.statfs().files_free)
}

/// Asserts that e2fsck finds no error, and that no orphan is left.
fn assert_no_orphans(image: &Image, args: &[&str]) {
    assert_valid(image.path(), &args);
    let volume = open(image.path());
    let sb = volume.superblock();
    assert_eq!(sb.disk.s_last_orphan.get(), 0, "{args:?}");
    assert!(!sb.features.ro_compat.contains(format::feature::RoCompat::ORPHAN_PRESENT), "{args:?}");
}

#[test]
fn a_file_that_is_looked_up_stays_until_it_is_forgotten() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    for args in SHAPES {
        for case in cases("orphans", 2) {
            let mut rng = case.rng();
            let image = Image::mke2fs(args, 32 << 20).build();
            let volume = open_writable(image.path(), WriteOptions::default());
            let at_first = free(&volume);
            let mut looked_up = Vec::new();
            for n in 0..30u32 {
                let name = format!("file{n}");
                let kind = *rng.pick(&[FileKind::Regular, FileKind::Regular, FileKind::Directory, FileKind::Fifo]);
                let number = volume.create(ROOT, name.as_bytes(), &new(kind)).expect("create").number;
                let length = rng.magnitude(60_000) as usize;
                let bytes = if kind == FileKind::Regular { rng.bytes(length) } else { Vec::new() };
                volume
                    .write_at(number, 0, &bytes)
                    .map(drop)
                    .or_else(|e| if bytes.is_empty() { Ok(()) } else { Err(e) })
                    .expect("write");
                volume.add_lookup(number);
                volume.add_lookup(number);
                match kind {
                    FileKind::Directory => volume.rmdir(ROOT, name.as_bytes()).expect("rmdir"),
                    _ => volume.unlink(ROOT, name.as_bytes()).expect("unlink"),
                }
                looked_up.push((number, bytes, kind));
                if rng.chance(40) {
                    let (number, bytes, kind) = looked_up.remove(rng.index(looked_up.len()));
                    volume.forget(number, 1).expect("forget");
                    if kind == FileKind::Regular {
                        assert!(content(&volume, number) == bytes);
                    }
                    assert!(matches!(volume.link(number, ROOT, b"x"), Err(Error::NotFound | Error::NotPermitted(_))));
                    volume.forget(number, 1).expect("forget");
                    assert!(volume.inode(number).is_err());
                }
            }
            for (number, ..) in looked_up {
                volume.forget(number, 2).expect("forget");
            }
            assert_eq!(free(&volume), at_first, "{args:?}");
            volume.unmount().expect("unmount");
            drop(volume);
            assert_no_orphans(&image, args);
        }
    }
}

#[test]
fn what_was_looked_up_goes_with_the_volume_or_after_a_crash() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    for args in SHAPES {
        let image = Image::mke2fs(args, 32 << 20).build();
        let volume = open_writable(image.path(), WriteOptions::default());
        let at_first = free(&volume);
        for n in 0..20u32 {
            let name = format!("file{n}");
            let number = volume.create(ROOT, name.as_bytes(), &new(FileKind::Regular)).expect("create").number;
            volume.write_at(number, 0, &vec![n as u8; 3000 * n as usize + 1]).expect("write");
            volume.add_lookup(number);
            volume.unlink(ROOT, name.as_bytes()).expect("unlink");
        }
        let nameless = volume.tmpfile(ROOT, &new(FileKind::Regular)).expect("tmpfile").number;
        volume.write_at(nameless, 0, b"without a name").expect("write");
        volume.sync().expect("sync");
        // after a loss of power: one copy for Extant, one for the kernel
        let (crashed, for_kernel) = (Image::from_bytes(&image.bytes()), Image::from_bytes(&image.bytes()));
        let after = open_writable(crashed.path(), WriteOptions::default());
        assert_eq!(free(&after), at_first, "{args:?}");
        after.unmount().expect("unmount");
        drop(after);
        assert_no_orphans(&crashed, args);
        if tools::has_loop() {
            kernel_mount(for_kernel.path(), "").expect("mount").unmount();
            assert_valid(for_kernel.path(), args);
        }
        // unmounted cleanly, with or without a lookup count
        volume.unmount().expect("unmount");
        drop(volume);
        assert_no_orphans(&image, args);
        let volume = open_writable(image.path(), WriteOptions::default());
        assert_eq!(free(&volume), at_first, "{args:?}");
    }
}

#[test]
fn a_file_without_a_name_can_get_one() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    for args in SHAPES {
        let image = Image::mke2fs(args, 32 << 20).build();
        let volume = open_writable(image.path(), WriteOptions::default());
        let all: Vec<_> =
            (0..5).map(|_| volume.tmpfile(ROOT, &new(FileKind::Regular)).expect("tmpfile").number).collect();
        for (n, number) in all.iter().enumerate() {
            volume.write_at(*number, 0, format!("content {n}").as_bytes()).expect("write");
        }
        for n in [3, 1] {
            volume.link(all[n], ROOT, format!("named{n}").as_bytes()).expect("link");
            assert_eq!(volume.attributes(&volume.inode(all[n]).expect("named")).links, 1);
        }
        for number in &all {
            volume.forget(*number, 1).expect("forget");
        }
        for n in [0, 2, 4] {
            assert!(volume.inode(all[n]).is_err());
        }
        assert!(content(&volume, all[1]) == b"content 1");
        volume.unmount().expect("unmount");
        drop(volume);
        assert_no_orphans(&image, args);
    }
}
