//! Blocks that snapshots hold: which they are, and how they come back.
//!
//! 1. A group's map in memory knows which of its blocks a snapshot uses. It learns that when it is read, from the bitmap that
//!    each snapshot has of the group; equal places are equal bitmaps, which are read once.
//! 2. A snapshot is made without a look at any group: it moves the *epoch* on while no operation runs, and a group that is
//!    in memory takes all that it uses for held before anything else is done with it in the new epoch.
//! 3. While one is deleted, no bitmap comes into memory. What only that snapshot held is given out when the generation
//!    without it is durable.

use super::groups::{Bitmap, GroupState};
use super::{Space, lock};
use crate::Result;
use crate::change::Change;
use format::native::GROUP_BLOCKS;
use format::native::snapshots::Snapshot;
use format::{FsBlock, GroupNo};
use space::{GroupMap, Purpose, Run};
use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use store::Store;
use store::native::Mapped;

/// Words in a group's bitmap.
const WORDS: usize = GROUP_BLOCKS as usize / 64;

/// A set bit for each block of a group.
pub(crate) type Bits = Box<[u64]>;

/// What a native volume's snapshots hold.
pub(super) struct Kept {
    mapped: Arc<Mapped>,
    keepers: RwLock<Keepers>,
    /// Whether there are any; changed with `keepers`.
    any: AtomicBool,
    /// How many snapshots were made since the volume was opened.
    epoch: AtomicU64,
    /// Blocks of the data groups that are free in the bitmaps and held.
    blocks: AtomicU64,
}

/// The snapshots that hold something.
pub(super) struct Keepers {
    list: Vec<Snapshot>,
    /// One more is on its way to the device; it holds what is used in groups that have not changed since.
    coming: bool,
}

impl Kept {
    /// Those of a volume; `blocks` is the sum of what the descriptors count.
    pub(super) fn new(mapped: &Arc<Mapped>, blocks: u64) -> Result<Self> {
        let list: Vec<Snapshot> = mapped.snapshots()?.iter().flatten().cloned().collect();
        Ok(Self {
            mapped: Arc::clone(mapped),
            any: AtomicBool::new(!list.is_empty()),
            keepers: RwLock::new(Keepers { list, coming: false }),
            epoch: AtomicU64::new(0),
            blocks: AtomicU64::new(blocks),
        })
    }

    /// While this is held no snapshot is deleted.
    pub(super) fn read(&self) -> RwLockReadGuard<'_, Keepers> {
        self.keepers.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Keepers> {
        self.keepers.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// A data group's map takes note of the snapshots that were made since it was last looked at.
    pub(super) fn catch_up(&self, state: &mut GroupState) {
        let epoch = self.epoch.load(Ordering::Acquire);
        if state.epoch != epoch {
            state.epoch = epoch;
            if let Some(map) = &mut state.blocks {
                map.keep_used();
            }
        }
    }

    /// What snapshots hold of the group with this bitmap block.
    ///
    /// # Errors
    /// Those of the device; of the format, where a snapshot's map or bitmap is damaged.
    pub(super) fn of_group(&self, keepers: &Keepers, block: FsBlock) -> store::Result<KeptOfGroup> {
        Ok(KeptOfGroup { units: used_by(&self.mapped, &keepers.list, block)?, coming: keepers.coming })
    }

    /// Puts that into the group's bitmap as it was just read.
    pub(super) fn mark(&self, kept: &KeptOfGroup, state: &mut GroupState, map: &mut GroupMap) {
        map.keep(&kept.units);
        if kept.coming {
            map.keep_used();
        }
        state.epoch = self.epoch.load(Ordering::Acquire);
    }
}

/// What snapshots hold of a group.
pub(super) struct KeptOfGroup {
    units: Bits,
    coming: bool,
}

/// The blocks that snapshots use of the group with this bitmap block.
pub(crate) fn used_by(mapped: &Mapped, snapshots: &[Snapshot], block: FsBlock) -> store::Result<Bits> {
    let mut union: Bits = vec![0; WORDS].into();
    let mut seen = HashSet::new();
    for snapshot in snapshots {
        if let Some(entry) = mapped.entry_at(snapshot, block)?
            && seen.insert((entry.place, entry.generation))
        {
            let bits = bits(&mapped.read_entry(block, &entry)?);
            union.iter_mut().zip(&bits).for_each(|(union, bits)| *union |= bits);
        }
    }
    Ok(union)
}

/// The blocks of such a group that a snapshot uses and none of the others does.
fn held_by(mapped: &Mapped, snapshot: &Snapshot, others: &[Snapshot], block: FsBlock) -> store::Result<Bits> {
    let nothing = || vec![0; WORDS].into();
    let Some(entry) = mapped.entry_at(snapshot, block)? else { return Ok(nothing()) };
    let mut places = HashSet::from([(entry.place, entry.generation)]);
    let mut different = Vec::new();
    // those that were made next before and after it most likely have the same
    let mut others: Vec<&Snapshot> = others.iter().collect();
    others.sort_by_key(|other| other.generation.abs_diff(snapshot.generation));
    for other in others {
        let Some(theirs) = mapped.entry_at(other, block)? else { continue };
        if (theirs.place, theirs.generation) == (entry.place, entry.generation) {
            return Ok(nothing());
        }
        if places.insert((theirs.place, theirs.generation)) {
            different.push(theirs);
        }
    }
    let mut only = bits(&mapped.read_entry(block, &entry)?);
    for theirs in different {
        let theirs = bits(&mapped.read_entry(block, &theirs)?);
        only.iter_mut().zip(&theirs).for_each(|(only, theirs)| *only &= !theirs);
        if only.iter().all(|word| *word == 0) {
            break;
        }
    }
    Ok(only)
}

/// Blocks of the group with this bitmap block that a snapshot holds, and neither one of `others` nor the live bitmap.
pub(crate) fn held_alone(
    mapped: &Mapped,
    snapshot: &Snapshot,
    others: &[Snapshot],
    block: FsBlock,
    live: &[u8],
) -> store::Result<u64> {
    let only = held_by(mapped, snapshot, others, block)?;
    Ok(only.iter().zip(&bits(live)).map(|(only, used)| u64::from((only & !used).count_ones())).sum())
}

/// A bitmap's bytes as words.
pub(crate) fn bits(bytes: &[u8]) -> Bits {
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
    bytes.chunks(8).map(word).collect()
}

impl Space {
    /// Blocks of the data groups that are free in the bitmaps and that a snapshot holds.
    pub(crate) fn kept_blocks(&self) -> u64 {
        self.kept.as_ref().map_or(0, |kept| kept.blocks.load(Ordering::Relaxed))
    }

    /// Sets [`Space::kept_blocks`].
    pub(super) fn set_kept_blocks(&self, blocks: u64) {
        if let Some(kept) = &self.kept {
            kept.blocks.store(blocks, Ordering::Relaxed);
        }
    }

    /// Blocks were freed that a snapshot holds.
    pub(super) fn note_kept(&self, count: u32) {
        if let Some(kept) = &self.kept {
            kept.blocks.fetch_add(count.into(), Ordering::Relaxed);
        }
    }

    /// Whether a snapshot lets content be written over in its place; as [`Space::in_place`].
    pub(super) fn is_unkept(&self, store: &Store, first: FsBlock, len: u64) -> Result<(bool, u64)> {
        if !self.kept.as_ref().is_some_and(|kept| kept.any.load(Ordering::Acquire)) {
            return Ok((true, len));
        }
        let geometry = &self.sb.geometry;
        let Some(group) = geometry.group_of(first) else { return Ok((true, len)) };
        let blocks = geometry.group_blocks(group);
        let len = len.min(blocks.end - first.get());
        let Some(state) = self.lock_with(store, group.get(), Bitmap::Blocks)? else {
            // nobody knows, so it stays as it is
            return Ok((false, len));
        };
        let run = Run { start: (first.get() - blocks.start) as u32, len: len as u32 };
        let (same, is_kept) = state.blocks.as_ref().map_or((run.len, true), |map| map.kept_at(run));
        Ok((!is_kept, same.into()))
    }

    /// A generation closes. Where it becomes a snapshot, all that is used now is held from now on.
    pub(crate) fn close_versions(&self, generation: u64) {
        let Some(kept) = &self.kept else { return };
        if kept.mapped.becomes_snapshot(generation) {
            kept.write().coming = true;
            kept.any.store(true, Ordering::Release);
            kept.epoch.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// The generation that closed last is durable.
    pub(crate) fn versions_are_durable(&self) {
        let Some(kept) = &self.kept else { return };
        kept.mapped.publish_snapshots();
        let coming = kept.read().coming;
        // the list was read when the volume was opened
        if coming && let Ok(list) = kept.mapped.snapshots() {
            *kept.write() = Keepers { list: list.iter().flatten().cloned().collect(), coming: false };
        }
    }

    /// What a snapshot holds and none of `others` does, of the groups where that is not all used now, or may not be before
    /// long: those that changed since, and those in memory.
    pub(crate) fn held_only_by(
        &self,
        store: &Store,
        snapshot: &Snapshot,
        others: &[Snapshot],
    ) -> Result<BTreeMap<u32, Bits>> {
        let mut all = BTreeMap::new();
        let Some(kept) = self.kept.as_ref() else { return Ok(all) };
        for group in self.layout.groups_for(Purpose::Data) {
            if self.may_differ(kept, store, snapshot, group)? {
                let Some(block) = self.bitmap_block(group) else { continue };
                all.insert(group, held_by(&kept.mapped, snapshot, others, block)?);
                // it is needed soon
                store.prefetch(&[block]);
            }
        }
        Ok(all)
    }

    fn bitmap_block(&self, group: u32) -> Option<FsBlock> {
        Some(lock(&self.cell(GroupNo(group))?.state).descriptor.block_bitmap)
    }

    /// Whether a group's bitmap may be another than it was in a snapshot, or is in memory.
    fn may_differ(&self, kept: &Kept, store: &Store, snapshot: &Snapshot, group: u32) -> Result<bool> {
        let Some(cell) = self.cell(GroupNo(group)) else { return Ok(false) };
        let durable = store.durable_generation();
        let block = {
            let state = lock(&cell.state);
            if state.blocks.is_some() || state.generation > durable {
                return Ok(true);
            }
            state.descriptor.block_bitmap
        };
        let place = |entry: Option<format::native::map::Entry>| entry.map(|entry| (entry.place, entry.generation));
        Ok(place(kept.mapped.entry_of(block)?) != place(kept.mapped.entry_at(snapshot, block)?))
    }

    /// Lets go of a snapshot: `only` is what [`Space::held_only_by`] found a moment ago, `others` are those that remain. The
    /// list is for the generation of the change to change.
    ///
    /// # Errors
    /// Those of the device and of damaged snapshots; nothing is changed then.
    pub(crate) fn let_go(
        &self,
        change: &Change<'_>,
        snapshot: &Snapshot,
        others: Vec<Snapshot>,
        mut only: BTreeMap<u32, Bits>,
    ) -> Result<()> {
        let Some(kept) = self.kept.as_ref() else { return Ok(()) };
        let op = change.operation();
        let mut keepers = kept.write();
        for group in self.layout.groups_for(Purpose::Data) {
            if !only.contains_key(&group)
                && self.may_differ(kept, op.store(), snapshot, group)?
                && let Some(block) = self.bitmap_block(group)
            {
                only.insert(group, held_by(&kept.mapped, snapshot, &others, block)?);
            }
        }
        let mut begun = false;
        for (group, bits) in &only {
            let loaded = self.lock_loaded(op.store(), *group, Bitmap::Blocks, Some(&keepers));
            let loaded = loaded.inspect_err(|e| {
                if begun {
                    op.store().fail(e)
                }
            })?;
            // what a damaged group holds stays as it is
            let Some(mut state) = loaded else { continue };
            let freed = state.blocks.as_mut().map(|map| map.unkeep(bits)).unwrap_or_default();
            let count = freed.iter().map(|run| u64::from(run.len)).sum::<u64>();
            if count == 0 {
                continue;
            }
            begun = true;
            self.touch_descriptor(op, *group, &mut state)?;
            let held = state.descriptor.held().saturating_sub(count);
            state.descriptor.set_held(held);
            kept.blocks.fetch_sub(count, Ordering::Relaxed);
            lock(&self.held).entry(op.generation()).or_default().extend(freed.into_iter().map(|run| (*group, run)));
            lock(&self.pool).hold(count);
        }
        kept.any.store(!others.is_empty() || keepers.coming, Ordering::Release);
        keepers.list = others;
        Ok(())
    }
}
