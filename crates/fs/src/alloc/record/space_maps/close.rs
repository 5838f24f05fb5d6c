//! The free space that a generation writes when it closes: records, and trees that are folded.

use super::area::Area;
use super::{Log, SpaceMapRecord, TAG};
use crate::alloc::record::contract::LoadError;
use crate::mutant::Mutant;
use format::space_map::ring::{Record, RingBlock};
use format::space_map::tree::TreeWriter;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use store::{Closing, Kind};

/// Most blocks of the ring that a close writes, whatever its length.
const MOST_APPENDED: usize = 32;
/// Metablockgroups that are folded in one close only so that the ring does not fill up.
const FEW: usize = 4;

/// The metablockgroups that a close folds.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Choice {
    /// Folded because the ring has no space otherwise.
    pub(super) must: BTreeSet<u32>,
    /// Folded because they hold the oldest blocks of a ring that is half full.
    pub(super) may: BTreeSet<u32>,
}

/// The ring when a generation closes.
pub(super) struct Ring {
    /// Blocks.
    pub(super) length: u64,
    /// Most blocks of a close.
    pub(super) share: usize,
    /// Records of a block.
    pub(super) records: usize,
    /// Of the next block.
    pub(super) position: u64,
}

impl Ring {
    /// Which metablockgroups are folded, where these have so many records in the generation (`counts`) and these hold
    /// blocks of the ring (`oldest`: the position of the oldest, ascending).
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
        let mut oldest = oldest.iter().filter(|(_, map)| !choice.must.contains(map)).copied().collect::<Vec<_>>();
        oldest.reverse();
        while let Some(&(tail, map)) = oldest.last() {
            let used = self.position.saturating_sub(tail);
            let is_full = used + total.div_ceil(self.records) as u64 > self.length;
            if !is_full && (used <= self.length / 2 || choice.may.len() >= FEW) {
                break;
            }
            oldest.pop();
            // its records of this generation go with it
            total -= counts.get(&map).copied().unwrap_or(0);
            if is_full { &mut choice.must } else { &mut choice.may }.insert(map);
        }
        choice
    }
}

impl SpaceMapRecord {
    /// Most blocks of the ring that a close writes.
    pub(super) fn share(&self) -> usize {
        let ring = self.maps.ring();
        (((ring.end - ring.start) / 4) as usize).clamp(1, MOST_APPENDED)
    }

    /// Brings what changed into the closing generation.
    pub(super) fn close(&self, closing: &Closing<'_>) -> store::Result<()> {
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
        for map in choice.must {
            self.fold(closing, &mut log, map, true)?;
        }
        for map in choice.may {
            self.fold(closing, &mut log, map, false)?;
        }
        self.append(closing, &mut log, &changed);
        log.sequence += 1;
        Ok(())
    }

    /// Writes a metablockgroup's tree anew, and its head. Where that is not possible yet it waits, unless it `must` be.
    fn fold(&self, closing: &Closing<'_>, log: &mut Log, map: u32, must: bool) -> store::Result<()> {
        let Some(area) = self.areas.get(map as usize) else { return Ok(()) };
        let mut area = area.lock();
        if area.moved > self.durable.load(Ordering::Acquire) {
            // the place is still what a crash would need
            return if must { Err(full()) } else { Ok(()) };
        }
        let mut writer = TreeWriter::new(&self.maps, map);
        match area.groups(closing.store(), &self.maps) {
            Ok(groups) => {
                groups.iter().for_each(|free| writer.group(free.runs().map(|run| run.start..run.end())));
            }
            // it holds nothing back any more
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
    /// The block of the ring at this position has records of it.
    fn wait_at(&mut self, position: u64) {
        self.oldest.get_or_insert(position);
    }
}

#[cold]
fn full() -> store::Error {
    store::Error::Failed("the log of space maps is full".into())
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let many: Vec<(u64, u32)> = (86..92).zip(1..).collect();
        assert_eq!(chosen(&[(9, 1)], &many), (vec![], vec![1, 2, 3, 4]));
    }

    #[test]
    fn what_does_not_fit_pushes_the_oldest_out() {
        // 15 blocks are used, and two are needed
        assert_eq!(chosen(&[(9, 11)], &[(85, 1), (86, 2), (99, 3)]).0, [1]);
        assert_eq!(chosen(&[(9, 21)], &[(85, 1), (85, 2), (86, 3), (99, 4)]).0, [1, 2, 3]);
        // its own records make no block any more
        assert_eq!(chosen(&[(1, 11)], &[(85, 1), (86, 2)]).0, [1]);
    }
}
