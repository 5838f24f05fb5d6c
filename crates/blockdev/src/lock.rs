//! Whether a volume is in use, so that two programs never write to it at once.
//!
//! The lock is flock(2): advisory, released with the file, kept by every program that opens volumes through this crate,
//! and honoured by udev, which does not probe a locked disk. What the kernel has mounted from a block device it claims
//! itself (O_EXCL meets that claim); what it has mounted from a regular file through a loop device it does not lock, so
//! that is looked up.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// Takes the lock that writing needs (`write`) or the one that only keeps writers away, without waiting.
///
/// # Errors
/// `ResourceBusy` if another program has a lock against it. A file system without locks counts as free.
pub(crate) fn take(file: &File, write: bool) -> io::Result<()> {
    let operation =
        if write { FlockOperation::NonBlockingLockExclusive } else { FlockOperation::NonBlockingLockShared };
    match flock(file, operation) {
        Ok(()) | Err(Errno::NOLCK | Errno::NOSYS | Errno::OPNOTSUPP) => Ok(()),
        Err(Errno::WOULDBLOCK) => Err(in_use("it is in use by another program")),
        Err(e) => Err(e.into()),
    }
}

/// Refuses a regular file that lies under a mounted loop device.
///
/// # Errors
/// `ResourceBusy` with the loop device's name.
pub(crate) fn not_mounted(file: &File) -> io::Result<()> {
    // no mount table: nothing can be said
    let Ok(mounts) = fs::read_to_string("/proc/self/mountinfo") else { return Ok(()) };
    for (name, number) in loop_devices(&file.metadata()?) {
        // proc(5): the third field of a line is the mounted device's number
        if mounts.lines().any(|mount| mount.split(' ').nth(2) == Some(&number)) {
            return Err(in_use(&format!("it is in use by another program: mounted as /dev/{name}")));
        }
    }
    Ok(())
}

/// The loop devices over a regular file: the name of each, and its number as `MAJOR:MINOR`. None where the system does not
/// tell.
#[must_use]
pub fn loop_devices(file: &fs::Metadata) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for device in fs::read_dir("/sys/block").into_iter().flatten().flatten() {
        let Ok(backing) = fs::read_to_string(device.path().join("loop/backing_file")) else { continue };
        let Ok(theirs) = fs::metadata(backing.trim_end_matches('\n')) else { continue };
        if (theirs.dev(), theirs.ino()) == (file.dev(), file.ino()) {
            let number = fs::read_to_string(device.path().join("dev")).unwrap_or_default();
            found.push((device.file_name().to_string_lossy().into_owned(), number.trim_end().to_owned()));
        }
    }
    found
}

/// The error of a volume in use.
pub(crate) fn in_use(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::ResourceBusy, why)
}
