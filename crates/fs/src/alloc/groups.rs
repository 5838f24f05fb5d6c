//! A group in memory: its descriptor, its bitmaps once they are needed, and what of them has changed.

use super::kept::{Keepers, Kept};
use super::{DamagedGroup, GroupCell, Space, lock};
use crate::Result;
use format::group::{Group, GroupFlags, bitmap_checksum};
use format::{FsBlock, GroupNo, InodeNo};
use space::{FreeMap, GroupMap, Run};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use store::{Closing, Kind, Note, Operation, Store, Tag};

/// What a group's lock protects.
pub(crate) struct GroupState {
    pub(super) descriptor: Group,
    pub(super) blocks: Option<GroupMap>,
    pub(super) inodes: Option<GroupMap>,
    /// The group stands in the list of changed groups; its descriptor's block counts to the open generation.
    changed: bool,
    blocks_changed: bool,
    inodes_changed: bool,
    damaged: bool,
    /// How many snapshots the map of blocks has taken note of; see [`Kept`].
    pub(super) epoch: u64,
    /// The generation that last changed the map of blocks.
    pub(super) generation: u64,
}

/// One of a group's bitmaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bitmap {
    Blocks,
    Inodes,
}

impl GroupCell {
    /// The group is again as the device has it, with so many blocks that may be allocated, but for what is known to be
    /// damaged. No operation uses it.
    pub(super) fn reset(&self, descriptor: Group, available: u32) {
        let mut state = lock(&self.state);
        state.forget_maps();
        state.descriptor = descriptor;
        (state.changed, state.blocks_changed, state.inodes_changed) = (false, false, false);
        let usable = if state.damaged { 0 } else { u32::MAX };
        self.blocks.store(available & usable, Ordering::Relaxed);
        self.inodes.store(descriptor.free_inodes & usable, Ordering::Relaxed);
        self.directories.store(descriptor.directories, Ordering::Relaxed);
        self.forget_bounds();
    }

    pub(super) fn new(descriptor: Group, mask: u64, available: u32) -> Self {
        Self {
            mask: AtomicU64::new(mask),
            table: descriptor.inode_table,
            blocks: AtomicU32::new(available),
            inodes: AtomicU32::new(descriptor.free_inodes),
            directories: AtomicU32::new(descriptor.directories),
            longest: [const { AtomicU32::new(u32::MAX) }; 3],
            state: Mutex::new(GroupState {
                descriptor,
                blocks: None,
                inodes: None,
                changed: false,
                blocks_changed: false,
                inodes_changed: false,
                damaged: false,
                epoch: 0,
                generation: 0,
            }),
        }
    }
}

impl GroupState {
    pub(super) fn map(&mut self, which: Bitmap) -> &mut Option<GroupMap> {
        match which {
            Bitmap::Blocks => &mut self.blocks,
            Bitmap::Inodes => &mut self.inodes,
        }
    }

    fn map_of(&self, which: Bitmap) -> Option<&GroupMap> {
        match which {
            Bitmap::Blocks => self.blocks.as_ref(),
            Bitmap::Inodes => self.inodes.as_ref(),
        }
    }

    fn block_of(&self, which: Bitmap) -> FsBlock {
        match which {
            Bitmap::Blocks => self.descriptor.block_bitmap,
            Bitmap::Inodes => self.descriptor.inode_bitmap,
        }
    }

    pub(super) fn is_damaged(&self) -> bool {
        self.damaged
    }

    /// Nothing of the bitmaps is waiting for anything: they can be read again.
    fn is_clean(&self) -> bool {
        let holds = |map: &Option<GroupMap>| map.as_ref().is_some_and(|map| map.held() > 0);
        !self.changed && !holds(&self.blocks) && !holds(&self.inodes)
    }

    fn forget_maps(&mut self) {
        (self.blocks, self.inodes) = (None, None);
    }
}

fn tag(kind: Kind) -> Tag {
    Tag { kind, owner: InodeNo(0), seed: 0 }
}

impl Bitmap {
    fn tag(self) -> Tag {
        tag(match self {
            Bitmap::Blocks => Kind::BlockBitmap,
            Bitmap::Inodes => Kind::InodeBitmap,
        })
    }
}

impl Space {
    /// Whether descriptors carry checksums, and so their flags and `bg_itable_unused` mean something.
    pub(super) fn has_descriptor_checksums(&self) -> bool {
        self.sb.geometry.metadata_csum || self.sb.geometry.gdt_csum
    }

    fn is_uninit(&self, state: &GroupState, which: Bitmap) -> bool {
        let flag = match which {
            Bitmap::Blocks => GroupFlags::BLOCK_UNINIT,
            Bitmap::Inodes => GroupFlags::INODE_UNINIT,
        };
        self.has_descriptor_checksums() && state.descriptor.flags.contains(flag)
    }

    /// A group with one of its bitmaps in memory; `None` for a group that is damaged. Only within an operation: between
    /// two looks at the lock no generation may close.
    ///
    /// # Errors
    /// Those of the device. The group is not given up: the next call reads again.
    pub(super) fn lock_with(
        &self,
        store: &Store,
        group: u32,
        which: Bitmap,
    ) -> Result<Option<MutexGuard<'_, GroupState>>> {
        let Some(cell) = self.cell(GroupNo(group)) else { return Ok(None) };
        let state = lock(&cell.state);
        if state.damaged || state.map_of(which).is_some() {
            return Ok(self.up_to_date(group, state));
        }
        drop(state);
        let kept = self.kept.as_ref().filter(|_| which == Bitmap::Blocks && self.layout.is_pool_group(group));
        let keepers = kept.map(Kept::read);
        self.lock_loaded(store, group, which, keepers.as_deref())
    }

    /// A group whose bitmap is in memory, in the newest epoch; `None` for one that is damaged.
    fn up_to_date<'s>(&self, group: u32, mut state: MutexGuard<'s, GroupState>) -> Option<MutexGuard<'s, GroupState>> {
        if state.damaged {
            return None;
        }
        if let Some(kept) = self.kept.as_ref().filter(|_| self.layout.is_pool_group(group)) {
            kept.catch_up(&mut state);
        }
        Some(state)
    }

    /// As [`Space::lock_with`], by whoever keeps snapshots from being deleted; `keepers` is set for bitmaps that they hold
    /// something of.
    pub(super) fn lock_loaded(
        &self,
        store: &Store,
        group: u32,
        which: Bitmap,
        keepers: Option<&Keepers>,
    ) -> Result<Option<MutexGuard<'_, GroupState>>> {
        let Some(cell) = self.cell(GroupNo(group)) else { return Ok(None) };
        let mut state = lock(&cell.state);
        if state.damaged || state.map_of(which).is_some() {
            return Ok(self.up_to_date(group, state));
        }
        let block = state.block_of(which);
        let is_uninit = self.is_uninit(&state, which);
        // not under the lock: others need the group meanwhile
        drop(state);
        let bytes = if is_uninit { None } else { Some(store.block(block)) };
        let held = match self.kept.as_ref().zip(keepers) {
            Some((kept, keepers)) => kept.of_group(keepers, block).map(Some),
            None => Ok(None),
        };
        state = lock(&cell.state);
        if state.damaged || state.map_of(which).is_some() {
            return Ok(self.up_to_date(group, state));
        }
        let read = match (bytes, held) {
            (Some(Err(e @ store::Error::Device(_))), _) | (_, Err(e @ store::Error::Device(_))) => return Err(e.into()),
            (Some(Err(_)), _) => Err("its bitmap cannot be read"),
            (_, Err(_)) => Err("what snapshots hold of it cannot be read"),
            (None, Ok(held)) => self.first_map(group, &state.descriptor, which).map(|map| (map, held)),
            (Some(Ok(bytes)), Ok(held)) => self.accept(group, &state.descriptor, which, &bytes).map(|map| (map, held)),
        };
        let read = read.and_then(|(mut map, held)| {
            if let Some((kept, held)) = self.kept.as_ref().zip(held) {
                kept.mark(&held, &mut state, &mut map);
                if u64::from(map.kept()) != state.descriptor.held() {
                    return Err("its count of held blocks and the bitmaps of the snapshots contradict each other");
                }
            }
            Ok(map)
        });
        match read {
            Ok(mut map) => {
                if which == Bitmap::Inodes {
                    self.hold_pinned(group, &mut map);
                }
                lock(&self.loaded).insert(group);
                *state.map(which) = Some(map);
                Ok(Some(state))
            }
            Err(what) => {
                self.spoil(cell, group, &mut state, what);
                Ok(None)
            }
        }
    }

    /// [`Space::lock_with`] for what is freed. Where the bitmap cannot be read, it stays in use and the volume is marked
    /// for a check: whatever used it is gone already.
    pub(super) fn lock_to_free(&self, store: &Store, group: u32, which: Bitmap) -> Option<MutexGuard<'_, GroupState>> {
        self.lock_with(store, group, which).unwrap_or_else(|_| {
            self.note_error();
            None
        })
    }

    /// The group is not trusted any more.
    pub(super) fn spoil(&self, cell: &GroupCell, group: u32, state: &mut GroupState, what: &'static str) {
        if std::mem::replace(&mut state.damaged, true) {
            return;
        }
        let out_of_reach = cell.blocks.swap(0, Ordering::Relaxed);
        cell.inodes.store(0, Ordering::Relaxed);
        if self.layout.is_pool_group(group) {
            lock(&self.pool).lose(u64::from(out_of_reach));
        }
        lock(&self.damaged).push(DamagedGroup { group: GroupNo(group), what });
        self.note_error();
    }

    /// The bitmap of a group whose own was never written.
    fn first_map(&self, group: u32, descriptor: &Group, which: Bitmap) -> Result<GroupMap, &'static str> {
        let geometry = &self.sb.geometry;
        if which == Bitmap::Inodes {
            let map = GroupMap::new(geometry.inodes_per_group);
            let counts = descriptor.free_inodes == map.free() && descriptor.directories == 0;
            return if counts { Ok(map) } else { Err("its inode counts do not fit INODE_UNINIT") };
        }
        let blocks = geometry.group_blocks(GroupNo(group));
        let mut map = GroupMap::new((blocks.end - blocks.start) as u32);
        for zone in self.zones.within(blocks.clone()) {
            let run = Run { start: (zone.start - blocks.start) as u32, len: (zone.end - zone.start) as u32 };
            if !map.take(run) {
                return Err("its own structures overlap");
            }
        }
        if map.free() != descriptor.free_clusters {
            return Err("its count of free blocks does not fit BLOCK_UNINIT");
        }
        Ok(map)
    }

    /// A bitmap as it was read, if it can be trusted.
    fn accept(&self, group: u32, descriptor: &Group, which: Bitmap, bytes: &[u8]) -> Result<GroupMap, &'static str> {
        let geometry = &self.sb.geometry;
        let (bits, stored) = match which {
            Bitmap::Blocks => (geometry.clusters_per_group(), descriptor.block_bitmap_csum),
            Bitmap::Inodes => (geometry.inodes_per_group, descriptor.inode_bitmap_csum),
        };
        if geometry.metadata_csum && bitmap_checksum(geometry, bytes, bits) != stored {
            return Err(match which {
                Bitmap::Blocks => "the checksum of its block bitmap does not match",
                Bitmap::Inodes => "the checksum of its inode bitmap does not match",
            });
        }
        if which == Bitmap::Inodes {
            let map = GroupMap::from_bytes(bytes, bits);
            if map.free() != descriptor.free_inodes {
                return Err("its inode bitmap and its count of free inodes contradict each other");
            }
            let never_used = if self.has_descriptor_checksums() { descriptor.itable_unused } else { 0 };
            let start = bits.saturating_sub(never_used);
            if map.run_at(start, bits) < bits - start {
                return Err("bg_itable_unused hides inodes in use");
            }
            return Ok(map);
        }
        let blocks = geometry.group_blocks(GroupNo(group));
        let map = GroupMap::from_bytes(bytes, (blocks.end - blocks.start) as u32);
        if map.free() != descriptor.free_clusters {
            return Err("its block bitmap and its count of free blocks contradict each other");
        }
        let mut zones = self.zones.within(blocks.clone());
        let own = |zone: std::ops::Range<u64>| Run {
            start: (zone.start - blocks.start) as u32,
            len: (zone.end - zone.start) as u32,
        };
        if !zones.all(|zone| map.is_used(own(zone))) {
            return Err("its block bitmap shows the volume's own structures as free");
        }
        Ok(map)
    }

    /// The group's descriptor is about to change in the open generation.
    pub(super) fn touch_descriptor(&self, op: &Operation<'_>, group: u32, state: &mut GroupState) -> Result<()> {
        if !state.changed {
            let per_block = self.sb.geometry.descriptors_per_block();
            let block = self.sb.geometry.descriptor_block(group / per_block);
            op.edit(block, tag(Kind::Descriptors), |_| ()).inspect_err(|e| op.store().fail(e))?;
            let Group { free_clusters: free, free_inodes, directories, .. } = state.descriptor;
            op.note(|| Note::Group { number: GroupNo(group), free, free_inodes, directories });
            state.changed = true;
            lock(&self.changed).push(group);
        }
        Ok(())
    }

    /// A bitmap of the group is about to change in the open generation.
    pub(super) fn touch(&self, op: &Operation<'_>, group: u32, state: &mut GroupState, which: Bitmap) -> Result<()> {
        self.touch_descriptor(op, group, state)?;
        if which == Bitmap::Blocks {
            state.generation = op.generation();
        }
        let flag = match which {
            Bitmap::Blocks => &mut state.blocks_changed,
            Bitmap::Inodes => &mut state.inodes_changed,
        };
        if !std::mem::replace(flag, true) {
            let block = state.block_of(which);
            op.replace(block, which.tag(), |bytes| {
                if let Some(map) = state.map(which) {
                    map.write(bytes);
                }
            });
        }
        Ok(())
    }

    /// As [`Space::touch`] for a block bitmap, while the generation closes.
    pub(super) fn touch_to_close(
        &self,
        closing: &Closing<'_>,
        group: u32,
        state: &mut GroupState,
    ) -> store::Result<()> {
        if !state.changed {
            let per_block = self.sb.geometry.descriptors_per_block();
            let block = self.sb.geometry.descriptor_block(group / per_block);
            closing.edit(block, tag(Kind::Descriptors), |_| ())?;
            state.changed = true;
            lock(&self.changed).push(group);
        }
        state.generation = closing.generation();
        if !std::mem::replace(&mut state.blocks_changed, true) {
            closing.replace(state.descriptor.block_bitmap, Bitmap::Blocks.tag(), |_| ());
        }
        Ok(())
    }

    /// Drops bitmaps that are in nobody's way but take memory.
    pub(super) fn drop_if_many(&self, group: u32, state: &mut GroupState) {
        let mut loaded = lock(&self.loaded);
        if loaded.len() > self.options.bitmaps && state.is_clean() {
            state.forget_maps();
            loaded.remove(&group);
        }
    }

    /// Brings the bitmaps and descriptors that changed into the closing generation.
    pub(crate) fn finish_groups(&self, closing: &Closing<'_>) -> store::Result<()> {
        let geometry = &self.sb.geometry;
        let mut changed = std::mem::take(&mut *lock(&self.changed));
        changed.sort_unstable();
        let per_block = geometry.descriptors_per_block();
        let size = geometry.descriptor_size as usize;
        for groups in changed.chunk_by(|a, b| a / per_block == b / per_block) {
            let mut descriptors = Vec::with_capacity(groups.len());
            for &group in groups {
                let Some(cell) = self.cell(GroupNo(group)) else { continue };
                let mut state = lock(&cell.state);
                self.finish_bitmaps(closing, &mut state);
                descriptors.push((group, state.descriptor));
            }
            let Some(&(first, _)) = descriptors.first() else { continue };
            let block = geometry.descriptor_block(first / per_block);
            closing.edit(block, tag(Kind::Descriptors), |bytes| {
                for (group, descriptor) in &mut descriptors {
                    let at = (*group % per_block) as usize * size;
                    if let Some(bytes) = bytes.get_mut(at..at + size) {
                        descriptor.seal(&self.sb.disk, geometry, GroupNo(*group), bytes);
                    }
                }
            })?;
        }
        self.shed();
        Ok(())
    }

    fn finish_bitmaps(&self, closing: &Closing<'_>, state: &mut GroupState) {
        let geometry = &self.sb.geometry;
        let checksum =
            |bytes: &[u8], bits| if geometry.metadata_csum { bitmap_checksum(geometry, bytes, bits) } else { 0 };
        state.changed = false;
        if std::mem::take(&mut state.blocks_changed)
            && let Some(map) = &state.blocks
        {
            let bits = geometry.clusters_per_group();
            let sum = closing.replace(state.descriptor.block_bitmap, Bitmap::Blocks.tag(), |bytes| {
                map.write(bytes);
                checksum(bytes, bits)
            });
            state.descriptor.block_bitmap_csum = sum;
        }
        if std::mem::take(&mut state.inodes_changed)
            && let Some(map) = &state.inodes
        {
            let bits = geometry.inodes_per_group;
            let sum = closing.replace(state.descriptor.inode_bitmap, Bitmap::Inodes.tag(), |bytes| {
                map.write(bytes);
                checksum(bytes, bits)
            });
            state.descriptor.inode_bitmap_csum = sum;
        }
    }

    /// Between generations: where too many bitmaps are in memory, those go that can.
    fn shed(&self) {
        let mut loaded = lock(&self.loaded);
        if loaded.len() <= self.options.bitmaps {
            return;
        }
        loaded.retain(|&group| {
            let Some(cell) = self.cell(GroupNo(group)) else { return false };
            let mut state = lock(&cell.state);
            let stays = !state.is_clean();
            if !stays {
                state.forget_maps();
            }
            stays
        });
    }
}
