//! The log of a recorded device: the changes, in order, with their bytes.
//!
//! A log is a header followed by records; all numbers are little-endian. The header, 32 bytes:
//!
//! | offset | bytes | content |
//! | --- | --- | --- |
//! | 0 | 8 | `EXTANTLG` |
//! | 8 | 4 | version, 1 |
//! | 12 | 4 | sector size of the device |
//! | 16 | 8 | length of the device in bytes |
//! | 24 | 8 | XXH3-64 of the preceding 24 bytes |
//!
//! A record:
//!
//! | offset | bytes | content |
//! | --- | --- | --- |
//! | 0 | 1 | kind |
//! | 1 | 4 | length of the body, n |
//! | 5 | n | body |
//! | 5 + n | 8 | XXH3-64 of the preceding bytes, from the kind on; its seed is the record's offset in the log |
//!
//! | kind | content | body |
//! | --- | --- | --- |
//! | 1 | part: bytes that were written, 1 to 4096; parts are numbered from 0 in the order of the log | the bytes |
//! | 2 | write | offset on the device (8), length (8), the number (4) of each part |
//! | 3 | flush | none |
//! | 4 | discard | offset (8), length (8) |
//! | 5 | mark: a text by the program that made the changes | text in UTF-8 |
//!
//! A write is split into parts at multiples of 4096 bytes on the device, and a part with the same bytes as an earlier
//! one is referenced, not stored again; hence the length of a log is about that of the distinct data written. The epoch
//! of an entry is the number of flushes before it.
//!
//! A log may end anywhere, as the recording process may have been killed: the first record that is incomplete, or has a
//! wrong checksum, and everything after it are ignored.

use std::ops::Range;
use std::path::Path;

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use blockdev::{BlockDevice, Error, Op, Result};

pub(crate) const MAGIC: &[u8; 8] = b"EXTANTLG";
pub(crate) const VERSION: u32 = 1;
/// The length of a part, unless the write begins or ends inside it.
pub(crate) const PART: u64 = 4096;

pub(crate) mod kind {
    pub(crate) const PART: u8 = 1;
    pub(crate) const WRITE: u8 = 2;
    pub(crate) const FLUSH: u8 = 3;
    pub(crate) const DISCARD: u8 = 4;
    pub(crate) const MARK: u8 = 5;
}

/// The parts of a write of `len` bytes at `offset`: the offset of each on the device, and its length.
pub(crate) fn parts(offset: u64, len: u64) -> impl Iterator<Item = (u64, u64)> {
    let end = offset.saturating_add(len);
    let mut at = offset;
    std::iter::from_fn(move || {
        let part = (at, (PART - at % PART).min(end - at));
        at += part.1;
        (part.1 > 0).then_some(part)
    })
}

/// The header of a log of a device.
pub(crate) fn header(sector: u32, len: u64) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend(sector.to_le_bytes());
    bytes.extend(len.to_le_bytes());
    let check = xxh3_64(&bytes);
    bytes.extend(check.to_le_bytes());
    bytes
}

/// Encodes a record at byte `offset` of the log.
pub(crate) fn record(offset: u64, kind: u8, len: u32, body: &[&[u8]]) -> Vec<u8> {
    let mut bytes = vec![kind];
    bytes.extend(len.to_le_bytes());
    body.iter().for_each(|part| bytes.extend_from_slice(part));
    let check = xxh3_64_with_seed(&bytes, offset);
    bytes.extend(check.to_le_bytes());
    bytes
}

/// One entry of a [`Log`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The number of flushes before it. Changes of one epoch may reach the storage in any order; when a flush has
    /// returned, all changes of its epoch and of earlier ones have reached it.
    pub epoch: u64,
    /// The operation or mark.
    pub what: Logged,
}

/// The operation or mark that an [`Entry`] records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Logged {
    /// A completed write; [`Log::parts`] has the bytes.
    Write {
        /// First byte on the device.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// A completed flush.
    Flush,
    /// A completed discard.
    Discard {
        /// First byte on the device.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// A text by the program at that point.
    Mark(String),
}

/// A log, read completely into memory.
#[derive(Debug)]
pub struct Log {
    bytes: Vec<u8>,
    sector: u32,
    len: u64,
    entries: Vec<Entry>,
    /// For each entry the range of its part numbers in `bytes`; empty unless it is a write.
    numbers: Vec<Range<usize>>,
    /// The range of each part in `bytes`.
    parts: Vec<Range<usize>>,
    end: usize,
}

/// Reads fixed fields from the start of a body.
fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

impl Log {
    /// Reads the log at `path`.
    ///
    /// # Errors
    /// [`Error::Open`] if the file cannot be read, otherwise those of [`Log::parse`].
    pub fn open(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path)
            .map_err(|source| Error::Open { device: path.to_string_lossy().into_owned(), source })?;
        Self::parse(bytes)
    }

    /// Parses a log in memory.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it does not begin with the header of a log, or if the content of a record with a valid
    /// checksum is impossible: such a log was not made by [`crate::Record`]. A torn tail is not an error.
    pub fn parse(bytes: Vec<u8>) -> Result<Self> {
        let wrong = |what| Error::Corrupt { what, offset: 0 };
        let head =
            bytes.get(..24).filter(|head| head.starts_with(MAGIC)).ok_or(wrong("not a log of a recorded device"))?;
        if number(&bytes, 24).map(u64::from_le_bytes) != Some(xxh3_64(head)) {
            return Err(wrong("log header with a wrong checksum"));
        }
        if number(&bytes, 8).map(u32::from_le_bytes) != Some(VERSION) {
            return Err(wrong("log of an unknown version"));
        }
        let sector = u32::from_le_bytes(number(&bytes, 12).unwrap_or_default());
        let len = u64::from_le_bytes(number(&bytes, 16).unwrap_or_default());
        let mut log = Self {
            sector,
            len,
            entries: Vec::new(),
            numbers: Vec::new(),
            parts: Vec::new(),
            end: header(sector, len).len(),
            bytes,
        };
        let mut epoch = 0;
        while let Some((kind, body)) = log.whole_record(log.end) {
            let what = log
                .interpret(kind, body.clone())
                .ok_or(Error::Corrupt { what: "record that contradicts the log", offset: log.end as u64 })?;
            log.end = body.end + 8;
            let Some(what) = what else { continue };
            let numbers = if kind == kind::WRITE { body.start + 16..body.end } else { 0..0 };
            let flushed = what == Logged::Flush;
            log.entries.push(Entry { epoch, what });
            log.numbers.push(numbers);
            epoch += u64::from(flushed);
        }
        Ok(log)
    }

    /// The kind and the range of the body of the record at `at`; `None` if it is incomplete.
    fn whole_record(&self, at: usize) -> Option<(u8, Range<usize>)> {
        let kind = *self.bytes.get(at)?;
        let len = u32::from_le_bytes(number(&self.bytes, at + 1)?);
        let body = at + 5..(at + 5).checked_add(len as usize)?;
        let check = u64::from_le_bytes(number(&self.bytes, body.end)?);
        (xxh3_64_with_seed(self.bytes.get(at..body.end)?, at as u64) == check).then_some((kind, body))
    }

    /// Interprets a record: `Some(None)` for a part, which is not an entry of its own; `None` for invalid content.
    fn interpret(&mut self, kind: u8, body: Range<usize>) -> Option<Option<Logged>> {
        let bytes = self.bytes.get(body.clone())?;
        let extent = || {
            let offset = u64::from_le_bytes(number(bytes, 0)?);
            let len = u64::from_le_bytes(number(bytes, 8)?);
            (offset.checked_add(len)? <= self.len).then_some((offset, len))
        };
        match kind {
            kind::PART => {
                self.parts.push(body);
                Some(None)
            }
            kind::WRITE => {
                let (offset, len) = extent()?;
                let numbers = bytes.get(16..)?;
                let expected = parts(offset, len).map(Some).chain(std::iter::repeat(None));
                let mut rest = len;
                for (number, part) in numbers.chunks(4).zip(expected) {
                    let number = u32::from_le_bytes(number.try_into().ok()?);
                    let stored = self.parts.get(number as usize)?.len() as u64;
                    rest -= part.filter(|(_, len)| *len == stored)?.1;
                }
                (rest == 0).then_some(Some(Logged::Write { offset, len }))
            }
            kind::FLUSH => bytes.is_empty().then_some(Some(Logged::Flush)),
            kind::DISCARD => {
                let (offset, len) = extent().filter(|_| bytes.len() == 16)?;
                Some(Some(Logged::Discard { offset, len }))
            }
            kind::MARK => Some(Some(Logged::Mark(String::from_utf8(bytes.to_vec()).ok()?))),
            _ => None,
        }
    }

    /// The length in bytes of the recorded device.
    pub fn device_len(&self) -> u64 {
        self.len
    }

    /// The sector size in bytes of the recorded device.
    pub fn sector(&self) -> u32 {
        self.sector
    }

    /// All entries in their order. A point in the log is a number of entries from the first on.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The number of bytes at the end of the log that are ignored because they are torn; 0 for a completed log.
    pub fn torn(&self) -> u64 {
        (self.bytes.len() - self.end) as u64
    }

    /// The parts of the write in entry `index`, from its first byte to its last: the first byte of each on the device,
    /// and its bytes, split at multiples of 4096. None for an entry that is not a write, or does not exist.
    pub fn parts(&self, index: usize) -> impl Iterator<Item = (u64, &[u8])> {
        let offset = match self.entries.get(index).map(|entry| &entry.what) {
            Some(Logged::Write { offset, .. }) => *offset,
            _ => 0,
        };
        let numbers = self.numbers.get(index).cloned().unwrap_or_default();
        let stored = self.bytes[numbers].chunks_exact(4).map(|n| u32::from_le_bytes([n[0], n[1], n[2], n[3]]));
        stored.scan(offset, |at, number| {
            let part = &self.bytes[self.parts[number as usize].clone()]; // both were checked by `parse`
            let start = *at;
            *at += part.len() as u64;
            Some((start, part))
        })
    }

    /// Applies entry `index` to `device`; no effect for a mark or an index beyond the log.
    ///
    /// # Errors
    /// Those of the device.
    pub fn apply(&self, index: usize, device: &dyn BlockDevice) -> Result<()> {
        match self.entries.get(index).map(|entry| &entry.what) {
            Some(Logged::Write { .. }) => self.parts(index).try_for_each(|(at, bytes)| device.write(at, bytes)),
            Some(Logged::Flush) => device.flush(),
            Some(Logged::Discard { offset, len }) => device.discard(*offset, *len),
            Some(Logged::Mark(_)) | None => Ok(()),
        }
    }

    /// Applies the first `point` entries to `device`, which has the initial content of the recorded device. Afterwards
    /// it has the content of the recorded device at that point, except for discarded bytes.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if `device` is shorter than the recorded one, and those of the device.
    pub fn replay_to(&self, point: usize, device: &dyn BlockDevice) -> Result<()> {
        device.geometry().admit(Op::Write, 0, self.len)?;
        (0..point.min(self.entries.len())).try_for_each(|index| self.apply(index, device))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A log with these records, each with its correct checksum.
    fn log(records: &[(u8, &[u8])]) -> Result<Log> {
        let mut bytes = header(512, 10_000);
        for (kind, body) in records {
            bytes.extend(record(bytes.len() as u64, *kind, body.len() as u32, &[body]));
        }
        Log::parse(bytes)
    }

    fn write(offset: u64, len: u64, numbers: &[u32]) -> Vec<u8> {
        let numbers = numbers.iter().flat_map(|n| n.to_le_bytes());
        offset.to_le_bytes().into_iter().chain(len.to_le_bytes()).chain(numbers).collect()
    }

    #[test]
    fn records_that_contradict_the_log_are_refused() {
        let part = (kind::PART, &[7; 4096][..]);
        assert_eq!(log(&[part, (kind::WRITE, &write(4096, 4096, &[0]))]).unwrap().entries().len(), 1);
        let wrong: [(u8, &[u8]); 15] = [
            (kind::WRITE, &write(4096, 4096, &[1])),     // no such part
            (kind::WRITE, &write(4096, 4096, &[])),      // too few
            (kind::WRITE, &write(4096, 4096, &[0, 0])),  // too many
            (kind::WRITE, &write(4096, 4095, &[0])),     // too long
            (kind::WRITE, &write(4097, 4096, &[0, 0])),  // split elsewhere
            (kind::WRITE, &write(8192, 4096, &[0])),     // beyond the end
            (kind::WRITE, &write(u64::MAX, 4096, &[0])), // far beyond
            (kind::WRITE, &write(0, u64::MAX, &[0])),
            (kind::WRITE, &write(4096, 4096, &[0])[..19]), // a part of a number
            (kind::WRITE, &[0; 15]),
            (kind::FLUSH, &[0]),
            (kind::DISCARD, &write(0, 10_001, &[])),
            (kind::DISCARD, &write(0, 0, &[0])),
            (kind::MARK, &[0xff]),
            (99, &[]),
        ];
        for (n, record) in wrong.into_iter().enumerate() {
            let Err(Error::Corrupt { offset, .. }) = log(&[part, record]) else { panic!("{n}: {record:?}") };
            assert_eq!(offset, 32 + 4096 + 13);
        }
    }

    #[test]
    fn parts_are_cut_where_the_device_is() {
        let cut = |offset, len| parts(offset, len).collect::<Vec<_>>();
        assert_eq!(cut(0, 0), []);
        assert_eq!(cut(4096, 8192), [(4096, 4096), (8192, 4096)]);
        assert_eq!(cut(4095, 4098), [(4095, 1), (4096, 4096), (8192, 1)]);
        assert_eq!(cut(u64::MAX - 1, 1), [(u64::MAX - 1, 1)]);
    }

    #[test]
    fn a_record_moved_elsewhere_is_torn() {
        let mut bytes = header(512, 10_000);
        let flush = record(bytes.len() as u64, kind::FLUSH, 0, &[]);
        bytes.extend_from_slice(&flush);
        bytes.extend_from_slice(&flush);
        let log = Log::parse(bytes).unwrap();
        assert_eq!((log.entries().len(), log.torn()), (1, flush.len() as u64));
    }
}
