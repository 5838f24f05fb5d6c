//! Heads: the valid tree location of a metablockgroup, and the last generation of the log that is included in the tree.

use super::{MOST_SEQUENCE, SpaceMaps};
use crate::checksum::crc32c;
use crate::{Error, FsBlock, Result, Structure};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

/// `h_magic`: "SMhd" in ASCII.
pub const MAGIC: u32 = 0x6468_4D53;

disk_struct! {
    /// The head of a metablockgroup, an entry of the table.
    pub struct DiskMapHead[64] {
        /// 0x64684D53
        0x00 h_magic: U32,
        /// the metablockgroup
        0x04 h_number: U32,
        /// records of the ring up to this sequence are in the tree
        0x08 h_sequence: U64,
        /// first block of the first of the two tree locations
        0x10 h_places: U64,
        /// the valid location: 0 or 1
        0x18 h_place: U32,
        /// bytes of the tree
        0x1C h_length: U32,
        /// CRC32C of the tree, from the volume seed
        0x20 h_tree_checksum: U32,
        /// the longest run of free blocks in the tree, across group boundaries
        0x24 h_longest: U32,
        /// free blocks in the tree
        0x28 h_free: U64,
        /// blocks free in the tree that snapshots use; 0
        0x30 h_pinned: U64,
        /// 0
        0x38 h_reserved: U32,
        /// CRC32C of the previous 60 bytes, from the volume seed
        0x3C h_checksum: U32,
    }
}

/// A validated head.
///
/// Guarantees: the tree locations are inside the volume and not in table or ring; the tree is not longer than its
/// location; there are no more free blocks than the metablockgroup has, and no longer run than free blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// The metablockgroup.
    pub number: u32,
    /// Records of the ring up to this sequence are in the tree.
    pub sequence: u64,
    /// First block of the first of the two tree locations.
    pub places: FsBlock,
    /// Whether the second location is the valid one.
    pub second: bool,
    /// Bytes of the tree.
    pub length: u32,
    /// CRC32C of the tree, from the volume seed.
    pub tree_checksum: u32,
    /// The longest run of free blocks, across group boundaries.
    pub longest: u32,
    /// Free blocks.
    pub free: u64,
}

impl Head {
    /// The initial head of a metablockgroup whose tree locations begin at this block, for
    /// [`TreeWriter::finish`](super::tree::TreeWriter::finish).
    #[must_use]
    pub fn empty(number: u32, places: FsBlock) -> Self {
        Self { number, sequence: 0, places, second: false, length: 0, tree_checksum: 0, longest: 0, free: 0 }
    }

    /// Reads the head of a metablockgroup from its block of the table, see [`SpaceMaps::head_at`].
    ///
    /// # Errors
    /// `Corrupt`, where one of the guarantees is violated.
    pub fn parse(block: &[u8], maps: &SpaceMaps, number: u32) -> Result<Self> {
        let bad = |what| Error::corrupt(Structure::SpaceMap, what);
        let bytes = block.get(maps.head_at(number).1..).unwrap_or_default();
        let (disk, _) = DiskMapHead::read_from_prefix(bytes).map_err(|_| bad("a head is cut short"))?;
        if disk.h_magic.get() != MAGIC {
            return Err(bad("a head has no magic number"));
        }
        if disk.h_checksum.get() != disk.checksum(maps) {
            return Err(bad("the checksum of a head does not match"));
        }
        if disk.h_number.get() != number {
            return Err(bad("a head belongs to another metablockgroup"));
        }
        let head = Self {
            number,
            sequence: disk.h_sequence.get(),
            places: FsBlock(disk.h_places.get()),
            second: disk.h_place.get() == 1,
            length: disk.h_length.get(),
            tree_checksum: disk.h_tree_checksum.get(),
            longest: disk.h_longest.get(),
            free: disk.h_free.get(),
        };
        if disk.h_place.get() > 1 || disk.h_pinned.get() != 0 || disk.h_reserved.get() != 0 {
            return Err(bad("a head has unknown values"));
        }
        if !maps.are_inside(&maps.places(number, head.places)) {
            return Err(bad("a head's tree locations are outside the volume, or in table or log"));
        }
        if u64::from(head.length) > maps.place_blocks(number) * u64::from(maps.geometry().block_size) {
            return Err(bad("a tree is longer than its location"));
        }
        let blocks: u64 = maps.groups_of(number).map(|group| u64::from(maps.units(crate::GroupNo(group)))).sum();
        if head.free > blocks || u64::from(head.longest) > head.free {
            return Err(bad("a head's counts of free blocks are impossible"));
        }
        if head.sequence > MOST_SEQUENCE {
            return Err(bad("a head's sequence is impossible"));
        }
        Ok(head)
    }

    /// Writes the head into its block of the table; nothing where the block is too short.
    pub fn write(&self, block: &mut [u8], maps: &SpaceMaps) {
        let mut disk = DiskMapHead {
            h_magic: MAGIC.into(),
            h_number: self.number.into(),
            h_sequence: self.sequence.into(),
            h_places: self.places.get().into(),
            h_place: u32::from(self.second).into(),
            h_length: self.length.into(),
            h_tree_checksum: self.tree_checksum.into(),
            h_longest: self.longest.into(),
            h_free: self.free.into(),
            h_pinned: 0.into(),
            h_reserved: 0.into(),
            h_checksum: 0.into(),
        };
        disk.set_checksum(maps);
        let at = maps.head_at(self.number).1;
        if let Some(space) = block.get_mut(at..at + DiskMapHead::SIZE) {
            space.copy_from_slice(disk.as_bytes());
        }
    }

    /// The first block of the valid location.
    #[must_use]
    pub fn tree(&self, maps: &SpaceMaps) -> FsBlock {
        let [first, second] = maps.places(self.number, self.places);
        FsBlock(if self.second { second.start } else { first.start })
    }

    /// The first block of the other location.
    #[must_use]
    pub fn other(&self, maps: &SpaceMaps) -> FsBlock {
        Self { second: !self.second, ..*self }.tree(maps)
    }
}

impl DiskMapHead {
    /// An unchecked head at the start of a slice; `None` where there are too few bytes.
    #[must_use]
    pub fn from_slice(bytes: &[u8]) -> Option<Self> {
        Self::read_from_prefix(bytes).ok().map(|(head, _)| head)
    }

    /// The right checksum of the head.
    #[must_use]
    pub fn checksum(&self, maps: &SpaceMaps) -> u32 {
        crc32c(maps.geometry().checksum_seed, self.as_bytes().get(..Self::SIZE - 4).unwrap_or_default())
    }

    /// Sets the checksum.
    pub fn set_checksum(&mut self, maps: &SpaceMaps) {
        self.h_checksum = self.checksum(maps).into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space_map::testing::maps;
    use proptest::prelude::*;

    fn head() -> Head {
        Head {
            number: 2,
            sequence: 77,
            places: FsBlock(4000),
            second: true,
            length: 5 * 1024,
            tree_checksum: 9,
            longest: 80,
            free: 3 * 8192 + 100,
        }
    }

    #[test]
    fn a_head_is_read_as_it_was_written() {
        let maps = maps();
        let mut block = vec![0; 1024];
        head().write(&mut block, &maps);
        assert_eq!(Head::parse(&block, &maps, 2).unwrap(), head());
        assert_eq!((head().tree(&maps), head().other(&maps)), (FsBlock(4005), FsBlock(4000)));
        // another head's location, and none
        block.copy_within(128..192, 64);
        for (number, word) in [(1, "another"), (0, "magic"), (15, "cut short")] {
            let error = Head::parse(&block[..1000], &maps, number).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
        head().write(&mut block[..130], &maps);
    }

    #[test]
    fn what_a_head_promises_is_checked() {
        let maps = maps();
        type Change = fn(&mut Head);
        let wrong: [(&str, Change); 7] = [
            ("outside", |head| head.places = FsBlock(0)),
            ("outside", |head| head.places = FsBlock(310)),
            ("outside", |head| head.places = FsBlock(u64::MAX)),
            ("longer", |head| head.length = 5 * 1024 + 1),
            ("impossible", |head| head.free = 3 * 8192 + 101),
            ("impossible", |head| head.free = 79),
            ("sequence", |head| head.sequence = MOST_SEQUENCE + 1),
        ];
        for (word, change) in wrong {
            let mut head = head();
            change(&mut head);
            let mut block = vec![0; 1024];
            head.write(&mut block, &maps);
            let error = Head::parse(&block, &maps, 2).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(mut bytes in proptest::collection::vec(any::<u8>(), 0..300), is_summed: bool) {
            let maps = maps();
            if let Some(mut disk) = bytes.get(128..).and_then(DiskMapHead::from_slice).filter(|_| is_summed) {
                (disk.h_magic, disk.h_number) = (MAGIC.into(), 2.into());
                disk.set_checksum(&maps);
                bytes[128..192].copy_from_slice(disk.as_bytes());
            }
            if let Ok(head) = Head::parse(&bytes, &maps, 2) {
                let mut again = vec![0; bytes.len()];
                head.write(&mut again, &maps);
                prop_assert_eq!(&again[128..192], &bytes[128..192]);
            }
        }

        #[test]
        fn a_flipped_bit_is_found(bit in 0usize..512) {
            let maps = maps();
            let mut block = vec![0; 1024];
            head().write(&mut block, &maps);
            block[128 + bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Head::parse(&block, &maps, 2).is_err());
        }
    }
}
