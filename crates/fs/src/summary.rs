//! A volume in a few values, for callers that display it.

use crate::Generations;
use format::feature::Incompat;
use format::superblock::Superblock;

/// A summary of a volume on its device: values of all formats, and optional values of some. It is filled by the layout,
/// so that no caller depends on the format.
#[derive(Debug, Clone)]
pub struct VolumeSummary {
    /// The name of the format.
    pub format: &'static str,
    /// Whether other programs cannot use the format.
    pub is_own: bool,
    /// The state in words; `None` if it is in the superblock.
    pub state: Option<&'static str>,
    /// Blocks of the device.
    pub blocks: u64,
    /// Whether the superblock contains the number of free ones among these.
    pub counts_free: bool,
    /// Blocks of the device for metadata; `None` if they are all that cannot contain content.
    pub metadata_blocks: Option<u64>,
    /// The generations and snapshots, if the format has them.
    pub generations: Option<Generations>,
}

impl VolumeSummary {
    /// The summary from an ext superblock alone: for a volume directly on the device.
    #[must_use]
    pub fn of_superblock(sb: &Superblock) -> Self {
        Self {
            format: sb.features.format_name(),
            is_own: sb.features.incompat.contains(Incompat::EXTANT),
            state: None,
            blocks: sb.geometry.blocks,
            counts_free: true,
            metadata_blocks: None,
            generations: None,
        }
    }
}
