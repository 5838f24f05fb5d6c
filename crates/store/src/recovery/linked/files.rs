//! The version that each file has, and the version that it is to have.

use super::work::{CHANGED, NOT_NAMED, Work, contradiction};
use crate::{Error, Result};
use blockdev::BlockDevice;
use format::InodeNo;
use format::inode::DiskInode;
use format::linked::{DIRECTORY, DiskListInode, DiskListPointers, FREED, NEW, Slot, WHOLE, sum};
use std::collections::BTreeMap;
use zerocopy::{FromBytes, IntoBytes};

/// An inode that slots name.
struct File<'s> {
    /// The record of each slot that names it, the older one first: number of the slot, record, and its slot in the
    /// inode table, if the record contains that.
    steps: Vec<(usize, &'s DiskListInode, Option<&'s [u8]>)>,
    /// The number of steps in the version that the file is to have.
    version: usize,
    /// The number of steps in the version on the device.
    there: usize,
}

impl File<'_> {
    fn newest(&self) -> Option<&DiskListInode> {
        self.steps.last().map(|(_, record, _)| *record)
    }

    fn flags(&self, step: usize) -> u16 {
        self.steps.get(step).map_or(0, |(_, record, _)| record.li_flags.get())
    }

    /// Whether it is a new file that did not reach the device.
    fn is_lost(&self) -> bool {
        self.version == 0 && self.flags(0) & NEW != 0
    }
}

/// All files that slots name, by inode number.
pub(super) struct Files<'s>(BTreeMap<u32, File<'s>>);

/// The records of slots, in the order in which they are to be applied: first those to roll forward, the older slot
/// first, then those to roll back, the newer first.
pub(super) fn landed<'s, T>(
    slots: &'s [Slot],
    of: impl Fn(&'s Slot) -> &'s Vec<T>,
    is_landed: impl Fn(&T, usize) -> Result<bool>,
) -> Result<(Vec<&'s T>, Vec<&'s T>)> {
    let (mut forward, mut backward) = (Vec::new(), Vec::new());
    for (number, slot) in slots.iter().enumerate() {
        for one in of(slot) {
            if is_landed(one, number)? { forward.push(one) } else { backward.push(one) }
        }
    }
    backward.reverse();
    Ok((forward, backward))
}

impl<'s> Files<'s> {
    /// Compares the inodes on the volume with their records in the slots.
    pub(super) fn find(work: &Work<'s>) -> Result<Self> {
        let mut files: BTreeMap<u32, File<'s>> = BTreeMap::new();
        for (number, slot) in work.slots.iter().enumerate() {
            let mut whole = slot.whole.iter();
            for record in &slot.inodes {
                let place = if record.li_flags.get() & WHOLE != 0 { whole.next().map(|bytes| &**bytes) } else { None };
                if place.is_some_and(|place| sum(place) != record.li_after.get()) {
                    return contradiction(NOT_NAMED);
                }
                let file = files.entry(record.li_number.get());
                let file = file.or_insert(File { steps: Vec::new(), version: 0, there: 0 });
                if file.steps.last().is_some_and(|(last, ..)| *last == number) {
                    return contradiction(NOT_NAMED);
                }
                file.steps.push((number, record, place));
            }
        }
        let mut this = Self(files);
        for (number, file) in &mut this.0 {
            let (_, bytes) = read_place(work, InodeNo(*number))?;
            let there = sum(&bytes);
            let after = file.steps.iter().rposition(|(_, record, _)| record.li_after.get() == there);
            file.there = match after {
                Some(step) => step + 1,
                None if file.steps.first().is_some_and(|(_, record, _)| record.li_before.get() == there) => 0,
                None => return contradiction(CHANGED),
            };
            let forward = file.steps.iter().rposition(|(_, record, _)| record.li_flags.get() & (WHOLE | FREED) != 0);
            file.version = file.there.max(forward.map_or(0, |step| step + 1));
        }
        Ok(this)
    }

    /// Whether a file has the version that a slot describes.
    pub(super) fn landed(&self, number: u32, slot: usize) -> Result<bool> {
        let file = self.0.get(&number).ok_or(Error::Linked(NOT_NAMED))?;
        let step = file.steps.iter().position(|(of, ..)| *of == slot).ok_or(Error::Linked(NOT_NAMED))?;
        Ok(file.version > step)
    }

    pub(super) fn lost(&self) -> usize {
        self.0.values().filter(|file| file.is_lost()).count()
    }

    pub(super) fn is_lost(&self, number: u32) -> bool {
        self.0.get(&number).is_some_and(File::is_lost)
    }

    /// Sets pointers in indirect blocks to the version of their file.
    pub(super) fn pointers(&self, work: &Work<'_>) -> Result<()> {
        let mut of_block: BTreeMap<u32, Vec<&DiskListPointers>> = BTreeMap::new();
        for pointers in work.slots.iter().flat_map(|slot| &slot.pointers) {
            of_block.entry(pointers.lp_block.get()).or_default().push(pointers);
        }
        for (block, ranges) in &of_block {
            let at = work.at(*block)?;
            for range in ranges {
                self.are_known(work, at, range, ranges)?;
            }
        }
        let is_landed = |pointers: &DiskListPointers, slot| self.landed(pointers.lp_owner.get(), slot);
        let (forward, backward) = landed(work.slots, |slot| &slot.pointers, is_landed)?;
        let forward = forward.into_iter().map(|range| (range, range.lp_after.get()));
        for (range, first) in forward.chain(backward.into_iter().map(|range| (range, range.lp_before.get()))) {
            let values = (0..u32::from(range.lp_count.get())).map(|n| value(first, n));
            let bytes: Vec<u8> = values.flat_map(u32::to_le_bytes).collect();
            let at = work.at(range.lp_block.get())? + u64::from(range.lp_index.get()) * 4;
            work.volume.write(at, &bytes)?;
        }
        Ok(())
    }

    /// Checks that each pointer of a range has a value that a slot names for its location.
    fn are_known(&self, work: &Work<'_>, at: u64, range: &DiskListPointers, all: &[&DiskListPointers]) -> Result<()> {
        let (index, count) = (u32::from(range.lp_index.get()), u32::from(range.lp_count.get()));
        let mut bytes = vec![0; count as usize * 4];
        work.volume.read(at + u64::from(index) * 4, &mut bytes)?;
        for (n, word) in (0..).zip(bytes.chunks_exact(4)) {
            let there = word.try_into().map_or(0, u32::from_le_bytes);
            let names = |other: &DiskListPointers| {
                let inside = (index + n).checked_sub(other.lp_index.get().into());
                inside.is_some_and(|n| {
                    n < other.lp_count.get().into()
                        && [other.lp_before.get(), other.lp_after.get()].iter().any(|first| value(*first, n) == there)
                })
            };
            // the range's own values first: most pointers have no others
            if !names(range) && !all.iter().any(|other| names(other)) {
                return contradiction(CHANGED);
            }
        }
        Ok(())
    }

    /// The inode numbers that are allocated or freed: whether they are in use, and the change of the counts of inodes
    /// and directories.
    pub(super) fn numbers(&self) -> impl Iterator<Item = (InodeNo, bool, (i64, i64))> {
        self.0.iter().filter_map(|(number, file)| {
            let (mut in_use, mut change) = (None, (0, 0));
            for step in 0..file.steps.len() {
                let flags = file.flags(step);
                let sign = match flags & (NEW | FREED) {
                    NEW => 1,
                    FREED => -1,
                    _ => continue,
                };
                if step < file.version {
                    in_use = Some(sign > 0);
                    change.0 += sign;
                    change.1 += if flags & DIRECTORY != 0 { sign } else { 0 };
                } else if in_use.is_none() {
                    in_use = Some(sign < 0);
                }
            }
            in_use.map(|in_use| (InodeNo(*number), in_use, change))
        })
    }

    /// The first existing orphan after each new file that did not reach the device; 0 after the last.
    fn orphans_behind(&self) -> Result<BTreeMap<u32, u32>> {
        let mut behind = BTreeMap::new();
        let mut chain = Vec::new();
        for (number, file) in &self.0 {
            let (mut number, mut file) = (*number, Some(file));
            // each file is visited once: the result after it is known for those before it
            while let Some(lost) = file.filter(|file| file.is_lost() && !behind.contains_key(&number)) {
                chain.push(number);
                if chain.len() > self.0.len() {
                    return contradiction(NOT_NAMED);
                }
                number = lost.newest().map_or(0, |record| record.li_dtime.get());
                file = self.0.get(&number);
            }
            let end = behind.get(&number).copied().unwrap_or(number);
            behind.extend(chain.drain(..).map(|lost| (lost, end)));
        }
        Ok(behind)
    }

    /// Writes the inodes; returns the first orphan.
    pub(super) fn write(&self, work: &Work<'_>) -> Result<u32> {
        let behind = self.orphans_behind()?;
        let present = |number: u32| behind.get(&number).copied().unwrap_or(number);
        for (number, file) in &self.0 {
            if file.is_lost() {
                continue;
            }
            let (at, mut bytes) = read_place(work, InodeNo(*number))?;
            let Some(newest) = file.newest() else { continue };
            if file.version > file.there
                && let Some((_, record, whole)) = file.steps.get(file.version - 1)
            {
                match whole {
                    Some(whole) => bytes.copy_from_slice(whole),
                    None if record.li_flags.get() & FREED != 0 => free(&mut bytes)?,
                    None => return contradiction(NOT_NAMED),
                }
            }
            let (mut disk, _) = DiskInode::read_from_prefix(&bytes).map_err(|_| Error::Linked(NOT_NAMED))?;
            disk.i_links_count = newest.li_links;
            let is_orphan = newest.li_links.get() == 0 && newest.li_flags.get() & FREED == 0;
            disk.i_dtime = if is_orphan { present(newest.li_dtime.get()).into() } else { newest.li_dtime };
            bytes.get_mut(..DiskInode::SIZE).unwrap_or_default().copy_from_slice(disk.as_bytes());
            work.volume.write(at, &bytes)?;
        }
        Ok(present(work.slots.last().map_or(0, |slot| slot.header.ll_last_orphan.get())))
    }
}

/// The value of pointer `n` of a range.
fn value(first: u32, n: u32) -> u32 {
    if first == 0 { 0 } else { first.wrapping_add(n) }
}

/// Clears an inode's size, block counts and block references.
fn free(bytes: &mut [u8]) -> Result<()> {
    let (mut disk, _) = DiskInode::read_from_prefix(bytes).map_err(|_| Error::Linked(NOT_NAMED))?;
    disk.i_size_lo = 0.into();
    disk.i_size_high = 0.into();
    disk.i_blocks_lo = 0.into();
    disk.i_blocks_high = 0.into();
    disk.i_file_acl_lo = 0.into();
    disk.i_file_acl_high = 0.into();
    disk.i_block = [0; 60];
    bytes.get_mut(..DiskInode::SIZE).unwrap_or_default().copy_from_slice(disk.as_bytes());
    Ok(())
}

/// An inode's slot in the table: its first byte on the volume, and its content.
fn read_place(work: &Work<'_>, number: InodeNo) -> Result<(u64, Vec<u8>)> {
    let geometry = &work.sb.geometry;
    let slot = geometry.inode_slot(number).ok_or(Error::Linked(super::work::BEYOND))?;
    let table = work.group(slot.group)?.1.bg_inode_table_lo.get();
    let block = table.checked_add(slot.table_block).ok_or(Error::Linked(super::work::BEYOND))?;
    let at = work.at(block)? + u64::from(slot.offset);
    let mut bytes = vec![0; geometry.inode_size as usize];
    work.volume.read(at, &mut bytes)?;
    Ok((at, bytes))
}
