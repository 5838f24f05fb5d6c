//! The lower bound: the bytes that a check needs, read once in disk order, with a checksum over them. No checker that
//! reads them through the same interface can be faster with one thread.

use crate::error::Trying;
use crate::runner::{Worker, timed};
use crate::{Peer, Result, Sample};
use blockdev::Op;
use simdev::Event;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Maximum size of one read in bytes.
const CHUNK: usize = 1 << 20;

/// The bytes that were read, each once: ranges that ascend and neither overlap nor touch.
pub(crate) fn ranges(events: &[Event]) -> Vec<Range<u64>> {
    let reads = events.iter().filter(|e| e.op == Op::Read && e.len > 0);
    let mut all: Vec<Range<u64>> = reads.map(|e| e.offset..e.offset.saturating_add(e.len)).collect();
    all.sort_unstable_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in all {
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}

/// Reads ranges of a file.
#[derive(Debug)]
pub(crate) struct LowerBound {
    path: PathBuf,
    ranges: Vec<Range<u64>>,
    buf: Vec<u8>,
}

impl LowerBound {
    pub(crate) fn new(path: &Path, ranges: Vec<Range<u64>>) -> Self {
        Self { path: path.to_owned(), ranges, buf: vec![0; CHUNK] }
    }

    /// Bytes it reads.
    pub(crate) fn bytes(&self) -> u64 {
        self.ranges.iter().map(|range| range.end - range.start).sum()
    }

    /// The number of contiguous ranges of these bytes.
    pub(crate) fn pieces(&self) -> usize {
        self.ranges.len()
    }

    /// The checksum over all that was read.
    fn read(&mut self) -> Result<u32> {
        let file = File::open(&self.path).trying("open", &self.path)?;
        let mut crc = 0;
        for range in &self.ranges {
            let mut at = range.start;
            while at < range.end {
                let len = usize::try_from(range.end - at).map_or(CHUNK, |left| left.min(CHUNK));
                file.read_exact_at(&mut self.buf[..len], at).trying("read", &self.path)?;
                crc = crc32c::crc32c_append(crc, &self.buf[..len]);
                at += len as u64;
            }
        }
        Ok(crc)
    }
}

impl Peer for LowerBound {
    fn name(&self) -> &'static str {
        "lower-bound"
    }

    fn sample(&mut self) -> Result<Sample> {
        let (crc, sample) = timed(Worker::Thread, || self.read());
        std::hint::black_box(crc?);
        Ok(sample)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(offset: u64, len: u64) -> Event {
        Event { op: Op::Read, offset, len }
    }

    #[test]
    fn ranges_ascend_and_are_joined() {
        let events = [
            read(4096, 4096),
            read(100, 50),
            Event { op: Op::Flush, offset: 0, len: 0 },
            read(8192, 10),
            read(110, 5),
            read(0, 0),
            read(9000, 1),
        ];
        assert_eq!(ranges(&events), [100..150, 4096..8202, 9000..9001]);
        assert_eq!(ranges(&[]), []);
    }

    #[test]
    fn every_byte_is_read_once() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let bytes: Vec<u8> = (0..3 * CHUNK).map(|i| (i * 7 % 251) as u8).collect();
        std::fs::write(file.path(), &bytes).unwrap();
        let size = bytes.len();
        let mut lower_bound = LowerBound::new(file.path(), vec![5..10, 100..size as u64]);
        assert_eq!(lower_bound.bytes(), 5 + size as u64 - 100);
        let expected = crc32c::crc32c_append(crc32c::crc32c(&bytes[5..10]), &bytes[100..]);
        assert_eq!(lower_bound.read().unwrap(), expected);
        assert!(lower_bound.sample().unwrap().cpu.is_some());
        let mut beyond = LowerBound::new(file.path(), vec![0..1, 5..size as u64 + 1]);
        assert!(beyond.sample().is_err());
    }
}
