//! Wrong files, wrong arguments, damaged volumes: one sentence, the right exit status, no backtrace.

use crate::common::{exits, extant, fails, plain, prints, ready, sample, text};
use testkit::{Image, cases, damage};

/// A command line for each command that opens a volume, and its exit status on failure.
fn lines(volume: &str) -> Vec<(i32, Vec<&str>)> {
    vec![
        (1, vec!["info", volume]),
        (1, vec!["ls", volume]),
        (1, vec!["tree", volume]),
        (1, vec!["stat", volume, "/"]),
        (1, vec!["cat", volume, "/etc/motd"]),
        (1, vec!["get", volume, "/etc/motd", "/no/such/place/x"]),
        (8, vec!["check", "-fn", volume]),
        (8, vec!["check", "--estimate", volume]),
    ]
}

#[test]
fn wrong_files() {
    let folder = tempfile::tempdir().unwrap();
    let (empty, words) = (folder.path().join("empty"), folder.path().join("words"));
    std::fs::write(&empty, "").unwrap();
    std::fs::write(&words, "these are only words\n".repeat(1000)).unwrap();
    for (path, says) in [
        (text(&folder.path().join("missing")), "no such file"),
        (text(folder.path()), "directory"),
        (text(&empty), "ext2"),
        (text(&words), "ext2"),
        ("mem:1M", "ext2"),
        ("mem:much", "invalid size"),
        ("s3://bucket/volume", "not available in this version"),
    ] {
        for (status, line) in lines(path) {
            let sentence = fails(status, &line);
            let name = path.strip_prefix("mem:much").map_or(path, |_| "much");
            assert!(sentence.contains(says) && sentence.contains(name), "{line:?}: {sentence}");
            assert!(!sentence.contains("os error"), "{line:?}: {sentence}");
        }
    }
}

#[test]
fn a_compressed_file_is_named_as_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("volume.gz");
    std::fs::write(&path, [b"\x1F\x8B\x08".as_slice(), &[7; 8192]].concat()).unwrap();
    for (status, line) in lines(text(&path)) {
        let ran = exits(status, &line);
        assert!(ran.text().contains("compressed with gzip"), "{line:?}: {}", ran.text());
    }
}

#[test]
fn wrong_arguments() {
    for (status, line) in [
        (2, vec!["ls"]),
        (2, vec!["ls", "--no-such-flag", "x"]),
        (2, vec!["cat", "x"]),
        (2, vec!["get", "x", "y"]),
        (2, vec!["tree", "-L", "0", "x"]),
        (2, vec!["stat", "x"]),
        (2, vec!["teapot"]),
        (2, vec!["bench", "write", "--on", "library:ext2:snapshot"]),
        (2, vec!["bench", "kero", "--scale", "0"]),
        (16, vec!["check"]),
        (16, vec!["check", "a", "b"]),
        (16, vec!["check", "-Q", "x"]),
        (16, vec!["check", "-b", "many", "x"]),
        (16, vec!["check", "-C", "bar", "x"]),
        (16, vec!["check", "--threads", "0", "x"]),
        (16, vec!["check", "-B", "999", "x"]),
        (16, vec!["check", "-B", "131072", "x"]),
        (2, vec!["ls", "-B", "512", "x"]),
    ] {
        let ran = exits(status, &line);
        assert!(String::from_utf8_lossy(&ran.stderr).starts_with("error: "), "{line:?}: {}", ran.text());
    }
}

#[test]
fn errors_are_json_where_json_was_asked_for() {
    let missing = "/no/such/volume";
    for (status, line) in [
        (8, vec!["check", "--json", missing]),
        (8, vec!["check", "-fp", "--json", missing]),
        (8, vec!["check", "--online", "--json", missing]),
        (8, vec!["check", "--estimate", "--json", missing]),
        (1, vec!["info", "--json", missing]),
        (1, vec!["ls", "--json", missing]),
        (1, vec!["tree", "--json", missing]),
        (1, vec!["stat", "--json", missing, "/"]),
        (1, vec!["frag", "--json", missing]),
        (1, vec!["mkfs", "--json", missing]),
        (1, vec!["put", "--json", missing, "/dev/null", "/"]),
        (1, vec!["rm", "--json", missing, "/f"]),
        (1, vec!["age", "--json", missing]),
        (1, vec!["snapshot", "list", "--json", missing]),
        (1, vec!["kero", "stat", "--json", missing]),
        (1, vec!["damage", "--json", missing, "LinkCountWrong"]),
        (2, vec!["crash", "--json", "--mode", "journal", "--size", "1"]),
        (2, vec!["crash", "--json", "--mode", "journal", "--format", "ext2"]),
        (2, vec!["crash", "--json", "--mode", "none", "--format", "extant"]),
        (2, vec!["crash", "--json", "--mode", "journal", "--ops", "versions"]),
        (2, vec!["mkfs", "--json", "-b", "3000", missing, "64M"]),
        (2, vec!["mkfs", "--json", "-I", "100", missing, "64M"]),
        (2, vec!["mkfs", "--json", "-m", "60", missing, "64M"]),
        (2, vec!["mkfs", "--json", "-L", "a label that is too long", missing, "64M"]),
        (2, vec!["bench", "check", "--json"]),
        (2, vec!["bench", "write", "--json", "--on", "library:ext4", "--set", "dbench"]),
    ] {
        let ran = exits(status, &line);
        let said = String::from_utf8(ran.stderr).unwrap();
        let error: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap_or_else(|e| panic!("{line:?}: {e}"));
        assert_eq!(said, format!("extant: {}\n", error["error"].as_str().unwrap()), "{line:?}");
        assert_eq!(error["exit"], status, "{line:?}");
    }
    let report: serde_json::Value = serde_json::from_slice(&extant(&["check", "--json", missing]).stdout).unwrap();
    assert_eq!((&report["clean"], &report["device"]), (&false.into(), &missing.into()), "as a report has them");
    // also for an invalid command line
    let ran = exits(16, &["check", "-B", "999", "--json", "x"]);
    let error: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
    let words = "invalid value '999' for '--block-size <BYTES>': a block size is a power of two from 1024 to 65536";
    assert_eq!((&error["error"], &error["exit"]), (&words.into(), &16.into()));
    assert_eq!(exits(2, &["ls"]).stdout, b"");
}

#[test]
fn a_copy_of_the_superblock_opens_what_the_first_does_not() {
    if !ready() {
        return;
    }
    let image = plain();
    let volume = text(image.path());
    let mut bytes = image.bytes();
    bytes[1024..2048].fill(0);
    image.set_bytes(&bytes);
    let sentence = fails(1, &["ls", volume]);
    assert!(sentence.contains("-b 8193"), "{sentence}");
    let ran = exits(1, &["ls", "-b", "5", volume]);
    assert!(ran.text().contains("superblock") && !ran.text().contains("-b 8193"), "{}", ran.text());
    // a volume opened with one cannot be written
    for line in [&["rm", volume, "/x"][..], &["put", volume, "/etc/passwd", "/x"], &["age", volume]] {
        let sentence = fails(1, line);
        assert!(sentence.ends_with(&format!("if it is an ext volume, run `extant check -fy {volume}`")), "{sentence}");
    }
}

#[test]
fn commands_that_write_have_no_options_for_reading_a_damaged_volume() {
    for command in [&["rm"][..], &["put"], &["age"], &["snapshot", "create"], &["snapshot", "list"]] {
        let help = prints(&[command, &["--help"]].concat());
        assert!(!help.contains("--no-replay") && !help.contains("--superblock"), "{help}");
    }
    exits(2, &["rm", "-b", "8193", "x", "/x"]);
}

#[test]
fn a_device_of_zeros_has_no_backup_superblock_to_try() {
    let folder = tempfile::tempdir().unwrap();
    let zeros = folder.path().join("zeros");
    std::fs::File::create(&zeros).unwrap().set_len(8 << 20).unwrap();
    let sentence = fails(8, &["check", "-fn", text(&zeros)]);
    assert!(sentence.contains("all zeros at its beginning"), "{sentence}");
    for line in [&["ls", text(&zeros)][..], &["info", text(&zeros)], &["rm", text(&zeros), "/x"]] {
        assert_eq!(fails(1, line), sentence);
    }
}

#[test]
fn a_copy_that_is_whole() {
    if !ready() {
        return;
    }
    // two groups, so that there is a backup superblock
    let image = Image::mke2fs(&["-t", "ext4", "-b", "1024", "-L", "copied"], 16 << 20).build();
    let volume = text(image.path());
    let mut bytes = image.bytes();
    bytes[1024..2048].fill(0);
    image.set_bytes(&bytes);
    for args in [&["-b", "8193"][..], &["-b", "8193", "-B", "1024"]] {
        let line = [&["ls"][..], args, &[volume]].concat();
        let ran = exits(0, &line);
        assert_eq!(ran.stdout, b"lost+found\n");
        assert!(
            String::from_utf8_lossy(&ran.stderr).contains("copy of the superblock in block 8193"),
            "{}",
            ran.text()
        );
    }
    assert!(exits(0, &["info", "-b", "8193", volume]).text().contains("copied"));
    let list: serde_json::Value =
        serde_json::from_slice(&exits(0, &["ls", "--json", "-b", "8193", volume]).stdout).unwrap();
    let warning = list["warnings"][0].as_str().unwrap();
    assert!(warning.contains("copy of the superblock in block 8193"), "{warning}");
    // nor is the volume taken for an unformatted device where all of its beginning is zeros
    bytes[..100 << 10].fill(0);
    image.set_bytes(&bytes);
    assert!(fails(1, &["ls", volume]).contains("-b 8193"));
}

#[test]
fn a_journal_that_holds_something() {
    if !ready() {
        return;
    }
    let image = plain();
    let volume = text(image.path());
    image.debugfs(&["feature needs_recovery"]);
    let ran = exits(0, &["ls", "--no-replay", volume]);
    assert_eq!(String::from_utf8_lossy(&ran.stderr), "");
    // the flag alone does not put anything into the journal
    assert!(exits(0, &["info", volume]).text().contains("not unmounted, journal empty"));
    let content = image.beside("content");
    std::fs::write(&content, vec![1; 4096]).unwrap();
    image.debugfs(&["feature -needs_recovery", "jo", &format!("jw -b 1500 {}", text(&content)), "jc"]);
    assert!(exits(0, &["info", volume]).text().contains("not unmounted, journal not empty"));
}

#[test]
fn damaged_volumes_never_end_in_a_backtrace() {
    if !ready() {
        return;
    }
    let sample = sample();
    let intact = sample.image.bytes();
    let ranges = damage::metadata_ranges(sample.image.path(), 1024);
    let damager = damage::Damager::within(1024, ranges);
    let folder = tempfile::tempdir().unwrap();
    for case in cases("cli damage", 12) {
        let mut rng = case.rng();
        let mut bytes = intact.clone();
        for _ in 0..rng.between(1, 12) {
            damager.any(&mut bytes, &mut rng);
        }
        if rng.chance(20) {
            damage::truncate(&mut bytes, &mut rng);
        }
        let image = Image::from_bytes(&bytes);
        let volume = text(image.path());
        let dest = tempfile::tempdir_in(&folder).unwrap();
        for line in [
            vec!["info", "-g", volume],
            vec!["ls", "-lR", volume],
            vec!["tree", "--json", volume],
            vec!["stat", "--blocks", volume, "/wide"],
            vec!["get", "-r", volume, "/", text(dest.path())],
            vec!["check", "-fn", volume],
        ] {
            let ran = extant(&line);
            let allowed: &[i32] = if line[0] == "check" { &[0, 4, 8, 12] } else { &[0, 1] };
            assert!(ran.exit.is_some_and(|exit| allowed.contains(&exit)), "{line:?}: {:?} {}", ran.exit, ran.text());
            assert!(!ran.text().contains("panicked"), "{line:?}: {}", ran.text());
        }
    }
}
