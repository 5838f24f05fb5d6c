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
    /// Most bytes of metadata in the cache, and half as many again of bitmaps where the volume is written. 32 MiB
    /// unless set; a sixteenth of the memory that the process may use where that is less.
    pub cache_bytes: usize,
    /// Use the copy of the superblock in this block (counted in the volume's own block size), and the copies of the
    /// group descriptors that belong to it. The primary unless set.
    pub superblock: Option<FsBlock>,
    /// The block size in bytes by which `superblock` is counted. Unless set, each size is tried, smallest first.
    pub block_size: Option<u32>,
    /// The device with the volume's journal, where that is not inside the volume. Needed only if it was not unmounted.
    pub external_journal: Option<Arc<dyn BlockDevice>>,
    /// Show the volume without what its journal holds, even where it was not unmounted.
    pub ignore_journal: bool,
    /// Open a native volume as the snapshot of this name has it, for reading only.
    pub snapshot: Option<Vec<u8>>,
    /// Open the volume for writing as well. For reading only unless set.
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

/// The source of the time of day.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Options for writing to a volume.
#[derive(Clone)]
pub struct WriteOptions {
    /// The mode by which it stays consistent. Unless set, the best the volume has: snapshots on a native one, its
    /// journal, else the dirty bit.
    pub consistency: Option<Consistency>,
    /// The handling of file data.
    pub data: DataMode,
    /// Whether `data` was asked for: a volume that cannot do that is not opened ([`crate::Error::Impossible`]).
    pub data_insisted: bool,
    /// The longest time that a change may stay in memory only, as far as [`Volume::tick`](crate::Volume::tick) is
    /// called. 5 s unless set.
    pub commit: Duration,
    /// Most bytes of changed metadata a generation holds; a journal may allow less, and where there is little memory it
    /// is a share of that. 64 MiB unless set.
    pub dirty_bytes: usize,
    /// Most bytes of file content that wait for their place. 1 GiB unless set: what is removed again before it had to
    /// leave memory costs no write. Where it is less: a sixteenth of the memory that the process may use, but at least
    /// 64 MiB as long as no control group limits it. A volume with multiple mount protection takes no more than 64 MiB,
    /// so that it can say in time that it is in use.
    pub delayed_bytes: usize,
    /// The time of day; the system's unless set.
    pub clock: Clock,
    /// The seed of the numbers that distinguish one use of an inode from the next; from the time of day unless set.
    pub seed: Option<u64>,
    /// Whether all users may allocate from the root reserve. Not unless set.
    pub superuser: bool,
    /// The placement of new blocks. A volume with metadata regions has its own rule, whatever this says.
    pub placement: Placement,
    /// The mount point of the volume, for its superblock; at most 63 bytes of it are stored.
    pub mounted_at: Option<Vec<u8>>,
    /// The defect that is injected, for a test that it is caught.
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
    /// The defect that a test asked for; none without the feature `mutants`.
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
