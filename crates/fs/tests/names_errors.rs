//! The errors of each call on the name space, and its lack of effect then.

mod common;

use common::{assert_valid, open_writable};
use extant_fs::{
    Error, FileKind, Inode, InodeFlags, InodeNo, NewFile, RenameFlags, Result, SetAttributes, Timestamp, Volume,
    WriteOptions, XattrMode,
};
use std::sync::Arc;
use testkit::{Image, need};

const ROOT: InodeNo = InodeNo::ROOT;
const NONE: RenameFlags = RenameFlags { no_replace: false, exchange: false, whiteout: false };

fn new(kind: FileKind) -> NewFile {
    NewFile { kind, mode: 0o755, umask: 0, uid: 0, gid: 0, device: (0, 0) }
}

fn dir(volume: &Volume, parent: InodeNo, name: &str) -> InodeNo {
    volume.create(parent, name.as_bytes(), &new(FileKind::Directory)).expect("mkdir").number
}

fn file(volume: &Volume, parent: InodeNo, name: &str) -> InodeNo {
    volume.create(parent, name.as_bytes(), &new(FileKind::Regular)).expect("create").number
}

fn flag(volume: &Volume, number: InodeNo, flag: InodeFlags, on: bool) {
    let mut flags = volume.inode(number).expect("inode").raw().flags();
    flags.set(flag, on);
    volume.set_attributes(number, &SetAttributes { flags: Some(flags), ..Default::default() }).expect("chattr");
}

fn links(volume: &Volume, number: InodeNo) -> u16 {
    volume.attributes(&volume.inode(number).expect("inode")).links
}

fn times(inode: &Inode) -> [Timestamp; 3] {
    [inode.raw().atime(), inode.raw().mtime(), inode.raw().ctime()]
}

macro_rules! refuses {
    ($call:expr, $error:pat) => {
        match $call {
            Err($error) => {}
            Err(other) => panic!("{}: {other:?}", stringify!($call)),
            Ok(_) => panic!("{} was not refused", stringify!($call)),
        }
    };
}

fn with_volume(args: &[&str], work: impl FnOnce(&Volume)) {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    let image = Image::mke2fs(args, 16 << 20).build();
    let volume = open_writable(image.path(), WriteOptions::default());
    work(&volume);
    volume.unmount().expect("unmount");
    drop(volume);
    assert_valid(image.path(), &args);
}

#[test]
fn names_that_cannot_be() {
    with_volume(&["-t", "ext4"], |volume| {
        let (long, longest) = ([b'n'; 256], [b'n'; 255]);
        let there = file(volume, ROOT, "there");
        let all = |name: &[u8]| -> [Result<()>; 9] {
            [
                volume.create(ROOT, name, &new(FileKind::Regular)).map(drop),
                volume.create(ROOT, name, &new(FileKind::Directory)).map(drop),
                volume.symlink(ROOT, name, b"target", 0, 0).map(drop),
                volume.link(there, ROOT, name).map(drop),
                volume.unlink(ROOT, name),
                volume.rmdir(ROOT, name),
                volume.rename(ROOT, name, ROOT, b"new", NONE),
                volume.rename(ROOT, b"there", ROOT, name, NONE),
                volume.rename(ROOT, b"there", ROOT, name, RenameFlags { exchange: true, ..NONE }),
            ]
        };
        all(&long).into_iter().for_each(|result| refuses!(result, Error::NameTooLong));
        for name in [&b""[..], b"a/b", b"/", b"a\0", b"\0"] {
            all(name).into_iter().for_each(|result| refuses!(result, Error::Invalid(_)));
        }
        refuses!(volume.lookup(&volume.inode(ROOT).expect("root"), &long), Error::NameTooLong);
        file(volume, ROOT, std::str::from_utf8(&longest).expect("ascii"));
        volume.unlink(ROOT, &longest).expect("unlink");
        for dot in [&b"."[..], b".."] {
            refuses!(volume.create(ROOT, dot, &new(FileKind::Regular)), Error::Exists);
            refuses!(volume.link(there, ROOT, dot), Error::Exists);
            refuses!(volume.unlink(ROOT, dot), Error::IsADirectory);
            refuses!(volume.rename(ROOT, dot, ROOT, b"x", NONE), Error::Invalid(_));
            refuses!(volume.rename(ROOT, b"there", ROOT, dot, NONE), Error::Invalid(_));
        }
        refuses!(volume.rmdir(ROOT, b"."), Error::Invalid(_));
        refuses!(volume.rmdir(ROOT, b".."), Error::NotEmpty);
        refuses!(volume.create(there, b"x", &new(FileKind::Regular)), Error::NotADirectory);
        refuses!(volume.unlink(there, b"x"), Error::NotADirectory);
        refuses!(volume.rename(there, b"x", ROOT, b"y", NONE), Error::NotADirectory);
        refuses!(volume.rename(ROOT, b"there", there, b"y", NONE), Error::NotADirectory);
        refuses!(volume.symlink(ROOT, b"s", b"", 0, 0), Error::Invalid(_));
        refuses!(volume.symlink(ROOT, b"s", b"a\0b", 0, 0), Error::Invalid(_));
        refuses!(volume.symlink(ROOT, b"s", &[b't'; 4096], 0, 0), Error::NameTooLong);
        let target = [b't'; 1000];
        let link = volume.symlink(ROOT, b"s", &target, 0, 0).expect("symlink");
        assert_eq!(volume.read_link(&link).expect("target"), target);
        refuses!(volume.create(ROOT, b"x", &new(FileKind::Symlink)), Error::Invalid(_));
    });
}

#[test]
fn kinds_that_do_not_go_together() {
    with_volume(&["-t", "ext4", "-b", "1024"], |volume| {
        let (a, b) = (dir(volume, ROOT, "a"), dir(volume, ROOT, "b"));
        file(volume, ROOT, "f");
        file(volume, a, "inside");
        refuses!(volume.unlink(ROOT, b"a"), Error::IsADirectory);
        refuses!(volume.rmdir(ROOT, b"f"), Error::NotADirectory);
        refuses!(volume.rmdir(ROOT, b"a"), Error::NotEmpty);
        refuses!(volume.rmdir(ROOT, b"none"), Error::NotFound);
        refuses!(volume.unlink(ROOT, b"none"), Error::NotFound);
        refuses!(volume.rename(ROOT, b"none", ROOT, b"x", NONE), Error::NotFound);
        refuses!(volume.rename(ROOT, b"a", ROOT, b"f", NONE), Error::NotADirectory);
        refuses!(volume.rename(ROOT, b"f", ROOT, b"a", NONE), Error::IsADirectory);
        refuses!(volume.rename(ROOT, b"b", ROOT, b"a", NONE), Error::NotEmpty);
        refuses!(volume.link(a, ROOT, b"second"), Error::NotPermitted(_));
        let deep = dir(volume, b, "deep");
        let deeper = dir(volume, deep, "deeper");
        refuses!(volume.rename(ROOT, b"b", deeper, b"x", NONE), Error::Invalid(_));
        refuses!(volume.rename(ROOT, b"b", b, b"x", NONE), Error::Invalid(_));
        refuses!(volume.rename(deep, b"deeper", ROOT, b"b", NONE), Error::NotEmpty);
        let exchange = RenameFlags { exchange: true, ..NONE };
        refuses!(volume.rename(deep, b"deeper", ROOT, b"b", exchange), Error::Invalid(_));
        refuses!(volume.rename(ROOT, b"f", ROOT, b"none", exchange), Error::NotFound);
        refuses!(volume.rename(ROOT, b"f", ROOT, b"a", RenameFlags { no_replace: true, ..NONE }), Error::Exists);
        refuses!(
            volume.rename(ROOT, b"f", ROOT, b"a", RenameFlags { no_replace: true, ..exchange }),
            Error::Invalid(_)
        );
        assert_eq!((links(volume, ROOT), links(volume, a), links(volume, b)), (5, 2, 3));
        // a directory replaces an empty one elsewhere
        volume.rename(deep, b"deeper", ROOT, b"c", NONE).expect("rename");
        assert_eq!((links(volume, ROOT), links(volume, deep)), (6, 2));
        volume.rename(ROOT, b"c", b, b"deep", NONE).expect("onto an empty directory");
        assert_eq!((links(volume, ROOT), links(volume, b)), (5, 3));
        refuses!(volume.create(deep, b"x", &new(FileKind::Regular)), Error::Stale(_));
        // a file and a directory are exchanged
        volume.rename(ROOT, b"f", b, b"deep", exchange).expect("exchange");
        assert_eq!((links(volume, ROOT), links(volume, b)), (6, 2));
        // both names of one file stay
        let f = volume.lookup(&volume.inode(b).expect("b"), b"deep").expect("the file");
        volume.link(f, ROOT, b"again").expect("link");
        volume.rename(b, b"deep", ROOT, b"again", NONE).expect("no effect");
        assert_eq!(links(volume, f), 2);
        refuses!(volume.rename(b, b"deep", ROOT, b"again", RenameFlags { no_replace: true, ..NONE }), Error::Exists);
    });
}

#[test]
fn a_directory_that_was_removed_takes_no_names() {
    with_volume(&["-t", "ext4"], |volume| {
        let gone = dir(volume, ROOT, "gone");
        let f = file(volume, ROOT, "f");
        volume.add_lookup(gone);
        volume.rmdir(ROOT, b"gone").expect("rmdir");
        refuses!(volume.create(gone, b"x", &new(FileKind::Regular)), Error::NotFound);
        refuses!(volume.link(f, gone, b"x"), Error::NotFound);
        refuses!(volume.symlink(gone, b"x", b"y", 0, 0), Error::NotFound);
        refuses!(volume.rename(ROOT, b"f", gone, b"x", NONE), Error::NotFound);
        let names = volume.read_dir(&volume.inode(gone).expect("looked up"), 0).expect("a directory").count();
        assert!(names <= 2);
        volume.forget(gone, 1).expect("forget");
        refuses!(volume.inode(gone), Error::Stale(_));
    });
}

#[test]
fn flags_forbid() {
    with_volume(&["-t", "ext4"], |volume| {
        let d = dir(volume, ROOT, "d");
        let f = file(volume, d, "f");
        for on in [InodeFlags::IMMUTABLE, InodeFlags::APPEND] {
            flag(volume, f, on, true);
            let times = SetAttributes { mtime: Some(Timestamp { seconds: 1, nanos: 0 }), ..SetAttributes::default() };
            refuses!(volume.set_attributes(f, &times), Error::NotPermitted(_));
            let touched = volume.set_attributes(f, &SetAttributes { touch: true, ..times });
            assert_eq!(touched.is_ok(), on == InodeFlags::APPEND);
            refuses!(volume.unlink(d, b"f"), Error::NotPermitted(_));
            refuses!(volume.link(f, ROOT, b"f"), Error::NotPermitted(_));
            refuses!(volume.rename(d, b"f", ROOT, b"f", NONE), Error::NotPermitted(_));
            refuses!(volume.set_xattr(f, b"user.a", b"", XattrMode::Any), Error::NotPermitted(_));
            let chmod = SetAttributes { mode: Some(0), ..SetAttributes::default() };
            refuses!(volume.set_attributes(f, &chmod), Error::NotPermitted(_));
            file(volume, ROOT, "other");
            refuses!(volume.rename(ROOT, b"other", d, b"f", NONE), Error::NotPermitted(_));
            volume.unlink(ROOT, b"other").expect("unlink");
            flag(volume, f, on, false);
        }
        flag(volume, d, InodeFlags::IMMUTABLE, true);
        refuses!(volume.create(d, b"x", &new(FileKind::Regular)), Error::NotPermitted(_));
        refuses!(volume.unlink(d, b"f"), Error::NotPermitted(_));
        flag(volume, d, InodeFlags::IMMUTABLE, false);
        flag(volume, d, InodeFlags::APPEND, true);
        file(volume, d, "x");
        refuses!(volume.unlink(d, b"x"), Error::NotPermitted(_));
        refuses!(volume.rename(d, b"x", d, b"y", NONE), Error::NotPermitted(_));
        flag(volume, d, InodeFlags::APPEND, false);
        let with = |flags| SetAttributes { flags: Some(flags), ..SetAttributes::default() };
        let flags = volume.inode(f).expect("f").raw().flags();
        for on in [InodeFlags::INLINE_DATA, InodeFlags::ENCRYPT, InodeFlags::DIRSYNC, InodeFlags::CASEFOLD] {
            refuses!(volume.set_attributes(f, &with(flags | on)), Error::NotPermitted(_));
        }
        refuses!(volume.set_attributes(f, &with(flags - InodeFlags::EXTENTS)), Error::NotPermitted(_));
        let project = SetAttributes { project: Some(7), ..SetAttributes::default() };
        refuses!(volume.set_attributes(f, &project), Error::NotPermitted(_));
    });
}

#[test]
fn link_counts_end() {
    with_volume(&["-t", "ext2", "-b", "1024"], |volume| {
        let f = file(volume, ROOT, "f");
        let d = dir(volume, ROOT, "d");
        for n in 1..32_000 {
            volume.link(f, d, format!("{n}").as_bytes()).expect("link");
        }
        refuses!(volume.link(f, d, b"more"), Error::TooManyNames);
        assert_eq!(links(volume, f), 32_000);
    });
    // a directory with more subdirectories than can be counted has 1
    let args = ["-t", "ext4", "-b", "1024", "-N", "70000", "-O", "inline_data", "-I", "256"];
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    let image = Image::mke2fs(&args, 128 << 20).build();
    let volume = open_writable(image.path(), WriteOptions::default());
    let d = dir(&volume, ROOT, "d");
    for n in 0..65_001 {
        dir(&volume, d, &n.to_string());
        let expected = if n + 3 > 65_000 { 1 } else { n + 3 };
        assert_eq!(links(&volume, d), expected as u16);
    }
    volume.rmdir(d, b"7").expect("rmdir");
    assert_eq!(links(&volume, d), 1);
    volume.unmount().expect("unmount");
    drop(volume);
    assert_valid(image.path(), &args);
}

#[test]
fn a_full_volume_says_so_and_stays_consistent() {
    with_volume(&["-t", "ext4", "-b", "1024", "-N", "64"], |volume| {
        let mut made = 0;
        let last = loop {
            match volume.create(ROOT, format!("file{made}").as_bytes(), &new(FileKind::Directory)) {
                Ok(_) => made += 1,
                Err(e) => break e,
            }
        };
        assert!(matches!(last, Error::NoSpace) && made > 20, "{last}, {made}");
        volume.rmdir(ROOT, b"file3").expect("rmdir");
        dir(volume, ROOT, "again");
    });
    // out of blocks: long links need one each
    with_volume(&["-t", "ext4", "-b", "1024", "-N", "20000", "-O", "^has_journal"], |volume| {
        let mut made = 0;
        let last = loop {
            let name = format!("a rather long name for a link, so that the directory grows as well {made}");
            match volume.symlink(ROOT, name.as_bytes(), &[b't'; 500], 0, 0) {
                Ok(_) => made += 1,
                Err(e) => break e,
            }
        };
        assert!(matches!(last, Error::NoSpace) && made > 1000, "{last}, {made}");
        refuses!(volume.create(ROOT, b"dir", &new(FileKind::Directory)), Error::NoSpace);
    });
}

#[test]
fn what_a_directory_hands_on() {
    with_volume(&["-t", "ext4", "-b", "1024"], |volume| {
        let d = dir(volume, ROOT, "d");
        let set = SetAttributes { mode: Some(0o2775), gid: Some(70_000), ..SetAttributes::default() };
        volume.set_attributes(d, &set).expect("chmod");
        flag(volume, d, InodeFlags::NODUMP | InodeFlags::NOATIME | InodeFlags::DIRSYNC, true);
        let make = |kind, name: &[u8]| -> Arc<Inode> {
            let file = NewFile { umask: 0o022, gid: 5, ..new(kind) };
            volume.create(d, name, &NewFile { mode: 0o777, ..file }).expect("create")
        };
        let (sub, f, fifo) =
            (make(FileKind::Directory, b"s"), make(FileKind::Regular, b"f"), make(FileKind::Fifo, b"p"));
        assert_eq!([&sub, &f, &fifo].map(|inode| inode.raw().gid()), [70_000; 3]);
        assert_eq!([&sub, &f].map(|inode| inode.raw().disk.i_mode.get()), [0o42755, 0o100755]);
        let inherited = InodeFlags::NODUMP | InodeFlags::NOATIME | InodeFlags::DIRSYNC;
        let flags = [&sub, &f, &fifo].map(|inode| inode.raw().flags() & inherited);
        let both = InodeFlags::NODUMP | InodeFlags::NOATIME;
        assert_eq!(flags, [inherited, both, both]);
        assert_eq!(f.raw().crtime(), Some(f.raw().ctime()));
        assert_ne!(sub.raw().disk.i_generation, f.raw().disk.i_generation);
    });
}

#[test]
fn times_change_as_they_must() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    let image = Image::mke2fs(&["-t", "ext4"], 16 << 20).build();
    let ticks = Arc::new(std::sync::atomic::AtomicI64::new(2_000_000_000));
    let clock = {
        let ticks = Arc::clone(&ticks);
        Arc::new(move || Timestamp {
            seconds: ticks.fetch_add(1, std::sync::atomic::Ordering::Relaxed),
            nanos: 123_456_789,
        })
    };
    let device = blockdev::FileDevice::open(image.path(), blockdev::OpenOptions { write: true, ..Default::default() });
    let write = Some(WriteOptions { clock, seed: Some(1), ..WriteOptions::default() });
    let options = extant_fs::OpenOptions { write, ..Default::default() };
    let volume = Volume::open(Arc::new(device.expect("open")), &options).expect("open");
    let d = dir(&volume, ROOT, "d");
    let f = file(&volume, d, "f");
    let of = |number| times(&volume.inode(number).expect("inode"));
    let (before_d, before_f) = (of(d), of(f));
    volume.link(f, d, b"g").expect("link");
    assert!(of(d)[1] > before_d[1] && of(d)[2] > before_d[2] && of(d)[0] == before_d[0]);
    assert!(of(f)[2] > before_f[2] && of(f)[1] == before_f[1]);
    let (before_d, before_f) = (of(d), of(f));
    volume.unlink(d, b"g").expect("unlink");
    assert!(of(d)[1] > before_d[1] && of(d)[2] > before_d[2] && of(f)[2] > before_f[2]);
    let (before_d, before_f, before_root) = (of(d), of(f), of(ROOT));
    volume.rename(d, b"f", ROOT, b"f", NONE).expect("rename");
    assert!(of(d)[1] > before_d[1] && of(ROOT)[1] > before_root[1] && of(f)[2] > before_f[2]);
    let before = of(f);
    let far = Timestamp { seconds: 10_000_000_000, nanos: 999_999_999 };
    let past = Timestamp { seconds: -2_000_000_000, nanos: 5 };
    let set = SetAttributes { atime: Some(far), mtime: Some(past), ..SetAttributes::default() };
    volume.set_attributes(f, &set).expect("utimens");
    assert_eq!((of(f)[0], of(f)[1], of(f)[2] > before[2]), (far, past, true));
    volume.unmount().expect("unmount");
    drop(volume);
    assert_valid(image.path(), &"times");
}

#[test]
fn a_volume_that_is_read_only_is_not_changed() {
    if !need(&["mke2fs"]) {
        return;
    }
    let image = Image::mke2fs(&["-t", "ext4"], 16 << 20).build();
    let volume = common::open(image.path());
    refuses!(volume.create(ROOT, b"x", &new(FileKind::Regular)), Error::ReadOnly(_));
    refuses!(volume.unlink(ROOT, b"lost+found"), Error::ReadOnly(_));
    refuses!(volume.rename(ROOT, b"lost+found", ROOT, b"x", NONE), Error::ReadOnly(_));
    refuses!(volume.set_attributes(ROOT, &SetAttributes::default()), Error::ReadOnly(_));
    refuses!(volume.set_xattr(ROOT, b"user.a", b"", XattrMode::Any), Error::ReadOnly(_));
    volume.forget(ROOT, 1).expect("nothing to do");
}

#[test]
fn names_of_an_encoding() {
    let args = ["-t", "ext4", "-b", "1024", "-O", "casefold", "-E", "encoding=utf8,encoding_flags=strict"];
    with_volume(&args, |volume| {
        let d = dir(volume, ROOT, "d");
        flag(volume, d, InodeFlags::CASEFOLD, true);
        for n in 0..400 {
            file(volume, d, &format!("Straße-{n}"));
        }
        for n in 0..400 {
            let name = format!("STRASSE-{n}");
            refuses!(volume.create(d, name.as_bytes(), &new(FileKind::Regular)), Error::Exists);
        }
        refuses!(volume.create(d, b"\xFF\xFE", &new(FileKind::Regular)), Error::Invalid(_));
        volume.create(ROOT, b"\xFF\xFE", &new(FileKind::Regular)).expect("no encoding here");
        refuses!(volume.rename(ROOT, b"\xFF\xFE", d, b"\xFF", NONE), Error::Invalid(_));
        for n in 0..399 {
            volume.unlink(d, format!("sTRASSE-{n}").as_bytes()).expect("unlink");
        }
        let sub = dir(volume, d, "Sub");
        assert!(volume.inode(sub).expect("sub").raw().flags().contains(InodeFlags::CASEFOLD));
        let flags = volume.inode(d).expect("d").raw().flags() - InodeFlags::CASEFOLD;
        let plain = SetAttributes { flags: Some(flags), ..SetAttributes::default() };
        refuses!(volume.set_attributes(d, &plain), Error::NotEmpty);
    });
}
