//! The block map: which blocks are in use, and which are claimed more than once.
//!
//! One bit a cluster (a block, where there is no bigalloc), in a bitmap per group that is allocated at the first claim
//! in the group. A claim of bits already set is recorded, once for the whole claim, and a second bitmap of the group
//! has the clusters that were claimed again: a file can claim a hundred thousand blocks by a few bytes, so no list may
//! have an entry for each of them. The owners are determined afterwards, see [`crate::phases::multiply_claimed`].
//!
//! The scan is divided into segments, and at the end of each the block map is saved. The segment in which a block was
//! first claimed is the one before the first saved map that has it. Groups in which nothing was claimed since the last
//! saved map are not copied, so in a scan in disk order all saved maps together take little more than one bitmap.
//!
//! The words are atomic, and there is no lock: threads claim in the same few groups all the time, and a lock for each
//! group was an eighth of the whole check, most of it spent on waiting for the other processor's cache.

use format::superblock::Geometry;
use format::{GroupNo, InodeNo};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// The blocks in use.
pub(crate) struct Claims {
    /// The claimed clusters of each group as bits, the lowest first; unallocated for a group without claims.
    groups: Box<[Claimed]>,
    /// Claims on clusters that were claimed before.
    again: Mutex<Vec<Again>>,
    /// The segment that is being read.
    segment: AtomicU32,
    saved_maps: Mutex<SavedMaps>,
    first: u64,
    cluster_blocks: u64,
    clusters_per_group: u64,
    clusters: u64,
}

/// A claim on clusters that were claimed before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Again {
    /// From the first of these clusters to the last; those in between may have been claimed for the first time.
    pub(crate) clusters: Range<u64>,
    /// The claiming inode; 0 for the volume's own metadata.
    pub(crate) inode: InodeNo,
    /// The segment in which it was made.
    pub(crate) segment: u32,
}

/// The claimed clusters of a group.
#[derive(Default)]
struct Claimed {
    /// Unallocated where none is claimed.
    bits: OnceLock<Box<[AtomicU64]>>,
    /// Those that were claimed more than once; unallocated where there are none.
    again: OnceLock<Box<[AtomicU64]>>,
    /// Something was claimed since the last saved map.
    changed: AtomicBool,
}

/// The claimed clusters at the ends of segments.
#[derive(Default)]
struct SavedMaps {
    /// For each group, its bits at the end of every segment in which they changed; the segments ascend.
    groups: Vec<Vec<(u32, Box<[u64]>)>>,
    /// Memory used, in bytes.
    bytes: u64,
}

impl Claims {
    /// Nothing is claimed.
    pub(crate) fn new(geometry: &Geometry) -> Self {
        let first = u64::from(geometry.first_data_block);
        let cluster_blocks = u64::from(geometry.cluster_blocks);
        Self {
            groups: geometry.group_numbers().map(|_| Claimed::default()).collect(),
            again: Mutex::new(Vec::new()),
            segment: AtomicU32::new(0),
            saved_maps: Mutex::default(),
            first,
            cluster_blocks,
            clusters_per_group: u64::from(geometry.clusters_per_group()),
            clusters: (geometry.blocks - first).div_ceil(cluster_blocks),
        }
    }

    /// The cluster of `block`, counted from the first group's start.
    #[inline]
    pub(crate) fn cluster_of(&self, block: u64) -> u64 {
        block.saturating_sub(self.first) / self.cluster_blocks
    }

    /// The clusters of `blocks`.
    #[inline]
    pub(crate) fn clusters_of(&self, blocks: &Range<u64>) -> Range<u64> {
        if blocks.is_empty() {
            return 0..0;
        }
        let end = self.cluster_of(blocks.end - 1) + 1;
        self.cluster_of(blocks.start).min(end)..end.min(self.clusters)
    }

    /// Claims clusters for the volume's own metadata; `true` where some were claimed before. Clusters outside the
    /// volume are ignored.
    pub(crate) fn claim(&self, clusters: Range<u64>) -> bool {
        self.claim_for(InodeNo(0), clusters)
    }

    /// As [`Claims::claim`], for an inode.
    pub(crate) fn claim_for(&self, inode: InodeNo, clusters: Range<u64>) -> bool {
        let mut at = clusters.start;
        let end = clusters.end.min(self.clusters);
        let mut again: Option<Range<u64>> = None;
        while at < end {
            let group = at / self.clusters_per_group;
            let base = group * self.clusters_per_group;
            let stop = end.min(base + self.clusters_per_group);
            let words = self.clusters_per_group.div_ceil(64);
            let claimed = self.group(group);
            let bits = claimed.bits.get_or_init(|| unset(words));
            if !claimed.changed.load(Ordering::Relaxed) {
                claimed.changed.store(true, Ordering::Relaxed);
            }
            let doubles = set_bits(bits, at - base..stop - base, |n, both| {
                add_bits(claimed.again.get_or_init(|| unset(words)), n, both);
            });
            if let Some(doubles) = doubles {
                let start = again.map_or(base + doubles.start, |before| before.start);
                again = Some(start..base + doubles.end);
            }
            at = stop;
        }
        let Some(clusters) = again else { return false };
        let segment = self.segment.load(Ordering::Relaxed);
        self.again.lock().push(Again { clusters, inode, segment });
        true
    }

    /// Whether a cluster is claimed.
    pub(crate) fn contains(&self, cluster: u64) -> bool {
        if cluster >= self.clusters {
            return false;
        }
        let place = cluster % self.clusters_per_group;
        word(self.group(cluster / self.clusters_per_group), (place / 64) as usize) >> (place % 64) & 1 == 1
    }

    /// The claimed clusters of a group: 64 of them from `64 * n` on, the lowest first.
    #[inline]
    pub(crate) fn word(&self, group: GroupNo, n: usize) -> u64 {
        word(self.group(u64::from(group.get())), n)
    }

    /// The clusters that were claimed more than once: ascending, disjoint.
    pub(crate) fn conflicts(&self) -> Vec<Range<u64>> {
        let mut merged: Vec<Range<u64>> = Vec::new();
        for (group, claimed) in self.groups.iter().enumerate() {
            let base = group as u64 * self.clusters_per_group;
            for (n, word) in claimed.again.get().into_iter().flatten().enumerate() {
                let mut left = word.load(Ordering::Relaxed);
                while left != 0 {
                    let low = u64::from(left.trailing_zeros());
                    let run = u64::from((left >> low).trailing_ones());
                    left &= if low + run >= 64 { 0 } else { u64::MAX << (low + run) };
                    let start = base + n as u64 * 64 + low;
                    match merged.last_mut() {
                        Some(last) if last.end == start => last.end += run,
                        _ => merged.push(start..start + run),
                    }
                }
            }
        }
        merged
    }

    /// Ends a segment and saves what was claimed until now; returns its number. No thread claims meanwhile.
    pub(crate) fn end_segment(&self) -> u32 {
        let segment = self.segment.fetch_add(1, Ordering::Relaxed);
        let mut saved_maps = self.saved_maps.lock();
        saved_maps.groups.resize_with(self.groups.len(), Vec::new);
        for (n, claimed) in self.groups.iter().enumerate() {
            if let Some(bits) = claimed.bits.get().filter(|_| claimed.changed.swap(false, Ordering::Relaxed)) {
                saved_maps.bytes += bits.len() as u64 * 8;
                let copy = bits.iter().map(|word| word.load(Ordering::Relaxed)).collect();
                if let Some(saved) = saved_maps.groups.get_mut(n) {
                    saved.push((segment, copy));
                }
            }
        }
        segment
    }

    /// Bytes that the saved maps take.
    pub(crate) fn saved_bytes(&self) -> u64 {
        self.saved_maps.lock().bytes
    }

    /// Whether a cluster was claimed in the first segment, which is the volume's own metadata.
    pub(crate) fn is_metadata(&self, cluster: u64) -> bool {
        self.first_claimed(cluster) == 0
    }

    /// The segment in which a cluster was claimed first; the current one where no saved map has it.
    fn first_claimed(&self, cluster: u64) -> u32 {
        let place = cluster % self.clusters_per_group;
        let saved_maps = self.saved_maps.lock();
        let saved = saved_maps.groups.get((cluster / self.clusters_per_group) as usize).map_or(&[][..], |saved| saved);
        let has = |bits: &[u64]| bits.get((place / 64) as usize).is_some_and(|word| word >> (place % 64) & 1 == 1);
        // bits are only ever added
        let at = saved.partition_point(|(_, bits)| !has(bits));
        saved.get(at).map_or_else(|| self.segment.load(Ordering::Relaxed), |(segment, _)| *segment)
    }

    /// The segments in which clusters were claimed first that were claimed more than once.
    pub(crate) fn conflicting_segments(&self) -> BTreeSet<u32> {
        self.conflicts().into_iter().flatten().map(|cluster| self.first_claimed(cluster)).collect()
    }

    /// Takes the list of conflicting claims and returns those made in segments other than these.
    pub(crate) fn take_again_outside(&self, segments: &BTreeSet<u32>) -> Vec<Again> {
        let mut all = std::mem::take(&mut *self.again.lock());
        all.retain(|again| !segments.contains(&again.segment));
        all
    }

    /// Forgets all claims, conflicts and saved maps. No thread claims meanwhile.
    pub(crate) fn clear(&self) {
        for claimed in &self.groups {
            claimed.changed.store(false, Ordering::Relaxed);
            for bits in [&claimed.bits, &claimed.again] {
                bits.get().into_iter().flatten().for_each(|word| word.store(0, Ordering::Relaxed));
            }
        }
        self.again.lock().clear();
        *self.saved_maps.lock() = SavedMaps::default();
        self.segment.store(0, Ordering::Relaxed);
    }

    fn group(&self, index: u64) -> &Claimed {
        // `claim` and `contains` stay below `clusters`, so the group exists
        &self.groups[(index as usize).min(self.groups.len() - 1)]
    }
}

#[inline]
fn word(claimed: &Claimed, n: usize) -> u64 {
    claimed.bits.get().and_then(|bits| bits.get(n)).map_or(0, |word| word.load(Ordering::Relaxed))
}

/// A bitmap of `words` words without a bit.
fn unset(words: u64) -> Box<[AtomicU64]> {
    (0..words).map(|_| AtomicU64::new(0)).collect()
}

/// Sets bits of word `n`. Most were set before where very many claim the same blocks, so the word is read first.
fn add_bits(bits: &[AtomicU64], n: usize, added: u64) {
    if let Some(word) = bits.get(n).filter(|word| word.load(Ordering::Relaxed) & added != added) {
        word.fetch_or(added, Ordering::Relaxed);
    }
}

/// Sets a range of bits; reports those that were set before, by word, and returns the range from the first to the last
/// of them.
fn set_bits(bits: &[AtomicU64], range: Range<u64>, mut double: impl FnMut(usize, u64)) -> Option<Range<u64>> {
    let mut doubles: Option<Range<u64>> = None;
    let mut at = range.start;
    while at < range.end {
        let low = at % 64;
        let n = (64 - low).min(range.end - at);
        let mask = if n == 64 { u64::MAX } else { ((1u64 << n) - 1) << low };
        let Some(word) = bits.get((at / 64) as usize) else { break };
        let both = word.fetch_or(mask, Ordering::Relaxed) & mask;
        if both != 0 {
            double((at / 64) as usize, both);
            let base = at - low;
            let start = doubles.map_or(base + u64::from(both.trailing_zeros()), |before| before.start);
            doubles = Some(start..base + 64 - u64::from(both.leading_zeros()));
        }
        at += n;
    }
    doubles
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A volume of 1000 blocks of 1 KiB in groups of 256.
    pub(crate) fn geometry() -> Geometry {
        let mut sb = [0u8; 1024];
        let mut put = |at: usize, bytes: &[u8]| sb[at..at + bytes.len()].copy_from_slice(bytes);
        put(0x00, &2048u32.to_le_bytes()); // inodes
        put(0x04, &1000u32.to_le_bytes()); // blocks
        put(0x14, &1u32.to_le_bytes()); // first data block
        put(0x20, &256u32.to_le_bytes()); // blocks in a group
        put(0x24, &256u32.to_le_bytes());
        put(0x28, &512u32.to_le_bytes()); // inodes in a group
        put(0x38, &0xEF53u16.to_le_bytes());
        Geometry::of(&format::superblock::DiskSuperblock::from_slice(&sb).unwrap()).unwrap()
    }

    #[test]
    fn agrees_with_a_set_of_numbers() {
        let claims = Claims::new(&geometry());
        let mut model = BTreeSet::new();
        let mut twice = BTreeSet::new();
        for (start, len) in [(0u64, 3u64), (60, 10), (250, 20), (100, 200), (2, 1), (255, 1), (998, 10), (64, 64)] {
            let mut conflict = false;
            for n in start..(start + len).min(999) {
                if !model.insert(n) {
                    twice.insert(n);
                    conflict = true;
                }
            }
            assert_eq!(claims.claim(start..start + len), conflict, "{start}+{len}");
        }
        for n in 0..1100 {
            assert_eq!(claims.contains(n), model.contains(&n), "{n}");
        }
        assert_eq!(claims.conflicts().into_iter().flatten().collect::<Vec<_>>(), twice.into_iter().collect::<Vec<_>>());
    }

    #[test]
    fn the_first_claim_is_found_in_its_segment() {
        let claims = Claims::new(&geometry());
        claims.claim(0..10);
        assert_eq!(claims.end_segment(), 0);
        claims.claim(100..110);
        claims.claim(300..310);
        assert_eq!(claims.end_segment(), 1);
        assert_eq!(claims.end_segment(), 2);
        claims.claim_for(InodeNo(12), 101..102);
        assert_eq!(claims.end_segment(), 3);
        claims.claim(400..500);
        let first = [0, 9, 100, 109, 300, 450].map(|cluster| claims.first_claimed(cluster));
        assert_eq!(first, [0, 0, 1, 1, 1, 4]);
        assert!(claims.is_metadata(9) && !claims.is_metadata(100));
        assert_eq!(claims.conflicting_segments(), [1].into());
        let again = claims.take_again_outside(&[1].into());
        assert_eq!(again, [Again { clusters: 101..102, inode: InodeNo(12), segment: 3 }]);
        assert!(claims.take_again_outside(&[1].into()).is_empty(), "the list was taken");
        claims.claim_for(InodeNo(13), 102..103);
        assert!(claims.take_again_outside(&[1, 4].into()).is_empty());
        assert_eq!(claims.conflicts().pop(), Some(101..103));
        assert_eq!(claims.saved_bytes(), 32 * 4, "a group that did not change is not copied");
        claims.clear();
        assert!(claims.conflicts().is_empty() && !claims.contains(5));
        assert!(!claims.claim(0..10));
    }

    #[test]
    fn a_claim_on_many_blocks_claimed_before_is_one_record() {
        let claims = Claims::new(&geometry());
        // every other cluster, so that no two of those claimed again are neighbours
        (0..900).step_by(2).for_each(|cluster| _ = claims.claim(cluster..cluster + 1));
        assert!(!claims.claim(901..902));
        for n in 0..1000 {
            assert!(claims.claim_for(InodeNo(n + 12), 5..900));
        }
        assert_eq!((claims.conflicts().len(), claims.conflicts().pop()), (1, Some(5..900)));
        let again = claims.take_again_outside(&BTreeSet::new());
        assert_eq!(again.len(), 1000);
        assert_eq!(again.first(), Some(&Again { clusters: 6..899, inode: InodeNo(12), segment: 0 }));
        assert_eq!(again.last(), Some(&Again { clusters: 5..900, inode: InodeNo(1011), segment: 0 }));
    }
}
