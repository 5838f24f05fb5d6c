//! The order of extents: those that remain where some contradict each other. The check reports by this rule, and the
//! repair removes and shortens by it.

use format::extent::Extent;

/// Number of extents after one that are compared with it.
const NEAR: usize = 8;

/// The environment of extents that are compared with each other.
pub(crate) struct Order<F> {
    /// The file block after them, where a following node begins with it.
    pub(crate) follower: Option<u64>,
    /// Whether an extent extends beyond its node or the end of the file.
    pub(crate) is_overrun: F,
    /// The number of blocks of a cluster in which they have their positions.
    pub(crate) ratio: u64,
}

impl<F: Fn(&Extent) -> bool> Order<F> {
    /// The valid length of each extent: 0 where it is removed, less than its own where it is shortened. What remains
    /// ascends and does not overlap. Of two that contradict each other, the one that fits its neighbours less is
    /// removed: one wrong start or length must not cost all extents after it. One that is merely too long is shortened,
    /// and one that is unwritten, without data, is never preferred to a written one.
    pub(crate) fn lengths(&self, extents: &[Extent]) -> Vec<u32> {
        let mut valid: Vec<(usize, Extent)> = Vec::with_capacity(extents.len());
        for (n, this) in extents.iter().enumerate() {
            let before = valid.iter().rev().map(|(_, before)| before).find(|before| !yields(before, this));
            let next = before.map_or(0, end);
            let parts = self.ratio > 1 && before.is_some_and(|before| parts_cluster(before, this, self.ratio));
            if this.logical.get() < next || parts {
                continue;
            }
            let len = self.length(this, extents.get(n + 1..).unwrap_or_default(), next);
            if len > 0 {
                cut_unwritten(&mut valid, this);
                valid.push((n, Extent { len, ..*this }));
            }
        }
        let mut lengths = vec![0; extents.len()];
        for (n, extent) in valid {
            if let Some(len) = lengths.get_mut(n) {
                *len = extent.len;
            }
        }
        lengths
    }

    /// The valid length of an extent that begins at file block `next` or later, by the extents after it.
    fn length(&self, this: &Extent, after: &[Extent], next: u64) -> u32 {
        if !self.is_contradicted(this, after, next) {
            return this.len;
        }
        let logical = this.logical.get();
        let overlapped = starts(after).find(|from| (next..end(this)).contains(from)).unwrap_or(logical);
        // with another start it would fit only if it were moved into a hole of the size of the overlap
        if overlapped > logical && end(this) - overlapped > logical - next {
            return u32::try_from(overlapped - logical).unwrap_or(this.len);
        }
        let written: Vec<Extent> = after.iter().filter(|extent| !extent.unwritten).take(NEAR).copied().collect();
        let has_data = !this.unwritten && !self.is_contradicted(this, &written, next);
        if has_data { this.len } else { 0 }
    }

    /// Whether an extent is wrong by those after it.
    fn is_contradicted(&self, this: &Extent, after: &[Extent], next: u64) -> bool {
        let beyond = after.get(1).map(|beyond| beyond.logical.get()).or(self.follower);
        let contradicted = after.first().is_some_and(|follower| {
            let from = follower.logical.get();
            let overlaps = end(this) > from && from >= next;
            overlaps
                && match beyond {
                    // both extents after it agree with each other but not with it
                    Some(beyond) if end(this) > beyond => end(follower) <= beyond,
                    // and here only the one after it fits the next
                    Some(beyond) => from >= this.logical.get() && end(follower) == beyond && end(this) != beyond,
                    // of two the first remains, as in e2fsck
                    None => false,
                }
        });
        // beyond its node, it is out of the order of those after it
        contradicted || (self.is_overrun)(this) && starts(after).any(|from| (next..end(this)).contains(&from))
    }
}

/// The file block after an extent.
fn end(extent: &Extent) -> u64 {
    extent.logical.get() + u64::from(extent.len)
}

/// The first file blocks of the extents next after one.
fn starts(after: &[Extent]) -> impl Iterator<Item = u64> {
    after.iter().take(NEAR).map(|extent| extent.logical.get())
}

/// Whether an extent without data overlaps a later one with data.
fn yields(before: &Extent, this: &Extent) -> bool {
    before.unwritten && !this.unwritten && end(before) > this.logical.get()
}

/// Shortens and removes unwritten extents that overlap a written one after them.
fn cut_unwritten(valid: &mut Vec<(usize, Extent)>, this: &Extent) {
    while let Some((_, before)) = valid.last_mut().filter(|(_, before)| yields(before, this)) {
        // less than its length
        before.len = this.logical.get().saturating_sub(before.logical.get()) as u32;
        if before.len == 0 {
            valid.pop();
        }
    }
}

/// Whether the file cluster in which an extent begins is already mapped to another volume cluster by the previous
/// extent.
fn parts_cluster(before: &Extent, extent: &Extent, ratio: u64) -> bool {
    let last = u64::from(before.len).saturating_sub(1);
    let (logical, physical) = (before.logical.get() + last, before.physical.get() + last);
    logical / ratio == extent.logical.get() / ratio && physical / ratio != extent.physical.get() / ratio
}

#[cfg(test)]
mod tests {
    use super::*;
    use format::{FileBlock, FsBlock};

    fn ordered(extents: &[Extent], overrun: &[u64], follower: Option<u64>) -> Vec<(u64, u32)> {
        let is_overrun = |extent: &Extent| overrun.contains(&extent.logical.get());
        let lengths = Order { follower, is_overrun, ratio: 1 }.lengths(extents);
        let all = extents.iter().zip(lengths).filter(|(_, len)| *len > 0);
        all.map(|(extent, len)| (extent.logical.get(), len)).collect()
    }

    fn retained(list: &[(u64, u32)]) -> Vec<(u64, u32)> {
        let physical = FsBlock(1000);
        let extent = |&(logical, len)| Extent { logical: FileBlock(logical), physical, len, unwritten: false };
        ordered(&list.iter().map(extent).collect::<Vec<_>>(), &[], None)
    }

    #[test]
    fn a_stray_extent_does_not_cost_the_one_that_contains_it() {
        for stray in [(0, 1), (84, 2), (329, 1)] {
            assert_eq!(retained(&[(0, 330), stray]), [(0, 330)]);
            assert_eq!(retained(&[(0, 330), stray, (330, 5)]), [(0, 330), (330, 5)]);
        }
    }

    #[test]
    fn an_extent_beyond_its_node_does_not_cost_the_next() {
        let extent =
            |logical, len| Extent { logical: FileBlock(logical), physical: FsBlock(1000), len, unwritten: false };
        let extents = [extent(160, 1), extent(164, 3), extent(166, 1), extent(168, 1)];
        assert_eq!(ordered(&extents, &[164], None), [(160, 1), (166, 1), (168, 1)]);
        let extents = [extent(160, 1), extent(161, 6), extent(166, 1), extent(168, 1)];
        assert_eq!(ordered(&extents, &[161], None), [(160, 1), (161, 5), (166, 1), (168, 1)]);
        let crossing = [160, 214, 116, 168, 170, 212, 216];
        let extents: Vec<Extent> = crossing.into_iter().map(|logical| extent(logical, 1)).collect();
        let starts: Vec<u64> = ordered(&extents, &[214], None).into_iter().map(|(logical, _)| logical).collect();
        assert_eq!(starts, [160, 168, 170, 212, 216]);
        // the node after a leaf is as good as an extent of it
        assert_eq!(ordered(&[extent(0, 9), extent(4, 2)], &[], Some(6)), [(0, 4), (4, 2)]);
    }

    #[test]
    fn data_is_preferred_to_what_is_unwritten() {
        let extent =
            |logical, len, unwritten| Extent { logical: FileBlock(logical), physical: FsBlock(1000), len, unwritten };
        for (extents, expected) in [
            (vec![extent(0, 330, true), extent(84, 2, false)], vec![(0, 84), (84, 2)]),
            (vec![extent(0, 330, true), extent(0, 2, false), extent(330, 5, true)], vec![(0, 2), (330, 5)]),
            (vec![extent(500, 4, false), extent(4, 8, true), extent(12, 8, true)], vec![(500, 4)]),
            (vec![extent(0, 330, false), extent(84, 2, true)], vec![(0, 330)]),
            (
                vec![extent(500, 4, false), extent(4, 8, true), extent(12, 8, false), extent(20, 8, false)],
                vec![(4, 8), (12, 8), (20, 8)],
            ),
        ] {
            assert_eq!(ordered(&extents, &[], None), expected, "{extents:?}");
        }
    }

    #[test]
    fn one_wrong_extent_costs_itself_alone() {
        let valid = [(0, 4), (4, 1), (5, 5), (10, 10), (20, 2), (40, 3)];
        assert_eq!(retained(&valid), valid);
        for n in 0..valid.len() {
            let mut without = valid.to_vec();
            without.remove(n);
            for (start, len) in [(262_150, valid[n].1), (valid[n].0, 3000)] {
                let mut wrong = valid;
                wrong[n] = (start, len);
                let expected = match valid.len() - n {
                    // what is only too long is shortened
                    3.. if start == valid[n].0 => valid.to_vec(),
                    // nothing contradicts the last extent, and a single other one does not decide about a start
                    1 => wrong.to_vec(),
                    2 => wrong[..=n].to_vec(),
                    _ => without.clone(),
                };
                assert_eq!(retained(&wrong), expected, "{n}: {start}, {len}");
            }
            if n > 0 {
                let mut wrong = valid;
                wrong[n].0 = valid[n - 1].0;
                assert_eq!(retained(&wrong).len(), valid.len() - 1, "{n}: too low");
            }
        }
    }
}
