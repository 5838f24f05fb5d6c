//! A set of units as a bit for each, in words of 64.
//!
//! Searches examine whole words: a run of `n` units that is shorter than a word begins where `n` shifted copies of the
//! bits agree, and one of more than two words contains words of ones only, so only every k-th word has to be examined.

use crate::Run;

/// Units in a word.
pub(super) const BITS: u32 = u64::BITS;
/// The maximum number of words examined on each side of a run for the length of the run that it has become part of.
const NEAR: usize = 8;

/// The words of a set; bits after the last unit are clear.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bits {
    words: Box<[u64]>,
}

/// A run in words: the first and the last word, and the run's bits in each.
struct Span {
    first: usize,
    last: usize,
    head: u64,
    tail: u64,
}

impl Span {
    /// The span of a run of at least one unit.
    fn of(run: Run) -> Self {
        let last = run.start + (run.len - 1);
        let head = u64::MAX << (run.start % BITS);
        let tail = u64::MAX >> (BITS - 1 - last % BITS);
        Self { first: (run.start / BITS) as usize, last: (last / BITS) as usize, head, tail }
    }
}

/// The neighbours of a run's bits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sides {
    /// The unit before the run is in the set.
    pub(super) left: bool,
    /// The unit after the run is in the set.
    pub(super) right: bool,
}

impl Bits {
    /// Creates an empty set.
    pub(super) fn new(units: u32) -> Self {
        Self { words: vec![0; units.div_ceil(BITS) as usize].into() }
    }

    pub(super) fn words(&self) -> &[u64] {
        &self.words
    }

    pub(super) fn words_mut(&mut self) -> &mut [u64] {
        &mut self.words
    }

    /// Memory on the heap in bytes.
    pub(super) fn memory(&self) -> usize {
        self.words.len() * size_of::<u64>()
    }

    fn word(&self, at: usize) -> u64 {
        self.words.get(at).copied().unwrap_or(0)
    }

    fn bit(&self, unit: u32) -> bool {
        self.word((unit / BITS) as usize) >> (unit % BITS) & 1 == 1
    }

    /// Whether `same` returns true for each word of a run, masked to the run.
    #[inline]
    fn every(&self, run: Run, same: impl Fn(u64, u64) -> bool) -> bool {
        let Some(span) = (run.len > 0).then(|| Span::of(run)) else { return true };
        if span.first == span.last {
            return same(self.word(span.first), span.head & span.tail);
        }
        let inner = self.words.get(span.first + 1..span.last).unwrap_or_default();
        same(self.word(span.first), span.head)
            && same(self.word(span.last), span.tail)
            && inner.iter().all(|word| same(*word, u64::MAX))
    }

    #[inline]
    fn change(&mut self, run: Run, change: impl Fn(&mut u64, u64)) {
        let Some(span) = (run.len > 0).then(|| Span::of(run)) else { return };
        let Some(words) = self.words.get_mut(span.first..=span.last) else { return };
        match words {
            [only] => change(only, span.head & span.tail),
            [first, inner @ .., last] => {
                change(first, span.head);
                inner.iter_mut().for_each(|word| change(word, u64::MAX));
                change(last, span.tail);
            }
            [] => {}
        }
    }

    /// Whether all of a run is in the set.
    #[inline]
    pub(super) fn contains(&self, run: Run) -> bool {
        self.every(run, |word, mask| !word & mask == 0)
    }

    /// Whether a part of a run is in the set.
    #[inline]
    pub(super) fn intersects(&self, run: Run) -> bool {
        !self.every(run, |word, mask| word & mask == 0)
    }

    /// Adds all of a run to the set.
    #[inline]
    pub(super) fn set(&mut self, run: Run) {
        self.change(run, |word, mask| *word |= mask);
    }

    /// Removes all of a run from the set.
    #[inline]
    pub(super) fn clear(&mut self, run: Run) {
        self.change(run, |word, mask| *word &= !mask);
    }

    /// Whether the units next to a run are in the set.
    #[inline]
    pub(super) fn sides(&self, run: Run) -> Sides {
        Sides { left: run.start > 0 && self.bit(run.start - 1), right: self.bit(run.end()) }
    }

    /// The number of units of a run that are in the set.
    pub(super) fn count(&self, run: Run) -> u32 {
        let Some(span) = (run.len > 0).then(|| Span::of(run)) else { return 0 };
        if span.first == span.last {
            return (self.word(span.first) & span.head & span.tail).count_ones();
        }
        let inner = self.words.get(span.first + 1..span.last).unwrap_or_default();
        (self.word(span.first) & span.head).count_ones()
            + inner.iter().map(|word| word.count_ones()).sum::<u32>()
            + (self.word(span.last) & span.tail).count_ones()
    }

    /// The number of units and of runs in the set.
    pub(super) fn totals(&self) -> (u32, u32) {
        let (mut units, mut runs, mut carry) = (0, 0, 0);
        for &word in &self.words {
            units += word.count_ones();
            runs += (word & !(word << 1 | carry)).count_ones();
            carry = word >> (BITS - 1);
        }
        (units, runs)
    }

    /// Calls `part` with the parts that runs have in each word, ascending.
    pub(super) fn for_each_part(&self, mut part: impl FnMut(Run)) {
        for (word, at) in self.words.iter().zip((0..).step_by(BITS as usize)) {
            let mut bits = *word;
            let mut start = at;
            while bits != 0 {
                let zeros = bits.trailing_zeros();
                let len = (bits >> zeros).trailing_ones();
                part(Run { start: start + zeros, len });
                if zeros + len == BITS {
                    break;
                }
                bits >>= zeros + len;
                start += zeros + len;
            }
        }
    }

    /// The first unit in `at..end` that is in the set; `end` if there is none.
    pub(super) fn next_in(&self, at: u32, end: u32) -> u32 {
        self.next(at, end, |word| word)
    }

    /// The first unit in `at..end` that is not in the set; `end` if there is none.
    pub(super) fn next_out(&self, at: u32, end: u32) -> u32 {
        self.next(at, end, |word| !word)
    }

    #[inline]
    fn next(&self, at: u32, end: u32, of: impl Fn(u64) -> u64) -> u32 {
        if at >= end {
            return end;
        }
        let first = (at / BITS) as usize;
        let hits = of(self.word(first)) & u64::MAX << (at % BITS);
        if hits != 0 {
            return ((at & !(BITS - 1)) + hits.trailing_zeros()).min(end);
        }
        let last = end.div_ceil(BITS) as usize;
        let mut behind = self.words.get(first + 1..last).unwrap_or_default();
        let mut word = first + 1;
        while let Some((eight, rest)) = behind.split_first_chunk::<8>()
            && eight.iter().fold(0, |any, word| any | of(*word)) == 0
        {
            (behind, word) = (rest, word + 8);
        }
        match behind.iter().position(|word| of(*word) != 0) {
            Some(n) => {
                let word = word + n;
                (word as u32 * BITS + of(self.word(word)).trailing_zeros()).min(end)
            }
            None => end,
        }
    }

    /// An upper bound of the length of the run that contains `run`, which is in the set; exact if that run ends nearby.
    pub(super) fn length_around(&self, run: Run, sides: Sides) -> u32 {
        let mut len = run.len;
        if sides.right {
            let (first, bit) = ((run.end() / BITS) as usize, run.end() % BITS);
            len += (!(self.word(first) >> bit)).trailing_zeros();
            if bit + (!(self.word(first) >> bit)).trailing_zeros() >= BITS {
                let behind = self.words.get(first + 1..).unwrap_or_default();
                len += reach(behind.iter(), |word| word.trailing_ones());
            }
        }
        if sides.left {
            let (last, bits) = (((run.start - 1) / BITS) as usize, (run.start - 1) % BITS + 1);
            let ones = (self.word(last) << (BITS - bits)).leading_ones();
            len = len.saturating_add(ones.min(bits));
            if ones >= bits {
                let before = self.words.get(..last).unwrap_or_default();
                len = len.saturating_add(reach(before.iter().rev(), |word| word.leading_ones()));
            }
        }
        len.min(self.words.len() as u32 * BITS)
    }

    /// The first unit `p` in `from..to` with all of `p..p + n` in the set and before `limit`; `n` is at least 1.
    #[inline]
    pub(super) fn first_fit(&self, from: u32, to: u32, limit: u32, n: u32) -> Option<u32> {
        let to = to.min((limit + 1).saturating_sub(n));
        if from >= to {
            return None;
        }
        let found = match n {
            1 => Some(self.next_in(from, to)),
            ..=BITS => self.first_short(from, to, n),
            _ => self.first_long(from, limit, n),
        };
        found.filter(|unit| *unit < to)
    }

    fn first_short(&self, from: u32, to: u32, n: u32) -> Option<u32> {
        let mut at = (from / BITS) as usize;
        let end = to.div_ceil(BITS) as usize;
        let mut here = self.word(at) & u64::MAX << (from % BITS);
        loop {
            if here == 0 {
                let behind = self.words.get(at + 1..end)?;
                at += 1 + behind.iter().position(|word| *word != 0)?;
                here = self.word(at);
            }
            // most often the first run that begins in a word is long enough
            let zeros = here.trailing_zeros();
            if (here >> zeros).trailing_ones() >= n {
                return Some(at as u32 * BITS + zeros);
            }
            let next = self.word(at + 1);
            let hits = begins(here, next, n);
            if hits != 0 {
                return Some(at as u32 * BITS + hits.trailing_zeros());
            }
            at += 1;
            if at >= end {
                return None;
            }
            here = next;
        }
    }

    /// As [`Bits::first_fit`], for runs of more than a word.
    fn first_long(&self, from: u32, limit: u32, n: u32) -> Option<u32> {
        // the number of whole words in a run of this length, at least
        let step = (((n + 1) / BITS) as usize).saturating_sub(1);
        if step == 0 {
            return self.first_carried(from, limit, n);
        }
        let last = limit.div_ceil(BITS) as usize;
        let begin = from.div_ceil(BITS) as usize;
        let mut at = begin + step - 1;
        while at < last {
            if self.word(at) != u64::MAX {
                at += step;
                continue;
            }
            // back to the start of the run, which is after the previously examined word
            let mut start = at;
            while start > begin && self.word(start - 1) == u64::MAX {
                start -= 1;
            }
            let unit = start as u32 * BITS;
            let ones = if start == 0 { 0 } else { self.word(start - 1).leading_ones() };
            let unit = unit.saturating_sub(ones).max(from);
            let enough = limit.min(unit + n);
            let end = self.next_out(at as u32 * BITS, enough.max(at as u32 * BITS));
            if end - unit >= n {
                return Some(unit);
            }
            at = (end / BITS) as usize + step;
        }
        None
    }

    fn first_carried(&self, from: u32, limit: u32, n: u32) -> Option<u32> {
        let first = (from / BITS) as usize;
        let mut mask = u64::MAX << (from % BITS);
        let mut carry = 0;
        for (at, word) in self.words.iter().enumerate().take(limit.div_ceil(BITS) as usize).skip(first) {
            let word = word & mask;
            if carry + word.trailing_ones() >= n {
                return Some(at as u32 * BITS - carry);
            }
            carry = if word == u64::MAX { carry + BITS } else { word.leading_ones() };
            mask = u64::MAX;
        }
        None
    }

    /// The last unit `p` with all of `p..p + n` in the set and before `limit`; a unit before `from` may be missed.
    pub(super) fn last_fit(&self, from: u32, limit: u32, n: u32) -> Option<u32> {
        let limit = limit.min(self.words.len() as u32 * BITS);
        // the end of the run whose lower part is examined
        let mut end = limit;
        let mut at = limit;
        while at > from {
            let index = ((at - 1) / BITS) as usize;
            let base = index as u32 * BITS;
            // only the bits before `at`, moved to the top of the word
            let word = self.word(index) << (BITS - (at - base));
            let ones = word.leading_ones().min(at - base);
            at -= ones;
            if end - at >= n {
                return Some(end - n);
            }
            if at > base {
                // the run ends here; on to the next lower one
                let zeros = (word << (ones % BITS)).leading_zeros().min(at - base);
                at -= zeros;
                end = at;
            }
        }
        None
    }

    /// The longest run that begins in `from..to` and ends before `limit`, the first of those; only if it has more than
    /// `over` units. The caller ensures that all runs have fewer than `below`.
    pub(super) fn longest(&self, from: u32, to: u32, limit: u32, over: u32, below: u32) -> Option<Run> {
        let mut best: Option<Run> = None;
        let mut at = from;
        loop {
            let least = best.map_or(over, |best| best.len) + 1;
            if least >= below {
                return best;
            }
            let Some(start) = self.first_fit(at, to, limit, least) else { return best };
            at = self.next_out(start, limit);
            best = Some(Run { start, len: at - start });
        }
    }
}

/// The number of ones at the near ends of words, without a gap; saturates for long runs.
fn reach<'a>(words: impl Iterator<Item = &'a u64>, ones: impl Fn(u64) -> u32) -> u32 {
    let mut len = 0;
    for (n, word) in words.enumerate() {
        if n == NEAR {
            return u32::MAX / 4;
        }
        len += ones(*word);
        if *word != u64::MAX {
            break;
        }
    }
    len
}

/// The bits of a word at which `n` set bits begin, which may extend into the next word; `n` is from 1 to 64.
#[inline]
fn begins(this: u64, next: u64, n: u32) -> u64 {
    let mut both = u128::from(next) << BITS | u128::from(this);
    let mut have = 1;
    while have < n {
        let step = have.min(n - have);
        both &= both >> step;
        have += step;
    }
    both as u64
}
