//! The content of files and symbolic links, read from their blocks.

use crate::alloc::Role;
use crate::inline_data::is_inline;
use crate::map::role;
use crate::{Error, FileKind, Inode, InodeFlags, Maps, Result};
use format::{FileBlock, FsBlock, Structure, Where};
use store::DataRead;

impl Maps {
    /// Checks that a file has content that can be read: see [`Files::read_at`](crate::Files::read_at).
    ///
    /// # Errors
    /// As [`Files::read_at`](crate::Files::read_at).
    pub fn readable(&self, inode: &Inode) -> Result<()> {
        match inode.kind {
            FileKind::Directory => Err(Error::IsADirectory),
            FileKind::Regular if inode.raw().flags().contains(InodeFlags::ENCRYPT) => Err(Error::Encrypted),
            FileKind::Regular => Ok(()),
            _ => Err(Error::Invalid("not a regular file")),
        }
    }

    /// [`Files::read_at`](crate::Files::read_at) for content of any kind, without interpretation.
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

    /// Reads content that is written as metadata: changes may be in the cache only.
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
        // runs that are adjacent on the volume become one request
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

    /// The target of a symbolic link: not empty, without NUL, at most a block long. For an encrypted link it is a
    /// no-key name, as [`Directories::read_dir`](crate::Directories::read_dir) returns for encrypted names.
    ///
    /// # Errors
    /// [`Error::Invalid`] for other kinds, [`Error::Corrupt`] for an invalid target.
    pub fn read_link(&self, inode: &Inode) -> Result<Vec<u8>> {
        if inode.kind != FileKind::Symlink {
            return Err(Error::Invalid("not a symbolic link"));
        }
        let bad = |what| Err(Error::corrupt(Structure::Symlink, Where::Inode(inode.number), what));
        if inode.size > u64::from(self.sb.geometry.block_size) {
            return bad("the target is longer than a block");
        }
        let _guard = self.read_guard();
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

/// The part of a buffer that a file of `size` bytes can fill from `offset` on.
pub(crate) fn clamp(buf: &mut [u8], size: u64, offset: u64) -> &mut [u8] {
    let left = size.saturating_sub(offset);
    let len = usize::try_from(left).map_or(buf.len(), |left| left.min(buf.len()));
    buf.get_mut(..len).unwrap_or_default()
}

/// Splits off the first `len` bytes, which must exist.
fn split(buf: &mut [u8], len: u64) -> (&mut [u8], &mut [u8]) {
    let len = usize::try_from(len).map_or(buf.len(), |len| len.min(buf.len()));
    buf.split_at_mut(len)
}

/// Adds a read into the start of `buf`, and returns the rest of `buf`.
fn request<'a>(
    reads: &mut Vec<DataRead<'a>>,
    buf: &'a mut [u8],
    (first, offset, len): (FsBlock, u64, u64),
) -> &'a mut [u8] {
    let (buf, after) = split(buf, len);
    reads.push(DataRead { first, offset, buf });
    after
}
