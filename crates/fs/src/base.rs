//! The second layer: the base of all parts of a volume, its blocks, its free space, and admission of changes.

use crate::alloc::Space;
use crate::disk::Disk;
use crate::gate::{self, AbortReason, AtBegin, CallGuard, Gate};
use crate::layers::stands_on;
use crate::mode::Consistency;
use crate::new_inodes::NewInodes;
use crate::options::{WriteOptions, system_time};
use crate::orphan_list::OrphanList;
use crate::wakeup::Wakeup;
use crate::{Error, Result, Warning};
use format::InodeNo;
use format::extent;
use format::feature::{Incompat, RoCompat};
use format::inode::{EXTRA_ISIZE, Inode, InodeBuf, InodeFlags, Timestamp};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use store::engine::Limits;

/// The base of all parts of a volume.
pub struct Base {
    pub(crate) disk: Disk,
    /// Set if it is open for writing.
    pub(crate) writing: Option<Writing>,
    pub(crate) warnings: Vec<Warning>,
}

stands_on!(Base, disk: Disk);

/// The state of a volume open for writing, in addition to the cache.
pub(crate) struct Writing {
    pub(crate) options: WriteOptions,
    pub(crate) consistency: Consistency,
    pub(crate) space: Arc<Space>,
    /// Blocks used by the volume's own structures, computed on first use.
    pub(crate) overhead: OnceLock<u64>,
    /// Inodes without a name that have a lookup count, and those whose truncation has not finished.
    pub(crate) orphans: OrphanList,
    /// The gate; set if transactions are possible.
    pub(crate) gate: Option<Gate<AtBegin>>,
    /// A crash leaves each operation complete or not done at all.
    pub(crate) is_atomic: bool,
    /// The new inodes; set if the engine does not write unchanged blocks.
    pub(crate) new_inodes: Option<NewInodes>,
    /// Wakes the background thread.
    pub(crate) wakeup: Arc<Wakeup>,
    /// Maximum number of bytes of delayed data, under the current memory budget.
    pub(crate) most_delayed: AtomicUsize,
}

impl Writing {
    pub(crate) fn new(options: WriteOptions, consistency: Consistency, limits: &Limits, space: Arc<Space>) -> Self {
        Self {
            most_delayed: AtomicUsize::new(options.delayed_bytes),
            options,
            consistency,
            space,
            overhead: OnceLock::new(),
            orphans: OrphanList::default(),
            gate: limits.can_discard.then(Gate::new),
            is_atomic: limits.atomic,
            new_inodes: limits.elides_unchanged.then(NewInodes::default),
            wakeup: Arc::default(),
        }
    }

    /// Maximum number of bytes of delayed data.
    pub(crate) fn most_delayed(&self) -> usize {
        self.most_delayed.load(Ordering::Relaxed)
    }
}

impl Base {
    /// A volume as on its device, for reading.
    pub(crate) fn over(disk: Disk) -> Self {
        Self { disk, writing: None, warnings: Vec::new() }
    }

    pub(crate) fn writing(&self) -> Result<&Writing> {
        self.writing.as_ref().ok_or_else(|| store::Error::ReadOnly.into())
    }

    pub(crate) fn space(&self) -> Result<&Arc<Space>> {
        Ok(&self.writing()?.space)
    }

    /// Whether a crash leaves each operation complete or not done at all. Otherwise the writes of an operation can reach
    /// the device in part, until [`Volume::sync`](crate::Volume::sync) returns.
    #[must_use]
    pub fn is_atomic(&self) -> bool {
        self.writing.as_ref().is_some_and(|writing| writing.is_atomic)
    }

    /// Whether the volume is open for writing.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.writing.is_some()
    }

    /// The mode that preserves consistency through a crash; `None` if it is open for reading only.
    #[must_use]
    pub fn consistency(&self) -> Option<Consistency> {
        self.writing.as_ref().map(|writing| writing.consistency)
    }

    /// The current time.
    pub(crate) fn now(&self) -> Timestamp {
        self.writing.as_ref().map_or_else(system_time, |w| (w.options.clock)())
    }

    /// Whether an inode has no name any more, but is still in use.
    pub(crate) fn is_orphan(&self, number: InodeNo) -> bool {
        self.writing.as_ref().is_some_and(|w| w.orphans.contains(number))
    }

    /// Whether a number is parked: the kernel still uses it for a file that a rollback undid.
    pub(crate) fn is_parked(&self, number: InodeNo) -> bool {
        self.writing.as_ref().is_some_and(|writing| writing.space.is_parked(number))
    }

    /// Warnings about the volume for the user.
    #[must_use]
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// Checks that a file's flags permit changing, removing and renaming it.
    pub(crate) fn may_change(&self, inode: &Inode) -> Result<()> {
        if inode.raw().flags().intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND) {
            return Err(Error::NotPermitted("the file is immutable or append-only"));
        }
        Ok(())
    }

    /// Size of the extra fields of new inodes, in bytes.
    pub(crate) fn extra_isize(&self) -> u16 {
        if !self.sb.features.ro_compat.contains(RoCompat::EXTRA_ISIZE) {
            return EXTRA_ISIZE;
        }
        let wanted = self.sb.disk.s_want_extra_isize.get().max(self.sb.disk.s_min_extra_isize.get());
        let fits = u32::from(wanted) + 128 <= self.sb.geometry.inode_size && wanted.is_multiple_of(4);
        if fits { wanted.max(EXTRA_ISIZE) } else { EXTRA_ISIZE }
    }

    /// Initializes an empty map in an inode, in the form used for new files of the volume.
    pub(crate) fn make_map(&self, buf: &mut InodeBuf) {
        let mut flags = buf.raw().flags();
        let mut block = [0; 60];
        let extents = self.sb.features.incompat.contains(Incompat::EXTENT);
        // an empty list fits
        let made = extents && extent::write_leaf(&mut block, &[]).is_some();
        flags.set(InodeFlags::EXTENTS, made);
        buf.set_flags(flags);
        buf.set_block(block);
    }

    pub(crate) fn gate_of_transactions(&self) -> Result<&Gate<AtBegin>> {
        let none = || Error::Unsupported("a transaction on a volume not mounted with `consistency=snapshot`".into());
        self.writing()?.gate.as_ref().ok_or_else(none)
    }

    /// Whether calls have to pass a gate.
    pub(crate) fn has_gate(&self) -> bool {
        self.gate().is_some()
    }

    pub(crate) fn gate(&self) -> Option<&Gate<AtBegin>> {
        self.writing.as_ref()?.gate.as_ref()
    }

    /// As [`Admission::change_guard`](crate::Admission::change_guard), if possible without waiting.
    #[must_use]
    pub fn try_change(&self) -> Option<CallGuard<'_>> {
        self.gate().map_or_else(|| Some(gate::free()), Gate::try_change)
    }

    /// A guard for several calls that read the volume: no transaction is rolled back meanwhile.
    pub fn read_guard(&self) -> CallGuard<'_> {
        self.gate().map_or_else(gate::free, Gate::read)
    }

    /// Whether a changing call would have to wait for a transaction of which this thread is not a member.
    #[must_use]
    pub fn would_wait(&self) -> bool {
        self.gate().is_some_and(Gate::would_wait)
    }

    /// Whether this thread is a member of the current transaction.
    #[must_use]
    pub fn is_member_of_current(&self) -> bool {
        self.gate().is_some_and(Gate::is_member_of_current)
    }

    /// The number of times that a transaction has begun or ended: if it is the same before and after a call had to
    /// wait, no transaction has changed anything meanwhile.
    #[must_use]
    pub fn transaction_sequence(&self) -> u64 {
        self.gate().map_or(0, Gate::transaction_sequence)
    }

    pub(crate) fn record_inode(&self, number: InodeNo) {
        if let Some(gate) = self.gate() {
            gate.record(|now| {
                now.dirty.inodes.insert(number);
            });
        }
    }

    /// Records an inode number that was free and is allocated to a file.
    pub(crate) fn record_made(&self, number: InodeNo) {
        if let Some(gate) = self.gate() {
            gate.record(|now| {
                now.made.insert(number);
            });
        }
    }

    /// Whether a number being freed was in use before the current transaction began. A rollback may restore that use,
    /// so it must not be reused meanwhile: a member that cached the number would confuse the two files.
    pub(crate) fn predates_transaction(&self, number: InodeNo) -> bool {
        let mut is = false;
        if let Some(gate) = self.gate() {
            gate.record(|now| is = !now.made.contains(&number));
        }
        is
    }

    pub(crate) fn record_name(&self, dir: InodeNo, name: &[u8]) {
        if let Some(gate) = self.gate() {
            gate.record(|now| {
                now.dirty.names.insert((dir, name.to_vec()));
            });
        }
    }

    /// Records that an operation did not fit into the transaction.
    pub(crate) fn record_too_large(&self, error: &Error) {
        if let (Error::TransactionTooLarge { limit }, Some(gate)) = (error, self.gate()) {
            gate.record(|now| {
                now.aborted.get_or_insert(AbortReason::TooLarge(*limit));
            });
        }
    }

    /// Whether a transaction runs: changes made now become durable when it ends.
    pub(crate) fn in_transaction(&self) -> bool {
        self.gate().is_some_and(Gate::has_transaction)
    }
}
