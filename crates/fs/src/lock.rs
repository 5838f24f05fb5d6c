//! Locks that a panic of another thread does not take away.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex. What it protects is consistent also where another thread panicked with it: changes are made at once, or
/// the store refuses to write.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
