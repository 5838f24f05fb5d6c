//! A native volume that is in use. Blocks that a snapshot pins do not change, so a snapshot created for the check
//! represents the volume at that moment: its map leads to the list of snapshots of that time, and its descriptors count
//! the blocks that those pinned. The snapshots in that list do not change either, unless a process deletes them while
//! the check runs.
//!
//! Only the superblocks are read in their current state. Creating a snapshot rewrites the older one, so they are also
//! read before.

use super::layer::{PhysicalLayer, Version, predicate};
use super::reader::Reader;
use super::{copies, read_listed};
use crate::render::escape;
use blockdev::BlockDevice;
use format::native::snapshots::{self, Snapshot};
use format::native::superblock::NativeSuperblock;
use std::time::Duration;

/// The number of attempts to find a snapshot on a device in use, with [`PAUSE`] in between.
const TRIES: u32 = 50;
/// The number of reads of a damaged superblock: it may be the one that is being written.
const LOOKS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(10);

/// The two superblocks of a volume in use, before a snapshot is created for the check.
#[derive(Debug, Clone, Default)]
pub struct Glance {
    damaged: Option<(u64, String)>,
}

impl Glance {
    /// Reads them.
    #[must_use]
    pub fn of(device: &dyn BlockDevice) -> Self {
        let mut damaged = None;
        for look in 0..LOOKS {
            if look > 0 {
                std::thread::sleep(PAUSE);
            }
            let blocks = copies::read(device);
            damaged = match NativeSuperblock::newest(&blocks) {
                Ok((superblock, at)) => copies::damage(device, &blocks, &superblock, at),
                Err(e) => Some((0, format!("({}: {e})", copies::NONE_LEFT))),
            };
            if damaged.is_none() {
                break;
            }
        }
        Self { damaged }
    }
}

/// The generation of a volume in use that is checked.
#[derive(Debug, Clone, Copy)]
pub struct InUse<'a> {
    /// The name of the snapshot that was created for it.
    pub snapshot: &'a [u8],
    /// The superblocks before it was created.
    pub before: &'a Glance,
    /// Whether the other snapshots are left out, as they may be deleted meanwhile.
    pub alone: bool,
}

/// Reads the physical layer of the generation and of the snapshots in its list, and nothing else: the device may be in
/// use.
///
/// # Errors
/// A sentence, where there is no such snapshot, or the list cannot be read.
pub(crate) fn read_in_use(device: &dyn BlockDevice, what: &InUse<'_>) -> Result<PhysicalLayer, String> {
    let (superblock, present) = list(device)?;
    let made = present.iter().find(|snapshot| snapshot.name == what.snapshot).ok_or("there is no such snapshot")?;
    let then = NativeSuperblock {
        root: made.root,
        generation: made.generation,
        chunks: made.chunks,
        map_log: Vec::new(),
        unordered: false,
        ..superblock
    };
    let wanted = |snapshot: &Snapshot| !what.alone && present.contains(snapshot);
    let below = read_listed(device, then, None, &wanted);
    let damaged = Glance::of(device).damaged;
    let healed = || {
        let (block, how) = what.before.damaged.clone()?;
        Some((block, format!("{how}. Creating the snapshot for this check overwrote it")))
    };
    Ok(PhysicalLayer { damaged: damaged.or_else(healed), ..below })
}

/// The checked snapshots that were deleted meanwhile: their unique blocks may have been reused, so the problems found
/// there are meaningless.
///
/// # Errors
/// A sentence, where the snapshot for the check was deleted as well, or the list cannot be read.
pub(crate) fn gone_of(
    device: &dyn BlockDevice,
    below: &PhysicalLayer,
    what: &InUse<'_>,
) -> Result<Vec<String>, String> {
    let (_, present) = list(device)?;
    let is_there = |version: &Version| present.iter().any(|snapshot| snapshot.root == version.root);
    if !is_there(&below.live) {
        return Err(format!("the snapshot {} was deleted while the check ran", escape(what.snapshot)));
    }
    Ok(below.snapshots.iter().filter(|version| !is_there(version)).filter_map(|version| version.name.clone()).collect())
}

/// The snapshots of the newest generation. The path to their list may be overwritten while it is read.
fn list(device: &dyn BlockDevice) -> Result<(NativeSuperblock, Vec<Snapshot>), String> {
    let mut why = String::new();
    for _ in 0..TRIES {
        match try_list(device) {
            Ok(found) => return Ok(found),
            Err(e) => why = e,
        }
        std::thread::sleep(PAUSE);
    }
    Err(why)
}

fn try_list(device: &dyn BlockDevice) -> Result<(NativeSuperblock, Vec<Snapshot>), String> {
    let blocks = copies::read(device);
    let (superblock, _) = NativeSuperblock::newest(&blocks).map_err(|e| e.to_string())?;
    let mut reader = Reader::new(device, &superblock);
    let live = Version::of_root(superblock.root);
    for block in 0..u64::from(superblock.snapshots).div_ceil(snapshots::RECORDS as u64) {
        reader.go_to(&live.root, superblock.layout.list().start + block);
    }
    let list = reader.list(&live, Some(superblock.snapshots));
    match reader.wrong.pop() {
        Some((physical, what)) => Err(format!("block {physical} of the device{}", predicate(&what))),
        // all checksums on the path were right, so the list belongs to this generation
        None => Ok((superblock, list)),
    }
}
