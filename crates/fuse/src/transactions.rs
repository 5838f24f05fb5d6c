//! Transactions on a mounted volume: whoever belongs to one, and who waits.
//!
//! A process begins a transaction, and commits it or rolls it back, by asking for an attribute of any file of the mount:
//! `extant.txn.begin.SECONDS`, `extant.txn.commit`, `extant.txn.rollback`. That is the one request which the kernel hands
//! over at any time, with no lock held, and which a program needs no unsafe code for. The value is empty, or says what went
//! wrong. Members are that process and those below it; what they ask for happens in the transaction. Others wait before they
//! change anything, each at a desk of its own, so that no request of a member finds all desks taken.
//!
//! Whoever waits may have something locked in the kernel: the directory in which a name is to be made, a file that is to be
//! written. A member that needs it would wait for who waits for the transaction. So while others wait, and members sleep in
//! the kernel on such a lock and ask for nothing, those that wait are told EBUSY: a clear answer, where no other is
//! possible.
//!
//! When a transaction is rolled back, the kernel is told to forget the names and files that it touched. It locks a directory
//! for that, so it is told only when nobody waits here with one locked.

use crate::errno::errno;
use crate::ops::node_of;
use crate::protocol::Features;
use crate::reply::{Answer, Reply};
use crate::request::{Caller, Operation, Request};
use crate::seen::Seen;
use crate::transport::{Filesystem, Kernel};
use fs::{InodeNo, Pass, Touched, Transaction, Volume};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// What the names of the attributes begin with.
const PREFIX: &[u8] = b"extant.txn.";
/// Longest time that a transaction may take, in seconds.
const LONGEST: u64 = 24 * 3600;
/// How often it is looked whether a transaction is over.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// How long it is remembered that a process is a member, or is none: numbers of processes come back, but not so soon.
const KNOWN: Duration = Duration::from_secs(1);
/// How long a request that waits sleeps before it looks whether it is sent away.
const WAIT: Duration = Duration::from_millis(50);
/// How often in a row, with [`LOOK`] between, members must seem to be stuck.
const STUCK: u32 = 4;
/// Most processes between a member and the one that began.
const DEEPEST: usize = 256;
/// What a process may keep in mind that is changed in a rollback.
const CAPABILITY: &[u8] = b"security.capability";

/// A file system on a volume, with transactions.
pub(crate) struct WithTransactions<F> {
    inner: Arc<F>,
    shared: Arc<Shared>,
    /// The kernel keeps what is written, so nobody knows to which transaction it belongs.
    keeps_writes: bool,
}

struct Shared {
    volume: Arc<Volume>,
    current: Mutex<Option<Arc<Running>>>,
    any: AtomicBool,
    kernel: OnceLock<Kernel>,
    /// Requests that wait for the transaction.
    waiting: AtomicUsize,
    /// Requests of members that are being answered, and how many there were.
    answering: AtomicUsize,
    answered: AtomicU64,
    /// How often those that waited were sent away.
    broken: AtomicU64,
}

/// Counts as one until it is dropped.
struct One<'c>(&'c AtomicUsize);

impl<'c> One<'c> {
    fn of(count: &'c AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        One(count)
    }
}

impl Drop for One<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A transaction, until its process ends it or itself.
struct Running {
    transaction: Transaction,
    client: u32,
    known: Mutex<(Instant, HashMap<u32, bool>)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Command {
    Begin(u64),
    Commit,
    Rollback,
}

/// What a request does to the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    Changes,
    Looks,
    /// It knows itself whether it has to wait.
    Else,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // what they hold is whole after every statement
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn manner(operation: &Operation<'_>) -> Manner {
    match operation {
        _ if operation.changes() => Manner::Changes,
        Operation::Fsync { .. }
        | Operation::FsyncDir { .. }
        | Operation::SyncFs
        | Operation::Destroy
        | Operation::Release
        | Operation::ReleaseDir
        | Operation::Flush => Manner::Else,
        _ => Manner::Looks,
    }
}

impl Command {
    fn parse(name: &[u8]) -> Option<Answer<Self>> {
        let command = name.strip_prefix(PREFIX)?;
        Some(match command {
            b"commit" => Ok(Self::Commit),
            b"rollback" => Ok(Self::Rollback),
            _ => {
                let seconds = command.strip_prefix(b"begin.").and_then(|seconds| str::from_utf8(seconds).ok());
                let seconds = seconds.and_then(|seconds| seconds.parse().ok()).filter(|seconds| *seconds <= LONGEST);
                seconds.map(Self::Begin).ok_or(Errno::INVAL)
            }
        })
    }
}

/// A process, of which `task` is a thread, and the one that made it.
fn process(task: u32) -> Option<(u32, u32)> {
    let status = std::fs::read_to_string(format!("/proc/{task}/status")).ok()?;
    let of = |field: &str| status.lines().find_map(|line| line.strip_prefix(field)?.trim().parse().ok());
    Some((of("Tgid:")?, of("PPid:")?))
}

/// Whether a process waits for a lock of the kernel's file systems.
fn sleeps_on_a_lock(process: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{process}/stat")) else { return false };
    if !stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('D')) {
        return false;
    }
    // of who sleeps on a lock the kernel names whoever took it (path_openat, do_unlinkat), of others what they wait for:
    // a device (folio_wait_bit_common, io_schedule), an answer of ours (request_wait_answer)
    let place = std::fs::read_to_string(format!("/proc/{process}/wchan")).unwrap_or_default();
    !["wait", "io_", "bio_"].iter().any(|other| place.contains(other))
}

impl Running {
    /// Whether what a task asks for belongs to the transaction. What the kernel asks for by itself does.
    fn has_member(&self, task: u32) -> bool {
        if task == 0 {
            return true;
        }
        let mut known = lock(&self.known);
        if known.0.elapsed() > KNOWN {
            *known = (Instant::now(), HashMap::new());
        }
        if let Some(is) = known.1.get(&task) {
            return *is;
        }
        let mut at = task;
        let mut is = false;
        for _ in 0..DEEPEST {
            let Some((process, parent)) = process(at) else { break };
            is = process == self.client;
            if is || parent == 0 {
                break;
            }
            at = parent;
        }
        known.1.insert(task, is);
        is
    }
}

impl Shared {
    fn running(&self) -> Option<Arc<Running>> {
        if self.any.load(Ordering::Acquire) { lock(&self.current).clone() } else { None }
    }

    /// Passes for a change by somebody who may have to wait for a transaction. Where that was rolled back meanwhile, and
    /// the request relies on what it did, the kernel is told to look again.
    fn change(&self, request: &Request<'_>) -> Answer<Pass<'_>> {
        let broken = self.broken.load(Ordering::SeqCst);
        if let Some(pass) = self.volume.changing_within(Duration::ZERO).map_err(|e| errno(&e))? {
            return Ok(pass);
        }
        let seen = Seen::of(&self.volume, request);
        let _waiting = One::of(&self.waiting);
        loop {
            if let Some(pass) = self.volume.changing_within(WAIT).map_err(|e| errno(&e))? {
                return if seen == Seen::of(&self.volume, request) { Ok(pass) } else { Err(Errno::STALE) };
            }
            if self.broken.load(Ordering::SeqCst) != broken {
                return Err(Errno::BUSY);
            }
        }
    }

    /// Whether members seem to wait for those that wait for them: some sleep on a lock in the kernel.
    fn is_stuck(&self, running: &Running) -> bool {
        let Ok(processes) = std::fs::read_dir("/proc") else { return false };
        let tasks = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        tasks.filter(|task| *task != 0 && sleeps_on_a_lock(*task)).any(|task| running.has_member(task))
    }

    fn is_current(&self, running: &Arc<Running>) -> bool {
        lock(&self.current).as_ref().is_some_and(|current| Arc::ptr_eq(current, running))
    }

    fn clear(&self) {
        self.any.store(false, Ordering::Release);
        *lock(&self.current) = None;
    }

    /// Has the kernel forget what was undone. No lock of the volume or its gate is held.
    fn forget(&self, touched: &Touched) {
        let Some(kernel) = self.kernel.get() else { return };
        for (dir, name) in &touched.names {
            kernel.forget_name(node_of(*dir), name);
        }
        for number in &touched.longer {
            // it computes from its own size where content is appended, and what of a mapping is there
            if let Some((at, byte)) = self.last_byte(*number) {
                kernel.lengthen(node_of(*number), at, &byte);
            }
        }
        touched.inodes.iter().for_each(|number| kernel.forget_inode(node_of(*number)));
    }

    /// The last byte of a file, and where it is.
    fn last_byte(&self, number: InodeNo) -> Option<(u64, [u8; 1])> {
        let inode = self.volume.inode(number).ok()?;
        let at = self.volume.attributes_of(number).ok()?.size.checked_sub(1)?;
        let mut byte = [0];
        let read = self.volume.read_at(&inode, at, &mut byte).ok()?;
        (read == 1).then_some((at, byte))
    }
}

impl<F: Filesystem + 'static> WithTransactions<F> {
    pub(crate) fn new(inner: F, volume: Arc<Volume>, keeps_writes: bool) -> Self {
        let (current, any, kernel) = (Mutex::default(), AtomicBool::new(false), OnceLock::new());
        let (waiting, answering) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let (answered, broken) = (AtomicU64::new(0), AtomicU64::new(0));
        let shared = Arc::new(Shared { volume, current, any, kernel, waiting, answering, answered, broken });
        Self { inner: Arc::new(inner), shared, keeps_writes }
    }

    fn command(&self, command: Command, caller: &Caller) -> Answer<String> {
        // it keeps all others waiting
        if caller.uid != 0 && caller.uid != rustix::process::getuid().as_raw() {
            return Err(Errno::PERM);
        }
        let (client, _) = process(caller.pid).ok_or(Errno::SRCH)?;
        match command {
            Command::Begin(seconds) => self.begin(client, Duration::from_secs(seconds)),
            Command::Commit | Command::Rollback => {
                let running = self.shared.running().filter(|running| running.client == client);
                let running = running.ok_or(Errno::INVAL)?;
                let outcome = match command {
                    Command::Commit => running.transaction.commit_by_reference(),
                    _ => Ok(()),
                };
                // of one that was committed there is nothing to undo
                let undone = running.transaction.cancel("it was rolled back");
                self.shared.clear();
                let touched = undone.as_ref().ok().cloned().unwrap_or_default();
                undo_what_is_known(&*self.inner, &self.shared, &touched);
                Ok(outcome.and(undone.map(drop)).err().map_or_else(String::new, |e| e.to_string()))
            }
        }
    }

    fn begin(&self, client: u32, time: Duration) -> Answer<String> {
        if self.shared.volume.consistency().is_none() {
            return Err(Errno::ROFS);
        }
        if self.keeps_writes {
            return Ok(
                "the kernel keeps what is written (writeback_cache), so nobody knows what belongs together".into()
            );
        }
        let mut current = lock(&self.shared.current);
        if current.is_some() {
            return Err(Errno::BUSY);
        }
        let pid = i32::try_from(client).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
        let process = pidfd_open(pid, PidfdFlags::empty())?;
        if let Some(kernel) = self.shared.kernel.get() {
            kernel.expect_waiting();
        }
        let transaction = match self.shared.volume.transaction(time) {
            Ok(transaction) => transaction,
            Err(fs::Error::Busy) => return Err(Errno::BUSY),
            Err(e @ (fs::Error::Unsupported(_) | fs::Error::NoSpace)) => return Ok(e.to_string()),
            Err(e) => return Err(errno(&e)),
        };
        let known = Mutex::new((Instant::now(), HashMap::new()));
        let running = Arc::new(Running { transaction, client, known });
        *current = Some(Arc::clone(&running));
        self.shared.any.store(true, Ordering::Release);
        drop(current);
        let (inner, shared) = (Arc::clone(&self.inner), Arc::clone(&self.shared));
        let watch = move || watch(&*inner, &shared, &running, &process);
        // without somebody who watches, a client that dies would keep all others waiting
        if std::thread::Builder::new().name("fuse-transaction".to_owned()).spawn(watch).is_err() {
            self.shared.clear();
            return Err(Errno::AGAIN);
        }
        Ok(String::new())
    }
}

/// Rolls a transaction back when its process ends, and tells the kernel of a rollback by somebody else.
fn watch(inner: &dyn Filesystem, shared: &Shared, running: &Arc<Running>, process: &OwnedFd) {
    let mut told = false;
    let (mut quiet, mut answered) = (0, 0);
    while shared.is_current(running) {
        let now = shared.answered.load(Ordering::SeqCst);
        let asks_nothing = now == answered && shared.answering.load(Ordering::SeqCst) == 0;
        let stuck = asks_nothing && shared.waiting.load(Ordering::SeqCst) > 0 && shared.is_stuck(running);
        (quiet, answered) = (if stuck { quiet + 1 } else { 0 }, now);
        if quiet >= STUCK {
            shared.broken.fetch_add(1, Ordering::SeqCst);
            quiet = 0;
        }
        let mut fds = [PollFd::new(process, PollFlags::IN)];
        let ended = poll(&mut fds, Some(&LOOK)).is_ok_and(|ready| ready > 0);
        if ended || (!told && !running.transaction.is_running()) {
            told = true;
            // where it was committed meanwhile there is nothing to undo
            let touched = running.transaction.cancel("the process that began it has ended").unwrap_or_default();
            undo_what_is_known(inner, shared, &touched);
        }
        if ended && shared.is_current(running) {
            shared.clear();
        }
    }
}

fn undo_what_is_known(inner: &dyn Filesystem, shared: &Shared, touched: &Touched) {
    let (uid, gid, pid) = (0, 0, 0);
    let mut room = [0; 64];
    for number in &touched.inodes {
        // whoever answers notes that the file has some, if it has
        let request = Request {
            node: node_of(*number),
            caller: Caller { uid, gid, pid },
            operation: Operation::GetXattr { name: CAPABILITY, size: 0 },
        };
        let _pass = shared.volume.looking();
        let known = shared.volume.inode(*number).is_ok_and(|inode| inode.kind == fs::FileKind::Regular);
        if known {
            // that it has none is an error, too
            let _ = inner.answer(&request, &mut Reply::new(&mut room));
        }
    }
    shared.forget(touched);
}

impl<F: Filesystem + 'static> Filesystem for WithTransactions<F> {
    fn features(&self) -> Features {
        self.inner.features()
    }

    fn connected(&self, kernel: Kernel) {
        self.inner.connected(kernel.clone());
        // there is one connection
        let _ = self.shared.kernel.set(kernel);
    }

    fn would_wait(&self, request: &Request<'_>) -> bool {
        if self.inner.would_wait(request) {
            return true;
        }
        if manner(&request.operation) != Manner::Changes {
            return false;
        }
        let running = self.shared.running();
        let member = running.as_ref().filter(|running| running.has_member(request.caller.pid));
        let _inside = member.map(|running| running.transaction.enter());
        self.shared.volume.would_wait()
    }

    fn answer(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> Answer<()> {
        if let Operation::GetXattr { name, size } = request.operation
            && let Some(command) = Command::parse(name)
        {
            // who asks for the length of the value is not there for it yet
            let command = command?;
            return match size {
                0 => Err(Errno::INVAL),
                _ => reply.value(size, self.command(command, &request.caller)?.as_bytes()),
            };
        }
        let running = self.shared.running();
        let member = running.as_ref().filter(|running| running.has_member(request.caller.pid));
        let _inside = member.map(|running| running.transaction.enter());
        let _answering = member.map(|_| {
            self.shared.answered.fetch_add(1, Ordering::SeqCst);
            One::of(&self.shared.answering)
        });
        if member.is_none() && self.inner.would_wait(request) {
            // not in the midst of a transaction; and none is kept waiting by what waits for other requests
            drop(self.shared.change()?);
            self.inner.prepare(request)?;
        }
        let _pass = match manner(&request.operation) {
            Manner::Changes => Some(self.shared.change(request)?),
            Manner::Looks => Some(self.shared.volume.looking()),
            Manner::Else => None,
        };
        self.inner.answer(request, reply)
    }

    fn forget(&self, node: u64, lookups: u64) {
        self.inner.forget(node, lookups);
    }

    fn finish(&self) -> io::Result<()> {
        self.inner.finish()
    }

    fn panicked(&self, node: u64, what: &str) {
        self.inner.panicked(node, what);
    }
}

/// A transaction on a mounted volume, asked for by another process: this one, and those that it starts, are its
/// members. When this process ends it is rolled back.
#[derive(Debug)]
pub struct MountedTransaction {
    dir: std::path::PathBuf,
}

fn ask(path: &Path, command: &str) -> io::Result<()> {
    let name = [PREFIX, command.as_bytes()].concat();
    let mut text = vec![0; 4096];
    let length = rustix::fs::getxattr(path, &name[..], &mut text[..])?;
    let text = text.get(..length).unwrap_or_default();
    if text.is_empty() { Ok(()) } else { Err(io::Error::other(String::from_utf8_lossy(text).into_owned())) }
}

impl MountedTransaction {
    /// Begins a transaction on the volume in which `dir` lies; it may take `seconds`, at most a day.
    ///
    /// # Errors
    /// One sentence; of the kind `ResourceBusy` where there is another transaction.
    pub fn begin(dir: &Path, seconds: u64) -> io::Result<Self> {
        ask(dir, &format!("begin.{seconds}")).map_err(|e| match Errno::from_io_error(&e) {
            Some(Errno::NODATA | Errno::OPNOTSUPP) => {
                io::Error::other("it does not lie in a mounted volume of the native format")
            }
            Some(Errno::INVAL) => io::Error::other("a transaction can take a day at most"),
            Some(Errno::PERM) => io::Error::other("only root and whoever mounted the volume can begin a transaction"),
            Some(Errno::ROFS) => io::Error::other("the volume is mounted read-only"),
            _ => e,
        })?;
        Ok(Self { dir: dir.to_owned() })
    }

    /// Returns when all that was done is durable.
    ///
    /// # Errors
    /// One sentence; nothing of it is left then.
    pub fn commit(self) -> io::Result<()> {
        ask(&self.dir, "commit")
    }

    /// The volume is what it was when the transaction began, for whoever looks at it from now on.
    ///
    /// # Errors
    /// One sentence.
    pub fn rollback(self) -> io::Result<()> {
        ask(&self.dir, "rollback")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_read() {
        assert!(Command::parse(b"user.txn.commit").is_none());
        assert_eq!(Command::parse(b"extant.txn.begin.60"), Some(Ok(Command::Begin(60))));
        assert_eq!(Command::parse(b"extant.txn.commit"), Some(Ok(Command::Commit)));
        assert_eq!(Command::parse(b"extant.txn.rollback"), Some(Ok(Command::Rollback)));
        for wrong in [&b"extant.txn.begin."[..], b"extant.txn.begin.-1", b"extant.txn.begin.86401", b"extant.txn.x"] {
            assert_eq!(Command::parse(wrong), Some(Err(Errno::INVAL)));
        }
    }

    #[test]
    fn processes_know_who_made_them() {
        let (process, parent) = process(std::process::id()).expect("this process");
        assert_eq!(process, std::process::id());
        assert_eq!(parent, std::os::unix::process::parent_id());
    }
}
