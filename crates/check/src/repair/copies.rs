//! Copies of the superblock and of the group descriptors, written anew from the primary ones.

use super::work::Work;
use crate::problem::Problem;
use crate::table::Code;
use blockdev::{BlockDevice, Result};
use format::FsBlock;
use zerocopy::IntoBytes;

/// Writes the copies that the problems name.
pub(super) fn repair(work: &Work<'_>, problems: &[&Problem]) -> Result<()> {
    let superblock = work.superblock()?;
    let geometry = &work.volume().geometry;
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
                    // blocks of meta groups have copies of their own, which are all written
                    let copies = copies.filter(|copy| n >= geometry.first_meta_group || head.contains(&copy.get()));
                    copy_block(work, geometry.descriptor_block(n), copies)?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Writes a block of the device over others.
fn copy_block(work: &Work<'_>, from: FsBlock, to: impl Iterator<Item = FsBlock>) -> Result<()> {
    let Some(offset) = work.volume().offset(from.get()) else { return Ok(()) };
    let mut bytes = vec![0; work.block_size()];
    work.device.read(offset, &mut bytes)?;
    for block in to {
        work.put_block(block.get(), &bytes)?;
    }
    Ok(())
}
