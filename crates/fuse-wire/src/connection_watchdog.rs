//! Ends the connection of a server that was killed while the kernel blocked one of its threads.
//!
//! A message that has the kernel forget pages or names waits for their locks, and no signal ends that. The process that
//! has the lock may itself wait for an answer of this server: when the server is killed then, all its threads end but
//! the one that waits, for which /dev/fuse stays open; so the kernel does not see that no process answers any more, and
//! all that use the mount hang. Only another process can end the connection then. It is started before the first such
//! message, looks twice a second whether the server has ended, and costs nothing else.

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
const LOOK: Duration = Duration::from_millis(500);
/// The name in lists of processes: not the server's, so that a user who kills all servers by their name leaves it.
const NAME: &str = "fuse-watchdog";

/// A handle that starts the process, once.
#[derive(Debug)]
pub(crate) struct Watchdog {
    /// The command line and what it is to watch; nothing is started without.
    what: Option<(Vec<OsString>, u32)>,
    child: OnceLock<Option<Child>>,
}

impl Watchdog {
    /// For what is mounted on `dir`; `line` is [`AttachOptions::watchdog`](crate::AttachOptions::watchdog).
    pub(crate) fn new(line: &[OsString], dir: &Path) -> Self {
        let mounted = mounted_on(dir).ok().flatten().filter(|_| !line.is_empty());
        let what = mounted.map(|mounted| (line.to_vec(), mounted.device));
        Self { what, child: OnceLock::new() }
    }

    /// Starts it unless it was. A system that has no process to spare does without.
    pub(crate) fn start(&self) {
        self.child.get_or_init(|| {
            let (line, device) = self.what.as_ref()?;
            let (program, arguments) = line.split_first()?;
            let mut command = Command::new(program);
            command.args(arguments).arg(getpid().as_raw_nonzero().to_string()).arg(device.to_string());
            // a group of its own: a signal for the server's does not end it
            command.process_group(0).current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            command.spawn().ok()
        });
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take().flatten() {
            // it has ended, which is as good
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The process itself: waits until `server`, which started it, has ended, and then ends the connection of the mount
/// with the number `device`.
///
/// # Errors
/// The connection cannot be ended, which turns out at once, but for errors of its end itself.
pub fn watchdog(server: i32, device: u32) -> io::Result<()> {
    // a list of processes that shows another name is no harm
    let _ = std::fs::write("/proc/self/comm", NAME);
    // open from now on: a later connection with the same number is another file
    let mut control = control(device)?;
    while lives(server) {
        std::thread::sleep(LOOK);
    }
    control.write_all(b"1")
}

/// The file that ends a connection when it is written to. Where the file system that has it is not mounted, root can
/// look into it without mounting it anywhere.
fn control(device: u32) -> io::Result<File> {
    let mounted = OpenOptions::new().write(true).open(format!("/sys/fs/fuse/connections/{device}/abort"));
    mounted.or_else(|_| {
        let system = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(&system)?;
        let root = fsmount(&system, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
        Ok(openat(&root, format!("{device}/abort"), OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?.into())
    })
}

/// Whether our parent answers requests still. One whose threads have ended but for some is dead, and is our parent
/// still.
fn lives(server: i32) -> bool {
    if getppid().is_none_or(|parent| parent.as_raw_nonzero().get() != server) {
        return false;
    }
    let stat = std::fs::read_to_string(format!("/proc/{server}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(')').map_or("", |(_, rest)| rest.trim_start());
    !state.starts_with(['Z', 'X'])
}
