//! The free space that a generation writes when it closes: records, and folded trees.

use super::area::Area;
use super::{Log, SpaceMapRecord, TAG};
use crate::alloc::record::contract::LoadError;
use crate::mutant::Mutant;
use format::space_map::SpaceMaps;
use format::space_map::ring::{Record, RingBlock};
use format::space_map::tree::TreeWriter;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use store::{Closing, Kind};

/// Maximum number of blocks of the ring that a close writes, whatever the length of the ring.
const MOST_APPENDED: usize = 32;

/// The metablockgroups folded by a close.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Choice {
    /// Folded because the ring has no space otherwise.
    pub(super) must: BTreeSet<u32>,
    /// Folded in time, because they have the oldest blocks of a ring that is half full.
    pub(super) may: BTreeSet<u32>,
}

/// The state of the ring when a generation closes.
pub(super) struct Ring {
    /// Length in blocks.
    pub(super) length: u64,
    /// Maximum number of blocks written by a close.
    pub(super) share: usize,
    /// Records per block.
    pub(super) records: usize,
    /// Position of the next block.
    pub(super) position: u64,
}

impl Ring {
    /// The metablockgroups to fold, from their numbers of records in the generation (`counts`) and the positions of
    /// their oldest blocks in the ring (`oldest`, ascending).
    pub(super) fn choose(&self, counts: &BTreeMap<u32, usize>, oldest: &[(u64, u32)]) -> Choice {
        let mut choice = Choice { must: BTreeSet::new(), may: BTreeSet::new() };
        let mut total: usize = counts.values().sum();
        let mut by_count: Vec<(usize, u32)> = counts.iter().map(|(map, count)| (*count, *map)).collect();
        by_count.sort_unstable();
        while total > self.share * self.records
            && let Some((count, map)) = by_count.pop()
        {
            choice.must.insert(map);
            total -= count;
        }
        let mut oldest: VecDeque<(u64, u32)> =
            oldest.iter().filter(|(_, map)| !choice.must.contains(map)).copied().collect();
        // finds nothing if each close folded at its pace
        while let Some(&(tail, map)) = oldest.front()
            && self.position.saturating_sub(tail) + self.blocks(total) > self.length
        {
            oldest.pop_front();
            // its records of this generation are not needed any more
            total -= counts.get(&map).copied().unwrap_or(0);
            choice.must.insert(map);
        }
        let pace = self.pace(oldest.iter().map(|(tail, _)| *tail), self.blocks(total));
        choice.may.extend(oldest.iter().take(pace).map(|(_, map)| *map));
        choice
    }

    /// Number of blocks for `records` records.
    fn blocks(&self, records: usize) -> u64 {
        records.div_ceil(self.records) as u64
    }

    /// The number of metablockgroups, of those with the oldest blocks `oldest`, ascending, folded by a close that
    /// appends `appended` blocks. Those with blocks in the older half of the ring are spread evenly over the blocks
    /// that may be appended before the next close could have to fold them; so the number of folds depends on the number
    /// of appended blocks, and not on how many metablockgroups share a block.
    fn pace(&self, oldest: impl Iterator<Item = u64>, appended: u64) -> usize {
        let old = oldest.take_while(|tail| self.position.saturating_sub(*tail) > self.length / 2);
        // after this close, the next one may append its share
        let limit = self.length.saturating_sub(self.share as u64);
        let due = (1_u64..).zip(old).map(|(count, tail)| match (tail + limit).saturating_sub(self.position) {
            left if left <= appended => count,
            left => (count * appended).div_ceil(left),
        });
        due.max().unwrap_or(0) as usize
    }
}

impl SpaceMapRecord {
    /// Maximum number of blocks of the ring that a close writes.
    pub(super) fn share(&self) -> usize {
        share(&self.maps)
    }

    /// Writes the changes into the closing generation.
    pub(super) fn close(&self, closing: &Closing<'_>) -> store::Result<()> {
        self.open.close();
        let mut log = self.log.lock();
        for (first, tree) in std::mem::take(&mut log.late) {
            closing.write_fresh(first, Kind::SpaceMap, tree);
        }
        let changed = std::mem::take(&mut log.changed);
        if changed.is_empty() {
            return Ok(());
        }
        let ring = self.maps.ring();
        let ring = Ring {
            length: ring.end - ring.start,
            share: self.share(),
            records: RingBlock::space(&self.maps),
            position: log.position,
        };
        let count = |map: &u32| Some((*map, self.areas.get(*map as usize)?.lock().changed.len()));
        let counts: BTreeMap<u32, usize> = changed.iter().filter_map(count).filter(|(_, count)| *count > 0).collect();
        let areas = (0..).zip(&self.areas);
        let mut oldest: Vec<(u64, u32)> = areas.filter_map(|(map, area)| Some((area.lock().oldest?, map))).collect();
        oldest.sort_unstable();
        let mut choice = ring.choose(&counts, &oldest);
        if self.mutant.is(Mutant::TailBeforeHeads) {
            choice = Choice { must: BTreeSet::new(), may: BTreeSet::new() };
        }
        let must = choice.must.into_iter().map(|map| (map, true));
        for (map, must) in must.chain(choice.may.into_iter().map(|map| (map, false))) {
            self.fold(closing, &mut log, map, must)?;
            if self.mutant.is(Mutant::FoldAgain) || self.mutant.is(Mutant::FoldTwice) {
                self.fold(closing, &mut log, map, false)?;
            }
        }
        self.append(closing, &mut log, &changed);
        log.sequence += 1;
        Ok(())
    }

    /// Rewrites a metablockgroup's tree, and its head. If that is not possible yet it is postponed, unless it `must` be
    /// done.
    fn fold(&self, closing: &Closing<'_>, log: &mut Log, map: u32, must: bool) -> store::Result<()> {
        let Some(area) = self.areas.get(map as usize) else { return Ok(()) };
        let mut area = area.lock();
        if area.moved > self.durable.load(Ordering::Acquire) && !self.mutant.is(Mutant::FoldTwice) {
            // a crash would still need this copy
            return if must { Err(full()) } else { Ok(()) };
        }
        let mut writer = TreeWriter::new(&self.maps, map);
        match area.groups(closing.store(), &self.maps) {
            Ok(groups) => {
                groups.iter().for_each(|free| writer.group(free.runs().map(|run| run.start..run.end())));
            }
            // it does not retain any block any more
            Err(LoadError::Corrupt(_)) => return Ok(()),
            Err(LoadError::Device(error)) => return if must { Err(error) } else { Ok(()) },
        }
        let Some(mut head) = area.head().copied() else { return Ok(()) };
        head.second ^= !self.mutant.is(Mutant::FoldInPlace);
        let mut tree = writer.finish(log.sequence, &mut head);
        tree.resize(tree.len().next_multiple_of(self.maps.geometry().block_size as usize), 0);
        let tree: Arc<[u8]> = tree.into();
        if self.mutant.is(Mutant::HeadBeforeTree) {
            log.late.push((head.tree(&self.maps), tree));
        } else {
            closing.write_fresh(head.tree(&self.maps), Kind::SpaceMap, tree);
        }
        closing.edit(self.maps.head_at(map).0, TAG, |block| head.write(block, &self.maps))?;
        area.set_head(head, closing.generation());
        Ok(())
    }

    /// Appends the records of the generation to the ring.
    fn append(&self, closing: &Closing<'_>, log: &mut Log, changed: &BTreeSet<u32>) {
        let mut records: Vec<(u32, Record)> = Vec::new();
        for map in changed {
            let Some(area) = self.areas.get(*map as usize) else { continue };
            let mut taken = std::mem::take(&mut area.lock().changed);
            taken.sort_unstable_by_key(|record| record.start);
            records.extend(taken.into_iter().map(|record| (*map, record)));
        }
        if self.mutant.is(Mutant::LoseRecord) {
            records.pop();
        }
        let space = RingBlock::space(&self.maps);
        let blocks = records.len().div_ceil(space) as u32;
        for (n, chunk) in (1..).zip(records.chunks(space)) {
            let position = log.position;
            log.position += 1;
            let block = RingBlock {
                sequence: log.sequence,
                position,
                left: blocks - n,
                records: chunk.iter().map(|(_, record)| *record).collect(),
            };
            closing.replace(self.maps.ring_block(position), TAG, |bytes| block.write(bytes, &self.maps));
            for (map, _) in chunk {
                if let Some(area) = self.areas.get(*map as usize) {
                    area.lock().wait_at(position);
                }
            }
        }
    }
}

impl Area {
    /// Records that the block of the ring at this position has records of it.
    fn wait_at(&mut self, position: u64) {
        self.oldest.get_or_insert(position);
    }
}

/// Maximum number of blocks of the ring that a close writes.
pub(super) fn share(maps: &SpaceMaps) -> usize {
    let ring = maps.ring();
    (((ring.end - ring.start) / 4) as usize).clamp(1, MOST_APPENDED)
}

#[cold]
fn full() -> store::Error {
    store::Error::Failed("the log of space maps is full".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::cases;

    const RING: Ring = Ring { length: 16, share: 4, records: 10, position: 100 };

    fn chosen(counts: &[(u32, usize)], oldest: &[(u64, u32)]) -> (Vec<u32>, Vec<u32>) {
        let choice = RING.choose(&counts.iter().copied().collect(), oldest);
        (choice.must.into_iter().collect(), choice.may.into_iter().collect())
    }

    #[test]
    fn who_has_most_records_is_folded_until_the_rest_fits() {
        assert_eq!(chosen(&[(1, 10), (2, 30)], &[]), (vec![], vec![]));
        assert_eq!(chosen(&[(1, 10), (2, 31)], &[]), (vec![2], vec![]));
        assert_eq!(chosen(&[(1, 39), (2, 70), (3, 41)], &[]), (vec![2, 3], vec![]));
        assert_eq!(chosen(&[(1, 1000)], &[(99, 1)]), (vec![1], vec![]));
    }

    #[test]
    fn a_ring_that_is_half_full_loses_its_oldest_a_few_at_a_time() {
        assert_eq!(chosen(&[(1, 1)], &[(92, 7), (95, 8)]), (vec![], vec![]));
        assert_eq!(chosen(&[(1, 1)], &[(91, 7), (95, 8)]), (vec![], vec![7]));
        // three blocks remain before the next close may need the whole ring
        assert_eq!(chosen(&[(9, 1)], &(0..9).map(|map| (91, map)).collect::<Vec<_>>()), (vec![], vec![0, 1, 2]));
        assert_eq!(chosen(&[(9, 11)], &(0..9).map(|map| (91, map)).collect::<Vec<_>>()).1.len(), 6);
        let many: Vec<(u64, u32)> = (86..92).zip(1..).collect();
        assert_eq!(chosen(&[(9, 1)], &many), (vec![], vec![1, 2, 3, 4]));
    }

    /// Random generations within their share, on rings of any length: no close has to fold for lack of space, and the
    /// number of folds in time is bounded by the appended blocks.
    #[test]
    fn a_pace_leaves_nothing_for_a_full_ring() {
        for case in cases("a_pace_leaves_nothing_for_a_full_ring", 40) {
            let mut rng = case.rng();
            let length = rng.between(4, 400);
            let share = (length as usize / 4).clamp(1, MOST_APPENDED);
            let mut ring = Ring { length, share, records: rng.between(3, 130) as usize, position: 0 };
            let (maps, even) = (rng.between(1, 500), rng.chance(50));
            let mut oldest: BTreeMap<u32, u64> = BTreeMap::new();
            for n in 0..1000 {
                let mut left = rng.magnitude((share * ring.records) as u64) as usize;
                let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
                while left > 0 {
                    let records = if even { 1 } else { rng.magnitude(left as u64) as usize };
                    *counts.entry(rng.below(maps) as u32).or_default() += records;
                    left -= records;
                }
                let mut by_age: Vec<(u64, u32)> = oldest.iter().map(|(map, tail)| (*tail, *map)).collect();
                by_age.sort_unstable();
                let appended = ring.blocks(counts.values().sum());
                let choice = ring.choose(&counts, &by_age);
                assert!(choice.must.is_empty(), "{n}: {choice:?}");
                // blocks left when the half begins: at least this many
                let least = (length / 2).saturating_sub(2 * share as u64).max(1);
                let most = maps.min((maps * appended).div_ceil(least));
                assert!(choice.may.len() as u64 <= most, "{n}: {} of {most}", choice.may.len());
                counts.retain(|map, _| !choice.may.contains(map));
                oldest.retain(|map, _| !choice.may.contains(map));
                let mut written = 0;
                for (map, records) in &counts {
                    oldest.entry(*map).or_insert(ring.position + (written / ring.records) as u64);
                    written += records;
                }
                ring.position += ring.blocks(written);
            }
        }
    }

    #[test]
    fn what_does_not_fit_pushes_the_oldest_out() {
        // 15 blocks are used, and two are needed
        assert_eq!(chosen(&[(9, 11)], &[(85, 1), (86, 2), (99, 3)]).0, [1]);
        assert_eq!(chosen(&[(9, 21)], &[(85, 1), (85, 2), (86, 3), (99, 4)]).0, [1, 2, 3]);
        // its own records need no block any more
        assert_eq!(chosen(&[(1, 11)], &[(85, 1), (86, 2)]).0, [1]);
    }
}
