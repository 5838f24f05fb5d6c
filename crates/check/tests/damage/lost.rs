//! What a repair must not lose: a journal of which only the inode is gone, and the files of a group whose table the
//! descriptor does not lead to.

use crate::mended::{contents, mend, options};
use blockdev::{BlockDevice, MemoryDevice};
use damage::{Kind, damage};
use extant_check::report::{Report, exit};
use extant_check::table::Code;
use extant_check::{Repair, check, first_sight, repair};
use std::sync::Arc;
use testkit::oracle::{e2fsck, kernel_mount};
use testkit::tools::has_loop;
use testkit::{Image, Spec, Tree, need};

fn look(bytes: &[u8]) -> Report {
    let device = MemoryDevice::from_vec(bytes.to_vec());
    check("volume", &device, &options(Repair::No), &()).expect("a volume")
}

fn finds(report: &Report, code: Code) -> bool {
    report.problems.iter().any(|problem| problem.code == code)
}

/// Whether a volume that says it is clean is taken at its word.
fn at_first_sight(bytes: &[u8]) -> bool {
    first_sight(&MemoryDevice::from_vec(bytes.to_vec()), &options(Repair::Safe))
}

/// The volume with this damage.
fn spoilt(bytes: &[u8], number: u32) -> Vec<u8> {
    let device = MemoryDevice::from_vec(bytes.to_vec());
    damage(&device, Kind::Problem(number), 1).expect("a volume fit for it");
    contents(&device)
}

fn filled(args: &[&str], size: u64) -> Image {
    Image::mke2fs(args, size).with_tree(&Tree::new(7, &Spec::small())).build()
}

#[test]
fn a_lost_journal_inode_is_restored_from_the_superblock() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    for kind in ["ext3", "ext4"] {
        let image = filled(&["-t", kind, "-b", "1024", "-J", "size=1"], 16 << 20);
        let bytes = spoilt(&image.bytes(), 0x0E_0011);
        let report = look(&bytes);
        assert!(!report.clean && finds(&report, Code::JournalInodeRestorable), "{kind}: {:?}", report.problems);
        assert!(!at_first_sight(&bytes), "{kind}: nobody can mount it");
        for mode in [Repair::Safe, Repair::All] {
            let mut bytes = bytes.clone();
            let report = mend(&mut bytes, mode).expect("a volume");
            assert_eq!((report.exit, report.mended), (exit::MENDED, true), "{kind}: {:?}", report.problems);
            assert!(look(&bytes).problems.is_empty(), "{kind}");
            image.set_bytes(&bytes);
            assert!(e2fsck(image.path()).clean, "{kind}");
            if has_loop() {
                kernel_mount(image.path(), "ro").unwrap_or_else(|e| panic!("{kind}: no journal for the kernel: {e}"));
            }
        }
    }
}

/// Volumes of one group and of several.
const SHAPES: [(&[&str], u64); 5] = [
    (&["-t", "ext3", "-b", "1024", "-J", "size=1"], 8 << 20),
    (&["-t", "ext4", "-b", "1024", "-J", "size=1"], 8 << 20),
    (&["-t", "ext4", "-b", "4096", "-O", "^has_journal,^metadata_csum"], 32 << 20),
    (&["-t", "ext4", "-b", "1024", "-g", "4096", "-O", "^has_journal"], 16 << 20),
    (&["-t", "ext2", "-b", "1024", "-g", "4096"], 16 << 20),
];

#[test]
fn an_inode_table_is_found_where_mkfs_puts_it() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    for (args, size) in SHAPES {
        let image = filled(args, size);
        let sound = image.bytes();
        let bytes = spoilt(&sound, 0x0E_0012);
        let report = look(&bytes);
        assert!(finds(&report, Code::InodeTableElsewhere), "{args:?}: {:?}", report.problems);
        assert!(at_first_sight(&sound) && !at_first_sight(&bytes), "{args:?}: it is not taken at its word");
        let mut preened = bytes.clone();
        let report = mend(&mut preened, Repair::Safe).expect("a volume");
        assert!(report.exit == exit::LEFT && preened == bytes, "{args:?}: a person decides");
        let mut mended = bytes.clone();
        let report = mend(&mut mended, Repair::All).expect("a volume");
        assert_eq!(report.exit, exit::MENDED, "{args:?}: {:?}", report.problems);
        assert_eq!(look(&mended).counts, look(&sound).counts, "{args:?}: every file is there");
        image.set_bytes(&mended);
        assert!(e2fsck(image.path()).clean, "{args:?}");
    }
}

/// The descriptor leads to other blocks of the volume, and makes sense but for that.
#[test]
fn an_inode_table_is_found_where_something_else_stands_in_its_place() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    for (args, size) in &SHAPES[..2] {
        let image = filled(args, *size);
        let sound = image.bytes();
        image.debugfs(&["set_bg 0 inode_table 6000", "set_bg 0 checksum calc"]);
        let mut bytes = image.bytes();
        assert!(finds(&look(&bytes), Code::InodeTableElsewhere), "{args:?}");
        let report = mend(&mut bytes, Repair::All).expect("a volume");
        assert_eq!(report.exit, exit::MENDED, "{args:?}: {:?}", report.problems);
        assert_eq!(look(&bytes).counts, look(&sound).counts, "{args:?}");
    }
}

/// Where the root is gone too nothing proves where the table is: nothing is written, unless that is asked for.
#[test]
fn files_are_not_given_up_for_an_empty_table() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let (args, size) = SHAPES[0];
    let image = filled(args, size);
    image.debugfs(&["sif <2> mode 0"]);
    let bytes = spoilt(&image.bytes(), 0x0E_0012);
    let report = look(&bytes);
    assert!(finds(&report, Code::InodeTableNotInGroup) && !finds(&report, Code::InodeTableElsewhere));
    let mut left = bytes.clone();
    let refusal = mend(&mut left, Repair::All).expect_err("the files would be lost");
    assert_eq!(refusal.exit, exit::LEFT);
    assert!(refusal.sentence.contains("the inode table of group 0 cannot be found"), "{refusal}");
    assert!(left == bytes, "something was written");
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_vec(bytes));
    let options = extant_check::Options { empty_tables: true, ..options(Repair::All) };
    let report = repair("volume", &device, &options, &(), None).expect("a volume");
    assert_eq!(report.exit, exit::MENDED, "{:?}", report.problems);
}

/// A directory that has lost the bits of its type, and the root likewise, is one again, with all that hangs on it.
#[test]
fn a_directory_that_lost_its_type_is_one_again() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    for kind in ["ext3", "ext4"] {
        let args = ["-t", kind, "-b", "1024", "-J", "size=1"];
        let image = Image::mke2fs(&args, 8 << 20).debugfs(&["mkdir a", "mkdir a/b", "mkdir a/c"]).build();
        let sound = look(&image.bytes()).counts;
        for command in ["sif a mode 0140755", "sif a mode 060755", "sif a mode 0", "sif <2> mode 0100755"] {
            let before = image.bytes();
            image.debugfs(&[command]);
            let mut bytes = image.bytes();
            let report = look(&bytes);
            assert!(finds(&report, Code::LooksLikeDirectory), "{kind}, {command}: {:?}", report.problems);
            let report = mend(&mut bytes, Repair::All).expect("a volume");
            assert_eq!(report.exit, exit::MENDED, "{kind}, {command}: {:?}", report.problems);
            assert_eq!(look(&bytes).counts, sound, "{kind}, {command}");
            image.set_bytes(&bytes);
            assert!(e2fsck(image.path()).clean, "{kind}, {command}");
            image.set_bytes(&before);
        }
    }
}
