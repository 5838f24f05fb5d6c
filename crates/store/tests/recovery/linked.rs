//! Lists of linked writes with valid checksums and invalid content.

use super::*;
use extant_store::recovery::linked::{Finding, List, find};
use format::inode::DiskInode;
use format::linked::{
    Areas, Copied, DiskListCopy, DiskListGroup, DiskListInode, DiskListRun, NEW, SECTOR, Slot, WHOLE, mount_sum, sum,
};
use format::superblock::{DiskSuperblock, OFFSET, Superblock};
use std::time::Instant;
use testkit::need;
use zerocopy::FromBytes;

/// An ext2 volume with a list in free blocks at its end.
struct Volume {
    bytes: Vec<u8>,
    sb: Superblock,
    list: List,
}

impl Volume {
    fn new(args: &[&str], len: u64, list: u64) -> Self {
        let bytes = Image::mke2fs(&[&["-t", "ext2", "-b", "1024"], args].concat(), len).build().bytes();
        let sb = Superblock::parse(&bytes[OFFSET as usize..][..DiskSuperblock::SIZE]).expect("a superblock");
        let areas = Areas::of(list, 1024).expect("a list");
        Self { bytes, sb, list: List { at: len - list, areas, counter: 2 } }
    }

    fn slot(&self) -> Slot {
        let disk = &self.sb.disk;
        let mut slot = Slot::empty(disk.s_uuid, 2, 1024, self.sb.geometry.inode_size);
        slot.header.ll_mount_before = mount_sum(disk).into();
        slot.header.ll_mount_after = mount_sum(disk).into();
        slot.header.ll_compat = disk.s_feature_compat;
        slot.header.ll_ro_compat = disk.s_feature_ro_compat;
        slot.header.ll_free_blocks = disk.s_free_blocks_count_lo;
        slot.header.ll_free_inodes = disk.s_free_inodes_count;
        slot
    }

    fn find(&self, slot: &Slot) -> Finding {
        let mut bytes = self.bytes.clone();
        let slot = slot.encode();
        bytes[self.list.at as usize..][..slot.len()].copy_from_slice(&slot);
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_vec(bytes));
        find(&device, &self.sb, self.list).expect("memory")
    }

    /// A record with a sector's new content: all `X`.
    fn copy(&self, block: u64) -> Copied {
        let after = Box::new([b'X'; SECTOR]);
        let head = DiskListCopy {
            lc_block: (block as u32).into(),
            lc_sector: 0.into(),
            lc_kind: 1.into(),
            lc_before: sum(&self.bytes[block as usize * 1024..][..SECTOR]).into(),
            lc_after: sum(&*after).into(),
        };
        Copied { head, after }
    }

    fn word(&self, at: u64) -> u64 {
        u32::from_le_bytes(self.bytes[at as usize..][..4].try_into().expect("four bytes")).into()
    }
}

#[test]
fn files_content_is_none_of_the_volumes_own_structures() {
    if !need(&["mke2fs"]) {
        return;
    }
    let volume = Volume::new(&["-g", "8192"], 24 << 20, 128 << 10);
    let descriptors = 2048;
    let table = volume.word(descriptors + 8);
    let own = [1, 2, 3, volume.word(descriptors), volume.word(descriptors + 4), table, table + 1];
    // the second group's structures, with its copies of the superblock and the descriptors, and the list
    let second = [8193, 8194, volume.word(descriptors + 32), volume.word(descriptors + 40), volume.list.at / 1024 + 5];
    for block in own.into_iter().chain(second) {
        let mut slot = volume.slot();
        slot.copies.push(volume.copy(block));
        assert!(matches!(volume.find(&slot), Finding::Check(why) if why.contains("system zone")), "copy of {block}");
        let mut slot = volume.slot();
        slot.runs.push(DiskListRun {
            lr_owner: 11.into(),
            lr_first: (block as u32).saturating_sub(3).max(1).into(),
            lr_count: 10.into(),
            lr_allocated: 0.into(),
        });
        assert!(matches!(volume.find(&slot), Finding::Check(why) if why.contains("system zone")), "run at {block}");
    }
    // a copy of a directory's sector: the first block of the root
    let root = volume.word((table * 1024) + u64::from(volume.sb.geometry.inode_size) + 40);
    let mut slot = volume.slot();
    slot.copies.push(volume.copy(root));
    assert!(matches!(volume.find(&slot), Finding::Repair(_)));
}

/// New files that did not reach the device, each the next orphan of the previous one, and as many orphans that
/// reference the first of them.
#[test]
fn long_chains_of_orphans_take_no_longer_than_they_are() {
    if !need(&["mke2fs"]) {
        return;
    }
    const CHAIN: u32 = 60_000;
    let volume = Volume::new(&["-N", "131072", "-I", "128"], 64 << 20, 16 << 20);
    let none = sum(&[0; DiskInode::SIZE]);
    let record = |number: u32, after: u32, next: u32, flags: u16| DiskListInode {
        li_number: number.into(),
        li_before: none.into(),
        li_after: after.into(),
        li_dtime: next.into(),
        li_links: 0.into(),
        li_flags: flags.into(),
    };
    let mut slot = volume.slot();
    slot.inodes.extend((1000..1000 + CHAIN).map(|number| record(number, none ^ 1, number + 1, NEW)));
    slot.inodes.extend((1000 + CHAIN..1000 + 2 * CHAIN).map(|number| record(number, none, 1000, 0)));
    for group in 0..volume.sb.geometry.groups {
        let at = 2048 + group as usize * 32;
        let half = |at: usize| u32::from(u16::from_le_bytes(volume.bytes[at..at + 2].try_into().expect("two bytes")));
        slot.groups.push(DiskListGroup {
            lg_number: group.into(),
            lg_free_blocks: half(at + 12).into(),
            lg_free_inodes: half(at + 14).into(),
            lg_directories: half(at + 16).into(),
        });
    }
    let before = Instant::now();
    let Finding::Repair(repair) = volume.find(&slot) else { panic!("a repair") };
    assert!(before.elapsed().as_secs() < 20, "{:?}", before.elapsed());
    assert_eq!(repair.lost, CHAIN as usize);
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_vec(volume.bytes.clone()));
    let repaired = repair.overlay(device);
    let per_group = volume.sb.geometry.inodes_per_group;
    let last = 1000 + 2 * CHAIN - 1;
    let table = volume.word(2048 + u64::from((last - 1) / per_group) * 32 + 8);
    let mut inode = [0; DiskInode::SIZE];
    repaired.read(table * 1024 + u64::from((last - 1) % per_group) * 128, &mut inode).expect("memory");
    let inode = DiskInode::read_from_bytes(&inode).expect("an inode");
    assert_eq!(inode.i_dtime.get(), 1000 + CHAIN, "the first orphan after those that did not reach the device");
    // in a cycle
    slot.inodes[CHAIN as usize - 1].li_dtime = 1000.into();
    assert!(matches!(volume.find(&slot), Finding::Check(_)));
}

/// A whole inode in a slot must match the checksum in its record.
#[test]
fn an_inode_that_is_not_what_its_record_says_is_not_written() {
    if !need(&["mke2fs"]) {
        return;
    }
    let volume = Volume::new(&[], 8 << 20, 128 << 10);
    let size = volume.sb.geometry.inode_size as usize;
    let at = (volume.word(2048 + 8) * 1024) as usize + 10 * size;
    let before = volume.bytes[at..at + size].to_vec();
    let mut after = before.clone();
    after[4] ^= 1;
    let mut slot = volume.slot();
    slot.inodes.push(DiskListInode {
        li_number: 11.into(),
        li_before: sum(&before).into(),
        li_after: sum(&after).into(),
        li_dtime: 0.into(),
        li_links: 2.into(),
        li_flags: WHOLE.into(),
    });
    slot.whole.push(after.clone().into());
    assert!(matches!(volume.find(&slot), Finding::Repair(_)));
    after[40 + 44] ^= 31;
    slot.whole = vec![after.into()];
    assert!(matches!(volume.find(&slot), Finding::Check(why) if why.contains("contradicts itself")));
}

/// Features that no operation sets are not read from a slot: they could make the volume unreadable.
#[test]
fn features_of_a_slot_are_those_of_the_volume() {
    if !need(&["mke2fs"]) {
        return;
    }
    let volume = Volume::new(&[], 8 << 20, 128 << 10);
    let with = |compat: u32, ro_compat: u32| {
        let mut slot = volume.slot();
        slot.header.ll_compat = (slot.header.ll_compat.get() ^ compat).into();
        slot.header.ll_ro_compat = (slot.header.ll_ro_compat.get() ^ ro_compat).into();
        volume.find(&slot)
    };
    // the feature for attributes
    assert!(matches!(with(8, 0), Finding::Repair(_)));
    for (compat, ro_compat) in [(4, 0), (0x10, 0), (u32::MAX, 0), (0, 1), (0, 0x400), (0, u32::MAX)] {
        assert!(matches!(with(compat, ro_compat), Finding::Check(_)), "{compat:#x} {ro_compat:#x}");
    }
}
