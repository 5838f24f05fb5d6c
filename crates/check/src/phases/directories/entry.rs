//! The checks of one directory entry.

use super::{Dir, Entry, EntryRole, Names};
use crate::inode_records::{InodeRecord, Marks};
use crate::table::Code;
use format::InodeNo;
use format::dir::{DirEntry, DirFormat, decode_rec_len, entry_len};
use format::group::GroupFlags;
use format::inode::FileKind;
use std::sync::atomic::Ordering;

/// The shortest entry in bytes.
const MIN_REC_LEN: usize = 12;
/// The shortest encrypted name in bytes: one cipher block.
const MIN_ENCRYPTED: usize = 16;
/// The length of the entry ".", in bytes; ".." begins behind it.
pub(crate) const DOT_LEN: usize = 12;
/// Maximum length of the record of "." that has no space for another entry.
const DOT_REC_LEN: usize = DOT_LEN + MIN_REC_LEN;

/// Maximum number of stored problems that depend on attributes yet to be read.
const MAX_SUSPECTS: usize = 1 << 16;

/// The number of a file's type in its entries.
pub(super) fn file_type(kind: FileKind) -> u8 {
    match kind {
        FileKind::Regular => 1,
        FileKind::Directory => 2,
        FileKind::CharDevice => 3,
        FileKind::BlockDevice => 4,
        FileKind::Fifo => 5,
        FileKind::Socket => 6,
        FileKind::Symlink => 7,
    }
}

/// The stored length of the first entry of a directory's first block, where it is wrong: "." has 12 bytes by the format,
/// so an entry ".." at byte 12 is certain, and all entries after it with it. A length that leads to another ".." is
/// one of the valid lengths.
pub(crate) fn wrong_dot_len(part: &[u8], block_size: u32) -> Option<usize> {
    let len_at = |at: usize| {
        let [_, _, _, _, r0, r1, ..] = *part.get(at..)?.first_chunk::<{ DirEntry::SIZE }>()?;
        Some(decode_rec_len(u16::from_le_bytes([r0, r1]), block_size) as usize)
    };
    let is_dotdot = |at: usize| {
        let name = part.get(at + DirEntry::SIZE..at + DirEntry::SIZE + 2);
        let fits = |len: usize| len >= MIN_REC_LEN && len.is_multiple_of(4) && at + len <= part.len();
        len_at(at).is_some_and(fits) && part.get(at + 6) == Some(&2) && name == Some(b"..")
    };
    let stored = len_at(0)?;
    let other = stored >= MIN_REC_LEN && stored.is_multiple_of(4) && is_dotdot(stored);
    (stored != DOT_LEN && is_dotdot(DOT_LEN) && !other).then_some(stored)
}

/// The entry at `offset` of a part of a block; `None` where it does not fit there.
#[inline]
pub(super) fn parse<'b>(part: &'b [u8], offset: usize, format: &DirFormat, role: EntryRole) -> Option<Entry<'b>> {
    let rest = part.get(offset..)?;
    let [i0, i1, i2, i3, r0, r1, name_len, file_type] = *rest.first_chunk::<{ DirEntry::SIZE }>()?;
    let wrong_len = if role == EntryRole::Dot { wrong_dot_len(rest, format.block_size) } else { None };
    let rec_len = match wrong_len {
        Some(_) => DOT_LEN,
        None => decode_rec_len(u16::from_le_bytes([r0, r1]), format.block_size) as usize,
    };
    if rec_len < MIN_REC_LEN || !rec_len.is_multiple_of(4) || rec_len < entry_len(name_len, false) {
        return None;
    }
    let record = rest.get(..rec_len)?;
    let end = DirEntry::SIZE + usize::from(name_len);
    let name = record.get(DirEntry::SIZE..end)?;
    if format.hashed && role == EntryRole::Other && rec_len < entry_len(name_len, !is_dot(name)) {
        return None;
    }
    let inode = InodeNo(u32::from_le_bytes([i0, i1, i2, i3]));
    Some(Entry { inode, rec_len, wrong_len, name, file_type, terminator: record.get(end).copied() })
}

fn is_dot(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}

impl Names<'_> {
    /// Whether an entry may name this inode: the root, or one that is not reserved.
    #[inline]
    pub(super) fn may_name(&self, inode: InodeNo) -> bool {
        let volume = self.ctx.volume;
        let ordinary = volume.geometry.first_inode..=volume.geometry.inodes;
        (inode == InodeNo::ROOT || ordinary.contains(&inode.get())) && !volume.is_quota_or_orphan_file(inode)
    }

    /// Checks an entry and returns whether it counts as a name of its inode.
    #[inline]
    pub(super) fn check_entry(&self, dir: &Dir<'_>, entry: &Entry<'_>, role: EntryRole) -> bool {
        match role {
            EntryRole::Dot => self.check_dot(dir, entry),
            EntryRole::DotDot => self.check_dotdot(dir, entry),
            EntryRole::Other => {}
        }
        if entry.inode.get() == 0 {
            return false;
        }
        if !self.may_name(entry.inode) {
            self.report(dir, entry, Code::EntryInodeOutOfRange);
            return false;
        }
        // an entry that cannot be a subdirectory's does not set a parent
        let mut adopts = role == EntryRole::Other;
        if let Some(code) = self.misplaced(dir, entry, role) {
            self.report(dir, entry, code);
            adopts = false;
        }
        match self.ctx.inodes.get(entry.inode) {
            Some(target) => self.check_target(dir, entry, role, target, adopts),
            None => self.check_unused(dir, entry),
        }
        self.check_name(dir, entry, role);
        true
    }

    fn report(&self, dir: &Dir<'_>, entry: &Entry<'_>, code: Code) {
        self.ctx.report(dir.problem(code).inode(entry.inode).name(entry.name));
    }

    /// The problem of an entry after the first two that is invalid there.
    #[inline]
    pub(super) fn misplaced(&self, dir: &Dir<'_>, entry: &Entry<'_>, role: EntryRole) -> Option<Code> {
        if role != EntryRole::Other {
            return None;
        }
        match entry.name {
            b"." => Some(Code::DotDuplicate),
            b".." => Some(Code::DotDotDuplicate),
            _ if entry.inode == dir.inode => Some(Code::EntryLinksItself),
            _ if entry.inode == InodeNo::ROOT => Some(Code::EntryLinksRoot),
            b"" => Some(Code::EntryNameEmpty),
            _ => None,
        }
    }

    /// The first entry of block 0.
    fn check_dot(&self, dir: &Dir<'_>, entry: &Entry<'_>) {
        let problem = |code| dir.problem(code).inode(entry.inode).name(entry.name);
        if entry.inode.get() == 0 {
            self.ctx.report(problem(Code::DotMissing));
        } else if entry.name != b"." {
            self.ctx.report(problem(Code::FirstEntryNotDot));
        } else if entry.terminator.is_some_and(|b| b != 0) {
            self.ctx.report(problem(Code::DotNotTerminated));
        }
        if entry.inode != dir.inode && entry.inode.get() != 0 {
            self.ctx.report(problem(Code::DotInodeWrong).found(u64::from(entry.inode.get())));
        }
        if let Some(len) = entry.wrong_len {
            self.ctx.report(problem(Code::DotLengthWrong).found(len as u64));
        }
        if entry.rec_len > DOT_REC_LEN {
            self.ctx.report(problem(Code::DotEntryLarge).found(entry.rec_len as u64));
        }
    }

    /// The second entry of block 0.
    fn check_dotdot(&self, dir: &Dir<'_>, entry: &Entry<'_>) {
        let problem = |code| dir.problem(code).inode(entry.inode).name(entry.name);
        if entry.inode.get() == 0 {
            self.ctx.report(problem(Code::DotDotMissing));
        } else if entry.name != b".." {
            self.ctx.report(problem(Code::SecondEntryNotDotDot));
        } else if entry.terminator.is_some_and(|b| b != 0) {
            self.ctx.report(problem(Code::DotDotNotTerminated));
        } else {
            dir.record.set_dotdot(entry.inode);
        }
    }

    /// Checks the file type and the encryption policy of an entry against its inode.
    #[inline]
    fn check_target(&self, dir: &Dir<'_>, entry: &Entry<'_>, role: EntryRole, target: InodeRecord, adopts: bool) {
        let expected = target.kind.map_or(0, file_type);
        if !dir.format.dir.file_type {
            if entry.file_type != 0 {
                self.report_type(dir, entry, Code::EntryTypeWithoutFeature, expected);
            }
        } else if target.kind.is_some() && entry.file_type != expected {
            // without a valid mode, which is reported of the inode, no type is right
            let code = if entry.file_type == 0 { Code::EntryTypeMissing } else { Code::EntryTypeWrong };
            self.report_type(dir, entry, code, expected);
        }
        if role != EntryRole::Other {
            return;
        }
        if target.marks.contains(Marks::EA_INODE) {
            self.suspect(dir, entry, Code::EntryLinksXattrInode);
        }
        if dir.is_encrypted() && target.marks.contains(Marks::ENCRYPTED) {
            match self.ctx.policies.differ(dir.inode, entry.inode) {
                Some(false) => {}
                Some(true) => self.report(dir, entry, Code::EncryptionPolicyDiffers),
                // the context is in an attribute block still to be read
                None => self.suspect(dir, entry, Code::EncryptionPolicyDiffers),
            }
        }
        let encryptable = matches!(target.kind, Some(FileKind::Regular | FileKind::Directory | FileKind::Symlink));
        if dir.is_encrypted() && encryptable && !target.marks.contains(Marks::ENCRYPTED) {
            self.report(dir, entry, Code::EntryNotEncrypted);
        }
        if adopts && target.kind == Some(FileKind::Directory) {
            self.record_parent(dir, entry);
        }
    }

    /// Stores a possible problem that depends on attributes not read yet.
    #[cold]
    fn suspect(&self, dir: &Dir<'_>, entry: &Entry<'_>, code: Code) {
        let mut suspects = self.suspects.lock();
        if suspects.len() < MAX_SUSPECTS {
            suspects.push(dir.problem(code).inode(entry.inode).name(entry.name));
        }
    }

    fn report_type(&self, dir: &Dir<'_>, entry: &Entry<'_>, code: Code, expected: u8) {
        let problem = dir.problem(code).inode(entry.inode).name(entry.name);
        self.ctx.report(problem.found(u64::from(entry.file_type)).expected(u64::from(expected)));
    }

    /// Records the parent of a directory, or that another entry names it.
    fn record_parent(&self, dir: &Dir<'_>, entry: &Entry<'_>) {
        if dir.inode == InodeNo::ROOT && entry.name == b"lost+found" {
            self.lost_and_found.store(true, Ordering::Relaxed);
        }
        let Some(child) = self.directories.get(entry.inode) else { return };
        if !child.set_parent(dir.inode) {
            self.rivals.lock().add(child, dir.inode);
        }
    }

    /// Reports an entry whose inode is not in use, or in a part of the table that its group marks as unused.
    #[cold]
    fn check_unused(&self, dir: &Dir<'_>, entry: &Entry<'_>) {
        // most inodes outside a sample appear to be unused
        if self.ctx.problems.is_closed() {
            return;
        }
        let volume = self.ctx.volume;
        let mut problem = dir.problem(Code::EntryInodeUnused);
        if let Some(slot) = volume.geometry.inode_slot(entry.inode)
            && volume.used_inodes.get(slot.group.get() as usize).is_some_and(|used| slot.index >= *used)
            && let Some(group) = volume.group(slot.group)
        {
            let uninit = group.flags.contains(GroupFlags::INODE_UNINIT);
            problem.code = if uninit { Code::EntryInodeGroupUninit } else { Code::EntryInodeInUnusedPart };
            problem = problem.group(slot.group);
        }
        self.ctx.report(problem.inode(entry.inode).name(entry.name));
    }

    /// The bytes of the name.
    #[inline]
    fn check_name(&self, dir: &Dir<'_>, entry: &Entry<'_>, role: EntryRole) {
        if dir.is_encrypted() {
            // any bytes, but at least one cipher block
            if role == EntryRole::Other && entry.name.len() < MIN_ENCRYPTED {
                self.report(dir, entry, Code::EntryEncryptedNameTooShort);
            }
            return;
        }
        if entry.name.iter().fold(false, |bad, b| bad | matches!(b, 0 | b'/')) {
            self.report(dir, entry, Code::EntryNameIllegal);
        }
        if self.strict && dir.is_folded() && role == EntryRole::Other && std::str::from_utf8(entry.name).is_err() {
            self.report(dir, entry, Code::EntryNameBadEncoding);
        }
    }
}
