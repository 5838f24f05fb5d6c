//! Many requests in flight through io_uring. The only file with unsafe code: the kernel receives addresses of buffers
//! that are borrowed from the caller, and may read or write them until it has reported the request's completion.
//!
//! Why this is sound:
//! 1. A buffer's address is passed to the kernel only inside [`transfer`], whose `Flight` counts the requests that the
//!    kernel has accepted and not completed yet. `Flight` waits in `drop` until there are none, so `transfer` ends, by
//!    return or by panic, only when the kernel has released every buffer.
//! 2. A request that was put into the submission queue and not accepted by the kernel (a submission that failed midway)
//!    is never accepted later: such a ring is closed, not used again. The kernel accepts requests only when it is
//!    entered, because no ring here has a polling thread.
//! 3. Waiting in `drop` needs no system call that could fail: completions appear in memory shared with the kernel.
//!
//! Requests that could not be submitted, or that the kernel asks to repeat, are left to the caller to do one by one, so
//! that a failing ring costs speed and nothing else. Repeating a request is harmless: it transfers the same bytes.
#![allow(unsafe_code)]

use parking_lot::{Mutex, MutexGuard};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::thread;
use std::time::Duration;
use std::{fmt, io};

use io_uring::{IoUring, Probe, Submitter, opcode, squeue, types};
use rustix::io::Errno;

use crate::job::{Buffer, Job};

/// The maximum number of requests in flight for one batch.
const DEPTH: u32 = 64;

/// The maximum number of bytes of one request; its length has 32 bits, and the rest is requested again.
const LONGEST: usize = 1 << 30;

/// Rings that no batch uses at present. Each batch takes one, so that threads never wait for one another's completions;
/// their number grows to that of simultaneous batches.
pub(crate) struct Rings {
    idle: Mutex<Vec<IoUring>>,
}

impl fmt::Debug for Rings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rings").field("idle", &self.idle().len()).finish()
    }
}

impl Rings {
    /// # Errors
    /// The kernel has no io_uring, or one that cannot read and write (before 5.6), or does not permit its use.
    pub(crate) fn new() -> io::Result<Self> {
        let ring = IoUring::new(DEPTH)?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        if !probe.is_supported(opcode::Read::CODE) || !probe.is_supported(opcode::Write::CODE) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(Self { idle: Mutex::new(vec![ring]) })
    }

    /// Runs all jobs to their end.
    pub(crate) fn run(&self, file: &File, jobs: &mut [Job<'_>]) {
        let idle = self.idle().pop();
        // without a ring (for lack of file descriptors, say) the jobs are done one by one below
        if let Some(mut ring) = idle.or_else(|| IoUring::new(DEPTH).ok())
            && transfer(&mut ring, file, jobs, |submitter, want| submitter.submit_and_wait(want))
        {
            self.idle().push(ring);
        }
        for job in jobs {
            job.run(file);
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<IoUring>> {
        self.idle.lock() // every ring in it is valid
    }
}

/// Submits the jobs to the kernel in their order, up to [`DEPTH`] at once, and accounts for the transferred bytes.
/// `true` if the ring may be used again; if not, it must be dropped. A job that has not ended then was not done, or
/// only in part. `enter` submits the queued requests and waits for a number of completions.
fn transfer(
    ring: &mut IoUring,
    file: &File,
    jobs: &mut [Job<'_>],
    mut enter: impl FnMut(&Submitter<'_>, usize) -> io::Result<usize>,
) -> bool {
    let fd = types::Fd(file.as_raw_fd());
    let mut flight = Flight { ring, pushed: 0, reaped: 0 };
    let mut fresh = 0..jobs.len();
    let mut resume = Vec::new(); // jobs that the kernel completed in part
    loop {
        while flight.outstanding() < DEPTH as usize {
            let Some(index) = resume.pop().or_else(|| fresh.next()) else { break };
            let job = &mut jobs[index];
            if !job.ended() {
                let entry = entry(fd, job).user_data(index as u64);
                // SAFETY: the addresses in `entry` are those of a buffer that `job` borrows for longer than this
                // function runs, for writing if the kernel writes to it, and nothing here touches the buffer before
                // the completion is reaped. `flight` is dropped before this function ends and waits for the kernel.
                unsafe { flight.push(&entry) };
            }
        }
        let outstanding = flight.outstanding();
        if outstanding == 0 {
            return true;
        }
        // if there are more jobs, the queue is filled again as soon as it is half empty
        let want = if fresh.is_empty() { outstanding } else { outstanding.div_ceil(2) };
        match enter(&flight.ring.submitter(), want) {
            Err(e) if e.kind() != io::ErrorKind::Interrupted => return false,
            _ => {}
        }
        for completion in flight.ring.completion() {
            flight.reaped += 1;
            let index = completion.user_data() as usize;
            let Some(job) = jobs.get_mut(index) else { continue };
            match usize::try_from(completion.result()) {
                Ok(moved) => {
                    job.advance(moved);
                    if !job.ended() {
                        resume.push(index);
                    }
                }
                Err(_) => {
                    let error = Errno::from_raw_os_error(completion.result().saturating_neg());
                    // those to be repeated are left to the caller, which waits in the call
                    if !matches!(error, Errno::INTR | Errno::AGAIN | Errno::CANCELED) {
                        job.fail(error.into());
                    }
                }
            }
        }
    }
}

/// The submission queue entry for the rest of `job`.
fn entry(fd: types::Fd, job: &mut Job<'_>) -> squeue::Entry {
    match job.rest() {
        (offset, Buffer::Fill(buf)) => {
            opcode::Read::new(fd, buf.as_mut_ptr(), buf.len().min(LONGEST) as u32).offset(offset).build()
        }
        (offset, Buffer::Drain(data)) => {
            opcode::Write::new(fd, data.as_ptr(), data.len().min(LONGEST) as u32).offset(offset).build()
        }
    }
}

/// The requests of one batch in progress; dropped when the kernel has completed all of them.
struct Flight<'r> {
    ring: &'r mut IoUring,
    pushed: usize,
    reaped: usize,
}

impl Flight<'_> {
    /// Requests that are queued or in the kernel.
    fn outstanding(&self) -> usize {
        self.pushed - self.reaped
    }

    /// Queues a request, if there is space.
    ///
    /// # Safety
    /// The buffer of `entry` must stay valid, and not be accessed otherwise, until this `Flight` has reaped the
    /// completion or has been dropped.
    unsafe fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: the caller guarantees the time until the kernel completes the request: see `drop`.
        if unsafe { self.ring.submission().push(entry) }.is_ok() {
            self.pushed += 1;
        }
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        loop {
            let queued = self.ring.submission().len();
            if self.outstanding() <= queued {
                return; // the kernel has never accepted requests that are still queued
            }
            let completed = self.ring.completion().count();
            self.reaped += completed;
            if completed == 0 {
                thread::sleep(Duration::from_micros(100));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::OwnedFd;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::mpsc;

    use super::*;

    /// A ring, or `None` if these tests cannot run.
    fn ring(builder: impl FnOnce(&mut io_uring::Builder)) -> Option<IoUring> {
        if let Err(e) = Rings::new() {
            eprintln!("skipped: io_uring is not available here ({e})");
            return None;
        }
        let mut parameters = IoUring::builder();
        builder(&mut parameters);
        Some(parameters.build(DEPTH).unwrap())
    }

    fn file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    fn jobs<'a>(buffers: &'a mut [[u8; 8]], offsets: impl Iterator<Item = u64>) -> Vec<Job<'a>> {
        buffers.iter_mut().zip(offsets).map(|(buf, offset)| Job::read(offset, buf, 8, 1)).collect()
    }

    #[test]
    fn more_jobs_than_the_queue_is_deep() {
        let Some(mut ring) = ring(|_| {}) else { return };
        let bytes: Vec<u8> = (0..8000_u32).map(|n| (n / 8) as u8).collect();
        let file = file(&bytes);
        let mut buffers = [[0; 8]; 1001];
        let mut jobs = jobs(&mut buffers, (0..1001).rev().map(|n| n * 8)); // the first is beyond the end
        let mut interrupted = false;
        let whole = transfer(&mut ring, &file, &mut jobs, |submitter, want| {
            interrupted = !interrupted;
            if interrupted { Err(Errno::INTR.into()) } else { submitter.submit_and_wait(want) }
        });
        assert!(whole && jobs.iter().all(Job::ended));
        let outcomes: Vec<_> = jobs.into_iter().map(|job| job.finish(&file)).collect();
        assert_eq!(outcomes[0].as_ref().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert!(outcomes[1..].iter().all(Result::is_ok));
        assert!(buffers.iter().enumerate().skip(1).all(|(n, buf)| *buf == [(1000 - n) as u8; 8]));
    }

    #[test]
    fn a_ring_that_takes_nothing_leaves_all_to_the_caller() {
        let Some(mut ring) = ring(|b| _ = b.setup_r_disabled()) else { return };
        let file = file(b"01234567");
        let mut buffers = [[0; 8]];
        let mut jobs = jobs(&mut buffers, 0..1);
        assert!(!transfer(&mut ring, &file, &mut jobs, |submitter, want| submitter.submit_and_wait(want)));
        assert_eq!(ring.submission().len(), 1, "the kernel accepted it after all");
        assert!(!jobs[0].ended());
        drop(ring);
        jobs.pop().unwrap().finish(&file).unwrap();
        assert_eq!(&buffers[0], b"01234567");
    }

    /// Leaves `transfer` by `fail` while the kernel has a request, and returns the content of its buffer at that
    /// moment.
    fn leave_midway(ring: &mut IoUring, fail: fn() -> io::Error) -> [u8; 8] {
        let (read_end, mut write_end) = io::pipe().unwrap();
        let pipe = File::from(OwnedFd::from(read_end));
        let mut buffers = [[0; 8]];
        let mut jobs = jobs(&mut buffers, 0..1);
        let (submitted, received) = mpsc::channel();
        // completes the request some time after the failure
        let completing = thread::spawn(move || {
            received.recv().unwrap();
            thread::sleep(Duration::from_millis(30));
            write_end.write_all(b"arrived.").unwrap();
        });
        let left = catch_unwind(AssertUnwindSafe(|| {
            transfer(ring, &pipe, &mut jobs, |submitter, _| {
                assert_eq!(submitter.submit().unwrap(), 1);
                submitted.send(()).unwrap();
                Err(fail())
            })
        }));
        let seen = buffers[0];
        assert!(!left.unwrap_or(false), "a ring after a failure is not used again");
        completing.join().unwrap();
        seen
    }

    #[test]
    fn no_way_out_while_the_kernel_holds_a_buffer() {
        let failures: [fn() -> io::Error; 2] = [|| Errno::NOMEM.into(), || panic!("between submitting and waiting")];
        for fail in failures {
            let Some(mut ring) = ring(|_| {}) else { return };
            assert_eq!(&leave_midway(&mut ring, fail), b"arrived.");
        }
    }

    #[test]
    fn the_kernels_error_is_the_jobs() {
        let Some(mut ring) = ring(|_| {}) else { return };
        let directory = File::open("/").unwrap();
        let mut buffers = [[0; 8]; 2];
        let mut jobs = jobs(&mut buffers, 0..2);
        assert!(transfer(&mut ring, &directory, &mut jobs, |submitter, want| submitter.submit_and_wait(want)));
        for job in jobs {
            assert_eq!(job.finish(&directory).unwrap_err().kind(), io::ErrorKind::IsADirectory);
        }
    }
}
