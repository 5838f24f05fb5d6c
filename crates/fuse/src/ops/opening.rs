//! Openings of files, and what comes of them later: pages that the kernel has not handed over.

use super::{Ops, node_of};
use fs::{InodeFlags, InodeNo};
use fuse_wire::{Answer, Atime, Operation, Reply, Request};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::time::Duration;

/// The longest time that the kernel may take to hand over the pages of a file that is about to be locked: a process
/// that has one of them locked may wait for that request.
const BEFORE_LOCKING: Duration = Duration::from_secs(1);
/// The same before a file takes another's place: all that is waited for are requests that wait for none.
const BEFORE_REPLACING: Duration = Duration::from_secs(60);

impl Ops {
    /// Opens a file, where the kernel has to ask.
    pub(super) fn open(&self, node: u64, how: OFlags, reply: &mut Reply<'_>) -> Answer<()> {
        let file = self.answer_for(node, |v, inode| {
            v.readable(inode)?;
            Ok(inode.raw().flags())
        })?;
        may_be_opened(how, file)?;
        self.record_opened(self.number(node)?, how);
        let writes = how.intersects(OFlags::WRONLY | OFlags::RDWR);
        if writes && file.contains(InodeFlags::APPEND) && !self.writeback {
            // fcntl(2) takes O_APPEND away, and mappings have none: the kernel would show what is refused later.
            // Where it caches times, it would not know of those that writes past its pages set
            return reply.opened_direct();
        }
        // reads that are to be recorded have to be seen
        reply.opened(self.atime == Atime::Never)
    }

    /// Remembers that the kernel may have pages of a file, from mappings or because it caches what is written, that it
    /// has not handed over. [`Ops::forget_pages`] ends that.
    pub(super) fn record_opened(&self, number: InodeNo, how: OFlags) {
        if how.contains(OFlags::RDWR) || (self.writeback && how.contains(OFlags::WRONLY)) {
            self.may_have_pages.lock().entry(number).or_default();
        }
    }

    /// The kernel has forgotten a file.
    pub(super) fn forget_pages(&self, number: InodeNo) {
        self.may_have_pages.lock().remove(&number);
    }

    /// Remembers that a page of a file could not be written.
    fn record_lost_page(&self, node: u64, why: Errno) {
        if let Ok(number) = self.number(node)
            && let Some(lost) = self.may_have_pages.lock().get_mut(&number)
        {
            *lost = Some(why);
        }
    }

    /// A file is about to take the place of another one. The old content must not go before the new one is there, so
    /// the kernel hands over what it has of it; ext4 writes it out then, too. Not called for members of a transaction:
    /// when that is committed, all is handed over.
    ///
    /// # Errors
    /// Why the new content cannot be written.
    pub(super) fn hand_over_before_replacing(&self, from: (u64, &[u8]), to: (u64, &[u8])) -> Answer<()> {
        if self.may_have_pages.lock().is_empty() {
            return Ok(());
        }
        let find = |(dir, name): (u64, &[u8])| {
            let dir = self.volume.inode(self.number(dir).ok()?).ok()?;
            self.volume.lookup(&dir, name).ok()
        };
        let Some(file) = find(from) else { return Ok(()) };
        let lost = || self.may_have_pages.lock().get_mut(&file).map(std::mem::take);
        // what was lost before was reported to who synced it, and may be there again
        if find(to).is_none_or(|replaced| replaced == file) || lost().is_none() {
            return Ok(());
        }
        if !self.hand_over(node_of(file), BEFORE_REPLACING) {
            return Err(Errno::IO);
        }
        lost().flatten().map_or(Ok(()), Err)
    }

    /// A page of the kernel's could not be written. Where that is because the file must not be changed so, the kernel
    /// has to forget it: it shows it to everybody as what the file holds.
    pub(super) fn refuse_page(&self, why: Errno, request: &Request<'_>, reply: &mut Reply<'_>) {
        let Operation::Write { offset, paged: true, .. } = request.operation else { return };
        self.record_lost_page(request.node, why);
        if why == Errno::PERM {
            reply.content_changed(request.node, offset);
        }
    }

    /// As [`Ops::hand_over`], before a file becomes immutable or append-only.
    pub(super) fn hand_over_before_locking(&self, node: u64) {
        self.hand_over(node, BEFORE_LOCKING);
    }

    /// Has the kernel hand over what it has of a file, and drop its pages; whether that was done in time.
    fn hand_over(&self, node: u64, longest: Duration) -> bool {
        let kernel = self.kernel.get().cloned();
        let (done, is_done) = std::sync::mpsc::channel();
        let hand_over = move || {
            if let Some(kernel) = kernel {
                kernel.forget_inode(node);
            }
            // later there is no receiver any more
            let _ = done.send(());
        };
        let thread = std::thread::Builder::new().name("fuse-pages".to_owned()).spawn(hand_over);
        thread.is_ok() && is_done.recv_timeout(longest).is_ok()
    }
}

/// Whether a file with such flags may be opened so.
fn may_be_opened(how: OFlags, file: InodeFlags) -> Answer<()> {
    let writes = how.intersects(OFlags::WRONLY | OFlags::RDWR | OFlags::TRUNC);
    let appends = how.contains(OFlags::APPEND) && !how.contains(OFlags::TRUNC);
    let refused = file.contains(InodeFlags::IMMUTABLE) || (file.contains(InodeFlags::APPEND) && !appends);
    if writes && refused { Err(Errno::PERM) } else { Ok(()) }
}
