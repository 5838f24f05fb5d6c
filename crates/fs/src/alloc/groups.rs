//! Loading of groups into memory when they are needed, and writing of their changes into the closing generation.

use super::loaded_group::{GroupCell, GroupState};
use super::record::LoadError;
use super::snapshot_pins::{LiveSnapshots, SnapshotPins};
use super::{DamagedGroup, Space};
use crate::Result;
use format::group::Group;
use format::{GroupNo, InodeNo};
use parking_lot::MutexGuard;
use store::{ChangeRecord, Closing, Kind, Operation, Store, Tag};

const DESCRIPTORS: Tag = Tag::new(Kind::Descriptors, InodeNo(0));

impl Space {
    /// A group with its free space in memory; `None` for a corrupt group. Only within an operation: no generation may
    /// close between two acquisitions of the lock.
    ///
    /// # Errors
    /// Those of the device. The group stays usable: the next call reads it again.
    pub(super) fn lock_space(&self, store: &Store, group: u32) -> Result<Option<MutexGuard<'_, GroupState>>> {
        let Some(cell) = self.cell(GroupNo(group)) else { return Ok(None) };
        let state = cell.state.lock();
        if state.corrupt || state.space.free.is_some() {
            return Ok(self.up_to_date(group, state));
        }
        drop(state);
        let live = self.snapshot_pins.as_ref().filter(|_| self.layout.is_pool_group(group)).map(SnapshotPins::read);
        self.load_space(store, group, live.as_deref())
    }

    /// A group whose free space is in memory, updated for all snapshots; `None` for a corrupt one.
    fn up_to_date<'s>(&self, group: u32, mut state: MutexGuard<'s, GroupState>) -> Option<MutexGuard<'s, GroupState>> {
        if state.corrupt {
            return None;
        }
        if let Some(pins) = self.snapshot_pins.as_ref().filter(|_| self.layout.is_pool_group(group)) {
            pins.catch_up(&mut state.space);
        }
        Some(state)
    }

    /// As [`Space::lock_space`], for a caller that prevents the deletion of snapshots; `live` is set for groups with
    /// blocks pinned by them.
    pub(super) fn load_space(
        &self,
        store: &Store,
        group: u32,
        live: Option<&LiveSnapshots>,
    ) -> Result<Option<MutexGuard<'_, GroupState>>> {
        let Some(cell) = self.cell(GroupNo(group)) else { return Ok(None) };
        let state = cell.state.lock();
        if state.corrupt || state.space.free.is_some() {
            return Ok(self.up_to_date(group, state));
        }
        let descriptor = state.descriptor;
        // not under the lock, as others need the group meanwhile
        drop(state);
        let loaded = self.record.load(store, GroupNo(group), &descriptor);
        let pinned = match self.snapshot_pins.as_ref().zip(live) {
            Some((pins, live)) => pins.of_group(live, descriptor.block_bitmap).map(Some),
            None => Ok(None),
        };
        let mut state = cell.state.lock();
        if state.corrupt || state.space.free.is_some() {
            return Ok(self.up_to_date(group, state));
        }
        let read = match (loaded, pinned) {
            (Err(LoadError::Device(e)), _) | (_, Err(e @ store::Error::Device(_))) => return Err(e.into()),
            (Err(LoadError::Corrupt(what)), _) => Err(what),
            (_, Err(_)) => Err("the blocks that snapshots pin in it cannot be read"),
            (Ok(mut free), Ok(pinned)) => match self.snapshot_pins.as_ref().zip(pinned) {
                Some((pins, pinned)) => {
                    pins.mark(&pinned, &mut state.space, &mut free);
                    let counted = u64::from(free.pinned()) == state.descriptor.pinned();
                    let what = "its count of pinned blocks and the bitmaps of the snapshots contradict each other";
                    if counted { Ok(free) } else { Err(what) }
                }
                None => Ok(free),
            },
        };
        match read {
            Ok(free) => {
                self.loaded.lock().insert(group);
                if cell.has_only_hint() {
                    cell.set_known(&mut state, &free);
                }
                state.space.free = Some(free);
                Ok(Some(state))
            }
            Err(what) => {
                self.mark_corrupt(cell, group, &mut state, what);
                Ok(None)
            }
        }
    }

    /// As [`Space::lock_space`], for freeing.
    pub(super) fn lock_space_to_free(&self, store: &Store, group: u32) -> Option<MutexGuard<'_, GroupState>> {
        self.or_record_error(self.lock_space(store, group))
    }

    /// A group in which something is to be freed. If its bitmap cannot be read, the freed blocks stay in use there and
    /// the volume is marked for a check: their owner is already gone.
    pub(super) fn or_record_error<'s>(
        &self,
        locked: Result<Option<MutexGuard<'s, GroupState>>>,
    ) -> Option<MutexGuard<'s, GroupState>> {
        locked.unwrap_or_else(|_| {
            self.superblock.record_error();
            None
        })
    }

    /// Marks the group as corrupt.
    pub(super) fn mark_corrupt(&self, cell: &GroupCell, group: u32, state: &mut GroupState, what: &'static str) {
        if std::mem::replace(&mut state.corrupt, true) {
            return;
        }
        let out_of_reach = cell.close();
        if self.layout.is_pool_group(group) {
            self.pool.lock().quarantine(u64::from(out_of_reach));
        }
        self.damaged.lock().push(DamagedGroup { group: GroupNo(group), what });
        self.superblock.record_error();
    }

    /// Marks groups whose record of free space was found damaged at opening. Their blocks are not counted anywhere.
    pub(super) fn mark_corrupt_areas(&self) {
        for (number, cell) in self.sb.geometry.group_numbers().zip(&self.groups) {
            if let Some(what) = self.record.free_blocks_hint(number).and_then(|hint| hint.corrupt) {
                self.mark_corrupt(cell, number.get(), &mut cell.state.lock(), what);
            }
        }
    }

    /// Announces a change of the group's descriptor in the open generation.
    pub(super) fn touch_descriptor(&self, op: &Operation<'_>, group: u32, state: &mut GroupState) -> Result<()> {
        if !state.descriptor_changed {
            let block = self.sb.geometry.descriptor_location(GroupNo(group));
            op.edit(block, DESCRIPTORS, |_| ()).inspect_err(|e| op.store().fail(e))?;
            state.descriptor_changed = true;
            self.list_changed(group, state);
            let Group { free_clusters: free, free_inodes, directories, .. } = state.descriptor;
            op.record_change(|| ChangeRecord::Group { number: GroupNo(group), free, free_inodes, directories });
        }
        Ok(())
    }

    /// Adds the group to the list of groups changed in the open generation.
    fn list_changed(&self, group: u32, state: &mut GroupState) {
        if !std::mem::replace(&mut state.changed, true) {
            self.changed.lock().push(group);
        }
    }

    /// Announces a change of the group's free space in the open generation.
    pub(super) fn touch_space(&self, op: &Operation<'_>, group: u32, state: &mut GroupState) -> Result<()> {
        if self.record.is_in_descriptors() {
            self.touch_descriptor(op, group, state)?;
        } else {
            self.list_changed(group, state);
        }
        state.space.generation = op.generation();
        if !std::mem::replace(&mut state.space.changed, true)
            && let Some(free) = &state.space.free
        {
            self.record.announce(op, GroupNo(group), &state.descriptor, free);
        }
        Ok(())
    }

    /// As [`Space::touch_space`], while the generation closes.
    pub(super) fn touch_space_to_close(
        &self,
        closing: &Closing<'_>,
        group: u32,
        state: &mut GroupState,
    ) -> store::Result<()> {
        if !std::mem::replace(&mut state.descriptor_changed, true) {
            closing.edit(self.sb.geometry.descriptor_location(GroupNo(group)), DESCRIPTORS, |_| ())?;
            self.list_changed(group, state);
        }
        state.space.generation = closing.generation();
        if !std::mem::replace(&mut state.space.changed, true) {
            self.record.announce_closing(closing, &state.descriptor);
        }
        Ok(())
    }

    /// Drops the state in memory of an unchanged group if too many groups are in memory.
    pub(super) fn drop_if_many(&self, group: u32, state: &mut GroupState) {
        let mut loaded = self.loaded.lock();
        if loaded.len() > self.options.bitmaps && state.is_clean() {
            state.forget_free();
            loaded.remove(&group);
        }
    }

    /// Writes the changed free space, free inodes and descriptors into the closing generation.
    pub(crate) fn finish_groups(&self, closing: &Closing<'_>) -> store::Result<()> {
        let geometry = &self.sb.geometry;
        let mut changed = std::mem::take(&mut *self.changed.lock());
        changed.sort_unstable();
        let per_block = geometry.descriptors_per_block();
        let size = geometry.descriptor_size as usize;
        for groups in changed.chunk_by(|a, b| a / per_block == b / per_block) {
            let mut descriptors = Vec::with_capacity(groups.len());
            for &group in groups {
                let Some(cell) = self.cell(GroupNo(group)) else { continue };
                let mut guard = cell.state.lock();
                let state = &mut *guard;
                state.changed = false;
                if std::mem::take(&mut state.space.changed)
                    && let Some(free) = &state.space.free
                {
                    self.record.write(closing, GroupNo(group), &mut state.descriptor, free);
                }
                self.finish_inodes(closing, state);
                if std::mem::take(&mut state.descriptor_changed) {
                    let mut descriptor = state.descriptor;
                    self.record.stored(&mut descriptor);
                    descriptors.push((group, descriptor));
                }
            }
            let Some(&(first, _)) = descriptors.first() else { continue };
            closing.edit(geometry.descriptor_location(GroupNo(first)), DESCRIPTORS, |bytes| {
                for (group, descriptor) in &mut descriptors {
                    let at = (*group % per_block) as usize * size;
                    if let Some(bytes) = bytes.get_mut(at..at + size) {
                        descriptor.set_checksum(&self.sb.disk, geometry, GroupNo(*group), bytes);
                    }
                }
            })?;
        }
        self.record.finish(closing)?;
        self.drop_clean_groups();
        Ok(())
    }

    /// Drops clean groups between generations if too many are in memory.
    fn drop_clean_groups(&self) {
        let mut loaded = self.loaded.lock();
        if loaded.len() <= self.options.bitmaps {
            return;
        }
        loaded.retain(|&group| {
            let Some(cell) = self.cell(GroupNo(group)) else { return false };
            let mut state = cell.state.lock();
            let stays = !state.is_clean();
            if !stays {
                state.forget_free();
            }
            stays
        });
    }
}
