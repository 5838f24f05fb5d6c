//! The tails of metadata blocks: none, a checksum, or an owner and a checksum.
//!
//! The kind of tail depends on the volume alone, and is decided only in this module. A map or directory block gets its
//! [`Tail`] when it is created, and the checksum when it is written; its reader compares both.

use crate::dir::{ChecksumState, LeafTail, OwnedDirTail};
use crate::extent::{self, OwnedExtentTail};
use crate::htree::{count_limit_offset, index_checksum, index_owner, write_index_checksum, write_index_owner};
use crate::indirect::IndirectTail;
use crate::superblock::Geometry;
use crate::{FileBlock, FsBlock, InodeNo};

/// Blocks that can have a tail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tailed {
    /// A node of an extent tree outside the inode. Its place is its depth.
    ExtentNode,
    /// An indirect block. Its place is its level: 1 for one of data blocks.
    Indirect,
    /// A leaf of a directory. Its place is its block number in the directory.
    Leaf,
    /// An index block of a directory, whose tail has no place.
    Index,
}

/// The tail of one kind of block on a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tail {
    of: Tailed,
    /// The tail of directory leaves, which implies the others.
    leaf: LeafTail,
    block_size: u32,
    volume_seed: u32,
}

impl Geometry {
    /// The tail of a kind of block on this volume.
    #[inline]
    #[must_use]
    pub fn tail(&self, of: Tailed) -> Tail {
        Tail::new(of, self.leaf_tail(), self.block_size, self.checksum_seed)
    }

    /// The tail of a directory block: of a leaf or of an index block, identified by its content.
    #[must_use]
    pub fn directory_tail(&self, block: &[u8]) -> Tail {
        let is_index = count_limit_offset(block, self.block_size).is_some();
        self.tail(if is_index { Tailed::Index } else { Tailed::Leaf })
    }
}

impl Tail {
    /// The tail of a kind of block of `block_size` bytes, on a volume with directory leaves that end in `leaf` and with
    /// this seed.
    #[inline]
    #[must_use]
    pub const fn new(of: Tailed, leaf: LeafTail, block_size: u32, volume_seed: u32) -> Self {
        Self { of, leaf, block_size, volume_seed }
    }

    fn is_owned(self) -> bool {
        self.leaf == LeafTail::Owned
    }

    /// Capacity in entries of an extent tree node outside the inode.
    #[must_use]
    pub fn extent_node_entries(self) -> usize {
        let capacity = if self.is_owned() { extent::owned_capacity } else { extent::capacity };
        capacity(self.block_size as usize)
    }

    /// Writes the tail of a new block: owner and place. [`set_checksum`](Self::set_checksum) adds the checksum. `None`,
    /// with nothing written, where the block has no space for it.
    pub fn write(self, block: &mut [u8], owner: InodeNo, place: u64) -> Option<()> {
        match self.of {
            Tailed::Leaf => self.leaf.write(block, owner, FileBlock(place)),
            _ if !self.is_owned() => Some(()),
            Tailed::ExtentNode => OwnedExtentTail::write(block, owner),
            Tailed::Indirect => IndirectTail::write(block, owner, u8::try_from(place).ok()?),
            Tailed::Index => write_index_owner(block, self.block_size, owner),
        }
    }

    /// Writes the checksum, where blocks of the kind have one; `seed` is the inode's, `at` the block's number. `None`,
    /// with nothing written, where the block has no space for it.
    pub fn set_checksum(self, block: &mut [u8], at: FsBlock, seed: u32) -> Option<()> {
        match self.of {
            _ if self.leaf == LeafTail::None => Some(()),
            Tailed::Leaf => self.leaf.set_checksum(block, seed),
            Tailed::Index => write_index_checksum(block, self.block_size, seed),
            Tailed::ExtentNode if self.is_owned() => OwnedExtentTail::set_checksum(seed, block),
            Tailed::ExtentNode => extent::set_block_checksum(seed, block),
            Tailed::Indirect if self.is_owned() => IndirectTail::set_checksum(block, at, self.volume_seed),
            Tailed::Indirect => Some(()),
        }
    }

    /// Whether the checksum of a block is right; true where blocks of the kind have none.
    #[must_use]
    pub fn checksum_matches(self, block: &[u8], at: FsBlock, seed: u32) -> bool {
        match self.of {
            _ if self.leaf == LeafTail::None => true,
            Tailed::Leaf => self.leaf.check(block, seed) == ChecksumState::Good,
            Tailed::Index => index_checksum(block, self.block_size, seed) == ChecksumState::Good,
            Tailed::ExtentNode if self.is_owned() => OwnedExtentTail::checksum_matches(seed, block),
            Tailed::ExtentNode => extent::block_checksum_matches(seed, block),
            Tailed::Indirect => !self.is_owned() || IndirectTail::checksum_matches(block, at, self.volume_seed),
        }
    }

    /// Whether a block's tail has this owner and, unless `place` is `None`, this place; true where tails have no owner.
    #[must_use]
    pub fn says(self, block: &[u8], owner: InodeNo, place: Option<u64>) -> bool {
        let said = match self.of {
            _ if !self.is_owned() => return true,
            Tailed::ExtentNode => OwnedExtentTail::of(block)
                .filter(|tail| place.is_none() || tail.xt_reserved.get() == 0)
                .map(|tail| (tail.xt_owner.get(), Some(tail.xt_depth.get().into()))),
            Tailed::Indirect => {
                IndirectTail::of(block).map(|tail| (tail.it_owner.get(), Some(u64::from(tail.it_level))))
            }
            Tailed::Leaf => OwnedDirTail::of(block).map(|tail| (tail.dt_owner.get(), Some(tail.dt_block.get().into()))),
            Tailed::Index => index_owner(block, self.block_size).map(|owner| (owner.get(), None)),
        };
        said.is_some_and(|(whose, at)| whose == owner.get() && at.zip(place).is_none_or(|(at, place)| at == place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dir::{DirFormat, FileType, write_entry};
    use crate::extent::{Extent, write_leaf};
    use zerocopy::IntoBytes;

    const AT: FsBlock = FsBlock(9);
    const OWNER: InodeNo = InodeNo(12);

    /// A new block of a kind, without a tail.
    fn made(of: Tailed) -> Vec<u8> {
        let mut block = vec![0; 1024];
        match of {
            Tailed::ExtentNode => {
                let extent = Extent { logical: FileBlock(0), physical: FsBlock(5), len: 1, unwritten: false };
                write_leaf(&mut block, &[extent]).unwrap();
            }
            Tailed::Indirect => block[..1000].fill(7),
            Tailed::Leaf => {
                let format = DirFormat { block_size: 1024, file_type: true, hashed: false };
                write_entry(&mut block[..1000], InodeNo(12), b"name", Some(FileType::Regular), None, format).unwrap();
            }
            Tailed::Index => {
                block[4..6].copy_from_slice(&1024u16.to_le_bytes());
                block[8..12].copy_from_slice([126u16.to_le_bytes(), 1u16.to_le_bytes()].as_bytes());
            }
        }
        block
    }

    #[test]
    fn what_is_written_is_read() {
        for of in [Tailed::ExtentNode, Tailed::Indirect, Tailed::Leaf, Tailed::Index] {
            for leaf in [LeafTail::None, LeafTail::Checksum, LeafTail::Owned] {
                let tail = Tail::new(of, leaf, 1024, 4);
                let mut block = made(of);
                let place = if of == Tailed::ExtentNode { 0 } else { 2 };
                tail.write(&mut block, OWNER, place).unwrap();
                tail.set_checksum(&mut block, AT, 5).unwrap();
                assert!(tail.checksum_matches(&block, AT, 5), "{tail:?}");
                assert!(tail.says(&block, OWNER, Some(place)) && tail.says(&block, OWNER, None), "{tail:?}");

                let owned = leaf == LeafTail::Owned;
                assert_eq!(tail.says(&block, InodeNo(13), None), !owned, "{tail:?}");
                assert_eq!(tail.says(&block, OWNER, Some(3)), !owned || of == Tailed::Index, "{tail:?}");
                let has_checksum = owned || leaf == LeafTail::Checksum && of != Tailed::Indirect;
                assert_eq!(tail.checksum_matches(&block, AT, 6), !has_checksum || of == Tailed::Indirect, "{tail:?}");
                assert_eq!(tail.checksum_matches(&block, FsBlock(8), 5), !owned || of != Tailed::Indirect, "{tail:?}");
                block[0] ^= 1;
                assert_eq!(tail.checksum_matches(&block, AT, 5), !has_checksum, "{tail:?}");
            }
        }
    }
}
