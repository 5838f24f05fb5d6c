//! Options for opening a volume, and for writing to it.

use crate::Timestamp;
use crate::mode::{Consistency, DataMode, Placement};
use crate::mutant::Injected;
use blockdev::BlockDevice;
use format::FsBlock;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Options for opening a volume.
#[derive(Clone)]
pub struct OpenOptions {
    /// Maximum number of bytes of metadata in the cache; bitmaps may use an additional half of that if the volume is
    /// written. 32 MiB by default; a sixteenth of the memory available to the process if that is less.
    pub cache_bytes: usize,
    /// Use the superblock copy in this block (in units of the volume's own block size), and its copies of the group
    /// descriptors. The primary by default.
    pub superblock: Option<FsBlock>,
    /// The block size in bytes for `superblock`. By default each size is tried, smallest first.
    pub block_size: Option<u32>,
    /// The device with the volume's journal, if that is external. Needed only if the volume was not unmounted.
    pub external_journal: Option<Arc<dyn BlockDevice>>,
    /// Ignore the content of the journal, even if the volume was not unmounted.
    pub ignore_journal: bool,
    /// Open a native volume in the version of the snapshot with this name, for reading only.
    pub snapshot: Option<Vec<u8>>,
    /// Open the volume for writing as well. By default for reading only.
    pub write: Option<WriteOptions>,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            cache_bytes: 32 << 20,
            superblock: None,
            block_size: None,
            external_journal: None,
            ignore_journal: false,
            snapshot: None,
            write: None,
        }
    }
}

/// The source of the current time.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Options for writing to a volume.
#[derive(Clone)]
pub struct WriteOptions {
    /// The consistency mode. By default the best of the volume: snapshots on a native one, its journal, else the dirty
    /// bit.
    pub consistency: Option<Consistency>,
    /// The handling of file data.
    pub data: DataMode,
    /// Whether `data` was requested explicitly: a volume without that mode is not opened
    /// ([`crate::Error::Impossible`]).
    pub data_insisted: bool,
    /// The maximum time that a change may stay in memory only, provided that [`Volume::tick`](crate::Volume::tick) is
    /// called. 5 s by default.
    pub commit: Duration,
    /// Maximum number of bytes of changed metadata in a generation; a journal may allow less, and with little memory it
    /// is a share of that. 64 MiB by default.
    pub dirty_bytes: usize,
    /// Maximum number of bytes of delayed data. 1 GiB by default: content removed before it is written out costs no
    /// write. If it is less: a sixteenth of the memory available to the process, but at least 64 MiB unless a control
    /// group limits it. A volume with multiple mount protection uses at most 64 MiB, so that its heartbeat is written
    /// in time.
    pub delayed_bytes: usize,
    /// The source of the current time; the system's by default.
    pub clock: Clock,
    /// The seed of the generation numbers of inodes; from the current time by default.
    pub seed: Option<u64>,
    /// Whether all users may allocate from the root reserve. `false` by default.
    pub superuser: bool,
    /// The placement of new blocks. Ignored on a volume with metadata regions, which has its own rule.
    pub placement: Placement,
    /// The mount point of the volume, for its superblock; at most 63 bytes are stored.
    pub mounted_at: Option<Vec<u8>>,
    /// The injected defect, for a test that it is detected.
    #[cfg(feature = "mutants")]
    pub mutant: crate::Mutant,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self {
            consistency: None,
            data: DataMode::default(),
            data_insisted: false,
            commit: Duration::from_secs(5),
            dirty_bytes: 64 << 20,
            delayed_bytes: 1 << 30,
            clock: Arc::new(system_time),
            seed: None,
            superuser: false,
            placement: Placement::Usual,
            mounted_at: None,
            #[cfg(feature = "mutants")]
            mutant: crate::Mutant::Identity,
        }
    }
}

impl WriteOptions {
    /// The injected defect; none without the feature `mutants`.
    pub(crate) fn mutant(&self) -> Injected {
        #[cfg(feature = "mutants")]
        return Injected::new(self.mutant);
        #[cfg(not(feature = "mutants"))]
        Injected::default()
    }

    /// The seed of numbers that should not repeat.
    pub(crate) fn seed(&self) -> u64 {
        let now = (self.clock)();
        self.seed.unwrap_or((now.seconds as u64) << 30 ^ u64::from(now.nanos))
    }
}

pub(crate) fn system_time() -> Timestamp {
    // a clock before 1970 counts as 1970
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp { seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX), nanos: since.subsec_nanos() }
}
