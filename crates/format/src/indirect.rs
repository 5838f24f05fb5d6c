//! Indirect block maps of ext2 and ext3: 12 direct blocks, then one, two and three levels of blocks of numbers.
//!
//! Under [`Extant::OWNED`](crate::feature::Extant::OWNED) an indirect block ends in an [`IndirectTail`], which takes
//! the space of two numbers.

use crate::checksum::crc32c;
use crate::superblock::Geometry;
use crate::{FileBlock, FsBlock, InodeNo};
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, IntoBytes};

/// Number of direct blocks in `i_block`.
pub const DIRECT: u64 = 12;

disk_struct! {
    /// The last 8 bytes of an indirect block under [`Extant::OWNED`](crate::feature::Extant::OWNED).
    pub struct IndirectTail[8] {
        /// The inode that owns the block.
        0x0 it_owner: U32,
        /// The level: 1 for an indirect block of data blocks, at most 3.
        0x4 it_level: u8,
        /// The low 24 bits of CRC32C of the volume's seed, the owner, the block's number in 64 bits, and the block with
        /// zeros here.
        0x5 it_checksum: [u8; 3],
    }
}

/// The path from `i_block` to a block: an index into `i_block`, then one index for each indirect block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Path {
    indexes: [u32; 4],
    len: usize,
}

impl Path {
    /// The indexes, that into `i_block` first.
    #[must_use]
    pub fn indexes(&self) -> &[u32] {
        self.indexes.get(..self.len).unwrap_or_default()
    }
}

/// The format of the indirect blocks of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndirectFormat {
    block_size: u32,
    owned: bool,
}

impl Geometry {
    /// The format of the indirect blocks of this volume.
    #[inline]
    #[must_use]
    pub fn indirect(&self) -> IndirectFormat {
        IndirectFormat { block_size: self.block_size, owned: self.is_owned() }
    }
}

impl IndirectFormat {
    /// The format with indirect blocks of `block_size` bytes, which end in an [`IndirectTail`] where they are `owned`.
    #[must_use]
    pub fn new(block_size: u32, owned: bool) -> Self {
        Self { block_size, owned }
    }

    /// Whether an indirect block ends in an [`IndirectTail`].
    #[inline]
    #[must_use]
    pub fn is_owned(self) -> bool {
        self.owned
    }

    /// Numbers in one indirect block.
    #[inline]
    #[must_use]
    pub fn per_block(self) -> u64 {
        let words = u64::from(self.block_size / 4);
        if self.owned { words - IndirectTail::SIZE as u64 / 4 } else { words }
    }

    /// The number of file blocks that one pointer covers: at `level` 0 to a data block, at level n to an indirect block
    /// of that level.
    #[inline]
    #[must_use]
    pub fn span(self, level: u32) -> u64 {
        self.per_block().saturating_pow(level)
    }

    /// The first file block of entry 12, 13 or 14 of `i_block` (level 1, 2, 3); block 0 for level 0.
    #[must_use]
    pub fn first_of_level(self, level: u32) -> FileBlock {
        let mut first = if level == 0 { 0 } else { DIRECT };
        for below in 1..level {
            first += self.span(below);
        }
        FileBlock(first)
    }

    /// The maximum number of blocks of a file with an indirect block map.
    #[must_use]
    pub fn reach(self) -> u64 {
        DIRECT + self.span(1) + self.span(2) + self.span(3)
    }

    /// The path to `block`; `None` where it is beyond the maximum.
    #[must_use]
    pub fn path(self, block: FileBlock) -> Option<Path> {
        let mut rest = block.get();
        if rest < DIRECT {
            return Some(Path { indexes: [rest as u32, 0, 0, 0], len: 1 });
        }
        rest -= DIRECT;
        for level in 1..=3u32 {
            if rest < self.span(level) {
                let mut indexes = [11 + level, 0, 0, 0];
                for (place, below) in indexes.iter_mut().skip(1).zip((0..level).rev()) {
                    let span = self.span(below);
                    // fits: less than the pointers in a block
                    *place = (rest / span) as u32;
                    rest %= span;
                }
                return Some(Path { indexes, len: level as usize + 1 });
            }
            rest -= self.span(level);
        }
        None
    }

    /// The numbers of an indirect block, without its tail; a length that is not a multiple of 4 yields none.
    #[inline]
    #[must_use]
    pub fn pointers(self, block: &[u8]) -> &[U32] {
        let all = pointers(block);
        all.get(..self.per_block() as usize).unwrap_or(all)
    }
}

impl IndirectTail {
    /// The tail of a block; `None` where it is too short to have one.
    #[inline]
    #[must_use]
    pub fn of(block: &[u8]) -> Option<&Self> {
        Self::ref_from_suffix(block).ok().map(|(_, tail)| tail)
    }

    /// Writes owner and level; [`set_checksum`](Self::set_checksum) adds the checksum. `None`, with nothing written,
    /// where the block is too short.
    pub fn write(block: &mut [u8], owner: InodeNo, level: u8) -> Option<()> {
        let tail = Self { it_owner: owner.get().into(), it_level: level, it_checksum: [0; 3] };
        let (_, place) = block.split_at_mut_checked(block.len().checked_sub(Self::SIZE)?)?;
        place.copy_from_slice(tail.as_bytes());
        Some(())
    }

    /// Writes the checksum; `seed` is the volume's, `at` the block's number. `None`, with nothing written, where the
    /// block is too short.
    pub fn set_checksum(block: &mut [u8], at: FsBlock, seed: u32) -> Option<()> {
        let sum = Self::sum(block, at, seed)?;
        let (_, tail) = Self::mut_from_suffix(block).ok()?;
        tail.it_checksum = sum;
        Some(())
    }

    /// Whether the checksum of the block is right.
    #[must_use]
    pub fn checksum_matches(block: &[u8], at: FsBlock, seed: u32) -> bool {
        Self::of(block).is_some_and(|tail| Self::sum(block, at, seed) == Some(tail.it_checksum))
    }

    fn sum(block: &[u8], at: FsBlock, seed: u32) -> Option<[u8; 3]> {
        let owner = Self::of(block)?.it_owner;
        let covered = block.get(..block.len().checked_sub(3)?)?;
        let crc = crc32c(crc32c(seed, owner.as_bytes()), &at.get().to_le_bytes());
        let [low @ .., _] = crc32c(crc32c(crc, covered), &[0; 3]).to_le_bytes();
        Some(low)
    }
}

/// All words of a block; a length that is not a multiple of 4 yields none.
#[inline]
#[must_use]
pub fn pointers(block: &[u8]) -> &[U32] {
    <[U32]>::ref_from_bytes(block).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_at_the_borders_of_each_level() {
        for (owned, each) in [(false, 256), (true, 254)] {
            let format = IndirectFormat::new(1024, owned);
            let at = |n| format.path(FileBlock(n)).map(|p| p.indexes().to_vec());
            let last = each as u32 - 1;
            assert_eq!(at(0), Some(vec![0]));
            assert_eq!(at(11), Some(vec![11]));
            assert_eq!(at(12), Some(vec![12, 0]));
            assert_eq!(at(12 + each - 1), Some(vec![12, last]));
            assert_eq!(at(12 + each), Some(vec![13, 0, 0]));
            assert_eq!(at(12 + each + each * each), Some(vec![14, 0, 0, 0]));
            assert_eq!(at(format.reach() - 1), Some(vec![14, last, last, last]));
            assert_eq!(at(format.reach()), None);
            assert_eq!(format.first_of_level(3), FileBlock(12 + each + each * each));
            assert_eq!(format.pointers(&[0; 1024]).len() as u64, each);
        }
    }

    #[test]
    fn a_tail_belongs_to_its_place() {
        let mut block = vec![5; 1024];
        IndirectTail::write(&mut block, InodeNo(77), 2).unwrap();
        IndirectTail::set_checksum(&mut block, FsBlock(9), 4).unwrap();
        let tail = IndirectTail::of(&block).unwrap();
        assert_eq!((tail.it_owner.get(), tail.it_level), (77, 2));
        assert!(block[..1016].iter().all(|byte| *byte == 5));
        assert!(IndirectTail::checksum_matches(&block, FsBlock(9), 4));
        assert!(!IndirectTail::checksum_matches(&block, FsBlock(8), 4));
        assert!(!IndirectTail::checksum_matches(&block, FsBlock(9), 5));
        for at in [0, 1015, 1016, 1020, 1023] {
            let mut damaged = block.clone();
            damaged[at] ^= 1;
            assert!(!IndirectTail::checksum_matches(&damaged, FsBlock(9), 4), "byte {at}");
        }
        assert!(IndirectTail::write(&mut [0; 7], InodeNo(1), 1).is_none());
        assert!(!IndirectTail::checksum_matches(&[0; 7], FsBlock(1), 1));
    }
}
