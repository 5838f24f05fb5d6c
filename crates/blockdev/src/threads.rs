//! Many requests in flight without io_uring: a few threads, each of which takes the next request of the batch when its
//! last has ended. For kernels without io_uring, and where a sandbox forbids it.

use parking_lot::Mutex;
use std::fs::File;
use std::thread;

use crate::job::Job;

/// Requests in flight at most. Beyond this the threads' own cost outgrows what a deeper queue gains.
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
            // a thread that cannot be had is not needed: this one does all that no other takes
            if thread::Builder::new().spawn_scoped(scope, work).is_err() {
                break;
            }
        }
        work();
    });
}
