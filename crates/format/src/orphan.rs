//! The orphan file: unlinked inodes that are still open, and inodes with an unfinished truncation.
//!
//! Each block of the file is an array of inode numbers, 0 for a free slot, and a tail at its end. Volumes without this
//! file have a linked list of orphans through their inodes, from `s_last_orphan` on.

use crate::checksum::crc32c;
use crate::{Error, FsBlock, InodeNo, Result, Structure};
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, IntoBytes};

/// `ob_magic`
pub const MAGIC: u32 = 0x0B10_CA04;

disk_struct! {
    /// The end of each block of the orphan file (`ext4_orphan_block_tail`).
    pub struct DiskOrphanTail[8] {
        /// 0x0B10CA04
        0x00 ob_magic: U32,
        /// with metadata_csum: CRC32C from the seed of the file's inode over the block's number (64 bits) and its slots
        0x04 ob_checksum: U32,
    }
}

/// A validated block of the orphan file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrphanBlock<'a> {
    slots: &'a [u8],
    tail: DiskOrphanTail,
}

impl<'a> OrphanBlock<'a> {
    /// Reads a block of the orphan file, which is block `at` of the volume.
    ///
    /// `seed` is that of the orphan file's inode (CRC32C from the volume's seed over inode number and generation) where
    /// the volume has metadata_csum.
    ///
    /// # Errors
    /// `Corrupt` for a missing magic number or a wrong checksum.
    pub fn parse(block: &'a [u8], at: FsBlock, seed: Option<u32>) -> Result<Self> {
        let bad = |what| Error::corrupt(Structure::Orphans, what).at(crate::Where::Block(at));
        let (slots, tail) = DiskOrphanTail::read_from_suffix(block).map_err(|_| bad("block cut short"))?;
        if tail.ob_magic != MAGIC {
            return Err(bad("no magic number"));
        }
        if seed.is_some_and(|seed| tail.ob_checksum != checksum(block, at, seed)) {
            return Err(bad("checksum does not match"));
        }
        Ok(Self { slots, tail })
    }

    /// The tail's fields.
    pub fn tail(&self) -> &DiskOrphanTail {
        &self.tail
    }

    /// The orphans without free slots; numbers are not validated.
    pub fn orphans(&self) -> impl Iterator<Item = InodeNo> + use<'a> {
        self.slots
            .chunks_exact(4)
            .filter_map(|slot| U32::read_from_bytes(slot).ok())
            .filter(|&number| number != 0)
            .map(|number| InodeNo(number.get()))
    }
}

/// The correct `ob_checksum` of a block that is block `at` of the volume; `seed` is that of the file's inode.
pub fn checksum(block: &[u8], at: FsBlock, seed: u32) -> u32 {
    let slots = block.len().saturating_sub(DiskOrphanTail::SIZE) / 4 * 4;
    crc32c(crc32c(seed, &at.get().to_le_bytes()), &block[..slots])
}

/// Number of slots in a block of `block_size` bytes.
#[must_use]
pub fn slots(block_size: u32) -> u32 {
    block_size.saturating_sub(DiskOrphanTail::SIZE as u32) / 4
}

/// Writes the tail of a block of the orphan file, which is block `at` of the volume: the magic number, and under
/// metadata_csum the checksum of the slots; `seed` is that of the file's inode. `None`, with nothing written, where
/// `block` is too short.
pub fn set_checksum(block: &mut [u8], at: FsBlock, seed: Option<u32>) -> Option<()> {
    let sum = seed.map_or(0, |seed| checksum(block, at, seed));
    let tail = DiskOrphanTail { ob_magic: MAGIC.into(), ob_checksum: sum.into() };
    let start = block.len().checked_sub(DiskOrphanTail::SIZE)?;
    block.get_mut(start..)?.copy_from_slice(tail.as_bytes());
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orphans_of_a_block() {
        let mut block = vec![0; 1024];
        block[4] = 12;
        block[1012] = 13;
        set_checksum(&mut block, FsBlock(5), Some(1)).unwrap();
        let sum = checksum(&block, FsBlock(5), 1);

        let parsed = OrphanBlock::parse(&block, FsBlock(5), Some(1)).unwrap();
        assert_eq!(parsed.orphans().collect::<Vec<_>>(), [InodeNo(12), InodeNo(13)]);
        assert_eq!(parsed.tail().ob_checksum, sum);
        assert!(OrphanBlock::parse(&block, FsBlock(6), Some(1)).is_err());
        assert!(OrphanBlock::parse(&block, FsBlock(6), None).is_ok());
        assert!(OrphanBlock::parse(&block[..1023], FsBlock(5), None).is_err());
        assert!(set_checksum(&mut [0; 7], FsBlock(5), None).is_none());
        assert_eq!(slots(1024), 254);
        assert!(OrphanBlock::parse(&[0; 7], FsBlock(5), None).is_err());
        assert_eq!(checksum(&[], FsBlock(0), 0), crc32c(0, &[0; 8]));
    }
}
