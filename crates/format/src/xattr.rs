//! Extended attributes: in the inode after its extra fields, in a separate block, and values in separate inodes.
//!
//! Both areas have the same format: a header, then entries up to four zero bytes, and values from the end backwards. An
//! entry has the number of its name prefix and the location of its value.
//!
//! [`XattrArea`] guarantees that the names are valid; each value is validated when it is read, so that one invalid
//! value does not affect the others. Overlap of values is checked separately by [`XattrArea::overlap`], as it is
//! irrelevant to a reader.

use crate::checksum::crc32c;
use crate::dir::ChecksumState;
use crate::{Error, FsBlock, InodeNo, Result, Structure};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, IntoBytes};

/// `h_magic` in an attribute block and in an inode.
pub const MAGIC: u32 = 0xEA02_0000;

/// The longest value, in an inode of its own (`EXT4_XATTR_SIZE_MAX`), in bytes.
pub const VALUE_MAX: u32 = 1 << 24;

/// The largest `h_refcount` that the kernel sets in a block.
pub const REFCOUNT_MAX: u32 = 1024;

disk_struct! {
    /// The start of an attribute block (`ext4_xattr_header`).
    pub struct XattrHeader [32] {
        /// 0xEA020000.
        0x00 h_magic: U32,
        /// Inodes that share this block.
        0x04 h_refcount: U32,
        /// Blocks used, always 1.
        0x08 h_blocks: U32,
        /// Hash of all entries, used by the kernel to find equal blocks to share; 0 for a block that is not shared.
        0x0C h_hash: U32,
        /// CRC32C under metadata_csum.
        0x10 h_checksum: U32,
        /// 0.
        0x14 h_reserved: [U32; 3],
    }
}

disk_struct! {
    /// The start of the attributes in an inode, after its extra fields (`ext4_xattr_ibody_header`).
    pub struct XattrIbodyHeader [4] {
        /// 0xEA020000; with any other value the inode has no attributes.
        0x00 h_magic: U32,
    }
}

disk_struct! {
    /// An attribute; its name without prefix follows, padded to 4 bytes (`ext4_xattr_entry`).
    pub struct XattrEntry [16] {
        /// Length of the name in bytes.
        0x00 e_name_len: u8,
        /// Number of the name's prefix, see [`prefix`].
        0x01 e_name_index: u8,
        /// Offset of the value: in a block from the block's start, in an inode from the first entry.
        0x02 e_value_offs: U16,
        /// The inode of the value, under ea_inode; otherwise 0.
        0x04 e_value_inum: U32,
        /// Length of the value in bytes.
        0x08 e_value_size: U32,
        /// Hash of name and value, see [`entry_hash`]; may be 0 in an inode.
        0x0C e_hash: U32,
    }
}

/// Numbers of name prefixes (`EXT4_XATTR_INDEX_*`).
pub mod index {
    /// `user.`
    pub const USER: u8 = 1;
    /// `system.posix_acl_access`
    pub const POSIX_ACL_ACCESS: u8 = 2;
    /// `system.posix_acl_default`
    pub const POSIX_ACL_DEFAULT: u8 = 3;
    /// `trusted.`
    pub const TRUSTED: u8 = 4;
    /// Lustre's, with the prefix `trusted.` too; never written by Linux's ext4.
    pub const LUSTRE: u8 = 5;
    /// `security.`
    pub const SECURITY: u8 = 6;
    /// `system.`; only `system.data`, inline data, is in use.
    pub const SYSTEM: u8 = 7;
    /// `system.richacl`
    pub const RICHACL: u8 = 8;
    /// The encryption context, which is hidden from programs.
    pub const ENCRYPTION: u8 = 9;
    /// `gnu.`, the Hurd's.
    pub const HURD: u8 = 10;
}

/// The prefixes of names that programs can see; with the flag, the prefix is the whole name.
const PREFIXES: [(u8, &str, bool); 8] = [
    (index::POSIX_ACL_ACCESS, "system.posix_acl_access", true),
    (index::POSIX_ACL_DEFAULT, "system.posix_acl_default", true),
    (index::RICHACL, "system.richacl", true),
    (index::USER, "user.", false),
    (index::TRUSTED, "trusted.", false),
    (index::SECURITY, "security.", false),
    (index::SYSTEM, "system.", false),
    (index::HURD, "gnu.", false),
];

/// The prefix for an `e_name_index`, or `None` for one that programs do not see.
#[must_use]
pub fn prefix(name_index: u8) -> Option<&'static str> {
    PREFIXES.iter().find(|row| row.0 == name_index).map(|row| row.1)
}

/// The attribute's name as programs see it, or `None` where they cannot: an unknown prefix, or a zero byte in the name.
#[must_use]
pub fn full_name(name_index: u8, name: &[u8]) -> Option<Vec<u8>> {
    let prefix = prefix(name_index)?;
    (!name.contains(&0)).then(|| [prefix.as_bytes(), name].concat())
}

/// Splits a program's name into `e_name_index` and the stored name; `None` where no prefix matches.
#[must_use]
pub fn split_name(full: &[u8]) -> Option<(u8, &[u8])> {
    PREFIXES.iter().find_map(|&(name_index, prefix, whole)| {
        let name = full.strip_prefix(prefix.as_bytes())?;
        (name.is_empty() == whole).then_some((name_index, name))
    })
}

/// Size in bytes of an entry with a name of `name_len` bytes.
#[must_use]
pub fn entry_len(name_len: u8) -> usize {
    XattrEntry::SIZE + usize::from(name_len).next_multiple_of(4)
}

/// One attribute: its entry and its name without prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Xattr<'a> {
    /// The entry's offset in bytes, relative to the same start as value offsets.
    pub offset: usize,
    /// The entry; its value fields are not validated.
    pub entry: &'a XattrEntry,
    /// The name without prefix.
    pub name: &'a [u8],
}

/// The location of an attribute's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    /// In the same area as the entry.
    Here(&'a [u8]),
    /// In another inode, as its file data.
    Inode {
        /// The inode; not validated.
        inode: InodeNo,
        /// The value's length in bytes, 1 to [`VALUE_MAX`].
        size: u32,
    },
}

fn corrupt(what: &'static str) -> Error {
    Error::corrupt(Structure::ExtendedAttribute, what)
}

/// An area with attributes with validated names: all are inside the area, and the terminator is present.
#[derive(Debug, Clone, Copy)]
pub struct XattrArea<'a> {
    /// The bytes that value offsets are relative to.
    bytes: &'a [u8],
    /// The offset of the first entry.
    first: usize,
    /// The offset after the terminator.
    names_end: usize,
}

impl<'a> XattrArea<'a> {
    /// The attributes in an inode: `space` is the part of the inode after its extra fields (from byte 128 +
    /// `i_extra_isize` on). `None` where there are none.
    ///
    /// # Errors
    /// Corruption where an entry reaches beyond `space` or no terminator follows the last.
    pub fn in_inode(space: &'a [u8]) -> Result<Option<Self>> {
        match XattrIbodyHeader::ref_from_prefix(space) {
            Ok((header, bytes)) if header.h_magic.get() == MAGIC => Self::walk(bytes, 0).map(Some),
            _ => Ok(None),
        }
    }

    /// The attributes in an attribute block; `block` is the whole block.
    ///
    /// # Errors
    /// Corruption where the magic number or the number of blocks is wrong, or as for [`XattrArea::in_inode`].
    pub fn in_block(block: &'a [u8]) -> Result<Self> {
        let (header, _) = XattrHeader::ref_from_prefix(block).map_err(|_| corrupt("the block is too short"))?;
        if header.h_magic.get() != MAGIC {
            return Err(corrupt("the block's magic number is wrong"));
        }
        if header.h_blocks.get() != 1 {
            return Err(corrupt("h_blocks is not 1"));
        }
        Self::walk(block, XattrHeader::SIZE)
    }

    fn walk(bytes: &'a [u8], first: usize) -> Result<Self> {
        let mut area = XattrArea { bytes, first, names_end: bytes.len() };
        let mut at = first;
        loop {
            let rest = bytes.get(at..).unwrap_or_default();
            match rest.first_chunk::<4>() {
                None => return Err(corrupt("the last entry has no terminator behind it")),
                Some([0, 0, 0, 0]) => break,
                Some(_) => {}
            }
            let xattr = area.entry(at).ok_or_else(|| corrupt("an entry reaches beyond the end"))?;
            at += entry_len(xattr.entry.e_name_len);
        }
        area.names_end = at + 4;
        Ok(area)
    }

    fn entry(&self, offset: usize) -> Option<Xattr<'a>> {
        let (entry, rest) = XattrEntry::ref_from_prefix(self.bytes.get(offset..self.names_end)?).ok()?;
        Some(Xattr { offset, entry, name: rest.get(..usize::from(entry.e_name_len))? })
    }

    /// The attributes in the order in which they are stored.
    pub fn iter(&self) -> impl Iterator<Item = Xattr<'a>> + use<'a> {
        let area = *self;
        let mut at = self.first;
        std::iter::from_fn(move || {
            if at + 4 >= area.names_end {
                return None;
            }
            let xattr = area.entry(at)?;
            at += entry_len(xattr.entry.e_name_len);
            Some(xattr)
        })
    }

    /// The attribute with this prefix and name.
    #[must_use]
    pub fn find(&self, name_index: u8, name: &[u8]) -> Option<Xattr<'a>> {
        self.iter().find(|xattr| xattr.entry.e_name_index == name_index && xattr.name == name)
    }

    /// Locates the value of one of this area's attributes.
    ///
    /// # Errors
    /// Corruption where it is too long, or is not between the names and the area's end.
    pub fn value(&self, xattr: &Xattr<'a>) -> Result<Value<'a>> {
        let size = xattr.entry.e_value_size.get();
        if size > VALUE_MAX {
            return Err(corrupt("a value is longer than the maximum"));
        }
        let inode = InodeNo(xattr.entry.e_value_inum.get());
        if inode.0 != 0 {
            return match size {
                0 => Err(corrupt("an empty value has an inode of its own")),
                _ => Ok(Value::Inode { inode, size }),
            };
        }
        if size == 0 {
            return Ok(Value::Here(&[]));
        }
        let start = usize::from(xattr.entry.e_value_offs.get());
        if start < self.names_end {
            return Err(corrupt("a value lies among the names"));
        }
        // the padding must fit, too; `size` is at most VALUE_MAX
        let padded = (size as usize).next_multiple_of(4);
        let space = self.bytes.get(start..).filter(|space| padded <= space.len());
        let value = space.and_then(|space| space.get(..size as usize));
        value.map(Value::Here).ok_or_else(|| corrupt("a value reaches beyond the end"))
    }

    /// Two attributes whose values overlap, padding included, where there are any. Values that [`XattrArea::value`]
    /// rejects are ignored.
    #[must_use]
    pub fn overlap(&self) -> Option<(Xattr<'a>, Xattr<'a>)> {
        let mut values: Vec<(usize, usize, Xattr<'a>)> = self
            .iter()
            .filter_map(|xattr| match self.value(&xattr) {
                Ok(Value::Here(value)) if !value.is_empty() => {
                    let start = usize::from(xattr.entry.e_value_offs.get());
                    Some((start, start + value.len().next_multiple_of(4), xattr))
                }
                _ => None,
            })
            .collect();
        values.sort_unstable_by_key(|value| value.0);
        values.windows(2).find(|pair| pair[0].1 > pair[1].0).map(|pair| (pair[0].2, pair[1].2))
    }

    /// `h_hash` for the block's entries: 0 if one of them has no hash, as the block is then not shared.
    #[must_use]
    pub fn block_hash(&self) -> u32 {
        let mut hash = 0u32;
        for xattr in self.iter() {
            match xattr.entry.e_hash.get() {
                0 => return 0,
                entry => hash = hash.rotate_left(16) ^ entry,
            }
        }
        hash
    }
}

/// `e_hash` for a name without prefix and its value. Bytes of the name are signed or unsigned: the kernel used both, by
/// processor, and accepts both. For a value in another inode, `value` is the little-endian [`inode_value_hash`] of the
/// value.
#[must_use]
pub fn entry_hash(name: &[u8], value: &[u8], signed: bool) -> u32 {
    let extend = |byte: u8| if signed { byte as i8 as u32 } else { u32::from(byte) };
    let hash = name.iter().fold(0u32, |hash, &byte| hash.rotate_left(5) ^ extend(byte));
    value.chunks(4).fold(hash, |hash, bytes| {
        let mut word = [0; 4];
        word[..bytes.len()].copy_from_slice(bytes);
        hash.rotate_left(16) ^ u32::from_le_bytes(word)
    })
}

/// Hash of a value in another inode, which that inode stores in its access time: CRC32C from the volume's seed.
#[must_use]
pub fn inode_value_hash(value: &[u8], volume_seed: u32) -> u32 {
    crc32c(volume_seed, value)
}

fn computed_checksum(block: &[u8], at: FsBlock, volume_seed: u32) -> Option<(u32, u32)> {
    let (header, rest) = XattrHeader::ref_from_prefix(block).ok()?;
    let blank = XattrHeader { h_checksum: 0.into(), ..*header };
    let seed = crc32c(volume_seed, &at.0.to_le_bytes());
    Some((header.h_checksum.get(), crc32c(crc32c(seed, blank.as_bytes()), rest)))
}

/// Checks the checksum of the attribute block `at`. `volume_seed` is the volume's checksum seed.
#[must_use]
pub fn block_checksum(block: &[u8], at: FsBlock, volume_seed: u32) -> ChecksumState {
    match computed_checksum(block, at, volume_seed) {
        Some((stored, computed)) => ChecksumState::compare(stored, computed),
        None => ChecksumState::Missing,
    }
}

/// Stores the checksum of the attribute block `at`. Returns `None`, with nothing written, where `block` is too short.
pub fn write_block_checksum(block: &mut [u8], at: FsBlock, volume_seed: u32) -> Option<()> {
    let (_, computed) = computed_checksum(block, at, volume_seed)?;
    let (header, _) = XattrHeader::mut_from_prefix(block).ok()?;
    header.h_checksum = computed.into();
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Attr<'a> = (u8, &'a [u8], &'a [u8]);

    /// Writes names from `first` on, and values from the end backwards.
    fn put(area: &mut [u8], first: usize, attrs: &[Attr<'_>]) {
        let (mut at, mut end) = (first, area.len());
        for &(name_index, name, value) in attrs {
            end -= value.len().next_multiple_of(4);
            let entry = XattrEntry {
                e_name_len: name.len() as u8,
                e_name_index: name_index,
                e_value_offs: (end as u16).into(),
                e_value_inum: 0.into(),
                e_value_size: (value.len() as u32).into(),
                e_hash: entry_hash(name, value, false).into(),
            };
            area[at..][..16].copy_from_slice(entry.as_bytes());
            area[at + 16..][..name.len()].copy_from_slice(name);
            area[end..][..value.len()].copy_from_slice(value);
            at += entry_len(name.len() as u8);
        }
        assert!(at + 4 <= end);
    }

    fn block(attrs: &[Attr<'_>]) -> Vec<u8> {
        let mut block = vec![0; 1024];
        block[..4].copy_from_slice(&MAGIC.to_le_bytes());
        block[4] = 1;
        block[8] = 1;
        put(&mut block, 32, attrs);
        block
    }

    fn inode_space(attrs: &[Attr<'_>]) -> Vec<u8> {
        let mut space = vec![0; 96];
        space[..4].copy_from_slice(&MAGIC.to_le_bytes());
        put(&mut space[4..], 0, attrs);
        space
    }

    fn read<'a>(area: &XattrArea<'a>) -> Vec<Attr<'a>> {
        area.iter()
            .map(|xattr| match area.value(&xattr).unwrap() {
                Value::Here(value) => (xattr.entry.e_name_index, xattr.name, value),
                Value::Inode { .. } => panic!("{xattr:?}"),
            })
            .collect()
    }

    const ATTRS: &[Attr<'_>] =
        &[(1, b"comment", b"hello"), (6, b"selinux", b"label\0"), (2, b"", b"acl!"), (1, b"e", b"")];

    #[test]
    fn reads_both_places() {
        let bytes = block(ATTRS);
        let area = XattrArea::in_block(&bytes).unwrap();
        assert_eq!(read(&area), ATTRS);
        assert_eq!(area.find(6, b"selinux").unwrap().offset, 32 + 24);
        assert_eq!(area.find(1, b"selinux"), None);
        assert!(area.overlap().is_none());
        let space = inode_space(&ATTRS[..2]);
        assert_eq!(read(&XattrArea::in_inode(&space).unwrap().unwrap()), &ATTRS[..2]);
        assert!(XattrArea::in_inode(&[0; 96]).unwrap().is_none());
        assert!(XattrArea::in_inode(&[]).unwrap().is_none());
        assert!(XattrArea::in_inode(&MAGIC.to_le_bytes()).is_err());
    }

    #[test]
    fn refuses_bad_names() {
        let good = block(ATTRS);
        let with = |at: usize, value: u8| {
            let mut bytes = good.clone();
            bytes[at] = value;
            XattrArea::in_block(&bytes).is_err()
        };
        assert!(with(0, 1), "magic");
        assert!(with(8, 2), "blocks");
        let mut bytes = vec![0xFF; 1024];
        bytes[..32].copy_from_slice(&good[..32]);
        assert!(XattrArea::in_block(&bytes).is_err(), "no terminator");
        assert!(XattrArea::in_block(&good[..31]).is_err());
        assert!(XattrArea::in_block(&good[..40]).is_err());
    }

    #[test]
    fn refuses_bad_values() {
        let value = |change: &dyn Fn(&mut XattrEntry)| {
            let mut bytes = block(ATTRS);
            change(XattrEntry::mut_from_prefix(&mut bytes[32..]).unwrap().0);
            let area = XattrArea::in_block(&bytes).unwrap();
            let first = area.iter().next().unwrap();
            let result = area.value(&first).map(|value| match value {
                Value::Here(_) => None,
                Value::Inode { inode, size } => Some((inode.0, size)),
            });
            (result, area.overlap().is_some())
        };
        assert_eq!(value(&|_| ()), (Ok(None), false));
        assert!(value(&|e| e.e_value_offs = 0xFFFF.into()).0.is_err());
        assert!(value(&|e| e.e_value_offs = 100.into()).0.is_err());
        assert!(value(&|e| e.e_value_size = 9.into()).0.is_err());
        assert!(value(&|e| e.e_value_size = (VALUE_MAX + 1).into()).0.is_err());
        assert_eq!(value(&|e| e.e_value_inum = 17.into()), (Ok(Some((17, 5))), false));
        // the second value ends where the first starts, at 1016
        assert_eq!(value(&|e| e.e_value_offs = 1012.into()), (Ok(None), true));
    }

    #[test]
    fn names() {
        assert_eq!(full_name(1, b"mime").unwrap(), b"user.mime");
        assert_eq!(full_name(2, b"").unwrap(), b"system.posix_acl_access");
        assert_eq!(full_name(9, b"c"), None);
        assert_eq!(full_name(1, b"a\0b"), None);
        assert_eq!(split_name(b"system.posix_acl_default"), Some((3, &b""[..])));
        assert_eq!(split_name(b"system.data"), Some((7, &b"data"[..])));
        assert_eq!(split_name(b"security.capability"), Some((6, &b"capability"[..])));
        assert_eq!(split_name(b"user."), None);
        assert_eq!(split_name(b"other.x"), None);
        for (name_index, ..) in PREFIXES {
            let name: &[u8] = if prefix(name_index).unwrap().ends_with('.') { b"x" } else { b"" };
            assert_eq!(split_name(&full_name(name_index, name).unwrap()), Some((name_index, name)));
        }
    }

    #[test]
    fn hashes() {
        assert_eq!(entry_hash(b"", b"", false), 0);
        assert_eq!(entry_hash(b"ab", b"", false), (u32::from(b'a') << 5) ^ u32::from(b'b'));
        assert_eq!(entry_hash(b"", b"\x01\x02\x03\x04\x05", false), 0x0201_0403 ^ 5);
        assert_eq!(entry_hash(b"\xFF", b"", true), !0);
        assert_eq!(entry_hash(b"\xFF", b"", false), 0xFF);
        let bytes = block(&ATTRS[..2]);
        let area = XattrArea::in_block(&bytes).unwrap();
        let hashes: Vec<u32> = area.iter().map(|x| x.entry.e_hash.get()).collect();
        assert_eq!(area.block_hash(), hashes[0].rotate_left(16) ^ hashes[1]);
        let bytes = block(&[(2, b"", b"")]);
        assert_eq!(XattrArea::in_block(&bytes).unwrap().block_hash(), 0);
    }

    #[test]
    fn checksum() {
        let mut bytes = block(ATTRS);
        write_block_checksum(&mut bytes, FsBlock(99), 5).unwrap();
        assert_eq!(block_checksum(&bytes, FsBlock(99), 5), ChecksumState::Good);
        assert!(matches!(block_checksum(&bytes, FsBlock(98), 5), ChecksumState::Bad { .. }));
        bytes[1023] ^= 1;
        assert!(matches!(block_checksum(&bytes, FsBlock(99), 5), ChecksumState::Bad { .. }));
        assert_eq!(block_checksum(&bytes[..16], FsBlock(99), 5), ChecksumState::Missing);
        assert_eq!(write_block_checksum(&mut bytes[..16], FsBlock(99), 5), None);
    }

    proptest! {
        #[test]
        fn any_bytes(noise in proptest::collection::vec((0usize..200, any::<u8>()), 0..10), cut in 0usize..=1024) {
            let mut bytes = block(ATTRS);
            for (at, value) in noise {
                bytes[at] = value;
            }
            let areas = [XattrArea::in_block(&bytes[..cut]).ok(), XattrArea::in_inode(&bytes[..cut]).ok().flatten()];
            for area in areas.into_iter().flatten() {
                for xattr in area.iter() {
                    let _ = area.value(&xattr);
                }
                let _ = (area.overlap(), area.block_hash());
            }
        }
    }
}
