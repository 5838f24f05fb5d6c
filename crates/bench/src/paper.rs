//! The experiments of *ffsck: The Fast File System Checker* (section 5): rext3 and ext3 on a modelled disk.
//!
//! 1. *Checks by utilisation and by age*: volumes filled and aged as in section 3.2, from nearly empty to full and from
//!    new to oldest; the time of a check of each, its throughput as a fraction of the disk's sequential one, and the
//!    estimate.
//! 2. *A doubly allocated block*: the time of the same check after a file also claims a block of another one.
//! 3. *Ordinary work*: the disk time of the same work on ext3, on ext3 with checksums and on rext3. A volume is
//!    reopened before it is read, with a small cache, so that reads come from the disk.
//!
//! All times are the disk's, and depend on the reads and writes alone.

use crate::age::{self, LARGEST};
use crate::error::Trying;
use crate::interruption;
use crate::table::{Table, grouped};
use crate::{Error, Result};
use blockdev::{BlockDevice, FileDevice, MemoryDevice, Read};
use fs::mkfs::{FeatureEdits, Kind, MkfsOptions, make};
use fs::{Consistency, FileKind, InodeNo, NewFile, OpenOptions, Timestamp, Volume, WriteOptions};
use serde::Serialize;
use simdev::{Model, Parameters};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes of the file that is written and read.
const FILE: u64 = 1 << 30;
/// Bytes of the device for ordinary work.
const DEVICE: u64 = 8 << 30;
/// Bytes of a sequential write or read.
const PIECE: usize = 128 << 10;
/// Fill levels, from 0 to 1, of the volumes that are filled but not aged.
const FILLS: [f64; 4] = [0.1, 0.3, 0.5, 0.7];
/// Fill level of the aged volumes.
const FULL: f64 = 0.9;
/// Bytes that are cached in memory while reading.
const CACHE: usize = 4 << 20;
/// The kind of damage that allocates a block twice.
const SHARED: &str = "inode.shared";

/// Options of the measurement.
#[derive(Debug, Clone)]
pub struct Options {
    /// A directory for volumes, which are sparse files.
    pub dir: PathBuf,
    /// Bytes of the volumes that are aged.
    pub size: u64,
    /// The ages: operations in each directory after the volume was filled.
    pub rounds: Vec<u32>,
    /// Seed of the aging and of the choice of offsets.
    pub seed: u64,
}

/// The result.
#[derive(Debug, Clone, Serialize)]
pub struct Paper {
    /// The checks of each age and format.
    pub checks: Vec<Checked>,
    /// The figures of each kind of work and format.
    pub work: Vec<Worked>,
}

/// A check of a volume of some age.
#[derive(Debug, Clone, Serialize)]
pub struct Checked {
    /// `ext3` or `rext3`.
    pub format: String,
    /// The part of its blocks that is in use.
    pub fill: f64,
    /// Its age.
    pub rounds: u32,
    /// Files on it.
    pub files: u64,
    /// The disk's time, in seconds.
    pub seconds: f64,
    /// Bytes read.
    pub bytes: u64,
    /// Moves of the arm to another cylinder.
    pub seeks: u64,
    /// Throughput as a fraction of the disk's sequential read throughput.
    pub of_bandwidth: f64,
    /// Ratio of the estimate to the time.
    pub estimate: f64,
    /// Ratio of the time after a file also claims a block of another one to the time before.
    pub shared: f64,
}

/// Ordinary work on one format.
#[derive(Debug, Clone, Serialize)]
pub struct Worked {
    /// The name of the work.
    pub work: String,
    /// `ext3`, `ext3 with metadata_csum` or `rext3`.
    pub format: String,
    /// The disk's time, in seconds.
    pub seconds: f64,
    /// Ratio of the time to ext3's.
    pub to_ext3: f64,
}

/// Runs the experiments. `say` is called before each step.
///
/// # Errors
/// The first error.
pub fn run(options: &Options, say: &dyn Fn(&str)) -> Result<Paper> {
    Ok(Paper { checks: checks(options, say)?, work: work(options.seed, say)? })
}

/// Ages volumes and checks them.
///
/// # Errors
/// As [`run`].
pub fn checks(options: &Options, say: &dyn Fn(&str)) -> Result<Vec<Checked>> {
    let disk = Parameters::named("hdd")?;
    let mut checks = Vec::new();
    let fresh = FILLS.iter().map(|fill| (*fill, 0));
    for (fill, rounds) in fresh.chain(options.rounds.iter().map(|rounds| (FULL, *rounds))) {
        for (format, kind) in [("ext3", Kind::Ext3), ("rext3", Kind::Rext3)] {
            say(&format!("{format}, {:.0} % full, {rounds} rounds of aging", fill * 100.0));
            let path = options.dir.join(format!("paper-{format}.img"));
            let _registered = interruption::file(&path)?;
            let how = age::Options { seed: options.seed, fill, rounds, largest: LARGEST };
            let checked = aged(&path, kind, options.size, &how).and_then(|files| check_on(&disk, &path, files));
            std::fs::remove_file(&path).trying("remove", &path)?;
            checks.push(Checked { format: format.into(), fill, rounds, ..checked? });
        }
    }
    Ok(checks)
}

/// Does ordinary work; it takes some GiB of memory.
fn work(seed: u64, say: &dyn Fn(&str)) -> Result<Vec<Worked>> {
    let disk = Parameters::named("hdd")?;
    let mut work = Vec::new();
    let mut ext3 = Vec::new();
    for (format, kind, summed) in
        [("ext3", Kind::Ext3, false), ("ext3 with metadata_csum", Kind::Ext3, true), ("rext3", Kind::Rext3, false)]
    {
        say(&format!("ordinary work on {format}"));
        let times = ordinary(&disk, kind, summed, seed).map_err(|e| Error::Failed(format!("{format}: {e}")))?;
        if ext3.is_empty() {
            ext3.clone_from(&times);
        }
        work.extend(times.iter().zip(&ext3).map(|((work, seconds), (_, base))| Worked {
            work: (*work).into(),
            format: format.into(),
            seconds: *seconds,
            to_ext3: seconds / base,
        }));
    }
    work.sort_by_key(|worked| ext3.iter().position(|(work, _)| *work == worked.work));
    Ok(work)
}

fn failed(e: fs::Error) -> Error {
    Error::Failed(e.to_string())
}

fn writing(seed: u64, consistency: Option<Consistency>) -> WriteOptions {
    let time = Timestamp { seconds: 1_700_000_000, nanos: 0 };
    WriteOptions { consistency, clock: Arc::new(move || time), seed: Some(seed), superuser: true, ..Default::default() }
}

fn for_writing() -> blockdev::OpenOptions {
    blockdev::OpenOptions { write: true, ..Default::default() }
}

/// Creates a volume and ages it; returns its number of files.
fn aged(path: &Path, kind: Kind, size: u64, how: &age::Options) -> Result<u64> {
    std::fs::File::create(path).and_then(|file| file.set_len(size)).trying("make", path)?;
    let device: Arc<dyn BlockDevice> = Arc::new(FileDevice::open(path, for_writing())?);
    let plain = MkfsOptions { uuid: [7; 16], hash_seed: [9; 16], ..MkfsOptions::new(kind) };
    make(device.as_ref(), &plain).map_err(|e| Error::Failed(e.to_string()))?;
    let write = Some(writing(how.seed, Some(Consistency::None)));
    let volume = Volume::open(device, &OpenOptions { write, ..OpenOptions::default() }).map_err(failed)?;
    let done = age::age(&volume, how, &mut |_, _| true)?;
    volume.unmount().map_err(failed)?;
    Ok(done.files)
}

/// Checks a volume on the disk.
fn check_on(disk: &Parameters, path: &Path, files: u64) -> Result<Checked> {
    let open = || Ok::<_, Error>(Model::new(FileDevice::open(path, blockdev::OpenOptions::default())?, disk)?);
    let how = check::Options { threads: 1, ..Default::default() };
    let refused = |no: check::Refusal| Error::Failed(no.to_string());
    let checked = || {
        let device = open()?;
        let found = check::check(&path.to_string_lossy(), &device, &how, &()).map_err(refused)?;
        Ok::<_, Error>((found.clean, device.report()))
    };
    let (clean, report) = checked()?;
    if !clean {
        return Err(Error::Failed(format!("{} is damaged", path.display())));
    }
    let seconds = report.time.as_secs_f64();
    let device = open()?;
    let forecast = check::estimate(&device, &how, None, &()).map_err(refused)?;
    let shared = damage::Kind::named(SHARED).ok_or_else(|| Error::Failed(format!("there is no damage {SHARED}")))?;
    damage::damage(&FileDevice::open(path, for_writing())?, shared, 1).map_err(|e| Error::Failed(e.to_string()))?;
    let (clean, with_shared) = checked()?;
    if clean {
        return Err(Error::Failed(format!("{}: a doubly allocated block was not found", path.display())));
    }
    let in_order = open()?;
    let mut piece = vec![0; 4 * PIECE];
    let middle = in_order.geometry().len / 2;
    for at in (middle..in_order.geometry().len).step_by(piece.len()).take(128) {
        let (first, second) = piece.split_at_mut(2 * PIECE);
        in_order.read_many(&mut [Read::new(at, first), Read::new(at + 2 * PIECE as u64, second)]);
    }
    let in_order = in_order.report();
    let bandwidth = in_order.bytes_read as f64 / in_order.time.as_secs_f64();
    Ok(Checked {
        format: String::new(),
        fill: 0.0,
        rounds: 0,
        files,
        seconds,
        bytes: report.bytes_read,
        seeks: report.seeks,
        of_bandwidth: report.bytes_read as f64 / seconds / bandwidth,
        estimate: forecast.disk_seconds / seconds,
        shared: with_shared.time.as_secs_f64() / seconds,
    })
}

/// A disk with a volume on it.
struct Disk {
    device: Arc<Model<MemoryDevice>>,
    seed: u64,
}

impl Disk {
    fn open(&self) -> fs::Result<Volume> {
        let device = Arc::clone(&self.device) as Arc<dyn BlockDevice>;
        let write = Some(writing(self.seed, None));
        Volume::open(device, &OpenOptions { write, cache_bytes: CACHE, ..OpenOptions::default() })
    }

    /// The disk's time for work on a newly opened volume, with all its writes.
    fn timed(&self, work: impl FnOnce(&Volume) -> fs::Result<()>) -> fs::Result<f64> {
        let volume = self.open()?;
        let start = self.device.report().time;
        work(&volume)?;
        volume.sync()?;
        let took = self.device.report().time - start;
        volume.unmount()?;
        Ok(took.as_secs_f64())
    }
}

/// Does all kinds of ordinary work; returns the seconds of each.
fn ordinary(disk: &Parameters, kind: Kind, summed: bool, seed: u64) -> Result<Vec<(&'static str, f64)>> {
    let device = Arc::new(Model::new(MemoryDevice::zeroed(DEVICE)?, disk)?);
    let mut options = MkfsOptions { uuid: [7; 16], hash_seed: [9; 16], ..MkfsOptions::new(kind) };
    if summed {
        let mut edits = FeatureEdits::default();
        edits.add("metadata_csum").map_err(|e| Error::Failed(e.to_string()))?;
        options.features = edits;
    }
    make(device.as_ref(), &options).map_err(|e| Error::Failed(e.to_string()))?;
    let disk = Disk { device, seed };
    works(&disk).map_err(failed)
}

fn works(disk: &Disk) -> fs::Result<Vec<(&'static str, f64)>> {
    let piece = vec![1; PIECE];
    let places = || (0..FILE).step_by(PIECE);
    let mut random = fastrand::Rng::with_seed(disk.seed);
    let mut big = InodeNo(0);
    let write = disk.timed(|volume| {
        big = volume.create(InodeNo::ROOT, b"big", &file())?.number;
        places().try_for_each(|at| volume.write_at(big, at, &piece).map(drop))
    })?;
    let read_at = |volume: &Volume, at: u64, len: usize| {
        let inode = volume.inode(big)?;
        volume.read_at(&inode, at, &mut vec![0; len]).map(drop)
    };
    let in_order = disk.timed(|volume| places().try_for_each(|at| read_at(volume, at, PIECE)))?;
    let mut block = |blocks: u64| random.u64(..blocks) * 4096;
    let at_random = disk.timed(|volume| (0..512).try_for_each(|_| read_at(volume, block(FILE / 4096), 4096)))?;
    let strided =
        disk.timed(|volume| (0..FILE).step_by(4 << 20).try_for_each(|at| read_at(volume, at + block(1024), 4096)))?;
    let (mut dir, count) = (InodeNo(0), 400u64);
    let small = disk.timed(|volume| {
        dir = volume.create(InodeNo::ROOT, b"small", &NewFile { kind: FileKind::Directory, ..file() })?.number;
        (0..count).try_for_each(|n| {
            let number = volume.create(dir, n.to_string().as_bytes(), &file())?.number;
            volume.write_at(number, 0, &piece[..100_000]).map(drop)
        })
    })?;
    let small_read = disk.timed(|volume| {
        (0..count).try_for_each(|n| {
            let inode = volume.inode(volume.resolve(format!("/small/{n}").as_bytes())?)?;
            volume.read_at(&inode, 0, &mut vec![0; 100_000]).map(drop)
        })
    })?;
    let postmark = disk.timed(|volume| postmark(volume, disk.seed))?;
    Ok(vec![
        ("write 1 GiB", write),
        ("read 1 GiB", in_order),
        ("512 reads at random", at_random),
        ("a read after each indirect block", strided),
        ("write 400 files of 100 kB", small),
        ("read them", small_read),
        ("PostMark, 500 files of 4 KiB to 4 MiB", postmark),
    ])
}

fn file() -> NewFile {
    NewFile { kind: FileKind::Regular, mode: 0o644, umask: 0, uid: 0, gid: 0, device: (0, 0) }
}

/// The paper's proportions at a tenth: 500 files in 5 directories, half of the transactions read and half append, half
/// create and half delete.
fn postmark(volume: &Volume, seed: u64) -> fs::Result<()> {
    let mut random = fastrand::Rng::with_seed(seed);
    let content = vec![3; 4 << 20];
    let mut dirs = Vec::new();
    for n in 0..5 {
        let new = NewFile { kind: FileKind::Directory, mode: 0o755, ..file() };
        dirs.push(volume.create(InodeNo::ROOT, format!("s{n}").as_bytes(), &new)?.number);
    }
    let (mut files, mut next) = (Vec::new(), 0u64);
    let mut make = |random: &mut fastrand::Rng, files: &mut Vec<(InodeNo, String, InodeNo)>| -> fs::Result<()> {
        let (dir, name) = (dirs[random.usize(..dirs.len())], next.to_string());
        next += 1;
        let number = volume.create(dir, name.as_bytes(), &file())?.number;
        volume.write_at(number, 0, &content[..random.usize(4096..=content.len())])?;
        files.push((dir, name, number));
        Ok(())
    };
    for _ in 0..500 {
        make(&mut random, &mut files)?;
    }
    for _ in 0..500 {
        let inode = volume.inode(files[random.usize(..files.len())].2)?;
        let size = volume.attributes(&inode).size;
        if random.bool() {
            volume.read_at(&inode, 0, &mut vec![0; size.min(4 << 20) as usize])?;
        } else {
            volume.write_at(inode.number, size, &content[..random.usize(4096..64 << 10)])?;
        }
        if random.bool() {
            make(&mut random, &mut files)?;
        } else {
            let (dir, name, _) = files.swap_remove(random.usize(..files.len()));
            volume.unlink(dir, name.as_bytes())?;
        }
    }
    Ok(())
}

impl Paper {
    /// The result as Markdown tables.
    #[must_use]
    pub fn text(&self) -> String {
        let mut checks = Table::new([
            "check of",
            "in use",
            "rounds",
            "files",
            "virtual s",
            "bytes",
            "seeks",
            "of bandwidth",
            "estimate",
            "block shared",
        ]);
        for row in &self.checks {
            checks.row([
                row.format.clone(),
                format!("{:.0} %", row.fill * 100.0),
                row.rounds.to_string(),
                grouped(row.files),
                format!("{:.3}", row.seconds),
                grouped(row.bytes),
                grouped(row.seeks),
                format!("{:.3}", row.of_bandwidth),
                format!("{:.3}", row.estimate),
                format!("{:.3}", row.shared),
            ]);
        }
        let mut work = Table::new(["work", "format", "virtual s", "/ ext3"]);
        for row in &self.work {
            work.row([
                row.work.clone(),
                row.format.clone(),
                format!("{:.3}", row.seconds),
                format!("{:.3}", row.to_ext3),
            ]);
        }
        format!("{}\n{}", checks.text(), work.text())
    }
}
