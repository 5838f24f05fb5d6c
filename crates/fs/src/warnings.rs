//! Warnings about a volume that could still be opened.

use crate::FsBlock;
use std::fmt;

/// A warning about a volume, for the user. None of them prevents reading.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {
    /// A volume that was not unmounted is read as if its journal had been replayed.
    JournalReplayed,
    /// The journal of a volume that was not unmounted was replayed on the device, as it is open for writing.
    JournalWrittenHome,
    /// The journal of a volume that was not unmounted was ignored as requested: files may be stale or damaged.
    JournalIgnored,
    /// The journal is damaged: its content after the damage is ignored. Contains descriptions of the damage.
    JournalDamaged(Vec<String>),
    /// The journal ends in fast commits, which are not replayed: the newest changes are missing.
    FastCommits {
        /// Number of fast commits.
        commits: u32,
        /// Changes in them: names created or removed, ranges of files, inodes.
        changes: u32,
    },
    /// A volume that was not unmounted is read as if repaired by its list of linked writes.
    ListShown,
    /// A volume that was not unmounted was repaired by its list of linked writes, as it is open for writing.
    ListRepaired {
        /// Files and directories in the list.
        inodes: usize,
        /// New files among them that had not reached the device.
        lost: usize,
    },
    /// A volume that was not unmounted cannot be repaired by its list of linked writes. Contains the reason.
    ListNeedsCheck(&'static str),
    /// A volume without a journal was not unmounted: metadata may contradict itself.
    NotUnmounted,
    /// The kernel or a checker found errors on the volume.
    HasErrors,
    /// Another host may have the volume mounted: its data may be inconsistent.
    InUse {
        /// The host in the multiple-mount-protection block.
        host: String,
    },
    /// The device ends before the volume does: the part beyond cannot be read.
    Truncated {
        /// Length of the device in bytes.
        device: u64,
        /// Length of the volume in bytes.
        volume: u64,
    },
    /// A native volume may lack its newest changes. Contains the reason.
    MayLack(&'static str),
    /// The volume was opened with a copy of the superblock, so its counts may be outdated.
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
                write!(f, "the volume may be mounted by {host}: its data may be inconsistent")
            }
            Warning::MayLack(why) => write!(f, "the newest changes of the volume may be missing: {why}"),
            Warning::Truncated { device, volume } => write!(
                f,
                "the device ends at byte {device}, the volume at byte {volume}: the part beyond cannot be read"
            ),
            Warning::BackupSuperblock(block) => {
                write!(f, "opened with the copy of the superblock in block {block}: counts may be old")
            }
        }
    }
}
