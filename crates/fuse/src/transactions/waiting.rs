//! Requests that wait for a transaction to end, and how they make way for its members.
//!
//! A process that waits may have something locked in the kernel: the directory in which a name is to be made, a file
//! that is to be written. A member that needs it would wait for who waits for the transaction. What can be done about
//! that:
//!
//! 1. A request about a name is answered ESTALE. The kernel unlocks the directory and does the whole call once more;
//!    the program hears nothing of it. On its way to the name it asks for the directories above (LOOKUP_REVAL), or for
//!    the attributes of this one, which it was notified to forget: with nothing locked. That is where it waits from
//!    then on. Many may queue for the directory behind it: as soon as they come, they are answered so, too.
//! 2. Where it does not ask on its way (a name in the directory that is mounted, or next to an open one, and a mount in
//!    which the kernel checks no permissions) it comes back with the lock. It, and requests that cannot be done once
//!    more (a write, fchmod), get EBUSY: those first that lock what members have changed, then the older half of all,
//!    and so on.
//!
//! None of that happens but while members sleep on locks in the kernel and ask for nothing.

use super::members;
use fuse_wire::{Answer, Operation, Request};
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// So soon a call that is done once more asks for something on its way.
const SOON: Duration = Duration::from_secs(10);
/// So long it may take until it comes again: many may queue for the same folder.
const QUEUES: Duration = Duration::from_secs(600);
/// The number of times in a row that members must seem to be stuck before a process gets EBUSY: on a busy machine it
/// takes a while until who got a lock runs.
const BUSY: u32 = 8;
/// The same before those go on that should have nothing locked.
const DESPERATE: u32 = 60;
/// The number of times that others are sent away before requests that only look go on as well.
const ROUNDS: u32 = 4;
/// So many requests are remembered that were interrupted and do not wait: they may not have come so far.
const EARLY: usize = 64;

/// The requests that wait.
#[derive(Default)]
pub(super) struct Waiting {
    list: Mutex<List>,
    count: AtomicUsize,
    /// Whether a process was sent back, and may come again.
    any_back: AtomicBool,
}

#[derive(Default)]
struct List {
    /// By the number of the request: the oldest first.
    waiting: BTreeMap<u64, Waiter>,
    /// Interrupted, and not there.
    interrupted: VecDeque<u64>,
    /// Tasks that were sent back.
    back: HashMap<u32, Back>,
    /// Directories from which they were sent, in this transaction.
    left: HashSet<u64>,
}

struct Waiter {
    task: u32,
    /// Nodes that the kernel may have locked for it.
    locks: Vec<u64>,
    /// The names it is about, with their directories, where the kernel does such a call once more.
    names: Vec<(u64, Vec<u8>)>,
    /// It only looks, so it does not hear that it was in the way.
    looks: bool,
    /// The kernel does the call for the second time, and will not for a third.
    again: bool,
    interrupted: bool,
    /// The number of times that others have been sent away while it waited.
    spared: u32,
    verdict: Option<Verdict>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// The kernel shall do the call once more.
    Again,
    /// The program gets an error.
    Busy,
    /// It has waited enough.
    Enough,
}

/// A task whose call is being done once more.
struct Back {
    /// None for one by a path alone, or by a descriptor, which the kernel does not do once more.
    names: Vec<(u64, Vec<u8>)>,
    since: Instant,
    /// It waits, or has waited, without a lock.
    waited: bool,
}

/// A request waits, until this is dropped.
pub(super) struct WaitGuard<'w> {
    waiting: &'w Waiting,
    unique: u64,
    /// The kernel does the call for the second time, and will not for a third.
    pub(super) again: bool,
}

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        self.waiting.list.lock().waiting.remove(&self.unique);
        self.waiting.count.fetch_sub(1, Ordering::SeqCst);
    }
}

impl WaitGuard<'_> {
    /// Whether it may wait on; `false` where it has waited enough.
    ///
    /// # Errors
    /// The error it is answered with.
    pub(super) fn goes_on(&self) -> Answer<bool> {
        let (task, interrupted, verdict) = match self.waiting.list.lock().waiting.get(&self.unique) {
            Some(waiter) => (waiter.task, waiter.interrupted, waiter.verdict),
            None => return Ok(true),
        };
        match verdict {
            Some(Verdict::Again) => Err(Errno::STALE),
            Some(Verdict::Busy) => Err(Errno::BUSY),
            Some(Verdict::Enough) => Ok(false),
            // other signals wait, as they do for a disk
            None if interrupted && (task == 0 || members::is_being_killed(task)) => Err(Errno::INTR),
            None => Ok(true),
        }
    }
}

impl WaitGuard<'_> {
    /// A rollback took away what a request relies on that has waited here: what it is sent away with, so that the
    /// kernel looks again. What goes by a path waits then for the next transaction before it looks, if there is one.
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

/// The nodes that the kernel has locked for a request, and the names in question where it can be done once more.
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
    /// A transaction is over: a process that waits with a directory locked is in no one's way.
    pub(super) fn over(&self) {
        self.list.lock().left.clear();
    }

    /// The number of requests that wait.
    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// The nodes that the kernel has locked for those that wait, and are not sent away.
    pub(super) fn locked(&self) -> HashSet<u64> {
        let list = self.list.lock();
        list.waiting.values().filter(|w| w.verdict.is_none()).flat_map(|w| w.locks.iter().copied()).collect()
    }

    /// A request begins to wait. `again`: it has waited before, in a call that the kernel did for the second time. If
    /// it is sent back at once, the kernel is to `forget` the attributes of its directories.
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
                // the kernel does it once more once
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

    /// Whether a request that only looks belongs to a call that is being done once more, and comes with nothing locked.
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
        on_its_way && !back.waited && back.since.elapsed() < SOON
    }

    /// Such a request has waited.
    pub(super) fn has_waited(&self, task: u32) {
        if let Some(back) = self.list.lock().back.get_mut(&task) {
            back.since = Instant::now();
        }
    }

    /// A request need not wait, or no more; whether it belongs to a call that the kernel does for the second time.
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

    /// The process that asked was interrupted.
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

    /// Some of those that wait make way, where members have seemed to be stuck so often in a row; whether any did.
    /// `needed` says of a node whether members have changed it; of the directories whose names are asked for again the
    /// kernel is to `forget` the attributes.
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
            // others may queue behind them; no process gets EBUSY before those have come
            self.any_back.store(true, Ordering::Release);
            return true;
        }
        if stuck < BUSY {
            return false;
        }
        let in_the_way = |w: &&mut Waiter| {
            let looks_for_long = w.looks && (stuck >= DESPERATE || w.spared >= ROUNDS);
            w.verdict.is_none() && (!w.locks.is_empty() || looks_for_long)
        };
        let mut left: Vec<_> = list.waiting.values_mut().filter(in_the_way).collect();
        let mut busy = false;
        for waiter in left.iter_mut().filter(|w| w.locks.iter().any(|node| needed(*node))) {
            waiter.verdict = Some(Verdict::Busy);
            busy = true;
        }
        // a process that is sent away may come back at once: that must not delay the others for ever
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
        // one that queued behind it goes as well
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
        // on its way it waits, but not for the name itself, and once
        assert!(!waiting.is_back(&request(12, 7, 5, Operation::Lookup { name: b"x" })));
        assert!(!waiting.is_back(&request(12, 9, 1, Operation::Lookup { name: b"d" })));
        assert!(waiting.is_back(&request(12, 7, 1, Operation::Lookup { name: b"d" })));
        assert!(waiting.is_back(&request(12, 7, 5, Operation::GetAttr)));
        drop(waiting.begin(&request(12, 7, 5, Operation::GetAttr), false, |_| ()));
        waiting.has_waited(7);
        assert!(!waiting.is_back(&request(13, 7, 5, Operation::GetAttr)));
        // where it has to wait with the lock after all, it cannot be asked for a third time
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
        // one that need not wait, and then must after all
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
