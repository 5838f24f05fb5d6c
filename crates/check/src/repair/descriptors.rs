//! Group descriptors: restored from a copy, bitmaps and tables moved to places where they may lie.

use super::superblock;
use super::work::Work;
use crate::phases::superblock::inode_tables::Seeker;
use crate::problem::Problem;
use crate::table::Code;
use blockdev::Result;
use format::feature::Incompat;
use format::group::GroupFlags;
use format::{FsBlock, GroupNo};
use std::collections::BTreeSet;

/// Writes the descriptors that the check went on with into the primary table.
pub(super) fn restore(work: &Work<'_>) -> Result<()> {
    work.make_stale();
    for (number, group) in work.volume().geometry.group_numbers().zip(&work.volume().groups) {
        work.put_group(number, *group)?;
    }
    Ok(())
}

/// Repairs descriptors.
pub(super) fn repair(work: &Work<'_>, problems: &[&Problem]) -> Result<()> {
    if problems.iter().any(|p| p.code == Code::GroupDescriptorsTryBackup) {
        superblock::take_geometry(work)?;
        return restore(work);
    }
    let mut moved = BTreeSet::new();
    for problem in problems {
        let Some(number) = problem.group else { continue };
        let Some(mut group) = work.group(number) else { continue };
        let uninit = GroupFlags::BLOCK_UNINIT | GroupFlags::INODE_UNINIT;
        match problem.code {
            // the check went on with the right place, which is written below
            Code::InodeTableElsewhere => work.make_stale(),
            // what such a descriptor says was never written is not believed, and all inodes are looked at
            Code::GroupChecksumWrong | Code::GroupUninitWithoutFeature => {
                work.make_stale();
                group.flags -= uninit;
                group.itable_unused = 0;
            }
            Code::GroupUnusedInodesWrong | Code::EntryInodeInUnusedPart => {
                work.make_stale();
                group.itable_unused = 0;
            }
            Code::EntryInodeGroupUninit => {
                work.make_stale();
                group.flags -= GroupFlags::INODE_UNINIT;
                group.itable_unused = 0;
            }
            Code::LastGroupBlockUninit => group.flags -= GroupFlags::BLOCK_UNINIT,
            Code::BlockBitmapNotInGroup | Code::BlockBitmapConflict => {
                if let Some(block) = place(work, number, 1) {
                    group.block_bitmap = FsBlock(block);
                    group.flags -= GroupFlags::BLOCK_UNINIT;
                    work.put_block(block, &vec![0; work.block_size()])?;
                }
                work.make_stale();
            }
            Code::InodeBitmapNotInGroup | Code::InodeBitmapConflict => {
                if let Some(block) = place(work, number, 1) {
                    group.inode_bitmap = FsBlock(block);
                    work.put_block(block, &vec![0; work.block_size()])?;
                }
                work.make_stale();
            }
            Code::InodeTableNotInGroup | Code::InodeTableConflict => {
                // a conflict may be reported for each part of a table
                if !moved.insert(number) {
                    continue;
                }
                let blocks = u64::from(work.volume().geometry.itable_blocks);
                if let Some(first) = place(work, number, blocks) {
                    move_table(work, group.inode_table.get(), first, blocks)?;
                    group.inode_table = FsBlock(first);
                }
                work.make_stale();
            }
            _ => {}
        }
        work.put_group(number, group)?;
    }
    Ok(())
}

/// Why the problems are not to be repaired: a table that cannot be found would be made anew, and the inodes that are in
/// use in the group would be gone. How many they are its bitmap says, or, where that cannot be found either, the
/// superblock.
pub(super) fn would_lose(work: &Work<'_>, problems: &[&Problem]) -> Option<String> {
    let volume = work.volume();
    let seeker = Seeker { scanner: work.view.scanner, geometry: &volume.geometry, features: &volume.features };
    problems.iter().filter(|p| matches!(p.code, Code::InodeTableNotInGroup | Code::InodeTableConflict)).find_map(|p| {
        let number = p.group?;
        let group = volume.group(number)?;
        let (members, who) = match seeker.agreement(number, group, group.inode_table.get()) {
            Some(agreement) => (if agreement.is_lost() { agreement.members } else { 0 }, "the group's bitmap has in use"),
            // where not even the root can be found there is nothing to lose
            None if number.get() == 0 && !seeker.root_stands_somewhere(&volume.groups) => return None,
            None => (uncounted(work, number), "the superblock counts in it"),
        };
        (members > 0).then(|| {
            format!(
                "the inode table of group {number} cannot be found, and the {members} files that {who} would be lost: nothing was \
                 changed; -E empty_tables makes an empty table all the same"
            )
        })
    })
}

/// Inodes of users' files that are in use by the superblock's count, and in no other group by the descriptors'.
fn uncounted(work: &Work<'_>, number: GroupNo) -> u32 {
    let volume = work.volume();
    let geometry = &volume.geometry;
    let others = geometry.group_numbers().zip(&volume.groups).filter(|(other, _)| *other != number);
    let elsewhere: u64 =
        others.map(|(_, group)| u64::from(geometry.inodes_per_group.saturating_sub(group.free_inodes))).sum();
    let reserved = if number.get() == 0 { geometry.first_inode.saturating_sub(1) } else { 0 };
    let used = geometry.inodes.saturating_sub(volume.disk.s_free_inodes_count.get());
    let left = u64::from(used).saturating_sub(elsewhere).saturating_sub(reserved.into());
    u32::try_from(left).unwrap_or(u32::MAX).min(geometry.inodes_per_group)
}

/// Free blocks for a part of a group: in the group, or anywhere where the volume allows that.
fn place(work: &Work<'_>, group: GroupNo, blocks: u64) -> Option<u64> {
    let geometry = &work.volume().geometry;
    let own = work.allocate_run(blocks, geometry.group_blocks(group));
    let anywhere = work.volume().features.incompat.contains(Incompat::FLEX_BG);
    own.or_else(|| {
        let all = u64::from(geometry.first_data_block)..geometry.blocks;
        anywhere.then(|| work.allocate_run(blocks, all)).flatten()
    })
}

/// Copies a table that lies on the volume; one that does not leaves nothing but zeros.
fn move_table(work: &Work<'_>, from: u64, to: u64, blocks: u64) -> Result<()> {
    let on_volume = work.volume().contains(from) && from.saturating_add(blocks) <= work.volume().geometry.blocks;
    for n in 0..blocks {
        let bytes = if on_volume { work.block(from + n)? } else { None };
        work.put_block(to + n, &bytes.unwrap_or_else(|| vec![0; work.block_size()]))?;
    }
    Ok(())
}
