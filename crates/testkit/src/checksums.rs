//! Corrects the checksums of a damaged volume, so that the code after their verification is tested.

use format::group::{self, Group, GroupFlags};
use format::inode::RawInode;
use format::superblock::{DiskSuperblock, Geometry};
use format::{FsBlock, GroupNo};
use std::ops::Range;

const SUPERBLOCK: Range<usize> = 1024..2048;

/// Recomputes, in the primary copies, the checksums of bitmaps, inodes, group descriptors and the superblock, as
/// required by the features. Checksums inside directories, extent trees and attribute blocks are unchanged. If the
/// superblock is invalid, only its own checksum is updated; structures outside `bytes` are skipped.
pub fn repair_checksums(bytes: &mut [u8]) {
    let Some(mut sb) = bytes.get(SUPERBLOCK).and_then(DiskSuperblock::from_slice) else { return };
    if let Ok(geometry) = Geometry::of(&sb)
        && (geometry.metadata_csum || geometry.gdt_csum)
    {
        for group in geometry.group_numbers() {
            // a volume with an invalid number of groups ends where its bytes end
            if group_checksums(bytes, &sb, &geometry, group).is_none() {
                break;
            }
        }
    }
    sb.s_checksum = sb.checksum().into();
    if sb.features().ro_compat.contains(format::feature::RoCompat::METADATA_CSUM) {
        bytes[SUPERBLOCK.end - 4..SUPERBLOCK.end].copy_from_slice(&sb.s_checksum.get().to_le_bytes());
    }
}

/// `None` if the descriptor is outside the bytes.
fn group_checksums(bytes: &mut [u8], sb: &DiskSuperblock, geometry: &Geometry, number: GroupNo) -> Option<()> {
    let per_block = geometry.descriptors_per_block();
    let block = geometry.descriptor_block(number.get() / per_block);
    let size = geometry.descriptor_size as usize;
    let start = place(geometry, block)?.checked_add((number.get() % per_block) as usize * size)?;
    let at = start..start.checked_add(size)?;
    let group = Group::from_bytes(bytes.get(at.clone())?);
    if geometry.metadata_csum {
        inode_checksums(bytes, geometry, number, &group);
        for (bitmap, bits, uninit, low, high) in [
            (group.block_bitmap, geometry.clusters_per_group(), GroupFlags::BLOCK_UNINIT, 0x18, 0x38),
            (group.inode_bitmap, geometry.inodes_per_group, GroupFlags::INODE_UNINIT, 0x1A, 0x3A),
        ] {
            let start = place(geometry, bitmap).filter(|_| !group.flags.contains(uninit));
            let Some(data) = start.and_then(|s| bytes.get(s..s.checked_add(geometry.block_size as usize)?)) else {
                continue;
            };
            let sum = group::bitmap_checksum(geometry, data, bits).to_le_bytes();
            let descriptor = bytes.get_mut(at.clone())?;
            descriptor[low..low + 2].copy_from_slice(&sum[..2]);
            if let Some(field) = descriptor.get_mut(high..high + 2) {
                field.copy_from_slice(&sum[2..]);
            }
        }
    }
    let descriptor = bytes.get_mut(at)?;
    let sum = group::descriptor_checksum(sb, geometry, number, descriptor);
    descriptor[0x1E..0x20].copy_from_slice(&sum.to_le_bytes());
    Some(())
}

fn inode_checksums(bytes: &mut [u8], geometry: &Geometry, number: GroupNo, group: &Group) {
    let size = geometry.inode_size as usize;
    for index in 0..geometry.inodes_per_group {
        let start = place(geometry, group.inode_table).and_then(|s| s.checked_add(index as usize * size));
        let Some(slot) = start.and_then(|start| bytes.get_mut(start..start.checked_add(size)?)) else { return };
        let Some(inode) = RawInode::from_slot(slot).filter(|inode| !inode.is_zero()) else { continue };
        let sum = inode.checksum(geometry, geometry.inode_at(number, index)).to_le_bytes();
        let has_high = inode.extra_isize() >= 4;
        slot[0x7C..0x7E].copy_from_slice(&sum[..2]);
        if has_high {
            slot[0x82..0x84].copy_from_slice(&sum[2..]);
        }
    }
}

fn place(geometry: &Geometry, block: FsBlock) -> Option<usize> {
    usize::try_from(geometry.byte_offset(block)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::damage::{Damager, metadata_ranges};
    use crate::{Image, Spec, Tree, cases, oracle, tools};

    #[test]
    fn a_consistent_volume_stays_as_it_is() {
        if !tools::need(&["mke2fs"]) {
            return;
        }
        let tree = Tree::new(2, &Spec::small());
        for args in [
            &["-t", "ext4", "-b", "1024"][..],
            &["-t", "ext4", "-b", "4096", "-O", "^64bit,metadata_csum_seed"],
            &["-t", "ext4", "-b", "1024", "-I", "128", "-g", "4096"],
            &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,uninit_bg"],
            &["-t", "ext4", "-b", "1024", "-O", "bigalloc", "-C", "4096"],
            &["-t", "ext2", "-b", "1024"],
        ] {
            let before = Image::mke2fs(args, 24 << 20).with_tree(&tree).build().bytes();
            let mut after = before.clone();
            repair_checksums(&mut after);
            let first = (0..before.len()).find(|&at| before[at] != after[at]);
            assert_eq!(first, None, "{args:?}");
        }
    }

    #[test]
    fn e2fsck_finds_what_is_behind_the_checksums() {
        if !tools::need(&["mke2fs", "e2fsck"]) {
            return;
        }
        let image = Image::mke2fs(&["-t", "ext4", "-b", "1024"], 4 << 20).build();
        let mut bytes = image.bytes();
        bytes[1024 + 0x10] ^= 3; // s_free_inodes_count
        let geometry =
            Geometry::of(&DiskSuperblock::from_slice(&bytes[SUPERBLOCK]).expect("a superblock")).expect("a geometry");
        let at = place(&geometry, geometry.descriptor_block(0)).expect("a descriptor");
        bytes[at + 0x0C] ^= 5; // bg_free_blocks_count_lo
        let table = Group::from_bytes(&bytes[at..at + 64]).inode_table;
        let root = place(&geometry, table).expect("a table") + 256;
        bytes[root + 0x1A] ^= 8; // i_links_count of inode 2
        image.set_bytes(&bytes);
        let says_checksum = || oracle::e2fsck(image.path()).text.to_lowercase().contains("checksum");
        assert!(says_checksum());
        repair_checksums(&mut bytes);
        image.set_bytes(&bytes);
        let verdict = oracle::e2fsck(image.path());
        assert!(!says_checksum() && !verdict.clean, "{}", verdict.text);
    }

    #[test]
    fn any_damage_is_survived() {
        if !tools::need(&["mke2fs", "e2image"]) {
            return;
        }
        let image = Image::mke2fs(&["-t", "ext4", "-b", "1024"], 2 << 20).build();
        let (bytes, damager) = (image.bytes(), Damager::within(1024, metadata_ranges(image.path(), 1024)));
        for case in cases("repair after damage", 300) {
            let (mut damaged, mut rng) = (bytes.clone(), case.rng());
            damager.any(&mut damaged, &mut rng);
            repair_checksums(&mut damaged);
        }
    }
}
