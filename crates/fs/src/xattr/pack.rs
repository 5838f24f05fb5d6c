//! Attributes as a list, and as bytes in an inode or an attribute block.

use format::InodeNo;
use format::xattr::{MAGIC, Value, XattrArea, XattrEntry, XattrHeader, XattrIbodyHeader, entry_hash, entry_len};
use zerocopy::{FromBytes, IntoBytes};

/// One attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attr {
    pub(crate) index: u8,
    /// The name without prefix.
    pub(crate) name: Vec<u8>,
    pub(crate) value: Stored,
}

/// The location of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stored {
    Here(Vec<u8>),
    Inode {
        inode: InodeNo,
        size: u32,
        /// `e_hash` as stored.
        hash: u32,
    },
}

impl Attr {
    fn value_len(&self) -> usize {
        match &self.value {
            Stored::Here(value) => value.len().next_multiple_of(4),
            Stored::Inode { .. } => 0,
        }
    }

    fn len(&self) -> usize {
        // names have at most 255 bytes
        entry_len(self.name.len() as u8) + self.value_len()
    }

    pub(crate) fn is(&self, index: u8, name: &[u8]) -> bool {
        self.index == index && self.name == name
    }
}

/// The attributes of an area.
pub(crate) fn unpack(area: &XattrArea<'_>) -> format::Result<Vec<Attr>> {
    let read = |xattr: format::xattr::Xattr<'_>| {
        let value = match area.value(&xattr)? {
            Value::Here(value) => Stored::Here(value.to_vec()),
            Value::Inode { inode, size } => Stored::Inode { inode, size, hash: xattr.entry.e_hash.get() },
        };
        Ok(Attr { index: xattr.entry.e_name_index, name: xattr.name.to_vec(), value })
    };
    area.iter().map(read).collect()
}

/// Bytes needed by attributes, without the header before them but with the terminator.
fn packed_len(attrs: &[Attr]) -> usize {
    attrs.iter().map(Attr::len).sum::<usize>() + 4
}

/// Whether attributes fit into an inode with `space` bytes for them.
pub(crate) fn fits_inode(attrs: &[Attr], space: usize) -> bool {
    attrs.is_empty() || packed_len(attrs) + XattrIbodyHeader::SIZE <= space
}

/// Whether attributes fit into a block.
pub(crate) fn fits_block(attrs: &[Attr], block_size: u32) -> bool {
    packed_len(attrs) + XattrHeader::SIZE <= block_size as usize
}

/// Maximum length of another value in an inode, in addition to these attributes.
pub(crate) fn space_for(attrs: &[Attr], space: usize) -> usize {
    space.saturating_sub(packed_len(attrs) + XattrIbodyHeader::SIZE) / 4 * 4
}

/// Writes entries from `first` on, and values from the end of `bytes` backwards; offsets count from the start of
/// `bytes`.
fn pack(bytes: &mut [u8], first: usize, attrs: &[Attr], hashed: bool) -> Option<()> {
    let (mut at, mut end) = (first, bytes.len() / 4 * 4);
    for attr in attrs {
        let mut entry = XattrEntry {
            e_name_len: u8::try_from(attr.name.len()).ok()?,
            e_name_index: attr.index,
            e_value_offs: 0.into(),
            e_value_inum: 0.into(),
            e_value_size: 0.into(),
            e_hash: 0.into(),
        };
        match &attr.value {
            Stored::Inode { inode, size, hash } => {
                entry.e_value_inum = inode.get().into();
                entry.e_value_size = (*size).into();
                entry.e_hash = (*hash).into();
            }
            Stored::Here(value) => {
                end = end.checked_sub(value.len().next_multiple_of(4))?;
                if !value.is_empty() {
                    entry.e_value_offs = u16::try_from(end).ok()?.into();
                }
                entry.e_value_size = u32::try_from(value.len()).ok()?.into();
                bytes.get_mut(end..end + value.len())?.copy_from_slice(value);
                if hashed {
                    entry.e_hash = entry_hash(&attr.name, value, false).into();
                }
            }
        }
        bytes.get_mut(at..at + XattrEntry::SIZE)?.copy_from_slice(entry.as_bytes());
        let name_at = at + XattrEntry::SIZE;
        bytes.get_mut(name_at..name_at + attr.name.len())?.copy_from_slice(&attr.name);
        at += entry_len(entry.e_name_len);
    }
    (at + 4 <= end).then_some(())
}

/// Sets the attributes of an inode; `space` is the part behind its extra fields.
pub(crate) fn pack_inode(space: &mut [u8], attrs: &[Attr]) -> Option<()> {
    space.fill(0);
    if attrs.is_empty() {
        return Some(());
    }
    let (header, rest) = XattrIbodyHeader::mut_from_prefix(space).ok()?;
    header.h_magic = MAGIC.into();
    pack(rest, 0, attrs, false)
}

/// Writes a block with these attributes, in the order that the format requires.
pub(crate) fn pack_block(block: &mut [u8], attrs: &[Attr]) -> Option<()> {
    block.fill(0);
    let mut sorted = attrs.to_vec();
    sorted.sort_by(|a, b| (a.index, a.name.len(), &a.name).cmp(&(b.index, b.name.len(), &b.name)));
    pack(block, XattrHeader::SIZE, &sorted, true)?;
    let header = XattrHeader {
        h_magic: MAGIC.into(),
        h_refcount: 1.into(),
        h_blocks: 1.into(),
        h_hash: 0.into(),
        h_checksum: 0.into(),
        h_reserved: [0.into(); 3],
    };
    block.get_mut(..XattrHeader::SIZE)?.copy_from_slice(header.as_bytes());
    let hash = XattrArea::in_block(block).ok()?.block_hash();
    let (header, _) = XattrHeader::mut_from_prefix(block).ok()?;
    header.h_hash = hash.into();
    Some(())
}

/// Decrements the number of users of a block; returns the rest.
pub(crate) fn unshare(block: &mut [u8]) -> u32 {
    let Ok((header, _)) = XattrHeader::mut_from_prefix(block) else { return 0 };
    let left = header.h_refcount.get().saturating_sub(1);
    header.h_refcount = left.into();
    left
}

/// The number of inodes that use a block.
pub(crate) fn users(block: &[u8]) -> u32 {
    XattrHeader::ref_from_prefix(block).map_or(0, |(header, _)| header.h_refcount.get())
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::cases;

    #[test]
    fn what_is_packed_is_unpacked() {
        for case in cases("pack", 60) {
            let mut rng = case.rng();
            let mut attrs: Vec<Attr> = Vec::new();
            for _ in 0..rng.between(0, 9) {
                let (length, size) = (rng.between(1, 30) as usize, rng.between(0, 90) as usize);
                let name: Vec<u8> = (0..length).map(|_| b'a' + rng.below(26) as u8).collect();
                let value = Stored::Here(rng.bytes(size));
                if !attrs.iter().any(|a| a.is(1, &name)) {
                    attrs.push(Attr { index: 1, name, value });
                }
            }
            let mut space = vec![0xAA; rng.between(8, 900) as usize / 4 * 4];
            let packed = pack_inode(&mut space, &attrs);
            assert_eq!(packed.is_some(), fits_inode(&attrs, space.len()));
            if packed.is_some() {
                let area = XattrArea::in_inode(&space).unwrap();
                assert_eq!(area.map_or(Vec::new(), |area| unpack(&area).unwrap()), attrs);
            }
            let mut block = vec![0xAA; 1024];
            let packed = pack_block(&mut block, &attrs);
            assert_eq!(packed.is_some(), fits_block(&attrs, 1024));
            if packed.is_some() {
                let area = XattrArea::in_block(&block).unwrap();
                let mut back = unpack(&area).unwrap();
                assert!(back.is_sorted_by_key(|a| (a.name.len(), a.name.clone())) && area.overlap().is_none());
                back.sort_by_key(|a| attrs.iter().position(|b| a == b));
                assert_eq!(back, attrs);
                assert_eq!((users(&block), unshare(&mut block), users(&block)), (1, 0, 0));
            }
        }
    }
}
