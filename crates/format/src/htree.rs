//! The index of a directory: a tree of hashes over its leaf blocks.
//!
//! The root is in the directory's block 0, covered by the record of ".."; the other index blocks are covered by one
//! unused entry. So code without support for indexes can still read the directory linearly. An index block is an array
//! of (hash, block): a block contains the names from its hash up to the next one's. The first entry has no hash (it
//! counts as 0), but the array's limit and count.
//!
//! Names with the same hash may be in several leaves. Then bit 0, which is 0 in every name's hash, is set in the hash
//! of each further leaf: a reader continues with the next leaf while [`Index::next_may_contain`] is true.

use crate::checksum::crc32c;
use crate::dir::{ChecksumState, DirEntry, DirFormat, Entries, LeafTail, decode_rec_len, entry_len};
use crate::hash::{CONTINUES, HashVersion};
use crate::{Error, FileBlock, InodeNo, Result, Structure};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, IntoBytes};

disk_struct! {
    /// The head of the index in block 0 of an indexed directory, at 0x18 after the entries "." and "..".
    pub struct DxRootInfo [8] {
        /// 0.
        0x00 reserved_zero: U32,
        /// The hash function, see [`HashVersion`]; signed or unsigned by the superblock's flags.
        0x04 hash_version: u8,
        /// Length of this structure, 8.
        0x05 info_length: u8,
        /// Levels of index blocks between the root and the leaves.
        0x06 indirect_levels: u8,
        /// 0; bit 0 is an incompatible flag.
        0x07 unused_flags: u8,
    }
}

disk_struct! {
    /// The first entry's hash in an index block is replaced by this, at 0x20 in the root and at 0x08 elsewhere.
    pub struct DxCountLimit [4] {
        /// Capacity of the block in entries.
        0x00 limit: U16,
        /// Number of entries, this one included.
        0x02 count: U16,
    }
}

disk_struct! {
    /// An entry of an index block.
    pub struct DxEntry [8] {
        /// The lowest hash in the block, with bit 0 set if the previous block has names of this hash too.
        0x00 hash: U32,
        /// Block of the directory, in its lower 28 bits.
        0x04 block: U32,
    }
}

disk_struct! {
    /// The tail after the last possible entry of an index block, under metadata_csum.
    pub struct DxTail [8] {
        /// 0; under [`Extant::OWNED`](crate::feature::Extant::OWNED) the directory.
        0x00 dt_reserved: U32,
        /// CRC32C of the block up to the last entry in use, then of this tail with this field 0.
        0x04 dt_checksum: U32,
    }
}

/// The offset of the entries in a block that is not the root.
const NODE_ENTRIES: usize = DirEntry::SIZE;

/// The offset of [`DxRootInfo`]: after "." and "..".
const ROOT_INFO: usize = 24;

/// The offset of the entries in the root.
const ROOT_ENTRIES: usize = ROOT_INFO + DxRootInfo::SIZE;

/// The bits of an entry's `block` that are the block number.
const BLOCK_MASK: u32 = 0x0FFF_FFFF;

/// The properties of the volume and of the directory's inode that the reader of an index must know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexFormat {
    /// The format of the directory's entries.
    pub dir: DirFormat,
    /// Feature metadata_csum: index blocks end in a [`DxTail`].
    pub checksums: bool,
    /// Feature large_dir: one more level.
    pub large_dir: bool,
}

impl IndexFormat {
    /// The maximum number of index block levels below the root.
    #[must_use]
    pub fn max_indirect_levels(&self) -> u8 {
        if self.large_dir { 2 } else { 1 }
    }

    /// The limit that the root must have.
    #[must_use]
    pub fn root_limit(&self) -> usize {
        self.limit(ROOT_ENTRIES)
    }

    /// The limit that any other index block must have.
    #[must_use]
    pub fn node_limit(&self) -> usize {
        // the hash in a hashed directory's entries is included although this entry has none
        self.limit(entry_len(0, self.dir.hashed))
    }

    fn limit(&self, head: usize) -> usize {
        let tail = if self.checksums { DxTail::SIZE } else { 0 };
        (self.dir.block_size as usize).saturating_sub(head + tail) / DxEntry::SIZE
    }
}

fn corrupt(what: &'static str) -> Error {
    Error::corrupt(Structure::HashTree, what)
}

/// The entries of one index block: at least one, hashes not descending.
#[derive(Debug, Clone, Copy)]
pub struct Index<'a> {
    entries: &'a [DxEntry],
}

impl<'a> Index<'a> {
    /// The entries of an index block that is not the root.
    ///
    /// # Errors
    /// Corruption where `block` is not one unused entry of the block's length, where limit or count are wrong, or where
    /// the hashes descend.
    pub fn parse_node(block: &'a [u8], format: &IndexFormat) -> Result<Self> {
        let head = Entries::new(block, format.dir).next().transpose()?;
        if !head.is_some_and(|e| !e.is_used() && e.rec_len == block.len() && e.name.is_empty()) {
            return Err(corrupt("an index block does not start with an unused entry of the block's length"));
        }
        Self::parse(block, NODE_ENTRIES, format.node_limit())
    }

    fn parse(block: &'a [u8], start: usize, expected_limit: usize) -> Result<Self> {
        let space = block.get(start..).unwrap_or_default();
        let (head, _) = DxCountLimit::ref_from_prefix(space).map_err(|_| corrupt("an index block is too short"))?;
        if usize::from(head.limit.get()) != expected_limit {
            return Err(corrupt("the limit of an index block is not what its size allows"));
        }
        let count = usize::from(head.count.get());
        if count == 0 || count > expected_limit {
            return Err(corrupt("the count of an index block is 0 or above its limit"));
        }
        let (entries, _) = <[DxEntry]>::ref_from_prefix_with_elems(space, count)
            .map_err(|_| corrupt("the entries of an index block reach beyond its end"))?;
        if !entries[1..].is_sorted_by_key(|e| e.hash.get()) {
            return Err(corrupt("the hashes of an index block are not in order"));
        }
        Ok(Index { entries })
    }

    /// The number of entries, at least 1.
    #[allow(clippy::len_without_is_empty, reason = "an index is never empty")]
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// The hash of entry `i`, or `None` past the last; 0 for entry 0. Bit 0 marks a continuation.
    #[must_use]
    pub fn hash(&self, i: usize) -> Option<u32> {
        let entry = self.entries.get(i)?;
        Some(if i == 0 { 0 } else { entry.hash.get() })
    }

    /// The directory block of entry `i`, or `None` past the last: a leaf, or in all but the lowest level an index
    /// block. The number is not validated, as that requires the directory's size.
    #[must_use]
    pub fn block(&self, i: usize) -> Option<FileBlock> {
        self.entries.get(i).map(|e| FileBlock(u64::from(e.block.get() & BLOCK_MASK)))
    }

    /// All entries as (hash, block).
    pub fn iter(&self) -> impl Iterator<Item = (u32, FileBlock)> + use<'a> {
        let index = *self;
        (0..self.len()).filter_map(move |i| Some((index.hash(i)?, index.block(i)?)))
    }

    /// The entry to follow for `hash`: the last one with a hash not above it.
    #[must_use]
    pub fn position(&self, hash: u32) -> usize {
        self.entries[1..].partition_point(|e| e.hash.get() <= hash)
    }

    /// Whether the block after that of entry `i` may contain further names of `hash`; `None` where `i` is the last
    /// entry, so that the next entry of the level above decides.
    #[must_use]
    pub fn next_may_contain(&self, i: usize, hash: u32) -> Option<bool> {
        self.hash(i.checked_add(1)?).map(|next| next & !CONTINUES == hash & !CONTINUES)
    }
}

/// The root of an index: block 0 of an indexed directory.
#[derive(Debug, Clone, Copy)]
pub struct DxRoot<'a> {
    /// The inode of ".": the directory itself.
    pub own: InodeNo,
    /// The inode of "..".
    pub parent: InodeNo,
    /// The hash function in the root: signed, whatever the superblock's flags. See [`HashVersion::to_unsigned`].
    pub hash_version: HashVersion,
    /// Levels of index blocks between the root and the leaves; at most what the features allow.
    pub indirect_levels: u8,
    /// The entries.
    pub index: Index<'a>,
}

impl<'a> DxRoot<'a> {
    /// Reads block 0 of a directory whose inode has the index flag.
    ///
    /// # Errors
    /// Corruption where "." or ".." are wrong, where the hash function is unknown or invalid for this directory, where
    /// there are more levels than the features allow, or as for [`Index::parse_node`].
    pub fn parse(block: &'a [u8], format: &IndexFormat) -> Result<Self> {
        let mut entries = Entries::new(block, format.dir);
        let mut dot = |name: &[u8], rec_len: usize, what| match entries.next().transpose()? {
            Some(e) if e.is_used() && e.name == name && e.rec_len == rec_len => Ok(e.inode),
            _ => Err(corrupt(what)),
        };
        let own = dot(b".", 12, "the index root does not start with \".\"")?;
        let parent = dot(b"..", block.len().saturating_sub(12), "\"..\" does not cover the rest of the index root")?;
        let info = DxRootInfo::of(block).ok_or_else(|| corrupt("the index root is too short"))?;
        if usize::from(info.info_length) != DxRootInfo::SIZE {
            return Err(corrupt("the information in the index root has another length than 8"));
        }
        let hash_version = match HashVersion::from_raw(info.hash_version) {
            Some(v @ HashVersion::SipHash) if format.dir.hashed => v,
            Some(v @ (HashVersion::Legacy | HashVersion::HalfMd4 | HashVersion::Tea)) if !format.dir.hashed => v,
            _ => return Err(corrupt("the hash function of the index is not one for this directory")),
        };
        if info.unused_flags & 1 != 0 {
            return Err(corrupt("the index root has a flag that has no meaning"));
        }
        if info.indirect_levels > format.max_indirect_levels() {
            return Err(corrupt("the index has too many levels"));
        }
        let index = Index::parse(block, ROOT_ENTRIES, format.root_limit())?;
        Ok(DxRoot { own, parent, hash_version, indirect_levels: info.indirect_levels, index })
    }
}

impl DxRootInfo {
    /// The bytes at this structure's location in an index root, or `None` where `block` is too short.
    #[must_use]
    pub fn of(block: &[u8]) -> Option<&DxRootInfo> {
        DxRootInfo::ref_from_prefix(block.get(ROOT_INFO..)?).ok().map(|(info, _)| info)
    }
}

/// The offset of the [`DxCountLimit`] in `block`: 0x20 if it looks like an index root, 0x08 if it looks like another
/// index block, `None` if it is neither. Identified by the covering directory entries alone.
#[must_use]
pub fn count_limit_offset(block: &[u8], block_size: u32) -> Option<usize> {
    let rec_len = |offset: usize| {
        let (head, _) = DirEntry::ref_from_prefix(block.get(offset..)?).ok()?;
        Some(decode_rec_len(head.rec_len.get(), block_size))
    };
    let first = rec_len(0)?;
    if first == block_size {
        return Some(NODE_ENTRIES);
    }
    let info = DxRootInfo::of(block)?;
    let is_root = first == 12
        && rec_len(12)? == block_size.checked_sub(12)?
        && info.reserved_zero.get() == 0
        && usize::from(info.info_length) == DxRootInfo::SIZE;
    is_root.then_some(ROOT_ENTRIES)
}

/// The offset of the tail of an index block, the checksum in it, and the right checksum.
fn index_tail(block: &[u8], block_size: u32, seed: u32) -> Option<(usize, u32, u32)> {
    let start = count_limit_offset(block, block_size)?;
    let (head, _) = DxCountLimit::ref_from_prefix(block.get(start..)?).ok()?;
    // both at most 65535, so no overflow
    let end = start + usize::from(head.count.get()) * DxEntry::SIZE;
    let tail_at = start + usize::from(head.limit.get()) * DxEntry::SIZE;
    let (tail, _) = DxTail::ref_from_prefix(block.get(tail_at..)?).ok()?;
    let blank = DxTail { dt_checksum: 0.into(), ..*tail };
    Some((tail_at, tail.dt_checksum.get(), crc32c(crc32c(seed, block.get(..end)?), blank.as_bytes())))
}

/// Checks the checksum of an index block, root or not. `seed` is the directory inode's, as for
/// [`leaf_checksum`](crate::dir::leaf_checksum).
#[must_use]
pub fn index_checksum(block: &[u8], block_size: u32, seed: u32) -> ChecksumState {
    match index_tail(block, block_size, seed) {
        Some((_, stored, computed)) => ChecksumState::compare(stored, computed),
        None => ChecksumState::Missing,
    }
}

/// The owner in the tail of an index block, on a volume with owners. `None` where the block has no space for it.
#[must_use]
pub fn index_owner(block: &[u8], block_size: u32) -> Option<InodeNo> {
    let (at, _, _) = index_tail(block, block_size, 0)?;
    DxTail::ref_from_prefix(block.get(at..)?).ok().map(|(tail, _)| InodeNo(tail.dt_reserved.get()))
}

/// Writes the owner of an index block; [`write_index_checksum`] adds the checksum. `None`, with nothing written, where
/// it has no space for it.
pub fn write_index_owner(block: &mut [u8], block_size: u32, owner: InodeNo) -> Option<()> {
    let (at, _, _) = index_tail(block, block_size, 0)?;
    let (tail, _) = DxTail::mut_from_prefix(block.get_mut(at..)?).ok()?;
    tail.dt_reserved = owner.get().into();
    Some(())
}

/// Stores the checksum of an index block. Returns `None`, with nothing written, where it has no space for it.
pub fn write_index_checksum(block: &mut [u8], block_size: u32, seed: u32) -> Option<()> {
    let (tail_at, _, computed) = index_tail(block, block_size, seed)?;
    let (tail, _) = DxTail::mut_from_prefix(block.get_mut(tail_at..)?).ok()?;
    tail.dt_checksum = computed.into();
    Some(())
}

/// Checks the checksum of a directory block: a leaf, which ends in `tail`, or an index block, identified by its
/// content.
#[must_use]
pub fn block_checksum(block: &[u8], block_size: u32, tail: LeafTail, seed: u32) -> ChecksumState {
    // an index root may still have its old tail of a leaf, but no leaf with a tail looks like an index block
    match count_limit_offset(block, block_size) {
        Some(_) => index_checksum(block, block_size, seed),
        None => tail.check(block, seed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dir::{FileType, write_entry};
    use proptest::prelude::*;

    const FORMAT: IndexFormat = IndexFormat {
        dir: DirFormat { block_size: 1024, file_type: true, hashed: false },
        checksums: true,
        large_dir: false,
    };

    fn put_entries(block: &mut [u8], start: usize, limit: usize, entries: &[(u32, u32)]) {
        for (i, &(hash, to)) in entries.iter().enumerate() {
            let entry = DxEntry { hash: hash.into(), block: to.into() };
            block[start + 8 * i..][..8].copy_from_slice(entry.as_bytes());
        }
        let head = DxCountLimit { limit: (limit as u16).into(), count: (entries.len() as u16).into() };
        block[start..][..4].copy_from_slice(head.as_bytes());
    }

    fn root(format: &IndexFormat, version: u8, levels: u8, entries: &[(u32, u32)]) -> Vec<u8> {
        let mut block = vec![0; format.dir.block_size as usize];
        let dir = Some(FileType::Directory);
        write_entry(&mut block[..12], InodeNo(11), b".", dir, None, format.dir).unwrap();
        write_entry(&mut block[12..], InodeNo(2), b"..", dir, None, format.dir).unwrap();
        block[28..32].copy_from_slice(&[version, 8, levels, 0]);
        put_entries(&mut block, 32, format.root_limit(), entries);
        block
    }

    fn node(format: &IndexFormat, entries: &[(u32, u32)]) -> Vec<u8> {
        let mut block = vec![0; format.dir.block_size as usize];
        block[4..6].copy_from_slice(&(format.dir.block_size as u16).to_le_bytes());
        put_entries(&mut block, 8, format.node_limit(), entries);
        block
    }

    fn what<T: std::fmt::Debug>(result: Result<T>) -> &'static str {
        match result {
            Err(Error::Corrupt { what, .. }) => what,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn limits() {
        // as in mke2fs and the kernel
        assert_eq!((FORMAT.root_limit(), FORMAT.node_limit()), (123, 126));
        let plain = IndexFormat { checksums: false, ..FORMAT };
        assert_eq!((plain.root_limit(), plain.node_limit()), (124, 127));
        let hashed = IndexFormat { dir: DirFormat { hashed: true, block_size: 4096, file_type: true }, ..FORMAT };
        assert_eq!((hashed.root_limit(), hashed.node_limit()), (507, 509));
    }

    #[test]
    fn reads_a_root() {
        let block = root(&FORMAT, 1, 1, &[(0, 1), (0x1000, 2), (0x1001, 0xF000_0003), (0x1001, 4), (0x8000_0000, 5)]);
        let root = DxRoot::parse(&block, &FORMAT).unwrap();
        assert_eq!((root.own, root.parent), (InodeNo(11), InodeNo(2)));
        assert_eq!((root.hash_version, root.indirect_levels), (HashVersion::HalfMd4, 1));
        let index = root.index;
        let blocks: Vec<u64> = index.iter().map(|(_, block)| block.get()).collect();
        assert_eq!(blocks, [1, 2, 3, 4, 5]);
        assert_eq!([0, 0xFFE, 0x1000, 0x1002, 0x8000_0000, !1].map(|h| index.position(h)), [0, 0, 1, 3, 4, 4]);
        assert_eq!(index.next_may_contain(1, 0x1000), Some(true));
        assert_eq!(index.next_may_contain(2, 0x1000), Some(true));
        assert_eq!(index.next_may_contain(3, 0x1000), Some(false));
        assert_eq!(index.next_may_contain(4, 0x1000), None);
        assert_eq!((index.hash(0), index.hash(5), index.block(5)), (Some(0), None, None));
    }

    #[test]
    fn a_root_may_end_in_the_tail_of_the_leaf_it_was() {
        let mut block = root(&FORMAT, 1, 0, &[(0, 1)]);
        crate::dir::DirTail::write(&mut block, 7).unwrap();
        write_index_checksum(&mut block, 1024, 7).unwrap();
        assert!(crate::dir::DirTail::of(&block).is_some());
        assert_eq!(block_checksum(&block, 1024, LeafTail::Checksum, 7), ChecksumState::Good);
        assert!(matches!(block_checksum(&block, 1024, LeafTail::Checksum, 8), ChecksumState::Bad { .. }));
        write_index_owner(&mut block, 1024, InodeNo(99)).unwrap();
        assert_eq!(index_owner(&block, 1024), Some(InodeNo(99)));
        assert!(matches!(index_checksum(&block, 1024, 7), ChecksumState::Bad { .. }), "the owner is covered");
    }

    #[test]
    fn refuses_bad_roots() {
        let parse = |block: Vec<u8>| what(DxRoot::parse(&block, &FORMAT).map(|_| ()));
        let good = root(&FORMAT, 1, 1, &[(0, 1), (4, 2)]);
        let with = |at: usize, value: u8| {
            let mut block = good.clone();
            block[at] = value;
            block
        };
        assert!(DxRoot::parse(&good, &FORMAT).is_ok());
        assert_eq!(parse(with(8, b'x')), "the index root does not start with \".\"");
        assert_eq!(parse(with(16, 0xF0)), "\"..\" does not cover the rest of the index root");
        assert_eq!(parse(with(28, 4)), "the hash function of the index is not one for this directory");
        assert_eq!(parse(with(28, 6)), "the hash function of the index is not one for this directory");
        assert_eq!(parse(with(29, 12)), "the information in the index root has another length than 8");
        assert_eq!(parse(with(30, 2)), "the index has too many levels");
        assert_eq!(parse(with(31, 1)), "the index root has a flag that has no meaning");
        assert_eq!(parse(with(32, 124)), "the limit of an index block is not what its size allows");
        assert_eq!(parse(with(34, 124)), "the count of an index block is 0 or above its limit");
        assert_eq!(parse(with(34, 0)), "the count of an index block is 0 or above its limit");
        let unordered = root(&FORMAT, 1, 1, &[(0, 1), (4, 2), (2, 3)]);
        assert_eq!(parse(unordered), "the hashes of an index block are not in order");
        let deep = root(&FORMAT, 1, 2, &[(0, 1)]);
        assert!(DxRoot::parse(&deep, &IndexFormat { large_dir: true, ..FORMAT }).is_ok());
    }

    #[test]
    fn reads_a_node() {
        let mut block = node(&FORMAT, &[(0, 7), (8, 8)]);
        let index = Index::parse_node(&block, &FORMAT).unwrap();
        assert_eq!((index.len(), index.block(index.position(9))), (2, Some(FileBlock(8))));
        block[0] = 1;
        assert!(Index::parse_node(&block, &FORMAT).is_err());
    }

    #[test]
    fn checksums() {
        let seed = 0x1234;
        for mut block in [root(&FORMAT, 1, 0, &[(0, 1), (4, 2)]), node(&FORMAT, &[(0, 1), (4, 2)])] {
            assert!(matches!(index_checksum(&block, 1024, seed), ChecksumState::Bad { stored: 0, .. }));
            write_index_checksum(&mut block, 1024, seed).unwrap();
            assert_eq!(block_checksum(&block, 1024, LeafTail::Checksum, seed), ChecksumState::Good);
            assert!(block[1020..] != [0; 4]);
            // bytes after the last entry in use are ignored
            block[200] ^= 1;
            assert_eq!(index_checksum(&block, 1024, seed), ChecksumState::Good);
            block[12] ^= 1;
            assert!(matches!(block_checksum(&block, 1024, LeafTail::Checksum, seed), ChecksumState::Bad { .. }));
        }
        let mut plain = node(&IndexFormat { checksums: false, ..FORMAT }, &[(0, 1)]);
        assert_eq!(index_checksum(&plain, 1024, seed), ChecksumState::Missing);
        assert_eq!(write_index_checksum(&mut plain, 1024, seed), None);
        assert_eq!(count_limit_offset(&[0; 1024], 1024), None);
    }

    proptest! {
        #[test]
        fn any_bytes(
            kind in 0u8..3, noise in proptest::collection::vec((0usize..64, any::<u8>()), 0..8),
            len in 0usize..=1024, checksums: bool, hashed: bool,
        ) {
            let format = IndexFormat { dir: DirFormat { hashed, ..FORMAT.dir }, checksums, large_dir: false };
            let entries = [(0, 1), (4, 2), (8, 3)];
            let mut block = match kind {
                0 => root(&format, 1, 0, &entries),
                1 => node(&format, &entries),
                _ => vec![0; 1024],
            };
            for (at, value) in noise {
                block[at] = value;
            }
            let block = &block[..len];
            if let Ok(root) = DxRoot::parse(block, &format) {
                prop_assert!(root.index.position(u32::MAX) < root.index.len());
            }
            if let Ok(index) = Index::parse_node(block, &format) {
                prop_assert_eq!(index.iter().count(), index.len());
            }
            let _ = block_checksum(block, 1024, LeafTail::Owned, 0);
        }
    }
}
