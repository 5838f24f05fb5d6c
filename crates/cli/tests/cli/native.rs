//! Native volumes on the command line: created, used, checked, and damaged.

use crate::common::{exits, extant, fails, json, prints, text};
use crate::mounting::{Folder, can_mount};
use format::native::snapshots;
use format::native::superblock::{DiskNativeSuperblock, LAST_GENERATION, NativeSuperblock};
use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use zerocopy::{FromBytes, IntoBytes};

#[test]
fn a_native_volume_is_made_filled_looked_at_and_checked() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("volume");
    let report = prints(&["mkfs", "-t", "extant", text(&image), "32M"]);
    assert!(report.contains("is now extant, 32 MiB in 8192 blocks of 4 KiB"), "{report}");
    let made = json(&["mkfs", "-t", "extant", "-F", "--json", text(&image)]);
    assert_eq!(made["blocks"], 8192);
    assert_eq!(made["free_blocks"], json(&["info", "--json", text(&image)])["space"]["free_blocks"]);
    let file = folder.path().join("file");
    std::fs::write(&file, vec![b'x'; 100_000]).unwrap();
    exits(0, &["put", text(&image), text(&file), "/there"]);
    assert_eq!(prints(&["cat", text(&image), "/there"]).len(), 100_000);
    assert!(prints(&["ls", text(&image), "/"]).contains("there"));
    exits(0, &["check", "-fn", text(&image)]);
    exits(0, &["rm", text(&image), "/there"]);
    exits(0, &["check", "-fy", text(&image)]);
    prints(&["info", text(&image)]);
    assert!(fails(8, &["check", "--estimate", text(&image)]).contains("not available for native volumes"));
    let refused = exits(8, &["check", "--estimate", "--json", text(&image)]).stdout;
    assert_eq!(serde_json::from_slice::<serde_json::Value>(&refused).unwrap()["format"], "extant");
    // it is not overwritten without -F
    let sentence = fails(1, &["mkfs", "-t", "ext4", text(&image)]);
    assert!(sentence.contains("a native Extant volume"), "{sentence}");
    // a bit of the newest map's root: the volume is unreadable, and a permitted repair goes back one generation
    let bytes = std::fs::read(&image).unwrap();
    let generation = |copy: usize| u64::from_le_bytes(bytes[copy * 4096 + 504..][..8].try_into().unwrap());
    let newest = if generation(0) > generation(1) { 0 } else { 4096 };
    let root = u64::from_le_bytes(bytes[newest + 0x28..][..8].try_into().unwrap()) * 4096;
    let device = std::fs::File::options().write(true).open(&image).unwrap();
    device.write_all_at(&[bytes[root as usize] ^ 1], root).unwrap();
    // readers are advised to do that, and not to use backup superblocks, which do not exist
    for args in [
        &["ls", text(&image), "/"][..],
        &["cat", text(&image), "/there"],
        &["tree", text(&image)],
        &["info", text(&image)],
        &["put", text(&image), text(&file), "/again"],
        &["snapshot", "list", text(&image)],
    ] {
        let sentence = fails(1, args);
        for part in ["the newest generation of the native volume cannot be read", "run `extant check -fy`"] {
            assert!(sentence.contains(part), "{args:?}: {sentence}");
        }
        assert!(!sentence.contains("-b ") && !sentence.contains("not an ext2/3/4"), "{args:?}: {sentence}");
    }
    let said = exits(4, &["check", "-fn", text(&image)]).text();
    assert!(said.contains("run with -fy to repair: it returns to generation "), "{said}");
    exits(4, &["check", "-fp", text(&image)]);
    exits(1, &["check", "-fy", text(&image)]);
    exits(0, &["check", "-fn", text(&image)]);
    let planned = json(&["mkfs", "-t", "extant", "-n", "-F", "--json", text(&image)]);
    assert_eq!((planned["format"].as_str(), planned["journal_blocks"].as_u64()), (Some("extant"), Some(0)));
}

/// Other programs identify a volume: udev by the program's output, file(1) by the rules shipped with it.
#[test]
fn a_native_volume_can_be_identified() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("volume");
    let uuid = "0bd1f0a2-1c3e-4f11-9d3a-2b6d0f3c9e77";
    for (kind, name) in [("extant", "Extant native volume"), ("rext3", "Extant rext3 volume"), ("ext4", "ext4")] {
        prints(&["mkfs", "-q", "-F", "-t", kind, "-L", "my data", "-U", uuid, text(&image), "32M"]);
        let lines = format!(
            "ID_FS_TYPE={kind}\nID_FS_USAGE=filesystem\nID_FS_UUID={uuid}\nID_FS_UUID_ENC={uuid}\n\
             ID_FS_LABEL=my_data\nID_FS_LABEL_ENC=my\\x20data\n"
        );
        assert_eq!(prints(&["info", "--export", text(&image)]), lines);
        let own = prints(&["info", "--export", "--own", text(&image)]);
        assert_eq!(own, if kind == "ext4" { String::new() } else { lines });
        let rules = concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib/extant.magic");
        let mut file = std::process::Command::new("file");
        let Ok(ran) = file.args(["-b", "-m", &format!("{rules}:/usr/share/misc/magic")]).arg(&image).output() else {
            testkit::tools::skip("no file(1) here");
            continue;
        };
        let said = String::from_utf8_lossy(&ran.stdout).into_owned();
        assert!(said.contains(name) && said.contains(uuid), "{said}");
    }
}

/// Either of the two superblocks may be destroyed: the loss is reported, and repaired from the other one.
#[test]
fn a_damaged_superblock_is_reported_and_written_anew() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("volume");
    prints(&["mkfs", "-t", "extant", text(&image), "32M"]);
    let file = folder.path().join("file");
    std::fs::write(&file, b"content").unwrap();
    for name in ["/there", "/later"] {
        exits(0, &["put", text(&image), text(&file), name]);
    }
    exits(0, &["check", "-fn", text(&image)]);
    let intact = std::fs::read(&image).unwrap();
    let generation = |copy: usize| u64::from_le_bytes(intact[copy * 4096 + 504..][..8].try_into().unwrap());
    let newest = usize::from(generation(1) > generation(0));
    for (copy, at, len) in [(newest, 508, 4), (1 - newest, 508, 4), (newest, 0, 4096), (1 - newest, 700, 1)] {
        for mode in ["-fp", "-fy"] {
            let mut bytes = intact.clone();
            bytes[copy * 4096 + at..][..len].fill(0xA5);
            std::fs::write(&image, &bytes).unwrap();
            let said = exits(4, &["check", "-fn", text(&image)]).text();
            assert!(said.contains(&format!("The superblock in block {copy} of the device is unusable")), "{said}");
            if copy == newest && len == 4 {
                let complete = format!("It contained generation {}, and can be completed with", generation(newest));
                assert!(said.contains(&complete), "{said}");
            }
            exits(1, &["check", mode, text(&image)]);
            exits(0, &["check", "-fn", text(&image)]);
            // back one generation and no further, as the help describes -p: each command writes several
            assert_eq!(prints(&["cat", text(&image), "/there"]), "content", "{mode}");
            if copy != newest {
                assert_eq!(prints(&["cat", text(&image), "/later"]), "content");
            }
        }
    }
    let help = prints(&["check", "--help"]).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(help.contains("-p goes back to the generation of the other one, if that has no errors"), "{help}");
    // with both destroyed there is no starting point, and no copy elsewhere
    for len in [4, 512] {
        let mut bytes = intact.clone();
        for copy in [0, 1] {
            bytes[copy * 4096..][..len].fill(0xA5);
        }
        std::fs::write(&image, &bytes).unwrap();
        for mode in ["-fn", "-fp", "-fy"] {
            let sentence = fails(4, &["check", mode, text(&image)]);
            for part in ["both superblocks of the native volume are damaged", "restore the volume from a backup"] {
                assert!(sentence.contains(part), "{mode}: {sentence}");
            }
        }
        assert!(std::fs::read(&image).unwrap() == bytes, "the volume was written");
        let sentence = fails(1, &["ls", text(&image), "/"]);
        assert!(!sentence.contains("-b "), "{sentence}");
    }
    // nothing is left that identifies it
    std::fs::write(&image, [&[0; 8192][..], &intact[8192..]].concat()).unwrap();
    exits(8, &["check", "-fn", text(&image)]);
    std::fs::write(&image, [&[0xA5; 8192][..], &intact[8192..]].concat()).unwrap();
    exits(8, &["check", "-fy", text(&image)]);
    for args in [&["ls", text(&image), "/"][..], &["put", text(&image), text(&file), "/again"]] {
        let sentence = fails(1, args);
        assert!(sentence.contains("a native volume in this state has to be restored from a backup"), "{sentence}");
    }
}

/// Both superblocks after `mkfs -d` are without the mark of a volume in use, so that the loss of one is not mistaken for
/// a crash.
#[test]
fn a_filled_volume_has_the_mark_of_use_in_neither_superblock() {
    let folder = tempfile::tempdir().unwrap();
    let (image, source) = (folder.path().join("volume"), folder.path().join("source"));
    std::fs::create_dir(&source).unwrap();
    std::fs::write(source.join("there"), "content").unwrap();
    prints(&["mkfs", "-q", "-t", "extant", "-d", text(&source), text(&image), "64M"]);
    let intact = std::fs::read(&image).unwrap();
    for copy in [0, 1] {
        assert!(!NativeSuperblock::parse(&intact[copy * 4096..][..4096]).unwrap().unordered, "{copy}");
        let mut bytes = intact.clone();
        bytes[copy * 4096..][..4096].fill(0);
        std::fs::write(&image, &bytes).unwrap();
        let said = exits(4, &["check", "-fn", text(&image)]).text();
        assert!(said.contains(&format!("The superblock in block {copy} of the device is unusable")), "{said}");
        assert!(!said.contains("without consistency") && said.contains("1 error found"), "{said}");
        exits(1, &["check", "-fp", text(&image)]);
        exits(0, &["check", "-fn", text(&image)]);
        assert_eq!(prints(&["cat", text(&image), "/there"]), "content");
    }
}

/// The physical blocks of the map below a root, nodes included, and their kinds.
fn blocks_below(bytes: &[u8], root: u64) -> BTreeMap<u64, u8> {
    let (mut found, mut nodes) = (BTreeMap::from([(root, 13)]), vec![root]);
    while let Some(node) = nodes.pop() {
        for entry in bytes[node as usize * 4096..][..4096].chunks(32) {
            let physical = u64::from_le_bytes(entry[..8].try_into().unwrap());
            if physical != 0 && found.insert(physical, entry[0x10]).is_none() && entry[0x10] == 13 {
                nodes.push(physical);
            }
        }
    }
    found
}

/// The metadata blocks that only the snapshot `dam` uses, of a volume that has another snapshot, `good`.
fn blocks_of_dam_alone(bytes: &[u8]) -> Vec<u64> {
    let (superblock, _) = NativeSuperblock::newest(bytes).unwrap();
    let mut live = blocks_below(bytes, superblock.root.physical);
    live.extend(
        superblock.map_log.iter().filter_map(|(_, entry)| *entry).map(|entry| (entry.physical, entry.kind as u8)),
    );
    let (list, _) = live.iter().find(|(_, kind)| **kind == 15).expect("a list of snapshots");
    let records = snapshots::parse(&bytes[*list as usize * 4096..][..4096], &superblock.layout).unwrap();
    let below = |name: &[u8]| {
        let record = records.iter().flatten().find(|record| record.name == name).expect("a snapshot");
        blocks_below(bytes, record.root.physical)
    };
    let good = below(b"good");
    below(b"dam").into_keys().filter(|block| !live.contains_key(block) && !good.contains_key(block)).collect()
}

/// Damage in a snapshot alone: every error names it, and the next step deletes it. A rollback would lose what came
/// later and repair nothing.
#[test]
fn damage_in_a_snapshot_alone_is_no_reason_for_a_rollback() {
    let folder = tempfile::tempdir().unwrap();
    let (image, source) = (folder.path().join("volume"), folder.path().join("src"));
    std::fs::create_dir(&source).unwrap();
    (0..60).for_each(|n| std::fs::write(source.join(format!("f{n}")), vec![b'x'; 3000]).unwrap());
    let file = folder.path().join("file");
    std::fs::write(&file, b"content").unwrap();
    let image = text(&image);
    prints(&["mkfs", "-t", "extant", image, "64M"]);
    exits(0, &["put", image, text(&file), "/there"]);
    exits(0, &["snapshot", "create", image, "good"]);
    exits(0, &["put", "-r", image, text(&source), "/"]);
    exits(0, &["snapshot", "create", image, "dam"]);
    exits(0, &["rm", "-r", image, "/src"]);
    exits(0, &["put", image, text(&file), "/precious"]);
    let intact = std::fs::read(image).unwrap();
    let blocks = blocks_of_dam_alone(&intact);
    assert!(blocks.len() > 10, "{blocks:?}");
    let (mut deleted, mut damaged) = (0, 0);
    for physical in blocks {
        let mut bytes = intact.clone();
        bytes[physical as usize * 4096 + 200] ^= 0x40;
        std::fs::write(image, &bytes).unwrap();
        let printed = exits(4, &["check", "-fn", "--json", image]).stdout;
        let report: serde_json::Value = serde_json::from_slice(&printed).unwrap();
        for problem in report["problems"].as_array().unwrap() {
            assert!(problem["text"].as_str().unwrap().contains("napshot dam"), "{physical}: {problem}");
        }
        let next = report["next"].as_str().unwrap();
        assert!(next.contains(&format!("`extant snapshot delete {image} dam`")), "{physical}: {next}");
        assert!(next.contains("the current files have none") && !next.contains("roll back"), "{physical}: {next}");
        assert!(exits(4, &["check", "-fy", image]).text().contains(next), "{physical}");
        assert!(std::fs::read(image).unwrap() == bytes, "{physical}: the volume was written");
        damaged += 1;
        if extant(&["snapshot", "delete", image, "dam"]).exit == Some(0) {
            exits(0, &["check", "-fn", image]);
            deleted += 1;
        } else {
            assert!(next.contains("if that fails"), "{physical}: {next}");
        }
        assert_eq!(prints(&["cat", image, "/precious"]), "content", "{physical}");
    }
    assert!(deleted * 2 > damaged, "{deleted} of {damaged}");
}

/// A superblock with impossible values and a correct checksum counts as damaged: the other one is used, and if that is
/// also damaged, the volume is still identified as native.
#[test]
fn a_superblock_that_contradicts_itself_is_a_damaged_one() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("volume");
    prints(&["mkfs", "-t", "extant", text(&image), "32M"]);
    let file = folder.path().join("file");
    std::fs::write(&file, b"content").unwrap();
    exits(0, &["put", text(&image), text(&file), "/there"]);
    let intact = std::fs::read(&image).unwrap();
    // a map log with one zero entry, which frees the superblock above the map
    let with_an_empty_entry = |copies: &[usize]| {
        let mut bytes = intact.clone();
        for copy in copies {
            let block = &mut bytes[copy * 4096..][..4096];
            let superblock = NativeSuperblock::parse(block).unwrap();
            block.copy_from_slice(&NativeSuperblock { map_log: vec![(0, None)], ..superblock }.to_bytes());
        }
        std::fs::write(&image, &bytes).unwrap();
    };
    let newest = NativeSuperblock::newest(&intact).unwrap().1 as usize;
    with_an_empty_entry(&[newest]);
    let said = exits(4, &["check", "-fn", text(&image)]).text();
    let found = said.contains(&format!("The superblock in block {newest} of the device is unusable"));
    assert!(found && said.contains("frees the superblock"), "{said}");
    let listed = exits(0, &["ls", text(&image), "/"]).text();
    assert!(listed.contains("newest changes of the volume may be missing"), "{listed}");
    exits(1, &["check", "-fy", text(&image)]);
    exits(0, &["check", "-fn", text(&image)]);
    with_an_empty_entry(&[0, 1]);
    for (status, args) in [(4, &["check", "-fn", text(&image)][..]), (1, &["ls", text(&image), "/"][..])] {
        let sentence = fails(status, args);
        for part in ["both superblocks of the native volume are damaged", "frees the superblock", "no other copies"] {
            assert!(sentence.contains(part), "{part}: {sentence}");
        }
        assert!(!sentence.contains("not an ext2/3/4") && !sentence.contains("-b "), "{sentence}");
    }
}

/// Numbers that the newest superblock cannot have, with a correct checksum, are corrected by the repair that the
/// verdict names, and nothing is lost.
#[test]
fn impossible_numbers_in_the_newest_superblock_are_repaired() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("volume");
    prints(&["mkfs", "-t", "extant", text(&image), "32M"]);
    let file = folder.path().join("file");
    std::fs::write(&file, b"content").unwrap();
    exits(0, &["snapshot", "create", text(&image), "then"]);
    exits(0, &["put", text(&image), text(&file), "/there"]);
    let intact = std::fs::read(&image).unwrap();
    let (newest, copy) = NativeSuperblock::newest(&intact).unwrap();
    assert_eq!(newest.snapshots, 1);
    for wrong in [
        NativeSuperblock { snapshots: 0, ..newest.clone() },
        NativeSuperblock { snapshots: 4096, ..newest.clone() },
        NativeSuperblock { snapshots: 4097, ..newest.clone() },
        NativeSuperblock { generation: LAST_GENERATION + 1, ..newest.clone() },
        NativeSuperblock { generation: u64::MAX, ..newest.clone() },
    ] {
        let numbers = (wrong.snapshots, wrong.generation);
        for mode in ["-fp", "-fy"] {
            let mut bytes = intact.clone();
            bytes[copy as usize * 4096..][..4096].copy_from_slice(&wrong.to_bytes());
            std::fs::write(&image, &bytes).unwrap();
            let said = exits(4, &["check", "-fn", text(&image)]).text();
            let found = format!("The superblock in block {copy} of the device is unusable");
            assert!(said.contains(&found) && said.contains("can be completed with"), "{numbers:?}: {said}");
            assert!(said.contains("none repaired; run with -fp to repair."), "{numbers:?}: {said}");
            exits(1, &["check", mode, text(&image)]);
            exits(0, &["check", "-fn", text(&image)]);
            let (now, _) = NativeSuperblock::newest(&std::fs::read(&image).unwrap()).unwrap();
            assert_eq!(NativeSuperblock { generation: newest.generation, ..now }, newest, "{numbers:?}");
            assert_eq!(prints(&["cat", text(&image), "/there"]), "content", "{numbers:?}");
            exits(0, &["snapshot", "rollback", text(&image), "then"]);
            exits(0, &["check", "-fn", text(&image)]);
        }
    }
}

/// A newest superblock of a later version of the format, and one that contradicts itself with a right checksum: no loss
/// of power leaves them, so its generation is not dropped by -p.
#[test]
fn the_generation_of_an_intact_superblock_is_not_dropped_by_itself() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("volume");
    prints(&["mkfs", "-t", "extant", text(&image), "32M"]);
    let file = folder.path().join("file");
    std::fs::write(&file, b"content").unwrap();
    exits(0, &["put", text(&image), text(&file), "/there"]);
    let intact = std::fs::read(&image).unwrap();
    let (_, copy) = NativeSuperblock::newest(&intact).unwrap();
    let forged = |change: &dyn Fn(&mut DiskNativeSuperblock)| {
        let mut bytes = intact.clone();
        let block = &mut bytes[copy as usize * 4096..][..4096];
        let (mut disk, _) = DiskNativeSuperblock::read_from_prefix(block).unwrap();
        change(&mut disk);
        disk.n_checksum = disk.checksum().into();
        block[..disk.as_bytes().len()].copy_from_slice(disk.as_bytes());
        std::fs::write(&image, &bytes).unwrap();
        bytes
    };
    for change in [
        &(|disk: &mut DiskNativeSuperblock| disk.n_version = (disk.n_version.get() + 1).into()) as &dyn Fn(&mut _),
        &|disk: &mut DiskNativeSuperblock| disk.n_flags = (disk.n_flags.get() | 1 << 20).into(),
    ] {
        let bytes = forged(change);
        for mode in ["-fn", "-fp", "-fy"] {
            let said = exits(8, &["check", mode, text(&image)]).text();
            assert!(said.contains("native format"), "{said}");
        }
        fails(1, &["put", text(&image), text(&file), "/again"]);
        assert!(std::fs::read(&image).unwrap() == bytes, "something was written");
    }
    let bytes = forged(&|disk| disk.n_chunks = u32::MAX.into());
    let said = exits(4, &["check", "-fp", text(&image)]).text();
    assert!(said.contains("run with -fy") && !said.contains("run with -fp"), "{said}");
    assert!(std::fs::read(&image).unwrap() == bytes, "something was written");
    exits(1, &["check", "-fy", text(&image)]);
    exits(0, &["check", "-fn", text(&image)]);
}

/// A wrong number in the newest superblock does not silently drop durable changes: the volume cannot be written on the
/// basis of the older one until a check has corrected the number.
#[test]
fn a_volume_whose_newest_superblock_is_damaged_is_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("volume");
    prints(&["mkfs", "-t", "extant", text(&image), "32M"]);
    let file = folder.path().join("file");
    std::fs::write(&file, b"content").unwrap();
    exits(0, &["put", text(&image), text(&file), "/there"]);
    let bytes = std::fs::read(&image).unwrap();
    let generation = |copy: usize| u64::from_le_bytes(bytes[copy * 4096 + 504..][..8].try_into().unwrap());
    let newest = u64::from(generation(1) > generation(0)) * 4096;
    let device = std::fs::File::options().write(true).open(&image).unwrap();
    device.write_all_at(&77u64.to_le_bytes(), newest + 3 * 512 + 504).unwrap();
    let damaged = std::fs::read(&image).unwrap();
    for args in [&["put", text(&image), text(&file), "/again"] as &[_], &["snapshot", "create", text(&image), "now"]] {
        let sentence = fails(1, args);
        assert!(sentence.contains("extant check"), "{sentence}");
    }
    let listed = exits(0, &["ls", text(&image), "/"]).text();
    assert!(
        listed.contains("newest changes of the volume may be missing") && listed.contains("extant check"),
        "{listed}"
    );
    if can_mount() {
        let on = Folder::new();
        let said = exits(0, &["mount", text(&image), on.text()]).text();
        assert!(said.contains("read-only") && said.contains("extant check"), "{said}");
        assert!(std::fs::write(on.path().join("new"), "new").is_err());
        on.unmount();
    }
    assert!(std::fs::read(&image).unwrap() == damaged, "the volume was written");
    exits(1, &["check", "-fy", text(&image)]);
    assert_eq!(prints(&["cat", text(&image), "/there"]), "content");
    exits(0, &["put", text(&image), text(&file), "/again"]);
    exits(0, &["check", "-fn", text(&image)]);
}

/// The physical blocks in the map of the newest generation, and their kinds.
fn mapped(bytes: &[u8]) -> Vec<(u64, u8)> {
    // the root of the active map
    let generation = |copy: usize| u64::from_le_bytes(bytes[copy * 4096 + 504..][..8].try_into().unwrap());
    let newest = if generation(0) > generation(1) { 0 } else { 4096 };
    let root = u64::from_le_bytes(bytes[newest + 0x28..][..8].try_into().unwrap());
    let leaf = |node: u64| {
        let entries = bytes[node as usize * 4096..][..4096].chunks(32);
        let blocks = entries.map(|entry| (u64::from_le_bytes(entry[..8].try_into().unwrap()), entry[0x10]));
        blocks.filter(|(physical, _)| *physical != 0).collect::<Vec<_>>()
    };
    let mut found = vec![(root, 13)];
    while let Some((node, _)) = found.iter().copied().find(|(_, kind)| *kind == 13) {
        found.retain(|(physical, _)| *physical != node);
        found.extend(leaf(node));
    }
    found
}

#[test]
fn damage_in_a_snapshot_of_a_volume_in_use_is_found() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("volume");
    prints(&["mkfs", "-t", "extant", text(&image), "64M"]);
    let on = Folder::new();
    exits(0, &["mount", text(&image), on.text()]);
    std::fs::create_dir(on.path().join("d")).unwrap();
    std::fs::write(on.path().join("d/old"), "old").unwrap();
    exits(0, &["snapshot", "create", on.text(), "s1"]);
    let then = mapped(&std::fs::read(&image).unwrap());
    std::fs::write(on.path().join("d/new"), "new").unwrap();
    // a new snapshot leaves an empty map log
    exits(0, &["snapshot", "create", on.text(), "s2"]);
    let now = mapped(&std::fs::read(&image).unwrap());
    let (physical, _) = then.into_iter().find(|old| old.1 == 8 && !now.contains(old)).expect("an old directory block");
    let report = json(&["check", "--online", "--json", on.text()]);
    assert!(report["clean"] == true && report["not_looked_at"].as_array().is_some_and(Vec::is_empty), "{report}");
    let device = std::fs::File::options().write(true).open(&image).unwrap();
    device.write_all_at(b"what is not there", physical * 4096 + 2000).unwrap();
    let said = exits(4, &["check", "--online", on.text()]).text();
    assert!(said.contains(&format!("Block {physical} of the device: in the snapshot s1, it does not match")), "{said}");
    // a superblock damaged before the check, overwritten by the snapshot that the check takes
    exits(0, &["snapshot", "delete", on.text(), "s1"]);
    exits(0, &["check", "--online", on.text()]);
    let bytes = std::fs::read(&image).unwrap();
    let generation = |copy: usize| u64::from_le_bytes(bytes[copy * 4096 + 504..][..8].try_into().unwrap());
    let older = if generation(0) > generation(1) { 1 } else { 0 };
    device.write_all_at(&[0xA5; 8], older * 4096 + 100).unwrap();
    let said = exits(4, &["check", "--online", on.text()]).text();
    assert!(said.contains(&format!("The superblock in block {older} of the device is unusable")), "{said}");
    assert!(said.contains("unmount it first, then run `extant check"), "{said}");
    exits(0, &["check", "--online", on.text()]);
    on.unmount();
    exits(0, &["check", "-fn", text(&image)]);
}

#[test]
fn a_volume_in_use_is_checked_and_damage_in_it_is_found() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("volume");
    prints(&["mkfs", "-t", "extant", text(&image), "64M"]);
    let sentence = fails(8, &["check", "--online", text(&image)]);
    assert!(sentence.contains("it is not mounted"), "{sentence}");
    let on = Folder::new();
    exits(0, &["mount", text(&image), on.text()]);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in (0..).take_while(|_| !stop.load(Ordering::Relaxed)) {
                let file = on.path().join(format!("f{}", n % 50));
                if n % 3 == 2 {
                    // it may not exist
                    let _ = std::fs::remove_file(&file);
                } else {
                    std::fs::write(&file, vec![n as u8; n % 7 * 3000]).unwrap();
                }
            }
        });
        let reports = [on.text(), text(&image), on.text()].map(|target| extant(&["check", "--online", target]));
        stop.store(true, Ordering::Relaxed);
        for report in reports {
            assert_eq!(report.exit, Some(0), "{}", report.text());
        }
    });
    assert_eq!(json(&["snapshot", "list", "--json", on.text()]).as_array().map(Vec::len), Some(0));
    let file = on.path().join("file");
    std::fs::write(&file, "").unwrap();
    let sentence = fails(8, &["check", "--online", text(&file)]);
    assert!(sentence.contains(&format!("a file on the volume mounted on {}:", on.text())), "{sentence}");
    // an unused snapshot of an earlier check is deleted by the next one
    let left = "snapshot of a check that was killed";
    exits(0, &["snapshot", "create", on.text(), ".extant-check-4194304"]);
    exits(0, &["check", "--online", on.text()]);
    assert_eq!(json(&["snapshot", "list", "--json", on.text()]).as_array().map(Vec::len), Some(0), "{left}");
    // inode blocks, unchanged since
    let damage = || {
        let found = mapped(&std::fs::read(&image).unwrap());
        let (physical, _) = found.into_iter().rev().find(|(_, kind)| *kind == 5).expect("a block of inodes");
        let device = std::fs::File::options().write(true).open(&image).unwrap();
        device.write_all_at(b"what is not there", physical * 4096 + 4000).unwrap();
        physical
    };
    let physical = damage();
    let report = extant(&["check", "--online", on.text()]);
    assert!(
        report.exit == Some(4) && report.text().contains(&format!("Block {physical} of the device")),
        "{}",
        report.text()
    );
    on.unmount();
    // unmounting frees the inodes of deleted files that the kernel still used; if they are in the damaged block, it is
    // rewritten from the cache
    damage();
    exits(4, &["check", "-fn", text(&image)]);
}

#[test]
fn block_counts_are_of_the_device_everywhere() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("volume");
    let image = text(&image);
    prints(&["mkfs", "-q", "-t", "extant", image, "32M"]);
    prints(&["age", "--fill", "60", image]);
    prints(&["snapshot", "create", image, "then"]);
    let info = json(&["info", "--groups", "--json", image]);
    let (all, free) = (info["space"]["blocks"].as_u64().unwrap(), info["space"]["free_blocks"].as_u64().unwrap());
    assert_eq!(all, 8192);
    let report = json(&["check", "-fn", "--json", image]);
    let counts = &report["counts"];
    assert_eq!((counts["blocks_total"].as_u64(), counts["blocks"].as_u64()), (Some(all), Some(all - free)));
    let groups = info["groups"].as_array().unwrap();
    let available: u64 = groups
        .iter()
        .filter(|group| group["metadata_numbers"].is_null())
        .map(|group| group["free_clusters"].as_u64().unwrap())
        .sum();
    assert_eq!((groups.len(), available), (2, free));
    assert!(prints(&["info", "-g", image]).contains("have no blocks on the device"));
}

#[test]
fn a_native_volume_that_was_cut_short_has_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("volume");
    prints(&["mkfs", "-t", "extant", text(&image), "32M"]);
    std::fs::File::options().write(true).open(&image).unwrap().set_len(24 << 20).unwrap();
    for option in ["-n", "-fn", "-p", "-fp", "-fy"] {
        let said = exits(4, &["check", option, text(&image)]).text();
        assert!(said.contains("it was truncated"), "{option}: {said}");
        let next = "get a complete copy of it: the image has 6144 blocks, the volume 8192.";
        assert!(option.contains('p') || said.contains(next), "{option}: {said}");
    }
}

/// A volume that has no readable superblock above its newest map is a damaged native one, with a verdict.
#[test]
fn an_unreadable_newest_generation_has_a_verdict() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("volume");
    prints(&["mkfs", "-t", "extant", text(&image), "32M"]);
    exits(0, &["snapshot", "create", text(&image), "then"]);
    let bytes = std::fs::read(&image).unwrap();
    let (superblock, _) = NativeSuperblock::newest(&bytes).unwrap();
    let logged = superblock.map_log.iter().filter(|(index, _)| *index == 0).filter_map(|(_, entry)| *entry);
    // 1 is the kind of superblocks
    let mut found: Vec<u64> = mapped(&bytes).into_iter().filter(|(_, kind)| *kind == 1).map(|(at, _)| at).collect();
    found.extend(logged.map(|entry| entry.physical));
    let device = std::fs::File::options().write(true).open(&image).unwrap();
    for physical in found {
        device.write_all_at(&[0; 4096], physical * 4096).unwrap();
    }
    let said = exits(4, &["check", "-fn", text(&image)]).text();
    assert!(said.contains("of the device does not match the checksum recorded for it."), "{said}");
    assert!(said.contains("restore the data from a backup") || said.contains("it returns to generation "), "{said}");
    assert!(!said.contains("roll back"), "{said}");
    let printed = exits(4, &["check", "-fn", "--json", text(&image)]).text();
    assert!(printed.contains("\"extant\""), "{printed}");
}
