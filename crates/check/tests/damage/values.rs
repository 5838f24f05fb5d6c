//! Attribute values in inodes of their own: errors in several of them at once are repaired by one run.

use crate::repaired::{Wrong, fix, only_marked, wrong_with};
use extant_check::Repair;
use extant_check::report::exit;
use testkit::tools::run;
use testkit::{Image, need};

/// A file, and the inodes of its two values.
fn volume(options: &str) -> (Image, Vec<u32>) {
    let folder = tempfile::tempdir().expect("a folder");
    let value = folder.path().join("value");
    std::fs::write(&value, vec![b'v'; 1020]).expect("a file");
    let from = value.display();
    let commands = [
        format!("write {from} a"),
        format!("ea_set -f {from} a user.large"),
        format!("ea_set -f {from} a user.second"),
    ];
    let args = ["-t", "ext4", "-b", "1024", "-I", "256", "-O", options];
    let image = Image::mke2fs(&args, 8 << 20).debugfs(&commands.each_ref().map(String::as_str)).build();
    // debugfs does not count the blocks of such a value
    run("e2fsck", &["-fy".as_ref(), image.path().as_os_str()]);
    let value_inodes = (12..24).filter(|number| {
        let said = testkit::oracle::debugfs(image.path(), &format!("stat <{number}>"));
        said.contains("Flags: 0x280000")
    });
    let value_inodes: Vec<u32> = value_inodes.collect();
    assert_eq!(value_inodes.len(), 2);
    (image, value_inodes)
}

#[test]
fn what_is_wrong_with_several_values_is_repaired_in_one_run() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let one = |n: u32| {
        [
            // links without names, and other types
            format!("sif <{n}> links_count 7"),
            format!("sif <{n}> links_count 0"),
            format!("sif <{n}> mode 040755"),
            format!("sif <{n}> mode 0"),
            format!("sif <{n}> size 0"),
            format!("sif <{n}> version 3"),
            format!("sif <{n}> atime 0x1234"),
            format!("sif <{n}> flags 0x80000"),
            format!("link <{n}> named"),
            format!("clri <{n}>"),
        ]
    };
    for options in ["ea_inode,^has_journal", "ea_inode,^metadata_csum,^has_journal"] {
        let (image, value_inodes) = volume(options);
        let intact = image.bytes();
        let scratch = Image::from_bytes(&[]);
        let [first, second] = [one(value_inodes[0]), one(value_inodes[1])];
        for (n, a) in first.iter().enumerate() {
            for b in [&second[n], &second[(n + 2) % second.len()], &first[(n + 5) % first.len()]] {
                image.set_bytes(&intact);
                image.debugfs(&[a, b]);
                let wrong = wrong_with(&image.bytes(), &scratch);
                assert!(wrong.is_none(), "{options}: {a}; {b}: {}", wrong.as_ref().map_or("", Wrong::text));
            }
        }
    }
}

/// An attribute in a block whose value is in another inode: with a wrong hash it goes alone, also where the inode has
/// others with such values.
#[test]
fn a_wrong_hash_in_a_block_costs_that_attribute() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let (image, value_inodes) = volume("ea_inode,^metadata_csum,^has_journal");
    // until no space is left in the inode
    let folder = tempfile::tempdir().expect("a folder");
    let value = folder.path().join("value");
    std::fs::write(&value, vec![b'w'; 1020]).expect("a file");
    let names: Vec<String> = (0..6).map(|n| format!("user.another_{n}")).collect();
    let commands: Vec<String> = names.iter().map(|name| format!("ea_set -f {} a {name}", value.display())).collect();
    image.debugfs(&commands.iter().map(String::as_str).collect::<Vec<_>>());
    run("e2fsck", &["-fy".as_ref(), image.path().as_os_str()]);
    let intact = image.bytes();
    let mut bytes = intact.clone();
    let magic: Vec<usize> =
        (0..bytes.len()).step_by(1024).filter(|at| bytes[*at..].starts_with(&[0, 0, 2, 0xEA])).collect();
    let [block] = magic[..] else { panic!("attribute blocks at {magic:?}") };
    let length = usize::from(bytes[block + 32]);
    let gone = String::from_utf8_lossy(&bytes[block + 48..block + 48 + length]).into_owned();
    // the hash is wrong, or the inode is that of another attribute's value
    for (at, word) in [(12, 0x1234_5678), (4, value_inodes[0]), (4, value_inodes[1])] {
        bytes.clone_from(&intact);
        bytes[block + 32 + at..][..4].copy_from_slice(&word.to_le_bytes());
        let scratch = Image::from_bytes(&[]);
        let wrong = wrong_with(&bytes, &scratch);
        assert!(wrong.is_none(), "{word}: {}", wrong.as_ref().map_or("", Wrong::text));
        let left = testkit::oracle::debugfs(scratch.path(), "ea_list a");
        let all = ["user.large", "user.second"].into_iter().chain(names.iter().map(String::as_str));
        for name in all {
            assert_eq!(left.contains(&format!("{name} (")), name != format!("user.{gone}"), "{word}, {name}: {left}");
        }
    }
}

/// With an unused offset in an entry, which the kernel ignores, e2fsck does not find inline data and truncates the file.
#[test]
fn an_unused_offset_costs_no_inline_data() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (value, small) = (folder.path().join("value"), folder.path().join("small"));
    std::fs::write(&value, vec![b'v'; 1020]).expect("a file");
    std::fs::write(&small, b"in the inode").expect("a file");
    let commands = [format!("write {} a", small.display()), format!("ea_set -f {} a user.large", value.display())];
    let args = ["-t", "ext4", "-b", "1024", "-I", "512", "-O", "inline_data,ea_inode,^metadata_csum,^has_journal"];
    let image = Image::mke2fs(&args, 8 << 20).debugfs(&commands.each_ref().map(String::as_str)).build();
    run("e2fsck", &["-fy".as_ref(), image.path().as_os_str()]);
    let mut bytes = image.bytes();
    let entry = bytes.windows(7).position(|w| w == [5, 1, 0, 0, 13, 0, 0]).expect("an entry of a name of five bytes");
    assert_eq!(&bytes[entry + 16..entry + 21], b"large");
    bytes[entry + 2] = 4;
    image.set_bytes(&bytes);
    assert!(!testkit::oracle::e2fsck(image.path()).clean);
    assert!(fix(&mut bytes, Repair::No).expect("a check").errors > 0);
    let scratch = Image::from_bytes(&[]);
    let wrong = wrong_with(&bytes, &scratch);
    assert!(wrong.is_none(), "{}", wrong.as_ref().map_or("", Wrong::text));
    let left = testkit::oracle::debugfs(scratch.path(), "ea_list a");
    assert!(left.contains("user.large (1020)"), "{left}");
    assert!(testkit::oracle::debugfs(scratch.path(), "cat a").contains("in the inode"));
}

/// The size of a value's inode is restored from the entries that refer to it: no attribute is lost.
#[test]
fn a_value_whose_inode_has_another_size_stays() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let (image, value_inodes) = volume("ea_inode,^has_journal");
    let intact = image.bytes();
    let attributes = |image: &Image| testkit::oracle::debugfs(image.path(), "ea_list a");
    let before = attributes(&image);
    assert!(before.contains("user.large (1020)") && before.contains("user.second (1020)"), "{before}");
    // less than the block contains, and more than fits into it
    for size in [100, 0, 5000] {
        image.set_bytes(&intact);
        for number in &value_inodes {
            image.debugfs(&[&format!("sif <{number}> size {size}")]);
        }
        let scratch = Image::from_bytes(&[]);
        let wrong = wrong_with(&image.bytes(), &scratch);
        assert!(wrong.is_none(), "{size}: {}", wrong.as_ref().map_or("", Wrong::text));
        assert_eq!(attributes(&scratch), before, "{size}");
    }
}

/// A volume with a value of three blocks in an inode of its own, the number of that inode, and the value.
fn long_value(args: &[&str]) -> (Image, u32, String) {
    // debugfs reads one block of a file with a value
    let value: String = (0..500).map(|n| format!("{n:05}-")).collect();
    let folder = tempfile::tempdir().expect("a folder");
    let first = folder.path().join("first");
    std::fs::write(&first, vec![b'x'; 64 << 10]).expect("a file");
    // the first free blocks are not contiguous
    let write = format!("write {} first", first.display());
    let commands = [write, "write /dev/null a".to_owned(), format!("ea_set a user.large {value}")];
    let args = [&["-t", "ext4", "-b", "1024", "-I", "256"], args].concat();
    let image = Image::mke2fs(&args, 8 << 20).debugfs(&commands.each_ref().map(String::as_str)).build();
    // debugfs does not count the blocks of such a value
    run("e2fsck", &["-fy".as_ref(), image.path().as_os_str()]);
    let number =
        (12..24).find(|n| testkit::oracle::debugfs(image.path(), &format!("stat <{n}>")).contains("Flags: 0x2"));
    let value = attribute(&image);
    assert!(value.contains("(3000) = ") && value.contains("00499"), "{value}");
    (image, number.expect("an inode with a value"), value)
}

/// The size and value of the long attribute.
fn attribute(image: &Image) -> String {
    testkit::oracle::debugfs(image.path(), "ea_get a user.large")
}

/// Repairs the image with these commands run on it; the attribute must stay, and `-p` stop.
fn stays(image: &Image, commands: &[String], before: &str) {
    image.debugfs(&commands.iter().map(String::as_str).collect::<Vec<_>>());
    let damaged = image.bytes();
    let mut preened = damaged.clone();
    let report = fix(&mut preened, Repair::Safe).expect("a volume");
    assert!(report.exit == exit::LEFT && only_marked(&damaged, &preened), "{commands:?}: {:?}", report.problems);
    let scratch = Image::from_bytes(&[]);
    let wrong = wrong_with(&damaged, &scratch);
    assert!(wrong.is_none(), "{commands:?}: {}", wrong.as_ref().map_or("", Wrong::text));
    assert_eq!(attribute(&scratch), before, "{commands:?}");
    let left = testkit::oracle::debugfs(scratch.path(), "ls lost+found");
    assert!(!left.contains('#'), "{commands:?}: {left}");
}

const LONG: [&[&str]; 4] = [
    &["-O", "ea_inode,^has_journal"],
    &["-O", "ea_inode,^has_journal,^metadata_csum"],
    &["-O", "ea_inode,^has_journal,bigalloc,^resize_inode", "-C", "8192"],
    &["-O", "ea_inode,^has_journal,^extent,^64bit,^metadata_csum"],
];

/// A value ends at the size in its entry: blocks beyond it are no part, and those of a value that were moved return.
#[test]
fn a_value_with_blocks_beyond_its_size_stays() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    for args in LONG {
        let (image, number, before) = long_value(args);
        let intact = image.bytes();
        let mapped = testkit::oracle::debugfs(image.path(), &format!("blocks <{number}>"));
        let blocks: Vec<&str> = mapped.split_whitespace().collect();
        let extents = !args[1].contains("^extent");
        let edits: Vec<Vec<String>> = if extents {
            let start = [1, 2, 3, 4, 8].map(|start| vec![format!("sif <{number}> block[3] {start}")]);
            let length = [4, 9].map(|length| vec![format!("sif <{number}> block[4] {length}")]);
            start.into_iter().chain(length).collect()
        } else {
            let moved = (0..3).map(|n| format!("sif <{number}> block[{n}] 0"));
            let moved = moved.chain((5..).zip(&blocks).map(|(n, block)| format!("sif <{number}> block[{n}] {block}")));
            vec![moved.collect(), vec![format!("sif <{number}> block[5] 7000")]]
        };
        for commands in edits {
            image.set_bytes(&intact);
            stays(&image, &commands, &before);
        }
    }
}

/// Of the sizes in an entry and in the inode of its value, the one with which the value has its hash is right.
#[test]
fn a_value_with_another_size_in_its_entry_stays() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    for args in LONG {
        let (image, number, before) = long_value(args);
        let intact = image.bytes();
        let name = b"large\0";
        let is_entry = |at: &usize| {
            let entry = &intact[*at..];
            entry.starts_with(&[5, 1]) && entry[16..].starts_with(name) && entry[4] == number as u8
        };
        let entry = (0..intact.len() - 32).step_by(4).find(is_entry).expect("the entry");
        for size in [0x1_0001u32, 1, 2999, 2000, 3001, 3500] {
            let mut bytes = intact.clone();
            bytes[entry + 8..entry + 12].copy_from_slice(&size.to_le_bytes());
            testkit::repair_checksums(&mut bytes);
            image.set_bytes(&bytes);
            stays(&image, &[], &before);
            image.set_bytes(&intact);
            stays(&image, &[format!("sif <{number}> size {size}")], &before);
        }
    }
}

/// The flag and an attribute's entry with the same hash prove that an inode of another type contains a value.
#[test]
fn a_value_in_an_inode_of_another_type_stays() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    for args in LONG {
        let (image, number, before) = long_value(args);
        let intact = image.bytes();
        for kind in [0o00, 0o01, 0o02, 0o04, 0o06, 0o12, 0o14, 0o15, 0o17] {
            image.set_bytes(&intact);
            stays(&image, &[format!("sif <{number}> mode 0{kind:02o}0600")], &before);
        }
    }
}
