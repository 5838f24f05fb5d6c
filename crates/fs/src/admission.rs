//! Admission of changes to the volume, and rollback of transactions: each call that changes the volume is admitted here
//! before it takes any lock.

use crate::gate::{self, AbortReason, AtBegin, CallGuard, DirtySet, Gate};
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

    /// A guard for several calls that change the volume, so that no transaction begins between them; also for a caller
    /// that must not read during a rollback. Waits while a transaction runs of which this thread is not a member, and
    /// ends that transaction after its timeout. A thread with a [read guard](crate::Base::read_guard) must not call this.
    ///
    /// # Errors
    /// For a member: [`Error::TransactionTooLarge`] and [`Error::Cancelled`], if the transaction cannot continue.
    pub fn change_guard(&self) -> Result<CallGuard<'_>> {
        loop {
            if let Some(guard) = self.change_guard_within(Duration::MAX)? {
                return Ok(guard);
            }
        }
    }

    /// As [`Admission::change_guard`]; `None` if a transaction has not ended after `most`.
    ///
    /// # Errors
    /// As [`Admission::change_guard`].
    pub fn change_guard_within(&self, most: Duration) -> Result<Option<CallGuard<'_>>> {
        // an error of the rollback is an error of the device, which the next call returns
        let overdue = |id, why| drop(self.roll_back(id, why, |_| ()));
        match self.gate() {
            Some(gate) => gate.change(most, overdue),
            None => Ok(Some(gate::free())),
        }
    }

    /// As [`Admission::change_guard`], for operations that cannot be part of a transaction.
    ///
    /// # Errors
    /// [`Error::Invalid`] if this thread is a member of a transaction.
    pub(crate) fn change_guard_outside(&self) -> Result<CallGuard<'_>> {
        if gate::is_member() && self.gate().is_some_and(Gate::has_transaction) {
            return Err(Error::Invalid("this operation cannot be part of a transaction"));
        }
        self.change_guard()
    }

    /// As [`Admission::change_guard`], for a caller that needs all earlier changes durable. `None` while a transaction
    /// runs: changes before it are durable, and changes in it will be when it commits.
    pub(crate) fn change_guard_for_sync(&self) -> Result<Option<CallGuard<'_>>> {
        if !gate::is_changing() && self.gate().is_some_and(Gate::runs) {
            return Ok(None);
        }
        self.change_guard().map(Some)
    }

    /// Rolls back a transaction that has exceeded its timeout; returns whether a transaction still runs.
    pub(crate) fn has_transaction(&self) -> bool {
        let Some(gate) = self.gate().filter(|gate| gate.has_transaction()) else { return false };
        if let Some((id, why)) = gate.overdue() {
            // an error here is an error of the device, which persists
            drop(self.roll_back(id, why, |_| ()));
        }
        gate.has_transaction()
    }

    /// As [`Admission::change_guard`], for the last changes before unmounting: rolls back a transaction that still
    /// runs.
    pub(crate) fn last_change_guard(&self) -> Result<CallGuard<'_>> {
        loop {
            if let Some(guard) = self.try_change() {
                return Ok(guard);
            }
            if let Some(id) = self.gate().and_then(Gate::running) {
                self.roll_back(id, AbortReason::Ended("the volume is being unmounted".into()), |_| ())?;
            }
        }
    }

    /// Restores the state of the volume before the transaction; does nothing if the transaction has ended. Calls
    /// `notify` with the transaction's dirty set before any other change is admitted; calls that read the volume from
    /// `notify` see the restored state.
    pub(crate) fn roll_back(&self, id: u64, why: AbortReason, notify: impl FnOnce(&DirtySet)) -> Result<()> {
        let gate = self.gate_of_transactions()?;
        if !gate.end(id, Some(&why)) {
            return Ok(());
        }
        let undone = {
            let _charge = gate::transaction_guard();
            let before = gate
                .lock()
                .as_mut()
                .and_then(|now| Some((now.before.take()?, now.dirty.clone(), std::mem::take(&mut now.made))));
            before.map_or(Ok(()), |(before, dirty, made)| {
                let sizes = self.sizes_of_looked_up(&dirty.inodes);
                let led_to: Vec<_> = dirty.names.iter().map(|(dir, name)| self.leads_to(*dir, name)).collect();
                self.undo(before, &made)?;
                let longer = self.record_assumed(&sizes);
                // invalidating a name also detaches what the kernel has mounted beneath it, so only changed names are
                // reported
                let is_other = |((dir, name), led_to): &(&(InodeNo, Vec<u8>), Option<_>)| {
                    led_to.is_none() || *led_to != self.leads_to(*dir, name)
                };
                let names = dirty.names.iter().zip(led_to).filter(is_other).map(|(name, _)| name.clone()).collect();
                gate.record(|now| (now.dirty.longer, now.dirty.names) = (longer, names));
                Ok(())
            })
        };
        // the undo may be incomplete, and none of it must reach the device
        let undone = undone.inspect_err(|e| self.store.fail(e));
        notify(&gate.show());
        gate.open(true);
        undone.and(self.after_transaction())
    }

    fn undo(&self, begin: AtBegin, made: &BTreeSet<InodeNo>) -> Result<()> {
        let writing = self.writing()?;
        self.store.discard_transaction()?;
        self.cache.clear();
        self.nodes.undo();
        writing.orphans.undo(begin.orphans);
        if let Some(new) = &writing.new_inodes {
            new.clear();
        }
        writing.space.restore(self, begin.counts)?;
        writing.space.new_content.set_copied(false);
        for number in made {
            // parked before it is checked: a concurrent release finds one of the two
            writing.space.park_inode(*number);
            if !self.nodes.is_looked_up(*number) {
                writing.space.unpark_inode(*number);
            }
        }
        Ok(())
    }

    /// The inode number and the generation of the file that a name refers to.
    fn leads_to(&self, dir: InodeNo, name: &[u8]) -> Option<(InodeNo, u32)> {
        let number = self.lookup(&*self.inode(dir).ok()?, name).ok()?;
        Some((number, self.inode(number).ok()?.raw().disk.i_generation.get()))
    }

    /// The sizes of regular files with a lookup count, as the kernel caches them.
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

    /// Records the files whose size differs from the one the kernel assumes; returns those that are longer.
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

    /// Does the work that was postponed until the end of a transaction and that no call waits for.
    pub(crate) fn after_transaction(&self) -> Result<()> {
        // if another transaction has begun, its end is early enough
        let Some(_guard) = self.try_change() else { return Ok(()) };
        match self.free_released() {
            // the rest is freed when the volume is next opened for writing
            Err(Error::Corrupt { .. } | Error::ReadOnly(_)) => Ok(()),
            outcome => outcome,
        }
    }
}
