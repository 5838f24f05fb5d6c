//! The statistics of a connection, as an extended attribute of the root, which [`Statistics`](crate::Statistics) reads.

use crate::protocol::opcode;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The name of the attribute. It is in no namespace of a file system, and no list contains it.
pub(crate) const ATTRIBUTE: &str = "extant.fuse";
/// The keywords of the lines that are not kinds of messages.
pub(crate) const TRANSPORT: &str = "transport";
pub(crate) const POLLED: &str = "polled";
pub(crate) const WAKING: &str = "waking";
pub(crate) const BURSTS: &str = "bursts";
pub(crate) const LOW_LATENCY: &str = "low-latency";

/// The time spent so that requests need not wait for a processor to wake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct AwakeCounts {
    /// The total time that threads were awake without work.
    pub(crate) polled: Duration,
    /// The time that a wakeup took in the last measurement; 0 before the first.
    pub(crate) waking: Duration,
    /// The number of times that the helper was woken.
    pub(crate) bursts: u64,
    /// The total time for which processors were asked not to sleep.
    pub(crate) low_latency: Duration,
}

/// The number of messages by kind.
pub(crate) struct Counters([AtomicU64; opcode::KINDS]);

impl Default for Counters {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; opcode::KINDS])
    }
}

impl Counters {
    /// Counts a message.
    pub(crate) fn count(&self, kind: u32) {
        if let Some(counter) = self.0.get(kind as usize) {
            counter.fetch_add(1, Relaxed);
        }
    }

    /// The value of the attribute.
    pub(crate) fn text(&self, transport: &str, awake: &AwakeCounts) -> String {
        let mut text = format!("{TRANSPORT} {transport}\n");
        let times = [(POLLED, awake.polled), (WAKING, awake.waking), (LOW_LATENCY, awake.low_latency)];
        let times = times.map(|(name, time)| (name, time.as_nanos()));
        for (name, number) in times.into_iter().chain([(BURSTS, awake.bursts.into())]) {
            // writing to a string cannot fail
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
