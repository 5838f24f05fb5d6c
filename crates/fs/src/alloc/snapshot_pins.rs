//! Blocks that snapshots pin: which they are, and how they come back.
//!
//! 1. The free space of a group in memory knows which of the group's blocks a snapshot uses. It learns that when it is read,
//!    from the bitmap that each snapshot has of the group; equal places are equal bitmaps, which are read once.
//! 2. A snapshot is made without a look at any group: it moves the *epoch* on while no operation runs, and a group that is
//!    in memory takes all that it uses for pinned before anything else is done with it in the new epoch.
//! 3. While one is deleted, no group comes into memory. What only that snapshot pinned may be allocated when the generation
//!    without it is durable.

use super::groups::SpaceArea;
use super::{Space, lock};
use crate::Result;
use format::native::GROUP_BLOCKS;
use format::native::map::Entry;
use format::native::snapshots::Snapshot;
use format::{FsBlock, GroupNo};
use space::{Container, ContainerMap, Purpose, Run, RunSet};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use store::native::Mapped;
use store::{Operation, Store};

/// What a native volume's snapshots pin.
pub(super) struct SnapshotPins {
    mapped: Arc<Mapped>,
    live: RwLock<LiveSnapshots>,
    /// Whether there are any; changed with `live`.
    any: AtomicBool,
    /// How many snapshots were made since the volume was opened.
    epoch: AtomicU64,
    /// Blocks of the data groups that are free in the bitmaps and pinned.
    blocks: AtomicU64,
}

/// The snapshots that pin something.
pub(super) struct LiveSnapshots {
    list: Vec<Snapshot>,
    /// One more is on its way to the device; it pins what is used in groups that have not changed since.
    pending: bool,
}

impl SnapshotPins {
    /// Those of a volume; `blocks` is the sum of what the descriptors count.
    pub(super) fn new(mapped: &Arc<Mapped>, blocks: u64) -> Result<Self> {
        let list: Vec<Snapshot> = mapped.snapshots()?.iter().flatten().cloned().collect();
        Ok(Self {
            mapped: Arc::clone(mapped),
            any: AtomicBool::new(!list.is_empty()),
            live: RwLock::new(LiveSnapshots { list, pending: false }),
            epoch: AtomicU64::new(0),
            blocks: AtomicU64::new(blocks),
        })
    }

    /// While this is locked no snapshot is deleted.
    pub(super) fn read(&self) -> RwLockReadGuard<'_, LiveSnapshots> {
        self.live.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, LiveSnapshots> {
        self.live.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The free space of a data group takes note of the snapshots that were made since it was last looked at.
    pub(super) fn catch_up(&self, area: &mut SpaceArea) {
        let epoch = self.epoch.load(Ordering::Acquire);
        if std::mem::replace(&mut area.epoch, epoch) != epoch
            && let Some(free) = &mut area.free
        {
            free.pin_used();
        }
    }

    /// What snapshots pin of the group with this bitmap block.
    ///
    /// # Errors
    /// Those of the device; of the format, where a snapshot's map or bitmap is damaged.
    pub(super) fn of_group(&self, live: &LiveSnapshots, block: FsBlock) -> store::Result<PinsOfGroup> {
        Ok(PinsOfGroup { units: used_by(&self.mapped, &live.list, block)?, pending: live.pending })
    }

    /// Puts that into the group's free space as it was just read.
    pub(super) fn mark(&self, pins: &PinsOfGroup, area: &mut SpaceArea, free: &mut ContainerMap) {
        free.pin(&pins.units);
        if pins.pending {
            free.pin_used();
        }
        area.epoch = self.epoch.load(Ordering::Acquire);
    }
}

/// What snapshots pin of a group.
pub(super) struct PinsOfGroup {
    units: Container,
    pending: bool,
}

fn place(entry: &Entry) -> (u64, u64) {
    (entry.place, entry.generation)
}

/// The blocks in use by a bitmap as it is stored.
pub(crate) fn in_use(bitmap: &[u8]) -> Container {
    Container::from_set_bits(bitmap, GROUP_BLOCKS)
}

/// The blocks that snapshots use of the group with this bitmap block.
pub(crate) fn used_by(mapped: &Mapped, snapshots: &[Snapshot], block: FsBlock) -> store::Result<Container> {
    let mut union = Container::empty(GROUP_BLOCKS);
    let mut seen = HashSet::new();
    for snapshot in snapshots {
        if let Some(entry) = mapped.entry_at(snapshot, block)?
            && seen.insert(place(&entry))
        {
            union.union_with(&in_use(&mapped.read_entry(block, &entry)?));
        }
    }
    Ok(union)
}

/// The blocks of such a group that a snapshot uses and none of the others does.
fn used_alone(mapped: &Mapped, snapshot: &Snapshot, others: &[Snapshot], block: FsBlock) -> store::Result<Container> {
    let nothing = Container::empty(GROUP_BLOCKS);
    let Some(entry) = mapped.entry_at(snapshot, block)? else { return Ok(nothing) };
    let mut places = HashSet::from([place(&entry)]);
    let mut different = Vec::new();
    // those that were made next before and after it most likely have the same
    let mut others: Vec<&Snapshot> = others.iter().collect();
    others.sort_by_key(|other| other.generation.abs_diff(snapshot.generation));
    for other in others {
        let Some(theirs) = mapped.entry_at(other, block)? else { continue };
        if place(&theirs) == place(&entry) {
            return Ok(nothing);
        }
        if places.insert(place(&theirs)) {
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

/// Blocks of the group with this bitmap block that a snapshot pins, and neither one of `others` nor the live bitmap.
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

impl Space {
    /// Blocks of the data groups that are free in the bitmaps and that a snapshot pins.
    pub(crate) fn pinned_blocks(&self) -> u64 {
        self.snapshot_pins.as_ref().map_or(0, |pins| pins.blocks.load(Ordering::Relaxed))
    }

    /// Sets [`Space::pinned_blocks`].
    pub(super) fn set_pinned_blocks(&self, blocks: u64) {
        if let Some(pins) = &self.snapshot_pins {
            pins.blocks.store(blocks, Ordering::Relaxed);
        }
    }

    /// Blocks were freed that a snapshot pins.
    pub(super) fn note_pinned(&self, count: u32) {
        if let Some(pins) = &self.snapshot_pins {
            pins.blocks.fetch_add(count.into(), Ordering::Relaxed);
        }
    }

    /// Whether no snapshot prevents content from being written over in its place; as [`Space::in_place`].
    pub(super) fn is_unpinned(&self, store: &Store, first: FsBlock, len: u64) -> Result<(bool, u64)> {
        if !self.snapshot_pins.as_ref().is_some_and(|pins| pins.any.load(Ordering::Acquire)) {
            return Ok((true, len));
        }
        let geometry = &self.sb.geometry;
        let Some(group) = geometry.group_of(first) else { return Ok((true, len)) };
        let blocks = geometry.group_blocks(group);
        let len = len.min(blocks.end - first.get());
        let Some(state) = self.lock_space(store, group.get())? else {
            // not known, so it stays as it is
            return Ok((false, len));
        };
        let run = Run { start: (first.get() - blocks.start) as u32, len: len as u32 };
        let (same, is_pinned) = state.space.free.as_ref().map_or((run.len, true), |free| free.pinned_at(run));
        Ok((!is_pinned, same.into()))
    }

    /// A generation closes. Where it becomes a snapshot, all that is used now is pinned from now on.
    pub(crate) fn close_versions(&self, generation: u64) {
        let Some(pins) = &self.snapshot_pins else { return };
        if pins.mapped.becomes_snapshot(generation) {
            pins.write().pending = true;
            pins.any.store(true, Ordering::Release);
            pins.epoch.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// The generation that closed last is durable.
    pub(crate) fn versions_are_durable(&self) {
        let Some(pins) = &self.snapshot_pins else { return };
        pins.mapped.publish_snapshots();
        let pending = pins.read().pending;
        // the list was read when the volume was opened
        if pending && let Ok(list) = pins.mapped.snapshots() {
            *pins.write() = LiveSnapshots { list: list.iter().flatten().cloned().collect(), pending: false };
        }
    }

    /// What a snapshot uses and none of `others` does, of the groups where that is not all used now, or may not be before
    /// long: those that changed since, and those in memory. The groups themselves are the second.
    pub(crate) fn pinned_only_by(
        &self,
        store: &Store,
        snapshot: &Snapshot,
        others: &[Snapshot],
    ) -> Result<(RunSet, HashSet<u32>)> {
        let (mut only, mut looked) = (RunSet::new(GROUP_BLOCKS), HashSet::new());
        let Some(pins) = &self.snapshot_pins else { return Ok((only, looked)) };
        for group in self.layout.groups_for(Purpose::Data) {
            if self.may_differ(pins, store, snapshot, group)? {
                let Some(block) = self.bitmap_block(group) else { continue };
                only.add_group(group.into(), &used_alone(&pins.mapped, snapshot, others, block)?);
                looked.insert(group);
                // it is needed soon
                store.prefetch(&[block]);
            }
        }
        Ok((only, looked))
    }

    fn bitmap_block(&self, group: u32) -> Option<FsBlock> {
        Some(lock(&self.cell(GroupNo(group))?.state).descriptor.block_bitmap)
    }

    /// Whether a group's bitmap may be another than it was in a snapshot, or is in memory.
    fn may_differ(&self, pins: &SnapshotPins, store: &Store, snapshot: &Snapshot, group: u32) -> Result<bool> {
        let Some(cell) = self.cell(GroupNo(group)) else { return Ok(false) };
        let durable = store.durable_generation();
        let block = {
            let state = lock(&cell.state);
            if state.space.free.is_some() || state.space.generation > durable {
                return Ok(true);
            }
            state.descriptor.block_bitmap
        };
        let (now, then) = (pins.mapped.entry_of(block)?, pins.mapped.entry_at(snapshot, block)?);
        Ok(now.as_ref().map(place) != then.as_ref().map(place))
    }

    /// Unpins what only a snapshot pins: `only` and `looked` are what [`Space::pinned_only_by`] found a moment ago, `others`
    /// are those that remain. The list is for the generation of the change to change.
    ///
    /// # Errors
    /// Those of the device and of damaged snapshots; nothing is changed then.
    pub(crate) fn unpin_snapshot(
        &self,
        op: &Operation<'_>,
        snapshot: &Snapshot,
        others: Vec<Snapshot>,
        (mut only, looked): (RunSet, HashSet<u32>),
    ) -> Result<()> {
        let Some(pins) = &self.snapshot_pins else { return Ok(()) };
        let mut live = pins.write();
        for group in self.layout.groups_for(Purpose::Data) {
            if !looked.contains(&group)
                && self.may_differ(pins, op.store(), snapshot, group)?
                && let Some(block) = self.bitmap_block(group)
            {
                only.add_group(group.into(), &used_alone(&pins.mapped, snapshot, &others, block)?);
            }
        }
        let mut begun = false;
        for (group, units) in only.groups().map(|(group, units)| (group as u32, units)) {
            let loaded = self.load_space(op.store(), group, Some(&live));
            let loaded = loaded.inspect_err(|e| {
                if begun {
                    op.store().fail(e)
                }
            })?;
            // what a corrupt group pins stays as it is
            let Some(mut state) = loaded else { continue };
            let Some(freed) = state.space.free.as_mut().map(|free| free.unpin(units)) else { continue };
            let count = u64::from(freed.count());
            if count == 0 {
                continue;
            }
            begun = true;
            self.touch_descriptor(op, group, &mut state)?;
            let pinned = state.descriptor.held().saturating_sub(count);
            state.descriptor.set_held(pinned);
            pins.blocks.fetch_sub(count, Ordering::Relaxed);
            self.defer(op.generation(), |deferred| deferred.add_group(group.into(), &freed));
            lock(&self.pool).defer(count);
        }
        pins.any.store(!others.is_empty() || live.pending, Ordering::Release);
        live.list = others;
        Ok(())
    }
}
