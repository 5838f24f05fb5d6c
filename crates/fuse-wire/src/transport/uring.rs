//! Requests through io_uring. The one file of this crate with unsafe code: the kernel gets addresses of memory into
//! which it puts requests and from which it takes answers.
//!
//! The kernel has one queue for each processor, and sends a request to the queue of the processor on which the asking
//! process runs. A [`RingEntry`] is a place for one request of one queue: memory for it and for its answer, and a ring
//! through which its one command goes. Each entry has a thread of its own, bound to the processor of its queue, so a
//! request that waits for the device does not delay any other: the kernel hands requests only to entries that wait. It
//! takes the entry that was free last, whose thread and memory are still in the processor's caches.
//!
//! FORGET and INTERRUPT still come through /dev/fuse. No program waits for them, so they are read a moment later and
//! many at once.
//!
//! Why this is sound:
//! 1. The memory of an entry belongs either to the kernel or to us (`RingEntry::kernels`). It becomes the kernel's when
//!    a command that names it is put into the ring, and ours again only when that command's completion has been taken
//!    from the ring. References into it are made only while it is ours, and borrow the entry.
//! 2. Memory that the kernel has is never freed: an entry that is dropped then leaks it.
#![allow(unsafe_code)]

use super::link::{Link, MAX_DATA, MAX_HEADER, forgotten, receive, respond, send};
use super::polling::Polling;
use super::processors;
use super::spare::Queue;
use crate::protocol::{InHeader, OutHeader};
use crate::reply::{Answer, Reply};
use crate::request::{arguments, is_read};
use io_uring::{EnterFlags, IoUring, cqueue, opcode, squeue, types};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_setaffinity};
use std::io;
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Ring entries of all queues together, about: enough that some wait for the device while others answer. A queue has
/// two at least.
const ENTRIES: usize = 16;

/// The time for which FORGETs are let gather. What they free can be used so much later.
const GATHER: Duration = Duration::from_millis(2);

/// A ring entry is registered, and waits for a request.
const REGISTER: u32 = 1;
/// An answer is handed back, and the entry waits for the next request.
const COMMIT_AND_FETCH: u32 = 2;

/// `struct fuse_uring_req_header`.
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
struct Head {
    /// [`InHeader`], then [`OutHeader`].
    in_out: [u8; 128],
    arguments: [u8; 128],
    flags: u64,
    /// Names the request when it is answered.
    commit_id: u64,
    /// Bytes behind the arguments, then of the answer.
    payload: u32,
    padding: u32,
    reserved: u64,
}

/// `struct fuse_uring_cmd_req`, in the 80 bytes of a command.
#[repr(C)]
#[derive(IntoBytes, Immutable)]
struct Command {
    flags: u64,
    commit_id: u64,
    queue: u16,
    padding: [u8; 62],
}

/// `struct iovec`.
#[repr(C)]
struct Vector {
    base: *mut u8,
    len: usize,
}

/// `struct io_uring_sqe` as far as its field `len`.
#[repr(C)]
struct SqeStart {
    opcode: u8,
    flags: u8,
    ioprio: u16,
    fd: i32,
    off: u64,
    addr: u64,
    len: u32,
}

/// A place for one request: see the head of this file.
struct RingEntry {
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    queue: u16,
    head: NonNull<Head>,
    payload: NonNull<[u8]>,
    /// Whether the kernel has the memory.
    kernels: bool,
}

// SAFETY: the memory behind the two pointers belongs to the entry alone, or to the kernel, which does not mind threads.
unsafe impl Send for RingEntry {}

impl Drop for RingEntry {
    fn drop(&mut self) {
        if !self.kernels {
            // SAFETY: both were leaked boxes of these types, are freed nowhere else, and the kernel does not have them.
            unsafe {
                drop(Box::from_raw(self.head.as_ptr()));
                drop(Box::from_raw(self.payload.as_ptr()));
            }
        }
    }
}

impl RingEntry {
    fn new(connection: BorrowedFd<'_>, queue: u16) -> io::Result<Self> {
        // the thread that enables it is the only one to use it; so the kernel hands over requests when that thread
        // waits
        let ring = IoUring::builder()
            .setup_r_disabled()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .build(2)?;
        ring.submitter().register_files(&[connection.as_raw_fd()])?;
        let head = NonNull::from(Box::leak(Box::new(Head::new_zeroed())));
        let payload = NonNull::from(Box::leak(vec![0; MAX_DATA].into_boxed_slice()));
        Ok(Self { ring, queue, head, payload, kernels: false })
    }

    /// Puts a command into the ring, with which the memory becomes the kernel's.
    fn push(&mut self, command: u32, commit_id: u64, vectors: Option<&[Vector; 2]>) -> io::Result<()> {
        let bytes = Command { flags: 0, commit_id, queue: self.queue, padding: [0; 62] };
        let address = vectors.map(|vectors| vectors.as_ptr() as u64);
        let mut submission =
            opcode::UringCmd80::new(types::Fixed(0), command).cmd(zerocopy::transmute!(bytes)).addr(address).build();
        if let Some(vectors) = vectors {
            // SAFETY: an `Entry128` is a `struct io_uring_sqe` with 64 bytes more, so the field is inside, and aligned.
            unsafe {
                let len = (&raw mut submission).cast::<u8>().add(offset_of!(SqeStart, len)).cast::<u32>();
                len.write(vectors.len() as u32);
            }
        }
        // SAFETY: the kernel takes from the command: the descriptor, registered with the ring; the vectors, which the
        // caller holds until it is submitted; and through them the memory of this entry, which is not freed and not
        // looked at before the completion (`kernels`).
        unsafe { self.ring.submission().push(&submission) }.map_err(|_| io::Error::other("the ring is full"))?;
        self.kernels = true;
        Ok(())
    }

    /// Registers the entry with the kernel, before the ring is waited for; a refusal comes out of [`RingEntry::wait`].
    fn register(&mut self) -> io::Result<()> {
        self.ring.submitter().register_enable_rings()?;
        let vectors = [
            Vector { base: self.head.as_ptr().cast(), len: size_of::<Head>() },
            Vector { base: self.payload.as_ptr().cast(), len: MAX_DATA },
        ];
        self.push(REGISTER, 0, Some(&vectors))?;
        // the vectors are read when the command is submitted, and not again
        while let Err(e) = self.ring.submit() {
            if e.kind() != io::ErrorKind::Interrupted {
                return Err(e);
            }
        }
        Ok(())
    }

    /// Submits what is in the ring and waits for so many completions.
    fn enter(&mut self, want: u32) -> io::Result<usize> {
        let mut flags = EnterFlags::GETEVENTS;
        // an entry that has nothing to do does not wait for a device, and shall not be counted as if it did
        flags.set(EnterFlags::NO_IOWAIT, self.ring.params().is_feature_no_iowait());
        let submitted = self.ring.submission().len() as u32;
        // SAFETY: there is no argument, so nothing to point to.
        unsafe { self.ring.submitter().enter::<()>(submitted, want, flags.bits(), None) }
    }

    /// Waits for a request, having handed over the answer to the last. False when it is unmounted.
    fn wait(&mut self, polling: &Polling) -> io::Result<bool> {
        if let Some(mut awake) = polling.stay_awake() {
            // what fails here fails below again
            let _ = self.enter(0);
            while self.ring.completion().is_empty() && !self.ring.submission().taskrun() && awake.goes_on() {}
        }
        loop {
            let completion = self.ring.completion().next();
            let Some(completion) = completion else {
                match self.enter(1) {
                    Err(e) if e.kind() != io::ErrorKind::Interrupted => return Err(e),
                    _ => continue,
                }
            };
            self.kernels = false;
            let error = completion.result().saturating_neg();
            return match io::Error::from_raw_os_error(error) {
                _ if error == 0 => Ok(true),
                e => match Errno::from_io_error(&e) {
                    Some(Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED) => Ok(false),
                    _ => Err(e),
                },
            };
        }
    }

    /// The memory, if it is ours.
    fn memory(&mut self) -> Option<(&mut Head, &mut [u8])> {
        if self.kernels {
            return None;
        }
        // SAFETY: both point to memory of ours that holds values of these types whatever bytes the kernel has put
        // there; it does not touch them until the next `push`, which these borrows of `self` exclude.
        unsafe { Some((self.head.as_mut(), self.payload.as_mut())) }
    }

    /// Answers the request that [`RingEntry::wait`] brought. The kernel gets the answer when it is waited for the next.
    fn answer(&mut self, link: &Link, space: &mut [u8]) -> io::Result<()> {
        let queue = Some(self.queue);
        let Some((head, payload)) = self.memory() else { return Err(io::Error::other("no request is here")) };
        let (header, commit_id) = match InHeader::read_from_prefix(&head.in_out) {
            Ok((header, _)) => (header, head.commit_id),
            Err(_) => return Err(io::Error::other("no header is here")),
        };
        let (outcome, length) = take((link, queue), &header, head, payload, space);
        let out = OutHeader {
            len: (size_of::<OutHeader>() + length) as u32,
            error: outcome.map_or_else(|e| -e.raw_os_error(), |()| 0),
            unique: header.unique,
        };
        if let Some(place) = head.in_out.get_mut(..size_of::<OutHeader>()) {
            place.copy_from_slice(out.as_bytes());
        }
        head.payload = length as u32;
        self.push(COMMIT_AND_FETCH, commit_id, None)
    }
}

/// Asks the file system; its answer is at the start of `payload`, so long.
fn take(
    (link, queue): (&Link, Queue),
    header: &InHeader,
    head: &Head,
    payload: &mut [u8],
    space: &mut [u8],
) -> (Answer<()>, usize) {
    let size = arguments(header.opcode, link.features).unwrap_or(0);
    let Some(arguments) = head.arguments.get(..size) else { return (Err(Errno::INVAL), 0) };
    let (outcome, length) = if is_read(header.opcode) {
        let mut reply = Reply::new(payload);
        let outcome = respond((link, queue), header, arguments, &[], &mut reply);
        (outcome, reply.len())
    } else {
        let rest = payload.get(..head.payload as usize).unwrap_or_default();
        let mut reply = Reply::new(space);
        let outcome = respond((link, queue), header, arguments, rest, &mut reply);
        let length = reply.len();
        if let (Some(to), Some(from)) = (payload.get_mut(..length), space.get(..length)) {
            to.copy_from_slice(from);
        }
        (outcome, length)
    };
    let length = if outcome.is_ok() { length } else { 0 };
    (outcome, length)
}

/// The entries of all queues.
pub(super) struct Queues(Vec<RingEntry>);

impl Queues {
    /// # Errors
    /// The kernel has no io_uring with commands (before 5.19), or does not allow it to us.
    pub(super) fn new(connection: BorrowedFd<'_>) -> io::Result<Self> {
        let queues = processors::possible()?;
        let each = (ENTRIES / usize::from(queues)).max(2);
        let entries = (0..queues).flat_map(|queue| (0..each).map(move |_| RingEntry::new(connection, queue)));
        Ok(Self(entries.collect::<io::Result<_>>()?))
    }

    /// Answers requests until it is unmounted.
    pub(super) fn serve(self, link: &Arc<Link>) -> io::Result<()> {
        let (started, starts) = mpsc::channel();
        let mut threads = Vec::with_capacity(self.0.len());
        for entry in self.0 {
            let (link, started) = (Arc::clone(link), started.clone());
            let work = move || answer(entry, &link, &started);
            threads.push(std::thread::Builder::new().name(format!("fuse-{}", threads.len())).spawn(work)?);
        }
        drop(started);
        for _ in &threads {
            // a queue without an entry would leave its processor's requests unanswered
            starts.recv().map_err(io::Error::other)??;
        }
        let mut outcome = forget(link);
        for thread in threads {
            let ended = thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread that serves panicked")));
            outcome = outcome.and(ended);
        }
        outcome
    }
}

/// One more entry of a queue, when the kernel knows of it.
pub(super) fn start(link: Arc<Link>, queue: u16) -> io::Result<JoinHandle<io::Result<()>>> {
    let entry = RingEntry::new(link.connection.as_fd(), queue)?;
    let (started, starts) = mpsc::channel();
    let work = move || answer(entry, &link, &started);
    let thread = std::thread::Builder::new().name("fuse-more".to_owned()).spawn(work)?;
    starts.recv().map_err(io::Error::other)??;
    Ok(thread)
}

fn answer(mut entry: RingEntry, link: &Link, started: &mpsc::Sender<io::Result<()>>) -> io::Result<()> {
    let mut processor = CpuSet::new();
    if usize::from(entry.queue) < CpuSet::MAX_CPU {
        processor.set(entry.queue.into());
        // one that is not there now has no requests; elsewhere it is a matter of speed
        let _ = sched_setaffinity(None, &processor);
    }
    let registered = entry.register();
    // there is no receiver only if the session has ended
    let _ = started.send(registered);
    let mut space = vec![0; MAX_DATA];
    while entry.wait(&link.polling)? {
        link.request();
        entry.answer(link, &mut space)?;
    }
    Ok(())
}

/// Reads what still comes through /dev/fuse.
fn forget(link: &Link) -> io::Result<()> {
    let mut buffer = vec![0; MAX_DATA + MAX_HEADER];
    loop {
        let mut fds = [PollFd::new(&link.connection, PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        if !fds.iter().any(|fd| fd.revents().contains(PollFlags::ERR)) {
            std::thread::sleep(GATHER);
        }
        let Some(length) = receive(link.connection.as_fd(), &mut buffer)? else { return Ok(()) };
        let message = buffer.get(..length).unwrap_or_default();
        let Ok((header, body)) = InHeader::read_from_prefix(message) else { continue };
        if !forgotten(link, &header, body) {
            send(link, header.unique, Err(Errno::NOSYS), &[])?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_are_as_long_as_the_kernels() {
        assert_eq!(size_of::<Head>(), 288);
        assert_eq!(size_of::<Command>(), 80);
        assert_eq!(offset_of!(SqeStart, len), 24);
        assert_eq!(size_of::<squeue::Entry128>(), 128);
    }
}
