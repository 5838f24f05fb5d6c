//! Attaching the file system to a directory and detaching it.
//!
//! Root mounts with mount(2). Other users, and all who ask for `auto_unmount`, go through fusermount3, which has the
//! privilege and forces nosuid and nodev; it hands back the open /dev/fuse through a socket.
//!
//! Waiting for the serving process: umount(2) of a FUSE file system returns before its server has ended (of `fuseblk`:
//! after the volume is consistent, but before the process is gone), so [`unmount`] asks the mounted volume for the
//! server's process first and waits for that after.

use crate::connection_watchdog::Watchdog;
use crate::loop_device::{self, LoopDevice};
use crate::mountinfo::{MountInfo, mounted_on, places_of};
use crate::{Error, Result, StayAwake, Transport, programs};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{Pid, PidfdFlags, geteuid, getgid, getuid, pidfd_open};
use std::ffi::{CStr, CString, OsStr, OsString};
use std::fmt::Write;
use std::io::{self, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// An attribute of the root that is in no file system: the process that serves it, in decimal. Its name is in no
/// namespace that a file system knows, so it can hide none, and no list shows it. [`unmount`] asks every server for it.
pub const DAEMON: &str = "extant.daemon";

/// Another, empty: when it is there, all that was done before is on the device, and an error where that could not be.
pub const SYNC: &str = "extant.sync";

/// As the list of mounts shows it.
const TYPE: &str = "fuse.extant";
/// The same for one on a block device.
const TYPE_ON_DEVICE: &str = "fuseblk.extant";
/// The type's part behind the dot.
const SUBTYPE: &str = "extant";
const DEVICE: &str = "/dev/fuse";
/// The environment variable in which fusermount3 finds the number of its socket.
const SOCKET_VARIABLE: &str = "_FUSE_COMMFD";
/// The connection's descriptors have at least this number. A process that is killed closes its files from the
/// highest number down, and the helper that unmounts for it, woken by the end of its socket, must find the connection
/// dead.
const ABOVE: i32 = 100;
/// The longest time that [`unmount`] waits for the serving process, in seconds.
const PATIENCE: i64 = 60;

/// The users who may use a mounted volume. The kernel then checks permissions as on any file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Access {
    /// The user who mounted it.
    #[default]
    Owner,
    /// The user who mounted it, and root. So that each request is seen and checked, the kernel is asked to remember
    /// little.
    OwnerAndRoot,
    /// All users.
    All,
}

/// Whether reading a file is recorded in its inode. Reads that the kernel answers from its pages are not seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Atime {
    /// Not.
    #[default]
    Never,
    /// Where the recorded access is older than the last change, or than a day.
    Relative,
    /// Always.
    Strict,
}

/// Options for attaching a file system to a directory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AttachOptions {
    /// Nothing is written.
    pub read_only: bool,
    /// All that is changed is on the device before the answer.
    pub sync: bool,
    /// Changes of names are on the device before the answer.
    pub dirsync: bool,
    /// Whether reading is recorded.
    pub atime: Atime,
    /// The users who may use it.
    pub access: Access,
    /// Device nodes are not devices. Forced for all users but root.
    pub nodev: bool,
    /// Set-user-id and set-group-id bits mean nothing. Forced for all users but root.
    pub nosuid: bool,
    /// Programs cannot be run from it.
    pub noexec: bool,
    /// Symbolic links are not followed.
    pub nosymfollow: bool,
    /// fusermount3 unmounts it when the serving process ends, in whatever way.
    pub auto_unmount: bool,
    /// The kernel checks permissions also where only root gets in.
    pub default_permissions: bool,
    /// The path of the volume: a file or a block device. With it, root's mounts for writing are of the kind (`fuseblk`)
    /// that hears of sync(2), and whose umount(2) returns when all is on the device; where this system has no loop
    /// devices at all they are of the plain kind, which [`Session::warning`](crate::Session::warning) says.
    pub device: Option<PathBuf>,
    /// They are of the plain kind, as asked for.
    pub nofuseblk: bool,
    /// The command line, without its arguments, of a process that calls [`watchdog`](crate::watchdog()) with them. None
    /// is started where this is empty: a server that is killed may then leave a mount that hangs until its connection
    /// is aborted.
    pub watchdog: Vec<OsString>,
    /// Which way requests take.
    pub transport: Transport,
    /// Whether a processor is prevented from sleeping while requests follow closely.
    pub awake: StayAwake,
    /// The source in the list of mounts. The device unless set.
    pub source: Option<String>,
}

impl AttachOptions {
    /// Whether the kernel checks permissions before it asks. Where only root gets in (root mounts it for itself alone)
    /// there is nothing to check: mode bits and access control lists do not bind root, and each creation and removal
    /// is saved a question for the directory's attributes. A process of root's without its capabilities is not
    /// distinguished from one with them.
    #[must_use]
    pub fn kernel_checks(&self) -> bool {
        self.default_permissions || self.access != Access::Owner || !geteuid().is_root()
    }
}

/// A file system attached to a directory.
#[derive(Debug)]
pub(crate) struct Mount {
    dir: PathBuf,
    /// The kernel's number of it; unknown where the list of mounts could not be read.
    number: Option<u32>,
    /// For asking whether it is still attached; the session has one of its own.
    device: OwnedFd,
    /// fusermount3 unmounts when this is closed.
    _helper: Option<UnixStream>,
    /// A warning for the user about the way in which it is attached.
    warning: Option<String>,
}

impl Mount {
    /// Attaches a file system to `dir` and returns the connection on which the kernel will send its requests.
    pub(crate) fn new(dir: &Path, options: &AttachOptions) -> Result<(Self, OwnedFd)> {
        attach(dir, options).map_err(|source| Error::Mount { dir: dir.to_owned(), source })
    }

    pub(crate) fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }

    /// The watchdog that ends its connection when this process is killed.
    pub(crate) fn watchdog(&self, line: &[OsString]) -> Watchdog {
        Watchdog::new(line, &self.dir)
    }

    /// The kernel's number of it.
    pub(crate) fn number(&self) -> Option<u32> {
        self.number
    }

    /// Detaches it, unless that was done already. With files still open it disappears from the directory tree at once
    /// and lives on without a name until they are closed, or until this process ends.
    pub(crate) fn detach(&self) -> Result<()> {
        if !self.is_attached() {
            return Ok(());
        }
        let place = self.place()?;
        let done = detach(&place, false).or_else(|_| detach(&place, true));
        done.map_err(|source| Error::Unmount { dir: place, source })
    }

    /// The directory on which it is attached now: it may have been renamed since, or the mount moved.
    ///
    /// # Errors
    /// It is attached nowhere any more, as after a lazy unmount, or something else is mounted over it, which must not
    /// be taken for it.
    pub(crate) fn place(&self) -> Result<PathBuf> {
        self.find().map_err(|source| Error::Unmount { dir: self.dir.clone(), source })
    }

    fn find(&self) -> io::Result<PathBuf> {
        let Some(number) = self.number else { return Ok(self.dir.clone()) };
        let over = mounted_on(&self.dir)?;
        if over.as_ref().is_some_and(|mounted| mounted.device == number) {
            return Ok(self.dir.clone());
        }
        places_of(number)?.into_iter().next().ok_or_else(|| {
            io::Error::other(match over {
                Some(_) => "something else is mounted over it: unmount that first",
                None => "it is no longer mounted anywhere, and ends when the last of its open files is closed",
            })
        })
    }

    /// Whether the kernel still has it mounted anywhere.
    pub(crate) fn is_attached(&self) -> bool {
        let mut fds = [PollFd::new(&self.device, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        match poll(&mut fds, Some(&now)) {
            Ok(_) => !fds[0].revents().contains(PollFlags::ERR),
            Err(_) => true,
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // an error has no reader left; a dead mount that stays can be unmounted by hand
        let _ = self.detach();
    }
}

fn attach(dir: &Path, options: &AttachOptions) -> io::Result<(Mount, OwnedFd)> {
    let dir = folder(dir)?;
    let root = geteuid().is_root();
    if options.auto_unmount && !root && options.access == Access::Owner {
        // the helper runs as root, whom the kernel would not let look whether the mount is dead
        let why = "for users other than root, auto_unmount works only together with allow_other";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let (device, helper_socket, warning) = if root && !options.auto_unmount {
        let (device, warning) = attach_directly(&dir, options)?;
        (device, None, warning)
    } else {
        let (device, helper_socket) = attach_by_helper(&dir, options)?;
        (device, options.auto_unmount.then_some(helper_socket), None)
    };
    // above the helper's socket: see `ABOVE`
    let device = fcntl_dupfd_cloexec(&device, ABOVE)?;
    let connection = fcntl_dupfd_cloexec(&device, ABOVE)?;
    let number = mounted_on(&dir).ok().flatten().map(|mounted| mounted.device);
    Ok((Mount { dir, number, device, _helper: helper_socket, warning }, connection))
}

/// Whether a volume can be mounted on a directory, as far as can be said before it is opened: its path.
///
/// # Errors
/// [`Error::Mount`]: there is no such directory, or the remains of a mount lie on it.
pub fn mount_point(dir: &Path) -> Result<PathBuf> {
    folder(dir).map_err(|source| Error::Mount { dir: dir.to_owned(), source })
}

fn folder(dir: &Path) -> io::Result<PathBuf> {
    let dead = |e: io::Error| match Errno::from_io_error(&e) {
        Some(Errno::NOTCONN | Errno::CONNABORTED) => {
            let what =
                "it is a dead mount: the process that served it has ended; run `extant umount` on it, then mount again";
            io::Error::new(e.kind(), what)
        }
        _ => e,
    };
    let dir = dir.canonicalize().map_err(dead)?;
    if !dir.metadata().map_err(dead)?.is_dir() {
        return Err(Errno::NOTDIR.into());
    }
    Ok(dir)
}

/// Mounts as root: the connection, and a warning.
fn attach_directly(dir: &Path, options: &AttachOptions) -> io::Result<(OwnedFd, Option<String>)> {
    let device = rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|e| io::Error::new(io::Error::from(e).kind(), format!("{DEVICE}: {}", io::Error::from(e))))?;
    let mut data = String::new();
    let (user, group) = (getuid().as_raw(), getgid().as_raw());
    // S_IFDIR: the rest of the root's mode comes with its attributes
    let wrote = write!(data, "fd={},rootmode=40000,user_id={user},group_id={group}", device.as_raw_fd());
    wrote.map_err(io::Error::other)?;
    if options.kernel_checks() {
        data.push_str(",default_permissions");
    }
    if options.access != Access::Owner {
        data.push_str(",allow_other");
    }
    let (flags, data) = (flags(options), CString::new(data)?);
    let mut warning = None;
    if let Some(volume) = options.device.as_deref().filter(|_| !options.read_only && !options.nofuseblk) {
        match attach_on_device(volume, dir, flags, &data)? {
            None => return Ok((device, None)),
            Some(why) => {
                warning = Some(format!(
                    "no loop device is available ({why}): sync(2) does not reach this mount, and umount(8) does not wait \
                     for it; what is not synced by fsync(2) is on the device when `extant umount` returns, or after the \
                     seconds of `commit` (-o nofuseblk asks for it so)"
                ));
            }
        }
    }
    rustix::mount::mount(source(options), dir, TYPE, flags, data.as_c_str())?;
    Ok((device, warning))
}

/// Mounts a loop device over the volume; why this system cannot, where no process like this could.
fn attach_on_device(volume: &Path, dir: &Path, flags: MountFlags, data: &CStr) -> io::Result<Option<String>> {
    // it goes with the mount
    let device = match (LoopDevice::on(volume), loop_device::none_here()) {
        (Ok(device), _) => device,
        (Err(_), Some(why)) => return Ok(Some(why)),
        (Err(e), None) => {
            let why = "there is no loop device, without which sync(2) does not reach the mount";
            return Err(io::Error::new(e.kind(), format!("{why} ({e}); use -o nofuseblk to mount without one")));
        }
    };
    match rustix::mount::mount(device.path(), dir, TYPE_ON_DEVICE, flags, data) {
        // a kernel without this kind, or a user namespace, which may not mount it
        Err(e @ (Errno::NODEV | Errno::PERM)) => Ok(Some(io::Error::from(e).to_string())),
        done => Ok(done.map(|()| None)?),
    }
}

fn flags(options: &AttachOptions) -> MountFlags {
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, options.read_only);
    flags.set(MountFlags::NODEV, options.nodev);
    flags.set(MountFlags::NOSUID, options.nosuid);
    flags.set(MountFlags::NOEXEC, options.noexec);
    flags.set(MountFlags::NOSYMFOLLOW, options.nosymfollow);
    // the kernel then asks for an fsync behind each write
    flags.set(MountFlags::SYNCHRONOUS, options.sync);
    flags.set(MountFlags::DIRSYNC, options.dirsync);
    // for the list of mounts: the server alone records times
    flags
        | match options.atime {
            Atime::Never => MountFlags::NOATIME,
            Atime::Relative => MountFlags::RELATIME,
            Atime::Strict => MountFlags::STRICTATIME,
        }
}

fn source(options: &AttachOptions) -> &str {
    options.source.as_deref().unwrap_or(SUBTYPE)
}

fn attach_by_helper(dir: &Path, options: &AttachOptions) -> io::Result<(OwnedFd, UnixStream)> {
    let mut list = format!("subtype={SUBTYPE},fsname=");
    for c in source(options).chars() {
        if matches!(c, ',' | '\\') {
            list.push('\\');
        }
        list.push(c);
    }
    for (set, name) in [
        (options.read_only, ",ro"),
        (options.kernel_checks(), ",default_permissions"),
        (options.nodev, ",nodev"),
        (options.nosuid, ",nosuid"),
        (options.noexec, ",noexec"),
        (options.sync, ",sync"),
        (options.dirsync, ",dirsync"),
        (options.atime == Atime::Never, ",noatime"),
        (options.access != Access::Owner, ",allow_other"),
        (options.auto_unmount, ",auto_unmount"),
    ] {
        if set {
            list.push_str(name);
        }
    }
    if options.nosymfollow {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "fusermount3 cannot mount with `nosymfollow`"));
    }
    let (ours, theirs) = UnixStream::pair()?;
    // as its standard input, the socket reaches the program without being open to any other that starts meanwhile
    let mut helper = helper(&["-o", &list, "--"], dir)
        .env(SOCKET_VARIABLE, "0")
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(no_helper)?;
    match receive(&ours) {
        Ok(device) => {
            if !options.auto_unmount {
                helper.wait()?;
            }
            Ok((device, ours))
        }
        Err(e) => {
            drop(ours);
            let mut said = String::new();
            if let Some(mut stderr) = helper.stderr.take() {
                stderr.read_to_string(&mut said)?;
            }
            helper.wait()?;
            let said = without_program(&said);
            Err(if said.is_empty() { e } else { io::Error::other(said.to_owned()) })
        }
    }
}

/// Takes the descriptor that comes through the socket.
fn receive(socket: &UnixStream) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    loop {
        match recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
            Ok(_) => break,
        }
    }
    let descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    descriptors.flatten().next().ok_or_else(|| io::Error::other("fusermount3 returned no connection"))
}

fn helper(args: &[&str], dir: &Path) -> Command {
    let mut command = Command::new(programs::find("fusermount3").unwrap_or_else(|| "fusermount3".into()));
    command.args(args).arg(dir);
    command
}

fn no_helper(e: io::Error) -> io::Error {
    match e.kind() {
        io::ErrorKind::NotFound => io::Error::new(e.kind(), "fusermount3 is missing; it comes with the package fuse3"),
        _ => e,
    }
}

/// Detaches what is mounted on `dir`: lazily even where files are open.
fn detach(dir: &Path, lazy: bool) -> io::Result<()> {
    let busy =
        || io::Error::new(io::ErrorKind::ResourceBusy, "it is busy: a program has a file or its folder open there");
    let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(dir, flags | UnmountFlags::NOFOLLOW) {
        Err(Errno::PERM) => {}
        Err(Errno::BUSY) => return Err(busy()),
        done => return Ok(done?),
    }
    let args: &[&str] = if lazy { &["-u", "-z", "--"] } else { &["-u", "--"] };
    let ran = helper(args, dir).stdin(Stdio::null()).output().map_err(no_helper)?;
    if ran.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&ran.stderr);
    Err(match without_program(&said) {
        said if said.contains("busy") => busy(),
        said => io::Error::other(said.to_owned()),
    })
}

/// The message of fusermount3, without its name, or its path, in front.
fn without_program(said: &str) -> &str {
    let said = said.trim();
    said.split_once("fusermount3: ").map_or(said, |(_, said)| said)
}

/// Unmounts the volume that [`mount`](crate::mount()) mounted on `dir`, in this process or another, and waits until the
/// process that served it has ended, so that its device is free again.
///
/// # Errors
/// [`Error::Unmount`]: nothing of ours is mounted there, files are open or it is mounted elsewhere as well
/// (`ResourceBusy`), permission is denied, or the serving process did not end within a minute. [`Error::Finish`]: it is
/// unmounted, but something that was written did not reach the device.
pub fn unmount(dir: &Path) -> Result<()> {
    unmount_and_wait(dir).map_err(|gone| match gone {
        Gone::Not(source) => Error::Unmount { dir: dir.to_owned(), source },
        Gone::WithLoss(why) => Error::Finish(why),
    })
}

/// The error of an unmount.
enum Gone {
    /// It is mounted still, or its server lives on.
    Not(io::Error),
    /// It is unmounted, and something did not reach the device.
    WithLoss(io::Error),
}

fn unmount_and_wait(dir: &Path) -> Result<(), Gone> {
    let dir = resolve(dir).map_err(Gone::Not)?;
    let device = is_ours(&dir).map_err(Gone::Not)?.device;
    // unknown where the server has died, or where this user may not look
    let server = server_of(&dir).and_then(|pid| Some((pid, pidfd_open(pid, PidfdFlags::empty()).ok()?)));
    let synced = if server.is_some() { all_synced(&dir) } else { Ok(()) };
    detach(&dir, false).map_err(Gone::Not)?;
    if let Some(place) = places_of(device).unwrap_or_default().first() {
        synced.map_err(Gone::WithLoss)?;
        let still = format!("it was unmounted there, but is mounted on {} as well: unmount that, too", place.display());
        return Err(Gone::Not(io::Error::new(io::ErrorKind::ResourceBusy, still)));
    }
    if let Some((pid, server)) = server
        && pid.as_raw_nonzero().get().cast_unsigned() != std::process::id()
    {
        wait_for(pid, &server).map_err(Gone::Not)?;
    }
    synced.map_err(Gone::WithLoss)
}

/// Has the server bring everything to the device, and says how that went: umount(2) does not.
fn all_synced(dir: &Path) -> io::Result<()> {
    match rustix::fs::getxattr(dir, OsStr::new(SYNC), &mut [0; 1][..]) {
        // a server of an older version
        Ok(_) | Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

fn wait_for(pid: Pid, server: &OwnedFd) -> io::Result<()> {
    let mut fds = [PollFd::new(server, PollFlags::IN)];
    loop {
        match poll(&mut fds, Some(&Timespec { tv_sec: PATIENCE, tv_nsec: 0 })) {
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
            Ok(0) => {
                let still = format!("it is unmounted, but process {pid} that served it has not ended");
                return Err(io::Error::new(io::ErrorKind::TimedOut, still));
            }
            Ok(_) => return Ok(()),
        }
    }
}

/// The mount on a directory; an error where it is not of this program.
pub fn is_ours(dir: &Path) -> io::Result<MountInfo> {
    match mounted_on(dir)? {
        None => Err(io::Error::new(io::ErrorKind::NotFound, "nothing is mounted there")),
        Some(ours) if ours.kind == TYPE || ours.kind == TYPE_ON_DEVICE => Ok(ours),
        Some(other) => {
            let what = format!("not an Extant mount (type {})", other.kind.display());
            Err(io::Error::new(io::ErrorKind::InvalidInput, what))
        }
    }
}

/// The path without symbolic links. The last part is left alone where it cannot be looked at, as on a dead mount.
pub fn resolve(dir: &Path) -> io::Result<PathBuf> {
    match (dir.canonicalize(), dir.parent(), dir.file_name()) {
        (Ok(path), ..) => Ok(path),
        (Err(e), Some(parent), Some(name)) if e.kind() != io::ErrorKind::NotFound => {
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            Ok(parent.canonicalize()?.join(name))
        }
        (Err(e), ..) => Err(e),
    }
}

/// The process that serves the volume mounted on a directory.
fn server_of(dir: &Path) -> Option<Pid> {
    let mut value = [0; 16];
    let length = rustix::fs::getxattr(dir, OsStr::new(DAEMON), &mut value[..]).ok()?;
    let text = std::str::from_utf8(value.get(..length)?).ok()?;
    Pid::from_raw(text.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_ours_is_left_alone() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let said = unmount(folder.path()).expect_err("nothing is mounted").to_string();
        assert!(said.ends_with("nothing is mounted there"), "{said}");
        let said = unmount(Path::new("/proc")).expect_err("not ours").to_string();
        assert_eq!(said, "cannot unmount /proc: not an Extant mount (type proc)");
        assert!(unmount(&folder.path().join("missing")).is_err());
        assert_eq!(resolve(Path::new("/dev/../proc")).expect("resolve"), Path::new("/proc"));
    }
}
