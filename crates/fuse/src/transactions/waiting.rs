//! Requests that wait for a transaction to end, and how they let its members proceed.
//!
//! A waiting process may have locked something in the kernel: the directory in which a name is to be created, a file
//! that is to be written. A member that needs the lock would wait for a process that waits for the transaction. Two
//! remedies:
//!
//! 1. A request about a name is answered with ESTALE. The kernel unlocks the directory and repeats the whole call; the
//!    program does not see the error. During the path walk it looks up the directories above (LOOKUP_REVAL), or
//!    requests the attributes of this one, which were invalidated: both without locks. The call waits there from then
//!    on. Other calls may queue for the directory behind it: they are answered in the same way as soon as they arrive.
//! 2. Where the path walk sends no request (a name in the mounted directory or relative to an open one, on a mount
//!    where the kernel checks no permissions) the call returns with the lock. It, and requests that cannot be repeated
//!    (a write, fchmod), get EBUSY: first those that have locked what members have changed, then the older half of all,
//!    and so on.
//!
//! All this happens only while members sleep on locks in the kernel and send no requests.

use super::members;
use fuse_wire::{Answer, Operation, Request};
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The time within which a repeated call sends a request of its path walk.
const REPEAT_TIME: Duration = Duration::from_secs(10);
/// The time within which it arrives again: many may queue for the same directory.
const QUEUES: Duration = Duration::from_secs(600);
/// The number of consecutive checks in which members must appear stuck before a process gets EBUSY: on a busy machine
/// it takes a while until a process that got a lock runs.
const BUSY: u32 = 8;
/// The same number before requests are released that should have nothing locked.
const STUCK_UNLOCKED: u32 = 60;
/// The number of times that other requests are refused before read-only requests are released as well.
const ROUNDS: u32 = 4;
/// The maximum number of recorded requests that were interrupted but are not waiting: they may not have arrived here
/// yet.
const EARLY: usize = 64;

/// The requests that wait.
#[derive(Default)]
pub(super) struct Waiting {
    list: Mutex<List>,
    count: AtomicUsize,
    /// Whether a call was answered with ESTALE, and may arrive again.
    any_back: AtomicBool,
}

#[derive(Default)]
struct List {
    /// By request number: the oldest first.
    waiting: BTreeMap<u64, Waiter>,
    /// The interrupted requests that are not waiting.
    interrupted: VecDeque<u64>,
    /// The tasks whose calls were answered with ESTALE.
    back: HashMap<u32, Back>,
    /// The directories of those calls, in this transaction.
    left: HashSet<u64>,
}

struct Waiter {
    task: u32,
    /// The nodes that the kernel may have locked for it.
    locks: Vec<u64>,
    /// The names it is about, with their directories, where the kernel repeats such a call.
    names: Vec<(u64, Vec<u8>)>,
    /// Whether it only reads: it is released without an error.
    looks: bool,
    /// Whether the kernel is repeating the call; it will not repeat it again.
    again: bool,
    interrupted: bool,
    /// The number of times that other requests were refused while this one waited.
    spared: u32,
    verdict: Option<Verdict>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// The kernel shall repeat the call.
    Again,
    /// The program gets EBUSY.
    Busy,
    /// It stops waiting and is answered.
    Enough,
}

/// A task whose call is being repeated.
struct Back {
    /// Empty for a call by a path alone, or by a descriptor, which the kernel does not repeat.
    names: Vec<(u64, Vec<u8>)>,
    since: Instant,
    /// Whether it waits, or has waited, without a lock.
    waited: bool,
}

/// A waiting request; the wait ends when this is dropped.
pub(super) struct WaitGuard<'w> {
    waiting: &'w Waiting,
    unique: u64,
    /// Whether the kernel is repeating the call; it will not repeat it again.
    pub(super) again: bool,
}

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        self.waiting.list.lock().waiting.remove(&self.unique);
        self.waiting.count.fetch_sub(1, Ordering::SeqCst);
    }
}

impl WaitGuard<'_> {
    /// Whether the request waits on; `false` where it stops waiting and is answered.
    ///
    /// # Errors
    /// The error with which it is answered.
    pub(super) fn goes_on(&self) -> Answer<bool> {
        let (task, interrupted, verdict) = match self.waiting.list.lock().waiting.get(&self.unique) {
            Some(waiter) => (waiter.task, waiter.interrupted, waiter.verdict),
            None => return Ok(true),
        };
        match verdict {
            Some(Verdict::Again) => Err(Errno::STALE),
            Some(Verdict::Busy) => Err(Errno::BUSY),
            Some(Verdict::Enough) => Ok(false),
            // signals that are not fatal are deferred, as during a wait for a disk
            None if interrupted && (task == 0 || members::is_being_killed(task)) => Err(Errno::INTR),
            None => Ok(true),
        }
    }
}

impl WaitGuard<'_> {
    /// Returns the error for a request that has waited here and whose preconditions a rollback invalidated, so that the
    /// kernel repeats its checks. A call by a path then waits for the next transaction, if there is one, before its
    /// path walk.
    pub(super) fn sent_back(self, request: &Request<'_>) -> Errno {
        let names = locked(request).1;
        let list = &mut *self.waiting.list.lock();
        let waiter = list.waiting.get(&self.unique);
        if waiter.is_some_and(|waiter| waiter.again) {
            return Errno::BUSY;
        }
        if request.caller.pid != 0 {
            let back = Back { names, since: Instant::now(), waited: false };
            list.back.insert(request.caller.pid, back);
            self.waiting.any_back.store(true, Ordering::Release);
        }
        Errno::STALE
    }
}

/// The nodes that the kernel has locked for a request, and its names where the call can be repeated.
fn locked(request: &Request<'_>) -> (Vec<u64>, Vec<(u64, Vec<u8>)>) {
    let node = request.node;
    match request.operation {
        Operation::Symlink { name, .. }
        | Operation::MkNod { name, .. }
        | Operation::MkDir { name, .. }
        | Operation::Unlink { name }
        | Operation::RmDir { name }
        | Operation::Create { name: Some(name), .. } => (vec![node], vec![(node, name.to_vec())]),
        Operation::Link { target, name } => (vec![node, target], vec![(node, name.to_vec())]),
        Operation::Rename { name, to, new_name, .. } => {
            (vec![node, to], vec![(node, name.to_vec()), (to, new_name.to_vec())])
        }
        Operation::CopyFileRange { target, .. } => (vec![node, target], Vec::new()),
        Operation::SyncFs | Operation::Lookup { .. } | Operation::GetAttr => (Vec::new(), Vec::new()),
        _ => (vec![node], Vec::new()),
    }
}

impl List {
    fn send_back(&mut self, waiter: &mut Waiter, forget: impl Fn(u64)) {
        waiter.names.iter().for_each(|(dir, _)| forget(*dir));
        self.left.extend(waiter.names.iter().map(|(dir, _)| *dir));
        let names = waiter.names.clone();
        self.back.insert(waiter.task, Back { names, since: Instant::now(), waited: false });
        waiter.verdict = Some(Verdict::Again);
    }
}

impl Waiting {
    /// Called when a transaction is over: processes that wait with a directory locked no longer delay members.
    pub(super) fn over(&self) {
        self.list.lock().left.clear();
    }

    /// The number of requests that wait.
    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// The nodes that the kernel has locked for waiting requests that are not refused.
    pub(super) fn locked(&self) -> HashSet<u64> {
        let list = self.list.lock();
        list.waiting.values().filter(|w| w.verdict.is_none()).flat_map(|w| w.locks.iter().copied()).collect()
    }

    /// Adds a request that begins to wait. `again`: it has waited before, in a repeated call. If it is answered with
    /// ESTALE at once, `forget` is called to invalidate the attributes of its directories.
    pub(super) fn begin(&self, request: &Request<'_>, again: bool, forget: impl Fn(u64)) -> WaitGuard<'_> {
        let (unique, task) = (request.unique, request.caller.pid);
        let (locks, mut names) = locked(request);
        let looks = matches!(request.operation, Operation::Lookup { .. } | Operation::GetAttr);
        let mut list = self.list.lock();
        let mut again = again;
        if looks {
            if let Some(back) = list.back.get_mut(&task) {
                (back.waited, back.since) = (true, Instant::now());
            }
        } else {
            let back = list.back.remove(&task).filter(|back| back.since.elapsed() < QUEUES);
            again |= back.is_some_and(|back| back.names == names);
            if again || task == 0 {
                // the kernel repeats it only once
                names.clear();
            }
        }
        let interrupted = list.interrupted.contains(&unique);
        let mut waiter = Waiter { task, locks, names, looks, again, interrupted, spared: 0, verdict: None };
        if waiter.names.iter().any(|(dir, _)| list.left.contains(dir)) {
            list.send_back(&mut waiter, forget);
            self.any_back.store(true, Ordering::Release);
        }
        list.waiting.insert(unique, waiter);
        self.count.fetch_add(1, Ordering::SeqCst);
        WaitGuard { waiting: self, unique, again }
    }

    /// Whether a read-only request belongs to a call that is being repeated, and arrives without locks.
    pub(super) fn is_back(&self, request: &Request<'_>) -> bool {
        if !self.any_back.load(Ordering::Acquire) {
            return false;
        }
        let list = self.list.lock();
        let Some(back) = list.back.get(&request.caller.pid) else { return false };
        let on_its_way = match request.operation {
            // the names themselves are looked up with the directory locked
            Operation::Lookup { name } => !back.names.iter().any(|own| own.0 == request.node && own.1 == name),
            Operation::GetAttr => true,
            _ => false,
        };
        on_its_way && !back.waited && back.since.elapsed() < REPEAT_TIME
    }

    /// Records that such a request has waited.
    pub(super) fn has_waited(&self, task: u32) {
        if let Some(back) = self.list.lock().back.get_mut(&task) {
            back.since = Instant::now();
        }
    }

    /// Removes the record of a call that need not wait, or no longer; returns whether the kernel repeated it.
    pub(super) fn leaves(&self, request: &Request<'_>) -> bool {
        if !self.any_back.load(Ordering::Acquire) {
            return false;
        }
        let mut list = self.list.lock();
        list.back.retain(|_, back| back.since.elapsed() < QUEUES);
        let back = list.back.remove(&request.caller.pid);
        self.any_back.store(!list.back.is_empty(), Ordering::Release);
        back.is_some_and(|back| back.names == locked(request).1)
    }

    /// Records that the calling process was interrupted.
    pub(super) fn interrupt(&self, unique: u64) {
        let mut list = self.list.lock();
        match list.waiting.get_mut(&unique) {
            Some(waiter) => waiter.interrupted = true,
            None => {
                list.interrupted.truncate(EARLY - 1);
                list.interrupted.push_front(unique);
            }
        }
    }

    /// Refuses or releases waiting requests after members have appeared stuck in `stuck` consecutive checks; returns
    /// whether there were any. `needed` returns whether members have changed a node; `forget` is called to invalidate
    /// the attributes of directories whose names are to be looked up again.
    pub(super) fn make_way(&self, stuck: u32, needed: impl Fn(u64) -> bool, forget: impl Fn(u64)) -> bool {
        let list = &mut *self.list.lock();
        let mut waiting = std::mem::take(&mut list.waiting);
        let mut sent_back = false;
        for waiter in waiting.values_mut().filter(|w| w.verdict.is_none() && !w.names.is_empty()) {
            list.send_back(waiter, &forget);
            sent_back = true;
        }
        list.waiting = waiting;
        if sent_back {
            // others may queue behind them; no process gets EBUSY before those have arrived
            self.any_back.store(true, Ordering::Release);
            return true;
        }
        if stuck < BUSY {
            return false;
        }
        let in_the_way = |w: &&mut Waiter| {
            let looks_for_long = w.looks && (stuck >= STUCK_UNLOCKED || w.spared >= ROUNDS);
            w.verdict.is_none() && (!w.locks.is_empty() || looks_for_long)
        };
        let mut left: Vec<_> = list.waiting.values_mut().filter(in_the_way).collect();
        let mut busy = false;
        for waiter in left.iter_mut().filter(|w| w.locks.iter().any(|node| needed(*node))) {
            waiter.verdict = Some(Verdict::Busy);
            busy = true;
        }
        // a process that is refused may retry at once: that must not delay the others for ever
        left.retain(|w| w.verdict.is_none() && (!busy || w.spared > 0));
        let half = left.len().div_ceil(2);
        for waiter in left.into_iter().take(half) {
            waiter.verdict = Some(if waiter.looks { Verdict::Enough } else { Verdict::Busy });
        }
        list.waiting.values_mut().for_each(|w| w.spared += 1);
        busy || half > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuse_wire::Caller;
    use std::cell::RefCell;

    fn request(unique: u64, task: u32, node: u64, operation: Operation<'_>) -> Request<'_> {
        Request { unique, node, caller: Caller { uid: 0, gid: 0, pid: task }, operation }
    }

    #[test]
    fn names_are_asked_for_again_and_wait_without_a_lock() {
        let waiting = Waiting::default();
        let make = request(10, 7, 5, Operation::MkDir { name: b"x", mode: 0, umask: 0 });
        let write = request(11, 8, 6, Operation::Fallocate { offset: 0, length: 1, mode: 0 });
        let (first, second) = (waiting.begin(&make, false, |_| ()), waiting.begin(&write, false, |_| ()));
        let forgotten = RefCell::new(Vec::new());
        waiting.make_way(2, |_| true, |node| forgotten.borrow_mut().push(node));
        assert_eq!((first.goes_on(), second.goes_on()), (Err(Errno::STALE), Ok(true)));
        drop(first);
        // a call that queued behind it is answered with ESTALE, too
        let mkdir = Operation::MkDir { name: b"y", mode: 0, umask: 0 };
        let behind = waiting.begin(&request(13, 10, 5, mkdir), false, |node| forgotten.borrow_mut().push(node));
        assert_eq!(behind.goes_on(), Err(Errno::STALE));
        drop(behind);
        waiting.over();
        let other =
            waiting.begin(&request(15, 11, 5, Operation::MkDir { name: b"y", mode: 0, umask: 0 }), false, |_| ());
        assert_eq!(other.goes_on(), Ok(true));
        drop(other);
        assert_eq!(forgotten.into_inner(), [5, 5]);
        // its path walk waits, but not the lookup of the name itself, and only once
        assert!(!waiting.is_back(&request(12, 7, 5, Operation::Lookup { name: b"x" })));
        assert!(!waiting.is_back(&request(12, 9, 1, Operation::Lookup { name: b"d" })));
        assert!(waiting.is_back(&request(12, 7, 1, Operation::Lookup { name: b"d" })));
        assert!(waiting.is_back(&request(12, 7, 5, Operation::GetAttr)));
        drop(waiting.begin(&request(12, 7, 5, Operation::GetAttr), false, |_| ()));
        waiting.has_waited(7);
        assert!(!waiting.is_back(&request(13, 7, 5, Operation::GetAttr)));
        // where it has to wait with the lock after all, it is not repeated a third time
        let again =
            waiting.begin(&request(14, 7, 5, Operation::MkDir { name: b"x", mode: 0, umask: 0 }), false, |_| ());
        assert!(!waiting.make_way(2, |node| node == 5, |_| ()));
        waiting.make_way(BUSY, |node| node == 5, |_| ());
        assert_eq!((again.goes_on(), second.goes_on()), (Err(Errno::BUSY), Ok(true)));
    }

    #[test]
    fn a_call_by_a_path_is_stale_once() {
        let waiting = Waiting::default();
        let chmod = |unique| request(unique, 7, 5, Operation::Fallocate { offset: 0, length: 1, mode: 0 });
        assert_eq!(waiting.begin(&chmod(1), false, |_| ()).sent_back(&chmod(1)), Errno::STALE);
        assert_eq!(waiting.begin(&chmod(2), false, |_| ()).sent_back(&chmod(2)), Errno::BUSY);
        assert_eq!(waiting.begin(&chmod(3), false, |_| ()).sent_back(&chmod(3)), Errno::STALE);
        // a call that need not wait, and then must after all
        assert!(waiting.leaves(&chmod(4)) && !waiting.leaves(&chmod(4)));
        assert_eq!(waiting.begin(&chmod(4), true, |_| ()).sent_back(&chmod(4)), Errno::BUSY);
        assert_eq!(waiting.begin(&chmod(5), false, |_| ()).sent_back(&chmod(5)), Errno::STALE);
    }

    #[test]
    fn of_those_that_have_a_lock_the_ones_in_question_go_first() {
        let waiting = Waiting::default();
        let write = |unique, node| request(unique, 1, node, Operation::Fallocate { offset: 0, length: 1, mode: 0 });
        let guards: Vec<_> = (0..4).map(|n| waiting.begin(&write(n, 20 + n), false, |_| ())).collect();
        let outcomes = || guards.iter().map(|guard| guard.goes_on().is_err()).collect::<Vec<_>>();
        waiting.make_way(BUSY, |node| node == 22, |_| ());
        assert_eq!(outcomes(), [false, false, true, false]);
        waiting.make_way(BUSY, |_| false, |_| ());
        assert_eq!(outcomes(), [true, true, true, false]);
        waiting.make_way(BUSY, |_| false, |_| ());
        assert_eq!(outcomes(), [true; 4]);
        assert_eq!(waiting.count(), 4);
    }

    #[test]
    fn who_comes_back_at_once_does_not_spare_the_others() {
        let waiting = Waiting::default();
        let write = |unique, node| request(unique, 1, node, Operation::Fallocate { offset: 0, length: 1, mode: 0 });
        let in_the_way = waiting.begin(&write(1, 30), false, |_| ());
        for unique in 2..4 {
            assert_eq!(in_the_way.goes_on(), Ok(true));
            let again = waiting.begin(&write(unique, 22), false, |_| ());
            waiting.make_way(BUSY, |node| node == 22, |_| ());
            assert_eq!(again.goes_on(), Err(Errno::BUSY));
        }
        assert_eq!(in_the_way.goes_on(), Err(Errno::BUSY));
    }

    #[test]
    fn who_is_killed_does_not_wait() {
        let waiting = Waiting::default();
        let fallocate = |unique, task| request(unique, task, 3, Operation::Fallocate { offset: 0, length: 1, mode: 0 });
        waiting.interrupt(2);
        // there is no such process
        let guards = [
            waiting.begin(&fallocate(1, u32::MAX), false, |_| ()),
            waiting.begin(&fallocate(2, u32::MAX), false, |_| ()),
        ];
        assert_eq!(guards.each_ref().map(WaitGuard::goes_on), [Ok(true), Err(Errno::INTR)]);
        waiting.interrupt(1);
        assert_eq!(guards[0].goes_on(), Err(Errno::INTR));
        let other = waiting.begin(&fallocate(3, std::process::id()), false, |_| ());
        waiting.interrupt(3);
        assert_eq!(other.goes_on(), Ok(true));
    }
}
