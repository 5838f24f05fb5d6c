//! The choice of the groups that are searched for space first.
//!
//! Directories at the top of the tree are spread over the volume, others stay near their parent as long as there is
//! space (as in the Orlov allocator of ext4); files are placed near their directory, and their content near their
//! inode. Where placement is spread, a flexible group counts as one, because its inode tables are adjacent.

use std::ops::Range;

/// The totals of a group, as input for a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GroupTotals {
    /// Free blocks.
    pub blocks: u32,
    /// Free inodes.
    pub inodes: u32,
    /// Directories.
    pub directories: u32,
}

/// The present totals of all groups; they may change while a policy uses them.
pub trait Totals {
    /// The number of groups of the volume; at least 1.
    fn groups(&self) -> u32;

    /// The totals of one group.
    fn of(&self, group: u32) -> GroupTotals;

    /// The sums over all groups.
    fn all(&self) -> Sum;
}

/// The placement policy of a volume with a certain layout.
#[derive(Debug, Clone, Copy)]
pub struct Policy {
    /// The number of groups in a flexible group; 1 without them.
    pub flex: u32,
    /// The number of blocks in a group.
    pub blocks_per_group: u32,
    /// The number of inodes in a group.
    pub inodes_per_group: u32,
}

/// Flexible groups of at least this many groups place no files in their first group, which contains the metadata.
const MIN_LARGE_FLEX: u32 = 4;

/// The totals of several groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sum {
    /// Free blocks.
    pub blocks: u64,
    /// Free inodes.
    pub inodes: u64,
    /// Directories.
    pub directories: u64,
}

impl FromIterator<GroupTotals> for Sum {
    fn from_iter<I: IntoIterator<Item = GroupTotals>>(groups: I) -> Self {
        groups.into_iter().fold(Self::default(), |sum, group| Self {
            blocks: sum.blocks + u64::from(group.blocks),
            inodes: sum.inodes + u64::from(group.inodes),
            directories: sum.directories + u64::from(group.directories),
        })
    }
}

impl Policy {
    fn flex(&self) -> u32 {
        self.flex.max(1)
    }

    fn groups_of_unit(&self, unit: u32, groups: u32) -> Range<u32> {
        let first = unit.saturating_mul(self.flex());
        first.min(groups)..first.saturating_add(self.flex()).min(groups)
    }

    fn sum(&self, totals: &dyn Totals, unit: u32) -> Sum {
        self.groups_of_unit(unit, totals.groups()).map(|g| totals.of(g)).collect()
    }

    /// The group for the inode of a new directory; `top` if it should be apart from its parent. `None` if no group has
    /// a free inode.
    #[must_use]
    pub fn directory(&self, totals: &dyn Totals, parent: u32, top: bool) -> Option<u32> {
        let units = totals.groups().div_ceil(self.flex());
        let count = u64::from(units.max(1));
        let all = totals.all();
        let (mean_inodes, mean_blocks) = (all.inodes / count, all.blocks / count);
        let home = parent / self.flex();
        let order = || (0..units).map(move |n| (home + n) % units.max(1));
        let found = if top {
            let roomy = |sum: &Sum| sum.inodes > 0 && sum.inodes >= mean_inodes && sum.blocks >= mean_blocks;
            let roomy = order().map(|unit| (unit, self.sum(totals, unit))).filter(|(_, sum)| roomy(sum));
            roomy.min_by_key(|(_, sum)| sum.directories).map(|(unit, _)| unit)
        } else {
            let flex = u64::from(self.flex());
            let most_directories = all.directories / count + flex * u64::from(self.inodes_per_group) / 16;
            let least_inodes = mean_inodes.saturating_sub(flex * u64::from(self.inodes_per_group) / 4).max(1);
            let least_blocks = mean_blocks.saturating_sub(flex * u64::from(self.blocks_per_group) / 4);
            order().find(|&unit| {
                let sum = self.sum(totals, unit);
                sum.directories < most_directories && sum.inodes >= least_inodes && sum.blocks >= least_blocks
            })
        };
        let found = found.or_else(|| order().find(|&unit| self.sum(totals, unit).inodes >= mean_inodes.max(1)))?;
        self.groups_of_unit(found, totals.groups()).find(|&group| totals.of(group).inodes > 0)
    }

    /// The group for the inode of a new file of a directory in group `parent`. `None` if no group has a free inode.
    #[must_use]
    pub fn file(&self, totals: &dyn Totals, parent: u32) -> Option<u32> {
        let groups = totals.groups();
        let parent = parent.min(groups.saturating_sub(1));
        let has_both = |group: &u32| {
            let totals = totals.of(*group);
            totals.inodes > 0 && totals.blocks > 0
        };
        let siblings = self.groups_of_unit(parent / self.flex(), groups);
        let near = (parent..siblings.end).chain(siblings.start..parent);
        // then in doubling steps, so that the files of full groups do not all fill the same next one
        let hops = (0..32).scan(parent, |at, n| {
            *at = ((u64::from(*at) + (1 << n)) % u64::from(groups.max(1))) as u32;
            Some(*at)
        });
        let hops = hops.take(groups.ilog2() as usize + 1);
        let mut any = (parent..groups).chain(0..parent);
        near.chain(hops).find(has_both).or_else(|| any.find(|&group| totals.of(group).inodes > 0))
    }

    /// The group in which the first block of an inode should be.
    #[must_use]
    pub fn content(&self, groups: u32, inode_group: u32, is_file: bool) -> u32 {
        if self.flex() < MIN_LARGE_FLEX {
            return inode_group;
        }
        let first = inode_group - inode_group % self.flex();
        if is_file && first + 1 < groups { first + 1 } else { first }
    }

    /// All groups, in the order in which they should be tried for blocks.
    #[must_use]
    pub fn groups_from(&self, groups: u32, goal: u32) -> [Range<u32>; 2] {
        let goal = goal.min(groups.saturating_sub(1));
        [goal..groups, 0..goal]
    }
}
