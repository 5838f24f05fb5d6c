//! The four workloads of the paper, on a volume through the library.

use super::device::Disk;
use fs::{DirEntry, FileKind, InodeNo, NewFile, Volume};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Nanoseconds of the host's work for a call, and for a byte that it copies: chosen, not measured, for a machine of the
/// paper's time.
const CALL: u64 = 100_000;
const BYTE: u64 = 4;
/// Bytes of the largest file of the tree.
const LARGEST: usize = 256 << 10;
/// Number of writers.
const WRITERS: u64 = 16;
/// Bytes that a writer writes at once.
const PIECE: u64 = 4096;

/// The use of syncs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Syncs {
    /// One at the end.
    Once,
    /// An fsync of each file after it is written, of each directory before it is removed, and a sync at the end.
    EachFile,
    /// One at the end, and changes stay in memory for at most a second.
    EachSecond,
}

impl Syncs {
    pub(super) const ALL: [Self; 3] = [Self::Once, Self::EachFile, Self::EachSecond];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Once => "one sync",
            Self::EachFile => "fsync each",
            Self::EachSecond => "commit=1",
        }
    }
}

/// A clock of the disk's time and the host's, which take turns. The disk does not count the host's time.
pub(super) struct Clock {
    disk: Arc<Disk>,
    host: AtomicU64,
}

impl Clock {
    pub(super) fn new(disk: Arc<Disk>) -> Self {
        Self { disk, host: AtomicU64::new(0) }
    }

    /// The time since the disk was made.
    pub(super) fn now(&self) -> Duration {
        self.disk.clock() + Duration::from_nanos(self.host.load(Ordering::Relaxed))
    }

    fn add_call(&self, bytes: usize) {
        self.host.fetch_add(CALL + BYTE * bytes as u64, Ordering::Relaxed);
    }
}

/// Work on a volume.
pub(super) struct Job<'a> {
    pub(super) volume: &'a Volume,
    pub(super) clock: &'a Clock,
    pub(super) syncs: Syncs,
}

impl Job<'_> {
    /// Counts the time of a call for `bytes` bytes, and does the work that is due.
    fn called(&self, bytes: usize) -> fs::Result<()> {
        self.clock.add_call(bytes);
        if self.syncs == Syncs::EachSecond { self.volume.tick(self.clock.now()) } else { Ok(()) }
    }

    fn fsync(&self, number: InodeNo) -> fs::Result<()> {
        if self.syncs == Syncs::EachFile { self.volume.fsync(number, false) } else { Ok(()) }
    }

    fn create(&self, dir: InodeNo, name: &str, kind: FileKind, mode: u16) -> fs::Result<InodeNo> {
        let new = NewFile { kind, mode, umask: 0, uid: 0, gid: 0, device: (0, 0) };
        let number = self.volume.create(dir, name.as_bytes(), &new)?.number;
        self.called(0)?;
        Ok(number)
    }

    /// Creates a directory.
    pub(super) fn dir(&self, parent: InodeNo, name: &str) -> fs::Result<InodeNo> {
        self.create(parent, name, FileKind::Directory, 0o755)
    }

    /// Creates an empty file.
    fn file(&self, dir: InodeNo, name: &str) -> fs::Result<InodeNo> {
        self.create(dir, name, FileKind::Regular, 0o644)
    }

    /// Writes without fsync.
    fn write(&self, number: InodeNo, at: u64, content: &[u8]) -> fs::Result<()> {
        self.volume.write_at(number, at, content)?;
        self.called(content.len())
    }

    /// Creates a file with this content.
    pub(super) fn filled(&self, dir: InodeNo, name: &str, content: &[u8]) -> fs::Result<InodeNo> {
        let number = self.file(dir, name)?;
        self.write(number, 0, content)?;
        self.fsync(number)?;
        Ok(number)
    }

    /// Writes to a file.
    pub(super) fn add(&self, number: InodeNo, at: u64, content: &[u8]) -> fs::Result<()> {
        self.write(number, at, content)?;
        self.fsync(number)
    }

    /// Removes a file.
    pub(super) fn unlink(&self, dir: InodeNo, name: &[u8]) -> fs::Result<()> {
        self.volume.unlink(dir, name)?;
        self.called(0)
    }
}

fn random_content(random: &mut fastrand::Rng, len: usize) -> Vec<u8> {
    (0..len).map(|_| random.u8(..)).collect()
}

/// Name of the tree in the root directory.
pub(super) const TREE: &str = "tree";

/// Creates a tree with the proportions of a source tree: twelve files per directory, most of a few KiB, some large.
pub(super) fn untar(job: &Job<'_>, files: u64, seed: u64) -> fs::Result<()> {
    let mut random = fastrand::Rng::with_seed(seed);
    let content = random_content(&mut random, LARGEST);
    let mut dirs = vec![(job.dir(InodeNo::ROOT, TREE)?, 0)];
    let mut made = 0;
    while made < files {
        let (parent, depth) = dirs[random.usize(dirs.len().saturating_sub(64)..dirs.len())];
        let mut dir = parent;
        if depth < 7 {
            dir = job.dir(parent, &format!("dir{}", dirs.len()))?;
            dirs.push((dir, depth + 1));
        }
        for _ in 0..random.u64(1..24) {
            let size = 2f64.powf(random.f64() * 8.0 + 7.0) as usize * if random.u8(..100) == 0 { 8 } else { 1 };
            job.filled(dir, &format!("file{made}.c"), &content[..size.min(LARGEST)])?;
            made += 1;
        }
    }
    Ok(())
}

/// Removes a directory with all its content, as `rm -rf` does.
pub(super) fn remove(job: &Job<'_>, parent: InodeNo, name: &[u8]) -> fs::Result<()> {
    let above = job.volume.inode(parent)?;
    let number = job.volume.lookup(&above, name)?;
    let dir = job.volume.inode(number)?;
    let entries = job.volume.read_dir(&dir, 0)?.collect::<fs::Result<Vec<DirEntry>>>()?;
    job.called(0)?;
    for entry in entries.iter().filter(|entry| !matches!(&entry.name[..], b"." | b"..")) {
        if entry.kind == Some(FileKind::Directory) {
            remove(job, number, &entry.name)?;
        } else {
            job.unlink(number, &entry.name)?;
        }
    }
    job.fsync(number)?;
    job.volume.rmdir(parent, name)?;
    job.called(0)
}

/// PostMark by its defaults, in one directory: files of 500 bytes to 10 KB; each transaction reads a file or appends to
/// it, and creates or removes one. The files are not removed at the end, so that the sync has something to write.
pub(super) fn postmark(job: &Job<'_>, files: u64, transactions: u64, seed: u64) -> fs::Result<()> {
    const SIZES: std::ops::Range<usize> = 500..10_000;
    let mut random = fastrand::Rng::with_seed(seed);
    let content = random_content(&mut random, SIZES.end);
    let dir = job.dir(InodeNo::ROOT, "postmark")?;
    let (mut live, mut next) = (Vec::new(), 0u64);
    let mut create = |random: &mut fastrand::Rng, live: &mut Vec<(String, InodeNo, usize)>| -> fs::Result<()> {
        let (name, size) = (next.to_string(), random.usize(SIZES));
        next += 1;
        let number = job.filled(dir, &name, &content[..size])?;
        live.push((name, number, size));
        Ok(())
    };
    for _ in 0..files {
        create(&mut random, &mut live)?;
    }
    for _ in 0..transactions {
        let which = random.usize(..live.len());
        let (_, number, size) = &mut live[which];
        if random.bool() {
            let inode = job.volume.inode(*number)?;
            job.volume.read_at(&inode, 0, &mut vec![0; *size])?;
            job.called(*size)?;
        } else {
            let more = random.usize(SIZES);
            job.add(*number, *size as u64, &content[..more])?;
            *size += more;
        }
        if random.bool() || live.len() == 1 {
            create(&mut random, &mut live)?;
        } else {
            let (name, ..) = live.swap_remove(random.usize(..live.len()));
            job.unlink(dir, name.as_bytes())?;
        }
    }
    Ok(())
}

/// Sixteen files that grow by turns to `bytes` bytes together: the requests of sixteen threads, in a fixed order, since
/// with threads the result would depend on the scheduler.
pub(super) fn writers(job: &Job<'_>, bytes: u64, seed: u64) -> fs::Result<()> {
    let mut random = fastrand::Rng::with_seed(seed);
    let content = random_content(&mut random, PIECE as usize);
    let files: Vec<InodeNo> =
        (0..WRITERS).map(|n| job.file(InodeNo::ROOT, &format!("writer{n}"))).collect::<fs::Result<_>>()?;
    for piece in 0..(bytes / WRITERS / PIECE).max(1) {
        files.iter().try_for_each(|file| job.write(*file, piece * PIECE, &content))?;
    }
    files.iter().try_for_each(|file| job.fsync(*file))
}
