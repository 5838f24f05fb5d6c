//! Open files, and which of them have to hear that content was lost.
//!
//! As Linux reports an error of writing back: once to each open file that was there when it happened, by its next
//! fsync(2) or msync(2), whether others have seen it or not; and if none has, to the first that was opened later.

use fuse_wire::new_handle;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{HashMap, HashSet};

/// Files that have lost content.
#[derive(Default)]
pub(crate) struct Losses(Mutex<HashMap<u64, Loss>>);

/// The content that a file has lost.
struct Loss {
    /// Files opened with a handle below this one may have shown it, or stored it.
    before: u64,
    /// Those of them that have heard of it.
    reported: HashSet<u64>,
}

impl Losses {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Loss>> {
        // whole after every statement
        self.0.lock()
    }

    /// Content of these nodes was lost now.
    pub(crate) fn add(&self, nodes: impl IntoIterator<Item = u64>) {
        let before = new_handle();
        self.lock().extend(nodes.into_iter().map(|node| (node, Loss { before, reported: HashSet::new() })));
    }

    /// Whether the next answer to this open file has to be that content was lost. It counts as reported then.
    pub(crate) fn report(&self, node: u64, handle: u64) -> bool {
        let hears = |loss: &mut Loss| {
            let concerned = handle < loss.before || loss.reported.is_empty();
            concerned && loss.reported.insert(handle)
        };
        self.lock().get_mut(&node).is_some_and(hears)
    }

    /// The kernel has forgotten a node: no open file is left.
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
        // those that showed it are closed, and have not heard
        losses.add([7]);
        let (next, last) = (new_handle(), new_handle());
        assert_eq!([next, last, next].map(|handle| losses.report(7, handle)), [true, false, false]);
        losses.forget(7);
        assert!(!losses.report(7, second) && losses.report(8, second));
    }
}
