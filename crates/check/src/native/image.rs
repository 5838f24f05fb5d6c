//! The volume above a map, as a device for the ext4 check.

use super::layer::{PhysicalLayer, SIZE, Version};
use blockdev::{BlockDevice, Error, Geometry, Op, Read, Result};
use format::FsBlock;

/// The volume in a generation's map, as a read-only device.
pub(crate) struct Image<'a> {
    device: &'a dyn BlockDevice,
    below: &'a PhysicalLayer,
    version: &'a Version,
}

impl<'a> Image<'a> {
    /// The volume of one version in the physical layer.
    pub(crate) fn new(device: &'a dyn BlockDevice, below: &'a PhysicalLayer, version: &'a Version) -> Self {
        Self { device, below, version }
    }

    /// Divides a read into parts that are contiguous on the device: the physical offset, `None` for zeros, and the
    /// length.
    fn pieces(&self, offset: u64, len: usize) -> Vec<(Option<u64>, usize)> {
        let layout = &self.below.superblock.layout;
        let mut pieces: Vec<(Option<u64>, usize)> = Vec::new();
        let (mut at, end) = (offset, offset + len as u64);
        while at < end {
            let (block, skip) = (at / SIZE, at % SIZE);
            let part = (SIZE - skip).min(end - at);
            let from = match layout.index_of(FsBlock(block)) {
                None => Some(at),
                Some(index) => self.below.entry(self.version, index).map(|entry| entry.physical * SIZE + skip),
            };
            match pieces.last_mut() {
                Some((Some(last), len)) if from == Some(*last + *len as u64) => *len += part as usize,
                Some((None, len)) if from.is_none() => *len += part as usize,
                _ => pieces.push((from, part as usize)),
            }
            at += part;
        }
        pieces
    }
}

impl BlockDevice for Image<'_> {
    fn geometry(&self) -> Geometry {
        let len = self.below.superblock.layout.logical_blocks() * SIZE;
        Geometry { len, read_only: true, ..self.device.geometry() }
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let mut read = [Read::new(offset, buf)];
        self.read_many(&mut read);
        let [read] = read;
        read.result
    }

    fn read_many(&self, reads: &mut [Read<'_>]) {
        let geometry = self.geometry();
        let mut outcomes: Vec<Result<()>> = Vec::with_capacity(reads.len());
        let mut below: Vec<(usize, Read<'_>)> = Vec::new();
        for (number, read) in reads.iter_mut().enumerate() {
            outcomes.push(geometry.admit(Op::Read, read.offset, read.buf.len() as u64));
            if outcomes.last().is_none_or(Result::is_err) {
                continue;
            }
            let pieces = self.pieces(read.offset, read.buf.len());
            let mut rest = &mut *read.buf;
            for (from, len) in pieces {
                let (part, after) = rest.split_at_mut(len.min(rest.len()));
                match from {
                    Some(from) => below.push((number, Read::new(from, part))),
                    None => part.fill(0),
                }
                rest = after;
            }
        }
        let (numbers, mut batch): (Vec<usize>, Vec<Read<'_>>) = below.into_iter().unzip();
        self.device.read_many(&mut batch);
        for (number, read) in numbers.into_iter().zip(batch) {
            if let (Err(e), Some(outcome)) = (read.result, outcomes.get_mut(number)) {
                *outcome = Err(e);
            }
        }
        reads.iter_mut().zip(outcomes).for_each(|(read, outcome)| read.result = outcome);
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<()> {
        Err(Error::ReadOnly(Op::Write))
    }

    fn flush(&self) -> Result<()> {
        Err(Error::ReadOnly(Op::Flush))
    }

    fn discard(&self, _: u64, _: u64) -> Result<()> {
        Err(Error::ReadOnly(Op::Discard))
    }
}
