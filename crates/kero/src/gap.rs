//! Location of a group in the log: on a rotating disk not directly after the last one.
//!
//! When a flush returns, the head of a disk has passed the last block that it wrote. A record directly after that block
//! waits until the disk has rotated once; one that begins some blocks later is reached at once. How many blocks that are
//! depends on the disk, on the time between groups and on everything in between. So the layer measures: it tries some
//! gaps, uses the fastest, and repeats the trials at times. Where a gap gains little, as on flash, there is none. Nor in
//! a short log, which would be full sooner.

use std::time::Duration;

use crate::layout::Layout;

/// The number of blocks that are left unused before a group, at most a quarter of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gap {
    /// This number of blocks.
    Fixed(u32),
    /// The number of blocks with which small groups were durable soonest.
    Measured,
}

/// The gaps that are tried.
const TRIED: [u32; 7] = [0, 2, 4, 8, 16, 32, 64];
/// A gap is at most this part of the log.
const PART: u32 = 1024;
/// The number of groups with which each of them is measured at first.
const FIRST: u32 = 2;
/// One of this number of groups tries another gap.
const EACH: u32 = 64;
/// A gap is used if the time with it is less than this part of the time without one.
const WORTH: f64 = 0.75;
/// The maximum number of blocks of a group that is measured: the time of longer ones depends on their length.
const SMALL: u32 = 16;

/// The measurements of one gap.
#[derive(Debug, Clone, Copy, Default)]
struct Trial {
    /// The time until a group was durable, in seconds: an average in which newer groups count more.
    seconds: f64,
    groups: u32,
}

/// The choice of gaps.
#[derive(Debug, Clone)]
pub(crate) struct Gaps {
    gap: Gap,
    /// The maximum gap.
    most: u32,
    /// One for each gap that is tried; the first is none.
    trials: Vec<Trial>,
    /// The index of the gap before the newest group, if that is to be measured.
    used: Option<usize>,
    groups: u32,
    /// The index of the next gap that is tried.
    next: usize,
}

impl Gaps {
    pub(crate) fn new(gap: Gap, layout: &Layout) -> Self {
        let most = match gap {
            Gap::Fixed(gap) => gap.min(layout.most_gap()),
            Gap::Measured => (layout.log / PART).min(layout.most_gap()),
        };
        let trials = TRIED.iter().filter(|gap| **gap <= most).map(|_| Trial::default()).collect();
        Self { gap, most, trials, used: None, groups: 0, next: 0 }
    }

    /// The maximum gap.
    pub(crate) fn most(&self) -> u32 {
        self.most
    }

    /// Chooses the gap before a group.
    pub(crate) fn choose(&mut self) -> u32 {
        if let Gap::Fixed(_) = self.gap {
            return self.most;
        }
        self.groups = self.groups.wrapping_add(1);
        let unknown = self.trials.iter().position(|trial| trial.groups < FIRST);
        let index = unknown.unwrap_or_else(|| {
            if !self.groups.is_multiple_of(EACH) {
                return self.best();
            }
            self.next = (self.next + 1) % self.trials.len();
            self.next
        });
        self.used = Some(index);
        TRIED.get(index).copied().unwrap_or_default()
    }

    /// Records that the chosen gap could not be left.
    pub(crate) fn not_used(&mut self) {
        self.used = None;
    }

    /// The index of the fastest gap; that of none if no other is much faster.
    fn best(&self) -> usize {
        let none = self.trials.first().map_or(0.0, |trial| trial.seconds);
        let fastest = (0..).zip(&self.trials).min_by(|(_, one), (_, other)| one.seconds.total_cmp(&other.seconds));
        fastest.filter(|(_, trial)| trial.seconds < WORTH * none).map_or(0, |(index, _)| index)
    }

    /// Records the time until the group after the chosen gap was durable. It has `blocks` blocks.
    pub(crate) fn measured(&mut self, time: Duration, blocks: u32) {
        let Some(trial) = self.used.take().filter(|_| blocks <= SMALL).and_then(|index| self.trials.get_mut(index))
        else {
            return;
        };
        let seconds = time.as_secs_f64();
        let weight = if trial.groups == 0 { 1.0 } else { 0.25 };
        trial.seconds += (seconds - trial.seconds) * weight;
        trial.groups = trial.groups.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gaps() -> Gaps {
        Gaps::new(Gap::Measured, &Layout::new(1 << 20, 1 << 17, 256).unwrap())
    }

    #[test]
    fn a_short_log_has_no_gaps() {
        let layout = Layout::new(1 << 16, 1024, 64).unwrap();
        let mut gaps = Gaps::new(Gap::Measured, &layout);
        assert!((0..100).all(|_| gaps.choose() == 0));
        assert_eq!(Gaps::new(Gap::Fixed(100), &layout).choose(), 16);
    }

    /// The gaps chosen for groups whose time depends on the gap.
    fn chosen(time: impl Fn(u32) -> u64, groups: usize) -> Vec<u32> {
        let mut gaps = gaps();
        let next = |_| {
            let gap = gaps.choose();
            gaps.measured(Duration::from_micros(time(gap)), 4);
            gap
        };
        (0..groups).map(next).collect()
    }

    /// The number of times that one gap is among them.
    fn count(gaps: &[u32], gap: u32) -> usize {
        gaps.iter().filter(|one| **one == gap).count()
    }

    #[test]
    fn the_fastest_gap_is_used() {
        // a disk: 8 ms without a gap or with too small a one
        let gaps = chosen(|gap| if gap < 8 { 8_300 } else { 300 + 40 * u64::from(gap) }, 1000);
        assert!(count(&gaps, 8) > 950, "{}", count(&gaps, 8));
        assert!(TRIED.iter().all(|gap| count(&gaps, *gap) >= 2));
    }

    #[test]
    fn a_small_gain_is_no_reason_for_a_gap() {
        let gaps = chosen(|gap| 100 - u64::from(gap) / 4, 1000);
        assert!(count(&gaps, 0) > 950, "{}", count(&gaps, 0));
    }

    #[test]
    fn another_gap_is_used_when_it_has_become_faster() {
        let mut gaps = gaps();
        let mut last = Vec::new();
        for group in 0..8000 {
            let (gap, fast) = (gaps.choose(), if group < 1000 { 4 } else { 32 });
            gaps.measured(Duration::from_micros(if gap < fast { 8000 } else { 500 + 10 * u64::from(gap) }), 4);
            last.push(gap);
        }
        assert!(count(&last[7500..], 32) > 450);
    }

    #[test]
    fn long_groups_are_not_measured() {
        let mut gaps = gaps();
        for _ in 0..100 {
            assert_eq!(gaps.choose(), 0);
            gaps.measured(Duration::from_millis(1), SMALL + 1);
        }
    }
}
