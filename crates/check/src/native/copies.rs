//! The two superblocks of a native volume: one is active, the other the fallback.

use super::layer::{SIZE, Version};
use super::reader::Reader;
use blockdev::BlockDevice;
use format::native::map::Node;
use format::native::superblock::{COPIES, NativeSuperblock};

/// The error where neither of them is valid.
pub(super) const NONE_LEFT: &str = "both superblocks of the native volume are damaged, and it has no other copies";

/// The words for a superblock whose content can be reconstructed, and for one that was.
pub(super) const COMPLETE: &str = "and can be completed with";
pub(super) const COMPLETED: &str = "and was completed with";

/// The blocks of both superblocks, each read individually; zeros for one that cannot be read.
pub(super) fn read(device: &dyn BlockDevice) -> Vec<u8> {
    let mut blocks = vec![0; (COPIES * SIZE) as usize];
    for (at, block) in (0u64..).zip(blocks.chunks_mut(SIZE as usize)) {
        if device.read(at * SIZE, block).is_err() {
            block.fill(0);
        }
    }
    blocks
}

/// The active superblock and its block: the newest valid one, or the other one where only that leads to a map.
///
/// # Errors
/// The problem of the first one, where neither is valid.
pub(super) fn active(device: &dyn BlockDevice, blocks: &[u8]) -> format::Result<(NativeSuperblock, u64)> {
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

/// Whether a superblock points to a valid root of the map.
pub(super) fn leads_to_a_map(device: &dyn BlockDevice, superblock: &NativeSuperblock) -> bool {
    let (root, position) = (&superblock.root, superblock.root_position());
    let mut bytes = vec![0; SIZE as usize];
    device.read(root.physical * SIZE, &mut bytes).is_ok()
        && position.checksum(superblock.seed(), &bytes) == root.checksum
        && Node::parse(&bytes, superblock.layout.levels() - 1, &superblock.layout).is_ok()
}

/// A superblock with the number of records in its list of snapshots, where it has another one. `None` where the list
/// cannot be read, and on a volume in use without write order, whose list may be newer.
pub(super) fn recounted(device: &dyn BlockDevice, superblock: &NativeSuperblock) -> Option<NativeSuperblock> {
    if superblock.unordered {
        return None;
    }
    let mut reader = Reader::new(device, superblock);
    let map_log = superblock.map_log.iter().copied().collect();
    let live = Version { map_log, ..Version::of_root(superblock.root) };
    for index in superblock.layout.list() {
        reader.go_to(&live.root, index);
        if !reader.wrong.is_empty() {
            return None;
        }
    }
    let (_, records) = reader.records(&live);
    let snapshots = u32::try_from(records?).ok()?;
    let differs = snapshots != superblock.snapshots && reader.wrong.is_empty();
    differs.then(|| NativeSuperblock { snapshots, ..superblock.clone() })
}

/// The description of a superblock whose number of snapshots is wrong, as the end of a sentence.
pub(super) fn miscount(superblock: &NativeSuperblock, recounted: &NativeSuperblock) -> String {
    let NativeSuperblock { generation, snapshots, .. } = superblock;
    let number = recounted.snapshots;
    format!(
        "(its number of snapshots is {snapshots}, should be {number}). It contained generation {generation}, \
         {COMPLETE} the number in the list of snapshots"
    )
}

/// The superblock of a later generation than the active one, where its content can be reconstructed: only the number in
/// one of its sectors is missing, a number is above its maximum, or it leads to a map with the UUID and length of the
/// active one. Returned with a description of the missing part.
pub(super) fn restored(
    device: &dyn BlockDevice,
    blocks: &[u8],
    active: &NativeSuperblock,
    at: u64,
) -> Option<(NativeSuperblock, String)> {
    let block = block_of(blocks, COPIES - 1 - at)?;
    let (found, lacks) = match NativeSuperblock::parse(block) {
        Ok(found) => (found, "the other one's UUID and number of blocks".to_owned()),
        Err(_) => match NativeSuperblock::but_for_a_number(block) {
            Some((found, sector)) => {
                let lacks = format!("the number {} in its sector {sector}, as in all others", found.generation);
                (found, lacks)
            }
            None => (NativeSuperblock::but_for_a_maximum(block)?, "the numbers in its map and snapshots".to_owned()),
        },
    };
    let found = NativeSuperblock { uuid: active.uuid, layout: active.layout, ..found };
    // parsed again, as its counts and entries must be in range for the other length, too
    let found = NativeSuperblock::parse(&found.to_bytes()).ok()?;
    if found.generation <= active.generation || !leads_to_a_map(device, &found) {
        return None;
    }
    Some((recounted(device, &found).unwrap_or(found), lacks))
}

/// The superblock of a later generation, complete but for the number in one of its sectors: the result of a torn write,
/// which was not reported as durable, so the other one counts. Returned with its block.
pub(super) fn torn(blocks: &[u8], active: &NativeSuperblock, at: u64) -> Option<(u64, u64)> {
    let other = COPIES - 1 - at;
    let block = block_of(blocks, other).filter(|block| active.may_be_torn(block))?;
    let (found, _) = NativeSuperblock::but_for_a_number(block)?;
    (found.generation > active.generation).then_some((other, found.generation))
}

/// The damage to the inactive superblock as the end of a sentence, and its block. A write torn by a crash is not damage:
/// the next write replaces it.
pub(super) fn damage(
    device: &dyn BlockDevice,
    blocks: &[u8],
    active: &NativeSuperblock,
    at: u64,
) -> Option<(u64, String)> {
    let other = COPIES - 1 - at;
    let block = block_of(blocks, other)?;
    let generation = active.generation;
    let (error, number) = match NativeSuperblock::parse(block) {
        Ok(found) if found.generation > generation => {
            ("it refers to no map that can be read".to_owned(), Some(found.generation))
        }
        Ok(found) if (found.uuid, found.layout) != (active.uuid, active.layout) => {
            return Some((other, "(it belongs to another volume)".to_owned()));
        }
        Ok(_) => return None,
        Err(_) if active.may_be_torn(block) => return None,
        Err(format::Error::Corrupt { what, .. }) => (what.to_owned(), active.number_of(block)),
        Err(error) => (error.to_string(), active.number_of(block)),
    };
    let lost = match (restored(device, blocks, active, at), number) {
        (Some((found, lacks)), _) => format!("It contained generation {}, {COMPLETE} {lacks}", found.generation),
        (None, Some(number)) if number > generation => {
            format!("It contained a newer generation: generation {number} is lost, the volume is at {generation}")
        }
        (None, Some(number)) => {
            format!("It contained generation {number}, so generation {generation} has no spare copy")
        }
        (None, None) => format!("Changes newer than generation {generation} may be lost"),
    };
    Some((other, format!("({error}). {lost}")))
}
