//! One entry at a time.

use crate::volume::{Dir, Volume, entry, programs, put_u16, put_u32, rec_len};
use extant_check::table::Code::{self, *};
use format::dir::DirTail;
use std::collections::BTreeSet;
use testkit::Image;

/// A volume with a directory `d` of: `aaaa`, `bbbb` (links), `pipe`, `sub` (a directory).
fn volume(args: &[&str]) -> (Volume, Dir) {
    let commands = ["mkdir d", "mkdir other", "cd d", "symlink aaaa x", "symlink bbbb y", "mknod pipe p", "mkdir sub"];
    let volume = Volume::new(Image::mke2fs(args, 2 << 20).debugfs(&commands).build());
    let dir = volume.dir("/d");
    assert_eq!(volume.codes(), BTreeSet::new());
    (volume, dir)
}

const EXT2: &[&str] = &["-t", "ext2", "-b", "1024", "-N", "64"];
const EXT4: &[&str] = &["-t", "ext4", "-b", "1024", "-N", "64", "-O", "^has_journal"];

/// Corrupts the first block of `d` and returns the problems found.
fn damaged(edit: impl FnOnce(&mut [u8])) -> BTreeSet<Code> {
    let (mut volume, dir) = volume(EXT2);
    volume.edit(&dir, 0, edit);
    volume.codes()
}

fn set(codes: &[Code]) -> BTreeSet<Code> {
    codes.iter().copied().collect()
}

#[test]
fn dot() {
    if !programs() {
        return;
    }
    assert_eq!(damaged(|b| put_u32(b, 0, 0)), set(&[DotMissing, LinkCountWrong]));
    assert_eq!(damaged(|b| b[8] = b'x'), set(&[FirstEntryNotDot]));
    assert_eq!(damaged(|b| b[9] = 1), set(&[DotNotTerminated]));
    assert_eq!(damaged(|b| put_u32(b, 0, 11)), set(&[DotInodeWrong, LinkCountWrong]));
    // ".." at byte 12 is certain, whatever the length of "." says
    for len in [0, 8, 13, 16, 24, 40, 1024, 2048, u16::MAX] {
        assert_eq!(damaged(|b| put_u16(b, 4, len)), set(&[DotLengthWrong]), "{len}");
    }
    // "." covers what was ".." too; the next entry is taken for ".."
    let swallowed = damaged(|b| {
        put_u16(b, 4, 12 + rec_len(b, 12) as u16 + rec_len(b, 24) as u16);
        b[18] = 0;
    });
    assert!(swallowed.is_superset(&set(&[DotEntryLarge, SecondEntryNotDotDot, DotDotWrong])), "{swallowed:?}");
}

#[test]
fn dotdot() {
    if !programs() {
        return;
    }
    assert_eq!(damaged(|b| put_u32(b, 12, 0)), set(&[DotDotMissing, DotDotWrong, LinkCountWrong]));
    assert_eq!(damaged(|b| b[20] = b'x'), set(&[SecondEntryNotDotDot, DotDotWrong]));
    assert_eq!(damaged(|b| b[22] = 1), set(&[DotDotNotTerminated, DotDotWrong]));
    assert_eq!(damaged(|b| put_u32(b, 12, 11)), set(&[DotDotWrong, LinkCountWrong]));
    assert_eq!(damaged(|b| b[entry(b, b"aaaa") + 6] = 0), set(&[EntryNameEmpty]));
}

#[test]
fn inode_numbers() {
    if !programs() {
        return;
    }
    let aaaa = |inode: u32| damaged(move |b| put_u32(b, entry(b, b"aaaa"), inode));
    // the link loses its name, and with it all its names
    let lost = |code| set(&[code, InodeUnattached]);
    for inode in [1, 3, 5, 7, 8, 10, 65, u32::MAX] {
        assert_eq!(aaaa(inode), lost(EntryInodeOutOfRange), "{inode}");
    }
    assert_eq!(aaaa(60), lost(EntryInodeUnused));
    assert_eq!(aaaa(0), set(&[InodeUnattached]));
    assert_eq!(aaaa(2), set(&[EntryLinksRoot, EntryTypeWrong, InodeUnattached, LinkCountWrong]));
    assert_eq!(aaaa(11), set(&[EntryLinksDirectory, EntryTypeWrong, InodeUnattached, LinkCountWrong]));
    let own = volume(EXT2).1.inode;
    assert_eq!(aaaa(own), set(&[EntryLinksItself, EntryTypeWrong, InodeUnattached, LinkCountWrong]));
}

#[test]
fn inodes_that_groups_call_unused() {
    if !programs() {
        return;
    }
    let (mut volume, dir) = volume(&[EXT4, &["-g", "1024"]].concat());
    volume.edit_checked(&dir, 0, |b| put_u32(b, entry(b, b"aaaa"), 30));
    assert_eq!(volume.codes(), set(&[EntryInodeInUnusedPart, InodeUnattached]));
    volume.edit_checked(&dir, 0, |b| put_u32(b, entry(b, b"aaaa"), 60));
    assert_eq!(volume.codes(), set(&[EntryInodeGroupUninit, InodeUnattached]));
}

#[test]
fn names() {
    if !programs() {
        return;
    }
    assert_eq!(damaged(|b| b[entry(b, b"aaaa") + 9] = b'/'), set(&[EntryNameIllegal]));
    assert_eq!(damaged(|b| b[entry(b, b"aaaa") + 9] = 0), set(&[EntryNameIllegal]));
    assert_eq!(damaged(|b| b[entry(b, b"aaaa") + 9] = 0xFF), set(&[]));
    let twice = |b: &mut [u8]| {
        let at = entry(b, b"bbbb");
        b[at + 8..at + 12].copy_from_slice(b"aaaa");
    };
    assert_eq!(damaged(twice), set(&[EntryDuplicate]));
    assert_eq!(damaged(|b| b[entry(b, b"aaaa") + 6] = 1), set(&[]));
    let dot = |b: &mut [u8]| {
        let at = entry(b, b"aaaa");
        b[at + 6..at + 10].copy_from_slice(&[1, 7, b'.', 0]);
    };
    assert_eq!(damaged(dot), set(&[DotDuplicate, EntryDuplicate]));
    let dotdot = |b: &mut [u8]| {
        let at = entry(b, b"aaaa");
        b[at + 6..at + 10].copy_from_slice(&[2, 7, b'.', b'.']);
    };
    assert_eq!(damaged(dotdot), set(&[DotDotDuplicate, EntryDuplicate]));
}

#[test]
fn types() {
    if !programs() {
        return;
    }
    // the kernel and e2fsck both accept an entry without a type
    assert_eq!(damaged(|b| b[entry(b, b"aaaa") + 7] = 0), set(&[EntryTypeMissing]));
    assert_eq!(damaged(|b| b[entry(b, b"aaaa") + 7] = 1), set(&[EntryTypeWrong]));
    assert_eq!(damaged(|b| b[entry(b, b"pipe") + 7] = 200), set(&[EntryTypeWrong]));
    // no type is right for an inode without a valid mode
    let commands = ["mknod pipe p", "set_inode_field pipe mode 0170644"];
    let pipe = Volume::new(Image::mke2fs(EXT2, 2 << 20).debugfs(&commands).build());
    let codes = pipe.codes();
    assert!(codes.contains(&InodeModeWrong) && !codes.contains(&EntryTypeWrong), "{codes:?}");
    let (mut volume, dir) = volume(&[EXT2, &["-O", "^filetype"]].concat());
    volume.edit(&dir, 0, |b| b[entry(b, b"aaaa") + 7] = 7);
    assert_eq!(volume.codes(), set(&[EntryTypeWithoutFeature]));
}

#[test]
fn records() {
    if !programs() {
        return;
    }
    for rec_len in [0, 4, 8, 13, 14, 1024, 65535] {
        let codes = damaged(|b| put_u16(b, entry(b, b"bbbb") + 4, rec_len));
        assert!(codes.contains(&DirectoryBlockCorrupt), "{rec_len}: {codes:?}");
        // the following entries are lost
        assert!(codes.is_superset(&set(&[InodeUnattached, DirectoryUnconnected])), "{rec_len}: {codes:?}");
    }
    let long = damaged(|b| b[entry(b, b"aaaa") + 6] = 9);
    assert!(long.contains(&DirectoryBlockCorrupt), "{long:?}");
    // a block of zeros
    let zeros = damaged(|b| b.fill(0));
    assert!(zeros.contains(&DirectoryBlockCorrupt), "{zeros:?}");
}

#[test]
fn tails() {
    if !programs() {
        return;
    }
    let (mut volume, dir) = volume(EXT4);
    let whole = volume.bytes.clone();
    volume.edit(&dir, 0, |b| b[entry(b, b"aaaa") + 9] = b'z');
    assert_eq!(volume.codes(), set(&[DirectoryBlockChecksumWrong]));
    volume.bytes.clone_from(&whole);
    volume.edit(&dir, 0, |b| *b.last_mut().unwrap() ^= 1);
    assert_eq!(volume.codes(), set(&[DirectoryBlockChecksumWrong]));
    volume.bytes.clone_from(&whole);
    // another name length makes it an ordinary unused entry
    volume.edit(&dir, 0, |b| b[1024 - 6] = 1);
    assert_eq!(volume.codes(), set(&[DirectoryChecksumTailMissing]));
    volume.bytes.clone_from(&whole);
    // the last entry covers it
    volume.edit(&dir, 0, |b| {
        let last = entry(b, b"sub");
        put_u16(b, last + 4, (1024 - last) as u16);
    });
    assert_eq!(volume.codes(), set(&[DirectoryChecksumTailMissing]));
    assert!(DirTail::of(&whole[dir.blocks[0] as usize * 1024..][..1024]).is_some());
}

#[test]
fn holes() {
    if !programs() {
        return;
    }
    let (mut volume, _) = volume(EXT2);
    let commands = ["set_inode_field d block[0] 0", "set_inode_field d blocks 0"];
    volume.image.debugfs(&commands);
    volume.bytes = volume.image.bytes();
    let codes = volume.codes();
    assert!(codes.is_superset(&set(&[DotDotWrong, DirectoryUnconnected])), "{codes:?}");
}

#[test]
fn names_without_case() {
    if !programs() {
        return;
    }
    let strict = ["-E", "encoding=utf8,encoding_flags=strict"];
    let args = [EXT4, &["-O", "casefold,^has_journal,^metadata_csum"], &strict].concat();
    let commands = ["mkdir d", "set_inode_field d flags 0x40080000", "cd d", "symlink aaaa x", "symlink bbbb y"];
    let mut volume = Volume::new(Image::mke2fs(&args, 2 << 20).debugfs(&commands).build());
    let dir = volume.dir("/d");
    assert_eq!(volume.codes(), set(&[]));
    let whole = volume.bytes.clone();
    let mut renamed = |name: &[u8; 4]| {
        volume.bytes.clone_from(&whole);
        volume.edit(&dir, 0, |b| {
            let at = entry(b, b"bbbb");
            b[at + 8..at + 12].copy_from_slice(name);
        });
        volume.codes()
    };
    assert_eq!(renamed(b"aAAa"), set(&[EntryDuplicate]));
    assert_eq!(renamed(b"aAAb"), set(&[]));
    assert_eq!(renamed(b"b\xFFbb"), set(&[EntryNameBadEncoding]));
    assert_eq!(renamed(b"b\x80bb"), set(&[EntryNameBadEncoding]));
    assert_eq!(renamed("bßb".as_bytes().try_into().unwrap()), set(&[]));
}

#[test]
fn names_in_encrypted_directories() {
    if !programs() {
        return;
    }
    let args = [EXT4, &["-O", "encrypt,^has_journal,^metadata_csum"]].concat();
    let commands = ["mkdir d", "cd d", "symlink aaaa x", "symlink a-name-of-sixteen x", "mknod pipe-of-sixteen- p"];
    let mut volume = Volume::new(Image::mke2fs(&args, 2 << 20).debugfs(&commands).build());
    assert_eq!(volume.codes(), set(&[]));
    volume.image.debugfs(&["set_inode_field d flags 0x80800"]);
    volume.bytes = volume.image.bytes();
    let codes = volume.codes();
    assert!(codes.is_superset(&set(&[EntryEncryptedNameTooShort, EntryNotEncrypted])), "{codes:?}");
}

#[test]
fn policies() {
    if !programs() {
        return;
    }
    let scratch = Image::from_bytes(&[]);
    let context = |name: &str, policy: u8, nonce: u8| {
        let path = scratch.beside(name);
        std::fs::write(&path, [&[1, 1, 4, 0], [policy; 8].as_slice(), &[nonce; 16]].concat()).expect("a file");
        path.display().to_string()
    };
    let (one, same, other) = (context("one", 1, 1), context("same", 1, 2), context("other", 2, 3));
    let args = [EXT4, &["-O", "encrypt,^has_journal,^metadata_csum"]].concat();
    let with = |context: &str| {
        let commands = [
            "mkdir directory-of-sixteen",
            "mkdir directory-of-sixteen/a-name-of-sixteen",
            &format!("ea_set -f {one} directory-of-sixteen c"),
            &format!("ea_set -f {context} directory-of-sixteen/a-name-of-sixteen c"),
            "sif directory-of-sixteen/a-name-of-sixteen flags 0x80800",
            "sif directory-of-sixteen flags 0x80800",
        ];
        let mut volume = Volume::new(Image::mke2fs(&args, 2 << 20).debugfs(&commands).build());
        // debugfs omits the number of the attribute's prefix
        let entries: Vec<_> = (0..volume.bytes.len() - 17)
            .filter(|at| volume.bytes[*at..].starts_with(&[1, 0]) && volume.bytes[at + 8..].starts_with(&[28, 0, 0, 0]))
            .filter(|at| volume.bytes[at + 16] == b'c')
            .collect();
        assert_eq!(entries.len(), 2);
        for at in entries {
            volume.bytes[at + 1] = 9;
        }
        volume.codes()
    };
    assert_eq!(with(&same), set(&[]));
    assert_eq!(with(&other), set(&[EncryptionPolicyDiffers]));
}

#[test]
fn inline_directories() {
    if !programs() {
        return;
    }
    let args = ["-t", "ext4", "-b", "1024", "-N", "64", "-O", "inline_data,^has_journal,^metadata_csum"];
    let (volume, dir) = volume(&args);
    assert!(dir.blocks.is_empty());
    // the entries are in the inode: find them by their names
    let at = volume.bytes.windows(8).position(|w| w == b"\x04\x07aaaax\0" || w == b"\x04\x07aaaa\0\0");
    let at = at.unwrap_or_else(|| volume.bytes.windows(6).position(|w| w == b"\x04\x07aaaa").unwrap()) - 6;
    let parent = at - 4;
    let with = |edit: &dyn Fn(&mut [u8])| {
        let mut bytes = volume.bytes.clone();
        edit(&mut bytes);
        Volume { image: Image::from_bytes(&bytes), bytes, block_size: 1024 }.codes()
    };
    assert_eq!(with(&|b| put_u32(b, parent, 0)), set(&[DotDotMissing, DotDotWrong, LinkCountWrong]));
    assert_eq!(with(&|b| put_u32(b, parent, 11)), set(&[DotDotWrong, LinkCountWrong]));
    assert_eq!(with(&|b| put_u32(b, at, 60)), set(&[EntryInodeUnused, InodeUnattached]));
    assert_eq!(with(&|b| b[at + 8] = b'/'), set(&[EntryNameIllegal]));
    let broken = with(&|b| put_u16(b, at + 4, 64));
    assert!(broken.contains(&DirectoryBlockCorrupt), "{broken:?}");
}
