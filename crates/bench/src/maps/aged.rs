//! Large files on an aged volume.

use super::disk::{Disk, VolumeSize};
use super::figures::{Aged, Options};
use super::work::{BLOCK, Job, Plan};
use crate::Result;
use crate::age::{self, LARGEST};
use crate::error::failed;
use fs::{FileBlock, InodeNo, Mapping, Volume};

/// Bytes of the volume and of a file, at the paper's size.
const VOLUME: u64 = 10 << 30;
const LARGE_FILE: u64 = 1 << 30;
/// Bytes of the smallest volume: with less, journal and inode tables are a large part of it.
const LEAST: u64 = 64 << 20;
/// Large files, written one after the other.
const FILES: u64 = 2;
/// Fraction of the blocks in use before them; with them it is about nine tenths.
const FILL: f64 = 0.7;
/// Operations in each directory after the volume was filled.
const AGEING_ROUNDS: u32 = 20;

/// Ages a volume, and writes large files to it.
///
/// # Errors
/// Those of the volume.
pub(super) fn measure(options: &Options, layout: &'static str) -> Result<Aged> {
    let scale = Plan::of(options).scale;
    let size = ((VOLUME as f64 * scale) as u64).max(LEAST).next_multiple_of(BLOCK.into());
    let file_bytes = size / (VOLUME / LARGE_FILE);
    Disk::with(options, VolumeSize { size, block_size: BLOCK }, layout, |disk| {
        let volume = disk.open()?;
        let how = age::Options { seed: options.seed, fill: FILL, rounds: AGEING_ROUNDS, largest: LARGEST };
        let fill = age::age(&volume, &how, &mut |_, _| true)?.fill;
        volume.unmount().map_err(failed)?;
        // as after the ageing of years: nothing of the volume is in memory
        let volume = disk.open()?;
        let mut job = Job::new(&volume);
        let mut all = 0;
        for n in 0..FILES {
            let file = job.file_in_pieces(&InodeNo::ROOT, &format!("large{n}"), file_bytes)?;
            all += fragments(&volume, file).map_err(failed)?;
        }
        volume.unmount().map_err(failed)?;
        let fragments = all as f64 / FILES as f64;
        Ok(Aged { layout, size, fill, files: FILES, file_bytes, fragments, of_bitmaps: 0.0 })
    })
}

/// The number of contiguous runs of blocks of a file.
fn fragments(volume: &Volume, file: InodeNo) -> fs::Result<u64> {
    let inode = volume.inode(file)?;
    let end = inode.size.div_ceil(volume.superblock().geometry.block_size.into());
    let (mut at, mut count, mut next) = (0, 0, None);
    while at < end {
        let run = volume.map(&inode, FileBlock(at))?;
        if let Mapping::Data(block) | Mapping::Unwritten(block) = run.mapping {
            count += u64::from(next != Some(block.get()));
            next = Some(block.get() + run.len);
        }
        at = run.end().get();
    }
    Ok(count)
}
