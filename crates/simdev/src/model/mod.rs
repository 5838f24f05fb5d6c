//! Devices with a clock of their own: the time that a hard disk or a flash disk would have needed for the requests.
//!
//! 1. The bytes are stored by an underlying device; only the time is modelled. It is a function of the parameters and
//!    the sequence of requests alone, in whole nanoseconds, and the same on every machine.
//! 2. The clock stops between requests: the computing time of a program is not counted. So a request begins when the
//!    previous one has ended, and those of a batch begin together.
//! 3. Requests of several threads are served one after the other, in the order in which they arrive.
//! 4. A request outside the device, or refused by a read-only device, takes no time. One that fails in the underlying
//!    device takes the time of a successful one.

mod disk;
mod flash;
mod layout;
mod parameters;
mod request;

use parking_lot::{Mutex, MutexGuard};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::trace::Event;
use blockdev::{BlockDevice, Error, Geometry, Op, OpenOptions, Read, Result, Scheme, Write, open_with};
use disk::Disk;
use flash::Flash;
pub use parameters::{DiskParameters, FlashParameters, Order, Parameters, Rate};
use request::Extent;
pub use request::Report;

/// `model:KIND:DEVICE`, the device that DEVICE names, with a virtual clock. KIND is `hdd`, `ssd`, or the path of a file
/// of parameters whose name contains no colon; such a file with the name `hdd` is specified as `./hdd`.
///
/// Fails with [`Error::Open`] if there is no DEVICE or the parameters cannot be read, and with [`Error::Parameters`] if
/// they are invalid, or describe a device that is shorter than DEVICE.
pub const MODEL: Scheme = Scheme::new("model:", open, beneath);

/// The maximum length of a device whose requests can be timed: 64 TiB, so that no time exceeds 64 bits.
const LONGEST: u64 = 1 << 46;

#[derive(Debug)]
enum Mechanism {
    Disk(Box<Disk>),
    Flash(Box<Flash>),
}

/// A modelled device without the bytes.
#[derive(Debug)]
struct Machine {
    mechanism: Mechanism,
    now: u64,
    counts: Report,
}

impl Machine {
    fn new(parameters: &Parameters, len: u64) -> Result<Self> {
        parameters.validate()?;
        if len > LONGEST {
            return Err(Error::Parameters(format!("a device of {len} bytes is too long to be modelled")));
        }
        let mechanism = match parameters {
            Parameters::Disk(p) => Mechanism::Disk(Box::new(Disk::new(p, len)?)),
            Parameters::Flash(p) => Mechanism::Flash(Box::new(Flash::new(p, len))),
        };
        Ok(Self { mechanism, now: 0, counts: Report::default() })
    }

    /// Makes requests of one kind, submitted together.
    fn make(&mut self, op: Op, extents: &[Extent]) {
        if extents.is_empty() {
            return;
        }
        let (requests, bytes) = (extents.len() as u64, extents.iter().map(|e| e.len).sum::<u64>());
        let now = self.now;
        self.now = match (op, &mut self.mechanism) {
            (Op::Read, Mechanism::Disk(disk)) => disk.reads(now, extents),
            (Op::Read, Mechanism::Flash(flash)) => flash.reads(now, extents),
            (Op::Write, Mechanism::Disk(disk)) => disk.writes(now, extents),
            (Op::Write, Mechanism::Flash(flash)) => flash.writes(now, extents),
            (Op::Flush, Mechanism::Disk(disk)) => disk.flush(now),
            (Op::Flush, Mechanism::Flash(flash)) => flash.flush(now),
            (Op::Discard, Mechanism::Disk(disk)) => disk.discard(now),
            (Op::Discard, Mechanism::Flash(flash)) => flash.discard(now),
            (Op::Open, _) => now, // made before there is a device
        };
        let counts = &mut self.counts;
        match op {
            Op::Read => (counts.reads, counts.bytes_read) = (counts.reads + requests, counts.bytes_read + bytes),
            Op::Write => {
                (counts.writes, counts.bytes_written) = (counts.writes + requests, counts.bytes_written + bytes);
            }
            Op::Flush => counts.flushes += requests,
            Op::Discard => counts.discards += requests,
            Op::Open => {}
        }
    }

    fn report(&self) -> Report {
        let mechanism = match &self.mechanism {
            Mechanism::Disk(disk) => disk.report(),
            Mechanism::Flash(flash) => flash.report(),
        };
        Report {
            time: Duration::from_nanos(self.now),
            buffered_reads: mechanism.buffered_reads,
            seeks: mechanism.seeks,
            seek_time: mechanism.seek_time,
            rotation_time: mechanism.rotation_time,
            ..self.counts
        }
    }
}

/// A device with the speed of another: bytes go to the underlying device, time passes on a virtual clock.
#[derive(Debug)]
pub struct Model<D> {
    device: D,
    machine: Mutex<Machine>,
}

impl<D: BlockDevice> Model<D> {
    /// Wraps `device` with the speed of a device with these parameters; the clock begins at 0.
    ///
    /// # Errors
    /// [`Error::Parameters`] if they do not describe a device, or one that is shorter than `device`.
    pub fn new(device: D, parameters: &Parameters) -> Result<Self> {
        let machine = Machine::new(parameters, device.geometry().len)?;
        Ok(Self { device, machine: Mutex::new(machine) })
    }

    /// The time that all requests so far have taken.
    pub fn clock(&self) -> Duration {
        Duration::from_nanos(self.machine().now)
    }

    /// The statistics so far.
    pub fn report(&self) -> Report {
        self.machine().report()
    }

    /// The underlying device.
    pub fn into_inner(self) -> D {
        self.device
    }

    fn machine(&self) -> MutexGuard<'_, Machine> {
        self.machine.lock() // at worst the clock is wrong
    }

    fn make(&self, op: Op, extents: impl Iterator<Item = (u64, u64)>) {
        let geometry = self.device.geometry();
        let admitted = extents.filter(|&(offset, len)| geometry.admit(op, offset, len).is_ok());
        let extents: Vec<_> = admitted.map(|(offset, len)| Extent { offset, len }).collect();
        self.machine().make(op, &extents);
    }
}

impl<D: BlockDevice> BlockDevice for Model<D> {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.make(Op::Read, std::iter::once((offset, buf.len() as u64)));
        self.device.read(offset, buf)
    }

    fn read_many(&self, reads: &mut [Read<'_>]) {
        self.make(Op::Read, reads.iter().map(|r| (r.offset, r.buf.len() as u64)));
        self.device.read_many(reads);
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.make(Op::Write, std::iter::once((offset, data.len() as u64)));
        self.device.write(offset, data)
    }

    fn write_fresh(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.make(Op::Write, std::iter::once((offset, data.len() as u64)));
        self.device.write_fresh(offset, data)
    }

    fn write_many(&self, writes: &mut [Write<'_>]) {
        self.make(Op::Write, writes.iter().map(|w| (w.offset, w.data.len() as u64)));
        self.device.write_many(writes);
    }

    fn flush(&self) -> Result<()> {
        self.make(Op::Flush, std::iter::once((0, 0)));
        self.device.flush()
    }

    fn virtual_clock(&self) -> Option<Duration> {
        Some(self.clock())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.make(Op::Discard, std::iter::once((offset, len)));
        self.device.discard(offset, len)
    }
}

fn beneath(rest: &str) -> &str {
    rest.split_once(':').map_or(rest, |(_, below)| below)
}

fn open(rest: &str, options: OpenOptions, schemes: &[Scheme]) -> Result<Arc<dyn BlockDevice>> {
    let (kind, below) = rest.split_once(':').ok_or_else(|| {
        let source = io::Error::new(io::ErrorKind::InvalidInput, "the syntax is model:KIND:DEVICE");
        Error::Open { device: format!("{}{rest}", MODEL.prefix), source }
    })?;
    let parameters = Parameters::named(kind)?;
    Ok(Arc::new(Model::new(open_with(below, options, schemes)?, &parameters)?))
}

/// Replays `events`, one after the other, on a modelled device with these parameters and of `device_len` bytes; returns
/// its report. An event outside the device takes no time and is not counted.
///
/// # Errors
/// [`Error::Parameters`] if they do not describe a device, or one that is shorter.
pub fn time_trace(parameters: &Parameters, device_len: u64, events: &[Event]) -> Result<Report> {
    let mut machine = Machine::new(parameters, device_len)?;
    let geometry = Geometry::new(device_len);
    for event in events.iter().filter(|e| geometry.admit(e.op, e.offset, e.len).is_ok()) {
        machine.make(event.op, &[Extent { offset: event.offset, len: event.len }]);
    }
    Ok(machine.report())
}
