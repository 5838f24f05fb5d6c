//! Allocation and freeing of inodes.
//!
//! The never used part of an inode table may contain anything (lazy initialisation): its blocks are zeroed when their
//! first inode is allocated, and never read.

use super::Space;
use super::loaded_group::GroupState;
use crate::mutant::Mutant;
use crate::{Inode, InodeNo, Result};
use format::group::GroupFlags;
use format::{FsBlock, GroupNo};
use space::{Container, Run, RunSet};
use std::sync::atomic::Ordering;
use store::{Kind, Operation, Tag};

impl GroupState {
    /// Clears BLOCK_UNINIT: the block bitmap is stored from now on.
    pub(super) fn block_bitmap_is_there(&mut self) {
        self.descriptor.flags.remove(GroupFlags::BLOCK_UNINIT);
    }
}

impl Space {
    /// Allocates the first free inode of a group; returns its index. `is_open` says whether an inode is in use as an
    /// open file.
    pub(super) fn take_inode(
        &self,
        op: &Operation<'_>,
        group: u32,
        is_directory: bool,
        is_open: impl Fn(InodeNo) -> bool,
    ) -> Result<Option<u32>> {
        let geometry = &self.sb.geometry;
        let Some(cell) = self.cell(GroupNo(group)) else { return Ok(None) };
        // the first inode initializes the group, including its block bitmap
        if self.sb.geometry.has_descriptor_checksums() && self.lock_space(op.store(), group)?.is_none() {
            return Ok(None);
        }
        let Some(mut state) = self.lock_inodes(op.store(), group)? else { return Ok(None) };
        // checked under the lock: inodes freed during unmounting are not found here any more
        self.is_open()?;
        let reserved = (geometry.first_inode - 1).saturating_sub(group.saturating_mul(geometry.inodes_per_group));
        let found =
            state.inodes.free.as_ref().and_then(|free| free.find(&[Run { start: 0, len: free.units() }], reserved, 1));
        let Some(run) = found.filter(|run| run.start >= reserved) else { return Ok(None) };
        if let Some(what) = self.contradicts(op, group, &state, run.start, is_open) {
            self.mark_corrupt(cell, group, &mut state, what);
            return Ok(None);
        }
        self.touch_inodes(op, group, &mut state)?;
        if self.sb.geometry.has_descriptor_checksums() {
            if state.descriptor.flags.contains(GroupFlags::BLOCK_UNINIT) && state.space.free.is_some() {
                self.touch_space(op, group, &mut state)?;
                state.block_bitmap_is_there();
            }
            self.begin_table(op, &mut state, run.start);
        }
        let taken = state.inodes.free.as_mut().is_some_and(|free| free.allocate(run));
        debug_assert!(taken, "the inode is free");
        let descriptor = &mut state.descriptor;
        descriptor.free_inodes = descriptor.free_inodes.saturating_sub(1);
        descriptor.directories = descriptor.directories.saturating_add(is_directory.into());
        cell.inodes.fetch_sub(1, Ordering::Relaxed);
        cell.directories.fetch_add(u32::from(is_directory), Ordering::Relaxed);
        self.directories.fetch_add(u64::from(is_directory), Ordering::Relaxed);
        self.free_inodes.fetch_sub(1, Ordering::Relaxed);
        Ok(Some(run.start))
    }

    /// Evidence that inodes are in use although the bitmap shows them as free, so that a new file would overwrite
    /// another: the first free one is an open file, or the table is zeroed and unused by its flags but contains inodes.
    fn contradicts(
        &self,
        op: &Operation<'_>,
        group: u32,
        state: &GroupState,
        index: u32,
        is_open: impl Fn(InodeNo) -> bool,
    ) -> Option<&'static str> {
        let geometry = &self.sb.geometry;
        let number = geometry.inode_at(GroupNo(group), index);
        let in_use = |inode: &Inode| inode.raw().disk.i_links_count.get() > 0;
        if is_open(number) {
            return Some("an inode that is open is free in its inode bitmap");
        }
        // a table that was not zeroed may contain inodes from before mkfs, with valid checksums if the UUID is the same
        let never_used = GroupFlags::INODE_UNINIT | GroupFlags::INODE_ZEROED;
        if !geometry.metadata_csum || !state.descriptor.flags.contains(never_used) {
            return None;
        }
        let block = op.store().block(state.descriptor.inode_table).ok()?;
        let slots = block.chunks_exact(geometry.inode_size as usize).zip(0..);
        let inode = |(slot, n)| Inode::parse(&self.sb, geometry.inode_at(GroupNo(group), n), slot).ok();
        slots.filter_map(inode).any(|inode| in_use(&inode)).then_some("INODE_UNINIT hides inodes in use")
    }

    /// Zeroes the blocks of the inode table that are first used by the inode at `index`.
    fn begin_table(&self, op: &Operation<'_>, state: &mut GroupState, index: u32) {
        let geometry = &self.sb.geometry;
        let descriptor = &mut state.descriptor;
        let all = geometry.inodes_per_group;
        let fresh = descriptor.flags.contains(GroupFlags::INODE_UNINIT);
        let used = if fresh { 0 } else { all.saturating_sub(descriptor.itable_unused) };
        let per_block = geometry.block_size / geometry.inode_size;
        for block in used.div_ceil(per_block)..=index / per_block {
            let tag = Tag::new(Kind::InodeTable, InodeNo(0));
            op.fresh(FsBlock(descriptor.inode_table.get() + u64::from(block)), tag, |_| ());
        }
        descriptor.itable_unused = all - used.max(index + 1);
        descriptor.flags.remove(GroupFlags::INODE_UNINIT);
    }

    /// Records an inode as freed in a generation. With `defer`, or if a crash may restore the inode, its number is not
    /// allocated before the generation is durable.
    pub(crate) fn free_inode(&self, number: InodeNo, was_directory: bool, generation: u64, defer: bool) {
        let Some(slot) = self.sb.geometry.inode_slot(number) else { return };
        let Some(cell) = self.cell(slot.group) else { return };
        let mut state = cell.state.lock();
        // the map is loaded: it was marked as changed in this generation
        let run = Run { start: slot.index, len: 1 };
        let defer = defer || self.options.defer_inodes && !self.options.mutant.is(Mutant::ReuseAtOnce);
        if state.is_corrupt() || !state.inodes.free.as_mut().is_some_and(|free| free.free(run, defer)) {
            return;
        }
        let descriptor = &mut state.descriptor;
        descriptor.free_inodes += 1;
        let directories = u32::from(was_directory).min(descriptor.directories);
        descriptor.directories -= directories;
        cell.directories.fetch_sub(directories, Ordering::Relaxed);
        self.directories.fetch_sub(u64::from(directories), Ordering::Relaxed);
        self.free_inodes.fetch_add(1, Ordering::Relaxed);
        if defer {
            let all = self.sb.geometry.inodes_per_group;
            let mut deferred = self.deferred_inodes.lock();
            deferred.entry(generation).or_insert_with(|| RunSet::new(all)).add_units(slot.group.get().into(), run);
        } else {
            cell.inodes.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Releases deferred inode numbers of a group for allocation.
    pub(super) fn release_inodes(&self, group: u32, inodes: &Container) {
        let Some(cell) = self.cell(GroupNo(group)) else { return };
        let mut state = cell.state.lock();
        if let Some(free) = &mut state.inodes.free {
            free.release_set(inodes);
        }
        if !state.is_corrupt() {
            cell.inodes.fetch_add(inodes.count(), Ordering::Relaxed);
        }
    }
}

impl Space {
    /// Parks a free number: it is not allocated until it is unparked.
    pub(crate) fn park_inode(&self, number: InodeNo) {
        let Some(slot) = self.sb.geometry.inode_slot(number) else { return };
        let Some(cell) = self.cell(slot.group) else { return };
        self.parked.park(slot, cell.state.lock().inodes.free.as_mut());
    }

    /// Unparks a number: it may be allocated again.
    pub(crate) fn unpark_inode(&self, number: InodeNo) {
        let Some(slot) = self.sb.geometry.inode_slot(number).filter(|_| self.parked.any()) else { return };
        let Some(cell) = self.cell(slot.group) else { return };
        self.parked.unpark(slot, cell.state.lock().inodes.free.as_mut());
    }

    /// Whether a number is parked, so that no file has it.
    pub(crate) fn is_parked(&self, number: InodeNo) -> bool {
        self.parked.any() && self.sb.geometry.inode_slot(number).is_some_and(|slot| self.parked.contains(slot))
    }
}
