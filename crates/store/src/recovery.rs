//! The journal of a volume that was not unmounted: replayed in memory, for reading the volume without a write, or
//! written home.
//!
//! [`recover`] walks the log once, in order, and records the journal position of the newest copy of each block of the
//! volume. [`Replayed`] is the volume read through these copies.
//!
//! 1. A transaction is valid if it has a commit block and every checksum that the log contains for it matches.
//! 2. Only copies of valid transactions are recorded; a later one replaces an earlier one.
//! 3. A transaction's revoke records remove the copies of that transaction and of all before it. Nothing else is needed
//!    for them, because the log is walked in the order of its sequence numbers.
//! 4. The walk visits each block of the log at most once, so it ends on any bytes.
//! 5. Memory grows with the number of blocks to replay, not with their contents.
//!
//! The kernel refuses a journal that is damaged before its end. Here everything before the damage is shown, and
//! [`Recovered::damage`] describes the damage; the caller decides. [`Recovery::apply`], which writes the copies home
//! permanently, refuses as the kernel does.
//!
//! [`Recovery`] is the interface of every mechanism for opening a volume after a crash; the journal's, and that of
//! [`linked`].

mod apply;
mod journal;
pub mod linked;
mod replayed;
mod walk;

pub use journal::{BlockExtent, JournalLocation};
pub use replayed::Replayed;
pub use walk::recover;

use crate::Result;
use blockdev::BlockDevice;
use format::FsBlock;
use std::{collections::BTreeMap, fmt, sync::Arc};

/// The recovery that a volume needs after a crash, by the mechanism that wrote it: a replay, or a repair.
pub trait Recovery {
    /// Whether there is nothing to do.
    fn is_empty(&self) -> bool;

    /// The volume in its recovered state. Refuses writes.
    fn overlay(&self, volume: Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice>;

    /// Recovers the volume permanently. After an interruption at any point it can be repeated from the start, with the
    /// same result.
    ///
    /// # Errors
    /// Those of the devices; if the volume has to be checked instead, before anything is written.
    fn apply(&self, volume: &dyn BlockDevice) -> Result<()>;
}

/// The location of the newest copy of a block.
#[derive(Debug, Clone, Copy)]
struct LoggedCopy {
    /// Its first byte on the journal's device.
    at: u64,
    /// The block begins with the journal's magic number, which the log stores as zero.
    escaped: bool,
}

/// The content of a journal that is not in the home locations on its volume yet.
pub struct Recovered {
    journal: JournalLocation,
    copies: Arc<BTreeMap<FsBlock, LoggedCopy>>,
    /// Valid transactions.
    pub transactions: u32,
    /// The sequence number after the last of them; if the log is empty, the one of its superblock.
    pub next_sequence: u32,
    /// The damage found in the log. Empty if it ends as after a crash.
    pub damage: Vec<Damage>,
    /// Fast commits made after the last transaction. Their changes are not shown.
    pub fast_commits: u32,
    /// Changes in the fast commits: names created or removed, ranges of files, inodes.
    pub fast_commit_changes: u32,
    /// The error that made the kernel abort the journal, as a negative errno; 0 for none.
    pub errno: i32,
}

impl Recovered {
    /// The blocks that have a newer copy in the journal, ascending.
    pub fn blocks(&self) -> impl ExactSizeIterator<Item = FsBlock> {
        self.copies.keys().copied()
    }
}

/// A defect of a log. Journal blocks are counted from the journal's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Damage {
    /// A descriptor, revoke or commit block of a complete transaction does not match its checksum. The log was not
    /// followed further.
    Checksum {
        /// The transaction.
        sequence: u32,
        /// The journal's block.
        block: u32,
    },
    /// A copy does not match its checksum and was left out.
    Copy {
        /// The transaction.
        sequence: u32,
        /// The block it is a copy of.
        home: FsBlock,
    },
    /// A copy belongs to a block beyond the volume's end.
    Beyond {
        /// The transaction.
        sequence: u32,
        /// The block.
        home: FsBlock,
    },
    /// A revoke block cannot be read; blocks it lists may be shown with content that was to be discarded.
    Revoke {
        /// The transaction.
        sequence: u32,
        /// The journal's block.
        block: u32,
    },
    /// A descriptor block describes more blocks than the log has. The log was not followed further.
    TooLong {
        /// The transaction.
        sequence: u32,
    },
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Checksum { sequence, block } => {
                write!(f, "transaction {sequence}: checksum of journal block {block} does not match")
            }
            Self::Copy { sequence, home } => {
                write!(f, "transaction {sequence}: checksum of the copy of block {home} does not match")
            }
            Self::Beyond { sequence, home } => {
                write!(f, "transaction {sequence}: block {home} is beyond the end of the volume")
            }
            Self::Revoke { sequence, block } => {
                write!(f, "transaction {sequence}: journal block {block} is not a valid list of revoked blocks")
            }
            Self::TooLong { sequence } => write!(f, "transaction {sequence} is longer than the log"),
        }
    }
}
