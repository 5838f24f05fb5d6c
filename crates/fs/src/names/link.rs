//! Adding a name to an existing file.

use super::{NAMING, check_name};
use crate::dir::NewEntry;
use crate::{Error, FileKind, Inode, InodeNo, Names, Result};
use format::dir::FileType;
use std::sync::Arc;

impl Names {
    /// Adds a name to a file; a file created by [`Names::tmpfile`] gets its first one.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::TooManyNames`], [`Error::NotPermitted`] for directories and if flags forbid it,
    /// [`Error::NotFound`] for a file whose last name was removed, and as [`Names::create`].
    pub fn link(&self, number: InodeNo, dir: InodeNo, name: &[u8]) -> Result<Arc<Inode>> {
        check_name(name)?;
        if self.inode(number)?.kind == FileKind::Directory {
            return Err(Error::NotPermitted("a directory can have only one name"));
        }
        self.with_space(|| self.link_now(number, dir, name))
    }

    fn link_now(&self, number: InodeNo, dir: InodeNo, name: &[u8]) -> Result<Arc<Inode>> {
        self.with_new_name(dir, name, |dir| {
            if number == dir.number {
                return Err(Error::NotPermitted("a directory can have only one name"));
            }
            self.locked(&[number], |_| {
                let inode = self.inode(number)?;
                if inode.kind == FileKind::Directory {
                    return Err(Error::NotPermitted("a directory can have only one name"));
                }
                self.may_change(&inode)?;
                self.same_project(&dir, &inode)?;
                let links = inode.raw().disk.i_links_count.get();
                let nameless = links == 0;
                if nameless && !self.writing()?.orphans.may_be_linked(number) {
                    return Err(Error::NotFound);
                }
                if links >= self.layout.max_links() {
                    return Err(Error::TooManyNames);
                }
                let change = self.change(NAMING)?;
                let (dir, spot) = self.make_space(&change, Arc::clone(&dir), name)?;
                let inode = if nameless { change.end_orphan(&inode)? } else { inode };
                let kind = FileType::from_mode(inode.raw().disk.i_mode.get());
                let dir = self.put_name(&change, &dir, spot, &NewEntry { inode: number, name, kind })?;
                self.touch(&change, &dir, None)?;
                let now = change.now();
                change.update_inode(&inode, |buf| {
                    buf.set_links(links + 1);
                    buf.set_ctime(now);
                })
            })
        })
    }
}
