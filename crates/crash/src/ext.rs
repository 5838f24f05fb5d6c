//! The file system of this repository as a [`System`]: a small volume, mounted in one of its modes, without a thread of
//! its own, at a time that the explorer gives.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use blockdev::{BlockDevice, MemoryDevice};
use check::{Options as CheckOptions, Repair};
use format::superblock::{DiskSuperblock, OFFSET, State as VolumeState};
use fs::mkfs::{Kind, MkfsOptions};
use fs::{Clock, Consistency, DataMode, InodeNo, OpenOptions, Timestamp, Volume, WriteOptions};
use rustix::io::Errno;

use crate::model::State;
use crate::op::{FallocateHow, Op, RenameHow, pattern};
use crate::promise::{Promise, Recovery};
use crate::read;
use crate::system::{Refused, Session, System};

/// When everything begins, in seconds since 1970.
const START: i64 = 1_700_000_000;
/// Between two looks at the clock while time passes.
const TICK: Duration = Duration::from_millis(500);

/// A volume of this file system in one mode.
#[derive(Debug, Clone)]
pub struct Ext {
    promise: &'static Promise,
    /// The format of the volumes.
    pub kind: Kind,
    /// Bytes in a block.
    pub block_size: u32,
    /// Length of a volume in bytes.
    pub len: u64,
}

impl Ext {
    /// Volumes of `kind` in the mode of that name, 4 MiB of blocks of 1 KiB in two groups; `None` where there is no such
    /// mode. A journal is made where the mode needs one.
    #[must_use]
    pub fn new(mode: &str, kind: Kind) -> Option<Self> {
        Some(Self { promise: Promise::of(mode)?, kind, block_size: 1024, len: 4 << 20 })
    }

    fn consistency(&self) -> (Consistency, DataMode) {
        match self.promise.mode {
            "none" => (Consistency::None, DataMode::Ordered),
            "dirty-bit" => (Consistency::DirtyBit, DataMode::Ordered),
            "journal-data" => (Consistency::Journal, DataMode::Journal),
            "journal-writeback" => (Consistency::Journal, DataMode::Writeback),
            _ => (Consistency::Journal, DataMode::Ordered),
        }
    }

    fn journaled(&self) -> bool {
        self.promise.recovery == Recovery::Mount
    }

    fn open(&self, device: Arc<dyn BlockDevice>) -> Result<Mounted, fs::Error> {
        let time = Arc::new(AtomicI64::new(0));
        let (consistency, data) = self.consistency();
        let write = WriteOptions {
            consistency: Some(consistency),
            data,
            clock: clock(time.clone()),
            seed: Some(1),
            ..WriteOptions::default()
        };
        let options = OpenOptions { cache_bytes: 1 << 20, write: Some(write), ..OpenOptions::default() };
        Ok(Mounted { volume: Volume::open(device, &options)?, time, open: HashMap::new() })
    }
}

/// A clock that stands where `millis` since the start says.
fn clock(millis: Arc<AtomicI64>) -> Clock {
    Arc::new(move || {
        let millis = millis.load(Ordering::Relaxed);
        Timestamp { seconds: START + millis / 1000, nanos: (millis % 1000) as u32 * 1_000_000 }
    })
}

impl System for Ext {
    fn arguments(&self) -> String {
        let format = match self.kind {
            Kind::Ext2 => "ext2",
            Kind::Ext3 => "ext3",
            Kind::Ext4 => "ext4",
        };
        format!("--mode {} --format {format}", self.promise.mode)
    }

    /// The superblock is 1 KiB and has one checksum: no ext file system survives half of it without its copies, and a
    /// mount does not look for them.
    fn whole(&self) -> Range<u64> {
        if self.journaled() { OFFSET..OFFSET + DiskSuperblock::SIZE as u64 } else { 0..0 }
    }

    fn promise(&self) -> &'static Promise {
        self.promise
    }

    fn block_size(&self) -> u64 {
        u64::from(self.block_size)
    }

    fn format(&self) -> Result<Arc<dyn BlockDevice>, Refused> {
        let device = MemoryDevice::zeroed(self.len).map_err(|e| e.to_string())?;
        let mut options = MkfsOptions::new(self.kind);
        options.block_size = Some(self.block_size);
        // two groups, so that there is a copy of the superblock
        options.blocks_per_group = u32::try_from(self.len / 2 / self.block_size()).ok();
        options.inodes = Some(96);
        options.uuid = [7; 16];
        options.hash_seed = [9; 16];
        options.time = Timestamp { seconds: START, nanos: 0 };
        if self.journaled() {
            options.journal_mib = Some(1);
        } else if self.kind != Kind::Ext2 {
            options.features.add("^has_journal").map_err(|e| e.to_string())?;
        }
        fs::mkfs::make(&device, &options).map_err(|e| e.to_string())?;
        Ok(Arc::new(device))
    }

    fn mount(&self, device: Arc<dyn BlockDevice>) -> Result<Box<dyn Session>, Refused> {
        Ok(Box::new(self.open(device).map_err(|e| e.to_string())?))
    }

    fn recover(&self, device: Arc<dyn BlockDevice>) -> Result<bool, Refused> {
        if self.journaled() {
            let mounted = self.open(device).map_err(|e| format!("mounting: {e}"))?;
            mounted.volume.unmount().map_err(|e| format!("unmounting: {e}"))?;
            return Ok(false);
        }
        if self.promise.recovery == Recovery::CheckUnlessClean && is_clean(&*device) {
            return Ok(true);
        }
        let options = CheckOptions { repair: Repair::All, now: Some(START as u64), ..check_options() };
        let report = check::repair("volume", &device, &options, &(), None).map_err(|e| e.to_string())?;
        if report.exit > 1 {
            let left = report.problems.iter().find(|problem| !problem.fixed).map_or("", |problem| &problem.text);
            return Err(format!("the repair ends with status {}: {left}", report.exit));
        }
        Ok(false)
    }

    fn problems(&self, device: &dyn BlockDevice) -> Result<Vec<String>, Refused> {
        let report = check::check("volume", device, &check_options(), &()).map_err(|e| e.to_string())?;
        let texts = report.problems.into_iter().map(|problem| problem.text);
        Ok(if report.clean { Vec::new() } else { texts.collect() })
    }

    fn observe(&self, device: Arc<dyn BlockDevice>) -> Result<State, Refused> {
        read::tree(device)
    }
}

fn check_options() -> CheckOptions {
    CheckOptions { threads: 1, ..CheckOptions::default() }
}

/// Whether the volume says of itself that it is sound. One without a superblock says nothing.
fn is_clean(device: &dyn BlockDevice) -> bool {
    let mut bytes = [0; DiskSuperblock::SIZE];
    let parsed = device.read(OFFSET, &mut bytes).ok().and_then(|()| format::superblock::Superblock::parse(&bytes).ok());
    parsed.is_some_and(|sb| {
        let state = VolumeState::from_bits_retain(sb.disk.s_state.get());
        state.contains(VolumeState::VALID) && !state.contains(VolumeState::ERROR)
    })
}

/// A mounted volume and its open files.
struct Mounted {
    volume: Volume,
    /// Milliseconds since the start.
    time: Arc<AtomicI64>,
    open: HashMap<String, InodeNo>,
}
