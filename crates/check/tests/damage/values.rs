//! Attribute values in inodes of their own: errors in several of them at once are repaired by one run.

use crate::repaired::{Wrong, wrong_with};
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
    let (image, _) = volume("ea_inode,^metadata_csum,^has_journal");
    // until no space is left in the inode
    let folder = tempfile::tempdir().expect("a folder");
    let value = folder.path().join("value");
    std::fs::write(&value, vec![b'w'; 1020]).expect("a file");
    let names: Vec<String> = (0..6).map(|n| format!("user.another_{n}")).collect();
    let commands: Vec<String> = names.iter().map(|name| format!("ea_set -f {} a {name}", value.display())).collect();
    image.debugfs(&commands.iter().map(String::as_str).collect::<Vec<_>>());
    run("e2fsck", &["-fy".as_ref(), image.path().as_os_str()]);
    let mut bytes = image.bytes();
    let magic: Vec<usize> =
        (0..bytes.len()).step_by(1024).filter(|at| bytes[*at..].starts_with(&[0, 0, 2, 0xEA])).collect();
    let [block] = magic[..] else { panic!("attribute blocks at {magic:?}") };
    bytes[block + 32 + 12] ^= 1;
    let length = usize::from(bytes[block + 32]);
    let gone = String::from_utf8_lossy(&bytes[block + 48..block + 48 + length]).into_owned();
    let scratch = Image::from_bytes(&[]);
    let wrong = wrong_with(&bytes, &scratch);
    assert!(wrong.is_none(), "{}", wrong.as_ref().map_or("", Wrong::text));
    let left = testkit::oracle::debugfs(scratch.path(), "ea_list a");
    let all = ["user.large", "user.second"].into_iter().chain(names.iter().map(String::as_str));
    for name in all {
        assert_eq!(left.contains(&format!("{name} (")), name != format!("user.{gone}"), "{name}: {left}");
    }
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
