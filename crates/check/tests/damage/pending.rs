//! Deletions and truncations that are pending, on volumes that are damaged as well.

use crate::repaired::{fix, options};
use blockdev::MemoryDevice;
use extant_check::report::{Report, exit};
use extant_check::table::Code;
use extant_check::{Repair, check};
use format::superblock::{DiskSuperblock, Geometry};
use format::{GroupNo, InodeNo};
use testkit::oracle::{debugfs, debugfs_dump, e2fsck};
use testkit::tools::run;
use testkit::{Image, need, repair_checksums};

/// The location in which an inode is recorded as an orphan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pending {
    Nowhere,
    List,
    File,
}

fn look(bytes: &[u8]) -> Report {
    check("volume", &MemoryDevice::from_vec(bytes.to_vec()), &options(Repair::No), &()).expect("a volume")
}

fn codes(report: &Report) -> Vec<Code> {
    report.problems.iter().map(|problem| problem.code).collect()
}

fn geometry(bytes: &[u8]) -> (DiskSuperblock, Geometry) {
    let disk = DiskSuperblock::from_slice(&bytes[1024..2048]).expect("a superblock");
    let geometry = Geometry::of(&disk).expect("a volume");
    (disk, geometry)
}

/// Records inodes as orphans.
fn record(image: &Image, inodes: &[u32], pending: Pending) {
    match pending {
        Pending::Nowhere => {}
        Pending::List => {
            let nexts = inodes.iter().skip(1).copied().chain([0]);
            let links = inodes.iter().zip(nexts).map(|(inode, next)| format!("sif <{inode}> dtime {next}"));
            let commands: Vec<_> = links.chain([format!("ssv last_orphan {}", inodes[0])]).collect();
            image.debugfs(&commands.iter().map(String::as_str).collect::<Vec<_>>());
        }
        Pending::File => {
            let mut bytes = image.bytes();
            let file = geometry(&bytes).0.s_orphan_file_inum.get();
            let said = debugfs(image.path(), &format!("bmap <{file}> 0"));
            let block: usize = said.lines().find_map(|line| line.trim().parse().ok()).expect("its first block");
            for (n, inode) in inodes.iter().enumerate() {
                bytes[block * 1024 + 8 * n..][..4].copy_from_slice(&inode.to_le_bytes());
            }
            // the feature ORPHAN_PRESENT
            bytes[1024 + 0x66] |= 1;
            image.set_bytes(&bytes);
        }
    }
}

fn number(image: &Image, name: &str) -> u32 {
    let said = debugfs(image.path(), &format!("stat {name}"));
    let rest = said.split_once("Inode: ").map(|(_, rest)| rest);
    rest.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).expect("a number")
}

/// The byte of an inode on a volume with blocks of 1 KiB.
fn place(bytes: &[u8], inode: u32) -> usize {
    let (_, geometry) = geometry(bytes);
    let slot = geometry.inode_slot(InodeNo(inode)).expect("an inode");
    let at = descriptor(bytes, slot.group);
    let table = u32::from_le_bytes([bytes[at + 8], bytes[at + 9], bytes[at + 10], bytes[at + 11]]);
    (table + slot.table_block) as usize * 1024 + slot.offset as usize
}

/// The byte of a group's descriptor.
fn descriptor(bytes: &[u8], group: GroupNo) -> usize {
    let (_, geometry) = geometry(bytes);
    let per_block = geometry.descriptors_per_block();
    let block = geometry.descriptor_block(group.get() / per_block).get() as usize;
    block * 1024 + (group.get() % per_block * geometry.descriptor_size) as usize
}

/// Formats without checksums in the orphan file.
const FORMATS: [&[&str]; 3] = [
    &["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", "^orphan_file"],
    &["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", "^metadata_csum,uninit_bg,^orphan_file"],
    &["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", "^metadata_csum,uninit_bg,orphan_file"],
];

/// The two ways to record orphans on a volume of this format.
fn recordable(args: &[&str]) -> [Pending; 2] {
    [
        Pending::Nowhere,
        if args.last().is_some_and(|last| last.ends_with(",orphan_file")) { Pending::File } else { Pending::List },
    ]
}

/// The first group has the root, and the counts in another's descriptor show that it has inodes in use: a flag that
/// denies this is wrong, whether or not an orphan in the group is freed.
#[test]
fn a_flag_that_denies_the_inodes_of_a_group_costs_no_name() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    (0..40).for_each(|n| std::fs::write(folder.path().join(format!("f{n}")), vec![n; 3000]).expect("a file"));
    std::fs::create_dir(folder.path().join("dir")).expect("a folder");
    std::fs::write(folder.path().join("dir/within"), "within").expect("a file");
    for args in FORMATS {
        for (group, flags) in [(0, 1u16), (0, 3), (0, 5), (0, 7), (0, 0xFD7B), (1, 1), (1, 5)] {
            let mut reports = Vec::new();
            for pending in recordable(args) {
                let said = format!("{args:?}, group {group}: flags {flags:#x}, orphans {pending:?}");
                let shape = ["-N", "64", "-g", "4096"];
                let image = Image::mke2fs(&[&shape, args].concat(), 8 << 20).with_folder(folder.path()).build();
                let first = geometry(&image.bytes()).1.inode_at(GroupNo(group), 20).get();
                let name = (0..40).map(|n| format!("f{n}")).find(|name| number(&image, name) >= first).expect("a file");
                let orphan = number(&image, &name);
                if pending != Pending::Nowhere {
                    image.debugfs(&[&format!("unlink {name}"), &format!("sif <{orphan}> links_count 0")]);
                }
                record(&image, &[orphan], pending);
                let names = debugfs(image.path(), "ls -p /") + &debugfs(image.path(), "ls -p /dir");
                let mut bytes = image.bytes();
                let at = descriptor(&bytes, GroupNo(group)) + 0x12;
                bytes[at..at + 2].copy_from_slice(&flags.to_le_bytes());
                repair_checksums(&mut bytes);
                let found = codes(&look(&bytes));
                assert!(found.contains(&Code::GroupInodeUninitInUse), "{said}: {found:?}");
                assert!(!found.contains(&Code::RootMissing), "{said}: {found:?}");
                let report = fix(&mut bytes, Repair::All).expect("a volume");
                assert_eq!(report.exit, exit::REPAIRED, "{said}: {:?}", report.problems);
                assert!(look(&bytes).problems.is_empty(), "{said}: {:?}", look(&bytes).problems);
                image.set_bytes(&bytes);
                let verdict = e2fsck(image.path());
                assert!(verdict.clean, "{said}: {}", verdict.text);
                let after = debugfs(image.path(), "ls -p /") + &debugfs(image.path(), "ls -p /dir");
                assert_eq!(after, names, "{said}");
                reports.push(codes(&report).contains(&Code::GroupInodeUninitInUse));
            }
            assert_eq!(reports, [true, true], "{args:?}, group {group}: flags {flags:#x}");
        }
    }
}

/// A file with extents out of order is truncated after the repair of its map, and has the size in its inode.
#[test]
fn a_truncation_waits_for_the_repair_of_the_map() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut parts = vec![0u8; 77 * 1024];
    for block in [0..4, 24..28, 48..52, 72..77].into_iter().flatten() {
        parts[block * 1024..][..1024].fill(1 + block as u8);
    }
    for name in ["one", "two", "intact"] {
        std::fs::write(folder.path().join(name), &parts).expect("a file");
    }
    for args in FORMATS {
        let pending = recordable(args)[1];
        for size in [5000, 25_000, 60_000, 77 * 1024] {
            let said = format!("{args:?}: {size} bytes, orphans {pending:?}");
            let image = Image::mke2fs(args, 8 << 20).with_folder(folder.path()).build();
            let inodes = ["one", "two", "intact"].map(|name| number(&image, name));
            let sizes = inodes.map(|inode| format!("sif <{inode}> size {size}"));
            image.debugfs(&sizes.each_ref().map(String::as_str));
            record(&image, &inodes, pending);
            let mut bytes = image.bytes();
            for inode in &inodes[..2] {
                // the second extent begins in the first
                let extent = place(&bytes, *inode) + 40 + 24;
                assert_eq!(bytes[extent], 24, "{said}");
                bytes[extent] = 3;
            }
            repair_checksums(&mut bytes);
            let found = codes(&look(&bytes));
            assert!(found.contains(&Code::ExtentsOutOfOrder), "{said}");
            let preened = fix(&mut bytes.clone(), Repair::Safe).expect("a volume");
            assert!(preened.exit & exit::LEFT != 0, "{said}: {:?}", preened.problems);
            image.set_bytes(&bytes);
            run("e2fsck", &["-fy".as_ref(), image.path().as_os_str()]);
            let theirs = ["one", "two", "intact"].map(|name| debugfs_dump(image.path(), name));
            let report = fix(&mut bytes, Repair::All).expect("a volume");
            assert!(!codes(&report).contains(&Code::InodeSizeWrong), "{said}: {:?}", report.problems);
            assert!(look(&bytes).problems.is_empty(), "{said}: {:?}", look(&bytes).problems);
            image.set_bytes(&bytes);
            let verdict = e2fsck(image.path());
            assert!(verdict.clean, "{said}: {}", verdict.text);
            for (name, theirs) in ["one", "two", "intact"].iter().zip(theirs) {
                let ours = debugfs_dump(image.path(), name);
                assert_eq!(ours.len(), size, "{said}: {name}");
                let differing = (0..size).find(|n| theirs.get(*n) != ours.get(*n));
                assert_eq!(differing, None, "{said}: {name}, e2fsck: {} bytes", theirs.len());
            }
        }
    }
}

/// The table at the location in a descriptor is the group's, whatever flags and counts there deny, and no name is lost.
#[test]
fn wrong_flags_and_counts_of_a_group_cost_no_name() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    (0..40).for_each(|n| std::fs::write(folder.path().join(format!("f{n}")), vec![n; 3000]).expect("a file"));
    std::fs::create_dir(folder.path().join("dir")).expect("a folder");
    std::fs::write(folder.path().join("dir/within"), "within").expect("a file");
    let shapes: [&[&str]; 3] = [&["-g", "4096"], &["-g", "4096", "-G", "1"], &[]];
    let sums = ["metadata_csum", "^metadata_csum,uninit_bg", "^metadata_csum,^uninit_bg"];
    for (shape, sum) in shapes.iter().flat_map(|shape| sums.map(|sum| (*shape, sum))) {
        let args = [&["-t", "ext4", "-b", "1024", "-N", "64", "-J", "size=1", "-O", sum], shape].concat();
        let image = Image::mke2fs(&args, 8 << 20).with_folder(folder.path()).build();
        let intact = image.bytes();
        let list = || debugfs(image.path(), "ls -p /") + &debugfs(image.path(), "ls -p /dir");
        let names = list();
        let (_, geometry) = geometry(&intact);
        let all = geometry.inodes_per_group as u16;
        let groups = (0..geometry.groups).flat_map(|group| [2u16, 3, 7].map(|flags| (group, flags)));
        let unused =
            [all - 9, all - 1, all].into_iter().flat_map(|unused| [None, Some(all)].map(|free| (unused, free)));
        for ((group, flags), (unused, free)) in groups.flat_map(|one| unused.clone().map(move |other| (one, other))) {
            let said = format!("{args:?}, group {group}: flags {flags:#x}, {unused} unused, {free:?} free");
            let mut bytes = intact.clone();
            let own = &mut bytes[descriptor(&intact, GroupNo(group))..];
            own[0x12..0x14].copy_from_slice(&flags.to_le_bytes());
            own[0x1C..0x1E].copy_from_slice(&unused.to_le_bytes());
            if let Some(free) = free {
                own[0x0E..0x10].copy_from_slice(&free.to_le_bytes());
            }
            repair_checksums(&mut bytes);
            let report = fix(&mut bytes, Repair::All).unwrap_or_else(|refusal| panic!("{said}: {refusal}"));
            assert_eq!(report.exit, exit::REPAIRED, "{said}: {:?}", report.problems);
            assert!(look(&bytes).problems.is_empty(), "{said}: {:?}", look(&bytes).problems);
            image.set_bytes(&bytes);
            let verdict = e2fsck(image.path());
            assert!(verdict.clean, "{said}: {}", verdict.text);
            assert_eq!(list(), names, "{said}");
        }
    }
}
