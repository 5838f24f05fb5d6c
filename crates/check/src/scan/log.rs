//! The scan log: the parts read in each segment, so that a segment can be read once more.
//!
//! A multiply-claimed block was first claimed in one segment and again later. [`Claims`] records the later claims and
//! the segment of the first, and only the segments of first claims are read again. A segment ends where no thread
//! claims, so each claim belongs to exactly one.

use crate::claims::Claims;
use crate::memory;
use crate::scan::found::Node;
use format::InodeNo;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::ops::Range;

/// Default number of segments of a pass.
const SEGMENTS: u32 = 32;
/// Divisor of the machine's available memory: saved block maps may use this fraction.
const MEMORY_SHARE: u64 = 64;
/// Maximum size of all saved block maps in bytes, where no option sets the number of segments.
const MOST_BYTES: u64 = 32 << 20;
/// Minimum size of a segment in bytes.
pub(crate) const SEGMENT_BYTES: u64 = 4 << 20;

/// A part of the scan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Segment {
    /// The volume's own metadata, claimed before anything is read.
    Metadata,
    /// Round 0 over these bytes of the device.
    Tables(Range<u64>),
    /// Tree blocks and other blocks of regions read in a separate pass after round 0.
    Aside,
    /// The planned reads of a later round.
    Planned(usize),
    /// The tree nodes that a later round read in this byte range of the device.
    Nodes(usize, Range<u64>),
    /// Clusters that leaves share, under bigalloc.
    Edges,
}

/// The planned reads of a round.
#[derive(Debug, Default)]
pub(crate) struct Planned {
    /// The nodes that it read, in disk order.
    pub(crate) nodes: Vec<Node>,
    /// Other references to nodes that were claimed before, which it did not follow.
    pub(crate) repeated: Vec<Node>,
    /// Its other claims: first cluster, number of clusters, and inode.
    pub(crate) others: Vec<(u64, u32, InodeNo)>,
}

/// All segments so far.
pub(crate) struct ScanLog {
    /// The number of segments a pass is divided into.
    wanted: u32,
    /// Maximum size of all saved block maps in bytes.
    budget: u64,
    /// For each saved block map, the parts read since the previous one.
    segments: Mutex<Vec<Vec<Segment>>>,
    pub(crate) rounds: Mutex<Vec<Planned>>,
    pub(crate) edges: Mutex<Vec<(InodeNo, u64)>>,
}

impl ScanLog {
    /// An empty log. `segments` is the number of segments of a pass; `None` limits the saved block maps by the
    /// machine's memory.
    pub(crate) fn new(segments: Option<u32>) -> Self {
        let budget = match segments {
            Some(_) => u64::MAX,
            None => memory::available().map_or(MOST_BYTES, |bytes| (bytes / MEMORY_SHARE).min(MOST_BYTES)),
        };
        Self {
            wanted: segments.unwrap_or(SEGMENTS).max(1),
            budget,
            segments: Mutex::default(),
            rounds: Mutex::default(),
            edges: Mutex::default(),
        }
    }

    /// The minimum size of a segment, in a pass of `pass` bytes.
    pub(crate) fn segment_bytes(&self, pass: u64) -> u64 {
        (pass / u64::from(self.wanted)).max(SEGMENT_BYTES)
    }

    /// Ends a segment, after it was read and all its claims were made.
    pub(crate) fn end(&self, claims: &Claims, segment: Segment) {
        let mut segments = self.segments.lock();
        if segments.is_empty() {
            segments.push(Vec::new());
        }
        if let Some(last) = segments.last_mut() {
            last.push(segment);
        }
        // the first one distinguishes the volume's own blocks from others, and is always needed
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
