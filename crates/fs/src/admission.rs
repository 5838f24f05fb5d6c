//! Admission of changes to the volume, and rollback of transactions: every call that changes something is admitted here
//! before it locks anything.

use crate::gate::{self, Before, Broken, CallGuard, DirtySet, Gate};
use crate::layers::stands_on;
use crate::{Error, FileKind, InodeNo, Maps, Orphans, Result};
use std::collections::BTreeSet;
use std::time::Duration;

/// Admission of changes to the volume, and rollback of transactions.
pub struct Admission {
    orphans: Orphans,
}

stands_on!(Admission, orphans: Orphans);

impl Admission {
    pub(crate) fn over(maps: Maps) -> Self {
        Self { orphans: Orphans::over(maps) }
    }

    /// A guard for several calls that change the volume, so that no transaction begins between them; and for a caller
    /// that must not look while one is rolled back. Waits where a transaction is under way to which this thread does
    /// not belong, and ends it where it has taken too long. A thread that has a guard for
    /// [looking](crate::Base::looking) must not ask.
    ///
    /// # Errors
    /// Of a member: [`Error::TransactionTooLarge`] and [`Error::Cancelled`], where the transaction cannot go on.
    pub fn changing(&self) -> Result<CallGuard<'_>> {
        loop {
            if let Some(guard) = self.changing_within(Duration::MAX)? {
                return Ok(guard);
            }
        }
    }

    /// As [`Admission::changing`]; `None` where a transaction has not ended after `most`.
    ///
    /// # Errors
    /// As [`Admission::changing`].
    pub fn changing_within(&self, most: Duration) -> Result<Option<CallGuard<'_>>> {
        // the error of a rollback is one of the device, which the call that follows meets
        let overdue = |id, why| drop(self.roll_back(id, why, |_| ()));
        match self.gate() {
            Some(gate) => gate.change(most, overdue),
            None => Ok(Some(gate::free())),
        }
    }

    /// As [`Admission::changing`] for what cannot be part of a transaction.
    ///
    /// # Errors
    /// [`Error::Invalid`] where this thread is a member of one.
    pub(crate) fn changing_outside(&self) -> Result<CallGuard<'_>> {
        if gate::is_member() && self.gate().is_some_and(Gate::has_transaction) {
            return Err(Error::Invalid("this operation cannot be part of a transaction"));
        }
        self.changing()
    }

    /// As [`Admission::changing`], for a caller that wants everything durable that was done before. `None` while a
    /// transaction runs: what was done before it is durable, and what is done in it will be when it is committed.
    pub(crate) fn changing_to_sync(&self) -> Result<Option<CallGuard<'_>>> {
        if !gate::is_changing() && self.gate().is_some_and(Gate::runs) {
            return Ok(None);
        }
        self.changing().map(Some)
    }

    /// Rolls back a transaction that has taken too long; whether there is one under way still.
    pub(crate) fn has_transaction(&self) -> bool {
        let Some(gate) = self.gate().filter(|gate| gate.has_transaction()) else { return false };
        if let Some((id, why)) = gate.overdue() {
            // what it meets is an error of the device, which stays
            drop(self.roll_back(id, why, |_| ()));
        }
        gate.has_transaction()
    }

    /// Passes for the last changes to a volume that is unmounted: a transaction that is under way is rolled back.
    pub(crate) fn changing_at_last(&self) -> Result<CallGuard<'_>> {
        loop {
            if let Some(guard) = self.try_change() {
                return Ok(guard);
            }
            if let Some(id) = self.gate().and_then(Gate::running) {
                self.roll_back(id, Broken::Ended("the volume is being unmounted".into()), |_| ())?;
            }
        }
    }

    /// The volume is what it was when the transaction began. Does nothing where that is over. `notify` is called
    /// before others may change anything, with the dirty set of the transaction; a call that looks then sees the volume
    /// as it is.
    pub(crate) fn roll_back(&self, id: u64, why: Broken, notify: impl FnOnce(&DirtySet)) -> Result<()> {
        let gate = self.gate_of_transactions()?;
        if !gate.end(id, Some(&why)) {
            return Ok(());
        }
        let undone = {
            let _charge = gate::in_charge();
            let before = gate
                .lock()
                .as_mut()
                .and_then(|now| Some((now.before.take()?, now.dirty.clone(), std::mem::take(&mut now.made))));
            before.map_or(Ok(()), |(before, dirty, made)| {
                let sizes = self.sizes_of_looked_up(&dirty.inodes);
                let led_to: Vec<_> = dirty.names.iter().map(|(dir, name)| self.leads_to(*dir, name)).collect();
                self.undo(before, &made)?;
                let longer = self.record_assumed(&sizes);
                // with a name the kernel forgets what is mounted beneath it, too: not where nothing has changed
                let is_other = |((dir, name), led_to): &(&(InodeNo, Vec<u8>), Option<_>)| {
                    led_to.is_none() || *led_to != self.leads_to(*dir, name)
                };
                let names = dirty.names.iter().zip(led_to).filter(is_other).map(|(name, _)| name.clone()).collect();
                gate.record(|now| (now.dirty.longer, now.dirty.names) = (longer, names));
                Ok(())
            })
        };
        // half of it may be there, and nothing of it must reach the device
        let undone = undone.inspect_err(|e| self.store.fail(e));
        notify(&gate.show());
        gate.open(true);
        undone.and(self.after_transaction())
    }

    fn undo(&self, before: Before, made: &BTreeSet<InodeNo>) -> Result<()> {
        let writing = self.writing()?;
        self.store.discard_transaction()?;
        self.cache.clear();
        self.nodes.undo();
        writing.orphans.undo(before.orphans);
        if let Some(new) = &writing.new_inodes {
            new.clear();
        }
        writing.space.undo(self, before.sums)?;
        writing.space.copy_content(false);
        for number in made {
            // first parked, then looked at: a release meanwhile finds one of the two
            writing.space.park_inode(*number);
            if !self.nodes.is_looked_up(*number) {
                writing.space.unpark_inode(*number);
            }
        }
        Ok(())
    }

    /// The file that a name leads to, and its generation.
    fn leads_to(&self, dir: InodeNo, name: &[u8]) -> Option<(InodeNo, u32)> {
        let number = self.lookup(&*self.inode(dir).ok()?, name).ok()?;
        Some((number, self.inode(number).ok()?.raw().disk.i_generation.get()))
    }

    /// The sizes of regular files that are looked up, as the kernel knows them.
    fn sizes_of_looked_up(&self, dirty: &BTreeSet<InodeNo>) -> Vec<(InodeNo, u64)> {
        let looked_up = dirty.iter().filter(|number| self.nodes.is_looked_up(**number));
        let size = |number: &InodeNo| {
            let inode = self.inode(*number).ok().filter(|inode| inode.kind == FileKind::Regular)?;
            let node = self.node(*number);
            let state = node.read();
            Some((*number, state.assumed.unwrap_or(state.size_of(&inode))))
        };
        looked_up.filter_map(size).collect()
    }

    /// Notes which files have another size than is assumed of them; returns those that are longer.
    fn record_assumed(&self, sizes: &[(InodeNo, u64)]) -> BTreeSet<InodeNo> {
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

    /// Does the work that was put off until the end of a transaction and for which no call waits.
    pub(crate) fn after_transaction(&self) -> Result<()> {
        // where another one has begun, its end is soon enough
        let Some(_guard) = self.try_change() else { return Ok(()) };
        match self.free_released() {
            // what is left is freed when the volume is next opened for writing
            Err(Error::Corrupt { .. } | Error::ReadOnly(_)) => Ok(()),
            outcome => outcome,
        }
    }
}
