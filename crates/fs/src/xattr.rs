//! Extended attributes: in the inode, in an attribute block, or with values in attribute inodes.

pub(crate) mod pack;
mod set;

pub use set::XattrMode;
pub(crate) use set::{ATTRIBUTES, Wanted};

use crate::error::OfInode;
use crate::inline_data::is_inline;
use crate::layers::stands_on;
use crate::{Error, Inode, InodeFlags, InodeNo, Inodes, Maps, Result};
use format::acl::Acl;
use format::feature::Incompat;
use format::inline::DATA_XATTR;
use format::xattr::{
    Value, Xattr, XattrArea, block_checksum, entry_hash, full_name, index, inode_value_hash, split_name,
};
use format::{FsBlock, Structure, Where};
use parking_lot::Mutex;
use space::Purpose;
use std::sync::Arc;

/// Extended attributes of inodes.
pub struct Xattrs {
    inodes: Inodes,
    /// Locked while the references to an attribute inode are counted, as it may belong to several files. Nothing is
    /// locked under it.
    values: Mutex<()>,
}

stands_on!(Xattrs, inodes: Inodes);

impl Xattrs {
    pub(crate) fn over(maps: Maps) -> Self {
        Self { inodes: Inodes::over(maps), values: Mutex::default() }
    }

    /// The names of a file's attributes, with their prefixes, in the order in which they are stored. Internal ones
    /// (inline data, the encryption context) are omitted; the caller decides whether `trusted.` may be listed.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for corrupt attributes.
    pub fn list_xattrs(&self, inode: &Inode) -> Result<Vec<Vec<u8>>> {
        self.with_current(inode, |inode| self.list_in(inode))
    }

    /// Calls `look` with the current inode, while it does not change.
    fn with_current<R>(&self, inode: &Inode, look: impl FnOnce(&Inode) -> Result<R>) -> Result<R> {
        if self.writing.is_none() {
            return look(inode);
        }
        let _guard = self.read_guard();
        let node = self.node(inode.number);
        let _state = node.read();
        let inode = self.inode(inode.number)?;
        look(&inode)
    }

    fn list_in(&self, inode: &Inode) -> Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        let mut list = |area: XattrArea<'_>| names.extend(area.iter().filter_map(|xattr| name_of(&xattr)));
        if let Some(area) = in_inode(inode)? {
            list(area);
        }
        if let Some((at, block)) = self.xattr_block(inode)? {
            list(in_block(at, &block)?);
        }
        Ok(names)
    }

    /// The value of an attribute, by its name with prefix. Access control lists are returned in the user-space format.
    ///
    /// # Errors
    /// [`Error::NoAttribute`], or [`Error::Corrupt`] for corrupt attributes or a corrupt value.
    pub fn get_xattr(&self, inode: &Inode, name: &[u8]) -> Result<Vec<u8>> {
        self.with_current(inode, |inode| self.get_in(inode, name))
    }

    fn get_in(&self, inode: &Inode, name: &[u8]) -> Result<Vec<u8>> {
        let (prefix, rest) = split_name(name).ok_or(Error::NoAttribute)?;
        if (prefix, rest) == DATA_XATTR {
            return Err(Error::NoAttribute);
        }
        if let Some(area) = in_inode(inode)?
            && let Some(xattr) = area.find(prefix, rest)
        {
            return self.value(inode, &area, &xattr);
        }
        if let Some((at, block)) = self.xattr_block(inode)? {
            let area = in_block(at, &block)?;
            if let Some(xattr) = area.find(prefix, rest) {
                return self.value(inode, &area, &xattr);
            }
        }
        Err(Error::NoAttribute)
    }

    /// The attribute block of a file, if it has one, its checksum verified.
    fn xattr_block(&self, inode: &Inode) -> Result<Option<(FsBlock, Arc<[u8]>)>> {
        let geometry = &self.sb.geometry;
        let at = inode.raw().file_acl(self.sb.features.incompat.contains(Incompat::BIT64));
        if at.get() == 0 {
            return Ok(None);
        }
        if at.get() <= u64::from(geometry.first_data_block) || at.get() >= geometry.blocks {
            let of = Where::Inode(inode.number);
            return Err(Error::corrupt(Structure::ExtendedAttribute, of, "i_file_acl lies outside the volume"));
        }
        self.may_lead_to(inode, at, 1, Purpose::Metadata)?;
        if !geometry.metadata_csum {
            return Ok(Some((at, self.store.block(at)?)));
        }
        let block = self.store.checked(at, |block| {
            let state = block_checksum(block, at, geometry.checksum_seed);
            Ok::<_, Error>(state.require(Structure::ExtendedAttribute).map_err(|e| e.at(Where::Block(at)))?)
        })?;
        Ok(Some((at, block)))
    }

    fn value(&self, inode: &Inode, area: &XattrArea<'_>, xattr: &Xattr<'_>) -> Result<Vec<u8>> {
        let value = match area.value(xattr).of(inode.number)? {
            Value::Here(value) => value.to_vec(),
            Value::Inode { inode: number, size } => self.value_inode(inode, xattr, number, size)?,
        };
        match xattr.entry.e_name_index {
            index::POSIX_ACL_ACCESS | index::POSIX_ACL_DEFAULT => {
                Ok(Acl::from_disk(&value).of(inode.number)?.to_xattr())
            }
            _ => Ok(value),
        }
    }

    /// The value in an attribute inode: `size` bytes, at most 16 MiB.
    fn value_inode(&self, inode: &Inode, xattr: &Xattr<'_>, number: InodeNo, size: u32) -> Result<Vec<u8>> {
        let bad = |what| Err(Error::corrupt(Structure::ExtendedAttribute, Where::Inode(inode.number), what));
        if !self.sb.features.incompat.contains(Incompat::EA_INODE) || !self.may_be_named(number) {
            return bad("a value refers to an invalid inode number");
        }
        let value_inode = self.inode(number)?;
        let raw = value_inode.raw();
        if !raw.flags().contains(InodeFlags::EA_INODE) || is_inline(&value_inode) || value_inode.size != u64::from(size)
        {
            return bad("a value's inode is not an attribute inode, or has another size");
        }
        let mut value = vec![0; size as usize];
        self.read_content(&value_inode, 0, &mut value)?;
        // Lustre's older form has a pointer back to the file instead of the hash
        let belongs =
            raw.disk.i_mtime.get() == inode.number.get() && raw.disk.i_generation == inode.raw().disk.i_generation;
        let hash = inode_value_hash(&value, self.sb.geometry.checksum_seed);
        if raw.disk.i_atime.get() != hash {
            return if belongs { Ok(value) } else { bad("a value does not match the hash in its inode") };
        }
        let stored = xattr.entry.e_hash.get();
        if stored != 0
            && ![false, true].iter().any(|&signed| entry_hash(xattr.name, &hash.to_le_bytes(), signed) == stored)
        {
            return bad("e_hash does not match name and value");
        }
        Ok(value)
    }
}

fn in_inode(inode: &Inode) -> Result<Option<XattrArea<'_>>> {
    XattrArea::in_inode(inode.raw().attribute_area()).of(inode.number)
}

fn in_block(at: FsBlock, block: &[u8]) -> Result<XattrArea<'_>> {
    Ok(XattrArea::in_block(block).map_err(|e| e.at(Where::Block(at)))?)
}

/// The attribute's name with prefix, if processes may see it.
fn name_of(xattr: &Xattr<'_>) -> Option<Vec<u8>> {
    if (xattr.entry.e_name_index, xattr.name) == DATA_XATTR {
        return None;
    }
    full_name(xattr.entry.e_name_index, xattr.name)
}
