//! Requests through /dev/fuse: a few threads, each of which reads one, answers it, and reads the next.
//!
//! All read from one descriptor: the kernel hands each request to one of them. A descriptor for each
//! (FUSE_DEV_IOC_CLONE) would only part the lists of requests that are being answered.

use super::link::{Link, MAX_DATA, MAX_HEADER, receive, respond_to, send};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Fewest and most threads; between them, as many as there are processors. A thread that waits for the device answers
/// no other request, so a few are there even on one processor.
const THREADS: (usize, usize) = (4, 16);

/// Answers requests until it is unmounted.
pub(super) fn serve(link: &Arc<Link>) -> io::Result<()> {
    let processors = std::thread::available_parallelism().map_or(THREADS.0, usize::from);
    let others: Vec<_> = (1..processors.clamp(THREADS.0, THREADS.1))
        .map(|_| {
            let link = Arc::clone(link);
            std::thread::Builder::new().name("fuse".to_owned()).spawn(move || answer(&link))
        })
        .collect();
    let mut outcome = answer(link);
    // one that could not be started is not missed: this thread answers too
    for thread in others.into_iter().flatten() {
        let ended = thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread that serves ended by a panic")));
        outcome = outcome.and(ended);
    }
    outcome
}

/// One more thread.
pub(super) fn start(link: Arc<Link>) -> io::Result<JoinHandle<io::Result<()>>> {
    std::thread::Builder::new().name("fuse".to_owned()).spawn(move || answer(&link))
}

fn answer(link: &Link) -> io::Result<()> {
    let mut buffer = vec![0; MAX_DATA + MAX_HEADER];
    let mut space = vec![0; MAX_DATA];
    while let Some(length) = receive(link.connection.as_fd(), &mut buffer)? {
        link.request();
        let message = buffer.get(..length).unwrap_or_default();
        let Some((unique, outcome, length)) = respond_to(link, message, &mut space) else { continue };
        send(link, unique, outcome, space.get(..length).unwrap_or_default())?;
    }
    Ok(())
}
