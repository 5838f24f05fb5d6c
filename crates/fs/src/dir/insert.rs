//! Insertion of names into directories, and removal.
//!
//! A name is inserted in two steps: [`Directories::make_space`] finds space or makes it: a plain directory gets a
//! block, or becomes a hash tree; a hash tree's leaf splits, and its index blocks if they are full. Each of these
//! changes is complete in itself, and allocates before it edits: if the next one finds no space, the directory is
//! consistent and its names are unchanged. [`Directories::put_name`] then only writes. Only the directory's node is
//! locked throughout.

use super::block::{self, Leaf, NewEntry, needed};
use super::htree::{self, Split};
use super::index_path::{IndexPath, Step};
use crate::change::Change;
use crate::dir::inline;
use crate::error::OfInode;
use crate::inline_data::is_inline;
use crate::lookup::Found;
use crate::{Directories, Error, Inode, InodeFlags, InodeNo, Result};
use format::dir::{Entries, FileType, dot_entries};
use format::feature::Compat;
use format::hash::HashVersion;
use format::tail::Tailed;
use format::{FileBlock, FsBlock, Structure, Where};
use std::sync::Arc;
use store::{Kind, Tag};

/// The location of a new name: the entry with space for it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Spot {
    /// `listed` is the block's number in a plain directory.
    Block {
        block: FsBlock,
        listed: Option<u64>,
        offset: usize,
    },
    Inline {
        offset: usize,
    },
}

/// The error of an edit of bytes that were read as consistent and cannot have changed since.
fn damaged(number: InodeNo) -> Error {
    Error::corrupt(Structure::Directory, Where::Inode(number), "a block has changed in memory since it was read")
}

impl Directories {
    fn dir_tag(&self, change: &Change<'_>, dir: &Inode) -> Tag {
        change.tag(Kind::Directory, dir)
    }

    fn index_tag(&self, change: &Change<'_>, dir: &Inode) -> Tag {
        change.tag(Kind::DirectoryIndex, dir)
    }

    fn part_len(&self) -> usize {
        self.sb.geometry.block_size as usize - self.sb.geometry.leaf_tail().size()
    }

    /// The [`Leaf`] of block `at` of a directory.
    fn leaf_of(&self, dir: &Inode, at: FileBlock) -> Leaf {
        Leaf { tail: self.sb.geometry.leaf_tail(), owner: dir.number, at }
    }

    /// Sets the owner of a new index block, on volumes where blocks have one.
    fn own_index(&self, dir: &Inode, bytes: &mut [u8]) -> Option<()> {
        self.sb.geometry.tail(Tailed::Index).write(bytes, dir.number, 0)
    }

    /// Extends a directory by one block.
    fn grow(&self, change: &Change<'_>, dir: &Inode) -> Result<(Arc<Inode>, FileBlock, FsBlock)> {
        change.grow_directory(dir).map_err(|e| match e {
            // a larger directory is not possible; the kernel returns this error too
            Error::FileTooLarge => Error::NoSpace,
            e => e,
        })
    }

    fn physical(&self, dir: &Inode, at: FileBlock) -> Result<FsBlock> {
        self.map(dir, at)?
            .physical()
            .ok_or_else(|| Error::corrupt(Structure::Directory, Where::Inode(dir.number), "it has a hole"))
    }

    /// The part of a leaf with the entries, checked before a change.
    fn part<'b>(&self, dir: &Inode, block: &'b [u8]) -> Result<&'b [u8]> {
        let short = || Error::corrupt(Structure::Directory, Where::Inode(dir.number), "a block is too short");
        block.get(..self.part_len()).ok_or_else(short)
    }

    /// Finds or makes space for a name that does not exist. Returns the directory in its new state.
    pub(crate) fn make_space(&self, change: &Change<'_>, dir: Arc<Inode>, name: &[u8]) -> Result<(Arc<Inode>, Spot)> {
        let mut dir = dir;
        // each iteration but the last splits something; a tree is at most three levels deep
        for _ in 0..16 {
            if is_inline(&dir) {
                match inline::find_space(self, &dir, needed(name))? {
                    inline::Space::At(offset) => return Ok((dir, Spot::Inline { offset })),
                    inline::Space::Grow => dir = inline::grow(self, change, &dir)?,
                    inline::Space::None => dir = self.dir_to_block(change, &dir)?,
                }
            } else if self.is_indexed(&dir) {
                match self.space_in_tree(change, &dir, name)? {
                    Ok(spot) => return Ok((dir, spot)),
                    Err(grown) => dir = grown,
                }
            } else {
                match self.space_in_list(change, &dir, name)? {
                    Ok(spot) => return Ok((dir, spot)),
                    Err(grown) => dir = grown,
                }
            }
        }
        Err(Error::corrupt(Structure::Directory, Where::Inode(dir.number), "no space can be made for a name"))
    }

    /// Space in a plain directory, or the directory extended by one block.
    fn space_in_list(&self, change: &Change<'_>, dir: &Arc<Inode>, name: &[u8]) -> Result<Result<Spot, Arc<Inode>>> {
        let format = self.dir_format(dir);
        let blocks = dir.size / u64::from(self.sb.geometry.block_size);
        let node = self.node(dir.number);
        // most names find space behind the last one
        let (hint, entry) = node.space_hint();
        let (hint, entry) = if hint < blocks { (hint, entry) } else { (0, 0) };
        let again = (entry > 0).then_some(hint);
        let others = (hint + 1..blocks).chain(0..hint).chain(again).map(|n| (n, 0));
        for (n, from) in std::iter::once((hint, entry)).chain(others).filter(|(n, _)| *n < blocks) {
            let (bytes, block) = self.dir_block_of(dir, &self.map(dir, FileBlock(n))?)?;
            let found = block::find_space(self.part(dir, &bytes)?, from, needed(name), format).of(dir.number)?;
            if let Some(offset) = found {
                return Ok(Ok(Spot::Block { block, listed: Some(n), offset }));
            }
        }
        if blocks == 1
            && let Some(version) = self.version_of_new_trees()
        {
            return self.make_tree(change, dir, version).map(Err);
        }
        let (grown, at, new) = self.grow(change, dir)?;
        node.set_space_hint(at.get(), 0);
        let made = change
            .fresh(new, self.dir_tag(change, dir), |bytes| block::make_leaf(bytes, &[], format, self.leaf_of(dir, at)));
        made.ok_or_else(|| damaged(dir.number))?;
        Ok(Err(grown))
    }

    /// The hash function for directories that become trees; `None` if none do.
    pub(super) fn version_of_new_trees(&self) -> Option<HashVersion> {
        let wanted = self.sb.features.compat.contains(Compat::DIR_INDEX);
        let version = HashVersion::from_raw(self.sb.disk.s_def_hash_version).filter(|_| wanted)?;
        matches!(version, HashVersion::Legacy | HashVersion::HalfMd4 | HashVersion::Tea).then_some(version)
    }

    /// Converts a directory of one block to a hash tree: its names move to a leaf, and the block becomes the root.
    fn make_tree(&self, change: &Change<'_>, dir: &Arc<Inode>, version: HashVersion) -> Result<Arc<Inode>> {
        let format = self.index_format(dir);
        let bytes = self.dir_block(dir, FileBlock(0))?;
        let root = self.physical(dir, FileBlock(0))?;
        let part = self.part(dir, &bytes)?;
        let (_, parent) = dot_entries(part, format.dir).of(dir.number)?;
        let hash = |_: &[u8]| format::hash::NameHash::default();
        let names = htree::hashed_entries(part, format.dir, hash).of(dir.number)?;
        let names: Vec<NewEntry<'_>> = names.into_iter().map(|(_, entry)| entry).collect();
        let dots = if format.dir.file_type { FileType::Directory.raw() } else { 0 };
        let (grown, at, leaf) = self.grow(change, dir)?;
        let made = change.fresh(leaf, self.dir_tag(change, dir), |bytes| {
            block::make_leaf(bytes, &names, format.dir, self.leaf_of(dir, at))
        });
        made.ok_or_else(|| damaged(dir.number))?;
        let made = change.edit(root, self.index_tag(change, dir), |bytes| {
            htree::make_root(bytes, dir.number, (parent, dots), version, at, &format)?;
            self.own_index(dir, bytes)
        })?;
        made.ok_or_else(|| damaged(dir.number))?;
        change.update_inode(&grown, |inode| {
            let flags = inode.raw().flags() | InodeFlags::INDEX;
            inode.set_flags(flags);
        })
    }

    /// Space in a hash tree, or the directory after one split.
    fn space_in_tree(&self, change: &Change<'_>, dir: &Arc<Inode>, name: &[u8]) -> Result<Result<Spot, Arc<Inode>>> {
        let mut path = self.tree(dir)?;
        let format = path.format;
        let Some(hasher) = self.hasher(path.hash_version) else { return Err(Error::Encrypted) };
        let hash = self.hash_of(dir, &hasher, name);
        let mut at = path.go_to(hash.hash)?;
        // of leaves with the same hash the last, which alone can split further
        while let Some(next) = path.next_leaf(hash.hash)? {
            at = next;
        }
        let leaf = self.physical(dir, at)?;
        let bytes = self.dir_block(dir, at)?;
        let part = self.part(dir, &bytes)?;
        let need = needed(name);
        if let Some(offset) = block::find_space(part, 0, need, format.dir).of(dir.number)? {
            return Ok(Ok(Spot::Block { block: leaf, listed: None, offset }));
        }
        let mut names =
            htree::hashed_entries(part, format.dir, |name| self.hash_of(dir, &hasher, name)).of(dir.number)?;
        let split = htree::split(&mut names, need, part.len()).ok_or_else(|| damaged(dir.number))?;
        let entries: Vec<NewEntry<'_>> = names.iter().map(|(_, entry)| *entry).collect();
        let Split::At { count, hash } = split else {
            let made = change.edit(leaf, self.dir_tag(change, dir), |bytes| {
                block::make_leaf(bytes, &entries, format.dir, self.leaf_of(dir, at))
            })?;
            made.ok_or_else(|| damaged(dir.number))?;
            return Ok(Err(Arc::clone(dir)));
        };
        if let Some(grown) = self.space_for_leaf(change, dir, &path)? {
            return Ok(Err(grown));
        }
        let Some(above) = path.steps.last() else { return Err(damaged(dir.number)) };
        let index = self.physical(dir, above.number)?;
        let (stay, go) = entries.split_at(count);
        let (grown, new_at, new) = self.grow(change, dir)?;
        let made = change.fresh(new, self.dir_tag(change, dir), |bytes| {
            block::make_leaf(bytes, go, format.dir, self.leaf_of(dir, new_at))
        });
        made.ok_or_else(|| damaged(dir.number))?;
        let made = change.edit(leaf, self.dir_tag(change, dir), |bytes| {
            block::make_leaf(bytes, stay, format.dir, self.leaf_of(dir, at))
        })?;
        made.ok_or_else(|| damaged(dir.number))?;
        let made = change.edit(index, self.index_tag(change, dir), |bytes| {
            htree::insert_below(bytes, above.is_root(), above.position, (hash, new_at))
        })?;
        made.ok_or_else(|| damaged(dir.number))?;
        Ok(Err(grown))
    }

    /// Makes space for another leaf in the index, by one step. `None` if there is space.
    fn space_for_leaf(
        &self,
        change: &Change<'_>,
        dir: &Arc<Inode>,
        path: &IndexPath<'_>,
    ) -> Result<Option<Arc<Inode>>> {
        let format = &path.format;
        // the lowest block with space; of the blocks under it, which must split, the highest first
        let mut full: Option<(&Step, &Step)> = None;
        let mut above: Option<&Step> = None;
        let mut all_full = true;
        for step in &path.steps {
            let index = step.index(format).of(dir.number)?;
            if htree::is_full(&index, step.is_root(), format) {
                full = full.or(above.map(|above| (above, step)));
            } else {
                (full, all_full) = (None, false);
            }
            above = Some(step);
        }
        if all_full {
            return self.deepen(change, dir, path).map(Some);
        }
        let Some((above, step)) = full else { return Ok(None) };
        let entries = htree::all_below(&step.index(format).of(dir.number)?);
        let half = entries.len() / 2;
        let (Some(go), Some(&(hash, _))) = (entries.get(half..), entries.get(half)) else {
            return Err(damaged(dir.number));
        };
        let (this, parent) = (self.physical(dir, step.number)?, self.physical(dir, above.number)?);
        let (grown, new_at, new) = self.grow(change, dir)?;
        let tag = self.index_tag(change, dir);
        let made = change.fresh(new, tag, |bytes| {
            htree::make_node(bytes, go, format)?;
            self.own_index(dir, bytes)
        });
        made.ok_or_else(|| damaged(dir.number))?;
        change.edit(this, tag, |bytes| htree::truncate(bytes, false, half))?.ok_or_else(|| damaged(dir.number))?;
        let made = change
            .edit(parent, tag, |bytes| htree::insert_below(bytes, above.is_root(), above.position, (hash, new_at)))?;
        made.ok_or_else(|| damaged(dir.number))?;
        Ok(Some(grown))
    }

    /// Inserts a new index block between the root and all below it.
    fn deepen(&self, change: &Change<'_>, dir: &Arc<Inode>, path: &IndexPath<'_>) -> Result<Arc<Inode>> {
        let format = &path.format;
        if path.steps.len() > usize::from(format.max_indirect_levels()) {
            // the largest possible directory
            return Err(Error::NoSpace);
        }
        let Some(root) = path.steps.first() else { return Err(damaged(dir.number)) };
        let entries = htree::all_below(&root.index(format).of(dir.number)?);
        let root = self.physical(dir, FileBlock(0))?;
        let (grown, new_at, new) = self.grow(change, dir)?;
        let tag = self.index_tag(change, dir);
        let made = change.fresh(new, tag, |bytes| {
            htree::make_node(bytes, &entries, format)?;
            self.own_index(dir, bytes)
        });
        made.ok_or_else(|| damaged(dir.number))?;
        let made = change.edit(root, tag, |bytes| {
            htree::deepen_root(bytes, new_at, format)?;
            self.own_index(dir, bytes)
        })?;
        made.ok_or_else(|| damaged(dir.number))?;
        Ok(grown)
    }

    /// Moves all names of an inline directory into a block.
    fn dir_to_block(&self, change: &Change<'_>, dir: &Arc<Inode>) -> Result<Arc<Inode>> {
        let format = self.dir_format(dir);
        let content = self.inline_dir(dir)?;
        let mut names = vec![(dir.number, b".".to_vec()), (content.parent, b"..".to_vec())];
        let mut kinds = vec![Some(FileType::Directory); 2];
        for entry in content.entries() {
            let e = entry.of(dir.number)?;
            if e.is_used() {
                names.push((e.inode, e.name.to_vec()));
                kinds.push(e.kind(&format));
            }
        }
        let entries: Vec<NewEntry<'_>> =
            names.iter().zip(kinds).map(|((inode, name), kind)| NewEntry { inode: *inode, name, kind }).collect();
        // undone if no block can be allocated
        let emptied = inline::leave(self, change, dir)?;
        let grown = match self.grow(change, &emptied) {
            Ok(grown) => grown,
            Err(e) => {
                change.update_inode(dir, |_| {})?;
                return Err(e);
            }
        };
        let (grown, at, new) = grown;
        let made = change.fresh(new, self.dir_tag(change, dir), |bytes| {
            block::make_leaf(bytes, &entries, format, self.leaf_of(dir, at))
        });
        made.ok_or_else(|| damaged(dir.number))?;
        Ok(grown)
    }

    /// Writes a name into the space made for it.
    pub(crate) fn put_name(
        &self,
        change: &Change<'_>,
        dir: &Arc<Inode>,
        spot: Spot,
        entry: &NewEntry<'_>,
    ) -> Result<Arc<Inode>> {
        let format = self.dir_format(dir);
        match spot {
            Spot::Inline { offset } => {
                inline::edit(change, dir, offset, |part, at| block::insert(part, at, entry, format).map(drop))
            }
            Spot::Block { block: physical, listed, offset } => {
                let len = self.part_len();
                let done = change.edit(physical, self.dir_tag(change, dir), |bytes| {
                    block::insert(bytes.get_mut(..len)?, offset, entry, format)
                })?;
                let placed = done.ok_or_else(|| damaged(dir.number))?;
                if let Some(block) = listed {
                    self.node(dir.number).set_space_hint(block, placed);
                }
                Ok(Arc::clone(dir))
            }
        }
    }

    /// Removes a name from a directory.
    pub(crate) fn take_name(&self, change: &Change<'_>, dir: &Arc<Inode>, found: &Found) -> Result<Arc<Inode>> {
        let format = self.dir_format(dir);
        if is_inline(dir) {
            return inline::edit(change, dir, found.offset, |part, at| block::remove(part, at, format));
        }
        let physical = self.physical(dir, found.block)?;
        let len = self.part_len();
        let done = change.edit(physical, self.dir_tag(change, dir), |bytes| {
            block::remove(bytes.get_mut(..len)?, found.offset, format)
        })?;
        done.ok_or_else(|| damaged(dir.number))?;
        if !self.is_indexed(dir) {
            self.node(dir.number).set_space_hint(found.block.get(), 0);
        }
        Ok(Arc::clone(dir))
    }

    /// Points a name to another inode.
    pub(crate) fn point_name(
        &self,
        change: &Change<'_>,
        dir: &Arc<Inode>,
        found: &Found,
        inode: InodeNo,
        kind: Option<FileType>,
    ) -> Result<Arc<Inode>> {
        let format = self.dir_format(dir);
        if is_inline(dir) {
            return inline::edit(change, dir, found.offset, |part, at| block::point(part, at, inode, kind, format));
        }
        let physical = self.physical(dir, found.block)?;
        let done = change.edit(physical, self.dir_tag(change, dir), |bytes| {
            block::point(bytes, found.offset, inode, kind, format)
        })?;
        done.ok_or_else(|| damaged(dir.number))?;
        Ok(Arc::clone(dir))
    }

    /// Sets the inode of "..".
    pub(crate) fn set_parent(&self, change: &Change<'_>, dir: &Arc<Inode>, parent: InodeNo) -> Result<Arc<Inode>> {
        if is_inline(dir) {
            return inline::set_parent(change, dir, parent);
        }
        let format = self.dir_format(dir);
        let physical = self.physical(dir, FileBlock(0))?;
        let indexed = self.is_indexed(dir);
        let tag = if indexed { self.index_tag(change, dir) } else { self.dir_tag(change, dir) };
        let done = change.edit(physical, tag, |bytes| {
            let offset = Entries::new(bytes, format).nth(1)?.ok()?.offset;
            block::point(bytes, offset, parent, Some(FileType::Directory), format)
        })?;
        done.ok_or_else(|| damaged(dir.number))?;
        Ok(Arc::clone(dir))
    }

    /// Adds the first block to a new directory, with "." and "..".
    pub(crate) fn first_block(&self, change: &Change<'_>, dir: &Arc<Inode>, parent: InodeNo) -> Result<Arc<Inode>> {
        let format = self.dir_format(dir);
        let kind = Some(FileType::Directory);
        let dots = [NewEntry { inode: dir.number, name: b".", kind }, NewEntry { inode: parent, name: b"..", kind }];
        let (dir, at, new) = self.grow(change, dir)?;
        let made = change.fresh(new, self.dir_tag(change, &dir), |bytes| {
            block::make_leaf(bytes, &dots, format, self.leaf_of(&dir, at))
        });
        made.ok_or_else(|| damaged(dir.number))?;
        Ok(dir)
    }

    /// Whether a directory has no names except its dots. Unreadable blocks may have some.
    pub(crate) fn is_empty_dir(&self, dir: &Inode) -> Result<bool> {
        let format = self.dir_format(dir);
        if is_inline(dir) {
            for entry in self.inline_dir(dir)?.entries() {
                if entry.of(dir.number)?.is_used() {
                    return Ok(false);
                }
            }
            return Ok(true);
        }
        let mut blocks = self.dir_blocks(dir, 0)?;
        while let Some((_, bytes)) = blocks.next(self, dir) {
            for entry in Entries::new(&bytes?, format) {
                let e = entry.of(dir.number)?;
                if e.is_used() && !e.is_dot() {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}
