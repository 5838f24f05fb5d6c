//! The chunk table in memory: the physical blocks of the metadata regions.
//!
//! A physical block is *used* by the generation under construction, *pinned* by a snapshot, or *deferred*: used by the
//! newest durable generation and not by the one under construction. It can be allocated if it is none of the three, so
//! nothing that the newest durable generation references is ever overwritten.

use super::Map;
use crate::mutant::{Injected, Mutant};
use crate::{Error, Result};
use format::native::chunk_table::{self, Chunk, RECORDS, WORDS};
use format::native::{CHUNK_BLOCKS, HEAD, Layout};
use format::{Error as FormatError, Structure};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A bit for each physical block of a chunk.
pub(crate) type Bits = [u64; WORDS];

/// A chunk of the regions.
struct Slot {
    chunk: Chunk,
    /// Used, pinned or deferred.
    busy: Bits,
}

/// The chunks of the regions, for allocators that must avoid them. Empty for a volume that is not open for writing.
#[derive(Default)]
pub(crate) struct Regions(Box<[AtomicU64]>);

impl Regions {
    /// Creates an empty set for a volume with `chunks` chunks.
    pub(crate) fn new(chunks: u32) -> Self {
        Self((0..chunks.div_ceil(64)).map(|_| AtomicU64::new(0)).collect())
    }

    fn set(&self, number: u32, of_regions: bool) {
        let Some(word) = self.0.get(number as usize / 64) else { return };
        let bit = 1 << (number % 64);
        if of_regions {
            word.fetch_or(bit, Ordering::Release);
        } else {
            word.fetch_and(!bit, Ordering::Release);
        }
    }

    /// Whether any of these blocks of the device is in a chunk of the regions.
    pub(crate) fn meet(&self, blocks: Range<u64>) -> bool {
        let size = u64::from(CHUNK_BLOCKS);
        let (first, end) = (blocks.start / size, blocks.end.div_ceil(size).min(64 * self.0.len() as u64));
        (first..end).any(|chunk| {
            let word = self.0.get((chunk / 64) as usize);
            word.is_some_and(|word| word.load(Ordering::Acquire) >> (chunk % 64) & 1 == 1)
        })
    }
}

/// All chunks of the metadata regions, with the states of their physical blocks.
pub(crate) struct ChunkTable {
    /// The slots, in the order of the records on the device.
    slots: Vec<Option<Slot>>,
    by_number: BTreeMap<u32, usize>,
    /// The set of chunks, shared with allocators.
    regions: Arc<Regions>,
    pinned: BTreeMap<u32, Bits>,
    /// The blocks at the device's start are reserved, and count as pinned.
    reserved: bool,
    available: usize,
    deferred: Vec<u64>,
    /// Changed blocks of the table, counted from its start.
    dirty: BTreeSet<u64>,
    /// The run of free physical blocks that is allocated next.
    run: Range<u64>,
    /// The start of the last run that was searched for.
    cursor: u64,
    /// The defect that is injected on purpose.
    pub(crate) mutant: Injected<Mutant>,
}

fn unknown() -> Error {
    FormatError::corrupt(Structure::ChunkTable, "a block in use is outside the regions, or free").into()
}

/// The chunks of a generation, from its chunk table and its map log.
pub(crate) fn table(map: &Map, chunks: u32) -> Result<Vec<Option<Chunk>>> {
    let mut all = Vec::new();
    for block in 0..u64::from(chunks.div_ceil(RECORDS)) {
        match map.block(map.layout.table().start + block)? {
            Some(bytes) => all.extend(chunk_table::parse(&bytes, &map.layout)?),
            None => all.extend(vec![None; RECORDS as usize]),
        }
    }
    all.truncate(chunks as usize);
    let log = map.log();
    let mut mark = |physical: u64, used: bool| {
        let (number, word, bit) = chunk_table::bit_of(physical);
        let chunk = all.iter_mut().flatten().find(|chunk| chunk.number == number).ok_or_else(unknown)?;
        chunk.used[word] = if used { chunk.used[word] | bit } else { chunk.used[word] & !bit };
        Ok::<(), Error>(())
    };
    for index in log.keys() {
        map.before_log(*index)?.map_or(Ok(()), |entry| mark(entry.physical, false))?;
    }
    for entry in log.values().flatten() {
        mark(entry.physical, true)?;
    }
    Ok(all)
}

/// Adds the blocks that chunks use to the pinned ones.
pub(crate) fn unite<'a>(pinned: &mut BTreeMap<u32, Bits>, chunks: impl IntoIterator<Item = &'a Chunk>) {
    for chunk in chunks {
        let bits = pinned.entry(chunk.number).or_insert([0; WORDS]);
        bits.iter_mut().zip(chunk.used).for_each(|(pinned, used)| *pinned |= used);
    }
}

/// The blocks that snapshots pin, and those reserved at the device's start: neither can be allocated.
fn with_reserved(mut pinned: BTreeMap<u32, Bits>, reserved: bool) -> BTreeMap<u32, Bits> {
    for physical in HEAD.filter(|_| reserved) {
        let (number, word, bit) = chunk_table::bit_of(physical);
        pinned.entry(number).or_insert([0; WORDS])[word] |= bit;
    }
    pinned
}

impl ChunkTable {
    /// Creates the table of a generation; `reserved` is the value in its superblock. Adds the chunks to `regions`.
    ///
    /// # Errors
    /// `Corrupt` if a chunk is listed twice.
    pub(crate) fn new(
        table: Vec<Option<Chunk>>,
        pinned: BTreeMap<u32, Bits>,
        reserved: bool,
        regions: Arc<Regions>,
    ) -> Result<Self> {
        let mut chunk_table = Self {
            slots: Vec::new(),
            by_number: BTreeMap::new(),
            regions,
            pinned: with_reserved(pinned, reserved),
            reserved,
            available: 0,
            deferred: Vec::new(),
            dirty: BTreeSet::new(),
            run: 0..0,
            cursor: 0,
            mutant: Injected::default(),
        };
        for (n, record) in table.into_iter().enumerate() {
            let slot = record.map(|chunk| Slot { chunk, busy: chunk.used });
            if let Some(slot) = &slot
                && chunk_table.by_number.insert(slot.chunk.number, n).is_some()
            {
                return Err(FormatError::corrupt(Structure::ChunkTable, "a chunk is listed twice").into());
            }
            if let Some(slot) = &slot {
                chunk_table.regions.set(slot.chunk.number, true);
            }
            chunk_table.slots.push(slot);
        }
        chunk_table.count();
        Ok(chunk_table)
    }

    /// Recounts the physical blocks that can be allocated.
    fn count(&mut self) {
        self.available = 0;
        for slot in self.slots.iter_mut().flatten() {
            let pinned = self.pinned.get(&slot.chunk.number).copied().unwrap_or_default();
            for ((busy, used), pinned) in slot.busy.iter_mut().zip(slot.chunk.used).zip(pinned) {
                *busy = used | pinned;
                self.available += busy.count_zeros() as usize;
            }
        }
        // blocks of the run may not be free any more
        self.run = 0..0;
    }

    /// Sets the blocks that snapshots pin. No block may be deferred.
    pub(crate) fn set_pinned(&mut self, pinned: BTreeMap<u32, Bits>) {
        self.pinned = with_reserved(pinned, self.reserved);
        self.count();
    }

    /// Pins all used blocks, for a new snapshot.
    pub(crate) fn pin_used(&mut self) {
        unite(&mut self.pinned, self.slots.iter().flatten().map(|slot| &slot.chunk));
    }

    /// The chunks, grouped by the blocks of the table.
    pub(crate) fn tables(&self) -> impl Iterator<Item = Vec<Option<Chunk>>> + '_ {
        self.slots
            .chunks(RECORDS as usize)
            .map(|slots| slots.iter().map(|slot| slot.as_ref().map(|s| s.chunk)).collect())
    }

    /// Removes and returns chunks without used, deferred or pinned blocks that are in no snapshot, as many as leave
    /// `least` physical blocks or more: those with the highest numbers first.
    pub(crate) fn surplus(&mut self, least: usize) -> Vec<u32> {
        let mut granted = Vec::new();
        let numbers: Vec<u32> = self.by_number.keys().rev().copied().collect();
        for number in numbers {
            if self.allocatable() < least.saturating_add(CHUNK_BLOCKS as usize) {
                break;
            }
            let Some(&at) = self.by_number.get(&number) else { continue };
            let empty = self.slots.get(at).and_then(Option::as_ref).is_some_and(|slot| slot.busy == [0; WORDS]);
            if !empty || self.pinned.contains_key(&number) {
                continue;
            }
            self.remove(number);
            granted.push(number);
        }
        granted
    }

    /// Removes a chunk without used or deferred blocks.
    pub(crate) fn remove(&mut self, number: u32) {
        let Some(at) = self.by_number.remove(&number) else { return };
        self.regions.set(number, false);
        if let Some(slot) = self.slots.get_mut(at).and_then(Option::take) {
            self.available -= slot.busy.iter().map(|word| word.count_zeros() as usize).sum::<usize>();
        }
        self.dirty.insert(at as u64 / u64::from(RECORDS));
        while self.slots.last().is_some_and(Option::is_none) {
            self.slots.pop();
        }
        self.run = 0..0;
    }

    /// The chunk with the fewest physical blocks in use that is in no snapshot, if `least` physical blocks or more
    /// remain without it. Never the first one, which contains the superblocks.
    pub(crate) fn emptiest(&self, least: usize) -> Option<u32> {
        if self.allocatable() < least.saturating_add(CHUNK_BLOCKS as usize) {
            return None;
        }
        let slots = self.slots.iter().flatten().map(|slot| &slot.chunk);
        let chunks = slots.filter(|chunk| chunk.number != 0 && !self.pinned.contains_key(&chunk.number));
        chunks.min_by_key(|chunk| (chunk.count(), std::cmp::Reverse(chunk.number))).map(|chunk| chunk.number)
    }

    /// Physical blocks in use.
    pub(crate) fn used(&self) -> usize {
        self.slots.iter().flatten().map(|slot| slot.chunk.count() as usize).sum()
    }

    /// Whether no physical block of a chunk is in use.
    pub(crate) fn is_empty(&self, number: u32) -> bool {
        let slot = self.by_number.get(&number).and_then(|at| self.slots.get(*at)).and_then(Option::as_ref);
        slot.is_none_or(|slot| slot.chunk.count() == 0)
    }

    /// Excludes a chunk from allocation, or includes it again.
    pub(crate) fn close_chunk(&mut self, number: u32, closed: bool) {
        let pinned = self.pinned.get(&number).copied().unwrap_or_default();
        let mut busy = pinned;
        for physical in &self.deferred {
            let (chunk, word, bit) = chunk_table::bit_of(*physical);
            if chunk == number {
                busy[word] |= bit;
            }
        }
        let slot = self.by_number.get(&number).and_then(|at| self.slots.get_mut(*at)).and_then(Option::as_mut);
        let Some(slot) = slot else { return };
        let free = |busy: &Bits| busy.iter().map(|word| word.count_zeros() as usize).sum::<usize>();
        busy.iter_mut().zip(slot.chunk.used).for_each(|(busy, used)| *busy |= used);
        if closed {
            busy = [!0; WORDS];
        }
        self.available = self.available + free(&busy) - free(&slot.busy);
        slot.busy = busy;
        self.run = 0..0;
    }

    /// Whether a block of the table contains a record.
    pub(crate) fn has_table_block(&self, block: u64) -> bool {
        block < self.records().div_ceil(RECORDS).into()
    }

    /// Makes the blocks allocatable that the previous generation deferred: it is durable.
    pub(crate) fn begin(&mut self) {
        for physical in std::mem::take(&mut self.deferred) {
            let (number, word, bit) = chunk_table::bit_of(physical);
            let pinned = self.pinned.get(&number).is_some_and(|pinned| pinned[word] & bit != 0);
            let slot = self.by_number.get(&number).and_then(|n| self.slots.get_mut(*n)).and_then(Option::as_mut);
            if let Some(slot) = slot.filter(|slot| !pinned && slot.chunk.used[word] & bit == 0) {
                slot.busy[word] &= !bit;
                self.available += 1;
            }
        }
    }

    /// The number of physical blocks that can be allocated, including those that can once the generation being written
    /// is durable.
    pub(crate) fn allocatable(&self) -> usize {
        let pinned = |physical: &u64| {
            let (number, word, bit) = chunk_table::bit_of(*physical);
            self.pinned.get(&number).is_some_and(|pinned| pinned[word] & bit != 0)
        };
        self.available + self.deferred.iter().filter(|physical| !pinned(physical)).count()
    }

    /// Records of the table that may be in use.
    pub(crate) fn records(&self) -> u32 {
        // one for each chunk of the device at most
        self.slots.len() as u32
    }

    /// Adds a chunk of the device to the regions.
    pub(crate) fn add(&mut self, number: u32) {
        if self.by_number.contains_key(&number) {
            return;
        }
        let chunk = Chunk::new(number);
        let mut busy = chunk.used;
        if let Some(pinned) = self.pinned.get(&number) {
            busy.iter_mut().zip(pinned).for_each(|(busy, pinned)| *busy |= pinned);
        }
        self.available += busy.iter().map(|word| word.count_zeros() as usize).sum::<usize>();
        let at = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
        let slot = Some(Slot { chunk, busy });
        match self.slots.get_mut(at) {
            Some(there) => *there = slot,
            None => self.slots.push(slot),
        }
        self.by_number.insert(number, at);
        self.regions.set(number, true);
        self.dirty.insert(at as u64 / u64::from(RECORDS));
    }

    /// Prepares the allocation of about `count` physical blocks: of one run, if possible.
    pub(crate) fn aim(&mut self, count: usize) {
        self.run = self.next_run(count as u64);
    }

    /// Allocates a physical block.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub(crate) fn allocate(&mut self) -> Result<u64> {
        if self.mutant.is(Mutant::ReusePhysical)
            && let Some(physical) = self.deferred.last().copied().filter(|physical| !self.is_pinned(*physical))
        {
            self.begin();
            self.run = physical..physical + 1;
        }
        if self.run.is_empty() {
            self.run = self.next_run(64);
        }
        let physical = self.run.next().ok_or(Error::NoSpace)?;
        self.cursor = self.run.start;
        let (number, word, bit) = chunk_table::bit_of(physical);
        let at = *self.by_number.get(&number).ok_or_else(unknown)?;
        let slot = self.slots.get_mut(at).and_then(Option::as_mut).ok_or_else(unknown)?;
        slot.chunk.used[word] |= bit;
        slot.busy[word] |= bit;
        self.available -= 1;
        self.dirty.insert(at as u64 / u64::from(RECORDS));
        Ok(physical)
    }

    /// Defers a physical block that the generation under construction does not use any more.
    ///
    /// # Errors
    /// `Corrupt` if it was not in use.
    pub(crate) fn defer(&mut self, physical: u64) -> Result<()> {
        let (number, word, bit) = chunk_table::bit_of(physical);
        let at = *self.by_number.get(&number).ok_or_else(unknown)?;
        let slot = self.slots.get_mut(at).and_then(Option::as_mut).ok_or_else(unknown)?;
        if slot.chunk.used[word] & bit == 0 {
            return Err(unknown());
        }
        slot.chunk.used[word] &= !bit;
        self.deferred.push(physical);
        self.dirty.insert(at as u64 / u64::from(RECORDS));
        Ok(())
    }

    /// Whether a snapshot pins a physical block.
    pub(crate) fn is_pinned(&self, physical: u64) -> bool {
        let (number, word, bit) = chunk_table::bit_of(physical);
        self.pinned.get(&number).is_some_and(|pinned| pinned[word] & bit != 0)
    }

    /// Removes a block from the set of changed blocks of the table, and returns it.
    pub(crate) fn next_dirty(&mut self) -> Option<u64> {
        self.dirty.pop_first()
    }

    /// The bytes of a block of the table.
    pub(crate) fn table_block(&self, block: u64) -> Vec<u8> {
        let first = block as usize * RECORDS as usize;
        let slots = self.slots.iter().skip(first).take(RECORDS as usize);
        chunk_table::to_bytes(&slots.map(|slot| slot.as_ref().map(|slot| slot.chunk)).collect::<Vec<_>>())
    }

    /// The first run of `want` free physical blocks after the last one, then before it; else the longest run.
    fn next_run(&self, want: u64) -> Range<u64> {
        let mut best: Option<Range<u64>> = None;
        let mut before: Option<Range<u64>> = None;
        let len = |run: &Range<u64>| run.end - run.start;
        let mut fits = None;
        self.each_run(|run| {
            if run.start >= self.cursor && len(&run) >= want {
                fits = Some(run);
                return false;
            }
            if before.is_none() && len(&run) >= want {
                before = Some(run.clone());
            }
            if best.as_ref().is_none_or(|best| len(best) < len(&run)) {
                best = Some(run);
            }
            true
        });
        fits.or(before).or(best).unwrap_or(0..0)
    }

    /// Calls `see` with the runs of free physical blocks, ascending, while it returns true. A run that contains the
    /// cursor is split there.
    fn each_run(&self, mut see: impl FnMut(Range<u64>) -> bool) {
        let mut run = 0..0;
        for (number, at) in &self.by_number {
            let Some(slot) = self.slots.get(*at).and_then(Option::as_ref) else { continue };
            let start = u64::from(*number) * u64::from(CHUNK_BLOCKS);
            for (word, busy) in slot.busy.iter().enumerate() {
                let mut free = !busy;
                let base = start + 64 * word as u64;
                while free != 0 {
                    let from = u64::from(free.trailing_zeros());
                    let count = u64::from((free >> from).trailing_ones());
                    let found = base + from..base + from + count;
                    if run.end == found.start && found.start != self.cursor {
                        run.end = found.end;
                    } else {
                        if !run.is_empty() && !see(run.clone()) {
                            return;
                        }
                        run = found;
                    }
                    if run.start < self.cursor && self.cursor < run.end {
                        if !see(run.start..self.cursor) {
                            return;
                        }
                        run.start = self.cursor;
                    }
                    free = if from + count >= 64 { 0 } else { free & (u64::MAX << (from + count)) };
                }
            }
        }
        if !run.is_empty() {
            see(run);
        }
    }
}

/// The maximum number of physical blocks that a generation of `blocks` changed blocks may need.
pub(crate) fn worst_case(layout: &Layout, records: u32, blocks: usize) -> usize {
    let table = records.div_ceil(RECORDS) as usize + 1;
    let blocks = blocks.saturating_add(table);
    let mut all = blocks;
    let mut nodes = layout.indexes();
    for _ in 0..layout.levels() {
        nodes = nodes.div_ceil(format::native::map::ENTRIES as u64);
        all = all.saturating_add(blocks.min(usize::try_from(nodes).unwrap_or(usize::MAX)));
    }
    all
}
