//! The space maps of a volume as they are on the device: heads, trees and log, read once, in phase 0.
//!
//! Their record of each group is compared with the claims in phase 5, as a block bitmap is. The log is applied to the
//! trees here, by the rules of FORMAT.md; contradictions become problems that phase 5 reports.

use crate::problem::Problem;
use crate::scan::{Item, REQUEST, Scanner};
use crate::table::Code;
use format::group::Group;
use format::space_map::SpaceMaps;
use format::space_map::head::Head;
use format::space_map::ring::{Record, RingBlock};
use format::space_map::tree::Tree;
use format::superblock::Geometry;
use format::{FsBlock, GroupNo};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;

/// The space maps of a volume as they were read.
#[derive(Debug)]
pub(crate) struct Recorded {
    /// Their layout.
    pub(crate) maps: SpaceMaps,
    /// For each metablockgroup, the first block of the two locations of its tree.
    pub(crate) places: Vec<FsBlock>,
    /// For each group the blocks in use, 64 to a word; `None` where the head or the tree is damaged.
    used: Vec<Option<Box<[u64]>>>,
    /// The highest sequence of a head or a block of the log; 0 where there is none.
    pub(crate) highest: u64,
    /// The problems of the maps themselves.
    pub(crate) problems: Vec<Problem>,
}

impl Recorded {
    /// Reads the space maps of a volume with these descriptors.
    pub(crate) fn read(scanner: &Scanner<'_>, maps: SpaceMaps, groups: &[Group]) -> Self {
        let mut recorded = Self {
            places: Vec::new(),
            used: (0..maps.geometry().groups).map(|_| None).collect(),
            highest: 0,
            problems: Vec::new(),
            maps,
        };
        let heads = recorded.read_heads(scanner, groups);
        let mut records = recorded.read_log(scanner);
        recorded.read_trees(scanner, &heads, &mut records);
        recorded
    }

    /// The blocks of a group that are in use, 64 to a word; `None` where they are not known.
    pub(crate) fn used(&self, group: GroupNo) -> Option<&[u64]> {
        self.used.get(group.get() as usize)?.as_deref()
    }

    /// The first block of the locations of the tree that records a group's free space; `None` for a group that does not
    /// exist.
    pub(crate) fn bitmap_block(&self, group: GroupNo) -> Option<FsBlock> {
        let map = self.maps.map_of(group);
        let first = self.places.get(map as usize)?;
        Some(FsBlock(first.get().checked_add(u64::from(group.get() - self.maps.groups_of(map).start))?))
    }

    /// The blocks of table, log and trees, each with the first group that it covers.
    pub(crate) fn own_blocks(&self) -> impl Iterator<Item = (GroupNo, Range<u64>)> + '_ {
        let volume = [self.maps.table(), self.maps.ring()].map(|blocks| (GroupNo(0), blocks));
        let places = (0..).zip(&self.places).flat_map(|(map, first)| {
            let group = GroupNo(self.maps.groups_of(map).start);
            self.maps.places(map, *first).map(|blocks| (group, blocks))
        });
        volume.into_iter().chain(places)
    }

    fn read_heads(&mut self, scanner: &Scanner<'_>, groups: &[Group]) -> Vec<Option<Head>> {
        let table = read(scanner, self.maps.geometry(), &self.maps.table());
        let per_block = self.maps.heads_per_block() as usize;
        let mut heads = Vec::new();
        for map in 0..self.maps.maps() {
            let group = GroupNo(self.maps.groups_of(map).start);
            let block = table.get(map as usize / per_block.max(1)).map(Vec::as_slice).unwrap_or_default();
            let head = Head::parse(block, &self.maps, map);
            let said = self.places_by_descriptors(map, groups);
            let mut wrong = |name| self.problems.push(Problem::new(Code::SpaceMapHeadWrong).group(group).name(name));
            let head = match head {
                // the descriptors of a whole metablockgroup outweigh one head
                Ok(head) if said.is_some_and(|said| said != head.places) => {
                    wrong("its tree location differs from the descriptors'");
                    None
                }
                Ok(head) => Some(head),
                Err(e) => {
                    wrong(what(&e));
                    None
                }
            };
            let first = groups.get(group.get() as usize).map_or(FsBlock(0), |descriptor| descriptor.block_bitmap);
            self.places.push(said.or(head.map(|head| head.places)).unwrap_or(first));
            self.highest = self.highest.max(head.map_or(0, |head| head.sequence));
            heads.push(head);
        }
        heads
    }

    /// The first block of the tree locations of a metablockgroup, if all of its descriptors agree.
    fn places_by_descriptors(&self, map: u32, groups: &[Group]) -> Option<FsBlock> {
        let numbers = self.maps.groups_of(map);
        let members = groups.get(numbers.start as usize..numbers.end as usize)?;
        let first = members.first()?.block_bitmap;
        let in_a_row = (first.get()..).zip(members).all(|(block, group)| group.block_bitmap.get() == block);
        (in_a_row && self.maps.are_inside(&self.maps.places(map, first))).then_some(first)
    }

    /// The records of the log by metablockgroup, oldest first, each with its sequence.
    fn read_log(&mut self, scanner: &Scanner<'_>) -> BTreeMap<u32, Vec<(u64, Record)>> {
        let ring = self.maps.ring();
        let length = ring.end - ring.start;
        let mut blocks = BTreeMap::new();
        for (place, bytes) in (0..).zip(read(scanner, self.maps.geometry(), &ring)) {
            let at = FsBlock(ring.start + place);
            let mut wrong = |name: &str| self.problems.push(wrong_block(at, name));
            match RingBlock::parse(&bytes, &self.maps, place) {
                Ok(Some(block)) => {
                    self.highest = self.highest.max(block.sequence);
                    blocks.insert(block.position, block);
                }
                Ok(None) => {}
                Err(e) => wrong(what(&e)),
            }
        }
        let mut records: BTreeMap<u32, Vec<(u64, Record)>> = BTreeMap::new();
        let Some(newest) = blocks.keys().next_back().copied() else { return records };
        // log positions descend from the newest without a gap
        let mut first = newest;
        while first > 0 && newest - first + 1 < length && blocks.contains_key(&(first - 1)) {
            first -= 1;
        }
        let chain: Vec<&RingBlock> = blocks.range(first..).map(|(_, block)| block).collect();
        for (n, block) in chain.iter().enumerate() {
            let goes_on = match chain.get(n + 1) {
                Some(next) if next.sequence == block.sequence => next.left + 1 == block.left,
                Some(next) => next.sequence > block.sequence && block.left == 0,
                None => block.left == 0,
            };
            if !goes_on {
                let what = "the generation it belongs to is incomplete or out of order";
                self.problems.push(wrong_block(self.maps.ring_block(block.position), what));
            }
            for record in &block.records {
                if let Some(group) = self.maps.geometry().group_of(record.start) {
                    records.entry(self.maps.map_of(group)).or_default().push((block.sequence, *record));
                }
            }
        }
        records
    }

    fn read_trees(
        &mut self,
        scanner: &Scanner<'_>,
        heads: &[Option<Head>],
        records: &mut BTreeMap<u32, Vec<(u64, Record)>>,
    ) {
        for head in heads.iter().flatten() {
            let first = head.tree(&self.maps);
            let group = GroupNo(self.maps.groups_of(head.number).start);
            let blocks = u64::from(head.length).div_ceil(u64::from(self.maps.geometry().block_size));
            let bytes =
                read(scanner, self.maps.geometry(), &(first.get()..first.get().saturating_add(blocks))).concat();
            let tree = match Tree::parse(&bytes, &self.maps, head) {
                Ok(tree) => tree,
                Err(e) => {
                    let problem = Problem::new(Code::SpaceMapTreeWrong).group(group).block(first);
                    self.problems.push(problem.name(what(&e)));
                    continue;
                }
            };
            for (number, free) in self.maps.groups_of(head.number).zip(&tree.groups) {
                let units = self.maps.units(GroupNo(number));
                let mut used = vec![0u64; units.div_ceil(64) as usize];
                fill(&mut used, 0..units, true);
                for run in free.runs(units) {
                    fill(&mut used, run, false);
                }
                if let Some(place) = self.used.get_mut(number as usize) {
                    *place = Some(used.into());
                }
            }
            let newer = records.remove(&head.number).unwrap_or_default();
            for (_, record) in newer.iter().filter(|(sequence, _)| *sequence > head.sequence) {
                self.apply(record);
            }
        }
    }

    fn apply(&mut self, record: &Record) {
        let geometry = self.maps.geometry();
        let Some(group) = geometry.group_of(record.start) else { return };
        let start = (record.start.get() - geometry.group_start(group).get()) as u32;
        let run = start..start + record.blocks;
        let Some(Some(used)) = self.used.get_mut(group.get() as usize) else { return };
        let in_use = (run.start..run.end).filter(|at| bit(used, *at)).count() as u32;
        let (code, wrong) = match record.allocated {
            true => (Code::SpaceMapRecordTakesUsed, in_use > 0),
            false => (Code::SpaceMapRecordFreesFree, in_use < record.blocks),
        };
        fill(used, run, record.allocated);
        if wrong {
            let problem = Problem::new(code).group(group).block(record.start).count(record.blocks.into());
            self.problems.push(problem);
        }
    }
}

fn wrong_block(at: FsBlock, what: &str) -> Problem {
    Problem::new(Code::SpaceMapLogBlockWrong).block(at).name(what)
}

/// The text of an error of the format, without the location.
fn what(error: &format::Error) -> &'static str {
    match error {
        format::Error::Corrupt { what, .. } => what,
        _ => "it cannot be read",
    }
}

fn bit(words: &[u64], at: u32) -> bool {
    words.get(at as usize / 64).is_some_and(|word| word >> (at % 64) & 1 == 1)
}

/// Sets or clears the bits of a run, word by word.
fn fill(words: &mut [u64], run: Range<u32>, set: bool) {
    let mut at = run.start;
    while at < run.end {
        let end = (at / 64 * 64 + 64).min(run.end);
        let mask = (u64::MAX >> (64 - (end - at))) << (at % 64);
        let Some(word) = words.get_mut(at as usize / 64) else { return };
        *word = if set { *word | mask } else { *word & !mask };
        at = end;
    }
}

/// The blocks of a range; one that cannot be read is empty.
fn read(scanner: &Scanner<'_>, geometry: &Geometry, blocks: &Range<u64>) -> Vec<Vec<u8>> {
    let size = geometry.block_size;
    let items: Vec<Item<usize>> = (blocks.start..blocks.end)
        .enumerate()
        .filter_map(|(tag, block)| Some(Item { offset: geometry.byte_offset(FsBlock(block))?, len: size, tag }))
        .collect();
    debug_assert!(u64::from(size) <= REQUEST);
    let all = Mutex::new(vec![Vec::new(); (blocks.end - blocks.start) as usize]);
    scanner.read_ascending(&items, |item, bytes| {
        let mut all = all.lock();
        if let (Ok(bytes), Some(place)) = (bytes, all.get_mut(item.tag)) {
            *place = bytes.to_vec();
        }
    });
    all.into_inner()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bits_are_filled_as_one_by_one(runs in proptest::collection::vec((0u32..300, 0u32..120, any::<bool>()), 0..20)) {
            let mut words = vec![0u64; 5];
            let mut model = [false; 320];
            for (start, len, set) in runs {
                let run = start..(start + len).min(320);
                fill(&mut words, run.clone(), set);
                model[run.start as usize..run.end as usize].fill(set);
            }
            prop_assert!((0..320).all(|at| bit(&words, at) == model[at as usize]));
        }
    }
}
