//! Openings of files, and what comes of them later: pages that the kernel has not handed over.

use super::{Ops, lock, node_of};
use crate::options::Atime;
use crate::reply::{Answer, Reply};
use crate::request::{Operation, Request};
use fs::{InodeFlags, InodeNo};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::time::Duration;

/// How long the kernel may take to hand over the pages of a file.
const HAND_OVER: Duration = Duration::from_secs(1);

impl Ops {
    /// Opens a file, where the kernel has to ask.
    pub(super) fn open(&self, node: u64, how: OFlags, reply: &mut Reply<'_>) -> Answer<()> {
        let file = self.answer_for(node, |v, inode| {
            v.readable(inode)?;
            Ok(inode.raw().flags())
        })?;
        may_be_opened(how, file)?;
        self.note_opened(self.number(node)?, how);
        let writes = how.intersects(OFlags::WRONLY | OFlags::RDWR);
        if writes && file.contains(InodeFlags::APPEND) && !self.keeps_writes {
            // fcntl(2) takes O_APPEND away, and mappings have none: the kernel would show what is refused later.
            // Where it keeps times, it would not know of those that writes past its pages set
            return reply.opened_direct();
        }
        // reads that are to be recorded have to be seen
        reply.opened(self.atime == Atime::Never)
    }

    /// Remembers that the kernel may have pages of a file, from mappings or because it caches what is written, that it has not
    /// handed over. [`Ops::forget_pages`] ends that.
    pub(super) fn note_opened(&self, number: InodeNo, how: OFlags) {
        if how.contains(OFlags::RDWR) || (self.keeps_writes && how.contains(OFlags::WRONLY)) {
            lock(&self.may_have_pages).insert(number);
        }
    }

    /// The kernel has forgotten a file.
    pub(super) fn forget_pages(&self, number: InodeNo) {
        lock(&self.may_have_pages).remove(&number);
    }

    /// A file is about to take the place of another one. The old content must not go before the new one is there, so the
    /// kernel hands over what it has of it; ext4 writes it out then, too.
    pub(super) fn hand_over_before_replacing(&self, from: (InodeNo, &[u8]), to: (InodeNo, &[u8])) {
        if lock(&self.may_have_pages).is_empty() {
            return;
        }
        let find = |(dir, name): (InodeNo, &[u8])| {
            let dir = self.volume.inode(dir).ok()?;
            self.volume.lookup(&dir, name).ok()
        };
        let Some(file) = find(from) else { return };
        if lock(&self.may_have_pages).contains(&file) && find(to).is_some() {
            self.hand_over(node_of(file));
        }
    }

    /// Has the kernel hand over what it has of a file, and drop its pages.
    pub(super) fn hand_over(&self, node: u64) {
        let kernel = self.kernel.get().cloned();
        let (done, is_done) = std::sync::mpsc::channel();
        let hand_over = move || {
            if let Some(kernel) = kernel {
                kernel.forget_inode(node);
            }
            // after HAND_OVER there is no receiver any more
            let _ = done.send(());
        };
        // a process that has a page locked for longer may wait for this request
        if std::thread::Builder::new().name("fuse-pages".to_owned()).spawn(hand_over).is_ok() {
            let _ = is_done.recv_timeout(HAND_OVER);
        }
    }
}

/// Whether a file with such flags may be opened so.
fn may_be_opened(how: OFlags, file: InodeFlags) -> Answer<()> {
    let writes = how.intersects(OFlags::WRONLY | OFlags::RDWR | OFlags::TRUNC);
    let appends = how.contains(OFlags::APPEND) && !how.contains(OFlags::TRUNC);
    let refused = file.contains(InodeFlags::IMMUTABLE) || (file.contains(InodeFlags::APPEND) && !appends);
    if writes && refused { Err(Errno::PERM) } else { Ok(()) }
}

/// Where a page of the kernel's was refused because the file must not be changed so, the kernel has to forget it: it shows it
/// to everybody as what the file holds.
pub(super) fn refuse_pages(why: Errno, request: &Request<'_>, reply: &mut Reply<'_>) {
    if let (Errno::PERM, Operation::Write { offset, late: true, .. }) = (why, &request.operation) {
        reply.content_changed(request.node, *offset);
    }
}
