//! The measure of what the open generation will have to say when it closes.

use format::space_map::ring::MOST_BLOCKS;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Metablockgroups that a generation may change whose records do not fit into its share of the ring: each of them may
/// have to be folded. One that changes more closes first.
const MOST_FOLDED: usize = 64;

/// The changes of the open generation. Records that a close has no space for are folded away, and for each
/// metablockgroup that takes a tree; so where there are many, the generation closes before its records exceed their
/// share.
pub(super) struct OpenGeneration {
    /// The generation that last changed each metablockgroup.
    changed: Box<[AtomicU64]>,
    /// Metablockgroups that this one changed.
    maps: AtomicUsize,
    /// The records that its changes need, about: those that cancel each other are counted.
    records: AtomicUsize,
    /// Records that a close has space for.
    share: usize,
}

impl OpenGeneration {
    /// Of a volume with so many metablockgroups.
    pub(super) fn new(maps: usize, share: usize) -> Self {
        let changed = (0..maps).map(|_| AtomicU64::new(0)).collect();
        Self { changed, maps: AtomicUsize::new(0), records: AtomicUsize::new(0), share }
    }

    /// The generation changes a group of this metablockgroup.
    pub(super) fn add_map(&self, map: u32, generation: u64) {
        let Some(changed) = self.changed.get(map as usize) else { return };
        if changed.swap(generation, Ordering::Relaxed) != generation {
            self.maps.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A run of so many blocks is allocated or freed.
    pub(super) fn add_run(&self, blocks: u32) {
        self.records.fetch_add(1 + (blocks / MOST_BLOCKS) as usize, Ordering::Relaxed);
    }

    /// Whether it should close before it changes more.
    pub(super) fn is_full(&self) -> bool {
        self.maps.load(Ordering::Relaxed) > MOST_FOLDED && self.records.load(Ordering::Relaxed) > self.share
    }

    /// It closes: no operation runs.
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
        // few, with any number of records, and many with as many as fit
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
