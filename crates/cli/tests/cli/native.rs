//! Native volumes on the command line: made by default, used, checked, and damage in them found.

use crate::common::{exits, fails, json, prints, text};
use std::os::unix::fs::FileExt;

#[test]
fn a_native_volume_is_made_filled_looked_at_and_checked() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("volume");
    let report = prints(&["mkfs", text(&image), "32M"]);
    assert!(report.contains("is now extant, 32 MiB in 8192 blocks of 4 KiB"), "{report}");
    let file = folder.path().join("file");
    std::fs::write(&file, vec![b'x'; 100_000]).unwrap();
    exits(0, &["put", text(&image), text(&file), "/there"]);
    assert_eq!(prints(&["cat", text(&image), "/there"]).len(), 100_000);
    assert!(prints(&["ls", text(&image), "/"]).contains("there"));
    exits(0, &["check", "-fn", text(&image)]);
    exits(0, &["rm", text(&image), "/there"]);
    exits(0, &["check", "-fy", text(&image)]);
    prints(&["info", text(&image)]);
    // it is not overwritten unasked
    let sentence = fails(1, &["mkfs", "-t", "ext4", text(&image)]);
    assert!(sentence.contains("a native Extant volume"), "{sentence}");
    // a bit of the newest map's root: nothing can be read, and nothing is touched by a repair
    let bytes = std::fs::read(&image).unwrap();
    let generation = |copy: usize| u64::from_le_bytes(bytes[copy * 4096 + 504..][..8].try_into().unwrap());
    let newest = if generation(0) > generation(1) { 0 } else { 4096 };
    let root = u64::from_le_bytes(bytes[newest + 0x28..][..8].try_into().unwrap()) * 4096;
    let device = std::fs::File::options().write(true).open(&image).unwrap();
    device.write_all_at(&[bytes[root as usize] ^ 1], root).unwrap();
    exits(8, &["check", "-fn", text(&image)]);
    exits(8, &["check", "-fy", text(&image)]);
    assert_eq!(std::fs::read(&image).unwrap()[root as usize], bytes[root as usize] ^ 1);
    // without its superblock the generation before is the volume
    device.write_all_at(&[0; 512], newest as u64).unwrap();
    exits(0, &["check", "-fn", text(&image)]);
    let facts = json(&["mkfs", "-n", "-F", "--json", text(&image)]);
    assert_eq!((facts["format"].as_str(), facts["journal_blocks"].as_u64()), (Some("extant"), Some(0)));
}
