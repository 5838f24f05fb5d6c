//! Damage for tests: a function for every problem of the checker that creates it on a clean volume, and the corruptions
//! of the ffsck paper's Table II.
//!
//! It depends on `format` and a device, not on the checker: it writes what is wrong by the format, and tests check
//! whether that is found. Everything else remains valid: a changed structure gets its correct checksum, unless the
//! checksum is damaged.
//!
//! | module | damages |
//! | --- | --- |
//! | `volume`, `recipe`, `error` | nothing: find and write structures; types of a kind of damage and of errors |
//! | `superblock`, `journal` | superblock, descriptors, journal, orphans |
//! | `inodes`, `maps`, `attributes` | inodes, block maps, extended attributes |
//! | `directories`, `trees` | directories, their entries, hash trees, links |
//! | `bitmaps` | bitmaps and counts |
//! | `space_maps` | space maps, where there are no block bitmaps |
//! | `table2` | the corruptions of the paper's Table II |
//! | `structures`, `mutate` | random fields of random structures, with corrected checksums |
//! | `fields` | every field of one structure of each kind |
//! | `native` | nothing: the structures of a native volume |
#![forbid(unsafe_code)]

mod attributes;
mod bitmaps;
mod directories;
mod error;
mod fields;
mod inodes;
mod journal;
mod maps;
mod mutate;
mod native;
mod recipe;
mod space_maps;
mod structures;
mod superblock;
mod table2;
mod trees;
mod volume;

use blockdev::BlockDevice;
use error::Result;
use recipe::Recipe;
use volume::Volume;

/// The damage to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The damage of a problem in the checker's table: e2fsck's number, or from 0x0E0000 on Extant's own.
    Problem(u32),
    /// A row of the paper's Table II, by its index in [`TABLE2`].
    Table2(usize),
}

pub use error::Error;
pub use fields::Field;
pub use recipe::Corruption;
pub use structures::Structures;
pub use table2::TABLE2;

const PROBLEMS: [&[(u32, Recipe)]; 9] = [
    superblock::RECIPES,
    journal::RECIPES,
    inodes::RECIPES,
    maps::RECIPES,
    attributes::RECIPES,
    directories::RECIPES,
    trees::RECIPES,
    bitmaps::RECIPES,
    space_maps::RECIPES,
];

/// Problems that cannot be created by writing bytes, and why.
pub const NOT_MADE: &[(u32, &str)] = &[
    (0x01_0039, "the device has to fail when the block is read"),
    (0x02_0020, "the device has to fail when the block is read"),
    (0x0E_0000, "the device has to fail when the block is read"),
    (0x0E_0005, "it is found during a replay, which needs a log"),
    (0x0E_0006, "it counts unlisted problems, which needs more problems than are listed"),
    (0x0E_0010, "the volume has no structures of that format"),
    (0x0E_0013, "the volume has no structures of that format"),
    (0x0E_001D, "it is found during a repair, which needs a full volume"),
    (0x0E_002B, "it takes inline data and a value in another inode"),
    (0x0E_0025, "it is found during a repair, which needs a full volume"),
    (0x0E_001C, "it takes two inode tables that match a bitmap equally well"),
    (0x0E_0020, "the volume has no structures of that format"),
    (0x0E_0021, "the volume has no structures of that format"),
    (0x0E_0022, "the volume has no structures of that format"),
    (0x0E_0023, "the volume has no structures of that format"),
    (0x0E_0024, "the volume has no structures of that format"),
    (0x04_0006, "it takes a directory with more than 65 000 subdirectories"),
    (0x04_0007, "it takes a directory with more than 65 000 subdirectories"),
];

/// Problems where the checker may correct or replace the damaged structure before it looks for them, and the problem
/// that it then reports instead.
const INSTEAD: &[(u32, u32)] = &[
    // other fields state the right number, except with bigalloc
    (0x00_0008, 0x0E_001B),
    // the descriptors make no sense where a bitmap or an inode table is among the blocks that are now reserved
    (0x00_002E, 0x00_0045),
];

impl Kind {
    /// The number of the problem that the checker may report instead of this one.
    #[must_use]
    pub fn reported_instead(self) -> Option<u32> {
        match self {
            Kind::Problem(number) => INSTEAD.iter().find(|(n, _)| *n == number).map(|(_, instead)| *instead),
            Kind::Table2(_) => None,
        }
    }

    /// All kinds that can be written, those of Table II first.
    pub fn all() -> impl Iterator<Item = Kind> {
        let rows = PROBLEMS.iter().flat_map(|rows| rows.iter()).map(|(number, _)| Kind::Problem(*number));
        (0..TABLE2.len()).map(Kind::Table2).chain(rows)
    }

    /// The row of Table II with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Kind> {
        TABLE2.iter().position(|row| row.name == name).map(Kind::Table2)
    }

    fn recipe(self) -> Option<Recipe> {
        match self {
            Kind::Table2(n) => TABLE2.get(n).map(|row| row.recipe),
            Kind::Problem(number) => {
                PROBLEMS.iter().flat_map(|rows| rows.iter()).find(|(n, _)| *n == number).map(|(_, recipe)| *recipe)
            }
        }
    }
}

/// Writes damage of one kind to the volume on `device`, and returns descriptions of the changed structures. The same
/// volume and seed cause the same damage, except for dates; random choices depend on the seed.
///
/// # Errors
/// [`Error::Unfit`] where the volume lacks a structure that the kind needs, [`Error::Unknown`] for an unknown kind, and
/// errors of the device or in the volume's superblock.
pub fn damage(device: &dyn BlockDevice, kind: Kind, seed: u64) -> Result<Vec<String>> {
    let recipe = kind.recipe().ok_or(Error::Unknown)?;
    let mut volume = Volume::open(device, seed)?;
    recipe(&mut volume)?;
    device.flush()?;
    Ok(volume.changed())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_kind_is_there_once() {
        let mut seen = HashSet::new();
        for kind in Kind::all() {
            assert!(kind.recipe().is_some());
            if let Kind::Problem(number) = kind {
                assert!(seen.insert(number), "{number:#08x} is listed twice");
                assert!(!NOT_MADE.iter().any(|(n, _)| *n == number), "{number:#08x} has a function");
            }
        }
        for (number, instead) in INSTEAD {
            let recipe = |number: u32| Kind::Problem(number).recipe();
            assert!(recipe(*number).is_some() && recipe(*instead).is_some(), "{number:#08x}");
            assert_eq!(Kind::Problem(*number).reported_instead(), Some(*instead));
        }
        assert!(Kind::named("inode.size").is_some());
        assert_eq!(Kind::named("nothing"), None);
    }
}
