//! A generation that is open for a transaction: it closes when the transaction is committed, or is thrown away as if
//! nothing had been done.
//!
//! Meanwhile it is not waited for: what would have closed it (a limit, the time, a sync) does nothing, and an operation
//! that does not fit into it any more fails. Who may change anything meanwhile is for the file system to say.

use crate::writer::Writer;
use crate::{Result, Store};
use std::sync::atomic::Ordering;

impl Store {
    /// Commits what was done so far, and opens the generation that follows for a transaction: nothing else is in it. To
    /// be called while no operation runs. Space is made for it as it is needed, as long as there is any.
    ///
    /// # Errors
    /// As [`Store::sync`].
    pub fn open_for_transaction(&self) -> Result<()> {
        let writer = self.writer()?;
        self.commit_now(writer)?;
        writer.in_transaction.store(true, Ordering::Release);
        Ok(())
    }

    /// Closes the generation of the transaction, and returns when it is durable.
    ///
    /// # Errors
    /// As [`Store::sync`].
    pub fn commit_transaction(&self) -> Result<()> {
        let writer = self.writer()?;
        writer.in_transaction.store(false, Ordering::Release);
        self.commit_now(writer)
    }

    /// Throws away what was done in the generation of the transaction, as far as the store knows of it: its blocks are
    /// what they were before. The number of the generation stays. Does nothing where there is no transaction. To be
    /// called while no operation runs and no thread reads. Only with an engine that
    /// [can](crate::engine::Limits::can_discard).
    ///
    /// # Errors
    /// [`Error::ReadOnly`](crate::Error::ReadOnly), [`Error::Failed`](crate::Error::Failed).
    pub fn discard_transaction(&self) -> Result<()> {
        let writer = self.writer()?;
        let mut committer = writer.committer.lock();
        let _generation = writer.lock_generation();
        if writer.in_transaction.swap(false, Ordering::AcqRel) {
            self.cache.discard();
            writer.discard();
            if let Some(space) = committer.engine.space() {
                space.discard();
                *writer.dirty_limits.lock() = space.limits();
            }
        }
        Ok(())
    }
}

impl Writer {
    /// Only a commit or a rollback of the transaction ends the open generation.
    pub(crate) fn is_in_transaction(&self) -> bool {
        self.in_transaction.load(Ordering::Acquire)
    }
}
