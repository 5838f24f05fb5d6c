//! Changes to a file's map, in either form.
//!
//! The inode is edited as a copy ([`InodeBuf`]), so that map, size and times of one change are written together.
//! Whatever a function here returns, the copy matches the blocks of the map afterwards and must be written to the
//! table.

use crate::change::Change;
use crate::extents::Extents;
use crate::indirect::Indirect;
use crate::inline_data::is_inline;
use crate::map::role;
use crate::{Error, FileKind, Inode, InodeFlags, InodeNo, Inodes, Result};
use format::extent::Extent;
use format::feature::{Incompat, RoCompat};
use format::inode::InodeBuf;
use format::superblock::Geometry;
use format::{FileBlock, FsBlock};
use std::ops::Range;
use std::sync::Arc;
use store::{Kind, Part, Tag};

/// Metadata blocks that a change at one position of a map may dirty: two nodes on each level of a tree and a new root,
/// and the inode.
pub(crate) const ONE_PLACE: usize = 14;
/// Leaves of a longer map that one change clears; see [`CLEARING`].
const LEAVES: usize = 12;
/// Metadata blocks that such a change may dirty: the leaves and their neighbours, their ancestors, and the inode.
pub(crate) const CLEARING: usize = 2 * LEAVES + 16;

/// The part of a map that a change may still clear.
pub(crate) struct Steps {
    leaves: usize,
    /// Runs of blocks: each may be in a different group, whose bitmap is changed.
    runs: usize,
    /// Blocks: an engine that journals data must be notified of each.
    blocks: u64,
}

impl Steps {
    /// The limits for [`CLEARING`] credits.
    pub(crate) fn new() -> Self {
        Self { leaves: LEAVES, runs: 128, blocks: 1 << 18 }
    }

    /// The limits for everything allocated in the same change.
    pub(crate) fn all() -> Self {
        Self { leaves: usize::MAX, runs: usize::MAX, blocks: u64::MAX }
    }

    /// Counts a leaf in which these runs, ascending, would be cleared: the first block in the file, and the number of
    /// blocks. Returns the block to stop before; `None` if nothing more may be cleared.
    pub(crate) fn take(&mut self, runs: impl Iterator<Item = (u64, u64)>) -> Option<u64> {
        if self.runs == 0 || self.blocks == 0 {
            return None;
        }
        self.leaves = self.leaves.checked_sub(1)?;
        for (first, len) in runs {
            if self.runs == 0 || self.blocks == 0 {
                return Some(first);
            }
            let taken = len.min(self.blocks);
            self.runs -= 1;
            self.blocks -= taken;
            if taken < len {
                return Some(first + taken);
            }
        }
        Some(u64::MAX)
    }
}

/// Blocks that are no longer mapped: the first of each run, its length, and its former block in the file.
#[derive(Default)]
pub(crate) struct Freed(Vec<(FsBlock, u64, u64)>);

impl Freed {
    pub(crate) fn add(&mut self, first: FsBlock, count: u64, at: u64) {
        match self.0.last_mut() {
            Some((before, n, from)) if (before.get() + *n, *from + *n) == (first.get(), at) => *n += count,
            _ => self.0.push((first, count, at)),
        }
    }

    /// The first block of each run, and its length.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (FsBlock, u64)> {
        self.0.iter().map(|(first, count, _)| (*first, *count))
    }

    pub(crate) fn append(&mut self, other: Self) {
        other.0.into_iter().for_each(|(first, count, at)| self.add(first, count, at));
    }
}

/// A form of map: an extent tree, or indirect blocks. The caller of its methods holds the inode's lock, and writes the
/// copy of the inode to its table whatever they return.
pub(crate) trait MapForm {
    /// The end of the range of blocks that it can map.
    fn reach(&self, geometry: &Geometry) -> u64;

    /// See [`Change::map_allocate`].
    fn allocate(
        &self,
        change: &Change<'_>,
        owner: &Inode,
        buf: &mut InodeBuf,
        at: FileBlock,
        want: u64,
        unwritten: bool,
    ) -> Result<Extent>;

    /// Unmaps blocks from the start of a range within one leaf, and adds them to `freed`; returns the block to continue
    /// from, or `None` if `steps` are used up.
    fn clear_leaf(
        &self,
        change: &Change<'_>,
        owner: &Inode,
        buf: &mut InodeBuf,
        range: Range<u64>,
        steps: &mut Steps,
        freed: &mut Freed,
    ) -> Result<Option<u64>>;
}

fn by_extents(buf: &InodeBuf) -> bool {
    buf.raw().flags().contains(InodeFlags::EXTENTS)
}

fn form_of(buf: &InodeBuf) -> &'static dyn MapForm {
    if by_extents(buf) { &Extents } else { &Indirect }
}

impl Inodes {
    /// Adds blocks to and subtracts them from an inode's count.
    ///
    /// # Errors
    /// [`Error::FileTooLarge`] if `i_blocks` would overflow; then nothing changed.
    pub(crate) fn count_blocks(&self, buf: &mut InodeBuf, more: u64, fewer: u64) -> Result<()> {
        let block_size = self.sb.geometry.block_size;
        let huge_file = self.sb.features.ro_compat.contains(RoCompat::HUGE_FILE);
        let sectors = |blocks: u64| blocks.saturating_mul(u64::from(block_size / 512));
        let now = buf.raw().sectors(huge_file, block_size);
        let then = now.saturating_add(sectors(more)).saturating_sub(sectors(fewer));
        buf.set_sectors(then, huge_file, block_size).ok_or(Error::FileTooLarge)
    }

    /// Frees blocks of a file behind its size, the rest of a truncation interrupted by a crash or an error, and removes
    /// the file from the orphan list. The caller has the inode's lock.
    pub(crate) fn end_truncate(&self, number: InodeNo) -> Result<Arc<Inode>> {
        let mut inode = self.inode(number)?;
        if inode.kind == FileKind::Regular && !is_inline(&inode) {
            let first = inode.size.div_ceil(u64::from(self.sb.geometry.block_size));
            inode = self.clear_from(inode, first)?;
        }
        let change = self.change_freeing(2 + crate::orphan_list::LISTING)?;
        change.end_orphan(&inode)
    }

    /// Frees the blocks of a file from `first` on, in as many changes as necessary. The caller has the inode's lock.
    pub(crate) fn clear_from(&self, inode: Arc<Inode>, first: u64) -> Result<Arc<Inode>> {
        let (mut inode, mut at) = (inode, Some(first));
        while let Some(from) = at {
            let change = self.change_freeing(CLEARING)?;
            (inode, at) =
                change.edit_inode(&inode, |buf| change.map_clear(&inode, buf, from, u64::MAX, &mut Steps::new()))?;
        }
        Ok(inode)
    }
}

impl Change<'_> {
    /// Edits a copy of an inode and writes it to its table, also if the edit failed: the blocks of the map match the
    /// copy.
    pub(crate) fn edit_inode<R>(
        &self,
        inode: &Inode,
        work: impl FnOnce(&mut InodeBuf) -> Result<R>,
    ) -> Result<(Arc<Inode>, R)> {
        let mut buf = InodeBuf::from(inode.raw());
        let outcome = work(&mut buf);
        let inode = self.put_inode(inode.number, buf)?;
        outcome.map(|value| (inode, value))
    }

    /// Allocates and maps blocks for a hole at `at`, at most `want`, contiguous.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::FileTooLarge`]; then nothing changed.
    pub(crate) fn map_allocate(
        &self,
        owner: &Inode,
        buf: &mut InodeBuf,
        at: FileBlock,
        want: u64,
        unwritten: bool,
    ) -> Result<Extent> {
        let run = form_of(buf).allocate(self, owner, buf, at, want, unwritten)?;
        self.record_run(owner.number, Part::Content(at.get()), (run.physical, run.len.into()), true);
        Ok(run)
    }

    /// Replaces written blocks from `at` on by newly allocated ones, at most `want`, contiguous both before and after;
    /// the old ones are freed. The caller must write the content.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::FileTooLarge`]; then nothing changed.
    pub(crate) fn map_replace(&self, owner: &Inode, buf: &mut InodeBuf, at: FileBlock, want: u64) -> Result<Extent> {
        if !by_extents(buf) {
            return Err(Error::Unsupported("copying the content of a file without extents".into()));
        }
        let run = self.extents_replace(owner, buf, at, want)?;
        self.record_run(owner.number, Part::Content(at.get()), (run.physical, run.len.into()), true);
        Ok(run)
    }

    /// Marks mapped blocks, which are part of one run, as written or unwritten.
    pub(crate) fn map_convert(&self, owner: &Inode, buf: &mut InodeBuf, run: Extent) -> Result<()> {
        self.extents_convert(owner, buf, run)
    }

    /// Unmaps and frees the blocks of `from..to`, as far as `steps` permit; returns the block to continue from.
    pub(crate) fn map_clear(
        &self,
        owner: &Inode,
        buf: &mut InodeBuf,
        from: u64,
        to: u64,
        steps: &mut Steps,
    ) -> Result<Option<u64>> {
        let form = form_of(buf);
        let (mut at, to) = (from, to.min(form.reach(&self.volume.sb.geometry)));
        let mut freed = Freed::default();
        let outcome = loop {
            if at >= to {
                break Ok(None);
            }
            match form.clear_leaf(self, owner, buf, at..to, steps, &mut freed) {
                Ok(Some(next)) => at = next,
                Ok(None) => break Ok(Some(at)),
                Err(e) => break Err(e),
            }
        };
        self.release(owner, buf, freed)?;
        outcome
    }

    /// Frees blocks that were removed from a map.
    pub(crate) fn release(&self, owner: &Inode, buf: &mut InodeBuf, freed: Freed) -> Result<()> {
        for (first, count, at) in freed.0 {
            self.volume.count_blocks(buf, 0, count)?;
            self.record_run(owner.number, Part::Content(at), (first, count), false);
            self.free(first, count, role(owner).purpose())?;
        }
        Ok(())
    }

    /// Appends a block to a directory: it is mapped and counted; the caller must write its content, with
    /// [`Change::fresh`].
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::FileTooLarge`]; then nothing changed.
    pub(crate) fn grow_directory(&self, dir: &Inode) -> Result<(Arc<Inode>, FileBlock, FsBlock)> {
        let block_size = u64::from(self.volume.sb.geometry.block_size);
        let at = FileBlock(dir.size / block_size);
        let size = dir.size.saturating_add(block_size);
        if size > u64::from(u32::MAX) && !self.volume.sb.features.incompat.contains(Incompat::LARGE_DIR) {
            return Err(Error::FileTooLarge);
        }
        let (dir, run) = self.edit_inode(dir, |buf| {
            let run = self.map_allocate(dir, buf, at, 1, false)?;
            buf.set_size(size);
            Ok(run)
        })?;
        Ok((dir, at, run.physical))
    }

    /// Writes the first content of an inode, which is written as metadata: the target of a link, the value of an
    /// attribute inode. The inode's flags determine the form of its map, which is empty.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; then nothing changed.
    pub(crate) fn write_small_content(&self, inode: &Inode, bytes: &[u8]) -> Result<Arc<Inode>> {
        let block_size = self.volume.sb.geometry.block_size as usize;
        let tag = Tag::new(Kind::Data, inode.number);
        let (inode, ()) = self.edit_inode(inode, |buf| {
            let count = bytes.len().div_ceil(block_size) as u64;
            let (mut at, mut runs) = (0, Vec::new());
            while at < count {
                match self.map_allocate(inode, buf, FileBlock(at), count - at, false) {
                    Ok(run) => {
                        at += u64::from(run.len);
                        runs.push(run);
                    }
                    Err(e) => {
                        self.map_clear(inode, buf, 0, count, &mut Steps::all())?;
                        return Err(e);
                    }
                }
            }
            let blocks = runs.iter().flat_map(|run| (0..u64::from(run.len)).map(|n| run.physical.get() + n));
            for (block, part) in blocks.zip(bytes.chunks(block_size)) {
                self.fresh(FsBlock(block), tag, |place| {
                    place.iter_mut().zip(part).for_each(|(place, byte)| *place = *byte);
                });
            }
            buf.set_size(bytes.len() as u64);
            Ok(())
        })?;
        Ok(inode)
    }
}
