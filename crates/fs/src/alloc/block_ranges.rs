//! Ranges of blocks allocated for content, to determine which may be overwritten.

use std::collections::BTreeMap;

/// Ranges of blocks: first block to end (exclusive). No two ranges touch.
#[derive(Default)]
pub(super) struct BlockRanges(BTreeMap<u64, u64>);

impl BlockRanges {
    /// Adds blocks, none of which is in the set.
    pub(super) fn add(&mut self, first: u64, count: u64) {
        let (mut start, mut end) = (first, first + count);
        if let Some((before, _)) = self.0.range(..first).next_back().filter(|(_, end)| **end == first) {
            start = *before;
        }
        if let Some(behind) = self.0.remove(&end) {
            end = behind;
        }
        self.0.insert(start, end);
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Whether the block `first` is in the set, and the number of blocks from it on, at most `len`, with the same
    /// answer.
    pub(super) fn answer(&self, first: u64, len: u64) -> (bool, u64) {
        if let Some((_, end)) = self.0.range(..=first).next_back().filter(|(_, end)| **end > first) {
            return (true, len.min(end - first));
        }
        let next = self.0.range(first..).next();
        (false, next.map_or(len, |(start, _)| len.min(start - first)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::{Rng, cases};

    #[test]
    fn runs_are_as_long_as_they_can_be() {
        for case in cases("runs_are_as_long_as_they_can_be", 100) {
            let mut rng: Rng = case.rng();
            let (mut runs, mut model) = (BlockRanges::default(), [false; 64]);
            for _ in 0..20 {
                let first = rng.index(64);
                let count = model[first..].iter().take_while(|there| !**there).count().min(1 + rng.index(6));
                if count > 0 {
                    runs.add(first as u64, count as u64);
                    model[first..first + count].fill(true);
                }
                for at in 0..64 {
                    let same = model[at..].iter().take(10).take_while(|there| **there == model[at]).count();
                    assert_eq!(runs.answer(at as u64, 10.min(64 - at as u64)), (model[at], same as u64));
                }
                assert!(runs.0.iter().zip(runs.0.iter().skip(1)).all(|(a, b)| a.1 < b.0));
            }
        }
    }
}
