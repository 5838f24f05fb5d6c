//! A layer on a device: created, inspected, used by the other commands, served, removed; and when it is refused.

use crate::common::{exits, extant, fails, json, prints, ready, text};
use crate::serving::Served;
use rustix::process::Signal;
use std::fs;
use std::path::{Path, PathBuf};
use testkit::tools::{find, must, skip};

const MIB: u64 = 1 << 20;

fn image(folder: &Path, name: &str, len: u64) -> PathBuf {
    let path = folder.join(name);
    fs::File::create(&path).unwrap().set_len(len).unwrap();
    path
}

fn named(path: &Path) -> String {
    format!("kero:{}", text(path))
}

#[test]
fn a_volume_on_a_layer_is_made_used_and_taken_off() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "v.img", 64 * MIB);
    let (plain, layer) = (text(&image), &named(&image)[..]);
    let file = folder.path().join("file");
    fs::write(&file, [7; 100_000]).unwrap();
    let said = prints(&["kero", "format", plain]);
    assert_eq!(said, format!("{plain}: Kero layer with 60 MiB of data and a log of 4 MiB\n"));
    exits(0, &["mkfs", "-t", "ext2", layer]);
    exits(0, &["put", layer, text(&file), "/a"]);
    assert!(exits(0, &["cat", layer, "/a"]).stdout == [7; 100_000]);
    exits(0, &["check", "-fn", layer]);
    // the device beneath looks like a volume, but must not be used as one
    for (status, words) in [
        (8, &["check", "-fy", plain][..]),
        (8, &["check", "-fn", "-b", "32768", plain]),
        (1, &["mount", plain, text(folder.path())]),
        (1, &["info", plain]),
        (1, &["mkfs", "-F", plain]),
        (1, &["ls", &format!("model:hdd:{plain}")]),
    ] {
        let sentence = fails(status, words);
        assert!(sentence.contains("it has a Kero layer: use kero:"), "{sentence}");
    }
    let numbers = json(&["kero", "stat", "--json", plain]);
    assert_eq!(numbers["numbers"]["data_bytes"].as_u64(), Some(60 * MIB - 4 * 4096));
    assert!(numbers["numbers"]["log_mapped_bytes"].as_u64().unwrap() > 0, "{numbers}");
    assert_eq!(numbers["uuid"].as_str().map(str::len), Some(36));
    let text_of = prints(&["kero", "stat", "--prometheus", plain]);
    assert!(text_of.contains(&format!("extant_kero_log_bytes{{device=\"{plain}\"}} 4194304\n")), "{text_of}");
    assert!(prints(&["kero", "stat", plain]).contains("log, newest content"));
    let said = prints(&["kero", "drain", plain]);
    assert!(said.contains("a plain device again"), "{said}");
    assert!(exits(0, &["cat", plain, "/a"]).stdout == [7; 100_000]);
    exits(0, &["check", "-fn", plain]);
    if find("e2fsck").is_some() {
        must("e2fsck", &["-fn", plain]);
    }
    let sentence = fails(1, &["kero", "drain", plain]);
    assert!(sentence.contains("has no Kero layer") && !sentence.contains("use it without"), "{sentence}");
    assert!(fails(1, &["cat", layer, "/a"]).contains("has no Kero layer"));
}

#[test]
fn layers_and_models_lie_on_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "v.img", 32 * MIB);
    let plain = text(&image);
    exits(0, &["kero", "format", "--empty", &format!("model:hdd:{plain}")]);
    exits(0, &["mkfs", "-t", "ext3", &format!("kero:model:hdd:{plain}")]);
    exits(0, &["check", "-fn", &format!("model:ssd:kero:{plain}")]);
    exits(0, &["info", &format!("kero:model:hdd:{plain}")]);
}

#[test]
fn what_is_on_the_device_stays_or_is_refused() {
    if !ready() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "v.img", 64 * MIB);
    let plain = text(&image);
    let before = fs::metadata(&image).unwrap().len();
    must("mke2fs", &["-q", "-t", "ext4", plain]);
    let sentence = fails(1, &["kero", "format", plain]);
    assert!(
        sentence.contains("reaches to byte 67108864") && sentence.contains("shrink the volume first"),
        "{sentence}"
    );
    must("mke2fs", &["-q", "-F", "-t", "ext4", plain, "50M"]);
    exits(0, &["kero", "format", plain]);
    exits(0, &["check", "-fn", &named(&image)]);
    assert!(fails(1, &["kero", "format", plain]).contains("drain it first"));
    exits(0, &["kero", "drain", plain]);
    must("e2fsck", &["-fn", plain]);
    assert_eq!(fs::metadata(&image).unwrap().len(), before);
    // unidentified content
    let other = image_with(folder.path(), 63 * MIB + 77);
    let sentence = fails(1, &["kero", "format", text(&other)]);
    assert!(sentence.contains("the content at byte 66060365"), "{sentence}");
    exits(0, &["kero", "format", "--empty", text(&other)]);
    let swap = image_with(folder.path(), 4096 - 10);
    fs::write(&swap, [&[0; 4086][..], b"SWAPSPACE2", &[0; 1 << 23]].concat()).unwrap();
    assert!(fails(1, &["kero", "format", text(&swap)]).contains("contains swap space"));
    for (words, part) in [
        (&["kero", "format", "mem:1M"][..], "too small"),
        (&["kero", "format", "--log", "64K", plain], "choose 4194304"),
        (&["kero", "stat", plain], "has no Kero layer"),
    ] {
        let sentence = fails(1, words);
        assert!(sentence.contains(part), "{sentence}");
    }
}

/// An image with one byte that is not zero.
fn image_with(folder: &Path, at: u64) -> PathBuf {
    use std::os::unix::fs::FileExt;
    let path = image(folder, &format!("with-{at}.img"), 64 * MIB);
    fs::File::options().write(true).open(&path).unwrap().write_all_at(&[1], at).unwrap();
    path
}

#[test]
fn shortened_devices_and_those_written_without_the_layer_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "v.img", 64 * MIB);
    let plain = text(&image);
    exits(0, &["kero", "format", plain]);
    exits(0, &["mkfs", "-t", "ext2", &named(&image)]);
    let whole = fs::read(&image).unwrap();
    fs::write(&image, &whole[..60 << 20]).unwrap();
    for words in [&["kero", "stat", plain][..], &["info", &named(&image)], &["kero", "drain", plain]] {
        let sentence = fails(1, words);
        assert!(sentence.contains("use all of the device"), "{sentence}");
    }
    fs::write(&image, &whole).unwrap();
    exits(0, &["info", &named(&image)]);
    let mut damaged = whole;
    damaged[..4096].fill(0);
    fs::write(&image, &damaged).unwrap();
    let sentence = fails(1, &["info", &named(&image)]);
    assert!(sentence.contains("without the layer"), "{sentence}");
    let forced = format!("kero:force,{plain}");
    exits(0, &["info", &forced]);
    assert!(extant(&["mkfs", "-F", &forced]).exit != Some(0));
    assert!(fails(1, &["kero", "drain", plain]).contains("without the layer"));
    exits(0, &["kero", "drain", "--force", plain]);
    exits(0, &["check", "-fn", plain]);
}

#[test]
fn the_log_lies_on_another_device() {
    let folder = tempfile::tempdir().unwrap();
    let (image, log) = (image(folder.path(), "v.img", 16 * MIB), image(folder.path(), "log", 5 * MIB + 4096));
    let (plain, log) = (text(&image), text(&log));
    let said = prints(&["kero", "format", "--log-device", log, plain]);
    assert!(
        said.contains("16 MiB of data and a log of 5 MiB") || said.contains("16 MiB of data and a log of 4."),
        "{said}"
    );
    let layer = &format!("kero:log={log},{plain}")[..];
    exits(0, &["mkfs", "-t", "ext2", layer]);
    exits(0, &["check", "-fn", layer]);
    assert!(fails(1, &["info", &format!("kero:{plain}")]).contains("its log is on another device"));
    assert!(fails(1, &["kero", "stat", plain]).contains("its log is on another device"));
    exits(0, &["kero", "stat", "--log-device", log, plain]);
    // the log of another layer
    let (second, theirs) = (image_of(folder.path(), "w.img", 16), image_of(folder.path(), "theirs", 5));
    exits(0, &["kero", "format", "--log-device", text(&theirs), text(&second)]);
    let sentence = fails(1, &["info", &format!("kero:log={},{plain}", text(&theirs))]);
    assert!(sentence.contains("another layer"), "{sentence}");
    let sentence =
        fails(1, &["kero", "format", "--log-device", text(&theirs), text(&image_of(folder.path(), "x", 16))]);
    assert!(sentence.contains("contains the log of a Kero layer"), "{sentence}");
    exits(0, &["kero", "drain", "--log-device", log, plain]);
    exits(0, &["check", "-fn", plain]);
}

fn image_of(folder: &Path, name: &str, mib: u64) -> PathBuf {
    image(folder, name, mib * MIB)
}

#[test]
fn a_layer_is_served_and_survives_a_killed_server() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "v.img", 64 * MIB);
    let (plain, stats) = (text(&image), folder.path().join("stats"));
    exits(0, &["kero", "format", "--empty", plain]);
    let socket = || folder.path().join("socket");
    let start = || Served::start(&["kero", "serve", plain], socket(), &["--stats", text(&stats)]);
    let mut served = start();
    assert!(served.said.starts_with(&format!("{plain}: serving 60 MiB at nbd+unix:///?socket=")), "{}", served.said);
    assert!(fs::read_to_string(&stats).unwrap().contains("extant_kero_groups_total"));
    // only one process can open it
    for words in [&["kero", "stat", plain][..], &["info", &named(&image)], &["kero", "drain", plain]] {
        let sentence = fails(1, words);
        assert!(sentence.contains("locked by another process"), "{sentence}");
    }
    if find("nbdcopy").is_none() {
        skip("missing nbdcopy (Debian: libnbd-bin)");
        served.end(Signal::TERM);
        return;
    }
    let (source, copy) = (folder.path().join("source"), folder.path().join("copy"));
    let bytes: Vec<u8> = (0..59 * MIB).map(|at| (at / 777 % 251) as u8).collect();
    fs::write(&source, &bytes).unwrap();
    let uri = format!("nbd+unix:///?socket={}", text(&served.socket));
    must("nbdcopy", &["--flush", text(&source), &uri]);
    served.child.kill().unwrap();
    served.child.wait().unwrap();
    fs::remove_file(socket()).ok();
    let served = start();
    must("nbdcopy", &[uri.as_str(), text(&copy)]);
    assert!(fs::read(&copy).unwrap().starts_with(&bytes));
    let (status, said) = served.end(Signal::TERM);
    assert_eq!((status, said.as_str()), (Some(0), ""));
    exits(0, &["kero", "drain", plain]);
    assert!(fs::read(&image).unwrap().starts_with(&bytes));
}

/// Serves a layer as a file.
fn file_served(plain: &str, folder: &Path) -> Option<std::process::Child> {
    use std::io::BufRead;
    let mut command = crate::common::command(&["kero", "serve", plain, "--file", text(folder)]);
    let mut child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    std::io::BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, format!("{plain}: serving 60 MiB at {}/disk\n", text(folder)));
    Some(child)
}

#[test]
fn a_layer_is_served_as_a_file_and_survives_a_killed_server() {
    use std::os::unix::fs::FileExt;
    if !testkit::tools::is_root() || !testkit::tools::has_fuse() {
        skip("mounting needs root and /dev/fuse");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (image, place) = (image(folder.path(), "v.img", 64 * MIB), folder.path().join("place"));
    fs::create_dir(&place).unwrap();
    let plain = text(&image);
    exits(0, &["kero", "format", "--empty", plain]);
    let mut server = file_served(plain, &place).unwrap();
    let disk = || fs::File::options().read(true).write(true).open(place.join("disk")).unwrap();
    let file = disk();
    for at in 0..50 {
        file.write_all_at(&[at + 1; 5000], u64::from(at) * 10_000).unwrap();
    }
    file.sync_all().unwrap();
    // not synced: after the crash all of the group may be there, or none
    file.write_all_at(&[99; 5000], 0).unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(file.write_at(b"x", 0).is_err());
    drop(file);
    // the remains of the mount are reported, and unmounted
    let sentence = fails(1, &["kero", "serve", plain, "--file", text(&place)]);
    assert!(sentence.contains("it is a dead mount"), "{sentence}");
    exits(0, &["umount", text(&place)]);
    let mut server = file_served(plain, &place).unwrap();
    let file = disk();
    let mut bytes = [0; 5000];
    for at in 0..50 {
        file.read_exact_at(&mut bytes, u64::from(at) * 10_000).unwrap();
        let whole = |byte: u8| bytes.iter().all(|found| *found == byte);
        assert!(whole(at + 1) || at == 0 && whole(99), "{at}");
    }
    drop(file);
    exits(0, &["umount", text(&place)]);
    assert_eq!(server.wait().unwrap().code(), Some(0));
    for name in ["", "a/b", ".."] {
        let sentence = fails(1, &["kero", "serve", plain, "--file", text(&place), "--name", name]);
        assert!(sentence.contains("invalid file name"), "{sentence}");
    }
    exits(2, &["kero", "serve", plain, "--file", text(&place), "--nbd", "unix:x"]);
    exits(2, &["kero", "serve", plain]);
    exits(0, &["kero", "drain", plain]);
}
