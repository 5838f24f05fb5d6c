//! Operations on two sets: with as many steps as there are runs in both, or words if one of them is bits.

use super::bits::Bits;
use super::forms::most_runs;
use super::runs::Runs;
use super::{Container, Stored};
use crate::Run;
use std::sync::atomic::AtomicU32;

/// A set is changed run by run if the other one has at most one run per this number of its own.
const FEW: u32 = 16;

/// An operation on two sets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    Union,
    Difference,
    Intersection,
}

impl Container {
    /// Adds the units of another set; units beyond the last one are ignored.
    pub fn union_with(&mut self, other: &Self) {
        if other.count == 0 || self.is_full() {
        } else if self.count == 0 && self.units == other.units {
            *self = Self { most: self.most, ..other.clone() };
        } else if other.is_full() && self.units <= other.units {
            *self = Self { most: self.most, ..Self::full(self.units) };
        } else if self.is_much_more_than(other) {
            for run in other.runs() {
                self.add(run);
            }
        } else {
            self.combine(other, Operation::Union);
        }
    }

    /// Removes the units of another set.
    pub fn subtract(&mut self, other: &Self) {
        if other.count == 0 || self.count == 0 {
        } else if other.is_full() && self.units <= other.units {
            *self = Self { most: self.most, ..Self::empty(self.units) };
        } else if self.is_much_more_than(other) {
            for run in other.runs() {
                self.cut(run);
            }
        } else {
            self.combine(other, Operation::Difference);
        }
    }

    /// Removes the units that are not in another set.
    pub fn intersect_with(&mut self, other: &Self) {
        if self.count == 0 || other.is_full() && self.units <= other.units {
        } else if other.count == 0 {
            *self = Self { most: self.most, ..Self::empty(self.units) };
        } else {
            self.combine(other, Operation::Intersection);
        }
    }

    /// The units that are in both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let (few, many) = if self.run_count() <= other.run_count() { (self, other) } else { (other, self) };
        let mut both = few.clone();
        both.intersect_with(many);
        if both.units != self.units {
            both = both.with_units(self.units);
        }
        both
    }

    /// The units that are not in the set.
    #[must_use]
    pub fn complement(&self) -> Self {
        let mut all = Self::full(self.units);
        all.subtract(self);
        all
    }

    /// The same set with another number of units.
    fn with_units(&self, units: u32) -> Self {
        let mut built = Builder::new(units);
        self.runs().for_each(|run| built.push(run));
        built.finish()
    }

    /// Whether the other set has so few runs that each can be looked up here.
    fn is_much_more_than(&self, other: &Self) -> bool {
        !matches!(other.stored, Stored::Bits(_)) && other.run_count() <= self.run_count() / FEW
    }

    fn combine(&mut self, other: &Self, operation: Operation) {
        if !matches!(self.stored, Stored::Bits(_)) && !matches!(other.stored, Stored::Bits(_)) {
            let most = self.most;
            *self = merge(self, other, operation);
            self.most = most;
            return;
        }
        if !matches!(self.stored, Stored::Bits(_)) {
            self.become_bits();
        }
        let Stored::Bits(bits) = &mut self.stored else { return };
        match &other.stored {
            Stored::Bits(others) => combine_words(bits, others, operation),
            _ => combine_runs(bits, self.units, other, operation),
        }
        // bits after the last unit stay clear
        let beyond = self.units..bits.words().len() as u32 * super::bits::BITS;
        bits.clear(Run { start: beyond.start, len: beyond.len() as u32 });
        self.recount();
        self.settle();
    }
}

fn combine_words(bits: &mut Bits, others: &Bits, operation: Operation) {
    let others = others.words().iter().copied().chain(std::iter::repeat(0));
    let words = bits.words_mut().iter_mut().zip(others);
    match operation {
        Operation::Union => words.for_each(|(word, other)| *word |= other),
        Operation::Difference => words.for_each(|(word, other)| *word &= !other),
        Operation::Intersection => words.for_each(|(word, other)| *word &= other),
    }
}

fn combine_runs(bits: &mut Bits, units: u32, other: &Container, operation: Operation) {
    let inside = |run: Run| Run { start: run.start, len: run.end().min(units).saturating_sub(run.start) };
    let runs = other.runs().map(inside).filter(|run| run.len > 0);
    match operation {
        Operation::Union => runs.for_each(|run| bits.set(run)),
        Operation::Difference => runs.for_each(|run| bits.clear(run)),
        Operation::Intersection => {
            let mut at = 0;
            for run in runs {
                bits.clear(Run { start: at, len: run.start - at });
                at = run.end();
            }
            bits.clear(Run { start: at, len: units - at });
        }
    }
}

/// Combines two sets, neither of which is bits.
fn merge(one: &Container, two: &Container, operation: Operation) -> Container {
    let mut built = Builder::new(one.units);
    match operation {
        Operation::Union => {
            let (mut a, mut b) = (one.runs().peekable(), two.runs().peekable());
            loop {
                let from_a = match (a.peek(), b.peek()) {
                    (Some(a), Some(b)) => a.start <= b.start,
                    (a, _) => a.is_some(),
                };
                let Some(run) = (if from_a { a.next() } else { b.next() }) else { break };
                built.push(run);
            }
        }
        Operation::Intersection => {
            let (mut a, mut b) = (one.runs(), two.runs());
            let mut next = (a.next(), b.next());
            while let (Some(x), Some(y)) = next {
                let (start, end) = (x.start.max(y.start), x.end().min(y.end()));
                if start < end {
                    built.push(Run { start, len: end - start });
                }
                if x.end() < y.end() { next.0 = a.next() } else { next.1 = b.next() }
            }
        }
        Operation::Difference => {
            let mut gone = two.runs().peekable();
            for run in one.runs() {
                let mut at = run.start;
                while let Some(&next) = gone.peek()
                    && next.start < run.end()
                {
                    if next.start > at {
                        built.push(Run { start: at, len: next.start - at });
                    }
                    at = at.max(next.end());
                    if next.end() > run.end() {
                        break;
                    }
                    gone.next();
                }
                if at < run.end() {
                    built.push(Run { start: at, len: run.end() - at });
                }
            }
        }
    }
    built.finish()
}

/// A set under construction from runs that begin in ascending order and may overlap.
struct Builder {
    units: u32,
    /// The run that the next one may be merged with.
    open: Option<Run>,
    runs: Runs,
    /// Replaces the runs when there are too many.
    bits: Option<Bits>,
}

impl Builder {
    fn new(units: u32) -> Self {
        Self { units, open: None, runs: Runs::default(), bits: None }
    }

    fn push(&mut self, run: Run) {
        let end = run.end().min(self.units);
        match &mut self.open {
            Some(open) if run.start <= open.end() => open.len = end.max(open.end()) - open.start,
            _ if run.start < end => {
                let done = self.open.replace(Run { start: run.start, len: end - run.start });
                self.put(done);
            }
            _ => {}
        }
    }

    fn put(&mut self, run: Option<Run>) {
        let Some(run) = run else { return };
        let most = most_runs(self.units);
        if self.bits.is_none() && self.runs.len() >= most {
            let mut bits = Bits::new(self.units);
            self.runs.from(0).for_each(|run| bits.set(run));
            self.runs = Runs::default();
            self.bits = Some(bits);
        }
        match &mut self.bits {
            Some(bits) => bits.set(run),
            None => self.runs.push(run, most),
        }
    }

    fn finish(mut self) -> Container {
        let open = self.open.take();
        self.put(open);
        let mut container = Container::empty(self.units);
        match self.bits {
            Some(bits) => {
                container.stored = Stored::Bits(bits);
                container.recount();
            }
            None => {
                container.count = self.runs.from(0).map(|run| run.len).sum();
                container.bound = AtomicU32::new(self.runs.longest());
                container.stored = Stored::Runs(self.runs);
            }
        }
        container.compact();
        container
    }
}
