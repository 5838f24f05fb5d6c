//! Volumes of every format that mke2fs makes from a folder, compared with the content of that folder.

mod common;

use common::{manifest, open};
use extant_fs::{Error, FileBlock, FileKind, InodeFlags, InodeNo, Volume};
use testkit::{Field, Image, Spec, Tree, need};

/// Arguments of mke2fs, and whether e2fsck should index the directories. Inline data is tested with files written by
/// the kernel only: mke2fs loses the end of a file that ends in a hole.
const VARIANTS: &[(&[&str], bool)] = &[
    (&["-t", "ext2", "-b", "1024"], true),
    (&["-t", "ext2", "-b", "2048", "-O", "^filetype,^dir_index"], false),
    (&["-t", "ext2", "-b", "4096"], false),
    (&["-t", "ext3", "-b", "1024"], true),
    (&["-t", "ext3", "-b", "4096", "-I", "128"], true),
    (&["-t", "ext4", "-b", "1024"], true),
    (&["-t", "ext4", "-b", "2048", "-I", "512"], true),
    (&["-t", "ext4", "-b", "4096"], true),
    (&["-t", "ext4", "-b", "4096", "-I", "128"], false),
    (&["-t", "ext4", "-b", "4096", "-O", "bigalloc", "-C", "16384"], true),
    (&["-t", "ext4", "-b", "1024", "-O", "bigalloc", "-C", "8192"], false),
    (&["-t", "ext4", "-b", "1024", "-O", "^extent,^64bit"], true),
    (&["-t", "ext4", "-b", "1024", "-O", "meta_bg,^resize_inode", "-g", "1024"], true),
    (&["-t", "ext4", "-b", "1024", "-O", "uninit_bg,^metadata_csum", "-g", "2048"], true),
    (&["-t", "ext4", "-b", "1024", "-O", "^flex_bg,metadata_csum_seed", "-g", "4096"], true),
    (&["-t", "ext4", "-b", "4096", "-O", "ea_inode"], false),
    (&["-t", "ext4", "-b", "16384"], true),
    (&["-t", "ext2", "-b", "65536", "-N", "4096"], true),
];

#[test]
fn every_format_shows_what_was_written() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    let tree = Tree::new(21, &Spec::medium());
    for &(args, indexed) in VARIANTS {
        eprintln!("{args:?}");
        // large blocks waste more
        let size = if args.contains(&"65536") || args.contains(&"16384") { 512 } else { 64 };
        let mut image = Image::mke2fs(args, size << 20).with_tree(&tree);
        if indexed {
            image = image.indexed();
        }
        let image = image.build();
        let volume = open(image.path());
        assert_eq!(volume.warnings(), []);
        tree.model().assert_same(&manifest(&volume).without("lost+found").forget(&[Field::Blocks]));
        every_name_is_found(&volume);
    }
}

/// Each name by lookup, and each position in a directory by cookie.
fn every_name_is_found(volume: &Volume) {
    let mut indexed = 0;
    for (path, inode) in volume.walk(InodeNo::ROOT) {
        let dir = inode.unwrap();
        if dir.kind != FileKind::Directory {
            continue;
        }
        indexed += usize::from(dir.raw().flags().contains(InodeFlags::INDEX));
        let entries: Vec<_> = volume.read_dir(&dir, 0).unwrap().map(Result::unwrap).collect();
        assert_eq!((&entries[0].name[..], &entries[1].name[..]), (&b"."[..], &b".."[..]));
        for (i, entry) in entries.iter().enumerate() {
            assert_eq!(volume.lookup(&dir, &entry.name).unwrap(), entry.inode, "{path:?}");
            let after = volume.read_dir(&dir, entry.next).unwrap().next().transpose().unwrap();
            assert_eq!(after.as_ref(), entries.get(i + 1), "{path:?}");
        }
        for absent in [&b"absent"[..], b"", b"entry-", &[b'e'; 255]] {
            assert!(matches!(volume.lookup(&dir, absent), Err(Error::NotFound)), "{path:?} {absent:?}");
        }
        assert!(matches!(volume.lookup(&dir, &[b'x'; 256]), Err(Error::NameTooLong)));
    }
    let has_index = volume.superblock().features.compat.contains(format::feature::Compat::DIR_INDEX);
    assert!(has_index || indexed == 0);
}

#[test]
fn directories_with_indexes_of_two_levels() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let spec = Spec { wide: 12_000, files: 10, directories: 1, fragmented: 0, ..Spec::small() };
    let tree = Tree::new(22, &spec);
    for args in [&["-t", "ext4", "-b", "1024", "-N", "20000"][..], &["-t", "ext2", "-b", "1024", "-N", "20000"]] {
        let image = Image::mke2fs(args, 48 << 20).with_tree(&tree).indexed().build();
        assert!(testkit::oracle::debugfs(image.path(), "htree_dump /wide").contains("Indirect levels: 1"), "{args:?}");
        let volume = open(image.path());
        let wide = volume.inode(volume.resolve(b"wide").unwrap()).unwrap();
        for number in (0..12_000).step_by(7) {
            let inode = volume.lookup(&wide, format!("entry-{number:06}").as_bytes()).unwrap();
            assert_eq!(volume.inode(inode).unwrap().size, 0);
        }
        tree.model().assert_same(&manifest(&volume).without("lost+found").forget(&[Field::Blocks]));
    }
}

#[test]
fn a_hash_tree_that_cannot_be_used_is_passed_over() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let tree = Tree::new(23, &Spec { wide: 500, ..Spec::small() });
    let image = Image::mke2fs(&["-t", "ext2", "-b", "1024"], 24 << 20).with_tree(&tree).indexed().build();
    let volume = open(image.path());
    let wide = volume.inode(volume.resolve(b"/wide").unwrap()).unwrap();
    assert!(wide.raw().flags().contains(InodeFlags::INDEX));
    let root = volume.map(&wide, FileBlock(0)).unwrap().physical().unwrap();
    let mut bytes = image.bytes();
    // the hash function's number, then the count of entries
    for place in [0x1C, 0x22] {
        bytes[root.get() as usize * 1024 + place] = 0xEE;
        let volume = common::open_bytes(bytes.clone()).unwrap();
        let wide = volume.inode(volume.resolve(b"/wide").unwrap()).unwrap();
        for number in 0..500 {
            volume.lookup(&wide, format!("entry-{number:06}").as_bytes()).unwrap();
        }
        assert!(matches!(volume.lookup(&wide, b"absent"), Err(Error::NotFound)));
    }
}
