//! The statistics of a connection, as an attribute of the root: [`Statistics`](crate::Statistics) reads it.

use crate::protocol::opcode;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The attribute of the root as which the counters can be read. Its name is in no namespace that a file system knows,
/// and no list shows it.
pub(crate) const ATTRIBUTE: &str = "extant.fuse";
/// The first words of the lines that are no kinds of messages.
pub(crate) const TRANSPORT: &str = "transport";
pub(crate) const POLLED: &str = "polled";
pub(crate) const WAKING: &str = "waking";
pub(crate) const BURSTS: &str = "bursts";
pub(crate) const LOW_LATENCY: &str = "low-latency";

/// The time that was spent so that requests need not wait for a processor to wake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct AwakeCounts {
    /// The total time that threads were awake with nothing to do.
    pub(crate) polled: Duration,
    /// The time that a wakeup took when that was last measured; 0 before.
    pub(crate) waking: Duration,
    /// So often the helper was called.
    pub(crate) bursts: u64,
    /// The total time for which processors were asked not to sleep.
    pub(crate) low_latency: Duration,
}

/// Messages counted by kind.
pub(crate) struct Counters([AtomicU64; opcode::KINDS]);

impl Default for Counters {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; opcode::KINDS])
    }
}

impl Counters {
    /// A message of a kind came.
    pub(crate) fn count(&self, kind: u32) {
        if let Some(counter) = self.0.get(kind as usize) {
            counter.fetch_add(1, Relaxed);
        }
    }

    /// The attribute's value.
    pub(crate) fn text(&self, transport: &str, awake: &AwakeCounts) -> String {
        let mut text = format!("{TRANSPORT} {transport}\n");
        let times = [(POLLED, awake.polled), (WAKING, awake.waking), (LOW_LATENCY, awake.low_latency)];
        let times = times.map(|(name, time)| (name, time.as_nanos()));
        for (name, number) in times.into_iter().chain([(BURSTS, awake.bursts.into())]) {
            // a string takes everything
            let _ = writeln!(text, "{name} {number}");
        }
        for (kind, name) in opcode::NAMES {
            let count = self.0.get(*kind as usize).map_or(0, |counter| counter.load(Relaxed));
            if count > 0 {
                let _ = writeln!(text, "{name} {count}");
            }
        }
        text
    }
}
