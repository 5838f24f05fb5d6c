//! Chunks of a native volume's data groups, for its metadata regions.

use super::Space;
use format::GroupNo;
use format::native::{CHUNK_BLOCKS, GROUP_BLOCKS};
use space::{Privilege, Run};
use std::sync::atomic::Ordering;
use store::{Closing, Need};

/// Chunks in a group.
const CHUNKS: u32 = GROUP_BLOCKS / CHUNK_BLOCKS;
/// Chunks are granted beyond the immediate need while at least this percentage of the volume's blocks stays free.
const MIN_FREE_PERCENT: u64 = 12;

impl Space {
    /// Allocates free chunks of the data groups to the metadata regions. Only while a generation closes.
    pub(crate) fn take_chunks(&self, closing: &Closing<'_>, need: Need<u64>) -> store::Result<Vec<u32>> {
        let mut taken = Vec::new();
        let size = u64::from(CHUNK_BLOCKS);
        for group in self.layout.groups_with_chunks() {
            loop {
                let done = taken.len() as u64;
                let free = self.pool.lock().available(Privilege::Ordinary);
                let plenty = free.saturating_sub(size) > self.layout.device_blocks() / 100 * MIN_FREE_PERCENT;
                if done >= need.must.max(if plenty { need.should } else { 0 }) {
                    return Ok(taken);
                }
                let Some(cell) = self.cell(GroupNo(group)) else { return Ok(taken) };
                if cell.blocks.load(Ordering::Relaxed) < CHUNK_BLOCKS {
                    break;
                }
                if self.pool.lock().allocate(size, Privilege::Superuser) < size {
                    return Ok(taken);
                }
                let Some(chunk) = self.take_chunk(closing, group)? else {
                    self.pool.lock().free(size);
                    break;
                };
                taken.push(group * CHUNKS + chunk);
            }
        }
        Ok(taken)
    }

    /// Frees chunks of the metadata regions in the data groups. Only while a generation closes.
    pub(crate) fn put_chunks_back(&self, closing: &Closing<'_>, chunks: &[u32]) -> store::Result<()> {
        for chunk in chunks {
            let group = chunk / CHUNKS;
            let run = Run { start: chunk % CHUNKS * CHUNK_BLOCKS, len: CHUNK_BLOCKS };
            let Some(cell) = self.cell(GroupNo(group)) else { continue };
            // chunks of a group that is unreadable or contradicts itself stay allocated until a check
            let Some(mut state) = self.lock_space_to_free(closing.store(), group) else { continue };
            if !state.space.free.as_ref().is_some_and(|free| free.is_used(run)) {
                self.mark_corrupt(
                    cell,
                    group,
                    &mut state,
                    "a chunk of the metadata regions is free in its block bitmap",
                );
                continue;
            }
            self.touch_space_to_close(closing, group, &mut state)?;
            self.free_units(cell, group, &mut state, run, None);
        }
        Ok(())
    }

    /// Allocates a wholly free chunk of a group; returns its index in the group.
    fn take_chunk(&self, closing: &Closing<'_>, group: u32) -> store::Result<Option<u32>> {
        // a group whose bitmap cannot be read is skipped
        let Ok(Some(mut state)) = self.lock_space(closing.store(), group) else { return Ok(None) };
        let Some(free) = &mut state.space.free else { return Ok(None) };
        let whole = |chunk: &u32| free.run_at(chunk * CHUNK_BLOCKS, CHUNK_BLOCKS) == CHUNK_BLOCKS;
        let Some(chunk) = (0..CHUNKS).find(whole) else { return Ok(None) };
        let run = Run { start: chunk * CHUNK_BLOCKS, len: CHUNK_BLOCKS };
        if !free.allocate(run) {
            return Ok(None);
        }
        state.descriptor.free_clusters = state.descriptor.free_clusters.saturating_sub(run.len);
        state.block_bitmap_is_there();
        self.touch_space_to_close(closing, group, &mut state)?;
        if let Some(cell) = self.cell(GroupNo(group)) {
            cell.blocks.fetch_sub(run.len, Ordering::Relaxed);
        }
        Ok(Some(chunk))
    }

    /// Free blocks of the metadata groups, for the superblock's total.
    pub(crate) fn free_metadata(&self) -> u64 {
        self.free_metadata.load(Ordering::Relaxed)
    }
}
