//! `extant snapshot` on mounted and unmounted volumes, and `.extant/snapshots`.

use crate::common::{EXTANT, exits, extant, fails, json, prints, ready, text};
use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use testkit::tools;

/// A native volume, and a mount point for it; unmounted when dropped.
struct NativeVolume {
    folder: tempfile::TempDir,
}

impl NativeVolume {
    fn new() -> Self {
        let place = Self { folder: tempfile::tempdir().unwrap() };
        fs::create_dir(place.dir()).unwrap();
        prints(&["mkfs", "-t", "extant", place.image().to_str().unwrap(), "32M"]);
        place
    }

    fn image(&self) -> PathBuf {
        self.folder.path().join("volume")
    }

    fn dir(&self) -> PathBuf {
        self.folder.path().join("mnt")
    }

    fn mount(&self) {
        prints(&["mount", text(&self.image()), text(&self.dir())]);
    }

    fn unmount(&self) {
        // a program that another test starts may have a file open for a moment
        for _ in 0..200 {
            if extant(&["umount", text(&self.dir())]).exit == Some(0) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        panic!("it remains busy");
    }

    fn check(&self) {
        exits(0, &["check", "-fn", text(&self.image())]);
    }

    fn put(&self, content: &str) {
        let file = self.folder.path().join("file");
        fs::write(&file, content).unwrap();
        exits(0, &["rm", "-f", text(&self.image()), "/f"]);
        exits(0, &["put", text(&self.image()), text(&file), "/f"]);
    }
}

impl Drop for NativeVolume {
    fn drop(&mut self) {
        tools::run("umount", &["-l".as_ref(), self.dir().as_os_str()]);
    }
}

#[test]
fn snapshots_of_an_image() {
    let place = NativeVolume::new();
    let image = place.image();
    let image = text(&image);
    place.put("first");
    prints(&["snapshot", "create", image, "one"]);
    place.put("second");
    prints(&["snapshot", "create", image, "two"]);
    place.put("third");
    place.check();
    let list = json(&["snapshot", "list", "--json", image]);
    let names: Vec<_> = list.as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect();
    assert_eq!(names, ["one", "two"]);
    assert!(
        list[0]["bytes"].as_u64().unwrap() >= 4096 && list[0]["generation"].as_u64() < list[1]["generation"].as_u64()
    );
    assert_eq!(prints(&["snapshot", "list", image]).lines().count(), 2);
    let sentence = fails(1, &["snapshot", "create", image, "two"]);
    assert!(sentence.ends_with(": a snapshot named two already exists"), "{sentence}");
    fails(1, &["snapshot", "create", image, "a/b"]);
    let said = exits(0, &["snapshot", "rollback", "--cancel", image]).text();
    assert!(said.contains("no rollback is scheduled"), "{said}");
    for words in ["delete", "rollback"] {
        let sentence = fails(1, &["snapshot", words, image, "three"]);
        let says = format!("there is no snapshot named three; `extant snapshot list {image}` shows them");
        assert!(sentence.ends_with(&says), "{words}: {sentence}");
    }
    // a path is quoted as a shell needs it
    let spaced = place.folder.path().join("a volume");
    fs::copy(place.image(), &spaced).unwrap();
    let sentence = fails(1, &["snapshot", "delete", text(&spaced), "three"]);
    assert!(sentence.contains(&format!("`extant snapshot list '{}'` shows", spaced.display())), "{sentence}");
    prints(&["snapshot", "rollback", image, "one"]);
    place.check();
    assert_eq!(prints(&["cat", image, "/f"]), "first");
    prints(&["snapshot", "rollback", image, "two"]);
    place.check();
    assert_eq!(prints(&["cat", image, "/f"]), "second");
    prints(&["snapshot", "delete", image, "two", "one"]);
    place.check();
    assert_eq!(prints(&["snapshot", "list", image]), "");
    // other formats have no snapshots
    let other = place.folder.path().join("ext4");
    prints(&["mkfs", "-t", "ext4", text(&other), "32M"]);
    for command in ["create", "delete", "rollback"] {
        let sentence = fails(1, &["snapshot", command, text(&other), "one"]);
        assert!(sentence.contains("mkfs -t extant"), "{sentence}");
    }
    fails(1, &["snapshot", "list", text(&other)]);
}

/// Nothing is deleted if one of the names is wrong.
#[test]
fn names_are_checked_before_the_first_snapshot_is_deleted() {
    let place = NativeVolume::new();
    let (image, dir) = (place.image(), place.dir());
    let (image, dir) = (text(&image), text(&dir));
    for name in ["one", "two"] {
        prints(&["snapshot", "create", image, name]);
    }
    let refused = |target: &str| {
        let said = exits(1, &["snapshot", "delete", target, "one", "nonex", "two"]).text();
        assert!(said.contains("there is no snapshot named nonex"), "{said}");
        assert!(said.ends_with(&format!("{target}: no snapshot was deleted\n")), "{said}");
        let list = prints(&["snapshot", "list", target]);
        assert!(list.contains("  one") && list.contains("  two"), "{list}");
    };
    refused(image);
    place.check();
    if ready() && tools::has_fuse() {
        place.mount();
        refused(dir);
        exits(0, &["snapshot", "rollback", dir, "two"]);
        let said = exits(1, &["snapshot", "delete", dir, "one", "two"]).text();
        assert!(said.contains("a rollback to it is scheduled"), "{said}");
        prints(&["snapshot", "rollback", "--cancel", dir]);
        refused(dir);
        place.unmount();
    }
    // a name that occurs twice is no error
    prints(&["snapshot", "delete", image, "one", "two", "one"]);
    assert_eq!(prints(&["snapshot", "list", image]), "");
    place.check();
}

/// The device does not show a scheduled rollback: commands ask the mount, or refuse.
#[test]
fn a_scheduled_rollback_is_not_hidden_by_the_image() {
    if !ready() || !tools::has_fuse() {
        return;
    }
    let place = NativeVolume::new();
    let (image, dir) = (place.image(), place.dir());
    let (image, dir) = (text(&image), text(&dir));
    place.mount();
    prints(&["snapshot", "create", dir, "one"]);
    assert_eq!(json(&["snapshot", "list", "--json", image])[0]["rollback"], false);
    fs::write(place.dir().join("new"), "new").unwrap();
    exits(0, &["snapshot", "rollback", dir, "one"]);
    assert!(prints(&["snapshot", "list", image]).contains("one  (rollback at unmount)"));
    assert_eq!(json(&["snapshot", "list", "--json", image])[0]["rollback"], true);
    let sentence = fails(1, &["snapshot", "rollback", "--cancel", image]);
    let says = format!("{image}: it is mounted at {dir}: use `extant snapshot rollback --cancel {dir}`");
    assert!(sentence.ends_with(&says), "{sentence}");
    let sentence = fails(1, &["snapshot", "rollback", image, "one"]);
    assert!(sentence.contains(&format!("it is mounted at {dir}")), "{sentence}");
    prints(&["snapshot", "rollback", "--cancel", dir]);
    place.unmount();
    assert_eq!(prints(&["ls", image, "/new"]), "/new\n");
    // the list of mounts names the image only where the mount has a loop device
    prints(&["mount", "-o", "fsname=other", image, dir]);
    exits(0, &["snapshot", "rollback", dir, "one"]);
    let ran = exits(0, &["snapshot", "list", "--json", image]);
    let list: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
    let is_unknown = list[0]["rollback"].is_null() && ran.text().contains("a rollback may be scheduled");
    assert!(is_unknown || list[0]["rollback"] == true, "{}", ran.text());
    let sentence = fails(1, &["snapshot", "rollback", "--cancel", image]);
    assert!(sentence.contains(" use `extant snapshot rollback --cancel"), "{sentence}");
    prints(&["snapshot", "rollback", "--cancel", dir]);
    place.unmount();
    place.check();
}

/// A check of the mount point names the option for it.
#[test]
fn a_check_of_a_mount_point_names_online() {
    if !ready() || !tools::has_fuse() {
        return;
    }
    let place = NativeVolume::new();
    place.mount();
    let sentence = fails(8, &["check", "-fn", text(&place.dir())]);
    assert!(sentence.contains("a mounted native volume: use --online"), "{sentence}");
    place.unmount();
    let said = exits(8, &["check", "-fn", text(&place.dir())]).text();
    assert!(!said.contains("--online"), "{said}");
}

#[test]
fn a_shortened_volume_is_not_rolled_back() {
    let place = NativeVolume::new();
    prints(&["snapshot", "create", text(&place.image()), "one"]);
    fs::OpenOptions::new().write(true).open(place.image()).unwrap().set_len(28 << 20).unwrap();
    let before = fs::read(place.image()).unwrap();
    let sentence = fails(1, &["snapshot", "rollback", text(&place.image()), "one"]);
    assert!(sentence.contains("the device ends before the volume does"), "{sentence}");
    assert!(fs::read(place.image()).unwrap() == before);
}

#[test]
fn snapshots_of_a_mounted_volume() {
    if !ready() || !tools::has_fuse() {
        return;
    }
    let place = NativeVolume::new();
    let dir = place.dir();
    place.mount();
    let at = |path: &str| dir.join(path);
    let read = |path: &str| fs::read_to_string(at(path)).unwrap();
    fs::create_dir(at("d")).unwrap();
    fs::write(at("d/f"), "first").unwrap();
    prints(&["snapshot", "create", text(&at("d")), "monday"]);
    fs::write(at("d/f"), "second").unwrap();
    fs::create_dir(at(".extant/snapshots/tuesday")).unwrap();
    fs::remove_file(at("d/f")).unwrap();
    let (monday, tuesday) = (".extant/snapshots/monday/d/f", ".extant/snapshots/tuesday/d/f");
    assert_eq!((read(monday), read(tuesday)), ("first".to_owned(), "second".to_owned()));
    // found, but not listed; everything below it is read-only and stable
    let names = |path: &Path| -> Vec<_> {
        let mut names: Vec<_> = path.read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&dir), ["d", "lost+found"]);
    assert_eq!(names(&at(".extant/snapshots")), ["monday", "tuesday"]);
    assert_eq!(names(&at(".extant/snapshots/monday")), ["d", "lost+found"]);
    let number = |path: &str| Metadata::ino(&fs::metadata(at(path)).unwrap());
    assert!(number(monday) != number(tuesday) && number("d") != number(".extant/snapshots/monday/d"));
    for refused in [
        fs::write(at(monday), "x"),
        fs::write(at(".extant/snapshots/monday/new"), "x"),
        fs::write(at(".extant/new"), "x"),
        fs::remove_file(at(monday)),
        fs::create_dir(at(".extant/snapshots/monday/d/new")),
        fs::rename(at("d"), at(".extant/snapshots/monday/e")),
        fs::hard_link(at(monday), at("link")),
        fs::remove_dir(at(".extant")),
    ] {
        assert!(refused.is_err());
    }
    fs::copy(at(monday), at("copy")).unwrap();
    assert_eq!(read("copy"), "first");
    let list = json(&["snapshot", "list", "--json", text(&dir)]);
    assert_eq!((list[0]["name"].as_str(), list[1]["name"].as_str()), (Some("monday"), Some("tuesday")));
    fs::remove_dir(at(".extant/snapshots/tuesday")).unwrap();
    assert!(!at(tuesday).exists() && at(monday).exists());
    for words in ["delete", "rollback"] {
        let sentence = fails(1, &["snapshot", words, text(&dir), "tuesday"]);
        assert!(sentence.contains("there is no snapshot named tuesday; "), "{words}: {sentence}");
    }
    for name in ["", ".", "..", "a/b", "d/../monday"] {
        for words in ["create", "delete", "rollback"] {
            let sentence = fails(1, &["snapshot", words, text(&dir), name]);
            assert!(sentence.contains("a snapshot's name has 1 to 128 bytes, no slash"), "{words} {name}: {sentence}");
        }
    }
    // a volume in use is rolled back at unmount
    let said = exits(0, &["snapshot", "rollback", text(&dir), "monday"]);
    assert!(said.text().contains("is rolled back when it is unmounted"), "{}", said.text());
    let sentence = fails(1, &["snapshot", "delete", text(&dir), "monday"]);
    let says = format!("cancel it first with `extant snapshot rollback --cancel {}`", text(&dir));
    assert!(sentence.contains("a rollback to it is scheduled: ") && sentence.ends_with(&says), "{sentence}");
    let sentence = fails(1, &["snapshot", "create", text(&dir), "monday"]);
    assert!(sentence.ends_with(": a snapshot named monday already exists"), "{sentence}");
    assert_eq!(exits(0, &["snapshot", "rollback", "--cancel", text(&dir)]).text(), "");
    let said = exits(0, &["snapshot", "rollback", "--cancel", text(&dir)]).text();
    assert!(said.contains("no rollback is scheduled"), "{said}");
    exits(0, &["snapshot", "rollback", text(&dir), "monday"]);
    assert!(prints(&["snapshot", "list", text(&dir)]).contains("monday  (rollback at unmount)"));
    assert_eq!(json(&["snapshot", "list", "--json", text(&dir)])[0]["rollback"], true);
    let said = exits(0, &["umount", text(&dir)]).text();
    assert!(said.contains("rolled back to snapshot monday"), "{said}");
    place.check();
    assert_eq!(prints(&["cat", text(&place.image()), "/d/f"]), "first");
    assert!(!prints(&["ls", text(&place.image()), "/"]).contains("copy"));
    prints(&["mount", "-o", "snapshot=monday", text(&place.image()), text(&dir)]);
    assert_eq!(read("d/f"), "first");
    assert!(fs::write(at("d/f"), "x").is_err());
    for words in [&["snapshot", "list"][..], &["check", "--online"]] {
        let ran = extant(&[words, &[text(&dir)]].concat());
        assert!(ran.exit != Some(0) && ran.text().contains("need a mounted native volume"), "{}", ran.text());
    }
    place.unmount();
    prints(&["mount", "-o", "ro", text(&place.image()), text(&dir)]);
    let sentence = fails(8, &["check", "--online", text(&dir)]);
    assert!(sentence.contains("it is mounted read-only, so no snapshot can be taken"), "{sentence}");
    place.unmount();
    let sentence = fails(1, &["mount", "-o", "snapshot=friday", text(&place.image()), text(&dir)]);
    assert!(sentence.contains("no snapshot named 'friday'"), "{sentence}");
    // names need not be UTF-8
    prints(
        &["snapshot", "create", text(&place.image())]
            .map(OsStr::new)
            .into_iter()
            .chain([OsStr::from_bytes(b"\xff")])
            .collect::<Vec<_>>(),
    );
    assert_eq!(json(&["snapshot", "list", "--json", text(&place.image())])[1]["name_bytes"], "ff");
    place.mount();
    let ran = exits(1, &["txn", text(&dir), "--", EXTANT, "snapshot", "create", text(&dir), "within"]);
    assert!(ran.text().contains("snapshots cannot be taken or deleted within a transaction"), "{}", ran.text());
    place.unmount();
    let sentence = fails(1, &["snapshot", "list", text(place.folder.path())]);
    assert!(sentence.contains("not on a volume mounted by `extant mount`"), "{sentence}");
}
