//! Tests of `extant info`, `ls`, `tree`, `stat` and `cat`.

use crate::common::{EXTANT, command, exits, fails, json, plain, prints, ready, sample, text};
use serde_json::Value;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use testkit::tools::{LIMIT, must, run_with};
use testkit::{ContentHash, FileKind, Image};

/// The bytes of a name or path in JSON.
fn bytes(entry: &Value, key: &str) -> Vec<u8> {
    match &entry[format!("{key}_bytes")] {
        Value::String(hex) => hex
            .as_bytes()
            .chunks(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect(),
        _ => entry[key].as_str().unwrap().as_bytes().to_vec(),
    }
}

#[test]
fn info_says_what_dumpe2fs_says() {
    if !ready() || !testkit::need(&["dumpe2fs"]) {
        return;
    }
    for args in
        [&["-t", "ext2"][..], &["-t", "ext3", "-b", "1024"], &["-t", "ext4"], &["-t", "ext4", "-O", "bigalloc,quota"]]
    {
        let image = Image::mke2fs(args, 32 << 20).build();
        let info = json(&["info", "--groups", "--json", text(image.path())]);
        let dump = must("dumpe2fs", &[image.path()]).text();
        let field = |name: &str| {
            let line = dump.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {dump}"));
            line[name.len()..].trim_start_matches(':').trim().to_owned()
        };
        let same = |section: &str, key: &str, name: &str| {
            let value = &info[section][key];
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            assert_eq!(value, field(name), "{args:?} {key}");
        };
        same("identity", "uuid", "Filesystem UUID");
        same("space", "blocks", "Block count");
        same("space", "free_blocks", "Free blocks");
        same("space", "reserved_blocks", "Reserved block count");
        same("space", "inodes", "Inode count");
        same("space", "free_inodes", "Free inodes");
        same("layout", "block_size", "Block size");
        same("layout", "inode_size", "Inode size");
        same("layout", "blocks_per_group", "Blocks per group");
        same("layout", "inodes_per_group", "Inodes per group");
        same("layout", "first_block", "First block");
        same("state", "directory_hash", "Default directory hash");
        same("state", "directory_hash_seed", "Directory Hash Seed");
        let features: BTreeSet<_> =
            info["identity"]["features"].as_array().unwrap().iter().map(|f| f.as_str().unwrap()).collect();
        assert_eq!(features, field("Filesystem features").split_whitespace().collect(), "{args:?}");
        assert_eq!(info["identity"]["format"], args[1]);
        assert_eq!(info["history"]["created"], "2020-09-13T12:26:40.000000000Z");
        if args[1] != "ext2" {
            same("journal", "inode", "Journal inode");
            same("journal", "blocks", "Total journal blocks");
            assert_eq!(info["journal"]["start"], Value::Null);
        }
        let groups = info["groups"].as_array().unwrap();
        assert_eq!(
            groups.len(),
            dump.lines().filter(|line| line.starts_with("Group ") && line.contains(": (Blocks ")).count(),
            "{args:?}"
        );
        let directories: u64 = groups.iter().map(|group| group["directories"].as_u64().unwrap()).sum();
        assert_eq!(directories, 2, "{args:?}");
    }
}

#[test]
fn info_for_people() {
    if !ready() {
        return;
    }
    let image = plain();
    let shown = prints(&["info", "-g", text(image.path())]);
    for line in [
        "Volume",
        "  Label                plain",
        "  Size                 8 MiB (",
        "  State                clean",
        "Journal",
    ] {
        assert!(shown.lines().any(|shown| shown.starts_with(line)), "{line}: {shown}");
    }
    assert!(shown.lines().all(|line| line.len() <= 120), "{shown}");
    let group = shown.lines().last().unwrap();
    assert!(group.trim_start().starts_with("0 ") && group.contains("superblock"), "{group}");
}

#[test]
fn ls_lists_names_in_order() {
    if !ready() {
        return;
    }
    let image = plain();
    let volume = text(image.path());
    assert_eq!(prints(&["ls", volume]), "etc\nlink\nlost+found\nway\n");
    assert_eq!(prints(&["ls", "-a", volume]), ".\n..\n.hidden\netc\nlink\nlost+found\nway\n");
    assert_eq!(prints(&["ls", volume, "/etc", "lost+found"]), "/etc:\nhosts\nmotd\n\nlost+found:\n");
    assert_eq!(prints(&["ls", volume, "/lost+found"]), "");
    assert_eq!(prints(&["ls", volume, "/etc/hosts", "etc/motd"]), "/etc/hosts\netc/motd\n");
    assert_eq!(prints(&["ls", "-d", volume, "/etc"]), "/etc\n");
    // a link is shown itself; with a trailing slash, the directory it points to is listed
    assert_eq!(prints(&["ls", volume, "/way"]), "/way\n");
    assert_eq!(prints(&["ls", volume, "/way/"]), "hosts\nmotd\n");
    assert_eq!(prints(&["ls", volume, "<2>"]), prints(&["ls", volume]));
    let all = prints(&["ls", "-R", volume, "/"]);
    assert_eq!(all, "/:\netc\nlink\nlost+found\nway\n\n/etc:\nhosts\nmotd\n\n/lost+found:\n");
}

#[test]
fn ls_long() {
    if !ready() {
        return;
    }
    let image = plain();
    let volume = text(image.path());
    let lines = prints(&["ls", "-li", volume]);
    let lines: Vec<Vec<_>> = lines.lines().map(|line| line.split_whitespace().collect()).collect();
    let etc = &lines[0];
    assert_eq!((etc[1], etc[2], etc.last()), ("drwxr-xr-x", "2", Some(&"etc")));
    assert_eq!(etc[0].parse::<u32>().unwrap(), json(&["stat", "--json", volume, "/etc"])["files"][0]["inode"]);
    assert_eq!(lines[1][lines[1].len() - 3..], ["link", "->", "etc/motd"]);
    assert_eq!(lines[2][5..7], ["12288", "2020-09-13"], "lost+found as made by mke2fs");
    let human = prints(&["ls", "-l", "--human", volume]);
    assert!(human.contains("12 KiB"), "{human}");
    // columns are aligned
    let ends: BTreeSet<_> = prints(&["ls", "-l", volume]).lines().map(|line| line.find(':').unwrap()).collect();
    assert_eq!(ends.len(), 1);
}

#[test]
fn ls_json_has_every_name_of_the_tree() {
    if !ready() {
        return;
    }
    let sample = sample();
    let listed = json(&["ls", "-R", "-a", "--json", sample.path(), "/"]);
    assert_eq!(listed["device"], sample.path());
    let mut found = BTreeSet::new();
    for directory in listed["paths"].as_array().unwrap() {
        let folder = bytes(directory, "path");
        for entry in directory["entries"].as_array().unwrap() {
            let name = bytes(entry, "name");
            if name != b"." && name != b".." {
                let path = PathBuf::from(OsString::from_vec([&folder[1..], b"/", &name].concat()));
                found.insert(path.strip_prefix("/").unwrap_or(&path).to_owned());
                assert!(entry["inode"].is_u64() && entry["mode"].is_string(), "{entry}");
            }
        }
    }
    found.remove(Path::new("lost+found"));
    let expected: BTreeSet<_> = crate::common::paths(sample).into_iter().collect();
    assert_eq!(found, expected);
}

#[test]
fn tree_shows_and_counts() {
    if !ready() {
        return;
    }
    let image = plain();
    let volume = text(image.path());
    assert_eq!(
        prints(&["tree", volume]),
        "/\n├── etc\n│   ├── hosts\n│   └── motd\n├── link -> etc/motd\n├── lost+found\n└── way -> /etc\n\n\
         2 directories, 4 files\n"
    );
    assert_eq!(prints(&["tree", "-d", volume]), "/\n├── etc\n└── lost+found\n\n2 directories\n");
    assert_eq!(
        prints(&["tree", "-a", "-L", "1", volume, "etc"]),
        "etc\n├── hosts\n└── motd\n\n0 directories, 2 files\n"
    );
    assert_eq!(prints(&["tree", volume, "lost+found"]), "lost+found\n\n0 directories, 0 files\n");
    let sentence = fails(1, &["tree", volume, "/link"]);
    assert_eq!(sentence, format!("extant: {volume}: /link: not a directory"));

    let sample = sample();
    let tree = json(&["tree", "-a", "--json", sample.path()]);
    let model = &sample.tree.model().0;
    let directories = model.values().filter(|entry| entry.kind == FileKind::Directory).count();
    // the root is not counted, but lost+found is
    assert_eq!(tree["summary"]["directories"], directories);
    assert_eq!(tree["summary"]["files"], model.len() - directories);
    let deepest = tree["entries"].as_array().unwrap().iter().map(|entry| entry["depth"].as_u64().unwrap()).max();
    assert_eq!(deepest, model.keys().map(|path| path.components().count() as u64).max());
}

#[test]
fn stat_says_what_was_written() {
    if !ready() {
        return;
    }
    let sample = sample();
    let mut args: Vec<OsString> = ["stat", "--json", sample.path()].map(OsString::from).into();
    args.extend(crate::common::paths(sample).into_iter().map(PathBuf::into_os_string));
    let shown = json(&args);
    let files = shown["files"].as_array().unwrap();
    assert_eq!(files.len(), args.len() - 3);
    for file in files {
        let path = PathBuf::from(OsString::from_vec(bytes(file, "path")));
        let entry = &sample.tree.model().0[&path];
        assert_eq!(file["mode"], format!("{:04o}", entry.mode), "{path:?}");
        if entry.kind != FileKind::Directory {
            assert_eq!(Some(file["size"].as_u64().unwrap()), entry.size, "{path:?}");
        }
        if let Some(target) = &entry.target {
            assert_eq!(&bytes(file, "target"), target, "{path:?}");
        }
        if let Some((major, minor)) = entry.device {
            assert_eq!((&file["major"], &file["minor"]), (&major.into(), &minor.into()), "{path:?}");
        }
        if let Some(time) = entry.modified {
            let at = jiff::Timestamp::new(time.seconds, time.nanoseconds as i32).unwrap();
            assert_eq!(file["mtime"], format!("{at:.9}"), "{path:?}");
        }
        if let Some(xattrs) = &entry.xattrs {
            let found: Vec<_> =
                file["xattrs"].as_array().unwrap().iter().map(|x| (bytes(x, "name"), bytes(x, "value"))).collect();
            for (name, value) in xattrs {
                assert!(found.contains(&(name.as_bytes().to_vec(), value.clone())), "{path:?}: {name:?}");
            }
        }
    }
}

#[test]
fn stat_of_pieces_and_for_people() {
    if !ready() {
        return;
    }
    for (args, map) in [
        (&["-t", "ext2", "-b", "1024"][..], "direct and indirect blocks; "),
        (&["-t", "ext4", "-b", "1024"], "extents in the inode; "),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let file = std::fs::File::create(folder.path().join("sparse")).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[1; 2048], 10 << 10).unwrap();
        file.set_len(20 << 10).unwrap();
        let image = Image::mke2fs(args, 8 << 20).with_folder(folder.path()).build();
        let volume = text(image.path());
        let shown = json(&["stat", "--blocks", "--json", volume, "/sparse"]);
        let map_of = &shown["files"][0]["map"];
        assert_eq!((&map_of["extents"], &map_of["data_blocks"]), (&1.into(), &2.into()), "{shown}");
        let extent = &map_of["extent_list"][0];
        assert_eq!(
            (&extent["file_block"], &extent["len"], &extent["unwritten"]),
            (&10.into(), &2.into(), &false.into())
        );
        let said = testkit::oracle::debugfs(image.path(), "bmap /sparse 11");
        assert_eq!(said.lines().next().unwrap().trim(), (extent["block"].as_u64().unwrap() + 1).to_string());
        let people = prints(&["stat", "--blocks", volume, "/sparse", "<2>"]);
        assert!(
            people.contains("     Path  /sparse\n") && people.contains("     Size  20 KiB (20480 bytes)\n"),
            "{people}"
        );
        assert!(people.contains(&format!("      Map  {map}2 blocks in 1 extent\n")), "{people}");
        assert!(people.contains("file block  block  blocks\n        10 "), "{people}");
        assert!(people.contains("     Path  <2>\n") && people.contains("     Type  directory\n"), "{people}");
        assert!(args[1] == "ext2" || prints(&["stat", volume, "<8>"]).contains(" blocks in "), "the journal");
    }
}

#[test]
fn cat_prints_what_was_written() {
    if !ready() {
        return;
    }
    let image = plain();
    let volume = text(image.path());
    assert_eq!(prints(&["cat", volume, "/etc/hosts", "/etc/motd"]), "127.0.0.1 localhost\nwelcome\n");
    // links are followed, inside the volume
    assert_eq!(prints(&["cat", volume, "/link", "/way/motd", "/.hidden"]), "welcome\nwelcome\n");
    let sample = sample();
    let mut compared = 0;
    for (path, entry) in &sample.tree.model().0 {
        let Some(content) = entry.content else { continue };
        let args = [OsStr::new("cat"), OsStr::new(sample.path()), path.as_os_str()];
        assert_eq!(ContentHash::of(&exits(0, &args).stdout[..]).unwrap(), content, "{path:?}");
        compared += 1;
    }
    assert!(compared > 50, "{compared}");
}

#[test]
fn one_file_that_fails_does_not_stop_the_others() {
    if !ready() {
        return;
    }
    let image = plain();
    let volume = text(image.path());
    let ran = exits(1, &["cat", volume, "/etc/motd", "/nope", "/etc", "/etc/hosts/x", "/etc/motd"]);
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "welcome\nwelcome\n");
    let expected = [
        format!("extant: {volume}: /nope: no such file or directory"),
        format!("extant: {volume}: /etc: is a directory"),
        format!("extant: {volume}: /etc/hosts/x: not a directory"),
    ];
    assert_eq!(String::from_utf8_lossy(&ran.stderr).lines().collect::<Vec<_>>(), expected);
    let ran = exits(1, &["ls", volume, "/nope", "/etc"]);
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "/etc:\nhosts\nmotd\n");
    let ran = exits(1, &["stat", "--json", volume, "/nope", "/etc"]);
    let shown: Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!(shown["files"].as_array().unwrap().len(), 1);
}

#[test]
fn json_has_the_errors_and_the_exit_status() {
    if !ready() {
        return;
    }
    let image = plain();
    let volume = text(image.path());
    let why = "no such file or directory";
    for (command, list) in [("ls", "paths"), ("stat", "files"), ("frag", "files")] {
        let ran = exits(1, &[command, "--json", volume, "/nope"]);
        let shown: Value = serde_json::from_slice(&ran.stdout).unwrap();
        assert!(!shown[list].is_null(), "{shown}");
        assert_eq!(shown["error"], format!("{volume}: /nope: {why}"), "{command}");
        assert_eq!(shown["errors"], serde_json::json!([{ "path": "/nope", "reason": why }]), "{command}");
        assert_eq!(shown["exit"], 1, "{command}");
    }
    let of = |words: &[&str]| -> Value { serde_json::from_slice(&exits(1, words).stdout).unwrap() };
    let shown = of(&["rm", "--json", volume, "/nope", "/none"]);
    assert!(shown["exit"] == 1 && shown["errors"][1]["path"] == "/none", "{shown}");
    assert!(shown["error"].as_str().unwrap().starts_with("2 errors; the first: "), "{shown}");
    let shown = of(&["put", "--json", volume, "/etc/passwd", "/etc/motd"]);
    assert!(shown["exit"] == 1 && shown["error"].as_str().unwrap().contains("already exists"), "{shown}");
    let whole: Value = serde_json::from_slice(&exits(0, &["ls", "--json", volume]).stdout).unwrap();
    assert!(whole["exit"].is_null() && whole["errors"].is_null(), "{whole}");
}

#[test]
fn a_huge_sparse_file_takes_little_memory_and_a_reader_that_leaves_is_no_error() {
    if !ready() {
        return;
    }
    let image = plain();
    image.debugfs(&["set_inode_field /etc/motd size 1099511627776"]);
    let volume = text(image.path());
    // the system can limit the address space; threads and mappings use some
    let script = format!("ulimit -v 400000; exec {EXTANT} cat {volume} /etc/motd");
    let mut child = std::process::Command::new("sh");
    let mut child = child.args(["-c", &script]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut start = vec![0xFF; 8 << 20];
    child.stdout.take().unwrap().read_exact(&mut start).unwrap();
    assert_eq!(&start[..8], b"welcome\n");
    assert!(start[8..].iter().all(|byte| *byte == 0));
    let out = child.wait_with_output().unwrap();
    assert_eq!((out.status.code(), String::from_utf8_lossy(&out.stderr)), (Some(0), "".into()));
}

#[test]
fn text_whose_reader_leaves() {
    if !ready() {
        return;
    }
    let sample = sample();
    for args in [&["ls", "-lR"][..], &["tree"], &["info"], &["stat", "--json"], &["check", "-fn"]] {
        let mut args: Vec<_> = args.to_vec();
        args.push(sample.path());
        if args[0] == "stat" {
            args.push("/");
        }
        let mut child = command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let out = child.wait_with_output().unwrap();
        assert_eq!((out.status.code(), String::from_utf8_lossy(&out.stderr)), (Some(0), "".into()), "{args:?}");
    }
    // a full disk is reported
    if Path::new("/dev/full").exists() {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let help = command(&["ls", "--help"]).stdout(full.try_clone().unwrap()).output().unwrap();
        let said = String::from_utf8_lossy(&help.stderr);
        assert_eq!((help.status.code(), said.lines().count()), (Some(1), 1), "{said}");
        assert!(said.contains("cannot write the output: No space left on device"), "{said}");
        let out = command(&["ls", sample.path()]).stdout(full).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(1));
        assert_eq!(said, "extant: cannot write the output: No space left on device\n");
    }
}

#[test]
fn verbose_says_what_was_read() {
    if !ready() {
        return;
    }
    let image = plain();
    let ran = exits(0, &["cat", "-v", text(image.path()), "/etc/motd"]);
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert_eq!(ran.stdout, b"welcome\n");
    let lines: Vec<_> = said.lines().collect();
    assert!(
        lines.len() == 2 && lines[0].ends_with("8 MiB in blocks of 1 KiB") && lines[1].contains(" seeks)"),
        "{said}"
    );
}

#[test]
fn names_cannot_drive_a_terminal() {
    if !ready() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let name = b"\x1b[31m\nextant: all is well\r\xff\xe2\x80\xae";
    std::fs::write(folder.path().join(OsStr::from_bytes(name)), "x").unwrap();
    std::os::unix::fs::symlink(OsStr::from_bytes(name), folder.path().join("link")).unwrap();
    let image = Image::mke2fs(&["-t", "ext4"], 8 << 20).with_folder(folder.path()).build();
    let volume = text(image.path());
    let path = OsStr::from_bytes(name);
    let escaped = r"\u{1b}[31m\nextant: all is well\r\xff\u{202e}";
    for args in [&["ls"][..], &["ls", "-l"], &["ls", "-R"], &["tree"]] {
        let mut args: Vec<_> = args.to_vec();
        args.push(volume);
        let shown = prints(&args);
        assert!(shown.contains(escaped), "{args:?}: {shown}");
        assert!(shown.chars().all(|c| c == '\n' || !c.is_control()), "{args:?}: {shown}");
    }
    let shown = prints(&[OsStr::new("stat"), OsStr::new(volume), path, OsStr::new("/link")]);
    assert_eq!(shown.matches(escaped).count(), 2, "{shown}");
    let missing = exits(1, &[OsStr::new("cat"), OsStr::new(volume), OsStr::from_bytes(&[name, &b"2"[..]].concat())]);
    let said = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(said.contains(escaped) && said.lines().count() == 1, "{said}");
    let listed = json(&["ls", "--json", volume]);
    let entries = listed["paths"][0]["entries"].as_array().unwrap();
    assert!(entries.iter().any(|entry| bytes(entry, "name") == name), "{listed}");
    let ran = run_with(&mut command(&["ls", "--json", volume]), b"", LIMIT);
    assert!(!ran.stdout.contains(&0x1b));
}

/// Times follow the zone in TZ: by its name, if this machine has that, or by its rule. JSON is always UTC.
#[test]
fn times_are_those_of_the_zone() {
    let folder = tempfile::tempdir().unwrap();
    let (source, volume) = (folder.path().join("source"), folder.path().join("volume"));
    std::fs::create_dir(&source).unwrap();
    let file = std::fs::File::create(source.join("file")).unwrap();
    file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000)).unwrap();
    let mut made = command(&["mkfs", "-q", "-d", text(&source), text(&volume), "16M"]);
    made.env("SOURCE_DATE_EPOCH", "1000000000");
    assert_eq!(run_with(&mut made, b"", LIMIT).exit, Some(0));
    for (zone, local, offset) in [
        ("UTC", "2001-09-09 01:46", "+0000"),
        ("XYZ-3", "2001-09-09 04:46", "+0300"),
        ("Europe/Berlin", "2001-09-09 03:46", "+0200"),
        ("America/New_York", "2001-09-08 21:46", "-0400"),
    ] {
        if zone.contains('/') && !Path::new("/usr/share/zoneinfo").join(zone).exists() {
            continue;
        }
        let says = |words: &[&str]| {
            let ran = run_with(command(words).env("TZ", zone), b"", LIMIT);
            assert_eq!(ran.exit, Some(0), "{}", ran.text());
            ran.text()
        };
        let list = says(&["ls", "-l", text(&volume)]);
        assert!(list.contains(&format!(" {local} file")), "{zone}: {list}");
        let stat = says(&["stat", text(&volume), "/file"]);
        assert!(stat.contains(&format!("{local}:40.000000000 {offset}")), "{zone}: {stat}");
        let info = says(&["info", text(&volume)]);
        assert!(info.contains(&format!("{local}:40 {offset}")), "{zone}: {info}");
        let json = says(&["ls", "--json", text(&volume)]);
        assert!(json.contains("2001-09-09T01:46:40.000000000Z"), "{zone}: {json}");
    }
}

/// A hostile superblock on a sparse file of a few MiB makes `info` read nothing of its millions of groups.
#[test]
fn very_many_groups_are_not_read() {
    if !ready() {
        return;
    }
    let features = "64bit,meta_bg,^has_journal,^metadata_csum,^resize_inode,^flex_bg";
    let args = ["-t", "ext4", "-b", "1024", "-g", "256", "-N", "64", "-O", features];
    let image = Image::mke2fs(&args, 4 << 20).build();
    let mut bytes = image.bytes();
    let groups = (1_u32 << 20) + 1000;
    let inodes = groups * u32::from_le_bytes(bytes[1024 + 0x28..1024 + 0x2C].try_into().unwrap());
    // s_inodes_count, s_blocks_count_lo, s_free_blocks_count_lo, s_overhead_blocks
    for (at, value) in [(0x0, inodes), (0x4, groups * 256 + 1), (0xC, 4321), (0x248, 765)] {
        bytes[1024 + at..1024 + at + 4].copy_from_slice(&value.to_le_bytes());
    }
    image.set_bytes(&bytes);
    let len = u64::from(groups * 256 + 1) * 1024;
    std::fs::File::options().write(true).open(image.path()).unwrap().set_len(len).unwrap();
    let shown = json(&["info", "--json", text(image.path())]);
    assert_eq!((&shown["space"]["free_blocks"], &shown["space"]["overhead_blocks"]), (&4321.into(), &765.into()));
    let copies = shown["layout"]["superblock_copies"].as_array().unwrap();
    assert!(copies.len() < 50 && copies[..3] == [257, 769, 1281], "{copies:?}");
    let ran = exits(1, &["info", "--groups", text(image.path())]);
    let says = format!("{groups} groups are more than the 1048576 that are listed");
    assert!(ran.text().contains(&says) && ran.stdout.len() < 10_000, "{}", ran.text());
}
