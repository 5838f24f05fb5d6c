//! Traversal of a tree.

use crate::{Directories, Error, FileKind, Inode, InodeNo, ReadDir, Result};
use format::{Structure, Where};
use std::collections::HashSet;
use std::sync::Arc;

/// A directory and everything below it, each directory before its content, in the order of the directories' blocks.
///
/// Each item is a path, relative to the start (which is the empty path itself), and its inode. An error applies to its
/// path alone: an inode that cannot be read, or a part of that directory. A directory found a second time is an error
/// and is not entered again, so the walk ends on any volume.
pub struct Walk<'a> {
    volume: &'a Directories,
    start: Option<InodeNo>,
    /// The path of the directory that was entered last. Its length depends on the depth of the tree, so the other
    /// directories only store lengths.
    path: Vec<u8>,
    /// The length of the path of each open directory, and its entries.
    open: Vec<(usize, ReadDir<'a>)>,
    entered: HashSet<InodeNo>,
}

impl Directories {
    /// The tree that begins at an inode. Symbolic links are not followed.
    #[must_use]
    pub fn walk(&self, start: InodeNo) -> Walk<'_> {
        Walk { volume: self, start: Some(start), path: Vec::new(), open: Vec::new(), entered: HashSet::new() }
    }
}

impl Walk<'_> {
    fn visit(&mut self, path: &[u8], number: InodeNo) -> Result<Arc<Inode>> {
        let at = Where::Inode(number);
        if !self.volume.may_be_named(number) {
            return Err(Error::corrupt(Structure::Directory, at, "a directory entry refers to this reserved inode"));
        }
        let inode = self.volume.named_inode(number)?;
        if inode.kind == FileKind::Directory {
            if !self.entered.insert(number) {
                return Err(Error::corrupt(Structure::Directory, at, "it has a second name"));
            }
            let entries = self.volume.read_dir(&inode, 0)?;
            // the common part stays
            self.path.extend_from_slice(path.get(self.path.len()..).unwrap_or_default());
            self.open.push((path.len(), entries));
        }
        Ok(inode)
    }
}

impl Iterator for Walk<'_> {
    type Item = (Vec<u8>, Result<Arc<Inode>>);

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(start) = self.start.take() {
            return Some((Vec::new(), self.visit(&[], start)));
        }
        loop {
            let (length, entries) = self.open.last_mut()?;
            self.path.truncate(*length);
            if entries.fill() {
                self.volume.prefetch_inodes(entries.ready_inodes());
            }
            match entries.next() {
                None => {
                    self.open.pop();
                }
                Some(Err(e)) => return Some((self.path.clone(), Err(e))),
                Some(Ok(entry)) if matches!(&entry.name[..], b"." | b"..") => {}
                Some(Ok(entry)) => {
                    let path =
                        if self.path.is_empty() { entry.name } else { [&self.path[..], b"/", &entry.name].concat() };
                    let inode = self.visit(&path, entry.inode);
                    return Some((path, inode));
                }
            }
        }
    }
}
