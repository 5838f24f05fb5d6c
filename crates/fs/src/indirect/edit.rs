//! Changes to indirect maps: pointers set, missing indirect blocks allocated, empty ones freed.
//!
//! The inode is a copy, as for extent trees. Each step is limited to the range of one indirect block of the lowest
//! level (or `i_block`).

use super::{BlockPointers, Indirect, pointed};
use crate::alloc::Role;
use crate::change::Change;
use crate::map::{Freed, MapForm, Steps, role};
use crate::{Error, Inode, Maps, Result};
use format::extent::Extent;
use format::indirect::{DIRECT, IndirectFormat};
use format::inode::InodeBuf;
use format::superblock::Geometry;
use format::tail::Tailed;
use format::{FileBlock, FsBlock, Where};
use space::Purpose;
use std::ops::Range;
use std::sync::Arc;
use store::{Kind, Part};
use zerocopy::little_endian::U32;

/// The path to a block's pointer, as far as it exists.
struct Path {
    format: IndirectFormat,
    /// Index into `i_block`, then one for each indirect block.
    indexes: Vec<usize>,
    /// The existing indirect blocks, the highest first.
    blocks: Vec<(FsBlock, Arc<[u8]>)>,
}

impl Path {
    /// Number of indirect blocks that are missing.
    fn missing(&self) -> usize {
        self.indexes.len() - 1 - self.blocks.len()
    }

    /// The index into the lowest existing block.
    fn index(&self) -> usize {
        self.indexes.get(self.blocks.len()).copied().unwrap_or_default()
    }

    /// The pointers from the block's own to the last of the same list; empty if indirect blocks are missing.
    fn list<'a>(&'a self, words: &'a BlockPointers) -> &'a [U32] {
        match self.blocks.last() {
            _ if self.missing() > 0 => &[],
            None => words.get(self.index()..DIRECT as usize).unwrap_or_default(),
            Some((_, bytes)) => self.format.pointers(bytes).get(self.index()..).unwrap_or_default(),
        }
    }
}

fn pointers_of(buf: &InodeBuf) -> BlockPointers {
    buf.raw().block_words::<15>().map(U32::new)
}

fn set_word(buf: &mut InodeBuf, index: usize, block: FsBlock) {
    let mut words = buf.raw().block_words::<15>();
    if let Some(word) = words.get_mut(index) {
        *word = block.get() as u32;
    }
    buf.set_block_words(&words);
}

/// Sets pointers from `index` on to consecutive blocks, or to zero.
fn set_pointers(bytes: &mut [u8], index: usize, count: usize, first: Option<FsBlock>) {
    let places = bytes.chunks_exact_mut(4).skip(index).take(count);
    for (place, n) in places.zip(0u64..) {
        let pointer = first.map_or(0, |block| (block.get() + n) as u32);
        place.copy_from_slice(&pointer.to_le_bytes());
    }
}

/// The runs mapped by a list of pointers, the first of which is for block `at`: the first block of each run, and its
/// length.
fn runs_of(list: &[U32], at: u64) -> Vec<(u64, u64)> {
    let follows = |a: &(u64, u64), b: &(u64, u64)| a.0 + 1 == b.0 && a.1 + 1 == b.1;
    let mapped = list.iter().zip(at..).map(|(p, n)| (n, u64::from(p.get()))).filter(|(_, p)| *p != 0);
    let mapped: Vec<(u64, u64)> = mapped.collect();
    let runs = mapped.chunk_by(follows).filter_map(|run| Some((run.first()?.0, run.len() as u64)));
    runs.collect()
}

impl Maps {
    fn indirect_path(&self, owner: &Inode, buf: &InodeBuf, at: FileBlock) -> Result<Path> {
        let format = self.sb.geometry.indirect();
        let indexes = format.path(at).ok_or(Error::FileTooLarge)?;
        let indexes = indexes.indexes().iter().map(|i| *i as usize).collect();
        let mut path = Path { format, indexes, blocks: Vec::new() };
        let words = pointers_of(buf);
        let mut list: &[U32] = words.get(path.index()..).unwrap_or_default();
        let mut place = Where::Inode(owner.number);
        let mut bytes: Arc<[u8]>;
        while path.missing() > 0 && list.first().is_some_and(|p| p.get() != 0) {
            let block = pointed(&self.sb, list, place)?;
            bytes = self.indirect_block(owner, block, path.missing() as u32)?;
            place = Where::Block(block);
            path.blocks.push((block, Arc::clone(&bytes)));
            list = format.pointers(&bytes).get(path.index()..).unwrap_or_default();
        }
        Ok(path)
    }

    /// The goal of an allocation for `at`: the block after the one that is mapped for the preceding block of the file.
    fn indirect_goal(&self, owner: &Inode, buf: &InodeBuf, at: FileBlock) -> Result<Option<FsBlock>> {
        let Some(before) = at.get().checked_sub(1) else { return Ok(None) };
        let path = self.indirect_path(owner, buf, FileBlock(before))?;
        let pointer = path.list(&pointers_of(buf)).first().map_or(0, |p| p.get());
        Ok((pointer > 0).then(|| FsBlock(u64::from(pointer) + 1)))
    }
}

impl MapForm for Indirect {
    fn reach(&self, geometry: &Geometry) -> u64 {
        geometry.indirect().reach()
    }

    /// Allocates missing indirect blocks before the data.
    fn allocate(
        &self,
        change: &Change<'_>,
        owner: &Inode,
        buf: &mut InodeBuf,
        at: FileBlock,
        want: u64,
        unwritten: bool,
    ) -> Result<Extent> {
        if unwritten {
            return Err(Error::Unsupported("unwritten blocks in a file without extents".into()));
        }
        let volume = change.volume;
        let path = volume.indirect_path(owner, buf, at)?;
        let words = pointers_of(buf);
        let missing = path.missing();
        let slots = if missing > 0 {
            let last = path.indexes.last().copied().unwrap_or_default();
            path.format.per_block().saturating_sub(last as u64)
        } else {
            path.list(&words).iter().take_while(|p| p.get() == 0).count() as u64
        };
        let want = want.min(slots).min(1 << 30) as u32;
        if want == 0 {
            return Err(Error::Invalid("the blocks are already mapped"));
        }
        let goal = volume.indirect_goal(owner, buf, at)?.unwrap_or_else(|| volume.goal(owner));
        volume.count_blocks(buf, u64::from(want) + missing as u64, 0)?;
        let (chain, data) = match change.indirect_blocks(owner, goal, &path, want) {
            Ok(both) => both,
            Err(e) => {
                volume.count_blocks(buf, 0, u64::from(want) + missing as u64)?;
                return Err(e);
            }
        };
        let run = Extent { logical: at, physical: data.0, len: data.1, unwritten: false };
        volume.count_blocks(buf, 0, u64::from(want - run.len))?;
        let (tag, ends) = (change.tag(Kind::Indirect, owner), volume.sb.geometry.tail(Tailed::Indirect));
        let below = path.indexes.get(path.blocks.len() + 1..).unwrap_or_default();
        for (n, (block, index)) in chain.iter().zip(below).enumerate() {
            let (count, first) = chain.get(n + 1).map_or((run.len as usize, run.physical), |next| (1, *next));
            change.fresh(*block, tag, |bytes| {
                set_pointers(bytes, *index, count, Some(first));
                // a block is longer than a tail
                let _ = ends.write(bytes, owner.number, (chain.len() - n) as u64);
            });
        }
        // the new blocks, or the highest block of the chain to them, are linked at the end of the path
        let (count, first) = chain.first().map_or((run.len as usize, run.physical), |block| (1, *block));
        match path.blocks.last() {
            Some((block, _)) => {
                change.edit(*block, tag, |bytes| set_pointers(bytes, path.index(), count, Some(first)))?;
            }
            None => (0..count).for_each(|n| set_word(buf, path.index() + n, FsBlock(first.get() + n as u64))),
        }
        Ok(run)
    }

    fn clear_leaf(
        &self,
        change: &Change<'_>,
        owner: &Inode,
        buf: &mut InodeBuf,
        range: Range<u64>,
        steps: &mut Steps,
        freed: &mut Freed,
    ) -> Result<Option<u64>> {
        let at = range.start;
        let path = change.volume.indirect_path(owner, buf, FileBlock(at))?;
        if path.missing() > 0 {
            // the range of the pointer at the end of the path
            let format = &path.format;
            let levels = path.indexes.iter().rev().zip(0..path.missing() as u32);
            let into = levels.fold(0, |into, (index, level)| into + *index as u64 * format.span(level));
            return Ok(Some(at.saturating_add(format.span(path.missing() as u32) - into)));
        }
        let words = pointers_of(buf);
        let list = path.list(&words);
        let mut count = (list.len() as u64).min(range.end - at);
        let runs = runs_of(list.get(..count as usize).unwrap_or_default(), at);
        if !runs.is_empty() {
            match steps.take(runs.into_iter()) {
                None => return Ok(None),
                Some(stop) => count = count.min(stop.saturating_sub(at)),
            }
            change.clear_pointers(owner, buf, (&path, at), count as usize, freed)?;
        }
        Ok(Some(at + count))
    }
}

impl Change<'_> {
    /// Allocates the indirect blocks missing from a path, and up to `want` blocks for data behind them; all of them
    /// with numbers of 32 bits.
    fn indirect_blocks(
        &self,
        owner: &Inode,
        goal: FsBlock,
        path: &Path,
        want: u32,
    ) -> Result<(Vec<FsBlock>, (FsBlock, u32))> {
        let missing = path.missing();
        let mut chain: Vec<FsBlock> = Vec::with_capacity(missing);
        let (mut goal, mut near) = (goal, goal);
        let outcome = loop {
            let of_data = chain.len() == missing;
            let (role, count) = match path.indexes.first() {
                _ if of_data => (role(owner), want),
                Some(&index) if index as u64 == DIRECT => (Role::FirstIndirect, 1),
                _ => (Role::Metadata, 1),
            };
            match self.allocate(owner.number, if of_data { goal } else { near }, count, role) {
                Ok(run) if run.first.get() + u64::from(run.count) > u64::from(u32::MAX) => {
                    self.free(run.first, u64::from(run.count), role.purpose())?;
                    break Err(Error::NoSpace);
                }
                Ok(run) if of_data => break Ok((run.first, run.count)),
                Ok(run) => {
                    self.record_run(owner.number, Part::Map, (run.first, 1), true);
                    chain.push(run.first);
                    near = FsBlock(run.first.get() + 1);
                    if !self.volume.space()?.rule.is_near_inode(role) {
                        goal = near;
                    }
                }
                Err(e) => break Err(e),
            }
        };
        match outcome {
            Ok(data) => Ok((chain, data)),
            Err(e) => {
                chain.iter().try_for_each(|block| self.free_indirect(owner, *block))?;
                Err(e)
            }
        }
    }

    fn free_indirect(&self, owner: &Inode, block: FsBlock) -> Result<()> {
        self.record_run(owner.number, Part::Map, (block, 1), false);
        self.free(block, 1, Purpose::Metadata)
    }

    /// Clears pointers at the end of the path to block `at`, and frees the indirect blocks that become empty.
    fn clear_pointers(
        &self,
        owner: &Inode,
        buf: &mut InodeBuf,
        (path, at): (&Path, u64),
        count: usize,
        freed: &mut Freed,
    ) -> Result<()> {
        let words = pointers_of(buf);
        let place = path.blocks.last().map_or(Where::Inode(owner.number), |(block, _)| Where::Block(*block));
        let list = path.list(&words).get(..count).unwrap_or_default();
        let mut gone = Freed::default();
        for (n, _) in list.iter().enumerate().filter(|(_, p)| p.get() != 0) {
            gone.add(pointed(&self.volume.sb, list.get(n..).unwrap_or_default(), place)?, 1, at + n as u64);
        }
        for (first, count) in gone.runs() {
            self.prepare_to_free(first, count)?;
        }
        // whether or not it becomes empty
        path.blocks.iter().try_for_each(|(block, _)| self.prepare_to_free(*block, 1))?;
        freed.append(gone);
        let tag = self.tag(Kind::Indirect, owner);
        let mut count = count;
        for (n, (block, bytes)) in path.blocks.iter().enumerate().rev() {
            let index = path.indexes.get(n + 1).copied().unwrap_or_default();
            let mut others =
                path.format.pointers(bytes).iter().enumerate().filter(|(i, _)| !(index..index + count).contains(i));
            if others.any(|(_, p)| p.get() != 0) {
                return self.edit(*block, tag, |bytes| set_pointers(bytes, index, count, None));
            }
            self.free_indirect(owner, *block)?;
            self.volume.count_blocks(buf, 0, 1)?;
            count = 1;
        }
        let first = path.indexes.first().copied().unwrap_or_default();
        (first..first + count).for_each(|index| set_word(buf, index, FsBlock(0)));
        Ok(())
    }
}
