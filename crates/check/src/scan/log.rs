//! The log of the scan: which segment of it read what, so that a segment can be read once more.
//!
//! A block that was claimed twice was first claimed in one segment and again by others. [`Claims`] records both, and
//! only the segments of first claims are read again. A segment ends where no thread claims, so each claim belongs to
//! exactly one.

use crate::claims::Claims;
use crate::scan::found::Node;
use format::InodeNo;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::ops::Range;

/// Segments that a pass is divided into where no option says how many.
const SEGMENTS: u32 = 32;
/// The share of the machine's memory that saved block maps may take.
const MEMORY_SHARE: u64 = 64;
/// Saved block maps take no more than this where no option says how many there are to be.
const MOST_BYTES: u64 = 32 << 20;
/// Bytes of a pass that are worth a segment of their own.
pub(crate) const SEGMENT_BYTES: u64 = 4 << 20;

/// A part of the scan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Segment {
    /// The volume's own metadata, claimed before anything is read.
    Metadata,
    /// Round 0 over these bytes of the device.
    Tables(Range<u64>),
    /// Blocks of regions that were not read in round 0.
    Aside,
    /// The planned reads of a later round.
    Planned(usize),
    /// The tree nodes that a later round read in these bytes of the device.
    Nodes(usize, Range<u64>),
    /// Clusters that leaves share, under bigalloc.
    Edges,
}

/// The planned reads of a round.
#[derive(Debug, Default)]
pub(crate) struct Planned {
    /// The nodes that it read, in disk order.
    pub(crate) nodes: Vec<Node>,
    /// Clusters of anything else that it claimed: the first, how many, and whose.
    pub(crate) others: Vec<(u64, u32, InodeNo)>,
}

/// All segments so far.
pub(crate) struct ScanLog {
    /// The number of segments a pass is divided into.
    wanted: u32,
    /// Bytes that saved block maps may take.
    budget: u64,
    /// Of each saved block map, what was read since the one before.
    segments: Mutex<Vec<Vec<Segment>>>,
    pub(crate) rounds: Mutex<Vec<Planned>>,
    pub(crate) edges: Mutex<Vec<(InodeNo, u64)>>,
}

impl ScanLog {
    /// Nothing was read. `segments` is how many a pass is divided into; else that follows from the machine's
    /// memory.
    pub(crate) fn new(segments: Option<u32>) -> Self {
        let budget = match segments {
            Some(_) => u64::MAX,
            None => available_memory().map_or(MOST_BYTES, |bytes| (bytes / MEMORY_SHARE).min(MOST_BYTES)),
        };
        Self {
            wanted: segments.unwrap_or(SEGMENTS).max(1),
            budget,
            segments: Mutex::default(),
            rounds: Mutex::default(),
            edges: Mutex::default(),
        }
    }

    /// The least bytes of a segment, in a pass of so many.
    pub(crate) fn segment_bytes(&self, pass: u64) -> u64 {
        (pass / u64::from(self.wanted)).max(SEGMENT_BYTES)
    }

    /// A segment was read and all its claims are made.
    pub(crate) fn end(&self, claims: &Claims, segment: Segment) {
        let mut segments = self.segments.lock();
        if segments.is_empty() {
            segments.push(Vec::new());
        }
        if let Some(last) = segments.last_mut() {
            last.push(segment);
        }
        // the first one distinguishes the volume's own blocks from others, and is always wanted
        if segments.len() == 1 || claims.saved_bytes() < self.budget {
            claims.end_segment();
            segments.push(Vec::new());
        }
    }

    /// The parts that were read in these segments, as [`Claims::conflicting_segments`] counts them.
    pub(crate) fn read_in(&self, which: &BTreeSet<u32>) -> Vec<Segment> {
        let segments = self.segments.lock();
        which.iter().filter_map(|n| segments.get(*n as usize)).flatten().cloned().collect()
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        self.segments.lock().clear();
        self.rounds.lock().clear();
        self.edges.lock().clear();
    }
}

/// The memory that the system has available now, in bytes, where it reports that.
fn available_memory() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find(|line| line.starts_with("MemAvailable:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    kib.checked_mul(1024)
}
