//! Opening: the newest complete checkpoint, then the records after it. Nothing is written; content whose only proof is
//! that it could be read is written again before the first change.
//!
//! 1. A record continues the log if it has the next sequence number and the checksum of the previous header, and its
//!    group is the open one with the same instance number, or the next one after a complete group.
//! 2. The header of a group proves the previous group. The content of the last group is verified, block by block.
//! 3. A record that does not continue the log is its ordinary end, unless a later header belongs to a group that was
//!    begun only after the broken one was durable.

use std::cell::RefCell;
use std::ops::Range;

use blockdev::BlockDevice;

use crate::bytes::{Entry, Record, Superblock, VERSION};
use crate::error::{Corrupt, Error, Result};
use crate::group::{NumberSet, device_runs};
use crate::layout::{BLOCK, Layout, MIB};
use crate::mutant::Mutant;
use crate::table::Table;

/// The maximum number of consecutive segments that are searched without result for a proof that the log continues.
const PASSED: u32 = 4;

/// The results of opening.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) table: Table,
    /// The block of the log for the next record.
    pub(crate) head: u32,
    pub(crate) sequence: u64,
    /// The newest complete group.
    pub(crate) group: u64,
    /// The checksum of the newest header.
    pub(crate) before: u32,
    /// The blocks that this group lists as written home.
    pub(crate) homes: NumberSet,
    /// The first block of the checkpoint that was used, and of the older one named by a superblock.
    pub(crate) checkpoints: [u32; 2],
    /// The index of the superblock that was used, and its content.
    pub(crate) used: (usize, Superblock),
    /// Whether a group with complete headers was rejected: later writes must not complete it.
    pub(crate) refused: bool,
    /// The content that was accepted as it was read, and is written again before anything else.
    pub(crate) unproved: Unproved,
}

/// Content that no later header proves, and that may exist only in the page cache of the system. A flush that fails
/// leaves pages there that the device lacks, and that count as written: the next flush succeeds without writing them,
/// and reads do not reveal it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unproved {
    /// The last group, unless it is a checkpoint named by a superblock.
    group: Option<(Position, u64)>,
    /// The position of the next group, and its number.
    end: (Position, u64),
    /// A group with complete headers is there, and was rejected.
    refused: bool,
    /// The index of the superblock that was used, and its content.
    superblock: (usize, Superblock),
}

impl Unproved {
    /// Writes it again as it is read now, with this instance number in the superblock, which is returned; a flush has to
    /// follow.
    ///
    /// # Errors
    /// Those of the device; [`Corrupt`] if the group is not there any more: it was in memory alone; and
    /// [`Error::Taken`] if something was written since.
    pub(crate) fn write_again(
        &self,
        device: &dyn BlockDevice,
        (layout, uuid): (Layout, [u8; 16]),
        instance: u64,
        mutant: Mutant,
    ) -> Result<Superblock> {
        let walk = Walk { device, layout, uuid, mutant, ahead: RefCell::default() };
        let (index, superblock) = self.superblock;
        superblock.verify_unchanged(device, index)?;
        let (at, number) = self.end;
        if let (Some((group, _)), _) = walk.group(at, number)?
            && (!self.refused || walk.verify(&group)?)
        {
            return Err(Error::Taken { offset: layout.slot(at.slot) });
        }
        if let Some((at, number)) = self.group {
            let gone = || walk.corrupt("last group that has disappeared since the layer was opened", at.slot);
            let (Some((group, _)), _) = walk.group(at, number)? else { return Err(gone()) };
            let headers =
                group.iter().try_for_each(|(_, slot)| Ok(device.write(layout.slot(*slot), &walk.block(*slot)?)?));
            headers
                .and_then(|()| walk.verified(&group, |at, bytes| Ok(device.write(at, bytes)?)))?
                .then_some(())
                .ok_or_else(gone)?;
        }
        let superblock = Superblock { version: VERSION, instance, ..superblock };
        device.write(superblock.place(index), &superblock.encode())?;
        Ok(superblock)
    }
}

impl Superblock {
    /// The first byte of one of the two superblocks.
    pub(crate) fn place(&self, index: usize) -> u64 {
        self.layout.superblocks().get(index).copied().unwrap_or_default() * BLOCK
    }

    /// Checks that the device still has this superblock.
    ///
    /// # Errors
    /// Those of the device, and [`Error::Taken`] if it does not.
    pub(crate) fn verify_unchanged(&self, device: &dyn BlockDevice, index: usize) -> Result<()> {
        let offset = self.place(index);
        let mut bytes = vec![0; BLOCK as usize];
        device.read(offset, &mut bytes)?;
        if Superblock::parse(&bytes) == Ok(*self) { Ok(()) } else { Err(Error::Taken { offset }) }
    }
}

/// A position in the log: the block of a possible record, and the numbers it must have.
#[derive(Debug, Clone, Copy)]
struct Position {
    slot: u32,
    sequence: u64,
    before: u32,
}

struct Walk<'a> {
    device: &'a dyn BlockDevice,
    layout: Layout,
    uuid: [u8; 16],
    mutant: Mutant,
    /// The first block of the last read, and its bytes: a disk needs longer to skip the blocks between two headers than
    /// to read them.
    ahead: RefCell<(u32, Vec<u8>)>,
}

/// The records of a group, each with its slot.
type GroupRecords = Vec<(Record, u32)>;

impl Walk<'_> {
    fn corrupt(&self, what: &'static str, slot: u32) -> Error {
        Corrupt { what, offset: self.layout.slot(slot) }.into()
    }

    /// Reads a block of the log, together with the rest of its segment.
    fn block(&self, slot: u32) -> Result<Vec<u8>> {
        let within = |first: u32, bytes: &[u8]| {
            let at = slot.checked_sub(first)? as usize * BLOCK as usize;
            Some(bytes.get(at..at + BLOCK as usize)?.to_vec())
        };
        let mut ahead = self.ahead.borrow_mut();
        if let Some(block) = within(ahead.0, &ahead.1) {
            return Ok(block);
        }
        let mut bytes = vec![0; (self.layout.segment - slot % self.layout.segment) as usize * BLOCK as usize];
        if self.device.read(self.layout.slot(slot), &mut bytes).is_err() {
            // if one block cannot be read, the others may still be readable
            return self.one_block(slot);
        }
        let block = within(slot, &bytes).unwrap_or_default();
        *ahead = (slot, bytes);
        Ok(block)
    }

    fn one_block(&self, slot: u32) -> Result<Vec<u8>> {
        let mut bytes = vec![0; BLOCK as usize];
        self.device.read(self.layout.slot(slot), &mut bytes)?;
        Ok(bytes)
    }

    /// The record at a position or after a gap, its block of the log, and the position after it; `None` at the end of
    /// the log.
    fn record(&self, at: &Position) -> Result<Option<(Record, u32, Position)>> {
        let (left, most) = (self.layout.segment - at.slot % self.layout.segment, self.layout.most_gap());
        let here = at.slot..at.slot + left.min(most + 1);
        let next = (left <= most).then_some((at.slot + left) % self.layout.log);
        let mut refused = None;
        for slot in here.chain(next) {
            match self.record_at(at, slot) {
                Ok(Some((record, behind))) => return Ok(Some((record, slot, behind))),
                Ok(None) => {}
                // a block in a gap may contain anything, also nothing that can be read
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        refused.map_or(Ok(None), Err)
    }

    /// The record at a block of the log, if it is the one at this position, and the position after it.
    fn record_at(&self, at: &Position, slot: u32) -> Result<Option<(Record, Position)>> {
        let bytes = self.block(slot)?;
        let parsed = match self.mutant {
            Mutant::HeaderUnchecked => Record::parse_unchecked(&bytes, &self.uuid, &self.layout).ok_or(None),
            _ => Record::parse(&bytes, &self.uuid, &self.layout),
        };
        let (record, checksum) = match parsed {
            Ok(parsed) => parsed,
            Err(None) => return Ok(None),
            Err(Some(what)) => return Err(self.corrupt(what, slot)),
        };
        let continues = record.before == at.before || self.mutant == Mutant::OldEnd;
        if record.sequence != at.sequence || !continues {
            return Ok(None);
        }
        let blocks = 1 + record.payload();
        if slot % self.layout.segment + blocks > self.layout.segment {
            return Err(self.corrupt("record that extends beyond its segment", slot));
        }
        let slot = (slot + blocks) % self.layout.log;
        Ok(Some((record, Position { slot, sequence: at.sequence.saturating_add(1), before: checksum })))
    }

    /// The group at a position, if all its headers are complete, and the position after it; also whether it has begun
    /// there. `number` is the expected number.
    fn group(&self, mut at: Position, number: u64) -> Result<(Option<(GroupRecords, Position)>, bool)> {
        let (mut group, mut blocks): (GroupRecords, u64) = (Vec::new(), 0);
        loop {
            let Some((record, slot, behind)) = self.record(&at)? else { return Ok((None, !group.is_empty())) };
            let instance = group.first().map_or(record.instance, |(first, _)| first.instance);
            let same_run = record.instance == instance || self.mutant == Mutant::OldEnd;
            if record.group != number || !same_run {
                return Ok((None, !group.is_empty()));
            }
            blocks += 1 + u64::from(record.payload());
            if blocks > u64::from(self.layout.log) {
                return Err(self.corrupt("group that is longer than the log", at.slot));
            }
            let last = record.last;
            group.push((record, slot));
            at = behind;
            if last {
                return Ok((Some((group, at)), true));
            }
        }
    }

    /// Whether all content of a group is on the device.
    fn verify(&self, group: &GroupRecords) -> Result<bool> {
        self.verified(group, |_, _| Ok(()))
    }

    /// As [`Walk::verify`]; calls `see` with all blocks but the headers, and their first bytes on the device.
    fn verified(&self, group: &GroupRecords, mut see: impl FnMut(u64, &[u8]) -> Result<()>) -> Result<bool> {
        for (record, at) in group {
            let mut slot = *at;
            for entry in &record.entries {
                match *entry {
                    Entry::Block { checksum, .. } | Entry::Part { checksum, .. } => {
                        slot += 1;
                        let bytes = self.block(slot)?;
                        if crc32c::crc32c(&bytes) != checksum {
                            return Ok(false);
                        }
                        see(self.layout.slot(slot), &bytes)?;
                    }
                    Entry::Home { address, count, checksum } if self.mutant != Mutant::HomeUnverified => {
                        let addresses: Vec<u32> = (address..address.saturating_add(u32::from(count))).collect();
                        let mut found = 0;
                        for run in device_runs(&addresses) {
                            let run = addresses.get(run).unwrap_or_default();
                            for part in run.chunks(MIB as usize) {
                                let mut bytes = vec![0; part.len() * BLOCK as usize];
                                let first = part.first().copied().unwrap_or_default();
                                self.device.read(self.layout.home(first), &mut bytes)?;
                                found = crc32c::crc32c_append(found, &bytes);
                                see(self.layout.home(first), &bytes)?;
                            }
                        }
                        if found != checksum {
                            return Ok(false);
                        }
                    }
                    _ => {}
                }
            }
        }
        Ok(true)
    }

    /// The table of the checkpoint named by a superblock, and the position after it.
    fn checkpoint(&self, superblock: &Superblock) -> Result<(Table, Position)> {
        let wrong = |what| self.corrupt(what, superblock.checkpoint);
        let bytes = self.block(superblock.checkpoint)?;
        let before = match Record::parse(&bytes, &self.uuid, &self.layout) {
            Ok((record, checksum)) if checksum == superblock.checksum => record.before,
            _ => return Err(wrong("no checkpoint at the location that a superblock names")),
        };
        let at = Position { slot: superblock.checkpoint, sequence: superblock.sequence, before };
        let (Some((group, behind)), _) = self.group(at, superblock.group)? else {
            return Err(wrong("incomplete checkpoint"));
        };
        if !self.verify(&group)? {
            return Err(wrong("checkpoint with a wrong checksum"));
        }
        let mut bytes = Vec::new();
        let mut number = 0;
        for (record, at) in &group {
            for (slot, entry) in (at + 1..).zip(&record.entries) {
                if !matches!(*entry, Entry::Part { number: part, .. } if part == number) {
                    return Err(wrong("checkpoint with parts in the wrong order"));
                }
                bytes.extend(self.block(slot)?);
                number += 1;
            }
        }
        Ok((Table::decode(&bytes, &self.layout).map_err(wrong)?, behind))
    }

    /// The newest group with an intact header after the end of the log, and its block. All blocks of the segments that
    /// the log reached are searched, as the first header of a segment may continue the broken group; then a few without
    /// a newer header. A block that cannot be read proves nothing.
    fn newest_beyond(&self, at: &Position) -> Option<(u64, u32)> {
        let (size, count) = (self.layout.segment, self.layout.log / self.layout.segment);
        let first = at.slot / size;
        let newer = |slot: u32, bytes: &[u8]| {
            let numbers = Record::numbers(bytes, &self.uuid).filter(|(sequence, _)| *sequence >= at.sequence);
            numbers.map(|(_, group)| (group, slot))
        };
        let newest_in = |slots: Range<u32>| {
            let mut bytes = vec![0; slots.len() * BLOCK as usize];
            if self.device.read(self.layout.slot(slots.start), &mut bytes).is_ok() {
                return slots.zip(bytes.chunks(BLOCK as usize)).filter_map(|(slot, bytes)| newer(slot, bytes)).max();
            }
            // each block once, as a disk may need seconds for one that it cannot read
            slots.filter_map(|slot| newer(slot, &self.one_block(slot).ok()?)).max()
        };
        let mut newest = newest_in(at.slot..(first + 1) * size);
        let mut passed = 0;
        for step in 1..count {
            let start = (first + step) % count * size;
            let found = newest_in(start..start + size);
            passed = if found.is_some() { 0 } else { passed + 1 };
            newest = newest.max(found);
            if passed == PASSED {
                break;
            }
        }
        newest
    }
}

/// Applies a group to the table.
fn apply(group: &GroupRecords, table: &mut Table, homes: &mut NumberSet) {
    *homes = NumberSet::default();
    for (record, at) in group {
        let mut slot = *at;
        for entry in &record.entries {
            slot += u32::from(entry.has_payload());
            // a slot used by an older group may still be mapped if that group's entry is replaced later
            if let Entry::Block { .. } = entry
                && let Some(stale) = table.address_of(slot)
            {
                table.remove(stale);
            }
            table.apply(entry, slot, false, &mut Vec::new());
            if let Entry::Home { address, count, .. } = *entry {
                (address..address.saturating_add(u32::from(count))).for_each(|address| homes.insert(address));
            }
        }
    }
}

/// Reads the log of a device with these superblocks, to which `layout` and `uuid` belong.
pub(crate) fn recover(
    device: &dyn BlockDevice,
    superblocks: &[Option<Superblock>; 2],
    (layout, uuid): (Layout, [u8; 16]),
    mutant: Mutant,
) -> Result<Found> {
    let walk = Walk { device, layout, uuid, mutant, ahead: RefCell::default() };
    let mut order: Vec<(usize, &Superblock)> =
        superblocks.iter().enumerate().filter_map(|(index, superblock)| Some((index, superblock.as_ref()?))).collect();
    order.sort_by_key(|(_, superblock)| std::cmp::Reverse(superblock.generation));
    let mut base = None;
    let mut wrong = walk.corrupt("no superblock", 0);
    for (index, superblock) in &order {
        match walk.checkpoint(superblock) {
            Ok((table, behind)) => {
                base = Some((*index, *superblock, table, behind));
                break;
            }
            Err(error @ Error::Device(_)) => return Err(error),
            Err(error) => wrong = error,
        }
    }
    let Some((used, superblock, mut table, mut position)) = base else { return Err(wrong) };
    let durable = order.iter().map(|(_, superblock)| superblock.group).max().unwrap_or_default();
    let mut number = superblock.group;
    let mut homes = NumberSet::default();
    let mut waiting: Option<(GroupRecords, Position)> = None;
    let mut last_group = None;
    let mut blocks = 0;
    let (broken, refused) = loop {
        let at = waiting.as_ref().map_or(position, |(_, behind)| *behind);
        let next = number + 1 + u64::from(waiting.is_some());
        let (group, begun) = walk.group(at, next)?;
        // a header of the next group proves the waiting one
        if let Some((proved, behind)) = waiting.take_if(|_| begun) {
            apply(&proved, &mut table, &mut homes);
            (number, position) = (number + 1, behind);
        }
        let Some((group, behind)) = group else {
            let Some((last, behind)) = waiting.take() else { break (at.slot, false) };
            // a superblock proves the checkpoint that it names as a header proves the previous group
            let whole = number < durable || walk.verify(&last)?;
            if whole {
                apply(&last, &mut table, &mut homes);
                last_group = Some((position, number + 1));
                (number, position) = (number + 1, behind);
            }
            break (at.slot, !whole);
        };
        blocks += group.iter().map(|(record, _)| 1 + u64::from(record.payload())).sum::<u64>();
        if blocks > u64::from(layout.log) {
            return Err(walk.corrupt("log whose records are longer than its space", at.slot));
        }
        waiting = Some((group, behind));
    };
    if number < durable {
        return Err(walk.corrupt("incomplete record in a part of the log that a later checkpoint covers", broken));
    }
    if let Some((newest, slot)) = walk.newest_beyond(&position)
        && newest > number + 1
    {
        return Err(walk.corrupt("incomplete record followed by a later complete group", slot));
    }
    let other = order.iter().find(|(index, other)| *index != used && other.generation < superblock.generation);
    let older = other.map_or(superblock.checkpoint, |(_, older)| older.checkpoint);
    let unproved =
        Unproved { group: last_group, end: (position, number + 1), refused, superblock: (used, *superblock) };
    Ok(Found {
        table,
        head: position.slot,
        sequence: position.sequence,
        group: number,
        before: position.before,
        homes,
        checkpoints: [superblock.checkpoint, older],
        used: (used, *superblock),
        refused,
        unproved,
    })
}
