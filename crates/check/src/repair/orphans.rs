//! Orphans: inodes that were deleted or truncated while open, which are freed or truncated now.

use super::maps;
use super::work::Work;
use crate::system_inode::SystemInode;
use blockdev::Result;
use format::feature::{Compat, RoCompat};
use format::inode::{FileKind, InodeFlags};
use format::orphan::{self, OrphanBlock};
use format::{FsBlock, InodeNo};
use std::collections::HashSet;

/// Maximum number of blocks of an orphan file that are read.
const FILE_BLOCKS: u64 = 1 << 16;

/// Releases the inodes in the orphan list and in the orphan file, and empties both.
pub(super) fn repair(work: &Work<'_>) -> Result<()> {
    work.make_stale();
    let mut seen = HashSet::new();
    let mut next = work.volume().disk.s_last_orphan.get();
    while let Some(number) = ordinary(work, next).filter(|n| seen.insert(*n)) {
        let Some(inode) = work.inode(number)? else { break };
        next = inode.raw().disk.i_dtime.get();
        release(work, number)?;
    }
    let volume = work.volume();
    if volume.features.compat.contains(Compat::ORPHAN_FILE) {
        let file = InodeNo(volume.disk.s_orphan_file_inum.get());
        if let Some(file) = SystemInode::read(work.view.scanner, volume, file) {
            for n in 0..(file.size / u64::from(volume.geometry.block_size)).min(FILE_BLOCKS) {
                empty_block(work, &file, n, &mut seen)?;
            }
        }
    }
    work.edit_superblock(|sb| {
        sb.s_last_orphan = 0.into();
        sb.s_feature_ro_compat = (sb.s_feature_ro_compat.get() & !RoCompat::ORPHAN_PRESENT.bits()).into();
    })
}

fn ordinary(work: &Work<'_>, number: u32) -> Option<InodeNo> {
    let geometry = &work.volume().geometry;
    (geometry.first_inode..=geometry.inodes).contains(&number).then_some(InodeNo(number))
}

/// Releases the inodes in a block of the orphan file and empties it.
fn empty_block(work: &Work<'_>, file: &SystemInode, n: u64, seen: &mut HashSet<InodeNo>) -> Result<()> {
    let (Some(place), Some(bytes)) = (file.block(n), file.read_block(work.view.scanner, work.volume(), n)) else {
        return Ok(());
    };
    let seed = work.volume().geometry.metadata_csum.then_some(file.seed);
    let Ok(block) = OrphanBlock::parse(&bytes, FsBlock(place), seed) else { return Ok(()) };
    let orphans: Vec<InodeNo> = block.orphans().collect();
    for orphan in orphans {
        if let Some(number) = ordinary(work, orphan.get()).filter(|number| seen.insert(*number)) {
            release(work, number)?;
        }
    }
    let mut blank = vec![0; work.block_size()];
    let _ = orphan::set_checksum(&mut blank, FsBlock(place), seed);
    // even where it has no inodes: without metadata_csum a stale checksum would be one more number
    if bytes == blank { Ok(()) } else { work.put_block(place, &blank) }
}

/// Frees an inode without names, or truncates one with names to its size.
fn release(work: &Work<'_>, number: InodeNo) -> Result<()> {
    let Some(mut inode) = work.inode(number)? else { return Ok(()) };
    let raw = inode.raw();
    if raw.is_zero() || raw.kind().is_none() && raw.disk.i_links_count.get() == 0 {
        return Ok(());
    }
    if raw.disk.i_links_count.get() == 0 {
        inode.disk_mut().i_dtime = work.now32().into();
        return work.put_inode(number, inode);
    }
    let cut = raw.kind() == Some(FileKind::Regular) && !raw.flags().contains(InodeFlags::INLINE_DATA);
    let blocks = raw.size().div_ceil(u64::from(work.volume().geometry.block_size));
    inode.disk_mut().i_dtime = 0.into();
    if cut && maps::truncate(work, number, &mut inode, blocks)? {
        let clusters = occupied(work, number, &inode)?;
        work.set_sectors(&mut inode, clusters);
    }
    work.put_inode(number, inode)
}

/// The sectors that a file occupies, attributes included.
fn occupied(work: &Work<'_>, number: InodeNo, inode: &format::inode::InodeBuf) -> Result<u64> {
    let (blocks, nodes) = maps::dense(work, number, inode)?;
    let ratio = u64::from(work.volume().geometry.cluster_blocks);
    let mut clusters: HashSet<u64> = blocks.iter().map(|b| b / ratio).collect();
    clusters.extend(nodes.iter().map(|b| b / ratio));
    let attributes = u64::from(inode.raw().file_acl(true).get() != 0);
    Ok((clusters.len() as u64 + attributes) * work.sectors(1))
}
