//! Generation numbers of new inodes.

use std::sync::atomic::{AtomicU64, Ordering};

/// The generation numbers of new inodes.
pub(super) struct InodeGenerations(AtomicU64);

impl InodeGenerations {
    pub(super) fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    /// A number that distinguishes one use of an inode from the next.
    pub(super) fn next(&self) -> u32 {
        // SplitMix64 and not a library's generator: the numbers are stored on devices, where a seed must yield the same
        // sequence in all versions, and each is drawn without a lock
        const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
        let mut z = self.0.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) as u32
    }
}
