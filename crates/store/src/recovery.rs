//! The journal of a volume that was not unmounted: replayed in memory, for a look at the volume that needs no write, or
//! written home.
//!
//! [`recover`] walks the log once, in order, and records for each block of the volume where in the journal its newest
//! copy lies. [`Replayed`] is the volume read through these copies.
//!
//! 1. A transaction counts when its commit block is there and every checksum the log carries for it matches.
//! 2. Only copies of transactions that count are recorded; a later one takes the place of an earlier one.
//! 3. A transaction's revoke records remove the copies of that transaction and of all before it. Nothing else is needed
//!    for them, because the log is walked in the order of its sequence numbers.
//! 4. The walk visits each block of the log at most once, so it ends on any bytes.
//! 5. Memory grows with the blocks to replay, never with their contents.
//!
//! The kernel refuses a journal that is damaged before its end. Here everything before the damage is shown, and
//! [`Recovered::damage`] says what was found; the caller decides. [`Recovery::apply`], which writes the copies home for
//! good, refuses as the kernel does.
//!
//! [`Recovery`] is what opening a volume asks of every mechanism; the journal's, and that of [`linked`].

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

/// The recovery that a volume needs after a crash, by the mechanism that it was written with: a replay, or a repair.
pub trait Recovery {
    /// There is nothing to do.
    fn is_empty(&self) -> bool;

    /// The volume as it will be when it is recovered. Refuses writes.
    fn overlay(&self, volume: Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice>;

    /// Recovers the volume for good. Cut anywhere, it is done again from the start and comes to the same.
    ///
    /// # Errors
    /// Those of the devices; where the volume has to be checked instead, before anything is written.
    fn apply(&self, volume: &dyn BlockDevice) -> Result<()>;
}

/// The location of the newest copy of a block.
#[derive(Debug, Clone, Copy)]
struct LoggedCopy {
    /// Its first byte on the journal's device.
    at: u64,
    /// The block begins with the journal's magic number, which the log holds as zero.
    escaped: bool,
}

/// The content of a journal that its volume does not show yet.
pub struct Recovered {
    journal: JournalLocation,
    copies: Arc<BTreeMap<FsBlock, LoggedCopy>>,
    /// Transactions that count.
    pub transactions: u32,
    /// The sequence number after the last of them; with nothing in the log, the one of its superblock.
    pub next_sequence: u32,
    /// The damage found in the log. Empty where it ends as a crash leaves it.
    pub damage: Vec<Damage>,
    /// Fast commits made after the last transaction. Their changes are not shown.
    pub fast_commits: u32,
    /// Changes in these: names made or removed, ranges of files, inodes.
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

/// Something wrong with a log. Journal blocks are counted from the journal's start.
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
    /// A revoke block cannot be read; blocks it names may be shown with content that was to be forgotten.
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
                write!(f, "transaction {sequence}: block {home} lies beyond the volume's end")
            }
            Self::Revoke { sequence, block } => {
                write!(f, "transaction {sequence}: journal block {block} is not a valid list of revoked blocks")
            }
            Self::TooLong { sequence } => write!(f, "transaction {sequence} is longer than the log"),
        }
    }
}
