//! The space of an engine that stores metadata in space of its own: chunks of the volume, granted before a generation
//! that needs them is planned, and returned when they are no longer needed.

use crate::writer::{Committer, RunningEngine, Writer};
use crate::{
    Closing, CommitHooks, CommitReason, Compaction, DirtyLimits, EngineWithSpace, Need, Result, SpaceHooks, Store,
};
use std::sync::Arc;
use std::time::Duration;

impl Store {
    /// As [`Store::start_writing`], with an engine that stores metadata in space of its own.
    ///
    /// # Errors
    /// As [`Store::start_writing`].
    ///
    /// # Panics
    /// As [`Store::start_writing`].
    pub fn start_writing_with_space(
        &self,
        engine: Box<dyn EngineWithSpace>,
        hooks: Arc<dyn SpaceHooks>,
        interval: Duration,
    ) -> Result<()> {
        let commit_hooks = Arc::clone(&hooks) as Arc<dyn CommitHooks>;
        self.start(RunningEngine::WithSpace(engine, hooks), commit_hooks, interval)
    }

    /// Requests chunks for `blocks` blocks in the generation that is open for a transaction, as far as there are any;
    /// returns the new limits.
    pub(crate) fn widen(&self, writer: &Writer, blocks: usize) -> Result<DirtyLimits> {
        let (mut committer, _guard) = self.lock_committer(writer)?;
        let generation = writer.lock_generation();
        let RunningEngine::WithSpace(engine, hooks) = &mut committer.engine else { return Ok(DirtyLimits::ANY) };
        let space = engine.metadata_space();
        let closing = Closing { store: self, generation: *generation };
        let need = Need { must: space.wanted_chunks(blocks).must, should: 0 };
        let chunks = hooks.grant_chunks(&closing, need).inspect_err(|e| self.fail(e))?;
        space.grant_chunks(&chunks);
        *writer.dirty_limits.lock() = space.limits();
        Ok(space.limits())
    }

    /// Makes the engine return some of the chunks that it does not need; `false` if it needs all.
    ///
    /// # Errors
    /// As [`Store::sync`].
    pub fn compact(&self) -> Result<bool> {
        let writer = self.writer()?;
        let (mut committer, _guard) = self.lock_committer(writer)?;
        if committer.engine.space().is_none_or(|space| space.is_compact()) {
            return Ok(false);
        }
        self.close_compacting(writer, &mut committer, Compaction::Full).inspect_err(|e| self.fail(e))?;
        Ok(true)
    }

    /// Closes and writes a generation that compacts the engine's space.
    pub(crate) fn close_compacting(
        &self,
        writer: &Writer,
        committer: &mut Committer,
        compaction: Compaction,
    ) -> Result<()> {
        if let Some(space) = committer.engine.space() {
            space.compact(compaction);
        }
        self.close_and_write(writer, committer, CommitReason::Sync)
    }
}
