//! The snapshots of a native volume in its mount: `/.extant/snapshots/NAME`.
//!
//! A lookup of `.extant` in the root succeeds, but it is not listed, so that programs which walk the tree do not find
//! old versions of it. mkdir(2) in `snapshots` takes a snapshot, rmdir(2) deletes one; everything beneath is read-only.
//! Files in use cannot change their content, so a rollback to a snapshot takes place when the volume is unmounted.
//!
//! Nodes: the upper 32 bits determine the volume of a node. 0 is the volume itself, all ones are the two virtual
//! directories, and a snapshot has the number assigned when its name was first looked up or listed. So no two files of
//! the mount have the same inode number in stat(2), and the kernel's cached data of a deleted snapshot cannot be
//! mistaken for other data.
//!
//! Files in snapshots have the modes of that time: a file that only its owner may read now may be readable by all users
//! there. So `.extant` is for the user who mounted the volume (and for root), unless the option `snapdir=all` is set.

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

/// The name of the virtual directory in the root.
pub(crate) const DIRECTORY: &[u8] = b".extant";
/// The name of the directory of snapshots in it.
pub(crate) const LIST: &[u8] = b"snapshots";
/// The node of the directory `.extant`.
const HIDDEN: u64 = VIRTUAL << 32 | 1;
/// The node of `.extant/snapshots`.
const SNAPSHOTS: u64 = VIRTUAL << 32 | 2;
/// The upper 32 bits of the nodes of virtual directories.
const VIRTUAL: u64 = 0xFFFF_FFFF;
/// The size of the metadata cache of each open snapshot, in bytes.
const CACHE: usize = 16 << 20;
/// Extended attributes of a snapshot's root that are not stored on the volume: the generation, the time of creation in
/// seconds since 1970, and the unique space in bytes, each in decimal.
pub(crate) const INFO: [&str; 3] = ["extant.generation", "extant.time", "extant.space"];

/// An extended attribute of the volume's root that can be set: the name of the snapshot to which the volume is rolled
/// back when it is unmounted. Empty for none.
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
    /// The snapshot to which the volume is rolled back at unmount.
    back_to: Mutex<Option<Vec<u8>>>,
}

impl Filesystem for WithSnapshots {
    fn features(&self) -> Features {
        self.live.features()
    }

    fn answer(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> Answer<()> {
        match request.node >> 32 {
            0 => self.answer_live(request, reply),
            VIRTUAL => self.answer_virtual(request, reply),
            number => self.answer_of_snapshot(number, request, reply),
        }
    }

    fn forget(&self, node: u64, lookups: u64) {
        match node >> 32 {
            0 => self.live.forget(node, lookups),
            VIRTUAL => {}
            // virtual directories have no lookup count
            number => self.views.forget(number, node as u32),
        }
    }

    fn connected(&self, kernel: Kernel) {
        self.live.connected(kernel.clone());
        // set once: there is one connection
        let _ = self.kernel.set(kernel);
    }

    fn would_wait(&self, request: &Request<'_>) -> bool {
        // taking a snapshot waits for writeback, deleting one for requests about it
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
        // found relative to this mount, so that a file system mounted over it is not synced instead
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
            Some(name) => {
                self.live.lost_pages.clear();
                fs::rollback(Arc::clone(self.live.volume.storage()), &name).map_err(io::Error::other)
            }
            None => Ok(()),
        }
    }

    fn lost(&self) -> Option<String> {
        self.live.lost()
    }

    fn panicked(&self, node: u64, what: &str) {
        self.live.panicked(node, what);
    }
}

impl WithSnapshots {
    /// Adds the snapshots to `live`; `dir` is the directory on which it is mounted.
    pub(crate) fn new(live: Ops, options: &MountOptions, on_problem: ProblemSink, dir: Option<PathBuf>) -> Self {
        let (views, kernel, back_to) = (Views::default(), OnceLock::new(), Mutex::default());
        Self { live, options: options.clone(), on_problem, dir, views, kernel, back_to }
    }

    fn answer_of_snapshot(&self, number: u64, request: &Request<'_>, reply: &mut Reply<'_>) -> Answer<()> {
        let visit = self.views.visit(number)?;
        let volume = self.volume(&visit)?;
        visit.see(request.node as u32);
        match request.operation {
            // a copy would need both files on one volume
            Operation::CopyFileRange { .. } => Err(Errno::XDEV),
            ref operation if operation.changes() || opens_for_writing(operation) => Err(Errno::ROFS),
            Operation::GetXattr { name, size } if request.node as u32 == ROOT as u32 => {
                match self.info(&visit, name, &request.caller)? {
                    Some(value) => reply.value(size, value.as_bytes()),
                    None => volume.answer(request, reply),
                }
            }
            // a snapshot has no unwritten data
            Operation::Fsync { .. } | Operation::FsyncDir { .. } => Ok(()),
            _ => volume.answer(request, reply),
        }
    }

    fn answer_live(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> Answer<()> {
        let at_root = request.node == ROOT;
        match request.operation {
            Operation::Lookup { name: DIRECTORY } if at_root => reply.entry(&self.virtual_entry(HIDDEN)),
            Operation::SetXattr { name, value, .. } if at_root && name == ROLLBACK.as_bytes() => {
                self.schedule_rollback(value, &request.caller)
            }
            // our name cannot be renamed or replaced, and files cannot be moved here
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

    fn answer_virtual(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> Answer<()> {
        let node = request.node;
        if node != HIDDEN && node != SNAPSHOTS {
            return Err(Errno::STALE);
        }
        match request.operation {
            Operation::Lookup { name: b"." } => reply.entry(&self.virtual_entry(node)),
            Operation::Lookup { name: LIST } if node == HIDDEN => reply.entry(&self.virtual_entry(SNAPSHOTS)),
            Operation::Lookup { name } if node == SNAPSHOTS => {
                let number = self.numbered(name)?;
                match number.map(|number| self.root(number)).transpose() {
                    Ok(Some(root)) => reply.entry(&root),
                    // deleted, or being deleted
                    Ok(None) | Err(Errno::STALE) => reply.entry(&nothing(0)),
                    Err(e) => Err(e),
                }
            }
            Operation::Lookup { .. } => reply.entry(&nothing(0)),
            Operation::GetAttr => reply.attr(&self.virtual_entry(node).attr, 0),
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
            // the root of the volume may belong to another user
            Operation::SetXattr { name, value, .. } if node == SNAPSHOTS && name == ROLLBACK.as_bytes() => {
                self.schedule_rollback(value, &request.caller)
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

    /// Checks that the caller is root or the user who mounted the volume, who may take and delete snapshots.
    fn may_change(&self, caller: &Caller) -> Answer<()> {
        let owner = rustix::process::getuid().as_raw();
        if caller.uid == 0 || caller.uid == owner { Ok(()) } else { Err(Errno::PERM) }
    }

    /// Sets the snapshot to which the volume is rolled back at unmount; none where `name` is empty.
    fn schedule_rollback(&self, name: &[u8], caller: &Caller) -> Answer<()> {
        self.may_change(caller)?;
        if !self.live.volume.is_writable() {
            return Err(Errno::ROFS);
        }
        let mut back_to = self.back_to.lock();
        if !name.is_empty() && self.numbered(name)?.is_none() {
            return Err(Errno::NOENT);
        }
        *back_to = (!name.is_empty()).then(|| name.to_vec());
        self.live.lost_pages.set_replaced(back_to.is_some());
        Ok(())
    }

    fn delete(&self, name: &[u8], caller: &Caller) -> Answer<()> {
        self.may_change(caller)?;
        // locked, so that it is not chosen for a rollback meanwhile
        let back_to = self.back_to.lock();
        let list = self.live.volume.snapshots().map_err(|e| errno(&e))?;
        let info = list.into_iter().find(|info| info.name == name).ok_or(Errno::NOENT)?;
        if back_to.as_deref() == Some(name) {
            return Err(Errno::BUSY);
        }
        let number = self.views.number_of(&info);
        self.views.close(number)?;
        if let Err(e) = self.live.volume.delete_snapshot(name) {
            // where it still exists nothing of it was freed
            if self.live.volume.snapshots().is_ok_and(|list| list.contains(&info)) {
                self.views.reopen(number);
            }
            return Err(errno(&e));
        }
        let seen = self.views.seen(number);
        if let Some(kernel) = self.kernel.get() {
            // open files would otherwise remain readable from the kernel's page cache
            seen.into_iter().for_each(|inode| kernel.forget_inode(number << 32 | u64::from(inode)));
        }
        Ok(())
    }

    /// The number of the snapshot that has a name now; `None` where there is none.
    fn numbered(&self, name: &[u8]) -> Answer<Option<u64>> {
        let list = self.live.volume.snapshots().map_err(|e| errno(&e))?;
        Ok(list.iter().find(|info| info.name == name).map(|info| self.views.number_of(info)))
    }

    /// The volume of a snapshot, opened on demand.
    fn volume(&self, visit: &Visit<'_>) -> Answer<Arc<Ops>> {
        visit.volume(|info| {
            // the name may belong to another snapshot by now
            let list = self.live.volume.snapshots().map_err(|e| errno(&e))?;
            if !list.contains(info) {
                return Err(Errno::STALE);
            }
            let volume: Volume = self.live.volume.open_snapshot(&info.name, CACHE).map_err(|e| errno(&e))?;
            let (volume, on_problem) = (Arc::new(volume), Arc::clone(&self.on_problem));
            Ok(self.live.of_snapshot(volume, self.views.number_of(info) << 32, &self.options, on_problem))
        })
    }

    /// The entry of a snapshot's root. Its name has no timeout: it may later belong to another snapshot.
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
            // this compares the maps of everything in the snapshot
            _ => {
                self.may_change(caller)?;
                self.live.volume.snapshot_space(&info.name).map_err(|e| errno(&e))?.to_string()
            }
        }))
    }

    /// The entry of a virtual directory. It belongs to the user who mounted the volume: the kernel checks its mode to
    /// decide who may take snapshots.
    fn virtual_entry(&self, node: u64) -> Entry {
        let mode = match self.options.snapshots {
            SnapshotFolder::Owner => 0o040_700,
            SnapshotFolder::All => 0o040_755,
        };
        let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        let attr = Attr { ino: node, mode, uid, gid, nlink: 2, block_size: 4096, ..Attr::default() };
        Entry { node, generation: 0, name_timeout: 0, attr_timeout: 0, attr }
    }

    /// Lists a virtual directory from an entry on.
    fn list(&self, node: u64, cookie: u64, plus: bool, reply: &mut Reply<'_>) -> Answer<()> {
        let above = if node == HIDDEN { ROOT } else { HIDDEN };
        let mut entries = vec![(node, b".".to_vec()), (above, b"..".to_vec())];
        if node == HIDDEN {
            entries.push((SNAPSHOTS, LIST.to_vec()));
        } else {
            let list = self.live.volume.snapshots().map_err(|e| errno(&e))?;
            // the inode number of each root, as in stat(2)
            entries.extend(list.iter().map(|info| (self.views.number_of(info) << 32 | 2, info.name.clone())));
        }
        let first = usize::try_from(cookie).unwrap_or(usize::MAX);
        for (at, (ino, name)) in entries.into_iter().enumerate().skip(first) {
            let next = at as u64 + 1;
            let listed = if plus {
                // further attributes require a lookup
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
