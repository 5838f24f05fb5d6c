//! Requests and statistics, common to the mechanisms.

use std::time::Duration;

use super::parameters::Rate;

/// The range of a request on the device, which was checked to be inside.
#[derive(Debug, Clone, Copy)]
pub(super) struct Extent {
    pub(super) offset: u64,
    pub(super) len: u64,
}

/// A time of the parameters; their limits ensure that it is far below 64 bits.
pub(super) fn nanoseconds(time: Duration) -> u64 {
    time.as_nanos() as u64
}

/// The time for `bytes` at a rate in nanoseconds, rounded up.
pub(super) fn over(rate: Rate, bytes: u64) -> u64 {
    (u128::from(bytes) * 1_000_000_000).div_ceil(u128::from(rate.0.max(1))) as u64
}

/// The statistics of a modelled device: its requests, and their duration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Report {
    /// The virtual clock: the duration of all requests.
    pub time: Duration,
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Discards.
    pub discards: u64,
    /// Flushes.
    pub flushes: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Reads that were served completely from the buffer of the device.
    pub buffered_reads: u64,
    /// Moves of the arm of a disk to another cylinder, other than to the next one in a sequential transfer.
    pub seeks: u64,
    /// The time of these moves, and of head changes.
    pub seek_time: Duration,
    /// The time that the arm then waited for the sector.
    pub rotation_time: Duration,
}
