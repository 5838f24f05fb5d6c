//! Creation of volumes: ext2, ext3 and ext4 as created by mke2fs 1.47.
//!
//! | file | contents |
//! | --- | --- |
//! | `options` | the possible options |
//! | `features` | the resulting features, and combinations that are not possible |
//! | `plan` | sizes and counts: the superblock's numbers, from the device's length |
//! | `used` | the blocks in use, and the search for free ones |
//! | `tables` | the locations of superblock copies, descriptors, bitmaps and inode tables |
//! | `space_maps` | space maps, on volumes that have them instead of block bitmaps |
//! | `files` | the content of a new volume: root, lost+found, journal, and other system inodes |
//! | `physical_layer` | the layer beneath: the device itself, or the map of a native volume |
//! | `image` | all of it combined: bytes and their locations |
//! | `write`, `wipe` | writing the image to a device, and wiping its old content |
//! | `probe` | detection of content that should not be overwritten without confirmation |
//!
//! A [`VolumeImage`] is computed without a device: it is fully determined by options and a length. [`make`] writes it.
//!
//! Placement, sizes and defaults are those of mke2fs, so that a volume is as users expect, `dumpe2fs` prints the same
//! for both, and tools find backup superblocks. Differences: inode tables are zeroed at once unless `lazy_inode_tables`
//! is set; a volume too small for any inode but the reserved ones gets more inodes instead of an error;
//! `s_kbytes_written` does not include the writes of mkfs itself; if groups have to become smaller so that their
//! bitmaps can cover the requested number of inodes, the superuser's share stays as requested.

mod error;
mod features;
mod files;
mod image;
mod options;
mod physical_layer;
mod plan;
mod probe;
mod space_maps;
mod tables;
mod used;
mod wipe;
mod write;

pub use error::{Error, Result};
pub use image::{VolumeImage, Warning};
pub use options::{Encoding, FeatureEdits, Kind, MkfsOptions, OnError, QuotaKinds, Usage};
pub use probe::{contents, foreign_contents};

use blockdev::BlockDevice;
use format::superblock::Superblock;

/// Creates a volume on `device` and flushes it. All previous content of the device is lost. No confirmation and no
/// detection of content: the caller is responsible for checking whether the device may be overwritten.
///
/// # Errors
/// [`Error::Options`] before anything is written; [`Error::Device`] if the device fails, after which it contains no
/// volume: the primary superblock is written last.
pub fn make(device: &dyn BlockDevice, options: &MkfsOptions) -> Result<Superblock> {
    let geometry = device.geometry();
    let image = VolumeImage::new(geometry.len, geometry.sector, options)?;
    image.write(device, &mut |_, _| {})?;
    Ok(image.superblock().clone())
}
