//! `none` on the native format, a measure of the cost of copy-on-write: blocks are overwritten in place if no snapshot
//! uses them, and nothing is ordered. After a crash the volume needs a full check.

use super::map_writer::{MapWriter, Overwrite, Written};
use super::{Engine, Idle, Limits};
use crate::native::Mapped;
use crate::{ClosedGeneration, CommitReason, EngineWithSpace, MetadataSpace, Plan, Result, Stage, StateSource};
use std::time::Duration;

/// The engine of `consistency=none` on a native volume.
pub struct NativeUnordered {
    metadata: MapWriter,
}

impl NativeUnordered {
    /// As [`CopyOnWrite::new`](super::CopyOnWrite::new).
    ///
    /// # Errors
    /// As [`CopyOnWrite::new`](super::CopyOnWrite::new).
    pub fn new(mapped: &Mapped, dirty_blocks: usize) -> Result<Self> {
        Ok(Self { metadata: MapWriter::new(mapped, Overwrite::Live, dirty_blocks)? })
    }

    /// The stage that records in the superblock whether the volume is in use without ordered writes.
    fn set_unordered(&mut self, unordered: bool) -> Stage {
        self.metadata.superblock.unordered = unordered;
        Stage { writes: vec![self.metadata.next_superblock()], flush: true }
    }
}

impl Engine for NativeUnordered {
    fn limits(&self) -> Limits {
        self.metadata.engine_limits()
    }

    fn open(&mut self, _: &dyn StateSource) -> Result<Plan> {
        Ok(Plan { stages: vec![self.set_unordered(true)], ..Plan::default() })
    }

    fn plan(&mut self, closed: ClosedGeneration, _: &dyn StateSource) -> Result<Plan> {
        let Written { mut writes, needs_superblock } = self.metadata.write(&closed)?;
        if needs_superblock {
            writes.push(self.metadata.superblock_write());
        }
        // no flush at the dirty limit: the mode guarantees no more
        let flush = closed.reason != CommitReason::DirtyLimit && (closed.unflushed || !writes.is_empty());
        let home = closed.blocks.iter().map(|write| write.block).collect();
        Ok(Plan { stages: vec![Stage { writes, flush }], home, durable: closed.number })
    }

    fn idle(&mut self, _: Duration, _: bool, _: &dyn StateSource) -> Idle {
        Idle::Nothing
    }

    fn close(&mut self, _: &dyn StateSource) -> Result<Plan> {
        let before = Stage { writes: Vec::new(), flush: true };
        // in both superblocks, so that the mark does not return where the newer one is destroyed; the map of the older one
        // may have been overwritten in place
        let stages = vec![before, self.set_unordered(false), self.set_unordered(false)];
        Ok(Plan { stages, ..Plan::default() })
    }
}

impl EngineWithSpace for NativeUnordered {
    fn metadata_space(&mut self) -> &mut dyn MetadataSpace {
        &mut self.metadata
    }
}
