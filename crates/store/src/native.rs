//! The native format on a device: the active superblock, the map, and the volume as seen through it.
//!
//! [`Mapped`] is the ext4 volume above the map, as a device: its metadata blocks are read from their physical blocks,
//! each verified against the checksum in its entry; its file data is in the device's own blocks. Metadata is written by
//! the engine alone ([`CopyOnWrite`](crate::engine::CopyOnWrite)), which writes changed blocks to new physical blocks.

mod chunk_table;
mod map;
mod mapped;
mod snapshots;
mod summary;

pub use mapped::Mapped;
pub use snapshots::{List, SnapshotChange};
pub use summary::Summary;

pub(crate) use chunk_table::{Bits, ChunkTable, Regions, table, unite, worst_case};
pub(crate) use map::{Map, MapLog, NodeName, above, first_below, leaf_of, node_over, slot_at};
pub(crate) use snapshots::{Shared, Snapshots};

use crate::Result;
use blockdev::BlockDevice;
use format::native::BLOCK_SIZE;
use format::native::superblock::{COPIES, LAST_TO_WRITE, NativeSuperblock};

/// Whether a device begins like a native volume, valid or not.
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
            // the remains of a damaged one count, too
            found |= NativeSuperblock::is_there(&block) || NativeSuperblock::was_there(&block);
        }
    }
    Ok(found)
}

/// As [`superblock`], for writing the next generation: also returns the number that its own must exceed.
///
/// # Errors
/// As [`superblock`]; [`Error::Native`](crate::Error::Native) if there are no numbers left, and for the reasons of
/// [`may_lack`].
pub(crate) fn superblock_to_go_on(device: &dyn BlockDevice) -> Result<(NativeSuperblock, u64)> {
    let blocks = both_superblocks(device)?;
    let (superblock, copy) = NativeSuperblock::newest(&blocks)?;
    if let Some(lacks) = lacks(&blocks, &superblock, copy) {
        return Err(crate::Error::Native(lacks));
    }
    let generation = superblock.last_tried(&blocks);
    if generation > LAST_TO_WRITE {
        return Err(crate::Error::Native("its generation number has reached the maximum"));
    }
    Ok((NativeSuperblock { generation, ..superblock }, copy))
}

/// The active superblock, and its block on the device.
///
/// # Errors
/// Those of the device; [`Error::Format`](crate::Error::Format) if neither superblock is intact.
pub fn superblock(device: &dyn BlockDevice) -> Result<(NativeSuperblock, u64)> {
    Ok(NativeSuperblock::newest(&both_superblocks(device)?)?)
}

/// The reason why the active superblock may lack durable changes: the other one is damaged in a way that no loss of
/// power explains, and was or may have been the newer one. `None` if all durable changes are there.
///
/// # Errors
/// As [`superblock`].
pub fn may_lack(device: &dyn BlockDevice) -> Result<Option<&'static str>> {
    let blocks = both_superblocks(device)?;
    let (superblock, copy) = NativeSuperblock::newest(&blocks)?;
    Ok(lacks(&blocks, &superblock, copy))
}

fn lacks(blocks: &[u8], in_force: &NativeSuperblock, copy: u64) -> Option<&'static str> {
    let other = blocks.chunks(BLOCK_SIZE as usize).nth((COPIES - 1 - copy) as usize)?;
    // an intact older one is the normal state after the last write; a torn write was never acknowledged
    if NativeSuperblock::parse(other).is_ok() || in_force.may_be_torn(other) {
        return None;
    }
    match in_force.number_of(other) {
        Some(number) if number > in_force.generation => Some(
            "the superblock of a newer generation is damaged, so its changes are missing; run `extant check -fp` to repair it",
        ),
        // the next generation overwrites it, and nothing is missing
        Some(_) => None,
        None => Some("one of its superblocks is damaged and may be the newer one; run `extant check -fp` to repair it"),
    }
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
    use format::native::Layout;
    use format::native::map::{BlockKind, Entry};
    use format::native::superblock::LAST_GENERATION;

    fn with(generation: u64) -> NativeSuperblock {
        let root = Entry { physical: 77, generation: 1, kind: BlockKind::MapNode, owner: 0, checksum: 0 };
        NativeSuperblock {
            layout: Layout::new(1 << 16).expect("a layout"),
            uuid: [7; 16],
            generation,
            unordered: false,
            reserved: true,
            root,
            chunks: 1,
            snapshots: 0,
            map_log: Vec::new(),
        }
    }

    /// The other superblock proves that nothing is missing only if its state can be left by a crash.
    #[test]
    fn no_one_goes_on_from_an_older_superblock_unless_a_crash_explains_it() {
        let goes_on = |other: &[u8], what: &str| {
            for first in [true, false] {
                let current = with(8).to_bytes();
                let both = if first { [&current, other] } else { [other, &current] }.concat();
                let device = MemoryDevice::from_vec(both);
                let (found, _) = superblock(&device).expect("a superblock");
                if found.generation != 8 {
                    assert!(superblock_to_go_on(&device).is_ok(), "{what}");
                    continue;
                }
                let outcome = superblock_to_go_on(&device);
                assert_eq!(outcome.is_ok(), may_lack(&device).expect("memory").is_none(), "{what}");
                if let Err(e) = &outcome {
                    assert!(e.to_string().contains("extant check"), "{what}: {e}");
                }
                if !first {
                    return outcome.is_ok();
                }
            }
            true
        };
        let (before, next) = (with(7).to_bytes(), with(9).to_bytes());
        for sectors in 0..256u32 {
            let mut torn = before.clone();
            for n in (0..8).filter(|n| sectors & 1 << n != 0) {
                torn[n * 512..][..512].copy_from_slice(&next[n * 512..][..512]);
            }
            assert!(goes_on(&torn, "torn"), "{sectors:b}");
        }
        for n in 0..8 {
            for number in [0u64, 1, 8, 11, 9 + (1 << 40), u64::MAX] {
                let mut wrong = next.clone();
                wrong[n * 512 + 504..][..8].copy_from_slice(&number.to_le_bytes());
                assert!(!goes_on(&wrong, "a number"), "{number} in sector {n}");
            }
            let mut wrong = next.clone();
            wrong[n * 512 + 90] ^= 1;
            assert!(!goes_on(&wrong, "a byte"), "in sector {n}");
            // the older one: nothing is missing
            let mut older = before.clone();
            older[n * 512 + 90] ^= 1;
            assert!(goes_on(&older, "the older one"), "in sector {n}");
        }
        // nothing shows which one it was
        assert!(!goes_on(&[0; 4096], "zeros") && !goes_on(&[0xA5; 4096], "anything"));
    }

    #[test]
    fn without_a_number_for_the_next_generation_no_one_goes_on() {
        let numbers = [(9, true), (LAST_TO_WRITE, true), (LAST_TO_WRITE + 1, false), (LAST_GENERATION, false)];
        for (number, goes_on) in numbers {
            // together with the older one, as usual
            let bytes = [with(number), with(number - 1)].map(|sb| sb.to_bytes()).concat();
            let device = MemoryDevice::from_vec(bytes);
            assert!(superblock(&device).is_ok());
            assert_eq!(superblock_to_go_on(&device).is_ok(), goes_on, "{number}");
        }
    }
}
