//! A volume that is open for writing: how it was asked to be, and what it keeps beside the cache.

use crate::{InodeNo, Timestamp, Volume};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How a volume stays sound through a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Consistency {
    /// Not at all: a crash is followed by a full check.
    None,
    /// A full check only after a crash while metadata was on its way.
    DirtyBit,
    /// The journal of ext3 and ext4: a crash is followed by its replay.
    Journal,
}

/// What a journal does about file data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum DataMode {
    /// Data is on the device before the metadata that leads to it.
    #[default]
    Ordered,
    /// No order between data and metadata.
    Writeback,
    /// Data goes through the journal as well.
    Journal,
}

/// Where the time of day comes from.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// How to write to a volume.
#[derive(Clone)]
pub struct WriteOptions {
    /// How it stays sound. Unless set, the best the volume has: its journal, else the dirty bit.
    pub consistency: Option<Consistency>,
    /// What the journal does about data.
    pub data: DataMode,
    /// How long a change may stay in memory only, as far as [`Volume::tick`] is called. 5 s unless set.
    pub commit: Duration,
    /// Most bytes of changed metadata a generation holds (a journal may allow less), and most bytes of file content that
    /// wait for their place. 64 MiB unless set.
    pub dirty_bytes: usize,
    /// The time of day; the system's unless set.
    pub clock: Clock,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self {
            consistency: None,
            data: DataMode::default(),
            commit: Duration::from_secs(5),
            dirty_bytes: 64 << 20,
            clock: Arc::new(system_time),
        }
    }
}

fn system_time() -> Timestamp {
    // a clock before 1970 counts as 1970
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp { seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX), nanos: since.subsec_nanos() }
}

/// What a volume that is open for writing keeps beside the cache.
pub(crate) struct Writing {
    pub(crate) options: WriteOptions,
    /// Inodes without a name that somebody holds.
    pub(crate) orphans: Mutex<BTreeSet<InodeNo>>,
}

impl Volume {
    /// The time of day.
    pub(crate) fn now(&self) -> Timestamp {
        self.writing.as_ref().map_or_else(system_time, |w| (w.options.clock)())
    }

    /// Whether an inode has no name any more, but is still in use.
    pub(crate) fn is_orphan(&self, number: InodeNo) -> bool {
        let orphans = |w: &Writing| w.orphans.lock().unwrap_or_else(PoisonError::into_inner).contains(&number);
        self.writing.as_ref().is_some_and(orphans)
    }
}
