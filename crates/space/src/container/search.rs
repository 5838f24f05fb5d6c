//! Searches for runs of a container.

use super::{Container, Stored};
use crate::Run;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// The number of units on each side of a goal that a search for the nearest run examines first.
const NEAR: u32 = 512;

impl Container {
    /// The first run of at least `least` units that begins in a range, cut to the range.
    #[must_use]
    pub fn next_run(&self, range: Range<u32>, least: u32) -> Option<Run> {
        let (from, to, least) = (range.start, range.end.min(self.units), least.max(1));
        if from >= to || least > self.bound() {
            return None;
        }
        match &self.stored {
            Stored::Full => Some(Run { start: from, len: to - from }).filter(|run| run.len >= least),
            Stored::Runs(runs) => runs.search(from, to, to, to - from, least).filter(|run| run.len >= least),
            Stored::Bits(bits) => {
                let start = bits.first_fit(from, to, to, least)?;
                Some(Run { start, len: bits.next_out(start, to) - start })
            }
        }
    }

    /// The first run of `want` units at or after `from`, then before it; if there is none the longest run, at most
    /// `want` long. Only units in `within` are returned, which are runs in ascending order, and the result is part of
    /// one of these. `None` if the set has no unit there.
    #[must_use]
    pub fn find(&self, within: &[Run], from: u32, want: u32) -> Option<Run> {
        if self.count == 0 || want == 0 {
            return None;
        }
        // no run is longer than the bound: the first that is as long is the longest
        let hoped = want.min(self.bound());
        if let Stored::Bits(bits) = &self.stored {
            for behind in [true, false] {
                for run in within {
                    let limit = run.end().min(self.units);
                    let (start, to) = if behind { (run.start.max(from), limit) } else { (run.start, limit.min(from)) };
                    if let Some(start) = bits.first_fit(start, to, limit, hoped) {
                        return Some(Run { start, len: hoped });
                    }
                }
            }
        }
        let mut best: Option<Run> = None;
        for (start, to, limit) in self.parts(within, from) {
            let over = best.map_or(0, |best| best.len);
            let found = match &self.stored {
                _ if start >= to => None,
                Stored::Full => Some(Run { start, len: want.min(limit - start) }),
                Stored::Runs(runs) => runs.search(start, to, limit, want, hoped),
                Stored::Bits(bits) => bits.longest(start, to, limit, over, hoped),
            };
            if let Some(run) = found.filter(|run| run.len > over) {
                if run.len >= hoped {
                    return Some(run);
                }
                best = Some(run);
            }
        }
        if let [run] = within
            && run.start == 0
            && run.end() >= self.units
        {
            // no run is longer than the one that was found
            self.bound.store(best.map_or(0, |best| best.len), Ordering::Relaxed);
        }
        best
    }

    /// The run of `want` units whose start is nearest to `goal`, on either side; of two at the same distance the one
    /// after it. `None` if no run is as long. The number of steps is proportional to the distance of the run.
    #[must_use]
    pub fn nearest(&self, goal: u32, want: u32) -> Option<Run> {
        if want == 0 || want > self.bound() {
            return None;
        }
        let goal = goal.min(self.units);
        let mut reach = NEAR;
        loop {
            let start = self.nearest_within(goal, want, reach);
            if start.is_some() || reach >= self.units {
                return start.map(|start| Run { start, len: want });
            }
            reach = reach.saturating_mul(8);
        }
    }

    /// The start of the run of `want` units that begins nearest to `goal`, at most `reach` units from it; the container
    /// has at least `want` units.
    fn nearest_within(&self, goal: u32, want: u32, reach: u32) -> Option<u32> {
        let units = self.units;
        let to = goal.saturating_add(reach).saturating_add(1).min(units);
        let limit = to.saturating_add(want - 1).min(units);
        let behind = match &self.stored {
            Stored::Full => (goal <= units - want).then_some(goal),
            Stored::Runs(runs) => {
                runs.search(goal, to, limit, want, want).filter(|run| run.len == want).map(|run| run.start)
            }
            Stored::Bits(bits) => bits.first_fit(goal, to, limit, want),
        };
        if behind == Some(goal) {
            return behind;
        }
        // before the goal only runs that are nearer than that
        let nearer = behind.map_or(reach, |behind| behind - goal - 1);
        let from = goal.saturating_sub(nearer);
        let limit = goal.saturating_add(want - 1).min(units);
        let before = match &self.stored {
            Stored::Full => Some(units - want),
            Stored::Runs(runs) => {
                let fits = |run: Run| run.end().min(limit).checked_sub(want).filter(|start| *start >= run.start);
                runs.before(limit).take_while(|run| run.end() > from).find_map(fits)
            }
            Stored::Bits(bits) => bits.last_fit(from, limit, want),
        };
        before.filter(|start| *start >= from).or(behind)
    }

    /// The longest run, the first of those; `None` if the set is empty.
    #[must_use]
    pub fn longest(&self) -> Option<Run> {
        self.find(&[Run { start: 0, len: self.units }], 0, self.units)
    }

    /// The runs of the set from a unit on, ascending; a run that begins before the unit is cut there.
    pub fn runs_from(&self, unit: u32) -> impl Iterator<Item = Run> + '_ {
        let (full, short, bits) = match &self.stored {
            Stored::Full => (Some(Run { start: 0, len: self.units }), None, None),
            Stored::Runs(runs) => (None, Some(runs.from(unit)), None),
            Stored::Bits(bits) => (None, None, Some(bits)),
        };
        let units = self.units;
        let mut at = unit.min(units);
        let bits = std::iter::from_fn(move || {
            let start = bits?.next_in(at, units);
            at = bits?.next_out(start, units);
            (start < units).then_some(Run { start, len: at - start })
        });
        let others = full.into_iter().chain(short.into_iter().flatten());
        let others = others.filter(move |run| run.end() > unit).map(move |run| {
            let start = run.start.max(unit);
            Run { start, len: run.end() - start }
        });
        others.chain(bits)
    }

    /// The runs of the set, ascending.
    pub fn runs(&self) -> impl Iterator<Item = Run> + '_ {
        self.runs_from(0)
    }

    /// An upper bound of the length of the runs.
    pub(super) fn bound(&self) -> u32 {
        self.bound.load(Ordering::Relaxed).min(self.count)
    }

    /// The parts that a search examines: after `from` in each run of `within`, then before it. Each with the units in
    /// which a run may begin, and the end that it must not exceed.
    fn parts<'a>(&self, within: &'a [Run], from: u32) -> impl Iterator<Item = (u32, u32, u32)> + use<'a> {
        let units = self.units;
        let limits = within.iter().map(move |run| (run.start, run.end().min(units)));
        let behind = limits.clone().map(move |(start, limit)| (start.max(from), limit, limit));
        behind.chain(limits.map(move |(start, limit)| (start, limit.min(from), limit)))
    }
}
