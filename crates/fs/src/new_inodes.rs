//! Inodes that the open generation created in slots that were never used. If the engine does not write unchanged
//! blocks, an inode that is freed again leaves its slot as on the device.

use format::InodeNo;
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashSet;

/// The inodes of the generation with that number.
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

    /// Whether the open generation, with this number, created the inode.
    pub(crate) fn contains(&self, number: InodeNo, generation: u64) -> bool {
        let all = self.lock();
        all.0 == generation && all.1.contains(&number)
    }

    /// Clears the set after a rollback of the open generation.
    pub(crate) fn clear(&self) {
        *self.lock() = Default::default();
    }
}
