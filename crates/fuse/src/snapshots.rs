//! The snapshots of a native volume in its mount: `/.extant/snapshots/NAME`.
//!
//! `.extant` is found by its name in the root and not listed, so that programs which walk the tree do not meet old versions
//! of it. mkdir(2) in `snapshots` makes a snapshot, rmdir(2) deletes one; everything below is for reading. Files in use
//! cannot change their meaning, so going back to a snapshot waits until the volume is unmounted.
//!
//! Nodes: the upper 32 bits say which volume a node is of. 0 is the volume itself, all ones are the two directories made up
//! here, and a snapshot has the number that it was given when its name was first looked up or listed. So no two files of the
//! mount have the same number for stat(2), and what the kernel keeps of a snapshot that was deleted means nothing else.

use crate::errno::errno;
use crate::ops::{Ops, ROOT, nothing};
use crate::options::MountOptions;
use crate::problems::Teller;
use crate::protocol::{Attr, Features};
use crate::reply::{Answer, Entry, Reply};
use crate::request::{Caller, Operation, Request};
use crate::transport::{Filesystem, Kernel};
use fs::{SnapshotInfo, Volume};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The name in the root.
pub(crate) const DIRECTORY: &[u8] = b".extant";
/// The name below it.
pub(crate) const LIST: &[u8] = b"snapshots";
/// The node of the directory `.extant`.
const HIDDEN: u64 = MADE_UP << 32 | 1;
/// The node of `.extant/snapshots`.
const SNAPSHOTS: u64 = MADE_UP << 32 | 2;
/// What nodes that are on no volume have in their upper 32 bits.
const MADE_UP: u64 = 0xFFFF_FFFF;
/// Snapshots that are kept open.
const OPEN: usize = 4;
/// Bytes of each one's metadata that are kept in memory.
const CACHE: usize = 16 << 20;
/// Of a snapshot's root, attributes that are not on the volume: its generation's number, when it was made in seconds since
/// 1970, and the bytes that it alone holds, all in decimal.
pub(crate) const FACTS: [&str; 3] = ["extant.generation", "extant.time", "extant.space"];

/// An attribute of the volume's root that can be set: the snapshot to which the volume goes back when it is unmounted. Empty
/// for none.
pub(crate) const ROLLBACK: &str = "extant.rollback";

/// A mounted volume with its snapshots.
pub(crate) struct WithSnapshots {
    live: Ops,
    options: MountOptions,
    teller: Teller,
    known: Mutex<Known>,
    /// The snapshot to which the volume goes back at its end.
    back_to: Mutex<Option<Vec<u8>>>,
}

#[derive(Default)]
struct Known {
    /// Those that were named so far; the number of each is one more than its place here.
    all: Vec<SnapshotInfo>,
    /// Those that are open, with their numbers, the one used last at the end.
    open: Vec<(u64, Arc<Ops>)>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Filesystem for WithSnapshots {
    fn features(&self) -> Features {
        self.live.features()
    }

    fn connected(&self, kernel: Kernel) {
        self.live.connected(kernel);
    }

    fn answer(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> Answer<()> {
        match request.node >> 32 {
            0 => self.answer_live(request, reply),
            MADE_UP => self.answer_made_up(request, reply),
            number => {
                let volume = self.volume(number)?;
                match request.operation {
                    // what is copied here has its place on the volume
                    Operation::CopyFileRange { .. } => Err(Errno::XDEV),
                    ref operation if operation.changes() || opens_for_writing(operation) => Err(Errno::ROFS),
                    Operation::GetXattr { name, size } if request.node as u32 == ROOT as u32 => {
                        match self.fact(number, name)? {
                            Some(value) => reply.value(size, value.as_bytes()),
                            None => volume.answer(request, reply),
                        }
                    }
                    // nothing is left to be written
                    Operation::Fsync { .. } | Operation::FsyncDir { .. } => Ok(()),
                    _ => volume.answer(request, reply),
                }
            }
        }
    }

    fn forget(&self, node: u64, lookups: u64) {
        // nothing is held on behalf of the others
        if node >> 32 == 0 {
            self.live.forget(node, lookups);
        }
    }

    fn finish(&self) -> io::Result<()> {
        lock(&self.known).open.clear();
        self.live.finish()?;
        match lock(&self.back_to).take() {
            Some(name) => fs::rollback(Arc::clone(self.live.volume.storage()), &name).map_err(io::Error::other),
            None => Ok(()),
        }
    }

    fn panicked(&self, node: u64, what: &str) {
        self.live.panicked(node, what);
    }
}

impl WithSnapshots {
    pub(crate) fn new(live: Ops, options: &MountOptions, teller: Teller) -> Self {
        Self { live, options: options.clone(), teller, known: Mutex::default(), back_to: Mutex::default() }
    }

    fn answer_live(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> Answer<()> {
        let at_root = request.node == ROOT;
        match request.operation {
            Operation::Lookup { name: DIRECTORY } if at_root => reply.entry(&made_up(HIDDEN)),
            Operation::SetXattr { name, value, .. } if at_root && name == ROLLBACK.as_bytes() => {
                self.may_change(&request.caller)?;
                if self.live.volume.consistency().is_none() {
                    return Err(Errno::ROFS);
                }
                if !value.is_empty() && self.numbered(value)?.is_none() {
                    return Err(Errno::NOENT);
                }
                *lock(&self.back_to) = (!value.is_empty()).then(|| value.to_vec());
                Ok(())
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
            Operation::Lookup { name: b"." } => reply.entry(&made_up(node)),
            Operation::Lookup { name: LIST } if node == HIDDEN => reply.entry(&made_up(SNAPSHOTS)),
            Operation::Lookup { name } if node == SNAPSHOTS => match self.numbered(name)? {
                Some(number) => reply.entry(&self.root(number)?),
                None => reply.entry(&nothing(0)),
            },
            Operation::Lookup { .. } => reply.entry(&nothing(0)),
            Operation::GetAttr => reply.attr(&made_up(node).attr, 0),
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
            Operation::RmDir { name } if node == SNAPSHOTS => {
                self.may_change(&request.caller)?;
                let number = self.numbered(name)?.ok_or(Errno::NOENT)?;
                if lock(&self.back_to).as_deref() == Some(name) {
                    return Err(Errno::BUSY);
                }
                lock(&self.known).open.retain(|(open, _)| *open != number);
                self.live.volume.delete_snapshot(name).map_err(|e| errno(&e))
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

    /// Snapshots are made and deleted by root and by whoever mounted the volume.
    fn may_change(&self, caller: &Caller) -> Answer<()> {
        let owner = rustix::process::getuid().as_raw();
        if caller.uid == 0 || caller.uid == owner { Ok(()) } else { Err(Errno::PERM) }
    }

    /// The number of the snapshot that has a name now.
    fn numbered(&self, name: &[u8]) -> Answer<Option<u64>> {
        let list = self.live.volume.snapshots().map_err(|e| errno(&e))?;
        Ok(list.iter().find(|info| info.name == name).map(|info| self.number_of(info)))
    }

    fn number_of(&self, info: &SnapshotInfo) -> u64 {
        let mut known = lock(&self.known);
        let at = known.all.iter().position(|there| there == info).unwrap_or_else(|| {
            known.all.push(info.clone());
            known.all.len() - 1
        });
        at as u64 + 1
    }

    /// The snapshot that has a number, as long as it is there.
    fn info(&self, number: u64) -> Answer<SnapshotInfo> {
        let at = usize::try_from(number).ok().and_then(|number| number.checked_sub(1)).ok_or(Errno::STALE)?;
        let info = lock(&self.known).all.get(at).cloned().ok_or(Errno::STALE)?;
        let list = self.live.volume.snapshots().map_err(|e| errno(&e))?;
        if list.contains(&info) { Ok(info) } else { Err(Errno::STALE) }
    }

    /// The volume of a snapshot, opened where it is not open.
    fn volume(&self, number: u64) -> Answer<Arc<Ops>> {
        {
            let mut known = lock(&self.known);
            if let Some(at) = known.open.iter().position(|(open, _)| *open == number) {
                let found = known.open.remove(at);
                let volume = Arc::clone(&found.1);
                known.open.push(found);
                return Ok(volume);
            }
        }
        let info = self.info(number)?;
        let volume: Volume = self.live.volume.open_snapshot(&info.name, CACHE).map_err(|e| errno(&e))?;
        let (volume, teller) = (Arc::new(volume), Arc::clone(&self.teller));
        let volume = Arc::new(Ops::of_snapshot(volume, number << 32, &self.options, teller));
        let mut known = lock(&self.known);
        if known.open.len() >= OPEN {
            known.open.remove(0);
        }
        known.open.push((number, Arc::clone(&volume)));
        Ok(volume)
    }

    /// A snapshot's root. Its name may come to mean another one.
    fn root(&self, number: u64) -> Answer<Entry> {
        Ok(Entry { keep_name: 0, ..self.volume(number)?.root()? })
    }

    fn fact(&self, number: u64, name: &[u8]) -> Answer<Option<String>> {
        let Some(fact) = FACTS.iter().position(|fact| fact.as_bytes() == name) else { return Ok(None) };
        let info = self.info(number)?;
        Ok(Some(match fact {
            0 => info.generation.to_string(),
            1 => info.time.to_string(),
            _ => self.live.volume.snapshot_space(&info.name).map_err(|e| errno(&e))?.to_string(),
        }))
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
            entries.extend(list.iter().map(|info| (self.number_of(info) << 32 | 2, info.name.clone())));
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

/// A directory made up here: everybody may look into it.
fn made_up(node: u64) -> Entry {
    let attr = Attr { ino: node, mode: 0o040_755, nlink: 2, block_size: 4096, ..Attr::default() };
    Entry { node, generation: 0, keep_name: 0, keep_attr: 0, attr }
}

fn opens_for_writing(operation: &Operation<'_>) -> bool {
    let writing = OFlags::WRONLY | OFlags::RDWR | OFlags::TRUNC;
    matches!(operation, Operation::Open { flags } if OFlags::from_bits_retain(*flags).intersects(writing))
}
