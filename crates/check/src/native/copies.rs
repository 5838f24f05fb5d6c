//! The two superblocks of a native volume: one is in force, the other is what is left when that is lost.

use super::layer::SIZE;
use blockdev::BlockDevice;
use format::native::map::Node;
use format::native::superblock::{COPIES, NativeSuperblock};

/// Why there is nothing to go on with where neither of them counts.
pub(super) const NONE_LEFT: &str = "both superblocks of the native volume are damaged, and it has no other copies";

/// The blocks that both lie in, each read by itself; one that cannot be read is zeros.
pub(super) fn read(device: &dyn BlockDevice) -> Vec<u8> {
    let mut blocks = vec![0; (COPIES * SIZE) as usize];
    for (at, block) in (0u64..).zip(blocks.chunks_mut(SIZE as usize)) {
        if device.read(at * SIZE, block).is_err() {
            block.fill(0);
        }
    }
    blocks
}

/// The superblock in force, and its block: the newest that counts, or the other one where only that leads to a map.
///
/// # Errors
/// Where none counts, what is wrong with the first.
pub(super) fn in_force(device: &dyn BlockDevice, blocks: &[u8]) -> format::Result<(NativeSuperblock, u64)> {
    let (newest, at) = NativeSuperblock::newest(blocks)?;
    if !leads_to_a_map(device, &newest) {
        let other = block_of(blocks, COPIES - 1 - at).map(NativeSuperblock::parse);
        if let Some(Ok(other)) = other.filter(|other| other.as_ref().is_ok_and(|other| leads_to_a_map(device, other))) {
            return Ok((other, COPIES - 1 - at));
        }
    }
    Ok((newest, at))
}

pub(super) fn block_of(blocks: &[u8], at: u64) -> Option<&[u8]> {
    blocks.chunks(SIZE as usize).nth(at as usize)
}

/// Whether the root of the map lies where a superblock says.
pub(super) fn leads_to_a_map(device: &dyn BlockDevice, superblock: &NativeSuperblock) -> bool {
    let (root, position) = (&superblock.root, superblock.root_position());
    let mut bytes = vec![0; SIZE as usize];
    device.read(root.physical * SIZE, &mut bytes).is_ok()
        && position.checksum(superblock.seed(), &bytes) == root.checksum
        && Node::parse(&bytes, superblock.layout.levels() - 1, &superblock.layout).is_ok()
}

/// The superblock of a later generation than the one in force, where what it was is known: all but the number in one of
/// its sectors is there, or it leads to a map when the volume's UUID and length are those of the one in force. With
/// words that say what it lacks.
pub(super) fn restored(
    device: &dyn BlockDevice,
    blocks: &[u8],
    in_force: &NativeSuperblock,
    at: u64,
) -> Option<(NativeSuperblock, String)> {
    let block = block_of(blocks, COPIES - 1 - at)?;
    let (found, lacks) = match NativeSuperblock::parse(block) {
        Ok(found) => (found, "the other one's UUID and number of blocks".to_owned()),
        Err(_) if in_force.may_be_torn(block) => return None,
        Err(_) => {
            let (found, sector) = NativeSuperblock::but_for_a_number(block)?;
            let lacks = format!("the number {} in its sector {sector}, as in all others", found.generation);
            (found, lacks)
        }
    };
    let found = NativeSuperblock { uuid: in_force.uuid, layout: in_force.layout, ..found };
    // its counts and entries are in the range of the other length, too
    let found = NativeSuperblock::parse(&found.to_bytes()).ok()?;
    (found.generation > in_force.generation && leads_to_a_map(device, &found)).then_some((found, lacks))
}

/// The damage to the superblock that is not in force, and its block. What a crash may leave of a write is no damage:
/// the next write goes over it.
pub(super) fn damage(
    device: &dyn BlockDevice,
    blocks: &[u8],
    in_force: &NativeSuperblock,
    at: u64,
) -> Option<(u64, String)> {
    let other = COPIES - 1 - at;
    let block = block_of(blocks, other)?;
    let generation = in_force.generation;
    let (error, number) = match NativeSuperblock::parse(block) {
        Ok(found) if found.generation > generation => {
            ("it leads to no map that can be read".to_owned(), Some(found.generation))
        }
        Ok(found) if (found.uuid, found.layout) != (in_force.uuid, in_force.layout) => {
            return Some((other, "it is that of another volume".to_owned()));
        }
        Ok(_) => return None,
        Err(_) if in_force.may_be_torn(block) => return None,
        Err(error) => (error.to_string(), in_force.number_of(block)),
    };
    let lost = match number {
        Some(number) if number > generation => {
            let back = restored(device, blocks, in_force, at)
                .map_or_else(String::new, |(_, lacks)| format!("; it would be whole with {lacks}"));
            format!("generation {number} is lost, the volume is as it was at generation {generation}{back}")
        }
        Some(number) => {
            format!("it was that of generation {number}; generation {generation} has no other to fall back on")
        }
        None => format!("whether a generation after {generation} is lost is unknown"),
    };
    Some((other, format!("{error}; {lost}")))
}
