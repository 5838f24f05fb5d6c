//! The disk-order reader: one ascending pass over everything a round has to read.
//!
//! Invariants
//! 1. Requests of one pass go to the device in ascending order and never backwards: a worker reads while it owns the
//!    cursor and checks the bytes after releasing it, so reading and checking overlap but reads never race. Only bytes
//!    in the page cache are read by several workers at once: there order gains nothing, and copying is half the work.
//! 2. Neighbours are joined: items that touch, or are at most [`Scanner::gap`] bytes apart, become one request of at
//!    most [`REQUEST`] bytes. Reading through a small gap costs less than a seek.
//! 3. Memory is bounded: each worker has one batch of at most [`BATCH`] bytes (or one item), or, where its requests are
//!    short, of [`SCATTERED`] bytes for each and [`DEPTH`] requests at most. From the page cache batches have
//!    [`CACHED_BATCH`] bytes.
//! 4. A pass may grow: a [`Feed`] returns further items for an item that was read. The next items are chosen only after
//!    that, so invariant 1 holds for the added items, too.
//! 5. A request that fails is split into its items, so that one bad sector costs one item.

pub(crate) mod found;
pub(crate) mod log;
pub(crate) mod regions;
pub(crate) mod rounds;
pub(crate) mod walk;

use crate::volume::Volume;
use blockdev::{BlockDevice, Error, Read};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Largest gap in bytes that is read and discarded: from memory it takes 2 µs, as long as one more request; from a disk
/// at 100 MB/s 0.2 ms, where a seek takes 8 ms.
pub(crate) const GAP: u64 = 16 << 10;
/// The largest joined request in bytes.
pub(crate) const REQUEST: u64 = 256 << 10;
/// Bytes a worker reads before it lets the next one read.
const BATCH: u64 = 512 << 10;
/// Request size in bytes below which a batch may be larger than [`BATCH`]: scattered requests are submitted many at a
/// time, so that the device can choose their order.
const SCATTERED: u64 = 48 << 10;
/// Largest batch of scattered requests, in bytes.
const SCATTERED_BATCH: u64 = 6 << 20;
/// Requests that a worker submits at once: the depth of the queue.
const DEPTH: usize = 1024;
/// Bytes of a batch from the page cache: few enough to be checked while they are in the processor's cache, and not to
/// evict the block map from it.
const CACHED_BATCH: u64 = 256 << 10;

/// The maximum size of a batch.
struct BatchLimits {
    /// Bytes in total,
    bytes: u64,
    /// or bytes for each of its requests, whichever is more,
    request: u64,
    /// but never more bytes than this.
    most: u64,
}

impl BatchLimits {
    /// The limits for reads that wait for the device.
    const QUEUED: Self = Self { bytes: BATCH, request: SCATTERED, most: SCATTERED_BATCH };
    /// The limits for reads from the page cache: there is no queue to fill.
    const CACHED: Self = Self { bytes: CACHED_BATCH, request: 0, most: CACHED_BATCH };
}

/// A range to read, with a tag that the reader gets back with its bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Item<T> {
    /// First byte on the device.
    pub(crate) offset: u64,
    /// Length in bytes; at most [`REQUEST`].
    pub(crate) len: u32,
    /// The reader's identification of the item.
    pub(crate) tag: T,
}

impl<T> Item<T> {
    fn end(&self) -> u64 {
        self.offset.saturating_add(u64::from(self.len))
    }
}

/// The counts of bytes and requests so far, for progress and for the report.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    bytes: AtomicU64,
    reads: AtomicU64,
    seeks: AtomicU64,
    last_end: AtomicU64,
    cached: AtomicBool,
}

impl Counters {
    /// Bytes, requests, and requests that did not start at the end of the previous one.
    pub(crate) fn totals(&self) -> (u64, u64, u64) {
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        (get(&self.bytes), get(&self.reads), get(&self.seeks))
    }

    /// Whether the last read came from the page cache entirely.
    pub(crate) fn is_cached(&self) -> bool {
        self.cached.load(Ordering::Relaxed)
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
    /// Largest gap in bytes that is read and discarded to join two items into one request; [`GAP`] is a good value.
    pub(crate) gap: u64,
    pub(crate) counters: &'a Counters,
    /// Called before each batch; `true` ends the pass early.
    pub(crate) cancelled: &'a (dyn Fn() -> bool + Sync),
    /// Called with the bytes of each batch once they are checked.
    pub(crate) advanced: &'a (dyn Fn(u64) + Sync),
}

/// A joined request: the batch's items `first..last`, and the bytes that cover them.
struct Request {
    first: usize,
    last: usize,
    offset: u64,
    end: u64,
}

/// The growth of a pass while it is read: some items lead to others, and some may be checked only after others.
pub(crate) trait Feed<T> {
    /// The first byte of the items to which this one leads; `None` where it leads to none.
    fn leads_to(&self, _tag: &T) -> Option<u64> {
        None
    }

    /// The items to which an item leads that was just read, in any order. Items before the position of the pass are not
    /// read.
    fn led_to(&self, _tag: &T, _bytes: &[u8]) -> Vec<Item<T>> {
        Vec::new()
    }

    /// Whether others are checked only after this one.
    fn comes_first(&self, _tag: &T) -> bool {
        false
    }

    /// Whether it is checked only after all items before it for which [`comes_first`](Self::comes_first) is true.
    fn comes_after(&self, _tag: &T) -> bool {
        false
    }
}

/// A pass that does not grow.
impl<T> Feed<T> for () {}

/// The position of a pass.
struct Cursor<'i, T> {
    items: &'i [Item<T>],
    /// The first of `items` that was not read yet.
    at: usize,
    /// The items to which others led.
    grown: BTreeMap<u64, Item<T>>,
    /// Batches so far.
    batches: u64,
}

/// The items that are read together.
struct Batch<T> {
    items: Vec<Item<T>>,
    requests: Vec<Request>,
    number: u64,
}

/// The unfinished batches that others have to wait for.
#[derive(Default)]
struct Fence {
    open: Mutex<Vec<u64>>,
    closed: Condvar,
}

impl Fence {
    /// Waits until no batch before `number` is open.
    fn wait(&self, number: u64) {
        self.closed.wait_while(&mut self.open.lock(), |open| open.iter().any(|n| *n < number));
    }
}

/// Guard that closes a batch even where checking it panics; otherwise others would wait for ever.
struct Opened<'f>(&'f Fence, u64);

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        self.0.open.lock().retain(|n| *n != self.1);
        self.0.closed.notify_all();
    }
}

impl Scanner<'_> {
    /// The bytes of a block, read individually; `None` also outside the volume.
    pub(crate) fn read_block(&self, volume: &Volume, block: u64) -> Option<Vec<u8>> {
        let offset = volume.offset(block)?;
        let mut bytes = vec![0; volume.geometry.block_size as usize];
        self.counters.count(offset, bytes.len() as u64);
        self.device.read(offset, &mut bytes).ok()?;
        Some(bytes)
    }

    /// Reads all `items`, which ascend by offset, and calls `check` with each item's bytes, on several threads and in
    /// no particular order. An item that cannot be read is checked with the device's error.
    pub(crate) fn read_ascending<T: Copy + Send + Sync>(
        &self,
        items: &[Item<T>],
        check: impl Fn(&Item<T>, Result<&[u8], &Error>) + Sync,
    ) {
        self.read_growing(items, &(), check);
    }

    /// Reads `items`, as [`Scanner::read_ascending`], and the items that `feed` adds.
    pub(crate) fn read_growing<T: Copy + Send + Sync>(
        &self,
        items: &[Item<T>],
        feed: &(impl Feed<T> + Sync),
        check: impl Fn(&Item<T>, Result<&[u8], &Error>) + Sync,
    ) {
        debug_assert!(items.is_sorted_by_key(|i| i.offset));
        let cursor = Mutex::new(Cursor { items, at: 0, grown: BTreeMap::new(), batches: 0 });
        let fence = Fence::default();
        let work = || {
            let mut buffer = Vec::new();
            loop {
                let mut cursor = cursor.lock();
                if (self.cancelled)() {
                    return;
                }
                let cached = self.counters.is_cached();
                let limits = if cached { BatchLimits::CACHED } else { BatchLimits::QUEUED };
                let batch = cursor.next_batch(&limits, self.gap, feed);
                if batch.requests.is_empty() {
                    return;
                }
                for request in &batch.requests {
                    self.counters.count(request.offset, request.end - request.offset);
                }
                let first = batch.items.iter().any(|item| feed.comes_first(&item.tag));
                let opened = first.then(|| {
                    fence.open.lock().push(batch.number);
                    Opened(&fence, batch.number)
                });
                // the next items may depend on these
                let mut cursor =
                    (!cached || batch.items.iter().any(|item| feed.leads_to(&item.tag).is_some())).then_some(cursor);
                let results = self.read(&batch.requests, &mut buffer);
                if let Some(cursor) = &mut cursor {
                    cursor.grow(&batch, &buffer, &results, feed);
                }
                drop(cursor);
                if batch.items.iter().any(|item| feed.comes_after(&item.tag)) {
                    fence.wait(batch.number);
                }
                self.check_batch(&batch, &buffer, results, &check);
                drop(opened);
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

    /// Checks items whose bytes are in memory, on several threads and in no particular order.
    pub(crate) fn check_all<T: Sync>(
        &self,
        items: &[(Item<T>, Vec<u8>)],
        check: impl Fn(&Item<T>, Result<&[u8], &Error>) + Sync,
    ) {
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some((item, bytes)) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                check(item, Ok(bytes));
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..self.threads.min(items.len()) {
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
            reads.push(Read::new(request.offset, head));
        }
        let made = self.device.read_cached(&mut reads);
        let rest = reads.get_mut(made..).unwrap_or_default();
        self.counters.cached.store(rest.is_empty(), Ordering::Relaxed);
        if !rest.is_empty() {
            self.device.read_many(rest);
        }
        reads.into_iter().map(|r| r.result).collect()
    }

    fn check_batch<T>(
        &self,
        batch: &Batch<T>,
        buffer: &[u8],
        results: Vec<blockdev::Result<()>>,
        check: &impl Fn(&Item<T>, Result<&[u8], &Error>),
    ) {
        for ((request, bytes), result) in batch.read(buffer).zip(results) {
            for item in batch.items.get(request.first..request.last).unwrap_or_default() {
                match &result {
                    Ok(()) => check(item, Ok(request.bytes_of(item, bytes))),
                    Err(error) if request.last - request.first == 1 => check(item, Err(error)),
                    Err(_) => self.check_alone(item, check),
                }
            }
            (self.advanced)(bytes.len() as u64);
        }
    }

    /// Reads and checks one item of a joined request that failed.
    fn check_alone<T>(&self, item: &Item<T>, check: &impl Fn(&Item<T>, Result<&[u8], &Error>)) {
        let mut bytes = vec![0; item.len as usize];
        self.counters.count(item.offset, u64::from(item.len));
        match self.device.read(item.offset, &mut bytes) {
            Ok(()) => check(item, Ok(&bytes)),
            Err(error) => check(item, Err(&error)),
        }
    }
}

impl Request {
    /// The bytes of one item of the request.
    fn bytes_of<'b, T>(&self, item: &Item<T>, bytes: &'b [u8]) -> &'b [u8] {
        let from = (item.offset - self.offset) as usize;
        bytes.get(from..from + item.len as usize).unwrap_or_default()
    }
}

impl<T> Batch<T> {
    /// The requests with the bytes read for each, which are consecutive in `buffer`.
    fn read<'b>(&self, buffer: &'b [u8]) -> impl Iterator<Item = (&Request, &'b [u8])> {
        let mut start = 0;
        self.requests.iter().map(move |request| {
            let len = (request.end - request.offset) as usize;
            let bytes = buffer.get(start..start + len).unwrap_or_default();
            start += len;
            (request, bytes)
        })
    }
}

impl<T: Copy> Cursor<'_, T> {
    fn peek(&self) -> Option<Item<T>> {
        let known = self.items.get(self.at);
        let grown = self.grown.first_key_value().map(|(_, item)| item);
        match (known, grown) {
            (Some(known), Some(grown)) if grown.offset < known.offset => Some(*grown),
            (Some(known), _) => Some(*known),
            (None, grown) => grown.copied(),
        }
    }

    fn advance(&mut self) {
        match (self.items.get(self.at), self.grown.first_key_value()) {
            (Some(known), Some((offset, _))) if *offset >= known.offset => self.at += 1,
            (Some(_), None) => self.at += 1,
            _ => drop(self.grown.pop_first()),
        }
    }

    fn next_batch(&mut self, limits: &BatchLimits, gap: u64, feed: &impl Feed<T>) -> Batch<T> {
        let mut batch = Batch { items: Vec::new(), requests: Vec::new(), number: self.batches };
        self.batches += 1;
        let mut total = 0;
        // items beyond this may not be known yet
        let mut barrier = u64::MAX;
        while let Some(item) = self.peek().filter(|item| item.offset < barrier) {
            let most = limits.bytes.max(batch.requests.len() as u64 * limits.request).min(limits.most);
            let joined = batch.requests.last_mut().and_then(|request| {
                let end = request.end.max(item.end());
                let near = item.offset <= request.end.saturating_add(gap) && end - request.offset <= REQUEST;
                (near && total + (end - request.end) <= most).then(|| {
                    total += end - request.end;
                    request.end = end;
                    request.last += 1;
                })
            });
            if joined.is_none() {
                let len = item.end() - item.offset;
                if !batch.requests.is_empty() && total + len > most || batch.requests.len() == DEPTH {
                    break;
                }
                total += len;
                let first = batch.items.len();
                batch.requests.push(Request { first, last: first + 1, offset: item.offset, end: item.end() });
            }
            if let Some(from) = feed.leads_to(&item.tag) {
                barrier = barrier.min(from);
            }
            batch.items.push(item);
            self.advance();
        }
        batch
    }

    /// Adds the items to which those of a batch lead, once they are read.
    fn grow(&mut self, batch: &Batch<T>, buffer: &[u8], results: &[blockdev::Result<()>], feed: &impl Feed<T>) {
        let here = batch.items.last().map_or(0, |item| item.offset);
        for ((request, bytes), result) in batch.read(buffer).zip(results) {
            let items = batch.items.get(request.first..request.last).unwrap_or_default();
            for item in items.iter().filter(|item| result.is_ok() && feed.leads_to(&item.tag).is_some()) {
                let led = feed.led_to(&item.tag, request.bytes_of(item, bytes));
                self.grown.extend(led.into_iter().filter(|item| item.offset > here).map(|item| (item.offset, item)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockdev::MemoryDevice;

    fn scanner<'a>(device: &'a dyn BlockDevice, counters: &'a Counters, threads: usize, gap: u64) -> Scanner<'a> {
        Scanner { device, threads, gap, counters, cancelled: &|| false, advanced: &|_| () }
    }

    fn pass(offsets: &[u64], threads: usize) -> (Vec<u64>, (u64, u64, u64)) {
        let device = MemoryDevice::from_vec((0..8u32 << 20).map(|n| (n >> 10) as u8).collect());
        let counters = Counters::default();
        let scanner = scanner(&device, &counters, threads, GAP);
        let items: Vec<_> = offsets.iter().map(|&offset| Item { offset, len: 1024, tag: () }).collect();
        let seen = Mutex::new(Vec::new());
        scanner.read_ascending(&items, |item, bytes| {
            assert!(bytes.unwrap().iter().all(|b| *b == (item.offset >> 10) as u8));
            seen.lock().push(item.offset);
        });
        let mut seen = seen.into_inner();
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
    fn every_item_is_checked_once_on_several_threads() {
        let offsets: Vec<u64> = (0..8192).map(|n| n * 1024).collect();
        let (seen, (bytes, reads, seeks)) = pass(&offsets, 4);
        assert_eq!(seen, offsets);
        assert_eq!((bytes, reads, seeks), (8 << 20, 32, 0));
    }

    #[test]
    fn one_unreadable_item_does_not_take_its_neighbours_along() {
        let device = MemoryDevice::from_vec(vec![7; 4096]);
        let counters = Counters::default();
        let scanner = scanner(&device, &counters, 1, GAP);
        let items: Vec<_> = [1024u64, 3072, 4096].iter().map(|&offset| Item { offset, len: 1024, tag: () }).collect();
        let seen = Mutex::new(Vec::new());
        scanner.read_ascending(&items, |item, bytes| seen.lock().push((item.offset, bytes.is_ok())));
        assert_eq!(seen.into_inner(), [(1024, true), (3072, true), (4096, false)]);
    }

    /// A device with everything in memory except these bytes.
    struct Half(MemoryDevice, std::ops::Range<u64>);

    impl BlockDevice for Half {
        fn geometry(&self) -> blockdev::Geometry {
            self.0.geometry()
        }

        fn read(&self, offset: u64, buf: &mut [u8]) -> blockdev::Result<()> {
            self.0.read(offset, buf)
        }

        fn read_cached(&self, reads: &mut [Read<'_>]) -> usize {
            let cached = reads.iter_mut().take_while(|r| !self.1.contains(&r.offset));
            cached.map(|r| r.result = self.0.read(r.offset, r.buf)).count()
        }

        fn write(&self, offset: u64, data: &[u8]) -> blockdev::Result<()> {
            self.0.write(offset, data)
        }

        fn flush(&self) -> blockdev::Result<()> {
            self.0.flush()
        }

        fn discard(&self, offset: u64, len: u64) -> blockdev::Result<()> {
            self.0.discard(offset, len)
        }
    }

    #[test]
    fn what_is_in_memory_only_in_part_is_read_whole() {
        let bytes = (0..8u32 << 20).map(|n| (n >> 10) as u8).collect();
        let device = Half(MemoryDevice::from_vec(bytes), 2 << 20..3 << 20);
        let counters = Counters::default();
        let scanner = scanner(&device, &counters, 3, 0);
        let items: Vec<_> = (0..4096).map(|n| Item { offset: n * 2048, len: 1024, tag: () }).collect();
        let seen = Mutex::new(Vec::new());
        scanner.read_ascending(&items, |item, bytes| {
            assert!(bytes.unwrap().iter().all(|b| *b == (item.offset >> 10) as u8));
            seen.lock().push(item.offset);
        });
        let mut seen = seen.into_inner();
        seen.sort_unstable();
        assert!(seen.into_iter().eq(items.iter().map(|item| item.offset)));
        assert_eq!(counters.totals().0, 4 << 20);
    }
}
