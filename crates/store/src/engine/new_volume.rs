//! The first generation of a native volume.

use super::copy_on_write::landing;
use super::map_writer::{LEAST_DIRTY, MapWriter, Needs};
use crate::native::{ChunkTable, Map, MapLog};
use crate::{BlockWrite, ClosedGeneration, Compaction, Plan, Result};
use blockdev::{BlockDevice, MemoryDevice};
use format::native::map::{BlockKind, Entry};
use format::native::superblock::{COPIES, NativeSuperblock};
use format::native::{BLOCK_SIZE, CHUNK_BLOCKS, HEAD, Layout};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Creates a native volume on a device: `blocks` are the ext4 volume's metadata, ascending, with their tags; `chunks`
/// the chunks that its bitmaps leave to the metadata regions, none of which is one of [`Layout::backup_chunks`].
/// Everything is durable when it returns.
///
/// # Errors
/// Those of the device; [`Error::NoSpace`] if the chunks are too few.
pub fn make(
    device: &dyn BlockDevice,
    layout: Layout,
    uuid: [u8; 16],
    chunks: &[u32],
    blocks: Vec<BlockWrite>,
) -> Result<()> {
    let nothing = Entry { physical: 0, generation: 0, kind: BlockKind::MapNode, owner: 0, checksum: 0 };
    let superblock = NativeSuperblock {
        layout,
        uuid,
        generation: 0,
        unordered: false,
        reserved: true,
        root: nothing,
        chunks: 0,
        snapshots: 0,
        map_log: Vec::new(),
    };
    // there is no content yet, so nothing is read
    let nowhere = Arc::new(MemoryDevice::from_vec(Vec::new()));
    let map = Arc::new(Map::new(nowhere, layout, superblock.seed(), None, MapLog::new()));
    let mut chunk_table = ChunkTable::new(Vec::new(), BTreeMap::new(), true, Arc::default())?;
    chunks.iter().for_each(|number| chunk_table.add(*number));
    let mut metadata = MapWriter::over(map, superblock, 0, chunk_table, blocks.len());
    // no superblock of an older volume may be valid
    for copy in 0..COPIES {
        device.write_zeroes(copy * u64::from(BLOCK_SIZE), BLOCK_SIZE.into())?;
    }
    device.flush()?;
    let closed = ClosedGeneration::of(blocks);
    let mut writes = Vec::new();
    let changes = metadata.changes(&closed, &mut writes)?;
    metadata.build(changes, &[], &mut writes)?;
    Plan { stages: landing(&mut metadata, writes), ..Plan::default() }.execute(device)
}

/// The number of chunks that a volume with `blocks` metadata blocks should begin with, including those that a full
/// compaction leaves.
#[must_use]
pub fn first_chunks(layout: &Layout, blocks: usize) -> u32 {
    let needs = Needs { layout, records: 1, dirty_blocks: LEAST_DIRTY };
    let physical_blocks =
        needs.worst_case(blocks) + needs.physical_blocks_to_leave(Compaction::Full) + HEAD.end as usize;
    u32::try_from(physical_blocks.div_ceil(CHUNK_BLOCKS as usize)).unwrap_or(u32::MAX)
}
