//! Damage on request: for every problem that the checker knows a way to write it into a clean volume, and the
//! corruptions of the ffsck paper's Table II.
//!
//! It knows the bytes (`format`) and a device, and nothing of the checker: what it writes is what the format calls
//! wrong, and whether that is found is for others to check. Everything else stays valid: a structure that is changed
//! gets the checksum it should have, unless the checksum is what is damaged.
//!
//! | module | damages |
//! | --- | --- |
//! | `volume`, `recipe`, `error` | nothing: finds and writes structures; what a kind of damage is, and why it may not fit |
//! | `superblock`, `journal` | superblock, descriptors, journal, orphans |
//! | `inodes`, `maps`, `attributes` | inodes, block maps, extended attributes |
//! | `directories`, `trees` | directories, their entries, hash trees, links |
//! | `bitmaps` | bitmaps and counts |
//! | `space_maps` | space maps, where there are no block bitmaps |
//! | `table2` | what the paper's Table II lists |
//! | `structures`, `mutate` | any field of any structure, by chance, with checksums put right |
//! | `fields` | one field of one structure of each kind, all of them in turn |
//! | `native` | the way to the structures of a native volume |
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
    /// The damage that this problem of the checker's table describes; e2fsck's number, or from 0x0E0000 on Extant's.
    Problem(u32),
    /// A row of the paper's Table II, by its place in [`TABLE2`].
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

/// Problems that bytes alone do not make, and why.
pub const NOT_MADE: &[(u32, &str)] = &[
    (0x01_0039, "the device has to fail as the block is read"),
    (0x02_0020, "the device has to fail as the block is read"),
    (0x0E_0000, "the device has to fail as the block is read"),
    (0x0E_0005, "it is found as the journal is replayed, and there has to be a log"),
    (0x0E_0006, "it counts other problems, of which there have to be more than are listed"),
    (0x0E_0010, "the volume has no structures of that format"),
    (0x0E_0013, "the volume has no structures of that format"),
    (0x0E_0020, "the volume has no structures of that format"),
    (0x04_0006, "it takes a directory with more than 65 000 subdirectories"),
    (0x04_0007, "it takes a directory with more than 65 000 subdirectories"),
];

impl Kind {
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

/// Writes damage of one kind into the volume on `device`, and says which structures were changed. The same volume and
/// seed cause the same damage, but for dates; where a kind has a choice, the seed chooses.
///
/// # Errors
/// [`Error::Unfit`] where the volume lacks what the kind takes, [`Error::Unknown`] for an unknown kind, and what
/// the device or the volume's superblock say.
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
                assert!(seen.insert(number), "{number:#08x} stands twice");
                assert!(!NOT_MADE.iter().any(|(n, _)| *n == number), "{number:#08x} is made after all");
            }
        }
        assert!(Kind::named("inode.size").is_some());
        assert_eq!(Kind::named("nothing"), None);
    }
}
