//! No consistency at all: every write in any order. What a crash leaves needs a full check.

use super::{Engine, Idle, Limits, all_home, marked};
use crate::{Client, ClosedGeneration, Mark, Plan, Result};
use std::time::Duration;

/// The engine `none`: the volume is marked as in use from mount to unmount, and nothing else is ordered.
#[derive(Debug)]
pub struct Unordered {
    block_size: usize,
    limits: Limits,
}

impl Unordered {
    /// For blocks of `block_size` bytes and generations of at most `dirty_blocks`.
    #[must_use]
    pub fn new(block_size: u32, dirty_blocks: usize) -> Self {
        let limits = Limits {
            dirty_blocks,
            held_blocks: dirty_blocks,
            journals_data: false,
            wants_forgotten: false,
            in_use: Mark::NeedsCheck,
            holds_content: false,
            atomic: false,
        };
        Self { block_size: block_size as usize, limits }
    }
}

impl Engine for Unordered {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn open(&mut self, client: &dyn Client) -> Result<Plan> {
        Ok(Plan { stages: vec![marked(client, Mark::NeedsCheck)], home: Vec::new() })
    }

    fn plan(&mut self, closed: ClosedGeneration, _: &dyn Client) -> Result<Plan> {
        Ok(Plan {
            stages: vec![all_home(&closed, self.block_size)],
            home: closed.blocks.iter().map(|w| w.block).collect(),
        })
    }

    fn idle(&mut self, _: Duration, _: bool, _: &dyn Client) -> Idle {
        Idle::Nothing
    }

    fn close(&mut self, client: &dyn Client) -> Result<Plan> {
        Ok(Plan { stages: vec![marked(client, Mark::Clean)], home: Vec::new() })
    }
}
