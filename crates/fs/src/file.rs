//! The content of files and symbolic links.

pub(crate) mod edit;
mod inline;
mod write;

pub use write::{WriteHow, Written, without_privileges};

use crate::alloc::{Reservation, Role};
use crate::inline::is_inline;
use crate::map::role;
use crate::node::NodeState;
use crate::{Attributes, Error, FileKind, Inode, InodeFlags, InodeNo, Place, Result, Volume};
use format::{FileBlock, FsBlock, Structure, Where};
use store::DataRead;

impl Volume {
    /// Reads from byte `offset` of a regular file on, and says how many bytes were read: as many as `buf` holds, or
    /// fewer where the file ends. Holes read as zeroes. Data goes from the device to `buf` without a copy between, in
    /// requests as long as the file's runs.
    ///
    /// # Errors
    /// [`Error::Encrypted`] for a file whose key we lack, [`Error::IsADirectory`], [`Error::Invalid`] for other kinds.
    pub fn read_at(&self, inode: &Inode, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.current(inode, |inode, state| {
            self.readable(inode)?;
            let Some(state) = state.filter(|_| !is_inline(inode)) else {
                return self.read_content(inode, offset, buf);
            };
            let buf = clamp(buf, state.size_of(inode), offset);
            self.read_mapped(inode, offset, buf)?;
            state.delayed.lay_over(self.sb.geometry.block_size as usize, offset, buf);
            Ok(buf.len())
        })
    }

    /// An inode as it is now, with what of it is only in memory, while nobody changes it. Where the volume is open for
    /// reading only, it is what it was, and all there is.
    fn current<R>(&self, inode: &Inode, read: impl FnOnce(&Inode, Option<&NodeState>) -> Result<R>) -> Result<R> {
        if self.writing.is_none() {
            return read(inode, None);
        }
        let _pass = self.looking();
        let node = self.node(inode.number);
        let state = node.read();
        read(&*self.inode(inode.number)?, Some(&state))
    }

    /// What stat(2) says about an inode as it is now: [`Volume::attributes`] with the content that has no place on the
    /// device yet.
    ///
    /// # Errors
    /// As [`Volume::inode`].
    pub fn attributes_of(&self, number: InodeNo) -> Result<Attributes> {
        let inode = self.inode(number)?;
        self.current(&inode, |inode, state| {
            let mut attributes = self.attributes(inode);
            if let Some(state) = state {
                attributes.size = state.size.unwrap_or(attributes.size);
                // some of the delayed content has a place that was never written
                let promised = state.promise.as_ref().map_or(0, Reservation::blocks);
                let promised = promised.saturating_mul(self.sb.geometry.block_size.into());
                attributes.blocks = attributes.blocks.saturating_add(promised.min(state.delayed.bytes() as u64) / 512);
            }
            Ok(attributes)
        })
    }

    /// Whether a file has content that we can read: see [`Volume::read_at`], whose errors it gives.
    ///
    /// # Errors
    /// As [`Volume::read_at`].
    pub fn readable(&self, inode: &Inode) -> Result<()> {
        match inode.kind {
            FileKind::Directory => Err(Error::IsADirectory),
            FileKind::Regular if inode.raw().flags().contains(InodeFlags::ENCRYPT) => Err(Error::Encrypted),
            FileKind::Regular => Ok(()),
            _ => Err(Error::Invalid("not a regular file")),
        }
    }

    /// [`Volume::read_at`] for content of any kind, as it stands.
    pub(crate) fn read_content(&self, inode: &Inode, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let buf = clamp(buf, inode.size, offset);
        if is_inline(inode) {
            return Ok(self.inline_data(inode)?.read_at(offset, buf));
        }
        if self.writing.is_some() && role(inode) != Role::Content {
            self.read_cached(inode, offset, buf)?;
        } else {
            self.read_mapped(inode, offset, buf)?;
        }
        Ok(buf.len())
    }

    /// Content that goes the way of metadata: what was changed may be in the cache only.
    fn read_cached(&self, inode: &Inode, offset: u64, buf: &mut [u8]) -> Result<()> {
        let block_size = u64::from(self.sb.geometry.block_size);
        let (mut rest, mut at) = (buf, offset);
        while !rest.is_empty() {
            let (part, after) = split(rest, block_size - at % block_size);
            match self.map(inode, FileBlock(at / block_size))?.physical() {
                Some(block) => {
                    let bytes = self.store.block(block)?;
                    let from = (at % block_size) as usize;
                    part.copy_from_slice(bytes.get(from..from + part.len()).unwrap_or_default());
                }
                None => part.fill(0),
            }
            at += part.len() as u64;
            rest = after;
        }
        Ok(())
    }

    pub(crate) fn read_mapped(&self, inode: &Inode, offset: u64, buf: &mut [u8]) -> Result<()> {
        let block_size = u64::from(self.sb.geometry.block_size);
        let mut reads: Vec<DataRead<'_>> = Vec::new();
        let (mut rest, mut at) = (buf, offset);
        // runs that continue each other on the volume become one request
        let mut pending: Option<(FsBlock, u64, u64)> = None;
        let mut todo = rest.len() as u64;
        while todo > 0 {
            let run = self.map(inode, FileBlock(at / block_size))?;
            let into = at % block_size;
            let len = run.len.saturating_mul(block_size).saturating_sub(into).min(todo);
            let data = run.physical();
            if let (Some((first, skip, size)), Some(start)) = (&mut pending, data)
                && first.get().saturating_mul(block_size).saturating_add(*skip).saturating_add(*size)
                    == start.get().saturating_mul(block_size)
            {
                *size += len;
            } else {
                if let Some(done) = pending.take() {
                    rest = request(&mut reads, rest, done);
                }
                match data {
                    Some(start) => pending = Some((start, into, len)),
                    None => {
                        let (zero, after) = split(rest, len);
                        zero.fill(0);
                        rest = after;
                    }
                }
            }
            at += len;
            todo -= len;
        }
        if let Some(done) = pending {
            request(&mut reads, rest, done);
        }
        match &mut reads[..] {
            [one] => Ok(self.store.read(one.first, one.offset, one.buf)?),
            many => Ok(self.store.read_many(many)?),
        }
    }

    /// The first byte of data at or after `offset`; `None` where only a hole follows, or nothing. Unwritten extents are
    /// holes.
    ///
    /// # Errors
    /// As [`Volume::read_at`].
    pub fn seek_data(&self, inode: &Inode, offset: u64) -> Result<Option<u64>> {
        self.seek(inode, offset, true)
    }

    /// The first byte at or after `offset` that lies in a hole, or the file's size, where an imagined hole begins;
    /// `None` where `offset` is not inside the file.
    ///
    /// # Errors
    /// As [`Volume::read_at`].
    pub fn seek_hole(&self, inode: &Inode, offset: u64) -> Result<Option<u64>> {
        self.seek(inode, offset, false)
    }

    /// The first byte of a hole between two places of a file; `None` where all is data. The file's end is no hole.
    ///
    /// # Errors
    /// As [`Volume::read_at`].
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

    /// Looks no farther than `stop`.
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
                // ends in good time on a map whose blocks point to each other
                mapped = mapped.saturating_add(if run.place == Place::Hole { 0 } else { run.len });
                let next = state.delayed.next(block_size as usize, block).unwrap_or(u64::MAX);
                (matches!(run.place, Place::Data(_)), run.end().get().min(next))
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

    /// The target of a symbolic link: not empty, without NUL, at most a block long. That of an encrypted link is a text
    /// that stands for it, as [`Volume::read_dir`] shows encrypted names.
    ///
    /// # Errors
    /// [`Error::Invalid`] for other kinds, [`Error::Corrupt`] for a target that cannot be one.
    pub fn read_link(&self, inode: &Inode) -> Result<Vec<u8>> {
        if inode.kind != FileKind::Symlink {
            return Err(Error::Invalid("not a symbolic link"));
        }
        let bad = |what| Err(Error::corrupt(Structure::Symlink, Where::Inode(inode.number), what));
        if inode.size > u64::from(self.sb.geometry.block_size) {
            return bad("the target is longer than a block");
        }
        let _pass = self.looking();
        // fits: a block at most
        let mut target = vec![0; inode.size as usize];
        if inode.is_fast_symlink() {
            let len = target.len();
            target.copy_from_slice(inode.raw().disk.i_block.get(..len).unwrap_or_default());
        } else {
            self.read_content(inode, 0, &mut target)?;
        }
        if inode.raw().flags().contains(InodeFlags::ENCRYPT) {
            return match crate::nokey::link_target(&target) {
                Some(text) => Ok(text),
                None => bad("the encrypted target is longer than the link"),
            };
        }
        if target.is_empty() || target.contains(&0) {
            return bad("the target is empty or has a zero byte");
        }
        Ok(target)
    }
}

/// As much of a buffer as a file of `size` bytes can fill from `offset` on.
fn clamp(buf: &mut [u8], size: u64, offset: u64) -> &mut [u8] {
    let left = size.saturating_sub(offset);
    let len = usize::try_from(left).map_or(buf.len(), |left| left.min(buf.len()));
    buf.get_mut(..len).unwrap_or_default()
}

/// Takes the first `len` bytes, which are there.
fn split(buf: &mut [u8], len: u64) -> (&mut [u8], &mut [u8]) {
    let len = usize::try_from(len).map_or(buf.len(), |len| len.min(buf.len()));
    buf.split_at_mut(len)
}

/// Adds a read of the bytes at the start of `buf`, and gives back what follows them.
fn request<'a>(
    reads: &mut Vec<DataRead<'a>>,
    buf: &'a mut [u8],
    (first, offset, len): (FsBlock, u64, u64),
) -> &'a mut [u8] {
    let (buf, after) = split(buf, len);
    reads.push(DataRead { first, offset, buf });
    after
}
