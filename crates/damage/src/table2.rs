//! The corruptions of the ffsck paper's Table II. The paper specifies fields only; the values are Extant's.

use crate::error::need;
use crate::maps::{a_pointer_of_a_node, second_owner, set_first_block};
use crate::recipe::Corruption;
use crate::volume::set_bit;
use format::inode::FileKind;

/// The rows of Table II.
pub const TABLE2: &[Corruption] = &[
    Corruption {
        name: "superblock.magic",
        field: "superblock: magicNum",
        does: "The primary superblock has no magic number.",
        recipe: |v| v.superblock(|sb| sb.s_magic = 0x1234.into()),
    },
    Corruption {
        name: "superblock.inode-size",
        field: "superblock: inodeSize",
        does: "The primary superblock has an impossible inode size.",
        recipe: |v| v.superblock(|sb| sb.s_inode_size = 129.into()),
    },
    Corruption {
        name: "superblock.inodes",
        field: "superblock: inodeNum",
        does: "The inode count in the primary superblock is larger than its groups' total.",
        recipe: |v| v.superblock(|sb| sb.s_inodes_count = (sb.s_inodes_count.get() + 13).into()),
    },
    Corruption {
        name: "superblock.blocks",
        field: "superblock: blockNum",
        does: "The block count in the primary superblock is 0.",
        recipe: |v| v.superblock(|sb| sb.set_blocks_count(0)),
    },
    Corruption {
        name: "group.inode-bitmap",
        field: "group descriptor: inodeBitmapAdd",
        does: "The inode bitmap location in a primary group descriptor is beyond the end of the volume.",
        recipe: |v| {
            let group = v.any_group(|_| true)?;
            let beyond = v.geometry.blocks + 77;
            v.group(group, |group| group.inode_bitmap = format::FsBlock(beyond))
        },
    },
    Corruption {
        name: "group.block-bitmap",
        field: "group descriptor: blockBitmapAdd",
        does: "The block bitmap location in a primary group descriptor is beyond the end of the volume.",
        recipe: |v| {
            let group = v.any_group(|_| true)?;
            let beyond = v.geometry.blocks + 78;
            v.group(group, |group| group.block_bitmap = format::FsBlock(beyond))
        },
    },
    Corruption {
        name: "inode.type",
        field: "inode: type",
        does: "The type of a file is invalid.",
        recipe: |v| {
            let file = v.pick_kind(FileKind::Regular, "the volume has no file")?;
            v.edit(file, |inode| inode.set_mode(0o170_644))
        },
    },
    Corruption {
        name: "inode.links",
        field: "inode: linkCount",
        does: "The link count of a file is larger than its number of names.",
        recipe: |v| {
            let more = v.rng.u16(1..100);
            let file = v.pick_kind(FileKind::Regular, "the volume has no file")?;
            v.edit(file, |inode| {
                let links = inode.raw().disk.i_links_count.get();
                inode.set_links(links.saturating_add(more));
            })
        },
    },
    Corruption {
        name: "inode.blocks",
        field: "inode: blockNumber",
        does: "The sector count of a file is larger than its space.",
        recipe: |v| {
            let more = v.rng.u32(1..1000) * 8;
            let file = v.file(None)?;
            v.edit(file, |inode| {
                let sectors = inode.raw().disk.i_blocks_lo.get();
                inode.disk_mut().i_blocks_lo = sectors.saturating_add(more).into();
            })
        },
    },
    Corruption {
        name: "inode.size",
        field: "inode: fileSize",
        does: "The size of a file is smaller than its last block requires.",
        recipe: |v| {
            let file = v.file(None)?;
            v.edit(file, |inode| inode.set_size(1))
        },
    },
    Corruption {
        name: "inode.pointer",
        field: "inode: pointerRange",
        does: "A pointer in an inode is beyond the end of the volume.",
        recipe: |v| {
            let beyond = v.geometry.blocks + v.rng.u64(1..1000);
            let file = v.file(None)?;
            set_first_block(v, file, beyond)
        },
    },
    Corruption {
        name: "inode.state",
        field: "inode: state",
        does: "A file's inode is marked free in its bitmap.",
        recipe: |v| {
            let file = v.pick_kind(FileKind::Regular, "the volume has no file")?;
            let slot = v.geometry.inode_slot(file).ok_or(crate::error::Error::Unfit("the inode does not exist"))?;
            v.bitmap(slot.group, true, |bits| set_bit(bits, slot.index as usize, false))
        },
    },
    Corruption {
        name: "inode.shared",
        field: "inode: multiply-allocated block",
        does: "Pointers in the inodes of two files are the same block.",
        recipe: |v| {
            let (one, two) = (v.file(None)?, v.file(None)?);
            let first = v.map_of(one)?.data.first().map_or(0, |(_, block)| *block);
            need(first != 0, "the file has no first block")?;
            set_first_block(v, two, first)
        },
    },
    Corruption {
        name: "indirect.pointer",
        field: "indirect blocks: pointerRange",
        does: "A pointer in an indirect block is beyond the end of the volume.",
        recipe: |v| {
            let beyond = v.geometry.blocks + v.rng.u64(1..1000);
            a_pointer_of_a_node(v, |_| Ok(beyond))
        },
    },
    Corruption {
        name: "indirect.blocks",
        field: "indirect blocks: blockNumber",
        does: "A pointer in an indirect block is missing, so that the block count of its file is too large.",
        recipe: |v| a_pointer_of_a_node(v, |_| Ok(0)),
    },
    Corruption {
        name: "indirect.shared",
        field: "indirect blocks: multiply-allocated block",
        does: "A pointer in an indirect block is a block of another file.",
        recipe: |v| a_pointer_of_a_node(v, second_owner),
    },
];
