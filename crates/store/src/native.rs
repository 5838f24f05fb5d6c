//! The native format on a device: the superblock in force, the map, and the volume as seen through it.
//!
//! [`Mapped`] is the ext4 volume above the map, as a device: its metadata blocks are read where the map says they lie, each
//! checked against the checksum in its entry; its file data lies in the device's own blocks. Metadata is written by the
//! engine alone ([`Snapshot`](crate::engine::Snapshot)), which gives changed blocks new places.

mod facts;
mod map;
mod mapped;
mod places;
mod snapshots;

pub use facts::Facts;
pub use mapped::Mapped;

pub use snapshots::List;

pub(crate) use map::{Late, Map, NodeName, above, first_below, leaf_of, node_over, slot_at};
pub(crate) use places::{Bits, Places, table, unite, worst_case};
pub(crate) use snapshots::{Shared, Snapshots};

use crate::Result;
use blockdev::BlockDevice;
use format::native::BLOCK_SIZE;
use format::native::superblock::{COPIES, NativeSuperblock};

/// Whether a device begins as a native volume does, sound or not.
///
/// # Errors
/// Those of the device.
pub fn is_native(device: &dyn BlockDevice) -> Result<bool> {
    let len = device.geometry().len;
    let mut found = false;
    for copy in 0..COPIES {
        let mut start = [0; 512];
        let at = copy * u64::from(BLOCK_SIZE);
        if at + start.len() as u64 <= len {
            device.read(at, &mut start)?;
            found |= NativeSuperblock::is_there(&start);
        }
    }
    Ok(found)
}

/// As [`superblock`], for whoever goes on from there: with the number that the next generation's must exceed.
pub(crate) fn superblock_to_go_on(device: &dyn BlockDevice) -> Result<(NativeSuperblock, u64)> {
    let blocks = both_superblocks(device)?;
    let (superblock, copy) = NativeSuperblock::newest(&blocks)?;
    Ok((NativeSuperblock { generation: superblock.last_tried(&blocks), ..superblock }, copy))
}

/// The superblock in force, and the block it lies in.
///
/// # Errors
/// Those of the device; [`Error::Format`](crate::Error::Format) where there is no whole one.
pub fn superblock(device: &dyn BlockDevice) -> Result<(NativeSuperblock, u64)> {
    Ok(NativeSuperblock::newest(&both_superblocks(device)?)?)
}

fn both_superblocks(device: &dyn BlockDevice) -> Result<Vec<u8>> {
    let mut blocks = vec![0; (COPIES * u64::from(BLOCK_SIZE)) as usize];
    let len = device.geometry().len.min(blocks.len() as u64) as usize;
    device.read(0, &mut blocks[..len])?;
    Ok(blocks)
}
