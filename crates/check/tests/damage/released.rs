//! Files that were deleted while open, on a volume marked clean: freed without a check.

use crate::repaired::{contents, options};
use blockdev::{BlockDevice, MemoryDevice};
use extant_check::{Repair, release_orphans};
use std::sync::Arc;
use testkit::oracle::{debugfs, e2fsck};
use testkit::tools::run;
use testkit::{Image, need};

/// A volume with files `a`, `b` and `c` (inodes 12 to 14), changed by the commands, for example into orphans.
fn volume(args: &[&str], commands: &[&str]) -> Image {
    let folder = tempfile::tempdir().expect("a folder");
    let large = folder.path().join("large");
    std::fs::write(&large, vec![7; 400_000]).expect("a file");
    let write = ["a", "b", "c"].map(|name| format!("write {} {name}", large.display()));
    let image = Image::mke2fs(args, 8 << 20).debugfs(&write.each_ref().map(String::as_str)).build();
    image.debugfs(commands);
    image
}

/// Commands that put inodes 12 and 13 on the orphan list.
const TWO: [&str; 7] = [
    "unlink a",
    "unlink b",
    "sif <12> links_count 0",
    "sif <13> links_count 0",
    "sif <12> dtime 13",
    "sif <13> dtime 0",
    "ssv last_orphan 12",
];

/// The number of orphans that were freed, and the volume afterwards.
fn release(image: &Image) -> (usize, Vec<u8>) {
    let device = Arc::new(MemoryDevice::from_vec(image.bytes()));
    let as_device: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(&device);
    let freed = release_orphans(&as_device, &options(Repair::Safe)).expect("a volume");
    (freed, contents(&*device))
}

#[test]
fn orphans_of_a_clean_volume_are_freed_without_a_check() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    for args in [
        &["-t", "ext2", "-b", "1024"][..],
        &["-t", "ext2", "-b", "4096"],
        &["-t", "ext3", "-b", "1024", "-J", "size=1", "-O", "^orphan_file"],
        &["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", "^orphan_file"],
        &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,uninit_bg,^has_journal", "-g", "1024"],
    ] {
        // an attribute block of two inodes, one of which remains
        let shared = ["ea_set c user.some value", "sif a file_acl 0"];
        let image = volume(args, &shared);
        image.debugfs(&TWO);
        let (freed, bytes) = release(&image);
        assert_eq!(freed, 2, "{args:?}");
        let theirs = Image::from_bytes(&image.bytes());
        let ran = run("e2fsck", &["-p".as_ref(), theirs.path().as_os_str()]);
        assert_eq!(ran.exit, Some(0), "{}", ran.text());
        image.set_bytes(&bytes);
        let verdict = e2fsck(image.path());
        assert!(verdict.clean, "{args:?}: {}", verdict.text);
        let counts = |text: &str| text.lines().last().and_then(|line| line.split_once(": ")).map(|(_, c)| c.to_owned());
        assert_eq!(counts(&verdict.text), counts(&e2fsck(theirs.path()).text), "{args:?}");
        assert_eq!(release(&image).0, 0, "{args:?}: nothing is left to free");
    }
}

#[test]
fn what_takes_a_check_is_left_to_it() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let args = ["-t", "ext2", "-b", "1024"];
    // a list that begins or continues beyond the last inode, a list with a loop, one that begins with a system inode; a
    // map with a block of the superblock's group, one with another file's blocks, one with blocks outside the volume
    for commands in [
        &["ssv last_orphan 5000"][..],
        &["sif <13> dtime 5000"],
        &["sif <13> dtime 12"],
        &["ssv last_orphan 2"],
        &["sif <12> block[0] 3"],
        &["sif <13> block[0] 99999999"],
        &["sif <13> block[IND] 99999999"],
        &["freeb"],
        &["freei <12>"],
        &["sif c dtime 0", "sif c size 5", "ssv last_orphan 14"],
    ] {
        let image = volume(&args, &TWO);
        if commands[0] == "freeb" {
            let said = debugfs(image.path(), "bmap <13> 5");
            let block = said.lines().next().and_then(|n| n.trim().parse::<u32>().ok()).expect("a block");
            image.debugfs(&[&format!("freeb {block}")]);
        } else {
            image.debugfs(commands);
        }
        let before = image.bytes();
        let (freed, after) = release(&image);
        assert_eq!(freed, 0, "{commands:?}");
        assert!(after == before, "{commands:?}: something was written");
    }
}
