//! The requests that the format of a volume allows: the table that a caller reads instead of asking for the format.

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
    /// A mark that the volume was left clean, because of which a check may be skipped.
    pub clean_mark: bool,
    /// Repairs of all structures; otherwise of the superblocks alone.
    pub full_repair: bool,
    /// A [conversion](crate::convert) of the record of free space.
    pub conversion: bool,
    /// Damage to its structures for tests.
    pub damage: bool,
}

impl Capabilities {
    /// Those of ext2, ext3, ext4 and rext3 volumes.
    pub const EXT: Self = Self {
        online: false,
        estimate: true,
        undo: true,
        backup_superblocks: true,
        clean_mark: true,
        full_repair: true,
        conversion: true,
        damage: true,
    };
    /// Those of native volumes.
    pub const NATIVE: Self = Self {
        online: true,
        estimate: false,
        undo: false,
        backup_superblocks: false,
        clean_mark: false,
        full_repair: false,
        conversion: false,
        damage: false,
    };
}
