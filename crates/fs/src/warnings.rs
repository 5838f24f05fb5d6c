//! Warnings about a volume that could be opened all the same.

use crate::FsBlock;
use std::fmt;

/// A warning about a volume, for the user. None of them stands in the way of reading.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {
    /// It was not unmounted, and what its journal holds is shown as if it had been replayed.
    JournalReplayed,
    /// It was not unmounted, and its journal was replayed for good, because it is to be written.
    JournalWrittenHome,
    /// It was not unmounted, and its journal was left aside as asked: files may be stale or damaged.
    JournalIgnored,
    /// The journal is damaged: what follows the damage is not shown. What was found, in words.
    JournalDamaged(Vec<String>),
    /// The journal ends in fast commits, which are not replayed: the newest changes are not shown.
    FastCommits {
        /// Commits.
        commits: u32,
        /// Changes in them: names made or removed, ranges of files, inodes.
        changes: u32,
    },
    /// It was not unmounted, and is shown as if it had been repaired by its list of linked writes.
    ListShown,
    /// It was not unmounted, and was repaired by its list of linked writes, because it is to be written.
    ListRepaired {
        /// Files and directories that the list named.
        inodes: usize,
        /// New files among them that had not reached the device.
        lost: usize,
    },
    /// It was not unmounted, and its list of linked writes does not say how to repair it. The text says why.
    ListNeedsCheck(&'static str),
    /// It has no journal and was not unmounted: metadata may contradict itself.
    NotUnmounted,
    /// The kernel or a checker met errors on it.
    HasErrors,
    /// Another host may have it mounted: what is shown may be inconsistent.
    InUse {
        /// The host that says so.
        host: String,
    },
    /// The device ends before the volume does: what lies beyond cannot be read.
    Truncated {
        /// Length of the device in bytes.
        device: u64,
        /// Length of the volume in bytes.
        volume: u64,
    },
    /// A native volume may not be shown as it was last. The text says why.
    MayLack(&'static str),
    /// It was opened with a copy of the superblock, so its counts may be old.
    BackupSuperblock(FsBlock),
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Warning::JournalReplayed => f.write_str(
                "the volume was not unmounted: its journal was replayed in memory, nothing is written to the device",
            ),
            Warning::JournalWrittenHome => f.write_str("the volume was not unmounted: its journal was replayed"),
            Warning::JournalIgnored => f.write_str(
                "the volume was not unmounted and its journal was not replayed: files may be stale or damaged",
            ),
            Warning::JournalDamaged(what) => write!(f, "the journal is damaged ({})", what.join("; ")),
            Warning::FastCommits { commits, changes } => write!(
                f,
                "the journal ends in {commits} fast commits, which are not replayed: the newest {changes} changes are not shown"
            ),
            Warning::ListShown => f.write_str(
                "the volume was not unmounted: it is shown as its list of linked writes repairs it, nothing is written to the device",
            ),
            Warning::ListRepaired { inodes, lost } => write!(
                f,
                "the volume was not unmounted and was repaired by its list of linked writes: {inodes} inodes compared, \
                 {lost} new files had not reached the device"
            ),
            Warning::ListNeedsCheck(why) => write!(f, "the volume was not unmounted and needs a full check: {why}"),
            Warning::NotUnmounted => f.write_str("the volume has no journal and was not unmounted: a check is advised"),
            Warning::HasErrors => f.write_str("the volume is marked as having errors: a check is advised"),
            Warning::InUse { host } => {
                write!(f, "the volume may be mounted by {host}: what is shown may be inconsistent")
            }
            Warning::MayLack(why) => write!(f, "the newest changes of the volume may be missing: {why}"),
            Warning::Truncated { device, volume } => write!(
                f,
                "the device ends at byte {device}, the volume at byte {volume}: what lies beyond cannot be read"
            ),
            Warning::BackupSuperblock(block) => {
                write!(f, "opened with the copy of the superblock in block {block}: counts may be old")
            }
        }
    }
}
