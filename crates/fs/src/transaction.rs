//! Transactions: several calls of which a crash, or the user's will, leaves all or nothing.
//!
//! Before a transaction begins everything is durable: generation G. What its members do is the one generation that follows,
//! which closes when the transaction is committed and no sooner. So G is on the device all the while, and nothing writes
//! over what G leads to: metadata never is, content is copied while a transaction runs, and what was freed is not given out.
//! Rolling back is therefore to forget: what was changed in memory is thrown away and read again from the device, and the
//! few sums that are nowhere else were noted when the transaction began.
//!
//! | in memory | when rolled back |
//! | --- | --- |
//! | changed blocks, blocks freed | the store drops them |
//! | inodes, names, pages | [`Touched`] says which, for caches above |
//! | cached inodes | dropped |
//! | content without a place, promises, sizes, hints | dropped: before, all content had its place |
//! | bitmaps and descriptors of changed groups | read again |
//! | sums of free blocks and inodes, superblock | as noted |
//! | blocks and inodes held until they are durable | forgotten: before, none was |
//! | orphans | as noted; those that nobody holds any more are freed then |
//! | which inodes are held from outside | stays: that is not the volume's; numbers that are held without a file are pinned |
//! | the size that holders of a file assume | noted, where it is another now: see [`Volume::write_with`] |
//! | damage that was found | stays |

use crate::alloc::Sums;
use crate::gate::{self, Broken, Gate, Inside, Pass, Touched};
use crate::orphan::Chain;
use crate::{Error, FileKind, InodeNo, Result, Volume};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// What a volume was when its transaction began.
pub(crate) struct Before {
    sums: Sums,
    orphans: Chain,
}

/// A transaction under way. What threads do that [entered](Transaction::enter) it happens whole, when it is
/// [committed](Transaction::commit), or not at all; other threads see it at once, and wait before they change anything
/// themselves. When it is dropped it is rolled back.
#[must_use = "a transaction that is dropped is rolled back"]
pub struct Transaction {
    volume: Arc<Volume>,
    id: u64,
}

impl Volume {
    /// Begins a transaction, when what is under way has ended and is durable. There is one at a time, and it may take `time`
    /// at most: somebody who waits for it longer, or [`Volume::tick`], rolls it back. Its limit in size is what one
    /// generation can hold: [`WriteOptions::dirty_bytes`](crate::WriteOptions) of metadata, or less where the volume has
    /// no more free space for it; content is not limited but by free space, and blocks that it frees can be used when it is
    /// over. The call that exceeds the limit is told so, and everyone after it: once all calls were answered well, a commit
    /// finds room.
    ///
    /// # Errors
    /// [`Error::Unsupported`] on volumes that are not written with snapshots; [`Error::Busy`] where there is another;
    /// [`Error::Invalid`] within a call that changes something; as [`Volume::sync`].
    pub fn transaction(self: &Arc<Self>, time: Duration) -> Result<Transaction> {
        let gate = self.gate_of_transactions()?;
        let id = gate.begin(time)?;
        let begun = {
            let _charge = gate::in_charge();
            self.begin_held()
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

    fn gate_of_transactions(&self) -> Result<&Gate<Before>> {
        let none = || Error::Unsupported("a transaction on a volume that is not written with snapshots".into());
        self.writing()?.gate.as_ref().ok_or_else(none)
    }

    fn begin_held(&self) -> Result<Before> {
        self.flush_all_delayed()?;
        self.store.hold_generation()?;
        let writing = self.writing()?;
        writing.space.copy_content(true);
        Ok(Before { sums: writing.space.sums(), orphans: writing.orphans.remember() })
    }

    /// Whether calls have to pass a gate.
    pub(crate) fn has_gate(&self) -> bool {
        self.gate().is_some()
    }

    fn gate(&self) -> Option<&Gate<Before>> {
        self.writing.as_ref()?.gate.as_ref()
    }

    /// To be held during several calls that change the volume, so that no transaction begins between them; and by whoever
    /// must not look while one is rolled back. Waits where a transaction is under way to which this thread does not belong,
    /// and ends it where it has taken too long. A thread that holds a pass for [looking](Volume::looking) must not ask.
    ///
    /// # Errors
    /// Of a member: [`Error::TransactionTooLarge`] and [`Error::Cancelled`], where the transaction cannot go on.
    pub fn changing(&self) -> Result<Pass<'_>> {
        loop {
            if let Some(pass) = self.changing_within(Duration::MAX)? {
                return Ok(pass);
            }
        }
    }

    /// As [`Volume::changing`]; `None` where a transaction has not ended after `most`.
    ///
    /// # Errors
    /// As [`Volume::changing`].
    pub fn changing_within(&self, most: Duration) -> Result<Option<Pass<'_>>> {
        // the error of a rollback is one of the device, which the call that follows meets
        let overdue = |id, why| drop(self.roll_back(id, why, |_| ()));
        match self.gate() {
            Some(gate) => gate.change(most, overdue),
            None => Ok(Some(gate::free())),
        }
    }

    /// As [`Volume::changing`], where that is possible at once.
    #[must_use]
    pub fn try_change(&self) -> Option<Pass<'_>> {
        self.gate().map_or_else(|| Some(gate::free()), Gate::try_change)
    }

    /// To be held during several calls that look at the volume: no transaction is rolled back meanwhile.
    pub fn looking(&self) -> Pass<'_> {
        self.gate().map_or_else(gate::free, Gate::look)
    }

    /// As [`Volume::changing`] for what cannot be part of a transaction.
    ///
    /// # Errors
    /// [`Error::Invalid`] where this thread is a member of one.
    pub(crate) fn changing_outside(&self) -> Result<Pass<'_>> {
        if gate::is_member() && self.gate().is_some_and(Gate::is_closed) {
            return Err(Error::Invalid("this cannot be part of a transaction"));
        }
        self.changing()
    }

    /// As [`Volume::changing`] for whoever wants everything durable that was done before. `None` while a transaction runs:
    /// what was done before it is durable, and what is done in it will be when it is committed.
    pub(crate) fn changing_to_sync(&self) -> Result<Option<Pass<'_>>> {
        if !gate::is_changing() && self.gate().is_some_and(Gate::runs) {
            return Ok(None);
        }
        self.changing().map(Some)
    }

    /// Whether a call that changes something would have to wait for a transaction to which this thread does not belong.
    #[must_use]
    pub fn would_wait(&self) -> bool {
        self.gate().is_some_and(Gate::would_wait)
    }

    pub(crate) fn note_inode(&self, number: InodeNo) {
        if let Some(gate) = self.gate() {
            gate.note(|now| {
                now.touched.inodes.insert(number);
            });
        }
    }

    /// The number was free, and a file gets it.
    pub(crate) fn note_made(&self, number: InodeNo) {
        if let Some(gate) = self.gate() {
            gate.note(|now| {
                now.made.insert(number);
            });
        }
    }

    /// Whether a number that is freed was in use before the transaction that there is began. It may be so again, and must
    /// not be somebody else's meanwhile: who learned it in the transaction would take the one for the other.
    pub(crate) fn is_of_before(&self, number: InodeNo) -> bool {
        let mut is = false;
        if let Some(gate) = self.gate() {
            gate.note(|now| is = !now.made.contains(&number));
        }
        is
    }

    pub(crate) fn note_name(&self, dir: InodeNo, name: &[u8]) {
        if let Some(gate) = self.gate() {
            gate.note(|now| {
                now.touched.names.insert((dir, name.to_vec()));
            });
        }
    }

    /// An operation did not fit into the transaction.
    pub(crate) fn note_too_large(&self, error: &Error) {
        if let (Error::TransactionTooLarge { limit }, Some(gate)) = (error, self.gate()) {
            gate.note(|now| {
                now.broken.get_or_insert(Broken::TooLarge(*limit));
            });
        }
    }

    /// Whether there is a transaction: what is done now is durable when it ends.
    pub(crate) fn in_transaction(&self) -> bool {
        self.gate().is_some_and(Gate::is_closed)
    }

    /// Rolls back a transaction that has taken too long; whether there is one under way still.
    pub(crate) fn has_transaction(&self) -> bool {
        let Some(gate) = self.gate().filter(|gate| gate.is_closed()) else { return false };
        if let Some((id, why)) = gate.overdue() {
            // what it meets is an error of the device, which stays
            drop(self.roll_back(id, why, |_| ()));
        }
        gate.is_closed()
    }

    /// Passes for the last changes to a volume that is put away: a transaction that is under way is rolled back.
    pub(crate) fn changing_at_last(&self) -> Result<Pass<'_>> {
        loop {
            if let Some(pass) = self.try_change() {
                return Ok(pass);
            }
            if let Some(id) = self.gate().and_then(Gate::running) {
                self.roll_back(id, Broken::Ended("the volume is being unmounted".into()), |_| ())?;
            }
        }
    }

    /// The volume is what it was when the transaction began. Does nothing where that is over. `tell` is called before
    /// others may change anything, with what the transaction had touched; whoever looks then sees the volume as it is.
    fn roll_back(&self, id: u64, why: Broken, tell: impl FnOnce(&Touched)) -> Result<()> {
        let gate = self.gate_of_transactions()?;
        if !gate.end(id, Some(&why)) {
            return Ok(());
        }
        let undone = {
            let _charge = gate::in_charge();
            let before = gate
                .lock()
                .as_mut()
                .and_then(|now| Some((now.before.take()?, now.touched.clone(), std::mem::take(&mut now.made))));
            before.map_or(Ok(()), |(before, touched, made)| {
                let sizes = self.sizes_of_held(&touched.inodes);
                let led_to: Vec<_> = touched.names.iter().map(|(dir, name)| self.leads_to(*dir, name)).collect();
                self.undo(before, &made)?;
                let longer = self.note_assumed(&sizes);
                // whoever forgets a name forgets what is mounted below it, too: not where nothing has changed
                let is_other = |((dir, name), led_to): &(&(InodeNo, Vec<u8>), Option<_>)| {
                    led_to.is_none() || *led_to != self.leads_to(*dir, name)
                };
                let names = touched.names.iter().zip(led_to).filter(is_other).map(|(name, _)| name.clone()).collect();
                gate.note(|now| (now.touched.longer, now.touched.names) = (longer, names));
                Ok(())
            })
        };
        // half of it may be there, and nothing of it must reach the device
        let undone = undone.inspect_err(|e| self.store.fail(e));
        tell(&gate.show());
        gate.open(true);
        undone.and(self.after_transaction())
    }

    fn undo(&self, before: Before, made: &BTreeSet<InodeNo>) -> Result<()> {
        let writing = self.writing()?;
        self.store.discard_held()?;
        self.inodes.clear();
        self.nodes.undo();
        writing.orphans.undo(before.orphans);
        if let Some(native) = &self.native {
            native.made_nothing();
        }
        writing.space.undo(self, before.sums)?;
        writing.space.copy_content(false);
        for number in made {
            // first pinned, then looked at: whoever lets go of it meanwhile finds one of the two
            writing.space.pin_inode(*number);
            if !self.nodes.is_held(*number) {
                writing.space.unpin_inode(*number);
            }
        }
        Ok(())
    }

    /// The file that a name leads to, and its generation.
    fn leads_to(&self, dir: InodeNo, name: &[u8]) -> Option<(InodeNo, u32)> {
        let number = self.lookup(&*self.inode(dir).ok()?, name).ok()?;
        Some((number, self.inode(number).ok()?.raw().disk.i_generation.get()))
    }

    /// The sizes of regular files that are held, as whoever holds them knows them.
    fn sizes_of_held(&self, touched: &BTreeSet<InodeNo>) -> Vec<(InodeNo, u64)> {
        let held = touched.iter().filter(|number| self.nodes.is_held(**number));
        let size = |number: &InodeNo| {
            let inode = self.inode(*number).ok().filter(|inode| inode.kind == FileKind::Regular)?;
            let node = self.node(*number);
            let state = node.read();
            Some((*number, state.assumed.unwrap_or(state.size_of(&inode))))
        };
        held.filter_map(size).collect()
    }

    /// Notes which files have another size than is assumed of them; gives those that are longer.
    fn note_assumed(&self, sizes: &[(InodeNo, u64)]) -> BTreeSet<InodeNo> {
        let mut longer = BTreeSet::new();
        for (number, assumed) in sizes {
            let Ok(inode) = self.inode(*number) else { continue };
            if inode.kind != FileKind::Regular {
                continue;
            }
            self.node(*number).write().assumed = (inode.size != *assumed).then_some(*assumed);
            if inode.size > *assumed {
                longer.insert(*number);
            }
        }
        longer
    }

    fn commit_transaction(&self, id: u64, tell: impl FnOnce(&Touched)) -> Result<()> {
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
            self.roll_back(id, Broken::Ended(e.to_string()), tell)?;
            return Err(e);
        }
        let committed = self.store.commit_held();
        self.writing()?.space.copy_content(false);
        drop(charge);
        gate.open(false);
        committed?;
        self.after_transaction()
    }

    /// What waited for the end of a transaction and does not wait for itself.
    fn after_transaction(&self) -> Result<()> {
        // where another one has begun, its end is soon enough
        let Some(_pass) = self.try_change() else { return Ok(()) };
        match self.free_released() {
            // what is left is freed when the volume is next opened for writing
            Err(Error::Corrupt { .. } | Error::ReadOnly(_)) => Ok(()),
            outcome => outcome,
        }
    }
}

impl Transaction {
    /// What this thread does until the answer is dropped is part of the transaction. Several threads may be in it at once.
    ///
    /// A sync, or fsync, by a member returns at once: it is durable when the transaction is committed.
    pub fn enter(&self) -> Inside<'_> {
        gate::enter(self.id)
    }

    /// Returns when all that was done is durable; a crash before leaves nothing of it. Calls of other members come to their
    /// end first.
    ///
    /// # Errors
    /// Then nothing of it is left: [`Error::TransactionTooLarge`], [`Error::NoSpace`] where content finds no place,
    /// [`Error::Cancelled`] where it was rolled back already. Where the device fails the volume is read-only, and whether it
    /// was committed is known when the volume is next opened.
    pub fn commit(self) -> Result<()> {
        self.commit_or(|_| ())
    }

    /// As [`Transaction::commit`], for a transaction that is shared. Calls after the first answer [`Error::Cancelled`].
    /// Where it has to be rolled back instead, `tell` is called as [`Transaction::undo`] does.
    ///
    /// # Errors
    /// As [`Transaction::commit`].
    pub fn commit_or(&self, tell: impl FnOnce(&Touched)) -> Result<()> {
        self.volume.commit_transaction(self.id, tell)
    }

    /// The volume is what it was when the transaction began; what somebody may remember of the transaction is the answer.
    /// Calls of other members, and of whoever looks at the volume, come to their end first.
    ///
    /// # Errors
    /// Those of the device; the volume is read-only then, and on the device nothing of the transaction is left.
    pub fn rollback(self) -> Result<Touched> {
        self.cancel("it was rolled back")
    }

    /// As [`Transaction::rollback`], for a transaction that is shared: whoever works in it is told `why`. Where it was
    /// rolled back before, what it touched is given to the first who asks.
    ///
    /// # Errors
    /// As [`Transaction::rollback`].
    pub fn cancel(&self, why: &str) -> Result<Touched> {
        self.undo(why, |_| ())?;
        Ok(self.volume.gate_of_transactions()?.take_touched(self.id))
    }

    /// As [`Transaction::cancel`], for whoever has caches above the volume: `tell` is called with what they must forget
    /// before anybody else can change the volume, and when whoever looks at it sees it as it was. It may ask the volume
    /// for what it likes, but must not wait for changes by others. Does nothing where the transaction is over.
    ///
    /// # Errors
    /// As [`Transaction::rollback`].
    pub fn undo(&self, why: &str, tell: impl FnOnce(&Touched)) -> Result<()> {
        self.volume.roll_back(self.id, Broken::Ended(why.to_owned()), tell)
    }

    /// From now on it can only be rolled back: calls of members that change anything are refused, and told `why`.
    pub fn spoil(&self, why: &str) {
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
    pub fn has_touched(&self, inode: InodeNo) -> bool {
        let Some(gate) = self.volume.gate() else { return false };
        gate.lock().as_ref().is_some_and(|now| now.id == self.id && now.touched.inodes.contains(&inode))
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
