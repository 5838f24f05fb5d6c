//! The block groups.

use crate::error_report::Complaints;
use fs::{COUNTED_GROUPS, GroupNo, Volume, VolumeSummary};
use serde::Serialize;
use std::io::{self, Write};

/// A block group.
#[derive(Serialize)]
pub(super) struct Group {
    group: u32,
    first_block: u64,
    last_block: u64,
    /// The blocks are metadata numbers of a native volume, not blocks of the device.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    metadata_numbers: bool,
    /// Contains the superblock or a copy of it.
    superblock: bool,
    /// The descriptor, if it could be read.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    descriptor: Option<Descriptor>,
}

#[derive(Serialize)]
struct Descriptor {
    block_bitmap: u64,
    inode_bitmap: u64,
    inode_table: u64,
    inode_table_blocks: u32,
    free_clusters: u32,
    free_inodes: u32,
    directories: u32,
    unused_inodes: u32,
    flags: Vec<String>,
    /// Blocks of the metadata region, as first and last block of each run; `None` on volumes without regions.
    #[serde(skip_serializing_if = "Option::is_none")]
    regions: Option<Vec<(u64, u64)>>,
    checksum: u16,
}

/// All groups, in order; reports unreadable descriptors, and stops at the end of the device. `None` where there are
/// more groups than are listed, which is reported.
pub(super) fn read(volume: &Volume, summary: &VolumeSummary, complaints: &mut Complaints<'_>) -> Option<Vec<Group>> {
    let geometry = &volume.superblock().geometry;
    if geometry.groups > COUNTED_GROUPS {
        let why = format!("{} groups are more than the {COUNTED_GROUPS} that are listed", geometry.groups);
        complaints.about(b"groups", why);
        return None;
    }
    let mut groups = Vec::new();
    for number in geometry.group_numbers() {
        let descriptor = match volume.group(number) {
            Ok(found) => Some(Descriptor {
                block_bitmap: found.block_bitmap.get(),
                inode_bitmap: found.inode_bitmap.get(),
                inode_table: found.inode_table.get(),
                inode_table_blocks: geometry.itable_blocks,
                free_clusters: found.free_clusters,
                free_inodes: found.free_inodes,
                directories: found.directories,
                unused_inodes: found.itable_unused,
                flags: found.flags.iter_names().map(|(name, _)| name.to_lowercase()).collect(),
                regions: geometry.has_regions().then(|| {
                    geometry.region_blocks(number, found.regions).map(|run| (run.start, run.end - 1)).collect()
                }),
                checksum: found.checksum,
            }),
            Err(e) => {
                complaints.about(format!("group {number}").as_bytes(), &e);
                if matches!(e, fs::Error::Io(_)) {
                    break;
                }
                None
            }
        };
        groups.push(group(volume, number, descriptor, summary.blocks));
    }
    Some(groups)
}

fn group(volume: &Volume, number: GroupNo, descriptor: Option<Descriptor>, device_end: u64) -> Group {
    let geometry = &volume.superblock().geometry;
    let blocks = geometry.group_blocks(number);
    Group {
        group: number.get(),
        first_block: blocks.start,
        last_block: blocks.end.saturating_sub(1),
        metadata_numbers: blocks.start >= device_end,
        superblock: geometry.backups.contains(number),
        descriptor,
    }
}

const TITLES: [&str; 9] =
    ["group", "blocks", "block bitmap", "inode bitmap", "inode table", "free", "free inodes", "directories", "notes"];

pub(super) fn print(groups: &[Group], out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "\nGroups")?;
    let lines: Vec<[String; TITLES.len()]> = groups.iter().map(columns).collect();
    let mut widths = TITLES.map(str::len);
    for line in &lines {
        for (width, text) in widths.iter_mut().zip(line) {
            *width = text.len().max(*width);
        }
    }
    for line in std::iter::once(&TITLES.map(str::to_owned)).chain(&lines) {
        // the notes are aligned left, numbers right
        let (notes, numbers) = line.split_last().unwrap_or((&line[0], &[]));
        for (text, width) in numbers.iter().zip(widths) {
            write!(out, "  {text:>width$}")?;
        }
        let end = if notes.is_empty() { String::new() } else { format!("  {notes}") };
        writeln!(out, "{end}")?;
    }
    if groups.iter().any(|group| group.metadata_numbers) {
        writeln!(
            out,
            "\nGroups marked \"metadata numbers\" have no blocks on the device: the map translates their block numbers to\nblocks in \
             the metadata regions. Their free blocks do not count as free space."
        )?;
    }
    Ok(())
}

fn columns(group: &Group) -> [String; TITLES.len()] {
    let mut notes = Vec::new();
    if group.superblock {
        notes.push(if group.group == 0 { "superblock" } else { "superblock copy" });
    }
    let number = group.group.to_string();
    let blocks = format!("{}-{}", group.first_block, group.last_block);
    let Some(found) = &group.descriptor else {
        let unknown = || "?".to_owned();
        let cells = [unknown(), unknown(), unknown(), unknown(), unknown(), unknown()];
        let [a, b, c, d, e, f] = cells;
        return [number, blocks, a, b, c, d, e, f, notes.join(", ")];
    };
    if group.metadata_numbers {
        notes.push("metadata numbers");
    }
    notes.extend(found.flags.iter().map(String::as_str));
    let regions: Vec<String> = found.regions.iter().flatten().map(|(first, last)| format!("{first}-{last}")).collect();
    let regions = format!("region {}", regions.join(" "));
    if found.regions.is_some() {
        notes.push(&regions);
    }
    let table_end = found.inode_table.saturating_add(u64::from(found.inode_table_blocks)).saturating_sub(1);
    [
        number,
        blocks,
        found.block_bitmap.to_string(),
        found.inode_bitmap.to_string(),
        format!("{}-{table_end}", found.inode_table),
        found.free_clusters.to_string(),
        found.free_inodes.to_string(),
        found.directories.to_string(),
        notes.join(", "),
    ]
}
