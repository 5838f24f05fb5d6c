//! The placement of blocks by their role: the only place that depends on the volume's format and mount options.
//!
//! The groups of a volume may set some of their blocks aside for metadata, by 64ths (*chunks*): a mask for each group.
//! The volume's [`Rule`] defines the order of search for a block as a list of [`Attempt`]s. Each of them may search all
//! groups. The last one finds any free block, so that an allocation fails only without free space.

use super::loaded_group::GroupCell;
use crate::Placement;
use crate::layout::{Layout, MetadataGoes};
use format::group::{Group, mask_runs};
use format::superblock::Geometry;
use space::{Purpose, Run};
use std::sync::atomic::Ordering;

/// The share of a group set aside for metadata where it is only a hint, in chunks: about 4 %.
const HINT_CHUNKS: u64 = 3;

/// The use of a block, as far as its placement depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Content of a file.
    Content,
    /// The indirect block for a file's 13th block.
    FirstIndirect,
    /// All other metadata.
    Metadata,
}

impl Role {
    /// Whether the block is freed as data or as metadata.
    pub(crate) fn purpose(self) -> Purpose {
        match self {
            Role::Content => Purpose::Data,
            Role::FirstIndirect | Role::Metadata => Purpose::Metadata,
        }
    }
}

/// The placement rule of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Metadata and content together, near their owner.
    Together,
    /// Metadata at the front of each group, except a file's first indirect block, and content behind it; if one part is
    /// full, the other is used.
    Hint,
    /// Metadata in the regions named by the group descriptors, which grow; content elsewhere.
    Regions,
    /// Metadata in groups of its own, set aside as a whole; content in the others.
    OwnGroups,
}

/// An attempt: one set of blocks to search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Attempt {
    /// In the blocks set aside, only in the first group of the search.
    InsideHere,
    /// In the blocks set aside.
    Inside,
    /// In the blocks set aside, after setting another chunk aside.
    Grow,
    /// In the blocks not set aside.
    Outside,
    /// Everywhere.
    Anywhere,
}

impl Rule {
    /// The rule of a volume, from its layout or, if that leaves the choice, the options.
    pub(super) fn new(layout: &Layout, placement: Placement) -> Self {
        match (layout.metadata_goes(), placement) {
            (MetadataGoes::IntoOwnGroups, _) => Rule::OwnGroups,
            (MetadataGoes::IntoRegions, _) => Rule::Regions,
            (MetadataGoes::Anywhere, Placement::Hint) => Rule::Hint,
            (MetadataGoes::Anywhere, Placement::Usual) => Rule::Together,
        }
    }

    /// The attempts to find a block, in order.
    pub(super) fn attempts(self, role: Role) -> &'static [Attempt] {
        match (self, role) {
            (Rule::Together, _) => &[Attempt::Anywhere],
            (Rule::OwnGroups, Role::Content) => &[Attempt::Outside],
            (Rule::OwnGroups, _) => &[Attempt::Inside],
            (Rule::Hint, Role::Metadata) => &[Attempt::InsideHere, Attempt::Anywhere],
            (Rule::Regions, Role::Metadata | Role::FirstIndirect) => {
                &[Attempt::Inside, Attempt::Grow, Attempt::Anywhere]
            }
            (Rule::Hint | Rule::Regions, Role::Content | Role::FirstIndirect) => &[Attempt::Outside, Attempt::Anywhere],
        }
    }

    /// Whether the rule has attempts of this class.
    pub(super) fn has(self, class: usize) -> bool {
        let roles = [Role::Content, Role::FirstIndirect, Role::Metadata];
        roles.iter().any(|role| self.attempts(*role).iter().any(|kind| kind.class() == class))
    }

    /// Whether such a block is placed near its inode instead of near related blocks.
    pub(crate) fn is_near_inode(self, role: Role) -> bool {
        matches!(self.attempts(role).first(), Some(Attempt::InsideHere | Attempt::Inside))
    }

    /// The chunks of a group set aside for metadata; `own_end` is the end of the group's own structures at its front,
    /// in units.
    pub(super) fn mask(
        self,
        layout: &Layout,
        geometry: &Geometry,
        (group, descriptor): (u32, &Group),
        own_end: u32,
    ) -> u64 {
        match self {
            Rule::Together => 0,
            Rule::OwnGroups if layout.is_pool_group(group) => 0,
            Rule::OwnGroups => !0,
            Rule::Hint => {
                let first = u64::from(own_end / geometry.chunk_blocks()).min(63);
                ((1 << HINT_CHUNKS) - 1) << first
            }
            Rule::Regions => descriptor.regions,
        }
    }
}

impl Attempt {
    /// The number of classes.
    pub(super) const CLASSES: usize = 3;

    /// The index of its [`Bounds`](super::longest_runs::Bounds) of groups.
    pub(super) fn class(self) -> usize {
        match self {
            Attempt::InsideHere | Attempt::Inside | Attempt::Grow => 0,
            Attempt::Outside => 1,
            Attempt::Anywhere => 2,
        }
    }

    /// The units that may be searched in a group of `units`, ascending.
    pub(super) fn within(self, mask: u64, chunk: u32, units: u32) -> Vec<Run> {
        let mask = match self {
            Attempt::InsideHere | Attempt::Inside | Attempt::Grow => mask,
            Attempt::Outside => !mask,
            Attempt::Anywhere => !0,
        };
        let runs = mask_runs(mask).map(|chunks| {
            let (start, end) = (chunks.start * chunk, (chunks.end * chunk).min(units));
            Run { start, len: end.saturating_sub(start) }
        });
        runs.filter(|run| run.len > 0).collect()
    }
}

impl GroupCell {
    /// Upper bound on the blocks that an attempt can find, from the group's own counts.
    pub(super) fn most(&self, kind: Attempt) -> u32 {
        match (kind, self.mask.load(Ordering::Relaxed)) {
            // no unit may be searched
            (Attempt::InsideHere | Attempt::Inside, 0) | (Attempt::Outside, u64::MAX) => 0,
            _ => self.most_blocks(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_aside_and_what_is_not_make_the_whole() {
        let runs = |kind: Attempt, mask| {
            let runs = kind.within(mask, 10, 635).into_iter();
            runs.map(|run| (run.start, run.end())).collect::<Vec<_>>()
        };
        assert_eq!(runs(Attempt::Anywhere, 6), [(0, 635)]);
        assert_eq!(runs(Attempt::Inside, 6), [(10, 30)]);
        assert_eq!(runs(Attempt::Outside, 6), [(0, 10), (30, 635)]);
        assert_eq!(runs(Attempt::Inside, 1 << 63), [(630, 635)]);
        assert_eq!(runs(Attempt::Outside, !0), []);
        assert_eq!(Attempt::Inside.within(1 << 63, 10, 600), []);
    }

    #[test]
    fn every_rule_finds_what_is_free_at_last() {
        for rule in [Rule::Together, Rule::Hint, Rule::Regions] {
            for role in [Role::Content, Role::FirstIndirect, Role::Metadata] {
                assert_eq!(rule.attempts(role).last(), Some(&Attempt::Anywhere));
            }
        }
        assert!(!Rule::Hint.is_near_inode(Role::FirstIndirect) && Rule::Regions.is_near_inode(Role::FirstIndirect));
    }
}
