//! The name space: files made, named, renamed and removed.
//!
//! Each call locks what it works on (see the rules of `node`), checks everything that POSIX asks to be checked, and
//! then makes one change, so that after a crash it has happened whole or not at all. Whether the caller may do it is
//! not asked: permissions, the sticky bit and set-group-id bits of users who are in no such group are for the caller,
//! which knows the user.

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

/// Most names a file can have, and most subdirectories that can be counted: ext4's, and that of ext2 and ext3.
const LINKS_EXT4: u16 = 65_000;
const LINKS: u16 = 32_000;

/// Metadata blocks a new name may dirty: the leaf and each index block above it split, the map of the directory grows
/// by a block for each, and two or three inodes change.
const NAMING: usize = 40;

/// Whether a name can stand in a directory.
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

/// The name space: files made, linked, renamed and removed.
pub struct Names {
    files: Files,
    /// Locked by a rename between directories, so that no directory gets another parent meanwhile.
    rename: Mutex<()>,
}

stands_on!(Names, files: Files);

impl Names {
    pub(crate) fn over(maps: Maps) -> Self {
        Self { files: Files::over(maps), rename: Mutex::default() }
    }

    /// A directory whose node is locked, to be changed.
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

    /// Whether names can be taken out of a directory.
    fn may_lose_names(&self, dir: &Inode) -> Result<()> {
        if dir.raw().flags().contains(InodeFlags::APPEND) {
            return Err(Error::NotPermitted("the directory is append-only"));
        }
        Ok(())
    }

    /// Whether a directory can contain a name, as far as its encoding goes.
    fn may_contain(&self, dir: &Inode, name: &[u8]) -> Result<()> {
        if dir.raw().flags().contains(InodeFlags::ENCRYPT) {
            return Err(Error::Encrypted);
        }
        if self.folds(dir) && strict(&self.sb.disk) && casefold::fold(name).is_none() {
            return Err(Error::Invalid("the name is not in the directory's encoding"));
        }
        Ok(())
    }

    fn most_links(&self) -> u16 {
        if self.sb.features.format_name() == "ext4" { LINKS_EXT4 } else { LINKS }
    }

    /// The link count of a directory that gets a subdirectory. One with more than can be counted has 1.
    fn with_subdirectory(&self, dir: &Inode) -> Result<u16> {
        let links = dir.raw().disk.i_links_count.get();
        let indexed = self.is_indexed(dir) && self.sb.features.compat.contains(Compat::DIR_INDEX);
        let uncounted = indexed && self.sb.features.ro_compat.contains(RoCompat::DIR_NLINK);
        if uncounted && (links == 1 || links >= self.most_links()) {
            return Ok(1);
        }
        if links >= self.most_links() {
            return Err(Error::TooManyNames);
        }
        Ok(links + 1)
    }

    /// The link count of a directory that loses a subdirectory.
    fn without_subdirectory(dir: &Inode) -> u16 {
        let links = dir.raw().disk.i_links_count.get();
        if links > 2 { links - 1 } else { links }
    }

    /// A directory's names have changed. Times are written when they differ by a tick.
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

    /// Whether a file may get a name in a directory that hands on its project.
    fn same_project(&self, dir: &Inode, inode: &Inode) -> Result<()> {
        let inherits = dir.raw().flags().contains(InodeFlags::PROJINHERIT);
        if inherits && dir.raw().project() != inode.raw().project() {
            return Err(Error::NotPermitted("the directory belongs to another project"));
        }
        Ok(())
    }

    /// An entry that leads where only corruption leads.
    fn leads_back(dir: InodeNo) -> Error {
        Error::corrupt(Structure::Directory, Where::Inode(dir), "an entry leads back to an ancestor")
    }
}

/// Type and permissions as `i_mode` has them.
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
