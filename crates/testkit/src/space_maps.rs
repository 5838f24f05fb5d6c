//! Converts a volume with space maps into the equivalent ext4 volume with block bitmaps, so that e2fsck can check it.

use format::feature::RoCompat;
use format::group::Group;
use format::space_map::SpaceMaps;
use format::space_map::head::Head;
use format::space_map::ring::RingBlock;
use format::space_map::tree::Tree;
use format::superblock::{OFFSET, Superblock};
use format::{FsBlock, GroupNo};
use std::ops::Range;
use zerocopy::IntoBytes;

/// The free blocks of a volume with space maps and an empty journal: a byte for each block, 1 if it is free. Everything
/// that a reader may rely on is checked.
///
/// # Errors
/// A sentence with the error.
pub fn free_blocks(bytes: &[u8]) -> Result<Vec<u8>, String> {
    let sb = bytes.get(OFFSET as usize..).ok_or("no superblock")?;
    let sb = Superblock::parse(sb).map_err(|e| e.to_string())?;
    let maps = SpaceMaps::of(&sb).map_err(|e| e.to_string())?.ok_or("no space maps")?;
    let size = u64::from(sb.geometry.block_size);
    let block = |n: u64| &bytes[(n * size) as usize..((n + 1) * size) as usize];
    let mut free = vec![0; sb.geometry.blocks as usize];
    let mut heads = Vec::new();
    for map in 0..maps.maps() {
        let head = Head::parse(block(maps.head_at(map).0.get()), &maps, map).map_err(|e| format!("head {map}: {e}"))?;
        let start = (head.tree(&maps).get() * size) as usize;
        let tree = Tree::parse(&bytes[start..], &maps, &head).map_err(|e| format!("tree {map}: {e}"))?;
        for (group, blocks) in maps.groups_of(map).map(GroupNo).zip(&tree.groups) {
            let first = sb.geometry.group_start(group).get() as usize;
            for run in blocks.runs(maps.units(group)) {
                free[first + run.start as usize..first + run.end as usize].fill(1);
            }
        }
        heads.push(head);
    }
    let mut ring = Vec::new();
    for (place, n) in maps.ring().enumerate() {
        let block = RingBlock::parse(block(n), &maps, place as u64).map_err(|e| format!("log block {place}: {e}"))?;
        ring.extend(block);
    }
    ring.sort_by_key(|block| block.position);
    for pair in ring.windows(2) {
        if pair[1].position != pair[0].position + 1 || pair[1].sequence < pair[0].sequence {
            return Err("the log has a gap".into());
        }
        let same = pair[1].sequence == pair[0].sequence;
        if (pair[0].left > 0) != same || same && pair[1].left + 1 != pair[0].left {
            return Err(format!("a generation is incomplete: sequence {}", pair[0].sequence));
        }
    }
    if ring.last().is_some_and(|block| block.left > 0) {
        return Err("the newest generation is incomplete".into());
    }
    for record in ring.iter().flat_map(|block| block.records.iter().map(move |record| (block.sequence, record))) {
        let (sequence, record) = record;
        let group = sb.geometry.group_of(record.start).ok_or("a record outside")?;
        if heads[maps.map_of(group) as usize].sequence >= sequence {
            continue;
        }
        let blocks = &mut free[record.start.get() as usize..][..record.blocks as usize];
        if blocks.iter().any(|free| *free != u8::from(record.allocated)) {
            return Err(format!("sequence {sequence}: {record:?} does not match the state that it changes"));
        }
        blocks.fill(u8::from(!record.allocated));
    }
    Ok(free)
}

/// The volume with block bitmaps instead of its space maps, whose blocks are free.
///
/// # Errors
/// As [`free_blocks`].
pub fn with_bitmaps(bytes: &[u8]) -> Result<Vec<u8>, String> {
    let mut free = free_blocks(bytes)?;
    let mut bytes = bytes.to_vec();
    let mut sb = Superblock::parse(&bytes[OFFSET as usize..]).map_err(|e| e.to_string())?;
    let maps = SpaceMaps::of(&sb).map_err(|e| e.to_string())?.ok_or("no space maps")?;
    let geometry = sb.geometry.clone();
    sb.disk.s_feature_ro_compat = (sb.features.ro_compat - RoCompat::EXTANT_RO).bits().into();
    let mut groups = Vec::new();
    for number in geometry.group_numbers() {
        groups.push(Group::from_bytes(&bytes[descriptor(&geometry, number)]));
    }
    let mut own = vec![maps.table(), maps.ring()];
    for map in 0..maps.maps() {
        own.extend(maps.places(map, groups[maps.groups_of(map).start as usize].block_bitmap));
    }
    for blocks in own {
        for block in blocks {
            if std::mem::replace(&mut free[block as usize], 1) == 1 {
                return Err(format!("block {block} of the space maps is free"));
            }
        }
    }
    groups.iter().for_each(|group| free[group.block_bitmap.get() as usize] = 0);
    let mut all = 0;
    for (number, group) in geometry.group_numbers().zip(&mut groups) {
        if group.free_clusters != 0 || group.block_bitmap_csum != 0 {
            return Err(format!("the descriptor of group {number} counts free blocks"));
        }
        let blocks = geometry.group_blocks(number);
        let free = &free[blocks.start as usize..blocks.end as usize];
        let mut bitmap = vec![0xFF; geometry.block_size as usize];
        for (n, _) in free.iter().enumerate().filter(|(_, free)| **free == 1) {
            bitmap[n / 8] &= !(1 << (n % 8));
            group.free_clusters += 1;
        }
        all += u64::from(group.free_clusters);
        let at = (group.block_bitmap.get() * u64::from(geometry.block_size)) as usize;
        bytes[at..at + bitmap.len()].copy_from_slice(&bitmap);
        let at = descriptor(&geometry, number);
        group.write(&mut bytes[at]);
    }
    sb.disk.set_free_blocks_count(all);
    bytes[OFFSET as usize..OFFSET as usize + 1024].copy_from_slice(sb.disk.as_bytes());
    crate::repair_checksums(&mut bytes);
    Ok(bytes)
}

/// The range of a group's descriptor, in bytes.
fn descriptor(geometry: &format::superblock::Geometry, group: GroupNo) -> Range<usize> {
    let FsBlock(block) = geometry.descriptor_block(group.get() / geometry.descriptors_per_block());
    let size = geometry.descriptor_size as usize;
    let at = block as usize * geometry.block_size as usize
        + (group.get() % geometry.descriptors_per_block()) as usize * size;
    at..at + size
}
