//! Very many files that all claim the blocks of one: finding and cloning them is linear in their number, not quadratic,
//! and their copies are written once.

use crate::repaired::{contents, fix, options};
use blockdev::{BlockDevice, MemoryDevice};
use extant_check::report::{Report, Reported, exit};
use extant_check::table::Code;
use extant_check::{Options, Repair, check, repair};
use format::InodeNo;
use format::group::Group;
use format::inode::{FileKind, InodeBuf};
use format::superblock::{Geometry, Superblock};
use simdev::{Logged, Record};
use std::sync::Arc;
use std::time::{Duration, Instant};
use testkit::oracle::{debugfs, e2fsck};
use testkit::tools::run;
use testkit::{Image, need};

/// Number of files with the map of another.
const SHARERS: usize = 3000;
/// The size of that file in bytes: twelve blocks.
const SIZE: usize = 12 << 10;
/// Upper bound of the time: far above that of the repair on a slow machine, and far below that of quadratic work.
const LONGEST: Duration = Duration::from_secs(10);

/// Every inode of a volume, with its location.
fn slots(bytes: &[u8], geometry: &Geometry) -> Vec<(InodeNo, usize)> {
    let place = |block| geometry.byte_offset(block).expect("a block of the volume") as usize;
    let (per_block, size) = (geometry.descriptors_per_block(), geometry.descriptor_size as usize);
    let mut all = Vec::new();
    for group in geometry.group_numbers() {
        let at = place(geometry.descriptor_block(group.get() / per_block)) + (group.get() % per_block) as usize * size;
        let table = place(Group::from_bytes(&bytes[at..at + size]).inode_table);
        let slot = |n: u32| (geometry.inode_at(group, n), table + n as usize * geometry.inode_size as usize);
        all.extend((0..geometry.inodes_per_group).map(slot));
    }
    all
}

/// Copies the map of the only non-empty file to all empty files, and returns their number.
fn share(bytes: &mut [u8]) -> usize {
    let geometry = Superblock::parse(&bytes[1024..2048]).expect("a volume").geometry;
    let size = geometry.inode_size as usize;
    let files: Vec<(InodeNo, usize, InodeBuf)> = slots(bytes, &geometry)
        .into_iter()
        .filter(|(number, _)| number.get() >= geometry.first_inode)
        .map(|(number, at)| (number, at, InodeBuf::from_slot(&bytes[at..at + size]).expect("an inode")))
        .filter(|(_, _, inode)| inode.kind() == Some(FileKind::Regular))
        .collect();
    let (sharers, owners): (Vec<_>, Vec<_>) = files.into_iter().partition(|(_, _, inode)| inode.raw().size() == 0);
    let [(_, _, owner)] = owners.as_slice() else { panic!("{} files with content", owners.len()) };
    let raw = owner.raw();
    let count = sharers.len();
    for (number, at, mut inode) in sharers {
        inode.set_block(raw.disk.i_block);
        inode.set_flags(raw.flags());
        inode.set_size(raw.size());
        inode.set_sectors(raw.sectors(false, geometry.block_size), false, geometry.block_size).expect("few sectors");
        inode.set_checksum(&geometry, number);
        bytes[at..at + size].copy_from_slice(inode.bytes());
    }
    count
}

/// A file has the extent block of another as data, so the scan does not follow that. On a full volume clusters without a
/// claim are allocated although they are marked as used, but not those beneath that block.
#[test]
fn a_full_volume_does_not_lose_what_is_beneath_a_shared_node() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    const LEN: usize = 400;
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let front: Vec<u8> = (0..LEN << 10).map(|n| (n >> 10) as u8 | 1).collect();
    let sparse: Vec<u8> =
        (0..120 << 10).map(|n| if n >> 10 & 1 == 1 { 0 } else { b'a' + (n >> 11) as u8 % 20 }).collect();
    std::fs::write(path("front"), &front).expect("a file");
    std::fs::write(path("sparse"), &sparse).expect("a file");
    let write = |name: &str| format!("write {} {name}", path(name).display());
    let args = ["-t", "ext4", "-b", "1024", "-O", "^has_journal,^metadata_csum", "-N", "64"];
    let image = Image::mke2fs(&args, 4 << 20).debugfs(&[&write("sparse"), &write("front")]).build();
    let free = Superblock::parse(&image.bytes()[1024..2048]).expect("a volume").disk.free_blocks_count();
    std::fs::write(path("rest"), vec![b'r'; (free as usize - 12) << 10]).expect("a file");
    image.debugfs(&[&write("rest")]);
    assert!(e2fsck(image.path()).clean);
    // the numbers of a line: depth, entries, first and last block of the file, then on the volume, length
    let lines = |name: &str| {
        let said = debugfs(image.path(), &format!("ex {name}"));
        let numbers = |line: &str| line.split_whitespace().filter_map(|n| n.parse().ok()).collect::<Vec<u32>>();
        said.lines().map(numbers).filter(|numbers| numbers.len() >= 6).collect::<Vec<_>>()
    };
    let leaf = lines("sparse")[0][4];
    let longest = lines("front").into_iter().max_by_key(|numbers| numbers[6]).expect("an extent");
    let (logical, start, len) = (longest[2], longest[4], longest[6]);
    let intact = image.bytes();
    let extent = [logical, len, start].map(u32::to_le_bytes).concat();
    let at = intact.windows(12).position(|bytes| bytes == extent).expect("the extent of the first file");
    // the file's first blocks are before its extent block, and now the only ones in front of the other file's
    let mut bytes = intact;
    bytes[at + 8..at + 12].copy_from_slice(&leaf.to_le_bytes());
    let report = fix(&mut bytes, Repair::All).expect("a volume");
    assert!(report.clean, "{:?}", report.problems);
    image.set_bytes(&bytes);
    assert!(e2fsck(image.path()).clean);
    debugfs(image.path(), &format!("dump sparse {}", path("out").display()));
    assert!(std::fs::read(path("out")).expect("a file") == sparse);
}

/// Two files with one indirect block between them share all blocks beneath it as well.
#[test]
fn blocks_beneath_a_shared_indirect_block_are_counted() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["a", "b"] {
        let content: Vec<u8> = (0..157 << 10).map(|n: usize| (n / 5) as u8 ^ name.as_bytes()[0]).collect();
        std::fs::write(folder.path().join(name), &content).expect("a file");
    }
    let image = Image::mke2fs(&["-t", "ext2", "-b", "1024"], 8 << 20).with_folder(folder.path()).build();
    let said = debugfs(image.path(), "stat a");
    let block = said.split("(IND):").nth(1).and_then(|rest| rest.split(',').next()).expect("an indirect block");
    image.debugfs(&[&format!("set_inode_field b block[IND] {block}")]);
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_vec(image.bytes()));
    let verdict = e2fsck(image.path());
    assert!(verdict.text.contains("has 146 multiply-claimed block(s)"), "{}", verdict.text);

    let counts = |report: &Report| -> Vec<_> {
        let shares = report.problems.iter().filter(|p| p.code == Code::FileSharesBlocks);
        shares.map(|p| (p.inode, p.count)).collect()
    };
    let report = check("volume", &*device, &Options::default(), &()).expect("a volume");
    let expected: Vec<(Option<u32>, Option<u64>)> = vec![(Some(12), Some(146)), (Some(13), Some(146))];
    assert_eq!(counts(&report), expected);
    // also after the repair, in which the blocks beneath it are cloned in a second iteration
    let report = repair("volume", &device, &options(Repair::All), &(), None).expect("a volume");
    assert_eq!((report.exit, counts(&report)), (exit::REPAIRED, expected));
    let image = Image::from_bytes(&contents(&*device));
    let verdict = e2fsck(image.path());
    assert!(verdict.clean, "{}", verdict.text);
}

#[test]
fn thousands_of_sharers_are_separated_in_time_that_grows_with_their_number() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let content: Vec<u8> = (0..SIZE).map(|n| (n / 7) as u8).collect();
    std::fs::write(folder.path().join("shared"), &content).expect("a file");
    for n in 0..SHARERS {
        std::fs::write(folder.path().join(format!("f{n}")), b"").expect("a file");
    }
    for args in [&["-t", "ext2", "-b", "1024"][..], &["-t", "ext4", "-b", "1024", "-O", "^has_journal"]] {
        let mut bytes = Image::mke2fs(args, 64 << 20).with_folder(folder.path()).build().bytes();
        assert_eq!(share(&mut bytes), SHARERS, "{args:?}");
        let device = Arc::new(Record::in_memory(MemoryDevice::from_vec(bytes)));
        let as_device: Arc<dyn BlockDevice> = Arc::<Record<MemoryDevice, Vec<u8>>>::clone(&device);
        let start = Instant::now();
        let report = repair("volume", &as_device, &options(Repair::All), &(), None).expect("a volume");
        let taken = start.elapsed();
        assert_eq!(report.exit, exit::REPAIRED, "{args:?}: {:?}", report.problems.first());
        let shares: Vec<&Reported> = report.problems.iter().filter(|p| p.code == Code::FileSharesBlocks).collect();
        assert_eq!(shares.len(), SHARERS + 1, "{args:?}");
        let is_right = |p: &&Reported| {
            p.fixed && p.found == Some(SHARERS as u64) && p.count == Some(SIZE as u64 >> 10) && p.text.contains("more")
        };
        let wrong = shares.into_iter().find(|p| !is_right(p));
        assert!(wrong.is_none(), "{args:?}: {wrong:?}");

        let length = |logged: &Logged| if let Logged::Write { len, .. } = logged { *len } else { 0 };
        let log = device.log().expect("a whole log");
        let written: u64 = log.entries().iter().map(|entry| length(&entry.what)).sum();
        let copies = (SHARERS * SIZE) as u64;
        assert!(written >= copies && written < copies / 4 * 5, "{args:?}: {written} bytes for copies of {copies}");
        assert!(taken < LONGEST, "{args:?}: {taken:?}");

        let image = Image::from_bytes(&contents(&*as_device));
        let verdict = e2fsck(image.path());
        assert!(verdict.clean, "{args:?}: {}", verdict.text);
        for name in ["shared".to_owned(), "f0".to_owned(), format!("f{}", SHARERS - 1)] {
            let to = image.beside("content");
            image.debugfs(&[&format!("dump /{name} {}", to.display())]);
            assert!(std::fs::read(&to).expect("a file") == content, "{args:?}: {name} is not what it was");
        }
    }
}

/// A file that claims the blocks of a dozen others on a full volume, where no block is free for a copy.
#[test]
fn on_a_full_volume_one_file_is_cleared_and_the_others_retain_their_blocks() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let names: Vec<String> = (0..12).map(|n| format!("f{n}")).collect();
    let content: Vec<Vec<u8>> = (0..12u8).map(|n| vec![b'a' + n; 1024]).collect();
    let image = Image::mke2fs(&["-t", "ext2", "-b", "1024", "-N", "64", "-m", "0"], 2 << 20).build();
    // the first inode is repaired first
    for (name, bytes) in [("wide".to_owned(), Vec::new())].into_iter().chain(names.iter().cloned().zip(content.clone()))
    {
        let file = image.beside(&name);
        std::fs::write(&file, bytes).expect("a file");
        image.debugfs(&[&format!("write {} {name}", file.display())]);
    }
    let fill = image.beside("fill");
    std::fs::write(&fill, vec![b'x'; 2 << 20]).expect("a file");
    image.debugfs(&[&format!("write {} fill", fill.display())]);
    let _ = run("e2fsck", &["-fy".as_ref(), image.path().as_os_str()]);
    let mut commands = vec!["sif wide size 12288".to_owned(), "sif wide blocks 24".to_owned()];
    for (n, name) in names.iter().enumerate() {
        let block = image.debugfs(&[&format!("bmap {name} 0")]).text();
        let block = block.lines().find_map(|line| line.trim().parse::<u64>().ok()).expect("a block");
        commands.push(format!("sif wide block[{n}] {block}"));
    }
    image.debugfs(&commands.iter().map(String::as_str).collect::<Vec<_>>());

    let mut bytes = image.bytes();
    let report = fix(&mut bytes, Repair::All).expect("a repair");
    let cleared = report.problems.iter().filter(|p| p.code == Code::FileClearedForSpace);
    assert_eq!((report.exit, cleared.map(|p| p.fixed).collect::<Vec<_>>()), (exit::REPAIRED, vec![true]));
    let again = fix(&mut bytes, Repair::All).expect("a repair");
    assert_eq!((again.exit, again.errors), (exit::CLEAN, 0), "{:?}", again.problems);
    image.set_bytes(&bytes);
    assert!(e2fsck(image.path()).clean);
    for (name, content) in names.iter().zip(content) {
        let copy = image.beside("copy");
        image.debugfs(&[&format!("dump {name} {}", copy.display())]);
        assert_eq!(std::fs::read(&copy).expect("a copy"), content, "{name}");
    }
}

/// A journal of several extents shares a block with lost+found, and there is no block for a copy, nor for the node that
/// a fourth extent needs.
#[test]
fn on_a_full_volume_the_journal_is_discarded_before_a_file() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    // files that are there before the journal divide it into three extents
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(folder.path().join("d")).expect("a folder");
    for n in 0..20 {
        std::fs::write(folder.path().join(format!("d/f{n}")), b"content").expect("a file");
    }
    let args = ["-t", "ext4", "-b", "4096", "-N", "512"];
    let image = Image::mke2fs(&args, 12 << 20).with_folder(folder.path()).build();
    let fill = image.beside("fill");
    std::fs::write(&fill, vec![b'x'; 16 << 20]).expect("a file");
    image.debugfs(&[&format!("write {} fill", fill.display())]);
    for _ in 0..2 {
        let _ = run("e2fsck", &["-fy".as_ref(), image.path().as_os_str()]);
    }
    let journal = image.debugfs(&["blocks <8>"]).text();
    let first = journal.split_whitespace().find_map(|word| word.parse::<u64>().ok()).expect("a block");
    image.debugfs(&[&format!("sif <11> block[5] {}", first + 1)]);
    let mut bytes = image.bytes();
    let report = fix(&mut bytes, Repair::All).expect("a repair");
    assert_eq!(report.exit, exit::REPAIRED, "{:?}", report.problems);
    let again = fix(&mut bytes, Repair::All).expect("a repair");
    assert_eq!((again.exit, again.errors), (exit::CLEAN, 0), "{:?}", again.problems);
    image.set_bytes(&bytes);
    assert!(e2fsck(image.path()).clean);
}

/// An image with the files a to d, of 3, 16, 3 and 3 blocks, on which no block is free; and the content of each.
pub(crate) fn full_image(kind: &str) -> (Image, Vec<(&'static str, Vec<u8>)>) {
    let image =
        Image::mke2fs(&["-t", kind, "-b", "1024", "-N", "64", "-m", "0", "-O", "^has_journal"], 2 << 20).build();
    let files: Vec<(&str, Vec<u8>)> = [("a", 3), ("b", 16), ("c", 3), ("d", 3)]
        .map(|(name, blocks)| (name, format!("{name}: some text.\n").repeat(80).into_bytes().repeat(blocks)))
        .map(|(name, text)| (name, text.into_iter().take(if name == "b" { 16 } else { 3 } * 1024).collect()))
        .into();
    let fill = ("fill", vec![b'x'; 2 << 20]);
    for (name, bytes) in files.iter().chain([&fill]) {
        let file = image.beside(name);
        std::fs::write(&file, bytes).expect("a file");
        image.debugfs(&[&format!("write {} {name}", file.display())]);
    }
    for _ in 0..2 {
        let _ = run("e2fsck", &["-fy".as_ref(), image.path().as_os_str()]);
    }
    (image, files)
}

/// Repairs the image, which must be clean for both afterwards, without clearing a file, and with all files unchanged
/// but those in `changed`.
pub(crate) fn repairs_without_loss(image: &Image, files: &[(&str, Vec<u8>)], changed: &[&str], about: &str) {
    let mut bytes = image.bytes();
    let report = fix(&mut bytes, Repair::All).expect("a repair");
    assert_eq!(report.exit, exit::REPAIRED, "{about}: {:?}", report.problems);
    assert!(report.problems.iter().all(|p| p.code != Code::FileClearedForSpace), "{about}: {:?}", report.problems);
    let again = fix(&mut bytes, Repair::No).expect("a check");
    assert_eq!((again.exit, again.errors), (exit::CLEAN, 0), "{about}: {:?}", again.problems);
    image.set_bytes(&bytes);
    assert!(e2fsck(image.path()).clean, "{about}");
    for (name, content) in files.iter().filter(|(name, _)| !changed.contains(name)) {
        let copy = image.beside("copy");
        image.debugfs(&[&format!("dump /{name} {}", copy.display())]);
        assert!(std::fs::read(&copy).expect("a copy") == *content, "{about}: {name}");
    }
}

fn block_of(image: &Image, name: &str, number: u32) -> u64 {
    let block = image.debugfs(&[&format!("bmap {name} {number}")]).text();
    block.lines().find_map(|line| line.trim().parse::<u64>().ok()).expect("a block")
}

/// One wrong number in a file that leads to a block of another one costs no other file, however full the volume is.
#[test]
fn on_a_full_volume_a_wrong_number_costs_no_other_file() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    for kind in ["ext2", "ext4"] {
        for target in ["<2>", "<11>", "a", "b"] {
            for owner in ["a", "b", "c"] {
                let (image, files) = full_image(kind);
                let block = block_of(&image, target, 0);
                image.debugfs(&[&format!("sif {owner} file_acl {block}")]);
                repairs_without_loss(&image, &files, &[], &format!("{kind}: attributes of {owner} in {target}"));
            }
        }
    }
    for word in ["IND", "DIND", "TIND"] {
        for (owner, target) in [("a", "b"), ("c", "a"), ("d", "<2>"), ("a", "<2>"), ("c", "d")] {
            let (image, files) = full_image("ext2");
            let block = block_of(&image, target, 0);
            image.debugfs(&[&format!("sif {owner} block[{word}] {block}")]);
            repairs_without_loss(&image, &files, &[owner], &format!("word {word} of {owner} leads to {target}"));
        }
    }
    // the resize inode is made again
    for word in ["0", "IND", "DIND", "TIND"] {
        for target in ["a", "b", "fill", "<2>", "<11>"] {
            let (image, files) = full_image("ext2");
            let block = block_of(&image, target, 0);
            image.debugfs(&[&format!("sif <7> block[{word}] {block}")]);
            repairs_without_loss(&image, &files, &[], &format!("word {word} of the resize inode leads to {target}"));
        }
    }
    // the root's extent is too long, also if it seems to be unwritten
    for length in [6, 0x8006] {
        let (image, files) = full_image("ext4");
        image.debugfs(&[&format!("sif <2> block[4] {length}")]);
        repairs_without_loss(&image, &files, &[], &format!("the extent of the root has {length:#x} blocks"));
    }
    for (owner, length) in [("a", 40), ("c", 4), ("a", 1500), ("d", 300)] {
        let (image, files) = full_image("ext4");
        image.debugfs(&[&format!("sif {owner} block[4] {length}")]);
        repairs_without_loss(&image, &files, &[owner], &format!("the extent of {owner} has {length} blocks"));
    }
}

/// The extent of a file leads to the node of another file's tree, whose owner retains it.
#[test]
fn a_shared_node_stays_with_its_last_owner() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let (image, mut files) = full_image("ext4");
    // every second block of a file that fills the volume is freed, and allocated again for another
    for pair in 0..60 {
        image.debugfs(&[&format!("punch fill {} {}", 2 * pair, 2 * pair)]);
    }
    let content: Vec<u8> = b"fragments.\n".repeat(6_000).into_iter().take(40 * 1024).collect();
    let file = image.beside("parts");
    std::fs::write(&file, &content).expect("a file");
    image.debugfs(&[&format!("write {} parts", file.display())]);
    files.push(("parts", content));
    let rest = image.beside("rest");
    std::fs::write(&rest, vec![b'y'; 1 << 20]).expect("a file");
    image.debugfs(&[&format!("write {} rest", rest.display())]);
    for _ in 0..2 {
        let _ = run("e2fsck", &["-fy".as_ref(), image.path().as_os_str()]);
    }
    let extents = image.debugfs(&["ex parts"]).text();
    let node = extents.lines().find(|line| line.trim_start().starts_with("0/")).expect("a root");
    let node: u64 = node.split_whitespace().nth(7).and_then(|word| word.parse().ok()).expect("a node");
    image.debugfs(&[&format!("sif c block[5] {node}")]);
    repairs_without_loss(&image, &files, &["c"], "the extent of c leads to the node of parts");
}
