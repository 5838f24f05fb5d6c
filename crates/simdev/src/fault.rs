//! A device that fails according to a plan, for tests of the layers above it.
//!
//! Requests are numbered from 0 in the order in which they are made, those of a batch in their order; writes and
//! flushes are also counted separately. A device used by one thread behaves the same in every run.

use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeSet;
use std::io;
use std::ops::Range;

use blockdev::{BlockDevice, Error, Geometry, Op, Read, Result};

/// One injected fault. Ranges are bytes of the device. If several apply to the same request, one that fails it has
/// precedence over one that corrupts data silently; among these the first in the plan applies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Reads that overlap the range always fail.
    ReadError {
        /// Bytes that cannot be read.
        range: Range<u64>,
    },
    /// Writes that overlap the range always fail, and change nothing.
    WriteError {
        /// Bytes that cannot be written.
        range: Range<u64>,
    },
    /// Reads that overlap one of the sectors fail until it has been written as a whole.
    LatentSector {
        /// Bytes; a sector that overlaps the range is bad as a whole.
        range: Range<u64>,
    },
    /// The request fails and changes nothing; a repetition succeeds.
    RequestError {
        /// The number of the request among all requests.
        request: u64,
    },
    /// The flush fails.
    FlushError {
        /// The number of the flush.
        flush: u64,
    },
    /// Only the first sectors of the write reach the device. A write of at most that length is not torn.
    TornWrite {
        /// The number of the write.
        write: u64,
        /// The number of sectors that are written, counted from the sector in which the write begins.
        sectors: u64,
        /// Whether the write fails; otherwise it reports success.
        reported: bool,
    },
    /// The write reports success and changes nothing.
    LostWrite {
        /// The number of the write.
        write: u64,
    },
    /// The bytes of the write go to another location; it reports success.
    MisdirectedWrite {
        /// The number of the write.
        write: u64,
        /// The new offset of its first byte; lower if the write would exceed the device's end.
        to: u64,
    },
    /// From that request on the device is shorter: its geometry has the new length, and requests beyond it are out of
    /// range.
    Shrink {
        /// The number, among all requests, of the first one with the shorter device.
        request: u64,
        /// The new length in bytes; one that is longer than the device changes nothing.
        len: u64,
    },
    /// From that request on every request fails.
    Dead {
        /// The number, among all requests, of the first one to fail.
        request: u64,
    },
}

impl Fault {
    /// Generates `count` faults of all kinds, at offsets of a device of `len` bytes and at requests before number
    /// `requests`. The same arguments yield the same faults.
    pub fn sample(seed: u64, count: usize, len: u64, requests: u64) -> Vec<Self> {
        let mut numbers = fastrand::Rng::with_seed(seed);
        (0..count)
            .map(|_| {
                let at = numbers.u64(0..len.max(1));
                let range = at..at.saturating_add(1 << numbers.u32(0..16)).min(len);
                let n = numbers.u64(0..requests.max(1));
                match numbers.u32(0..10) {
                    0 => Self::ReadError { range },
                    1 => Self::WriteError { range },
                    2 => Self::LatentSector { range },
                    3 => Self::RequestError { request: n },
                    4 => Self::FlushError { flush: n },
                    5 => Self::TornWrite { write: n, sectors: numbers.u64(0..8), reported: numbers.bool() },
                    6 => Self::LostWrite { write: n },
                    7 => Self::MisdirectedWrite { write: n, to: at },
                    8 => Self::Shrink { request: n, len: at },
                    _ => Self::Dead { request: n },
                }
            })
            .collect()
    }
}

/// An injected fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Injected {
    /// The number of the request, among all requests.
    pub request: u64,
    /// The index of the fault in the plan.
    pub fault: usize,
}

#[derive(Debug, Default)]
struct State {
    requests: u64,
    writes: u64,
    flushes: u64,
    /// Latent sectors that are still bad, by number, each with its fault.
    latent: BTreeSet<(u64, usize)>,
    injected: Vec<Injected>,
}

/// The outcome of one request.
enum Outcome {
    Pass,
    Fail,
    Refuse(Error),
    /// Only this many bytes are written, and whether the write fails.
    Torn(u64, bool),
    Lost,
    Misdirected(u64),
}

/// A device with faults according to a plan.
#[derive(Debug)]
pub struct Faulty<D> {
    device: D,
    plan: Vec<Fault>,
    state: Mutex<State>,
}

fn touch(range: &Range<u64>, offset: u64, len: u64) -> bool {
    len > 0 && range.start < offset.saturating_add(len) && offset < range.end
}

fn broken(op: Op, offset: u64, len: u64) -> Error {
    Error::Io { op, offset, len, source: io::Error::from_raw_os_error(rustix::io::Errno::IO.raw_os_error()) }
}

impl<D: BlockDevice> Faulty<D> {
    /// Wraps `device`, with the faults of `plan`.
    pub fn new(device: D, plan: Vec<Fault>) -> Self {
        let sector = u64::from(device.geometry().sector.max(1));
        let mut latent = BTreeSet::new();
        for (index, fault) in plan.iter().enumerate() {
            if let Fault::LatentSector { range } = fault
                && !range.is_empty()
            {
                let end = range.end.min(device.geometry().len);
                latent.extend((range.start / sector..end.div_ceil(sector)).map(|number| (number, index)));
            }
        }
        Self { device, plan, state: Mutex::new(State { latent, ..State::default() }) }
    }

    /// The number of requests made so far, of all kinds.
    pub fn requests(&self) -> u64 {
        self.state().requests
    }

    /// The faults that were injected, in the order of their requests.
    pub fn injected(&self) -> Vec<Injected> {
        self.state().injected.clone()
    }

    /// The underlying device, without faults.
    pub fn into_inner(self) -> D {
        self.device
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock() // counters are always valid
    }

    /// The device's geometry at request number `request`.
    fn geometry_at(&self, request: u64) -> Geometry {
        let whole = self.device.geometry();
        let shrunk = self.plan.iter().filter_map(|fault| match fault {
            Fault::Shrink { request: first, len } if *first <= request => Some(*len),
            _ => None,
        });
        Geometry { len: shrunk.fold(whole.len, u64::min), ..whole }
    }

    /// Counts a request and decides its outcome.
    fn outcome(&self, op: Op, offset: u64, len: u64) -> Outcome {
        let mut state = self.state();
        let State { requests, writes, flushes, latent, injected } = &mut *state;
        let (request, write, flush) = (*requests, *writes, *flushes);
        *requests += 1;
        *writes += u64::from(op == Op::Write);
        *flushes += u64::from(op == Op::Flush);

        let whole = self.device.geometry();
        let geometry = self.geometry_at(request);
        let sector = u64::from(geometry.sector.max(1));
        let mut note = |fault| injected.push(Injected { request, fault });
        if let Err(e) = geometry.admit(op, offset, len) {
            if whole.admit(op, offset, len).is_ok() {
                let shrinks = |f: &Fault| matches!(f, Fault::Shrink { len, .. } if *len == geometry.len);
                note(self.plan.iter().position(shrinks).unwrap_or_default());
            }
            return Outcome::Refuse(e);
        }
        let sectors = offset / sector..(offset + len).div_ceil(sector);
        let bad = |index| latent.range((sectors.start, 0)..(sectors.end, 0)).any(|(_, fault)| *fault == index);
        let fails = |(index, fault): (usize, &Fault)| match fault {
            Fault::ReadError { range } => op == Op::Read && touch(range, offset, len),
            Fault::WriteError { range } => op == Op::Write && touch(range, offset, len),
            Fault::LatentSector { .. } => op == Op::Read && bad(index),
            Fault::RequestError { request: n } => request == *n,
            Fault::FlushError { flush: n } => op == Op::Flush && flush == *n,
            Fault::Dead { request: first } => *first <= request,
            _ => false,
        };
        if let Some(index) = self.plan.iter().enumerate().position(fails) {
            note(index);
            return Outcome::Fail;
        }
        if op != Op::Write {
            return Outcome::Pass;
        }
        for (index, fault) in self.plan.iter().enumerate() {
            let outcome = match fault {
                Fault::TornWrite { write: n, sectors, reported } if *n == write => {
                    let written = sectors.saturating_mul(sector).saturating_sub(offset % sector);
                    if written >= len {
                        continue;
                    }
                    Outcome::Torn(written, *reported)
                }
                Fault::LostWrite { write: n } if *n == write => Outcome::Lost,
                Fault::MisdirectedWrite { write: n, to } if *n == write => {
                    Outcome::Misdirected((*to).min(geometry.len - len))
                }
                _ => continue,
            };
            note(index);
            return outcome;
        }
        Outcome::Pass
    }

    /// Marks the sectors as good that a write of `len` bytes at `offset` covers completely.
    fn rewritten(&self, offset: u64, len: u64) {
        let sector = u64::from(self.device.geometry().sector.max(1));
        let (first, end) = (offset.div_ceil(sector), (offset + len) / sector);
        self.state().latent.retain(|(number, _)| !(first..end).contains(number));
    }

    fn put(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.device.write(offset, data)?;
        self.rewritten(offset, data.len() as u64);
        Ok(())
    }

    /// Makes a write, by `pass` if no fault changes it.
    fn change(&self, offset: u64, data: &[u8], pass: impl FnOnce(&D) -> Result<()>) -> Result<()> {
        let failed = || broken(Op::Write, offset, data.len() as u64);
        match self.outcome(Op::Write, offset, data.len() as u64) {
            Outcome::Pass => {
                pass(&self.device)?;
                self.rewritten(offset, data.len() as u64);
                Ok(())
            }
            Outcome::Fail => Err(failed()),
            Outcome::Refuse(e) => Err(e),
            Outcome::Lost => Ok(()),
            Outcome::Misdirected(to) => self.put(to, data),
            Outcome::Torn(written, reported) => {
                self.put(offset, &data[..written as usize])?; // fewer than the data has
                if reported { Err(failed()) } else { Ok(()) }
            }
        }
    }
}

impl<D: BlockDevice> BlockDevice for Faulty<D> {
    /// The geometry; its length changes when the device shrinks.
    fn geometry(&self) -> Geometry {
        self.geometry_at(self.requests())
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let len = buf.len() as u64;
        match self.outcome(Op::Read, offset, len) {
            Outcome::Refuse(e) => Err(e),
            Outcome::Fail => Err(broken(Op::Read, offset, len)),
            _ => self.device.read(offset, buf),
        }
    }

    fn read_many(&self, reads: &mut [Read<'_>]) {
        // reads without a fault stay one batch
        let (mut slots, mut good) = (Vec::new(), Vec::new());
        for r in reads {
            let len = r.buf.len() as u64;
            match self.outcome(Op::Read, r.offset, len) {
                Outcome::Refuse(e) => r.result = Err(e),
                Outcome::Fail => r.result = Err(broken(Op::Read, r.offset, len)),
                _ => {
                    slots.push(&mut r.result);
                    good.push(Read::new(r.offset, r.buf));
                }
            }
        }
        self.device.read_many(&mut good);
        slots.into_iter().zip(good).for_each(|(slot, read)| *slot = read.result);
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.change(offset, data, |device| device.write(offset, data))
    }

    fn write_fresh(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.change(offset, data, |device| device.write_fresh(offset, data))
    }

    fn flush(&self) -> Result<()> {
        match self.outcome(Op::Flush, 0, 0) {
            Outcome::Refuse(e) => Err(e),
            Outcome::Fail => Err(broken(Op::Flush, 0, 0)),
            _ => self.device.flush(),
        }
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        match self.outcome(Op::Discard, offset, len) {
            Outcome::Refuse(e) => Err(e),
            Outcome::Fail => Err(broken(Op::Discard, offset, len)),
            _ => self.device.discard(offset, len),
        }
    }
}
