//! Phase 0: what the superblock names besides the journal: the multiple-mount-protection block, the resize inode, the
//! orphans.

use crate::context::Volume;
use crate::open::Refusal;
use crate::problem::{Problem, Problems};
use crate::scan::Scanner;
use crate::system_inode::{SystemInode, read_slot};
use crate::table::Code;
use format::feature::{Compat, Incompat, RoCompat};
use format::inode::{FileKind, RawInode};
use format::mmp::{self, DiskMmp, Use};
use format::orphan::{self, DiskOrphanTail};
use format::{FileBlock, FsBlock, InodeNo, indirect};
use std::collections::BTreeSet;
use std::ops::Range;
use zerocopy::FromBytes;

/// A longer list of orphans is not followed.
const LONGEST_LIST: u32 = 1 << 20;
/// A larger orphan file is none: the kernel makes it of 512 blocks at most.
const ORPHAN_FILE_BLOCKS: u64 = 1 << 16;

/// Judges them all, and gives the orphans of the list.
pub(crate) fn check(scanner: &Scanner<'_>, volume: &Volume, problems: &Problems) -> Result<BTreeSet<InodeNo>, Refusal> {
    check_mmp(scanner, volume, problems)?;
    check_resize_inode(scanner, volume, problems);
    let orphans = check_orphan_list(scanner, volume, problems);
    check_orphan_file(scanner, volume, problems);
    Ok(orphans)
}

/// Multiple-mount protection: that nobody checks the volume just now. Someone who has it mounted is not looked for, as
/// that takes waiting, and a check that writes nothing harms nobody.
fn check_mmp(scanner: &Scanner<'_>, volume: &Volume, problems: &Problems) -> Result<(), Refusal> {
    if !volume.features.incompat.contains(Incompat::MMP) {
        return Ok(());
    }
    let block = FsBlock(volume.disk.s_mmp_block.get());
    let first = u64::from(volume.geometry.first_data_block);
    let place = volume.offset(block.get()).filter(|_| block.get() > first);
    let Some(offset) = place else {
        problems.report(Problem::new(Code::MmpBlockOutOfRange).found(block.get()));
        return Ok(());
    };
    let mut bytes = [0; DiskMmp::SIZE];
    scanner.counters.count(offset, bytes.len() as u64);
    if let Err(error) = scanner.device.read(offset, &mut bytes) {
        problems.report(Problem::new(Code::ReadError).block(block).name(error.to_string()));
        return Ok(());
    }
    let Ok(disk) = DiskMmp::read_from_bytes(&bytes) else { return Ok(()) };
    if disk.mmp_magic.get() != mmp::MAGIC {
        problems.report(Problem::new(Code::MmpMagicWrong).block(block));
        return Ok(());
    }
    let (stored, computed) = (disk.mmp_checksum.get(), disk.checksum(volume.geometry.checksum_seed));
    if volume.geometry.metadata_csum && stored != computed {
        let problem = Problem::new(Code::MmpChecksumWrong).block(block);
        problems.report(problem.found(stored.into()).expected(computed.into()));
        return Ok(());
    }
    match disk.usage() {
        Use::Clean | Use::Mounted(_) => Ok(()),
        Use::Fsck | Use::Invalid(_) => Err(Refusal {
            sentence: "another check of this volume is under way, or one was broken off; if so, tune2fs -E clear_mmp \
                       frees the volume"
                .to_owned(),
            exit: crate::report::exit::OPERATIONAL,
        }),
    }
}

/// The descriptor blocks kept for growth behind the primary table.
fn reserved_blocks(volume: &Volume) -> Range<u64> {
    let geometry = &volume.geometry;
    let first = geometry.descriptor_block(0).get() + u64::from(geometry.descriptor_blocks);
    first..first + u64::from(geometry.reserved_descriptor_blocks)
}

/// The resize inode: its doubly indirect block names the descriptor blocks kept for growth, in a ring that begins with
/// the table's own length. What those blocks hold is checked when the rounds read them ([`names_copies`]), and so is
/// that it has no map without the feature.
fn check_resize_inode(scanner: &Scanner<'_>, volume: &Volume, problems: &Problems) {
    let geometry = &volume.geometry;
    if !volume.features.compat.contains(Compat::RESIZE_INODE) || geometry.first_meta_group != u32::MAX {
        return;
    }
    let sound = || {
        let reserved = reserved_blocks(volume);
        let slot = read_slot(scanner, volume, InodeNo::RESIZE)?;
        let raw = RawInode::from_slot(&slot)?;
        let [direct @ .., double, triple] = raw.block_words::<15>();
        if direct != [0; 13] || triple != 0 {
            return None;
        }
        if double == 0 {
            return reserved.is_empty().then_some(());
        }
        if raw.kind() != Some(FileKind::Regular) || !volume.holds(double.into()) {
            return None;
        }
        let bytes = scanner.read_block(volume, double.into())?;
        let pointers = indirect::pointers(&bytes);
        let start = geometry.descriptor_blocks as usize % pointers.len().max(1);
        let ring = pointers.iter().skip(start).chain(pointers.iter().take(start));
        let wanted = reserved.chain(std::iter::repeat(0));
        ring.zip(wanted).all(|(found, wanted)| u64::from(found.get()) == wanted).then_some(())
    };
    if sound().is_none() {
        problems.report(Problem::new(Code::ResizeInodeBad).inode(InodeNo::RESIZE));
    }
}

/// Whether a block that the resize inode keeps for growth names its copies, those in the groups with a superblock, and
/// nothing else.
pub(crate) fn names_copies(volume: &Volume, block: u64, bytes: &[u8]) -> bool {
    let geometry = &volume.geometry;
    let copies = geometry
        .backup_groups()
        .map(|group| block.saturating_add(u64::from(group.get()) * u64::from(geometry.blocks_per_group)));
    let wanted = copies.chain(std::iter::repeat(0));
    indirect::pointers(bytes).iter().zip(wanted).all(|(found, wanted)| u64::from(found.get()) == wanted)
}

/// The list of orphans that begins in the superblock and goes on in their deletion times.
fn check_orphan_list(scanner: &Scanner<'_>, volume: &Volume, problems: &Problems) -> BTreeSet<InodeNo> {
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
        // a list that leads back into itself is told as far as it goes
        if !orphans.insert(inode) {
            break;
        }
        next = raw.disk.i_dtime.get();
        code = Code::OrphanInodeOutOfRange;
    }
    orphans
}

/// The file of orphans: empty when the volume was unmounted in order.
fn check_orphan_file(scanner: &Scanner<'_>, volume: &Volume, problems: &Problems) {
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
    let Some(file) = file.filter(|file| file.sound && file.kind == Some(FileKind::Regular)) else {
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
        // without checksums e2fsck takes the checksum for one more number
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
