//! The mechanism of a hard disk: one arm, a rotating medium, a track buffer, a write cache and a queue.
//!
//! 1. There are two times: the host's, which is the end of the last command, and the arm's, which is ahead of it while
//!    the arm works. Work that the arm does on its own (read-ahead, write-back of the cache) is computed when the next
//!    command arrives, up to that moment.
//! 2. A read that misses the buffer preempts read-ahead. It leaves a segment in the buffer: the sectors that passed
//!    under the head before it, the read itself, and the read-ahead after it.
//! 3. A write is complete when it is in the cache. The cache is written back when it is full, at a flush, or when no
//!    read has come for some time; in ascending order from the position of the arm, choosing the shortest positioning.
//! 4. The disk knows a batch as a whole, and serves it by shortest positioning among its oldest requests.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use super::layout::{Layout, SECTOR};
use super::parameters::{DiskParameters, Order};
use super::request::{Extent, Report, nanoseconds, over};
use blockdev::{Error, Result};

/// A range of the disk in the track buffer.
#[derive(Debug, Clone)]
struct Segment(Range<u64>);

/// The position of the arm.
#[derive(Debug)]
struct Arm {
    /// The time from which the head is free; during read-ahead the time at which it is at the start of `next`.
    at: u64,
    track: u64,
    /// The sector after the last one transferred.
    next: u64,
    /// The end of read-ahead, which goes to the newest segment.
    limit: u64,
}

#[derive(Debug)]
pub(super) struct Disk {
    p: DiskParameters,
    layout: Layout,
    arm: Arm,
    /// The segments of the track buffer; the most recently used one is the last.
    segments: VecDeque<Segment>,
    /// The content of the write cache: start and end of separate ranges.
    cached: BTreeMap<u64, u64>,
    cached_sectors: u64,
    interface_free: u64,
    /// The end of the last read, and of the last write to the cache.
    last_read: Option<u64>,
    last_write: u64,
    report: Report,
}

/// The sectors of a request.
fn sectors(extent: Extent) -> Range<u64> {
    let first = extent.offset / SECTOR;
    if extent.len == 0 { first..first } else { first..(extent.offset + extent.len).div_ceil(SECTOR) }
}

impl Disk {
    /// Creates a disk for a device of `len` bytes.
    pub(super) fn new(p: &DiskParameters, len: u64) -> Result<Self> {
        let capacity = if p.capacity == 0 { len } else { p.capacity };
        if len > capacity {
            let why = format!("a disk of {capacity} bytes is too small for a device of {len}");
            return Err(Error::Parameters(why));
        }
        Ok(Self {
            p: p.clone(),
            layout: Layout::new(p, capacity.div_ceil(SECTOR))?,
            arm: Arm { at: 0, track: 0, next: 0, limit: 0 },
            segments: VecDeque::new(),
            cached: BTreeMap::new(),
            cached_sectors: 0,
            interface_free: 0,
            last_read: None,
            last_write: 0,
            report: Report::default(),
        })
    }

    pub(super) fn report(&self) -> Report {
        self.report
    }

    /// Makes all reads, submitted at `now`; returns the end of the last one.
    pub(super) fn reads(&mut self, now: u64, extents: &[Extent]) -> u64 {
        let arrival = self.arrive(now);
        let mut done = arrival;
        self.in_order(arrival, extents, |disk, extent| {
            let there = disk.read(arrival, sectors(extent));
            done = disk.interface_transfer(arrival, extent.len).max(there).max(done);
            disk.interface_free = disk.interface_free.max(there);
        });
        self.last_read = Some(done);
        done
    }

    pub(super) fn writes(&mut self, now: u64, extents: &[Extent]) -> u64 {
        let arrival = self.arrive(now);
        let mut done = arrival;
        if self.p.write_cache == 0 {
            self.in_order(arrival, extents, |disk, extent| {
                let transferred = disk.interface_transfer(arrival, extent.len);
                let range = sectors(extent);
                disk.forget(&range);
                done = disk.media(arrival, range).max(transferred).max(done);
            });
            return done;
        }
        for &extent in extents {
            let transferred = self.interface_transfer(arrival, extent.len);
            self.cache(sectors(extent));
            self.last_write = transferred;
            done = done.max(transferred);
            while self.cached_sectors * SECTOR > self.p.write_cache {
                self.write_out(arrival);
                done = done.max(self.arm.at);
                self.interface_free = self.interface_free.max(self.arm.at);
            }
        }
        done
    }

    pub(super) fn flush(&mut self, now: u64) -> u64 {
        let arrival = self.arrive(now);
        let mut done = arrival;
        while !self.cached.is_empty() {
            self.write_out(arrival);
            done = done.max(self.arm.at);
        }
        // a write-back that the disk had begun must be complete, too
        if self.arm.limit == self.arm.next { done.max(self.arm.at) } else { done }
    }

    /// A discard, which has no effect on a disk.
    pub(super) fn discard(&mut self, now: u64) -> u64 {
        self.arrive(now)
    }

    /// Accepts a command submitted at `now`: returns the time at which the disk begins with it, after work that the arm
    /// does on its own until then.
    fn arrive(&mut self, now: u64) -> u64 {
        let arrival = now + nanoseconds(self.p.command);
        let idle = self.last_read.map_or(0, |read| read + nanoseconds(self.p.idle)).max(self.last_write);
        while !self.cached.is_empty() && idle.max(self.arm.at) < arrival {
            self.read_ahead(idle);
            self.write_out(idle);
        }
        self.read_ahead(arrival);
        arrival
    }

    /// Serves requests that are all known at `arrival`, in the order chosen by the disk.
    fn in_order(&mut self, arrival: u64, extents: &[Extent], mut serve: impl FnMut(&mut Self, Extent)) {
        let depth = match self.p.order {
            Order::ShortestPositioning => self.p.queue_depth as usize,
            Order::AsSubmitted => 1,
        };
        let mut waiting: VecDeque<Extent> = extents.iter().copied().collect();
        while !waiting.is_empty() {
            let known = waiting.iter().take(depth).enumerate();
            let cost = |extent: &Extent| {
                let missing = self.missing(&sectors(*extent));
                if missing.is_empty() { 0 } else { self.reach(arrival, missing.start) }
            };
            let next = if depth == 1 { Some(0) } else { known.min_by_key(|(_, e)| cost(e)).map(|(index, _)| index) };
            if let Some(extent) = next.and_then(|index| waiting.remove(index)) {
                serve(self, extent);
            }
        }
    }

    /// Transfers bytes between buffer and host after `from`; returns the end of the transfer.
    fn interface_transfer(&mut self, from: u64, len: u64) -> u64 {
        self.interface_free = self.interface_free.max(from) + over(self.p.interface_rate, len);
        self.interface_free
    }

    /// The part of a range that must come from the medium: nothing if all of it is in the buffer or the cache, and only
    /// its end if its beginning is in the buffer.
    fn missing(&self, range: &Range<u64>) -> Range<u64> {
        let cached = self.cached.range(..=range.start).next_back();
        if cached.is_some_and(|(_, end)| *end >= range.end) {
            return range.end..range.end;
        }
        let containing = self.segments.iter().filter(|s| s.0.start <= range.start && range.start <= s.0.end);
        let start = containing.map(|s| s.0.end).fold(range.start, u64::max);
        start.min(range.end)..range.end
    }

    /// Reads a range; returns the time at which its last byte is in the buffer.
    fn read(&mut self, now: u64, range: Range<u64>) -> u64 {
        let missing = self.missing(&range);
        if missing.is_empty() {
            self.report.buffered_reads += 1;
            self.used(now, &range);
            return now;
        }
        let half = (self.p.segment / SECTOR / 2).max(1);
        let (start, rotation) = (missing.start, self.wait(now, missing.start));
        let done = self.media(now, missing);
        let position = self.layout.locate(start);
        let found = self.segments.iter().position(|s| s.0.start <= range.start && s.0.end == start);
        let mut segment = match found.and_then(|index| self.segments.remove(index)) {
            Some(segment) => segment,
            None if self.p.read_on_arrival => Segment(start - self.layout.passed(position, rotation)..start),
            None => Segment(start..start),
        };
        segment.0.end = range.end;
        segment.0.start = segment.0.start.max(range.end.saturating_sub(half));
        self.segments.push_back(segment);
        while self.segments.len() > self.p.segments as usize {
            self.segments.pop_front();
        }
        if self.cached.is_empty() {
            self.arm.limit = (range.end + half).min(self.layout.sectors);
        }
        done
    }

    /// Updates the buffer after a read that it served: the segment becomes the newest one, and if it is the one being
    /// filled, read-ahead is extended.
    fn used(&mut self, now: u64, range: &Range<u64>) {
        let holds = |s: &Segment| s.0.start <= range.start && range.end <= s.0.end;
        let Some(index) = self.segments.iter().position(holds) else { return };
        let newest = index + 1 == self.segments.len();
        let half = (self.p.segment / SECTOR / 2).max(1);
        if newest && self.segments[index].0.end == self.arm.next && self.cached.is_empty() {
            let segment = &mut self.segments[index].0;
            segment.start = segment.start.max(range.end.saturating_sub(half));
            let limit = (range.end + half).min(self.layout.sectors);
            if limit > self.arm.limit {
                if self.arm.next == self.arm.limit && self.arm.at < now {
                    // the arm had stopped, and the disk has rotated beyond that position
                    self.arm.at = self.reach(now, self.arm.next);
                    self.arm.track = self.layout.locate(self.arm.next).track;
                }
                self.arm.limit = limit;
            }
        } else if !newest && let Some(segment) = self.segments.remove(index) {
            self.stop();
            self.segments.push_back(segment);
        }
    }

    /// Ends read-ahead.
    fn stop(&mut self) {
        self.arm.limit = self.arm.next;
    }

    /// Continues read-ahead until `now`.
    fn read_ahead(&mut self, now: u64) {
        while self.arm.next < self.arm.limit && self.arm.at < now {
            let position = self.layout.locate(self.arm.next);
            if position.track != self.arm.track {
                let positioning = self.layout.position(self.arm.at, self.arm.track, position);
                self.arm.at += positioning.seek + positioning.rotation;
                self.arm.track = position.track;
                continue;
            }
            let count = self.layout.passing(position, now - self.arm.at).min(self.arm.limit - self.arm.next);
            if count == 0 {
                break; // a sector is read in part
            }
            self.arm.at += self.layout.transfer(position, count);
            self.arm.next += count;
            if let Some(segment) = self.segments.back_mut() {
                segment.0.end = self.arm.next;
            }
        }
    }

    /// The time from which the arm can move elsewhere. Read-ahead stops on request.
    fn free(&self, now: u64) -> u64 {
        self.arm.at.max(now)
    }

    /// Whether the head reaches `sector` by continuing its present transfer.
    fn runs_into(&self, now: u64, sector: u64) -> bool {
        sector == self.arm.next && (self.arm.next < self.arm.limit || self.arm.at >= now)
    }

    /// The time at which the head would be at `sector`.
    fn reach(&self, now: u64, sector: u64) -> u64 {
        let position = self.layout.locate(sector);
        let from = if self.runs_into(now, sector) { self.arm.at } else { self.free(now) };
        let positioning = self.layout.position(from, self.arm.track, position);
        from + positioning.seek + positioning.rotation
    }

    /// The time, in nanoseconds, for which the head would wait for `sector` on its track.
    fn wait(&self, now: u64, sector: u64) -> u64 {
        let from = if self.runs_into(now, sector) { self.arm.at } else { self.free(now) };
        self.layout.position(from, self.arm.track, self.layout.locate(sector)).rotation
    }

    /// Transfers a range between head and medium, which ends read-ahead; returns the end of the transfer.
    fn media(&mut self, now: u64, range: Range<u64>) -> u64 {
        if range.is_empty() {
            return self.free(now);
        }
        let position = self.layout.locate(range.start);
        let mut at = self.arm.at;
        if !self.runs_into(now, range.start) {
            at = self.free(now);
            let positioning = self.layout.position(at, self.arm.track, position);
            at += positioning.seek + positioning.rotation;
            let moved = self.layout.cylinder(self.arm.track) != self.layout.cylinder(position.track);
            self.report.seeks += u64::from(moved);
            self.report.seek_time += Duration::from_nanos(positioning.seek);
            self.report.rotation_time += Duration::from_nanos(positioning.rotation);
            self.arm.track = position.track;
        }
        let mut next = range.start;
        while next < range.end {
            let position = self.layout.locate(next);
            if position.track != self.arm.track {
                let positioning = self.layout.position(at, self.arm.track, position);
                at += positioning.seek + positioning.rotation;
                self.arm.track = position.track;
            }
            let count = (position.sectors_per_track - position.sector).min(range.end - next);
            at += self.layout.transfer(position, count);
            next += count;
        }
        self.arm = Arm { at, track: self.arm.track, next, limit: next };
        at
    }

    /// Adds a range to the write cache.
    fn cache(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        self.forget(&range);
        let (mut start, mut end) = (range.start, range.end);
        // ranges that overlap or touch this one are merged with it
        while let Some((&s, &e)) = self.cached.range(..=end).next_back() {
            if e < start {
                break;
            }
            self.cached.remove(&s);
            self.cached_sectors -= e - s;
            (start, end) = (start.min(s), end.max(e));
        }
        self.cached.insert(start, end);
        self.cached_sectors += end - start;
    }

    /// Removes segments from the track buffer that a write invalidates.
    fn forget(&mut self, range: &Range<u64>) {
        let filling = self.arm.next < self.arm.limit;
        let newest = self.segments.back().map(|s| s.0.clone());
        self.segments.retain(|s| s.0.end <= range.start || range.end <= s.0.start);
        if filling && self.segments.back().map(|s| s.0.clone()) != newest {
            self.stop();
        }
    }

    /// Writes one range of the cache to the medium, beginning at `now` at the earliest.
    fn write_out(&mut self, now: u64) {
        self.stop();
        let ahead = self.cached.range(self.arm.next..).chain(self.cached.range(..self.arm.next));
        let depth = match self.p.order {
            Order::ShortestPositioning => self.p.queue_depth as usize,
            Order::AsSubmitted => 1,
        };
        let nearest = ahead.take(depth).min_by_key(|(start, _)| self.reach(now, **start));
        let Some((&start, &end)) = nearest else { return };
        let part = start..end.min(start + (self.p.segment / SECTOR).max(1));
        self.cached.remove(&start);
        self.cached_sectors -= part.end - part.start;
        if part.end < end {
            self.cached.insert(part.end, end);
        }
        self.media(now, part);
    }
}
