//! Space for files apart from writing content: preallocated, freed, moved.

use crate::file::edit::{FileEdit, stamp};
use crate::inline_data::is_inline;
use crate::map::{CLEARING, ONE_PLACE, Steps};
use crate::{Error, Files, InodeFlags, InodeNo, Mapping, Result};
use format::FileBlock;
use format::extent::{Extent, MAX_INIT_LEN};
use std::cell::Cell;
use std::sync::Arc;

/// An operation on a range of a file, as in fallocate(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AllocateMode {
    /// Allocate blocks that read as zeroes, and extend the file if the range ends behind it.
    Extend,
    /// Allocate blocks; the size stays (`FALLOC_FL_KEEP_SIZE`).
    KeepSize,
    /// Deallocate the range; the size stays (`FALLOC_FL_PUNCH_HOLE`).
    PunchHole,
    /// Make the range read as zeroes without freeing blocks, and extend the file as `Extend` does
    /// (`FALLOC_FL_ZERO_RANGE`).
    Zero,
    /// As `Zero`; the size stays.
    ZeroKeepSize,
    /// Remove the range: the content behind it moves to its start (`FALLOC_FL_COLLAPSE_RANGE`). Whole blocks only,
    /// inside the file.
    Collapse,
    /// Insert a hole: the content at the offset moves behind it (`FALLOC_FL_INSERT_RANGE`). Whole blocks only, inside
    /// the file.
    Insert,
}

impl Files {
    /// Allocates or frees space for a range of a regular file: `len` bytes from byte `offset` on. Files without extents
    /// support [`AllocateMode::PunchHole`] only. Long ranges are processed in steps; a crash between them, or a lack of
    /// space, leaves a part done: the file is consistent, but for `Collapse` and `Insert` of heavily fragmented files
    /// the content behind the range may be only partly moved. These two are durable when this returns, unless they are
    /// part of a transaction.
    ///
    /// # Errors
    /// As [`Files::write_at`]; [`Error::Invalid`] for ranges that are empty or (`Collapse`, `Insert`) not of whole
    /// blocks inside the file; [`Error::Unsupported`] for modes that need extents.
    pub fn allocate(&self, number: InodeNo, mode: AllocateMode, offset: u64, len: u64) -> Result<()> {
        let moved = Cell::new(false);
        self.edit_file(number, |file| match moved.get() {
            false => file.allocate(mode, offset, len, &moved),
            // content was already moved, and a retry would move it again
            true => Err(Error::NoSpace),
        })
    }

    /// Allocates blocks for the holes in a range of a regular file without writing any of them, and extends the file if
    /// the range ends behind it: it reads as whatever the device contained there, perhaps removed files of another
    /// user. For volumes made for measurements, where only the location of content matters.
    ///
    /// # Errors
    /// As [`Files::write_at`].
    pub fn allocate_stale(&self, number: InodeNo, offset: u64, len: u64) -> Result<()> {
        self.edit_file(number, |file| file.allocate_stale(offset, len))
    }
}

impl FileEdit<'_> {
    /// Sets `moved` if the operation must not be retried.
    fn allocate(&mut self, mode: AllocateMode, offset: u64, len: u64, moved: &Cell<bool>) -> Result<()> {
        if len == 0 {
            return Err(Error::Invalid("the range is empty"));
        }
        if !matches!(mode, AllocateMode::Extend | AllocateMode::KeepSize) {
            self.may_shrink()?;
        }
        let limit = self.volume.max_file_size(&self.inode);
        let end = offset.checked_add(len).filter(|end| *end <= limit || mode == AllocateMode::PunchHole);
        let end = end.ok_or(Error::FileTooLarge)?;
        if is_inline(&self.inode) {
            self.leave_inline()?;
        }
        if mode != AllocateMode::PunchHole && !self.inode.raw().flags().contains(InodeFlags::EXTENTS) {
            return Err(Error::Unsupported("this mode of fallocate(2) for a file without extents".into()));
        }
        self.flush()?;
        match mode {
            AllocateMode::Extend => self.fill_range(offset, end, true),
            AllocateMode::KeepSize => self.fill_range(offset, end, false),
            AllocateMode::PunchHole => self.punch(offset, end),
            AllocateMode::Zero => self.zero_range(offset, end, true),
            AllocateMode::ZeroKeepSize => self.zero_range(offset, end, false),
            AllocateMode::Collapse => self.collapse(offset, len, moved),
            AllocateMode::Insert => self.insert(offset, len, limit, moved),
        }
    }

    fn allocate_stale(&mut self, offset: u64, len: u64) -> Result<()> {
        let limit = self.volume.max_file_size(&self.inode);
        let end = offset.checked_add(len).filter(|end| *end <= limit).ok_or(Error::FileTooLarge)?;
        if is_inline(&self.inode) {
            self.leave_inline()?;
        }
        self.flush()?;
        let block_size = self.block_size() as u64;
        let filled = self.fill(offset / block_size, end.div_ceil(block_size), false);
        filled.and(self.end_at(end, true))
    }

    fn fill_range(&mut self, offset: u64, end: u64, grow: bool) -> Result<()> {
        let block_size = self.block_size() as u64;
        self.fill(offset / block_size, end.div_ceil(block_size), true)?;
        self.end_at(end, grow)
    }

    /// Extends the file to at least `end` if it may grow; updates its times in any case.
    fn end_at(&mut self, end: u64, grow: bool) -> Result<()> {
        let size = self.size();
        if grow && end > size {
            self.zero_tail()?;
        }
        self.set_size(if grow { end.max(size) } else { size })?;
        if grow {
            self.assume_end(end);
        }
        Ok(())
    }

    /// Allocates blocks for the holes of a range, marked as unwritten or, without `unwritten`, with their old content.
    fn fill(&mut self, from: u64, to: u64, unwritten: bool) -> Result<()> {
        let mut at = from;
        while at < to {
            let run = self.run(at)?;
            let end = run.end().get().min(to);
            if run.mapping != Mapping::Hole {
                at = end;
                continue;
            }
            self.map_changes();
            let inode = Arc::clone(&self.inode);
            let change = self.volume.change(ONE_PLACE)?;
            let (inode, extent) = change
                .edit_inode(&inode, |buf| change.map_allocate(&inode, buf, FileBlock(at), end - at, unwritten))?;
            self.inode = inode;
            at += u64::from(extent.len);
        }
        Ok(())
    }

    fn punch(&mut self, offset: u64, end: u64) -> Result<()> {
        let block_size = self.block_size() as u64;
        let size = self.size();
        // in the last block only the part before the end of the file is in use
        let end = if end >= size { end.max(size.next_multiple_of(block_size)) } else { end };
        let (first, last) = (offset.div_ceil(block_size), end / block_size);
        if first >= last {
            self.zero(offset, end.min(size))?;
            return self.end_at(size, false);
        }
        self.zero(offset, first * block_size)?;
        self.zero(last * block_size, end)?;
        self.clear(first, last)
    }

    fn zero_range(&mut self, offset: u64, end: u64, grow: bool) -> Result<()> {
        let block_size = self.block_size() as u64;
        let (first, last) = (offset.div_ceil(block_size), end / block_size);
        // what may lack space is done first: on failure the content is unchanged
        self.fill(offset / block_size, end.div_ceil(block_size), true)?;
        if first >= last {
            self.zero(offset, end)?;
        } else {
            self.zero(offset, first * block_size)?;
            self.zero(last * block_size, end)?;
            self.unwrite(first, last)?;
        }
        // blocks that must not be overwritten, such as those of a snapshot, became holes
        self.fill(offset / block_size, end.div_ceil(block_size), true)?;
        self.end_at(end, grow)
    }

    /// Marks the blocks of a range as unwritten, or makes them holes.
    fn unwrite(&mut self, from: u64, to: u64) -> Result<()> {
        let mut at = from;
        while at < to {
            let run = self.run(at)?;
            let Mapping::Data(physical) = run.mapping else {
                at = run.end().get();
                continue;
            };
            self.map_changes();
            let len = (to - at).min(run.len).min(u64::from(MAX_INIT_LEN) - 1) as u32;
            let unwritten = Extent { logical: FileBlock(at), physical, len, unwritten: true };
            let inode = Arc::clone(&self.inode);
            let change = self.volume.splitting(CLEARING)?;
            let (in_place, same) = change.in_place(physical, u64::from(len))?;
            // a later write overwrites the marked blocks in place, so blocks that must not be overwritten become holes
            let unwritten = Extent { len: same.min(u64::from(len)) as u32, ..unwritten };
            let end = at + u64::from(unwritten.len);
            (self.inode, ()) = change.edit_inode(&inode, |buf| match in_place {
                true => change.map_convert(&inode, buf, unwritten),
                false => change.map_clear(&inode, buf, at, end, &mut Steps::new()).map(drop),
            })?;
            at = end;
        }
        Ok(())
    }

    /// A range in whole blocks that begins inside the file.
    fn whole_blocks(&self, offset: u64, len: u64) -> Result<(u64, u64)> {
        let block_size = self.block_size() as u64;
        if !offset.is_multiple_of(block_size) || !len.is_multiple_of(block_size) {
            return Err(Error::Invalid("the range is not aligned to blocks"));
        }
        if offset >= self.size() {
            return Err(Error::Invalid("the range reaches beyond the end of the file"));
        }
        Ok((offset / block_size, len / block_size))
    }

    /// Repeats a step until it returns that it was the last. If there is no space, waits here, once, until freed space
    /// may be used, and the file stays locked: a retry by the caller would begin anew.
    fn in_steps(&mut self, mut step: impl FnMut(&mut Self) -> Result<bool>) -> Result<()> {
        let mut waited = false;
        loop {
            match step(self) {
                Ok(true) => return Ok(()),
                Ok(false) => waited = false,
                Err(Error::NoSpace) if !waited => {
                    waited = true;
                    self.volume.wait_for_space()?;
                    // what the step did before it stopped is done
                    self.inode = self.volume.inode(self.inode.number)?;
                }
                Err(e) => return Err(e),
            }
        }
    }

    fn collapse(&mut self, offset: u64, len: u64, moved: &Cell<bool>) -> Result<()> {
        let (from, by) = self.whole_blocks(offset, len)?;
        let size = self.size();
        let Some(size) = size.checked_sub(len).filter(|size| offset < *size) else {
            return Err(Error::Invalid("the range reaches the end of the file"));
        };
        self.map_changes();
        let (mut clear, mut shift) = (Some(from), from + by);
        self.in_steps(|file| {
            let inode = Arc::clone(&file.inode);
            let change = file.volume.splitting(CLEARING)?;
            let done;
            (file.inode, done) = change.edit_inode(&inode, |buf| {
                let mut steps = Steps::new();
                stamp(buf, change.now());
                if let Some(at) = clear {
                    clear = change.map_clear(&inode, buf, at, from + by, &mut steps)?;
                }
                if clear.is_some() {
                    return Ok(false);
                }
                moved.set(true);
                let done = change.extents_shift(&inode, buf, (from, &mut shift), by, false, &mut steps)?;
                if done {
                    buf.set_size(size);
                }
                Ok(done)
            })?;
            Ok(done)
        })?;
        self.make_move_durable()
    }

    fn insert(&mut self, offset: u64, len: u64, limit: u64, moved: &Cell<bool>) -> Result<()> {
        let (from, by) = self.whole_blocks(offset, len)?;
        let size = self.size().checked_add(len).filter(|size| *size <= limit).ok_or(Error::FileTooLarge)?;
        if self.volume.extents_end(&self.inode)?.saturating_add(by) > limit / self.block_size() as u64 {
            return Err(Error::FileTooLarge);
        }
        self.map_changes();
        let mut shift = u64::MAX;
        self.in_steps(|file| {
            let inode = Arc::clone(&file.inode);
            let change = file.volume.splitting(CLEARING)?;
            let done;
            (file.inode, done) = change.edit_inode(&inode, |buf| {
                moved.set(true);
                buf.set_size(size);
                stamp(buf, change.now());
                change.extents_shift(&inode, buf, (from, &mut shift), by, true, &mut Steps::new())
            })?;
            Ok(done)
        })?;
        self.make_move_durable()
    }

    /// Makes moves within the file durable before any moved block is overwritten in place: until then a crash restores
    /// the old map, which refers to the same blocks at other offsets.
    fn make_move_durable(&self) -> Result<()> {
        // a transaction overwrites nothing in place
        if self.volume.has_transaction() { Ok(()) } else { Ok(self.volume.store.sync()?) }
    }
}
