//! Changes of inode attributes: permissions, owner, times, flags, project.

use crate::xattr::Wanted;
use crate::{Error, FileKind, Files, Inode, InodeFlags, InodeNo, Result, Timestamp};
use format::feature::{Incompat, RoCompat};
use format::xattr::index;
use std::sync::Arc;

/// The attributes of a file to change; those that are `None` stay. The change time becomes the current time unless it
/// is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SetAttributes {
    /// Permission bits with set-user-id, set-group-id and sticky: 0 to 0o7777.
    pub mode: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Last access.
    pub atime: Option<Timestamp>,
    /// Last change of the content.
    pub mtime: Option<Timestamp>,
    /// Last change of the inode.
    pub ctime: Option<Timestamp>,
    /// Creation, where the inode records it.
    pub crtime: Option<Timestamp>,
    /// Flags, complete: those that [`Files::set_attributes`] cannot change must equal the current ones.
    pub flags: Option<InodeFlags>,
    /// Project.
    pub project: Option<u32>,
    /// The change time stays, whatever else changes and whatever `ctime` contains.
    pub preserve_ctime: bool,
    /// The times are the current time, or those of an earlier write, and no other change is requested: append-only
    /// files allow that.
    pub touch: bool,
}

/// Flags that may be changed at any time, as with chattr(1).
const SETTABLE: InodeFlags = InodeFlags::SECRM
    .union(InodeFlags::UNRM)
    .union(InodeFlags::COMPR)
    .union(InodeFlags::SYNC)
    .union(InodeFlags::IMMUTABLE)
    .union(InodeFlags::APPEND)
    .union(InodeFlags::NODUMP)
    .union(InodeFlags::NOATIME)
    .union(InodeFlags::JOURNAL_DATA)
    .union(InodeFlags::NOTAIL)
    .union(InodeFlags::DIRSYNC)
    .union(InodeFlags::TOPDIR)
    .union(InodeFlags::DAX)
    .union(InodeFlags::PROJINHERIT)
    .union(InodeFlags::CASEFOLD);

/// Flags for directories only.
const OF_DIRECTORIES: InodeFlags = InodeFlags::DIRSYNC.union(InodeFlags::TOPDIR).union(InodeFlags::CASEFOLD);

impl Files {
    /// Changes attributes of a file, and returns the changed inode. New permission bits also change its access control
    /// list. Times are stored with the precision and range of the inode.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] if the file is immutable or append-only (except for its flags), and for flags and
    /// projects that this file or this volume cannot have; [`Error::NotEmpty`] for casefold on a directory that is not
    /// empty.
    pub fn set_attributes(&self, number: InodeNo, set: &SetAttributes) -> Result<Arc<Inode>> {
        self.set_attributes_if(number, set, |_| true)
    }

    /// As [`Files::set_attributes`], if `wanted` accepts the file; else the inode is returned unchanged.
    ///
    /// # Errors
    /// As [`Files::set_attributes`].
    pub fn set_attributes_if(
        &self,
        number: InodeNo,
        set: &SetAttributes,
        wanted: impl FnOnce(&Inode) -> bool,
    ) -> Result<Arc<Inode>> {
        self.writing()?;
        let _guard = self.admit_change()?;
        self.locked(&[number], |_| {
            let inode = self.inode(number)?;
            if !wanted(&inode) {
                return Ok(inode);
            }
            let flags = set.flags.map(|flags| self.settable(&inode, flags)).transpose()?;
            let only_flags = SetAttributes { flags: None, ctime: None, ..*set } == SetAttributes::default();
            let immutable = inode.raw().flags().contains(InodeFlags::IMMUTABLE);
            if !only_flags && (immutable || !set.touch) {
                self.may_change(&inode)?;
            }
            self.may_have_project(&inode, set)?;
            let list = match set.mode {
                Some(mode) => self.chmod_acl(&inode, mode)?,
                None => None,
            };
            let change = self.change(crate::xattr::ATTRIBUTES)?;
            let mut inode = inode;
            if list.is_some() {
                let wanted = Wanted { index: index::POSIX_ACL_ACCESS, name: b"", value: list };
                // same length as before: no value moves to an inode of its own, and none becomes unused
                inode = self.put_attributes(&change, &inode, &[wanted])?.0;
            }
            let ctime = set.ctime.unwrap_or(change.now());
            let ctime = if set.preserve_ctime { inode.raw().ctime() } else { ctime };
            change.update_inode(&inode, |buf| {
                if let Some(mode) = set.mode {
                    buf.set_mode(buf.raw().disk.i_mode.get() & 0xF000 | mode & 0o7777);
                }
                if let Some(uid) = set.uid {
                    buf.set_uid(uid);
                }
                if let Some(gid) = set.gid {
                    buf.set_gid(gid);
                }
                if let Some(time) = set.atime {
                    buf.set_atime(time);
                }
                if let Some(time) = set.mtime {
                    buf.set_mtime(time);
                }
                if let Some(time) = set.crtime {
                    buf.set_crtime(time);
                }
                if let Some(flags) = flags {
                    buf.set_flags(flags);
                }
                if let Some(project) = set.project {
                    buf.set_project(project);
                }
                buf.set_ctime(ctime);
            })
        })
    }

    /// The flags to set, if they are permitted.
    fn settable(&self, inode: &Inode, flags: InodeFlags) -> Result<InodeFlags> {
        let old = inode.raw().flags();
        let changed = old ^ flags;
        let no = |why| Err(Error::NotPermitted(why));
        if !(changed - SETTABLE).is_empty() {
            return no("this flag cannot be changed");
        }
        let is_dir = inode.kind == FileKind::Directory;
        if !is_dir && (changed & flags).intersects(OF_DIRECTORIES) {
            return no("this flag is for directories only");
        }
        let stays = !InodeFlags::IMMUTABLE & !InodeFlags::APPEND;
        if old.contains(InodeFlags::IMMUTABLE) && flags.contains(InodeFlags::IMMUTABLE) && changed.intersects(stays) {
            return no("the file is immutable");
        }
        if changed.contains(InodeFlags::CASEFOLD) {
            if !self.sb.features.incompat.contains(Incompat::CASEFOLD) || old.contains(InodeFlags::ENCRYPT) {
                return no("case-insensitive names are not supported in this directory");
            }
            if !self.is_empty_dir(inode)? {
                return Err(Error::NotEmpty);
            }
        }
        if (changed & flags).contains(InodeFlags::DAX) && old.contains(InodeFlags::INLINE_DATA) {
            return no("the file has inline data");
        }
        Ok(flags)
    }

    fn may_have_project(&self, inode: &Inode, set: &SetAttributes) -> Result<()> {
        let Some(project) = set.project else { return Ok(()) };
        let records = inode.raw().extra_isize() >= 32;
        if project != inode.raw().project() && (!records || !self.sb.features.ro_compat.contains(RoCompat::PROJECT)) {
            return Err(Error::NotPermitted("the volume cannot store project IDs"));
        }
        Ok(())
    }
}
