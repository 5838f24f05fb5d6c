//! Regular files and block devices of the system.
//!
//! 1. Length and kind are those at opening. A file that is truncated later returns `UnexpectedEof`, never short reads
//!    or invented bytes; one that grows has its length at opening.
//! 2. A volume opened for writing is locked against every other program ([`crate::Error::Open`], `ResourceBusy`), also
//!    against those that access the same bytes in another way: by another name, through a loop device or a partition.
//! 3. With O_DIRECT, requests that the system would not accept (offset, length or memory not aligned) are read and
//!    written through an aligned buffer. A write that covers a part of a sector is made through the page cache, alone:
//!    O_DIRECT is switched off for that moment, and the kernel merges the part with the rest. No other write is in
//!    flight then, so none can be overwritten with the rest.
//! 4. A flush that failed is never followed by one that succeeds: the kernel reports lost pages once and then forgets
//!    them.
//!
//! The strategies for batches were measured (docs/MEASUREMENTS.md, "Batches"). A batch of reads first reads cached
//! bytes from the page cache (RWF_NOWAIT, in the calling thread), and submits the rest to io_uring. Writes through the
//! page cache are copies into memory, made one by one; the relevant queue for them is the kernel's own, at the flush.

use parking_lot::{RwLock, RwLockReadGuard};
use std::fs::{self, File};
use std::io::{self, IoSliceMut, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{
    Advice, AtFlags, FallocateFlags, Mode, OFlags, StatxFlags, fadvise, fallocate, fcntl_getfl, fcntl_setfl, statx,
};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use crate::job::Job;
use crate::lock::LayerLocks;
use crate::uring::Rings;
use crate::{AlignedBuf, BlockDevice, Error, Extent, Geometry, Op, Read, Result, Write, extent, lock, threads};

/// Options for opening a file or block device. The default reads through the page cache and takes no lock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// Allows changes. The volume is then locked against all others that lock it; a block device is also locked against
    /// mounts by the kernel, and one that is mounted, in whatever way, is refused unless `mounted` is set.
    pub write: bool,
    /// Bypasses the page cache (O_DIRECT).
    pub direct: bool,
    /// Locks writers out while it is open for reading: takes a shared lock, and refuses a device that is mounted for
    /// writing. With `write` the lock is exclusive anyway.
    pub exclusive: bool,
    /// Reads come in batches, in an order chosen by the reader: disables the kernel's read-ahead. It would read up to
    /// its whole window (8 MiB on some machines) after each read, which for a scan of scattered blocks is many times
    /// the requested amount.
    pub planned: bool,
    /// With `write`: also accepts a block device that the kernel has mounted. Only for callers that know that the mount
    /// is read-only, like that of the root while it is checked at boot.
    pub mounted: bool,
    /// The maximum time to wait for another program that is about to release the volume, such as one that has just
    /// unmounted it.
    pub patience: Duration,
}

/// The strategy for the requests of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Batching {
    /// One after the other, in the calling thread.
    Serial,
    /// By several threads.
    Threads,
    /// Through io_uring, up to 64 in flight; by threads if the kernel does not support it.
    Queue,
}

/// A regular file or a block device.
///
/// A flush is fsync(2) the first time and fdatasync(2) from then on, so it guarantees what the file system and the disk
/// guarantee for those; a file that was just created may still lose its name with its directory. A discard punches a
/// hole into a file, and zeroes and unmaps on a block device that supports it; otherwise it does nothing.
///
/// Not to be used across fork(2): it must be opened in the process that uses it.
#[derive(Debug)]
pub struct FileDevice {
    file: File,
    /// The locks of the layers beneath.
    _layer_locks: LayerLocks,
    geometry: Geometry,
    direct: Option<Alignment>,
    strategy: Strategy,
    /// Locked for writing by a write that covers a part of a sector, for reading by all others; only with O_DIRECT.
    sectors: RwLock<()>,
    synced: AtomicBool,
    flush_failed: AtomicBool,
    cannot_discard: AtomicBool,
}

/// A [`Batching`] with its resources.
#[derive(Debug)]
enum Strategy {
    Serial,
    Threads,
    Queue(Rings),
}

/// The alignment that O_DIRECT requires of a request; powers of two, in bytes.
#[derive(Debug, Clone, Copy)]
struct Alignment {
    /// The alignment of the address in memory.
    memory: usize,
    /// The alignment of offset and length.
    offset: usize,
}

/// An aligned read that includes an unaligned one.
struct Bounce {
    buf: AlignedBuf,
    /// The offset of `buf` on the device.
    start: u64,
    /// Bytes in `buf` before the requested ones.
    skip: usize,
}

/// The maximum size in bytes of aligned buffers for one batch; a batch that needs more is made in parts.
const BOUNCE_BYTES: usize = 16 << 20;

/// The interval of attempts to open a volume in use.
const AGAIN: Duration = Duration::from_millis(10);

impl FileDevice {
    /// Opens the regular file or block device at `path`.
    ///
    /// # Errors
    /// [`Error::Open`]: no such file, a directory, another kind of file, permission denied, in use, or no support for
    /// O_DIRECT if that was requested.
    pub fn open(path: impl AsRef<Path>, options: OpenOptions) -> Result<Self> {
        let path = path.as_ref();
        let start = Instant::now();
        let mut outcome = Self::open_file(path, options);
        while outcome.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::ResourceBusy)
            && start.elapsed() < options.patience
        {
            thread::sleep(AGAIN);
            outcome = Self::open_file(path, options);
        }
        outcome.map_err(|source| Error::Open { device: path.display().to_string(), source: with_reason(source) })
    }

    /// The device of a regular file that the caller has just created at `path` and opened for reading and writing; locked
    /// as with [`OpenOptions::write`]. Whatever `path` names by now, it is that file.
    ///
    /// # Errors
    /// [`Error::Open`]: in use.
    pub fn of_new_file(file: File, path: impl AsRef<Path>) -> Result<Self> {
        let options = OpenOptions { write: true, ..OpenOptions::default() };
        Self::of_file(file, options)
            .map_err(|source| Error::Open { device: path.as_ref().display().to_string(), source: with_reason(source) })
    }

    /// The same regular file with at least `len` bytes: a shorter one is lengthened by a hole. It stays open and locked
    /// meanwhile, so whatever its path names by now, it is that file.
    ///
    /// # Errors
    /// Those of the system: not open for writing, no regular file, too long for its file system.
    pub fn lengthened(mut self, len: u64) -> io::Result<Self> {
        let present = self.geometry.len;
        if present < len {
            self.file.set_len(len)?;
        }
        self.geometry = Geometry { len: present.max(len), ..self.geometry };
        Ok(self)
    }

    fn open_file(path: &Path, options: OpenOptions) -> io::Result<Self> {
        // checked before it is opened: opening a named pipe would wait for its other end
        let block_device = is_block_device(&fs::metadata(path)?)?;
        let mut flags = OFlags::CLOEXEC | if options.write { OFlags::RDWR } else { OFlags::RDONLY };
        flags.set(OFlags::DIRECT, options.direct);
        flags.set(OFlags::EXCL, options.write && block_device && !options.mounted);
        let file = File::from(rustix::fs::open(path, flags, Mode::empty()).map_err(|e| match e {
            Errno::INVAL if options.direct => unsupported("its file system does not support direct I/O"),
            e => e.into(),
        })?);
        Self::of_file(file, options)
    }

    /// `file`: opened according to the options.
    fn of_file(mut file: File, options: OpenOptions) -> io::Result<Self> {
        if options.planned {
            // advice only: without it, reads are still correct
            let _ = fadvise(&file, 0, None, Advice::Random);
        }
        let metadata = file.metadata()?;
        let block_device = is_block_device(&metadata)?;
        if options.write || options.exclusive {
            lock::take(&file, options.write)?;
        }
        let (len, sector) = if block_device {
            // the size of a block device is not in its metadata
            (file.seek(SeekFrom::End(0))?, rustix::fs::ioctl_blksszget(&file).unwrap_or(512))
        } else {
            (metadata.len(), 512)
        };
        let layer_locks = match options.write || options.exclusive {
            true if !options.mounted => lock::guard(&file, len, options.write)?,
            _ => LayerLocks::default(),
        };
        let direct = options.direct.then(|| Alignment::of(&file));
        let device = Self {
            file,
            _layer_locks: layer_locks,
            geometry: Geometry { sector, read_only: !options.write, ..Geometry::new(len) },
            direct,
            strategy: Strategy::Serial,
            sectors: RwLock::new(()),
            synced: AtomicBool::new(false),
            flush_failed: AtomicBool::new(false),
            cannot_discard: AtomicBool::new(false),
        };
        Ok(device.with_batching(Batching::Queue))
    }

    /// The same device with another strategy for batches; the one chosen at opening is the fastest measured.
    pub fn with_batching(self, batching: Batching) -> Self {
        let strategy = match batching {
            Batching::Serial => Strategy::Serial,
            Batching::Threads => Strategy::Threads,
            Batching::Queue => Rings::new().map_or(Strategy::Threads, Strategy::Queue),
        };
        Self { strategy, ..self }
    }

    /// The strategy for batches: [`Batching::Queue`] only if the kernel supports it.
    pub fn batching(&self) -> Batching {
        match self.strategy {
            Strategy::Serial => Batching::Serial,
            Strategy::Threads => Batching::Threads,
            Strategy::Queue(_) => Batching::Queue,
        }
    }

    /// Makes a read if the page cache has all of it; if not, it does not wait, and the kernel has begun to read it.
    fn take_cached(&self, r: &mut Read<'_>) -> bool {
        self.direct.is_none()
            && self.batching() != Batching::Serial
            && preadv2(&self.file, &mut [IoSliceMut::new(r.buf)], r.offset, ReadWriteFlags::NOWAIT) == Ok(r.buf.len())
    }

    /// Runs the jobs to their end, or as far as the strategy completes them.
    fn run(&self, jobs: &mut [Job<'_>]) {
        match &self.strategy {
            Strategy::Serial => {}
            Strategy::Threads => threads::run(&self.file, jobs),
            Strategy::Queue(rings) => rings.run(&self.file, jobs),
        }
    }

    /// The unit in which a request is resumed, in bytes.
    fn step(&self) -> usize {
        self.direct.map_or(1, |alignment| alignment.offset)
    }

    /// The alignment that O_DIRECT requires, if the request does not have it and needs an aligned buffer.
    fn required_alignment(&self, offset: u64, bytes: &[u8]) -> Option<Alignment> {
        self.direct.filter(|alignment| !alignment.fits(offset, bytes))
    }

    /// The aligned read to make instead of the requested one, if the system would not accept that.
    fn read_bounce(&self, offset: u64, buf: &[u8]) -> Option<Bounce> {
        let alignment = self.required_alignment(offset, buf)?;
        let skip = (offset % alignment.offset as u64) as usize;
        let span = (skip + buf.len()).next_multiple_of(alignment.offset);
        Some(Bounce { buf: AlignedBuf::zeroed(span, alignment.memory), start: offset - skip as u64, skip })
    }

    /// An aligned copy of `data`, if the system would not accept it in place.
    fn write_bounce(&self, offset: u64, data: &[u8]) -> Option<AlignedBuf> {
        let alignment = self.required_alignment(offset, data)?;
        let mut copy = AlignedBuf::zeroed(data.len(), alignment.memory);
        copy.copy_from_slice(data);
        Some(copy)
    }

    /// Whether a write covers a part of a sector, so that it cannot be made with O_DIRECT.
    fn splits_sector(&self, offset: u64, data: &[u8]) -> bool {
        let step = self.step();
        !offset.is_multiple_of(step as u64) || !data.len().is_multiple_of(step)
    }

    /// Locks the sectors shared while writes of whole sectors are in flight.
    fn whole_sectors(&self) -> Option<RwLockReadGuard<'_, ()>> {
        self.direct.map(|_| self.sectors.read())
    }

    fn read_part(&self, reads: &mut [&mut Read<'_>]) {
        let mut bounces: Vec<_> = reads.iter().map(|r| self.read_bounce(r.offset, r.buf)).collect();
        let mut jobs: Vec<_> = reads
            .iter_mut()
            .zip(&mut bounces)
            .map(|(r, bounce)| match bounce {
                Some(bounce) => bounce.job(r.buf.len(), self.step()),
                None => Job::read(r.offset, r.buf, r.buf.len(), self.step()),
            })
            .collect();
        self.run(&mut jobs);
        let outcomes: Vec<_> = jobs.into_iter().map(|job| job.finish(&self.file)).collect();
        for ((r, bounce), outcome) in reads.iter_mut().zip(bounces).zip(outcomes) {
            if let (Some(bounce), Ok(())) = (bounce, &outcome) {
                bounce.copy_to(r.buf);
            }
            r.result = outcome.map_err(|source| io_error(Op::Read, r.offset, r.buf.len(), source));
        }
    }

    /// Makes writes that cover whole sectors.
    fn write_part(&self, writes: &mut [&mut Write<'_>]) {
        let _shared = self.whole_sectors();
        let bounces: Vec<_> = writes.iter().map(|w| self.write_bounce(w.offset, w.data)).collect();
        let mut jobs: Vec<_> = writes
            .iter()
            .zip(&bounces)
            .map(|(w, bounce)| Job::write(w.offset, bounce.as_deref().unwrap_or(w.data), self.step()))
            .collect();
        self.run(&mut jobs);
        for (w, job) in writes.iter_mut().zip(jobs) {
            w.result = job.finish(&self.file).map_err(|source| io_error(Op::Write, w.offset, w.data.len(), source));
        }
    }

    /// Makes a write that covers a part of a sector: point 3 of the module documentation.
    fn write_split(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let _alone = self.sectors.write();
        let flags = fcntl_getfl(&self.file)?;
        fcntl_setfl(&self.file, flags - OFlags::DIRECT)?;
        let written = Job::write(offset, data, 1).finish(&self.file);
        fcntl_setfl(&self.file, flags)?;
        written
    }
}

impl BlockDevice for FileDevice {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let len = buf.len();
        self.geometry.admit(Op::Read, offset, len as u64)?;
        let outcome = match self.read_bounce(offset, buf) {
            Some(mut bounce) => bounce.job(len, self.step()).finish(&self.file).map(|()| bounce.copy_to(buf)),
            None => Job::read(offset, buf, len, self.step()).finish(&self.file),
        };
        outcome.map_err(|source| io_error(Op::Read, offset, len, source))
    }

    fn read_many(&self, reads: &mut [Read<'_>]) {
        let mut waiting = Vec::new();
        for r in reads {
            r.result = self.geometry.admit(Op::Read, r.offset, r.buf.len() as u64);
            if r.result.is_ok() && !self.take_cached(r) {
                waiting.push(r);
            }
        }
        if self.batching() == Batching::Serial || waiting.len() < 2 {
            for r in waiting {
                r.result = self.read(r.offset, r.buf);
            }
            return;
        }
        in_parts(
            &mut waiting,
            |r| self.required_alignment(r.offset, r.buf).map_or(0, |_| r.buf.len()),
            |part| self.read_part(part),
        );
    }

    fn read_cached(&self, reads: &mut [Read<'_>]) -> usize {
        let waits = |r: &mut Read<'_>| {
            r.result = self.geometry.admit(Op::Read, r.offset, r.buf.len() as u64);
            r.result.is_err() || !self.take_cached(r)
        };
        reads.iter_mut().position(waits).unwrap_or(reads.len())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.geometry.admit(Op::Write, offset, data.len() as u64)?;
        let outcome = if self.splits_sector(offset, data) {
            self.write_split(offset, data)
        } else {
            let _shared = self.whole_sectors();
            let bounce = self.write_bounce(offset, data);
            Job::write(offset, bounce.as_deref().unwrap_or(data), self.step()).finish(&self.file)
        };
        outcome.map_err(|source| io_error(Op::Write, offset, data.len(), source))
    }

    fn write_many(&self, writes: &mut [Write<'_>]) {
        let batch = self.direct.is_some() && self.batching() != Batching::Serial && writes.len() > 1;
        let mut whole = Vec::new();
        for w in writes {
            if !batch || self.splits_sector(w.offset, w.data) {
                w.result = self.write(w.offset, w.data);
                continue;
            }
            w.result = self.geometry.admit(Op::Write, w.offset, w.data.len() as u64);
            if w.result.is_ok() {
                whole.push(w);
            }
        }
        in_parts(
            &mut whole,
            |w| self.required_alignment(w.offset, w.data).map_or(0, |_| w.data.len()),
            |part| self.write_part(part),
        );
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.geometry.admit(Op::Write, offset, len)?;
        // holes consist of whole sectors; the parts before and after are written
        let sector = u64::from(self.geometry.sector);
        let start = offset.next_multiple_of(sector);
        let end = (offset + len) / sector * sector;
        if start >= end {
            return self.write(offset, &vec![0; len as usize]);
        }
        self.write(offset, &vec![0; (start - offset) as usize])?;
        // on a block device both flags zero, the second one by writing if necessary
        let flags = [FallocateFlags::PUNCH_HOLE, FallocateFlags::ZERO_RANGE];
        let zeroed = flags
            .into_iter()
            .any(|flag| fallocate(&self.file, flag | FallocateFlags::KEEP_SIZE, start, end - start).is_ok());
        if !zeroed {
            let zeroes = vec![0; (end - start).min(1 << 20) as usize];
            let mut at = start;
            while at < end {
                let part = (end - at).min(zeroes.len() as u64);
                self.write(at, &zeroes[..part as usize])?;
                at += part;
            }
        }
        self.write(end, &vec![0; (offset + len - end) as usize])
    }

    fn flush(&self) -> Result<()> {
        self.geometry.admit(Op::Flush, 0, 0)?;
        let failed = |source| io_error(Op::Flush, 0, 0, source);
        if self.flush_failed.load(Ordering::SeqCst) {
            return Err(failed(io::Error::other("an earlier flush failed, so writes may be lost")));
        }
        let synced = if self.synced.load(Ordering::SeqCst) { self.file.sync_data() } else { self.file.sync_all() };
        match &synced {
            Ok(()) => self.synced.store(true, Ordering::SeqCst),
            Err(_) => self.flush_failed.store(true, Ordering::SeqCst),
        }
        synced.map_err(failed)
    }

    fn extent(&self, offset: u64, len: u64) -> Result<Extent> {
        self.geometry.admit(Op::Read, offset, len)?;
        Ok(extent::extent(&self.file, offset, len))
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.geometry.admit(Op::Discard, offset, len)?;
        // a block device accepts only whole sectors; the rest of the range stays, which a discard may do
        let sector = u64::from(self.geometry.sector);
        let start = offset.next_multiple_of(sector);
        let end = (offset + len) / sector * sector;
        if start >= end || self.cannot_discard.load(Ordering::Relaxed) {
            return Ok(());
        }
        match fallocate(&self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, start, end - start) {
            Ok(()) => Ok(()),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                self.cannot_discard.store(true, Ordering::Relaxed);
                Ok(())
            }
            Err(e) => Err(Error::Io { op: Op::Discard, offset, len, source: e.into() }),
        }
    }
}

impl Alignment {
    /// The alignment that O_DIRECT requires on `file`, as reported by the system (Linux 6.1 on), or found by trying.
    fn of(file: &File) -> Self {
        if let Ok(found) = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)
            && StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::DIOALIGN)
            && found.stx_dio_offset_align.is_power_of_two()
            && found.stx_dio_mem_align.is_power_of_two()
        {
            return Self { memory: found.stx_dio_mem_align as usize, offset: found.stx_dio_offset_align as usize };
        }
        let taken = file.read_at(&mut AlignedBuf::zeroed(512, 512), 512).is_ok();
        let both = if taken { 512 } else { 4096 };
        Self { memory: both, offset: both }
    }

    fn fits(&self, offset: u64, bytes: &[u8]) -> bool {
        offset.is_multiple_of(self.offset as u64)
            && bytes.len().is_multiple_of(self.offset)
            && bytes.as_ptr().addr().is_multiple_of(self.memory)
    }
}

impl Bounce {
    /// The aligned read for the `len` requested bytes.
    fn job(&mut self, len: usize, step: usize) -> Job<'_> {
        Job::read(self.start, &mut self.buf, self.skip + len, step)
    }

    fn copy_to(&self, buf: &mut [u8]) {
        buf.copy_from_slice(&self.buf[self.skip..self.skip + buf.len()]);
    }
}

/// Calls `make` for all of `requests` in parts, each of which needs at most [`BOUNCE_BYTES`] of buffers, or consists of
/// one request.
fn in_parts<T>(mut requests: &mut [T], bounced: impl Fn(&T) -> usize, mut make: impl FnMut(&mut [T])) {
    while !requests.is_empty() {
        let mut bytes = 0_usize;
        let fitting = requests.iter().take_while(|r| {
            bytes = bytes.saturating_add(bounced(r));
            bytes <= BOUNCE_BYTES
        });
        let count = fitting.count().max(1);
        let (part, rest) = requests.split_at_mut(count);
        make(part);
        requests = rest;
    }
}

/// Whether it is a block device or a regular file; an error for all others.
fn is_block_device(metadata: &fs::Metadata) -> io::Result<bool> {
    let kind = metadata.file_type();
    if kind.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    if !kind.is_file() && !kind.is_block_device() {
        return Err(unsupported("it is neither a regular file nor a block device"));
    }
    Ok(kind.is_block_device())
}

/// The error with its reason as a phrase, if it is a common one.
fn with_reason(error: io::Error) -> io::Error {
    let why = match error.kind() {
        _ if error.get_ref().is_some() => return error, // it already has one
        io::ErrorKind::NotFound => "no such file",
        io::ErrorKind::IsADirectory => "it is a directory",
        io::ErrorKind::PermissionDenied => "permission denied",
        io::ErrorKind::ResourceBusy => return lock::in_use("locked by another process"),
        _ => return error,
    };
    io::Error::new(error.kind(), why)
}

fn unsupported(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, why)
}

fn io_error(op: Op, offset: u64, len: usize, source: io::Error) -> Error {
    Error::Io { op, offset, len: len as u64, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device() -> (tempfile::NamedTempFile, FileDevice) {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(4096).unwrap();
        let device = FileDevice::open(file.path(), OpenOptions { write: true, ..OpenOptions::default() }).unwrap();
        (file, device)
    }

    #[test]
    fn after_a_failed_flush_none_succeeds() {
        let (_file, mut device) = device();
        device.flush().unwrap();
        let (pipe, _other_end) = io::pipe().unwrap(); // cannot be synced
        let good = std::mem::replace(&mut device.file, File::from(std::os::fd::OwnedFd::from(pipe)));
        assert!(matches!(device.flush(), Err(Error::Io { op: Op::Flush, .. })));
        device.file = good;
        let message = device.flush().unwrap_err().to_string();
        assert!(message.ends_with("an earlier flush failed, so writes may be lost"), "{message}");
    }

    #[test]
    fn a_discard_that_is_not_possible_is_no_error() {
        let (_file, mut device) = device();
        device.file = File::open("/proc/self/mem").unwrap();
        let why = device.discard(0, 4096).unwrap_err(); // opened for reading: a real error stays one
        assert!(matches!(why, Error::Io { op: Op::Discard, .. }));
        device.cannot_discard.store(true, Ordering::Relaxed);
        device.discard(0, 4096).unwrap();
    }

    #[test]
    fn reasons_are_sentences() {
        for (errno, words) in [
            (Errno::NOENT, "no such file"),
            (Errno::ISDIR, "it is a directory"),
            (Errno::ACCESS, "permission denied"),
            (Errno::PERM, "permission denied"),
            (Errno::BUSY, "locked by another process"),
        ] {
            assert_eq!(with_reason(errno.into()).to_string(), words);
        }
        assert_eq!(with_reason(unsupported("so it is")).to_string(), "so it is");
    }

    #[test]
    fn parts_respect_the_bound_and_the_order() {
        let mut requests = [BOUNCE_BYTES + 1, 1, BOUNCE_BYTES - 1, 1, 0, BOUNCE_BYTES, usize::MAX];
        let mut parts = Vec::new();
        in_parts(&mut requests, |&len| len, |part| parts.push(part.to_vec()));
        assert_eq!(
            parts,
            [vec![BOUNCE_BYTES + 1], vec![1, BOUNCE_BYTES - 1], vec![1, 0], vec![BOUNCE_BYTES], vec![usize::MAX]]
        );
    }
}
