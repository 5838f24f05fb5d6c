//! Openings of files, and what comes of those from before a file became immutable or append-only.

use super::Ops;
use crate::options::Atime;
use crate::reply::{Answer, Reply};
use crate::request::{Operation, Request};
use fs::InodeFlags;
use rustix::fs::OFlags;
use rustix::io::Errno;

impl Ops {
    /// Opens a file, where the kernel has to ask.
    pub(super) fn open(&self, node: u64, how: OFlags, reply: &mut Reply<'_>) -> Answer<()> {
        let file = self.answer_for(node, |v, inode| {
            v.readable(inode)?;
            Ok(inode.raw().flags())
        })?;
        may_be_opened(how, file)?;
        let writes = how.intersects(OFlags::WRONLY | OFlags::RDWR);
        if writes && file.contains(InodeFlags::APPEND) && !self.keeps_writes {
            // fcntl(2) takes O_APPEND away, and mappings have none: the kernel would show what is refused later.
            // Where it keeps times, it would not know of those that writes past its pages set
            return reply.opened_direct();
        }
        // reads that are to be recorded have to be seen
        reply.opened(self.atime == Atime::Never)
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
