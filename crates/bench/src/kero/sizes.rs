//! The amounts of work and the lengths of devices, all in proportion to the paper's.

use std::ops::RangeInclusive;

const MIB: u64 = 1 << 20;

/// Amounts at one scale. Lengths are in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    /// The device, log included: 8 GiB.
    pub(crate) device: u64,
    /// The log of a layer, and the journal: 1 GiB.
    pub(crate) log: u64,
    /// A log that wraps: a 16th of that.
    pub(crate) short_log: u64,
    /// The log with the table for look-ups: 4 GiB.
    pub(crate) long_log: u64,
    /// The large file: 1 GiB.
    pub(crate) file: u64,
    /// Content after which a generation closes.
    pub(crate) generation: u64,
    /// PostMark's files, and its transactions: 1 000.
    pub(crate) postmark: u64,
    /// Bonnie++'s smallest files: 16 384.
    pub(crate) small: u64,
}

impl Sizes {
    /// The amounts at a fraction of the full size. Each has a minimum, so that every work is possible, and logs have at
    /// most the 4 GiB that is their default limit.
    pub(crate) fn of(scale: f64) -> Self {
        let mib = |full: f64, limits: RangeInclusive<u64>| {
            ((full * scale) as u64).clamp(*limits.start(), *limits.end()) * MIB
        };
        let log = mib(1024.0, 4..=4096);
        let amount = |full: f64, least: u64| ((full * scale) as u64).max(least);
        Self {
            device: mib(8192.0, 64..=1 << 24),
            log,
            short_log: mib(64.0, 4..=4096),
            long_log: mib(4096.0, 4..=4096),
            file: mib(1024.0, 4..=1 << 22),
            generation: (log / 16).min(64 * MIB),
            postmark: amount(1000.0, 10),
            small: amount(16_384.0, 64),
        }
    }
}
