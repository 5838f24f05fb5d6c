//! Fields that are wrong in structures whose checksums are right. Superblocks with a wrong inode number or layout,
//! inodes with a wrong inline data flag, a resize inode that points outside the volume: a repair corrects the field and
//! loses nothing.

use crate::repaired::{contents, fix, only_marked, options};
use blockdev::{BlockDevice, MemoryDevice};
use extant_check::report::{Report, exit};
use extant_check::table::Code;
use extant_check::{Options, Repair, check, repair};
use format::superblock::DiskSuperblock;
use std::collections::BTreeSet;
use std::sync::Arc;
use testkit::oracle::e2fsck;
use testkit::{Image, need};
use zerocopy::FromBytes;

const EXT4: &[&str] = &["-t", "ext4", "-b", "1024", "-J", "size=1"];

/// A folder with files in it and next to it.
pub(crate) fn filled_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(folder.path().join("dir")).expect("a folder");
    for (name, fill) in [("dir/inner", 3), ("a", 1), ("b", 2), ("large", 9)] {
        std::fs::write(folder.path().join(name), vec![fill; 40_000]).expect("a file");
    }
    folder
}

/// Several groups, a folder and files in it and in the root.
fn volume(args: &[&str]) -> Image {
    let folder = filled_folder();
    std::fs::write(folder.path().join("large"), vec![9; 2 << 20]).expect("a file");
    Image::mke2fs(args, 24 << 20).with_folder(folder.path()).build()
}

fn inode_of(image: &Image, path: &str) -> u32 {
    let said = image.debugfs(&[&format!("stat {path}")]).text();
    let number = said.split_once("Inode: ").expect("an inode").1.split_whitespace().next().expect("a number");
    number.parse().expect("a number")
}

/// All names in the root and the folder with their inodes and sizes, and the files' content.
pub(crate) fn tree(image: &Image) -> String {
    let dump = tempfile::tempdir().expect("a folder");
    let mut said = image.debugfs(&["ls -p /", "ls -p /dir"]).text();
    for path in ["a", "b", "large", "dir/inner"] {
        let to = dump.path().join("dump");
        image.debugfs(&[&format!("dump {path} {}", to.display())]);
        let bytes = std::fs::read(&to).unwrap_or_default();
        let sum: u64 = bytes.iter().map(|byte| u64::from(*byte)).sum();
        said.push_str(&format!("{path}: {} {sum}\n", bytes.len()));
        let _ = std::fs::remove_file(&to);
    }
    said
}

pub(crate) fn superblock(bytes: &mut [u8]) -> &mut DiskSuperblock {
    DiskSuperblock::mut_from_bytes(&mut bytes[1024..2048]).expect("a superblock")
}

/// The volume with a changed superblock and its right checksum.
fn changed(bytes: &[u8], change: impl FnOnce(&mut DiskSuperblock)) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let superblock = superblock(&mut bytes);
    change(superblock);
    superblock.set_checksum();
    bytes
}

pub(crate) fn look(bytes: &[u8]) -> Report {
    check("volume", &MemoryDevice::from_vec(bytes.to_vec()), &options(Repair::No), &()).expect("a volume")
}

pub(crate) fn finds(report: &Report, code: Code) -> bool {
    report.problems.iter().any(|problem| problem.code == code)
}

/// Repairs the volume and checks that it is clean after one run that changed only the superblock.
fn only_the_superblock(said: &str, intact: &[u8], mut bytes: Vec<u8>, mode: Repair) -> Vec<u8> {
    let report = fix(&mut bytes, mode).expect("a volume");
    assert_eq!((report.exit, report.repaired), (exit::REPAIRED, true), "{said}: {:?}", report.problems);
    assert!(look(&bytes).problems.is_empty(), "{said}: {:?}", look(&bytes).problems);
    let differing = (0..bytes.len()).filter(|n| bytes[*n] != intact[*n] && !(1024..2048).contains(n));
    let outside: BTreeSet<_> = differing.map(|n| n / 1024).collect();
    // the redo log, in free blocks
    assert!(outside.len() <= 4, "{said}: blocks {outside:?} changed");
    bytes
}

pub(crate) fn repaired(said: &str, bytes: &mut Vec<u8>) {
    let report = fix(bytes, Repair::All).expect("a volume");
    assert_eq!(report.exit, exit::REPAIRED, "{said}: {:?}", report.problems);
}

#[test]
fn a_wrong_number_of_the_journal_costs_nothing() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    for kind in ["ext3", "ext4"] {
        let image = volume(&["-t", kind, "-b", "1024", "-J", "size=1"]);
        let (intact, before) = (image.bytes(), tree(&image));
        let named = ["dir", "a", "large"].map(|path| inode_of(&image, path));
        for number in named.into_iter().chain([0, 1, 2, 7, 11, 500, 999_999]) {
            let said = format!("{kind}: journal {number}");
            let damaged = changed(&intact, |sb| sb.s_journal_inum = number.into());
            let report = look(&damaged);
            assert!(!report.clean && finds(&report, Code::JournalInodeElsewhere), "{said}: {:?}", report.problems);
            for mode in [Repair::Safe, Repair::All] {
                let mut bytes = only_the_superblock(&said, &intact, damaged.clone(), mode);
                assert_eq!(superblock(&mut bytes).s_journal_inum.get(), 8, "{said}");
            }
            // the real journal inode is destroyed too: it is restored from the copy, and only at its own number
            image.set_bytes(&intact);
            image.debugfs(&["clri <8>"]);
            let mut bytes = changed(&image.bytes(), |sb| sb.s_journal_inum = number.into());
            repaired(&said, &mut bytes);
            image.set_bytes(&bytes);
            assert!(e2fsck(image.path()).clean, "{said}");
            assert_eq!(tree(&image), before, "{said}");
        }
    }
}

#[test]
fn a_file_named_for_quota_without_the_feature_stays_a_file() {
    if !need(&["mke2fs", "debugfs"]) {
        return;
    }
    let image = volume(EXT4);
    let intact = image.bytes();
    for number in [inode_of(&image, "a"), inode_of(&image, "dir"), 1, 2, 5, 7, 8] {
        for field in 0..4 {
            // reserved numbers are harmless there, but e2fsck clears one that it takes for the orphan file
            if field != 3 && number < 11 && number != 2 {
                continue;
            }
            let damaged = changed(&intact, |sb| match field {
                0 => sb.s_usr_quota_inum = number.into(),
                1 => sb.s_grp_quota_inum = number.into(),
                2 => sb.s_prj_quota_inum = number.into(),
                _ => sb.s_orphan_file_inum = number.into(),
            });
            let said = format!("field {field} names {number}");
            assert!(finds(&look(&damaged), Code::SystemInodeWithoutFeature), "{said}");
            let mut bytes = only_the_superblock(&said, &intact, damaged, Repair::All);
            let superblock = superblock(&mut bytes);
            let numbers = [superblock.s_usr_quota_inum, superblock.s_prj_quota_inum, superblock.s_orphan_file_inum];
            assert_eq!(numbers.map(|n| n.get()), [0; 3], "{said}");
        }
    }
}

/// A wrong quota file is rewritten, but not over a user's file.
#[test]
fn a_file_named_for_quota_stays_a_file() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let image = volume(&["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", "quota,project"]);
    // mke2fs -d fills the volume after it has counted
    let mut intact = image.bytes();
    repaired("counts of quota", &mut intact);
    image.set_bytes(&intact);
    let (before, project) = (tree(&image), superblock(&mut intact).s_prj_quota_inum.get());
    // the reserved inodes of other kinds are valid quota files, too
    for number in [inode_of(&image, "a"), inode_of(&image, "dir"), 2, project, 3, 4] {
        for field in 0..3 {
            if number == [3, 4, project][field] {
                continue;
            }
            let wrong = changed(&intact, |sb| match field {
                0 => sb.s_usr_quota_inum = number.into(),
                1 => sb.s_grp_quota_inum = number.into(),
                _ => sb.s_prj_quota_inum = number.into(),
            });
            let said = format!("field {field} names {number}");
            let report = look(&wrong);
            assert!(finds(&report, Code::QuotaInodeElsewhere), "{said}: {:?}", report.problems);
            let mut bytes = wrong;
            repaired(&said, &mut bytes);
            assert!(look(&bytes).problems.is_empty(), "{said}: {:?}", look(&bytes).problems);
            let sb = superblock(&mut bytes);
            assert_eq!((sb.s_usr_quota_inum.get(), sb.s_grp_quota_inum.get()), (3, 4), "{said}");
            let after = Image::from_bytes(&bytes);
            assert_eq!(tree(&after), before, "{said}");
            assert!(e2fsck(after.path()).clean, "{said}");
        }
    }
}

#[test]
fn a_wrong_layout_is_put_right_from_a_copy() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let image = volume(EXT4);
    let (intact, before) = (image.bytes(), tree(&image));
    type Change = fn(&mut DiskSuperblock);
    let cases: [(&str, Change); 12] = [
        ("inodes of 1024 bytes", |sb| sb.s_inode_size = 1024.into()),
        ("inodes of 512 bytes", |sb| sb.s_inode_size = 512.into()),
        ("inodes of 128 bytes", |sb| sb.s_inode_size = 128.into()),
        ("descriptors of 1024 bytes", |sb| sb.s_desc_size = 1024.into()),
        ("descriptors of 128 bytes", |sb| sb.s_desc_size = 128.into()),
        ("twice the inodes", |sb| {
            sb.s_inodes_per_group = (sb.s_inodes_per_group.get() * 2).into();
            sb.s_inodes_count = (sb.s_inodes_count.get() * 2).into();
        }),
        ("short descriptors", |sb| sb.s_feature_incompat = (sb.s_feature_incompat.get() ^ 0x80).into()),
        ("no flexible groups", |sb| sb.s_feature_incompat = (sb.s_feature_incompat.get() ^ 0x200).into()),
        ("the first revision", |sb| sb.s_rev_level = 0.into()),
        ("blocks of 2 KiB", |sb| {
            (sb.s_log_block_size, sb.s_log_cluster_size) = (1.into(), 1.into());
        }),
        ("blocks from 0", |sb| sb.s_first_data_block = 0.into()),
        ("ordinary inodes from 100", |sb| sb.s_first_ino = 100.into()),
    ];
    for (said, change) in cases {
        let mut bytes = changed(&intact, change);
        // the administrator must decide which copy is right
        let mut safe = bytes.clone();
        let report = fix(&mut safe, Repair::Safe).expect("a volume");
        assert!(
            report.exit & exit::LEFT != 0 && (safe == bytes || only_marked(&bytes, &safe)),
            "{said}: {:?}",
            report.problems
        );
        repaired(said, &mut bytes);
        assert!(look(&bytes).clean, "{said}: {:?}", look(&bytes).problems);
        image.set_bytes(&bytes);
        assert!(e2fsck(image.path()).clean, "{said}");
        assert_eq!(tree(&image), before, "{said}");
    }
}

/// The flag alone does not prove where a file's data is; the content of the inode does.
#[test]
fn a_stray_inline_flag_costs_no_file() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let paths = ["a", "large", "dir", "empty", "link", "long", "pipe", "device"];
    for args in [
        &["-t", "ext2", "-b", "1024"][..],
        &["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", "^inline_data"],
        &["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", "inline_data"],
        &["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", "inline_data,^extent,^64bit"],
    ] {
        let image = volume(args);
        let target = "t".repeat(200);
        let commands = ["mknod pipe p", "mknod device c 5 1", "symlink link inner", &format!("symlink long {target}")];
        image.debugfs(&commands);
        image.debugfs(&["write /dev/null empty"]);
        let intact = image.bytes();
        let stats = |image: &Image| paths.map(|path| fields(&image.debugfs(&[&format!("stat {path}")]).text()));
        let (before, before_stats) = (tree(&image), stats(&image));
        for path in paths {
            let said = format!("{args:?}: {path}");
            image.set_bytes(&intact);
            let flags = &before_stats[paths.iter().position(|p| *p == path).expect("a path")].1;
            let flags = u32::from_str_radix(flags.trim_start_matches("0x"), 16).expect("flags");
            if flags & 0x1000_0000 != 0 {
                // it is inline
                continue;
            }
            // for inline data; and for encryption
            let stray = if path == "link" { 0x1000_0800 } else { 0x1000_0000 };
            image.debugfs(&[&format!("set_inode_field {path} flags {:#x}", flags | stray)]);
            let mut bytes = image.bytes();
            assert_ne!(bytes, intact, "{said}");
            assert!(!look(&bytes).clean, "{said}");
            repaired(&said, &mut bytes);
            assert!(look(&bytes).problems.is_empty(), "{said}: {:?}", look(&bytes).problems);
            image.set_bytes(&bytes);
            assert!(e2fsck(image.path()).clean, "{said}");
            assert_eq!(tree(&image), before, "{said}");
            assert_eq!(stats(&image), before_stats, "{said}");
        }
    }
}

/// The mode and size, and the flags, of an inode from debugfs's output.
fn fields(said: &str) -> (String, String) {
    let after = |name: &str| {
        let rest = said.split_once(name).map_or("", |(_, rest)| rest);
        rest.split_whitespace().next().unwrap_or_default().to_owned()
    };
    (format!("{} {}", after("Type:"), after("Size:")), after("Flags:"))
}

/// e2fsck rejects such a volume too, and resize2fs would use the number.
#[test]
fn a_resize_inode_that_leads_out_of_the_volume_is_an_error() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let image = volume(EXT4);
    let before = tree(&image);
    let mut bytes = image.bytes();
    let said = image.debugfs(&["stat <7>"]).text();
    let first = said.split("(IND):").nth(1).and_then(|rest| rest.split([',', '\n', '-']).next()).expect("a block");
    let at = first.trim().parse::<usize>().expect("a number") * 1024;
    assert!(bytes[at..at + 4] != [0; 4], "the first group with a copy");
    bytes[at..at + 4].copy_from_slice(&0x7FFF_FFF0_u32.to_le_bytes());
    let report = look(&bytes);
    assert!(finds(&report, Code::BlockOutOfRange) && !report.clean, "{:?}", report.problems);
    let safe = fix(&mut bytes.clone(), Repair::Safe).expect("a volume");
    assert!(safe.exit & exit::LEFT != 0, "{:?}", safe.problems);
    repaired("the resize inode", &mut bytes);
    assert!(look(&bytes).problems.is_empty(), "{:?}", look(&bytes).problems);
    image.set_bytes(&bytes);
    assert!(e2fsck(image.path()).clean);
    assert_eq!(tree(&image), before);
}

/// Unreadable attributes of a small file are dropped without its content, which is stored among them.
#[test]
fn inline_data_outlives_the_attributes_beside_it() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let content: Vec<u8> = (0..90).map(|n| b'a' + n % 26).collect();
    std::fs::write(folder.path().join("small"), &content).expect("a file");
    std::fs::write(folder.path().join("tiny"), "all of it stands in the block map").expect("a file");
    let args = ["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", "inline_data", "-I", "256"];
    let image = Image::mke2fs(&args, 24 << 20).with_folder(folder.path()).build();
    let file = || image.debugfs(&["cat small"]).text();
    let text = String::from_utf8(content).expect("letters");
    assert!(file().contains(&text));
    image.debugfs(&["ea_set small user.other value"]);
    let intact = image.bytes();
    // after the header in the inode: the first entry has 16 bytes and the name "data", the second one follows
    let first = area_of(&intact, b"data\x05\x01");
    type Change = fn(&mut [u8]);
    let changes: [(&str, Change); 3] = [
        ("the hash", |entry| entry[12] ^= 1),
        ("a value beyond the end", |entry| entry[2..4].copy_from_slice(&[0xFF, 0xFF])),
        ("an empty value beyond the end", |entry| {
            entry[2..4].copy_from_slice(&[0xFF, 0xFF]);
            entry[8..16].fill(0);
        }),
    ];
    for (said, change) in changes {
        let mut bytes = intact.clone();
        change(&mut bytes[first + 4..first + 24]);
        image.set_bytes(&bytes);
        // corrects the inode's checksum
        image.debugfs(&["set_inode_field small generation 7"]);
        let mut bytes = image.bytes();
        assert!(!look(&bytes).clean, "{said}");
        repaired(said, &mut bytes);
        assert!(look(&bytes).problems.is_empty(), "{said}: {:?}", look(&bytes).problems);
        image.set_bytes(&bytes);
        assert!(e2fsck(image.path()).clean, "{said}");
        assert!(file().contains(&text), "{said}: {}", file());
    }
    // without the attribute `i_block` contains all data of the smaller file
    let mut bytes = intact.clone();
    let entry = area_of(&bytes, b"all of it stands") - 0x28 + 128 + 32 + 4;
    assert_eq!(bytes[entry..entry + 2], [4, 7]);
    bytes[entry + 1] = 1;
    image.set_bytes(&bytes);
    image.debugfs(&["set_inode_field tiny generation 7"]);
    let mut bytes = image.bytes();
    assert!(finds(&look(&bytes), Code::InlineDataXattrMissing), "{:?}", look(&bytes).problems);
    repaired("no attribute", &mut bytes);
    image.set_bytes(&bytes);
    assert!(e2fsck(image.path()).clean);
    assert!(image.debugfs(&["cat tiny"]).text().contains("all of it stands in the block map"));
}

/// The first offset of these bytes.
fn area_of(bytes: &[u8], wanted: &[u8]) -> usize {
    bytes.windows(wanted.len()).position(|window| window == wanted).expect("the bytes")
}

/// One wrong field in each system inode: the verdict is e2fsck's, and e2fsck finds nothing after a repair.
#[test]
fn fields_of_the_volumes_own_inodes_are_looked_at() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let args = ["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", "quota,project,orphan_file"];
    let image = Image::mke2fs(&args, 12 << 20).build();
    let mut intact = image.bytes();
    let own = superblock(&mut intact);
    let (project, orphans) = (own.s_prj_quota_inum.get(), own.s_orphan_file_inum.get());
    assert!(look(&intact).clean && project >= 11 && orphans >= 11);
    for number in [3, 4, 8, project, orphans] {
        for field in ["links_count 0", "mode 0", "dtime 5", "dtime 1700000000", "size 77777777", "blocks 1", "flags 0"]
        {
            let said = format!("inode {number}: {field}");
            image.set_bytes(&intact);
            image.debugfs(&[&format!("set_inode_field <{number}> {field}")]);
            let mut bytes = image.bytes();
            assert_eq!(look(&bytes).clean, e2fsck(image.path()).clean, "{said}: {:?}", look(&bytes).problems);
            if !look(&bytes).clean {
                repaired(&said, &mut bytes);
            }
            assert!(look(&bytes).clean, "{said}: {:?}", look(&bytes).problems);
            image.set_bytes(&bytes);
            assert!(e2fsck(image.path()).clean, "{said}");
        }
    }
}

/// The index flag on the journal, and the encrypt flag also where inodes have no space for a context: both are errors
/// for e2fsck too, and only the flag is cleared.
#[test]
fn stray_flags_of_directories_and_encryption_are_cleared() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    const INDEX: u32 = 0x1000;
    const ENCRYPT: u32 = 0x800;
    let cases = [
        ("<8>", INDEX, Code::HtreeFlagOnNonDirectory),
        ("<8>", ENCRYPT, Code::EncryptionXattrMissing),
        ("a", ENCRYPT, Code::EncryptionXattrMissing),
        ("dir", ENCRYPT, Code::EncryptionXattrMissing),
    ];
    for more in [&["-I", "128"][..], &["-I", "128", "-O", "encrypt"], &["-I", "256", "-O", "encrypt"]] {
        let image = volume(&[EXT4, more].concat());
        let (intact, before) = (image.bytes(), tree(&image));
        for (path, flag, code) in cases {
            let said = format!("{more:?}: {path} with {flag:#x}");
            image.set_bytes(&intact);
            let flags = |image: &Image| fields(&image.debugfs(&[&format!("stat {path}")]).text()).1;
            let old = flags(&image);
            let new = u32::from_str_radix(old.trim_start_matches("0x"), 16).expect("flags") | flag;
            image.debugfs(&[&format!("set_inode_field {path} flags {new:#x}")]);
            let mut bytes = image.bytes();
            let report = look(&bytes);
            assert!(finds(&report, code) && !e2fsck(image.path()).clean, "{said}: {:?}", report.problems);
            repaired(&said, &mut bytes);
            assert!(look(&bytes).problems.is_empty(), "{said}: {:?}", look(&bytes).problems);
            image.set_bytes(&bytes);
            assert!(e2fsck(image.path()).clean, "{said}");
            assert_eq!((flags(&image), tree(&image)), (old, before.clone()), "{said}");
        }
    }
}

/// The blocks for new system inodes may belong to files: they are not overwritten.
#[test]
fn own_files_that_lead_into_others_cost_nothing() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let image = volume(&["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", "quota,project,orphan_file"]);
    // mke2fs -d fills the volume after it has counted
    let mut intact = image.bytes();
    repaired("counts of quota", &mut intact);
    image.set_bytes(&intact);
    let before = tree(&image);
    let own = superblock(&mut intact);
    let (project, orphans) = (own.s_prj_quota_inum.get(), own.s_orphan_file_inum.get());
    let block_in = |image: &Image, path: &str| {
        let said = image.debugfs(&[&format!("bmap {path} 0")]).text();
        said.lines().find_map(|line| line.trim().parse::<u32>().ok()).expect("a block")
    };
    let (folder, root, file) = (block_in(&image, "dir"), block_in(&image, "/"), block_in(&image, "a"));
    for number in [3, 4, project, orphans] {
        let first = block_in(&image, &format!("<{number}>"));
        for block in [folder, root, file, first + 1, first - 1, first + 4] {
            let said = format!("inode {number} leads to block {block}");
            image.set_bytes(&intact);
            image.debugfs(&[&format!("set_inode_field <{number}> block[5] {block}")]);
            let mut bytes = image.bytes();
            assert!(bytes != intact && !look(&bytes).clean, "{said}");
            repaired(&said, &mut bytes);
            image.set_bytes(&bytes);
            assert_eq!(tree(&image), before, "{said}");
            assert!(e2fsck(image.path()).clean, "{said}");
        }
    }
    // e2fsck and debugfs wait half a minute before they open such a volume
    let intact = volume(&["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", "mmp"]).bytes();
    let blocks: Vec<&[u8]> = intact.chunks(1024).collect();
    let names = |name: &[u8]| blocks.iter().position(|block| block.windows(name.len()).any(|bytes| bytes == name));
    let file = blocks.iter().position(|block| block.iter().all(|byte| *byte == 1));
    for block in [names(b"inner"), names(b"lost+found"), file].map(|block| block.expect("a block")) {
        let said = format!("multiple-mount protection in block {block}");
        let mut bytes = changed(&intact, |sb| sb.s_mmp_block = (block as u64).into());
        repaired(&said, &mut bytes);
        assert!(look(&bytes).problems.is_empty(), "{said}: {:?}", look(&bytes).problems);
        let at = block * 1024;
        assert!(bytes[at..at + 1024] == intact[at..at + 1024], "{said}");
    }
}

/// The resize inode covers as many blocks as the superblock reserves, but the root directory begins within them.
#[test]
fn too_many_blocks_reserved_for_growth_cost_no_names() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = filled_folder();
    let image = Image::mke2fs(EXT4, 6 << 20).with_folder(folder.path()).build();
    let (intact, before) = (image.bytes(), tree(&image));
    let reserved = superblock(&mut image.bytes()).s_reserved_gdt_blocks.get();
    for more in [1, 2, 5, 40] {
        let said = format!("{more} blocks more");
        let mut bytes = changed(&intact, |sb| sb.s_reserved_gdt_blocks = (reserved + more).into());
        assert!(!look(&bytes).clean, "{said}");
        repaired(&said, &mut bytes);
        assert!(look(&bytes).problems.is_empty(), "{said}: {:?}", look(&bytes).problems);
        image.set_bytes(&bytes);
        assert_eq!(tree(&image), before, "{said}");
        assert!(e2fsck(image.path()).clean, "{said}");
    }
}

/// Checksums that tune2fs leaves in an orphan file when it removes metadata_csum.
#[test]
fn checksums_of_an_orphan_file_without_the_feature_go() {
    if !need(&["mke2fs", "tune2fs", "e2fsck"]) {
        return;
    }
    let image = Image::mke2fs(&["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", "orphan_file"], 8 << 20).build();
    testkit::tools::must("tune2fs", &["-O", "^metadata_csum", image.path().to_str().expect("a path")]);
    let damaged = image.bytes();
    assert!(finds(&look(&damaged), Code::OrphanFileBlockNotClean), "{:?}", look(&damaged).problems);
    for mode in [Repair::Safe, Repair::All] {
        let mut bytes = damaged.clone();
        let report = fix(&mut bytes, mode).expect("a volume");
        let said = format!("{mode:?}: {:?}", report.problems.first());
        assert!(look(&bytes).problems.is_empty(), "{said}: {:?}", look(&bytes).problems);
        assert!(report.repaired, "{said}");
        image.set_bytes(&bytes);
        assert!(e2fsck(image.path()).clean, "{said}");
    }
}

/// The inline data of lost+found is not a block map, and the new directory is not written to the blocks that it seems
/// to list.
#[test]
fn a_lost_and_found_in_its_inode_costs_nothing() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    // of one group, whose descriptor has no copy
    let folder = filled_folder();
    let image = Image::mke2fs(&["-t", "ext4", "-b", "1024", "-I", "256", "-J", "size=1", "-O", "inline_data"], 6 << 20)
        .with_folder(folder.path())
        .build();
    let other = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(other.path(), vec![5; 30_000]).expect("written");
    image.debugfs(&["rmdir lost+found", "mkdir lost+found", &format!("write {} f", other.path().display())]);
    let number = inode_of(&image, "f");
    image.debugfs(&["unlink f"]);
    assert!(image.debugfs(&["stat lost+found"]).text().contains("0x10000000"), "an inline directory");
    let before = tree(&image);
    let mut bytes = image.bytes();
    repaired("one file to be attached", &mut bytes);
    assert!(look(&bytes).problems.is_empty(), "{:?}", look(&bytes).problems);
    image.set_bytes(&bytes);
    assert_eq!(tree(&image), before);
    assert_eq!(inode_of(&image, &format!("lost+found/#{number}")), number);
    assert!(e2fsck(image.path()).clean);
}

/// Two names of one folder in an inline directory.
#[test]
fn a_second_name_of_a_folder_in_an_inode_is_found() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let image = Image::mke2fs(&["-t", "ext4", "-b", "1024", "-I", "256", "-J", "size=1", "-O", "inline_data"], 8 << 20)
        .debugfs(&["mkdir b", "mkdir b/c", "mkdir b/c/e", "link b/c b/d"])
        .build();
    assert!(image.debugfs(&["stat b"]).text().contains("0x10000000"), "an inline directory");
    assert!(!e2fsck(image.path()).clean);
    let mut bytes = image.bytes();
    assert!(finds(&look(&bytes), Code::EntryLinksDirectory), "{:?}", look(&bytes).problems);
    repaired("two names", &mut bytes);
    assert!(look(&bytes).problems.is_empty(), "{:?}", look(&bytes).problems);
    image.set_bytes(&bytes);
    assert!(e2fsck(image.path()).clean);
    assert!(inode_of(&image, "b/c/e") > 11);
}

/// A leaf below the root maps one block after the end of the journal: e2fsck accepts that only where the leaf is in the
/// inode.
#[test]
fn a_leaf_has_no_block_at_the_end_of_its_file() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    let args = ["-t", "ext4", "-b", "1024", "-g", "256", "-J", "size=1", "-O", "^flex_bg,^metadata_csum,^uninit_bg"];
    let image = Image::mke2fs(&args, 6 << 20).build();
    let mut bytes = std::fs::read(image.path()).expect("the volume");
    let u16_at = |bytes: &[u8], at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    let last = |bytes: &[u8], leaf: usize| leaf + 12 * usize::from(u16_at(bytes, leaf + 2));
    let leaf = (0..bytes.len()).step_by(1024).find(|&at| {
        let is_leaf = bytes[at..at + 2] == [0x0A, 0xF3] && u16_at(&bytes, at + 6) == 0;
        is_leaf && u16_at(&bytes, last(&bytes, at)) + u16_at(&bytes, last(&bytes, at) + 4) == 1024
    });
    let entry = last(&bytes, leaf.expect("the journal's leaf"));
    bytes[entry + 4] += 1;
    let found = look(&bytes);
    let names_it = |p: &extant_check::report::Reported| p.code == Code::InodeSizeWrong && p.inode == Some(8);
    assert!(found.problems.iter().any(names_it), "{:?}", found.problems);
    repaired("a block behind the journal", &mut bytes);
    assert!(e2fsck(Image::from_bytes(&bytes).path()).clean);
}

/// A copy of the superblock from before the volume was shrunk, or a truncated image: by the copy the volume is larger
/// than the device. It does not replace the primary, neither where the user chooses it nor where nothing else is left,
/// and nothing is written; a check without repair is possible.
#[test]
fn a_copy_by_which_the_device_is_too_short_is_not_restored() {
    if !need(&["mke2fs"]) {
        return;
    }
    const COPY: usize = 8193 << 10;
    let mut bytes = Image::mke2fs(EXT4, 20 << 20).build().bytes();
    let disk = DiskSuperblock::mut_from_bytes(&mut bytes[COPY..COPY + DiskSuperblock::SIZE]).expect("a copy");
    disk.s_inodes_count = (disk.s_inodes_per_group.get() * 5).into();
    disk.s_blocks_count_lo = 40_960.into();
    disk.set_checksum();
    for primary_magic in [0xEF53u16, 0] {
        bytes[1024 + 0x38..][..2].copy_from_slice(&primary_magic.to_le_bytes());
        let named = primary_magic != 0;
        let by_copy = Options { superblock: named.then_some(8193), ..options(Repair::All) };
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_vec(bytes.clone()));
        let refusal = repair("volume", &device, &by_copy, &(), None).expect_err("a refusal");
        assert!(refusal.sentence.contains("40960 blocks") && refusal.sentence.contains("20480"), "{refusal:?}");
        assert!(contents(&*device) == bytes, "{primary_magic:x}: it was written");
        assert!(check("volume", &*device, &Options { repair: Repair::No, ..by_copy }, &()).is_ok());
    }
}
