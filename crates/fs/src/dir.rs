//! Directories: lookup of names, and listing.
//!
//! A position in a directory is a *cookie*, an opaque number for the caller.
//!
//! 1. By offset: the cookie is the byte offset, in the directory's blocks, of the next entry. An inline directory is
//!    treated as if it had blocks: "." at 0, ".." at 12, `i_block` at 24, and the rest behind it. Entries of a plain
//!    directory never move, and a cookie to a removed entry continues with the entry after it.
//! 2. By hash, on a volume open for writing with indexed directories: entries move when a block splits, so the cookie
//!    is a position in the order of hashes (see `hash_order`). This includes directories of one block, as they may
//!    become hash trees before the listing ends.

pub(crate) mod block;
mod hash_order;
mod htree;
mod index_path;
pub(crate) mod inline;
mod insert;

pub(crate) use block::NewEntry;

use crate::error::OfInode;
use crate::inline_data::is_inline;
use crate::layers::stands_on;
use crate::nokey;
use crate::{Error, FileExtent, FileKind, Inode, InodeFlags, InodeNo, Maps, Result, Xattrs};
use format::dir::{Entries, Entry, FileType};
use format::hash::{HashVersion, Hasher};
use format::htree::{DxRootInfo, block_checksum};
use format::superblock::Flags;
use format::{FileBlock, FsBlock, Structure, Where};
use std::collections::VecDeque;
use std::sync::Arc;

/// Number of blocks of a directory read ahead at once.
const AHEAD: u64 = 32;

/// The offset of `i_block` of an inline directory in cookies: behind "." and "..".
const INLINE_START: u64 = 24;

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    /// The inode number in the entry: on a damaged volume the inode may not exist.
    pub inode: InodeNo,
    /// The name, any bytes; for an encrypted one its no-key name, which [`Directories::lookup`] accepts.
    pub name: Vec<u8>,
    /// The type, if the entry contains it. On volumes without the feature filetype only the inode does.
    pub kind: Option<FileKind>,
    /// The cookie of the position after this entry.
    pub next: u64,
}

/// The entries of a directory from a cookie on, including "." and "..", in an order of the directory's own.
///
/// Entries added or removed meanwhile may be returned or not; all others are returned once.
///
/// A block that is unreadable or corrupt yields one error, after its readable entries, and the next block follows. The
/// iteration ends on any directory: none has more blocks than its volume.
pub struct ReadDir<'a> {
    volume: &'a Directories,
    dir: Arc<Inode>,
    hasher: Option<Hasher>,
    source: Source,
    ready: VecDeque<Result<DirEntry>>,
}

enum Source {
    Blocks { blocks: DirBlocks, from: u64 },
    Hashed { from: u64 },
    Inline { from: u64 },
    Done,
}

/// Directories and their entries.
pub struct Directories {
    xattrs: Xattrs,
}

stands_on!(Directories, xattrs: Xattrs);

impl Directories {
    pub(crate) fn over(maps: Maps) -> Self {
        Self { xattrs: Xattrs::over(maps) }
    }

    /// The entries of a directory from `cookie` on; 0 is the start.
    ///
    /// # Errors
    /// [`Error::NotADirectory`], or [`Error::Corrupt`] for an impossible size.
    pub fn read_dir(&self, dir: &Arc<Inode>, cookie: u64) -> Result<ReadDir<'_>> {
        self.is_directory(dir)?;
        let _guard = self.read_guard();
        let flags = dir.raw().flags();
        let node = self.writing.is_some().then(|| self.node(dir.number));
        let _state = node.as_ref().map(|node| node.read());
        let dir = &if node.is_some() { self.inode(dir.number)? } else { Arc::clone(dir) };
        if self.lists_by_hash(dir) {
            let source = Source::Hashed { from: cookie };
            return Ok(ReadDir { volume: self, dir: Arc::clone(dir), hasher: None, source, ready: VecDeque::new() });
        }
        let source = if is_inline(dir) {
            Source::Inline { from: cookie }
        } else {
            let first = cookie / u64::from(self.sb.geometry.block_size);
            Source::Blocks { blocks: self.dir_blocks(dir, first)?, from: cookie }
        };
        let hasher = if flags.contains(InodeFlags::ENCRYPT) { self.hasher_of_names(dir) } else { None };
        Ok(ReadDir { volume: self, dir: Arc::clone(dir), hasher, source, ready: VecDeque::new() })
    }

    pub(crate) fn is_directory(&self, dir: &Inode) -> Result<()> {
        if dir.kind == FileKind::Directory { Ok(()) } else { Err(Error::NotADirectory) }
    }

    /// The hash function for no-key names of an encrypted directory: only where the kernel would list it by hash.
    fn hasher_of_names(&self, dir: &Inode) -> Option<Hasher> {
        let one_block = dir.size == u64::from(self.sb.geometry.block_size);
        if !self.is_indexed(dir) && !one_block && !is_inline(dir) {
            return None;
        }
        let version = if self.is_indexed(dir) {
            let root = self.dir_block(dir, FileBlock(0)).ok()?;
            HashVersion::from_raw(DxRootInfo::of(&root)?.hash_version)?
        } else {
            HashVersion::from_raw(self.sb.disk.s_def_hash_version)?
        };
        self.hasher(version)
    }

    /// The hash function of a version, with the signedness and the seed of this volume.
    pub(crate) fn hasher(&self, version: HashVersion) -> Option<Hasher> {
        let unsigned = Flags::from_bits_retain(self.sb.disk.s_flags.get()).contains(Flags::UNSIGNED_HASH);
        let version = if unsigned { version.to_unsigned() } else { version };
        Hasher::new(version, self.sb.disk.hash_seed())
    }

    /// An iterator over the blocks of a directory from block `first` on.
    pub(crate) fn dir_blocks(&self, dir: &Inode, first: u64) -> Result<DirBlocks> {
        let end = dir.size.div_ceil(u64::from(self.sb.geometry.block_size));
        if end > self.sb.geometry.blocks {
            let at = Where::Inode(dir.number);
            return Err(Error::corrupt(Structure::Directory, at, "its size exceeds that of the volume"));
        }
        Ok(DirBlocks { at: first, end, run: None, ahead: first })
    }

    /// One block of a directory, its checksum verified.
    pub(crate) fn dir_block(&self, dir: &Inode, block: FileBlock) -> Result<Arc<[u8]>> {
        Ok(self.dir_block_of(dir, &self.map(dir, block)?)?.0)
    }

    /// The first block of a run of a directory, its checksum verified, and its number.
    pub(crate) fn dir_block_of(&self, dir: &Inode, run: &FileExtent) -> Result<(Arc<[u8]>, FsBlock)> {
        let Some(physical) = run.physical() else {
            return Err(Error::corrupt(Structure::Directory, Where::Inode(dir.number), "it has a hole"));
        };
        let geometry = &self.sb.geometry;
        if !geometry.metadata_csum {
            return Ok((self.store.block(physical)?, physical));
        }
        let bytes = self.store.checked(physical, |bytes| -> Result<()> {
            let state = block_checksum(bytes, geometry.block_size, geometry.leaf_tail(), self.seed(dir));
            Ok(state.require(Structure::Directory).map_err(|e| e.at(Where::Block(physical)))?)
        })?;
        if !geometry.directory_tail(&bytes).says(&bytes, dir.number, Some(run.logical.get())) {
            let what = "the checksum tail of a block names another directory or another block of it";
            return Err(Error::corrupt(Structure::Directory, Where::Block(physical), what));
        }
        Ok((bytes, physical))
    }
}

/// An iterator over the blocks of a directory in order.
pub(crate) struct DirBlocks {
    at: u64,
    end: u64,
    run: Option<FileExtent>,
    /// The first block that has not been read ahead.
    ahead: u64,
}

impl DirBlocks {
    fn run_at(&mut self, volume: &Directories, dir: &Inode, at: FileBlock) -> Result<FileExtent> {
        let run = match self.run {
            Some(run) if (run.logical..run.end()).contains(&at) => run.from(at),
            _ => volume.map(dir, at)?,
        };
        self.run = Some(run);
        Ok(run)
    }

    fn prefetch(&mut self, volume: &Directories, run: &FileExtent) {
        if let Some(physical) = run.physical()
            && self.at >= self.ahead
        {
            let len = run.len.min(self.end - self.at).min(AHEAD);
            if len > 1 {
                let blocks: Vec<_> = (0..len).filter_map(|n| physical.checked_add(n)).collect();
                volume.store.prefetch(&blocks);
            }
            self.ahead = self.at + len;
        }
    }

    /// The next block: its byte offset in the directory, and its content.
    pub(crate) fn next(&mut self, volume: &Directories, dir: &Inode) -> Option<(u64, Result<Arc<[u8]>>)> {
        if self.at >= self.end {
            return None;
        }
        let block_size = u64::from(volume.sb.geometry.block_size);
        // in range: no directory has more blocks than its volume
        let start = self.at * block_size;
        let (taken, block) = match self.run_at(volume, dir, FileBlock(self.at)) {
            Ok(run) => {
                self.prefetch(volume, &run);
                // a hole is one error however long it is
                let taken = if run.physical().is_some() { 1 } else { run.len };
                (taken, volume.dir_block_of(dir, &run).map(|(bytes, _)| bytes))
            }
            Err(e) => (self.end - self.at, Err(e)),
        };
        self.at = self.at.saturating_add(taken).min(self.end);
        Some((start, block))
    }
}

impl ReadDir<'_> {
    /// Queues the entries at or after the cookie `from`; their offsets count from the cookie `start`.
    fn take<'e>(&mut self, entries: impl Iterator<Item = format::Result<Entry<'e>>>, start: u64, from: u64) {
        let format = self.volume.dir_format(&self.dir);
        for entry in entries {
            match entry.of(self.dir.number) {
                Ok(e) if !e.is_used() || start + (e.offset as u64) < from => {}
                Ok(e) => self.ready.push_back(Ok(DirEntry {
                    inode: e.inode,
                    kind: e.kind(&format).map(kind_of),
                    next: start + (e.offset + e.rec_len) as u64,
                    name: self.shown(&e),
                })),
                Err(e) => self.ready.push_back(Err(e)),
            }
        }
    }

    fn shown(&self, entry: &Entry<'_>) -> Vec<u8> {
        if !self.dir.raw().flags().contains(InodeFlags::ENCRYPT) || entry.is_dot() {
            return entry.name.to_vec();
        }
        let hash = entry.hash.or_else(|| Some(self.hasher?.hash(entry.name))).unwrap_or_default();
        nokey::encode(entry.name, hash)
    }

    fn take_inline(&mut self, from: u64) {
        let dir = Arc::clone(&self.dir);
        let inline = match self.volume.inline_dir(&dir) {
            Ok(inline) => inline,
            Err(e) => return self.ready.push_back(Err(e)),
        };
        let dots = [(0, 12, dir.number, &b"."[..]), (12, INLINE_START, inline.parent, b"..")];
        for (at, next, inode, name) in dots {
            if at >= from {
                let kind = Some(FileKind::Directory);
                self.ready.push_back(Ok(DirEntry { inode, name: name.to_vec(), kind, next }));
            }
        }
        self.take(inline.entries(), INLINE_START, from);
    }

    /// The inodes of the queued entries.
    pub(crate) fn ready_inodes(&self) -> impl Iterator<Item = InodeNo> {
        self.ready.iter().filter_map(|entry| entry.as_ref().ok()).map(|entry| entry.inode)
    }

    /// Queues the entries of the next block if none are left; returns whether it did.
    pub(crate) fn fill(&mut self) -> bool {
        if !self.ready.is_empty() {
            return false;
        }
        let _guard = self.volume.read_guard();
        let node = self.volume.writing.is_some().then(|| self.volume.node(self.dir.number));
        let _state = node.as_ref().map(|node| node.read());
        if node.is_some() {
            match self.volume.inode(self.dir.number) {
                Ok(dir) => self.dir = dir,
                // it was removed meanwhile, and had no names then
                Err(_) => self.source = Source::Done,
            }
        }
        self.fill_locked()
    }

    fn fill_locked(&mut self) -> bool {
        while self.ready.is_empty() {
            match &mut self.source {
                Source::Done => return false,
                Source::Hashed { from } => {
                    let from = *from;
                    self.source = match self.take_hashed(from) {
                        Some(from) => Source::Hashed { from },
                        None => Source::Done,
                    };
                }
                Source::Inline { from } => {
                    let from = *from;
                    self.source = Source::Done;
                    self.take_inline(from);
                }
                Source::Blocks { blocks, from } => {
                    let from = *from;
                    match blocks.next(self.volume, &self.dir) {
                        Some((start, Ok(block))) => {
                            self.take(Entries::new(&block, self.volume.dir_format(&self.dir)), start, from);
                        }
                        Some((_, Err(e))) => self.ready.push_back(Err(e)),
                        None => self.source = Source::Done,
                    }
                }
            }
        }
        true
    }
}

impl Iterator for ReadDir<'_> {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        self.fill();
        self.ready.pop_front()
    }
}

fn kind_of(kind: FileType) -> FileKind {
    match kind {
        FileType::Regular => FileKind::Regular,
        FileType::Directory => FileKind::Directory,
        FileType::CharDevice => FileKind::CharDevice,
        FileType::BlockDevice => FileKind::BlockDevice,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::Symlink => FileKind::Symlink,
    }
}
