//! The group descriptors: reading them from the primary table or a copy, and their plausibility.
//!
//! A table makes sense when every group's bitmaps and inode table are inside the volume (in their own group, unless
//! flex_bg allows them anywhere) and no two parts of any group overlap. Otherwise the table is not used at all, and
//! phase 0 searches for a copy that makes sense.

use crate::problem::{Problem, Problems};
use crate::scan::{Item, REQUEST, Scanner};
use crate::table::Code;
use format::feature::{Features, Incompat};
use format::group::{Group, GroupFlags, descriptor_checksum};
use format::superblock::{DiskSuperblock, Geometry};
use format::{FsBlock, GroupNo};
use parking_lot::Mutex;
use std::ops::Range;

/// The blocks that belong to a group by its descriptor: superblock and descriptors, both bitmaps, the inode table. They
/// may be outside the volume.
pub(crate) fn own_blocks(geometry: &Geometry, group: GroupNo, descriptor: &Group) -> [Range<u64>; 4] {
    let run = |first: FsBlock, blocks: u32| first.get()..first.get().saturating_add(blocks.into());
    [
        geometry.group_head(group),
        run(descriptor.block_bitmap, 1),
        run(descriptor.inode_bitmap, 1),
        run(descriptor.inode_table, geometry.itable_blocks),
    ]
}

/// A part of a group's metadata, and the problem where it overlaps another.
struct Part {
    blocks: Range<u64>,
    group: GroupNo,
    code: Code,
}

/// A table of group descriptors as read.
pub(crate) struct Table {
    /// Descriptors of `geometry.descriptor_size` bytes; zero where they could not be read.
    bytes: Vec<u8>,
    /// In order of the groups.
    pub(crate) groups: Vec<Group>,
}

impl Table {
    /// Reads the table that goes with the superblock in group `copy`; group 0 has the primary. Blocks that cannot be
    /// read are replaced by zeros, which are implausible.
    pub(crate) fn read(scanner: &Scanner<'_>, geometry: &Geometry, copy: GroupNo) -> Self {
        let block_size = geometry.block_size;
        let mut items: Vec<Item<u32>> = Vec::new();
        for n in 0..geometry.descriptor_blocks {
            let Some(offset) = block_of_copy(geometry, copy, n).and_then(|b| geometry.byte_offset(b)) else { continue };
            match items.last_mut() {
                // one item for contiguous blocks, to be read at once
                Some(last)
                    if last.offset + u64::from(last.len) == offset && last.len + block_size <= REQUEST as u32 =>
                {
                    last.len += block_size;
                }
                _ => items.push(Item { offset, len: block_size, tag: n }),
            }
        }
        items.sort_by_key(|item| item.offset);
        let bytes = Mutex::new(vec![0; geometry.descriptor_blocks as usize * block_size as usize]);
        scanner.read_ascending(&items, |item, read| {
            let from = item.tag as usize * block_size as usize;
            let mut bytes = bytes.lock();
            if let (Ok(read), Some(place)) = (read, bytes.get_mut(from..from + item.len as usize)) {
                place.copy_from_slice(read);
            }
        });
        let bytes = bytes.into_inner();
        let size = geometry.descriptor_size as usize;
        let groups = bytes.chunks_exact(size).take(geometry.groups as usize);
        let mut groups: Vec<_> = groups.map(Group::from_bytes).collect();
        if copy.get() != 0 {
            // copies are not updated: bitmaps that they mark as never written may exist by now
            for group in &mut groups {
                group.flags -= GroupFlags::BLOCK_UNINIT | GroupFlags::INODE_UNINIT;
                group.itable_unused = 0;
            }
        }
        Self { bytes, groups }
    }

    /// Whether all parts are at allowed locations and do not overlap.
    pub(crate) fn makes_sense(&self, geometry: &Geometry, features: &Features) -> bool {
        let placed = geometry.group_numbers().zip(&self.groups).all(|(group, descriptor)| {
            let range = allowed_range(geometry, features, group);
            let [_, own @ ..] = own_blocks(geometry, group, descriptor);
            own.iter().all(|blocks| lies_in(blocks, &range))
        });
        placed && self.overlaps(geometry).is_empty()
    }

    /// The parts whose first block belongs to another part.
    fn overlaps(&self, geometry: &Geometry) -> Vec<Part> {
        let groups = geometry.group_numbers().zip(&self.groups);
        let parts = groups.flat_map(|(group, descriptor)| {
            let codes = [
                Code::InodeTableConflict,
                Code::BlockBitmapConflict,
                Code::InodeBitmapConflict,
                Code::InodeTableConflict,
            ];
            let part = move |(blocks, code)| Part { blocks, group, code };
            own_blocks(geometry, group, descriptor).into_iter().zip(codes).map(part)
        });
        let mut parts: Vec<_> = parts.filter(|part| !part.blocks.is_empty()).collect();
        parts.sort_unstable_by_key(|part| (part.blocks.start, part.group));
        let mut end = 0;
        parts.retain(|part| {
            let overlaps = part.blocks.start < end;
            end = end.max(part.blocks.end);
            overlaps
        });
        parts
    }

    /// Checks each descriptor by itself; returns the groups whose checksum is wrong.
    pub(crate) fn check(
        &self,
        disk: &DiskSuperblock,
        geometry: &Geometry,
        features: &Features,
        problems: &Problems,
    ) -> Vec<GroupNo> {
        let checksums = geometry.metadata_csum || geometry.gdt_csum;
        let size = geometry.descriptor_size as usize;
        let mut untrusted = Vec::new();
        let descriptors = geometry.group_numbers().zip(&self.groups).zip(self.bytes.chunks_exact(size));
        for ((group, descriptor), bytes) in descriptors {
            let report = |problem: Problem| problems.report(problem.group(group));
            let range = allowed_range(geometry, features, group);
            let [_, block_bitmap, inode_bitmap, table] = own_blocks(geometry, group, descriptor);
            let places = [
                (Code::BlockBitmapNotInGroup, block_bitmap),
                (Code::InodeBitmapNotInGroup, inode_bitmap),
                (Code::InodeTableNotInGroup, table),
            ];
            for (code, blocks) in places {
                if !lies_in(&blocks, &range) {
                    report(Problem::new(code).block(FsBlock(blocks.start)));
                }
            }
            let computed = descriptor_checksum(disk, geometry, group, bytes);
            if checksums && computed != descriptor.checksum {
                let problem = Problem::new(Code::GroupChecksumWrong);
                report(problem.found(descriptor.checksum.into()).expected(computed.into()));
                untrusted.push(group);
            }
            let unused = descriptor.itable_unused;
            let uninit = descriptor.flags & (GroupFlags::BLOCK_UNINIT | GroupFlags::INODE_UNINIT);
            if !checksums && (!uninit.is_empty() || unused != 0) {
                report(Problem::new(Code::GroupUninitWithoutFeature));
            }
            if checksums && (unused > descriptor.free_inodes || unused > geometry.inodes_per_group) {
                report(Problem::new(Code::GroupUnusedInodesWrong).found(unused.into()));
            }
            let last = group.get() + 1 == geometry.groups;
            if checksums && last && descriptor.flags.contains(GroupFlags::BLOCK_UNINIT) {
                report(Problem::new(Code::LastGroupBlockUninit));
            }
        }
        // with clusters, neighbours may share one, so claims do not show overlaps
        if geometry.cluster_blocks > 1 {
            for Part { blocks, group, code } in self.overlaps(geometry) {
                problems.report(Problem::new(code).group(group).block(FsBlock(blocks.start)));
            }
        }
        untrusted
    }

    /// For each group, how many inodes at the start of its table may be in use. e2fsck trusts the descriptor in this
    /// even where its checksum is wrong; the rest of the table may never have been written.
    pub(crate) fn used_inodes(&self, geometry: &Geometry) -> Vec<u32> {
        let checksums = geometry.metadata_csum || geometry.gdt_csum;
        let volume = u64::from(geometry.first_data_block)..geometry.blocks;
        let used = |(group, descriptor): (GroupNo, &Group)| {
            let [.., table] = own_blocks(geometry, group, descriptor);
            if table.start == 0 || !lies_in(&table, &volume) {
                0
            } else if !checksums {
                geometry.inodes_per_group
            } else if descriptor.flags.contains(GroupFlags::INODE_UNINIT) {
                0
            } else {
                geometry.inodes_per_group.saturating_sub(descriptor.itable_unused)
            }
        };
        geometry.group_numbers().zip(&self.groups).map(used).collect()
    }
}

/// Block `n` of the table that goes with the superblock in group `copy`. The blocks of meta groups have copies of their
/// own; any superblock other than the primary has the first of them.
fn block_of_copy(geometry: &Geometry, copy: GroupNo, n: u32) -> Option<FsBlock> {
    if copy.get() == 0 {
        return Some(geometry.descriptor_block(n));
    }
    if n >= geometry.first_meta_group {
        return geometry.descriptor_block_backups(n).first().copied();
    }
    geometry.group_start(copy).get().checked_add(1 + u64::from(n)).map(FsBlock)
}

/// The blocks in which the bitmaps and the inode table of a group may lie.
pub(crate) fn allowed_range(geometry: &Geometry, features: &Features, group: GroupNo) -> Range<u64> {
    if features.incompat.contains(Incompat::FLEX_BG) {
        u64::from(geometry.first_data_block)..geometry.blocks
    } else {
        geometry.group_blocks(group)
    }
}

pub(crate) fn lies_in(blocks: &Range<u64>, range: &Range<u64>) -> bool {
    // a part at block 0 was never allocated
    blocks.start != 0 && range.start <= blocks.start && blocks.end <= range.end
}
