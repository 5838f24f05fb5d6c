//! A device that counts its requests, so that a claim about requests, bytes and seeks can be tested.
//!
//! Requests are counted when they are passed to the device, in that order, whether or not they then succeed. There is
//! one position for the whole device, like that of the arm of a disk: the end of the last read or write. A read or
//! write that starts elsewhere is a seek, of its own kind; one that starts before that position is also a backward
//! seek. The first read or write after [`Trace::new`] or [`Trace::reset`] is not a seek, as no position is known. A
//! request of no bytes is counted but moves nothing, and so is a discard, which transfers no data. The requests of a
//! batch are counted one by one, in their order, without requests of other threads among them.

use parking_lot::{Mutex, MutexGuard};

use blockdev::{BlockDevice, Geometry, Op, Read, Result, Write};

/// Counts of one kind of request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// The number of requests.
    pub requests: u64,
    /// The number of bytes requested.
    pub bytes: u64,
    /// Requests that did not start at the end of the previous read or write.
    pub seeks: u64,
    /// Seeks that start before that position.
    pub backward_seeks: u64,
}

impl Counts {
    fn since(self, earlier: Self) -> Self {
        Self {
            requests: self.requests.saturating_sub(earlier.requests),
            bytes: self.bytes.saturating_sub(earlier.bytes),
            seeks: self.seeks.saturating_sub(earlier.seeks),
            backward_seeks: self.backward_seeks.saturating_sub(earlier.backward_seeks),
        }
    }
}

/// The counts of a [`Trace`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TraceCounts {
    /// Reads.
    pub reads: Counts,
    /// Writes.
    pub writes: Counts,
    /// Discards; they never seek.
    pub discards: Counts,
    /// Flushes.
    pub flushes: u64,
}

impl TraceCounts {
    /// The difference to `earlier`, counts of the same trace taken before these without a reset in between.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            reads: self.reads.since(earlier.reads),
            writes: self.writes.since(earlier.writes),
            discards: self.discards.since(earlier.discards),
            flushes: self.flushes.saturating_sub(earlier.flushes),
        }
    }
}

/// One request, as it was passed to the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// The operation: a read, write, flush or discard.
    pub op: Op,
    /// First byte; 0 for a flush.
    pub offset: u64,
    /// Length in bytes; 0 for a flush.
    pub len: u64,
}

#[derive(Debug, Default)]
struct State {
    counts: TraceCounts,
    position: Option<u64>,
    events: Vec<Event>,
}

impl State {
    fn record(&mut self, op: Op, offset: u64, len: u64, max_events: usize) {
        if self.events.len() < max_events {
            self.events.push(Event { op, offset, len });
        }
        let counts = match op {
            Op::Read => &mut self.counts.reads,
            Op::Write => &mut self.counts.writes,
            Op::Discard => &mut self.counts.discards,
            Op::Flush => {
                self.counts.flushes += 1;
                return;
            }
            Op::Open => return, // no device to trace exists yet
        };
        counts.requests += 1;
        counts.bytes = counts.bytes.saturating_add(len);
        if len == 0 || op == Op::Discard {
            return;
        }
        if let Some(position) = self.position {
            counts.seeks += u64::from(offset != position);
            counts.backward_seeks += u64::from(offset < position);
        }
        self.position = Some(offset.saturating_add(len));
    }
}

/// Counts requests, bytes and seeks on their way to the underlying device.
#[derive(Debug)]
pub struct Trace<D> {
    device: D,
    max_events: usize,
    state: Mutex<State>,
}

impl<D: BlockDevice> Trace<D> {
    /// Wraps `device`.
    pub fn new(device: D) -> Self {
        Self::with_events(device, 0)
    }

    /// Wraps `device`; the first `events` requests are recorded, too, for figures and comparisons.
    pub fn with_events(device: D, events: usize) -> Self {
        Self { device, max_events: events, state: Mutex::default() }
    }

    /// The counts so far.
    pub fn counters(&self) -> TraceCounts {
        self.state().counts
    }

    /// The first requests in their order, at most as many as [`Trace::with_events`] set.
    pub fn events(&self) -> Vec<Event> {
        self.state().events.clone()
    }

    /// Resets counts, events and position.
    pub fn reset(&self) {
        *self.state() = State::default();
    }

    /// The underlying device.
    pub fn into_inner(self) -> D {
        self.device
    }

    fn record(&self, op: Op, offset: u64, len: usize) {
        self.state().record(op, offset, len as u64, self.max_events);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock() // counters are always valid
    }
}

impl<D: BlockDevice> BlockDevice for Trace<D> {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.record(Op::Read, offset, buf.len());
        self.device.read(offset, buf)
    }

    fn read_many(&self, reads: &mut [Read<'_>]) {
        let mut state = self.state();
        for r in &*reads {
            state.record(Op::Read, r.offset, r.buf.len() as u64, self.max_events);
        }
        drop(state);
        self.device.read_many(reads);
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.record(Op::Write, offset, data.len());
        self.device.write(offset, data)
    }

    fn write_fresh(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.record(Op::Write, offset, data.len());
        self.device.write_fresh(offset, data)
    }

    fn write_many(&self, writes: &mut [Write<'_>]) {
        let mut state = self.state();
        for w in &*writes {
            state.record(Op::Write, w.offset, w.data.len() as u64, self.max_events);
        }
        drop(state);
        self.device.write_many(writes);
    }

    fn flush(&self) -> Result<()> {
        self.record(Op::Flush, 0, 0);
        self.device.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.state().record(Op::Discard, offset, len, self.max_events);
        self.device.discard(offset, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockdev::MemoryDevice;

    fn counts(requests: u64, bytes: u64, seeks: u64, backward_seeks: u64) -> Counts {
        Counts { requests, bytes, seeks, backward_seeks }
    }

    #[test]
    fn counts_are_exact() {
        let t = Trace::with_events(MemoryDevice::zeroed(4096).unwrap(), 3);
        let mut buf = [0; 100];
        t.read(1000, &mut buf).unwrap(); // the first: no seek
        t.read(1100, &mut buf).unwrap(); // follows
        t.read(1300, &mut buf).unwrap(); // forward
        t.read(0, &mut buf).unwrap(); // backward
        t.write(100, &buf).unwrap(); // follows the read
        t.write(100, &buf[..50]).unwrap(); // backward
        t.read(4000, &mut []).unwrap(); // moves nothing
        t.discard(3000, 10).unwrap(); // moves nothing
        t.flush().unwrap();
        t.read(150, &mut buf).unwrap(); // follows the write
        t.read(9999, &mut buf).unwrap_err(); // passed on nevertheless
        let first = t.counters();
        assert_eq!(
            first,
            TraceCounts {
                reads: counts(7, 600, 3, 1),
                writes: counts(2, 150, 1, 1),
                discards: counts(1, 10, 0, 0),
                flushes: 1
            }
        );
        let event = |op, offset, len| Event { op, offset, len };
        assert_eq!(t.events(), [event(Op::Read, 1000, 100), event(Op::Read, 1100, 100), event(Op::Read, 1300, 100)]);

        t.read(10_099, &mut buf).unwrap_err();
        t.read(0, &mut buf).unwrap();
        assert_eq!(t.counters().since(first), TraceCounts { reads: counts(2, 200, 1, 1), ..Default::default() });

        t.reset();
        assert_eq!((t.counters(), t.events().len()), (TraceCounts::default(), 0));
        t.read(77, &mut buf).unwrap();
        assert_eq!(t.counters().reads, counts(1, 100, 0, 0));
    }

    #[test]
    fn a_batch_counts_in_its_order() {
        let t = Trace::new(MemoryDevice::zeroed(4096).unwrap());
        let (mut a, mut b, mut c) = ([0; 10], [0; 20], [0; 30]);
        t.read_many(&mut [Read::new(0, &mut a), Read::new(10, &mut b), Read::new(5, &mut c)]);
        assert_eq!(t.counters().reads, counts(3, 60, 1, 1));
        t.write_many(&mut [Write::new(35, &a), Write::new(45, &b), Write::new(u64::MAX, &c)]);
        assert_eq!(t.counters().writes, counts(3, 60, 1, 0));
    }
}
