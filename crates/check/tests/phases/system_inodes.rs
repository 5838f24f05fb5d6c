//! Multiple-mount protection, the resize inode, orphans and quota.

use super::{Finds, Volume, compare, no_difference, ours};
use extant_check::table::Code;
use testkit::{Image, need, oracle, tools};

/// The superblock's first byte.
const SB: usize = 1024;

#[test]
fn multiple_mount_protection() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    use Finds::{Nothing, Refusal, This};
    let args = ["-t", "ext4", "-b", "1024", "-O", "mmp,^metadata_csum,^has_journal"];
    let volume = Volume::of(&Image::mke2fs(&args, 16 << 20).build());
    let at = volume.u32(SB + 0x168) as usize * 1024;
    let put = |at: usize, value: u32| move |v: &mut Volume| v.put(at, &value.to_le_bytes());
    no_difference([
        compare(&volume, "as it was made", Nothing, |_| ()),
        compare(&volume, "magic", This(Code::MmpMagicWrong), put(at, 5)),
        compare(&volume, "a check under way", Refusal, put(at + 4, 0xE24D_4D50)),
        compare(&volume, "a number that is never written", Refusal, put(at + 4, 0xE24D_4D51)),
        compare(&volume, "no block", This(Code::MmpBlockOutOfRange), put(SB + 0x168, 0)),
        compare(&volume, "a block beyond the volume", This(Code::MmpBlockOutOfRange), put(SB + 0x16C, 1)),
        compare(&volume, "a block of data", This(Code::MmpMagicWrong), put(SB + 0x168, 9000)),
    ]);
    let args = ["-t", "ext4", "-b", "1024", "-O", "mmp,^has_journal"];
    let volume = Volume::of(&Image::mke2fs(&args, 16 << 20).build());
    no_difference([compare(&volume, "checksum", This(Code::MmpChecksumWrong), put(at + 0x3FC, 5))]);
}

#[test]
fn the_resize_inode_names_all_copies() {
    if !need(&["mke2fs", "debugfs"]) {
        return;
    }
    let codes = |volume: &[u8]| {
        let report = ours(volume).expect("a volume");
        report.problems.iter().map(|p| p.code).collect::<Vec<_>>()
    };
    for args in [&["-t", "ext2", "-b", "1024"] as &[_], &["-t", "ext4", "-b", "4096"], &["-O", "sparse_super2"]] {
        assert_eq!(codes(&Image::mke2fs(args, 64 << 20).build().bytes()), [], "{args:?}");
    }
    let image = Image::mke2fs(&["-t", "ext2", "-b", "1024"], 40 << 20).build();
    let said = oracle::debugfs(image.path(), "stat <7>");
    let double = said.split("(DIND):").nth(1).and_then(|s| s.split(',').next()?.trim().parse::<usize>().ok());
    let double = double.expect("the doubly indirect block");
    let volume = Volume::of(&image);
    let first = volume.0[double * 1024..][..1024].chunks_exact(4).position(|n| n != [0; 4]).expect("a number");
    let indirect = volume.u32(double * 1024 + first * 4) as usize;
    let corrupt = |at: usize, value: u32| {
        let mut damaged = volume.clone();
        damaged.put(at, &value.to_le_bytes());
        codes(&damaged.0)
    };
    // the first copy in the list, and the first of the reserved blocks
    assert_eq!(corrupt(indirect * 1024, 20_000), [Code::ResizeInodeBad]);
    assert!(corrupt(double * 1024 + first * 4, indirect as u32 + 1).contains(&Code::ResizeInodeBad));
}

#[test]
fn the_orphan_file_is_empty() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    use Finds::{Anything, Nothing, This};
    let make = |features: &str, commands: &[&str]| {
        let args = ["-t", "ext4", "-b", "1024", "-O", features];
        let image = Image::mke2fs(&args, 40 << 20).build();
        if !commands.is_empty() {
            image.debugfs(commands);
        }
        image
    };
    let image = make("orphan_file,^metadata_csum", &[]);
    let volume = Volume::of(&image);
    let inode = volume.u32(SB + 0x280);
    let said = oracle::debugfs(image.path(), &format!("bmap <{inode}> 0"));
    let at = said.lines().find_map(|l| l.trim().parse::<usize>().ok()).expect("its first block") * 1024;
    let put = |at: usize, value: u32| move |v: &mut Volume| v.put(at, &value.to_le_bytes());
    no_difference([
        compare(&volume, "as it was made", Nothing, |_| ()),
        compare(&volume, "magic", This(Code::OrphanFileMagicWrong), put(at + 1016, 5)),
        compare(&volume, "magic of a later block", This(Code::OrphanFileMagicWrong), put(at + 5 * 1024 + 1016, 5)),
        compare(&volume, "an orphan", This(Code::OrphanFileBlockNotClean), put(at, 14)),
        compare(&volume, "a checksum without the feature", This(Code::OrphanFileBlockNotClean), put(at + 1020, 14)),
        compare(&volume, "no inode", This(Code::OrphanFileInodeBad), put(SB + 0x280, 0)),
        compare(&volume, "no such inode", This(Code::OrphanFileInodeBad), put(SB + 0x280, 99_999)),
        compare(&volume, "the journal's inode", This(Code::OrphanFileMagicWrong), put(SB + 0x280, 8)),
        compare(&volume, "neither feature nor file", This(Code::OrphanPresentWithoutFile), |v| {
            v.clear_u32(SB + 0x5C, 0x1000);
            v.set_u32(SB + 0x64, 0x1_0000);
        }),
        compare(&volume, "no journal", This(Code::OrphanFileWithoutJournal), |v| {
            v.clear_u32(SB + 0x5C, 4);
            v.put(SB + 0xE0, &[0; 4]);
        }),
    ]);
    // e2fsck 1.47.0 calls this an error, later ones do not
    let mut present = volume.clone();
    present.set_u32(SB + 0x64, 0x1_0000);
    let report = ours(&present.0).expect("a volume");
    assert_eq!(report.problems.iter().map(|p| p.code).collect::<Vec<_>>(), [Code::OrphanPresentButFileClean]);
    assert!(report.clean);

    let checksummed = Volume::of(&make("orphan_file", &[]));
    no_difference([
        compare(&checksummed, "with checksums", Nothing, |_| ()),
        compare(&checksummed, "checksum", This(Code::OrphanFileChecksumWrong), put(at + 1020, 5)),
    ]);
    for (command, finds) in [
        ("sif <12> size 32769", This(Code::OrphanFileSizeWrong)),
        ("sif <12> size 65536", This(Code::OrphanFileHole)),
        ("sif <12> size 16384", Anything),
        ("sif <12> mode 040700", This(Code::OrphanFileInodeBad)),
        ("clri <12>", This(Code::OrphanFileInodeBad)),
    ] {
        let volume = Volume::of(&make("orphan_file,^metadata_csum", &[command]));
        no_difference([compare(&volume, command, finds, |_| ())]);
    }
}

#[test]
fn quota_files_state_what_everyone_has() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let make = |commands: &[&str]| {
        let args = ["-t", "ext4", "-b", "1024", "-O", "quota,project,^has_journal"];
        let image = Image::mke2fs(&args, 40 << 20).build();
        let (long, short) = (image.beside("long"), image.beside("short"));
        std::fs::write(&long, vec![1; 50_000]).expect("a file");
        std::fs::write(&short, b"a few bytes").expect("a file");
        let (long, short) = (format!("write {} long", long.display()), format!("write {} short", short.display()));
        image.debugfs(&[&long, &short, "mkdir d", "sif long uid 7", "sif short gid 70000", "sif short projid 3"]);
        // debugfs counts no user's usage: e2fsck does
        tools::run("e2fsck", &["-fy".as_ref(), image.path().as_os_str()]);
        if !commands.is_empty() {
            image.debugfs(commands);
        }
        Volume::of(&image)
    };
    let wrong = Finds::This(Code::QuotaUsageWrong);
    no_difference([
        compare(&make(&[]), "as it should be", Finds::Nothing, |_| ()),
        compare(&make(&["sif long uid 8"]), "another user", wrong, |_| ()),
        compare(&make(&["sif short gid 0"]), "another group", wrong, |_| ()),
        compare(&make(&["sif short projid 4"]), "another project", wrong, |_| ()),
        compare(&make(&["mkdir e"]), "one more directory", wrong, |_| ()),
        compare(&make(&["sif <3> size 0"]), "an empty file", wrong, |_| ()),
        compare(&make(&["clri <4>"]), "no file", wrong, |_| ()),
        compare(&make(&["ssv usr_quota_inum 0"]), "no number", Finds::This(Code::QuotaInodeNotClear), |_| ()),
    ]);
}
