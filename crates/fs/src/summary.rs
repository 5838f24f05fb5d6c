//! A volume in a few values, for callers that only look at it.

use crate::Generations;
use format::feature::Incompat;
use format::superblock::Superblock;

/// A volume as its device has it: what all formats have, and in optional values what only some have. The layout fills
/// it, so that no caller asks which format it looks at.
#[derive(Debug, Clone)]
pub struct VolumeSummary {
    /// The name of the format.
    pub format: &'static str,
    /// Whether other programs cannot use the format.
    pub is_own: bool,
    /// The state in words; `None` where the superblock says it.
    pub state: Option<&'static str>,
    /// Blocks of the device.
    pub blocks: u64,
    /// Whether the superblock counts the free ones among these.
    pub counts_free: bool,
    /// Blocks of the device that are for metadata; `None` where they are all that content cannot have.
    pub metadata_blocks: Option<u64>,
    /// The generations and snapshots, where the format has them.
    pub generations: Option<Generations>,
}

impl VolumeSummary {
    /// The summary that an ext superblock alone allows: of a volume that lies on the device itself.
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
