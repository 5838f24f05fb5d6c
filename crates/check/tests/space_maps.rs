//! Space maps on volumes created by mke2fs: conversion in both directions, damage, repair, interruption.

use blockdev::{BlockDevice, MemoryDevice};
use damage::{Kind, damage};
use extant_check::report::{Report, exit};
use extant_check::table::Code;
use extant_check::{FreeSpaceForm, Options, Refusal, Repair, check, convert, repair};
use format::space_map::SpaceMaps;
use format::space_map::head::Head;
use format::space_map::ring::{Record, RingBlock};
use format::superblock::{DiskSuperblock, OFFSET, Superblock};
use format::{FsBlock, GroupNo};
use simdev::{Log, Logged};
use std::sync::Arc;
use testkit::oracle::{debugfs_dump, e2fsck};
use testkit::{Image, Spec, Tree, cases, need, repair_checksums};
use zerocopy::{FromBytes, IntoBytes};

const MAPS: FreeSpaceForm = FreeSpaceForm::SpaceMaps { groups: Some(2) };

/// Options of mke2fs for volumes with several groups in a metablockgroup, the last of which is short.
const VOLUMES: [&[&str]; 4] = [
    &["-t", "ext4", "-b", "1024", "-J", "size=1"],
    &["-t", "ext4", "-b", "1024", "-g", "2048", "-O", "^has_journal"],
    &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,uninit_bg,^has_journal"],
    &["-t", "ext4", "-b", "4096", "-g", "1024", "-O", "^has_journal,^64bit,meta_bg,^resize_inode"],
];

fn options(repair: Repair) -> Options {
    Options { repair, now: Some(1_700_000_000), ..Options::default() }
}

fn image(args: &[&str]) -> Image {
    let image = Image::mke2fs(args, (33 << 20) + (300 << 10)).with_tree(&Tree::new(5, &Spec::small())).build();
    let verdict = e2fsck(image.path());
    assert!(verdict.clean, "{args:?}: {}", verdict.text);
    image
}

fn contents(device: &dyn BlockDevice) -> Vec<u8> {
    let mut bytes = vec![0; device.geometry().len as usize];
    device.read(0, &mut bytes).expect("memory");
    bytes
}

/// Converts these bytes; returns the result, and the requests to the device.
fn converted(bytes: &[u8], to: FreeSpaceForm) -> Result<(Vec<u8>, bool, Log), Refusal> {
    let device = Arc::new(simdev::Record::in_memory(MemoryDevice::from_vec(bytes.to_vec())));
    let as_device: Arc<dyn BlockDevice> = Arc::<simdev::Record<MemoryDevice, Vec<u8>>>::clone(&device);
    let done = convert("volume", &as_device, to, &options(Repair::No), &())?;
    Ok((contents(&*as_device), done, device.log().expect("a whole log")))
}

fn look(bytes: &[u8]) -> Report {
    check("volume", &MemoryDevice::from_vec(bytes.to_vec()), &options(Repair::No), &()).expect("a volume")
}

fn fix(bytes: &[u8]) -> (Vec<u8>, Report) {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_vec(bytes.to_vec()));
    let report = repair("volume", &device, &options(Repair::All), &(), None).expect("a volume");
    (contents(&*device), report)
}

fn codes(report: &Report) -> Vec<Code> {
    report.problems.iter().map(|problem| problem.code).collect()
}

/// A volume with space maps, parsed.
struct Mapped {
    bytes: Vec<u8>,
    maps: SpaceMaps,
    heads: Vec<Head>,
}

impl Mapped {
    fn new(args: &[&str]) -> Self {
        let (bytes, done, _) = converted(&image(args).bytes(), MAPS).expect("converted");
        assert!(done);
        let sb = Superblock::parse(&bytes[OFFSET as usize..][..1024]).expect("a superblock");
        let maps = SpaceMaps::of(&sb).expect("valid").expect("space maps");
        let size = maps.geometry().block_size as usize;
        let head = |map| {
            let block = maps.head_at(map).0.get() as usize;
            Head::parse(&bytes[block * size..][..size], &maps, map).expect("a head")
        };
        let heads = (0..maps.maps()).map(head).collect();
        Self { bytes, heads, maps }
    }

    fn at(&self, block: FsBlock) -> usize {
        block.get() as usize * self.maps.geometry().block_size as usize
    }

    /// A free run inside one group, from the first tree that has one.
    fn free_run(&self, blocks: u32) -> FsBlock {
        let size = self.maps.geometry().block_size as usize;
        for head in &self.heads {
            let place = self.at(head.tree(&self.maps));
            let bytes = &self.bytes[place..place + self.maps.place_blocks(head.number) as usize * size];
            let tree = format::space_map::tree::Tree::parse(bytes, &self.maps, head).expect("a tree");
            for (group, free) in self.maps.groups_of(head.number).map(GroupNo).zip(&tree.groups) {
                if let Some(run) = free.runs(self.maps.units(group)).find(|run| run.end - run.start >= blocks) {
                    return FsBlock(self.maps.geometry().group_start(group).get() + u64::from(run.start));
                }
            }
        }
        panic!("nothing is free")
    }

    /// The volume with these generations appended to its log.
    fn with_log(&self, generations: &[(u64, Vec<Record>)]) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        for (position, (sequence, records)) in (0..).zip(generations) {
            let block = RingBlock { sequence: *sequence, position, left: 0, records: records.clone() };
            let at = self.at(self.maps.ring_block(position));
            let size = self.maps.geometry().block_size as usize;
            block.write(&mut bytes[at..at + size], &self.maps);
        }
        bytes
    }
}

/// Checks that the damage is found as one of these codes, repaired in one run, and the volume clean then.
fn found_and_repaired(bytes: &[u8], expected: Code, said: &str) {
    let found = look(bytes);
    assert!(!found.clean && codes(&found).contains(&expected), "{said}: {:?}", found.problems);
    let (repaired, report) = fix(bytes);
    assert_eq!(report.exit, exit::REPAIRED, "{said}: {:?}", report.problems);
    let after = look(&repaired);
    assert!(after.problems.is_empty(), "{said}: {:?}", after.problems);
}

#[test]
fn a_volume_is_converted_there_and_back() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    for args in VOLUMES {
        let image = image(args);
        let before = image.bytes();
        let (mapped, done, _) = converted(&before, MAPS).expect("converted");
        assert!(done, "{args:?}");
        let report = look(&mapped);
        assert!(report.problems.is_empty(), "{args:?}: {:?}", report.problems);
        image.set_bytes(&mapped);
        let refused = e2fsck(image.path());
        assert!(!refused.clean && refused.text.contains("unsupported"), "{args:?}: {}", refused.text);
        assert!(!converted(&mapped, MAPS).expect("looked at").1, "{args:?}: it has space maps already");
        // the copies describe the new form
        let mut lost = mapped.clone();
        lost[OFFSET as usize..][..3072].fill(0);
        found_and_repaired(&lost, Code::SuperblockTryBackup, "superblock and descriptors are lost");

        let (back, done, _) = converted(&mapped, FreeSpaceForm::Bitmaps).expect("converted back");
        assert!(done, "{args:?}");
        image.set_bytes(&back);
        let verdict = e2fsck(image.path());
        assert!(verdict.clean, "{args:?}: {}", verdict.text);
        let report = look(&back);
        assert!(report.problems.is_empty(), "{args:?}: {:?}", report.problems);
        assert!(!converted(&back, FreeSpaceForm::Bitmaps).expect("looked at").1, "{args:?}");
        // the number of free blocks is unchanged
        let sb = |bytes: &[u8]| Superblock::parse(&bytes[OFFSET as usize..][..1024]).expect("a superblock");
        assert_eq!(sb(&back).disk.free_blocks_count(), sb(&before).disk.free_blocks_count(), "{args:?}");
        let listing = debugfs_dump(image.path(), "/lost+found");
        assert!(!listing.is_empty(), "{args:?}");
    }
}

#[test]
fn what_cannot_be_converted_stays_as_it_is() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    let refused = |args: &[&str], to, word: &str| {
        let bytes = image(args).bytes();
        let Err(Refusal { sentence: refusal, .. }) = converted(&bytes, to) else { panic!("{args:?} was converted") };
        assert!(refusal.contains(word), "{args:?}: {refusal}");
    };
    refused(&["-t", "ext3", "-b", "1024", "-J", "size=1"], MAPS, "flex_bg");
    refused(&["-t", "ext4", "-O", "bigalloc", "-C", "8192", "-b", "1024", "-J", "size=1"], MAPS, "bigalloc");
    refused(VOLUMES[0], FreeSpaceForm::SpaceMaps { groups: Some(3) }, "3 groups");
    // damaged
    let mut bytes = image(VOLUMES[1]).bytes();
    let at = bytes.len() / 2;
    bytes[2048..4096].fill(0xFF);
    bytes[at] ^= 1;
    assert!(converted(&bytes, MAPS).is_err());
    // full
    let folder = tempfile::tempdir().expect("a folder");
    let full = || Image::mke2fs(&["-t", "ext4", "-b", "1024", "-m", "0", "-O", "^has_journal"], 8 << 20);
    let empty = full().with_folder(folder.path()).build().bytes();
    let free = Superblock::parse(&empty[OFFSET as usize..][..1024]).expect("a superblock").disk.free_blocks_count();
    std::fs::write(folder.path().join("large"), vec![1; (free as usize - 6) << 10]).expect("a file");
    let full = full().with_folder(folder.path()).build();
    let sentence = converted(&full.bytes(), FreeSpaceForm::SpaceMaps { groups: Some(4096) }).map(|_| ());
    let sentence = sentence.expect_err("refused").sentence;
    assert!(sentence.contains("contiguous") || sentence.contains("too few"), "{sentence}");
}

#[test]
fn a_conversion_cut_between_two_writes_is_finished_by_the_next() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    let before = image(VOLUMES[1]).bytes();
    let (mapped, _, there) = converted(&before, MAPS).expect("converted");
    let (back, _, home) = converted(&mapped, FreeSpaceForm::Bitmaps).expect("converted back");
    for (start, end, log, to) in [(&before, &mapped, &there, MAPS), (&mapped, &back, &home, FreeSpaceForm::Bitmaps)] {
        let mut state = start.clone();
        let writes = log.entries().iter().filter(|entry| matches!(entry.what, Logged::Write { .. })).count();
        assert!(writes > 4);
        let mut last = None;
        for n in 0..log.entries().len() {
            for (offset, piece) in log.parts(n) {
                state[offset as usize..][..piece.len()].copy_from_slice(piece);
            }
            if last.as_ref() == Some(&state) {
                continue;
            }
            let (after, _, _) = converted(&state, to).expect("converted");
            assert!(after == *end, "{to:?}, cut after {n}: it ends elsewhere");
            let (_, report) = fix(&state);
            assert!(report.clean, "{to:?}, cut after {n}: {:?}", report.problems);
            last = Some(state.clone());
        }
        assert!(state == *end);
    }
}

#[test]
fn the_log_is_applied_to_the_trees() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    let volume = Mapped::new(VOLUMES[0]);
    let start = volume.free_run(40);
    let record = |allocated| Record { start, blocks: 40, allocated };
    let next = volume.heads[0].sequence + 1;
    // blocks allocated and freed again, and a generation that is already included in the tree
    let intact =
        volume.with_log(&[(next - 1, vec![record(true)]), (next, vec![record(true)]), (next + 1, vec![record(false)])]);
    let report = look(&intact);
    assert!(report.problems.is_empty(), "{:?}", report.problems);

    let unused = volume.with_log(&[(next, vec![record(true)])]);
    found_and_repaired(&unused, Code::BlockRangeMarkedButUnused, "blocks that nothing has");
    let freed = volume.with_log(&[(next, vec![record(false)])]);
    found_and_repaired(&freed, Code::SpaceMapRecordFreesFree, "free blocks freed");
    let twice = volume.with_log(&[(next, vec![record(true)]), (next + 1, vec![record(true)])]);
    found_and_repaired(&twice, Code::SpaceMapRecordTakesUsed, "blocks allocated twice");
    let order = volume.with_log(&[(next + 1, vec![record(true)]), (next, vec![record(false)])]);
    found_and_repaired(&order, Code::SpaceMapLogBlockWrong, "generations out of order");
    let root = FsBlock(volume.maps.table().start);
    let own = volume.with_log(&[(next, vec![Record { start: root, blocks: 1, allocated: false }])]);
    found_and_repaired(&own, Code::BlockUsedButUnmarked, "the volume's own blocks freed");
    // the next sequence was never used
    let (repaired, _) = fix(&own);
    let head = &repaired[volume.at(root)..][..volume.maps.geometry().block_size as usize];
    assert_eq!(Head::parse(head, &volume.maps, 0).expect("a head").sequence, next + 1);
}

#[test]
fn damage_anywhere_is_found_and_repaired() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    let volumes: Vec<Mapped> = VOLUMES.iter().map(|args| Mapped::new(args)).collect();
    for case in cases("damaged space maps", 40) {
        let mut rng = case.rng();
        let volume = rng.pick(&volumes);
        let start = volume.free_run(8);
        let record = |allocated| Record { start, blocks: 8, allocated };
        let next = volume.heads.iter().map(|head| head.sequence).max().expect("a head") + 1;
        let mut bytes = volume.with_log(&[(next, vec![record(true)]), (next + 1, vec![record(false)])]);
        let head = rng.pick(&volume.heads);
        let (at, len, code) = match rng.below(3) {
            0 => {
                let (block, offset) = volume.maps.head_at(head.number);
                (volume.at(block) + offset, 64, Code::SpaceMapHeadWrong)
            }
            1 => (volume.at(head.tree(&volume.maps)), head.length as usize, Code::SpaceMapTreeWrong),
            _ => (volume.at(volume.maps.ring_block(rng.below(2))), 40, Code::SpaceMapLogBlockWrong),
        };
        let flipped = at + rng.index(len);
        bytes[flipped] ^= 1 << rng.below(8);
        found_and_repaired(&bytes, code, &format!("EXTANT_SEED={:#x}: byte {flipped}", case.seed));
    }
}

#[test]
fn every_kind_of_damage_to_them_is_found_and_repaired() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    let volumes = [Mapped::new(VOLUMES[0]), Mapped::new(VOLUMES[3])];
    let kinds: Vec<Code> =
        Code::ALL.iter().copied().filter(|code| (0x0E_0030..0x0E_0040).contains(&code.number())).collect();
    assert_eq!(kinds.len(), 6);
    for (volume, seed) in volumes.iter().flat_map(|volume| (0..5).map(move |seed| (volume, seed))) {
        for code in &kinds {
            let device = MemoryDevice::from_vec(volume.bytes.clone());
            damage(&device, Kind::Problem(code.number()), seed).unwrap_or_else(|e| panic!("{code:?}: {e}"));
            found_and_repaired(&contents(&device), *code, &format!("{code:?}, seed {seed}"));
        }
    }
    // the damage to block bitmaps is not possible
    let device = MemoryDevice::from_vec(volumes[0].bytes.clone());
    for code in [Code::BlockMarkedButUnused, Code::BlockRangeUsedButUnmarked, Code::BlockBitmapPaddingWrong] {
        assert!(damage(&device, Kind::Problem(code.number()), 1).is_err(), "{code:?}");
    }
    assert!(contents(&device) == volumes[0].bytes);
}

/// With groups of 1 MiB, 8 GiB has more of them than a metablockgroup may have.
#[test]
fn the_default_number_of_groups_is_a_possible_one() {
    if !need(&["mke2fs"]) {
        return;
    }
    let image =
        Image::mke2fs(&["-t", "ext4", "-b", "1024", "-g", "1024", "-O", "meta_bg,^resize_inode"], 24 << 20).build();
    let (mapped, done, _) = converted(&image.bytes(), FreeSpaceForm::SpaceMaps { groups: None }).expect("converted");
    assert!(done && look(&mapped).problems.is_empty());
}

#[test]
fn descriptors_that_speak_of_bitmaps_are_put_right() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    // without checksums, so that only the field is wrong
    let volume = Mapped::new(&["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,^uninit_bg,^has_journal,^64bit"]);
    let geometry = volume.maps.geometry();
    let table = volume.at(geometry.descriptor_block(0));
    let size = geometry.descriptor_size as usize;
    for (group, field, value) in [(0, 0x0C, 7u8), (2, 0x00, 9)] {
        let mut bytes = volume.bytes.clone();
        bytes[table + group * size + field] = value;
        found_and_repaired(&bytes, Code::SpaceMapDescriptorWrong, &format!("field {field:#x} of group {group}"));
    }
}

#[test]
fn an_unknown_feature_of_our_own_is_not_checked() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    let mut bytes = Mapped::new(VOLUMES[1]).bytes;
    let at = OFFSET as usize;
    let mut sb = DiskSuperblock::from_slice(&bytes[at..at + 1024]).expect("a superblock");
    sb.x_ro_features = (sb.x_ro_features.get() | 1 << 9).into();
    bytes[at..at + 1024].copy_from_slice(sb.as_bytes());
    repair_checksums(&mut bytes);
    let refusal = check("volume", &MemoryDevice::from_vec(bytes), &options(Repair::No), &()).expect_err("refused");
    assert!(refusal.sentence.contains("FEATURE_Y9"), "{}", refusal.sentence);
}

/// A head whose location differs from all descriptors is wrong, and the blocks at its location are not changed.
#[test]
fn one_head_is_outweighed_by_the_descriptors() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    let volume = Mapped::new(VOLUMES[1]);
    let size = volume.maps.geometry().block_size as usize;
    let sb = Superblock::parse(&volume.bytes[OFFSET as usize..][..1024]).expect("a superblock");
    let table = first_inode_table(&volume.bytes, &sb);
    let (expected, _, _) = converted(&volume.bytes, FreeSpaceForm::Bitmaps).expect("converted back");
    let image = image(VOLUMES[1]);
    for places in [table, table + 1, volume.heads[1].places.get() + 1, 5000] {
        let mut bytes = volume.bytes.clone();
        let head = Head { places: FsBlock(places), ..volume.heads[0] };
        let block = volume.maps.head_at(0).0.get() as usize * size;
        head.write(&mut bytes[block..block + size], &volume.maps);
        if Head::parse(&bytes[block..block + size], &volume.maps, 0).is_err() {
            continue;
        }
        let report = look(&bytes);
        assert!(codes(&report).contains(&Code::SpaceMapHeadWrong), "{places}: {report:?}");
        let (after, report) = fix(&bytes);
        assert_eq!(report.exit & exit::LEFT, 0, "{places}: {report:?}");
        assert!(look(&after).clean, "{places}");
        let (back, done, _) = converted(&after, FreeSpaceForm::Bitmaps).expect("converted back");
        assert!(done);
        image.set_bytes(&back);
        let verdict = e2fsck(image.path());
        assert!(verdict.clean, "{places}: {}", verdict.text);
        let free = |bytes: &[u8]| {
            Superblock::parse(&bytes[OFFSET as usize..][..1024])
                .map(|sb| sb.disk.free_blocks_count())
                .expect("a volume")
        };
        assert_eq!(free(&back), free(&expected), "{places}");
        let inodes = table as usize * size..(table as usize + sb.geometry.itable_blocks as usize) * size;
        assert!(back[inodes.clone()] == expected[inodes], "{places}: the inode table is not as it was");
    }
}

/// The block of group 0's inode table.
fn first_inode_table(bytes: &[u8], sb: &Superblock) -> u64 {
    let at = (u64::from(sb.geometry.first_data_block) + 1) * u64::from(sb.geometry.block_size);
    u64::from(u32::from_le_bytes(bytes[at as usize + 8..at as usize + 12].try_into().expect("four bytes")))
}

/// The primary's space map fields are wrong under a right checksum: those of a copy are used.
#[test]
fn wrong_numbers_of_maps_are_put_right_from_a_copy() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    type Change = fn(&mut DiskSuperblock);
    let cases: [(&str, Change); 9] = [
        ("no metablockgroups", |sb| sb.x_map_groups = 0.into()),
        ("smaller ones", |sb| sb.x_map_groups = (sb.x_map_groups.get() / 2).into()),
        ("larger ones", |sb| sb.x_map_groups = (sb.x_map_groups.get() * 2).into()),
        ("a table on the descriptors", |sb| sb.x_map_start = 2.into()),
        ("a table elsewhere", |sb| sb.x_map_start = (sb.x_map_start.get() + 1).into()),
        ("a table beyond the volume", |sb| sb.x_map_start = u64::MAX.into()),
        ("a longer log", |sb| sb.x_space_map_log = (sb.x_space_map_log.get() * 2).into()),
        ("a log that ends in other blocks", |sb| sb.x_space_map_log = (sb.x_space_map_log.get() + 60).into()),
        ("a short log", |sb| sb.x_space_map_log = 4.into()),
    ];
    let volume = Mapped::new(VOLUMES[1]);
    for (said, change) in cases {
        let mut bytes = volume.bytes.clone();
        let sb = DiskSuperblock::mut_from_bytes(&mut bytes[OFFSET as usize..][..1024]).expect("a superblock");
        let right = sb.x_space_map_log.get();
        change(sb);
        sb.s_checksum = sb.checksum().into();
        let before = look(&bytes);
        let (after, report) = fix(&bytes);
        assert_eq!(report.exit & exit::LEFT, 0, "{said}: {report:?}");
        assert!(look(&after).clean, "{said}: {:?}", look(&after));
        let sb = Superblock::parse(&after[OFFSET as usize..][..1024]).expect("a superblock");
        println!("{said}: log {} instead of {right}, {:?}", sb.disk.x_space_map_log.get(), codes(&before));
        let (back, done, _) = converted(&after, FreeSpaceForm::Bitmaps).expect("converted back");
        assert!(done);
        let image = image(VOLUMES[1]);
        image.set_bytes(&back);
        let verdict = e2fsck(image.path());
        assert!(verdict.clean, "{said}: {}", verdict.text);
    }
}

/// If table or log of the superblock overlap descriptors, the check is refused, and nothing is written.
#[test]
fn a_table_on_descriptors_is_refused() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    let volume = Mapped::new(VOLUMES[1]);
    let mut bytes = volume.bytes.clone();
    // nor are the copies better
    let geometry = Superblock::parse(&bytes[OFFSET as usize..][..1024]).expect("a superblock").geometry;
    let copies = geometry.backup_groups().filter_map(|group| geometry.superblock_block(group));
    let copies: Vec<usize> = copies.map(|block| block.get() as usize * geometry.block_size as usize).collect();
    assert!(!copies.is_empty());
    for at in copies.into_iter().chain([OFFSET as usize]) {
        let sb = DiskSuperblock::mut_from_bytes(&mut bytes[at..][..1024]).expect("a superblock");
        sb.x_map_start = 2.into();
        sb.s_checksum = sb.checksum().into();
    }
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_vec(bytes.clone()));
    let refused = repair("volume", &device, &options(Repair::All), &(), None).expect_err("refused");
    assert!(refused.to_string().contains("x_map_start"), "{refused}");
    assert!(contents(&*device) == bytes);
}
