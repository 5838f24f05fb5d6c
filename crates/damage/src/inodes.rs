//! Damage to the fields of inodes.

use crate::error::{Error, Result, need};
use crate::recipe::Recipe;
use crate::volume::{Volume, put};
use format::InodeNo;
use format::extent;
use format::feature::{Compat, Incompat, RoCompat};
use format::inode::{FileKind, InodeBuf, InodeFlags};

const UNDELETE: InodeNo = InodeNo::UNDELETE;
/// A time in 2033, later than any on a volume.
const FUTURE_TIME: u32 = 2_000_000_000;

fn set_flag(v: &mut Volume<'_>, kind: FileKind, flag: InodeFlags) -> Result<()> {
    let inode = v.pick("the volume has no file of this type", |_, raw| {
        Ok(raw.kind() == Some(kind) && !raw.flags().intersects(flag | InodeFlags::INLINE_DATA))
    })?;
    v.set_flags(inode, flag, true)
}

/// Makes a device, pipe or socket immutable, with a number where it has none: it was another file.
fn number_in_special(v: &mut Volume<'_>, kind: FileKind) -> Result<()> {
    let inode = v.pick("the volume has no file of this type", |_, raw| Ok(raw.kind() == Some(kind)))?;
    v.edit(inode, |inode| {
        let mut block = inode.raw().disk.i_block;
        block[56] = 1;
        inode.set_block(block);
    })?;
    v.set_flags(inode, InodeFlags::IMMUTABLE, true)
}

fn special(v: &mut Volume<'_>) -> Result<InodeNo> {
    v.pick("the volume has no device, pipe or socket", |_, raw| {
        let kinds = [FileKind::Fifo, FileKind::Socket, FileKind::CharDevice, FileKind::BlockDevice];
        Ok(raw.kind().is_some_and(|kind| kinds.contains(&kind)))
    })
}

fn inline(v: &mut Volume<'_>) -> Result<InodeNo> {
    v.pick("no file has its data in its inode", |_, raw| {
        Ok(raw.kind() == Some(FileKind::Regular) && raw.flags().contains(InodeFlags::INLINE_DATA) && raw.size() > 0)
    })
}

/// Changes the bytes of an inode's slot, and its checksum where `checksum`.
fn edit_slot(v: &mut Volume<'_>, number: InodeNo, checksum: bool, edit: impl FnOnce(&mut [u8])) -> Result<()> {
    let mut bytes = v.inode(number)?.into_bytes();
    edit(&mut bytes);
    let mut inode = InodeBuf::from_slot(&bytes).ok_or(Error::Unfit("the inode is cut off"))?;
    if checksum {
        inode.set_checksum(&v.geometry, number);
    }
    v.put_inode(number, &inode)
}

fn any_file(v: &mut Volume<'_>) -> Result<InodeNo> {
    v.pick_kind(FileKind::Regular, "the volume has no file")
}

/// The target of a short symbolic link.
const TARGET: &[u8] = b"elsewhere";

pub(crate) const RECIPES: &[(u32, Recipe)] = &[
    (0x01_0001, |v| v.edit(InodeNo::ROOT, |inode| inode.set_mode(0o100_755))),
    (0x01_0002, |v| v.edit(InodeNo::ROOT, |inode| inode.disk_mut().i_dtime = FUTURE_TIME.into())),
    (0x01_0003, |v| v.edit(UNDELETE, |inode| inode.set_mode(0o100_644))),
    (0x01_0004, |v| {
        let free = v.free_inode()?;
        v.edit(free, |inode| inode.set_mode(0o100_644))
    }),
    (0x01_0005, |v| {
        let file = any_file(v)?;
        v.edit(file, |inode| inode.disk_mut().i_dtime = FUTURE_TIME.into())
    }),
    (0x01_0006, |v| {
        let dir = v.directory(1, None)?;
        v.edit(dir, |inode| {
            let mut root = [0; 60];
            if inode.raw().flags().contains(InodeFlags::EXTENTS) {
                let _ = extent::write_leaf(&mut root, &[]);
            }
            inode.set_block(root);
        })
    }),
    (0x01_0007, |v| {
        let head = v.geometry.descriptor_block(0);
        let group = v.any_group(|_| true)?;
        v.group_everywhere(group, |group| group.block_bitmap = head)
    }),
    (0x01_0008, |v| {
        let group = v.any_group(|_| true)?;
        v.group_everywhere(group, |group| group.inode_bitmap = group.block_bitmap)
    }),
    (0x01_0009, |v| {
        // with files in it the checker would search for the table and find it
        let group = v.group_without_inodes()?;
        v.group_everywhere(group, |group| group.inode_table = group.inode_bitmap)
    }),
    (0x01_000C, |v| {
        let file = v.file(None)?;
        v.edit(file, |inode| inode.set_size(1))
    }),
    (0x01_000D, |v| {
        let file = v.file(None)?;
        v.edit(file, |inode| {
            let sectors = inode.raw().disk.i_blocks_lo.get();
            inode.disk_mut().i_blocks_lo = (sectors + 64).into();
        })
    }),
    (0x01_002F, |v| set_flag(v, FileKind::Regular, InodeFlags::IMAGIC)),
    (0x01_0030, |v| {
        let special = special(v)?;
        v.set_flags(special, InodeFlags::IMMUTABLE, true)
    }),
    (0x01_0032, |v| {
        let special = special(v)?;
        v.edit(special, |inode| inode.set_size(5))
    }),
    (0x01_0034, |v| {
        need(!v.has_compat(Compat::HAS_JOURNAL), "the volume has a journal")?;
        v.edit(InodeNo::JOURNAL, |inode| {
            inode.set_mode(0o100_600);
            inode.set_links(1);
        })
    }),
    (0x01_0036, |v| {
        let file = any_file(v)?;
        v.edit(file, |inode| inode.disk_mut().i_dtime = 13.into())
    }),
    (0x01_0047, |v| {
        need(!v.has_compat(Compat::DIR_INDEX), "the volume has hash trees")?;
        set_flag(v, FileKind::Directory, InodeFlags::INDEX)
    }),
    (0x01_0048, |v| set_flag(v, FileKind::Regular, InodeFlags::INDEX)),
    (0x01_004F, |v| {
        need(v.geometry.inode_size > 128, "the volume's inodes have no extra fields")?;
        let file = any_file(v)?;
        edit_slot(v, file, true, |slot| put(slot, 128, &1001u16.to_le_bytes()))
    }),
    (0x01_0055, |v| {
        let dir = v.directory(1, None)?;
        v.edit(dir, |inode| inode.set_mode(0o140_755))
    }),
    (0x01_0065, |v| v.edit(InodeNo::BAD_BLOCKS, |inode| inode.set_mode(0o100_644))),
    (0x01_0068, |v| {
        need(v.geometry.metadata_csum, "the volume has no checksums")?;
        let file = any_file(v)?;
        edit_slot(v, file, false, |slot| {
            if let Some(byte) = slot.get_mut(0x7C) {
                *byte ^= 0x55;
            }
        })
    }),
    (0x01_0076, |v| set_flag(v, FileKind::Fifo, InodeFlags::EXTENTS)),
    (0x01_0078, |v| {
        let file = inline(v)?;
        v.set_flags(file, InodeFlags::EXTENTS, true)
    }),
    (0x01_0075, |v| {
        let file = inline(v)?;
        v.edit(file, |inode| inode.attribute_area_mut().fill(0))
    }),
    (0x01_007A, |v| v.set_flags(UNDELETE, InodeFlags::EXTENTS | InodeFlags::INLINE_DATA, true)),
    (0x01_0088, |v| set_flag(v, FileKind::Regular, InodeFlags::CASEFOLD)),
    (0x01_0089, |v| {
        need(!v.has_incompat(Incompat::CASEFOLD), "the volume folds case")?;
        set_flag(v, FileKind::Directory, InodeFlags::CASEFOLD)
    }),
    (0x01_008A, |v| {
        need(v.geometry.inode_size > 128, "the volume's inodes have no space for attributes")?;
        let file = v.pick("no file has the required structure", |_, raw| {
            Ok(raw.kind() == Some(FileKind::Regular)
                && raw.file_acl(true).get() == 0
                && !raw.flags().contains(InodeFlags::INLINE_DATA))
        })?;
        v.set_flags(file, InodeFlags::ENCRYPT, true)
    }),
    (0x01_0091, |v| set_flag(v, FileKind::Directory, InodeFlags::EA_INODE)),
    (0x02_000D, |v| {
        let file = any_file(v)?;
        v.edit(file, |inode| inode.disk_mut().i_obso_faddr = 5.into())
    }),
    (0x02_0012, |v| {
        let file = any_file(v)?;
        v.edit(file, |inode| inode.set_mode(0o170_644))
    }),
    (0x02_0018, |v| number_in_special(v, FileKind::CharDevice)),
    (0x02_0019, |v| number_in_special(v, FileKind::BlockDevice)),
    (0x02_0025, |v| number_in_special(v, FileKind::Fifo)),
    (0x02_0026, |v| number_in_special(v, FileKind::Socket)),
    (0x02_0031, |v| {
        let link = v.pick("no symbolic link has its target in its inode", |_, raw| {
            Ok(raw.kind() == Some(FileKind::Symlink)
                && (1..60).contains(&raw.size())
                && !raw.flags().contains(InodeFlags::INLINE_DATA))
        })?;
        v.edit_words(link, |words| words[0] = 0)
    }),
    (0x02_0044, |v| {
        need(!v.has_ro(RoCompat::HUGE_FILE), "the volume counts sectors in 48 bits")?;
        let file = any_file(v)?;
        v.edit(file, |inode| inode.disk_mut().i_blocks_high = 1.into())
    }),
    (0x02_0048, |v| {
        need(!v.has_incompat(Incompat::BIT64), "the volume has block numbers of 64 bits")?;
        let file = any_file(v)?;
        v.edit(file, |inode| inode.disk_mut().i_file_acl_high = 1.into())
    }),
    (0x04_0003, |v| {
        let file = any_file(v)?;
        v.edit(file, |inode| inode.set_links(inode.raw().disk.i_links_count.get() + 7))
    }),
    (0x03_0001, |v| v.edit(InodeNo::ROOT, |inode| inode.set_links(0))),
    (0x0E_001F, |v| {
        let file = inline(v)?;
        v.edit(file, |inode| inode.set_size(2000))
    }),
    (0x0E_001E, |v| {
        let file = inline(v)?;
        v.edit(file, |inode| {
            inode.set_mode(0o120_777);
            inode.set_size(TARGET.len() as u64);
            let block = &mut inode.disk_mut().i_block;
            block.fill(0);
            block.iter_mut().zip(TARGET).for_each(|(byte, of)| *byte = *of);
        })
    }),
];
