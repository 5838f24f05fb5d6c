//! Meta-data snapshotting (Soares, Krieger, Da Silva: *Meta-data Snapshotting: A Simple Mechanism for File System
//! Consistency*), on the native format.
//!
//! A generation's plan gives new places to all blocks that it changed and to the nodes of the map above them, writes them as
//! one run where there is one, and flushes; then it writes the superblock that makes them count, over the older of the two,
//! and flushes. So the device holds a whole generation at every instant, and a mount has nothing to recover.
//!
//! 1. Nothing that the newest durable generation leads to is written over: places that a generation leaves are given out
//!    again only by the one that is planned after its superblock is durable. (File data that is overwritten in its place is
//!    the exception, as in every mode.)
//! 2. Which places are in use is part of the generation: the blocks of the place table are mapped blocks like all others.
//!    Giving out places changes them, which takes places in turn; the plan goes on until nothing more changes.
//! 3. Before a generation closes there are places for all it can change, and for a generation after it that only frees:
//!    [`Engine::room`] says how much may be changed, chunks of the data groups join the regions in time.
//! 4. A block that a generation changed back to what it was is not written.
//!
//! `none` on the same format measures what this costs: blocks are written over in their places where no snapshot holds
//! them, and nothing is ordered.

mod build;
mod needs;
mod rollback;
mod tidy;

pub use rollback::Rollback;

use super::{Broken, Engine, Idle, Limits};
use crate::native::{Map, Mapped, Places, Shared};
use crate::{
    Cause, Client, ClosedGeneration, Error, Kind, Mark, Need, Plan, PlannedWrite, Result, Room, Stage, VersionChange,
};
use crate::{native, native::Snapshots};
use blockdev::{BlockDevice, MemoryDevice};
use build::Change;
use format::native::map::{BlockKind, Position};
use format::native::superblock::{COPIES, NativeSuperblock};
use format::native::{BLOCK_SIZE, CHUNK_BLOCKS, HEAD};
use needs::{CLOSING, LEAST_DIRTY, Needs};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How long nothing has to happen before chunks are given back.
const QUIET: Duration = Duration::from_secs(5);

/// The engines `snapshot`, and `none` on the native format.
pub struct Snapshot {
    map: Arc<Map>,
    superblock: NativeSuperblock,
    /// The block that the next superblock is written to.
    next_copy: u64,
    places: Places,
    snapshots: Snapshots,
    /// What others see of the list of snapshots.
    shared: Arc<Shared>,
    /// Chunks that were given since the last plan.
    joined: Vec<u32>,
    /// The regions have got or lost a chunk since the place table was written.
    has_other_chunks: bool,
    /// The generation on its way leaves a snapshot out.
    removed: bool,
    /// The regions have no chunk that can be spared.
    is_tidy: bool,
    /// Without order, over the old places.
    in_place: bool,
    limits: Limits,
    broken: Broken,
}

impl Snapshot {
    /// The engine of a volume that is in use through `mapped`, with generations of at most `dirty_blocks` blocks. Without
    /// `ordered` it is `none`. Reads the place table.
    ///
    /// # Errors
    /// Those of the device; [`Error::Format`] for a damaged volume; [`Error::Native`] where one that was in use without
    /// order was not put away.
    pub fn new(mapped: &Mapped, ordered: bool, dirty_blocks: usize) -> Result<Self> {
        let (superblock, copy) = native::superblock_to_go_on(&**mapped.below())?;
        if superblock.unordered {
            return Err(Error::Native("it was in use without consistency and was not unmounted; it needs a check"));
        }
        let map = Arc::clone(&mapped.map);
        let snapshots = Snapshots::load(mapped)?;
        let places = Places::new(
            native::table(&map, superblock.chunks)?,
            snapshots.held(),
            superblock.reserved,
            Arc::clone(&mapped.regions),
        )?;
        let engine = Self::over(map, superblock, COPIES - 1 - copy, places, ordered, dirty_blocks);
        Ok(Self { snapshots, shared: Arc::clone(&mapped.shared), ..engine })
    }

    /// Does wrong from now on; only before the first plan.
    ///
    /// # Errors
    /// Those of the device.
    #[doc(hidden)]
    pub fn break_as(&mut self, broken: Broken, mapped: &Mapped) -> Result<()> {
        self.places.reuse_at_once = broken.reuse_places;
        if broken.reuse_number {
            self.superblock.generation = native::superblock(&**mapped.below())?.0.generation;
        }
        self.broken = broken;
        Ok(())
    }

    fn over(
        map: Arc<Map>,
        superblock: NativeSuperblock,
        next_copy: u64,
        places: Places,
        ordered: bool,
        dirty_blocks: usize,
    ) -> Self {
        // a small volume cannot keep room for large generations
        let share = usize::try_from(superblock.shape.blocks() / 64).unwrap_or(usize::MAX).max(LEAST_DIRTY);
        let limits = Limits {
            dirty_blocks: dirty_blocks.min(share),
            // its room is made when it is needed
            held_blocks: dirty_blocks,
            journals_data: false,
            wants_forgotten: true,
            in_use: Mark::Clean,
            holds_content: ordered,
            atomic: ordered,
        };
        let (snapshots, shared) = Default::default();
        Self {
            map,
            superblock,
            next_copy,
            places,
            snapshots,
            shared,
            joined: Vec::new(),
            has_other_chunks: false,
            removed: false,
            is_tidy: false,
            in_place: !ordered,
            limits,
            broken: Broken::default(),
        }
    }

    /// Reckons how many places are needed, as the volume is now.
    fn needs(&self) -> Needs<'_> {
        Needs { shape: &self.map.shape, records: self.places.records(), dirty_blocks: self.limits.dirty_blocks }
    }

    fn has_nothing_to_spare(&self, cause: Cause) -> bool {
        self.is_tidy || self.in_place || self.places.emptiest(self.needs().room_to_leave(cause)).is_none()
    }

    /// The most blocks that a generation may change with so many places.
    fn blocks_for(&self, places: usize) -> usize {
        let (mut least, mut most) = (0, self.limits.held_blocks + CLOSING);
        while least < most {
            let middle = least.midpoint(most + 1);
            if self.needs().worst_case(middle) <= places { least = middle } else { most = middle - 1 }
        }
        least.saturating_sub(CLOSING)
    }

    fn room_with(&self, places: usize) -> Room {
        let needs = self.needs();
        let (kept, deletion) = (needs.kept(), needs.kept_to_delete());
        let of = |behind: usize| self.blocks_for(places.saturating_sub(behind));
        let keeping = of(2 * kept + deletion);
        // without snapshots there is none to be deleted
        let last = if self.snapshots.count() == 0 { 0 } else { deletion };
        Room { ordinary: of(2 * kept + last), promised: of(kept + last), freeing: of(last), keeping, deleting: of(0) }
    }

    /// The superblock that makes everything before it count.
    fn superblock_write(&mut self) -> PlannedWrite {
        let at = self.next_copy * u64::from(BLOCK_SIZE);
        self.next_copy = COPIES - 1 - self.next_copy;
        PlannedWrite { at, data: Arc::from(self.superblock.to_bytes()), kind: Kind::Engine }
    }

    /// What a generation writes, and then the superblock that makes it count.
    fn landing(&mut self, writes: Vec<PlannedWrite>) -> Plan {
        let first = Stage { writes, flush: true };
        let last = Stage { writes: vec![self.superblock_write()], flush: true };
        Plan { stages: vec![first, last], home: Vec::new() }
    }

    /// A superblock of the same content with the next number.
    fn next_superblock(&mut self) -> PlannedWrite {
        self.superblock.generation += 1;
        self.superblock_write()
    }

    /// What a closed generation changed, by index, without what it changed back. What has its place among the data is
    /// added to `direct`.
    fn changes(&self, closed: &ClosedGeneration, direct: &mut Vec<PlannedWrite>) -> Result<BTreeMap<u64, Change>> {
        let mut changes = BTreeMap::new();
        for run in &closed.forgotten {
            for block in run.first.get()..run.first.get().saturating_add(run.count) {
                let Some(index) = self.map.shape.index_of(format::FsBlock(block)) else { break };
                if self.map.entry(index)?.is_some() {
                    changes.insert(index, Change::Drop);
                }
            }
        }
        for write in &closed.blocks {
            let Some(index) = self.map.shape.index_of(write.block) else {
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

    /// Keeps the generation that was built last: another one, built upon it, has it in its list.
    fn add_snapshot(&mut self, name: &[u8], time: i64, writes: &mut Vec<PlannedWrite>) -> Result<bool> {
        let NativeSuperblock { root, chunks, .. } = self.superblock;
        // a superblock alone may have a later number
        let generation = root.generation;
        let record = format::native::snapshots::Snapshot { name: name.to_vec(), root, generation, time, chunks };
        let block = self.snapshots.add(record, self.places.tables()).ok_or(Error::NoRoom)?;
        self.places.hold_used();
        self.superblock.snapshots = self.snapshots.count();
        let mut changes = BTreeMap::new();
        self.change_list(block, &mut changes);
        self.build(changes, &[], writes)
    }

    /// Leaves a snapshot out of the generation under construction; what it held is held until that is durable.
    fn remove_snapshot(&mut self, name: &[u8], changes: &mut BTreeMap<u64, Change>) {
        if let Some(block) = self.snapshots.remove(name) {
            self.removed = true;
            self.superblock.snapshots = self.snapshots.count();
            self.change_list(block, changes);
        }
    }

    /// A block of the list of snapshots is as the list is now.
    fn change_list(&self, block: u64, changes: &mut BTreeMap<u64, Change>) {
        let change = match self.snapshots.block(block) {
            None => Change::Drop,
            Some(data) => {
                Change::Write { kind: BlockKind::SnapshotList, owner: 0, data: Arc::from(data), tag: Kind::Engine }
            }
        };
        changes.insert(self.map.shape.list().start + block, change);
    }

    fn is_unchanged(&self, index: u64, kind: BlockKind, owner: u32, data: &[u8]) -> Result<bool> {
        match self.map.entry(index)? {
            None => Ok(data.iter().all(|byte| *byte == 0)),
            // it was freed and given out again: what it holds may be the same, whose it is stands in its entry
            Some(entry) if (entry.kind, entry.owner) != (kind, owner) => Ok(false),
            Some(entry) if entry.checksum == Position::Block(index).checksum(self.map.seed, data) => {
                // equal sums are no proof
                Ok(self.map.block(index)?.is_some_and(|there| there == data))
            }
            Some(_) => Ok(false),
        }
    }
}

/// What a block is, and whose, for its entry.
fn identity(tag: &crate::Tag) -> (BlockKind, u32) {
    let owner = tag.owner.get();
    match tag.kind {
        Kind::Superblock => (BlockKind::Superblock, 0),
        Kind::Descriptors => (BlockKind::Descriptors, 0),
        Kind::BlockBitmap => (BlockKind::BlockBitmap, 0),
        Kind::InodeBitmap => (BlockKind::InodeBitmap, 0),
        // of sixteen inodes
        Kind::InodeTable => (BlockKind::InodeTable, 0),
        Kind::ExtentNode => (BlockKind::ExtentNode, owner),
        Kind::Indirect => (BlockKind::Indirect, owner),
        Kind::Directory => (BlockKind::Directory, owner),
        Kind::DirectoryIndex => (BlockKind::DirectoryIndex, owner),
        Kind::Attributes => (BlockKind::Attributes, owner),
        Kind::OrphanFile => (BlockKind::OrphanFile, owner),
        Kind::Data | Kind::Engine => (BlockKind::Data, owner),
    }
}

impl Engine for Snapshot {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn open(&mut self, _: &dyn Client) -> Result<Plan> {
        if !self.in_place {
            // the newest generation is sound as it stands
            return Ok(Plan::default());
        }
        self.superblock.unordered = true;
        Ok(Plan { stages: vec![Stage { writes: vec![self.next_superblock()], flush: true }], home: Vec::new() })
    }

    fn plan(&mut self, closed: ClosedGeneration, _: &dyn Client) -> Result<Plan> {
        self.map.shed();
        self.joined.clear();
        let mut writes = Vec::with_capacity(closed.blocks.len() + 8);
        let mut changes = self.changes(&closed, &mut writes)?;
        for version in &closed.versions {
            if let VersionChange::Delete { name } = version {
                self.remove_snapshot(name, &mut changes);
            }
        }
        let mut changed = if matches!(closed.cause, Cause::Idle | Cause::Tidy) {
            self.build_tidily(closed.cause, changes, &mut writes)?
        } else {
            self.is_tidy = false;
            // what a snapshot keeps has no late entries
            if !closed.versions.is_empty() {
                self.build(changes, &self.late_leaves(), &mut writes)?
            } else if self.is_small(&changes)? {
                self.build_small(changes, &mut writes)?
            } else {
                self.build(changes, &[], &mut writes)?
            }
        };
        for version in &closed.versions {
            if let VersionChange::Create { name, time } = version {
                changed |= self.add_snapshot(name, *time, &mut writes)?;
            }
        }
        if !closed.versions.is_empty() {
            self.shared.prepare(self.snapshots.list());
        }
        let home = closed.blocks.iter().map(|write| write.block).collect();
        let flush = closed.cause != Cause::DirtyLimit || !self.in_place;
        let mut stages = Vec::new();
        if self.in_place {
            if changed {
                writes.push(self.superblock_write());
            }
            let flush = flush && (closed.unflushed || !writes.is_empty());
            stages.push(Stage { writes, flush });
        } else if changed {
            return Ok(Plan { home, ..self.landing(writes) });
        } else if !writes.is_empty() || closed.unflushed {
            stages.push(Stage { writes, flush: true });
        }
        Ok(Plan { stages, home })
    }

    fn idle(&mut self, quiet: Duration, dirty: bool, _: &dyn Client) -> Idle {
        if !dirty && quiet >= QUIET && !self.has_nothing_to_spare(Cause::Idle) { Idle::Tidy } else { Idle::Nothing }
    }

    fn close(&mut self, _: &dyn Client) -> Result<Plan> {
        if !self.in_place {
            let mut writes = Vec::new();
            let built = self.build(BTreeMap::new(), &self.late_leaves(), &mut writes)?;
            return Ok(if built { self.landing(writes) } else { Plan::default() });
        }
        self.superblock.unordered = false;
        let before = Stage { writes: Vec::new(), flush: true };
        let last = Stage { writes: vec![self.next_superblock()], flush: true };
        Ok(Plan { stages: vec![before, last], home: Vec::new() })
    }

    fn room(&self) -> Room {
        self.room_with(self.places.room())
    }

    fn room_behind(&self, blocks: usize) -> Room {
        // what this generation leaves is not there for the next one before it is durable
        self.room_with(self.places.room().saturating_sub(self.needs().worst_case(blocks + CLOSING)))
    }

    fn wanted_chunks(&self, blocks: usize) -> Need<u64> {
        let places = self.places.room();
        let chunks = |wanted: usize| wanted.saturating_sub(places).div_ceil(CHUNK_BLOCKS as usize) as u64;
        let needs = self.needs();
        Need { must: chunks(needs.room_for(blocks, 0)), should: chunks(needs.room_for(blocks, 2 * blocks)) }
    }

    fn spare_chunks(&mut self, cause: Cause) -> Vec<u32> {
        let room = self.needs().room_to_leave(cause);
        let spare = self.places.spare(room);
        self.has_other_chunks |= !spare.is_empty();
        spare
    }

    fn is_tidy(&self) -> bool {
        self.has_nothing_to_spare(Cause::Tidy)
    }

    fn durable(&mut self) {
        self.places.begin();
        if std::mem::take(&mut self.removed) {
            self.places.set_held(self.snapshots.held());
        }
    }

    fn give_chunks(&mut self, chunks: &[u32]) {
        chunks.iter().for_each(|number| self.places.add(*number));
        self.joined.extend_from_slice(chunks);
        self.has_other_chunks |= !chunks.is_empty();
    }

    fn discard(&mut self) {
        for number in std::mem::take(&mut self.joined) {
            self.places.remove(number);
        }
    }
}

/// Makes a native volume on a device: `blocks` are the ext4 volume's metadata, ascending, with what they are; `chunks` the
/// chunks that its bitmaps leave to the metadata regions, none of which is one of
/// [`Shape::backup_chunks`](format::native::Shape::backup_chunks). Everything is on the device when it returns.
///
/// # Errors
/// Those of the device; [`Error::NoRoom`] where the chunks are too few.
pub fn make(
    device: &dyn BlockDevice,
    shape: format::native::Shape,
    uuid: [u8; 16],
    chunks: &[u32],
    blocks: Vec<crate::BlockWrite>,
) -> Result<()> {
    let nothing =
        format::native::map::Entry { place: 0, generation: 0, kind: BlockKind::MapNode, owner: 0, checksum: 0 };
    let superblock = NativeSuperblock {
        shape,
        uuid,
        generation: 0,
        unordered: false,
        reserved: true,
        root: nothing,
        chunks: 0,
        snapshots: 0,
        late: Vec::new(),
    };
    // nothing is below it yet, so nothing is read
    let nowhere = Arc::new(MemoryDevice::from_vec(Vec::new()));
    let map = Arc::new(Map::new(nowhere, shape, superblock.seed(), None, native::Late::new()));
    let mut places = Places::new(Vec::new(), BTreeMap::new(), true, Arc::default())?;
    chunks.iter().for_each(|number| places.add(*number));
    let mut engine = Snapshot::over(map, superblock, 0, places, true, blocks.len());
    // no superblock of an older volume may count
    for copy in 0..COPIES {
        device.write_zeroes(copy * u64::from(BLOCK_SIZE), BLOCK_SIZE.into())?;
    }
    device.flush()?;
    let closed = ClosedGeneration::of(blocks);
    let mut writes = Vec::new();
    let changes = engine.changes(&closed, &mut writes)?;
    engine.build(changes, &[], &mut writes)?;
    engine.landing(writes).execute(device)
}

/// Chunks that a volume should begin with, beside the `blocks` it begins with: as many as it keeps when it is told to give
/// back all that it can do without.
#[must_use]
pub fn first_chunks(shape: &format::native::Shape, blocks: usize) -> u32 {
    let needs = Needs { shape, records: 1, dirty_blocks: LEAST_DIRTY };
    let places = needs.worst_case(blocks) + needs.room_to_leave(Cause::Tidy) + HEAD.end as usize;
    u32::try_from(places.div_ceil(CHUNK_BLOCKS as usize)).unwrap_or(u32::MAX)
}
