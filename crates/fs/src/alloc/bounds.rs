//! The longest run that each group may have, so that a search passes over the groups that have no run long enough
//! without a look at each.
//!
//! A bound may be too large, never too small. So it is raised after blocks came back, and lowered only by the holder of
//! the group's lock, who looked at all of its runs; or to what the group's own counts say, which are read under the
//! tree's lock and change before the bound is raised.

use parking_lot::Mutex;
use space::Longest;
use std::ops::Range;

/// Bounds of all groups, for each class of searches that there is on a volume.
pub(super) struct Bounds<const CLASSES: usize>([Option<Mutex<Longest>>; CLASSES]);

impl<const CLASSES: usize> Bounds<CLASSES> {
    /// As the groups are when only their counts of blocks are known; without the classes that are not `used`.
    pub(super) fn new(counts: &[u32], used: impl Fn(usize) -> bool) -> Self {
        let tree = |class| used(class).then(|| Mutex::new(Longest::from(counts.to_vec())));
        Self(std::array::from_fn(tree))
    }

    /// The first group of a range that may have a run of `least` units.
    pub(super) fn next(&self, class: usize, range: Range<u32>, least: u32) -> Option<u32> {
        self.of(class)?.lock().next_in(range, least)
    }

    /// No run of a group is longer.
    pub(super) fn bound(&self, class: usize, group: u32) -> u32 {
        self.of(class).map_or(0, |tree| tree.lock().bound(group))
    }

    /// A group was passed over for what its own counts say: the bound becomes that, so that it is not met again.
    pub(super) fn pass_over(&self, class: usize, group: u32, most: impl FnOnce() -> u32) {
        let Some(tree) = self.of(class) else { return };
        let mut tree = tree.lock();
        let most = most();
        if most < tree.bound(group) {
            tree.set(group, most);
        }
    }

    /// All runs of a group were looked at, by the holder of its lock, and this is the longest.
    pub(super) fn lower(&self, class: usize, group: u32, longest: u32) {
        if let Some(tree) = self.of(class) {
            tree.lock().set(group, longest);
        }
    }

    /// Blocks of a group came back, or other ones are set aside for metadata; the group's own counts say so already.
    pub(super) fn raise(&self, group: u32) {
        self.0.iter().flatten().for_each(|tree| tree.lock().raise(group, u32::MAX));
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
        bounds.pass_over(1, 3, || 20);
        assert_eq!((bounds.next(1, 0..4, 3), bounds.bound(1, 3)), (Some(2), 9));
        bounds.pass_over(1, 2, || 0);
        assert_eq!(bounds.next(1, 0..3, 3), None);
        bounds.raise(0);
        assert_eq!((bounds.next(1, 0..4, 100), bounds.next(1, 1..4, 3)), (Some(0), Some(3)));
    }
}
