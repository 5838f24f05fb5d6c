//! Making volumes: ext2, ext3 and ext4 as mke2fs 1.47 makes them.
//!
//! | file | holds |
//! | --- | --- |
//! | `options` | what may be asked for |
//! | `features` | the features that follow, and which do not go together |
//! | `plan` | sizes and counts: the superblock's numbers, from the device's length |
//! | `used` | which blocks are taken, and the search for free ones |
//! | `tables` | where superblock copies, descriptors, bitmaps and inode tables lie |
//! | `maps` | space maps, where the volume has them and no block bitmaps |
//! | `files` | what a new volume holds: root, lost+found, journal, and files of the volume's own |
//! | `physical_layer` | what lies beneath: the device itself, or the map of a native volume |
//! | `image` | all of it put together: bytes and where they go |
//! | `write`, `wipe` | the image onto a device, and what was there before out of sight |
//! | `probe` | what a device contains that should not be overwritten unasked |
//!
//! A [`VolumeImage`] is computed without a device: from options and a length it follows to the last bit. [`make`] writes it.
//!
//! Placement, sizes and defaults are those of mke2fs, so that a volume is what its users are used to, `dumpe2fs` shows
//! the same for both, and a backup superblock is found where tools look. Where this differs: inode tables are zeroed at
//! once unless `lazy_inode_tables` is set; a volume too small for any inode but the reserved ones gets more inodes and
//! not an error; the superblock does not count what mkfs itself wrote (`s_kbytes_written`); where groups have to become
//! smaller so that their bitmaps can count all inodes asked for, the superuser's share stays what was asked for.

mod features;
mod files;
mod image;
mod maps;
mod options;
mod physical_layer;
mod plan;
mod probe;
mod tables;
mod used;
mod wipe;
mod write;

pub use image::{Note, VolumeImage};
pub use options::{Encoding, FeatureEdits, Kind, MkfsOptions, OnError, QuotaKinds, Usage};
pub use probe::{contents, foreign_contents};

use blockdev::BlockDevice;
use format::superblock::Superblock;

/// Why no volume was made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The device refused a request.
    #[error(transparent)]
    Device(#[from] blockdev::Error),
    /// The options do not go together, or not onto this device: a sentence without a full stop.
    #[error("{0}")]
    Options(String),
}

/// The result of making a volume.
pub type Result<T, E = Error> = std::result::Result<T, E>;

fn refuse<T>(why: impl Into<String>) -> Result<T> {
    Err(Error::Options(why.into()))
}

/// Makes a volume on `device` and flushes it. Whatever the device contained is lost. Nothing is asked and nothing is
/// looked for: whether the device may be overwritten is the caller's business.
///
/// # Errors
/// [`Error::Options`] before anything is written; [`Error::Device`] when the device fails, and then what is on it is no
/// volume: the primary superblock is written last.
pub fn make(device: &dyn BlockDevice, options: &MkfsOptions) -> Result<Superblock> {
    let geometry = device.geometry();
    let image = VolumeImage::new(geometry.len, geometry.sector, options)?;
    image.write(device, &mut |_, _| {})?;
    Ok(image.superblock().clone())
}
