//! Allocation and freeing of blocks.
//!
//! A request states a goal and a wanted length, and is answered with one run: at the goal itself if enough is free
//! there, else a run that is long enough in the goal's group, then in the groups after it; if a few groups have no such
//! run, the longest one found. [`fit`] chooses among the runs of a group that are long enough.

use super::Space;
use super::fit::{self, Request};
use super::loaded_group::{GroupCell, GroupState};
use super::rule::{Attempt, Role};
use crate::{Error, Result};
use format::{FsBlock, GroupNo, Structure, Where};
use parking_lot::Mutex;
use space::{ContainerMap, Privilege, Purpose, Run, RunSet};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use store::Operation;

/// Number of groups searched for a run that is long enough before a shorter one is taken.
const GROUPS_SEARCHED: usize = 8;
/// Blocks: a run of this length at the goal itself is taken, even if more is wanted.
const GOAL_RUN_BLOCKS: u32 = 16;
/// Minimum size of a request, in bytes, for its file to count as long.
const LONG: u64 = 256 << 10;
/// Files that grow at the same time in one place are separated by this fraction of a group, so that each has long
/// extents.
const APART: u32 = 8;
/// Maximum number of attempts when the found run is allocated by another thread meanwhile.
const TRIES: usize = 64;

/// Consecutive blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    /// The first block.
    pub(crate) first: FsBlock,
    /// The number of blocks, at least 1.
    pub(crate) count: u32,
}

impl Space {
    /// Checks that all blocks are ones that a file may own.
    pub(super) fn may_be_freed(&self, first: FsBlock, count: u64) -> Result<()> {
        let geometry = &self.sb.geometry;
        let bad = |what| Err(Error::corrupt(Structure::Bitmap, Where::Block(first), what));
        let end = first.get().checked_add(count).filter(|end| *end <= geometry.blocks);
        let Some(end) = end.filter(|_| first.get() >= u64::from(geometry.first_data_block)) else {
            return bad("blocks to be freed lie outside the volume");
        };
        if self.is_own(&(first.get()..end)) {
            return bad("blocks to be freed are in the system zone");
        }
        Ok(())
    }

    pub(super) fn free_run(&self, op: &Operation<'_>, group: GroupNo, run: Run, defer: bool) -> Result<()> {
        let Some(cell) = self.cell(group) else { return Ok(()) };
        let Some(mut state) = self.lock_space_to_free(op.store(), group.get()) else { return Ok(()) };
        if !state.space.free.as_ref().is_some_and(|free| free.is_used(run)) {
            self.mark_corrupt(cell, group.get(), &mut state, "blocks of a file are free in its block bitmap");
            return Ok(());
        }
        self.touch_space(op, group.get(), &mut state)?;
        let deferred = defer.then(|| op.generation());
        self.free_units(cell, group.get(), &mut state, run, deferred);
        Ok(())
    }

    /// Marks blocks of a group that are in use as free, in memory. Blocks used by a snapshot are pinned; the others may
    /// be allocated when the generation `deferred` is durable, or at once if it is `None`.
    pub(super) fn free_units(
        &self,
        cell: &GroupCell,
        group: u32,
        state: &mut GroupState,
        run: Run,
        deferred: Option<u64>,
    ) {
        let counts = self.layout.is_pool_group(group);
        let mut at = run.start;
        while at < run.end() {
            let Some(free) = &mut state.space.free else { return };
            let (len, is_pinned) = free.pinned_at(Run { start: at, len: run.end() - at });
            let part = Run { start: at, len };
            at += len;
            let freed = free.free(part, deferred.is_some());
            debug_assert!(freed, "all of the run is used");
            self.record.count_run(len);
            state.descriptor.free_clusters += len;
            if !counts {
                self.free_metadata.fetch_add(u64::from(len), Ordering::Relaxed);
            }
            match deferred {
                _ if is_pinned => {
                    let all = state.descriptor.pinned() + u64::from(len);
                    state.descriptor.set_pinned(all);
                    if let Some(pins) = &self.snapshot_pins {
                        pins.blocks.fetch_add(len.into(), Ordering::Relaxed);
                    }
                }
                Some(generation) => {
                    self.defer(generation, |deferred| deferred.add_units(group.into(), part));
                    if counts {
                        self.pool.lock().defer(u64::from(len));
                    }
                }
                None => {
                    cell.blocks.fetch_add(len, Ordering::Relaxed);
                    self.bounds.raise(group);
                    self.fit.record_free(group, std::iter::once(part));
                    if counts {
                        self.pool.lock().free(u64::from(len));
                    }
                }
            }
        }
    }

    /// Adds to the space freed in a generation, which is deferred until the generation is durable.
    pub(super) fn defer<R>(&self, generation: u64, add: impl FnOnce(&mut RunSet) -> R) {
        let units = self.sb.geometry.clusters_per_group();
        add(self.deferred.lock().entry(generation).or_insert_with(|| RunSet::new(units)));
    }

    /// Releases what was freed up to a generation for allocation.
    pub(crate) fn release(&self, generation: u64) {
        fn due(deferred: &Mutex<BTreeMap<u64, RunSet>>, generation: u64) -> impl Iterator<Item = RunSet> + use<> {
            let mut all = deferred.lock();
            let later = all.split_off(&generation.saturating_add(1));
            std::mem::replace(&mut *all, later).into_values()
        }
        for set in due(&self.deferred_inodes, generation) {
            set.groups().for_each(|(group, inodes)| self.release_inodes(group as u32, inodes));
        }
        for set in due(&self.deferred, generation) {
            set.groups().for_each(|(group, blocks)| {
                self.release_blocks(group as u32, blocks.count(), |free| free.release_set(blocks));
                self.fit.record_free_set(group as u32, blocks);
            });
        }
    }

    /// Defers the first free run of at least `least` blocks that begins in a range of a group, until
    /// [`Space::release_run`]; `None` if there is none or all space is reserved.
    pub(crate) fn set_aside(
        &self,
        op: &Operation<'_>,
        group: GroupNo,
        range: Range<u32>,
        least: u32,
    ) -> Result<Option<Run>> {
        let Some(cell) = self.cell(group) else { return Ok(None) };
        let Some(mut state) = self.lock_space(op.store(), group.get())? else { return Ok(None) };
        let Some(free) = &mut state.space.free else { return Ok(None) };
        let Some(mut run) = free.next_run(range, least) else { return Ok(None) };
        let mut pool = self.pool.lock();
        run.len = pool.allocate(u64::from(run.len), Privilege::Superuser) as u32;
        let set_aside = run.len > 0 && free.allocate(run) && free.free(run, true);
        if !set_aside {
            pool.free(u64::from(run.len));
            return Ok(None);
        }
        pool.defer(u64::from(run.len));
        cell.blocks.fetch_sub(run.len, Ordering::Relaxed);
        Ok(Some(run))
    }

    /// Releases blocks that were set aside for allocation.
    pub(crate) fn release_run(&self, group: u32, run: Run) {
        self.release_blocks(group, run.len, |free| free.release(run));
    }

    /// Releases `count` deferred blocks of a group for allocation.
    fn release_blocks(&self, group: u32, count: u32, release: impl FnOnce(&mut ContainerMap)) {
        let Some(cell) = self.cell(GroupNo(group)) else { return };
        let mut state = cell.state.lock();
        // it is loaded: a group with deferred space is not dropped
        if let Some(free) = &mut state.space.free {
            release(free);
        }
        let counts = self.layout.is_pool_group(group);
        let mut pool = self.pool.lock();
        if counts {
            pool.release(u64::from(count));
        }
        if state.is_corrupt() {
            pool.quarantine(if counts { u64::from(count) } else { 0 });
        } else {
            cell.blocks.fetch_add(count, Ordering::Relaxed);
            self.bounds.raise(group);
        }
    }

    /// Finds and allocates a run for blocks already granted by the pool; `begin` is the group and the unit where the
    /// search begins.
    pub(super) fn place(&self, op: &Operation<'_>, begin: (u32, u32), want: u32, role: Role) -> Result<Extent> {
        let enough = if role.purpose() == Purpose::Metadata { 1 } else { want.min(GOAL_RUN_BLOCKS) };
        for kind in self.rule.attempts(role) {
            for _ in 0..TRIES {
                let begin = match kind {
                    Attempt::Grow => match self.grow_region(op, begin.0)? {
                        Some(group) => (group, 0),
                        None => break,
                    },
                    _ => begin,
                };
                let Some((group, run)) = self.look(op, *kind, begin, want, enough)? else { break };
                if let Some(run) = self.take(op, group, run)? {
                    let first = self.sb.geometry.group_start(GroupNo(group)).get() + u64::from(run.start);
                    return Ok(Extent { first: FsBlock(first), count: run.len });
                }
            }
        }
        Err(Error::NoSpace)
    }

    /// The best run in search order. A group whose bitmap cannot be read is skipped; that is an error only if no other
    /// group has space.
    fn look(
        &self,
        op: &Operation<'_>,
        kind: Attempt,
        (goal, unit): (u32, u32),
        want: u32,
        enough: u32,
    ) -> Result<Option<(u32, Run)>> {
        let chunk = self.sb.geometry.chunk_blocks();
        let mut order = self.policy.groups_from(self.sb.geometry.groups, goal);
        if kind == Attempt::InsideHere {
            order = [order[0].start..order[0].end.min(order[0].start + 1), 0..0];
        }
        let mut best: Option<(u32, Run)> = None;
        let mut unread = None;
        let mut looked = 0;
        while looked < GROUPS_SEARCHED || best.is_none() && unread.is_none() {
            // only groups that may have a run longer than the best so far are examined
            let least = best.map_or(0, |(_, run)| run.len) + 1;
            let Some(group) = order.iter_mut().find_map(|range| {
                let group = self.bounds.next(kind.class(), range.clone(), least);
                range.start = group.map_or(range.end, |group| group + 1);
                group
            }) else {
                break;
            };
            let Some(cell) = self.cell(GroupNo(group)) else { break };
            let longest = self.bound(kind, group, cell);
            if longest < least {
                self.bounds.lower_skipped(kind.class(), group, || cell.most(kind));
                continue;
            }
            let mut state = match self.lock_space(op.store(), group) {
                Ok(Some(state)) => state,
                Ok(None) => continue,
                Err(e) => {
                    unread.get_or_insert(e);
                    looked += 1;
                    continue;
                }
            };
            let Some(map) = &state.space.free else { continue };
            let within = kind.within(cell.mask.load(Ordering::Relaxed), chunk, map.units());
            let from = if group == goal { unit } else { 0 };
            let here = within.iter().find(|run| group == goal && run.start <= from && from < run.end());
            let there = here.map_or(0, |run| map.run_at(from, want.min(run.end() - from)));
            if there >= enough {
                return Ok(Some((group, Run { start: from, len: there })));
            }
            // at most the longest run possible, so that a fragmented group is not searched repeatedly
            let hoped = want.min(longest);
            let (goal_here, is_long) = ((group == goal).then_some(unit), self.is_long(want));
            let request = Request { group, within: &within, goal: goal_here, want: hoped, near: chunk, is_long };
            let found = self.fit.find(map, &request);
            let len = found.map_or(0, |run| run.len);
            if len < hoped {
                // all runs were examined: none is longer
                self.bounds.lower(kind.class(), group, len);
            }
            if let Some(run) = found {
                if len == want {
                    // a file that would continue right after another one: both get space to grow
                    let meets = group == goal && unit > 0 && there == 0 && is_long;
                    let apart = self.sb.geometry.blocks_per_group / APART;
                    return Ok(Some((group, if meets { fit::apart(map, &within, run, apart) } else { run })));
                }
                if best.is_none_or(|(_, best)| len > best.len) {
                    best = Some((group, run));
                }
            }
            self.drop_if_many(group, &mut state);
            looked += 1;
        }
        match (best, unread) {
            (None, Some(e)) => Err(e),
            (best, _) => Ok(best),
        }
    }

    /// Whether a request of this many blocks probably belongs to a long file.
    fn is_long(&self, blocks: u32) -> bool {
        u64::from(blocks) * u64::from(self.sb.geometry.block_size) >= LONG
    }

    /// Allocates the still free part of a run, from its start.
    fn take(&self, op: &Operation<'_>, group: u32, run: Run) -> Result<Option<Run>> {
        let Some(cell) = self.cell(GroupNo(group)) else { return Ok(None) };
        let Some(mut state) = self.lock_space(op.store(), group)? else { return Ok(None) };
        let len = state.space.free.as_ref().map_or(0, |free| free.run_at(run.start, run.len));
        if len == 0 {
            return Ok(None);
        }
        let run = Run { start: run.start, len };
        self.touch_space(op, group, &mut state)?;
        let taken = state.space.free.as_mut().is_some_and(|free| free.allocate(run));
        debug_assert!(taken, "all of the run is free");
        self.record.count_run(len);
        state.descriptor.free_clusters = state.descriptor.free_clusters.saturating_sub(len);
        if !self.layout.is_pool_group(group) {
            self.free_metadata.fetch_sub(u64::from(len), Ordering::Relaxed);
        }
        state.block_bitmap_is_there();
        cell.blocks.fetch_sub(len, Ordering::Relaxed);
        Ok(Some(run))
    }
}

/// Blocks reserved for delayed data. The unused rest is released on drop.
pub(crate) struct Reservation {
    pub(super) space: Arc<Space>,
    pub(super) blocks: u64,
}

impl Reservation {
    /// The number of reserved blocks.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Subtracts blocks that were allocated, or are not needed any more.
    pub(crate) fn spend(&mut self, blocks: u64) {
        let blocks = blocks.min(self.blocks);
        self.blocks -= blocks;
        self.space.pool.lock().unreserve(blocks);
    }

    /// Merges two reservations.
    pub(crate) fn merge(&mut self, mut other: Self) {
        self.blocks += std::mem::take(&mut other.blocks);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.space.pool.lock().unreserve(self.blocks);
    }
}
