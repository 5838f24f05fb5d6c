//! Damage to the superblock, its copies, the group descriptors, and structures that the superblock refers to.

use crate::error::{Error, Result, need};
use crate::recipe::Recipe;
use crate::volume::Volume;
use format::checksum::crc32c;
use format::feature::{Compat, Incompat, RoCompat};
use format::group::GroupFlags;
use format::redo::{DiskRedoEntry, DiskRedoIndex, DiskRedoPointer, INDEX_MAGIC, POINTER_AT, POINTER_MAGIC, SUPERBLOCK};
use format::superblock::{DiskSuperblock, Flags, OFFSET};
use format::{FsBlock, GroupNo, InodeNo};
use std::time::{SystemTime, UNIX_EPOCH};
use zerocopy::IntoBytes;

const DAY: u64 = 24 * 60 * 60;

fn from_now(seconds: u64) -> (u32, u8) {
    let at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()) + seconds;
    (at as u32, (at >> 32) as u8)
}

fn last_mount(v: &mut Volume<'_>, seconds: u64) -> Result<()> {
    let (low, high) = from_now(seconds);
    v.superblock(|sb| (sb.s_mtime, sb.s_mtime_hi) = (low.into(), high))
}

fn last_write(v: &mut Volume<'_>, seconds: u64) -> Result<()> {
    let (low, high) = from_now(seconds);
    v.superblock(|sb| (sb.s_wtime, sb.s_wtime_hi) = (low.into(), high))
}

fn clear_incompat(v: &mut Volume<'_>, feature: Incompat) -> Result<()> {
    v.superblock(|sb| sb.s_feature_incompat = (sb.s_feature_incompat.get() & !feature.bits()).into())
}

fn set_ro(v: &mut Volume<'_>, feature: RoCompat) -> Result<()> {
    v.superblock(|sb| sb.s_feature_ro_compat = (sb.s_feature_ro_compat.get() | feature.bits()).into())
}

/// Groups with copies of the superblock.
fn copies(v: &Volume<'_>, at_least: usize) -> Result<Vec<GroupNo>> {
    let copies: Vec<_> = v.geometry.backup_groups().collect();
    need(copies.len() >= at_least, "the volume has too few copies of its superblock")?;
    Ok(copies)
}

fn mmp_block(v: &Volume<'_>) -> Result<u64> {
    need(v.has_incompat(Incompat::MMP), "the volume has no multiple-mount protection")?;
    Ok(v.sb.s_mmp_block.get())
}

/// Writes a redo log that contains only the unchanged superblock, and a pointer to it; returns its first block.
fn redo_log(v: &mut Volume<'_>) -> Result<u64> {
    let (copy, index) = (v.free_block()?, v.free_block()?);
    need(copy != index, "too few blocks are free")?;
    let size = v.block_size();
    let mut superblock = v.read_at(OFFSET, 1024)?;
    let sector = crc32c(!0, superblock.get(..512).unwrap_or_default());
    let mut bytes = superblock.clone();
    bytes.resize(size, 0);
    v.put_block(copy, &bytes)?;
    let head = DiskRedoIndex {
        ri_magic: INDEX_MAGIC.into(),
        ri_count: 1.into(),
        ri_next: 0.into(),
        ri_next_checksum: 0.into(),
        ri_reserved: 0.into(),
    };
    let entry = DiskRedoEntry {
        re_home: SUPERBLOCK.into(),
        re_copy: copy.into(),
        re_checksum: crc32c(!0, &bytes).into(),
        re_reserved: 0.into(),
    };
    let mut bytes = [head.as_bytes(), entry.as_bytes()].concat();
    bytes.resize(size, 0);
    v.put_block(index, &bytes)?;
    let mut pointer = DiskRedoPointer {
        rp_magic: POINTER_MAGIC.into(),
        rp_block_size: (size as u32).into(),
        rp_block: index.into(),
        rp_before: sector.into(),
        rp_after: sector.into(),
        rp_index: crc32c(!0, &bytes).into(),
        rp_checksum: 0.into(),
    };
    pointer.set_checksum();
    if let Some(place) = superblock.get_mut(POINTER_AT..POINTER_AT + DiskRedoPointer::SIZE) {
        place.copy_from_slice(pointer.as_bytes());
    }
    v.sb = DiskSuperblock::from_slice(&superblock).ok_or(Error::Unfit("no superblock"))?;
    v.superblock(|_| ())?;
    Ok(index)
}

pub(crate) const RECIPES: &[(u32, Recipe)] = &[
    (0x00_0001, |v| {
        let group = v.any_group(|_| true)?;
        let beyond = v.geometry.blocks + 5;
        v.group_everywhere(group, |group| group.block_bitmap = FsBlock(beyond))
    }),
    (0x00_0002, |v| {
        let group = v.any_group(|_| true)?;
        let beyond = v.geometry.blocks + 5;
        v.group_everywhere(group, |group| group.inode_bitmap = FsBlock(beyond))
    }),
    (0x00_0003, |v| {
        let group = v.group_without_inodes()?;
        let beyond = v.geometry.blocks + 5;
        v.group_everywhere(group, |group| group.inode_table = FsBlock(beyond))
    }),
    (0x0E_0012, |v| {
        let all = v.geometry.inodes_per_group;
        let group = v.any_group(|group| group.free_inodes + 16 < all)?;
        let beyond = v.geometry.blocks + 5;
        v.group_everywhere(group, |group| group.inode_table = FsBlock(beyond))
    }),
    (0x00_0005, |v| {
        // another group would have no descriptor, and the superblock would count as unusable
        let last = v.geometry.group_blocks(GroupNo(v.geometry.groups - 1));
        let more = u64::from(v.geometry.blocks_per_group).saturating_sub(last.end - last.start).min(8);
        need(more > 0, "the last group of the volume is full")?;
        let blocks = v.geometry.blocks + more;
        v.superblock(|sb| sb.set_blocks_count(blocks))
    }),
    (0x00_0008, |v| {
        let first = 1 - v.sb.s_first_data_block.get().min(1);
        v.superblock(|sb| sb.s_first_data_block = first.into())?;
        let copies: Vec<_> = v.geometry.backup_groups().collect();
        for copy in copies {
            v.copy_of_superblock(copy, |sb| sb.s_first_data_block = first.into())?;
        }
        Ok(())
    }),
    (0x00_0009, |v| {
        need(
            !v.has_ro(RoCompat::METADATA_CSUM | RoCompat::GDT_CSUM) && !v.geometry.gdt_csum,
            "the volume's checksums are seeded with its UUID",
        )?;
        v.superblock(|sb| sb.s_uuid = [0; 16])
    }),
    (0x00_000B, |v| {
        let blocks = v.geometry.blocks;
        v.superblock(|sb| sb.set_reserved_blocks_count(blocks))
    }),
    (0x00_000E, |v| {
        need(v.has_incompat(Incompat::FILETYPE), "the volume's entries have no types")?;
        v.superblock(|sb| sb.s_creator_os = 1.into())
    }),
    (0x00_002E, |v| {
        need(!v.has_compat(Compat::RESIZE_INODE), "the volume has a resize inode")?;
        v.superblock(|sb| sb.s_reserved_gdt_blocks = 1.into())
    }),
    (0x00_002F, |v| {
        need(v.has_compat(Compat::RESIZE_INODE), "the volume has no resize inode")?;
        v.superblock(|sb| {
            sb.s_feature_compat = (sb.s_feature_compat.get() & !Compat::RESIZE_INODE.bits()).into();
            sb.s_reserved_gdt_blocks = 0.into();
        })
    }),
    (0x00_0030, |v| {
        need(v.has_compat(Compat::RESIZE_INODE), "the volume has no resize inode")?;
        v.edit_words(InodeNo::RESIZE, |words| words[13] = 0)
    }),
    (0x00_0031, |v| last_mount(v, 10 * DAY)),
    (0x00_0032, |v| last_write(v, 10 * DAY)),
    (0x00_0034, |v| {
        need(v.has_compat(Compat::DIR_INDEX), "the volume has no hash trees")?;
        let signs = (Flags::SIGNED_HASH | Flags::UNSIGNED_HASH).bits();
        v.superblock(|sb| sb.s_flags = (sb.s_flags.get() & !signs).into())
    }),
    (0x00_0035, |v| {
        need(v.geometry.metadata_csum || v.geometry.gdt_csum, "the volume has no checksums")?;
        let group = v.any_group(|_| true)?;
        v.group_without_checksum(group, |group| group.checksum ^= 0x55)
    }),
    (0x00_0036, |v| {
        need(!v.geometry.metadata_csum && !v.geometry.gdt_csum, "the volume has checksums")?;
        let group = v.any_group(|_| true)?;
        v.group(group, |group| group.flags |= GroupFlags::INODE_UNINIT)
    }),
    (0x00_0038, |v| {
        need(v.geometry.metadata_csum || v.geometry.gdt_csum, "the volume has no checksums")?;
        let group = v.any_group(|group| !group.flags.contains(GroupFlags::INODE_UNINIT))?;
        let more = v.geometry.inodes_per_group + 1;
        v.group(group, |group| group.itable_unused = more)
    }),
    (0x00_0039, |v| {
        need(v.geometry.metadata_csum || v.geometry.gdt_csum, "the volume has no checksums")?;
        let last = GroupNo(v.geometry.groups - 1);
        v.group(last, |group| group.flags |= GroupFlags::BLOCK_UNINIT)
    }),
    (0x00_003B, |v| v.superblock(|sb| sb.s_flags = (sb.s_flags.get() | Flags::TEST_FILESYS.bits()).into())),
    (0x00_003C, |v| last_mount(v, DAY / 2)),
    (0x00_003D, |v| last_write(v, DAY / 2)),
    (0x00_0042, |v| {
        mmp_block(v)?;
        let beyond = v.geometry.blocks + 3;
        v.superblock(|sb| sb.s_mmp_block = beyond.into())
    }),
    (0x00_0043, |v| {
        let block = mmp_block(v)?;
        v.edit_block(block, |bytes| bytes.fill(0x11))
    }),
    (0x00_0044, |v| {
        copies(v, 1)?;
        v.superblock(|sb| sb.s_magic = 0.into())
    }),
    (0x0E_0009, |v| {
        copies(v, 1)?;
        v.superblock(|sb| sb.s_first_ino = 5.into())
    }),
    (0x00_0045, |v| {
        copies(v, 1)?;
        let group = v.any_group(|_| true)?;
        v.group(group, |group| group.inode_table = FsBlock(0))
    }),
    (0x00_0046, |v| {
        need(v.geometry.metadata_csum, "the volume has no checksums")?;
        set_ro(v, RoCompat::GDT_CSUM)
    }),
    (0x00_0047, |v| {
        need(v.geometry.metadata_csum, "the volume has no checksums")?;
        let block = mmp_block(v)?;
        v.edit_block(block, |bytes| {
            if let Some(byte) = bytes.get_mut(1023) {
                *byte ^= 0x55;
            }
        })
    }),
    (0x00_0048, |v| {
        need(v.has_incompat(Incompat::BIT64) && v.has_incompat(Incompat::EXTENT), "the volume lacks 64bit or extents")?;
        clear_incompat(v, Incompat::EXTENT)
    }),
    // blocks reserved for growth would count as descriptors
    (0x00_0049, |v| {
        need(v.has_compat(Compat::RESIZE_INODE), "the volume has no resize inode")?;
        let first = v.geometry.descriptor_blocks + v.geometry.reserved_descriptor_blocks;
        let enlarge = |sb: &mut DiskSuperblock| {
            sb.s_feature_compat = (sb.s_feature_compat.get() & !Compat::RESIZE_INODE.bits()).into();
            sb.s_feature_incompat = (sb.s_feature_incompat.get() | Incompat::META_BG.bits()).into();
            sb.s_reserved_gdt_blocks = 0.into();
            sb.s_first_meta_bg = first.into();
        };
        for copy in copies(v, 0)? {
            v.copy_of_superblock(copy, enlarge)?;
        }
        v.superblock(enlarge)?;
        v.edit_words(InodeNo::RESIZE, |words| *words = [0; 15])
    }),
    (0x0E_000A, |v| {
        need(v.has_incompat(Incompat::META_BG), "the volume has no meta groups")?;
        let copies = copies(v, 0)?;
        for copy in copies {
            v.copy_of_superblock(copy, |sb| sb.s_first_meta_bg = 1_000_000.into())?;
        }
        v.superblock(|sb| sb.s_first_meta_bg = 1_000_000.into())
    }),
    (0x00_004B, |v| {
        need(!v.geometry.metadata_csum, "the volume has checksums")?;
        v.superblock(|sb| {
            sb.s_feature_incompat = (sb.s_feature_incompat.get() | Incompat::CSUM_SEED.bits()).into();
        })
    }),
    (0x00_004D, |v| {
        need(v.has_ro(RoCompat::EXTRA_ISIZE), "the volume's inodes have no extra fields")?;
        v.superblock(|sb| sb.s_min_extra_isize = 4001.into())
    }),
    (0x00_004E, |v| {
        need(v.has_ro(RoCompat::EXTRA_ISIZE), "the volume's inodes have no extra fields")?;
        v.superblock(|sb| sb.s_want_extra_isize = 4001.into())
    }),
    (0x0E_002C, |v| v.superblock(|sb| sb.s_def_hash_version = 119)),
    (0x0E_002D, |v| {
        need(v.has_compat(Compat::HAS_JOURNAL), "the volume has no journal")?;
        v.superblock(|sb| sb.s_journal_dev = 0x805.into())
    }),
    (0x00_004F, |v| v.superblock(|sb| sb.s_usr_quota_inum = 9.into())),
    (0x00_0051, |v| {
        need(v.has_compat(Compat::RESIZE_INODE), "the volume has no resize inode")?;
        v.superblock(|sb| {
            sb.s_feature_incompat = (sb.s_feature_incompat.get() | Incompat::META_BG.bits()).into();
            sb.s_first_meta_bg = 0.into();
        })
    }),
    (0x0E_0002, |v| {
        let first = copies(v, 2)?.first().copied().unwrap_or(GroupNo(1));
        v.copy_of_superblock(first, |sb| sb.s_magic = 0.into())?;
        v.superblock(|sb| sb.s_magic = 0.into())
    }),
    (0x0E_0018, |v| {
        let first = copies(v, 1)?.first().copied().unwrap_or(GroupNo(1));
        v.copy_of_superblock(first, |sb| sb.s_uuid = *b"another volume's")
    }),
    (0x0E_0019, |v| {
        let first = copies(v, 1)?.first().copied().unwrap_or(GroupNo(1));
        v.copy_of_group(GroupNo(0), first, |group| group.inode_table = FsBlock(group.inode_table.get() + 1))
    }),
    (0x0E_001B, |v| {
        let inodes = v.geometry.inodes + 1;
        let copies: Vec<_> = v.geometry.backup_groups().collect();
        for copy in copies {
            v.copy_of_superblock(copy, |sb| sb.s_inodes_count = inodes.into())?;
        }
        v.superblock(|sb| sb.s_inodes_count = inodes.into())
    }),
    (0x0E_0007, |v| redo_log(v).map(|_| ())),
    (0x0E_001A, |v| {
        let index = redo_log(v)?;
        v.edit_block(index, |bytes| bytes.fill(0))
    }),
    (0x02_0033, |v| {
        need(!v.has_ro(RoCompat::LARGE_FILE), "the volume has large files")?;
        let file = v.file(None)?;
        v.edit(file, |inode| inode.set_size(3 << 30))
    }),
    (0x02_0039, |v| {
        need(!v.has_incompat(Incompat::LARGE_DIR), "the volume has large directories")?;
        let dir = v.directory(1, None)?;
        v.edit(dir, |inode| inode.set_size(1 << 31))
    }),
    (0x01_006F, |v| {
        need(v.has_incompat(Incompat::INLINE_DATA), "the volume has no inline data")?;
        clear_incompat(v, Incompat::INLINE_DATA)
    }),
];
