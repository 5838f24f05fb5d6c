//! `-p` that stops: it reports the volume as it is, not as its discarded repairs would have left it. And lost+found,
//! into which `-y` then links files.

use crate::repaired::{contents, fix, only_marked, options};
use blockdev::MemoryDevice;
use damage::{Kind, damage};
use extant_check::render;
use extant_check::report::{Report, exit};
use extant_check::table::Code;
use extant_check::{Repair, check};
use testkit::oracle::{debugfs, e2fsck};
use testkit::{Image, need};

/// A volume with files in a directory, and a directory in it, changed by the commands.
fn volume(args: &[&str], commands: &[&str]) -> Image {
    let files: Vec<String> = (1..8).map(|n| format!("write /etc/passwd a/f{n}")).collect();
    let made: Vec<&str> = ["mkdir a", "mkdir a/b"].into_iter().chain(files.iter().map(String::as_str)).collect();
    let image = Image::mke2fs(args, 16 << 20).debugfs(&made).build();
    image.debugfs(commands);
    image
}

/// The problems that a check finds, which changes nothing.
fn look(bytes: &[u8]) -> Report {
    check("volume", &MemoryDevice::from_vec(bytes.to_vec()), &options(Repair::No), &()).expect("a volume")
}

fn texts(report: &Report) -> Vec<&str> {
    report.problems.iter().filter(|problem| !problem.fixed).map(|problem| problem.text.as_str()).collect()
}

#[test]
fn preening_that_stops_reports_what_is_on_the_volume() {
    if !need(&["mke2fs", "debugfs"]) {
        return;
    }
    let commands = ["clri a/f5", "unlink a/b", "sif a/f6 links_count 7"];
    for args in [
        &["-t", "ext4", "-b", "1024"][..],
        &["-t", "ext4", "-b", "1024", "-O", "^has_journal"],
        &["-t", "ext2", "-b", "1024"],
    ] {
        let before = volume(args, &commands).bytes();
        let mut after = before.clone();
        let (found, stopped) = (look(&before), fix(&mut after, Repair::Safe).expect("a volume"));
        assert!(texts(&found).iter().any(|text| text.contains("'f5'")), "{:?}", texts(&found));
        assert_eq!(texts(&stopped), texts(&found), "{args:?}");
        assert_eq!((stopped.errors, stopped.advice), (found.errors, found.advice), "{args:?}");
        assert_eq!(stopped.exit, exit::LEFT, "{args:?}");
        assert_eq!(stopped.counts, found.counts, "{args:?}");
        let at = stopped.stopped_at.as_deref().expect("the problem that stopped it");
        assert!(texts(&found).contains(&at), "{at}");
        assert!(!stopped.repaired && only_marked(&before, &after), "{args:?}");

        // read through a copy: checksums and counts of the primary are not repaired
        let mut damaged = volume(args, &[]).bytes();
        damaged[1024..2048].fill(0);
        let found = look(&damaged);
        let stopped = fix(&mut damaged, Repair::Safe).expect("a volume");
        assert_eq!((texts(&stopped), stopped.errors), (texts(&found), found.errors), "{args:?}");
    }
}

/// A volume that no kernel mounts is never called clean, and `-p` repairs it or stops.
#[test]
fn a_volume_that_cannot_be_mounted_is_not_clean() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let kinds = [
        (Code::SuperblockTryBackup, false),
        (Code::GroupDescriptorsTryBackup, false),
        (Code::FirstMetaGroupTooLarge, false),
        (Code::MinExtraSizeWrong, false),
        (Code::WantExtraSizeWrong, false),
        (Code::DefaultHashInvalid, true),
        (Code::JournalDeviceBesideInode, false),
        (Code::GroupChecksumWrong, true),
    ];
    for args in [&["-t", "ext4", "-b", "1024"][..], &["-t", "ext2", "-b", "1024", "-I", "128"]] {
        let intact = volume(args, &[]).bytes();
        for (code, preened) in kinds {
            let device = MemoryDevice::from_vec(intact.clone());
            if damage(&device, Kind::Problem(code.number()), 1).is_err() {
                continue;
            }
            let before = contents(&device);
            let found = look(&before);
            let said = format!("{code:?} on {args:?}: {}", render::verdict(&found));
            assert!(found.problems.iter().any(|p| p.code == code), "{said}");
            assert!(!found.clean && said.contains("cannot be mounted") && !said.contains("No errors"), "{said}");
            let mut after = before.clone();
            let report = fix(&mut after, Repair::Safe).expect("a volume");
            match preened {
                true => assert_eq!((report.exit, look(&after).clean), (exit::REPAIRED, true), "{said}"),
                false => {
                    assert_eq!((report.exit, report.stopped_at.is_some()), (exit::LEFT, true), "{said}");
                    assert!(before == after || only_marked(&before, &after), "{said}");
                }
            }
            fix(&mut after, Repair::All).expect("a volume");
            assert!(look(&after).clean && e2fsck(Image::from_bytes(&after).path()).clean, "{said}");
        }
    }
}

/// The journal is replayed even where the first problem after it stops the repair, and the report says so.
#[test]
fn preening_that_stops_replays_the_journal() {
    if !need(&["mke2fs", "debugfs"]) {
        return;
    }
    let image = volume(&["-t", "ext4", "-b", "1024", "-J", "size=4"], &["unlink a"]);
    let block = image.beside("block");
    std::fs::write(&block, [b'x'; 1024]).expect("a file");
    image.debugfs(&["jo", &format!("jw -b 9000 {}", block.display()), "jc"]);
    let mut bytes = image.bytes();
    let found = look(&bytes);
    assert!(found.problems.iter().any(|p| p.code == Code::JournalNotReplayed), "{:?}", found.problems);
    let stopped = fix(&mut bytes, Repair::Safe).expect("a volume");
    assert!(stopped.exit == exit::LEFT && stopped.stopped_at.is_some(), "{:?}", stopped.problems);
    assert!(bytes[9000 * 1024..9001 * 1024].iter().all(|byte| *byte == b'x'), "the journal was not replayed");
    let fixed: Vec<Code> = stopped.problems.iter().filter(|p| p.fixed).map(|p| p.code).collect();
    assert_eq!(fixed, [Code::JournalNotReplayed]);
    let left = look(&bytes);
    assert!(!left.problems.iter().any(|p| p.code == Code::JournalNotReplayed), "{:?}", left.problems);
    assert_eq!(texts(&stopped), texts(&left));
}

/// mke2fs allocates blocks of lost+found in advance, so that files can be linked into it on a full volume.
#[test]
fn a_repair_does_not_shrink_lost_and_found() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    for (args, size) in [
        (&["-t", "ext4", "-b", "1024"][..], 12_288),
        (&["-t", "ext4", "-b", "4096", "-O", "^has_journal"], 16_384),
        (&["-t", "ext2", "-b", "1024"], 12_288),
        (&["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,^has_journal"], 12_288),
    ] {
        // a directory, and files without one
        for commands in [&["unlink a"][..], &["unlink a/f1", "sif <14> links_count 1"]] {
            let image = volume(args, commands);
            let size = format!("Size: {size}\n");
            assert!(debugfs(image.path(), "stat lost+found").contains(&size), "{args:?}");
            let mut bytes = image.bytes();
            let report = fix(&mut bytes, Repair::All).expect("a volume");
            assert_eq!(report.exit, exit::REPAIRED, "{args:?}: {:?}", report.problems);
            let freed = report.problems.iter().find(|p| p.code.phase() == extant_check::table::Phase::Bitmaps);
            assert!(freed.is_none(), "{args:?} {commands:?}: {freed:?}");
            image.set_bytes(&bytes);
            let listed = debugfs(image.path(), "ls -l lost+found");
            assert!(listed.contains('#'), "{listed}");
            let stat = debugfs(image.path(), "stat lost+found");
            assert!(stat.contains(&size), "{args:?}: {stat}");
            let verdict = e2fsck(image.path());
            assert!(verdict.clean, "{args:?}: {}", verdict.text);
        }
    }
}
