//! The client side of a transaction on a mounted volume.

use super::PREFIX;
use super::members::VARIABLE;
use rustix::fs::{Mode, OFlags, fgetxattr, fstatfs, open, syncfs};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

/// The type of FUSE file systems in statfs(2).
const FUSE: i64 = 0x6573_5546;
/// The file from which the kernel returns unique random IDs.
const NUMBERS: &str = "/proc/sys/kernel/random/uuid";
/// The message where the volume was unmounted.
const UNMOUNTED: &str = "the volume was unmounted; all changes were rolled back";
/// The message where that happened during the commit.
const UNKNOWN: &str = "the server process has ended: the next mount shows all changes of the transaction, or none";

/// A transaction on a mounted volume, in another process than the server: this process, and those that it starts, are
/// its members. When this process ends the transaction is rolled back.
///
/// Until this is dropped the volume is in use, so that it can only be unmounted by force.
#[derive(Debug)]
pub struct MountedTransaction {
    file: OwnedFd,
    /// The ID of the mount; `None` where it is not listed.
    mount: Option<u64>,
    mark: String,
}

fn ask(file: &OwnedFd, command: &str) -> io::Result<()> {
    let name = [PREFIX, command.as_bytes()].concat();
    let mut text = vec![0; 4096];
    let length = fgetxattr(file, &name[..], &mut text[..])?;
    let text = text.get(..length).unwrap_or_default();
    if text.is_empty() { Ok(()) } else { Err(io::Error::other(String::from_utf8_lossy(text).into_owned())) }
}

/// The ID of the mount that an open file belongs to.
fn mount_of(file: &OwnedFd) -> Option<u64> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd())).ok()?;
    info.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok())
}

/// Whether a mount can be reached from the root directory.
fn is_listed(mount: u64) -> bool {
    let Ok(mounts) = std::fs::read_to_string("/proc/self/mountinfo") else { return true };
    mounts.lines().any(|line| line.split(' ').next().and_then(|id| id.parse().ok()) == Some(mount))
}

/// Makes the kernel write back the pages that were changed through mappings.
fn write_back_pages(file: &OwnedFd) {
    // an error here is also in the server's answer, or belongs to an earlier transaction
    if fstatfs(file).is_ok_and(|found| found.f_type == FUSE) {
        let _ = syncfs(file);
    }
}

impl MountedTransaction {
    /// Begins a transaction on the volume that contains `dir`; its timeout is `seconds`, at most a day.
    ///
    /// # Errors
    /// One sentence; of the kind `ResourceBusy` where there is another transaction.
    pub fn begin(dir: &Path, seconds: u64) -> io::Result<Self> {
        let file = open(dir, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
        let mount = mount_of(&file).filter(|mount| is_listed(*mount));
        let mark = std::fs::read_to_string(NUMBERS)?.trim().to_owned();
        write_back_pages(&file);
        ask(&file, &format!("begin.{seconds}.{mark}")).map_err(|e| match Errno::from_io_error(&e) {
            Some(Errno::NODATA | Errno::OPNOTSUPP) => {
                let why = "transactions need a mounted native volume (`extant mkfs -t extant`), not mounted with -o snapshot=";
                io::Error::other(why)
            }
            Some(Errno::INVAL) => io::Error::other("the timeout of a transaction is at most one day"),
            Some(Errno::PERM) => {
                io::Error::other("only root and the user who mounted the volume can begin a transaction")
            }
            Some(Errno::ROFS) => io::Error::other("the volume is mounted read-only"),
            Some(Errno::CANCELED) => io::Error::other("this process belongs to a transaction that was rolled back"),
            _ => e,
        })?;
        Ok(Self { file, mount, mark })
    }

    /// The environment variable, with its value, for processes that are started as members: it identifies them as
    /// members if this process is killed.
    #[must_use]
    pub fn mark(&self) -> (&'static str, &str) {
        (VARIABLE, &self.mark)
    }

    /// Whether the volume is still mounted. Changes by its path after an unmount affect another file system.
    #[must_use]
    pub fn is_mounted(&self) -> bool {
        self.mount.is_none_or(is_listed)
    }

    /// Commits the transaction; returns when all its changes are durable.
    ///
    /// # Errors
    /// One sentence; no change remains then.
    pub fn commit(self) -> io::Result<()> {
        write_back_pages(&self.file);
        if !self.is_mounted() {
            let _ = ask(&self.file, "rollback");
            return Err(io::Error::other(UNMOUNTED));
        }
        self.end("commit")
    }

    /// Rolls the transaction back: the volume is in its state from before the transaction, for every access from now
    /// on.
    ///
    /// # Errors
    /// One sentence.
    pub fn rollback(self) -> io::Result<()> {
        write_back_pages(&self.file);
        self.end("rollback")
    }

    fn end(&self, command: &str) -> io::Result<()> {
        ask(&self.file, command).map_err(|e| match Errno::from_io_error(&e) {
            Some(Errno::NOTCONN | Errno::NODEV) => io::Error::other(UNMOUNTED),
            Some(Errno::CONNABORTED | Errno::IO) => io::Error::other(UNKNOWN),
            Some(Errno::INVAL) => io::Error::other("the transaction no longer exists"),
            _ => e,
        })
    }
}
