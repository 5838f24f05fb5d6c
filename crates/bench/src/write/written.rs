//! Figures of the writes to the device: bytes, requests, flushes, and writes that do not begin at the end of the
//! previous one.
//!
//! For the library, writes are counted by a device between it and the volume, for the kernel by
//! [`BlockEvents`](crate::block_events::BlockEvents). In both cases only writes move the assumed position, so that
//! reads, which may or may not be served from a page cache, have no effect.

use blockdev::Op;
use serde::Serialize;
use simdev::Event;

/// The writes and flushes of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Written {
    /// Bytes.
    pub bytes: u64,
    /// Requests.
    pub writes: u64,
    /// Writes that do not begin at the end of the previous one.
    pub seeks: u64,
    /// Flushes of the device's cache.
    pub flushes: u64,
}

impl Written {
    /// The figures of requests in their order.
    pub(crate) fn of(events: &[Event]) -> Self {
        let mut written = Self::default();
        let mut arm = None;
        for event in events {
            match event.op {
                Op::Flush => written.flushes += 1,
                Op::Write if event.len > 0 => {
                    written.bytes += event.len;
                    written.writes += 1;
                    written.seeks += u64::from(arm.is_some_and(|arm| arm != event.offset));
                    arm = Some(event.offset.saturating_add(event.len));
                }
                _ => {}
            }
        }
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_behind_the_last_one_is_no_seek() {
        let at = |op, offset, len| Event { op, offset, len };
        let events = [
            at(Op::Write, 4096, 4096),
            at(Op::Read, 0, 512),
            at(Op::Write, 8192, 10),
            at(Op::Flush, 0, 0),
            at(Op::Write, 8192, 10),
        ];
        assert_eq!(Written::of(&events), Written { bytes: 4116, writes: 3, seeks: 1, flushes: 1 });
    }
}
