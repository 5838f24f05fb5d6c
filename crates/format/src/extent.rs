//! Extent trees: in `i_block`, and in blocks with a checksum at their end.

use crate::checksum::crc32c;
use crate::{Error, FileBlock, FsBlock, Result, Structure};
use zerocopy::FromBytes;
use zerocopy::little_endian::{U16, U32};

/// `eh_magic`
pub const MAGIC: u16 = 0xF30A;
/// Deepest tree the format allows: five levels of index above the leaves.
pub const MAX_DEPTH: u16 = 5;
/// An initialised extent has at most this many blocks; longer `ee_len` means unwritten, less this much.
pub const MAX_INIT_LEN: u16 = 32768;

disk_struct! {
    /// Head of every node of an extent tree.
    pub struct ExtentHeader[12] {
        /// 0xF30A
        0x0 eh_magic: U16,
        /// entries in use
        0x2 eh_entries: U16,
        /// entries there is room for
        0x4 eh_max: U16,
        /// levels below; 0 in a leaf
        0x6 eh_depth: U16,
        /// generation (used by Lustre only)
        0x8 eh_generation: U32,
    }
}

disk_struct! {
    /// Entry of an inner node.
    pub struct ExtentIndex[12] {
        /// first block of the file that the child covers
        0x0 ei_block: U32,
        /// child's block, low half
        0x4 ei_leaf_lo: U32,
        /// child's block, high half
        0x8 ei_leaf_hi: U16,
        /// unused
        0xA ei_unused: U16,
    }
}

disk_struct! {
    /// Entry of a leaf.
    pub struct DiskExtent[12] {
        /// first block of the file
        0x0 ee_block: U32,
        /// blocks; over 32 768 they are unwritten, and so many less
        0x4 ee_len: U16,
        /// first block of the volume, high half
        0x6 ee_start_hi: U16,
        /// first block of the volume, low half
        0x8 ee_start_lo: U32,
    }
}

disk_struct! {
    /// Behind the last possible entry of a block under metadata_csum.
    pub struct ExtentTail[4] {
        /// CRC32C of the inode's seed and the block before it
        0x0 et_checksum: U32,
    }
}

impl ExtentIndex {
    /// The child's block.
    #[inline]
    #[must_use]
    pub fn child(&self) -> FsBlock {
        FsBlock(u64::from(self.ei_leaf_hi.get()) << 32 | u64::from(self.ei_leaf_lo.get()))
    }
}

impl DiskExtent {
    /// The first block of the volume.
    #[inline]
    #[must_use]
    pub fn start(&self) -> FsBlock {
        FsBlock(u64::from(self.ee_start_hi.get()) << 32 | u64::from(self.ee_start_lo.get()))
    }

    /// Blocks it covers, written or not.
    #[inline]
    #[must_use]
    pub fn len(&self) -> u32 {
        let len = self.ee_len.get();
        u32::from(if len > MAX_INIT_LEN { len - MAX_INIT_LEN } else { len })
    }

    /// It covers nothing: never so in a sound tree.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ee_len.get() == 0
    }

    /// Allocated but never written: reads as zeroes.
    #[inline]
    #[must_use]
    pub fn is_unwritten(&self) -> bool {
        self.ee_len.get() > MAX_INIT_LEN
    }
}

/// A node as it stands: its header, and whatever entries fit into the bytes.
#[derive(Debug, Clone, Copy)]
pub struct RawNode<'a> {
    /// The header.
    pub header: &'a ExtentHeader,
    body: &'a [u8],
}

impl<'a> RawNode<'a> {
    /// The node in these bytes (60 of `i_block`, or a block); `None` where not even a header fits.
    #[inline]
    #[must_use]
    pub fn from_bytes(bytes: &'a [u8]) -> Option<Self> {
        let (header, body) = ExtentHeader::ref_from_prefix(bytes).ok()?;
        Some(Self { header, body })
    }

    /// Entries that the bytes have room for.
    #[inline]
    #[must_use]
    pub fn room(&self) -> u16 {
        (self.body.len() / 12).min(usize::from(u16::MAX)) as u16
    }

    fn used(&self) -> &'a [u8] {
        let len = usize::from(self.header.eh_entries.get()).min(usize::from(self.room())) * 12;
        self.body.get(..len).unwrap_or_default()
    }

    /// The entries of a leaf, as many as say they are in use and fit.
    #[inline]
    #[must_use]
    pub fn extents(&self) -> &'a [DiskExtent] {
        <[DiskExtent]>::ref_from_bytes(self.used()).unwrap_or_default()
    }

    /// The entries of an inner node, as many as say they are in use and fit.
    #[inline]
    #[must_use]
    pub fn indexes(&self) -> &'a [ExtentIndex] {
        <[ExtentIndex]>::ref_from_bytes(self.used()).unwrap_or_default()
    }
}

/// A run of blocks of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Extent {
    /// First block of the file.
    pub logical: FileBlock,
    /// First block of the volume.
    pub physical: FsBlock,
    /// Blocks, at least 1.
    pub len: u32,
    /// Never written: reads as zeroes.
    pub unwritten: bool,
}

/// A node that was accepted: entries in ascending order, each with a place on the volume.
#[derive(Debug, Clone, Copy)]
pub enum Node<'a> {
    /// Runs of blocks.
    Leaf(&'a [DiskExtent]),
    /// Children, and the depth they must have.
    Inner(&'a [ExtentIndex], u16),
}

impl<'a> Node<'a> {
    /// Accepts the node in these bytes: `depth` is the depth it must have (`None` for a root), `blocks` the volume's length.
    ///
    /// # Errors
    /// [`Error::Corrupt`] with the first rule that is broken.
    pub fn parse(bytes: &'a [u8], depth: Option<u16>, blocks: u64) -> Result<Self> {
        let bad = |what| Err(Error::corrupt(Structure::ExtentTree, what));
        let Some(raw) = RawNode::from_bytes(bytes) else { return bad("no room for a header") };
        let found = raw.header.eh_depth.get();
        if raw.header.eh_magic.get() != MAGIC {
            return bad("eh_magic is not 0xF30A");
        }
        if found > MAX_DEPTH || depth.is_some_and(|d| d != found) {
            return bad("eh_depth is not one less than its parent's, or over 5");
        }
        if raw.header.eh_max.get() > raw.room() || raw.header.eh_entries.get() > raw.header.eh_max.get() {
            return bad("eh_entries or eh_max is more than there is room for");
        }
        if found > 0 {
            let indexes = raw.indexes();
            if !indexes.is_sorted_by(|a, b| a.ei_block.get() < b.ei_block.get()) {
                return bad("index entries are not in ascending order");
            }
            if indexes.iter().any(|e| e.child().get() >= blocks || e.child().get() == 0) {
                return bad("an index entry points outside the volume");
            }
            return Ok(Node::Inner(indexes, found - 1));
        }
        let extents = raw.extents();
        if !extents.is_sorted_by(|a, b| u64::from(a.ee_block.get()) + u64::from(a.len()) <= u64::from(b.ee_block.get()))
        {
            return bad("extents overlap or are not in ascending order");
        }
        if extents.iter().any(|e| {
            e.is_empty() || e.start().get() == 0 || e.start().get().saturating_add(u64::from(e.len())) > blocks
        }) {
            return bad("an extent is empty or reaches outside the volume");
        }
        Ok(Node::Leaf(extents))
    }
}

impl From<&DiskExtent> for Extent {
    fn from(e: &DiskExtent) -> Self {
        Self {
            logical: FileBlock(u64::from(e.ee_block.get())),
            physical: e.start(),
            len: e.len(),
            unwritten: e.is_unwritten(),
        }
    }
}

/// Whether a node's block carries the checksum it should, under metadata_csum. `seed` is that of the inode. The
/// checksum stands behind the `eh_max` entries that the header says there is room for.
#[must_use]
pub fn block_checksum_matches(seed: u32, block: &[u8]) -> bool {
    let Some(at) = tail_offset(block) else { return false };
    let stored = block.get(at..at + 4).and_then(|b| U32::read_from_bytes(b).ok());
    stored.is_some_and(|stored| stored.get() == crc32c(seed, block.get(..at).unwrap_or_default()))
}

/// Where the checksum of a node's block stands; `None` where `eh_max` leaves no room for one.
#[must_use]
pub fn tail_offset(block: &[u8]) -> Option<usize> {
    let node = RawNode::from_bytes(block)?;
    let at = ExtentHeader::SIZE + usize::from(node.header.eh_max.get()) * DiskExtent::SIZE;
    (at + ExtentTail::SIZE <= block.len()).then_some(at)
}
