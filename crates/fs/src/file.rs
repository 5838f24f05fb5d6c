//! The content of files and symbolic links.

pub(crate) mod edit;
mod inline_content;
mod write;
mod xattr;

pub use write::{WriteHow, Written, without_privileges};

use crate::alloc::Reservation;
use crate::content::clamp;
use crate::inline_data::is_inline;
use crate::layers::stands_on;
use crate::node::NodeState;
use crate::{Admission, Attributes, Error, Inode, InodeNo, Mapping, Maps, Result};
use format::{FileBlock, Structure, Where};

/// Files: their content and the attributes of their inodes.
pub struct Files {
    admission: Admission,
}

stands_on!(Files, admission: Admission);

impl Files {
    pub(crate) fn over(maps: Maps) -> Self {
        Self { admission: Admission::over(maps) }
    }

    /// Reads from byte `offset` of a regular file on, and returns the number of bytes read: the length of `buf`, or
    /// less at the end of the file. Holes read as zeroes. Data is read from the device into `buf` without an
    /// intermediate copy, in requests as long as the file's runs.
    ///
    /// # Errors
    /// [`Error::Encrypted`] for an encrypted file, [`Error::IsADirectory`], [`Error::Invalid`] for other kinds.
    pub fn read_at(&self, inode: &Inode, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.current(inode, |inode, state| {
            self.readable(inode)?;
            let Some(state) = state.filter(|_| !is_inline(inode)) else {
                return self.read_content(inode, offset, buf);
            };
            let buf = clamp(buf, state.size_of(inode), offset);
            self.read_mapped(inode, offset, buf)?;
            state.delayed.copy_over(self.sb.geometry.block_size as usize, offset, buf);
            Ok(buf.len())
        })
    }

    /// Calls `read` with the current inode and its state in memory, locked against changes. On a volume open for
    /// reading only there is no such state, and the inode is unchanged.
    fn current<R>(&self, inode: &Inode, read: impl FnOnce(&Inode, Option<&NodeState>) -> Result<R>) -> Result<R> {
        if self.writing.is_none() {
            return read(inode, None);
        }
        let _guard = self.read_guard();
        let node = self.node(inode.number);
        let state = node.read();
        read(&*self.inode(inode.number)?, Some(&state))
    }

    /// The current attributes of an inode for stat(2): [`Inodes::attributes`](crate::Inodes::attributes), including
    /// delayed data.
    ///
    /// # Errors
    /// As [`Inodes::inode`](crate::Inodes::inode).
    pub fn attributes_of(&self, number: InodeNo) -> Result<Attributes> {
        let inode = self.inode(number)?;
        self.current(&inode, |inode, state| {
            let mut attributes = self.attributes(inode);
            if let Some(state) = state {
                attributes.size = state.size.unwrap_or(attributes.size);
                // some delayed data has unwritten blocks
                let reserved = state.reservation.as_ref().map_or(0, Reservation::blocks);
                let reserved = reserved.saturating_mul(self.sb.geometry.block_size.into());
                attributes.blocks = attributes.blocks.saturating_add(reserved.min(state.delayed.bytes() as u64) / 512);
            }
            Ok(attributes)
        })
    }

    /// The first byte of data at or after `offset`; `None` if only a hole or nothing follows. Unwritten extents are
    /// holes.
    ///
    /// # Errors
    /// As [`Files::read_at`].
    pub fn seek_data(&self, inode: &Inode, offset: u64) -> Result<Option<u64>> {
        self.seek(inode, offset, true)
    }

    /// The first byte at or after `offset` in a hole, or the file's size, where a virtual hole begins; `None` if
    /// `offset` is not inside the file.
    ///
    /// # Errors
    /// As [`Files::read_at`].
    pub fn seek_hole(&self, inode: &Inode, offset: u64) -> Result<Option<u64>> {
        self.seek(inode, offset, false)
    }

    /// The first byte of a hole between two offsets of a file; `None` if all is data. The end of the file is not a
    /// hole.
    ///
    /// # Errors
    /// As [`Files::read_at`].
    pub fn hole_within(&self, inode: &Inode, start: u64, end: u64) -> Result<Option<u64>> {
        self.current(inode, |inode, state| {
            let nothing = NodeState::default();
            let state = state.unwrap_or(&nothing);
            let found = self.seek_in(inode, state, (start, end), false)?;
            Ok(found.filter(|at| *at < end.min(state.size_of(inode))))
        })
    }

    fn seek(&self, inode: &Inode, offset: u64, data: bool) -> Result<Option<u64>> {
        self.current(inode, |inode, state| {
            let nothing = NodeState::default();
            self.seek_in(inode, state.unwrap_or(&nothing), (offset, u64::MAX), data)
        })
    }

    /// Searches no farther than `stop`.
    fn seek_in(&self, inode: &Inode, state: &NodeState, (offset, stop): (u64, u64), data: bool) -> Result<Option<u64>> {
        self.readable(inode)?;
        let size = state.size_of(inode);
        if offset >= size {
            return Ok(None);
        }
        if is_inline(inode) {
            return Ok(Some(if data { offset } else { size }));
        }
        let block_size = u64::from(self.sb.geometry.block_size);
        let mut at = offset;
        let mut mapped = 0u64;
        while at < size.min(stop) {
            let block = at / block_size;
            let delayed = state.delayed.here(block_size as usize, block);
            let (is_data, end) = if delayed > 0 {
                (true, block + delayed)
            } else {
                let run = self.map(inode, FileBlock(block))?;
                // ends soon on a map whose blocks point to each other
                mapped = mapped.saturating_add(if run.mapping == Mapping::Hole { 0 } else { run.len });
                let next = state.delayed.next(block_size as usize, block).unwrap_or(u64::MAX);
                (matches!(run.mapping, Mapping::Data(_)), run.end().get().min(next))
            };
            if is_data == data {
                return Ok(Some(at));
            }
            if mapped > self.sb.geometry.blocks {
                let what = "it has more blocks than the volume";
                return Err(Error::corrupt(Structure::Inode, Where::Inode(inode.number), what));
            }
            at = end.saturating_mul(block_size);
        }
        Ok(if data { None } else { Some(size) })
    }
}
