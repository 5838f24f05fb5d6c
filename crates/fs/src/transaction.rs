//! Transactions: several calls of which a crash, or the user's will, leaves all or nothing.
//!
//! Before a transaction begins everything is durable: generation G. What its members do is the one generation that
//! follows, which closes when the transaction is committed and no sooner. So G is on the device all the while, and
//! nothing writes over what G leads to: metadata never is, content is copied while a transaction runs, and what was
//! freed is not allocated. Rolling back is therefore to forget: what was changed in memory is thrown away and read
//! again from the device, and the few sums that are nowhere else were noted when the transaction began.
//!
//! | in memory | when rolled back |
//! | --- | --- |
//! | changed blocks, blocks freed | the store drops them |
//! | inodes, names, pages | [`DirtySet`] says which, for caches above |
//! | cached inodes | dropped |
//! | delayed data, reservations, sizes, hints | dropped: before, all content had its place |
//! | bitmaps and descriptors of changed groups | read again |
//! | sums of free blocks and inodes, superblock | as noted |
//! | blocks and inodes deferred until they are durable | forgotten: before, none was |
//! | orphans | as noted; those that are not looked up any more are freed then |
//! | which inodes are looked up | stays: that is not the volume's; numbers without a file are parked |
//! | the size that the kernel assumes of a file | noted, where it is another now: see [`Files::write_with`](crate::Files::write_with) |
//! | damage that was found | stays |

use crate::gate::{self, Before, Broken, DirtySet, Gate, Member};
use crate::{Error, InodeNo, Result, Volume};
use std::sync::Arc;
use std::time::Duration;

/// A transaction under way. What threads do that [entered](Transaction::enter) it happens whole, when it is
/// [committed](Transaction::commit), or not at all; other threads see it at once, and wait before they change anything
/// themselves. When it is dropped it is rolled back.
#[must_use = "a transaction that is dropped is rolled back"]
pub struct Transaction {
    volume: Arc<Volume>,
    id: u64,
}

impl Volume {
    /// Begins a transaction, when what is under way has ended and is durable. There is one at a time, and it may take
    /// `time` at most: a caller that waits for it longer, or [`Volume::tick`], rolls it back. Its limit in size is what
    /// one generation can hold: [`WriteOptions::dirty_bytes`](crate::WriteOptions) of metadata, or less where the
    /// volume has no more free space for it; content is not limited but by free space, and blocks that it frees can be
    /// used when it is over. The call that exceeds the limit fails, and every one after it: once all calls were
    /// answered well, a commit finds space.
    ///
    /// # Errors
    /// [`Error::Unsupported`] on volumes that are not written with snapshots; [`Error::Busy`] where there is another;
    /// [`Error::Invalid`] within a call that changes something; as [`Volume::sync`].
    pub fn transaction(self: &Arc<Self>, time: Duration) -> Result<Transaction> {
        let gate = self.gate_of_transactions()?;
        let id = gate.begin(time)?;
        let begun = {
            let _charge = gate::in_charge();
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

    fn begin_in_transaction(&self) -> Result<Before> {
        self.flush_all_delayed()?;
        self.store.open_for_transaction()?;
        let writing = self.writing()?;
        writing.space.copy_content(true);
        Ok(Before { sums: writing.space.sums(), orphans: writing.orphans.remember() })
    }

    fn commit_transaction(&self, id: u64, notify: impl FnOnce(&DirtySet)) -> Result<()> {
        let gate = self.gate_of_transactions()?;
        let over = || gate.undone_with(id).unwrap_or_else(|| Error::Cancelled("it was over".into()));
        if !gate.end(id, None) {
            return Err(over());
        }
        let charge = gate::in_charge();
        let broken = gate.lock().as_ref().and_then(|now| now.broken.clone());
        let placed = match broken {
            Some(broken) => Err(broken.error()),
            None => self.flush_all_delayed(),
        };
        if let Err(e) = placed {
            drop(charge);
            gate.go_on();
            self.roll_back(id, Broken::Ended(e.to_string()), notify)?;
            return Err(e);
        }
        let committed = self.store.commit_transaction();
        self.writing()?.space.copy_content(false);
        drop(charge);
        gate.open(false);
        committed?;
        self.after_transaction()
    }
}

impl Transaction {
    /// Enters the transaction: all that this thread does until the answer is dropped is part of it. Several threads may
    /// be in it at once.
    ///
    /// A sync, or fsync, by a member returns at once: it is durable when the transaction is committed.
    pub fn enter(&self) -> Member<'_> {
        gate::enter(self.id)
    }

    /// Returns when all that was done is durable; a crash before leaves nothing of it. Calls of other members come to
    /// their end first.
    ///
    /// # Errors
    /// Then nothing of it is left: [`Error::TransactionTooLarge`], [`Error::NoSpace`] where content finds no place,
    /// [`Error::Cancelled`] where it was rolled back already. Where the device fails the volume is read-only, and
    /// whether it was committed is known when the volume is next opened.
    pub fn commit(self) -> Result<()> {
        self.commit_or(|_| ())
    }

    /// As [`Transaction::commit`], for a transaction that is shared. Calls after the first answer [`Error::Cancelled`].
    /// Where it has to be rolled back instead, `notify` is called as by [`Transaction::undo`].
    ///
    /// # Errors
    /// As [`Transaction::commit`].
    pub fn commit_or(&self, notify: impl FnOnce(&DirtySet)) -> Result<()> {
        self.volume.commit_transaction(self.id, notify)
    }

    /// Makes the volume what it was when the transaction began; returns what caches must forget of the transaction.
    /// Calls of other members, and calls that look at the volume, come to their end first.
    ///
    /// # Errors
    /// Those of the device; the volume is read-only then, and on the device nothing of the transaction is left.
    pub fn rollback(self) -> Result<DirtySet> {
        self.cancel("it was rolled back")
    }

    /// As [`Transaction::rollback`], for a transaction that is shared: calls of its members fail with `why`. Where it
    /// was rolled back before, the first call returns its dirty set.
    ///
    /// # Errors
    /// As [`Transaction::rollback`].
    pub fn cancel(&self, why: &str) -> Result<DirtySet> {
        self.undo(why, |_| ())?;
        Ok(self.volume.gate_of_transactions()?.take_dirty_set(self.id))
    }

    /// As [`Transaction::cancel`], for a caller with caches above the volume: `notify` is called with what they must
    /// forget before any other call can change the volume, and when calls that look at it see it as it was. It may ask
    /// the volume for what it likes, but must not wait for changes by others. Does nothing where the transaction is
    /// over.
    ///
    /// # Errors
    /// As [`Transaction::rollback`].
    pub fn undo(&self, why: &str, notify: impl FnOnce(&DirtySet)) -> Result<()> {
        self.volume.roll_back(self.id, Broken::Ended(why.to_owned()), notify)
    }

    /// From now on it can only be rolled back: calls of members that change anything are refused with `why`.
    pub fn doom(&self, why: &str) {
        let Some(gate) = self.volume.gate() else { return };
        if let Some(now) = gate.lock().as_mut().filter(|now| now.id == self.id) {
            now.broken.get_or_insert_with(|| Broken::Ended(why.to_owned()));
        }
    }

    /// Why it cannot be committed any more, or was rolled back.
    #[must_use]
    pub fn trouble(&self) -> Option<Error> {
        let gate = self.volume.gate()?;
        let now = gate.lock().as_ref().filter(|now| now.id == self.id).and_then(|now| now.broken.clone());
        now.map(|broken| broken.error()).or_else(|| gate.undone_with(self.id))
    }

    /// Whether it has made, changed or freed an inode so far.
    #[must_use]
    pub fn has_changed(&self, inode: InodeNo) -> bool {
        let Some(gate) = self.volume.gate() else { return false };
        gate.lock().as_ref().is_some_and(|now| now.id == self.id && now.dirty.inodes.contains(&inode))
    }

    /// Whether it has neither been committed nor rolled back.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.volume.gate().and_then(Gate::running) == Some(self.id)
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if self.is_running() {
            // an error is one of the device, which stays
            drop(self.volume.roll_back(self.id, Broken::Ended("it was dropped".into()), |_| ()));
        }
    }
}
