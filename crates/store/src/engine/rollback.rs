//! Rollback to a snapshot: a generation with the snapshot's map and the present list of snapshots.

use super::copy_on_write::landing;
use super::map_writer::{LEAST_DIRTY, MapWriter};
use crate::native::{self, ChunkTable, Mapped, Snapshots, table, unite};
use crate::{BlockWrite, ClosedGeneration, Error, MetadataSpace, Plan, Result};
use format::native::snapshots::{RECORDS, Snapshot as Record};
use format::native::superblock::{COPIES, NativeSuperblock};
use std::sync::Arc;

/// A prepared rollback. The volume must not be in use.
pub struct Rollback {
    metadata: MapWriter,
    /// The maximum number of blocks that the rollback changes.
    blocks: usize,
}

impl Rollback {
    /// Prepares a rollback to a snapshot that changes at most `blocks` blocks of the volume above the map.
    ///
    /// # Errors
    /// Those of the device; [`Error::Format`] for a damaged volume; [`Error::Native`] for one that was in use without
    /// ordered writes and was not unmounted.
    pub fn new(mapped: &Mapped, snapshot: &Record, blocks: usize) -> Result<Self> {
        let (superblock, copy) = native::superblock_to_go_on(&**mapped.device())?;
        if superblock.unordered {
            return Err(Error::Native(
                "it was in use without consistency and was not unmounted; it needs a check: run `extant check -fy`",
            ));
        }
        let snapshots = Snapshots::load(mapped)?;
        let mut pinned = snapshots.pinned();
        // until the rollback is durable, the present generation is the active one
        unite(&mut pinned, table(&mapped.map, superblock.chunks)?.iter().flatten());
        let map = mapped.at(snapshot).map;
        let chunk_table = ChunkTable::new(table(&map, snapshot.chunks)?, pinned, superblock.reserved, Arc::default())?;
        let superblock =
            NativeSuperblock { root: snapshot.root, chunks: snapshot.chunks, map_log: Vec::new(), ..superblock };
        let blocks = blocks + snapshots.list().len().div_ceil(RECORDS);
        let mut metadata = MapWriter::over(map, superblock, COPIES - 1 - copy, chunk_table, blocks.max(LEAST_DIRTY));
        metadata.snapshots = snapshots;
        Ok(Self { metadata, blocks })
    }

    /// The number of chunks that the rollback needs in addition to those of the snapshot: of blocks that neither the
    /// present generation nor any snapshot uses.
    #[must_use]
    pub fn wanted_chunks(&self) -> u64 {
        self.metadata.wanted_chunks(self.blocks).must
    }

    /// Carries out the rollback. `chunks` become the engine's, and `blocks`, ascending, are changed above the map.
    /// Everything is durable when it returns; until then the volume is unchanged.
    ///
    /// # Errors
    /// Those of the device; [`Error::NoSpace`] if the chunks are too few.
    pub fn carry_out(mut self, chunks: &[u32], blocks: Vec<BlockWrite>) -> Result<()> {
        let metadata = &mut self.metadata;
        metadata.grant_chunks(chunks);
        let closed = ClosedGeneration::of(blocks);
        let mut writes = Vec::new();
        let mut changes = metadata.changes(&closed, &mut writes)?;
        for (block, index) in (0..).zip(metadata.map.layout.list()) {
            if metadata.map.entry(index)?.is_some() || metadata.snapshots.block(block).is_some() {
                metadata.change_list(block, &mut changes);
            }
        }
        metadata.superblock.snapshots = metadata.snapshots.count();
        metadata.build(changes, &[], &mut writes)?;
        let device = Arc::clone(&metadata.map.device);
        Plan { stages: landing(metadata, writes), ..Plan::default() }.execute(&*device)
    }
}
