//! Damaged blocks that snapshots of a native volume pin: the check finds the damage, and names the snapshot.

use blockdev::{BlockDevice, MemoryDevice};
use check::render::verdict;
use check::report::Report;
use check::{Glance, InUse, Options, Refusal, Repair, check, check_in_use, repair};
use format::native::map::{BlockKind, DiskEntry, ENTRIES, Entry, Node, Position};
use format::native::snapshots::Snapshot;
use format::native::superblock::NativeSuperblock;
use format::native::{chunk_table, snapshots};
use fs::mkfs::{Kind, MkfsOptions, make};
use fs::{FileKind, InodeNo, NewFile, OpenOptions, Volume, WriteOptions};
use std::sync::Arc;

const BLOCK: u64 = 4096;

/// A volume with two snapshots that differ from each other and from the live version.
fn volume() -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::zeroed(64 << 20).expect("memory"));
    make(&*device, &MkfsOptions::new(Kind::Extant)).expect("a volume");
    let write = WriteOptions { seed: Some(3), ..WriteOptions::default() };
    let options = OpenOptions { write: Some(write), ..OpenOptions::default() };
    let volume = Volume::open(Arc::clone(&device) as Arc<dyn BlockDevice>, &options).expect("opening");
    let new = |kind| NewFile { kind, mode: 0o755, umask: 0, uid: 0, gid: 0, device: (0, 0) };
    for round in 0..3u8 {
        let dir = volume.create(InodeNo::ROOT, &[b'd', b'0' + round], &new(FileKind::Directory)).expect("a directory");
        for n in 0..40 {
            let file = volume.create(dir.number, format!("f{n}").as_bytes(), &new(FileKind::Regular)).expect("a file");
            volume.write_at(file.number, 0, &vec![round + 1; 9000]).expect("writing");
        }
        if round > 0 {
            let old = volume.resolve(&[b'/', b'd', b'0' + round - 1]).expect("the directory");
            (0..20).for_each(|n| volume.unlink(old, format!("f{n}").as_bytes()).expect("removing"));
        }
        if round < 2 {
            volume.create_snapshot(&[b's', b'0' + round]).expect("a snapshot");
        }
    }
    volume.unmount().expect("unmounting");
    device
}

fn block(device: &MemoryDevice, physical: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK as usize];
    device.read(physical * BLOCK, &mut bytes).expect("reading");
    bytes
}

fn newest(device: &MemoryDevice) -> (NativeSuperblock, u64) {
    let blocks = [block(device, 0), block(device, 1)].concat();
    NativeSuperblock::newest(&blocks).expect("a superblock")
}

/// Every leaf entry below a root, and the physical blocks of the nodes.
fn walk(device: &MemoryDevice, sb: &NativeSuperblock, root: &Entry) -> (Vec<(u64, Entry)>, Vec<u64>) {
    let (mut above, mut nodes) = (vec![(0, *root)], Vec::new());
    for level in (0..sb.layout.levels()).rev() {
        let mut below = Vec::new();
        for (number, entry) in above {
            nodes.push(entry.physical);
            let node = Node::parse(&block(device, entry.physical), level, &sb.layout).expect("a node");
            below.extend(node.present().map(|(slot, entry)| (number * ENTRIES as u64 + slot as u64, entry)));
        }
        above = below;
    }
    (above, nodes)
}

fn list(device: &MemoryDevice, sb: &NativeSuperblock) -> (Vec<Snapshot>, u64) {
    let (entries, _) = walk(device, sb, &sb.root);
    let (_, entry) = entries.iter().find(|(index, _)| *index == sb.layout.list().start).expect("a list");
    let list = snapshots::parse(&block(device, entry.physical), &sb.layout).expect("a list");
    (list.into_iter().flatten().collect(), entry.physical)
}

fn checked(device: &MemoryDevice) -> Report {
    check("volume", device, &Options::default(), &()).expect("a volume to check")
}

/// Checks a volume in use, through this snapshot.
fn in_use(device: &MemoryDevice, snapshot: &[u8]) -> Result<Report, Refusal> {
    let what = InUse { snapshot, before: &Glance::of(device), alone: false };
    check_in_use("volume", device, &what, &Options::default(), &())
}

#[track_caller]
fn found(device: &MemoryDevice, wanted: &str) {
    let report = checked(device);
    let texts: Vec<_> = report.problems.iter().map(|problem| &problem.text).collect();
    assert!(!report.clean && texts.iter().any(|text| text.contains(wanted)), "{wanted}: {texts:?}");
}

fn flip(device: &MemoryDevice, at: u64) {
    let mut byte = [0];
    device.read(at, &mut byte).expect("reading");
    device.write(at, &[byte[0] ^ 0x10]).expect("writing");
}

fn copy(device: &MemoryDevice) -> MemoryDevice {
    let mut bytes = vec![0; device.geometry().len as usize];
    device.read(0, &mut bytes).expect("reading");
    MemoryDevice::from_vec(bytes)
}

/// Rewrites a block with other bytes, and every node above it, so that all checksums are correct.
fn rewrite(device: &MemoryDevice, root: Entry, index: u64, bytes: &[u8]) -> Entry {
    let (sb, _) = newest(device);
    let (_, mut entry) = *walk(device, &sb, &root).0.iter().find(|(at, _)| *at == index).expect("an entry");
    device.write(entry.physical * BLOCK, bytes).expect("writing");
    entry.checksum = Position::Block(index).checksum(sb.seed(), bytes);
    rewrite_entry(device, root, index, Some(entry))
}

/// Redirects an entry to another physical block.
fn moved(device: &MemoryDevice, root: Entry, index: u64, physical: u64) -> Entry {
    let (sb, _) = newest(device);
    let (_, entry) = *walk(device, &sb, &root).0.iter().find(|(at, _)| *at == index).expect("an entry");
    rewrite_entry(device, root, index, Some(Entry { physical, ..entry }))
}

/// Replaces an entry of a leaf, and every node above it.
fn rewrite_entry(device: &MemoryDevice, root: Entry, index: u64, new: Option<Entry>) -> Entry {
    let (sb, _) = newest(device);
    let mut path = Vec::new();
    let mut entry = root;
    for level in (0..sb.layout.levels()).rev() {
        let node = Node::parse(&block(device, entry.physical), level, &sb.layout).expect("a node");
        let slot = (index >> (7 * u32::from(level))) as usize % ENTRIES;
        path.push((entry, level, node.clone(), slot));
        if level > 0 {
            entry = node.get(slot).expect("an entry");
        }
    }
    let mut entry = new;
    for (above, level, mut node, slot) in path.into_iter().rev() {
        node.set(slot, entry);
        let bytes = node.to_bytes();
        device.write(above.physical * BLOCK, &bytes).expect("writing");
        let number = index >> (7 * (u32::from(level) + 1));
        entry = Some(Entry { checksum: Position::Node { level, number }.checksum(sb.seed(), &bytes), ..above });
    }
    entry.expect("a root")
}

/// Replaces the root in the newest superblock.
fn set_root(device: &MemoryDevice, root: Entry) {
    let (sb, at) = newest(device);
    device.write(at * BLOCK, &NativeSuperblock { root, ..sb }.to_bytes()).expect("writing");
}

#[test]
fn a_consistent_volume_is_clean_and_each_snapshot_can_be_checked_alone() {
    let device = volume();
    let report = checked(&device);
    assert!(report.clean && report.format == "extant", "{:?}", report.problems);
    for name in [b"s0", b"s1"] {
        let report = in_use(&device, name).expect("the snapshot");
        assert!(report.clean && report.not_looked_at.is_empty(), "{:?}", report.problems);
    }
    let refused = in_use(&device, b"s2").expect_err("there is none");
    assert!(refused.sentence.contains("no such snapshot"), "{refused}");
}

#[test]
fn every_damaged_block_of_a_snapshot_is_found() {
    let intact = volume();
    let (sb, _) = newest(&intact);
    let (snapshots, _) = list(&intact, &sb);
    let (live, live_nodes) = walk(&intact, &sb, &sb.root);
    for snapshot in &snapshots {
        let name = String::from_utf8_lossy(&snapshot.name).into_owned();
        let (entries, nodes) = walk(&intact, &sb, &snapshot.root);
        let live: std::collections::BTreeSet<u64> =
            live.iter().map(|(_, entry)| entry.physical).chain(live_nodes.iter().copied()).collect();
        // its own blocks: nodes, blocks of the chunk table, metadata
        let own = entries.iter().map(|(_, entry)| entry.physical).chain(nodes);
        let own: Vec<u64> = own.filter(|physical| !live.contains(physical)).collect();
        assert!(own.len() > 8, "{name} shares too much");
        for (n, physical) in own.iter().enumerate() {
            let device = copy(&intact);
            flip(&device, physical * BLOCK + (n as u64 * 613) % BLOCK);
            found(&device, &format!("Block {physical} of the device: in the snapshot s"));
            if n == 0 {
                let alone = in_use(&device, &snapshot.name);
                assert!(alone.is_err() || !alone.is_ok_and(|report| report.clean), "{name}");
            }
            // the list of the second one refers to the first
            if let Ok(report) = in_use(&device, b"s1") {
                assert!(!report.clean, "{name}, block {physical}");
            }
        }
    }
}

#[test]
fn a_damaged_list_is_found() {
    let device = volume();
    let (sb, _) = newest(&device);
    let (_, physical) = list(&device, &sb);
    flip(&device, physical * BLOCK + 300);
    found(&device, &format!("Block {physical} of the device does not match"));
}

#[test]
fn physical_blocks_of_a_snapshot_are_those_of_its_table() {
    let intact = volume();
    let (sb, _) = newest(&intact);
    let (snapshots, _) = list(&intact, &sb);
    let snapshot = &snapshots[0];
    let index = sb.layout.table().start;
    let (entries, _) = walk(&intact, &sb, &snapshot.root);
    let (_, entry) = entries.iter().find(|(at, _)| *at == index).expect("its table");
    let bytes = block(&intact, entry.physical);
    for (set, what) in
        [(true, "it is allocated but unreferenced"), (false, "it is in use, but free in the chunk table")]
    {
        let device = copy(&intact);
        let mut records = chunk_table::parse(&bytes, &sb.layout).expect("a table");
        let chunk = records.iter_mut().flatten().next().expect("a chunk");
        // the first physical block of the chunk after the superblocks that is in use, or not
        let physical = (2..512).find(|n| (chunk.used[n / 64] >> (n % 64) & 1 == 1) != set).expect("a block");
        chunk.used[physical / 64] ^= 1 << (physical % 64);
        let root = rewrite(&device, snapshot.root, index, &chunk_table::to_bytes(&records));
        let mut records = snapshots::parse(&block(&device, list(&device, &sb).1), &sb.layout).expect("the list");
        records
            .iter_mut()
            .flatten()
            .filter(|record| record.name == snapshot.name)
            .for_each(|record| record.root = root);
        let root = rewrite(&device, sb.root, sb.layout.list().start, &snapshots::to_bytes(&records));
        set_root(&device, root);
        found(&device, &format!("Block {physical} of the device: in the snapshot s0, {what}"));
    }
}

#[test]
fn wrong_counts_of_pinned_blocks_are_found() {
    let device = volume();
    let (sb, _) = newest(&device);
    let (entries, _) = walk(&device, &sb, &sb.root);
    let (_, entry) = entries.iter().find(|(index, _)| *index == 1).expect("descriptors");
    let mut bytes = block(&device, entry.physical);
    let pinned = u32::from_le_bytes(bytes[0x14..0x18].try_into().unwrap());
    assert!(pinned > 0, "the snapshots pin nothing");
    bytes[0x14..0x18].copy_from_slice(&(pinned + 1).to_le_bytes());
    let root = rewrite(&device, sb.root, 1, &bytes);
    set_root(&device, root);
    found(&device, &format!("group 0 counts {} blocks pinned by snapshots, should be {pinned}", pinned + 1));
}

/// Replaces the root in the record of a snapshot.
fn set_snapshot_root(device: &MemoryDevice, name: &[u8], root: Entry) {
    let (sb, _) = newest(device);
    let mut records = snapshots::parse(&block(device, list(device, &sb).1), &sb.layout).expect("the list");
    records.iter_mut().flatten().filter(|record| record.name == name).for_each(|record| record.root = root);
    let root = rewrite(device, sb.root, sb.layout.list().start, &snapshots::to_bytes(&records));
    set_root(device, root);
}

#[test]
fn in_use_the_counts_of_pinned_blocks_are_those_of_the_moment() {
    let device = volume();
    let (sb, _) = newest(&device);
    let (snapshots, _) = list(&device, &sb);
    let (entries, _) = walk(&device, &sb, &snapshots[1].root);
    let (_, entry) = entries.iter().find(|(index, _)| *index == 1).expect("descriptors");
    let mut bytes = block(&device, entry.physical);
    bytes[0x14] ^= 1;
    set_snapshot_root(&device, b"s1", rewrite(&device, snapshots[1].root, 1, &bytes));
    let report = in_use(&device, b"s1").expect("the snapshot");
    let texts: Vec<_> = report.problems.iter().map(|problem| &problem.text).collect();
    assert!(!report.clean && texts.iter().any(|text| text.contains("blocks pinned by snapshots")), "{texts:?}");
}

#[test]
fn in_use_a_snapshot_that_is_gone_is_not_called_clean() {
    let device = volume();
    let write = WriteOptions { seed: Some(3), ..WriteOptions::default() };
    let options = OpenOptions { write: Some(write), ..OpenOptions::default() };
    let volume = Volume::open(Arc::clone(&device) as Arc<dyn BlockDevice>, &options).expect("opening");
    volume.delete_snapshot(b"s0").expect("deleting");
    volume.unmount().expect("unmounting");
    let report = in_use(&device, b"s1").expect("the snapshot");
    assert!(report.errors == 0 && !report.clean && report.exit == 8, "{:?}", report.problems);
    assert_eq!(report.not_looked_at, ["the snapshot s0", "the blocks pinned by all snapshots together"]);
    let mut text = Vec::new();
    check::render::write_text(&report, &mut text).expect("text");
    let text = String::from_utf8_lossy(&text);
    assert!(text.contains("the check is incomplete. Not checked: the snapshot s0; ") && !text.contains("still has"));
    // not a matter of this snapshot alone
    let what = InUse { snapshot: b"s1", before: &Glance::default(), alone: true };
    let report = check_in_use("volume", &*device, &what, &Options::default(), &()).expect("the snapshot");
    assert!(!report.clean && !report.not_looked_at.is_empty());
}

#[test]
fn in_use_both_superblocks_are_looked_at_before_and_after() {
    let intact = volume();
    let (_, at) = newest(&intact);
    let device = copy(&intact);
    flip(&device, (1 - at) * BLOCK + 100);
    let texts = |report: &Report| report.problems.iter().map(|problem| problem.text.clone()).collect::<Vec<_>>();
    let report = in_use(&device, b"s1").expect("the snapshot");
    let what = format!("The superblock in block {} of the device is unusable", 1 - at);
    assert!(!report.clean && texts(&report)[1].contains(&what), "{:?}", texts(&report));
    // overwritten by the snapshot's own generation
    let before = Glance::of(&device);
    let what = InUse { snapshot: b"s1", before: &before, alone: false };
    let report = check_in_use("volume", &*intact, &what, &Options::default(), &()).expect("the snapshot");
    assert!(
        !report.clean && texts(&report)[1].contains("Creating the snapshot for this check overwrote it"),
        "{:?}",
        texts(&report)
    );
}

/// The kind and the owner in an entry must match the block's use in the volume above.
#[test]
fn entries_that_say_something_else_are_found() {
    let intact = volume();
    let (sb, _) = newest(&intact);
    let (entries, _) = walk(&intact, &sb, &sb.root);
    let of = |kind| entries.iter().find(|(_, entry)| entry.kind == kind).copied();
    let (index, directory) = of(BlockKind::Directory).expect("a directory");
    let owner = directory.owner;
    for (entry, wanted) in [
        (Entry { owner: owner + 1234, ..directory }, format!("a directory block of inode {}, and", owner + 1234)),
        (Entry { kind: BlockKind::InodeTable, ..directory }, format!("it is a directory block of inode {owner}")),
        (Entry { generation: sb.generation + 1, ..directory }, "its generation is later".to_owned()),
    ] {
        let device = copy(&intact);
        let root = rewrite_entry(&device, sb.root, index, Some(entry));
        set_root(&device, root);
        found(&device, &wanted);
    }
    // for a block that is not in use
    let last = entries.iter().map(|(index, _)| *index).filter(|index| *index < sb.layout.table().start).max();
    let free = last.expect("an index") + 1;
    let physical =
        (2..512).rev().find(|physical| block(&intact, *physical).iter().all(|byte| *byte == 0)).expect("a block");
    let device = copy(&intact);
    let root = rewrite_entry(&device, sb.root, free, Some(Entry { physical, ..directory }));
    set_root(&device, rewrite(&device, root, free, &[7; BLOCK as usize]));
    found(&device, "nothing in the volume uses it");
}

#[test]
fn content_where_a_snapshot_has_metadata_is_found() {
    let device = volume();
    let (sb, _) = newest(&device);
    // the live table without the chunk of a snapshot's root: its bitmap then marks metadata as content
    let (snapshots, _) = list(&device, &sb);
    let physical = snapshots[0].root.physical;
    let index = sb.layout.table().start;
    let (entries, _) = walk(&device, &sb, &sb.root);
    let (_, entry) = entries.iter().find(|(at, _)| *at == index).expect("the table");
    let mut records = chunk_table::parse(&block(&device, entry.physical), &sb.layout).expect("a table");
    let chunk = u32::try_from(physical / 512).expect("small");
    records.iter_mut().filter(|record| record.is_some_and(|r| r.number == chunk)).for_each(|record| *record = None);
    let root = rewrite(&device, sb.root, index, &chunk_table::to_bytes(&records));
    set_root(&device, root);
    found(
        &device,
        &format!("Block {physical} of the device: one generation has metadata there, another one file data"),
    );
    assert_eq!(DiskEntry::SIZE * ENTRIES, BLOCK as usize);
}

fn repaired(device: &Arc<MemoryDevice>, how: Repair) -> Report {
    let device = Arc::clone(device) as Arc<dyn BlockDevice>;
    let options = Options { repair: how, ..Options::default() };
    repair("volume", &device, &options, &(), None).expect("something to repair")
}

#[test]
fn a_volume_left_without_consistency_is_marked_clean() {
    let device = volume();
    let write = WriteOptions { consistency: Some(fs::Consistency::None), seed: Some(3), ..WriteOptions::default() };
    let options = OpenOptions { write: Some(write), ..OpenOptions::default() };
    let open = || Volume::open(Arc::clone(&device) as Arc<dyn BlockDevice>, &options);
    let volume = open().expect("opening");
    volume.sync().expect("a sync");
    drop(volume);
    assert!(open().is_err(), "it was not unmounted");
    found(&device, "in use without consistency");
    let said = verdict(&checked(&device));
    assert!(said.ends_with("; run with -fp to repair."), "{said}");
    let report = repaired(&device, Repair::Safe);
    assert!(report.repaired && report.exit == 1, "{:?}", report.problems);
    assert!(report.problems.iter().any(|p| p.fixed && p.code.repair() == "mark removed."), "{:?}", report.problems);
    assert!(checked(&device).clean);
    open().expect("opening").unmount().expect("unmounting");
}

/// A directory block of the newest generation whose presence in the maps of the snapshots is as asked.
fn block_of_the_newest(device: &MemoryDevice, in_snapshots: bool) -> u64 {
    let (sb, _) = newest(device);
    let maps = [b"s0", b"s1"].map(|name| {
        let (snapshots, _) = list(device, &sb);
        let snapshot = snapshots.into_iter().find(|snapshot| snapshot.name == name).expect("a snapshot");
        walk(device, &sb, &snapshot.root).0
    });
    let logged = |index: u64| sb.map_log.iter().any(|(other, _)| *other == index);
    let (entries, _) = walk(device, &sb, &sb.root);
    let fits = |index: &u64, entry: &Entry| {
        let present = |map: &Vec<(u64, Entry)>| map.iter().any(|(_, other)| other.physical == entry.physical);
        let is_directory = entry.kind == BlockKind::Directory;
        is_directory && !logged(*index) && maps.iter().all(|map| present(map) == in_snapshots)
    };
    entries.into_iter().find(|(index, entry)| fits(index, entry)).expect("a block").1.physical
}

/// The next step after damage names the newest snapshot without errors, or says that there is none.
#[test]
fn the_verdict_names_a_snapshot_without_errors() {
    let intact = volume();
    for (in_snapshots, wanted) in [
        (
            false,
            "roll back to the snapshot s1, which has no errors; changes since then are lost. Where that is refused, \
             restore the data from a backup.",
        ),
        (true, "all its snapshots have errors as well, so remove the damaged files, or copy the data off."),
    ] {
        let device = copy(&intact);
        flip(&device, block_of_the_newest(&intact, in_snapshots) * BLOCK + 2000);
        let said = verdict(&checked(&device));
        assert!(said.ends_with(wanted), "{said}");
    }
}

/// If neither the newest generation nor the one before can be read, the verdict names a snapshot that can be
/// mounted.
#[test]
fn the_verdict_on_an_unreadable_volume_names_a_snapshot_to_mount() {
    let intact = volume();
    let (sb, at) = newest(&intact);
    let first =
        |root: &Entry| walk(&intact, &sb, root).0.into_iter().find(|(index, _)| *index == 0).expect("a superblock").1;
    let logged = sb.map_log.iter().find(|(index, _)| *index == 0).and_then(|(_, entry)| *entry);
    let physical = logged.unwrap_or_else(|| first(&sb.root)).physical;
    let snapshot = list(&intact, &sb).0.into_iter().find(|snapshot| snapshot.name == b"s1").expect("the snapshot");
    let device = Arc::new(copy(&intact));
    device.write(physical * BLOCK, &[0; BLOCK as usize]).expect("writing");
    flip(&device, (1 - at) * BLOCK + 100);
    let report = checked(&device);
    assert_eq!((report.exit, report.format.as_str()), (4, "extant"));
    let said = verdict(&report);
    if first(&snapshot.root).physical == physical {
        assert!(!said.contains("snapshot=s1"), "{said}");
        return;
    }
    assert!(said.ends_with("`extant mount -o ro,snapshot=s1`."), "{said}");
    let options = OpenOptions { snapshot: Some(b"s1".to_vec()), ..OpenOptions::default() };
    Volume::open(device as Arc<dyn BlockDevice>, &options).expect("the snapshot");
}

#[test]
fn a_damaged_generation_is_replaced_by_the_one_before() {
    let device = volume();
    let (sb, at) = newest(&device);
    let older = NativeSuperblock::parse(&block(&device, 1 - at)).expect("the one before");
    assert!(older.generation < sb.generation);
    flip(&device, sb.root.physical * BLOCK + 5);
    let said = verdict(&checked(&device));
    let back =
        format!("run with -fy to repair: it returns to generation {}, and later changes are lost.", older.generation);
    assert!(said.ends_with(&back), "{said}");
    // this loses the newest changes, so it is not done by default
    let safe = repair(
        "volume",
        &(Arc::clone(&device) as _),
        &Options { repair: Repair::Safe, ..Options::default() },
        &(),
        None,
    );
    assert!(!safe.is_ok_and(|report| report.clean) && newest(&device).0 == sb);
    let report = repaired(&device, Repair::All);
    assert!(report.repaired, "{:?}", report.problems);
    let said = &report.problems[0].text;
    assert!(said.contains(&format!("all changes of generation {} are lost", sb.generation)), "{said}");
    let (now, copy) = newest(&device);
    assert_eq!((now.root, now.generation, copy), (older.root, sb.generation + 1, at));
    assert!(checked(&device).clean);
}

/// Without the superblock above the map there is no volume to check, whatever the checksums: the result is damage of a
/// native volume, not another kind of device.
#[test]
fn a_map_without_a_volume_above_it_is_damage() {
    let intact = volume();
    let (sb, _) = newest(&intact);
    let (entries, _) = walk(&intact, &sb, &sb.root);
    let (_, first) = *entries.iter().find(|(index, _)| *index == 0).expect("a superblock");
    let zeroed = Arc::new(copy(&intact));
    set_root(&zeroed, rewrite(&zeroed, sb.root, 0, &[0; BLOCK as usize]));
    let unmapped = Arc::new(copy(&intact));
    set_root(&unmapped, rewrite_entry(&unmapped, sb.root, 0, None));
    for (device, wanted) in [
        (&zeroed, format!("Block {} of the device: the superblock of the volume above the map", first.physical)),
        (&unmapped, "the map leads to no superblock".to_owned()),
    ] {
        found(device, &wanted);
        let report = checked(device);
        assert_eq!((report.exit, report.format.as_str()), (4, "extant"));
        let safe = Options { repair: Repair::Safe, ..Options::default() };
        let outcome = repair("volume", &(Arc::clone(device) as Arc<dyn BlockDevice>), &safe, &(), None);
        assert!(!outcome.is_ok_and(|report| report.clean) && newest(device).0.generation == sb.generation);
        let refused = Volume::open(Arc::clone(device) as Arc<dyn BlockDevice>, &OpenOptions::default()).err();
        let refused = refused.expect("there is no volume").to_string();
        assert!(refused.starts_with("the newest generation of the native volume cannot be read"), "{refused}");
        assert!(refused.contains("extant check -fy") && !refused.contains("-b "), "{refused}");
    }
    // nothing of the previous generation was overwritten here
    let report = repaired(&unmapped, Repair::All);
    assert!(report.exit == 1 && checked(&unmapped).clean, "{:?}", report.problems);
}

/// A fault that does not prevent a mount is no reason to drop the newest changes.
#[test]
fn a_small_fault_costs_no_generation() {
    let intact = volume();
    let (sb, _) = newest(&intact);
    let (entries, _) = walk(&intact, &sb, &sb.root);
    let of = |kind| entries.iter().find(|(_, entry)| entry.kind == kind).copied().expect("a block");
    for kind in [BlockKind::BlockBitmap, BlockKind::InodeBitmap, BlockKind::Directory, BlockKind::InodeTable] {
        let (index, entry) = of(kind);
        let device = Arc::new(copy(&intact));
        let mut bytes = block(&device, entry.physical);
        bytes[4000] ^= 0x80;
        let root = rewrite(&device, sb.root, index, &bytes);
        set_root(&device, root);
        let before = [block(&device, 0), block(&device, 1)];
        let report = repaired(&device, Repair::All);
        assert!(report.exit == 4 && !report.repaired && report.problems.iter().all(|p| !p.fixed), "{kind:?}");
        assert_eq!(before, [block(&device, 0), block(&device, 1)], "{kind:?}");
    }
}

/// The newest superblock is complete except for fields available from the other one, or from its own sectors.
#[test]
fn a_superblock_of_which_enough_is_left_is_restored() {
    let intact = volume();
    let (sb, at) = newest(&intact);
    let mut uuid = sb.uuid;
    uuid[3] ^= 4;
    let long = format::native::Layout::new(sb.layout.blocks() + (1 << 32)).expect("a layout");
    let number = |sector: u64| {
        let device = Arc::new(copy(&intact));
        flip(&device, at * BLOCK + sector * 512 + 506);
        device
    };
    let with = |sb: NativeSuperblock| {
        let device = Arc::new(copy(&intact));
        device.write(at * BLOCK, &sb.to_bytes()).expect("writing");
        device
    };
    let devices = [
        number(0),
        number(3),
        with(NativeSuperblock { uuid, ..sb.clone() }),
        with(NativeSuperblock { layout: long, ..sb.clone() }),
    ];
    for (n, device) in devices.into_iter().enumerate() {
        found(&device, &format!("It contained generation {}, and can be completed with", sb.generation));
        let report = repaired(&device, Repair::All);
        assert!(report.exit == 1, "{n}: {:?}", report.problems);
        assert!(checked(&device).clean, "{n}");
        let (now, _) = newest(&device);
        assert_eq!((now.root, now.uuid, now.layout), (sb.root, sb.uuid, sb.layout), "{n}");
    }
}

/// A crash may leave a superblock that is complete but for the number in one sector: it was not reported as durable, so
/// the other one counts, and a note names it.
#[test]
fn a_superblock_that_is_complete_but_for_a_number_of_an_attempt_is_noted() {
    let device = volume();
    let (sb, at) = newest(&device);
    // a number between those of the two superblocks
    let sb = NativeSuperblock { generation: sb.generation + 1, ..sb };
    device.write(at * BLOCK, &sb.to_bytes()).expect("writing");
    for number in [sb.generation - 1, sb.generation + 1] {
        let device = Arc::new(copy(&device));
        device.write(at * BLOCK + 3 * 512 + 504, &number.to_le_bytes()).expect("writing");
        let (other, _) = newest(&device);
        assert!(other.may_be_torn(&block(&device, at)), "{number}");
        let before = [block(&device, 0), block(&device, 1)];
        for how in [Repair::No, Repair::Safe, Repair::All] {
            let report = repaired(&device, how);
            assert!(report.exit == 0 && report.clean && !report.repaired, "{number}: {:?}", report.problems);
            let noted = report.problems.iter().any(|p| p.text.contains("was not written completely"));
            assert!(noted, "{number}: {:?}", report.problems);
        }
        assert_eq!(before, [block(&device, 0), block(&device, 1)], "{number}");
    }
}

/// The newest superblock and the volume above its map have different lengths: the other, intact superblock may be the
/// correct one, and is never overwritten.
#[test]
fn a_superblock_with_errors_is_not_written_over_one_that_is_whole() {
    let intact = volume();
    let (sb, at) = newest(&intact);
    let older = NativeSuperblock::parse(&block(&intact, 1 - at)).expect("the one before");
    for blocks in [32_769, 65_536, 16_383, 16_385, 20_000] {
        let layout = format::native::Layout::new(blocks).expect("a layout");
        let device = Arc::new(copy(&intact));
        device.write(at * BLOCK, &NativeSuperblock { layout, ..sb.clone() }.to_bytes()).expect("writing");
        assert_eq!(checked(&device).exit, 4, "{blocks}");
        let report = repaired(&device, Repair::All);
        assert_eq!(block(&device, 1 - at), block(&intact, 1 - at), "{blocks}");
        // nothing of the previous generation was overwritten here, so it is restored
        assert_eq!((report.exit, checked(&device).clean), (1, true), "{blocks}: {:?}", report.problems);
        let (now, _) = newest(&device);
        assert_eq!((now.root, now.layout, now.snapshots), (older.root, older.layout, older.snapshots), "{blocks}");
    }
}

/// A superblock without a map does not replace the other one.
#[test]
fn no_superblock_without_a_map_takes_the_place_of_another() {
    let intact = volume();
    let (sb, at) = newest(&intact);
    let older = NativeSuperblock::parse(&block(&intact, 1 - at)).expect("the one before");
    let device = Arc::new(copy(&intact));
    [sb.root.physical, older.root.physical].into_iter().for_each(|physical| flip(&device, physical * BLOCK + 5));
    flip(&device, (1 - at) * BLOCK + 100);
    let before = [block(&device, 0), block(&device, 1)];
    let options = Options { repair: Repair::All, ..Options::default() };
    let outcome = repair("volume", &(Arc::clone(&device) as Arc<dyn BlockDevice>), &options, &(), None);
    assert!(!outcome.is_ok_and(|report| report.clean || report.repaired));
    assert_eq!(before, [block(&device, 0), block(&device, 1)]);
}

#[test]
fn a_generation_without_a_next_one_is_found() {
    let device = volume();
    let (sb, at) = newest(&device);
    device.write(at * BLOCK, &NativeSuperblock { generation: 1 << 63, ..sb }.to_bytes()).expect("writing");
    found(&device, "its generation number is above the maximum");
}

/// A volume as after a crash with small generations: the superblock has a map log.
#[test]
fn map_log_entries_are_checked_as_those_of_the_map_are() {
    let device = volume();
    let write = WriteOptions { seed: Some(3), ..WriteOptions::default() };
    let options = OpenOptions { write: Some(write), ..OpenOptions::default() };
    let open = || Volume::open(Arc::clone(&device) as Arc<dyn BlockDevice>, &options).expect("opening");
    let in_use = open();
    let file = in_use.resolve(b"/d2/f3").expect("a file");
    in_use.write_at(file, 9000, &[9; 9000]).expect("writing");
    in_use.fsync(file, false).expect("an fsync");
    let crashed = copy(&device);
    let (sb, at) = newest(&crashed);
    assert!(!sb.map_log.is_empty() && checked(&crashed).clean);
    // a snapshot of such a volume has its own map
    in_use.create_snapshot(b"log").expect("a snapshot");
    assert!(newest(&device).0.map_log.is_empty() && checked(&copy(&device)).clean);
    in_use.unmount().expect("unmounting");
    type MapLog = Vec<(u64, Option<Entry>)>;
    let with = |change: &dyn Fn(&mut MapLog)| {
        let (device, mut sb) = (copy(&crashed), sb.clone());
        change(&mut sb.map_log);
        device.write(at * BLOCK, &sb.to_bytes()).expect("writing");
        device
    };
    let entry = |log: &mut MapLog, n: usize, change: fn(&mut Entry)| {
        log[n].1.iter_mut().for_each(change);
    };
    for n in 0..sb.map_log.len() {
        found(&with(&|log| entry(log, n, |entry| entry.checksum ^= 1)), "checksum");
        found(&with(&|log| entry(log, n, |entry| entry.generation += 5)), "its generation is later");
    }
    // the older block contradicts the others, or is equally valid if it has only counters
    let without = |n: usize| {
        with(&|log| {
            log.remove(n);
        })
    };
    let found = (0..sb.map_log.len()).filter(|n| !checked(&without(*n)).clean);
    assert!(found.count() > 1);
}

/// A block that is freed and reallocated with the same bytes: its entry has the owner.
#[test]
fn the_same_block_of_another_file_has_another_owner() {
    let device = volume();
    let write = WriteOptions { seed: Some(3), ..WriteOptions::default() };
    let options = OpenOptions { write: Some(write), ..OpenOptions::default() };
    let volume = Volume::open(Arc::clone(&device) as Arc<dyn BlockDevice>, &options).expect("opening");
    let target = [b'x'; 300];
    let first = volume.symlink(InodeNo::ROOT, b"link", &target, 0, 0).expect("a link").number;
    volume.sync().expect("a sync");
    let new = NewFile { kind: FileKind::Regular, mode: 0o644, umask: 0, uid: 0, gid: 0, device: (0, 0) };
    volume.unlink(InodeNo::ROOT, b"link").expect("removing");
    volume.create(InodeNo::ROOT, b"takes the inode", &new).expect("a file");
    let second = volume.symlink(InodeNo::ROOT, b"link", &target, 0, 0).expect("a link").number;
    volume.sync().expect("a sync");
    assert!(checked(&copy(&device)).clean, "{:?}", checked(&copy(&device)).problems);
    let (sb, _) = newest(&device);
    let log = sb.map_log.iter().filter_map(|(index, entry)| Some((*index, (*entry)?)));
    let mut entries = walk(&device, &sb, &sb.root).0;
    entries.retain(|(index, _)| !sb.map_log.iter().any(|(logged, _)| logged == index));
    let owners: Vec<u32> = entries.into_iter().chain(log).map(|(_, entry)| entry.owner).collect();
    assert!(first == second || !owners.contains(&first.get()));
    volume.unmount().expect("unmounting");
}

#[test]
fn a_volume_is_consistent_with_files_that_have_no_name_any_more() {
    let device = Arc::new(MemoryDevice::zeroed(64 << 20).expect("memory"));
    make(&*device, &MkfsOptions::new(Kind::Extant)).expect("a volume");
    let write = WriteOptions { seed: Some(3), ..WriteOptions::default() };
    let options = OpenOptions { write: Some(write), ..OpenOptions::default() };
    let volume = Volume::open(Arc::clone(&device) as Arc<dyn BlockDevice>, &options).expect("opening");
    let new = NewFile { kind: FileKind::Regular, mode: 0o644, umask: 0, uid: 0, gid: 0, device: (0, 0) };
    for n in 0..1_200 {
        let name = format!("f{n}");
        let file = volume.create(InodeNo::ROOT, name.as_bytes(), &new).expect("a file").number;
        volume.add_lookup(file);
        volume.write_at(file, 0, &[7; 5000]).expect("writing");
        volume.unlink(InodeNo::ROOT, name.as_bytes()).expect("removing");
    }
    // the content of directories, symbolic links and attributes is treated as metadata
    let new = |kind| NewFile { kind, ..new };
    let dir = volume.create(InodeNo::ROOT, b"dir", &new(FileKind::Directory)).expect("a directory").number;
    for n in 0..90 {
        volume.create(dir, format!("{n:>120}").as_bytes(), &new(FileKind::Regular)).expect("a file");
    }
    (0..90).for_each(|n| volume.unlink(dir, format!("{n:>120}").as_bytes()).expect("removing"));
    let link = volume.symlink(InodeNo::ROOT, b"link", &[b'x'; 300], 0, 0).expect("a link").number;
    let file = volume.create(InodeNo::ROOT, b"file", &new(FileKind::Regular)).expect("a file").number;
    volume.set_xattr(file, b"user.long", &[7; 2000], fs::XattrMode::Any).expect("an attribute");
    [dir, link, file].into_iter().for_each(|number| volume.add_lookup(number));
    volume.rmdir(InodeNo::ROOT, b"dir").expect("removing");
    [b"link", b"file"].into_iter().for_each(|name| volume.unlink(InodeNo::ROOT, name).expect("removing"));
    volume.sync().expect("a sync");
    // a loss of power, with the files still referenced
    let mut bytes = vec![0; 64 << 20];
    device.read(0, &mut bytes).expect("reading");
    let device = Arc::new(MemoryDevice::from_vec(bytes));
    let before = checked(&device);
    assert!(before.clean, "{:?}", before.problems.first());
    Volume::open(Arc::clone(&device) as Arc<dyn BlockDevice>, &options)
        .expect("opening")
        .unmount()
        .expect("unmounting");
    let after = checked(&device);
    assert!(after.clean, "{:?}", after.problems.first());
    assert_eq!(before.counts.inodes - after.counts.inodes, 1_203);
}

/// Blocks where other programs look for a superblock are in use without an owner: an entry for one is an error, as is a
/// volume whose superblock and bitmaps disagree on such blocks.
#[test]
fn what_lies_in_a_reserved_block_is_found() {
    let intact = volume();
    let (sb, at) = newest(&intact);
    assert!(sb.reserved);
    let (entries, _) = walk(&intact, &sb, &sb.root);
    let own = |index: &u64| sb.layout.table().contains(index) || sb.layout.list().contains(index);
    let logged = |index: &u64| sb.map_log.iter().any(|(other, _)| other == index);
    let (index, entry) = entries.iter().find(|(index, _)| !own(index) && !logged(index)).expect("a block");
    let device = copy(&intact);
    let physical = format::native::HEAD.end - 1;
    device.write(physical * BLOCK, &block(&intact, entry.physical)).expect("writing");
    set_root(&device, moved(&device, sb.root, *index, physical));
    found(&device, &format!("Block {physical} of the device is reserved, but an entry leads to it"));

    let device = copy(&intact);
    device.write(at * BLOCK, &NativeSuperblock { reserved: false, ..sb }.to_bytes()).expect("writing");
    assert!(!checked(&device).clean, "blocks are in use without an owner");
}
