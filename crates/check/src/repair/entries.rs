//! Directory entries: repair of chains, and checks of single entries.

use super::renames::Named;
use super::work::Work;
use crate::inode_records::{Marks, kind_number};
use crate::phases::directories::entry::{DOT_LEN, wrong_dot_len};
use blockdev::Result;
use format::dir::{self, DirEntry, EntryHash, decode_rec_len, encode_rec_len};
use format::feature::Incompat;
use format::hash::NameHash;
use format::inode::{FileKind, InodeFlags};
use format::{InodeNo, casefold};
use std::collections::HashSet;
use zerocopy::FromBytes;

/// The shortest entry in bytes.
const SHORTEST: usize = 12;
/// The shortest encrypted name in bytes.
const SHORTEST_ENCRYPTED: usize = 16;

/// The location of an entry in its block.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spot {
    pub(super) at: usize,
    pub(super) rec_len: usize,
    pub(super) name_len: usize,
    pub(super) inode: u32,
}

/// The head of the entry at `at`, whether or not it is valid.
fn head(bytes: &[u8], at: usize, block_size: u32) -> Option<Spot> {
    let (head, _) = DirEntry::ref_from_prefix(bytes.get(at..)?).ok()?;
    let rec_len = decode_rec_len(head.rec_len.get(), block_size) as usize;
    Some(Spot { at, rec_len, name_len: usize::from(head.name_len), inode: head.inode.get() })
}

pub(super) fn set_rec_len(bytes: &mut [u8], at: usize, rec_len: usize, block_size: u32) {
    if let (Some(raw), Some(field)) =
        (u32::try_from(rec_len).ok().and_then(|n| encode_rec_len(n, block_size)), bytes.get_mut(at + 4..at + 6))
    {
        field.copy_from_slice(&raw.to_le_bytes());
    }
}

pub(super) fn set_inode(bytes: &mut [u8], at: usize, inode: InodeNo) {
    if let Some(field) = bytes.get_mut(at..at + 4) {
        field.copy_from_slice(&inode.get().to_le_bytes());
    }
}

fn set_byte(bytes: &mut [u8], at: usize, value: u8) {
    if let Some(byte) = bytes.get_mut(at) {
        *byte = value;
    }
}

/// Corrects the length of "." in the first block of a directory, where it is wrong.
pub(super) fn correct_dot(bytes: &mut [u8], block_size: u32) {
    if wrong_dot_len(bytes, block_size).is_some() {
        set_rec_len(bytes, 0, DOT_LEN, block_size);
    }
}

/// Repairs the chain of entries that fills `bytes`: an invalid part is removed, or becomes part of the entry before it.
/// An entry that is valid except that it ends beyond the chain becomes the last one, as in e2fsck. `inodes` is the
/// number of inodes of the volume.
pub(super) fn salvage(bytes: &mut [u8], block_size: u32, inodes: u32) {
    let mut before: Option<usize> = None;
    let mut at = 0;
    while at < bytes.len() {
        let left = bytes.len() - at;
        let entry = head(bytes, at, block_size).unwrap_or(Spot { at, rec_len: 0, name_len: 0, inode: 0 });
        let rec_len = entry.rec_len;
        let placed = rec_len >= SHORTEST && rec_len.is_multiple_of(4) && rec_len <= left;
        if placed {
            if entry.name_len + DirEntry::SIZE > rec_len {
                set_byte(bytes, at + 6, (rec_len - DirEntry::SIZE).min(dir::NAME_MAX) as u8);
            }
            before = Some(at);
            at += rec_len;
            continue;
        }
        let name = bytes.get(at + DirEntry::SIZE..).and_then(|rest| rest.get(..entry.name_len)).unwrap_or_default();
        let named = !name.is_empty() && !name.contains(&0) && (1..=inodes).contains(&entry.inode);
        if named && rec_len > left && left >= SHORTEST {
            set_rec_len(bytes, at, left, block_size);
            return;
        }
        let absorbed = if rec_len != 0 && rec_len.is_multiple_of(4) && rec_len <= left && before.is_some() {
            rec_len
        } else {
            left
        };
        match before {
            Some(last) => set_rec_len(bytes, last, at + absorbed - last, block_size),
            None if left >= SHORTEST => {
                if let Some(space) = bytes.get_mut(at..at + DirEntry::SIZE) {
                    space.fill(0);
                }
                set_rec_len(bytes, at, left, block_size);
                return;
            }
            None => return,
        }
        at += absorbed;
    }
}

/// The entries of a valid chain.
pub(super) fn spots(bytes: &[u8], block_size: u32) -> Vec<Spot> {
    let mut all = Vec::new();
    let mut at = 0;
    while let Some(entry) = head(bytes, at, block_size) {
        if entry.rec_len < SHORTEST {
            break;
        }
        all.push(entry);
        at += entry.rec_len;
    }
    all
}

/// Whether these bytes are a complete chain of entries that begins with one in use.
fn is_whole(bytes: &[u8], block_size: u32) -> bool {
    let all = spots(bytes, block_size);
    let fits = |spot: &Spot| spot.rec_len.is_multiple_of(4) && spot.name_len + DirEntry::SIZE <= spot.rec_len;
    let ends = all.last().is_some_and(|last| last.at + last.rec_len == bytes.len());
    ends && all.iter().all(fits) && all.first().is_some_and(|first| first.inode != 0 && first.name_len > 0)
}

/// All entries in use in a part of a directory, as far as they can be read; `hashed` where they have hashes.
pub(super) fn all(work: &Work<'_>, part: &[u8], hashed: bool) -> Vec<Named> {
    let geometry = &work.volume().geometry;
    let block_size = geometry.block_size;
    let mut bytes = part.to_vec();
    salvage(&mut bytes, block_size, geometry.inodes);
    let name_end = |spot: &Spot| spot.at + DirEntry::SIZE + spot.name_len;
    let named = spots(&bytes, block_size).into_iter().filter(|spot| spot.inode != 0 && spot.name_len > 0);
    named
        .filter_map(|spot| {
            let name = bytes.get(spot.at + DirEntry::SIZE..name_end(&spot))?.to_vec();
            let behind = spot.at + DirEntry::SIZE + spot.name_len.next_multiple_of(4);
            let stored = bytes.get(behind..spot.at + spot.rec_len).and_then(|b| EntryHash::ref_from_prefix(b).ok());
            let hash =
                stored.filter(|_| hashed).map(|(h, _)| NameHash { hash: h.hash.get(), minor: h.minor_hash.get() });
            let file_type = bytes.get(spot.at + 7).copied().unwrap_or(0);
            Some(Named { inode: InodeNo(spot.inode), name, file_type, hash })
        })
        .collect()
}

/// The verdict on an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    Retain { file_type: u8 },
    Rename { name: Vec<u8>, file_type: u8 },
    Clear,
}

/// Checks the entries of one directory in their order.
pub(super) struct EntryCheck<'a, 'w> {
    work: &'a Work<'w>,
    dir: InodeNo,
    flags: InodeFlags,
    /// Directories that already have an entry.
    adopted: HashSet<InodeNo>,
}

impl<'a, 'w> EntryCheck<'a, 'w> {
    pub(super) fn new(work: &'a Work<'w>, dir: InodeNo) -> Result<Self> {
        let flags = work.inode(dir)?.map_or(InodeFlags::empty(), |inode| inode.raw().flags());
        Ok(Self { work, dir, flags, adopted: HashSet::new() })
    }

    /// The number of a file's type in its entries, where the volume has them.
    pub(super) fn file_type(&self, inode: InodeNo) -> u8 {
        let kind = self.work.walk().and_then(|walk| walk.ctx.inodes.get(inode)).and_then(|record| record.kind);
        if self.work.volume().features.incompat.contains(Incompat::FILETYPE) { kind_number(kind) } else { 0 }
    }

    /// Checks an entry that is neither of the first two.
    pub(super) fn check(&mut self, inode: InodeNo, name: &[u8]) -> Verdict {
        let volume = self.work.volume();
        let Some(walk) = self.work.walk() else { return Verdict::Retain { file_type: 0 } };
        let ordinary = (volume.geometry.first_inode..=volume.geometry.inodes).contains(&inode.get());
        if !ordinary || volume.is_quota_or_orphan_file(inode) || inode == self.dir || matches!(name, b"" | b"." | b"..")
        {
            return Verdict::Clear;
        }
        let Some(target) = walk.ctx.inodes.get(inode) else { return Verdict::Clear };
        if target.kind == Some(FileKind::Directory) {
            let parent = walk.directories.get(inode).and_then(|d| d.parent());
            if parent.is_some_and(|parent| parent != self.dir) || !self.adopted.insert(inode) {
                return Verdict::Clear;
            }
        }
        if target.marks.contains(Marks::EA_INODE | Marks::VALUE) {
            return Verdict::Clear;
        }
        let file_type = self.file_type(inode);
        let incompat = volume.features.incompat;
        if self.flags.contains(InodeFlags::ENCRYPT) && incompat.contains(Incompat::ENCRYPT) {
            let encryptable = matches!(target.kind, Some(FileKind::Regular | FileKind::Directory | FileKind::Symlink));
            let plain = encryptable && !target.marks.contains(Marks::ENCRYPTED);
            let foreign =
                target.marks.contains(Marks::ENCRYPTED) && walk.ctx.policies.differ(self.dir, inode) == Some(true);
            if name.len() < SHORTEST_ENCRYPTED || plain || foreign {
                return Verdict::Clear;
            }
            return Verdict::Retain { file_type };
        }
        let mut repaired: Vec<u8> = name.iter().map(|b| if matches!(b, 0 | b'/') { b'.' } else { *b }).collect();
        let strict = volume.disk.s_encoding_flags.get() & casefold::FLAG_STRICT != 0;
        if self.flags.contains(InodeFlags::CASEFOLD) && incompat.contains(Incompat::CASEFOLD) && strict {
            repaired = repaired
                .utf8_chunks()
                .flat_map(|chunk| {
                    chunk.valid().bytes().chain(std::iter::repeat_n(b'.', chunk.invalid().len())).collect::<Vec<_>>()
                })
                .collect();
        }
        if repaired == name {
            Verdict::Retain { file_type }
        } else if matches!(repaired.as_slice(), b"." | b"..") {
            // a name of two dots would be the parent
            Verdict::Clear
        } else {
            Verdict::Rename { name: repaired, file_type }
        }
    }
}

/// Applies a verdict to the entry at a location; a new name is as long as the old one. Returns whether the name
/// changed.
pub(super) fn put(bytes: &mut [u8], spot: &Spot, verdict: &Verdict) -> bool {
    match verdict {
        Verdict::Clear => set_inode(bytes, spot.at, InodeNo(0)),
        Verdict::Retain { file_type } => set_byte(bytes, spot.at + 7, *file_type),
        Verdict::Rename { name, file_type } => {
            set_byte(bytes, spot.at + 7, *file_type);
            let start = spot.at + DirEntry::SIZE;
            if let Some(space) = bytes.get_mut(start..start + name.len()) {
                space.copy_from_slice(name);
            }
            return true;
        }
    }
    false
}

/// Makes the first two entries of a directory's first block `.` and `..`, whatever they were. `bytes` is a valid chain;
/// `parent` is the target of `..` where the entry there is unusable.
pub(super) fn repair_dots(bytes: &mut [u8], block_size: u32, dir: InodeNo, parent: Option<InodeNo>, file_type: u8) {
    let Some(first) = head(bytes, 0, block_size) else { return };
    // a record for "." alone, the rest for the entries after it
    if first.rec_len >= SHORTEST * 2 && (first.rec_len > SHORTEST * 2 || spots(bytes, block_size).len() < 2) {
        let rest = first.rec_len - SHORTEST;
        set_rec_len(bytes, 0, SHORTEST, block_size);
        let follows = bytes.get(SHORTEST..first.rec_len).unwrap_or_default();
        if is_whole(follows, block_size) {
            // only the record was too large: its space contains the entries after it
        } else {
            if let Some(space) = bytes.get_mut(SHORTEST..SHORTEST + DirEntry::SIZE) {
                space.fill(0);
            }
            set_rec_len(bytes, SHORTEST, rest, block_size);
        }
    }
    put_dot(bytes, 0, b".", dir, file_type);
    let Some(second) = head(bytes, 0, block_size).map(|first| first.rec_len) else { return };
    let name = bytes.get(second + DirEntry::SIZE..second + DirEntry::SIZE + 2).map(<[u8]>::to_vec);
    let Some(stands) = head(bytes, second, block_size) else { return };
    let usable = stands.name_len == 2 && name.as_deref() == Some(b"..") && stands.inode != 0;
    let target = parent.unwrap_or(if usable { InodeNo(stands.inode) } else { InodeNo::ROOT });
    put_dot(bytes, second, b"..", target, file_type);
}

fn put_dot(bytes: &mut [u8], at: usize, name: &[u8], inode: InodeNo, file_type: u8) {
    set_inode(bytes, at, inode);
    set_byte(bytes, at + 6, name.len() as u8);
    set_byte(bytes, at + 7, file_type);
    // the name, and zeros to the end of the shortest entry
    if let Some(space) = bytes.get_mut(at + DirEntry::SIZE..at + SHORTEST) {
        space.fill(0);
        for (to, from) in space.iter_mut().zip(name) {
            *to = *from;
        }
    }
}
