//! The layout of a native volume.

use super::{chunk_table, map};
use crate::{Error, FsBlock, Result};
use std::collections::BTreeSet;
use std::ops::Range;

/// Bytes in a block.
pub const BLOCK_SIZE: u32 = 4096;
/// Blocks in a group: the bits of a bitmap block.
pub const GROUP_BLOCKS: u32 = 8 * BLOCK_SIZE;
/// Blocks in a chunk, the unit in which metadata regions grow: one 64th of a group.
pub const CHUNK_BLOCKS: u32 = GROUP_BLOCKS / 64;
/// Minimum number of blocks of a volume (16 MiB).
pub const LEAST_BLOCKS: u64 = 8 * CHUNK_BLOCKS as u64;
/// Maximum number of blocks of a volume (64 TiB): descriptors then take a tenth of a group.
pub const MOST_BLOCKS: u64 = 1 << 34;
/// Number of superblocks, in the first blocks of the device.
pub const COPIES: u64 = 2;
/// Blocks of the list of snapshots.
pub const LIST_BLOCKS: u64 = 256;
/// Blocks after the superblocks that are unused if the superblock has `reserved`: other formats have their signatures
/// there, the last one Btrfs at 64 KiB.
pub const HEAD: Range<u64> = COPIES..17;
/// Bytes in a group descriptor.
const DESCRIPTOR_SIZE: u64 = 64;
/// Maximum number of blocks of a group of an ext volume, whatever the size of its bitmap.
const EXT_GROUP_BLOCKS: u64 = 65528;

/// The layout of a native volume, which depends on its length alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    blocks: u64,
}

impl Layout {
    /// The layout of a volume on `blocks` blocks of 4 KiB.
    ///
    /// # Errors
    /// `Unsupported` for fewer than [`LEAST_BLOCKS`] or more than [`MOST_BLOCKS`].
    pub fn new(blocks: u64) -> Result<Self> {
        if !(LEAST_BLOCKS..=MOST_BLOCKS).contains(&blocks) {
            let (least, most) = (LEAST_BLOCKS >> 8, MOST_BLOCKS >> 28);
            return Err(Error::Unsupported(format!("a native volume must be {least} MiB to {most} TiB")));
        }
        Ok(Self { blocks })
    }

    /// Blocks of the device that belong to the volume.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Groups with blocks on the device; the last may be short, and its missing blocks are marked used. The same number
    /// of metadata groups follow.
    #[must_use]
    pub fn data_groups(&self) -> u32 {
        // at most 2^19
        self.blocks.div_ceil(GROUP_BLOCKS.into()) as u32
    }

    /// The first block number of the metadata groups.
    #[must_use]
    pub fn metadata_start(&self) -> u64 {
        u64::from(self.data_groups()) * u64::from(GROUP_BLOCKS)
    }

    /// Block numbers of the ext4 volume above the map.
    #[must_use]
    pub fn logical_blocks(&self) -> u64 {
        2 * self.metadata_start()
    }

    /// Blocks of the front: ext4 superblock and group descriptors.
    #[must_use]
    pub fn front(&self) -> u64 {
        1 + (2 * u64::from(self.data_groups()) * DESCRIPTOR_SIZE).div_ceil(BLOCK_SIZE.into())
    }

    /// Whole chunks of the device.
    #[must_use]
    pub fn chunks(&self) -> u32 {
        // at most 2^25
        (self.blocks / u64::from(CHUNK_BLOCKS)) as u32
    }

    /// The blocks of the device in which e2fsck would search for an ext volume's backup superblock, of any block size:
    /// the starts of group 1 and of the groups that are powers of 3, 5 and 7, with groups as long as their bitmap
    /// allows.
    #[must_use]
    pub fn backup_blocks(&self) -> BTreeSet<u64> {
        let own = u64::from(BLOCK_SIZE);
        let mut blocks = BTreeSet::new();
        for size in (10..=16).map(|log| 1u64 << log) {
            // mke2fs uses groups of the shorter length, and e2fsck searches at the longer one
            for group_bytes in [8 * size * size, (8 * size).min(EXT_GROUP_BLOCKS) * size] {
                for base in [3u64, 5, 7] {
                    let powers = std::iter::successors(Some(1u64), |group| Some(group * base));
                    // with blocks of 1 KiB the superblock is the second KiB
                    blocks.extend(powers.map(|group| group * group_bytes / own).take_while(|at| *at < self.blocks));
                }
            }
        }
        blocks
    }

    /// The chunks of [`Layout::backup_blocks`]. They do not become metadata regions if the superblock has `reserved`.
    #[must_use]
    pub fn backup_chunks(&self) -> BTreeSet<u32> {
        self.backup_blocks().into_iter().map(|physical| (physical / u64::from(CHUNK_BLOCKS)) as u32).collect()
    }

    /// The indexes of the chunk table's blocks, with space for a record of every chunk.
    #[must_use]
    pub fn table(&self) -> Range<u64> {
        let start = self.front() + self.metadata_start();
        start..start + u64::from(self.chunks().div_ceil(chunk_table::RECORDS))
    }

    /// The indexes of the blocks of the list of snapshots.
    #[must_use]
    pub fn list(&self) -> Range<u64> {
        let start = self.table().end;
        start..start + LIST_BLOCKS
    }

    /// One more than the highest index.
    #[must_use]
    pub fn indexes(&self) -> u64 {
        self.list().end
    }

    /// Levels of the map: nodes on the path to an entry of a metadata block.
    #[must_use]
    pub fn levels(&self) -> u8 {
        let (mut levels, mut reach) = (1, map::ENTRIES as u64);
        while reach < self.indexes() {
            reach *= map::ENTRIES as u64;
            levels += 1;
        }
        levels
    }

    /// The index of a block number of the ext4 volume; `None` for one that is its own physical block, and for one
    /// beyond the volume.
    #[must_use]
    pub fn index_of(&self, block: FsBlock) -> Option<u64> {
        let block = block.get();
        if block < self.front() {
            return Some(block);
        }
        (self.metadata_start()..self.logical_blocks())
            .contains(&block)
            .then(|| block - self.metadata_start() + self.front())
    }

    /// The block number of the ext4 volume for an index; `None` for the chunk table, the list and beyond.
    #[must_use]
    pub fn block_of(&self, index: u64) -> Option<FsBlock> {
        if index < self.front() {
            return Some(FsBlock(index));
        }
        (index < self.table().start).then(|| FsBlock(index - self.front() + self.metadata_start()))
    }

    /// Whether this block of the device may contain metadata.
    #[must_use]
    pub fn is_physical_block(&self, physical: u64) -> bool {
        let end = u64::from(self.chunks()) * u64::from(CHUNK_BLOCKS);
        (COPIES..end).contains(&physical)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_a_volume_follow_from_its_length() {
        let small = Layout::new(16384).unwrap();
        assert_eq!((small.data_groups(), small.metadata_start(), small.logical_blocks()), (1, 32768, 65536));
        assert_eq!((small.front(), small.chunks(), small.levels()), (2, 32, 3));
        assert_eq!((small.table(), small.list()), (32770..32771, 32771..33027));
        let large = Layout::new(16 << 20).unwrap();
        assert_eq!((large.data_groups(), large.front(), large.levels()), (512, 17, 4));
        assert!(Layout::new(LEAST_BLOCKS - 1).is_err() && Layout::new(MOST_BLOCKS + 1).is_err());
        assert!(Layout::new(MOST_BLOCKS).unwrap().levels() == 5);
    }

    #[test]
    fn blocks_of_backups_of_an_ext_volume_are_known() {
        let blocks = |mib: u64| Layout::new(mib << 8).unwrap().backup_blocks().into_iter().collect::<Vec<_>>();
        assert_eq!(blocks(32), [2048, 6144]);
        assert_eq!(blocks(75), [2048, 6144, 8192, 10240, 14336, 18432]);
        let large = Layout::new(MOST_BLOCKS).unwrap().backup_blocks();
        // with blocks of 4 KiB: groups 1, 3, 5, 7, 9, 25, 27, 49, 81 and 7 to the sixth
        assert!([1, 3, 5, 7, 9, 25, 27, 49, 81, 117_649].iter().all(|group| large.contains(&(group * 32768))));
        // groups of 65 528 blocks of 64 KiB, and where they would end if they had 524 288
        assert!(large.contains(&(3 * 65528 * 16)) && large.contains(&(3 * 524_288 * 16)));
        assert!(large.len() < 400 && large.first() >= Some(&u64::from(CHUNK_BLOCKS)));
    }

    #[test]
    fn indexes_and_block_numbers_fit() {
        let layout = Layout::new(40000).unwrap();
        assert_eq!(layout.index_of(FsBlock(0)), Some(0));
        assert_eq!(layout.index_of(FsBlock(layout.front())), None);
        assert_eq!(layout.index_of(FsBlock(65535)), None);
        assert_eq!(layout.index_of(FsBlock(65536)), Some(layout.front()));
        assert_eq!(layout.index_of(FsBlock(131_072)), None);
        for index in [0, 1, layout.front(), layout.table().start - 1] {
            assert_eq!(layout.block_of(index).and_then(|block| layout.index_of(block)), Some(index));
        }
        assert_eq!(layout.block_of(layout.table().start), None);
        assert!(!layout.is_physical_block(1) && layout.is_physical_block(2));
        assert!(layout.is_physical_block(39935) && !layout.is_physical_block(39936));
    }
}
