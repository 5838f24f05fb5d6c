//! File systems of the kernel on a Kero layer: the layer is served as a file, a loop device turns that into a block
//! device, and the kernel creates a file system on it and runs a workload. Then the server is killed, or the device
//! beneath loses power. With the next server the kernel mounts the file system again: acknowledged fsync(2) data is
//! there, and its own checker finds no errors.

mod cuts;
mod killed;

use rustix::fs::{CWD, Mode, OFlags, openat, syncfs};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use testkit::tools::{find, has_fuse, has_loop, must, run, skip};
use testkit::{Rng, cases, need};

const EXTANT: &str = env!("CARGO_BIN_EXE_extant");
/// Time limit for an unmount, or for detaching a loop device.
const PATIENCE: Duration = Duration::from_secs(30);

/// A file system of the kernel.
struct Kind {
    name: &'static str,
    make: &'static [&'static str],
    /// The command of its checker, read-only.
    check: &'static [&'static str],
    /// Whether it orders its writes by flushes.
    flushes: bool,
}

const KINDS: [Kind; 4] = [
    Kind { name: "ext2", make: &["mke2fs", "-q", "-t", "ext2"], check: &["e2fsck", "-fn"], flushes: false },
    Kind { name: "ext4", make: &["mke2fs", "-q", "-t", "ext4"], check: &["e2fsck", "-fn"], flushes: true },
    Kind { name: "xfs", make: &["mkfs.xfs", "-q", "-f"], check: &["xfs_repair", "-n"], flushes: true },
    Kind { name: "btrfs", make: &["mkfs.btrfs", "-q", "-f"], check: &["btrfs", "check"], flushes: true },
];

/// Polls until the condition is true.
fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Ends a server left by a failed test: otherwise it would have the pipes of the test open.
impl Drop for Served {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = self.child.kill();
            let _ = run("losetup", &["-d", &self.device]);
            let _ = rustix::mount::unmount(self.folder.path(), rustix::mount::UnmountFlags::DETACH);
        }
    }
}

/// Attaches a loop device to a file; returns its path.
fn attach(file: &Path) -> String {
    must("losetup", &["--direct-io=on", "-b", "4096", "-f", "--show", file.to_str().unwrap()]).text().trim().to_owned()
}

fn detach(device: &str) {
    run("losetup", &["-d", device]);
    let name = Path::new(device).file_name().unwrap();
    let backing = Path::new("/sys/block").join(name).join("loop/backing_file");
    until("the loop device is not detached", || !backing.exists());
}

/// A served layer, and the loop device over its file.
struct Served {
    folder: tempfile::TempDir,
    child: Child,
    device: String,
}

impl Served {
    fn new(image: &Path) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(EXTANT);
        command.args(["kero", "serve"]).arg(image).arg("--file").arg(folder.path());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert!(said.contains("serving"), "{said}");
        let device = attach(&folder.path().join("disk"));
        Self { folder, child, device }
    }

    /// Kills the server.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Detaches the loop device and ends the server, if it runs.
    fn end(mut self) {
        detach(&self.device);
        if self.child.try_wait().unwrap().is_none() {
            let pid = rustix::process::Pid::from_child(&self.child);
            rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
            assert!(self.child.wait().unwrap().success());
        }
        // the mount left by a killed server
        let _ = rustix::mount::unmount(self.folder.path(), rustix::mount::UnmountFlags::DETACH);
    }
}

/// The content of the file `number` of `owner`.
fn content(owner: u64, number: u64) -> Vec<u8> {
    let mut rng = Rng::new(owner << 32 | number);
    let len = rng.magnitude(300_000) as usize;
    rng.bytes(len)
}

fn sync_folder(folder: &Path) -> std::io::Result<()> {
    Ok(rustix::fs::fsync(openat(CWD, folder, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?)?)
}

/// Creates, renames, truncates and removes files in a separate folder until `stop` is set or something fails; calls
/// `synced` for each file after fsync(2) of it and of its folder has returned.
fn work(owner: u64, folder: &Path, mut rng: Rng, stop: &AtomicBool, synced: &(dyn Fn(u64, u64) + Sync)) {
    let step = |number: u64, rng: &mut Rng| -> std::io::Result<()> {
        let other = folder.join(format!("other{}", rng.below(40)));
        match rng.below(6) {
            0 => fs::rename(&other, folder.join(format!("other{}", rng.below(40)))),
            1 => fs::remove_file(&other),
            2 => File::options().write(true).open(&other)?.set_len(rng.below(400_000)),
            3 | 4 => fs::write(&other, content(owner, rng.below(1000))),
            _ => {
                let path = folder.join(format!("synced{number}"));
                let mut file = File::create(&path)?;
                file.write_all(&content(owner, number))?;
                file.sync_all()?;
                sync_folder(folder)?;
                synced(owner, number);
                Ok(())
            }
        }
    };
    for number in 0.. {
        match step(number, &mut rng) {
            _ if stop.load(Ordering::Relaxed) => return,
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return,
            _ => {}
        }
    }
}

fn mount(kind: &Kind, device: &str, folder: &Path) {
    must("mount", &["-t", kind.name, device, folder.to_str().unwrap()]);
}

fn unmount(folder: &Path) {
    until("it cannot be unmounted", || run("umount", &[folder]).exit == Some(0));
}

fn check(kind: &Kind, device: &str, when: &str) {
    let (tool, args) = kind.check.split_first().unwrap();
    let ran = run(tool, &[args, &[device]].concat());
    assert_eq!(ran.exit, Some(0), "{} {when}: {}", kind.name, ran.text());
}

/// Creates a file system on a new layer; returns the image beneath.
fn made(kind: &Kind, folder: &Path) -> PathBuf {
    let image = folder.join(format!("{}.img", kind.name));
    File::create(&image).unwrap().set_len(400 << 20).unwrap();
    must(EXTANT, &["kero", "format", "--empty", "--log", "16M", image.to_str().unwrap()]);
    let served = Served::new(&image);
    let (tool, args) = kind.make.split_first().unwrap();
    must(tool, &[args, &[&served.device]].concat());
    served.end();
    image
}

/// Serializes the tests: a detached loop device may be reused by another test.
static ONE: Mutex<()> = Mutex::new(());

/// Whether the required tools are available; else reports a skip.
fn can_run() -> bool {
    has_fuse() && has_loop() && need(&["mke2fs", "e2fsck", "losetup", "mount", "umount"])
}

/// Whether the tools of a file system are installed; else reports a skip.
fn is_installed(kind: &Kind) -> bool {
    let missing = [kind.make[0], kind.check[0]].into_iter().find(|tool| find(tool).is_none());
    if let Some(tool) = missing {
        skip(&format!("{tool} is not installed"));
    }
    missing.is_none()
}

/// Checks that every synced file is there, with its content.
fn verify(kind: &Kind, at: &Path, synced: impl Iterator<Item = (u64, u64)>, when: &str) {
    for (owner, number) in synced {
        let path = at.join(format!("folder{owner}/synced{number}"));
        let said = format!("{} {when}: {}", kind.name, path.display());
        let found = fs::read(&path).unwrap_or_else(|e| panic!("{said}: {e}"));
        assert!(found == content(owner, number), "{said}: other content");
    }
}
