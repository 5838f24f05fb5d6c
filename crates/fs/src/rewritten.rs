//! Files that are rewritten: truncated to nothing, then written anew, without fsync(2).
//!
//! Their new content is delayed, the truncation is not: a sync for another file would make an empty file durable. So
//! their content is written before a generation is closed, as ext4 writes it when the file is closed
//! (`auto_da_alloc`). The server is not informed when a file is closed.

use crate::InodeNo;
use parking_lot::Mutex;
use std::collections::HashMap;

/// Maximum number of recorded files; of more, those that follow are not protected.
const MOST: usize = 1024;

/// Files that were truncated to nothing, probably to be rewritten.
#[derive(Default)]
pub(crate) struct Rewritten {
    /// Whether all delayed data was written since, for each of them.
    files: Mutex<HashMap<InodeNo, bool>>,
}

impl Rewritten {
    /// Records that a file with content was truncated to nothing.
    pub(crate) fn record(&self, number: InodeNo) {
        let mut files = self.files.lock();
        if files.len() < MOST {
            files.insert(number, false);
        }
    }

    /// Drops files without new content that were recorded before the last call but one: they are probably empty on
    /// purpose.
    pub(crate) fn age(&self) {
        let mut files = self.files.lock();
        files.retain(|_, old| !std::mem::replace(old, true));
        if files.is_empty() {
            files.shrink_to_fit();
        }
    }

    /// The recorded files.
    pub(crate) fn numbers(&self) -> Vec<InodeNo> {
        self.files.lock().keys().copied().collect()
    }

    /// Drops a file whose new content is written.
    pub(crate) fn forget(&self, number: InodeNo) {
        self.files.lock().remove(&number);
    }
}
