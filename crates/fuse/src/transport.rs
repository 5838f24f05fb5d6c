//! The way of requests from the kernel to a [`Filesystem`] and of its answers back.
//!
//! There are two ways, and one for tests, and a file system cannot tell them apart:
//!
//! | file | way |
//! | --- | --- |
//! | `device` | read(2) and writev(2) on /dev/fuse by a few threads |
//! | `messages` | bytes that a caller brings, for tests without a kernel |
//! | `uring` | io_uring, where the kernel has it (Linux 6.14, /sys/module/fuse/parameters/enable_uring): a request appears in memory of a thread on the core whose process asked, and handing back the answer takes the next request |
//!
//! The two begin with the same handshake, in which the last is asked for; a kernel that does not offer it, or a system
//! that does not allow it, gets the first.
//!
//! 1. Every request is answered, whatever its bytes are and whatever the file system does: a panic inside becomes EIO.
//! 2. A read is answered from the memory into which the file system wrote it.
//! 3. Nothing here knows of volumes.

mod device;
mod messages;
mod pace;
mod standin;
mod uring;

use crate::pages::Pages;
use crate::protocol::{Features, InHeader, InitIn, InitOut, MAJOR, MINOR, OLDEST_MINOR, OutHeader, opcode};
use crate::protocol::{NOTIFY_INVAL_ENTRY, NOTIFY_INVAL_INODE, NOTIFY_PRUNE, NOTIFY_STORE};
use crate::protocol::{NotifyInvalEntryOut, NotifyInvalInodeOut, NotifyPruneOut, NotifyStoreOut};
use crate::reply::{Answer, Reply};
use crate::request::{Operation, Request, arguments};
use crate::watchdog::Watchdog;
pub use messages::Messages;
use pace::Pace;
use rustix::io::Errno;
use standin::{Queue, StandIns};
use std::any::Any;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

/// Most bytes in one read or write. The kernel's own limit is the same unless its administrator raised it.
const MAX_DATA: usize = 1 << 20;
/// Room for what comes before the data of a write.
const MAX_HEADER: usize = 4096;
/// Requests of the kernel's own making (read-ahead) that may wait at once.
const MAX_BACKGROUND: u16 = 64;
/// Nodes that the kernel is asked to let go of in one message.
const PRUNED_AT_ONCE: usize = 4096;
/// So many threads at once that have the kernel forget pages that it handed over and that were refused: what it hands over
/// on the way may be refused too, and so on.
const FORGETTING: usize = 32;
/// How long an answer waits for the kernel to forget pages, of which it may have one locked until it has the answer.
const PAGE_LOCK: Duration = Duration::from_millis(20);
/// What every transport can carry.
const CARRIED: Features = Features::ASYNC_READ
    .union(Features::BIG_WRITES)
    .union(Features::MAX_PAGES)
    .union(Features::SETXATTR_EXT)
    .union(Features::INIT_EXT);

/// Which way requests shall take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Transport {
    /// io_uring where the kernel offers it, else /dev/fuse.
    #[default]
    Best,
    /// /dev/fuse.
    Device,
}

/// What answers requests. Calls come from many threads at once.
pub trait Filesystem: Send + Sync {
    /// What it wants of the kernel; it gets what the kernel offers of that.
    fn features(&self) -> Features;

    /// Answers a request: puts the answer in `reply`, or nothing where none is due beyond that it was done.
    ///
    /// # Errors
    /// The number that the program is told. ENOSYS says that such requests need not be sent again.
    fn answer(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> Answer<()>;

    /// The kernel let go of a file as often as it was told of it in so many answers.
    fn forget(&self, node: u64, lookups: u64);

    /// It is about to be unmounted although files are open, and nothing may begin any more that others would have to wait for.
    /// Whether the kernel shall write back what it has: not where that would be undone. Requests may follow that change
    /// something.
    fn stop(&self) -> bool {
        true
    }

    /// It is unmounted, or about to be: what was changed must be durable when this returns. It may be called more than
    /// once, and requests may follow that change nothing any more.
    ///
    /// # Errors
    /// Something did not reach the device.
    fn finish(&self) -> io::Result<()>;

    /// A panic came out of a request about `node`; the program is told EIO.
    fn panicked(&self, node: u64, what: &str);

    /// The handshake is done: from now on the kernel can be told to forget something.
    fn connected(&self, _kernel: Kernel) {}

    /// A signal came for the process whose request has this number; it may not have come here yet, or be answered. A process
    /// that was killed ends when it is answered.
    fn interrupted(&self, _unique: u64) {}

    /// Whether a request would have to wait for another one, of any length.
    fn would_wait(&self, _request: &Request<'_>) -> bool {
        false
    }

    /// Called before a request that would wait is answered, with nothing locked that others may need: what has to be done
    /// by other requests first.
    ///
    /// # Errors
    /// The number that the program is told; the request is not answered then.
    fn prepare(&self, _request: &Request<'_>) -> Answer<()> {
        Ok(())
    }
}

/// The kernel, as whoever it may remember things of sees it. When the connection has ended it remembers nothing.
#[derive(Debug, Clone)]
pub struct Kernel {
    link: Weak<Link>,
}

impl Kernel {
    /// From now on requests may have to wait for others, many at once: makes room for them.
    pub fn expect_waiting(&self) {
        if let Some(link) = self.link.upgrade() {
            link.stand_ins.prepare(&link);
        }
    }

    /// What comes from its pages, and how to have it write them back.
    pub(crate) fn pages(&self) -> Option<Arc<Pages>> {
        self.link.upgrade().map(|link| Arc::clone(&link.pages))
    }

    /// Has it forget the attributes and the content of a node.
    pub fn forget_inode(&self, node: u64) {
        if let Some(link) = self.link.upgrade() {
            link.watchdog.start();
            forget_inode(link.connection.as_fd(), node, 0);
        }
    }

    /// Whether [`Kernel::let_go`] does anything: not before Linux 6.18.
    #[must_use]
    pub fn lets_go(&self) -> bool {
        self.let_go(&[])
    }

    /// Has it let go of those of these nodes that no program uses; for each a FORGET comes in its own time. It waits for
    /// content that is just being read, so it must not be called by whoever others wait for. False where it cannot.
    ///
    /// That is not FUSE_NOTIFY_INVAL_ENTRY, which older kernels have too: that takes names away from files in use as well,
    /// and unmounts what is mounted on them.
    pub fn let_go(&self, nodes: &[u64]) -> bool {
        let Some(link) = self.link.upgrade() else { return false };
        if !nodes.is_empty() {
            link.watchdog.start();
        }
        let what = NotifyPruneOut { count: nodes.len() as u32, ..NotifyPruneOut::default() };
        notify(link.connection.as_fd(), NOTIFY_PRUNE, &[what.as_bytes(), nodes.as_bytes()])
    }

    /// As [`Kernel::let_go`], by a thread of its own, and any number; `done` is called in the end. False where it cannot
    /// be started.
    pub(crate) fn let_go_behind(&self, nodes: Vec<u64>, done: impl FnOnce() + Send + 'static) -> bool {
        let kernel = self.clone();
        let work = move || {
            // an end of the connection ends it too
            let _ = nodes.chunks(PRUNED_AT_ONCE).all(|some| kernel.let_go(some));
            done();
        };
        std::thread::Builder::new().name("fuse-memory".to_owned()).spawn(work).is_ok()
    }

    /// Gives it content of a node, with which the file ends: where the size that it has of the file is smaller, it grows.
    pub fn lengthen(&self, node: u64, offset: u64, content: &[u8]) {
        let Some(link) = self.link.upgrade() else { return };
        link.watchdog.start();
        let what = NotifyStoreOut { node, offset, size: content.len() as u32, padding: 0 };
        let _ = notify(link.connection.as_fd(), NOTIFY_STORE, &[what.as_bytes(), content]);
    }

    /// Has it forget the attributes of a node. It locks nothing for that.
    pub fn forget_attributes(&self, node: u64) {
        if let Some(link) = self.link.upgrade() {
            forget_inode(link.connection.as_fd(), node, -1);
        }
    }

    /// Has it forget a name of a directory. It locks the directory, so this waits for requests that change it.
    pub fn forget_name(&self, dir: u64, name: &[u8]) {
        let Some(link) = self.link.upgrade() else { return };
        link.watchdog.start();
        let what = NotifyInvalEntryOut { dir, length: name.len() as u32, flags: 0 };
        let _ = notify(link.connection.as_fd(), NOTIFY_INVAL_ENTRY, &[what.as_bytes(), name, &[0]]);
    }
}

/// A connection to the kernel after the handshake.
struct Link {
    connection: OwnedFd,
    filesystem: Arc<dyn Filesystem>,
    /// What both sides agreed on.
    features: Features,
    stand_ins: StandIns,
    pages: Arc<Pages>,
    pace: Pace,
    /// Started before the first message that waits for locks of the kernel.
    watchdog: Watchdog,
    /// Threads that have the kernel forget pages.
    forgetting: Arc<AtomicUsize>,
}

/// Answers the requests on a connection until the file system is unmounted.
///
/// # Errors
/// The connection broke, or the kernel is too old.
pub(crate) fn serve(
    connection: OwnedFd,
    filesystem: Arc<dyn Filesystem>,
    transport: Transport,
    watchdog: Watchdog,
    pages: Arc<Pages>,
) -> io::Result<()> {
    let mut link = Link {
        connection,
        filesystem,
        features: Features::empty(),
        stand_ins: StandIns::default(),
        pages,
        pace: Pace::new(),
        watchdog,
        forgetting: Arc::default(),
    };
    // made before the kernel is told that they will be there: from then on nothing can fail for want of memory
    let queues = match transport {
        Transport::Best => uring::Queues::new(link.connection.as_fd()).ok(),
        Transport::Device => None,
    };
    if !shake_hands(&mut link, queues.is_some())? {
        return Ok(());
    }
    let link = Arc::new(link);
    link.stand_ins.serve(&link);
    link.filesystem.connected(Kernel { link: Arc::downgrade(&link) });
    let served = match queues {
        Some(queues) if link.features.contains(Features::OVER_IO_URING) => queues.serve(&link),
        _ => device::serve(&link),
    };
    served.and(link.stand_ins.join())
}

/// Answers the first request, which agrees on what is possible. False if it was unmounted before.
fn shake_hands(link: &mut Link, uring: bool) -> io::Result<bool> {
    let mut buffer = vec![0; MAX_DATA + MAX_HEADER];
    loop {
        let Some(length) = receive(link.connection.as_fd(), &mut buffer)? else { return Ok(false) };
        let message = buffer.get(..length).unwrap_or_default();
        let Ok((header, rest)) = InHeader::read_from_prefix(message) else { return Err(broken("a short request")) };
        let Ok((offer, rest)) = InitIn::read_from_prefix(rest) else { return Err(broken("a short handshake")) };
        if header.opcode != opcode::INIT {
            return Err(broken("a request before the handshake"));
        }
        if offer.major < MAJOR || (offer.major == MAJOR && offer.minor < OLDEST_MINOR) {
            send(link, header.unique, Err(Errno::PROTO), &[])?;
            let (major, minor) = (offer.major, offer.minor);
            return Err(io::Error::other(format!("the kernel speaks FUSE {major}.{minor}, which is too old")));
        }
        if offer.major > MAJOR {
            // it asks again, in the version it is answered with
            let ours = InitOut { major: MAJOR, minor: MINOR, ..InitOut::default() };
            send(link, header.unique, Ok(()), ours.as_bytes())?;
            continue;
        }
        let mut offered = Features::from_bits_retain(u64::from(offer.flags));
        if offered.contains(Features::INIT_EXT) {
            let high = u32::read_from_prefix(rest).map_or(0, |(high, _)| high);
            offered |= Features::from_bits_retain(u64::from(high) << 32);
        }
        let mut wanted = link.filesystem.features() | CARRIED;
        wanted.set(Features::OVER_IO_URING, uring);
        link.features = wanted & offered;
        let bits = link.features.bits();
        let ours = InitOut {
            major: MAJOR,
            minor: MINOR,
            max_readahead: offer.max_readahead,
            flags: (bits & u64::from(u32::MAX)) as u32,
            flags2: (bits >> 32) as u32,
            max_background: MAX_BACKGROUND,
            congestion_threshold: MAX_BACKGROUND / 4 * 3,
            max_write: MAX_DATA as u32,
            max_pages: (MAX_DATA / 4096) as u16,
            time_granularity: 1,
            ..InitOut::default()
        };
        send(link, header.unique, Ok(()), ours.as_bytes())?;
        return Ok(true);
    }
}

fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the kernel sent {what}"))
}

/// Waits for the next request; `None` when it is unmounted.
fn receive(connection: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Option<usize>> {
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
fn send(link: &Link, unique: u64, outcome: Answer<()>, answer: &[u8]) -> io::Result<()> {
    let answer = if outcome.is_ok() { answer } else { &[] };
    let header = OutHeader {
        len: (size_of::<OutHeader>() + answer.len()) as u32,
        error: outcome.map_or_else(|e| -e.raw_os_error(), |()| 0),
        unique,
    };
    match rustix::io::writev(&link.connection, &[IoSlice::new(header.as_bytes()), IoSlice::new(answer)]) {
        // nobody waits for it any more
        Ok(_) | Err(Errno::NOENT) => Ok(()),
        // unmounted; the next read says so
        Err(Errno::NODEV) => Ok(()),
        // the answer makes no sense to the kernel; whoever asked must not wait for ever
        Err(Errno::INVAL) if outcome.is_ok() => send(link, unique, Err(Errno::IO), &[]),
        Err(e) => Err(e.into()),
    }
}

/// Asks the file system what a whole message asks: the request's number, the outcome, and how many bytes of the answer are in
/// `room`. `None` where no answer is due.
fn respond_to(link: &Link, message: &[u8], room: &mut [u8]) -> Option<(u64, Answer<()>, usize)> {
    let (header, body) = InHeader::read_from_prefix(message).ok()?;
    if forgotten(link, &header, body) {
        return None;
    }
    let mut reply = Reply::new(room);
    let outcome = match part(link, &header, body) {
        Some((arguments, rest)) => respond((link, None), &header, arguments, rest, &mut reply),
        None => Err(Errno::INVAL),
    };
    Some((header.unique, outcome, reply.len()))
}

/// Asks the file system. What comes out goes to the kernel.
fn respond(
    (link, queue): (&Link, Queue),
    header: &InHeader,
    arguments: &[u8],
    rest: &[u8],
    reply: &mut Reply<'_>,
) -> Answer<()> {
    let Some(request) = Request::parse(header, arguments, rest) else { return Err(Errno::INVAL) };
    let coming = link.pages.note(&request.operation);
    let outcome = ask((link, queue), &request, reply);
    if let (Some(coming), Err(why), false) = (coming, outcome, reply.is_rolled_back()) {
        coming.failed(why);
    }
    outcome
}

fn ask((link, queue): (&Link, Queue), request: &Request<'_>, reply: &mut Reply<'_>) -> Answer<()> {
    let waits = link.filesystem.would_wait(request);
    let _waiting = waits.then(|| link.stand_ins.wait(queue)).transpose()?;
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
                let page = matches!(request.operation, Operation::Write { late: true, .. });
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

/// Has the kernel forget the attributes of a node. It takes such messages through /dev/fuse, whatever way requests take.
fn forget_attributes(link: &Link, node: u64) {
    forget_inode(link.connection.as_fd(), node, -1);
}

/// Has the kernel forget the content of a node from byte `from` on, in the midst of an answer to a write to it. The kernel
/// may have the last page of what is written locked until it has the answer: nobody reads that one before, and it is
/// forgotten then. So this does not wait for it for long.
fn forget_content(link: &Link, node: u64, from: u64) {
    let Ok(connection) = link.connection.try_clone() else { return };
    link.watchdog.start();
    let (done, told) = std::sync::mpsc::channel();
    let forgetting = Arc::clone(&link.forgetting);
    let forget = move || {
        forgetting.fetch_add(1, Ordering::SeqCst);
        forget_inode(connection.as_fd(), node, i64::try_from(from).unwrap_or(i64::MAX));
        forgetting.fetch_sub(1, Ordering::SeqCst);
        // nobody may listen any more
        let _ = done.send(());
    };
    if std::thread::Builder::new().name("fuse-forget".to_owned()).spawn(forget).is_ok() {
        let _ = told.recv_timeout(PAGE_LOCK);
    }
}

/// Content is forgotten from `offset` on; below 0: the attributes alone.
fn forget_inode(connection: BorrowedFd<'_>, node: u64, offset: i64) {
    let what = NotifyInvalInodeOut { node, offset, length: 0 };
    // a kernel that does not have it has nothing to forget
    let _ = notify(connection, NOTIFY_INVAL_INODE, &[what.as_bytes()]);
}

/// Whether the kernel did it. One that is unmounting has nothing to forget.
fn notify(connection: BorrowedFd<'_>, code: i32, what: &[&[u8]]) -> bool {
    let len = size_of::<OutHeader>() + what.iter().map(|part| part.len()).sum::<usize>();
    let header = OutHeader { len: len as u32, error: code, unique: 0 };
    let parts: Vec<_> = std::iter::once(header.as_bytes()).chain(what.iter().copied()).map(IoSlice::new).collect();
    rustix::io::writev(connection, &parts).is_ok()
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic without words")
}

/// Parts a request that was read from /dev/fuse; `None` for one too short for its kind.
fn part<'a>(link: &Link, header: &InHeader, body: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
    // what follows the arguments of a kind that is not known does not matter
    body.split_at_checked(arguments(header.opcode, link.features).unwrap_or(0))
}

/// Takes the requests that have no answer; false for any other.
fn forgotten(link: &Link, header: &InHeader, body: &[u8]) -> bool {
    use crate::protocol::{BatchForgetIn, ForgetOne};
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
    true
}
