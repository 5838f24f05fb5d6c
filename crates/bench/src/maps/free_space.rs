//! The distribution of free space.

use super::figures::Free;
use super::work::LARGE;
use crate::Result;
use crate::error::failed;
use blockdev::BlockDevice;
use fs::{GroupNo, OpenOptions, Volume};
use std::ops::Range;
use std::sync::Arc;

/// The distribution of free space on the volume of a device.
///
/// # Errors
/// [`Error::Failed`](crate::Error::Failed) if the volume cannot be read.
pub(super) fn of(device: Arc<dyn BlockDevice>, layout: &'static str) -> Result<Free> {
    let volume = Volume::open(device, &OpenOptions::default()).map_err(failed)?;
    let stored = volume.stored_free_space().map_err(failed)?;
    let geometry = &volume.superblock().geometry;
    let block = u64::from(geometry.block_size);
    let mut extents: Vec<Range<u64>> = Vec::new();
    for group in stored.groups() {
        for run in stored.of_group(GroupNo(group)).map_err(failed)? {
            match extents.last_mut() {
                Some(last) if last.end == run.start => last.end = run.end,
                _ => extents.push(run),
            }
        }
    }
    let bytes = |extent: &Range<u64>| (extent.end - extent.start) * block;
    let free: u64 = extents.iter().map(bytes).sum();
    let large: u64 = extents.iter().map(bytes).filter(|bytes| *bytes >= LARGE).sum();
    let all = geometry.blocks * block;
    Ok(Free {
        layout,
        fill: 1.0 - free as f64 / all as f64,
        extents: extents.len() as u64,
        in_large: large as f64 / free.max(1) as f64,
        largest: extents.iter().map(bytes).max().unwrap_or(0),
    })
}
