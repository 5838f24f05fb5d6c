//! Dirty pages that the kernel may have of files, from mappings or because it caches written data.

use fs::InodeNo;
use fuse_wire::{Answer, Kernel};
use parking_lot::Mutex;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::OnceLock;
use std::time::Duration;

/// The maximum time for the writeback of a file that is about to become immutable or append-only: a process that has
/// one of its pages locked may be waiting for that request.
const BEFORE_LOCKING: Duration = Duration::from_secs(1);
/// The same before a file replaces another: that waits only for requests that wait for no others.
const BEFORE_REPLACING: Duration = Duration::from_secs(60);

/// The files of which the kernel may have dirty pages.
pub(super) struct DirtyPages {
    /// Each file with the error of the last page that could not be written.
    files: Mutex<HashMap<InodeNo, Option<Errno>>>,
    /// Whether the kernel caches written data, with sizes and times.
    writeback: bool,
    /// The handle for invalidating the kernel's caches.
    kernel: OnceLock<Kernel>,
}

impl DirtyPages {
    pub(super) fn new(writeback: bool) -> Self {
        Self { files: Mutex::default(), writeback, kernel: OnceLock::new() }
    }

    pub(super) fn connected(&self, kernel: Kernel) {
        // set once: there is one connection
        let _ = self.kernel.set(kernel);
    }

    /// Whether the kernel has no dirty pages of any file.
    pub(super) fn is_empty(&self) -> bool {
        self.files.lock().is_empty()
    }

    /// Records that the kernel may have dirty pages of a file. [`DirtyPages::forget`] removes the record.
    pub(super) fn record_opened(&self, number: InodeNo, how: OFlags) {
        if how.contains(OFlags::RDWR) || (self.writeback && how.contains(OFlags::WRONLY)) {
            self.files.lock().entry(number).or_default();
        }
    }

    /// Removes the records of a file that the kernel has forgotten.
    pub(super) fn forget(&self, number: InodeNo) {
        self.files.lock().remove(&number);
    }

    /// Records that a page of a file could not be written.
    pub(super) fn record_lost(&self, number: InodeNo, why: Errno) {
        if let Some(lost) = self.files.lock().get_mut(&number) {
            *lost = Some(why);
        }
    }

    /// Writes back a file, whose `node` is that of the kernel, before it replaces another one; does nothing without
    /// dirty pages.
    ///
    /// # Errors
    /// The error due to which its content cannot be written.
    pub(super) fn write_back_before_replacing(&self, number: InodeNo, node: u64) -> Answer<()> {
        let lost = || self.files.lock().get_mut(&number).map(std::mem::take);
        // an earlier loss was reported at a sync, and the data may have been written again
        if lost().is_none() {
            return Ok(());
        }
        if !self.write_back(node, BEFORE_REPLACING) {
            return Err(Errno::IO);
        }
        lost().flatten().map_or(Ok(()), Err)
    }

    /// Writes back a file that becomes immutable or append-only.
    pub(super) fn write_back_before_locking(&self, node: u64) {
        self.write_back(node, BEFORE_LOCKING);
    }

    /// Makes the kernel write back its dirty pages of a file and drop its pages; returns whether that finished in time.
    fn write_back(&self, node: u64, longest: Duration) -> bool {
        let kernel = self.kernel.get().cloned();
        let (done, is_done) = std::sync::mpsc::channel();
        let write_back = move || {
            if let Some(kernel) = kernel {
                kernel.forget_inode(node);
            }
            // the receiver may have timed out
            let _ = done.send(());
        };
        let thread = std::thread::Builder::new().name("fuse-pages".to_owned()).spawn(write_back);
        thread.is_ok() && is_done.recv_timeout(longest).is_ok()
    }
}
