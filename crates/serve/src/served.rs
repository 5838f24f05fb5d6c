//! A device with concurrent clients of any protocol.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use blockdev::{BlockDevice, Error, Extent, Op};

use crate::flush::{Flushes, Unflushed};

/// The preferred request size in bytes, suited to file systems, page caches and networks; the device may prefer a
/// larger one.
const PREFERRED: u32 = 4096;
/// The maximum number of zeroes written in one request of the device.
const ZEROES: u64 = 1 << 20;

/// A device with the flushes of all its clients. A change that must be `durable` returns after a flush.
pub(crate) struct Served {
    device: Guarded,
    flushes: Flushes,
    len: u64,
    read_only: bool,
    preferred: u32,
}

impl Served {
    /// Wraps `device`; every change is refused if `read_only` is set or the device is read-only.
    pub(crate) fn new(device: Arc<dyn BlockDevice>, read_only: bool) -> Self {
        let geometry = device.geometry();
        Self {
            device: Guarded(device),
            flushes: Flushes::default(),
            len: geometry.len,
            read_only: read_only || geometry.read_only,
            preferred: geometry.sector.max(PREFERRED).checked_next_power_of_two().unwrap_or(PREFERRED),
        }
    }

    /// The length in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Whether changes are refused.
    pub(crate) fn read_only(&self) -> bool {
        self.read_only
    }

    /// The preferred size of a request in bytes, a power of two.
    pub(crate) fn preferred(&self) -> u32 {
        self.preferred
    }

    pub(crate) fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        let len = buf.len() as u64;
        self.device.guard(Op::Read, offset, len, |device| device.read(offset, buf))
    }

    pub(crate) fn extent(&self, offset: u64, len: u64) -> Result<Extent, Error> {
        self.device.guard(Op::Read, offset, len, |device| device.extent(offset, len))
    }

    pub(crate) fn write(&self, offset: u64, data: &[u8], durable: bool) -> Result<(), Error> {
        self.change(Op::Write, (offset, data.len() as u64), durable, |device| device.write(offset, data))
    }

    pub(crate) fn discard(&self, offset: u64, len: u64, durable: bool) -> Result<(), Error> {
        self.change(Op::Discard, (offset, len), durable, |device| device.discard(offset, len))
    }

    /// Writes zeroes in the cheapest way, possibly as holes.
    pub(crate) fn write_zeroes(&self, offset: u64, len: u64, durable: bool) -> Result<(), Error> {
        self.change(Op::Write, (offset, len), durable, |device| device.write_zeroes(offset, len))
    }

    /// Writes zeroes with allocated storage.
    pub(crate) fn allocate_zeroes(&self, offset: u64, len: u64, durable: bool) -> Result<(), Error> {
        self.change(Op::Write, (offset, len), durable, |device| {
            device.geometry().admit(Op::Write, offset, len)?;
            let zeroes = vec![0; ZEROES.min(len) as usize];
            let (mut at, end) = (offset, offset + len);
            while at < end {
                let part = zeroes.get(..ZEROES.min(end - at) as usize).unwrap_or(&zeroes);
                device.write(at, part)?;
                at += part.len() as u64;
            }
            Ok(())
        })
    }

    /// Makes all writes durable that were acknowledged to any client.
    ///
    /// # Errors
    /// Errors of the device; after a failed flush every later one fails.
    pub(crate) fn flush(&self) -> Result<(), Error> {
        if self.read_only {
            return Ok(());
        }
        let flushed = self.flushes.flush(|| self.device.guard(Op::Flush, 0, 0, |device| device.flush()));
        flushed.map_err(|e| match e {
            Unflushed::Now(e) => e,
            Unflushed::Before => failed_before(),
        })
    }

    fn change(
        &self,
        op: Op,
        (offset, len): (u64, u64),
        durable: bool,
        make: impl FnOnce(&dyn BlockDevice) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if self.read_only {
            return Err(Error::ReadOnly(op));
        }
        if self.flushes.failed() {
            return Err(failed_before());
        }
        self.device.guard(op, offset, len, make)?;
        if durable { self.flush() } else { Ok(()) }
    }
}

/// The error of every change and flush after a failed flush.
fn failed_before() -> Error {
    let source = io::Error::other("an earlier flush failed, so writes may be lost");
    Error::Io { op: Op::Flush, offset: 0, len: 0, source }
}

/// A device whose panics become errors of the request, so that no request can end the server.
struct Guarded(Arc<dyn BlockDevice>);

impl Guarded {
    fn guard<T>(
        &self,
        op: Op,
        offset: u64,
        len: u64,
        make: impl FnOnce(&dyn BlockDevice) -> Result<T, Error>,
    ) -> Result<T, Error> {
        catch_unwind(AssertUnwindSafe(|| make(&*self.0)))
            .unwrap_or_else(|_| Err(Error::Io { op, offset, len, source: io::Error::other("the request panicked") }))
    }
}
