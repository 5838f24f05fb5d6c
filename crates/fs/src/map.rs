//! The mapping from a block of a file to a block of the volume.

mod edit;
mod largest;

pub(crate) use edit::{CLEARING, Freed, MapForm, ONE_PLACE, Steps};

use crate::alloc::Role;

use crate::inline_data::is_inline;
use crate::layers::stands_on;
use crate::{Base, FileKind, Inode, InodeFlags, Result};
use format::extent::ExtentHeader;
use format::indirect::DIRECT;
use format::{FileBlock, FsBlock};
use zerocopy::FromBytes;

/// Consecutive blocks of a file, and their mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileExtent {
    /// The first block of the file.
    pub logical: FileBlock,
    /// Number of blocks, at least 1. A hole after the last mapped block extends to the maximum of the map.
    pub len: u64,
    /// The mapping of these blocks.
    pub mapping: Mapping,
}

/// The mapping of a run of a file's blocks, according to the file's map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mapping {
    /// Not mapped: reads as zeroes.
    Hole,
    /// Allocated from this block on, but never written: reads as zeroes.
    Unwritten(FsBlock),
    /// Written, from this block on.
    Data(FsBlock),
}

impl FileExtent {
    /// The first block to read; `None` if the run reads as zeroes.
    #[must_use]
    pub fn physical(&self) -> Option<FsBlock> {
        match self.mapping {
            Mapping::Data(block) => Some(block),
            Mapping::Hole | Mapping::Unwritten(_) => None,
        }
    }

    /// The first block of the file after the run.
    #[must_use]
    pub fn end(&self) -> FileBlock {
        FileBlock(self.logical.get().saturating_add(self.len))
    }

    /// The part of the run from one of its blocks on.
    pub(crate) fn from(&self, from: FileBlock) -> Self {
        let skipped = from.get().saturating_sub(self.logical.get());
        let mapping = match self.mapping {
            Mapping::Hole => Mapping::Hole,
            Mapping::Unwritten(block) => Mapping::Unwritten(FsBlock(block.get().saturating_add(skipped))),
            Mapping::Data(block) => Mapping::Data(FsBlock(block.get().saturating_add(skipped))),
        };
        Self { logical: from, len: self.len.saturating_sub(skipped).max(1), mapping }
    }

    /// A hole from `from` to `end`, which is greater.
    pub(crate) fn hole(from: FileBlock, end: u64) -> Self {
        Self { logical: from, len: end.saturating_sub(from.get()).max(1), mapping: Mapping::Hole }
    }
}

/// The maps of inodes, and the content read through them.
pub struct Maps {
    pub(crate) base: Base,
}

stands_on!(Maps, base: Base);

impl Maps {
    pub(crate) fn over(base: Base) -> Self {
        Self { base }
    }

    /// The run that begins at a block of a file, as long as found by one lookup in the map; the next one may continue
    /// it. The file's size is not considered. An inode without a map (inline data, a fast symbolic link, a device) is
    /// one hole.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt) for a corrupt map.
    pub fn map(&self, inode: &Inode, from: FileBlock) -> Result<FileExtent> {
        let flags = inode.raw().flags();
        let run = if is_inline(inode) || !has_map(inode.kind) || inode.is_fast_symlink() {
            FileExtent::hole(from, u64::MAX)
        } else if flags.contains(InodeFlags::EXTENTS) {
            self.map_extents(inode, from)?
        } else {
            self.map_indirect(inode, from)?
        };
        if let Mapping::Data(first) | Mapping::Unwritten(first) = run.mapping {
            self.may_lead_to(inode, first, run.len, role(inode).purpose())?;
        }
        Ok(run)
    }
}

pub(crate) fn has_map(kind: FileKind) -> bool {
    matches!(kind, FileKind::Regular | FileKind::Directory | FileKind::Symlink)
}

/// Whether an inode has mapped blocks (or an attribute block, which the count does not distinguish).
pub(crate) fn has_blocks(volume: &Maps, inode: &Inode) -> bool {
    has_map(inode.kind) && !is_inline(inode) && !inode.is_fast_symlink() && inode.sectors(&volume.sb) > 0
}

/// Whether a map is entirely in its inode.
pub(crate) fn is_in_inode(inode: &Inode) -> bool {
    let raw = inode.raw();
    if raw.flags().contains(InodeFlags::EXTENTS) {
        let header = ExtentHeader::ref_from_prefix(&raw.disk.i_block).ok();
        header.is_some_and(|(header, _)| header.eh_depth.get() == 0)
    } else {
        raw.block_words::<15>().iter().skip(DIRECT as usize).all(|word| *word == 0)
    }
}

/// The allocation role of an inode's content blocks: content that is written as metadata counts as metadata.
pub(crate) fn role(owner: &Inode) -> Role {
    if owner.kind == FileKind::Regular && !owner.raw().flags().contains(InodeFlags::EA_INODE) {
        Role::Content
    } else {
        Role::Metadata
    }
}
