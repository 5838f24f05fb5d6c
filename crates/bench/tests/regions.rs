//! The checker on volumes with metadata regions: they are read in one pass, with the same result as a walk of each
//! tree.

use blockdev::{BlockDevice, MemoryDevice};
use check::report::Report;
use check::{Options, check};
use format::FsBlock;
use format::indirect::IndirectTail;
use fs::mkfs::{FeatureEdits, Kind, MkfsOptions, make};
use fs::{Consistency, FileKind, InodeNo, NewFile, OpenOptions, Volume, WriteOptions};
use simdev::Trace;
use std::sync::Arc;

const BLOCK: usize = 1024;

fn contents(device: &dyn BlockDevice) -> Vec<u8> {
    let mut bytes = vec![0; device.geometry().len as usize];
    device.read(0, &mut bytes).expect("reading");
    bytes
}

/// A volume with regions and files of all depths, and the inode numbers of the files.
fn volume(extents: bool) -> (Vec<u8>, Vec<InodeNo>) {
    let mut options = MkfsOptions::new(Kind::Rext3);
    (options.uuid, options.hash_seed) = ([7; 16], [9; 16]);
    options.block_size = Some(BLOCK as u32);
    options.blocks_per_group = Some(2048);
    options.inodes = Some(2048);
    let mut edits = FeatureEdits::default();
    edits.add(if extents { "^has_journal,extents" } else { "^has_journal" }).expect("features");
    options.features = edits;
    let device = Arc::new(MemoryDevice::zeroed(24 << 20).expect("memory"));
    make(&*device, &options).expect("mkfs");
    let write = WriteOptions {
        superuser: true,
        seed: Some(7),
        consistency: Some(Consistency::None),
        ..WriteOptions::default()
    };
    let open = OpenOptions { write: Some(write), ..OpenOptions::default() };
    let volume = Volume::open(Arc::<MemoryDevice>::clone(&device), &open).expect("opening");
    let dir = NewFile { kind: FileKind::Directory, mode: 0o755, umask: 0, uid: 0, gid: 0, device: (0, 0) };
    let file = NewFile { kind: FileKind::Regular, ..dir };
    let mut numbers = Vec::new();
    for n in 0..6u64 {
        let parent = volume.create(InodeNo::ROOT, format!("dir{n}").as_bytes(), &dir).expect("mkdir").number;
        for m in 0..30u64 {
            let name = format!("a file with a name of some length {m:04}");
            let number = volume.create(parent, name.as_bytes(), &file).expect("create").number;
            // every other block, so that extents need a tree; sometimes at large offsets, for the deeper levels
            let blocks = if m % 10 == 3 { 700 } else { 4 + m };
            for block in (0..blocks).step_by(2) {
                volume.write_at(number, block * BLOCK as u64, &[m as u8 + 1; BLOCK]).expect("write");
            }
            if m % 15 == 7 {
                volume.write_at(number, (12 + 254 + 254 * 254 + 3) * BLOCK as u64, b"far").expect("write");
            }
            if m % 4 == 0 {
                volume.truncate(number, blocks * BLOCK as u64 / 2).expect("truncate");
            }
            numbers.push(number);
        }
    }
    volume.unmount().expect("unmount");
    drop(volume);
    (contents(&*device), numbers)
}

fn look(bytes: &[u8], options: &Options) -> Report {
    check("volume", &MemoryDevice::from_vec(bytes.to_vec()), options, &()).expect("a volume")
}

fn names(report: &Report) -> Vec<String> {
    report.problems.iter().map(|p| format!("{} {:?} {:?}", p.name, p.inode, p.block)).collect()
}

fn options(threads: usize) -> Options {
    Options { threads, ..Options::default() }
}

/// The indirect blocks by their tails: block, owner, level.
fn indirect_blocks(bytes: &[u8]) -> Vec<(usize, u32, u8)> {
    let seed = format::superblock::Superblock::parse(&bytes[1024..2048]).expect("a superblock").geometry.checksum_seed;
    let blocks = bytes.chunks_exact(BLOCK).enumerate();
    let stated = blocks.filter_map(|(n, block)| {
        let tail = IndirectTail::of(block).filter(|tail| (1..=3).contains(&tail.it_level))?;
        IndirectTail::checksum_matches(block, FsBlock(n as u64), seed).then_some((
            n,
            tail.it_owner.get(),
            tail.it_level,
        ))
    });
    stated.collect()
}

#[test]
fn a_consistent_volume_is_read_once_and_forwards() {
    for extents in [false, true] {
        let (bytes, _) = volume(extents);
        for threads in [1, 3] {
            let report = look(&bytes, &options(threads));
            assert!(report.clean && report.problems.is_empty(), "{extents} {threads}: {:?}", names(&report));
        }
        let device = Trace::with_events(MemoryDevice::from_vec(bytes), usize::MAX);
        check("volume", &device, &options(1), &()).expect("a volume");
        let reads: Vec<_> = device.events().iter().map(|event| event.offset).collect();
        // phase 0 reads the superblock, the descriptors, and in one pass their copies at the start of later groups
        let superblock = format::superblock::Superblock::parse(&contents(&device)[1024..2048]).expect("a superblock");
        let geometry = superblock.geometry;
        let groups = geometry.backup_groups().map(|group| geometry.group_head(group));
        let heads: Vec<_> = groups.map(|head| head.start * BLOCK as u64..head.end * BLOCK as u64).collect();
        let (copies, reads): (Vec<_>, Vec<_>) =
            reads.into_iter().partition(|at| heads.iter().any(|head| head.contains(at)));
        assert!(!copies.is_empty() && copies.is_sorted(), "{extents}: {copies:?}");
        // after that one pass reads everything, including directories
        let back = reads.windows(2).skip(4).filter(|pair| pair[1] < pair[0]).count();
        assert!(back <= 1, "{extents}: {reads:?}");
    }
}

#[test]
fn a_block_that_does_not_say_whose_it_is_sends_its_file_to_its_tree() {
    let (intact, _) = volume(false);
    let all = indirect_blocks(&intact);
    assert!([1, 2, 3].iter().all(|level| all.iter().any(|(_, _, l)| l == level)), "{all:?}");
    for (block, owner, level) in all.iter().step_by(7).copied() {
        let mut bytes = intact.clone();
        bytes[(block + 1) * BLOCK - 1] ^= 1;
        for threads in [1, 3] {
            let report = look(&bytes, &options(threads));
            let said = names(&report);
            assert_eq!(
                said,
                [format!("IndirectBlockForeign {:?} {:?}", Some(owner), Some(block as u64))],
                "level {level}"
            );
        }
    }
}

#[test]
fn a_bitmap_that_hides_a_tree_block_hides_nothing_else() {
    let (intact, _) = volume(false);
    let superblock = format::superblock::Superblock::parse(&intact[1024..2048]).expect("a superblock");
    let geometry = superblock.geometry;
    for (block, ..) in indirect_blocks(&intact).into_iter().step_by(9) {
        let group = geometry.group_of(FsBlock(block as u64)).expect("a group");
        let at = geometry.group_blocks(group).start;
        // the block bitmap follows the group's superblock and descriptors, if it has any
        let descriptor = geometry.descriptor_block(0).get() as usize * BLOCK + group.get() as usize * 64;
        let bitmap = u32::from_le_bytes(intact[descriptor..descriptor + 4].try_into().expect("four bytes")) as usize;
        let place = block - at as usize;
        let mut bytes = intact.clone();
        bytes[bitmap * BLOCK + place / 8] &= !(1 << (place % 8));
        let report = look(&bytes, &options(2));
        assert!(report.errors > 0);
        assert!(report.problems.iter().all(|p| p.group == Some(group.get())), "{:?}", names(&report));
    }
}

#[test]
fn owners_of_a_block_do_not_depend_on_the_segments() {
    let (intact, _) = volume(false);
    let seed = format::superblock::Superblock::parse(&intact[1024..2048]).expect("a superblock").geometry.checksum_seed;
    let level1: Vec<_> = indirect_blocks(&intact).into_iter().filter(|(_, _, level)| *level == 1).collect();
    let (first, last) = (level1[1], level1[level1.len() - 2]);
    assert_ne!(first.1, last.1);
    let mut bytes = intact;
    let word = |bytes: &[u8], block: usize| {
        let words = bytes[block * BLOCK..][..254 * 4].chunks_exact(4);
        words.map(|w| u32::from_le_bytes(w.try_into().expect("four bytes"))).position(|w| w != 0).expect("a pointer")
    };
    let (from, to) = (word(&bytes, first.0), word(&bytes, last.0));
    let shared: Vec<u8> = bytes[first.0 * BLOCK + from * 4..][..4].to_vec();
    bytes[last.0 * BLOCK + to * 4..][..4].copy_from_slice(&shared);
    let block = &mut bytes[last.0 * BLOCK..][..BLOCK];
    IndirectTail::set_checksum(block, FsBlock(last.0 as u64), seed).expect("space");
    let owners = |scan_segments| {
        let report = look(&bytes, &Options { scan_segments, ..options(2) });
        let shares = report.problems.iter().filter(|p| p.name == "FileSharesBlocks");
        shares.map(|p| p.inode.expect("an inode")).collect::<Vec<_>>()
    };
    let mut both = [first.1, last.1];
    both.sort_unstable();
    for scan_segments in [None, Some(1), Some(3), Some(1000)] {
        assert_eq!(owners(scan_segments), both, "{scan_segments:?}");
    }
}
