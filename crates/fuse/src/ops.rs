//! The requests of the kernel as calls of a volume, independent of the transport.
//!
//! A *node* is the kernel's number of a file: the inode number, except that FUSE numbers the root 1 where ext numbers
//! it 2. Inode 1 (the list of bad blocks) is in no directory, so node 1 is unambiguous. stat(2) shows the inode number
//! from the attributes, which is 2 for the root.
//!
//! What the kernel may cache is decided here:
//!
//! - names, including those that do not exist, attributes, link targets and content: without a time limit, since no
//!   other program changes the volume, and the kernel knows the effect of each of its own requests. Exception: names,
//!   where directories may be case-insensitive and can be changed. The kernel compares bytes, so a change under one
//!   spelling leaves the cached entries of other spellings unchanged. This includes directories that are
//!   case-sensitive: they may become case-insensitive, and an entry renamed from them into others retains its timeout;
//! - OPENDIR is answered once with ENOSYS, and on a read-only volume OPEN as well: from then on the kernel sends
//!   neither them nor FLUSH, RELEASE and RELEASEDIR, and caches pages and listings across opens. Exceptions: single
//!   files may be unreadable (encryption), each user is checked (allow_root), auto_unmount, or access times are
//!   updated;
//! - OPEN is answered for each file where files can be changed: an immutable or append-only file must refuse to be
//!   opened for writing, because the kernel lets a program change its pages through a mapping without a request, and
//!   shows them to all others. ENOSYS would apply to all files permanently, and any file may get the flags. The answer
//!   lets the kernel retain its cached pages;
//! - CREATE is answered where OPEN is.
//!
//! With the option `writeback_cache` the kernel also determines the size and the times of change of regular files:
//! writeback from its page cache changes the content only, and it sends the times with SETATTR.
//!
//! 1. Open files have no state here. A directory is read by cookies, a file by offsets, so open and release have no
//!    effect; an unlinked file exists until the kernel forgets it.
//! 2. A damaged file is an error for that file, reported once.

mod damage;
mod dirty_pages;
mod holes;
mod ioctl;
mod listing;
mod lost_pages;
mod opening;
mod write;

use crate::errno::{errno, is_problem};
use crate::options::MountOptions;
use crate::problem_reports::{ProblemReports, ProblemSink};
use damage::Damage;
use dirty_pages::DirtyPages;
use format::feature::{Compat, Incompat};
use fs::{Attributes, Error, FileKind, Inode, InodeFlags, InodeNo, Timestamp, Volume, WriteHow};
use fuse_wire::{
    Access, Answer, Atime, Attr, Caller, DAEMON, Entry, Features, Filesystem, Kernel, Operation, Reply, Request,
    StatFs, StatxOut, StatxTime,
};
use holes::Holes;
use lost_pages::LostPages;
use parking_lot::Mutex;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use write::{CAPABILITY, Making};

/// The node number of the root in FUSE.
pub(crate) const ROOT: u64 = 1;

/// An extended attribute of the root that is not stored on the volume, like [`DAEMON`] and
/// [`SYNC`](fuse_wire::SYNC): whether the server can write, `ro` or `rw`.
pub(crate) const ACCESS: &str = "extant.access";

/// The timeout "without a limit": ten years, in seconds.
const ALWAYS: u64 = 10 * 365 * 24 * 3600;

/// Rename flag: the new name must not exist.
const RENAME_NOREPLACE: u32 = 1;
/// Rename flag: the two names are exchanged.
const RENAME_EXCHANGE: u32 = 2;
/// Rename flag: a whiteout remains under the old name.
const RENAME_WHITEOUT: u32 = 4;

/// A mounted volume.
pub(crate) struct Ops {
    pub(crate) volume: Arc<Volume>,
    /// The upper 32 bits of node numbers and of the inode numbers in stat(2).
    above: u64,
    problems: ProblemReports,
    /// The only user besides root whose requests are answered; `None` for no restriction.
    only: Option<u32>,
    /// Whether the kernel checks permissions.
    kernel_checks: bool,
    /// Whether the kernel has to send a request for each open of a file.
    ask_opens: bool,
    /// The same for directories.
    ask_dir_opens: bool,
    /// Whether the kernel caches written data, with sizes and times.
    writeback: bool,
    /// The time for which the kernel may cache attributes, in seconds.
    attr_timeout: u64,
    /// The time for which the kernel may cache names, found or not, in seconds.
    name_timeout: u64,
    /// The rule for updating access times.
    atime: Atime,
    /// The parts of holes that may be in the kernel's page cache, where files can be changed.
    holes: Option<Holes>,
    /// Files that are known to have capabilities.
    capable: Mutex<HashSet<InodeNo>>,
    /// Whether there ever was one.
    any_capable: AtomicBool,
    /// The files of which the kernel may have dirty pages.
    dirty_pages: DirtyPages,
    /// The files that lost data which the kernel had accepted.
    pub(crate) lost_pages: LostPages,
    /// The behaviour on damage, and whether the volume is unmounted.
    damage: Damage,
    /// Whether each change is durable before it is answered.
    sync: bool,
    /// Whether each change of names is.
    dirsync: bool,
}

/// The node of an inode.
pub(crate) fn node_of(inode: InodeNo) -> u64 {
    if inode == InodeNo::ROOT { ROOT } else { u64::from(inode.get()) }
}

/// The inode of a node of the volume itself; `None` for those of snapshots.
pub(crate) fn number_of(node: u64) -> Option<InodeNo> {
    if node == ROOT { Some(InodeNo::ROOT) } else { u32::try_from(node).ok().map(InodeNo) }
}

/// Encodes a device number in the 32 bits of FUSE: 12 of the major, 20 of the minor.
fn device(numbers: Option<(u32, u32)>) -> u32 {
    numbers.map_or(0, |(major, minor)| (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & 0xf_ff00) << 12))
}

/// Converts attributes to the format of the kernel.
fn attr(a: &Attributes) -> Attr {
    Attr {
        ino: a.inode.get().into(),
        size: a.size,
        blocks: a.blocks,
        atime: a.atime.seconds,
        mtime: a.mtime.seconds,
        ctime: a.ctime.seconds,
        atime_nanos: a.atime.nanos,
        mtime_nanos: a.mtime.nanos,
        ctime_nanos: a.ctime.nanos,
        mode: a.mode.into(),
        nlink: a.links.into(),
        uid: a.uid,
        gid: a.gid,
        rdev: device(a.device),
        block_size: a.block_size,
        flags: 0,
    }
}

/// The entry for a name that does not exist, which the kernel may cache.
pub(crate) fn nothing(name_timeout: u64) -> Entry {
    Entry { node: 0, generation: 0, name_timeout, attr_timeout: 0, attr: Attr::default() }
}

impl Filesystem for Ops {
    /// Nodes that the kernel has looked up stay in memory. Where they take too much memory, the kernel is asked to
    /// prune some that no program uses.
    fn connected(&self, kernel: Kernel) {
        self.dirty_pages.connected(kernel.clone());
        if !self.volume.is_writable() || !kernel.can_prune() {
            return;
        }
        let asked = Arc::new(AtomicBool::new(false));
        self.volume.on_many_looked_up(Box::new(move |numbers| {
            // at most one at a time
            if !asked.swap(true, Ordering::AcqRel) {
                let done = Arc::clone(&asked);
                let nodes = numbers.into_iter().map(node_of).collect();
                if !kernel.prune_in_background(nodes, move || done.store(false, Ordering::Release)) {
                    asked.store(false, Ordering::Release);
                }
            }
        }));
    }

    fn features(&self) -> Features {
        let mut wanted = Features::EXPORT_SUPPORT
            | Features::HAS_IOCTL_DIR
            | Features::DO_READDIRPLUS
            | Features::READDIRPLUS_AUTO
            | Features::PARALLEL_DIROPS
            | Features::ASYNC_DIO
            | Features::CACHE_SYMLINKS
            | Features::EXPLICIT_INVAL_DATA;
        // with POSIX_ACL the kernel checks all permissions
        wanted.set(Features::POSIX_ACL, self.kernel_checks && self.has_xattrs());
        wanted.set(Features::DONT_MASK | Features::HANDLE_KILLPRIV_V2, self.volume.is_writable());
        wanted.set(Features::WRITEBACK_CACHE, self.writeback);
        wanted.set(Features::NO_OPEN_SUPPORT, !self.ask_opens);
        wanted.set(Features::NO_OPENDIR_SUPPORT, !self.ask_dir_opens);
        wanted
    }

    fn would_wait(&self, request: &Request<'_>) -> bool {
        // these wait for the writeback of pages
        match request.operation {
            Operation::Rename { .. } => !self.dirty_pages.is_empty(),
            ref other => Self::locks_file(other),
        }
    }

    fn prepare(&self, request: &Request<'_>) -> Answer<()> {
        match request.operation {
            Operation::Rename { name, to, new_name, flags } if flags & (RENAME_EXCHANGE | RENAME_NOREPLACE) == 0 => {
                self.write_back_before_replacing((request.node, name), (to, new_name))
            }
            _ => Ok(()),
        }
    }

    fn answer(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> Answer<()> {
        let caller = &request.caller;
        self.volume.on_behalf_of(caller.uid, caller.gid, || self.answer_to(caller, request, reply))?;
        if self.dirsync && self.volume.is_writable() { self.sync_behind(request) } else { Ok(()) }
    }

    fn forget(&self, node: u64, lookups: u64) {
        let Ok(number) = self.number(node) else { return };
        // the root is pinned by the mount
        if node != ROOT && self.volume.is_writable() {
            // the error is reported; no process waits for it
            let _ = self.outcome(number, self.volume.forget(number, lookups));
            if let Some(holes) = &self.holes {
                holes.forget(number, || self.volume.is_looked_up(number));
            }
            if !self.volume.is_looked_up(number) {
                self.dirty_pages.forget(number);
            }
        }
    }

    fn finish(&self) -> io::Result<()> {
        let outcome = self.damage.unmount(&self.volume);
        self.problems.report_groups(self.volume.damaged_groups());
        outcome.map_err(io::Error::other)
    }

    fn lost(&self) -> Option<String> {
        self.lost_pages.report(&self.volume, true)
    }

    fn panicked(&self, node: u64, what: &str) {
        let text = format!("an internal error of Extant: {what}");
        // the state in memory may be inconsistent
        self.volume.abort(&text);
        self.problems.report(node, &text);
    }
}

impl Ops {
    pub(crate) fn new(volume: Arc<Volume>, options: &MountOptions, on_problem: ProblemSink) -> Self {
        // without allow_other the kernel itself admits only the owner
        let only = (options.mount.access == Access::OwnerAndRoot).then(|| rustix::process::getuid().as_raw());
        // where some files cannot be opened (encrypted, no key), or not by all users; with auto_unmount, fusermount3
        // identifies a dead connection of a killed process by the answer to an open
        let encrypted = volume.superblock().features.incompat.contains(Incompat::ENCRYPT);
        let ask_dir_opens =
            encrypted || only.is_some() || options.mount.auto_unmount || options.mount.atime != Atime::Never;
        let ask_opens = ask_dir_opens || volume.is_writable();
        let attr_timeout = if only.is_some() { 0 } else { ALWAYS };
        let (kernel_checks, errors) = (options.mount.kernel_checks(), options.on_damage(&volume));
        // the kernel compares names byte by byte, and does not know of changes under another spelling
        let folds = volume.superblock().features.incompat.contains(Incompat::CASEFOLD);
        let name_timeout = if folds && volume.is_writable() { 0 } else { attr_timeout };
        let writeback = options.writeback_cache && volume.is_writable();
        // what the kernel caches for writeback is unknown here
        let holes = (volume.is_writable() && !writeback).then(Holes::new);
        Self {
            volume,
            above: 0,
            problems: ProblemReports::new(on_problem),
            only,
            kernel_checks,
            ask_opens,
            ask_dir_opens,
            writeback,
            attr_timeout,
            name_timeout,
            atime: options.mount.atime,
            holes,
            capable: Mutex::default(),
            any_capable: AtomicBool::new(false),
            dirty_pages: DirtyPages::new(writeback),
            lost_pages: LostPages::default(),
            damage: Damage::new(errors),
            sync: options.mount.sync,
            dirsync: options.mount.dirsync || options.mount.sync,
        }
    }

    /// The operations of a snapshot of this volume; `above` distinguishes its nodes from those of all other volumes.
    pub(crate) fn of_snapshot(
        &self,
        volume: Arc<Volume>,
        above: u64,
        options: &MountOptions,
        on_problem: ProblemSink,
    ) -> Self {
        // ENOSYS would apply to the files of all volumes
        let (ask_opens, ask_dir_opens) = (self.ask_opens, self.ask_dir_opens);
        Self { above, ask_opens, ask_dir_opens, ..Self::new(volume, options, on_problem) }
    }

    fn answer_to(&self, caller: &Caller, request: &Request<'_>, reply: &mut Reply<'_>) -> Answer<()> {
        let node = request.node;
        if self.only.is_some() && !self.is_permitted(caller, &request.operation) {
            return Err(Errno::ACCESS);
        }
        match request.operation {
            Operation::Lookup { name } => {
                let found = self.lookup(node, name)?;
                reply.entry(&found.map_or_else(|| nothing(self.name_timeout), |a| self.entry(&a)))
            }
            Operation::GetAttr => reply.attr(&self.attr(&self.getattr(node)?), self.attr_timeout),
            Operation::Access { mask } => self.access(node, mask),
            Operation::StatX => reply.statx(&self.statx(&self.getattr(node)?)),
            Operation::ReadLink => reply.bytes(&self.answer_for(node, |v, inode| v.read_link(inode))?),
            Operation::Open { flags } if self.ask_opens => self.open(node, OFlags::from_bits_retain(flags), reply),
            Operation::OpenDir if self.ask_dir_opens => reply.opened_dir(),
            Operation::Read { offset, size } => {
                reply.fill(size, |buf| {
                    self.answer_for(node, |v, inode| {
                        if let Some(holes) = &self.holes {
                            holes.read(v, inode, offset, buf.len() as u64);
                        }
                        v.read_at(inode, offset, buf)
                    })
                })?;
                self.record_read(node);
                Ok(())
            }
            Operation::ReadDir { cookie, size, plus } => {
                reply.limit(size);
                if plus { self.readdirplus(node, cookie, reply) } else { self.readdir(node, cookie, reply) }
            }
            Operation::StatFs => self.statfs(reply),
            Operation::GetXattr { name, size } => reply.value(size, &self.getxattr(node, (name, size), caller)?),
            Operation::ListXattr { size } => reply.value(size, &self.listxattr(node, caller.uid == 0)?),
            // dirty pages are data, too, and only the kernel knows them
            Operation::Seek { .. } if self.writeback => Err(Errno::NOSYS),
            Operation::Seek { offset, whence } => reply.number(self.seek(node, offset, whence)?),
            Operation::Ioctl { command, input, output } => self.ioctl(node, (command, input, output), caller, reply),
            Operation::SetAttr(ref changes) => self.set_attributes(node, changes, caller, reply),
            Operation::Symlink { name, target } => self.symlink(node, name, target, caller, reply),
            Operation::MkNod { name, mode, device, umask } => {
                let making = Making { dir: node, name: Some(name), mode, umask, device, open: None };
                self.make(&making, caller, reply)
            }
            Operation::MkDir { name, mode, umask } => {
                let mode = mode & 0o7777 | 0o040_000;
                let making = Making { dir: node, name: Some(name), mode, umask, device: 0, open: None };
                self.make(&making, caller, reply)
            }
            Operation::Create { name, mode, umask, flags } if self.ask_opens || name.is_none() => {
                let open = Some(OFlags::from_bits_retain(flags));
                let making = Making { dir: node, name, mode, umask, device: 0, open };
                self.make(&making, caller, reply)
            }
            Operation::Unlink { name } => self.remove(node, name, false),
            Operation::RmDir { name } => self.remove(node, name, true),
            Operation::Rename { name, to, new_name, flags } => self.rename((node, name), (to, new_name), flags),
            Operation::Link { target, name } => self.link(target, node, name, reply),
            Operation::Write { offset, data, paged: true, .. } if self.writeback => {
                let written =
                    self.write_page(node, offset, data).inspect_err(|e| self.refuse_page(*e, request, reply))?;
                // the number of blocks may have changed, which the kernel does not expect of this request
                reply.attributes_changed(node);
                reply.written(written)
            }
            Operation::Write { offset, data, kill_privileges, append, paged, direct, unordered, sync } => {
                // the kernel turns a short direct write into EIO
                let how =
                    WriteHow { append, in_any_order: unordered, pages: paged, whole: unordered, ..WriteHow::default() };
                let written = self.write(node, (offset, data), how, kill_privileges, caller);
                let written = written.inspect_err(|e| self.refuse_page(*e, request, reply))?;
                if written.dropped || written.at != offset {
                    reply.attributes_changed(node);
                }
                if direct {
                    // a cached page may end where the file ended
                    reply.content_changed(node, offset.min(written.at));
                } else if written.at != offset {
                    // the kernel has stored the data at another offset in its pages
                    reply.content_changed(node, offset.min(written.at));
                }
                if sync {
                    self.fsync(node, true)?;
                }
                // a request has at most 1 MiB
                reply.written(u32::try_from(written.bytes).unwrap_or(u32::MAX))
            }
            Operation::SetXattr { name, value, flags, kill_sgid } => {
                if self.set_xattr(node, (name, value), flags, kill_sgid)? {
                    reply.attributes_changed(node);
                }
                Ok(())
            }
            Operation::RemoveXattr { name } => {
                if self.remove_xattr(node, name)? {
                    reply.attributes_changed(node);
                }
                Ok(())
            }
            Operation::Fallocate { offset, length, mode } => {
                if self.allocate(node, offset, length, mode, caller)? {
                    reply.attributes_changed(node);
                }
                Ok(())
            }
            Operation::CopyFileRange { offset, target, target_offset, length, flags, long } => {
                if flags != 0 {
                    return Err(Errno::INVAL);
                }
                let (copied, dropped) = self.copy((node, offset), (target, target_offset), length, caller)?;
                if dropped {
                    reply.attributes_changed(target);
                }
                // no request copies more than 32 bits can express
                if long { reply.number(copied) } else { reply.written(copied as u32) }
            }
            Operation::Fsync { data, .. } | Operation::FsyncDir { data } => self.fsync(node, data),
            Operation::SyncFs => self.sync(),
            Operation::Destroy => self.finish().map_err(|_| Errno::IO),
            Operation::Release | Operation::ReleaseDir => Ok(()),
            Operation::Open { .. }
            | Operation::OpenDir
            | Operation::Create { .. }
            | Operation::Flush
            | Operation::Other => Err(Errno::NOSYS),
        }
    }

    /// Whether the caller may send a request: one about an open file is permitted to the user who opened it.
    fn is_permitted(&self, caller: &Caller, operation: &Operation<'_>) -> bool {
        let on_open_file = matches!(
            operation,
            Operation::Read { .. }
                | Operation::ReadDir { .. }
                | Operation::Write { .. }
                | Operation::Release
                | Operation::ReleaseDir
                | Operation::Flush
                | Operation::Fsync { .. }
                | Operation::FsyncDir { .. }
                | Operation::SyncFs
                | Operation::Destroy
        );
        on_open_file || caller.uid == 0 || self.only.is_none_or(|only| caller.uid == only)
    }

    /// Whether files can have extended attributes.
    fn has_xattrs(&self) -> bool {
        self.volume.superblock().features.compat.contains(Compat::EXT_ATTR)
    }

    /// The root as an entry for the kernel.
    pub(crate) fn root(&self) -> Answer<Entry> {
        Ok(self.entry(&self.getattr(self.above | ROOT)?))
    }

    /// Converts attributes to an entry for the kernel.
    fn entry(&self, a: &Attributes) -> Entry {
        let node = self.above | node_of(a.inode);
        // the kernel knows the root from the beginning, as generation 0
        let generation = if node == ROOT { 0 } else { a.generation.into() };
        Entry { node, generation, name_timeout: self.name_timeout, attr_timeout: self.attr_timeout, attr: self.attr(a) }
    }

    /// Converts attributes to the kernel's format, with the node's numbers.
    fn attr(&self, a: &Attributes) -> Attr {
        Attr { ino: self.ino(a.inode), blocks: self.blocks(a), ..attr(a) }
    }

    /// The size of a file in units of 512 bytes for stat(2): one block where it has none but the kernel may have dirty
    /// pages of it. tar(1) takes a file without blocks for a hole and does not read it.
    fn blocks(&self, a: &Attributes) -> u64 {
        let unknown = || self.holes.as_ref().map_or(self.writeback, |holes| holes.has(a.inode));
        if a.blocks == 0 && a.kind == FileKind::Regular && unknown() { u64::from(a.block_size / 512) } else { a.blocks }
    }

    /// The inode number for stat(2).
    fn ino(&self, inode: InodeNo) -> u64 {
        self.above | u64::from(inode.get())
    }

    /// The attributes of the file under a name in a directory; `None` where the name does not exist. "." works on any
    /// node, so that file handles of exported file systems can be resolved.
    fn lookup(&self, dir: u64, name: &[u8]) -> Answer<Option<Attributes>> {
        if name == b"." {
            // a file handle may be older than the volume's current state
            let number = self.number(dir)?;
            return self.with_lookup(number, |v| v.attributes_of(number)).map(Some).map_err(|_| Errno::STALE);
        }
        let found = self.answer_for(dir, |v, dir| match v.lookup(dir, name) {
            Ok(inode) => Ok(Some(inode)),
            Err(Error::NotFound) => Ok(None),
            Err(e) => Err(e),
        })?;
        match found {
            None => Ok(None),
            Some(InodeNo::ROOT) if name != b".." => {
                self.problems.report(dir, "an entry names the root directory");
                Err(Errno::UCLEAN)
            }
            Some(number) => {
                let found = self.with_lookup(number, |v| v.attributes_of(number));
                self.outcome(number, found.map(Some).map_err(Error::of_named))
            }
        }
    }

    /// Calls `work` with an inode, and increments its lookup count if that succeeds.
    fn with_lookup<T>(&self, number: InodeNo, work: impl FnOnce(&Volume) -> fs::Result<T>) -> fs::Result<T> {
        if number == InodeNo::ROOT || !self.volume.is_writable() {
            return work(&self.volume);
        }
        self.volume.add_lookup(number);
        let outcome = work(&self.volume);
        if outcome.is_err() {
            // the error of `work` is the relevant one
            let _ = self.volume.forget(number, 1);
        }
        outcome
    }

    fn getattr(&self, node: u64) -> Answer<Attributes> {
        let number = self.number(node)?;
        self.outcome(number, self.volume.attributes_of(number))
    }

    /// Whether root may use a file; only root's requests arrive here: see
    /// [`AttachOptions::kernel_checks`](fuse_wire::AttachOptions::kernel_checks). Root may do everything but execute a
    /// file that no user may execute.
    fn access(&self, node: u64, mask: u32) -> Answer<()> {
        // X_OK
        if mask & 1 == 0 {
            return Ok(());
        }
        let a = self.getattr(node)?;
        if a.kind == FileKind::Regular && a.mode & 0o111 == 0 { Err(Errno::ACCESS) } else { Ok(()) }
    }

    /// The attributes for statx(2): all of stat(2), the birth time where it is known, and the attribute bits.
    fn statx(&self, a: &Attributes) -> StatxOut {
        // STATX_BASIC_STATS and STATX_BTIME
        const BASIC: u32 = 0x7ff;
        const BTIME: u32 = 0x800;
        let time = |t: Timestamp| StatxTime { seconds: t.seconds, nanos: t.nanos, reserved: 0 };
        let (major, minor) = a.device.unwrap_or_default();
        StatxOut {
            valid: self.attr_timeout,
            mask: BASIC | if a.crtime.is_some() { BTIME } else { 0 },
            block_size: a.block_size,
            nlink: a.links.into(),
            uid: a.uid,
            gid: a.gid,
            mode: a.mode,
            ino: self.ino(a.inode),
            size: a.size,
            blocks: self.blocks(a),
            // the STATX_ATTR_ bits equal these flags
            attributes: u64::from((a.flags & shown_by_statx()).bits()),
            attributes_mask: u64::from(shown_by_statx().bits()),
            atime: time(a.atime),
            btime: a.crtime.map(time).unwrap_or_default(),
            ctime: time(a.ctime),
            mtime: time(a.mtime),
            rdev_major: major,
            rdev_minor: minor,
            ..StatxOut::default()
        }
    }

    fn statfs(&self, reply: &mut Reply<'_>) -> Answer<()> {
        let s = self.volume.statfs();
        reply.statfs(&StatFs {
            blocks: s.blocks,
            blocks_free: s.blocks_free,
            blocks_available: s.blocks_available,
            files: s.files,
            files_free: s.files_free,
            block_size: s.block_size,
            name_max: s.name_max,
            fragment_size: s.block_size,
            ..StatFs::default()
        })
    }

    /// The value of an extended attribute.
    fn getxattr(&self, node: u64, (name, size): (&[u8], u32), caller: &Caller) -> Answer<Vec<u8>> {
        if node == ROOT && lost_pages::is_sync(name) {
            self.damage.outcome().map_or_else(|| self.sync(), |how| how.map_err(|_| Errno::IO))?;
            return Ok(self.lost_pages.value(&self.volume, (name, size), caller));
        }
        if node == ROOT && name == DAEMON.as_bytes() {
            return Ok(std::process::id().to_string().into_bytes());
        }
        if node == ROOT && name == ACCESS.as_bytes() {
            return Ok(if self.volume.is_writable() { b"rw".to_vec() } else { b"ro".to_vec() });
        }
        let value = self.answer_for(node, |v, inode| v.get_xattr(inode, name))?;
        if name == CAPABILITY {
            self.record_capability(self.number(node)?);
        }
        Ok(value)
    }

    /// The names of a file's extended attributes, each followed by a zero byte. `trusted.` is included for privileged
    /// callers only.
    fn listxattr(&self, node: u64, privileged: bool) -> Answer<Vec<u8>> {
        let mut names = self.answer_for(node, |v, inode| v.list_xattrs(inode))?;
        names.retain(|name| privileged || !name.starts_with(b"trusted."));
        Ok(names.into_iter().flat_map(|name| name.into_iter().chain([0])).collect())
    }

    /// The first byte of data or of a hole at or after `offset`.
    fn seek(&self, node: u64, offset: u64, whence: u32) -> Answer<u64> {
        // SEEK_DATA and SEEK_HOLE; the kernel handles the others itself
        let data = match whence {
            3 => true,
            4 => false,
            _ => return Err(Errno::INVAL),
        };
        let found = self.answer_for(node, |v, inode| match (&self.holes, data) {
            (Some(holes), true) => holes.data(v, inode, offset),
            (Some(holes), false) => holes.hole(v, inode, offset),
            (None, true) => v.seek_data(inode, offset),
            (None, false) => v.seek_hole(inode, offset),
        });
        found?.ok_or(Errno::NXIO)
    }

    /// Calls `work` with a node's inode; reports damage.
    fn answer_for<T>(&self, node: u64, work: impl FnOnce(&Volume, &Arc<Inode>) -> fs::Result<T>) -> Answer<T> {
        let number = self.number(node)?;
        self.outcome(number, self.volume.inode(number).and_then(|inode| work(&self.volume, &inode)))
    }

    /// Converts an outcome to the answer to the kernel; damage is reported to the user.
    fn outcome<T>(&self, number: InodeNo, outcome: fs::Result<T>) -> Answer<T> {
        outcome.map_err(|e| {
            if is_problem(&e) {
                self.problems.report(number.get().into(), &e.to_string());
                if e.is_corruption() {
                    self.damage.record(&self.volume);
                }
            } else if matches!(e, Error::ReadOnly(_)) {
                self.problems.report_volume(&e.to_string());
            } else if matches!(e, Error::NoSpace) {
                self.problems.report_groups(self.volume.damaged_groups());
            }
            errno(&e)
        })
    }

    /// The inode of a node. Node numbers come from our answers, or from a file handle with any content.
    fn number(&self, node: u64) -> Answer<InodeNo> {
        let geometry = &self.volume.superblock().geometry;
        match u32::try_from(node ^ self.above) {
            Ok(1) => Ok(InodeNo::ROOT),
            Ok(n) if (geometry.first_inode..=geometry.inodes).contains(&n) => Ok(InodeNo(n)),
            _ => Err(Errno::STALE),
        }
    }
}

/// The flags that statx(2) has bits for.
fn shown_by_statx() -> InodeFlags {
    InodeFlags::COMPR
        | InodeFlags::IMMUTABLE
        | InodeFlags::APPEND
        | InodeFlags::NODUMP
        | InodeFlags::ENCRYPT
        | InodeFlags::VERITY
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_retain_their_bits() {
        for (major, minor) in [(1, 3), (8, 255), (259, 1), (4095, 70_000), (0xfff, 0xf_ffff)] {
            let coded = device(Some((major, minor)));
            assert_eq!(((coded >> 8) & 0xfff, (coded & 0xff) | ((coded >> 12) & 0xf_ff00)), (major, minor));
        }
    }
}
