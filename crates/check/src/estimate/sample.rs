//! A sample of a volume: the check itself over some of its inodes, and the time that it takes.

use super::{Work, inodes_in_use};
use crate::checks::Checks;
use crate::context::Context;
use crate::inode_records::{Directories, Directory};
use crate::phases::bitmaps::Bitmaps;
use crate::phases::inodes::xattrs;
use crate::phases::{connectivity, links};
use crate::problem::Problems;
use crate::scan::found::{InlineDirectory, XattrRef};
use crate::scan::log::ScanLog;
use crate::scan::rounds::Rounds;
use crate::scan::walk::{BitmapKind, Visitor};
use crate::scan::{Counters, Scanner};
use crate::volume::Volume;
use blockdev::{BlockDevice, Error, Geometry, Op, Read};
use format::{FsBlock, GroupNo, InodeNo};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Groups of the volume for each one that is sampled.
const SAMPLED: usize = 32;
/// Groups in a row that are sampled, where flexible groups have no more.
const SAMPLED_ROW: u32 = 16;
/// Number of such rows that are sampled: minimum and maximum.
const SAMPLED_PLACES: (usize, usize) = (1, 4);
/// Minimum number of rows of a volume: where it has fewer groups, a part of the inodes of one is sampled.
const LEAST_ROWS: usize = 8;
/// Minimum number of inodes in such a part.
const LEAST_INODES: u32 = 512;
/// Candidates that are probed for presence in the page cache before the first of them is used nevertheless.
const TRIES: usize = 16;

/// The inodes that are sampled: a range in each group.
pub(super) type Part = BTreeMap<GroupNo, Range<u32>>;

/// A device that measures the time of its requests, which are made one at a time.
pub(super) struct Timed<'a> {
    device: &'a dyn BlockDevice,
    clock: &'a (dyn Fn() -> Duration + Sync),
    spent: Mutex<Spent>,
}

/// The time that requests took.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Spent {
    /// By the clock of [`Timed`].
    pub(super) by_clock: Duration,
    /// By the system's clock.
    pub(super) by_system: Duration,
}

impl<'a> Timed<'a> {
    /// `device`, timed by `clock`.
    pub(super) fn new(device: &'a dyn BlockDevice, clock: &'a (dyn Fn() -> Duration + Sync)) -> Self {
        Self { device, clock, spent: Mutex::default() }
    }

    /// The time of all requests so far.
    pub(super) fn spent(&self) -> Spent {
        *self.spent.lock()
    }

    fn timed<T>(&self, make: impl FnOnce() -> T) -> T {
        let (clock, system) = ((self.clock)(), Instant::now());
        let made = make();
        let mut spent = self.spent.lock();
        spent.by_clock += (self.clock)().saturating_sub(clock);
        spent.by_system += system.elapsed();
        made
    }
}

impl BlockDevice for Timed<'_> {
    fn geometry(&self) -> Geometry {
        Geometry { read_only: true, ..self.device.geometry() }
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> blockdev::Result<()> {
        self.timed(|| self.device.read(offset, buf))
    }

    fn read_many(&self, reads: &mut [Read<'_>]) {
        self.timed(|| self.device.read_many(reads));
    }

    fn read_cached(&self, reads: &mut [Read<'_>]) -> usize {
        self.timed(|| self.device.read_cached(reads))
    }

    fn write(&self, _: u64, _: &[u8]) -> blockdev::Result<()> {
        Err(Error::ReadOnly(Op::Write))
    }

    fn flush(&self) -> blockdev::Result<()> {
        Err(Error::ReadOnly(Op::Flush))
    }

    fn discard(&self, _: u64, _: u64) -> blockdev::Result<()> {
        Err(Error::ReadOnly(Op::Discard))
    }
}

/// The results of a sample, extrapolated to the whole volume.
pub(super) struct Sample {
    /// The work for the metadata that inodes lead to.
    pub(super) work: Work,
    /// Seconds of the device for that work.
    pub(super) seconds: f64,
    /// Seconds of one processor for the checks that run on several threads.
    pub(super) parallel: f64,
    /// Seconds of the checks that run on one thread after the reading.
    pub(super) serial: f64,
}

/// A point in time of a sample, with the totals of the reads before it.
#[derive(Clone, Copy)]
struct Moment {
    bytes: u64,
    requests: u64,
    spent: Spent,
    at: Instant,
}

impl Moment {
    fn now(counters: &Counters, timed: &Timed<'_>) -> Self {
        let (bytes, requests, _) = counters.totals();
        Self { bytes, requests, spent: timed.spent(), at: Instant::now() }
    }

    /// Seconds since `earlier` during which no request was in progress.
    fn processor_since(&self, earlier: &Self) -> f64 {
        let requests = self.spent.by_system.saturating_sub(earlier.spent.by_system);
        (self.at - earlier.at).saturating_sub(requests).as_secs_f64()
    }
}

/// A visitor that checks as in any check, and records the moment when the rounds after the inode tables begin.
struct Sampling<'a, 'n> {
    checks: Checks<'a, 'n>,
    counters: &'n Counters,
    timed: &'n Timed<'n>,
    below: &'n OnceLock<Moment>,
}

impl Visitor for Sampling<'_, '_> {
    fn bitmap(&self, group: GroupNo, kind: BitmapKind, bytes: Result<&[u8], &Error>) {
        self.checks.bitmap(group, kind, bytes);
    }

    fn directories(&self, directories: Vec<Directory>, inline: Vec<InlineDirectory>) {
        // nothing else sets it
        let _ = self.below.set(Moment::now(self.counters, self.timed));
        self.checks.directories(directories, inline);
    }

    fn dir_block(&self, dir: InodeNo, file_block: u32, block: FsBlock, bytes: Result<&[u8], &Error>) {
        self.checks.dir_block(dir, file_block, block, bytes);
    }

    fn xattr_block(&self, block: FsBlock, inodes: &[XattrRef], bytes: Result<&[u8], &Error>) -> u64 {
        self.checks.xattr_block(block, inodes, bytes)
    }
}

/// Checks the inodes `only`, which represent `all` inodes in use; `scanner` reads from `timed`, on one thread. `None`
/// where none of them is in use, or the check is cancelled.
pub(super) fn sample(
    scanner: &Scanner<'_>,
    timed: &Timed<'_>,
    volume: &Volume,
    only: &Part,
    all: u64,
) -> Option<Sample> {
    let problems = Problems::default();
    // metadata outside the sample must not be reported as missing
    problems.close();
    let ctx = Context::new(volume, &problems);
    let bitmaps = Bitmaps::new(volume);
    let directories = OnceLock::new();
    let names = OnceLock::new();
    let checks = Checks { ctx: &ctx, bitmaps: &bitmaps, directories: &directories, names: &names };
    let log = ScanLog::new(Some(1));
    let rounds = Rounds { ctx: &ctx, scanner, claimer: &ctx.claims, layers: None, log: &log, only: Some(only) };
    let counters = scanner.counters;
    let below = OnceLock::new();
    let visitor = Sampling { checks, counters, timed, below: &below };
    let start = Moment::now(counters, timed);
    let mut counts = rounds.run(&visitor).counts;
    if (scanner.cancelled)() {
        return None;
    }
    let end = Moment::now(counters, timed);
    let below = below.into_inner().filter(|_| counts.inodes > 0)?;
    let times = all as f64 / counts.inodes as f64;

    let began = Instant::now();
    xattrs::check_values(&ctx);
    let directories = directories.get_or_init(Directories::default);
    if let Some(names) = names.into_inner() {
        names.finish();
    }
    connectivity::check(&ctx, directories);
    links::check(&ctx);
    let serial = began.elapsed().as_secs_f64() * times;
    // the comparison covers all groups, not only those in the sample
    let began = Instant::now();
    bitmaps.compare(&ctx, volume.geometry.blocks, &mut counts);
    let compared = began.elapsed().as_secs_f64();

    // a cast from float to integer saturates
    let scale = |n: u64| (n as f64 * times) as u64;
    let (bytes, requests) = (scale(end.bytes - below.bytes), scale(end.requests - below.requests));
    Some(Sample {
        work: Work { bytes, requests, seeks: requests, scattered: requests, ..Work::default() },
        seconds: end.spent.by_clock.saturating_sub(below.spent.by_clock).as_secs_f64() * times,
        parallel: end.processor_since(&start) * times,
        serial: serial + compared,
    })
}

/// The inodes that are sampled, and the number of inodes in use that they represent. Where `is_cached` reports that a
/// location is in the page cache, another one is sampled: an estimate leaves its own sample in the cache.
pub(super) fn sampled_inodes(volume: &Volume, is_cached: &dyn Fn(u64) -> bool) -> (Part, u64) {
    let in_use = |group: &GroupNo| inodes_in_use(volume, *group);
    let groups: Vec<GroupNo> = volume.geometry.group_numbers().collect();
    let row = (volume.geometry.flex_groups.max(SAMPLED_ROW) as usize).min((groups.len() / LEAST_ROWS).max(1));
    let mut rows: Vec<(&[GroupNo], u64)> = groups.chunks(row).map(|row| (row, row.iter().map(in_use).sum())).collect();
    let all: u64 = rows.iter().map(|(_, inodes)| inodes).sum();
    let mut standing = all;
    // the system inodes, which are like no others, are in the first row
    if let Some((_, first)) = rows.first().filter(|(_, first)| *first < all / 2) {
        standing -= first;
        rows.remove(0);
    }
    let table = |row: &[GroupNo]| {
        let descriptor = row.first().and_then(|group| volume.group(*group));
        descriptor.and_then(|group| volume.geometry.byte_offset(group.inode_table)).unwrap_or(0)
    };
    let (least, most) = SAMPLED_PLACES;
    let places = (groups.len() / SAMPLED / row).clamp(least, most) as u64;
    let mut only = Part::new();
    for place in 0..places {
        let wanted = standing / (2 * places) * (2 * place + 1);
        let mut before = 0;
        let from = rows.iter().position(|(_, inodes)| {
            before += inodes;
            before > wanted
        });
        let candidates = rows.iter().skip(from.unwrap_or(rows.len())).filter(|(_, inodes)| *inodes > 0);
        if let Some((row, _)) = first_waited_for(candidates, |(row, _)| table(row), is_cached) {
            only.extend(row.iter().map(|group| (*group, part_of(volume, *group, groups.len()))));
        }
    }
    (only, all)
}

/// The inodes of a group that are sampled, on a volume of `groups` groups.
fn part_of(volume: &Volume, group: GroupNo, groups: usize) -> Range<u32> {
    if groups >= LEAST_ROWS {
        return 0..u32::MAX;
    }
    // the inodes in use are mostly the first of a table
    let in_use = u32::try_from(inodes_in_use(volume, group)).unwrap_or(u32::MAX);
    let len = (in_use / LEAST_ROWS as u32 * groups as u32).max(LEAST_INODES).min(in_use);
    let start = (in_use - len) / 2;
    start..start + len
}

/// The first candidate whose location is not in the page cache; the very first where all are.
pub(super) fn first_waited_for<T>(
    candidates: impl Iterator<Item = T>,
    place: impl Fn(&T) -> u64,
    is_cached: &dyn Fn(u64) -> bool,
) -> Option<T> {
    let mut first = None;
    for candidate in candidates.take(TRIES) {
        if !is_cached(place(&candidate)) {
            return Some(candidate);
        }
        first = first.or(Some(candidate));
    }
    first
}
