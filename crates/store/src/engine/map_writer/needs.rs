//! The number of physical blocks that a generation needs, and the number that is reserved.

use crate::Compaction;
use crate::native;
use format::native::Layout;
use format::native::superblock::MAX_LOG_ENTRIES;

/// The maximum number of blocks that a freeing operation may announce and still find space on a full volume.
const FREEING: usize = 256;
/// Blocks that closing may add: bitmaps and descriptors of granted chunks, the superblock.
pub(super) const CLOSING: usize = 16;
/// The minimum size of a generation in blocks: smaller ones cannot contain four of the largest operations.
pub(in crate::engine) const LEAST_DIRTY: usize = 512;

/// Computes how many physical blocks are needed.
#[derive(Clone, Copy)]
pub(in crate::engine) struct Needs<'a> {
    pub(in crate::engine) layout: &'a Layout,
    /// Records of the chunk table.
    pub(in crate::engine) records: u32,
    /// The maximum number of blocks of a generation.
    pub(in crate::engine) dirty_blocks: usize,
}

impl Needs<'_> {
    /// The maximum number of physical blocks for a generation of `blocks` changed blocks and for the one that adds its
    /// snapshot to the list.
    pub(in crate::engine) fn worst_case(&self, blocks: usize) -> usize {
        // leaves with log entries are written, too, and the nodes above them, but not the blocks that they reference
        let of = |blocks: usize, log_entries: usize| {
            native::worst_case(self.layout, self.records, blocks.saturating_add(log_entries))
                .saturating_sub(log_entries)
        };
        of(blocks, MAX_LOG_ENTRIES).saturating_add(of(1, 0))
    }

    /// Physical blocks that are reserved for operations that free.
    pub(in crate::engine) fn reserve(&self) -> usize {
        self.worst_case(FREEING + CLOSING)
    }

    /// Physical blocks that are reserved for the deletion of a snapshot, the only operation that frees any if
    /// everything is pinned. It changes the counts of all data groups.
    pub(in crate::engine) fn reserve_to_delete(&self) -> usize {
        2 * self.worst_case(self.layout.front() as usize + CLOSING)
    }

    /// The desired number of physical blocks for a generation of `blocks` blocks, and one of `next` blocks after it.
    pub(in crate::engine) fn physical_blocks_for(&self, blocks: usize, next: usize) -> usize {
        // at least one of the largest operations fits into the next generation
        let most = self.dirty_blocks;
        let next = self.worst_case(next.clamp(most / 4, most) + CLOSING);
        self.worst_case(blocks + CLOSING) + 2 * self.reserve() + self.reserve_to_delete() + next
    }

    /// Physical blocks that stay when chunks are returned: unless on request enough for two of the largest generations,
    /// so that nothing is returned that the next work needs again.
    pub(in crate::engine) fn physical_blocks_to_leave(&self, compaction: Compaction) -> usize {
        let most = if compaction == Compaction::Full { 0 } else { self.dirty_blocks };
        self.physical_blocks_for(most, most)
    }
}
