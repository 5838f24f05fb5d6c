//! A set of units (the free blocks of a group, or any others) in the smallest of four forms, as in roaring bitmaps.
//!
//! 1. *Empty* and *full* need no further data; *runs* are pairs of start and length in four bytes each; *bits* are a
//!    bitmap. A container never uses more heap than the bitmap plus [`SLACK`](Container::SLACK).
//! 2. The form changes only when another one is clearly smaller: runs become bits when they need more memory than a
//!    bitmap, bits become runs when these need half of that. [`Container::compact`] does not wait for that.
//! 3. Runs have 16 bits for a start, so a container of more than 65 536 units is empty, full, or bits.
//! 4. In addition to the units there is an upper bound of the longest run. A search for a longer run than any ends at
//!    the first run as long as the bound; one that finds none lowers the bound.

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

/// Runs of more units are long: no step is made only to find out their length.
const LONG: u32 = 1024;

/// The form in which the units of a container are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Form {
    /// No unit is in the set.
    Empty,
    /// All units are in the set.
    Full,
    /// Runs of four bytes.
    Runs,
    /// A bit for each unit.
    Bits,
}

/// The reason why a set was not changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetError {
    /// The run extends beyond the last unit.
    Outside(Run),
    /// These units are in the set already, the first of the run that are.
    Present(Run),
    /// These units are not in the set, the first of the run that are not.
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
    /// At most [`Container::most_runs`] runs; may also be empty, or one run of all units.
    Runs(Runs),
    Bits(Bits),
}

/// A set of units `0..units`.
#[derive(Debug)]
pub struct Container {
    stored: Stored,
    units: u32,
    count: u32,
    /// The number of runs; counted for bits only.
    bit_runs: u32,
    /// The number of runs with which a changed set becomes bits.
    most: u32,
    /// An upper bound of the length of runs.
    bound: AtomicU32,
}

impl Clone for Container {
    fn clone(&self) -> Self {
        let bound = AtomicU32::new(self.bound.load(Ordering::Relaxed));
        Self { stored: self.stored.clone(), bound, ..*self }
    }
}

/// Sets with the same units are equal, in whatever form.
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
    /// The maximum heap memory of a container beyond its bitmap in bytes; the bitmap's size is rounded up to 8 bytes.
    pub const SLACK: usize = 64;

    /// Creates an empty set.
    #[must_use]
    pub fn empty(units: u32) -> Self {
        let most = most_runs(units) as u32;
        let stored = Stored::Runs(Runs::default());
        Self { stored, units, count: 0, bit_runs: 0, most, bound: AtomicU32::new(0) }
    }

    /// Creates the set of all of `units` units.
    #[must_use]
    pub fn full(units: u32) -> Self {
        let most = most_runs(units) as u32;
        Self { stored: Stored::Full, units, count: units, bit_runs: 0, most, bound: AtomicU32::new(units) }
    }

    /// Limits the number of runs: few runs are searched and changed faster than bits, many are not. A changed set with
    /// this number of runs becomes bits, even if these take more memory, and stays bits until [`Container::compact`],
    /// or until most of it is one run. Without a limit it becomes bits when the runs take more memory.
    pub fn limit_runs(&mut self, runs: u32) {
        self.most = runs.max(1).min(most_runs(self.units) as u32);
    }

    /// The number of units that the set may have.
    #[must_use]
    pub fn units(&self) -> u32 {
        self.units
    }

    /// The number of units in the set.
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

    /// The present form of the set.
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

    /// Memory on the heap in bytes: at most the bitmap and [`Container::SLACK`].
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

    /// Whether all of a run is in the set; `true` for an empty run.
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

    /// The number of units of a run that are in the set.
    #[must_use]
    pub fn count_in(&self, run: Run) -> u32 {
        let run = self.clip(run);
        match &self.stored {
            Stored::Full => run.len,
            Stored::Runs(runs) => runs.count(run),
            Stored::Bits(bits) => bits.count(run),
        }
    }

    /// Adds a run, none of which may be in the set.
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

    /// Removes a run, all of which must be in the set.
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

    /// The first units of a run that are in the set, or are not (`present`); the caller ensures that there are any.
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

    /// Adds a run of at least one unit within the container; `false`, with nothing changed, if a part of it is in the
    /// set.
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
                    // with long runs, the next search that needs the bound determines it
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

    /// Removes a run of at least one unit within the container; `false`, with nothing changed, if a part of it is not
    /// in the set.
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

    /// Adds the missing units of a run, and returns their number. Units beyond the last one are ignored.
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

    /// Removes the units of a run that are in the set, and returns their number.
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

    /// The number of units of the set from `at` on, without a gap: at most `most`.
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
