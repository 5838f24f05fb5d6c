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
    pub(crate) fn text(&self, transport: &str, polled: Duration) -> String {
        let mut text = format!("{TRANSPORT} {transport}\n{POLLED} {}\n", polled.as_nanos());
        for (kind, name) in opcode::NAMES {
            let count = self.0.get(*kind as usize).map_or(0, |counter| counter.load(Relaxed));
            if count > 0 {
                // a string takes everything
                let _ = writeln!(text, "{name} {count}");
            }
        }
        text
    }
}
