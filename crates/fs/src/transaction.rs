//! Transactions: several calls that a crash or a rollback leaves all or none of.
//!
//! Before a transaction begins everything is durable: generation G. The changes of its members are the single next
//! generation, which closes when the transaction is committed and no sooner. So G stays on the device meanwhile, and no
//! block of G is overwritten: metadata never is, content is copied while a transaction runs, and freed blocks are not
//! allocated. A rollback therefore only discards changes in memory: the state is read again from the device, and the
//! few sums that exist only in memory were saved when the transaction began.
//!
//! | in memory | on rollback |
//! | --- | --- |
//! | changed blocks, blocks freed | dropped by the store |
//! | inodes, names, pages | listed in [`DirtySet`], for caches above |
//! | cached inodes | dropped |
//! | delayed data, reservations, sizes, hints | dropped: no data was delayed at the beginning |
//! | bitmaps and descriptors of changed groups | read again |
//! | sums of free blocks and inodes, superblock | restored |
//! | blocks and inodes deferred until they are durable | dropped: there were none at the beginning |
//! | orphans | restored; those without a lookup count are freed afterwards |
//! | lookup counts | stay: they belong to the kernel; numbers without a file are parked |
//! | the size that the kernel assumes of a file | recorded if it differs now: see
//! [`Files::write_with`](crate::Files::write_with) |
//! | damage that was found | stays |

use crate::gate::{self, AbortReason, AtBegin, DirtySet, Gate, Member};
use crate::{Error, InodeNo, Result, Volume};
use std::sync::Arc;
use std::time::Duration;

/// A transaction in progress. Changes by threads that [entered](Transaction::enter) it are atomic: durable when it is
/// [committed](Transaction::commit), or undone; other threads see them at once, and wait before they change anything
/// themselves. Dropping it rolls it back.
#[must_use = "a transaction that is dropped is rolled back"]
pub struct Transaction {
    volume: Arc<Volume>,
    id: u64,
}

impl Volume {
    /// Begins a transaction after changes in progress have ended and are durable. There is at most one, and it may last
    /// `time` at most: after that a caller that waits for it, or [`Volume::tick`], rolls it back. Its size is limited
    /// to one generation: [`WriteOptions::dirty_bytes`](crate::WriteOptions) of metadata, or less if the volume has no
    /// more free space for it; content is limited only by free space, and blocks that it frees can be used when it is
    /// over. The call that exceeds the limit fails, and every one after it: if all calls succeeded, a commit finds
    /// space.
    ///
    /// # Errors
    /// [`Error::Unsupported`] on volumes that are not written with snapshots; [`Error::Busy`] if there is another;
    /// [`Error::Invalid`] within a changing call; as [`Volume::sync`].
    pub fn transaction(self: &Arc<Self>, time: Duration) -> Result<Transaction> {
        let gate = self.gate_of_transactions()?;
        let id = gate.begin(time)?;
        let begun = {
            let _charge = gate::transaction_guard();
            self.begin_in_transaction()
        };
        match begun {
            Ok(before) => gate.run(before),
            Err(e) => {
                gate.open(false);
                return Err(e);
            }
        }
        Ok(Transaction { volume: Arc::clone(self), id })
    }

    fn begin_in_transaction(&self) -> Result<AtBegin> {
        self.flush_all_delayed()?;
        self.store.open_for_transaction()?;
        let writing = self.writing()?;
        writing.space.new_content.set_copied(true);
        Ok(AtBegin { counts: writing.space.durable_counts(), orphans: writing.orphans.remember() })
    }

    fn commit_transaction(&self, id: u64, notify: impl FnOnce(&DirtySet)) -> Result<()> {
        let gate = self.gate_of_transactions()?;
        let over = || gate.undone_with(id).unwrap_or_else(|| Error::Cancelled("it has ended".into()));
        if !gate.end(id, None) {
            return Err(over());
        }
        let charge = gate::transaction_guard();
        let aborted = gate.lock().as_ref().and_then(|now| now.aborted.clone());
        let placed = match aborted {
            Some(reason) => Err(reason.error()),
            None => self.flush_all_delayed(),
        };
        if let Err(e) = placed {
            drop(charge);
            gate.cancel_end();
            self.roll_back(id, AbortReason::Ended(e.to_string()), notify)?;
            return Err(e);
        }
        let committed = self.store.commit_transaction();
        self.writing()?.space.new_content.set_copied(false);
        drop(charge);
        gate.open(false);
        committed?;
        self.after_transaction()
    }
}

impl Transaction {
    /// Enters the transaction: all changes of this thread until the result is dropped are part of it. Several threads
    /// may be members at once.
    ///
    /// A sync, or fsync, by a member returns at once: its changes become durable when the transaction is committed.
    pub fn enter(&self) -> Member<'_> {
        gate::enter(self.id)
    }

    /// Commits: returns when all changes are durable; a crash before leaves none of them. Waits for calls of other
    /// members to end.
    ///
    /// # Errors
    /// Then all changes are undone: [`Error::TransactionTooLarge`], [`Error::NoSpace`] if there is no space for
    /// content, [`Error::Cancelled`] if it was already rolled back. If the device fails the volume is read-only, and
    /// whether the commit succeeded is determined when the volume is next opened.
    pub fn commit(self) -> Result<()> {
        self.commit_or(|_| ())
    }

    /// As [`Transaction::commit`], for a shared transaction. Calls after the first return [`Error::Cancelled`]. If it
    /// has to be rolled back instead, `notify` is called as by [`Transaction::undo`].
    ///
    /// # Errors
    /// As [`Transaction::commit`].
    pub fn commit_or(&self, notify: impl FnOnce(&DirtySet)) -> Result<()> {
        self.volume.commit_transaction(self.id, notify)
    }

    /// Rolls back the volume to the beginning of the transaction; returns the dirty set to invalidate in caches. Waits
    /// for calls of other members, and calls that read the volume, to end.
    ///
    /// # Errors
    /// Those of the device; the volume is read-only then, and no change of the transaction is left on the device.
    pub fn rollback(self) -> Result<DirtySet> {
        self.cancel("it was rolled back")
    }

    /// As [`Transaction::rollback`], for a shared transaction: calls of its members fail with `why`. If it was rolled
    /// back before, the first call returns its dirty set.
    ///
    /// # Errors
    /// As [`Transaction::rollback`].
    pub fn cancel(&self, why: &str) -> Result<DirtySet> {
        self.undo(why, |_| ())?;
        Ok(self.volume.gate_of_transactions()?.take_dirty_set(self.id))
    }

    /// As [`Transaction::cancel`], for a caller with caches above the volume: `notify` is called with the dirty set to
    /// invalidate before any other call can change the volume, and when reading calls see the restored state. It may
    /// read the volume, but must not wait for changes by others. Does nothing if the transaction has ended.
    ///
    /// # Errors
    /// As [`Transaction::rollback`].
    pub fn undo(&self, why: &str, notify: impl FnOnce(&DirtySet)) -> Result<()> {
        self.volume.roll_back(self.id, AbortReason::Ended(why.to_owned()), notify)
    }

    /// Permits only a rollback from now on: changing calls of members are refused with `why`.
    pub fn require_rollback(&self, why: &str) {
        let Some(gate) = self.volume.gate() else { return };
        if let Some(now) = gate.lock().as_mut().filter(|now| now.id == self.id) {
            now.aborted.get_or_insert_with(|| AbortReason::Ended(why.to_owned()));
        }
    }

    /// The reason why it cannot be committed any more, or was rolled back.
    #[must_use]
    pub fn rollback_reason(&self) -> Option<Error> {
        let gate = self.volume.gate()?;
        let now = gate.lock().as_ref().filter(|now| now.id == self.id).and_then(|now| now.aborted.clone());
        now.map(|reason| reason.error()).or_else(|| gate.undone_with(self.id))
    }

    /// Whether it has created, changed or freed an inode so far.
    #[must_use]
    pub fn has_changed(&self, inode: InodeNo) -> bool {
        let Some(gate) = self.volume.gate() else { return false };
        gate.lock().as_ref().is_some_and(|now| now.id == self.id && now.dirty.inodes.contains(&inode))
    }

    /// Whether it has been neither committed nor rolled back.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.volume.gate().and_then(Gate::running) == Some(self.id)
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if self.is_running() {
            // an error here is an error of the device, which persists
            drop(self.volume.roll_back(self.id, AbortReason::Ended("it was dropped".into()), |_| ()));
        }
    }
}
