//! Setting and removing extended attributes, compared with a model, e2fsck and the kernel; access control lists
//! compared with the kernel's.

mod common;

use common::{assert_valid, manifest, open, open_writable};
use extant_fs::{Error, FileKind, InodeNo, NewFile, SetAttributes, Volume, WriteOptions, XattrMode};
use format::acl::{Acl, AclEntry, Tag};
use std::collections::BTreeMap;
use std::path::Path;
use testkit::oracle::kernel_mount;
use testkit::{Image, Rng, cases, need, tools, walk};

const ROOT: InodeNo = InodeNo::ROOT;
const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

/// Volumes, and the maximum length of values to try.
const SHAPES: &[(&[&str], u64)] = &[
    (&["-t", "ext2", "-b", "1024", "-I", "128"], 1200),
    (&["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"], 1200),
    (&["-t", "ext4", "-b", "4096"], 5000),
    (&["-t", "ext4", "-b", "4096", "-I", "1024", "-O", "ea_inode"], 65_536),
    (&["-t", "ext4", "-b", "1024", "-O", "ea_inode,inline_data"], 9000),
];

fn new(kind: FileKind) -> NewFile {
    NewFile { kind, mode: 0o755, umask: 0, uid: 0, gid: 0, device: (0, 0) }
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn step(volume: &Volume, number: InodeNo, model: &mut Model, rng: &mut Rng, longest: u64) {
    let prefix = *rng.pick(&["user.", "trusted.", "security."]);
    let n = rng.below(12) as usize;
    let name = format!("{prefix}{}{n}", "name-".repeat(n * 3 % 17)).into_bytes();
    if rng.chance(35) {
        match volume.remove_xattr(number, &name) {
            Ok(()) => assert!(model.remove(&name).is_some()),
            Err(Error::NoAttribute) => assert!(!model.contains_key(&name)),
            Err(e) => panic!("{e}"),
        }
        return;
    }
    let length = if rng.chance(10) { 0 } else { rng.magnitude(longest) as usize };
    let value = rng.bytes(length);
    let mode = *rng.pick(&[XattrMode::Any, XattrMode::Any, XattrMode::Create, XattrMode::Replace]);
    let there = model.contains_key(&name);
    match volume.set_xattr(number, &name, &value, mode) {
        Ok(()) => {
            assert!(mode == XattrMode::Any || there == (mode == XattrMode::Replace));
            model.insert(name, value);
        }
        Err(Error::Exists) => assert!(there && mode == XattrMode::Create),
        Err(Error::NoAttribute) => assert!(!there && mode == XattrMode::Replace),
        Err(Error::NoSpace) => assert!(length + model.values().map(Vec::len).sum::<usize>() > 60),
        Err(e) => panic!("{e}"),
    }
}

fn assert_model(volume: &Volume, number: InodeNo, model: &Model) {
    let inode = volume.inode(number).expect("inode");
    let mut names = volume.list_xattrs(&inode).expect("list");
    names.sort();
    assert_eq!(names, model.keys().cloned().collect::<Vec<_>>());
    for (name, value) in model {
        assert!(volume.get_xattr(&inode, name).expect("there") == *value);
    }
}

#[test]
fn attributes_are_what_a_model_says() {
    if !need(&["mke2fs", "e2fsck", "mount", "umount"]) {
        return;
    }
    for (shape, &(args, longest)) in SHAPES.iter().enumerate() {
        for case in cases(&format!("xattrs {shape}"), 2) {
            let mut rng = case.rng();
            let image = Image::mke2fs(args, 24 << 20).build();
            let mut volume = open_writable(image.path(), WriteOptions::default());
            let free = |volume: &Volume| (volume.statfs().blocks_free, volume.statfs().files_free);
            let at_first = free(&volume);
            let mut files: Vec<(InodeNo, Model)> = Vec::new();
            for n in 0..4 {
                let kind = if n == 0 { FileKind::Directory } else { FileKind::Regular };
                let inode = volume.create(ROOT, format!("file{n}").as_bytes(), &new(kind)).expect("create");
                files.push((inode.number, Model::new()));
            }
            for _ in 0..3 {
                for n in 0..250 {
                    let (number, model) = &mut files[n % 4];
                    step(&volume, *number, model, &mut rng, longest);
                    if rng.chance(10) {
                        assert_model(&volume, *number, model);
                    }
                }
                files.iter().for_each(|(number, model)| assert_model(&volume, *number, model));
                volume.unmount().expect("unmount");
                drop(volume);
                assert_valid(image.path(), &args);
                if tools::has_loop() {
                    let mounted = kernel_mount(image.path(), "ro,noload").expect("mount");
                    let theirs = walk(mounted.path()).expect("walk");
                    theirs.assert_same(&manifest(&open(image.path())));
                }
                volume = open_writable(image.path(), WriteOptions::default());
            }
            for n in 0..4 {
                let name = format!("file{n}");
                if n == 0 { volume.rmdir(ROOT, name.as_bytes()) } else { volume.unlink(ROOT, name.as_bytes()) }
                    .expect("remove");
            }
            volume.sync().expect("sync");
            assert_eq!(free(&volume), at_first, "{args:?}");
            volume.unmount().expect("unmount");
            drop(volume);
            assert_valid(image.path(), &args);
        }
    }
}

#[test]
fn a_block_that_others_use_is_not_changed() {
    if !need(&["mke2fs", "e2fsck", "mount", "umount"]) || !tools::has_loop() {
        return;
    }
    for args in [&["-t", "ext4", "-b", "1024", "-I", "128"][..], &["-t", "ext2", "-b", "4096", "-I", "128"]] {
        let image = Image::mke2fs(args, 16 << 20).build();
        let mounted = kernel_mount(image.path(), "").expect("mount");
        for n in 0..6 {
            let path = mounted.path().join(format!("file{n}"));
            std::fs::write(&path, b"").expect("write");
            for name in ["user.one", "user.two"] {
                rustix::fs::lsetxattr(&path, name, &[7; 100], rustix::fs::XattrFlags::empty()).expect("setxattr");
            }
        }
        mounted.unmount();
        let volume = open_writable(image.path(), WriteOptions::default());
        let number = |n: u32| volume.resolve(format!("/file{n}").as_bytes()).expect("there");
        let block = |n| volume.inode(number(n)).expect("inode").raw().file_acl(false);
        assert!((1..6).all(|n| block(n) == block(0)) && block(0).get() != 0, "the kernel shares equal blocks");
        volume.set_xattr(number(0), b"user.three", b"3", XattrMode::Any).expect("set");
        volume.remove_xattr(number(1), b"user.one").expect("remove");
        volume.remove_xattr(number(2), b"user.one").expect("remove");
        volume.remove_xattr(number(2), b"user.two").expect("remove");
        volume.unlink(ROOT, b"file3").expect("unlink");
        assert_eq!(block(4), block(5));
        assert_ne!(block(0), block(4));
        assert_eq!(block(2).get(), 0);
        for n in [4, 5] {
            let inode = volume.inode(number(n)).expect("inode");
            assert_eq!(volume.list_xattrs(&inode).expect("list"), [b"user.one", b"user.two"]);
            volume.unlink(ROOT, format!("file{n}").as_bytes()).expect("unlink");
        }
        volume.unmount().expect("unmount");
        drop(volume);
        assert_valid(image.path(), &args);
    }
}

#[test]
fn what_attributes_refuse() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    let image = Image::mke2fs(&["-t", "ext4", "-b", "1024"], 16 << 20).build();
    let volume = open_writable(image.path(), WriteOptions::default());
    let f = volume.create(ROOT, b"f", &new(FileKind::Regular)).expect("create").number;
    let fifo = volume.create(ROOT, b"p", &new(FileKind::Fifo)).expect("create").number;
    let set = |number, name: &[u8], length| volume.set_xattr(number, name, &vec![1; length], XattrMode::Any);
    assert!(matches!(set(f, b"nothing.a", 1), Err(Error::Unsupported(_))));
    assert!(matches!(set(f, b"user.", 1), Err(Error::Unsupported(_))));
    assert!(matches!(set(f, b"system.data", 1), Err(Error::Unsupported(_))));
    assert!(matches!(set(f, &[b"user.", &[b'n'; 251][..]].concat(), 1), Err(Error::NameTooLong)));
    assert!(matches!(set(f, b"user.a", 1100), Err(Error::NoSpace)));
    assert!(matches!(set(f, b"user.a", 65_537), Err(Error::NoSpace)));
    assert!(matches!(set(fifo, b"user.a", 1), Err(Error::NotPermitted(_))));
    set(fifo, b"trusted.a", 1).expect("for the superuser");
    set(f, &[b"user.", &[b'n'; 250][..]].concat(), 700).expect("the maximum length");
    assert!(matches!(set(f, ACCESS, 7), Err(Error::Invalid(_))));
    assert!(matches!(volume.set_xattr(f, DEFAULT, &acl(7).to_xattr(), XattrMode::Any), Err(Error::NotPermitted(_))));
    volume.unmount().expect("unmount");
    drop(volume);
    assert_valid(image.path(), &"refused");
}

fn entry(tag: Tag, perm: u16) -> AclEntry {
    AclEntry { tag, perm }
}

fn acl(mask: u16) -> Acl {
    Acl(vec![
        entry(Tag::UserObj, 7),
        entry(Tag::User(1000), 6),
        entry(Tag::GroupObj, 5),
        entry(Tag::Group(100), 7),
        entry(Tag::Mask, mask),
        entry(Tag::Other, 4),
    ])
}

fn minimal() -> Acl {
    Acl(vec![entry(Tag::UserObj, 6), entry(Tag::GroupObj, 4), entry(Tag::Other, 0)])
}

/// The same operations by Extant and by the kernel, on two volumes.
#[test]
fn access_control_lists_are_as_the_kernel_stores_them() {
    if !need(&["mke2fs", "e2fsck", "mount", "umount"]) || !tools::has_loop() {
        return;
    }
    let args = ["-t", "ext4", "-b", "1024"];
    let modes = [0o777u16, 0o640, 0o7755, 0o000, 0o4711];
    let ours = Image::mke2fs(&args, 16 << 20).build();
    let volume = open_writable(ours.path(), WriteOptions::default());
    let set = |number, name: &[u8], acl: &Acl| volume.set_xattr(number, name, &acl.to_xattr(), XattrMode::Any);
    for (n, default) in [acl(7), acl(4), minimal()].iter().enumerate() {
        let d = volume.create(ROOT, format!("d{n}").as_bytes(), &new(FileKind::Directory)).expect("mkdir").number;
        set(d, DEFAULT, default).expect("default list");
        for mode in modes {
            for (kind, letter) in [(FileKind::Regular, 'f'), (FileKind::Directory, 'd')] {
                let file = NewFile { mode: mode & 0o777, umask: 0o022, ..new(kind) };
                let name = format!("{letter}{mode:o}");
                let inode = volume.create(d, name.as_bytes(), &file).expect("create");
                let chmod = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
                if n == 1 {
                    volume.set_attributes(inode.number, &chmod).expect("chmod");
                }
            }
        }
        let f = volume.create(d, b"set", &new(FileKind::Regular)).expect("create").number;
        set(f, ACCESS, &acl(5)).expect("access list");
        let g = volume.create(d, b"cleared", &new(FileKind::Regular)).expect("create").number;
        set(g, ACCESS, &minimal()).expect("no more than permission bits");
    }
    volume.unmount().expect("unmount");
    drop(volume);
    assert_valid(ours.path(), &args);

    let theirs = Image::mke2fs(&args, 16 << 20).build();
    let mounted = kernel_mount(theirs.path(), "").expect("mount");
    let set = |path: &Path, name: &[u8], acl: &Acl| {
        let name = std::str::from_utf8(name).expect("ascii");
        rustix::fs::lsetxattr(path, name, &acl.to_xattr(), rustix::fs::XattrFlags::empty()).expect("setxattr");
    };
    let chmod = |path: &Path, mode: u16| rustix::fs::chmod(path, rustix::fs::Mode::from_raw_mode(mode.into()));
    let create = |path: &Path, mode: u16| {
        let flags = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY;
        rustix::fs::open(path, flags, rustix::fs::Mode::from_raw_mode(mode.into())).expect("create");
    };
    let umask = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    for (n, default) in [acl(7), acl(4), minimal()].iter().enumerate() {
        let d = mounted.path().join(format!("d{n}"));
        std::fs::create_dir(&d).expect("mkdir");
        chmod(&d, 0o755).expect("chmod");
        set(&d, DEFAULT, default);
        for mode in modes {
            let (f, sub) = (d.join(format!("f{mode:o}")), d.join(format!("d{mode:o}")));
            create(&f, mode & 0o777);
            rustix::fs::mkdir(&sub, rustix::fs::Mode::from_raw_mode((mode & 0o777).into())).expect("mkdir");
            if n == 1 {
                chmod(&f, mode).expect("chmod");
                chmod(&sub, mode).expect("chmod");
            }
        }
        create(&d.join("set"), 0o755);
        set(&d.join("set"), ACCESS, &acl(5));
        create(&d.join("cleared"), 0o755);
        set(&d.join("cleared"), ACCESS, &minimal());
    }
    rustix::process::umask(umask);
    mounted.unmount();
    let plain = [testkit::Field::Accessed, testkit::Field::Modified, testkit::Field::Changed];
    let theirs = manifest(&open(theirs.path())).forget(&plain);
    theirs.assert_same(&manifest(&open(ours.path())).forget(&plain));
}
