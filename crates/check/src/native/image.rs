//! The volume above the map, as a device for the ext4 check.

use super::{Below, SIZE};
use blockdev::{BlockDevice, Error, Geometry, Op, Result};
use format::FsBlock;

/// What the map of the newest generation shows. Refuses writes.
pub(crate) struct Image<'a> {
    device: &'a dyn BlockDevice,
    below: &'a Below,
}

impl<'a> Image<'a> {
    /// The volume above what was read of a device.
    pub(crate) fn new(device: &'a dyn BlockDevice, below: &'a Below) -> Self {
        Self { device, below }
    }
}

impl BlockDevice for Image<'_> {
    fn geometry(&self) -> Geometry {
        let len = self.below.superblock.shape.logical_blocks() * SIZE;
        Geometry { len, read_only: true, ..self.device.geometry() }
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.geometry().admit(Op::Read, offset, buf.len() as u64)?;
        let shape = &self.below.superblock.shape;
        let (mut at, mut rest) = (offset, buf);
        while !rest.is_empty() {
            let (block, skip) = (at / SIZE, at % SIZE);
            let (part, after) = rest.split_at_mut(((SIZE - skip) as usize).min(rest.len()));
            match shape.index_of(FsBlock(block)) {
                None => self.device.read(at, part)?,
                Some(index) => match self.below.entries.get(&index) {
                    Some(entry) => self.device.read(entry.place * SIZE + skip, part)?,
                    None => part.fill(0),
                },
            }
            at += part.len() as u64;
            rest = after;
        }
        Ok(())
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
