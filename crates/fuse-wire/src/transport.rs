//! The transports of requests from the kernel to a [`Filesystem`] and of its answers back.
//!
//! There are two transports, and one for tests; a file system cannot distinguish them:
//!
//! | file | content |
//! | --- | --- |
//! | `device` | read(2) and writev(2) on /dev/fuse by a few threads |
//! | `link` | the shared part: a request becomes a call of the file system |
//! | `spare` | further workers for requests that arrive while others wait |
//! | `polling` | over io_uring, polling for the next request instead of sleeping |
//! | `counters` | messages by kind |
//! | `processors` | the processors of the machine |
//! | `messages` | messages passed by a caller, for tests without a kernel |
//! | `uring` | io_uring, where the kernel has it (Linux 6.14, /sys/module/fuse/parameters/enable_uring): a request appears in memory of a thread on the processor of the calling process, and returning the answer fetches the next request |
//!
//! Both begin with the same handshake, which requests io_uring; where the kernel does not offer it, or the system does
//! not allow it, /dev/fuse is used.
//!
//! 1. Every request is answered, whatever its bytes are and whatever the file system does: a panic becomes EIO.
//! 2. The answer of a read is sent from the memory into which the file system wrote it.
//! 3. Nothing here depends on volumes.

pub(crate) mod counters;
mod device;
pub(crate) mod link;
mod messages;
mod polling;
pub(crate) mod processors;
mod spare;
mod uring;

use crate::filesystem::Kernel;
use crate::protocol::{Features, InHeader, InitIn, InitOut, MAJOR, MINOR, OLDEST_MINOR, opcode};
use link::{Link, MAX_DATA, MAX_HEADER, receive, send};
pub use messages::Messages;
use rustix::io::Errno;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

/// The maximum number of background requests of the kernel (read-ahead) that may be pending.
const MAX_BACKGROUND: u16 = 64;
/// The features that every transport supports.
const CARRIED: Features = Features::ASYNC_READ
    .union(Features::BIG_WRITES)
    .union(Features::MAX_PAGES)
    .union(Features::SETXATTR_EXT)
    .union(Features::INIT_EXT);

/// The transport of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Transport {
    /// io_uring where the kernel offers it, else /dev/fuse.
    #[default]
    Best,
    /// /dev/fuse.
    Device,
}

/// Whether the kernel supports FUSE over io_uring but the administrator has not enabled it.
#[must_use]
pub fn io_uring_is_off() -> bool {
    std::fs::read("/sys/module/fuse/parameters/enable_uring").is_ok_and(|said| said.starts_with(b"N"))
}

/// Answers the requests on a connection until the file system is unmounted.
///
/// # Errors
/// The connection failed, or the kernel is too old.
pub(crate) fn serve(mut link: Link, transport: Transport) -> io::Result<()> {
    // allocated before the kernel learns of them: after the handshake nothing can fail for lack of memory
    let queues = match transport {
        Transport::Best => uring::Queues::new(link.connection.as_fd()).ok(),
        Transport::Device => None,
    };
    if !shake_hands(&mut link, queues.is_some())? {
        return Ok(());
    }
    let link = Arc::new(link);
    connect(&link);
    let served = match queues {
        Some(queues) if link.features.contains(Features::OVER_IO_URING) => queues.serve(&link),
        _ => device::serve(&link),
    };
    served.and(link.spare.join())
}

/// Completes the setup after the handshake: allows spare workers, and notifies the file system.
fn connect(link: &Arc<Link>) {
    let weak = Arc::downgrade(link);
    link.spare.start_with(Box::new(move |queue| {
        let link = weak.upgrade().ok_or_else(|| io::Error::from(Errno::NOTCONN))?;
        match queue {
            None => device::start(link),
            Some(queue) => uring::start(link, queue),
        }
    }));
    link.filesystem.connected(Kernel::of(link));
}

/// Answers the first request, INIT, which negotiates the features. Returns `false` if the file system was unmounted
/// before.
fn shake_hands(link: &mut Link, uring: bool) -> io::Result<bool> {
    let mut buffer = vec![0; MAX_DATA + MAX_HEADER];
    loop {
        let Some(length) = receive(link.connection.as_fd(), &mut buffer)? else { return Ok(false) };
        let message = buffer.get(..length).unwrap_or_default();
        let Ok((header, rest)) = InHeader::read_from_prefix(message) else { return Err(broken("a short request")) };
        let Ok((offer, rest)) = InitIn::read_from_prefix(rest) else { return Err(broken("a short handshake")) };
        if header.opcode != opcode::INIT {
            return Err(broken("a request before the handshake"));
        }
        if offer.major < MAJOR || (offer.major == MAJOR && offer.minor < OLDEST_MINOR) {
            send(link, header.unique, Err(Errno::PROTO), &[])?;
            let (major, minor) = (offer.major, offer.minor);
            return Err(io::Error::other(format!("the kernel speaks FUSE {major}.{minor}, which is too old")));
        }
        if offer.major > MAJOR {
            // the kernel sends INIT again, with the version of this answer
            let ours = InitOut { major: MAJOR, minor: MINOR, ..InitOut::default() };
            send(link, header.unique, Ok(()), ours.as_bytes())?;
            continue;
        }
        let mut offered = Features::from_bits_retain(u64::from(offer.flags));
        if offered.contains(Features::INIT_EXT) {
            let high = u32::read_from_prefix(rest).map_or(0, |(high, _)| high);
            offered |= Features::from_bits_retain(u64::from(high) << 32);
        }
        let mut wanted = link.filesystem.features() | CARRIED;
        wanted.set(Features::OVER_IO_URING, uring);
        link.features = wanted & offered;
        let bits = link.features.bits();
        let ours = InitOut {
            major: MAJOR,
            minor: MINOR,
            max_readahead: offer.max_readahead,
            flags: (bits & u64::from(u32::MAX)) as u32,
            flags2: (bits >> 32) as u32,
            max_background: MAX_BACKGROUND,
            congestion_threshold: MAX_BACKGROUND / 4 * 3,
            max_write: MAX_DATA as u32,
            max_pages: (MAX_DATA / 4096) as u16,
            time_granularity: 1,
            ..InitOut::default()
        };
        send(link, header.unique, Ok(()), ours.as_bytes())?;
        return Ok(true);
    }
}

fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the kernel sent {what}"))
}
