//! The interface of a file system to this crate, and the handle by which a file system reaches the kernel.

use crate::protocol::{Features, NOTIFY_INVAL_ENTRY, NOTIFY_PRUNE, NOTIFY_STORE};
use crate::protocol::{NotifyInvalEntryOut, NotifyPruneOut, NotifyStoreOut};
use crate::reply::{Answer, Reply};
use crate::request::Request;
use crate::transport::link::{Link, forget_inode, notify};
use crate::writeback::Writeback;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Weak};
use zerocopy::IntoBytes;

/// Nodes that the kernel is asked to prune in one message.
const PRUNED_AT_ONCE: usize = 4096;

/// A file system that answers requests. Calls come from many threads at once.
pub trait Filesystem: Send + Sync {
    /// The features that it wants of the kernel; it gets those of them that the kernel offers.
    fn features(&self) -> Features;

    /// Answers a request: puts the answer in `reply`, or nothing where none is due beyond that it was done.
    ///
    /// # Errors
    /// The number that the program gets. ENOSYS says that such requests need not be sent again.
    fn answer(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> Answer<()>;

    /// FORGET: drops so many references that lookups handed to the kernel.
    fn forget(&self, node: u64, lookups: u64);

    /// It is about to be unmounted although files are open, and nothing may begin any more that others would have to
    /// wait for. Whether the kernel shall write back what it has: not where that would be undone. Requests may follow
    /// that change something.
    fn stop(&self) -> bool {
        true
    }

    /// It is unmounted, or about to be: what was changed must be durable when this returns. It may be called more than
    /// once, and requests may follow that change nothing any more.
    ///
    /// # Errors
    /// Something did not reach the device.
    fn finish(&self) -> io::Result<()>;

    /// A panic came out of a request about `node`; the program gets EIO.
    fn panicked(&self, node: u64, what: &str);

    /// The handshake is done: from now on the kernel's caches can be invalidated.
    fn connected(&self, _kernel: Kernel) {}

    /// A signal came for the process whose request has this number; it may not have come here yet, or be answered. A
    /// process that was killed ends when it is answered.
    fn interrupted(&self, _unique: u64) {}

    /// Whether a request would have to wait for another one, of any length.
    fn would_wait(&self, _request: &Request<'_>) -> bool {
        false
    }

    /// Whether nothing may be changed beside a request while it is answered. The file system sees to that itself: the
    /// request must not be taken for one of those changes.
    fn changes_alone(&self, _request: &Request<'_>) -> bool {
        false
    }

    /// Called before a request that would wait is answered, with nothing locked that others may need: what has to be
    /// done by other requests first.
    ///
    /// # Errors
    /// The number that the program gets; the request is not answered then.
    fn prepare(&self, _request: &Request<'_>) -> Answer<()> {
        Ok(())
    }
}

/// A handle for invalidating the kernel's caches. When the connection has ended there are none.
#[derive(Debug, Clone)]
pub struct Kernel {
    link: Weak<Link>,
}

impl Kernel {
    pub(crate) fn of(link: &Arc<Link>) -> Self {
        Self { link: Arc::downgrade(link) }
    }

    /// From now on requests may have to wait for others, many at once: makes space for them.
    pub fn expect_waiting(&self) {
        if let Some(link) = self.link.upgrade() {
            link.prepare_spare();
        }
    }

    /// The writes that come from its pages, and the way to have it write them back.
    pub fn writeback(&self) -> Option<Arc<Writeback>> {
        self.link.upgrade().map(|link| Arc::clone(&link.writeback))
    }

    /// Has it forget the attributes and the content of a node.
    pub fn forget_inode(&self, node: u64) {
        if let Some(link) = self.link.upgrade() {
            link.watchdog.start();
            forget_inode(link.connection.as_fd(), node, 0);
        }
    }

    /// Whether [`Kernel::prune`] does anything: not before Linux 6.18.
    #[must_use]
    pub fn can_prune(&self) -> bool {
        self.prune(&[])
    }

    /// Has it drop from its caches those of these nodes that no program uses (FUSE_NOTIFY_PRUNE); for each a FORGET
    /// comes in its own time. It waits for content that is just being read, so it must not be called by a thread that
    /// others wait for. False where it cannot.
    ///
    /// That is not FUSE_NOTIFY_INVAL_ENTRY, which older kernels have too: that takes names away from files in use as
    /// well, and unmounts what is mounted on them.
    pub fn prune(&self, nodes: &[u64]) -> bool {
        let Some(link) = self.link.upgrade() else { return false };
        if !nodes.is_empty() {
            link.watchdog.start();
        }
        let what = NotifyPruneOut { count: nodes.len() as u32, ..NotifyPruneOut::default() };
        notify(link.connection.as_fd(), NOTIFY_PRUNE, &[what.as_bytes(), nodes.as_bytes()])
    }

    /// As [`Kernel::prune`], by a thread of its own, and any number; `done` is called in the end. False where it
    /// cannot be started.
    pub fn prune_in_background(&self, nodes: Vec<u64>, done: impl FnOnce() + Send + 'static) -> bool {
        let kernel = self.clone();
        let work = move || {
            // an end of the connection ends it too
            let _ = nodes.chunks(PRUNED_AT_ONCE).all(|some| kernel.prune(some));
            done();
        };
        std::thread::Builder::new().name("fuse-memory".to_owned()).spawn(work).is_ok()
    }

    /// Hands it content of a node, with which the file ends: where the size that it has of the file is smaller, it
    /// grows.
    pub fn lengthen(&self, node: u64, offset: u64, content: &[u8]) {
        let Some(link) = self.link.upgrade() else { return };
        link.watchdog.start();
        let what = NotifyStoreOut { node, offset, size: content.len() as u32, padding: 0 };
        let _ = notify(link.connection.as_fd(), NOTIFY_STORE, &[what.as_bytes(), content]);
    }

    /// Has it forget the attributes of a node. It locks nothing for that.
    pub fn forget_attributes(&self, node: u64) {
        if let Some(link) = self.link.upgrade() {
            forget_inode(link.connection.as_fd(), node, -1);
        }
    }

    /// Has it forget a name of a directory. It locks the directory, so this waits for requests that change it.
    pub fn forget_name(&self, dir: u64, name: &[u8]) {
        let Some(link) = self.link.upgrade() else { return };
        link.watchdog.start();
        let what = NotifyInvalEntryOut { dir, length: name.len() as u32, flags: 0 };
        let _ = notify(link.connection.as_fd(), NOTIFY_INVAL_ENTRY, &[what.as_bytes(), name, &[0]]);
    }
}
