//! The resize inode, which lists the descriptor blocks reserved for growth.

use crate::problem::{Problem, Problems};
use crate::scan::Scanner;
use crate::system_inode::read_slot;
use crate::table::Code;
use crate::volume::Volume;
use format::feature::Compat;
use format::inode::{FileKind, RawInode};
use format::{InodeNo, indirect};
use std::ops::Range;

/// The descriptor blocks reserved for growth after the primary table.
fn reserved_blocks(volume: &Volume) -> Range<u64> {
    let geometry = &volume.geometry;
    let first = geometry.descriptor_block(0).get() + u64::from(geometry.descriptor_blocks);
    first..first + u64::from(geometry.reserved_descriptor_blocks)
}

/// Checks the resize inode: its doubly indirect block lists the descriptor blocks reserved for growth, in a ring that
/// begins with the table's own length. The content of those blocks is checked when the rounds read them
/// ([`names_copies`]), as is that it has no map without the feature.
pub(super) fn check(scanner: &Scanner<'_>, volume: &Volume, problems: &Problems) {
    let geometry = &volume.geometry;
    if !volume.features.compat.contains(Compat::RESIZE_INODE) || geometry.first_meta_group != u32::MAX {
        return;
    }
    let valid = || {
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
        if raw.kind() != Some(FileKind::Regular) || !volume.contains(double.into()) {
            return None;
        }
        let bytes = scanner.read_block(volume, double.into())?;
        let pointers = indirect::pointers(&bytes);
        let start = geometry.descriptor_blocks as usize % pointers.len().max(1);
        let ring = pointers.iter().skip(start).chain(pointers.iter().take(start));
        let wanted = reserved.chain(std::iter::repeat(0));
        ring.zip(wanted).all(|(found, wanted)| u64::from(found.get()) == wanted).then_some(())
    };
    if valid().is_none() {
        problems.report(Problem::new(Code::ResizeInodeBad).inode(InodeNo::RESIZE));
    }
}

/// Whether a descriptor block reserved for growth lists exactly its copies in the groups with a superblock.
pub(crate) fn names_copies(volume: &Volume, block: u64, bytes: &[u8]) -> bool {
    let geometry = &volume.geometry;
    let copies = geometry
        .backup_groups()
        .map(|group| block.saturating_add(u64::from(group.get()) * u64::from(geometry.blocks_per_group)));
    let wanted = copies.chain(std::iter::repeat(0));
    indirect::pointers(bytes).iter().zip(wanted).all(|(found, wanted)| u64::from(found.get()) == wanted)
}
