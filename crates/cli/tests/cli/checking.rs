//! Tests of `extant check`.

use crate::common::{EXTANT, command, exits, fails, json, plain, prints, ready, sample, text};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::Read;
use std::process::{Command, Stdio};
use testkit::tools::{LIMIT, must, run_with};
use testkit::{Image, oracle};

/// A volume with errors that e2fsck also finds.
fn damaged() -> Image {
    let image = plain();
    image.debugfs(&["set_inode_field /etc/motd links_count 7"]);
    image
}

#[test]
fn undamaged_volumes() {
    if !ready() {
        return;
    }
    let sample = sample();
    let text = prints(&["check", "-fn", sample.path()]);
    assert!(text.contains("Pass 1: ") && text.contains("No errors found"), "{text}");
    let report = json(&["check", "-fn", "--json", sample.path()]);
    assert_eq!((&report["clean"], &report["exit"], &report["skipped"]), (&true.into(), &0.into(), &false.into()));
    assert_eq!((&report["device"], &report["format"]), (&sample.path().into(), &"ext4".into()));
    assert_eq!(report["problems"].as_array().unwrap().len(), 0);
    for key in ["bytes", "reads", "seeks", "seconds", "estimate_seconds", "peak_rss_bytes"] {
        assert!(report["scan"].get(key).is_some(), "{key}");
    }
    assert!(report["counts"]["inodes"].as_u64().unwrap() > 100);
}

#[test]
fn a_volume_that_was_left_clean_is_taken_at_its_word() {
    if !ready() {
        return;
    }
    // e2fsck uses the label as the name of a volume
    let image = Image::mke2fs(&["-t", "ext4"], 8 << 20).build();
    let volume = text(image.path());
    // the exact words of e2fsck, since scripts parse them
    let theirs = must("e2fsck", &["-n", volume]).stdout;
    let ours = prints(&["check", "-n", volume]);
    assert_eq!(ours.as_bytes(), theirs);
    assert_eq!(prints(&["check", volume]), ours);
    let report = json(&["check", "--json", volume]);
    assert_eq!((&report["clean"], &report["skipped"]), (&true.into(), &true.into()));
    assert_eq!(report["counts"]["inodes_total"], json(&["info", "--json", volume])["space"]["inodes"]);
    // whatever makes e2fsck check makes Extant check
    for change in ["set_super_value state 0", "set_super_value state 3", "set_super_value last_orphan 99999"] {
        let image = plain();
        image.debugfs(&[change]);
        let ran = exits_with_any(&["check", "-n", text(image.path())]);
        assert!(ran.contains("Pass 1: "), "{change}: {ran}");
    }
}

/// Files that were deleted while open are freed, and nothing else is checked, as with e2fsck.
#[test]
fn orphans_of_a_volume_that_was_left_clean_are_freed() {
    if !ready() {
        return;
    }
    let image = Image::mke2fs(&["-t", "ext2", "-b", "1024"], 8 << 20).debugfs(&["write /etc/passwd a"]).build();
    image.debugfs(&["unlink a", "sif <12> links_count 0", "set_super_value last_orphan 12"]);
    let (volume, before) = (text(image.path()), image.bytes());
    let ran = exits(0, &["check", "-n", volume]).text();
    assert!(!ran.contains("Pass 1") && image.bytes() == before, "{ran}");
    let ran = exits(0, &["check", "-p", volume]).text();
    assert!(ran.contains("freed 1 file of the orphan list") && !ran.contains("Pass 1"), "{ran}");
    assert!(ran.contains("clean"), "{ran}");
    assert!(oracle::e2fsck(image.path()).clean);
}

fn exits_with_any(args: &[&str]) -> String {
    run_with(&mut command(args), b"", LIMIT).text()
}

#[test]
fn errors_are_found_and_reported() {
    if !ready() {
        return;
    }
    let image = damaged();
    let volume = text(image.path());
    assert_eq!(oracle::e2fsck(image.path()).exit, Some(4));
    let before = image.bytes();
    let ran = exits(4, &["check", "-fn", volume]);
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(said.contains("WARNING: Filesystem still has errors"), "{said}");
    let ran = exits(4, &["check", "-fn", "--json", volume]);
    let report: Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!((&report["clean"], &report["exit"]), (&false.into(), &4.into()));
    let problems = report["problems"].as_array().unwrap();
    assert!(!problems.is_empty());
    for problem in problems {
        for key in ["code", "phase", "severity", "inode", "block", "path", "text", "fixed"] {
            assert!(problem.get(key).is_some(), "{key}: {problem}");
        }
        assert!(said.contains(problem["text"].as_str().unwrap()), "{problem}: {said}");
    }
    let ran = exits(4, &["check", "-fnv", volume]);
    assert!(ran.text().contains("regular files") && ran.text().contains(" seeks) in "), "{}", ran.text());
    assert_eq!(image.bytes(), before, "a check changes nothing");
}

#[test]
fn errors_are_repaired_and_reported() {
    if !ready() {
        return;
    }
    let image = damaged();
    let volume = text(image.path());
    let before = image.bytes();
    let ran = exits(4, &["check", "-f", volume]);
    assert!(String::from_utf8_lossy(&ran.stderr).contains("read-only check"), "{}", ran.text());
    assert_eq!(image.bytes(), before);
    let said = String::from_utf8(exits(1, &["check", "-y", "-f", volume]).stdout).unwrap();
    for part in [
        "***** FILE SYSTEM WAS MODIFIED *****",
        "FIXED: count corrected.",
        "Path: /etc/motd",
        "fixed; no errors remain.",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(oracle::e2fsck(image.path()).clean);
    assert!(prints(&["check", "-fn", volume]).contains("No errors found"));
    // again, with nothing to do
    assert!(!prints(&["check", "-fy", volume]).contains("MODIFIED"));
    let image = damaged();
    let ran = exits(1, &["check", "-fy", "--json", text(image.path())]);
    let report: Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!((&report["clean"], &report["exit"], &report["repaired"]), (&true.into(), &1.into(), &true.into()));
    assert!(report["problems"].as_array().unwrap().iter().all(|problem| problem["fixed"] == true), "{report}");
    assert!(report["problems"].as_array().unwrap().iter().any(|p| p["repair"] == "count corrected."), "{report}");
    let image = damaged();
    let ran = exits(4, &["check", "-fn", "--json", text(image.path())]);
    let report: Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert!(report["problems"].as_array().unwrap().iter().all(|p| p["repair"].is_null()), "{report}");
}

/// With a block size that is not the volume's, the offset of -b is often beyond the end of the device.
#[test]
fn a_wrong_backup_superblock_is_reported_for_the_offset_that_exists() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("volume");
    let image = text(&image);
    prints(&["mkfs", "-q", "-t", "ext4", "-b", "1024", image, "64M"]);
    for block in ["8194", "20000", "32768"] {
        let ran = exits(8, &["check", "-fn", "-b", block, image]);
        assert!(ran.text().contains("the superblock's magic number is missing"), "{block}: {}", ran.text());
        let said = fails(1, &["info", "-b", block, image]);
        assert!(said.contains("no superblock magic"), "{block}: {said}");
    }
    for block in ["8193", "16387"] {
        let ran = exits(8, &["check", "-fn", "-b", block, "-B", "4096", image]);
        let ends = ran.text().contains("the device ends before the superblock does");
        assert_eq!(ends, block == "16387", "{block}: {}", ran.text());
    }
    let ran = exits(8, &["check", "-fn", "-b", "99999999", image]);
    assert!(ran.text().contains("the device ends before the superblock does"), "{}", ran.text());
    assert!(fails(1, &["info", "-b", "99999999", image]).contains("the device ends before it"));
}

#[test]
fn preening_stops_where_a_person_has_to_decide() {
    if !ready() {
        return;
    }
    // a link count is safe to repair
    for flag in ["-p", "-a"] {
        let image = damaged();
        exits(1, &["check", flag, "-f", text(image.path())]);
        assert!(oracle::e2fsck(image.path()).clean, "{flag}");
    }
    let image = plain();
    image.debugfs(&["unlink /etc"]);
    let before = image.bytes();
    let ran = exits(4, &["check", "-p", "-f", text(image.path())]);
    assert!(ran.text().contains("UNEXPECTED INCONSISTENCY; RUN fsck MANUALLY."), "{}", ran.text());
    assert!(ran.text().contains("not a problem that -p repairs: "), "{}", ran.text());
    // only marked as having errors, so that the next check is not skipped
    let after = image.bytes();
    let other: Vec<usize> = (0..after.len()).filter(|at| after[*at] != before[*at]).collect();
    let in_superblock = |at: &usize| *at == 1024 + 0x3A || (1024 + 1020..2048).contains(at);
    assert!(!other.is_empty() && other.iter().all(in_superblock), "{other:?}");
    for flags in [&["-a"][..], &["-n"]] {
        let ran = exits(4, &[&["check"], flags, &[text(image.path())]].concat());
        assert!(!ran.text().contains(": clean"), "{}", ran.text());
    }
    let said = String::from_utf8(exits(1, &["check", "-fy", text(image.path())]).stdout).unwrap();
    assert!(said.contains("connected to lost+found."), "{said}");
    assert!(oracle::e2fsck(image.path()).clean);
}

/// An interrupted repair is completed by `-p` and `-y`, which report it; where its log is damaged, that is reported
/// until one of them clears the reference to the log. Both also on a volume that is marked clean.
#[test]
fn an_interrupted_repair_is_reported() {
    if !ready() {
        return;
    }
    let interrupted = |kind: &str| {
        let image = plain();
        prints(&["damage", text(image.path()), kind]);
        image
    };
    for (kind, exit, found, done) in [
        ("RepairUnfinished", 4, "An earlier repair was interrupted;", "FIXED: repair completed."),
        ("RepairLogDamaged", 0, "its redo log is damaged", "FIXED: reference to the log cleared."),
    ] {
        for flag in ["-p", "-y"] {
            let image = interrupted(kind);
            let volume = text(image.path());
            let said = exits(exit, &["check", "-n", volume]).text();
            assert!(said.contains(found) && !said.contains("FIXED"), "{said}");
            let said = exits(1, &["check", flag, volume]).text();
            assert!(said.contains(found) && said.contains(done), "{flag}: {said}");
            let said = prints(&["check", "-fn", volume]);
            assert!(!said.contains("repair was interrupted"), "{flag}: {said}");
            assert!(oracle::e2fsck(image.path()).clean, "{flag}");
        }
    }
    let image = interrupted("RepairUnfinished");
    let ran = exits(1, &["check", "-y", "--json", text(image.path())]);
    let report: Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!((&report["clean"], &report["repaired"], &report["errors"]), (&true.into(), &true.into(), &1.into()));
    let problem = &report["problems"][0];
    assert_eq!((&problem["code"], &problem["fixed"]), (&"0x0e0007".into(), &true.into()));
}

#[test]
fn preening_replays_the_journal_and_takes_the_volume_at_its_word() {
    if !ready() {
        return;
    }
    let image = Image::mke2fs(&["-t", "ext4", "-b", "1024", "-J", "size=4"], 16 << 20).build();
    let block = image.beside("block");
    std::fs::write(&block, [b'x'; 1024]).unwrap();
    image.debugfs(&["jo", &format!("jw -b 9000 {}", text(&block)), "jc"]);
    let volume = text(image.path());
    assert!(exits(0, &["check", "-fn", volume]).text().contains("has not been replayed (1 transaction"));
    let ran = exits(0, &["check", "-p", volume]);
    assert!(ran.text().contains("recovered the journal") && ran.text().contains(": clean, "), "{}", ran.text());
    assert!(image.bytes()[9000 * 1024..9001 * 1024].iter().all(|b| *b == b'x'));
    assert!(prints(&["check", "-fn", volume]).contains("No errors found.\n"));
    assert!(oracle::e2fsck(image.path()).clean);
}

/// Warnings and the next step are also in JSON.
#[test]
fn json_has_warnings_and_the_next_step() {
    if !ready() {
        return;
    }
    let image = damaged();
    let (volume, undo) = (text(image.path()).to_owned(), image.beside("undo"));
    let report = |status, args: &[&str]| -> Value {
        let line = [&["check", "--json", "-f"][..], args, &[volume.as_str()]].concat();
        serde_json::from_slice(&exits(status, &line).stdout).expect("JSON")
    };
    let found = report(4, &["-n", "-z", text(&undo)]);
    assert!(found["next"].as_str().is_some_and(|next| next.starts_with("run with -f")), "{}", found["next"]);
    let warning = found["warnings"][0].as_str().unwrap_or_default();
    assert!(warning.ends_with("no undo file is written without -p or -y"), "{warning}");
    report(1, &["-y"]);
    let clean = report(0, &["-n"]);
    assert!(clean.get("next").is_none() && clean.get("warnings").is_none(), "{clean}");
}

#[test]
fn a_repair_can_be_undone() {
    if !ready() {
        return;
    }
    let image = damaged();
    let (volume, undo) = (text(image.path()).to_owned(), image.beside("undo"));
    let before = image.bytes();
    exits(1, &["check", "-fy", "-z", text(&undo), &volume]);
    assert!(image.bytes() != before);
    // an undo file is never overwritten
    let again = damaged();
    let untouched = again.bytes();
    let sentence = fails(8, &["check", "-fy", "-z", text(&undo), text(again.path())]);
    let says = "it already exists, and is not overwritten: specify a new file";
    assert!(sentence.contains("the undo file") && sentence.ends_with(says), "{sentence}");
    let sentence = fails(8, &["check", "-fy", "-z", "/no/such/undo", text(again.path())]);
    assert!(sentence.ends_with("cannot open the undo file '/no/such/undo': no such file or directory"), "{sentence}");
    assert!(again.bytes() == untouched, "nothing is written without an undo file");
    let other = Image::mke2fs(&["-t", "ext4"], 8 << 20).build();
    let sentence = fails(1, &["undo", text(&undo), text(other.path())]);
    assert!(sentence.contains("another device"), "{sentence}");
    // the error names the file and the reason
    let of_volume = format!("the undo file '{volume}': it is not an undo file of this program");
    for (file, device, says) in [
        ("/no/such/undo", volume.as_str(), "cannot open the undo file '/no/such/undo': no such file or directory"),
        (text(&undo), "/no/such/volume", "cannot open the volume /no/such/volume: no such file"),
        (volume.as_str(), volume.as_str(), of_volume.as_str()),
    ] {
        assert_eq!(fails(1, &["undo", file, device]), format!("extant: {says}"));
    }
    assert!(prints(&["undo", text(&undo), &volume]).contains("restored"));
    assert!(image.bytes() == before, "not every byte was restored");
    prints(&["undo", text(&undo), &volume]);
    assert!(image.bytes() == before);
}

/// A check of a volume that is restored in part changes blocks of the repair, and the rest cannot be restored.
#[test]
fn the_help_of_undo_says_what_comes_first_after_an_interruption() {
    let help = prints(&["undo", "--help"]);
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let says = "run it again before anything else writes to the volume, `check -p` at boot included";
    assert!(help.contains(says), "{help}");
}

#[test]
fn one_of_n_p_and_y() {
    for flags in [["-n", "-p"], ["-n", "-y"], ["-p", "-y"]] {
        exits(16, &["check", flags[0], flags[1], "mem:1M"]);
    }
}

#[test]
fn what_cannot_be_checked_is_json_too() {
    let ran = exits(8, &["check", "-fn", "--json", "mem:1M"]);
    let report: Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!((&report["clean"], &report["exit"]), (&false.into(), &8.into()));
    assert!(report["error"].as_str().unwrap().contains("not an ext2/3/4 or Extant volume"), "{report}");
}

#[test]
fn estimates() {
    if !ready() {
        return;
    }
    let sample = sample();
    let said = prints(&["check", "--estimate", sample.path()]);
    assert!(said.starts_with(&format!("{}: ", sample.path())) && said.contains("about "), "{said}");
    let forecast = json(&["check", "--estimate", "--json", sample.path()]);
    assert!(forecast["seconds"].as_f64().unwrap() > 0.0, "{forecast}");
    let read = &json(&["check", "-fn", "--json", sample.path()])["scan"]["bytes"];
    assert!(forecast["work"]["known_bytes"].as_u64() <= read.as_u64(), "{forecast} {read}");
}

/// On a modelled disk, by its clock, with very many groups, each of which costs a seek.
#[test]
fn a_check_that_takes_long_says_so_beforehand() {
    if !ready() {
        return;
    }
    let args = ["-t", "ext2", "-b", "4096", "-g", "8192", "-N", "65536", "-O", "^resize_inode"];
    let image = Image::mke2fs(&args, 128 << 30).build();
    let disk = format!("model:hdd:{}", text(image.path()));
    let said = |device: &str| String::from_utf8_lossy(&exits(0, &["check", "-fn", device]).stderr).into_owned();
    let line = said(&disk);
    assert!(line.starts_with(&format!("extant: {disk}: about ")), "{line}");
    assert!(
        line.contains(" of 128.0 GiB to read, ") && line.contains(" inodes; ") && line.ends_with(" processor\n"),
        "{line}"
    );
    // from memory it finishes at once
    assert_eq!(said(text(image.path())), "");
    // in JSON it is a field
    let report = json(&["check", "-fn", "--json", &disk]);
    assert!(report["scan"]["estimate_seconds"].as_f64().unwrap() >= 10.0, "{report}");
    let forecast = json(&["check", "--estimate", "--json", &disk]);
    assert!(forecast["disk_seconds"].as_f64().unwrap() >= 10.0, "{forecast}");
    assert!(forecast["speed"]["bytes_per_second"].as_f64().unwrap() < 2e8, "{forecast}");
}

#[test]
fn threads_change_nothing_that_is_said() {
    if !ready() {
        return;
    }
    let image = damaged();
    let problems = |threads: &str| {
        let ran = exits(4, &["check", "-fn", "--json", "--threads", threads, text(image.path())]);
        serde_json::from_slice::<Value>(&ran.stdout).unwrap()["problems"].clone()
    };
    assert_eq!(problems("1"), problems("4"));
}

#[test]
fn progress_lines_as_e2fsck_writes_them() {
    if !ready() {
        return;
    }
    let sample = sample();
    let script = format!("{EXTANT} check -fn -C 3 {} 3>&1 >/dev/null", sample.path());
    let ran = run_with(Command::new("sh").args(["-c", &script]), b"", LIMIT);
    assert_eq!(ran.exit, Some(0), "{}", ran.text());
    let said = String::from_utf8(ran.stdout).unwrap();
    let mut last = (0, 0);
    for line in said.lines() {
        let fields: Vec<_> = line.splitn(4, ' ').collect();
        let number = |at: usize| fields[at].parse::<u64>().unwrap_or_else(|_| panic!("{line}"));
        let (pass, done, all) = (number(0), number(1), number(2));
        assert!((1..=5).contains(&pass) && done <= all && fields[3] == sample.path(), "{line}");
        assert!((pass, done) > last, "{said}");
        last = (pass, done);
        assert!(all == 1000, "{line}");
    }
    assert_eq!(last, (5, 1000), "{said}");
    // 0 is the bar of a terminal, and there is none; a negative number disables progress
    for fd in ["0", "-1"] {
        assert_eq!(prints(&["check", "-fn", "-C", fd, sample.path()]), prints(&["check", "-fn", sample.path()]));
    }
    let sentence = fails(8, &["check", "-fn", "-C", "77", sample.path()]);
    assert!(sentence.starts_with("extant: -C 77: "), "{sentence}");
}

#[test]
fn a_signal_ends_the_check() {
    if !ready() {
        return;
    }
    let sample = sample();
    for signal in [Signal::INT, Signal::TERM] {
        // lines so long that the pipe is full before the check ends: it waits for the reader
        let folder = sample.image.path().parent().unwrap();
        let volume = format!("{}/{}volume.img", text(folder), "./".repeat(1800));
        let (pipe, end) = rustix::pipe::pipe().unwrap();
        rustix::pipe::fcntl_setpipe_size(&pipe, 4096).unwrap();
        let mut command = command(&["check", "-fn", "-C", "1", &volume]);
        let child = command.stdout(end).stderr(Stdio::piped()).spawn().unwrap();
        // with this process's copy of the other end of the pipe
        drop(command);
        let mut pipe = std::fs::File::from(pipe);
        let mut first = [0];
        pipe.read_exact(&mut first).unwrap();
        kill_process(Pid::from_child(&child), signal).unwrap();
        let mut rest = String::new();
        pipe.read_to_string(&mut rest).unwrap();
        let out = child.wait_with_output().unwrap();
        assert_eq!(out.status.code(), Some(32), "{}", String::from_utf8_lossy(&out.stderr));
        assert!(rest.contains("the check was cancelled; 0 errors found so far"), "{rest}");
    }
}

#[test]
fn a_check_that_cannot_go_on_changes_nothing() {
    if !ready() {
        return;
    }
    let image = plain();
    exits(0, &["damage", text(image.path()), "SuperblockFieldWrong"]);
    let before = image.bytes();
    let said = exits(12, &["check", "-fy", text(image.path())]).text();
    assert!(said.contains("nothing was changed"), "{said}");
    assert!(image.bytes() == before);
}

/// A backup superblock is older than the volume: -p does not use one, and marks nothing, while the primary is usable.
#[test]
fn preening_with_a_copy_is_refused_while_the_primary_superblock_is_usable() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("volume");
    prints(&["mkfs", "-q", "-t", "ext4", "-b", "1024", text(&image), "64M"]);
    let file = folder.path().join("file");
    std::fs::write(&file, vec![7; 3_000_000]).unwrap();
    exits(0, &["put", text(&image), text(&file), "/file"]);
    let before = std::fs::read(&image).unwrap();
    let said = exits(4, &["check", "-fn", "-b", "8193", "-B", "1024", text(&image)]).text();
    assert!(said.contains("the primary superblock is usable: omit -b") && said.contains("-fy -b 8193"), "{said}");
    let said = exits(8, &["check", "-fp", "-b", "8193", "-B", "1024", text(&image)]).text();
    assert!(said.contains("the primary superblock is usable: omit -b"), "{said}");
    assert!(std::fs::read(&image).unwrap() == before, "the volume was written");
    exits(0, &["check", "-n", text(&image)]);
}

/// System inodes are not files: the counts of `-v` and JSON have e2fsck's names, and so e2fsck's numbers.
#[test]
fn counts_are_those_of_e2fsck() {
    if !ready() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::create_dir_all(at("a/b")).unwrap();
    std::fs::write(at("a/large"), vec![7; 800_000]).unwrap();
    std::fs::write(at("a/small"), b"x").unwrap();
    std::fs::hard_link(at("a/small"), at("hard")).unwrap();
    std::os::unix::fs::symlink("hard", at("link")).unwrap();
    for kind in ["ext2", "ext3", "ext4"] {
        let image = Image::mke2fs(&["-t", kind, "-b", "1024"], 16 << 20).with_folder(folder.path()).build();
        let volume = text(image.path());
        let theirs = must("e2fsck", &["-fnv", volume]).text();
        let number = |what: &str| -> u64 {
            let mut lines = theirs.lines().filter_map(|line| line.trim_start().split_once(' '));
            let found = lines.find(|(_, name)| name.starts_with(what)).and_then(|(number, _)| number.parse().ok());
            found.unwrap_or_else(|| panic!("{what}: {theirs}"))
        };
        let counts = &json(&["check", "-fn", "--json", volume])["counts"];
        for (field, what) in [
            ("inodes", "inodes used"),
            ("regular", "regular file"),
            ("directories", "director"),
            ("symlinks", "symbolic link"),
            ("links", "link"),
            ("blocks", "blocks used"),
        ] {
            assert_eq!(counts[field], number(what), "{kind}, {field}: {counts} {theirs}");
        }
        assert_eq!(counts["bytes"], 800_001, "{kind}");
        // of e2fsck's indirect, double and triple indirect blocks a file with the second has the first as well
        let depths: Vec<u64> = (1..4).map(|n| counts["indirect_depths"][n].as_u64().unwrap()).collect();
        let deeper = |n: usize| depths.iter().skip(n).sum::<u64>();
        let said = format!("ind/dind/tind blocks: {}/{}/{}", deeper(0), deeper(1), deeper(2));
        assert!(theirs.contains(&said), "{kind}: {counts} {theirs}");
        // without a check only the superblock's counts are known
        let skipped = json(&["check", "--json", volume]);
        assert_eq!(skipped["skipped"], true);
        for field in ["inodes", "inodes_total", "blocks", "blocks_total"] {
            assert_eq!(skipped["counts"][field], counts[field], "{kind}, {field}");
        }
        for field in ["regular", "directories", "links", "bytes", "indirect_depths", "bad_blocks"] {
            assert!(skipped["counts"].get(field).is_some_and(Value::is_null), "{field}: {skipped}");
        }
    }
}

/// The limit of the list changes the list only.
#[test]
fn a_limit_of_the_list_changes_no_count() {
    if !ready() {
        return;
    }
    let image = plain();
    image.debugfs(&["set_inode_field /etc/motd links_count 7", "set_inode_field /etc/hosts links_count 7"]);
    let volume = text(image.path());
    let report = |most: &str| -> Value {
        let line = ["check", "-fn", "--json", "--max-problems", most, volume];
        serde_json::from_slice(&exits(4, &line).stdout).unwrap()
    };
    let (all, one) = (report("0"), report("1"));
    assert_eq!((&all["errors"], &all["advice"]), (&one["errors"], &one["advice"]));
    assert_eq!(all["kinds"].as_array().unwrap().len(), one["kinds"].as_array().unwrap().len());
    let said = exits(4, &["check", "-fn", "--max-problems", "1", volume]).text();
    assert!(said.contains("1 more 0x040003 LinkCountWrong not listed") && !said.contains("Pass 6"), "{said}");
}

/// Remains of a journal on another device, left by tune2fs, are cleared, and a check says how.
#[test]
fn the_reference_to_a_removed_journal_is_cleared() {
    if !ready() {
        return;
    }
    let image = Image::mke2fs(&["-t", "ext2", "-b", "1024"], 8 << 20).build();
    let mut bytes = image.bytes();
    bytes[1024 + 0xD0..][..16].fill(7);
    image.set_bytes(&bytes);
    let volume = text(image.path());
    let said = exits(12, &["check", "-fn", volume]).text();
    assert!(said.contains("run with -fy to repair.") && !said.contains("e2fsck -j"), "{said}");
    let said = exits(1, &["check", "-fy", volume]).text();
    assert!(said.contains(" FIXED: reference to the other device cleared.\n"), "{said}");
    assert!(oracle::e2fsck(image.path()).clean);
}

/// The message about a journal is true before and after its replay.
#[test]
fn a_replayed_journal_is_not_said_to_be_left_out() {
    if !ready() {
        return;
    }
    let image = Image::mke2fs(&["-t", "ext4", "-b", "1024", "-J", "size=4"], 16 << 20).build();
    let block = image.beside("block");
    std::fs::write(&block, [b'x'; 1024]).unwrap();
    image.debugfs(&["jo", &format!("jw -b 9000 {}", text(&block)), "jc"]);
    let said = exits_with_any(&["check", "-fy", text(image.path())]);
    assert!(said.contains("(1 transaction)") && said.contains(" FIXED: journal replayed."), "{said}");
    assert!(!said.contains("was checked without"), "{said}");
}
