//! Admission of calls that change or read a volume, while a transaction or a single call has exclusive use of it.
//!
//! Each call that changes the volume, or reads what may change, passes the gate before it takes any lock; nested calls
//! pass without waiting. So no call waits here while it has a lock.
//!
//! | | changes by members | changes by others | reading |
//! | --- | --- | --- | --- |
//! | no transaction | | at once | at once |
//! | a transaction begins or ends | wait | wait | at once |
//! | one call has exclusive use | | wait | at once |
//! | a transaction runs | at once | wait, until its timeout | at once |
//! | it is being rolled back | refused | wait | wait |
//! | it is rolled back, and caches above are being invalidated | refused | wait | at once |

use crate::alloc::DurableCounts;
use crate::orphan_list::Chain;
use crate::{Error, InodeNo, Result};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// State bit of the gate: changes are admitted only from members of the transaction.
const CLOSED: u8 = 1;
/// State bit of the gate: no reading calls are admitted.
const STILL: u8 = 2;

/// Maximum sleep of a wait without a timeout of its own, before it checks again.
const RECHECK_INTERVAL: Duration = Duration::from_millis(100);

static NEXT: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// Number of changing calls in progress in this thread.
    static CHANGES: Cell<u32> = const { Cell::new(0) };
    /// Number of reading calls in progress in this thread.
    static READING_CALLS: Cell<u32> = const { Cell::new(0) };
    /// The transaction that this thread is a member of; 0 for none.
    static MEMBER: Cell<u64> = const { Cell::new(0) };
}

/// The reason why a transaction can only be rolled back.
#[derive(Debug, Clone)]
pub(crate) enum AbortReason {
    /// More changes than a generation can contain: the limit in metadata blocks.
    TooLarge(usize),
    /// An exceeded timeout.
    TimedOut(Duration),
    /// An end on request, with the reason.
    Ended(String),
}

impl AbortReason {
    pub(crate) fn error(&self) -> Error {
        match self {
            Self::TooLarge(limit) => Error::TransactionTooLarge { limit: *limit },
            Self::TimedOut(time) => Error::Cancelled(format!("it exceeded its time limit of {} s", time.as_secs_f32())),
            Self::Ended(why) => Error::Cancelled(why.clone()),
        }
    }
}

/// The inodes and names changed by a transaction: caches above the volume must invalidate them when it is rolled back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DirtySet {
    /// Inodes created, changed or freed.
    pub inodes: BTreeSet<InodeNo>,
    /// Names created, changed or removed, or attempted to be, each with its directory.
    pub names: BTreeSet<(InodeNo, Vec<u8>)>,
    /// Of those inodes, regular files with a lookup count that are longer than before the rollback.
    pub longer: BTreeSet<InodeNo>,
}

/// The state of a volume when its transaction began.
pub(crate) struct AtBegin {
    pub(crate) counts: DurableCounts,
    pub(crate) orphans: Chain,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// No transaction: one call excludes all other changes.
    Alone,
    Begins,
    Runs,
    Ends,
}

/// The current transaction.
pub(crate) struct Current<B> {
    pub(crate) id: u64,
    pub(crate) phase: Phase,
    limit: Duration,
    deadline: Option<Instant>,
    pub(crate) aborted: Option<AbortReason>,
    /// The state needed to roll it back.
    pub(crate) before: Option<B>,
    pub(crate) dirty: DirtySet,
    /// Inode numbers that were free when it began and that it allocated to files.
    pub(crate) made: BTreeSet<InodeNo>,
}

/// The last transaction that was rolled back.
#[derive(Default)]
pub(crate) struct RolledBack {
    id: u64,
    why: Option<AbortReason>,
    dirty: DirtySet,
}

/// The gate of a volume.
pub(crate) struct Gate<B> {
    state: AtomicU8,
    changes: AtomicUsize,
    reads: AtomicUsize,
    /// A thread waits for one of the two counts to become zero.
    emptying: AtomicBool,
    current: Mutex<Option<Current<B>>>,
    rolled_back: Mutex<RolledBack>,
    /// Notified when one of the counts becomes zero while a thread waits for that, and when a phase begins.
    wakeup: Condvar,
    /// The number of times that a transaction has begun or ended.
    transaction_sequence: AtomicU64,
}

/// The answer to a call at a gate that is not open.
enum Answer {
    Admitted,
    Wait,
    Refused(Error),
}

type Depth = &'static std::thread::LocalKey<Cell<u32>>;

/// A guard for a call in progress: no transaction begins, ends or is rolled back meanwhile, as far as that affects the
/// call.
#[must_use]
pub struct CallGuard<'g> {
    /// The count to decrement on drop; `None` for a nested call.
    count: Option<(&'g AtomicUsize, &'g dyn Wake)>,
    /// The count of this thread to decrement.
    depth: Option<Depth>,
    /// A marker that binds the guard to this thread.
    thread: PhantomData<*const ()>,
}

/// Wakes threads that wait for a count to become zero.
trait Wake {
    fn wake(&self);
}

impl<B> Wake for Gate<B> {
    fn wake(&self) {
        if self.emptying.load(SeqCst) {
            drop(self.lock());
            self.wakeup.notify_all();
        }
    }
}

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        if let Some(depth) = self.depth {
            depth.set(depth.get() - 1);
        }
        if let Some((count, wakeup)) = self.count
            && count.fetch_sub(1, SeqCst) == 1
        {
            wakeup.wake();
        }
    }
}

/// Membership of this thread in a transaction, until it is dropped.
#[must_use]
pub struct Member<'t> {
    before: u64,
    transaction: PhantomData<&'t ()>,
    thread: PhantomData<*const ()>,
}

impl Drop for Member<'_> {
    fn drop(&mut self) {
        MEMBER.set(self.before);
    }
}

/// Makes this thread a member of a transaction.
pub(crate) fn enter<'t>(id: u64) -> Member<'t> {
    Member { before: MEMBER.replace(id), transaction: PhantomData, thread: PhantomData }
}

/// A guard for a nested call.
fn nested(depth: Depth) -> CallGuard<'static> {
    depth.set(depth.get() + 1);
    CallGuard { count: None, depth: Some(depth), thread: PhantomData }
}

/// A guard for a volume without a gate.
pub(crate) fn free<'g>() -> CallGuard<'g> {
    CallGuard { count: None, depth: None, thread: PhantomData }
}

/// A guard for the thread that begins or ends a transaction.
pub(crate) fn transaction_guard() -> CallGuard<'static> {
    nested(&CHANGES)
}

/// Whether this thread is a member of a transaction.
pub(crate) fn is_member() -> bool {
    MEMBER.get() != 0
}

/// Whether this thread is within a changing call.
pub(crate) fn is_changing() -> bool {
    CHANGES.get() > 0
}

/// A call that excludes all other changes, until this is dropped.
pub(crate) struct Alone<'g, B> {
    charge: Option<CallGuard<'static>>,
    gate: &'g Gate<B>,
}

impl<B> Drop for Alone<'_, B> {
    fn drop(&mut self) {
        drop(self.charge.take());
        self.gate.open(false);
    }
}

impl<B> Gate<B> {
    pub(crate) fn new() -> Self {
        Self {
            state: AtomicU8::new(0),
            changes: AtomicUsize::new(0),
            reads: AtomicUsize::new(0),
            emptying: AtomicBool::new(false),
            current: Mutex::new(None),
            rolled_back: Mutex::default(),
            wakeup: Condvar::new(),
            transaction_sequence: AtomicU64::new(0),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Option<Current<B>>> {
        self.current.lock()
    }

    fn guard<'g>(&'g self, count: &'g AtomicUsize, depth: Depth) -> CallGuard<'g> {
        depth.set(depth.get() + 1);
        CallGuard { count: Some((count, self)), depth: Some(depth), thread: PhantomData }
    }

    /// Whether changes must check the state of the gate.
    fn is_closed(&self) -> bool {
        self.state.load(SeqCst) != 0
    }

    /// Whether a transaction exists, in any phase.
    pub(crate) fn has_transaction(&self) -> bool {
        self.is_closed() && self.lock().as_ref().is_some_and(|now| now.phase != Phase::Alone)
    }

    /// The number of times that a transaction has begun or ended.
    pub(crate) fn transaction_sequence(&self) -> u64 {
        self.transaction_sequence.load(SeqCst)
    }

    /// A guard for a change, or the reason why it is not admitted.
    fn ask(&self) -> std::result::Result<CallGuard<'_>, Answer> {
        if is_changing() {
            return Ok(nested(&CHANGES));
        }
        self.changes.fetch_add(1, SeqCst);
        let guard = self.guard(&self.changes, &CHANGES);
        if self.state.load(SeqCst) == 0 && MEMBER.get() == 0 {
            return Ok(guard);
        }
        match self.admit() {
            Answer::Admitted => Ok(guard),
            other => Err(other),
        }
    }

    fn admit(&self) -> Answer {
        let member = MEMBER.get();
        let mut current = self.lock();
        match current.as_mut() {
            Some(now) if now.id == member => match (now.phase, &now.aborted) {
                (Phase::Runs, None) if now.deadline.is_some_and(|end| Instant::now() >= end) => {
                    let reason = AbortReason::TimedOut(now.limit);
                    let error = reason.error();
                    now.aborted = Some(reason);
                    Answer::Refused(error)
                }
                (Phase::Runs, None) => Answer::Admitted,
                // an aborted transaction is never committed, so no member waits for its end either
                (_, Some(reason)) => Answer::Refused(reason.error()),
                _ => Answer::Wait,
            },
            other => match self.undone_with(member) {
                Some(error) => Answer::Refused(error),
                None if other.is_some() => Answer::Wait,
                None => Answer::Admitted,
            },
        }
    }

    /// The error for a transaction that was rolled back.
    pub(crate) fn undone_with(&self, id: u64) -> Option<Error> {
        let rolled_back = self.rolled_back.lock();
        let why = rolled_back.why.clone().unwrap_or_else(|| AbortReason::Ended("it was rolled back".into()));
        (id != 0 && rolled_back.id == id).then(|| why.error())
    }

    /// A guard for a change, without waiting.
    pub(crate) fn try_change(&self) -> Option<CallGuard<'_>> {
        self.ask().ok()
    }

    /// A guard for a change; `None` if that took longer than `most`. Calls `overdue` with a transaction that has
    /// exceeded its timeout while this thread waited for it.
    pub(crate) fn change(&self, most: Duration, overdue: impl Fn(u64, AbortReason)) -> Result<Option<CallGuard<'_>>> {
        let until = Instant::now().checked_add(most);
        loop {
            match self.ask() {
                Ok(guard) => return Ok(Some(guard)),
                Err(Answer::Refused(error)) => return Err(error),
                Err(_) => {}
            }
            debug_assert_eq!(READING_CALLS.get(), 0, "a reading call must not wait");
            let mut current = self.lock();
            while let Some(now) = current.as_ref() {
                let left = now.deadline.filter(|_| now.phase == Phase::Runs);
                let left = left.map_or(RECHECK_INTERVAL, |end| end.saturating_duration_since(Instant::now()));
                if left.is_zero() {
                    let (id, why) = (now.id, AbortReason::TimedOut(now.limit));
                    drop(current);
                    overdue(id, why);
                    break;
                }
                let mine = until.map_or(left, |until| until.saturating_duration_since(Instant::now()));
                if mine.is_zero() {
                    return Ok(None);
                }
                self.wait(&mut current, left.min(mine));
            }
        }
    }

    fn wait(&self, current: &mut MutexGuard<'_, Option<Current<B>>>, most: Duration) {
        self.wakeup.wait_for(current, most);
    }

    /// A guard for a reading call.
    pub(crate) fn read(&self) -> CallGuard<'_> {
        if is_changing() || READING_CALLS.get() > 0 {
            return nested(&READING_CALLS);
        }
        loop {
            self.reads.fetch_add(1, SeqCst);
            let guard = self.guard(&self.reads, &READING_CALLS);
            if self.state.load(SeqCst) & STILL == 0 {
                return guard;
            }
            drop(guard);
            let mut current = self.lock();
            if self.state.load(SeqCst) & STILL != 0 {
                self.wait(&mut current, RECHECK_INTERVAL);
            }
        }
    }

    /// Closes the gate for a new transaction, and returns when no change is in progress.
    pub(crate) fn begin(&self, limit: Duration) -> Result<u64> {
        if is_changing() {
            return Err(Error::Invalid("a transaction cannot begin within a call that changes something"));
        }
        let id = self.close(Phase::Begins, limit)?;
        self.wait_until_zero(&self.changes);
        Ok(id)
    }

    /// Closes the gate for a call that excludes all other changes, and returns when no change is in progress.
    ///
    /// # Errors
    /// [`Error::Busy`] if there is a transaction; [`Error::Invalid`] if this thread would wait for itself.
    pub(crate) fn alone(&self) -> Result<Alone<'_, B>> {
        if is_changing() {
            return Err(Error::Invalid("a call that changes the volume cannot wait for all changes to end"));
        }
        self.close(Phase::Alone, Duration::MAX)?;
        let alone = Alone { charge: Some(transaction_guard()), gate: self };
        self.wait_until_zero(&self.changes);
        Ok(alone)
    }

    /// Prevents further changes from beginning.
    fn close(&self, phase: Phase, limit: Duration) -> Result<u64> {
        let id = NEXT.fetch_add(1, SeqCst);
        let mut current = self.lock();
        while let Some(now) = current.as_ref() {
            // a call with exclusive use ends soon
            if now.phase != Phase::Alone {
                return Err(Error::Busy);
            }
            self.wait(&mut current, RECHECK_INTERVAL);
        }
        let (dirty, made) = (DirtySet::default(), BTreeSet::new());
        let deadline = None;
        *current = Some(Current { id, phase, limit, deadline, aborted: None, before: None, dirty, made });
        self.advance_sequence(phase);
        self.state.store(CLOSED, SeqCst);
        Ok(id)
    }

    /// Counts the beginning or end of a transaction; not that of a call with exclusive use.
    fn advance_sequence(&self, phase: Phase) {
        if phase != Phase::Alone {
            self.transaction_sequence.fetch_add(1, SeqCst);
        }
    }

    /// Admits changes by members.
    pub(crate) fn run(&self, before: B) {
        if let Some(now) = self.lock().as_mut() {
            (now.phase, now.before) = (Phase::Runs, Some(before));
            now.deadline = Instant::now().checked_add(now.limit);
        }
        self.wakeup.notify_all();
    }

    /// The running transaction.
    pub(crate) fn running(&self) -> Option<u64> {
        self.lock().as_ref().filter(|now| now.phase == Phase::Runs).map(|now| now.id)
    }

    /// Whether this thread is a member of the current transaction, which has not ended.
    pub(crate) fn is_member_of_current(&self) -> bool {
        is_member() && self.lock().as_ref().is_some_and(|now| now.id == MEMBER.get())
    }

    /// Whether a change by this thread would have to wait.
    pub(crate) fn would_wait(&self) -> bool {
        self.is_closed() && matches!(self.admit(), Answer::Wait)
    }

    /// The running transaction if it has exceeded its timeout.
    pub(crate) fn overdue(&self) -> Option<(u64, AbortReason)> {
        let current = self.lock();
        let now = current.as_ref().filter(|now| now.phase == Phase::Runs)?;
        now.deadline.is_some_and(|end| Instant::now() >= end).then_some((now.id, AbortReason::TimedOut(now.limit)))
    }

    /// Prevents further changes by members, waits until none is in progress and, for a rollback (`undo`), until no call
    /// reads. `false` if the transaction no longer runs.
    pub(crate) fn end(&self, id: u64, undo: Option<&AbortReason>) -> bool {
        debug_assert!(!is_changing() && READING_CALLS.get() == 0, "this thread would wait for itself");
        let mut current = self.lock();
        loop {
            match current.as_mut() {
                Some(now) if now.id == id && now.phase == Phase::Runs => {
                    now.phase = Phase::Ends;
                    if let Some(why) = undo {
                        now.aborted.get_or_insert_with(|| why.clone());
                    }
                    break;
                }
                // another thread is ending it
                Some(now) if now.id == id => self.wait(&mut current, RECHECK_INTERVAL),
                _ => return false,
            }
        }
        if undo.is_some() {
            self.state.store(CLOSED | STILL, SeqCst);
        }
        drop(current);
        self.wait_until_zero(&self.changes);
        if undo.is_some() {
            self.wait_until_zero(&self.reads);
        }
        true
    }

    /// Admits reading calls again after the undo of a transaction. Returns its dirty set.
    pub(crate) fn show(&self) -> DirtySet {
        let current = self.lock();
        self.state.store(CLOSED, SeqCst);
        let dirty = current.as_ref().map(|now| now.dirty.clone()).unwrap_or_default();
        drop(current);
        self.wakeup.notify_all();
        dirty
    }

    /// Cancels the end of the transaction.
    pub(crate) fn cancel_end(&self) {
        if let Some(now) = self.lock().as_mut() {
            now.phase = Phase::Runs;
        }
        self.wakeup.notify_all();
    }

    /// Opens the gate at the end of a transaction, or after one that did not begin; `rolled_back`: whether its changes
    /// were undone.
    pub(crate) fn open(&self, rolled_back: bool) {
        let mut current = self.lock();
        let over = current.take();
        if let Some(now) = &over {
            self.advance_sequence(now.phase);
        }
        if let (Some(now), true) = (over, rolled_back) {
            let rolled_back = RolledBack { id: now.id, why: now.aborted, dirty: now.dirty };
            *self.rolled_back.lock() = rolled_back;
        }
        self.state.store(0, SeqCst);
        drop(current);
        self.wakeup.notify_all();
    }

    /// The dirty set of a transaction that was rolled back, for the first caller only.
    pub(crate) fn take_dirty_set(&self, id: u64) -> DirtySet {
        let mut rolled_back = self.rolled_back.lock();
        if rolled_back.id == id { std::mem::take(&mut rolled_back.dirty) } else { DirtySet::default() }
    }

    fn wait_until_zero(&self, count: &AtomicUsize) {
        self.emptying.store(true, SeqCst);
        let mut current = self.lock();
        while count.load(SeqCst) > 0 {
            self.wait(&mut current, RECHECK_INTERVAL);
        }
        self.emptying.store(false, SeqCst);
    }

    /// Records something in the current transaction. Changes still in progress when it begins are not part of it.
    pub(crate) fn record(&self, what: impl FnOnce(&mut Current<B>)) {
        if self.is_closed()
            && let Some(now) = self.lock().as_mut()
            && !matches!(now.phase, Phase::Begins | Phase::Alone)
        {
            what(now);
        }
    }

    /// Waits while a transaction begins or ends; returns whether one runs afterwards.
    pub(crate) fn runs(&self) -> bool {
        if !self.is_closed() {
            return false;
        }
        let mut current = self.lock();
        loop {
            match current.as_ref() {
                None => return false,
                Some(now) if now.phase == Phase::Runs => return true,
                Some(_) => self.wait(&mut current, RECHECK_INTERVAL),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_changed_beside_a_call_that_is_alone() {
        let gate = Gate::<()>::new();
        let sequence = gate.transaction_sequence();
        let order = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            let under_way = gate.try_change().expect("the gate is open");
            assert!(gate.alone().is_err(), "it would wait for itself");
            let snapshot = scope.spawn(|| {
                let alone = gate.alone().expect("no transaction runs");
                order.lock().push("alone");
                assert!(is_changing() && gate.try_change().is_some(), "it may change the volume itself");
                let begins = scope.spawn(|| {
                    gate.begin(Duration::MAX).expect("it waits");
                    order.lock().push("a transaction");
                    gate.open(false);
                });
                assert!(!gate.has_transaction() && gate.transaction_sequence() == sequence);
                order.lock().push("done");
                drop(alone);
                assert!(!is_changing());
                begins.join().expect("a thread");
            });
            while !gate.is_closed() {
                std::thread::yield_now();
            }
            order.lock().push("changed");
            drop(under_way);
            snapshot.join().expect("a thread");
        });
        assert_eq!(*order.lock(), ["changed", "alone", "done", "a transaction"]);
        assert_eq!(gate.transaction_sequence(), sequence + 2);
        assert!(gate.try_change().is_some());
    }

    #[test]
    fn changes_from_before_a_transaction_are_none_of_it() {
        let gate = Gate::<()>::new();
        let made = |n| {
            gate.record(|now| {
                now.made.insert(InodeNo(n));
            });
        };
        std::thread::scope(|scope| {
            let before = gate.try_change().expect("the gate is open");
            let begins = scope.spawn(|| gate.begin(Duration::MAX));
            while !gate.is_closed() {
                std::thread::yield_now();
            }
            // it passed the gate in time, and creates a file only now
            made(12);
            drop(before);
            begins.join().expect("a thread").expect("it begins");
        });
        gate.run(());
        made(13);
        let noted = gate.lock().as_ref().map(|now| now.made.clone());
        assert_eq!(noted, Some(BTreeSet::from([InodeNo(13)])));
    }
}
