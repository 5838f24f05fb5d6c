//! `mkfs -d` of tar archives built record by record: access control lists, and limits on resources.

use crate::common::{command, exits, extant, json, prints, text};
use serde_json::Value;
use std::io::Write;
use std::path::PathBuf;
use std::process::Stdio;
use tempfile::TempDir;
use testkit::tools::{LIMIT, must, run_with};

const BLOCK: usize = 512;
/// 2001-09-09 in seconds since 1970.
const THEN: u64 = 1_000_000_000;
/// A list with a named user, in the binary form of the attribute.
const BINARY: &[u8] = b"\x02\0\0\0\x01\0\x06\0\xff\xff\xff\xff\x02\0\x06\0\xd2\x04\0\0\x04\0\x04\0\xff\xff\xff\xff\
    \x10\0\x06\0\xff\xff\xff\xff\x20\0\0\0\xff\xff\xff\xff";

/// An archive under construction.
#[derive(Default)]
struct Archive(Vec<u8>);

impl Archive {
    fn header(&mut self, name: &str, kind: u8, mode: u16, size: usize) {
        let mut header = vec![0; BLOCK];
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[100..108].copy_from_slice(format!("{mode:07o}\0").as_bytes());
        header[124..136].copy_from_slice(format!("{size:011o}\0").as_bytes());
        header[136..148].copy_from_slice(format!("{THEN:011o}\0").as_bytes());
        header[156] = kind;
        header[257..265].copy_from_slice(b"ustar\x0000");
        let sum = header.iter().map(|byte| u32::from(*byte)).sum::<u32>() + 8 * u32::from(b' ');
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.0.extend(header);
    }

    /// Adds a file, or a directory if the name ends with a slash, with records.
    fn file(&mut self, name: &str, mode: u16, records: &[(&str, &[u8])]) {
        self.records(b'x', records);
        self.header(name, if name.ends_with('/') { b'5' } else { b'0' }, mode, 0);
    }

    fn records(&mut self, kind: u8, records: &[(&str, &[u8])]) {
        let mut data = Vec::new();
        for (key, value) in records {
            let rest = key.len() + value.len() + 3;
            let len = (rest..).find(|len| len.to_string().len() + rest == *len).expect("a length");
            data.extend([format!("{len} {key}=").as_bytes(), value, b"\n"].concat());
        }
        if !data.is_empty() {
            self.header("records", kind, 0o644, data.len());
            data.resize(data.len().next_multiple_of(BLOCK), 0);
            self.0.extend(data);
        }
    }

    /// The archive as a file, and a path for a volume.
    fn end(mut self) -> Files {
        self.0.resize(self.0.len() + 2 * BLOCK, 0);
        let files = Files(tempfile::tempdir().expect("a temporary folder"));
        std::fs::write(files.at("archive"), self.0).expect("write");
        files
    }
}

struct Files(TempDir);

impl Files {
    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Fills a volume in an existing file from the archive and checks that it is consistent; returns the exit status and
    /// output of mkfs.
    fn fill(&self) -> (Option<i32>, String) {
        let (archive, volume) = (self.at("archive"), self.at("volume"));
        std::fs::write(&volume, "").expect("write");
        let ran = extant(&["mkfs", "-qF", "-b", "4096", "-d", text(&archive), text(&volume), "24000"]);
        exits(0, &["check", "-fn", text(&volume)]);
        (ran.exit, ran.text())
    }

    fn ls(&self) -> String {
        prints(&["ls", "-l", text(&self.at("volume"))])
    }

    fn stat(&self, path: &str) -> String {
        prints(&["stat", text(&self.at("volume")), path])
    }
}

#[test]
fn access_control_lists_arrive_from_text_and_from_attributes() {
    let mut archive = Archive::default();
    let numbers = b"user::rw-\nuser:1234:rw-\ngroup::r--\nmask::rw-\nother::---\n";
    archive.file("text", 0o660, &[("SCHILY.acl.access", numbers)]);
    // an unreadable form is present in the other form, too
    let strangers = b"user::rw-\nuser:no such user:rw-\ngroup::r--\nmask::rw-\nother::---\n";
    let both = [("SCHILY.acl.access", &strangers[..]), ("SCHILY.xattr.system.posix_acl_access", BINARY)];
    archive.file("both", 0o660, &both);
    archive.file("named", 0o640, &[("SCHILY.acl.access", b"user::rw-,user:root:r--,group::---,mask::r--,other::---")]);
    archive.file("plain", 0o640, &[("SCHILY.acl.access", b"user::rw-\ngroup::r--\nother::---\n")]);
    let default = b"user::rwx\nuser:77:r-x\ngroup::r-x\nmask::r-x\nother::---\n";
    archive.file("dir/", 0o750, &[("SCHILY.acl.default", default)]);
    archive.file("dir/inside", 0o640, &[]);
    let files = archive.end();
    assert_eq!(files.fill(), (Some(0), String::new()));
    for (path, list) in [
        ("/text", "system.posix_acl_access = user::rw-,user:1234:rw-,group::r--,mask::rw-,other::---"),
        ("/both", "system.posix_acl_access = user::rw-,user:1234:rw-,group::r--,mask::rw-,other::---"),
        ("/named", "system.posix_acl_access = user::rw-,user:0:r--,group::---,mask::r--,other::---"),
        ("/dir", "system.posix_acl_default = user::rwx,user:77:r-x,group::r-x,mask::r-x,other::---"),
    ] {
        let said = files.stat(path);
        assert!(said.contains(list), "{said}");
    }
    for path in ["/plain", "/dir/inside"] {
        let said = files.stat(path);
        assert!(said.contains("0640 (-rw-r-----)") && !said.contains("posix_acl"), "{said}");
    }
}

/// The group bits of a mode in an archive are the mask: without the list they would apply to the group.
#[test]
fn without_its_list_a_file_grants_the_group_no_more() {
    let mut archive = Archive::default();
    let list = |group: &str| format!("user::rw-,user:no such user:rw-,group::{group},mask::rw-,other::---");
    for (name, group) in [("/less", "r--"), ("/none", "---"), ("/more", "rwx"), ("/odd", "?")] {
        archive.file(name, 0o660, &[("SCHILY.acl.access", list(group).as_bytes())]);
    }
    archive.file("/other", 0o664, &[("SCHILY.acl.ace", b"owner@:rwxp::allow")]);
    // an entry too large for a block
    let entry =
        |tag: u16, perm: u16, id: u32| [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat();
    let none = u32::MAX;
    let users = (0..3000).flat_map(|id| entry(2, 6, id));
    let long = [&b"\x02\0\0\0"[..], &entry(1, 6, none), &users.collect::<Vec<_>>()];
    let long = [&long.concat()[..], &entry(4, 4, none), &entry(16, 6, none), &entry(32, 0, none)].concat();
    archive.file("/long", 0o660, &[("SCHILY.xattr.system.posix_acl_access", &long)]);
    let files = archive.end();
    let (status, said) = files.fill();
    assert_eq!((status, said.lines().count()), (Some(1), 2), "{said}");
    assert!(said.contains(": long: system.posix_acl_access: no space left on the volume\n"), "{said}");
    assert!(said.contains("5 files copied without the access control list"), "{said}");
    assert!(said.ends_with(": less, none, more and 2 more\n"), "{said}");
    let modes = [
        ("/less", "0640"),
        ("/none", "0600"),
        ("/more", "0660"),
        ("/odd", "0600"),
        ("/other", "0664"),
        ("/long", "0640"),
    ];
    for (path, mode) in modes {
        let said = files.stat(path);
        assert!(said.contains(&format!("{mode} (")) && !said.contains("posix_acl"), "{path}: {said}");
    }
}

/// Directories get their attributes at the end, except those that would need too much memory until then.
#[test]
fn directories_with_many_attributes_are_whole() {
    let (mut archive, value, count) = (Archive::default(), [b'v'; 3800], 4600);
    let default = b"user::rwx\nuser:77:rwx\ngroup::rwx\nmask::rwx\nother::---\n";
    for n in 0..count {
        let records = [("SCHILY.xattr.user.a", &value[..]), ("SCHILY.acl.default", default)];
        archive.file(&format!("d{}/d{n}/", n % 7), 0o2751, &records);
    }
    for n in 0..7 {
        archive.file(&format!("d{n}/"), 0o700, &[]);
        archive.file(&format!("d{n}/d{n}/file"), 0o640, &[]);
    }
    let files = archive.end();
    let (status, said) = files.fill();
    assert!(status == Some(0) && said.is_empty(), "{}", said.lines().next().unwrap_or_default());
    let (volume, last) = (files.at("volume"), format!("/d{}/d{}", (count - 1) % 7, count - 1));
    let paths = ["/d0", "/d0/d0", &last, "/d0/d0/file"];
    let all = json(&[&["stat", "--json", text(&volume)], &paths[..]].concat());
    let expected = [("0700", 0), ("2751", 2), ("2751", 2), ("0640", 0)];
    for (file, (mode, attributes)) in all["files"].as_array().expect("a list").iter().zip(expected) {
        assert_eq!(file["mtime"], "2001-09-09T01:46:40.000000000Z", "{file}");
        assert_eq!(file["mode"], mode, "{file}");
        assert_eq!(file["xattrs"].as_array().map(Vec::len), Some(attributes), "{file}");
    }
}

/// The map of a sparse file may be longer than all other records together, and has its own limit.
#[test]
fn maps_of_sparse_files_are_bounded_by_their_pieces() {
    for (pieces, refused) in [(1 << 19, false), ((1 << 20) + 1, true)] {
        let (mut archive, map) = (Archive::default(), vec!["0,0"; pieces].join(","));
        archive.file("sparse", 0o644, &[("GNU.sparse.map", map.as_bytes()), ("GNU.sparse.realsize", b"70000")]);
        let files = archive.end();
        let (status, said) = files.fill();
        assert_eq!(
            (status, said.contains("a sparse file with too many segments")),
            (Some(i32::from(refused)), refused),
            "{said}"
        );
        assert_eq!(files.ls().contains(" 70000 "), !refused);
    }
}

/// Records of many headers, for one member or global, are refused before they use much memory.
#[test]
fn records_are_bounded_together() {
    for kind in [b'x', b'g'] {
        let mut archive = Archive::default();
        for n in 0..64 {
            archive.records(kind, &[(&format!("key{n}"), &[b'x'; 1 << 18][..])]);
        }
        archive.file("file", 0o644, &[]);
        let files = archive.end();
        let (status, said) = files.fill();
        assert!(status == Some(1) && said.contains("records or a name of more than 1 MiB"), "{said}");
    }
}

/// An archive with one file of 8 MiB.
fn large() -> Archive {
    let mut archive = Archive::default();
    archive.header("large", b'0', 0o644, 8 << 20);
    archive.0.resize(BLOCK + (8 << 20), 7);
    archive
}

#[test]
fn a_full_volume_names_the_size_that_it_lacks() {
    let files = large().end();
    for (source, bytes) in [("archive", Vec::new()), ("-", std::fs::read(files.at("archive")).unwrap())] {
        let source = if source == "-" { source.to_owned() } else { text(&files.at(source)).to_owned() };
        let ran = run_with(&mut command(&["mkfs", "-d", &source, text(&files.at("volume")), "6M"]), &bytes, LIMIT);
        let said = ran.text();
        assert!(ran.exit == Some(1) && said.contains("not all was copied: 8 MiB of data in this file, "), "{said}");
        assert!(said.contains(" free\n") && !files.at("volume").exists(), "{said}");
    }
}

/// A new file is removed unless the archive was read to its end; errors of single files do not count.
#[test]
fn a_new_file_stays_only_if_the_archive_was_read_to_its_end() {
    let files = large().end();
    let (volume, whole) = (files.at("volume"), std::fs::read(files.at("archive")).unwrap());
    let json_of = |source: &str, bytes: &[u8]| -> Value {
        let words = ["mkfs", "--json", "-d", source, text(&volume), "32M"];
        let ran = run_with(&mut command(&words), bytes, LIMIT);
        assert_eq!(ran.exit, Some(1), "{}", ran.text());
        serde_json::from_slice(&ran.stdout).unwrap()
    };
    let cut = &whole[..whole.len() / 2];
    std::fs::write(files.at("cut"), cut).unwrap();
    for (source, bytes) in [("-", cut), ("-", &[b'x'; 2000]), ("-", b""), (text(&files.at("cut")), b"")] {
        let made = json_of(source, bytes);
        assert!(made["made"] == false && made["incomplete"] == true && !volume.exists(), "{made}");
        let empty = source == "-" && bytes.is_empty();
        assert_eq!(made["error"].as_str().unwrap().contains("standard input is empty"), empty, "{made}");
    }
    let mut archive = Archive::default();
    archive.file("../outside", 0o644, &[]);
    archive.file("inside", 0o644, &[]);
    let others = archive.end();
    let made = json_of(text(&others.at("archive")), b"");
    assert!(made["made"] == true && made["incomplete"] == false && made["copied"]["files"] == 1, "{made}");
    assert!(prints(&["ls", text(&volume)]).contains("inside"));
}

#[test]
fn a_signal_during_the_copy_removes_a_new_file_only() {
    if !testkit::need(&["kill"]) {
        return;
    }
    let bytes = large().0;
    for existed in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let volume = folder.path().join("volume");
        if existed {
            std::fs::write(&volume, "").unwrap();
        }
        let mut mkfs = command(&["mkfs", "--json", "-d", "-", text(&volume), "32M"]);
        mkfs.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = mkfs.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        // more than a pipe buffers: it has begun to read
        stdin.write_all(&bytes[..4 << 20]).unwrap();
        must("kill", &["-TERM", &child.id().to_string()]);
        let out = child.wait_with_output().unwrap();
        drop(stdin);
        let (made, said) =
            (serde_json::from_slice::<Value>(&out.stdout).unwrap(), String::from_utf8_lossy(&out.stderr));
        assert!(out.status.code() == Some(1) && made["exit"] == 1 && made["made"] == existed, "{made}");
        assert_eq!(volume.exists(), existed);
        let end = if existed { "the volume is incomplete\n" } else { "the unfinished file was removed\n" };
        assert!(said.contains("interrupted: ") && said.ends_with(end), "{said}");
        assert_eq!(made["incomplete"], true, "{made}");
        if existed {
            exits(0, &["check", "-fn", text(&volume)]);
        }
    }
}
