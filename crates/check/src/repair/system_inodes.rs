//! System inodes and blocks besides the journal: resize inode, multiple-mount protection, orphan file.

use super::maps;
use super::work::Work;
use crate::problem::Problem;
use crate::system_inode::SystemInode;
use crate::table::Code;
use blockdev::Result;
use format::feature::{Compat, RoCompat};
use format::inode::Timestamp;
use format::mmp::DiskMmp;
use format::orphan;
use format::{FsBlock, InodeNo};
use zerocopy::IntoBytes;

/// The index in `i_block` of the doubly indirect block.
const DOUBLE: usize = 13;

/// Repairs the system inodes and blocks with problems.
pub(super) fn repair(work: &Work<'_>, problems: &[&Problem]) -> Result<()> {
    // blocks that files share with the resize inode are not overwritten until they are cloned
    let waits = problems.iter().any(|p| p.code == Code::ResizeInodeBad) && !is_growth_free(work);
    if waits && problems.len() == 1 && work.inode(InodeNo::RESIZE)?.is_none_or(|inode| inode.raw().is_zero()) {
        return Ok(());
    }
    work.make_stale();
    let clear_present = || {
        work.edit_superblock(|sb| {
            sb.s_feature_ro_compat = (sb.s_feature_ro_compat.get() & !RoCompat::ORPHAN_PRESENT.bits()).into();
        })
    };
    for problem in problems {
        match problem.code {
            Code::ResizeInodeBad if waits => work.wipe_inode(InodeNo::RESIZE)?,
            Code::ResizeInodeBad => make_resize_inode(work)?,
            Code::ResizeInodeNotClear => work.wipe_inode(InodeNo::RESIZE)?,
            Code::MmpBlockOutOfRange | Code::MmpMagicWrong | Code::MmpChecksumWrong => make_mmp(work, problem.code)?,
            Code::OrphanPresentButFileClean | Code::OrphanPresentWithoutFile => clear_present()?,
            Code::OrphanFileMagicWrong | Code::OrphanFileChecksumWrong => renew_orphan_file(work)?,
            Code::OrphanFileHole
            | Code::OrphanFileSizeWrong
            | Code::OrphanFileInodeBad
            | Code::OrphanFileWithoutJournal => drop_orphan_file(work)?,
            _ => {}
        }
    }
    Ok(())
}

/// Whether only the resize inode claims the descriptor blocks reserved for growth in the first group, as far as owners
/// are known.
fn is_growth_free(work: &Work<'_>) -> bool {
    let geometry = &work.volume().geometry;
    let first = geometry.descriptor_block(0).get() + u64::from(geometry.descriptor_blocks);
    let reserved: Vec<u64> = (first..first + u64::from(geometry.reserved_descriptor_blocks)).collect();
    work.walk().is_none() || maps::exclusive(work, &reserved).len() == reserved.len()
}

/// Recreates the resize inode: its doubly indirect block lists the descriptor blocks reserved for growth, in a ring
/// that begins with the table's length, and each of these lists its copies.
pub(super) fn make_resize_inode(work: &Work<'_>) -> Result<()> {
    work.make_stale();
    let geometry = &work.volume().geometry;
    let reserved = u64::from(geometry.reserved_descriptor_blocks);
    if !work.volume().features.compat.contains(Compat::RESIZE_INODE) || reserved == 0 {
        return work.wipe_inode(InodeNo::RESIZE);
    }
    // without its present map, which may be wrong, there may be space
    let Some(double) = work.allocate() else { return work.wipe_inode(InodeNo::RESIZE) };
    let per_block = geometry.indirect().per_block();
    let first = geometry.descriptor_block(0).get() + u64::from(geometry.descriptor_blocks);
    let mut ring = vec![0; work.block_size()];
    let copies: Vec<u64> =
        geometry.backup_groups().map(|g| u64::from(g.get()) * u64::from(geometry.blocks_per_group)).collect();
    for n in 0..reserved {
        let block = first + n;
        let at = ((u64::from(geometry.descriptor_blocks) + n) % per_block * 4) as usize;
        put_word(&mut ring, at, block);
        let mut names = vec![0; work.block_size()];
        for (m, copy) in copies.iter().enumerate().take(per_block as usize) {
            put_word(&mut names, m * 4, block + copy);
        }
        work.put_block(block, &names)?;
    }
    work.put_block(double, &ring)?;
    let mut inode = work.blank_inode();
    inode.set_mode(0o100_600);
    inode.set_links(1);
    let now = Timestamp { seconds: work.now.cast_signed(), nanos: 0 };
    inode.set_atime(now);
    inode.set_ctime(now);
    inode.set_mtime(now);
    inode.set_size((per_block * per_block + per_block + 12) * u64::from(geometry.block_size));
    let mut words = [0u32; 15];
    if let Some(word) = words.get_mut(DOUBLE) {
        *word = double as u32;
    }
    inode.set_block_words(&words);
    let blocks = 1 + reserved * (1 + copies.len() as u64);
    work.set_sectors(&mut inode, blocks * u64::from(geometry.block_size / 512));
    work.put_inode(InodeNo::RESIZE, inode)
}

fn put_word(bytes: &mut [u8], at: usize, value: u64) {
    if let Some(place) = bytes.get_mut(at..at + 4) {
        place.copy_from_slice(&(value as u32).to_le_bytes());
    }
}

/// Writes the MMP block in its idle state; a new one where the old one is multiply-claimed.
fn make_mmp(work: &Work<'_>, code: Code) -> Result<()> {
    let geometry = &work.volume().geometry;
    let named = work.volume().disk.s_mmp_block.get();
    let own = code != Code::MmpBlockOutOfRange && !maps::exclusive(work, &[named]).is_empty();
    let Some(block) = own.then_some(named).or_else(|| work.allocate()) else { return Ok(()) };
    let interval = work.volume().disk.s_mmp_interval.get().max(5);
    let seed = geometry.metadata_csum.then_some(geometry.checksum_seed);
    let mut bytes = vec![0; work.block_size()];
    if let Some(start) = bytes.get_mut(..DiskMmp::SIZE) {
        start.copy_from_slice(DiskMmp::clean(work.now, interval, seed).as_bytes());
    }
    work.put_block(block, &bytes)?;
    work.edit_superblock(|sb| sb.s_mmp_block = block.into())
}

/// Empties every block of the orphan file, and allocates new ones for multiply-claimed blocks. The next check finds its
/// inodes that have no names.
fn renew_orphan_file(work: &Work<'_>) -> Result<()> {
    let volume = work.volume();
    let number = InodeNo(volume.disk.s_orphan_file_inum.get());
    let Some(file) = SystemInode::read(work.view.scanner, volume, number) else { return Ok(()) };
    let Some(mut inode) = work.inode(number)? else { return Ok(()) };
    let (mut places, nodes) = maps::dense(work, number, &inode)?;
    if maps::exclusive(work, &places).len() < places.len() {
        let own = maps::exclusive(work, &nodes);
        let Some(fresh) = work.allocate_dense(places.len()) else { return drop_orphan_file(work) };
        if !maps::write_dense(work, number, &mut inode, &fresh, &own, 0)? {
            return drop_orphan_file(work);
        }
        work.put_inode(number, inode)?;
        places = fresh;
    }
    let seed = volume.geometry.metadata_csum.then_some(file.seed);
    for place in places {
        let mut blank = vec![0; work.block_size()];
        let _ = orphan::set_checksum(&mut blank, FsBlock(place), seed);
        work.put_block(place, &blank)?;
    }
    work.edit_superblock(|sb| {
        sb.s_feature_ro_compat = (sb.s_feature_ro_compat.get() & !RoCompat::ORPHAN_PRESENT.bits()).into();
    })
}

/// Removes the orphan file: the kernel then uses the orphan list.
fn drop_orphan_file(work: &Work<'_>) -> Result<()> {
    let inode = InodeNo(work.volume().disk.s_orphan_file_inum.get());
    if inode.get() >= work.volume().geometry.first_inode {
        work.wipe_inode(inode)?;
    }
    work.edit_superblock(|sb| {
        sb.s_feature_compat = (sb.s_feature_compat.get() & !Compat::ORPHAN_FILE.bits()).into();
        sb.s_feature_ro_compat = (sb.s_feature_ro_compat.get() & !RoCompat::ORPHAN_PRESENT.bits()).into();
        sb.s_orphan_file_inum = 0.into();
    })
}
