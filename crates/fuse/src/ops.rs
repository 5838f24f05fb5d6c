//! What each request of the kernel means on a volume, whatever carries the requests.
//!
//! A *node* is the kernel's name for a file: the inode number, except that FUSE calls the root 1 where ext calls it 2.
//! Number 1 (the list of bad blocks) is never named by a directory, so nothing else needs the place. The kernel shows the
//! inode number of the attributes, so stat(2) says 2 for the root.
//!
//! 1. Every call returns: a panic inside is caught, told and answered with EIO.
//! 2. Nothing is kept between requests. A directory is read by cookies, a file by offsets, so open and release mean
//!    nothing, and a node is good as long as the volume is.

use crate::errno::{errno, is_problem};
use crate::problems::{Problems, Teller};
use format::feature::{Compat, Incompat};
use fs::{Attributes, DirEntry, Error, Inode, InodeNo, StatFs, Volume};
use rustix::io::Errno;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The root, as FUSE numbers it.
pub(crate) const ROOT: u64 = 1;

/// An attribute of the root that is not on the volume: the process that serves it, in decimal. Its name is in no
/// namespace that ext4 knows, so it can hide none, and no list shows it.
pub(crate) const DAEMON: &str = "extant.daemon";

/// In a directory's cookie: a part before it could not be read. Directories are far smaller than this number.
const PASSED_DAMAGE: u64 = 1 << 62;

/// Inodes read in one batch for a listing with attributes: what a request has room for, more or less (an entry takes
/// 152 bytes and its name; a request has 4 KiB, or 32 KiB from kernels that hand on what the program asked for).
const AT_ONCE: usize = 64;

/// The answer to a request, or the number that says why there is none.
pub(crate) type Answer<T> = Result<T, Errno>;

/// A mounted volume.
pub(crate) struct Ops {
    volume: Arc<Volume>,
    problems: Problems,
}

/// The node of an inode.
pub(crate) fn node_of(inode: InodeNo) -> u64 {
    if inode == InodeNo::ROOT { ROOT } else { u64::from(inode.get()) }
}

impl Ops {
    pub(crate) fn new(volume: Arc<Volume>, teller: Teller) -> Self {
        Self { volume, problems: Problems::new(teller) }
    }

    /// Whether files have to be opened one by one: where some cannot be (encrypted, no key). Else the kernel need not
    /// ask.
    pub(crate) fn checks_opens(&self) -> bool {
        self.volume.superblock().features.incompat.contains(Incompat::ENCRYPT)
    }

    /// Whether files may have attributes at all.
    pub(crate) fn has_xattrs(&self) -> bool {
        self.volume.superblock().features.compat.contains(Compat::EXT_ATTR)
    }

    /// The attributes of what a directory names; `None` where it does not have the name. "." works on any node, so that
    /// file handles of exported file systems can be turned back into files.
    pub(crate) fn lookup(&self, dir: u64, name: &[u8]) -> Answer<Option<Attributes>> {
        if name == b"." {
            // a handle may be older than the volume's present state
            return self.quietly(dir, |v, inode| Ok(v.attributes(inode))).map(Some).map_err(|_| Errno::STALE);
        }
        let found = self.answer(dir, |v, dir| match v.lookup(dir, name) {
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

    pub(crate) fn getattr(&self, node: u64) -> Answer<Attributes> {
        self.answer(node, |v, inode| Ok(v.attributes(inode)))
    }

    pub(crate) fn readlink(&self, node: u64) -> Answer<Vec<u8>> {
        self.answer(node, |v, inode| v.read_link(inode))
    }

    /// Whether a file can be read: see [`Ops::checks_opens`].
    pub(crate) fn open(&self, node: u64) -> Answer<()> {
        self.answer(node, |v, inode| v.readable(inode))
    }

    /// Fills `buf` from `offset` on, and says how much of it: less than all where the file ends.
    pub(crate) fn read(&self, node: u64, offset: u64, buf: &mut [u8]) -> Answer<usize> {
        self.answer(node, |v, inode| v.read_at(inode, offset, buf))
    }

    /// Hands the entries of a directory from `cookie` on to `add`, each with the cookie of what follows it, until `add`
    /// says that there is no room.
    ///
    /// Where a part of the directory cannot be read, all others are listed, and the error comes at the end, in place of
    /// the answer that there are no more: a program sees what there is, and that it is not all.
    pub(crate) fn readdir(&self, node: u64, cookie: u64, mut add: impl FnMut(&DirEntry, u64) -> bool) -> Answer<()> {
        self.list(node, cookie, |listing| {
            for entry in listing {
                if add(&entry.0, entry.1) {
                    break;
                }
            }
        })
    }

    /// As [`Ops::readdir`], with the attributes of each file; `None` for "." and "..", and where they cannot be had
    /// (looking the name up then tells why).
    pub(crate) fn readdirplus(
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
        let outcome = self.answer(node, |v, dir| {
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

    pub(crate) fn statfs(&self) -> Answer<StatFs> {
        self.answer(ROOT, |v, _| Ok(v.statfs()))
    }

    /// The value of an attribute.
    pub(crate) fn getxattr(&self, node: u64, name: &[u8]) -> Answer<Vec<u8>> {
        if node == ROOT && name == DAEMON.as_bytes() {
            return Ok(std::process::id().to_string().into_bytes());
        }
        self.answer(node, |v, inode| v.get_xattr(inode, name))
    }

    /// The names of a file's attributes, each followed by a zero byte. `trusted.` is for the privileged alone.
    pub(crate) fn listxattr(&self, node: u64, privileged: bool) -> Answer<Vec<u8>> {
        let mut names = self.answer(node, |v, inode| v.list_xattrs(inode))?;
        names.retain(|name| privileged || !name.starts_with(b"trusted."));
        Ok(names.into_iter().flat_map(|name| name.into_iter().chain([0])).collect())
    }

    /// The first byte of data (else: of a hole) at or after `offset`.
    pub(crate) fn seek(&self, node: u64, offset: u64, data: bool) -> Answer<u64> {
        let found =
            self.answer(node, |v, inode| if data { v.seek_data(inode, offset) } else { v.seek_hole(inode, offset) })?;
        found.ok_or(Errno::NXIO)
    }

    /// The flags that lsattr(1) shows.
    pub(crate) fn flags(&self, node: u64) -> Answer<u32> {
        // EXT4_FL_USER_VISIBLE: the others are the file system's own
        const VISIBLE: u32 = 0x725B_DFFF;
        self.answer(node, |v, inode| Ok(v.attributes(inode).flags.bits() & VISIBLE))
    }

    /// Does something with a node's inode; tells of damage.
    fn answer<T>(&self, node: u64, work: impl FnOnce(&Volume, &Arc<Inode>) -> fs::Result<T>) -> Answer<T> {
        self.guarded(node, true, work)
    }

    /// As [`Ops::answer`], where damage is for another request to tell.
    fn quietly<T>(&self, node: u64, work: impl FnOnce(&Volume, &Arc<Inode>) -> fs::Result<T>) -> Answer<T> {
        self.guarded(node, false, work)
    }

    fn guarded<T>(&self, node: u64, tell: bool, work: impl FnOnce(&Volume, &Arc<Inode>) -> fs::Result<T>) -> Answer<T> {
        let number = self.number(node)?;
        let shown = u64::from(number.get());
        // nothing of a request outlives it, and what the volume shares (its caches) is never left half changed
        let outcome = catch_unwind(AssertUnwindSafe(|| work(&self.volume, &self.volume.inode(number)?)));
        match outcome {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(e)) => {
                if tell && is_problem(&e) {
                    self.problems.tell(shown, &e.to_string());
                }
                Err(errno(&e))
            }
            Err(panic) => {
                self.problems.tell(shown, &format!("an error in Extant itself: {}", text_of(&*panic)));
                Err(Errno::IO)
            }
        }
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

fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic without words")
}
