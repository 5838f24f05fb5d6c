//! Data that a repair must not lose: a journal of which only the inode is damaged, and the files of a group whose inode
//! table has a wrong location in the descriptor.

use crate::repaired::{contents, fix, only_marked, options};
use blockdev::{BlockDevice, MemoryDevice};
use damage::{Kind, damage};
use extant_check::report::{Report, exit};
use extant_check::table::Code;
use extant_check::{Repair, check, first_sight, repair};
use format::checksum::crc32c;
use format::extent;
use format::superblock::{DiskSuperblock, Geometry};
use std::sync::Arc;
use testkit::oracle::{e2fsck, kernel_mount};
use testkit::tools::{has_loop, run};
use testkit::{Image, Spec, Tree, need};

fn look(bytes: &[u8]) -> Report {
    let device = MemoryDevice::from_vec(bytes.to_vec());
    check("volume", &device, &options(Repair::No), &()).expect("a volume")
}

fn finds(report: &Report, code: Code) -> bool {
    report.problems.iter().any(|problem| problem.code == code)
}

/// Whether a volume that is marked clean is trusted.
fn at_first_sight(bytes: &[u8]) -> bool {
    first_sight(&MemoryDevice::from_vec(bytes.to_vec()), &options(Repair::Safe), &())
}

/// The volume with this damage.
fn damaged(bytes: &[u8], number: u32) -> Vec<u8> {
    let device = MemoryDevice::from_vec(bytes.to_vec());
    damage(&device, Kind::Problem(number), 1).expect("a volume fit for it");
    contents(&device)
}

/// Repairs the volume and checks that one run suffices.
fn repair_all(bytes: &mut Vec<u8>, said: &str) {
    let report = fix(bytes, Repair::All).expect("a volume");
    assert_eq!((report.exit, report.repaired), (exit::REPAIRED, true), "{said}: {:?}", report.problems);
}

fn filled(args: &[&str], size: u64) -> Image {
    Image::mke2fs(args, size).with_tree(&Tree::new(7, &Spec::small())).build()
}

#[test]
fn a_lost_journal_inode_is_restored_from_the_superblock() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    for kind in ["ext3", "ext4"] {
        let image = filled(&["-t", kind, "-b", "1024", "-J", "size=1"], 16 << 20);
        let bytes = damaged(&image.bytes(), 0x0E_0011);
        let report = look(&bytes);
        assert!(!report.clean && finds(&report, Code::JournalInodeRestorable), "{kind}: {:?}", report.problems);
        assert!(!at_first_sight(&bytes), "{kind}: it cannot be mounted");
        for mode in [Repair::Safe, Repair::All] {
            let mut bytes = bytes.clone();
            let report = fix(&mut bytes, mode).expect("a volume");
            assert_eq!((report.exit, report.repaired), (exit::REPAIRED, true), "{kind}: {:?}", report.problems);
            assert!(look(&bytes).problems.is_empty(), "{kind}");
            image.set_bytes(&bytes);
            assert!(e2fsck(image.path()).clean, "{kind}");
            if has_loop() {
                kernel_mount(image.path(), "ro").unwrap_or_else(|e| panic!("{kind}: no journal for the kernel: {e}"));
            }
        }
    }
}

/// e2fsck checks these fields before it checks whether the volume is clean.
#[test]
fn a_volume_that_cannot_be_checked_is_not_taken_at_its_word() {
    if !need(&["mke2fs"]) {
        return;
    }
    let image = Image::mke2fs(&["-t", "ext4"], 40 << 20).build();
    let damages = [
        (Code::SuperblockFieldWrong, Code::SuperblockFieldWrong),
        (Code::FirstDataBlockWrong, Code::SuperblockFieldMisleads),
    ];
    for (damage, code) in damages {
        let bytes = damaged(&image.bytes(), damage.number());
        let report = look(&bytes);
        assert!(finds(&report, code), "{damage:?}: {:?}", report.problems);
        assert_eq!(report.cut_short(), damage == code, "{damage:?}");
        assert!(at_first_sight(&image.bytes()) && !at_first_sight(&bytes), "{damage:?}");
    }
}

/// Volumes of one group and of several.
const VOLUMES: [(&[&str], u64); 5] = [
    (&["-t", "ext3", "-b", "1024", "-J", "size=1"], 8 << 20),
    (&["-t", "ext4", "-b", "1024", "-J", "size=1"], 8 << 20),
    (&["-t", "ext4", "-b", "4096", "-O", "^has_journal,^metadata_csum"], 32 << 20),
    (&["-t", "ext4", "-b", "1024", "-g", "4096", "-O", "^has_journal"], 16 << 20),
    (&["-t", "ext2", "-b", "1024", "-g", "4096"], 16 << 20),
];

#[test]
fn an_inode_table_is_found_where_mkfs_puts_it() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    for (args, size) in VOLUMES {
        let image = filled(args, size);
        let intact = image.bytes();
        let bytes = damaged(&intact, 0x0E_0012);
        let report = look(&bytes);
        assert!(finds(&report, Code::InodeTableElsewhere), "{args:?}: {:?}", report.problems);
        assert!(at_first_sight(&intact) && !at_first_sight(&bytes), "{args:?}: it is not taken at its word");
        let mut preened = bytes.clone();
        let report = fix(&mut preened, Repair::Safe).expect("a volume");
        assert!(report.exit == exit::LEFT && only_marked(&bytes, &preened), "{args:?}: a person decides");
        let mut repaired = bytes.clone();
        repair_all(&mut repaired, &format!("{args:?}"));
        assert_eq!(look(&repaired).counts, look(&intact).counts, "{args:?}: every file is there");
        image.set_bytes(&repaired);
        assert!(e2fsck(image.path()).clean, "{args:?}");
    }
}

/// The descriptor has a wrong table location, but makes sense otherwise.
#[test]
fn an_inode_table_is_found_where_something_else_stands_in_its_place() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    for (args, size) in &VOLUMES[..2] {
        let image = filled(args, *size);
        let intact = image.bytes();
        image.debugfs(&["set_bg 0 inode_table 6000", "set_bg 0 checksum calc"]);
        let mut bytes = image.bytes();
        assert!(finds(&look(&bytes), Code::InodeTableElsewhere), "{args:?}");
        repair_all(&mut bytes, &format!("{args:?}"));
        assert_eq!(look(&bytes).counts, look(&intact).counts, "{args:?}");
    }
}

/// If the root is damaged too, nothing proves where the table is: nothing is written without -E empty_tables.
#[test]
fn files_are_not_lost_to_an_empty_table() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let (args, size) = VOLUMES[0];
    let image = filled(args, size);
    image.debugfs(&["sif <2> mode 0"]);
    let bytes = damaged(&image.bytes(), 0x0E_0012);
    let report = look(&bytes);
    assert!(finds(&report, Code::InodeTableNotInGroup) && !finds(&report, Code::InodeTableElsewhere));
    let mut left = bytes.clone();
    let refusal = fix(&mut left, Repair::All).expect_err("the files would be lost");
    assert_eq!(refusal.exit, exit::LEFT);
    assert!(refusal.sentence.contains("the inode table of group 0 cannot be found"), "{refusal}");
    assert!(left == bytes, "something was written");
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_vec(bytes));
    let options = extant_check::Options { empty_tables: true, ..options(Repair::All) };
    let report = repair("volume", &device, &options, &(), None).expect("a volume");
    assert_eq!(report.exit, exit::REPAIRED, "{:?}", report.problems);
}

/// A descriptor of zeros has neither the location of the table nor that of its bitmap.
#[test]
fn files_are_not_lost_where_the_bitmap_is_lost_as_well() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    for (kind, fields) in
        [("ext3", &[0, 4, 8, 12, 16, 20, 24, 28][..]), ("ext3", &[4, 8]), ("ext4", &[0, 4, 8, 12, 16, 20, 24, 28])]
    {
        let image = Image::mke2fs(&["-t", kind, "-b", "1024", "-J", "size=1"], 6 << 20)
            .debugfs(&["mkdir a", "mkdir a/b", "mkdir a/c"])
            .build();
        let mut bytes = image.bytes();
        for field in fields {
            bytes[2048 + field..2048 + field + 4].fill(0);
        }
        let report = look(&bytes);
        assert!(!report.clean, "{kind}, {fields:?}");
        let mut left = bytes.clone();
        match fix(&mut left, Repair::All) {
            Err(refusal) => {
                assert_eq!(refusal.exit, exit::LEFT, "{kind}, {fields:?}: {refusal}");
                assert!(refusal.sentence.contains("cannot be found"), "{refusal}");
                assert!(left == bytes, "{kind}, {fields:?}: something was written");
            }
            Ok(report) => {
                assert_eq!(report.exit, exit::REPAIRED, "{kind}, {fields:?}: {:?}", report.problems);
                assert_eq!(look(&left).counts, look(&image.bytes()).counts, "{kind}, {fields:?}: every file is there");
            }
        }
        // a volume without files has none to lose
        let image =
            Image::mke2fs(&["-t", kind, "-b", "1024", "-J", "size=1"], 6 << 20).debugfs(&["rmdir lost+found"]).build();
        let mut bytes = image.bytes();
        bytes[2048 + 8..2048 + 12].fill(0);
        assert!(fix(&mut bytes, Repair::All).is_ok(), "{kind}");
    }
}

/// A directory whose type bits are wrong, or the root, is restored with all its entries.
#[test]
fn a_directory_that_lost_its_type_is_one_again() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    for kind in ["ext3", "ext4"] {
        let args = ["-t", kind, "-b", "1024", "-J", "size=1"];
        let image = Image::mke2fs(&args, 8 << 20).debugfs(&["mkdir a", "mkdir a/b", "mkdir a/c"]).build();
        let intact = look(&image.bytes()).counts;
        for command in ["sif a mode 0140755", "sif a mode 060755", "sif a mode 0", "sif <2> mode 0100755"] {
            let before = image.bytes();
            image.debugfs(&[command]);
            let mut bytes = image.bytes();
            let report = look(&bytes);
            assert!(finds(&report, Code::LooksLikeDirectory), "{kind}, {command}: {:?}", report.problems);
            repair_all(&mut bytes, &format!("{kind}, {command}"));
            assert_eq!(look(&bytes).counts, intact, "{kind}, {command}");
            image.set_bytes(&bytes);
            assert!(e2fsck(image.path()).clean, "{kind}, {command}");
            image.set_bytes(&before);
        }
    }
}

/// The same for an inline directory, and for one whose first block is found only through a tree block.
#[test]
fn a_directory_in_its_inode_or_below_a_tree_that_lost_its_type_is_one_again() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let long = "n".repeat(120);
    let wide: Vec<String> = (0..80).map(|n| format!("write /dev/null wide/{long}{n}")).collect();
    let mut commands =
        vec!["mkdir small", "mkdir small/within", "write /dev/null small/within/file", "mkdir empty", "mkdir wide"];
    commands.extend(wide.iter().map(String::as_str));
    for features in ["^has_journal", "inline_data,^has_journal", "inline_data,^metadata_csum,^has_journal"] {
        let args = ["-t", "ext4", "-b", "1024", "-I", "256", "-O", features];
        let image = Image::mke2fs(&args, 8 << 20).debugfs(&commands).build();
        let before = image.bytes();
        let intact = look(&before).counts;
        for dir in ["small", "small/within", "empty", "wide"] {
            for mode in ["0", "010755", "020755", "060755", "0140755", "0170000"] {
                image.debugfs(&[&format!("sif {dir} mode {mode}")]);
                let mut bytes = image.bytes();
                let said = format!("{features}, {dir}, {mode}");
                assert!(finds(&look(&bytes), Code::LooksLikeDirectory), "{said}: {:?}", look(&bytes).problems);
                repair_all(&mut bytes, &said);
                assert_eq!(look(&bytes).counts, intact, "{said}");
                image.set_bytes(&bytes);
                assert!(e2fsck(image.path()).clean, "{said}");
                let listed = image.debugfs(&["ls -p small/within", "ls -p wide"]).text();
                assert!(listed.contains("/file/") && listed.contains("n79/"), "{said}: {listed}");
                image.set_bytes(&before);
            }
        }
    }
}

/// A volume with a file of more extents than the inode holds, and where the leaf of its tree lies.
fn with_a_leaf(args: &[&str]) -> (Image, usize) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut holes = vec![0; 2 << 20];
    (0..60).for_each(|n| holes[n * 16384] = 1 + n as u8);
    std::fs::write(folder.path().join("holes"), holes).expect("a file");
    let image = Image::mke2fs(args, 16 << 20).with_folder(folder.path()).build();
    let said = image.debugfs(&["dump_extents -n /holes"]).text();
    // "0/ 1   1/  1   0 - 2047  1234   2048": level, entry, blocks of the file, the block
    let index = said.lines().find(|line| line.trim_start().starts_with("0/")).expect("a tree of two levels");
    let block = index.split_whitespace().rev().nth(1).and_then(|word| word.parse::<usize>().ok()).expect("a block");
    (image, block * 1024)
}

/// Puts the checksum of that leaf right, where the volume has such.
fn set_leaf_checksum(image: &Image, bytes: &mut [u8], leaf: usize) {
    let sb = DiskSuperblock::from_slice(&bytes[1024..2048]).expect("a superblock");
    let geometry = Geometry::of(&sb).expect("a volume");
    if geometry.metadata_csum {
        let said = image.debugfs(&["stat /holes"]).text();
        let number = said.split_once("Inode: ").and_then(|(_, rest)| rest.split_whitespace().next()).expect("a number");
        let number: u32 = number.parse().expect("a number");
        assert!(said.contains("Generation: 0 "), "{said}");
        let seed = crc32c(crc32c(geometry.checksum_seed, &number.to_le_bytes()), &[0; 4]);
        extent::set_block_checksum(seed, &mut bytes[leaf..leaf + 1024]).expect("space for it");
    }
}

fn content(image: &Image, path: &str) -> Vec<u8> {
    let to = image.beside("content");
    image.debugfs(&[&format!("dump {path} {}", to.display())]);
    std::fs::read(&to).expect("a file")
}

/// The kernel rejects a node whose depth differs from its parent's, but the file's data is intact.
#[test]
fn the_file_of_a_node_that_is_right_but_for_its_depth_survives() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    for options in ["metadata_csum", "^metadata_csum"] {
        let (image, leaf) = with_a_leaf(&["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", options]);
        let before = content(&image, "/holes");
        for depth in [1u16, 5, 0x600] {
            let mut bytes = image.bytes();
            bytes[leaf + 6..leaf + 8].copy_from_slice(&depth.to_le_bytes());
            set_leaf_checksum(&image, &mut bytes, leaf);
            assert!(finds(&look(&bytes), Code::ExtentHeaderInvalid), "{options}, depth {depth}");
            repair_all(&mut bytes, &format!("{options}, depth {depth}"));
            assert!(look(&bytes).problems.is_empty(), "{options}, depth {depth}");
            let after = Image::from_bytes(&bytes);
            assert!(e2fsck(after.path()).clean, "{options}, depth {depth}");
            assert!(content(&after, "/holes") == before, "{options}, depth {depth}: the content is not what it was");
        }
    }
}

/// A tree with more levels than any file needs is made shallower, and the file is preserved, as with e2fsck.
#[test]
fn the_file_of_a_tree_that_is_too_deep_survives() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let names = ["one", "two", "three"];
    for (name, n) in names.iter().zip(1u8..) {
        std::fs::write(folder.path().join(name), vec![n; 100_000]).expect("a file");
    }
    let contents = |image: &Image| names.map(|name| content(image, &format!("/{name}")));
    for args in [
        ["-t", "ext4", "-b", "1024", "-O", "^has_journal"],
        ["-t", "ext4", "-b", "4096", "-O", "^has_journal"],
        ["-t", "ext4", "-b", "1024", "-O", "^has_journal,^metadata_csum"],
    ] {
        let image = Image::mke2fs(&args, 16 << 20).with_folder(folder.path()).build();
        let before = contents(&image);
        let device = MemoryDevice::from_vec(image.bytes());
        damage(&device, Kind::Problem(0x01_007D), 1).expect("a file with extents");
        let mut bytes = device.into_vec();
        let report = look(&bytes);
        let codes: Vec<_> = report.problems.iter().map(|problem| problem.code).collect();
        assert_eq!(codes, [Code::ExtentTreeTooDeep], "{args:?}");
        let theirs = Image::from_bytes(&bytes);
        run("e2fsck", &["-fy".as_ref(), theirs.path().as_os_str()]);
        assert!(contents(&theirs) == before, "{args:?}: e2fsck preserves the file");
        repair_all(&mut bytes, &format!("{args:?}"));
        assert!(look(&bytes).problems.is_empty(), "{args:?}");
        image.set_bytes(&bytes);
        let verdict = e2fsck(image.path());
        assert!(verdict.clean, "{args:?}: {}", verdict.text);
        assert!(contents(&image) == before, "{args:?}: the content is not what it was");
    }
}

/// Only an extent that ends beyond any file is lost, not those that follow it.
#[test]
fn an_extent_past_the_end_of_all_files_costs_itself_alone() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let (image, leaf) = with_a_leaf(&["-t", "ext4", "-b", "1024", "-J", "size=1"]);
    let before = content(&image, "/holes");
    let mut bytes = image.bytes();
    // the logical block of the third entry
    bytes[leaf + 36..leaf + 40].copy_from_slice(&u32::MAX.to_le_bytes());
    set_leaf_checksum(&image, &mut bytes, leaf);
    let found: Vec<_> = look(&bytes).problems.iter().map(|problem| problem.code).collect();
    assert!(found.contains(&Code::ExtentEndOutOfBounds) && !found.contains(&Code::ExtentsOutOfOrder), "{found:?}");
    repair_all(&mut bytes, "");
    assert!(look(&bytes).problems.is_empty(), "{:?}", look(&bytes).problems);
    let after = Image::from_bytes(&bytes);
    assert!(e2fsck(after.path()).clean);
    let after = content(&after, "/holes");
    let differing: Vec<_> = (0..before.len().max(after.len())).filter(|n| before.get(*n) != after.get(*n)).collect();
    assert_eq!(differing, [2 * 16384], "one block is lost");
}

/// e2fsck reports that the tree has no valid root; the entries are all there.
#[test]
fn an_index_flag_on_a_directory_in_its_inode_is_cleared() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(folder.path().join("small")).expect("a folder");
    std::fs::write(folder.path().join("small/file"), "x").expect("a file");
    let args = ["-t", "ext4", "-b", "1024", "-I", "256", "-O", "inline_data", "-J", "size=1"];
    let image = Image::mke2fs(&args, 16 << 20).with_folder(folder.path()).build();
    let intact = image.bytes();
    let said = image.debugfs(&["stat /small"]).text();
    assert!(said.contains("Flags: 0x10000000"), "it stands in its inode: {said}");
    image.debugfs(&["sif /small flags 0x10001000"]);
    let mut bytes = image.bytes();
    assert!(finds(&look(&bytes), Code::HtreeRootBad), "{:?}", look(&bytes).problems);
    repair_all(&mut bytes, "");
    image.set_bytes(&bytes);
    assert!(e2fsck(image.path()).clean);
    assert_eq!(look(&bytes).counts, look(&intact).counts);
    let said = image.debugfs(&["stat /small", "ls -p /small"]).text();
    assert!(said.contains("Flags: 0x10000000") && said.contains("/file/"), "{said}");
}

/// An inode bitmap whose location is inside the table proves nothing; the table is confirmed by its own inodes.
#[test]
fn a_bitmap_in_the_wrong_place_does_not_cost_the_table() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    for (args, size) in &VOLUMES[..2] {
        let image = filled(args, *size);
        let intact = image.bytes();
        let sb = DiskSuperblock::from_slice(&intact[1024..2048]).expect("a superblock");
        let said = image.debugfs(&["stats"]).text();
        let table = said.split_once("inode table at ").expect("a group").1.split_whitespace().next().expect("a place");
        let within = table.trim_end_matches(',').parse::<u32>().expect("a number") + 16;
        assert!(sb.s_inodes_count.get() > 1000, "a table of more blocks than that");
        image.debugfs(&[&format!("set_bg 0 inode_bitmap {within}"), "set_bg 0 checksum calc"]);
        let mut bytes = image.bytes();
        repair_all(&mut bytes, &format!("{args:?}"));
        assert_eq!(look(&bytes).counts.inodes, look(&intact).counts.inodes, "{args:?}: every file is there");
        image.set_bytes(&bytes);
        assert!(e2fsck(image.path()).clean, "{args:?}");
    }
}

/// The log ends before the block: e2fsck extends the file, and so does Extant, once.
#[test]
fn a_stray_block_behind_the_log_does_not_send_the_repair_in_circles() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let image = filled(&["-t", "ext3", "-b", "1024", "-J", "size=1"], 8 << 20);
    let said = image.debugfs(&["stat <8>"]).text();
    let last = said.rsplit_once("(IND):").expect("indirect blocks").1;
    let last: usize = last.split(|c: char| !c.is_ascii_digit()).next().and_then(|n| n.parse().ok()).expect("a block");
    let mut bytes = image.bytes();
    let at = last * 1024 + 250 * 4;
    assert_eq!(bytes[at..at + 4], [0; 4], "behind the end");
    bytes[at..at + 4].copy_from_slice(&8000u32.to_le_bytes());
    repair_all(&mut bytes, "");
    assert!(look(&bytes).problems.is_empty(), "{:?}", look(&bytes).problems);
    image.set_bytes(&bytes);
    assert!(e2fsck(image.path()).clean);
}
