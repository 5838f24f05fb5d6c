//! The memory of free space, for measurements.

use crate::{FreeSpaceMemory, Result, Volume};

impl Volume {
    /// Memory of the structures with free space, with all groups in memory at once. Reads those that are not, and drops
    /// them again beyond the limit of [`OpenOptions::cache_bytes`](crate::OpenOptions::cache_bytes); trees of space
    /// maps stay in memory. Waits for transactions of others.
    ///
    /// # Errors
    /// [`Error::ReadOnly`](crate::Error::ReadOnly) if the volume was not opened for writing;
    /// [`Error::Invalid`](crate::Error::Invalid) inside a transaction of this thread; those of the device.
    pub fn free_space_memory(&self) -> Result<FreeSpaceMemory> {
        let space = self.space()?;
        let _guard = self.change_guard_outside()?;
        let mut groups = 0;
        for group in self.sb.geometry.group_numbers() {
            groups += FreeSpaceMemory::of_group(space, self.change(0)?.operation(), group)?;
        }
        // after the groups, as these read the trees
        let others = FreeSpaceMemory::without_groups(space);
        Ok(FreeSpaceMemory { groups: groups + others.groups, ..others })
    }
}
