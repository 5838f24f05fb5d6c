//! Attaching a file system to a directory and detaching it.
//!
//! Root mounts with mount(2). Other users, and every mount with `auto_unmount`, use fusermount3, which has the
//! privilege and forces nosuid and nodev; it returns the open /dev/fuse through a socket.
//!
//! umount(2) of a FUSE file system returns before its server has ended (of `fuseblk`: after the volume is consistent,
//! but before the process has ended). So [`unmount`] first asks the mounted volume for its server's process, and waits
//! for that process after umount(2).

use crate::connection_watchdog::Watchdog;
use crate::loop_device::{self, LoopDevice};
use crate::mountinfo::{MountInfo, mounted_on, places_of};
use crate::{Error, Result, Transport, programs};
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

/// An extended attribute of the root that is stored in no file system: the PID of the server process, in decimal. Its
/// name is in no namespace of a file system, so it hides no stored attribute, and no list contains it. [`unmount`]
/// reads it from every server.
pub const DAEMON: &str = "extant.daemon";

/// Another such attribute: reading it makes all earlier changes durable, and fails where that was not possible. The
/// value names the files of which data was lost earlier, see [`Filesystem::lost`](crate::Filesystem::lost), unless
/// [`SYNC_ONCE`] has reported that; it is empty where there are none.
pub const SYNC: &str = "extant.sync";

/// As [`SYNC`]; what the value names then counts as reported.
pub const SYNC_ONCE: &str = "extant.sync.once";

/// The file system type in the list of mounts.
const TYPE: &str = "fuse.extant";
/// The type of a mount on a block device.
const TYPE_ON_DEVICE: &str = "fuseblk.extant";
/// The part of the type after the dot.
const SUBTYPE: &str = "extant";
const DEVICE: &str = "/dev/fuse";
/// The environment variable from which fusermount3 reads the descriptor of its socket.
const SOCKET_VARIABLE: &str = "_FUSE_COMMFD";
/// The lowest descriptor number of the connection. A process that is killed closes its files from the highest number
/// down; the fusermount3 process that then unmounts is woken by the end of its socket and must find the connection
/// dead.
const ABOVE: i32 = 100;
/// The maximum length of the value of [`SYNC`], in bytes.
const LONGEST_REPORT: usize = 32 << 10;
/// The maximum time that [`unmount`] waits for the server process, in seconds.
const PATIENCE: i64 = 60;

/// The users who may use a mounted volume. The kernel then checks permissions as on any file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Access {
    /// The user who mounted it.
    #[default]
    Owner,
    /// The user who mounted it, and root. To have each request sent and checked, the kernel is allowed to cache little.
    OwnerAndRoot,
    /// All users.
    All,
}

/// Whether reading a file updates its access time. Reads that the kernel serves from its page cache do not reach the
/// server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Atime {
    /// Never.
    #[default]
    Never,
    /// If the recorded access time is older than the last change, or than a day.
    Relative,
    /// Always.
    Strict,
}

/// Options for attaching a file system to a directory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AttachOptions {
    /// Read-only: nothing is written.
    pub read_only: bool,
    /// Each change is durable before it is answered.
    pub sync: bool,
    /// Each change of names is durable before it is answered.
    pub dirsync: bool,
    /// The rule for updating access times.
    pub atime: Atime,
    /// The users who may use the mount.
    pub access: Access,
    /// Device nodes are ignored. Forced for all users but root.
    pub nodev: bool,
    /// Set-user-id and set-group-id bits are ignored. Forced for all users but root.
    pub nosuid: bool,
    /// Programs on it cannot be run.
    pub noexec: bool,
    /// Symbolic links are not followed.
    pub nosymfollow: bool,
    /// fusermount3 unmounts it when the server process ends, for whatever reason.
    pub auto_unmount: bool,
    /// The kernel checks permissions even where only root has access.
    pub default_permissions: bool,
    /// The path of the volume: a file or a block device. If set, root's writable mounts are of type `fuseblk`, which
    /// receives sync(2), and whose umount(2) returns when all data is durable. Where the system has no loop devices at
    /// all, the mount is of the plain type, and [`Session::warning`](crate::Session::warning) reports it.
    pub device: Option<PathBuf>,
    /// The mount is of the plain type in any case.
    pub nofuseblk: bool,
    /// The command line, without its arguments, of a process that calls [`watchdog`](crate::watchdog()) with them. If
    /// it is empty no watchdog is started: a server that is killed may then leave a mount that hangs until its
    /// connection is aborted.
    pub watchdog: Vec<OsString>,
    /// The transport of requests.
    pub transport: Transport,
    /// The source in the list of mounts; by default the device.
    pub source: Option<String>,
}

impl AttachOptions {
    /// Whether the kernel checks permissions before it sends requests. Where only root has access (a mount by root for
    /// itself alone) no check is needed: mode bits and access control lists do not restrict root, and each creation and
    /// removal saves a request for the directory's attributes. A process of root's without its capabilities is not
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
    /// The kernel's device number of the mount; `None` where the list of mounts could not be read.
    number: Option<u32>,
    /// A descriptor of the connection, to check whether the mount is attached; the session has its own.
    device: OwnedFd,
    /// The socket to fusermount3, which unmounts when this is closed.
    _helper: Option<UnixStream>,
    /// A warning for the user about the type of the mount.
    warning: Option<String>,
}

impl Mount {
    /// Attaches a file system to `dir`; also returns the connection on which the kernel will send its requests.
    pub(crate) fn new(dir: &Path, options: &AttachOptions) -> Result<(Self, OwnedFd)> {
        attach(dir, options).map_err(|source| Error::Mount { dir: dir.to_owned(), source })
    }

    pub(crate) fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }

    /// The watchdog that aborts the connection when this process is killed.
    pub(crate) fn watchdog(&self, line: &[OsString]) -> Watchdog {
        Watchdog::new(line, &self.dir)
    }

    /// The kernel's device number of the mount.
    pub(crate) fn number(&self) -> Option<u32> {
        self.number
    }

    /// Detaches the mount, unless it is detached. With files still open it disappears from the directory tree at once
    /// and remains without a path until they are closed, or until this process ends.
    pub(crate) fn detach(&self) -> Result<()> {
        if !self.is_attached() {
            return Ok(());
        }
        let place = self.place()?;
        let done = detach(&place, false).or_else(|_| detach(&place, true));
        done.map_err(|source| Error::Unmount { dir: place, source })
    }

    /// The directory on which the mount is attached now: it may have been renamed since, or the mount moved.
    ///
    /// # Errors
    /// The mount is not attached anywhere, as after a lazy unmount, or another file system is mounted over it, which
    /// must not be unmounted in its place.
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
                Some(_) => "another file system is mounted over it: unmount that first",
                None => "it is no longer mounted anywhere, and ends when the last of its open files is closed",
            })
        })
    }

    /// Whether the mount is attached anywhere.
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
        // an error can no longer be reported; a dead mount that remains can be unmounted by hand
        let _ = self.detach();
    }
}

fn attach(dir: &Path, options: &AttachOptions) -> io::Result<(Mount, OwnedFd)> {
    let dir = folder(dir)?;
    let root = geteuid().is_root();
    if options.auto_unmount && !root && options.access == Access::Owner {
        // fusermount3 runs as root, whom the kernel would not allow to check whether the mount is dead
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

/// Checks as far as possible before a volume is opened that it can be mounted on `dir`; returns the resolved path.
///
/// # Errors
/// [`Error::Mount`]: the directory does not exist, or a dead mount is on it.
pub fn mount_point(dir: &Path) -> Result<PathBuf> {
    folder(dir).map_err(|source| Error::Mount { dir: dir.to_owned(), source })
}

fn folder(dir: &Path) -> io::Result<PathBuf> {
    let dead = |e: io::Error| match Errno::from_io_error(&e) {
        Some(Errno::NOTCONN | Errno::CONNABORTED) => {
            let what = "it is a dead mount: its server process has ended; run `extant umount` on it, then mount again";
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

/// Mounts as root; returns the connection, and a warning for the user.
fn attach_directly(dir: &Path, options: &AttachOptions) -> io::Result<(OwnedFd, Option<String>)> {
    let device = rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|e| io::Error::new(io::Error::from(e).kind(), format!("{DEVICE}: {}", io::Error::from(e))))?;
    let mut data = String::new();
    let (user, group) = (getuid().as_raw(), getgid().as_raw());
    // S_IFDIR; the permission bits of the root come with its attributes
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
                     for it; data not synced with fsync(2) is durable when `extant umount` returns, or after the \
                     interval of `commit` (-o nofuseblk selects this mode)"
                ));
            }
        }
    }
    rustix::mount::mount(source(options), dir, TYPE, flags, data.as_c_str())?;
    Ok((device, warning))
}

/// Mounts a loop device on the volume. Returns the reason where no process like this one can do that on this system.
fn attach_on_device(volume: &Path, dir: &Path, flags: MountFlags, data: &CStr) -> io::Result<Option<String>> {
    // removed with the mount
    let device = match (LoopDevice::on(volume), loop_device::unavailable_reason()) {
        (Ok(device), _) => device,
        (Err(_), Some(why)) => return Ok(Some(why)),
        (Err(e), None) => {
            let why = "there is no loop device, without which sync(2) does not reach the mount";
            return Err(io::Error::new(e.kind(), format!("{why} ({e}); use -o nofuseblk to mount without one")));
        }
    };
    match rustix::mount::mount(device.path(), dir, TYPE_ON_DEVICE, flags, data) {
        // a kernel without fuseblk, or a user namespace, in which it cannot be mounted
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
    // with this flag the kernel sends an fsync after each write
    flags.set(MountFlags::SYNCHRONOUS, options.sync);
    flags.set(MountFlags::DIRSYNC, options.dirsync);
    // only for the list of mounts: access times are recorded by the server alone
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
    // the socket is the helper's standard input: as an inheritable descriptor it would leak into programs started
    // meanwhile
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

/// Receives the descriptor that fusermount3 sends through the socket.
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

/// Detaches the mount on `dir`; with `lazy` even where files are open.
fn detach(dir: &Path, lazy: bool) -> io::Result<()> {
    let busy = || {
        let dir = shell_word(&dir.display().to_string());
        let why = format!("busy: a program has a file open or its working directory there (`fuser -vm {dir}`)");
        io::Error::new(io::ErrorKind::ResourceBusy, why)
    };
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

/// A word of a suggested command, quoted for a POSIX shell where it contains more than letters, digits and the
/// characters that have no meaning in one.
fn shell_word(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._/@:+-".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// The message of fusermount3, without its name or path at the start.
fn without_program(said: &str) -> &str {
    let said = said.trim();
    said.split_once("fusermount3: ").map_or(said, |(_, said)| said)
}

/// Unmounts the volume that [`mount`](crate::mount()) mounted on `dir`, in this process or another, and waits until its
/// server process has ended, so that the device is free again.
///
/// # Errors
/// [`Error::Unmount`]: no Extant volume is mounted there, files are open or it is mounted elsewhere as well
/// (`ResourceBusy`), permission is denied, or the server process did not end within a minute. [`Error::Finish`]: it is
/// unmounted, but some of the written data did not reach the device.
pub fn unmount(dir: &Path) -> Result<()> {
    unmount_and_wait(dir).map_err(|gone| match gone {
        UnmountError::Failed(source) => Error::Unmount { dir: dir.to_owned(), source },
        UnmountError::WithLoss(why) => Error::Finish(why),
    })
}

/// The error of an unmount.
enum UnmountError {
    /// It is still mounted, or its server process has not ended.
    Failed(io::Error),
    /// It is unmounted, but some of the written data did not reach the device.
    WithLoss(io::Error),
}

fn unmount_and_wait(dir: &Path) -> Result<(), UnmountError> {
    let dir = resolve(dir).map_err(UnmountError::Failed)?;
    let device = is_ours(&dir).map_err(UnmountError::Failed)?.device;
    // unknown where the server has ended, or where this user has no access
    let server = server_of(&dir).and_then(|pid| Some((pid, pidfd_open(pid, PidfdFlags::empty()).ok()?)));
    let synced = if server.is_some() { all_synced(&dir) } else { Ok(()) };
    detach(&dir, false).map_err(UnmountError::Failed)?;
    if let Some(place) = places_of(device).unwrap_or_default().first() {
        synced.map_err(UnmountError::WithLoss)?;
        let still = format!("it was unmounted there, but is mounted on {} as well: unmount that, too", place.display());
        return Err(UnmountError::Failed(io::Error::new(io::ErrorKind::ResourceBusy, still)));
    }
    if let Some((pid, server)) = server
        && pid.as_raw_nonzero().get().cast_unsigned() != std::process::id()
    {
        wait_for(pid, &server).map_err(UnmountError::Failed)?;
    }
    synced.map_err(UnmountError::WithLoss)
}

/// Makes all changes durable and returns the error where that failed, which umount(2) does not report.
fn all_synced(dir: &Path) -> io::Result<()> {
    match read_sync(dir, SYNC) {
        // the server is of an older version
        Err(e) if matches!(Errno::from_io_error(&e), Some(Errno::NODATA | Errno::OPNOTSUPP)) => Ok(()),
        synced => synced,
    }
}

/// Reads [`SYNC`] or [`SYNC_ONCE`] of the root of a mount.
///
/// # Errors
/// That of the system call; otherwise, where the value names files that lost data, an error with that text.
pub fn read_sync(root: &Path, attribute: &str) -> io::Result<()> {
    let mut value = vec![0u8; LONGEST_REPORT];
    let length = rustix::fs::getxattr(root, OsStr::new(attribute), &mut value[..])?;
    match value.get(..length) {
        None | Some([]) => Ok(()),
        Some(files) => Err(io::Error::other(String::from_utf8_lossy(files).into_owned())),
    }
}

fn wait_for(pid: Pid, server: &OwnedFd) -> io::Result<()> {
    let mut fds = [PollFd::new(server, PollFlags::IN)];
    loop {
        match poll(&mut fds, Some(&Timespec { tv_sec: PATIENCE, tv_nsec: 0 })) {
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
            Ok(0) => {
                let still = format!("it is unmounted, but its server process {pid} has not ended");
                return Err(io::Error::new(io::ErrorKind::TimedOut, still));
            }
            Ok(_) => return Ok(()),
        }
    }
}

/// Returns the mount on a directory; an error where its type is not Extant's.
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

/// Resolves symbolic links in a path. The last component is not resolved where it cannot be accessed, as on a dead
/// mount.
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

/// The server process of the volume mounted on a directory.
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

    #[test]
    fn directories_are_quoted_in_commands() {
        assert_eq!(shell_word("/mnt/a-b.c"), "/mnt/a-b.c");
        assert_eq!(shell_word("/mnt/a b"), "'/mnt/a b'");
        assert_eq!(shell_word("/mnt/$(x)'s"), r"'/mnt/$(x)'\''s'");
        assert_eq!(shell_word(""), "''");
    }
}
