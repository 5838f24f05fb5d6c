//! Free extents, merged and counted by size.

use serde::Serialize;
use std::ops::Range;

/// Cells of a picture: parts of the volume of equal length.
pub(super) const CELLS: usize = 128 * 32;

/// A summary of the free space of a volume.
#[derive(Debug, Serialize)]
pub(super) struct FreeExtents {
    #[serde(skip)]
    pub(super) block_size: u32,
    /// The range of blocks that can be free.
    #[serde(skip)]
    pub(super) blocks: Range<u64>,
    /// Number of free blocks.
    pub(super) free: u64,
    pub(super) extents: u64,
    /// Blocks of the smallest extent, 0 if there is none; likewise the largest.
    pub(super) smallest: u64,
    pub(super) largest: u64,
    /// Groups whose free space could not be read.
    pub(super) unknown_groups: u64,
    /// In ascending order; empty classes are omitted.
    pub(super) classes: Vec<Class>,
    /// Number of free blocks in each cell.
    #[serde(skip)]
    pub(super) cells: Vec<u64>,
    /// Counts by the binary logarithm of the length.
    #[serde(skip)]
    counts: [(u64, u64); 64],
    /// The last extent, which may continue.
    #[serde(skip)]
    open: Option<Range<u64>>,
}

/// Extents of at least `from` and less than 2 × `from` blocks.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Class {
    pub(super) from: u64,
    pub(super) extents: u64,
    pub(super) blocks: u64,
}

impl FreeExtents {
    pub(super) fn new(block_size: u32, blocks: Range<u64>) -> Self {
        Self {
            block_size,
            blocks,
            free: 0,
            extents: 0,
            smallest: 0,
            largest: 0,
            unknown_groups: 0,
            classes: Vec::new(),
            cells: vec![0; CELLS],
            counts: [(0, 0); 64],
            open: None,
        }
    }

    /// Blocks per cell; the last cell may have fewer.
    pub(super) fn cell_blocks(&self) -> u64 {
        (self.blocks.end - self.blocks.start).div_ceil(CELLS as u64).max(1)
    }

    /// Adds a run of free blocks; runs are passed in ascending order.
    pub(super) fn add(&mut self, run: Range<u64>) {
        match &mut self.open {
            Some(open) if open.end == run.start => open.end = run.end,
            open => {
                let ended = open.replace(run);
                self.count(ended);
            }
        }
    }

    /// Completes the summary after the last run.
    pub(super) fn finish(&mut self) {
        let ended = self.open.take();
        self.count(ended);
        let counts = (0u32..).zip(&self.counts).filter(|(_, (extents, _))| *extents > 0);
        self.classes = counts.map(|(power, &(extents, blocks))| Class { from: 1 << power, extents, blocks }).collect();
    }

    fn count(&mut self, extent: Option<Range<u64>>) {
        let Some(extent) = extent.filter(|extent| !extent.is_empty()) else { return };
        let length = extent.end - extent.start;
        self.free += length;
        self.smallest = if self.extents == 0 { length } else { self.smallest.min(length) };
        self.largest = self.largest.max(length);
        self.extents += 1;
        if let Some((extents, blocks)) = self.counts.get_mut(length.ilog2() as usize) {
            (*extents, *blocks) = (*extents + 1, *blocks + length);
        }
        let (base, size) = (self.blocks.start, self.cell_blocks());
        let mut at = extent.start.max(base);
        while at < extent.end {
            let cell = (at - base) / size;
            let end = (base + (cell + 1) * size).min(extent.end);
            if let Some(free) = self.cells.get_mut(cell as usize) {
                *free += end - at;
            }
            at = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_joined_and_counted() {
        let mut free = FreeExtents::new(1024, 1..8193);
        for run in [5..6, 7..10, 10..15, 100..4196, 4196..4196] {
            free.add(run);
        }
        free.finish();
        let class = |from, extents, blocks| Class { from, extents, blocks };
        assert_eq!(free.classes, [class(1, 1, 1), class(8, 1, 8), class(4096, 1, 4096)]);
        assert_eq!((free.extents, free.free, free.smallest, free.largest), (3, 4105, 1, 4096));
        assert_eq!(free.cell_blocks(), 2);
        assert_eq!(&free.cells[..8], [0, 0, 1, 2, 2, 2, 2, 0]);
        assert_eq!(free.cells.iter().sum::<u64>(), free.free);
    }

    #[test]
    fn nothing_is_free() {
        let mut free = FreeExtents::new(4096, 0..100);
        free.finish();
        assert_eq!((free.extents, free.smallest, free.classes.len()), (0, 0, 0));
    }
}
