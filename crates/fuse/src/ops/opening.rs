//! Opening files, and dirty pages that the kernel may have of them later.

use super::{Ops, node_of};
use fs::{InodeFlags, InodeNo};
use fuse_wire::{Answer, Atime, Operation, Reply, Request};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::time::Duration;

/// The maximum time for the writeback of a file that is about to become immutable or append-only: a process that has
/// one of its pages locked may be waiting for that request.
const BEFORE_LOCKING: Duration = Duration::from_secs(1);
/// The same before a file replaces another: that waits only for requests that wait for no others.
const BEFORE_REPLACING: Duration = Duration::from_secs(60);

impl Ops {
    /// Opens a file, on mounts where the kernel sends OPEN.
    pub(super) fn open(&self, node: u64, how: OFlags, reply: &mut Reply<'_>) -> Answer<()> {
        let file = self.answer_for(node, |v, inode| {
            v.readable(inode)?;
            Ok(inode.raw().flags())
        })?;
        may_be_opened(how, file)?;
        self.record_opened(self.number(node)?, how);
        let writes = how.intersects(OFlags::WRONLY | OFlags::RDWR);
        if writes && file.contains(InodeFlags::APPEND) && !self.writeback {
            // fcntl(2) can clear O_APPEND, and mappings ignore it: the kernel would show data that is refused later.
            // Where it caches times, it would not know those set by writes that bypass its pages
            return reply.opened_direct();
        }
        // reads must arrive here to update access times
        reply.opened(self.atime == Atime::Never)
    }

    /// Records that the kernel may have dirty pages of a file, from mappings or because it caches written data.
    /// [`Ops::forget_pages`] removes the record.
    pub(super) fn record_opened(&self, number: InodeNo, how: OFlags) {
        if how.contains(OFlags::RDWR) || (self.writeback && how.contains(OFlags::WRONLY)) {
            self.may_have_pages.lock().entry(number).or_default();
        }
    }

    /// Removes the records of a file that the kernel has forgotten.
    pub(super) fn forget_pages(&self, number: InodeNo) {
        self.may_have_pages.lock().remove(&number);
    }

    /// Records that a page of a file could not be written.
    fn record_lost_page(&self, node: u64, why: Errno) {
        if let Ok(number) = self.number(node)
            && let Some(lost) = self.may_have_pages.lock().get_mut(&number)
        {
            *lost = Some(why);
        }
    }

    /// Writes back a file that is about to replace another one: the old content must not be removed before the new
    /// content is on the volume; ext4 also writes it then. Not called for members of a transaction, whose commit writes
    /// back everything.
    ///
    /// # Errors
    /// The error due to which the new content cannot be written.
    pub(super) fn write_back_before_replacing(&self, from: (u64, &[u8]), to: (u64, &[u8])) -> Answer<()> {
        if self.may_have_pages.lock().is_empty() {
            return Ok(());
        }
        let find = |(dir, name): (u64, &[u8])| {
            let dir = self.volume.inode(self.number(dir).ok()?).ok()?;
            self.volume.lookup(&dir, name).ok()
        };
        let Some(file) = find(from) else { return Ok(()) };
        let lost = || self.may_have_pages.lock().get_mut(&file).map(std::mem::take);
        // an earlier loss was reported at a sync, and the data may have been written again
        if find(to).is_none_or(|replaced| replaced == file) || lost().is_none() {
            return Ok(());
        }
        if !self.write_back_pages(node_of(file), BEFORE_REPLACING) {
            return Err(Errno::IO);
        }
        lost().flatten().map_or(Ok(()), Err)
    }

    /// Refuses a page write. Where that is because the file must not be changed in this way, the kernel's page is
    /// invalidated: otherwise all processes would see it as the content of the file.
    pub(super) fn refuse_page(&self, why: Errno, request: &Request<'_>, reply: &mut Reply<'_>) {
        let Operation::Write { offset, paged: true, .. } = request.operation else { return };
        self.record_lost_page(request.node, why);
        if let Ok(inode) = self.number(request.node)
            && let Some(problem) = self.lost_pages.record(&self.volume, inode, why)
        {
            self.problems.report_lost(inode.get().into(), &problem);
        }
        if why == Errno::PERM {
            reply.content_changed(request.node, offset);
        }
    }

    /// Calls [`Ops::write_back_pages`] for a file that becomes immutable or append-only.
    pub(super) fn write_back_before_locking(&self, node: u64) {
        self.write_back_pages(node, BEFORE_LOCKING);
    }

    /// Makes the kernel write back its dirty pages of a file and drop its pages; returns whether that finished in time.
    fn write_back_pages(&self, node: u64, longest: Duration) -> bool {
        let kernel = self.kernel.get().cloned();
        let (done, is_done) = std::sync::mpsc::channel();
        let write_back_pages = move || {
            if let Some(kernel) = kernel {
                kernel.forget_inode(node);
            }
            // the receiver may have timed out
            let _ = done.send(());
        };
        let thread = std::thread::Builder::new().name("fuse-pages".to_owned()).spawn(write_back_pages);
        thread.is_ok() && is_done.recv_timeout(longest).is_ok()
    }
}

/// Checks that a file with these flags may be opened in this mode.
fn may_be_opened(how: OFlags, file: InodeFlags) -> Answer<()> {
    let writes = how.intersects(OFlags::WRONLY | OFlags::RDWR | OFlags::TRUNC);
    let appends = how.contains(OFlags::APPEND) && !how.contains(OFlags::TRUNC);
    let refused = file.contains(InodeFlags::IMMUTABLE) || (file.contains(InodeFlags::APPEND) && !appends);
    if writes && refused { Err(Errno::PERM) } else { Ok(()) }
}
