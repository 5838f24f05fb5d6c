//! Lookup of one name in a directory: through its hash tree if it has one, else through all its blocks.

use crate::error::OfInode;
use crate::inline_data::is_inline;
use crate::nokey::NoKeyName;
use crate::{Directories, Error, Inode, InodeFlags, InodeNo, Result};
use format::dir::{Entries, Entry, FileType, NAME_MAX};
use format::feature::{Compat, Incompat};
use format::hash::{Hasher, NameHash};
use format::{FileBlock, Structure, Where, casefold};

/// An entry that was found, and its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) inode: InodeNo,
    /// The type, if the entry contains it.
    pub(crate) kind: Option<FileType>,
    /// The block of the directory; 0 in an inline directory.
    pub(crate) block: FileBlock,
    /// The byte offset of the entry: in that block, or in an inline directory from `i_block` on, followed by the rest.
    pub(crate) offset: usize,
}

/// The wanted name, in the forms in which a directory may compare it.
enum Wanted<'a> {
    /// Byte for byte.
    Exact(&'a [u8]),
    /// Byte for byte, or by the folded form.
    Folded { name: &'a [u8], folded: Vec<u8> },
    /// The encrypted name of a no-key name.
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

    /// The hash of the name in the index; `None` if it is unknown.
    fn hash(&self, hasher: Option<&Hasher>) -> Option<u32> {
        match self {
            Wanted::Exact(name) => Some(hasher?.hash(name).hash),
            Wanted::Folded { folded, .. } => Some(hasher?.hash(folded).hash),
            Wanted::Encrypted(name) => (name.hash.hash != 0).then_some(name.hash.hash),
        }
    }
}

impl Directories {
    /// Looks up the inode of a name in a directory. Names are compared by the directory's rules: byte for byte, or
    /// case-insensitively in a casefolded one; in an encrypted one by the no-key name that [`Directories::read_dir`]
    /// returns.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotADirectory`], [`Error::NameTooLong`]; [`Error::Corrupt`] if the name may be in
    /// an unreadable part of the directory, or refers to an inode that no directory may contain.
    pub fn lookup(&self, dir: &Inode, name: &[u8]) -> Result<InodeNo> {
        if self.writing.is_none() {
            return Ok(self.find_named(dir, name)?.inode);
        }
        let _guard = self.read_guard();
        let node = self.node(dir.number);
        let _state = node.read();
        let dir = self.inode(dir.number)?;
        Ok(self.find_named(&dir, name)?.inode)
    }

    /// [`Directories::lookup`] with the directory's node locked, or on a volume that does not change.
    pub(crate) fn find_named(&self, dir: &Inode, name: &[u8]) -> Result<Found> {
        self.is_directory(dir)?;
        if name.len() > NAME_MAX {
            return Err(Error::NameTooLong);
        }
        let found = self.find(dir, name)?.ok_or(Error::NotFound)?;
        if !self.may_be_named(found.inode) {
            let at = Where::Inode(dir.number);
            return Err(Error::corrupt(
                Structure::Directory,
                at,
                "an entry refers to a reserved or invalid inode number",
            ));
        }
        Ok(found)
    }

    /// Finds a name in a directory, whatever its inode.
    pub(crate) fn find(&self, dir: &Inode, name: &[u8]) -> Result<Option<Found>> {
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
                // the tree cannot be used, but every name is in some block
                Ok(None) | Err(Error::Corrupt { .. }) => {}
                Err(e) => return Err(e),
            }
        }
        self.find_in_all(dir, &wanted)
    }

    /// Whether a directory compares names case-insensitively.
    pub(crate) fn folds(&self, dir: &Inode) -> bool {
        dir.raw().flags().contains(InodeFlags::CASEFOLD) && self.sb.features.incompat.contains(Incompat::CASEFOLD)
    }

    /// The hash of a name in a directory that is not encrypted.
    pub(crate) fn hash_of(&self, dir: &Inode, hasher: &Hasher, name: &[u8]) -> NameHash {
        match self.folds(dir).then(|| casefold::fold(name)).flatten() {
            Some(folded) => hasher.hash(&folded),
            None => hasher.hash(name),
        }
    }

    fn wanted<'a>(&self, dir: &Inode, name: &'a [u8]) -> Option<Wanted<'a>> {
        if dir.raw().flags().contains(InodeFlags::ENCRYPT) {
            return NoKeyName::decode(name).map(Wanted::Encrypted);
        }
        Some(match self.folds(dir).then(|| casefold::fold(name)).flatten() {
            Some(folded) => Wanted::Folded { name, folded },
            None => Wanted::Exact(name),
        })
    }

    fn find_inline(&self, dir: &Inode, name: &[u8], wanted: &Wanted<'_>) -> Result<Option<Found>> {
        let inline = self.inline_dir(dir)?;
        let dot = |inode| Ok(Some(Found { inode, kind: Some(FileType::Directory), block: FileBlock(0), offset: 0 }));
        match name {
            b"." => dot(dir.number),
            b".." => dot(inline.parent),
            _ => self.find_among(dir, FileBlock(0), inline.entries(), wanted),
        }
    }

    fn find_in(&self, dir: &Inode, at: FileBlock, block: &[u8], wanted: &Wanted<'_>) -> Result<Option<Found>> {
        let format = self.dir_format(dir);
        let entries = Entries::new(block, format);
        let Wanted::Exact(name) = wanted else { return self.find_among(dir, at, entries, wanted) };
        let found = entries.find(name).of(dir.number)?;
        Ok(found.map(|e| Found { inode: e.inode, kind: e.kind(&format), block: at, offset: e.offset }))
    }

    /// The wanted entry. A corrupt entry is an error only if the wanted one is not found.
    fn find_among<'e>(
        &self,
        dir: &Inode,
        block: FileBlock,
        entries: impl Iterator<Item = format::Result<Entry<'e>>>,
        wanted: &Wanted<'_>,
    ) -> Result<Option<Found>> {
        let mut trouble = None;
        for entry in entries {
            match entry {
                Ok(e) if e.is_used() && wanted.is(&e) => {
                    let kind = e.kind(&self.dir_format(dir));
                    return Ok(Some(Found { inode: e.inode, kind, block, offset: e.offset }));
                }
                Ok(_) => {}
                Err(e) => trouble = Some(e),
            }
        }
        trouble.map_or(Ok(None), Err).of(dir.number)
    }

    /// Searches all blocks. An unreadable block is an error only if no other contains the name.
    fn find_in_all(&self, dir: &Inode, wanted: &Wanted<'_>) -> Result<Option<Found>> {
        let mut trouble = None;
        let mut blocks = self.dir_blocks(dir, 0)?;
        while let Some((start, block)) = blocks.next(self, dir) {
            let at = FileBlock(start / u64::from(self.sb.geometry.block_size));
            match block.and_then(|block| self.find_in(dir, at, &block, wanted)) {
                Ok(Some(found)) => return Ok(Some(found)),
                Ok(None) => {}
                Err(e) => trouble = trouble.or(Some(e)),
            }
        }
        trouble.map_or(Ok(None), Err)
    }

    /// Whether the directory is marked as having a hash tree, on a volume where directories may have one.
    pub(crate) fn is_indexed(&self, dir: &Inode) -> bool {
        dir.raw().flags().contains(InodeFlags::INDEX) && self.sb.features.compat.contains(Compat::DIR_INDEX)
    }

    /// Searches by the hash tree. `None` if the tree cannot be used.
    fn find_by_hash(&self, dir: &Inode, wanted: &Wanted<'_>) -> Result<Option<Option<Found>>> {
        let mut path = self.tree(dir)?;
        let Some(hash) = wanted.hash(self.hasher(path.hash_version).as_ref()) else { return Ok(None) };
        let mut leaf = path.go_to(hash)?;
        // names with one hash may fill several leaves, but never more than the directory has
        for _ in 0..=dir.size / u64::from(self.sb.geometry.block_size) {
            let block = self.dir_block(dir, leaf)?;
            if let Some(found) = self.find_in(dir, leaf, &block, wanted)? {
                return Ok(Some(Some(found)));
            }
            match path.next_leaf(hash)? {
                Some(next) => leaf = next,
                None => return Ok(Some(None)),
            }
        }
        Err(Error::corrupt(
            Structure::HashTree,
            Where::Inode(dir.number),
            "a lookup follows more leaves than the directory has",
        ))
    }
}
