//! Inline data: files and directories whose content is in their inode.

use crate::error::OfInode;
use crate::{Inode, InodeFlags, Maps, Result};
use format::inline::{DATA_XATTR, InlineData, InlineDir};
use format::xattr::{Value, XattrArea};
use format::{Error as FormatError, Structure};

/// Whether an inode's content is in the inode itself.
pub(crate) fn is_inline(inode: &Inode) -> bool {
    inode.raw().flags().contains(InodeFlags::INLINE_DATA)
}

impl Maps {
    pub(crate) fn inline_data<'a>(&self, inode: &'a Inode) -> Result<InlineData<'a>> {
        InlineData::new(&inode.raw().disk.i_block, rest_of(inode)?, inode.size).of(inode.number)
    }

    pub(crate) fn inline_dir<'a>(&self, dir: &'a Inode) -> Result<InlineDir<'a>> {
        Ok(InlineDir::new(&dir.raw().disk.i_block, rest_of(dir)?, self.dir_format(dir)))
    }
}

/// The content after the 60 bytes of `i_block`: the value of `system.data`.
fn rest_of(inode: &Inode) -> Result<&[u8]> {
    let area = XattrArea::in_inode(inode.raw().attribute_area()).of(inode.number)?;
    let (index, name) = DATA_XATTR;
    let Some((area, data)) = area.and_then(|area| Some((area, area.find(index, name)?))) else { return Ok(&[]) };
    match area.value(&data).of(inode.number)? {
        Value::Here(value) => Ok(value),
        Value::Inode { .. } => {
            Err(FormatError::corrupt(Structure::InlineData, "system.data has an inode of its own")).of(inode.number)
        }
    }
}
