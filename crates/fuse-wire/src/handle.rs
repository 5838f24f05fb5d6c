//! File handles: numbers of open files, which the kernel repeats in each request about one.

use std::sync::atomic::{AtomicU64, Ordering};

/// The bit set in the handle of a file that was opened to bypass the kernel's page cache.
const DIRECT: u64 = 1;

/// The next handle; one counter for the process, so that handles are unique across sessions.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Returns a handle for a file that is being opened. Handles increase; 0 is not a handle.
pub fn new_handle() -> u64 {
    NEXT.fetch_add(1, Ordering::SeqCst) << 1
}

/// Returns a handle for a file that is opened to bypass the kernel's page cache.
pub(crate) fn new_direct() -> u64 {
    new_handle() | DIRECT
}

/// Whether a handle was made by [`new_direct`].
pub(crate) fn is_direct(handle: u64) -> bool {
    handle & DIRECT != 0
}
