//! Hostile volumes with valid checksums: no data of the volume itself, or of another file, is read or written through a
//! file.

mod common;

use common::{number, open_writable};
use extant_fs::{Error, FileKind, InodeNo, NewFile, Volume, WriteOptions};
use testkit::{Image, need, oracle};

/// The number behind a word in debugfs output on a group or a file.
fn behind(said: &str, word: &str) -> u64 {
    let rest = said.split(word).nth(1).unwrap_or_else(|| panic!("no {word:?} in {said}"));
    let digits: String = rest.trim_start().chars().take_while(char::is_ascii_digit).collect();
    digits.parse().expect("a number")
}

fn refuses(volume: &Volume, path: &str, what: &str) {
    let file = number(volume, path);
    let inode = volume.inode(file).expect("an inode");
    let read = volume.read_at(&inode, 0, &mut [0; 1024]);
    assert!(matches!(read, Err(Error::Corrupt { .. })), "{what}: {read:?}");
    let written = volume.write_at(file, 0, &[7; 1024]).and_then(|_| volume.sync());
    assert!(matches!(written, Err(Error::Corrupt { .. })), "{what}: {written:?}");
}

#[test]
fn no_map_leads_to_the_volumes_own_structures() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    for args in [
        &["-t", "ext4", "-b", "1024"][..],
        &["-t", "ext2", "-b", "1024"],
        &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"],
    ] {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), vec![1; 3000]).expect("written");
        let write = format!("write {} f", file.path().display());
        let image = Image::mke2fs(args, 16 << 20).debugfs(&[&write]).build();
        let fresh = image.bytes();
        let said = oracle::debugfs(image.path(), "stats");
        let group = said.split("Group  0:").nth(1).expect("group 0");
        let mut own = vec![
            ("descriptors", 2),
            ("a block bitmap", behind(group, "block bitmap at")),
            ("an inode bitmap", behind(group, "inode bitmap at")),
            ("an inode table", behind(group, "inode table at") + 1),
        ];
        if args[1] == "ext4" {
            let said = oracle::debugfs(image.path(), "bmap <8> 5");
            let block = said.lines().next().and_then(|line| line.trim().parse().ok());
            own.push(("the journal", block.unwrap_or_else(|| panic!("no block in {said}"))));
        }
        for (what, block) in own {
            image.set_bytes(&fresh);
            // of an extent the block is the third word behind the header, of pointers the first
            let word = if args[1] == "ext4" { 5 } else { 0 };
            image.debugfs(&[&format!("sif f block[{word}] {block}")]);
            let before = image.bytes();
            let volume = open_writable(image.path(), WriteOptions::default());
            refuses(&volume, "/f", what);
            // the block that it refers to is not freed with it
            let removed = volume.unlink(InodeNo::ROOT, b"f").and_then(|()| volume.sync());
            assert!(matches!(removed, Ok(()) | Err(Error::Corrupt { .. })), "{what}: {removed:?}");
            volume.unmount().expect("unmounted");
            let said = oracle::debugfs(image.path(), &format!("testb {block}"));
            assert!(said.contains("marked in use"), "{what}: {said}");
            let after = image.bytes();
            let at = block as usize * 1024;
            // the block may be changed by other operations, but not by this write
            assert!(after[at..at + 1024] != [7; 1024], "{what} was written over");
            if what == "an inode table" {
                assert!(after[at..at + 1024] == before[at..at + 1024], "{what} changed");
            }
        }
        // an attribute block
        image.set_bytes(&fresh);
        let table = behind(group, "inode table at");
        image.debugfs(&[&format!("sif f file_acl {table}")]);
        let volume = open_writable(image.path(), WriteOptions::default());
        let file = number(&volume, "/f");
        let listed = volume.list_xattrs(&volume.inode(file).expect("an inode"));
        assert!(matches!(listed, Err(Error::Corrupt { .. })), "{listed:?}");
        volume.unmount().expect("unmounted");
    }
}

#[test]
fn no_new_file_gets_the_inode_of_another() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    // in a table that was zeroed, checksums show that inodes are in use; else this is known only for an open file
    for (features, flags, open) in
        [("metadata_csum", 5, false), ("metadata_csum", 1, true), ("^metadata_csum,uninit_bg", 1, true)]
    {
        let image = Image::mke2fs(&["-t", "ext4", "-b", "1024", "-N", "48", "-O", features], 20 << 20).build();
        let volume = open_writable(image.path(), WriteOptions::default());
        let file = NewFile { kind: FileKind::Regular, mode: 0o644, umask: 0, uid: 0, gid: 0, device: (0, 0) };
        let create = |volume: &Volume, name: String| volume.create(InodeNo::ROOT, name.as_bytes(), &file);
        for n in 0..20 {
            create(&volume, format!("n{n}")).expect("created");
        }
        volume.unmount().expect("unmounted");
        drop(volume);
        let per_group = behind(&oracle::debugfs(image.path(), "stats"), "Inodes per group:") as u32;
        image.debugfs(&[
            &format!("set_bg 1 flags {flags}"),
            &format!("set_bg 1 free_inodes_count {per_group}"),
            &format!("set_bg 1 itable_unused {per_group}"),
            "set_bg 1 checksum calc",
        ]);
        let volume = open_writable(image.path(), WriteOptions::default());
        let of_second = per_group + 1..2 * per_group + 1;
        let others: Vec<(String, InodeNo)> = (0..20)
            .map(|n| (format!("/n{n}"), number(&volume, &format!("/n{n}"))))
            .filter(|(_, number)| of_second.contains(&number.get()))
            .collect();
        assert!(others.len() > 3, "{others:?}");
        if open {
            others.iter().for_each(|(_, number)| volume.add_lookup(*number));
        }
        let generations = |volume: &Volume| -> Vec<u32> {
            let inode = |(_, number): &(String, InodeNo)| volume.inode(*number).expect("an inode");
            others.iter().map(inode).map(|inode| inode.raw().disk.i_generation.get()).collect()
        };
        let before = generations(&volume);
        for n in 0..20 {
            // without any consistent group left there is no space
            match create(&volume, format!("m{n}")) {
                Ok(made) => assert!(others.iter().all(|(_, number)| *number != made.number), "{made:?}"),
                Err(e) => assert!(matches!(e, Error::NoSpace), "{e}"),
            }
        }
        assert_eq!(before, generations(&volume));
        assert_eq!(volume.damaged_groups().len(), 1);
        volume.unmount().expect("unmounted");
    }
}
