//! The group descriptors: reading them from the primary table or a copy, and their plausibility.
//!
//! A table makes sense when every group's bitmaps and inode table are inside the volume (in their own group, unless
//! flex_bg allows them anywhere) and no two parts of any group overlap. Otherwise the table is not used at all, and
//! phase 0 searches for a copy that makes sense.

use crate::phases::superblock::accepted::FIRST_INODE;
use crate::problem::{Problem, Problems};
use crate::scan::{Item, REQUEST, Scanner};
use crate::table::Code;
use crate::volume::ComparedCopy;
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

/// A descriptor with a wrong checksum.
struct Mismatch {
    group: GroupNo,
    found: u16,
    expected: u16,
}

/// A table of group descriptors as read.
pub(crate) struct Table {
    /// In order of the groups; zero where they could not be read.
    pub(crate) groups: Vec<Group>,
    /// The descriptors with a wrong checksum, ascending by group; none where descriptors have no checksums.
    mismatches: Vec<Mismatch>,
    /// The copy with which the locations were compared.
    pub(crate) compared: Option<ComparedCopy>,
}

impl Table {
    /// Reads the table that goes with the superblock `disk` in group `copy`; group 0 has the primary. Blocks that
    /// cannot be read are replaced by zeros, which are implausible, and so are the rest where the check is cancelled.
    pub(crate) fn read(scanner: &Scanner<'_>, disk: &DiskSuperblock, geometry: &Geometry, copy: GroupNo) -> Self {
        let checksums = geometry.metadata_csum || geometry.gdt_csum;
        let groups = vec![Group::from_bytes(&[]); geometry.groups as usize];
        let table = Mutex::new(Self { groups, mismatches: Vec::new(), compared: None });
        read_descriptors(scanner, geometry, copy, |first, bytes| {
            let mut table = table.lock();
            for (number, bytes) in numbered(geometry, first, bytes) {
                let mut group = Group::from_bytes(bytes);
                let (found, expected) = (group.checksum, descriptor_checksum(disk, geometry, number, bytes));
                if checksums && found != expected {
                    table.mismatches.push(Mismatch { group: number, found, expected });
                }
                if copy.get() != 0 {
                    // copies are not updated: bitmaps that they mark as never written may exist by now
                    group.flags -= GroupFlags::BLOCK_UNINIT | GroupFlags::INODE_UNINIT;
                    group.itable_unused = 0;
                }
                if let Some(place) = table.groups.get_mut(number.get() as usize) {
                    *place = group;
                }
            }
        });
        let mut table = table.into_inner();
        table.mismatches.sort_unstable_by_key(|mismatch| mismatch.group);
        table
    }

    /// The descriptors in order of the groups, without the uninit flags and the number of unused inodes in those whose
    /// checksum is wrong.
    pub(crate) fn trusted<'t>(&'t self, geometry: &'t Geometry) -> impl Iterator<Item = (GroupNo, Group)> + 't {
        let mut wrong = self.mismatches.iter().map(|mismatch| mismatch.group).peekable();
        geometry.group_numbers().zip(&self.groups).map(move |(number, group)| {
            let mut group = *group;
            if wrong.next_if_eq(&number).is_some() {
                group.flags -= GroupFlags::BLOCK_UNINIT | GroupFlags::INODE_UNINIT;
                group.itable_unused = 0;
            }
            (number, group)
        })
    }

    /// Whether all parts are at allowed locations and do not overlap.
    pub(crate) fn makes_sense(&self, geometry: &Geometry, features: &Features) -> bool {
        // parts inside their own groups ascend from group to group
        let ascend = !features.incompat.contains(Incompat::FLEX_BG);
        let (mut runs, mut end) = (Vec::new(), 0);
        for (group, descriptor) in geometry.group_numbers().zip(&self.groups) {
            let range = allowed_range(geometry, features, group);
            let parts = own_blocks(geometry, group, descriptor);
            let [_, own @ ..] = &parts;
            if !own.iter().all(|blocks| lies_in(blocks, &range)) {
                return false;
            }
            parts.into_iter().for_each(|blocks| add_part(&mut runs, blocks));
            if ascend && !are_disjoint(&mut runs, &mut end) {
                return false;
            }
        }
        are_disjoint(&mut runs, &mut end)
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
        // a bitmap in the first block of a table is at a wrong location, not the table
        let is_bitmap = |part: &Part| part.code != Code::InodeTableConflict;
        parts.sort_unstable_by_key(|part| (part.blocks.start, is_bitmap(part), part.group));
        let mut end = 0;
        parts.retain(|part| {
            let overlaps = part.blocks.start < end;
            end = end.max(part.blocks.end);
            overlaps
        });
        parts
    }

    /// Checks each descriptor by itself; returns the groups whose checksum is wrong.
    pub(crate) fn check(&self, geometry: &Geometry, features: &Features, problems: &Problems) -> Vec<GroupNo> {
        let checksums = geometry.metadata_csum || geometry.gdt_csum;
        for (group, descriptor) in geometry.group_numbers().zip(&self.groups) {
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
            let unused = descriptor.itable_unused;
            let uninit = descriptor.flags & (GroupFlags::BLOCK_UNINIT | GroupFlags::INODE_UNINIT);
            if !checksums && (!uninit.is_empty() || unused != 0) {
                report(Problem::new(Code::GroupUninitWithoutFeature));
            }
            if checksums && denies_inodes(geometry, group, descriptor) {
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
        for Mismatch { group, found, expected } in &self.mismatches {
            let problem = Problem::new(Code::GroupChecksumWrong).group(*group);
            problems.report(problem.found((*found).into()).expected((*expected).into()));
        }
        self.mismatches.iter().map(|mismatch| mismatch.group).collect()
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
            } else if is_unwritten(geometry, group, descriptor) {
                0
            } else {
                geometry.inodes_per_group.saturating_sub(descriptor.itable_unused)
            }
        };
        geometry.group_numbers().zip(&self.groups).map(used).collect()
    }
}

/// Reads the table that goes with the superblock in group `copy`, until the check is cancelled, and calls `each` with
/// the first group of each part and the descriptors in it, on several threads and in no particular order. Blocks that
/// cannot be read are replaced by zeros.
pub(crate) fn read_descriptors(
    scanner: &Scanner<'_>,
    geometry: &Geometry,
    copy: GroupNo,
    each: impl Fn(GroupNo, &[u8]) + Sync,
) {
    let block_size = geometry.block_size;
    let first_group = |n: u32| GroupNo(n.saturating_mul(geometry.descriptors_per_block()));
    let mut items: Vec<Item<u32>> = Vec::new();
    for n in 0..geometry.descriptor_blocks {
        let Some(offset) = block_of_copy(geometry, copy, n).and_then(|b| geometry.byte_offset(b)) else {
            each(first_group(n), &vec![0; block_size as usize]);
            continue;
        };
        match items.last_mut() {
            // one item for contiguous blocks, to be read at once
            Some(last)
                if last.tag + last.len / block_size == n
                    && last.offset + u64::from(last.len) == offset
                    && last.len + block_size <= REQUEST as u32 =>
            {
                last.len += block_size;
            }
            _ => items.push(Item { offset, len: block_size, tag: n }),
        }
    }
    items.sort_by_key(|item| item.offset);
    scanner.read_ascending(&items, |item, read| match read {
        Ok(bytes) => each(first_group(item.tag), bytes),
        Err(_) => each(first_group(item.tag), &vec![0; item.len as usize]),
    });
}

/// The descriptors in `bytes` with the numbers of their groups, of which `first` is the first.
pub(crate) fn numbered<'b>(
    geometry: &Geometry,
    first: GroupNo,
    bytes: &'b [u8],
) -> impl Iterator<Item = (GroupNo, &'b [u8])> + use<'b> {
    let numbers = (first.get()..geometry.groups).map(GroupNo);
    numbers.zip(bytes.chunks_exact(geometry.descriptor_size as usize))
}

/// Number of the newest runs that a part may continue: one each of block bitmaps, of inode bitmaps and of tables in a
/// flexible group, and some of superblocks.
const RECENT: usize = 8;

/// Adds a part to the runs of contiguous parts, in order of the groups.
fn add_part(runs: &mut Vec<Range<u64>>, part: Range<u64>) {
    if part.is_empty() {
        return;
    }
    match runs.iter_mut().rev().take(RECENT).find(|run| run.end == part.start) {
        Some(run) => run.end = part.end,
        None => runs.push(part),
    }
}

/// Removes all runs; returns whether they overlap neither each other nor blocks before `end`, which becomes their end.
fn are_disjoint(runs: &mut Vec<Range<u64>>, end: &mut u64) -> bool {
    runs.sort_unstable_by_key(|run| run.start);
    runs.drain(..).all(|run| {
        let apart = run.start >= *end;
        *end = run.end.max(*end);
        apart
    })
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

/// Whether bitmap and table of a group were never written: by its flag INODE_UNINIT, which is wrong in the first group, as
/// that has the root, and in others where the counts of free and of never used inodes agree on inodes in use.
pub(crate) fn is_unwritten(geometry: &Geometry, number: GroupNo, group: &Group) -> bool {
    let checksums = geometry.metadata_csum || geometry.gdt_csum;
    let in_use = group.itable_unused <= group.free_inodes && group.free_inodes < geometry.inodes_per_group;
    checksums && group.flags.contains(GroupFlags::INODE_UNINIT) && number.get() != 0 && !in_use
}

/// Whether a group has more inodes in use than its number of unused ones admits: by its number of free inodes, or, in
/// the first group, because of the reserved inodes, of which the root is one.
pub(crate) fn denies_inodes(geometry: &Geometry, number: GroupNo, group: &Group) -> bool {
    let reserved = if number.get() == 0 { geometry.first_inode.min(FIRST_INODE).saturating_sub(1) } else { 0 };
    let most = geometry.inodes_per_group.saturating_sub(reserved);
    group.itable_unused > group.free_inodes || group.itable_unused > most
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scan::{Counters, GAP};
    use blockdev::MemoryDevice;

    /// Eight groups of 512 blocks of 1 KiB, each with its table of four blocks.
    fn superblock() -> DiskSuperblock {
        let mut disk = DiskSuperblock::from_slice(&[0; 1024]).unwrap();
        disk.s_magic = format::superblock::MAGIC.into();
        disk.s_rev_level = 1.into();
        disk.s_first_data_block = 1.into();
        disk.s_blocks_count_lo = (8 * 512 + 1).into();
        disk.s_blocks_per_group = 512.into();
        disk.s_clusters_per_group = 512.into();
        disk.s_inodes_count = (8 * 16).into();
        disk.s_inodes_per_group = 16.into();
        disk.s_inode_size = 256.into();
        disk.s_first_ino = 11.into();
        disk
    }

    /// A volume whose parts follow the head of each group.
    fn device(geometry: &Geometry) -> Vec<u8> {
        let mut bytes: Vec<u8> = vec![0; geometry.blocks as usize * 1024];
        for number in geometry.group_numbers() {
            let head = geometry.group_head(number).end;
            let mut group = Group::from_bytes(&[]);
            (group.block_bitmap, group.inode_bitmap) = (FsBlock(head), FsBlock(head + 1));
            group.inode_table = FsBlock(head + 2);
            group.write(&mut bytes[2048 + number.get() as usize * 32..][..32]);
        }
        bytes
    }

    fn read(bytes: &[u8], disk: &DiskSuperblock, geometry: &Geometry, cancelled: bool) -> Table {
        let device = MemoryDevice::from_vec(bytes.to_vec());
        let (counters, gap) = (Counters::default(), GAP);
        let stop = || cancelled;
        let (device, counters) = (&device, &counters);
        let scanner = Scanner { device, threads: 1, gap, counters, cancelled: &stop, advanced: &|_| () };
        Table::read(&scanner, disk, geometry, GroupNo(0))
    }

    #[test]
    fn parts_that_overlap_or_leave_their_group_make_no_sense() {
        let disk = superblock();
        let geometry = Geometry::of(&disk).unwrap();
        let mut table = read(&device(&geometry), &disk, &geometry, false);
        let mut flexible = disk.features();
        flexible.incompat |= Incompat::FLEX_BG;
        let senses =
            |table: &Table| [disk.features(), flexible].map(|features| table.makes_sense(&geometry, &features));
        assert_eq!(senses(&table), [true, true]);
        let right = table.groups.clone();
        // the tables of two groups exchanged, which flex_bg allows
        (table.groups[3].inode_table, table.groups[5].inode_table) = (right[5].inode_table, right[3].inode_table);
        assert_eq!(senses(&table), [false, true]);
        for block in [right[5].inode_table.get() + 3, right[3].inode_bitmap.get(), 0, geometry.blocks - 3] {
            table.groups.clone_from(&right);
            table.groups[3].inode_table = FsBlock(block);
            assert_eq!(senses(&table), [false, false], "{block}");
        }
    }

    #[test]
    fn nothing_is_read_once_the_check_is_cancelled() {
        let disk = superblock();
        let geometry = Geometry::of(&disk).unwrap();
        let table = read(&device(&geometry), &disk, &geometry, true);
        assert!(table.groups.iter().all(|group| *group == Group::from_bytes(&[])));
    }
}
