//! The path through a hash tree: from its root to a leaf, and to the following leaves.

use crate::error::OfInode;
use crate::{Directories, Error, Inode, Result};
use format::feature::Incompat;
use format::hash::{CONTINUES, HashVersion};
use format::htree::{DxRoot, Index, IndexFormat};
use format::{FileBlock, Structure, Where};
use std::sync::Arc;

/// An index block on the path to a leaf, and the entry followed there.
pub(crate) struct Step {
    pub(crate) number: FileBlock,
    pub(crate) block: Arc<[u8]>,
    pub(crate) position: usize,
}

impl Step {
    pub(crate) fn is_root(&self) -> bool {
        self.number == FileBlock(0)
    }

    pub(crate) fn index(&self, format: &IndexFormat) -> format::Result<Index<'_>> {
        if self.is_root() {
            Ok(DxRoot::parse(&self.block, format)?.index)
        } else {
            Index::parse_node(&self.block, format)
        }
    }
}

/// The path from the root of a hash tree to a leaf: at most three index blocks.
pub(crate) struct IndexPath<'a> {
    volume: &'a Directories,
    dir: &'a Inode,
    pub(crate) format: IndexFormat,
    /// According to the root: signed, whatever the superblock says.
    pub(crate) hash_version: HashVersion,
    /// Levels of index blocks under the root.
    levels: usize,
    pub(crate) steps: Vec<Step>,
}

impl Directories {
    pub(crate) fn index_format(&self, dir: &Inode) -> IndexFormat {
        IndexFormat {
            dir: self.dir_format(dir),
            checksums: self.sb.geometry.metadata_csum,
            large_dir: self.sb.features.incompat.contains(Incompat::LARGE_DIR),
        }
    }

    /// The path at the root of an indexed directory's tree.
    pub(crate) fn tree<'a>(&'a self, dir: &'a Inode) -> Result<IndexPath<'a>> {
        let format = self.index_format(dir);
        let root = self.dir_block(dir, FileBlock(0))?;
        let dx = DxRoot::parse(&root, &format).of(dir.number)?;
        let (hash_version, levels) = (dx.hash_version, usize::from(dx.indirect_levels));
        let first = Step { number: FileBlock(0), block: root, position: 0 };
        Ok(IndexPath { volume: self, dir, format, hash_version, levels, steps: vec![first] })
    }
}

impl IndexPath<'_> {
    /// Moves from the root to the leaf for `hash`, the first if there are several.
    pub(crate) fn go_to(&mut self, hash: u32) -> Result<FileBlock> {
        self.steps.truncate(1);
        if let Some(root) = self.steps.first_mut() {
            root.position = root.index(&self.format).of(self.dir.number)?.position(hash);
        }
        self.down(|index| index.position(hash))
    }

    /// Descends from the last step to a leaf, following in each index block the entry returned by `choose`.
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
            if below == FileBlock(0) {
                return Err(Error::corrupt(Structure::HashTree, at, "the tree refers back to its root"));
            }
            if self.steps.len() > self.levels {
                return Ok(below);
            }
            let mut step = Step { number: below, block: self.volume.dir_block(self.dir, below)?, position: 0 };
            step.position = choose(&step.index(&self.format).of(self.dir.number)?);
            self.steps.push(step);
        }
    }

    /// The lowest hash of the leaf after the current one; `None` at the last.
    pub(crate) fn next_hash(&self) -> Result<Option<u32>> {
        for step in self.steps.iter().rev() {
            let index = step.index(&self.format).of(self.dir.number)?;
            if let Some(hash) = index.hash(step.position + 1) {
                return Ok(Some(hash));
            }
        }
        Ok(None)
    }

    /// Moves to the next leaf; after an error, to the first one behind the unreadable part.
    pub(crate) fn advance(&mut self) -> Result<Option<FileBlock>> {
        while let Some(step) = self.steps.last_mut() {
            if step.position + 1 < step.index(&self.format).of(self.dir.number)?.len() {
                step.position += 1;
                return self.down(|_| 0).map(Some);
            }
            self.steps.pop();
        }
        Ok(None)
    }

    /// The leaf after the current one, if it may contain further names of `hash`.
    pub(crate) fn next_leaf(&mut self, hash: u32) -> Result<Option<FileBlock>> {
        match self.next_hash()? {
            Some(next) if next & !CONTINUES == hash & !CONTINUES => self.advance(),
            _ => Ok(None),
        }
    }
}
