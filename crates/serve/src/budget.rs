//! The memory limit for the requests of one connection.

use parking_lot::{Condvar, Mutex, MutexGuard};

/// The free bytes of one connection's limit. A request that needs more waits until others are done.
#[derive(Debug)]
pub(crate) struct Budget {
    free: Mutex<u64>,
    freed: Condvar,
}

/// Bytes of a [`Budget`], returned when it is dropped.
#[derive(Debug)]
pub(crate) struct Grant<'a> {
    budget: &'a Budget,
    bytes: u64,
}

impl Budget {
    pub(crate) fn new(bytes: u64) -> Self {
        Self { free: Mutex::new(bytes), freed: Condvar::new() }
    }

    /// Waits until `bytes` are free; `bytes` must not exceed the limit.
    pub(crate) fn grant(&self, bytes: u64) -> Grant<'_> {
        let mut free = self.free();
        while *free < bytes {
            self.freed.wait(&mut free);
        }
        *free -= bytes;
        Grant { budget: self, bytes }
    }

    fn free(&self) -> MutexGuard<'_, u64> {
        self.free.lock()
    }
}

impl Drop for Grant<'_> {
    fn drop(&mut self) {
        *self.budget.free() += self.bytes;
        self.budget.freed.notify_all();
    }
}
