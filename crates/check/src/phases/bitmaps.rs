//! Phase 5: compares the record of free space, the inode bitmaps and the free counts of the groups with the blocks and
//! inodes that the other phases found in use.
//!
//! Round 0 reads the bitmaps, but they can be compared only after all claims are made. In between they are stored as
//! words without trailing zeros, so that empty and full groups take no memory.
//!
//! With BLOCK_UNINIT a group has no block bitmap on the device: its own metadata is in use and nothing else. The flag
//! is trusted only if the descriptor checksum is right; otherwise the block is read, but the metadata still counts as
//! marked. With INODE_UNINIT nothing is in use.

pub(crate) mod free_space;

use crate::context::Context;
use crate::phases::superblock::descriptors;
use crate::problem::Problem;
use crate::report::Counts;
use crate::scan::walk::BitmapKind;
use crate::space_maps;
use crate::table::Code;
use crate::volume::Volume;
use format::group::{Group, GroupFlags, bitmap_checksum};
use format::{FsBlock, GroupNo};
use free_space::{Bits, FreeSpaceRecord, Recorded};
use std::ops::Range;
use std::sync::OnceLock;

/// Whether a bitmap is on the device and has to be read: `false` where a trusted descriptor states that it was never
/// written.
pub(crate) fn is_written(volume: &Volume, group: GroupNo, kind: BitmapKind) -> bool {
    if kind == BitmapKind::Block && volume.space_maps.is_some() {
        return false;
    }
    let never = match kind {
        BitmapKind::Block => GroupFlags::BLOCK_UNINIT,
        BitmapKind::Inode => GroupFlags::INODE_UNINIT,
    };
    let flagged = volume.group(group).is_some_and(|descriptor| descriptor.flags.contains(never));
    !(flagged && is_trusted(volume, group))
}

/// Whether the descriptor has a checksum, and it is right.
fn is_trusted(volume: &Volume, group: GroupNo) -> bool {
    let geometry = &volume.geometry;
    (geometry.metadata_csum || geometry.gdt_csum) && volume.untrusted.binary_search(&group).is_err()
}

/// The bitmaps of all groups as they are on the device.
pub(crate) struct Bitmaps<'a> {
    volume: &'a Volume,
    groups: Box<[Pair]>,
}

/// A group's two bitmaps; empty until they arrive.
#[derive(Default)]
struct Pair {
    blocks: OnceLock<Arrived>,
    inodes: OnceLock<Arrived>,
}

/// The record of a bitmap.
struct Arrived {
    bits: Bits,
    /// Whether all padding bits are set, as they should be.
    padded: bool,
    /// Checksum of the bitmap without padding; 0 without metadata_csum.
    checksum: u32,
}

impl<'a> Bitmaps<'a> {
    /// No bitmaps yet.
    pub(crate) fn new(volume: &'a Volume) -> Self {
        Self { volume, groups: volume.groups.iter().map(|_| Pair::default()).collect() }
    }

    /// Stores the block of a bitmap. May be called from several threads, once for each bitmap.
    pub(crate) fn put(&self, group: GroupNo, kind: BitmapKind, bytes: Result<&[u8], &blockdev::Error>) {
        let Some(pair) = self.groups.get(group.get() as usize) else { return };
        let arrived = match bytes {
            Ok(bytes) => self.take(group, kind, bytes),
            Err(error) => Arrived { bits: Bits::Unreadable(error.to_string().into()), padded: true, checksum: 0 },
        };
        // a second call would have the same bytes
        let _ = pair.of(kind).set(arrived);
    }

    fn take(&self, group: GroupNo, kind: BitmapKind, bytes: &[u8]) -> Arrived {
        let geometry = &self.volume.geometry;
        let (all, used) = match kind {
            BitmapKind::Block => (geometry.clusters_per_group(), clusters_in(self.volume, group)),
            BitmapKind::Inode => (geometry.inodes_per_group, geometry.inodes_per_group),
        };
        let padded = is_padded(bytes, used);
        let checksum = if geometry.metadata_csum { bitmap_checksum(geometry, bytes, all) } else { 0 };
        Arrived { bits: Bits::of(bytes, used), padded, checksum }
    }

    /// Compares all bitmaps and completes the counts. `blocks` is the number of blocks that exist: the groups of a
    /// native volume after them have metadata block numbers and no space.
    pub(crate) fn compare(&self, ctx: &Context<'_>, blocks: u64, counts: &mut Counts) {
        let geometry = &self.volume.geometry;
        let (mut free_clusters, mut free_inodes, mut space) = (0u64, 0u64, 0u64);
        for ((group, descriptor), pair) in geometry.group_numbers().zip(&self.volume.groups).zip(&self.groups) {
            let comparison = Comparison { ctx, group, descriptor, trusted: is_trusted(self.volume, group) };
            let free = u64::from(comparison.blocks(self));
            free_clusters += free;
            space += if geometry.group_blocks(group).start < blocks { free } else { 0 };
            free_inodes += u64::from(comparison.inodes(pair.inodes.get()));
        }
        let free_blocks = free_clusters * u64::from(geometry.cluster_blocks);
        let said = self.volume.disk.free_blocks_count();
        for problem in self.volume.space_maps.iter().flat_map(|maps| &maps.problems) {
            ctx.report(problem.clone());
        }
        if said != free_blocks {
            ctx.report(Problem::new(Code::FreeBlockCountWrong).found(said).expected(free_blocks));
        }
        let said = u64::from(self.volume.disk.s_free_inodes_count.get());
        if said != free_inodes {
            ctx.report(Problem::new(Code::FreeInodeCountWrong).found(said).expected(free_inodes));
        }
        counts.blocks_total = blocks;
        counts.blocks = blocks.saturating_sub(space * u64::from(geometry.cluster_blocks));
        counts.inodes_total = u64::from(geometry.inodes);
    }
}

impl FreeSpaceRecord for Bitmaps<'_> {
    fn of_group(&self, group: GroupNo, report: &dyn Fn(Problem)) -> Recorded<'_> {
        let (Some(descriptor), Some(pair)) = (self.volume.group(group), self.groups.get(group.get() as usize)) else {
            return Recorded::Unknown;
        };
        if let Some(maps) = &self.volume.space_maps {
            descriptor_without_bitmap(maps, group, descriptor, report);
            return maps.used(group).map_or(Recorded::Unknown, Recorded::Map);
        }
        let uninit = descriptor.flags.contains(GroupFlags::BLOCK_UNINIT);
        let own = if uninit { own_metadata(self.volume, group, descriptor) } else { Vec::new() };
        if uninit && is_trusted(self.volume, group) {
            return Recorded::NeverWritten(own);
        }
        let block = descriptor.block_bitmap;
        let Some(arrived) = readable(pair.blocks.get(), block, report) else { return Recorded::Unknown };
        if !arrived.padded {
            report(Problem::new(Code::BlockBitmapPaddingWrong).block(block));
        }
        let stored = descriptor.block_bitmap_csum;
        if self.volume.geometry.metadata_csum && !uninit && stored != arrived.checksum {
            let problem = Problem::new(Code::BlockBitmapChecksumWrong);
            report(problem.found(stored.into()).expected(arrived.checksum.into()));
        }
        Recorded::Used(&arrived.bits, own)
    }
}

/// Reports wrong descriptor fields about a block bitmap that does not exist.
fn descriptor_without_bitmap(
    maps: &space_maps::Recorded,
    group: GroupNo,
    descriptor: &Group,
    report: &dyn Fn(Problem),
) {
    let bitmap = maps.bitmap_block(group).map_or(0, FsBlock::get);
    let uninit = u64::from(descriptor.flags.contains(GroupFlags::BLOCK_UNINIT));
    let fields = [
        ("bg_block_bitmap", descriptor.block_bitmap.get(), bitmap),
        ("bg_free_blocks_count", descriptor.free_clusters.into(), 0),
        ("bg_block_bitmap_csum", descriptor.block_bitmap_csum.into(), 0),
        ("BLOCK_UNINIT", uninit, 0),
    ];
    for (name, found, expected) in fields.into_iter().filter(|(_, found, expected)| found != expected) {
        report(Problem::new(Code::SpaceMapDescriptorWrong).name(name).found(found).expected(expected));
    }
}

/// A bitmap that can be compared. One outside the volume was not read; phase 0 has reported it.
fn readable<'b>(arrived: Option<&'b Arrived>, block: FsBlock, report: &dyn Fn(Problem)) -> Option<&'b Arrived> {
    let arrived = arrived?;
    if let Bits::Unreadable(error) = &arrived.bits {
        report(Problem::new(Code::ReadError).block(block).name(error.as_bytes()));
        return None;
    }
    Some(arrived)
}

/// The clusters of a group that its superblock, descriptors, bitmaps and inode table occupy.
fn own_metadata(volume: &Volume, group: GroupNo, descriptor: &Group) -> Vec<u64> {
    let geometry = &volume.geometry;
    let blocks = geometry.group_blocks(group);
    let cluster_of =
        |block: u64| block.saturating_sub(geometry.first_data_block.into()) / u64::from(geometry.cluster_blocks);
    let first = cluster_of(blocks.start);
    let mut words = vec![0u64; clusters_in(volume, group).div_ceil(64) as usize];
    for own in descriptors::own_blocks(geometry, group, descriptor) {
        let own = own.start.max(blocks.start)..own.end.min(blocks.end);
        if own.is_empty() {
            continue;
        }
        for cluster in cluster_of(own.start)..cluster_of(own.end - 1) + 1 {
            let place = cluster.saturating_sub(first);
            if let Some(word) = words.get_mut((place / 64) as usize) {
                *word |= 1 << (place % 64);
            }
        }
    }
    words
}

impl Pair {
    fn of(&self, kind: BitmapKind) -> &OnceLock<Arrived> {
        match kind {
            BitmapKind::Block => &self.blocks,
            BitmapKind::Inode => &self.inodes,
        }
    }
}

/// Whether every bit from `bits` on is set.
fn is_padded(bytes: &[u8], bits: u32) -> bool {
    let (whole, rest) = (bits as usize / 8, bits % 8);
    let tail = bytes.get(whole..).unwrap_or_default();
    match tail.split_first() {
        Some((first, others)) => *first | !(0xFF << rest) as u8 == 0xFF && others.iter().all(|b| *b == 0xFF),
        None => true,
    }
}

/// The number of clusters in a group; the last group may be short.
fn clusters_in(volume: &Volume, group: GroupNo) -> u32 {
    let blocks = volume.geometry.group_blocks(group);
    // fits: at most `blocks_per_group`
    (blocks.end - blocks.start).div_ceil(u64::from(volume.geometry.cluster_blocks)) as u32
}

/// One group being compared.
struct Comparison<'a> {
    ctx: &'a Context<'a>,
    group: GroupNo,
    descriptor: &'a Group,
    /// Whether the uninit flags of the descriptor are trusted.
    trusted: bool,
}

impl Comparison<'_> {
    fn report(&self, problem: Problem) {
        self.ctx.report(problem.group(self.group));
    }

    /// Compares the record of free space with the claims; returns the number of free clusters.
    fn blocks(&self, record: &impl FreeSpaceRecord) -> u32 {
        let clusters = clusters_in(self.ctx.volume, self.group);
        let expected = |n: usize| self.ctx.claims.word(self.group, n);
        let word = |words: &[u64], n: usize| words.get(n).copied().unwrap_or(0);
        match record.of_group(self.group, &|problem| self.report(problem)) {
            Recorded::Unknown => {}
            Recorded::NeverWritten(own) => {
                let mut in_use = false;
                differences(clusters, |n| word(&own, n), expected, |_, _| in_use = true);
                if in_use {
                    self.report(Problem::new(Code::GroupBlockUninitInUse));
                }
            }
            Recorded::Map(used) => {
                let found = |n: usize| word(used, n);
                differences(clusters, found, expected, |run, marked| self.report(self.block_run(&run, marked)));
            }
            Recorded::Used(bits, own) => {
                let found = |n: usize| bits.word(n) | word(&own, n);
                differences(clusters, found, expected, |run, marked| self.report(self.block_run(&run, marked)));
            }
        }
        let used: u32 =
            (0..clusters.div_ceil(64)).map(|n| (expected(n as usize) & mask(clusters, n)).count_ones()).sum();
        let free = clusters.saturating_sub(used);
        // with space maps the count is not in the descriptor
        if self.ctx.volume.space_maps.is_none() && self.descriptor.free_clusters != free {
            let said = self.descriptor.free_clusters;
            self.report(Problem::new(Code::GroupFreeBlockCountWrong).found(said.into()).expected(free.into()));
        }
        free
    }

    /// Compares the inode bitmap; returns the number of free inodes.
    fn inodes(&self, arrived: Option<&Arrived>) -> u32 {
        let geometry = &self.ctx.volume.geometry;
        let per_group = geometry.inodes_per_group;
        let (used, directories) = self.ctx.inodes.used_in_group(self.group);
        let count: u32 = used.iter().map(|word| word.count_ones()).sum();
        let checksums = geometry.metadata_csum || geometry.gdt_csum;
        let flagged = self.descriptor.flags.contains(GroupFlags::INODE_UNINIT);
        // without checksums neither the flag nor the count is trusted, but both are compared with the inodes in use
        let unused = self.descriptor.itable_unused;
        let first_unused = per_group.saturating_sub(unused);
        let beyond = !checksums && unused > 0 && contains_any_from(&used, first_unused);
        if flagged && count > 0 || beyond {
            self.report(Problem::new(Code::GroupInodeUninitInUse));
        }
        let uninit = checksums && flagged;
        if !(uninit && self.trusted)
            && let Some(arrived) = readable(arrived, self.descriptor.inode_bitmap, &|problem| self.report(problem))
        {
            if !arrived.padded {
                self.report(Problem::new(Code::InodeBitmapPaddingWrong).block(self.descriptor.inode_bitmap));
            }
            if !uninit {
                let stored = self.descriptor.inode_bitmap_csum;
                if geometry.metadata_csum && stored != arrived.checksum {
                    let problem = Problem::new(Code::InodeBitmapChecksumWrong);
                    self.report(problem.found(stored.into()).expected(arrived.checksum.into()));
                }
                let expected = |n: usize| used.get(n).copied().unwrap_or(0);
                let found = |n: usize| arrived.bits.word(n);
                differences(per_group, found, expected, |run, marked| self.report(self.inode_run(&run, marked)));
            }
        }
        let free = per_group.saturating_sub(count);
        let pairs = [
            (Code::GroupFreeInodeCountWrong, self.descriptor.free_inodes, free),
            (Code::GroupDirectoryCountWrong, self.descriptor.directories, directories),
        ];
        for (code, said, counted) in pairs {
            if said != counted {
                self.report(Problem::new(code).found(said.into()).expected(counted.into()));
            }
        }
        free
    }

    fn block_run(&self, run: &Range<u32>, marked: bool) -> Problem {
        let geometry = &self.ctx.volume.geometry;
        let ratio = u64::from(geometry.cluster_blocks);
        let first = geometry.group_start(self.group).get() + u64::from(run.start) * ratio;
        let blocks = u64::from(run.end - run.start) * ratio;
        let code = match (marked, blocks) {
            (true, 1) => Code::BlockMarkedButUnused,
            (true, _) => Code::BlockRangeMarkedButUnused,
            (false, 1) => Code::BlockUsedButUnmarked,
            (false, _) => Code::BlockRangeUsedButUnmarked,
        };
        Problem::new(code).block(FsBlock(first)).count(blocks)
    }

    fn inode_run(&self, run: &Range<u32>, marked: bool) -> Problem {
        let inodes = run.end - run.start;
        let code = match (marked, inodes) {
            (true, 1) => Code::InodeMarkedButUnused,
            (true, _) => Code::InodeRangeMarkedButUnused,
            (false, 1) => Code::InodeUsedButUnmarked,
            (false, _) => Code::InodeRangeUsedButUnmarked,
        };
        Problem::new(code).inode(self.ctx.volume.geometry.inode_at(self.group, run.start)).count(inodes.into())
    }
}

/// Whether a bit from `first` on is set.
fn contains_any_from(words: &[u64], first: u32) -> bool {
    let later = words.iter().skip(first as usize / 64);
    later.enumerate().any(|(n, word)| if n == 0 { word >> (first % 64) != 0 } else { *word != 0 })
}

/// Mask of the valid bits in word `n` of a bitmap of `bits` bits.
fn mask(bits: u32, n: u32) -> u64 {
    match bits.saturating_sub(n * 64) {
        0 => 0,
        left @ 1..64 => (1 << left) - 1,
        _ => u64::MAX,
    }
}

/// Calls `run` with each maximal run of bits that differ in one direction; `true` where `found` has them set.
fn differences(
    bits: u32,
    found: impl Fn(usize) -> u64,
    expected: impl Fn(usize) -> u64,
    mut run: impl FnMut(Range<u32>, bool),
) {
    let mut open: Option<(Range<u32>, bool)> = None;
    for n in 0..bits.div_ceil(64) {
        let found = found(n as usize);
        let mut differ = (found ^ expected(n as usize)) & mask(bits, n);
        while differ != 0 {
            let start = differ.trailing_zeros();
            let marked = found >> start & 1 == 1;
            let same = differ & if marked { found } else { !found };
            let length = (same >> start).trailing_ones();
            let at = n * 64 + start;
            match &mut open {
                Some((range, direction)) if range.end == at && *direction == marked => range.end += length,
                _ => {
                    if let Some((range, marked)) = open.replace((at..at + length, marked)) {
                        run(range, marked);
                    }
                }
            }
            differ &= if start + length >= 64 { 0 } else { u64::MAX << (start + length) };
        }
    }
    if let Some((range, marked)) = open {
        run(range, marked);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(bits: u32, found: &[u64], expected: &[u64]) -> Vec<(Range<u32>, bool)> {
        let word = |words: &[u64], n: usize| words.get(n).copied().unwrap_or(0);
        let mut all = Vec::new();
        differences(bits, |n| word(found, n), |n| word(expected, n), |range, marked| all.push((range, marked)));
        all
    }

    #[test]
    fn runs_cross_words_and_end_where_the_direction_changes() {
        assert_eq!(runs(200, &[7, 1 << 63], &[7, 1 << 63]), []);
        assert_eq!(runs(200, &[u64::MAX, 1], &[0, 0]), [(0..65, true)]);
        assert_eq!(runs(200, &[1 << 63, 0], &[0, 3]), [(63..64, true), (64..66, false)]);
        assert_eq!(runs(70, &[0, u64::MAX], &[0, 0]), [(64..70, true)]);
        assert_eq!(runs(128, &[0b0110, 0], &[0b1001, 0]), [(0..1, false), (1..3, true), (3..4, false)]);
        assert_eq!(runs(0, &[1], &[0]), []);
    }

    #[test]
    fn runs_agree_with_a_walk_bit_by_bit() {
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state & state << 17 | state >> 40
        };
        for bits in [1, 63, 64, 65, 500] {
            let (found, expected): (Vec<_>, Vec<_>) = (0..8).map(|_| (next(), next())).unzip();
            let bit = |words: &[u64], n: u32| words[n as usize / 64] >> (n % 64) & 1 == 1;
            let slow = (0..bits).filter(|n| bit(&found, *n) != bit(&expected, *n));
            let slow: Vec<_> = slow.map(|n| (n, bit(&found, n))).collect();
            let runs = runs(bits, &found, &expected);
            assert!(runs.windows(2).all(|w| w[0].0.end < w[1].0.start || w[0].1 != w[1].1));
            let fast: Vec<_> = runs.into_iter().flat_map(|(r, marked)| r.map(move |n| (n, marked))).collect();
            assert_eq!(fast, slow);
        }
    }

    #[test]
    fn padding_is_all_bits_beyond_the_last() {
        assert!(is_padded(&[0, 0xFF, 0xFF], 8));
        assert!(is_padded(&[0, 0xF0, 0xFF], 12));
        assert!(!is_padded(&[0, 0xE0, 0xFF], 12));
        assert!(!is_padded(&[0, 0xFF, 0x7F], 8));
        assert!(is_padded(&[0, 0], 16));
    }

    #[test]
    fn bits_from_a_place_on() {
        let words = [1 << 5, 0, 1 << 63];
        assert!(contains_any_from(&words, 0) && contains_any_from(&words, 5) && contains_any_from(&words, 191));
        assert!(!contains_any_from(&words[..2], 6) && !contains_any_from(&words, 192) && !contains_any_from(&[], 0));
    }

    #[test]
    fn empty_and_full_bitmaps_store_no_words() {
        let words = |bytes: &[u8], bits| match Bits::of(bytes, bits) {
            Bits::Full => None,
            Bits::Words(words) => Some(words.into_vec()),
            Bits::Unreadable(_) => panic!("was read"),
        };
        assert_eq!(words(&[0xFF; 16], 100), None);
        assert_eq!(words(&[0; 16], 100), Some(vec![]));
        assert_eq!(words(&[1; 16], 60), Some(vec![0x0101_0101_0101_0101]));
        let mut nearly = [0xFF; 16];
        nearly[12] = 0xF7;
        assert_eq!(words(&nearly, 100), Some(vec![u64::MAX, 0x7_FFFF_FFFF]));
        nearly[12] = 0x1F;
        assert_eq!(words(&nearly, 100), None);
    }
}
