//! Tests of `extant get`: the copy equals the source, and nothing is written outside the destination.

use crate::common::{EXTANT, exits, fails, plain, prints, ready, sample, text};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use testkit::oracle::kernel_mount;
use testkit::{Field, Image, Spec, Tree, tools, walk};

/// Names below a folder, sorted.
fn names(folder: &Path) -> Vec<PathBuf> {
    let mut all: Vec<_> = walk(folder).unwrap().0.into_keys().filter(|path| path != Path::new(".")).collect();
    all.sort();
    all
}

#[test]
fn a_directory_takes_no_files_place() {
    if !ready() {
        return;
    }
    let image = plain();
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("etc"), "a file").unwrap();
    let sentence = fails(1, &["get", "-rf", text(image.path()), "/etc", text(folder.path())]);
    assert!(sentence.contains("is not a directory") && !sentence.contains("--force"), "{sentence}");
    assert_eq!(fs::read_to_string(folder.path().join("etc")).unwrap(), "a file");
}

#[test]
fn the_copy_equals_the_source() {
    if !ready() {
        return;
    }
    for (seed, args) in [
        (51, &["-t", "ext2", "-b", "1024"][..]),
        (52, &["-t", "ext3", "-b", "2048"]),
        (53, &["-t", "ext4", "-b", "4096"]),
        (54, &["-t", "ext4", "-b", "1024", "-O", "bigalloc,ea_inode"]),
    ] {
        let tree = Tree::new(seed, &Spec::small());
        let image = Image::mke2fs(args, 32 << 20).with_tree(&tree).build();
        let folder = tempfile::tempdir().unwrap();
        let dest = folder.path().join("copy");
        prints(&["get", "-r", text(image.path()), "/", text(&dest)]);
        let copied = walk(&dest).unwrap().without("lost+found").forget(&[Field::Blocks]);
        tree.model().assert_same(&copied);
    }
}

#[test]
fn a_second_copy_joins_directories_and_replaces_only_with_force() {
    if !ready() {
        return;
    }
    let sample = sample();
    let folder = tempfile::tempdir().unwrap();
    let dest = text(folder.path());
    fs::write(folder.path().join("mine"), "mine").unwrap();
    prints(&["get", "-r", sample.path(), "/", dest]);
    let ran = exits(1, &["get", "-r", sample.path(), "/", dest]);
    assert!(ran.text().contains("already exists in the destination"), "{}", ran.text());
    prints(&["get", "-r", "-f", sample.path(), "/", dest]);
    let copied = walk(folder.path()).unwrap().without("lost+found").without("mine").forget(&[Field::Blocks]);
    let mut model = sample.tree.model().clone();
    // the folder existed before, and has its own mode
    model.0.remove(Path::new("."));
    let mut copied = copied;
    copied.0.remove(Path::new("."));
    model.assert_same(&copied);
    assert_eq!(fs::read(folder.path().join("mine")).unwrap(), b"mine");
}

#[test]
fn where_files_land() {
    if !ready() {
        return;
    }
    let image = plain();
    let volume = text(image.path());
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let dest = text(folder.path());
    // into a directory, under its own name; under a new name; a link is followed, and its name used
    prints(&["get", volume, "/etc/motd", dest]);
    prints(&["get", volume, "/etc/motd", text(&at("new"))]);
    prints(&["get", volume, "/link", dest]);
    assert_eq!(names(folder.path()), ["link", "motd", "new"].map(PathBuf::from));
    for name in ["link", "motd", "new"] {
        assert_eq!(fs::read(at(name)).unwrap(), b"welcome\n", "{name}");
        assert!(at(name).symlink_metadata().unwrap().is_file(), "{name}");
    }
    fs::create_dir(at("sub")).unwrap();
    prints(&["get", "-r", volume, "/etc", "/.hidden", text(&at("sub"))]);
    prints(&["get", "-r", volume, "/etc/", text(&at("renamed"))]);
    prints(&["get", "-r", volume, "/etc/..", text(&at("whole"))]);
    assert_eq!(names(&at("sub")), [".hidden", "etc", "etc/hosts", "etc/motd"].map(PathBuf::from));
    assert_eq!(names(&at("renamed")), ["hosts", "motd"].map(PathBuf::from));
    assert!(names(&at("whole")).contains(&PathBuf::from("etc/motd")));
    assert_eq!(fs::read_link(at("whole/way")).unwrap(), Path::new("/etc"));
}

#[test]
fn what_get_refuses() {
    if !ready() {
        return;
    }
    let image = plain();
    let volume = text(image.path());
    let folder = tempfile::tempdir().unwrap();
    let dest = text(folder.path());
    assert!(fails(1, &["get", volume, "/etc", dest]).ends_with("/etc: is a directory: use -r to copy it recursively"));
    assert!(fails(1, &["get", volume, "/nope", dest]).ends_with("/nope: no such file or directory"));
    let missing = text(&folder.path().join("a/b")).to_owned();
    assert!(fails(1, &["get", volume, "/etc/motd", &missing]).contains("No such file or directory"));
    assert!(fails(1, &["get", volume, "/etc/motd", "/etc/hosts", &missing]).contains("not a directory"));
    fs::write(folder.path().join("motd"), "mine").unwrap();
    assert!(fails(1, &["get", volume, "/etc/motd", dest]).contains("already exists"));
    assert_eq!(fs::read(folder.path().join("motd")).unwrap(), b"mine");
    prints(&["get", "--force", volume, "/etc/motd", dest]);
    assert_eq!(fs::read(folder.path().join("motd")).unwrap(), b"welcome\n");
    assert_eq!(names(folder.path()), ["motd"].map(PathBuf::from));
}

#[test]
fn what_is_replaced_stays_until_the_copy_is_whole() {
    if !ready() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let large = folder.path().join("large");
    fs::write(&large, vec![7; 3 << 20]).unwrap();
    let image = plain();
    let volume = text(image.path());
    exits(0, &["put", volume, text(&large), "/large"]);
    fs::write(&large, "mine").unwrap();
    // a file-size limit prevents files of this size
    let limited = "ulimit -f 64; trap '' XFSZ; exec \"$@\"";
    let mut command = std::process::Command::new("sh");
    command.args(["-c", limited, "sh", EXTANT, "get", "-f", volume, "/large", text(&large)]);
    let ran = tools::run_with(&mut command, b"", tools::LIMIT);
    assert!(ran.exit == Some(1) && ran.text().contains("the existing file is left unchanged"), "{}", ran.text());
    assert_eq!(fs::read(&large).unwrap(), b"mine");
    assert_eq!(names(folder.path()), ["large"].map(PathBuf::from));
    prints(&["get", "-f", volume, "/large", text(&large)]);
    assert_eq!(fs::metadata(&large).unwrap().len(), 3 << 20);
    assert_eq!(names(folder.path()), ["large"].map(PathBuf::from));
}

/// Under any of its names, and also where the volume contains a file of that name.
#[test]
fn the_volume_being_read_is_not_replaced() {
    if !ready() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("volume.img"), "inside\n").unwrap();
    fs::write(at("other"), "new\n").unwrap();
    let image = Image::mke2fs(&["-t", "ext4"], 8 << 20).with_folder(folder.path()).build();
    fs::copy(image.path(), at("volume.img")).unwrap();
    fs::hard_link(at("volume.img"), at("hard.img")).unwrap();
    std::os::unix::fs::symlink("volume.img", at("link.img")).unwrap();
    let before = image.bytes();
    for device in ["volume.img", "hard.img", "link.img"].map(at) {
        for dest in ["volume.img", "hard.img", "link.img"].map(at) {
            let sentence = fails(1, &["get", "-f", text(&device), "/other", text(&dest)]);
            assert!(sentence.ends_with(": it is the volume being read"), "{sentence}");
        }
        fs::write(at("other"), "old\n").unwrap();
        let sentence = fails(1, &["get", "-rf", text(&device), "/", text(folder.path())]);
        assert!(sentence.contains("/volume.img: ") && sentence.contains("it is the volume being read"), "{sentence}");
        assert_eq!(fs::read(at("other")).unwrap(), b"new\n");
        assert!(fs::read(at("volume.img")).unwrap() == before && at("link.img").is_symlink());
    }
    // another volume of the same content may be replaced
    prints(&["get", "-f", text(image.path()), "/volume.img", text(folder.path())]);
    assert_eq!(fs::read(at("volume.img")).unwrap(), b"inside\n");
}

/// One that is replaced would lose all later changes.
#[test]
fn a_volume_in_use_is_not_replaced() {
    if !ready() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("tree")).unwrap();
    fs::create_dir(at("tree/below")).unwrap();
    fs::write(at("tree/below/used.img"), "inside\n").unwrap();
    let image = Image::mke2fs(&["-t", "ext4"], 8 << 20).with_folder(&at("tree")).build();
    let volume = text(image.path());
    fs::create_dir(at("below")).unwrap();
    let used = at("below/used.img");
    let before = plain().bytes();
    fs::write(&used, &before).unwrap();
    let inode = fs::metadata(&used).unwrap().ino();
    let is_unchanged = || fs::read(&used).unwrap() == before && fs::metadata(&used).unwrap().ino() == inode;
    let open = fs::File::options().read(true).write(true).open(&used).unwrap();
    rustix::fs::flock(&open, rustix::fs::FlockOperation::LockExclusive).unwrap();
    for dest in [used.clone(), at("below")] {
        let sentence = fails(1, &["get", "-f", volume, "/below/used.img", text(&dest)]);
        assert!(sentence.contains("/used.img: it is in use: "), "{sentence}");
    }
    let sentence = fails(1, &["get", "-rf", volume, "/", text(folder.path())]);
    assert!(sentence.contains("another process has it locked for writing"), "{sentence}");
    assert!(is_unchanged());
    drop(open);
    if tools::is_root() && tools::has_loop() {
        let mounted = kernel_mount(&used, "").unwrap();
        let sentence = fails(1, &["get", "-f", volume, "/below/used.img", text(&used)]);
        assert!(sentence.contains("it is a volume that is mounted at "), "{sentence}");
        assert_eq!(fs::metadata(&used).unwrap().ino(), inode);
        mounted.unmount();
    }
    prints(&["get", "-f", volume, "/below/used.img", text(&used)]);
    assert_eq!(fs::read(&used).unwrap(), b"inside\n");
}

#[test]
fn devices_and_pipes_are_not_replaced_by_files() {
    if !ready() {
        return;
    }
    let image = plain();
    let volume = text(image.path());
    let sentence = fails(1, &["get", "-f", volume, "/etc/motd", "/dev/null"]);
    assert!(sentence.contains("/dev/null: it is a character device"), "{sentence}");
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("motd");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let link = folder.path().join("link");
    std::os::unix::fs::symlink("motd", &link).unwrap();
    for dest in [&pipe, &link] {
        let sentence = fails(1, &["get", "-f", volume, "/etc/motd", text(dest)]);
        assert!(sentence.contains("it is a pipe"), "{sentence}");
    }
    let sentence = fails(1, &["get", "-f", volume, "/etc/motd", text(folder.path())]);
    assert!(sentence.contains("a pipe of that name"), "{sentence}");
    assert!(!pipe.symlink_metadata().unwrap().is_file() && link.is_symlink());
    assert_eq!(names(folder.path()), ["link", "motd"].map(PathBuf::from));
}

#[test]
fn holes_stay_holes() {
    if !ready() {
        return;
    }
    let image = plain();
    image.debugfs(&["set_inode_field /etc/motd size 1073741824"]);
    let folder = tempfile::tempdir().unwrap();
    prints(&["get", text(image.path()), "/etc/motd", text(folder.path())]);
    let copied = folder.path().join("motd").metadata().unwrap();
    assert_eq!(copied.len(), 1 << 30);
    assert!(copied.blocks() * 512 <= 64 << 10, "{}", copied.blocks());
}

#[test]
fn set_user_id_is_for_root() {
    if !ready() || !tools::is_root() {
        return;
    }
    let image = plain();
    image.debugfs(&["set_inode_field /etc/motd mode 0104755", "set_inode_field /etc/motd uid 1234"]);
    let folder = tempfile::tempdir().unwrap();
    prints(&["get", text(image.path()), "/etc/motd", text(folder.path())]);
    let copied = folder.path().join("motd").metadata().unwrap();
    assert_eq!((copied.permissions().mode() & 0o7777, copied.uid()), (0o4755, 1234));
    // as another user
    let Some(setpriv) = tools::find("setpriv") else { return tools::skip("missing setpriv") };
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let public = tempfile::tempdir().unwrap();
    fs::set_permissions(public.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let (program, volume) = (public.path().join("extant"), public.path().join("volume.img"));
    fs::copy(EXTANT, &program).unwrap();
    fs::copy(image.path(), &volume).unwrap();
    fs::set_permissions(&volume, fs::Permissions::from_mode(0o644)).unwrap();
    let args = ["--reuid=65534", "--regid=65534", "--clear-groups"].map(OsStr::new);
    let dest = folder.path().join("mine");
    let line = [program.as_os_str(), "get".as_ref(), volume.as_os_str(), "/etc/motd".as_ref(), dest.as_os_str()];
    let ran = tools::run(text(&setpriv), &[&args[..], &line[..]].concat());
    assert_eq!(ran.exit, Some(0), "{}", ran.text());
    let copied = dest.metadata().unwrap();
    assert_eq!((copied.permissions().mode() & 0o7777, copied.uid()), (0o755, 65534));
}

/// A volume in which the name `from` was replaced by `to`, which is not longer, directly on the device.
fn renamed(image: Image, from: &[u8], to: &[u8]) -> Image {
    assert_eq!(from.len(), to.len());
    let mut bytes = image.bytes();
    let at: Vec<_> = bytes.windows(from.len()).enumerate().filter(|(_, w)| *w == from).map(|(at, _)| at).collect();
    assert!(!at.is_empty(), "name not found");
    for at in at {
        bytes[at..at + to.len()].copy_from_slice(to);
    }
    image.set_bytes(&bytes);
    image
}

/// Copies a whole volume; changes are allowed only in the destination. Returns the messages.
fn copy_whole(image: &Image, outside: &Path, dest: &Path, force: bool) -> String {
    let before = walk(outside).unwrap().forget(&[Field::Accessed]);
    let mut line = vec!["get", "-r", text(image.path()), "/", text(dest)];
    if force {
        line.push("--force");
    }
    let ran = crate::common::extant(&line);
    assert!(matches!(ran.exit, Some(0 | 1)) && !ran.text().contains("panicked"), "{}", ran.text());
    let after = walk(outside).unwrap();
    before.assert_same(&after);
    ran.text()
}

#[test]
fn names_that_lead_out_of_the_destination() {
    if !ready() {
        return;
    }
    // names of eight bytes; ext2, so that no checksum detects it
    for evil in ["../evil1", "/tmp/evi", "..//./..", "a/../../", "evil\0bad"] {
        let folder = tempfile::tempdir().unwrap();
        let source = tempfile::tempdir().unwrap();
        fs::write(source.path().join("QQQQQQQQ"), "gotcha").unwrap();
        fs::create_dir(source.path().join("directory")).unwrap();
        fs::write(source.path().join("directory/good"), "good").unwrap();
        let image = Image::mke2fs(&["-t", "ext2"], 4 << 20).with_folder(source.path()).build();
        let image = renamed(image, b"QQQQQQQQ", evil.as_bytes());
        let (outside, dest) = (folder.path().join("outside"), folder.path().join("outside-not/dest"));
        fs::create_dir_all(&outside).unwrap();
        fs::create_dir_all(&dest).unwrap();
        let said = copy_whole(&image, &outside, &dest, false);
        assert!(said.contains("extant: "), "{evil:?} is reported: {said}");
        // at most the good file was copied, and nothing anywhere else
        let allowed = ["dest", "dest/directory", "dest/directory/good", "dest/lost+found"].map(PathBuf::from);
        let found = names(&folder.path().join("outside-not"));
        assert!(found.iter().all(|path| allowed.contains(path)), "{evil:?}: {found:?}");
        assert!(!Path::new("/tmp/evi").exists());
    }
    // a directory named `..`
    let source = tempfile::tempdir().unwrap();
    fs::create_dir(source.path().join("QQ")).unwrap();
    fs::write(source.path().join("QQ/evil"), "gotcha").unwrap();
    let image = Image::mke2fs(&["-t", "ext2"], 4 << 20).with_folder(source.path()).build();
    let image = renamed(image, b"\x02\x02QQ", b"\x02\x02..");
    let folder = tempfile::tempdir().unwrap();
    let dest = folder.path().join("dest");
    fs::create_dir(&dest).unwrap();
    copy_whole(&image, source.path(), &dest, true);
    assert!(!folder.path().join("evil").exists() && !dest.join("evil").exists());
}

#[test]
fn links_that_stand_where_directories_should() {
    if !ready() {
        return;
    }
    for (force, link_first) in [(false, true), (true, true), (false, false), (true, false)] {
        let folder = tempfile::tempdir().unwrap();
        let (outside, dest) = (folder.path().join("outside"), folder.path().join("dest"));
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("stays"), "stays").unwrap();
        let link = format!("symlink trap {}", outside.display());
        let payload = folder.path().join("payload");
        fs::write(&payload, "gotcha").unwrap();
        let write = format!("write {} QQQQ/stays", payload.display());
        let image = Image::mke2fs(&["-t", "ext2"], 4 << 20).build();
        let commands = if link_first { [&link, "mkdir QQQQ", &write] } else { ["mkdir QQQQ", &write, &link] };
        image.debugfs(&commands);
        // two entries of one name: a link, and a directory with a file that also exists in the link's target
        let image = renamed(image, b"QQQQ", b"trap");
        let said = copy_whole(&image, &outside, &dest, force);
        assert!(said.contains("trap"), "{said}");
        assert_eq!(fs::read(outside.join("stays")).unwrap(), b"stays");
    }
}

#[test]
fn links_of_others_in_the_destination() {
    if !ready() {
        return;
    }
    let image = plain();
    for force in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let (outside, dest) = (folder.path().join("outside"), folder.path().join("dest"));
        fs::create_dir(&outside).unwrap();
        fs::create_dir(&dest).unwrap();
        fs::write(outside.join("motd"), "stays").unwrap();
        std::os::unix::fs::symlink(&outside, dest.join("etc")).unwrap();
        std::os::unix::fs::symlink(outside.join("motd"), dest.join(".hidden")).unwrap();
        let said = copy_whole(&image, &outside, &dest, force);
        assert!(said.contains("/etc: already exists in the destination"), "{said}");
        assert_eq!(fs::read(outside.join("motd")).unwrap(), b"stays");
    }
}

#[test]
fn a_directory_in_itself() {
    if !ready() {
        return;
    }
    let image = plain();
    image.debugfs(&["link /etc /etc/again"]);
    let folder = tempfile::tempdir().unwrap();
    let ran = exits(1, &["get", "-r", text(image.path()), "/", text(folder.path())]);
    assert!(ran.text().contains("/etc/again: this directory was copied already"), "{}", ran.text());
    assert_eq!(fs::read(folder.path().join("etc/motd")).unwrap(), b"welcome\n");
    let ran = exits(1, &["ls", "-R", text(image.path())]);
    assert!(ran.text().contains("/etc/again: this directory was listed already"), "{}", ran.text());
    let ran = exits(1, &["tree", text(image.path())]);
    assert!(ran.text().contains("etc/again: this directory was shown already"), "{}", ran.text());
}

/// Many files with one map, as on a hostile volume, would fill any disk.
#[test]
fn no_more_is_copied_than_twice_the_volume() {
    const VOLUME: u64 = 4 << 20;
    if !ready() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("first"), vec![1; 1 << 20]).unwrap();
    let names: Vec<_> = (0..20).map(|n| format!("other{n:02}")).collect();
    names.iter().for_each(|name| fs::write(folder.path().join(name), "").unwrap());
    let image = Image::mke2fs(&["-t", "ext4", "-b", "1024"], VOLUME).with_folder(folder.path()).build();
    let same: Vec<_> = names.iter().map(|name| format!("copy_inode /first /{name}")).collect();
    image.debugfs(&same.iter().map(String::as_str).collect::<Vec<_>>());
    let into = tempfile::tempdir().unwrap();
    let ran = exits(1, &["get", "-r", text(image.path()), "/", text(into.path())]);
    assert!(ran.text().contains("files share blocks"), "{}", ran.text());
    let copied: u64 = fs::read_dir(into.path()).unwrap().map(|file| file.unwrap().metadata().unwrap().len()).sum();
    assert!((VOLUME..=2 * VOLUME + (1 << 20)).contains(&copied), "{copied}");
}
