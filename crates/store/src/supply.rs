//! The space of an engine that stores metadata in space of its own: chunks of the volume, granted before a generation
//! that needs them is planned, and returned when they are not needed any more.

use crate::writer::Writer;
use crate::{Closing, CommitReason, DirtyLimits, Engine, Need, Result, Store};

impl Store {
    /// Before a generation closes, the engine gets the chunks that it needs for it, or returns some.
    pub(crate) fn supply(
        &self,
        writer: &Writer,
        engine: &mut dyn Engine,
        closing: &Closing<'_>,
        reason: CommitReason,
    ) -> Result<()> {
        let Some(space) = engine.metadata_space() else { return Ok(()) };
        let need = space.wanted_chunks(self.cache.dirty());
        if need != Need::default() {
            space.grant_chunks(&writer.hooks.grant_chunks(closing, need)?);
        } else if matches!(reason, CommitReason::Idle | CommitReason::Compact) {
            let surplus = space.surplus_chunks(reason);
            if !surplus.is_empty() {
                writer.hooks.return_chunks(closing, &surplus)?;
            }
        }
        Ok(())
    }

    /// Gets chunks for so many blocks in the generation that is open for a transaction, as far as there are any: the
    /// limits with them.
    pub(crate) fn widen(&self, writer: &Writer, blocks: usize) -> Result<DirtyLimits> {
        let (mut committer, _guard) = self.lock_committer(writer)?;
        let generation = writer.lock_generation();
        let Some(space) = committer.engine.metadata_space() else { return Ok(DirtyLimits::ANY) };
        let closing = Closing { store: self, generation: *generation };
        let need = Need { must: space.wanted_chunks(blocks).must, should: 0 };
        let chunks = writer.hooks.grant_chunks(&closing, need).inspect_err(|e| self.fail(e))?;
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
        if committer.engine.metadata_space().is_none_or(|space| space.is_compact()) {
            return Ok(false);
        }
        self.close_and_write(writer, &mut committer, CommitReason::Compact).inspect_err(|e| self.fail(e))?;
        Ok(true)
    }
}
