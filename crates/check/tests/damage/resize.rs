//! The resize inode, with and without its feature, intact and with one changed field: the problems found, the result of
//! a repair, and that e2fsck then reports it clean.

use crate::repaired::{fix, options, wrong_with};
use blockdev::MemoryDevice;
use extant_check::table::Code;
use extant_check::{Repair, check};
use testkit::oracle::{debugfs, debugfs_dump, e2fsck};
use testkit::tools::run;
use testkit::{Image, need};

/// Changes to inode 7, as debugfs makes them; `FILE` is a block of a file.
const CHANGES: [&[&str]; 19] = [
    &[],
    &["clri <7>"],
    &["sif <7> size 0", "sif <7> size_high 0"],
    &["sif <7> size 5000", "sif <7> size_high 0"],
    &["sif <7> links_count 0"],
    &["sif <7> mode 0"],
    &["sif <7> links_count 0", "sif <7> mode 0"],
    &["sif <7> links_count 0", "sif <7> dtime 1500000000"],
    &["sif <7> mode 040755"],
    &["sif <7> blocks 0"],
    &["sif <7> flags 0x80000"],
    &["sif <7> file_acl FILE"],
    &["sif <7> block[0] 7000"],
    &["sif <7> block[0] FILE"],
    &["sif <7> block[IND] 7000"],
    &["sif <7> block[TIND] 7000"],
    &["sif <7> block[DIND] FILE"],
    &["sif <7> block[DIND] 0"],
    &["sif <7> block[DIND] 0", "sif <7> blocks 0"],
];

const WITHOUT: &str = "feature -resize_inode";

/// Whether inode 7 has a map.
fn has_map(image: &Image) -> bool {
    let dump = debugfs(image.path(), "inode_dump -b <7>");
    dump.lines().any(|line| line.starts_with('0') && line.split_whitespace().skip(1).take(8).any(|word| word != "0000"))
}

#[test]
fn the_resize_inode_follows_its_feature() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let content = vec![7; 300_000];
    std::fs::write(folder.path().join("file"), &content).expect("a file");
    let (image, theirs) = (Image::from_bytes(&[]), Image::from_bytes(&[]));
    let mut wrong = Vec::new();
    // of one group, without copies of the reserved blocks, and of several
    for (kind, size) in [("ext2", 8 << 20), ("ext4", 8 << 20), ("ext2", 20 << 20), ("ext4", 20 << 20)] {
        let args = ["-t", kind, "-b", "1024", "-O", "resize_inode"];
        let base = Image::mke2fs(&args, size).with_folder(folder.path());
        let base = base.build();
        let said = debugfs(base.path(), "bmap file 5");
        let block = said.split_whitespace().last().expect("a block").to_owned();
        let intact = base.bytes();
        for features in [&[][..], &[WITHOUT]] {
            for change in CHANGES {
                image.set_bytes(&intact);
                let commands: Vec<String> =
                    change.iter().chain(features).map(|command| command.replace("FILE", &block)).collect();
                image.debugfs(&commands.iter().map(String::as_str).collect::<Vec<_>>());
                let said = format!("{kind} of {size}, {features:?}, {change:?}");
                let bytes = image.bytes();
                let report = check("volume", &MemoryDevice::from_vec(bytes.clone()), &options(Repair::No), &());
                let found = report.expect("a volume").problems;
                let verdict = e2fsck(image.path());
                let clear = verdict.text.contains("resize inode is non-zero");
                if clear != found.iter().any(|p| p.code == Code::ResizeInodeNotClear) {
                    wrong.push(format!("{said}: e2fsck asks to clear it: {clear}"));
                }
                let bad = found.iter().any(|p| p.severity >= extant_check::table::Severity::Error);
                if bad != (verdict.exit != Some(0)) {
                    wrong.push(format!("{said}: e2fsck {:?}, ours {found:?}", verdict.text));
                }
                if let Some(disagreement) = wrong_with(&bytes, &theirs) {
                    wrong.push(format!("{said}: {}", disagreement.text()));
                    continue;
                }
                theirs.set_bytes(&bytes);
                run("e2fsck", &["-fy".as_ref(), theirs.path().as_os_str()]);
                let mut fixed = bytes;
                fix(&mut fixed, Repair::All).expect("a volume");
                image.set_bytes(&fixed);
                let (ours, e2fsck) = (has_map(&image), has_map(&theirs));
                // with the feature Extant recreates it where e2fsck clears it
                if ours != e2fsck && !(ours && features.is_empty()) {
                    wrong.push(format!("{said}: inode 7 has a map: {ours}, after e2fsck: {e2fsck}"));
                }
                if debugfs_dump(image.path(), "file") != content {
                    wrong.push(format!("{said}: the file is another"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
}
