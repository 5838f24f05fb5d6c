//! The way of requests from the kernel to a [`Filesystem`] and of its answers back.
//!
//! There are two ways, and one for tests, and a file system cannot distinguish them:
//!
//! | file | way |
//! | --- | --- |
//! | `device` | read(2) and writev(2) on /dev/fuse by a few threads |
//! | `link` | what they share: a request becomes a call of the file system |
//! | `spare` | more workers for requests that come while others wait |
//! | `awake` | a processor that stays awake while requests follow closely |
//! | `polling` | over io_uring, looking for the next request instead of sleeping |
//! | `counters` | messages by kind |
//! | `processors` | which processors there are |
//! | `messages` | bytes that a caller brings, for tests without a kernel |
//! | `uring` | io_uring, where the kernel has it (Linux 6.14, /sys/module/fuse/parameters/enable_uring): a request appears in memory of a thread on the core whose process asked, and handing back the answer takes the next request |
//!
//! The two begin with the same handshake, in which the last is asked for; a kernel that does not offer it, or a system
//! that does not allow it, gets the first.
//!
//! 1. Every request is answered, whatever its bytes are and whatever the file system does: a panic inside becomes EIO.
//! 2. A read is answered from the memory into which the file system wrote it.
//! 3. Nothing here knows of volumes.

mod awake;
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
use awake::Helper;
use link::{Link, MAX_DATA, MAX_HEADER, receive, send};
pub use messages::Messages;
use polling::Polling;
use rustix::io::Errno;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

/// Requests of the kernel's own making (read-ahead) that may wait at once.
const MAX_BACKGROUND: u16 = 64;
/// The features that every transport can carry.
const CARRIED: Features = Features::ASYNC_READ
    .union(Features::BIG_WRITES)
    .union(Features::MAX_PAGES)
    .union(Features::SETXATTR_EXT)
    .union(Features::INIT_EXT);

/// Which way requests shall take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Transport {
    /// io_uring where the kernel offers it, else /dev/fuse.
    #[default]
    Best,
    /// /dev/fuse.
    Device,
}

/// Whether a processor is prevented from sleeping while requests follow closely.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StayAwake {
    /// Where waking one takes long, and it helps.
    #[default]
    Auto,
    /// Over io_uring on two processors, by the thread that waits for the next request: for comparison.
    Reader,
    /// Never.
    Off,
}

/// Whether the kernel has FUSE over io_uring and its administrator has not switched it on.
#[must_use]
pub fn io_uring_is_off() -> bool {
    std::fs::read("/sys/module/fuse/parameters/enable_uring").is_ok_and(|said| said.starts_with(b"N"))
}

/// Answers the requests on a connection until the file system is unmounted.
///
/// # Errors
/// The connection broke, or the kernel is too old.
pub(crate) fn serve(mut link: Link, transport: Transport, awake: StayAwake) -> io::Result<()> {
    // made before the kernel learns that they will be there: from then on nothing can fail for want of memory
    let queues = match transport {
        Transport::Best => uring::Queues::new(link.connection.as_fd()).ok(),
        Transport::Device => None,
    };
    if !shake_hands(&mut link, queues.is_some())? {
        return Ok(());
    }
    if awake == StayAwake::Reader {
        link.polling = Polling::new();
    }
    let link = Arc::new(link);
    // a system that has no threads to spare does without
    let _helper = (awake == StayAwake::Auto).then(|| Helper::start(&link.awake).ok());
    connect(&link);
    let served = match queues {
        Some(queues) if link.features.contains(Features::OVER_IO_URING) => queues.serve(&link),
        _ => device::serve(&link),
    };
    served.and(link.spare.join())
}

/// Sets up the connection after the handshake: spare workers can be started, and the file system is connected.
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

/// Answers the first request, which agrees on what is possible. False if it was unmounted before.
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
            // it asks again, in the version it is answered with
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
