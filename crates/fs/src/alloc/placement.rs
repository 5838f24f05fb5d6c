//! The start of the search for a block, and growth of the metadata regions.

use super::Space;
use super::loaded_group::GroupCell;
use super::rule::{Attempt, Role, Rule};
use crate::Result;
use format::{FsBlock, GroupNo};
use std::sync::atomic::Ordering;
use store::Operation;

impl Space {
    /// The start of a search for a block of an inode in group `home` with the goal `goal`: group and unit.
    pub(super) fn begin_at(&self, home: GroupNo, goal: FsBlock, role: Role) -> (u32, u32) {
        let geometry = &self.sb.geometry;
        let (group, unit) = match geometry.group_of(goal) {
            Some(group) => (group.get(), (goal.get() - geometry.group_start(group).get()) as u32),
            None => (0, 0),
        };
        let home = match self.rule {
            // the groups for blocks of this kind
            Rule::OwnGroups => match self.layout.group_for(role.purpose(), group) {
                same if same == group => return (group, unit),
                other => return (other, 0),
            },
            // the regions of a flexible group are in its first groups
            Rule::Regions => home.get() - home.get() % geometry.flex_groups.max(1),
            Rule::Together | Rule::Hint => home.get(),
        };
        if group != home && self.rule.is_near_inode(role) { (home, 0) } else { (group, unit) }
    }

    /// Upper bound on the runs of available blocks of a group for this kind of attempt.
    pub(super) fn bound(&self, kind: Attempt, group: u32, cell: &GroupCell) -> u32 {
        self.bounds.bound(kind.class(), group).min(cell.most(kind))
    }

    /// Sets another chunk aside for metadata, in the first group from `home` on with a wholly free one; returns the
    /// group.
    pub(super) fn grow_region(&self, op: &Operation<'_>, home: u32) -> Result<Option<u32>> {
        let chunk = self.sb.geometry.chunk_blocks();
        for group in self.policy.groups_from(self.sb.geometry.groups, home).into_iter().flatten() {
            let Some(cell) = self.cell(GroupNo(group)) else { break };
            if self.bound(Attempt::Outside, group, cell) < chunk || cell.mask.load(Ordering::Relaxed) == !0 {
                continue;
            }
            let Some(mut state) = self.lock_space(op.store(), group)? else { continue };
            let mask = state.descriptor.regions;
            let Some(map) = &state.space.free else { continue };
            let is_free = |bit: &u32| mask & 1 << bit == 0 && map.run_at(bit * chunk, chunk) == chunk;
            // next to the existing region if possible
            let first = mask.trailing_zeros().min(63);
            let Some(bit) = (first..u64::BITS).chain(0..first).find(is_free) else {
                self.drop_if_many(group, &mut state);
                continue;
            };
            self.touch_space(op, group, &mut state)?;
            state.descriptor.regions |= 1 << bit;
            cell.mask.store(state.descriptor.regions, Ordering::Relaxed);
            self.bounds.raise(group);
            return Ok(Some(group));
        }
        Ok(None)
    }
}
