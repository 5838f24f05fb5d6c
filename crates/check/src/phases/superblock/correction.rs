//! A superblock with one wrong field, of which no copy is better: on a volume of one group there is none, and a program
//! that writes a wrong number writes it into all copies. Other fields, the descriptors and the device state what the
//! number should be; a correction is used only if the descriptors make sense with it and lead to the root.

use crate::options::Refusal;
use crate::phases::superblock::accepted::{Accepted, FIRST_INODE, check, read_superblock, read_table};
use crate::phases::superblock::descriptors::{Table, own_blocks};
use crate::phases::superblock::inode_tables::Seeker;
use crate::problem::{Problem, Problems};
use crate::report::exit;
use crate::scan::Scanner;
use crate::table::Code;
use format::GroupNo;
use format::feature::{Incompat, RoCompat};
use format::group::Group;
use format::superblock::{self, DiskSuperblock};
use std::cmp::Reverse;

/// Number of groups, the first ones, whose tables are compared with their bitmaps.
const COMPARED: usize = 16;
/// Number of copies whose descriptors are tried where those of the primary make no sense.
const COPIES: usize = 3;

/// A superblock with another value in one field.
struct Correction {
    field: &'static str,
    found: u64,
    expected: u64,
    disk: DiskSuperblock,
}

/// A correction with which the volume has its root.
struct Fitting {
    correction: Correction,
    accepted: Accepted,
    table: Table,
    /// Number of compared groups, and of those that contradict the correction.
    compared: usize,
    bad: usize,
}

/// The primary superblock with the correction of a field in `fields`, or of any, that fits the volume best, and its
/// descriptors; `None` if none fits. The correction is reported.
///
/// # Errors
/// [`Refusal`], where a correction leads to the root, but too many groups contradict it.
pub(super) fn find(
    scanner: &Scanner<'_>,
    fields: Option<&[&str]>,
    problems: &Problems,
) -> Result<Option<(Accepted, Table)>, Refusal> {
    let Ok(disk) = read_superblock(scanner, superblock::OFFSET) else { return Ok(None) };
    let summed = disk.features().ro_compat.contains(RoCompat::METADATA_CSUM);
    if disk.s_magic.get() != superblock::MAGIC || summed && disk.checksum() != disk.s_checksum.get() {
        return Ok(None);
    }
    let mut corrections = corrections(scanner, &disk);
    corrections.retain(|correction| fields.is_none_or(|fields| fields.contains(&correction.field)));
    let mut fitting: Vec<_> = corrections.into_iter().filter_map(|correction| try_out(scanner, correction)).collect();
    // no group is dropped because of another correction; what mkfs may have written; the first of several that fit
    // equally well
    fitting.sort_by_key(|found| {
        (Reverse(found.accepted.geometry.groups), super::odd_fields(&found.accepted).len(), found.bad)
    });
    let most = fitting.first().map(|found| found.accepted.geometry.groups);
    let several = fitting.iter().filter(|found| Some(found.accepted.geometry.groups) == most).count() > 1;
    let Some(Fitting { correction, accepted, table, compared, bad }) = fitting.into_iter().next() else {
        return Ok(None);
    };
    let Correction { field, found, expected, .. } = correction;
    // one group may be damaged by itself, but not the one from which a correction was derived
    if bad > 0 && (several || bad * 4 > compared || field == "s_reserved_gdt_blocks") {
        return Err(Refusal {
            exit: exit::LEFT,
            ..Refusal::new(format!(
                "the superblock and all its copies contradict the volume: {field} is {found}, and with {expected} files \
                 are found, but inode bitmaps contradict that; nothing was changed, as a repair could lose files: copy \
                 the device before you try another program"
            ))
        });
    }
    problems.report(Problem::new(Code::SuperblockFieldMisleads).name(field).found(found).expected(expected));
    if accepted.at != superblock::OFFSET {
        problems.report(Problem::new(Code::GroupDescriptorsTryBackup).group(accepted.group()));
    }
    Ok(Some((accepted, table)))
}

/// The volume that a corrected superblock describes, with the descriptors of the primary or of a copy; `None` unless
/// they make sense and lead to the root, or to inodes with right checksums.
fn try_out(scanner: &Scanner<'_>, mut correction: Correction) -> Option<Fitting> {
    correction.disk.set_checksum();
    let (disk, geometry) = (correction.disk, check(&correction.disk).ok()?);
    if geometry.blocks > scanner.device.geometry().len / u64::from(geometry.block_size) {
        return None;
    }
    let features = disk.features();
    let seeker = Seeker { scanner, geometry: &geometry, features: &features };
    let copies = geometry.backup_groups().take(COPIES);
    let copies = copies.filter_map(|group| geometry.byte_offset(geometry.superblock_block(group)?));
    let (accepted, table) = std::iter::once(superblock::OFFSET).chain(copies).find_map(|at| {
        let accepted = Accepted { disk, geometry: geometry.clone(), at };
        let table = read_table(scanner, &accepted).ok()?;
        let fits = table.makes_sense(&geometry, &features) && seeker.leads_to_files(&table);
        fits.then_some((accepted, table))
    })?;
    let groups = table.trusted(&geometry).take(COMPARED);
    let bad = groups.filter(|(number, group)| !seeker.is_as_long_as_its_bitmap(*number, group, &table.groups)).count();
    let compared = table.groups.len().min(COMPARED);
    Some(Fitting { correction, accepted, table, compared, bad })
}

/// The corrections that other fields, the descriptors and the device suggest, the likeliest first.
fn corrections(scanner: &Scanner<'_>, disk: &DiskSuperblock) -> Vec<Correction> {
    let mut corrections = counts(scanner, disk);
    corrections.extend(sizes(disk));
    corrections.extend(reserved(scanner, disk));
    corrections.extend(flexible(disk));
    // two rules may suggest the same
    let mut seen: Vec<DiskSuperblock> = Vec::new();
    corrections.retain(|correction| {
        let is_new = correction.found != correction.expected && !seen.contains(&correction.disk);
        seen.extend(is_new.then_some(correction.disk));
        is_new
    });
    corrections
}

/// The numbers of blocks and inodes, of which each follows from others.
fn counts(scanner: &Scanner<'_>, disk: &DiskSuperblock) -> Vec<Correction> {
    let mut corrections = Vec::new();
    let (per_group, inodes) = (u64::from(disk.s_inodes_per_group.get()), u64::from(disk.s_inodes_count.get()));
    let (group, blocks) = (u64::from(disk.s_blocks_per_group.get()), disk.blocks_count());
    let first = u64::from(disk.s_first_data_block.get());
    let log_size = disk.s_log_block_size.get();
    if group == 0 || per_group == 0 || log_size > 6 {
        return corrections;
    }
    let device = scanner.device.geometry().len / (1024 << log_size);
    let groups = blocks.saturating_sub(first).div_ceil(group);
    // as long as the device, or of whole groups
    let whole = (inodes / per_group).checked_mul(group).and_then(|blocks| blocks.checked_add(first));
    // there are inodes for more whole groups, and the device has them: rather the number of blocks is wrong
    let is_short = blocks < device && inodes > groups.saturating_mul(per_group) && inodes.is_multiple_of(per_group);
    // in groups of another number of inodes a byte of the bitmap would have bits of inodes and of padding; no mkfs makes it
    if let Ok(expected) = u32::try_from(groups.saturating_mul(per_group))
        && per_group.is_multiple_of(8)
        && !(is_short && whole.is_some_and(|whole| whole.saturating_sub(group) < device))
    {
        let disk = DiskSuperblock { s_inodes_count: expected.into(), ..*disk };
        corrections.push(Correction { field: "s_inodes_count", found: inodes, expected: expected.into(), disk });
    }
    if inodes.checked_rem(groups) == Some(0) {
        let expected = inodes / groups;
        let disk = DiskSuperblock { s_inodes_per_group: (expected as u32).into(), ..*disk };
        corrections.push(Correction { field: "s_inodes_per_group", found: per_group, expected, disk });
    }
    if !per_group.is_multiple_of(8) {
        // the number of inodes was computed from the wrong one
        let stated = by_bitmap(scanner, disk);
        for expected in [per_group / 8 * 8, per_group.next_multiple_of(8)].into_iter().chain(stated) {
            let (number, all) = (u32::try_from(expected), u32::try_from(groups.saturating_mul(expected)));
            if let (Ok(number), Ok(all)) = (number, all) {
                let disk = DiskSuperblock { s_inodes_per_group: number.into(), s_inodes_count: all.into(), ..*disk };
                corrections.push(Correction { field: "s_inodes_per_group", found: per_group, expected, disk });
            }
        }
    }
    // blocks are dropped only where the device has none
    let longer = [Some(device), whole].into_iter().flatten().filter(|expected| *expected > blocks || blocks > device);
    for expected in longer {
        let mut disk = *disk;
        disk.set_blocks_count(expected);
        corrections.push(Correction { field: "s_blocks_count", found: blocks, expected, disk });
    }
    corrections
}

/// The number of inodes in a group by the first bitmap: all bits after them are set.
fn by_bitmap(scanner: &Scanner<'_>, disk: &DiskSuperblock) -> Option<u64> {
    let accepted = Accepted { disk: *disk, geometry: check(disk).ok()?, at: superblock::OFFSET };
    let table = read_table(scanner, &accepted).ok()?;
    let mut bytes = vec![0; accepted.geometry.block_size as usize];
    scanner.device.read(accepted.geometry.byte_offset(table.groups.first()?.inode_bitmap)?, &mut bytes).ok()?;
    Some(bytes.iter().rposition(|byte| *byte != 0xFF)? as u64 * 8 + 8)
}

/// The sizes of which mkfs writes only few values, or the same one twice.
fn sizes(disk: &DiskSuperblock) -> Vec<Correction> {
    let mut corrections = Vec::new();
    let features = disk.features();
    if has_features_of_later_revision(disk) {
        let disk = DiskSuperblock { s_rev_level: 1.into(), ..*disk };
        corrections.push(Correction { field: "s_rev_level", found: 0, expected: 1, disk });
    }
    if disk.s_rev_level.get() > 0 {
        for expected in [256u16, 128, 512, 1024] {
            let found = disk.s_inode_size.get().into();
            let disk = DiskSuperblock { s_inode_size: expected.into(), ..*disk };
            corrections.push(Correction { field: "s_inode_size", found, expected: expected.into(), disk });
        }
        let found = disk.s_first_ino.get().into();
        let corrected = DiskSuperblock { s_first_ino: FIRST_INODE.into(), ..*disk };
        corrections.push(Correction { field: "s_first_ino", found, expected: FIRST_INODE.into(), disk: corrected });
    }
    if !features.ro_compat.contains(RoCompat::BIGALLOC) {
        let (blocks, clusters) = (disk.s_blocks_per_group, disk.s_clusters_per_group);
        let with_group = |size| DiskSuperblock { s_blocks_per_group: size, s_clusters_per_group: size, ..*disk };
        let (block, cluster) = (disk.s_log_block_size, disk.s_log_cluster_size);
        let with_block = |log| DiskSuperblock { s_log_block_size: log, s_log_cluster_size: log, ..*disk };
        let first = u32::from(block.get() == 0);
        let found = disk.s_first_data_block.get().into();
        // mkfs makes groups as large as a bitmap can count, unless it is asked for smaller ones
        let group = if blocks.get() > clusters.get() { blocks } else { clusters };
        // and always of whole bytes of the bitmap
        let (less, more) = (group.get() / 8 * 8, group.get().saturating_add(7) / 8 * 8);
        let fields = [
            ("s_first_data_block", found, first, DiskSuperblock { s_first_data_block: first.into(), ..*disk }),
            ("s_blocks_per_group", blocks.get().into(), group.get(), with_group(group)),
            ("s_clusters_per_group", clusters.get().into(), group.get(), with_group(group)),
            ("s_blocks_per_group", blocks.get().into(), clusters.get(), with_group(clusters)),
            ("s_clusters_per_group", clusters.get().into(), blocks.get(), with_group(blocks)),
            ("s_blocks_per_group", blocks.get().into(), less, with_group(less.into())),
            ("s_blocks_per_group", blocks.get().into(), more, with_group(more.into())),
            ("s_log_block_size", block.get().into(), cluster.get(), with_block(cluster)),
            ("s_log_cluster_size", cluster.get().into(), block.get(), with_block(block)),
        ];
        let fields = fields.into_iter();
        corrections.extend(fields.map(|(field, found, expected, disk)| Correction {
            field,
            found,
            expected: expected.into(),
            disk,
        }));
    }
    if features.ro_compat.contains(RoCompat::BIGALLOC) {
        let (found, log) = (disk.s_clusters_per_group.get(), disk.s_log_cluster_size.get());
        for expected in [found / 8 * 8, found.saturating_add(7) / 8 * 8] {
            let ratio = log.checked_sub(disk.s_log_block_size.get()).and_then(|log| 1_u32.checked_shl(log));
            if let Some(blocks) = ratio.and_then(|ratio| expected.checked_mul(ratio)) {
                let (clusters, blocks) = (expected.into(), blocks.into());
                let disk = DiskSuperblock { s_clusters_per_group: clusters, s_blocks_per_group: blocks, ..*disk };
                let (found, expected) = (found.into(), expected.into());
                corrections.push(Correction { field: "s_clusters_per_group", found, expected, disk });
            }
        }
    }
    if features.incompat.contains(Incompat::BIT64) {
        let found = disk.s_desc_size.get().into();
        let disk = DiskSuperblock { s_desc_size: 64.into(), ..*disk };
        corrections.push(Correction { field: "s_desc_size", found, expected: 64, disk });
    }
    corrections
}

/// Whether a superblock has revision 0, which has no features, and feature words.
pub(super) fn has_features_of_later_revision(disk: &DiskSuperblock) -> bool {
    let words = [disk.s_feature_compat, disk.s_feature_incompat, disk.s_feature_ro_compat];
    disk.s_rev_level.get() == 0 && words.iter().any(|word| word.get() != 0)
}

/// The number of blocks reserved for a longer descriptor table: the first group's bitmaps and inodes follow them.
fn reserved(scanner: &Scanner<'_>, disk: &DiskSuperblock) -> Option<Correction> {
    let mut without = DiskSuperblock { s_reserved_gdt_blocks: 0.into(), ..*disk };
    without.set_checksum();
    let accepted = Accepted { disk: without, geometry: check(&without).ok()?, at: superblock::OFFSET };
    let table = read_table(scanner, &accepted).ok()?;
    let group: &Group = table.groups.first()?;
    let [head, parts @ ..] = own_blocks(&accepted.geometry, GroupNo(0), group);
    let next = parts.iter().map(|blocks| blocks.start).min()?;
    // if only one of them is among the blocks reserved now, rather its own location is wrong
    let end = head.end.saturating_add(disk.s_reserved_gdt_blocks.get().into());
    if parts.iter().filter(|blocks| blocks.start < end).count() < 2 {
        return None;
    }
    let expected = u16::try_from(next.checked_sub(head.end)?).ok()?;
    let found = disk.s_reserved_gdt_blocks.get().into();
    let disk = DiskSuperblock { s_reserved_gdt_blocks: expected.into(), ..*disk };
    Some(Correction { field: "s_reserved_gdt_blocks", found, expected: expected.into(), disk })
}

/// The feature `flex_bg`, without which tables lie in their own groups, where the superblock has a number of groups for it.
fn flexible(disk: &DiskSuperblock) -> Option<Correction> {
    let found = disk.s_feature_incompat.get();
    let expected = found | Incompat::FLEX_BG.bits();
    let disk = DiskSuperblock { s_feature_incompat: expected.into(), ..*disk };
    let (found, expected) = (found.into(), expected.into());
    let correction = Correction { field: "s_feature_incompat", found, expected, disk };
    (disk.s_log_groups_per_flex != 0).then_some(correction)
}
