//! The paths in problems.

use crate::volume::{Volume, programs};
use extant_check::table::Code::{self, *};
use testkit::Image;

const FORMATS: [&[&str]; 2] = [
    &["-t", "ext4", "-b", "1024", "-N", "64", "-O", "^has_journal"],
    &["-t", "ext4", "-b", "1024", "-N", "64", "-O", "^has_journal,inline_data"],
];

/// The problems found, and their paths, after these debugfs commands.
fn after(args: &[&str], commands: &[&str]) -> Vec<(Code, Option<String>)> {
    Volume::new(Image::mke2fs(args, 4 << 20).debugfs(commands).build()).paths()
}

fn at(code: Code, path: &str) -> (Code, Option<String>) {
    (code, Some(path.to_owned()))
}

#[test]
fn files_and_directories() {
    if !programs() {
        return;
    }
    for args in FORMATS {
        let commands = [
            "mkdir one",
            "mkdir one/two",
            "mkdir one/two/three",
            "symlink one/two/file x",
            "symlink top x",
            "ln one/two/file one/two/three/file",
            "sif one/two/file links_count 7",
            "sif top links_count 3",
            "sif one/two/three links_count 9",
            "sif / links_count 1",
        ];
        let mut found = after(args, &commands);
        found.sort_unstable_by(|a, b| a.1.cmp(&b.1));
        let expected = ["/", "/one/two/file", "/one/two/three", "/top"].map(|path| at(LinkCountWrong, path));
        assert_eq!(found, expected, "{args:?}");
    }
}

#[test]
fn what_the_root_does_not_reach() {
    if !programs() {
        return;
    }
    for args in FORMATS {
        let commands = [
            "mkdir lost",
            "mkdir lost/dir",
            "symlink lost/dir/file x",
            "sif lost/dir/file links_count 5",
            "unlink lost",
        ];
        let found = after(args, &commands);
        let expected = [(DirectoryUnconnected, None), (LinkCountWrong, None), at(LinkCountWrong, "<12>/dir/file")];
        assert_eq!(found, expected, "{args:?}");
        assert_eq!(after(args, &["symlink f x", "unlink f"]), [(InodeUnattached, None)]);
    }
}

#[test]
fn directories_below_each_other() {
    if !programs() {
        return;
    }
    let commands = ["mkdir a", "mkdir a/b", "ln a a/b/again", "unlink a", "sif a/b links_count 2"];
    // a loop of two: no path starts at the root, and none is endless
    let found = after(FORMATS[0], &commands);
    assert!(found.iter().any(|(code, _)| *code == DirectoryLoop), "{found:?}");
    let longest = found.iter().filter_map(|(_, path)| path.as_ref()).map(String::len).max();
    assert!(longest < Some(64), "{found:?}");
}
