//! The journal's inode and superblock: an unusable journal is removed, and a new one is created where there is space.

use super::maps;
use super::replay;
use super::work::Work;
use crate::phases::superblock::journal::{self, FoundJournal};
use crate::problem::Problem;
use crate::system_inode::{self, SystemInode};
use crate::table::Code;
use blockdev::Result;
use format::InodeNo;
use format::feature::{Compat, Incompat};
use format::inode::{InodeFlags, Timestamp};
use format::jbd2::DiskSuperblock;
use format::superblock::DiskSuperblock as VolumeSuperblock;
use std::ops::Range;
use zerocopy::{FromBytes, IntoBytes};

/// Journal sizes in blocks for ranges of volume sizes, as chosen by mke2fs.
const SIZES: &[(Range<u64>, u64)] =
    &[(2048..32_768, 1024), (32_768..262_144, 4096), (262_144..524_288, 8192), (524_288..u64::MAX, 16_384)];

/// Repairs the journal.
pub(super) fn repair(work: &Work<'_>, problems: &[&Problem]) -> Result<()> {
    let inode = InodeNo(work.volume().disk.s_journal_inum.get());
    for problem in problems {
        match problem.code {
            Code::JournalInodeBad => {
                remove(work, inode)?;
                make(work)?;
            }
            Code::JournalInodeElsewhere => {
                edit_feature(work, |sb| sb.s_journal_inum = InodeNo::JOURNAL.get().into())?;
            }
            Code::JournalInodeRestorable => restore(work)?,
            Code::JournalSuperblockBad => {
                if let Some(FoundJournal { file, .. }) = journal::find(work.view.scanner, work.volume(), inode) {
                    replay::renew(work, &file)?;
                    edit_feature(work, |sb| {
                        sb.s_feature_incompat = (sb.s_feature_incompat.get() & !Incompat::NEEDS_RECOVERY.bits()).into();
                    })?;
                }
            }
            Code::JournalFeatureMissing => {
                // an inode that is not a journal would not have been found
                edit_feature(work, |sb| {
                    super::superblock::have_features(sb);
                    sb.s_feature_compat = (sb.s_feature_compat.get() | Compat::HAS_JOURNAL.bits()).into();
                })?;
            }
            Code::JournalRecoveryWithoutJournal => edit_feature(work, |sb| {
                sb.s_feature_incompat = (sb.s_feature_incompat.get() & !Incompat::NEEDS_RECOVERY.bits()).into();
            })?,
            Code::JournalDeviceNotFound if journal::is_mere_reference(work.volume()) => {
                edit_feature(work, |sb| sb.s_journal_uuid = [0; 16])?;
            }
            Code::JournalVersion1HasFeatures | Code::JournalSharedUnsupported => {
                if let Some(FoundJournal { file, bytes, .. }) = journal::find(work.view.scanner, work.volume(), inode) {
                    clear_beyond_version1(work, &file, bytes)?;
                    work.make_stale();
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Rewrites the journal's inode from the copy in the superblock; the next check corrects its block count. It is always
/// the reserved inode: the one in the superblock may be the root or a user's file.
fn restore(work: &Work<'_>) -> Result<()> {
    let number = InodeNo::JOURNAL;
    work.make_stale();
    let Some((root, size)) = journal::copy(work.volume()) else { return Ok(()) };
    let mut inode = work.blank_inode();
    inode.set_mode(0o100_600);
    inode.set_links(1);
    if system_inode::is_extent_root(&root) {
        inode.set_flags(InodeFlags::EXTENTS);
    }
    let now = Timestamp { seconds: work.now.cast_signed(), nanos: 0 };
    inode.set_ctime(now);
    inode.set_mtime(now);
    inode.set_size(size);
    inode.set_block(root);
    work.open_inode(number)?;
    work.put_inode(number, inode)
}

/// Clears the error that the kernel recorded in an empty journal, which is a reason to check but not damage.
pub(super) fn forget_error(work: &Work<'_>) -> Result<()> {
    let inode = InodeNo(work.volume().disk.s_journal_inum.get());
    let Some(FoundJournal { file, mut bytes, .. }) = journal::find(work.view.scanner, work.volume(), inode) else {
        return Ok(());
    };
    let (Some(block), Ok((disk, _))) = (file.block(0), DiskSuperblock::mut_from_prefix(&mut bytes)) else {
        return Ok(());
    };
    if disk.s_errno.get() == 0 || disk.s_start.get() != 0 {
        return Ok(());
    }
    disk.s_errno = 0.into();
    disk.set_checksum();
    work.put_block(block, &bytes)
}

fn edit_feature(work: &Work<'_>, edit: impl FnOnce(&mut VolumeSuperblock)) -> Result<()> {
    work.make_stale();
    work.edit_superblock(edit)
}

fn clear_beyond_version1(work: &Work<'_>, file: &SystemInode, mut bytes: Vec<u8>) -> Result<()> {
    let Some(block) = file.block(0) else { return Ok(()) };
    if let Some(beyond) = bytes.get_mut(0x24..DiskSuperblock::SIZE) {
        beyond.fill(0);
    }
    work.put_block(block, &bytes)
}

/// Wipes the journal's inode and its copy in the superblock, so that the next check finds that a new journal is needed.
pub(super) fn discard(work: &Work<'_>) -> Result<()> {
    work.make_stale();
    work.wipe_inode(InodeNo::JOURNAL)?;
    work.edit_superblock(|sb| {
        sb.s_jnl_backup_type = 0;
        sb.s_jnl_blocks = [0.into(); 17];
    })
}

/// Clears the journal's inode and all references to it.
fn remove(work: &Work<'_>, inode: InodeNo) -> Result<()> {
    work.make_stale();
    if inode == InodeNo::JOURNAL || inode.get() == 0 {
        work.wipe_inode(InodeNo::JOURNAL)?;
    }
    work.edit_superblock(|sb| {
        sb.s_feature_compat = (sb.s_feature_compat.get() & !Compat::HAS_JOURNAL.bits()).into();
        sb.s_feature_incompat = (sb.s_feature_incompat.get() & !Incompat::NEEDS_RECOVERY.bits()).into();
        sb.s_journal_inum = 0.into();
        sb.s_journal_dev = 0.into();
        sb.s_journal_uuid = [0; 16];
        sb.s_jnl_backup_type = 0;
        sb.s_jnl_blocks = [0.into(); 17];
    })
}

/// Creates an empty journal, where the volume has space for it in one extent.
fn make(work: &Work<'_>) -> Result<()> {
    let geometry = &work.volume().geometry;
    let within = u64::from(geometry.first_data_block)..geometry.blocks;
    let Some((_, blocks)) = SIZES.iter().find(|(range, _)| range.contains(&geometry.blocks)) else { return Ok(()) };
    let Some(first) = work.allocate_run(*blocks, within) else { return Ok(()) };
    let mut inode = work.blank_inode();
    inode.set_mode(0o100_600);
    inode.set_links(1);
    inode.set_flags(maps::new_file_flags(work));
    let now = Timestamp { seconds: work.now.cast_signed(), nanos: 0 };
    inode.set_ctime(now);
    inode.set_mtime(now);
    inode.set_size(blocks * u64::from(geometry.block_size));
    let places: Vec<u64> = (first..first + blocks).collect();
    if !maps::write_dense(work, InodeNo::JOURNAL, &mut inode, &places, &[], 0)? {
        return Ok(());
    }
    // the old blocks may look like a log
    let blank = vec![0; work.block_size()];
    for place in &places {
        work.put_block(*place, &blank)?;
    }
    let uuid = work.volume().disk.s_uuid;
    let superblock = DiskSuperblock::empty(geometry.block_size, u32::try_from(*blocks).unwrap_or(u32::MAX), 0, uuid);
    let mut bytes = blank;
    if let Some(start) = bytes.get_mut(..DiskSuperblock::SIZE) {
        start.copy_from_slice(superblock.as_bytes());
    }
    work.put_block(first, &bytes)?;
    let mut map = [zerocopy::little_endian::U32::ZERO; 17];
    for (word, bytes) in map.iter_mut().zip(inode.raw().disk.i_block.chunks_exact(4)) {
        *word = zerocopy::little_endian::U32::read_from_bytes(bytes).unwrap_or_default();
    }
    let size = inode.raw().size();
    let [.., high, low] = &mut map;
    *high = ((size >> 32) as u32).into();
    *low = (size as u32).into();
    work.put_inode(InodeNo::JOURNAL, inode)?;
    work.edit_superblock(|sb| {
        super::superblock::have_features(sb);
        sb.s_feature_compat = (sb.s_feature_compat.get() | Compat::HAS_JOURNAL.bits()).into();
        sb.s_journal_inum = InodeNo::JOURNAL.get().into();
        sb.s_jnl_backup_type = 1;
        sb.s_jnl_blocks = map;
    })
}
