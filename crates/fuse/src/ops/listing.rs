//! Directories listed, in parts.

use super::{Ops, nothing};
use fs::{Attributes, DirEntry, FileKind, InodeNo};
use fuse_wire::{Answer, Attr, Entry, Errno, Reply};

/// In a directory's cookie: a part before it could not be read. Directories are far smaller than this number.
const PASSED_DAMAGE: u64 = 1 << 62;

/// Inodes read in one batch for a listing with attributes: what a request has space for, more or less (an entry takes
/// 152 bytes and its name; a request has 4 KiB, or 32 KiB from kernels that hand on what the program asked for).
const AT_ONCE: usize = 64;

/// Entries of one answer for a directory in which names come and go. The kernel lets no process change a directory
/// while a part of its list is being fetched, and lets in one change between two parts, so a process that removes its
/// files beside a reader waits once for each. A part of this size takes about as long as the change itself.
const FEW: usize = 32;

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
                // listed, but looked up before anybody sees more of it than its name
                None => {
                    let mode = entry.kind.map_or(0, type_of) << 12;
                    Entry { attr: Attr { ino: self.ino(entry.inode), mode, ..Attr::default() }, ..nothing(0) }
                }
            };
            !reply.dirent_plus(&listed, next, &entry.name)
        })
    }

    /// Hands the entries of a directory from `cookie` on to `add`, each with the cookie of what follows it, until `add`
    /// says that there is no space.
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
    /// (looking the name up then reports why).
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
                        // of what is damaged, who asks for it hears
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
            // reported; what could be read is listed first
            Err(_) if any => Ok(()),
            Ok(()) if !any && passed != 0 => Err(Errno::IO),
            outcome => outcome,
        }
    }
}
