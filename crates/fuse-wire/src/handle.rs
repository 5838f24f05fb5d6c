//! The numbers of open files, which the kernel repeats with each request about one.

use std::sync::atomic::{AtomicU64, Ordering};

/// Set in the handle of a file that was opened to go past the kernel's pages.
const DIRECT: u64 = 1;

/// The number of the next open file; of the process, so that no two sessions have one alike.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// The handle of a file that is opened now. Later ones are greater; 0 is none.
pub fn new_handle() -> u64 {
    NEXT.fetch_add(1, Ordering::SeqCst) << 1
}

/// The same for a file that is opened to go past the kernel's pages.
pub(crate) fn new_direct() -> u64 {
    new_handle() | DIRECT
}

/// Whether a file was opened so.
pub(crate) fn is_direct(handle: u64) -> bool {
    handle & DIRECT != 0
}
