//! Maps, entries and attributes with wrong references: a record that extends past its block, a pointer into metadata, a
//! name with a zero byte, levels without entries. The file or directory retains all names and bytes.

use crate::repaired::{fix, only_marked, options};
use blockdev::MemoryDevice;
use damage::{Kind, damage};
use extant_check::report::{Report, exit};
use extant_check::table::Code;
use extant_check::{Repair, check};
use format::superblock::DiskSuperblock;
use std::collections::BTreeMap;
use std::path::Path;
use testkit::oracle::{debugfs, e2fsck};
use testkit::tools::run;
use testkit::{Image, need};
use zerocopy::FromBytes;

const EXT3: &[&str] = &["-t", "ext3", "-b", "1024", "-J", "size=1"];
const EXT4: &[&str] = &["-t", "ext4", "-b", "1024", "-J", "size=1"];
const INLINE: &[&str] = &["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", "inline_data", "-I", "256"];

/// A volume with files in the root and in a folder.
fn volume(args: &[&str]) -> Image {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(folder.path().join("dir")).expect("a folder");
    for n in 0..6 {
        std::fs::write(folder.path().join(format!("dir/file_{n}")), vec![n; 3000]).expect("a file");
    }
    std::fs::write(folder.path().join("small"), "some bytes").expect("a file");
    std::fs::write(folder.path().join("empty"), "").expect("a file");
    Image::mke2fs(args, 16 << 20).with_folder(folder.path()).build()
}

/// All paths and the content of the files, as copied by debugfs.
fn content(image: &Image) -> BTreeMap<String, Option<Vec<u8>>> {
    let dump = tempfile::tempdir().expect("a folder");
    image.debugfs(&[&format!("rdump / {}", dump.path().display())]);
    let mut all = BTreeMap::new();
    let mut folders = vec![dump.path().to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder").map(|entry| entry.expect("an entry")) {
            let name = |path: &Path| path.strip_prefix(dump.path()).expect("a path in it").display().to_string();
            let is_folder = entry.file_type().expect("a type").is_dir();
            let bytes = (!is_folder).then(|| std::fs::read(entry.path()).expect("a file"));
            all.insert(name(&entry.path()), bytes);
            if is_folder {
                folders.push(entry.path());
            }
        }
    }
    all
}

fn look(bytes: &[u8]) -> Report {
    check("volume", &MemoryDevice::from_vec(bytes.to_vec()), &options(Repair::No), &()).expect("a volume")
}

fn finds(bytes: &[u8], code: Code) -> bool {
    look(bytes).problems.iter().any(|problem| problem.code == code)
}

/// A volume with a file of 90 bytes and an attribute in its inode.
fn inline_file() -> Image {
    let folder = tempfile::tempdir().expect("a folder");
    let long = folder.path().join("long");
    std::fs::write(&long, [b'l'; 90]).expect("a file");
    let commands = [format!("write {} long", long.display()), "ea_set long user.kind value".to_owned()];
    Image::mke2fs(INLINE, 16 << 20).debugfs(&commands.each_ref().map(String::as_str)).build()
}

/// Repairs the image and checks that neither Extant nor e2fsck then reports anything.
fn repair(said: &str, image: &Image) {
    let mut bytes = image.bytes();
    assert!(!look(&bytes).clean, "{said}: clean before the repair");
    fix(&mut bytes, Repair::All).expect("a volume");
    assert!(look(&bytes).problems.is_empty(), "{said}: {:?}", look(&bytes).problems);
    image.set_bytes(&bytes);
    let verdict = e2fsck(image.path());
    assert!(verdict.clean, "{said}: {}", verdict.text);
}

/// The offset of these bytes, which occur once.
fn only(bytes: &[u8], wanted: &[u8]) -> usize {
    let all: Vec<usize> = (0..bytes.len() - wanted.len()).filter(|at| bytes[*at..].starts_with(wanted)).collect();
    let [at] = all[..] else { panic!("{wanted:?} is at {all:?}") };
    at
}

fn first_number(said: &str, behind: &str) -> u32 {
    let rest = said.split_once(behind).unwrap_or_else(|| panic!("no {behind} in {said}")).1;
    let digits: String = rest.trim_start().chars().take_while(char::is_ascii_digit).collect();
    digits.parse().expect("a number")
}

#[test]
fn the_name_of_an_entry_that_runs_past_its_block_is_preserved() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    for args in [EXT3, EXT4, INLINE] {
        let image = volume(args);
        if args == INLINE {
            // two entries are the maximum in the inode
            image.debugfs(&["mkdir in", "mkdir in/file_5"]);
        }
        let (before, mut bytes) = (content(&image), image.bytes());
        // the last entry of the folder: number, length of the record, of the name, type, name
        let name = if args == INLINE { "\x06\x02file_5" } else { "\x06\x01file_5" };
        let at = only(&bytes, name.as_bytes()) - 2;
        assert!(
            u16::from_le_bytes([bytes[at], bytes[at + 1]]) > 16,
            "{args:?}: the last record has the rest of the block"
        );
        bytes[at..at + 2].copy_from_slice(&2048_u16.to_le_bytes());
        image.set_bytes(&bytes);
        repair(&format!("{args:?}"), &image);
        assert!(content(&image) == before, "{args:?}");
    }
}

/// An entry with an impossible inode number is not restored.
#[test]
fn an_entry_that_runs_past_its_block_and_names_nothing_goes() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let image = volume(EXT3);
    let (mut before, mut bytes) = (content(&image), image.bytes());
    let at = only(&bytes, b"\x06\x01file_5") - 2;
    bytes[at..at + 2].copy_from_slice(&2048_u16.to_le_bytes());
    bytes[at - 4..at].copy_from_slice(&u32::MAX.to_le_bytes());
    image.set_bytes(&bytes);
    repair("a number beyond all inodes", &image);
    let file = before.remove("dir/file_5");
    let after = content(&image);
    assert!(before.keys().all(|path| after.contains_key(path)) && !after.contains_key("dir/file_5"));
    let found = after.iter().find(|(path, _)| path.starts_with("lost+found/#"));
    assert_eq!(found.map(|(_, bytes)| bytes), file.as_ref());
}

#[test]
fn an_indirect_block_in_metadata_is_none() {
    if !need(&["mke2fs", "debugfs", "dumpe2fs", "e2fsck"]) {
        return;
    }
    for args in [&["-t", "ext2", "-b", "1024"][..], EXT3] {
        let image = volume(args);
        let (before, intact) = (content(&image), image.bytes());
        let table = first_number(&run("dumpe2fs", &[image.path().as_os_str()]).text(), "Inode table at");
        for block in [1, table, table + 1] {
            for field in ["IND", "DIND"] {
                let said = format!("{args:?}: {field} leads to block {block}");
                image.set_bytes(&intact);
                image.debugfs(&[&format!("sif dir block[{field}] {block}")]);
                repair(&said, &image);
                assert!(content(&image) == before, "{said}");
            }
        }
    }
}

/// The kernel returns EUCLEAN for such a file.
#[test]
fn a_tree_of_levels_and_nothing_in_them_is_an_error() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let image = volume(EXT4);
    let (before, intact) = (content(&image), image.bytes());
    for depth in [1, 5] {
        image.set_bytes(&intact);
        image.debugfs(&[&format!("sif empty block[1] {}", 4 | depth << 16)]);
        assert!(finds(&image.bytes(), Code::ExtentTreeTooDeep), "{depth} levels");
        repair(&format!("{depth} levels"), &image);
        assert!(content(&image) == before, "{depth} levels");
        let header = image.debugfs(&["inode_dump -b empty"]).text();
        assert!(header.contains("0af3 0000 0400 0000"), "{header}");
    }
}

/// The kernel rejects an inode with one, and in an inline directory nothing else reveals it.
#[test]
fn an_attribute_with_a_zero_byte_in_its_name_goes() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let image = volume(INLINE);
    image.debugfs(&["mkdir in", "mkdir in/one", "ea_set small user.kind value"]);
    let (before, intact) = (content(&image), image.bytes());
    let mut bytes = intact.clone();
    bytes[only(&intact, b"kind") + 1] = 0;
    assert!(finds(&bytes, Code::InodeXattrNameLengthWrong), "{:?}", look(&bytes).problems);
    image.set_bytes(&bytes);
    repair("an attribute of a file", &image);
    assert!(content(&image) == before);
}

/// The invalid one of three attributes is removed, after the administrator decided so; the others stay, an ACL may be
/// among them.
#[test]
fn an_invalid_attribute_takes_no_other_with_it() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let image = volume(INLINE);
    image.debugfs(&["ea_set small user.first 1", "ea_set small user.kind value", "ea_set small user.last 2"]);
    let intact = image.bytes();
    let name = only(&intact, b"kind");
    // the entry before its name: length, index, offset of the value, its inode, size and hash
    for (back, wrong, code) in [
        (16, &[0x70][..], Code::InodeXattrNameLengthWrong),
        (14, &[0xFF, 0xFF], Code::InodeXattrValueSizeWrong),
        (8, &[0, 0x70, 0, 0], Code::InodeXattrValueSizeWrong),
        (14, &[4, 0], Code::InodeXattrEntriesCollide),
        (4, &[1, 2, 3, 4], Code::InodeXattrHashWrong),
        (12, &[9, 0, 0, 0], Code::XattrValueInodeWrong),
    ] {
        let mut bytes = intact.clone();
        bytes[name - back..name - back + wrong.len()].copy_from_slice(wrong);
        assert!(finds(&bytes, code), "{code}: {:?}", look(&bytes).problems);
        let mut preened = bytes.clone();
        let report = fix(&mut preened, Repair::Safe).expect("a volume");
        assert!(report.exit == exit::LEFT && only_marked(&bytes, &preened), "{code}: {:?}", report.problems);
        image.set_bytes(&bytes);
        repair(&code.to_string(), &image);
        let left = image.debugfs(&["ea_list small"]).text();
        assert!(left.contains("user.first (1) = \"1\"") && !left.contains("user.kind"), "{code}: {left}");
        // behind a name of the wrong length nothing can be read
        assert!(left.contains("user.last (1) = \"2\"") || back == 16, "{code}: {left}");
    }
}

/// In an inode that is not encrypted an encryption context means nothing, as to e2fsck and the kernel.
#[test]
fn an_invalid_context_without_encryption_costs_no_file() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let image = volume(EXT4);
    image.debugfs(&["ea_set small user.c nocontext"]);
    let mut bytes = image.bytes();
    let is_entry = |at: usize| bytes[at..].starts_with(&[1, 1]) && bytes[at + 16] == b'c' && bytes[at + 8] == 9;
    let entry = (0..bytes.len() - 20).find(|at| is_entry(*at)).expect("the attribute");
    bytes[entry + 1] = 9;
    let report = look(&bytes);
    assert!(!report.problems.iter().any(|p| p.code == Code::EncryptionXattrCorrupt), "{:?}", report.problems);
    image.set_bytes(&bytes);
    repair("the inode's checksum", &image);
    assert!(image.debugfs(&["ls"]).text().contains("small"));
}

/// A name with a zero byte has a length, so the attributes after it can be read.
#[test]
fn attributes_after_a_name_with_a_zero_byte_stay() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let image = volume(INLINE);
    image.debugfs(&["ea_set small user.kind value", "ea_set small user.last 2"]);
    let mut bytes = image.bytes();
    let name = only(&bytes, b"kind");
    bytes[name + 1] = 0;
    image.set_bytes(&bytes);
    repair("a zero byte", &image);
    let left = image.debugfs(&["ea_list small"]).text();
    assert!(left.contains("user.last (1) = \"2\"") && !left.contains("kind"), "{left}");
}

/// One invalid attribute in a block costs none of the others there.
#[test]
fn an_invalid_attribute_in_a_block_takes_no_other_with_it() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    // no space for attributes in the inode
    let image = volume(&["-t", "ext4", "-b", "1024", "-J", "size=1", "-I", "128"]);
    image.debugfs(&["ea_set small user.first 1", "ea_set small user.kind value", "ea_set small user.last 2"]);
    let intact = image.bytes();
    let name = only(&intact, b"kind");
    for (back, wrong, code) in [
        (0, &b"k\0nd"[..], Code::XattrNameBad),
        (14, &[0xFF, 0x7F], Code::XattrValueBad),
        (4, &[1, 2, 3, 4], Code::InodeXattrHashWrong),
    ] {
        let mut bytes = intact.clone();
        bytes[name - back..name - back + wrong.len()].copy_from_slice(wrong);
        assert!(finds(&bytes, code), "{code}: {:?}", look(&bytes).problems);
        image.set_bytes(&bytes);
        repair(&code.to_string(), &image);
        let left = image.debugfs(&["ea_list small"]).text();
        let all_others = left.contains("user.first (1) = \"1\"") && left.contains("user.last (1) = \"2\"");
        assert!(all_others && !left.contains("nd ("), "{code}: {left}");
    }
}

/// The hash of inline data is not needed, and the data is the file.
#[test]
fn a_wrong_hash_of_inline_data_costs_nothing() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let image = inline_file();
    let (before, mut bytes) = (content(&image), image.bytes());
    let name = only(&bytes, b"\x04\x07") + 16;
    assert_eq!(&bytes[name..name + 4], b"data");
    bytes[name - 4] ^= 9;
    assert!(finds(&bytes, Code::InodeXattrHashWrong), "{:?}", look(&bytes).problems);
    image.set_bytes(&bytes);
    repair("the hash of inline data", &image);
    assert!(content(&image) == before);
    assert!(image.debugfs(&["ea_list long"]).text().contains("user.kind (5) = \"value\""));
}

/// Either the size is wrong or that of the attribute, so the end of the file is only removed after a decision.
#[test]
fn preening_does_not_shorten_a_file_in_its_inode() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let image = inline_file();
    let mut bytes = image.bytes();
    let name = only(&bytes, b"\x04\x07") + 16;
    bytes[name - 8] = 1;
    assert!(finds(&bytes, Code::InlineDataTooShort), "{:?}", look(&bytes).problems);
    let mut preened = bytes.clone();
    let report = fix(&mut preened, Repair::Safe).expect("a volume");
    assert!(report.exit == exit::LEFT && only_marked(&bytes, &preened), "{:?}", report.problems);
    image.set_bytes(&bytes);
    repair("a short attribute", &image);
}

#[test]
fn what_a_repair_allocates_is_not_what_the_bitmaps_say_a_folder_has() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let image = volume(EXT4);
    let before = content(&image);
    // the folder's map is not read before the flag is cleared, and the resize inode is recreated before that
    image.debugfs(&["sif dir flags 0x10080000", "sif <7> block[IND] 7000"]);
    repair("a stray flag and a resize inode with a block of its own", &image);
    assert!(content(&image) == before);
}

/// Neither its inode nor the copy of the inode's map in the superblock leads to a valid journal, so a repeated restore
/// would not end.
/// What remains of an extent that is only too long is the file's data, each block at its place.
#[test]
fn an_extent_that_is_too_long_is_shortened() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    for args in [EXT4, &["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", "^metadata_csum"]] {
        let image = volume(args);
        let before = content(&image);
        let device = MemoryDevice::from_vec(image.bytes());
        let mut seeds = 0..64;
        assert!(seeds.any(|seed| damage(&device, Kind::Problem(0x0E_002A), seed).is_ok()), "no file of three blocks");
        let bytes = device.into_vec();
        let codes: Vec<_> = look(&bytes).problems.iter().map(|problem| problem.code).collect();
        assert_eq!(codes, [Code::ExtentTooLong], "{args:?}");
        image.set_bytes(&bytes);
        repair(&format!("{args:?}"), &image);
        assert!(content(&image) == before, "{args:?}");
    }
}

/// The extent that is reported is the one that is removed, not those after it.
#[test]
fn the_extent_that_goes_is_the_one_reported() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let image = volume(EXT4);
    let path = "/dir/file_1";
    let said = debugfs(image.path(), &format!("blocks {path}"));
    let block: u32 = said.split_whitespace().find_map(|word| word.parse().ok()).expect("a block");
    // one block each at file blocks 0, 7 instead of 1, and 2
    let words = [0x0003_F30A, 4, 0, 0, 1, block, 7, 1, block + 1, 2, 1, block + 2];
    let commands: Vec<_> = words.iter().enumerate().map(|(n, word)| format!("sif {path} block[{n}] {word}")).collect();
    image.debugfs(&commands.iter().map(String::as_str).collect::<Vec<_>>());
    let problems = look(&image.bytes()).problems;
    let found: Vec<_> = problems.iter().filter(|problem| problem.code == Code::ExtentsOutOfOrder).collect();
    assert_eq!(found.iter().map(|problem| problem.file_block).collect::<Vec<_>>(), [Some(7)]);
    repair("an extent moved", &image);
    let said = debugfs(image.path(), &format!("blocks {path}"));
    let has = |block: u32| said.split_whitespace().any(|word| word == block.to_string());
    assert!(has(block) && !has(block + 1) && has(block + 2), "{said}");
}

#[test]
fn a_journal_whose_extents_overlap_is_made_anew() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let image = Image::mke2fs(&["-t", "ext4", "-b", "1024", "-g", "256", "-J", "size=1"], 8 << 20).build();
    let before = content(&image);
    let mut bytes = image.bytes();
    let superblock = DiskSuperblock::mut_from_bytes(&mut bytes[1024..2048]).expect("a superblock");
    let [extents, second_start, second_len] = [0, 6, 7].map(|n| superblock.s_jnl_blocks[n].get());
    assert!(extents >> 16 > 2 && second_start + second_len < 1024, "the second of three");
    superblock.s_jnl_blocks[7] = (2 * second_len).into();
    superblock.set_checksum();
    image.set_bytes(&bytes);
    image.debugfs(&[&format!("sif <8> block[7] {}", 2 * second_len)]);
    repair("the journal's second extent is too long", &image);
    assert!(content(&image) == before);
    assert!(image.debugfs(&["stat <8>"]).text().contains("Size: 1048576"));
}
