//! Commands ended by a signal or a full disk: the volume is consistent at any time.

use crate::common::{command, exits, plain, prints, ready, sample, text};
use blockdev::MemoryDevice;
use check::report::exit;
use check::{Options, Progress};
use rustix::process::{Pid, Signal, kill_process};
use simdev::Trace;
use std::fs;
use std::io::Read;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use testkit::tools::{is_root, must, run};
use testkit::{Image, cases, oracle};

/// Folders with many small files.
fn many_files() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for n in 0..20 {
        let below = folder.path().join(format!("folder {n}"));
        fs::create_dir(&below).unwrap();
        (0..40).for_each(|file| fs::write(below.join(format!("file {file}")), [7; 3000]).unwrap());
    }
    folder
}

/// Starts the program and sends SIGINT after it could run `rounds` times. The point of interruption differs from run to
/// run; the volume must always be consistent.
fn interrupted(args: &[&str], rounds: u64) -> ExitStatus {
    let mut child = command(args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    (0..rounds).for_each(|_| std::thread::sleep(std::time::Duration::from_millis(1)));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let status = child.wait().unwrap();
    // before it handles signals it has changed nothing
    assert!(status.code().is_none_or(|code| [0, 1].contains(&code)), "{args:?}: {status}");
    status
}

#[test]
fn a_cancelled_check_says_so_in_json() {
    if !ready() {
        return;
    }
    // lines so long that the pipe is full before the check ends: it waits for the reader
    let folder = sample().image.path().parent().unwrap();
    let volume = format!("{}/{}volume.img", text(folder), "./".repeat(1800));
    let (pipe, end) = rustix::pipe::pipe().unwrap();
    rustix::pipe::fcntl_setpipe_size(&pipe, 4096).unwrap();
    let mut command = command(&["check", "-fn", "--json", "-C", "2", &volume]);
    let child = command.stderr(end).stdout(Stdio::piped()).spawn().unwrap();
    // with this process's copy of the other end of the pipe
    drop(command);
    let mut pipe = fs::File::from(pipe);
    pipe.read_exact(&mut [0]).unwrap();
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    pipe.read_to_string(&mut String::new()).unwrap();
    let out = child.wait_with_output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert!(out.status.code() == Some(32) && report["exit"] == 32, "{report}");
    assert_eq!(report["error"], "the check was cancelled");
}

#[test]
fn a_signal_leaves_what_is_filled_and_emptied_consistent() {
    if !ready() {
        return;
    }
    let folder = many_files();
    let source = text(folder.path());
    let full = Image::mke2fs(&["-t", "ext4", "-b", "1024"], 16 << 20).with_folder(folder.path()).build();
    let bytes = full.bytes();
    for case in cases("stopping", 4) {
        let mut rng = case.rng();
        let made = tempfile::tempdir().unwrap();
        let path = made.path().join("volume.img");
        let status = interrupted(&["mkfs", "-t", "ext4", "-d", source, text(&path), "16M"], rng.between(0, 60));
        // a file that is not complete is removed
        assert_eq!(path.exists(), status.success(), "mkfs -d: {status}");
        assert!(!path.exists() || oracle::e2fsck(&path).clean, "mkfs -d");
        fs::write(&path, "").unwrap();
        let status = interrupted(&["mkfs", "-F", "-t", "ext4", "-d", source, text(&path), "16M"], rng.between(0, 60));
        // an existing file stays; before it is filled, it may not be a volume yet
        assert!(path.exists() && (status.code().is_none() || oracle::e2fsck(&path).clean), "mkfs -F -d: {status}");
        full.set_bytes(&bytes);
        interrupted(&["rm", "-r", text(full.path()), "/folder 1", "/folder 2", "/folder 3"], rng.between(0, 30));
        assert!(oracle::e2fsck(full.path()).clean, "rm");
        let image = Image::mke2fs(&["-t", "ext3"], 16 << 20).build();
        interrupted(&["put", "-r", text(image.path()), source, "/new"], rng.between(0, 60));
        assert!(oracle::e2fsck(image.path()).clean, "put");
    }
}

#[test]
fn a_signal_ends_a_repair_that_has_changed_nothing() {
    if !ready() {
        return;
    }
    let image = plain();
    image.debugfs(&["unlink /etc", "set_inode_field /link links_count 9"]);
    let before = image.bytes();
    let folder = image.path().parent().unwrap();
    for flag in ["-fy", "-fp"] {
        // lines so long that the pipe is full before the check ends: it waits for the reader
        let volume = format!("{}/{}volume.img", text(folder), "./".repeat(1900));
        let (pipe, end) = rustix::pipe::pipe().unwrap();
        rustix::pipe::fcntl_setpipe_size(&pipe, 4096).unwrap();
        let mut command = command(&["check", flag, "-C1", &volume]);
        let child = command.stdout(end).stderr(Stdio::piped()).spawn().unwrap();
        drop(command);
        let mut pipe = fs::File::from(pipe);
        pipe.read_exact(&mut [0]).unwrap();
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        let mut rest = String::new();
        pipe.read_to_string(&mut rest).unwrap();
        assert_eq!(child.wait_with_output().unwrap().status.code(), Some(32), "{rest}");
        assert!(image.bytes() == before, "{flag}");
    }
    exits(1, &["check", "-fy", text(image.path())]);
    assert!(oracle::e2fsck(image.path()).clean);
}

/// A file has its name only if it is complete.
#[test]
fn a_signal_removes_the_file_that_get_has_begun() {
    if !ready() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("large"), vec![7; 96 << 20]).unwrap();
    let image = Image::mke2fs(&["-t", "ext4"], 128 << 20).with_folder(folder.path()).build();
    let made = tempfile::tempdir().unwrap();
    let copy = made.path().join("copy");
    let mut any_cut = false;
    for _ in 0..20 {
        let mut get = command(&["get", "-v", text(image.path()), "/large", text(&copy)]);
        let mut child = get.stderr(Stdio::piped()).spawn().unwrap();
        while fs::metadata(&copy).map_or(0, |copy| copy.len()) == 0 && child.try_wait().unwrap().is_none() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        // fails if the process has ended
        let _ = kill_process(Pid::from_child(&child), Signal::TERM);
        let ran = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&ran.stderr);
        // a machine may be faster than the signal
        assert_eq!(ran.status.success(), copy.exists(), "{said}");
        if !ran.status.success() {
            assert!(said.contains("/large: copy stopped at byte "), "{said}");
            assert!(said.contains(": interrupted; the unfinished file was removed\n"), "{said}");
            assert!(said.contains("0 files copied, 0 bytes of data"), "{said}");
            any_cut = true;
            break;
        }
        fs::remove_file(&copy).unwrap();
    }
    assert!(any_cut, "twenty copies ended before the signal");
    // the existing file stays
    fs::write(&copy, "mine").unwrap();
    let status = interrupted(&["get", "-f", text(image.path()), "/large", text(&copy)], 10);
    assert_eq!(fs::metadata(&copy).unwrap().len(), if status.success() { 96 << 20 } else { 4 });
    assert_eq!(fs::read_dir(made.path()).unwrap().count(), 1);
}

/// A file system of 3 MiB; unmounted when dropped.
struct Small(tempfile::TempDir);

impl Small {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        must("mount", &["-t", "tmpfs", "-o", "size=3m", "none", text(folder.path())]);
        Self(folder)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        run("umount", &["-l", text(self.0.path())]);
    }
}

#[test]
fn a_full_disk_is_said_in_one_sentence() {
    if !ready() || !is_root() {
        return;
    }
    let image = plain();
    let (volume, small) = (text(image.path()), Small::new());
    let full = |name: &str| text(&small.0.path().join(name)).to_owned();
    // more than the free space
    let (big, folder) = (vec![7; 4 << 20], tempfile::tempdir().unwrap());
    fs::write(folder.path().join("big"), &big).unwrap();
    let source = Image::mke2fs(&["-t", "ext4"], 16 << 20).with_folder(folder.path()).build();
    let ran = exits(1, &["get", text(source.path()), "/big", &full("copy")]);
    assert!(ran.text().to_lowercase().contains("no space left"), "{}", ran.text());
    assert_eq!(ran.text().lines().count(), 1, "{}", ran.text());
    assert!(ran.text().contains("4 MiB of data left to copy"), "{}", ran.text());
    assert!(!small.0.path().join("copy").exists(), "a partial file remains");
    // many files: the first one without space is the last
    for n in 0..2000 {
        fs::write(folder.path().join(format!("f{n}")), [1; 5000]).unwrap();
    }
    let many = Image::mke2fs(&["-t", "ext4", "-N", "4096"], 32 << 20).with_folder(folder.path()).build();
    let ran = exits(1, &["get", "-r", text(many.path()), "/", text(small.0.path())]);
    assert!(ran.text().contains("No space left") && ran.text().contains(" free"), "{}", ran.text());
    assert_eq!(ran.text().lines().count(), 1, "{}", ran.text());
    for entry in fs::read_dir(small.0.path()).unwrap().map(Result::unwrap) {
        let metadata = entry.metadata().unwrap();
        assert!(metadata.is_dir() || metadata.len() >= 5000, "{:?} is cut", entry.file_name());
    }
    fs::write(full("rest"), &big).unwrap_err();
    let ran = exits(1, &["mkfs", "-t", "ext4", &full("volume"), "8M"]);
    assert!(ran.text().to_lowercase().contains("no space left"), "{}", ran.text());
    assert!(ran.text().ends_with("; the unfinished file was removed\n"), "{}", ran.text());
    assert_eq!(ran.text().lines().count(), 1, "{}", ran.text());
    // without the requested undo file nothing is repaired
    image.debugfs(&["set_inode_field /etc/motd links_count 7"]);
    let before = image.bytes();
    let ran = exits(8, &["check", "-fy", "-z", &full("undo"), volume]);
    assert!(ran.text().to_lowercase().contains("no space left"), "{}", ran.text());
    assert!(image.bytes() == before);
}

/// The volume has free space, but the storage beneath it is full.
#[test]
fn a_full_disk_below_a_volume_is_no_full_volume() {
    if !is_root() {
        return;
    }
    let (small, folder) = (Small::new(), tempfile::tempdir().unwrap());
    let (source, big) = (folder.path().join("source"), folder.path().join("source/big"));
    fs::create_dir(&source).unwrap();
    fs::write(&big, vec![7; 4 << 20]).unwrap();
    let volume = small.0.path().join("volume");
    let full = "the disk beneath it is full: not all of the volume could be written";
    let ran = exits(1, &["mkfs", "-d", text(&source), text(&volume), "32M"]);
    let said = ran.text();
    assert!(said.contains("/big: no space left on the disk beneath the volume; not all was copied\n"), "{said}");
    assert!(said.ends_with(&format!("volume: {full}; the unfinished file was removed\n")), "{said}");
    assert!(!volume.exists() && !said.contains("read-only") && said.lines().count() == 2, "{said}");
    exits(0, &["mkfs", "-q", text(&volume), "32M"]);
    let said = exits(1, &["put", text(&volume), text(&big), "/"]).text();
    let names = format!("extant: {}: /big: no space left on the disk beneath", text(&volume));
    assert!(said.contains(&names) && said.contains(full), "{said}");
    assert!(volume.exists() && !said.contains("was removed"), "{said}");
}

#[test]
fn a_signal_removes_the_file_that_mkfs_has_begun() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("volume");
    for _ in 0..5 {
        let mut mkfs = command(&["mkfs", "-q", "-t", "ext3", "-b", "1024", text(&image), "64G"]);
        let mut child = mkfs.stderr(Stdio::piped()).spawn().unwrap();
        while !image.exists() && child.try_wait().unwrap().is_none() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        let ran = child.wait_with_output().unwrap();
        // a machine may be faster than the signal
        assert_eq!(ran.status.success(), image.exists(), "{ran:?}");
        let _ = fs::remove_file(&image);
    }
}

/// Cancels a check after a number of reads of the device.
struct After<'a>(&'a Trace<Arc<MemoryDevice>>, u64);

impl Progress for After<'_> {
    fn cancelled(&self) -> bool {
        self.0.counters().reads.requests >= self.1
    }
}

/// At any point: unread structures are not damage.
#[test]
fn a_check_that_is_cancelled_finds_nothing_on_an_undamaged_volume() {
    let (folder, made) = (many_files(), tempfile::tempdir().unwrap());
    for format in ["ext3", "ext4", "rext3", "extant"] {
        let path = made.path().join("volume.img");
        let _ = fs::remove_file(&path);
        prints(&["mkfs", "-q", "-F", "-t", format, text(&path), "64M"]);
        prints(&["put", "-r", text(&path), text(folder.path()), "/files"]);
        if format == "extant" {
            prints(&["snapshot", "create", text(&path), "before"]);
        }
        let device = Arc::new(MemoryDevice::from_vec(fs::read(&path).unwrap()));
        for reads in 1.. {
            let trace = Trace::new(Arc::clone(&device));
            let options = Options { threads: 2, ..Options::default() };
            let report = check::check("volume", &trace, &options, &After(&trace, reads));
            let ended = trace.counters().reads.requests < reads;
            match report {
                Ok(report) => {
                    assert!(report.problems.is_empty(), "{format}, after {reads} reads: {:?}", report.problems);
                    assert_eq!(
                        report.exit,
                        if ended { exit::CLEAN } else { exit::CANCELLED },
                        "{format}, {reads} reads"
                    );
                }
                Err(refusal) => assert_eq!(refusal.exit, exit::CANCELLED, "{format}, after {reads} reads: {refusal}"),
            }
            if ended {
                break;
            }
        }
    }
}
