//! A device that refuses every change, whatever the underlying device would allow.

use std::time::Duration;

use crate::{BlockDevice, Extent, Geometry, Op, Read, Result, Write};

/// Forwards reads; writes, flushes and discards fail with [`crate::Error::ReadOnly`] and never reach the underlying
/// device.
#[derive(Debug)]
pub struct ReadOnly<D>(D);

impl<D: BlockDevice> ReadOnly<D> {
    /// Wraps `device` for reading only.
    pub fn new(device: D) -> Self {
        Self(device)
    }

    /// The underlying device.
    pub fn into_inner(self) -> D {
        self.0
    }
}

impl<D: BlockDevice> BlockDevice for ReadOnly<D> {
    fn geometry(&self) -> Geometry {
        Geometry { read_only: true, ..self.0.geometry() }
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.0.read(offset, buf)
    }

    fn read_many(&self, reads: &mut [Read<'_>]) {
        self.0.read_many(reads);
    }

    fn read_cached(&self, reads: &mut [Read<'_>]) -> usize {
        self.0.read_cached(reads)
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.geometry().admit(Op::Write, offset, data.len() as u64)
    }

    fn write_many(&self, writes: &mut [Write<'_>]) {
        for w in writes {
            w.result = self.write(w.offset, w.data);
        }
    }

    fn flush(&self) -> Result<()> {
        self.geometry().admit(Op::Flush, 0, 0)
    }

    fn extent(&self, offset: u64, len: u64) -> Result<Extent> {
        self.0.extent(offset, len)
    }

    fn virtual_clock(&self) -> Option<Duration> {
        self.0.virtual_clock()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.geometry().admit(Op::Discard, offset, len)
    }
}
