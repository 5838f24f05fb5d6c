//! Block devices, on a loop device: needs root and a kernel with loop devices, and says so where it has to skip.

mod common;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{DIRECT, WRITE, conforms, content, open, parts_of_sectors_from_many_threads};
use extant_blockdev::{BlockDevice, Error, FileDevice, OpenOptions};
use tempfile::{NamedTempFile, TempDir};

const LEN: u64 = 4 << 20;

/// Runs a program; its output, or the reason why it failed.
fn run(program: &str, args: &[&str]) -> Result<String, String> {
    let said = Command::new(program).args(args).output().map_err(|e| format!("{program}: {e}"))?;
    if said.status.success() {
        Ok(String::from_utf8_lossy(&said.stdout).trim().to_owned())
    } else {
        Err(format!("{program}: {}", String::from_utf8_lossy(&said.stderr).trim()))
    }
}

/// A loop device over a file of its own, given back when dropped.
struct Loop {
    device: PathBuf,
    file: NamedTempFile,
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

/// A mount, undone when dropped.
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
            assert!(std::fs::read(disk.file.path()).unwrap() == seen, "flushed, and not below");
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
    assert_eq!(refusal(&disk.device), (ErrorKind::ResourceBusy, "it is in use by another program".into()));
    let name = disk.device.file_name().unwrap().to_str().unwrap();
    let why = format!("it is in use by another program: mounted as /dev/{name}");
    assert_eq!(refusal(disk.file.path()), (ErrorKind::ResourceBusy, why));
    // looking is allowed
    open(&disk.device, OpenOptions::default()).unwrap();
    open(disk.file.path(), OpenOptions::default()).unwrap();
    drop(mount);
    open(&disk.device, WRITE).unwrap();
}
