//! Descriptors with a wrong location of an inode table that is possible: in range, and free. The files of the group must
//! not be lost.

use crate::repaired::{fix, only_marked, options};
use crate::sharers::{full_image, repairs_without_loss};
use blockdev::MemoryDevice;
use extant_check::report::{Report, exit};
use extant_check::table::Code;
use extant_check::{Repair, check, first_sight};
use format::group::{Group, GroupFlags};
use format::superblock::{DiskSuperblock, Geometry};
use format::{FsBlock, GroupNo};
use std::ops::Range;
use testkit::oracle::e2fsck;
use testkit::{Image, need};

/// Volumes of several groups, with files in the first two at least.
const SEVERAL: [(&[&str], u64); 6] = [
    (&["-t", "ext2", "-b", "1024", "-g", "1024", "-N", "640"], 8 << 20),
    (&["-t", "ext3", "-b", "1024", "-g", "4096", "-N", "640", "-J", "size=1"], 16 << 20),
    (&["-t", "ext4", "-b", "1024", "-g", "4096", "-N", "640", "-J", "size=1"], 16 << 20),
    (&["-t", "ext4", "-b", "1024", "-g", "4096", "-N", "640", "-O", "^flex_bg,^has_journal"], 16 << 20),
    (&["-t", "ext4", "-b", "1024", "-g", "4096", "-N", "640", "-O", "^metadata_csum,^has_journal"], 16 << 20),
    (&["-t", "ext4", "-b", "1024", "-g", "4096", "-N", "640", "-O", "^metadata_csum,uninit_bg,^has_journal"], 16 << 20),
];

/// Volumes of one group.
const SINGLE: [&[&str]; 4] = [
    &["-t", "ext2", "-b", "1024"],
    &["-t", "ext3", "-b", "1024", "-J", "size=1"],
    &["-t", "ext4", "-b", "1024", "-J", "size=1"],
    &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,^has_journal"],
];

/// A volume with 300 files.
fn filled(args: &[&str], size: u64) -> Image {
    let folder = tempfile::tempdir().expect("a folder");
    for n in 0..300 {
        std::fs::write(folder.path().join(format!("file{n}")), n.to_string()).expect("a file");
    }
    Image::mke2fs(args, size).with_folder(folder.path()).build()
}

pub(crate) fn look(bytes: &[u8]) -> Report {
    let device = MemoryDevice::from_vec(bytes.to_vec());
    check("volume", &device, &options(Repair::No), &()).expect("a volume")
}

fn is_moved(report: &Report) -> bool {
    report.problems.iter().any(|problem| problem.code == Code::InodeTableElsewhere)
}

pub(crate) fn layout(bytes: &[u8]) -> (DiskSuperblock, Geometry) {
    let disk = DiskSuperblock::from_slice(&bytes[1024..2048]).expect("a superblock");
    let geometry = Geometry::of(&disk).expect("a volume");
    (disk, geometry)
}

/// The bytes of a group's descriptor, which is in the first block of the table at `table`.
pub(crate) fn place(geometry: &Geometry, table: FsBlock, number: u32) -> Range<usize> {
    let size = geometry.descriptor_size as usize;
    let at = (table.get() * u64::from(geometry.block_size)) as usize + number as usize * size;
    at..at + size
}

pub(crate) fn group(bytes: &[u8], number: u32) -> Group {
    let (_, geometry) = layout(bytes);
    Group::from_bytes(&bytes[place(&geometry, geometry.descriptor_block(0), number)])
}

/// The bytes of a group's inode table at this location.
fn table(geometry: &Geometry, first: FsBlock) -> Range<usize> {
    let block = geometry.block_size as usize;
    let at = first.get() as usize * block;
    at..at + geometry.itable_blocks as usize * block
}

/// The last free blocks in a group that are enough for its table.
fn free_blocks(bytes: &[u8], number: u32) -> FsBlock {
    let (_, geometry) = layout(bytes);
    let block = geometry.block_size as usize;
    let at = group(bytes, number).block_bitmap.get() as usize * block;
    let bitmap = &bytes[at..at + block];
    let blocks = geometry.group_blocks(GroupNo(number));
    let is_free = |n: u64| {
        let bit = (n - blocks.start) as usize;
        bitmap[bit / 8] >> (bit % 8) & 1 == 0
    };
    let length = u64::from(geometry.itable_blocks);
    let mut firsts = (blocks.start..=blocks.end - length).rev();
    FsBlock(firsts.find(|first| (*first..*first + length).all(is_free)).expect("free blocks"))
}

/// Writes the location of a group's table into the descriptors, and into their copies if so wished; with the right
/// checksum, or as a single wrong word.
fn set_table(bytes: &mut [u8], number: u32, first: FsBlock, summed: bool, copies: bool) {
    let (disk, geometry) = layout(bytes);
    let mut descriptor = group(bytes, number);
    descriptor.inode_table = first;
    let mut tables = vec![geometry.descriptor_block(0)];
    if copies {
        tables.extend(geometry.descriptor_block_backups(0));
    }
    for of_table in tables {
        let own = &mut bytes[place(&geometry, of_table, number)];
        if summed {
            descriptor.set_checksum(&disk, &geometry, GroupNo(number), own);
        } else {
            own[8..12].copy_from_slice(&(first.get() as u32).to_le_bytes());
        }
    }
}

/// `-p` writes the error flag at most.
fn is_left_by_preening(bytes: &[u8], said: &str) {
    let mut preened = bytes.to_vec();
    let report = fix(&mut preened, Repair::Safe).expect("a volume");
    assert_eq!(report.exit, exit::LEFT, "{said}: {:?}", report.problems);
    assert!(only_marked(bytes, &preened), "{said}: -p wrote something");
}

#[test]
fn a_table_is_found_although_its_wrong_location_is_possible() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    for (args, size) in SEVERAL {
        let image = filled(args, size);
        let intact = image.bytes();
        let trusted = |bytes: &[u8]| first_sight(&MemoryDevice::from_vec(bytes.to_vec()), &options(Repair::Safe), &());
        assert!(trusted(&intact), "{args:?}");
        for (number, summed, copies) in
            [(1, true, false), (1, false, false), (1, true, true), (0, true, false), (0, false, false)]
        {
            let said = format!("{args:?}, group {number}, checksum {summed}, copies {copies}");
            let mut bytes = intact.clone();
            let wrong = free_blocks(&bytes, number);
            set_table(&mut bytes, number, wrong, summed, copies);
            let report = look(&bytes);
            assert!(is_moved(&report), "{said}: {:?}", report.problems);
            assert!(!trusted(&bytes), "{said}: it is taken at its word");
            is_left_by_preening(&bytes, &said);
            let report = fix(&mut bytes, Repair::All).expect("a volume");
            assert_eq!((report.exit, report.repaired), (exit::REPAIRED, true), "{said}: {:?}", report.problems);
            assert_eq!(look(&bytes).counts, look(&intact).counts, "{said}: every file is there");
            assert!(look(&bytes).problems.is_empty(), "{said}: {:?}", look(&bytes).problems);
            image.set_bytes(&bytes);
            assert!(e2fsck(image.path()).clean, "{said}");
        }
    }
}

/// Writes a group's locations into its primary descriptor, with the right checksum.
fn set_places(bytes: &mut [u8], number: u32, change: impl FnOnce(&mut Group)) {
    let (disk, geometry) = layout(bytes);
    let mut descriptor = group(bytes, number);
    change(&mut descriptor);
    let own = place(&geometry, geometry.descriptor_block(0), number);
    descriptor.set_checksum(&disk, &geometry, GroupNo(number), &mut bytes[own]);
}

/// Locations in the primary descriptors at which a table matches the bitmap, more or less, but not as the one at the
/// location in the copies does: shifted by a few blocks, exchanged, or together with a wrong inode bitmap.
#[test]
fn locations_that_match_less_than_those_of_a_copy_are_corrected() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    type Change = fn(&mut [u8], &[Group]);
    let changes: [(&str, Change); 6] = [
        ("shifted by 1", |bytes, right| {
            set_places(bytes, 1, |group| group.inode_table = FsBlock(right[1].inode_table.get() + 1));
        }),
        ("shifted by 4", |bytes, right| {
            set_places(bytes, 1, |group| group.inode_table = FsBlock(right[1].inode_table.get() + 4));
        }),
        ("back by 2", |bytes, right| {
            set_places(bytes, 2, |group| group.inode_table = FsBlock(right[2].inode_table.get() - 2));
        }),
        ("exchanged", |bytes, right| {
            set_places(bytes, 1, |group| group.inode_table = right[2].inode_table);
            set_places(bytes, 2, |group| group.inode_table = right[1].inode_table);
        }),
        ("rotated", |bytes, right| {
            for (number, other) in [(1, 2), (2, 3), (3, 1)] {
                set_places(bytes, number, |group| group.inode_table = right[other].inode_table);
            }
        }),
        ("with its bitmap", |bytes, _| {
            let free = free_blocks(bytes, 1);
            let (_, geometry) = layout(bytes);
            bytes[table(&geometry, free)].fill(0);
            set_places(bytes, 1, |group| (group.inode_bitmap, group.inode_table) = (free, FsBlock(free.get() + 1)));
        }),
    ];
    for (args, size) in SEVERAL {
        let image = filled(args, size);
        let intact = image.bytes();
        let (_, geometry) = layout(&intact);
        let right: Vec<Group> = (0..geometry.groups).map(|number| group(&intact, number)).collect();
        for (what, change) in changes {
            let said = format!("{args:?}, {what}");
            let mut bytes = intact.clone();
            change(&mut bytes, &right);
            is_left_by_preening(&bytes, &said);
            match fix(&mut bytes, Repair::All) {
                Err(refusal) => panic!("{said}: {refusal}"),
                Ok(report) => assert_eq!(report.exit, exit::REPAIRED, "{said}: {:?}", report.problems),
            }
            for (number, right) in (0..).zip(&right) {
                let found = group(&bytes, number).inode_table;
                assert_eq!(found, right.inode_table, "{said}: group {number}");
                assert!(bytes[table(&geometry, found)] == intact[table(&geometry, found)], "{said}: inodes changed");
            }
            image.set_bytes(&bytes);
            assert!(e2fsck(image.path()).clean, "{said}");
        }
    }
}

/// A copy of the descriptors names an inode bitmap and a table that were abandoned, with files that are deleted by now: they
/// match each other, but lie in free blocks.
#[test]
fn an_abandoned_table_does_not_replace_the_present_one() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    for (args, size) in SEVERAL {
        let image = filled(args, size);
        let old = image.bytes();
        let (disk, geometry) = layout(&old);
        let commands: Vec<String> = (232..262).map(|n| format!("rm file{n}")).collect();
        image.debugfs(&commands.iter().map(String::as_str).collect::<Vec<_>>());
        let mut bytes = image.bytes();
        repaired(args, &mut bytes);
        let present = look(&bytes);
        let free = free_blocks(&bytes, 1);
        let bitmap = FsBlock(free.get() + u64::from(geometry.itable_blocks) - 1);
        let first = FsBlock(free.get() - 1);
        let block = |block: FsBlock| block.get() as usize * 1024..(block.get() as usize + 1) * 1024;
        let was = group(&old, 1);
        bytes[table(&geometry, first)].copy_from_slice(&old[table(&geometry, was.inode_table)]);
        bytes[block(bitmap)].copy_from_slice(&old[block(was.inode_bitmap)]);
        let mut stale = group(&bytes, 1);
        (stale.inode_bitmap, stale.inode_table) = (bitmap, first);
        for copy in geometry.descriptor_block_backups(0) {
            stale.set_checksum(&disk, &geometry, GroupNo(1), &mut bytes[place(&geometry, copy, 1)]);
        }
        assert!(!is_moved(&look(&bytes)), "{args:?}");
        repaired(args, &mut bytes);
        assert_eq!(look(&bytes).counts, present.counts, "{args:?}");
        image.set_bytes(&bytes);
        assert!(e2fsck(image.path()).clean, "{args:?}");
    }
}

/// Repairs the volume if necessary.
fn repaired(args: &[&str], bytes: &mut Vec<u8>) {
    let report = fix(bytes, Repair::All).expect("a volume");
    assert_eq!(report.exit & !exit::REPAIRED, 0, "{args:?}: {:?}", report.problems);
}

/// Two full tables exchanged, without checksums, where mkfs was asked for other locations: nothing shows which are right.
#[test]
fn nothing_is_written_where_two_tables_match_equally_well() {
    if !need(&["mke2fs"]) {
        return;
    }
    let features = ["-O", "flex_bg,^dir_index,^has_journal", "-E", "packed_meta_blocks=1"];
    let args = [&["-t", "ext3", "-b", "1024", "-g", "1024", "-N", "640", "-G", "2"][..], &features].concat();
    let mut bytes = filled(&args, 8 << 20).bytes();
    let tables = [1, 2].map(|number| group(&bytes, number).inode_table);
    set_places(&mut bytes, 1, |group| group.inode_table = tables[1]);
    set_places(&mut bytes, 2, |group| group.inode_table = tables[0]);
    let report = look(&bytes);
    let unclear = report.problems.iter().filter(|problem| problem.code == Code::InodeTableUnclear).count();
    assert_eq!((unclear, report.exit), (2, exit::LEFT), "{:?}", report.problems);
    is_left_by_preening(&bytes, "exchanged");
    let mut left = bytes.clone();
    let refusal = fix(&mut left, Repair::All).expect_err("nothing shows which is right");
    assert_eq!(refusal.exit, exit::LEFT, "{refusal}");
    assert!(refusal.sentence.contains("it is unclear which is right"), "{refusal}");
    assert!(left == bytes, "something was written");
}

/// Without the root nothing proves where the only table is.
#[test]
fn the_files_of_the_only_table_are_not_lost_with_the_root() {
    if !need(&["mke2fs"]) {
        return;
    }
    for args in SINGLE {
        let image = filled(args, 7 << 20);
        let intact = image.bytes();
        let (_, geometry) = layout(&intact);
        let size = geometry.inode_size as usize;
        let root = table(&geometry, group(&intact, 0).inode_table).start + size;
        for (what, destroyed) in [("the root", size), ("its mode", 2)] {
            let said = format!("{args:?}, {what}");
            let mut bytes = intact.clone();
            let wrong = free_blocks(&bytes, 0);
            set_table(&mut bytes, 0, wrong, true, false);
            bytes[root..root + destroyed].fill(0);
            is_left_by_preening(&bytes, &said);
            let mut left = bytes.clone();
            let refusal = fix(&mut left, Repair::All).expect_err("the files would be lost");
            assert_eq!(refusal.exit, exit::LEFT, "{said}: {refusal}");
            assert!(refusal.sentence.contains("the inode table of group 0 cannot be found"), "{said}: {refusal}");
            assert!(left == bytes, "{said}: something was written");
        }
    }
}

/// The copies are out of date, and their location still has the old content: what matches its bitmap is right.
#[test]
fn a_table_at_an_unusual_location_stays_there() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    for (args, size) in SEVERAL {
        let image = filled(args, size);
        let intact = image.bytes();
        let (_, geometry) = layout(&intact);
        let mut bytes = intact.clone();
        let there = free_blocks(&bytes, 1);
        bytes.copy_within(table(&geometry, group(&intact, 1).inode_table), table(&geometry, there).start);
        set_table(&mut bytes, 1, there, true, false);
        assert!(!is_moved(&look(&bytes)), "{args:?}");
        let report = fix(&mut bytes, Repair::All).expect("a volume");
        assert_eq!(report.exit, exit::REPAIRED, "{args:?}: {:?}", report.problems);
        assert_eq!(group(&bytes, 1).inode_table, there, "{args:?}");
        assert_eq!(look(&bytes).counts.inodes, look(&intact).counts.inodes, "{args:?}: every file is there");
        image.set_bytes(&bytes);
        assert!(e2fsck(image.path()).clean, "{args:?}");
    }
}

/// A table that is where mkfs puts it was not lost but destroyed: the rest of the volume is repaired.
#[test]
fn a_destroyed_table_does_not_prevent_a_repair() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    let (args, size) = SEVERAL[0];
    let image = filled(args, size);
    let mut bytes = image.bytes();
    let (_, geometry) = layout(&bytes);
    let destroyed = table(&geometry, group(&bytes, 1).inode_table);
    bytes[destroyed].fill(0);
    let report = fix(&mut bytes, Repair::All).expect("a volume");
    assert_eq!(report.exit, exit::REPAIRED, "{:?}", report.problems);
    image.set_bytes(&bytes);
    assert!(e2fsck(image.path()).clean);
}

/// A wrong location is found, and no file is lost, whatever flags and counts in the same descriptor deny.
#[test]
fn a_table_is_found_although_flags_and_counts_deny_its_files() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    let several = SEVERAL[2..].iter().map(|(args, size)| (*args, *size));
    for (args, size) in several.chain(SINGLE[2..].iter().map(|args| (*args, 8 << 20))) {
        let image = filled(args, size);
        let intact = image.bytes();
        let (disk, geometry) = layout(&intact);
        let all = geometry.inodes_per_group;
        for number in 0..geometry.groups.min(2) {
            for (flags, unused, free) in [(2, all, None), (2, all - 1, None), (3, all, Some(all)), (7, 0, Some(0))] {
                let said = format!("{args:?}, group {number}: flags {flags}, {unused} unused, {free:?} free");
                let mut bytes = intact.clone();
                let mut descriptor = group(&bytes, number);
                descriptor.inode_table = free_blocks(&bytes, number);
                descriptor.flags = GroupFlags::from_bits_retain(flags);
                descriptor.itable_unused = unused;
                descriptor.free_inodes = free.unwrap_or(descriptor.free_inodes);
                let own = &mut bytes[place(&geometry, geometry.descriptor_block(0), number)];
                descriptor.set_checksum(&disk, &geometry, GroupNo(number), own);
                let report = fix(&mut bytes, Repair::All).unwrap_or_else(|refusal| panic!("{said}: {refusal}"));
                assert_eq!(report.exit, exit::REPAIRED, "{said}: {:?}", report.problems);
                assert_eq!(look(&bytes).counts, look(&intact).counts, "{said}: every file is there");
                assert!(look(&bytes).problems.is_empty(), "{said}: {:?}", look(&bytes).problems);
                image.set_bytes(&bytes);
                assert!(e2fsck(image.path()).clean, "{said}");
            }
        }
    }
}

/// Writes the location of a bitmap, relative to the group's inode table, into the descriptor and all copies.
fn set_bitmap(bytes: &mut [u8], number: u32, of_blocks: bool, distance: u64) {
    let (disk, geometry) = layout(bytes);
    let mut descriptor = group(bytes, number);
    let block = FsBlock(descriptor.inode_table.get() + distance);
    *if of_blocks { &mut descriptor.block_bitmap } else { &mut descriptor.inode_bitmap } = block;
    for of_table in std::iter::once(geometry.descriptor_block(0)).chain(geometry.descriptor_block_backups(0)) {
        let own = &mut bytes[place(&geometry, of_table, number)];
        descriptor.set_checksum(&disk, &geometry, GroupNo(number), own);
    }
}

/// A bitmap in a table that is certainly the group's is at a wrong location, not the table, for which a full volume would
/// have no other blocks.
#[test]
fn a_bitmap_in_an_inode_table_is_moved_and_the_table_stays() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    for kind in ["ext2", "ext4"] {
        for (of_blocks, distance) in [(true, 0), (true, 3), (false, 0), (false, 1), (false, 3)] {
            let said = format!("{kind}, bitmap of blocks {of_blocks}, block {distance} of the table");
            let (image, files) = full_image(kind);
            let mut bytes = image.bytes();
            set_bitmap(&mut bytes, 0, of_blocks, distance);
            image.set_bytes(&bytes);
            repairs_without_loss(&image, &files, &[], &said);
        }
    }
    for (args, size) in SEVERAL {
        let image = filled(args, size);
        let intact = image.bytes();
        for (number, of_blocks) in [(0, true), (0, false), (1, true)] {
            let said = format!("{args:?}, group {number}, bitmap of blocks {of_blocks}");
            let mut bytes = intact.clone();
            set_bitmap(&mut bytes, number, of_blocks, 2);
            let report = fix(&mut bytes, Repair::All).expect("a volume");
            assert_eq!(report.exit, exit::REPAIRED, "{said}: {:?}", report.problems);
            assert_eq!(group(&bytes, number).inode_table, group(&intact, number).inode_table, "{said}");
            assert_eq!(look(&bytes).counts, look(&intact).counts, "{said}: every file is there");
            assert!(look(&bytes).problems.is_empty(), "{said}: {:?}", look(&bytes).problems);
            image.set_bytes(&bytes);
            assert!(e2fsck(image.path()).clean, "{said}");
        }
    }
}
