//! Bugs found in other programs for these volumes, as tests of this one. Each is named after the bug.
//!
//! | bug, and program | tests |
//! | --- | --- |
//! | a name of 256 bytes corrupts the directory (fuse2fs 1.47.0, 1.47.4) | here; each call in `fs/tests/names_errors.rs` and `fuse/tests/writing.rs` |
//! | creating and removing many names ends the daemon (fuse2fs) | here; 100 000 names in `fs/tests/names_big.rs` |
//! | umount(8) returns before everything is written (plain FUSE) | here; on block devices in `fuse/tests/writing.rs` |
//! | a volume mounted by the kernel is opened nevertheless (fuse2fs) | here; block devices in `blockdev/tests/block_device.rs` |
//! | the journal is not used, so that a crash leaves a damaged volume (fuse2fs: 69 % of the states) | here, and the exploration of [`extant_crash`] in the journal's modes |
//! | the superblock is written in parts, and an interruption leaves a volume that cannot be repaired (fuse2fs) | here, mutant `HalfSuperblock` |
//! | an interrupted repair leaves a volume that the next cannot repair (e2fsck: 12.6 % of the interruptions) | `check/tests/damage/cuts.rs` |

use blockdev::{BlockDevice, FileDevice, MemoryDevice, OpenOptions};
use fs::{FileKind, InodeNo, NewFile, Volume, WriteOptions};
use fuse::MountOptions;
use simdev::{Logged, Record};
use std::fs::File;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use testkit::{Image, Rng, oracle, tools};

fn ready() -> bool {
    testkit::need(&["mke2fs", "e2fsck"]) && tools::has_fuse()
}

/// Mounts the volume in an image, runs `work` on it, unmounts it, and checks it with e2fsck.
fn through_fuse(image: &Image, work: impl FnOnce(&Path)) {
    let dir = tempfile::tempdir().expect("a folder");
    let mut options = MountOptions::parse(&["rw"]).expect("options");
    let way = options.volume_options().pop().expect("one way to open it");
    options.mount.device = Some(image.path().to_owned());
    let access = OpenOptions { write: true, exclusive: true, ..OpenOptions::default() };
    let device = FileDevice::open(image.path(), access).expect("opened");
    let volume = Volume::open(Arc::new(device), &way).expect("a volume");
    let session = fuse::mount(Arc::new(volume), dir.path(), &options, |problem| panic!("{problem}")).expect("mounted");
    let unmounter = session.unmounter();
    let served = std::thread::spawn(move || session.run());
    let worked = catch_unwind(AssertUnwindSafe(|| work(dir.path())));
    unmounter.unmount().expect("unmounted");
    served.join().expect("no panic").expect("the session ends well");
    worked.unwrap_or_else(|panic| resume_unwind(panic));
    let verdict = oracle::e2fsck(image.path());
    assert!(verdict.clean, "{}", verdict.text);
}

#[test]
fn a_name_that_is_too_long() {
    if !ready() {
        return;
    }
    let image = Image::mke2fs(&["-t", "ext4"], 16 << 20).build();
    through_fuse(&image, |root| {
        let long = root.join("a".repeat(256));
        let refused = |done: io::Result<()>| {
            let e = done.expect_err("256 bytes");
            assert_eq!(rustix::io::Errno::from_io_error(&e), Some(rustix::io::Errno::NAMETOOLONG));
        };
        refused(std::fs::create_dir(&long));
        refused(File::create(&long).map(drop));
        std::fs::create_dir(root.join("a".repeat(255))).expect("255 bytes");
        // the volume supports further operations
        std::fs::write(root.join("f"), "after").expect("written");
    });
}

#[test]
fn many_names_come_and_go() {
    if !ready() {
        return;
    }
    let image = Image::mke2fs(&["-t", "ext4", "-b", "1024", "-N", "4000"], 48 << 20).build();
    through_fuse(&image, |root| {
        let mut rng = Rng::new(2);
        let free = || rustix::fs::statvfs(root).expect("statvfs").f_ffree;
        let all = free();
        for round in 0..3 {
            // until no inode is free
            let mut made = 0;
            let full = loop {
                match File::create(root.join(format!("{made:06}-{round}"))) {
                    Ok(_) => made += 1,
                    Err(e) => break e,
                }
            };
            assert_eq!(full.kind(), io::ErrorKind::StorageFull, "{full}");
            assert_eq!(u64::from(made), all);
            let mut left: Vec<u32> = (0..made).collect();
            while !left.is_empty() {
                let n = left.swap_remove(rng.index(left.len()));
                std::fs::remove_file(root.join(format!("{n:06}-{round}"))).expect("removed");
            }
            // the kernel drops the last one shortly later
            while free() != all {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        assert_eq!(root.read_dir().expect("listed").count(), 1, "lost+found is left");
    });
}

#[test]
fn unmounted_is_written() {
    if !ready() {
        return;
    }
    let image = Image::mke2fs(&["-t", "ext4"], 64 << 20).build();
    for round in 0..5u64 {
        let content = Rng::new(round).bytes(20 << 20);
        through_fuse(&image, |root| {
            if round > 0 {
                assert!(std::fs::read(root.join("f")).expect("read") == Rng::new(round - 1).bytes(20 << 20));
            }
            std::fs::write(root.join("f"), &content).expect("written");
        });
    }
}

#[test]
fn a_volume_that_the_kernel_has_mounted_is_refused() {
    if !ready() || !tools::has_loop() {
        return;
    }
    let image = Image::mke2fs(&["-t", "ext4"], 16 << 20).build();
    let open =
        || FileDevice::open(image.path(), OpenOptions { write: true, exclusive: true, ..OpenOptions::default() });
    let mounted = oracle::kernel_mount(image.path(), "").expect("mounted");
    let refused = open().map(drop).expect_err("it is mounted").to_string();
    assert!(refused.contains("locked by another process"), "{refused}");
    mounted.unmount();
    open().expect("it is free again");
}

/// The defaults for a program without options, on a volume with a journal.
#[test]
fn the_journal_is_used_unasked_and_the_superblock_is_one_write() {
    if !testkit::need(&["mke2fs"]) {
        return;
    }
    let image = Image::mke2fs(&["-t", "ext4", "-b", "1024"], 16 << 20).build();
    let record = Arc::new(Record::in_memory(MemoryDevice::from_vec(image.bytes())));
    let options = fs::OpenOptions { write: Some(WriteOptions::default()), ..fs::OpenOptions::default() };
    let volume = Volume::open(Arc::clone(&record) as Arc<dyn BlockDevice>, &options).expect("a volume");
    let new = NewFile { kind: FileKind::Directory, mode: 0o755, umask: 0, uid: 0, gid: 0, device: (0, 0) };
    volume.create(InodeNo::ROOT, b"d", &new).expect("mkdir");
    volume.sync().expect("sync");
    let log = record.log().expect("the log");
    let (mut commits, mut superblocks) = (0, 0);
    for (index, entry) in log.entries().iter().enumerate() {
        let Logged::Write { offset, len, .. } = &entry.what else { continue };
        if (*offset..offset + len).contains(&1024) {
            superblocks += 1;
            assert!(*offset <= 1024 && offset + len >= 2048, "{offset}, {len}");
        }
        for (_, part) in log.parts(index) {
            // the header of a commit block
            commits += part.chunks(1024).filter(|block| block.starts_with(b"\xC0\x3B\x39\x98\x00\x00\x00\x02")).count();
        }
    }
    assert!(commits > 0 && superblocks > 0, "{commits} commits, the superblock written {superblocks} times");
    drop(volume);
}
