//! A generation that is open for a transaction: it closes when the transaction is committed, or is discarded as if
//! nothing had been done.
//!
//! Meanwhile no thread waits for it: what would otherwise close it (a limit, a timeout, a sync) has no effect, and an
//! operation that does not fit into it any more fails. The file system decides which calls may change anything
//! meanwhile.

use crate::writer::Writer;
use crate::{Result, Store};
use std::sync::atomic::Ordering;

impl Store {
    /// Commits everything so far, and opens the following generation for a transaction, which is alone in it. To be
    /// called while no operation runs. Space is made for it as needed, as long as there is any.
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

    /// Discards the changes in the generation of the transaction, as far as they are in the store: its blocks have
    /// their previous content. The number of the generation stays. Does nothing without a transaction. To be called
    /// while no operation runs and no thread reads. Only with an engine that [can](crate::engine::Limits::can_discard).
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
    /// Whether only a commit or a rollback of the transaction ends the open generation.
    pub(crate) fn is_in_transaction(&self) -> bool {
        self.in_transaction.load(Ordering::Acquire)
    }
}
