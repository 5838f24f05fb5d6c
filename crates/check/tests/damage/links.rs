//! Symbolic links and data in inodes: where the target or the rest of the data is, by size, flags and attributes. A
//! repair does not read a target as a map of blocks, and takes the attribute that readers take.

use crate::misled::{finds, look, repaired};
use crate::repaired::{Wrong, fix, wrong_with};
use extant_check::Repair;
use extant_check::report::exit;
use extant_check::table::Code;
use testkit::oracle::e2fsck;
use testkit::{Image, need, repair_checksums};

/// A file with inline data whose mode became that of a symbolic link: e2fsck accepts only targets that fill `i_block` and
/// the attribute. A shorter one is readable without the flag, so nothing is lost.
#[test]
fn an_inline_link_has_no_target_that_fits_without_the_flag() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    // the length of the target, and whether the link is valid
    let links = [(2, false), (59, false), (60, true), (70, true)];
    for (length, _) in links {
        std::fs::write(folder.path().join(format!("f{length}")), "x".repeat(length)).expect("a file");
    }
    let args = ["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", "inline_data", "-I", "256"];
    let image = Image::mke2fs(&args, 8 << 20).with_folder(folder.path()).build();
    let intact = image.bytes();
    for (length, valid) in links {
        image.set_bytes(&intact);
        image.debugfs(&[&format!("set_inode_field f{length} mode 0120777")]);
        let mut bytes = image.bytes();
        assert_eq!(finds(&look(&bytes), Code::InlineLinkTooShort), !valid, "{length}: {:?}", look(&bytes).problems);
        assert_eq!(e2fsck(image.path()).text.contains("is invalid"), !valid, "{length}");
        repaired("a link", &mut bytes);
        image.set_bytes(&bytes);
        assert!(e2fsck(image.path()).clean, "{length}: {}", e2fsck(image.path()).text);
        let found = image.debugfs(&[&format!("stat f{length}")]).text();
        assert!(found.contains("Type: symlink") && found.contains(&format!("Size: {length}\n")), "{found}");
        assert!(valid || found.contains(&format!("Fast link dest: \"{}\"", "x".repeat(length))), "{found}");
    }
}

/// The number of an attribute block that is metadata costs the attribute, not the target, whose bytes would be blocks
/// in a file, nor the number of a device.
#[test]
fn a_target_in_an_inode_is_no_map_of_blocks() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let lengths = [1, 40, 47, 48, 50, 54, 59];
    let folder = tempfile::tempdir().expect("a folder");
    for length in lengths {
        std::os::unix::fs::symlink("x".repeat(length), folder.path().join(format!("l{length}"))).expect("a link");
    }
    for kind in ["ext2", "ext4"] {
        let args = ["-t", kind, "-b", "1024", "-O", "^has_journal"];
        let image = Image::mke2fs(&args, 8 << 20).with_folder(folder.path()).debugfs(&["mknod d b 8 1"]).build();
        let names: Vec<String> = lengths.iter().map(|length| format!("l{length}")).chain(["d".to_owned()]).collect();
        for name in &names {
            image.debugfs(&[&format!("set_inode_field {name} file_acl 5")]);
        }
        let mut bytes = image.bytes();
        repaired(kind, &mut bytes);
        assert!(look(&bytes).problems.is_empty(), "{kind}: {:?}", look(&bytes).problems);
        image.set_bytes(&bytes);
        assert!(e2fsck(image.path()).clean, "{kind}");
        for length in lengths {
            let found = image.debugfs(&[&format!("stat l{length}")]).text();
            assert!(found.contains(&format!("Fast link dest: \"{}\"", "x".repeat(length))), "{kind}: {found}");
        }
        assert!(image.debugfs(&["stat d"]).text().contains("number: 08:01"), "{kind}: a device");
    }
}

/// A link in a block has attributes in another one, which may name inodes with values: its target is checked
/// nevertheless.
#[test]
fn a_link_with_attributes_has_a_target_of_its_size() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    std::os::unix::fs::symlink("x".repeat(90), folder.path().join("l")).expect("a link");
    let value = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(value.path(), "v".repeat(200)).expect("written");
    let set = format!("ea_set -f {} l user.value", value.path().display());
    for features in ["^has_journal,ea_inode", "^has_journal"] {
        let args = ["-t", "ext4", "-b", "1024", "-I", "256", "-O", features];
        let image = Image::mke2fs(&args, 8 << 20).with_folder(folder.path()).debugfs(&[&set]).build();
        assert!(!image.debugfs(&["stat l"]).text().contains("File ACL: 0\n"), "an attribute block");
        let (intact, scratch) = (image.bytes(), Image::from_bytes(&[]));
        assert!(look(&intact).problems.is_empty(), "{:?}", look(&intact).problems);
        for size in [60, 89, 91, 150, 1023] {
            image.set_bytes(&intact);
            image.debugfs(&[&format!("set_inode_field l size {size}")]);
            let bytes = image.bytes();
            assert!(!e2fsck(image.path()).clean, "{features}, {size}");
            assert!(finds(&look(&bytes), Code::SymlinkInvalid), "{features}, {size}: {:?}", look(&bytes).problems);
            let wrong = wrong_with(&bytes, &scratch);
            assert!(wrong.is_none(), "{features}, {size}: {}", wrong.as_ref().map_or("", Wrong::text));
        }
    }
}

/// Adds a second `system.data` of 4 bytes to an inode, before or after the first one.
fn add_second(image: &Image, name: &str, before: bool) {
    let place = image.debugfs(&[&format!("imap {name}")]).text();
    let number = |after: &str| {
        let rest = place.split_once(after).unwrap_or_else(|| panic!("{place}")).1;
        rest.chars().take_while(char::is_ascii_alphanumeric).collect::<String>()
    };
    let block: usize = number("block ").parse().or_else(|_| number("located at block ").parse()).expect("a block");
    let inode = block * 1024 + usize::from_str_radix(&number("offset 0x"), 16).expect("an offset");
    let mut bytes = image.bytes();
    let area = inode + 128 + 32 + 4;
    let entry: [u8; 20] = bytes[area..area + 20].try_into().expect("an entry");
    assert!(entry[16..] == *b"data" && bytes[area + 20..area + 24] == [0; 4], "one attribute");
    let first = usize::from(u16::from_le_bytes([entry[2], entry[3]]));
    let mut second = entry;
    second[2..4].copy_from_slice(&(first as u16 - 4).to_le_bytes());
    second[8..12].copy_from_slice(&4u32.to_le_bytes());
    bytes[area + first - 4..area + first].copy_from_slice(b"2222");
    let entries = if before { [second, entry] } else { [entry, second] };
    bytes[area..area + 40].copy_from_slice(&entries.concat());
    repair_checksums(&mut bytes);
    image.set_bytes(&bytes);
}

/// Of two attributes with the rest of inline data, readers take the first.
#[test]
fn the_first_of_two_attributes_is_the_data() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("f"), "x".repeat(100)).expect("a file");
    std::os::unix::fs::symlink("x".repeat(100), folder.path().join("l")).expect("a link");
    let args = ["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", "inline_data", "-I", "256"];
    let image = Image::mke2fs(&args, 8 << 20).with_folder(folder.path()).build();
    let (intact, scratch) = (image.bytes(), Image::from_bytes(&[]));
    for name in ["f", "l"] {
        for before in [false, true] {
            image.set_bytes(&intact);
            let said = format!("{name} {before}");
            add_second(&image, name, before);
            let read = [format!("cat {name}"), format!("stat {name}")];
            let content = image.debugfs(&read.each_ref().map(String::as_str)).text();
            let verdict = e2fsck(image.path());
            // of a file it does not compare the size with the space
            let accepted = !before || name == "f";
            assert_eq!(verdict.clean, accepted, "{said}: {}", verdict.text);
            let mut bytes = image.bytes();
            assert_eq!(look(&bytes).clean, !before, "{said}: {:?}", look(&bytes).problems);
            let wrong = wrong_with(&bytes, &scratch);
            assert!(wrong.is_none(), "{said}: {}", wrong.as_ref().map_or("", Wrong::text));
            if !before {
                fix(&mut bytes, Repair::All).expect("a volume");
                image.set_bytes(&bytes);
                assert_eq!(image.debugfs(&read.each_ref().map(String::as_str)).text(), content, "{said}");
            }
        }
    }
}

/// The tree of a file without its flag is one problem, which a boot repairs.
#[test]
fn a_missing_extents_flag_is_one_problem() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("empty"), "").expect("a file");
    std::fs::write(folder.path().join("full"), "x".repeat(100_000)).expect("a file");
    let args = ["-t", "ext4", "-b", "1024", "-J", "size=1"];
    let image = Image::mke2fs(&args, 8 << 20).with_folder(folder.path()).build();
    let intact = image.bytes();
    for name in ["empty", "full", "lost+found"] {
        image.set_bytes(&intact);
        image.debugfs(&[&format!("set_inode_field {name} flags 0")]);
        let mut bytes = image.bytes();
        assert_eq!(look(&bytes).problems.len(), 1, "{name}: {:?}", look(&bytes).problems);
        assert_eq!(fix(&mut bytes, Repair::Safe).expect("a volume").exit, exit::REPAIRED, "{name}");
        image.set_bytes(&bytes);
        assert!(e2fsck(image.path()).clean, "{name}");
        assert!(look(&bytes).problems.is_empty(), "{name}: {:?}", look(&bytes).problems);
    }
}

/// A flag that the type of an inode does not have costs the flag alone, and one with which the kernel does not open a
/// link is removed.
#[test]
fn a_flag_of_another_type_costs_no_inode() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    const INDEX: u32 = 0x1000;
    const IMMUTABLE: u32 = 0x10;
    let folder = tempfile::tempdir().expect("a folder");
    for (name, length) in [("fast", 20), ("slow", 500)] {
        std::os::unix::fs::symlink("x".repeat(length), folder.path().join(name)).expect("a link");
    }
    let special = ["mknod b b 8 1", "mknod c c 5 1", "mknod p p"];
    for (kind, extents) in [("ext2", 0), ("ext4", 0x80000)] {
        let image =
            Image::mke2fs(&["-t", kind, "-b", "1024"], 8 << 20).with_folder(folder.path()).debugfs(&special).build();
        let before =
            ["b", "c", "p", "fast", "slow"].map(|name| (name, image.debugfs(&[&format!("stat {name}")]).text()));
        let set =
            [("b", INDEX), ("c", INDEX | IMMUTABLE), ("p", INDEX), ("fast", IMMUTABLE), ("slow", extents | IMMUTABLE)];
        for (name, flags) in set {
            image.debugfs(&[&format!("set_inode_field {name} flags {flags}")]);
        }
        let mut bytes = image.bytes();
        let found = look(&bytes);
        assert_eq!(found.problems.iter().filter(|p| p.code == Code::SpecialFileImmutable).count(), 3, "{kind}");
        repaired(kind, &mut bytes);
        image.set_bytes(&bytes);
        assert!(e2fsck(image.path()).clean, "{kind}");
        let without_sums = |text: &str| text.lines().filter(|l| !l.contains("checksum")).collect::<Vec<_>>().join("\n");
        for (name, before) in before {
            let after = image.debugfs(&[&format!("stat {name}")]).text();
            assert_eq!(without_sums(&after), without_sums(&before), "{kind}");
        }
    }
}

/// An empty file without a name may have attributes, and an inode with inline data is not known to be empty: they are
/// connected, others are cleared; the report says which.
#[test]
fn an_empty_file_with_attributes_is_connected() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let value = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(value.path(), "important").expect("written");
    let empty = tempfile::NamedTempFile::new().expect("a file");
    for (features, plain_is_cleared) in [("^inline_data", true), ("inline_data", false)] {
        let commands = [
            format!("write {} plain", empty.path().display()),
            format!("write {} noted", empty.path().display()),
            format!("ea_set -f {} noted user.note", value.path().display()),
        ];
        let args = ["-t", "ext4", "-b", "1024", "-I", "256", "-J", "size=1", "-O", features];
        let image = Image::mke2fs(&args, 8 << 20).debugfs(&commands.each_ref().map(String::as_str)).build();
        let numbers = ["plain", "noted"].map(|name| {
            let said = image.debugfs(&[&format!("stat {name}")]).text();
            let number = said.split_once("Inode: ").expect("an inode").1.split_whitespace().next().expect("a number");
            number.to_owned()
        });
        image.debugfs(&["unlink plain", "unlink noted"]);
        let mut bytes = image.bytes();
        let report = fix(&mut bytes, Repair::All).expect("a volume");
        let connected = report.problems.iter().filter(|p| p.code == Code::InodeUnattached).count();
        image.set_bytes(&bytes);
        assert!(e2fsck(image.path()).clean, "{features}");
        let found = image.debugfs(&["ls lost+found", &format!("ea_list <{}>", numbers[1])]).text();
        assert_eq!(found.contains(&format!("#{}", numbers[0])), !plain_is_cleared, "{features}: {found}");
        assert!(found.contains(&format!("#{}", numbers[1])), "{features}: {found}");
        assert!(found.contains("user.note (9)"), "{features}: {found}");
        assert_eq!(connected, 2 - usize::from(plain_is_cleared), "{features}: {:?}", report.problems);
    }
}

/// An impossible number behind the block of a target costs the number alone.
#[test]
fn an_impossible_number_does_not_cost_a_link() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let target = "folder/".repeat(14);
    for word in ["IND", "DIND", "TIND"] {
        let image = Image::mke2fs(&["-t", "ext2", "-b", "1024"], 4 << 20).build();
        image.debugfs(&[&format!("symlink link {target}"), &format!("sif link block[{word}] 99999999")]);
        let scratch = Image::from_bytes(&[]);
        let wrong = wrong_with(&image.bytes(), &scratch);
        assert!(wrong.is_none(), "{word}: {}", wrong.as_ref().map_or("", Wrong::text));
        let left = testkit::oracle::debugfs(scratch.path(), "cat link");
        assert!(left.contains(&target), "{word}: {left}");
    }
}
