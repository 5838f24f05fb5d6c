//! A set of blocks of a whole volume, as a container for each group that has any.

use crate::{Container, Run, SetError};
use std::collections::BTreeMap;
use std::ops::Range;

/// Adjacent blocks, numbered within the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockRun {
    /// The first block.
    pub start: u64,
    /// The number of blocks; at least 1 in all returned runs.
    pub len: u64,
}

impl BlockRun {
    /// The block after the last; saturates.
    #[must_use]
    pub fn end(self) -> u64 {
        self.start.saturating_add(self.len)
    }
}

/// A set of deferred or pinned blocks. Groups without any take no memory.
///
/// Block 0 is the first of group 0, and all groups have the same number of blocks: if a volume's groups begin at block
/// 1, the caller subtracts that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunSet {
    /// The containers by group; none is empty.
    groups: BTreeMap<u64, Container>,
    group_blocks: u32,
    count: u64,
}

impl RunSet {
    /// Creates an empty set, in groups of `group_blocks` blocks, at least 1.
    #[must_use]
    pub fn new(group_blocks: u32) -> Self {
        Self { groups: BTreeMap::new(), group_blocks: group_blocks.max(1), count: 0 }
    }

    /// The number of blocks in the set.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Whether the set has no block.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Memory on the heap in bytes, without what the tree of groups allocates beyond its entries.
    #[must_use]
    pub fn memory(&self) -> usize {
        let entry = size_of::<(u64, Container)>();
        self.groups.values().map(|group| entry + group.memory()).sum()
    }

    /// The set's blocks in a group, counted from its first; `None` if it has none there.
    #[must_use]
    pub fn group(&self, group: u64) -> Option<&Container> {
        self.groups.get(&group)
    }

    /// The groups with blocks of the set, ascending.
    pub fn groups(&self) -> impl Iterator<Item = (u64, &Container)> {
        self.groups.iter().map(|(group, blocks)| (*group, blocks))
    }

    /// Removes a group's blocks from the set and returns them.
    pub fn take_group(&mut self, group: u64) -> Option<Container> {
        let blocks = self.groups.remove(&group)?;
        self.count -= u64::from(blocks.count());
        Some(blocks)
    }

    /// Adds blocks of a group.
    pub fn add_group(&mut self, group: u64, blocks: &Container) {
        if blocks.is_empty() {
            return;
        }
        let units = self.group_blocks;
        let there = self.groups.entry(group).or_insert_with(|| Container::empty(units));
        let before = there.count();
        there.union_with(blocks);
        self.count += u64::from(there.count() - before);
    }

    /// Adds units of a group, and returns the number of new ones.
    pub fn add_units(&mut self, group: u64, run: Run) -> u32 {
        let units = self.group_blocks;
        let new = self.groups.entry(group).or_insert_with(|| Container::empty(units)).add(run);
        self.count += u64::from(new);
        new
    }

    /// The parts of a run in each group.
    fn parts(&self, run: BlockRun) -> impl Iterator<Item = (u64, Run)> + use<> {
        let size = u64::from(self.group_blocks);
        let groups = run.start / size..run.end().div_ceil(size);
        groups.filter(move |_| run.len > 0).map(move |group| {
            let first = group * size;
            let (start, end) = (run.start.max(first) - first, (run.end() - first).min(size));
            (group, Run { start: start as u32, len: (end - start) as u32 })
        })
    }

    /// The groups with blocks of the set that overlap a range, each with the overlapping part.
    fn overlapping(&self, range: Range<u64>) -> impl Iterator<Item = (u64, &Container, Run)> {
        let size = u64::from(self.group_blocks);
        let groups = range.start / size..range.end.div_ceil(size).max(range.start / size);
        self.groups.range(groups).map(move |(&group, blocks)| {
            let first = group * size;
            let (start, end) = (range.start.max(first) - first, (range.end - first).min(size));
            (group, blocks, Run { start: start as u32, len: end.saturating_sub(start) as u32 })
        })
    }

    fn absolute(&self, group: u64, run: Run) -> BlockRun {
        BlockRun { start: group * u64::from(self.group_blocks) + u64::from(run.start), len: run.len.into() }
    }

    /// Whether all of a run is in the set; `true` for an empty run.
    #[must_use]
    pub fn contains(&self, run: BlockRun) -> bool {
        run.len <= self.count
            && self.parts(run).all(|(group, run)| self.groups.get(&group).is_some_and(|blocks| blocks.contains(run)))
    }

    /// Whether any block of a run is in the set.
    #[must_use]
    pub fn intersects(&self, run: BlockRun) -> bool {
        self.overlapping(run.start..run.end()).any(|(_, blocks, run)| blocks.intersects(run))
    }

    /// The number of blocks of a range that are in the set.
    #[must_use]
    pub fn count_in(&self, range: Range<u64>) -> u64 {
        self.overlapping(range).map(|(_, blocks, run)| u64::from(blocks.count_in(run))).sum()
    }

    /// Adds a run, no block of which may be in the set.
    ///
    /// # Errors
    /// [`SetError::Present`] with the first blocks that are, counted from the first block of their group; nothing is
    /// changed then.
    pub fn insert(&mut self, run: BlockRun) -> Result<(), SetError> {
        let present = self.overlapping(run.start..run.end()).find_map(|(_, blocks, run)| {
            let first = blocks.runs_from(run.start).next().filter(|first| first.start < run.end())?;
            Some(Run { start: first.start, len: first.len.min(run.end() - first.start) })
        });
        if let Some(present) = present {
            return Err(SetError::Present(present));
        }
        self.add(run);
        Ok(())
    }

    /// Removes a run, all of which must be in the set.
    ///
    /// # Errors
    /// [`SetError::Absent`] with the first blocks that are not, counted from the first block of their group; nothing is
    /// changed then.
    pub fn remove(&mut self, run: BlockRun) -> Result<(), SetError> {
        for (group, part) in self.parts(run) {
            let Some(blocks) = self.groups.get(&group) else { return Err(SetError::Absent(part)) };
            let there = blocks.run_at(part.start, part.len);
            if there < part.len {
                let start = part.start + there;
                let next = blocks.runs_from(start).next().map_or(part.end(), |next| next.start.min(part.end()));
                return Err(SetError::Absent(Run { start, len: next - start }));
            }
        }
        self.cut(run);
        Ok(())
    }

    /// Adds the missing blocks of a run, and returns their number. One step for each group of the run.
    pub fn add(&mut self, run: BlockRun) -> u64 {
        let units = self.group_blocks;
        let mut new = 0;
        for (group, part) in self.parts(run) {
            if part.len == units {
                let before = self.groups.insert(group, Container::full(units));
                let added = u64::from(units - before.map_or(0, |before| before.count()));
                self.count += added;
                new += added;
            } else {
                new += u64::from(self.add_units(group, part));
            }
        }
        new
    }

    /// Removes the blocks of a run that are in the set, and returns their number.
    pub fn cut(&mut self, run: BlockRun) -> u64 {
        let overlapping: Vec<(u64, Run)> =
            self.overlapping(run.start..run.end()).map(|(group, _, part)| (group, part)).collect();
        let mut gone = 0;
        for (group, part) in overlapping {
            let Some(blocks) = self.groups.get_mut(&group) else { continue };
            gone += u64::from(blocks.cut(part));
            if blocks.is_empty() {
                self.groups.remove(&group);
            }
        }
        self.count -= gone;
        gone
    }

    /// Adds the blocks of another set with groups of the same size. One step for each group of the other set.
    pub fn union_with(&mut self, other: &Self) {
        if self.group_blocks != other.group_blocks {
            return other.runs().for_each(|run| {
                self.add(run);
            });
        }
        for (group, blocks) in &other.groups {
            self.add_group(*group, blocks);
        }
    }

    /// Removes the blocks of another set.
    pub fn subtract(&mut self, other: &Self) {
        if self.group_blocks != other.group_blocks {
            return other.runs().for_each(|run| {
                self.cut(run);
            });
        }
        for (group, gone) in &other.groups {
            let Some(blocks) = self.groups.get_mut(group) else { continue };
            let before = blocks.count();
            blocks.subtract(gone);
            self.count -= u64::from(before - blocks.count());
            if blocks.is_empty() {
                self.groups.remove(group);
            }
        }
    }

    /// Removes the blocks that are not in another set.
    pub fn intersect_with(&mut self, other: &Self) {
        if self.group_blocks != other.group_blocks {
            let mut same = Self::new(self.group_blocks);
            same.union_with(other);
            return self.intersect_with(&same);
        }
        let mut count = 0;
        self.groups.retain(|group, blocks| {
            let Some(others) = other.groups.get(group) else { return false };
            blocks.intersect_with(others);
            count += u64::from(blocks.count());
            !blocks.is_empty()
        });
        self.count = count;
    }

    /// The runs of the set from a block on, ascending, merged across group boundaries; a run that begins before the
    /// block is cut there.
    pub fn runs_from(&self, block: u64) -> impl Iterator<Item = BlockRun> + '_ {
        let overlapping = self.overlapping(block..u64::MAX);
        let parts = overlapping.flat_map(move |(group, blocks, from)| {
            blocks.runs_from(from.start).map(move |run| self.absolute(group, run))
        });
        let mut parts = parts.peekable();
        std::iter::from_fn(move || {
            let mut run = parts.next()?;
            while let Some(next) = parts.next_if(|next| next.start == run.end()) {
                run.len += next.len;
            }
            Some(run)
        })
    }

    /// The runs of the set, ascending.
    pub fn runs(&self) -> impl Iterator<Item = BlockRun> + '_ {
        self.runs_from(0)
    }
}
