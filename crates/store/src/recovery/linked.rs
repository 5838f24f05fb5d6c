//! The repair of a volume that was written by linked writes: the changes described in its list are completed, or
//! undone.
//!
//! 1. Nothing is written before everything that the slots name was found in its old or its new state: else
//!    [`Finding::Check`].
//! 2. An inode's slot in the table determines the version of the file. Pointers and bits of bitmaps are made to match
//!    it. Directories, files that took another's name and owners of changed attributes are rolled forward; freed files
//!    are freed; the names of new files that do not exist are removed.
//! 3. All of it is computed from the unchanged volume. The writes are logged in the redo area first, completely and
//!    flushed, then made in their locations, flushed, and then the volume is marked clean. An interruption at any point
//!    does not change the result.
//! 4. Memory: the content of the two slots, and the writes. Requests: only for what the slots name.

mod files;
mod names;
mod work;

use super::Recovery;
use crate::mutant::{Injected, Mutant};
use crate::{Error, Result};
use blockdev::{BlockDevice, Overlay, ReadOnly};
use format::linked::{Areas, INCOMPLETE, PREVIOUS_DURABLE, Redo, SECTOR, Slot, is_ours, mount_sum, sum};
use format::superblock::{DiskSuperblock, OFFSET, State, Superblock};
use std::sync::Arc;
use work::Work;
use zerocopy::IntoBytes;

/// The location of a volume's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct List {
    /// The first byte of the list on the device.
    pub at: u64,
    /// The areas of the list.
    pub areas: Areas,
    /// The largest counter in the list.
    pub counter: u64,
}

/// The action that a list requires.
pub enum Finding {
    /// The list does not belong to the present state of this volume: other software wrote the volume since, or the list
    /// is damaged.
    Void,
    /// The volume needs a full check; the reason, as a phrase without a full stop.
    Check(&'static str),
    /// The volume needs this repair.
    Repair(LinkedRepair),
}

/// A repair that was computed and not written yet.
pub struct LinkedRepair {
    redo: Redo,
    /// The first byte of the redo area on the device.
    redo_at: u64,
    /// The repair is in the redo area already.
    is_logged: bool,
    mutant: Injected<Mutant>,
    /// Inodes that the list names.
    pub inodes: usize,
    /// New files that did not reach the device, whose names are removed.
    pub lost: usize,
}

/// The valid slots, the older one first, and how far the list was written.
struct Slots {
    counting: Vec<Slot>,
    redo: Option<Redo>,
}

/// Reads a list that was created for linked writes; returns its largest counter.
///
/// # Errors
/// [`Error::Linked`] if an area of it was not written by linked writes for this volume. Those of the device.
pub fn read_counter(volume: &dyn BlockDevice, uuid: &[u8; 16], at: u64, areas: Areas) -> Result<u64> {
    let mut counter = None;
    for parity in [0, 1] {
        let mut area = vec![0; areas.slot as usize];
        volume.read(at + areas.slot_at(parity), &mut area)?;
        if !is_ours(&area, uuid) {
            return Err(Error::Linked("inode 5 does not contain this volume's list of linked writes"));
        }
        if let Ok(slot) = Slot::parse(&area) {
            counter = counter.max(Some(slot.header.ll_counter.get()));
        }
    }
    counter.filter(|counter| *counter < u64::MAX - 2).ok_or(Error::Linked("the list of linked writes is damaged"))
}

/// Determines the action that the list of a volume which was not unmounted requires. Nothing is written.
///
/// # Errors
/// Those of the device.
pub fn find(volume: &Arc<dyn BlockDevice>, sb: &Superblock, list: List) -> Result<Finding> {
    find_as(volume, sb, list, Injected::default())
}

/// As [`find`], with an injected defect.
///
/// # Errors
/// As [`find`].
#[cfg(feature = "mutants")]
#[doc(hidden)]
pub fn find_mutated(volume: &Arc<dyn BlockDevice>, sb: &Superblock, list: List, mutant: Mutant) -> Result<Finding> {
    find_as(volume, sb, list, Injected::new(mutant))
}

fn find_as(volume: &Arc<dyn BlockDevice>, sb: &Superblock, list: List, mutant: Injected<Mutant>) -> Result<Finding> {
    let Some(slots) = counting(&**volume, sb, list, mutant)? else { return Ok(Finding::Void) };
    let redo_at = list.at + list.areas.redo_at();
    let inodes = slots.counting.iter().map(|slot| slot.inodes.len()).sum();
    if let Some(redo) = slots.redo {
        return Ok(Finding::Repair(LinkedRepair { redo, redo_at, is_logged: true, mutant, inodes, lost: 0 }));
    }
    if slots.counting.iter().any(|slot| slot.header.ll_flags.get() & INCOMPLETE != 0) {
        return Ok(Finding::Check("its list of linked writes was too small for all writes in progress"));
    }
    let overlay = Overlay::new(Arc::clone(volume));
    let block_size = u64::from(sb.geometry.block_size);
    let blocks = list.at / block_size..(list.at + list.areas.len()).div_ceil(block_size);
    let work = Work { volume: &overlay, sb, slots: &slots.counting, list: blocks };
    let lost = match work.all() {
        Ok(lost) => lost,
        Err(Error::Linked(why)) => return Ok(Finding::Check(why)),
        Err(e) => return Err(e),
    };
    let mut sectors = Vec::new();
    let mut outcome = Ok(());
    overlay.each_change(|at, bytes| {
        for (n, sector) in bytes.chunks_exact(SECTOR).enumerate() {
            let at = at + (n * SECTOR) as u64;
            let mut before = [0; SECTOR];
            match volume.read(at, &mut before) {
                Ok(()) if before == sector => {}
                Ok(()) => sectors.extend(sector.try_into().ok().map(|s| (at / SECTOR as u64, Box::new(s)))),
                Err(e) => outcome = Err(e),
            }
        }
    });
    outcome?;
    if Redo::len_of(sectors.len()) as u64 > list.areas.redo {
        return Ok(Finding::Check("the redo area of its list of linked writes is too small for the repair"));
    }
    let counter = slots.counting.last().map_or(0, |slot| slot.header.ll_counter.get());
    let redo = Redo { uuid: sb.disk.s_uuid, counter, sectors };
    Ok(Finding::Repair(LinkedRepair { redo, redo_at, is_logged: false, mutant, inodes, lost }))
}

/// The valid slots; `None` if there are none.
fn counting(volume: &dyn BlockDevice, sb: &Superblock, list: List, mutant: Injected<Mutant>) -> Result<Option<Slots>> {
    let mount = mount_sum(&sb.disk);
    let mut found: Vec<Slot> = Vec::new();
    for parity in [0, 1] {
        let mut area = vec![0; list.areas.slot as usize];
        volume.read(list.at + list.areas.slot_at(parity), &mut area)?;
        let Ok(slot) = Slot::parse(&area) else { continue };
        let header = &slot.header;
        let fits = header.ll_uuid == sb.disk.s_uuid
            && header.ll_counter.get() & 1 == parity
            && header.ll_block_size.get() == sb.geometry.block_size
            && header.ll_inode_size.get() == sb.geometry.inode_size;
        if fits && [header.ll_mount_before.get(), header.ll_mount_after.get()].contains(&mount) {
            found.push(slot);
        }
    }
    found.sort_by_key(|slot| slot.header.ll_counter.get());
    if let Some(newest) = found.last()
        && let Some(redo) = logged(volume, newest, list)?
    {
        found.drain(..found.len() - 1);
        return Ok(Some(Slots { counting: found, redo: Some(redo) }));
    }
    // the newest one, if the blocks allocated with it reached the device
    if !mutant.is(Mutant::TrustFresh)
        && let Some(newest) = found.last()
        && !has_fresh(volume, sb, newest)?
    {
        found.pop();
        if let Some(left) = found.last()
            && !has_fresh(volume, sb, left)?
        {
            return Ok(None);
        }
    }
    let Some(newest) = found.last() else { return Ok(None) };
    let (counter, flags) = (newest.header.ll_counter.get(), newest.header.ll_flags.get());
    let follows = found.first().is_some_and(|older| older.header.ll_counter.get().checked_add(1) == Some(counter));
    if found.len() == 2 && !mutant.is(Mutant::TrustStale) && (!follows || flags & PREVIOUS_DURABLE != 0) {
        found.remove(0);
    }
    Ok(Some(Slots { counting: found, redo: None }))
}

/// The repair of a slot, if it was begun: called before anything that it changes is read, such as names in blocks that
/// were allocated with the slot.
fn logged(volume: &dyn BlockDevice, newest: &Slot, list: List) -> Result<Option<Redo>> {
    let mut area = vec![0; list.areas.redo as usize];
    volume.read(list.at + list.areas.redo_at(), &mut area)?;
    let end = volume.geometry().len / SECTOR as u64;
    let own = list.at..list.at + list.areas.len();
    let follows = |redo: &Redo| {
        redo.uuid == newest.header.ll_uuid
            && redo.counter == newest.header.ll_counter.get()
            && redo.sectors.iter().all(|(number, _)| *number < end && !own.contains(&(number * SECTOR as u64)))
    };
    Ok(Redo::parse(&area).ok().filter(follows))
}

/// Whether the metadata blocks that a generation allocated are on the device as the slot describes them.
fn has_fresh(volume: &dyn BlockDevice, sb: &Superblock, slot: &Slot) -> Result<bool> {
    let mut block = vec![0; sb.geometry.block_size as usize];
    for fresh in &slot.fresh {
        let Some(at) = sb.geometry.byte_offset(format::FsBlock(fresh.lf_block.get().into())) else { return Ok(false) };
        volume.read(at, &mut block)?;
        if sum(&block) != fresh.lf_checksum.get() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The superblock, marked clean.
fn marked_clean(volume: &dyn BlockDevice) -> Result<DiskSuperblock> {
    let mut bytes = [0; DiskSuperblock::SIZE];
    volume.read(OFFSET, &mut bytes)?;
    let mut sb = DiskSuperblock::from_slice(&bytes).ok_or(Error::Linked("the volume has no superblock"))?;
    sb.s_state = (sb.s_state.get() | State::VALID.bits()).into();
    Ok(sb)
}

impl LinkedRepair {
    fn write(&self, volume: &dyn BlockDevice) -> Result<()> {
        for (number, sector) in &self.redo.sectors {
            volume.write(number * SECTOR as u64, &**sector)?;
        }
        Ok(())
    }
}

impl Recovery for LinkedRepair {
    /// Always `false`: the mark is cleared in any case.
    fn is_empty(&self) -> bool {
        false
    }

    fn overlay(&self, volume: Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice> {
        let overlay = Overlay::new(volume);
        // writes to memory do not fail, and a read error here occurs again when the volume is used
        let _ = self.write(&overlay);
        if let Ok(sb) = marked_clean(&overlay) {
            let _ = overlay.write(OFFSET, sb.as_bytes());
        }
        Arc::new(ReadOnly::new(overlay))
    }

    fn apply(&self, volume: &dyn BlockDevice) -> Result<()> {
        if !self.is_logged && !self.mutant.is(Mutant::UnloggedRepair) {
            volume.write(self.redo_at, &self.redo.encode())?;
            volume.flush()?;
        }
        self.write(volume)?;
        volume.flush()?;
        volume.write(OFFSET, marked_clean(volume)?.as_bytes())?;
        Ok(volume.flush()?)
    }
}
