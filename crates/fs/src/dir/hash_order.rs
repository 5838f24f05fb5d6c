//! Listing of a directory in the order of its names' hashes.
//!
//! The cookie of a name: 31 bits of its hash, 20 of the minor hash, and 11 that number the names with all these bits
//! equal, in the order of their bytes. "." has 0 and ".." has 1. So a cookie stays valid when other names are added or
//! removed and blocks split; only if names with the same hash are added or removed, one of them may be returned twice
//! or not at all.

use super::{DirEntry, ReadDir, kind_of};
use crate::error::OfInode;
use crate::inline_data::is_inline;
use crate::{Directories, FileKind, Inode, InodeFlags, InodeNo, Result};
use format::FileBlock;
use format::dir::{DirFormat, Entries, Entry, dot_entries};
use format::hash::{CONTINUES, HashVersion, Hasher, NameHash};

/// The cookies of "." and "..", and the lowest cookie of a name.
const DOT: u64 = 0;
const DOT_DOT: u64 = 1;
const NAMES: u64 = 2;

const ORDINAL_BITS: u32 = 11;
const MINOR_BITS: u32 = 20;

/// Maximum number of leaves with names of one hash that are sorted together. More would have more names of one hash
/// than cookies can distinguish.
const MOST_LEAVES: usize = 256;

fn cookie(hash: NameHash) -> u64 {
    let (major, minor) = (u64::from(hash.hash >> 1), u64::from(hash.minor >> (32 - MINOR_BITS)));
    (major << MINOR_BITS | minor) << ORDINAL_BITS
}

/// The lowest hash of names with this cookie or a later one.
fn hash_of(cookie: u64) -> u32 {
    let major = cookie.saturating_sub(NAMES) >> (MINOR_BITS + ORDINAL_BITS);
    u32::try_from(major << 1).unwrap_or(!CONTINUES)
}

/// A name with its position in the order.
struct Named {
    cookie: u64,
    /// The name on the device, if a different form is returned.
    raw: Option<Vec<u8>>,
    entry: DirEntry,
}

impl Named {
    fn key(&self) -> (u64, &[u8]) {
        (self.cookie, self.raw.as_ref().unwrap_or(&self.entry.name))
    }
}

/// Names collected for sorting.
struct Names {
    list: Vec<Named>,
    /// Names before this cookie were already listed. All names with an equal hash are needed, as they are numbered.
    first: u64,
}

impl Directories {
    /// Whether cookies of a directory are hashes.
    pub(super) fn lists_by_hash(&self, dir: &Inode) -> bool {
        let small = is_inline(dir) || dir.size == u64::from(self.sb.geometry.block_size);
        self.writing.is_some()
            && (self.is_indexed(dir) || small && self.version_of_new_trees().is_some())
            && (self.dir_format(dir).hashed || self.order_of(dir).is_some())
    }

    /// The hash function of a directory; `None` if it is unknown or needs a key.
    fn order_of(&self, dir: &Inode) -> Option<Hasher> {
        let version = if self.is_indexed(dir) {
            self.tree(dir).ok()?.hash_version
        } else {
            HashVersion::from_raw(self.sb.disk.s_def_hash_version)?
        };
        self.hasher(version)
    }
}

impl ReadDir<'_> {
    /// Queues the names of the next leaf with the cookie `from` or later. Returns the cookie to continue from.
    pub(super) fn take_hashed(&mut self, from: u64) -> Option<u64> {
        let dir = std::sync::Arc::clone(&self.dir);
        self.hasher = self.volume.order_of(&dir);
        if from < NAMES {
            self.take_dots(from);
        }
        let from = from.max(NAMES);
        let mut names = Names { list: Vec::new(), first: (from - NAMES) >> ORDINAL_BITS << ORDINAL_BITS };
        let next = if self.volume.is_indexed(&dir) {
            self.leaves(&dir, from, &mut names)
        } else {
            self.whole(&dir, &mut names);
            None
        };
        let mut names = names.list;
        names.sort_by(|a, b| a.key().cmp(&b.key()));
        let (mut last, mut ordinal) = (u64::MAX, 0);
        for mut named in names {
            ordinal = if named.cookie == last { (ordinal + 1).min((1 << ORDINAL_BITS) - 1) } else { 0 };
            last = named.cookie;
            let own = NAMES + named.cookie + ordinal;
            if own >= from {
                named.entry.next = own + 1;
                self.ready.push_back(Ok(named.entry));
            }
        }
        next
    }

    fn take_dots(&mut self, from: u64) {
        let own = self.dir.number;
        let parent = self.volume.parent_of(&self.dir);
        if from == DOT {
            self.ready.push_back(Ok(dot(own, b".", DOT_DOT)));
        }
        self.ready.push_back(parent.map(|parent| dot(parent, b"..", NAMES)));
    }

    /// The names of a directory without a tree.
    fn whole(&mut self, dir: &Inode, names: &mut Names) {
        let format = self.volume.dir_format(dir);
        if is_inline(dir) {
            match self.volume.inline_dir(dir) {
                Ok(inline) => self.collect(dir, inline.entries(), format, names),
                Err(e) => self.ready.push_back(Err(e)),
            }
            return;
        }
        match self.volume.dir_block(dir, FileBlock(0)) {
            Ok(block) => self.collect(dir, Entries::new(&block, format), format, names),
            Err(e) => self.ready.push_back(Err(e)),
        }
    }

    /// Collects the names of the leaf for a cookie, and of the leaves that continue its last hash. Unreadable blocks
    /// yield an error and are skipped.
    fn leaves(&mut self, dir: &Inode, from: u64, names: &mut Names) -> Option<u64> {
        let volume = self.volume;
        let format = volume.dir_format(dir);
        let mut path = match volume.tree(dir) {
            Ok(path) => path,
            Err(e) => {
                self.ready.push_back(Err(e));
                return None;
            }
        };
        let mut leaf = path.go_to(hash_of(from)).map(Some);
        for _ in 0..MOST_LEAVES {
            match leaf.and_then(|leaf| leaf.map(|leaf| volume.dir_block(dir, leaf)).transpose()) {
                Ok(Some(block)) => self.collect(dir, Entries::new(&block, format), format, names),
                Ok(None) => return None,
                Err(e) => self.ready.push_back(Err(e)),
            }
            match path.next_hash() {
                Ok(Some(next)) if next & CONTINUES != 0 => leaf = path.advance(),
                // a tree whose hashes do not ascend must not cause an endless loop
                Ok(Some(next)) => {
                    return Some(NAMES + cookie(NameHash { hash: next, minor: 0 })).filter(|next| *next > from);
                }
                Ok(None) => return None,
                Err(e) => {
                    self.ready.push_back(Err(e));
                    return None;
                }
            }
        }
        match path.next_hash() {
            Ok(Some(next)) => Some(NAMES + cookie(NameHash { hash: next, minor: 0 })).filter(|next| *next > from),
            _ => None,
        }
    }

    fn collect<'e>(
        &mut self,
        dir: &Inode,
        entries: impl Iterator<Item = format::Result<Entry<'e>>>,
        format: DirFormat,
        names: &mut Names,
    ) {
        let encrypted = dir.raw().flags().contains(InodeFlags::ENCRYPT);
        for entry in entries {
            let e = match entry.of(dir.number) {
                Ok(e) => e,
                Err(e) => {
                    self.ready.push_back(Err(e));
                    continue;
                }
            };
            if !e.is_used() || e.is_dot() {
                continue;
            }
            let hash = match (e.hash, &self.hasher) {
                (Some(hash), _) => hash,
                (None, Some(hasher)) if encrypted => hasher.hash(e.name),
                (None, Some(hasher)) => self.volume.hash_of(dir, hasher, e.name),
                (None, None) => NameHash::default(),
            };
            let cookie = cookie(hash);
            if cookie < names.first {
                continue;
            }
            let entry = DirEntry { inode: e.inode, name: self.shown(&e), kind: e.kind(&format).map(kind_of), next: 0 };
            names.list.push(Named { cookie, raw: encrypted.then(|| e.name.to_vec()), entry });
        }
    }
}

fn dot(inode: InodeNo, name: &[u8], next: u64) -> DirEntry {
    DirEntry { inode, name: name.to_vec(), kind: Some(FileKind::Directory), next }
}

impl Directories {
    /// The inode that ".." refers to in a directory.
    pub(crate) fn parent_of(&self, dir: &Inode) -> Result<InodeNo> {
        if is_inline(dir) {
            return Ok(self.inline_dir(dir)?.parent);
        }
        let block = self.dir_block(dir, FileBlock(0))?;
        Ok(dot_entries(&block, self.dir_format(dir)).of(dir.number)?.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_are_in_the_order_of_hashes_and_lead_back_to_them() {
        let most = NameHash { hash: 0xFFFF_FFFC, minor: u32::MAX };
        assert!(NAMES + cookie(most) + (1 << ORDINAL_BITS) < 1 << 62);
        for hash in [0, 2, 0x1234_5678, 0xFFFF_FFFC] {
            let own = NAMES + cookie(NameHash { hash, minor: 0 });
            assert_eq!((hash_of(own), hash_of(own + (1 << 31) - 1)), (hash, hash));
            assert!(own > NAMES + cookie(NameHash { hash: hash.saturating_sub(2), minor: u32::MAX }) || hash == 0);
        }
        assert_eq!(hash_of(u64::MAX), u32::MAX - 1);
    }
}
