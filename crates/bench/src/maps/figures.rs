//! Options and results.

use super::contents::Counted;
use serde::Serialize;
use std::path::PathBuf;

/// Extant's layouts, in the order of the results.
pub(super) const LAYOUTS: [&str; 3] = [BITMAPS, FLEXIBLE, SPACE_MAPS];
/// Block bitmaps in mke2fs's default layout.
pub(super) const BITMAPS: &str = "bitmaps";
/// Block bitmaps in the layout of the space maps.
pub(super) const FLEXIBLE: &str = "bitmaps, flexible groups of 8 GiB";
/// Space maps.
pub(super) const SPACE_MAPS: &str = "space maps";

/// Options of the measurement.
#[derive(Debug, Clone)]
pub struct Options {
    /// A directory for volumes, one at a time: sparse files.
    pub dir: PathBuf,
    /// Bytes of the volumes.
    pub size: u64,
    /// Seed of the choice of files.
    pub seed: u64,
}

/// The result. In JSON each field is one of the object, under the same name.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Figures {
    /// The figures of each kind of work and layout; those of the kernel after Extant's.
    pub work: Vec<Worked>,
    /// One for each layout, those of the kernel included.
    pub free: Vec<Free>,
    /// One for each layout of Extant.
    pub mounts: Vec<Mounted>,
    /// One for each layout of Extant.
    pub aged: Vec<Aged>,
    /// Two for block bitmaps, two for space maps.
    pub memory: Vec<Memory>,
    /// The reason why figures of the kernel are missing, as a sentence; `None` (`null`) if all are present.
    pub kernel_missing: Option<String>,
}

/// Opening a large volume with many holes.
#[derive(Debug, Clone, Serialize)]
pub struct Mounted {
    /// The structures that record free space.
    pub layout: &'static str,
    /// Bytes of the volume.
    pub size: u64,
    /// The disk's time until the volume is open, in seconds.
    pub open: f64,
    /// The time until a block was also allocated, in seconds.
    pub block: f64,
    /// The time until a contiguous GiB was also allocated, in seconds.
    pub gib: f64,
    /// Requests until then.
    pub requests: u64,
}

/// The figures of one kind of work on one layout.
#[derive(Debug, Clone, Serialize)]
pub struct Worked {
    /// The name of the work.
    pub work: String,
    /// The structures that record free space.
    pub layout: &'static str,
    /// Requests for allocation metadata: block bitmaps, or table, log and trees of space maps.
    pub requests: u64,
    /// The non-contiguous requests among them.
    pub elsewhere: u64,
    /// Their ratio to those for Extant's bitmaps in mke2fs's default layout.
    pub of_bitmaps: f64,
    /// Their ratio to those for Extant's bitmaps in flexible groups as large as a metablockgroup.
    pub of_same_layout: f64,
    /// All non-contiguous requests.
    pub all_elsewhere: u64,
    /// Bytes written to the journal.
    pub journal_bytes: u64,
    /// The disk's time, in seconds; `None` (`null`) for the kernel, which does not run on the modelled disk.
    pub seconds: Option<f64>,
}

/// Free space after all rounds.
#[derive(Debug, Clone, Serialize)]
pub struct Free {
    /// The structures that record free space.
    pub layout: &'static str,
    /// The fraction of the blocks in use.
    pub fill: f64,
    /// Free extents.
    pub extents: u64,
    /// The fraction of free space in extents of a GiB and more.
    pub in_large: f64,
    /// Bytes of the largest.
    pub largest: u64,
}

/// Large files, written to an aged volume.
#[derive(Debug, Clone, Serialize)]
pub struct Aged {
    /// The structures that record free space.
    pub layout: &'static str,
    /// Bytes of the volume.
    pub size: u64,
    /// The fraction of the blocks in use before the large files, from 0 to 1.
    pub fill: f64,
    /// Large files.
    pub files: u64,
    /// Bytes of each of them.
    pub file_bytes: u64,
    /// Fragments of a large file: contiguous runs of blocks. The mean of all files.
    pub fragments: f64,
    /// Their ratio to those with bitmaps in mke2fs's default layout.
    pub of_bitmaps: f64,
}

/// Memory of the free space of a volume with all groups in memory, in bytes, without the overhead of the memory
/// allocator.
#[derive(Debug, Clone, Serialize)]
pub struct Memory {
    /// The structures that record free space.
    pub layout: &'static str,
    /// The distribution of the free space.
    pub state: &'static str,
    /// Bytes of the volume.
    pub size: u64,
    /// Groups of the volume.
    pub groups: u32,
    /// Bytes of the structures whose size depends on the layout alone.
    pub tables: u64,
    /// Bytes of the sets that the allocator changes.
    pub sets: u64,
    /// Bytes of the trees of space maps; 0 for bitmaps.
    pub trees: u64,
    /// The sum of the three, in bytes.
    pub total: u64,
    /// The ratio of the sum to that with bitmaps in the same state.
    pub of_bitmaps: f64,
}

impl Worked {
    /// Figures without ratios.
    pub(super) fn new(work: String, layout: &'static str, counted: Counted, seconds: Option<f64>) -> Self {
        let Counted { requests, elsewhere, all_elsewhere, journal_bytes } = counted;
        let (of_bitmaps, of_same_layout) = (0.0, 0.0);
        Self { work, layout, requests, elsewhere, of_bitmaps, of_same_layout, all_elsewhere, journal_bytes, seconds }
    }
}

impl Figures {
    /// Computes the ratios to bitmaps, and sorts by work.
    pub(super) fn compare(&mut self) {
        let elsewhere = |layout: &str, work: &str| {
            let same = |worked: &&Worked| worked.layout == layout && worked.work == work;
            self.work.iter().find(same).map_or(0, |worked| worked.elsewhere).max(1) as f64
        };
        let of = |worked: &Worked| [BITMAPS, FLEXIBLE].map(|layout| elsewhere(layout, &worked.work));
        let bases: Vec<[f64; 2]> = self.work.iter().map(of).collect();
        for (worked, [usual, same]) in self.work.iter_mut().zip(bases) {
            worked.of_bitmaps = worked.elsewhere as f64 / usual;
            worked.of_same_layout = worked.elsewhere as f64 / same;
        }
        self.work.sort_by_key(|worked| !worked.work.starts_with("PostMark"));
        let base = self.aged.iter().find(|aged| aged.layout == BITMAPS).map_or(1.0, |aged| aged.fragments);
        self.aged.iter_mut().for_each(|aged| aged.of_bitmaps = aged.fragments / base);
        let bases: Vec<(&'static str, u64)> =
            self.memory.iter().filter(|row| row.layout == BITMAPS).map(|row| (row.state, row.total)).collect();
        for row in &mut self.memory {
            let base = bases.iter().find(|(state, _)| *state == row.state).map_or(1, |(_, total)| *total);
            row.of_bitmaps = row.total as f64 / base.max(1) as f64;
        }
    }
}
