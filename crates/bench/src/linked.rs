//! The experiments of *Reducing fsck time for ext2 file systems* (section 5) on a modelled disk: linked writes, the
//! dirty bit and a journal.
//!
//! 1. *Work*: the paper's four workloads, with one sync at the end, with an fsync for each file, and with a generation
//!    closed each second; beside them the paper's table 1.
//! 2. *Recovery*: opening a volume after a loss of power in the middle of a generation, and a full check of it, on
//!    volumes of three sizes.
//!
//! All ext2 volumes have a list of linked writes, whatever the mode, so that their layouts are equal. The disk's time
//! is that of its requests; the second after which a generation closes also contains the host's work, by a fixed time
//! for each call and byte. The writers are one thread that writes to their files by turns. The result depends on the
//! seed alone.

mod device;
mod recovery;
mod text;
mod work;

use crate::error::Trying;
use crate::interruption;
use crate::table::grouped;
use crate::{Error, Result};
use blockdev::{BlockDevice, FileDevice};
use device::{Disk, Locations, Unflushed, Watched};
use format::linked::{self, Areas};
use format::{FileBlock, InodeNo};
use fs::mkfs::{Kind, MkfsOptions, make};
use fs::{Log, Mapping, Mode, OpenOptions, Timestamp, Volume, WriteOptions};
pub use recovery::Recovered;
use serde::Serialize;
use simdev::{Model, Parameters};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use work::{Clock, Job, Syncs};

/// Names of the modes; the first is the base of ratios.
const MODES: [&str; 5] = ["none", "dirty-bit", LINKED, "journal", "journal-writeback"];
/// Name of the mode of linked writes.
const LINKED: &str = "linked";
/// Bytes in a block of the volumes: the paper's.
const BLOCK: u32 = 4096;
/// Bytes of the modelled disk, or more where the volume is longer.
const DISK: u64 = 1_465_149_168 * 512;
/// Bytes of the volumes at full size, and at least.
const VOLUME: u64 = 8 << 30;
const SMALLEST: u64 = 256 << 20;
/// MiB of the journal at full size, as in the paper, and at least.
const JOURNAL: f64 = 256.0;
const SHORTEST_JOURNAL: f64 = 8.0;
/// Maximum number of bytes of delayed data: equal on all machines, and appropriate for one with 1 GiB, as the paper's.
const DELAYED: usize = 64 << 20;
/// Number of files of the tree at full size.
const TREE_FILES: u64 = 20_000;
/// Number of files, and of transactions, of PostMark at full size.
const POSTMARK_FILES: u64 = 10_000;
/// Bytes written by all writers at full size.
const WRITERS_BYTES: u64 = 256 << 20;

const UNTAR: &str = "untar";
const REMOVE: &str = "rm -rf, cold";
const POSTMARK: &str = "PostMark";
const WRITERS: &str = "16 writers";
/// The workloads, in the order of the table.
const WORKS: [&str; 4] = [UNTAR, REMOVE, POSTMARK, WRITERS];

/// A mode with its seconds and its sectors written.
type PaperRow = (&'static str, f64, u64);

/// Table 1 of the paper: ext2, ext2 with reservations and the dirty bit, ext3, ext3 with data=writeback. The paper did
/// not measure linked writes.
static PAPER: [(&str, [PaperRow; 4]); 4] = [
    (
        UNTAR,
        [
            ("none", 20.32, 523_272),
            ("dirty-bit", 18.87, 523_304),
            ("journal", 20.99, 523_256),
            ("journal-writeback", 32.02, 544_160),
        ],
    ),
    (
        REMOVE,
        [
            ("none", 9.79, 5_208),
            ("dirty-bit", 10.90, 5_960),
            ("journal", 55.64, 36_296),
            ("journal-writeback", 9.74, 10_560),
        ],
    ),
    (
        POSTMARK,
        [
            ("none", 33.98, 168_312),
            ("dirty-bit", 50.46, 240_720),
            ("journal", 43.48, 260_704),
            ("journal-writeback", 41.82, 173_936),
        ],
    ),
    (
        WRITERS,
        [("none", 37.48, 64), ("dirty-bit", 33.57, 72), ("journal", 35.16, 136), ("journal-writeback", 36.69, 136)],
    ),
];

/// Options of the measurement.
#[derive(Debug, Clone)]
pub struct Options {
    /// A directory for volumes, one at a time: sparse files.
    pub dir: PathBuf,
    /// Fraction of the full size: of the work and of the volumes.
    pub scale: f64,
    /// Seed of the work.
    pub seed: u64,
}

impl Options {
    fn scaled(&self, amount: u64) -> u64 {
        ((amount as f64 * self.scale) as u64).max(1)
    }

    /// Bytes of a volume: a fraction of `full`, in whole MiB, but at least `least`.
    fn volume(&self, full: u64, least: u64) -> u64 {
        self.scaled(full).max(least) >> 20 << 20
    }
}

/// The result.
#[derive(Debug, Clone, Serialize)]
pub struct Figures {
    /// The figures of each workload, use of syncs and mode.
    pub work: Vec<Worked>,
    /// The figures of each recovery.
    pub recovery: Vec<Recovered>,
}

/// The figures of one workload in one mode.
#[derive(Debug, Clone, Serialize)]
pub struct Worked {
    /// The name of the workload.
    pub work: &'static str,
    /// `one sync`, `fsync each` or `commit=1`.
    pub syncs: &'static str,
    /// The name of the mode.
    pub mode: &'static str,
    /// The disk's time until the sync at the end returns, in seconds.
    pub seconds: f64,
    /// Ratio of the time to that of the mode `none`.
    pub to_none: f64,
    /// Requests until then: reads and writes.
    pub requests: u64,
    /// Requests that do not begin where the previous one ended.
    pub seeks: u64,
    /// Flushes.
    pub flushes: u64,
    /// Generations that changed metadata, each with a slot; `None` in modes without a list.
    pub generations: Option<u64>,
    /// Incomplete slots among them; `None` in modes without a list.
    pub incomplete: Option<u64>,
    /// Bytes written.
    pub bytes: u64,
    /// Those to the list, with padding.
    pub list_bytes: u64,
    /// Bytes of records in slots, headers and whole inodes included.
    pub record_bytes: u64,
    /// Bytes of copies of sectors in slots.
    pub copy_bytes: u64,
    /// Bytes written to the journal.
    pub journal_bytes: u64,
    /// Bytes written elsewhere: data, and metadata to its own blocks.
    pub home_bytes: u64,
    /// All bytes written until the volume is unmounted. A journal's blocks are written home by then.
    pub unmounted_bytes: u64,
    /// Seconds of the same work in the paper, on its own machine, with one sync.
    pub paper_seconds: Option<f64>,
    /// Bytes written by the same work in the paper.
    pub paper_bytes: Option<u64>,
}

/// Runs the experiments. `say` is called before each step.
///
/// # Errors
/// The first error.
pub fn run(options: &Options, say: &dyn Fn(&str)) -> Result<Figures> {
    let mut work = Vec::new();
    for syncs in Syncs::ALL {
        for mode in MODES {
            work.extend(worked(options, mode, syncs, say)?);
        }
    }
    let base = |row: &Worked| {
        let same = |other: &&Worked| other.work == row.work && other.syncs == row.syncs && other.mode == MODES[0];
        work.iter().find(same).map_or(row.seconds, |base| base.seconds)
    };
    let bases: Vec<f64> = work.iter().map(base).collect();
    for (row, base) in work.iter_mut().zip(bases) {
        row.to_none = row.seconds / base;
    }
    work.sort_by_key(|row| WORKS.iter().position(|work| *work == row.work));
    Ok(Figures { work, recovery: recovery::run(options, say)? })
}

/// Does the four workloads in a mode, on three new volumes.
fn worked(options: &Options, mode: &'static str, syncs: Syncs, say: &dyn Fn(&str)) -> Result<Vec<Worked>> {
    let seed = options.seed;
    let on = |what: &str, job: &dyn Fn(&Measured) -> Result<Vec<Worked>>| {
        say(&format!("{mode}, {}: {what}", syncs.name()));
        let size = options.volume(VOLUME, SMALLEST);
        let journal = (JOURNAL * options.scale).clamp(SHORTEST_JOURNAL, JOURNAL) as u32;
        on_new_volume(options, size, |path| job(&Measured::make(path, known(mode)?, syncs, seed, journal)?))
    };
    let files = options.scaled(TREE_FILES);
    let mut rows = on(&format!("a tree of {} files", grouped(files)), &|volume: &Measured| {
        let made = volume.measure(UNTAR, |job| work::untar(job, files, seed))?;
        let removed = volume.measure(REMOVE, |job| work::remove(job, InodeNo::ROOT, work::TREE.as_bytes()))?;
        Ok(vec![made, removed])
    })?;
    let files = options.scaled(POSTMARK_FILES);
    rows.extend(on(&format!("PostMark with {} files", grouped(files)), &|volume: &Measured| {
        volume.measure(POSTMARK, |job| work::postmark(job, files, files, seed)).map(|row| vec![row])
    })?);
    let bytes = options.scaled(WRITERS_BYTES);
    rows.extend(on("16 writers", &|volume: &Measured| {
        volume.measure(WRITERS, |job| work::writers(job, bytes, seed)).map(|row| vec![row])
    })?);
    Ok(rows)
}

fn known(mode: &str) -> Result<Mode> {
    mode.parse().map_err(|e: fs::UnknownName| Error::Failed(e.to_string()))
}

fn failed(e: fs::Error) -> Error {
    Error::Failed(e.to_string())
}

/// Creates a sparse file of `size` bytes for `work`, and removes it.
fn on_new_volume<T>(options: &Options, size: u64, work: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
    let path = options.dir.join("linked.img");
    let _registered = interruption::file(&path)?;
    std::fs::File::create(&path).and_then(|file| file.set_len(size)).trying("make", &path)?;
    let outcome = work(&path);
    let removed = std::fs::remove_file(&path).trying("remove", &path);
    let value = outcome?;
    removed.map(|()| value)
}

/// A modelled disk on the file, with an empty cache and the clock at 0.
fn disk(path: &Path) -> Result<Disk> {
    let file = FileDevice::open(path, blockdev::OpenOptions { write: true, ..Default::default() })?;
    let capacity = file.geometry().len.max(DISK);
    let parameters = Parameters::parse(&format!("kind = disk\ncapacity = {capacity}"))?;
    Ok(Model::new(Unflushed(file), &parameters)?)
}

/// Creates a volume for a mode in the file: ext3 with a journal of `journal` MiB, or ext2 with a list.
fn format_for(path: &Path, mode: Mode, journal: u32) -> Result<()> {
    let journaled = mode.consistency.log() == Log::Journal;
    let plain = MkfsOptions::new(if journaled { Kind::Ext3 } else { Kind::Ext2 });
    let mut options = MkfsOptions { uuid: [7; 16], hash_seed: [9; 16], block_size: Some(BLOCK), ..plain };
    options.journal_mib = journaled.then_some(journal);
    options.linked_len = (!journaled).then_some(0);
    options.discard = false;
    // not on the modelled disk, which would write the inode tables instead of leaving holes
    let file = FileDevice::open(path, blockdev::OpenOptions { write: true, ..Default::default() })?;
    make(&file, &options).map(drop).map_err(|e| Error::Failed(e.to_string()))
}

/// The locations of a volume's logs.
fn locations(disk: &Arc<Disk>, mode: Mode) -> Result<Locations> {
    let device = Arc::clone(disk) as Arc<dyn BlockDevice>;
    let volume = Volume::open(device, &OpenOptions::default()).map_err(failed)?;
    if mode.consistency.log() == Log::Journal {
        let number = InodeNo(volume.superblock().disk.s_journal_inum.get());
        return Ok(Locations { list: None, journal: blocks_of(&volume, number)?.1 });
    }
    let (len, runs) = blocks_of(&volume, linked::INODE)?;
    let areas = Areas::of(len, BLOCK).ok_or_else(|| Error::Failed("the list has an invalid length".into()))?;
    Ok(Locations { list: runs.first().map(|run| (run.start, areas)), journal: Vec::new() })
}

/// The length of a file, and the ranges of its blocks on the device, in bytes.
fn blocks_of(volume: &Volume, number: InodeNo) -> Result<(u64, Vec<Range<u64>>)> {
    let inode = volume.inode(number).map_err(failed)?;
    let size = u64::from(BLOCK);
    let (mut at, end, mut runs) = (0, inode.size / size, Vec::new());
    while at < end {
        let run = volume.map(&inode, FileBlock(at)).map_err(failed)?;
        if let Mapping::Data(block) = run.mapping {
            runs.push(block.get() * size..(block.get() + run.len) * size);
        }
        at = run.end().get();
    }
    Ok((inode.size, runs))
}

/// Options for writing to a volume in a mode.
fn writing(mode: Mode, clock: &Arc<Clock>, seed: u64) -> OpenOptions {
    let clock = Arc::clone(clock);
    let now = move || {
        let passed = clock.now();
        Timestamp { seconds: 1_700_000_000 + passed.as_secs() as i64, nanos: passed.subsec_nanos() }
    };
    let write = WriteOptions {
        consistency: Some(mode.consistency),
        data: mode.data,
        commit: Duration::from_secs(1),
        delayed_bytes: DELAYED,
        clock: Arc::new(now),
        seed: Some(seed),
        superuser: true,
        ..WriteOptions::default()
    };
    OpenOptions { write: Some(write), ..OpenOptions::default() }
}

/// A volume on a modelled disk whose requests are counted.
struct Measured {
    disk: Arc<Disk>,
    device: Arc<Watched>,
    clock: Arc<Clock>,
    mode: Mode,
    syncs: Syncs,
    seed: u64,
}

impl Measured {
    /// Creates the volume in the file.
    fn make(path: &Path, mode: Mode, syncs: Syncs, seed: u64, journal: u32) -> Result<Self> {
        format_for(path, mode, journal)?;
        let disk = Arc::new(disk(path)?);
        let device = Arc::new(Watched::new(Arc::clone(&disk), locations(&disk, mode)?));
        let clock = Arc::new(Clock::new(Arc::clone(&disk)));
        Ok(Self { disk, device, clock, mode, syncs, seed })
    }

    fn open(&self) -> Result<Volume> {
        let device = Arc::clone(&self.device) as Arc<dyn BlockDevice>;
        Volume::open(device, &writing(self.mode, &self.clock, self.seed)).map_err(failed)
    }

    /// Does `work` on the newly opened volume, with a sync at the end.
    fn measure(&self, name: &'static str, work: impl FnOnce(&Job<'_>) -> fs::Result<()>) -> Result<Worked> {
        let volume = self.open()?;
        self.device.reset();
        let start = self.disk.clock();
        let job = Job { volume: &volume, clock: &self.clock, syncs: self.syncs };
        work(&job).and_then(|()| volume.sync()).map_err(failed)?;
        let seconds = (self.disk.clock() - start).as_secs_f64();
        let counts = self.device.counts();
        volume.unmount().map_err(failed)?;
        let has_list = self.mode.consistency.log() == Log::List;
        let paper = (self.syncs == Syncs::Once).then(|| in_paper(name, self.mode.name)).flatten();
        Ok(Worked {
            work: name,
            syncs: self.syncs.name(),
            mode: self.mode.name,
            seconds,
            to_none: 1.0,
            requests: counts.requests,
            seeks: counts.seeks,
            flushes: counts.flushes,
            generations: has_list.then_some(counts.slots),
            incomplete: has_list.then_some(counts.incomplete),
            bytes: counts.written,
            list_bytes: counts.list,
            record_bytes: counts.records,
            copy_bytes: counts.copies,
            journal_bytes: counts.journal,
            home_bytes: counts.written - counts.list - counts.journal,
            unmounted_bytes: self.device.counts().written,
            paper_seconds: paper.map(|(_, seconds, _)| seconds),
            paper_bytes: paper.map(|(_, _, sectors)| sectors * 512),
        })
    }
}

/// The paper's figures for a workload in a mode.
fn in_paper(work: &str, mode: &str) -> Option<PaperRow> {
    let (_, modes) = PAPER.iter().find(|(name, _)| *name == work)?;
    modes.iter().find(|(name, ..)| *name == mode).copied()
}
