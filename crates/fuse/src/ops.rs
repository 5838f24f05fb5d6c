//! What each request of the kernel means on a volume, whatever carries the requests.
//!
//! A *node* is the kernel's name for a file: the inode number, except that FUSE calls the root 1 where ext calls it 2.
//! Number 1 (the list of bad blocks) is never named by a directory, so nothing else needs the place. The kernel shows the
//! inode number of the attributes, so stat(2) says 2 for the root.
//!
//! What the kernel is allowed to keep is decided here:
//!
//! - names, also those that do not exist, attributes, link targets and content: as long as it likes, for nobody else
//!   changes the volume, and the kernel knows what each of its own requests changes;
//! - OPEN and OPENDIR are answered once with ENOSYS: the kernel then sends neither them nor FLUSH, RELEASE and RELEASEDIR
//!   again, and keeps pages and listings across openings. Not where single files may be unreadable (encryption), where
//!   each user has to be judged (allow_root), or with auto_unmount.
//!
//! 1. Nothing is kept for an open file. A directory is read by cookies, a file by offsets, so open and release mean
//!    nothing; a file without a name lives until the kernel forgets it.
//! 2. A damaged file is an error for that file, told once.

use crate::errno::{errno, is_problem};
use crate::options::{Access, MountOptions};
use crate::problems::{Problems, Teller};
use crate::protocol::{self as wire, Attr, Features};
use crate::reply::{Answer, Entry, Reply};
use crate::request::{Caller, Operation, Request};
use crate::transport::Filesystem;
use format::feature::{Compat, Incompat};
use fs::{Attributes, DirEntry, Error, FileKind, Inode, InodeFlags, InodeNo, Timestamp, Volume};
use rustix::io::Errno;
use std::sync::Arc;

/// The root, as FUSE numbers it.
pub(crate) const ROOT: u64 = 1;

/// An attribute of the root that is not on the volume: the process that serves it, in decimal. Its name is in no
/// namespace that ext4 knows, so it can hide none, and no list shows it.
pub(crate) const DAEMON: &str = "extant.daemon";

/// "As long as it likes": ten years, in seconds.
const ALWAYS: u64 = 10 * 365 * 24 * 3600;

/// In a directory's cookie: a part before it could not be read. Directories are far smaller than this number.
const PASSED_DAMAGE: u64 = 1 << 62;

/// Inodes read in one batch for a listing with attributes: what a request has room for, more or less (an entry takes
/// 152 bytes and its name; a request has 4 KiB, or 32 KiB from kernels that hand on what the program asked for).
const AT_ONCE: usize = 64;

/// FS_IOC_GETFLAGS, which lsattr(1) uses.
const GET_FLAGS: u32 = 0x8008_6601;

/// A mounted volume.
pub(crate) struct Ops {
    volume: Arc<Volume>,
    problems: Problems,
    /// Besides root, the only user whose requests are answered.
    only: Option<u32>,
    /// Whether the kernel checks permissions.
    kernel_checks: bool,
    /// Whether the kernel has to ask before each opening.
    ask_opens: bool,
    /// For how many seconds the kernel may keep names and attributes.
    keep: u64,
}

/// The node of an inode.
pub(crate) fn node_of(inode: InodeNo) -> u64 {
    if inode == InodeNo::ROOT { ROOT } else { u64::from(inode.get()) }
}

/// The type as a listing has it: that of a mode, shifted by 12 bits.
fn type_of(kind: FileKind) -> u32 {
    match kind {
        FileKind::Fifo => 1,
        FileKind::CharDevice => 2,
        FileKind::Directory => 4,
        FileKind::BlockDevice => 6,
        FileKind::Regular => 8,
        FileKind::Symlink => 10,
        FileKind::Socket => 12,
    }
}

/// A device's numbers in the 32 bits that FUSE has for them: 12 of the major, 20 of the minor.
fn device(numbers: Option<(u32, u32)>) -> u32 {
    numbers.map_or(0, |(major, minor)| (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & 0xf_ff00) << 12))
}

/// As the kernel takes them.
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

/// The kernel learns from this that there is no such name, and may keep that too.
fn nothing(keep: u64) -> Entry {
    Entry { node: 0, generation: 0, keep_name: keep, keep_attr: 0, attr: Attr::default() }
}

impl Filesystem for Ops {
    fn features(&self) -> Features {
        let mut wanted = Features::EXPORT_SUPPORT
            | Features::HAS_IOCTL_DIR
            | Features::DO_READDIRPLUS
            | Features::READDIRPLUS_AUTO
            | Features::PARALLEL_DIROPS
            | Features::ASYNC_DIO
            | Features::CACHE_SYMLINKS
            | Features::EXPLICIT_INVAL_DATA;
        // with access control lists the kernel takes it upon itself to check all permissions
        wanted.set(Features::POSIX_ACL, self.kernel_checks && self.has_xattrs());
        let no_opens = Features::NO_OPEN_SUPPORT | Features::NO_OPENDIR_SUPPORT;
        wanted.set(no_opens, !self.ask_opens);
        wanted
    }

    fn answer(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> Answer<()> {
        let node = request.node;
        if self.only.is_some() && !self.may_ask(&request.caller, &request.operation) {
            return Err(Errno::ACCESS);
        }
        match request.operation {
            Operation::Lookup { name } => {
                let found = self.lookup(node, name)?;
                reply.entry(&found.map_or_else(|| nothing(self.keep), |a| self.entry(&a)))
            }
            Operation::GetAttr => reply.attr(&attr(&self.getattr(node)?), self.keep),
            Operation::StatX => reply.statx(&self.statx(&self.getattr(node)?)),
            Operation::ReadLink => reply.bytes(&self.answer_for(node, |v, inode| v.read_link(inode))?),
            Operation::Open { .. } if self.ask_opens => {
                self.answer_for(node, |v, inode| v.readable(inode))?;
                reply.opened()
            }
            Operation::OpenDir if self.ask_opens => reply.opened_dir(),
            Operation::Read { offset, size } => {
                reply.fill(size, |buf| self.answer_for(node, |v, inode| v.read_at(inode, offset, buf)))
            }
            Operation::ReadDir { cookie, size, plus } => {
                reply.limit(size);
                if plus { self.readdirplus(node, cookie, reply) } else { self.readdir(node, cookie, reply) }
            }
            Operation::StatFs => self.statfs(reply),
            Operation::GetXattr { name, size } => reply.value(size, &self.getxattr(node, name)?),
            Operation::ListXattr { size } => reply.value(size, &self.listxattr(node, request.caller.uid == 0)?),
            Operation::Seek { offset, whence } => reply.number(self.seek(node, offset, whence)?),
            Operation::Ioctl { command: GET_FLAGS, output: 4.., .. } => {
                // EXT4_FL_USER_VISIBLE: the others are the file system's own
                const VISIBLE: u32 = 0x725B_DFFF;
                let flags = self.answer_for(node, |v, inode| Ok(v.attributes(inode).flags.bits() & VISIBLE))?;
                reply.ioctl(zerocopy::IntoBytes::as_bytes(&flags))
            }
            Operation::Ioctl { .. } => Err(Errno::NOTTY),
            Operation::Release | Operation::ReleaseDir | Operation::Destroy => Ok(()),
            Operation::Fsync { .. } | Operation::FsyncDir { .. } | Operation::SyncFs => Ok(()),
            Operation::SetAttr(_)
            | Operation::Symlink { .. }
            | Operation::MkNod { .. }
            | Operation::MkDir { .. }
            | Operation::Unlink { .. }
            | Operation::RmDir { .. }
            | Operation::Rename { .. }
            | Operation::Link { .. }
            | Operation::Create { .. }
            | Operation::Write { .. }
            | Operation::SetXattr { .. }
            | Operation::RemoveXattr { .. }
            | Operation::Fallocate { .. }
            | Operation::CopyFileRange { .. } => Err(Errno::ROFS),
            Operation::Open { .. } | Operation::OpenDir | Operation::Flush | Operation::Other => Err(Errno::NOSYS),
        }
    }

    fn forget(&self, _: u64, _: u64) {}

    fn panicked(&self, node: u64, what: &str) {
        self.problems.tell(node, &format!("an error in Extant itself: {what}"));
    }
}

impl Ops {
    pub(crate) fn new(volume: Arc<Volume>, options: &MountOptions, teller: Teller) -> Self {
        // without allow_other the kernel itself lets only the owner in
        let only = (options.access == Access::OwnerAndRoot).then(|| rustix::process::getuid().as_raw());
        // where some files cannot be opened (encrypted, no key), or not by everybody; and the helper that unmounts for a
        // process that was killed knows by the answer to an opening that it is dead
        let encrypted = volume.superblock().features.incompat.contains(Incompat::ENCRYPT);
        let ask_opens = encrypted || only.is_some() || options.auto_unmount;
        let keep = if only.is_some() { 0 } else { ALWAYS };
        let kernel_checks = options.kernel_checks();
        Self { volume, problems: Problems::new(teller), only, kernel_checks, ask_opens, keep }
    }

    /// Whether a request is answered: those on open files belong to whoever opened them.
    fn may_ask(&self, caller: &Caller, operation: &Operation<'_>) -> bool {
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

    /// Whether files may have attributes at all.
    fn has_xattrs(&self) -> bool {
        self.volume.superblock().features.compat.contains(Compat::EXT_ATTR)
    }

    /// A file as the kernel is told of it.
    fn entry(&self, a: &Attributes) -> Entry {
        let node = node_of(a.inode);
        // the kernel has the root from the beginning, as generation 0
        let generation = if node == ROOT { 0 } else { a.generation.into() };
        Entry { node, generation, keep_name: self.keep, keep_attr: self.keep, attr: attr(a) }
    }

    /// The attributes of what a directory names; `None` where it does not have the name. "." works on any node, so that
    /// file handles of exported file systems can be turned back into files.
    fn lookup(&self, dir: u64, name: &[u8]) -> Answer<Option<Attributes>> {
        if name == b"." {
            // a handle may be older than the volume's present state
            return self.quietly(dir, |v, inode| Ok(v.attributes(inode))).map(Some).map_err(|_| Errno::STALE);
        }
        let found = self.answer_for(dir, |v, dir| match v.lookup(dir, name) {
            Ok(inode) => Ok(Some(inode)),
            Err(Error::NotFound) => Ok(None),
            Err(e) => Err(e),
        })?;
        match found {
            None => Ok(None),
            Some(InodeNo::ROOT) if name != b".." => {
                self.problems.tell(dir, "an entry names the root directory");
                Err(Errno::UCLEAN)
            }
            Some(inode) => self.getattr(node_of(inode)).map(Some),
        }
    }

    fn getattr(&self, node: u64) -> Answer<Attributes> {
        self.answer_for(node, |v, inode| Ok(v.attributes(inode)))
    }

    /// What statx(2) shows: all of stat(2), the time of creation where it is known, and the attribute bits.
    fn statx(&self, a: &Attributes) -> wire::StatxOut {
        // STATX_BASIC_STATS and STATX_BTIME
        const BASIC: u32 = 0x7ff;
        const BTIME: u32 = 0x800;
        let time = |t: Timestamp| wire::StatxTime { seconds: t.seconds, nanos: t.nanos, reserved: 0 };
        let (major, minor) = a.device.unwrap_or_default();
        wire::StatxOut {
            valid: self.keep,
            mask: BASIC | if a.crtime.is_some() { BTIME } else { 0 },
            block_size: a.block_size,
            nlink: a.links.into(),
            uid: a.uid,
            gid: a.gid,
            mode: a.mode,
            ino: a.inode.get().into(),
            size: a.size,
            blocks: a.blocks,
            // STATX_ATTR_ has the numbers of these flags
            attributes: u64::from((a.flags & shown_by_statx()).bits()),
            attributes_mask: u64::from(shown_by_statx().bits()),
            atime: time(a.atime),
            btime: a.crtime.map(time).unwrap_or_default(),
            ctime: time(a.ctime),
            mtime: time(a.mtime),
            rdev_major: major,
            rdev_minor: minor,
            ..wire::StatxOut::default()
        }
    }

    fn readdir(&self, node: u64, cookie: u64, reply: &mut Reply<'_>) -> Answer<()> {
        self.each_entry(node, cookie, |entry, next| {
            let kind = entry.kind.map_or(0, type_of);
            !reply.dirent(entry.inode.get().into(), next, kind, &entry.name)
        })
    }

    fn readdirplus(&self, node: u64, cookie: u64, reply: &mut Reply<'_>) -> Answer<()> {
        self.each_entry_with_attributes(node, cookie, |entry, next, attributes| {
            let listed = match attributes {
                Some(a) => self.entry(a),
                // listed, but looked up before anybody sees more of it than its name
                None => {
                    let mode = entry.kind.map_or(0, type_of) << 12;
                    Entry { attr: Attr { ino: entry.inode.get().into(), mode, ..Attr::default() }, ..nothing(0) }
                }
            };
            !reply.dirent_plus(&listed, next, &entry.name)
        })
    }

    /// Hands the entries of a directory from `cookie` on to `add`, each with the cookie of what follows it, until `add`
    /// says that there is no room.
    ///
    /// Where a part of the directory cannot be read, all others are listed, and the error comes at the end, in place of
    /// the answer that there are no more: a program sees what there is, and that it is not all.
    fn each_entry(&self, node: u64, cookie: u64, mut add: impl FnMut(&DirEntry, u64) -> bool) -> Answer<()> {
        self.list(node, cookie, |listing| {
            for entry in listing {
                if add(&entry.0, entry.1) {
                    break;
                }
            }
        })
    }

    /// As [`Ops::each_entry`], with the attributes of each file; `None` for "." and "..", and where they cannot be had
    /// (looking the name up then tells why).
    fn each_entry_with_attributes(
        &self,
        node: u64,
        cookie: u64,
        mut add: impl FnMut(&DirEntry, u64, Option<&Attributes>) -> bool,
    ) -> Answer<()> {
        self.list(node, cookie, |listing| {
            loop {
                let entries: Vec<_> = (&mut *listing).take(AT_ONCE).collect();
                if entries.is_empty() {
                    return;
                }
                self.volume.prefetch_inodes(entries.iter().map(|(entry, _)| entry.inode));
                for (entry, next) in &entries {
                    let attributes = match &entry.name[..] {
                        b"." | b".." => None,
                        _ if entry.inode == InodeNo::ROOT => None,
                        _ => self.quietly(node_of(entry.inode), |v, inode| Ok(v.attributes(inode))).ok(),
                    };
                    if add(entry, *next, attributes.as_ref()) {
                        return;
                    }
                }
            }
        })
    }

    fn list(&self, node: u64, cookie: u64, take: impl FnOnce(&mut dyn Iterator<Item = (DirEntry, u64)>)) -> Answer<()> {
        let mut passed = cookie & PASSED_DAMAGE;
        let mut any = false;
        let outcome = self.answer_for(node, |v, dir| {
            let mut trouble = None;
            let mut entries = v.read_dir(dir, cookie & !PASSED_DAMAGE)?;
            take(&mut std::iter::from_fn(|| {
                loop {
                    match entries.next()? {
                        Ok(entry) => {
                            any = true;
                            let next = entry.next | passed;
                            return Some((entry, next));
                        }
                        Err(e) => {
                            passed = PASSED_DAMAGE;
                            trouble.get_or_insert(e);
                        }
                    }
                }
            }));
            trouble.map_or(Ok(()), Err)
        });
        match outcome {
            // told; what could be read is listed first
            Err(_) if any => Ok(()),
            Ok(()) if !any && passed != 0 => Err(Errno::IO),
            outcome => outcome,
        }
    }

    fn statfs(&self, reply: &mut Reply<'_>) -> Answer<()> {
        let s = self.volume.statfs();
        reply.statfs(&wire::StatFs {
            blocks: s.blocks,
            blocks_free: s.blocks_free,
            blocks_available: s.blocks_available,
            files: s.files,
            files_free: s.files_free,
            block_size: s.block_size,
            name_max: s.name_max,
            fragment_size: s.block_size,
            ..wire::StatFs::default()
        })
    }

    /// The value of an attribute.
    fn getxattr(&self, node: u64, name: &[u8]) -> Answer<Vec<u8>> {
        if node == ROOT && name == DAEMON.as_bytes() {
            return Ok(std::process::id().to_string().into_bytes());
        }
        self.answer_for(node, |v, inode| v.get_xattr(inode, name))
    }

    /// The names of a file's attributes, each followed by a zero byte. `trusted.` is for the privileged alone.
    fn listxattr(&self, node: u64, privileged: bool) -> Answer<Vec<u8>> {
        let mut names = self.answer_for(node, |v, inode| v.list_xattrs(inode))?;
        names.retain(|name| privileged || !name.starts_with(b"trusted."));
        Ok(names.into_iter().flat_map(|name| name.into_iter().chain([0])).collect())
    }

    /// The first byte of data or of a hole at or after `offset`.
    fn seek(&self, node: u64, offset: u64, whence: u32) -> Answer<u64> {
        // SEEK_DATA and SEEK_HOLE; the kernel does the others itself
        let found = match whence {
            3 => self.answer_for(node, |v, inode| v.seek_data(inode, offset)),
            4 => self.answer_for(node, |v, inode| v.seek_hole(inode, offset)),
            _ => return Err(Errno::INVAL),
        };
        found?.ok_or(Errno::NXIO)
    }

    /// Does something with a node's inode; tells of damage.
    fn answer_for<T>(&self, node: u64, work: impl FnOnce(&Volume, &Arc<Inode>) -> fs::Result<T>) -> Answer<T> {
        let number = self.number(node)?;
        let outcome = self.volume.inode(number).and_then(|inode| work(&self.volume, &inode));
        outcome.map_err(|e| {
            if is_problem(&e) {
                self.problems.tell(number.get().into(), &e.to_string());
            }
            errno(&e)
        })
    }

    /// As [`Ops::answer_for`], where damage is for another request to tell.
    fn quietly<T>(&self, node: u64, work: impl FnOnce(&Volume, &Arc<Inode>) -> fs::Result<T>) -> Answer<T> {
        let number = self.number(node)?;
        self.volume.inode(number).and_then(|inode| work(&self.volume, &inode)).map_err(|e| errno(&e))
    }

    /// The inode of a node. The kernel has nodes from our answers, or from a file handle that may say anything.
    fn number(&self, node: u64) -> Answer<InodeNo> {
        let geometry = &self.volume.superblock().geometry;
        match u32::try_from(node) {
            Ok(1) => Ok(InodeNo::ROOT),
            Ok(n) if (geometry.first_inode..=geometry.inodes).contains(&n) => Ok(InodeNo(n)),
            _ => Err(Errno::STALE),
        }
    }
}

/// The flags that statx(2) knows.
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
    fn device_numbers_keep_their_bits() {
        for (major, minor) in [(1, 3), (8, 255), (259, 1), (4095, 70_000), (0xfff, 0xf_ffff)] {
            let coded = device(Some((major, minor)));
            assert_eq!(((coded >> 8) & 0xfff, (coded & 0xff) | ((coded >> 12) & 0xf_ff00)), (major, minor));
        }
    }
}
