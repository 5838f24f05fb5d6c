//! Free space as recorded on the device, of a volume open for reading.

use super::record::{FreeSpaceRecord, LoadError, Opening};
use super::snapshot_pins::SnapshotPins;
use super::system_zones::SystemZones;
use super::{MAX_GROUPS, read_descriptors};
use crate::mutant::Injected;
use crate::{Disk, Error, Result};
use format::group::Group;
use format::{GroupNo, Structure, Where};
use space::Purpose;
use std::ops::Range;
use std::sync::Arc;

/// The free space of a volume as recorded on its device, group by group.
///
/// Blocks that would be freed by opening the volume for writing (orphan files, the journal's own use) count as used.
pub struct StoredFreeSpace<'a> {
    disk: &'a Disk,
    groups: Vec<Group>,
    record: Box<dyn FreeSpaceRecord>,
    pins: Option<SnapshotPins>,
}

impl Disk {
    /// The free space of the volume as recorded on its device.
    ///
    /// # Errors
    /// Those of the device; [`Error::Corrupt`] if descriptors or the record's own superblock fields contradict the
    /// volume; [`Error::Unsupported`] for more groups than a volume open for writing may have.
    pub fn stored_free_space(&self) -> Result<StoredFreeSpace<'_>> {
        let geometry = &self.sb.geometry;
        if geometry.groups > MAX_GROUPS {
            return Err(Error::Unsupported(format!("the free space of a volume of {} groups", geometry.groups)));
        }
        let groups = read_descriptors(self)?;
        let mut opening = Opening::read(self)?;
        let own = opening.own_blocks(&groups);
        let system_zones = Arc::new(SystemZones::of_volume(geometry, &groups, own)?);
        let record = opening.into_record(self, &system_zones, Injected::default());
        let pins = SnapshotPins::of(&self.layout, 0)?;
        Ok(StoredFreeSpace { disk: self, groups, record, pins })
    }
}

impl StoredFreeSpace<'_> {
    /// Numbers of the groups whose blocks can contain content, ascending.
    #[must_use]
    pub fn groups(&self) -> Range<u32> {
        self.disk.layout.groups_for(Purpose::Data)
    }

    /// Runs of blocks of a group used neither by the volume nor by one of its snapshots, ascending. A run at the end of
    /// a group may continue in the next.
    ///
    /// # Errors
    /// Those of the device; [`Error::Corrupt`] if the group's record contradicts the volume, so that its free space is
    /// unknown.
    pub fn of_group(&self, group: GroupNo) -> Result<Vec<Range<u64>>> {
        let what = |what| Error::corrupt(Structure::Bitmap, Where::Group(group), what);
        let descriptor = self.groups.get(group.get() as usize).ok_or_else(|| what("the volume has no such group"))?;
        let mut free = match self.record.load(&self.disk.store, group, descriptor) {
            Ok(free) => free,
            Err(LoadError::Device(e)) => return Err(e.into()),
            Err(LoadError::Corrupt(why)) => return Err(what(why)),
        };
        if let Some(pins) = &self.pins {
            free.pin(&pins.units_of_group(descriptor.block_bitmap)?);
        }
        let geometry = &self.disk.sb.geometry;
        let blocks = geometry.group_blocks(group);
        let cluster = u64::from(geometry.cluster_blocks);
        let block = |unit: u32| (blocks.start + u64::from(unit) * cluster).min(blocks.end);
        Ok(free.available_units().runs().map(|run| block(run.start)..block(run.end())).collect())
    }
}
