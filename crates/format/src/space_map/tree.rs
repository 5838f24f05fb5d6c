//! Trees: the free space of a metablockgroup, a container for each of its groups in the smallest of four formats.
//!
//! A tree is a header, a [`DiskContainer`] for each group, and the data of the containers, in the same order and
//! without gaps: none for an empty or full group, four bytes per run, or one bit per block.

use super::SpaceMaps;
use super::head::Head;
use crate::checksum::crc32c;
use crate::{Error, GroupNo, Result, Structure};
use std::ops::Range;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

/// `t_magic`: "SMtr" in ASCII.
pub const MAGIC: u32 = 0x7274_4D53;
/// Maximum number of blocks of a group with runs: a start has 16 bits.
pub const MOST_UNITS: u32 = 1 << 16;

disk_struct! {
    /// The start of a tree.
    pub struct DiskTree[24] {
        /// 0x72744D53
        0x00 t_magic: U32,
        /// the metablockgroup
        0x04 t_number: U32,
        /// records of the ring up to this sequence are in the tree
        0x08 t_sequence: U64,
        /// containers that follow
        0x10 t_groups: U32,
        /// bytes of the tree, this header included
        0x14 t_length: U32,
    }
}

disk_struct! {
    /// The free space of a group in a tree.
    pub struct DiskContainer[8] {
        /// 0 no block is free, 1 all are, 2 runs, 3 bits
        0x00 c_form: U16,
        /// runs; 0 in other formats
        0x02 c_runs: U16,
        /// free blocks
        0x04 c_free: U32,
    }
}

disk_struct! {
    /// A run of free blocks of a group.
    pub struct DiskFreeRun[4] {
        /// the first block, counted from the group's start
        0x00 fr_start: U16,
        /// the number of blocks minus 1
        0x02 fr_length: U16,
    }
}

/// The free blocks of a group, counted from its start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FreeBlocks {
    /// No block is free.
    Empty,
    /// All blocks are free.
    Full,
    /// Runs: ascending, and not adjacent.
    Runs(Vec<Range<u32>>),
    /// A bit for each block, set for a free one, the lowest of a byte first. Bits after the last block are clear.
    Bits(Vec<u8>),
}

impl FreeBlocks {
    /// The free runs of a group of `blocks` blocks, ascending.
    pub fn runs(&self, units: u32) -> Box<dyn Iterator<Item = Range<u32>> + '_> {
        match self {
            FreeBlocks::Empty => Box::new(std::iter::empty()),
            FreeBlocks::Full => Box::new(std::iter::once(0..units).filter(|run| !run.is_empty())),
            FreeBlocks::Runs(runs) => Box::new(runs.iter().cloned()),
            FreeBlocks::Bits(bits) => {
                let is_free = |at: u32| bits.get(at as usize / 8).is_some_and(|byte| byte >> (at % 8) & 1 == 1);
                let mut at = 0;
                Box::new(std::iter::from_fn(move || {
                    let start = (at..units).find(|at| is_free(*at))?;
                    at = (start..units).find(|at| !is_free(*at)).unwrap_or(units);
                    Some(start..at)
                }))
            }
        }
    }
}

/// The validated free space of a metablockgroup.
///
/// Guarantees: a container for each of its groups; runs ascend, are not adjacent and lie inside their group; counts and
/// the longest run are those of the head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    /// The container of each group, in order.
    pub groups: Vec<FreeBlocks>,
}

impl Tree {
    /// Reads a tree from the bytes of the head's valid location, at least as many as its length.
    ///
    /// # Errors
    /// `Corrupt` if a guarantee of the type does not hold.
    pub fn parse(place: &[u8], maps: &SpaceMaps, head: &Head) -> Result<Self> {
        let bad = |what| Error::corrupt(Structure::SpaceMap, what);
        let bytes = place.get(..head.length as usize).ok_or_else(|| bad("a tree is cut short"))?;
        if crc32c(maps.geometry().checksum_seed, bytes) != head.tree_checksum {
            return Err(bad("the checksum of a tree does not match"));
        }
        let (header, rest) = DiskTree::read_from_prefix(bytes).map_err(|_| bad("a tree is cut short"))?;
        if header.t_magic.get() != MAGIC {
            return Err(bad("a tree has no magic number"));
        }
        let groups = maps.groups_of(head.number);
        let says = (header.t_number.get(), header.t_sequence.get(), header.t_length.get(), header.t_groups.get());
        if says != (head.number, head.sequence, head.length, groups.len() as u32) {
            return Err(bad("a tree does not match its head"));
        }
        let index = rest.get(..groups.len() * DiskContainer::SIZE).ok_or_else(|| bad("a tree is cut short"))?;
        let mut data = rest.get(index.len()..).unwrap_or_default();
        let (mut sums, mut all) = (Sums::default(), Vec::with_capacity(groups.len()));
        for (group, entry) in groups.zip(index.chunks_exact(DiskContainer::SIZE)) {
            let entry = DiskContainer::read_from_bytes(entry).map_err(|_| bad("a tree is cut short"))?;
            let units = maps.units(GroupNo(group));
            let blocks = take(&mut data, &entry, units)?;
            let free = sums.add(blocks.runs(units), units);
            if free != entry.c_free.get() {
                return Err(bad("a container has a wrong count of free blocks"));
            }
            all.push(blocks);
        }
        if !data.is_empty() {
            return Err(bad("extra bytes follow the containers of a tree"));
        }
        if (sums.free, sums.longest) != (head.free, head.longest) {
            return Err(bad("the counts of a tree are not those of its head"));
        }
        Ok(Self { groups: all })
    }
}

/// Reads a container from the front of the rest of the tree.
fn take(data: &mut &[u8], entry: &DiskContainer, units: u32) -> Result<FreeBlocks> {
    let bad = |what| Error::corrupt(Structure::SpaceMap, what);
    let (form, runs) = (entry.c_form.get(), usize::from(entry.c_runs.get()));
    let length = match form {
        0 | 1 if runs == 0 => 0,
        2 => runs * DiskFreeRun::SIZE,
        3 if runs == 0 => units.div_ceil(8) as usize,
        _ => return Err(bad("a container has an unknown form")),
    };
    let (bytes, rest) = data.split_at_checked(length).ok_or_else(|| bad("a container is cut short"))?;
    *data = rest;
    match form {
        0 => Ok(FreeBlocks::Empty),
        1 => Ok(FreeBlocks::Full),
        2 => {
            let mut end = None;
            let mut all = Vec::with_capacity(runs);
            for run in
                bytes.chunks_exact(DiskFreeRun::SIZE).filter_map(|bytes| DiskFreeRun::read_from_bytes(bytes).ok())
            {
                let start = u32::from(run.fr_start.get());
                let run = start..start + u32::from(run.fr_length.get()) + 1;
                if end.is_some_and(|end| run.start <= end) || run.end > units {
                    return Err(bad("the runs of a container overlap, or lie outside the group"));
                }
                end = Some(run.end);
                all.push(run);
            }
            Ok(FreeBlocks::Runs(all))
        }
        _ => {
            let behind = units % 8;
            if behind > 0 && bytes.last().is_some_and(|byte| byte >> behind != 0) {
                return Err(bad("the bits of a container reach beyond the group"));
            }
            Ok(FreeBlocks::Bits(bytes.to_vec()))
        }
    }
}

/// The totals of a tree over its groups, as in its head.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    free: u64,
    longest: u32,
    /// The length of the free run at the end of the last group.
    open: u32,
}

impl Sums {
    /// Adds the next group and returns its number of free blocks.
    fn add(&mut self, runs: impl Iterator<Item = Range<u32>>, units: u32) -> u32 {
        let (mut free, mut open) = (0, 0);
        for run in runs {
            let length = run.end - run.start;
            free += length;
            let whole = if run.start == 0 { self.open.saturating_add(length) } else { length };
            self.longest = self.longest.max(whole);
            if run.end == units {
                open = whole;
            }
        }
        self.free += u64::from(free);
        self.open = open;
        free
    }
}

/// A writer of the bytes of a tree, group by group.
#[derive(Debug)]
pub struct TreeWriter<'a> {
    maps: &'a SpaceMaps,
    number: u32,
    group: u32,
    index: Vec<u8>,
    data: Vec<u8>,
    sums: Sums,
}

impl<'a> TreeWriter<'a> {
    /// The tree of a metablockgroup.
    #[must_use]
    pub fn new(maps: &'a SpaceMaps, number: u32) -> Self {
        let group = maps.groups_of(number).start;
        Self { maps, number, group, index: Vec::new(), data: Vec::new(), sums: Sums::default() }
    }

    /// Adds the next group's free runs, which are ascending, not adjacent and inside it. Parts beyond it are omitted.
    pub fn group(&mut self, free: impl Iterator<Item = Range<u32>>) {
        let units = self.maps.units(GroupNo(self.group));
        let runs: Vec<Range<u32>> =
            free.map(|run| run.start.min(units)..run.end.min(units)).filter(|run| !run.is_empty()).collect();
        let count = self.sums.add(runs.iter().cloned(), units);
        let bits = units.div_ceil(8) as usize;
        let (form, listed) = if runs.is_empty() {
            (0, 0)
        } else if count == units {
            (1, 0)
        } else if runs.len() * DiskFreeRun::SIZE < bits && units <= MOST_UNITS {
            for run in &runs {
                let (start, length) = (run.start as u16, (run.end - run.start - 1) as u16);
                let run = DiskFreeRun { fr_start: start.into(), fr_length: length.into() };
                self.data.extend_from_slice(run.as_bytes());
            }
            (2, runs.len() as u16)
        } else {
            let start = self.data.len();
            self.data.resize(start + bits, 0);
            let space = self.data.get_mut(start..).unwrap_or_default();
            for run in &runs {
                set_bits(space, run);
            }
            (3, 0)
        };
        let entry = DiskContainer { c_form: form.into(), c_runs: listed.into(), c_free: count.into() };
        self.index.extend_from_slice(entry.as_bytes());
        self.group += 1;
    }

    /// The tree's bytes, which always fit into its location, and `head` with sequence, length, checksum and counts for
    /// them. Groups that were not added have no free block.
    #[must_use]
    pub fn finish(mut self, sequence: u64, head: &mut Head) -> Vec<u8> {
        while self.group < self.maps.groups_of(self.number).end {
            self.group(std::iter::empty());
        }
        let length = (DiskTree::SIZE + self.index.len() + self.data.len()) as u32;
        let header = DiskTree {
            t_magic: MAGIC.into(),
            t_number: self.number.into(),
            t_sequence: sequence.into(),
            t_groups: ((self.index.len() / DiskContainer::SIZE) as u32).into(),
            t_length: length.into(),
        };
        let bytes = [header.as_bytes(), &self.index, &self.data].concat();
        *head = Head {
            number: self.number,
            sequence,
            length,
            tree_checksum: crc32c(self.maps.geometry().checksum_seed, &bytes),
            longest: self.sums.longest,
            free: self.sums.free,
            ..*head
        };
        bytes
    }
}

/// Sets the bits of a run, by whole bytes where possible.
fn set_bits(bytes: &mut [u8], run: &Range<u32>) {
    let mut at = run.start;
    while at < run.end {
        let Some(byte) = bytes.get_mut(at as usize / 8) else { return };
        if at.is_multiple_of(8) && run.end - at >= 8 {
            *byte = 0xFF;
            at += 8;
        } else {
            *byte |= 1 << (at % 8);
            at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FsBlock;
    use crate::space_map::testing::maps;
    use proptest::prelude::*;

    fn write(groups: &[Vec<(u32, u32)>], number: u32) -> (Vec<u8>, Head) {
        let maps = maps();
        let mut head = Head::empty(number, FsBlock(4000));
        let mut writer = TreeWriter::new(&maps, number);
        for runs in groups {
            writer.group(runs.iter().map(|(start, end)| *start..*end));
        }
        (writer.finish(9, &mut head), head)
    }

    /// Reads a tree with changed bytes and the checksum of the changed bytes.
    fn read(mut bytes: Vec<u8>, mut head: Head, change: impl FnOnce(&mut Vec<u8>)) -> Result<Tree> {
        change(&mut bytes);
        head.length = bytes.len() as u32;
        head.tree_checksum = crc32c(maps().geometry().checksum_seed, &bytes);
        Tree::parse(&bytes, &maps(), &head)
    }

    #[test]
    fn the_smallest_form_is_written_and_counts_go_over_borders() {
        let every_second = (0..4096).map(|n| (n * 2, n * 2 + 1)).collect();
        let (bytes, head) = write(&[vec![(5000, 8192)], vec![(0, 8192)], every_second, vec![(0, 100)]], 2);
        assert_eq!((head.free, head.longest), (3192 + 8192 + 4096 + 100, 3192 + 8192 + 1));
        let tree = Tree::parse(&bytes, &maps(), &head).unwrap();
        assert!(matches!(tree.groups[0], FreeBlocks::Runs(_)) && tree.groups[1] == FreeBlocks::Full);
        assert!(matches!(tree.groups[2], FreeBlocks::Bits(_)) && tree.groups[3] == FreeBlocks::Full);
        assert_eq!(bytes.len(), 24 + 4 * 8 + 4 + 1024);
        let (bytes, head) = write(&[], 2);
        assert_eq!((bytes.len(), head.free, head.longest), (24 + 4 * 8, 0, 0));
        assert_eq!(Tree::parse(&bytes, &maps(), &head).unwrap().groups, vec![FreeBlocks::Empty; 4]);
    }

    #[test]
    fn what_a_tree_promises_is_checked() {
        let (bytes, head) = write(&[vec![(3, 4), (7, 10)], vec![], vec![], vec![(0, 1), (2, 4)]], 2);
        assert!(read(bytes.clone(), head, |_| ()).is_ok());
        let at = 24 + 4 * 8;
        let wrong: [(&str, usize, u8); 10] = [
            ("magic", 0, 0),
            ("its head", 4, 1),
            ("its head", 8, 8),
            ("its head", 16, 3),
            ("unknown form", 24, 4),
            ("unknown form", 26 + 8, 1),
            ("count of free", 28, 5),
            ("overlap", at + 4, 4),
            ("outside the group", at + 15, 1),
            ("cut short", 26, 200),
        ];
        for (word, at, value) in wrong {
            let error = read(bytes.clone(), head, |bytes| bytes[at] = value).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
        let error = Tree::parse(&bytes[1..], &maps(), &head).unwrap_err().to_string();
        assert!(error.contains("cut short"), "{error}");
        let mut other = bytes.clone();
        other[at] ^= 1;
        assert!(Tree::parse(&other, &maps(), &head).unwrap_err().to_string().contains("checksum"));
        let error = Tree::parse(&bytes, &maps(), &Head { free: 3, ..head }).unwrap_err().to_string();
        assert!(error.contains("its head"), "{error}");
        // the length is part of the header
        let longer = read(bytes.clone(), head, |bytes| {
            bytes.push(0);
            bytes[20] += 1;
        });
        assert!(longer.unwrap_err().to_string().contains("extra bytes follow"));
        // bits after the last block of the short group
        let (bytes, head) = write(&[vec![], vec![], vec![], (0..50).map(|n| (n * 2, n * 2 + 1)).collect()], 2);
        assert_eq!(bytes.len(), at + 13);
        let error = read(bytes, head, |bytes| bytes[at + 12] |= 0x10).unwrap_err().to_string();
        assert!(error.contains("beyond the group"), "{error}");
    }

    /// Ascending runs that are not adjacent, inside `blocks` blocks.
    fn runs(units: u32) -> impl Strategy<Value = Vec<(u32, u32)>> {
        let some = proptest::collection::vec((1u32..40, 1u32..600), 0..20);
        let many = proptest::collection::vec((1u32..3, 1u32..3), 0..3000);
        prop_oneof![some, many, Just(vec![(0, units)])].prop_map(move |steps| {
            let mut at = 0;
            let mut runs = Vec::new();
            for (gap, length) in steps {
                let start = at + gap;
                at = (start + length).min(units);
                if start < at {
                    runs.push((start, at));
                }
            }
            runs
        })
    }

    proptest! {
        #[test]
        fn a_tree_is_read_as_it_was_written(
            first in proptest::collection::vec(runs(8192), 3),
            last in runs(100),
        ) {
            let groups: Vec<Vec<(u32, u32)>> = first.into_iter().chain([last]).collect();
            let (bytes, head) = write(&groups, 2);
            let maps = maps();
            prop_assert!(bytes.len() as u64 <= maps.place_blocks(2) * 1024);
            let tree = Tree::parse(&bytes, &maps, &head).unwrap();
            for (n, runs) in groups.iter().enumerate() {
                let units = maps.units(GroupNo(16 + n as u32));
                let read: Vec<(u32, u32)> = tree.groups[n].runs(units).map(|run| (run.start, run.end)).collect();
                prop_assert_eq!(&read, runs);
            }
        }

        #[test]
        fn any_bytes_are_read_or_refused(
            mut bytes in proptest::collection::vec(any::<u8>(), 56..200),
            forms in proptest::collection::vec(0u8..4, 4),
            free in proptest::collection::vec(0u16..40, 4),
        ) {
            let (good, mut head) = write(&[], 2);
            bytes[..24].copy_from_slice(&good[..24]);
            let length = bytes.len() as u32;
            bytes[20..24].copy_from_slice(&length.to_le_bytes());
            for (n, (form, free)) in forms.iter().zip(&free).enumerate() {
                let entry = DiskContainer { c_form: u16::from(*form).into(), c_runs: 0.into(), c_free: u32::from(*free).into() };
                bytes[24 + n * 8..32 + n * 8].copy_from_slice(entry.as_bytes());
            }
            head.free = free.iter().map(|n| u64::from(*n)).sum();
            let _ = read(bytes, head, |_| ());
        }
    }
}
