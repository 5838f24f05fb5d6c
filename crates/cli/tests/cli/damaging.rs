//! `extant damage`, and that the checker finds and repairs the damage.

use crate::common::{exits, extant, fails, json, prints, ready, sample, text};
use testkit::Image;

/// A separate volume for a test.
fn volume() -> Image {
    Image::from_bytes(&sample().image.bytes())
}

#[test]
fn damage_is_written_found_and_repaired() {
    if !ready() {
        return;
    }
    let image = volume();
    let path = text(image.path());
    exits(0, &["check", "-fn", path]);
    let said = prints(&["damage", path, "LinkCountWrong", "0x01000c"]);
    assert_eq!(said.lines().count(), 2, "{said}");
    assert!(
        said.contains("LinkCountWrong: changed inode ") && said.contains("InodeSizeWrong: changed inode "),
        "{said}"
    );
    let report = exits(4, &["check", "-fn", "--json", path]);
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).expect("JSON");
    let codes: Vec<_> = report["problems"].as_array().expect("a list").iter().map(|p| p["code"].clone()).collect();
    assert!(codes.contains(&"0x040003".into()) && codes.contains(&"0x01000c".into()), "{codes:?}");
    exits(1, &["check", "-fy", path]);
    exits(0, &["check", "-fn", path]);
}

#[test]
fn the_same_seed_makes_the_same_damage() {
    if !ready() {
        return;
    }
    let (one, two) = (volume(), volume());
    for image in [&one, &two] {
        prints(&["damage", text(image.path()), "inode.size", "--seed", "7"]);
    }
    assert!(one.bytes() == two.bytes());
}

#[test]
fn kinds_are_listed_and_others_refused() {
    if !ready() {
        return;
    }
    let list = prints(&["damage", "--list"]);
    assert!(list.contains("Table II  inode.shared: ") && list.contains("0x040003  LinkCountWrong: "), "{list}");
    let all = json(&["damage", "--list", "--json"]);
    assert!(all.as_array().is_some_and(|all| all.len() == list.lines().count() && all.len() > 200));
    let image = volume();
    let before = image.bytes();
    exits(2, &["damage", text(image.path()), "NoSuchKind"]);
    let said = fails(1, &["damage", text(image.path()), "MmpMagicWrong"]);
    assert!(said.ends_with("MmpMagicWrong: the volume has no multiple-mount protection"), "{said}");
    assert!(image.bytes() == before);
    fails(1, &["damage", "/nonexistent", "LinkCountWrong"]);
    prints(&["mkfs", "-q", "-F", "-t", "extant", text(image.path()), "32M"]);
    let said = fails(1, &["damage", text(image.path()), "LinkCountWrong"]);
    assert!(said.contains("native volumes are not supported"), "{said}");
}

/// The output names the problem that a check reports instead of the one that was written.
#[test]
fn a_kind_that_is_reported_as_another_is_named() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let image = folder.path().join("volume");
    let image = text(&image);
    for format in [&["-t", "ext4"][..], &["-t", "ext4", "-b", "4096"], &["-t", "ext3", "-b", "1024"]] {
        prints(&[&["mkfs", "-q", "-F"], format, &[image, "24M"]].concat());
        let said = prints(&["damage", image, "FirstDataBlockWrong"]);
        assert!(said.ends_with(" (check may report SuperblockFieldMisleads instead)\n"), "{said}");
        let found = exits(4, &["check", "-fn", "--json", image]);
        let found: serde_json::Value = serde_json::from_slice(&found.stdout).expect("JSON");
        let names: Vec<_> = found["problems"].as_array().expect("a list").iter().map(|p| p["name"].clone()).collect();
        assert!(names.contains(&"SuperblockFieldMisleads".into()), "{names:?}");
    }
    let list = prints(&["damage", "--list"]);
    let row = list.lines().find(|line| line.contains("  FirstDataBlockWrong: ")).expect("a row");
    assert!(row.ends_with(" (check may report SuperblockFieldMisleads instead)"), "{row}");
    // the last group has space for one block
    prints(&["mkfs", "-q", "-F", "-t", "ext3", "-b", "1024", image, "24M"]);
    let done = json(&["damage", "--json", image, "BeyondDevice"]);
    assert!(done[0]["instead"].is_null(), "{done}");
    let found = extant(&["check", "-fn", image]).text();
    assert!(found.contains("but the device ends after"), "{found}");
    // a value in an inode needs the feature
    let said = fails(1, &["damage", image, "XattrValueInodeFlagMissing"]);
    assert!(said.ends_with("the volume has no values in inodes"), "{said}");
}

/// If one of several kinds is not possible none is written; the examples in the help apply to a volume by mkfs.
#[test]
fn several_kinds_are_written_all_or_none() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (source, image) = (folder.path().join("source"), folder.path().join("volume"));
    std::fs::create_dir(&source).expect("mkdir");
    for n in 0..4 {
        std::fs::write(source.join(format!("f{n}")), [n; 9000]).expect("write");
    }
    let (source, image) = (text(&source), text(&image));
    prints(&["mkfs", "-q", "-d", source, image, "32M"]);
    let before = std::fs::read(image).expect("read");
    let said = fails(1, &["damage", image, "inode.shared", "indirect.pointer"]);
    assert!(said.ends_with("indirect.pointer: no file has such a map"), "{said}");
    assert!(std::fs::read(image).expect("read") == before);
    let help = prints(&["damage", "--help"]);
    let examples = help.lines().filter_map(|line| line.strip_prefix("  extant damage volume.img "));
    let examples: Vec<_> = examples.map(|rest| rest.split("  ").next().unwrap_or(rest)).collect();
    assert!(examples.iter().any(|words| words.contains(' ')) && examples.len() >= 3, "{help}");
    for words in examples {
        let words: Vec<_> = words.split(" && ").next().unwrap_or(words).split(' ').collect();
        prints(&["mkfs", "-q", "-F", "-d", source, image, "32M"]);
        prints(&[&["damage", image], &words[..]].concat());
    }
}

/// A check that was aborted names a backup superblock to try.
#[test]
fn a_copy_of_the_superblock_is_named() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let image = folder.path().join("volume");
    let image = text(&image);
    prints(&["mkfs", "-q", "-t", "ext4", "-b", "1024", image, "64M"]);
    prints(&["damage", image, "SuperblockFieldWrong"]);
    let said = extant(&["check", "-fn", image]).text();
    assert!(said.contains("Check aborted after ") && said.contains("tune2fs -m 5"), "{said}");
    assert!(said.contains("-b 8193 -B 1024"), "{said}");
    let said = extant(&["check", "-fp", image]).text();
    assert!(said.contains("tune2fs -m 5") && !said.contains("run with -fy"), "{said}");
    let said = extant(&["check", "-fn", "-b", "8193", "-B", "1024", image]).text();
    assert!(said.contains("Pass 5") && !said.contains("Check aborted") && said.contains("-fy -b 8193"), "{said}");
}

/// The descriptors are restored together with the superblock that makes all of them invalid.
#[test]
fn what_moves_the_descriptors_is_repaired_on_every_format() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let image = folder.path().join("volume");
    let image = text(&image);
    for format in [&["ext2", "-O", "^resize_inode"][..], &["ext4", "-O", "^resize_inode"], &["rext3"]] {
        prints(&[&["mkfs", "-q", "-F", "-b", "1024", "-t"], format, &[image, "64M"]].concat());
        prints(&["damage", image, "ReservedGdtBlocksWithoutFeature"]);
        let found = extant(&["check", "-fn", image]).text();
        assert!(found.contains("primary group descriptors are unusable"), "{format:?}: {found}");
        exits(1, &["check", "-fy", image]);
        exits(0, &["check", "-fn", image]);
    }
}

/// Every corruption of the paper's Table II, three times, on the paper's format.
#[test]
fn rext3_is_repaired() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = |name: &str| folder.path().join(name);
    std::fs::create_dir(at("in")).expect("mkdir");
    for n in 0..24u32 {
        let dir = at("in").join(format!("d{}", n % 4));
        std::fs::create_dir_all(&dir).expect("mkdir");
        // some with an indirect block, some with a double indirect block
        let len = 2000 + n as usize * if n < 20 { 2000 } else { 20_000 };
        std::fs::write(dir.join(format!("f{n}")), vec![n as u8 + 1; len]).expect("write");
    }
    let (fresh, damaged) = (at("fresh.img"), at("damaged.img"));
    let (fresh, damaged) = (text(&fresh), text(&damaged));
    prints(&["mkfs", "-t", "rext3", "-b", "1024", "-d", text(&at("in")), fresh, "24M"]);
    exits(0, &["check", "-fn", fresh]);
    let kinds = damage::TABLE2.iter().map(|row| row.name).chain(["IndirectBlockForeign"]);
    for kind in kinds {
        for seed in ["1", "2", "3"] {
            std::fs::copy(fresh, damaged).expect("copy");
            let said = prints(&["damage", damaged, kind, "--seed", seed]);
            let found = extant(&["check", "-fn", damaged]);
            // a superblock with an intact copy leads to advice
            assert!(
                matches!(found.exit, Some(0 | 4 | 12)) && found.text().contains("Pass"),
                "{said}: {}",
                found.text()
            );
            assert!(found.exit != Some(0) || kind.starts_with("superblock") || kind.starts_with("group"), "{said}");
            exits(1, &["check", "-fy", damaged]);
            let again = extant(&["check", "-fn", damaged]);
            assert_eq!(again.exit, Some(0), "{said}: {}", again.text());
        }
    }
}
