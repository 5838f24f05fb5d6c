//! Two devices as one, for a log that is not on the device of the data.
//!
//! The whole blocks of the first device come first, then the second one. A flush flushes both.

use std::sync::Arc;

use blockdev::{BlockDevice, Geometry, Op, Read, Result, Write};

use crate::layout::BLOCK;

/// A device followed by another one.
pub struct Joined {
    first: Arc<dyn BlockDevice>,
    second: Arc<dyn BlockDevice>,
    /// The first byte of the second device.
    split: u64,
    geometry: Geometry,
}

impl std::fmt::Debug for Joined {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Joined").field("split", &self.split).field("geometry", &self.geometry).finish()
    }
}

impl Joined {
    /// Joins the whole blocks of `first` with `second` after them.
    #[must_use]
    pub fn new(first: Arc<dyn BlockDevice>, second: Arc<dyn BlockDevice>) -> Self {
        let (a, b) = (first.geometry(), second.geometry());
        let split = a.len / BLOCK * BLOCK;
        let geometry = Geometry {
            len: split.saturating_add(b.len / BLOCK * BLOCK),
            sector: a.sector.min(b.sector),
            read_only: a.read_only || b.read_only,
            group: 0, // the flushes of both are not one atomic flush
        };
        Self { first, second, split, geometry }
    }

    /// The first byte of the second device.
    #[must_use]
    pub fn split(&self) -> u64 {
        self.split
    }

    /// The device of a byte, the offset there, and the number of the `len` bytes on that device.
    fn place(&self, offset: u64, len: u64) -> (&Arc<dyn BlockDevice>, u64, u64) {
        match self.split.checked_sub(offset) {
            Some(before) if before > 0 => (&self.first, offset, len.min(before)),
            _ => (&self.second, offset - self.split, len),
        }
    }

    fn each(
        &self,
        op: Op,
        offset: u64,
        len: u64,
        mut see: impl FnMut(&Arc<dyn BlockDevice>, u64, std::ops::Range<usize>) -> Result<()>,
    ) -> Result<()> {
        self.geometry.admit(op, offset, len)?;
        let mut done = 0;
        while done < len {
            let (device, at, part) = self.place(offset + done, len - done);
            see(device, at, done as usize..(done + part) as usize)?;
            done += part;
        }
        Ok(())
    }

    /// Whether all bytes are on the second device; `None` if they are on both.
    fn side(&self, offset: u64, len: usize) -> Option<bool> {
        if offset >= self.split {
            return Some(true);
        }
        (offset.saturating_add(len as u64) <= self.split).then_some(false)
    }
}

impl BlockDevice for Joined {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.each(Op::Read, offset, buf.len() as u64, |device, at, part| match buf.get_mut(part) {
            Some(part) => device.read(at, part),
            None => Ok(()),
        })
    }

    fn read_many(&self, reads: &mut [Read<'_>]) {
        for (side, device) in [(false, &self.first), (true, &self.second)] {
            let from = if side { self.split } else { 0 };
            let (geometry, mut these, mut owners) = (self.geometry, Vec::new(), Vec::new());
            for (number, read) in reads.iter_mut().enumerate() {
                if self.side(read.offset, read.buf.len()) == Some(side) {
                    if let Err(error) = geometry.admit(Op::Read, read.offset, read.buf.len() as u64) {
                        read.result = Err(error);
                        continue;
                    }
                    these.push(Read::new(read.offset - from, read.buf));
                    owners.push(number);
                }
            }
            device.read_many(&mut these);
            let results: Vec<Result<()>> = these.into_iter().map(|read| read.result).collect();
            for (number, result) in owners.into_iter().zip(results) {
                if let Some(read) = reads.get_mut(number) {
                    read.result = result;
                }
            }
        }
        for read in reads.iter_mut().filter(|read| self.side(read.offset, read.buf.len()).is_none()) {
            read.result = self.read(read.offset, read.buf);
        }
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.each(Op::Write, offset, data.len() as u64, |device, at, part| {
            device.write(at, data.get(part).unwrap_or_default())
        })
    }

    fn write_fresh(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.each(Op::Write, offset, data.len() as u64, |device, at, part| {
            device.write_fresh(at, data.get(part).unwrap_or_default())
        })
    }

    fn write_many(&self, writes: &mut [Write<'_>]) {
        // fresh blocks are written home, on the first device
        let inside = writes.iter().all(|write| self.side(write.offset, write.data.len()) == Some(false));
        if inside && !self.geometry.read_only {
            return self.first.write_many(writes);
        }
        for write in writes {
            write.result = self.write(write.offset, write.data);
        }
    }

    fn flush(&self) -> Result<()> {
        self.geometry.admit(Op::Flush, 0, 0)?;
        // at the same time: each may take as long as a revolution of a disk
        std::thread::scope(|scope| {
            let first = std::thread::Builder::new().spawn_scoped(scope, || self.first.flush());
            let second = self.second.flush();
            let first = match first {
                Ok(first) => first.join().unwrap_or_else(|_| Err(panicked())),
                Err(_) => self.first.flush(),
            };
            first.and(second)
        })
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.each(Op::Discard, offset, len, |device, at, part| device.discard(at, part.len() as u64))
    }
}

fn panicked() -> blockdev::Error {
    let source = std::io::Error::other("the request panicked");
    blockdev::Error::Io { op: Op::Flush, offset: 0, len: 0, source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockdev::MemoryDevice;

    fn joined() -> Joined {
        let device = |len| Arc::new(MemoryDevice::zeroed(len).unwrap()) as Arc<dyn BlockDevice>;
        Joined::new(device(3 * BLOCK + 100), device(2 * BLOCK + 7))
    }

    #[test]
    fn bytes_lie_on_one_or_the_other() {
        let joined = joined();
        assert_eq!((joined.geometry().len, joined.split()), (5 * BLOCK, 3 * BLOCK));
        let bytes: Vec<u8> = (0..5 * BLOCK).map(|at| (at / 100) as u8).collect();
        joined.write(0, &bytes).unwrap();
        let (mut first, mut second) = (vec![0; 3 * BLOCK as usize], vec![0; 2 * BLOCK as usize]);
        joined.first.read(0, &mut first).unwrap();
        joined.second.read(0, &mut second).unwrap();
        assert!([first, second].concat() == bytes);
        let mut parts = [vec![0; 50], vec![0; 5000], vec![0; 9], vec![0; 9]];
        let [a, b, c, d] = &mut parts;
        let mut reads =
            [Read::new(7, a), Read::new(3 * BLOCK - 2000, b), Read::new(4 * BLOCK, c), Read::new(5 * BLOCK - 8, d)];
        joined.read_many(&mut reads);
        let results = reads.map(|read| read.result.is_ok());
        assert_eq!(results, [true, true, true, false]);
        for (at, part) in [7, 3 * BLOCK as usize - 2000, 4 * BLOCK as usize].into_iter().zip(&parts) {
            assert_eq!(part[..], bytes[at..at + part.len()]);
        }
        let mut writes = [Write::new(0, &[1; 8]), Write::new(3 * BLOCK - 4, &[2; 8])];
        joined.write_many(&mut writes);
        assert!(writes.iter().all(|write| write.result.is_ok()));
        let mut found = [0; 8];
        joined.read(3 * BLOCK - 4, &mut found).unwrap();
        assert_eq!(found, [2; 8]);
        joined.flush().unwrap();
        joined.discard(2 * BLOCK, 2 * BLOCK).unwrap();
        assert!(joined.write(5 * BLOCK, &[0]).is_err());
    }
}
