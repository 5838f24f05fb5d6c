//! The name space: creating, linking, renaming and removing files.
//!
//! Each call takes its locks (see the rules of `node`), performs all checks that POSIX requires, and then makes one
//! change, so that it is atomic after a crash. Permissions are not checked: permission bits, the sticky bit and
//! set-group-id bits of users outside the group are the responsibility of the caller, which knows the user.

mod link;
mod make;
mod remove;
mod rename;

pub use make::NewFile;
pub use rename::RenameFlags;

use crate::change::Change;
use crate::file::edit::is_stamped;
use crate::layers::stands_on;
use crate::{Error, FileKind, Files, Inode, InodeFlags, InodeNo, Maps, Result};
use format::dir::NAME_MAX;
use format::feature::{Compat, RoCompat};
use format::superblock::DiskSuperblock;
use format::{Structure, Where, casefold};
use parking_lot::Mutex;
use std::sync::Arc;

/// Metadata blocks that a new name may dirty: the leaf and each index block above it split, the map of the directory
/// grows by a block for each, and two or three inodes change.
const NAMING: usize = 40;

/// Checks that a name is valid in a directory.
fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_MAX {
        return Err(Error::NameTooLong);
    }
    if name.is_empty() || name.contains(&b'/') || name.contains(&0) {
        return Err(Error::Invalid("a name is empty, or has a slash or a zero byte"));
    }
    Ok(())
}

fn strict(sb: &DiskSuperblock) -> bool {
    sb.s_encoding_flags.get() & casefold::FLAG_STRICT != 0
}

/// The name space: creating, linking, renaming and removing files.
pub struct Names {
    files: Files,
    /// Locked by a rename between directories, so that no directory changes its parent meanwhile.
    rename: Mutex<()>,
}

stands_on!(Names, files: Files);

impl Names {
    pub(crate) fn over(maps: Maps) -> Self {
        Self { files: Files::over(maps), rename: Mutex::default() }
    }

    /// A directory whose node is locked, checked for a change.
    fn dir_to_change(&self, number: InodeNo) -> Result<Arc<Inode>> {
        self.writing()?;
        let dir = self.inode(number)?;
        self.is_directory(&dir)?;
        if dir.raw().disk.i_links_count.get() == 0 {
            return Err(Error::NotFound);
        }
        if dir.raw().flags().contains(InodeFlags::IMMUTABLE) {
            return Err(Error::NotPermitted("the directory is immutable"));
        }
        Ok(dir)
    }

    /// Calls `work` with a directory that is locked and may get this name, which no file has in it.
    fn with_new_name<T>(&self, dir: InodeNo, name: &[u8], work: impl FnOnce(Arc<Inode>) -> Result<T>) -> Result<T> {
        self.record_name(dir, name);
        self.locked(&[dir], |_| {
            let dir = self.dir_to_change(dir)?;
            self.may_contain(&dir, name)?;
            if self.find(&dir, name)?.is_some() {
                return Err(Error::Exists);
            }
            work(dir)
        })
    }

    /// Checks that names may be removed from a directory.
    fn may_lose_names(&self, dir: &Inode) -> Result<()> {
        if dir.raw().flags().contains(InodeFlags::APPEND) {
            return Err(Error::NotPermitted("the directory is append-only"));
        }
        Ok(())
    }

    /// Checks that a name is valid in the directory's encoding.
    fn may_contain(&self, dir: &Inode, name: &[u8]) -> Result<()> {
        if dir.raw().flags().contains(InodeFlags::ENCRYPT) {
            return Err(Error::Encrypted);
        }
        if self.folds(dir) && strict(&self.sb.disk) && casefold::fold(name).is_none() {
            return Err(Error::Invalid("the name is not in the directory's encoding"));
        }
        Ok(())
    }

    /// The new link count of a directory after adding a subdirectory. With more than can be counted it is 1.
    fn with_subdirectory(&self, dir: &Inode) -> Result<u16> {
        let links = dir.raw().disk.i_links_count.get();
        let indexed = self.is_indexed(dir) && self.sb.features.compat.contains(Compat::DIR_INDEX);
        let uncounted = indexed && self.sb.features.ro_compat.contains(RoCompat::DIR_NLINK);
        if uncounted && (links == 1 || links >= self.layout.max_links()) {
            return Ok(1);
        }
        if links >= self.layout.max_links() {
            return Err(Error::TooManyNames);
        }
        Ok(links + 1)
    }

    /// The new link count of a directory after removing a subdirectory.
    fn without_subdirectory(dir: &Inode) -> u16 {
        let links = dir.raw().disk.i_links_count.get();
        if links > 2 { links - 1 } else { links }
    }

    /// Updates a directory after a change of its names. Times are written if they differ by a tick.
    fn touch(&self, change: &Change<'_>, dir: &Arc<Inode>, links: Option<u16>) -> Result<Arc<Inode>> {
        let now = change.now();
        let node = self.node(dir.number);
        node.record_names();
        if links.is_none() && is_stamped(dir, now) {
            node.record_change(change.generation());
            self.record_inode(dir.number);
            return Ok(Arc::clone(dir));
        }
        change.update_inode(dir, |buf| {
            buf.set_mtime(now);
            buf.set_ctime(now);
            if let Some(links) = links {
                buf.set_links(links);
            }
        })
    }

    /// Checks that a file may get a name in a directory that passes on its project.
    fn same_project(&self, dir: &Inode, inode: &Inode) -> Result<()> {
        let inherits = dir.raw().flags().contains(InodeFlags::PROJINHERIT);
        if inherits && dir.raw().project() != inode.raw().project() {
            return Err(Error::NotPermitted("the directory belongs to another project"));
        }
        Ok(())
    }

    /// The error for an entry that only corruption can explain.
    fn directory_loop(dir: InodeNo) -> Error {
        Error::corrupt(Structure::Directory, Where::Inode(dir), "an entry refers to its directory or an ancestor")
    }
}

/// Type and permissions in the form of `i_mode`.
fn mode_of(kind: FileKind, permissions: u16) -> u16 {
    let kind = match kind {
        FileKind::Fifo => 0x1000,
        FileKind::CharDevice => 0x2000,
        FileKind::Directory => 0x4000,
        FileKind::BlockDevice => 0x6000,
        FileKind::Regular => 0x8000,
        FileKind::Symlink => 0xA000,
        FileKind::Socket => 0xC000,
    };
    kind | permissions & 0o7777
}
