//! The requests that the format of a volume allows: the table that a caller reads instead of asking for the format.

use crate::native;
use blockdev::BlockDevice;

/// The requests that the format of a volume allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// A check of the volume while it is in use, [`check_in_use`](crate::check_in_use).
    pub online: bool,
    /// An [`estimate`](crate::estimate) of the duration of a check.
    pub estimate: bool,
    /// An undo file for a repair.
    pub undo: bool,
    /// A backup superblock as the one to start from.
    pub backup_superblocks: bool,
}

impl Capabilities {
    const EXT: Self = Self { online: false, estimate: true, undo: true, backup_superblocks: true };
    const NATIVE: Self = Self { online: true, estimate: false, undo: false, backup_superblocks: false };

    /// The capabilities of the volume on `device`; those of an ext volume where there is none.
    #[must_use]
    pub fn of(device: &dyn BlockDevice) -> Self {
        if native::is_native(device) { Self::NATIVE } else { Self::EXT }
    }
}
