//! rext3 volumes as they are made: what is in them, for a judge that knows ext4, and where it lies.

mod common;

use common::assert_sound;
use common::plain::{image, plain};
use extant_fs::mkfs::{FeatureEdits, Kind, Layout, MkfsOptions};
use extant_fs::{GroupNo, InodeNo, Volume};
use format::checksum::crc32c;
use testkit::need;

/// Shapes, their length in MiB, and the CRC32C of all their bytes.
const SHAPES: &[(&[&str], u64, u32)] = &[
    (&["-t", "rext3", "-b", "1024"], 3, 0xFCED_38A0),
    (&["-t", "rext3", "-b", "1024", "-O", "^has_journal"], 40, 0x155D_74C1),
    (&["-t", "rext3", "-b", "4096"], 32, 0xD8C9_AF1D),
    (&["-t", "rext3", "-b", "4096", "-O", "^has_journal"], 140, 0xEDB2_0F25),
    (&["-t", "rext3", "-b", "4096", "-O", "extents", "-E", "region=8388608"], 136, 0xCC58_1512),
    (&["-t", "rext3", "-b", "2048", "-O", "flex_bg,^has_journal"], 70, 0xC996_0053),
    (&["-t", "rext3", "-b", "1024", "-O", "meta_bg,^has_journal", "-g", "2048"], 40, 0x6E80_1B83),
];

#[test]
fn new_volumes_are_sound_and_always_the_same() {
    if !need(&["e2fsck"]) {
        return;
    }
    let mut digests = Vec::new();
    for &(args, mib, _) in SHAPES {
        let image = image(args, mib << 20);
        digests.push(crc32c(!0, &image.bytes()));
        let seen = plain(image.bytes()).expect("a volume of type rext3");
        assert_eq!((&seen.strays[..], &seen.guests[..]), (&[][..], &[][..]), "{args:?}");
        // the journal of such a volume has two levels of indirect blocks, which would have to be longer for e2fsck
        if mib > 3 {
            assert_sound(image.path(), &args);
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
    for number in geometry.group_numbers() {
        let group = volume.group(number).expect("a descriptor");
        let whole = geometry.group_blocks(number);
        let own_end = if geometry.flex_groups > 1 {
            continue;
        } else {
            group.inode_table.get() + u64::from(geometry.itable_blocks)
        };
        let runs: Vec<_> = geometry.region_blocks(number, group.regions).collect();
        let [run] = &runs[..] else { panic!("group {number:?} has the regions {runs:?}") };
        assert!(run.start <= own_end && own_end < run.start + chunk, "{number:?} {run:?} {own_end}");
        assert!(
            run.end >= (own_end + wanted).min(whole.end) && run.end < own_end + wanted + chunk,
            "{number:?} {run:?}"
        );
    }
    assert!(volume.group(GroupNo(0)).expect("a descriptor").regions != 0);
}

#[test]
fn what_does_not_go_together_is_refused() {
    let made = |edit: &str, change: &dyn Fn(&mut MkfsOptions)| {
        let mut options = MkfsOptions::new(Kind::Rext3);
        let mut edits = FeatureEdits::default();
        edits.add(edit).expect("features");
        options.features = edits;
        change(&mut options);
        Layout::new(64 << 20, 512, &options).map(drop).map_err(|e| e.to_string())
    };
    assert_eq!(made("extents", &|_| {}), Ok(()));
    for edit in ["^64bit", "^metadata_csum", "^extant", "resize_inode", "bigalloc,extents"] {
        let why = made(edit, &|_| {}).expect_err(edit);
        assert!(why.contains("rext3"), "{edit}: {why}");
    }
    for bytes in [0, 1 << 30] {
        let why = made("", &|options| options.region_bytes = Some(bytes)).expect_err("a region");
        assert!(why.contains("regions of"), "{why}");
    }
    let mut options = MkfsOptions::new(Kind::Ext3);
    options.region_bytes = Some(4096);
    let why = Layout::new(64 << 20, 512, &options).map(drop).expect_err("regions").to_string();
    assert_eq!(why, "region= needs the type rext3");
    assert!(FeatureEdits::default().add("extant").is_err());
}
