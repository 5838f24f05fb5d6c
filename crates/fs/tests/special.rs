//! Rarely used features: casefolded names, encryption without the key, values in attribute inodes, access control
//! lists; and many threads at once.

mod common;

use common::{manifest, open, open_bytes};
use extant_fs::{Error, InodeFlags, OpenOptions, Volume};
use std::path::Path;
use std::sync::Arc;
use testkit::oracle::debugfs;
use testkit::{Image, Spec, Tree, need, tools};

/// Adds flags to the inodes of some paths.
fn add_flags(image: &Image, flags: InodeFlags, paths: &[&str]) {
    let volume = open(image.path());
    for path in paths {
        let inode = volume.inode(volume.resolve_nofollow(path.as_bytes()).unwrap()).unwrap();
        let all = inode.raw().flags() | flags;
        image.debugfs(&[&format!("set_inode_field {path} flags 0x{:x}", all.bits())]);
    }
}

fn optimise(image: &Path) {
    let ran = tools::run("e2fsck", &["-fyD".as_ref(), image.as_os_str()]);
    assert!(matches!(ran.exit, Some(0 | 1)), "{}", ran.text());
}

#[test]
fn names_without_case() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (few, many) = (folder.path().join("few"), folder.path().join("many"));
    std::fs::create_dir(&few).unwrap();
    std::fs::create_dir(&many).unwrap();
    for name in ["Straße", "ΑΒΓδς", "Ångström", "README", "plain"] {
        std::fs::write(few.join(name), name).unwrap();
    }
    for n in 0..600 {
        std::fs::write(many.join(format!("Entrée-{n}")), b"").unwrap();
    }
    let args = ["-t", "ext4", "-b", "1024", "-O", "casefold", "-E", "encoding=utf8"];
    let image = Image::mke2fs(&args, 24 << 20).with_folder(folder.path()).build();
    add_flags(&image, InodeFlags::CASEFOLD, &["/few", "/many"]);
    optimise(image.path());
    let volume = open(image.path());
    let few = volume.resolve(b"/few").unwrap();
    let dir = volume.inode(few).unwrap();
    for (stored, asked) in [
        ("Straße", "STRASSE"),
        ("ΑΒΓδς", "αβγΔΣ"),
        ("Ångström", "a\u{30A}NGSTRO\u{308}M"),
        ("README", "readme"),
        ("plain", "plain"),
    ] {
        let found = volume.lookup(&dir, asked.as_bytes()).unwrap_or_else(|e| panic!("{asked}: {e}"));
        let inode = volume.inode(found).unwrap();
        let mut content = vec![0; 64];
        let len = volume.read_at(&inode, 0, &mut content).unwrap();
        assert_eq!(&content[..len], stored.as_bytes());
    }
    assert!(matches!(volume.lookup(&dir, b"PLAIN2"), Err(Error::NotFound)));
    assert!(matches!(volume.resolve(b"/FEW"), Err(Error::NotFound)));
    let many = volume.inode(volume.resolve(b"/many").unwrap()).unwrap();
    assert!(many.raw().flags().contains(InodeFlags::INDEX));
    for n in 0..600 {
        let lower = volume.lookup(&many, format!("entrée-{n}").as_bytes()).unwrap();
        assert_eq!(volume.lookup(&many, format!("ENTRE\u{301}E-{n}").as_bytes()).unwrap(), lower);
    }
}

#[test]
fn encrypted_without_the_key() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    std::fs::create_dir(&secret).unwrap();
    // the directory is marked as encrypted, so any names count as encrypted ones
    let names: Vec<String> = (0..300).map(|n| format!("{n:0>16}{}", "x".repeat(n % 240))).collect();
    for name in &names {
        std::fs::write(secret.join(name), b"cipher text").unwrap();
    }
    let link = "/secret-link";
    std::os::unix::fs::symlink("0123456789abcdef", folder.path().join("secret-link")).unwrap();
    let args = ["-t", "ext4", "-b", "1024", "-O", "encrypt"];
    let image = Image::mke2fs(&args, 24 << 20).with_folder(folder.path()).indexed().build();
    let file = format!("/secret/{}", names[0]);
    add_flags(&image, InodeFlags::ENCRYPT, &[&file, "/secret", link]);
    let volume = open(image.path());
    let dir = volume.inode(volume.resolve(b"/secret").unwrap()).unwrap();
    assert!(dir.raw().flags().contains(InodeFlags::INDEX | InodeFlags::ENCRYPT));
    let entries: Vec<_> = volume.read_dir(&dir, 0).unwrap().map(Result::unwrap).collect();
    assert_eq!(entries.len(), names.len() + 2);
    let mut refused = 0;
    for entry in &entries {
        let dots = entry.name.starts_with(b".");
        assert!(dots || entry.name.iter().all(|c| c.is_ascii_alphanumeric() || b"-_".contains(c)));
        assert!(entry.name.len() <= 252);
        assert_eq!(volume.lookup(&dir, &entry.name).unwrap(), entry.inode);
        let inode = volume.inode(entry.inode).unwrap();
        refused += usize::from(!dots && matches!(volume.read_at(&inode, 0, &mut [0; 4]), Err(Error::Encrypted)));
    }
    assert_eq!(refused, 1);
    assert!(matches!(volume.lookup(&dir, names[5].as_bytes()), Err(Error::NotFound)));
    // the length "01" exceeds that of the link
    let link = volume.inode(volume.resolve_nofollow(link.as_bytes()).unwrap()).unwrap();
    assert!(matches!(volume.read_link(&link), Err(Error::Corrupt { .. })));
}

#[test]
fn values_in_inodes_of_their_own() {
    if !need(&["mke2fs", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("file"), b"content").unwrap();
    let image =
        Image::mke2fs(&["-t", "ext4", "-b", "1024", "-O", "ea_inode"], 8 << 20).with_folder(folder.path()).build();
    // debugfs accepts a block at most, which does not fit in addition to anything
    let value: Vec<u8> = (0..1024u32).map(|n| (n * 7 % 251) as u8).collect();
    let source = image.beside("value");
    std::fs::write(&source, &value).unwrap();
    let inodes_before = open(image.path()).statfs().files_free;
    image.debugfs(&[&format!("ea_set -f {} /file user.large", source.display()), "ea_set /file user.small tiny"]);
    let volume = open(image.path());
    assert_eq!(volume.statfs().files_free, inodes_before - 1);
    let file = volume.inode(volume.resolve(b"/file").unwrap()).unwrap();
    let mut names = volume.list_xattrs(&file).unwrap();
    names.sort();
    assert_eq!(names, [&b"user.large"[..], b"user.small"]);
    assert_eq!(volume.get_xattr(&file, b"user.small").unwrap(), b"tiny");
    assert!(volume.get_xattr(&file, b"user.large").unwrap() == value);

    // one byte of the value changes: its hash reveals it, and the other attribute is not affected
    let mut bytes = image.bytes();
    let at = bytes.windows(64).position(|w| w == &value[..64]).expect("the value's first block");
    bytes[at] ^= 1;
    let volume = open_bytes(bytes).unwrap();
    assert!(matches!(volume.get_xattr(&file, b"user.large"), Err(Error::Corrupt { .. })));
    assert_eq!(volume.get_xattr(&file, b"user.small").unwrap(), b"tiny");
}

#[test]
fn access_control_lists_come_as_programs_want_them() {
    if !need(&["mke2fs", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("file"), b"content").unwrap();
    let image = Image::mke2fs(&["-t", "ext4"], 8 << 20).with_folder(folder.path()).build();
    let mut list = vec![2, 0, 0, 0];
    let none = u32::MAX;
    for (tag, perm, id) in
        [(1u16, 6u16, none), (2, 4, 1000), (4, 4, none), (8, 6, 70_000), (16, 6, none), (32, 0, none)]
    {
        list.extend([&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat());
    }
    let source = image.beside("acl");
    std::fs::write(&source, &list).unwrap();
    image.debugfs(&[&format!("ea_set -f {} /file system.posix_acl_access", source.display())]);
    let shown = debugfs(image.path(), "ea_list /file");
    assert!(shown.contains("system.posix_acl_access"), "{shown}");
    let volume = open(image.path());
    let file = volume.inode(volume.resolve(b"/file").unwrap()).unwrap();
    assert_eq!(volume.list_xattrs(&file).unwrap(), [b"system.posix_acl_access"]);
    assert_eq!(volume.get_xattr(&file, b"system.posix_acl_access").unwrap(), list);
    assert!(matches!(volume.get_xattr(&file, b"system.posix_acl_default"), Err(Error::NoAttribute)));
}

#[test]
fn the_high_half_of_a_directorys_size_counts_only_under_large_dir() {
    if !need(&["mke2fs", "debugfs"]) {
        return;
    }
    let read = |args: &[&str]| {
        let image = Image::mke2fs(args, 8 << 20).debugfs(&["set_inode_field /lost+found size 4294979584"]).build();
        let volume = open(image.path());
        let dir = volume.inode(volume.resolve(b"/lost+found").unwrap()).unwrap();
        volume.read_dir(&dir, 0).map(Iterator::count)
    };
    assert_eq!(read(&["-t", "ext2"]).unwrap(), 2);
    assert!(matches!(read(&["-t", "ext2", "-O", "large_dir"]), Err(Error::Corrupt { .. })));
}

#[test]
fn a_map_that_leads_in_circles_comes_to_an_end() {
    if !need(&["mke2fs", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("file"), vec![1; 20_000]).unwrap();
    let image = Image::mke2fs(&["-t", "ext2", "-b", "1024"], 8 << 20).with_folder(folder.path()).build();
    let volume = open(image.path());
    let file = volume.inode(volume.resolve(b"/file").unwrap()).unwrap();
    // the indirect block refers to itself everywhere, and is used for all three levels
    let indirect: u32 = file.raw().block_words::<13>()[12];
    let mut bytes = image.bytes();
    let at = indirect as usize * 1024;
    bytes[at..at + 1024].copy_from_slice(&indirect.to_le_bytes().repeat(256));
    let damaged = Image::from_bytes(&bytes);
    let fields = ["block[DIND]", "block[TIND]"].map(|field| format!("set_inode_field /file {field} {indirect}"));
    damaged.debugfs(&[&fields[0], &fields[1], "set_inode_field /file size 17000000000"]);
    let volume = open(damaged.path());
    let file = volume.inode(volume.resolve(b"/file").unwrap()).unwrap();
    assert_eq!(file.size, 17_000_000_000);
    assert!(matches!(volume.seek_hole(&file, 0), Err(Error::Corrupt { .. })));
    let mut end = vec![0; 5000];
    assert_eq!(volume.read_at(&file, file.size - 5000, &mut end).unwrap(), 5000);
}

#[test]
fn many_threads_see_the_same() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    let tree = Tree::new(81, &Spec { wide: 400, ..Spec::small() });
    let image = Image::mke2fs(&["-t", "ext4", "-b", "1024"], 24 << 20).with_tree(&tree).indexed().build();
    // so small a cache that the threads evict each other's blocks
    let options = OpenOptions { cache_bytes: 32 << 10, ..OpenOptions::default() };
    let volume = Arc::new(Volume::open(common::device(image.path()), &options).unwrap());
    let alone = manifest(&volume);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| alone.assert_same(&manifest(&volume)));
        }
    });
}
