//! Orphans, which are to be deleted or truncated: the list that begins in the superblock, and the orphan file.

use crate::problem::{Problem, Problems};
use crate::scan::Scanner;
use crate::system_inode::{SystemInode, read_slot};
use crate::table::Code;
use crate::volume::Volume;
use format::feature::{Compat, RoCompat};
use format::inode::{FileKind, RawInode};
use format::orphan::{self, DiskOrphanTail, OrphanBlock};
use format::{FileBlock, FsBlock, InodeNo};
use std::collections::BTreeSet;
use zerocopy::FromBytes;

/// Maximum length of the orphan list that is followed.
const LONGEST_LIST: u32 = 1 << 20;
/// Maximum number of blocks of an orphan file; the kernel creates at most 512.
const ORPHAN_FILE_BLOCKS: u64 = 1 << 16;

/// Checks the orphan list, which begins in the superblock and continues in the deletion times of its inodes. Returns
/// its inodes.
pub(super) fn check_list(scanner: &Scanner<'_>, volume: &Volume, problems: &Problems) -> BTreeSet<InodeNo> {
    let mut orphans = BTreeSet::new();
    let mut next = volume.disk.s_last_orphan.get();
    let mut code = Code::OrphanHeadOutOfRange;
    for _ in 0..LONGEST_LIST {
        if next == 0 || (scanner.cancelled)() {
            break;
        }
        let inode = InodeNo(next);
        let slot = Some(inode)
            .filter(|_| next >= volume.geometry.first_inode && next <= volume.geometry.inodes)
            .and_then(|inode| read_slot(scanner, volume, inode));
        let Some(slot) = slot else {
            problems.report(Problem::new(code).found(next.into()));
            break;
        };
        let Some(raw) = RawInode::from_slot(&slot) else { break };
        // a list with a loop is reported up to the repeated inode
        if !orphans.insert(inode) {
            break;
        }
        next = raw.disk.i_dtime.get();
        code = Code::OrphanInodeOutOfRange;
    }
    orphans
}

/// Checks the orphan file, which is empty on a cleanly unmounted volume. Adds its inodes to `orphans`, up to the first
/// damage.
pub(super) fn check_file(scanner: &Scanner<'_>, volume: &Volume, problems: &Problems, orphans: &mut BTreeSet<InodeNo>) {
    let present = volume.features.ro_compat.contains(RoCompat::ORPHAN_PRESENT);
    if !volume.features.compat.contains(Compat::ORPHAN_FILE) {
        if present {
            problems.report(Problem::new(Code::OrphanPresentWithoutFile));
        }
        return;
    }
    if !volume.features.compat.contains(Compat::HAS_JOURNAL) {
        problems.report(Problem::new(Code::OrphanFileWithoutJournal));
    }
    let inode = InodeNo(volume.disk.s_orphan_file_inum.get());
    let report = |problem: Problem| problems.report(problem.inode(inode));
    let file = SystemInode::read(scanner, volume, inode);
    let Some(file) = file.filter(|file| file.valid && file.kind == Some(FileKind::Regular)) else {
        return report(Problem::new(Code::OrphanFileInodeBad));
    };
    let block_size = u64::from(volume.geometry.block_size);
    let blocks = file.size / block_size;
    if !file.size.is_multiple_of(block_size) || blocks > ORPHAN_FILE_BLOCKS {
        return report(Problem::new(Code::OrphanFileSizeWrong).found(file.size));
    }
    if file.blocks_without_hole() != blocks {
        let hole = FileBlock(file.blocks_without_hole().min(blocks));
        return report(Problem::new(Code::OrphanFileHole).file_block(hole));
    }
    let mut clean = true;
    for n in 0..blocks {
        let at = |code| Problem::new(code).file_block(FileBlock(n));
        let (Some(block), Some(bytes)) = (file.block(n), file.read_block(scanner, volume, n)) else {
            return report(at(Code::OrphanFileHole));
        };
        let Ok((slots, tail)) = DiskOrphanTail::read_from_suffix(&bytes) else { return };
        if tail.ob_magic.get() != orphan::MAGIC {
            return report(at(Code::OrphanFileMagicWrong));
        }
        let computed = orphan::checksum(&bytes, FsBlock(block), file.seed);
        if volume.geometry.metadata_csum && tail.ob_checksum.get() != computed {
            let found = tail.ob_checksum.get().into();
            return report(at(Code::OrphanFileChecksumWrong).found(found).expected(computed.into()));
        }
        let seed = volume.geometry.metadata_csum.then_some(file.seed);
        orphans.extend(OrphanBlock::parse(&bytes, FsBlock(block), seed).iter().flat_map(OrphanBlock::orphans));
        // without checksums e2fsck reads the checksum as one more inode number
        let stray = !volume.geometry.metadata_csum && tail.ob_checksum.get() != 0;
        if stray || slots.iter().any(|b| *b != 0) {
            clean = false;
            report(at(Code::OrphanFileBlockNotClean));
        }
    }
    if clean && present {
        problems.report(Problem::new(Code::OrphanPresentButFileClean));
    }
}
