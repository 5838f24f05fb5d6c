//! Paths inside the volume.

use crate::{Directories, Error, FileKind, InodeNo, Result};
use std::collections::VecDeque;

/// Maximum number of symbolic links followed on one path, as in Linux.
const MAX_LINKS: usize = 40;

impl Directories {
    /// The inode of a path, following symbolic links. The path starts at the root, with or without a slash; a link with
    /// an absolute target starts at the volume's root again, and `..` stays inside the volume.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotADirectory`], [`Error::TooManyLinks`], [`Error::NameTooLong`], or an error of a
    /// directory in the path.
    pub fn resolve(&self, path: &[u8]) -> Result<InodeNo> {
        self.walk_path(path, true)
    }

    /// As [`Directories::resolve`], but does not follow a symbolic link in the last component.
    ///
    /// # Errors
    /// As [`Directories::resolve`].
    pub fn resolve_nofollow(&self, path: &[u8]) -> Result<InodeNo> {
        self.walk_path(path, false)
    }

    fn walk_path(&self, path: &[u8], follow_last: bool) -> Result<InodeNo> {
        if path.is_empty() {
            return Err(Error::NotFound);
        }
        let _guard = self.read_guard();
        let mut at = InodeNo::ROOT;
        let mut links = 0;
        let mut todo = components(path);
        while let Some(name) = todo.pop_front() {
            let dir = self.inode(at)?;
            if dir.kind != FileKind::Directory {
                return Err(Error::NotADirectory);
            }
            if name == b"." || (name == b".." && at == InodeNo::ROOT) {
                continue;
            }
            let found = self.lookup(&dir, &name)?;
            let inode = self.named_inode(found)?;
            if inode.kind != FileKind::Symlink || (todo.is_empty() && !follow_last) {
                at = found;
                continue;
            }
            links += 1;
            if links > MAX_LINKS {
                return Err(Error::TooManyLinks);
            }
            let target = self.read_link(&inode)?;
            if target.first() == Some(&b'/') {
                at = InodeNo::ROOT;
            }
            for component in components(&target).into_iter().rev() {
                todo.push_front(component);
            }
        }
        Ok(at)
    }
}

/// The components of a path, without empty ones. A trailing slash requires a directory, expressed by a trailing ".".
fn components(path: &[u8]) -> VecDeque<Vec<u8>> {
    let mut names: VecDeque<_> =
        path.split(|&b| b == b'/').filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect();
    if path.last() == Some(&b'/') {
        names.push_back(b".".to_vec());
    }
    names
}
