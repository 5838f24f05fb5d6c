//! A block device for the kernel to mount.
//!
//! The kernel tells a FUSE server of sync(2) and syncfs(2), and lets umount(2) wait for its last word, only where the
//! file system is mounted as `fuseblk`, on a block device. So a loop device is laid over the volume, whether that is a
//! file or a block device itself. It is there to be mounted: nothing is read or written through it, for the server works
//! on the volume directly, and so it costs nothing. It goes when the mount does.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A loop device over a volume. When this is dropped the device goes: at once, or with the mount that is on it.
#[derive(Debug)]
pub(crate) struct Claim {
    device: PathBuf,
}

impl Claim {
    /// # Errors
    /// There is no losetup(8), no loop device, or no right to one.
    pub(crate) fn on(volume: &Path) -> io::Result<Self> {
        let said = losetup(&["--find".as_ref(), "--show".as_ref(), "--".as_ref(), volume.as_os_str()])?;
        let device = String::from_utf8(said).map_err(io::Error::other)?;
        Ok(Self { device: device.trim_end().into() })
    }

    /// What to mount.
    pub(crate) fn device(&self) -> &Path {
        &self.device
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // one that stays does no harm, and `losetup -D` removes it
        let _ = losetup(&["--detach".as_ref(), self.device.as_os_str()]);
    }
}

fn losetup(args: &[&OsStr]) -> io::Result<Vec<u8>> {
    let ran = Command::new("losetup").args(args).stdin(Stdio::null()).output()?;
    if ran.status.success() {
        return Ok(ran.stdout);
    }
    Err(io::Error::other(String::from_utf8_lossy(&ran.stderr).trim().to_owned()))
}
