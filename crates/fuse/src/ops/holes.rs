//! The parts of a file that may contain data known only to the kernel.
//!
//! A process with a mapping changes the kernel's pages, and the kernel does not write them back before it asks for
//! holes (LSEEK). So a hole of the volume may contain data by now, and cp(1) would omit it. But a changed page was in
//! the page cache before. A page of a hole gets there by a READ, or remains there next to a range that was truncated or
//! punched. Those parts of holes are recorded here, as long as the kernel has the file, and count as data; so does
//! everything that shares a page with data. Every other hole is reported as one.

use fs::{InodeNo, Result, Volume};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// The page size in bytes; on processors with several sizes, the largest.
const PAGE: u64 = if cfg!(target_arch = "x86_64") { 4096 } else { 65_536 };
/// The maximum number of ranges recorded of a file; beyond it they are merged into one.
const MOST: usize = 256;
/// The maximum number of extents searched for a hole. If there are more, the searched range is reported as data.
const PIECES: usize = 10_000;

/// Ranges of bytes, sorted and not adjacent.
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

    /// The range that contains `at` or is the next after it.
    fn next(&self, at: u64) -> Option<(u64, u64)> {
        self.0.get(self.0.partition_point(|range| range.1 <= at)).copied()
    }
}

/// The parts of files' holes that may be in the kernel's page cache.
pub(super) struct Holes {
    /// The page size in bytes.
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

    /// Records the holes in a part of a file that the kernel is about to read.
    pub(super) fn read(&self, volume: &Volume, inode: &fs::Inode, offset: u64, length: u64) {
        let (start, end) = (self.down(offset), self.up(offset.saturating_add(length)));
        match volume.hole_within(inode, start, end) {
            Ok(None) => {}
            Ok(Some(hole)) => self.record(inode.number, self.down(hole), end),
            // some of it may be readable
            Err(_) => self.record(inode.number, start, end),
        }
    }

    /// Records the pages that remain in part after a range of a file is removed, in the kernel as well, where those
    /// pages are zeroed in part. The kernel splits its large folios for that; where it cannot, it drops the whole
    /// folio.
    pub(super) fn cut(&self, number: InodeNo, start: u64, end: u64) {
        self.record(number, self.down(start), self.up(start).min(end));
        if end != u64::MAX {
            self.record(number, self.down(end).max(start), self.up(end));
        }
    }

    /// Removes a file that the kernel has forgotten, unless `is_looked_up` returns that it was looked up again.
    pub(super) fn forget(&self, number: InodeNo, is_looked_up: impl FnOnce() -> bool) {
        if self.any.load(Ordering::Acquire) {
            // code that records ranges of a file has a lookup count on it, and waits here
            let mut files = self.files();
            if files.contains_key(&number) && !is_looked_up() {
                files.remove(&number);
            }
        }
    }

    /// Whether a part of a file's holes may be in the kernel's page cache.
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

    /// The first byte at or after `offset` that is certainly not data; `None` where `offset` is beyond the end of the
    /// file.
    pub(super) fn hole(&self, volume: &Volume, inode: &fs::Inode, offset: u64) -> Result<Option<u64>> {
        let size = volume.attributes_of(inode.number)?.size;
        if offset >= size {
            return Ok(None);
        }
        let mut at = self.down(offset);
        for _ in 0..PIECES {
            // the first page at or after this one that begins with a hole
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
