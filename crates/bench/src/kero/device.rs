//! The devices beneath the models, and the parameters of these.

use crate::error::Trying;
use crate::{Error, Result};
use blockdev::{BlockDevice, Extent, FileDevice, Geometry, Op, OpenOptions, Read, Write};
use kero::BLOCK;
use parking_lot::Mutex;
use simdev::Parameters;
use std::collections::HashMap;
use std::fmt::Display;
use std::fs::File;
use std::ops::Range;
use std::path::Path;

/// Bytes of the modelled disk, or more where the device is longer.
const DISK: u64 = 1_465_149_168 * 512;

/// A block of zeroes.
pub(crate) const ZEROES: [u8; BLOCK as usize] = [0; BLOCK as usize];

/// The modelled disk for a device of `len` bytes.
///
/// # Errors
/// Those of the parameters.
pub(crate) fn disk(len: u64) -> Result<Parameters> {
    Ok(Parameters::parse(&format!("kind = disk\ncapacity = {}", len.max(DISK)))?)
}

pub(crate) fn failed(e: impl Display) -> Error {
    Error::Failed(e.to_string())
}

/// A file of which nothing has to be durable: flushes take the time of a model above it, and none of the machine's.
pub(crate) struct Unflushed(FileDevice);

impl Unflushed {
    /// Creates a sparse file of `len` bytes.
    ///
    /// # Errors
    /// Those of the file system.
    pub(crate) fn make(path: &Path, len: u64) -> Result<Self> {
        File::create(path).and_then(|file| file.set_len(len)).trying("make", path)?;
        Ok(Self(FileDevice::open(path, OpenOptions { write: true, ..OpenOptions::default() })?))
    }
}

impl BlockDevice for Unflushed {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> blockdev::Result<()> {
        self.0.read(offset, buf)
    }

    fn read_many(&self, reads: &mut [Read<'_>]) {
        self.0.read_many(reads);
    }

    fn write(&self, offset: u64, data: &[u8]) -> blockdev::Result<()> {
        self.0.write(offset, data)
    }

    fn write_many(&self, writes: &mut [Write<'_>]) {
        self.0.write_many(writes);
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> blockdev::Result<()> {
        self.0.write_zeroes(offset, len)
    }

    fn flush(&self) -> blockdev::Result<()> {
        self.geometry().admit(Op::Flush, 0, 0)
    }

    fn extent(&self, offset: u64, len: u64) -> blockdev::Result<Extent> {
        self.0.extent(offset, len)
    }

    fn discard(&self, offset: u64, len: u64) -> blockdev::Result<()> {
        self.0.discard(offset, len)
    }
}

/// A device that stores only blocks of 4 KiB that are not all zeroes, in memory: of a log full of zeroes its headers.
pub(crate) struct Sparse {
    len: u64,
    blocks: Mutex<HashMap<u64, Box<[u8]>>>,
}

impl Sparse {
    /// Creates a device of `len` bytes, all zeroes.
    pub(crate) fn new(len: u64) -> Self {
        Self { len, blocks: Mutex::default() }
    }
}

/// The parts of a request of `len` bytes: the block of each, its first byte there, and its bytes in the request.
fn parts(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let (at, from) = (offset + done as u64, done);
        let within = (at % BLOCK) as usize;
        done += (len - done).min(BLOCK as usize - within);
        (done > from).then_some((at / BLOCK, within, from..done))
    })
}

impl BlockDevice for Sparse {
    fn geometry(&self) -> Geometry {
        Geometry::new(self.len)
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> blockdev::Result<()> {
        self.geometry().admit(Op::Read, offset, buf.len() as u64)?;
        let blocks = self.blocks.lock();
        for (block, within, range) in parts(offset, buf.len()) {
            let part = &mut buf[range];
            match blocks.get(&block) {
                Some(stored) => part.copy_from_slice(&stored[within..within + part.len()]),
                None => part.fill(0),
            }
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> blockdev::Result<()> {
        self.geometry().admit(Op::Write, offset, data.len() as u64)?;
        let mut blocks = self.blocks.lock();
        for (block, within, range) in parts(offset, data.len()) {
            let part = &data[range];
            if *part == ZEROES[..] {
                blocks.remove(&block);
                continue;
            }
            let stored = blocks.entry(block).or_insert_with(|| ZEROES.as_slice().into());
            stored[within..within + part.len()].copy_from_slice(part);
        }
        Ok(())
    }

    fn flush(&self) -> blockdev::Result<()> {
        self.geometry().admit(Op::Flush, 0, 0)
    }

    fn discard(&self, offset: u64, len: u64) -> blockdev::Result<()> {
        self.geometry().admit(Op::Discard, offset, len)
    }
}
