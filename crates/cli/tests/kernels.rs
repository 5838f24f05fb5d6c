//! File systems of the kernel on a Kero layer: `extant kero serve --file` serves the device, a loop device makes a block
//! device of its file, the kernel makes a file system there and works on it, and the server is killed in the middle. On
//! the next server the kernel mounts it again: what fsync(2) answered is there, and its own checker finds nothing.
//!
//! ext2 has neither journal nor flushes in its order: for it only what was there at a sync(2) on a quiet volume counts.

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
/// The time limit for an unmount, or for a loop device to be detached.
const PATIENCE: Duration = Duration::from_secs(30);

/// A file system of the kernel.
struct Kind {
    name: &'static str,
    make: &'static [&'static str],
    /// Its checker, which changes nothing.
    check: &'static [&'static str],
    /// It orders its writes by flushes.
    flushes: bool,
}

const KINDS: [Kind; 4] = [
    Kind { name: "ext2", make: &["mke2fs", "-q", "-t", "ext2"], check: &["e2fsck", "-fn"], flushes: false },
    Kind { name: "ext4", make: &["mke2fs", "-q", "-t", "ext4"], check: &["e2fsck", "-fn"], flushes: true },
    Kind { name: "xfs", make: &["mkfs.xfs", "-q", "-f"], check: &["xfs_repair", "-n"], flushes: true },
    Kind { name: "btrfs", make: &["mkfs.btrfs", "-q", "-f"], check: &["btrfs", "check"], flushes: true },
];

/// Repeats until the answer is yes.
fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
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
        let file = folder.path().join("disk");
        let words = ["--direct-io=on", "-b", "4096", "-f", "--show", file.to_str().unwrap()];
        let device = must("losetup", &words).text().trim().to_owned();
        Self { folder, child, device }
    }

    /// Kills the server.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Detaches the loop device and ends the server, where it runs.
    fn end(mut self) {
        let name = Path::new(&self.device).file_name().unwrap().to_owned();
        run("losetup", &["-d", &self.device]);
        let backing = Path::new("/sys/block").join(name).join("loop/backing_file");
        until("the loop device stays", || !backing.exists());
        if self.child.try_wait().unwrap().is_none() {
            let pid = rustix::process::Pid::from_child(&self.child);
            rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
            assert!(self.child.wait().unwrap().success());
        }
        // what a killed server left
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

/// Makes, renames, truncates and removes files in a folder of its own until `stop` is set or something fails; `synced`
/// takes in the files of which fsync(2), of them and of their folder, has returned.
fn work(owner: u64, folder: &Path, mut rng: Rng, stop: &AtomicBool, synced: &Mutex<Vec<(u64, u64)>>) {
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
                synced.lock().unwrap().push((owner, number));
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

/// Makes a file system on a new layer; the image beneath.
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

#[test]
fn file_systems_of_the_kernel_survive_a_killed_server() {
    if !has_fuse() || !has_loop() || !need(&["mke2fs", "e2fsck", "losetup", "mount", "umount"]) {
        return;
    }
    for kind in &KINDS {
        if [kind.make[0], kind.check[0]].iter().any(|tool| find(tool).is_none()) {
            skip(&format!("{} is not installed", kind.make[0]));
            continue;
        }
        let files = tempfile::tempdir().unwrap();
        let image = made(kind, files.path());
        let at = files.path().join("mnt");
        fs::create_dir(&at).unwrap();
        let mut durable: Vec<(u64, u64)> = Vec::new();
        for (round, case) in cases(&format!("a killed server under {}", kind.name), 1).enumerate() {
            let mut rng = case.rng();
            let mut served = Served::new(&image);
            mount(kind, &served.device, &at);
            let (stop, synced) = (AtomicBool::new(false), Mutex::new(Vec::new()));
            std::thread::scope(|scope| {
                for n in 0..3 {
                    let owner = round as u64 * 10 + n;
                    let folder = at.join(format!("folder{owner}"));
                    fs::create_dir(&folder).unwrap();
                    sync_folder(&at).unwrap();
                    let (rng, stop, synced) = (Rng::new(rng.next_u64()), &stop, &synced);
                    scope.spawn(move || work(owner, &folder, rng, stop, synced));
                }
                std::thread::sleep(Duration::from_millis(rng.between(500, 3000)));
                if !kind.flushes {
                    stop.store(true, Ordering::Relaxed);
                } else {
                    served.kill();
                }
            });
            if !kind.flushes {
                syncfs(File::open(&at).unwrap()).unwrap();
                served.kill();
            }
            durable.extend(synced.into_inner().unwrap());
            assert!(!durable.is_empty(), "EXTANT_SEED={:#x}: nothing was synced", case.seed);
            unmount(&at);
            served.end();
            // the kernel replays its log, and finds what it heard is durable
            let served = Served::new(&image);
            mount(kind, &served.device, &at);
            for (owner, number) in &durable {
                let path = at.join(format!("folder{owner}/synced{number}"));
                let found = fs::read(&path).unwrap_or_else(|e| panic!("{} {}: {e}", kind.name, path.display()));
                let said = format!("{} EXTANT_SEED={:#x} {}", kind.name, case.seed, path.display());
                assert!(found == content(*owner, *number), "{said}: other content");
            }
            unmount(&at);
            check(kind, &served.device, &format!("EXTANT_SEED={:#x}", case.seed));
            served.end();
        }
        println!("{}: {} synced files", kind.name, durable.len());
        // and as a plain device
        must(EXTANT, &["kero", "drain", image.to_str().unwrap()]);
        check(kind, image.to_str().unwrap(), "drained");
    }
}
