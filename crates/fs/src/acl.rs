//! POSIX access control lists and their effect on permission bits: setting, inheritance, chmod.

use crate::{Error, FileKind, Inode, Result, Xattrs};
use format::acl::{Acl, AclEntry, Tag};
use format::xattr::index;

/// The permission bits equivalent to a list: of owner, group (the mask's if the list has a mask) and others.
fn permissions(acl: &Acl) -> u16 {
    let perm = |wanted: Tag| acl.0.iter().find(|entry| entry.tag == wanted).map(|entry| entry.perm & 7);
    let group = perm(Tag::Mask).or_else(|| perm(Tag::GroupObj));
    perm(Tag::UserObj).unwrap_or(0) << 6 | group.unwrap_or(0) << 3 | perm(Tag::Other).unwrap_or(0)
}

/// Whether a list is equivalent to permission bits.
fn is_minimal(acl: &Acl) -> bool {
    acl.0.iter().all(|entry| matches!(entry.tag, Tag::UserObj | Tag::GroupObj | Tag::Other))
}

/// Parses a list passed by a process: the value to store, `None` for none, and the permission bits that result.
pub(crate) fn from_program(inode: &Inode, index: u8, value: &[u8]) -> Result<(Option<Vec<u8>>, Option<u16>)> {
    let bad = Error::Invalid("not an access control list");
    if inode.kind == FileKind::Symlink {
        return Err(Error::Unsupported("access control lists of symbolic links".into()));
    }
    if index == index::POSIX_ACL_DEFAULT && inode.kind != FileKind::Directory {
        return Err(Error::NotPermitted("only directories have a default access control list"));
    }
    let Ok(acl) = Acl::from_xattr(value) else { return Err(bad) };
    if acl.0.is_empty() {
        return Ok((None, None));
    }
    if !acl.is_valid() {
        return Err(bad);
    }
    if index == index::POSIX_ACL_DEFAULT {
        return Ok((Some(acl.to_disk()), None));
    }
    let stored = (!is_minimal(&acl)).then(|| acl.to_disk());
    Ok((stored, Some(permissions(&acl))))
}

/// The permissions that a new file inherits from its directory's default list: permission bits, and the access list and
/// default list to store, if any.
pub(crate) struct Inherited {
    pub(crate) mode: u16,
    pub(crate) access: Option<Vec<u8>>,
    pub(crate) default: Option<Vec<u8>>,
}

impl Xattrs {
    /// The permissions of a new file: masked by the directory's default list if it has one, else by `umask`.
    pub(crate) fn inherit(&self, dir: &Inode, kind: FileKind, mode: u16, umask: u16) -> Result<Inherited> {
        let plain = Inherited { mode: mode & !(umask & 0o777), access: None, default: None };
        if kind == FileKind::Symlink {
            return Ok(Inherited { mode, ..plain });
        }
        let Some(stored) = self.stored_xattr(dir, index::POSIX_ACL_DEFAULT)? else { return Ok(plain) };
        let Ok(mut acl) = Acl::from_disk(&stored) else { return Ok(plain) };
        let masked = acl.0.iter().any(|entry| entry.tag == Tag::Mask);
        for AclEntry { tag, perm } in &mut acl.0 {
            match tag {
                Tag::UserObj => *perm &= mode >> 6 & 7,
                Tag::Mask => *perm &= mode >> 3 & 7,
                Tag::GroupObj if !masked => *perm &= mode >> 3 & 7,
                Tag::Other => *perm &= mode & 7,
                _ => {}
            }
        }
        let access = (!is_minimal(&acl)).then(|| acl.to_disk());
        let default = (kind == FileKind::Directory).then_some(stored);
        Ok(Inherited { mode: mode & !0o777 | permissions(&acl), access, default })
    }

    /// The access list of a file after a change of its permission bits to `mode`; `None` if it has none.
    pub(crate) fn chmod_acl(&self, inode: &Inode, mode: u16) -> Result<Option<Vec<u8>>> {
        if inode.kind == FileKind::Symlink {
            return Ok(None);
        }
        let Some(stored) = self.stored_xattr(inode, index::POSIX_ACL_ACCESS)? else { return Ok(None) };
        let Ok(mut acl) = Acl::from_disk(&stored) else { return Ok(None) };
        let masked = acl.0.iter().any(|entry| entry.tag == Tag::Mask);
        for AclEntry { tag, perm } in &mut acl.0 {
            match tag {
                Tag::UserObj => *perm = mode >> 6 & 7,
                Tag::Mask => *perm = mode >> 3 & 7,
                Tag::GroupObj if !masked => *perm = mode >> 3 & 7,
                Tag::Other => *perm = mode & 7,
                _ => {}
            }
        }
        Ok(Some(acl.to_disk()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_permission_bits() {
        let entry = |tag, perm| AclEntry { tag, perm };
        let minimal = Acl(vec![entry(Tag::UserObj, 7), entry(Tag::GroupObj, 5), entry(Tag::Other, 4)]);
        assert!(is_minimal(&minimal));
        assert_eq!(permissions(&minimal), 0o754);
        let mut full = minimal;
        full.0.insert(1, entry(Tag::User(9), 6));
        full.0.insert(3, entry(Tag::Mask, 6));
        assert!(full.is_valid() && !is_minimal(&full));
        assert_eq!(permissions(&full), 0o764);
    }
}
