//! Phase 0: finds a usable superblock and group descriptors, and checks them by themselves.
//!
//! The primary superblock and table are used if possible; otherwise the first copy of which both are usable. Remaining
//! errors are reported, and the check continues with them as e2fsck -n does: their consequences appear in the later
//! phases.

mod accepted;
pub(crate) mod copies;
mod correction;
pub(crate) mod descriptors;
mod foreign_format;
pub(crate) mod inode_tables;
pub(crate) mod journal;
mod mmp;
mod orphans;
pub(crate) mod resize_inode;
mod space_map_layout;

use crate::options::{Options, Refusal, Repair};
use crate::phases::quota;
pub(crate) use crate::phases::superblock::accepted::geometry_of;
use crate::phases::superblock::accepted::{
    Accepted, FIRST_INODE, Rejection, accept_at, check, read_superblock, read_table,
};
use crate::phases::superblock::descriptors::Table;
pub use crate::phases::superblock::foreign_format::begins_with_zeros;
use crate::phases::superblock::inode_tables::Seeker;
use crate::problem::{Problem, Problems};
use crate::redo;
use crate::scan::{Counters, REQUEST, Scanner};
use crate::table::Code;
use crate::volume::{ComparedCopy, Volume};
use blockdev::BlockDevice;
use format::feature::{Compat, Features, Incompat, RoCompat};
use format::group::Group;
use format::superblock::{self, DiskSuperblock, Flags, Geometry};
use format::{GroupNo, InodeNo};
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};

/// Groups that are searched for copies of the superblock: the first powers of 3, 5 and 7. Volumes without sparse_super
/// have copies in every group, so also in these.
const BACKUP_GROUPS: [u32; 10] = [1, 3, 5, 7, 9, 25, 27, 49, 81, 125];

/// Bytes that are searched for copies in other locations: the end of the first full-size group with blocks of up to 4
/// KiB.
const SEARCHED: u64 = (128 << 20) + (64 << 10);
/// The last `s_def_hash_version` that the kernel accepts on every volume: 0 to 5 are three functions, signed and
/// unsigned. The next one is for names that are both encrypted and case-insensitive.
const LAST_HASH: u8 = 5;
/// Maximum number of copies found by this search that are tried.
const FOUND: usize = 16;
/// Maximum number of layouts in these copies at whose locations others are searched for.
const LAYOUTS: usize = 4;

/// The beginning of the message for a device without a volume.
pub(crate) const NO_VOLUME: &str = "not an ext2/3/4 or Extant volume";

/// Opens the volume on the scanner's device. Where `orphans_stay`, orphans are not a problem: those of a snapshot are
/// never freed, and those of a native volume, which is consistent with them, are freed by the next mount.
pub(crate) fn open(
    scanner: &Scanner<'_>,
    options: &Options,
    orphans_stay: bool,
    problems: &Problems,
) -> Result<Volume, Refusal> {
    let (found, table) = find(scanner, options, problems)?;
    let Accepted { disk, geometry, at } = found.clone();
    let is_copy = at != superblock::OFFSET;
    let device = scanner.device.geometry().len;
    let fits = device / u64::from(geometry.block_size);
    if geometry.blocks / 2 > fits {
        return Err(Refusal::new(format!(
            "most of the volume is missing (truncated image?): its superblock says {} blocks of {} bytes, the device has \
             {fits}; get a complete copy before you repair",
            geometry.blocks, geometry.block_size
        )));
    }
    if geometry.blocks > fits {
        problems.report(Problem::new(Code::BeyondDevice).found(geometry.blocks).expected(fits));
    }
    let features = disk.features();
    let untrusted = table.check(&geometry, &features, problems);
    let used_inodes = table.used_inodes(&geometry);
    let (orphans, pending) = (BTreeSet::new(), BTreeSet::new());
    let (groups, compared) = (table.groups, table.compared);
    let space_maps = None;
    let mut volume = Volume {
        disk,
        is_copy,
        features,
        geometry,
        groups,
        used_inodes,
        untrusted,
        orphans,
        pending,
        space_maps,
        compared,
    };
    let copies = backups(scanner, Some(&found.geometry)).filter(|copy| is_same_volume(&found, copy));
    let copies = copies.filter(|_| options.superblock.is_none());
    if let Some(problem) = space_map_layout::read(scanner, &mut volume, copies)? {
        problems.report(problem);
    }
    if redo::unfinished(scanner.device) {
        problems.report(Problem::new(Code::RepairUnfinished));
    } else if redo::has_lost_log(scanner.device) {
        problems.report(Problem::new(Code::RepairLogDamaged));
    }
    check_superblock(&volume, problems);
    mmp::check(scanner, &volume, problems)?;
    resize_inode::check(scanner, &volume, problems);
    volume.pending = orphans::check_list(scanner, &volume, problems);
    if orphans_stay {
        volume.orphans.clone_from(&volume.pending);
    } else {
        volume.pending.iter().for_each(|&inode| problems.report(Problem::new(Code::OrphanPending).inode(inode)));
    }
    let mut in_file = BTreeSet::new();
    orphans::check_file(scanner, &volume, problems, &mut in_file);
    volume.pending.append(&mut in_file);
    if options.repair == Repair::No {
        // nothing truncates them: as with e2fsck, their blocks beyond the end are errors
        volume.pending.clear();
    }
    journal::check(scanner, &volume, problems);
    for (field, number, _) in quota::misled(scanner, &volume) {
        problems.report(Problem::new(Code::QuotaInodeElsewhere).name(field).inode(number));
    }
    Ok(volume)
}

/// Whether the check would use the primary superblock of a volume and its descriptors.
pub(crate) fn primary_is_usable(device: &dyn BlockDevice) -> bool {
    let counters = Counters::default();
    let scanner = Scanner { device, threads: 1, gap: 0, counters: &counters, cancelled: &|| false, advanced: &|_| () };
    let Ok(primary) = accept_at(&scanner, superblock::OFFSET) else { return false };
    let Ok(table) = read_table(&scanner, &primary) else { return false };
    table.makes_sense(&primary.geometry, &primary.disk.features())
        && leads_to_root(&scanner, &primary, &table)
        && odd_fields(&primary).is_empty()
}

/// The superblock and the table that the check uses.
fn find(scanner: &Scanner<'_>, options: &Options, problems: &Problems) -> Result<(Accepted, Table), Refusal> {
    if let Some(block) = options.superblock {
        let named = named_superblock(scanner, block, options.block_size)?;
        let table = read_table(scanner, &named)?;
        return Ok((named, table));
    }
    let primary = accept_at(scanner, superblock::OFFSET);
    let reason = match &primary {
        Err(Rejection::Final(what)) => return Err(Refusal::new(what.clone())),
        Err(Rejection::Corrupt(what)) => Some((Code::SuperblockTryBackup, what.clone())),
        Err(Rejection::Field(what)) => Some((Code::SuperblockFieldTryBackup, what.clone())),
        Ok(_) => None,
    };
    // the descriptors decide only where there is a copy
    let mut second_best = None;
    if let Ok(accepted) = primary {
        let table = read_table(scanner, &accepted)?;
        if table.makes_sense(&accepted.geometry, &accepted.disk.features()) {
            return of_primary(scanner, accepted, table, problems);
        }
        second_best = Some((accepted, table));
    }
    let primary = second_best.as_ref().map(|(accepted, _): &(Accepted, Table)| accepted.clone());
    let (mut rootless, mut rooted) = (None, false);
    let (candidates, searched) = ranked(scanner, primary.as_ref());
    let mut passed_over: BTreeSet<_> = candidates.iter().map(Accepted::group).collect();
    for accepted in candidates.into_iter().chain(searched) {
        passed_over.remove(&accepted.group());
        let Ok(table) = read_table(scanner, &accepted) else { continue };
        if !table.makes_sense(&accepted.geometry, &accepted.disk.features()) {
            second_best = second_best.or(Some((accepted, table)));
        } else if leads_to_root(scanner, &accepted, &table) {
            (rootless, rooted) = (Some((accepted, table)), true);
            break;
        } else {
            rootless = rootless.or(Some((accepted, table)));
        }
    }
    if !rooted {
        match correction::find(scanner, None, problems) {
            Ok(Some(corrected)) => return Ok(corrected),
            // descriptors that make no sense are repaired only as far as nothing is lost
            Err(_) if rootless.is_none() && second_best.is_some() => {}
            outcome => drop(outcome?),
        }
    }
    if let Some((accepted, table)) = rootless {
        let problem = match &reason {
            Some((code, reason)) => Problem::new(*code).name(reason),
            None => Problem::new(Code::GroupDescriptorsTryBackup),
        };
        problems.report(problem.group(accepted.group()).block(accepted.block()));
        report_passed(&accepted, &passed_over, problems);
        return Ok((accepted, table));
    }
    match second_best {
        Some(found) => Ok(without_sense(scanner, found, reason, problems)),
        None => last_resort(scanner, problems).ok_or_else(|| {
            let reason = reason.map_or_else(String::new, |(_, what)| what);
            Refusal::new(match foreign_format::look(scanner.device) {
                Some(kind) => format!("{NO_VOLUME}: {kind}"),
                None => format!("{NO_VOLUME}: {reason}, and no copy of the superblock is usable"),
            })
        }),
    }
}

/// The primary superblock and its table, which makes sense, unless it does not lead to the root or is odd and another
/// superblock or table location is better.
///
/// # Errors
/// [`Refusal`], where a field of it is wrong, and it is unclear what it should be.
fn of_primary(
    scanner: &Scanner<'_>,
    accepted: Accepted,
    mut table: Table,
    problems: &Problems,
) -> Result<(Accepted, Table), Refusal> {
    let fits = leads_to_root(scanner, &accepted, &table);
    let features = accepted.disk.features();
    let seeker = Seeker { scanner, geometry: &accepted.geometry, features: &features };
    let mut moved = if fits { Vec::new() } else { seeker.seek(&mut table) };
    let odd = odd_fields(&accepted);
    if moved.is_empty() && (!fits || !odd.is_empty()) {
        if let Some((other, table, problem)) = rival(scanner, &accepted) {
            problems.report(problem);
            return Ok((other, table));
        }
        if let Some(corrected) = correction::find(scanner, fits.then_some(&odd), problems)? {
            return Ok(corrected);
        }
    }
    let copy = first_copy(scanner, &accepted);
    let copied = copy.as_ref().map_or(&[][..], |(_, copied)| &copied.groups);
    moved.extend(seeker.seek_better(&mut table, copied));
    let elsewhere = |copied: &Table| copied.groups.iter().zip(&table.groups).filter(|(a, b)| a.is_elsewhere(b)).count();
    table.compared =
        copy.map(|(copy, copied)| ComparedCopy { at: copy.at, disk: copy.disk, elsewhere: elsewhere(&copied) as u64 });
    moved.into_iter().for_each(|problem| problems.report(problem));
    Ok((accepted, table))
}

/// The first usable copy with the layout of this superblock, and its descriptors.
fn first_copy(scanner: &Scanner<'_>, own: &Accepted) -> Option<(Accepted, Table)> {
    let mut copies = stated_backups(scanner, &own.geometry);
    let copy = copies.find(|copy| is_same_volume(own, copy) && differing(own, copy).is_empty())?;
    let table = read_table(scanner, &copy).ok()?;
    Some((copy, table))
}

/// The descriptors in the first usable copy with the layout of this superblock; `None` where there is no such copy.
pub(crate) fn copied_groups(scanner: &Scanner<'_>, disk: &DiskSuperblock, geometry: &Geometry) -> Option<Vec<Group>> {
    let own = Accepted { disk: *disk, geometry: geometry.clone(), at: superblock::OFFSET };
    first_copy(scanner, &own).map(|(_, table)| table.groups)
}

/// Descriptors that make no sense, where no others do, with the tables that are found at other locations. The rejection
/// of the primary is reported even so: it is restored from the copy before anything else is written.
fn without_sense(
    scanner: &Scanner<'_>,
    (accepted, mut table): (Accepted, Table),
    rejection: Option<(Code, String)>,
    problems: &Problems,
) -> (Accepted, Table) {
    if let Some((code, reason)) = rejection {
        problems.report(Problem::new(code).name(reason).group(accepted.group()).block(accepted.block()));
    }
    let features = accepted.disk.features();
    let seeker = Seeker { scanner, geometry: &accepted.geometry, features: &features };
    seeker.seek(&mut table).into_iter().for_each(|problem| problems.report(problem));
    (accepted, table)
}

/// Reports the copies before the one with which the check continues; those in `passed_over` were not tried.
fn report_passed(accepted: &Accepted, passed_over: &BTreeSet<GroupNo>, problems: &Problems) {
    for passed in accepted.geometry.backup_groups().take_while(|group| *group < accepted.group()) {
        let what = if passed_over.contains(&passed) {
            "its size is not that of the device, or fewer copies agree with it"
        } else {
            "neither it nor its descriptors could be used"
        };
        problems.report(Problem::new(Code::BackupSuperblockUnusable).group(passed).name(what));
    }
}

/// The copies of the superblock in the order in which they are tried, and after them those found by the search, unless
/// no copy at a known location is as long as the device: then all are ranked together. The first copy on the volume may
/// be a stale one from before a resize: copies with as many blocks as the device come first, and among these, those
/// with which most copies agree.
fn ranked<'a>(
    scanner: &'a Scanner<'_>,
    primary: Option<&'a Accepted>,
) -> (Vec<Accepted>, impl Iterator<Item = Accepted> + 'a) {
    let known = known_backups(scanner, primary.map(|primary| &primary.geometry));
    let mut found: Vec<Accepted> =
        known.filter(|copy| primary.is_none_or(|primary| is_same_volume(primary, copy))).collect();
    // with groups of another size few copies are at the known locations, or none
    let at_once = primary.is_none() && !found.iter().any(|copy| copy.fits(scanner));
    if at_once {
        found.extend(related_backups(scanner));
        let mut seen = BTreeSet::new();
        found.retain(|copy| seen.insert(copy.at));
    }
    let later = primary.is_none() && !at_once;
    let others = move || if later { by_rank(scanner, &related_backups(scanner)) } else { Vec::new() };
    (by_rank(scanner, &found), std::iter::once_with(others).flatten())
}

/// Copies in the order in which they are tried.
fn by_rank(scanner: &Scanner<'_>, copies: &[Accepted]) -> Vec<Accepted> {
    let rank = |copy: &Accepted| {
        let agrees = |other: &&Accepted| is_same_volume(other, copy) && differing(other, copy).is_empty();
        (!copy.fits(scanner), Reverse(copies.iter().filter(agrees).count()))
    };
    let mut ranks: Vec<_> = copies.iter().map(|copy| (rank(copy), copy.clone())).collect();
    ranks.sort_by_key(|(rank, _)| *rank);
    ranks.into_iter().map(|(_, copy)| copy).collect()
}

/// The copies found by the search, and those at the locations that follow from their layouts: these may be beyond the
/// part of the device that is searched.
fn related_backups(scanner: &Scanner<'_>) -> Vec<Accepted> {
    let mut copies = search(scanner);
    let mut layouts: Vec<Geometry> = Vec::new();
    for copy in &copies {
        if layouts.len() < LAYOUTS && !layouts.contains(&copy.geometry) {
            layouts.push(copy.geometry.clone());
        }
    }
    copies.extend(layouts.iter().flat_map(|layout| stated_backups(scanner, layout)));
    let mut seen = BTreeSet::new();
    copies.retain(|copy| seen.insert(copy.at));
    copies
}

/// The usable copies at the locations by this geometry.
fn stated_backups<'a>(scanner: &'a Scanner<'_>, geometry: &'a Geometry) -> impl Iterator<Item = Accepted> + 'a {
    let places = geometry.backup_groups().filter_map(|group| geometry.byte_offset(geometry.superblock_block(group)?));
    let copies = places.take(BACKUP_GROUPS.len()).filter_map(|at| accept_at(scanner, at).ok());
    copies.filter(|copy| copy.geometry.block_size == geometry.block_size)
}

/// Whether the first group's inode table contains the root.
fn leads_to_root(scanner: &Scanner<'_>, accepted: &Accepted, table: &Table) -> bool {
    let features = accepted.disk.features();
    Seeker { scanner, geometry: &accepted.geometry, features: &features }.leads_to_root(table)
}

/// The fields of a superblock with a value that mkfs never writes.
fn odd_fields(accepted: &Accepted) -> Vec<&'static str> {
    let geometry = &accepted.geometry;
    let fields = [
        ("s_first_data_block", geometry.first_data_block != first_data_block(geometry)),
        ("s_first_ino", geometry.first_inode != FIRST_INODE),
        // with others a byte of a bitmap would have bits of the group and of padding
        ("s_inodes_per_group", !geometry.inodes_per_group.is_multiple_of(8)),
        ("s_blocks_per_group", !geometry.clusters_per_group().is_multiple_of(8)),
        ("s_clusters_per_group", !geometry.clusters_per_group().is_multiple_of(8)),
        ("s_rev_level", correction::has_features_of_later_revision(&accepted.disk)),
    ];
    fields.into_iter().filter(|(_, odd)| *odd).map(|(name, _)| name).collect()
}

/// The first data block of a volume with this block size.
fn first_data_block(geometry: &Geometry) -> u32 {
    u32::from(geometry.block_size == 1024 && geometry.cluster_blocks == 1)
}

/// A copy of the superblock with another layout than the primary that leads to the root: where the primary does not, or
/// is odd, one of its fields is wrong although its checksum is right.
fn rival(scanner: &Scanner<'_>, primary: &Accepted) -> Option<(Accepted, Table, Problem)> {
    let (copies, _) = ranked(scanner, Some(primary));
    copies.into_iter().find_map(|accepted| {
        let differing = differing(primary, &accepted);
        if differing.is_empty() || !odd_fields(&accepted).is_empty() {
            return None;
        }
        let table = read_table(scanner, &accepted).ok()?;
        let fits = table.makes_sense(&accepted.geometry, &accepted.disk.features())
            && leads_to_root(scanner, &accepted, &table);
        let what = format!("invalid {}", differing.join(", "));
        let problem = Problem::new(Code::SuperblockFieldTryBackup).name(what);
        let problem = problem.group(accepted.group()).block(accepted.block());
        fits.then_some((accepted, table, problem))
    })
}

/// Whether a copy belongs to this superblock, not to an older volume on the device.
fn is_same_volume(primary: &Accepted, copy: &Accepted) -> bool {
    let (a, b) = (&primary.disk, &copy.disk);
    a.s_uuid == b.s_uuid || a.s_mkfs_time == b.s_mkfs_time
}

/// The layout fields in which two superblocks differ.
fn differing(one: &Accepted, other: &Accepted) -> Vec<&'static str> {
    let (a, b) = (&one.geometry, &other.geometry);
    let placing = |accepted: &Accepted| {
        accepted.disk.features().incompat & (Incompat::FLEX_BG | Incompat::META_BG | Incompat::BIT64)
    };
    let summed = a.metadata_csum || a.gdt_csum || b.metadata_csum || b.gdt_csum;
    let fields = [
        ("s_rev_level", one.disk.s_rev_level != other.disk.s_rev_level),
        ("s_log_block_size", a.block_size != b.block_size),
        ("s_log_cluster_size", a.cluster_blocks != b.cluster_blocks),
        ("s_first_data_block", a.first_data_block != b.first_data_block),
        ("s_blocks_count", a.blocks != b.blocks),
        ("s_blocks_per_group", a.blocks_per_group != b.blocks_per_group),
        ("s_inodes_count", a.inodes != b.inodes),
        ("s_inodes_per_group", a.inodes_per_group != b.inodes_per_group),
        ("s_inode_size", a.inode_size != b.inode_size),
        ("s_first_ino", a.first_inode != b.first_inode),
        ("s_desc_size", a.descriptor_size != b.descriptor_size),
        ("s_first_meta_bg", a.first_meta_group != b.first_meta_group),
        ("s_reserved_gdt_blocks", a.reserved_descriptor_blocks != b.reserved_descriptor_blocks),
        ("s_feature_incompat", placing(one) != placing(other)),
        ("s_checksum_seed", a.checksum_seed != b.checksum_seed),
        ("s_uuid", summed && one.disk.s_uuid != other.disk.s_uuid),
    ];
    fields.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
}

/// The primary with meta groups that begin after the end of the table, when no copy is usable. As in e2fsck, the whole
/// table is assumed to follow the superblock with the length in the field. Where that makes no sense, meta groups from
/// the start, as mkfs creates them, or no meta groups are tried; e2fsck does not try that and reports the volume as
/// destroyed.
fn last_resort(scanner: &Scanner<'_>, problems: &Problems) -> Option<(Accepted, Table)> {
    let disk = read_superblock(scanner, superblock::OFFSET).ok()?;
    let from = |first: u32| {
        let mut repaired = disk;
        repaired.s_first_meta_bg = first.into();
        if disk.checksum() == disk.s_checksum.get() {
            repaired.s_checksum = repaired.checksum().into();
        }
        let geometry = check(&repaired).ok()?;
        Some(Accepted { disk: repaired, geometry, at: superblock::OFFSET })
    };
    let mut accepted = from(0)?;
    let (found, most) = (disk.s_first_meta_bg.get(), accepted.geometry.descriptor_blocks);
    (accepted.geometry.first_meta_group, accepted.geometry.descriptor_blocks) = (found, found);
    let others = [0, most].into_iter().filter_map(from).map(|other| (Code::FirstMetaGroupMisleads, other));
    for (code, accepted) in std::iter::once((Code::FirstMetaGroupTooLarge, accepted)).chain(others) {
        let Ok(table) = read_table(scanner, &accepted) else { continue };
        if table.makes_sense(&accepted.geometry, &accepted.disk.features()) {
            problems.report(Problem::new(code).found(found.into()).expected(most.into()));
            return Some((accepted, table));
        }
    }
    None
}

/// The superblock that the user chose.
fn named_superblock(scanner: &Scanner<'_>, block: u64, block_size: Option<u32>) -> Result<Accepted, Refusal> {
    let sizes = (0..7).map(|shift| 1024 << shift).filter(|size| block_size.is_none_or(|named| named == *size));
    let mut reason = "block sizes are powers of two from 1024 to 65536".to_owned();
    let mut most = 0;
    for size in sizes {
        // with larger blocks the primary is inside block 0
        let at = if block == 0 { superblock::OFFSET } else { block.saturating_mul(u64::from(size)) };
        let what = match accept_at(scanner, at) {
            Ok(accepted) if accepted.geometry.block_size == size || block == 0 => return Ok(accepted),
            Ok(accepted) => format!("it has blocks of {} bytes", accepted.geometry.block_size),
            Err(Rejection::Final(what)) => return Err(Refusal::new(what)),
            Err(Rejection::Corrupt(what) | Rejection::Field(what)) => what,
        };
        let rank = relevance(scanner, at);
        if rank > most {
            (most, reason) = (rank, what);
        }
    }
    Err(Refusal::new(format!("no usable superblock at block {block}: {reason}")))
}

/// The rank of the reason why there is no usable superblock at an offset: that of an existing one is the most relevant;
/// with a larger block size than that of the volume, the offset is often beyond the end of the device.
fn relevance(scanner: &Scanner<'_>, at: u64) -> u8 {
    let end = at.saturating_add(DiskSuperblock::SIZE as u64);
    match read_superblock(scanner, at) {
        Err(_) if end > scanner.device.geometry().len => 1,
        Ok(disk) if disk.s_magic.get() != superblock::MAGIC => 2,
        _ => 3,
    }
}

/// The usable copies of the superblock: those at the known locations, and, where the primary has no geometry, others.
fn backups<'a>(scanner: &'a Scanner<'_>, geometry: Option<&'a Geometry>) -> impl Iterator<Item = Accepted> + 'a {
    known_backups(scanner, geometry).chain(searched_backups(scanner, geometry.is_none()))
}

/// The usable copies of the superblock, first at the locations by the primary, and then, as the primary may be wrong,
/// at all default locations of mke2fs.
fn known_backups<'a>(scanner: &'a Scanner<'_>, geometry: Option<&'a Geometry>) -> impl Iterator<Item = Accepted> + 'a {
    let stated = geometry.into_iter().flat_map(|geometry| {
        let blocks = geometry.backup_groups().filter_map(|group| geometry.superblock_block(group));
        blocks.take(BACKUP_GROUPS.len()).map(|block| (geometry.block_size, block.get()))
    });
    let guessed = (0..7u32).flat_map(|shift| BACKUP_GROUPS.map(|group| (shift, group))).map(|(shift, group)| {
        let block_size = 1024u32 << shift;
        // groups of full size; the boot block shifts 1 KiB blocks by one
        (block_size, u64::from(group) * u64::from(block_size) * 8 + u64::from(shift == 0))
    });
    let mut seen = BTreeSet::new();
    let places = stated.chain(guessed).filter(move |place| seen.insert(*place));
    places.filter_map(|(block_size, block)| {
        let accepted = accept_at(scanner, block.checked_mul(block_size.into())?).ok()?;
        (accepted.geometry.block_size == block_size).then_some(accepted)
    })
}

/// The copies at other locations; the search starts when the first one is requested.
fn searched_backups<'a>(scanner: &'a Scanner<'_>, wanted: bool) -> impl Iterator<Item = Accepted> + 'a {
    std::iter::once_with(move || if wanted { search(scanner) } else { Vec::new() }).flatten()
}

/// Copies of the superblock in groups of any size, searched for at every possible location unless another format is
/// identified.
fn search(scanner: &Scanner<'_>) -> Vec<Accepted> {
    let mut found = Vec::new();
    if foreign_format::look(scanner.device).is_some() {
        return found;
    }
    let end = scanner.device.geometry().len.min(SEARCHED);
    let mut bytes = vec![0; REQUEST as usize];
    let mut at = 0;
    while at < end && found.len() < FOUND && !(scanner.cancelled)() {
        let len = REQUEST.min(end - at);
        let Some(piece) = bytes.get_mut(..len as usize) else { break };
        scanner.counters.count(at, len);
        if scanner.device.read(at, piece).is_ok() {
            let places = (at..).step_by(DiskSuperblock::SIZE).zip(piece.chunks_exact(DiskSuperblock::SIZE));
            let copies = places.filter_map(|(at, bytes)| {
                let disk = DiskSuperblock::from_slice(bytes).filter(|disk| disk.s_magic.get() == superblock::MAGIC)?;
                let group = GroupNo(u32::from(disk.s_block_group_nr.get()));
                let geometry = check(&disk).ok()?;
                // a copy in a journal has another group number
                let place = geometry.superblock_block(group).and_then(|block| geometry.byte_offset(block));
                (group.get() > 0 && place == Some(at)).then_some(Accepted { disk, geometry, at })
            });
            found.extend(copies);
        }
        at += len;
    }
    found
}

/// Reports contradictions in the superblock, and advice on it.
fn check_superblock(volume: &Volume, problems: &Problems) {
    let Volume { disk, features, geometry, .. } = volume;
    let Features { compat, incompat, ro_compat } = *features;
    let report = |bad: bool, problem: Problem| {
        if bad {
            problems.report(problem);
        }
    };
    let first = first_data_block(geometry);
    let found = geometry.first_data_block;
    let problem = Problem::new(Code::FirstDataBlockWrong);
    report(found != first, problem.found(found.into()).expected(first.into()));
    let reserved = disk.reserved_blocks_count();
    let problem = Problem::new(Code::SuperblockFieldWrong).name("s_r_blocks_count");
    report(reserved > geometry.blocks / 2, problem.found(reserved));

    report(disk.s_uuid == [0; 16], Problem::new(Code::UuidMissing));
    const HURD: u32 = 1;
    let hurd = disk.s_creator_os.get() == HURD && incompat.contains(Incompat::FILETYPE);
    report(hurd, Problem::new(Code::HurdHasFileType));
    let reserved = disk.s_reserved_gdt_blocks.get();
    let without = reserved != 0 && !compat.contains(Compat::RESIZE_INODE);
    report(without, Problem::new(Code::ReservedGdtBlocksWithoutFeature).found(reserved.into()));
    let both = compat.contains(Compat::RESIZE_INODE) && incompat.contains(Incompat::META_BG);
    report(both, Problem::new(Code::ResizeInodeWithMetaGroups));
    let both = ro_compat.contains(RoCompat::METADATA_CSUM | RoCompat::GDT_CSUM);
    report(both, Problem::new(Code::BothChecksumFeatures));
    // regions are recorded in 64-byte descriptors, whether or not files have extents
    let wide = incompat.contains(Incompat::BIT64) && !incompat.contains(Incompat::EXTENT) && !geometry.has_regions();
    report(wide, Problem::new(Code::SixtyFourBitWithoutExtents));
    let seed = incompat.contains(Incompat::CSUM_SEED) && !ro_compat.contains(RoCompat::METADATA_CSUM);
    report(seed, Problem::new(Code::ChecksumSeedWithoutChecksums));
    let flags = Flags::from_bits_retain(disk.s_flags.get());
    report(flags.contains(Flags::TEST_FILESYS), Problem::new(Code::TestFlagSet));
    let hashes = compat.contains(Compat::DIR_INDEX) && !flags.intersects(Flags::SIGNED_HASH | Flags::UNSIGNED_HASH);
    report(hashes, Problem::new(Code::DirectoryHashSignUnknown));
    let hash = disk.s_def_hash_version;
    let both = incompat.contains(Incompat::CASEFOLD | Incompat::ENCRYPT);
    report(hash > LAST_HASH + u8::from(both), Problem::new(Code::DefaultHashInvalid).found(hash.into()));

    if ro_compat.contains(RoCompat::EXTRA_ISIZE) {
        let space = geometry.inode_size - 128;
        let wrong = |size: u16| u32::from(size) > space || !size.is_multiple_of(4);
        let (least, wish) = (disk.s_min_extra_isize.get(), disk.s_want_extra_isize.get());
        report(wrong(least), Problem::new(Code::MinExtraSizeWrong).found(least.into()));
        report(wrong(wish), Problem::new(Code::WantExtraSizeWrong).found(wish.into()));
    }
    for quota in [disk.s_usr_quota_inum, disk.s_grp_quota_inum, disk.s_prj_quota_inum].map(|n| n.get()) {
        let reserved = quota < geometry.first_inode && ![0, 3, 4].contains(&quota);
        let problem = Problem::new(Code::QuotaInodeNumberWrong).found(quota.into());
        report(reserved || quota > geometry.inodes, problem);
    }
    for (field, number) in own_files_without_feature(disk, geometry) {
        problems.report(Problem::new(Code::SystemInodeWithoutFeature).name(field).inode(number));
    }
    check_dates(disk, problems);
}

/// Inodes that the superblock names as quota file or orphan file without the feature: no code reads the number, and it
/// may be that of a user's file. Reserved numbers are harmless and not reported, nor are numbers that are not inodes;
/// but a reserved inode named as the orphan file would be cleared by e2fsck.
pub(crate) fn own_files_without_feature(disk: &DiskSuperblock, geometry: &Geometry) -> Vec<(&'static str, InodeNo)> {
    let Features { compat, ro_compat, .. } = disk.features();
    let quota = ro_compat.contains(RoCompat::QUOTA);
    let fields = [
        ("s_usr_quota_inum", disk.s_usr_quota_inum, quota),
        ("s_grp_quota_inum", disk.s_grp_quota_inum, quota),
        ("s_prj_quota_inum", disk.s_prj_quota_inum, quota),
        ("s_orphan_file_inum", disk.s_orphan_file_inum, compat.contains(Compat::ORPHAN_FILE)),
    ];
    let wrong = fields.into_iter().filter(|(field, number, feature)| {
        let (number, inodes) = (number.get(), geometry.inodes);
        let reserved = (1..geometry.first_inode).contains(&number) && number != InodeNo::ROOT.get();
        !feature && (1..=inodes).contains(&number) && (!reserved || *field == "s_orphan_file_inum")
    });
    wrong.map(|(field, number, _)| (field, InodeNo(number.get()))).collect()
}

/// Checks that the last mount and the last write are in the past; up to a day in the future is attributed to a wrong
/// clock.
fn check_dates(disk: &DiskSuperblock, problems: &Problems) {
    const DAY: u64 = 24 * 60 * 60;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let seconds = |low: u32, high: u8| u64::from(high) << 32 | u64::from(low);
    let dates = [
        (seconds(disk.s_mtime.get(), disk.s_mtime_hi), Code::LastMountBarelyInFuture, Code::LastMountInFuture),
        (seconds(disk.s_wtime.get(), disk.s_wtime_hi), Code::LastWriteBarelyInFuture, Code::LastWriteInFuture),
    ];
    for (date, barely, clearly) in dates {
        if date > now {
            let code = if date - now <= DAY { barely } else { clearly };
            problems.report(Problem::new(code).found(date));
        }
    }
}
