//! Space maps: a head, a tree or a block of the log of any bytes.

use format::space_map::SpaceMaps;
use format::space_map::head::{DiskMapHead, Head};
use format::space_map::ring::{DiskRingHeader, Record, RingBlock};
use format::space_map::tree::{Tree, TreeWriter};
use format::superblock::{DiskSuperblock, MAGIC, Superblock};
use format::{FsBlock, GroupNo};
use zerocopy::IntoBytes;

const BLOCK: usize = 1024;

/// Space maps of eight groups in two metablockgroups.
fn maps() -> SpaceMaps {
    let mut sb = DiskSuperblock::from_slice(&[0; 1024]).expect("long enough");
    sb.s_magic = MAGIC.into();
    sb.s_rev_level = 1.into();
    sb.s_first_data_block = 1.into();
    sb.s_inode_size = 128.into();
    sb.s_first_ino = 11.into();
    sb.s_blocks_per_group = 8192.into();
    sb.s_clusters_per_group = 8192.into();
    sb.s_inodes_per_group = 64.into();
    sb.s_inodes_count = (8 * 64).into();
    sb.s_feature_incompat = 0x200.into();
    sb.s_feature_ro_compat = 0x1000_0000.into();
    sb.x_ro_features = 1.into();
    sb.x_map_groups = 4.into();
    sb.x_map_start = 300.into();
    sb.x_space_map_log = 16.into();
    sb.set_blocks_count(1 + 7 * 8192 + 100);
    let sb = Superblock::parse(sb.as_bytes()).expect("a superblock");
    SpaceMaps::of(&sb).expect("consistent").expect("space maps")
}

fn written(maps: &SpaceMaps) -> (Head, Vec<u8>) {
    let mut head = Head {
        number: 1,
        sequence: 0,
        places: FsBlock(4000),
        second: true,
        length: 0,
        tree_checksum: 0,
        longest: 0,
        free: 0,
    };
    let mut writer = TreeWriter::new(maps, 1);
    writer.group([10..20, 30..31].into_iter());
    writer.group(std::iter::once(0..8192));
    writer.group((0..4000).map(|n| 2 * n..2 * n + 1));
    let tree = writer.finish(7, &mut head);
    (head, tree)
}

/// One of each: a head, a block of the log, a tree. The first byte selects it.
pub fn space_maps() -> Vec<Vec<u8>> {
    let maps = maps();
    let (head, tree) = written(&maps);
    let mut heads = vec![0; BLOCK];
    head.write(&mut heads, &maps);
    let records = vec![Record { start: FsBlock(9), blocks: 3, allocated: true }];
    let mut logged = vec![0; BLOCK];
    RingBlock { sequence: 5, position: 3, left: 0, records }.write(&mut logged, &maps);
    (0u8..).zip([heads, logged, tree]).map(|(kind, bytes)| [&[kind], &bytes[..]].concat()).collect()
}

/// Guarantee: what is accepted is as its type guarantees, and is written back as it was. Checksums are corrected first,
/// so that what they cover is read.
pub fn space_map(data: &[u8]) {
    let Some((kind, bytes)) = data.split_first() else { return };
    let maps = maps();
    let mut bytes = bytes.to_vec();
    match kind % 3 {
        0 => {
            let at = maps.head_at(1).1;
            if let Some(mut head) = bytes.get(at..).and_then(DiskMapHead::from_slice) {
                head.set_checksum(&maps);
                bytes[at..at + DiskMapHead::SIZE].copy_from_slice(head.as_bytes());
            }
            if let Ok(head) = Head::parse(&bytes, &maps, 1) {
                assert!(maps.are_inside(&maps.places(1, head.places)));
                let mut again = vec![0; BLOCK];
                head.write(&mut again, &maps);
                assert_eq!(Head::parse(&again, &maps, 1), Ok(head));
            }
        }
        1 => {
            if let Some(mut header) = DiskRingHeader::from_slice(&bytes) {
                let count = header.l_count.get() as usize % 130;
                header.l_count = (count as u32).into();
                let records = bytes.get(DiskRingHeader::SIZE..DiskRingHeader::SIZE + count * 8).unwrap_or_default();
                header.l_checksum = header.checksum(&maps, records).into();
                bytes[..DiskRingHeader::SIZE].copy_from_slice(header.as_bytes());
            }
            bytes.truncate(BLOCK);
            if let Ok(Some(block)) = RingBlock::parse(&bytes, &maps, 3) {
                assert!(block.records.iter().all(|r| maps.is_in_one_group(r.start.get(), r.blocks)));
                let mut again = vec![0; BLOCK];
                block.write(&mut again, &maps);
                assert_eq!(RingBlock::parse(&again, &maps, 3), Ok(Some(block)));
            }
        }
        _ => {
            let (mut head, _) = written(&maps);
            head.length = bytes.len() as u32;
            head.tree_checksum = format::checksum::crc32c(maps.geometry().checksum_seed, &bytes);
            if let Ok(tree) = Tree::parse(&bytes, &maps, &head) {
                for (group, free) in maps.groups_of(1).map(GroupNo).zip(&tree.groups) {
                    assert!(free.runs(maps.units(group)).all(|run| run.end <= maps.units(group)));
                }
            }
        }
    }
}
