//! Under bigalloc the blocks of one cluster of a file lie in one cluster of the volume.

use crate::repaired::{fix, options};
use blockdev::MemoryDevice;
use extant_check::report::{Report, exit};
use extant_check::table::Code;
use extant_check::{Repair, check};
use format::extent::RawNode;
use std::os::unix::fs::FileExt;
use testkit::oracle::e2fsck;
use testkit::{Image, need};

const BLOCK: usize = 1024;
const RATIO: u64 = 4;

fn look(bytes: &[u8]) -> Report {
    let device = MemoryDevice::from_vec(bytes.to_vec());
    check("volume", &device, &options(Repair::No), &()).expect("a volume")
}

/// The leaves of a file: byte offset of each extent on the volume, its first block in the file and on the volume.
fn leaves(image: &Image, inode: u32) -> Vec<Vec<(usize, u64, u64)>> {
    let bytes = image.bytes();
    let place = image.debugfs(&[&format!("imap <{inode}>")]).text();
    let number = |after: &str| {
        let rest = place.split_once(after).unwrap_or_else(|| panic!("{place}")).1;
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
        rest[..end].to_owned()
    };
    let block: usize = number("block ").parse().or_else(|_| number("located at block ").parse()).expect("a block");
    let offset = usize::from_str_radix(&number("offset 0x"), 16).expect("an offset");
    let root = block * BLOCK + offset + 40;
    let leaf = |at: usize, len: usize| {
        let node = RawNode::from_bytes(&bytes[at..at + len]).expect("a node");
        let extents = node.extents().iter().enumerate();
        extents.map(|(n, e)| (at + 12 + 12 * n, u64::from(e.ee_block.get()), e.start().get())).collect::<Vec<_>>()
    };
    let top = RawNode::from_bytes(&bytes[root..root + 60]).expect("a root");
    match top.header.eh_depth.get() {
        0 => vec![leaf(root, 60)],
        1 => top.indexes().iter().map(|index| leaf(index.child().get() as usize * BLOCK, BLOCK)).collect(),
        depth => panic!("depth {depth}"),
    }
}

/// A volume with sparse files of every second block: with a few extents, which fit into the inode, and with many.
fn volume() -> Image {
    let folder = tempfile::tempdir().expect("a folder");
    // without the second one, a leaf that ended between two clusters ends within one
    for (name, count, left_out) in [("few", 5, 1), ("many", 150, 1), ("more", 150, u64::MAX)] {
        let file = std::fs::File::create(folder.path().join(name)).expect("a file");
        for n in (0..count).filter(|n| *n != left_out) {
            file.write_all_at(&[7; BLOCK], n * 2 * BLOCK as u64).expect("writing");
        }
    }
    let args = ["-t", "ext4", "-b", "1024", "-C", "4096", "-O", "bigalloc,^metadata_csum,^has_journal"];
    Image::mke2fs(&args, 16 << 20).with_folder(folder.path()).build()
}

#[test]
fn a_cluster_of_a_file_lies_in_one_cluster_of_the_volume() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let image = volume();
    let intact = image.bytes();
    assert!(look(&intact).clean, "{:?}", look(&intact).problems);
    let mut tried = 0;
    for inode in [12, 13, 14] {
        let leaves = leaves(&image, inode);
        let all: Vec<_> = leaves.concat();
        let first_of_leaf: Vec<usize> = leaves.iter().map(|leaf| leaf[0].0).collect();
        let within = all.windows(2).filter(|pair| pair[0].1 / RATIO == pair[1].1 / RATIO);
        let (edges, inside): (Vec<_>, Vec<_>) = within.partition(|pair| first_of_leaf.contains(&pair[1].0));
        assert!(!inside.is_empty(), "inode {inode} has no cluster in two pieces");
        // at the right position within a cluster, but in a cluster after all others; at another position
        let moved = inside.iter().take(1).chain(edges.iter().take(1));
        for (pair, position) in moved.flat_map(|pair| [(pair, 0), (pair, 1)]) {
            tried += 1;
            let (at, logical, physical) = pair[1];
            let away = all.iter().map(|(_, _, physical)| physical / RATIO).max().expect("extents") + 20;
            let other = away * RATIO + (physical + position) % RATIO;
            let mut bytes = intact.clone();
            bytes[at + 8..at + 12].copy_from_slice(&(other as u32).to_le_bytes());
            bytes[other as usize * BLOCK..][..BLOCK].fill(b'x');
            let report = look(&bytes);
            let found = report.problems.iter().any(|p| p.code == Code::ClusterMisaligned);
            assert!(found, "inode {inode}, block {logical}: {:?}", report.problems);
            let report = fix(&mut bytes, Repair::All).expect("a volume");
            assert!(report.clean, "{:?}", report.problems);
            image.set_bytes(&bytes);
            let verdict = e2fsck(image.path());
            assert!(verdict.clean, "inode {inode}, block {logical}: {}", verdict.text);
            // the file has all its blocks
            let repaired = self::leaves(&image, inode).concat();
            assert_eq!(repaired.len(), all.len());
            for ((_, block, place), (_, was, _)) in repaired.iter().zip(&all) {
                let expected = if *block == logical { b'x' } else { 7 };
                let content = &bytes[*place as usize * BLOCK..][..BLOCK];
                assert!(block == was && content.iter().all(|byte| *byte == expected), "inode {inode}, block {block}");
            }
            image.set_bytes(&intact);
        }
    }
    assert!(tried >= 8, "no leaf ends within a cluster");
}

/// One cluster of the volume for two clusters of a file: next to each other in a leaf, at its end, in two leaves.
#[test]
fn a_cluster_of_the_volume_is_for_one_cluster_of_a_file() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let image = volume();
    let intact = image.bytes();
    for inode in [12, 13, 14] {
        let leaves = leaves(&image, inode);
        let all: Vec<_> = leaves.concat();
        let last = all.len() - 1;
        let end_of_leaf = leaves[0].len() - 1;
        for (changed, like) in
            [(last, last - 2), (last, 0), (2, 0), (0, last), (0, 2), (end_of_leaf, last), (last, end_of_leaf)]
        {
            let ((at, logical, physical), (_, _, other)) = (all[changed], all[like]);
            if physical / RATIO == other / RATIO {
                continue;
            }
            let mut bytes = intact.clone();
            let moved = (other / RATIO * RATIO + physical % RATIO) as u32;
            bytes[at + 8..at + 12].copy_from_slice(&moved.to_le_bytes());
            let said = format!("inode {inode}, block {logical} like {}", all[like].1);
            image.set_bytes(&bytes);
            let before = e2fsck(image.path());
            // it accepts a cluster twice in a row
            let in_a_row = changed.abs_diff(like) < 3;
            assert!(in_a_row || before.text.contains("ultiply-claimed"), "{said}: {}", before.text);
            let report = look(&bytes);
            let found = report.problems.iter().any(|p| p.code == Code::FileSharesBlocks);
            assert!(found, "{said}: {:?}", report.problems);
            let report = fix(&mut bytes, Repair::All).expect("a volume");
            assert!(report.clean, "{said}: {:?}", report.problems);
            assert!(look(&bytes).problems.is_empty(), "{said}: {:?}", look(&bytes).problems);
            image.set_bytes(&bytes);
            let verdict = e2fsck(image.path());
            assert!(verdict.clean, "{said}: {}", verdict.text);
        }
        image.set_bytes(&intact);
    }
}

/// A repair that truncates an orphan to its size drops no block before it, also where the map is not valid.
#[test]
fn truncating_an_orphan_drops_no_misplaced_blocks() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let image = volume();
    let before = leaves(&image, 12).concat();
    let mut bytes = image.bytes();
    let (at, _, physical) = before[2];
    let other = (physical / RATIO + 400) * RATIO + (physical + 1) % RATIO;
    bytes[at + 8..at + 12].copy_from_slice(&(other as u32).to_le_bytes());
    image.set_bytes(&bytes);
    image.debugfs(&["set_super_value last_orphan 12"]);
    let mut bytes = image.bytes();
    let safe = fix(&mut bytes.clone(), Repair::Safe).expect("a volume");
    assert!(safe.exit & exit::LEFT != 0, "{:?}", safe.problems);
    let report = fix(&mut bytes, Repair::All).expect("a volume");
    assert!(report.clean, "{:?}", report.problems);
    image.set_bytes(&bytes);
    assert_eq!(leaves(&image, 12).concat().len(), before.len());
    assert!(e2fsck(image.path()).clean);
}
