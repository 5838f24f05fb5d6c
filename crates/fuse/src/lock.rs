//! Locks that a panic elsewhere does not make useless.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// What such mutexes of this crate hold is whole after every statement.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
