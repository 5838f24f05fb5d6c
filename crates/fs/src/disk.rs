//! The lowest layer: the cached blocks of a volume, its superblock, and the locations of fixed metadata.

use crate::layout::Layout;
use crate::native::{self, Versions};
use crate::{Result, VolumeSummary};
use blockdev::BlockDevice;
use format::dir::DirFormat;
use format::feature::Incompat;
use format::inode::{Inode, InodeFlags};
use format::superblock::Superblock;
use format::{FsBlock, InodeNo};
use std::sync::Arc;
use store::Store;

/// A volume on its device: blocks through a cache, and the superblock with the locations of other structures.
pub struct Disk {
    pub(crate) store: Store,
    pub(crate) sb: Superblock,
    /// The block of the backup superblock that the volume was opened with.
    pub(crate) backup: Option<FsBlock>,
    /// The layout for its format.
    pub(crate) layout: Arc<Layout>,
}

impl Disk {
    /// The superblock, with the journal's content applied if there was any.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        &self.sb
    }

    /// A summary of the volume's current state on the device.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) and [`Error::Corrupt`](crate::Error::Corrupt) of the structures read.
    pub fn summary(&self) -> Result<VolumeSummary> {
        self.layout.summary(&self.sb)
    }

    /// The device as the file system reads it: with the journal's content overlaid if there was any.
    #[must_use]
    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        self.store.device()
    }

    /// The device that contains the volume: beneath the map, on a native volume.
    #[must_use]
    pub fn storage(&self) -> &Arc<dyn BlockDevice> {
        self.layout.storage().unwrap_or_else(|| self.device())
    }

    /// The versions of the volume.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) if its format has only the live one.
    pub(crate) fn versions(&self) -> Result<&Versions> {
        self.layout.versions().ok_or_else(native::no_versions)
    }

    /// The format of a directory's blocks, needed to read them.
    pub(crate) fn dir_format(&self, dir: &Inode) -> DirFormat {
        let flags = dir.raw().flags();
        DirFormat {
            block_size: self.sb.geometry.block_size,
            file_type: self.sb.features.incompat.contains(Incompat::FILETYPE),
            hashed: flags.contains(InodeFlags::CASEFOLD | InodeFlags::ENCRYPT),
        }
    }

    /// The initial value of the checksums of an inode's own structures.
    pub(crate) fn seed(&self, inode: &Inode) -> u32 {
        inode.raw().seed(&self.sb.geometry, inode.number)
    }

    /// Whether a directory may name this inode: the root, or one that is not reserved.
    pub(crate) fn may_be_named(&self, number: InodeNo) -> bool {
        let geometry = &self.sb.geometry;
        number == InodeNo::ROOT || (geometry.first_inode..=geometry.inodes).contains(&number.get())
    }
}
