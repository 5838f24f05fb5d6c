//! The amount a check will read and the time that may take, from the superblock, the group descriptors and a sample.
//!
//! Known exactly: the descriptors, the bitmaps that were ever written, the used parts of the inode tables, and the
//! blocks of the resize inode. With metadata regions the rest is nearly known, too: it is what is in use of them, which
//! is counted in the block bitmaps of up to [`COUNTED_GROUPS`] groups that have regions.
//!
//! Elsewhere no descriptor says what hangs below the inodes, nor how far a volume has aged. So the check itself is run
//! over the inodes of a few *whole rows of groups* ([`sample`]), one group in [`SAMPLED`] but one row at least, where
//! as many inodes in use lie before as behind: its rounds bring all tree blocks, directories, attributes and links of
//! these inodes, however they lie, in the batches in which the device will serve them. Requests, bytes and time of
//! these rounds are taken times the inodes in use for each in the sample.
//!
//! The device's other figures are measured by reading as the check will: a piece of the inode tables in order, and the
//! places where the first pass will have to seek one after the other.
//!
//! A check that only wants to show how far it has come (`of_volume`) takes no sample, and guesses:
//! - A directory has one block, and all together one more for each [`NAMES_IN_4_KIB`] names.
//! - Sizes of files fall off exponentially about their mean (blocks in use by the number of files), so that
//!   `exp(-12 / mean)` of them have more than twelve blocks. With a block map each of these has an indirect block, and one
//!   more for every block of numbers it begins; of those with extents, one in [`FRAGMENTED`] has a tree block.
//! - The directory blocks of a group lie together. Of tree blocks about [`TREE_RUN`] lie so near each other that
//!   one request reads them all, and [`TREE_GAP`] bytes between each two. They are *scattered* over the volume.
//!
//! The time is as good as the device's figures: those measured here on a device whose blocks the system has in memory
//! are memory's.

use crate::context::Context;
use crate::inode_records::Directory;
use crate::options::{Options, Refusal};
use crate::phases::{bitmaps, superblock};
use crate::problem::Problems;
use crate::scan::found::{InlineDirectory, XattrRef};
use crate::scan::log::ScanLog;
use crate::scan::rounds::Rounds;
use crate::scan::walk::{BitmapKind, Visitor};
use crate::scan::{Counters, GAP, REQUEST, Scanner};
use crate::volume::Volume;
use blockdev::{BlockDevice, Read};
use format::feature::Incompat;
use format::{FsBlock, GroupNo, InodeNo};
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Names that 4 KiB of a directory hold when they are two thirds full, at 32 bytes a name.
const NAMES_IN_4_KIB: u64 = 85;
/// One in so many long files on an aged volume has more extents than an inode holds.
const FRAGMENTED: f64 = 4.0;
/// Tree blocks that one request reads.
const TREE_RUN: u64 = 3;
/// Bytes between two of them.
const TREE_GAP: u64 = 8 << 10;
/// Groups with regions whose block bitmaps are read.
const COUNTED_GROUPS: usize = 64;
/// Up to so many bytes a region lies behind what is read before it without a seek that would be worth counting.
const FAR: u64 = 4 << 20;
/// Bytes read in order to measure a device.
const MEASURED_BYTES: u64 = 8 << 20;
/// Beginnings of groups read to measure a device.
const MEASURED_SEEKS: usize = 64;
/// One group in so many is sampled.
const SAMPLED: usize = 32;
/// Groups in a row that are sampled, where flexible groups have no more.
const SAMPLED_ROW: u32 = 16;
/// Places where such a row is sampled: at least, and at most.
const SAMPLED_PLACES: (usize, usize) = (1, 4);

/// The speed of a device.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct DeviceSpeed {
    /// Bytes a second, read in order.
    pub bytes_per_second: f64,
    /// Seconds that it takes to come from one group to the next.
    pub seek_seconds: f64,
    /// Seconds that one request takes of a batch of requests for what lies here and there, without the time of its
    /// bytes.
    pub scattered_seconds: f64,
}

/// The work of a check: what it will read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Work {
    /// Bytes in all.
    pub bytes: u64,
    /// Of these, bytes that are known exactly.
    pub known_bytes: u64,
    /// Requests to the device.
    pub requests: u64,
    /// Requests that do not start where the one before ended.
    pub seeks: u64,
    /// Of these, requests for single blocks that lie here and there.
    pub scattered: u64,
    /// Inodes in use, as the descriptors count them.
    pub inodes: u64,
    /// Directories, as the descriptors count them.
    pub directories: u64,
}

/// The estimate of a check: what it will read and how long that may take. Shown as two lines of text.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Estimate {
    /// The work of the check.
    pub work: Work,
    /// The speed of the device.
    pub speed: DeviceSpeed,
    /// The speed was measured just now, not specified.
    pub measured: bool,
    /// Seconds for reading.
    pub seconds: f64,
}

impl Work {
    /// Seconds for reading all this from a device of such speed. Checking runs beside the reading and is not counted.
    #[must_use]
    pub fn seconds(&self, speed: &DeviceSpeed) -> f64 {
        let (scattered, seeks) = (self.scattered as f64, self.seeks.saturating_sub(self.scattered) as f64);
        self.bytes as f64 / speed.bytes_per_second + seeks * speed.seek_seconds + scattered * speed.scattered_seconds
    }
}

/// Foretells a check of the volume on `device`. Reads the superblock, the descriptors and what a check reads of a few
/// groups; where `speed` is `None`, also a few MiB to measure it.
///
/// # Errors
/// [`Refusal`] as for a check.
pub fn estimate(device: &dyn BlockDevice, options: &Options, speed: Option<DeviceSpeed>) -> Result<Estimate, Refusal> {
    let start = Instant::now();
    estimate_by(device, options, speed, &|| start.elapsed())
}

/// As [`estimate()`], with the time that `clock` returns: for devices with a clock of their own.
///
/// # Errors
/// [`Refusal`] as for a check.
pub fn estimate_by(
    device: &dyn BlockDevice,
    options: &Options,
    speed: Option<DeviceSpeed>,
    clock: &(dyn Fn() -> Duration + Sync),
) -> Result<Estimate, Refusal> {
    let counters = Counters::default();
    let scanner =
        Scanner { device, threads: 1, gap: GAP, counters: &counters, cancelled: &|| false, advanced: &|_| () };
    let volume = superblock::open(&scanner, options, false, &Problems::default())?;
    let (only, all) = sampled_groups(&volume);
    // what is reserved for growth belongs to an inode of the first group
    let reserved_for_growth = has_own_regions(&volume) || !only.contains(&GroupNo(0));
    let mut plan = known(&volume, reserved_for_growth);
    let regions = count_regions(&scanner, &volume, &mut plan);
    let measured = speed.is_none();
    let mut speed = speed.unwrap_or_else(|| measure(device, &volume, &plan, clock));
    if let Some(regions) = regions {
        let work = of_plan(&volume, &plan, MapWork::Found(regions));
        return Ok(Estimate { work, speed, measured, seconds: work.seconds(&speed) });
    }
    let sampled = sample(&scanner, &volume, &only, all, clock);
    if measured {
        let Sample { work: Work { bytes, scattered, .. }, seconds } = sampled;
        speed.scattered_seconds = (seconds - bytes as f64 / speed.bytes_per_second).max(0.0) / scattered.max(1) as f64;
    }
    let work = of_plan(&volume, &plan, MapWork::Found(sampled.work));
    Ok(Estimate { work, speed, measured, seconds: work.seconds(&speed) })
}

/// The work of a check of an open volume, as far as the descriptors show.
pub(crate) fn of_volume(volume: &Volume) -> Work {
    of_plan(volume, &known(volume, true), MapWork::Guessed)
}

/// The work below the inodes, as far as it is known.
enum MapWork {
    /// Nothing.
    Guessed,
    /// It was counted, in regions or in a sample.
    Found(Work),
}

/// The known reads.
struct Plan {
    work: Work,
    /// The places to which the first pass will seek, ascending: the bytes from each on that follow one another.
    stops: Vec<Range<u64>>,
}

fn of_plan(volume: &Volume, plan: &Plan, map_work: MapWork) -> Work {
    let geometry = &volume.geometry;
    let block_size = u64::from(geometry.block_size);
    let mut work = plan.work;
    work.known_bytes = work.bytes;

    let mut groups_with_directories = 0;
    let mut free_clusters = 0;
    for descriptor in &volume.groups {
        work.inodes += u64::from(geometry.inodes_per_group.saturating_sub(descriptor.free_inodes));
        let directories = u64::from(descriptor.directories.min(geometry.inodes_per_group));
        work.directories += directories;
        groups_with_directories += u64::from(directories > 0);
        free_clusters += u64::from(descriptor.free_clusters);
    }
    if let MapWork::Found(Work { bytes, requests, seeks, scattered, .. }) = map_work {
        work.bytes = work.bytes.saturating_add(bytes);
        work.requests += requests;
        work.seeks += seeks;
        work.scattered = scattered;
        return work;
    }
    let used_blocks = geometry.blocks.saturating_sub(free_clusters.saturating_mul(geometry.cluster_blocks.into()));
    let names_in_a_block = (NAMES_IN_4_KIB * block_size / 4096).max(1);
    let dir_blocks = work.directories + work.inodes / names_in_a_block;

    let files = work.inodes.saturating_sub(work.directories);
    let data_blocks = used_blocks.saturating_sub(work.known_bytes / block_size + dir_blocks);
    let mean = data_blocks as f64 / files.max(1) as f64;
    // of so many files one is as long as `n` blocks
    let longer = |n: f64| (-n / mean.max(0.01)).exp();
    let tree_blocks = if volume.features.incompat.contains(Incompat::EXTENT) {
        files as f64 * longer(12.0) / FRAGMENTED
    } else {
        // one for each block of numbers that is begun, on the first level and on the second
        let numbers = geometry.indirect().per_block() as f64;
        let first = longer(12.0) / (1.0 - longer(numbers));
        let second = longer(12.0 + numbers) / (1.0 - longer(numbers * numbers));
        files as f64 * (first + second)
    };
    // a cast from float to integer saturates
    let tree_blocks = tree_blocks as u64;
    if has_own_regions(volume) {
        let bytes = dir_blocks.saturating_add(tree_blocks).saturating_mul(block_size);
        work.bytes = work.bytes.saturating_add(bytes);
        work.requests += bytes.div_ceil(REQUEST);
        return work;
    }
    let tree_runs = tree_blocks.div_ceil(TREE_RUN);
    let gaps = (tree_blocks - tree_runs).saturating_mul(TREE_GAP);
    let dir_runs = dir_blocks.min(groups_with_directories);
    work.bytes = work.bytes.saturating_add(dir_blocks.saturating_add(tree_blocks).saturating_mul(block_size));
    work.bytes = work.bytes.saturating_add(gaps);
    work.requests += dir_runs.max(dir_blocks.saturating_mul(block_size) / REQUEST) + tree_runs;
    work.seeks += dir_runs + tree_runs;
    work.scattered = tree_runs;
    work
}

/// Whether all metadata outside the inode tables is looked for in regions.
fn has_own_regions(volume: &Volume) -> bool {
    volume.geometry.has_regions() && volume.geometry.is_owned()
}

/// The reads that do not depend on the files; the descriptor blocks reserved for growth if these are asked for.
fn known(volume: &Volume, reserved_for_growth: bool) -> Plan {
    let geometry = &volume.geometry;
    let block_size = u64::from(geometry.block_size);
    let mut first_pass = Vec::new();
    for n in 0..geometry.descriptor_blocks {
        first_pass.push((geometry.descriptor_block(n).get().saturating_mul(block_size), block_size));
    }
    let mut second_pass = Vec::new();
    for ((group, descriptor), used) in geometry.group_numbers().zip(&volume.groups).zip(&volume.used_inodes) {
        let bitmaps = [(descriptor.block_bitmap, BitmapKind::Block), (descriptor.inode_bitmap, BitmapKind::Inode)];
        for (block, kind) in bitmaps {
            if let Some(offset) = geometry.byte_offset(block).filter(|_| bitmaps::is_written(volume, group, kind)) {
                second_pass.push((offset, block_size));
            }
        }
        if let Some(offset) = geometry.byte_offset(descriptor.inode_table).filter(|_| *used > 0) {
            second_pass.push((offset, u64::from(*used) * u64::from(geometry.inode_size)));
        }
    }
    // the resize inode's own blocks are those reserved for growth
    let reserved = if reserved_for_growth { u64::from(geometry.reserved_descriptor_blocks) } else { 0 };
    let after_table = geometry.descriptor_block(0).get() + u64::from(geometry.descriptor_blocks);
    let third_pass = vec![(after_table.saturating_mul(block_size), reserved * block_size)];
    let mut work = Work::default();
    let [first, stops, third] = [first_pass, second_pass, third_pass].map(|mut pass| {
        pass.sort_unstable();
        joined(pass.into_iter().filter(|(_, len)| *len > 0))
    });
    for run in first.iter().chain(&stops).chain(&third) {
        work.add(run);
        work.seeks += 1;
    }
    Plan { work, stops }
}

/// Counts what is in use of the regions, by the block bitmaps of some of the groups that have any; where it begins
/// becomes a stop. `None` on volumes without regions, and where a bitmap cannot be read.
fn count_regions(scanner: &Scanner<'_>, volume: &Volume, plan: &mut Plan) -> Option<Work> {
    let geometry = &volume.geometry;
    if !has_own_regions(volume) {
        return None;
    }
    let block_size = u64::from(geometry.block_size);
    let with_regions = |group: &GroupNo| {
        volume.group(*group).is_some_and(|descriptor| descriptor.regions != 0)
            && bitmaps::is_written(volume, *group, BitmapKind::Block)
    };
    let groups: Vec<_> = geometry.group_numbers().filter(with_regions).collect();
    let mut tables: Vec<u64> = volume.groups.iter().map(|group| group.inode_table.get()).collect();
    tables.sort_unstable();
    // the first chunk of a region begins with the end of one
    let is_table = |block: u64| {
        let before = tables.partition_point(|start| *start <= block).checked_sub(1).and_then(|n| tables.get(n));
        before.is_some_and(|start| block - start < u64::from(geometry.itable_blocks))
    };
    let step = groups.len().div_ceil(COUNTED_GROUPS).max(1);
    let mut all = Work::default();
    let mut bitmap = vec![0; geometry.block_size as usize];
    let (mut counted, mut found) = (0, Vec::new());
    for group in groups.iter().step_by(step) {
        let descriptor = volume.group(*group)?;
        scanner.device.read(geometry.byte_offset(descriptor.block_bitmap)?, &mut bitmap).ok()?;
        let start = geometry.group_blocks(*group).start;
        let in_use = |block: &u64| {
            let place = (*block - start) as usize;
            bitmap.get(place / 8).is_some_and(|byte| byte >> (place % 8) & 1 == 1)
        };
        let used = geometry.region_blocks(*group, descriptor.regions).flatten().filter(in_use);
        let used = used.filter(|block| !is_table(*block)).map(|block| (block.saturating_mul(block_size), block_size));
        let runs = joined(used);
        let mut end = runs.first().and_then(|first| {
            let before = plan.stops.partition_point(|stop| stop.start <= first.start).checked_sub(1)?;
            plan.stops.get(before).map(|stop| stop.end)
        });
        for run in runs {
            all.add(&run);
            if end.is_none_or(|end| run.start > end + FAR) {
                all.seeks += 1;
                found.push(run.clone());
            }
            end = Some(run.end);
        }
        counted += 1;
    }
    plan.stops.append(&mut found);
    plan.stops.sort_unstable_by_key(|stop| stop.start);
    let scale = |n: u64| (n as f64 * groups.len() as f64 / f64::from(counted.max(1))) as u64;
    Some(Work { bytes: scale(all.bytes), requests: scale(all.requests), seeks: scale(all.seeks), ..all })
}

/// The work below the inodes, by a sample of them.
struct Sample {
    /// Of the whole volume.
    work: Work,
    /// The time for reading it, in seconds.
    seconds: f64,
}

/// Nothing is checked. Notes what had been read, and when, as the rounds below the inodes began.
struct Start<'a> {
    counters: &'a Counters,
    clock: &'a (dyn Fn() -> Duration + Sync),
    below: OnceLock<((u64, u64, u64), Duration)>,
}

impl Visitor for Start<'_> {
    fn bitmap(&self, _: GroupNo, _: BitmapKind, _: Result<&[u8], &blockdev::Error>) {}

    fn directories(&self, _: Vec<Directory>, _: Vec<InlineDirectory>) {
        // nothing else sets it
        let _ = self.below.set((self.counters.totals(), (self.clock)()));
    }

    fn dir_block(&self, _: InodeNo, _: u32, _: FsBlock, _: Result<&[u8], &blockdev::Error>) {}

    fn xattr_block(&self, _: FsBlock, _: &[XattrRef], _: Result<&[u8], &blockdev::Error>) -> u64 {
        0
    }
}

/// Reads what a check reads of the groups `only`, which stand for `all` inodes in use.
fn sample(
    scanner: &Scanner<'_>,
    volume: &Volume,
    only: &BTreeSet<GroupNo>,
    all: u64,
    clock: &(dyn Fn() -> Duration + Sync),
) -> Sample {
    let problems = Problems::default();
    let ctx = Context::new(volume, &problems);
    let log = ScanLog::new(Some(1));
    let rounds = Rounds { ctx: &ctx, scanner, claimer: &ctx.claims, layers: None, log: &log, only: Some(only) };
    let visitor = Start { counters: scanner.counters, clock, below: OnceLock::new() };
    rounds.run(&visitor);
    let Some(((bytes, reads, _), start)) = visitor.below.into_inner() else {
        return Sample { work: Work::default(), seconds: 0.0 };
    };
    let (bytes_after, reads_after, _) = scanner.counters.totals();
    let times = all as f64 / only.iter().map(|group| inodes_in_use(volume, *group)).sum::<u64>().max(1) as f64;
    let scale = |n: u64| (n as f64 * times) as u64;
    let (bytes, requests) = (scale(bytes_after - bytes), scale(reads_after - reads));
    Sample {
        work: Work { bytes, requests, seeks: requests, scattered: requests, ..Work::default() },
        seconds: (clock() - start).as_secs_f64() * times,
    }
}

/// As the descriptor counts them.
fn inodes_in_use(volume: &Volume, group: GroupNo) -> u64 {
    let free = volume.group(group).map_or(u32::MAX, |descriptor| descriptor.free_inodes);
    u64::from(volume.geometry.inodes_per_group.saturating_sub(free))
}

/// The groups that are sampled, and how many inodes are in use for which they stand.
fn sampled_groups(volume: &Volume) -> (BTreeSet<GroupNo>, u64) {
    let in_use = |group: &GroupNo| inodes_in_use(volume, *group);
    let groups: Vec<GroupNo> = volume.geometry.group_numbers().collect();
    let row = volume.geometry.flex_groups.max(SAMPLED_ROW) as usize;
    let mut rows: Vec<(&[GroupNo], u64)> = groups.chunks(row).map(|row| (row, row.iter().map(in_use).sum())).collect();
    let all: u64 = rows.iter().map(|(_, inodes)| inodes).sum();
    let mut standing = all;
    // the system inodes, which are like no others, are in the first row
    if let Some((_, first)) = rows.first().filter(|(_, first)| *first < all / 2) {
        standing -= first;
        rows.remove(0);
    }
    let (least, most) = SAMPLED_PLACES;
    let places = (groups.len() / SAMPLED / row).clamp(least, most) as u64;
    let mut only = BTreeSet::new();
    for place in 0..places {
        let wanted = standing / (2 * places) * (2 * place + 1);
        let mut before = 0;
        let found = rows.iter().find(|(_, inodes)| {
            before += inodes;
            before > wanted
        });
        only.extend(found.into_iter().flat_map(|(row, _)| row.iter().copied()));
    }
    (only, all)
}

impl Work {
    fn add(&mut self, run: &Range<u64>) {
        self.bytes = self.bytes.saturating_add(run.end - run.start);
        self.requests += (run.end - run.start).div_ceil(REQUEST);
    }
}

/// Neighbours become one run, as the reader joins them; `parts` ascend.
fn joined(parts: impl Iterator<Item = (u64, u64)>) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for (start, len) in parts {
        let end = start.saturating_add(len);
        match runs.last_mut() {
            Some(last) if start <= last.end.saturating_add(GAP) => last.end = last.end.max(end),
            _ => runs.push(start..end),
        }
    }
    runs
}

/// Reads as the check of such a volume will, and takes the time.
fn measure(device: &dyn BlockDevice, volume: &Volume, plan: &Plan, clock: &dyn Fn() -> Duration) -> DeviceSpeed {
    let len = device.geometry().len;
    // the check reports a device that cannot be read
    let timed = |batch: usize, offsets: &mut dyn Iterator<Item = u64>, size: u64| {
        let size = size.min(len);
        let offsets: Vec<u64> = offsets.filter(|at| at.checked_add(size).is_some_and(|end| end <= len)).collect();
        let mut bytes = vec![0; size as usize * batch];
        if let (Some(first), Some(place)) = (offsets.first(), bytes.get_mut(..size as usize)) {
            // from there on: how the device comes to the first place is no part of it
            device.read_many(&mut [Read::new(first.saturating_sub(size), place)]);
        }
        let start = clock();
        for offsets in offsets.chunks(batch) {
            let places = bytes.chunks_mut(size.max(1) as usize);
            let mut reads: Vec<_> = offsets.iter().zip(places).map(|(at, place)| Read::new(*at, place)).collect();
            device.read_many(&mut reads);
        }
        (clock() - start).as_secs_f64().max(1e-9) / offsets.len().max(1) as f64
    };
    let block_size = u64::from(volume.geometry.block_size);
    let table = volume.groups.get(volume.groups.len() / 2).map_or(0, |group| group.inode_table.get() * block_size);
    let whole = timed(2, &mut (0..MEASURED_BYTES / REQUEST).map(|n| table + n * REQUEST), REQUEST);
    let bytes_per_second = len.clamp(1, REQUEST) as f64 / whole;
    // from the middle on, as far from the device's fast end as most of the volume is
    let middle = plan.stops.len().saturating_sub(MEASURED_SEEKS) / 2;
    let stops = plan.stops.iter().skip(middle).take(MEASURED_SEEKS).map(|stop| stop.start);
    let seek = timed(1, &mut { stops }, block_size) - block_size as f64 / bytes_per_second;
    DeviceSpeed { bytes_per_second, seek_seconds: seek.max(0.0), scattered_seconds: 0.0 }
}

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let Work { bytes, known_bytes, requests, seeks, inodes, directories, .. } = self.work;
        writeln!(
            f,
            "{inodes} inodes, {directories} directories: about {:.1} MiB to read ({:.1} known exactly), {requests} requests, \
             {seeks} seeks",
            mib(bytes),
            mib(known_bytes)
        )?;
        write!(
            f,
            "about {:.2} s at {:.0} MiB/s and {:.3} ms a seek ({})",
            self.seconds,
            self.speed.bytes_per_second / f64::from(1 << 20),
            self.speed.seek_seconds * 1e3,
            if self.measured { "measured just now" } else { "as specified" }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_one_run_and_long_runs_several_requests() {
        let runs = joined([(0, 4096), (4096, 4096), (8192 + GAP, 4096), (10 << 20, 3 << 20)].into_iter());
        assert_eq!(runs, [0..12_288 + GAP, 10 << 20..13 << 20]);
        let mut work = Work::default();
        runs.iter().for_each(|run| work.add(run));
        assert_eq!(work.requests, 1 + (3 << 20) / REQUEST);
        assert_eq!(work.bytes, 8192 + GAP + 4096 + (3 << 20));
    }

    #[test]
    fn seconds_are_bytes_and_seeks() {
        let work = Work { bytes: 300_000_000, seeks: 100, ..Work::default() };
        let disk = DeviceSpeed { bytes_per_second: 150e6, seek_seconds: 8e-3, scattered_seconds: 2e-3 };
        assert!((work.seconds(&disk) - 2.8).abs() < 1e-9);
        assert!((Work { scattered: 50, ..work }.seconds(&disk) - 2.5).abs() < 1e-9);
        let text = Estimate { work, speed: disk, measured: false, seconds: work.seconds(&disk) }.to_string();
        assert!(text.contains("286.1 MiB") && text.contains("about 2.80 s") && text.contains("as specified"), "{text}");
    }
}
