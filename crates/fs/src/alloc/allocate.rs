//! Allocation and freeing of blocks and inodes by a change.

use super::blocks::Extent;
use super::{Reservation, Role, Space};
use crate::change::Change;
use crate::mutant::Mutant;
use crate::{Base, Error, FileKind, Inode, InodeFlags, InodeNo, Result};
use format::{FsBlock, GroupNo, Structure, Where};
use space::{Purpose, Run};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use store::ChangeRecord;

/// Maximum number of groups with an unreadable bitmap that the search for an inode skips.
const UNREAD: usize = 8;

impl Change<'_> {
    /// Allocates 1 to `want` consecutive blocks for an inode, near `goal` as far as their role allows. Their content is
    /// undefined.
    ///
    /// # Errors
    /// [`Error::NoSpace`]. Nothing is changed then.
    pub(crate) fn allocate(&self, owner: InodeNo, goal: FsBlock, want: u32, role: Role) -> Result<Extent> {
        let space = self.volume.space()?;
        let most = space.sb.geometry.clusters_per_group();
        let home = space.sb.geometry.inode_slot(owner).map_or(GroupNo(0), |slot| slot.group);
        let begin = space.begin_at(home, goal, role);
        if !space.layout.is_pooled(role.purpose()) {
            // metadata block numbers are plentiful; space was checked when the change began
            return space.place(self.operation(), begin, want.clamp(1, most), role);
        }
        let allocated = space.pool.lock().allocate(u64::from(want.clamp(1, most)), self.privilege()) as u32;
        if allocated == 0 {
            return Err(Error::NoSpace);
        }
        let outcome = space.place(self.operation(), begin, allocated, role);
        let used = outcome.as_ref().map_or(0, |extent| extent.count);
        space.pool.lock().free(u64::from(allocated - used));
        if let Ok(extent) = &outcome
            && role == Role::Content
        {
            space.new_content.record(extent.first, extent.count);
        }
        outcome
    }

    /// Reads what [`Change::free`] needs for these blocks: they must be removed from a map only if they can be freed,
    /// or they would stay in use without an owner.
    ///
    /// # Errors
    /// Those of the device, and those of [`Change::free`]; nothing is changed then.
    pub(crate) fn prepare_to_free(&self, first: FsBlock, count: u64) -> Result<()> {
        let space = self.volume.space()?;
        space.may_be_freed(first, count)?;
        let groups = &space.sb.geometry;
        let last = FsBlock(first.get() + count.saturating_sub(1));
        let Some((from, to)) = groups.group_of(first).zip(groups.group_of(last)) else { return Ok(()) };
        for group in from.get()..=to.get() {
            space.lock_space(self.operation().store(), group)?;
        }
        Ok(())
    }

    /// Frees blocks. They may be allocated again once a crash cannot restore their old use.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if they are not blocks that a file may own; nothing is changed then. Blocks of a damaged
    /// group stay in use.
    pub(crate) fn free(&self, first: FsBlock, count: u64, purpose: Purpose) -> Result<()> {
        let space = self.volume.space()?;
        space.may_be_freed(first, count)?;
        match purpose {
            Purpose::Data => self.operation().forget_data(first, count),
            Purpose::Metadata => self.operation().forget(first, count),
        }
        let defer = (purpose == Purpose::Metadata || space.options.defer_content)
            && !space.options.mutant.is(Mutant::ReuseAtOnce);
        let geometry = &space.sb.geometry;
        let (mut at, end) = (first.get(), first.get() + count);
        while at < end {
            let Some(group) = geometry.group_of(FsBlock(at)) else { break };
            let blocks = geometry.group_blocks(group);
            let part = end.min(blocks.end) - at;
            let run = Run { start: (at - blocks.start) as u32, len: part as u32 };
            space.free_run(self.operation(), group, run, defer)?;
            at += part;
        }
        Ok(())
    }

    /// Allocates an inode for a new file in a directory, near it as far as its kind allows, and returns its number and
    /// generation. The content of its slot is undefined until [`Change::put_inode`].
    ///
    /// # Errors
    /// [`Error::NoSpace`] if no inode is free, [`Error::ReadOnly`] during unmounting. Nothing is changed then.
    pub(crate) fn allocate_inode(&self, parent: &Inode, kind: FileKind) -> Result<(InodeNo, u32)> {
        let space = self.volume.space()?;
        let geometry = &space.sb.geometry;
        let home = geometry.inode_slot(parent.number).map_or(0, |slot| slot.group.get());
        let is_directory = kind == FileKind::Directory;
        let choice = if is_directory {
            let top = parent.number == InodeNo::ROOT || parent.raw().flags().contains(InodeFlags::TOPDIR);
            space.policy.directory(space.as_ref(), home, top)
        } else {
            space.policy.file(space.as_ref(), home)
        };
        let in_use = |inode: Arc<Inode>| inode.raw().disk.i_links_count.get() > 0;
        let is_open = |number| self.volume.is_looked_up(number) && self.volume.any_inode(number).is_ok_and(in_use);
        // a group whose bitmap cannot be read is skipped; that is an error only if no other group has an inode
        let mut unread = Vec::new();
        for group in space.policy.groups_from(geometry.groups, choice.unwrap_or(home)).into_iter().flatten() {
            if space.cell(GroupNo(group)).is_none_or(|cell| cell.inodes.load(Ordering::Relaxed) == 0) {
                continue;
            }
            match space.take_inode(self.operation(), group, is_directory, is_open) {
                Ok(Some(index)) => {
                    let number = geometry.inode_at(GroupNo(group), index);
                    self.volume.record_made(number);
                    self.operation().record_change(|| ChangeRecord::Number { number, allocated: true });
                    return Ok((number, space.inode_generations.next()));
                }
                Ok(None) => {}
                Err(e) if unread.len() < UNREAD => unread.push(e),
                Err(e) => return Err(e),
            }
        }
        Err(unread.pop().unwrap_or(Error::NoSpace))
    }

    /// Reads what [`Change::free_inode`] needs for an inode, which must be removed from the volume's structures only if
    /// it can be freed.
    ///
    /// # Errors
    /// Those of the device.
    pub(crate) fn prepare_to_free_inode(&self, number: InodeNo) -> Result<()> {
        let space = self.volume.space()?;
        let Some(slot) = space.sb.geometry.inode_slot(number) else { return Ok(()) };
        space.lock_inodes(self.operation().store(), slot.group.get()).map(drop)
    }

    /// Frees an inode. Its number may be allocated again after the change, so that no other operation writes the slot
    /// while this change clears it.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a number that no file can have. An inode of a damaged group stays in use.
    pub(crate) fn free_inode(&self, number: InodeNo, was_directory: bool) -> Result<()> {
        let space = self.volume.space()?;
        let slot = space.sb.geometry.inode_slot(number).filter(|_| number.get() >= space.sb.geometry.first_inode);
        let Some(slot) = slot else {
            return Err(Error::corrupt(
                Structure::Bitmap,
                Where::Inode(number),
                "its number is reserved or invalid: it cannot be freed",
            ));
        };
        let op = self.operation();
        let Some(cell) = space.cell(slot.group) else { return Ok(()) };
        let locked = space.lock_inodes(op.store(), slot.group.get());
        let Some(mut state) = space.or_record_error(locked) else { return Ok(()) };
        let run = Run { start: slot.index, len: 1 };
        if !state.inodes.free.as_ref().is_some_and(|free| free.is_used(run)) {
            space.mark_corrupt(cell, slot.group.get(), &mut state, "an inode in use is free in its inode bitmap");
            return Ok(());
        }
        space.touch_inodes(op, slot.group.get(), &mut state)?;
        drop(state);
        self.free_at_end(number, was_directory);
        Ok(())
    }

    /// As [`Change::in_place`], for blocks recorded as unwritten. After a rollback to an older snapshot they may be
    /// content of another snapshot all the same.
    pub(crate) fn unwritten_in_place(&self, first: FsBlock, len: u64) -> Result<(bool, u64)> {
        self.volume.space()?.is_unpinned(self.operation().store(), first, len)
    }

    /// See [`Space::in_place`].
    pub(crate) fn in_place(&self, first: FsBlock, len: u64) -> Result<(bool, u64)> {
        self.volume.space()?.in_place(self.operation(), first, len)
    }
}

impl Base {
    /// The goal for the allocation of an inode's first block.
    pub(crate) fn goal(&self, inode: &Inode) -> FsBlock {
        let geometry = &self.sb.geometry;
        let group = geometry.inode_slot(inode.number).map_or(0, |slot| slot.group.get());
        let is_file = inode.kind == FileKind::Regular;
        let group = match self.space() {
            Ok(space) => space.policy.content(geometry.groups, group, is_file),
            Err(_) => group,
        };
        geometry.group_start(GroupNo(self.layout.group_for(Purpose::Data, group)))
    }

    /// Reserves `blocks` blocks for delayed data. Must be called outside of a change, as it may wait until freed space
    /// is durable.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub(crate) fn reserve(&self, blocks: u64) -> Result<Reservation> {
        let writing = self.writing()?;
        let space = Arc::clone(&writing.space);
        let reserved = |space: &Space| space.pool.lock().reserve(blocks, self.usual_privilege());
        if !reserved(&space) {
            self.wait_for_space()?;
            if !reserved(&space) {
                return Err(Error::NoSpace);
            }
        }
        Ok(Reservation { space, blocks })
    }

    /// Waits until freed space may be used.
    pub(crate) fn wait_for_space(&self) -> Result<()> {
        let space = self.space()?;
        // the first lock is released before the second is taken
        let has_deferred = space.pool.lock().deferred() > 0;
        if has_deferred || !space.deferred_inodes.lock().is_empty() {
            self.store.sync()?;
        }
        Ok(())
    }

    /// Whether this volume has anything that can pin content: snapshots, transactions, an option.
    pub(crate) fn may_have_to_copy(&self) -> bool {
        self.space().is_ok_and(|space| space.snapshot_pins.is_some())
    }
}
