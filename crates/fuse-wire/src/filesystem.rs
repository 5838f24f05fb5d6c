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

/// The maximum number of nodes in one prune message.
const PRUNED_AT_ONCE: usize = 4096;

/// A file system that answers requests. Methods are called from many threads at once.
pub trait Filesystem: Send + Sync {
    /// The features that the file system requests; of these, the kernel enables the ones that it offers.
    fn features(&self) -> Features;

    /// Answers a request: writes the answer to `reply`; nothing where success alone is the answer.
    ///
    /// # Errors
    /// The error number for the calling process. ENOSYS stops the kernel from sending requests of this kind.
    fn answer(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> Answer<()>;

    /// FORGET: subtracts `lookups` from the node's lookup count.
    fn forget(&self, node: u64, lookups: u64);

    /// Prepares for an unmount while files are open: nothing that other requests would have to wait for may begin from
    /// now on. Returns whether the kernel shall write back its dirty pages: `false` where those writes would be rolled
    /// back. Requests that change the file system may still follow.
    fn stop(&self) -> bool {
        true
    }

    /// Makes all changes durable before it returns; called when the file system is unmounted, or about to be. It may be
    /// called more than once; requests that change nothing may follow.
    ///
    /// # Errors
    /// Some of the changes did not reach the device.
    fn finish(&self) -> io::Result<()>;

    /// The files of which data was lost that programs wrote and the kernel wrote back later, as a phrase with the
    /// causes; `None` where there are none. Called after [`Filesystem::finish`].
    fn lost(&self) -> Option<String> {
        None
    }

    /// Reports a panic in a request about `node`; the calling process gets EIO.
    fn panicked(&self, node: u64, what: &str);

    /// Called after the handshake: from now on the kernel's caches can be invalidated.
    fn connected(&self, _kernel: Kernel) {}

    /// INTERRUPT: a signal was sent to the process whose request has this number. The request may not have arrived yet,
    /// or may already be answered. A killed process ends only when its request is answered.
    fn interrupted(&self, _unique: u64) {}

    /// Whether a request would have to wait for another one, for however long.
    fn would_wait(&self, _request: &Request<'_>) -> bool {
        false
    }

    /// Whether nothing may change while this request is answered. The file system ensures that itself; the request must
    /// not be counted as one of those changes.
    fn changes_alone(&self, _request: &Request<'_>) -> bool {
        false
    }

    /// Called without locks before a request that would wait is answered: does the work that depends on other requests.
    ///
    /// # Errors
    /// The error number for the calling process; the request is then not answered otherwise.
    fn prepare(&self, _request: &Request<'_>) -> Answer<()> {
        Ok(())
    }
}

/// A handle for invalidating the kernel's caches. It has no effect once the connection has ended.
#[derive(Debug, Clone)]
pub struct Kernel {
    link: Weak<Link>,
}

impl Kernel {
    pub(crate) fn of(link: &Arc<Link>) -> Self {
        Self { link: Arc::downgrade(link) }
    }

    /// Announces that from now on many requests at once may have to wait for others: starts spare workers.
    pub fn expect_waiting(&self) {
        if let Some(link) = self.link.upgrade() {
            link.prepare_spare();
        }
    }

    /// The state of the kernel's writeback, with the method that requests it; `None` after the connection has ended.
    pub fn writeback(&self) -> Option<Arc<Writeback>> {
        self.link.upgrade().map(|link| Arc::clone(&link.writeback))
    }

    /// Invalidates the kernel's cached attributes and content of a node.
    pub fn forget_inode(&self, node: u64) {
        if let Some(link) = self.link.upgrade() {
            link.watchdog.start();
            forget_inode(link.connection.as_fd(), node, 0);
        }
    }

    /// Whether [`Kernel::prune`] has an effect: only from Linux 6.18 on.
    #[must_use]
    pub fn can_prune(&self) -> bool {
        self.prune(&[])
    }

    /// Prunes those of these nodes from the kernel's caches that no process uses (FUSE_NOTIFY_PRUNE); a FORGET for each
    /// follows later. It waits for pages that are being read, so a thread that other requests wait for must not call
    /// it. Returns `false` where the kernel cannot prune.
    ///
    /// FUSE_NOTIFY_INVAL_ENTRY, which older kernels also have, is no substitute: it also removes names of files in use,
    /// and unmounts file systems mounted on them.
    pub fn prune(&self, nodes: &[u64]) -> bool {
        let Some(link) = self.link.upgrade() else { return false };
        if !nodes.is_empty() {
            link.watchdog.start();
        }
        let what = NotifyPruneOut { count: nodes.len() as u32, ..NotifyPruneOut::default() };
        notify(link.connection.as_fd(), NOTIFY_PRUNE, &[what.as_bytes(), nodes.as_bytes()])
    }

    /// Calls [`Kernel::prune`] in a thread of its own, for any number of nodes, and `done` at the end. Returns `false`
    /// where the thread cannot be started.
    pub fn prune_in_background(&self, nodes: Vec<u64>, done: impl FnOnce() + Send + 'static) -> bool {
        let kernel = self.clone();
        let work = move || {
            // an error means that the connection has ended
            let _ = nodes.chunks(PRUNED_AT_ONCE).all(|some| kernel.prune(some));
            done();
        };
        std::thread::Builder::new().name("fuse-memory".to_owned()).spawn(work).is_ok()
    }

    /// Stores content in the kernel's pages of a node, up to the end of the file: a smaller cached size grows to that
    /// end.
    pub fn lengthen(&self, node: u64, offset: u64, content: &[u8]) {
        let Some(link) = self.link.upgrade() else { return };
        link.watchdog.start();
        let what = NotifyStoreOut { node, offset, size: content.len() as u32, padding: 0 };
        let _ = notify(link.connection.as_fd(), NOTIFY_STORE, &[what.as_bytes(), content]);
    }

    /// Invalidates the kernel's cached attributes of a node. This takes no lock in the kernel.
    pub fn forget_attributes(&self, node: u64) {
        if let Some(link) = self.link.upgrade() {
            forget_inode(link.connection.as_fd(), node, -1);
        }
    }

    /// Invalidates a cached name of a directory. The kernel locks the directory for it, so this waits for requests that
    /// change the directory.
    pub fn forget_name(&self, dir: u64, name: &[u8]) {
        let Some(link) = self.link.upgrade() else { return };
        link.watchdog.start();
        let what = NotifyInvalEntryOut { dir, length: name.len() as u32, flags: 0 };
        let _ = notify(link.connection.as_fd(), NOTIFY_INVAL_ENTRY, &[what.as_bytes(), name, &[0]]);
    }
}
