//! The number of non-contiguous files in the last line of a check, compared with that of e2fsck.

use super::ours;
use extant_check::render::summary;
use testkit::oracle::e2fsck;
use testkit::{Image, need};

/// The summaries of e2fsck and of the checker, without the volume's name.
fn summaries(image: &Image) -> (String, String) {
    let text = e2fsck(image.path()).text;
    let last = text.lines().find(|line| line.contains("non-contiguous"));
    let theirs = last.and_then(|line| line.split_once(": ")).map_or("", |(_, counts)| counts);
    (theirs.to_owned(), summary(&ours(&image.bytes()).expect("a volume")))
}

#[test]
fn files_with_block_maps_are_counted_as_by_e2fsck() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    for (name, blocks) in [("small", 3), ("ind", 200), ("dind", 700), ("group", 1500)] {
        std::fs::write(path(name), vec![7; blocks * 1024]).expect("a file");
    }
    for args in [
        &["-t", "ext2", "-b", "1024"][..],
        &["-t", "ext3", "-b", "1024", "-J", "size=1"],
        &["-t", "ext2", "-b", "1024", "-g", "1024"],
        &["-t", "ext2", "-b", "4096"],
    ] {
        // all blocks of a map contiguous
        let whole = [format!("write {} ind", path("ind")), format!("write {} dind", path("dind"))];
        let image = Image::mke2fs(args, 16 << 20).debugfs(&whole.each_ref().map(String::as_str)).build();
        let (theirs, ours) = summaries(&image);
        assert_eq!(theirs, ours, "{args:?}: whole files");
        // files in the gaps between others, one as long as a group, one with a hole, and one with a block elsewhere
        let mut commands: Vec<String> = (0..40).map(|n| format!("write {} small{n}", path("small"))).collect();
        commands.extend((0..40).step_by(2).map(|n| format!("rm small{n}")));
        for name in ["ind", "dind", "group"] {
            commands.push(format!("write {} {name}2", path(name)));
        }
        commands.push(format!("write {} hole", path("ind")));
        commands.push("punch hole 20 30".to_owned());
        commands.push("punch hole 3 3".to_owned());
        image.debugfs(&commands.iter().map(String::as_str).collect::<Vec<_>>());
        let (theirs, ours) = summaries(&image);
        assert_eq!(theirs, ours, "{args:?}: files in gaps");
        assert!(!theirs.contains("(0.0%"), "{args:?}: {theirs}");
    }
}
