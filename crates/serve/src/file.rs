//! A device as one file of a FUSE file system, for programs that open files and for the kernel's loop devices.
//!
//! The kernel caches none of its content: reads and writes bypass the page cache, so a write has reached the device
//! when it returns, and fsync(2) is a flush. The length of the file is that of the device and never changes.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use blockdev::{BlockDevice, Error};
use fuse_wire::{Answer, Attr, DAEMON, Entry, Errno, Features, Filesystem, Operation, Reply, Request};
use fuse_wire::{SYNC, SYNC_ONCE, StatFs};
use rustix::fs::{FallocateFlags, OFlags};
use rustix::process::{getgid, getpid, getuid};

use crate::served::Served;

/// The maximum number of reported device failures, so that a broken disk does not fill the log.
pub const PROBLEMS: u64 = 100;

const ROOT: u64 = 1;
const FILE: u64 = 2;
const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
/// The shift from a mode to the file type in a listing.
const TYPES: u32 = 12;
/// The time for which the kernel may cache attributes and names, in seconds: they never change.
const ALWAYS: u64 = 365 * 24 * 3600;
/// The values of `whence` in lseek(2).
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

/// The options for a device as a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileOptions {
    /// The name: no `/`, no zero byte, neither `.` nor `..`, 255 bytes at most.
    pub name: String,
    /// Refuses all changes.
    pub read_only: bool,
    /// fallocate(2) punches holes, which read as zeroes. If disabled, the kernel writes zeroes itself where it needs
    /// them, and discards nothing: better where holes cost the device as much as the data they replace.
    pub punch: bool,
}

/// A device as the only file of a file system.
pub struct File {
    device: Served,
    options: FileOptions,
    /// Whether changes are refused because the file system is stopping.
    stopped: AtomicBool,
    since: i64,
    problems: AtomicU64,
    report: Box<dyn Fn(&str) + Send + Sync>,
}

impl File {
    /// Creates the file system. `report` receives a sentence when the device fails, the first [`PROBLEMS`] times.
    pub fn new(
        device: Arc<dyn BlockDevice>,
        options: FileOptions,
        report: impl Fn(&str) + Send + Sync + 'static,
    ) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            device: Served::new(device, options.read_only),
            options,
            stopped: AtomicBool::new(false),
            since: since.as_secs() as i64,
            problems: AtomicU64::new(0),
            report: Box::new(report),
        }
    }

    fn attr(&self, node: u64) -> Answer<Attr> {
        let attr = Attr {
            ino: node,
            nlink: 1,
            uid: getuid().as_raw(),
            gid: getgid().as_raw(),
            atime: self.since,
            mtime: self.since,
            ctime: self.since,
            block_size: self.device.preferred(),
            ..Attr::default()
        };
        match node {
            ROOT => Ok(Attr { mode: DIRECTORY | 0o500, nlink: 2, ..attr }),
            FILE => {
                let mode = REGULAR | if self.device.read_only() { 0o400 } else { 0o600 };
                Ok(Attr { mode, size: self.device.len(), blocks: self.device.len().div_ceil(512), ..attr })
            }
            _ => Err(Errno::STALE),
        }
    }

    /// Reports an error and returns its number.
    fn failed(&self, e: &Error) -> Errno {
        match self.problems.fetch_add(1, Ordering::Relaxed) {
            count if count < PROBLEMS => (self.report)(&e.to_string()),
            PROBLEMS => (self.report)(&format!("{PROBLEMS} failures of the device; further ones are not reported")),
            _ => {}
        }
        match e {
            Error::ReadOnly(_) => Errno::ROFS,
            Error::OutOfRange { .. } => Errno::NOSPC,
            Error::Io { source, .. } => match source.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => Errno::NOSPC,
                io::ErrorKind::OutOfMemory => Errno::NOMEM,
                _ => Errno::IO,
            },
            _ => Errno::IO,
        }
    }

    fn done(&self, result: Result<(), Error>) -> Answer<()> {
        result.map_err(|e| self.failed(&e))
    }

    /// Checks that changes are permitted.
    fn admit(&self) -> Answer<()> {
        match (self.device.read_only(), self.stopped.load(Ordering::Acquire)) {
            (true, _) => Err(Errno::ROFS),
            (_, true) => Err(Errno::IO),
            _ => Ok(()),
        }
    }

    fn look_up(&self, dir: u64, name: &[u8], reply: &mut Reply<'_>) -> Answer<()> {
        match (dir, name == self.options.name.as_bytes()) {
            (ROOT, true) => {
                let attr = self.attr(FILE)?;
                reply.entry(&Entry { node: FILE, generation: 0, name_timeout: ALWAYS, attr_timeout: ALWAYS, attr })
            }
            (ROOT, false) => Err(Errno::NOENT),
            _ => Err(Errno::NOTDIR),
        }
    }

    fn list(&self, dir: u64, cookie: u64, size: u32, reply: &mut Reply<'_>) -> Answer<()> {
        if dir != ROOT {
            return Err(Errno::NOTDIR);
        }
        reply.limit(size);
        let names: [(&[u8], u64, u32); 3] =
            [(b".", ROOT, DIRECTORY), (b"..", ROOT, DIRECTORY), (self.options.name.as_bytes(), FILE, REGULAR)];
        let skip = usize::try_from(cookie).unwrap_or(usize::MAX);
        for (place, (name, node, kind)) in names.into_iter().enumerate().skip(skip) {
            if !reply.dirent(node, place as u64 + 1, kind >> TYPES, name) {
                break;
            }
        }
        Ok(())
    }

    fn read(&self, offset: u64, size: u32, reply: &mut Reply<'_>) -> Answer<()> {
        let left = self.device.len().saturating_sub(offset);
        let size = u32::try_from(left).map_or(size, |left| left.min(size));
        reply.fill(size, |buf| {
            self.done(self.device.read(offset, buf))?;
            Ok(buf.len())
        })
    }

    /// Writes as much as fits before the end, as on a device.
    fn write(&self, offset: u64, data: &[u8], sync: bool, reply: &mut Reply<'_>) -> Answer<()> {
        self.admit()?;
        let left = self.device.len().saturating_sub(offset);
        let fits = usize::try_from(left).map_or(data.len(), |left| left.min(data.len()));
        let data = data.get(..fits).unwrap_or_default();
        if data.is_empty() {
            return Err(Errno::NOSPC);
        }
        self.done(self.device.write(offset, data, sync))?;
        reply.written(data.len() as u32)
    }

    fn fallocate(&self, offset: u64, length: u64, mode: u32) -> Answer<()> {
        self.admit()?;
        let mode = FallocateFlags::from_bits(mode).ok_or(Errno::OPNOTSUPP)?;
        let end = offset.checked_add(length).ok_or(Errno::FBIG)?;
        let inside = end.min(self.device.len()).saturating_sub(offset);
        let kind = mode - FallocateFlags::KEEP_SIZE;
        if kind == FallocateFlags::PUNCH_HOLE {
            if !self.options.punch {
                return Err(Errno::OPNOTSUPP);
            }
            // a range beyond the end is empty
            return if inside == 0 { Ok(()) } else { self.done(self.device.write_zeroes(offset, inside, false)) };
        }
        if end > self.device.len() {
            return Err(Errno::NOSPC);
        }
        if kind == FallocateFlags::ZERO_RANGE {
            self.done(self.device.allocate_zeroes(offset, length, false))
        } else if kind.is_empty() {
            // all blocks are allocated
            Ok(())
        } else {
            Err(Errno::OPNOTSUPP)
        }
    }

    fn seek(&self, offset: u64, whence: u32, reply: &mut Reply<'_>) -> Answer<()> {
        let len = self.device.len();
        let hole = match whence {
            SEEK_DATA => false,
            SEEK_HOLE => true,
            _ => return Err(Errno::INVAL),
        };
        let mut at = offset;
        while at < len {
            let extent = self.device.extent(at, len - at).map_err(|e| self.failed(&e))?;
            if extent.hole == hole {
                return reply.number(at);
            }
            at += extent.len.max(1);
        }
        // after the last byte there is a hole
        if hole && offset < len { reply.number(len) } else { Err(Errno::NXIO) }
    }

    fn attribute(&self, node: u64, name: &[u8], size: u32, reply: &mut Reply<'_>) -> Answer<()> {
        if node == ROOT && name == DAEMON.as_bytes() {
            reply.value(size, getpid().as_raw_nonzero().to_string().as_bytes())
        } else if node == ROOT && (name == SYNC.as_bytes() || name == SYNC_ONCE.as_bytes()) {
            self.done(self.device.flush())?;
            reply.value(size, b"")
        } else {
            Err(Errno::NODATA)
        }
    }
}

impl Filesystem for File {
    fn features(&self) -> Features {
        Features::ASYNC_READ | Features::BIG_WRITES | Features::ASYNC_DIO | Features::MAX_PAGES
    }

    fn answer(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> Answer<()> {
        let node = request.node;
        match request.operation {
            Operation::Lookup { name } => self.look_up(node, name, reply),
            Operation::GetAttr => reply.attr(&self.attr(node)?, ALWAYS),
            Operation::SetAttr(changes) => {
                let attr = self.attr(node)?;
                let other_size = changes.size.is_some_and(|size| size != attr.size);
                if other_size || changes.mode.is_some() || changes.uid.is_some() || changes.gid.is_some() {
                    return Err(Errno::PERM);
                }
                // the times are those of the server's start
                reply.attr(&attr, ALWAYS)
            }
            Operation::Open { flags } => {
                let for_writing = OFlags::from_bits_retain(flags).intersects(OFlags::WRONLY | OFlags::RDWR);
                if self.device.read_only() && for_writing {
                    return Err(Errno::ROFS);
                }
                reply.opened_device()
            }
            Operation::OpenDir => reply.opened_dir(),
            Operation::Read { offset, size } => self.read(offset, size, reply),
            Operation::Write { offset, data, sync, .. } => self.write(offset, data, sync, reply),
            Operation::Fallocate { offset, length, mode } => self.fallocate(offset, length, mode),
            Operation::Seek { offset, whence } => self.seek(offset, whence, reply),
            Operation::ReadDir { cookie, size, .. } => self.list(node, cookie, size, reply),
            Operation::GetXattr { name, size } => self.attribute(node, name, size, reply),
            Operation::ListXattr { size } => reply.value(size, b""),
            Operation::StatFs => {
                let unit = self.device.preferred();
                let blocks = self.device.len() / u64::from(unit);
                let counts = StatFs { block_size: unit, fragment_size: unit, blocks, files: 1, ..StatFs::default() };
                reply.statfs(&StatFs { name_max: 255, ..counts })
            }
            Operation::Fsync { .. } | Operation::SyncFs => self.done(self.device.flush()),
            Operation::FsyncDir { .. }
            | Operation::Flush
            | Operation::Release
            | Operation::ReleaseDir
            | Operation::Access { .. }
            | Operation::Destroy => Ok(()),
            Operation::Create { .. }
            | Operation::MkNod { .. }
            | Operation::MkDir { .. }
            | Operation::Symlink { .. }
            | Operation::Link { .. }
            | Operation::Unlink { .. }
            | Operation::RmDir { .. }
            | Operation::Rename { .. } => Err(Errno::PERM),
            Operation::SetXattr { .. } | Operation::RemoveXattr { .. } => Err(Errno::OPNOTSUPP),
            Operation::ReadLink => Err(Errno::INVAL),
            Operation::Ioctl { .. } => Err(Errno::NOTTY),
            Operation::StatX | Operation::CopyFileRange { .. } | Operation::Other => Err(Errno::NOSYS),
        }
    }

    fn forget(&self, _: u64, _: u64) {}

    fn stop(&self) -> bool {
        // the kernel has no pages of the file
        false
    }

    fn finish(&self) -> io::Result<()> {
        self.stopped.store(true, Ordering::Release);
        self.device.flush().map_err(io::Error::other)
    }

    fn panicked(&self, _: u64, what: &str) {
        (self.report)(&format!("a request panicked: {what}"));
    }
}
