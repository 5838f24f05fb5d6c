//! Transactions on a mounted volume: the processes that belong to one, and the requests that wait for it.
//!
//! A process begins, commits or rolls back a transaction by reading an extended attribute of any file of the mount:
//! `extant.txn.begin.SECONDS.MARK`, `extant.txn.commit`, `extant.txn.rollback`. Reading an attribute is the one request
//! that the kernel sends at any time, without locks, and that a program can make without unsafe code. The value is
//! empty, or an error message. The members are that process and its descendants; their requests belong to the
//! transaction. Requests of other processes wait before they change anything, each with a worker of its own, so that a
//! member's request always finds a free worker.
//!
//! | file | content |
//! | --- | --- |
//! | `members` | which processes belong to a transaction |
//! | `waiting` | the requests that wait, and how they let members proceed |
//! | `ending` | the end of a transaction, and the invalidation of the kernel's caches |
//! | `client` | the side of the calling process |
//!
//! 1. A process that was a member remains one until it ends: after a rollback its calls that change the volume, or make
//!    changes durable, fail with ECANCELED.
//! 2. A request without a PID comes from the kernel, or from a process that is not visible here (in another PID
//!    namespace). It belongs to the transaction only where it is writeback of a page: it is unknown which process
//!    changed the page, and a member may need it written.
//! 3. Such a page is part of the transaction. So fsync by another process of a file with such pages waits for the end,
//!    and fails with EIO where they were rolled back. All other content written by other processes is durable since the
//!    transaction began.
//! 4. A transaction begins when the kernel has written back all dirty pages, and ends the same way.

mod client;
mod ending;
mod members;
mod rolled_back_pages;
mod waiting;

pub use client::MountedTransaction;

use crate::errno::errno;
use crate::ops::{ROOT, number_of};
use crate::preconditions::Preconditions;
use ending::watch;
use fs::{InodeNo, Transaction, Volume};
use fuse_wire::{Answer, Caller, Features, Filesystem, Kernel, Operation, Reply, Request};
use members::Members;
use parking_lot::Mutex;
use rolled_back_pages::RolledBackPages;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use waiting::Waiting;

/// The prefix of the names of the attributes.
const PREFIX: &[u8] = b"extant.txn.";
/// The maximum duration of a transaction, in seconds.
const LONGEST: u64 = 24 * 3600;
/// The interval between checks whether a transaction is over.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// The interval at which a waiting request checks whether it must be answered.
const WAIT: Duration = Duration::from_millis(50);
/// The same for requests that wait without access to the volume.
const NO_ACCESS_INTERVAL: Duration = Duration::from_millis(20);
/// The maximum time that an unmount waits for a commit in progress; after the commit the kernel's pages belong to no
/// transaction.
const COMMITTING: Duration = Duration::from_secs(10);

/// A file system on a volume, with transactions.
pub(crate) struct WithTransactions<F> {
    inner: Arc<F>,
    shared: Arc<Shared>,
    mounted_on: PathBuf,
    /// The kernel caches written data, so it is unknown to which transaction it belongs.
    writeback: bool,
}

struct Shared {
    volume: Arc<Volume>,
    current: Mutex<Option<Arc<Running>>>,
    any: AtomicBool,
    /// The volume is about to be unmounted, and no further transaction begins.
    stopping: AtomicBool,
    kernel: OnceLock<Kernel>,
    waiting: Waiting,
    /// The number of members' requests being answered, and of those answered so far.
    answering: AtomicUsize,
    answered: AtomicU64,
    /// The members of transactions that were rolled back.
    rolled_back: Mutex<Vec<Arc<Members>>>,
    any_rolled_back: AtomicBool,
    /// The files with pages that were rolled back.
    rolled_back_pages: RolledBackPages,
}

/// Increments a counter until it is dropped.
struct CountGuard<'c>(&'c AtomicUsize);

impl<'c> CountGuard<'c> {
    fn of(count: &'c AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        CountGuard(count)
    }
}

impl Drop for CountGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A transaction, until its process or the time limit ends it.
struct Running {
    transaction: Transaction,
    members: Arc<Members>,
    /// The maximum duration, and the deadline.
    time: Duration,
    deadline: Option<Instant>,
    /// The nodes of which the kernel has written back pages.
    page_writes: Mutex<HashSet<u64>>,
    /// Whether it was committed or rolled back, and the kernel's caches are up to date.
    over: AtomicBool,
    /// Whether it is being committed or, where that fails, rolled back.
    committing: AtomicBool,
    undone: AtomicBool,
    /// Whether the volume is unmounted: requests no longer wait for it.
    unmounted: AtomicBool,
    /// The mounted directory, open, so that the mount is in use.
    root: Mutex<Option<OwnedFd>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Command {
    Begin { seconds: u64, mark: String },
    Commit,
    Rollback,
}

/// The effect of a request on the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    Changes,
    Reads,
    Syncs,
    /// The request itself determines whether it has to wait.
    Other,
}

fn effect(operation: &Operation<'_>) -> Effect {
    match operation {
        _ if operation.changes() => Effect::Changes,
        Operation::Fsync { .. } | Operation::SyncFs => Effect::Syncs,
        Operation::FsyncDir { .. }
        | Operation::Destroy
        | Operation::Release
        | Operation::ReleaseDir
        | Operation::Flush => Effect::Other,
        _ => Effect::Reads,
    }
}

/// The inode of a node of the volume itself; `None` for those of snapshots.
fn inode_of(node: u64) -> Option<InodeNo> {
    if node == ROOT { Some(InodeNo::ROOT) } else { u32::try_from(node).ok().map(InodeNo) }
}

impl Command {
    fn parse(name: &[u8]) -> Option<Answer<Self>> {
        let command = name.strip_prefix(PREFIX)?;
        Some(match command {
            b"commit" => Ok(Self::Commit),
            b"rollback" => Ok(Self::Rollback),
            _ => Self::parse_begin(command).ok_or(Errno::INVAL),
        })
    }

    fn parse_begin(command: &[u8]) -> Option<Self> {
        let (seconds, mark) = str::from_utf8(command).ok()?.strip_prefix("begin.")?.split_once('.')?;
        let seconds = seconds.parse().ok().filter(|seconds| *seconds <= LONGEST)?;
        let in_mark = |c: char| c.is_ascii_hexdigit() || c == '-';
        (mark.len() >= 16 && mark.chars().all(in_mark)).then(|| Self::Begin { seconds, mark: mark.to_owned() })
    }
}

impl Running {
    /// Whether a request belongs to the transaction.
    fn includes(&self, request: &Request<'_>) -> bool {
        match (request.caller.pid, &request.operation) {
            // after its end, pages of files without earlier page writes belong to no transaction
            (0, Operation::Write { paged, .. }) => {
                *paged && (!self.is_over() || self.page_writes.lock().contains(&request.node))
            }
            (0, _) => false,
            (task, _) => self.members.has(task),
        }
    }

    /// Whether the kernel has written back pages of the files that a request makes durable.
    fn has_page_writes(&self, request: &Request<'_>) -> bool {
        let page_writes = self.page_writes.lock();
        if matches!(request.operation, Operation::SyncFs) {
            !page_writes.is_empty()
        } else {
            page_writes.contains(&request.node)
        }
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }
}

impl Shared {
    fn running(&self) -> Option<Arc<Running>> {
        if self.any.load(Ordering::Acquire) { self.current.lock().clone() } else { None }
    }

    fn is_current(&self, running: &Arc<Running>) -> bool {
        self.current.lock().as_ref().is_some_and(|current| Arc::ptr_eq(current, running))
    }

    fn clear(&self) {
        self.any.store(false, Ordering::Release);
        *self.current.lock() = None;
        self.waiting.over();
    }

    /// Whether a task was a member of a transaction that was rolled back.
    fn was_rolled_back(&self, task: u32) -> bool {
        self.any_rolled_back.load(Ordering::Acquire) && self.rolled_back.lock().iter().any(|members| members.has(task))
    }

    /// Whether a process that is not a member has to wait for an fsync.
    fn blocks_sync(&self, running: &Running, request: &Request<'_>) -> bool {
        !running.is_over()
            && running.has_page_writes(request)
            && !running.includes(request)
            // the server's own syncfs, before it rolls back
            && members::process(request.caller.pid).is_none_or(|(process, _)| process != std::process::id())
    }

    fn begin_waiting(&self, request: &Request<'_>, again: bool) -> waiting::WaitGuard<'_> {
        self.waiting.begin(request, again, |node| self.forget_attributes(node))
    }

    fn forget_attributes(&self, node: u64) {
        if let Some(kernel) = self.kernel.get() {
            kernel.forget_attributes(node);
        }
    }

    /// Waits until a transaction is over.
    fn wait_for(&self, running: &Arc<Running>, request: &Request<'_>) -> Answer<()> {
        let waited = self.begin_waiting(request, false);
        while self.is_current(running) && !running.is_over() && waited.goes_on()? {
            std::thread::sleep(NO_ACCESS_INTERVAL);
        }
        Ok(())
    }
}

impl<F: Filesystem + 'static> WithTransactions<F> {
    pub(crate) fn new(inner: F, volume: Arc<Volume>, mounted_on: PathBuf, writeback: bool) -> Self {
        let shared = Shared {
            volume,
            current: Mutex::default(),
            any: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            kernel: OnceLock::new(),
            waiting: Waiting::default(),
            answering: AtomicUsize::new(0),
            answered: AtomicU64::new(0),
            rolled_back: Mutex::default(),
            any_rolled_back: AtomicBool::new(false),
            rolled_back_pages: RolledBackPages::default(),
        };
        Self { inner: Arc::new(inner), shared: Arc::new(shared), mounted_on, writeback }
    }

    fn command(&self, command: &Command, caller: &Caller) -> Answer<String> {
        // a transaction makes all other processes wait
        if caller.uid != 0 && caller.uid != rustix::process::getuid().as_raw() {
            return Err(Errno::PERM);
        }
        if !members::is_proc_ours() {
            return Ok("/proc belongs to another PID namespace than the server process, so members of a \
                 transaction cannot be identified: run `extant mount` with its own /proc (unshare --mount-proc)"
                .into());
        }
        let (client, _) = members::process(caller.pid).ok_or(Errno::SRCH)?;
        let commit = match command {
            Command::Begin { seconds, mark } => return self.begin(client, Duration::from_secs(*seconds), mark),
            Command::Commit => true,
            Command::Rollback => false,
        };
        let running = self.shared.running().filter(|running| running.members.is_client(client));
        let running = running.ok_or(Errno::INVAL)?;
        let inner: Arc<dyn Filesystem> = Arc::clone(&self.inner) as _;
        let outcome = if commit {
            ending::commit(&inner, &self.shared, &running)
        } else {
            // the caller is not aware of this error yet
            let rollback_reason = running.transaction.rollback_reason();
            let outcome = ending::roll_back(&inner, &self.shared, &running, "it was rolled back");
            outcome.and(rollback_reason.map_or(Ok(()), Err))
        };
        self.shared.clear();
        // a process that sees the end can unmount the volume
        drop(running.root.lock().take());
        Ok(outcome.err().map_or_else(String::new, |e| e.to_string()))
    }

    fn begin(&self, client: u32, time: Duration, mark: &str) -> Answer<String> {
        if !self.shared.volume.is_writable() {
            return Err(Errno::ROFS);
        }
        if self.writeback {
            return Ok(
                "writeback_cache is on: writes in the kernel's cache cannot be assigned to a transaction; mount without it".into()
            );
        }
        if self.shared.running().is_some_and(|running| running.members.has(client)) {
            return Ok("this process is in a transaction on the volume already; transactions cannot be nested".into());
        }
        if self.shared.was_rolled_back(client) {
            return Err(Errno::CANCELED);
        }
        let mut current = self.shared.current.lock();
        if self.shared.stopping.load(Ordering::SeqCst) {
            return Ok("the volume is being unmounted".into());
        }
        if current.is_some() {
            return Err(Errno::BUSY);
        }
        let pid = i32::try_from(client).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
        let process = pidfd_open(pid, PidfdFlags::empty())?;
        let members = Arc::new(Members::of(client, mark).ok_or(Errno::SRCH)?);
        if let Some(kernel) = self.shared.kernel.get() {
            kernel.expect_waiting();
        }
        // the time limit is applied here, where the kernel's caches can be invalidated before any process sees the end
        let transaction = match self.shared.volume.transaction(Duration::MAX) {
            Ok(transaction) => transaction,
            Err(fs::Error::Busy) => return Err(Errno::BUSY),
            Err(e @ (fs::Error::Unsupported(_) | fs::Error::NoSpace)) => return Ok(e.to_string()),
            Err(e) => return Err(errno(&e)),
        };
        let running = Arc::new(Running {
            transaction,
            members,
            time,
            deadline: Instant::now().checked_add(time),
            page_writes: Mutex::default(),
            over: AtomicBool::new(false),
            committing: AtomicBool::new(false),
            undone: AtomicBool::new(false),
            unmounted: AtomicBool::new(false),
            root: Mutex::default(),
        });
        *current = Some(Arc::clone(&running));
        self.shared.any.store(true, Ordering::Release);
        drop(current);
        let (inner, shared): (Arc<dyn Filesystem>, _) = (Arc::clone(&self.inner) as _, Arc::clone(&self.shared));
        let mounted_on = self.mounted_on.clone();
        let watch = move || watch(&inner, shared, &running, &process, &mounted_on);
        // without the watching thread, a client that is killed would make all others wait for ever
        if std::thread::Builder::new().name("fuse-transaction".to_owned()).spawn(watch).is_err() {
            self.shared.clear();
            return Err(Errno::AGAIN);
        }
        Ok(String::new())
    }

    /// Answers a request that changes the volume: as part of the transaction, or when there is none.
    fn change(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> Answer<()> {
        let shared = &*self.shared;
        let task = request.caller.pid;
        let paged = matches!(request.operation, Operation::Write { paged: true, .. });
        let (mut waited, mut seen, mut most) = (None, None, Duration::ZERO);
        let sequence = shared.volume.transaction_sequence();
        let (mut prepared, mut again) = (false, false);
        loop {
            // checked each time: the transaction may begin while this waits, with the caller as a member
            let running = shared.running();
            let member = running.as_ref().filter(|running| running.includes(request));
            let _inside = member.map(|running| running.transaction.enter());
            let _answering = member.and_then(|running| {
                if paged {
                    // not an activity of members: any process's fsync(2) causes writeback
                    running.page_writes.lock().insert(request.node);
                    return None;
                }
                shared.answered.fetch_add(1, Ordering::SeqCst);
                Some(CountGuard::of(&shared.answering))
            });
            // the process that gets the error of a page write did not request the change
            let error = |e: fs::Error| if paged { Errno::IO } else { errno(&e) };
            let guard = shared.volume.change_guard_within(most).map_err(|e| {
                // the transaction is refused, not the page
                reply.belongs_to_rolled_back();
                error(e)
            })?;
            if let Some(guard) = guard {
                let waited = waited.take().filter(|_: &waiting::WaitGuard<'_>| member.is_none());
                again |= waited.as_ref().is_some_and(|waited| waited.again);
                if member.is_none() {
                    if shared.was_rolled_back(task) {
                        return Err(Errno::CANCELED);
                    }
                    again |= shared.waiting.leaves(request);
                    // a rollback invalidated its preconditions: the kernel must repeat its checks
                    let seen = seen.take().filter(|_| shared.volume.transaction_sequence() != sequence);
                    if seen.is_some_and(|seen| seen != Preconditions::of(&shared.volume, request)) {
                        return Err(waited.map_or(Errno::STALE, |waited| waited.sent_back(request)));
                    }
                    drop(waited);
                    if !prepared && self.inner.would_wait(request) {
                        // the request waits for others, which must not wait for it
                        drop(guard);
                        self.inner.prepare(request)?;
                        prepared = true;
                        continue;
                    }
                }
                let _guard = Some(guard).filter(|_| !self.inner.changes_alone(request));
                let outcome = self.inner.answer(request, reply);
                // the process that stored it in a mapping may not get the error any more; pages of a file that became
                // immutable or append-only are always refused
                if let (true, Some(running), Err(e)) = (paged && outcome != Err(Errno::PERM), member, outcome) {
                    let why = io::Error::from(e);
                    running
                        .transaction
                        .require_rollback(&format!("data stored through a shared mapping could not be written: {why}"));
                }
                return outcome;
            }
            most = WAIT;
            if member.is_none() {
                seen.get_or_insert_with(|| Preconditions::of(&shared.volume, request));
                waited.get_or_insert_with(|| shared.begin_waiting(request, again)).goes_on()?;
            }
        }
    }

    /// Answers a request that only reads. If it belongs to a call that the kernel repeats and that would change
    /// something, it waits.
    fn look(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> Answer<()> {
        let running = self.shared.running();
        let member = running.as_ref().filter(|running| running.includes(request));
        let _answering = member.map(|_| {
            self.shared.answered.fetch_add(1, Ordering::SeqCst);
            CountGuard::of(&self.shared.answering)
        });
        if let (Some(running), None, true) = (&running, member, self.shared.waiting.is_back(request)) {
            self.shared.wait_for(running, request)?;
            self.shared.waiting.has_waited(request.caller.pid);
        }
        let _inside = member.map(|running| running.transaction.enter());
        let _guard = self.shared.volume.read_guard();
        if running.is_some() {
            // the name may exist again after a rollback, and its invalidation can be delayed: a waiting process has the
            // directory locked
            reply.cache_no_absence();
        }
        self.inner.answer(request, reply)
    }

    /// Answers a request to make changes durable.
    fn sync(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> Answer<()> {
        let shared = &*self.shared;
        let is_rolled_back = || match request.operation {
            Operation::Fsync { handle, .. } => shared.rolled_back_pages.report(request.node, handle),
            _ => false,
        };
        let running = shared.running();
        let member = running.as_ref().filter(|running| running.includes(request));
        if member.is_none() && shared.was_rolled_back(request.caller.pid) {
            return Err(Errno::CANCELED);
        }
        if let Some(running) = running.as_ref().filter(|running| shared.blocks_sync(running, request)) {
            shared.wait_for(running, request)?;
            if running.undone.load(Ordering::SeqCst) {
                is_rolled_back();
                return Err(Errno::IO);
            }
        }
        if member.is_none() && is_rolled_back() {
            return Err(Errno::IO);
        }
        let _inside = member.map(|running| running.transaction.enter());
        self.inner.answer(request, reply)
    }
}

impl<F: Filesystem + 'static> Filesystem for WithTransactions<F> {
    fn features(&self) -> Features {
        self.inner.features()
    }

    fn connected(&self, kernel: Kernel) {
        self.inner.connected(kernel.clone());
        // set once: there is one connection
        let _ = self.shared.kernel.set(kernel);
    }

    fn would_wait(&self, request: &Request<'_>) -> bool {
        if self.inner.would_wait(request) {
            return true;
        }
        let running = self.shared.running();
        match effect(&request.operation) {
            Effect::Changes => {
                let member = running.as_ref().filter(|running| running.includes(request));
                let _inside = member.map(|running| running.transaction.enter());
                self.shared.volume.would_wait()
            }
            Effect::Reads => running.is_some_and(|running| {
                self.shared.waiting.is_back(request) && !running.is_over() && !running.includes(request)
            }),
            Effect::Syncs => running.is_some_and(|running| self.shared.blocks_sync(&running, request)),
            Effect::Other => false,
        }
    }

    fn answer(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> Answer<()> {
        if let Operation::GetXattr { name, size } = request.operation
            && let Some(command) = Command::parse(name)
        {
            // a request for the length of the value executes no command yet
            let command = command?;
            return match size {
                0 => Err(Errno::INVAL),
                _ => reply.value(size, self.command(&command, &request.caller)?.as_bytes()),
            };
        }
        match effect(&request.operation) {
            Effect::Changes => self.change(request, reply),
            Effect::Reads => self.look(request, reply),
            Effect::Syncs => self.sync(request, reply),
            Effect::Other if matches!(request.operation, Operation::Destroy) => self.finish().map_err(|_| Errno::IO),
            Effect::Other => {
                let running = self.shared.running();
                let member = running.as_ref().filter(|running| running.includes(request));
                let _inside = member.map(|running| running.transaction.enter());
                self.inner.answer(request, reply)
            }
        }
    }

    fn forget(&self, node: u64, lookups: u64) {
        self.inner.forget(node, lookups);
        if number_of(node).is_none_or(|number| !self.shared.volume.is_looked_up(number)) {
            self.shared.rolled_back_pages.forget(node);
        }
    }

    fn interrupted(&self, unique: u64) {
        if self.shared.any.load(Ordering::Acquire) {
            self.shared.waiting.interrupt(unique);
        }
        self.inner.interrupted(unique);
    }

    fn stop(&self) -> bool {
        self.shared.stopping.store(true, Ordering::SeqCst);
        // a request that begins a transaction now has the lock
        let running = self.shared.current.lock().clone().filter(|running| !running.is_over());
        let over = running.is_none_or(|running| {
            let end = Instant::now() + COMMITTING;
            while running.committing.load(Ordering::SeqCst) && !running.is_over() && Instant::now() < end {
                std::thread::sleep(NO_ACCESS_INTERVAL);
            }
            running.is_over()
        });
        // otherwise all pages of the kernel belong to the transaction (3), and are discarded with it at the end. It is
        // not rolled back earlier: members continue for a moment, and pages that they change after a rollback would
        // belong to no transaction
        self.inner.stop() && over
    }

    fn finish(&self) -> io::Result<()> {
        if let Some(running) = self.shared.running() {
            // a device error, which later calls report as well
            let _ = ending::end_unmounted(&running);
        }
        self.inner.finish()
    }

    fn lost(&self) -> Option<String> {
        self.inner.lost()
    }

    fn panicked(&self, node: u64, what: &str) {
        self.inner.panicked(node, what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_read() {
        const MARK: &str = "0123-4567-89ab-cdef";
        assert!(Command::parse(b"user.txn.commit").is_none());
        let begin = format!("extant.txn.begin.60.{MARK}");
        let begun = Command::Begin { seconds: 60, mark: MARK.to_owned() };
        assert_eq!(Command::parse(begin.as_bytes()), Some(Ok(begun)));
        assert_eq!(Command::parse(b"extant.txn.commit"), Some(Ok(Command::Commit)));
        assert_eq!(Command::parse(b"extant.txn.rollback"), Some(Ok(Command::Rollback)));
        for wrong in ["begin.", "begin.60", "begin.60.ab", "begin.-1.MARK", "begin.86401.MARK", "begin.1.MARK/", "x"] {
            let wrong = format!("extant.txn.{}", wrong.replace("MARK", MARK));
            assert_eq!(Command::parse(wrong.as_bytes()), Some(Err(Errno::INVAL)), "{wrong}");
        }
    }
}
