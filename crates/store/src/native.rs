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
pub(crate) use places::{Bits, Places, Regions, table, unite, worst_case};
pub(crate) use snapshots::{Shared, Snapshots};

use crate::Result;
use blockdev::BlockDevice;
use format::native::BLOCK_SIZE;
use format::native::superblock::{COPIES, LAST_GENERATION, NativeSuperblock};

/// Whether a device begins as a native volume does, sound or not.
///
/// # Errors
/// Those of the device.
pub fn is_native(device: &dyn BlockDevice) -> Result<bool> {
    let len = device.geometry().len;
    let mut found = false;
    for copy in 0..COPIES {
        let mut block = vec![0; BLOCK_SIZE as usize];
        let at = copy * u64::from(BLOCK_SIZE);
        if at + block.len() as u64 <= len {
            device.read(at, &mut block)?;
            // what is left of a damaged one says so too
            found |= NativeSuperblock::is_there(&block) || NativeSuperblock::was_there(&block);
        }
    }
    Ok(found)
}

/// As [`superblock`], for whoever goes on from there: with the number that the next generation's must exceed.
///
/// # Errors
/// As [`superblock`]; [`Error::Native`](crate::Error::Native) where there are no numbers left.
pub(crate) fn superblock_to_go_on(device: &dyn BlockDevice) -> Result<(NativeSuperblock, u64)> {
    let blocks = both_superblocks(device)?;
    let (superblock, copy) = NativeSuperblock::newest(&blocks)?;
    let generation = superblock.last_tried(&blocks);
    if generation > LAST_GENERATION {
        return Err(crate::Error::Native("the number of its generation is too high for another one"));
    }
    Ok((NativeSuperblock { generation, ..superblock }, copy))
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

#[cfg(test)]
mod tests {
    use super::*;
    use blockdev::MemoryDevice;
    use format::native::Shape;
    use format::native::map::{BlockKind, Entry};

    #[test]
    fn without_a_number_for_the_next_generation_nobody_goes_on() {
        let shape = Shape::new(1 << 16).expect("a shape");
        let root = Entry { place: 77, generation: 1, kind: BlockKind::MapNode, owner: 0, checksum: 0 };
        let with = |generation| NativeSuperblock {
            shape,
            uuid: [7; 16],
            generation,
            unordered: false,
            reserved: true,
            root,
            chunks: 1,
            snapshots: 0,
            late: Vec::new(),
        };
        for (number, goes_on) in [(9, true), (LAST_GENERATION, true), (LAST_GENERATION + 1, false), (u64::MAX, false)] {
            let mut bytes = with(number).to_bytes();
            bytes.resize((COPIES * u64::from(BLOCK_SIZE)) as usize, 0);
            let device = MemoryDevice::from_vec(bytes);
            assert!(superblock(&device).is_ok());
            assert_eq!(superblock_to_go_on(&device).is_ok(), goes_on, "{number}");
        }
    }
}
