//! Aborts the connection of a server that was killed while the kernel blocked one of its threads.
//!
//! A notification that invalidates pages or names waits for their locks in the kernel, and no signal interrupts that
//! wait. The process that has the lock may itself be waiting for an answer of this server. If the server is killed at
//! that moment, all its threads exit except the one that waits, which still has /dev/fuse open. The kernel then does
//! not see that the server has ended, and every process that uses the mount hangs. Only another process can abort the
//! connection in that state. The watchdog is started before the first such notification and checks twice a second
//! whether the server's first thread has ended; a pidfd becomes readable only when all threads have.

use crate::mountinfo::mounted_on;
use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use rustix::process::{getpid, getppid};
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

/// The interval between checks whether the server has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// The process name: different from the server's, so that a user who kills all servers by name spares the watchdog.
const NAME: &str = "fuse-watchdog";

/// A handle that starts the watchdog process, once.
#[derive(Debug)]
pub(crate) struct Watchdog {
    /// The command line and the device number of the mount to watch; without them no process is started.
    what: Option<(Vec<OsString>, u32)>,
    child: OnceLock<Option<Child>>,
}

impl Watchdog {
    /// A handle for the file system mounted on `dir`; `line` is
    /// [`AttachOptions::watchdog`](crate::AttachOptions::watchdog).
    pub(crate) fn new(line: &[OsString], dir: &Path) -> Self {
        let mounted = mounted_on(dir).ok().flatten().filter(|_| !line.is_empty());
        let what = mounted.map(|mounted| (line.to_vec(), mounted.device));
        Self { what, child: OnceLock::new() }
    }

    /// Starts the process unless it was started. Where the system cannot start one, serving continues without it.
    pub(crate) fn start(&self) {
        self.child.get_or_init(|| {
            let (line, device) = self.what.as_ref()?;
            let (program, arguments) = line.split_first()?;
            let mut command = Command::new(program);
            command.args(arguments).arg(getpid().as_raw_nonzero().to_string()).arg(device.to_string());
            // a process group of its own: a signal for the server's group does not end it
            command.process_group(0).current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            command.spawn().ok()
        });
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take().flatten() {
            // an error means that it has ended already
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The watchdog process: waits until `server`, its parent, has ended, and then aborts the connection of the mount with
/// the device number `device`.
///
/// # Errors
/// The connection's control file cannot be opened (reported before waiting), or the abort fails.
pub fn watchdog(server: i32, device: u32) -> io::Result<()> {
    // a failure only leaves the original name in process lists
    let _ = std::fs::write("/proc/self/comm", NAME);
    // opened before waiting: a later connection with the same number is another file
    let mut control = control(device)?;
    while is_responding(server) {
        std::thread::sleep(POLL_INTERVAL);
    }
    control.write_all(b"1")
}

/// Opens the control file that aborts a connection when written to. If fusectl is not mounted, root can open the file
/// without mounting fusectl on a directory.
fn control(device: u32) -> io::Result<File> {
    let mounted = OpenOptions::new().write(true).open(format!("/sys/fs/fuse/connections/{device}/abort"));
    mounted.or_else(|_| {
        let system = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(&system)?;
        let root = fsmount(&system, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
        Ok(openat(&root, format!("{device}/abort"), OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?.into())
    })
}

/// Whether the parent still answers requests. A parent whose first thread has ended is dead, even while other threads
/// of it remain.
fn is_responding(server: i32) -> bool {
    if getppid().is_none_or(|parent| parent.as_raw_nonzero().get() != server) {
        return false;
    }
    let stat = std::fs::read_to_string(format!("/proc/{server}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(')').map_or("", |(_, rest)| rest.trim_start());
    !state.starts_with(['Z', 'X'])
}
