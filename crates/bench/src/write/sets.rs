//! What is done: the sets of operations that are timed. Each takes its numbers from a fixed seed, so every peer does the
//! same.

use super::clients::Client;
use super::load::Load;
use super::target::Target;
use super::written::Written;
use crate::{Error, Result};
use std::time::{Duration, Instant};

/// Seed of every set.
const SEED: u64 = 0x0045_5854_5752_4954;

/// A part of a set that is timed on its own.
#[derive(Debug, Clone)]
pub(crate) struct Phase {
    pub(crate) name: String,
    pub(crate) unit: &'static str,
    pub(crate) amount: u64,
    pub(crate) wall: Duration,
    /// Where that can be counted.
    pub(crate) written: Option<Written>,
}

/// What a set works on: a tree, and the way to make it cold.
pub(crate) trait Venue {
    fn target(&mut self) -> &mut dyn Target;

    /// Others who work on the same tree at once.
    fn clients(&mut self, count: usize) -> Result<Vec<Box<dyn Client>>>;

    /// What was written since the last call.
    fn written(&mut self) -> Option<Written>;

    /// Puts everything away and comes back with nothing in any cache.
    fn cool(&mut self) -> Result<()>;
}

/// Which set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Set {
    /// Empty files in many directories: made, looked at, removed.
    Empty,
    /// The same made and removed, three times, as in the paper on meta-data snapshotting.
    Thrice,
    /// PostMark: small files made, read, appended to and removed in random order.
    Postmark,
    /// A source tree unpacked and removed.
    Untar,
    /// One large file, written and read in sequence and at random places.
    Data,
    /// Little written, and synced each time.
    Fsync,
    /// The load file of dbench, by 1, 4, 8, 16 and 32 clients.
    Dbench,
}

/// All sets but [`Set::Dbench`], which needs a file.
pub const SETS: [Set; 6] = [Set::Empty, Set::Thrice, Set::Postmark, Set::Untar, Set::Data, Set::Fsync];

/// How much is done.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size<'a> {
    /// Part of the full size; 1 is full.
    pub(crate) scale: f64,
    /// What dbench's clients do.
    pub(crate) load: Option<&'a Load>,
}

/// Times `work`, with a sync at its end.
fn timed(
    venue: &mut dyn Venue,
    name: &'static str,
    unit: &'static str,
    work: impl FnOnce(&mut dyn Target) -> Result<u64>,
) -> Result<Phase> {
    venue.written();
    let start = Instant::now();
    let amount = work(venue.target())?;
    venue.target().sync()?;
    let wall = start.elapsed();
    Ok(Phase { name: name.to_owned(), unit, amount, wall, written: venue.written() })
}

impl Set {
    /// What the table calls it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Empty => "empty files",
            Self::Thrice => "empty files, three times",
            Self::Postmark => "PostMark",
            Self::Untar => "source tree",
            Self::Data => "large file",
            Self::Fsync => "fsync",
            Self::Dbench => "dbench",
        }
    }

    /// Does it.
    pub(crate) fn run(self, venue: &mut dyn Venue, size: Size<'_>) -> Result<Vec<Phase>> {
        let scaled = |n: u64| ((n as f64 * size.scale) as u64).max(1);
        match self {
            Self::Empty => empty(venue, scaled(1000), 100),
            Self::Thrice => thrice(venue, scaled(1000), 100),
            Self::Postmark => postmark(venue, scaled(20_000), scaled(400), scaled(100_000)),
            Self::Untar => untar(venue, scaled(20_000)),
            Self::Data => data(venue, scaled(1024) << 20, scaled(20_000), scaled(2_000)),
            Self::Fsync => fsync(venue, scaled(2_000)),
            Self::Dbench => dbench(venue, size),
        }
    }
}

fn empty(venue: &mut dyn Venue, dirs: u64, files: u64) -> Result<Vec<Phase>> {
    for dir in 0..dirs {
        venue.target().mkdir(&format!("d{dir}"))?;
    }
    venue.target().sync()?;
    let names: Vec<String> = (0..dirs).flat_map(|dir| (0..files).map(move |file| format!("d{dir}/f{file}"))).collect();
    let each = |target: &mut dyn Target, op: fn(&mut dyn Target, &str) -> Result<()>| {
        names.iter().try_for_each(|name| op(target, name)).map(|()| names.len() as u64)
    };
    Ok(vec![
        timed(venue, "create", "files", |t| each(t, |t, name| t.create(name, &[])))?,
        timed(venue, "stat", "files", |t| each(t, |t, name| t.stat(name)))?,
        timed(venue, "stat with time of creation", "files", |t| each(t, |t, name| t.statx(name)))?,
        timed(venue, "unlink", "files", |t| each(t, |t, name| t.unlink(name)))?,
    ])
}

fn thrice(venue: &mut dyn Venue, dirs: u64, files: u64) -> Result<Vec<Phase>> {
    (0..dirs).try_for_each(|dir| venue.target().mkdir(&format!("d{dir}")))?;
    venue.target().sync()?;
    // file by file through all directories
    let names: Vec<String> = (0..files).flat_map(|file| (0..dirs).map(move |dir| format!("d{dir}/f{file}"))).collect();
    let phase = timed(venue, "create and delete", "files", |target| {
        for _ in 0..3 {
            names.iter().try_for_each(|name| target.create(name, &[]))?;
            names.iter().try_for_each(|name| target.unlink(name))?;
        }
        Ok(3 * names.len() as u64)
    })?;
    Ok(vec![phase])
}

/// What a program waits for that syncs each little change.
fn fsync(venue: &mut dyn Venue, writes: u64) -> Result<Vec<Phase>> {
    const PIECE: u64 = 4096;
    // a file begins anew before it is long
    const MOST: u64 = 2048;
    let piece = [0xA5; PIECE as usize];
    for file in 0..writes.div_ceil(MOST) {
        venue.target().create(&format!("a{file}"), &[])?;
    }
    // the first time the pieces are appended, the second time written over
    let mut write_all = |phase| {
        timed(venue, phase, "writes", |target| {
            for n in 0..writes {
                let file = format!("a{}", n / MOST);
                target.write_at(&file, n % MOST * PIECE, &piece)?;
                target.fsync(&file)?;
            }
            Ok(writes)
        })
    };
    let append = write_all("append 4 KiB, fsync each")?;
    let overwrite = write_all("overwrite 4 KiB, fsync each")?;
    venue.target().mkdir("dir")?;
    let create = timed(venue, "create with 4 KiB, fsync each", "files", |target| {
        for n in 0..writes {
            let file = format!("dir/f{n}");
            target.create(&file, &piece)?;
            target.fsync(&file)?;
        }
        Ok(writes)
    })?;
    Ok(vec![append, overwrite, create])
}

fn dbench(venue: &mut dyn Venue, size: Size<'_>) -> Result<Vec<Phase>> {
    const CLIENTS: [usize; 5] = [1, 4, 8, 16, 32];
    let load = size.load.ok_or_else(|| Error::Failed("dbench needs its load file: name it with --load".into()))?;
    let mut phases = Vec::new();
    for count in CLIENTS {
        let mut clients = venue.clients(count)?;
        let mut phase = timed(venue, "", "bytes", |_| load.replay(&mut clients, size.scale))?;
        phase.name = if count == 1 { "1 client".to_owned() } else { format!("{count} clients") };
        phases.push(phase);
    }
    Ok(phases)
}

/// Katcher's PostMark as NetApp published it: files of 500 bytes to 16 KB in subdirectories; each transaction reads a
/// file or appends to it, and makes or removes one.
fn postmark(venue: &mut dyn Venue, files: u64, dirs: u64, transactions: u64) -> Result<Vec<Phase>> {
    const SIZES: std::ops::Range<usize> = 500..16 << 10;
    let mut random = fastrand::Rng::with_seed(SEED);
    let content: Vec<u8> = (0..SIZES.end).map(|_| random.u8(..)).collect();
    let mut next = 0u64;
    let mut name = |random: &mut fastrand::Rng| {
        next += 1;
        format!("s{}/{next}", random.u64(..dirs))
    };
    timed(venue, "PostMark", "transactions", |target| {
        (0..dirs).try_for_each(|dir| target.mkdir(&format!("s{dir}")))?;
        let mut live = Vec::with_capacity(files as usize);
        for _ in 0..files {
            let path = name(&mut random);
            target.create(&path, &content[..random.usize(SIZES)])?;
            live.push(path);
        }
        for _ in 0..transactions {
            if live.is_empty() {
                live.push(name(&mut random));
                target.create(&live[0], &[])?;
            }
            let which = random.usize(..live.len());
            if random.bool() {
                target.read(&live[which])?;
            } else {
                target.append(&live[which], &content[..random.usize(SIZES) / 4])?;
            }
            if random.bool() {
                let path = name(&mut random);
                target.create(&path, &content[..random.usize(SIZES)])?;
                live.push(path);
            } else {
                let which = random.usize(..live.len());
                target.unlink(&live.swap_remove(which))?;
            }
        }
        live.iter().try_for_each(|path| target.unlink(path))?;
        (0..dirs).try_for_each(|dir| target.rmdir(&format!("s{dir}")))?;
        Ok(transactions)
    })
    .map(|phase| vec![phase])
}

/// A tree of the shape of a source tree: twelve files a directory, most of a few KiB, some large.
fn untar(venue: &mut dyn Venue, files: u64) -> Result<Vec<Phase>> {
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
    let unpack = timed(venue, "untar", "files", |target| {
        dirs.iter().try_for_each(|dir| target.mkdir(dir))?;
        made.iter().try_for_each(|(path, size)| target.create(path, &content[..*size]))?;
        Ok(made.len() as u64)
    })?;
    let remove = timed(venue, "rm -rf", "files", |target| {
        made.iter().try_for_each(|(path, _)| target.unlink(path))?;
        dirs.iter().rev().try_for_each(|dir| target.rmdir(dir))?;
        Ok(made.len() as u64)
    })?;
    Ok(vec![unpack, remove])
}

fn data(venue: &mut dyn Venue, bytes: u64, reads: u64, writes: u64) -> Result<Vec<Phase>> {
    const FILE: &str = "large";
    const PIECE: usize = 1 << 20;
    let mut random = fastrand::Rng::with_seed(SEED);
    let mut piece: Vec<u8> = (0..PIECE).map(|_| random.u8(..)).collect();
    let blocks = bytes / 4096;
    let write = timed(venue, "sequential write", "bytes", |target| {
        target.create(FILE, &[])?;
        for at in (0..bytes).step_by(PIECE) {
            target.write_at(FILE, at, &piece)?;
        }
        Ok(bytes)
    })?;
    venue.cool()?;
    let read = timed(venue, "sequential read, cold", "bytes", |target| {
        for at in (0..bytes).step_by(PIECE) {
            target.read_at(FILE, at, &mut piece)?;
        }
        Ok(bytes)
    })?;
    venue.cool()?;
    let scattered = timed(venue, "4 KiB random read, cold", "reads", |target| {
        (0..reads).try_for_each(|_| target.read_at(FILE, random.u64(..blocks) * 4096, &mut piece[..4096]))?;
        Ok(reads)
    })?;
    let synced = timed(venue, "4 KiB random write, fsync each", "writes", |target| {
        for _ in 0..writes {
            target.write_at(FILE, random.u64(..blocks) * 4096, &piece[..4096])?;
            target.fsync(FILE)?;
        }
        Ok(writes)
    })?;
    Ok(vec![write, read, scattered, synced])
}
