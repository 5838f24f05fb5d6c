//! Sets of physical blocks, by chunks, and their comparison with a chunk table.

use format::native::CHUNK_BLOCKS;
use format::native::chunk_table::{Chunk, WORDS, bit_of};
use format::native::superblock::COPIES;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// A bit for each block of a chunk.
pub(super) type Bits = [u64; WORDS];

/// The blocks of a chunk.
pub(super) fn blocks_of(chunk: u32) -> Range<u64> {
    let start = u64::from(chunk) * u64::from(CHUNK_BLOCKS);
    start..start + u64::from(CHUNK_BLOCKS)
}

/// The blocks of a chunk whose bits are set.
pub(super) fn set_in(chunk: u32, bits: Bits) -> impl Iterator<Item = u64> {
    blocks_of(chunk).zip(0..).filter(move |(_, n)| bits[n / 64] >> (n % 64) & 1 == 1).map(|(block, _)| block)
}

/// The physical blocks that a generation uses.
pub(super) struct Used {
    chunks: BTreeMap<u32, Bits>,
}

impl Default for Used {
    /// The blocks of the superblocks, which are always in use.
    fn default() -> Self {
        let mut used = Self { chunks: BTreeMap::new() };
        (0..COPIES).for_each(|physical| _ = used.add(physical));
        used
    }
}

impl Used {
    /// Adds a physical block and returns whether it is new.
    pub(super) fn add(&mut self, physical: u64) -> bool {
        let (chunk, word, bit) = bit_of(physical);
        let words = self.chunks.entry(chunk).or_insert([0; WORDS]);
        let new = words[word] & bit == 0;
        words[word] |= bit;
        new
    }

    /// The members of `blocks` that are in use.
    pub(super) fn of(&self, blocks: &BTreeSet<u64>) -> Vec<u64> {
        let used = |physical: &&u64| {
            let (chunk, word, bit) = bit_of(**physical);
            self.chunks.get(&chunk).is_some_and(|words| words[word] & bit != 0)
        };
        blocks.iter().filter(used).copied().collect()
    }

    /// The errors in a chunk table that should contain exactly these blocks.
    pub(super) fn compare(&self, table: &[Chunk]) -> Vec<(u64, &'static str)> {
        let mut named: BTreeMap<u32, Bits> = BTreeMap::new();
        for chunk in table {
            let words = named.entry(chunk.number).or_insert([0; WORDS]);
            words.iter_mut().zip(chunk.used).for_each(|(named, used)| *named |= used);
        }
        let none = [0; WORDS];
        let without = |a: &Bits, b: &Bits| std::array::from_fn(|word| a[word] & !b[word]);
        let mut wrong = Vec::new();
        for (chunk, used) in &self.chunks {
            let free = without(used, named.get(chunk).unwrap_or(&none));
            wrong.extend(set_in(*chunk, free).map(|physical| (physical, "it is in use, but free in the chunk table")));
        }
        for (chunk, named) in &named {
            let unused = without(named, self.chunks.get(chunk).unwrap_or(&none));
            let what = "it is allocated but unreferenced";
            wrong.extend(set_in(*chunk, unused).map(|physical| (physical, what)));
        }
        wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_reported_block_by_block() {
        let mut used = Used::default();
        assert!(used.add(5) && used.add(700) && !used.add(5));
        let mut chunks = [Chunk::new(0), Chunk::new(1)];
        chunks[0].used[0] |= 1 << 5;
        chunks[1].used[(700 - 512) / 64] |= 1 << (700 % 64);
        assert_eq!(used.compare(&chunks), []);
        chunks[1].used[0] = 1 << 9;
        let wrong = used.compare(&chunks);
        assert_eq!(wrong.iter().map(|(physical, _)| *physical).collect::<Vec<_>>(), [521]);
        let blocks: Vec<u64> = used.compare(&chunks[..1]).into_iter().map(|(physical, _)| physical).collect();
        assert_eq!(blocks, [700]);
    }
}
