//! Damage to the journal, the orphan list and the orphan file.

use crate::error::{Error, Result, need};
use crate::recipe::Recipe;
use crate::volume::{Volume, put};
use format::feature::{Compat, Incompat, RoCompat};
use format::inode::InodeBuf;
use format::jbd2::{DiskSuperblock, JournalSuperblock};
use format::{FsBlock, InodeNo, orphan};
use std::time::Duration;
use zerocopy::FromBytes;

fn journal(v: &Volume<'_>) -> Result<InodeNo> {
    need(v.has_compat(Compat::HAS_JOURNAL) && v.sb.s_journal_inum.get() != 0, "the volume has no journal")?;
    Ok(InodeNo(v.sb.s_journal_inum.get()))
}

/// Changes the journal's superblock, and its checksum.
fn edit(v: &mut Volume<'_>, edit: impl FnOnce(&mut DiskSuperblock)) -> Result<()> {
    let journal = journal(v)?;
    let block = v.block_of(journal, 0)?;
    let mut bytes = v.block(block)?;
    let (disk, _) = DiskSuperblock::mut_from_prefix(&mut bytes).map_err(|_| Error::Unfit("the journal is cut off"))?;
    edit(disk);
    disk.set_checksum();
    v.put_block(block, &bytes)
}

/// Writes a transaction without blocks, and a journal superblock whose `s_start` is its block.
fn commit(v: &mut Volume<'_>) -> Result<()> {
    let journal = journal(v)?;
    let first = v.block_of(journal, 0)?;
    let bytes = v.block(first)?;
    let blocks = v.map_of(journal)?.data.len() as u64;
    let superblock = JournalSuperblock::parse(&bytes, v.geometry.block_size, blocks)?;
    let (start, sequence) = (superblock.log_blocks().start, superblock.sequence());
    let block = v.block_of(journal, start.into())?;
    v.put_block(block, &superblock.log().commit(sequence, Duration::ZERO, !0))?;
    edit(v, |disk| disk.s_start = start.into())
}

fn no_copy_of_the_map(v: &mut Volume<'_>) -> Result<()> {
    v.superblock(|sb| {
        sb.s_jnl_backup_type = 0;
        sb.s_jnl_blocks = [0.into(); 17];
    })
}

fn orphan_file(v: &Volume<'_>) -> Result<InodeNo> {
    need(v.has_compat(Compat::ORPHAN_FILE), "the volume has no orphan file")?;
    Ok(InodeNo(v.sb.s_orphan_file_inum.get()))
}

/// Changes a block of the orphan file, and its checksum where `checksum`.
fn edit_orphans(v: &mut Volume<'_>, checksum: bool, edit: impl FnOnce(&mut [u8])) -> Result<()> {
    let file = orphan_file(v)?;
    let block = v.block_of(file, 0)?;
    let seed = v.geometry.metadata_csum.then_some(v.inode(file)?.raw().seed(&v.geometry, file));
    v.edit_block(block, |bytes| {
        edit(bytes);
        if checksum {
            let _ = orphan::set_checksum(bytes, FsBlock(block), seed);
        }
    })
}

fn set_recovery(v: &mut Volume<'_>) -> Result<()> {
    v.superblock(|sb| {
        sb.s_feature_incompat = (sb.s_feature_incompat.get() | Incompat::NEEDS_RECOVERY.bits()).into();
    })
}

fn orphan_present(v: &mut Volume<'_>) -> Result<()> {
    v.superblock(|sb| {
        sb.s_feature_ro_compat = (sb.s_feature_ro_compat.get() | RoCompat::ORPHAN_PRESENT.bits()).into();
    })
}

pub(crate) const RECIPES: &[(u32, Recipe)] = &[
    (0x00_000F, |v| {
        let journal = journal(v)?;
        no_copy_of_the_map(v)?;
        v.edit(journal, |inode| inode.set_size(1024))
    }),
    (0x00_0010, |v| edit(v, |disk| disk.s_nr_users = 2.into())),
    (0x00_0011, |v| {
        v.superblock(|sb| {
            sb.s_journal_uuid = [7; 16];
            sb.s_feature_compat = (sb.s_feature_compat.get() | Compat::HAS_JOURNAL.bits()).into();
        })
    }),
    (0x00_0014, |v| edit(v, |disk| disk.s_header.h_blocktype = 7.into())),
    (0x00_0015, |v| edit(v, |disk| disk.s_blocksize = 512.into())),
    (0x00_0016, |v| {
        journal(v)?;
        v.superblock(|sb| sb.s_feature_compat = (sb.s_feature_compat.get() & !Compat::HAS_JOURNAL.bits()).into())
    }),
    (0x00_0017, |v| {
        need(!v.has_compat(Compat::HAS_JOURNAL), "the volume has a journal")?;
        set_recovery(v)
    }),
    (0x00_0018, |v| edit(v, |disk| disk.s_start = disk.s_first)),
    (0x00_0025, |v| edit(v, |disk| disk.s_feature_ro_compat = 0x8000.into())),
    (0x00_0026, |v| edit(v, |disk| disk.s_feature_incompat = (disk.s_feature_incompat.get() | 0x8000).into())),
    (0x00_002A, |v| {
        edit(v, |disk| {
            disk.s_header.h_blocktype = 3.into();
            disk.s_feature_compat = 1.into();
        })
    }),
    (0x00_0020, |v| {
        let file = v.file(None)?;
        v.superblock(|sb| sb.s_last_orphan = file.get().into())
    }),
    (0x00_0023, |v| {
        let beyond = v.geometry.inodes + 7;
        v.superblock(|sb| sb.s_last_orphan = beyond.into())
    }),
    (0x00_0024, |v| {
        let (file, beyond) = (v.file(None)?, v.geometry.inodes + 7);
        v.edit(file, |inode| inode.disk_mut().i_dtime = beyond.into())?;
        v.superblock(|sb| sb.s_last_orphan = file.get().into())
    }),
    (0x00_0052, |v| {
        let file = orphan_file(v)?;
        let blocks = v.map_of(file)?.data.len() as u64;
        let size = (blocks + 1) * u64::from(v.geometry.block_size);
        v.edit(file, |inode| inode.set_size(size))
    }),
    (0x00_0053, |v| {
        edit_orphans(v, false, |bytes| {
            let tail = bytes.len() - 8;
            put(bytes, tail, &[0; 4]);
        })
    }),
    (0x00_0054, |v| {
        need(v.geometry.metadata_csum, "the volume has no checksums")?;
        edit_orphans(v, false, |bytes| {
            if let Some(last) = bytes.last_mut() {
                *last ^= 0x55;
            }
        })
    }),
    (0x00_0055, |v| {
        let file = orphan_file(v)?;
        v.edit(file, |inode| inode.set_size(inode.raw().size() + 1))
    }),
    (0x06_0007, |v| {
        let (_, journal) = (orphan_file(v)?, journal(v)?);
        v.superblock(|sb| {
            sb.s_feature_compat = (sb.s_feature_compat.get() & !Compat::HAS_JOURNAL.bits()).into();
            sb.s_journal_inum = 0.into();
        })?;
        v.record(format!("the journal, inode {journal}"));
        Ok(())
    }),
    (0x06_0009, |v| {
        let file = orphan_file(v)?;
        v.edit(file, |inode| inode.set_mode(0))
    }),
    (0x06_000C, |v| {
        let file =
            v.pick("the volume has no file", |_, raw| Ok(raw.kind() == Some(format::inode::FileKind::Regular)))?;
        edit_orphans(v, true, |bytes| put(bytes, 0, &file.get().to_le_bytes()))
    }),
    (0x06_000D, |v| {
        orphan_file(v)?;
        orphan_present(v)
    }),
    (0x06_000E, |v| {
        need(!v.has_compat(Compat::ORPHAN_FILE), "the volume has an orphan file")?;
        orphan_present(v)
    }),
    (0x0E_0011, |v| {
        let journal = journal(v)?;
        need(v.sb.s_jnl_backup_type == 1, "the superblock has no copy of the journal's block map")?;
        let blank = vec![0; v.geometry.inode_size as usize];
        let blank = InodeBuf::from_slot(&blank).ok_or(Error::Unfit("the inode is cut off"))?;
        v.put_inode(journal, &blank)
    }),
    (0x0E_0015, |v| {
        journal(v)?;
        let other =
            v.pick("the volume has no file", |_, raw| Ok(raw.kind() == Some(format::inode::FileKind::Regular)))?;
        v.superblock(|sb| sb.s_journal_inum = other.get().into())
    }),
    (0x0E_0016, |v| {
        need(!v.sb.features().ro_compat.contains(RoCompat::QUOTA), "the volume has quota")?;
        let other =
            v.pick("the volume has no file", |_, raw| Ok(raw.kind() == Some(format::inode::FileKind::Regular)))?;
        v.superblock(|sb| sb.s_usr_quota_inum = other.get().into())
    }),
    (0x0E_0017, |v| {
        need(v.sb.features().ro_compat.contains(RoCompat::QUOTA), "the volume has no quota")?;
        let other =
            v.pick("the volume has no file", |_, raw| Ok(raw.kind() == Some(format::inode::FileKind::Regular)))?;
        v.superblock(|sb| sb.s_usr_quota_inum = other.get().into())
    }),
    (0x0E_0004, |v| {
        commit(v)?;
        set_recovery(v)
    }),
    (0x0E_0014, |v| {
        journal(v)?;
        set_recovery(v)
    }),
    (0x01_0035, |v| {
        let journal = journal(v)?;
        v.edit(journal, |inode| inode.set_mode(0o060_600))
    }),
    (0x01_008F, |v| {
        let file = orphan_file(v)?;
        v.edit(file, |inode| inode.set_mode(0o060_600))
    }),
];
