//! A volume that is open for writing: how it was asked to be, and what it keeps beside the cache.

use crate::Timestamp;
use crate::alloc::Space;
use crate::gate::{Before, Gate};
use crate::mode::{Consistency, DataMode, Placement};
use crate::new_inodes::NewInodes;
use crate::orphan_list::OrphanList;
use crate::wakeup::Wakeup;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use store::Mutant;
use store::engine::Limits;

/// Where the time of day comes from.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// How to write to a volume.
#[derive(Clone)]
pub struct WriteOptions {
    /// How it stays sound. Unless set, the best the volume has: snapshots on a native one, its journal, else the dirty bit.
    pub consistency: Option<Consistency>,
    /// What is done about file data.
    pub data: DataMode,
    /// What `data` says was asked for: a volume that cannot do that is not opened ([`crate::Error::Impossible`]).
    pub data_insisted: bool,
    /// How long a change may stay in memory only, as far as [`Volume::tick`](crate::Volume::tick) is called. 5 s unless set.
    pub commit: Duration,
    /// Most bytes of changed metadata a generation holds; a journal may allow less, and where there is little memory it is
    /// a share of that. 64 MiB unless set.
    pub dirty_bytes: usize,
    /// Most bytes of file content that wait for their place. 1 GiB unless set: what is removed again before it had to leave
    /// memory costs no write. Where it is less: a sixteenth of the memory that the process may use, but at least 64 MiB as
    /// long as no control group limits it. A volume with multiple mount protection takes no more than 64 MiB, so that it can
    /// say in time that it is in use.
    pub delayed_bytes: usize,
    /// The time of day; the system's unless set.
    pub clock: Clock,
    /// Where the numbers begin that tell one use of an inode from the next; from the time of day unless set.
    pub seed: Option<u64>,
    /// Whoever works on the volume may use the blocks that are kept for the superuser. Not unless set.
    pub superuser: bool,
    /// Where new blocks go. A volume with metadata regions has its own rule, whatever this says.
    pub placement: Placement,
    /// Where the volume is mounted, for its superblock; at most 63 bytes of it are kept.
    pub mounted_at: Option<Vec<u8>>,
    /// What is done wrong, for a test that it is caught.
    #[doc(hidden)]
    pub mutant: Mutant,
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
            mutant: Mutant::Identity,
        }
    }
}

impl WriteOptions {
    /// Where numbers begin that should not repeat.
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

/// What a volume that is open for writing keeps beside the cache.
pub(crate) struct Writing {
    pub(crate) options: WriteOptions,
    pub(crate) consistency: Consistency,
    pub(crate) space: Arc<Space>,
    /// Blocks taken by the volume's own structures, once somebody asked.
    pub(crate) overhead: OnceLock<u64>,
    /// Inodes without a name that somebody holds, and those whose truncation has not finished.
    pub(crate) orphans: OrphanList,
    /// Where transactions are possible.
    pub(crate) gate: Option<Gate<Before>>,
    /// Where the engine does not write unchanged blocks.
    pub(crate) new_inodes: Option<NewInodes>,
    /// Wakes the thread in the background.
    pub(crate) wakeup: Arc<Wakeup>,
    /// Most bytes of content that may wait for their place as long as memory is what it is.
    pub(crate) most_delayed: AtomicUsize,
}

impl Writing {
    pub(crate) fn new(options: WriteOptions, consistency: Consistency, limits: &Limits, space: Arc<Space>) -> Self {
        Self {
            most_delayed: AtomicUsize::new(options.delayed_bytes),
            options,
            consistency,
            space,
            overhead: OnceLock::new(),
            orphans: OrphanList::default(),
            gate: limits.can_discard.then(Gate::new),
            new_inodes: limits.elides_unchanged.then(NewInodes::default),
            wakeup: Arc::default(),
        }
    }

    /// Most bytes of content that may wait for their place.
    pub(crate) fn most_delayed(&self) -> usize {
        self.most_delayed.load(Ordering::Relaxed)
    }
}
