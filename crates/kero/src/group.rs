//! The open group: changes since the last flush that are in no record yet.
//!
//! It overrides the table: reads search it first. Its parts apply in the order discards, drops, homes, blocks; each set
//! contains only entries that later ones do not void.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::bytes::Entry;
use crate::layout::{Layout, MIB, MOVED};

/// The maximum number of pending blocks written home before they are written to records.
pub(crate) const MOST_HOMES: usize = 16_384;

/// A set of numbers of blocks or of MiB, as ranges: the first number and the end of each.
#[derive(Debug, Clone, Default)]
pub(crate) struct NumberSet(BTreeMap<u32, u32>);

impl NumberSet {
    /// Adds one number.
    pub(crate) fn insert(&mut self, number: u32) {
        self.insert_run(number, number.saturating_add(1));
    }

    /// Adds the numbers in `first..end`.
    pub(crate) fn insert_run(&mut self, mut first: u32, mut end: u32) {
        if first >= end {
            return;
        }
        // overlapping and adjacent ranges are merged with it
        while let Some((&start, &stop)) = self.0.range(..=end).next_back() {
            if stop < first {
                break;
            }
            (first, end) = (first.min(start), end.max(stop));
            self.0.remove(&start);
        }
        self.0.insert(first, end);
    }

    /// The first number and the end of each run, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, u32)> {
        self.0.iter().map(|(first, end)| (*first, *end))
    }

    /// The number of runs.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn contains(&self, number: u32) -> bool {
        self.0.range(..=number).next_back().is_some_and(|(_, stop)| *stop > number)
    }

    /// Whether one of the numbers in `first..end` is in the set.
    pub(crate) fn overlaps(&self, first: u32, end: u32) -> bool {
        self.0.range(..end).next_back().is_some_and(|(_, stop)| *stop > first)
    }
}

/// The changes since the last flush.
#[derive(Debug, Default)]
pub(crate) struct Open {
    /// New content.
    pub(crate) blocks: BTreeMap<u32, Box<[u8]>>,
    /// Blocks that were written home, with their CRC32C.
    pub(crate) homes: BTreeMap<u32, u32>,
    /// Blocks that leave the log without content.
    pub(crate) drops: BTreeSet<u32>,
    /// MiB that lose their content.
    pub(crate) discards: NumberSet,
    /// Blocks of the log that are used by records of this group so far.
    pub(crate) written: u32,
    /// The number of runs written home, at most.
    pub(crate) scattered: u32,
    /// Blocks that such records list as written home.
    pub(crate) written_homes: NumberSet,
    /// MiB that such records discard.
    pub(crate) written_discards: NumberSet,
    /// The check for another instance that writes to the device was made.
    pub(crate) settled: bool,
    /// The time of its first change.
    pub(crate) begun: Option<Duration>,
    /// The time of the newest change by a caller, or of the first block that moved home.
    pub(crate) changed: Duration,
}

impl Open {
    /// Whether there is nothing to write and no record to end.
    pub(crate) fn is_empty(&self) -> bool {
        self.written == 0 && self.nothing_pending()
    }

    fn nothing_pending(&self) -> bool {
        self.blocks.is_empty() && self.homes.is_empty() && self.drops.is_empty() && self.discards.is_empty()
    }

    /// The maximum number of blocks of the log for the pending changes.
    pub(crate) fn cost(&self, layout: &Layout) -> u32 {
        let discards = self.discards.len() + layout.mibs() as usize / usize::from(u16::MAX);
        let entries = self.homes.len() + self.drops.len() + if self.discards.is_empty() { 0 } else { discards };
        layout.cost(self.blocks.len() as u64, entries as u64)
    }

    /// Removes everything in the MiB `first..end`, and discards them.
    pub(crate) fn discard(&mut self, first: u32, end: u32) {
        let blocks = first.saturating_mul(MIB)..end.saturating_mul(MIB);
        cut(&mut self.blocks, &blocks);
        cut(&mut self.homes, &blocks);
        self.drops.retain(|address| !blocks.contains(address));
        self.discards.insert_run(first, end);
    }

    /// All changes but the blocks, as entries in the order in which they apply.
    pub(crate) fn entries(&self) -> Vec<Entry> {
        let most = u32::from(u16::MAX);
        let discards = self.discards.iter().flat_map(|(first, end)| {
            (first..end)
                .step_by(most as usize)
                .map(move |mib| Entry::Discard { mib, count: (end - mib).min(most) as u16 })
        });
        discards.chain(drop_entries(&self.drops)).chain(home_entries(&self.homes)).collect()
    }
}

/// Removes the entries in a range.
fn cut<V>(map: &mut BTreeMap<u32, V>, range: &std::ops::Range<u32>) {
    if map.range(range.clone()).next().is_some() {
        let mut behind = map.split_off(&range.start);
        map.append(&mut behind.split_off(&range.end));
    }
}

/// Entries for blocks that leave the log.
pub(crate) fn drop_entries(drops: &BTreeSet<u32>) -> impl Iterator<Item = Entry> {
    runs(drops.iter().copied()).map(|(address, count)| Entry::Drop { address, count })
}

/// Entries for blocks that were written home.
pub(crate) fn home_entries(homes: &BTreeMap<u32, u32>) -> impl Iterator<Item = Entry> {
    runs(homes.keys().copied()).map(|(address, count)| {
        let range = homes.range(address..=address.saturating_add(u32::from(count) - 1));
        let checksum = range
            .map(|(_, checksum)| *checksum)
            .reduce(|all, next| crc32c::crc32c_combine(all, next, crate::layout::BLOCK as usize))
            .unwrap_or_default();
        Entry::Home { address, count, checksum }
    })
}

/// The first number and the length of each run of ascending numbers.
fn runs(numbers: impl Iterator<Item = u32>) -> impl Iterator<Item = (u32, u16)> {
    let mut numbers = numbers.peekable();
    std::iter::from_fn(move || {
        let first = numbers.next()?;
        let mut count = 1;
        while count < u16::MAX && numbers.next_if(|next| *next == first + u32::from(count)).is_some() {
            count += 1;
        }
        Some((first, count))
    })
}

/// Runs of blocks that are adjacent on the device: blocks with another home location are separate.
pub(crate) fn device_runs(addresses: &[u32]) -> Vec<std::ops::Range<usize>> {
    let mut found: Vec<std::ops::Range<usize>> = Vec::new();
    for (index, address) in addresses.iter().enumerate() {
        let before = index.checked_sub(1).and_then(|before| addresses.get(before));
        let joins = before.is_some_and(|before| {
            before.checked_add(1) == Some(*address) && !MOVED.contains(before) && !MOVED.contains(address)
        });
        match found.last_mut().filter(|_| joins) {
            Some(run) => run.end = index + 1,
            None => found.push(index..index + 1),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_join() {
        let mut joined = NumberSet::default();
        [5, 7, 6, 6, 9, 4].into_iter().for_each(|address| joined.insert(address));
        assert_eq!(joined.0, BTreeMap::from([(4, 8), (9, 10)]));
        assert!(joined.overlaps(7, 9) && joined.overlaps(0, 5) && joined.overlaps(9, 10));
        assert!(!joined.overlaps(8, 9) && !joined.overlaps(0, 4) && !joined.overlaps(10, 20));
        joined.insert_run(6, 10);
        assert_eq!(joined.iter().collect::<Vec<_>>(), [(4, 10)]);
        joined.insert_run(20, 22);
        joined.insert_run(12, 12);
        joined.insert_run(0, 1);
        assert_eq!(joined.iter().collect::<Vec<_>>(), [(0, 1), (4, 10), (20, 22)]);
        joined.insert_run(1, 30);
        assert_eq!((joined.iter().collect::<Vec<_>>(), joined.len()), (vec![(0, 30)], 1));
        assert!(joined.contains(29) && !joined.contains(30));
        assert_eq!(runs([1, 2, 3, 7, 9, 10].into_iter()).collect::<Vec<_>>(), [(1, 3), (7, 1), (9, 2)]);
        assert_eq!(device_runs(&[0, 1, 2, 15, 16, 17, 18]), [0..1, 1..3, 3..4, 4..5, 5..7]);
    }

    #[test]
    fn a_discard_takes_what_was_pending_and_costs_a_run() {
        let layout = Layout::new(1 << 31, 1 << 20, 256).unwrap();
        let mut open = Open::default();
        for address in [255, 256, 511, 512] {
            open.blocks.insert(address, Box::default());
            open.homes.insert(address, 0);
            open.drops.insert(address);
        }
        open.discard(1, 2);
        assert_eq!(open.blocks.keys().copied().collect::<Vec<_>>(), [255, 512]);
        assert_eq!(open.homes.keys().copied().collect::<Vec<_>>(), [255, 512]);
        assert_eq!(open.drops.iter().copied().collect::<Vec<_>>(), [255, 512]);
        let mut open = Open::default();
        open.discard(0, layout.mibs());
        assert_eq!(open.entries().len() as u32, layout.mibs().div_ceil(65_535));
        assert!(open.cost(&layout) < 10, "{}", open.cost(&layout));
    }

    #[test]
    fn the_checksum_of_a_run_is_that_of_its_bytes() {
        let blocks: Vec<Vec<u8>> = (0..3).map(|n| vec![n + 1; 4096]).collect();
        let homes = (10..).zip(blocks.iter().map(|block| crc32c::crc32c(block))).collect();
        let entries: Vec<_> = home_entries(&homes).collect();
        assert_eq!(entries, [Entry::Home { address: 10, count: 3, checksum: crc32c::crc32c(&blocks.concat()) }]);
    }
}
