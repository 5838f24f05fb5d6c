//! The choice among the runs of a group with enough space for a request.

use parking_lot::Mutex;
use space::{Container, ContainerMap, Run};
use std::collections::VecDeque;

/// Maximum number of recorded recent frees of the volume.
const RECENT: usize = 64;
/// Maximum number of runs recorded of one free in a group.
const AT_ONCE: usize = 8;

/// The method of choosing a run of a group.
pub(super) enum Fit {
    /// The first run that is long enough, searched from the goal to the end, then from the start.
    First,
    /// A recently freed run near the goal; else the nearest hole that fits for a small request, and the longest run for
    /// a large one.
    Nearest(Mutex<Recent>),
}

/// A request to a group.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request<'a> {
    pub(super) group: u32,
    /// The parts of the group in which a run may be, ascending.
    pub(super) within: &'a [Run],
    /// The preferred first unit, if it is in this group.
    pub(super) goal: Option<u32>,
    /// Wanted length in units, at most the longest possible run.
    pub(super) want: u32,
    /// Maximum distance from the goal, in units, for a recent free to be near.
    pub(super) near: u32,
    /// The request probably belongs to a long file.
    pub(super) is_long: bool,
}

impl Request<'_> {
    /// The unit at which the search begins.
    fn begin(&self) -> u32 {
        self.goal.unwrap_or(0)
    }

    /// Whether a run is inside the permitted parts.
    fn is_within(&self, run: Run) -> bool {
        self.within.iter().any(|part| part.start <= run.start && run.end() <= part.end())
    }

    /// Whether a run may be anywhere in the group.
    fn is_anywhere(&self, units: u32) -> bool {
        matches!(self.within, [part] if part.start == 0 && part.end() >= units)
    }
}

impl Fit {
    /// The method of a volume: by extents if its free space is recorded as extents.
    pub(super) fn new(is_by_extents: bool) -> Self {
        if is_by_extents { Self::Nearest(Mutex::default()) } else { Self::First }
    }

    /// A run for a request; the longest if none has the wanted length.
    pub(super) fn find(&self, map: &ContainerMap, request: &Request<'_>) -> Option<Run> {
        let (within, from, want) = (request.within, request.begin(), request.want);
        let Self::Nearest(recent) = self else { return map.find(within, from, want) };
        if let Some(goal) = request.goal
            && let Some(run) = recent.lock().near(map, request, goal)
        {
            return Some(run);
        }
        if request.is_long {
            let longest = map.find(within, from, map.units());
            return longest.map(|run| Run { len: run.len.min(want), ..run });
        }
        let nearest = if request.is_anywhere(map.units()) { map.nearest(from, want) } else { None };
        nearest.or_else(|| map.find(within, from, want))
    }

    /// Records the free of one or more runs of units in a group.
    pub(super) fn record_free(&self, group: u32, runs: impl Iterator<Item = Run>) {
        if let Self::Nearest(recent) = self {
            let mut recent = recent.lock();
            runs.take(AT_ONCE).for_each(|run| recent.add(group, run));
        }
    }

    /// As [`Fit::record_free`], for a set.
    pub(super) fn record_free_set(&self, group: u32, units: &Container) {
        self.record_free(group, units.runs());
    }
}

/// Recently freed runs, by group, the newest last. Each may have been allocated again since: these are hints only.
#[derive(Debug, Default)]
pub(super) struct Recent(VecDeque<(u32, Run)>);

impl Recent {
    fn add(&mut self, group: u32, run: Run) {
        if self.0.len() == RECENT {
            self.0.pop_front();
        }
        self.0.push_back((group, run));
    }

    /// The start of the nearest recent free to the goal that is still long enough, of equally near ones the newest. The
    /// returned units are removed from the record. For a long file it must have twice the wanted length, as the file
    /// will grow.
    fn near(&mut self, map: &ContainerMap, request: &Request<'_>, goal: u32) -> Option<Run> {
        let want = request.want;
        let least = if request.is_long { want.saturating_mul(2) } else { want };
        let fits =
            |run: Run| request.is_within(Run { start: run.start, len: want }) && map.run_at(run.start, least) == least;
        let here = self.0.iter().enumerate().rev().filter(|(_, (group, _))| *group == request.group);
        let distances = here.map(|(n, (_, run))| (run.start.abs_diff(goal), n, *run));
        let nearest = distances.filter(|(distance, _, run)| *distance <= request.near && fits(*run));
        let (_, n, run) = nearest.min_by_key(|(distance, ..)| *distance)?;
        match self.0.get_mut(n) {
            Some((_, rest)) if rest.len > want => *rest = Run { start: rest.start + want, len: rest.len - want },
            _ => {
                self.0.remove(n);
            }
        }
        Some(Run { start: run.start, len: want })
    }
}

/// The run for a long file that would otherwise continue right after another file: it begins `apart` units later if
/// there is space, so that both can grow.
pub(super) fn apart(map: &ContainerMap, within: &[Run], run: Run, apart: u32) -> Run {
    let both = run.len.saturating_add(apart);
    let long = map.find(within, run.start, both).filter(|long| long.len == both);
    long.map_or(run, |long| Run { start: long.start + apart, len: run.len })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: &[Run] = &[Run { start: 0, len: 4096 }];

    /// A map with 100..108, 300..302, 310..350 and 2000..4096 free.
    fn map() -> ContainerMap {
        let mut map = ContainerMap::new(4096);
        for (start, end) in [(0, 100), (108, 300), (302, 310), (350, 2000)] {
            assert!(map.allocate(Run { start, len: end - start }));
        }
        map
    }

    fn found(fit: &Fit, goal: Option<u32>, want: u32, is_long: bool) -> Option<(u32, u32)> {
        let request = Request { group: 3, within: ALL, goal, want, near: 64, is_long };
        fit.find(&map(), &request).map(|run| (run.start, run.len))
    }

    #[test]
    fn bitmaps_have_the_first_that_fits() {
        let fit = Fit::new(false);
        fit.record_free(3, std::iter::once(Run { start: 100, len: 8 }));
        assert_eq!(found(&fit, Some(303), 2, false), Some((310, 2)));
        assert_eq!(found(&fit, Some(303), 100, true), Some((2000, 100)));
        assert_eq!(found(&fit, None, 3, true), Some((100, 3)));
    }

    #[test]
    fn a_small_request_has_the_nearest_hole_and_a_large_one_the_longest_run() {
        let fit = Fit::new(true);
        assert_eq!(found(&fit, Some(303), 2, false), Some((300, 2)));
        assert_eq!(found(&fit, Some(303), 3, false), Some((310, 3)));
        assert_eq!(found(&fit, Some(200), 8, false), Some((100, 8)));
        assert_eq!(found(&fit, None, 3, true), Some((2000, 3)));
        assert_eq!(found(&fit, Some(303), 4096, false), Some((2000, 2096)));
        // only a part of the group is permitted
        let within = &[Run { start: 305, len: 20 }];
        let request = Request { group: 3, within, goal: Some(303), want: 2, near: 64, is_long: false };
        assert_eq!(fit.find(&map(), &request), Some(Run { start: 310, len: 2 }));
    }

    #[test]
    fn a_recent_free_near_the_goal_comes_first() {
        let fit = Fit::new(true);
        let runs = [(100, 8), (310, 3), (340, 10), (2000, 5), (400, 9)];
        fit.record_free(3, runs.map(|(start, len)| Run { start, len }).into_iter());
        fit.record_free(4, std::iter::once(Run { start: 300, len: 2 }));
        // the nearest one, as much of it as is still free, but not one allocated again or far away
        assert_eq!(found(&fit, Some(305), 2, false), Some((310, 2)));
        assert_eq!(found(&fit, Some(305), 2, false), Some((312, 2)));
        assert_eq!(found(&fit, Some(305), 2, false), Some((340, 2)));
        assert_eq!(found(&fit, Some(305), 2, false), Some((342, 2)));
        assert_eq!(found(&fit, Some(305), 9, false), Some((310, 9)));
        assert_eq!(found(&fit, Some(395), 1, false), Some((344, 1)));
        // a long file would fill it at once
        assert_eq!(found(&fit, Some(110), 5, true), Some((2000, 5)));
        assert_eq!(found(&fit, Some(110), 4, true), Some((100, 4)));
        // no more are recorded than the limit
        (0..1000).for_each(|n| fit.record_free(n, ALL.iter().copied()));
        let Fit::Nearest(recent) = &fit else { panic!("just made") };
        assert_eq!(recent.lock().0.len(), RECENT);
    }
}
