//! Creation and deletion of snapshots: the blocks pinned by creation, and those that may be allocated after deletion.

use super::Space;
use super::snapshot_pins::{SnapshotPins, block_version, used_alone};
use crate::Result;
use format::group::Group;
use format::native::GROUP_BLOCKS;
use format::native::snapshots::Snapshot;
use format::{FsBlock, GroupNo};
use space::{Purpose, Run, RunSet};
use std::collections::HashSet;
use std::sync::atomic::Ordering;
use store::{Operation, Store};

impl Space {
    /// Number of blocks of the data groups that are free in the bitmaps and pinned by a snapshot.
    pub(crate) fn pinned_blocks(&self) -> u64 {
        self.snapshot_pins.as_ref().map_or(0, |pins| pins.blocks.load(Ordering::Relaxed))
    }

    /// Whether no snapshot prevents content from being overwritten in place; as [`Space::in_place`].
    pub(super) fn is_unpinned(&self, store: &Store, first: FsBlock, len: u64) -> Result<(bool, u64)> {
        if !self.snapshot_pins.as_ref().is_some_and(|pins| pins.any.load(Ordering::Acquire)) {
            return Ok((true, len));
        }
        let geometry = &self.sb.geometry;
        let Some(group) = geometry.group_of(first) else { return Ok((true, len)) };
        let blocks = geometry.group_blocks(group);
        let len = len.min(blocks.end - first.get());
        let Some(state) = self.lock_space(store, group.get())? else {
            // unknown, so it is not overwritten
            return Ok((false, len));
        };
        let run = Run { start: (first.get() - blocks.start) as u32, len: len as u32 };
        let (same, is_pinned) = state.space.free.as_ref().map_or((run.len, true), |free| free.pinned_at(run));
        Ok((!is_pinned, same.into()))
    }

    /// The blocks used by a snapshot and none of `others`, in the groups where they are not all in use now or may soon
    /// not be: those changed since, and those in memory. The second value is the set of these groups.
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
                let Some(Group { block_bitmap: block, .. }) = self.descriptor(GroupNo(group)) else { continue };
                only.add_group(group.into(), &used_alone(&pins.mapped, snapshot, others, block)?);
                looked.insert(group);
                // needed soon
                store.prefetch(&[block]);
            }
        }
        Ok((only, looked))
    }

    /// Whether a group is in memory, or its bitmap may differ from the one in a snapshot.
    fn may_differ(&self, pins: &SnapshotPins, store: &Store, snapshot: &Snapshot, group: u32) -> Result<bool> {
        let Some(cell) = self.cell(GroupNo(group)) else { return Ok(false) };
        let durable = store.durable_generation();
        let block = {
            let state = cell.state.lock();
            if state.space.free.is_some() || state.space.generation > durable {
                return Ok(true);
            }
            state.descriptor.block_bitmap
        };
        let (now, then) = (pins.mapped.entry_of(block)?, pins.mapped.entry_at(snapshot, block)?);
        Ok(now.as_ref().map(block_version) != then.as_ref().map(block_version))
    }

    /// Unpins the blocks pinned only by one snapshot: `only` and `looked` are a very recent result of
    /// [`Space::pinned_only_by`], `others` are the snapshots that remain. The list must be changed in the same
    /// generation as this change.
    ///
    /// # Errors
    /// Those of the device, and those of damaged snapshots; nothing is changed then.
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
                && let Some(Group { block_bitmap: block, .. }) = self.descriptor(GroupNo(group))
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
            // blocks pinned in a corrupt group stay in use
            let Some(mut state) = loaded else { continue };
            let Some(freed) = state.space.free.as_mut().map(|free| free.unpin(units)) else { continue };
            let count = u64::from(freed.count());
            if count == 0 {
                continue;
            }
            begun = true;
            self.touch_descriptor(op, group, &mut state)?;
            let pinned = state.descriptor.pinned().saturating_sub(count);
            state.descriptor.set_pinned(pinned);
            pins.blocks.fetch_sub(count, Ordering::Relaxed);
            self.defer(op.generation(), |deferred| deferred.add_group(group.into(), &freed));
            self.pool.lock().defer(count);
        }
        pins.any.store(!others.is_empty() || live.pending, Ordering::Release);
        live.list = others;
        Ok(())
    }
}
