//! The disk-order reader: one ascending pass over everything a round has to read.
//!
//! Invariants
//! 1. Requests of one pass go to the device in ascending order and never backwards: a worker reads while it holds the
//!    cursor and judges what it read after letting go, so reading and judging overlap but reads never race.
//! 2. Neighbours are joined: items that touch, or are at most [`Scanner::gap`] bytes apart, become one request of at
//!    most [`REQUEST`] bytes. Reading through a small gap costs less than a seek.
//! 3. Memory is bounded: each worker holds one batch of at most [`BATCH`] bytes (or one item).
//! 4. A request that fails is split into its items, so that one bad sector costs one item.

use blockdev::{BlockDevice, Error, Read};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Gaps up to this many bytes are read and thrown away: from memory they take 2 µs, which is what a request more takes;
/// from a disk at 100 MB/s 0.2 ms, where a seek takes 8.
pub(crate) const GAP: u64 = 16 << 10;
/// The largest joined request in bytes.
pub(crate) const REQUEST: u64 = 256 << 10;
/// Bytes a worker reads before it lets the next one read: few enough to be judged while they are in the processor's
/// own cache.
const BATCH: u64 = 512 << 10;
/// Requests a worker hands to the device at once: the depth of the queue.
const DEPTH: usize = 64;

/// One thing to read, and what the reader wants to know when it has come.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Item<T> {
    /// First byte on the device.
    pub(crate) offset: u64,
    /// Bytes; at most [`REQUEST`].
    pub(crate) len: u32,
    /// The reader's own.
    pub(crate) tag: T,
}

impl<T> Item<T> {
    fn end(&self) -> u64 {
        self.offset.saturating_add(u64::from(self.len))
    }
}

/// What was read so far, for progress and for the report.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    bytes: AtomicU64,
    reads: AtomicU64,
    seeks: AtomicU64,
    last_end: AtomicU64,
}

impl Counters {
    /// Bytes, requests, and requests that did not start where the one before ended.
    pub(crate) fn totals(&self) -> (u64, u64, u64) {
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        (get(&self.bytes), get(&self.reads), get(&self.seeks))
    }

    pub(crate) fn count(&self, offset: u64, len: u64) {
        self.bytes.fetch_add(len, Ordering::Relaxed);
        self.reads.fetch_add(1, Ordering::Relaxed);
        if self.last_end.swap(offset.saturating_add(len), Ordering::Relaxed) != offset {
            self.seeks.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Reads passes from a device on a number of threads.
pub(crate) struct Scanner<'a> {
    pub(crate) device: &'a dyn BlockDevice,
    pub(crate) threads: usize,
    /// Bytes between two items that are read and thrown away to make one request of them; [`GAP`] is a good number.
    pub(crate) gap: u64,
    pub(crate) counters: &'a Counters,
    /// Asked before each batch; `true` ends the pass early.
    pub(crate) cancelled: &'a (dyn Fn() -> bool + Sync),
    /// Told the bytes of each batch once they are judged.
    pub(crate) advanced: &'a (dyn Fn(u64) + Sync),
}

/// A joined request: the items `first..last`, and the bytes that cover them.
struct Request {
    first: usize,
    last: usize,
    offset: u64,
    end: u64,
}

impl Scanner<'_> {
    /// Reads all `items`, which ascend by offset, and calls `judge` with each item's bytes, on several threads and in
    /// no promised order. An item that cannot be read is judged with the device's error.
    pub(crate) fn pass<T: Sync>(&self, items: &[Item<T>], judge: impl Fn(&Item<T>, Result<&[u8], &Error>) + Sync) {
        debug_assert!(items.is_sorted_by_key(|i| i.offset));
        let cursor = Mutex::new(0usize);
        let work = || {
            let mut buffer = Vec::new();
            loop {
                let mut at = cursor.lock().unwrap_or_else(PoisonError::into_inner);
                if (self.cancelled)() {
                    return;
                }
                let batch = next_batch(items, *at, self.gap);
                let Some(last) = batch.last() else { return };
                *at = last.last;
                let results = self.read(&batch, &mut buffer);
                drop(at);
                self.judge_batch(items, &batch, &buffer, results, &judge);
            }
        };
        if self.threads < 2 || items.len() < 2 {
            return work();
        }
        std::thread::scope(|scope| {
            for _ in 1..self.threads {
                scope.spawn(work);
            }
            work();
        });
    }

    fn read(&self, batch: &[Request], buffer: &mut Vec<u8>) -> Vec<blockdev::Result<()>> {
        let total: u64 = batch.iter().map(|r| r.end - r.offset).sum();
        let total = usize::try_from(total).unwrap_or(usize::MAX);
        if buffer.len() < total {
            buffer.resize(total, 0);
        }
        let mut rest = buffer.as_mut_slice();
        let mut reads = Vec::with_capacity(batch.len());
        for request in batch {
            let len = (request.end - request.offset) as usize;
            let (head, tail) = rest.split_at_mut(len);
            rest = tail;
            self.counters.count(request.offset, len as u64);
            reads.push(Read::new(request.offset, head));
        }
        self.device.read_many(&mut reads);
        reads.into_iter().map(|r| r.result).collect()
    }

    fn judge_batch<T>(
        &self,
        items: &[Item<T>],
        batch: &[Request],
        buffer: &[u8],
        results: Vec<blockdev::Result<()>>,
        judge: &impl Fn(&Item<T>, Result<&[u8], &Error>),
    ) {
        let mut start = 0;
        for (request, result) in batch.iter().zip(results) {
            let len = (request.end - request.offset) as usize;
            let bytes = buffer.get(start..start + len).unwrap_or_default();
            start += len;
            for item in items.get(request.first..request.last).unwrap_or_default() {
                match &result {
                    Ok(()) => {
                        let from = (item.offset - request.offset) as usize;
                        judge(item, Ok(bytes.get(from..from + item.len as usize).unwrap_or_default()));
                    }
                    Err(error) if request.last - request.first == 1 => judge(item, Err(error)),
                    Err(_) => self.judge_alone(item, judge),
                }
            }
            (self.advanced)(len as u64);
        }
    }

    /// After a joined request failed: this item by itself.
    fn judge_alone<T>(&self, item: &Item<T>, judge: &impl Fn(&Item<T>, Result<&[u8], &Error>)) {
        let mut bytes = vec![0; item.len as usize];
        self.counters.count(item.offset, u64::from(item.len));
        match self.device.read(item.offset, &mut bytes) {
            Ok(()) => judge(item, Ok(&bytes)),
            Err(error) => judge(item, Err(&error)),
        }
    }
}

fn next_batch<T>(items: &[Item<T>], mut at: usize, gap: u64) -> Vec<Request> {
    let mut batch = Vec::new();
    let mut total = 0;
    while let Some(item) = items.get(at) {
        let mut request = Request { first: at, last: at + 1, offset: item.offset, end: item.end() };
        while let Some(next) = items.get(request.last) {
            let end = request.end.max(next.end());
            if next.offset > request.end.saturating_add(gap) || end - request.offset > REQUEST {
                break;
            }
            request.end = end;
            request.last += 1;
        }
        let len = request.end - request.offset;
        if !batch.is_empty() && total + len > BATCH {
            break;
        }
        total += len;
        at = request.last;
        batch.push(request);
        if batch.len() == DEPTH {
            break;
        }
    }
    batch
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockdev::MemoryDevice;

    fn pass(offsets: &[u64], threads: usize) -> (Vec<u64>, (u64, u64, u64)) {
        let device = MemoryDevice::from_vec((0..8u32 << 20).map(|n| (n >> 10) as u8).collect());
        let counters = Counters::default();
        let scanner = Scanner {
            device: &device,
            threads,
            gap: GAP,
            counters: &counters,
            cancelled: &|| false,
            advanced: &|_| (),
        };
        let items: Vec<_> = offsets.iter().map(|&offset| Item { offset, len: 1024, tag: () }).collect();
        let seen = Mutex::new(Vec::new());
        scanner.pass(&items, |item, bytes| {
            assert!(bytes.unwrap().iter().all(|b| *b == (item.offset >> 10) as u8));
            seen.lock().unwrap().push(item.offset);
        });
        let mut seen = seen.into_inner().unwrap();
        seen.sort_unstable();
        (seen, counters.totals())
    }

    #[test]
    fn neighbours_and_small_gaps_become_one_request() {
        let offsets = [0, 1024, 1024, 4096, 1 << 20, 5 << 20, (5 << 20) + GAP];
        let (seen, (bytes, reads, seeks)) = pass(&offsets, 1);
        assert_eq!(seen, offsets);
        assert_eq!((reads, seeks), (3, 2), "bytes {bytes}");
    }

    #[test]
    fn every_item_is_judged_once_on_several_threads() {
        let offsets: Vec<u64> = (0..8192).map(|n| n * 1024).collect();
        let (seen, (bytes, reads, seeks)) = pass(&offsets, 4);
        assert_eq!(seen, offsets);
        assert_eq!((bytes, reads, seeks), (8 << 20, 32, 0));
    }

    #[test]
    fn one_unreadable_item_does_not_take_its_neighbours_along() {
        let device = MemoryDevice::from_vec(vec![7; 4096]);
        let counters = Counters::default();
        let scanner = Scanner {
            device: &device,
            threads: 1,
            gap: GAP,
            counters: &counters,
            cancelled: &|| false,
            advanced: &|_| (),
        };
        let items: Vec<_> = [1024u64, 3072, 4096].iter().map(|&offset| Item { offset, len: 1024, tag: () }).collect();
        let seen = Mutex::new(Vec::new());
        scanner.pass(&items, |item, bytes| seen.lock().unwrap().push((item.offset, bytes.is_ok())));
        assert_eq!(seen.into_inner().unwrap(), [(1024, true), (3072, true), (4096, false)]);
    }
}
