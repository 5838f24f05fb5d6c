//! The snapshots of a native volume in its mount: `/.extant/snapshots/NAME`.
//!
//! `.extant` is found by its name in the root and not listed, so that programs which walk the tree do not meet old versions
//! of it. mkdir(2) in `snapshots` makes a snapshot, rmdir(2) deletes one; everything below is for reading. Files in use
//! cannot change their meaning, so going back to a snapshot waits until the volume is unmounted.
//!
//! Nodes: the upper 32 bits say which volume a node is of. 0 is the volume itself, all ones are the two directories
//! made up here, and a snapshot has the number that it got when its name was first looked up or listed. So no two files
//! of the mount have the same number for stat(2), and what the kernel caches of a snapshot that was deleted means
//! nothing else.
//!
//! Snapshots have the modes that files had: what is for the owner alone by now may be for everybody there. So `.extant`
//! is for the user who mounted the volume (and for root), unless `snapdir=all` says otherwise.

mod client;
mod views;

pub use client::MountedSnapshots;

use crate::errno::errno;
use crate::ops::{Ops, ROOT, nothing};
use crate::options::{MountOptions, SnapshotFolder};
use crate::problem_reports::ProblemSink;
use fs::Volume;
use fuse_wire::{Answer, Attr, Caller, Entry, Features, Filesystem, Kernel, Operation, Reply, Request, WritebackError};
use parking_lot::Mutex;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use views::{Views, Visit};

/// The name in the root.
pub(crate) const DIRECTORY: &[u8] = b".extant";
/// The name below it.
pub(crate) const LIST: &[u8] = b"snapshots";
/// The node of the directory `.extant`.
const HIDDEN: u64 = MADE_UP << 32 | 1;
/// The node of `.extant/snapshots`.
const SNAPSHOTS: u64 = MADE_UP << 32 | 2;
/// The upper 32 bits of nodes that are on no volume.
const MADE_UP: u64 = 0xFFFF_FFFF;
/// Bytes of each one's metadata that are cached.
const CACHE: usize = 16 << 20;
/// Of a snapshot's root, attributes that are not on the volume: its generation's number, when it was made in seconds
/// since 1970, and the bytes that it alone holds, all in decimal.
pub(crate) const INFO: [&str; 3] = ["extant.generation", "extant.time", "extant.space"];

/// An attribute of the volume's root that can be set: the snapshot to which the volume goes back when it is unmounted.
/// Empty for none.
pub(crate) const ROLLBACK: &str = "extant.rollback";

/// A mounted volume with its snapshots.
pub(crate) struct WithSnapshots {
    live: Ops,
    options: MountOptions,
    on_problem: ProblemSink,
    /// The directory on which it is mounted.
    dir: Option<PathBuf>,
    views: Views,
    kernel: OnceLock<Kernel>,
    /// The snapshot to which the volume goes back at its end.
    back_to: Mutex<Option<Vec<u8>>>,
}

impl Filesystem for WithSnapshots {
    fn features(&self) -> Features {
        self.live.features()
    }

    fn answer(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> Answer<()> {
        match request.node >> 32 {
            0 => self.answer_live(request, reply),
            MADE_UP => self.answer_made_up(request, reply),
            number => self.answer_of_snapshot(number, request, reply),
        }
    }

    fn forget(&self, node: u64, lookups: u64) {
        match node >> 32 {
            0 => self.live.forget(node, lookups),
            MADE_UP => {}
            // nothing is pinned there
            number => self.views.forget(number, node as u32),
        }
    }

    fn connected(&self, kernel: Kernel) {
        self.live.connected(kernel.clone());
        // there is one connection
        let _ = self.kernel.set(kernel);
    }

    fn would_wait(&self, request: &Request<'_>) -> bool {
        // for pages that the kernel hands over, for requests about a snapshot that goes
        let waits = matches!(request.operation, Operation::MkDir { .. } | Operation::RmDir { .. });
        waits && request.node == SNAPSHOTS || self.live.would_wait(request)
    }

    fn changes_alone(&self, request: &Request<'_>) -> bool {
        // a snapshot is of one moment
        matches!(request.operation, Operation::MkDir { .. }) && request.node == SNAPSHOTS
    }

    fn prepare(&self, request: &Request<'_>) -> Answer<()> {
        if !self.changes_alone(request) {
            return self.live.prepare(request);
        }
        if !self.live.volume.is_writable() {
            return Ok(());
        }
        self.may_change(&request.caller)?;
        let Some(dir) = &self.dir else { return Ok(()) };
        let Some(writeback) = self.kernel.get().and_then(Kernel::writeback) else { return Ok(()) };
        // found in this mount alone, so that nothing else that may be mounted over it is meant
        let folder = dir.join(OsStr::from_bytes(DIRECTORY)).join(OsStr::from_bytes(LIST));
        match writeback.take_over(&folder) {
            Ok(()) => Ok(()),
            Err(WritebackError::Write(why)) => {
                (self.on_problem)(&format!(
                    "no snapshot was taken: data in the kernel's page cache could not be written: {why}"
                ));
                Err(Errno::IO)
            }
            Err(WritebackError::Refused(why)) => {
                let reason = io::Error::from(why);
                (self.on_problem)(&format!(
                    "no snapshot was taken: a page changed through a shared mapping could not be written: {reason}"
                ));
                Err(why)
            }
            Err(WritebackError::Start(why)) if self.options.writeback_cache => {
                (self.on_problem)(&format!(
                    "no snapshot was taken: with writeback_cache the kernel still buffers writes, and {why}"
                ));
                Err(Errno::OPNOTSUPP)
            }
            Err(WritebackError::Start(why)) => {
                (self.on_problem)(&format!(
                    "a snapshot was taken without changes that programs made through shared mappings: {why}"
                ));
                Ok(())
            }
        }
    }

    fn finish(&self) -> io::Result<()> {
        self.views.clear();
        self.live.finish()?;
        match self.back_to.lock().take() {
            Some(name) => fs::rollback(Arc::clone(self.live.volume.storage()), &name).map_err(io::Error::other),
            None => Ok(()),
        }
    }

    fn panicked(&self, node: u64, what: &str) {
        self.live.panicked(node, what);
    }
}

impl WithSnapshots {
    /// `dir` is where it is mounted.
    pub(crate) fn new(live: Ops, options: &MountOptions, on_problem: ProblemSink, dir: Option<PathBuf>) -> Self {
        let (views, kernel, back_to) = (Views::default(), OnceLock::new(), Mutex::default());
        Self { live, options: options.clone(), on_problem, dir, views, kernel, back_to }
    }

    fn answer_of_snapshot(&self, number: u64, request: &Request<'_>, reply: &mut Reply<'_>) -> Answer<()> {
        let visit = self.views.visit(number)?;
        let volume = self.volume(&visit)?;
        visit.see(request.node as u32);
        match request.operation {
            // what is copied here has its place on the volume
            Operation::CopyFileRange { .. } => Err(Errno::XDEV),
            ref operation if operation.changes() || opens_for_writing(operation) => Err(Errno::ROFS),
            Operation::GetXattr { name, size } if request.node as u32 == ROOT as u32 => {
                match self.info(&visit, name, &request.caller)? {
                    Some(value) => reply.value(size, value.as_bytes()),
                    None => volume.answer(request, reply),
                }
            }
            // nothing is left to be written
            Operation::Fsync { .. } | Operation::FsyncDir { .. } => Ok(()),
            _ => volume.answer(request, reply),
        }
    }

    fn answer_live(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> Answer<()> {
        let at_root = request.node == ROOT;
        match request.operation {
            Operation::Lookup { name: DIRECTORY } if at_root => reply.entry(&self.made_up(HIDDEN)),
            Operation::SetXattr { name, value, .. } if at_root && name == ROLLBACK.as_bytes() => {
                self.go_back_to(value, &request.caller)
            }
            // a name of ours cannot be taken, and what is elsewhere cannot come here
            Operation::Rename { name: DIRECTORY, .. } | Operation::RmDir { name: DIRECTORY } if at_root => {
                Err(Errno::BUSY)
            }
            Operation::Rename { to: ROOT, new_name: DIRECTORY, .. } => Err(Errno::BUSY),
            Operation::Rename { to: node, .. }
            | Operation::Link { target: node, .. }
            | Operation::CopyFileRange { target: node, .. }
                if node >> 32 != 0 =>
            {
                Err(Errno::XDEV)
            }
            _ => self.live.answer(request, reply),
        }
    }

    fn answer_made_up(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> Answer<()> {
        let node = request.node;
        if node != HIDDEN && node != SNAPSHOTS {
            return Err(Errno::STALE);
        }
        match request.operation {
            Operation::Lookup { name: b"." } => reply.entry(&self.made_up(node)),
            Operation::Lookup { name: LIST } if node == HIDDEN => reply.entry(&self.made_up(SNAPSHOTS)),
            Operation::Lookup { name } if node == SNAPSHOTS => {
                let number = self.numbered(name)?;
                match number.map(|number| self.root(number)).transpose() {
                    Ok(Some(root)) => reply.entry(&root),
                    // deleted, or about to be
                    Ok(None) | Err(Errno::STALE) => reply.entry(&nothing(0)),
                    Err(e) => Err(e),
                }
            }
            Operation::Lookup { .. } => reply.entry(&nothing(0)),
            Operation::GetAttr => reply.attr(&self.made_up(node).attr, 0),
            Operation::OpenDir => self.live.answer(request, reply),
            Operation::ReadDir { cookie, size, plus } => {
                reply.limit(size);
                self.list(node, cookie, plus, reply)
            }
            Operation::MkDir { name, .. } if node == SNAPSHOTS => {
                self.may_change(&request.caller)?;
                self.live.volume.create_snapshot(name).map_err(|e| errno(&e))?;
                let number = self.numbered(name)?.ok_or(Errno::NOENT)?;
                reply.entry(&self.root(number)?)
            }
            Operation::RmDir { name } if node == SNAPSHOTS => self.delete(name, &request.caller),
            // the root of the volume may be another user's
            Operation::SetXattr { name, value, .. } if node == SNAPSHOTS && name == ROLLBACK.as_bytes() => {
                self.go_back_to(value, &request.caller)
            }
            Operation::GetXattr { name, size } if node == SNAPSHOTS && name == ROLLBACK.as_bytes() => {
                reply.value(size, self.back_to.lock().as_deref().ok_or(Errno::NODATA)?)
            }
            Operation::GetXattr { .. } => Err(Errno::NODATA),
            Operation::ListXattr { size } => reply.value(size, &[]),
            Operation::StatFs => self.live.answer(&Request { node: ROOT, ..*request }, reply),
            Operation::SyncFs => self.live.answer(request, reply),
            Operation::Access { .. } | Operation::ReleaseDir | Operation::Fsync { .. } | Operation::FsyncDir { .. } => {
                Ok(())
            }
            Operation::Ioctl { .. } => Err(Errno::NOTTY),
            ref operation if operation.changes() || opens_for_writing(operation) => Err(Errno::ROFS),
            _ => Err(Errno::NOSYS),
        }
    }

    /// Snapshots are made and deleted by root and by the user who mounted the volume.
    fn may_change(&self, caller: &Caller) -> Answer<()> {
        let owner = rustix::process::getuid().as_raw();
        if caller.uid == 0 || caller.uid == owner { Ok(()) } else { Err(Errno::PERM) }
    }

    /// Has the volume go back to a snapshot at its end; to none where `name` is empty.
    fn go_back_to(&self, name: &[u8], caller: &Caller) -> Answer<()> {
        self.may_change(caller)?;
        if !self.live.volume.is_writable() {
            return Err(Errno::ROFS);
        }
        let mut back_to = self.back_to.lock();
        if !name.is_empty() && self.numbered(name)?.is_none() {
            return Err(Errno::NOENT);
        }
        *back_to = (!name.is_empty()).then(|| name.to_vec());
        Ok(())
    }

    fn delete(&self, name: &[u8], caller: &Caller) -> Answer<()> {
        self.may_change(caller)?;
        // no process chooses it meanwhile
        let back_to = self.back_to.lock();
        let list = self.live.volume.snapshots().map_err(|e| errno(&e))?;
        let info = list.into_iter().find(|info| info.name == name).ok_or(Errno::NOENT)?;
        if back_to.as_deref() == Some(name) {
            return Err(Errno::BUSY);
        }
        let number = self.views.number_of(&info);
        self.views.close(number)?;
        if let Err(e) = self.live.volume.delete_snapshot(name) {
            // where it is still there nothing of it was freed
            if self.live.volume.snapshots().is_ok_and(|list| list.contains(&info)) {
                self.views.reopen(number);
            }
            return Err(errno(&e));
        }
        let seen = self.views.seen(number);
        if let Some(kernel) = self.kernel.get() {
            // what programs have open they could read on from the kernel's memory
            seen.into_iter().for_each(|inode| kernel.forget_inode(number << 32 | u64::from(inode)));
        }
        Ok(())
    }

    /// The number of the snapshot that has a name now.
    fn numbered(&self, name: &[u8]) -> Answer<Option<u64>> {
        let list = self.live.volume.snapshots().map_err(|e| errno(&e))?;
        Ok(list.iter().find(|info| info.name == name).map(|info| self.views.number_of(info)))
    }

    /// The volume of a snapshot, opened where it is not open.
    fn volume(&self, visit: &Visit<'_>) -> Answer<Arc<Ops>> {
        visit.volume(|info| {
            // the name may be that of another one by now
            let list = self.live.volume.snapshots().map_err(|e| errno(&e))?;
            if !list.contains(info) {
                return Err(Errno::STALE);
            }
            let volume: Volume = self.live.volume.open_snapshot(&info.name, CACHE).map_err(|e| errno(&e))?;
            let (volume, on_problem) = (Arc::new(volume), Arc::clone(&self.on_problem));
            Ok(self.live.of_snapshot(volume, self.views.number_of(info) << 32, &self.options, on_problem))
        })
    }

    /// A snapshot's root. Its name may come to mean another one.
    fn root(&self, number: u64) -> Answer<Entry> {
        let visit = self.views.visit(number)?;
        Ok(Entry { name_timeout: 0, ..self.volume(&visit)?.root()? })
    }

    fn info(&self, visit: &Visit<'_>, name: &[u8], caller: &Caller) -> Answer<Option<String>> {
        let Some(which) = INFO.iter().position(|attribute| attribute.as_bytes() == name) else { return Ok(None) };
        let info = visit.info()?;
        Ok(Some(match which {
            0 => info.generation.to_string(),
            1 => info.time.to_string(),
            // it compares maps of all that the snapshot has
            _ => {
                self.may_change(caller)?;
                self.live.volume.snapshot_space(&info.name).map_err(|e| errno(&e))?.to_string()
            }
        }))
    }

    /// A directory made up here. It belongs to the user who mounted the volume: the kernel asks it who may make
    /// snapshots.
    fn made_up(&self, node: u64) -> Entry {
        let mode = match self.options.snapshots {
            SnapshotFolder::Owner => 0o040_700,
            SnapshotFolder::All => 0o040_755,
        };
        let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        let attr = Attr { ino: node, mode, uid, gid, nlink: 2, block_size: 4096, ..Attr::default() };
        Entry { node, generation: 0, name_timeout: 0, attr_timeout: 0, attr }
    }

    /// Lists one of the directories made up here from an entry on.
    fn list(&self, node: u64, cookie: u64, plus: bool, reply: &mut Reply<'_>) -> Answer<()> {
        let above = if node == HIDDEN { ROOT } else { HIDDEN };
        let mut entries = vec![(node, b".".to_vec()), (above, b"..".to_vec())];
        if node == HIDDEN {
            entries.push((SNAPSHOTS, LIST.to_vec()));
        } else {
            let list = self.live.volume.snapshots().map_err(|e| errno(&e))?;
            // the root of each, as stat(2) shows it
            entries.extend(list.iter().map(|info| (self.views.number_of(info) << 32 | 2, info.name.clone())));
        }
        let first = usize::try_from(cookie).unwrap_or(usize::MAX);
        for (at, (ino, name)) in entries.into_iter().enumerate().skip(first) {
            let next = at as u64 + 1;
            let listed = if plus {
                // who needs more than the name looks it up
                let attr = Attr { ino, mode: 0o040_000, ..Attr::default() };
                reply.dirent_plus(&Entry { attr, ..nothing(0) }, next, &name)
            } else {
                reply.dirent(ino, next, 4, &name)
            };
            if !listed {
                break;
            }
        }
        Ok(())
    }
}

fn opens_for_writing(operation: &Operation<'_>) -> bool {
    let writing = OFlags::WRONLY | OFlags::RDWR | OFlags::TRUNC;
    matches!(operation, Operation::Open { flags } if OFlags::from_bits_retain(*flags).intersects(writing))
}
