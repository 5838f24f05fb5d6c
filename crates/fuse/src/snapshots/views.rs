//! The number of each snapshot, its open volume, and its deletion.
//!
//! A number is never reused: the kernel may have nodes of a snapshot for as long as a program has a file of it open.
//!
//! Metadata is verified by its checksum, content is not: the blocks of a deleted snapshot are allocated again, and a
//! process that reads them later reads another file. So a deletion first marks the number, from when on every request
//! with it is refused; then waits for the requests that arrived before; and only then changes the volume.

use crate::ops::Ops;
use fs::SnapshotInfo;
use fuse_wire::Answer;
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use std::collections::HashSet;
use std::sync::Arc;

/// The maximum number of snapshots that stay open.
const OPEN: usize = 4;

#[derive(Default)]
pub(super) struct Views {
    known: Mutex<Known>,
    /// Signals that a request about a snapshot being deleted was answered.
    answered: Condvar,
}

#[derive(Default)]
struct Known {
    /// The snapshots named so far; the number of each is its index plus one.
    all: Vec<Named>,
    /// The open ones with their numbers, the most recently used last.
    open: Vec<(u64, Arc<Ops>)>,
}

struct Named {
    info: SnapshotInfo,
    gone: bool,
    /// The number of requests about it that are being answered.
    requests: usize,
    /// The inodes of which the kernel may have attributes, pages or listings.
    seen: HashSet<u32>,
}

impl Known {
    fn named(&mut self, number: u64) -> Option<&mut Named> {
        self.all.get_mut(usize::try_from(number.checked_sub(1)?).ok()?)
    }
}

/// A request about a snapshot; the snapshot is not deleted until this is dropped.
pub(super) struct Visit<'v> {
    views: &'v Views,
    number: u64,
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        let mut known = self.views.known.lock();
        let Some(named) = known.named(self.number) else { return };
        named.requests -= 1;
        if named.gone && named.requests == 0 {
            self.views.answered.notify_all();
        }
    }
}

impl Views {
    /// The number of a snapshot.
    pub(super) fn number_of(&self, info: &SnapshotInfo) -> u64 {
        let mut known = self.known.lock();
        let at = known.all.iter().position(|there| there.info == *info).unwrap_or_else(|| {
            known.all.push(Named { info: info.clone(), gone: false, requests: 0, seen: HashSet::new() });
            known.all.len() - 1
        });
        at as u64 + 1
    }

    /// Prevents the deletion of a snapshot for the length of a request.
    ///
    /// # Errors
    /// ESTALE: no snapshot has this number any more.
    pub(super) fn visit(&self, number: u64) -> Answer<Visit<'_>> {
        let mut known = self.known.lock();
        let named = known.named(number).filter(|named| !named.gone).ok_or(Errno::STALE)?;
        named.requests += 1;
        Ok(Visit { views: self, number })
    }

    /// Refuses every request about a snapshot from now on, and returns when those that came before are answered.
    ///
    /// # Errors
    /// ENOENT: another process is deleting it.
    pub(super) fn close(&self, number: u64) -> Answer<()> {
        let mut known = self.known.lock();
        let named = known.named(number).filter(|named| !named.gone).ok_or(Errno::NOENT)?;
        named.gone = true;
        let asked = |known: &mut Known| known.named(number).is_some_and(|named| named.requests > 0);
        self.answered.wait_while(&mut known, asked);
        known.open.retain(|(open, _)| *open != number);
        Ok(())
    }

    /// Permits requests again about a closed snapshot that was not deleted.
    pub(super) fn reopen(&self, number: u64) {
        if let Some(named) = self.known.lock().named(number) {
            named.gone = false;
        }
    }

    /// The inodes of a closed snapshot of which the kernel may have cached data.
    pub(super) fn seen(&self, number: u64) -> HashSet<u32> {
        self.known.lock().named(number).map(|named| std::mem::take(&mut named.seen)).unwrap_or_default()
    }

    /// Removes an inode that the kernel has forgotten.
    pub(super) fn forget(&self, number: u64, inode: u32) {
        if let Some(named) = self.known.lock().named(number) {
            named.seen.remove(&inode);
        }
    }

    /// Closes the open volumes.
    pub(super) fn clear(&self) {
        self.known.lock().open.clear();
    }
}

impl Visit<'_> {
    pub(super) fn info(&self) -> Answer<SnapshotInfo> {
        self.views.known.lock().named(self.number).map(|named| named.info.clone()).ok_or(Errno::STALE)
    }

    /// Records that the kernel gets data of an inode.
    pub(super) fn see(&self, inode: u32) {
        if let Some(named) = self.views.known.lock().named(self.number) {
            named.seen.insert(inode);
        }
    }

    /// The snapshot's volume; calls `open` where it is not open.
    pub(super) fn volume(&self, open: impl FnOnce(&SnapshotInfo) -> Answer<Ops>) -> Answer<Arc<Ops>> {
        let number = self.number;
        {
            let mut known = self.views.known.lock();
            if let Some(at) = known.open.iter().position(|(open, _)| *open == number) {
                let found = known.open.remove(at);
                let volume = Arc::clone(&found.1);
                known.open.push(found);
                return Ok(volume);
            }
        }
        let volume = Arc::new(open(&self.info()?)?);
        let mut known = self.views.known.lock();
        if known.open.len() >= OPEN {
            known.open.remove(0);
        }
        known.open.push((number, Arc::clone(&volume)));
        Ok(volume)
    }
}
