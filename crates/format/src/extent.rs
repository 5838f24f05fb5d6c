//! Extent trees: in `i_block`, and in blocks with a checksum at their end.

use crate::checksum::crc32c;
use crate::{Error, FileBlock, FsBlock, InodeNo, Result, Structure};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, IntoBytes};

/// `eh_magic`
pub const MAGIC: u16 = 0xF30A;
/// Deepest tree the format allows: five levels of index above the leaves.
pub const MAX_DEPTH: u16 = 5;
/// Maximum number of blocks of a file: the kernel uses the last 32-bit number as "none".
pub const MAX_BLOCKS: u64 = 0xFFFF_FFFF;
/// Maximum length of an initialised extent; a larger `ee_len` is that of an unwritten extent plus this.
pub const MAX_INIT_LEN: u16 = 32768;

disk_struct! {
    /// Head of every node of an extent tree.
    pub struct ExtentHeader[12] {
        /// 0xF30A
        0x0 eh_magic: U16,
        /// entries in use
        0x2 eh_entries: U16,
        /// capacity in entries
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
        /// blocks; above 32 768 the extent is unwritten and has 32 768 fewer
        0x4 ee_len: U16,
        /// first block of the volume, high half
        0x6 ee_start_hi: U16,
        /// first block of the volume, low half
        0x8 ee_start_lo: U32,
    }
}

disk_struct! {
    /// The tail after the last possible entry of a block under metadata_csum.
    pub struct ExtentTail[4] {
        /// CRC32C of the inode's seed and the block before it
        0x0 et_checksum: U32,
    }
}

disk_struct! {
    /// The tail with an owner after the last possible entry of a block; `eh_max` is one less than usual to make space
    /// for it.
    pub struct OwnedExtentTail[16] {
        /// The inode that owns the tree.
        0x0 xt_owner: U32,
        /// The node's depth, as in `eh_depth`.
        0x4 xt_depth: U32,
        /// 0.
        0x8 xt_reserved: U32,
        /// CRC32C of the inode's seed and the block up to this field.
        0xC xt_checksum: U32,
    }
}

impl OwnedExtentTail {
    /// The tail of a node's block; `None` where `eh_max` leaves no space for one.
    #[must_use]
    pub fn of(block: &[u8]) -> Option<&Self> {
        let at = tail_offset(block)?;
        Self::ref_from_prefix(block.get(at..)?).ok().map(|(tail, _)| tail)
    }

    /// Adds the tail to the node in `block` and decrements `eh_max`. `None`, with nothing written, where it has an
    /// entry too many, or was not written by [`write_leaf`] or [`write_inner`].
    pub fn write(block: &mut [u8], owner: InodeNo) -> Option<()> {
        let max = u16::try_from(owned_capacity(block.len())).ok()?;
        let (header, _) = ExtentHeader::mut_from_prefix(block).ok()?;
        if usize::from(header.eh_max.get()) != usize::from(max) + 1 || header.eh_entries.get() > max {
            return None;
        }
        header.eh_max = max.into();
        let depth = u32::from(header.eh_depth.get());
        let tail = Self {
            xt_owner: owner.get().into(),
            xt_depth: depth.into(),
            xt_reserved: U32::ZERO,
            xt_checksum: U32::ZERO,
        };
        let at = tail_offset(block)?;
        block.get_mut(at..at + Self::SIZE)?.copy_from_slice(tail.as_bytes());
        Some(())
    }

    /// Writes the checksum; `seed` is that of the inode. `None`, with nothing written, where there is no space for one.
    pub fn set_checksum(seed: u32, block: &mut [u8]) -> Option<()> {
        let sum = Self::sum(seed, block)?;
        let at = tail_offset(block)?;
        let (tail, _) = Self::mut_from_prefix(block.get_mut(at..)?).ok()?;
        tail.xt_checksum = sum.into();
        Some(())
    }

    /// Whether the checksum of a node's block is right; `seed` is that of the inode.
    #[must_use]
    pub fn checksum_matches(seed: u32, block: &[u8]) -> bool {
        Self::of(block).is_some_and(|tail| Self::sum(seed, block) == Some(tail.xt_checksum.get()))
    }

    fn sum(seed: u32, block: &[u8]) -> Option<u32> {
        let at = tail_offset(block)? + Self::SIZE;
        block.get(at..).is_some().then_some(())?;
        Some(crc32c(seed, block.get(..at - 4)?))
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

    /// The number of its blocks, written or not.
    #[inline]
    #[must_use]
    pub fn len(&self) -> u32 {
        let len = self.ee_len.get();
        u32::from(if len > MAX_INIT_LEN { len - MAX_INIT_LEN } else { len })
    }

    /// Whether it has no blocks, which is invalid.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ee_len.get() == 0
    }

    /// Whether it is allocated but unwritten, so that it reads as zeros.
    #[inline]
    #[must_use]
    pub fn is_unwritten(&self) -> bool {
        self.ee_len.get() > MAX_INIT_LEN
    }
}

/// An unchecked node: its header, and the entries that fit into the bytes.
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

    /// The capacity of the bytes in entries.
    #[inline]
    #[must_use]
    pub fn capacity(&self) -> u16 {
        (self.body.len() / 12).min(usize::from(u16::MAX)) as u16
    }

    fn used(&self) -> &'a [u8] {
        let len = usize::from(self.header.eh_entries.get()).min(usize::from(self.capacity())) * 12;
        self.body.get(..len).unwrap_or_default()
    }

    /// The entries of a leaf: `eh_entries` of them, as far as they fit.
    #[inline]
    #[must_use]
    pub fn extents(&self) -> &'a [DiskExtent] {
        <[DiskExtent]>::ref_from_bytes(self.used()).unwrap_or_default()
    }

    /// The entries of an inner node: `eh_entries` of them, as far as they fit.
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
    /// Whether it is unwritten, so that it reads as zeros.
    pub unwritten: bool,
}

/// A validated node: entries in ascending order, each inside the volume.
#[derive(Debug, Clone, Copy)]
pub enum Node<'a> {
    /// Runs of blocks.
    Leaf(&'a [DiskExtent]),
    /// Children, and the depth they must have.
    Inner(&'a [ExtentIndex], u16),
}

impl<'a> Node<'a> {
    /// Validates the node in these bytes: `depth` is the depth it must have (`None` for a root), `blocks` the volume's
    /// length.
    ///
    /// # Errors
    /// [`Error::Corrupt`] with the first violated rule.
    pub fn parse(bytes: &'a [u8], depth: Option<u16>, blocks: u64) -> Result<Self> {
        let bad = |what| Err(Error::corrupt(Structure::ExtentTree, what));
        let Some(raw) = RawNode::from_bytes(bytes) else { return bad("no space for a header") };
        let found = raw.header.eh_depth.get();
        if raw.header.eh_magic.get() != MAGIC {
            return bad("eh_magic is not 0xF30A");
        }
        if found > MAX_DEPTH || depth.is_some_and(|d| d != found) {
            return bad("eh_depth is not one less than its parent's, or over 5");
        }
        if raw.header.eh_max.get() > raw.capacity() || raw.header.eh_entries.get() > raw.header.eh_max.get() {
            return bad("eh_entries or eh_max is more than there is space for");
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

/// A child of an inner node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Child {
    /// First block of the file that the child covers.
    pub logical: FileBlock,
    /// The child's block on the volume.
    pub block: FsBlock,
}

impl From<&ExtentIndex> for Child {
    fn from(e: &ExtentIndex) -> Self {
        Self { logical: FileBlock(u64::from(e.ei_block.get())), block: e.child() }
    }
}

impl Extent {
    /// The entry of a leaf; `None` where the run is empty, longer than the maximum (32 768 blocks, unwritten 32 767),
    /// or begins beyond block 2^32 of the file or 2^48 of the volume.
    #[must_use]
    pub fn to_disk(&self) -> Option<DiskExtent> {
        let most = u32::from(MAX_INIT_LEN) - u32::from(self.unwritten);
        let (start_lo, start_hi) = split48(self.physical)?;
        let len = u16::try_from(self.len).ok().filter(|_| (1..=most).contains(&self.len))?;
        Some(DiskExtent {
            ee_block: u32::try_from(self.logical.get()).ok()?.into(),
            ee_len: (if self.unwritten { len + MAX_INIT_LEN } else { len }).into(),
            ee_start_hi: start_hi,
            ee_start_lo: start_lo,
        })
    }
}

impl Child {
    /// The entry of an inner node; `None` where a number is beyond 2^32 of the file or 2^48 of the volume.
    #[must_use]
    pub fn to_disk(&self) -> Option<ExtentIndex> {
        let (leaf_lo, leaf_hi) = split48(self.block)?;
        Some(ExtentIndex {
            ei_block: u32::try_from(self.logical.get()).ok()?.into(),
            ei_leaf_lo: leaf_lo,
            ei_leaf_hi: leaf_hi,
            ei_unused: U16::ZERO,
        })
    }
}

fn split48(block: FsBlock) -> Option<(U32, U16)> {
    let high = u16::try_from(block.get() >> 32).ok()?;
    Some((U32::new(block.get() as u32), U16::new(high)))
}

/// The capacity in entries of a node of `bytes` bytes: 4 in `i_block`; in a block the bytes after them have space for
/// the checksum with any block size.
#[inline]
#[must_use]
pub fn capacity(bytes: usize) -> usize {
    bytes.saturating_sub(ExtentHeader::SIZE) / DiskExtent::SIZE
}

/// The capacity in entries of a node's block of `bytes` bytes with an owner in its tail. The root is not affected.
#[inline]
#[must_use]
pub fn owned_capacity(bytes: usize) -> usize {
    capacity(bytes).saturating_sub(1)
}

/// Writes a leaf with these extents, which are in ascending order, into `node` (60 bytes of `i_block`, or a block).
/// Bytes after them become zero; [`set_block_checksum`] adds the checksum. `None`, with `node` partly written, where an
/// extent has no [`to_disk`](Extent::to_disk) form or they exceed the [`capacity`].
#[must_use]
pub fn write_leaf(node: &mut [u8], extents: &[Extent]) -> Option<()> {
    write_node(node, 0, extents.iter().map(Extent::to_disk))
}

/// Writes an inner node of `depth` with these children, which are in ascending order, into `node`; otherwise as
/// [`write_leaf`].
#[must_use]
pub fn write_inner(node: &mut [u8], depth: u16, children: &[Child]) -> Option<()> {
    write_node(node, depth, children.iter().map(Child::to_disk))
}

fn write_node<E: IntoBytes + zerocopy::Immutable>(
    node: &mut [u8],
    depth: u16,
    entries: impl ExactSizeIterator<Item = Option<E>>,
) -> Option<()> {
    let max = u16::try_from(capacity(node.len())).unwrap_or(u16::MAX);
    let count = u16::try_from(entries.len()).ok().filter(|count| *count <= max)?;
    node.fill(0);
    let header = ExtentHeader {
        eh_magic: MAGIC.into(),
        eh_entries: count.into(),
        eh_max: max.into(),
        eh_depth: depth.into(),
        eh_generation: U32::ZERO,
    };
    let (head, body) = node.split_at_mut_checked(ExtentHeader::SIZE)?;
    head.copy_from_slice(header.as_bytes());
    for (slot, entry) in body.chunks_exact_mut(DiskExtent::SIZE).zip(entries) {
        slot.copy_from_slice(entry?.as_bytes());
    }
    Some(())
}

/// Writes the checksum at the end of a node's block, under metadata_csum; `seed` is that of the inode. `None`, with
/// nothing written, where `eh_max` leaves no space for one.
pub fn set_block_checksum(seed: u32, block: &mut [u8]) -> Option<()> {
    let at = tail_offset(block)?;
    let (before, tail) = block.split_at_mut_checked(at)?;
    let checksum = ExtentTail { et_checksum: crc32c(seed, before).into() };
    tail.get_mut(..ExtentTail::SIZE)?.copy_from_slice(checksum.as_bytes());
    Some(())
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

/// Whether the checksum of a node's block is right, under metadata_csum; `seed` is that of the inode. The checksum
/// follows the space for `eh_max` entries.
#[must_use]
pub fn block_checksum_matches(seed: u32, block: &[u8]) -> bool {
    let Some(at) = tail_offset(block) else { return false };
    let stored = block.get(at..at + 4).and_then(|b| U32::read_from_bytes(b).ok());
    stored.is_some_and(|stored| stored.get() == crc32c(seed, block.get(..at).unwrap_or_default()))
}

/// The offset in bytes of the checksum in a node's block; `None` where `eh_max` leaves no space for one.
#[must_use]
pub fn tail_offset(block: &[u8]) -> Option<usize> {
    let node = RawNode::from_bytes(block)?;
    let at = ExtentHeader::SIZE + usize::from(node.header.eh_max.get()) * DiskExtent::SIZE;
    (at + ExtentTail::SIZE <= block.len()).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(logical: u64, physical: u64, len: u32, unwritten: bool) -> Extent {
        Extent { logical: FileBlock(logical), physical: FsBlock(physical), len, unwritten }
    }

    #[test]
    fn what_is_written_is_parsed() {
        let extents =
            [extent(0, 7 << 32 | 5, 32768, false), extent(32768, 9, 32767, true), extent(80_000, 99, 1, true)];
        for size in [60, 1024, 4096, 65536] {
            let mut node = vec![0xFF; size];
            write_leaf(&mut node, &extents).unwrap();
            let Node::Leaf(read) = Node::parse(&node, Some(0), 1 << 40).unwrap() else { panic!("no leaf") };
            assert_eq!(read.iter().map(Extent::from).collect::<Vec<_>>(), extents);
            assert_eq!(set_block_checksum(9, &mut node).is_some(), size > 60);
            assert_eq!(block_checksum_matches(9, &node), size > 60);
            assert!(!block_checksum_matches(8, &node));

            let children = [Child { logical: FileBlock(0), block: FsBlock(1 << 47) }; 1];
            write_inner(&mut node, 2, &children).unwrap();
            let Node::Inner(read, 1) = Node::parse(&node, Some(2), 1 << 48).unwrap() else { panic!("no inner node") };
            assert_eq!(read.iter().map(Child::from).collect::<Vec<_>>(), children);
        }
    }

    #[test]
    fn a_node_says_whose_it_is() {
        for size in [1024, 2048, 4096, 65536] {
            let most = owned_capacity(size);
            let extents: Vec<_> = (0..=most as u64).map(|n| extent(n * 2, 100 + n * 3, 1, false)).collect();
            let mut node = vec![0; size];
            write_leaf(&mut node, &extents).unwrap();
            assert!(OwnedExtentTail::write(&mut node, InodeNo(12)).is_none());
            write_leaf(&mut node, &extents[..most]).unwrap();
            OwnedExtentTail::write(&mut node, InodeNo(12)).unwrap();
            OwnedExtentTail::set_checksum(9, &mut node).unwrap();
            let Node::Leaf(read) = Node::parse(&node, Some(0), 1 << 40).unwrap() else { panic!("no leaf") };
            assert_eq!(read.iter().map(Extent::from).collect::<Vec<_>>(), extents[..most]);
            let tail = OwnedExtentTail::of(&node).unwrap();
            assert_eq!((tail.xt_owner.get(), tail.xt_depth.get()), (12, 0));
            assert!(OwnedExtentTail::checksum_matches(9, &node) && !OwnedExtentTail::checksum_matches(8, &node));
            let at = tail_offset(&node).unwrap();
            node[at] ^= 1;
            assert!(!OwnedExtentTail::checksum_matches(9, &node));
        }
        assert_eq!(owned_capacity(4096), 339);
        assert!(OwnedExtentTail::write(&mut [0; 20], InodeNo(12)).is_none());
    }

    #[test]
    fn what_no_entry_can_say_is_refused() {
        for wrong in [
            extent(0, 5, 0, false),
            extent(0, 5, 32769, false),
            extent(0, 5, 32768, true),
            extent(1 << 32, 5, 1, false),
            extent(0, 1 << 48, 1, false),
        ] {
            assert_eq!(wrong.to_disk(), None, "{wrong:?}");
        }
        assert!(write_leaf(&mut [0; 60], &[extent(0, 5, 1, false); 5]).is_none());
        assert!(write_leaf(&mut [0; 11], &[]).is_none());
    }
}
