//! An upper bound on the longest run of each group, so that a search skips groups without a long enough run and without
//! examining them.
//!
//! A bound may be too large, never too small. So it is raised after blocks were freed, and lowered only by the holder
//! of the group's lock after an examination of all its runs; or to the limit of the group's own counts, which are read
//! under the tree's lock and change before the bound is raised.

use parking_lot::Mutex;
use space::Longest;
use std::ops::Range;

/// Bounds of all groups, for each class of searches used on a volume.
pub(super) struct Bounds<const CLASSES: usize>([Option<Mutex<Longest>>; CLASSES]);

impl<const CLASSES: usize> Bounds<CLASSES> {
    /// Initializes the bounds from the groups' counts of blocks, without the classes that are not `used`.
    pub(super) fn new(counts: &[u32], used: impl Fn(usize) -> bool) -> Self {
        let tree = |class| used(class).then(|| Mutex::new(Longest::from(counts.to_vec())));
        Self(std::array::from_fn(tree))
    }

    /// The first group of a range that may have a run of `least` units.
    pub(super) fn next(&self, class: usize, range: Range<u32>, least: u32) -> Option<u32> {
        self.of(class)?.lock().next_in(range, least)
    }

    /// The upper bound on the runs of a group.
    pub(super) fn bound(&self, class: usize, group: u32) -> u32 {
        self.of(class).map_or(0, |tree| tree.lock().bound(group))
    }

    /// Lowers the bound of a group that was skipped because of its own counts to these, so that it is not visited
    /// again.
    pub(super) fn lower_skipped(&self, class: usize, group: u32, most: impl FnOnce() -> u32) {
        let Some(tree) = self.of(class) else { return };
        let mut tree = tree.lock();
        let most = most();
        if most < tree.bound(group) {
            tree.set(group, most);
        }
    }

    /// Lowers the bound to the longest run of a group, all of whose runs were examined by the holder of its lock.
    pub(super) fn lower(&self, class: usize, group: u32, longest: u32) {
        if let Some(tree) = self.of(class) {
            tree.lock().set(group, longest);
        }
    }

    /// Raises the bound after blocks of a group were freed or its metadata chunks changed; the group's own counts are
    /// updated before.
    pub(super) fn raise(&self, group: u32) {
        self.0.iter().flatten().for_each(|tree| tree.lock().raise(group, u32::MAX));
    }

    /// Memory on the heap in bytes.
    pub(super) fn memory(&self) -> usize {
        self.0.iter().flatten().map(|tree| tree.lock().memory()).sum()
    }

    fn of(&self, class: usize) -> Option<&Mutex<Longest>> {
        self.0.get(class)?.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_with_space_is_never_missed() {
        let bounds = Bounds::<2>::new(&[0, 7, 3, 9], |class| class == 1);
        assert_eq!((bounds.next(0, 0..4, 1), bounds.bound(0, 1)), (None, 0));
        assert_eq!([1, 4, 8, 10].map(|least| bounds.next(1, 0..4, least)), [Some(1), Some(1), Some(3), None]);
        bounds.lower(1, 1, 2);
        bounds.lower_skipped(1, 3, || 20);
        assert_eq!((bounds.next(1, 0..4, 3), bounds.bound(1, 3)), (Some(2), 9));
        bounds.lower_skipped(1, 2, || 0);
        assert_eq!(bounds.next(1, 0..3, 3), None);
        bounds.raise(0);
        assert_eq!((bounds.next(1, 0..4, 100), bounds.next(1, 1..4, 3)), (Some(0), Some(3)));
    }
}
