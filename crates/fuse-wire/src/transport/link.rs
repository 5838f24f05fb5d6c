//! A connection to the kernel: turns each request into a call of the file system, and sends the answer.

use super::counters::{ATTRIBUTE, Counters};
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

/// The maximum size of one read or write in bytes. The kernel's own limit is the same unless its administrator raised
/// it.
pub(crate) const MAX_DATA: usize = 1 << 20;
/// The space for the headers before the data of a write, in bytes.
pub(crate) const MAX_HEADER: usize = 4096;
/// The maximum number of threads that invalidate refused pages at once: pages that the kernel writes back for the
/// invalidation may be refused, too, and so on.
const FORGETTING: usize = 32;
/// The maximum time that an answer waits for pages to be invalidated: the kernel may have one of them locked until it
/// gets the answer.
const PAGE_LOCK: Duration = Duration::from_millis(20);

/// The node number of the root.
const ROOT: u64 = 1;

/// A connection to the kernel after the handshake.
pub(crate) struct Link {
    pub(crate) connection: OwnedFd,
    pub(crate) filesystem: Arc<dyn Filesystem>,
    /// The features that were negotiated.
    pub(crate) features: Features,
    pub(super) spare: SpareWorkers,
    pub(crate) writeback: Arc<Writeback>,
    pub(super) polling: Polling,
    /// Started before the first notification that waits for locks of the kernel.
    pub(crate) watchdog: Watchdog,
    counters: Counters,
    /// The number of threads that are invalidating pages.
    forgetting: Arc<AtomicUsize>,
}

impl Link {
    /// Creates the connection, before the handshake.
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
            polling: Polling::new(),
            watchdog,
            counters: Counters::default(),
            forgetting: Arc::default(),
        }
    }

    /// Prepares for requests that have to wait: starts spare workers.
    pub(crate) fn prepare_spare(&self) {
        // over /dev/fuse a worker is started in time for each request that waits; without a list of processors there
        // are no queues
        if self.features.contains(Features::OVER_IO_URING) {
            self.spare.prepare(&processors::online().unwrap_or_default());
        }
    }
}

/// Waits for the next request; `None` after the unmount.
pub(crate) fn receive(connection: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    loop {
        match rustix::io::read(connection, &mut *buffer) {
            Ok(length) => return Ok(Some(length)),
            Err(Errno::NODEV) => return Ok(None),
            // NOENT: the request was cancelled before it was fully read
            Err(Errno::INTR | Errno::NOENT) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// Sends an answer over /dev/fuse.
pub(crate) fn send(link: &Link, unique: u64, outcome: Answer<()>, answer: &[u8]) -> io::Result<()> {
    let answer = if outcome.is_ok() { answer } else { &[] };
    let header = OutHeader {
        len: (size_of::<OutHeader>() + answer.len()) as u32,
        error: outcome.map_or_else(|e| -e.raw_os_error(), |()| 0),
        unique,
    };
    match rustix::io::writev(&link.connection, &[IoSlice::new(header.as_bytes()), IoSlice::new(answer)]) {
        // the request was interrupted or aborted
        Ok(_) | Err(Errno::NOENT) => Ok(()),
        // unmounted; the next read reports it
        Err(Errno::NODEV) => Ok(()),
        // the kernel rejects the answer as malformed; the program must not wait for ever
        Err(Errno::INVAL) if outcome.is_ok() => send(link, unique, Err(Errno::IO), &[]),
        Err(e) => Err(e.into()),
    }
}

/// Calls the file system for a whole message. Returns the request's number, the outcome, and the length of the answer
/// in `space`; `None` where no answer is due.
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

/// Calls the file system for a request, then applies the invalidations of its reply.
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
        return reply.value(size, link.counters.text(transport, link.polling.spent()).as_bytes());
    }
    let page_write = link.writeback.record(&request.operation);
    let outcome = ask((link, queue), &request, reply);
    if let (Some(page_write), Err(why), false) = (page_write, outcome, reply.is_rolled_back()) {
        page_write.failed(why);
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
    // no data of the request outlives it; the file system ensures that shared data stays consistent
    match catch_unwind(AssertUnwindSafe(answer)) {
        Ok(outcome) => {
            if let Some(node) = reply.changed() {
                forget_attributes(link, node);
            }
            if let Some((node, from)) = reply.moved() {
                let page = matches!(request.operation, Operation::Write { paged: true, .. });
                // content appended elsewhere must be invalidated in any case
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

/// Invalidates the kernel's cached attributes of a node. Notifications go through /dev/fuse on every transport.
fn forget_attributes(link: &Link, node: u64) {
    forget_inode(link.connection.as_fd(), node, -1);
}

/// Invalidates the kernel's cached content of a node from byte `from` on, while a write to it is being answered. The
/// kernel may have the last page of the write locked until it gets the answer: that page is not read before then, and
/// is invalidated then. So the wait is limited to [`PAGE_LOCK`].
fn forget_content(link: &Link, node: u64, from: u64) {
    let Ok(connection) = link.connection.try_clone() else { return };
    link.watchdog.start();
    let (done, finished) = std::sync::mpsc::channel();
    let forgetting = Arc::clone(&link.forgetting);
    let forget = move || {
        forgetting.fetch_add(1, Ordering::SeqCst);
        forget_inode(connection.as_fd(), node, i64::try_from(from).unwrap_or(i64::MAX));
        forgetting.fetch_sub(1, Ordering::SeqCst);
        // the receiver may have timed out
        let _ = done.send(());
    };
    if std::thread::Builder::new().name("fuse-forget".to_owned()).spawn(forget).is_ok() {
        let _ = finished.recv_timeout(PAGE_LOCK);
    }
}

/// Invalidates content from `offset` on; below 0: the attributes only.
pub(crate) fn forget_inode(connection: BorrowedFd<'_>, node: u64, offset: i64) {
    let what = NotifyInvalInodeOut { node, offset, length: 0 };
    // a node that the kernel does not know has no cached data
    let _ = notify(connection, NOTIFY_INVAL_INODE, &[what.as_bytes()]);
}

/// Sends a notification. Returns whether the kernel accepted it; during an unmount nothing is cached.
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

/// Splits a request read from /dev/fuse into arguments and data; `None` where it is too short for its kind.
fn part<'a>(link: &Link, header: &InHeader, body: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
    // for unknown kinds the split does not matter
    body.split_at_checked(arguments(header.opcode, link.features).unwrap_or(0))
}

/// Handles the requests that have no answer; returns `false` for others.
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
            // in reverse: unlinked files that lost their last name last are first in the volume's list
            for one in all.rev().filter_map(|bytes| ForgetOne::read_from_bytes(bytes).ok()) {
                forget(one.node, one.lookups);
            }
        }
        // requests are short, or must complete (fsync): only those that wait for others are interrupted
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
