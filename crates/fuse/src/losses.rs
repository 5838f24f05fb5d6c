//! Lost content, and the open files that still have to report it.
//!
//! The rules are those of Linux for writeback errors: an error is reported once to each file that was open when it
//! happened, by its next fsync(2) or msync(2), whether others have reported it or not; and if none has, to the first
//! file opened later.

use fuse_wire::new_handle;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{HashMap, HashSet};

/// Files that have lost content.
#[derive(Default)]
pub(crate) struct Losses(Mutex<HashMap<u64, Loss>>);

/// A loss of a file's content.
struct Loss {
    /// Files opened with a handle below this one may have read the content, or stored it.
    before: u64,
    /// The handles to which the loss was reported.
    reported: HashSet<u64>,
}

impl Losses {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Loss>> {
        // consistent after every statement
        self.0.lock()
    }

    /// Records that content of these nodes was lost.
    pub(crate) fn add(&self, nodes: impl IntoIterator<Item = u64>) {
        let before = new_handle();
        self.lock().extend(nodes.into_iter().map(|node| (node, Loss { before, reported: HashSet::new() })));
    }

    /// Whether the next answer to this open file must report that content was lost. The loss then counts as reported.
    pub(crate) fn report(&self, node: u64, handle: u64) -> bool {
        let hears = |loss: &mut Loss| {
            let concerned = handle < loss.before || loss.reported.is_empty();
            concerned && loss.reported.insert(handle)
        };
        self.lock().get_mut(&node).is_some_and(hears)
    }

    /// Removes a node that the kernel has forgotten: no open file is left.
    pub(crate) fn forget(&self, node: u64) {
        self.lock().remove(&node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_open_then_hears_of_it_once() {
        let (losses, first, second) = (Losses::default(), new_handle(), new_handle());
        assert!(!losses.report(7, first));
        losses.add([7, 8]);
        let later = new_handle();
        assert_eq!([first, first, second, later].map(|handle| losses.report(7, handle)), [true, false, true, false]);
        losses.add([7]);
        assert_eq!([first, later].map(|handle| losses.report(7, handle)), [true, true]);
        // those that read it are closed, and did not report it
        losses.add([7]);
        let (next, last) = (new_handle(), new_handle());
        assert_eq!([next, last, next].map(|handle| losses.report(7, handle)), [true, false, false]);
        losses.forget(7);
        assert!(!losses.report(7, second) && losses.report(8, second));
    }
}
