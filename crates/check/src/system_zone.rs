//! The blocks of the volume itself: superblocks, descriptors, bitmaps, inode tables.

use crate::context::Context;
use crate::phases::superblock::inode_tables::Seeker;
use crate::problem::Problem;
use crate::scan::Scanner;
use crate::space_maps::Recorded;
use crate::table::Code;
use crate::volume::Volume;
use format::native::map::BlockKind;
use format::{FsBlock, GroupNo};
use std::collections::BTreeSet;
use std::ops::Range;

/// Maximum number of inode tables of which the contents decide whether they or the bitmaps in them are at a wrong
/// location: more are not the result of a few damaged sectors.
const COMPARED: usize = 16;

/// The part of a group's own metadata that a block belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Head,
    BlockBitmap,
    InodeBitmap,
    InodeTable,
    SpaceMap,
    Mmp,
}

impl Part {
    /// The problem of a part that overlaps another.
    fn conflict(self) -> Code {
        match self {
            Self::BlockBitmap => Code::BlockBitmapConflict,
            Self::InodeBitmap => Code::InodeBitmapConflict,
            Self::Head | Self::InodeTable | Self::SpaceMap | Self::Mmp => Code::InodeTableConflict,
        }
    }
}

/// All blocks of the system zone, group by group; parts outside the volume are omitted.
pub(crate) fn blocks(volume: &Volume) -> impl Iterator<Item = Range<u64>> + '_ {
    parts(volume).map(|(_, _, blocks)| blocks)
}

fn parts(volume: &Volume) -> impl Iterator<Item = (GroupNo, Part, Range<u64>)> + '_ {
    let geometry = &volume.geometry;
    let one = |block: FsBlock| block.get()..block.get().saturating_add(1);
    let groups = geometry.group_numbers().zip(&volume.groups).flat_map(move |(group, descriptor)| {
        let table = descriptor.inode_table.get();
        // under space maps the field is a block of a tree's location
        let bitmap = if volume.space_maps.is_some() { 0..0 } else { one(descriptor.block_bitmap) };
        [
            (group, Part::Head, geometry.group_head(group)),
            (group, Part::BlockBitmap, bitmap),
            (group, Part::InodeBitmap, one(descriptor.inode_bitmap)),
            (group, Part::InodeTable, table..table.saturating_add(u64::from(geometry.itable_blocks))),
        ]
    });
    let mmp = volume.features.incompat.contains(format::feature::Incompat::MMP).then(|| {
        let block = volume.disk.s_mmp_block.get();
        (GroupNo(0), Part::Mmp, block..block.saturating_add(1))
    });
    let maps = volume.space_maps.iter().flat_map(Recorded::own_blocks);
    let maps = maps.map(|(group, blocks)| (group, Part::SpaceMap, blocks));
    groups.chain(mmp).chain(maps).filter(move |(_, part, blocks)| {
        !blocks.is_empty() && (*part == Part::Head || volume.contains(blocks.start)) && blocks.end <= geometry.blocks
    })
}

/// Whether table, log and trees of the volume's space maps lie inside the volume and do not overlap its other metadata.
pub(crate) fn space_maps_lie_alone(volume: &Volume) -> bool {
    let own = volume.space_maps.iter().flat_map(Recorded::own_blocks).map(|(_, blocks)| blocks);
    let others = parts(volume).filter(|(_, part, _)| *part != Part::SpaceMap).map(|(_, _, blocks)| blocks);
    lie_alone(volume, own, others)
}

/// Whether table and log of the volume's space maps lie inside the volume and do not overlap its superblocks and
/// descriptors, all by numbers of the superblock alone.
pub(crate) fn space_map_log_lies_alone(volume: &Volume) -> bool {
    let own = volume.space_maps.iter().flat_map(|maps| [maps.maps.table(), maps.maps.ring()]);
    let heads = parts(volume).filter(|(_, part, _)| *part == Part::Head).map(|(_, _, blocks)| blocks);
    lie_alone(volume, own, heads)
}

/// Whether each range of `own` lies inside the volume and overlaps no other range of `own` or `others`.
fn lie_alone(volume: &Volume, own: impl Iterator<Item = Range<u64>>, others: impl Iterator<Item = Range<u64>>) -> bool {
    let geometry = &volume.geometry;
    let inside = |blocks: &Range<u64>| blocks.start > geometry.first_data_block.into() && blocks.end <= geometry.blocks;
    let mut all: Vec<(Range<u64>, bool)> = own.map(|blocks| (blocks, true)).collect();
    if !all.iter().all(|(blocks, _)| inside(blocks)) {
        return false;
    }
    all.extend(others.map(|blocks| (blocks, false)));
    all.sort_unstable_by_key(|(blocks, _)| blocks.start);
    let (mut end, mut is_own) = (0, false);
    for (blocks, own) in all {
        if blocks.start < end && (own || is_own) {
            return false;
        }
        if blocks.end >= end {
            (end, is_own) = (blocks.end, own);
        }
    }
    true
}

/// The kind of a mapped block of each part, with the part's blocks, ascending.
pub(crate) fn kinds(volume: &Volume) -> Vec<(Range<u64>, BlockKind)> {
    let kind = |part| match part {
        Part::BlockBitmap => Some(BlockKind::BlockBitmap),
        Part::InodeBitmap => Some(BlockKind::InodeBitmap),
        Part::InodeTable => Some(BlockKind::InodeTable),
        Part::Head | Part::SpaceMap | Part::Mmp => None,
    };
    let mut kinds: Vec<_> = parts(volume).filter_map(|(_, part, blocks)| Some((blocks, kind(part)?))).collect();
    kinds.sort_unstable_by_key(|(blocks, _)| blocks.start);
    kinds
}

/// Claims the system zone again in a block map that was cleared; its problems were already reported.
pub(crate) fn claim_again(ctx: &Context<'_>) {
    for blocks in blocks(ctx.volume) {
        ctx.claims.claim(ctx.claims.clusters_of(&blocks));
    }
}

/// Claims the system zone and reports parts that overlap others, until the check is cancelled. Superblocks and
/// descriptors come first, as their places are fixed: what overlaps them is at a wrong location. So are bitmaps in a table
/// that is certainly the group's.
pub(crate) fn claim(ctx: &Context<'_>, scanner: &Scanner<'_>) {
    let volume = ctx.volume;
    let (mut reported, mut compared) = (BTreeSet::new(), 0);
    let heads = parts(volume).filter(|(_, part, _)| *part == Part::Head);
    for (group, part, blocks) in heads.chain(parts(volume).filter(|(_, part, _)| *part != Part::Head)) {
        if (scanner.cancelled)() {
            return;
        }
        let clusters = ctx.claims.clusters_of(&blocks);
        // under bigalloc neighbours share a cluster by design
        if volume.geometry.cluster_blocks > 1 {
            for cluster in clusters {
                if !ctx.claims.contains(cluster) {
                    ctx.claims.claim(cluster..cluster + 1);
                }
            }
        } else if ctx.claims.claim(clusters) {
            let mut wrong = None;
            if part == Part::InodeTable && compared < COMPARED {
                compared += 1;
                wrong = bitmaps_within(volume, group, &blocks).filter(|_| is_table_of(volume, scanner, group));
            }
            for (group, part, block) in wrong.unwrap_or_else(|| vec![(group, part, blocks.start)]) {
                if reported.insert((group, part, block)) {
                    ctx.report(Problem::new(part.conflict()).group(group).block(FsBlock(block)));
                }
            }
        }
    }
}

/// Whether the inode table at the location in a group's descriptor is the group's, rather than the bitmaps in it.
fn is_table_of(volume: &Volume, scanner: &Scanner<'_>, group: GroupNo) -> bool {
    let seeker = Seeker { scanner, geometry: &volume.geometry, features: &volume.features };
    volume.group(group).is_some_and(|descriptor| seeker.outweighs_bitmaps(group, descriptor))
}

/// The bitmaps of this group and those before it that lie in its inode table; `None` where other metadata does, too.
fn bitmaps_within(volume: &Volume, table: GroupNo, within: &Range<u64>) -> Option<Vec<(GroupNo, Part, u64)>> {
    let others = parts(volume).filter(|(group, part, blocks)| {
        (*part == Part::Head || *group <= table)
            && (*group, *part) != (table, Part::InodeTable)
            && blocks.start < within.end
            && within.start < blocks.end
    });
    let others = others.map(|(group, part, blocks)| {
        matches!(part, Part::BlockBitmap | Part::InodeBitmap).then_some((group, part, blocks.start))
    });
    others.collect()
}
