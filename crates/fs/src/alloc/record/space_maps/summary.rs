//! A summary of a volume's space maps, for display.

use super::open::Found;
use crate::{Disk, Result};
use std::collections::BTreeSet;
use std::ops::Range;

/// The space maps of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpaceMapSummary {
    /// Groups in a metablockgroup; the last may have fewer.
    pub groups_per_map: u32,
    /// Blocks of the table of heads.
    pub table: Range<u64>,
    /// Blocks of the log.
    pub log: Range<u64>,
    /// Blocks of the log with records that are in no tree yet.
    pub log_used: u64,
    /// The sequence of the next generation.
    pub sequence: u64,
    /// One for each metablockgroup.
    pub maps: Vec<SpaceMapHead>,
}

/// The summary of a metablockgroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpaceMapHead {
    /// Its groups.
    pub groups: Range<u32>,
    /// Its free blocks, including the records of the log since its tree.
    pub free: u64,
    /// Records of the log that are not in its tree.
    pub records: u64,
    /// The active tree; `None` if the head cannot be read.
    pub tree: Option<SpaceMapTree>,
    /// The reason why its free space is unknown.
    pub damaged: Option<&'static str>,
}

/// A tree of free blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpaceMapTree {
    /// Its first block.
    pub block: u64,
    /// Its length in bytes.
    pub length: u32,
    /// The sequence up to which it includes the log.
    pub sequence: u64,
    /// The length of its longest run of free blocks.
    pub longest: u64,
}

impl Disk {
    /// The summary of the volume's space maps; `None` if block bitmaps record its free space.
    ///
    /// # Errors
    /// Those of the device; invalid numbers in the superblock. Damage of a single map is reported in its
    /// [`SpaceMapHead`].
    pub fn space_maps(&self) -> Result<Option<SpaceMapSummary>> {
        Ok(Found::read(self)?.map(|found| found.summary()))
    }
}

impl Found {
    fn summary(&self) -> SpaceMapSummary {
        let maps = &self.maps;
        let used: BTreeSet<u64> = self.areas.iter().filter_map(|area| area.oldest).collect();
        let head = |(map, area): (u32, &super::Area)| SpaceMapHead {
            groups: maps.groups_of(map),
            free: area.free(),
            records: area.waiting() as u64,
            tree: area.head().map(|head| SpaceMapTree {
                block: head.tree(maps).get(),
                length: head.length,
                sequence: head.sequence,
                longest: head.longest.into(),
            }),
            damaged: area.corrupt(),
        };
        SpaceMapSummary {
            groups_per_map: maps.groups_per_map(),
            table: maps.table(),
            log: maps.ring(),
            log_used: used.first().map_or(0, |oldest| self.position - oldest),
            sequence: self.sequence,
            maps: (0..).zip(&self.areas).map(head).collect(),
        }
    }
}
