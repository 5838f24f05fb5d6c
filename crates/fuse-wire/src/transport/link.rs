//! A connection to the kernel: a request taken from it becomes a call of the file system, and the answer goes back.

use super::awake::Awake;
use super::counters::{ATTRIBUTE, AwakeCounts, Counters};
use super::polling::Polling;
use super::processors;
use super::spare::{Queue, SpareWorkers};
use crate::connection_watchdog::Watchdog;
use crate::filesystem::Filesystem;
use crate::protocol::{BatchForgetIn, Features, ForgetOne, InHeader, OutHeader, opcode};
use crate::protocol::{NOTIFY_INVAL_INODE, NotifyInvalInodeOut};
use crate::reply::{Answer, Reply};
use crate::request::{Operation, Request, arguments};
use crate::writeback::Writeback;
use rustix::io::Errno;
use std::any::Any;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

/// Most bytes in one read or write. The kernel's own limit is the same unless its administrator raised it.
pub(crate) const MAX_DATA: usize = 1 << 20;
/// Space for what comes before the data of a write.
pub(crate) const MAX_HEADER: usize = 4096;
/// So many threads at once that have the kernel forget pages that it handed over and that were refused: what it hands
/// over on the way may be refused too, and so on.
const FORGETTING: usize = 32;
/// The longest time that an answer waits for the kernel to forget pages, of which it may have one locked until it has
/// the answer.
const PAGE_LOCK: Duration = Duration::from_millis(20);

/// The root, as the protocol numbers it.
const ROOT: u64 = 1;

/// A connection to the kernel after the handshake.
pub(crate) struct Link {
    pub(crate) connection: OwnedFd,
    pub(crate) filesystem: Arc<dyn Filesystem>,
    /// The features that both sides agreed on.
    pub(crate) features: Features,
    pub(super) spare: SpareWorkers,
    pub(crate) writeback: Arc<Writeback>,
    pub(super) polling: Polling,
    pub(super) awake: Arc<Awake>,
    /// Started before the first message that waits for locks of the kernel.
    pub(crate) watchdog: Watchdog,
    counters: Counters,
    /// Threads that have the kernel forget pages.
    forgetting: Arc<AtomicUsize>,
}

impl Link {
    /// A connection before the handshake.
    pub(crate) fn new(
        connection: OwnedFd,
        filesystem: Arc<dyn Filesystem>,
        watchdog: Watchdog,
        writeback: Arc<Writeback>,
    ) -> Self {
        Self {
            connection,
            filesystem,
            features: Features::empty(),
            spare: SpareWorkers::default(),
            writeback,
            polling: Polling::never(),
            awake: Arc::new(Awake::new()),
            watchdog,
            counters: Counters::default(),
            forgetting: Arc::default(),
        }
    }

    /// A request came.
    pub(super) fn request(&self) {
        self.polling.request();
        self.awake.request();
    }

    /// Requests may have to wait from now on: starts spare workers.
    pub(crate) fn prepare_spare(&self) {
        // through /dev/fuse one is started in time for each that waits; who has no list of processors has no queues
        // either
        if self.features.contains(Features::OVER_IO_URING) {
            self.spare.prepare(&processors::online().unwrap_or_default());
        }
    }
}

/// Waits for the next request; `None` when it is unmounted.
pub(crate) fn receive(connection: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    loop {
        match rustix::io::read(connection, &mut *buffer) {
            Ok(length) => return Ok(Some(length)),
            Err(Errno::NODEV) => return Ok(None),
            // NOENT: the request was taken back before it was read whole
            Err(Errno::INTR | Errno::NOENT) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// Sends an answer through /dev/fuse.
pub(crate) fn send(link: &Link, unique: u64, outcome: Answer<()>, answer: &[u8]) -> io::Result<()> {
    let answer = if outcome.is_ok() { answer } else { &[] };
    let header = OutHeader {
        len: (size_of::<OutHeader>() + answer.len()) as u32,
        error: outcome.map_or_else(|e| -e.raw_os_error(), |()| 0),
        unique,
    };
    match rustix::io::writev(&link.connection, &[IoSlice::new(header.as_bytes()), IoSlice::new(answer)]) {
        // no program waits for it any more
        Ok(_) | Err(Errno::NOENT) => Ok(()),
        // unmounted; the next read says so
        Err(Errno::NODEV) => Ok(()),
        // the answer makes no sense to the kernel; the program must not wait for ever
        Err(Errno::INVAL) if outcome.is_ok() => send(link, unique, Err(Errno::IO), &[]),
        Err(e) => Err(e.into()),
    }
}

/// Asks the file system what a whole message asks: the request's number, the outcome, and how many bytes of the answer
/// are in `space`. `None` where no answer is due.
pub(crate) fn respond_to(link: &Link, message: &[u8], space: &mut [u8]) -> Option<(u64, Answer<()>, usize)> {
    let (header, body) = InHeader::read_from_prefix(message).ok()?;
    if forgotten(link, &header, body) {
        return None;
    }
    let mut reply = Reply::new(space);
    let outcome = match part(link, &header, body) {
        Some((arguments, rest)) => respond((link, None), &header, arguments, rest, &mut reply),
        None => Err(Errno::INVAL),
    };
    Some((header.unique, outcome, reply.len()))
}

/// Asks the file system. What comes out goes to the kernel.
pub(crate) fn respond(
    (link, queue): (&Link, Queue),
    header: &InHeader,
    arguments: &[u8],
    rest: &[u8],
    reply: &mut Reply<'_>,
) -> Answer<()> {
    link.counters.count(header.opcode);
    let Some(request) = Request::parse(header, arguments, rest) else { return Err(Errno::INVAL) };
    if let Operation::GetXattr { name, size } = request.operation
        && (request.node, name) == (ROOT, ATTRIBUTE.as_bytes())
    {
        let transport = if link.features.contains(Features::OVER_IO_URING) { "io_uring" } else { "/dev/fuse" };
        let awake = link.awake.counts();
        let awake = AwakeCounts { polled: awake.polled + link.polling.spent(), ..awake };
        return reply.value(size, link.counters.text(transport, &awake).as_bytes());
    }
    let coming = link.writeback.record(&request.operation);
    let outcome = ask((link, queue), &request, reply);
    if let (Some(coming), Err(why), false) = (coming, outcome, reply.is_rolled_back()) {
        coming.failed(why);
    }
    outcome
}

fn ask((link, queue): (&Link, Queue), request: &Request<'_>, reply: &mut Reply<'_>) -> Answer<()> {
    let waits = link.filesystem.would_wait(request);
    let _waiting = waits.then(|| link.spare.wait(queue)).transpose()?;
    let answer = || {
        if waits {
            link.filesystem.prepare(request)?;
        }
        link.filesystem.answer(request, reply)
    };
    // nothing of a request outlives it; that what requests share is whole is the file system's care
    match catch_unwind(AssertUnwindSafe(answer)) {
        Ok(outcome) => {
            if let Some(node) = reply.changed() {
                forget_attributes(link, node);
            }
            if let Some((node, from)) = reply.moved() {
                let page = matches!(request.operation, Operation::Write { paged: true, .. });
                // what was appended elsewhere has to be forgotten in any case
                if !page || link.forgetting.load(Ordering::SeqCst) < FORGETTING {
                    forget_content(link, node, from);
                }
            }
            outcome
        }
        Err(panic) => {
            link.filesystem.panicked(request.node, text_of(&*panic));
            Err(Errno::IO)
        }
    }
}

/// Has the kernel forget the attributes of a node. It takes such messages through /dev/fuse, whatever way requests
/// take.
fn forget_attributes(link: &Link, node: u64) {
    forget_inode(link.connection.as_fd(), node, -1);
}

/// Has the kernel forget the content of a node from byte `from` on, in the midst of an answer to a write to it. The
/// kernel may have the last page of what is written locked until it has the answer: it is not read before, and is
/// forgotten then. So this does not wait for it for long.
fn forget_content(link: &Link, node: u64, from: u64) {
    let Ok(connection) = link.connection.try_clone() else { return };
    link.watchdog.start();
    let (done, finished) = std::sync::mpsc::channel();
    let forgetting = Arc::clone(&link.forgetting);
    let forget = move || {
        forgetting.fetch_add(1, Ordering::SeqCst);
        forget_inode(connection.as_fd(), node, i64::try_from(from).unwrap_or(i64::MAX));
        forgetting.fetch_sub(1, Ordering::SeqCst);
        // the receiver may be gone
        let _ = done.send(());
    };
    if std::thread::Builder::new().name("fuse-forget".to_owned()).spawn(forget).is_ok() {
        let _ = finished.recv_timeout(PAGE_LOCK);
    }
}

/// Content is forgotten from `offset` on; below 0: the attributes alone.
pub(crate) fn forget_inode(connection: BorrowedFd<'_>, node: u64, offset: i64) {
    let what = NotifyInvalInodeOut { node, offset, length: 0 };
    // a kernel that does not have it has nothing to forget
    let _ = notify(connection, NOTIFY_INVAL_INODE, &[what.as_bytes()]);
}

/// Whether the kernel did it. One that is unmounting has nothing to forget.
pub(crate) fn notify(connection: BorrowedFd<'_>, code: i32, what: &[&[u8]]) -> bool {
    let len = size_of::<OutHeader>() + what.iter().map(|part| part.len()).sum::<usize>();
    let header = OutHeader { len: len as u32, error: code, unique: 0 };
    let parts: Vec<_> = std::iter::once(header.as_bytes()).chain(what.iter().copied()).map(IoSlice::new).collect();
    rustix::io::writev(connection, &parts).is_ok()
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic without a message")
}

/// Parts a request that was read from /dev/fuse; `None` for one too short for its kind.
fn part<'a>(link: &Link, header: &InHeader, body: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
    // what follows the arguments of a kind that is not known does not matter
    body.split_at_checked(arguments(header.opcode, link.features).unwrap_or(0))
}

/// Takes the requests that have no answer; false for any other.
pub(crate) fn forgotten(link: &Link, header: &InHeader, body: &[u8]) -> bool {
    let forget = |node, lookups| {
        let forget = AssertUnwindSafe(|| link.filesystem.forget(node, lookups));
        if let Err(panic) = catch_unwind(forget) {
            link.filesystem.panicked(node, text_of(&*panic));
        }
    };
    match header.opcode {
        opcode::FORGET => {
            if let Ok((lookups, _)) = u64::read_from_prefix(body) {
                forget(header.node, lookups);
            }
        }
        opcode::BATCH_FORGET => {
            let Ok((head, rest)) = BatchForgetIn::read_from_prefix(body) else { return true };
            let all = rest.chunks_exact(size_of::<ForgetOne>()).take(head.count as usize);
            // the last first: of files without names those that lost theirs last stand first in the volume's list
            for one in all.rev().filter_map(|bytes| ForgetOne::read_from_bytes(bytes).ok()) {
                forget(one.node, one.lookups);
            }
        }
        // requests are short, or must come to their end (fsync): only those that wait for others are broken off
        opcode::INTERRUPT => {
            if let Ok((unique, _)) = u64::read_from_prefix(body) {
                link.filesystem.interrupted(unique);
            }
        }
        _ => return false,
    }
    link.counters.count(header.opcode);
    true
}
