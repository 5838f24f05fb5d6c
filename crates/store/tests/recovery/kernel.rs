//! Journals that the kernel wrote: volumes copied while they were mounted.

use super::applied::{applied, replayed_by_e2fsck};
use super::*;
use extant_store::Error;
use std::fs::{self, File};
use std::io::Write as _;
use testkit::{need, oracle};

/// Works on a mounted volume, makes some of it durable, and returns the bytes on the device while it is still mounted.
fn copied_while_mounted(args: &[&str], options: &str, rounds: u32) -> (Vec<u8>, Vec<BlockExtent>) {
    let image = Image::mke2fs(args, 64 << 20).build();
    let runs = journal_runs(&image);
    let mounted = oracle::kernel_mount(image.path(), options).unwrap();
    let magic = format::jbd2::MAGIC.to_be_bytes();
    for round in 0..rounds {
        let folder = mounted.path().join(format!("folder{round}"));
        fs::create_dir(&folder).unwrap();
        for n in 0..20 {
            fs::write(folder.join(format!("file{n}")), [&magic[..], &[n; 3000]].concat()).unwrap();
        }
        if round > 0 && round % 3 == 0 {
            // blocks of removed directories may be reused for file data: the reason for revoke records
            fs::remove_dir_all(mounted.path().join(format!("folder{}", round - 1))).unwrap();
        }
        let mut file = File::create(mounted.path().join("durable")).unwrap();
        file.write_all(&round.to_le_bytes()).unwrap();
        file.sync_all().unwrap();
    }
    (image.bytes(), runs)
}

#[test]
fn journals_written_by_the_kernel() {
    if !need(&["mke2fs", "debugfs", "mount"]) || !tools::has_loop() {
        return;
    }
    for (args, options, rounds) in [
        (&["-t", "ext3", "-b", "1024"][..], "", 30),
        (&["-t", "ext4", "-b", "4096"], "", 10),
        (&["-t", "ext4", "-b", "1024"], "data=journal", 30),
        (&["-t", "ext4", "-b", "4096"], "data=journal", 30),
        (&["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"], "journal_checksum", 4),
        (&["-t", "ext4", "-b", "1024"], "journal_async_commit,data=writeback", 4),
    ] {
        let (before, runs) = copied_while_mounted(args, options, rounds);
        let (recovered, ours) = replay(&before, &runs).unwrap();
        assert_eq!(recovered.damage, [], "{args:?} {options}");
        assert!(recovered.transactions > 0, "{args:?} {options}");
        let changed = assert_same(&before, &ours, &replayed_by_debugfs(&before), &runs);
        assert!(changed > 0, "{args:?} {options}: all of the journal was home already");
        let home = applied(&before, &runs).unwrap();
        assert_same(&before, &home, &replayed_by_e2fsck(&before), &runs);
        assert_same(&before, &home, &ours, &runs);
    }
}

#[test]
fn fast_commits_are_counted() {
    if !need(&["mke2fs", "debugfs", "mount"]) || !tools::has_loop() {
        return;
    }
    let args = &["-t", "ext4", "-b", "1024", "-O", "fast_commit", "-J", "size=8"];
    let image = Image::mke2fs(args, 64 << 20).build();
    let runs = journal_runs(&image);
    let mounted = oracle::kernel_mount(image.path(), "").unwrap();
    for n in 0..6 {
        let mut file = File::create(mounted.path().join(format!("file{n}"))).unwrap();
        file.write_all(b"content").unwrap();
        file.sync_all().unwrap();
    }
    let before = image.bytes();
    drop(mounted);
    let (recovered, _) = replay(&before, &runs).unwrap();
    assert_eq!(recovered.damage, []);
    let refused = applied(&before, &runs);
    assert!(matches!(&refused, Err(Error::Journal(what)) if what.contains("fast commits")), "{refused:?}");
    let log = oracle::debugfs(Image::from_bytes(&before).path(), "logdump -a");
    let area = log.split("Fast Commit Area").nth(1).expect("fast commits in the dump");
    let count = |kinds: &[&str]| kinds.iter().map(|kind| area.matches(&format!("tag {kind}")).count()).sum::<usize>();
    assert!(recovered.fast_commits > 0);
    assert_eq!(recovered.fast_commits as usize, count(&["TAIL"]), "{area}");
    let changes = count(&["INODE", "ADD_RANGE", "DEL_RANGE", "CREAT", "LINK", "UNLINK"]);
    assert_eq!(recovered.fast_commit_changes as usize, changes, "{area}");
}
