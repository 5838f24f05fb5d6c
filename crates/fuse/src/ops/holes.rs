//! The parts of a file that may have data that only the kernel knows of.
//!
//! Who maps a file writes into the kernel's pages, and the kernel does not hand these over before it asks for holes
//! (LSEEK). So a hole of the volume may be data by now, and cp(1) would leave it out. But a page that is changed was in
//! the kernel's memory before. A page of a hole comes there by a READ, or stays there beside what was cut off or
//! punched out. Those parts of holes are noted here, as long as the kernel has the file, and count as data; so does all
//! that shares a page with data. Every other hole is one.

use fs::{InodeNo, Result, Volume};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes of a page; of processors that have several sizes, the largest.
const PAGE: u64 = if cfg!(target_arch = "x86_64") { 4096 } else { 65_536 };
/// Most ranges that are noted of a file; beyond that they become one.
const MOST: usize = 256;
/// Most pieces of a map that are looked at for a hole. Where there are more, what was seen is said to be data.
const PIECES: usize = 10_000;

/// Ranges of bytes, in order, with something between any two.
#[derive(Debug, Default)]
struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    fn add(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let first = self.0.partition_point(|range| range.1 < start);
        let after = self.0.partition_point(|range| range.0 <= end);
        let met = self.0.get(first..after).unwrap_or_default();
        let start = met.first().map_or(start, |range| range.0.min(start));
        let end = met.last().map_or(end, |range| range.1.max(end));
        self.0.splice(first..after.max(first), [(start, end)]);
        if self.0.len() > MOST
            && let (Some(first), Some(last)) = (self.0.first().copied(), self.0.last().copied())
        {
            self.0 = vec![(first.0, last.1)];
        }
    }

    /// The range that begins or ends behind `at`.
    fn next(&self, at: u64) -> Option<(u64, u64)> {
        self.0.get(self.0.partition_point(|range| range.1 <= at)).copied()
    }
}

/// The parts of the holes of files that the kernel may have in its memory.
pub(super) struct Holes {
    /// Bytes of a page.
    page: u64,
    any: AtomicBool,
    files: Mutex<HashMap<InodeNo, Ranges>>,
}

impl Holes {
    pub(super) fn new() -> Self {
        Self { page: PAGE, any: AtomicBool::new(false), files: Mutex::default() }
    }

    fn files(&self) -> MutexGuard<'_, HashMap<InodeNo, Ranges>> {
        self.files.lock()
    }

    fn down(&self, at: u64) -> u64 {
        at - at % self.page
    }

    fn up(&self, at: u64) -> u64 {
        at.checked_next_multiple_of(self.page).unwrap_or(u64::MAX)
    }

    fn record(&self, number: InodeNo, start: u64, end: u64) {
        self.any.store(true, Ordering::Release);
        self.files().entry(number).or_default().add(start, end);
    }

    /// The kernel is about to get a part of a file.
    pub(super) fn read(&self, volume: &Volume, inode: &fs::Inode, offset: u64, length: u64) {
        let (start, end) = (self.down(offset), self.up(offset.saturating_add(length)));
        match volume.hole_within(inode, start, end) {
            Ok(None) => {}
            Ok(Some(hole)) => self.record(inode.number, self.down(hole), end),
            // a part of it may be readable
            Err(_) => self.record(inode.number, start, end),
        }
    }

    /// A part of a file goes, and from the kernel with it, but for pages that stay in part: these are cut. It splits
    /// what it caches as several pages together; where it cannot, all of that goes.
    pub(super) fn cut(&self, number: InodeNo, start: u64, end: u64) {
        self.record(number, self.down(start), self.up(start).min(end));
        if end != u64::MAX {
            self.record(number, self.down(end).max(start), self.up(end));
        }
    }

    /// The kernel has forgotten a file, unless it has it again: `is_looked_up` says so.
    pub(super) fn forget(&self, number: InodeNo, is_looked_up: impl FnOnce() -> bool) {
        if self.any.load(Ordering::Acquire) {
            // code that notes something of a file has it referenced, and waits here
            let mut files = self.files();
            if files.contains_key(&number) && !is_looked_up() {
                files.remove(&number);
            }
        }
    }

    /// Whether the kernel may have a part of a file's holes in its memory.
    pub(super) fn has(&self, number: InodeNo) -> bool {
        self.any.load(Ordering::Acquire) && self.files().contains_key(&number)
    }

    fn next(&self, number: InodeNo, at: u64) -> Option<(u64, u64)> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        self.files().get(&number)?.next(at)
    }

    /// The first byte at or after `offset` that may be data; `None` where there is none before the file's end.
    pub(super) fn data(&self, volume: &Volume, inode: &fs::Inode, offset: u64) -> Result<Option<u64>> {
        let size = volume.attributes_of(inode.number)?.size;
        let from = self.down(offset);
        let data = volume.seek_data(inode, from)?;
        let cached = self.next(inode.number, from).map(|(start, _)| start.max(from));
        let first = data.into_iter().chain(cached).min();
        Ok(first.map(|first| self.down(first).max(offset)).filter(|found| *found < size))
    }

    /// The first byte at or after `offset` that is no data for sure; `None` where `offset` is behind the file's end.
    pub(super) fn hole(&self, volume: &Volume, inode: &fs::Inode, offset: u64) -> Result<Option<u64>> {
        let size = volume.attributes_of(inode.number)?.size;
        if offset >= size {
            return Ok(None);
        }
        let mut at = self.down(offset);
        for _ in 0..PIECES {
            // the first page from here on that begins with a hole
            let page = self.up(volume.seek_hole(inode, at)?.unwrap_or(size));
            if page >= size {
                return Ok(Some(size));
            }
            let there = volume.seek_hole(inode, page)?.unwrap_or(size);
            if there != page {
                at = self.down(there);
                if at <= page {
                    at = page.saturating_add(self.page);
                }
                continue;
            }
            let end = page.saturating_add(self.page);
            if volume.seek_data(inode, page)?.is_some_and(|data| data < end) {
                at = end;
                continue;
            }
            match self.next(inode.number, page) {
                Some((start, cached)) if start < end => at = self.up(cached),
                _ => return Ok(Some(page.max(offset))),
            }
        }
        Ok(Some(at.clamp(offset, size)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_meet_are_one() {
        let mut ranges = Ranges::default();
        for (start, end) in [(10, 20), (40, 50), (30, 35), (20, 25), (5, 5)] {
            ranges.add(start, end);
        }
        assert_eq!(ranges.0, [(10, 25), (30, 35), (40, 50)]);
        assert_eq!(
            (ranges.next(0), ranges.next(24), ranges.next(25)),
            (Some((10, 25)), Some((10, 25)), Some((30, 35)))
        );
        assert_eq!(ranges.next(50), None);
        ranges.add(24, 40);
        assert_eq!(ranges.0, [(10, 50)]);
        for n in 0..1000 {
            ranges.add(100 * n + 100, 100 * n + 150);
        }
        assert!(ranges.0.len() <= MOST && ranges.next(0).is_some_and(|first| first.0 == 10));
        assert!((0..1000).all(|n| {
            ranges.next(100 * n + 100).is_some_and(|(start, end)| start <= 100 * n + 100 && end >= 100 * n + 150)
        }));
    }
}
