//! Bitmaps, free counts and descriptors: rewritten by the results of the check.

use super::space_maps;
use super::work::Work;
use crate::problem::Problem;
use crate::system_zone;
use crate::table::Code;
use blockdev::Result;
use format::GroupNo;
use format::group::{GroupFlags, bitmap_checksum};
use std::collections::HashSet;

/// Writes the bitmaps and counts of all groups, except those that are right.
pub(super) fn repair(work: &Work<'_>) -> Result<()> {
    // what would be overwritten at a wrong location is unknown
    let misplaced = |p: &Problem| {
        // space maps have no block bitmaps, and are written only where they overlap nothing
        let of_bitmaps = matches!(p.code, Code::BlockBitmapNotInGroup | Code::BlockBitmapConflict);
        let other = of_bitmaps || p.code == Code::InodeTableConflict;
        p.code.is_misplaced() && !(other && work.volume().space_maps.is_some())
    };
    if work.walk().is_none() || work.view.problems.to_vec().iter().any(misplaced) {
        return Ok(());
    }
    let geometry = &work.volume().geometry;
    // groups with more blocks in use than BLOCK_UNINIT implies
    let in_use: HashSet<GroupNo> = work
        .view
        .problems
        .to_vec()
        .into_iter()
        .filter(|p| p.code == Code::GroupBlockUninitInUse)
        .filter_map(|p| p.group)
        .collect();
    // otherwise writing them would overwrite other metadata
    let maps_alone = system_zone::space_maps_lie_alone(work.volume());
    let (mut free_clusters, mut free_inodes) = (0u64, 0u64);
    for group in geometry.group_numbers() {
        let (clusters, inodes) = repair_group(work, group, in_use.contains(&group), maps_alone)?;
        free_clusters += clusters;
        free_inodes += inodes;
    }
    if maps_alone {
        space_maps::repair(work)?;
    }
    work.edit_superblock(|sb| {
        sb.set_free_blocks_count(free_clusters * u64::from(geometry.cluster_blocks));
        sb.s_free_inodes_count = u32::try_from(free_inodes).unwrap_or(u32::MAX).into();
        if !geometry.wide_descriptors {
            sb.s_free_blocks_count_hi = 0.into();
        }
    })
}

/// Repairs one group; returns its free clusters and inodes.
fn repair_group(work: &Work<'_>, number: GroupNo, in_use: bool, maps_alone: bool) -> Result<(u64, u64)> {
    let (Some(walk), Some(mut group)) = (work.walk(), work.group(number)) else { return Ok((0, 0)) };
    let geometry = &work.volume().geometry;
    let checksums = geometry.metadata_csum || geometry.gdt_csum;
    let blocks = geometry.group_blocks(number);
    // fits: at most `blocks_per_group`
    let clusters = (blocks.end - blocks.start).div_ceil(u64::from(geometry.cluster_blocks)) as u32;
    let all = geometry.clusters_per_group();

    let word = |n: usize| walk.ctx.claims.word(number, n);
    let (bitmap, used) = filled(work.block_size(), clusters, word);
    group.free_clusters = clusters - used;
    let mut free = u64::from(group.free_clusters);
    let last = number.get() + 1 == geometry.groups;
    let flags = group.flags;
    let believed = |flag| checksums && flags.contains(flag) && work.volume().untrusted.binary_search(&number).is_err();
    let stays_uninit = believed(GroupFlags::BLOCK_UNINIT) && !last && !in_use;
    if let Some(maps) = &work.volume().space_maps {
        free = u64::from(group.free_clusters);
        group.free_clusters = 0;
        group.block_bitmap_csum = 0;
        group.flags -= GroupFlags::BLOCK_UNINIT;
        if maps_alone {
            group.block_bitmap = maps.bitmap_block(number).unwrap_or(group.block_bitmap);
        }
    } else if !stays_uninit {
        group.flags -= GroupFlags::BLOCK_UNINIT;
        work.put_block(group.block_bitmap.get(), &bitmap)?;
        if geometry.metadata_csum {
            group.block_bitmap_csum = bitmap_checksum(geometry, &bitmap, all);
        }
    }

    let (words, directories) = walk.ctx.inodes.used_in_group(number);
    let per_group = geometry.inodes_per_group;
    let (bitmap, used) = filled(work.block_size(), per_group, |n| words.get(n).copied().unwrap_or(0));
    group.free_inodes = per_group - used;
    group.directories = directories;
    let stays_uninit = believed(GroupFlags::INODE_UNINIT) && used == 0;
    if !stays_uninit {
        group.flags -= GroupFlags::INODE_UNINIT;
        work.put_block(group.inode_bitmap.get(), &bitmap)?;
        if geometry.metadata_csum {
            group.inode_bitmap_csum = bitmap_checksum(geometry, &bitmap, per_group);
        }
    }
    if checksums {
        let highest = words.iter().rposition(|w| *w != 0).map_or(0, |n| {
            let top = words.get(n).map_or(0, |w| 64 - w.leading_zeros());
            n as u32 * 64 + top
        });
        if !stays_uninit {
            group.itable_unused = group.itable_unused.min(per_group.saturating_sub(highest));
        }
    } else {
        group.itable_unused = 0;
    }
    work.put_group(number, group)?;
    Ok((free, u64::from(group.free_inodes)))
}

/// A bitmap of `bits` bits with all padding set, as the format requires; and the number of bits that are set.
pub(super) fn filled(block_size: usize, bits: u32, word: impl Fn(usize) -> u64) -> (Vec<u8>, u32) {
    let mut bytes = vec![0xFF; block_size];
    let mut used = 0;
    for (n, eight) in bytes.chunks_exact_mut(8).enumerate().take(bits.div_ceil(64) as usize) {
        let left = bits - n as u32 * 64;
        let counted = if left >= 64 { u64::MAX } else { (1 << left) - 1 };
        let set = word(n) & counted;
        used += set.count_ones();
        eight.copy_from_slice(&(set | !counted).to_le_bytes());
    }
    (bytes, used)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_beyond_the_last_are_set() {
        let (bytes, used) = filled(32, 70, |n| if n == 0 { 5 } else { u64::MAX });
        assert_eq!(used, 2 + 6);
        assert_eq!(bytes[..9], [5, 0, 0, 0, 0, 0, 0, 0, 0xFF]);
        assert!(bytes[9..].iter().all(|b| *b == 0xFF));
        assert_eq!(filled(8, 64, |_| 0), (vec![0; 8], 0));
    }
}
