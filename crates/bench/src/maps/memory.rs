//! Memory of free space.
//!
//! It is computed from the sizes of the structures, not measured as resident memory of the process: that also contains
//! the cache of metadata and what allocations of earlier work left behind, and differs from run to run.

use super::disk::{Disk, LARGE_BLOCK, VolumeSize};
use super::figures::{Memory, Options};
use super::work::Job;
use crate::Result;
use crate::error::failed;
use fs::{AllocateMode, InodeNo};

/// The free space of the volume that is opened with holes.
pub(super) const WITH_HOLES: &str = "2 000 holes in each 8 GiB";
/// The worst case for extents.
const EVERY_SECOND: &str = "every second block";
/// Length of the volume for that in lengths of the others, as a divisor: each free block is an operation.
const SMALLER: u64 = 8;
/// Bytes of the smallest such volume: a group.
const LEAST: u64 = 128 << 20;

/// The memory of a volume's free space.
///
/// # Errors
/// Those of the volume.
pub(super) fn of(disk: &Disk, layout: &'static str, state: &'static str) -> Result<Memory> {
    let volume = disk.open()?;
    let memory = volume.free_space_memory().map_err(failed)?;
    let geometry = &volume.superblock().geometry;
    let (size, groups) = (geometry.blocks * u64::from(geometry.block_size), geometry.groups);
    volume.unmount().map_err(failed)?;
    Ok(Memory {
        layout,
        state,
        size,
        groups,
        tables: memory.tables,
        sets: memory.groups,
        trees: memory.record,
        total: memory.total(),
        of_bitmaps: 0.0,
    })
}

/// As [`of`], for a volume with every second block free.
///
/// # Errors
/// Those of the volume.
pub(super) fn every_second(options: &Options, layout: &'static str) -> Result<Memory> {
    let size = (options.size / SMALLER).max(LEAST);
    Disk::with(options, VolumeSize { size, block_size: LARGE_BLOCK }, layout, |disk| {
        punch(disk)?;
        of(disk, layout, EVERY_SECOND)
    })
}

/// Fills the volume with a file, and frees every second block of it.
fn punch(disk: &Disk) -> Result<()> {
    let volume = disk.open()?;
    let block = u64::from(LARGE_BLOCK);
    // the file's extents need blocks, too
    let blocks = volume.statfs().blocks_available / 20 * 19;
    let mut job = Job::new(&volume);
    let file = job.file_in_pieces(&InodeNo::ROOT, "full", blocks * block)?;
    for n in (0..blocks).step_by(2) {
        volume.allocate(file, AllocateMode::PunchHole, n * block, block).map_err(failed)?;
        job.add_work(1, 0)?;
    }
    volume.unmount().map_err(failed)
}
