//! The options of a check, the receiver of its progress, and the reason why there may be nothing to check.

use crate::problem::Limits;
use crate::problem_settings::ProblemSettings;
use crate::report::exit;
use crate::scan::GAP;
use crate::table::Phase;

/// The options of a check.
#[derive(Debug, Clone)]
pub struct Options {
    /// The block of the superblock to use instead of the primary, in blocks of `block_size`.
    pub superblock: Option<u64>,
    /// Bytes in a block, where `superblock` is set; else every size is tried.
    pub block_size: Option<u32>,
    /// Threads that read and check; at least 1.
    pub threads: usize,
    /// Largest gap between two reads, in bytes, that is read through and discarded to save a seek.
    pub gap: u64,
    /// Segments of a scan, each with a saved block map, so that the owners of a multiply-claimed block are found by
    /// reading only parts of it again; at least 1. `None` for as many as the machine's memory allows, up to 32.
    pub scan_segments: Option<u32>,
    /// The limits on the number of problems that are recorded.
    pub limits: Limits,
    /// The scope of the repair; read by [`repair`](crate::repair()) alone.
    pub repair: Repair,
    /// Whether [`Repair::All`] creates an empty inode table where one cannot be found, although its files are lost.
    pub empty_tables: bool,
    /// Whether [`Repair::All`] clones the blocks that files share on purpose under the feature `shared_blocks`.
    pub unshare_blocks: bool,
    /// The time that is written into repaired structures, in seconds since 1970; `None` for the system's time.
    pub now: Option<u64>,
    /// The settings for single problems; read by [`repair`](crate::repair()) alone.
    pub problem_settings: ProblemSettings,
}

/// The scope of a repair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Repair {
    /// Nothing.
    #[default]
    No,
    /// Repairs that cannot lose user data (`-p`); any other problem stops the repair before anything is changed. One
    /// exception: a native volume whose newest superblock is destroyed, which in general cannot be distinguished from
    /// one torn by a power loss, is rolled back by one generation.
    Safe,
    /// Everything (`-y`).
    All,
}

impl Default for Options {
    /// The defaults; as many threads as the machine runs at once, up to 8.
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get().min(8));
        Self {
            superblock: None,
            block_size: None,
            threads,
            gap: GAP,
            scan_segments: None,
            limits: Limits::default(),
            repair: Repair::No,
            empty_tables: false,
            unshare_blocks: false,
            now: None,
            problem_settings: ProblemSettings::default(),
        }
    }
}

/// Receives the progress of a check.
pub trait Progress: Sync {
    /// A phase begins.
    fn phase(&self, _phase: Phase) {}

    /// `done` bytes of about `total` were read and checked. Called from several threads.
    fn advanced(&self, _done: u64, _total: u64) {}

    /// Whether to end the check early; called often.
    fn cancelled(&self) -> bool {
        false
    }
}

/// Ignores the progress.
impl Progress for () {}

/// The reason why nothing can be checked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{sentence}")]
pub struct Refusal {
    /// One sentence for the user, without the device's name.
    pub sentence: String,
    /// The exit status, see [`crate::report::exit`].
    pub exit: u8,
}

impl Refusal {
    pub(crate) fn new(sentence: impl Into<String>) -> Self {
        Self { sentence: sentence.into(), exit: exit::OPERATIONAL }
    }

    /// The refusal for a check that was cancelled before the volume was identified.
    pub(crate) fn cancelled() -> Self {
        Self { exit: exit::CANCELLED, ..Self::new("the check was cancelled; nothing was found and nothing changed") }
    }

    /// Whether the check was cancelled.
    #[must_use]
    pub const fn is_cancelled(&self) -> bool {
        self.exit & exit::CANCELLED != 0
    }
}
