//! Desks for requests that come while others wait for a transaction.
//!
//! A request that waits keeps its desk. For each one that does, another desk is opened, so that there are always as many for
//! all other requests as there would be if nobody waited. Such desks stay.
//!
//! Over io_uring that alone would be too late. The kernel gives a new desk requests that come when it is there, never one that
//! came before and found all desks taken: that one waits until some desk has answered, and where all wait for the one who
//! asks, for ever. So before anybody can have to wait there are desks to spare, and one more is opened for each that is taken.

use super::{Link, device, uring};
use crate::protocol::Features;
use crate::reply::Answer;
use rustix::io::Errno;
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::JoinHandle;

/// Most desks that are opened for one queue: each is a thread. Whoever comes when all of them wait is told to try again.
const MOST: usize = 2048;

/// Desks to spare of all queues together, about; a queue has [`LEAST_SPARE`] at least. So many requests may come at once and
/// have to wait.
const SPARE: usize = 128;
const LEAST_SPARE: usize = 8;

/// The queue of a desk; `None` where all take from /dev/fuse.
pub(super) type Queue = Option<u16>;

/// The desks that were opened, and how many requests wait.
#[derive(Default)]
pub(super) struct StandIns {
    link: OnceLock<Weak<Link>>,
    queues: Mutex<HashMap<Queue, Counts>>,
    threads: Mutex<Vec<JoinHandle<io::Result<()>>>>,
}

#[derive(Default)]
struct Counts {
    waiting: usize,
    opened: usize,
    /// How many of the opened ones should be free.
    spare: usize,
}

/// A request waits.
pub(super) struct Waiting<'l> {
    stand_ins: &'l StandIns,
    queue: Queue,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(counts) = self.stand_ins.queues().get_mut(&self.queue) {
            counts.waiting -= 1;
        }
    }
}

impl StandIns {
    fn queues(&self) -> MutexGuard<'_, HashMap<Queue, Counts>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says for whom desks are opened.
    pub(super) fn serve(&self, link: &Arc<Link>) {
        // once
        let _ = self.link.set(Arc::downgrade(link));
    }

    /// Requests may have to wait from now on: opens the desks to spare.
    pub(super) fn prepare(&self, link: &Arc<Link>) {
        if !link.features.contains(Features::OVER_IO_URING) {
            return;
        }
        // whoever cannot be told of the processors has no queues either
        let processors = uring::running().unwrap_or_default();
        let spare = (SPARE / processors.len().max(1)).max(LEAST_SPARE);
        for queue in processors {
            let mut queues = self.queues();
            let counts = queues.entry(Some(queue)).or_default();
            counts.spare = spare;
            while counts.opened < counts.waiting + counts.spare && self.open(Some(queue), counts).is_ok() {}
        }
    }

    /// Opens one more desk of a queue.
    fn open(&self, queue: Queue, counts: &mut Counts) -> Answer<()> {
        let link = self.link.get().and_then(Weak::upgrade).filter(|_| counts.opened < MOST).ok_or(Errno::AGAIN)?;
        let thread = match queue {
            None => device::open(link),
            Some(queue) => uring::open(link, queue),
        };
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread.map_err(|_| Errno::AGAIN)?);
        counts.opened += 1;
        Ok(())
    }

    /// A request of a queue is going to wait: opens a desk in place of its own.
    ///
    /// # Errors
    /// EAGAIN where that cannot be done, and there is none to spare.
    pub(super) fn wait(&self, queue: Queue) -> Answer<Waiting<'_>> {
        let mut queues = self.queues();
        let counts = queues.entry(queue).or_default();
        if counts.waiting + counts.spare >= counts.opened {
            let opened = self.open(queue, counts);
            if counts.waiting >= counts.opened {
                opened?;
            }
        }
        counts.waiting += 1;
        Ok(Waiting { stand_ins: self, queue })
    }

    /// Waits until all that were opened have ended, as all desks do when it is unmounted.
    pub(super) fn join(&self) -> io::Result<()> {
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        threads.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread that serves ended by a panic")))
        })
    }
}
