//! Attribute values in inodes of their own: their size, and the blocks up to it.

use super::maps;
use super::work::Work;
use crate::phases::inodes::has_no_map;
use blockdev::Result;
use format::InodeNo;
use format::xattr::{VALUE_MAX, inode_value_hash};

/// Sets size and map of an inode to those of the value in it, whose size is `stated` in its entry, and returns the
/// size; `None` where neither size is possible.
///
/// The size is right with which the blocks, in their order, have the hash in the inode. Where neither has it the value
/// itself is damaged, and the size that matches the number of blocks is used. A value has no holes: its blocks are
/// moved to where they belong, unless some are missing.
pub(super) fn fit(work: &Work<'_>, number: InodeNo, stated: u32) -> Result<Option<u32>> {
    let Some(mut inode) = work.inode(number)? else { return Ok(None) };
    let (blocks, nodes) = maps::dense_in(work, number, &inode, 1)?;
    let own = u32::try_from(inode.raw().size()).unwrap_or(u32::MAX);
    let sizes: Vec<u32> = [own, stated].into_iter().filter(|size| (1..=VALUE_MAX).contains(size)).collect();
    let count = |size: u32| (size as usize).div_ceil(work.block_size());
    let mut right = None;
    for size in &sizes {
        if right.is_none()
            && let Some(blocks) = blocks.get(..count(*size))
            && hash(work, blocks, *size)? == Some(inode.raw().disk.i_atime.get())
        {
            right = Some(size);
        }
    }
    let right = right.or(sizes.iter().find(|size| count(**size) == blocks.len())).or(sizes.first());
    let Some(size) = right.copied() else { return Ok(None) };
    inode.set_size(size.into());
    let written = match blocks.get(..count(size)) {
        _ if has_no_map(&inode.raw()) => true,
        Some(blocks) => maps::write_dense(work, number, &mut inode, blocks, &maps::exclusive(work, &nodes), 0)?,
        None => maps::truncate(work, number, &mut inode, count(size) as u64)?,
    };
    if written {
        work.put_inode(number, inode)?;
    }
    Ok(Some(size))
}

/// The hash of the first `size` bytes of these blocks, where they can be read.
fn hash(work: &Work<'_>, blocks: &[u64], size: u32) -> Result<Option<u32>> {
    let mut value = Vec::new();
    for block in blocks {
        let Some(bytes) = work.block(*block)? else { return Ok(None) };
        value.extend_from_slice(&bytes);
    }
    value.truncate(size as usize);
    Ok(Some(inode_value_hash(&value, work.volume().geometry.checksum_seed)))
}
