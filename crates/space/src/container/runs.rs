//! A set of units as ascending runs of four bytes each, which are neither overlapping nor adjacent.
//!
//! Units are below [`MOST_UNITS`], so that a start and a length less one fit into 16 bits each.

use crate::Run;

/// The maximum number of units of a container that can be stored as runs.
pub(super) const MOST_UNITS: u32 = 1 << 16;

/// The number of runs that fit into the first allocation.
const FIRST: usize = 4;
/// The number of runs that are compared without a branch.
const AT_ONCE: usize = 8;

/// One run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Short {
    start: u16,
    /// The number of units after the first.
    more: u16,
}

impl Short {
    fn new(start: u32, end: u32) -> Self {
        debug_assert!(start < end && end <= MOST_UNITS);
        Self { start: start as u16, more: (end - start - 1) as u16 }
    }

    fn start(self) -> u32 {
        self.start.into()
    }

    /// The last unit.
    fn last(self) -> u32 {
        u32::from(self.start) + u32::from(self.more)
    }

    fn end(self) -> u32 {
        self.last() + 1
    }

    fn run(self) -> Run {
        Run { start: self.start(), len: u32::from(self.more) + 1 }
    }
}

/// Ascending runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Runs {
    runs: Vec<Short>,
}

impl Runs {
    /// Allocates space for exactly `runs` runs.
    pub(super) fn with_capacity(runs: usize) -> Self {
        Self { runs: Vec::with_capacity(runs) }
    }

    /// The number of runs.
    pub(super) fn len(&self) -> usize {
        self.runs.len()
    }

    /// Memory on the heap in bytes.
    pub(super) fn memory(&self) -> usize {
        self.runs.capacity() * size_of::<Short>()
    }

    /// Appends a run; a run adjacent to the last one is merged with it.
    pub(super) fn push(&mut self, run: Run, most: usize) {
        match self.runs.last_mut() {
            Some(last) if last.end() == run.start => *last = Short::new(last.start(), run.end()),
            _ => {
                self.reserve(most);
                self.runs.push(Short::new(run.start, run.end()));
            }
        }
    }

    /// Allocates space for one more run: half as much again, and never for more than `most` runs.
    fn reserve(&mut self, most: usize) {
        let len = self.runs.len();
        if len == self.runs.capacity() {
            self.runs.reserve_exact((len / 2).max(FIRST).min(most.saturating_sub(len)).max(1));
        }
    }

    /// Frees memory if three quarters of it are not needed any more.
    fn shrink(&mut self) {
        let capacity = self.runs.capacity();
        if capacity > 4 * FIRST && self.runs.len() < capacity / 4 {
            self.runs.shrink_to(capacity / 2);
        }
    }

    /// Frees all memory that is not needed.
    pub(super) fn shrink_to_fit(&mut self) {
        self.runs.shrink_to_fit();
    }

    /// The index of the first run that ends after a unit.
    #[inline]
    fn behind(&self, unit: u32) -> usize {
        let before = |runs: &[Short]| runs.iter().map(|run| u32::from(run.last() < unit)).sum::<u32>() as usize;
        let mut runs = &self.runs[..];
        let mut at = 0;
        // a few runs are compared faster all at once than by bisection
        while runs.len() > AT_ONCE {
            let (low, high) = runs.split_at(runs.len() / 2);
            if low.last().is_some_and(|run| run.last() < unit) {
                (at, runs) = (at + low.len(), high);
            } else {
                runs = low;
            }
        }
        at + before(runs)
    }

    /// Whether all of a run is in the set.
    pub(super) fn contains(&self, run: Run) -> bool {
        self.runs
            .get(self.behind(run.start))
            .is_some_and(|there| there.start() <= run.start && run.end() <= there.end())
    }

    /// Whether a part of a run is in the set.
    pub(super) fn intersects(&self, run: Run) -> bool {
        self.runs.get(self.behind(run.start)).is_some_and(|there| there.start() < run.end())
    }

    /// Adds a run; returns the length of the run that then contains it. `None`, with nothing changed, if a part of it
    /// is in the set.
    pub(super) fn insert(&mut self, run: Run, most: usize) -> Option<u32> {
        let end = run.end();
        // the first run that ends at the start or after it
        let at = self.behind(run.start.saturating_sub(1));
        let touches = |there: Option<&Short>| there.is_some_and(|there| there.end() == run.start);
        let joins_left = touches(self.runs.get(at));
        let next = at + usize::from(joins_left);
        let right = self.runs.get(next).copied();
        if right.is_some_and(|right| right.start() < end) {
            return None;
        }
        let joins_right = right.filter(|right| right.start() == end);
        let whole = match (self.runs.get_mut(at), joins_right) {
            (Some(left), Some(right)) if joins_left => {
                *left = Short::new(left.start(), right.end());
                let whole = left.run().len;
                self.runs.remove(next);
                self.shrink();
                return Some(whole);
            }
            (Some(left), None) if joins_left => {
                *left = Short::new(left.start(), end);
                *left
            }
            (Some(there), Some(right)) => {
                *there = Short::new(run.start, right.end());
                *there
            }
            _ => {
                self.reserve(most);
                let whole = Short::new(run.start, end);
                self.runs.insert(at, whole);
                whole
            }
        };
        Some(whole.run().len)
    }

    /// Removes a run. `false`, with nothing changed, if not all of it is in the set.
    pub(super) fn remove(&mut self, run: Run, most: usize) -> bool {
        let end = run.end();
        let at = self.behind(run.start);
        let Some(there) = self.runs.get_mut(at).filter(|there| there.start() <= run.start && end <= there.end()) else {
            return false;
        };
        let whole = *there;
        match (whole.start() == run.start, whole.end() == end) {
            (true, true) => {
                self.runs.remove(at);
                self.shrink();
            }
            (true, false) => *there = Short::new(end, whole.end()),
            (false, true) => *there = Short::new(whole.start(), run.start),
            (false, false) => {
                *there = Short::new(whole.start(), run.start);
                self.reserve(most);
                self.runs.insert(at + 1, Short::new(end, whole.end()));
            }
        }
        true
    }

    /// Adds the missing units of a run; returns their number, and the length of the run that then contains it.
    pub(super) fn add(&mut self, run: Run, most: usize) -> (u32, u32) {
        let first = self.behind(run.start.saturating_sub(1));
        let overlapping =
            self.runs.get(first..).unwrap_or_default().iter().take_while(|there| there.start() <= run.end());
        let (mut start, mut end, mut present, mut count) = (run.start, run.end(), 0, 0);
        for there in overlapping {
            present += there.end().min(run.end()).saturating_sub(there.start().max(run.start));
            (start, end) = (start.min(there.start()), end.max(there.end()));
            count += 1;
        }
        let whole = Short::new(start, end);
        match self.runs.get_mut(first).filter(|_| count > 0) {
            Some(there) => {
                *there = whole;
                self.runs.drain(first + 1..first + count);
            }
            None => {
                self.reserve(most);
                self.runs.insert(first, whole);
            }
        }
        self.shrink();
        (run.len - present, end - start)
    }

    /// Removes the units of a run that are in the set, and returns their number. If the run is inside one of the set,
    /// the caller ensures that there is space for one more.
    pub(super) fn cut(&mut self, run: Run, most: usize) -> u32 {
        if self.contains(run) {
            self.remove(run, most);
            return run.len;
        }
        let mut gone = 0;
        let mut first = self.behind(run.start);
        if let Some(there) = self.runs.get_mut(first)
            && there.start() < run.start
        {
            gone += there.end() - run.start;
            *there = Short::new(there.start(), run.start);
            first += 1;
        }
        let behind = self.runs.get(first..).unwrap_or_default();
        let whole = behind.iter().take_while(|there| there.end() <= run.end());
        let count = whole.map(|there| gone += there.run().len).count();
        self.runs.drain(first..first + count);
        if let Some(there) = self.runs.get_mut(first)
            && there.start() < run.end()
        {
            gone += run.end() - there.start();
            *there = Short::new(run.end(), there.end());
        }
        self.shrink();
        gone
    }

    /// The number of units of a run that are in the set.
    pub(super) fn count(&self, run: Run) -> u32 {
        let behind = self.runs.get(self.behind(run.start)..).unwrap_or_default();
        let inside = behind.iter().take_while(|there| there.start() < run.end());
        inside.map(|there| there.end().min(run.end()) - there.start().max(run.start)).sum()
    }

    /// The runs that end after a unit, ascending.
    pub(super) fn from(&self, unit: u32) -> Iter<'_> {
        Iter(self.runs.get(self.behind(unit)..).unwrap_or_default().iter())
    }

    /// The runs that begin before a unit, descending.
    pub(super) fn before(&self, unit: u32) -> impl Iterator<Item = Run> + '_ {
        let end = self.runs.partition_point(|run| run.start() < unit);
        self.runs.get(..end).unwrap_or_default().iter().rev().map(|run| run.run())
    }

    /// The first run of `want` units that begins in `from..to` and ends before `limit`, otherwise the longest such run;
    /// the search also ends at the first run of `enough` units.
    pub(super) fn search(&self, from: u32, to: u32, limit: u32, want: u32, enough: u32) -> Option<Run> {
        let mut best: Option<Run> = None;
        let mut longest = 0;
        for there in self.runs.get(self.behind(from)..).unwrap_or_default() {
            let start = there.start().max(from);
            if start >= to {
                break;
            }
            let len = there.end().min(limit).saturating_sub(start);
            if len > longest {
                longest = len;
                best = Some(Run { start, len: len.min(want) });
                if len >= enough {
                    break;
                }
            }
        }
        best
    }

    /// The length of the longest run.
    pub(super) fn longest(&self) -> u32 {
        self.runs.iter().map(|run| u32::from(run.more) + 1).max().unwrap_or(0)
    }
}

/// Iterator over runs, ascending.
#[derive(Debug, Clone)]
pub(super) struct Iter<'a>(std::slice::Iter<'a, Short>);

impl Iterator for Iter<'_> {
    type Item = Run;

    fn next(&mut self) -> Option<Run> {
        self.0.next().map(|run| run.run())
    }
}
