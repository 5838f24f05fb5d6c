//! Writes generations of a native volume: allocates physical blocks for changed metadata blocks and for the nodes of
//! the map above them, and owns the superblock that references them.
//!
//! The engines [`CopyOnWrite`](super::CopyOnWrite) and [`NativeUnordered`](super::NativeUnordered) differ in which
//! blocks may be overwritten and in the order of the writes; the writes themselves are computed here.
//!
//! 1. The set of physical blocks in use is part of the generation: the blocks of the chunk table are mapped like all
//!    others. Allocation changes them, which takes further physical blocks; planning continues until nothing more
//!    changes.
//! 2. Before a generation closes there are physical blocks for all that it can change, and for a generation after it
//!    that only frees: [`MetadataSpace::limits`] bounds the changes, and chunks of the data groups are granted to the
//!    regions in time.
//! 3. A block that a generation changed back to its previous content is not written.

mod build;
mod compact;
mod needs;

use super::Limits;
use crate::mutant::{Injected, Mutant};
use crate::native::{self, ChunkTable, Map, Mapped, Shared, SnapshotChange, Snapshots};
use crate::{
    ClosedGeneration, Compaction, DirtyLimits, Error, Kind, MetadataSpace, Need, PlannedWrite, Result, VolumeState,
};
use format::native::map::{BlockKind, Position};
use format::native::superblock::{COPIES, NativeSuperblock};
use format::native::{BLOCK_SIZE, CHUNK_BLOCKS};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

pub(super) use build::Change;
use needs::CLOSING;
pub(super) use needs::{LEAST_DIRTY, Needs};

/// The time without activity before chunks are returned.
const QUIET: Duration = Duration::from_secs(5);

/// The metadata that may be overwritten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Overwrite {
    /// None: changed blocks get new physical blocks.
    Nothing,
    /// Metadata that no snapshot uses: changed blocks are overwritten in place.
    Live,
}

/// The writes of a generation.
pub(super) struct Written {
    pub(super) writes: Vec<PlannedWrite>,
    /// A new superblock has to reference it.
    pub(super) needs_superblock: bool,
}

/// The metadata of a native volume that is open for writing.
pub(super) struct MapWriter {
    pub(super) map: Arc<Map>,
    pub(super) superblock: NativeSuperblock,
    /// The block that the next superblock is written to.
    next_copy: u64,
    chunk_table: ChunkTable,
    pub(super) snapshots: Snapshots,
    /// The list of snapshots, shared with the users of the volume.
    shared: Arc<Shared>,
    /// Chunks that were granted since the last plan.
    granted: Vec<u32>,
    /// Chunks were added to or removed from the regions since the chunk table was written.
    has_other_chunks: bool,
    /// The generation being written removes a snapshot.
    removed: bool,
    /// The regions have no chunk that can be returned.
    is_compact: bool,
    /// The compaction by the generation that is planned next.
    compaction: Option<Compaction>,
    overwrite: Overwrite,
    /// The maximum number of blocks of a generation, also of one that is open for a transaction.
    pub(super) dirty_blocks: usize,
    transaction_blocks: usize,
    mutant: Injected<Mutant>,
}

impl MapWriter {
    /// Creates the writer of a volume that is in use through `mapped`, with generations of at most `dirty_blocks`
    /// blocks. Reads the chunk table.
    ///
    /// # Errors
    /// Those of the device; [`Error::Format`] for a damaged volume; [`Error::Native`] for one that was in use without
    /// ordered writes and was not unmounted.
    pub(super) fn new(mapped: &Mapped, overwrite: Overwrite, dirty_blocks: usize) -> Result<Self> {
        let (superblock, copy) = native::superblock_to_go_on(&**mapped.device())?;
        if superblock.unordered {
            return Err(Error::Native(
                "it was in use without consistency and was not unmounted; it needs a check: run `extant check -fy`",
            ));
        }
        let map = Arc::clone(&mapped.map);
        let snapshots = Snapshots::load(mapped)?;
        let chunk_table = ChunkTable::new(
            native::table(&map, superblock.chunks)?,
            snapshots.pinned(),
            superblock.reserved,
            Arc::clone(&mapped.regions),
        )?;
        let writer = Self::over(map, superblock, COPIES - 1 - copy, chunk_table, dirty_blocks);
        Ok(Self { snapshots, shared: Arc::clone(&mapped.shared), overwrite, ..writer })
    }

    /// Injects a defect; only before the first plan.
    ///
    /// # Errors
    /// Those of the device.
    #[cfg(feature = "mutants")]
    pub(super) fn mutate(&mut self, mutant: Mutant) -> Result<()> {
        if mutant == Mutant::ReuseNumber {
            self.superblock.generation = native::superblock(&*self.map.device)?.0.generation;
        }
        self.mutant = Injected::new(mutant);
        self.chunk_table.mutant = self.mutant;
        Ok(())
    }

    /// Creates the writer of a volume without snapshots, whose metadata is never overwritten in place.
    pub(super) fn over(
        map: Arc<Map>,
        superblock: NativeSuperblock,
        next_copy: u64,
        chunk_table: ChunkTable,
        dirty_blocks: usize,
    ) -> Self {
        // a small volume cannot reserve space for large generations
        let share = usize::try_from(superblock.layout.blocks() / 64).unwrap_or(usize::MAX).max(LEAST_DIRTY);
        let (snapshots, shared) = Default::default();
        Self {
            map,
            superblock,
            next_copy,
            chunk_table,
            snapshots,
            shared,
            granted: Vec::new(),
            has_other_chunks: false,
            removed: false,
            is_compact: false,
            compaction: None,
            overwrite: Overwrite::Nothing,
            dirty_blocks: dirty_blocks.min(share),
            // its space is requested when it is needed
            transaction_blocks: dirty_blocks,
            mutant: Injected::default(),
        }
    }

    /// The capabilities that both engines have.
    pub(super) fn engine_limits(&self) -> Limits {
        Limits {
            transaction_blocks: self.transaction_blocks,
            wants_forgotten: true,
            elides_unchanged: true,
            ..Limits::new(VolumeState::Clean, self.dirty_blocks)
        }
    }

    /// Computes how many physical blocks are needed in the present state of the volume.
    fn needs(&self) -> Needs<'_> {
        Needs { layout: &self.map.layout, records: self.chunk_table.records(), dirty_blocks: self.dirty_blocks }
    }

    fn has_surplus(&self, compaction: Compaction) -> bool {
        !self.is_compact
            && self.overwrite == Overwrite::Nothing
            && self.chunk_table.emptiest(self.needs().physical_blocks_to_leave(compaction)).is_some()
    }

    /// The maximum number of blocks that a generation may change with this number of physical blocks.
    fn blocks_for(&self, physical_blocks: usize) -> usize {
        let (mut least, mut most) = (0, self.transaction_blocks + CLOSING);
        while least < most {
            let middle = least.midpoint(most + 1);
            if self.needs().worst_case(middle) <= physical_blocks { least = middle } else { most = middle - 1 }
        }
        least.saturating_sub(CLOSING)
    }

    fn limits_with(&self, physical_blocks: usize) -> DirtyLimits {
        let needs = self.needs();
        let (reserve, deletion) = (needs.reserve(), needs.reserve_to_delete());
        let of = |behind: usize| self.blocks_for(physical_blocks.saturating_sub(behind));
        // without snapshots there is none to delete
        let last = if self.snapshots.count() == 0 { 0 } else { deletion };
        DirtyLimits {
            ordinary: of(2 * reserve + last),
            reserved: of(reserve + last),
            freeing: of(last),
            snapshot: of(2 * reserve + deletion),
            deletion: of(0),
        }
    }

    /// The write of the superblock that makes everything before it valid.
    pub(super) fn superblock_write(&mut self) -> PlannedWrite {
        let at = self.next_copy * u64::from(BLOCK_SIZE);
        self.next_copy = COPIES - 1 - self.next_copy;
        PlannedWrite { at, data: Arc::from(self.superblock.to_bytes()), kind: Kind::Engine }
    }

    /// The write of a superblock with the same content and the next number.
    pub(super) fn next_superblock(&mut self) -> PlannedWrite {
        self.superblock.generation += 1;
        self.superblock_write()
    }

    /// Builds a generation from the changes of a closed one.
    pub(super) fn write(&mut self, closed: &ClosedGeneration) -> Result<Written> {
        self.map.shrink_cache();
        self.granted.clear();
        let requests = self.shared.take_requests(closed.number);
        let mut writes = Vec::with_capacity(closed.blocks.len() + 8);
        let mut changes = self.changes(closed, &mut writes)?;
        for request in &requests {
            if let SnapshotChange::Delete { name } = request {
                self.remove_snapshot(name, &mut changes);
            }
        }
        let mut needs_superblock = if let Some(compaction) = self.compaction.take() {
            self.build_compactly(compaction, changes, &mut writes)?
        } else {
            self.is_compact = false;
            // the map of a snapshot has no map log
            if !requests.is_empty() {
                self.build(changes, &self.log_leaves(), &mut writes)?
            } else if self.is_small(&changes)? {
                self.build_small(changes, &mut writes)?
            } else {
                self.build(changes, &[], &mut writes)?
            }
        };
        for request in &requests {
            if let SnapshotChange::Create { name, time } = request {
                needs_superblock |= self.add_snapshot(name, *time, &mut writes)?;
            }
        }
        if !requests.is_empty() {
            self.shared.prepare(self.snapshots.list());
        }
        Ok(Written { writes, needs_superblock })
    }

    /// Writes the entries to the map that only the superblock contains.
    pub(super) fn write_log(&mut self) -> Result<Written> {
        let mut writes = Vec::new();
        let needs_superblock = self.build(BTreeMap::new(), &self.log_leaves(), &mut writes)?;
        Ok(Written { writes, needs_superblock })
    }

    /// The changes of a closed generation, by index, without blocks that it changed back. Writes of blocks that are not
    /// mapped are added to `direct`.
    pub(super) fn changes(
        &self,
        closed: &ClosedGeneration,
        direct: &mut Vec<PlannedWrite>,
    ) -> Result<BTreeMap<u64, Change>> {
        let mut changes = BTreeMap::new();
        for run in &closed.forgotten {
            for block in run.first.get()..run.first.get().saturating_add(run.count) {
                let Some(index) = self.map.layout.index_of(format::FsBlock(block)) else { break };
                if self.map.entry(index)?.is_some() {
                    changes.insert(index, Change::Drop);
                }
            }
        }
        for write in &closed.blocks {
            let Some(index) = self.map.layout.index_of(write.block) else {
                let at = write.block.get().saturating_mul(BLOCK_SIZE.into());
                direct.push(PlannedWrite { at, data: Arc::clone(&write.data), kind: write.tag.kind });
                continue;
            };
            let (kind, owner) = identity(&write.tag);
            if self.is_unchanged(index, kind, owner, &write.data)? {
                changes.remove(&index);
                continue;
            }
            changes.insert(index, Change::Write { kind, owner, data: Arc::clone(&write.data), tag: write.tag.kind });
        }
        Ok(changes)
    }

    /// Creates a snapshot of the generation that was built last: a further one, based on it, has it in its list.
    fn add_snapshot(&mut self, name: &[u8], time: i64, writes: &mut Vec<PlannedWrite>) -> Result<bool> {
        let NativeSuperblock { root, chunks, .. } = self.superblock;
        // the superblock may have a later number than the generation
        let generation = root.generation;
        let record = format::native::snapshots::Snapshot { name: name.to_vec(), root, generation, time, chunks };
        let block = self.snapshots.add(record, self.chunk_table.tables()).ok_or(Error::NoSpace)?;
        self.chunk_table.pin_used();
        self.superblock.snapshots = self.snapshots.count();
        let mut changes = BTreeMap::new();
        self.change_list(block, &mut changes);
        self.build(changes, &[], writes)
    }

    /// Removes a snapshot in the generation under construction; its blocks stay pinned until that is durable.
    fn remove_snapshot(&mut self, name: &[u8], changes: &mut BTreeMap<u64, Change>) {
        if let Some(block) = self.snapshots.remove(name) {
            self.removed = true;
            self.superblock.snapshots = self.snapshots.count();
            self.change_list(block, changes);
        }
    }

    /// Adds the present content of a block of the list of snapshots to the changes.
    pub(super) fn change_list(&self, block: u64, changes: &mut BTreeMap<u64, Change>) {
        let change = match self.snapshots.block(block) {
            None => Change::Drop,
            Some(data) => {
                Change::Write { kind: BlockKind::SnapshotList, owner: 0, data: Arc::from(data), tag: Kind::Engine }
            }
        };
        changes.insert(self.map.layout.list().start + block, change);
    }

    fn is_unchanged(&self, index: u64, kind: BlockKind, owner: u32, data: &[u8]) -> Result<bool> {
        match self.map.entry(index)? {
            None => Ok(data.iter().all(|byte| *byte == 0)),
            // it was freed and allocated again: its content may be the same, but its entry states its kind and owner
            Some(entry) if (entry.kind, entry.owner) != (kind, owner) => Ok(false),
            Some(entry) if entry.checksum == Position::Block(index).checksum(self.map.seed, data) => {
                // equal checksums are no proof
                Ok(self.map.block(index)?.is_some_and(|there| there == data))
            }
            Some(_) => Ok(false),
        }
    }
}

impl MetadataSpace for MapWriter {
    fn limits(&self) -> DirtyLimits {
        self.limits_with(self.chunk_table.allocatable())
    }

    fn limits_behind(&self, blocks: usize) -> DirtyLimits {
        // the next generation cannot use blocks that this one frees before this one is durable
        self.limits_with(self.chunk_table.allocatable().saturating_sub(self.needs().worst_case(blocks + CLOSING)))
    }

    fn wanted_chunks(&self, blocks: usize) -> Need<u64> {
        let allocatable = self.chunk_table.allocatable();
        let chunks = |wanted: usize| wanted.saturating_sub(allocatable).div_ceil(CHUNK_BLOCKS as usize) as u64;
        let needs = self.needs();
        Need {
            must: chunks(needs.physical_blocks_for(blocks, 0)),
            should: chunks(needs.physical_blocks_for(blocks, 2 * blocks)),
        }
    }

    fn grant_chunks(&mut self, chunks: &[u32]) {
        chunks.iter().for_each(|number| self.chunk_table.add(*number));
        self.granted.extend_from_slice(chunks);
        self.has_other_chunks |= !chunks.is_empty();
    }

    fn compaction_after(&self) -> Option<Duration> {
        self.has_surplus(Compaction::Quiet).then_some(QUIET)
    }

    fn compact(&mut self, compaction: Compaction) {
        self.compaction = Some(compaction);
    }

    fn surplus_chunks(&mut self) -> Vec<u32> {
        let Some(compaction) = self.compaction else { return Vec::new() };
        let enough = self.needs().physical_blocks_to_leave(compaction);
        let surplus = self.chunk_table.surplus(enough);
        self.has_other_chunks |= !surplus.is_empty();
        surplus
    }

    fn is_compact(&self) -> bool {
        !self.has_surplus(Compaction::Full)
    }

    fn has_requests(&self, generation: u64) -> bool {
        self.shared.has_requests(generation)
    }

    fn discard(&mut self) {
        self.shared.discard_requests();
        for number in std::mem::take(&mut self.granted) {
            self.chunk_table.remove(number);
        }
    }

    fn durable(&mut self) {
        self.chunk_table.begin();
        if std::mem::take(&mut self.removed) {
            self.chunk_table.set_pinned(self.snapshots.pinned());
        }
    }
}

/// The kind and the owner of a block, for its entry.
fn identity(tag: &crate::Tag) -> (BlockKind, u32) {
    let owner = tag.owner.get();
    match tag.kind {
        Kind::Superblock => (BlockKind::Superblock, 0),
        Kind::Descriptors => (BlockKind::Descriptors, 0),
        Kind::BlockBitmap => (BlockKind::BlockBitmap, 0),
        Kind::InodeBitmap => (BlockKind::InodeBitmap, 0),
        // with sixteen inodes, so no single owner
        Kind::InodeTable => (BlockKind::InodeTable, 0),
        Kind::ExtentNode => (BlockKind::ExtentNode, owner),
        Kind::Indirect => (BlockKind::Indirect, owner),
        Kind::Directory => (BlockKind::Directory, owner),
        Kind::DirectoryIndex => (BlockKind::DirectoryIndex, owner),
        Kind::Attributes => (BlockKind::Attributes, owner),
        Kind::OrphanFile => (BlockKind::OrphanFile, owner),
        Kind::Data | Kind::SpaceMap | Kind::Engine => (BlockKind::Data, owner),
    }
}
