//! Meta-data snapshotting (Soares, Krieger, Da Silva: *Meta-data Snapshotting: A Simple Mechanism for File System
//! Consistency*), on the native format.
//!
//! A generation's plan assigns new physical blocks to all blocks that it changed and to the nodes of the map above
//! them, writes them as one run if possible, and flushes; then it writes the superblock that makes them valid, over the
//! older of the two, and flushes. So the device has a complete generation at every instant, and a mount has nothing to
//! recover.
//!
//! Nothing that the newest durable generation references is overwritten: physical blocks that a generation frees are
//! allocated again only by one that is planned after its superblock is durable. (File data that is overwritten in place
//! is the exception, as in every mode.)

use super::map_writer::{MapWriter, Overwrite, Written};
use super::{Engine, Idle, Limits};
use crate::native::Mapped;
use crate::{ClosedGeneration, EngineWithSpace, MetadataSpace, Plan, PlannedWrite, Result, Stage, StateSource};
use std::time::Duration;

/// The engine of `consistency=snapshot`.
pub struct CopyOnWrite {
    metadata: MapWriter,
}

impl CopyOnWrite {
    /// Creates the engine of a volume that is in use through `mapped`, with generations of at most `dirty_blocks`
    /// blocks. Reads the chunk table.
    ///
    /// # Errors
    /// Those of the device; [`Error::Format`](crate::Error::Format) for a damaged volume;
    /// [`Error::Native`](crate::Error::Native) for one that was in use without ordered writes and was not unmounted.
    pub fn new(mapped: &Mapped, dirty_blocks: usize) -> Result<Self> {
        Ok(Self { metadata: MapWriter::new(mapped, Overwrite::Nothing, dirty_blocks)? })
    }

    /// Injects a defect; only before the first plan.
    ///
    /// # Errors
    /// Those of the device.
    #[cfg(feature = "mutants")]
    #[doc(hidden)]
    pub fn mutated(mut self, mutant: crate::Mutant) -> Result<Self> {
        self.metadata.mutate(mutant)?;
        Ok(self)
    }
}

/// The stages that write a generation, and then the superblock that makes it valid.
pub(super) fn landing(metadata: &mut MapWriter, writes: Vec<PlannedWrite>) -> Vec<Stage> {
    let last = Stage { writes: vec![metadata.superblock_write()], flush: true };
    vec![Stage { writes, flush: true }, last]
}

impl Engine for CopyOnWrite {
    fn limits(&self) -> Limits {
        Limits { defers_reuse: true, atomic: true, can_discard: true, ..self.metadata.engine_limits() }
    }

    fn open(&mut self, _: &dyn StateSource) -> Result<Plan> {
        // the newest generation is consistent without further writes
        Ok(Plan::default())
    }

    fn plan(&mut self, closed: ClosedGeneration, _: &dyn StateSource) -> Result<Plan> {
        let Written { writes, needs_superblock } = self.metadata.write(&closed)?;
        let stages = if needs_superblock {
            landing(&mut self.metadata, writes)
        } else if !writes.is_empty() || closed.unflushed {
            vec![Stage { writes, flush: true }]
        } else {
            Vec::new()
        };
        let home = closed.blocks.iter().map(|write| write.block).collect();
        Ok(Plan { stages, home, durable: closed.number })
    }

    fn idle(&mut self, _: Duration, _: bool, _: &dyn StateSource) -> Idle {
        Idle::Nothing
    }

    fn close(&mut self, _: &dyn StateSource) -> Result<Plan> {
        let Written { writes, needs_superblock } = self.metadata.write_log()?;
        let stages = if needs_superblock { landing(&mut self.metadata, writes) } else { Vec::new() };
        Ok(Plan { stages, ..Plan::default() })
    }
}

impl EngineWithSpace for CopyOnWrite {
    fn metadata_space(&mut self) -> &mut dyn MetadataSpace {
        &mut self.metadata
    }
}
