//! Damage to the maps of inodes: indirect blocks, extents, and multiply-claimed blocks.

use crate::error::{Error, Result, need};
use crate::recipe::Recipe;
use crate::volume::{Volume, put};
use format::extent::{self, Child, Extent, RawNode};
use format::feature::{Incompat, RoCompat};
use format::inode::{FileKind, InodeFlags};
use format::{FileBlock, FsBlock, InodeNo};

/// Sets the first pointer or the start of the first extent in the inode of a file.
pub(crate) fn set_first_block(v: &mut Volume<'_>, file: InodeNo, block: u64) -> Result<()> {
    let inode = v.inode(file)?;
    if !inode.raw().flags().contains(InodeFlags::EXTENTS) {
        return v.edit_words(file, |words| words[0] = block as u32);
    }
    let leaf = v.map_of(file)?.nodes.iter().find(|(_, level)| *level == 0).map(|(block, _)| *block);
    match leaf {
        Some(leaf) => v.edit_node(file, leaf, |node| set_start(node, block)),
        None => v.edit(file, |inode| edit_root(inode, |node| set_start(node, block))),
    }
}

fn edit_root(inode: &mut format::inode::InodeBuf, edit: impl FnOnce(&mut [u8])) {
    let mut root = inode.raw().disk.i_block;
    edit(&mut root);
    inode.set_block(root);
}

/// Sets the start block of the first extent of a leaf.
fn set_start(node: &mut [u8], block: u64) {
    put(node, 18, &((block >> 32) as u16).to_le_bytes());
    put(node, 20, &(block as u32).to_le_bytes());
}

/// Changes one pointer of an indirect block of data pointers, or the start of one extent of a leaf outside the inode.
pub(crate) fn a_pointer_of_a_node(
    v: &mut Volume<'_>,
    choose: impl FnOnce(&mut Volume<'_>) -> Result<u64>,
) -> Result<()> {
    let file = v.file_with_nodes(None, 0)?;
    let extents = v.inode(file)?.raw().flags().contains(InodeFlags::EXTENTS);
    let nodes = v.map_of(file)?.nodes;
    let lowest = u16::from(!extents);
    let leaves: Vec<u64> = nodes.iter().filter(|(_, level)| *level == lowest).map(|(block, _)| *block).collect();
    let leaf = *v.rng.choice(&leaves).ok_or(Error::Unfit("the file has no such block"))?;
    let to = choose(v)?;
    if extents {
        return v.edit_node(file, leaf, |node| match to {
            // a removed extent leaves a free slot at the end
            0 => put(node, 2, &0u16.to_le_bytes()),
            _ => set_start(node, to),
        });
    }
    let indirect = v.geometry.indirect();
    let bytes = v.block(leaf)?;
    let used: Vec<usize> = (0..).zip(indirect.pointers(&bytes)).filter(|(_, p)| p.get() != 0).map(|(n, _)| n).collect();
    let n = *v.rng.choice(&used).ok_or(Error::Unfit("the indirect block has no pointer"))?;
    v.edit_node(file, leaf, |node| put(node, n * 4, &(to as u32).to_le_bytes()))
}

/// A data block of a random file.
pub(crate) fn second_owner(v: &mut Volume<'_>) -> Result<u64> {
    let other = v.file(None)?;
    let data = v.map_of(other)?.data;
    v.rng.choice(&data).map(|(_, block)| *block).ok_or(Error::Unfit("the file has no block"))
}

/// A file whose extents are in its inode.
fn file_with_inode_extents(v: &mut Volume<'_>, kind: FileKind) -> Result<InodeNo> {
    v.pick("no such file has its extents in its inode", |v, raw| {
        Ok(raw.kind() == Some(kind)
            && raw.flags().contains(InodeFlags::EXTENTS)
            && !raw.flags().contains(InodeFlags::INLINE_DATA)
            && RawNode::from_bytes(&raw.disk.i_block)
                .is_some_and(|node| node.header.eh_depth.get() == 0 && !node.extents().is_empty())
            && v.map(raw)?.data.len() > usize::from(kind == FileKind::Regular))
    })
}

/// Changes the bytes of an extent root.
fn root_of(v: &mut Volume<'_>, edit: impl FnOnce(&mut [u8])) -> Result<()> {
    let file = file_with_inode_extents(v, FileKind::Regular)?;
    v.edit(file, |inode| edit_root(inode, edit))
}

/// Replaces the map of a file by these extents.
fn rewrite(v: &mut Volume<'_>, file: InodeNo, extents: &[(u64, u64, u32)]) -> Result<()> {
    let extents: Vec<Extent> = extents
        .iter()
        .map(|(logical, physical, len)| Extent {
            logical: FileBlock(*logical),
            physical: FsBlock(*physical),
            len: *len,
            unwritten: false,
        })
        .collect();
    let mut root = [0; 60];
    extent::write_leaf(&mut root, &extents).ok_or(Error::Unfit("the extents do not fit"))?;
    v.edit(file, |inode| inode.set_block(root))
}

pub(crate) const RECIPES: &[(u32, Recipe)] = &[
    (0x01_000E, |v| {
        let file = v.file(Some(false))?;
        let beyond = v.geometry.blocks as u32 + 10;
        v.edit_words(file, |words| words[0] = beyond)
    }),
    (0x01_0044, |v| {
        need(!v.has_incompat(Incompat::LARGE_DIR), "the volume has large directories")?;
        let dir = file_with_inode_extents(v, FileKind::Directory)?;
        let first = v.block_of(dir, 0)?;
        let block = v.take_block()?;
        let beyond = (1u64 << 31) / u64::from(v.geometry.block_size) + 3;
        rewrite(v, dir, &[(0, first, 1), (beyond, block, 1)])
    }),
    (0x01_0045, |v| {
        let indirect = v.geometry.indirect();
        let n = (1u64 << 32).div_ceil(indirect.span(2)) as usize + 1;
        need(n < indirect.per_block() as usize, "only maps with blocks of 8 KiB or more exceed the limit")?;
        let file = v.file(Some(false))?;
        let (node, below) = (v.take_block()?, v.take_block()?);
        v.put_block(node, &vec![0; v.geometry.block_size as usize])?;
        v.edit_words(file, |words| words[14] = node as u32)?;
        v.edit_node(file, node, |bytes| put(bytes, n * 4, &(below as u32).to_le_bytes()))
    }),
    (0x01_0046, |v| {
        let link = v.pick("no symbolic link has a block map", |_, raw| {
            Ok(raw.kind() == Some(FileKind::Symlink)
                && raw.size() >= 60
                && !raw.flags().intersects(InodeFlags::EXTENTS | InodeFlags::INLINE_DATA))
        })?;
        let block = v.take_block()?;
        v.edit_words(link, |words| words[1] = block as u32)
    }),
    (0x01_0058, |v| {
        let beyond = v.geometry.blocks + 10;
        root_of(v, |node| set_start(node, beyond))
    }),
    (0x01_0059, |v| {
        let last = v.geometry.blocks - 1;
        root_of(v, |node| set_start(node, last))
    }),
    (0x01_005A, |v| {
        need(!v.has_incompat(Incompat::EXTENT), "the volume has extents")?;
        let file = v.file(Some(false))?;
        v.set_flags(file, InodeFlags::EXTENTS, true)
    }),
    (0x01_005B, |v| {
        v.file(Some(true))?;
        v.superblock(|sb| {
            let without = sb.s_feature_incompat.get() & !Incompat::EXTENT.bits();
            sb.s_feature_incompat = without.into();
        })
    }),
    (0x01_005C, |v| {
        let file = v.file(Some(true))?;
        v.set_flags(file, InodeFlags::EXTENTS, false)
    }),
    (0x01_005D, |v| {
        need(v.has_incompat(Incompat::EXTENT), "the volume has no extents")?;
        let link = v.pick("no symbolic link has its target in its inode", |_, raw| {
            Ok(raw.kind() == Some(FileKind::Symlink)
                && (1..60).contains(&raw.size())
                && !raw.flags().contains(InodeFlags::INLINE_DATA))
        })?;
        v.set_flags(link, InodeFlags::EXTENTS, true)
    }),
    (0x01_005E, |v| {
        let file = file_with_inode_extents(v, FileKind::Regular)?;
        let data = v.map_of(file)?.data;
        let [(a, one), (b, two), ..] = data.as_slice() else { return Err(Error::Unfit("the file has one block")) };
        rewrite(v, file, &[(*b, *two, 1), (*a, *one, 1)])
    }),
    (0x0E_002A, |v| {
        let file = file_with_inode_extents(v, FileKind::Regular)?;
        let data = v.map_of(file)?.data;
        let [(a, one), (b, two), (c, three), ..] = data.as_slice() else {
            return Err(Error::Unfit("the file has fewer than three blocks"));
        };
        rewrite(v, file, &[(*a, *one, 3), (*b, *two, 1), (*c, *three, 1)])
    }),
    (0x01_005F, |v| root_of(v, |node| put(node, 0, &0x1234u16.to_le_bytes()))),
    (0x01_0066, |v| root_of(v, |node| put(node, 16, &0u16.to_le_bytes()))),
    (0x01_006A, |v| {
        need(v.geometry.metadata_csum, "the volume has no checksums")?;
        let file = v.file_with_nodes(Some(true), 0)?;
        let block = v.map_of(file)?.nodes.first().map_or(0, |(block, _)| *block);
        let tail = extent::tail_offset(&v.block(block)?).ok_or(Error::Unfit("the extent block has no checksum"))?;
        v.edit_block(block, |bytes| {
            if let Some(byte) = bytes.get_mut(tail) {
                *byte ^= 0x55;
            }
        })
    }),
    (0x01_006D, |v| {
        let file = v.file_with_nodes(Some(true), 0)?;
        let leaf = v.map_of(file)?.nodes.iter().find(|(_, level)| *level == 0).map_or(0, |(block, _)| *block);
        let node = v.block(leaf)?;
        let first = node.get(12..16).and_then(|b| b.first_chunk().copied()).map_or(0, u32::from_le_bytes);
        v.edit_node(file, leaf, |node| put(node, 12, &(first + 1).to_le_bytes()))
    }),
    (0x01_006E, |v| root_of(v, |node| put(node, 12, &u32::MAX.to_le_bytes()))),
    (0x01_0073, |v| {
        let dir = file_with_inode_extents(v, FileKind::Directory)?;
        v.edit(dir, |inode| {
            edit_root(inode, |node| {
                if let Some(high) = node.get_mut(17) {
                    *high |= 0x80;
                }
            });
        })
    }),
    (0x01_0074, |v| {
        need(v.geometry.cluster_blocks > 1, "the volume has no clusters")?;
        let file = file_with_inode_extents(v, FileKind::Regular)?;
        let first = v.map_of(file)?.data.first().map_or(0, |(_, block)| *block);
        v.edit(file, |inode| edit_root(inode, |node| set_start(node, first + 1)))
    }),
    (0x01_007D, |v| {
        need(!v.geometry.is_owned(), "the volume's tree blocks have their level in a tail")?;
        let file = file_with_inode_extents(v, FileKind::Regular)?;
        let raw = v.inode(file)?;
        let root =
            RawNode::from_bytes(&raw.raw().disk.i_block).map(|node| node.extents().iter().map(Extent::from).collect());
        let extents: Vec<Extent> = root.unwrap_or_default();
        let first = extents.first().map_or(FileBlock(0), |extent| extent.logical);
        let levels = extent::MAX_DEPTH + 1;
        let mut below = v.take_block()?;
        v.put_block(below, &vec![0; v.block_size()])?;
        v.edit(file, |inode| edit_root(inode, |root| _ = extent::write_inner(root, levels, &[])))?;
        v.edit_node(file, below, |node| _ = extent::write_leaf(node, &extents))?;
        for depth in 1..levels {
            let block = v.take_block()?;
            v.put_block(block, &vec![0; v.block_size()])?;
            let child = Child { logical: first, block: FsBlock(below) };
            v.edit_node(file, block, |node| _ = extent::write_inner(node, depth, &[child]))?;
            below = block;
        }
        let child = Child { logical: first, block: FsBlock(below) };
        let blocks = u64::from(levels) * u64::from(v.geometry.cluster_blocks);
        let sectors = blocks * u64::from(v.geometry.block_size / 512);
        let (huge, block_size) = (v.has_ro(RoCompat::HUGE_FILE), v.geometry.block_size);
        v.edit(file, |inode| {
            edit_root(inode, |root| _ = extent::write_inner(root, levels, &[child]));
            let all = inode.raw().sectors(huge, block_size) + sectors;
            let _ = inode.set_sectors(all, huge, block_size);
        })
    }),
    (0x01_0080, |v| {
        need(v.has_ro(RoCompat::BIGALLOC), "the volume has no clusters")?;
        let file = file_with_inode_extents(v, FileKind::Regular)?;
        let first = v.map_of(file)?.data.first().map_or(0, |(_, block)| *block);
        v.edit(file, |inode| {
            let flags = inode.raw().flags();
            inode.set_flags(flags - InodeFlags::EXTENTS);
            inode.set_block_words(&[first as u32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        })
    }),
    (0x01_0081, |v| root_of(v, |node| node.fill(0))),
    (0x01_3001, |v| {
        let (one, two) = (v.file(None)?, v.file(None)?);
        let first = v.map_of(one)?.data.first().map_or(0, |(_, block)| *block);
        set_first_block(v, two, first)
    }),
    (0x01_3003, |v| {
        let group = v.any_group(|_| true)?;
        let table = v.group_of(group)?.inode_table.get();
        let file = v.file(None)?;
        set_first_block(v, file, table)
    }),
    (0x0E_0008, |v| {
        need(v.geometry.is_owned(), "the volume's blocks have no owner in a tail")?;
        let file = v.file_with_nodes(Some(false), 1)?;
        let block = v.map_of(file)?.nodes.first().map_or(0, |(block, _)| *block);
        v.edit_block(block, |bytes| {
            if let Some(last) = bytes.last_mut() {
                *last ^= 0x55;
            }
        })
    }),
    (0x02_0015, |v| {
        let dir = v.directory(2, None)?;
        let data = v.map_of(dir)?.data;
        if !v.inode(dir)?.raw().flags().contains(InodeFlags::EXTENTS) {
            return v.edit_words(dir, |words| words[1] = 0);
        }
        let rest: Vec<_> = data.iter().filter(|(at, _)| *at != 1).map(|(at, block)| (*at, *block, 1)).take(4).collect();
        need(v.map_of(dir)?.nodes.is_empty(), "the directory has its extents in a block")?;
        if rest.len() < 2 {
            // the hole is before the remaining block
            let moved: Vec<_> = data.iter().rev().take(1).map(|(_, block)| (2, *block, 1)).collect();
            return rewrite(v, dir, &[rest, moved].concat());
        }
        rewrite(v, dir, &rest)
    }),
];
