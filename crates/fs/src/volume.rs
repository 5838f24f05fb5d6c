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
    /// Set where it is open for writing.
    pub(crate) writer: Option<Writer>,
}

stands_on!(Volume, names: Names);

impl Volume {
    /// Opens the volume on a device.
    ///
    /// # Errors
    /// [`Error::NoSuperblock`] where there is none to be read at the place asked for, [`Error::Native`] where a native
    /// volume has none, or none above its map; [`Error::Unsupported`] for features this version cannot read (by name)
    /// and for an external journal that has to be replayed; [`Error::Corrupt`] for a journal that has to be replayed
    /// and cannot be read (then [`OpenOptions::ignore_journal`] opens it all the same). [`Error::NotFound`] where there
    /// is no such snapshot.
    /// Where it is to be opened for writing: [`Error::ReadOnly`] with the reason why it can only be read,
    /// [`Error::Impossible`] where [`OpenOptions::write`] asks for what such a volume does not have.
    pub fn open(device: Arc<dyn BlockDevice>, options: &OpenOptions) -> Result<Self> {
        let cache_bytes = options.cache_bytes.min(memory_budget::budget().cache);
        let (maps, heartbeat) = open::open(device, &OpenOptions { cache_bytes, ..options.clone() })?;
        let mut volume = Self::over(maps);
        if volume.is_writable() {
            volume.writer = Some(Writer::new(options.cache_bytes, heartbeat));
            // that it could not be opened is what the caller hears of
            volume.begin_writing().inspect_err(|_| drop(volume.end_heartbeat()))?;
        }
        Ok(volume)
    }

    /// For reading only.
    pub(crate) fn over(maps: Maps) -> Self {
        Self { names: Names::over(maps), writer: None }
    }

    /// Does what was left undone when the volume was last in use.
    fn begin_writing(&self) -> Result<()> {
        self.follow_memory(memory_budget::budget());
        let _guard = self.changing()?;
        self.recover_orphans()
    }
}
