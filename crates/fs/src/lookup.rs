//! One name in a directory: through its hash tree where it has one, else through all its blocks.

use crate::error::OfInode;
use crate::inline::is_inline;
use crate::nokey::NoKeyName;
use crate::{Error, Inode, InodeFlags, InodeNo, Result, Volume};
use format::dir::{Entries, Entry, NAME_MAX};
use format::feature::{Compat, Incompat};
use format::hash::Hasher;
use format::htree::{DxRoot, Index, IndexFormat};
use format::{FileBlock, Structure, Where, casefold};
use std::sync::Arc;

/// The name looked for, in the ways a directory may compare it.
enum Wanted<'a> {
    /// Byte for byte.
    Exact(&'a [u8]),
    /// Byte for byte, or by the folded form.
    Folded { name: &'a [u8], folded: Vec<u8> },
    /// The encrypted name that a text stands for.
    Encrypted(NoKeyName),
}

impl Wanted<'_> {
    fn is(&self, entry: &Entry<'_>) -> bool {
        match self {
            Wanted::Exact(name) => entry.name == *name,
            Wanted::Folded { name, folded } => {
                entry.name == *name || casefold::fold(entry.name).is_some_and(|other| other == *folded)
            }
            Wanted::Encrypted(name) => name.is(entry.name),
        }
    }

    /// The hash by which the index files it; `None` where it cannot be known.
    fn hash(&self, hasher: Option<&Hasher>) -> Option<u32> {
        match self {
            Wanted::Exact(name) => Some(hasher?.hash(name).hash),
            Wanted::Folded { folded, .. } => Some(hasher?.hash(folded).hash),
            Wanted::Encrypted(name) => (name.hash.hash != 0).then_some(name.hash.hash),
        }
    }
}

impl Volume {
    /// The inode that a directory gives a name. Names are compared as the directory does: byte for byte, or without case
    /// in a casefolded one; in an encrypted one the text is asked for that [`Volume::read_dir`] shows.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotADirectory`], [`Error::NameTooLong`]; [`Error::Corrupt`] where the name could
    /// stand in a part of the directory that cannot be read, or names an inode that no directory may name.
    pub fn lookup(&self, dir: &Inode, name: &[u8]) -> Result<InodeNo> {
        self.is_directory(dir)?;
        if name.len() > NAME_MAX {
            return Err(Error::NameTooLong);
        }
        let found = self.find(dir, name)?.ok_or(Error::NotFound)?;
        if !self.may_be_named(found) {
            let at = Where::Inode(dir.number);
            return Err(Error::corrupt(Structure::Directory, at, "an entry names an inode that no directory may name"));
        }
        Ok(found)
    }

    fn find(&self, dir: &Inode, name: &[u8]) -> Result<Option<InodeNo>> {
        let is_dot = matches!(name, b"." | b"..");
        let Some(wanted) = (if is_dot { Some(Wanted::Exact(name)) } else { self.wanted(dir, name) }) else {
            return Ok(None);
        };
        if is_inline(dir) {
            return self.find_inline(dir, name, &wanted);
        }
        if self.is_indexed(dir) && !is_dot {
            match self.find_by_hash(dir, &wanted) {
                Ok(Some(outcome)) => return Ok(outcome),
                // the tree cannot be used, but every name still stands in a block
                Ok(None) | Err(Error::Corrupt { .. }) => {}
                Err(e) => return Err(e),
            }
        }
        self.find_in_all(dir, &wanted)
    }

    fn wanted<'a>(&self, dir: &Inode, name: &'a [u8]) -> Option<Wanted<'a>> {
        let flags = dir.raw().flags();
        if flags.contains(InodeFlags::ENCRYPT) {
            return NoKeyName::decode(name).map(Wanted::Encrypted);
        }
        let folds = flags.contains(InodeFlags::CASEFOLD) && self.sb.features.incompat.contains(Incompat::CASEFOLD);
        Some(match casefold::fold(name).filter(|_| folds) {
            Some(folded) => Wanted::Folded { name, folded },
            None => Wanted::Exact(name),
        })
    }

    fn find_inline(&self, dir: &Inode, name: &[u8], wanted: &Wanted<'_>) -> Result<Option<InodeNo>> {
        let inline = self.inline_dir(dir)?;
        match name {
            b"." => return Ok(Some(dir.number)),
            b".." => return Ok(Some(inline.parent)),
            _ => {}
        }
        find_among(dir, inline.entries(), wanted)
    }

    fn find_in(&self, dir: &Inode, block: &[u8], wanted: &Wanted<'_>) -> Result<Option<InodeNo>> {
        find_among(dir, Entries::new(block, self.dir_format(dir)), wanted)
    }

    /// Looks through all blocks. One that cannot be read is an error only where no other has the name.
    fn find_in_all(&self, dir: &Inode, wanted: &Wanted<'_>) -> Result<Option<InodeNo>> {
        let mut trouble = None;
        let mut blocks = self.dir_blocks(dir, 0)?;
        while let Some((_, block)) = blocks.next(self, dir) {
            match block.and_then(|block| self.find_in(dir, &block, wanted)) {
                Ok(Some(inode)) => return Ok(Some(inode)),
                Ok(None) => {}
                Err(e) => trouble = trouble.or(Some(e)),
            }
        }
        trouble.map_or(Ok(None), Err)
    }

    /// Whether the directory says it has a hash tree, and the volume that directories may.
    pub(crate) fn is_indexed(&self, dir: &Inode) -> bool {
        dir.raw().flags().contains(InodeFlags::INDEX) && self.sb.features.compat.contains(Compat::DIR_INDEX)
    }

    fn index_format(&self, dir: &Inode) -> IndexFormat {
        IndexFormat {
            dir: self.dir_format(dir),
            checksums: self.sb.geometry.metadata_csum,
            large_dir: self.sb.features.incompat.contains(Incompat::LARGE_DIR),
        }
    }

    /// Looks where the hash tree says. `None` where the tree cannot answer.
    fn find_by_hash(&self, dir: &Inode, wanted: &Wanted<'_>) -> Result<Option<Option<InodeNo>>> {
        let format = self.index_format(dir);
        let root = self.dir_block(dir, FileBlock(0))?;
        let dx = DxRoot::parse(&root, &format).of(dir.number)?;
        let Some(hash) = wanted.hash(self.hasher(dx.hash_version).as_ref()) else { return Ok(None) };
        let first = Step { position: dx.index.position(hash), block: Arc::clone(&root), is_root: true };
        let mut way =
            Way { volume: self, dir, format, hash, levels: usize::from(dx.indirect_levels), steps: vec![first] };
        let mut leaf = way.down(|index| index.position(hash))?;
        // names of one hash may fill several leaves, but never more than the directory has
        for _ in 0..=dir.size / u64::from(self.sb.geometry.block_size) {
            let block = self.dir_block(dir, leaf)?;
            if let Some(inode) = self.find_in(dir, &block, wanted)? {
                return Ok(Some(Some(inode)));
            }
            match way.next_leaf()? {
                Some(next) => leaf = next,
                None => return Ok(Some(None)),
            }
        }
        Err(Error::corrupt(Structure::HashTree, Where::Inode(dir.number), "it leads to more leaves than there are"))
    }
}

/// The inode of the entry that is wanted. An entry that is corrupt is an error only where none is found.
fn find_among<'e>(
    dir: &Inode,
    entries: impl Iterator<Item = format::Result<Entry<'e>>>,
    wanted: &Wanted<'_>,
) -> Result<Option<InodeNo>> {
    let mut trouble = None;
    for entry in entries {
        match entry {
            Ok(e) if e.is_used() && wanted.is(&e) => return Ok(Some(e.inode)),
            Ok(_) => {}
            Err(e) => trouble = Some(e),
        }
    }
    trouble.map_or(Ok(None), Err).of(dir.number)
}

/// An index block on the way to a leaf, and the entry taken there.
struct Step {
    block: Arc<[u8]>,
    is_root: bool,
    position: usize,
}

impl Step {
    fn index(&self, format: &IndexFormat) -> format::Result<Index<'_>> {
        if self.is_root {
            Ok(DxRoot::parse(&self.block, format)?.index)
        } else {
            Index::parse_node(&self.block, format)
        }
    }
}

/// The way from the root of a hash tree to a leaf: at most three index blocks.
struct Way<'a> {
    volume: &'a Volume,
    dir: &'a Inode,
    format: IndexFormat,
    hash: u32,
    /// Levels of index blocks below the root.
    levels: usize,
    steps: Vec<Step>,
}

impl Way<'_> {
    /// Goes down from the last step to a leaf, taking in each index block the entry that `choose` says.
    fn down(&mut self, choose: impl Fn(&Index<'_>) -> usize) -> Result<FileBlock> {
        let at = Where::Inode(self.dir.number);
        loop {
            let below = match self.steps.last() {
                Some(step) => step.index(&self.format).of(self.dir.number)?.block(step.position),
                None => None,
            };
            let Some(below) = below else {
                return Err(Error::corrupt(Structure::HashTree, at, "an index block has no entry to follow"));
            };
            if self.steps.len() > self.levels {
                return Ok(below);
            }
            let mut step = Step { block: self.volume.dir_block(self.dir, below)?, is_root: false, position: 0 };
            step.position = choose(&step.index(&self.format).of(self.dir.number)?);
            self.steps.push(step);
        }
    }

    /// The leaf behind the one the way leads to, where it may hold further names of the hash.
    fn next_leaf(&mut self) -> Result<Option<FileBlock>> {
        while let Some(step) = self.steps.last_mut() {
            match step.index(&self.format).of(self.dir.number)?.next_holds(step.position, self.hash) {
                Some(true) => {
                    step.position += 1;
                    return self.down(|_| 0).map(Some);
                }
                Some(false) => return Ok(None),
                // the last entry of its block: the block above decides
                None => self.steps.truncate(self.steps.len() - 1),
            }
        }
        Ok(None)
    }
}
