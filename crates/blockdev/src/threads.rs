//! Many requests in flight without io_uring: a few threads, each of which takes the next request of the batch when its
//! last one is complete. For kernels without io_uring, and for sandboxes that forbid it.

use parking_lot::Mutex;
use std::fs::File;
use std::thread;

use crate::job::Job;

/// The maximum number of requests in flight. Beyond this the cost of threads exceeds the gain from a deeper queue.
const WORKERS: usize = 16;

/// Runs all jobs to their end.
pub(crate) fn run(file: &File, jobs: &mut [Job<'_>]) {
    let helpers = jobs.len().min(WORKERS).saturating_sub(1);
    let queue = Mutex::new(jobs.iter_mut());
    let work = || {
        loop {
            let next = queue.lock().next();
            let Some(job) = next else { return };
            job.run(file);
        }
    };
    thread::scope(|scope| {
        for _ in 0..helpers {
            // a thread that cannot be started is not needed: this one does the remaining work
            if thread::Builder::new().spawn_scoped(scope, work).is_err() {
                break;
            }
        }
        work();
    });
}
