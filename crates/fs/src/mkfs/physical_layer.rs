//! The layer beneath a new volume: the device itself, or the map of a native one; and all that depends on it.

use super::error::{Result, refuse};
use super::used::{Used, clusters};
use super::{MkfsOptions, tables};
use format::group::Group;
use format::native::Layout as NativeLayout;
use format::space_map::SpaceMaps;
use format::superblock::{Geometry, Superblock};
use std::ops::Range;

/// The layer beneath a volume.
#[derive(Debug, Clone)]
pub(super) enum PhysicalLayer {
    /// The device itself.
    Device,
    /// The map of a native volume.
    Map(NewMap),
}

/// The map of a native volume to be created.
#[derive(Debug, Clone)]
pub(super) struct NewMap {
    pub(super) layout: NativeLayout,
    /// The chunks of its metadata regions, ascending.
    pub(super) chunks: Vec<u32>,
}

impl NewMap {
    /// The map of a volume of this layout, with the initial chunks of its metadata regions.
    pub(super) fn new(layout: NativeLayout) -> Result<Self> {
        let apart = layout.backup_chunks();
        // the front, some bitmaps, inodes and directories, and the bitmaps of groups with reserved blocks
        let blocks = usize::try_from(layout.front()).unwrap_or(usize::MAX).saturating_add(64 + apart.len());
        let chunks = store::engine::first_chunks(&layout, blocks);
        if chunks > layout.chunks().saturating_mul(2) / 3 {
            return refuse("the volume is too small for its metadata");
        }
        let free = (0..layout.chunks()).filter(|chunk| !apart.contains(chunk));
        let chunks = free.take(chunks as usize).collect();
        Ok(Self { layout, chunks })
    }
}

impl PhysicalLayer {
    /// Places the metadata of all groups and allocates its blocks.
    pub(super) fn place(
        &self,
        geometry: &Geometry,
        maps: Option<(u32, u32)>,
        options: &MkfsOptions,
    ) -> Result<(Vec<Group>, Used, Option<SpaceMaps>)> {
        match self {
            Self::Device => tables::place(geometry, options.packed_meta_blocks, u64::from(options.stride), maps),
            Self::Map(NewMap { layout, chunks }) => {
                let (groups, used) = tables::place_native(geometry, layout, chunks)?;
                Ok((groups, used, None))
            }
        }
    }

    /// The blocks reserved for metadata, whatever they contain.
    pub(super) fn metadata_blocks(&self) -> Option<Range<u64>> {
        match self {
            Self::Device => None,
            Self::Map(map) => Some(map.layout.metadata_start()..map.layout.logical_blocks()),
        }
    }

    /// Blocks of the device used by the volume.
    pub(super) fn device_blocks(&self, geometry: &Geometry) -> u64 {
        match self {
            Self::Device => geometry.blocks,
            Self::Map(map) => map.layout.blocks(),
        }
    }

    /// Unused blocks of the device.
    pub(super) fn free_blocks(&self, superblock: &Superblock, used: &Used) -> u64 {
        match self {
            Self::Device => superblock.disk.free_blocks_count(),
            // free metadata blocks are beyond the device's own blocks, and get one of these only when they are used
            Self::Map(map) => {
                let blocks = map.layout.blocks();
                blocks.saturating_sub(clusters(&superblock.geometry, used, 0..blocks))
            }
        }
    }

    /// Whether blocks that must read as zeroes have to be written; a block without an entry in a map reads as zeroes.
    pub(super) fn writes_zeroes(&self) -> bool {
        matches!(self, Self::Device)
    }
}
