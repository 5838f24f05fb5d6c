//! Block devices, on a loop device: needs root and a kernel with loop devices, and reports if it has to skip tests.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use extant_blockdev::{BlockDevice, Error, FileDevice, OpenOptions};
use tempfile::{NamedTempFile, TempDir};
use testkit::device::{DIRECT, WRITE, conforms, content, open, parts_of_sectors_from_many_threads};

const LEN: u64 = 4 << 20;

/// Runs a program; returns its output, or the reason of its failure.
fn run(program: &str, args: &[&str]) -> Result<String, String> {
    let said = Command::new(program).args(args).output().map_err(|e| format!("{program}: {e}"))?;
    if said.status.success() {
        Ok(String::from_utf8_lossy(&said.stdout).trim().to_owned())
    } else {
        Err(format!("{program}: {}", String::from_utf8_lossy(&said.stderr).trim()))
    }
}

/// A loop device over a file of its own, detached when dropped.
struct Loop {
    device: PathBuf,
    file: NamedTempFile,
}

/// A loop device over an existing file or device, detached when dropped.
struct Over(PathBuf);

impl Over {
    fn new(below: &Path, more: &[&str]) -> Self {
        let args: Vec<_> = ["--find", "--show"].iter().chain(more).copied().chain([text(below)]).collect();
        Self(run("losetup", &args).expect("another loop device").into())
    }
}

impl Drop for Over {
    fn drop(&mut self) {
        if let Err(why) = run("losetup", &["--detach", text(&self.0)]) {
            eprintln!("{why}");
        }
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

impl Loop {
    fn new(sector: &str) -> Option<Self> {
        let skip = |why: &str| {
            eprintln!("skipped: no loop device to test with: {why}");
            None
        };
        if !rustix::process::geteuid().is_root() {
            return skip("not root");
        }
        if !Path::new("/dev/loop-control").exists() {
            return skip("no /dev/loop-control");
        }
        let file = NamedTempFile::new().unwrap();
        file.as_file().set_len(LEN).unwrap();
        match run("losetup", &["--find", "--show", "--sector-size", sector, file.path().to_str().unwrap()]) {
            Ok(device) => Some(Self { device: device.into(), file }),
            Err(why) => skip(&why),
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        if let Err(why) = run("losetup", &["--detach", self.device.to_str().unwrap()]) {
            eprintln!("{why}");
        }
    }
}

/// A mount, unmounted when dropped.
struct Mount(TempDir);

impl Drop for Mount {
    fn drop(&mut self) {
        if let Err(why) = run("umount", &[self.0.path().to_str().unwrap()]) {
            eprintln!("{why}");
        }
    }
}

fn refusal(path: &Path) -> (ErrorKind, String) {
    match FileDevice::open(path, WRITE) {
        Err(Error::Open { source, .. }) => (source.kind(), source.to_string()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_block_device_conforms() {
    for sector in ["512", "4096"] {
        for options in [WRITE, DIRECT] {
            let Some(disk) = Loop::new(sector) else { return };
            let Some(device) = open(&disk.device, options) else { return };
            let geometry = device.geometry();
            assert_eq!((geometry.len, geometry.sector.to_string().as_str()), (LEN, sector));
            conforms(&device);
            parts_of_sectors_from_many_threads(&device);
            let seen = content(&device);
            device.flush().unwrap();
            assert!(std::fs::read(disk.file.path()).unwrap() == seen, "flushed, and not in the file");
            assert_eq!(refusal(&disk.device).0, ErrorKind::ResourceBusy);
        }
    }
}

#[test]
fn what_the_kernel_has_mounted_is_in_use() {
    let Some(disk) = Loop::new("512") else { return };
    let dir = TempDir::new().unwrap();
    let (device, place) = (disk.device.to_str().unwrap(), dir.path().to_str().unwrap());
    let mounted = run("mke2fs", &["-q", "-F", device]).and_then(|_| run("mount", &["-t", "ext2", device, place]));
    if let Err(why) = mounted {
        eprintln!("skipped: cannot mount: {why}");
        return;
    }
    let mount = Mount(dir);
    assert_eq!(refusal(&disk.device), (ErrorKind::ResourceBusy, "locked by another process".into()));
    let name = disk.device.file_name().unwrap().to_str().unwrap();
    let why = format!("locked by another process: mounted as /dev/{name}");
    assert_eq!(refusal(disk.file.path()), (ErrorKind::ResourceBusy, why));
    // reading is allowed
    open(&disk.device, OpenOptions::default()).unwrap();
    open(disk.file.path(), OpenOptions::default()).unwrap();
    drop(mount);
    open(&disk.device, WRITE).unwrap();
}

/// Options that lock others out while reading.
const ALONE: OpenOptions = OpenOptions {
    write: false,
    direct: false,
    exclusive: true,
    planned: false,
    mounted: false,
    patience: std::time::Duration::ZERO,
};

fn is_refused(path: &Path) {
    let (kind, why) = refusal(path);
    assert_eq!(kind, ErrorKind::ResourceBusy, "{}: {why}", path.display());
    assert!(why.starts_with("locked by another process"), "{}: {why}", path.display());
}

/// Checks that while each of these is open for writing all others are refused, also to a reader that locks writers out.
fn exclude_each_other(paths: &[&Path]) {
    for opened in paths {
        let device = open(opened, WRITE).expect("page cache");
        for other in paths {
            is_refused(other);
            assert!(FileDevice::open(other, ALONE).is_err(), "{} beside {}", other.display(), opened.display());
            FileDevice::open(other, OpenOptions::default()).expect("looking");
        }
        drop(device);
    }
}

#[test]
fn all_ways_to_the_same_bytes_exclude_each_other() {
    let Some(disk) = Loop::new("512") else { return };
    let file = disk.file.path();
    let dir = TempDir::new().unwrap();
    let (hard, soft) = (dir.path().join("hard"), dir.path().join("soft"));
    std::fs::hard_link(file, &hard).expect("both are in the folder for temporary files");
    std::os::unix::fs::symlink(file, &soft).unwrap();
    let (again, stacked) = (Over::new(file, &[]), Over::new(&disk.device, &[]));
    exclude_each_other(&[file, &hard, &soft, &disk.device, &again.0, &stacked.0]);
    // one that begins later shares the rest
    let part = Over::new(file, &["--offset", "1048576"]);
    for other in [file, &disk.device, &stacked.0] {
        let device = open(&part.0, WRITE).expect("page cache");
        is_refused(other);
        drop(device);
        let device = open(other, WRITE).expect("page cache");
        is_refused(&part.0);
        drop(device);
    }
}

#[test]
fn a_file_without_a_path_is_still_the_one_below() {
    let Some(disk) = Loop::new("512") else { return };
    let dir = TempDir::new().unwrap();
    let hard = dir.path().join("hard");
    std::fs::hard_link(disk.file.path(), &hard).unwrap();
    std::fs::remove_file(disk.file.path()).unwrap();
    // another file has the name now
    std::fs::write(disk.file.path(), vec![0; LEN as usize]).unwrap();
    open(disk.file.path(), WRITE).expect("not the one beneath");
    exclude_each_other(&[&hard, &disk.device]);
}

#[test]
fn partitions_exclude_what_overlaps_them_and_nothing_else() {
    let Some(disk) = Loop::new("512") else { return };
    // without a partition table, which not all kernels read
    let scanned = Over::new(disk.file.path(), &[]);
    let parts = [("1", "2048"), ("2", "4096")].map(|(number, start)| {
        run("addpart", &[text(&scanned.0), number, start, "2048"]).map_err(|e| eprintln!("{e}"))
    });
    let [first, second] = ["p1", "p2"].map(|part| PathBuf::from(format!("{}{part}", scanned.0.display())));
    if parts.iter().any(Result::is_err) || !second.exists() {
        eprintln!("skipped: no partitions of loop devices");
        return;
    }
    let cut = Over::new(disk.file.path(), &["--offset", "2097152", "--sizelimit", "1048576"]);
    let one = open(&first, WRITE).expect("page cache");
    for other in [disk.file.path(), &scanned.0, &disk.device, &first] {
        is_refused(other);
    }
    // the other one is free
    exclude_each_other(&[&second, &cut.0]);
    drop(one);
    for other in [disk.file.path(), &disk.device] {
        let whole = open(other, WRITE).expect("page cache");
        for part in [&first, &second, &cut.0] {
            is_refused(part);
        }
        drop(whole);
    }
    for number in ["1", "2"] {
        run("delpart", &[text(&scanned.0), number]).expect("a partition added before");
    }
}

#[test]
fn what_the_kernel_writes_does_not_stand_still() {
    let Some(disk) = Loop::new("512") else { return };
    let file = disk.file.path().to_owned();
    if let Err(why) = run("mke2fs", &["-q", "-F", text(&file)]) {
        eprintln!("skipped: {why}");
        return;
    }
    let dir = TempDir::new().unwrap();
    let alone = |path: &Path| FileDevice::open(path, ALONE).map(drop).map_err(|e| e.to_string());
    // in another mount namespace
    let script = r#"mount -t ext4 -o "$2" "$0" "$1" && echo mounted && read line; umount "$1""#;
    let place = text(dir.path());
    for (options, free) in [("ro", true), ("rw", false)] {
        let device = text(&disk.device);
        let mut child = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", script, device, place, options])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("unshare");
        let mut said = [0; 7];
        let mounted = std::io::Read::read_exact(child.stdout.as_mut().expect("a pipe"), &mut said);
        if mounted.is_ok() {
            for path in [&file, &disk.device] {
                is_refused(path);
                assert_eq!(alone(path).is_ok(), free, "{options} {}: {:?}", path.display(), alone(path));
            }
            if !free {
                let found = extant_blockdev::mounted(&file).expect("reported by ext4");
                assert!(!found.read_only && found.at.is_none(), "{found:?}");
            }
        } else {
            eprintln!("skipped: no mount namespaces here, or no ext4");
        }
        drop(child.stdin.take());
        child.wait().unwrap();
    }
    // and in this one
    if let Err(why) = run("mount", &["-t", "ext4", text(&disk.device), place]) {
        eprintln!("skipped: cannot mount: {why}");
        return;
    }
    let mount = Mount(dir);
    for path in [&file, &disk.device] {
        let why = alone(path).expect_err("mounted for writing");
        assert!(why.contains("mounted for writing at /"), "{why}");
    }
    drop(mount);
    alone(&file).expect("not mounted");
}
