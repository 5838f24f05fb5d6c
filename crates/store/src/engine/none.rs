//! No consistency: every write in any order. After a crash the volume needs a full check.

use super::{Engine, Idle, Limits, all_home, state_stage};
use crate::{ClosedGeneration, Plan, Result, StateSource, VolumeState};
use std::time::Duration;

/// The engine `none`: the volume is marked as in use from mount to unmount, and nothing else is ordered.
#[derive(Debug)]
pub struct Unordered {
    block_size: usize,
    limits: Limits,
}

impl Unordered {
    /// Creates the engine for blocks of `block_size` bytes and generations of at most `dirty_blocks` blocks.
    #[must_use]
    pub fn new(block_size: u32, dirty_blocks: usize) -> Self {
        let limits = Limits::new(VolumeState::NeedsCheck, dirty_blocks);
        Self { block_size: block_size as usize, limits }
    }
}

impl Engine for Unordered {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn open(&mut self, superblock: &dyn StateSource) -> Result<Plan> {
        Ok(Plan { stages: vec![state_stage(superblock, VolumeState::NeedsCheck)], ..Plan::default() })
    }

    fn plan(&mut self, closed: ClosedGeneration, _: &dyn StateSource) -> Result<Plan> {
        Ok(Plan {
            stages: all_home(&closed, self.block_size),
            home: closed.blocks.iter().map(|w| w.block).collect(),
            // no flush at the dirty limit: the mode guarantees no more
            durable: closed.number,
        })
    }

    fn idle(&mut self, _: Duration, _: bool, _: &dyn StateSource) -> Idle {
        Idle::Nothing
    }

    fn close(&mut self, superblock: &dyn StateSource) -> Result<Plan> {
        Ok(Plan { stages: vec![state_stage(superblock, VolumeState::Clean)], ..Plan::default() })
    }
}
