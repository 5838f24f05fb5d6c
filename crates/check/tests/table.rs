//! The problem table is complete, its texts can be filled in, and the selection of listed problems depends on the
//! volume alone.

use extant_check::problem::{Limits, Problem, Problems};
use extant_check::render::{UNKNOWN, escape, sentence, verdict, write_text};
use extant_check::report::{ChosenSuperblock, Counts, NativeState, Remedy, Report, Scan};
use extant_check::table::{Code, Fixer, PLACEHOLDERS, Phase, Severity, markdown};
use extant_check::{Capabilities, Repair};
use format::{FileBlock, FsBlock, GroupNo, InodeNo};
use proptest::prelude::*;
use std::collections::HashSet;
use std::path::Path;

/// The pass in the numbers of Extant's own problems.
const OWN: u32 = 0x0E;

fn placeholders(text: &str) -> Vec<&str> {
    text.split('{').skip(1).map(|rest| rest.split('}').next().unwrap_or_default()).collect()
}

#[test]
fn every_number_once() {
    let mut seen = HashSet::new();
    for &code in Code::ALL {
        assert!(seen.insert(code.number()), "{code} is in two rows");
        assert_eq!(code.number(), code as u32);
        assert_eq!(Code::from_number(code.number()), Some(code));
    }
    assert_eq!(Code::from_number(0), None);
    assert_eq!(Code::from_number(0x01_0000), None);
}

/// The pass is part of e2fsck's numbers.
#[test]
fn the_number_says_the_phase() {
    for &code in Code::ALL {
        let (pass, part) = (code.number() >> 16, (code.number() >> 12) & 0xf);
        let phase = match (pass, part) {
            (0, _) => Phase::Superblock,
            (1, 0) => Phase::Inodes,
            (1, 1..=3) => Phase::MultiplyClaimed,
            (2, 0) => Phase::Directories,
            (3, 0) => Phase::Connectivity,
            (4, 0) => Phase::Links,
            (5, 0) => Phase::Bitmaps,
            (6, 0) => Phase::After,
            (OWN, 0) => continue,
            _ => panic!("no pass has {code}"),
        };
        assert_eq!(code.phase(), phase, "{code}");
    }
}

#[test]
fn rows_are_in_the_order_of_their_phases() {
    assert!(Code::ALL.is_sorted_by_key(|code| code.phase()));
    assert!(Phase::ALL.is_sorted());
    for phase in Phase::ALL {
        assert!(Code::ALL.iter().any(|code| code.phase() == *phase), "{phase:?} has no row");
    }
}

#[test]
fn texts_are_sentences_with_known_placeholders() {
    let mut seen = HashSet::new();
    for &code in Code::ALL {
        let text = code.text();
        assert!(seen.insert(text), "{code}: another row says the same: {text}");
        assert!(text.starts_with(|c: char| c.is_uppercase() || c == '{'), "{code}: {text}");
        // it follows `FIXED:`
        assert!(code.repair().starts_with(char::is_lowercase), "{code}: {}", code.repair());
        if code.fixer() != Fixer::None {
            // and says what was done, not what is done in which case
            let conditions = [" if ", " else", "otherwise", "; without", ", or "];
            assert!(!conditions.iter().any(|word| code.repair().contains(word)), "{code}: {}", code.repair());
        }
        for sentence in [text, code.repair()] {
            assert!(sentence.ends_with('.'), "{code}: no full stop: {sentence}");
            // the Markdown document shows it in a table
            assert!(!sentence.contains(['|', '\n']), "{code}: {sentence}");
        }
        for placeholder in placeholders(text) {
            assert!(PLACEHOLDERS.contains(&placeholder), "{code}: unknown placeholder {placeholder}");
        }
        assert!(!code.follow_ups().contains(&code), "{code} follows itself");
    }
}

/// With all values known, the text has neither `?` nor placeholders.
#[test]
fn every_text_can_be_filled_in() {
    for &code in Code::ALL {
        let text = sentence(&everything(code));
        assert!(!text.contains(['{', '}', '?']), "{code}: {text}");
    }
    let hex = sentence(&Problem::new(Code::GroupChecksumWrong).group(GroupNo(3)).found(0xbe4b).expected(0x1a));
    assert_eq!(hex, "Group 3: descriptor checksum is 0xbe4b, should be 0x1a; the kernel will not mount.");
    let octal = sentence(&Problem::new(Code::InodeModeWrong).inode(InodeNo(12)).found(0o170_644));
    assert_eq!(octal, "Inode 12: mode 0170644 is invalid.");
}

/// Without values, the text is still a sentence, without a question mark for each value.
#[test]
fn every_text_can_do_without_its_values() {
    for &code in Code::ALL {
        let text = sentence(&Problem::new(code));
        assert!(!text.contains(['{', '}', '?']), "{code}: {text}");
        let values = placeholders(code.text()).len();
        assert_eq!(text.matches(UNKNOWN).count(), values, "{code}: {text}");
    }
}

#[test]
fn types_and_dates_are_words() {
    let entry = Problem::new(Code::EntryTypeWrong).dir(InodeNo(2)).inode(InodeNo(803)).name("x").found(1).expected(2);
    let said = "Entry 'x' in directory 2 (inode 803): file type is regular file, should be directory.";
    assert_eq!(sentence(&entry), said);
    assert!(sentence(&entry.found(9)).contains("file type is 9 (invalid), should be"));
    for (seconds, date) in [
        (0, "1970-01-01 00:00:00 UTC"),
        (951_782_399, "2000-02-28 23:59:59 UTC"),
        (951_782_400, "2000-02-29 00:00:00 UTC"),
        (1_796_196_087, "2026-12-02 07:21:27 UTC"),
        (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        (1 << 34, "2514-05-30 01:53:04 UTC"),
    ] {
        let said = sentence(&Problem::new(Code::LastMountInFuture).found(seconds));
        assert_eq!(said, format!("Superblock: last mount time {date} is in the future."));
    }
    // the superblock's dates have 40 bits, the report's fields 64
    assert!(!sentence(&Problem::new(Code::LastMountInFuture).found(u64::MAX)).is_empty());
}

fn everything(code: Code) -> Problem {
    Problem::new(code)
        .inode(InodeNo(12))
        .dir(InodeNo(2))
        .block(FsBlock(1000))
        .file_block(FileBlock(7))
        .group(GroupNo(3))
        .found(4)
        .expected(5)
        .count(6)
        .name(b"name")
        .path("/a/name")
}

#[test]
fn names_cannot_forge_lines() {
    assert_eq!(escape("größe it's".as_bytes()), "größe it's");
    assert_eq!(escape(b"a\nb\x1b[2J\xff\\"), r"a\nb\u{1b}[2J\xff\\");
    let long = Problem::new(Code::EntryNameIllegal).name([b'x'; 4096]);
    assert_eq!(long.name.map(|name| name.len()), Some(255));
}

/// docs/PROBLEMS.md is the table; with `EXTANT_BLESS=1` in the environment the test writes it.
#[test]
fn the_document_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/PROBLEMS.md");
    if std::env::var_os("EXTANT_BLESS").is_some() {
        std::fs::write(&path, markdown()).expect("docs/PROBLEMS.md can be written");
    }
    let on_disk = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        on_disk == markdown(),
        "docs/PROBLEMS.md differs from the table; run: EXTANT_BLESS=1 cargo test -p extant-check --test table"
    );
}

/// The exit statuses of e2fsck 1.47 observed under `-n` on volumes with this one problem.
#[test]
fn severity_is_what_e2fsck_was_seen_to_do() {
    use Code::*;
    for code in [
        UuidMissing,
        HurdHasFileType,
        OrphanPending,
        ResizeInodeBad,
        LostAndFoundMissing,
        FreeBlockCountWrong,
        FreeInodeCountWrong,
        EntryTypeMissing,
    ] {
        assert_eq!(code.severity(), Severity::Advice, "{code:?}");
    }
    for code in [SuperblockTryBackup, FirstMetaGroupTooLarge, MinExtraSizeWrong, WantExtraSizeWrong] {
        assert_eq!(code.severity(), Severity::Unmountable, "{code:?}");
    }
    for code in [
        InodeSizeWrong,
        ExtentLengthZero,
        ExtentBlockChecksumWrong,
        XattrBlockHighNotZero,
        DirectoryBlockChecksumWrong,
        HtreeNodeChecksumWrong,
        DirectoryBlockCorrupt,
        EntryNameBadEncoding,
        InodeUnattached,
        SymlinkInvalid,
    ] {
        assert_eq!(code.severity(), Severity::Error, "{code:?}");
    }
}

fn report(found: impl IntoIterator<Item = Problem>) -> Report {
    let problems = Problems::default();
    found.into_iter().for_each(|problem| problems.report(problem));
    let counts = Counts {
        inodes: 11,
        inodes_total: 2048,
        directories: 2,
        fragmented_files: 1,
        blocks: 1618,
        blocks_total: 8192,
        ..Counts::default()
    };
    Report::new("v.img".into(), "ext4".into(), &problems.finish(), Scan::default(), counts)
}

fn text(report: &Report) -> String {
    let mut out = Vec::new();
    write_text(report, &mut out).expect("memory takes all");
    String::from_utf8(out).expect("the report is UTF-8")
}

#[test]
fn exit_status_follows_the_highest_severity() {
    let of = |codes: &[Code]| report(codes.iter().map(|&code| Problem::new(code))).exit;
    assert_eq!(of(&[]), 0);
    assert_eq!(of(&[Code::UuidMissing]), 0);
    assert_eq!(of(&[Code::LinkCountWrong, Code::UuidMissing]), 4);
    assert_eq!(of(&[Code::FirstMetaGroupTooLarge]), 0);
    assert!(!report([Problem::new(Code::FirstMetaGroupTooLarge)]).clean);
    assert_eq!(of(&[Code::LinkCountWrong, Code::SuperblockFieldWrong]), 12);
}

#[test]
fn text_for_people_and_scripts() {
    let clean = text(&report([]));
    for pass in 1..=5 {
        assert!(clean.contains(&format!("Pass {pass}: ")), "{clean}");
    }
    assert!(!clean.contains("Pass 0") && !clean.contains("WARNING"), "{clean}");
    // 1 of 11, as e2fsck rounds it
    assert!(clean.contains("\nv.img: 11/2048 files (9.1% non-contiguous), 1618/8192 blocks\n"), "{clean}");
    assert!(clean.ends_with("v.img: No errors found.\n"), "{clean}");

    let link = Problem::new(Code::LinkCountWrong).inode(InodeNo(12)).found(2).expected(1).path("/a\nb");
    let broken = text(&report([link, Problem::new(Code::UuidMissing)]));
    assert!(broken.contains("Inode 12: link count is 2, should be 1. Path: /a\\nb\n"), "{broken}");
    assert!(broken.contains("\nv.img: ********** WARNING: Filesystem still has errors **********\n"), "{broken}");
    assert!(broken.contains("\nnote: ") && !broken.contains("note: Inode 12"), "{broken}");
    assert!(broken.ends_with("v.img: 1 error and 1 note found, none repaired; run with -fp to repair.\n"), "{broken}");
    let order = ["Pass 0", "no UUID", "Pass 1", "Pass 4", "Inode 12", "Pass 5", "WARNING", "files ("];
    assert!(order.map(|part| broken.find(part)).is_sorted(), "{broken}");
    assert!(order.iter().all(|part| broken.contains(part)), "{broken}");
}

/// A verdict ends with the next step.
#[test]
fn verdicts() {
    let link = || Problem::new(Code::LinkCountWrong).inode(InodeNo(12));
    let note = || Problem::new(Code::UuidMissing);
    let repaired = |clean: bool, problems: Vec<Problem>| Report { repaired: true, clean, ..report(problems) };
    for (report, said) in [
        (report([]), "No errors found."),
        (report([note()]), "No errors found; 1 note."),
        (report([link(), note()]), "1 error and 1 note found, none repaired; run with -fp to repair."),
        (
            Report { mounted: true, ..report([link(), link()]) },
            "2 errors found, none repaired; unmount it first, then run `extant check -fp`.",
        ),
        (
            report([Problem::new(Code::ReadError)]),
            "1 error found, none repaired; what is left cannot be repaired: copy the data off.",
        ),
        (
            Report {
                format: "extant".into(),
                capabilities: Capabilities::NATIVE,
                ..report([Problem::new(Code::NativeStructureWrong)])
            },
            "1 error found, none repaired; damage of a native volume cannot be repaired: copy the data off, or roll \
             back to a snapshot without errors, if there is one.",
        ),
        (
            Report {
                format: "extant".into(),
                capabilities: Capabilities::NATIVE,
                ..report([Problem::new(Code::InodeUnattached)])
            },
            "1 error found, none repaired; first copy off what can be read, then run -fy: it returns to the previous \
             generation if that is intact.",
        ),
        (
            Report {
                format: "extant".into(),
                capabilities: Capabilities::NATIVE,
                asked: Repair::All,
                ..report([Problem::new(Code::InodeUnattached)])
            },
            "1 error found, none repaired; damage of a native volume cannot be repaired: copy the data off, or roll \
             back to a snapshot without errors, if there is one.",
        ),
        (
            report([Problem::new(Code::SuperblockTryBackup), Problem::new(Code::LinkCountWrong)]),
            "2 errors found, none repaired; the volume cannot be mounted until it is repaired; run with -fy to repair.",
        ),
        (
            report([Problem::new(Code::GroupChecksumWrong)]),
            "1 error found, none repaired; the volume cannot be mounted until it is repaired; run with -fp to repair.",
        ),
        (
            Report { asked: Repair::Safe, ..report([Problem::new(Code::InodeUnattached)]) },
            "1 error found, none repaired; run with -fy to repair.",
        ),
        (
            report([
                Problem::new(Code::InodeUnattached).inode(InodeNo(13)),
                Problem::new(Code::InodeUnattachedEmpty).inode(InodeNo(13)),
            ]),
            "1 error and 1 note found, none repaired; run with -fp to repair.",
        ),
        (
            report([
                Problem::new(Code::InodeUnattached).inode(InodeNo(14)),
                Problem::new(Code::InodeUnattachedEmpty).inode(InodeNo(13)),
            ]),
            "1 error and 1 note found, none repaired; run with -fy to repair.",
        ),
        (
            report([Problem::new(Code::JournalSharedUnsupported)]),
            "Check aborted after 1 error; nothing was changed; run with -fp to repair.",
        ),
        (
            report([Problem::new(Code::JournalDeviceNotFound).found(0).expected(0)]),
            "Check aborted after 1 error; nothing was changed; run with -fy to repair.",
        ),
        (
            report([Problem::new(Code::JournalDeviceNotFound).found(5)]),
            "Check aborted after 1 error; nothing was changed; use e2fsck -j for a journal on another device.",
        ),
        (
            report([Problem::new(Code::SuperblockFieldWrong)]),
            "Check aborted after 1 error; nothing was changed; set the field with tune2fs -m 5 v.img.",
        ),
        (
            Report { repaired: true, ..report([Problem::new(Code::SuperblockFieldWrong)]) },
            "Check aborted after 1 error; only an interrupted repair was completed; set the field with tune2fs -m 5 v.img.",
        ),
        (
            Report { clean: false, exit: 8, not_looked_at: vec!["the snapshot s0".into()], ..report([]) },
            "No errors found, but the check is incomplete. Not checked: the snapshot s0. \
             Unmount it first, then run `extant check`.",
        ),
        (repaired(true, vec![link()]), "Repaired: 1 error fixed; no errors remain."),
        (repaired(true, vec![link(), note()]), "Repaired: 1 error fixed; no errors remain; 1 note."),
        (repaired(true, Vec::new()), "No errors found; the \"not cleanly unmounted\" flag was cleared."),
        (repaired(false, vec![link(), link()]), "2 errors found, not all repaired; run with -fp to repair."),
    ] {
        assert_eq!(verdict(&report), said);
    }
}

/// The next step for a native volume names what works: a repair, a snapshot without errors, or a snapshot that can be
/// mounted.
#[test]
fn verdicts_on_damaged_native_volumes() {
    let state = NativeState { snapshots: 2, remedy: Some(Remedy::Nothing), ..NativeState::default() };
    let name = || Some("tuesday".to_owned());
    for (state, said) in [
        (NativeState { remedy: Some(Remedy::Safe), ..state.clone() }, "run with -fp to repair."),
        (
            NativeState { remedy: Some(Remedy::Generation(5)), unreadable: true, ..state.clone() },
            "run with -fy to repair: it returns to generation 5, and later changes are lost.",
        ),
        (
            NativeState { intact: name(), ..state.clone() },
            "roll back to the snapshot tuesday, which has no errors; changes since then are lost. \
             Where that is refused, restore the data from a backup.",
        ),
        (
            NativeState { intact: Some("before, it's".to_owned()), ..state.clone() },
            r"'before, it'\''s', which has no errors; changes since then are lost. Where that is refused, restore the data from a backup.",
        ),
        (
            NativeState { unreadable: true, mountable: Some("before, it's".to_owned()), ..state.clone() },
            r"which can be mounted with `extant mount -o ro,snapshot='before\, it'\''s'`.",
        ),
        (
            NativeState { unordered: true, intact: Some("a b".to_owned()), ..state.clone() },
            "copy the data off; the snapshot 'a b' has no errors: `extant mount -o ro,snapshot='a b'`.",
        ),
        (state.clone(), "all its snapshots have errors as well, so remove the damaged files, or copy the data off."),
        (NativeState { snapshots: 0, ..state.clone() }, "so remove the damaged files, or copy the data off."),
        (
            NativeState { unreadable: true, mountable: name(), ..state.clone() },
            "which can be mounted with `extant mount -o ro,snapshot=tuesday`.",
        ),
        (NativeState { unreadable: true, ..state.clone() }, "reads, and restore the rest from a backup."),
        (
            NativeState { truncated: Some((786_432, 1_048_576)), ..state },
            "get a complete copy of it: the image has 786432 blocks, the volume 1048576.",
        ),
    ] {
        let damage = report([Problem::new(Code::NativeStructureWrong)]);
        let verdict = verdict(&Report {
            format: "extant".into(),
            capabilities: Capabilities::NATIVE,
            native: Some(state),
            ..damage
        });
        assert!(verdict.starts_with("1 error found, none repaired; ") && verdict.ends_with(said), "{verdict}");
    }
}

/// The next step where only snapshots are damaged deletes these, by name. A rollback would lose later changes and repair
/// nothing.
#[test]
fn verdicts_where_only_snapshots_are_damaged() {
    let damage = || Report {
        format: "extant".into(),
        capabilities: Capabilities::NATIVE,
        ..report([Problem::new(Code::NativeStructureWrong)])
    };
    let state = NativeState {
        live_is_intact: true,
        snapshots: 3,
        damaged: vec!["dam".into(), "a b".into()],
        intact: Some("good".into()),
        remedy: Some(Remedy::Nothing),
        ..NativeState::default()
    };
    let many = (0..25).map(|n| format!("s{n}")).collect();
    for (state, place, mounted, said) in [
        (state.clone(), None, false, "delete the damaged snapshots with `extant snapshot delete v.img dam 'a b'`."),
        (
            NativeState { remedy: None, ..state.clone() },
            None,
            true,
            "unmount it first, then delete the damaged snapshots with `extant snapshot delete v.img dam 'a b'`.",
        ),
        (
            NativeState { remedy: None, ..state.clone() },
            Some("/mnt".to_owned()),
            true,
            ": delete the damaged snapshots with `extant snapshot delete /mnt dam 'a b'`.",
        ),
        (
            NativeState { damaged: vec!["-x".into()], stuck: true, ..state.clone() },
            None,
            false,
            "`extant snapshot delete -- v.img -x`; if that fails, as structures that it reads are damaged, copy the \
             current files off.",
        ),
        (
            NativeState { damaged: many, ..state.clone() },
            None,
            false,
            " s19`, and then 5 more, which a further check names.",
        ),
        (
            NativeState { remedy: Some(Remedy::Superblock), ..state },
            None,
            false,
            "with `extant snapshot delete v.img dam 'a b'`.",
        ),
    ] {
        for asked in [Repair::No, Repair::All] {
            let said_now =
                verdict(&Report { native: Some(state.clone()), place: place.clone(), mounted, asked, ..damage() });
            assert!(said_now.contains("only snapshots have errors, the current files have none"), "{said_now}");
            assert!(said_now.ends_with(said) && !said_now.contains("roll back"), "{said_now}");
        }
    }
}

/// The step for a native volume in use is the one that a check after the unmount would name: a return to the previous
/// generation only where the newest cannot be read.
#[test]
fn verdicts_on_native_volumes_in_use_name_no_other_repair() {
    let intact = NativeState { snapshots: 1, intact: Some("s1".into()), ..NativeState::default() };
    let said = |codes: &[Code], state: &NativeState| {
        let found = report(codes.iter().map(|code| Problem::new(*code)));
        verdict(&Report {
            format: "extant".into(),
            capabilities: Capabilities::NATIVE,
            mounted: true,
            native: Some(state.clone()),
            ..found
        })
    };
    for codes in [&[Code::InodeUnattached, Code::NativeStructureWrong][..], &[Code::LinkCountWrong]] {
        let said = said(codes, &intact);
        assert!(said.contains("unmount it first, then roll back to the snapshot s1"), "{said}");
        assert!(!said.contains("check -f") && !said.contains("previous generation"), "{said}");
    }
    let both = said(&[Code::NativeSuperblockDamaged, Code::LinkCountWrong], &intact);
    let first = "unmount it first, then run `extant check -fy`, but only the superblock; for the other errors: ";
    assert!(both.contains(first), "{both}");
    let superblock = said(&[Code::NativeSuperblockDamaged], &intact);
    assert!(superblock.ends_with("; unmount it first, then run `extant check -fp`."), "{superblock}");
    let unreadable = NativeState { unreadable: true, ..intact };
    let back = said(&[Code::InodeUnattached], &unreadable);
    assert!(back.contains("it returns to the previous generation if that is intact"), "{back}");
}

/// With a chosen superblock, the command that repairs needs it, too, unless it is not needed at all.
#[test]
fn verdicts_with_a_chosen_superblock() {
    for (primary_is_usable, said) in [
        (false, "; run with -fy -b 32768 to repair."),
        (true, "; the primary superblock is usable: omit -b, as only -fy -b 32768 repairs, and replaces the primary."),
    ] {
        let chosen = Some(ChosenSuperblock { block: 32_768, primary_is_usable });
        let verdict = verdict(&Report { chosen, ..report([Problem::new(Code::LinkCountWrong)]) });
        assert!(verdict.ends_with(said), "{verdict}");
    }
}

/// Numbers in texts have a noun in the right form.
#[test]
fn numbers_have_plurals() {
    let sharing = |blocks, files| {
        let problem = Problem::new(Code::FileSharesBlocks).inode(InodeNo(12)).name("/a");
        sentence(&problem.count(blocks).found(files))
    };
    assert_eq!(sharing(1, 1), "Inode 12 has 1 multiply-claimed block, shared with 1 other file: /a.");
    assert_eq!(sharing(3, 2), "Inode 12 has 3 multiply-claimed blocks, shared with 2 other files: /a.");
    let journal = sentence(&Problem::new(Code::JournalNotReplayed).count(1));
    assert!(journal.contains("(1 transaction)"), "{journal}");
}

/// The message for a volume in use recommends to unmount it before a repair, whatever was found.
#[test]
fn verdicts_on_volumes_in_use() {
    let codes = [
        Code::LinkCountWrong,
        Code::InodeUnattached,
        Code::ReadError,
        Code::SuperblockFieldWrong,
        Code::SuperblockTryBackup,
        Code::NativeStructureWrong,
        Code::NativeSuperblockDamaged,
    ];
    for (format, capabilities) in [("ext4", Capabilities::EXT), ("extant", Capabilities::NATIVE)] {
        for code in codes {
            let report = Report { mounted: true, format: format.into(), capabilities, ..report([Problem::new(code)]) };
            let said = verdict(&report);
            let repair = ["-fp", "-fy", "to repair", "roll back", "extant check"];
            let names_one = repair.iter().any(|word| said.contains(word));
            assert!(!names_one || said.contains("unmount it first, then "), "{format}, {code:?}: {said}");
            assert!(format == "ext4" || !said.contains("-b"), "{code:?}: {said}");
        }
    }
    let damaged = Report {
        format: "extant".into(),
        capabilities: Capabilities::NATIVE,
        ..report([Problem::new(Code::NativeSuperblockDamaged)])
    };
    assert!(verdict(&damaged).ends_with("; run with -fp to repair."), "{}", verdict(&damaged));
    let goes_back = verdict(&Report { goes_back: true, ..damaged.clone() });
    assert!(goes_back.contains("then run -fy: it returns to the previous generation"), "{goes_back}");
    let in_use = verdict(&Report { mounted: true, ..damaged });
    assert!(in_use.ends_with("; unmount it first, then run `extant check -fp`."), "{in_use}");
    let both = report([Problem::new(Code::InodeUnattached), Problem::new(Code::NativeStructureWrong)]);
    let in_use =
        verdict(&Report { mounted: true, format: "extant".into(), capabilities: Capabilities::NATIVE, ..both });
    assert!(in_use.contains("unmount it first, then run `extant check -fy`"), "{in_use}");
}

#[test]
fn json_has_the_documented_fields() {
    let report = report([Problem::new(Code::InodeSizeWrong).inode(InodeNo(12)).found(1).expected(2)]);
    let json = serde_json::to_value(&report).expect("the report serialises");
    assert_eq!(json["device"], "v.img");
    assert_eq!(json["clean"], false);
    assert_eq!(json["exit"], 4);
    let problem = &json["problems"][0];
    assert_eq!(problem["code"], "0x01000c");
    assert_eq!(problem["phase"], "inodes");
    assert_eq!(problem["severity"], "error");
    assert_eq!(problem["inode"], 12);
    assert_eq!(problem["text"], "Inode 12: size is 1, should be 2.");
    for (part, fields) in [
        (problem, &["block", "path", "fixed", "repair"][..]),
        (&json["scan"], &["bytes", "reads", "seeks", "seconds", "estimate_seconds", "peak_rss_bytes"]),
        (&json["counts"], &["inodes", "directories", "blocks"]),
        (&json, &["format"]),
    ] {
        for field in fields {
            assert!(part.get(field).is_some(), "no {field} in {part}");
        }
    }
}

#[test]
fn counts_add_up() {
    let mut sum = Counts { inodes: 1, bytes: u64::MAX, extent_depths: [1, 2, 0, 0, 0, 0], ..Counts::default() };
    sum += &Counts { inodes: 2, bytes: 5, extent_depths: [1, 0, 3, 0, 0, 0], ..Counts::default() };
    assert_eq!((sum.inodes, sum.bytes, sum.extent_depths), (3, u64::MAX, [2, 2, 3, 0, 0, 0]));
}

#[test]
fn problems_not_listed_are_counted() {
    let problems = Problems::new(Limits { total: 100, per_code: 10 });
    for inode in (1..=1000).rev() {
        problems.report(Problem::new(Code::LinkCountWrong).inode(InodeNo(inode)));
    }
    assert_eq!(problems.count(Code::LinkCountWrong), 1000);
    let found = problems.finish();
    assert_eq!(found.count(Severity::Error), 1000);
    assert_eq!(found.problems.len(), 11);
    assert!(found.problems.iter().take(10).map(|problem| problem.inode).eq((1..=10).map(|n| Some(InodeNo(n)))));
    let rest = found.problems.last().map(sentence);
    let said = "990 more 0x040003 LinkCountWrong not listed; the option --max-problems sets the limit.";
    assert_eq!(rest.as_deref(), Some(said));

    let mut report = Report::new("d".to_owned(), "ext4".to_owned(), &found, Scan::default(), Counts::default());
    let number = |report: &Report| -> Vec<_> {
        report.kinds().into_iter().map(|kind| (kind.code, kind.found, kind.listed)).collect()
    };
    // the row that stands for the others is listed, without a heading, and not counted
    assert_eq!(number(&report), [(Code::LinkCountWrong, 1000, 10)]);
    assert_eq!((report.errors, report.advice), (1000, 0));
    let shown = text(&report);
    assert!(shown.contains(&format!("\n{said}\n")) && !shown.contains("Pass 6") && !shown.contains("note"), "{shown}");
    report.list_at_most(4);
    assert_eq!(number(&report), [(Code::LinkCountWrong, 1000, 4)]);
}

#[test]
fn a_repair_is_offered_only_where_one_is_possible() {
    let report = |codes: &[Code]| {
        let problems = Problems::default();
        codes.iter().for_each(|code| problems.report(Problem::new(*code)));
        Report::new("d".to_owned(), "ext4".to_owned(), &problems.finish(), Scan::default(), Counts::default())
    };
    assert!(report(&[Code::LinkCountWrong]).is_repairable());
    assert!(!report(&[Code::NativeStructureWrong]).is_repairable());
    assert!(report(&[Code::NativeStructureWrong, Code::LinkCountWrong]).is_repairable());
    let with = |remedy| {
        let native = Some(NativeState { remedy: Some(remedy), ..NativeState::default() });
        Report { native, ..report(&[Code::LinkCountWrong]) }.is_repairable()
    };
    assert!(with(Remedy::Safe) && !with(Remedy::Nothing));
}

#[test]
fn a_limit_of_each_code_lists_as_many_or_all() {
    for (most, listed) in [(0, 3000), (2500, 2500), (1, 1)] {
        let problems = Problems::new(Limits::of_each(most));
        let codes = [Code::LinkCountWrong, Code::InodeSizeWrong, Code::EntryNameIllegal, Code::UuidMissing];
        for code in codes {
            for inode in 1..=3000 {
                problems.report(Problem::new(code).inode(InodeNo(inode)));
            }
        }
        let found = problems.finish();
        let report = Report::new("d".to_owned(), "ext4".to_owned(), &found, Scan::default(), Counts::default());
        let kinds: Vec<_> = report.kinds().into_iter().filter(|kind| kind.code != Code::TooManyProblems).collect();
        assert_eq!(kinds.len(), codes.len());
        assert!(kinds.iter().all(|kind| (kind.found, kind.listed) == (3000, listed)), "{most}: {kinds:?}");
    }
}

fn some_problem() -> impl Strategy<Value = Problem> {
    let code = prop::sample::select(&[
        Code::LinkCountWrong,
        Code::InodeSizeWrong,
        Code::EntryNameIllegal,
        Code::GroupFreeBlockCountWrong,
        Code::UuidMissing,
    ]);
    (code, 1..40u32, 0..3u64, prop::option::of(0..4u32), any::<bool>()).prop_map(
        |(code, inode, block, group, named)| {
            let mut problem = Problem::new(code).inode(InodeNo(inode)).file_block(FileBlock(block));
            problem.group = group.map(GroupNo);
            if named { problem.name(format!("n{block}")).dir(InodeNo(inode % 3 + 2)) } else { problem }
        },
    )
}

proptest! {
    /// The same problems in any order, and from two threads, leave the same findings.
    #[test]
    fn findings_do_not_depend_on_order(
        (problems, shuffled) in prop::collection::vec(some_problem(), 0..300)
            .prop_flat_map(|problems| (Just(problems.clone()), Just(problems).prop_shuffle())),
        total in 1..200usize,
        per_code in 0..80usize,
    ) {
        let limits = Limits { total, per_code };
        let one = Problems::new(limits);
        problems.iter().cloned().for_each(|problem| one.report(problem));
        let two = Problems::new(limits);
        let (left, right) = shuffled.split_at(shuffled.len() / 2);
        std::thread::scope(|scope| {
            for half in [left, right] {
                scope.spawn(|| half.iter().cloned().for_each(|problem| two.report(problem)));
            }
        });
        let (one, two) = (one.finish(), two.finish());
        prop_assert_eq!(&one, &two);

        // nothing is lost from the counts, the list is sorted and bounded
        prop_assert_eq!(one.counts.values().sum::<u64>(), problems.len() as u64);
        prop_assert!(one.problems.is_sorted());
        let codes = one.counts.len();
        let listed = one.problems.iter().filter(|problem| problem.code != Code::TooManyProblems).count();
        prop_assert!(listed <= total.max(codes), "{listed} listed of at most {total}");
        // of each code the smallest are listed
        for &code in one.counts.keys() {
            let mut all: Vec<_> = problems.iter().filter(|problem| problem.code == code).collect();
            all.sort();
            let shown: Vec<_> = one.problems.iter().filter(|problem| problem.code == code).collect();
            prop_assert_eq!(&all[..shown.len()], &shown[..]);
            prop_assert!(!shown.is_empty());
        }
    }
}
