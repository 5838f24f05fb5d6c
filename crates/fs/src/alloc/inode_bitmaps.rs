//! Inode bitmaps: the free inodes of a group, read when they are first needed, written when a generation closes.

use super::Space;
use super::loaded_group::GroupState;
use super::record::{LoadError, check_bitmap, write_bitmap};
use crate::Result;
use format::group::{Group, GroupFlags};
use format::{GroupNo, InodeNo};
use parking_lot::MutexGuard;
use space::ContainerMap;
use store::{Closing, Kind, Operation, Store, Tag};

const TAG: Tag = Tag::new(Kind::InodeBitmap, InodeNo(0));

impl Space {
    /// A group with its free inodes in memory; see [`Space::lock_space`].
    ///
    /// # Errors
    /// Those of the device.
    pub(super) fn lock_inodes(&self, store: &Store, group: u32) -> Result<Option<MutexGuard<'_, GroupState>>> {
        let Some(cell) = self.cell(GroupNo(group)) else { return Ok(None) };
        let state = cell.state.lock();
        if state.is_corrupt() || state.inodes.free.is_some() {
            return Ok(Some(state).filter(|state| !state.is_corrupt()));
        }
        let descriptor = state.descriptor;
        // not under the lock, as others need the group meanwhile
        drop(state);
        let read = self.read_inodes(store, &descriptor);
        let mut state = cell.state.lock();
        if state.is_corrupt() || state.inodes.free.is_some() {
            return Ok(Some(state).filter(|state| !state.is_corrupt()));
        }
        match read {
            Ok(mut free) => {
                self.parked.defer_in(group, &mut free);
                self.loaded.lock().insert(group);
                state.inodes.free = Some(free);
                Ok(Some(state))
            }
            Err(LoadError::Device(e)) => Err(e.into()),
            Err(LoadError::Corrupt(what)) => {
                self.mark_corrupt(cell, group, &mut state, what);
                Ok(None)
            }
        }
    }

    /// The free inodes of a group, if the stored bitmap is consistent.
    fn read_inodes(&self, store: &Store, descriptor: &Group) -> Result<ContainerMap, LoadError> {
        let all = self.sb.geometry.inodes_per_group;
        if self.sb.geometry.has_descriptor_checksums() && descriptor.flags.contains(GroupFlags::INODE_UNINIT) {
            let counts = descriptor.free_inodes == all && descriptor.directories == 0;
            let what = LoadError::Corrupt("its inode counts contradict INODE_UNINIT");
            return if counts { Ok(ContainerMap::new(all)) } else { Err(what) };
        }
        let bytes = store.block(descriptor.inode_bitmap).map_err(LoadError::read)?;
        if !check_bitmap(&self.sb.geometry, &bytes, all, descriptor.inode_bitmap_csum) {
            return Err(LoadError::Corrupt("the checksum of its inode bitmap does not match"));
        }
        let free = ContainerMap::from_bytes(&bytes, all);
        if free.free_units() != descriptor.free_inodes {
            return Err(LoadError::Corrupt("its inode bitmap and its count of free inodes contradict each other"));
        }
        let never_used = if self.sb.geometry.has_descriptor_checksums() { descriptor.itable_unused } else { 0 };
        let start = all.saturating_sub(never_used);
        if free.run_at(start, all) < all - start {
            return Err(LoadError::Corrupt("bg_itable_unused hides inodes in use"));
        }
        Ok(free)
    }

    /// Announces a change of the group's free inodes in the open generation.
    pub(super) fn touch_inodes(&self, op: &Operation<'_>, group: u32, state: &mut GroupState) -> Result<()> {
        self.touch_descriptor(op, group, state)?;
        if !std::mem::replace(&mut state.inodes.changed, true)
            && let Some(free) = &state.inodes.free
        {
            op.replace(state.descriptor.inode_bitmap, TAG, |bytes| free.write(bytes));
        }
        Ok(())
    }

    /// Writes the free inodes of a group into the closing generation if they were changed.
    pub(super) fn finish_inodes(&self, closing: &Closing<'_>, state: &mut GroupState) {
        if std::mem::take(&mut state.inodes.changed)
            && let Some(free) = &state.inodes.free
        {
            let geometry = &self.sb.geometry;
            let place = (state.descriptor.inode_bitmap, TAG);
            state.descriptor.inode_bitmap_csum =
                write_bitmap(closing, geometry, place, geometry.inodes_per_group, free);
        }
    }
}
