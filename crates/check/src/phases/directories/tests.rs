//! Arbitrary bytes: no directory block makes the check panic, and none is reported both as intact and as damaged.

use super::*;
use crate::inode_records::InodeRecord;
use crate::phases::{connectivity, links};
use crate::problem::Problems;
use crate::volume::Volume;
use format::GroupNo;
use format::dir::write_entry;
use format::feature::{Compat, RoCompat};
use format::superblock::{DiskSuperblock, Geometry, MAGIC};
use proptest::prelude::*;

const INODES: u32 = 64;
const BLOCK: usize = 1024;

fn volume(log_block_size: u32, checksums: bool) -> Volume {
    let mut disk = DiskSuperblock::from_slice(&[0; 1024]).unwrap();
    disk.s_magic = MAGIC.into();
    disk.s_rev_level = 1.into();
    disk.s_log_block_size = log_block_size.into();
    disk.s_log_cluster_size = log_block_size.into();
    disk.s_first_data_block = u32::from(log_block_size == 0).into();
    disk.s_blocks_count_lo = 4096.into();
    disk.s_blocks_per_group = 8192.into();
    disk.s_clusters_per_group = 8192.into();
    disk.s_inodes_count = INODES.into();
    disk.s_inodes_per_group = INODES.into();
    disk.s_inode_size = 256.into();
    disk.s_first_ino = 11.into();
    disk.s_checksum_type = 1;
    disk.s_def_hash_version = 1;
    disk.s_encoding_flags = casefold::FLAG_STRICT.into();
    disk.s_feature_compat = Compat::DIR_INDEX.bits().into();
    disk.s_feature_incompat =
        (Incompat::FILETYPE | Incompat::CASEFOLD | Incompat::ENCRYPT | Incompat::LARGE_DIR).bits().into();
    disk.s_feature_ro_compat = if checksums { RoCompat::METADATA_CSUM } else { RoCompat::empty() }.bits().into();
    let geometry = Geometry::of(&disk).unwrap();
    Volume {
        is_copy: false,
        disk,
        features: disk.features(),
        geometry,
        groups: Vec::new(),
        used_inodes: vec![INODES - 8],
        untrusted: Vec::new(),
        orphans: Default::default(),
        pending: Default::default(),
        space_maps: None,
        compared: None,
    }
}

/// Runs `check` with a volume of which inodes 2 and 11 to 20 are directories with these marks, and 21 to 40 are files.
fn with_names(volume: &Volume, marks: Marks, check: impl FnOnce(&Context<'_>, &Directories, Names<'_>)) -> Problems {
    let problems = Problems::default();
    let ctx = Context::new(volume, &problems);
    ctx.inodes.open_group(GroupNo(0), INODES - 8);
    let mut directories = Vec::new();
    for n in std::iter::once(2).chain(11..=40) {
        let (kind, marks) = match n {
            2..=20 => (FileKind::Directory, marks),
            _ => (FileKind::Regular, Marks::empty()),
        };
        let marks = marks | Marks::USED;
        ctx.inodes.put(InodeNo(n), InodeRecord { kind: Some(kind), marks, links: 2 });
        if kind == FileKind::Directory {
            directories.push(Directory::new(InodeNo(n), n, 8));
        }
    }
    let directories = Directories::new(directories);
    check(&ctx, &directories, Names::new(&ctx, &directories));
    problems
}

fn put(block: &mut [u8], at: &mut usize, len: usize, inode: u32, name: &[u8], kind: FileKind) {
    let file_type = format::dir::FileType::from_raw(entry::file_type(kind));
    let format = DirFormat { block_size: BLOCK as u32, file_type: true, hashed: false };
    write_entry(&mut block[*at..*at + len], InodeNo(inode), name, file_type, None, format).unwrap();
    *at += len;
}

fn block(own: u32, parent: u32, entries: &[(u32, &[u8], FileKind)]) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    let mut at = 0;
    put(&mut bytes, &mut at, 12, own, b".", FileKind::Directory);
    let rest = if entries.is_empty() { BLOCK - 12 } else { 12 };
    put(&mut bytes, &mut at, rest, parent, b"..", FileKind::Directory);
    for (n, (inode, name, kind)) in entries.iter().enumerate() {
        let len = if n + 1 == entries.len() { BLOCK - at } else { 8 + name.len().next_multiple_of(4) };
        put(&mut bytes, &mut at, len, *inode, name, *kind);
    }
    bytes
}

fn run(block: u64, len: u32, dir: u32, first: u32) -> DirRun {
    DirRun { block, len, inode: InodeNo(dir), first, shares_first: false, shares_last: false }
}

fn codes(problems: Problems) -> Vec<Code> {
    problems.finish().counts.into_keys().collect()
}

#[test]
fn a_second_parent_is_reported_by_name_whichever_came_first() {
    let volume = volume(0, false);
    let blocks = [
        (2, block(2, 2, &[(11, b"a", FileKind::Directory), (12, b"b", FileKind::Directory)])),
        (11, block(11, 2, &[(13, b"wrong", FileKind::Directory)])),
        (12, block(12, 2, &[(13, b"right", FileKind::Directory)])),
        (13, block(13, 12, &[])),
    ];
    let check = |order: [usize; 4]| {
        with_names(&volume, Marks::empty(), |ctx, directories, mut names| {
            for n in order {
                let (dir, bytes) = &blocks[n];
                names.check_block(InodeNo(*dir), 0, FsBlock(u64::from(*dir)), Ok(bytes));
            }
            let runs: Vec<_> = blocks.iter().map(|(dir, _)| run(u64::from(*dir), 1, *dir, 0)).collect();
            let items = names.again(&runs);
            assert_eq!(items.iter().map(|i| i.offset / 1024).collect::<Vec<_>>(), [11, 12]);
            for item in items {
                let (_, bytes) = blocks.iter().find(|(dir, _)| u64::from(*dir) == item.offset / 1024).unwrap();
                names.check_again(&item.tag, Ok(bytes));
            }
            names.finish();
            assert_eq!(directories.get(InodeNo(13)).unwrap().parent(), Some(InodeNo(12)));
            assert!(ctx.inodes.names(InodeNo(13)) == 3);
        })
        .finish()
    };
    let first = check([0, 1, 2, 3]);
    assert_eq!(first, check([3, 2, 1, 0]));
    let link = first.problems.iter().find(|p| p.code == Code::EntryLinksDirectory).unwrap();
    assert_eq!(
        (link.dir, link.inode, link.name.as_deref()),
        (Some(InodeNo(11)), Some(InodeNo(13)), Some(&b"wrong"[..]))
    );
}

#[test]
fn the_two_parts_of_an_inline_directory_share_their_names() {
    let volume = volume(0, false);
    let found = |second: &[u8]| {
        let problems = with_names(&volume, Marks::INLINE, |_, _, names| {
            let mut i_block = [0; 60];
            i_block[0] = 2;
            put(&mut i_block, &mut 4, 56, 21, b"name", FileKind::Regular);
            let mut rest = [0; 24];
            put(&mut rest, &mut 0, 24, 22, second, FileKind::Regular);
            names.check_inline(InodeNo(11), &i_block, &rest);
            names.finish();
        });
        codes(problems)
    };
    assert_eq!(found(b"other"), [Code::LostAndFoundMissing]);
    assert_eq!(found(b"name"), [Code::EntryDuplicate, Code::LostAndFoundMissing]);
}

#[test]
fn policies_may_come_after_the_names() {
    let volume = volume(0, false);
    let found = |own: u8, other: u8, early: bool| {
        let problems = with_names(&volume, Marks::ENCRYPTED, |ctx, _, names| {
            let policies = || {
                for (inode, policy) in [(11, own), (12, other)] {
                    ctx.policies.put(InodeNo(inode), &[&[1], [policy; 27].as_slice()].concat());
                }
            };
            if early {
                policies();
            }
            let bytes = block(11, 2, &[(12, b"a-name-of-sixteen", FileKind::Directory)]);
            names.check_block(InodeNo(11), 0, FsBlock(9), Ok(&bytes));
            policies();
            names.finish();
        });
        codes(problems)
    };
    for early in [true, false] {
        assert_eq!(found(1, 1, early), [Code::LostAndFoundMissing]);
        assert_eq!(found(1, 2, early), [Code::EncryptionPolicyDiffers, Code::LostAndFoundMissing]);
    }
}

#[test]
fn an_unreadable_block_is_reported_and_no_more() {
    let volume = volume(0, true);
    let error = blockdev::BlockDevice::read(&blockdev::MemoryDevice::from_vec(Vec::new()), 0, &mut [0; 8]).unwrap_err();
    let problems = with_names(&volume, Marks::INDEX, |_, _, names| {
        names.check_block(InodeNo(11), 3, FsBlock(9), Err(&error));
        names.finish();
    });
    assert_eq!(codes(problems), [Code::DirectoryBlockUnreadable, Code::LostAndFoundMissing]);
}

/// A directory block with random damage.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let name = prop_oneof![Just(b"a".to_vec()), Just(b"..".to_vec()), proptest::collection::vec(any::<u8>(), 1..20)];
    let entries = proptest::collection::vec((0u32..70, name), 0..8);
    let noise = proptest::collection::vec((0usize..BLOCK, any::<u8>()), 0..6);
    let head = proptest::collection::vec((0usize..64, any::<u8>()), 0..4);
    (entries, noise, head, any::<bool>(), 0usize..=BLOCK).prop_map(|(entries, noise, head, random, len)| {
        let entries: Vec<_> = entries.iter().map(|(i, n)| (*i, n.as_slice(), FileKind::Regular)).collect();
        let mut bytes = block(11, 2, &entries);
        for (at, value) in noise.into_iter().chain(head) {
            bytes[at] = value;
        }
        if random {
            bytes.rotate_left(len / 2);
        }
        // a device returns whole blocks, but nothing here relies on it
        bytes.truncate(if len % 7 == 0 { len } else { BLOCK });
        bytes
    })
}

proptest! {
    #[test]
    fn no_bytes_panic(
        bytes in bytes(), more in bytes(), dir in 1u32..50, file_block in 0u32..3, marks in 0u16..8, checksums: bool,
        large: bool, i_block: [u8; 60],
    ) {
        let flags = [Marks::INDEX, Marks::ENCRYPTED, Marks::CASEFOLD];
        let marks = flags.into_iter().enumerate().filter(|(n, _)| marks & 1 << n != 0).map(|(_, m)| m).collect();
        let volume = volume(if large { 6 } else { 0 }, checksums);
        with_names(&volume, marks, |ctx, directories, mut names| {
            for (file_block, bytes) in [(file_block, &bytes), (file_block + 1, &more)] {
                names.check_block(InodeNo(dir), file_block, FsBlock(7), Ok(bytes));
            }
            names.check_inline(InodeNo(dir % 20 + 1), &i_block, &bytes);
            names.check_hole(InodeNo(dir), 9);
            let runs = [run(7, 2, dir, file_block)];
            for item in names.again(&runs) {
                names.check_again(&item.tag, Ok(&bytes));
            }
            names.finish();
            connectivity::check(ctx, directories);
            links::check(ctx);
        });
    }
}
