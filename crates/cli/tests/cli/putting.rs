//! `mkfs -d`, `put` and `rm`: the content of volumes after copies and removals, and their consistency.

use crate::common::{EXTANT, command, exits, extant, fails, json, prints, text};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use testkit::oracle::{debugfs_dump, e2fsck, kernel_mount};
use testkit::tools::{self, LIMIT, run_with};
use testkit::{Field, FileKind, Manifest, Spec, Times, Tree, walk};

const M: u64 = 1 << 20;
/// The fields that differ between a tree and its copy: access and change times, and how a file system counts.
const OWN: [Field; 4] = [Field::Accessed, Field::Changed, Field::Blocks, Field::DirectorySize];

/// Formats that store files in different ways.
const KINDS: [&str; 6] = [
    "-t ext2 -b 1024",
    "-t ext3 -b 4096",
    "-t ext4 -b 1024",
    "-t ext4 -b 4096 -O orphan_file",
    "-t ext4 -b 4096 -I 512 -O inline_data,ea_inode",
    "-t ext4 -b 1024 -O ^metadata_csum,^extent,^64bit,meta_bg,^resize_inode",
];

struct Made {
    folder: TempDir,
}

impl Made {
    /// Creates a volume; `more` are further arguments of mkfs.
    fn new(kind: &str, len: u64, more: &[&str]) -> Self {
        let made = Self { folder: tempfile::tempdir().unwrap() };
        let len = (len >> 10).to_string() + "k";
        let image = made.image();
        let words = [&["mkfs", "-q"][..], &kind.split(' ').collect::<Vec<_>>(), more, &[text(&image), &len]].concat();
        assert_eq!(prints(&words), "");
        made
    }

    fn image(&self) -> PathBuf {
        self.folder.path().join("volume")
    }

    fn assert_consistent(&self, what: &str) {
        let verdict = e2fsck(&self.image());
        assert!(verdict.clean, "{what}: {}", verdict.text);
        exits(0, &["check", "-fn", text(&self.image())]);
    }

    /// The content as shown by the kernel; `None` where this machine cannot mount it.
    fn walked(&self) -> Option<Manifest> {
        if !tools::is_root() || !tools::has_loop() {
            return None;
        }
        let mounted = kernel_mount(&self.image(), "ro,noload").unwrap();
        let walked = walk(mounted.path()).unwrap().without("lost+found").forget(&OWN);
        mounted.unmount();
        Some(walked)
    }

    /// Asserts that the kernel shows `expected`.
    fn assert_content(&self, expected: &Manifest) {
        if let Some(walked) = self.walked() {
            expected.assert_same(&walked);
        }
    }
}

fn ready() -> bool {
    testkit::need(&["e2fsck", "mount", "umount", "debugfs"])
}

fn tree(seed: u64, times: Times) -> Tree {
    Tree::new(seed, &Spec { times, ..Spec::small() })
}

#[test]
fn a_folder_fills_a_new_volume() {
    if !ready() {
        return;
    }
    for (seed, kind) in (70..).zip(KINDS) {
        let tree = tree(seed, if kind.contains("ext4") { Times::Far } else { Times::Seconds });
        let made = Made::new(kind, 40 * M, &["-d", text(tree.path())]);
        made.assert_consistent(kind);
        made.assert_content(&walk(tree.path()).unwrap().forget(&OWN));
    }
}

#[test]
fn an_archive_fills_a_new_volume() {
    if !ready() || !testkit::need(&["tar"]) {
        return;
    }
    let tree = tree(80, Times::Seconds);
    let mut expected = walk(tree.path()).unwrap().forget(&OWN);
    // archives do not contain sockets
    expected.0.retain(|_, entry| entry.kind != FileKind::Socket);
    for (words, forget) in [
        ("--format=gnu -S", &[Field::Nanoseconds, Field::Xattrs][..]),
        ("--format=pax -S --xattrs --xattrs-include=*", &[]),
        ("--format=pax -S --sparse-version=0.1", &[Field::Xattrs]),
        ("--format=pax -S --sparse-version=0.0", &[Field::Xattrs]),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let archive = folder.path().join("archive.tar");
        let mut tar = tools::command("tar");
        tar.args(words.split(' ')).args(["-C", text(tree.path()), "-cf", text(&archive), "."]);
        assert_eq!(run_with(&mut tar, b"", LIMIT).exit, Some(0), "tar {words}");
        let made = Made::new("-t ext4", 40 * M, &["-d", text(&archive)]);
        made.assert_consistent(words);
        if let Some(walked) = made.walked() {
            expected.clone().forget(forget).assert_same(&walked.forget(forget));
        }
        // through a pipe, truncated: an error, and a consistent volume with the part before
        let bytes = std::fs::read(&archive).unwrap();
        let image = made.image();
        let words = ["mkfs", "-qF", "-t", "ext4", "-d", "-", text(&image)];
        let ran = run_with(&mut command(&words), &bytes[..bytes.len() / 2], LIMIT);
        assert_eq!(ran.exit, Some(1), "{}", ran.text());
        assert!(ran.text().contains("the archive is truncated; not all was copied"), "{}", ran.text());
        made.assert_consistent("cut short");
    }
}

#[test]
fn a_volume_that_is_too_small_is_left_consistent() {
    if !ready() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("large"), vec![7; 5 << 20]).unwrap();
    for kind in KINDS {
        let made = Made::new(kind, 40 * M, &[]);
        let image = made.image();
        let mut words = vec!["mkfs", "-qF"];
        words.extend(kind.split(' '));
        words.extend(["-d", text(folder.path()), text(&image), "4m"]);
        let said = exits(1, &words).text();
        let sentence = said.lines().find(|line| line.contains("not all was copied")).unwrap_or_default();
        assert!(sentence.contains("no space left on the volume; not all was copied"), "{kind}: {said}");
        assert!(sentence.contains(" free") || sentence.contains("inodes are in use"), "{kind}: {said}");
        assert!(said.contains("volume: the volume is incomplete\n"), "{kind}: {said}");
        made.assert_consistent(kind);
    }
}

/// Another file under the name of the one that mkfs created is neither overwritten nor removed.
#[test]
fn a_file_that_took_the_place_of_the_new_one_stays() {
    let folder = tempfile::tempdir().unwrap();
    let (volume, other) = (folder.path().join("volume"), folder.path().join("other"));
    let precious = vec![7; 16 << 20];
    std::fs::write(&other, &precious).unwrap();
    let mut command = command(&["mkfs", "-q", "-d", "-", text(&volume), "16M"]);
    let mut child = command.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let began = Instant::now();
    // no pause: the file is replaced as early as possible, often before its length is set
    while !volume.exists() && began.elapsed() < LIMIT {
        std::thread::yield_now();
    }
    std::fs::rename(&other, &volume).unwrap();
    input.write_all(b"no archive").unwrap();
    drop(input);
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert!(std::fs::read(&volume).unwrap() == precious);
}

/// A file that mkfs lengthens is the one that it opened and found empty: a volume that takes its name at any moment is
/// neither overwritten nor resized.
#[test]
fn a_volume_that_took_the_place_of_an_empty_file_stays() {
    let folder = tempfile::tempdir().unwrap();
    let (path, other) = (folder.path().join("volume"), folder.path().join("other"));
    exits(0, &["mkfs", "-q", text(&other), "20M"]);
    let precious = std::fs::read(&other).unwrap();
    for _ in 0..25 {
        let _ = std::fs::remove_file(&path);
        std::fs::write(&path, vec![0; 1 << 20]).unwrap();
        std::fs::write(&other, &precious).unwrap();
        let volume = File::open(&other).unwrap();
        let mut child = command(&["mkfs", "-q", text(&path), "16M"]).stderr(Stdio::null()).spawn().unwrap();
        let began = Instant::now();
        while child.try_wait().unwrap().is_none() {
            assert!(began.elapsed() < LIMIT);
            renameat_with(CWD, &path, CWD, &other, RenameFlags::EXCHANGE).unwrap();
        }
        let mut bytes = Vec::new();
        (&volume).read_to_end(&mut bytes).unwrap();
        assert!(bytes == precious);
        // whichever has its name
        let _ = std::fs::remove_file(&path);
    }
}

#[test]
fn a_new_file_that_cannot_be_filled_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let (source, volume) = (folder.path().join("source"), folder.path().join("volume"));
    std::fs::create_dir(&source).unwrap();
    std::fs::write(source.join("large"), vec![7; 5 << 20]).unwrap();
    let many = folder.path().join("many");
    std::fs::create_dir(&many).unwrap();
    (0..40).for_each(|n| std::fs::write(many.join(n.to_string()), "content").unwrap());
    for (from, more, why) in [
        (&source, &["4M"][..], "no space left on the volume; not all was copied"),
        (&many, &["32M", "-t", "extant", "-N", "16"], "all 32 inodes are in use"),
        (&many, &["8M", "-t", "ext4", "-N", "16"], "all 16 inodes are in use"),
    ] {
        let ran = exits(1, &[&["mkfs", "-d", text(from), text(&volume)], more].concat());
        assert!(ran.text().contains(why), "{}", ran.text());
        assert!(ran.text().ends_with("volume: the unfinished file was removed\n"), "{}", ran.text());
        assert!(ran.stdout.is_empty() && !volume.exists(), "{}", ran.text());
    }
    // the same file, if it existed before
    for existed in [false, true] {
        if existed {
            File::create(&volume).unwrap();
        }
        let ran = exits(1, &["mkfs", "--json", "-d", text(&source), text(&volume), "4M"]);
        let made: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
        assert_eq!((&made["made"], &made["incomplete"]), (&existed.into(), &true.into()), "{made}");
        assert_eq!((volume.exists(), &made["exit"]), (existed, &1.into()), "{made}");
        assert_eq!(made["errors"][0]["path"], "/large", "{made}");
    }
    let ran = exits(1, &["mkfs", "-F", "--json", "-t", "ext4", "-N", "16", "-d", text(&many), text(&volume), "8M"]);
    let made: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
    let (path, reason) = (&made["errors"][0]["path"], &made["errors"][0]["reason"]);
    assert!(path.as_str().is_some_and(|path| path.starts_with('/')), "{made}");
    assert!(reason.as_str().is_some_and(|reason| reason.starts_with("no space left")), "{made}");
    let ran = exits(1, &["put", "--json", text(&volume), text(&source.join("large")), "/etc/none"]);
    let put: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!(put["errors"][0]["path"], "/etc/", "{put}");
    exits(0, &["check", "-fn", text(&volume)]);
}

#[test]
fn free_blocks_are_counted_after_the_copy() {
    let folder = tempfile::tempdir().unwrap();
    let (source, volume) = (folder.path().join("source"), folder.path().join("volume"));
    std::fs::create_dir(&source).unwrap();
    std::fs::write(source.join("large"), vec![7; 5 << 20]).unwrap();
    for kind in ["ext2", "ext4", "rext3", "spacemap", "extant"] {
        let made = json(&["mkfs", "-F", "--json", "-t", kind, "-d", text(&source), text(&volume), "64M"]);
        let info = json(&["info", "--json", text(&volume)]);
        assert_eq!(made["free_blocks"], info["space"]["free_blocks"], "{kind}");
        assert_eq!((&made["made"], &made["incomplete"]), (&true.into(), &false.into()), "{made}");
    }
}

/// Runs the program, which must fail; returns its last message.
fn fails_with_notes(words: &[&str]) -> String {
    let text = exits(1, words).text();
    text.lines().find(|line| line.contains("not all was copied")).unwrap_or(&text).to_owned()
}

/// The program that served a mounted volume exits shortly after umount(8).
#[test]
fn a_volume_that_is_about_to_be_free_is_waited_for() {
    let made = Made::new("-t ext4", 8 * M, &[]);
    let (image, file) = (made.image(), made.folder.path().join("file"));
    std::fs::write(&file, "content").unwrap();
    let (volume, file) = (text(&image), text(&file));
    for words in [
        &["put", volume, file, "/there"][..],
        &["rm", volume, "/there"],
        &["check", "-fy", volume],
        &["mkfs", "-F", volume],
    ] {
        let write = blockdev::OpenOptions { write: true, ..blockdev::OpenOptions::default() };
        let open = blockdev::open(volume, write).unwrap();
        let other = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            drop(open);
        });
        exits(0, words);
        other.join().unwrap();
    }
}

#[test]
fn a_folder_is_put_into_a_volume() {
    if !ready() {
        return;
    }
    for (seed, kind) in (90..).zip(KINDS) {
        let tree = tree(seed, Times::Seconds);
        let made = Made::new(kind, 40 * M, &[]);
        let image = made.image();
        prints(&["put", "-r", text(&image), text(tree.path()), "/copy"]);
        made.assert_consistent(kind);
        let expected = walk(tree.path()).unwrap().forget(&OWN);
        if let Some(walked) = made.walked() {
            beneath(&walked, "copy").assert_same(&expected);
        }
        // once more onto the copy: the same content, and nothing is duplicated
        prints(&["put", "-rf", text(&image), &format!("{}/.", text(tree.path())), "/copy"]);
        made.assert_consistent(kind);
        if let Some(walked) = made.walked() {
            beneath(&walked, "copy").assert_same(&expected);
        }
        let removed = json(&["rm", "-r", "--json", text(&image), "/copy"]);
        assert!(removed["files"].as_u64() > Some(50), "{removed}");
        made.assert_consistent(kind);
        assert_eq!(prints(&["ls", text(&image), "/"]), "lost+found\n");
    }
}

/// The part of a tree below a folder, as a separate tree.
fn beneath(manifest: &Manifest, folder: &str) -> Manifest {
    let strip = |path: &Path| {
        let rest = path.strip_prefix(folder).ok()?;
        Some(if rest.as_os_str().is_empty() { PathBuf::from(".") } else { rest.to_owned() })
    };
    let entries = manifest.0.iter().filter_map(|(path, entry)| {
        let mut entry = entry.clone();
        entry.first_name = entry.first_name.as_deref().and_then(strip);
        Some((strip(path)?, entry))
    });
    Manifest(entries.collect())
}

#[test]
fn single_files_and_standard_input() {
    if !ready() {
        return;
    }
    let made = Made::new("-t ext4", 16 * M, &[]);
    let image = made.image();
    let volume = text(&image);
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("motd"), "welcome\n").unwrap();
    let sparse = File::create(at("sparse")).unwrap();
    sparse.write_all_at(b"end", 5 << 30).unwrap();
    sparse.set_len(6 << 30).unwrap();

    let copied = json(&["put", "--json", volume, text(&at("motd")), text(&at("sparse")), "/"]);
    assert_eq!(copied, serde_json::json!({ "directories": 0, "files": 2, "bytes": 4104 }).to_owned());
    assert_eq!(prints(&["cat", volume, "/motd"]), "welcome\n");
    let stat = json(&["stat", "--json", volume, "/sparse"]);
    assert_eq!(stat["files"][0]["size"].as_u64(), Some(6 << 30), "{stat}");
    assert_eq!(at("sparse").metadata().unwrap().size(), 6 << 30);

    let ran = run_with(&mut command(&["put", volume, "-", "/issue"]), b"from a pipe", LIMIT);
    assert_eq!(ran.exit, Some(0), "{}", ran.text());
    assert_eq!(debugfs_dump(&image, "/issue"), b"from a pipe");

    // existing files are left alone without --force
    let sentence = fails(1, &["put", volume, text(&at("motd")), "/issue"]);
    assert!(sentence.ends_with("/issue: already exists (--force replaces files)"), "{sentence}");
    prints(&["put", "--force", volume, text(&at("motd")), "/issue"]);
    assert_eq!(prints(&["cat", volume, "/issue"]), "welcome\n");

    for (words, why) in [
        (&["put", volume, "/no/such/file", "/"][..], "o such file"),
        (&["put", volume, text(folder.path()), "/"], "is a directory: use -r to copy it"),
        (&["put", volume, text(&at("motd")), "/no/such/folder/name"], "no such file or directory"),
        (&["put", volume, text(&at("motd")), text(&at("sparse")), "/new"], "several files need one"),
        (&["put", volume, "-", "/"], "needs a file name"),
        (&["rm", volume, "/nothing"], "no such file or directory"),
        (&["rm", volume, "/lost+found"], "is a directory: use -r to remove it"),
        (&["rm", "-r", volume, "/"], "refusing to remove"),
        (&["put", text(&at("motd")), text(&at("motd")), "/"], "not an ext2/3/4 or Extant volume"),
    ] {
        let sentence = fails(1, words);
        assert!(sentence.contains(why), "{words:?}: {sentence}");
    }
    // the length of a pipe is unknown; a file without enough space is removed
    let ran = run_with(&mut command(&["put", volume, "-", "/large"]), &vec![7; 20 << 20], LIMIT);
    assert!(ran.exit == Some(1) && ran.text().contains("no space left on the volume"), "{}", ran.text());
    assert!(ran.text().contains(" free") && !ran.text().contains("left to copy"), "{}", ran.text());
    // every message about a file of the volume begins with the volume
    assert!(ran.text().starts_with(&format!("extant: {volume}: /large: no space")), "{}", ran.text());
    let sentence = fails(1, &["put", volume, text(&at("motd")), "/"]);
    assert!(sentence.starts_with(&format!("extant: {volume}: /motd: already exists")), "{sentence}");
    let sentence = fails(1, &["put", volume, text(&at("motd")), "/no/folder"]);
    assert!(sentence.starts_with(&format!("extant: {volume}: /no/: no such file")), "{sentence}");
    prints(&["rm", "-f", volume, "/nothing", "/issue"]);
    assert_eq!(prints(&["ls", volume, "/"]), "lost+found\nmotd\nsparse\n");
    made.assert_consistent("at the end");
}

#[test]
fn a_signal_leaves_the_volume_consistent() {
    if !ready() || !testkit::need(&["kill"]) {
        return;
    }
    for kind in ["-t ext2", "-t ext4"] {
        let made = Made::new(kind, 16 * M, &[]);
        let image = made.image();
        let mut put = command(&["put", "--json", text(&image), "-", "/endless"]);
        put.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = put.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        // more than a pipe buffers: it has begun to read
        stdin.write_all(&vec![1; 1 << 20]).unwrap();
        stdin.write_all(&vec![2; 1 << 20]).unwrap();
        // SIGINT is ignored if a shell started the tests in the background
        tools::must("kill", &["-TERM", &child.id().to_string()]);
        // although there is no further input, and no end of file
        let output = child.wait_with_output().unwrap();
        drop(stdin);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("interrupted: not all was copied; the volume is consistent"), "{kind}: {said}");
        assert_eq!(output.status.code(), Some(1));
        // the unfinished file is removed, and not counted
        let put: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(put["files"] == 0 && put["bytes"] == 0 && put["exit"] == 1, "{put}");
        assert_eq!(prints(&["ls", text(&image), "/"]), "lost+found\n");
        made.assert_consistent(kind);
    }
}

#[test]
fn a_signal_that_is_ignored_stays_ignored() {
    if !ready() || !testkit::need(&["kill"]) {
        return;
    }
    let made = Made::new("-t ext4", 16 * M, &[]);
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "trap '' HUP; exec \"$@\"", "sh", EXTANT, "put", text(&made.image()), "-", "/all"]);
    let mut child = shell.stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // more than a pipe buffers: it has begun to read
    stdin.write_all(&vec![1; 1 << 20]).unwrap();
    stdin.write_all(&vec![1; 1 << 20]).unwrap();
    tools::must("kill", &["-HUP", &child.id().to_string()]);
    stdin.write_all(&vec![1; 1 << 20]).unwrap();
    drop(stdin);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(prints(&["ls", "-l", text(&made.image()), "/all"]).contains("3145728"));
}

#[test]
fn what_is_replaced_stays_until_the_new_file_is_whole() {
    if !ready() || !testkit::need(&["kill"]) {
        return;
    }
    let made = Made::new("-t ext4", 16 * M, &[]);
    let image = made.image();
    let image = text(&image);
    let file = made.folder.path().join("file");
    std::fs::write(&file, "old").unwrap();
    prints(&["put", image, text(&file), "/f"]);
    let stays = |names: &str| {
        assert_eq!(prints(&["cat", image, "/f"]), "old");
        assert_eq!(prints(&["ls", "-a", image, "/"]).lines().collect::<Vec<_>>().join(" "), names);
        made.assert_consistent(names);
    };
    // no space
    File::create(&file).unwrap().write_all(&vec![7; 20 << 20]).unwrap();
    fails_with_notes(&["put", "-f", image, text(&file), "/f"]);
    stays(". .. f lost+found");
    // a signal
    let mut put = command(&["put", "-f", image, "-", "/f"]);
    let mut child = put.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&vec![1; 1 << 20]).unwrap();
    tools::must("kill", &["-TERM", &child.id().to_string()]);
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(1));
    drop(stdin);
    stays(". .. f lost+found");
    // a complete file replaces anything but a directory
    std::fs::write(&file, "new").unwrap();
    let link = made.folder.path().join("link");
    std::os::unix::fs::symlink("nowhere", &link).unwrap();
    prints(&["put", "-f", image, text(&file), "/f"]);
    assert_eq!(prints(&["cat", image, "/f"]), "new");
    prints(&["put", "-f", image, text(&link), "/f"]);
    prints(&["put", "-f", image, text(&file), "/f"]);
    assert_eq!(prints(&["cat", image, "/f"]), "new");
    assert_eq!(prints(&["ls", "-a", image, "/"]).lines().collect::<Vec<_>>().join(" "), ". .. f lost+found");
    made.assert_consistent("replaced");
}

/// The end of the process at any of its writes: the name has the whole old or the whole new file, and no removed file's
/// content is found in another.
#[test]
fn a_replaced_file_survives_the_end_of_the_process() {
    if !tools::need(&["strace"]) || tools::run("strace", &["-o", "/dev/null", "true"]).exit != Some(0) {
        return;
    }
    let made = Made::new("-t ext2", 24 * M, &[]);
    let (folder, image) = (made.folder.path(), made.image());
    let write = |name: &str, text: &str, len: usize| {
        let path = folder.join(name);
        std::fs::write(&path, text.repeat(len / text.len())).unwrap();
        path
    };
    let (old, new) = (write("old", "OLD\n", 150_000), write("new", "NEW\n", 200_000));
    let removed = write("removed", "REMOVED\n", 12 << 20);
    for (file, name) in [(&old, "/file"), (&removed, "/removed")] {
        exits(0, &["put", text(&image), text(file), name]);
    }
    exits(0, &["rm", text(&image), "/removed"]);
    let before = std::fs::read(&image).unwrap();
    for count in 1.. {
        std::fs::write(&image, &before).unwrap();
        let kill = format!("inject=pwrite64,pwritev,pwritev2:signal=SIGKILL:when={count}");
        let mut strace = tools::command("strace");
        let trace = folder.join("trace");
        strace.args(["-f", "-o", text(&trace), "-e", "trace=pwrite64,pwritev,pwritev2", "-e", &kill]);
        strace.args([EXTANT, "put", "-f", text(&image), text(&new), "/file"]);
        let ended = run_with(&mut strace, b"", LIMIT).exit == Some(0);
        let check = extant(&["check", "-fy", text(&image)]);
        assert!(check.exit == Some(0) || !ended && check.exit == Some(1), "write {count}: {}", check.text());
        let out = folder.join(format!("out{count}"));
        exits(0, &["get", "-r", text(&image), "/", text(&out)]);
        let whole = std::fs::read(out.join("file")).unwrap();
        assert!(
            [&old, &new].iter().any(|file| std::fs::read(file).unwrap() == whole),
            "write {count}: {}",
            whole.len()
        );
        let found = tools::run("grep", &["-r", "-l", "REMOVED", text(&out)]);
        assert_eq!(found.exit, Some(1), "write {count}: {}", found.text());
        if ended {
            assert!(count > 5, "{count}");
            break;
        }
    }
}
