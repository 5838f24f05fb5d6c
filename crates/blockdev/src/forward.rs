//! A reference, a `Box` and an `Arc` of a device are devices: every method is forwarded, including batches, so that a
//! wrapper around an `Arc<dyn BlockDevice>` has the same queue depth as a wrapper around the device.

use std::sync::Arc;
use std::time::Duration;

use crate::{BlockDevice, Extent, Geometry, Read, Result, Write};

macro_rules! forward {
    ($($pointer:ty),+) => {$(
        impl<D: BlockDevice + ?Sized> BlockDevice for $pointer {
            fn geometry(&self) -> Geometry {
                (**self).geometry()
            }

            fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
                (**self).read(offset, buf)
            }

            fn read_many(&self, reads: &mut [Read<'_>]) {
                (**self).read_many(reads);
            }

            fn read_cached(&self, reads: &mut [Read<'_>]) -> usize {
                (**self).read_cached(reads)
            }

            fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
                (**self).write(offset, data)
            }

            fn write_fresh(&self, offset: u64, data: &[u8]) -> Result<()> {
                (**self).write_fresh(offset, data)
            }

            fn write_many(&self, writes: &mut [Write<'_>]) {
                (**self).write_many(writes);
            }

            fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
                (**self).write_zeroes(offset, len)
            }

            fn flush(&self) -> Result<()> {
                (**self).flush()
            }

            fn extent(&self, offset: u64, len: u64) -> Result<Extent> {
                (**self).extent(offset, len)
            }

            fn virtual_clock(&self) -> Option<Duration> {
                (**self).virtual_clock()
            }

            fn discard(&self, offset: u64, len: u64) -> Result<()> {
                (**self).discard(offset, len)
            }
        }
    )+};
}

forward!(&D, Box<D>, Arc<D>);
