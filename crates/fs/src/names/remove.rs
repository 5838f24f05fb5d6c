//! Removal of names, and of files with their last name.

use super::check_name;
use crate::change::Change;
use crate::map::{Steps, has_blocks, is_in_inode};
use crate::node::Locked;
use crate::orphan_list::LISTING;
use crate::{Error, FileKind, Inode, InodeNo, Names, Result};
use format::inode::InodeBuf;
use std::sync::Arc;

/// Metadata blocks that the removal of a name may dirty.
pub(super) const REMOVING: usize = 10 + LISTING;

impl Names {
    /// Removes a name of a file that is not a directory. With its last name the file is freed: at once, or when it has
    /// no lookup count any more.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::IsADirectory`], [`Error::NotPermitted`] if flags of the file or the directory
    /// forbid it.
    pub fn unlink(&self, dir: InodeNo, name: &[u8]) -> Result<()> {
        check_name(name)?;
        if matches!(name, b"." | b"..") {
            return Err(Error::IsADirectory);
        }
        self.remove(dir, name, false)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`Error::NotEmpty`], [`Error::NotADirectory`], [`Error::NotFound`], [`Error::Invalid`] for ".",
    /// [`Error::NotPermitted`] as for [`Names::unlink`].
    pub fn rmdir(&self, dir: InodeNo, name: &[u8]) -> Result<()> {
        check_name(name)?;
        match name {
            b"." => Err(Error::Invalid("a directory cannot be removed by the name \".\"")),
            b".." => Err(Error::NotEmpty),
            _ => self.remove(dir, name, true),
        }
    }

    fn remove(&self, dir: InodeNo, name: &[u8], directory: bool) -> Result<()> {
        let _guard = self.admit_change()?;
        self.record_name(dir, name);
        let goes = self.locked(&[dir], |_| {
            let dir = self.dir_to_change(dir)?;
            let found = self.find_named(&dir, name)?;
            if found.inode == dir.number {
                return Err(Self::directory_loop(dir.number));
            }
            self.locked(&[found.inode], |locked| {
                let inode = self.named_inode(found.inode)?;
                match (inode.kind == FileKind::Directory, directory) {
                    (true, false) => return Err(Error::IsADirectory),
                    (false, true) => return Err(Error::NotADirectory),
                    _ => {}
                }
                self.may_lose_names(&dir)?;
                self.may_change(&inode)?;
                if directory && !self.is_empty_dir(&inode)? {
                    return Err(Error::NotEmpty);
                }
                let change = self.change_freeing(REMOVING)?;
                change.may_remove_names()?;
                let dir = self.take_name(&change, &dir, &found)?;
                let links = directory.then(|| Self::without_subdirectory(&dir));
                self.touch(&change, &dir, links)?;
                self.lose_name(&change, &inode, locked)
            })
        })?;
        self.free_all(goes)
    }

    /// Frees orphans. The caller has no lock.
    pub(super) fn free_all(&self, orphans: Vec<InodeNo>) -> Result<()> {
        orphans.into_iter().try_for_each(|number| self.free_orphan(number))
    }

    /// Updates a locked file after the removal of a name; a directory has no name left. Returns the orphans to free
    /// after the change.
    pub(super) fn lose_name(
        &self,
        change: &Change<'_>,
        inode: &Arc<Inode>,
        locked: &mut Locked<'_>,
    ) -> Result<Vec<InodeNo>> {
        let links = match inode.kind {
            FileKind::Directory => 0,
            _ => inode.raw().disk.i_links_count.get().saturating_sub(1),
        };
        let looked_up = self.nodes.is_looked_up(inode.number);
        let now = change.now();
        let number = inode.number;
        if links == 0
            && !looked_up
            && (!has_blocks(self, inode) || is_in_inode(inode))
            && !self.has_outer_attributes(inode)
            && let Some(state) = locked.state(number)
        {
            state.drop_delayed();
            self.nodes.count_delayed(state);
            return self.free_at_once(change, inode);
        }
        if links > 0 {
            change.update_inode(inode, |buf| {
                buf.set_links(links);
                buf.set_ctime(now);
            })?;
            return Ok(Vec::new());
        }
        // the inode is written in any case
        change.list_orphan(number, false)?;
        change.update_inode(inode, |buf| {
            buf.set_links(0);
            buf.set_ctime(now);
        })?;
        Ok(if looked_up { Vec::new() } else { vec![number] })
    }

    /// Frees an inode and the few blocks that it maps directly.
    fn free_at_once(&self, change: &Change<'_>, inode: &Arc<Inode>) -> Result<Vec<InodeNo>> {
        let mut buf = InodeBuf::from(inode.raw());
        let mut cleared = change.prepare_to_free_inode(inode.number).map(|()| None);
        if cleared.is_ok() && has_blocks(self, inode) {
            cleared = change.map_clear(inode, &mut buf, 0, u64::MAX, &mut Steps::all());
        }
        if cleared.is_err() {
            // an error is reported when it is freed as an orphan
            change.list_orphan(inode.number, false)?;
            buf.set_links(0);
            change.put_inode(inode.number, buf)?;
            return Ok(vec![inode.number]);
        }
        self.free_emptied(change, inode)
    }
}
