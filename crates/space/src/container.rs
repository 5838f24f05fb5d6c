//! A set of units (the free blocks of a group, or any others) in the smallest of four forms, as in roaring bitmaps.
//!
//! 1. *Empty* and *full* say it all; *runs* are pairs of start and length in four bytes each; *bits* are a bitmap. A
//!    container never has more heap than the bitmap and what [`SLACK`](Container::SLACK) says.
//! 2. A form is changed only when another one is clearly smaller: runs become bits when there are more of them than fit
//!    into a bitmap, bits become runs when they take half of it. [`Container::compact`] does not wait for that.
//! 3. Runs have 16 bits for a start, so a container of more than 65 536 units is empty, full, or bits.
//! 4. Beside the units there is an upper bound of the longest run. A search for more than there is ends at the first
//!    run as long as the bound; one that finds none corrects it.

mod bits;
mod forms;
mod runs;
mod search;
mod sets;

use crate::Run;
use bits::Bits;
use forms::most_runs;
use runs::Runs;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};

/// Runs of more units are long: no step is made only to know how long they are.
const LONG: u32 = 1024;

/// The form in which a container's units are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Form {
    /// No unit is in the set.
    Empty,
    /// All units are.
    Full,
    /// Runs of four bytes.
    Runs,
    /// A bit for each unit.
    Bits,
}

/// Why a set was not changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetError {
    /// The run reaches beyond the last unit.
    Outside(Run),
    /// These units, the first that are, are in the set already.
    Present(Run),
    /// These units, the first that are not, are not in the set.
    Absent(Run),
}

impl fmt::Display for SetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (run, what) = match self {
            SetError::Outside(run) => (run, "reach beyond the last unit"),
            SetError::Present(run) => (run, "are in the set already"),
            SetError::Absent(run) => (run, "are not in the set"),
        };
        write!(f, "units {}..{} {what}", run.start, u64::from(run.start) + u64::from(run.len))
    }
}

impl std::error::Error for SetError {}

#[derive(Debug, Clone)]
enum Stored {
    /// All units.
    Full,
    /// At most as many runs as [`Container::most_runs`] says; none of them, or one of all units, may stand here as
    /// well.
    Runs(Runs),
    Bits(Bits),
}

/// A set of units `0..units`.
#[derive(Debug)]
pub struct Container {
    stored: Stored,
    units: u32,
    count: u32,
    /// Runs of units; counted for bits only.
    bit_runs: u32,
    /// A set that is changed becomes bits when it has as many runs.
    most: u32,
    /// No run is longer.
    bound: AtomicU32,
}

impl Clone for Container {
    fn clone(&self) -> Self {
        let bound = AtomicU32::new(self.bound.load(Ordering::Relaxed));
        Self { stored: self.stored.clone(), bound, ..*self }
    }
}

/// Equal sets are equal, in whatever form.
impl PartialEq for Container {
    fn eq(&self, other: &Self) -> bool {
        (self.units, self.count) == (other.units, other.count)
            && match (&self.stored, &other.stored) {
                (Stored::Full, Stored::Full) => true,
                (Stored::Runs(a), Stored::Runs(b)) => a == b,
                (Stored::Bits(a), Stored::Bits(b)) => a == b,
                _ => self.runs().eq(other.runs()),
            }
    }
}

impl Eq for Container {}

impl Container {
    /// Most bytes of heap that a container has beyond its bitmap, whose size is rounded up to 8 bytes.
    pub const SLACK: usize = 64;

    /// A set of nothing.
    #[must_use]
    pub fn empty(units: u32) -> Self {
        let most = most_runs(units) as u32;
        let stored = Stored::Runs(Runs::default());
        Self { stored, units, count: 0, bit_runs: 0, most, bound: AtomicU32::new(0) }
    }

    /// All of `units` units.
    #[must_use]
    pub fn full(units: u32) -> Self {
        let most = most_runs(units) as u32;
        Self { stored: Stored::Full, units, count: units, bit_runs: 0, most, bound: AtomicU32::new(units) }
    }

    /// Few runs are searched and changed faster than bits, many are not: when a set of so many runs is changed, it
    /// becomes bits, even where these take more memory, and stays bits until [`Container::compact`], or until most of
    /// it is one run. Without a limit it is those that take more memory than bits.
    pub fn limit_runs(&mut self, runs: u32) {
        self.most = runs.max(1).min(most_runs(self.units) as u32);
    }

    /// Units that the set may have.
    #[must_use]
    pub fn units(&self) -> u32 {
        self.units
    }

    /// Units of the set.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Whether the set has no unit.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether the set has all units.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.count == self.units
    }

    /// The form that the set has now.
    #[must_use]
    pub fn form(&self) -> Form {
        match &self.stored {
            _ if self.count == 0 => Form::Empty,
            _ if self.count == self.units => Form::Full,
            Stored::Full => Form::Full,
            Stored::Runs(_) => Form::Runs,
            Stored::Bits(_) => Form::Bits,
        }
    }

    /// Bytes on the heap: at most the bitmap and [`Container::SLACK`].
    #[must_use]
    pub fn memory(&self) -> usize {
        match &self.stored {
            Stored::Full => 0,
            Stored::Runs(runs) => runs.memory(),
            Stored::Bits(bits) => bits.memory(),
        }
    }

    /// The number of runs in the set.
    #[must_use]
    pub fn run_count(&self) -> u32 {
        match &self.stored {
            Stored::Full => u32::from(self.units > 0),
            Stored::Runs(runs) => runs.len() as u32,
            Stored::Bits(_) => self.bit_runs,
        }
    }

    /// Whether all of a run is in the set; a run of nothing is.
    #[must_use]
    pub fn contains(&self, run: Run) -> bool {
        run.len == 0
            || self.is_inside(run)
                && match &self.stored {
                    Stored::Full => true,
                    Stored::Runs(runs) => runs.contains(run),
                    Stored::Bits(bits) => bits.contains(run),
                }
    }

    /// Whether any unit of a run is in the set.
    #[must_use]
    pub fn intersects(&self, run: Run) -> bool {
        let run = self.clip(run);
        run.len > 0
            && match &self.stored {
                Stored::Full => true,
                Stored::Runs(runs) => runs.intersects(run),
                Stored::Bits(bits) => bits.intersects(run),
            }
    }

    /// Units of a run that are in the set.
    #[must_use]
    pub fn count_in(&self, run: Run) -> u32 {
        let run = self.clip(run);
        match &self.stored {
            Stored::Full => run.len,
            Stored::Runs(runs) => runs.count(run),
            Stored::Bits(bits) => bits.count(run),
        }
    }

    /// Adds a run, none of which is in the set.
    ///
    /// # Errors
    /// [`SetError::Outside`], [`SetError::Present`]; nothing is changed then.
    pub fn insert(&mut self, run: Run) -> Result<(), SetError> {
        if !self.is_inside(run) {
            return Err(SetError::Outside(run));
        }
        if run.len == 0 {
            return Ok(());
        }
        if self.try_insert(run) { Ok(()) } else { Err(SetError::Present(self.first(run, true))) }
    }

    /// Removes a run, all of which is in the set.
    ///
    /// # Errors
    /// [`SetError::Outside`], [`SetError::Absent`]; nothing is changed then.
    pub fn remove(&mut self, run: Run) -> Result<(), SetError> {
        if !self.is_inside(run) {
            return Err(SetError::Outside(run));
        }
        if run.len == 0 {
            return Ok(());
        }
        if self.try_remove(run) { Ok(()) } else { Err(SetError::Absent(self.first(run, false))) }
    }

    /// The first units of a run that are in the set, or are not; the caller knows that there are some.
    #[cold]
    fn first(&self, run: Run, present: bool) -> Run {
        let (mut at, end) = (run.start, run.end());
        let there = self.run_at(at, end - at);
        if present && there == 0 {
            at = self.runs_from(at).next().map_or(at, |next| next.start);
        } else if !present {
            at += there;
        }
        let absent = || self.runs_from(at).next().map_or(end, |next| next.start.min(end)) - at;
        Run { start: at, len: if present { self.run_at(at, end - at) } else { absent() } }
    }

    /// Adds a run of at least one unit that lies inside; false, with nothing changed, where a part of it is in the set.
    #[inline]
    fn try_insert(&mut self, run: Run) -> bool {
        let most = self.most as usize;
        let whole = match &mut self.stored {
            Stored::Runs(runs) if runs.len() < most => match runs.insert(run, most) {
                Some(whole) => whole,
                None => return false,
            },
            Stored::Bits(bits) => {
                if bits.intersects(run) {
                    return false;
                }
                bits.set(run);
                let sides = bits.sides(run);
                self.bit_runs = self.bit_runs + 1 - u32::from(sides.left) - u32::from(sides.right);
                match *self.bound.get_mut() {
                    _ if !sides.left && !sides.right => run.len,
                    // where there are long runs, the next search that needs to know looks again
                    LONG.. => u32::MAX,
                    _ => bits.length_around(run, sides),
                }
            }
            Stored::Full => return false,
            Stored::Runs(_) => {
                self.become_bits();
                return self.try_insert(run);
            }
        };
        self.count += run.len;
        let bound = self.bound.get_mut();
        *bound = whole.max(*bound);
        self.settle();
        true
    }

    /// Removes a run of at least one unit that lies inside; false, with nothing changed, where a part of it is not in
    /// the set.
    #[inline]
    fn try_remove(&mut self, run: Run) -> bool {
        let most = self.most as usize;
        match &mut self.stored {
            Stored::Runs(runs) if runs.len() < most || most == 0 => {
                if !runs.remove(run, most) {
                    return false;
                }
            }
            Stored::Bits(bits) => {
                if !bits.contains(run) {
                    return false;
                }
                bits.clear(run);
                let sides = bits.sides(run);
                self.bit_runs = self.bit_runs + u32::from(sides.left) + u32::from(sides.right) - 1;
            }
            Stored::Runs(_) => {
                self.become_bits();
                return self.try_remove(run);
            }
            Stored::Full => {
                self.open();
                return self.try_remove(run);
            }
        }
        self.count -= run.len;
        self.settle();
        true
    }

    /// Adds what is missing of a run; how many units that is. What lies beyond the last unit is passed over.
    pub fn add(&mut self, run: Run) -> u32 {
        let run = self.clip(run);
        let before = self.count;
        if run.len == 0 || self.try_insert(run) {
            return self.count - before;
        }
        self.make_space();
        match &mut self.stored {
            Stored::Full => {}
            Stored::Runs(runs) => {
                let (new, whole) = runs.add(run, self.most as usize);
                self.count += new;
                let bound = self.bound.get_mut();
                *bound = whole.max(*bound);
                self.settle();
            }
            Stored::Bits(bits) => {
                bits.set(run);
                self.recount();
                self.settle();
            }
        }
        self.count - before
    }

    /// Removes what there is of a run; how many units that is.
    pub fn cut(&mut self, run: Run) -> u32 {
        let run = self.clip(run);
        let before = self.count;
        if run.len == 0 || self.try_remove(run) {
            return before - self.count;
        }
        self.make_space();
        match &mut self.stored {
            Stored::Full => {}
            Stored::Runs(runs) => {
                self.count -= runs.cut(run, self.most as usize);
                self.settle();
            }
            Stored::Bits(bits) => {
                if bits.intersects(run) {
                    bits.clear(run);
                    self.recount();
                    self.settle();
                }
            }
        }
        before - self.count
    }

    /// Units of the set from `at` on, without a gap: at most `most`.
    #[must_use]
    pub fn run_at(&self, at: u32, most: u32) -> u32 {
        let end = at.saturating_add(most).min(self.units);
        if at >= end {
            return 0;
        }
        match &self.stored {
            Stored::Full => end - at,
            Stored::Runs(runs) => {
                runs.from(at).next().filter(|run| run.start <= at).map_or(0, |run| run.end().min(end) - at)
            }
            Stored::Bits(bits) => bits.next_out(at, end) - at,
        }
    }

    fn is_inside(&self, run: Run) -> bool {
        run.start <= self.units && run.len <= self.units - run.start
    }

    fn clip(&self, run: Run) -> Run {
        let start = run.start.min(self.units);
        Run { start, len: run.end().min(self.units) - start }
    }
}
