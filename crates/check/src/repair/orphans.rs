//! Orphans: inodes that were deleted or truncated while open, which are freed or truncated now.

use super::inodes;
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

/// Releases the inodes in the orphan list and in the orphan file. Those that are to be truncated after the repair of
/// their map remain there until then.
pub(super) fn repair(work: &Work<'_>) -> Result<()> {
    let before = work.device.fingerprint();
    let volume = work.volume();
    let mut orphans = Orphans {
        work,
        invalid: inodes::with_invalid_map(&work.view.problems.to_vec()),
        seen: HashSet::new(),
        in_file: false,
    };
    let mut waiting = Vec::new();
    let mut next = volume.disk.s_last_orphan.get();
    while let Some(number) = ordinary(work, next).filter(|n| orphans.seen.insert(*n)) {
        let Some(inode) = work.inode(number)? else { break };
        next = inode.raw().disk.i_dtime.get();
        if !orphans.release(number)? {
            waiting.push(number);
        }
    }
    let next_ones = waiting.iter().skip(1).map(|next| next.get()).chain([0]);
    for (number, next) in waiting.iter().zip(next_ones) {
        work.edit_inode(*number, |inode| inode.disk_mut().i_dtime = next.into())?;
    }
    if volume.features.compat.contains(Compat::ORPHAN_FILE) {
        let file = InodeNo(volume.disk.s_orphan_file_inum.get());
        if let Some(file) = SystemInode::read(work.view.scanner, volume, file) {
            for n in 0..(file.size / u64::from(volume.geometry.block_size)).min(FILE_BLOCKS) {
                orphans.empty_block(&file, n)?;
            }
        }
    }
    work.edit_superblock(|sb| {
        sb.s_last_orphan = waiting.first().map_or(0, |first| first.get()).into();
        if !orphans.in_file {
            sb.s_feature_ro_compat = (sb.s_feature_ro_compat.get() & !RoCompat::ORPHAN_PRESENT.bits()).into();
        }
    })?;
    // where all of them wait, the repair of the maps follows
    if work.device.fingerprint() != before {
        work.make_stale();
    }
    Ok(())
}

fn ordinary(work: &Work<'_>, number: u32) -> Option<InodeNo> {
    let geometry = &work.volume().geometry;
    (geometry.first_inode..=geometry.inodes).contains(&number).then_some(InodeNo(number))
}

/// The state of a release.
struct Orphans<'a, 'w> {
    work: &'a Work<'w>,
    /// The inodes whose map has something invalid that is repaired later.
    invalid: HashSet<InodeNo>,
    seen: HashSet<InodeNo>,
    /// Whether an inode remains in the orphan file.
    in_file: bool,
}

impl Orphans<'_, '_> {
    /// Releases the inodes in a block of the orphan file and empties it, except for those that wait.
    fn empty_block(&mut self, file: &SystemInode, n: u64) -> Result<()> {
        let work = self.work;
        let (Some(place), Some(bytes)) = (file.block(n), file.read_block(work.view.scanner, work.volume(), n)) else {
            return Ok(());
        };
        let seed = work.volume().geometry.metadata_csum.then_some(file.seed);
        let Ok(block) = OrphanBlock::parse(&bytes, FsBlock(place), seed) else { return Ok(()) };
        let mut waiting = Vec::new();
        for orphan in block.orphans() {
            if let Some(number) = ordinary(work, orphan.get()).filter(|number| self.seen.insert(*number))
                && !self.release(number)?
            {
                waiting.push(number);
            }
        }
        let mut left = vec![0; work.block_size()];
        for (slot, number) in left.chunks_exact_mut(4).zip(&waiting) {
            slot.copy_from_slice(&number.get().to_le_bytes());
        }
        self.in_file |= !waiting.is_empty();
        let _ = orphan::set_checksum(&mut left, FsBlock(place), seed);
        // even where it has no inodes: without metadata_csum a stale checksum would be one more number
        if bytes == left { Ok(()) } else { work.put_block(place, &left) }
    }

    /// Frees an inode without names, or truncates one with names to its size. `false` where its map is repaired first, as
    /// blocks before the end could be lost.
    fn release(&self, number: InodeNo) -> Result<bool> {
        let work = self.work;
        let Some(mut inode) = work.inode(number)? else { return Ok(true) };
        let raw = inode.raw();
        if raw.is_zero() || raw.kind().is_none() && raw.disk.i_links_count.get() == 0 {
            return Ok(true);
        }
        if raw.disk.i_links_count.get() == 0 {
            inode.disk_mut().i_dtime = work.now32().into();
            work.put_inode(number, inode)?;
            return Ok(true);
        }
        let cut = raw.kind() == Some(FileKind::Regular) && !raw.flags().contains(InodeFlags::INLINE_DATA);
        let blocks = raw.size().div_ceil(u64::from(work.volume().geometry.block_size));
        inode.disk_mut().i_dtime = 0.into();
        if cut && maps::truncate(work, number, &mut inode, blocks)? {
            let clusters = occupied(work, number, &inode)?;
            work.set_sectors(&mut inode, clusters);
        } else if cut && self.invalid.contains(&number) {
            return Ok(false);
        }
        work.put_inode(number, inode)?;
        Ok(true)
    }
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
