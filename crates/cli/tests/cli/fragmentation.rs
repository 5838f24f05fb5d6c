//! `extant frag`, and the space maps in `extant info`.

use crate::common::{exits, extant, fails, json, prints, ready, sample, text};
use serde_json::Value;
use testkit::oracle::kernel_mount;
use testkit::{Image, need, tools};

/// The figures of e2freefrag: free extents and free blocks, in total and per class.
fn e2freefrag(path: &str) -> (u64, Vec<(u64, u64)>) {
    let out = tools::must("e2freefrag", &[path]).text();
    let number = |text: &str| text.trim().parse::<u64>().unwrap();
    let count = out.lines().find_map(|line| line.strip_prefix("Num. free extent:")).map(number).unwrap();
    let classes = out.lines().skip_while(|line| !line.starts_with("Extent Size Range")).skip(1);
    let classes = classes.map(|line| {
        let numbers: Vec<u64> = line.split(':').nth(1).unwrap().split_whitespace().flat_map(str::parse).collect();
        (numbers[0], numbers[1])
    });
    (count, classes.collect())
}

fn frag(path: &str) -> Value {
    json(&["frag", "--json", path])
}

fn classes(free: &Value) -> Vec<(u64, u64)> {
    let number = |class: &Value, key: &str| class[key].as_u64().unwrap();
    let classes = free["classes"].as_array().unwrap().iter();
    classes.map(|class| (number(class, "extents"), number(class, "blocks"))).collect()
}

/// A file of 64 MiB of zeros.
fn empty() -> Image {
    let image = Image::from_bytes(&[]);
    std::fs::File::options().write(true).open(image.path()).unwrap().set_len(64 << 20).unwrap();
    image
}

/// Fills a volume with files, and removes some of them.
fn used(path: &str) {
    let tree = tempfile::tempdir().unwrap();
    for n in 0..300 {
        std::fs::write(tree.path().join(format!("f{n}")), vec![n as u8; 700 * (n % 37)]).unwrap();
    }
    exits(0, &["put", "-r", path, text(tree.path()), "/t"]);
    let gone: Vec<String> = (0..300).step_by(3).map(|n| format!("/t/f{n}")).collect();
    let line: Vec<&str> = ["rm", path].into_iter().chain(gone.iter().map(String::as_str)).collect();
    exits(0, &line);
}

#[test]
fn free_extents_are_those_of_e2freefrag() {
    if !ready() || !need(&["mke2fs", "e2freefrag"]) {
        return;
    }
    for options in [
        &["-t", "ext2", "-b", "1024"][..],
        &["-t", "ext3", "-b", "2048", "-g", "2048"],
        &["-t", "ext4", "-b", "1024", "-g", "1024"],
        &["-t", "ext4", "-b", "4096"],
    ] {
        let image = Image::mke2fs(options, 24 << 20).build();
        let path = text(image.path());
        used(path);
        let found = frag(path);
        let (extents, expected) = e2freefrag(path);
        assert_eq!(found["free"]["extents"], extents, "{options:?}");
        assert_eq!(classes(&found["free"]), expected, "{options:?}");
        assert_eq!(found["free"]["free"], json(&["info", "--json", path])["space"]["free_blocks"], "{options:?}");
    }
    // clusters, supported only for reading
    let image = Image::mke2fs(&["-t", "ext4", "-O", "bigalloc", "-C", "65536"], 64 << 20).build();
    let path = text(image.path());
    let found = frag(path);
    assert_eq!(found["free"]["free"], json(&["info", "--json", path])["space"]["free_blocks"]);
}

#[test]
fn own_formats_record_the_same_free_space() {
    if !ready() {
        return;
    }
    for options in [&["-t", "spacemap", "-E", "metablockgroup=8M"][..], &["-t", "extant"], &["-t", "rext3"]] {
        let image = empty();
        let path = text(image.path());
        let line: Vec<&str> = ["mkfs", "-q", "-F"].into_iter().chain(options.iter().copied()).chain([path]).collect();
        exits(0, &line);
        used(path);
        if options[1] == "extant" {
            exits(0, &["snapshot", "create", path, "one"]);
            exits(0, &["rm", "-r", path, "/t"]);
        }
        let found = frag(path);
        assert_eq!(found["free"]["free"], json(&["info", "--json", path])["space"]["free_blocks"], "{options:?}");
        assert_eq!(found["free"]["unknown_groups"], 0);
    }
}

#[test]
fn fragments_are_those_of_filefrag() {
    if !ready() || !need(&["mke2fs", "filefrag"]) || !tools::has_loop() {
        return;
    }
    let image = Image::mke2fs(&["-t", "ext4", "-b", "1024", "-O", "^has_journal"], 48 << 20).build();
    let path = text(image.path());
    exits(0, &["age", "--fill", "80", "--rounds", "40", "--largest", "400", path]);
    let all: Vec<String> = prints(&["tree", "--json", path])
        .lines()
        .filter_map(|line| line.trim().strip_prefix("\"path\": \"")?.strip_suffix("\",").map(|path| format!("/{path}")))
        .filter(|path| path.matches('/').count() > 1)
        .take(200)
        .collect();
    let line: Vec<&str> = ["frag", "--json", path].into_iter().chain(all.iter().map(String::as_str)).collect();
    let ours = json(&line);
    let mounted = kernel_mount(image.path(), "ro").unwrap();
    for (file, ours) in all.iter().zip(ours["files"]["named"].as_array().unwrap()) {
        let out = tools::must("filefrag", &[mounted.path().join(&file[1..])]).text();
        let extents: u64 = out.rsplit(": ").next().unwrap().split(' ').next().unwrap().parse().unwrap();
        assert_eq!(ours["fragments"], extents, "{file}: {out}");
    }
    assert!(ours["files"]["fragmented"].as_u64().unwrap() > 10, "the volume is aged");
}

#[test]
fn what_cannot_be_shown_is_said() {
    if !ready() {
        return;
    }
    let image = Image::from_bytes(&sample().image.bytes());
    let path = text(image.path());
    let said = fails(1, &["frag", path, "/not-there"]);
    assert!(said.contains("/not-there"), "{said}");
    let folder = tempfile::tempdir().unwrap();
    let svg = folder.path().join("space.svg");
    let shown = prints(&["frag", "--svg", text(&svg), path]);
    assert!(shown.starts_with("Free space\n  free ") && shown.contains("\nFiles\n"), "{shown}");
    assert!(std::fs::read_to_string(&svg).unwrap().starts_with("<svg "));
    fails(1, &["frag", "--svg", "/not/there.svg", path]);
    let before = image.bytes();
    extant(&["damage", path, "BlockBitmapChecksumWrong"]);
    assert!(image.bytes() != before, "it is damaged");
    let damaged = image.bytes();
    let said = fails(1, &["frag", path]);
    assert!(said.contains("group 0"), "{said}");
    assert!(image.bytes() == damaged, "reading changed the volume");
}

#[test]
fn info_shows_heads_and_log() {
    if !ready() {
        return;
    }
    let image = empty();
    let path = text(image.path());
    exits(0, &["mkfs", "-q", "-F", "-t", "spacemap", "-b", "1024", "-E", "metablockgroup=32M", path]);
    let fresh = json(&["info", "--json", path]);
    used(path);
    let found = json(&["info", "--json", path]);
    let maps = &found["space_maps"];
    assert_eq!(maps["metablockgroups"].as_array().unwrap().len(), 2);
    assert_eq!(maps["metablockgroups"][0]["groups"], serde_json::json!([0, 3]));
    assert_eq!(maps["groups_per_metablockgroup"], 4);
    assert!(maps["sequence"].as_u64() > fresh["space_maps"]["sequence"].as_u64(), "{maps}");
    assert!(maps["log_blocks_used"].as_u64() > Some(0) && maps["log_records"].as_u64() > Some(0), "{maps}");
    let free: u64 =
        maps["metablockgroups"].as_array().unwrap().iter().map(|map| map["free_blocks"].as_u64().unwrap()).sum();
    assert_eq!(found["space"]["free_blocks"], free);
    let shown = prints(&["info", "--groups", path]);
    assert!(shown.contains("ext4 with space maps") && shown.contains("\nMetablockgroups\n"), "{shown}");
    assert_eq!(json(&["info", "--json", sample().path()])["space_maps"], Value::Null);
}

#[test]
fn the_size_of_a_native_volume_is_that_of_its_device() {
    let image = empty();
    let path = text(image.path());
    exits(0, &["mkfs", "-q", "-F", "-t", "extant", path]);
    assert!(prints(&["frag", path]).contains(" of 64 MiB ("), "{}", prints(&["frag", path]));
}

#[test]
fn a_volume_is_aged_once() {
    let image = empty();
    let path = text(image.path());
    exits(0, &["mkfs", "-q", "-F", path]);
    exits(0, &["age", "--fill", "20", path]);
    let said = fails(1, &["age", "--fill", "20", path]);
    assert!(said.contains("/d0 exists: age an empty volume"), "{said}");
}
