//! Desks for requests that come while others wait for a transaction.
//!
//! A request that waits keeps its desk. For each one that does, another desk is opened, so that there are always as many for
//! all other requests as there would be if nobody waited. Such desks stay.

use super::{Link, device, uring};
use crate::reply::Answer;
use rustix::io::Errno;
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::JoinHandle;

/// Most desks that are opened for one queue. Whoever comes when all of them wait is told to try again.
const MOST: usize = 256;

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

    /// A request of a queue is going to wait: opens a desk in place of its own.
    ///
    /// # Errors
    /// EAGAIN where that cannot be done.
    pub(super) fn wait(&self, queue: Queue) -> Answer<Waiting<'_>> {
        let mut queues = self.queues();
        let counts = queues.entry(queue).or_default();
        if counts.waiting >= counts.opened {
            let link = self.link.get().and_then(Weak::upgrade).filter(|_| counts.opened < MOST);
            let thread = link.and_then(|link| match queue {
                None => device::open(link).ok(),
                Some(queue) => uring::open(link, queue).ok(),
            });
            let thread = thread.ok_or(Errno::AGAIN)?;
            counts.opened += 1;
            self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
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
