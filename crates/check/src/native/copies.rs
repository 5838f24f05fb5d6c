//! The two superblocks of a native volume: one is in force, the other is what is left when that is lost.

use super::SIZE;
use blockdev::BlockDevice;
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

/// What is wrong with the superblock that is not in force, and its block. What a crash may leave of a write is not wrong: the
/// next write goes over it.
pub(super) fn damage(blocks: &[u8], in_force: &NativeSuperblock, at: u64) -> Option<(u64, String)> {
    let (other, block) = (0..).zip(blocks.chunks(SIZE as usize)).find(|(n, _)| *n != at)?;
    let error = match NativeSuperblock::parse(block) {
        Ok(found) if (found.uuid, found.shape) != (in_force.uuid, in_force.shape) => {
            return Some((other, "it is that of another volume".to_owned()));
        }
        Ok(_) => return None,
        Err(error) => error,
    };
    if in_force.may_be_torn(block) {
        return None;
    }
    let generation = in_force.generation;
    let lost = match in_force.number_of(block) {
        Some(number) if number > generation => {
            format!("generation {number} is lost, the volume is as it was at generation {generation}")
        }
        Some(number) => {
            format!("it was that of generation {number}; generation {generation} has no other to fall back on")
        }
        None => format!("whether a generation after {generation} is lost cannot be told"),
    };
    Some((other, format!("{error}; {lost}")))
}
