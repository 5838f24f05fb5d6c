//! Inodes that the open generation made in slots that were never used. Where the engine does not write unchanged
//! blocks, one that is freed again leaves its slot as it was on the device.

use format::InodeNo;
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashSet;

/// Those of the generation of that number.
#[derive(Default)]
pub(crate) struct NewInodes(Mutex<(u64, HashSet<InodeNo>)>);

impl NewInodes {
    fn lock(&self) -> MutexGuard<'_, (u64, HashSet<InodeNo>)> {
        self.0.lock()
    }

    pub(crate) fn add(&self, number: InodeNo, generation: u64) {
        let mut all = self.lock();
        if all.0 != generation {
            *all = (generation, HashSet::new());
        }
        all.1.insert(number);
    }

    /// Whether the open generation, of this number, made the inode.
    pub(crate) fn contains(&self, number: InodeNo, generation: u64) -> bool {
        let all = self.lock();
        all.0 == generation && all.1.contains(&number)
    }

    /// The open generation was rolled back.
    pub(crate) fn clear(&self) {
        *self.lock() = Default::default();
    }
}
