//! Setting and removing extended attributes.
//!
//! An attribute is stored in the inode if there is space, else in the attribute block, else, on volumes with ea_inode,
//! its value has an attribute inode. A block shared with other inodes is never changed: this inode gets a block of its
//! own.

use super::pack::{self, Attr, Stored};
use super::{in_block, in_inode};
use crate::alloc::{Purpose, Role};
use crate::change::Change;
use crate::error::OfInode;
use crate::orphan_list::LISTING;
use crate::{Error, FileKind, Inode, InodeFlags, InodeNo, Result, Timestamp, Xattrs};
use format::FsBlock;
use format::feature::{Compat, Incompat};
use format::inline::DATA_XATTR;
use format::inode::InodeBuf;
use format::xattr::{entry_hash, inode_value_hash};
use std::sync::Arc;
use store::{Kind, Part, Tag};

/// Minimum length of a value for an attribute inode.
const INODE_VALUE_MIN: usize = 128;

/// Metadata blocks that a change of attributes may dirty, besides the value of an attribute inode: two inodes, the old
/// block and the new one.
pub(crate) const ATTRIBUTES: usize = 8 + LISTING;

/// The condition for setting an attribute, as the flags of setxattr(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum XattrMode {
    /// Create the attribute, or replace its value.
    #[default]
    Any,
    /// Create the attribute; an error if it exists.
    Create,
    /// Replace its value; an error if it does not exist.
    Replace,
}

/// The attributes of an inode: those in it, those in its block, and that block with its number of users.
struct Attributes {
    body: Vec<Attr>,
    block: Vec<Attr>,
    at: Option<(FsBlock, u32)>,
}

/// An attribute to set, or to remove if it has no value.
pub(crate) struct Wanted<'a> {
    pub(crate) index: u8,
    pub(crate) name: &'a [u8],
    pub(crate) value: Option<Vec<u8>>,
}

impl Xattrs {
    pub(crate) fn blocks_of(&self, bytes: usize) -> usize {
        bytes.div_ceil(self.sb.geometry.block_size as usize) + 4
    }

    pub(crate) fn has_xattr(&self, inode: &Inode, index: u8, name: &[u8]) -> Result<bool> {
        let there = self.load_attributes(inode)?;
        Ok(there.body.iter().chain(&there.block).any(|attr| attr.is(index, name)))
    }

    fn load_attributes(&self, inode: &Inode) -> Result<Attributes> {
        let body = match in_inode(inode)? {
            Some(area) => pack::unpack(&area).of(inode.number)?,
            None => Vec::new(),
        };
        let Some((at, bytes)) = self.xattr_block(inode)? else {
            return Ok(Attributes { body, block: Vec::new(), at: None });
        };
        let block = pack::unpack(&in_block(at, &bytes)?).of(inode.number)?;
        Ok(Attributes { body, block, at: Some((at, pack::users(&bytes))) })
    }

    /// Sets and removes attributes of an inode. Returns the inode, and attribute inodes that are no longer referenced:
    /// the caller frees them as orphans, after the change.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; nothing is changed then.
    pub(crate) fn put_attributes(
        &self,
        change: &Change<'_>,
        inode: &Arc<Inode>,
        wanted: &[Wanted<'_>],
    ) -> Result<(Arc<Inode>, Vec<InodeNo>)> {
        let old = self.load_attributes(inode)?;
        let (mut body, mut block) = (old.body.clone(), old.block.clone());
        let mut made = Vec::new();
        let mut outcome = Ok(());
        for one in wanted {
            outcome = self.plan(change, inode, &mut body, &mut block, one, &mut made);
            if outcome.is_err() {
                break;
            }
        }
        let stored = outcome.and_then(|()| self.store_attributes(change, inode, &old, &body, &block));
        let stored = match stored {
            Ok(stored) => stored,
            Err(e) => {
                for value_inode in made {
                    self.undo_value(change, value_inode)?;
                }
                return Err(e);
            }
        };
        let used = |number: &InodeNo| body.iter().chain(&block).any(|attr| value_inode_of(attr) == Some(*number));
        let shared = old.at.is_some_and(|(_, users)| users > 1);
        let mut dropped = Vec::new();
        let lost = old.body.iter().chain(if shared { &[][..] } else { &old.block }).filter_map(value_inode_of);
        for value_inode in lost.filter(|value_inode| !used(value_inode)) {
            dropped.extend(self.drop_value(change, value_inode)?);
        }
        Ok((stored, dropped))
    }

    /// Plans the location of an attribute: in the inode, in the block, or with an attribute inode for its value.
    fn plan(
        &self,
        change: &Change<'_>,
        inode: &Arc<Inode>,
        body: &mut Vec<Attr>,
        block: &mut Vec<Attr>,
        wanted: &Wanted<'_>,
        made: &mut Vec<InodeNo>,
    ) -> Result<()> {
        let space = inode.raw().attribute_area().len();
        let block_size = self.sb.geometry.block_size;
        let at = body.iter().position(|attr| attr.is(wanted.index, wanted.name));
        if at.is_none() {
            block.retain(|attr| !attr.is(wanted.index, wanted.name));
        }
        if let Some(at) = at {
            body.remove(at);
        }
        let Some(value) = &wanted.value else { return Ok(()) };
        let mut attr = Attr { index: wanted.index, name: wanted.name.to_vec(), value: Stored::Here(value.clone()) };
        for _ in 0..2 {
            for (list, in_inode) in [(&mut *body, true), (&mut *block, false)] {
                list.push(attr.clone());
                let fits = if in_inode { pack::fits_inode(list, space) } else { pack::fits_block(list, block_size) };
                if fits {
                    return Ok(());
                }
                list.pop();
            }
            let own = self.sb.features.incompat.contains(Incompat::EA_INODE) && made.is_empty();
            if !own || value.len() < INODE_VALUE_MIN {
                break;
            }
            let value_inode = self.make_value(change, inode, value)?;
            made.push(value_inode);
            let hash = inode_value_hash(value, self.sb.geometry.checksum_seed);
            let hash = entry_hash(&attr.name, &hash.to_le_bytes(), false);
            // shorter than 2^32: a value set by a process
            attr.value = Stored::Inode { inode: value_inode, size: value.len() as u32, hash };
        }
        Err(Error::NoSpace)
    }

    fn store_attributes(
        &self,
        change: &Change<'_>,
        inode: &Arc<Inode>,
        old: &Attributes,
        body: &[Attr],
        block: &[Attr],
    ) -> Result<Arc<Inode>> {
        let mut packed = inode.raw().attribute_area().to_vec();
        if body != old.body {
            pack::pack_inode(&mut packed, body).ok_or(Error::NoSpace)?;
        }
        let tag = Tag::new(Kind::Attributes, inode.number);
        let mut file_acl = old.at.map_or(0, |(at, _)| at.get());
        // values in attribute inodes are charged to each file that has them
        let (mut more, mut fewer) =
            (self.charged(body.iter().chain(block)), self.charged(old.body.iter().chain(&old.block)));
        // reads and allocations end here; only edits follow
        if block != old.block {
            match old.at {
                Some((at, users)) if users <= 1 && !block.is_empty() => {
                    change.edit(at, tag, |bytes| pack::pack_block(bytes, block))?.ok_or(Error::NoSpace)?;
                }
                _ => {
                    if !block.is_empty() {
                        let new = change.allocate(inode.number, self.goal(inode), 1, Role::Metadata)?.first;
                        change.record_run(inode.number, Part::Attributes, (new, 1), true);
                        change.fresh(new, tag, |bytes| pack::pack_block(bytes, block)).ok_or(Error::NoSpace)?;
                        file_acl = new.get();
                        more += 1;
                    } else {
                        file_acl = 0;
                    }
                    if let Some((at, users)) = old.at {
                        self.leave_block(change, at, tag)?;
                        fewer += 1;
                        // both blocks refer to the remaining ones
                        let stays =
                            |number: &InodeNo| old.block.iter().any(|attr| value_inode_of(attr) == Some(*number));
                        for value_inode in block.iter().filter_map(value_inode_of).filter(|h| users > 1 && stays(h)) {
                            self.share_value(change, value_inode)?;
                        }
                    }
                }
            }
        }
        let flag = !self.sb.features.compat.contains(Compat::EXT_ATTR);
        if flag {
            change.edit_superblock(|sb| {
                let mut features = sb.features();
                features.compat |= Compat::EXT_ATTR;
                sb.set_features(features);
            })?;
        }
        let (inode, ()) = change.edit_inode(inode, |buf| {
            buf.attribute_area_mut().copy_from_slice(&packed);
            buf.set_file_acl(FsBlock(file_acl));
            self.count_blocks(buf, more, fewer)
        })?;
        Ok(inode)
    }

    /// Removes an inode from the users of its attribute block, which is freed with its last user.
    fn leave_block(&self, change: &Change<'_>, at: FsBlock, tag: Tag) -> Result<bool> {
        change.prepare_to_free(at, 1)?;
        let left = change.edit(at, tag, pack::unshare)?;
        if left == 0 {
            change.record_run(tag.owner, Part::Attributes, (at, 1), false);
            change.free(at, 1, Purpose::Metadata)?;
        }
        Ok(left == 0)
    }

    /// Creates the attribute inode for a value.
    fn make_value(&self, change: &Change<'_>, owner: &Arc<Inode>, value: &[u8]) -> Result<InodeNo> {
        let (number, generation) = change.allocate_inode(owner, FileKind::Regular)?;
        let mut buf = InodeBuf::new(self.sb.geometry.inode_size, self.extra_isize());
        buf.set_mode(0o100_600);
        buf.set_uid(owner.raw().uid());
        buf.set_gid(owner.raw().gid());
        buf.set_links(1);
        buf.set_flags(InodeFlags::EA_INODE);
        self.make_map(&mut buf);
        buf.disk_mut().i_generation = generation.into();
        set_value_users(&mut buf, 1);
        let hash = inode_value_hash(value, self.sb.geometry.checksum_seed);
        let hash = Timestamp { seconds: i64::from(hash.cast_signed()), nanos: 0 };
        buf.set_mtime(change.now());
        buf.set_crtime(change.now());
        buf.set_atime(hash);
        let inode = change.put_inode(number, buf)?;
        match change.write_small_content(&inode, value) {
            Ok(_) => Ok(number),
            Err(e) => {
                self.abandon(change, &inode)?;
                Err(e)
            }
        }
    }

    /// Undoes the creation of an attribute inode by the same change.
    fn undo_value(&self, change: &Change<'_>, value_inode: InodeNo) -> Result<()> {
        let inode = self.any_inode(value_inode)?;
        let (inode, _) = change
            .edit_inode(&inode, |buf| change.map_clear(&inode, buf, 0, u64::MAX, &mut crate::map::Steps::all()))?;
        self.abandon(change, &inode)
    }

    /// Blocks charged for values in attribute inodes.
    fn charged<'a>(&self, attrs: impl Iterator<Item = &'a Attr>) -> u64 {
        let cluster = u64::from(self.sb.geometry.cluster_blocks);
        let bytes = u64::from(self.sb.geometry.block_size) * cluster;
        let blocks = |attr: &Attr| match attr.value {
            Stored::Inode { size, .. } => u64::from(size).div_ceil(bytes) * cluster,
            Stored::Here(_) => 0,
        };
        attrs.map(blocks).sum()
    }

    /// Adds a reference from another attribute block to an attribute inode.
    fn share_value(&self, change: &Change<'_>, value_inode: InodeNo) -> Result<()> {
        let _counting = self.values.lock();
        let inode = self.inode(value_inode)?;
        let users = value_users(&inode).saturating_add(1);
        change.update_inode(&inode, |buf| set_value_users(buf, users)).map(drop)
    }

    /// Removes a reference to an attribute inode. Returns it if none is left: it is an orphan then.
    fn drop_value(&self, change: &Change<'_>, value_inode: InodeNo) -> Result<Option<InodeNo>> {
        let valid = self.may_be_named(value_inode) && self.sb.features.incompat.contains(Incompat::EA_INODE);
        let counting = self.values.lock();
        let Ok(inode) = self.inode(value_inode) else { return Ok(None) };
        if !valid || !inode.raw().flags().contains(InodeFlags::EA_INODE) {
            return Ok(None);
        }
        let left = value_users(&inode).saturating_sub(1);
        let inode = change.update_inode(&inode, |buf| {
            set_value_users(buf, left);
            if left == 0 {
                buf.set_links(0);
            }
        })?;
        drop(counting);
        if left > 0 {
            return Ok(None);
        }
        change.add_orphan(&inode, false)?;
        Ok(Some(value_inode))
    }

    /// Frees the attributes of an inode that is being freed. Returns attribute inodes to free after the change.
    pub(crate) fn drop_attributes(&self, change: &Change<'_>, inode: &Inode) -> Result<Vec<InodeNo>> {
        // damaged attributes are left for a check
        let old = match self.load_attributes(inode) {
            Err(Error::Corrupt { .. }) => return Ok(Vec::new()),
            other => other?,
        };
        let mut lost: Vec<InodeNo> = old.body.iter().filter_map(value_inode_of).collect();
        if let Some((at, _)) = old.at {
            let tag = Tag::new(Kind::Attributes, inode.number);
            if self.leave_block(change, at, tag)? {
                lost.extend(old.block.iter().filter_map(value_inode_of));
            }
        }
        let mut dropped = Vec::new();
        for value_inode in lost {
            dropped.extend(self.drop_value(change, value_inode)?);
        }
        Ok(dropped)
    }

    /// Whether freeing the attributes of an inode changes more than its slot.
    pub(crate) fn has_outer_attributes(&self, inode: &Inode) -> bool {
        let outer = |area: format::xattr::XattrArea<'_>| area.iter().any(|x| x.entry.e_value_inum.get() != 0);
        inode.raw().file_acl(true).get() != 0 || in_inode(inode).is_ok_and(|area| area.is_some_and(outer))
    }

    /// The stored value of an attribute, if it exists.
    pub(crate) fn stored_xattr(&self, inode: &Inode, index: u8) -> Result<Option<Vec<u8>>> {
        let there = self.load_attributes(inode)?;
        let attr = there.body.into_iter().chain(there.block).find(|attr| attr.is(index, b""));
        Ok(attr.and_then(|attr| match attr.value {
            Stored::Here(value) => Some(value),
            Stored::Inode { .. } => None,
        }))
    }

    /// Undoes the creation of an inode by the same change, while it has no content.
    pub(crate) fn abandon(&self, change: &Change<'_>, inode: &Arc<Inode>) -> Result<()> {
        self.free_emptied(change, inode).map(drop)
    }

    /// Frees an inode whose content is freed, with its attributes; it is not an orphan then. Returns attribute inodes
    /// to free after the change.
    pub(crate) fn free_emptied(&self, change: &Change<'_>, inode: &Arc<Inode>) -> Result<Vec<InodeNo>> {
        change.prepare_to_free_inode(inode.number)?;
        let dropped = self.drop_attributes(change, inode)?;
        if self.is_orphan(inode.number) {
            change.remove_orphan(inode.number)?;
        }
        let raw = inode.raw();
        let mut buf = InodeBuf::new(self.sb.geometry.inode_size, raw.extra_isize());
        let disk = buf.disk_mut();
        disk.i_generation = raw.disk.i_generation;
        disk.i_dtime = (change.now().seconds.max(1) as u32).into();
        buf.set_file_acl(FsBlock(0));
        change.free_inode(inode.number, inode.kind == FileKind::Directory)?;
        change.put_freed_inode(inode.number, buf)?;
        Ok(dropped)
    }
}

/// The number of references to an attribute inode: stored in the fields for version and change time.
fn value_users(inode: &Inode) -> u64 {
    let disk = inode.raw().disk;
    u64::from(disk.i_ctime.get()) << 32 | u64::from(disk.i_version_lo.get())
}

fn set_value_users(buf: &mut InodeBuf, users: u64) {
    let disk = buf.disk_mut();
    disk.i_ctime = ((users >> 32) as u32).into();
    disk.i_version_lo = (users as u32).into();
}

fn value_inode_of(attr: &Attr) -> Option<InodeNo> {
    match attr.value {
        Stored::Inode { inode, .. } if !attr.is(DATA_XATTR.0, DATA_XATTR.1) => Some(inode),
        _ => None,
    }
}
