//! Programs of the system on volumes of this project's own formats: the table "Other programs" in
//! docs/design/native.md says what they do.

use crate::common::{fails, prints, text};
use std::path::{Path, PathBuf};
use testkit::tools::{self, LIMIT, Ran, need, run, run_with};

const CHAPTER: &str = include_str!("../../../../docs/design/native.md");
const UUID: &str = "0bd1f0a2-1c3e-4f11-9d3a-2b6d0f3c9e77";
/// The columns of the table.
const KINDS: [&str; 2] = ["extant", "rext3"];
/// A cell that no row has.
const OTHERWISE: &str = "something else";

/// The cells of a program in the table, with the formats of their columns.
fn documented(program: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let section = CHAPTER.split_once("\n## Other programs\n").expect("the section").1;
    let name = format!("`{program}`");
    let cells: Vec<_> = section
        .lines()
        .filter(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>())
        .find(|cells| cells[0].contains(&name))
        .unwrap_or_else(|| panic!("no row of {program}"));
    KINDS.into_iter().zip(cells.into_iter().skip(1))
}

/// A volume with a label in a folder of its own.
struct Volume {
    folder: tempfile::TempDir,
    path: PathBuf,
    bytes: Vec<u8>,
}

impl Volume {
    fn new(kind: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("volume");
        prints(&["mkfs", "-q", "-t", kind, "-L", "my", "-U", UUID, text(&path), "32M"]);
        let bytes = std::fs::read(&path).expect("the volume");
        Self { folder, path, bytes }
    }

    fn path(&self) -> &str {
        text(&self.path)
    }

    fn is_unchanged(&self) -> bool {
        std::fs::read(&self.path).expect("the volume") == self.bytes
    }

    fn restore(&self) {
        std::fs::write(&self.path, &self.bytes).expect("written");
    }
}

#[test]
fn blkid_and_wipefs() {
    if !need(&["blkid", "wipefs"]) {
        return;
    }
    for program in ["blkid", "wipefs"] {
        for (kind, cell) in documented(program) {
            let volume = Volume::new(kind);
            let args = if program == "blkid" { &["-p"][..] } else { &[] };
            let said = run(program, &[args, &[volume.path()]].concat()).text();
            let observed = match &said[..] {
                "" => "nothing",
                said if ["ext4", UUID, "my"].iter().all(|part| said.contains(part)) => "ext4, with UUID and label",
                _ => OTHERWISE,
            };
            assert_eq!(observed, cell, "{program}, {kind}: {said}");
            assert!(volume.is_unchanged());
        }
    }
}

#[test]
fn the_type_named_by_file() {
    if !need(&["file"]) {
        return;
    }
    let magic = concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib/extant.magic");
    let magic = format!("{magic}:/usr/share/misc/magic");
    let word = |said: String| match said.trim() {
        "data" => "data",
        said if said.starts_with("Extant native volume") => "extant",
        said if said.starts_with("Extant rext3 volume") => "rext3",
        said if said.contains("ext4 filesystem data") => "ext4",
        _ => OTHERWISE,
    };
    for (kind, cell) in documented("file") {
        let volume = Volume::new(kind);
        let plain = word(run("file", &["-b", volume.path()]).text());
        let with = word(run("file", &["-b", "-m", &magic, volume.path()]).text());
        let observed = match kind {
            "extant" => format!("{plain}; {with}, with `contrib/extant.magic`"),
            _ => format!("{plain}; {with} with it"),
        };
        assert_eq!(observed, cell, "{kind}");
    }
}

#[test]
fn a_mount_without_a_type() {
    if !tools::has_loop() || !need(&["mount", "umount"]) {
        return;
    }
    for (kind, cell) in documented("mount -t auto") {
        let volume = Volume::new(kind);
        let dir = volume.folder.path().join("dir");
        std::fs::create_dir(&dir).expect("a folder");
        let ran = run("mount", &["-t", "auto", "-o", "loop", volume.path(), text(&dir)]);
        if ran.exit == Some(0) {
            tools::must("umount", &[&dir]);
        }
        assert_eq!(ran.exit == Some(32), cell.starts_with("refused: "), "{kind}: {}", ran.text());
        assert!(volume.is_unchanged(), "{kind}");
    }
}

#[test]
fn a_repair_by_e2fsck() {
    if !need(&["e2fsck"]) {
        return;
    }
    for (kind, cell) in documented("e2fsck -fy") {
        let volume = Volume::new(kind);
        let ran = run("e2fsck", &["-fy", volume.path()]);
        let observed = match ran.text() {
            _ if ran.exit != Some(8) || !volume.is_unchanged() => OTHERWISE,
            said if said.contains("Bad magic number in super-block") => "no superblock, nothing written",
            said if said.contains("has unsupported feature(s)") => "unsupported features, nothing written",
            _ => OTHERWISE,
        };
        assert_eq!(cell.split(';').next(), Some(observed), "{kind}: {}", ran.text());
    }
}

/// Runs `mke2fs` with its input and output on a terminal, and the answer no to its question.
fn on_a_terminal(volume: &Path) -> Ran {
    let mke2fs = tools::find("mke2fs").expect("needed before");
    let line = format!("{} -t ext4 {}", mke2fs.display(), volume.display());
    run_with(tools::command("script").args(["-qec", &line, "/dev/null"]), b"n\n", LIMIT)
}

#[test]
fn a_volume_overwritten_by_mke2fs() {
    if !need(&["mke2fs", "script"]) {
        return;
    }
    for (kind, cell) in documented("mke2fs") {
        let volume = Volume::new(kind);
        let ran = on_a_terminal(&volume.path);
        let asks = ran.text().contains("Proceed anyway?") && volume.is_unchanged();
        volume.restore();
        let script = run("mke2fs", &["-q", "-t", "ext4", volume.path()]);
        let observed = match (asks, script.exit == Some(0) && !volume.is_unchanged()) {
            (false, true) => "overwrites it without asking",
            (true, true) => {
                "asks where standard input and output are terminals, else overwrites it without asking: as on ext4"
            }
            _ => OTHERWISE,
        };
        assert_eq!(observed, cell, "{kind}: {}{}", ran.text(), script.text());
    }
}

#[test]
fn a_volume_overwritten_by_mkswap_and_by_extant_mkfs() {
    if !need(&["mkswap"]) {
        return;
    }
    for (kind, cell) in documented("mkswap") {
        let volume = Volume::new(kind);
        let ran = run("mkswap", &[volume.path()]);
        let observed = match (ran.exit == Some(0) && !volume.is_unchanged(), ran.text().contains("old ext4 signature"))
        {
            (true, false) => "overwrites it without asking",
            (true, true) => "warns and overwrites it: as on ext4",
            _ => OTHERWISE,
        };
        assert_eq!(observed, cell, "{kind}: {}", ran.text());
    }
    for (kind, cell) in documented("extant mkfs") {
        let volume = Volume::new(kind);
        let sentence = fails(1, &["mkfs", "-t", "ext4", volume.path()]);
        assert!(sentence.ends_with("use -F to overwrite") && volume.is_unchanged(), "{kind}: {sentence}");
        assert_eq!("refuses without -F", cell, "{kind}");
    }
}
