//! The description of a generation in a slot: records of the net changes in its change records and blocks.

use crate::mutant::{Injected, Mutant};
use crate::{BlockWrite, ChangeRecord, ClosedGeneration, Kind};
use format::InodeNo;
use format::inode::{FileKind, RawInode};
use format::linked::{
    Copied, DIRECTORY, DiskListCopy, DiskListFresh, DiskListGroup, DiskListInode, DiskListPointers, DiskListRun, FREED,
    KIND_ATTRIBUTES, KIND_DIRECTORY, NEW, SECTOR, Slot, WHOLE, sum,
};
use std::collections::{BTreeMap, BTreeSet};

/// The offset of the reference count in the header of an attribute block, in bytes.
const SHARERS: usize = 4;

/// A changed inode of the generation.
struct Changed<'c> {
    before: &'c [u8],
    after: &'c [u8],
}

/// Net allocations and frees: first block, end and owner of each, and whether it was allocated.
#[derive(Default)]
struct NetAllocations(BTreeMap<u64, (u64, InodeNo, bool)>);

impl NetAllocations {
    /// Adds a run; earlier changes that it undoes are removed. `false` if a block of another file is in it.
    fn add(&mut self, first: u64, count: u64, owner: InodeNo, allocated: bool) -> bool {
        let (mut at, end) = (first, first.saturating_add(count));
        while at < end {
            let before = self.0.range(..=at).next_back().map(|(start, run)| (*start, *run));
            if let Some((start, (stop, whose, how))) = before.filter(|(_, run)| run.0 > at) {
                if (whose, how) != (owner, !allocated) {
                    return false;
                }
                let cut = stop.min(end);
                self.0.remove(&start);
                if start < at {
                    self.0.insert(start, (at, whose, how));
                }
                if cut < stop {
                    self.0.insert(cut, (stop, whose, how));
                }
                at = cut;
                continue;
            }
            let next = self.0.range(at..end).next().map_or(end, |(start, _)| *start);
            let start = match before.filter(|(_, (stop, whose, how))| (*stop, *whose, *how) == (at, owner, allocated)) {
                Some((start, _)) => start,
                None => at,
            };
            self.0.insert(start, (next, owner, allocated));
            at = next;
        }
        true
    }
}

/// The builder of a slot.
pub(super) struct Describe<'s> {
    slot: &'s mut Slot,
    /// Inodes that are rolled forward as a whole.
    whole: BTreeSet<InodeNo>,
    owners: BTreeSet<InodeNo>,
}

impl<'s> Describe<'s> {
    pub(super) fn new(slot: &'s mut Slot) -> Self {
        Self { slot, whole: BTreeSet::new(), owners: BTreeSet::new() }
    }

    /// Describes all of a generation; `false` if something in it cannot be described by a slot.
    pub(super) fn all(mut self, closed: &ClosedGeneration, mutant: Injected<Mutant>) -> bool {
        let complete =
            closed.blocks.iter().all(|write| self.block(write).is_some()) && self.change_records(closed).is_some();
        let known: BTreeSet<u32> = self.slot.inodes.iter().map(|inode| inode.li_number.get()).collect();
        let complete = complete && self.owners.iter().all(|owner| known.contains(&owner.get()));
        if mutant.is(Mutant::LoseRun) {
            self.slot.runs.pop();
        }
        if mutant.is(Mutant::LoseCopy) {
            self.slot.copies.pop();
        }
        complete
    }

    fn block(&mut self, write: &BlockWrite) -> Option<()> {
        if write.fresh {
            let is_directory = matches!(write.tag.kind, Kind::Directory | Kind::DirectoryIndex);
            self.slot.fresh.push(DiskListFresh {
                lf_block: number_of(write)?.into(),
                lf_checksum: sum(&write.data).into(),
                lf_kind: u32::from(is_directory).into(),
            });
            return Some(());
        }
        match write.tag.kind {
            Kind::Superblock | Kind::Descriptors | Kind::BlockBitmap | Kind::InodeBitmap | Kind::InodeTable => Some(()),
            Kind::Indirect => self.pointers(write),
            Kind::Directory | Kind::DirectoryIndex => self.sectors(write, KIND_DIRECTORY),
            Kind::Attributes => {
                let shared = |bytes: &[u8]| bytes.get(SHARERS..SHARERS + 4) != Some(&[1, 0, 0, 0]);
                if shared(write.before.as_deref()?) || shared(&write.data) {
                    return None;
                }
                self.whole.insert(write.tag.owner);
                self.owners.insert(write.tag.owner);
                self.sectors(write, KIND_ATTRIBUTES)
            }
            Kind::ExtentNode | Kind::SpaceMap | Kind::OrphanFile | Kind::Data | Kind::Engine => None,
        }
    }

    fn pointers(&mut self, write: &BlockWrite) -> Option<()> {
        let word = |bytes: &[u8], n: usize| -> Option<u32> {
            Some(u32::from_le_bytes(bytes.get(n * 4..n * 4 + 4)?.try_into().ok()?))
        };
        let before = write.before.as_deref()?;
        let (block, owner) = (number_of(write)?, write.tag.owner);
        let mut open: Option<DiskListPointers> = None;
        for n in 0..write.data.len() / 4 {
            let (was, is) = (word(before, n)?, word(&write.data, n)?);
            if was == is {
                self.slot.pointers.extend(open.take());
                continue;
            }
            self.owners.insert(owner);
            if let Some(range) = &mut open {
                let count = u32::from(range.lp_count.get());
                let follows = |first: u32, value: u32| {
                    if first == 0 { value == 0 } else { first.checked_add(count) == Some(value) }
                };
                if follows(range.lp_before.get(), was) && follows(range.lp_after.get(), is) {
                    range.lp_count = u16::try_from(count + 1).ok()?.into();
                    continue;
                }
            }
            let next = DiskListPointers {
                lp_block: block.into(),
                lp_owner: owner.get().into(),
                lp_index: u16::try_from(n).ok()?.into(),
                lp_count: 1.into(),
                lp_before: was.into(),
                lp_after: is.into(),
            };
            self.slot.pointers.extend(open.replace(next));
        }
        self.slot.pointers.extend(open);
        Some(())
    }

    fn sectors(&mut self, write: &BlockWrite, kind: u16) -> Option<()> {
        let before = write.before.as_deref()?;
        for (n, (was, is)) in before.chunks_exact(SECTOR).zip(write.data.chunks_exact(SECTOR)).enumerate() {
            if was != is {
                let head = DiskListCopy {
                    lc_block: number_of(write)?.into(),
                    lc_sector: u16::try_from(n).ok()?.into(),
                    lc_kind: kind.into(),
                    lc_before: sum(was).into(),
                    lc_after: sum(is).into(),
                };
                self.slot.copies.push(Copied { head, after: Box::new(is.try_into().ok()?) });
            }
        }
        Some(())
    }

    fn change_records(&mut self, closed: &ClosedGeneration) -> Option<()> {
        let mut inodes: BTreeMap<InodeNo, Changed<'_>> = BTreeMap::new();
        let mut numbers: BTreeMap<InodeNo, (bool, bool)> = BTreeMap::new();
        let mut runs = NetAllocations::default();
        let mut groups = BTreeMap::new();
        for record in &closed.change_records {
            match record {
                ChangeRecord::Inode { number, before, after } => {
                    inodes.entry(*number).or_insert(Changed { before, after }).after = after;
                }
                // whether the number was allocated by the first record, and by the last
                ChangeRecord::Number { number, allocated } => {
                    numbers.entry(*number).or_insert((*allocated, *allocated)).1 = *allocated;
                }
                ChangeRecord::Whole { number } => drop(self.whole.insert(*number)),
                ChangeRecord::Run { owner, first, count, allocated, .. } => {
                    if !runs.add(first.get(), *count, *owner, *allocated) {
                        return None;
                    }
                }
                ChangeRecord::Group { number, free, free_inodes, directories } => {
                    groups.entry(*number).or_insert(DiskListGroup {
                        lg_number: number.get().into(),
                        lg_free_blocks: (*free).into(),
                        lg_free_inodes: (*free_inodes).into(),
                        lg_directories: (*directories).into(),
                    });
                }
            }
        }
        for (first, (end, owner, allocated)) in runs.0 {
            self.owners.insert(owner);
            self.slot.runs.push(DiskListRun {
                lr_owner: owner.get().into(),
                lr_first: u32::try_from(first).ok()?.into(),
                lr_count: u32::try_from(end - first).ok()?.into(),
                lr_allocated: u32::from(allocated).into(),
            });
        }
        self.slot.groups = groups.into_values().collect();
        self.owners.extend(numbers.keys());
        for (number, changed) in inodes {
            self.inode(number, &changed, numbers.get(&number).copied())?;
        }
        Some(())
    }

    fn inode(&mut self, number: InodeNo, changed: &Changed<'_>, taken: Option<(bool, bool)>) -> Option<()> {
        let (before, after) = (RawInode::from_slot(changed.before)?, RawInode::from_slot(changed.after)?);
        let mut flags = match taken {
            Some((true, true)) => NEW,
            Some((false, false)) => FREED,
            _ => 0,
        };
        // a freed inode has its type only in its previous content
        let shown = if flags == FREED { before } else { after };
        let is_directory = shown.kind() == Some(FileKind::Directory);
        flags |= if is_directory { DIRECTORY } else { 0 };
        // no file has the number before or after the generation
        let unused = matches!(taken, Some((true, false)));
        if flags & FREED == 0 && !unused && (is_directory || self.whole.contains(&number)) {
            flags |= WHOLE;
            self.slot.whole.push(changed.after.into());
        }
        self.slot.inodes.push(DiskListInode {
            li_number: number.get().into(),
            li_before: sum(changed.before).into(),
            li_after: sum(changed.after).into(),
            li_dtime: after.disk.i_dtime,
            li_links: after.disk.i_links_count,
            li_flags: flags.into(),
        });
        Some(())
    }
}

fn number_of(write: &BlockWrite) -> Option<u32> {
    u32::try_from(write.block.get()).ok()
}

/// The maximum number of sectors that recovery writes for a slot: its changes, and the names of new files. Each sector
/// counts once, however many changes are in it.
pub(super) fn most_sectors(slot: &Slot) -> u64 {
    let per_sector = (SECTOR as u32 / slot.header.ll_inode_size.get().max(1)).max(1);
    let tables: BTreeSet<u32> =
        slot.inodes.iter().map(|inode| inode.li_number.get().saturating_sub(1) / per_sector).collect();
    // the names of new files are in changed sectors or new blocks; removing one may change the sector before it, too
    let new = slot.inodes.iter().filter(|inode| inode.li_flags.get() & NEW != 0).count();
    let fresh = slot.fresh.iter().filter(|fresh| fresh.lf_kind.get() != 0).count();
    let per_block = slot.header.ll_block_size.get() as usize / SECTOR;
    let names = 2 * new.min(slot.copies.len() + fresh * per_block);
    // the sectors of bitmaps begin at the first block of each group, and so in the middle of these runs of blocks
    let per_bitmap = 8 * SECTOR as u32;
    let bits: BTreeSet<u32> = (slot.runs.iter())
        .flat_map(|run| {
            let first = run.lr_first.get();
            first / per_bitmap..=first.saturating_add(run.lr_count.get()) / per_bitmap
        })
        .collect();
    let pointers: BTreeSet<(u32, u32)> = (slot.pointers.iter())
        .flat_map(|p| {
            let (block, first) = (p.lp_block.get(), u32::from(p.lp_index.get()) * 4);
            let sectors = first / SECTOR as u32..=(first + u32::from(p.lp_count.get()) * 4) / SECTOR as u32;
            sectors.map(move |sector| (block, sector))
        })
        .collect();
    let changed = slot.inodes.iter().filter(|inode| inode.li_flags.get() & (NEW | FREED) != 0);
    let numbers: BTreeSet<u32> = changed.map(|inode| inode.li_number.get().saturating_sub(1) / per_bitmap).collect();
    let bitmaps = 2 * (bits.len() + numbers.len()) + slot.groups.len();
    (tables.len() + names + bitmaps + pointers.len() + slot.copies.len() + 3 * slot.groups.len() + 4) as u64
}
