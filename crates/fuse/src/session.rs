//! The transport: the crate `fuser` reads the kernel's requests from /dev/fuse, several threads at once, and this file
//! turns them into calls of [`Ops`] and the results into answers.
//!
//! What the kernel is allowed to keep is decided here:
//!
//! - names, also those that do not exist, attributes, link targets and content: as long as it likes;
//! - OPEN and OPENDIR are answered once with ENOSYS: the kernel then sends neither them nor FLUSH, RELEASE and RELEASEDIR
//!   again, and keeps pages and listings across openings. Not where single files may be unreadable (encryption) or where
//!   each user has to be judged (allow_root).

use crate::mount::Mount;
use crate::ops::{Answer, Ops, ROOT, node_of};
use crate::options::{Access, MountOptions};
use crate::{Error, Result};
use fs::{Attributes, DirEntry, FileKind, Timestamp, Volume};
use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, IoctlFlags,
    KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyXattr, Request, SessionACL,
};
use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// "As long as it likes": ten years.
const ALWAYS: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Largest request in bytes that we let the kernel send. Answers to reads may be as large too; the kernel's own limit
/// is 1 MiB by default.
const MAX_REQUEST: u32 = 1 << 20;

/// Requests of the kernel's own making (read-ahead) that may wait at once.
const MAX_BACKGROUND: u16 = 64;

/// Fewest and most threads; between them, as many as there are processors. A thread that waits for the device answers
/// nobody else, so a few are there even on one processor.
const THREADS: (usize, usize) = (4, 16);

/// FS_IOC_GETFLAGS, which lsattr(1) uses.
const GET_FLAGS: u32 = 0x8008_6601;

thread_local! {
    /// What a read fills before it goes to the kernel.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A mounted volume. It is unmounted when this is dropped.
pub struct Session {
    inner: fuser::Session<Front>,
    mount: Arc<Mount>,
}

/// Ends a [`Session`] from another thread.
#[derive(Debug, Clone)]
pub struct Unmounter {
    mount: Arc<Mount>,
}

/// Mounts a volume on a directory. Nothing is answered before [`Session::run`].
///
/// `on_problem` gets one sentence for each file in which damage is met, from any thread.
///
/// # Errors
/// [`Error::Mount`] where the directory, the system or the user's rights do not allow it.
pub fn mount(
    volume: Arc<Volume>,
    dir: &Path,
    options: &MountOptions,
    on_problem: impl Fn(&str) + Send + Sync + 'static,
) -> Result<Session> {
    let ops = Ops::new(volume, Box::new(on_problem));
    let judged = options.access == Access::OwnerAndRoot;
    let front =
        Front { ask_opens: judged || ops.checks_opens(), keep: if judged { Duration::ZERO } else { ALWAYS }, ops };
    let mut config = fuser::Config::default();
    config.n_threads =
        Some(std::thread::available_parallelism().map_or(THREADS.0, usize::from).clamp(THREADS.0, THREADS.1));
    // each thread opens the device again for this, which fusermount3 may have done for a user who cannot
    config.clone_fd =
        rustix::fs::access("/dev/fuse", rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK).is_ok();
    // without allow_other the kernel itself lets only the owner in
    let acl = if judged { SessionACL::RootAndOwner } else { SessionACL::All };
    let (mount, connection) = Mount::new(dir, options)?;
    let inner = fuser::Session::from_fd(front, connection, acl, config).map_err(Error::Connection)?;
    Ok(Session { inner, mount: Arc::new(mount) })
}

impl Session {
    /// Answers requests until the volume is unmounted.
    ///
    /// # Errors
    /// [`Error::Connection`] where the kernel closed it in another way.
    pub fn run(self) -> Result<()> {
        let outcome = self.inner.run().map_err(Error::Connection);
        drop(self.mount);
        outcome
    }

    /// What ends this session from another thread.
    #[must_use]
    pub fn unmounter(&self) -> Unmounter {
        Unmounter { mount: Arc::clone(&self.mount) }
    }
}

impl Unmounter {
    /// Unmounts the volume. Where files are still open it disappears from the directory tree, but [`Session::run`]
    /// returns only when they are closed.
    ///
    /// # Errors
    /// [`Error::Unmount`].
    pub fn unmount(&self) -> Result<()> {
        self.mount.detach()
    }
}

/// The side of the volume that `fuser` sees.
struct Front {
    ops: Ops,
    /// Whether the kernel has to ask before each opening.
    ask_opens: bool,
    /// How long the kernel may keep names and attributes.
    keep: Duration,
}

fn number(errno: rustix::io::Errno) -> Errno {
    Errno::from_i32(errno.raw_os_error())
}

fn type_of(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
    }
}

fn time(t: Timestamp) -> SystemTime {
    let whole = Duration::from_secs(t.seconds.unsigned_abs());
    let epoch = SystemTime::UNIX_EPOCH;
    let second = if t.seconds < 0 { epoch.checked_sub(whole) } else { epoch.checked_add(whole) };
    second.and_then(|s| s.checked_add(Duration::from_nanos(t.nanos.into()))).unwrap_or(epoch)
}

/// A device's numbers in the 32 bits that FUSE has for them: 12 of the major, 20 of the minor.
fn device(numbers: Option<(u32, u32)>) -> u32 {
    numbers.map_or(0, |(major, minor)| (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & 0xf_ff00) << 12))
}

/// As the kernel takes them, for the inode shown as `inode`.
fn attr(a: &Attributes, inode: u64) -> FileAttr {
    FileAttr {
        ino: INodeNo(inode),
        size: a.size,
        blocks: a.blocks,
        atime: time(a.atime),
        mtime: time(a.mtime),
        ctime: time(a.ctime),
        crtime: SystemTime::UNIX_EPOCH,
        kind: type_of(a.kind),
        perm: a.mode & 0o7777,
        nlink: a.links.into(),
        uid: a.uid,
        gid: a.gid,
        rdev: device(a.device),
        blksize: a.block_size,
        flags: 0,
    }
}

/// Attributes of a file of which only the type is known.
fn bare(inode: u64, kind: FileType) -> FileAttr {
    let epoch = SystemTime::UNIX_EPOCH;
    FileAttr {
        ino: INodeNo(inode),
        size: 0,
        blocks: 0,
        atime: epoch,
        mtime: epoch,
        ctime: epoch,
        crtime: epoch,
        kind,
        perm: 0,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 512,
        flags: 0,
    }
}

/// Answers a question for bytes by their number, or with the bytes where there is room for them.
fn xattr(answer: Answer<Vec<u8>>, size: u32, reply: ReplyXattr) {
    match answer {
        Err(e) => reply.error(number(e)),
        Ok(value) if size == 0 => reply.size(value.len().try_into().unwrap_or(u32::MAX)),
        Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(&value),
    }
}

impl Filesystem for Front {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let mut wanted = InitFlags::FUSE_EXPORT_SUPPORT
            | InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_READDIRPLUS_AUTO
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_ASYNC_DIO
            | InitFlags::FUSE_CACHE_SYMLINKS;
        wanted.set(InitFlags::FUSE_POSIX_ACL, self.ops.has_xattrs());
        let offered = config.capabilities();
        let refused = |what: &str| io::Error::other(format!("the kernel refuses {what}"));
        config.add_capabilities(wanted & offered).map_err(|_| refused("what it offered"))?;
        config.set_max_write(MAX_REQUEST).map_err(|_| refused("large requests"))?;
        config.set_max_background(MAX_BACKGROUND).map_err(|_| refused("requests in the background"))?;
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.ops.lookup(parent.0, name.as_bytes()) {
            Ok(Some(a)) => {
                let node = node_of(a.inode);
                // fuser knows one number for the node and the inode shown, so the root's must be asked for again
                let keep = if node == ROOT { Duration::ZERO } else { self.keep };
                let generation = if node == ROOT { 0 } else { a.generation };
                reply.entry_with_ttls(&keep, &self.keep, &attr(&a, node), Generation(generation.into()));
            }
            // node 0: there is no such name, and the kernel may keep that too
            Ok(None) => reply.entry(&self.keep, &bare(0, FileType::RegularFile), Generation(0)),
            Err(e) => reply.error(number(e)),
        }
    }

    fn getattr(&self, _: &Request, node: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.ops.getattr(node.0) {
            Ok(a) => reply.attr(&self.keep, &attr(&a, a.inode.get().into())),
            Err(e) => reply.error(number(e)),
        }
    }

    fn readlink(&self, _: &Request, node: INodeNo, reply: ReplyData) {
        match self.ops.readlink(node.0) {
            Ok(target) => reply.data(&target),
            Err(e) => reply.error(number(e)),
        }
    }

    fn open(&self, _: &Request, node: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        if !self.ask_opens {
            return reply.error(Errno::ENOSYS);
        }
        match self.ops.open(node.0) {
            Ok(()) => reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH),
            Err(e) => reply.error(number(e)),
        }
    }

    fn opendir(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        if self.ask_opens {
            reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_CACHE_DIR);
        } else {
            reply.error(Errno::ENOSYS);
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn read(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        BUFFER.with_borrow_mut(|buffer| {
            let size = size as usize;
            if buffer.len() < size {
                buffer.resize(size, 0);
            }
            match self.ops.read(node.0, offset, &mut buffer[..size]) {
                Ok(length) => reply.data(&buffer[..length.min(size)]),
                Err(e) => reply.error(number(e)),
            }
        });
    }

    fn readdir(&self, _: &Request, node: INodeNo, _: FileHandle, cookie: u64, mut reply: ReplyDirectory) {
        let added = self.ops.readdir(node.0, cookie, |entry, next| {
            let kind = entry.kind.map_or(FileType::RegularFile, type_of);
            reply.add(INodeNo(entry.inode.get().into()), next, kind, OsStr::from_bytes(&entry.name))
        });
        match added {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(number(e)),
        }
    }

    fn readdirplus(&self, _: &Request, node: INodeNo, _: FileHandle, cookie: u64, mut reply: ReplyDirectoryPlus) {
        let added = self.ops.readdirplus(node.0, cookie, |entry, next, attributes| {
            let (keep, attr, generation) = match attributes {
                Some(a) => (self.keep, attr(a, a.inode.get().into()), a.generation),
                // listed, but looked up again before anybody sees more of it than its name
                None => (Duration::ZERO, unknown(entry), 0),
            };
            let name = OsStr::from_bytes(&entry.name);
            reply.add(attr.ino, next, name, &keep, &attr, Generation(generation.into()))
        });
        match added {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(number(e)),
        }
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        match self.ops.statfs() {
            Ok(s) => reply.statfs(
                s.blocks,
                s.blocks_free,
                s.blocks_available,
                s.files,
                s.files_free,
                s.block_size,
                s.name_max,
                s.block_size,
            ),
            Err(e) => reply.error(number(e)),
        }
    }

    fn getxattr(&self, _: &Request, node: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        xattr(self.ops.getxattr(node.0, name.as_bytes()), size, reply);
    }

    fn listxattr(&self, request: &Request, node: INodeNo, size: u32, reply: ReplyXattr) {
        xattr(self.ops.listxattr(node.0, request.uid() == 0), size, reply);
    }

    fn ioctl(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        _: IoctlFlags,
        command: u32,
        _: &[u8],
        size: u32,
        reply: ReplyIoctl,
    ) {
        if command != GET_FLAGS || size < 4 {
            return reply.error(Errno::ENOTTY);
        }
        match self.ops.flags(node.0) {
            Ok(flags) => reply.ioctl(0, &u32::to_ne_bytes(flags)),
            Err(e) => reply.error(number(e)),
        }
    }

    fn lseek(&self, _: &Request, node: INodeNo, _: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        // SEEK_DATA and SEEK_HOLE; the kernel does the others itself
        let (Ok(from), 3 | 4) = (u64::try_from(offset), whence) else { return reply.error(Errno::EINVAL) };
        match self.ops.seek(node.0, from, whence == 3).map(i64::try_from) {
            Ok(Ok(at)) => reply.offset(at),
            Ok(Err(_)) => reply.error(Errno::EOVERFLOW),
            Err(e) => reply.error(number(e)),
        }
    }
}

/// What is known of a file from its directory alone.
fn unknown(entry: &DirEntry) -> FileAttr {
    bare(entry.inode.get().into(), entry.kind.map_or(FileType::RegularFile, type_of))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_and_after_2038() {
        for (seconds, nanos) in [(0, 0), (-1, 999_999_999), (-2_147_483_648, 1), (15_032_385_535, 5)] {
            let said = time(Timestamp { seconds, nanos });
            let (whole, rest) = match said.duration_since(SystemTime::UNIX_EPOCH) {
                Ok(after) => (i128::from(after.as_secs()), after.subsec_nanos()),
                Err(before) => {
                    let total = -(before.duration().as_nanos() as i128);
                    (total.div_euclid(1_000_000_000), total.rem_euclid(1_000_000_000) as u32)
                }
            };
            assert_eq!((whole, rest), (i128::from(seconds), nanos));
        }
    }

    #[test]
    fn device_numbers_keep_their_bits() {
        for (major, minor) in [(1, 3), (8, 255), (259, 1), (4095, 70_000), (0xfff, 0xf_ffff)] {
            let coded = device(Some((major, minor)));
            assert_eq!(((coded >> 8) & 0xfff, (coded & 0xff) | ((coded >> 12) & 0xf_ff00)), (major, minor));
        }
    }
}
