//! The format of the volume on a device.

use crate::capabilities::Capabilities;
use crate::native;
use blockdev::BlockDevice;
use format::superblock::{DiskSuperblock, OFFSET, Superblock};

/// The name of the format of native volumes.
pub(crate) const NATIVE: &str = "extant";

impl Capabilities {
    /// The capabilities of the volume on `device`; those of an ext volume where there is none.
    #[must_use]
    pub fn of(device: &dyn BlockDevice) -> Self {
        if native::is_native(device) { Self::NATIVE } else { Self::EXT }
    }
}

/// The name of the format of the volume on `device`; `None` if its superblock cannot be read.
#[must_use]
pub fn format_name(device: &dyn BlockDevice) -> Option<&'static str> {
    if native::is_native(device) {
        return Some(NATIVE);
    }
    let mut bytes = [0; DiskSuperblock::SIZE];
    device.read(OFFSET, &mut bytes).ok()?;
    Superblock::parse(&bytes).ok().map(|sb| sb.features.format_name())
}
