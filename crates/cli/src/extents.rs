//! The extents of a file, in the order of its map.

use fs::{FileBlock, FileExtent, FileKind, Inode, InodeFlags, Mapping, Volume};
use serde::Serialize;

/// Blocks of a file that are contiguous on the device.
#[derive(Serialize)]
pub(crate) struct Extent {
    pub(crate) file_block: u64,
    pub(crate) block: u64,
    pub(crate) len: u64,
    pub(crate) unwritten: bool,
}

/// Whether the inode's content is found through a block map.
pub(crate) fn has_map(inode: &Inode) -> bool {
    match inode.kind {
        FileKind::Regular | FileKind::Directory => true,
        FileKind::Symlink => !inode.is_fast_symlink(),
        _ => false,
    }
}

/// Iterates over the extents of a file, each merged as far as it is contiguous; holes are omitted.
pub(crate) struct Extents<'a> {
    volume: &'a Volume,
    inode: &'a Inode,
    at: FileBlock,
    /// Number of blocks mapped so far.
    seen: u64,
    /// A run that belongs to the next extent.
    pending: Option<Extent>,
}

impl<'a> Extents<'a> {
    /// The extents of a file that [has a map](has_map).
    pub(crate) fn of(volume: &'a Volume, inode: &'a Inode) -> Self {
        Self { volume, inode, at: FileBlock(0), seen: 0, pending: None }
    }

    /// The next extent; `None` after the last.
    ///
    /// # Errors
    /// Those of the map, and a map with more blocks than the volume has.
    pub(crate) fn next_extent(&mut self) -> fs::Result<Option<Extent>> {
        let mut extent = self.pending.take();
        while let Some(run) = self.next_run()? {
            let (block, unwritten) = match run.mapping {
                Mapping::Hole => continue,
                Mapping::Data(block) => (block.get(), false),
                Mapping::Unwritten(block) => (block.get(), true),
            };
            let next = Extent { file_block: run.logical.get(), block, len: run.len, unwritten };
            match &mut extent {
                None => extent = Some(next),
                Some(extent) if extent.goes_on_in(&next) => extent.len += next.len,
                Some(_) => {
                    self.pending = Some(next);
                    break;
                }
            }
        }
        Ok(extent)
    }

    /// The next run, up to the largest block the map can represent. A map with a loop is cut off: no file has more
    /// blocks than its volume.
    fn next_run(&mut self) -> fs::Result<Option<FileExtent>> {
        if self.at.get() == u64::MAX {
            return Ok(None);
        }
        let run = self.volume.map(self.inode, self.at)?;
        let behind_all = run.mapping == Mapping::Hole && run.end() >= self.reach();
        self.at = if behind_all { FileBlock(u64::MAX) } else { run.end() };
        if run.mapping != Mapping::Hole {
            self.seen = self.seen.saturating_add(run.len);
        }
        if self.seen > self.volume.superblock().geometry.blocks {
            let (structure, at) = (format::Structure::Inode, format::Where::Inode(self.inode.number));
            let what = "its map names more blocks than the volume has";
            return Err(fs::Error::Corrupt { structure, at, what });
        }
        Ok(Some(run))
    }

    /// The first block beyond the largest that a file of this kind can map.
    fn reach(&self) -> FileBlock {
        if self.inode.raw().flags().contains(InodeFlags::EXTENTS) {
            FileBlock(u64::from(u32::MAX))
        } else {
            FileBlock(self.volume.superblock().geometry.indirect().reach())
        }
    }
}

impl Extent {
    fn goes_on_in(&self, next: &Self) -> bool {
        self.unwritten == next.unwritten
            && self.file_block.checked_add(self.len) == Some(next.file_block)
            && self.block.checked_add(self.len) == Some(next.block)
    }
}
