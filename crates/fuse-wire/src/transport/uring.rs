//! Requests through io_uring. The one file of this crate with unsafe code: the kernel gets addresses of memory into
//! which it writes requests and from which it reads answers.
//!
//! The kernel has one queue for each processor, and sends a request to the queue of the processor on which the calling
//! process runs. A [`RingEntry`] is for one request of one queue at a time: memory for it and for its answer, and a
//! ring for its single command. Each entry has a thread of its own, bound to the processor of its queue, so a request
//! that waits for the device does not delay any other: the kernel assigns requests only to entries that wait. It uses
//! the entry that became free last, whose thread and memory are still in the processor's caches.
//!
//! FORGET and INTERRUPT still arrive through /dev/fuse. No program waits for them, so they are read after a short delay
//! and in batches.
//!
//! Why this is sound:
//! 1. The memory of an entry belongs either to the kernel or to us (`RingEntry::kernels`). It becomes the kernel's when
//!    a command that points to it is put into the ring, and ours again only when that command's completion has been
//!    taken from the ring. References into it are made only while it is ours, and borrow the entry.
//! 2. Memory that belongs to the kernel is never freed: an entry that is dropped in that state leaks it.
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

/// The approximate number of ring entries of all queues: enough that some wait for the device while others answer. A
/// queue has at least two.
const ENTRIES: usize = 16;

/// The time for which FORGETs accumulate. It delays the reuse of what they free.
const FORGET_DELAY: Duration = Duration::from_millis(2);

/// Registers a ring entry, which then waits for a request.
const REGISTER: u32 = 1;
/// Returns an answer; the entry then waits for the next request.
const COMMIT_AND_FETCH: u32 = 2;

/// `struct fuse_uring_req_header`.
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
struct Head {
    /// [`InHeader`] or [`OutHeader`].
    in_out: [u8; 128],
    arguments: [u8; 128],
    flags: u64,
    /// Identifies the request when it is answered.
    commit_id: u64,
    /// The length of the data after the arguments, then of the answer, in bytes.
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

/// The memory and ring for one request at a time: see the head of this file.
struct RingEntry {
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    queue: u16,
    head: NonNull<Head>,
    payload: NonNull<[u8]>,
    /// Whether the memory belongs to the kernel.
    kernels: bool,
}

// SAFETY: the memory behind the two pointers belongs to the entry alone, or to the kernel, which does not depend on
// threads.
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
        // only the thread that enables the ring uses it, so the kernel passes requests when that thread waits
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

    /// Puts a command into the ring; the memory is the kernel's from then on.
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
        // SAFETY: from the command, the kernel uses: the descriptor, which is registered with the ring; the vectors,
        // which the caller owns until the command is submitted; and through them the memory of this entry, which is
        // neither freed nor accessed before the completion (`kernels`).
        unsafe { self.ring.submission().push(&submission) }.map_err(|_| io::Error::other("the ring is full"))?;
        self.kernels = true;
        Ok(())
    }

    /// Registers the entry with the kernel, before the first wait; an error is reported by [`RingEntry::wait`].
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

    /// Submits the commands in the ring and waits for `want` completions.
    fn enter(&mut self, want: u32) -> io::Result<usize> {
        let mut flags = EnterFlags::GETEVENTS;
        // an idle entry does not wait for a device, and must not be counted as iowait
        flags.set(EnterFlags::NO_IOWAIT, self.ring.params().is_feature_no_iowait());
        let submitted = self.ring.submission().len() as u32;
        // SAFETY: there is no argument, so nothing to point to.
        unsafe { self.ring.submitter().enter::<()>(submitted, want, flags.bits(), None) }
    }

    /// Submits the answer to the last request and waits for the next. Returns `false` after the unmount.
    fn wait(&mut self, polling: &Polling) -> io::Result<bool> {
        if let Some(mut awake) = polling.stay_awake() {
            // an error here recurs below
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
        // SAFETY: both point to memory of ours, valid for these types whatever bytes the kernel has written there; the
        // kernel does not access it until the next `push`, which these borrows of `self` exclude.
        unsafe { Some((self.head.as_mut(), self.payload.as_mut())) }
    }

    /// Answers the request that [`RingEntry::wait`] returned. The kernel gets the answer with the next wait.
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

/// Calls the file system; returns the length of the answer, which is at the start of `payload`.
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
    /// The kernel has no io_uring commands (before 5.19), or this process may not use them.
    pub(super) fn new(connection: BorrowedFd<'_>) -> io::Result<Self> {
        let queues = processors::possible()?;
        let each = (ENTRIES / usize::from(queues)).max(2);
        let entries = (0..queues).flat_map(|queue| (0..each).map(move |_| RingEntry::new(connection, queue)));
        Ok(Self(entries.collect::<io::Result<_>>()?))
    }

    /// Answers requests until the file system is unmounted.
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
            // without an entry in a queue the requests of its processor would not be answered
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

/// Starts one more entry of a queue, and returns when the kernel knows it.
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
        // a processor that is offline has no requests; otherwise affinity only affects speed
        let _ = sched_setaffinity(None, &processor);
    }
    let registered = entry.register();
    // there is no receiver only if the session has ended
    let _ = started.send(registered);
    let mut space = vec![0; MAX_DATA];
    while entry.wait(&link.polling)? {
        link.polling.request();
        entry.answer(link, &mut space)?;
    }
    Ok(())
}

/// Reads the messages that still arrive through /dev/fuse.
fn forget(link: &Link) -> io::Result<()> {
    let mut buffer = vec![0; MAX_DATA + MAX_HEADER];
    loop {
        let mut fds = [PollFd::new(&link.connection, PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        if !fds.iter().any(|fd| fd.revents().contains(PollFlags::ERR)) {
            std::thread::sleep(FORGET_DELAY);
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
