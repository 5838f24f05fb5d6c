//! Inline data: files whose content is in their inode, and the conversion when it no longer fits.

use super::edit::{FileEdit, stamp};
use crate::error::OfInode;
use crate::inline_data::is_inline;
use crate::map::ONE_PLACE;
use crate::xattr::pack::{self, Attr, Stored};
use crate::{Inode, InodeFlags, Result};
use format::FileBlock;
use format::extent::Node;
use format::feature::Incompat;
use format::inline::{DATA_XATTR, I_BLOCK_LEN};
use format::inode::InodeBuf;
use format::xattr::XattrArea;
use std::sync::Arc;

impl FileEdit<'_> {
    /// Writes inline data, or converts an empty file to it. `false` if the file needs blocks, to which any inline
    /// content was moved.
    pub(crate) fn write_inline(&mut self, offset: u64, data: &[u8]) -> Result<bool> {
        if !is_inline(&self.inode) && !self.may_become_inline() {
            return Ok(false);
        }
        let end = offset.saturating_add(data.len() as u64).max(self.inode.size);
        let mut put = false;
        if let Some(len) = self.fits_inline(end) {
            let mut content = self.inline_content(len)?;
            if let Some(place) = content.get_mut(offset as usize..offset as usize + data.len()) {
                place.copy_from_slice(data);
            }
            put = self.put_inline(&content)?;
        }
        if !put && is_inline(&self.inode) {
            self.leave_inline()?;
        }
        Ok(put)
    }

    /// Changes the size of a file with inline data. `false` as for [`FileEdit::write_inline`].
    pub(crate) fn resize_inline(&mut self, size: u64) -> Result<bool> {
        if let Some(len) = self.fits_inline(size) {
            let content = self.inline_content(len)?;
            if self.put_inline(&content)? {
                return Ok(true);
            }
        }
        self.leave_inline()?;
        Ok(false)
    }

    /// The length, if it could be that of inline data.
    fn fits_inline(&self, len: u64) -> Option<usize> {
        let most = I_BLOCK_LEN + self.inode.raw().attribute_area().len();
        usize::try_from(len).ok().filter(|len| *len <= most)
    }

    /// Whether a file has neither content nor blocks, on a volume with inline data.
    fn may_become_inline(&self) -> bool {
        let raw = self.inode.raw();
        if !self.volume.sb.features.incompat.contains(Incompat::INLINE_DATA) || raw.attribute_area().is_empty() {
            return false;
        }
        let no_blocks = if raw.flags().contains(InodeFlags::EXTENTS) {
            matches!(Node::parse(&raw.disk.i_block, None, self.volume.sb.geometry.blocks), Ok(Node::Leaf(&[])))
        } else {
            raw.disk.i_block == [0; I_BLOCK_LEN]
        };
        no_blocks && self.size() == 0 && self.state.delayed.is_empty()
    }

    /// The content, truncated or extended by zeroes to `len` bytes, which fit into an inode or are the file's own size.
    fn inline_content(&self, len: usize) -> Result<Vec<u8>> {
        let data = if is_inline(&self.inode) { Some(self.volume.inline_data(&self.inode)?) } else { None };
        let mut content = vec![0; len];
        if let Some(data) = data {
            // the rest is zero
            let _len = data.read_at(0, &mut content);
        }
        Ok(content)
    }

    /// Makes `content` the whole file, if it fits.
    fn put_inline(&mut self, content: &[u8]) -> Result<bool> {
        let mut buf = InodeBuf::from(self.inode.raw());
        let (head, tail) = content.split_at(content.len().min(I_BLOCK_LEN));
        if !set_data(&self.inode, &mut buf, Some(tail))? {
            return Ok(false);
        }
        let mut block = [0; I_BLOCK_LEN];
        if let Some(place) = block.get_mut(..head.len()) {
            place.copy_from_slice(head);
        }
        buf.set_block(block);
        let mut flags = buf.raw().flags();
        flags.remove(InodeFlags::EXTENTS);
        flags.insert(InodeFlags::INLINE_DATA);
        buf.set_flags(flags);
        buf.set_size(content.len() as u64);
        self.map_changes();
        let change = self.volume.change(1)?;
        if !self.preserve_times {
            stamp(&mut buf, change.now());
        }
        self.inode = change.put_inode(self.inode.number, buf)?;
        Ok(true)
    }

    /// Moves inline data to a block of its own.
    pub(crate) fn leave_inline(&mut self) -> Result<()> {
        let block_size = self.block_size();
        // shorter than an inode, and so than a block
        let mut content = self.inline_content(self.inode.size as usize)?;
        content.resize(content.len().next_multiple_of(block_size), 0);
        self.map_changes();
        let inode = Arc::clone(&self.inode);
        let change = self.volume.change(ONE_PLACE + self.volume.store.credits_for_data(1))?;
        let (inode, ()) = change.edit_inode(&inode, |buf| {
            let before = buf.clone();
            set_data(&inode, buf, None)?;
            buf.set_flags(buf.raw().flags() - InodeFlags::INLINE_DATA);
            self.volume.make_map(buf);
            if content.is_empty() {
                return Ok(());
            }
            let run = match change.map_allocate(&inode, buf, FileBlock(0), 1, false) {
                Ok(run) => run,
                Err(e) => {
                    *buf = before;
                    return Err(e);
                }
            };
            change.write_data(inode.number, run.physical, 0, &content)
        })?;
        self.inode = inode;
        Ok(())
    }
}

/// Sets the value of `system.data`, or removes it. `false`, with nothing changed, if there is no space.
fn set_data(inode: &Inode, buf: &mut InodeBuf, value: Option<&[u8]>) -> Result<bool> {
    let mut attrs = match XattrArea::in_inode(inode.raw().attribute_area()).of(inode.number)? {
        Some(area) => pack::unpack(&area).of(inode.number)?,
        None => Vec::new(),
    };
    let (index, name) = DATA_XATTR;
    let at = attrs.iter().position(|attr| attr.is(index, name));
    let at = match at {
        Some(at) => {
            attrs.remove(at);
            at
        }
        None => attrs.len(),
    };
    if let Some(value) = value {
        attrs.insert(at, Attr { index, name: name.to_vec(), value: Stored::Here(value.to_vec()) });
    }
    let space = buf.attribute_area_mut();
    if !pack::fits_inode(&attrs, space.len()) {
        return Ok(false);
    }
    // it fits, as checked above
    Ok(pack::pack_inode(space, &attrs).is_some())
}
