//! Hash trees.

use crate::volume::{Dir, Volume, entries, get_u32, programs, put_u16, put_u32};
use blockdev::{BlockDevice, MemoryDevice};
use extant_check::table::Code::{self, *};
use extant_check::{Options, Repair, repair};
use format::hash::{HashVersion, Hasher};
use format::superblock::Superblock;
use std::collections::BTreeSet;
use std::sync::Arc;
use testkit::Image;
use testkit::oracle::debugfs;

fn set(codes: &[Code]) -> BTreeSet<Code> {
    codes.iter().copied().collect()
}

/// A volume whose directory `d` is hashed, with `names` names for one file.
fn volume(args: &[&str], names: usize, commands: &[&str]) -> (Volume, Dir) {
    let scratch = Image::from_bytes(&[]);
    let folder = scratch.beside("tree");
    std::fs::create_dir_all(folder.join("d")).expect("a folder");
    std::fs::write(folder.join("d/first"), b"").expect("a file");
    for n in 0..names {
        let name = folder.join(format!("d/a-name-of-some-length-{n:05}"));
        std::fs::hard_link(folder.join("d/first"), name).expect("a hard link");
    }
    let image = Image::mke2fs(args, 8 << 20).with_folder(&folder).debugfs(commands).indexed().build();
    let volume = Volume::new(image);
    assert_eq!(volume.codes(), set(&[]));
    let dir = volume.dir("/d");
    (volume, dir)
}

const PLAIN: &[&str] = &["-t", "ext2", "-b", "1024", "-N", "64"];
const CHECKED: &[&str] = &["-t", "ext4", "-b", "1024", "-N", "64", "-O", "^has_journal"];
/// The array of a root starts here, that of a node 24 bytes before.
const ENTRIES: usize = 32;

#[test]
fn roots() {
    if !programs() {
        return;
    }
    let (mut volume, dir) = volume(PLAIN, 120, &[]);
    let whole = volume.bytes.clone();
    let mut damaged = |edit: &dyn Fn(&mut [u8])| {
        volume.bytes.clone_from(&whole);
        volume.edit(&dir, 0, |b| edit(b));
        volume.codes()
    };
    assert_eq!(damaged(&|b| b[24] = 1), set(&[HtreeRootBad, HtreeRootInvalid]));
    assert!(damaged(&|b| b[29] = 4).is_superset(&set(&[HtreeRootBad, HtreeRootInvalid])));
    // the unsigned versions are known, but never written
    for version in [3, 7, 255] {
        assert!(damaged(&|b| b[28] = version).contains(&HtreeHashVersionUnknown), "{version}");
    }
    assert!(damaged(&|b| b[28] = 6).contains(&HtreeCannotUseSiphash));
    assert_eq!(damaged(&|b| b[31] = 1), set(&[HtreeFlagsUnknown]));
    assert_eq!(damaged(&|b| b[31] = 2), set(&[]));
    assert_eq!(damaged(&|b| b[30] = 1), set(&[HtreeDepthWrong, HtreeInvalid]));
    assert!(damaged(&|b| b[30] = 2).contains(&HtreeRootInvalid));
    assert!(damaged(&|b| b[30] = 3).contains(&HtreeTooDeep));
    assert_eq!(damaged(&|b| put_u16(b, ENTRIES, 123)), set(&[HtreeLimitWrong]));
    assert!(damaged(&|b| put_u16(b, ENTRIES + 2, 125)).contains(&HtreeCountWrong));
    // another function hashes the names to other leaves, so the leaves are read once more
    let other = damaged(&|b| b[28] = 2);
    assert!(other.is_superset(&set(&[HtreeMinimumHashWrong, HtreeInvalid])), "{other:?}");
}

#[test]
fn references() {
    if !programs() {
        return;
    }
    let (mut volume, dir) = volume(PLAIN, 120, &[]);
    let whole = volume.bytes.clone();
    let mut damaged = |edit: &dyn Fn(&mut [u8])| {
        volume.bytes.clone_from(&whole);
        volume.edit(&dir, 0, |b| edit(b));
        volume.codes()
    };
    let entry = |n: usize| ENTRIES + 8 * n;
    let twice = damaged(&|b| put_u32(b, entry(2) + 4, get_u32(b, entry(1) + 4)));
    assert!(twice.is_superset(&set(&[HtreeBlockReferencedTwice, HtreeBlockUnreferenced, HtreeInvalid])), "{twice:?}");
    assert!(damaged(&|b| put_u32(b, entry(2) + 4, 99)).contains(&HtreeBlockOutOfRange));
    assert!(damaged(&|b| put_u32(b, entry(2) + 4, 0)).contains(&HtreeBlockReferencedTwice));
    // the upper bits of a block number mean nothing
    assert_eq!(damaged(&|b| put_u32(b, entry(2) + 4, get_u32(b, entry(2) + 4) | 0x4000_0000)), set(&[]));
    let fewer = damaged(&|b| put_u16(b, ENTRIES + 2, 2));
    assert!(fewer.contains(&HtreeBlockUnreferenced), "{fewer:?}");
    let disorder = damaged(&|b| {
        let (second, third) = (get_u32(b, entry(2)), get_u32(b, entry(3)));
        put_u32(b, entry(2), third);
        put_u32(b, entry(3), second);
    });
    assert!(disorder.contains(&HtreeHashOrderWrong), "{disorder:?}");
}

#[test]
fn hashes() {
    if !programs() {
        return;
    }
    let (mut volume, dir) = volume(PLAIN, 120, &[]);
    let whole = volume.bytes.clone();
    let mut moved = |n: usize, by: i64| {
        volume.bytes.clone_from(&whole);
        volume.edit(&dir, 0, |b| {
            let hash = i64::from(get_u32(b, ENTRIES + 8 * n)) + by;
            put_u32(b, ENTRIES + 8 * n, hash as u32);
        });
        volume.codes()
    };
    assert_eq!(moved(2, 0x1000_0000), set(&[HtreeMinimumHashWrong, HtreeInvalid]));
    assert_eq!(moved(2, -0x1000_0000), set(&[HtreeMaximumHashWrong, HtreeInvalid]));
    // bit 0 only says that a hash goes on
    assert_eq!(moved(2, 1), set(&[]));
    // a name with a hash outside the leaf's range
    volume.bytes.clone_from(&whole);
    volume.edit(&dir, 1, |b| {
        for at in entries(b) {
            b[at + 8] = b'A';
        }
    });
    let renamed = volume.codes();
    assert!(renamed.contains(&HtreeInvalid), "{renamed:?}");
}

/// The same name in two leaves whose common boundary is its hash: a lookup finds one of the two. e2fsck compares names
/// only within a block, except when it optimises directories.
#[test]
fn one_name_in_two_leaves() {
    if !programs() {
        return;
    }
    for args in [PLAIN, CHECKED] {
        let (mut volume, dir) = volume(args, 120, &[]);
        let superblock = Superblock::parse(&volume.bytes[1024..2048]).expect("a superblock");
        let version = HashVersion::from_raw(superblock.disk.s_def_hash_version).expect("a hash function");
        let unsigned = superblock.disk.s_flags.get() & 2 != 0;
        let version = if unsigned { version.to_unsigned() } else { version };
        let hasher = Hasher::new(version, superblock.disk.hash_seed()).expect("a hash function");
        let name_at = |block: &[u8], at: usize| block[at + 8..at + 8 + usize::from(block[at + 6])].to_vec();
        let block = |n: u32| {
            let start = dir.blocks[n as usize] as usize * 1024;
            volume.bytes[start..start + 1024].to_vec()
        };
        let leaf = |n: usize| get_u32(&block(0), ENTRIES + 8 * n + 4);
        let names = |n: u32| {
            let bytes = block(n);
            let spots = entries(&bytes).into_iter().filter(|at| bytes[at + 6] > 0);
            spots.map(|at| (at, name_at(&bytes, at))).collect::<Vec<_>>()
        };
        let (first, second) = (leaf(1), leaf(2));
        let length = "a-name-of-some-length-00000".len();
        let (hash, name) =
            names(first).into_iter().map(|(_, name)| (hasher.hash(&name).hash, name)).max().expect("names");
        assert_eq!(name.len(), length);
        let (at, _) = names(second).into_iter().find(|(_, name)| name.len() == length).expect("a name");
        volume.edit_checked(&dir, second as usize, |b| b[at + 8..at + 8 + length].copy_from_slice(&name));
        assert!(volume.codes().contains(&HtreeMinimumHashWrong));
        volume.edit_checked(&dir, 0, |b| put_u32(b, ENTRIES + 16, hash | 1));
        assert_eq!(volume.codes_beyond_e2fsck(), set(&[EntryDuplicate]));
        repair_all(&mut volume);
        assert_eq!(volume.codes(), set(&[]));
    }
}

/// Repairs the volume, which is then clean.
fn repair_all(volume: &mut Volume) {
    let device = Arc::new(MemoryDevice::from_vec(volume.bytes.clone()));
    let as_device: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(&device);
    let options = Options { repair: Repair::All, ..Options::default() };
    assert!(repair("volume", &as_device, &options, &(), None).expect("a volume").clean);
    device.read(0, &mut volume.bytes).expect("memory");
}

/// By the format "." is 12 bytes long. A correct checksum does not make another length right.
#[test]
fn a_wrong_length_of_dot_costs_no_name() {
    if !programs() {
        return;
    }
    for args in [PLAIN, CHECKED] {
        let (mut volume, indexed) = volume(args, 120, &["mkdir plain", "cd plain", "mkdir sub", "mknod pipe p"]);
        let whole = volume.bytes.clone();
        let names = |volume: &Volume, dir: &Dir| {
            let said = debugfs(volume.image.path(), &format!("ls -p <{}>", dir.inode));
            said.lines().map(str::to_owned).collect::<BTreeSet<_>>()
        };
        for dir in [indexed.clone(), volume.dir("/"), volume.dir("/plain")] {
            let before = names(&volume, &dir);
            for len in [0, 8, 16, 24, 1012, 1024, 4096] {
                let said = format!("{args:?} {dir:?}: {len}");
                volume.bytes.clone_from(&whole);
                match args == CHECKED {
                    true => volume.edit_checked(&dir, 0, |b| put_u16(b, 4, len)),
                    false => volume.edit(&dir, 0, |b| put_u16(b, 4, len)),
                }
                let found = volume.codes();
                // the checksum of a root is found by the lengths of its entries
                let others = found.difference(&set(&[DotLengthWrong, HtreeRootChecksumWrong])).count();
                assert!(found.contains(&DotLengthWrong) && others == 0, "{said}: {found:?}");
                repair_all(&mut volume);
                assert_eq!(volume.codes(), set(&[]), "{said}");
                assert_eq!(names(&volume, &dir), before, "{said}");
            }
        }
    }
}

#[test]
fn every_hash_function() {
    if !programs() {
        return;
    }
    for commands in [
        &["ssv def_hash_version legacy"] as &[_],
        &["ssv def_hash_version tea"],
        &["ssv def_hash_version half_md4", "ssv flags 2"],
    ] {
        let (volume, _) = volume(PLAIN, 120, commands);
        // the superblock's default is changed: the root of the directory still decides
        volume.image.debugfs(&["ssv def_hash_version tea"]);
        let volume = Volume::new(Image::from_bytes(&volume.image.bytes()));
        assert_eq!(volume.codes(), set(&[]), "{commands:?}");
    }
}

#[test]
fn checksums() {
    if !programs() {
        return;
    }
    let (mut volume, dir) = volume(CHECKED, 4500, &[]);
    let whole = volume.bytes.clone();
    // bytes after the entries in use are ignored
    volume.edit(&dir, 0, |b| b[500] ^= 1);
    assert_eq!(volume.codes(), set(&[]));
    volume.edit(&dir, 0, |b| b[36] ^= 0x80);
    assert!(volume.codes().contains(&HtreeRootChecksumWrong));
    volume.bytes.clone_from(&whole);
    let node = get_u32(&volume.bytes, dir.blocks[0] as usize * 1024 + ENTRIES + 4) as usize;
    volume.edit(&dir, node, |b| *b.last_mut().unwrap() ^= 1);
    assert_eq!(volume.codes(), set(&[HtreeNodeChecksumWrong]));
    volume.bytes.clone_from(&whole);
    volume.edit_checked(&dir, node, |b| b[7] = 1);
    assert_eq!(volume.codes(), set(&[HtreeNodeChecksumWrong]));
    volume.bytes.clone_from(&whole);
    volume.edit(&dir, 1, |b| *b.last_mut().unwrap() ^= 1);
    assert_eq!(volume.codes(), set(&[DirectoryBlockChecksumWrong]));
}

#[test]
fn levels() {
    if !programs() {
        return;
    }
    let (mut volume, dir) = volume(CHECKED, 4500, &[]);
    let whole = volume.bytes.clone();
    let root = dir.blocks[0] as usize * 1024;
    assert_eq!(volume.bytes[root + 30], 1, "the tree has two levels");
    let node = get_u32(&volume.bytes, root + ENTRIES + 4);
    // a node that looks like a leaf
    volume.edit(&dir, node as usize, |b| put_u16(b, 8, 1));
    let codes = volume.codes();
    assert!(codes.is_superset(&set(&[HtreeBlockUnreferenced, HtreeInvalid])), "{codes:?}");
    // a node that refers to itself
    volume.bytes.clone_from(&whole);
    volume.edit_checked(&dir, node as usize, |b| put_u32(b, 8 + 8 + 4, node));
    assert!(volume.codes().contains(&HtreeBlockReferencedTwice));
    // a leaf where a node should be
    volume.bytes.clone_from(&whole);
    volume.edit_checked(&dir, 0, |b| put_u32(b, ENTRIES + 4, 1));
    let codes = volume.codes();
    assert!(codes.is_superset(&set(&[HtreeBlockUnreferenced, HtreeDepthWrong])), "{codes:?}");
    // names above the range of the first node in the root: lookups use the second node and miss them
    volume.bytes.clone_from(&whole);
    volume.edit_checked(&dir, 0, |b| put_u32(b, ENTRIES + 8, get_u32(b, ENTRIES + 8) - 0x0400_0000));
    assert_eq!(volume.codes_beyond_e2fsck(), set(&[HtreeMaximumHashWrong, HtreeInvalid]));
    volume.bytes.clone_from(&whole);
    volume.edit_checked(&dir, 0, |b| put_u32(b, ENTRIES + 8, get_u32(b, ENTRIES + 8) + 0x0400_0000));
    assert!(volume.codes().is_superset(&set(&[HtreeMinimumHashWrong, HtreeInvalid])));
}

#[test]
fn the_index_flag_on_a_directory_without_an_index() {
    if !programs() {
        return;
    }
    let image = Image::mke2fs(PLAIN, 2 << 20).debugfs(&["mkdir d", "set_inode_field d flags 0x1000"]).build();
    let codes = Volume::new(image).codes();
    assert!(!codes.is_empty());
}
