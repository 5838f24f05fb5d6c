//! The map: from the index of a metadata block to its physical block.
//!
//! A tree of nodes of 4 KiB with 128 entries each. An entry of a leaf leads to a metadata block, one of an inner node
//! to a node; an entry with physical block 0 is empty, and its blocks read as zeros.
//!
//! A block's kind, owner, generation and checksum are in the entry, not in the block: bitmaps and inode tables have no
//! space for a header, and a block alone does not show that it is an old copy.

use super::{BLOCK_SIZE, Layout};
use crate::checksum::crc32c;
use crate::{Error, Result, Structure};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

/// Entries of a node.
pub const ENTRIES: usize = BLOCK_SIZE as usize / DiskEntry::SIZE;

disk_struct! {
    /// An entry of a node of the map.
    pub struct DiskEntry[32] {
        /// physical block: its block of the device; 0 for none
        0x00 e_physical: U64,
        /// generation that wrote it
        0x08 e_generation: U64,
        /// kind: `BlockKind`
        0x10 e_kind: u8,
        /// 0
        0x11 e_reserved: [u8; 3],
        /// the owner inode; 0 for none
        0x14 e_owner: U32,
        /// CRC32C from the volume's seed over the block's position, then its bytes
        0x18 e_checksum: U32,
        /// 0
        0x1C e_reserved2: U32,
    }
}

/// The kind of a mapped block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum BlockKind {
    /// The block with the ext4 superblock.
    Superblock = 1,
    /// Group descriptors.
    Descriptors = 2,
    /// A block bitmap.
    BlockBitmap = 3,
    /// An inode bitmap.
    InodeBitmap = 4,
    /// Inodes.
    InodeTable = 5,
    /// A node of an extent tree.
    ExtentNode = 6,
    /// An indirect block.
    Indirect = 7,
    /// A block of directory entries.
    Directory = 8,
    /// An index block of a hashed directory.
    DirectoryIndex = 9,
    /// Extended attributes.
    Attributes = 10,
    /// A block of the orphan file.
    OrphanFile = 11,
    /// File data that is written as metadata.
    Data = 12,
    /// A node of the map.
    MapNode = 13,
    /// A block of the chunk table.
    ChunkTable = 14,
    /// A block of the list of snapshots.
    SnapshotList = 15,
}

impl BlockKind {
    /// All kinds, in the order of their numbers from 1 on.
    pub const ALL: [Self; 15] = [
        Self::Superblock,
        Self::Descriptors,
        Self::BlockBitmap,
        Self::InodeBitmap,
        Self::InodeTable,
        Self::ExtentNode,
        Self::Indirect,
        Self::Directory,
        Self::DirectoryIndex,
        Self::Attributes,
        Self::OrphanFile,
        Self::Data,
        Self::MapNode,
        Self::ChunkTable,
        Self::SnapshotList,
    ];

    /// The kind for a number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number.checked_sub(1)?)).copied()
    }
}

/// The position of a block, which its checksum covers, so that no block can be taken for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Position {
    /// A metadata block's index.
    Block(u64),
    /// A node of the map.
    Node {
        /// 0 for leaves.
        level: u8,
        /// Number in its level, from 0.
        number: u64,
    },
}

impl Position {
    /// The checksum of a block in this position; `seed` is the volume's. A node's position is its number with the
    /// level, counted from 1, in the highest byte.
    #[must_use]
    pub fn checksum(self, seed: u32, bytes: &[u8]) -> u32 {
        let number = match self {
            Self::Block(index) => index,
            Self::Node { level, number } => number | (u64::from(level) + 1) << 56,
        };
        crc32c(crc32c(seed, &number.to_le_bytes()), bytes)
    }
}

/// An entry that leads to a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Its block of the device.
    pub physical: u64,
    /// The generation that wrote it.
    pub generation: u64,
    /// The kind of the block.
    pub kind: BlockKind,
    /// The owner inode; 0 for none.
    pub owner: u32,
    /// See [`Position::checksum`].
    pub checksum: u32,
}

impl Entry {
    /// Reads an entry of a node; `None` for an empty one.
    ///
    /// # Errors
    /// `Corrupt` for a block that may not contain metadata, an undefined kind, no generation, and an empty entry that
    /// is not all zeros.
    pub fn parse(disk: &DiskEntry, layout: &Layout) -> Result<Option<Self>> {
        let bad = |what| Error::corrupt(Structure::Map, what);
        if disk.e_physical.get() == 0 {
            let empty = disk.as_bytes().iter().all(|byte| *byte == 0);
            return if empty { Ok(None) } else { Err(bad("an entry without a physical block is not empty")) };
        }
        let kind = BlockKind::from_number(disk.e_kind).ok_or_else(|| bad("an entry's kind is undefined"))?;
        if !layout.is_physical_block(disk.e_physical.get()) {
            return Err(bad("an entry leads to a block that cannot hold metadata"));
        }
        if disk.e_generation.get() == 0 {
            return Err(bad("an entry has no generation"));
        }
        if disk.e_reserved != [0; 3] || disk.e_reserved2.get() != 0 {
            return Err(bad("an entry's unused bytes are set"));
        }
        Ok(Some(Self {
            physical: disk.e_physical.get(),
            generation: disk.e_generation.get(),
            kind,
            owner: disk.e_owner.get(),
            checksum: disk.e_checksum.get(),
        }))
    }

    /// The entry's bytes.
    #[must_use]
    pub fn to_disk(&self) -> DiskEntry {
        DiskEntry {
            e_physical: self.physical.into(),
            e_generation: self.generation.into(),
            e_kind: self.kind as u8,
            e_reserved: [0; 3],
            e_owner: self.owner.into(),
            e_checksum: self.checksum.into(),
            e_reserved2: 0.into(),
        }
    }
}

/// A validated node of the map. Cloning copies all entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    entries: Box<[Option<Entry>; ENTRIES]>,
}

impl Default for Node {
    fn default() -> Self {
        Self { entries: Box::new([None; ENTRIES]) }
    }
}

impl Node {
    /// Reads a node of a level (0 for leaves).
    ///
    /// # Errors
    /// `Corrupt` as for [`Entry::parse`], for a truncated block, and where an entry's kind is invalid in this level.
    pub fn parse(block: &[u8], level: u8, layout: &Layout) -> Result<Self> {
        let mut node = Self::default();
        let mut found = block.chunks_exact(DiskEntry::SIZE);
        for entry in node.entries.iter_mut() {
            let bytes = found.next().ok_or_else(|| Error::corrupt(Structure::Map, "a node is cut short"))?;
            let disk =
                DiskEntry::read_from_bytes(bytes).map_err(|_| Error::corrupt(Structure::Map, "a node is cut short"))?;
            *entry = Entry::parse(&disk, layout)?;
            if entry.is_some_and(|entry| (entry.kind == BlockKind::MapNode) != (level > 0)) {
                return Err(Error::corrupt(Structure::Map, "an entry's kind does not fit its level"));
            }
        }
        Ok(node)
    }

    /// The bytes of the node: a whole block.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(BLOCK_SIZE as usize);
        for entry in self.entries.iter() {
            match entry {
                Some(entry) => bytes.extend_from_slice(entry.to_disk().as_bytes()),
                None => bytes.extend_from_slice(&[0; DiskEntry::SIZE]),
            }
        }
        bytes
    }

    /// The entry of a slot; `None` for an empty one, and beyond the node.
    #[must_use]
    pub fn get(&self, slot: usize) -> Option<Entry> {
        self.entries.get(slot).copied().flatten()
    }

    /// Sets the entry of a slot of the node.
    pub fn set(&mut self, slot: usize, entry: Option<Entry>) {
        if let Some(there) = self.entries.get_mut(slot) {
            *there = entry;
        }
    }

    /// The entries that are not empty, with their slots.
    pub fn present(&self) -> impl Iterator<Item = (usize, Entry)> + '_ {
        self.entries.iter().enumerate().filter_map(|(slot, entry)| Some((slot, (*entry)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_their_numbers() {
        for kind in BlockKind::ALL {
            assert_eq!(BlockKind::from_number(kind as u8), Some(kind));
        }
        assert_eq!((BlockKind::from_number(0), BlockKind::from_number(16)), (None, None));
    }

    #[test]
    fn a_node_is_read_as_it_was_written() {
        let layout = Layout::new(40000).unwrap();
        let mut node = Node::default();
        let entry = Entry { physical: 99, generation: 5, kind: BlockKind::InodeTable, owner: 0, checksum: 0x1234_5678 };
        node.set(3, Some(entry));
        node.set(127, Some(Entry { kind: BlockKind::Directory, owner: 12, ..entry }));
        let bytes = node.to_bytes();
        assert_eq!(bytes.len(), 4096);
        assert_eq!(Node::parse(&bytes, 0, &layout).unwrap(), node);
        assert_eq!(node.present().map(|(slot, _)| slot).collect::<Vec<_>>(), [3, 127]);
        assert!(Node::parse(&bytes, 1, &layout).is_err() && Node::parse(&bytes[..4000], 0, &layout).is_err());
        for wrong in [
            Entry { physical: 1, ..entry },
            Entry { physical: 39_999, ..entry },
            Entry { generation: 0, ..entry },
            Entry { kind: BlockKind::MapNode, ..entry },
        ] {
            node.set(4, Some(wrong));
            assert!(Node::parse(&node.to_bytes(), 0, &layout).is_err(), "{wrong:?}");
        }
        let mut dirty = bytes.clone();
        dirty[20] = 1;
        assert!(Node::parse(&dirty, 0, &layout).is_err());
    }

    #[test]
    fn the_position_is_part_of_the_checksum() {
        let block = [9; 4096];
        let sums = [
            Position::Block(1),
            Position::Block(2),
            Position::Node { level: 0, number: 1 },
            Position::Node { level: 1, number: 1 },
        ]
        .map(|position| position.checksum(1, &block));
        for (n, sum) in sums.iter().enumerate() {
            assert!(!sums[..n].contains(sum));
        }
    }
}
