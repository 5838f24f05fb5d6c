//! Locks of volumes, so that two programs never write to one at the same time, and none reads one that another changes.
//!
//! The lock is flock(2): advisory, released with the file, respected by every program that opens volumes through this
//! crate, and by udev, which does not probe a locked disk. A block device that the kernel has mounted is opened
//! exclusively by the kernel itself, and a program that writes to a block device opens it in the same way (O_EXCL).
//!
//! The same bytes can be reached in several ways that neither lock covers: through loop devices over a file or a
//! device, and through devices made of these. So a process that locks a volume also locks the files and devices beneath
//! loop devices among its layers, and then checks whether another device with the same bytes is open exclusively. As
//! each process locks first and checks then, at most one of two simultaneous ones continues. The kernel takes no lock
//! when it mounts, so a writer opens those devices exclusively on which the kernel would find the same volume, for as
//! long as it writes.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{FlockOperation, Mode, OFlags, flock, major, minor};
use rustix::io::Errno;

use crate::mounts;
use crate::stack::{self, Base, Device, Layer, LayerKind, System};

/// Takes the lock for writing (`write`) or the one that only locks writers out, without waiting.
///
/// # Errors
/// `ResourceBusy` if another process has a conflicting lock. A file system without locks counts as free.
pub(crate) fn take(file: &File, write: bool) -> io::Result<()> {
    let operation =
        if write { FlockOperation::NonBlockingLockExclusive } else { FlockOperation::NonBlockingLockShared };
    match flock(file, operation) {
        Ok(()) | Err(Errno::NOLCK | Errno::NOSYS | Errno::OPNOTSUPP) => Ok(()),
        Err(Errno::WOULDBLOCK) => Err(in_use("locked by another process")),
        Err(e) => Err(e.into()),
    }
}

/// The locks on the layers beneath a volume, and the exclusive opens of other devices with its bytes. They are released
/// when this is dropped.
#[derive(Debug, Default)]
pub(crate) struct LayerLocks(Vec<File>);

/// Locks others out of the bytes of an open file or block device of `len` bytes that is locked itself, in whatever way
/// they access them; `write` as for [`take`].
///
/// # Errors
/// `ResourceBusy`, with the user of the bytes: for `write` any other one, else one that may change them.
pub(crate) fn guard(file: &File, len: u64, write: bool) -> io::Result<LayerLocks> {
    let system = System::new();
    let layers = system.layers(&file.metadata()?, len);
    let mut locks = lock_layers(&layers, write)?;
    let mut devices = system.others(&layers);
    // for the device itself and those beneath its mapping or disk the kernel ensures that, if it is to be written
    devices.extend(system.devices(layers.iter().filter(|layer| !write || layer.kind == LayerKind::Loop)));
    // for a disk with partitions each of these is checked itself
    for device in devices.iter().filter(|device| !device.has_partitions) {
        let mounted = mounts::through(&[], std::slice::from_ref(device), None);
        match &mounted {
            // the process that serves an Extant mount would have the volume locked
            Some(mounted) if !write && (mounted.read_only || mounted.ours) => continue,
            Some(mounted) if !write => {
                let why = format!("mounted for writing {}, so it may change while it is read", mounted.place());
                return Err(in_use(&format!("locked by another process: {why}")));
            }
            None if !write && !system.holders(device).is_empty() => continue,
            _ => {}
        }
        match open_exclusively(&system, device, mounted.is_some()) {
            ExclusiveOpen::Opened(file) if write && device.same_start => locks.0.push(file),
            ExclusiveOpen::Opened(_) | ExclusiveOpen::Unknown => {}
            ExclusiveOpen::Busy => {
                let way = if mounted.is_some() { "mounted as" } else { "through" };
                return Err(in_use(&format!("locked by another process: {way} /dev/{}", device.name)));
            }
        }
    }
    Ok(locks)
}

/// Locks the files and devices beneath loop devices among the layers. A process that writes to all of one, or to its
/// start where a volume would be, locks it exclusively. Those that write to other parts, such as partitions of the
/// image of a disk, can do so together; their exclusive opens ensure that these parts do not overlap.
fn lock_layers(layers: &[Layer], write: bool) -> io::Result<LayerLocks> {
    let mut files: Vec<File> = Vec::new();
    let mut locked: Vec<Base> = Vec::new();
    for layer in layers.iter().filter(|layer| layer.kind == LayerKind::Loop) {
        if locked.contains(&layer.base) {
            continue;
        }
        locked.push(layer.base);
        match stack::open(layer) {
            Some(file) => {
                match take(&file, write && layer.exact && layer.start == 0) {
                    // the error of NFS for a file that is open only for reading
                    Err(e) if e.raw_os_error() == Some(Errno::BADF.raw_os_error()) => {}
                    taken => taken?,
                }
                files.push(file);
            }
            // deleted, or in another mount namespace: a process that has it open may have it locked
            None => {
                if let Base::File { dev, ino } = layer.base
                    && is_locked(&fs::read_to_string("/proc/locks").unwrap_or_default(), (dev, ino), write)
                {
                    return Err(in_use("locked by another process, which has the file beneath it open"));
                }
            }
        }
    }
    Ok(LayerLocks(files))
}

/// Whether another process has a volume, a file or block device, locked for writing. Only the locks that the kernel lists
/// are known: those of the processes of this PID namespace. Nothing is opened or locked.
#[must_use]
pub fn is_locked_for_writing(device: impl AsRef<Path>) -> bool {
    let Ok(metadata) = fs::metadata(device) else { return false };
    let Ok(list) = fs::read_to_string("/proc/locks") else { return false };
    let len = if metadata.is_file() { metadata.len() } else { u64::MAX };
    let layers = System::new().layers(&metadata, len);
    let beneath = layers.iter().filter_map(|layer| match layer.base {
        Base::File { dev, ino } => Some((dev, ino)),
        Base::Device(_) => None,
    });
    // a block device is locked through its node
    beneath.chain([(metadata.dev(), metadata.ino())]).any(|file| is_locked(&list, file, false))
}

/// Checks that no process uses a regular file as a volume: none has it locked, nor uses a loop device over it. The file
/// is opened for reading, and locked only for the duration of this call.
///
/// # Errors
/// `ResourceBusy`, with the user of the file; else those of opening it.
pub fn check_unused(file: impl AsRef<Path>) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(file.as_ref(), flags, Mode::empty())?);
    match take(&file, true) {
        // the error of NFS for a file that is open only for reading
        Err(e) if e.raw_os_error() == Some(Errno::BADF.raw_os_error()) => {}
        taken => taken?,
    }
    let len = file.metadata()?.len();
    guard(&file, len, true).map(drop)
}

/// Whether the kernel's list of locks has one on a file that conflicts with one of ours. proc(5): number, kind, sort,
/// READ or WRITE, process, `MAJOR:MINOR:INODE`, the first two in hexadecimal digits.
fn is_locked(list: &str, (dev, ino): (u64, u64), write: bool) -> bool {
    let file = format!("{:02x}:{:02x}:{ino}", major(dev), minor(dev));
    list.lines().any(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        matches!(words[..], [_, "FLOCK", _, access, _, place, ..] if place == file && (write || access == "WRITE"))
    })
}

/// The outcome of opening a device exclusively.
enum ExclusiveOpen {
    /// No other process can open it exclusively while this is open.
    Opened(File),
    /// Another user has it open exclusively: a file system, a mapping, a program that writes to it.
    Busy,
    /// It cannot be opened, and nothing indicates that it is open exclusively elsewhere.
    Unknown,
}

/// Opens a block device exclusively. If it cannot be opened, a mount of it counts as busy.
fn open_exclusively(system: &System, device: &Device, mounted: bool) -> ExclusiveOpen {
    let node = Path::new("/dev").join(&device.name);
    if fs::metadata(&node).is_ok_and(|found| stack::is_at(Base::Device(device.number), &found)) {
        let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::NONBLOCK | OFlags::CLOEXEC;
        match rustix::fs::open(&node, flags, Mode::empty()) {
            Ok(file) => return ExclusiveOpen::Opened(file.into()),
            Err(Errno::BUSY) => return ExclusiveOpen::Busy,
            Err(_) => {}
        }
    }
    // no permission to open it: only its state in sysfs is known
    if mounted || !system.holders(device).is_empty() { ExclusiveOpen::Busy } else { ExclusiveOpen::Unknown }
}

/// The error of a volume in use.
pub(crate) fn in_use(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::ResourceBusy, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::makedev;

    #[test]
    fn locks_are_found_in_the_kernels_list() {
        let list = "1: FLOCK  ADVISORY  WRITE 4711 fe:00:9986074 0 EOF\n\
                    1: -> FLOCK  ADVISORY  WRITE 4712 fe:00:77 0 EOF\n\
                    2: POSIX  ADVISORY  WRITE 12 00:19:5 0 EOF\n\
                    3: FLOCK  ADVISORY  READ 13 00:19:6 0 EOF\nodd\n";
        assert!(is_locked(list, (makedev(254, 0), 9_986_074), false));
        assert!(!is_locked(list, (makedev(254, 1), 9_986_074), true));
        assert!(!is_locked(list, (makedev(254, 0), 77), true), "a waiting process has no lock");
        assert!(!is_locked(list, (makedev(0, 0x19), 5), true));
        assert!(!is_locked(list, (makedev(0, 0x19), 6), false) && is_locked(list, (makedev(0, 0x19), 6), true));
    }
}
