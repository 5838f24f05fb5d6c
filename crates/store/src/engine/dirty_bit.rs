//! The dirty bit (Henson, Brown, Ts'o, van de Ven: *Reducing fsck time for ext2 file systems*, section 4): as `none`,
//! but the volume is marked as in use only while metadata is being written.
//!
//! 1. The mark is durable before the first metadata write of a busy period. No operation waits for it: it is the first
//!    stage of the first generation's plan, and until then nothing but file data was written.
//! 2. After a second without an operation the volume is marked clean: see [`CleanMark`].

use super::clean_mark::{CleanMark, QUIET};
use super::{Engine, Idle, Limits, all_home, state_stage};
use crate::{ClosedGeneration, Plan, Result, StateSource, VolumeState};
use std::time::Duration;

/// The engine `dirty-bit`.
#[derive(Debug)]
pub struct DirtyBit {
    block_size: usize,
    limits: Limits,
    mark: CleanMark,
}

impl DirtyBit {
    /// Creates the engine for blocks of `block_size` bytes, generations of at most `dirty_blocks` blocks, and a volume
    /// that is marked clean.
    #[must_use]
    pub fn new(block_size: u32, dirty_blocks: usize) -> Self {
        let limits = Limits {
            // data is written before the mark, so it must not go to blocks that a volume still marked clean references
            defers_reuse: true,
            rests_after: Some(QUIET),
            ..Limits::new(VolumeState::NeedsCheck, dirty_blocks)
        };
        Self { block_size: block_size as usize, limits, mark: CleanMark::new() }
    }
}

impl Engine for DirtyBit {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn open(&mut self, _: &dyn StateSource) -> Result<Plan> {
        Ok(Plan::default())
    }

    fn plan(&mut self, closed: ClosedGeneration, superblock: &dyn StateSource) -> Result<Plan> {
        let home = all_home(&closed, self.block_size);
        let mut stages = Vec::with_capacity(1 + home.len());
        if home.iter().any(|stage| !stage.writes.is_empty()) {
            if self.mark.take() {
                stages.push(state_stage(superblock, VolumeState::NeedsCheck));
            }
            self.mark.unflushed = true;
        }
        self.mark.unflushed &= !home.iter().any(|stage| stage.flush);
        stages.extend(home);
        // no flush at the dirty limit: the mode guarantees no more
        Ok(Plan { stages, home: closed.blocks.iter().map(|w| w.block).collect(), durable: closed.number })
    }

    fn idle(&mut self, quiet: Duration, dirty: bool, superblock: &dyn StateSource) -> Idle {
        self.mark.idle(quiet, dirty, superblock)
    }

    fn close(&mut self, superblock: &dyn StateSource) -> Result<Plan> {
        Ok(self.mark.clean(superblock))
    }
}
