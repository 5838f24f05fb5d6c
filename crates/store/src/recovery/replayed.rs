//! The volume read through the copies in its journal.

use super::{LoggedCopy, Recovered};
use blockdev::{BlockDevice, Error, Geometry, Op, Read, Result};
use format::{FsBlock, jbd2};
use std::{collections::BTreeMap, sync::Arc};

/// A volume with its journal replayed: each block that has a newer copy in the journal is read from there. Refuses
/// writes.
pub struct Replayed {
    volume: Arc<dyn BlockDevice>,
    journal: Arc<dyn BlockDevice>,
    block_size: u64,
    copies: Arc<BTreeMap<FsBlock, LoggedCopy>>,
}

/// The first bytes of an escaped block, which its copy in the log lacks.
pub(super) const ESCAPED: [u8; 4] = jbd2::MAGIC.to_be_bytes();

/// The requests for one or more reads, each with the index of the read it is part of.
#[derive(Default)]
struct Parts<'b> {
    volume: Vec<(usize, Read<'b>)>,
    journal: Vec<(usize, Read<'b>)>,
}

impl Replayed {
    /// Creates the view of `volume`, whose journal contains `recovered`.
    pub fn new(volume: Arc<dyn BlockDevice>, recovered: &Recovered) -> Self {
        Self {
            volume,
            journal: Arc::clone(&recovered.journal.device),
            block_size: recovered.journal.block_size.into(),
            copies: Arc::clone(&recovered.copies),
        }
    }

    /// The copies in the range of a read.
    fn copies(&self, offset: u64, len: usize) -> impl Iterator<Item = (u64, LoggedCopy)> {
        let last = (len as u64).checked_sub(1).and_then(|more| offset.checked_add(more));
        // without a last byte, or with one beyond 64 bits, the volume itself is read
        let range = last.map(|last| FsBlock(offset / self.block_size)..=FsBlock(last / self.block_size));
        range
            .into_iter()
            .flat_map(|range| self.copies.range(range))
            .map(|(block, copy)| (block.get() * self.block_size, *copy))
    }

    /// Splits a read at the copies. Bytes that were replaced by an escape are filled in immediately.
    fn split<'b>(&self, number: usize, offset: u64, buf: &'b mut [u8], parts: &mut Parts<'b>) {
        let mut at = offset;
        let mut rest = buf;
        for (start, copy) in self.copies(offset, rest.len()) {
            if start > at {
                let (part, after) = rest.split_at_mut((start - at) as usize);
                parts.volume.push((number, Read::new(at, part)));
                (at, rest) = (start, after);
            }
            let skip = at - start;
            let (part, after) = rest.split_at_mut(((self.block_size - skip) as usize).min(rest.len()));
            at += part.len() as u64;
            rest = after;
            let hidden = if copy.escaped { ESCAPED.get(skip as usize..).unwrap_or_default() } else { &[] };
            let hidden = &hidden[..hidden.len().min(part.len())];
            let (magic, part) = part.split_at_mut(hidden.len());
            magic.copy_from_slice(hidden);
            if !part.is_empty() {
                parts.journal.push((number, Read::new(copy.at + skip + hidden.len() as u64, part)));
            }
        }
        if !rest.is_empty() {
            parts.volume.push((number, Read::new(at, rest)));
        }
    }
}

/// Submits the requests in one batch.
fn submit<'b>(
    device: &dyn BlockDevice,
    parts: Vec<(usize, Read<'b>)>,
) -> impl Iterator<Item = (usize, Error)> + use<'b> {
    let (numbers, mut reads): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
    if !reads.is_empty() {
        device.read_many(&mut reads);
    }
    numbers.into_iter().zip(reads).filter_map(|(number, read)| Some((number, read.result.err()?)))
}

impl BlockDevice for Replayed {
    fn geometry(&self) -> Geometry {
        Geometry { read_only: true, ..self.volume.geometry() }
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        if self.copies(offset, buf.len()).next().is_none() {
            return self.volume.read(offset, buf);
        }
        let mut read = [Read::new(offset, buf)];
        self.read_many(&mut read);
        let [read] = read;
        read.result
    }

    fn read_many(&self, reads: &mut [Read<'_>]) {
        if reads.iter().all(|r| self.copies(r.offset, r.buf.len()).next().is_none()) {
            return self.volume.read_many(reads);
        }
        let mut parts = Parts::default();
        for (number, read) in reads.iter_mut().enumerate() {
            read.result = Ok(());
            self.split(number, read.offset, read.buf, &mut parts);
        }
        let Parts { volume, journal } = parts;
        let failed: Vec<_> = submit(&*self.volume, volume).chain(submit(&*self.journal, journal)).collect();
        for (number, error) in failed {
            reads[number].result = Err(error);
        }
    }

    fn write(&self, _offset: u64, _data: &[u8]) -> Result<()> {
        Err(Error::ReadOnly(Op::Write))
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, _offset: u64, _len: u64) -> Result<()> {
        Err(Error::ReadOnly(Op::Discard))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockdev::MemoryDevice;

    /// Eight blocks of 16 bytes; blocks 2 and 3 have copies in a journal, that of block 3 escaped.
    fn replayed() -> (Replayed, Vec<u8>) {
        let volume: Vec<u8> = (0..128).collect();
        let journal: Vec<u8> = (128..=255).collect();
        let copies = BTreeMap::from([
            (FsBlock(2), LoggedCopy { at: 64, escaped: false }),
            (FsBlock(3), LoggedCopy { at: 16, escaped: true }),
        ]);
        let mut expected = volume.clone();
        expected[32..48].copy_from_slice(&journal[64..80]);
        expected[48..64].copy_from_slice(&journal[16..32]);
        expected[48..52].copy_from_slice(&ESCAPED);
        let device = |bytes| -> Arc<dyn BlockDevice> { Arc::new(MemoryDevice::from_vec(bytes)) };
        let replayed =
            Replayed { volume: device(volume), journal: device(journal), block_size: 16, copies: Arc::new(copies) };
        (replayed, expected)
    }

    #[test]
    fn every_piece_is_read_as_if_replayed() {
        let (device, expected) = replayed();
        for start in 0..=expected.len() {
            for end in start..=expected.len() {
                let mut buf = vec![0; end - start];
                device.read(start as u64, &mut buf).unwrap();
                assert_eq!(buf, expected[start..end], "{start}..{end}");
            }
        }
    }

    #[test]
    fn a_batch_separates_errors_apart() {
        let (device, expected) = replayed();
        let (mut a, mut b, mut c) = ([0; 20], [0; 20], [0; 4]);
        let mut reads = [Read::new(40, &mut a), Read::new(120, &mut b), Read::new(u64::MAX, &mut c)];
        device.read_many(&mut reads);
        assert!(reads[0].result.is_ok() && reads[1].result.is_err() && reads[2].result.is_err());
        assert_eq!(a, expected[40..60]);
    }

    #[test]
    fn nothing_is_written() {
        let (device, _) = replayed();
        assert!(device.geometry().read_only);
        assert!(matches!(device.write(0, &[1]), Err(Error::ReadOnly(Op::Write))));
        assert!(matches!(device.discard(0, 1), Err(Error::ReadOnly(Op::Discard))));
        device.flush().unwrap();
    }
}
