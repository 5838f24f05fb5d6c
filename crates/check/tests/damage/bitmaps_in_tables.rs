//! Descriptors with a bitmap in an inode table: the number of the bitmap is wrong, not that of the table, and no file is
//! lost, whatever the counts in the same descriptor state.

use crate::lost_tables::{group, layout, look, place};
use crate::repaired::fix;
use extant_check::Repair;
use extant_check::report::{Counts, exit};
use format::group::Group;
use format::{FsBlock, GroupNo};
use std::collections::BTreeSet;
use testkit::oracle::e2fsck;
use testkit::{Image, need};

/// Volumes of several groups with files in all of them, or in most.
const VOLUMES: [(&[&str], u64); 10] = [
    (&["-t", "ext2", "-b", "1024", "-g", "1024", "-N", "256"], 4 << 20),
    (&["-t", "ext2", "-b", "1024", "-g", "1024", "-N", "256", "-I", "128"], 4 << 20),
    (&["-t", "ext3", "-b", "1024", "-g", "2048", "-N", "256", "-J", "size=1"], 8 << 20),
    (&["-t", "ext4", "-b", "1024", "-g", "2048", "-N", "256", "-J", "size=1"], 8 << 20),
    (&["-t", "ext4", "-b", "1024", "-g", "1024", "-N", "256", "-O", "^flex_bg,^has_journal,^resize_inode"], 4 << 20),
    (&["-t", "ext4", "-b", "1024", "-g", "1024", "-N", "256", "-O", "^metadata_csum,^has_journal"], 4 << 20),
    (
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-g",
            "1024",
            "-N",
            "384",
            "-O",
            "^metadata_csum,uninit_bg,^has_journal",
            "-G",
            "2",
        ],
        6 << 20,
    ),
    (
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-g",
            "1024",
            "-N",
            "256",
            "-O",
            "^metadata_csum,uninit_bg,^flex_bg,^has_journal",
        ],
        4 << 20,
    ),
    (&["-t", "ext4", "-b", "4096", "-g", "256", "-N", "256", "-O", "^metadata_csum,uninit_bg,^has_journal"], 4 << 20),
    (&["-t", "ext2", "-b", "4096", "-g", "256", "-N", "256"], 4 << 20),
];

/// A volume with folders, files, and one that fills it if so wished.
fn filled(args: &[&str], size: u64, full: bool) -> Image {
    let folder = tempfile::tempdir().expect("a folder");
    for n in 0..100 {
        let own = folder.path().join(format!("folder{}", n % 5));
        std::fs::create_dir_all(&own).expect("a folder");
        std::fs::write(own.join(format!("file{n}")), format!("{n}: some text.\n").repeat(n)).expect("a file");
    }
    let image = Image::mke2fs(args, size).with_folder(folder.path()).build();
    if full {
        let file = image.beside("fill");
        std::fs::write(&file, vec![b'x'; size as usize]).expect("a file");
        image.debugfs(&[&format!("write {} fill", file.display())]);
        let mut bytes = image.bytes();
        let report = fix(&mut bytes, Repair::All).expect("a volume");
        assert_eq!(report.exit & !exit::REPAIRED, 0, "{args:?}: {:?}", report.problems);
        image.set_bytes(&bytes);
    }
    image
}

/// The blocks of files, which no repair of a descriptor or a bitmap changes.
fn unchanging(bytes: &[u8]) -> Vec<u64> {
    let (_, geometry) = layout(bytes);
    let size = geometry.block_size as usize;
    let groups: Vec<Group> = (0..geometry.groups).map(|number| group(bytes, number)).collect();
    let of_metadata = |group: &Group| {
        let table = group.inode_table.get();
        let bitmaps = [group.block_bitmap.get(), group.inode_bitmap.get()];
        bitmaps.into_iter().chain(table..table + u64::from(geometry.itable_blocks))
    };
    let metadata: BTreeSet<u64> = groups.iter().flat_map(of_metadata).collect();
    let of_group = |(number, group): (u32, &Group)| {
        let bitmap = &bytes[group.block_bitmap.get() as usize * size..][..size];
        let head = geometry.group_head(GroupNo(number));
        let blocks = geometry.group_blocks(GroupNo(number));
        let in_use = blocks.enumerate().filter(|(bit, _)| bitmap[bit / 8] >> (bit % 8) & 1 == 1);
        in_use.map(|(_, block)| block).filter(|block| !head.contains(block)).collect::<Vec<_>>()
    };
    let in_use = (0..).zip(&groups).flat_map(of_group);
    in_use.filter(|block| !metadata.contains(block)).collect()
}

/// Writes a descriptor with the right checksum, also into the copies if so wished.
fn set(bytes: &mut [u8], number: u32, copies: bool, change: impl FnOnce(&mut Group)) {
    let (disk, geometry) = layout(bytes);
    let mut descriptor = group(bytes, number);
    change(&mut descriptor);
    let others = geometry.descriptor_block_backups(0).into_iter().filter(|_| copies);
    for table in std::iter::once(geometry.descriptor_block(0)).chain(others) {
        let own = &mut bytes[place(&geometry, table, number)];
        descriptor.set_checksum(&disk, &geometry, GroupNo(number), own);
    }
}

/// The damages of a volume: the group, whether it is its block bitmap, the bitmap's wrong location, and whether the copies
/// of the descriptors have it, too.
fn damages(bytes: &[u8]) -> Vec<(u32, bool, FsBlock, bool)> {
    let (_, geometry) = layout(bytes);
    let length = u64::from(geometry.itable_blocks);
    let mut damages = Vec::new();
    for number in 0..geometry.groups {
        for of_blocks in [true, false] {
            for other in 0..geometry.groups {
                let table = group(bytes, other).inode_table.get();
                let wrong: BTreeSet<u64> = [table, table + length / 2, table + length - 1].into();
                let copies = [true, false].into_iter().take(if number == other { 2 } else { 1 });
                let wrong = wrong.into_iter().flat_map(|block| copies.clone().map(move |copies| (block, copies)));
                damages.extend(wrong.map(|(block, copies)| (number, of_blocks, FsBlock(block), copies)));
            }
        }
    }
    damages
}

/// A volume before the damage.
struct Intact<'a> {
    image: &'a Image,
    bytes: Vec<u8>,
    counts: Counts,
    /// As [`unchanging`] finds them.
    blocks: Vec<u64>,
}

impl Intact<'_> {
    /// Repairs a damaged volume: all inodes and files are unchanged, both checkers call it clean, the tables stay.
    /// Otherwise what is wrong.
    fn is_saved(&self, mut bytes: Vec<u8>) -> Result<(), String> {
        let (_, geometry) = layout(&self.bytes);
        let size = geometry.block_size as usize;
        let damaged = bytes.clone();
        let report = match fix(&mut bytes, Repair::All) {
            Ok(report) => report,
            Err(refusal) if bytes != damaged => return Err(format!("written: {refusal}")),
            Err(refusal) => return Err(format!("refused: {refusal}")),
        };
        let problems = report.problems;
        if report.exit != exit::REPAIRED {
            return Err(format!("exit {}: {problems:?}", report.exit));
        }
        let part = |bytes: &[u8], block: u64| bytes[block as usize * size..][..size].to_vec();
        let is_changed = |block: &&u64| part(&bytes, **block) != part(&self.bytes, **block);
        if let Some(block) = self.blocks.iter().find(is_changed) {
            return Err(format!("block {block} changed: {problems:?}"));
        }
        let table = |bytes: &[u8], number: u32| {
            let at = group(bytes, number).inode_table.get() as usize * size;
            bytes[at..][..geometry.itable_blocks as usize * size].to_vec()
        };
        let is_other = |number: &u32| table(&bytes, *number) != table(&self.bytes, *number);
        if let Some(number) = (0..geometry.groups).find(is_other) {
            return Err(format!("inodes of group {number} changed: {problems:?}"));
        }
        let after = look(&bytes);
        if !after.problems.is_empty() || after.counts != self.counts {
            return Err(format!("{:?}, {:?} after {problems:?}", after.counts, after.problems));
        }
        self.image.set_bytes(&bytes);
        if !e2fsck(self.image.path()).clean {
            return Err(String::from("not clean for e2fsck"));
        }
        let is_moved = |number: &u32| group(&bytes, *number).inode_table != group(&self.bytes, *number).inode_table;
        (0..geometry.groups).find(is_moved).map_or(Ok(()), |number| Err(format!("moved: table of group {number}")))
    }
}

/// Repairs the volume with each damage, and with wrong counts besides; returns what was lost, or refused.
fn failures(args: &[&str], image: &Image) -> Vec<String> {
    let bytes = image.bytes();
    let intact = Intact { image, counts: look(&bytes).counts, blocks: unchanging(&bytes), bytes };
    let (_, geometry) = layout(&intact.bytes);
    let all = geometry.inodes_per_group;
    let checksums = geometry.metadata_csum || geometry.gdt_csum;
    let wrong_counts = [
        (None, None),
        (Some(all), None),
        (Some(0), None),
        (Some(1), Some(0)),
        (Some(all - 1), None),
        (None, Some(all)),
    ];
    let mut wrong_counts = wrong_counts.into_iter().cycle();
    let mut failures = Vec::new();
    for (number, of_blocks, block, copies) in damages(&intact.bytes) {
        let (free, unused) = wrong_counts.next().filter(|_| copies).unwrap_or_default();
        let unused = unused.filter(|_| checksums);
        let mut bytes = intact.bytes.clone();
        set(&mut bytes, number, copies, |group| {
            *if of_blocks { &mut group.block_bitmap } else { &mut group.inode_bitmap } = block;
            group.free_inodes = free.unwrap_or(group.free_inodes);
            group.itable_unused = unused.unwrap_or(group.itable_unused);
        });
        if let Err(what) = intact.is_saved(bytes) {
            failures.push(format!(
                "{args:?}, group {number}, blocks {of_blocks}, block {block}, copies {copies}, {free:?} free, \
                 {unused:?} unused: {what}"
            ));
        }
    }
    failures
}

#[test]
fn a_bitmap_in_any_inode_table_costs_no_file() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let failures: Vec<_> =
        VOLUMES.iter().flat_map(|(args, size)| failures(args, &filled(args, *size, false))).collect();
    assert!(failures.is_empty(), "{}: {failures:#?}", failures.len());
}

#[test]
fn a_bitmap_in_any_inode_table_of_a_full_volume_costs_no_file() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let volumes = [VOLUMES[0], VOLUMES[6], VOLUMES[9]];
    let failures: Vec<_> = volumes.iter().flat_map(|(args, size)| failures(args, &filled(args, *size, true))).collect();
    assert!(failures.is_empty(), "{}: {failures:#?}", failures.len());
}

/// Tables where mkfs was asked to put them: directories in them state their own numbers, otherwise nothing is written.
#[test]
fn a_bitmap_in_an_inode_table_at_an_unusual_location_costs_no_file() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    for features in ["flex_bg,^has_journal", "flex_bg,uninit_bg,^has_journal"] {
        let args = ["-t", "ext3", "-b", "1024", "-g", "1024", "-N", "128", "-G", "2", "-E", "packed_meta_blocks=1"];
        let args = [&args[..], &["-O", features]].concat();
        let failures = failures(&args, &filled(&args, 4 << 20, false));
        let is_safe =
            |what: &&String| ["refused: ", "moved: "].iter().any(|said| what.contains(&format!("unused: {said}")));
        let (safe, lost): (Vec<_>, Vec<_>) = failures.iter().partition(is_safe);
        assert!(lost.is_empty(), "{}: {lost:#?}", lost.len());
        // without a directory in the table nothing shows whose it is
        assert!(safe.len() <= 4, "{}: {safe:#?}", safe.len());
    }
}
