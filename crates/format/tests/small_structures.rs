//! The multiple-mount-protection block, orphan file and quota files that e2fsprogs and the kernel write.

use extant_format::checksum::crc32c;
use extant_format::jbd2::{self, JournalSuperblock, fast_commit};
use extant_format::mmp::{Mmp, Use};
use extant_format::orphan::OrphanBlock;
use extant_format::quota::{BLOCK_SIZE, Kind, QuotaFile};
use extant_format::superblock::DiskSuperblock;
use extant_format::{Error, FsBlock, Structure};
use std::collections::BTreeMap;
use testkit::{Image, cases, need, oracle, tools};
use zerocopy::FromBytes;

const BLOCK: usize = 1024;

fn volume(features: &str, options: &str) -> (Image, DiskSuperblock) {
    let image =
        Image::mke2fs(&["-t", "ext4", "-b", "1024", "-I", "256", "-O", features, "-E", options], 16 << 20).build();
    let superblock = DiskSuperblock::from_slice(&image.bytes()[1024..]).unwrap();
    (image, superblock)
}

fn seed(superblock: &DiskSuperblock) -> u32 {
    crc32c(!0, &superblock.s_uuid)
}

/// The number that debugfs prints after `label`.
fn number(said: &str, label: &str) -> u64 {
    let digits = said.split(label).nth(1).and_then(|rest| rest.split_whitespace().next());
    digits.and_then(|digits| digits.parse().ok()).unwrap_or_else(|| panic!("no {label} in {said}"))
}

#[test]
fn mmp_block() {
    if !need(&["mke2fs"]) {
        return;
    }
    let (image, superblock) = volume("mmp", "mmp_update_interval=7");
    let at = superblock.s_mmp_block.get() as usize * BLOCK;
    let mut block = image.bytes()[at..at + BLOCK].to_vec();
    let mmp = Mmp::parse(&block, Some(seed(&superblock))).unwrap();
    assert_eq!(mmp.disk().usage(), Use::Clean);
    assert_eq!(mmp.disk().mmp_check_interval.get(), 7);
    assert!(!mmp.node_name().is_empty());
    block[200] ^= 1;
    assert!(matches!(
        Mmp::parse(&block, Some(seed(&superblock))),
        Err(Error::Corrupt { structure: Structure::Mmp, .. })
    ));
}

#[test]
fn orphans_that_the_kernel_left() {
    if !need(&["mke2fs", "debugfs", "mount"]) || !tools::has_loop() {
        return;
    }
    let (image, superblock) = volume("orphan_file", "lazy_itable_init=0");
    let mounted = oracle::kernel_mount(image.path(), "").unwrap();
    let path = mounted.path().join("gone");
    let open = std::fs::File::create(&path).unwrap();
    let inode = std::os::unix::fs::MetadataExt::ino(&open.metadata().unwrap()) as u32;
    std::fs::remove_file(&path).unwrap();
    tools::must("sync", &["-f", mounted.path().to_str().unwrap()]);
    let copy = Image::from_bytes(&image.bytes());
    drop((open, mounted));

    // the change may be in the journal only
    copy.debugfs(&["journal_run"]);
    let file = superblock.s_orphan_file_inum.get();
    let generation = number(&oracle::debugfs(copy.path(), &format!("stat <{file}>")), "Generation: ") as u32;
    let inode_seed = crc32c(crc32c(seed(&superblock), &file.to_le_bytes()), &generation.to_le_bytes());
    let content = oracle::debugfs_dump(copy.path(), &format!("<{file}>"));
    let mut orphans = Vec::new();
    for (number, block) in content.chunks(BLOCK).enumerate() {
        let at = oracle::debugfs(copy.path(), &format!("bmap <{file}> {number}"));
        let at = FsBlock(at.lines().find_map(|line| line.trim().parse().ok()).expect("a block number"));
        orphans.extend(OrphanBlock::parse(block, at, Some(inode_seed)).unwrap().orphans());
        assert!(OrphanBlock::parse(block, at, Some(!inode_seed)).is_err());
    }
    assert_eq!(orphans.iter().map(|ino| ino.get()).collect::<Vec<_>>(), [inode]);
}

#[test]
fn quota_of_many_users() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let (image, superblock) = volume("quota", "quotatype=usrquota:grpquota");
    // ids far apart, so that the tree has several branches; enough of them for more than one data block
    let ids: Vec<u32> = (0..40).map(|n: u32| n.wrapping_mul(0x0634_5678) | 1).collect();
    let content = image.beside("content");
    std::fs::write(&content, [1; 5000]).unwrap();
    let mut commands = Vec::new();
    for (n, id) in ids.iter().enumerate() {
        commands.push(format!("write {} file{n}", content.display()));
        commands.push(format!("set_inode_field file{n} uid {id}"));
    }
    image.debugfs(&commands.iter().map(String::as_str).collect::<Vec<_>>());
    let ran = tools::run("e2fsck", &["-fy".as_ref(), image.path().as_os_str()]);
    assert!(matches!(ran.exit, Some(0 | 1)), "{}", ran.text());

    let read = |inode: u32, kind: Kind| {
        let file = oracle::debugfs_dump(image.path(), &format!("<{inode}>"));
        let quota = QuotaFile::parse(&file, kind, file.len() as u64).unwrap();
        let mut usage = BTreeMap::new();
        let block = |number: u32, block: &mut [u8; BLOCK_SIZE]| {
            block.copy_from_slice(&file[number as usize * BLOCK_SIZE..][..BLOCK_SIZE]);
            Ok::<_, Error>(())
        };
        quota.walk(block, |e| assert_eq!(usage.insert(e.id, (e.bytes, e.inodes)), None)).unwrap();
        usage
    };
    // debugfs prints id, bytes, limits, inodes, limits
    let listed = |kind: &str| -> BTreeMap<u32, (u64, u64)> {
        let said = oracle::debugfs(image.path(), &format!("list_quota {kind}"));
        let rows =
            said.lines().map(|line| line.split_whitespace().filter_map(|w| w.parse().ok()).collect::<Vec<u64>>());
        rows.filter(|row| row.len() == 7).map(|row| (row[0] as u32, (row[1], row[4]))).collect()
    };
    let users = read(superblock.s_usr_quota_inum.get(), Kind::User);
    assert!(ids.iter().all(|id| users.contains_key(id)));
    assert_eq!(users, listed("user"));
    assert_eq!(read(superblock.s_grp_quota_inum.get(), Kind::Group), listed("group"));
}

/// Sets a big-endian number of 4 bytes.
fn set(block: &mut [u8], at: usize, value: u32) {
    block[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

#[test]
fn any_bytes_are_read_without_a_panic() {
    let mut accepted = 0;
    for case in cases("any bytes", 2000) {
        let mut rng = case.rng();
        let len = *rng.pick(&[0, 3, 4, 11, 12, 16, 60, 1023, 1024, 4096]);
        let mut block = rng.bytes(len);
        if rng.chance(50) {
            let zero = rng.index(len + 1);
            block[..zero].fill(0);
        }
        if len >= 1024 {
            // enough of a journal superblock to reach the other checks
            set(&mut block, 0, jbd2::MAGIC);
            set(&mut block, 4, rng.between(3, 4) as u32);
            set(&mut block, 12, 1024);
            set(&mut block, 0x10, rng.magnitude(5000) as u32);
            set(&mut block, 0x14, rng.magnitude(2000) as u32);
            set(&mut block, 0x1C, rng.below(2000) as u32);
            set(&mut block, 0x24, rng.below(2) as u32);
            set(&mut block, 0x54, rng.magnitude(4000) as u32);
            set(&mut block, 0x28, rng.below(64) as u32);
            set(&mut block, 0x2C, 0);
            block[0x50] = 4;
            let sum = jbd2::DiskSuperblock::read_from_prefix(&block).unwrap().0.checksum();
            set(&mut block, 0xFC, sum);
        }
        if let Ok(superblock) = JournalSuperblock::parse(&block, 1024, 4000) {
            accepted += 1;
            let log = superblock.log_blocks();
            assert!(log.start < log.end && log.end <= 4000 && superblock.fast_commit_blocks().end <= 4000);
            assert!(superblock.start().is_none_or(|start| log.contains(&start)));
            let (format, any) = (superblock.log(), rng.bytes(len));
            assert!(format.tags(&any).count() <= len / format.tag_size());
            let revoked = format.revoked(&any).map_or(0, Iterator::count);
            assert!(revoked <= len / 4);
            let data_matches = format.tags(&any).next().map(|tag| format.data_matches(&tag, 1, &any));
            std::hint::black_box((data_matches, format.tail_matches(&any), format.commit_matches(&any, 0)));
        }
        let records = fast_commit::records(&block).count();
        assert!(records <= len / 4 + 1);
        fast_commit::Scan::new(1).block(&block).ok();
        Mmp::parse(&block, None).ok();
        OrphanBlock::parse(&block, FsBlock(1), None).ok();
    }
    assert!(accepted > 0, "no superblock was ever accepted");
}
