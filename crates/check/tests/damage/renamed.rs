//! Duplicate names in a directory, which are renamed as by e2fsck.

use crate::repaired::fix;
use extant_check::Repair;
use extant_check::report::exit;
use testkit::oracle::{debugfs, e2fsck};
use testkit::tools::run;
use testkit::{Image, need};

/// The names in a directory with their inodes.
fn names(image: &Image, dir: &str) -> Vec<(u32, String)> {
    let listed = debugfs(image.path(), &format!("ls -p {dir}"));
    let named = listed.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split('/').collect();
        Some((fields.get(1)?.parse().ok()?, (*fields.get(5)?).to_owned()))
    });
    let mut all: Vec<(u32, String)> = named.filter(|(_, name)| !matches!(name.as_str(), "" | "." | "..")).collect();
    all.sort();
    all
}

/// Renames the files `AA…`, `AB…` of a directory to these names of the same length.
fn rename(bytes: &mut [u8], names: &[String]) {
    for (n, name) in names.iter().enumerate() {
        let before = placeholder(n, name.len());
        let at: Vec<usize> = (8..bytes.len() - before.len())
            .filter(|at| bytes[*at..].starts_with(before.as_bytes()) && usize::from(bytes[*at - 2]) == before.len())
            .collect();
        let [at] = at[..] else { panic!("{before} occurs {} times", at.len()) };
        bytes[at..at + name.len()].copy_from_slice(name.as_bytes());
    }
}

fn placeholder(n: usize, len: usize) -> String {
    let (high, low) = (b'A' + (n / 26) as u8, b'A' + (n % 26) as u8);
    [char::from(high), char::from(low)].into_iter().chain(std::iter::repeat('Q')).take(len).collect()
}

#[test]
fn a_second_entry_gets_the_name_that_e2fsck_chooses() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let of = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let long = "l".repeat(255);
    let cases = [
        of(&["foo", "foo"]),
        of(&["foo", "bar", "foo", "bar", "foo~0", "foo"]),
        of(&["ab", "ab", "abcd", "abcd", "abcde", "abcde"]),
        of(&["foo~9", "foo~9", "foo~09", "foo~09"]),
        of(&[&long, &long, &long]),
        of(&[&long[..252], &long[..252]]),
        of(&["same"; 14]),
    ];
    for args in [&["-t", "ext2", "-b", "1024"][..], &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,^has_journal"]]
    {
        for case in &cases {
            let commands: Vec<String> = case
                .iter()
                .enumerate()
                .flat_map(|(n, name)| {
                    let at = placeholder(n, name.len());
                    [format!("write /dev/null {at}"), format!("sif {at} uid {n}")]
                })
                .collect();
            let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
            let image = Image::mke2fs(args, 4 << 20).debugfs(&commands).build();
            let mut bytes = image.bytes();
            rename(&mut bytes, case);
            image.set_bytes(&bytes);
            run("e2fsck", &["-fy".as_ref(), image.path().as_os_str()]);
            let theirs = names(&image, "/");
            let report = fix(&mut bytes, Repair::All).expect("a volume");
            assert_eq!(report.exit, exit::REPAIRED, "{case:?}: {:?}", report.problems);
            image.set_bytes(&bytes);
            assert_eq!(names(&image, "/"), theirs, "{args:?}");
            assert!(e2fsck(image.path()).clean, "{args:?}, {case:?}");
        }
    }
}
