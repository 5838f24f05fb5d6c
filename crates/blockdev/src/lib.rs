//! Block devices, and devices that wrap a device.
//!
//! The layers above access storage through [`BlockDevice`]: byte offsets, whole reads and writes, and batches that have
//! many requests in flight. A device does not depend on the file system.
//!
//! | device | description |
//! | --- | --- |
//! | [`FileDevice`] | a regular file or a block device of the system, through the page cache or around it (O_DIRECT) |
//! | [`MemoryDevice`] | bytes in memory |
//! | [`ReadOnly`] | a device that refuses every change |
//! | [`Overlay`] | memory over a base that is only read; a clone and a comparison cost nothing |
//!
//! Devices that measure, record and fail on purpose are in the crate `simdev`. [`undo`] saves the content of a device
//! before a change, and restores it. [`open`] opens a device from its specification on a command line. Wrappers accept
//! any `D: BlockDevice`; a reference, a `Box` and an `Arc` of a device, of known type or `dyn`, are devices, too.

#![deny(unsafe_code)]

mod aligned;
mod error;
mod extent;
mod file;
mod forward;
mod job;
mod lock;
mod memory;
mod mounts;
mod overlay;
mod readonly;
mod spec;
mod stack;
mod threads;
pub mod undo;
mod uring;

pub use aligned::AlignedBuf;
pub use error::{Error, Op, Result};
pub use extent::Extent;
pub use file::{Batching, FileDevice, OpenOptions};
pub use lock::{check_unused, is_locked_for_writing};
pub use memory::MemoryDevice;
pub use mounts::{Mounted, mount_source, mounted, sources_at};
pub use overlay::Overlay;
pub use readonly::ReadOnly;
pub use spec::{Opener, Scheme, open, open_with, parse_size, path_beneath};

use std::time::Duration;

/// The properties of a device: its size and its guarantees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Length in bytes. Requests that end beyond it fail with [`Error::OutOfRange`].
    pub len: u64,
    /// Bytes that the device writes as a whole or not at all: 512 unless the device reports more.
    pub sector: u32,
    /// Writes, flushes and discards fail with [`Error::ReadOnly`].
    pub read_only: bool,
    /// All writes since the last flush survive a loss of power together or not at all, provided that there is no
    /// discard among them, and that they are no more bytes than this, each of them counted in whole
    /// [sectors](Self::sector). 0 without such a guarantee, as for most devices.
    pub group: u64,
}

impl Geometry {
    /// A writable device of `len` bytes with only the guarantees of every device.
    #[must_use]
    pub const fn new(len: u64) -> Self {
        Self { len, sector: 512, read_only: false, group: 0 }
    }

    /// Checks whether a device of this geometry may execute `op` on `len` bytes at `offset`: the one check that every
    /// device makes before anything else. A request of no bytes may be at the very end.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] for a change to a read-only device, [`Error::OutOfRange`] for a request that ends beyond the
    /// device, or beyond 64 bits.
    pub fn admit(&self, op: Op, offset: u64, len: u64) -> Result<()> {
        if self.read_only && matches!(op, Op::Write | Op::Flush | Op::Discard) {
            return Err(Error::ReadOnly(op));
        }
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(Error::OutOfRange { op, offset, len, end: self.len }),
        }
    }
}

/// One read of a batch: fills all of `buf` from `offset`, or stores an error in `result`.
#[derive(Debug)]
pub struct Read<'a> {
    /// First byte on the device.
    pub offset: u64,
    /// The buffer for the bytes; its length is the length of the read.
    pub buf: &'a mut [u8],
    /// The outcome; set by the device.
    pub result: Result<()>,
}

impl<'a> Read<'a> {
    /// Creates a read that has not been made yet.
    pub fn new(offset: u64, buf: &'a mut [u8]) -> Self {
        Self { offset, buf, result: Ok(()) }
    }
}

/// One write of a batch.
#[derive(Debug)]
pub struct Write<'a> {
    /// First byte on the device.
    pub offset: u64,
    /// The bytes.
    pub data: &'a [u8],
    /// The outcome; set by the device.
    pub result: Result<()>,
}

impl<'a> Write<'a> {
    /// Creates a write that has not been made yet.
    pub fn new(offset: u64, data: &'a [u8]) -> Self {
        Self { offset, data, result: Ok(()) }
    }
}

/// Storage addressed in bytes.
///
/// Any alignment is accepted; a device that needs aligned requests (O_DIRECT) copies through its own buffer. All
/// methods may be called from many threads at once. Two overlapping requests in flight have no order.
pub trait BlockDevice: Send + Sync {
    /// The size and the properties. Cheap; constant while the device is open, unless a device documents otherwise.
    fn geometry(&self) -> Geometry;

    /// Fills `buf` from `offset`. Never short: all of it, or an error.
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()>;

    /// Makes all reads, many in flight at once, and returns when each has its `result`. They are submitted to the
    /// device in the order of the slice. One that fails does not stop the others.
    fn read_many(&self, reads: &mut [Read<'_>]) {
        for r in reads {
            r.result = self.read(r.offset, r.buf);
        }
    }

    /// Makes as many of the first reads as need no waiting, because the system has their bytes in memory, and returns
    /// their number; each of these has its `result`. The caller has to make the others. A device without this
    /// information makes none.
    fn read_cached(&self, _reads: &mut [Read<'_>]) -> usize {
        0
    }

    /// Writes `data` at `offset`. When it returns, later reads return the data; a crash may still lose it, completely
    /// or by sectors.
    fn write(&self, offset: u64, data: &[u8]) -> Result<()>;

    /// As [`write`](Self::write), if the previous content is irrelevant: no durable content references these bytes. If
    /// a loss of power loses this write their content is undefined, also on a device that guarantees
    /// [groups](Geometry::group), which then has to write them only once.
    fn write_fresh(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.write(offset, data)
    }

    /// Makes all writes, many in flight at once and in any order, and returns when each has its `result`.
    fn write_many(&self, writes: &mut [Write<'_>]) {
        for w in writes {
            w.result = self.write(w.offset, w.data);
        }
    }

    /// Makes `len` bytes from `offset` read as zeroes, like a write of zeroes, but in the cheapest way the device has.
    /// By default zeroes are written.
    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        const STEP: u64 = 1 << 20;
        self.geometry().admit(Op::Write, offset, len)?;
        let zeroes = vec![0; STEP.min(len) as usize];
        let mut done = 0;
        while done < len {
            let part = STEP.min(len - done);
            self.write(offset + done, &zeroes[..part as usize])?;
            done += part;
        }
        Ok(())
    }

    /// Returns when every write that had returned before this call began is durable. After an error nothing is
    /// guaranteed about any of them, and a repetition proves nothing: the caller must stop writing.
    fn flush(&self) -> Result<()>;

    /// The extent at `offset`, as known without reading: the first of `len` bytes, and as many after it as are of the
    /// same kind: `len` at most, and one at least unless `len` is 0. A device that does not support holes has none.
    fn extent(&self, offset: u64, len: u64) -> Result<Extent> {
        self.geometry().admit(Op::Read, offset, len)?;
        Ok(Extent { len, hole: false })
    }

    /// The time that all requests so far have taken, on a device with a clock of its own, which stops between them.
    /// `None` if requests take real time, as on most devices.
    fn virtual_clock(&self) -> Option<Duration> {
        None
    }

    /// Notifies the device that these bytes are no longer needed; their content is undefined until they are written
    /// again. A device that cannot discard does nothing and returns `Ok`.
    fn discard(&self, offset: u64, len: u64) -> Result<()>;
}
