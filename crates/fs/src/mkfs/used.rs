//! The blocks in use, and the search for free ones.

use format::superblock::Geometry;
use std::collections::BTreeMap;
use std::ops::Range;

/// The used blocks of a volume, as runs that do not touch.
#[derive(Debug, Clone, Default)]
pub(super) struct Used {
    /// First block of a run, and its end.
    runs: BTreeMap<u64, u64>,
    end: u64,
}

impl Used {
    /// A volume of `blocks` blocks, all free.
    pub(super) fn new(blocks: u64) -> Self {
        Self { runs: BTreeMap::new(), end: blocks }
    }

    /// Marks blocks as used, which may already be used.
    pub(super) fn take(&mut self, blocks: Range<u64>) {
        if blocks.is_empty() {
            return;
        }
        let Range { mut start, mut end } = blocks;
        if let Some((&before, &until)) = self.runs.range(..=start).next_back()
            && until >= start
        {
            start = before;
            end = end.max(until);
        }
        while let Some((&next, &until)) = self.runs.range(start..=end).next() {
            end = end.max(until);
            self.runs.remove(&next);
        }
        self.runs.insert(start, end);
    }

    /// The run of used blocks that contains `block`, or the next one.
    fn from(&self, block: u64) -> Option<(u64, u64)> {
        let holding = self.runs.range(..=block).next_back().filter(|run| *run.1 > block);
        holding.or_else(|| self.runs.range(block..).next()).map(|(start, end)| (*start, *end))
    }

    /// The free runs inside `within`, in order.
    fn free(&self, within: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let end = within.end.min(self.end);
        let mut at = within.start;
        std::iter::from_fn(move || {
            while at < end {
                let (taken, until) = self.from(at).unwrap_or((end, end));
                let run = at..taken.min(end);
                at = until.max(run.end);
                if !run.is_empty() {
                    return Some(run);
                }
            }
            None
        })
    }

    /// The first `len` consecutive free blocks inside `within`, beginning at a multiple of `align`. The run may not end
    /// inside an aligned unit that is partly used.
    pub(super) fn find(&self, within: Range<u64>, len: u64, align: u64) -> Option<u64> {
        let whole = len.next_multiple_of(align);
        self.free(within).find_map(|run| {
            let start = run.start.next_multiple_of(align);
            // the volume's last unit may be short
            let need = if run.end == self.end { len } else { whole };
            (start.checked_add(need)? <= run.end).then_some(start)
        })
    }

    /// The first free run inside `within` that begins at a multiple of `align`, truncated to whole units.
    pub(super) fn first_free(&self, within: Range<u64>, align: u64) -> Option<Range<u64>> {
        self.free(within).find_map(|run| {
            let start = run.start.next_multiple_of(align);
            let end = if run.end == self.end { run.end } else { run.end / align * align };
            (start < end).then_some(start..end)
        })
    }

    /// Whether none of these blocks is used.
    pub(super) fn is_free(&self, blocks: &Range<u64>) -> bool {
        blocks.end <= self.end && self.from(blocks.start).is_none_or(|(start, _)| start >= blocks.end)
    }

    /// The used blocks inside `within`, in order.
    pub(super) fn inside(&self, within: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let first = self.runs.range(..=within.start).next_back().map_or(within.start, |run| *run.0);
        self.runs
            .range(first.min(within.start)..within.end)
            .map(move |(start, end)| (*start).max(within.start)..(*end).min(within.end))
            .filter(|run| !run.is_empty())
    }
}

/// Number of whole clusters of `within` that are partly or wholly used.
pub(super) fn clusters(geometry: &Geometry, used: &Used, within: Range<u64>) -> u64 {
    let ratio = u64::from(geometry.cluster_blocks);
    let origin = u64::from(geometry.first_data_block);
    // the end of the last counted cluster
    let mut counted = 0;
    let mut all = 0;
    for run in used.inside(within) {
        let first = ((run.start.max(origin) - origin) / ratio).max(counted);
        let end = (run.end.max(origin) - origin).div_ceil(ratio);
        all += end.saturating_sub(first);
        counted = counted.max(end);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_join_and_gaps_are_found() {
        let mut used = Used::new(100);
        for run in [10..20, 30..40, 20..25, 5..10, 90..100] {
            used.take(run);
        }
        assert_eq!(used.inside(0..100).collect::<Vec<_>>(), [5..25, 30..40, 90..100]);
        assert_eq!(used.inside(8..35).collect::<Vec<_>>(), [8..25, 30..35]);
        assert_eq!(used.find(0..100, 5, 1), Some(0));
        assert_eq!(used.find(0..100, 6, 1), Some(40));
        assert_eq!(used.find(6..100, 5, 1), Some(25));
        assert_eq!(used.find(6..100, 4, 16), Some(48));
        assert_eq!(used.find(0..100, 60, 1), None);
        assert!(used.is_free(&(25..30)) && !used.is_free(&(25..31)) && !used.is_free(&(24..26)));
        assert!(!used.is_free(&(99..101)));
        used.take(0..100);
        assert!(used.inside(0..100).eq(std::iter::once(0..100)));
        assert_eq!(used.find(0..100, 1, 1), None);
    }

    #[test]
    fn the_last_unit_may_be_short() {
        let mut used = Used::new(70);
        used.take(0..50);
        assert_eq!(used.find(0..70, 6, 16), Some(64));
        used.take(64..65);
        assert_eq!(used.find(0..70, 1, 16), None);
    }
}
