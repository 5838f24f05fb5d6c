//! Directories with many names: hash trees of several levels, listed during changes.

mod common;

use common::{assert_valid, open, open_writable};
use extant_fs::{Error, FileKind, InodeNo, NewFile, Volume, WriteOptions};
use std::collections::BTreeSet;
use testkit::oracle::kernel_mount;
use testkit::{Image, Rng, need, tools};

fn file(kind: FileKind) -> NewFile {
    NewFile { kind, mode: 0o644, umask: 0, uid: 0, gid: 0, device: (0, 0) }
}

fn name(n: u32) -> Vec<u8> {
    // names of various lengths
    format!("{n:0width$}", width = 6 + (n as usize * 7) % 30).into_bytes()
}

fn listed(volume: &Volume, dir: InodeNo) -> Vec<Vec<u8>> {
    let dir = volume.inode(dir).expect("the directory");
    let names = volume.read_dir(&dir, 0).expect("a directory").map(|entry| entry.expect("a name").name);
    names.filter(|name| !matches!(&name[..], b"." | b"..")).collect()
}

fn as_set(names: Vec<Vec<u8>>) -> BTreeSet<Vec<u8>> {
    let count = names.len();
    let set: BTreeSet<_> = names.into_iter().collect();
    assert_eq!(set.len(), count, "a name is listed twice");
    set
}

#[test]
fn a_hundred_thousand_names_come_and_go() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    // one inode with many names, and sometimes a name for a new inode
    for args in [&["-t", "ext4", "-b", "1024", "-N", "4096"][..], &["-t", "ext3", "-b", "1024", "-N", "4096"]] {
        let image = Image::mke2fs(args, 64 << 20).build();
        let volume = open_writable(image.path(), WriteOptions::default());
        let dir = volume.create(InodeNo::ROOT, b"dir", &file(FileKind::Directory)).expect("mkdir").number;
        let total = 100_000;
        let mut linked = None;
        for n in 0..total {
            if n % 20_000 == 0 {
                linked = Some(volume.create(dir, &name(n), &file(FileKind::Fifo)).expect("create").number);
            } else {
                volume.link(linked.expect("made before"), dir, &name(n)).expect("link");
            }
        }
        assert!(matches!(volume.create(dir, &name(77), &file(FileKind::Fifo)), Err(Error::Exists)));
        let all: BTreeSet<_> = (0..total).map(name).collect();
        assert!(as_set(listed(&volume, dir)) == all);
        let mut rng = Rng::new(5);
        let mut left = all;
        for n in 0..total {
            let node = volume.inode(dir).expect("the directory");
            if rng.chance(60) {
                volume.unlink(dir, &name(n)).expect("unlink");
                left.remove(&name(n));
            } else if n % 10 == 0 {
                volume.lookup(&node, &name(n)).expect("still there");
            }
        }
        for n in (0..total).step_by(31) {
            if left.insert(name(n)) {
                volume.create(dir, &name(n), &file(FileKind::Fifo)).map(drop).unwrap_or_else(|e| panic!("{n}: {e}"));
            }
        }
        assert!(as_set(listed(&volume, dir)) == left);
        volume.unmount().expect("unmount");
        assert_valid(image.path(), &args);
        let volume = open(image.path());
        let dir = volume.resolve(b"/dir").expect("there");
        assert!(as_set(listed(&volume, dir)) == left);
        if tools::has_loop() {
            let mounted = kernel_mount(image.path(), "ro,noload").expect("mount");
            let theirs = std::fs::read_dir(mounted.path().join("dir")).expect("a directory");
            let theirs = theirs.map(|e| e.expect("a name").file_name().into_encoded_bytes());
            assert!(as_set(theirs.collect()) == left);
        }
    }
}

/// Cookies stay valid while other names are added and removed: a reader that continues from one gets all names that
/// existed throughout, once.
#[test]
fn a_list_goes_on_where_it_was_left() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    let shapes: [&[&str]; 3] = [
        &["-t", "ext4", "-b", "1024"],
        &["-t", "ext4", "-b", "1024", "-O", "^dir_index"],
        &["-t", "ext4", "-b", "1024", "-I", "512", "-O", "inline_data"],
    ];
    for args in shapes {
        let image = Image::mke2fs(args, 16 << 20).build();
        let volume = open_writable(image.path(), WriteOptions::default());
        let dir = volume.create(InodeNo::ROOT, b"dir", &file(FileKind::Directory)).expect("mkdir").number;
        for (before, during) in [(3, 300), (20, 500), (1000, 1000)] {
            for n in 0..before {
                let name = format!("stays{before}-{n}");
                volume.create(dir, name.as_bytes(), &file(FileKind::Fifo)).expect("create");
            }
            let (mut seen, mut cookie, mut n) = (Vec::new(), 0, 0);
            loop {
                let inode = volume.inode(dir).expect("the directory");
                let part: Vec<_> = volume.read_dir(&inode, cookie).expect("a directory").take(3).collect();
                let Some(last) = part.last() else { break };
                cookie = last.as_ref().expect("a name").next;
                seen.extend(part.into_iter().map(|entry| entry.expect("a name").name));
                // names are added and removed before and after the position, and blocks split
                for _ in 0..7 {
                    let [come, go] = [n, n / 2].map(|n| format!("comes{before}-{n}"));
                    if n < during {
                        volume.create(dir, come.as_bytes(), &file(FileKind::Fifo)).expect("create");
                    }
                    if n % 2 == 1 {
                        let _ = volume.unlink(dir, go.as_bytes());
                    }
                    n += 1;
                }
            }
            let stayed: Vec<_> = seen.into_iter().filter(|name| name.starts_with(b"stays")).collect();
            let stayed = as_set(stayed);
            for n in 0..before {
                assert!(stayed.contains(format!("stays{before}-{n}").as_bytes()), "{args:?} {before} {n}");
            }
        }
        volume.unmount().expect("unmount");
        assert_valid(image.path(), &args);
    }
}

/// Removing the listed names, in parts, empties a directory.
#[test]
fn removing_what_is_listed_empties_a_directory() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    for args in [&["-t", "ext4", "-b", "1024"][..], &["-t", "ext2", "-b", "1024", "-O", "^dir_index"]] {
        let image = Image::mke2fs(args, 16 << 20).build();
        let volume = open_writable(image.path(), WriteOptions::default());
        let dir = volume.create(InodeNo::ROOT, b"dir", &file(FileKind::Directory)).expect("mkdir").number;
        for n in 0..2000 {
            volume.create(dir, &name(n), &file(FileKind::Fifo)).expect("create");
        }
        let mut cookie = 0;
        loop {
            let inode = volume.inode(dir).expect("the directory");
            let part: Vec<_> = volume.read_dir(&inode, cookie).expect("a directory").take(50).collect();
            if part.is_empty() {
                break;
            }
            for entry in part {
                let entry = entry.expect("a name");
                cookie = entry.next;
                if !matches!(&entry.name[..], b"." | b"..") {
                    volume.unlink(dir, &entry.name).expect("unlink");
                }
            }
        }
        volume.rmdir(InodeNo::ROOT, b"dir").expect("it is empty");
        volume.unmount().expect("unmount");
        assert_valid(image.path(), &args);
    }
}

/// Two levels of index blocks end at about 15 000 leaves of 1 KiB; a third one continues.
#[test]
fn a_tree_is_as_deep_as_the_volume_allows() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    for (args, deep) in [
        (&["-t", "ext4", "-b", "1024", "-N", "64"][..], false),
        (&["-t", "ext4", "-b", "1024", "-N", "64", "-O", "large_dir"], true),
    ] {
        let image = Image::mke2fs(args, 96 << 20).build();
        let volume = open_writable(image.path(), WriteOptions::default());
        let dir = volume.create(InodeNo::ROOT, b"dir", &file(FileKind::Directory)).expect("mkdir").number;
        let one = volume.create(InodeNo::ROOT, b"file", &file(FileKind::Fifo)).expect("create").number;
        let name = |n: u32| format!("{n:0250}").into_bytes();
        let most = 50_000;
        let refused = (0..most).find(|&n| match volume.link(one, dir, &name(n)) {
            Ok(_) => false,
            Err(Error::NoSpace) => true,
            Err(e) => panic!("{e}"),
        });
        assert_eq!(refused.is_none(), deep, "{refused:?}");
        let count = refused.unwrap_or(most);
        assert!(count > 20_000);
        let inode = volume.inode(dir).expect("the directory");
        for n in (0..count).step_by(97) {
            volume.lookup(&inode, &name(n)).expect("there");
            volume.unlink(dir, &name(n)).expect("unlink");
        }
        assert_eq!(listed(&volume, dir).len() as u32, count - count.div_ceil(97));
        volume.unmount().expect("unmount");
        drop(volume);
        assert_valid(image.path(), &args);
    }
}

/// Names of 250 bytes and more that all have the same legacy hash.
fn colliding(count: usize) -> Vec<Vec<u8>> {
    const FACTOR: u32 = 7_152_373;
    const MODULUS: u32 = 0x7FFF_FFFF;
    let step = |(newest, before): (u32, u32), byte: u8| {
        let next = before.wrapping_add(newest ^ u32::from(byte).wrapping_mul(FACTOR));
        (if next > MODULUS { next - MODULUS } else { next }, newest)
    };
    // the factor's inverse modulo 2^32, by Newton's method
    let inverse = (0..5).fold(FACTOR, |x, _| x.wrapping_mul(2u32.wrapping_sub(FACTOR.wrapping_mul(x))));
    let allowed = |byte: u32| (b'0'.into()..=b'z'.into()).contains(&byte);
    let stem = vec![b'x'; 240];
    let start = stem.iter().fold((0x12A3_FE2D, 0x37AB_E8F9), |state, &byte| step(state, byte));
    let target = 0x1234_5678;
    let mut found = Vec::new();
    for n in 0.. {
        let middle = format!("{n:08x}").into_bytes();
        let state = middle.iter().fold(start, |state, &byte| step(state, byte));
        // the last byte but one is tried, and the last one follows from it
        for byte in b'0'..=b'z' {
            let (next, newest) = step(state, byte);
            for sum in [target, target + MODULUS] {
                let last = (sum.wrapping_sub(newest) ^ next).wrapping_mul(inverse);
                if allowed(last) && step((next, newest), last as u8).0 == target {
                    found.push([&stem[..], &middle, &[byte, last as u8]].concat());
                }
            }
        }
        if found.len() >= count {
            break;
        }
    }
    found
}

#[test]
fn names_of_one_hash_fill_several_leaves() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let commands = ["set_super_value def_hash_version legacy"];
    let image = Image::mke2fs(&["-t", "ext4", "-b", "1024"], 16 << 20).debugfs(&commands).build();
    let volume = open_writable(image.path(), WriteOptions::default());
    let dir = volume.create(InodeNo::ROOT, b"dir", &file(FileKind::Directory)).expect("mkdir").number;
    let same = colliding(16);
    let hasher = format::hash::Hasher::new(format::hash::HashVersion::Legacy, [0; 4]).expect("a plain hash");
    assert!(same.iter().all(|name| hasher.hash(name) == hasher.hash(&same[0])));
    let mut all = BTreeSet::new();
    for (n, name) in same.iter().enumerate() {
        for other in 0..40 {
            let other = format!("other{n}-{other}").into_bytes();
            volume.create(dir, &other, &file(FileKind::Fifo)).expect("create");
            all.insert(other);
        }
        volume.create(dir, name, &file(FileKind::Fifo)).expect("create");
        assert!(matches!(volume.create(dir, name, &file(FileKind::Fifo)), Err(Error::Exists)));
        all.insert(name.clone());
    }
    let check = |volume: &Volume, all: &BTreeSet<Vec<u8>>| {
        let inode = volume.inode(dir).expect("the directory");
        for name in all {
            volume.lookup(&inode, name).expect("there");
        }
        assert!(as_set(listed(volume, dir)) == *all);
    };
    check(&volume, &all);
    // one by one, so that the list is interrupted among names of one hash
    let (mut seen, mut cookie) = (Vec::new(), 0);
    let inode = volume.inode(dir).expect("the directory");
    while let Some(entry) = volume.read_dir(&inode, cookie).expect("a directory").next() {
        let entry = entry.expect("a name");
        cookie = entry.next;
        seen.push(entry.name);
    }
    assert!(as_set(seen).len() == all.len() + 2);
    for name in same.iter().step_by(3) {
        volume.unlink(dir, name).expect("unlink");
        all.remove(name);
    }
    check(&volume, &all);
    volume.unmount().expect("unmount");
    assert_valid(image.path(), &commands);
    check(&open(image.path()), &all);
}
