//! Spare workers: threads for requests that come while others wait for a transaction.
//!
//! A request that waits occupies its worker (over io_uring: its ring entry). For each one that does, another worker is
//! started, so that there are always as many for all other requests as there would be if none waited. Such workers
//! stay.
//!
//! Over io_uring that alone would be too late. The kernel hands a new ring entry requests that come when it is there,
//! never one that came before and found all entries taken: that one waits until some entry has answered, and where all
//! wait for the process that asks, for ever. So before any request can have to wait there are spare workers, and one
//! more is started for each that is taken.

use crate::reply::Answer;
use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno;
use std::collections::HashMap;
use std::io;
use std::sync::OnceLock;
use std::thread::JoinHandle;

/// Most spare workers of one queue: each is a thread. A request that comes when all of them wait gets EAGAIN.
const MOST: usize = 2048;

/// Spare workers of all queues together, about; a queue has [`LEAST_SPARE`] at least. So many requests may come at once
/// and have to wait.
const SPARE: usize = 128;
const LEAST_SPARE: usize = 8;

/// The queue of a worker; `None` where all take from /dev/fuse.
pub(super) type Queue = Option<u16>;

/// Starts one more worker of a queue.
type Start = dyn Fn(Queue) -> io::Result<JoinHandle<io::Result<()>>> + Send + Sync;

/// The workers that were started, and how many requests wait.
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
    /// The number of the started ones that should be free.
    spare: usize,
}

/// A request waits.
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

    /// Sets what starts a worker.
    pub(super) fn start_with(&self, start: Box<Start>) {
        // once
        let _ = self.start.set(start);
    }

    /// Requests may have to wait from now on: starts the spare workers of these queues.
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

    /// A request of a queue is going to wait: starts a worker in place of its own.
    ///
    /// # Errors
    /// EAGAIN where that cannot be done, and there is none to spare.
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

    /// Waits until all that were started have ended, as all workers do when it is unmounted.
    pub(super) fn join(&self) -> io::Result<()> {
        let threads = std::mem::take(&mut *self.threads.lock());
        threads.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread that serves ended by a panic")))
        })
    }
}
