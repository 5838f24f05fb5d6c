//! A block device for the kernel to mount.
//!
//! The kernel sends sync(2) and syncfs(2) to a FUSE server, and lets umount(2) wait for its last answer, only where the
//! file system is mounted as `fuseblk`, on a block device. So a loop device is set up on the volume, whether that is a
//! file or itself a block device. It exists only to be mounted: nothing is read or written through it, since the server
//! accesses the volume directly, and so it has no cost. It is removed with the mount.

use crate::programs;
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The device file through which the kernel assigns loop devices.
const CONTROL: &str = "/dev/loop-control";

/// A loop device on a volume. When this is dropped the device is removed: at once, or with the mount that uses it.
#[derive(Debug)]
pub(crate) struct LoopDevice {
    losetup: PathBuf,
    device: PathBuf,
}

/// The reason why this system has no loop devices for this process at all, as in a container.
pub(crate) fn unavailable_reason() -> Option<String> {
    let e = File::options().read(true).write(true).open(CONTROL).err()?;
    Some(format!("{CONTROL}: {}", io::Error::from(Errno::from_io_error(&e)?)))
}

impl LoopDevice {
    /// # Errors
    /// losetup(8) is missing, or no loop device is free.
    pub(crate) fn on(volume: &Path) -> io::Result<Self> {
        let losetup = programs::find("losetup")
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "losetup is missing; it comes with util-linux"))?;
        let said = run(&losetup, &["--find".as_ref(), "--show".as_ref(), "--".as_ref(), volume.as_os_str()])?;
        let device = String::from_utf8(said).map_err(io::Error::other)?;
        Ok(Self { losetup, device: device.trim_end().into() })
    }

    /// The path of the device to mount.
    pub(crate) fn path(&self) -> &Path {
        &self.device
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        // a device that remains does no harm, and `losetup -D` removes it
        let _ = run(&self.losetup, &["--detach".as_ref(), self.device.as_os_str()]);
    }
}

fn run(losetup: &Path, args: &[&OsStr]) -> io::Result<Vec<u8>> {
    let ran = Command::new(losetup).args(args).stdin(Stdio::null()).output()?;
    if ran.status.success() {
        return Ok(ran.stdout);
    }
    Err(io::Error::other(String::from_utf8_lossy(&ran.stderr).trim().to_owned()))
}
