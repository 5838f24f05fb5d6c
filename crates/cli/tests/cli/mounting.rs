//! Tests of `extant mount` and `extant umount`.

use crate::common::{command, exits, extant, fails, paths, plain, prints, ready, sample, text};
use std::fs::read_to_string;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};
use testkit::tools::{LIMIT, run_with};
use testkit::{Field, damage, oracle, tools, walk};

/// A folder used as a mount point; unmounted when dropped.
pub(crate) struct Folder(tempfile::TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn text(&self) -> &str {
        text(self.path())
    }

    /// Runs `extant umount`, which must succeed without output. A file closed by this process stays open shortly in a
    /// program that another test starts, between its fork and its exec.
    pub(crate) fn unmount(&self) {
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            let ran = extant(&["umount", self.text()]);
            if ran.exit == Some(0) {
                assert_eq!(ran.text(), "");
                return;
            }
            assert!(ran.text().contains("busy") && Instant::now() < end, "{}", ran.text());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The line of this mount in the list of mounts.
    pub(crate) fn line(&self) -> Option<String> {
        let mounts = read_to_string("/proc/self/mounts").unwrap();
        mounts.lines().find(|line| line.split(' ').nth(1) == Some(self.text())).map(str::to_owned)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.line().is_some() {
            tools::run("umount", &["-l".as_ref(), self.path().as_os_str()]);
        }
    }
}

pub(crate) fn can_mount() -> bool {
    ready() && tools::has_fuse()
}

#[test]
fn mounted_in_the_background_and_unmounted() {
    if !can_mount() {
        return;
    }
    let sample = sample();
    let folder = Folder::new();
    assert_eq!(prints(&["mount", "-o", "ro", sample.path(), folder.text()]), "");
    // after the return everything is there at once
    let walked = walk(folder.path()).unwrap().without("lost+found").forget(&[Field::Blocks, Field::DirectorySize]);
    sample.tree.model().assert_same(&walked);
    assert_eq!(walked.0.len(), paths(sample).len() + 1);
    let line = folder.line().unwrap();
    assert!(line.starts_with(&format!("{} ", sample.path())) && line.contains(" fuse.extant ro,"), "{line}");

    let open = std::fs::File::open(folder.path()).unwrap();
    let sentence = fails(1, &["umount", folder.text()]);
    assert!(sentence.contains("cannot unmount") && sentence.contains("busy"), "{sentence}");
    drop(open);
    folder.unmount();
    assert_eq!(folder.line(), None);
    let sentence = fails(1, &["umount", folder.text()]);
    assert!(sentence.ends_with("nothing is mounted there"), "{sentence}");
}

#[test]
fn the_process_behind_has_ended_when_umount_returns() {
    if !can_mount() {
        return;
    }
    let image = plain();
    let folder = Folder::new();
    for _ in 0..5 {
        prints(&["mount", "-o", "ro", text(image.path()), folder.text()]);
        let process = format!("/proc/{}/stat", server(&folder).0);
        assert!(read_to_string(&process).unwrap().contains("(extant)"));
        folder.unmount();
        // gone, or a zombie not yet reaped by its parent
        let after = read_to_string(&process).unwrap_or_default();
        assert!(after.is_empty() || after.contains(") Z "), "{after}");
    }
}

#[test]
fn a_volume_that_is_mounted_twice_is_unmounted_twice() {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        return;
    }
    let (image, folder, other) = (plain(), Folder::new(), Folder::new());
    prints(&["mount", "-o", "ro", text(image.path()), folder.text()]);
    let process = format!("/proc/{}/stat", server(&folder).0);
    let bound = std::process::Command::new("mount").args(["--bind", folder.text(), other.text()]).status().unwrap();
    assert!(bound.success());
    let start = Instant::now();
    let sentence = fails(1, &["umount", folder.text()]);
    assert!(sentence.contains("as well") && sentence.contains(other.text()), "{sentence}");
    assert!(start.elapsed() < Duration::from_secs(20), "it waited for a process that does not end");
    assert!(folder.line().is_none() && other.line().is_some());
    other.unmount();
    let after = read_to_string(&process).unwrap_or_default();
    assert!(after.is_empty() || after.contains(") Z "), "{after}");
}

#[test]
fn mounted_in_the_foreground_until_a_signal() {
    if !can_mount() {
        return;
    }
    let image = plain();
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        for busy in [false, true] {
            let folder = Folder::new();
            let mut child = command(&["mount", "-f", "-o", "ro", text(image.path()), folder.text()]).spawn().unwrap();
            let end = Instant::now() + Duration::from_secs(20);
            while folder.line().is_none() && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(2));
            }
            let hosts = folder.path().join("etc/hosts");
            assert_eq!(read_to_string(&hosts).unwrap(), "127.0.0.1 localhost\n");
            let open = busy.then(|| std::fs::File::open(&hosts).unwrap());
            rustix::process::kill_process(rustix::process::Pid::from_child(&child), signal).unwrap();
            assert_eq!(child.wait().unwrap().code(), Some(0));
            assert_eq!(folder.line(), None);
            drop(open);
        }
    }
}

#[test]
fn written_unmounted_and_found_again() {
    if !can_mount() {
        return;
    }
    let image = plain();
    let folder = Folder::new();
    let new = folder.path().join("etc/new");
    for round in ["first", "second"] {
        assert_eq!(prints(&["mount", text(image.path()), folder.text()]), "");
        let line = folder.line().unwrap();
        assert!(line.contains(" fuse.extant rw,") || line.contains(" fuseblk.extant rw,"), "{line}");
        std::fs::write(&new, round).unwrap();
        // no other process may open it meanwhile, not even for reading
        let second = Folder::new();
        for options in ["rw", "ro"] {
            fails(1, &["mount", "-o", options, text(image.path()), second.text()]);
        }
        folder.unmount();
        assert!(oracle::e2fsck(image.path()).clean);
        assert_eq!(prints(&["cat", text(image.path()), "/etc/new"]), round);
    }
    // the modes available on ext4 volumes
    for mode in ["consistency=none", "consistency=dirty-bit", "data=journal", "data=writeback,commit=1,relatime"] {
        prints(&["mount", "-o", mode, text(image.path()), folder.text()]);
        std::fs::write(&new, mode).unwrap();
        folder.unmount();
        let verdict = oracle::e2fsck(image.path());
        assert!(verdict.clean, "{mode}: {verdict:?}");
        assert_eq!(prints(&["cat", text(image.path()), "/etc/new"]), mode);
    }
}

#[test]
fn a_signal_while_a_file_is_being_written_loses_nothing_that_was_written() {
    if !can_mount() {
        return;
    }
    use std::io::Write;
    let image = plain();
    let folder = Folder::new();
    let mut child = command(&["mount", "-f", text(image.path()), folder.text()]).spawn().unwrap();
    while folder.line().is_none() {
        assert!(child.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut open = std::fs::File::create(folder.path().join("open")).unwrap();
    open.write_all(&[b'x'; 50_000]).unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(open.write_all(b"more").and_then(|()| open.sync_all()).is_err());
    assert!(oracle::e2fsck(image.path()).clean);
    assert_eq!(prints(&["cat", text(image.path()), "/open"]), "x".repeat(50_000));
}

/// The volume may be in use through another path although its own is unmounted.
#[test]
fn a_signal_finds_the_mount_and_nothing_else() {
    use rustix::process::{Signal, kill_process};
    if !can_mount() || !rustix::process::geteuid().is_root() || !testkit::need(&["python3", "mount", "umount"]) {
        return;
    }
    let run = |program: &str, args: &[&str]| {
        let ran = std::process::Command::new(program).args(args).output().unwrap();
        assert!(ran.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&ran.stderr));
    };
    let wait = |ended: &std::os::fd::OwnedFd, seconds| {
        let mut fds = [rustix::event::PollFd::new(ended, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&rustix::event::Timespec { tv_sec: seconds, tv_nsec: 0 })).unwrap() == 1
    };
    for options in ["rw", "nofuseblk"] {
        // a bind mount has a mapped file, the mount itself has none
        let (image, folder, bound) = (plain(), Folder::new(), Folder::new());
        prints(&["mount", "-o", options, text(image.path()), folder.text()]);
        run("mount", &["--bind", folder.text(), bound.text()]);
        let mut python = std::process::Command::new("python3");
        python.args(["-c", STORE, text(&bound.path().join("open")), "map"]);
        let mut child = python.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let (pid, ended) = server(&folder);
        kill_process(pid, Signal::TERM).unwrap();
        assert!(wait(&ended, 60), "{options}");
        assert_eq!(exits(0, &["cat", text(image.path()), "/open"]).stdout, vec![b'x'; 500_000], "{options}");
        drop(child.stdin.take());
        child.wait().unwrap();
        run("umount", &["-l", bound.text()]);

        // a mount above it stays
        let native = tempfile::NamedTempFile::new().unwrap();
        prints(&["mkfs", "-t", "extant", text(native.path()), "32M"]);
        prints(&["mount", "-o", options, text(native.path()), folder.text()]);
        let (pid, ended) = server(&folder);
        run("mount", &["-t", "tmpfs", "over", folder.text()]);
        std::fs::write(folder.path().join("mine"), "mine").unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        assert!(!wait(&ended, 3), "{options}");
        assert_eq!(std::fs::read(folder.path().join("mine")).unwrap(), b"mine", "{options}");
        run("umount", &[folder.text()]);
        // and the mount works as before
        exits(0, &["txn", folder.text(), "--", "true"]);
        kill_process(pid, Signal::TERM).unwrap();
        assert!(wait(&ended, 60), "{options}");

        // an older mount is moved above it, and then it is moved above a newer one
        let base = Folder::new();
        run("mount", &["-t", "tmpfs", "base", base.text()]);
        run("mount", &["--make-private", base.text()]);
        let [older, ours, newer] = ["older", "ours", "newer"].map(|name| base.path().join(name));
        [&older, &ours, &newer].into_iter().for_each(|dir| std::fs::create_dir(dir).unwrap());
        run("mount", &["-t", "tmpfs", "older", text(&older)]);
        std::fs::write(older.join("mine"), "mine").unwrap();
        prints(&["mount", "-o", options, text(image.path()), text(&ours)]);
        let (pid, ended) = server_on(&ours);
        run("mount", &["--move", text(&older), text(&ours)]);
        fails(1, &["umount", text(&ours)]);
        kill_process(pid, Signal::TERM).unwrap();
        assert!(!wait(&ended, 3), "{options}");
        assert_eq!(std::fs::read(ours.join("mine")).unwrap(), b"mine", "{options}");
        run("umount", &[text(&ours)]);
        run("mount", &["-t", "tmpfs", "newer", text(&newer)]);
        run("mount", &["--move", text(&ours), text(&newer)]);
        kill_process(pid, Signal::TERM).unwrap();
        assert!(wait(&ended, 60), "{options}");
        run("umount", &[text(&newer)]);
        run("umount", &[base.text()]);

        // a parent folder was renamed
        let above = tempfile::tempdir().unwrap();
        let (old, new) = (above.path().join("old"), above.path().join("new"));
        std::fs::create_dir_all(old.join("mnt")).unwrap();
        prints(&["mount", "-o", options, text(image.path()), text(&old.join("mnt"))]);
        std::fs::rename(&old, &new).unwrap();
        let (pid, ended) = server_on(&new.join("mnt"));
        kill_process(pid, Signal::TERM).unwrap();
        assert!(wait(&ended, 60), "{options}");
        assert_eq!(std::fs::read_dir(new.join("mnt")).unwrap().count(), 0, "{options}");
        assert!(oracle::e2fsck(image.path()).clean);
    }
}

/// The server of the mount on a folder, as a pidfd.
fn server(folder: &Folder) -> (rustix::process::Pid, std::os::fd::OwnedFd) {
    server_on(folder.path())
}

fn server_on(folder: &Path) -> (rustix::process::Pid, std::os::fd::OwnedFd) {
    let mut pid = [0; 16];
    let length = rustix::fs::getxattr(folder, "extant.daemon", &mut pid[..]).unwrap();
    let pid =
        std::str::from_utf8(&pid[..length]).unwrap().parse().ok().and_then(rustix::process::Pid::from_raw).unwrap();
    (pid, rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap())
}

/// Stores through a mapping or by write(2), reports that, and leaves the file open until its standard input ends.
const STORE: &str = "import mmap, os, sys
f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT); n = 500000
if sys.argv[2] == 'map':
    os.ftruncate(f, n); m = mmap.mmap(f, n); m[:] = b'x' * n
else:
    os.write(f, b'x' * n)
print('stored', flush=True); sys.stdin.readline(); os._exit(0)
";

#[test]
fn a_signal_loses_nothing_that_the_kernel_has_of_open_files() {
    use rustix::process::{Signal, kill_process};
    if !can_mount() || !testkit::need(&["python3", "sync"]) {
        return;
    }
    let native = tempfile::NamedTempFile::new().unwrap();
    prints(&["mkfs", "-t", "extant", text(native.path()), "32M"]);
    let (image, folder) = (plain(), Folder::new());
    let ways = [("rw", "map"), ("writeback_cache", "map"), ("writeback_cache", "write")];
    let cases = [image.path(), native.path()].into_iter().flat_map(|volume| ways.map(|way| (volume, way)));
    // a shell that starts the tests in the background, or nohup, ignores some signals
    let status = read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    let ignored = u64::from_str_radix(ignored.trim(), 16).unwrap();
    let heard = |signal: &Signal| ignored >> (signal.as_raw() - 1) & 1 == 0;
    let signals: Vec<Signal> = [Signal::TERM, Signal::INT, Signal::HUP].into_iter().filter(heard).collect();
    for (round, (volume, (options, way))) in cases.enumerate() {
        let signal = signals[round % signals.len()];
        for more in ["", ",nofuseblk", ",nofuseblk,transport=device", ",auto_unmount"] {
            let case = format!("{}, {options}{more}, {way}, {signal:?}", volume.display());
            prints(&["mount", "-o", &format!("{options}{more}"), text(volume), folder.text()]);
            let mut python = std::process::Command::new("python3");
            python.args(["-c", STORE, text(&folder.path().join("open")), way]);
            let mut child = python.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
            let mut line = String::new();
            BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
            assert_eq!(line, "stored\n", "{case}");
            let (pid, ended) = server(&folder);
            // a repeated signal changes nothing
            (0..2).for_each(|_| kill_process(pid, signal).unwrap());
            let mut fds = [rustix::event::PollFd::new(&ended, rustix::event::PollFlags::IN)];
            let most = rustix::event::Timespec { tv_sec: 60, tv_nsec: 0 };
            assert_eq!(rustix::event::poll(&mut fds, Some(&most)), Ok(1), "{case}: it has not ended");
            assert_eq!(folder.line(), None, "{case}");
            let there = exits(0, &["cat", text(volume), "/open"]).stdout;
            let lost = 500_000 - there.iter().filter(|byte| **byte == b'x').count();
            assert!(lost == 0 && there.len() == 500_000, "{case}: {lost} bytes are lost");
            drop(child.stdin.take());
            child.wait().unwrap();
            prints(&["rm", text(volume), "/open"]);
        }
    }
    assert!(oracle::e2fsck(image.path()).clean);
}

/// Stores into holes of files through mappings when the volume is full.
const STORES_WHEN_FULL: &str = "import mmap, os, sys
os.chdir(sys.argv[1]); n = 1 << 20; maps = []
for name in sys.argv[2:]:
    f = os.open(name, os.O_RDWR | os.O_CREAT); os.ftruncate(f, n); os.fsync(f)
    maps.append(mmap.mmap(f, n)); os.close(f)
fill = os.open('fill', os.O_WRONLY | os.O_CREAT)
for size in (65536, 512):
    try:
        while True: os.write(fill, b'f' * size)
    except OSError: pass
os.close(fill)
for m in maps: m[:] = b'M' * n; m.close()
";

/// The programs that stored it have had no error.
#[test]
fn stored_data_without_space_is_reported_at_the_end() {
    if !can_mount() || !tools::is_root() || !testkit::need(&["python3"]) {
        return;
    }
    for format in ["ext4", "extant"] {
        let (volume, folder) = (tempfile::NamedTempFile::new().unwrap(), Folder::new());
        let store = |names: &[&str]| {
            prints(&["mkfs", "-q", "-F", "-t", format, text(volume.path()), "32M"]);
            prints(&["mount", text(volume.path()), folder.text()]);
            let mut python = std::process::Command::new("python3");
            let ran = python.args(["-c", STORES_WHEN_FULL, folder.text()]).args(names).output().unwrap();
            assert!(ran.status.success() && ran.stderr.is_empty(), "{format}: {ran:?}");
        };
        let check = || exits(0, &["check", "-fn", text(volume.path())]);
        store(&["db"]);
        let open = std::fs::File::open(folder.path()).unwrap();
        assert!(fails(1, &["umount", folder.text()]).contains("busy"), "{format}");
        drop(open);
        // not used up by the attempt
        let sentence = fails(1, &["umount", folder.text()]);
        let expected = "unmounted, but not all that was written reached the device: /db: No space left on device";
        assert!(sentence.ends_with(expected), "{format}: {sentence}");
        assert_eq!(folder.line(), None, "{format}");
        check();

        store(&["a", "b", "c", "d", "e"]);
        // nothing is missing of a file that was removed
        std::fs::remove_file(folder.path().join("a")).unwrap();
        let sentence = fails(1, &["mount", "-o", "remount,ro", text(volume.path()), folder.text()]);
        assert!(sentence.contains("is read-only now, but not all"), "{format}: {sentence}");
        let named = |name: &&str| sentence.contains(&format!("/{name}: No space left on device"));
        assert_eq!(["a", "b", "c", "d", "e"].iter().filter(|name| named(name)).count(), 3, "{format}: {sentence}");
        assert!(!named(&"a") && sentence.ends_with(" (and 1 other file)"), "{format}: {sentence}");
        // reported once
        prints(&["mount", "-o", "remount,ro", text(volume.path()), folder.text()]);
        folder.unmount();
        check();
    }
}

#[test]
fn remounted_read_only_and_back() {
    if !can_mount() || !tools::is_root() {
        return;
    }
    let image = plain();
    let folder = Folder::new();
    let file = folder.path().join("f");
    let remount = |options| extant(&["mount", "-o", options, text(image.path()), folder.text()]);
    prints(&["mount", text(image.path()), folder.text()]);
    assert_eq!(remount("remount,ro").exit, Some(0));
    assert_eq!(std::fs::write(&file, "x").unwrap_err().kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    assert_eq!(remount("remount,rw").exit, Some(0));
    std::fs::write(&file, "x").unwrap();
    folder.unmount();
    // written data is durable, also where the kernel does not request that
    for (options, content) in [("rw", "y"), ("nofuseblk", "z")] {
        prints(&["mount", "-o", options, text(image.path()), folder.text()]);
        std::fs::write(&file, content).unwrap();
        assert_eq!(remount("remount,ro").exit, Some(0), "{options}");
        let (pid, ended) = server(&folder);
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        let mut fds = [rustix::event::PollFd::new(&ended, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut fds, None).unwrap();
        tools::run("umount", &["-l".as_ref(), folder.path().as_os_str()]);
        // a message reports that a journal was replayed
        assert_eq!(extant(&["mount", text(image.path()), folder.text()]).exit, Some(0), "{options}");
        assert_eq!(read_to_string(&file).unwrap(), content, "{options}");
        folder.unmount();
    }
    prints(&["mount", "-o", "ro", text(image.path()), folder.text()]);
    let ran = remount("remount,rw");
    assert_eq!(ran.exit, Some(1));
    assert!(String::from_utf8_lossy(&ran.stderr).contains("it was mounted read-only"), "{}", ran.text());
    folder.unmount();
}

/// A volume mounted by the kernel for writing is shown with a warning; one mounted read-only, without.
#[test]
fn a_volume_that_the_kernel_has_mounted() {
    if !can_mount() || !tools::is_root() || !tools::has_loop() {
        return;
    }
    let image = plain();
    let volume = text(image.path());
    let folder = Folder::new();
    let mounted = oracle::kernel_mount(image.path(), "").expect("mount");
    for options in [["-o", "ro"], ["-o", "rw"], ["-o", "relatime"]] {
        let sentence = fails(1, &["mount", options[0], options[1], volume, folder.text()]);
        assert!(sentence.contains("locked by another process"), "{sentence}");
        assert_eq!(folder.line(), None);
    }
    for command in [&["ls", volume][..], &["tree", volume], &["stat", volume, "/etc"], &["info", volume]] {
        let ran = exits(0, command);
        let notes = String::from_utf8_lossy(&ran.stderr);
        assert!(notes.contains("it is mounted for writing at ") && notes.lines().count() == 1, "{command:?}: {notes}");
    }
    assert!(extant(&["check", "-fn", volume]).text().contains("it is mounted at "));
    mounted.unmount();
    let mounted = oracle::kernel_mount(image.path(), "ro,noload").expect("mount");
    prints(&["ls", volume]);
    prints(&["mount", "-o", "ro", volume, folder.text()]);
    folder.unmount();
    mounted.unmount();
}

/// A loop device over a volume in use cannot be used to mount it, and vice versa.
#[test]
fn a_volume_has_one_writer_also_through_loop_devices() {
    if !can_mount() || !tools::is_root() || !tools::has_loop() {
        return;
    }
    let (image, first, second) = (plain(), Folder::new(), Folder::new());
    let made = tools::must("losetup", &["--find", "--show", text(image.path())]);
    let device = String::from_utf8_lossy(&made.stdout).trim().to_owned();
    for (here, there) in [(text(image.path()), &*device), (&*device, text(image.path()))] {
        prints(&["mount", here, first.text()]);
        for options in ["rw", "ro", "relatime"] {
            let sentence = fails(1, &["mount", "-o", options, there, second.text()]);
            assert!(sentence.contains("locked by another process"), "{sentence}");
        }
        let place = format!("it is mounted at {}: unmount it first", first.text());
        for command in [&["rm", there, "/etc/hosts"][..], &["put", there, "/dev/null", "/x"], &["mkfs", "-F", there]] {
            let sentence = fails(1, command);
            assert!(sentence.contains("locked by another process") && sentence.contains(&place), "{sentence}");
        }
        assert!(fails(8, &["check", "-fy", there]).contains("is mounted at"));
        // the kernel takes no lock, so the loop device is claimed
        let kernel = tools::run("mount", &["-t", "ext4", &device, second.text()]);
        assert_ne!(kernel.exit, Some(0), "the kernel mounted what {here} is mounted from: {}", kernel.text());
        assert_eq!(second.line(), None);
        std::fs::write(first.path().join("more"), here).unwrap();
        first.unmount();
        assert!(prints(&["check", "-fn", there]).contains("No errors found"));
    }
    tools::must("losetup", &["--detach", &device]);
}

#[test]
fn a_volume_that_cannot_be_written_is_mounted_read_only_with_the_reason() {
    if !can_mount() {
        return;
    }
    let image = plain();
    // EXT2_ERROR_FS
    image.debugfs(&["set_super_value state 2"]);
    let folder = Folder::new();
    let sentence = fails(1, &["mount", "-o", "rw", text(image.path()), folder.text()]);
    assert!(sentence.contains("errors; it needs a check first: run `extant check -fy`"), "{sentence}");
    let ran = exits(0, &["mount", text(image.path()), folder.text()]);
    assert!(String::from_utf8_lossy(&ran.stderr).contains("; mounted read-only"), "{}", ran.text());
    assert!(folder.line().unwrap().contains(" fuse.extant ro,"));
    assert_eq!(read_to_string(folder.path().join("etc/hosts")).unwrap(), "127.0.0.1 localhost\n");
    folder.unmount();
}

#[test]
fn what_cannot_be_mounted_is_said_by_the_first_process() {
    if !ready() {
        return;
    }
    let image = plain();
    let folder = Folder::new();
    let volume = text(image.path());
    for (args, says) in [
        (&["-o", "ro", "/no/such/volume", folder.text()][..], "cannot open /no/such/volume: "),
        (&["-o", "ro", "/dev/null", folder.text()], "/dev/null"),
        (&["-o", "ro", volume, "/no/such/folder"], "cannot mount on /no/such/folder: No such file or directory"),
        (&["-o", "ro", volume, "/dev/null"], "cannot mount on /dev/null: Not a directory"),
        (
            &["-o", "rw,consistency=some", volume, folder.text()],
            "invalid consistency=some: use none, dirty-bit, linked, journal or snapshot",
        ),
        (&["-o", "rw", "/no/such/volume", folder.text()], "cannot open /no/such/volume: "),
        (&["-o", "remount,ro", volume, folder.text()], "nothing is mounted there"),
        (&["-o", "ro,frobnicate", volume, folder.text()], "unknown mount option `frobnicate`"),
        (&["-o", "rw,snapshot=monday", volume, folder.text()], "contradict each other"),
        (&["-o", "noload", volume, folder.text()], "`noload` needs a read-only mount: "),
        (&["-o", "norecovery", volume, folder.text()], "`norecovery` needs a read-only mount"),
        (&["-o", "ro,sb=2", volume, folder.text()], volume),
    ] {
        for foreground in [&[][..], &["-f"]] {
            let line = [&["mount"], foreground, args].concat();
            let nothing =
                ["invalid", "unknown", "contradict", "needs a read-only mount"].iter().any(|word| says.contains(word));
            let sentence = fails(if nothing { 2 } else { 1 }, &line);
            assert!(sentence.contains(says), "{line:?}: {sentence}");
        }
    }
    assert_eq!(folder.line(), None);
    exits(2, &["mount", "-o", "ro", volume]);
}

#[test]
fn a_copy_of_the_superblock_and_the_journal_left_aside() {
    if !can_mount() {
        return;
    }
    let image = testkit::Image::mke2fs(&["-t", "ext4", "-b", "1024"], 24 << 20).build();
    image.debugfs(&["mkdir seen"]);
    let mut bytes = image.bytes();
    bytes[1024..2048].fill(0);
    image.set_bytes(&bytes);
    let folder = Folder::new();
    let sentence = fails(1, &["mount", "-o", "ro", text(image.path()), folder.text()]);
    assert!(sentence.contains("superblock"), "{sentence}");
    let ran = exits(0, &["mount", "-o", "ro,sb=8193,noload", text(image.path()), folder.text()]);
    assert!(ran.text().contains("copy of the superblock in block 8193"), "{}", ran.text());
    assert!(folder.path().join("seen").is_dir());
    folder.unmount();
}

#[test]
fn mount_as_a_helper_of_mount() {
    if !can_mount() {
        return;
    }
    let image = plain();
    let (folder, names) = (Folder::new(), tempfile::tempdir().unwrap());
    let helper = names.path().join("mount.extant");
    std::os::unix::fs::symlink(crate::common::EXTANT, &helper).unwrap();
    let args = [text(image.path()), folder.text(), "-s", "-o", "ro,nodev"];
    let ran = run_with(std::process::Command::new(&helper).args(args), b"", LIMIT);
    assert_eq!((ran.exit, ran.text().as_str()), (Some(0), ""));
    assert!(folder.line().unwrap().contains("nodev"));
    folder.unmount();
    // mount(8) adds rw by itself, and its exit status for an unknown option is the same
    image.debugfs(&["set_super_value state 2"]);
    let args = [text(image.path()), folder.text(), "-o", "rw"];
    let ran = run_with(std::process::Command::new(&helper).args(args), b"", LIMIT);
    assert!(ran.exit == Some(0) && ran.text().contains("; mounted read-only"), "{}", ran.text());
    assert!(folder.line().unwrap().contains(" ro,"));
    folder.unmount();
    let args = [text(image.path()), folder.text(), "-o", "rw,frobnicate"];
    let ran = run_with(std::process::Command::new(&helper).args(args), b"", LIMIT);
    assert_eq!(ran.exit, Some(32), "{}", ran.text());
}

#[test]
fn problems_are_reported_in_the_foreground() {
    if !can_mount() {
        return;
    }
    let image = plain();
    image.debugfs(&["set_inode_field /etc/motd block[0] 0"]);
    assert!(!oracle::e2fsck(image.path()).clean);
    let folder = Folder::new();
    let mut child = command(&["mount", "-f", "-o", "ro", text(image.path()), folder.text()])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    while folder.line().is_none() {
        assert!(child.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(2));
    }
    for _ in 0..3 {
        assert!(std::fs::read(folder.path().join("etc/motd")).is_err());
    }
    assert_eq!(std::fs::read(folder.path().join("etc/hosts")).unwrap(), b"127.0.0.1 localhost\n");
    assert_eq!(extant(&["umount", folder.text()]).exit, Some(0));
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let said: Vec<_> = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap).collect();
    assert!(said.len() == 1 && said[0].starts_with("extant: inode "), "{said:?}");
}

/// A name that a user chose for a mount is not a file of that name in the folder of another process.
#[test]
fn what_needs_a_native_volume_names_it() {
    if !can_mount() {
        return;
    }
    let (image, folder) = (plain(), Folder::new());
    prints(&["mount", text(image.path()), folder.text()]);
    let sentence = fails(8, &["check", "--online", folder.text()]);
    assert!(sentence.ends_with("unmount it and run `extant check -fn`"), "{sentence}");
    assert!(sentence.contains("a volume of type ext4"), "{sentence}");
    for (exit, words) in [(1, &["snapshot", "list", folder.text()][..]), (125, &["txn", folder.text(), "--", "true"])] {
        let sentence = fails(exit, words);
        assert!(sentence.contains("native volume (`extant mkfs -t extant`)"), "{sentence}");
    }
    // those that write name the mount point
    let path = text(image.path());
    let convert = ["convert", "--to", "spacemap", path];
    for words in [&["undo", "/nonexistent", path][..], &convert, &["damage", path, "LinkCountWrong"]] {
        let sentence = fails(1, words);
        let says = format!("it is mounted at {}: unmount it first", folder.text());
        assert!(sentence.contains("locked by another process") && sentence.ends_with(&says), "{sentence}");
    }
    folder.unmount();
    assert!(fails(8, &["check", "--online", "/nonexistent"]).ends_with("no such file or directory"));
}

#[test]
fn a_name_in_the_list_of_mounts_is_no_file_in_the_folder_of_the_caller() {
    if !can_mount() {
        return;
    }
    let (place, other, folder) = (tempfile::tempdir().unwrap(), plain(), Folder::new());
    let image = place.path().join("native.img");
    prints(&["mkfs", "-t", "extant", text(&image), "32M"]);
    let name = other.path().file_name().unwrap().to_str().unwrap();
    let here = |args: &[&str]| run_with(command(args).current_dir(other.path().parent().unwrap()), b"", LIMIT);
    prints(&["mount", "-o", &format!("nofuseblk,fsname={name}"), text(&image), folder.text()]);
    assert!(folder.line().unwrap().starts_with(&format!("{name} ")), "{:?}", folder.line());
    let ran = here(&["check", "-fp", name]);
    assert!(ran.exit == Some(0) && !ran.text().contains("mounted"), "{}", ran.text());
    // the mounted file is locked, under any name
    let sentence = fails(8, &["check", "-fp", text(&image)]);
    assert!(sentence.contains("locked"), "{sentence}");
    let ran = here(&["check", "--online", folder.text()]);
    assert!(ran.exit == Some(8) && ran.text().contains("does not name its device"), "{}", ran.text());
    // readers warn, since it may change
    for words in [&["check", "-fn"][..], &["check"], &["info"], &["ls"], &["snapshot", "list"]] {
        let said = extant(&[words, &[text(&image)]].concat()).text();
        assert!(said.contains("it is in use: another process has it locked"), "{words:?}: {said}");
    }
    let sentence = fails(8, &["check", "--online", text(&image)]);
    assert!(sentence.contains("mounted under another name (option fsname)"), "{sentence}");
    folder.unmount();
    // without a chosen name it is the absolute path
    let mut mount = command(&["mount", "-o", "nofuseblk", "native.img", folder.text()]);
    assert_eq!(run_with(mount.current_dir(place.path()), b"", LIMIT).text(), "");
    assert!(folder.line().unwrap().starts_with(&format!("{} ", text(&image))), "{:?}", folder.line());
    exits(0, &["check", "--online", folder.text()]);
    folder.unmount();
}

#[test]
fn random_bytes_are_not_mounted() {
    if !ready() {
        return;
    }
    let image = plain();
    let folder = Folder::new();
    for case in testkit::cases("no volume", 10) {
        let mut rng = case.rng();
        let mut bytes = image.bytes();
        damage::Damager::within(1024, std::iter::once(1024..2048)).noise_block(&mut bytes, &mut rng);
        image.set_bytes(&bytes);
        fails(1, &["mount", "-o", "ro", text(image.path()), folder.text()]);
    }
}
