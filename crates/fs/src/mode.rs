//! The modes of writing a volume, and their names: the single source for parsing, printing and listing them.

use std::str::FromStr;

/// The error for a text that is not one of the names; contains the valid ones.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("use {}", one_of(.0))]
pub struct UnknownName(pub(crate) Vec<&'static str>);

/// `a, b or c`.
fn one_of(names: &[&str]) -> String {
    match names {
        [others @ .., last] if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        names => names.concat(),
    }
}

/// The names of an enumeration: all of its values, and conversion to and from text.
macro_rules! names {
    ($type:ident { $($value:ident = $name:literal),+ $(,)? }) => {
        impl $type {
            /// All values.
            pub const ALL: &[Self] = &[$(Self::$value),+];

            /// Its name in options.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$value => $name),+ }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }

        impl std::str::FromStr for $type {
            type Err = $crate::UnknownName;

            fn from_str(text: &str) -> Result<Self, $crate::UnknownName> {
                let found = Self::ALL.iter().find(|one| one.name() == text).copied();
                found.ok_or_else(|| $crate::UnknownName(Self::ALL.iter().map(|one| one.name()).collect()))
            }
        }
    };
}
pub(crate) use names;

/// The mode that determines the state after a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Consistency {
    /// None: a crash requires a full check.
    None,
    /// A full check only after a crash while metadata was being written.
    DirtyBit,
    /// A list on an ext2 volume describes the changes in progress: after a crash these are repaired.
    Linked,
    /// The journal of ext3 and ext4: it is replayed after a crash.
    Journal,
    /// Meta-data snapshotting on a native volume: the device contains a whole generation at every instant, so nothing
    /// is necessary after a crash.
    Snapshot,
}

names!(Consistency { None = "none", DirtyBit = "dirty-bit", Linked = "linked", Journal = "journal", Snapshot = "snapshot" });

/// The log of a mode, written on the volume so that only logged changes need repair after a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Log {
    /// None.
    Nothing,
    /// The journal of the volume.
    Journal,
    /// The list of linked writes.
    List,
}

/// The handling of file data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum DataMode {
    /// Data is on the device before the metadata that refers to it.
    #[default]
    Ordered,
    /// No order between data and metadata.
    Writeback,
    /// Data is written through the journal as well.
    Journal,
    /// On a native volume with snapshots: overwritten data goes to new blocks, so that data after a crash is that of
    /// the newest whole generation, like all else.
    NewBlocks,
}

impl DataMode {
    /// Whether content is never overwritten in place.
    pub(crate) const fn copies_content(self) -> bool {
        matches!(self, Self::NewBlocks)
    }
}

names!(DataMode { Ordered = "ordered", Writeback = "writeback", Journal = "journal", NewBlocks = "cow" });

/// The placement of new blocks, on a volume whose format does not determine it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Placement {
    /// Near related blocks.
    #[default]
    Usual,
    /// Metadata at the front of each group, in about 4 % of it, and content behind that, as long as there is space for
    /// both: a check then seeks less. A file's first indirect block stays with its content.
    Hint,
}

names!(Placement { Usual = "usual", Hint = "hint" });

/// Consistency and data mode together: the guarantees after a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mode {
    /// A single-word name.
    pub name: &'static str,
    /// The consistency mode.
    pub consistency: Consistency,
    /// The handling of file data.
    pub data: DataMode,
}

/// All modes.
pub const MODES: [Mode; 8] = [
    Mode { name: "none", consistency: Consistency::None, data: DataMode::Ordered },
    Mode { name: "dirty-bit", consistency: Consistency::DirtyBit, data: DataMode::Ordered },
    Mode { name: "linked", consistency: Consistency::Linked, data: DataMode::Ordered },
    Mode { name: "journal", consistency: Consistency::Journal, data: DataMode::Ordered },
    Mode { name: "journal-data", consistency: Consistency::Journal, data: DataMode::Journal },
    Mode { name: "journal-writeback", consistency: Consistency::Journal, data: DataMode::Writeback },
    Mode { name: "snapshot", consistency: Consistency::Snapshot, data: DataMode::Ordered },
    Mode { name: "snapshot-cow", consistency: Consistency::Snapshot, data: DataMode::NewBlocks },
];

impl Mode {
    /// Its options for `extant mount -o`.
    #[must_use]
    pub fn options(&self) -> String {
        match self.data {
            DataMode::Ordered => format!("consistency={}", self.consistency),
            data => format!("consistency={},data={data}", self.consistency),
        }
    }
}

impl FromStr for Mode {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let found = MODES.iter().find(|mode| mode.name == text).copied();
        found.ok_or_else(|| UnknownName(MODES.map(|mode| mode.name).to_vec()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back() {
        assert!(Consistency::ALL.iter().all(|one| one.to_string().parse() == Ok(*one)));
        assert!(DataMode::ALL.iter().all(|one| one.to_string().parse() == Ok(*one)));
        assert!(Placement::ALL.iter().all(|one| one.to_string().parse() == Ok(*one)));
        assert!(MODES.iter().all(|mode| mode.name.parse() == Ok(*mode)));
        let why = "soft-updates".parse::<Consistency>().expect_err("there is none yet").to_string();
        assert_eq!(why, "use none, dirty-bit, linked, journal or snapshot");
    }

    #[test]
    fn each_consistency_is_a_mode_and_no_mode_stands_twice() {
        for (number, mode) in MODES.iter().enumerate() {
            assert!(
                MODES[..number].iter().all(|other| (other.consistency, other.data) != (mode.consistency, mode.data))
            );
        }
        let plain = |one: &&Consistency| MODES.iter().any(|m| (m.consistency, m.data) == (**one, DataMode::Ordered));
        assert_eq!(Consistency::ALL.iter().filter(plain).count(), Consistency::ALL.len());
    }
}
