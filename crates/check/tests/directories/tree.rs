//! The tree of directories, and how often inodes are named.

use crate::volume::{Volume, entry, programs, put_u32};
use extant_check::table::Code::{self, *};
use std::collections::BTreeSet;
use testkit::Image;

fn set(codes: &[Code]) -> BTreeSet<Code> {
    codes.iter().copied().collect()
}

/// A volume after these debugfs commands, the last of which corrupt it.
fn after(commands: &[&str]) -> Volume {
    Volume::new(Image::mke2fs(&["-t", "ext4", "-b", "1024", "-N", "64"], 8 << 20).debugfs(commands).build())
}

#[test]
fn unconnected_directories() {
    if !programs() {
        return;
    }
    let volume = after(&["mkdir a", "mkdir a/b", "unlink a"]);
    assert_eq!(volume.codes(), set(&[DirectoryUnconnected, LinkCountWrong]));
}

#[test]
fn wrong_parents() {
    if !programs() {
        return;
    }
    let mut volume = after(&["mkdir a", "mkdir a/b", "mkdir c"]);
    let (b, c) = (volume.dir("/a/b"), volume.inode("/c"));
    volume.edit_checked(&b, 0, |block| put_u32(block, 12, c));
    assert_eq!(volume.codes(), set(&[DotDotWrong, LinkCountWrong]));
    let mut volume = after(&[]);
    let root = volume.dir("/");
    volume.edit_checked(&root, 0, |block| put_u32(block, 12, 11));
    assert_eq!(volume.codes(), set(&[DotDotWrong, LinkCountWrong]));
}

#[test]
fn the_parent_of_a_directory_with_two_is_the_one_its_dotdot_names() {
    if !programs() {
        return;
    }
    for commands in [
        ["mkdir a", "mkdir z", "mkdir z/dir", "ln z/dir a/second", "sif z/dir links_count 3"],
        ["mkdir z", "mkdir a", "mkdir z/dir", "ln z/dir a/second", "sif z/dir links_count 3"],
    ] {
        let volume = after(&commands);
        assert_eq!(volume.codes(), set(&[EntryLinksDirectory]), "{commands:?}");
    }
    // ".." names neither: the first directory
    let mut volume = after(&["mkdir a", "mkdir b", "mkdir b/dir", "ln b/dir a/second", "sif b/dir links_count 3"]);
    let dir = volume.dir("/b/dir");
    volume.edit_checked(&dir, 0, |block| put_u32(block, 12, 2));
    assert_eq!(volume.codes(), set(&[EntryLinksDirectory, DotDotWrong, LinkCountWrong]));
}

#[test]
fn circles() {
    if !programs() {
        return;
    }
    let mut volume = after(&["mkdir a", "mkdir a/b"]);
    let (root, a, b) = (volume.dir("/"), volume.dir("/a"), volume.dir("/a/b"));
    // the root's entry for a is removed, b has one
    volume.edit_checked(&root, 0, |block| put_u32(block, entry(block, b"a"), 0));
    volume.edit_checked(&b, 0, |block| {
        let free = 24;
        put_u32(block, free, a.inode);
        block[20..22].copy_from_slice(b"..");
        block[16..18].copy_from_slice(&12u16.to_le_bytes());
        block[free + 4..free + 6].copy_from_slice(&(1024u16 - 24 - 12).to_le_bytes());
        block[free + 6..free + 9].copy_from_slice(&[1, 2, b'x']);
    });
    volume.edit_checked(&a, 0, |block| put_u32(block, 12, b.inode));
    volume.image.set_bytes(&volume.bytes);
    volume.image.debugfs(&["sif <2> links_count 3", &format!("sif <{}> links_count 3", b.inode)]);
    volume.bytes = volume.image.bytes();
    // e2fsck follows parents until one was visited before, and considers that connected to the root
    assert_eq!(volume.codes_beyond_e2fsck(), set(&[DirectoryLoop]));
}

#[test]
fn link_counts() {
    if !programs() {
        return;
    }
    let file = ["symlink f x", "ln f g"];
    assert_eq!(after(&[&file[..], &["sif f links_count 2"]].concat()).codes(), set(&[]));
    assert_eq!(after(&file).codes(), set(&[LinkCountWrong]));
    assert_eq!(after(&[&file[..], &["sif f links_count 3"]].concat()).codes(), set(&[LinkCountWrong]));
    assert_eq!(after(&["symlink f x", "unlink f"]).codes(), set(&[InodeUnattached]));
    assert_eq!(after(&["mkdir d", "sif d links_count 5"]).codes(), set(&[LinkCountWrong]));
    // 1 means too many to count, but only a hashed directory can have had so many
    assert_eq!(after(&["mkdir d", "sif d links_count 1"]).codes(), set(&[LinkCountWrong]));
}

#[test]
fn an_empty_file_without_a_name() {
    if !programs() {
        return;
    }
    let folder = tempfile_with(b"");
    let volume = after(&[&format!("write {} f", folder.1), "unlink f"]);
    assert_eq!(volume.codes(), set(&[InodeUnattachedEmpty, InodeUnattached]));
    let folder = tempfile_with(b"content");
    let volume = after(&[&format!("write {} f", folder.1), "unlink f"]);
    assert_eq!(volume.codes(), set(&[InodeUnattached]));
}

/// A file with this content in an image's folder, which is removed with the image.
fn tempfile_with(content: &[u8]) -> (Image, String) {
    let scratch = Image::from_bytes(&[]);
    let path = scratch.beside("file");
    std::fs::write(&path, content).expect("writing a file");
    let name = path.display().to_string();
    (scratch, name)
}

#[test]
fn lost_and_found() {
    if !programs() {
        return;
    }
    // e2fsck searches for it only when it needs it
    assert_eq!(after(&["rmdir lost+found"]).codes(), set(&[LostAndFoundMissing]));
    assert_eq!(after(&["rmdir lost+found", "symlink lost+found x"]).codes(), set(&[LostAndFoundMissing]));
}

#[test]
fn inodes_that_hold_values() {
    if !programs() {
        return;
    }
    // the flag alone makes no difference while there is a name
    let flag = "sif f flags 0x280000";
    let folder = tempfile_with(b"content");
    let write = format!("write {} f", folder.1);
    let args = ["-t", "ext4", "-b", "1024", "-N", "64", "-O", "ea_inode"];
    let after = |commands: &[&str]| Volume::new(Image::mke2fs(&args, 8 << 20).debugfs(commands).build());
    assert_eq!(after(&[&write, flag]).codes(), set(&[]));
    let codes = after(&[&write, flag, "unlink f"]).codes();
    assert_eq!(codes, set(&[InodeUnattached, XattrValueInodeFlagStray]));
    let big = tempfile_with(&[7; 3000]);
    let attribute = format!("ea_set -f {} f user.big", big.1);
    // debugfs sets a wrong i_blocks
    let value = [&write as &str, &attribute, "sif f blocks 4"];
    assert_eq!(after(&value).codes(), set(&[]));
    // e2fsck checks these from 1.47.1 on
    let without = after(&[&value[..], &["feature -ea_inode"]].concat());
    assert_eq!(without.codes_alone(), set(&[XattrValueInodeFeatureMissing]));
    let named = after(&[&value[..], &["ln <13> name"]].concat());
    assert_eq!(named.codes_alone(), set(&[EntryLinksXattrInode]));
}
