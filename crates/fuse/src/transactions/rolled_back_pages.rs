//! Files with pages that were rolled back, and the open files that still have to report that.
//!
//! The rules are those of Linux for writeback errors: an error is reported once to each file that was open when it
//! happened, by its next fsync(2) or msync(2), whether others have reported it or not; and if none has, to the first
//! file opened later.

use fuse_wire::new_handle;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};

/// The files with pages that were rolled back.
#[derive(Default)]
pub(crate) struct RolledBackPages(Mutex<HashMap<u64, Rollback>>);

/// The latest rollback of pages of a file.
struct Rollback {
    /// Files opened with a handle below this one may have read the content, or stored it.
    before: u64,
    /// The handles to which the rollback was reported.
    reported: HashSet<u64>,
}

impl RolledBackPages {
    /// Records that pages of these nodes were rolled back.
    pub(crate) fn add(&self, nodes: impl IntoIterator<Item = u64>) {
        let before = new_handle();
        self.0.lock().extend(nodes.into_iter().map(|node| (node, Rollback { before, reported: HashSet::new() })));
    }

    /// Whether the next answer to this open file must report that content was rolled back, which then counts as
    /// reported.
    pub(crate) fn report(&self, node: u64, handle: u64) -> bool {
        let must_report = |rollback: &mut Rollback| {
            let concerned = handle < rollback.before || rollback.reported.is_empty();
            concerned && rollback.reported.insert(handle)
        };
        self.0.lock().get_mut(&node).is_some_and(must_report)
    }

    /// Removes a node that the kernel has forgotten: no open file is left.
    pub(crate) fn forget(&self, node: u64) {
        self.0.lock().remove(&node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_open_then_reports_it_once() {
        let (pages, first, second) = (RolledBackPages::default(), new_handle(), new_handle());
        assert!(!pages.report(7, first));
        pages.add([7, 8]);
        let later = new_handle();
        assert_eq!([first, first, second, later].map(|handle| pages.report(7, handle)), [true, false, true, false]);
        pages.add([7]);
        assert_eq!([first, later].map(|handle| pages.report(7, handle)), [true, true]);
        // those that read it are closed, and did not report it
        pages.add([7]);
        let (next, last) = (new_handle(), new_handle());
        assert_eq!([next, last, next].map(|handle| pages.report(7, handle)), [true, false, false]);
        pages.forget(7);
        assert!(!pages.report(7, second) && pages.report(8, second));
    }
}
