//! A volume as a whole: the top layer.
//!
//! All methods take `&self` and may be called from many threads.

use crate::layers::stands_on;
use crate::names::Names;
use crate::open;
use crate::options::OpenOptions;
use crate::writer::Writer;
use crate::{Maps, Result, memory_budget};
use blockdev::BlockDevice;
use std::sync::Arc;

/// An ext2, ext3 or ext4 volume, open for reading or for reading and writing.
pub struct Volume {
    pub(crate) names: Names,
    /// Set if it is open for writing.
    pub(crate) writer: Option<Writer>,
}

stands_on!(Volume, names: Names);

impl Volume {
    /// Opens the volume on a device.
    ///
    /// # Errors
    /// [`Error::NoSuperblock`] if none can be read at the requested location, [`Error::Native`] if a native volume has
    /// none, or none above its map; [`Error::Unsupported`] for features that this version cannot read (by name) and for
    /// an external journal that has to be replayed; [`Error::Corrupt`] for a journal that has to be replayed and cannot
    /// be read (then [`OpenOptions::ignore_journal`] opens it all the same). [`Error::NotFound`] if there is no such
    /// snapshot. For opening for writing: [`Error::ReadOnly`] with the reason why it can only be read,
    /// [`Error::Impossible`] if [`OpenOptions::write`] requests a mode that such a volume does not have.
    pub fn open(device: Arc<dyn BlockDevice>, options: &OpenOptions) -> Result<Self> {
        let cache_bytes = options.cache_bytes.min(memory_budget::budget().cache);
        let (maps, heartbeat) = open::open(device, &OpenOptions { cache_bytes, ..options.clone() })?;
        let mut volume = Self::over(maps);
        if volume.is_writable() {
            volume.writer = Some(Writer::new(options.cache_bytes, heartbeat));
            // the caller gets the error of opening it
            volume.begin_writing().inspect_err(|_| drop(volume.end_heartbeat()))?;
        }
        Ok(volume)
    }

    /// A volume for reading only.
    pub(crate) fn over(maps: Maps) -> Self {
        Self { names: Names::over(maps), writer: None }
    }

    /// Completes the work left when the volume was last in use.
    fn begin_writing(&self) -> Result<()> {
        self.follow_memory(memory_budget::budget());
        let _guard = self.change_guard()?;
        self.recover_orphans()
    }
}
