//! Truncating files, and extending them.

use crate::file::edit::{FileEdit, stamp};
use crate::inline_data::is_inline;
use crate::map::{CLEARING, Steps};
use crate::{Error, Files, InodeNo, Result};
use std::sync::Arc;

/// Blocks of file data that a change may write, if they are journaled: the one with the end of the file.
const TAIL: usize = 1;
/// Metadata blocks that adding an orphan to the list, or removing it, adds to a change.
const LISTING: usize = 3;

impl Files {
    /// Sets the size of a regular file: blocks behind it are freed, a new part reads as zeroes. If freeing takes many
    /// steps, a crash between them leaves the new size, and the rest is freed when the volume is next opened for
    /// writing.
    ///
    /// # Errors
    /// As [`Files::write_at`].
    pub fn truncate(&self, number: InodeNo, size: u64) -> Result<()> {
        self.edit_file(number, |file| {
            file.truncate(size)?;
            // the caller knows the current size
            file.state.assumed = None;
            Ok(())
        })?;
        if self.nodes.rewritten.is_full() {
            self.flush_rewritten();
            self.nodes.rewritten.drop_oldest();
        }
        Ok(())
    }
}

impl FileEdit<'_> {
    /// Frees blocks behind the file's end that an earlier truncation could not free: extending the file would expose
    /// them.
    pub(crate) fn finish_cut(&mut self) -> Result<()> {
        let number = self.inode.number;
        if self.inode.raw().disk.i_links_count.get() == 0 || !self.volume.is_orphan(number) {
            return Ok(());
        }
        self.inode = self.volume.end_truncate(number)?;
        Ok(())
    }

    fn truncate(&mut self, size: u64) -> Result<()> {
        self.may_shrink()?;
        if size > self.volume.max_file_size(&self.inode) {
            return Err(Error::FileTooLarge);
        }
        if size == 0 && self.size() > 0 {
            self.volume.nodes.rewritten.record(self.inode.number);
        }
        if is_inline(&self.inode) && self.resize_inline(size)? {
            return Ok(());
        }
        if size > self.size() {
            self.flush()?;
            self.zero_tail()?;
            return self.set_size(size);
        }
        self.cut(size)
    }

    /// Truncates a file, or frees blocks behind its end.
    fn cut(&mut self, size: u64) -> Result<()> {
        let block_size = self.block_size();
        let first = size.div_ceil(block_size as u64);
        self.map_changes();
        self.state.delayed.remove(block_size, first..u64::MAX);
        let tail = first * block_size as u64 - size;
        let mut last = None;
        if tail > 0 && self.state.delayed.here(block_size, first - 1) > 0 {
            self.state.delayed.overwrite(block_size, size, &vec![0; tail as usize]);
        } else if tail > 0 && size < self.size() {
            last = self.run(first - 1)?.physical();
        }
        // delayed data below the new end is still unallocated, and the size is written with it
        let recorded = if self.state.delayed.is_empty() {
            (self.state.size, self.state.reservation) = (None, None);
            size
        } else {
            self.state.size = (size > self.inode.size).then_some(size);
            size.min(self.inode.size)
        };
        let number = self.inode.number;
        let listed_before = self.volume.is_orphan(number);
        let mut at = Some(first);
        let mut steps = 0;
        while let Some(from) = at {
            let change = self.volume.change_freeing(CLEARING + LISTING + TAIL)?;
            let inode = Arc::clone(&self.inode);
            let mut untouched = false;
            let cleared = change.edit_inode(&inode, |buf| {
                let cleared = change.map_clear(&inode, buf, from, u64::MAX, &mut Steps::new());
                untouched = steps == 0 && cleared.is_err() && buf.raw().bytes() == inode.raw().bytes();
                if !untouched {
                    buf.set_size(recorded);
                    stamp(buf, change.now());
                }
                cleared
            });
            if untouched {
                // the file is unchanged
                return cleared.map(drop);
            }
            steps += 1;
            let unfinished = cleared.as_ref().map_or(true, |(_, at)| at.is_some());
            if steps == 1 && unfinished && !listed_before {
                // also if an error ends it here: the rest is freed before the file is changed again
                change.add_orphan(&self.volume.inode(number)?, true)?;
            }
            if let Some(block) = last.take() {
                // not done if it would need a new block: extending the file zeroes it
                let in_place = change.in_place(block, 1).is_ok_and(|(in_place, _)| in_place);
                if in_place {
                    let zeroes = vec![0; tail as usize];
                    change.write_data(number, block, block_size as u64 - tail, &zeroes)?;
                }
            }
            at = cleared?.1;
            self.inode = self.volume.inode(number)?;
            if steps > 1 && at.is_none() && !listed_before {
                self.inode = change.end_orphan(&self.inode)?;
            }
        }
        Ok(())
    }
}
