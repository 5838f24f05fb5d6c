//! Requests through /dev/fuse: several threads, each of which reads a request, answers it, and reads the next.
//!
//! All read from one descriptor: the kernel passes each request to one of them. A descriptor for each
//! (FUSE_DEV_IOC_CLONE) would only separate the lists of requests being answered.

use super::link::{Link, MAX_DATA, MAX_HEADER, receive, respond_to, send};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::JoinHandle;

/// The minimum and maximum number of threads; between them, one for each processor. A thread that waits for the device
/// answers no other request, so there are several even on one processor.
const THREADS: (usize, usize) = (4, 16);

/// Answers requests until the file system is unmounted.
pub(super) fn serve(link: &Arc<Link>) -> io::Result<()> {
    let processors = std::thread::available_parallelism().map_or(THREADS.0, usize::from);
    let others: Vec<_> = (1..processors.clamp(THREADS.0, THREADS.1))
        .map(|_| {
            let link = Arc::clone(link);
            std::thread::Builder::new().name("fuse".to_owned()).spawn(move || answer(&link))
        })
        .collect();
    let mut outcome = answer(link);
    // a thread that could not be started is no error: this thread also answers
    for thread in others.into_iter().flatten() {
        let ended = thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread that serves ended by a panic")));
        outcome = outcome.and(ended);
    }
    outcome
}

/// Starts one more thread.
pub(super) fn start(link: Arc<Link>) -> io::Result<JoinHandle<io::Result<()>>> {
    std::thread::Builder::new().name("fuse".to_owned()).spawn(move || answer(&link))
}

fn answer(link: &Link) -> io::Result<()> {
    let mut buffer = vec![0; MAX_DATA + MAX_HEADER];
    let mut space = vec![0; MAX_DATA];
    while let Some(length) = receive(link.connection.as_fd(), &mut buffer)? {
        let message = buffer.get(..length).unwrap_or_default();
        let Some((unique, outcome, length)) = respond_to(link, message, &mut space) else { continue };
        send(link, unique, outcome, space.get(..length).unwrap_or_default())?;
    }
    Ok(())
}
