//! The space of a volume at the time when everything was durable.
//!
//! The former bitmaps and descriptor of a group are on the device, so only the volume's counts are saved; the groups
//! changed since are read again.

use super::Space;
use super::superblock_state::with_errors;
use crate::{Disk, Result};
use format::GroupNo;
use format::superblock::DiskSuperblock;
use space::Pool;
use std::sync::atomic::Ordering;

/// The counts of a volume at that time.
pub(crate) struct DurableCounts {
    pool: Pool,
    free_metadata: u64,
    pinned: u64,
    free_inodes: u64,
    directories: u64,
    superblock: DiskSuperblock,
    /// The number of groups known to be damaged.
    damaged: usize,
}

impl Space {
    /// The current counts. Everything is durable, and nothing changes meanwhile.
    pub(crate) fn durable_counts(&self) -> DurableCounts {
        DurableCounts {
            pool: self.pool.lock().clone(),
            free_metadata: self.free_metadata.load(Ordering::Relaxed),
            pinned: self.pinned_blocks(),
            free_inodes: self.free_inodes.load(Ordering::Relaxed),
            directories: self.directories.load(Ordering::Relaxed),
            superblock: *self.superblock.lock(),
            damaged: self.damaged.lock().len(),
        }
    }

    /// Restores the space. The store has discarded the changes since, and no call uses the space.
    ///
    /// # Errors
    /// Those of reading the descriptors of changed groups: then nothing in memory can be trusted.
    pub(crate) fn restore(&self, volume: &Disk, counts: DurableCounts) -> Result<()> {
        self.deferred.lock().clear();
        self.deferred_inodes.lock().clear();
        self.new_content.clear();
        *self.pool.lock() = counts.pool;
        self.free_metadata.store(counts.free_metadata, Ordering::Relaxed);
        if let Some(pins) = &self.snapshot_pins {
            pins.blocks.store(counts.pinned, Ordering::Relaxed);
        }
        self.free_inodes.store(counts.free_inodes, Ordering::Relaxed);
        self.directories.store(counts.directories, Ordering::Relaxed);
        let mut superblock = counts.superblock;
        // damage found meanwhile persists
        with_errors(&mut superblock, &self.superblock.lock());
        *self.superblock.lock() = superblock;
        let changed = std::mem::take(&mut *self.changed.lock());
        for group in changed {
            let descriptor = volume.read_descriptor(GroupNo(group))?;
            if let Some(cell) = self.cell(GroupNo(group)) {
                self.loaded.lock().remove(&group);
                cell.reset(descriptor, self.layout.available(group, &descriptor));
                self.bounds.raise(group);
            }
        }
        let damaged: Vec<GroupNo> =
            self.damaged.lock().iter().skip(counts.damaged).map(|damaged| damaged.group).collect();
        for group in damaged {
            let is_pooled = self.layout.is_pool_group(group.get());
            let Some(descriptor) = self.descriptor(group).filter(|_| is_pooled) else { continue };
            self.pool.lock().quarantine(self.layout.available(group.get(), &descriptor).into());
        }
        Ok(())
    }
}
