//! Copies of the superblock and of the group descriptors, rewritten from the primary ones.
//!
//! A primary superblock that describes no volume never replaces a copy, which may be the only record of the volume.

use super::work::{Work, read_superblock};
use crate::phases::superblock::geometry_of;
use crate::problem::Problem;
use crate::table::Code;
use blockdev::{BlockDevice, Overlay, Result};
use format::FsBlock;
use format::superblock::{DiskSuperblock, Geometry, OFFSET};
use zerocopy::IntoBytes;

/// Rewrites the copies in the problems.
pub(super) fn repair(work: &Work<'_>, problems: &[&Problem]) -> Result<()> {
    let superblock = work.superblock()?;
    let geometry = &work.volume().geometry;
    if work.volume().is_copy || geometry_of(&superblock).is_none() {
        return Ok(());
    }
    for problem in problems {
        let Some(group) = problem.group else { continue };
        match problem.code {
            Code::SuperblockCopyDiffers => {
                let block = geometry.superblock_block(group);
                if let Some(offset) = block.and_then(|block| geometry.byte_offset(block)) {
                    work.device.write(offset, superblock.copy_for(group).as_bytes())?;
                }
            }
            Code::DescriptorCopyDiffers => {
                let head = geometry.group_head(group);
                for n in 0..geometry.descriptor_blocks {
                    let copies = geometry.descriptor_block_backups(n).into_iter();
                    // descriptor blocks of meta groups have copies of their own, which are all written
                    let copies = copies.filter(|copy| n >= geometry.first_meta_group || head.contains(&copy.get()));
                    copy_block(work.device, geometry, geometry.descriptor_block(n), copies)?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Writes all copies of the superblock and of the descriptors, after a conversion of the volume.
pub(super) fn write_all(device: &Overlay, geometry: &Geometry) -> Result<()> {
    write_superblock(device, geometry)?;
    for n in 0..geometry.descriptor_blocks {
        copy_block(device, geometry, geometry.descriptor_block(n), geometry.descriptor_block_backups(n).into_iter())?;
    }
    Ok(())
}

/// Writes the copies of the superblock if its features or its identity differ from those on the device, so that the
/// copies describe the volume.
pub(super) fn refresh(overlay: &Overlay, device: &dyn BlockDevice, geometry: &Geometry) -> Result<()> {
    let after = read_superblock(overlay)?;
    let mut before: DiskSuperblock = zerocopy::FromZeros::new_zeroed();
    device.read(OFFSET, before.as_mut_bytes())?;
    if before.features() == after.features() && before.s_uuid == after.s_uuid {
        return Ok(());
    }
    write_superblock(overlay, geometry)
}

/// Writes all copies of the superblock that lie on the device.
fn write_superblock(device: &Overlay, geometry: &Geometry) -> Result<()> {
    let superblock = read_superblock(device)?;
    if geometry_of(&superblock).is_none() {
        return Ok(());
    }
    for group in geometry.backup_groups() {
        let place = geometry.superblock_block(group).and_then(|block| geometry.byte_offset(block));
        if let Some(offset) = place.filter(|offset| offset + DiskSuperblock::SIZE as u64 <= device.geometry().len) {
            device.write(offset, superblock.copy_for(group).as_bytes())?;
        }
    }
    Ok(())
}

/// Copies a block of the device to others.
fn copy_block(device: &Overlay, geometry: &Geometry, from: FsBlock, to: impl Iterator<Item = FsBlock>) -> Result<()> {
    let (size, end) = (u64::from(geometry.block_size), device.geometry().len);
    let on_device = |block| geometry.byte_offset(block).filter(|offset| offset + size <= end);
    let Some(offset) = on_device(from) else { return Ok(()) };
    let mut bytes = vec![0; size as usize];
    device.read(offset, &mut bytes)?;
    to.filter_map(on_device).try_for_each(|offset| device.write(offset, &bytes))
}
