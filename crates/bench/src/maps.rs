//! The experiments of *Taking Linux Filesystems to the Space Age: Space Maps in Ext4* (section 4): space maps and block
//! bitmaps on a modelled disk.
//!
//! 1. *Small files* (4.1): PostMark with more files each time.
//! 2. *Small and large files at once* (4.2): five trees of small files beside five large files, five times.
//! 3. *Free space* (4.3): its fragmentation after seven rounds of 2.
//! 4. *Mount*, the paper's own first limitation: a volume 160 times as long, with 2 000 holes in each metablockgroup,
//!    is opened; measured until a block was allocated, and until a contiguous GiB was found after metablockgroups
//!    without one.
//!
//! The main figures are the disk requests for allocation metadata, and the non-contiguous ones among them, which need a
//! seek. There are two columns for bitmaps: with mke2fs's default layout, and with flexible groups as large as a
//! metablockgroup, to separate the effect of the layout from that of the maps. File data is allocated but not written.
//! The result depends on the seed alone.

use crate::error::Trying;
use crate::interruption;
use crate::table::{Table, grouped};
use crate::{Error, Result};
use blockdev::{BlockDevice, FileDevice, Op};
use format::space_map::SpaceMaps;
use format::{FileBlock, GroupNo};
use fs::mkfs::{FeatureEdits, Kind, MkfsOptions, make};
use fs::{AllocateMode, FileKind, InodeNo, Mapping, NewFile, OpenOptions, Timestamp, Volume, WriteOptions};
use serde::Serialize;
use simdev::{Model, Parameters, Trace};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Length of the paper's volume; all amounts are in proportion to it.
const PAPER: u64 = 50 << 30;
const BLOCK: u32 = 1024;
/// Length of the volume that is opened, in the paper.
const LARGE_BLOCK: u32 = 4096;
/// Bytes of the modelled disk, or more where the volume is longer.
const DISK: u64 = 1_465_149_168 * 512;
/// Length of that volume in lengths of the others.
const LARGER: u64 = 160;
/// One-block holes in each of its metablockgroups, except the last tenth, which is empty.
const HOLES: u64 = 2000;
/// Cache size in bytes for metadata; half of it for bitmaps.
const CACHE: usize = 4 << 20;
/// Bytes in a metablockgroup, and in a large flexible group.
const METABLOCKGROUP: u64 = 8 << 30;
/// Bytes of allocated file data after which a generation closes, equivalent to five seconds of work.
const GENERATION: u64 = 256 << 20;
/// Number of files created or removed after which a generation closes.
const GENERATION_FILES: u64 = 2000;
/// Bytes that a large file grows by at once.
const PIECE: u64 = 16 << 20;
/// Rounds of trees and large files after which free space is measured.
const ROUNDS: u64 = 7;
/// Share of the volume that these fill.
const FILL: f64 = 0.89;
/// Free extents that the paper calls large.
const LARGE: u64 = 1 << 30;

/// Options of the measurement.
#[derive(Debug, Clone)]
pub struct Options {
    /// A directory for volumes, one at a time: sparse files.
    pub dir: PathBuf,
    /// Bytes of the volumes.
    pub size: u64,
    /// Seed of the choice of files.
    pub seed: u64,
}

/// The result.
#[derive(Debug, Clone, Serialize)]
pub struct Figures {
    /// The figures of each kind of work and layout.
    pub work: Vec<Worked>,
    /// One for each layout.
    pub free: Vec<Free>,
    /// One for each layout.
    pub mounts: Vec<Mounted>,
}

/// Opening a large volume with many holes.
#[derive(Debug, Clone, Serialize)]
pub struct Mounted {
    /// The structures that record free space.
    pub layout: &'static str,
    /// Bytes of the volume.
    pub size: u64,
    /// The disk's time until the volume is open, in seconds.
    pub open: f64,
    /// The time until a block was also allocated, in seconds.
    pub block: f64,
    /// The time until a contiguous GiB was also allocated, in seconds.
    pub gib: f64,
    /// Requests until then.
    pub requests: u64,
}

/// The figures of one kind of work on one layout.
#[derive(Debug, Clone, Serialize)]
pub struct Worked {
    /// The name of the work.
    pub work: String,
    /// The structures that record free space.
    pub layout: &'static str,
    /// Requests for allocation metadata.
    pub requests: u64,
    /// The non-contiguous requests among them.
    pub elsewhere: u64,
    /// Their ratio to those for bitmaps in mke2fs's default layout.
    pub of_bitmaps: f64,
    /// Their ratio to those for bitmaps in flexible groups as large as a metablockgroup.
    pub of_same_layout: f64,
    /// All non-contiguous requests.
    pub all_elsewhere: u64,
    /// Bytes written to the journal.
    pub journal_bytes: u64,
    /// The disk's time, in seconds.
    pub seconds: f64,
}

/// Free space after all rounds.
#[derive(Debug, Clone, Serialize)]
pub struct Free {
    /// The structures that record free space.
    pub layout: &'static str,
    /// The fraction of the blocks in use.
    pub fill: f64,
    /// Free extents.
    pub extents: u64,
    /// The fraction of free space in extents of a GiB and more.
    pub in_large: f64,
    /// Bytes of the largest.
    pub largest: u64,
}

const LAYOUTS: [&str; 3] = ["bitmaps", "bitmaps, flexible groups of 8 GiB", "space maps"];

/// Runs the experiments. `say` is called before each step.
///
/// # Errors
/// The first error.
pub fn run(options: &Options, say: &dyn Fn(&str)) -> Result<Figures> {
    let mut figures = Figures { work: Vec::new(), free: Vec::new(), mounts: Vec::new() };
    let scale = options.size as f64 / PAPER as f64;
    for layout in LAYOUTS {
        for hundreds in 1..=5u64 {
            let files = (hundreds as f64 * 1e5 * scale) as u64;
            say(&format!("{layout}: PostMark with {} files", grouped(files)));
            let name = format!("PostMark, {} files", grouped(files));
            let worked = Disk::with(options, layout, |disk| {
                disk.measured(name, layout, |job| postmark(job, files, options.seed))
            })?;
            figures.work.push(worked);
        }
        Disk::with(options, layout, |disk| {
            let share = (options.size as f64 * FILL / ROUNDS as f64) as u64;
            for round in 1..=ROUNDS {
                say(&format!("{layout}: trees and large files, round {round}"));
                let name = format!("trees and large files, round {round}");
                let worked = disk.measured(name, layout, |job| mixed(job, round, share, scale, options.seed))?;
                if round <= 5 {
                    figures.work.push(worked);
                }
            }
            figures.free.push(disk.free(layout)?);
            Ok(())
        })?;
        say(&format!("{layout}: opening a large volume with holes"));
        let large = Options { size: LARGER * options.size, ..options.clone() };
        figures.mounts.push(Disk::with(&large, layout, |disk| disk.opened(layout))?);
    }
    let elsewhere = |layout: &str, work: &str| {
        let same = |worked: &&Worked| worked.layout == layout && worked.work == work;
        figures.work.iter().find(same).map_or(0, |worked| worked.elsewhere).max(1) as f64
    };
    let bases: Vec<[f64; 2]> =
        figures.work.iter().map(|worked| [0, 1].map(|n| elsewhere(LAYOUTS[n], &worked.work))).collect();
    for (worked, [usual, same]) in figures.work.iter_mut().zip(bases) {
        worked.of_bitmaps = worked.elsewhere as f64 / usual;
        worked.of_same_layout = worked.elsewhere as f64 / same;
    }
    figures.work.sort_by_key(|worked| !worked.work.starts_with("PostMark"));
    Ok(figures)
}

/// The kind of content of a part of the volume, as far as that is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ContentKind {
    Allocation,
    Journal,
}

/// A modelled disk with a volume, whose requests are counted.
struct Disk {
    device: Arc<Trace<Arc<Model<FileDevice>>>>,
    model: Arc<Model<FileDevice>>,
    /// First byte to length and kind.
    contents: BTreeMap<u64, (u64, ContentKind)>,
    seed: u64,
}

/// The block size of a volume of this length.
fn block_size(options: &Options) -> u32 {
    if options.size > PAPER { LARGE_BLOCK } else { BLOCK }
}

impl Disk {
    /// Runs `work` on a new volume in `options.dir`.
    fn with<T>(options: &Options, layout: &str, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let path = options.dir.join("maps.img");
        let _registered = interruption::file(&path)?;
        let outcome = Self::make(&path, layout, options).and_then(|mut disk| work(&mut disk));
        std::fs::remove_file(&path).trying("remove", &path)?;
        outcome
    }

    fn make(path: &Path, layout: &str, options: &Options) -> Result<Self> {
        std::fs::File::create(path).and_then(|file| file.set_len(options.size)).trying("make", path)?;
        let write = blockdev::OpenOptions { write: true, ..Default::default() };
        let capacity = options.size.max(DISK);
        let disk = Parameters::parse(&format!("kind = disk\ncapacity = {capacity}"))?;
        let model = Arc::new(Model::new(FileDevice::open(path, write)?, &disk)?);
        let kind = if layout == LAYOUTS[2] { Kind::SpaceMap } else { Kind::Ext4 };
        let plain = MkfsOptions::new(kind);
        let mut made =
            MkfsOptions { uuid: [7; 16], hash_seed: [9; 16], block_size: Some(block_size(options)), ..plain };
        made.lazy_inode_tables = true;
        made.discard = false;
        if layout != LAYOUTS[0] {
            let mut edits = FeatureEdits::default();
            for feature in ["sparse_super2", "^resize_inode"] {
                edits.add(feature).map_err(|e| Error::Failed(e.to_string()))?;
            }
            made.features = edits;
            made.backup_superblocks = 0;
        }
        if layout == LAYOUTS[1] {
            made.groups_per_flex = Some((METABLOCKGROUP / (8 * u64::from(block_size(options)).pow(2))) as u32);
        }
        make(model.as_ref(), &made).map_err(|e| Error::Failed(e.to_string()))?;
        let device = Arc::new(Trace::with_events(Arc::clone(&model), usize::MAX));
        let mut disk = Self { device, model, contents: BTreeMap::new(), seed: options.seed };
        disk.find()?;
        Ok(disk)
    }

    fn open(&self) -> Result<Volume> {
        let time = Timestamp { seconds: 1_700_000_000, nanos: 0 };
        let write = WriteOptions {
            clock: Arc::new(move || time),
            seed: Some(self.seed),
            superuser: true,
            ..WriteOptions::default()
        };
        let device = Arc::clone(&self.device) as Arc<dyn BlockDevice>;
        let options = OpenOptions { write: Some(write), cache_bytes: CACHE, ..OpenOptions::default() };
        Volume::open(device, &options).map_err(failed)
    }

    /// Determines the locations of allocation metadata and the journal.
    fn find(&mut self) -> Result<()> {
        let device = Arc::clone(&self.device) as Arc<dyn BlockDevice>;
        let volume = Volume::open(device, &OpenOptions::default()).map_err(failed)?;
        let sb = volume.superblock();
        let size = u64::from(sb.geometry.block_size);
        let mut add = |blocks: Range<u64>, what| {
            self.contents.insert(blocks.start * size, ((blocks.end - blocks.start) * size, what));
        };
        let bitmap = |group: GroupNo| volume.group(group).map(|group| group.block_bitmap).map_err(failed);
        match SpaceMaps::of(sb).map_err(|e| Error::Failed(e.to_string()))? {
            Some(maps) => {
                for map in 0..maps.maps() {
                    let places = maps.places(map, bitmap(GroupNo(maps.groups_of(map).start))?);
                    places.into_iter().for_each(|place| add(place, ContentKind::Allocation));
                }
                add(maps.table(), ContentKind::Allocation);
                add(maps.ring(), ContentKind::Allocation);
            }
            None => {
                for group in sb.geometry.group_numbers() {
                    let block = bitmap(group)?.get();
                    add(block..block + 1, ContentKind::Allocation);
                }
            }
        }
        let journal = volume.inode(InodeNo(sb.disk.s_journal_inum.get())).map_err(failed)?;
        let (mut at, end) = (0, journal.size / size);
        while at < end {
            let run = volume.map(&journal, FileBlock(at)).map_err(failed)?;
            if let Mapping::Data(block) = run.mapping {
                add(block.get()..block.get() + run.len, ContentKind::Journal);
            }
            at = run.end().get();
        }
        self.device.reset();
        Ok(())
    }

    fn content_at(&self, offset: u64) -> Option<ContentKind> {
        let (start, (length, what)) = self.contents.range(..=offset).next_back()?;
        (offset < start + length).then_some(*what)
    }

    /// Runs `work` on a newly opened volume, and counts the requests until all of it is durable.
    fn measured(
        &mut self,
        work: String,
        layout: &'static str,
        job: impl FnOnce(&mut Job<'_>) -> fs::Result<()>,
    ) -> Result<Worked> {
        let volume = self.open()?;
        self.device.reset();
        let start = self.model.report().time;
        let mut doing = Job { volume: &volume, bytes: 0, files: 0 };
        job(&mut doing).and_then(|()| volume.sync()).map_err(failed)?;
        let seconds = (self.model.report().time - start).as_secs_f64();
        let mut worked = Worked {
            work,
            layout,
            requests: 0,
            elsewhere: 0,
            of_bitmaps: 0.0,
            of_same_layout: 0.0,
            all_elsewhere: 0,
            journal_bytes: 0,
            seconds,
        };
        let mut position = None;
        for event in self.device.events() {
            if !matches!(event.op, Op::Read | Op::Write) {
                continue;
            }
            let elsewhere = position.is_some_and(|position| position != event.offset);
            position = Some(event.offset + event.len);
            worked.all_elsewhere += u64::from(elsewhere);
            match self.content_at(event.offset) {
                Some(ContentKind::Allocation) => {
                    worked.requests += 1;
                    worked.elsewhere += u64::from(elsewhere);
                }
                Some(ContentKind::Journal) if event.op == Op::Write => worked.journal_bytes += event.len,
                _ => {}
            }
        }
        volume.unmount().map_err(failed)?;
        Ok(worked)
    }

    /// Creates holes all over the volume, and opens it.
    fn opened(&self, layout: &'static str) -> Result<Mounted> {
        let volume = self.open()?;
        let size = volume.superblock().geometry.blocks * u64::from(LARGE_BLOCK);
        let count = size / METABLOCKGROUP;
        let full = count - count.div_ceil(10);
        let mut job = Job { volume: &volume, bytes: 0, files: 0 };
        holes(&mut job, full).map_err(failed)?;
        volume.unmount().map_err(failed)?;
        self.device.reset();
        let start = self.model.report().time;
        let passed = || (self.model.report().time - start).as_secs_f64();
        let volume = self.open()?;
        let open = passed();
        let job = Job { volume: &volume, bytes: 0, files: 0 };
        let near = volume.create(InodeNo::ROOT, b"near", &FILE).map_err(failed)?.number;
        job.volume.allocate_stale(near, 0, LARGE_BLOCK.into()).map_err(failed)?;
        let block = passed();
        let far = volume.create(InodeNo::ROOT, b"far", &FILE).map_err(failed)?.number;
        job.volume.allocate_stale(far, 0, LARGE).map_err(failed)?;
        let gib = passed();
        let requests = self.device.counters().reads.requests + self.device.counters().writes.requests;
        volume.unmount().map_err(failed)?;
        Ok(Mounted { layout, size, open, block, gib, requests })
    }

    /// The distribution of free space now.
    fn free(&self, layout: &'static str) -> Result<Free> {
        let device = Arc::clone(&self.device) as Arc<dyn BlockDevice>;
        let volume = Volume::open(device, &OpenOptions::default()).map_err(failed)?;
        let stored = volume.stored_free_space().map_err(failed)?;
        let mut extents: Vec<Range<u64>> = Vec::new();
        for group in stored.groups() {
            for run in stored.of_group(GroupNo(group)).map_err(failed)? {
                match extents.last_mut() {
                    Some(last) if last.end == run.start => last.end = run.end,
                    _ => extents.push(run),
                }
            }
        }
        let bytes = |extent: &Range<u64>| (extent.end - extent.start) * u64::from(BLOCK);
        let free: u64 = extents.iter().map(bytes).sum();
        let large: u64 = extents.iter().map(bytes).filter(|bytes| *bytes >= LARGE).sum();
        let all = volume.superblock().geometry.blocks * u64::from(BLOCK);
        Ok(Free {
            layout,
            fill: 1.0 - free as f64 / all as f64,
            extents: extents.len() as u64,
            in_large: large as f64 / free.max(1) as f64,
            largest: extents.iter().map(bytes).max().unwrap_or(0),
        })
    }
}

fn failed(e: fs::Error) -> Error {
    Error::Failed(e.to_string())
}

/// Work on a volume whose generations close by amount of work instead of by time.
struct Job<'a> {
    volume: &'a Volume,
    bytes: u64,
    files: u64,
}

impl Job<'_> {
    fn add_work(&mut self, files: u64, bytes: u64) -> fs::Result<()> {
        (self.files, self.bytes) = (self.files + files, self.bytes + bytes);
        if self.files >= GENERATION_FILES || self.bytes >= GENERATION {
            (self.files, self.bytes) = (0, 0);
            self.volume.sync()?;
        }
        Ok(())
    }

    fn dir(&mut self, parent: InodeNo, name: &str) -> fs::Result<InodeNo> {
        let new = NewFile { kind: FileKind::Directory, mode: 0o755, ..FILE };
        self.add_work(1, 0)?;
        Ok(self.volume.create(parent, name.as_bytes(), &new)?.number)
    }

    fn file(&mut self, dir: InodeNo, name: &str, bytes: u64) -> fs::Result<InodeNo> {
        let number = self.volume.create(dir, name.as_bytes(), &FILE)?.number;
        self.grow(number, 0, bytes)?;
        self.add_work(1, 0)?;
        Ok(number)
    }

    fn grow(&mut self, file: InodeNo, from: u64, bytes: u64) -> fs::Result<()> {
        self.volume.allocate_stale(file, from, bytes)?;
        self.add_work(0, bytes)
    }
}

const FILE: NewFile = NewFile { kind: FileKind::Regular, mode: 0o644, umask: 0, uid: 0, gid: 0, device: (0, 0) };

/// PostMark as the paper runs it, by its defaults: files of 500 bytes to 10 KB, half as many transactions as files,
/// each of which reads or appends, and makes or removes a file.
fn postmark(job: &mut Job<'_>, files: u64, seed: u64) -> fs::Result<()> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut dirs = Vec::new();
    for n in 0..files.div_ceil(1000) {
        dirs.push(job.dir(InodeNo::ROOT, &format!("s{n}"))?);
    }
    let (mut live, mut next) = (Vec::new(), 0u64);
    let mut make = |job: &mut Job<'_>, random: &mut fastrand::Rng, live: &mut Vec<_>| {
        let (dir, name, bytes) = (dirs[random.usize(..dirs.len())], next.to_string(), random.u64(500..10_000));
        next += 1;
        let number = job.file(dir, &name, bytes)?;
        live.push((dir, name, number, bytes));
        Ok::<_, fs::Error>(())
    };
    for _ in 0..files {
        make(job, &mut random, &mut live)?;
    }
    for _ in 0..files / 2 {
        if random.bool() {
            let which = random.usize(..live.len());
            let more = random.u64(500..10_000);
            job.grow(live[which].2, live[which].3, more)?;
            live[which].3 += more;
        }
        if random.bool() {
            make(job, &mut random, &mut live)?;
        } else if live.len() > 1 {
            let (dir, name, ..) = live.swap_remove(random.usize(..live.len()));
            job.volume.unlink(dir, name.as_bytes())?;
            job.add_work(1, 0)?;
        }
    }
    Ok(())
}

/// A file that fills each of the first metablockgroups, with holes at equal distances.
fn holes(job: &mut Job<'_>, metablockgroups: u64) -> fs::Result<()> {
    let dir = job.dir(InodeNo::ROOT, "full")?;
    for n in 0..metablockgroups {
        let file = job.file(dir, &n.to_string(), METABLOCKGROUP)?;
        let step = METABLOCKGROUP / HOLES / u64::from(LARGE_BLOCK) * u64::from(LARGE_BLOCK);
        for hole in 0..HOLES {
            job.volume.allocate(file, AllocateMode::PunchHole, hole * step, LARGE_BLOCK.into())?;
        }
        job.volume.sync()?;
    }
    Ok(())
}

/// Five trees of small files and five large files, alternating, `share` bytes in all.
fn mixed(job: &mut Job<'_>, round: u64, share: u64, scale: f64, seed: u64) -> fs::Result<()> {
    const AT_ONCE: usize = 5;
    let mut random = fastrand::Rng::with_seed(seed ^ round);
    // a kernel source tree of the paper's time has some 31 000 files of 12 KB on average
    let (mut small, mut dirs, mut large) = ((31_000.0 * scale) as u64 * AT_ONCE as u64, Vec::new(), Vec::new());
    let top = job.dir(InodeNo::ROOT, &format!("r{round}"))?;
    for n in 0..AT_ONCE {
        dirs.push(vec![job.dir(top, &format!("tree{n}"))?]);
        large.push((job.file(top, &format!("large{n}"), 1)?, 0));
    }
    let pieces = share / PIECE;
    let (per_piece, mut left, mut n) = (small.div_ceil(pieces.max(1)), share, 0u64);
    while left >= PIECE {
        for _ in 0..per_piece.min(small) {
            let tree = &mut dirs[(n % AT_ONCE as u64) as usize];
            n += 1;
            if n % 60 < AT_ONCE as u64 {
                tree.push(job.dir(tree[random.usize(tree.len().saturating_sub(32)..tree.len())], &format!("d{n}"))?);
            }
            let bytes = 2f64.powf(random.f64() * 8.0 + 8.0) as u64;
            let dir = tree.last().copied().unwrap_or(top);
            job.file(dir, &format!("f{n}"), bytes)?;
            left = left.saturating_sub(bytes.next_multiple_of(BLOCK.into()));
        }
        small -= per_piece.min(small);
        let which = (left / PIECE) as usize % AT_ONCE;
        let (file, length) = large[which];
        job.grow(file, length, PIECE)?;
        large[which].1 += PIECE;
        left = left.saturating_sub(PIECE);
    }
    Ok(())
}

impl Figures {
    /// For people: tables in Markdown.
    #[must_use]
    pub fn text(&self) -> String {
        let mut work = Table::new([
            "work",
            "layout",
            "requests for allocation",
            "non-contiguous",
            "/ bitmaps",
            "/ same layout",
            "all non-contiguous",
            "journal KiB",
            "virtual s",
        ]);
        for row in &self.work {
            work.row([
                row.work.clone(),
                row.layout.to_owned(),
                grouped(row.requests),
                grouped(row.elsewhere),
                format!("{:.3}", row.of_bitmaps),
                format!("{:.3}", row.of_same_layout),
                grouped(row.all_elsewhere),
                grouped(row.journal_bytes >> 10),
                format!("{:.2}", row.seconds),
            ]);
        }
        let mut free = Table::new(["free space of", "in use", "extents", "in 1 GiB and more", "largest MiB"]);
        for row in &self.free {
            free.row([
                row.layout.to_owned(),
                format!("{:.1} %", 100.0 * row.fill),
                grouped(row.extents),
                format!("{:.1} %", 100.0 * row.in_large),
                grouped(row.largest >> 20),
            ]);
        }
        let mut mounts = Table::new(["opening", "GiB", "open, s", "a block", "a contiguous GiB", "requests"]);
        for row in &self.mounts {
            mounts.row([
                row.layout.to_owned(),
                grouped(row.size >> 30),
                format!("{:.3}", row.open),
                format!("{:.3}", row.block),
                format!("{:.3}", row.gib),
                grouped(row.requests),
            ]);
        }
        format!("{}\n{}\n{}", work.text(), free.text(), mounts.text())
    }
}
