//! The program under its other names; completions and manual pages.

use crate::common::{EXTANT, exits, fails, plain, prints, ready, text};
use crate::mounting::{Folder, can_mount};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;
use testkit::tools::{LIMIT, Ran, run_with};

/// Runs the program under another name.
pub(crate) fn under(name: &str, args: &[&str]) -> Ran {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::os::unix::fs::symlink(EXTANT, &path).unwrap();
    run_with(Command::new(&path).args(args), b"", LIMIT)
}

#[test]
fn fsck_calls_the_checker() {
    if !ready() {
        return;
    }
    let image = plain();
    let volume = text(image.path());
    for name in ["fsck.extant", "fsck.ext2", "fsck.ext3", "fsck.ext4", "fsck.rext3", "e2fsck"] {
        let ran = under(name, &["-n", "-f", "-C0", volume]);
        assert_eq!(ran.exit, Some(0), "{name}: {}", ran.text());
        assert!(ran.text().contains("Pass 5: ") && ran.text().contains("No errors found"), "{name}: {}", ran.text());
        // without -n, -p or -y a terminal is required
        let ran = under(name, &[volume]);
        assert!(ran.exit == Some(8) && ran.text().contains("is not a terminal"), "{name}: {}", ran.text());
        // as at boot: a clean volume is not read
        let ran = under(name, &["-a", "-C0", volume]);
        assert!(ran.exit == Some(0) && ran.text().contains(": clean, "), "{name}: {}", ran.text());
        assert_eq!(under(name, &["--no-such-flag", volume]).exit, Some(16));
        assert_eq!(under(name, &["-n", "/no/such/volume"]).exit, Some(8));
        let ran = under(name, &["-V"]);
        assert!(ran.exit == Some(0) && ran.text().starts_with("extant "), "{name}: {}", ran.text());
    }
}

#[test]
fn mount_helper_speaks_mounts_language() {
    // -f only pretends to mount
    assert_eq!(under("mount.extant", &["/dev/x", "/mnt", "-f", "-o", "ro"]).exit, Some(0));
    for args in [&["/dev/x"][..], &["/dev/x", "/mnt", "-q"], &["/dev/x", "/mnt", "-o"]] {
        let ran = under("mount.extant", args);
        assert_eq!(ran.exit, Some(1), "{args:?}: {}", ran.text());
        assert!(ran.text().starts_with("extant: "), "{args:?}: {}", ran.text());
    }
}

#[test]
fn completions_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = prints(&["completions", shell]);
        assert!(script.contains("extant") && script.contains("check"), "{shell}");
    }
    let ran = exits(2, &["completions", "teapot"]);
    assert!(ran.text().contains("teapot"), "{}", ran.text());
}

#[test]
fn manual_pages() {
    let page = prints(&["man", "check"]);
    assert!(page.contains(".TH extant-check 1") && page.contains("e2fsck") && page.contains("Examples:"), "{page}");
    assert!(prints(&["man"]).contains(".TH extant 1"));
    let sentence = fails(2, &["man", "teapot"]);
    assert_eq!(sentence, "extant: unknown command 'teapot': see extant --help");
    let folder = tempfile::tempdir().unwrap();
    prints(&["man", "--out", text(&folder.path().join("man1"))]);
    for page in ["extant.1", "extant-check.1", "extant-get.1", "extant-man.1"] {
        assert!(folder.path().join("man1").join(page).is_file(), "{page}");
    }
    let sentence = fails(1, &["man", "--out", "/dev/null/folder"]);
    assert!(sentence.starts_with("extant: /dev/null/folder: "), "{sentence}");
}

#[test]
fn help_and_version() {
    let help = prints(&["--help"]);
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let commands: Vec<_> = commands.filter_map(|line| line.split_whitespace().next()).collect();
    for command in ["info", "ls", "tree", "stat", "cat", "get", "check", "completions", "man"] {
        assert!(commands.contains(&command), "{command}: {help}");
    }
    for command in commands.into_iter().filter(|command| *command != "help") {
        let help = prints(&[command, "--help"]);
        assert!(help.contains("Examples:\n  extant ") && help.contains("Exit status"), "{command}: {help}");
        assert!(help.lines().all(|line| line.chars().count() <= 120), "{command}: {help}");
    }
    assert!(prints(&["--version"]).starts_with("extant "));
    assert_eq!(exits(2, &[] as &[&Path]).stdout, b"");
}

/// A path of this machine can have any bytes.
#[test]
fn a_device_whose_name_is_no_text() {
    let folder = tempfile::tempdir().unwrap();
    let (image, file) = (folder.path().join(OsStr::from_bytes(b"vol\xFFume")), folder.path().join("file"));
    std::fs::write(&file, "content\n").unwrap();
    let (device, word) = (image.as_os_str(), OsStr::new);
    prints(&[word("mkfs"), word("-q"), device, word("16M")]);
    assert!(image.exists());
    prints(&[word("put"), device, file.as_os_str(), word("/there")]);
    assert_eq!(prints(&[word("cat"), device, word("/there")]), "content\n");
    assert!(prints(&[word("ls"), word("--json"), device]).contains("there"));
    prints(&[word("get"), device, word("/there"), folder.path().join("copy").as_os_str()]);
    if can_mount() {
        let place = Folder::new();
        prints(&[word("mount"), device, place.path().as_os_str()]);
        std::fs::write(place.path().join("more"), "more\n").unwrap();
        place.unmount();
        assert_eq!(prints(&[word("cat"), device, word("/more")]), "more\n");
    }
    prints(&[word("rm"), device, word("/there")]);
    exits(0, &[word("check"), word("-fy"), device]);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3);
}
