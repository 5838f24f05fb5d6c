//! A device that logs every change on its way to the underlying device, so that any state it had, or could have after a
//! loss of power, can be reproduced. The format of the log and its reader are in `log.rs`.
//!
//! 1. A change is logged when the underlying device has completed it; one that failed is not in the log.
//! 2. Changes are made one after the other, batches as wholes: the order of the log is the order of the device. Reads
//!    are not affected by this.
//! 3. Log entries are in the file at the latest when a flush or a mark returns.
//! 4. A log with a gap would be useless: after the log could not be written, every change fails.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter};
use std::path::Path;
// not parking_lot's: a panic while the log is locked must be detected afterwards
use std::sync::{Mutex, MutexGuard, PoisonError};

use xxhash_rust::xxh3::xxh3_128;

use crate::log::{Log, header, kind, parts, record};
use blockdev::{BlockDevice, Error, Geometry, Op, Read, Result, Write};

#[derive(Debug)]
struct Recorder<W> {
    sink: W,
    /// Bytes written to the sink.
    end: u64,
    entries: u64,
    /// The number of each part in the log, by its hash.
    numbers: HashMap<u128, u32>,
    broken: bool,
}

impl<W: io::Write> Recorder<W> {
    fn put(&mut self, kind: u8, body: &[&[u8]]) -> io::Result<()> {
        let len = u32::try_from(body.iter().map(|part| part.len()).sum::<usize>()).map_err(io::Error::other)?;
        let bytes = record(self.end, kind, len, body);
        self.sink.write_all(&bytes)?;
        self.end += bytes.len() as u64;
        self.entries += u64::from(kind != kind::PART);
        if matches!(kind, kind::FLUSH | kind::MARK) { self.sink.flush() } else { Ok(()) }
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        let len = data.len() as u64;
        let mut stored = Vec::new();
        for (at, len) in parts(offset, len) {
            let start = (at - offset) as usize;
            let part = &data[start..start + len as usize];
            let hash = xxh3_128(part);
            let number = match self.numbers.get(&hash) {
                Some(&number) => number,
                None => {
                    let number = u32::try_from(self.numbers.len()).map_err(io::Error::other)?;
                    self.put(kind::PART, &[part])?;
                    self.numbers.insert(hash, number);
                    number
                }
            };
            stored.extend(number.to_le_bytes());
        }
        self.put(kind::WRITE, &[&offset.to_le_bytes(), &len.to_le_bytes(), &stored])
    }

    /// Handles the result of logging; after a failure the log is permanently broken.
    fn settle(&mut self, op: Op, offset: u64, len: u64, done: io::Result<()>) -> Result<()> {
        self.broken |= done.is_err();
        done.map_err(|source| Error::Io { op, offset, len, source })
    }

    fn intact(&self, op: Op, offset: u64, len: u64) -> Result<()> {
        if self.broken {
            let source = io::Error::other("the log of changes could not be written");
            return Err(Error::Io { op, offset, len, source });
        }
        Ok(())
    }
}

/// Logs every write, flush and discard on its way to the underlying device.
#[derive(Debug)]
pub struct Record<D, W: io::Write> {
    device: D,
    recorder: Mutex<Recorder<W>>,
}

impl<D: BlockDevice> Record<D, BufWriter<File>> {
    /// Records `device` in a new file at `path`; an existing file is replaced.
    ///
    /// # Errors
    /// [`Error::Open`] if the file cannot be created or written.
    pub fn create(device: D, path: &Path) -> Result<Self> {
        let refused = |source| Error::Open { device: path.to_string_lossy().into_owned(), source };
        let file = File::create(path).map_err(refused)?;
        Self::new(device, BufWriter::new(file)).map_err(refused)
    }
}

impl<D: BlockDevice> Record<D, Vec<u8>> {
    /// Records `device` in memory.
    pub fn in_memory(device: D) -> Self {
        let geometry = device.geometry();
        let sink = header(geometry.sector, geometry.len);
        Self::with_header(device, sink.len() as u64, sink)
    }

    /// The log so far.
    ///
    /// # Errors
    /// Those of [`Log::parse`], which do not occur.
    pub fn log(&self) -> Result<Log> {
        let bytes = self.recorder().sink.clone();
        Log::parse(bytes)
    }
}

impl<D: BlockDevice, W: io::Write + Send> Record<D, W> {
    /// Records `device` into `sink`.
    ///
    /// # Errors
    /// The sink's error at the header.
    pub fn new(device: D, mut sink: W) -> io::Result<Self> {
        let geometry = device.geometry();
        let header = header(geometry.sector, geometry.len);
        sink.write_all(&header)?;
        Ok(Self::with_header(device, header.len() as u64, sink))
    }
}

impl<D, W: io::Write> Record<D, W> {
    fn with_header(device: D, end: u64, sink: W) -> Self {
        let recorder = Recorder { sink, end, entries: 0, numbers: HashMap::new(), broken: false };
        Self { device, recorder: Mutex::new(recorder) }
    }

    /// Adds a mark with `text` to the log, for example that operation 7 begins or has returned.
    ///
    /// # Errors
    /// [`Error::Io`] if the log cannot be written, as for a failed flush.
    pub fn mark(&self, text: &str) -> Result<()> {
        let mut recorder = self.recorder();
        recorder.intact(Op::Flush, 0, 0)?;
        let done = recorder.put(kind::MARK, &[text.as_bytes()]);
        recorder.settle(Op::Flush, 0, 0, done)
    }

    /// The number of entries in the log: the present point.
    pub fn point(&self) -> u64 {
        self.recorder().entries
    }

    /// The underlying device and the sink, with all of the log in it.
    ///
    /// # Errors
    /// The sink's error at its flush, or an error if the log is broken.
    pub fn finish(self) -> Result<(D, W)> {
        let mut recorder = self.recorder.into_inner().unwrap_or_else(PoisonError::into_inner);
        recorder.intact(Op::Flush, 0, 0)?;
        let done = recorder.sink.flush();
        recorder.settle(Op::Flush, 0, 0, done)?;
        Ok((self.device, recorder.sink))
    }

    fn recorder(&self) -> MutexGuard<'_, Recorder<W>> {
        self.recorder.lock().unwrap_or_else(|poisoned| {
            let mut recorder = poisoned.into_inner();
            recorder.broken = true; // a panic may have left a gap
            recorder
        })
    }
}

impl<D: BlockDevice, W: io::Write> Record<D, W> {
    fn logged(&self, offset: u64, data: &[u8], write: impl FnOnce(&D) -> Result<()>) -> Result<()> {
        let len = data.len() as u64;
        let mut recorder = self.recorder();
        recorder.intact(Op::Write, offset, len)?;
        write(&self.device)?;
        let done = recorder.write(offset, data);
        recorder.settle(Op::Write, offset, len, done)
    }
}

impl<D: BlockDevice, W: io::Write + Send> BlockDevice for Record<D, W> {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.device.read(offset, buf)
    }

    fn read_many(&self, reads: &mut [Read<'_>]) {
        self.device.read_many(reads);
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.logged(offset, data, |device| device.write(offset, data))
    }

    fn write_fresh(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.logged(offset, data, |device| device.write_fresh(offset, data))
    }

    fn write_many(&self, writes: &mut [Write<'_>]) {
        let mut recorder = self.recorder();
        if recorder.broken {
            for w in writes {
                w.result = recorder.intact(Op::Write, w.offset, w.data.len() as u64);
            }
            return;
        }
        self.device.write_many(writes);
        for w in writes.iter_mut().filter(|w| w.result.is_ok()) {
            let len = w.data.len() as u64;
            w.result = recorder.intact(Op::Write, w.offset, len).and_then(|()| {
                let done = recorder.write(w.offset, w.data);
                recorder.settle(Op::Write, w.offset, len, done)
            });
        }
    }

    fn flush(&self) -> Result<()> {
        let mut recorder = self.recorder();
        recorder.intact(Op::Flush, 0, 0)?;
        self.device.flush()?;
        let done = recorder.put(kind::FLUSH, &[]);
        recorder.settle(Op::Flush, 0, 0, done)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        let mut recorder = self.recorder();
        recorder.intact(Op::Discard, offset, len)?;
        self.device.discard(offset, len)?;
        let done = recorder.put(kind::DISCARD, &[&offset.to_le_bytes(), &len.to_le_bytes()]);
        recorder.settle(Op::Discard, offset, len, done)
    }
}
