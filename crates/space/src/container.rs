//! A set of units (the free blocks of a group, or any others) in the smallest of four forms, as in roaring bitmaps.
//!
//! 1. *Empty* and *full* say it all; *runs* are pairs of start and length in four bytes each; *bits* are a bitmap. A
//!    container never has more heap than the bitmap and what [`SLACK`](Container::SLACK) says.
//! 2. A form is changed only when another one is clearly smaller: runs become bits when there are more of them than fit
//!    into a bitmap, bits become runs when they take half of it. [`Container::compact`] does not wait for that.
//! 3. Runs have 16 bits for a start, so a container of more than 65 536 units is empty, full, or bits.
//! 4. Beside the units there is an upper bound of the longest run. A search for more than there is ends at the first run
//!    as long as the bound; one that finds none corrects it.

mod bits;
mod runs;
mod sets;

use crate::Run;
use bits::Bits;
use runs::Runs;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

/// What a container's units are stored as.
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
    /// At most as many runs as [`Container::most_runs`] says; none of them, or one of all units, may stand here as well.
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
        Self { stored: Stored::Runs(Runs::default()), units, count: 0, bit_runs: 0, bound: AtomicU32::new(0) }
    }

    /// All of `units` units.
    #[must_use]
    pub fn full(units: u32) -> Self {
        Self { stored: Stored::Full, units, count: units, bit_runs: 0, bound: AtomicU32::new(units) }
    }

    /// The units whose bits are clear in a bitmap as it is stored, the lowest bit of a byte first: those that are free.
    /// What `bytes` does not cover is not in the set.
    #[must_use]
    pub fn from_bitmap(bytes: &[u8], units: u32) -> Self {
        Self::from_words(units, words_of(bytes).map(|(word, mask)| !word & mask))
    }

    /// The units whose bits are set in a bitmap as it is stored: those in use. What `bytes` does not cover is not in the
    /// set.
    #[must_use]
    pub fn from_set_bits(bytes: &[u8], units: u32) -> Self {
        Self::from_words(units, words_of(bytes).map(|(word, _)| word))
    }

    fn from_words(units: u32, words: impl Iterator<Item = u64>) -> Self {
        let mut bits = Bits::new(units);
        bits.words_mut().iter_mut().zip(words).for_each(|(bits, word)| *bits = word);
        if let Some(last) = bits.words_mut().last_mut()
            && !units.is_multiple_of(bits::BITS)
        {
            *last &= !(u64::MAX << (units % bits::BITS));
        }
        let mut container = Self::empty(units);
        container.stored = Stored::Bits(bits);
        container.recount();
        container.compact();
        container
    }

    /// Writes the set as a bitmap in which a clear bit is a unit of the set; all other bits of the block are set.
    pub fn write_bitmap(&self, block: &mut [u8]) {
        block.fill(u8::MAX);
        self.clear_bits(block);
    }

    /// Clears the bit of each unit of the set in a bitmap. Units behind its end are passed over.
    pub fn clear_bits(&self, block: &mut [u8]) {
        if let Stored::Bits(bits) = &self.stored {
            for (bytes, word) in block.chunks_mut(8).zip(bits.words()) {
                bytes.iter_mut().zip(word.to_le_bytes()).for_each(|(byte, bits)| *byte &= !bits);
            }
            return;
        }
        for run in self.runs() {
            clear_run(block, run);
        }
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

    /// How many runs the set is.
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
        let most = most_runs(self.units);
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
                bits.length_around(run, sides)
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

    /// Removes a run of at least one unit that lies inside; false, with nothing changed, where a part of it is not in the
    /// set.
    #[inline]
    fn try_remove(&mut self, run: Run) -> bool {
        let most = most_runs(self.units);
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
                let (new, whole) = runs.add(run, most_runs(self.units));
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
                self.count -= runs.cut(run, most_runs(self.units));
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

    /// The first run of at least `least` units that begins in a range, as far as it lies in it.
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

    /// The first run of `want` units at or behind `from`, then before it; where there is none the longest run there is,
    /// at most `want` long. As [`FreeMap::find`](crate::FreeMap::find).
    #[must_use]
    pub fn find(&self, within: &[Run], from: u32, want: u32) -> Option<Run> {
        if self.count == 0 || want == 0 {
            return None;
        }
        let bound = self.bound();
        let hoped = want.min(bound);
        let mut best: Option<Run> = None;
        for behind in [true, false] {
            for run in within {
                let limit = run.end().min(self.units);
                let (start, to) = if behind { (run.start.max(from), limit) } else { (run.start, limit.min(from)) };
                if let Some(run) = self.search(start, to, limit, want, bound)
                    && best.is_none_or(|best| run.len > best.len)
                {
                    if run.len >= hoped {
                        return Some(run);
                    }
                    best = Some(run);
                }
            }
        }
        if let [run] = within
            && run.start == 0
            && run.end() >= self.units
        {
            // no run is longer than what was found
            self.bound.store(best.map_or(0, |best| best.len), Ordering::Relaxed);
        }
        best
    }

    /// The run of `want` units whose start is nearest to `goal`, on either side; of two as near the one behind. `None`
    /// where no run is as long.
    #[must_use]
    pub fn nearest(&self, goal: u32, want: u32) -> Option<Run> {
        if want == 0 || want > self.bound() {
            return None;
        }
        let units = self.units;
        let goal = goal.min(units);
        let behind = match &self.stored {
            Stored::Full => (goal <= units - want).then_some(goal),
            Stored::Runs(runs) => {
                runs.search(goal, units, units, want, want).filter(|r| r.len == want).map(|r| r.start)
            }
            Stored::Bits(bits) => bits.first_fit(goal, units, units, want),
        };
        if behind == Some(goal) {
            return Some(Run { start: goal, len: want });
        }
        // a run that begins before the goal
        let limit = (goal.saturating_add(want).saturating_sub(1)).min(units);
        let before = match &self.stored {
            Stored::Full => Some(units - want),
            Stored::Runs(runs) => {
                let fits = |run: Run| run.end().min(limit).checked_sub(want).filter(|start| *start >= run.start);
                runs.before(limit).find_map(fits)
            }
            Stored::Bits(bits) => bits.last_fit(limit, want),
        };
        let nearest = match (before, behind) {
            (Some(before), Some(behind)) if goal - before < behind - goal => before,
            (_, Some(behind)) => behind,
            (before, None) => before?,
        };
        Some(Run { start: nearest, len: want })
    }

    /// The longest run, the first of those; `None` where the set is empty.
    #[must_use]
    pub fn longest(&self) -> Option<Run> {
        self.find(&[Run { start: 0, len: self.units }], 0, self.units)
    }

    /// The runs of the set from a unit on, ascending; of one that begins before it what lies behind.
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

    /// No run of the set is longer.
    fn bound(&self) -> u32 {
        self.bound.load(Ordering::Relaxed).min(self.count)
    }

    #[inline]
    fn search(&self, from: u32, to: u32, limit: u32, want: u32, bound: u32) -> Option<Run> {
        match &self.stored {
            _ if from >= to => None,
            Stored::Full => Some(Run { start: from, len: want.min(limit - from) }),
            Stored::Runs(runs) => runs.search(from, to, limit, want, want.min(bound)),
            Stored::Bits(bits) => bits.search(from, to, limit, want, bound),
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

impl Container {
    /// Takes the smallest form.
    pub fn compact(&mut self) {
        let runs = self.run_count() as usize;
        match &mut self.stored {
            Stored::Full => {}
            _ if self.count == self.units && self.units > 0 => self.stored = Stored::Full,
            _ if runs == 0 => self.stored = Stored::Runs(Runs::default()),
            Stored::Bits(_) if runs < most_runs(self.units) => self.become_runs(0),
            Stored::Runs(runs) => runs.shrink_to_fit(),
            Stored::Bits(_) => {}
        }
    }

    /// After a change: another form where that is clearly smaller.
    #[inline]
    fn settle(&mut self) {
        match &self.stored {
            Stored::Bits(_) => {
                let most = most_runs(self.units);
                if most > 0 && self.bit_runs as usize <= most / 2 {
                    self.become_runs(most / 8);
                }
            }
            Stored::Runs(runs) => {
                // one that is full and empty in turns does not allocate each time
                if self.count == self.units && runs.memory() > Self::SLACK {
                    self.stored = Stored::Full;
                }
            }
            Stored::Full => {}
        }
    }

    /// Before a change that may need a run more: bits where there is no space for one, and no full set.
    fn make_space(&mut self) {
        match &self.stored {
            Stored::Runs(runs) if runs.len() >= most_runs(self.units) => self.become_bits(),
            Stored::Full => self.open(),
            _ => {}
        }
    }

    /// A full set as one run, or as bits.
    #[cold]
    fn open(&mut self) {
        let most = most_runs(self.units);
        if most == 0 {
            return self.become_bits();
        }
        let mut runs = Runs::default();
        runs.push(Run { start: 0, len: self.units }, most);
        self.stored = Stored::Runs(runs);
    }

    #[cold]
    fn become_bits(&mut self) {
        let mut bits = Bits::new(self.units);
        self.runs().for_each(|run| bits.set(run));
        self.bit_runs = self.run_count();
        self.stored = Stored::Bits(bits);
    }

    /// Runs, with space for `more` runs.
    #[cold]
    fn become_runs(&mut self, more: usize) {
        let most = most_runs(self.units);
        let mut runs = Runs::with_capacity((self.bit_runs as usize + more).min(most));
        self.runs().for_each(|run| runs.push(run, most));
        self.stored = Stored::Runs(runs);
    }

    /// Counts bits anew.
    fn recount(&mut self) {
        if let Stored::Bits(bits) = &self.stored {
            (self.count, self.bit_runs) = bits.totals();
            *self.bound.get_mut() = self.count;
        }
    }
}

/// Most runs of a container: those that take no more memory than its bitmap.
fn most_runs(units: u32) -> usize {
    if units > runs::MOST_UNITS { 0 } else { units.div_ceil(bits::BITS) as usize * 2 }
}

/// A stored bitmap's words, each with a mask of the bits that are there.
fn words_of(bytes: &[u8]) -> impl Iterator<Item = (u64, u64)> + '_ {
    let (whole, rest) = bytes.as_chunks();
    let short = (!rest.is_empty()).then(|| {
        let (mut word, mut mask) = ([0; 8], [0; 8]);
        word.iter_mut().zip(rest).for_each(|(word, byte)| *word = *byte);
        mask.iter_mut().zip(rest).for_each(|(mask, _)| *mask = u8::MAX);
        (u64::from_le_bytes(word), u64::from_le_bytes(mask))
    });
    whole.iter().map(|word| (u64::from_le_bytes(*word), u64::MAX)).chain(short)
}

/// Clears a run's bits in a bitmap, as far as they are there.
fn clear_run(block: &mut [u8], run: Run) {
    let end = (u64::from(run.start) + u64::from(run.len)).min(block.len() as u64 * 8) as usize;
    let start = run.start as usize;
    if start >= end {
        return;
    }
    let (head, tail) = (u8::MAX << (start % 8), u8::MAX >> (7 - (end - 1) % 8));
    match block.get_mut(start / 8..=(end - 1) / 8) {
        Some([only]) => *only &= !(head & tail),
        Some([first, inner @ .., last]) => {
            *first &= !head;
            inner.fill(0);
            *last &= !tail;
        }
        _ => {}
    }
}
