//! The space of an engine that stores metadata in space of its own: chunks of the volume, granted before a generation
//! that needs them is planned, and returned when they are not needed any more.

use crate::writer::{Committer, Writer};
use crate::{
    Closing, CommitHooks, CommitReason, Compaction, DirtyLimits, Engine, EngineWithSpace, MetadataSpace, Need, Result,
    SpaceHooks, Store,
};
use std::sync::Arc;
use std::time::Duration;

/// The engine of a volume that is open for writing.
pub(crate) enum RunningEngine {
    /// One without space of its own.
    Plain(Box<dyn Engine>),
    /// One with space of its own, and what the file system does for that.
    WithSpace(Box<dyn EngineWithSpace>, Arc<dyn SpaceHooks>),
}

impl RunningEngine {
    pub(crate) fn engine(&mut self) -> &mut dyn Engine {
        match self {
            Self::Plain(engine) => &mut **engine,
            Self::WithSpace(engine, _) => &mut **engine,
        }
    }

    pub(crate) fn space(&mut self) -> Option<&mut dyn MetadataSpace> {
        match self {
            Self::Plain(_) => None,
            Self::WithSpace(engine, _) => Some(engine.metadata_space()),
        }
    }

    /// Before a generation of so many blocks closes, the engine gets the chunks that it needs for it, or returns some.
    pub(crate) fn supply(&mut self, closing: &Closing<'_>, blocks: usize) -> Result<()> {
        let Self::WithSpace(engine, hooks) = self else { return Ok(()) };
        let space = engine.metadata_space();
        let need = space.wanted_chunks(blocks);
        if need != Need::default() {
            space.grant_chunks(&hooks.grant_chunks(closing, need)?);
            return Ok(());
        }
        let surplus = space.surplus_chunks();
        if surplus.is_empty() { Ok(()) } else { hooks.return_chunks(closing, &surplus) }
    }
}

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

    /// Gets chunks for so many blocks in the generation that is open for a transaction, as far as there are any: the
    /// limits with them.
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

    /// Lets the engine return some of the chunks that it does not need; false where there is none.
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

    /// Closes a generation that compacts the engine's space, and writes it.
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
