//! `extant txn` on a mounted volume: atomic, also with regard to the kernel's caches.

use crate::common::{exits, extant, prints, ready, text};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use testkit::tools;

/// Polling interval.
pub(crate) const LOOK: Duration = Duration::from_millis(20);

/// A mounted native volume with a folder of files; unmounted when dropped.
pub(crate) struct MountedVolume {
    pub(crate) folder: tempfile::TempDir,
}

impl MountedVolume {
    pub(crate) fn new(options: &str) -> Self {
        let place = Self { folder: tempfile::tempdir().unwrap() };
        fs::create_dir(place.mnt()).unwrap();
        let image = place.folder.path().join("volume");
        prints(&["mkfs", "-t", "extant", text(&image), "64M"]);
        prints(&["mount", "-o", options, text(&image), text(&place.mnt())]);
        fs::create_dir(place.mnt().join("d")).unwrap();
        for n in 0..1000 {
            fs::write(place.mnt().join(format!("d/f{n}")), format!("old {n}")).unwrap();
        }
        place
    }

    pub(crate) fn mnt(&self) -> PathBuf {
        self.folder.path().join("mnt")
    }

    /// The process that serves the mount.
    pub(crate) fn server(&self) -> Pid {
        let image = self.folder.path().join("volume");
        let serves = |pid: &i32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split(|byte| *byte == 0).any(|word| word == text(&image).as_bytes())
        };
        let numbers =
            fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
        numbers.filter(serves).find_map(Pid::from_raw).unwrap()
    }

    /// Names, with the results of stat(2) and read(2).
    fn seen(&self) -> BTreeMap<PathBuf, (u64, u64, i64, Vec<u8>)> {
        fn add(dir: &Path, all: &mut BTreeMap<PathBuf, (u64, u64, i64, Vec<u8>)>) {
            for entry in fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                let stat = fs::symlink_metadata(&path).unwrap();
                let content = if stat.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
                let size = if stat.is_file() { stat.size() } else { 0 };
                all.insert(path.clone(), (stat.ino(), size, stat.mtime_nsec(), content));
                if stat.is_dir() {
                    add(&path, all);
                }
            }
        }
        let mut all = BTreeMap::new();
        add(&self.mnt().join("d"), &mut all);
        all
    }

    /// Runs a shell script in the folder, in a transaction.
    pub(crate) fn run(&self, options: &[&str], script: &str) -> std::process::Output {
        self.command(options, script).output().unwrap()
    }

    pub(crate) fn command(&self, options: &[&str], script: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_extant"));
        command.arg("txn").args(options).arg(self.mnt()).args(["--", "sh", "-c", script]);
        command.current_dir(self.mnt().join("d")).stdin(Stdio::null());
        command
    }

    /// Unmounts and checks the volume.
    pub(crate) fn end(self) {
        self.unmount();
    }

    /// Unmounts and checks the volume; the folder exists as long as this value.
    pub(crate) fn unmount(&self) {
        for _ in 0..500 {
            if extant(&["umount", text(&self.mnt())]).exit == Some(0) {
                exits(0, &["check", "-fn", text(&self.folder.path().join("volume"))]);
                return;
            }
            std::thread::sleep(LOOK);
        }
        panic!("it remains busy");
    }
}

fn wait_for_its_end(process: Pid) {
    let stat = format!("/proc/{process}/stat");
    // a zombie has ended
    while fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z")) {
        std::thread::sleep(LOOK);
    }
}

impl Drop for MountedVolume {
    fn drop(&mut self) {
        tools::run("umount", &["-l".as_ref(), self.mnt().as_os_str()]);
    }
}

const REPLACE: &str = "n=0; while [ $n -lt 1000 ]; do echo new > t; mv t f$n; n=$((n + 1)); done";

#[test]
fn a_command_replaces_a_thousand_files_or_none() {
    if !ready() || !tools::has_fuse() {
        return;
    }
    for options in ["transport=best", "transport=device,data=cow"] {
        let place = MountedVolume::new(options);
        let before = place.seen();
        let failing = format!("{REPLACE}; rm f1 f2; mkdir x; echo y > x/y; echo more >> f3; ln f4 g; exit 7");
        let ran = place.run(&[], &failing);
        assert_eq!(ran.status.code(), Some(7), "{ran:?}");
        assert!(before == place.seen(), "{options}: the rollback is incomplete");
        // the folder can be used, without interference by undone names
        fs::create_dir(place.mnt().join("d/x")).unwrap();
        fs::remove_dir(place.mnt().join("d/x")).unwrap();
        fs::write(place.mnt().join("d/f1"), "again").unwrap();
        // an option in scripts written when this was not the default
        let ran = place.run(&["--rollback-on-failure"], REPLACE);
        assert_eq!(ran.status.code(), Some(0), "{ran:?}");
        let after = place.seen();
        assert!(after.len() == 1000 && after.values().all(|(.., content)| content == b"new\n"));
        assert_eq!(place.run(&["--commit-on-failure"], "rm f0; exit 3").status.code(), Some(3));
        assert_eq!(place.seen().len(), 999);
        place.end();
    }
}

#[test]
fn it_is_rolled_back_when_its_process_is_killed() {
    if !ready() || !tools::has_fuse() {
        return;
    }
    let place = MountedVolume::new("transport=best");
    let before = place.seen();
    let ready = place.folder.path().join("ready");
    let script = format!("echo new > f1; rm f2; touch {}; exec sleep 600", ready.display());
    let mut child = place.command(&[], &script).spawn().unwrap();
    while !ready.exists() {
        std::thread::sleep(LOOK);
    }
    assert_eq!(fs::read(place.mnt().join("d/f1")).unwrap(), b"new\n");
    let sleeping = fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id())).unwrap();
    // the volume is busy
    assert_ne!(extant(&["umount", text(&place.mnt())]).exit, Some(0));
    child.kill().unwrap();
    child.wait().unwrap();
    // a process that changes something waits for the transaction
    fs::write(place.mnt().join("other"), "not lost").unwrap();
    while before != place.seen() {
        std::thread::sleep(LOOK);
    }
    sleeping.split_whitespace().for_each(|process| drop(tools::run("kill", &[process])));
    assert_eq!(fs::read(place.mnt().join("other")).unwrap(), b"not lost");
    place.end();
}

#[test]
fn many_others_wait_and_none_prevents_its_end() {
    if !ready() || !tools::has_fuse() {
        return;
    }
    for options in ["transport=best", "transport=device"] {
        let place = MountedVolume::new(options);
        for n in 0..40 {
            fs::create_dir(place.mnt().join(format!("o{n}"))).unwrap();
        }
        let (ready, go) = (place.folder.path().join("ready"), place.folder.path().join("go"));
        let wait = format!("touch {}; while [ ! -e {} ]; do sleep 0.02; done", ready.display(), go.display());
        let mut child = place.command(&["--timeout", "3600"], &format!("{wait}; {REPLACE}")).spawn().unwrap();
        while !ready.exists() {
            std::thread::sleep(LOOK);
        }
        // more than there are ring entries, each in a separate folder, concurrently with the member's requests
        let server = place.server();
        kill_process(server, Signal::STOP).unwrap();
        let others: Vec<_> = (0..40)
            .map(|n| {
                let path = place.mnt().join(format!("o{n}/file"));
                std::thread::spawn(move || fs::write(path, "theirs"))
            })
            .collect();
        std::thread::sleep(Duration::from_millis(200));
        fs::write(&go, "").unwrap();
        std::thread::sleep(Duration::from_millis(200));
        kill_process(server, Signal::CONT).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0));
        others.into_iter().for_each(|other| other.join().unwrap().unwrap());
        for n in 0..40 {
            assert_eq!(fs::read(place.mnt().join(format!("o{n}/file"))).unwrap(), b"theirs");
        }
        assert!(place.seen().values().all(|(.., content)| content == b"new\n"));
        place.end();
    }
}

/// The waiting process has locked the directory in the kernel, where the member needs it.
#[test]
fn who_makes_a_name_in_the_same_folder_waits() {
    if !ready() || !tools::has_fuse() {
        return;
    }
    let place = MountedVolume::new("transport=best");
    let (ready, go) = (place.folder.path().join("ready"), place.folder.path().join("go"));
    let wait = format!("touch {}; while [ ! -e {} ]; do sleep 0.02; done", ready.display(), go.display());
    let script = format!("{wait}; for n in 1 2 3 4 5; do echo mine > mine$n; sleep 0.1; done");
    let mut child = place.command(&["--timeout", "3600"], &script).spawn().unwrap();
    while !ready.exists() {
        std::thread::sleep(LOOK);
    }
    // they queue for the directory
    let others: Vec<_> = (0..60)
        .map(|n| {
            let path = place.mnt().join(format!("d/theirs{n}"));
            std::thread::spawn(move || if n == 0 { fs::create_dir(path) } else { fs::write(path, "theirs") })
        })
        .collect();
    fs::write(&go, "").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    others.into_iter().for_each(|other| other.join().unwrap().unwrap());
    assert_eq!(fs::read(place.mnt().join("d/theirs1")).unwrap(), b"theirs");
    assert_eq!(fs::read(place.mnt().join("d/mine5")).unwrap(), b"mine\n");
    place.end();
}

/// A transaction that runs until it is released, and is then rolled back.
struct Undone {
    child: std::process::Child,
    go: PathBuf,
}

impl Undone {
    fn begin(place: &MountedVolume, script: &str) -> Self {
        let (ready, go) = (place.folder.path().join("ready"), place.folder.path().join("go"));
        drop((fs::remove_file(&ready), fs::remove_file(&go)));
        let wait = format!("touch {}; while [ ! -e {} ]; do sleep 0.02; done", ready.display(), go.display());
        let script = format!("{script}; {wait}; exit 1");
        let child = place.command(&["--rollback-on-failure", "--timeout", "3600"], &script).spawn().unwrap();
        while !ready.exists() {
            std::thread::sleep(LOOK);
        }
        Self { child, go }
    }

    fn end(mut self) {
        fs::write(&self.go, "").unwrap();
        assert_eq!(self.child.wait().unwrap().code(), Some(1));
    }
}

fn is_stale(outcome: std::io::Result<()>) -> bool {
    outcome.is_err_and(|e| e.raw_os_error() == Some(rustix::io::Errno::STALE.raw_os_error()))
}

/// A process continues to use files that the transaction created.
#[test]
fn files_that_never_were_do_not_become_others() {
    if !ready() || !tools::has_fuse() {
        return;
    }
    for options in ["transport=best", "transport=device"] {
        let place = MountedVolume::new(options);
        let make = "n=0; while [ $n -lt 20 ]; do : > made$n; chmod 666 made$n; n=$((n + 1)); done";
        (0..10).for_each(|n| fs::create_dir(place.mnt().join(format!("o{n}"))).unwrap());
        let undone = Undone::begin(&place, make);
        let open = |n| fs::File::options().write(true).open(place.mnt().join(format!("d/made{n}"))).unwrap();
        let files: Vec<fs::File> = (0..20).map(open).collect();
        // some send requests while it runs, and wait; so do others that create files
        let waiting: Vec<_> = files[..5]
            .iter()
            .map(|file| {
                let file = file.try_clone().unwrap();
                std::thread::spawn(move || file.write_all_at(b"for a file that never was", 0))
            })
            .collect();
        let makers: Vec<_> = (0..10)
            .map(|n| {
                let path = place.mnt().join(format!("o{n}/new"));
                std::thread::spawn(move || fs::write(path, "new"))
            })
            .collect();
        std::thread::sleep(Duration::from_millis(200));
        undone.end();
        for writer in waiting {
            assert!(is_stale(writer.join().unwrap()), "{options}: it was written somewhere");
        }
        makers.into_iter().for_each(|maker| maker.join().unwrap().unwrap());
        for n in 0..50 {
            let path = place.mnt().join(format!("d/later{n}"));
            fs::write(&path, "new").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            let file = &files[n % 20];
            assert!(is_stale(file.set_permissions(fs::Permissions::from_mode(0o666))), "{options}: {n}");
            assert!(is_stale(file.write_all_at(b"for a file that never was", 0)), "{options}: {n}");
        }
        let of = |path: PathBuf| (fs::read(&path).unwrap(), fs::metadata(&path).unwrap().mode() & 0o7777);
        for n in 0..50 {
            assert_eq!(of(place.mnt().join(format!("d/later{n}"))), (b"new".to_vec(), 0o600), "{options}");
        }
        for n in 0..10 {
            assert_eq!(of(place.mnt().join(format!("o{n}/new"))).0, b"new", "{options}");
        }
        drop(files);
        place.end();
    }
}

/// A descendant of the transaction's process that outlived it and has no parent in the transaction any more.
#[test]
fn what_outlives_a_transaction_that_was_killed_changes_nothing() {
    if !ready() || !tools::has_fuse() {
        return;
    }
    for signal in [Signal::KILL, Signal::TERM] {
        let place = MountedVolume::new("transport=best");
        let before = place.seen();
        let file = |name: &str| place.folder.path().join(name);
        let late = format!(
            "trap '' TERM; while [ ! -e {} ]; do sleep 0.02; done; echo late > late; echo $? > {}",
            file("go").display(),
            file("said").display()
        );
        let script = format!("echo new > f1; ( ( {late} ) & ); touch {}; cd /; exec sleep 20", file("ready").display());
        let mut child = place.command(&["--timeout", "3600"], &script).spawn().unwrap();
        while !file("ready").exists() {
            std::thread::sleep(LOOK);
        }
        kill_process(Pid::from_child(&child), signal).unwrap();
        let ran = child.wait().unwrap();
        assert!(!ran.success());
        while before != place.seen() {
            std::thread::sleep(LOOK);
        }
        fs::write(file("go"), "").unwrap();
        while fs::read(file("said")).is_ok_and(|said| said.is_empty()) || !file("said").exists() {
            std::thread::sleep(LOOK);
        }
        assert_ne!(fs::read(file("said")).unwrap(), b"0\n", "{signal:?}");
        assert!(before == place.seen(), "{signal:?}: something is left");
        place.end();
    }
}

/// After a rollback the target of a name and the owner of a file may differ from those at the time of the request.
#[test]
fn who_waits_does_not_act_on_what_a_rollback_brings_back() {
    if !ready() || !tools::has_fuse() || !tools::is_root() || !testkit::need(&["setpriv"]) {
        return;
    }
    let place = MountedVolume::new("allow_other");
    fs::set_permissions(place.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let sticky = place.mnt().join("d");
    fs::set_permissions(&sticky, fs::Permissions::from_mode(0o1777)).unwrap();
    let undone = Undone::begin(&place, "rm f1; : > f1; chown 4321 f1 f2");
    // in the transaction both belong to this user
    let user = |script: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=4321", "--regid=4321", "--clear-groups", "sh", "-c", script]).current_dir(&sticky);
        command.stderr(Stdio::null()).spawn().unwrap()
    };
    let mut removes = user("exec rm f1");
    let mut changes = user("exec chmod 666 f2");
    std::thread::sleep(Duration::from_millis(300));
    undone.end();
    assert!(!removes.wait().unwrap().success() && !changes.wait().unwrap().success());
    assert_eq!(fs::read(sticky.join("f1")).unwrap(), b"old 1");
    assert_eq!(fs::metadata(sticky.join("f2")).unwrap().mode() & 0o777, 0o644);
    place.end();
}

/// The kernel unmounts mounts below a name that it drops.
#[test]
fn what_is_mounted_inside_stays_mounted_after_a_rollback() {
    if !ready() || !tools::has_fuse() || !tools::is_root() {
        return;
    }
    let place = MountedVolume::new("transport=best");
    let (outside, inside) = (place.folder.path().join("outside"), place.mnt().join("d/inside"));
    fs::create_dir(&outside).unwrap();
    fs::create_dir(&inside).unwrap();
    fs::write(outside.join("there"), "").unwrap();
    tools::must("mount", &["--bind".as_ref(), outside.as_os_str(), inside.as_os_str()]);
    let ran = place.run(&[], "mkdir inside; mkdir -p inside; touch inside; echo new > new; rm f1; chmod 700 .; exit 1");
    let there = inside.join("there").exists();
    tools::run("umount", &[inside.as_os_str()]);
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    assert!(there, "it is not mounted any more");
    assert!(!place.mnt().join("d/new").exists() && place.mnt().join("d/f1").exists());
    place.end();
}

/// The kernel computes the offset from its cached file size, which a rollback reverts.
#[test]
fn who_appends_does_so_at_the_end_after_a_rollback() {
    if !ready() || !tools::has_fuse() {
        return;
    }
    let long = "n=0; while [ $n -lt 500 ]; do echo a line of the transaction >> log; n=$((n + 1)); done";
    for options in ["transport=best", "transport=device"] {
        let place = MountedVolume::new(options);
        for (script, waits) in [(long, true), (long, false), ("echo new > log", true), ("echo new > log", false)] {
            let path = place.mnt().join("d/log");
            let mut expected = b"an old line\n".repeat(700);
            fs::write(&path, &expected).unwrap();
            let mut log = fs::File::options().append(true).read(true).open(&path).unwrap();
            let undone = Undone::begin(&place, script);
            let line = b"[of the other program]\n".repeat(if waits { 1 } else { 100_000 });
            expected.extend_from_slice(&line);
            if waits {
                let mut log = log.try_clone().unwrap();
                let writer = std::thread::spawn(move || log.write_all(&line));
                std::thread::sleep(Duration::from_millis(200));
                undone.end();
                writer.join().unwrap().unwrap();
            } else {
                undone.end();
                log.write_all(&line).unwrap();
            }
            assert!(fs::read(&path).unwrap() == expected, "{options}, {script}, {waits}");
            assert_eq!(log.metadata().unwrap().len(), expected.len() as u64);
            log.write_all(b"more\n").unwrap();
            expected.extend_from_slice(b"more\n");
            log.sync_all().unwrap();
            let mut piece = [0; 100];
            let end = expected.len();
            log.read_exact_at(&mut piece, (end - 100) as u64).unwrap();
            assert!(piece[..] == expected[end - 100..], "{options}, {script}, {waits}");
            assert!(fs::read(&path).unwrap() == expected, "{options}, {script}, {waits}");
        }
        place.end();
    }
}

#[test]
fn what_a_command_leaves_behind_is_waited_for() {
    if !ready() || !tools::has_fuse() {
        return;
    }
    let place = MountedVolume::new("transport=best");
    let left = "( ( sleep 0.5; echo late > late ) & ); echo new > f1";
    assert_eq!(place.run(&[], left).status.code(), Some(0));
    assert_eq!(fs::read(place.mnt().join("d/late")).unwrap(), b"late\n");
    let ran = place.run(&["--timeout", "1"], "( ( cd /; sleep 20 ) & ); echo newer > f1");
    assert_eq!(ran.status.code(), Some(125), "{ran:?}");
    assert_eq!(fs::read(place.mnt().join("d/f1")).unwrap(), b"new\n");
    let inside = format!("{0} txn . -- true", env!("CARGO_BIN_EXE_extant"));
    let ran = place.run(&["--timeout", "3600"], &inside);
    assert_eq!(ran.status.code(), Some(125));
    assert!(String::from_utf8_lossy(&ran.stderr).contains("in a transaction on the volume already"), "{ran:?}");
    place.end();
}

#[test]
fn unmounting_by_force_rolls_back() {
    if !ready() || !tools::has_fuse() {
        return;
    }
    for lazily in [true, false] {
        let place = MountedVolume::new("transport=best");
        let before = place.seen();
        let (ready, go) = (place.folder.path().join("ready"), place.folder.path().join("go"));
        let wait = format!("touch {}; while [ ! -e {} ]; do sleep 0.02; done", ready.display(), go.display());
        let script = format!("rm f1; {wait}; echo more > f2; exit 0");
        let mut command = place.command(&["--timeout", "3600"], &script);
        let child = command.stderr(Stdio::piped()).spawn().unwrap();
        while !ready.exists() {
            std::thread::sleep(LOOK);
        }
        let server = place.server();
        if lazily {
            tools::must("umount", &["-l".as_ref(), place.mnt().as_os_str()]);
        } else {
            kill_process(server, Signal::TERM).unwrap();
            wait_for_its_end(server);
        }
        fs::write(&go, "").unwrap();
        let ran = child.wait_with_output().unwrap();
        assert_eq!(ran.status.code(), Some(125), "{ran:?}");
        assert!(String::from_utf8_lossy(&ran.stderr).contains("unmounted; all changes were rolled back"), "{ran:?}");
        wait_for_its_end(server);
        prints(&["mount", text(&place.folder.path().join("volume")), text(&place.mnt())]);
        assert!(before == place.seen(), "the rollback is incomplete");
        place.end();
    }
}

/// All pages of the kernel are part of the transaction, so nothing waits for their writeback.
#[test]
fn a_signal_to_the_server_leaves_no_page_of_a_member() {
    const STORE: &str = "import mmap, os, sys\n\
        f = os.open(sys.argv[1], os.O_RDWR); n = 1 << 20; os.ftruncate(f, n); m = mmap.mmap(f, n)\n\
        m[:] = b'M' * n\n\
        if len(sys.argv) > 2: os.fsync(f)\n\
        m[:] = b'm' * n; open(os.environ['SAID'], 'w'); sys.stdin.readline(); os._exit(0)\n";
    if !ready() || !tools::has_fuse() || !testkit::need(&["python3", "sync"]) {
        return;
    }
    for synced in ["", " synced"] {
        let place = MountedVolume::new("transport=best");
        let before = place.seen();
        let (store, said) = (place.folder.path().join("store.py"), place.folder.path().join("said"));
        fs::write(&store, STORE).unwrap();
        let script = format!("exec python3 {} f1{synced}", store.display());
        let mut command = place.command(&["--timeout", "3600"], &script);
        let mut child = command.env("SAID", &said).stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        while !said.exists() {
            assert!(child.try_wait().unwrap().is_none());
            std::thread::sleep(LOOK);
        }
        let (server, began) = (place.server(), Instant::now());
        kill_process(server, Signal::TERM).unwrap();
        wait_for_its_end(server);
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        drop(child.stdin.take());
        child.wait().unwrap();
        prints(&["mount", text(&place.folder.path().join("volume")), text(&place.mnt())]);
        assert!(before == place.seen(), "{synced}: the rollback is incomplete");
        place.end();
    }
}

#[test]
fn what_goes_wrong_is_one_sentence() {
    if !ready() || !tools::has_fuse() {
        return;
    }
    let place = MountedVolume::new("transport=best");
    let said = |ran: &std::process::Output| String::from_utf8_lossy(&ran.stderr).into_owned();
    let before = place.seen();
    let ran = place.run(&["--timeout", "1"], "trap '' TERM; rm f1; sleep 3");
    assert_eq!(ran.status.code(), Some(125));
    assert!(said(&ran).contains("it exceeded its time limit of 1 s"), "{}", said(&ran));
    let ran = place.run(&["--timeout", "0"], "rm f1");
    assert_eq!(ran.status.code(), Some(2));
    assert!(said(&ran).contains("0 is not in 1..="), "{}", said(&ran));
    assert!(before == place.seen());
    let none = Command::new(env!("CARGO_BIN_EXE_extant")).arg("txn").arg(place.mnt()).args(["--", "/no/such"]).output();
    assert_eq!(none.unwrap().status.code(), Some(127));
    let elsewhere = extant(&["txn", "/", "--", "true"]);
    assert_eq!(elsewhere.exit, Some(125));
    assert!(elsewhere.text().contains("transactions need a mounted native volume"), "{}", elsewhere.text());
    assert_eq!(place.run(&[], "kill -9 $$").status.code(), Some(137));
    place.end();
}

/// The watchdog process of a server, if there is one.
fn watchdog(of: Pid) -> Option<Pid> {
    let is_it = |pid: &i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.contains("(fuse-watchdog)") && stat.contains(&format!(") S {of} "))
    };
    let numbers = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    numbers.filter(is_it).find_map(Pid::from_raw)
}

#[test]
fn the_server_has_a_watchdog_from_when_it_may_hang() {
    if !ready() || !tools::has_fuse() {
        return;
    }
    for killed in [false, true] {
        let place = MountedVolume::new("transport=best");
        let server = place.server();
        assert_eq!(watchdog(server), None);
        assert_eq!(place.run(&[], "echo new > f1; exit 7").status.code(), Some(7));
        let mut started = None;
        for _ in 0..500 {
            started = watchdog(server);
            if started.is_some() {
                break;
            }
            std::thread::sleep(LOOK);
        }
        let started = started.expect("a rollback has the kernel forget what it changed");
        if killed {
            kill_process(server, Signal::KILL).unwrap();
            wait_for_its_end(server);
        } else {
            place.end();
        }
        wait_for_its_end(started);
    }
}

#[test]
fn a_watchdog_ends_the_connection_of_a_server_that_answers_no_more() {
    if !ready() || !tools::has_fuse() || !tools::is_root() {
        return;
    }
    let place = MountedVolume::new("transport=best");
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = mounts.lines().find(|line| line.contains(text(&place.mnt()))).unwrap();
    let (major, minor) = line.split(' ').nth(2).unwrap().split_once(':').unwrap();
    let number = major.parse::<u32>().unwrap() << 20 | minor.parse::<u32>().unwrap();
    // a number that is not a process
    exits(1, &["watchdog", "1", "4000000000"]);
    fs::write(place.mnt().join("x"), "y").unwrap();
    // a server that is not its parent has ended
    let _open = fs::File::open(place.mnt()).unwrap();
    exits(0, &["watchdog", "1", &number.to_string()]);
    assert!(fs::metadata(place.mnt().join("d/f1")).is_err());
}
