//! The checks of the blocks that the rounds read: each block is passed to its phase.

use crate::context::Context;
use crate::inode_records::{Directories, Directory};
use crate::phases::bitmaps::Bitmaps;
use crate::phases::directories::Names;
use crate::phases::inodes::xattrs;
use crate::scan::found::{InlineDirectory, XattrRef};
use crate::scan::walk::{BitmapKind, Visitor};
use format::{FsBlock, GroupNo, InodeNo};
use std::sync::OnceLock;

/// The visitor that checks the blocks that the rounds read but do not check themselves.
pub(crate) struct Checks<'a, 'n> {
    pub(crate) ctx: &'a Context<'a>,
    pub(crate) bitmaps: &'a Bitmaps<'a>,
    /// Set after all inodes are checked.
    pub(crate) directories: &'a OnceLock<Directories>,
    /// Set at the same time.
    pub(crate) names: &'n OnceLock<Names<'a>>,
}

impl Visitor for Checks<'_, '_> {
    fn bitmap(&self, group: GroupNo, kind: BitmapKind, bytes: Result<&[u8], &blockdev::Error>) {
        self.bitmaps.put(group, kind, bytes);
    }

    fn directories(&self, directories: Vec<Directory>, inline: Vec<InlineDirectory>) {
        let directories = self.directories.get_or_init(|| Directories::new(directories));
        let names = self.names.get_or_init(|| Names::new(self.ctx, directories));
        for dir in inline {
            names.check_inline(dir.inode, &dir.i_block, &dir.system_data);
        }
    }

    fn dir_block(&self, dir: InodeNo, file_block: u32, block: FsBlock, bytes: Result<&[u8], &blockdev::Error>) {
        if let Some(names) = self.names.get() {
            names.check_block(dir, file_block, block, bytes);
        }
    }

    fn xattr_block(&self, block: FsBlock, inodes: &[XattrRef], bytes: Result<&[u8], &blockdev::Error>) -> u64 {
        xattrs::check_block(self.ctx, block, inodes, bytes)
    }
}
