//! Blocks pinned by snapshots, and how they become free.
//!
//! 1. The free space of a group in memory includes which of the group's blocks a snapshot uses. It is read from the
//!    bitmap that each snapshot has of the group, when the group is loaded; equal physical blocks are equal bitmaps,
//!    which are read once.
//! 2. A snapshot is created without access to any group: it increments the number of snapshots while no operation runs,
//!    and a group in memory marks all its blocks in use as pinned before any other use with the new number.
//! 3. While one is deleted, no group is loaded. Blocks pinned only by that snapshot may be allocated when the
//!    generation without it is durable.

use super::loaded_group::SpaceArea;
use crate::Result;
use crate::layout::Layout;
use crate::native::Versions;
use format::FsBlock;
use format::native::GROUP_BLOCKS;
use format::native::map::Entry;
use format::native::snapshots::Snapshot;
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use space::{Container, ContainerMap};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use store::native::Mapped;

/// The blocks pinned by a native volume's snapshots.
pub(crate) struct SnapshotPins {
    pub(super) mapped: Arc<Mapped>,
    live: RwLock<LiveSnapshots>,
    /// Whether any snapshot exists; changed together with `live`.
    pub(super) any: AtomicBool,
    /// The number of snapshots created since the volume was opened.
    pub(super) snapshot_count: AtomicU64,
    /// Blocks of the data groups that are free in the bitmaps and pinned.
    pub(super) blocks: AtomicU64,
}

/// The snapshots that pin blocks.
pub(super) struct LiveSnapshots {
    pub(super) list: Vec<Snapshot>,
    /// Whether one more is being written to the device; it pins the blocks in use in groups unchanged since.
    pub(super) pending: bool,
}

impl SnapshotPins {
    /// The pins of a volume that can have snapshots; `blocks` is the sum of the descriptors' counts.
    pub(super) fn of(layout: &Layout, blocks: u64) -> Result<Option<Self>> {
        let Some(Versions { mapped, .. }) = layout.versions() else { return Ok(None) };
        let list: Vec<Snapshot> = mapped.snapshots()?.iter().flatten().cloned().collect();
        Ok(Some(Self {
            mapped: Arc::clone(mapped),
            any: AtomicBool::new(!list.is_empty()),
            live: RwLock::new(LiveSnapshots { list, pending: false }),
            snapshot_count: AtomicU64::new(0),
            blocks: AtomicU64::new(blocks),
        }))
    }

    /// A lock under which no snapshot is deleted.
    pub(super) fn read(&self) -> RwLockReadGuard<'_, LiveSnapshots> {
        self.live.read()
    }

    pub(super) fn write(&self) -> RwLockWriteGuard<'_, LiveSnapshots> {
        self.live.write()
    }

    /// Called when a generation closes. If it becomes a snapshot, all blocks in use are pinned from then on.
    pub(crate) fn close(&self, generation: u64) {
        if self.mapped.becomes_snapshot(generation) {
            self.write().pending = true;
            self.any.store(true, Ordering::Release);
            self.snapshot_count.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Called when the last closed generation is durable.
    pub(crate) fn durable(&self) {
        self.mapped.publish_snapshots();
        let pending = self.read().pending;
        // the list was read when the volume was opened
        if pending && let Ok(list) = self.mapped.snapshots() {
            *self.write() = LiveSnapshots { list: list.iter().flatten().cloned().collect(), pending: false };
        }
    }

    /// Updates the free space of a data group for the snapshots created since its last update.
    pub(super) fn catch_up(&self, area: &mut SpaceArea) {
        let snapshot_count = self.snapshot_count.load(Ordering::Acquire);
        if std::mem::replace(&mut area.snapshot_count, snapshot_count) != snapshot_count
            && let Some(free) = &mut area.free
        {
            free.pin_used();
        }
    }

    /// The units pinned by snapshots in the group with this bitmap block.
    ///
    /// # Errors
    /// Those of the device; those of the format for a damaged map or bitmap of a snapshot.
    pub(super) fn of_group(&self, live: &LiveSnapshots, block: FsBlock) -> store::Result<PinsOfGroup> {
        Ok(PinsOfGroup { units: used_by(&self.mapped, &live.list, block)?, pending: live.pending })
    }

    /// Units used by snapshots in the group with this bitmap block, while nothing else changes.
    ///
    /// # Errors
    /// As [`SnapshotPins::of_group`].
    pub(super) fn units_of_group(&self, block: FsBlock) -> store::Result<Container> {
        used_by(&self.mapped, &self.read().list, block)
    }

    /// Marks the pins in the group's free space, which was just read.
    pub(super) fn mark(&self, pins: &PinsOfGroup, area: &mut SpaceArea, free: &mut ContainerMap) {
        free.pin(&pins.units);
        if pins.pending {
            free.pin_used();
        }
        area.snapshot_count = self.snapshot_count.load(Ordering::Acquire);
    }
}

/// The units of a group pinned by snapshots.
pub(super) struct PinsOfGroup {
    units: Container,
    pending: bool,
}

pub(super) fn block_version(entry: &Entry) -> (u64, u64) {
    (entry.physical, entry.generation)
}

/// The blocks in use according to a stored bitmap.
pub(crate) fn in_use(bitmap: &[u8]) -> Container {
    Container::from_set_bits(bitmap, GROUP_BLOCKS)
}

/// The blocks used by snapshots in the group with this bitmap block.
pub(crate) fn used_by(mapped: &Mapped, snapshots: &[Snapshot], block: FsBlock) -> store::Result<Container> {
    let mut union = Container::empty(GROUP_BLOCKS);
    let mut seen = HashSet::new();
    for snapshot in snapshots {
        if let Some(entry) = mapped.entry_at(snapshot, block)?
            && seen.insert(block_version(&entry))
        {
            union.union_with(&in_use(&mapped.read_entry(block, &entry)?));
        }
    }
    Ok(union)
}

/// The blocks of such a group used by one snapshot and by none of the others.
pub(super) fn used_alone(
    mapped: &Mapped,
    snapshot: &Snapshot,
    others: &[Snapshot],
    block: FsBlock,
) -> store::Result<Container> {
    let nothing = Container::empty(GROUP_BLOCKS);
    let Some(entry) = mapped.entry_at(snapshot, block)? else { return Ok(nothing) };
    let mut seen = HashSet::from([block_version(&entry)]);
    let mut different = Vec::new();
    // the snapshots created next before and after it most likely have the same
    let mut others: Vec<&Snapshot> = others.iter().collect();
    others.sort_by_key(|other| other.generation.abs_diff(snapshot.generation));
    for other in others {
        let Some(theirs) = mapped.entry_at(other, block)? else { continue };
        if block_version(&theirs) == block_version(&entry) {
            return Ok(nothing);
        }
        if seen.insert(block_version(&theirs)) {
            different.push(theirs);
        }
    }
    let mut only = in_use(&mapped.read_entry(block, &entry)?);
    for theirs in different {
        only.subtract(&in_use(&mapped.read_entry(block, &theirs)?));
        if only.is_empty() {
            break;
        }
    }
    Ok(only)
}

/// Blocks of the group with this bitmap block pinned by one snapshot, and used neither by `others` nor in the live
/// bitmap.
pub(crate) fn pinned_alone(
    mapped: &Mapped,
    snapshot: &Snapshot,
    others: &[Snapshot],
    block: FsBlock,
    live: &[u8],
) -> store::Result<u64> {
    let mut only = used_alone(mapped, snapshot, others, block)?;
    only.subtract(&in_use(live));
    Ok(only.count().into())
}
