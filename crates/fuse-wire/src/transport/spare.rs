//! Spare workers: threads for requests that arrive while others wait for a transaction.
//!
//! A waiting request occupies its worker (over io_uring: its ring entry). For each waiting request one more worker is
//! started, so that all other requests have as many workers as if none waited. Such workers are not ended before the
//! unmount.
//!
//! Over io_uring that alone would be too late. The kernel assigns to a new ring entry only requests that arrive after
//! it, never one that arrived before and found all entries in use: such a request waits until some entry has answered,
//! and if all entries wait for the process that sent it, it waits for ever. So spare workers are started before any
//! request can have to wait, and one more is started for each that is used.

use crate::reply::Answer;
use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno;
use std::collections::HashMap;
use std::io;
use std::sync::OnceLock;
use std::thread::JoinHandle;

/// The maximum number of spare workers of one queue; each is a thread. A request that arrives when all of them wait
/// gets EAGAIN.
const MOST: usize = 2048;

/// The approximate number of spare workers of all queues; a queue has at least [`LEAST_SPARE`]. This number of requests
/// may arrive at once and have to wait.
const SPARE: usize = 128;
const LEAST_SPARE: usize = 8;

/// The queue of a worker; `None` on /dev/fuse, which all workers share.
pub(super) type Queue = Option<u16>;

/// A function that starts one more worker of a queue.
type Start = dyn Fn(Queue) -> io::Result<JoinHandle<io::Result<()>>> + Send + Sync;

/// The started workers, and the number of waiting requests.
#[derive(Default)]
pub(super) struct SpareWorkers {
    start: OnceLock<Box<Start>>,
    queues: Mutex<HashMap<Queue, Counts>>,
    threads: Mutex<Vec<JoinHandle<io::Result<()>>>>,
}

#[derive(Default)]
struct Counts {
    waiting: usize,
    started: usize,
    /// The number of started workers that should be free.
    spare: usize,
}

/// A waiting request.
pub(super) struct Waiting<'l> {
    workers: &'l SpareWorkers,
    queue: Queue,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(counts) = self.workers.queues().get_mut(&self.queue) {
            counts.waiting -= 1;
        }
    }
}

impl SpareWorkers {
    fn queues(&self) -> MutexGuard<'_, HashMap<Queue, Counts>> {
        self.queues.lock()
    }

    /// Sets the function that starts a worker.
    pub(super) fn start_with(&self, start: Box<Start>) {
        // set only once
        let _ = self.start.set(start);
    }

    /// Prepares for requests that have to wait: starts the spare workers of these queues.
    pub(super) fn prepare(&self, queues: &[u16]) {
        let spare = (SPARE / queues.len().max(1)).max(LEAST_SPARE);
        for &queue in queues {
            let mut queues = self.queues();
            let counts = queues.entry(Some(queue)).or_default();
            counts.spare = spare;
            while counts.started < counts.waiting + counts.spare && self.start(Some(queue), counts).is_ok() {}
        }
    }

    /// Starts one more worker of a queue.
    fn start(&self, queue: Queue, counts: &mut Counts) -> Answer<()> {
        let start = self.start.get().filter(|_| counts.started < MOST).ok_or(Errno::AGAIN)?;
        let thread = start(queue).map_err(|_| Errno::AGAIN)?;
        self.threads.lock().push(thread);
        counts.started += 1;
        Ok(())
    }

    /// Records that a request of a queue is going to wait: starts a worker as its replacement.
    ///
    /// # Errors
    /// EAGAIN where that is impossible and no spare worker is left.
    pub(super) fn wait(&self, queue: Queue) -> Answer<Waiting<'_>> {
        let mut queues = self.queues();
        let counts = queues.entry(queue).or_default();
        if counts.waiting + counts.spare >= counts.started {
            let started = self.start(queue, counts);
            if counts.waiting >= counts.started {
                started?;
            }
        }
        counts.waiting += 1;
        Ok(Waiting { workers: self, queue })
    }

    /// Waits until all started workers have ended, as all workers do after the unmount.
    pub(super) fn join(&self) -> io::Result<()> {
        let threads = std::mem::take(&mut *self.threads.lock());
        threads.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread that serves ended by a panic")))
        })
    }
}
