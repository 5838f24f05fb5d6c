//! Phase 2: the blocks of directories and their entries.
//!
//! The order of calls, all after every inode is known:
//! 1. [`Names::check_block`], [`check_inline`](Names::check_inline) and [`check_hole`](Names::check_hole) for every
//!    block of every directory, in any order, on any threads.
//! 2. [`Names::again`] with the locations of all directory blocks returns the blocks to read a second time, usually
//!    none. [`Names::check_again`] for each of these blocks, in any order, on any threads.
//! 3. [`Names::finish`], once all attributes were checked too. Then the parents and `..` of all directories are known,
//!    and the names of all inodes are counted.
//!
//! Invariants
//! 1. Nothing is repaired, so each entry is checked as it is on the device: an entry with a problem still counts as a
//!    name of its inode, unless the inode number is impossible.
//! 2. The chain of entries of a block is followed as far as it is valid; bytes after an invalid entry are not
//!    interpreted.
//! 3. The results do not depend on the order in which blocks arrive. Where two entries name one directory, the parent
//!    is chosen at the end: the one that `..` names, else the first by directory, block and position.

pub(crate) mod entry;
pub(crate) mod hash_tree;
mod parents;
mod seen;

use crate::context::Context;
use crate::inode_records::{Directories, Directory, Marks};
use crate::phases::directories::hash_tree::{HashRange, HashTrees, HtreeBlock, hash_of, index_format};
use crate::problem::Problem;
use crate::scan::found::DirRun;
use crate::scan::{Item, REQUEST};
use crate::table::Code;
use format::dir::{ChecksumState, DirFormat, LeafTail, OwnedDirTail};
use format::feature::Incompat;
use format::hash::Hasher;
use format::htree::IndexFormat;
use format::inode::FileKind;
use format::native::map::BlockKind;
use format::{FileBlock, FsBlock, InodeNo, casefold};
use parents::{ParentEntry, Rivals};
use parking_lot::Mutex;
use seen::Seen;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::AtomicBool;

/// The first four bytes of an inline directory: the inode that `..` names.
const INLINE_PARENT: usize = 4;

/// Checks the entries of all directories.
pub(crate) struct Names<'a> {
    ctx: &'a Context<'a>,
    directories: &'a Directories,
    /// The format of all directories except those that are both casefolded and encrypted.
    index_format: IndexFormat,
    /// The tail of leaf blocks.
    leaf_tail: LeafTail,
    /// Whether names in casefolded directories have to be valid in the volume's encoding.
    strict: bool,
    trees: HashTrees<'a>,
    rivals: Mutex<Rivals>,
    lost_and_found: AtomicBool,
    /// Possible problems that depend on attributes not read yet.
    suspects: Mutex<Vec<Problem>>,
    /// Directories with another hash function than the superblock's, known once all blocks were read.
    foreign: BTreeMap<InodeNo, Hasher>,
    /// Leaves that share a hash with another leaf, with these hashes; known once all blocks were read.
    borders: BTreeMap<(InodeNo, u32), Vec<u32>>,
    at_borders: Mutex<AtBorders>,
}

/// Entries whose hash occurs in another leaf too, by directory and name.
type AtBorders = BTreeMap<(InodeNo, Vec<u8>), BTreeSet<AtBorder>>;

/// One such entry: the leaf, the inode, and the name as stored.
type AtBorder = (u32, InodeNo, Vec<u8>);

/// The directory whose block is being checked.
struct Dir<'a> {
    record: &'a Directory,
    inode: InodeNo,
    marks: Marks,
    format: IndexFormat,
    file_block: u32,
}

impl Dir<'_> {
    fn problem(&self, code: Code) -> Problem {
        Problem::new(code).dir(self.inode).file_block(FileBlock(u64::from(self.file_block)))
    }

    fn is_encrypted(&self) -> bool {
        self.marks.contains(Marks::ENCRYPTED)
    }

    fn is_folded(&self) -> bool {
        self.marks.contains(Marks::CASEFOLD)
    }
}

/// One entry with its bytes as stored.
#[derive(Clone, Copy)]
struct Entry<'b> {
    inode: InodeNo,
    rec_len: usize,
    /// The stored length where it is wrong and [`rec_len`](Self::rec_len) is not that.
    wrong_len: Option<usize>,
    name: &'b [u8],
    file_type: u8,
    /// The byte after the name, where the entry has one.
    terminator: Option<u8>,
}

/// The role of an entry in its directory: the first two are special.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EntryRole {
    Dot,
    DotDot,
    Other,
}

impl EntryRole {
    fn next(self) -> Self {
        match self {
            Self::Dot => Self::DotDot,
            Self::DotDot | Self::Other => Self::Other,
        }
    }
}

impl<'a> Names<'a> {
    /// Empty records for the directories of a volume.
    pub(crate) fn new(ctx: &'a Context<'a>, directories: &'a Directories) -> Self {
        let volume = ctx.volume;
        let incompat = volume.features.incompat;
        let format = DirFormat {
            block_size: volume.geometry.block_size,
            file_type: incompat.contains(Incompat::FILETYPE),
            hashed: false,
        };
        let encoding_flags = volume.disk.s_encoding_flags.get();
        Self {
            ctx,
            directories,
            index_format: index_format(ctx, format),
            leaf_tail: volume.geometry.leaf_tail(),
            strict: incompat.contains(Incompat::CASEFOLD) && encoding_flags & casefold::FLAG_STRICT != 0,
            trees: HashTrees::new(ctx),
            rivals: Mutex::default(),
            lost_and_found: AtomicBool::new(false),
            suspects: Mutex::default(),
            foreign: BTreeMap::new(),
            borders: BTreeMap::new(),
            at_borders: Mutex::default(),
        }
    }

    fn dir(&self, inode: InodeNo, file_block: u32) -> Option<Dir<'a>> {
        let record = self.directories.get(inode)?;
        let mut marks = self.ctx.inodes.get(inode)?.marks;
        let incompat = self.ctx.volume.features.incompat;
        for (feature, mark) in [(Incompat::CASEFOLD, Marks::CASEFOLD), (Incompat::ENCRYPT, Marks::ENCRYPTED)] {
            // without the feature the flag means nothing
            if !incompat.contains(feature) {
                marks.remove(mark);
            }
        }
        let mut format = self.index_format;
        format.dir.hashed = marks.contains(Marks::ENCRYPTED | Marks::CASEFOLD);
        Some(Dir { record, inode, marks, format, file_block })
    }

    /// Checks a block of a directory.
    pub(crate) fn check_block(
        &self,
        dir: InodeNo,
        file_block: u32,
        block: FsBlock,
        bytes: Result<&[u8], &blockdev::Error>,
    ) {
        let Some(dir) = self.dir(dir, file_block) else { return };
        let indexed = dir.marks.contains(Marks::INDEX);
        let Ok(bytes) = bytes else {
            self.ctx.report(dir.problem(Code::DirectoryBlockUnreadable).block(block));
            if indexed && file_block != 0 {
                self.trees.leaf(dir.inode, file_block, HashRange::EMPTY);
            }
            return;
        };
        let htree_block = if indexed { HtreeBlock::of(bytes, file_block, &dir.format) } else { HtreeBlock::Leaf };
        let leaf = htree_block == HtreeBlock::Leaf;
        let kind = if leaf { BlockKind::Directory } else { BlockKind::DirectoryIndex };
        self.ctx.identify(block, kind, &[dir.inode]);
        let tail = if leaf && self.leaf_tail.ends(bytes) { self.leaf_tail.size() } else { 0 };
        let mut seen = Some(Seen::new(bytes.len(), dir.is_folded()));
        let hasher = self.trees.hasher().filter(|_| leaf && indexed && !dir.format.dir.hashed);
        let first = if file_block == 0 { EntryRole::Dot } else { EntryRole::Other };
        let mut range = HashRange::EMPTY;
        let end = self.check_chain(&dir, bytes, 0..bytes.len() - tail, first, &mut seen, |name| {
            if let Some(hasher) = hasher {
                range.add(hasher, name, dir.is_folded());
            }
        });
        if !leaf {
            self.trees.index_block(dir.record, file_block, htree_block, bytes, &dir.format);
            return;
        }
        if indexed {
            self.trees.leaf(dir.inode, file_block, range);
        }
        if dir.format.checksums {
            self.check_checksum(&dir, block, bytes, end);
        }
    }

    fn check_checksum(&self, dir: &Dir<'_>, block: FsBlock, bytes: &[u8], end: Option<usize>) {
        // a tail with another block's number is not this block's
        let foreign = self.leaf_tail == LeafTail::Owned
            && OwnedDirTail::of(bytes)
                .is_some_and(|tail| (tail.dt_owner.get(), tail.dt_block.get()) != (dir.inode.get(), dir.file_block));
        let state = if end == Some(bytes.len()) || foreign {
            ChecksumState::Missing
        } else {
            self.leaf_tail.check(bytes, dir.record.seed)
        };
        match state {
            ChecksumState::Good => {}
            ChecksumState::Missing => {
                self.ctx.report(dir.problem(Code::DirectoryChecksumTailMissing).block(block));
            }
            ChecksumState::Bad { stored, computed } if end.is_some() => self.ctx.report(
                dir.problem(Code::DirectoryBlockChecksumWrong)
                    .block(block)
                    .found(u64::from(stored))
                    .expected(u64::from(computed)),
            ),
            // the block was already reported as damaged
            ChecksumState::Bad { .. } => {}
        }
    }

    /// Checks an inline directory: `i_block`, and the value of the attribute `system.data`.
    pub(crate) fn check_inline(&self, dir: InodeNo, i_block: &[u8; 60], system_data: &[u8]) {
        let Some(dir) = self.dir(dir, 0) else { return };
        let [a, b, c, d, ..] = i_block;
        let parent = InodeNo(u32::from_le_bytes([*a, *b, *c, *d]));
        let file_type = if dir.format.dir.file_type { entry::file_type(FileKind::Directory) } else { 0 };
        // "." and ".." are not stored, but count as if they were
        let implied = |inode, name| Entry { inode, rec_len: 12, wrong_len: None, name, file_type, terminator: None };
        for (entry, role) in [(implied(dir.inode, b"."), EntryRole::Dot), (implied(parent, b".."), EntryRole::DotDot)] {
            if self.check_entry(&dir, &entry, role) {
                self.ctx.inodes.count_name(entry.inode);
            }
        }
        // two chains, but the names of one directory
        let all = [i_block, system_data].concat();
        let mut seen = Some(Seen::new(all.len(), dir.is_folded()));
        self.check_chain(&dir, i_block, INLINE_PARENT..i_block.len(), EntryRole::Other, &mut seen, |_| ());
        self.check_chain(&dir, &all, i_block.len()..all.len(), EntryRole::Other, &mut seen, |_| ());
    }

    /// Reports a block that a directory should have but does not map.
    pub(crate) fn check_hole(&self, dir: InodeNo, file_block: u32) {
        if let Some(dir) = self.dir(dir, file_block) {
            self.ctx.report(dir.problem(Code::DirectoryHole));
        }
    }

    /// Walks the chain of entries in `range` of a block or an inline directory and checks each. `seen` are the names so
    /// far, until a duplicate is found; `named` is called with each name. Returns the end of the chain; `None` where it
    /// is broken.
    fn check_chain(
        &self,
        dir: &Dir<'_>,
        bytes: &[u8],
        range: Range<usize>,
        first: EntryRole,
        seen: &mut Option<Seen>,
        mut named: impl FnMut(&[u8]),
    ) -> Option<usize> {
        let mut chain = bytes.get(..range.end)?;
        let mut role = first;
        let mut offset = range.start;
        while offset < chain.len() {
            let mut entry = entry::parse(chain, offset, &dir.format.dir, role);
            if entry.is_none() {
                // the apparent tail may be part of an entry
                chain = bytes;
                entry = entry::parse(chain, offset, &dir.format.dir, role);
            }
            let Some(entry) = entry else {
                self.ctx.report(dir.problem(Code::DirectoryBlockCorrupt).found(offset as u64));
                return None;
            };
            if self.check_entry(dir, &entry, role) {
                named(entry.name);
                if let Some(names) = seen
                    && !names.insert(chain, offset, entry.name)
                {
                    self.ctx.report(dir.problem(Code::EntryDuplicate).inode(entry.inode).name(entry.name));
                    // one duplicate per block: the others are found when it is read again
                    *seen = None;
                }
                self.ctx.inodes.count_name(entry.inode);
            }
            role = role.next();
            offset += entry.rec_len;
        }
        Some(offset)
    }

    /// The blocks to read a second time, in disk order, after all were checked: blocks of directories with another hash
    /// function than the superblock's, those of directories with one of several entries for the same directory, and
    /// leaves that share a hash with another. `runs` are the locations of all directory blocks.
    pub(crate) fn again(&mut self, runs: &[DirRun]) -> Vec<Item<Again>> {
        self.foreign = self.trees.foreign();
        let rivals = self.rivals.get_mut().dirs();
        self.borders = self.trees.borders(&self.foreign);
        if self.foreign.is_empty() && rivals.is_empty() && self.borders.is_empty() {
            return Vec::new();
        }
        let block_size = self.ctx.volume.geometry.block_size;
        let most = (REQUEST as u32) / block_size;
        let mut items = Vec::new();
        let mut read = |run: &DirRun, skip: u32, blocks: u32| {
            if let Some(offset) = self.ctx.volume.offset(run.block.saturating_add(u64::from(skip))) {
                let tag = Again { dir: run.inode, file_block: run.first.saturating_add(skip) };
                items.push(Item { offset, len: blocks * block_size, tag });
            }
        };
        for run in runs {
            if self.foreign.contains_key(&run.inode) || rivals.contains(&run.inode) {
                let mut skip = 0;
                while skip < run.len {
                    let blocks = most.min(run.len - skip);
                    read(run, skip, blocks);
                    skip += blocks;
                }
            } else {
                let leaves = (run.inode, run.first)..(run.inode, run.first.saturating_add(run.len));
                self.borders.range(leaves).for_each(|((_, leaf), _)| read(run, leaf - run.first, 1));
            }
        }
        items.sort_by_key(|i| i.offset);
        items
    }

    /// Checks blocks that [`again`](Self::again) returned. One that cannot be read was reported the first time.
    pub(crate) fn check_again(&self, again: &Again, bytes: Result<&[u8], &blockdev::Error>) {
        let Ok(bytes) = bytes else { return };
        let blocks = bytes.chunks_exact(self.ctx.volume.geometry.block_size as usize);
        for (file_block, block) in (again.file_block..).zip(blocks) {
            if let Some(dir) = self.dir(again.dir, file_block) {
                self.check_block_again(&dir, block);
            }
        }
    }

    fn check_block_again(&self, dir: &Dir<'_>, bytes: &[u8]) {
        let htree_block = if dir.marks.contains(Marks::INDEX) {
            HtreeBlock::of(bytes, dir.file_block, &dir.format)
        } else {
            HtreeBlock::Leaf
        };
        let hasher = self.foreign.get(&dir.inode).filter(|_| htree_block == HtreeBlock::Leaf);
        let border = self.trees.hasher().zip(self.borders.get(&(dir.inode, dir.file_block)));
        let mut role = if dir.file_block == 0 { EntryRole::Dot } else { EntryRole::Other };
        let mut range = HashRange::EMPTY;
        let mut offset = 0;
        while let Some(entry) = entry::parse(bytes, offset, &dir.format.dir, role) {
            if self.may_name(entry.inode) {
                if let Some(hasher) = hasher {
                    range.add(hasher, entry.name, dir.is_folded());
                }
                if let Some((hasher, hashes)) = border
                    && hashes.contains(&hash_of(hasher, entry.name, dir.is_folded()))
                {
                    let folded = dir.is_folded().then(|| casefold::fold(entry.name)).flatten();
                    let key = (dir.inode, folded.unwrap_or_else(|| entry.name.to_vec()));
                    let mut names = self.at_borders.lock();
                    names.entry(key).or_default().insert((dir.file_block, entry.inode, entry.name.to_vec()));
                }
                if role == EntryRole::Other && self.misplaced(dir, &entry, role).is_none() {
                    let mut rivals = self.rivals.lock();
                    if rivals.wants(entry.inode) {
                        let (dir, file_block, name) = (dir.inode, dir.file_block, Some(entry.name.into()));
                        rivals.found(entry.inode, ParentEntry { dir, file_block, offset, name });
                    }
                }
            }
            role = role.next();
            offset += entry.rec_len;
        }
        if hasher.is_some() {
            self.trees.rehash(dir.inode, dir.file_block, range);
        }
    }

    /// Ends the phase: chooses parents, and compares index blocks with the blocks that they refer to.
    pub(crate) fn finish(self) {
        let rivals = self.rivals.into_inner();
        rivals.settle(self.ctx, self.directories);
        self.trees.finish();
        for ((dir, _), entries) in self.at_borders.into_inner() {
            // duplicates in one leaf were reported with the leaf
            if let (Some((first, ..)), Some((last, inode, name))) = (entries.first(), entries.last())
                && first != last
            {
                let problem = Problem::new(Code::EntryDuplicate).dir(dir).file_block(FileBlock(u64::from(*last)));
                self.ctx.report(problem.inode(*inode).name(name));
            }
        }
        for problem in self.suspects.into_inner() {
            let (Some(dir), Some(inode)) = (problem.dir, problem.inode) else { continue };
            let is_one = match problem.code {
                Code::EncryptionPolicyDiffers => self.ctx.policies.differ(dir, inode) == Some(true),
                _ => self.ctx.inodes.get(inode).is_some_and(|record| record.marks.contains(Marks::VALUE)),
            };
            if is_one {
                self.ctx.report(problem);
            }
        }
        if !self.lost_and_found.into_inner() {
            self.ctx.report(Problem::new(Code::LostAndFoundMissing).dir(InodeNo::ROOT));
        }
    }
}

/// Directory blocks to be read a second time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Again {
    dir: InodeNo,
    /// The directory block number of the first one.
    file_block: u32,
}

#[cfg(test)]
mod tests;
