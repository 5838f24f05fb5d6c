//! Tests of `extant convert`.

use crate::common::{exits, extant, fails, prints, ready, sample, text};
use testkit::oracle::e2fsck;
use testkit::tools::must;
use testkit::{Image, need};

#[test]
fn a_volume_is_converted_and_back() {
    if !ready() || !need(&["e2fsck"]) {
        return;
    }
    let image = Image::from_bytes(&sample().image.bytes());
    let path = text(image.path());
    let tree = prints(&["tree", path]);
    assert!(prints(&["convert", "--to", "ext4", path]).ends_with("nothing to do: it has block bitmaps\n"));
    let said = prints(&["convert", "--to", "spacemap", "--metablockgroup", "1", path]);
    assert!(said.ends_with(": converted to spacemap\n"), "{said}");
    exits(0, &["check", "-fn", path]);
    assert_eq!(prints(&["tree", path]), tree);
    assert!(!e2fsck(image.path()).clean, "e2fsck takes it for ext4");
    exits(0, &["convert", "--to", "ext4", path]);
    let verdict = e2fsck(image.path());
    assert!(verdict.clean, "{}", verdict.text);
    assert_eq!(prints(&["tree", path]), tree);
    let help = prints(&["convert", "--help"]).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(help.contains("interrupted between two writes is finished by the next one"), "{help}");
}

#[test]
fn what_is_refused_is_not_changed() {
    if !ready() {
        return;
    }
    let image = Image::from_bytes(&sample().image.bytes());
    let path = text(image.path());
    exits(2, &["convert", path]);
    exits(2, &["convert", "--to", "xfs", path]);
    exits(2, &["convert", "--to", "ext4", "--metablockgroup", "4", path]);
    exits(2, &["convert", "--to", "spacemap", "--metablockgroup", "0", path]);
    fails(1, &["convert", "--to", "spacemap", "/nonexistent"]);
    let before = image.bytes();
    let said = exits(2, &["convert", "--to", "spacemap", "--metablockgroup", "3", path]).text();
    assert!(said.contains("must be a power of two"), "{said}");
    assert!(image.bytes() == before);
    // other formats are not converted to ext4, and the error names what to use
    for (kind, says) in [
        ("ext2", "it is ext2, and convert only changes"),
        ("ext3", "`tune2fs -O extent` makes it ext4"),
        ("rext3", "copy its files"),
        ("extant", "a native volume"),
    ] {
        let other = image.beside(kind);
        exits(0, &["mkfs", "-q", "-t", kind, text(&other), "32M"]);
        let before = std::fs::read(&other).unwrap();
        let said = fails(1, &["convert", "--to", "ext4", text(&other)]);
        assert!(said.contains(says), "{said}");
        assert!(std::fs::read(&other).unwrap() == before, "{kind}");
    }
    let other = image.beside("ext3");
    let said = fails(1, &["convert", "--to", "spacemap", text(&other)]);
    assert!(said.ends_with("`tune2fs -O extents,flex_bg DEVICE` adds it"), "{said}");
    must("tune2fs", &["-O", "extent", text(&other)]);
    assert!(prints(&["convert", "--to", "ext4", text(&other)]).contains("nothing to do"));
    extant(&["damage", path, "LinkCountWrong"]);
    let before = image.bytes();
    let said = fails(1, &["convert", "--to", "spacemap", path]);
    assert!(said.contains("has errors") && said.contains("extant check -fy"), "{said}");
    assert!(image.bytes() == before);
}
