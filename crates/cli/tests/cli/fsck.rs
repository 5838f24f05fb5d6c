//! As a replacement of e2fsck: called by fsck(8) and as by systemd, with e2fsck.conf, on mounted volumes; and compared
//! with e2fsck, whose exit status must be equal.

use crate::common::{EXTANT, command, exits, extant, fails, plain, prints, ready, text};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;
use testkit::tools::{LIMIT, Ran, find, is_root, must, run, run_with};
use testkit::{Image, oracle};

/// A folder with links named as fsck(8) expects.
struct Links(TempDir);

impl Links {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["fsck.ext2", "fsck.ext3", "fsck.ext4"] {
            symlink(EXTANT, folder.path().join(name)).unwrap();
        }
        Self(folder)
    }

    /// Runs fsck(8), which finds Extant's checkers, or with `theirs` those of the system.
    fn fsck(&self, theirs: bool, args: &[&str]) -> Ran {
        let path = if theirs { "/usr/sbin:/sbin".to_owned() } else { text(self.0.path()).to_owned() };
        let fsck = find("fsck").unwrap();
        run_with(Command::new(fsck).args(args).env("PATH", path).stdin(Stdio::null()), b"", LIMIT)
    }

    /// Runs one of the links directly.
    fn run(&self, args: &[&str]) -> Ran {
        let link = self.0.path().join("fsck.ext4");
        run_with(Command::new(link).args(args).stdin(Stdio::null()), b"", LIMIT)
    }
}

/// Volumes in states that a checker may encounter at boot.
fn volumes() -> Vec<(&'static str, Image)> {
    let changed = |commands: &[&str]| {
        let image = plain();
        image.debugfs(commands);
        image
    };
    let cut = |len: usize| Image::from_bytes(&plain().bytes()[..len]);
    vec![
        ("clean", plain()),
        ("ext2", Image::mke2fs(&["-t", "ext2"], 8 << 20).build()),
        ("ext3", Image::mke2fs(&["-t", "ext3"], 8 << 20).build()),
        ("not unmounted", changed(&["set_super_value state 0"])),
        ("marked", changed(&["set_super_value state 3"])),
        ("damaged and not marked", changed(&["set_inode_field /etc/motd links_count 7"])),
        ("damaged", changed(&["set_inode_field /etc/motd links_count 7", "set_super_value state 0"])),
        ("a folder lost", changed(&["unlink /etc", "set_super_value state 0"])),
        ("orphan", changed(&["set_super_value last_orphan 14"])),
        ("mounts", changed(&["set_super_value mnt_count 30", "set_super_value max_mnt_count 20"])),
        ("unknown feature", changed(&["set_super_value feature_incompat 0x40000000"])),
        ("future", changed(&["set_super_value mtime 20370101000000"])),
        ("words", Image::from_bytes(&b"only words\n".repeat(100_000))),
        ("empty", Image::from_bytes(b"")),
        ("too short for a superblock", cut(1500)),
    ]
}

#[test]
fn exit_statuses_are_those_of_e2fsck() {
    if !ready() {
        return;
    }
    let links = Links::new();
    for (name, image) in volumes() {
        let before = image.bytes();
        for flags in [&["-a"][..], &["-p", "-f"], &["-n"], &["-f", "-n"], &["-y"], &["-f", "-y"], &[], &["-n", "-p"]] {
            let args: Vec<&str> = flags.iter().copied().chain([text(image.path())]).collect();
            let theirs = run_with(Command::new(find("e2fsck").unwrap()).args(&args).stdin(Stdio::null()), b"", LIMIT);
            image.set_bytes(&before);
            let ours = links.run(&args);
            image.set_bytes(&before);
            let said = (theirs.text(), ours.text());
            assert_eq!(ours.exit, theirs.exit, "{name} {flags:?}\ne2fsck: {}\nours: {}", said.0, said.1);
        }
    }
    for (args, status) in [(&["-p", "/no/such/volume"][..], 8), (&["-Q", "x"], 16), (&["-p", "/etc"], 8)] {
        assert_eq!(links.run(args).exit, Some(status), "{args:?}");
        assert_eq!(run("e2fsck", args).exit, Some(status), "{args:?}");
    }
}

#[test]
fn fsck_of_the_system_calls_us() {
    if !ready() || !testkit::need(&["fsck"]) {
        return;
    }
    let links = Links::new();
    for (name, image) in volumes() {
        let (volume, before) = (text(image.path()), image.bytes());
        for flags in [&["-a", "-T", "-l", "-M"][..], &["-n", "-T"], &["-y", "-f"], &["-p", "-V"]] {
            let args: Vec<&str> = ["-t", "ext4"].iter().chain(flags).copied().chain([volume]).collect();
            let theirs = links.fsck(true, &args);
            image.set_bytes(&before);
            let ours = links.fsck(false, &args);
            image.set_bytes(&before);
            assert_eq!(ours.exit, theirs.exit, "{name} {flags:?}\n{}\n{}", theirs.text(), ours.text());
        }
    }
    // a clean volume is not read; the output is e2fsck's, word for word
    let image = Image::mke2fs(&["-t", "ext4"], 8 << 20).build();
    let args = ["-t", "ext4", "-a", "-T", "-l", "-M", text(image.path())];
    assert_eq!(links.fsck(false, &args).stdout, links.fsck(true, &args).stdout);
}

/// The command that systemd-fsck runs, and the output that it reads: a pipe by number, with lines that it parses as `%i
/// %lu %lu %ms`.
#[test]
fn systemd_reads_the_progress() {
    if !ready() || !testkit::need(&["fsck"]) {
        return;
    }
    let links = Links::new();
    let image = plain();
    image.debugfs(&["set_super_value state 0"]);
    let (volume, path) = (text(image.path()), text(links.0.path()));
    let script =
        format!("PATH={path} {} -t ext4 -a -T -l -M -C3 {volume} 3>&1 >/dev/null", text(&find("fsck").unwrap()));
    let ran = run_with(Command::new("/bin/sh").args(["-c", &script]), b"", LIMIT);
    assert_eq!(ran.exit, Some(1), "{}", ran.text());
    let said = String::from_utf8(ran.stdout).unwrap();
    let mut last = (0, 0);
    for line in said.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [pass, current, most, device] = fields[..] else { panic!("{line}") };
        let number = |text: &str| text.parse::<u64>().unwrap();
        assert!(device == volume && number(current) <= number(most) && (1..=5).contains(&number(pass)), "{line}");
        assert!((number(pass), number(current)) > last, "{said}");
        last = (number(pass), number(current));
    }
    assert_eq!(last, (5, 1000), "{said}");
}

#[test]
fn progress_through_a_socket_and_on_request() {
    if !ready() {
        return;
    }
    let image = plain();
    let volume = text(image.path());
    // sockets cannot be opened through /proc
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let mut command = command(&["check", "-fn", "-C1", volume]);
    assert!(command.stdout(std::os::fd::OwnedFd::from(theirs)).status().unwrap().success());
    drop(command);
    let lines: Vec<String> = BufReader::new(ours).lines().map(Result::unwrap).collect();
    assert!(lines.contains(&format!("5 1000 1000 {volume}")), "{lines:?}");
    // a negative number: no output
    let said = prints(&["check", "-fn", "-C-1", volume]);
    assert!(!said.contains("1000"), "{said}");
    assert!(fails(8, &["check", "-fn", "-C-77", volume]).starts_with("extant: -C -77: "));
}

/// fsck(8) starts and stops the progress of several checkers by signals, which must not end a checker.
#[test]
fn signals_start_and_stop_the_progress() {
    if !ready() {
        return;
    }
    let image = plain();
    let folder = image.path().parent().unwrap();
    // lines so long that the pipe is full before the check ends: it waits for the reader
    let volume = format!("{}/{}{}", text(folder), "./".repeat(1900), image.path().file_name().unwrap().display());
    let (pipe, end) = rustix::pipe::pipe().unwrap();
    rustix::pipe::fcntl_setpipe_size(&pipe, 4096).unwrap();
    let mut command = command(&["check", "-fn", "-C1", &volume]);
    let child = command.stdout(end).stderr(Stdio::piped()).spawn().unwrap();
    drop(command);
    let mut lines = BufReader::new(std::fs::File::from(pipe)).lines();
    assert!(lines.next().unwrap().unwrap().starts_with("1 0 1000 "));
    kill_process(Pid::from_child(&child), Signal::USR2).unwrap();
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(0));
    // one line may have been under way
    assert!(!rest.iter().any(|line| line.starts_with("5 1000 1000 ")), "{rest:?}");
    assert!(rest.iter().any(|line| line.starts_with("Pass 5")), "{rest:?}");
}

#[test]
fn stanzas_of_e2fsck_conf_are_read() {
    if !ready() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("e2fsck.conf");
    let damaged = || {
        let image = plain();
        image.debugfs(&["set_inode_field /etc/motd links_count 7", "set_inode_field /etc/hosts links_count 9"]);
        image
    };
    let statuses = |program: &Path, first: &[&str], stanza: &str, flags: &str| {
        let image = damaged();
        std::fs::write(&config, stanza).unwrap();
        let mut command = Command::new(program);
        let command = command.args(first).args([flags, text(image.path())]).env("E2FSCK_CONFIG", &config);
        let ran = run_with(command.stdin(Stdio::null()), b"", LIMIT);
        (ran.exit, ran.text(), image.bytes())
    };
    let of_code = |lines: &str| format!("[problems]\n\t0x040003 = {{\n{lines}\n}}\n");
    for (lines, flags, status) in [
        ("", "-fp", 1),
        ("not_a_fix = true", "-fp", 0),
        ("not_a_fix = true", "-fy", 0),
        ("no_ok = true", "-fn", 0),
        ("force_no = true\n no_ok = true", "-fy", 0),
        ("force_no = true", "-fy", 4),
        ("preen_ok = false", "-fp", 4),
    ] {
        let stanza = of_code(lines);
        let (ours, said, bytes) = statuses(Path::new(EXTANT), &["check"], &stanza, flags);
        assert_eq!(ours, Some(status), "{lines} {flags}: {said}");
        let restored = damaged();
        let (link, expected) = (|image: &Image| image.debugfs(&["stat /etc/motd"]).text(), lines.contains("force_no"));
        restored.set_bytes(&bytes);
        assert_eq!(link(&restored).contains("Links: 7"), expected || status == 4 || flags == "-fn", "{lines}: {said}");
        let (theirs, said, _) = statuses(&find("e2fsck").unwrap(), &[], &stanza, flags);
        assert_eq!(theirs, Some(status), "e2fsck: {lines} {flags}: {said}");
    }
    // fewer are shown, but all are in the log
    let (log, problems) = (folder.path().join("log"), folder.path().join("problems.xml"));
    let stanza = format!(
        "[options]\nlog_dir = {}\nlog_filename = log\nproblem_log_filename = \"{}\"\n[problems]\n0x040003 = {{\nmax_count = 1\n}}\n",
        text(folder.path()),
        text(&problems)
    );
    let (_, said, _) = statuses(Path::new(EXTANT), &["check"], &stanza, "-fn");
    let both = |said: &str| said.contains("link count is 7") && said.contains("link count is 9");
    assert!(!both(&said) && said.contains("1 more of 0x040003 are not shown"), "{said}");
    assert!(both(&std::fs::read_to_string(&log).unwrap()));
    let xml = std::fs::read_to_string(&problems).unwrap();
    assert_eq!(xml.matches("<problem code=\"0x040003\" answer=\"0\" ino=\"").count(), 2, "{xml}");
    // the option limits text and JSON, and the number found is always there
    let (_, said, _) = statuses(Path::new(EXTANT), &["check", "--max-problems", "1"], "", "-fn");
    assert!(!both(&said) && said.contains("1 more 0x040003 LinkCountWrong not listed"), "{said}");
    let kind = |listed: u64| format!("\"name\":\"LinkCountWrong\",\"found\":2,\"listed\":{listed}");
    for (most, listed) in [("1", 1), ("2", 2), ("0", 2)] {
        let (_, said, _) = statuses(Path::new(EXTANT), &["check", "--json", "--max-problems", most], "", "-fn");
        let said: String = said.split_whitespace().collect();
        assert!(said.contains(&kind(listed)), "{most}: {said}");
    }
    let (status, said, _) = statuses(Path::new(EXTANT), &["check"], "[options]\nodd line\n", "-fn");
    assert_eq!((status, said.contains("line 2: a relation")), (Some(8), true), "{said}");
}

#[test]
fn extended_options() {
    if !ready() {
        return;
    }
    let image = plain();
    let volume = text(image.path());
    let problems = image.beside("problems");
    prints(&["check", "-fn", "-E", &format!("nodiscard,ea_ver=2,problem_log={}", text(&problems)), volume]);
    assert!(std::fs::read_to_string(&problems).unwrap().ends_with("</problem_log>\n"));
    assert!(exits(16, &["check", "-E", "discard", volume]).text().contains("fstrim"));
    assert!(fails(8, &["check", "-E", "journal_only", volume]).contains("use -p or -y"));
    let ran = exits(0, &["check", "-p", "-E", "journal_only", volume]);
    assert!(ran.text().contains("nothing to recover"), "{}", ran.text());
    // under another name
    let said = prints(&["check", "-fn", "-N", "system", volume]);
    assert!(said.contains("system: No errors found."), "{said}");
}

/// A mount that is unmounted when dropped.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        run("umount", &["-R".as_ref(), self.0.as_os_str()]);
    }
}

#[test]
fn mounted_volumes_are_not_written() {
    if !ready() || !is_root() {
        return;
    }
    let image = plain();
    let folder = tempfile::tempdir().unwrap();
    let before = image.bytes();
    must("mount", &["-o", "loop,ro", text(image.path()), text(folder.path())]);
    let mounted = Mounted(folder.path().to_owned());
    let table = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let line = table.lines().find(|line| line.split(' ').nth(1) == Some(text(folder.path()))).unwrap();
    let device = line.split(' ').next().unwrap();
    for flag in ["-p", "-y", "-fy"] {
        let sentence = fails(8, &["check", flag, device]);
        assert!(sentence.contains(&format!("is mounted at {}", text(folder.path()))), "{sentence}");
        assert!(fails(8, &["check", flag, text(image.path())]).contains("is mounted at"));
    }
    let ran = exits(0, &["check", "-fn", device]);
    assert!(ran.text().contains("it is mounted at") && ran.text().contains("No errors found"), "{}", ran.text());
    drop(mounted);
    assert!(image.bytes() == before);
}

#[test]
fn volumes_that_extant_has_mounted_are_not_written() {
    if !ready() || !testkit::tools::has_fuse() {
        return;
    }
    let image = plain();
    let folder = tempfile::tempdir().unwrap();
    prints(&["mount", text(image.path()), text(folder.path())]);
    for flag in ["-p", "-y", "-fy"] {
        let sentence = fails(8, &["check", flag, text(image.path())]);
        assert!(sentence.contains("is mounted at"), "{sentence}");
    }
    let ran = extant(&["check", "-fn", text(image.path())]);
    assert!(ran.text().contains("it is mounted at"), "{}", ran.text());
    // a file closed by this process stays open shortly in a program that another test starts
    while extant(&["umount", text(folder.path())]).text().contains("busy") {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(prints(&["check", "-fn", text(image.path())]).contains("No errors found"));
}

/// The root file system is mounted read-only during a check at boot: it is repaired all the same, and a reboot
/// requested.
#[test]
fn the_root_is_repaired_and_a_reboot_asked_for() {
    if !ready() || !is_root() || !testkit::need(&["unshare", "chroot"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    let names = ["usr", "lib", "lib64", "proc", "dev", "tmp", "bin"];
    std::fs::create_dir(&root).unwrap();
    names.iter().for_each(|name| std::fs::create_dir(root.join(name)).unwrap());
    std::fs::write(root.join("file"), "content").unwrap();
    std::fs::write(root.join("extant"), "").unwrap();
    let image = Image::mke2fs(&["-t", "ext4"], 8 << 20).with_folder(&root).build();
    image.debugfs(&["set_inode_field /file links_count 7"]);
    let binds: String = names
        .iter()
        .filter(|name| Path::new("/").join(name).is_dir())
        .map(|name| format!("mount --rbind /{name} {0}/{name}; ", text(&root)))
        .collect();
    // a separate mount namespace: nothing is left behind
    let script = format!(
        "set -e; device=$(losetup -f --show {image}); trap \"losetup -d $device\" EXIT; mount -o ro $device {root}; {binds} \
         mount --bind {EXTANT} {root}/extant; set +e; chroot {root} /extant check -fy $device; echo status $?; \
         chroot {root} /extant check -fn $device; echo status $?; umount -R {root} || umount -R -l {root}",
        image = text(image.path()),
        root = text(&root)
    );
    let ran = run_with(Command::new("unshare").args(["-m", "sh", "-c", &script]), b"", LIMIT);
    let said = ran.text();
    assert!(said.contains("***** REBOOT SYSTEM *****") && said.contains("status 3\n"), "{said}");
    assert!(said.contains("No errors found") && said.contains("status 0\n"), "{said}");
    assert!(oracle::e2fsck(image.path()).clean);
}

#[test]
fn json_says_no_more_than_json() {
    if !ready() {
        return;
    }
    let links = Links::new();
    let image = plain();
    image.debugfs(&["set_super_value state 0"]);
    let ran = links.run(&["-n", "--json", text(image.path())]);
    assert_eq!((ran.exit, &ran.stderr[..]), (Some(0), &b""[..]), "{}", ran.text());
    let report: Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!(report["skipped"], Value::Bool(false));
    // in the text the reason comes first
    let ran = links.run(&["-n", text(image.path())]);
    assert!(ran.text().contains("was not cleanly unmounted, check forced."), "{}", ran.text());
    assert!(String::from_utf8_lossy(&ran.stderr).starts_with("extant "), "{}", ran.text());
}

#[test]
fn usage_names_the_program_called() {
    let links = Links::new();
    let ran = links.run(&[]);
    assert!(ran.exit == Some(16) && ran.text().contains("Usage: fsck.ext4 [OPTIONS] <DEVICE>"), "{}", ran.text());
    assert!(!ran.text().contains("extant check"), "{}", ran.text());
    let said = exits(16, &["check"]).text();
    assert!(said.contains("Usage: extant check "), "{said}");
}

#[test]
fn help_of_help_has_an_example() {
    for words in [&["help", "--help"][..], &["snapshot", "help", "--help"], &["help", "-h"]] {
        let said = prints(words);
        assert!(said.contains("Examples:\n  extant "), "{words:?}: {said}");
    }
}
