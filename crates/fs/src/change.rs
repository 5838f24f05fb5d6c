//! A change to the volume: one operation of the store, with the state that the file system needs for it.
//!
//! The changes under one [`Change`] belong to one generation, so they are atomic as far as the engine guarantees. A
//! change must not fail halfway: reads, checks and allocations are done first, edits last. If an edit fails all the
//! same (a block was evicted and cannot be read again), the state in memory is inconsistent, and the volume becomes
//! read-only.

use crate::error::OfInode;
use crate::{Error, Inode, InodeNo, Inodes, Result, Timestamp};
use format::FsBlock;
use format::inode::InodeBuf;
use format::superblock::{DiskSuperblock, OFFSET};
use space::Privilege;
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use store::{ChangeRecord, Kind, Operation, OperationKind, Part, Tag};

#[cfg(test)]
mod tests;

/// A change in progress. See [`Operation`] for what is not permitted meanwhile.
pub(crate) struct Change<'v> {
    pub(crate) volume: &'v Inodes,
    op: Operation<'v>,
    now: Timestamp,
    privilege: Cell<Privilege>,
    /// Freed inodes whose numbers may be reused after the change; with whether each was a directory.
    freed: RefCell<Vec<(InodeNo, bool)>>,
}

/// Blocks of bitmaps, descriptors and the superblock changed by an ordinary change.
const OWN_CREDITS: usize = 8;

impl Inodes {
    /// Begins a change of at most `credits` metadata blocks. Bitmaps, descriptors and the superblock are not included.
    pub(crate) fn change(&self, credits: usize) -> Result<Change<'_>> {
        self.change_with(credits, OperationKind::Ordinary)
    }

    /// As [`Inodes::change`], for a change that frees or only modifies existing blocks: it is admitted on a full
    /// volume, too.
    pub(crate) fn change_freeing(&self, credits: usize) -> Result<Change<'_>> {
        self.change_with(credits, OperationKind::Freeing)
    }

    /// As [`Inodes::change`], for the allocation of reserved blocks for delayed data.
    pub(crate) fn change_reserved(&self, credits: usize) -> Result<Change<'_>> {
        self.change_with(credits, OperationKind::Reserved)
    }

    /// As [`Inodes::change`], for creating a snapshot: requires space to delete it again.
    pub(crate) fn change_to_snapshot(&self) -> Result<Change<'_>> {
        self.change_with(0, OperationKind::Snapshot)
    }

    /// As [`Inodes::change`], for deleting a snapshot: admitted where no other change is.
    pub(crate) fn change_deleting(&self, credits: usize) -> Result<Change<'_>> {
        self.change_with(credits, OperationKind::Deletion)
    }

    fn change_with(&self, credits: usize, kind: OperationKind) -> Result<Change<'_>> {
        let all = (credits + OWN_CREDITS).min(self.store.max_credits()).max(credits);
        debug_assert!(!self.has_gate() || crate::gate::is_changing(), "the gate was not asked");
        let op = self.store.begin_with(all, kind).map_err(Error::from).inspect_err(|e| self.record_too_large(e))?;
        self.wake_background();
        let (privilege, freed) = (Cell::new(self.usual_privilege()), RefCell::default());
        Ok(Change { volume: self, op, now: self.now(), privilege, freed })
    }
}

impl<'v> Change<'v> {
    /// Announces `credits` more metadata blocks, if the open generation has space for them: never waits. If it has not,
    /// the remaining work needs a change of its own.
    #[must_use]
    pub(crate) fn extend(&mut self, credits: usize) -> bool {
        self.op.extend(credits)
    }

    /// The time of the change.
    pub(crate) fn now(&self) -> Timestamp {
        self.now
    }

    /// Refuses the removal of names during unmounting, by which time files without a name are already freed. Checked
    /// within the change, which unmounting waits for, and before any edit.
    ///
    /// # Errors
    /// [`Error::ReadOnly`].
    pub(crate) fn may_remove_names(&self) -> Result<()> {
        self.volume.space()?.is_open()
    }

    /// Allows later allocations to use what this privilege permits.
    pub(crate) fn set_privilege(&self, privilege: Privilege) {
        self.privilege.set(privilege);
    }

    pub(crate) fn privilege(&self) -> Privilege {
        self.privilege.get()
    }

    /// Frees the number when the change ends.
    pub(crate) fn free_at_end(&self, number: InodeNo, was_directory: bool) {
        self.freed.borrow_mut().push((number, was_directory));
    }

    /// Changes fields of the superblock other than its counts, times, state and checksum.
    pub(crate) fn edit_superblock<R>(&self, change: impl FnOnce(&mut DiskSuperblock) -> R) -> Result<R> {
        let block = FsBlock(OFFSET / u64::from(self.volume.sb.geometry.block_size));
        let tag = Tag::new(Kind::Superblock, InodeNo(0));
        // its bytes are set when the generation closes
        self.edit(block, tag, |_| ())?;
        Ok(change(&mut self.volume.space()?.superblock.lock()))
    }

    /// The generation of the change.
    pub(crate) fn generation(&self) -> u64 {
        self.op.generation()
    }

    /// The tag of a block of an inode, for [`Change::edit`].
    pub(crate) fn tag(&self, kind: Kind, owner: &Inode) -> Tag {
        Tag { seed: self.volume.seed(owner), ..Tag::new(kind, owner.number) }
    }

    /// Changes a metadata block, which should be in the cache. The closure runs under the cache's lock and must not use
    /// the volume.
    pub(crate) fn edit<R>(&self, block: FsBlock, tag: Tag, change: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        Ok(self.op.edit(block, tag, change).inspect_err(|e| self.volume.store.fail(e))?)
    }

    /// Sets the initial content of a newly allocated block, starting from zeroes.
    pub(crate) fn fresh<R>(&self, block: FsBlock, tag: Tag, change: impl FnOnce(&mut [u8]) -> R) -> R {
        self.op.fresh(block, tag, change)
    }

    /// Writes file data; newly allocated blocks must be written whole.
    pub(crate) fn write_data(&self, owner: InodeNo, first: FsBlock, offset: u64, data: &[u8]) -> Result<()> {
        if let Ok(space) = self.volume.space() {
            space.superblock.record_written(data.len());
        }
        Ok(self.op.write_data(owner, first, offset, data)?)
    }

    /// Records that blocks of an inode were allocated or freed, for engines that use change records.
    pub(crate) fn record_run(&self, owner: InodeNo, part: Part, (first, count): (FsBlock, u64), allocated: bool) {
        self.op.record_change(|| ChangeRecord::Run { owner, part, first, count, allocated });
    }

    /// Records that a file replaces another under its name, for engines that use change records.
    pub(crate) fn record_whole(&self, number: InodeNo) {
        self.op.record_change(|| ChangeRecord::Whole { number });
    }

    /// The underlying operation.
    pub(crate) fn operation(&self) -> &Operation<'v> {
        &self.op
    }

    /// Changes an inode in its table. [`Inodes::inode`] returns the result from now on.
    pub(crate) fn update_inode(&self, inode: &Inode, change: impl FnOnce(&mut InodeBuf)) -> Result<Arc<Inode>> {
        let mut buf =
            InodeBuf::from_slot(inode.raw().bytes()).ok_or(Error::Invalid("an inode is shorter than 128 bytes"))?;
        change(&mut buf);
        self.put_inode(inode.number, buf)
    }

    /// Writes a new or changed inode into its table.
    pub(crate) fn put_inode(&self, number: InodeNo, mut buf: InodeBuf) -> Result<Arc<Inode>> {
        let writing = self.volume.writing.as_ref();
        // while an inode is in the orphan chain, its link there is set by the chain
        let chain = writing.and_then(|w| w.orphans.chain());
        if let Some(next) = chain.as_ref().and_then(|chain| chain.next_of(number)) {
            buf.disk_mut().i_dtime = next.into();
        }
        self.store_inode(number, buf)
    }

    /// [`Change::put_inode`] for a caller that has the orphan chain locked.
    pub(crate) fn store_inode(&self, number: InodeNo, mut buf: InodeBuf) -> Result<Arc<Inode>> {
        let volume = self.volume;
        let place = volume.inode_place(number)?;
        if volume.deferred_checksum(place.1) == 0 {
            buf.set_checksum(&volume.sb.geometry, number);
        }
        let inode = Arc::new(Inode::without_checksum(&volume.sb, number, buf.into_bytes()).of(number)?);
        let was_empty = self.write_slot(number, place, inode.raw().bytes())?;
        if was_empty && let Some(made) = volume.writing.as_ref().and_then(|w| w.new_inodes.as_ref()) {
            made.add(number, self.generation());
        }
        volume.cache.put(Arc::clone(&inode));
        volume.record_inode(number);
        volume.node(number).record_change(self.generation());
        Ok(inode)
    }

    /// Clears the slot of a freed inode, except for the content of `buf`.
    pub(crate) fn put_freed_inode(&self, number: InodeNo, mut buf: InodeBuf) -> Result<()> {
        let made = self.volume.writing.as_ref().and_then(|w| w.new_inodes.as_ref());
        let place = self.volume.inode_place(number)?;
        if made.is_some_and(|made| made.contains(number, self.generation())) {
            // as on the device, so that the inode costs no write
            self.write_slot(number, place, &vec![0; buf.bytes().len()])?;
        } else {
            if self.volume.deferred_checksum(place.1) == 0 {
                buf.set_checksum(&self.volume.sb.geometry, number);
            }
            self.write_slot(number, place, buf.bytes())?;
        }
        self.volume.cache.forget(number);
        self.volume.record_inode(number);
        self.volume.nodes.remove(number);
        Ok(())
    }

    /// Writes an inode's slot; returns whether it was all zeroes, as for an inode never used before.
    fn write_slot(&self, number: InodeNo, (block, offset): (FsBlock, usize), bytes: &[u8]) -> Result<bool> {
        let deferred_slots = self.volume.deferred_checksum(offset);
        let tag = Tag { deferred_slots, ..Tag::new(Kind::InodeTable, number) };
        let (wants_record, mut before) = (self.op.wants_change_records(), None);
        let was_empty = self.edit(block, tag, |table| {
            // the slot is inside the block: inode sizes divide block sizes
            let Some(slot) = table.get_mut(offset..offset + bytes.len()) else { return false };
            // most have a type
            let was_empty = slot.starts_with(&[0, 0]) && slot.iter().all(|byte| *byte == 0);
            before = wants_record.then(|| Box::from(&*slot));
            slot.copy_from_slice(bytes);
            was_empty
        })?;
        if let Some(before) = before {
            self.op.record_change(|| ChangeRecord::Inode { number, before, after: Box::from(bytes) });
        }
        Ok(was_empty)
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        if let Ok(space) = self.volume.space() {
            let generation = self.generation();
            for (number, directory) in self.freed.take() {
                self.op.record_change(|| ChangeRecord::Number { number, allocated: false });
                space.free_inode(number, directory, generation, self.volume.predates_transaction(number));
            }
        }
    }
}
