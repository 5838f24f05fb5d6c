//! Changes to inline directories: entries in `i_block` and in the value of `system.data`.

use crate::change::Change;
use crate::dir::block;
use crate::error::OfInode;
use crate::xattr::pack::{self, Attr, Stored};
use crate::{Directories, Error, Inode, InodeFlags, InodeNo, Result};
use format::inline::{DATA_XATTR, I_BLOCK_LEN};
use format::inode::InodeBuf;
use format::xattr::XattrArea;
use format::{Structure, Where};
use std::sync::Arc;

/// Bytes of the parent's number at the start of `i_block`.
const PARENT_LEN: usize = 4;

/// The space in an inline directory for another name.
pub(crate) enum Space {
    /// In the entry at this offset.
    At(usize),
    /// Only after extending the value of `system.data`.
    Grow,
    /// No space.
    None,
}

fn damaged(inode: InodeNo) -> Error {
    Error::corrupt(Structure::InlineData, Where::Inode(inode), "its attributes or entries are invalid")
}

/// The attributes in an inode, including `system.data`, and the number of bytes available for them.
fn attrs_of(inode: &Inode) -> Result<(Vec<Attr>, usize)> {
    let space = inode.raw().attribute_area();
    let attrs = match XattrArea::in_inode(space).of(inode.number)? {
        Some(area) => pack::unpack(&area).of(inode.number)?,
        None => Vec::new(),
    };
    Ok((attrs, space.len()))
}

/// The value of `system.data`, empty if it is missing.
fn data_of(attrs: &mut Vec<Attr>, inode: InodeNo) -> Result<&mut Vec<u8>> {
    let (index, name) = DATA_XATTR;
    let at = match attrs.iter().position(|attr| attr.is(index, name)) {
        Some(at) => at,
        None => {
            attrs.push(Attr { index, name: name.to_vec(), value: Stored::Here(Vec::new()) });
            attrs.len() - 1
        }
    };
    match attrs.get_mut(at) {
        Some(Attr { value: Stored::Here(value), .. }) => Ok(value),
        _ => Err(damaged(inode)),
    }
}

/// Finds space for an entry of `need` bytes.
pub(crate) fn find_space(volume: &Directories, dir: &Inode, need: usize) -> Result<Space> {
    let format = volume.dir_format(dir);
    let (mut attrs, space) = attrs_of(dir)?;
    let head = dir.raw().disk.i_block.get(PARENT_LEN..).unwrap_or_default();
    if let Some(at) = block::find_space(head, 0, need, format).of(dir.number)? {
        return Ok(Space::At(PARENT_LEN + at));
    }
    let data = data_of(&mut attrs, dir.number)?;
    if let Some(at) = block::find_space(data, 0, need, format).of(dir.number)? {
        return Ok(Space::At(I_BLOCK_LEN + at));
    }
    let len = data.len();
    let more = pack::space_for(&attrs, space);
    Ok(if more >= need.max(12) && len.is_multiple_of(4) { Space::Grow } else { Space::None })
}

/// Extends `system.data` to its maximum: the new part is one unused entry.
pub(crate) fn grow(volume: &Directories, change: &Change<'_>, dir: &Arc<Inode>) -> Result<Arc<Inode>> {
    let format = volume.dir_format(dir);
    let (mut attrs, space) = attrs_of(dir)?;
    let data = data_of(&mut attrs, dir.number)?;
    let old = data.len();
    let more = pack::space_for(&attrs, space);
    let data = data_of(&mut attrs, dir.number)?;
    data.resize(old + more, 0);
    let made = data.get_mut(old..).and_then(|new| block::fill(new, &[], format));
    made.ok_or_else(|| damaged(dir.number))?;
    let size = (I_BLOCK_LEN + data.len()) as u64;
    put_attrs(change, dir, &attrs, |inode| inode.set_size(size))
}

fn put_attrs(
    change: &Change<'_>,
    dir: &Arc<Inode>,
    attrs: &[Attr],
    also: impl FnOnce(&mut InodeBuf),
) -> Result<Arc<Inode>> {
    let mut packed = dir.raw().attribute_area().to_vec();
    pack::pack_inode(&mut packed, attrs).ok_or_else(|| damaged(dir.number))?;
    change.update_inode(dir, |inode| {
        inode.attribute_area_mut().copy_from_slice(&packed);
        also(inode);
    })
}

/// Changes the entry at `offset`, counted as in [`crate::lookup::Found`]. `edit` gets the part that contains it.
pub(crate) fn edit(
    change: &Change<'_>,
    dir: &Arc<Inode>,
    offset: usize,
    edit: impl FnOnce(&mut [u8], usize) -> Option<()>,
) -> Result<Arc<Inode>> {
    if offset < I_BLOCK_LEN {
        let mut i_block = dir.raw().disk.i_block;
        let at = offset.checked_sub(PARENT_LEN).ok_or_else(|| damaged(dir.number))?;
        let done = i_block.get_mut(PARENT_LEN..).and_then(|part| edit(part, at));
        done.ok_or_else(|| damaged(dir.number))?;
        return change.update_inode(dir, |inode| inode.set_block(i_block));
    }
    let (mut attrs, _) = attrs_of(dir)?;
    let data = data_of(&mut attrs, dir.number)?;
    edit(data, offset - I_BLOCK_LEN).ok_or_else(|| damaged(dir.number))?;
    put_attrs(change, dir, &attrs, |_| {})
}

/// Sets the inode of "..".
pub(crate) fn set_parent(change: &Change<'_>, dir: &Arc<Inode>, parent: InodeNo) -> Result<Arc<Inode>> {
    let mut i_block = dir.raw().disk.i_block;
    for (byte, new) in i_block.iter_mut().zip(parent.get().to_le_bytes()) {
        *byte = new;
    }
    change.update_inode(dir, |inode| inode.set_block(i_block))
}

/// Makes a new directory inline, if the volume has inline data and the inode has space for the attribute.
pub(crate) fn make(volume: &Directories, inode: &mut InodeBuf, parent: InodeNo) -> Option<()> {
    let (index, name) = DATA_XATTR;
    let attrs = [Attr { index, name: name.to_vec(), value: Stored::Here(Vec::new()) }];
    if !pack::fits_inode(&attrs, inode.attribute_area_mut().len()) {
        return None;
    }
    pack::pack_inode(inode.attribute_area_mut(), &attrs)?;
    let format = format::dir::DirFormat {
        block_size: volume.sb.geometry.block_size,
        file_type: volume.sb.features.incompat.contains(format::feature::Incompat::FILETYPE),
        hashed: false,
    };
    let mut i_block = [0; I_BLOCK_LEN];
    let (head, part) = i_block.split_at_mut(PARENT_LEN);
    head.copy_from_slice(&parent.get().to_le_bytes());
    block::fill(part, &[], format)?;
    inode.set_block(i_block);
    inode.set_size(I_BLOCK_LEN as u64);
    let flags = (inode.raw().flags() | InodeFlags::INLINE_DATA) - InodeFlags::EXTENTS;
    inode.set_flags(flags);
    Some(())
}

/// Converts an inline directory to an empty file with a map.
pub(crate) fn leave(volume: &Directories, change: &Change<'_>, dir: &Arc<Inode>) -> Result<Arc<Inode>> {
    let (mut attrs, _) = attrs_of(dir)?;
    let (index, name) = DATA_XATTR;
    attrs.retain(|attr| !attr.is(index, name));
    put_attrs(change, dir, &attrs, |inode| {
        let flags = inode.raw().flags() - InodeFlags::INLINE_DATA;
        inode.set_flags(flags);
        inode.set_size(0);
        volume.make_map(inode);
    })
}
