//! Indirect block maps of ext2 and ext3: 12 direct blocks, then one, two and three levels of blocks of numbers.

use crate::FileBlock;
use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

/// Blocks mapped straight from `i_block`.
pub const DIRECT: u64 = 12;

/// The way from `i_block` to a block: an index into `i_block`, then one index for each indirect block on the way.
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

/// Numbers in one indirect block.
#[inline]
#[must_use]
pub fn pointers_per_block(block_size: u32) -> u64 {
    u64::from(block_size / 4)
}

/// The blocks of a file that one pointer covers: at `level` 0 a data block, at level n an indirect block of that height.
#[inline]
#[must_use]
pub fn span(block_size: u32, level: u32) -> u64 {
    pointers_per_block(block_size).saturating_pow(level)
}

/// The first block of a file that entry 12, 13 or 14 of `i_block` covers (level 1, 2, 3), and for level 0 block 0.
#[must_use]
pub fn first_of_level(block_size: u32, level: u32) -> FileBlock {
    let mut first = if level == 0 { 0 } else { DIRECT };
    for below in 1..level {
        first += span(block_size, below);
    }
    FileBlock(first)
}

/// One more than the last block that a triple indirect map reaches.
#[must_use]
pub fn reach(block_size: u32) -> u64 {
    DIRECT + span(block_size, 1) + span(block_size, 2) + span(block_size, 3)
}

/// The way to `block`; `None` where it lies beyond what three levels reach.
#[must_use]
pub fn path(block_size: u32, block: FileBlock) -> Option<Path> {
    let mut rest = block.get();
    if rest < DIRECT {
        return Some(Path { indexes: [rest as u32, 0, 0, 0], len: 1 });
    }
    rest -= DIRECT;
    for level in 1..=3u32 {
        if rest < span(block_size, level) {
            let mut indexes = [11 + level, 0, 0, 0];
            for (place, below) in indexes.iter_mut().skip(1).zip((0..level).rev()) {
                let span = span(block_size, below);
                // fits: less than the pointers in a block
                *place = (rest / span) as u32;
                rest %= span;
            }
            return Some(Path { indexes, len: level as usize + 1 });
        }
        rest -= span(block_size, level);
    }
    None
}

/// The numbers of an indirect block; a length that is no multiple of 4 yields none.
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
        let at = |n| path(1024, FileBlock(n)).map(|p| p.indexes().to_vec());
        assert_eq!(at(0), Some(vec![0]));
        assert_eq!(at(11), Some(vec![11]));
        assert_eq!(at(12), Some(vec![12, 0]));
        assert_eq!(at(12 + 255), Some(vec![12, 255]));
        assert_eq!(at(12 + 256), Some(vec![13, 0, 0]));
        assert_eq!(at(12 + 256 + 65536), Some(vec![14, 0, 0, 0]));
        assert_eq!(at(reach(1024) - 1), Some(vec![14, 255, 255, 255]));
        assert_eq!(at(reach(1024)), None);
        assert_eq!(first_of_level(1024, 3), FileBlock(12 + 256 + 65536));
    }
}
