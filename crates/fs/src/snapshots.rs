//! Snapshots of a native volume: creating, listing, reading and deleting them.
//!
//! A snapshot is a generation that is preserved. Creating it costs nothing; later it uses the space of what has changed
//! since: metadata goes to new physical blocks in any case, and content pinned by a snapshot is copied before it is
//! changed. Freed blocks that are pinned can be allocated when the last snapshot that pins them is deleted.

use crate::alloc::pinned_alone;
use crate::gate::{Alone, AtBegin};
use crate::native::{find, unreadable};
use crate::open::over_map;
use crate::{Error, OpenOptions, Result, Volume, memory_budget};
use format::native::BLOCK_SIZE;
use format::native::snapshots::{MOST, Snapshot};
use format::{FsBlock, GroupNo};
use space::Purpose;
use std::collections::HashSet;
use std::sync::Arc;
use store::native::{Mapped, SnapshotChange};

/// A snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// Its name: 1 to 128 bytes, without zero bytes and `/`, and neither `.` nor `..`.
    pub name: Vec<u8>,
    /// The number of its generation.
    pub generation: u64,
    /// The time of its creation, in seconds since 1970.
    pub time: i64,
}

impl From<&Snapshot> for SnapshotInfo {
    fn from(snapshot: &Snapshot) -> Self {
        Self { name: snapshot.name.clone(), generation: snapshot.generation, time: snapshot.time }
    }
}

/// All snapshots but one.
fn others(mapped: &Mapped, name: &[u8]) -> Result<Vec<Snapshot>> {
    Ok(mapped.snapshots()?.iter().flatten().filter(|snapshot| snapshot.name != name).cloned().collect())
}

impl Volume {
    /// Whether the format of the volume has snapshots.
    #[must_use]
    pub fn has_snapshots(&self) -> bool {
        self.layout.versions().is_some()
    }

    /// The volume's snapshots, the oldest first. None for a volume opened as a snapshot.
    ///
    /// # Errors
    /// [`Error::Unsupported`] on volumes that are not native; those of the device; [`Error::Corrupt`].
    pub fn snapshots(&self) -> Result<Vec<SnapshotInfo>> {
        let list = self.versions()?.mapped.snapshots()?;
        let mut all: Vec<SnapshotInfo> = list.iter().flatten().map(SnapshotInfo::from).collect();
        all.sort_by_key(|snapshot| snapshot.generation);
        Ok(all)
    }

    /// Creates a snapshot of everything done before the call; it is durable on return. Concurrent changes are included
    /// up to one point in time: no change without those that ended before it began. They wait while the rest of the
    /// delayed data is allocated and flushed. The cost of a snapshot does not depend on the volume's size.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an invalid name; [`Error::Exists`]; [`Error::NoSpace`] if there are already 4 096
    /// snapshots, or no space is left for one; [`Error::Invalid`] within a transaction; as [`Volume::snapshots`] and
    /// [`Volume::sync`].
    pub fn create_snapshot(&self, name: &[u8]) -> Result<SnapshotInfo> {
        let versions = self.versions()?;
        if !Snapshot::is_name(name) {
            return Err(Error::Invalid("a snapshot's name has 1 to 128 bytes, no slash, and is neither . nor .."));
        }
        // most of the delayed data is allocated while other calls continue; an error recurs below
        drop(self.change_guard_outside().and_then(|_guard| self.flush_all_delayed()));
        let _alone = self.alone()?;
        let _guard = self.change_guard_outside()?;
        let _change = versions.change.lock();
        let list = versions.mapped.snapshots()?;
        if list.iter().flatten().any(|snapshot| snapshot.name == name) {
            return Err(Error::Exists);
        }
        if list.iter().flatten().count() as u64 >= MOST {
            return Err(Error::NoSpace);
        }
        // a file whose delayed data finds no space does not prevent the snapshot
        let placed = self.flush_all_delayed();
        let change = self.change_to_snapshot()?;
        let generation = change.generation();
        let time = change.now().seconds;
        versions.mapped.request(generation, SnapshotChange::Create { name: name.to_vec(), time });
        drop(change);
        self.store.sync_generation(generation)?;
        placed?;
        Ok(SnapshotInfo::from(&find(&versions.mapped, name)?))
    }

    /// Waits until no other thread changes the volume and no transaction runs, and excludes both until the result is
    /// dropped. `None` if there is no gate.
    fn alone(&self) -> Result<Option<Alone<'_, AtBegin>>> {
        let Some(gate) = self.gate() else { return Ok(None) };
        loop {
            match gate.alone() {
                Ok(alone) => return Ok(Some(alone)),
                Err(Error::Busy) => drop(self.change_guard_outside()?),
                Err(e) => return Err(e),
            }
        }
    }

    /// Deletes a snapshot; the blocks that only it pinned can be allocated when this returns.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Invalid`] within a transaction; [`Error::Unsupported`] if more groups changed than
    /// one operation can include, see [`WriteOptions::dirty_bytes`](crate::WriteOptions); as [`Volume::snapshots`] and
    /// [`Volume::sync`].
    pub fn delete_snapshot(&self, name: &[u8]) -> Result<()> {
        let versions = self.versions()?;
        let _guard = self.change_guard_outside()?;
        let _alone = versions.change.lock();
        let snapshot = find(&versions.mapped, name)?;
        let others = others(&versions.mapped, name)?;
        let space = self.space()?;
        let (only, looked) = space.pinned_only_by(&self.store, &snapshot, &others)?;
        let per_block = self.sb.geometry.descriptors_per_block();
        let descriptors: HashSet<u32> = looked.iter().map(|group| group / per_block).collect();
        let change = self.change_deleting(descriptors.len())?;
        let generation = change.generation();
        space.unpin_snapshot(change.operation(), &snapshot, others, (only, looked))?;
        versions.mapped.request(generation, SnapshotChange::Delete { name: name.to_vec() });
        drop(change);
        Ok(self.store.sync_generation(generation)?)
    }

    /// Frees chunks that the metadata regions of a native volume do not need any more, for example after the deletion
    /// of snapshots or of very many files. Chunks unlikely to be needed soon are freed without this call when the
    /// volume is idle, provided that [`Volume::tick`] is called.
    ///
    /// # Errors
    /// As [`Volume::sync`].
    pub fn compact(&self) -> Result<()> {
        self.writing()?;
        let _guard = self.change_guard_outside()?;
        while self.store.compact()? {}
        Ok(())
    }

    /// Unique space of a snapshot in bytes: the space that its deletion would free now.
    ///
    /// # Errors
    /// [`Error::NotFound`]; as [`Volume::snapshots`].
    pub fn snapshot_space(&self, name: &[u8]) -> Result<u64> {
        let versions = self.versions()?;
        let _alone = versions.change.lock();
        let snapshot = find(&versions.mapped, name)?;
        let others = others(&versions.mapped, name)?;
        let mut blocks = versions.mapped.physical_blocks_pinned_by(&snapshot)?;
        for group in self.layout.groups_for(Purpose::Data) {
            let block = self.group(GroupNo(group))?.block_bitmap;
            if self.is_as_in(&versions.mapped, &snapshot, block)? {
                continue;
            }
            let live = self.store.block(block)?;
            blocks = blocks.saturating_add(pinned_alone(&versions.mapped, &snapshot, &others, block, &live)?);
        }
        Ok(blocks.saturating_mul(BLOCK_SIZE.into()))
    }

    /// Whether a block has the same physical block as in a snapshot.
    fn is_as_in(&self, mapped: &Mapped, snapshot: &Snapshot, block: FsBlock) -> Result<bool> {
        let (then, now) = (mapped.entry_at(snapshot, block)?, mapped.entry_of(block)?);
        Ok(then.map(|entry| (entry.physical, entry.generation)) == now.map(|entry| (entry.physical, entry.generation)))
    }

    /// Opens a snapshot for reading, in addition to this volume; at most `cache_bytes` bytes of its metadata are
    /// cached, and fewer with little memory. After it is deleted, reading from it is an error.
    ///
    /// # Errors
    /// [`Error::NotFound`]; as [`Volume::snapshots`] and [`Volume::open`].
    pub fn open_snapshot(&self, name: &[u8], cache_bytes: usize) -> Result<Self> {
        let versions = self.versions()?;
        let snapshot = find(&versions.mapped, name)?;
        let (superblock, _) = store::native::superblock(&**versions.mapped.device())?;
        let options =
            OpenOptions { cache_bytes: cache_bytes.min(memory_budget::budget().cache / 4), ..OpenOptions::default() };
        let maps = over_map(&superblock, Arc::new(versions.mapped.at(&snapshot)), &options);
        Ok(Self::over(maps.map_err(|e| unreadable(e, true))?))
    }
}
