//! Paths, symbolic links, offsets in files: compared with the rules of POSIX.

mod common;

use common::open;
use extant_fs::{Error, FileBlock, InodeNo, Mapping, Volume};
use std::fs::File;
use std::os::unix::fs::{FileExt, symlink};
use testkit::{Image, need};

fn volume() -> Option<(Image, Volume)> {
    if !need(&["mke2fs"]) {
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    std::fs::create_dir_all(root.join("a/b/c")).unwrap();
    std::fs::write(root.join("a/b/file"), b"content").unwrap();
    symlink("b/file", root.join("a/relative")).unwrap();
    symlink("/a/b", root.join("absolute")).unwrap();
    symlink("../../../../a", root.join("a/b/c/up")).unwrap();
    symlink("self", root.join("self")).unwrap();
    symlink("nowhere", root.join("dangling")).unwrap();
    symlink("/a/b/", root.join("slash")).unwrap();
    for n in 0..42 {
        let target = if n == 0 { "/a/b/file".to_owned() } else { format!("chain{}", n - 1) };
        symlink(target, root.join(format!("chain{n}"))).unwrap();
    }
    let sparse = File::create(root.join("sparse")).unwrap();
    sparse.write_all_at(&[1; 4096], 8192).unwrap();
    sparse.write_all_at(&[2; 100], 1 << 20).unwrap();
    sparse.set_len((1 << 20) + 50_000).unwrap();
    let image = Image::mke2fs(&["-t", "ext4", "-b", "4096"], 8 << 20).with_folder(root).build();
    let volume = open(image.path());
    Some((image, volume))
}

#[test]
fn paths_lead_where_they_say() {
    let Some((_image, volume)) = volume() else { return };
    let file = volume.resolve(b"/a/b/file").unwrap();
    let same: &[&[u8]] = &[
        b"a/b/file",
        b"//a//b/./file",
        b"/a/relative",
        b"/absolute/file",
        b"/a/b/c/up/b/file",
        b"/../../a/b/c/../file",
        b"/slash/file",
        b"/chain39",
    ];
    for path in same {
        assert_eq!(volume.resolve(path).unwrap(), file, "{}", path.escape_ascii());
    }
    let directory = volume.resolve(b"/a/b").unwrap();
    for path in [&b"/a/b/"[..], b"/absolute", b"/absolute/", b"/a/b/.", b"/a/b/c/.."] {
        assert_eq!(volume.resolve(path).unwrap(), directory, "{}", path.escape_ascii());
    }
    for path in [&b"/"[..], b".", b"..", b"/./..//"] {
        assert_eq!(volume.resolve(path).unwrap(), InodeNo::ROOT);
    }
    let link = volume.resolve_nofollow(b"/absolute").unwrap();
    assert_eq!(volume.read_link(&volume.inode(link).unwrap()).unwrap(), b"/a/b");
    assert_eq!(volume.resolve_nofollow(b"/absolute/").unwrap(), directory);
    assert_eq!(volume.resolve_nofollow(b"/absolute/file").unwrap(), file);
}

#[test]
fn paths_that_lead_nowhere_say_why() {
    let Some((_image, volume)) = volume() else { return };
    let error = |path: &[u8]| volume.resolve(path).unwrap_err();
    for path in [&b""[..], b"/nothing", b"/a/nothing/file", b"/dangling", b"/a/b/file2"] {
        assert!(matches!(error(path), Error::NotFound), "{}", path.escape_ascii());
    }
    for path in [&b"/a/b/file/"[..], b"/a/b/file/x", b"/a/relative/", b"/a/b/file/.."] {
        assert!(matches!(error(path), Error::NotADirectory), "{}", path.escape_ascii());
    }
    for path in [&b"/self"[..], b"/chain40", b"/self/x"] {
        assert!(matches!(error(path), Error::TooManyLinks), "{}", path.escape_ascii());
    }
    assert!(matches!(error(&[b'n'; 256]), Error::NameTooLong));
    let root = volume.inode(InodeNo::ROOT).unwrap();
    assert!(matches!(volume.read_at(&root, 0, &mut [0; 8]), Err(Error::IsADirectory)));
    assert!(matches!(volume.read_link(&root), Err(Error::Invalid(_))));
    let file = volume.inode(volume.resolve(b"/a/b/file").unwrap()).unwrap();
    assert!(matches!(volume.read_dir(&file, 0), Err(Error::NotADirectory)));
    assert!(matches!(volume.get_xattr(&file, b"user.none"), Err(Error::NoAttribute)));
    assert!(matches!(volume.get_xattr(&file, b"none"), Err(Error::NoAttribute)));
    for number in [0, u32::MAX] {
        assert!(matches!(volume.inode(InodeNo(number)), Err(Error::NotFound)));
    }
}

#[test]
fn places_in_a_sparse_file() {
    let Some((_image, volume)) = volume() else { return };
    let file = volume.inode(volume.resolve(b"/sparse").unwrap()).unwrap();
    let size = file.size;
    assert_eq!(size, (1 << 20) + 50_000);
    let mut content = vec![0xEE; size as usize + 10];
    assert_eq!(volume.read_at(&file, 0, &mut content).unwrap() as u64, size);
    let is = |range: std::ops::Range<usize>, byte: u8| content[range].iter().all(|&b| b == byte);
    assert!(is(0..8192, 0) && is(8192..12288, 1) && is(12288..1 << 20, 0) && is(1 << 20..(1 << 20) + 100, 2));
    assert!(is((1 << 20) + 100..size as usize, 0) && is(size as usize..size as usize + 10, 0xEE));
    // any part equals that part of the whole
    for (offset, len) in [(0, 1), (8191, 2), (8192, 4096), (5000, 9000), (1_048_500, 200), (size - 1, 10), (size, 10)] {
        let mut piece = vec![0xEE; len];
        let n = volume.read_at(&file, offset, &mut piece).unwrap();
        assert_eq!(n as u64, (len as u64).min(size - offset));
        assert_eq!(piece[..n], content[offset as usize..offset as usize + n]);
    }
    assert_eq!(volume.read_at(&file, u64::MAX, &mut [0; 8]).unwrap(), 0);
    assert_eq!(volume.read_at(&file, 0, &mut []).unwrap(), 0);

    let data = |at| volume.seek_data(&file, at).unwrap();
    let hole = |at| volume.seek_hole(&file, at).unwrap();
    assert_eq!([data(0), data(8192), data(9000), data(12288)], [8192, 8192, 9000, 1 << 20].map(Some));
    assert_eq!([hole(0), hole(8192), hole(12288), hole(1 << 20)], [0, 12288, 12288, (1 << 20) + 4096].map(Some));
    assert_eq!([data((1 << 20) + 4096), data(size), hole(size), data(u64::MAX)], [None; 4]);
    let whole = volume.inode(volume.resolve(b"/a/b/file").unwrap()).unwrap();
    assert_eq!((volume.seek_hole(&whole, 0).unwrap(), volume.seek_data(&whole, 6).unwrap()), (Some(7), Some(6)));

    let run = volume.map(&file, FileBlock(0)).unwrap();
    assert_eq!((run.len, run.mapping), (2, Mapping::Hole));
    let run = volume.map(&file, FileBlock(2)).unwrap();
    assert!((run.len, run.end()) == (1, FileBlock(3)) && run.physical().is_some());
    assert_eq!(volume.map(&file, FileBlock(u64::MAX)).unwrap().mapping, Mapping::Hole);
}
