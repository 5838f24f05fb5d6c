//! The maximum size of a file.

use crate::{Inode, InodeFlags, Maps};
use format::feature::RoCompat;
use format::indirect::DIRECT;

/// Maximum number of blocks of a file mapped by extents: block 2^32 − 1 would have an end of more than 32 bits.
const EXTENT_BLOCKS: u64 = (1 << 32) - 1;
/// The largest offset that a caller can specify.
const LARGEST: u64 = i64::MAX as u64;

impl Maps {
    /// The maximum size of a file in bytes: the range of its map, as far as `i_blocks` can count it. Without the
    /// feature `large_file` it is 2^31 − 1.
    #[must_use]
    pub fn max_file_size(&self, inode: &Inode) -> u64 {
        let block_size = u64::from(self.sb.geometry.block_size);
        let features = &self.sb.features.ro_compat;
        // i_blocks counts 2^32 - 1 sectors, or 2^48 - 1 blocks
        let counted = if features.contains(RoCompat::HUGE_FILE) {
            (1 << 48) - 1
        } else {
            u64::from(u32::MAX) / (block_size / 512)
        };
        let blocks = if inode.raw().flags().contains(InodeFlags::EXTENTS) {
            EXTENT_BLOCKS.min(counted)
        } else {
            let all = self.sb.geometry.indirect().reach();
            if all.saturating_add(self.indirect_blocks(all)) <= counted {
                all
            } else {
                counted.saturating_sub(self.indirect_blocks(counted))
            }
        };
        let limit = if features.contains(RoCompat::LARGE_FILE) { LARGEST } else { i32::MAX as u64 };
        blocks.saturating_mul(block_size).min(limit)
    }

    /// Indirect blocks of a map of `blocks` blocks without a hole.
    fn indirect_blocks(&self, blocks: u64) -> u64 {
        let format = self.sb.geometry.indirect();
        let mut rest = blocks.saturating_sub(DIRECT);
        let mut count = 0;
        for level in 1..=3 {
            let here = rest.min(format.span(level));
            count += (1..=level).map(|below| here.div_ceil(format.span(below))).sum::<u64>();
            rest -= here;
        }
        count
    }
}
