//! Mounting through mount(8) and /etc/fstab, and the effects of mount options.

use crate::common::{EXTANT, command, exits, extant, fails, plain, prints, ready, text};
use crate::mounting::{Folder, can_mount};
use std::fs::{read_to_string, write};
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use testkit::{Image, oracle, tools};

/// Runs the program under another name with an empty environment, as mount(8) runs its helpers.
fn helper(name: &str, args: &[&str]) -> tools::Ran {
    let names = tempfile::tempdir().unwrap();
    let path = names.path().join(name);
    std::os::unix::fs::symlink(EXTANT, &path).unwrap();
    tools::run_with(Command::new(&path).args(args).env_clear(), b"", tools::LIMIT)
}

/// The serving process of the mount on a folder.
fn server(folder: &Folder) -> rustix::process::Pid {
    let mut pid = [0; 16];
    let length = rustix::fs::getxattr(folder.path(), "extant.daemon", &mut pid[..]).unwrap();
    let number = std::str::from_utf8(&pid[..length]).unwrap().parse().unwrap();
    rustix::process::Pid::from_raw(number).unwrap()
}

/// Kills the server, and waits until it has ended.
fn kill(folder: &Folder) {
    let pid = server(folder);
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let stat = format!("/proc/{}/stat", pid.as_raw_nonzero());
    while read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Polls until the condition is true; `false` after twenty seconds.
fn becomes(mut true_now: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + Duration::from_secs(20);
    while !true_now() {
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    true
}

/// Also with a layer beneath the volume: everything before a sync(2) survives when the server is killed.
#[test]
fn a_volume_on_a_layer_hears_of_sync() {
    if !can_mount() || !tools::has_loop() {
        return;
    }
    let files = tempfile::tempdir().unwrap();
    let image = files.path().join("v.img");
    std::fs::File::create(&image).unwrap().set_len(48 << 20).unwrap();
    let plain = image.to_str().unwrap();
    prints(&["kero", "format", "--empty", plain]);
    let layer = format!("kero:{plain}");
    prints(&["mkfs", "-t", "ext4", &layer]);
    let folder = Folder::new();
    prints(&["mount", &layer, folder.text()]);
    let line = folder.line().unwrap();
    assert!(line.contains(" fuseblk.extant rw,"), "{line}");
    for n in 0..50 {
        write(folder.path().join(format!("f{n}")), vec![n; 20_000]).unwrap();
    }
    rustix::fs::syncfs(std::fs::File::open(folder.path()).unwrap()).unwrap();
    kill(&folder);
    assert!(becomes(|| {
        let _ = rustix::mount::unmount(folder.path(), rustix::mount::UnmountFlags::DETACH);
        folder.line().is_none()
    }));
    // the loop device is detached shortly later
    assert!(becomes(|| extant(&["check", "-fn", &layer]).exit == Some(0)));
    for n in 0..50u8 {
        assert!(exits(0, &["cat", &layer, &format!("/f{n}")]).stdout == vec![n; 20_000], "f{n}");
    }
}

#[test]
fn mounted_by_mount_it_hears_of_sync_and_is_for_all() {
    if !can_mount() || !tools::has_loop() {
        return;
    }
    let image = plain();
    let volume = text(image.path());
    for name in ["mount.extant", "mount.fuse.extant", "extant"] {
        let folder = Folder::new();
        let ran = helper(name, &[volume, folder.text(), "-o", "rw,errors=remount-ro,nofail,barrier=1"]);
        assert_eq!((ran.exit, ran.text().as_str()), (Some(0), ""), "{name}");
        let line = folder.line().unwrap();
        // without PATH, losetup(8) must be searched for
        assert!(line.contains(" fuseblk.extant rw,"), "{name}: {line}");
        assert!(line.contains("allow_other") && line.contains("default_permissions"), "{name}: {line}");
        let again = helper(name, &[volume, folder.text(), "-o", "rw"]);
        assert_eq!(again.exit, Some(32), "{name}: {}", again.text());
        folder.unmount();
    }
    let folder = Folder::new();
    let ran = helper("mount.extant", &[volume, folder.text(), "-o", "rw,noallow_other,nofuseblk"]);
    assert_eq!((ran.exit, ran.text().as_str()), (Some(0), ""));
    let line = folder.line().unwrap();
    assert!(line.contains(" fuse.extant rw,") && !line.contains("allow_other"), "{line}");
    folder.unmount();
    // not one mount above the other, as a second `mount DIR` would create
    prints(&["mount", "-o", "ro", volume, folder.text()]);
    let again = helper("mount.extant", &[volume, folder.text(), "-o", "ro"]);
    assert!(again.exit == Some(32) && again.text().contains("is mounted on"), "{}", again.text());
    folder.unmount();
    let ran = helper("mount.extant", &[volume, folder.text(), "-o", "rw,usrquota"]);
    assert_eq!(ran.exit, Some(32), "{}", ran.text());
    assert!(ran.text().contains("quotas are not enforced"), "{}", ran.text());
    // the options that mount(8) passes for `mount -o remount,ro DIR`: the current flags, and those of fstab
    prints(&["mount", "-o", "nofuseblk,nodev", volume, folder.text()]);
    let ran = helper(
        "mount.fuse.extant",
        &[volume, folder.text(), "-o", "ro,remount,nodev,noatime,user_id=0,group_id=0,commit=9"],
    );
    assert_eq!((ran.exit, ran.text().as_str()), (Some(0), ""));
    assert!(folder.line().unwrap().contains(" fuse.extant ro,nodev,"), "{:?}", folder.line());
    folder.unmount();
}

#[test]
fn a_helper_that_is_missing_is_an_error() {
    if !can_mount() || !tools::has_loop() || !testkit::need(&["unshare", "mount"]) {
        return;
    }
    let image = plain();
    let folder = Folder::new();
    let script = "for at in /usr/local/sbin /usr/sbin /usr/bin /sbin /bin; do
        [ ! -f $at/losetup ] || mount --bind /dev/null $at/losetup || exit 9
    done
    exec \"$@\"";
    let line = ["--mount", "--propagation", "private", "sh", "-c", script, "sh", EXTANT, "mount"];
    let mut command = tools::command("unshare");
    let ran = tools::run_with(command.args(line).args([text(image.path()), folder.text()]), b"", tools::LIMIT);
    assert_eq!(ran.exit, Some(1), "{}", ran.text());
    assert!(ran.text().contains("losetup is missing") && ran.text().contains("-o nofuseblk"), "{}", ran.text());
    assert_eq!(folder.line(), None);
}

#[test]
fn remount_changes_what_it_names_and_nothing_else() {
    if !can_mount() || !tools::is_root() {
        return;
    }
    let image = plain();
    for options in
        ["nosuid,nodev,noexec", "nosuid,nodev,noexec,relatime,allow_other,nofuseblk", "sync,strictatime", "nodev"]
    {
        let folder = Folder::new();
        prints(&["mount", "-o", options, text(image.path()), folder.text()]);
        let before = folder.line().unwrap();
        prints(&["mount", "-o", "remount,ro", text(image.path()), folder.text()]);
        assert_eq!(folder.line().unwrap(), before.replacen(".extant rw,", ".extant ro,", 1), "{options}");
        prints(&["mount", "-o", "remount,rw", text(image.path()), folder.text()]);
        assert_eq!(folder.line().unwrap(), before, "{options}");
        for refused in ["remount,consistency=none", "remount,dirsync", "remount,commit=1"] {
            let sentence = fails(1, &["mount", "-o", refused, text(image.path()), folder.text()]);
            assert!(sentence.contains("cannot be changed while"), "{sentence}");
        }
        folder.unmount();
    }
}

#[test]
fn remount_refuses_another_volume() {
    if !can_mount() || !tools::is_root() {
        return;
    }
    let (image, other) = (plain(), plain());
    let files = tempfile::tempdir().unwrap();
    let link = files.path().join("link");
    std::os::unix::fs::symlink(image.path(), &link).unwrap();
    let missing = files.path().join("missing");
    for options in ["rw", "nofuseblk"] {
        let folder = Folder::new();
        prints(&["mount", "-o", options, text(image.path()), folder.text()]);
        let before = folder.line().unwrap();
        let (at, volume) = (folder.text(), text(image.path()));
        let sentence = fails(1, &["mount", "-o", "remount,ro", text(other.path()), at]);
        assert!(sentence.ends_with(&format!("{at} has another volume: {volume}")), "{options}: {sentence}");
        let ran = helper("mount.extant", &[text(other.path()), at, "-o", "remount,ro"]);
        assert!(ran.exit == Some(32) && ran.text().contains("has another volume"), "{options}: {}", ran.text());
        let sentence = fails(1, &["mount", "-o", "remount,ro", text(&missing), at]);
        assert!(sentence.contains("missing: No such file"), "{options}: {sentence}");
        assert_eq!(folder.line().unwrap(), before, "{options}");
        // the source in the list of mounts, as mount(8) passes it where only DIR is specified
        let shown = before.split(' ').next().unwrap();
        for device in [text(&link), volume, shown] {
            prints(&["mount", "-o", "remount,ro", device, at]);
            prints(&["mount", "-o", "remount,rw", device, at]);
        }
        folder.unmount();
    }
    // a name instead of a path does not show which volume it is
    let folder = Folder::new();
    prints(&["mount", "-o", "nofuseblk,fsname=some-name", text(image.path()), folder.text()]);
    for device in ["some-name", text(image.path())] {
        prints(&["mount", "-o", "remount,ro", device, folder.text()]);
    }
    folder.unmount();
}

#[test]
fn options_that_the_volume_cannot_honour_are_errors() {
    if !can_mount() {
        return;
    }
    let ext2 = Image::mke2fs(&["-t", "ext2"], 8 << 20).build();
    let ext4 = plain();
    let unchecked = Image::mke2fs(&["-t", "ext4", "-O", "^metadata_csum"], 8 << 20).build();
    let native = tempfile::tempdir().unwrap();
    let native = native.path().join("volume");
    let native = native.as_path();
    prints(&["mkfs", "-t", "extant", "-q", text(native), "32M"]);
    let folder = Folder::new();
    let refused = |volume: &Path, options: &str, says: &str| {
        // contradictory words are a usage error
        let status = if options == "norecovery" { 2 } else { 1 };
        let sentence = fails(status, &["mount", "-o", options, text(volume), folder.text()]);
        assert!(sentence.contains(says), "{options}: {sentence}");
        assert_eq!(folder.line(), None, "{options}");
    };
    refused(ext2.path(), "consistency=journal", "needs a journal");
    refused(ext2.path(), "data=journal", "`data=journal` needs a journal");
    refused(ext2.path(), "data=ordered", "`data=ordered` needs a journal");
    refused(ext4.path(), "consistency=snapshot", "needs a native volume");
    refused(ext4.path(), "consistency=dirty-bit,data=ordered", "`data=ordered` needs a journal");
    refused(ext4.path(), "data=cow", "`data=cow` needs a native volume");
    refused(ext4.path(), "norecovery", "add `ro`");
    refused(unchecked.path(), "journal_checksum", "the volume has no checksums");
    refused(native, "consistency=journal", "a native volume needs `consistency=snapshot`");
    refused(native, "data=journal", "`data=journal` needs a journal");
    for (volume, options) in [(ext4.path(), "data=ordered,journal_checksum"), (native, "data=ordered")] {
        prints(&["mount", "-o", options, text(volume), folder.text()]);
        folder.unmount();
    }
}

#[test]
fn sync_and_dirsync_are_honoured() {
    if !can_mount() {
        return;
    }
    for (options, content) in [("sync", true), ("dirsync", false)] {
        let image = plain();
        let folder = Folder::new();
        let at = |name: &str| folder.path().join(name);
        prints(&["mount", "-o", options, text(image.path()), folder.text()]);
        std::fs::create_dir(at("made")).unwrap();
        write(at("made/file"), "content").unwrap();
        std::fs::rename(at("etc/motd"), at("moved")).unwrap();
        std::fs::remove_file(at("link")).unwrap();
        std::fs::set_permissions(at("etc/hosts"), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        kill(&folder);
        let sentence = fails(1, &["mount", text(image.path()), folder.text()]);
        assert!(sentence.contains("it is a dead mount") && sentence.contains("umount"), "{sentence}");
        folder.unmount();
        // a message reports that the journal was replayed
        exits(0, &["mount", "-o", "ro", text(image.path()), folder.text()]);
        assert!(at("made").is_dir() && at("moved").is_file() && !at("etc/motd").exists(), "{options}");
        assert!(at("link").symlink_metadata().is_err(), "{options}");
        let found = read_to_string(at("made/file")).unwrap();
        assert!(found == "content" || !content, "{options}: {found:?}");
        let mode = std::os::unix::fs::MetadataExt::mode(&at("etc/hosts").metadata().unwrap()) & 0o777;
        assert!(mode == 0o600 || !content, "{options}: {mode:o}");
        folder.unmount();
    }
}

#[test]
fn damage_makes_it_read_only_where_that_was_asked_for() {
    if !can_mount() {
        return;
    }
    for (options, superblock, goes_on, marked) in [
        ("commit=1", "continue", true, false),
        ("errors=continue", "remount-ro", true, true),
        ("errors=remount-ro", "continue", false, true),
        ("commit=1", "remount-ro", false, true),
        ("commit=1", "panic", false, true),
    ] {
        let image = plain();
        tools::run("tune2fs", &["-e", superblock, text(image.path())]);
        image.debugfs(&["set_inode_field /etc/motd block[0] 0"]);
        let folder = Folder::new();
        prints(&["mount", "-o", options, text(image.path()), folder.text()]);
        write(folder.path().join("before"), "x").unwrap();
        assert!(std::fs::read(folder.path().join("etc/motd")).is_err());
        let new = folder.path().join("new");
        let refused = || write(&new, "x").is_err_and(|e| e.kind() == ErrorKind::ReadOnlyFilesystem);
        if goes_on {
            write(&new, "x").unwrap();
            // it is marked in the background
            std::thread::sleep(Duration::from_secs(1));
        } else {
            assert!(becomes(refused), "{options}");
        }
        folder.unmount();
        // earlier changes are there
        assert_eq!(exits(0, &["cat", text(image.path()), "/before"]).stdout, b"x");
        let ran = extant(&["mount", "-o", "rw", text(image.path()), folder.text()]);
        assert_eq!(ran.text().contains("marked as having errors"), marked, "{options}: {}", ran.text());
        if ran.exit == Some(0) {
            folder.unmount();
        }
    }
}

#[test]
fn what_others_had_open_is_not_open_in_the_server() {
    if !can_mount() {
        return;
    }
    let image = plain();
    let folder = Folder::new();
    let inherited = image.beside("inherited");
    let mut line = Command::new("sh");
    line.args(["-c", "exec 7>\"$1\" 9>\"$1\"; shift; exec \"$@\"", "sh", text(&inherited), EXTANT, "mount"]);
    let ran = tools::run_with(line.args([text(image.path()), folder.text()]), b"", tools::LIMIT);
    assert_eq!(ran.exit, Some(0), "{}", ran.text());
    let open = std::fs::read_dir(format!("/proc/{}/fd", server(&folder).as_raw_nonzero())).unwrap();
    let files: Vec<_> = open.filter_map(|entry| entry.unwrap().path().read_link().ok()).collect();
    assert!(files.iter().any(|file| file == image.path()) && !files.contains(&inherited), "{files:?}");
    folder.unmount();
}

/// A small tmpfs on a folder; unmounted when dropped.
struct Small(tempfile::TempDir);

impl Drop for Small {
    fn drop(&mut self) {
        tools::run("umount", &["-l".as_ref(), self.0.path().as_os_str()]);
    }
}

#[test]
fn unmounting_says_that_the_last_data_did_not_reach_the_device() {
    if !can_mount() || !tools::is_root() || !testkit::need(&["mount", "umount"]) {
        return;
    }
    let small = Small(tempfile::tempdir().unwrap());
    let line = ["-t", "tmpfs", "-o", "size=6M", "none", text(small.0.path())];
    let ran = tools::run_with(tools::command("mount").args(line), b"", tools::LIMIT);
    if ran.exit != Some(0) {
        return tools::skip("tmpfs cannot be mounted here");
    }
    let volume = small.0.path().join("volume");
    prints(&["mkfs", "-q", "-t", "ext2", text(&volume), "64M"]);
    let folder = Folder::new();
    prints(&["mount", text(&volume), folder.text()]);
    // the write waits for memory, or fails already
    let _ = write(folder.path().join("large"), vec![b'x'; 12 << 20]);
    let ran = command(&["umount", folder.text()]).output().unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.code() == Some(1) && said.contains("not all that was written reached the device"), "{said}");
    assert_eq!(folder.line(), None);
}

#[test]
fn a_volume_is_read_only_by_itself_only_for_what_it_is() {
    if !ready() || !can_mount() {
        return;
    }
    // a feature that is supported only for reading
    let image = Image::mke2fs(&["-t", "ext4", "-O", "quota"], 16 << 20).build();
    let folder = Folder::new();
    let ran = exits(0, &["mount", text(image.path()), folder.text()]);
    assert!(ran.text().contains("quota") && ran.text().contains("; mounted read-only"), "{}", ran.text());
    folder.unmount();
    let sentence = fails(1, &["mount", "-o", "rw", text(image.path()), folder.text()]);
    assert!(sentence.contains("quota") && !sentence.contains("mounted read-only"), "{sentence}");
    assert!(oracle::e2fsck(image.path()).clean);
}
