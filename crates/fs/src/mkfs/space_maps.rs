//! Space maps of a new volume: an empty log, and a tree for each metablockgroup in its first copy.

use super::error::{Result, refuse};
use super::used::Used;
use format::group::Group;
use format::space_map::SpaceMaps;
use format::space_map::head::Head;
use format::space_map::tree::TreeWriter;
use format::superblock::Geometry;
use format::{FsBlock, GroupNo};
use std::ops::Range;

/// Places table, log and trees: allocates their blocks, and sets the locations of the first tree copies in the groups.
/// Table and log are as far in front as possible, the trees at the start of their metablockgroup.
pub(super) fn place(
    geometry: &Geometry,
    groups: u32,
    log: u32,
    used: &mut Used,
    all: &mut [Group],
) -> Result<SpaceMaps> {
    let none = || super::Error::Options("the volume is too small for space maps".into());
    let whole = u64::from(geometry.first_data_block)..geometry.blocks;
    // at any location, to compute their lengths
    let maps = SpaceMaps::new(geometry, groups, whole.start + 1, log).ok_or_else(none)?;
    let length = maps.ring().end - maps.table().start;
    let start = used.find(whole, length, 1).ok_or_else(none)?;
    let maps = SpaceMaps::new(geometry, groups, start, log).ok_or_else(none)?;
    used.take(start..start + length);
    for map in 0..maps.maps() {
        let groups = maps.groups_of(map);
        let (first, last) = (GroupNo(groups.start), GroupNo(groups.end - 1));
        let within = geometry.group_blocks(first).start..geometry.group_blocks(last).end;
        let length = 2 * maps.place_blocks(map);
        let Some(places) = used.find(within, length, 1) else {
            return refuse("there is no space for the trees of space maps: larger or fewer groups are needed");
        };
        used.take(places..places + length);
        for (block, group) in (places..).zip(groups) {
            all[group as usize].block_bitmap = FsBlock(block);
        }
    }
    Ok(maps)
}

/// The blocks of table and trees, as runs of whole blocks.
pub(super) fn content(maps: &SpaceMaps, used: &Used, groups: &[Group]) -> Vec<(FsBlock, Vec<u8>)> {
    let block_size = maps.geometry().block_size as usize;
    let table = maps.table();
    let mut heads = vec![0; (table.end - table.start) as usize * block_size];
    let mut runs = Vec::new();
    for map in 0..maps.maps() {
        let mut writer = TreeWriter::new(maps, map);
        for group in maps.groups_of(map) {
            writer.group(free(maps.geometry(), used, GroupNo(group)).into_iter());
        }
        let places = groups[maps.groups_of(map).start as usize].block_bitmap;
        let mut head = Head::empty(map, places);
        let mut tree = writer.finish(0, &mut head);
        tree.resize(tree.len().next_multiple_of(block_size), 0);
        runs.push((places, tree));
        let at = (maps.head_at(map).0.get() - table.start) as usize * block_size;
        head.write(&mut heads[at..at + block_size], maps);
    }
    runs.push((FsBlock(table.start), heads));
    runs
}

/// The free runs of a group, relative to its start.
fn free(geometry: &Geometry, used: &Used, group: GroupNo) -> Vec<Range<u32>> {
    let blocks = geometry.group_blocks(group);
    let inside = |block: u64| (block - blocks.start) as u32;
    let mut runs = Vec::new();
    let mut at = blocks.start;
    for run in used.inside(blocks.clone()) {
        runs.push(inside(at)..inside(run.start));
        at = run.end;
    }
    runs.push(inside(at)..inside(blocks.end));
    runs.retain(|run| !run.is_empty());
    runs
}
