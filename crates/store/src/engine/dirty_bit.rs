//! The dirty bit (Henson, Brown, Ts'o, van de Ven: *Reducing fsck time for ext2 file systems*, section 4): as `none`,
//! but the volume is marked as in use only while metadata is being written.
//!
//! 1. The mark is durable before the first metadata write of a busy period. No operation waits for it: it is the first
//!    stage of the first generation's plan, and until then nothing but file data was written.
//! 2. After a second without an operation everything is written and flushed, including delayed data; if there was still
//!    no operation in between, the volume is marked clean. It then contains everything done up to some moment, and
//!    nothing in part.

use super::{Engine, Idle, Limits, all_home, state_stage};
use crate::{ClosedGeneration, Plan, Result, Stage, StateSource, VolumeState};
use std::time::Duration;

/// The quiet time after which the volume is marked clean (section 1 of the paper).
const QUIET: Duration = Duration::from_secs(1);

/// The engine `dirty-bit`.
#[derive(Debug)]
pub struct DirtyBit {
    block_size: usize,
    limits: Limits,
    /// The superblock on the device has the mark of a clean volume.
    marked_clean: bool,
    /// Metadata was written and not flushed yet.
    unflushed: bool,
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
        Self { block_size: block_size as usize, limits, marked_clean: true, unflushed: false }
    }

    fn clean(&mut self, superblock: &dyn StateSource) -> Plan {
        if self.marked_clean {
            return Plan::default();
        }
        let before = Stage { writes: Vec::new(), flush: true };
        let flush = std::mem::take(&mut self.unflushed).then_some(before);
        self.marked_clean = true;
        Plan {
            stages: flush.into_iter().chain([state_stage(superblock, VolumeState::Clean)]).collect(),
            ..Plan::default()
        }
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
            if std::mem::take(&mut self.marked_clean) {
                stages.push(state_stage(superblock, VolumeState::NeedsCheck));
            }
            self.unflushed = true;
        }
        self.unflushed &= !home.iter().any(|stage| stage.flush);
        stages.extend(home);
        // no flush at the dirty limit: the mode guarantees no more
        Ok(Plan { stages, home: closed.blocks.iter().map(|w| w.block).collect(), durable: closed.number })
    }

    fn idle(&mut self, quiet: Duration, dirty: bool, superblock: &dyn StateSource) -> Idle {
        match dirty {
            false if self.marked_clean => Idle::Nothing,
            _ if quiet < QUIET => Idle::After(QUIET),
            true => Idle::Commit,
            false => Idle::Run(self.clean(superblock)),
        }
    }

    fn close(&mut self, superblock: &dyn StateSource) -> Result<Plan> {
        Ok(self.clean(superblock))
    }
}
