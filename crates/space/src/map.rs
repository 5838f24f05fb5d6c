//! What is free in one stretch of the volume: a bit for each unit (a block, a cluster, an inode).

use std::ops::Range;

/// Units that follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Run {
    /// The first unit.
    pub start: u32,
    /// How many; at least 1 in whatever is returned.
    pub len: u32,
}

impl Run {
    /// The unit behind the last; saturates.
    #[must_use]
    pub fn end(self) -> u32 {
        self.start.saturating_add(self.len)
    }
}

/// What is free in one stretch of the volume, counted from 0.
///
/// A unit is *used*, *free*, or *held*: freed, but not to be allocated yet; or *kept*: freed, but still part of an older
/// version of the volume. What is stored shows held and kept units as free.
pub trait FreeMap {
    /// Units of the stretch.
    fn units(&self) -> u32;

    /// Units that what is stored shows as free: free ones, held ones and kept ones.
    fn free(&self) -> u32;

    /// Units that may be allocated.
    fn available(&self) -> u32;

    /// Free units from `at` on, at most `most` of them.
    fn run_at(&self, at: u32, most: u32) -> u32;

    /// The first run of `want` free units at or behind `from`, then before it; where there is none the longest run there
    /// is, at most `want` long. Only units of `within` are returned, which are runs in ascending order, and a run is part
    /// of one of these. `None` where nothing is free there.
    fn find(&self, within: &[Run], from: u32, want: u32) -> Option<Run>;

    /// Gives a run out. False, with nothing changed, where not all of it is free.
    #[must_use]
    fn take(&mut self, run: Run) -> bool;

    /// Takes a run back; where `held`, it is not given out before [`FreeMap::release`], and no unit of it may be kept.
    /// False, with nothing changed, where not all of it is used.
    #[must_use]
    fn give(&mut self, run: Run, held: bool) -> bool;

    /// What is held of a run becomes free.
    fn release(&mut self, run: Run);
}

const BITS: u32 = u64::BITS;

/// A group's bitmap in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupMap {
    /// A set bit is a unit in use, as it is stored. Bits behind the last unit are set.
    used: Box<[u64]>,
    /// A set bit is a unit that is held; its `used` bit is clear. Empty where none is.
    held: Box<[u64]>,
    /// A set bit is a unit that an older version of the volume uses, whether this one does or not. Empty where there is
    /// none.
    kept: Box<[u64]>,
    units: u32,
    free: u32,
    held_units: u32,
    /// Units that are kept and not used.
    kept_units: u32,
}

impl GroupMap {
    /// All of `units` units free.
    #[must_use]
    pub fn new(units: u32) -> Self {
        Self::from_bytes(&vec![0; units.div_ceil(8) as usize], units)
    }

    /// The bitmap that is stored as `bytes`, the lowest bit of a byte first. What `bytes` does not cover is in use, and so
    /// is what lies behind the last unit.
    #[must_use]
    pub fn from_bytes(bytes: &[u8], units: u32) -> Self {
        let words = units.div_ceil(BITS) as usize;
        let mut used: Box<[u64]> = vec![u64::MAX; words].into();
        for (word, bytes) in used.iter_mut().zip(bytes.chunks(8)) {
            let mut full = [u8::MAX; 8];
            full[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_le_bytes(full);
        }
        if let Some(last) = used.last_mut()
            && !units.is_multiple_of(BITS)
        {
            *last |= u64::MAX << (units % BITS);
        }
        let free = used.iter().map(|word| word.count_zeros()).sum();
        let (held, kept) = Default::default();
        Self { used, held, kept, units, free, held_units: 0, kept_units: 0 }
    }

    /// Writes the bitmap into a block, held units as free; all bits behind the last unit are set.
    pub fn write(&self, block: &mut [u8]) {
        block.fill(u8::MAX);
        for (bytes, word) in block.chunks_mut(8).zip(&self.used) {
            let length = bytes.len();
            bytes.copy_from_slice(&word.to_le_bytes()[..length]);
        }
    }

    /// Units that are held.
    #[must_use]
    pub fn held(&self) -> u32 {
        self.held_units
    }

    /// Units that are kept: an older version of the volume uses them, and this one does not.
    #[must_use]
    pub fn kept(&self) -> u32 {
        self.kept_units
    }

    /// An older version of the volume uses the units whose bits are set, and those that were said before. None of them is
    /// held.
    pub fn keep(&mut self, units: &[u64]) {
        if self.kept.is_empty() && units.iter().any(|word| *word != 0) {
            self.kept = vec![0; self.used.len()].into();
        }
        self.kept.iter_mut().zip(units).for_each(|(kept, more)| *kept |= more);
        self.count_kept();
    }

    /// What is used now is part of an older version of the volume from now on.
    pub fn keep_used(&mut self) {
        let used = self.used.clone();
        self.keep(&used);
    }

    /// No older version of the volume uses the units whose bits are set any more. Those of them that were kept become held,
    /// and are given, ascending.
    pub fn unkeep(&mut self, units: &[u64]) -> Vec<Run> {
        let mut freed: Vec<Run> = Vec::new();
        for (word, mask) in units.iter().enumerate() {
            let (Some(kept), Some(used)) = (self.kept.get_mut(word), self.used.get(word)) else { break };
            let mut bits = *kept & mask & !used;
            *kept &= !mask;
            while bits != 0 {
                let from = bits.trailing_zeros();
                let len = (bits >> from).trailing_ones();
                let start = word as u32 * BITS + from;
                match freed.last_mut() {
                    Some(last) if last.end() == start => last.len += len,
                    _ => freed.push(Run { start, len }),
                }
                bits = if from + len >= BITS { 0 } else { bits & (u64::MAX << (from + len)) };
            }
        }
        freed.iter().for_each(|run| self.hold(*run));
        self.count_kept();
        freed
    }

    /// The first units of a run that are alike in whether an older version uses them: how many, and whether.
    #[must_use]
    pub fn kept_at(&self, run: Run) -> (u32, bool) {
        if self.kept.is_empty() {
            return (run.len, false);
        }
        let kept = |word: usize| self.kept.get(word).copied().unwrap_or_default();
        let first = kept((run.start / BITS) as usize) >> (run.start % BITS) & 1 == 1;
        let others = |word: usize| if first { !kept(word) } else { kept(word) };
        let other = parts(run).find(|(word, mask)| others(*word) & mask != 0);
        let len = other.map(|(word, mask)| word as u32 * BITS + (others(word) & mask).trailing_zeros() - run.start);
        (len.unwrap_or(run.len), first)
    }

    fn count_kept(&mut self) {
        self.kept_units = self.kept.iter().zip(&self.used).map(|(kept, used)| (kept & !used).count_ones()).sum();
        if self.kept.iter().all(|word| *word == 0) {
            self.kept = Box::default();
        }
    }

    /// A run that is free is held from now on; nothing happens where a part of it is not available.
    pub fn hold_free(&mut self, run: Run) {
        if self.inside(run) && self.run_at(run.start, run.len) == run.len {
            self.hold(run);
        }
    }

    fn hold(&mut self, run: Run) {
        if self.held.is_empty() {
            self.held = vec![0; self.used.len()].into();
        }
        parts(run).for_each(|(word, mask)| self.held[word] |= mask);
        self.held_units += run.len;
    }

    /// Whether all units of a run are in use, as it is stored. A run that reaches beyond the last unit is.
    #[must_use]
    pub fn is_used(&self, run: Run) -> bool {
        parts(self.clip(run)).all(|(word, mask)| self.used.get(word).is_none_or(|used| used & mask == mask))
    }

    /// The first run of at least `least` available units that begins in a range, as far as it lies in it.
    #[must_use]
    pub fn next_run(&self, range: Range<u32>, least: u32) -> Option<Run> {
        let mut at = self.next(range.start.min(self.units), true);
        while at < range.end.min(self.units) {
            let end = self.next(at, false).min(range.end);
            if end - at >= least {
                return Some(Run { start: at, len: end - at });
            }
            at = self.next(end, true);
        }
        None
    }

    fn clip(&self, run: Run) -> Run {
        let start = run.start.min(self.units);
        Run { start, len: run.end().min(self.units) - start }
    }

    fn inside(&self, run: Run) -> bool {
        run.start < self.units && run.len <= self.units - run.start
    }

    /// The bits of a word that may not be allocated.
    fn taken(&self, word: usize) -> u64 {
        let of = |bits: &[u64]| bits.get(word).copied().unwrap_or(0);
        self.used.get(word).copied().unwrap_or(u64::MAX) | of(&self.held) | of(&self.kept)
    }

    /// The first unit at or behind `at` that is available, or is not; the number of units where there is none.
    fn next(&self, at: u32, available: bool) -> u32 {
        let mut word = (at / BITS) as usize;
        let mut mask = u64::MAX << (at % BITS);
        if available && self.held.is_empty() && self.kept.is_empty() {
            let behind = self.used.get(word + 1..).unwrap_or_default();
            if self.used.get(word).is_some_and(|used| !used & mask == 0) {
                word += 1 + behind.iter().take_while(|used| **used == u64::MAX).count();
                mask = u64::MAX;
            }
        }
        while word < self.used.len() {
            let taken = self.taken(word);
            let hits = mask & if available { !taken } else { taken };
            if hits != 0 {
                return (word as u32 * BITS + hits.trailing_zeros()).min(self.units);
            }
            (word, mask) = (word + 1, u64::MAX);
        }
        self.units
    }

    /// The first run of `want` units that begins in `from..to` and ends before `limit`, else the longest run that does.
    fn search(&self, from: u32, to: u32, limit: u32, want: u32) -> Option<Run> {
        let mut best: Option<Run> = None;
        let mut at = self.next(from, true);
        while at < to {
            let run = Run { start: at, len: self.free_from(at, (limit - at).min(want)) };
            if best.is_none_or(|best| run.len > best.len) {
                best = Some(run);
                if run.len == want {
                    break;
                }
            }
            at = self.next(run.end(), true);
        }
        best
    }

    /// Available units from `at` on, at most `most` of them.
    fn free_from(&self, at: u32, most: u32) -> u32 {
        let (mut len, mut word, mut bit) = (0, (at / BITS) as usize, at % BITS);
        while len < most && word < self.used.len() {
            let free = (self.taken(word) >> bit).trailing_zeros().min(BITS - bit);
            len += free;
            if free < BITS - bit {
                break;
            }
            (word, bit) = (word + 1, 0);
        }
        len.min(most)
    }
}

/// The words that a run touches, each with the mask of its bits in the run.
fn parts(run: Run) -> impl Iterator<Item = (usize, u64)> {
    let (first, end) = (u64::from(run.start), u64::from(run.start) + u64::from(run.len));
    let words = (first / 64)..end.div_ceil(64);
    words.filter(move |_| run.len > 0).map(move |word| {
        let low = first.max(word * 64) - word * 64;
        let high = end.min(word * 64 + 64) - word * 64;
        let mask = (u64::MAX >> (64 - (high - low))) << low;
        (word as usize, mask)
    })
}

impl FreeMap for GroupMap {
    fn units(&self) -> u32 {
        self.units
    }

    fn free(&self) -> u32 {
        self.free
    }

    fn available(&self) -> u32 {
        self.free - self.held_units - self.kept_units
    }

    fn run_at(&self, at: u32, most: u32) -> u32 {
        self.free_from(at, most)
    }

    fn find(&self, within: &[Run], from: u32, want: u32) -> Option<Run> {
        if self.available() == 0 || want == 0 {
            return None;
        }
        let behind = within.iter().map(|run| (run.start.max(from), run.end(), run.end()));
        let before = within.iter().map(|run| (run.start, run.end().min(from), run.end()));
        let mut best: Option<Run> = None;
        for (start, to, limit) in behind.chain(before) {
            let (to, limit) = (to.min(self.units), limit.min(self.units));
            if let Some(run) = self.search(start, to, limit, want)
                && best.is_none_or(|best| run.len > best.len)
            {
                best = Some(run);
                if run.len == want {
                    break;
                }
            }
        }
        best
    }

    fn take(&mut self, run: Run) -> bool {
        if !self.inside(run) || parts(run).any(|(word, mask)| self.taken(word) & mask != 0) {
            return false;
        }
        parts(run).for_each(|(word, mask)| self.used[word] |= mask);
        self.free -= run.len;
        true
    }

    fn give(&mut self, run: Run, held: bool) -> bool {
        if !self.inside(run) || !self.is_used(run) {
            return false;
        }
        parts(run).for_each(|(word, mask)| self.used[word] &= !mask);
        self.free += run.len;
        let kept = |(word, mask): (usize, u64)| self.kept.get(word).map_or(0, |kept| (kept & mask).count_ones());
        self.kept_units += parts(run).map(kept).sum::<u32>();
        if held {
            self.hold(run);
        }
        true
    }

    fn release(&mut self, run: Run) {
        for (word, mask) in parts(self.clip(run)) {
            if let Some(held) = self.held.get_mut(word) {
                self.held_units -= (*held & mask).count_ones();
                *held &= !mask;
            }
        }
        if self.held_units == 0 {
            self.held = Box::default();
        }
    }
}
