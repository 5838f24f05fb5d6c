//! The statistics of a connection, read through its mount.

use crate::mount::{is_ours, resolve};
use crate::transport::counters::{ATTRIBUTE, POLLED, TRANSPORT};
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::time::Duration;

/// The size of the buffer in bytes, more than any value needs.
const LONGEST: usize = 4096;

/// The statistics of a connection since it was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statistics {
    /// The transport of requests: `io_uring` or `/dev/fuse`.
    pub transport: String,
    /// The total time that threads stayed awake without work.
    pub polled: Duration,
    /// The number of messages by kind, named as in the protocol; without kinds that did not occur.
    pub messages: Vec<(String, u64)>,
}

impl Statistics {
    /// Reads the statistics of the file system mounted on a directory.
    ///
    /// # Errors
    /// No Extant volume is mounted there, its server has ended, or its version has no statistics.
    pub fn of_mount(dir: &Path) -> io::Result<Self> {
        let dir = resolve(dir)?;
        is_ours(&dir)?;
        let mut value = [0; LONGEST];
        let length = rustix::fs::getxattr(&dir, OsStr::new(ATTRIBUTE), &mut value[..])?;
        let text = std::str::from_utf8(value.get(..length).unwrap_or_default()).map_err(io::Error::other)?;
        Self::parse(text)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "its server returned an invalid reply"))
    }

    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines().map(|line| line.split_once(' '));
        let (TRANSPORT, transport) = lines.next()?? else { return None };
        let (POLLED, polled) = lines.next()?? else { return None };
        let messages = lines.map(|line| Some((line?.0.to_owned(), line?.1.parse().ok()?)));
        Some(Self {
            transport: transport.to_owned(),
            polled: Duration::from_nanos(polled.parse().ok()?),
            messages: messages.collect::<Option<_>>()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::opcode;
    use crate::transport::counters::Counters;

    #[test]
    fn what_is_written_is_read() {
        let counters = Counters::default();
        [opcode::LOOKUP, opcode::STATX, opcode::LOOKUP, 4711].iter().for_each(|kind| counters.count(*kind));
        let read = Statistics::parse(&counters.text("/dev/fuse", Duration::from_micros(3))).expect("our own");
        assert_eq!((&read.transport[..], read.polled), ("/dev/fuse", Duration::from_micros(3)));
        assert_eq!(read.messages, [("LOOKUP".to_owned(), 2), ("STATX".to_owned(), 1)]);
        assert!(opcode::NAMES.iter().all(|(kind, _)| (*kind as usize) < opcode::KINDS));
        for text in ["", "transport\n", "transport x\npolled\n", "transport x\npolled 1\nLOOKUP\n"] {
            assert_eq!(Statistics::parse(text), None, "{text}");
        }
    }
}
