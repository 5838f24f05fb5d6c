//! A generation that is held open: it closes when whoever holds it says so, or is thrown away as if nothing had been done.
//!
//! While it is held nobody waits for it to be durable, and what would have closed it (a limit, the time, a sync) does
//! nothing; an operation that does not fit into it any more fails. Who may change anything meanwhile is for the file
//! system to say.

use crate::writer::{Writer, lock};
use crate::{Cause, Result, Store};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

impl Store {
    /// Commits what was done so far, and holds the generation open that follows it: nothing else is in it. To be called
    /// while no operation runs. Room is made for it as it is needed, as long as there is any.
    ///
    /// # Errors
    /// As [`Store::sync`].
    pub fn hold_generation(&self) -> Result<()> {
        let writer = self.writer()?;
        self.commit_now(writer, Cause::Sync)?;
        writer.held.store(true, Ordering::Release);
        Ok(())
    }

    /// Closes the generation that is held, and returns when it is durable.
    ///
    /// # Errors
    /// As [`Store::sync`].
    pub fn commit_held(&self) -> Result<()> {
        let writer = self.writer()?;
        writer.held.store(false, Ordering::Release);
        self.commit_now(writer, Cause::Sync)
    }

    /// Throws away what was done in the generation that is held, as far as the store knows of it: its blocks are what they
    /// were before. The number of the generation stays. Does nothing where none is held. To be called while no
    /// operation runs and nobody reads.
    ///
    /// # Errors
    /// [`Error::ReadOnly`], [`Error::Failed`].
    pub fn discard_held(&self) -> Result<()> {
        let writer = self.writer()?;
        let mut committer = lock(&writer.committer);
        let _gate = writer.gate.write().unwrap_or_else(PoisonError::into_inner);
        if writer.held.swap(false, Ordering::AcqRel) {
            self.cache.discard();
            writer.discard();
            committer.engine.discard();
            *lock(&writer.room) = committer.engine.room();
        }
        Ok(())
    }
}

impl Writer {
    /// Nothing closes the open generation but whoever holds it.
    pub(crate) fn is_held(&self) -> bool {
        self.held.load(Ordering::Acquire)
    }
}
