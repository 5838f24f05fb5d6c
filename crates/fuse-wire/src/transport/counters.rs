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
    pub(crate) fn text(&self, transport: &str, polled: Duration) -> String {
        let mut text = format!("{TRANSPORT} {transport}\n{POLLED} {}\n", polled.as_nanos());
        for (kind, name) in opcode::NAMES {
            let count = self.0.get(*kind as usize).map_or(0, |counter| counter.load(Relaxed));
            if count > 0 {
                // writing to a string cannot fail
                let _ = writeln!(text, "{name} {count}");
            }
        }
        text
    }
}
