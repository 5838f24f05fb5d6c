//! Opening files, and what depends on the dirty pages that the kernel may have of them later.

use super::{Ops, node_of};
use fs::InodeFlags;
use fuse_wire::{Answer, Atime, Operation, Reply, Request};
use rustix::fs::OFlags;
use rustix::io::Errno;

impl Ops {
    /// Opens a file, on mounts where the kernel sends OPEN.
    pub(super) fn open(&self, node: u64, how: OFlags, reply: &mut Reply<'_>) -> Answer<()> {
        let file = self.answer_for(node, |v, inode| {
            v.readable(inode)?;
            Ok(inode.raw().flags())
        })?;
        may_be_opened(how, file)?;
        self.dirty_pages.record_opened(self.number(node)?, how);
        let writes = how.intersects(OFlags::WRONLY | OFlags::RDWR);
        if writes && file.contains(InodeFlags::APPEND) && !self.writeback {
            // fcntl(2) can clear O_APPEND, and mappings ignore it: the kernel would show data that is refused later.
            // Where it caches times, it would not know those set by writes that bypass its pages
            return reply.opened_direct();
        }
        // reads must arrive here to update access times
        reply.opened(self.atime == Atime::Never)
    }

    /// Writes back a file that is about to replace another one: the old content must not be removed before the new
    /// content is on the volume; ext4 also writes it then. Not called for members of a transaction, whose commit writes
    /// back everything.
    ///
    /// # Errors
    /// The error due to which the new content cannot be written.
    pub(super) fn write_back_before_replacing(&self, from: (u64, &[u8]), to: (u64, &[u8])) -> Answer<()> {
        if self.dirty_pages.is_empty() {
            return Ok(());
        }
        let find = |(dir, name): (u64, &[u8])| {
            let dir = self.volume.inode(self.number(dir).ok()?).ok()?;
            self.volume.lookup(&dir, name).ok()
        };
        let Some(file) = find(from) else { return Ok(()) };
        if find(to).is_none_or(|replaced| replaced == file) {
            return Ok(());
        }
        self.dirty_pages.write_back_before_replacing(file, node_of(file))
    }

    /// Refuses a page write. Where that is because the file must not be changed in this way, the kernel's page is
    /// invalidated: otherwise all processes would see it as the content of the file.
    pub(super) fn refuse_page(&self, why: Errno, request: &Request<'_>, reply: &mut Reply<'_>) {
        let Operation::Write { offset, paged: true, .. } = request.operation else { return };
        if let Ok(inode) = self.number(request.node) {
            self.dirty_pages.record_lost(inode, why);
            if let Some(problem) = self.lost_pages.record(&self.volume, inode, why) {
                self.problems.report_lost(inode.get().into(), &problem);
            }
        }
        if why == Errno::PERM {
            reply.content_changed(request.node, offset);
        }
    }
}

/// Checks that a file with these flags may be opened in this mode.
fn may_be_opened(how: OFlags, file: InodeFlags) -> Answer<()> {
    let writes = how.intersects(OFlags::WRONLY | OFlags::RDWR | OFlags::TRUNC);
    let appends = how.contains(OFlags::APPEND) && !how.contains(OFlags::TRUNC);
    let refused = file.contains(InodeFlags::IMMUTABLE) || (file.contains(InodeFlags::APPEND) && !appends);
    if writes && refused { Err(Errno::PERM) } else { Ok(()) }
}
