//! The numbers of a native volume, for callers that only inspect it.

use super::{Mapped, Snapshots, superblock, table};
use crate::Result;
use blockdev::BlockDevice;
use format::native::chunk_table::Chunk;
use format::native::snapshots::Snapshot;
use format::native::superblock::NativeSuperblock;
use format::native::{CHUNK_BLOCKS, Layout};
use std::sync::Arc;

/// A native volume as described by its newest superblock.
#[derive(Debug, Clone)]
pub struct Summary {
    /// The superblock.
    pub superblock: NativeSuperblock,
    /// The block of the superblock on the device: 0 or 1.
    pub copy: u64,
    /// Chunks of the metadata regions.
    pub chunks: u64,
    /// Physical blocks in them.
    pub physical_blocks: u64,
    /// Physical blocks that the newest generation uses, those of the two superblocks among them.
    pub used: u64,
    /// Physical blocks that only snapshots use.
    pub pinned: u64,
    /// The snapshots, in the order of their list.
    pub snapshots: Vec<Snapshot>,
}

impl Summary {
    /// Reads the summary of a volume.
    ///
    /// # Errors
    /// Those of the device, and for a superblock, a map or a table that is not valid.
    pub fn read(device: &Arc<dyn BlockDevice>) -> Result<Self> {
        let (superblock, copy) = superblock(&**device)?;
        let mapped = Mapped::new(Arc::clone(device), &superblock);
        let live: Vec<Chunk> = table(&mapped.map, superblock.chunks)?.into_iter().flatten().collect();
        let snapshots = Snapshots::load(&mapped)?;
        let mut pinned = snapshots.pinned();
        for chunk in &live {
            if let Some(bits) = pinned.get_mut(&chunk.number) {
                bits.iter_mut().zip(chunk.used).for_each(|(pinned, used)| *pinned &= !used);
            }
        }
        Ok(Self {
            copy,
            chunks: live.len() as u64,
            physical_blocks: live.len() as u64 * u64::from(CHUNK_BLOCKS),
            used: live.iter().map(|chunk| u64::from(chunk.count())).sum(),
            pinned: pinned.values().flatten().map(|word| u64::from(word.count_ones())).sum(),
            snapshots: snapshots.list().iter().flatten().cloned().collect(),
            superblock,
        })
    }

    /// Its layout.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.superblock.layout
    }
}
