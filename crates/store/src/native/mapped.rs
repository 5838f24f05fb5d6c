//! The ext4 volume above a map, as a device.

use super::Map;
use super::Regions;
use super::snapshots::Shared;
use blockdev::{BlockDevice, Error, Geometry, Op, Read, Result, Write};
use format::FsBlock;
use format::native::BLOCK_SIZE;
use format::native::map::{Entry, Position};
use format::native::superblock::NativeSuperblock;
use std::io;
use std::sync::Arc;

const SIZE: u64 = BLOCK_SIZE as u64;

/// The ext4 volume of a native volume, or of one of its snapshots. File data can be written; writes of metadata, which
/// go through an engine, are refused.
pub struct Mapped {
    pub(crate) map: Arc<Map>,
    /// Records of the list of snapshots that may be in use, from the superblock.
    pub(crate) count: u32,
    pub(crate) shared: Arc<Shared>,
    /// Chunks of the metadata regions, while the volume is open for writing.
    pub(crate) regions: Arc<Regions>,
}

/// A part of a read that is one request to the underlying device.
struct PhysicalRead<'b> {
    /// The index of the read it belongs to.
    number: usize,
    read: Read<'b>,
    /// The metadata blocks that it reads, whole; empty for file data.
    blocks: Vec<(u64, Entry)>,
}

impl Mapped {
    /// Creates the volume on `device` with a superblock's map; [`Mapped::at`] returns that of a snapshot.
    #[must_use]
    pub fn new(device: Arc<dyn BlockDevice>, superblock: &NativeSuperblock) -> Self {
        let map = Map::new(
            device,
            superblock.layout,
            superblock.seed(),
            Some(superblock.root),
            superblock.map_log.iter().copied().collect(),
        );
        let regions = Arc::new(Regions::new(superblock.layout.chunks()));
        Self { map: Arc::new(map), count: superblock.snapshots, shared: Arc::default(), regions }
    }

    /// Whether any of these blocks of the device belongs to the metadata regions, of the live version or of a snapshot.
    /// Always `false` unless the volume is open for writing.
    #[must_use]
    pub fn is_metadata(&self, blocks: std::ops::Range<u64>) -> bool {
        self.regions.meet(blocks)
    }

    /// The underlying device.
    #[must_use]
    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.map.device
    }

    fn failed(offset: u64, error: crate::Error) -> Error {
        match error {
            crate::Error::Device(error) => error,
            other => {
                let source = io::Error::new(io::ErrorKind::InvalidData, other.to_string());
                Error::Io { op: Op::Read, offset, len: SIZE, source }
            }
        }
    }

    /// Fills `buf` from byte `skip` of a metadata block on.
    fn read_part(&self, index: u64, skip: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        let block = self.map.block(index).map_err(|e| Self::failed(offset, e))?;
        let part = block.as_deref().and_then(|block| block.get(skip..skip + buf.len()));
        match part {
            Some(part) => buf.copy_from_slice(part),
            None => buf.fill(0),
        }
        Ok(())
    }

    /// Splits a read into requests to the device; parts that need none are filled immediately.
    fn cut<'b>(&self, number: usize, offset: u64, buf: &'b mut [u8], parts: &mut Vec<PhysicalRead<'b>>) -> Result<()> {
        let (mut at, mut rest) = (offset, buf);
        while !rest.is_empty() {
            let block = FsBlock(at / SIZE);
            let skip = (at % SIZE) as usize;
            let Some(index) = self.map.layout.index_of(block) else {
                // up to the next mapped block there is only one boundary
                let end = self.map.layout.metadata_start() * SIZE;
                let len = if at < end { end - at } else { SIZE }.min(rest.len() as u64) as usize;
                let (part, after) = rest.split_at_mut(len);
                parts.push(PhysicalRead { number, read: Read::new(at, part), blocks: Vec::new() });
                (at, rest) = (at + len as u64, after);
                continue;
            };
            let len = (SIZE as usize - skip).min(rest.len());
            let mut blocks = Vec::new();
            let mut physical = 0;
            if len == SIZE as usize {
                // as many as are adjacent
                while let Some(entry) = match rest.len() / SIZE as usize > blocks.len() {
                    true => self.entry(block.get() + blocks.len() as u64)?,
                    false => None,
                } {
                    if !blocks.is_empty() && entry.1.physical != physical {
                        break;
                    }
                    physical = entry.1.physical + 1;
                    blocks.push(entry);
                }
            }
            let (part, after) = rest.split_at_mut(len.max(blocks.len() * SIZE as usize));
            (at, rest) = (at + part.len() as u64, after);
            match blocks.first() {
                Some((_, first)) => {
                    parts.push(PhysicalRead { number, read: Read::new(first.physical * SIZE, part), blocks });
                }
                None => self.read_part(index, skip, at, part)?,
            }
        }
        Ok(())
    }

    /// The index and the entry of a block; `None` if it is not mapped or was never written.
    fn entry(&self, block: u64) -> Result<Option<(u64, Entry)>> {
        let Some(index) = self.map.layout.index_of(FsBlock(block)) else { return Ok(None) };
        let entry = self.map.entry(index).map_err(|e| Self::failed(block * SIZE, e))?;
        Ok(entry.map(|entry| (index, entry)))
    }

    /// Checks a part that was read; a block that does not match its entry is read once more, for it may have moved.
    fn check(&self, part: &mut PhysicalRead<'_>) -> Result<()> {
        for ((index, entry), bytes) in part.blocks.iter().zip(part.read.buf.chunks_mut(SIZE as usize)) {
            if Position::Block(*index).checksum(self.map.seed, bytes) != entry.checksum {
                self.read_part(*index, 0, entry.physical * SIZE, bytes)?;
            }
        }
        Ok(())
    }

    /// Accepts writes of file data, whose block numbers are those of the device; refuses all others.
    fn admit_write(&self, offset: u64, len: u64) -> Result<()> {
        self.geometry().admit(Op::Write, offset, len)?;
        let (first, end) = (offset / SIZE, (offset + len).div_ceil(SIZE));
        let layout = &self.map.layout;
        if first < layout.front() || end > layout.metadata_start() {
            return Err(Error::ReadOnly(Op::Write));
        }
        Ok(())
    }
}

impl BlockDevice for Mapped {
    fn geometry(&self) -> Geometry {
        Geometry { len: self.map.layout.logical_blocks() * SIZE, ..self.map.device.geometry() }
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let mut read = [Read::new(offset, buf)];
        self.read_many(&mut read);
        let [read] = read;
        read.result
    }

    fn read_many(&self, reads: &mut [Read<'_>]) {
        let geometry = self.geometry();
        let mut parts = Vec::with_capacity(reads.len());
        let mut failed = Vec::new();
        for (number, read) in reads.iter_mut().enumerate() {
            read.result = Ok(());
            let cut = geometry
                .admit(Op::Read, read.offset, read.buf.len() as u64)
                .and_then(|()| self.cut(number, read.offset, read.buf, &mut parts));
            failed.extend(cut.err().map(|e| (number, e)));
        }
        let mut below: Vec<Read<'_>> = Vec::with_capacity(parts.len());
        for part in &mut parts {
            below.push(Read::new(part.read.offset, &mut *part.read.buf));
        }
        self.map.device.read_many(&mut below);
        let results: Vec<Result<()>> = below.into_iter().map(|read| read.result).collect();
        for (part, result) in parts.iter_mut().zip(results) {
            failed.extend(result.and_then(|()| self.check(part)).err().map(|e| (part.number, e)));
        }
        drop(parts);
        for (number, error) in failed {
            reads[number].result = Err(error);
        }
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.admit_write(offset, data.len() as u64)?;
        self.map.device.write(offset, data)
    }

    fn write_many(&self, writes: &mut [Write<'_>]) {
        if writes.iter().all(|w| self.admit_write(w.offset, w.data.len() as u64).is_ok()) {
            return self.map.device.write_many(writes);
        }
        for w in writes {
            w.result = self.write(w.offset, w.data);
        }
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.admit_write(offset, len)?;
        self.map.device.write_zeroes(offset, len)
    }

    fn flush(&self) -> Result<()> {
        self.map.device.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.admit_write(offset, len)?;
        self.map.device.discard(offset, len)
    }
}
