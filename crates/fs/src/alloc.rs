//! The space of a volume open for writing: its groups in memory.
//!
//! 1. The counts of all groups are in memory from opening on. Free space and free inodes of a group are read and
//!    verified once, when they are first needed; they may be dropped between generations unless they have pending
//!    changes.
//! 2. From then on the state in memory is authoritative. The stored form is announced to the store at the first change
//!    in a generation, so that it counts towards the generation's size, and is filled in when the generation closes (in
//!    `commit_hooks`). Only [`record`] depends on how free space is stored.
//! 3. A group whose free space contradicts the volume is excluded: no allocation there, and freed blocks and inodes
//!    stay in use until a check. The volume is then marked as having errors.
//! 4. Locks: a group's lock, then the store's or a counter's. No two groups are locked at once, and no node's lock is
//!    taken under one.

mod allocate;
mod block_ranges;
mod blocks;
mod chunks;
mod content;
mod durable_space;
mod fit;
mod groups;
mod guard;
mod inode_bitmaps;
mod inode_generations;
mod inodes;
mod loaded_group;
mod longest_runs;
mod memory;
mod new_content;
mod parked;
mod placement;
mod record;
mod rule;
mod snapshot_pins;
mod space_on_device;
mod superblock_state;
mod system_zones;
#[cfg(test)]
mod tests;
mod unpin;

pub(crate) use blocks::Reservation;
pub(crate) use durable_space::DurableCounts;
pub use memory::FreeSpaceMemory;
pub(crate) use record::free_blocks;
pub use record::{SpaceMapHead, SpaceMapSummary, SpaceMapTree};
pub(crate) use rule::Role;
pub(crate) use snapshot_pins::{in_use, pinned_alone, used_by};
pub(crate) use space::Purpose;
pub use space_on_device::StoredFreeSpace;

use crate::layout::Layout;
use crate::mutant::Injected;
use crate::{Clock, Disk, Error, Placement, Result};
use fit::Fit;
use format::GroupNo;
use format::group::Group;
use format::superblock::{DiskSuperblock, Superblock};
use inode_generations::InodeGenerations;
use loaded_group::GroupCell;
use longest_runs::Bounds;
use new_content::NewContent;
use parked::Parked;
use parking_lot::Mutex;
use record::{FreeSpaceRecord, Opening};
use rule::{Attempt, Rule};
use snapshot_pins::SnapshotPins;
use space::{GroupTotals, Policy, Pool, Privilege, RunSet, Sum, Totals};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use store::VolumeState;
use superblock_state::SuperblockState;
use system_zones::SystemZones;

/// Maximum number of groups of a volume opened for writing: their counts stay in memory.
const MAX_GROUPS: u32 = 1 << 24;
/// Descriptor blocks read in one batch.
const BATCH: u32 = 256;

/// A group that is not trusted any more, with the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DamagedGroup {
    /// The group.
    pub group: GroupNo,
    /// The reason why it is not trusted.
    pub what: &'static str,
}

/// Options for the management of a volume's space.
pub(crate) struct SpaceOptions {
    /// The journal's blocks, ascending.
    pub(crate) journal: Vec<Range<u64>>,
    /// The state of the superblock while generations are written.
    pub(crate) in_use: VolumeState,
    /// The volume was consistent when it was opened, so it may be marked clean again.
    pub(crate) was_valid: bool,
    /// Freed content is deferred until its generation is durable, as a crash may restore it.
    pub(crate) defer_content: bool,
    /// As `defer_content`, for inode numbers.
    pub(crate) defer_inodes: bool,
    /// The defect that is injected on purpose.
    pub(crate) mutant: Injected,
    /// Content of durable generations is never overwritten in place.
    pub(crate) copies: bool,
    /// The placement of blocks, if the format does not determine it.
    pub(crate) placement: Placement,
    /// The seed of the generation numbers of new inodes.
    pub(crate) seed: u64,
    /// Maximum number of groups whose bitmaps stay cached between generations.
    pub(crate) bitmaps: usize,
    pub(crate) clock: Clock,
}

/// The space of a volume.
pub(crate) struct Space {
    pub(crate) sb: Superblock,
    pub(crate) options: SpaceOptions,
    groups: Box<[GroupCell]>,
    system_zones: Arc<SystemZones>,
    /// The record that free space is loaded from and written to.
    pub(crate) record: Box<dyn FreeSpaceRecord>,
    layout: Arc<Layout>,
    /// The blocks pinned by snapshots; set on volumes that can have snapshots.
    pub(crate) snapshot_pins: Option<SnapshotPins>,
    /// Free blocks of a native volume's metadata groups.
    free_metadata: AtomicU64,
    policy: Policy,
    pub(crate) rule: Rule,
    fit: Fit,
    /// An upper bound on the longest run of each group, by [`Attempt::class`].
    bounds: Bounds<{ Attempt::CLASSES }>,
    pub(crate) pool: Mutex<Pool>,
    pub(crate) free_inodes: AtomicU64,
    directories: AtomicU64,
    /// Groups changed in the open generation, each once.
    changed: Mutex<Vec<u32>>,
    /// Groups with free space or free inodes in memory.
    loaded: Mutex<BTreeSet<u32>>,
    /// Freed space that must not be allocated yet, by the generation that freed it.
    deferred: Mutex<BTreeMap<u64, RunSet>>,
    /// As `deferred`, for inodes.
    deferred_inodes: Mutex<BTreeMap<u64, RunSet>>,
    /// Free inodes that must not be allocated.
    parked: Parked,
    /// The volume is being unmounted: no inode is allocated, and no content accepted.
    closing: AtomicBool,
    /// The superblock for the open generation, and the one of the last closed generation.
    pub(crate) superblock: SuperblockState,
    damaged: Mutex<Vec<DamagedGroup>>,
    inode_generations: InodeGenerations,
    /// The blocks of content that may be overwritten while content is copied.
    pub(crate) new_content: NewContent,
}

/// Reads the descriptors of all groups.
///
/// # Errors
/// Those of the device; those of the format for a damaged descriptor.
fn read_descriptors(volume: &Disk) -> Result<Vec<Group>> {
    let geometry = &volume.sb.geometry;
    let per_block = geometry.descriptors_per_block();
    let mut groups = Vec::new();
    for group in geometry.group_numbers() {
        if (group.get() / per_block).is_multiple_of(BATCH) && group.get().is_multiple_of(per_block) {
            volume.prefetch_descriptors(group.get() / per_block, BATCH);
        }
        groups.push(volume.read_descriptor(group)?);
    }
    Ok(groups)
}

impl Space {
    /// Reads the counts of all groups.
    pub(crate) fn load(volume: &Disk, disk: DiskSuperblock, options: SpaceOptions) -> Result<Self> {
        let sb = volume.sb.clone();
        let geometry = &sb.geometry;
        if geometry.groups > MAX_GROUPS {
            return Err(Error::Unsupported(format!("writing to a volume of {} groups", geometry.groups)));
        }
        let groups = read_descriptors(volume)?;
        let mut opening = Opening::read(volume)?;
        let record = opening.own_blocks(&groups);
        let system_zones = Arc::new(SystemZones::of_volume(geometry, &groups, record)?);
        let record = opening.into_record(volume, &system_zones, options.mutant);
        let sum = |of: fn(&Group) -> u32| groups.iter().map(|g| u64::from(of(g))).sum::<u64>();
        let layout = Arc::clone(&volume.layout);
        let of_data = layout.groups_for(Purpose::Data);
        let free = |range: Range<u32>| {
            let groups = groups.get(range.start as usize..range.end as usize).unwrap_or_default();
            groups.iter().map(|g| u64::from(g.free_clusters)).sum::<u64>().min(geometry.blocks)
        };
        let free_metadata = AtomicU64::new(free(of_data.end..geometry.groups));
        let pinned = (0..).zip(&groups).map(|(n, group)| layout.pinned(n, group)).fold(0, u64::saturating_add);
        let snapshot_pins = SnapshotPins::of(&layout, pinned)?;
        let free = record.free_blocks().unwrap_or_else(|| free(of_data).saturating_sub(pinned));
        let pool = Pool::new(free, layout.reserved_for_extents(), sb.disk.reserved_blocks_count());
        let policy = Policy {
            flex: geometry.flex_groups,
            blocks_per_group: geometry.blocks_per_group,
            inodes_per_group: geometry.inodes_per_group,
        };
        let rule = Rule::new(&layout, options.placement);
        let cells = geometry.group_numbers().zip(&groups).map(|(number, group)| {
            let own_end = system_zones.front(geometry.group_blocks(number)) as u32;
            let mask = rule.mask(&layout, geometry, (number.get(), group), own_end);
            GroupCell::new(*group, mask, layout.available(number.get(), group), record.free_blocks_hint(number))
        });
        let cells: Box<[GroupCell]> = cells.collect();
        let counts: Vec<u32> = cells.iter().map(GroupCell::most_blocks).collect();
        let space = Self {
            fit: Fit::new(record.is_by_extents()),
            record,
            bounds: Bounds::new(&counts, |class| rule.has(class)),
            system_zones,
            layout: Arc::clone(&layout),
            snapshot_pins,
            free_metadata,
            policy,
            rule,
            pool: Mutex::new(pool),
            free_inodes: AtomicU64::new(sum(|g| g.free_inodes)),
            directories: AtomicU64::new(sum(|g| g.directories)),
            groups: cells,
            changed: Mutex::default(),
            loaded: Mutex::default(),
            deferred: Mutex::default(),
            deferred_inodes: Mutex::default(),
            parked: Parked::default(),
            closing: AtomicBool::new(false),
            superblock: SuperblockState::new(disk, options.in_use, options.was_valid, Arc::clone(&options.clock)),
            damaged: Mutex::default(),
            inode_generations: InodeGenerations::new(options.seed),
            new_content: NewContent::new(options.copies),
            options,
            sb,
        };
        space.mark_corrupt_areas();
        Ok(space)
    }

    pub(crate) fn cell(&self, group: GroupNo) -> Option<&GroupCell> {
        self.groups.get(group.get() as usize)
    }

    /// The current descriptor of a group.
    pub(crate) fn descriptor(&self, group: GroupNo) -> Option<Group> {
        Some(self.cell(group)?.state.lock().descriptor)
    }

    /// Stops allocation of inodes, so that the numbers of freed inodes are not reused, and acceptance of content.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
    }

    /// Refuses new operations while the volume is being unmounted.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] during unmounting.
    pub(crate) fn is_open(&self) -> Result<()> {
        if self.closing.load(Ordering::SeqCst) {
            return Err(Error::ReadOnly("the volume is being unmounted".into()));
        }
        Ok(())
    }

    /// Groups that are not trusted any more.
    pub(crate) fn damaged(&self) -> Vec<DamagedGroup> {
        self.damaged.lock().clone()
    }
}

impl Totals for Space {
    fn groups(&self) -> u32 {
        self.sb.geometry.groups
    }

    fn of(&self, group: u32) -> GroupTotals {
        let Some(cell) = self.cell(GroupNo(group)) else { return GroupTotals::default() };
        // inodes of a metadata group have their content in data groups
        let content = self.layout.group_for(Purpose::Data, group);
        GroupTotals {
            blocks: self.cell(GroupNo(content)).map_or(0, |cell| cell.blocks.load(Ordering::Relaxed)),
            inodes: cell.inodes.load(Ordering::Relaxed),
            directories: cell.directories.load(Ordering::Relaxed),
        }
    }

    fn all(&self) -> Sum {
        Sum {
            blocks: self.pool.lock().available(Privilege::Reserved),
            inodes: self.free_inodes.load(Ordering::Relaxed),
            directories: self.directories.load(Ordering::Relaxed),
        }
    }
}
