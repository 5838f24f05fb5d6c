//! The properties that depend on the format of a volume: the use of groups, the meaning of free, the size on the
//! device. The format is checked here, and when a volume is opened or created, and nowhere else.
//!
//! - A *classic* volume (ext2, ext3, ext4) has metadata and data in all groups.
//! - One with *regions* (rext3) has chunks of its groups set aside for metadata.
//! - A *native* one is above a map. Its metadata has groups of its own, which use space of the device only after they
//!   are written; so the pool of free blocks contains data groups alone, and the engine determines whether there is
//!   space for metadata. Snapshots pin blocks, which are counted in the descriptors of data groups.
//!
//! The tails of metadata blocks depend on the geometry: [`format::tail`].

use crate::mkfs;
use crate::native::{Native, Versions};
use crate::{Generations, Result, VolumeSummary};
use blockdev::BlockDevice;
use format::GroupNo;
use format::feature::Incompat;
use format::group::Group;
use format::native::superblock::NativeSuperblock;
use format::native::{CHUNK_BLOCKS, GROUP_BLOCKS};
use format::superblock::Superblock;
use space::Purpose;
use std::ops::Range;
use std::sync::Arc;
use store::native::Mapped;

/// Maximum number of names of a file, and of counted subdirectories: ext4's, and that of ext2 and ext3.
const LINKS_EXT4: u16 = 65_000;
const LINKS: u16 = 32_000;

/// The format of a volume, and the properties that depend on it.
pub(crate) struct Layout {
    variant: Variant,
    blocks: u64,
    groups: u32,
    reserved_for_extents: u64,
    max_links: u16,
}

enum Variant {
    Classic,
    Regions,
    Native(Native),
}

/// The location of the metadata of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MetadataGoes {
    /// Anywhere.
    Anywhere,
    /// In the regions named by the group descriptors.
    IntoRegions,
    /// In groups of its own, and nowhere else.
    IntoOwnGroups,
}

impl Layout {
    /// The layout of a volume with this superblock directly on the device.
    pub(crate) fn on_device(sb: &Superblock) -> Self {
        let variant = if sb.geometry.has_regions() { Variant::Regions } else { Variant::Classic };
        let cluster = u64::from(sb.geometry.cluster_blocks);
        let grows = sb.features.incompat.contains(Incompat::EXTENT);
        let reserved = if grows { (sb.geometry.blocks / cluster / 50).min(4096) * cluster } else { 0 };
        Self::new(sb, variant, reserved)
    }

    /// The layout of a volume with this superblock above the map of a native volume.
    pub(crate) fn above_map(sb: &Superblock, native: &NativeSuperblock, mapped: Arc<Mapped>) -> Self {
        Self::new(sb, Variant::Native(Native::new(mapped, native)), 0)
    }

    fn new(sb: &Superblock, variant: Variant, reserved_for_extents: u64) -> Self {
        let max_links = if sb.features.counts_many_links() { LINKS_EXT4 } else { LINKS };
        Self { variant, blocks: sb.geometry.blocks, groups: sb.geometry.groups, reserved_for_extents, max_links }
    }

    /// The native volume beneath; `None` for other formats. Its effects are in the methods of this type.
    fn native(&self) -> Option<&Native> {
        match &self.variant {
            Variant::Native(native) => Some(native),
            Variant::Classic | Variant::Regions => None,
        }
    }

    /// The versions of the volume's metadata; `None` if it has only one, which is changed in place.
    pub(crate) fn versions(&self) -> Option<&Versions> {
        self.native().map(|native| &native.versions)
    }

    /// The device beneath the one that the volume is read from; `None` if both are the same.
    pub(crate) fn storage(&self) -> Option<&Arc<dyn BlockDevice>> {
        self.versions().map(|versions| versions.mapped.device())
    }

    /// A summary of the volume with this superblock, from the current state of the device.
    pub(crate) fn summary(&self, sb: &Superblock) -> Result<VolumeSummary> {
        let summary = VolumeSummary::of_superblock(sb);
        let Some(versions) = self.versions() else { return Ok(summary) };
        let generations = Generations::read(versions.mapped.device())?;
        // the state in the ext4 superblock above the map is for engines that need recovery
        let unordered = generations.superblock.unordered;
        Ok(VolumeSummary {
            format: mkfs::Kind::Extant.name(),
            is_own: true,
            state: Some(if unordered { "in use without consistency, or not unmounted" } else { "clean" }),
            // groups of metadata have no blocks of the device of their own, but the superblock includes them
            blocks: generations.layout().blocks(),
            counts_free: false,
            metadata_blocks: Some(generations.physical_blocks),
            generations: Some(generations),
        })
    }

    /// The reason why the volume may lack durable data; `None` if it does not, or if only a check can determine that.
    pub(crate) fn may_lack(&self) -> Result<Option<&'static str>> {
        let lack = self.storage().map(|device| store::native::may_lack(&**device)).transpose()?;
        Ok(lack.flatten())
    }

    /// The location of the metadata of files.
    pub(crate) fn metadata_goes(&self) -> MetadataGoes {
        match &self.variant {
            Variant::Classic => MetadataGoes::Anywhere,
            Variant::Regions => MetadataGoes::IntoRegions,
            Variant::Native(_) => MetadataGoes::IntoOwnGroups,
        }
    }

    /// The groups in which blocks for a purpose may be.
    pub(crate) fn groups_for(&self, purpose: Purpose) -> Range<u32> {
        match (self.native(), purpose) {
            (None, _) => 0..self.groups,
            (Some(native), Purpose::Data) => 0..native.layout.data_groups(),
            (Some(native), Purpose::Metadata) => native.layout.data_groups()..self.groups,
        }
    }

    /// The first group to search if `group` is the preferred one: its counterpart among the groups for the purpose.
    pub(crate) fn group_for(&self, purpose: Purpose, group: u32) -> u32 {
        let range = self.groups_for(purpose);
        if range.contains(&group) {
            return group;
        }
        range.start + group % (range.end - range.start).max(1)
    }

    /// The groups whose chunks an engine may allocate for regions of its own.
    pub(crate) fn groups_with_chunks(&self) -> Range<u32> {
        if self.native().is_some() { self.groups_for(Purpose::Data) } else { 0..0 }
    }

    /// The chunks of such a group that exist on the device, numbered over the volume.
    pub(crate) fn chunks_of(&self, group: GroupNo) -> Range<u32> {
        let all = self.native().map_or(0, |native| native.layout.chunks());
        let first = group.get() * (GROUP_BLOCKS / CHUNK_BLOCKS);
        first..first.saturating_add(GROUP_BLOCKS / CHUNK_BLOCKS).min(all).max(first)
    }

    /// Whether these blocks may be used for a purpose, according to the format of the volume.
    pub(crate) fn may_contain(&self, purpose: Purpose, blocks: &Range<u64>) -> bool {
        self.native().is_none_or(|native| !native.is_not_for(purpose, blocks))
    }

    /// Blocks of the volume that exist on the device; a native volume's further block numbers are those of its map.
    pub(crate) fn device_blocks(&self) -> u64 {
        self.native().map_or(self.blocks, |native| native.layout.blocks())
    }

    /// Blocks that can never contain data; `counted` counts the volume's own structures.
    pub(crate) fn overhead(&self, counted: impl FnOnce() -> u64) -> u64 {
        match self.native() {
            // the metadata groups contain no data, nor does the missing part of the last data group
            Some(native) => self.blocks - native.layout.blocks() + native.layout.front(),
            None => counted(),
        }
    }

    /// Whether the free blocks in the superblock are those that may contain data: a native volume's superblock also
    /// counts those for metadata.
    pub(crate) fn counts_free_data(&self) -> bool {
        self.native().is_none()
    }

    /// Blocks that the kernel reserves for the growth of extent trees by delayed writes: a fiftieth of the clusters, at
    /// most 4 096.
    pub(crate) fn reserved_for_extents(&self) -> u64 {
        self.reserved_for_extents
    }

    /// Maximum number of names of a file, and of counted subdirectories.
    pub(crate) fn max_links(&self) -> u16 {
        self.max_links
    }

    /// Whether blocks for a purpose are allocated from the pool of free blocks.
    pub(crate) fn is_pooled(&self, purpose: Purpose) -> bool {
        self.native().is_none() || purpose == Purpose::Data
    }

    /// Whether the free blocks of a group are in the pool.
    pub(crate) fn is_pool_group(&self, group: u32) -> bool {
        self.groups_for(Purpose::Data).contains(&group)
    }

    /// Blocks that are free in a group's bitmap and pinned by snapshots, according to its descriptor.
    pub(crate) fn pinned(&self, group: u32, descriptor: &Group) -> u64 {
        if self.groups_with_chunks().contains(&group) { descriptor.pinned() } else { 0 }
    }

    /// Blocks of a group that may be allocated, according to its descriptor.
    pub(crate) fn available(&self, group: u32, descriptor: &Group) -> u32 {
        u64::from(descriptor.free_clusters).saturating_sub(self.pinned(group, descriptor)) as u32
    }
}
