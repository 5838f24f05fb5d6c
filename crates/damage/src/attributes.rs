//! Damage to extended attributes, in inodes, in blocks of their own and in other inodes, and to encryption contexts.

use crate::error::{Result, need};
use crate::recipe::Recipe;
use crate::volume::{Volume, put};
use format::feature::{Compat, Incompat};
use format::inode::{FileKind, InodeFlags};
use format::xattr::{self, MAGIC, XattrEntry, XattrHeader, entry_hash, entry_len, index};
use format::{FsBlock, InodeNo};
use std::ops::RangeInclusive;
use zerocopy::IntoBytes;

/// Lengths of names that may be encrypted, and of those too short for it.
const ENCRYPTED: RangeInclusive<usize> = 16..=255;
const TOO_SHORT: RangeInclusive<usize> = 1..=15;

/// An encryption context of version 1 with a policy derived from `policy`.
fn context(policy: u8) -> Vec<u8> {
    [&[1, 1, 4, 0][..], &[policy; 8], &[9; 16]].concat()
}

/// One attribute: entry and name, with the offset of its value.
fn one(index: u8, name: &[u8], value: &[u8], offset: usize) -> Vec<u8> {
    let mut padded = value.to_vec();
    padded.resize(value.len().next_multiple_of(4), 0);
    let entry = XattrEntry {
        e_name_len: name.len() as u8,
        e_name_index: index,
        e_value_offs: (offset as u16).into(),
        e_value_inum: 0.into(),
        e_value_size: (value.len() as u32).into(),
        e_hash: entry_hash(name, &padded, false).into(),
    };
    let mut bytes = [entry.as_bytes(), name].concat();
    bytes.resize(entry_len(name.len() as u8), 0);
    bytes
}

/// A file with space for attributes in its inode.
fn file_with_inode_space(v: &mut Volume<'_>, kind: FileKind) -> Result<InodeNo> {
    v.pick("no file has space for attributes in its inode", |_, raw| {
        Ok(raw.kind() == Some(kind)
            && raw.attribute_area().len() >= 80
            && !raw.flags().contains(InodeFlags::INLINE_DATA)
            && raw.file_acl(true).get() == 0)
    })
}

/// Makes this attribute the only one in an inode; then `edit` may change the bytes from the first entry on.
fn in_inode(
    v: &mut Volume<'_>,
    number: InodeNo,
    (index, name, value): (u8, &[u8], &[u8]),
    edit: impl FnOnce(&mut [u8]),
) -> Result<()> {
    v.edit(number, |inode| {
        let area = inode.attribute_area_mut();
        area.fill(0);
        put(area, 0, &MAGIC.to_le_bytes());
        let Some(entries) = area.get_mut(4..) else { return };
        let offset = entries.len().saturating_sub(value.len().next_multiple_of(4)) & !3;
        put(entries, offset, value);
        put(entries, 0, &one(index, name, value, offset));
        edit(entries);
    })
}

fn damaged_in_inode(v: &mut Volume<'_>, edit: fn(&mut [u8])) -> Result<()> {
    let file = file_with_inode_space(v, FileKind::Regular)?;
    in_inode(v, file, (index::USER, b"damage", b"some value"), edit)
}

/// Adds a block with one attribute to a file; then `edit` may change it.
fn in_block(v: &mut Volume<'_>, checksum: bool, edit: impl FnOnce(&mut [u8])) -> Result<()> {
    need(v.has_compat(Compat::EXT_ATTR), "the volume has no attributes")?;
    let file = v.pick("no file is without an attribute block", |_, raw| {
        Ok(raw.kind() == Some(FileKind::Regular)
            && raw.file_acl(true).get() == 0
            && !raw.flags().contains(InodeFlags::INLINE_DATA))
    })?;
    let block = v.take_block()?;
    let size = v.block_size();
    let mut bytes = vec![0; size];
    let value = b"some value";
    let offset = size - value.len().next_multiple_of(4);
    let header = XattrHeader {
        h_magic: MAGIC.into(),
        h_refcount: 1.into(),
        h_blocks: 1.into(),
        h_hash: 0.into(),
        h_checksum: 0.into(),
        h_reserved: [0.into(); 3],
    };
    put(&mut bytes, 0, header.as_bytes());
    put(&mut bytes, offset, value);
    put(&mut bytes, XattrHeader::SIZE, &one(index::USER, b"damage", value, offset));
    if checksum {
        edit(&mut bytes);
        set_checksum(v, &mut bytes, block);
    } else {
        set_checksum(v, &mut bytes, block);
        edit(&mut bytes);
    }
    v.put_block(block, &bytes)?;
    let sectors = v.geometry.cluster_blocks * (v.geometry.block_size / 512);
    v.edit(file, |inode| {
        inode.set_file_acl(FsBlock(block));
        let before = inode.raw().disk.i_blocks_lo.get();
        inode.disk_mut().i_blocks_lo = (before + sectors).into();
    })
}

fn set_checksum(v: &Volume<'_>, bytes: &mut [u8], block: u64) {
    if v.geometry.metadata_csum {
        let _ = xattr::write_block_checksum(bytes, FsBlock(block), v.geometry.checksum_seed);
    }
}

/// Adds an attribute to a file with its value in another inode.
fn in_another(v: &mut Volume<'_>, target: InodeNo, size: u64) -> Result<InodeNo> {
    let file = file_with_inode_space(v, FileKind::Regular)?;
    // the hash of a value in another inode: that of the name, then the inode's own, which is 0 here
    let name = entry_hash(b"damage", &[], false).rotate_left(16);
    in_inode(v, file, (index::USER, b"damage", b""), |entries| {
        put(entries, 2, &0u16.to_le_bytes());
        put(entries, 4, &target.get().to_le_bytes());
        put(entries, 8, &(size as u32).to_le_bytes());
        put(entries, 12, &name.to_le_bytes());
    })?;
    let sectors = size.div_ceil(u64::from(v.geometry.block_size)) as u32 * (v.geometry.block_size / 512);
    v.edit(file, |inode| {
        let before = inode.raw().disk.i_blocks_lo.get();
        inode.disk_mut().i_blocks_lo = (before + sectors).into();
    })?;
    Ok(file)
}

/// A file without a name that contains an attribute value, with reference count `users`.
fn value_inode(v: &mut Volume<'_>, users: u32) -> Result<(InodeNo, u64)> {
    let file = v.file(None)?;
    let size = v.inode(file)?.raw().size();
    remove_name(v, file)?;
    v.edit(file, |inode| {
        let flags = inode.raw().flags();
        inode.set_flags(flags | InodeFlags::EA_INODE);
        inode.set_links(1);
        let disk = inode.disk_mut();
        disk.i_atime = 0.into();
        disk.i_ctime = 0.into();
        disk.i_version_lo = users.into();
    })?;
    Ok((file, size))
}

/// Removes the name of a file.
pub(crate) fn remove_name(v: &mut Volume<'_>, file: InodeNo) -> Result<()> {
    let (dir, named) = v.name_of(file)?;
    v.edit_leaf(dir, named.block, |bytes| put(bytes, named.offset, &[0; 4]))
}

fn encrypting(v: &Volume<'_>) -> Result<()> {
    need(v.has_incompat(Incompat::ENCRYPT), "the volume has no encryption")
}

fn encrypt(v: &mut Volume<'_>, number: InodeNo, policy: u8) -> Result<()> {
    in_inode(v, number, (index::ENCRYPTION, b"c", &context(policy)), |_| ())?;
    v.set_flags(number, InodeFlags::ENCRYPT, true)
}

/// A directory without a hash tree and a file in it, both with space for attributes.
fn dir_with_file(v: &mut Volume<'_>, len: RangeInclusive<usize>) -> Result<(InodeNo, crate::volume::Named)> {
    let dir = v.pick("no directory has such a file", |v, raw| {
        let fit = raw.kind() == Some(FileKind::Directory)
            && raw.attribute_area().len() >= 80
            && !raw.flags().intersects(InodeFlags::INDEX | InodeFlags::INLINE_DATA);
        if !fit {
            return Ok(false);
        }
        let mut found = false;
        for (_, block) in v.map(raw)?.data {
            found |= v.names_in(block)?.iter().any(|e| len.contains(&e.name.len()) && v.has_inode_space(e.inode));
        }
        Ok(found)
    })?;
    let all: Vec<_> = v.entries(dir)?;
    let fit: Vec<_> = all.into_iter().filter(|e| len.contains(&e.name.len()) && v.has_inode_space(e.inode)).collect();
    let entry = v.rng.choice(&fit).cloned().ok_or(crate::error::Error::Unfit("no directory has such a file"))?;
    Ok((dir, entry))
}

impl Volume<'_> {
    /// Whether an inode is a file with space for attributes in the inode.
    fn has_inode_space(&self, number: InodeNo) -> bool {
        self.inode(number).is_ok_and(|inode| {
            let raw = inode.raw();
            raw.kind() == Some(FileKind::Regular) && raw.attribute_area().len() >= 80 && raw.file_acl(true).get() == 0
        })
    }
}

pub(crate) const RECIPES: &[(u32, Recipe)] = &[
    (0x01_003A, |v| in_block(v, true, |bytes| put(bytes, 0, &[0; 4]))),
    (0x01_003C, |v| in_block(v, true, |bytes| put(bytes, 4, &5u32.to_le_bytes()))),
    (0x01_003E, |v| in_block(v, true, |bytes| put(bytes, 8, &2u32.to_le_bytes()))),
    (0x01_0040, |v| in_block(v, true, |bytes| put(bytes, XattrHeader::SIZE + 2, &40u16.to_le_bytes()))),
    (0x01_0041, |v| in_block(v, true, |bytes| put(bytes, XattrHeader::SIZE + 1, &[0]))),
    (0x01_0042, |v| in_block(v, true, |bytes| put(bytes, XattrHeader::SIZE + 8, &0xFFFF_u32.to_le_bytes()))),
    (0x01_006C, |v| {
        need(v.geometry.metadata_csum, "the volume has no checksums")?;
        in_block(v, false, |bytes| put(bytes, 16, &0x55u32.to_le_bytes()))
    }),
    (0x01_0050, |v| damaged_in_inode(v, |entries| put(entries, 0, &[250]))),
    (0x01_0053, |v| damaged_in_inode(v, |entries| put(entries, 8, &0xFFFF_u32.to_le_bytes()))),
    (0x01_0054, |v| damaged_in_inode(v, |entries| put(entries, 12, &0x1234_5678_u32.to_le_bytes()))),
    (0x01_0069, |v| damaged_in_inode(v, |entries| put(entries, 2, &4u16.to_le_bytes()))),
    (0x02_0032, |v| {
        let beyond = v.geometry.blocks + 3;
        let file = v.pick("no file is without an attribute block", |_, raw| {
            Ok(raw.kind() == Some(FileKind::Regular) && raw.file_acl(true).get() == 0)
        })?;
        v.edit(file, |inode| inode.set_file_acl(FsBlock(beyond)))
    }),
    (0x01_0083, |v| {
        let free = v.free_inode()?;
        in_another(v, free, 5).map(|_| ())
    }),
    (0x01_0086, |v| {
        // without the feature the file is an ordinary one, and the attribute is wrong
        need(v.has_incompat(Incompat::EA_INODE), "the volume has no values in inodes")?;
        let file = v.file(None)?;
        let size = v.inode(file)?.raw().size();
        in_another(v, file, size).map(|_| ())
    }),
    (0x01_0092, |v| {
        need(!v.has_incompat(Incompat::EA_INODE), "the volume has values in inodes")?;
        let (target, size) = value_inode(v, 1)?;
        in_another(v, target, size).map(|_| ())
    }),
    (0x04_0005, |v| {
        need(v.has_incompat(Incompat::EA_INODE), "the volume has no values in inodes")?;
        let (target, size) = value_inode(v, 3)?;
        in_another(v, target, size).map(|_| ())
    }),
    (0x0E_0027, |v| {
        need(v.has_incompat(Incompat::EA_INODE), "the volume has no values in inodes")?;
        let (target, size) = value_inode(v, 1)?;
        in_another(v, target, size + 3).map(|_| ())
    }),
    (0x0E_0028, |v| {
        need(v.has_incompat(Incompat::EA_INODE), "the volume has no values in inodes")?;
        let (target, size) = value_inode(v, 1)?;
        in_another(v, target, size)?;
        v.edit(target, |inode| inode.set_mode(0o020_600))
    }),
    (0x04_0008, |v| value_inode(v, 1).map(|_| ())),
    (0x02_0055, |v| {
        let (target, size) = value_inode(v, 1)?;
        let file = in_another(v, target, size)?;
        let (dir, named) = v.name_of(file)?;
        let other = v.entry(dir, |e| e.inode != file && e.inode != named.inode)?;
        v.edit_leaf(dir, other.block, |bytes| put(bytes, other.offset, &target.get().to_le_bytes()))
    }),
    (0x01_008B, |v| {
        let file = file_with_inode_space(v, FileKind::Regular)?;
        in_inode(v, file, (index::ENCRYPTION, b"c", &[0; 28]), |_| ())?;
        v.set_flags(file, InodeFlags::ENCRYPT, true)
    }),
    // in other directories only the files that are not encrypted are wrong
    (0x02_0050, |v| {
        encrypting(v)?;
        let (dir, _) = dir_with_file(v, TOO_SHORT)?;
        encrypt(v, dir, 1)
    }),
    (0x02_0051, |v| {
        encrypting(v)?;
        let (dir, _) = dir_with_file(v, ENCRYPTED)?;
        encrypt(v, dir, 1)
    }),
    (0x02_0052, |v| {
        encrypting(v)?;
        let (dir, file) = dir_with_file(v, ENCRYPTED)?;
        encrypt(v, dir, 1)?;
        encrypt(v, file.inode, 2)
    }),
    (0x01_008D, |v| {
        encrypting(v)?;
        need(v.has_incompat(Incompat::CASEFOLD), "the volume does not fold case")?;
        let dir = v.pick("no directory has a hash tree and free space", |_, raw| {
            Ok(raw.kind() == Some(FileKind::Directory)
                && raw.flags().contains(InodeFlags::INDEX)
                && raw.attribute_area().len() >= 80)
        })?;
        encrypt(v, dir, 1)?;
        v.set_flags(dir, InodeFlags::CASEFOLD, true)
    }),
];
