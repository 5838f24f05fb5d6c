//! Messages without a kernel: requests in the kernel's format, and the answers that it would get. For tests of
//! everything above the transport.

use super::link::{Link, MAX_DATA, respond_to};
use super::{CARRIED, connect};
use crate::connection_watchdog::Watchdog;
use crate::filesystem::Filesystem;
use crate::protocol::{Features, OutHeader};
use rustix::fs::{Mode, OFlags, open};
use std::io;
use std::path::Path;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// A file system that is not mounted but answers requests as if it were. Cache invalidations are discarded.
pub struct Messages {
    link: Arc<Link>,
}

impl Messages {
    /// Serves a file system, with these features offered.
    ///
    /// # Errors
    /// `/dev/null` cannot be opened.
    pub fn new(filesystem: Arc<dyn Filesystem>, offered: Features) -> io::Result<Self> {
        // nothing can be read there, so a thread that reads requests ends
        let connection = open("/dev/null", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        let watchdog = Watchdog::new(&[], Path::new("/"));
        let mut link = Link::new(connection, filesystem, watchdog, Arc::default());
        link.features = (link.filesystem.features() | CARRIED) & offered;
        let link = Arc::new(link);
        connect(&link);
        Ok(Self { link })
    }

    /// The features that were negotiated.
    #[must_use]
    pub fn features(&self) -> Features {
        self.link.features
    }

    /// Answers a message. Returns the answer with its header; `None` for a message without an answer. May be called
    /// from many threads.
    #[must_use]
    pub fn answer(&self, message: &[u8]) -> Option<Vec<u8>> {
        let mut space = vec![0; MAX_DATA];
        let (unique, outcome, len) = respond_to(&self.link, message, &mut space)?;
        let body = outcome.map_or(&[][..], |()| space.get(..len).unwrap_or_default());
        let len = (size_of::<OutHeader>() + body.len()) as u32;
        let header = OutHeader { len, error: outcome.map_or_else(|e| -e.raw_os_error(), |()| 0), unique };
        Some([header.as_bytes(), body].concat())
    }

    /// Ends the session, as unmounting does.
    ///
    /// # Errors
    /// Some of the changes did not reach the device.
    pub fn finish(&self) -> io::Result<()> {
        self.link.filesystem.finish()
    }
}
