//! The number of bytes that a check will read and the time it may take, from the superblock, the group descriptors and
//! a sample.
//!
//! Known exactly: the descriptors, the bitmaps that were ever written, the used parts of the inode tables, and the
//! blocks of the resize inode. With metadata regions the rest is nearly known, too: it is their blocks in use, which
//! are counted in the block bitmaps of up to [`COUNTED_GROUPS`] groups that have regions.
//!
//! Without regions no descriptor states how much metadata the inodes lead to, nor how far a volume has aged. So the
//! check itself is run over the inodes of a few *whole rows of groups* ([`sample()`]), one group in 32 but one row at
//! least, with as many inodes in use before them as after: its rounds bring all tree blocks, directories, attributes
//! and links of these inodes, however they lie, in the batches in which the device will serve them. Requests, bytes and
//! time of these rounds are multiplied by the ratio of all inodes in use to those in the sample, and so is the time
//! between the requests, which is processor time. On volumes of few groups a part of one is sampled.
//!
//! The device's other figures are measured by reading as the check will: a part of the inode tables in order, and then
//! the locations to which the first pass will have to seek, one after the other. All of them are measured at locations
//! that are not in the page cache, if there are any; their share is determined by a probe of [`PROBED`] locations. The
//! time for cached locations is then taken as zero; where nearly all are cached, memory itself is measured.
//!
//! Reading and checking overlap ([`in_all`]): of the time for checking only the part beyond that for reading counts.
//!
//! A check that only needs a total for its progress (`of_volume`) takes no sample, and assumes:
//! - A directory has one block, and all together one more for each [`NAMES_IN_4_KIB`] names.
//! - Sizes of files fall off exponentially about their mean (blocks in use by the number of files), so that `exp(-12 /
//!   mean)` of them have more than twelve blocks. With a block map each of these has an indirect block, and one more
//!   for every further block of numbers; of those with extents, one in [`FRAGMENTED`] has a tree block.
//! - The directory blocks of a group lie together. About [`TREE_RUN`] tree blocks lie so near each other that one
//!   request reads them all, with gaps of [`TREE_GAP`] bytes. They are *scattered* over the volume.
//!
//! A device with its own clock is timed by that clock.

mod sample;
mod shown;

use crate::capabilities::Capabilities;
use crate::options::{Options, Progress, Refusal};
use crate::phases::{bitmaps, superblock};
use crate::problem::Problems;
use crate::scan::walk::BitmapKind;
use crate::scan::{Counters, GAP, REQUEST, Scanner};
use crate::volume::Volume;
use blockdev::{BlockDevice, Read};
use format::GroupNo;
use format::feature::Incompat;
use sample::{Part, Timed, first_waited_for, sample, sampled_inodes};
use serde::Serialize;
use std::ops::Range;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

/// Names in 4 KiB of a directory that are two thirds full, at 32 bytes a name.
const NAMES_IN_4_KIB: u64 = 85;
/// Long files on an aged volume for each one that has more extents than fit into its inode.
const FRAGMENTED: f64 = 4.0;
/// Tree blocks that one request reads.
const TREE_RUN: u64 = 3;
/// Bytes between two of them.
const TREE_GAP: u64 = 8 << 10;
/// Groups with regions whose block bitmaps are read.
const COUNTED_GROUPS: usize = 64;
/// Largest gap, in bytes, between a region and the read before it that does not count as a seek.
const FAR: u64 = 4 << 20;
/// Bytes read in order to measure a device, at most.
const MEASURED_BYTES: u64 = 8 << 20;
/// Group beginnings that are read to measure a device.
const MEASURED_SEEKS: usize = 64;
/// Locations that are probed for presence in the page cache.
const PROBED: u64 = 32;
/// Share of uncached locations below which memory is measured instead of the device.
const FEW: f64 = 0.05;
/// The inode of the descriptor blocks reserved for growth, as an index in the first inode table.
const RESIZE_INODE: u32 = 6;
/// A device that few are slower than: a check that takes less than [`SHORT_SECONDS`] on it does so on practically any
/// device.
const SLOW: DeviceSpeed = DeviceSpeed { bytes_per_second: 60e6, seek_seconds: 15e-3, scattered_seconds: 8e-3 };
/// Inodes that one processor checks per second at least.
const SLOW_INODES: f64 = 200_000.0;
/// Seconds below which a check needs no estimate.
const SHORT_SECONDS: f64 = 10.0;

/// The speed of a device.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct DeviceSpeed {
    /// Bytes a second, read in order.
    pub bytes_per_second: f64,
    /// Seconds of a seek from one group to the next.
    pub seek_seconds: f64,
    /// Seconds of one request in a batch of scattered requests, without the transfer of its bytes.
    pub scattered_seconds: f64,
}

/// The work of a check: what it will read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Work {
    /// Total bytes.
    pub bytes: u64,
    /// Bytes of the total that are known exactly.
    pub known_bytes: u64,
    /// Requests to the device.
    pub requests: u64,
    /// Requests that do not start where the one before ended.
    pub seeks: u64,
    /// Seeks that are requests for single scattered blocks.
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
    /// Whether the speed was measured, not specified.
    pub measured: bool,
    /// Bytes of the volume.
    pub volume_bytes: u64,
    /// Seconds that the check will take: the sum of the next two.
    pub seconds: f64,
    /// Seconds for reading, by the device's own clock where it has one.
    pub disk_seconds: f64,
    /// Seconds for checking that do not overlap with waiting for the device.
    pub processor_seconds: f64,
}

impl Work {
    /// Seconds for reading this amount from a device of this speed.
    #[must_use]
    pub fn seconds(&self, speed: &DeviceSpeed) -> f64 {
        let (scattered, seeks) = (self.scattered as f64, self.seeks.saturating_sub(self.scattered) as f64);
        self.bytes as f64 / speed.bytes_per_second + seeks * speed.seek_seconds + scattered * speed.scattered_seconds
    }
}

/// Estimates a check of the volume on `device`. Reads the superblock, the descriptors and all that a check reads of a
/// few groups; where `speed` is `None`, also a few MiB to measure it. A device with its own
/// [clock](BlockDevice::virtual_clock) is timed by that clock.
///
/// # Errors
/// [`Refusal`] as for a check, also where `progress` reports that it is cancelled.
pub fn estimate(
    device: &dyn BlockDevice,
    options: &Options,
    speed: Option<DeviceSpeed>,
    progress: &dyn Progress,
) -> Result<Estimate, Refusal> {
    if !Capabilities::of(device).estimate {
        return Err(Refusal::new("a check of a native volume has no estimate"));
    }
    make(device, options, speed, &|| progress.cancelled())
}

/// Estimates a check before it starts, where it may be long enough for an estimate to be useful: `None` where the
/// descriptors alone show that it is short on any device, where there is no ext volume, and where `progress` reports
/// that the check is cancelled.
pub fn estimate_if_long(device: &dyn BlockDevice, options: &Options, progress: &dyn Progress) -> Option<Estimate> {
    // its first blocks contain no ext superblock, and the search for copies of one would read 128 MiB
    if !Capabilities::of(device).estimate {
        return None;
    }
    let counters = Counters::default();
    let cancelled = || progress.cancelled();
    let scanner =
        Scanner { device, threads: 1, gap: GAP, counters: &counters, cancelled: &cancelled, advanced: &|_| () };
    let volume = superblock::open(&scanner, options, false, &Problems::default()).ok().filter(|_| !cancelled())?;
    let work = of_volume(&volume);
    if work.seconds(&SLOW) + work.inodes as f64 / SLOW_INODES < SHORT_SECONDS {
        return None;
    }
    // its descriptors are read again
    drop(volume);
    make(device, options, None, &cancelled).ok()
}

fn make(
    device: &dyn BlockDevice,
    options: &Options,
    speed: Option<DeviceSpeed>,
    cancelled: &(dyn Fn() -> bool + Sync),
) -> Result<Estimate, Refusal> {
    let unless_cancelled = || if cancelled() { Err(Refusal::cancelled()) } else { Ok(()) };
    let began = Instant::now();
    let clock = || device.virtual_clock().unwrap_or_else(|| began.elapsed());
    let timed = Timed::new(device, &clock);
    let counters = Counters::default();
    let scanner = Scanner { device: &timed, threads: 1, gap: GAP, counters: &counters, cancelled, advanced: &|_| () };
    let opened = superblock::open(&scanner, options, false, &Problems::default());
    unless_cancelled()?;
    let volume = opened?;
    let opening = began.elapsed().saturating_sub(timed.spent().by_system).as_secs_f64();
    let waited_for = if speed.is_none() { waited_for(device, &known(&volume, false)) } else { 1.0 };
    let waits = waited_for >= FEW;
    let is_cached = |place: u64| waits && is_cached(device, place);
    let (only, all) = sampled_inodes(&volume, &is_cached);
    // the descriptor blocks reserved for growth belong to an inode of the first group
    let samples_resize = only.get(&GroupNo(0)).is_some_and(|inodes| inodes.contains(&RESIZE_INODE));
    unless_cancelled()?;
    let mut plan = known(&volume, has_own_regions(&volume) || !samples_resize);
    let regions = count_regions(&scanner, &volume, &mut plan);
    let measured = speed.is_none();
    let mut speed = speed.unwrap_or_else(|| measure(device, &volume, &plan, &clock, &is_cached));
    let whole = || -> Part { only.keys().map(|group| (*group, 0..u32::MAX)).collect() };
    let sampled = sample(&scanner, &timed, &volume, &only, all)
        // no inode of the part was in use
        .or_else(|| sample(&scanner, &timed, &volume, &whole(), all));
    unless_cancelled()?;
    let (parallel, serial) = sampled.as_ref().map_or((0.0, 0.0), |sampled| (sampled.parallel, sampled.serial));
    let found = match (regions, sampled) {
        (Some(regions), _) => MapWork::Found(regions),
        (None, Some(sampled)) => {
            if measured {
                let Work { bytes, scattered, .. } = sampled.work;
                let without_bytes = (sampled.seconds - bytes as f64 / speed.bytes_per_second).max(0.0);
                speed.scattered_seconds = without_bytes / scattered.max(1) as f64;
            }
            MapWork::Found(sampled.work)
        }
        (None, None) => MapWork::Guessed,
    };
    let work = of_plan(&volume, &plan, found);
    let reading = work.seconds(&speed) * if waits { waited_for } else { 1.0 };
    let checking = Checking { parallel, serial: serial + opening, threads: options.threads };
    let (disk_seconds, processor_seconds) = in_all(reading, waits, &checking);
    let seconds = disk_seconds + processor_seconds;
    let volume_bytes = volume.geometry.blocks.saturating_mul(volume.geometry.block_size.into());
    Ok(Estimate { work, speed, measured, volume_bytes, seconds, disk_seconds, processor_seconds })
}

/// The time for checking, without the time for reading.
struct Checking {
    /// Seconds of one processor for the checks that run on several threads.
    parallel: f64,
    /// Seconds of the checks that run on one thread after the reading.
    serial: f64,
    threads: usize,
}

/// Seconds for reading, and those for checking that do not overlap with it. `reading` is the time of one thread for
/// reading; where the device has to be waited for, threads read one at a time, but check in parallel.
fn in_all(reading: f64, waits: bool, checking: &Checking) -> (f64, f64) {
    let threads = checking.threads.max(1) as f64;
    let at_once = threads.min(available_parallelism().map_or(1.0, |n| n.get() as f64));
    let together = reading + checking.parallel;
    if !waits {
        let disk = reading / at_once;
        return (disk, together / at_once - disk + checking.serial);
    }
    let rounds = reading.max(together / threads).max(checking.parallel / at_once);
    (reading, rounds - reading + checking.serial)
}

/// The work of a check of an open volume, as far as the descriptors show.
pub(crate) fn of_volume(volume: &Volume) -> Work {
    of_plan(volume, &known(volume, true), MapWork::Guessed)
}

/// The work for the metadata that inodes lead to, as far as it is known.
enum MapWork {
    /// Nothing is known.
    Guessed,
    /// Counted, in regions or in a sample.
    Found(Work),
}

/// The known reads.
struct Plan {
    work: Work,
    /// The contiguous byte ranges that the first pass reads, ascending, with a seek before each.
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
    // fraction of the files that are longer than `n` blocks
    let longer = |n: f64| (-n / mean.max(0.01)).exp();
    let tree_blocks = if volume.features.incompat.contains(Incompat::EXTENT) {
        files as f64 * longer(12.0) / FRAGMENTED
    } else {
        // one for each indirect block that is needed, on the first level and on the second
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

/// Whether all metadata outside the inode tables is in metadata regions.
fn has_own_regions(volume: &Volume) -> bool {
    volume.geometry.has_regions() && volume.geometry.is_owned()
}

/// The reads that do not depend on the files; includes the descriptor blocks reserved for growth on request.
fn known(volume: &Volume, reserved_for_growth: bool) -> Plan {
    let geometry = &volume.geometry;
    let block_size = u64::from(geometry.block_size);
    let mut first_pass = Vec::new();
    for n in 0..geometry.descriptor_blocks {
        append(&mut first_pass, geometry.descriptor_block(n).get().saturating_mul(block_size), block_size);
    }
    let mut second_pass = Vec::new();
    for ((group, descriptor), used) in geometry.group_numbers().zip(&volume.groups).zip(&volume.used_inodes) {
        let bitmaps = [(descriptor.block_bitmap, BitmapKind::Block), (descriptor.inode_bitmap, BitmapKind::Inode)];
        for (block, kind) in bitmaps {
            if let Some(offset) = geometry.byte_offset(block).filter(|_| bitmaps::is_written(volume, group, kind)) {
                append(&mut second_pass, offset, block_size);
            }
        }
        if let Some(offset) = geometry.byte_offset(descriptor.inode_table).filter(|_| *used > 0) {
            append(&mut second_pass, offset, u64::from(*used) * u64::from(geometry.inode_size));
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

/// Counts the blocks of regions in use by the block bitmaps of some of the groups that have any, and adds their ranges
/// to the stops. `None` on volumes without regions, and where a bitmap cannot be read.
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
    // the first chunk of a region begins with the end of an inode table
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

/// The number of inodes in use by the group's descriptor.
fn inodes_in_use(volume: &Volume, group: GroupNo) -> u64 {
    let free = volume.group(group).map_or(u32::MAX, |descriptor| descriptor.free_inodes);
    u64::from(volume.geometry.inodes_per_group.saturating_sub(free))
}

impl Work {
    fn add(&mut self, run: &Range<u64>) {
        self.bytes = self.bytes.saturating_add(run.end - run.start);
        self.requests += (run.end - run.start).div_ceil(REQUEST);
    }
}

/// Adds a part to a pass, to its last part if it follows that: many groups would otherwise take much memory.
fn append(pass: &mut Vec<(u64, u64)>, start: u64, len: u64) {
    match pass.last_mut() {
        Some((first, whole)) if (*first..=first.saturating_add(*whole).saturating_add(GAP)).contains(&start) => {
            *whole = (*whole).max((start - *first).saturating_add(len));
        }
        _ => pass.push((start, len)),
    }
}

/// The parts with neighbours merged into one range, as the reader merges them; `parts` ascend.
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

/// Whether a location is in the page cache.
fn is_cached(device: &dyn BlockDevice, place: u64) -> bool {
    let mut bytes = [0; 512];
    device.read_cached(&mut [Read::new(place, &mut bytes)]) == 1
}

/// The share of locations, spread over the reads of the first pass, that are not in the page cache.
fn waited_for(device: &dyn BlockDevice, plan: &Plan) -> f64 {
    let len = |stop: &Range<u64>| stop.end - stop.start;
    let all: u64 = plan.stops.iter().map(len).sum();
    let (mut stops, mut before) = (plan.stops.iter().peekable(), 0);
    let (mut probed, mut waiting) = (0u32, Vec::new());
    for n in 0..PROBED {
        let at = all / (2 * PROBED) * (2 * n + 1);
        while let Some(stop) = stops.next_if(|stop| before + len(stop) <= at) {
            before += len(stop);
        }
        let Some(stop) = stops.peek() else { break };
        let place = stop.start + (at - before);
        probed += 1;
        if !is_cached(device, place) {
            waiting.push(place);
        }
    }
    if probed == 0 {
        return 1.0;
    }
    // the probe has started reads of them in the kernel, which must not disturb the measurement
    let mut bytes = [0; 512];
    for place in &waiting {
        let _ = device.read(*place, &mut bytes);
    }
    waiting.len() as f64 / f64::from(probed)
}

/// Measures the speed of a device by reading as the check of such a volume will, at locations that are not cached.
fn measure(
    device: &dyn BlockDevice,
    volume: &Volume,
    plan: &Plan,
    clock: &dyn Fn() -> Duration,
    is_cached: &dyn Fn(u64) -> bool,
) -> DeviceSpeed {
    let len = device.geometry().len;
    // the check reports a device that cannot be read
    let timed = |batch: usize, offsets: &mut dyn Iterator<Item = u64>, size: u64| {
        let size = size.min(len);
        let offsets: Vec<u64> = offsets.filter(|at| at.checked_add(size).is_some_and(|end| end <= len)).collect();
        let mut bytes = vec![0; size as usize * batch];
        if let (Some(first), Some(place)) = (offsets.first(), bytes.get_mut(..size as usize)) {
            // read just before it first, so that the seek to the first location is not measured
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
    let (before, behind) = volume.groups.split_at(volume.groups.len() / 2);
    let tables = behind.iter().chain(before).map(|group| group.inode_table.get().saturating_mul(block_size));
    let table = first_waited_for(tables, |table| table.saturating_add(REQUEST), is_cached).unwrap_or(0);
    // on a small volume only a part of the bytes that the check reads
    let in_order = (plan.work.bytes / 4).clamp(4 * REQUEST, MEASURED_BYTES);
    let whole = timed(2, &mut (0..in_order / REQUEST).map(|n| table + n * REQUEST), REQUEST);
    let bytes_per_second = len.clamp(1, REQUEST) as f64 / whole;
    // from the middle on, which is as far from the device's fast end as the volume is on average
    let middle = plan.stops.len().saturating_sub(MEASURED_SEEKS) / 2;
    let stops =
        |n: u64| plan.stops.iter().skip(middle).take(MEASURED_SEEKS).map(move |stop| stop.start + n * block_size);
    // another block at each of them, where the first was read by an earlier estimate
    let nth = first_waited_for(0u64.., |n| stops(*n).next().unwrap_or(0), is_cached).unwrap_or(0);
    let seek = timed(1, &mut stops(nth), block_size) - block_size as f64 / bytes_per_second;
    DeviceSpeed { bytes_per_second, seek_seconds: seek.max(0.0), scattered_seconds: 0.0 }
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
    fn parts_appended_in_any_order_are_the_same_runs() {
        let parts = [(8192, 4096), (12_288, 100), (8192, 64), (4096, 4096), (20 << 10, 4096), (8 << 20, 1), (0, 1)];
        let mut pass = Vec::new();
        parts.iter().for_each(|(start, len)| append(&mut pass, *start, *len));
        assert_eq!(pass, [(8192, 4196), (4096, 20_480), (8 << 20, 1), (0, 1)]);
        pass.sort_unstable();
        let mut parts = parts;
        parts.sort_unstable();
        assert_eq!(joined(pass.into_iter()), joined(parts.into_iter()));
    }

    #[test]
    fn seconds_are_bytes_and_seeks() {
        let work = Work { bytes: 300_000_000, seeks: 100, ..Work::default() };
        let disk = DeviceSpeed { bytes_per_second: 150e6, seek_seconds: 8e-3, scattered_seconds: 2e-3 };
        assert!((work.seconds(&disk) - 2.8).abs() < 1e-9);
        assert!((Work { scattered: 50, ..work }.seconds(&disk) - 2.5).abs() < 1e-9);
    }

    #[test]
    fn checking_counts_where_it_does_not_run_beside_the_reading() {
        let checking = |parallel, threads| Checking { parallel, serial: 0.5, threads };
        // one thread reads and checks in turn
        assert_eq!(in_all(4.0, true, &checking(2.0, 1)), (4.0, 2.5));
        assert_eq!(in_all(4.0, false, &checking(2.0, 1)), (4.0, 2.5));
        // the device is the limit
        if available_parallelism().is_ok_and(|n| n.get() >= 2) {
            assert_eq!(in_all(4.0, true, &checking(2.0, 2)), (4.0, 0.5));
            assert_eq!(in_all(1.0, true, &checking(5.0, 2)), (1.0, 2.5));
            assert_eq!(in_all(1.0, false, &checking(5.0, 2)), (0.5, 3.0));
        }
    }

    #[test]
    fn places_that_are_cached_are_passed_over_unless_all_are() {
        let tried = |is_cached: &dyn Fn(u64) -> bool| first_waited_for(5u64.., |n| *n, is_cached);
        assert_eq!(tried(&|_| false), Some(5));
        assert_eq!(tried(&|n| n < 9), Some(9));
        assert_eq!(tried(&|_| true), Some(5));
        assert_eq!(first_waited_for(std::iter::empty::<u64>(), |n| *n, &|_| true), None);
    }
}
