//! The sets of operations that are timed. Random numbers have a fixed seed, so every peer does the same.

use super::clients::Client;
use super::file_ops::FileOps;
use super::load::Load;
use super::written::Written;
use crate::{Error, Result};
use std::time::{Duration, Instant};

/// Seed of every set.
const SEED: u64 = 0x0045_5854_5752_4954;

/// A separately timed part of a set.
#[derive(Debug, Clone)]
pub(crate) struct Phase {
    pub(crate) name: String,
    pub(crate) unit: &'static str,
    pub(crate) amount: u64,
    pub(crate) wall: Duration,
    /// CPU time of this process and of the server, where it is known.
    pub(crate) cpu: Option<Duration>,
    /// The figures of its writes, where these can be counted.
    pub(crate) written: Option<Written>,
}

/// The target of a set: a tree, and a way to empty its caches.
pub(crate) trait Target {
    /// The file operations on the tree.
    fn ops(&mut self) -> &mut dyn FileOps;

    /// Clients that work on the same tree concurrently.
    fn clients(&mut self, count: usize) -> Result<Vec<Box<dyn Client>>>;

    /// CPU time so far of this process and of the server; `None` where it is unknown.
    fn cpu(&self) -> Option<Duration>;

    /// The writes and flushes since the last call.
    fn written(&mut self) -> Option<Written>;

    /// Remounts the volume with empty caches.
    fn remount(&mut self) -> Result<()>;
}

/// A set of operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Set {
    /// Empty files in many directories: create, stat, remove.
    Empty,
    /// The same files created and removed three times, as in the paper on meta-data snapshotting.
    CreateDelete,
    /// PostMark: small files are created, read, appended to and removed in random order.
    Postmark,
    /// A source tree unpacked and removed.
    Untar,
    /// One large file, written and read sequentially and at random offsets.
    Data,
    /// Small writes, each followed by fsync.
    Fsync,
    /// The load file of dbench, by 1, 4, 8, 16 and 32 clients.
    Dbench,
}

/// All sets but [`Set::Dbench`], which needs a file.
pub const SETS: [Set; 6] = [Set::Empty, Set::CreateDelete, Set::Postmark, Set::Untar, Set::Data, Set::Fsync];

/// The amount of work.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size<'a> {
    /// Part of the full size; 1 is full.
    pub(crate) scale: f64,
    /// The requests of dbench's clients.
    pub(crate) load: Option<&'a Load>,
}

/// Times `work`, with a sync at its end.
fn timed(
    target: &mut dyn Target,
    name: &'static str,
    unit: &'static str,
    work: impl FnOnce(&mut dyn FileOps) -> Result<u64>,
) -> Result<Phase> {
    target.written();
    let before = target.cpu();
    let start = Instant::now();
    let amount = work(target.ops())?;
    target.ops().sync()?;
    let wall = start.elapsed();
    // before the writes are counted
    let cpu = before.zip(target.cpu()).map(|(before, after)| after.saturating_sub(before));
    Ok(Phase { name: name.to_owned(), unit, amount, wall, cpu, written: target.written() })
}

impl Set {
    /// The set's name in the table.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Empty => "empty files",
            Self::CreateDelete => "empty files, three times",
            Self::Postmark => "PostMark",
            Self::Untar => "source tree",
            Self::Data => "large file",
            Self::Fsync => "fsync",
            Self::Dbench => "dbench",
        }
    }

    /// Runs the set on a target.
    pub(crate) fn run(self, target: &mut dyn Target, size: Size<'_>) -> Result<Vec<Phase>> {
        let scaled = |n: u64| ((n as f64 * size.scale) as u64).max(1);
        match self {
            Self::Empty => empty(target, scaled(1000), 100),
            Self::CreateDelete => create_delete(target, scaled(1000), 100),
            Self::Postmark => postmark(target, scaled(20_000), scaled(400), scaled(100_000)),
            Self::Untar => untar(target, scaled(20_000)),
            Self::Data => data(target, scaled(1024) << 20, scaled(20_000), scaled(2_000)),
            Self::Fsync => fsync(target, scaled(2_000)),
            Self::Dbench => dbench(target, size),
        }
    }
}

fn empty(target: &mut dyn Target, dirs: u64, files: u64) -> Result<Vec<Phase>> {
    for dir in 0..dirs {
        target.ops().mkdir(&format!("d{dir}"))?;
    }
    target.ops().sync()?;
    let names: Vec<String> = (0..dirs).flat_map(|dir| (0..files).map(move |file| format!("d{dir}/f{file}"))).collect();
    let each = |ops: &mut dyn FileOps, op: fn(&mut dyn FileOps, &str) -> Result<()>| {
        names.iter().try_for_each(|name| op(ops, name)).map(|()| names.len() as u64)
    };
    Ok(vec![
        timed(target, "create", "files", |t| each(t, |t, name| t.create(name, &[])))?,
        timed(target, "stat", "files", |t| each(t, |t, name| t.stat(name)))?,
        timed(target, "stat with time of creation", "files", |t| each(t, |t, name| t.statx(name)))?,
        timed(target, "unlink", "files", |t| each(t, |t, name| t.unlink(name)))?,
    ])
}

fn create_delete(target: &mut dyn Target, dirs: u64, files: u64) -> Result<Vec<Phase>> {
    (0..dirs).try_for_each(|dir| target.ops().mkdir(&format!("d{dir}")))?;
    target.ops().sync()?;
    // file by file through all directories
    let names: Vec<String> = (0..files).flat_map(|file| (0..dirs).map(move |dir| format!("d{dir}/f{file}"))).collect();
    let phase = timed(target, "create and delete", "files", |ops| {
        for _ in 0..3 {
            names.iter().try_for_each(|name| ops.create(name, &[]))?;
            names.iter().try_for_each(|name| ops.unlink(name))?;
        }
        Ok(3 * names.len() as u64)
    })?;
    Ok(vec![phase])
}

/// Times small writes that are each followed by fsync.
fn fsync(target: &mut dyn Target, writes: u64) -> Result<Vec<Phase>> {
    const PIECE: u64 = 4096;
    // maximum number of writes to a file, before the next file is begun
    const MOST: u64 = 2048;
    let piece = [0xA5; PIECE as usize];
    for file in 0..writes.div_ceil(MOST) {
        target.ops().create(&format!("a{file}"), &[])?;
    }
    // the first time the blocks are appended, the second time overwritten
    let mut write_all = |phase| {
        timed(target, phase, "writes", |ops| {
            for n in 0..writes {
                let file = format!("a{}", n / MOST);
                ops.write_at(&file, n % MOST * PIECE, &piece)?;
                ops.fsync(&file)?;
            }
            Ok(writes)
        })
    };
    let append = write_all("append 4 KiB, fsync each")?;
    let overwrite = write_all("overwrite 4 KiB, fsync each")?;
    target.ops().mkdir("dir")?;
    let create = timed(target, "create with 4 KiB, fsync each", "files", |ops| {
        for n in 0..writes {
            let file = format!("dir/f{n}");
            ops.create(&file, &piece)?;
            ops.fsync(&file)?;
        }
        Ok(writes)
    })?;
    Ok(vec![append, overwrite, create])
}

fn dbench(target: &mut dyn Target, size: Size<'_>) -> Result<Vec<Phase>> {
    const CLIENTS: [usize; 5] = [1, 4, 8, 16, 32];
    let load = size.load.ok_or_else(|| Error::Failed("dbench needs its load file: name it with --load".into()))?;
    let mut phases = Vec::new();
    for count in CLIENTS {
        let mut clients = target.clients(count)?;
        let mut phase = timed(target, "", "bytes", |_| load.replay(&mut clients, size.scale))?;
        phase.name = if count == 1 { "1 client".to_owned() } else { format!("{count} clients") };
        phases.push(phase);
    }
    Ok(phases)
}

/// Katcher's PostMark as NetApp published it: files of 500 bytes to 16 KB in subdirectories; each transaction reads a
/// file or appends to it, and creates or removes one.
fn postmark(target: &mut dyn Target, files: u64, dirs: u64, transactions: u64) -> Result<Vec<Phase>> {
    const SIZES: std::ops::Range<usize> = 500..16 << 10;
    let mut random = fastrand::Rng::with_seed(SEED);
    let content: Vec<u8> = (0..SIZES.end).map(|_| random.u8(..)).collect();
    let mut next = 0u64;
    let mut name = |random: &mut fastrand::Rng| {
        next += 1;
        format!("s{}/{next}", random.u64(..dirs))
    };
    timed(target, "PostMark", "transactions", |ops| {
        (0..dirs).try_for_each(|dir| ops.mkdir(&format!("s{dir}")))?;
        let mut live = Vec::with_capacity(files as usize);
        for _ in 0..files {
            let path = name(&mut random);
            ops.create(&path, &content[..random.usize(SIZES)])?;
            live.push(path);
        }
        for _ in 0..transactions {
            if live.is_empty() {
                live.push(name(&mut random));
                ops.create(&live[0], &[])?;
            }
            let which = random.usize(..live.len());
            if random.bool() {
                ops.read(&live[which])?;
            } else {
                ops.append(&live[which], &content[..random.usize(SIZES) / 4])?;
            }
            if random.bool() {
                let path = name(&mut random);
                ops.create(&path, &content[..random.usize(SIZES)])?;
                live.push(path);
            } else {
                let which = random.usize(..live.len());
                ops.unlink(&live.swap_remove(which))?;
            }
        }
        live.iter().try_for_each(|path| ops.unlink(path))?;
        (0..dirs).try_for_each(|dir| ops.rmdir(&format!("s{dir}")))?;
        Ok(transactions)
    })
    .map(|phase| vec![phase])
}

/// A tree with the proportions of a source tree: twelve files per directory, most of a few KiB, some large.
fn untar(target: &mut dyn Target, files: u64) -> Result<Vec<Phase>> {
    let mut random = fastrand::Rng::with_seed(SEED);
    let content: Vec<u8> = (0..256 << 10).map(|_| random.u8(..)).collect();
    let mut dirs = vec!["tree".to_owned()];
    let mut made: Vec<(String, usize)> = Vec::new();
    while (made.len() as u64) < files {
        let parent = dirs[random.usize(dirs.len().saturating_sub(64)..dirs.len())].clone();
        if parent.matches('/').count() < 7 {
            dirs.push(format!("{parent}/dir{}", dirs.len()));
        }
        let dir = dirs.last().cloned().unwrap_or_default();
        for _ in 0..random.usize(1..24) {
            let size = (2f64.powf(random.f64() * 8.0 + 7.0)) as usize * if random.u8(..100) == 0 { 8 } else { 1 };
            made.push((format!("{dir}/file{}.c", made.len()), size.min(content.len())));
        }
    }
    let unpack = timed(target, "untar", "files", |ops| {
        dirs.iter().try_for_each(|dir| ops.mkdir(dir))?;
        made.iter().try_for_each(|(path, size)| ops.create(path, &content[..*size]))?;
        Ok(made.len() as u64)
    })?;
    let remove = timed(target, "rm -rf", "files", |ops| {
        made.iter().try_for_each(|(path, _)| ops.unlink(path))?;
        dirs.iter().rev().try_for_each(|dir| ops.rmdir(dir))?;
        Ok(made.len() as u64)
    })?;
    Ok(vec![unpack, remove])
}

fn data(target: &mut dyn Target, bytes: u64, reads: u64, writes: u64) -> Result<Vec<Phase>> {
    const FILE: &str = "large";
    const PIECE: usize = 1 << 20;
    let mut random = fastrand::Rng::with_seed(SEED);
    let mut piece: Vec<u8> = (0..PIECE).map(|_| random.u8(..)).collect();
    let blocks = bytes / 4096;
    let write = timed(target, "sequential write", "bytes", |ops| {
        ops.create(FILE, &[])?;
        for at in (0..bytes).step_by(PIECE) {
            ops.write_at(FILE, at, &piece)?;
        }
        Ok(bytes)
    })?;
    target.remount()?;
    let read = timed(target, "sequential read, cold", "bytes", |ops| {
        for at in (0..bytes).step_by(PIECE) {
            ops.read_at(FILE, at, &mut piece)?;
        }
        Ok(bytes)
    })?;
    target.remount()?;
    let scattered = timed(target, "4 KiB random read, cold", "reads", |ops| {
        (0..reads).try_for_each(|_| ops.read_at(FILE, random.u64(..blocks) * 4096, &mut piece[..4096]))?;
        Ok(reads)
    })?;
    let synced = timed(target, "4 KiB random write, fsync each", "writes", |ops| {
        for _ in 0..writes {
            ops.write_at(FILE, random.u64(..blocks) * 4096, &piece[..4096])?;
            ops.fsync(FILE)?;
        }
        Ok(writes)
    })?;
    Ok(vec![write, read, scattered, synced])
}
