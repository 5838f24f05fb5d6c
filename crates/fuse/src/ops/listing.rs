//! Directory listings, answered in parts.

use super::{Ops, nothing};
use fs::{Attributes, DirEntry, FileKind, InodeNo};
use fuse_wire::{Answer, Attr, Entry, Errno, Reply};

/// A bit in the cookies of a directory: an earlier part could not be read. Directories are far smaller than this
/// number.
const PASSED_DAMAGE: u64 = 1 << 62;

/// The number of inodes read in one batch for a listing with attributes: roughly the number that fits into a request
/// (an entry takes 152 bytes and its name; a request has 4 KiB, or 32 KiB from kernels that pass on the size requested
/// by the program).
const AT_ONCE: usize = 64;

/// The maximum number of entries in one answer for a directory in which names are created and removed. The kernel lets
/// no process change a directory while a part of its listing is being read, and admits one change between two parts, so
/// a process that removes its files concurrently waits once for each part. A part of this size takes about as long as
/// the change itself.
const FEW: usize = 32;

/// The file type as in listings: that of a mode, shifted by 12 bits.
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

impl Ops {
    pub(super) fn readdir(&self, node: u64, cookie: u64, reply: &mut Reply<'_>) -> Answer<()> {
        self.each_entry(node, cookie, |entry, next| {
            let kind = entry.kind.map_or(0, type_of);
            !reply.dirent(self.ino(entry.inode), next, kind, &entry.name)
        })
    }

    pub(super) fn readdirplus(&self, node: u64, cookie: u64, reply: &mut Reply<'_>) -> Answer<()> {
        self.each_entry_with_attributes(node, cookie, |entry, next, attributes| {
            let listed = match attributes {
                Some(a) => {
                    let listed = reply.dirent_plus(&self.entry(a), next, &entry.name);
                    if listed && self.volume.is_writable() {
                        self.volume.add_lookup(a.inode);
                    }
                    return !listed;
                }
                // listed, but a lookup is necessary to get more than its name
                None => {
                    let mode = entry.kind.map_or(0, type_of) << 12;
                    Entry { attr: Attr { ino: self.ino(entry.inode), mode, ..Attr::default() }, ..nothing(0) }
                }
            };
            !reply.dirent_plus(&listed, next, &entry.name)
        })
    }

    /// Calls `add` with each entry of a directory from `cookie` on, and the cookie of the next entry, until `add`
    /// returns that there is no space.
    ///
    /// Where a part of the directory cannot be read, all other parts are listed, and the error is returned at the end:
    /// a program sees the readable entries, and that the listing is incomplete.
    fn each_entry(&self, node: u64, cookie: u64, mut add: impl FnMut(&DirEntry, u64) -> bool) -> Answer<()> {
        self.list(node, cookie, |listing| {
            for entry in listing {
                if add(&entry.0, entry.1) {
                    break;
                }
            }
        })
    }

    /// As [`Ops::each_entry`], with the attributes of each file; `None` for "." and "..", and where they cannot be read
    /// (a lookup of the name then reports why).
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
                        // damage is reported to the process that looks the file up
                        _ => self.volume.attributes_of(entry.inode).ok(),
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
            let mut left = if v.names_changed(dir.number) { FEW } else { usize::MAX };
            let mut entries = v.read_dir(dir, cookie & !PASSED_DAMAGE)?;
            take(&mut std::iter::from_fn(|| {
                while left > 0 {
                    match entries.next()? {
                        Ok(entry) => {
                            any = true;
                            left -= 1;
                            let next = entry.next | passed;
                            return Some((entry, next));
                        }
                        Err(e) => {
                            passed = PASSED_DAMAGE;
                            trouble.get_or_insert(e);
                        }
                    }
                }
                None
            }));
            trouble.map_or(Ok(()), Err)
        });
        match outcome {
            // reported; the readable part is listed first
            Err(_) if any => Ok(()),
            Ok(()) if !any && passed != 0 => Err(Errno::IO),
            outcome => outcome,
        }
    }
}
