//! A device that counts the reads of the physical layer, for the statistics of the check.

use crate::report::Scan;
use crate::scan::Counters;
use blockdev::{BlockDevice, Geometry, Read, Result};
use std::time::Instant;

/// The device beneath a physical layer while that is read.
pub(super) struct Counted<'a> {
    device: &'a dyn BlockDevice,
    counters: Counters,
    start: Instant,
}

impl<'a> Counted<'a> {
    pub(super) fn new(device: &'a dyn BlockDevice) -> Self {
        Self { device, counters: Counters::default(), start: Instant::now() }
    }

    /// The cost so far.
    pub(super) fn scan(&self) -> Scan {
        let (bytes, reads, seeks) = self.counters.totals();
        Scan { bytes, reads, seeks, seconds: self.start.elapsed().as_secs_f64(), ..Scan::default() }
    }
}

impl BlockDevice for Counted<'_> {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.counters.count(offset, buf.len() as u64);
        self.device.read(offset, buf)
    }

    fn read_many(&self, reads: &mut [Read<'_>]) {
        reads.iter().for_each(|read| self.counters.count(read.offset, read.buf.len() as u64));
        self.device.read_many(reads);
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.device.write(offset, data)
    }

    fn flush(&self) -> Result<()> {
        self.device.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.device.discard(offset, len)
    }
}
