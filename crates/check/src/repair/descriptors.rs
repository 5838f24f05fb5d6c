//! Group descriptors: restored from a copy; bitmaps and tables moved to valid locations.

use super::superblock;
use super::work::Work;
use crate::phases::superblock::copied_groups;
use crate::phases::superblock::inode_tables::Seeker;
use crate::problem::Problem;
use crate::table::Code;
use blockdev::Result;
use format::feature::Incompat;
use format::group::GroupFlags;
use format::inode::RawInode;
use format::{FsBlock, GroupNo};
use std::collections::{BTreeMap, BTreeSet};

/// Writes the descriptors that the check used into the primary table. They get right checksums, so the uninit flags of
/// those with wrong ones are cleared, as they are not trusted.
pub(super) fn restore(work: &Work<'_>) -> Result<()> {
    work.make_stale();
    let volume = work.volume();
    for (number, group) in volume.geometry.group_numbers().zip(&volume.groups) {
        let mut group = *group;
        if volume.untrusted.binary_search(&number).is_ok() {
            group.flags -= GroupFlags::BLOCK_UNINIT | GroupFlags::INODE_UNINIT;
            group.itable_unused = 0;
        }
        work.put_group(number, group)?;
    }
    Ok(())
}

/// Repairs descriptors.
pub(super) fn repair(work: &Work<'_>, problems: &[&Problem]) -> Result<()> {
    if problems.iter().any(|p| p.code == Code::GroupDescriptorsTryBackup) {
        superblock::take_geometry(work)?;
        return restore(work);
    }
    // the blocks of files that were not read are not known to be in use: parts are moved after the next check
    let are_unread = problems.iter().any(|problem| hides_inodes(problem.code));
    let mut moved = BTreeSet::new();
    for problem in problems.iter().filter(|problem| !are_unread || !moves_part(problem.code)) {
        let Some(number) = problem.group else { continue };
        let Some(mut group) = work.group(number) else { continue };
        let uninit = GroupFlags::BLOCK_UNINIT | GroupFlags::INODE_UNINIT;
        match problem.code {
            // the check used the right location, which is written below
            Code::InodeTableElsewhere => work.make_stale(),
            // the uninit flags of such a descriptor are not trusted, and all inodes are checked
            Code::GroupChecksumWrong | Code::GroupUninitWithoutFeature => {
                work.make_stale();
                group.flags -= uninit;
                group.itable_unused = 0;
            }
            // the flag is believed: such a table may never have been written
            Code::GroupUnusedInodesWrong if number.get() != 0 && group.flags.contains(GroupFlags::INODE_UNINIT) => {
                let all = work.volume().geometry.inodes_per_group;
                (group.free_inodes, group.itable_unused) = (all, all);
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
                    work.put_block(block, &inodes_in_use(work, number)?)?;
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

/// Whether inodes of the group were not read that are possibly in use.
fn hides_inodes(code: Code) -> bool {
    matches!(code, Code::GroupUnusedInodesWrong | Code::EntryInodeInUnusedPart | Code::EntryInodeGroupUninit)
}

/// Whether the repair allocates blocks for a bitmap or a table.
fn moves_part(code: Code) -> bool {
    let of_bitmap = matches!(
        code,
        Code::BlockBitmapNotInGroup
            | Code::BlockBitmapConflict
            | Code::InodeBitmapNotInGroup
            | Code::InodeBitmapConflict
    );
    of_bitmap || of_table(code)
}

/// Whether the repair moves an inode table.
pub(super) fn of_table(code: Code) -> bool {
    matches!(code, Code::InodeTableNotInGroup | Code::InodeTableConflict)
}

/// The reason not to repair the problems: a table that cannot be found would be created empty, and the group's inodes
/// in use would be lost. Their number is taken from the group's bitmap; where the bitmap cannot be found either, from
/// the entries of directories that refer to them, or from the superblock.
pub(super) fn would_lose(work: &Work<'_>, problems: &[&Problem]) -> Option<String> {
    let volume = work.volume();
    let seeker = Seeker { scanner: work.view.scanner, geometry: &volume.geometry, features: &volume.features };
    let groups: BTreeSet<GroupNo> = problems.iter().filter(|p| of_table(p.code)).filter_map(|p| p.group).collect();
    groups.iter().find_map(|&number| {
        let group = volume.group(number)?;
        let named = named_inodes(problems, number);
        let (members, who) = match seeker.agreement(number, group, group.inode_table.get()) {
            Some(agreement) if agreement.is_lost() => (agreement.members, "in the group's bitmap"),
            Some(agreement) if agreement.members > 0 => (0, ""),
            _ if named > 0 => (named, "in it by the directories"),
            Some(_) => (0, ""),
            None => (uncounted(work, &groups), "in it by the superblock's count"),
        };
        (members > 0).then(|| cannot_be_found(number, members, who))
    })
}

/// A table that is not where its descriptor states, although that location is possible: the reason not to repair
/// anything, and a problem that results from it. The table does not match the inodes in use by the group's bitmap, and
/// the location is not where mkfs puts tables. Where a copy of the descriptors has the same location, the table must lack
/// at least `confirmed` files: a few inodes may have been destroyed in place.
pub(super) fn lost_table<'p>(
    work: &Work<'_>,
    problems: &'p [Problem],
    confirmed: u32,
) -> Option<(&'p Problem, String)> {
    let volume = work.volume();
    let mut groups = BTreeMap::new();
    for problem in problems {
        let differs = matches!(problem.code, Code::InodeMarkedButUnused | Code::InodeRangeMarkedButUnused);
        if let Some(number) = problem.group.filter(|_| differs) {
            groups.entry(number).or_insert(problem);
        }
        // an empty bitmap next to an empty table, of a group of which there are names
        let unused = problem.inode.filter(|_| problem.code == Code::EntryInodeUnused);
        if let Some(number) = unused.and_then(|inode| Some(volume.geometry.inode_slot(inode)?.group)) {
            groups.entry(number).or_insert(problem);
        }
    }
    if groups.is_empty() {
        return None;
    }
    let scanner = work.view.scanner;
    let seeker = Seeker { scanner, geometry: &volume.geometry, features: &volume.features };
    let odd = seeker.odd(&volume.groups);
    let copied = copied_groups(scanner, &volume.disk, &volume.geometry).unwrap_or_default();
    groups.into_iter().find_map(|(number, problem)| {
        let group = volume.group(number)?;
        let copy = copied.get(number.get() as usize);
        let is_confirmed = copy.is_some_and(|copy| copy.inode_table == group.inode_table);
        let least = if is_confirmed { confirmed } else { 1 };
        let agreement = seeker.agreement(number, group, group.inode_table.get())?;
        let counted = volume.geometry.inodes_per_group.saturating_sub(group.free_inodes);
        // the flag BLOCK_UNINIT denies the blocks of any table, and the number of unused inodes the files in it
        let is_denied =
            || seeker.is_allocated(group, &volume.groups) == Some(false) && !seeker.is_at_its_place(number, group);
        let (members, counted_by) = match agreement.members {
            0 if counted > 0 && is_denied() => (counted, "in it by its descriptor"),
            members if agreement.is_lost() && odd.contains(&number) => (members, "in the group's bitmap"),
            _ => return None,
        };
        (members >= least).then(|| (problem, cannot_be_found(number, members, counted_by)))
    })
}

/// The reason not to repair a volume with this table.
fn cannot_be_found(number: GroupNo, members: u32, counted: &str) -> String {
    format!(
        "the inode table of group {number} cannot be found, and the {members} files {counted} would be lost: nothing was \
         changed; -E empty_tables creates an empty table nevertheless"
    )
}

/// The number of inodes to which directories refer in the unread table of a group. It is known even where the counts
/// come from a copy of the superblock, which is not updated.
fn named_inodes(problems: &[&Problem], number: GroupNo) -> u32 {
    let of_group = |p: &&&Problem| {
        p.group == Some(number) && matches!(p.code, Code::EntryInodeInUnusedPart | Code::EntryInodeGroupUninit)
    };
    let named: BTreeSet<_> = problems.iter().filter(of_group).filter_map(|p| p.inode).collect();
    named.len() as u32
}

/// The number of inodes of users' files in use by the superblock's count, without those that descriptors of other
/// groups than these count.
fn uncounted(work: &Work<'_>, groups: &BTreeSet<GroupNo>) -> u32 {
    let volume = work.volume();
    let geometry = &volume.geometry;
    let others = geometry.group_numbers().zip(&volume.groups).filter(|(other, _)| !groups.contains(other));
    let elsewhere: u64 =
        others.map(|(_, group)| u64::from(geometry.inodes_per_group.saturating_sub(group.free_inodes))).sum();
    let reserved = if groups.contains(&GroupNo(0)) { geometry.first_inode.saturating_sub(1) } else { 0 };
    let used = geometry.inodes.saturating_sub(volume.disk.s_free_inodes_count.get());
    let left = u64::from(used).saturating_sub(elsewhere).saturating_sub(reserved.into());
    u32::try_from(left).unwrap_or(u32::MAX)
}

/// Allocates free blocks for a part of a group: in the group, or anywhere if the volume allows that.
fn place(work: &Work<'_>, group: GroupNo, blocks: u64) -> Option<u64> {
    let geometry = &work.volume().geometry;
    let own = work.allocate_run(blocks, geometry.group_blocks(group));
    let anywhere = work.volume().features.incompat.contains(Incompat::FLEX_BG);
    own.or_else(|| {
        let all = u64::from(geometry.first_data_block)..geometry.blocks;
        anywhere.then(|| work.allocate_run(blocks, all)).flatten()
    })
}

/// An inode bitmap by the inodes in a group's table, where that is certainly the group's: the next check does not search
/// for a table that matches an empty one. Otherwise zeros.
fn inodes_in_use(work: &Work<'_>, number: GroupNo) -> Result<Vec<u8>> {
    let volume = work.volume();
    let geometry = &volume.geometry;
    let mut bitmap = vec![0; work.block_size()];
    let seeker = Seeker { scanner: work.view.scanner, geometry, features: &volume.features };
    let Some(group) = volume.group(number).filter(|group| seeker.is_at_its_place(number, group)) else {
        return Ok(bitmap);
    };
    let used = volume.used_inodes.get(number.get() as usize).copied().unwrap_or(0);
    let mut set = |index: u32| {
        if let Some(byte) = bitmap.get_mut(index as usize / 8) {
            *byte |= 1 << (index % 8);
        }
    };
    let mut indices = 0..geometry.inodes_per_group;
    for block in group.inode_table.get()..group.inode_table.get().saturating_add(geometry.itable_blocks.into()) {
        let bytes = work.block(block)?.unwrap_or_default();
        for (slot, index) in bytes.chunks_exact(geometry.inode_size as usize).zip(indices.by_ref()) {
            let links = RawInode::from_slot(slot).map_or(0, |raw| raw.disk.i_links_count.get());
            let is_reserved = geometry.inode_at(number, index).get() < geometry.first_inode;
            if is_reserved || index < used && links != 0 {
                set(index);
            }
        }
    }
    (geometry.inodes_per_group..geometry.block_size * 8).for_each(set);
    Ok(bitmap)
}

/// Copies a table that is inside the volume; otherwise writes zeros.
fn move_table(work: &Work<'_>, from: u64, to: u64, blocks: u64) -> Result<()> {
    let on_volume = work.volume().contains(from) && from.saturating_add(blocks) <= work.volume().geometry.blocks;
    for n in 0..blocks {
        let bytes = if on_volume { work.block(from + n)? } else { None };
        work.put_block(to + n, &bytes.unwrap_or_else(|| vec![0; work.block_size()]))?;
    }
    Ok(())
}
