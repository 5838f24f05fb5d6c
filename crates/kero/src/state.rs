//! The state in memory, and its writes to the log.
//!
//! 1. The table has the content of the records that were written; the open group overrides it.
//! 2. No record of a group is written before the flush of the previous group returned: so a header proves the previous
//!    group.
//! 3. Blocks that the records of a group list as written home are not written again before the next group is durable:
//!    opening verifies them as long as the group may be the last one.
//! 4. A group that opening rejected, though all its headers are complete, is voided before anything else is written:
//!    later writes might be exactly those it lacked.
//! 5. Content that opening accepted because it could be read is written again before the first change: the page cache
//!    may contain writes that never reached the device, and the next header would prove them.
//! 6. The superblock identifies the instance that writes. This is checked before each group, and nothing is written if
//!    it is another one.
//! 7. A block is blank if the durable state has no content for it: its MiB was discarded, and it was not written since.
//!    Only blank blocks, and those whose content the caller declares irrelevant, are written home before they are in a
//!    record.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use blockdev::{BlockDevice, Write};

use crate::bytes::{ENTRIES, Entry, Phase, Record, Superblock, VERSION};
use crate::device::Stats;
use crate::error::{Error, Result};
use crate::gap::Gaps;
use crate::group::{MOST_HOMES, NumberSet, Open, device_runs};
use crate::layout::{BLOCK, Layout, MIB, MOVED};
use crate::mutant::Mutant;
use crate::recover::Unproved;
use crate::ring::{Ring, Segment};
use crate::table::Table;

/// The maximum number of bytes submitted to the device at once.
const STEP: usize = 1 << 20;
/// The maximum number of blocks of a group that wait in memory: 16 MiB.
const MOST_PENDING: u32 = 4096;

/// The maximum number of runs of a group written home: opening reads those of the last group, with a seek each.
pub(crate) const MOST_SCATTERED: u32 = 256;
/// The number of blocks of the log between checkpoints with which opening takes about a second on a disk: 64 MiB.
const QUICK_OPEN_BLOCKS: u32 = 16_384;

/// The maximum number of MiB in [`State::unwritten`].
const MOST_UNWRITTEN: usize = 1 << 16;

/// The word and the bit of a block in [`State::unwritten`].
fn unwritten_bit(address: u32) -> (usize, u64) {
    ((address % MIB / 64) as usize, 1 << (address % 64))
}

/// The location of a block's content.
pub(crate) enum Source<'a> {
    Memory(&'a [u8]),
    /// First byte on the device.
    Device(u64),
    Nothing,
}

/// All state except the device.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) layout: Layout,
    pub(crate) uuid: [u8; 16],
    pub(crate) table: Table,
    pub(crate) ring: Ring,
    pub(crate) open: Open,
    /// The gaps before groups, and whether a record was written since the layer was opened: the first one has none, so
    /// that a rejected record that remains at its location is never found before it.
    pub(crate) gaps: Gaps,
    pub(crate) continued: bool,
    /// A superblock on the device has a version without gaps. A checkpoint replaces it.
    pub(crate) older_version: bool,
    /// The sequence number of the next record.
    pub(crate) sequence: u64,
    /// The newest group whose last record was written.
    pub(crate) group: u64,
    pub(crate) instance: u64,
    /// The checksum of the newest header.
    pub(crate) before: u32,
    /// Slots that are freed by records which are not durable yet.
    pub(crate) left: Vec<u32>,
    /// The blocks that the newest durable group lists as written home, and those of the group that is being flushed.
    pub(crate) homes: [NumberSet; 2],
    /// MiB discarded by the group that is being flushed.
    pub(crate) discards: NumberSet,
    /// Whether a MiB is blank.
    pub(crate) blank: Vec<bool>,
    /// Of MiB that were blank, a bit for each block that was not written since, as far as it is known.
    pub(crate) unwritten: HashMap<u32, [u64; 4]>,
    /// Blocks that are being written home.
    pub(crate) in_flight: BTreeSet<u32>,
    pub(crate) now: Duration,
    /// Content leaves the log also if its checksum is wrong.
    pub(crate) unverified: bool,
    /// The time for which a block stays hot.
    pub(crate) hot: Duration,
    pub(crate) failed: Option<String>,
    /// A group with complete headers was rejected at opening.
    pub(crate) refused: bool,
    /// The content that opening accepted and that was not written again yet.
    pub(crate) unproved: Option<Unproved>,
    /// The index of the newest superblock, and its content: another instance would have written its number there.
    pub(crate) superblock: (usize, Superblock),
    /// Another instance was found to have done so: locations in the table may be overwritten at any time.
    pub(crate) taken: bool,
    /// The newest generation of a superblock.
    pub(crate) generation: u64,
    pub(crate) stats: Stats,
    pub(crate) mutant: Mutant,
    /// Home writes that a mutant defers.
    pub(crate) deferred_home: BTreeMap<u32, Box<[u8]>>,
}

impl State {
    /// The location of a block's newest content.
    pub(crate) fn source(&self, address: u32) -> Source<'_> {
        let home = Source::Device(self.layout.home(address));
        if let Some(bytes) = self.open.blocks.get(&address) {
            return Source::Memory(bytes);
        }
        if self.open.homes.contains_key(&address) || self.open.drops.contains(&address) {
            return home;
        }
        let mib = address / MIB;
        if self.open.discards.contains(mib) {
            return Source::Nothing;
        }
        match self.table.get(address) {
            Some(slot) => Source::Device(self.layout.slot(slot)),
            None if self.table.content(mib) => home,
            None => Source::Nothing,
        }
    }

    /// Whether all of these blocks are at home at their own addresses.
    pub(crate) fn all_home(&self, first: u32, end: u32) -> bool {
        let (mibs, range) = (first / MIB..=end.saturating_sub(1) / MIB, first..end);
        self.table.unmapped(first, end - first)
            && self.open.blocks.range(range.clone()).next().is_none()
            && !self.open.discards.overlaps(*mibs.start(), mibs.end().saturating_add(1))
            && mibs.into_iter().all(|mib| self.table.content(mib))
            && !MOVED.iter().any(|moved| range.contains(moved))
    }

    /// Whether all of these bytes are at home. They must be inside the device.
    pub(crate) fn all_home_in(&self, offset: u64, len: usize) -> bool {
        let end = (offset + len as u64).div_ceil(BLOCK) as u32;
        len == 0 || self.all_home((offset / BLOCK) as u32, end)
    }

    /// Reads the newest content of a block.
    pub(crate) fn read_block(&self, device: &dyn BlockDevice, address: u32, into: &mut [u8]) -> Result<()> {
        match self.source(address) {
            Source::Memory(bytes) => into.copy_from_slice(bytes),
            Source::Device(at) => device.read(at, into)?,
            Source::Nothing => into.fill(0),
        }
        Ok(())
    }

    /// Whether the home of a block must not be written now, whatever its content.
    pub(crate) fn home_is_busy(&self, address: u32) -> bool {
        let end = address.saturating_add(1);
        let guarded = self.mutant != Mutant::FreshOverLast;
        self.in_flight.contains(&address)
            || self.open.homes.contains_key(&address)
            || self.open.written_homes.overlaps(address, end)
            || guarded && self.homes.iter().any(|homes| homes.overlaps(address, end))
    }

    /// Whether a whole block is written home immediately.
    pub(crate) fn is_written_in_place(&self, address: u32, fresh: bool) -> bool {
        let blank = self.is_blank(address);
        let cold = self.mutant == Mutant::ColdInPlace && self.table.get(address).is_none();
        (fresh || blank || cold)
            && !self.refused
            && !self.open.blocks.contains_key(&address)
            && (self.open.scattered < MOST_SCATTERED || self.follows_one(address))
            && !self.home_is_busy(address)
    }

    /// Whether the previous block was written home by the open group.
    fn follows_one(&self, address: u32) -> bool {
        address.checked_sub(1).is_some_and(|before| {
            self.open.homes.contains_key(&before)
                || self.in_flight.contains(&before)
                || self.open.written_homes.contains(before)
        })
    }

    /// Records a change of the open group by a caller.
    pub(crate) fn changed(&mut self) {
        self.open.changed = self.now;
        self.open.begun.get_or_insert(self.now);
    }

    /// Records that blocks moved home in the open group. This does not delay the writes of callers: the quiet time is
    /// one without writes by callers.
    pub(crate) fn record_moved_home(&mut self) {
        if self.open.begun.is_none() {
            self.changed();
        }
    }

    /// Whether the open group has to be written to the log before it grows.
    pub(crate) fn is_heavy(&self) -> bool {
        // blocks that are being written home will need entries
        let (on_its_way, limit) = (self.in_flight.len() / ENTRIES, self.layout.group());
        let cost = self.open.cost(&self.layout) + on_its_way as u32;
        cost >= limit.min(MOST_PENDING)
            || self.open.written > 0 && self.open.written + cost >= limit
            || self.open.homes.len() >= MOST_HOMES
    }

    /// Fails if another instance was found to write to the device.
    pub(crate) fn not_taken(&self) -> Result<()> {
        let (index, superblock) = &self.superblock;
        if self.taken { Err(Error::Taken { offset: superblock.place(*index) }) } else { Ok(()) }
    }

    /// Ends writing permanently after an error.
    pub(crate) fn fail<T>(&mut self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result
            && self.failed.is_none()
        {
            self.failed = Some(error.to_string());
        }
        result
    }

    /// Writes records of the group after the newest one, and applies them to the table. Returns the checksum of the
    /// first header.
    pub(crate) fn emit(
        &mut self,
        device: &dyn BlockDevice,
        mut meta: &[Entry],
        mut payload: &[(Entry, &[u8])],
        (last, checkpoint): (bool, bool),
    ) -> Result<u32> {
        let group = self.group + 1;
        let (mut out, mut at, mut first, mut said) = (Vec::new(), self.ring.head, None, Vec::new());
        loop {
            if self.ring.at_start() {
                if !self.ring.may_begin() {
                    return Err(Error::LogFull { blocks: payload.len() as u64 });
                }
                if let Some(segment) = self.ring.of(self.ring.head) {
                    *segment = Segment { live: 0, begun: self.now };
                }
            }
            let (these, later) = meta.split_at(meta.len().min(ENTRIES));
            let fit = (self.ring.left() as usize - 1).min(ENTRIES - these.len());
            let (blocks, rest) = payload.split_at(payload.len().min(fit));
            let done = later.is_empty() && rest.is_empty();
            let entries: Vec<Entry> = these.iter().copied().chain(blocks.iter().map(|(entry, _)| *entry)).collect();
            let record = Record {
                sequence: self.sequence,
                group,
                instance: self.instance,
                before: self.before,
                last: last && done,
                checkpoint,
                entries,
            };
            let (header, checksum) = record.encode(&self.uuid);
            out.extend_from_slice(&header);
            blocks.iter().for_each(|(_, bytes)| out.extend_from_slice(bytes));
            let mut slot = self.ring.head;
            for entry in record.entries {
                slot += u32::from(entry.has_payload());
                said.push((entry, slot));
            }
            (meta, payload) = (later, rest);
            self.ring.advance(1 + blocks.len() as u32);
            self.sequence += 1;
            self.before = checksum;
            first.get_or_insert(checksum);
            if done || self.ring.head == 0 || out.len() >= STEP {
                device.write(self.layout.slot(at), &out)?;
                self.stats.log_bytes += out.len() as u64;
                out.clear();
                at = self.ring.head;
            }
            if done {
                self.continued = true;
                said.iter().for_each(|(entry, slot)| self.apply(entry, *slot));
                return Ok(first.unwrap_or_default());
            }
        }
    }

    /// Applies a written entry to the table.
    fn apply(&mut self, entry: &Entry, slot: u32) {
        let mut hot = false;
        if let Entry::Block { address, .. } = *entry {
            let (now, age) = (self.now, self.hot);
            let before = self.table.get(address).and_then(|before| self.ring.of(before));
            hot = before.is_some_and(|segment| now.saturating_sub(segment.begun) < age);
            if let Some(segment) = self.ring.of(slot) {
                segment.live += 1;
            }
        }
        self.table.apply(entry, slot, hot, &mut self.left);
        match *entry {
            Entry::Block { address, .. } => self.has_content(address),
            Entry::Home { address, count, .. } => {
                (address..address.saturating_add(u32::from(count))).for_each(|address| self.has_content(address));
            }
            _ => {}
        }
    }

    /// Records that a block has content.
    fn has_content(&mut self, address: u32) {
        let mib = address / MIB;
        if let Some(blank) = self.blank.get_mut(mib as usize).filter(|blank| **blank) {
            *blank = false;
            if self.unwritten.len() >= MOST_UNWRITTEN {
                self.unwritten.clear();
            }
            self.unwritten.insert(mib, [u64::MAX; 4]);
        }
        let (word, bit) = unwritten_bit(address);
        if let Some(word) = self.unwritten.get_mut(&mib).and_then(|words| words.get_mut(word)) {
            *word &= !bit;
        }
    }

    /// Whether a block has no content in the durable state.
    fn is_blank(&self, address: u32) -> bool {
        let mib = address / MIB;
        let (word, bit) = unwritten_bit(address);
        let unwritten = || self.unwritten.get(&mib)?.get(word).map(|word| word & bit != 0);
        self.blank.get(mib as usize).copied().unwrap_or(false) || unwritten().unwrap_or(false)
    }

    /// Writes the pending changes of the open group to the log; `last` ends it. A flush has to follow, then
    /// [`State::durable`]. Returns the number of blocks.
    pub(crate) fn write_pending(&mut self, device: &dyn BlockDevice, last: bool) -> Result<u32> {
        let mut open = std::mem::take(&mut self.open);
        let mut meta = open.entries();
        let payload: Vec<(Entry, &[u8])> = open
            .blocks
            .iter()
            .map(|(address, bytes)| {
                (Entry::Block { address: *address, checksum: crc32c::crc32c(bytes) }, bytes.as_ref())
            })
            .collect();
        let unrecorded = self.remove_unrecorded(&mut meta);
        if open.written == 0 {
            self.leave_gap();
        }
        let head = self.ring.head;
        let done = self.emit(device, &meta, &payload, (last, false));
        if let Err(error) = done {
            self.open = open;
            return self.fail(Err(error));
        }
        unrecorded.iter().for_each(|entry| self.apply(entry, 0));
        let written = (self.ring.head + self.layout.log - head) % self.layout.log;
        open.homes.keys().for_each(|address| open.written_homes.insert(*address));
        open.discards.iter().for_each(|(first, end)| open.written_discards.insert_run(first, end));
        if last {
            self.group += 1;
            self.stats.groups += 1;
            self.homes[1] = open.written_homes;
            self.discards = open.written_discards;
        } else {
            self.open = Open {
                written: open.written + written,
                scattered: open.scattered,
                written_homes: open.written_homes,
                written_discards: open.written_discards,
                begun: open.begun,
                changed: open.changed,
                ..Open::default()
            };
        }
        Ok(written)
    }

    /// Moves the head forward by the gap before a group: in the same segment, or to the start of the next one.
    fn leave_gap(&mut self) {
        if self.older_version || !self.continued && self.mutant != Mutant::GapAtOnce {
            return;
        }
        let (gap, left) = (self.gaps.choose(), self.ring.left());
        if gap == 0 || left > gap + 1 && !self.ring.at_start() {
            self.ring.advance(gap);
            return;
        }
        self.gaps.not_used();
        if !self.ring.at_start() && left <= self.gaps.most() {
            self.ring.advance(left);
        }
    }

    /// Removes the entries that a mutant does not record.
    fn remove_unrecorded(&self, meta: &mut Vec<Entry>) -> Vec<Entry> {
        let mutant = self.mutant;
        let left_out = move |entry: &Entry| match mutant {
            Mutant::HomeUnrecorded => matches!(entry, Entry::Home { .. }),
            Mutant::DiscardUnrecorded => matches!(entry, Entry::Discard { .. }),
            _ => false,
        };
        let unrecorded = meta.iter().copied().filter(left_out).collect();
        meta.retain(|entry| !left_out(entry));
        unrecorded
    }

    /// Runs before all changes: checks whether another instance writes to the device; before the first change makes the
    /// content durable that opening accepted, with this instance's number, and voids the group that it rejected.
    pub(crate) fn settle(&mut self, device: &dyn BlockDevice) -> Result<()> {
        let settled = self.try_settle(device);
        self.taken |= matches!(settled, Err(Error::Taken { .. }));
        self.fail(settled)
    }

    fn try_settle(&mut self, device: &dyn BlockDevice) -> Result<()> {
        let (index, superblock) = self.superblock;
        match self.unproved.filter(|_| self.mutant != Mutant::TrustRead) {
            Some(unproved) => {
                let superblock = unproved.write_again(device, (self.layout, self.uuid), self.instance, self.mutant)?;
                self.superblock = (index, superblock);
                device.flush()?;
            }
            None if self.mutant == Mutant::NoInstanceCheck => {}
            None => superblock.verify_unchanged(device, index)?,
        }
        self.unproved = None;
        self.make_void(device)
    }

    /// As [`State::settle`], once per group: before writes in place.
    pub(crate) fn settle_once(&mut self, device: &dyn BlockDevice) -> Result<()> {
        if !self.open.settled {
            self.settle(device)?;
            self.open.settled = true;
        }
        Ok(())
    }

    /// Writes an empty group over one that opening rejected.
    fn make_void(&mut self, device: &dyn BlockDevice) -> Result<()> {
        if !std::mem::take(&mut self.refused) || self.mutant == Mutant::RejectedNotVoided {
            return Ok(());
        }
        self.emit(device, &[], &[], (true, false))?;
        self.group += 1;
        device.flush()?;
        self.durable(device);
        Ok(())
    }

    /// Applies the effects of a flush that returned after the last record of the newest group was written.
    pub(crate) fn durable(&mut self, device: &dyn BlockDevice) {
        for slot in std::mem::take(&mut self.left) {
            if let Some(segment) = self.ring.of(slot) {
                segment.live = segment.live.saturating_sub(1);
            }
        }
        self.homes = [std::mem::take(&mut self.homes[1]), NumberSet::default()];
        let mut gone = NumberSet::default();
        for mib in std::mem::take(&mut self.discards).iter().flat_map(|(first, end)| first..end) {
            if !self.table.content(mib) {
                if !self.mib_is_busy(mib) {
                    gone.insert(mib);
                }
                self.unwritten.remove(&mib);
                if let Some(blank) = self.blank.get_mut(mib as usize) {
                    *blank = true;
                }
            }
        }
        gone.iter().for_each(|(first, end)| self.discard_homes(device, first, end));
    }

    /// Whether something in a MiB is still verified, or being written.
    fn mib_is_busy(&self, mib: u32) -> bool {
        let (first, end) = (mib * MIB, (mib + 1).saturating_mul(MIB).min(self.layout.data));
        self.homes.iter().any(|homes| homes.overlaps(first, end))
            || self.open.written_homes.overlaps(first, end)
            || self.open.homes.range(first..end).next().is_some()
            || self.in_flight.range(first..end).next().is_some()
    }

    /// Discards the home locations of the MiB `first..end`, which have no content.
    fn discard_homes(&self, device: &dyn BlockDevice, first: u32, end: u32) {
        let (mut at, end) = (first * MIB, end.saturating_mul(MIB).min(self.layout.data));
        // only advice: a failure loses nothing
        let discard = |from: u32, to: u32| {
            if from < to {
                drop(device.discard(u64::from(from) * BLOCK, u64::from(to - from) * BLOCK));
            }
        };
        for moved in MOVED {
            if (at..end).contains(&moved) {
                discard(at, moved);
                at = moved + 1;
            }
        }
        discard(at, end);
    }

    /// Writes blocks to their home locations, ascending and merged, and counts them.
    pub(crate) fn write_home(&mut self, device: &dyn BlockDevice, blocks: &BTreeMap<u32, Box<[u8]>>) -> Result<()> {
        let addresses: Vec<u32> = blocks.keys().copied().collect();
        let contents: Vec<&[u8]> = blocks.values().map(AsRef::as_ref).collect();
        let runs: Vec<(u64, Vec<u8>)> = device_runs(&addresses)
            .into_iter()
            .filter_map(|run| Some((self.layout.home(*addresses.get(run.start)?), contents.get(run)?.concat())))
            .collect();
        let mut writes: Vec<Write<'_>> = runs.iter().map(|(at, bytes)| Write::new(*at, bytes)).collect();
        device.write_many(&mut writes);
        for write in writes {
            write.result?;
        }
        self.stats.gone_home_bytes += addresses.len() as u64 * BLOCK;
        Ok(())
    }

    /// Whether a checkpoint is due: after an eighth of the log, or sooner if it is small.
    pub(crate) fn checkpoint_is_due(&self) -> bool {
        let (since, log) = (self.ring.since, self.layout.log);
        let blocks = (8 * u64::from(self.table.mapped()) + u64::from(self.layout.mibs()) / 8) / BLOCK + 2;
        since >= log / 8 || since >= QUICK_OPEN_BLOCKS && u64::from(since) >= 32 * blocks
    }

    /// Writes a checkpoint and a superblock that names it; all groups must be durable, and no record of the open one
    /// written.
    pub(crate) fn checkpoint(&mut self, device: &dyn BlockDevice) -> Result<()> {
        let done = self.try_checkpoint(device);
        self.fail(done)
    }

    fn try_checkpoint(&mut self, device: &dyn BlockDevice) -> Result<()> {
        self.settle(device)?;
        let mut bytes = self.table.encode();
        bytes.resize(bytes.len().next_multiple_of(BLOCK as usize), 0);
        let parts: Vec<(Entry, &[u8])> = (0..)
            .zip(bytes.chunks(BLOCK as usize))
            .map(|(number, part)| (Entry::Part { number, checksum: crc32c::crc32c(part) }, part))
            .collect();
        let (start, sequence, counted) = (self.ring.head, self.sequence, self.stats.log_bytes);
        let checksum = self.emit(device, &[], &parts, (true, true))?;
        self.stats.checkpoint_bytes += self.stats.log_bytes - counted;
        self.group += 1;
        if self.mutant == Mutant::CheckpointUnwritten {
            self.write_superblock(device, Phase::Active, (start, checksum, sequence, self.group))?;
        } else {
            device.flush()?;
        }
        self.durable(device);
        self.write_superblock(device, Phase::Active, (start, checksum, sequence, self.group))?;
        device.flush()?;
        self.older_version = false;
        self.ring.before = self.ring.newest;
        self.ring.newest = start;
        self.ring.since = (self.ring.head + self.layout.log - start) % self.layout.log;
        self.stats.checkpoints += 1;
        Ok(())
    }

    /// Writes the older superblock again.
    pub(crate) fn write_superblock(
        &mut self,
        device: &dyn BlockDevice,
        phase: Phase,
        (checkpoint, checksum, sequence, group): (u32, u32, u64, u64),
    ) -> Result<()> {
        self.generation += 1;
        let superblock = Superblock {
            version: VERSION,
            uuid: self.uuid,
            phase,
            generation: self.generation,
            layout: self.layout,
            checkpoint,
            checksum,
            sequence,
            group,
            instance: self.instance,
        };
        let index = self.superblock.0 ^ 1;
        device.write(superblock.place(index), &superblock.encode())?;
        self.superblock = (index, superblock);
        self.stats.checkpoint_bytes += BLOCK;
        self.stats.superblock_bytes += BLOCK;
        Ok(())
    }
}
