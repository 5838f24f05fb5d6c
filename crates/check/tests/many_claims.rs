//! Very many files that each claim the same many blocks, by a few bytes of each inode: memory and time are bounded by
//! the volume, not by the number of blocks claimed. The only test of its process, whose memory it measures.

use blockdev::{BlockDevice, MemoryDevice};
use extant_check::report::{Report, exit};
use extant_check::table::Code;
use extant_check::{Options, Repair, check, repair};
use format::extent::{Extent, write_leaf};
use format::group::Group;
use format::inode::{InodeBuf, InodeFlags};
use format::superblock::Superblock;
use format::{FileBlock, FsBlock};
use std::sync::Arc;
use std::time::{Duration, Instant};
use testkit::{Image, need};

/// Number of files.
const SHARERS: u32 = 30_000;
/// Number of extents of each file, and of blocks of each extent.
const EXTENTS: (u32, u32) = (4, 5_000);
/// Upper bound of the resident memory: far above a volume of 33 MiB in memory, its check and its repair, and far below
/// one byte for each of the 600 million claims.
const MOST: u64 = 320 << 20;
/// Upper bound of the time: far above that on a slow machine, and far below that of work on every single claim.
const LONGEST: Duration = Duration::from_secs(60);

/// Claims the last blocks of the volume for `SHARERS` files; returns the number of files.
fn share(bytes: &mut [u8]) -> u32 {
    let geometry = Superblock::parse(&bytes[1024..2048]).expect("a volume").geometry;
    let (extents, len) = EXTENTS;
    let extent = |n: u32| Extent {
        logical: FileBlock((n * len).into()),
        physical: FsBlock(geometry.blocks - u64::from((extents - n) * len)),
        len,
        unwritten: false,
    };
    let mut map = [0u8; 60];
    write_leaf(&mut map, &(0..extents).map(extent).collect::<Vec<_>>()).expect("few extents");
    let place = |block| geometry.byte_offset(block).expect("a block of the volume") as usize;
    let (per_block, size) = (geometry.descriptors_per_block(), geometry.descriptor_size as usize);
    let inode_size = geometry.inode_size as usize;
    let mut count = 0;
    for group in geometry.group_numbers() {
        let at = place(geometry.descriptor_block(group.get() / per_block)) + (group.get() % per_block) as usize * size;
        let table = place(Group::from_bytes(&bytes[at..at + size]).inode_table);
        for n in (0..geometry.inodes_per_group).filter(|n| geometry.inode_at(group, *n).get() >= 12) {
            if count == SHARERS {
                return count;
            }
            let at = table + n as usize * inode_size;
            let mut inode = InodeBuf::from_slot(&bytes[at..at + inode_size]).expect("an inode");
            inode.set_mode(0o100_644);
            inode.set_links(1);
            inode.set_flags(InodeFlags::EXTENTS);
            inode.set_size(u64::from(extents * len) << 10);
            inode.set_sectors(u64::from(extents * len) * 2, false, geometry.block_size).expect("few sectors");
            inode.set_block(map);
            bytes[at..at + inode_size].copy_from_slice(inode.bytes());
            count += 1;
        }
    }
    count
}

fn assert_bounded(report: &Report, taken: Duration) {
    let peak = report.scan.peak_rss_bytes;
    assert!(peak.is_some_and(|bytes| bytes < MOST), "{peak:?} bytes");
    assert!(taken < LONGEST, "{taken:?}");
}

#[test]
fn claims_on_many_blocks_by_many_files_take_memory_by_the_volume() {
    if !need(&["mke2fs"]) {
        return;
    }
    let features = "^has_journal,^metadata_csum,^uninit_bg";
    let args = ["-t", "ext4", "-b", "1024", "-I", "128", "-N", "30100", "-O", features];
    let mut bytes = Image::mke2fs(&args, 33 << 20).build().bytes();
    assert_eq!(share(&mut bytes), SHARERS);
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_vec(bytes));

    let options = |repair| Options { threads: 2, repair, now: Some(1_700_000_000), ..Options::default() };
    let start = Instant::now();
    let report = check("volume", &*device, &options(Repair::No), &()).expect("a volume");
    assert_bounded(&report, start.elapsed());
    assert_eq!(report.exit, exit::LEFT);
    let first = report.problems.iter().find(|p| p.code == Code::FileSharesBlocks).expect("a shared block");
    let blocks = u64::from(EXTENTS.0 * EXTENTS.1);
    assert_eq!((first.inode, first.count, first.found), (Some(12), Some(blocks), Some(u64::from(SHARERS) - 1)));
    assert!(first.text.contains("inodes 13, 14, 15, 16 and more"), "{}", first.text);

    // the copies do not fit
    let start = Instant::now();
    let report = repair("volume", &device, &options(Repair::All), &(), None).expect("a volume");
    assert_bounded(&report, start.elapsed());
    assert_eq!(report.exit, exit::REPAIRED);
    let report = check("volume", &*device, &options(Repair::No), &()).expect("a volume");
    assert_eq!(report.exit, exit::CLEAN, "{:?}", report.problems.first());
}
