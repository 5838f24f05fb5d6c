//! New rext3 volumes: their content, for a checker that knows ext4, and the location of their blocks.

mod common;

use common::assert_valid;
use common::plain::{image, plain};
use extant_fs::mkfs::{FeatureEdits, Kind, MkfsOptions, VolumeImage};
use extant_fs::{GroupNo, InodeNo, Volume};
use format::checksum::crc32c;
use testkit::need;

/// Variants, their length in MiB, and the CRC32C of all their bytes.
const SHAPES: &[(&[&str], u64, u32)] = &[
    (&["-t", "rext3", "-b", "1024", "-O", "^flex_bg"], 3, 0xFCED_38A0),
    (&["-t", "rext3", "-b", "1024", "-O", "^has_journal,^flex_bg"], 40, 0x155D_74C1),
    (&["-t", "rext3", "-b", "4096", "-O", "^flex_bg"], 32, 0xD8C9_AF1D),
    (&["-t", "rext3", "-b", "4096", "-O", "^has_journal,^flex_bg"], 140, 0xEDB2_0F25),
    (&["-t", "rext3", "-b", "4096", "-O", "extents,^flex_bg", "-E", "region=8388608"], 136, 0xCC58_1512),
    (&["-t", "rext3", "-b", "1024", "-O", "meta_bg,^has_journal,^flex_bg", "-g", "2048"], 40, 0x6E80_1B83),
    (&["-t", "rext3", "-b", "1024"], 3, 0x0E55_82D2),
    (&["-t", "rext3", "-b", "4096", "-O", "extents", "-E", "region=8388608"], 136, 0x2EC1_C848),
    (&["-t", "rext3", "-b", "2048", "-O", "^has_journal"], 70, 0x62A1_C87F),
    (&["-t", "rext3", "-b", "1024", "-O", "^has_journal", "-g", "1024"], 40, 0xE017_7D68),
];

#[test]
fn new_volumes_are_consistent_and_always_the_same() {
    if !need(&["e2fsck"]) {
        return;
    }
    let mut digests = Vec::new();
    for &(args, mib, _) in SHAPES {
        let image = image(args, mib << 20);
        digests.push(crc32c(!0, &image.bytes()));
        let seen = plain(image.bytes()).expect("a volume of type rext3");
        assert_eq!((&seen.strays[..], &seen.guests[..]), (&[][..], &[][..]), "{args:?}");
        // the journal of such a volume has two levels of indirect blocks, and would have to be longer for e2fsck
        if mib > 3 {
            assert_valid(image.path(), &args);
        }
        let volume = common::open(image.path());
        regions_are_where_they_should_be(&volume);
        assert_eq!(volume.inode(InodeNo(11)).expect("lost+found").number, InodeNo(11));
    }
    let golden: Vec<u32> = SHAPES.iter().map(|shape| shape.2).collect();
    assert_eq!(digests, golden);
}

fn regions_are_where_they_should_be(volume: &Volume) {
    let geometry = &volume.superblock().geometry;
    let wanted = u64::from(volume.superblock().disk.x_region_blocks.get());
    let chunk = u64::from(geometry.chunk_blocks());
    let numbers: Vec<_> = geometry.group_numbers().collect();
    for mates in numbers.chunks(geometry.flex_groups.max(1) as usize) {
        let group = |number: &GroupNo| volume.group(*number).expect("a descriptor");
        let last = mates.iter().map(|number| group(number).inode_table.get()).max().expect("groups");
        let own_end = last + u64::from(geometry.itable_blocks);
        let runs = mates.iter().flat_map(|number| geometry.region_blocks(*number, group(number).regions));
        let (before, runs): (Vec<_>, Vec<_>) = runs.partition(|run| run.end <= own_end);
        let [first, ..] = &runs[..] else { panic!("{mates:?} have no region") };
        assert!(first.start <= own_end && own_end < first.start + chunk, "{mates:?} {runs:?} {own_end}");
        let there: u64 = runs.iter().chain(&before).map(|run| run.end - run.start).sum();
        let end = mates.iter().map(|number| geometry.group_blocks(*number).end).max().expect("groups");
        let wanted = wanted * mates.len() as u64;
        assert!(there >= wanted.min(end - own_end), "{mates:?} {runs:?} {wanted}");
        assert!(there < wanted + ((runs.len() + before.len()) as u64 + 1) * chunk, "{mates:?} {runs:?} {wanted}");
    }
}

#[test]
fn what_does_not_go_together_is_refused() {
    let made = |edit: &str, change: &dyn Fn(&mut MkfsOptions)| {
        let mut options = MkfsOptions::new(Kind::Rext3);
        let mut edits = FeatureEdits::default();
        edits.add(edit).expect("features");
        options.features = edits;
        change(&mut options);
        VolumeImage::new(64 << 20, 512, &options).map(drop).map_err(|e| e.to_string())
    };
    assert_eq!(made("extents", &|_| {}), Ok(()));
    for edit in ["^64bit", "^metadata_csum", "^extant", "resize_inode", "bigalloc,extents"] {
        let why = made(edit, &|_| {}).expect_err(edit);
        assert!(why.contains("rext3"), "{edit}: {why}");
    }
    for bytes in [0, 1 << 30] {
        let why = made("", &|options| options.region_bytes = Some(bytes)).expect_err("a region");
        assert!(why.contains("region="), "{why}");
    }
    let mut options = MkfsOptions::new(Kind::Ext3);
    options.region_bytes = Some(4096);
    let why = VolumeImage::new(64 << 20, 512, &options).map(drop).expect_err("regions").to_string();
    assert_eq!(why, "region= needs the type rext3");
    assert!(FeatureEdits::default().add("extant").is_err());
}
