//! Trees so deep that their paths are longer than the system accepts, as on a hostile volume: memory use grows linearly
//! with the depth, not quadratically.

use crate::common::{EXTANT, exits, json, ready, text};
use std::process::Command;
use testkit::tools::{LIMIT, Ran, run_with};

/// Number of nested directories.
const DEPTH: usize = 2000;
/// Bytes of each name. All paths together have 500 MB.
const NAME: usize = 250;
/// Address space for a command, in KiB: libraries, threads and caches of the program, and several times the longest
/// path.
const MEMORY: usize = 400 << 10;

/// A header of a tar archive.
fn header(name: &str, kind: u8, len: usize) -> Vec<u8> {
    let mut header = vec![0; 512];
    header[..name.len()].copy_from_slice(name.as_bytes());
    header[100..107].copy_from_slice(b"0000755");
    header[124..135].copy_from_slice(format!("{len:011o}").as_bytes());
    header[148..156].fill(b' ');
    header[156] = kind;
    header[257..265].copy_from_slice(b"ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    header
}

/// An archive with one file at a path, and another beside it.
fn archive(path: &str) -> Vec<u8> {
    let mut all = Vec::new();
    for (name, content) in [("file", "found\n"), ("other", "too\n")] {
        let path = format!("{path}/{name}");
        // the length of a record includes itself
        let tail = format!(" path={path}\n");
        let mut len = tail.len();
        while len.to_string().len() + tail.len() != len {
            len = len.to_string().len() + tail.len();
        }
        let record = format!("{len}{tail}").into_bytes();
        for (header, mut data) in
            [(header("pax", b'x', record.len()), record), (header(name, b'0', content.len()), content.into())]
        {
            all.extend(header);
            data.resize(data.len().next_multiple_of(512), 0);
            all.extend(data);
        }
    }
    all.extend([0; 1024]);
    all
}

/// Runs the program with that much memory.
fn within(args: &[&str]) -> Ran {
    let script = format!("ulimit -v {MEMORY} && exec \"$0\" \"$@\"");
    let mut command = Command::new("sh");
    command.args(["-c", &script, EXTANT]).args(args).env("TZ", "UTC");
    let ran = run_with(&mut command, b"", LIMIT);
    assert_eq!(ran.exit, Some(0), "{args:?}: {:.2000}", ran.text());
    ran
}

/// Creates nested directories on this machine, with a file in the last.
fn chain(folder: &std::path::Path, depth: usize) {
    use rustix::fs::{Mode, OFlags, mkdirat, openat};
    let name = "d".repeat(NAME);
    let mut at = std::os::fd::OwnedFd::from(std::fs::File::open(folder).unwrap());
    for _ in 0..depth {
        mkdirat(&at, &name, Mode::RWXU).unwrap();
        at = openat(&at, &name, OFlags::DIRECTORY | OFlags::RDONLY, Mode::empty()).unwrap();
    }
    drop(openat(&at, "leaf", OFlags::CREATE | OFlags::WRONLY, Mode::RUSR | Mode::WUSR).unwrap());
}

/// Copies a tree into a volume; the longest path has 75 KB.
#[test]
fn what_is_deep_comes_in() {
    const LEVELS: usize = 300;
    let folder = tempfile::tempdir().unwrap();
    let (source, volume) = (folder.path().join("source"), folder.path().join("deep.img"));
    std::fs::create_dir(&source).unwrap();
    chain(&source, LEVELS);
    let volume = text(&volume);
    let size = ["-q", "-t", "ext4", "-b", "1024", "-N", "4096"];
    within(&[&["mkfs"][..], &size, &["-d", text(&source), volume, "32M"]].concat());
    let counts = format!("{} directories, 1 file", LEVELS + 1);
    assert!(within(&["tree", volume]).text().contains(&counts));
    within(&[&["mkfs", "-F"][..], &size, &[volume]].concat());
    within(&["put", "-r", volume, text(&source), "/"]);
    assert!(within(&["tree", volume]).text().contains(&format!("{} directories, 1 file", LEVELS + 2)));
    assert_eq!(json(&["ls", "--json", volume])["paths"][0]["path"], "/");
    within(&["rm", "-r", volume, "/source"]);
}

#[test]
fn memory_grows_with_the_tree_and_not_with_its_square() {
    if !ready() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (tar, volume) = (folder.path().join("deep.tar"), folder.path().join("deep.img"));
    let names: Vec<_> = (0..DEPTH).map(|n| format!("{n:0>NAME$}")).collect();
    std::fs::write(&tar, archive(&names.join("/"))).unwrap();
    let volume = text(&volume);
    within(&["mkfs", "-q", "-t", "ext4", "-b", "1024", "-N", "4096", "-d", text(&tar), volume, "32M"]);
    let shown = within(&["tree", volume]);
    assert!(shown.text().contains("2002 directories, 2 files") || shown.text().contains("2001 directories, 2 files"));
    within(&["tree", "-d", volume]);
    for command in [&["tree", "--json"][..], &["ls", "-R", "--json"]] {
        // the complete output exceeds the memory limit
        let script = format!("ulimit -v {MEMORY} && exec \"$0\" \"$@\" | tail -c 2000");
        let ran = Command::new("sh").args(["-c", &script, EXTANT]).args(command).arg(volume).output().unwrap();
        let said = String::from_utf8_lossy(&ran.stdout);
        assert!(ran.stderr.is_empty(), "{:.2000}", String::from_utf8_lossy(&ran.stderr));
        assert!(
            said.ends_with("}\n") && said.contains(if command[0] == "tree" { "summary" } else { "other" }),
            "{said}"
        );
    }
    let deepest = exits(0, &["tree", volume]);
    assert!(deepest.text().contains("other"));
    // to this machine as far as descriptors suffice; messages stay short
    let sentence = Command::new("sh")
        .args(["-c", "ulimit -n 100 && exec \"$0\" get -r \"$1\" / \"$2\"", EXTANT, volume, text(folder.path())])
        .output()
        .unwrap();
    assert_eq!(sentence.status.code(), Some(1));
    assert!(sentence.stderr.len() < 10_000, "{} bytes", sentence.stderr.len());
    within(&["rm", "-r", volume, &format!("/{}", names[0])]);
    assert!(!exits(0, &["tree", volume]).text().contains("other"));
}
