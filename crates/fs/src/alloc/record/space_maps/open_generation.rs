//! An estimate of the records that the open generation writes when it closes.

use format::space_map::ring::MOST_BLOCKS;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Maximum number of metablockgroups changed by a generation whose records exceed its share of the ring: each of them
/// may have to be folded. A generation that changes more closes first.
const MOST_FOLDED: usize = 64;

/// The changes of the open generation. Records without space in a close are replaced by folds, which write a tree for
/// each metablockgroup; so if there are many, the generation closes before its records exceed their share.
pub(super) struct OpenGeneration {
    /// The generation that last changed each metablockgroup.
    changed: Box<[AtomicU64]>,
    /// Number of metablockgroups changed in the open generation.
    maps: AtomicUsize,
    /// Approximate number of records for its changes: those that cancel each other are counted.
    records: AtomicUsize,
    /// Maximum number of records in a close.
    share: usize,
}

impl OpenGeneration {
    /// No changes, for a volume with this number of metablockgroups.
    pub(super) fn new(maps: usize, share: usize) -> Self {
        let changed = (0..maps).map(|_| AtomicU64::new(0)).collect();
        Self { changed, maps: AtomicUsize::new(0), records: AtomicUsize::new(0), share }
    }

    /// Records a change in a group of this metablockgroup.
    pub(super) fn add_map(&self, map: u32, generation: u64) {
        let Some(changed) = self.changed.get(map as usize) else { return };
        if changed.swap(generation, Ordering::Relaxed) != generation {
            self.maps.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Records that a run of this many blocks is allocated or freed.
    pub(super) fn add_run(&self, blocks: u32) {
        self.records.fetch_add(1 + (blocks / MOST_BLOCKS) as usize, Ordering::Relaxed);
    }

    /// Whether the generation should close before further changes.
    pub(super) fn is_full(&self) -> bool {
        self.maps.load(Ordering::Relaxed) > MOST_FOLDED && self.records.load(Ordering::Relaxed) > self.share
    }

    /// Resets the counts at a close, while no operation runs.
    pub(super) fn close(&self) {
        self.maps.store(0, Ordering::Relaxed);
        self.records.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_metablockgroups_with_more_records_than_fit_are_full() {
        let open = OpenGeneration::new(MOST_FOLDED + 10, 100);
        let change = |maps: usize, generation| {
            (0..maps as u32).for_each(|map| {
                open.add_map(map, generation);
                open.add_run(1);
            });
        };
        // few with any number of records, and many with up to the maximum
        (0..10).for_each(|_| change(MOST_FOLDED, 1));
        assert!(!open.is_full());
        open.close();
        change(MOST_FOLDED + 1, 2);
        assert!(!open.is_full());
        // a long run is several records
        open.add_run(MOST_BLOCKS * 40);
        assert!(open.is_full());
        open.close();
        assert!(!open.is_full());
        change(MOST_FOLDED + 10, 3);
        change(MOST_FOLDED + 10, 3);
        assert!(open.is_full());
    }
}
