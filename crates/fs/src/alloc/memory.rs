//! Memory of the structures with the free space of a volume open for writing.

use super::Space;
use crate::Result;
use format::GroupNo;
use space::RunSet;
use store::Operation;

/// Memory in bytes of the structures with the free space of a volume open for writing, without the overhead of the
/// memory allocator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FreeSpaceMemory {
    /// Structures whose size depends on the layout alone: the state of each group, the bounds that searches use, and
    /// the locations of the volume's own structures.
    pub tables: u64,
    /// The sets of free and deferred blocks that the allocator changes.
    pub groups: u64,
    /// Other structures of the record of free space: the trees of space maps as of the last close, and records of
    /// their log. 0 for block bitmaps, whose blocks are in the cache of metadata.
    pub record: u64,
}

impl FreeSpaceMemory {
    /// The sum of all parts.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.tables + self.groups + self.record
    }

    /// The memory of all but the sets of single groups.
    pub(crate) fn without_groups(space: &Space) -> Self {
        let tables = size_of_val(&*space.groups) + space.bounds.memory() + space.system_zones.memory();
        let deferred: usize = space.deferred.lock().values().map(RunSet::memory).sum();
        Self { tables: tables as u64, groups: deferred as u64, record: space.record.memory() as u64 }
    }

    /// Memory of a group's set, which is read if necessary; 0 for a corrupt group.
    ///
    /// # Errors
    /// Those of the device.
    pub(crate) fn of_group(space: &Space, op: &Operation<'_>, group: GroupNo) -> Result<u64> {
        let Some(mut state) = space.lock_space(op.store(), group.get())? else { return Ok(0) };
        let bytes = state.space.free.as_ref().map_or(0, |free| free.memory());
        space.drop_if_many(group.get(), &mut state);
        Ok(bytes as u64)
    }
}
