//! The statistics of a connection, read through its mount.

use crate::mount::{is_ours, resolve};
use crate::transport::counters::{ATTRIBUTE, BURSTS, LOW_LATENCY, POLLED, TRANSPORT, WAKING};
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
    /// The time that waking an idle processor took in the last measurement; measured where requests are dense.
    pub waking: Option<Duration>,
    /// The number of bursts of dense requests, at each of which the server decided whether a processor stays awake.
    pub bursts: u64,
    /// The total time for which processors were asked not to sleep (`/dev/cpu_dma_latency`).
    pub low_latency: Duration,
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
        let lines: Vec<_> = text.lines().map(|line| line.split_once(' ')).collect::<Option<_>>()?;
        let value = |name: &str| lines.iter().find(|(first, _)| *first == name).map(|(_, value)| *value);
        // a server of an earlier version omits some
        let number = |name: &str| value(name).map_or(Some(0), |number: &str| number.parse().ok());
        let time = |name: &str| number(name).map(Duration::from_nanos);
        let ours = [TRANSPORT, POLLED, WAKING, BURSTS, LOW_LATENCY];
        let messages = lines.iter().filter(|(name, _)| !ours.contains(name));
        let messages = messages.map(|(name, count)| Some(((*name).to_owned(), count.parse().ok()?)));
        value(POLLED)?;
        Some(Self {
            transport: value(TRANSPORT)?.to_owned(),
            polled: time(POLLED)?,
            waking: Some(time(WAKING)?).filter(|time| !time.is_zero()),
            bursts: number(BURSTS)?,
            low_latency: time(LOW_LATENCY)?,
            messages: messages.collect::<Option<_>>()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::opcode;
    use crate::transport::counters::{AwakeCounts, Counters};

    #[test]
    fn what_is_written_is_read() {
        let counters = Counters::default();
        [opcode::LOOKUP, opcode::STATX, opcode::LOOKUP, 4711].iter().for_each(|kind| counters.count(*kind));
        let micros = Duration::from_micros;
        let awake = AwakeCounts { polled: micros(3), waking: micros(27), bursts: 5, low_latency: micros(8) };
        let read = Statistics::parse(&counters.text("/dev/fuse", &awake)).expect("our own");
        assert_eq!((&read.transport[..], read.polled), ("/dev/fuse", micros(3)));
        assert_eq!((read.waking, read.bursts, read.low_latency), (Some(micros(27)), 5, micros(8)));
        let never = Statistics::parse(&counters.text("/dev/fuse", &AwakeCounts::default())).expect("our own");
        assert_eq!(never.waking, None);
        let earlier = Statistics::parse("transport x\npolled 1\nLOOKUP 2\n").expect("of an earlier version");
        assert_eq!((earlier.bursts, earlier.messages.len()), (0, 1));
        assert_eq!(read.messages, [("LOOKUP".to_owned(), 2), ("STATX".to_owned(), 1)]);
        assert!(opcode::NAMES.iter().all(|(kind, _)| (*kind as usize) < opcode::KINDS));
        for text in ["", "transport\n", "transport x\npolled\n", "transport x\npolled 1\nLOOKUP\n"] {
            assert_eq!(Statistics::parse(text), None, "{text}");
        }
    }
}
