//! Conversion of a container from and to a bitmap, and changes of its form.

use super::bits::Bits;
use super::runs::Runs;
use super::{Container, Stored, bits, runs};
use crate::Run;

impl Container {
    /// Creates the set of units whose bits are clear in a stored bitmap, the lowest bit of a byte first: the free
    /// units. Units beyond `bytes` are not in the set.
    #[must_use]
    pub fn from_bitmap(bytes: &[u8], units: u32) -> Self {
        Self::from_words(units, words_of(bytes).map(|(word, mask)| !word & mask))
    }

    /// Creates the set of units whose bits are set in a stored bitmap: the units in use. Units beyond `bytes` are not
    /// in the set.
    #[must_use]
    pub fn from_set_bits(bytes: &[u8], units: u32) -> Self {
        Self::from_words(units, words_of(bytes).map(|(word, _)| word))
    }

    /// As [`Container::from_bitmap`], for a set that will be changed often; see [`Container::limit_runs`].
    pub(crate) fn from_bitmap_to_change(bytes: &[u8], units: u32, runs: u32) -> Self {
        let mut container = Self::read(units, words_of(bytes).map(|(word, mask)| !word & mask));
        container.limit_runs(runs);
        if container.bit_runs <= container.most / 2 {
            container.compact();
        }
        container
    }

    fn from_words(units: u32, words: impl Iterator<Item = u64>) -> Self {
        let mut container = Self::read(units, words);
        container.compact();
        container
    }

    /// Creates a set stored as bits, whatever its content.
    pub(super) fn read(units: u32, words: impl Iterator<Item = u64>) -> Self {
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
        container
    }

    /// Writes the set as a bitmap in which a clear bit is a unit of the set; all other bits of the block are set.
    pub fn write_bitmap(&self, block: &mut [u8]) {
        block.fill(u8::MAX);
        self.clear_bits(block);
    }

    /// Clears the bit of each unit of the set in a bitmap. Units beyond its end are ignored.
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

    /// Changes to the smallest form.
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

    /// Changes to another form after a change, if that is clearly smaller.
    #[inline]
    pub(super) fn settle(&mut self) {
        match &self.stored {
            Stored::Bits(_) => {
                // half of the number at which runs become bits: the changes in between pay for the conversion
                let is_limited = (self.most as usize) < most_runs(self.units);
                let few = if is_limited { u32::from(self.count > self.units / 2) } else { self.most / 2 };
                if self.bit_runs <= few && self.most > 0 && few > 0 {
                    self.become_runs(self.most as usize / 8);
                }
            }
            Stored::Runs(runs) => {
                // a set that is alternately full and empty does not allocate each time
                if self.count == self.units && runs.memory() > Self::SLACK {
                    self.stored = Stored::Full;
                }
            }
            Stored::Full => {}
        }
    }

    /// Prepares a change that may add a run: converts to bits if there is no space for a run, and converts a full set.
    pub(super) fn make_space(&mut self) {
        match &self.stored {
            Stored::Runs(runs) if runs.len() >= self.most as usize => self.become_bits(),
            Stored::Full => self.open(),
            _ => {}
        }
    }

    /// Converts a full set to one run, or to bits.
    #[cold]
    pub(super) fn open(&mut self) {
        if self.most == 0 {
            return self.become_bits();
        }
        let mut runs = Runs::default();
        runs.push(Run { start: 0, len: self.units }, self.most as usize);
        self.stored = Stored::Runs(runs);
    }

    #[cold]
    pub(super) fn become_bits(&mut self) {
        let mut bits = Bits::new(self.units);
        self.runs().for_each(|run| bits.set(run));
        self.bit_runs = self.run_count();
        self.stored = Stored::Bits(bits);
    }

    /// Converts to runs, with space for `more` further runs.
    #[cold]
    pub(super) fn become_runs(&mut self, more: usize) {
        let most = most_runs(self.units);
        let mut runs = Runs::with_capacity((self.bit_runs as usize + more).min(most));
        match &self.stored {
            Stored::Bits(bits) if self.bit_runs > self.units / 256 => bits.for_each_part(|part| runs.push(part, most)),
            _ => self.runs().for_each(|run| runs.push(run, most)),
        }
        self.stored = Stored::Runs(runs);
    }

    /// Recounts the units and runs of bits.
    pub(super) fn recount(&mut self) {
        if let Stored::Bits(bits) = &self.stored {
            (self.count, self.bit_runs) = bits.totals();
            *self.bound.get_mut() = self.count;
        }
    }
}

/// The maximum number of runs of a container: with these they take no more memory than its bitmap.
pub(super) fn most_runs(units: u32) -> usize {
    if units > runs::MOST_UNITS { 0 } else { units.div_ceil(bits::BITS) as usize * 2 }
}

/// The words of a stored bitmap, each with a mask of the bits that exist.
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

/// Clears a run's bits in a bitmap, as far as they exist.
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
