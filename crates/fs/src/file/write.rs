//! Writing into files.
//!
//! | bytes | destination |
//! | --- | --- |
//! | of written blocks inside the file | directly to the device, if they may be overwritten |
//! | of delayed blocks | the delayed data |
//! | of many whole blocks that are not allocated | directly to the device, with blocks allocated together |
//! | other | the delayed data, with reserved space |
//!
//! A block's first content and the map entry for it are in one change, so that no crash exposes the old content of the
//! block. The size in the inode is updated with them, never before.
//!
//! Blocks that must not be overwritten (see `Space::in_place`) are treated like a hole that reads as their content: new
//! content is delayed, with the rest of the block if only a part is written, and gets a new block.

use super::edit::{FileEdit, stamp};
use crate::change::Change;
use crate::map::ONE_PLACE;
use crate::mutant::Mutant;
use crate::{Error, FileExtent, Files, Inode, InodeFlags, InodeNo, Mapping, Result};
use format::extent::{Extent, capacity};
use format::indirect::DIRECT;
use format::{FileBlock, FsBlock, Structure, Where};
use space::Privilege;
use std::cell::{Cell, RefCell};
use std::sync::Arc;

/// The reason why an append-only file refuses content.
const APPEND_ONLY: &str = "the file is append-only";
/// Bytes: writes of at least this many in whole unallocated blocks are not delayed.
const BULK: usize = 256 << 10;
/// Maximum number of bytes for which one change allocates blocks.
const LARGEST: u64 = 64 << 20;
/// The origin of content for which blocks are allocated.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Put {
    /// A write now.
    Written,
    /// A write from the kernel's page cache, which sets the times.
    FromPageCache,
    /// Delayed data, with reserved space.
    Delayed,
}

/// Maximum number of buffers of delayed data that get blocks in one change.
const MAX_BUFFERS: usize = 64;

/// Set-user-id.
const S_ISUID: u16 = 0o4000;
/// Set-group-id.
const S_ISGID: u16 = 0o2000;
/// Execute permission of the group.
const S_IXGRP: u16 = 0o10;

/// The mode after a write or a change of owner, depending on whether the user is in the file's group. Without the
/// group's execute permission, set-group-id has another meaning, and stays if the user is in the group.
pub fn without_privileges(mode: u16, in_group: impl FnOnce() -> bool) -> u16 {
    let stays = mode & S_ISGID != 0 && mode & S_IXGRP == 0 && in_group();
    mode & !S_ISUID & if stays { !0 } else { !S_ISGID }
}

/// Options for writing content. The default is write(2) by a process that may preserve the privilege bits of files.
#[derive(Clone, Copy, Default)]
pub struct WriteHow<'a> {
    /// The content is appended, and the offset is the end of the file known to the caller. After a rollback the size
    /// known to a caller that [looked the file up](crate::Inodes::add_lookup) may be outdated: the content is appended
    /// all the same.
    pub append: bool,
    /// Parts of one write(2) may arrive in any order, not each after the answer to the one before: direct I/O.
    pub in_any_order: bool,
    /// Clear set-user-id before the content changes, and set-group-id: if the group may not execute the file, that
    /// stays if this function returns, for the file's group, that the writing user is a member.
    pub drop_privileges: Option<&'a dyn Fn(u32) -> bool>,
    /// Leave the times as they are: the page cache that had the content sets them.
    pub preserve_times: bool,
    /// The content is whole pages of a cache, including their earlier content. In an append-only file, such a page may
    /// fill bytes that are zero; where it differs from other bytes, these stay, and an error is returned. Either all is
    /// written or an error is returned, as with `whole`.
    pub pages: bool,
    /// No short count, which the caller would take for a complete write or for a failure of the device: an interruption
    /// is an error, also after a part was written.
    pub whole: bool,
}

/// The part of a file that was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// The byte offset of its start in the file.
    pub at: u64,
    /// The number of bytes.
    pub bytes: usize,
    /// The file had privilege bits, which were cleared.
    pub dropped: bool,
}

impl Files {
    /// Clears the privilege bits of a regular file whose content is about to change, as for
    /// [`WriteHow::drop_privileges`]; returns whether it had any.
    ///
    /// # Errors
    /// As [`Files::write_at`].
    pub fn drop_privileges(&self, number: InodeNo, in_group: &dyn Fn(u32) -> bool) -> Result<bool> {
        self.edit_file(number, |file| file.drop_privileges(in_group))
    }

    /// Writes to a regular file from byte `offset` on, and returns the number of bytes written: fewer than requested if
    /// the file's size is limited, or if there was no space for more. A gap between the end and `offset` reads as
    /// zeroes. The caller is responsible for permissions, and for the effect of a write on set-user-ID bits.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::FileTooLarge`], [`Error::NotPermitted`], [`Error::Encrypted`],
    /// [`Error::IsADirectory`], [`Error::Invalid`] for other kinds, [`Error::ReadOnly`].
    pub fn write_at(&self, number: InodeNo, offset: u64, data: &[u8]) -> Result<usize> {
        Ok(self.write_with(number, offset, data, &WriteHow::default())?.bytes)
    }

    /// As [`Files::write_at`], with options.
    ///
    /// # Errors
    /// As [`Files::write_at`]; [`Error::Busy`] if the position of appended content is not known.
    pub fn write_with(&self, number: InodeNo, offset: u64, data: &[u8], how: &WriteHow<'_>) -> Result<Written> {
        // on a retry, appended content goes to the same offset
        let (at, dropped) = (Cell::new(None), Cell::new(false));
        let allowed = RefCell::new(None);
        let (bytes, sync) = self.edit_file(number, |file| {
            if at.get().is_none() {
                if !how.append {
                    *allowed.borrow_mut() = file.may_overwrite(offset, data, how.pages)?;
                }
                at.set(Some(if how.append { file.end_for(offset, how.in_any_order)? } else { offset }));
            }
            if let Some(in_group) = how.drop_privileges.filter(|_| !data.is_empty())
                && file.drop_privileges(in_group)?
            {
                // a crash must not leave the new content with them
                dropped.set(true);
            }
            file.preserve_times = how.preserve_times;
            let whole = how.pages || how.whole;
            let bytes = file.write(at.get().unwrap_or(offset), allowed.borrow().as_deref().unwrap_or(data), whole)?;
            file.assume_end(offset.saturating_add(bytes as u64));
            Ok((bytes, file.inode.raw().flags().contains(InodeFlags::SYNC)))
        })?;
        if sync {
            self.fsync(number, false)?;
        }
        if allowed.into_inner().is_some() {
            return Err(Error::NotPermitted(APPEND_ONLY));
        }
        Ok(Written { at: at.get().unwrap_or(offset), bytes, dropped: dropped.get() })
    }

    /// Writes all delayed data of a file, and allocates its blocks.
    ///
    /// # Errors
    /// Those of the device; [`Error::Corrupt`] for a corrupt map, in which case the content is lost.
    pub fn flush_delayed(&self, number: InodeNo) -> Result<()> {
        let _guard = self.change_guard()?;
        let node = self.node(number);
        if node.read().delayed.is_empty() {
            return Ok(());
        }
        let mut state = node.write();
        // the file may have been freed meanwhile, and its content with it
        if state.delayed.is_empty() {
            return Ok(());
        }
        let inode = self.inode(number)?;
        let outcome = FileEdit { volume: self, node: &node, state: &mut state, inode, preserve_times: false }.flush();
        self.nodes.count_delayed(&mut state);
        outcome
    }

    /// Writes all delayed data of all files, and allocates its blocks.
    ///
    /// # Errors
    /// As [`Files::flush_delayed`]: the first, after all files were tried.
    pub fn flush_all_delayed(&self) -> Result<()> {
        let _guard = self.change_guard()?;
        let mut outcome = Ok(());
        for (number, _) in self.nodes.with_delayed() {
            outcome = outcome.and(self.flush_delayed(number));
        }
        outcome
    }

    /// Writes the new content of files that were truncated to nothing. Called before a generation is closed.
    pub(crate) fn flush_rewritten(&self) {
        if self.nodes.delayed() == 0 {
            return;
        }
        for number in self.nodes.rewritten.delayed() {
            // its own fsync reports an error
            let _ = self.flush_delayed(number);
        }
    }

    /// Makes a file's content and inode durable (with `data_only`, the inode as far as it is needed to read the
    /// content). For any kind of file.
    ///
    /// # Errors
    /// As [`Files::flush_delayed`], also for an earlier call by another process; those of the device, after which the
    /// volume is read-only.
    pub fn fsync(&self, number: InodeNo, data_only: bool) -> Result<()> {
        if self.writing.is_none() {
            return Ok(());
        }
        if self.is_parked(number) {
            return Err(Error::Stale(number));
        }
        let Some(_guard) = self.change_guard_for_sync()? else { return Ok(()) };
        self.flush_delayed(number)?;
        self.flush_rewritten();
        let node = self.node(number);
        if node.read().lost && std::mem::take(&mut node.write().lost) {
            let what = "delayed data could not be written and was lost";
            return Err(Error::corrupt(Structure::Inode, Where::Inode(number), what));
        }
        let newest = if data_only { node.datasync_generation() } else { node.sync_generation() };
        // content of rewritten files, written now or by another thread, may be in a later generation than their truncation
        // and this file's last change
        let newest = newest.max(self.nodes.rewritten.generation());
        let mut generation = newest.min(self.store.open_generation());
        if self.writing()?.options.mutant().is(Mutant::ShortSync) {
            generation = generation.saturating_sub(1);
        }
        self.store.sync_generation(generation)?;
        node.set_synced(generation);
        Ok(())
    }

    /// Maximum number of blocks of file data that a change may write.
    fn data_blocks(&self) -> u64 {
        if self.store.journals_data() {
            (self.store.max_credits() / 2).clamp(1, 64) as u64
        } else {
            LARGEST / u64::from(self.sb.geometry.block_size)
        }
    }

    /// Metadata blocks of a change at one position of a map that writes `blocks` blocks of data.
    fn data_credits(&self, blocks: u64) -> usize {
        ONE_PLACE + self.store.credits_for_data(blocks as usize)
    }

    /// The number of blocks at the start of a run that one change can write from `content`, which is whole blocks.
    fn blocks_at_once(&self, run: FileExtent, content: &[&[u8]]) -> u64 {
        let block_size = u64::from(self.sb.geometry.block_size);
        let blocks = content.iter().map(|buffer| buffer.len() as u64).sum::<u64>() / block_size;
        blocks.min(run.len).min(self.data_blocks())
    }
}

impl Change<'_> {
    /// Writes the content of the first `count` blocks of a run, at most, and allocates those that are unallocated. The
    /// content is whole blocks; the file is `size` bytes long with it. Returns the number of blocks written.
    fn put_content(
        &self,
        inode: &Arc<Inode>,
        (run, count): (FileExtent, u64),
        content: &[&[u8]],
        size: u64,
        as_it: Put,
    ) -> Result<(Arc<Inode>, u64)> {
        let change = self;
        let block_size = u64::from(self.volume.sb.geometry.block_size);
        change.edit_inode(inode, |buf| {
            let place = |physical, unwritten| Extent { logical: run.logical, physical, len: count as u32, unwritten };
            let extent = match run.mapping {
                Mapping::Hole => change.map_allocate(inode, buf, run.logical, count, false)?,
                Mapping::Unwritten(first) => match change.unwritten_in_place(first, count)? {
                    (true, same) => {
                        let written = Extent { len: same.min(count) as u32, ..place(first, false) };
                        change.map_convert(inode, buf, written)?;
                        written
                    }
                    (false, same) => change.map_replace(inode, buf, run.logical, same.min(count))?,
                },
                Mapping::Data(first) => match change.in_place(first, count)? {
                    (true, same) => Extent { len: same.min(count) as u32, ..place(first, false) },
                    (false, same) => change.map_replace(inode, buf, run.logical, same.min(count))?,
                },
            };
            let (mut at, mut left) = (extent.physical, u64::from(extent.len) * block_size);
            for buffer in content {
                let part = buffer.get(..left.min(buffer.len() as u64) as usize).unwrap_or_default();
                change.write_data(inode.number, at, 0, part)?;
                at = FsBlock(at.get() + part.len() as u64 / block_size);
                left -= part.len() as u64;
                if left == 0 {
                    break;
                }
            }
            let end = (run.logical.get() + u64::from(extent.len)).saturating_mul(block_size).min(size);
            if end > inode.size {
                buf.set_size(end);
            }
            // delayed data set the times when it was written; they may have been changed since
            if as_it == Put::Written {
                stamp(buf, change.now());
            }
            Ok(u64::from(extent.len))
        })
    }
}

impl FileEdit<'_> {
    /// The offset for content appended by a caller which assumes that the file ends at `end`.
    fn end_for(&mut self, end: u64, in_any_order: bool) -> Result<u64> {
        let size = self.size();
        match self.state.assumed {
            None => Ok(end),
            // the size has been queried since
            Some(_) if end == size => {
                self.state.assumed = None;
                Ok(size)
            }
            Some(assumed) if end == assumed => Ok(size),
            // it may be a part that belongs behind another
            Some(_) if in_any_order => Err(Error::Busy),
            // the caller learned the size, and then the file grew before the write
            Some(_) => Ok(size),
        }
    }

    /// Refuses content that an append-only file forbids. Appended pages arrive in any order, each with its earlier
    /// content: a page may arrive after the file has grown further. For a refused page, returns the content that may be
    /// written: it may contain data appended by others.
    fn may_overwrite(&self, offset: u64, data: &[u8], pages: bool) -> Result<Option<Vec<u8>>> {
        let inside = self.size().saturating_sub(offset).min(data.len() as u64) as usize;
        if inside == 0 || !self.inode.raw().flags().contains(InodeFlags::APPEND) {
            return Ok(None);
        }
        if !pages {
            return Err(Error::NotPermitted(APPEND_ONLY));
        }
        let mut there = vec![0; inside];
        self.read(offset, &mut there)?;
        let mut allowed = data.to_vec();
        for (new, there) in allowed.iter_mut().zip(there).filter(|(_, there)| *there != 0) {
            *new = there;
        }
        Ok(Some(allowed).filter(|allowed| allowed != data))
    }

    /// Raises the size assumed by callers that looked the file up to at least `end`.
    pub(crate) fn assume_end(&mut self, end: u64) {
        if let Some(assumed) = &mut self.state.assumed {
            *assumed = end.max(*assumed);
        }
    }

    /// Clears set-user-id, and set-group-id if it must be cleared with it; returns whether any was set. This is durable
    /// on return, unless there is a transaction, as content may reach the device at any time from then on.
    pub(crate) fn drop_privileges(&mut self, in_group: &dyn Fn(u32) -> bool) -> Result<bool> {
        let raw = self.inode.raw();
        let mode = raw.disk.i_mode.get();
        if mode & (S_ISUID | S_ISGID) == 0 {
            return Ok(false);
        }
        let left = without_privileges(mode, || in_group(raw.gid()));
        if left == mode {
            return Ok(false);
        }
        let change = self.volume.change(1)?;
        let (now, generation) = (change.now(), change.generation());
        self.inode = change.update_inode(&self.inode, |buf| {
            buf.set_mode(left);
            buf.set_ctime(now);
        })?;
        drop(change);
        if !self.volume.in_transaction() {
            self.volume.store.sync_generation(generation)?;
        }
        Ok(true)
    }

    /// Writes as much as there is space for, or, if `whole`, all or returns an error.
    fn write(&mut self, offset: u64, data: &[u8], whole: bool) -> Result<usize> {
        if data.is_empty() {
            return Ok(0);
        }
        let limit = self.volume.max_file_size(&self.inode);
        let Some(left) = limit.checked_sub(offset).filter(|left| *left > 0) else { return Err(Error::FileTooLarge) };
        if whole && (data.len() as u64) > left {
            return Err(Error::FileTooLarge);
        }
        let data = data.get(..usize::try_from(left).map_or(data.len(), |left| left.min(data.len()))).unwrap_or(data);
        if self.write_inline(offset, data)? {
            return Ok(data.len());
        }
        if offset > self.size() {
            self.zero_tail()?;
        }
        self.touch()?;
        let mut done = 0;
        while let Some(rest) = data.get(done..).filter(|rest| !rest.is_empty()) {
            match self.write_some(offset + done as u64, rest) {
                Ok(written) => done += written,
                Err(e) if done == 0 || whole => return Err(e),
                // the caller gets the number of bytes written; the error stops the next call
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Writes at least the first byte.
    fn write_some(&mut self, at: u64, data: &[u8]) -> Result<usize> {
        let block_size = self.block_size();
        let (block, into) = (at / block_size as u64, (at % block_size as u64) as usize);
        // the part of the data in the next `blocks` blocks
        let within = |blocks: u64| {
            let bytes = blocks.saturating_mul(block_size as u64) - into as u64;
            data.get(..usize::try_from(bytes).map_or(data.len(), |bytes| bytes.min(data.len()))).unwrap_or(data)
        };
        let here = self.state.delayed.here(block_size, block);
        if here > 0 {
            let data = within(here);
            self.state.delayed.overwrite(block_size, at, data);
            return Ok(self.written(at, data.len()));
        }
        let run = self.run(block)?;
        let next = self.state.delayed.next(block_size, block).map_or(run.len, |next| (next - block).min(run.len));
        let data = within(next);
        match run.mapping {
            Mapping::Data(first) => self.write_mapped(run, first, at, data),
            Mapping::Hole | Mapping::Unwritten(_) => self.write_elsewhere(run, at, data),
        }
    }

    /// Writes into blocks that are not allocated, or that must not be overwritten.
    fn write_elsewhere(&mut self, run: FileExtent, at: u64, data: &[u8]) -> Result<usize> {
        let block_size = self.block_size();
        let into = (at % block_size as u64) as usize;
        let after = if into == 0 { data.len() } else { data.len().saturating_sub(block_size - into) };
        let bulk = after - after % block_size;
        let data = match (bulk >= BULK, into) {
            (true, 0) => return self.write_at_once(run, data.get(..bulk).unwrap_or(data), at + bulk as u64),
            (true, _) => data.get(..block_size - into).unwrap_or(data),
            (false, _) => data,
        };
        let done = self.delay(run, at, data, at + data.len() as u64)?;
        Ok(self.written(at, done))
    }

    /// Updates the state of the file after a write; returns `len`.
    fn written(&mut self, at: u64, len: usize) -> usize {
        let end = at + len as u64;
        if end > self.size() {
            self.state.size = Some(end);
        }
        len
    }

    /// Writes into written blocks. Data beyond the end of the file is delayed with the size.
    fn write_mapped(&mut self, run: FileExtent, first: FsBlock, at: u64, data: &[u8]) -> Result<usize> {
        let block_size = self.block_size();
        let end = at + data.len() as u64;
        let inside = if end <= self.inode.size {
            data.len()
        } else {
            // whole blocks of the file, then the one with its end
            let whole = self.inode.size - self.inode.size % block_size as u64;
            whole.saturating_sub(at).min(data.len() as u64) as usize
        };
        let into = at % block_size as u64;
        if inside > 0 {
            let data = data.get(..inside).unwrap_or(data);
            return match self.overwrite(first, into, data)? {
                0 => self.write_elsewhere(run, at, data),
                done => Ok(done),
            };
        }
        let data = data.get(..block_size - into as usize).unwrap_or(data);
        let done = self.delay(run, at, data, end.min(at + data.len() as u64))?;
        Ok(self.written(at, done))
    }

    /// The blocks that contain `data`, whole, with their other content.
    fn with_rest(&self, first: FsBlock, at: u64, data: &[u8]) -> Result<Vec<u8>> {
        let block_size = self.block_size();
        let (into, start) = ((at % block_size as u64) as usize, at - at % block_size as u64);
        let end = into + data.len();
        let mut whole = vec![0; end.next_multiple_of(block_size)];
        let last = whole.len() - block_size;
        if into > 0 {
            self.volume.store.read(first, 0, whole.get_mut(..block_size).unwrap_or_default())?;
        }
        if end < whole.len() && (into == 0 || last > 0) {
            self.volume.store.read(first, last as u64, whole.get_mut(last..).unwrap_or_default())?;
        }
        // behind the end of the file blocks may contain anything
        let used = usize::try_from(self.size().saturating_sub(start)).unwrap_or(usize::MAX);
        whole.get_mut(used..).unwrap_or_default().fill(0);
        whole.get_mut(into..end).unwrap_or_default().copy_from_slice(data);
        Ok(whole)
    }

    /// Overwrites bytes of written blocks, as far as that is permitted; returns the number of bytes.
    pub(crate) fn overwrite(&mut self, first: FsBlock, offset: u64, data: &[u8]) -> Result<usize> {
        let mut done = 0;
        while let Some(rest) = data.get(done..).filter(|rest| !rest.is_empty()) {
            match self.overwrite_some(first, offset + done as u64, rest) {
                Ok(0) => break,
                Ok(some) => done += some,
                Err(e) if done == 0 => return Err(e),
                // the caller gets the number of bytes written, and the error in the next call
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// As [`FileEdit::overwrite`], as much as one change permits: all of that, or nothing.
    fn overwrite_some(&mut self, first: FsBlock, offset: u64, data: &[u8]) -> Result<usize> {
        let volume = self.volume;
        let block_size = self.block_size() as u64;
        let most = (volume.data_blocks() * block_size - offset % block_size) as usize;
        let part = data.get(..most).unwrap_or(data);
        let journaled = volume.store.journals_data();
        let change = volume.change(volume.store.credits_for_data(part.len() / block_size as usize + 2))?;
        let (at, into) = (FsBlock(first.get() + offset / block_size), offset % block_size);
        let (in_place, same) = change.in_place(at, (into + part.len() as u64).div_ceil(block_size))?;
        if !in_place {
            return Ok(0);
        }
        let len = (part.len() as u64).min(same.saturating_mul(block_size) - into);
        let part = part.get(..len as usize).unwrap_or(part);
        change.write_data(self.inode.number, at, into, part)?;
        if journaled {
            self.node.record_change(change.generation());
        }
        Ok(part.len())
    }

    /// Whether delayed data with this mapping may need a new block.
    fn may_take(&self, mapping: Mapping) -> bool {
        match mapping {
            Mapping::Hole => true,
            // while it is delayed, a generation may close, after which the block must not be overwritten
            Mapping::Data(_) | Mapping::Unwritten(_) => self.volume.may_have_to_copy(),
        }
    }

    /// Delays content without a block, or with one that must not be overwritten. If no block can be reserved, it is
    /// written at once or fails, and the file ends at `end` or behind. Returns the number of bytes.
    pub(crate) fn delay(&mut self, run: FileExtent, at: u64, data: &[u8], end: u64) -> Result<usize> {
        let block_size = self.block_size();
        let (block, into) = (at / block_size as u64, (at % block_size as u64) as usize);
        let blocks = (into + data.len()).div_ceil(block_size) as u64;
        let whole = match run.mapping {
            Mapping::Data(first) => Some(self.with_rest(first, at, data)?),
            Mapping::Hole | Mapping::Unwritten(_) => None,
        };
        if self.may_take(run.mapping) {
            match self.reserve_blocks(block, blocks) {
                Err(Error::NoSpace) => {
                    let whole = whole.unwrap_or_else(|| {
                        let mut whole = vec![0; blocks as usize * block_size];
                        whole.get_mut(into..into + data.len()).unwrap_or_default().copy_from_slice(data);
                        whole
                    });
                    let done = self.write_at_once(run, &whole, end)?;
                    return Ok((done - into).min(data.len()));
                }
                outcome => outcome?,
            }
        }
        match whole {
            Some(whole) => self.state.delayed.add(block_size, block, 0, &whole),
            None => self.state.delayed.add(block_size, block, into, data),
        }
        Ok(data.len())
    }

    /// Reserves blocks for a hole, and for the metadata that maps it.
    fn reserve_blocks(&mut self, block: u64, blocks: u64) -> Result<()> {
        let block_size = self.block_size();
        let metadata = if self.inode.raw().flags().contains(InodeFlags::EXTENTS) {
            // new nodes are at least half full; a few are for the path to them
            let each = (capacity(block_size) / 2) as u64;
            let before = (self.state.delayed.bytes() / block_size) as u64;
            (before + blocks) / each - before / each
        } else {
            self.indirect_metadata(block, blocks)
        };
        let more = self.volume.reserve(blocks + metadata)?;
        match &mut self.state.reservation {
            Some(reservation) => reservation.merge(more),
            none => *none = Some(more),
        }
        Ok(())
    }

    /// Indirect blocks that may be missing: the whole path, for each lowest one not yet reserved.
    fn indirect_metadata(&self, block: u64, blocks: u64) -> u64 {
        let block_size = self.block_size();
        let format = self.volume.sb.geometry.indirect();
        let each = format.per_block();
        let (mut at, end) = (block.max(DIRECT), block + blocks);
        let mut count = 0;
        while at < end {
            let start = at - (at - DIRECT) % each;
            let reserved = self.state.delayed.next(block_size, start).is_some_and(|next| next < start + each);
            if !reserved {
                count += format.path(FileBlock(at)).map_or(0, |path| path.indexes().len() as u64 - 1);
            }
            at = start + each;
        }
        count
    }

    /// Writes whole blocks that are unallocated, or must not be overwritten, without delay. The file ends at `end` or
    /// behind.
    fn write_at_once(&mut self, run: FileExtent, data: &[u8], end: u64) -> Result<usize> {
        self.flush()?;
        self.map_changes();
        let size = self.size().max(end);
        let as_it = if self.preserve_times { Put::FromPageCache } else { Put::Written };
        let count = self.volume.blocks_at_once(run, &[data]);
        let change = self.volume.change(self.volume.data_credits(count))?;
        let (inode, blocks) = change.put_content(&self.inode, (run, count), &[data], size, as_it)?;
        self.inode = inode;
        Ok(blocks as usize * self.block_size())
    }

    /// Writes all delayed data, and allocates its blocks.
    pub(crate) fn flush(&mut self) -> Result<()> {
        let had_delayed = !self.state.delayed.is_empty();
        let outcome = self.flush_buffers();
        if had_delayed && outcome.is_ok() {
            let generation = self.node.datasync_generation();
            self.volume.nodes.rewritten.record_written(self.inode.number, generation);
        }
        if let Err(e) = &outcome
            && !matches!(e, Error::NoSpace | Error::Io(_) | Error::ReadOnly(_))
        {
            // it can never be allocated, and must not block other data
            self.state.drop_delayed();
            self.state.lost = true;
        }
        outcome
    }

    /// Writes all of it in one change, as far as the open generation has space: a crash leaves the file in the old or
    /// the new state, not at the length of one of its buffers.
    fn flush_buffers(&mut self) -> Result<()> {
        let (volume, block_size) = (self.volume, self.block_size());
        let size = self.size();
        let (mut open, mut left) = (None::<Change<'_>>, 0);
        while let Some((first, _, content)) = self.state.delayed.first_range(block_size, MAX_BUFFERS) {
            let run = volume.map(&self.inode, FileBlock(first))?;
            let count = volume.blocks_at_once(run, &content);
            let credits = volume.data_credits(count);
            if !open.as_mut().is_some_and(|change| count <= left && change.extend(credits)) {
                // a thread has one change at a time
                drop(open.take());
                left = LARGEST / block_size as u64;
            }
            let change = match open.take() {
                Some(change) => change,
                None => volume.change_reserved(credits)?,
            };
            change.set_privilege(Privilege::Reserved);
            let taken = self.may_take(run.mapping);
            let (inode, blocks) = change.put_content(&self.inode, (run, count), &content, size, Put::Delayed)?;
            self.inode = inode;
            self.state.hole = None;
            self.state.delayed.remove(block_size, first..first + blocks);
            if let Some(reservation) = self.state.reservation.as_mut().filter(|_| taken) {
                reservation.spend(blocks);
            }
            left = left.saturating_sub(blocks);
            open = Some(change);
        }
        if self.state.size.take().is_some_and(|size| size > self.inode.size) {
            let change = match open.take() {
                Some(change) => change,
                None => volume.change(1)?,
            };
            self.inode = change.update_inode(&self.inode, |buf| buf.set_size(size))?;
        }
        self.state.reservation = None;
        Ok(())
    }
}
