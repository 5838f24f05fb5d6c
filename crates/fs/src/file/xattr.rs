//! Setting and removing of extended attributes, as requested by processes.

use crate::acl;
use crate::xattr::{ATTRIBUTES, Wanted, XattrMode};
use crate::{Error, FileKind, Files, InodeNo, Result};
use format::dir::NAME_MAX;
use format::xattr::{index, split_name};

/// The maximum length of a value that a process can set (`XATTR_SIZE_MAX`), in bytes.
const VALUE_LIMIT: usize = 65536;

impl Files {
    /// Sets an attribute, by its name with prefix. Access control lists are passed in the user-space format; the access
    /// list changes the permission bits shown by chmod(1), and a list equivalent to these is not stored.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for an unknown prefix, [`Error::NameTooLong`], [`Error::NoSpace`] also for a value that
    /// is too long, [`Error::Exists`] and [`Error::NoAttribute`] depending on `mode`, [`Error::Invalid`] for an invalid
    /// list, [`Error::NotPermitted`] if the file's flags or kind forbid it.
    pub fn set_xattr(&self, number: InodeNo, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        if value.len() > VALUE_LIMIT {
            return Err(Error::NoSpace);
        }
        self.with_space(|| self.change_xattr(number, name, Some(value), mode))
    }

    /// Removes an attribute, by its name with prefix.
    ///
    /// # Errors
    /// [`Error::NoAttribute`] if it does not exist, and as [`Files::set_xattr`].
    pub fn remove_xattr(&self, number: InodeNo, name: &[u8]) -> Result<()> {
        let _guard = self.admit_change()?;
        self.change_xattr(number, name, None, XattrMode::Replace)
    }

    fn change_xattr(&self, number: InodeNo, full: &[u8], value: Option<&[u8]>, mode: XattrMode) -> Result<()> {
        let unknown = || Error::Unsupported("attributes with this prefix".into());
        let (index, name) = split_name(full).ok_or_else(unknown)?;
        if name.len() > NAME_MAX || full.len() > NAME_MAX {
            return Err(Error::NameTooLong);
        }
        if matches!(index, index::SYSTEM | index::RICHACL) {
            return Err(unknown());
        }
        let dropped = self.locked(&[number], |_| {
            let inode = self.inode(number)?;
            self.may_change(&inode)?;
            let plain = matches!(inode.kind, FileKind::Regular | FileKind::Directory);
            if index == index::USER && !plain {
                return Err(Error::NotPermitted("only regular files and directories can have user.* attributes"));
            }
            let there = self.has_xattr(&inode, index, name)?;
            match mode {
                XattrMode::Create if there => return Err(Error::Exists),
                XattrMode::Replace if !there => return Err(Error::NoAttribute),
                _ => {}
            }
            let (value, permissions) = match (index, value) {
                (index::POSIX_ACL_ACCESS | index::POSIX_ACL_DEFAULT, Some(value)) => {
                    acl::from_program(&inode, index, value)?
                }
                (_, value) => (value.map(<[u8]>::to_vec), None),
            };
            let credits = ATTRIBUTES + value.as_ref().map_or(0, |v| self.blocks_of(v.len()));
            let wanted = Wanted { index, name, value };
            let change = self.change(credits)?;
            let (inode, dropped) = self.put_attributes(&change, &inode, &[wanted])?;
            let now = change.now();
            change.update_inode(&inode, |buf| {
                buf.set_ctime(now);
                if let Some(permissions) = permissions {
                    buf.set_mode(buf.raw().disk.i_mode.get() & !0o777 | permissions);
                }
            })?;
            Ok(dropped)
        })?;
        dropped.into_iter().try_for_each(|value_inode| self.free_orphan(value_inode))
    }
}
