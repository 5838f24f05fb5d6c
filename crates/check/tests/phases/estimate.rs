//! The estimate against what is read.

use super::ours;
use blockdev::MemoryDevice;
use extant_check::{DeviceSpeed, Options, estimate};
use testkit::{Image, Spec, Tree, need};

#[test]
fn no_less_than_the_known_part_is_read_and_no_more_than_three_times_the_whole() {
    if !need(&["mke2fs"]) {
        return;
    }
    let tree = Tree::new(5, &Spec::small());
    let speed = DeviceSpeed { bytes_per_second: 100e6, seek_seconds: 0.01, scattered_seconds: 0.01 };
    for args in [&["-t", "ext2", "-b", "1024"] as &[_], &["-t", "ext3", "-b", "4096"], &["-t", "ext4", "-b", "4096"]] {
        let empty = Image::mke2fs(args, 64 << 20).build().bytes();
        let full = Image::mke2fs(args, 64 << 20).with_tree(&tree).build().bytes();
        for bytes in [empty, full] {
            let report = ours(&bytes).expect("a volume");
            let device = MemoryDevice::from_vec(bytes);
            let foretold = estimate(&device, &Options::default(), Some(speed)).expect("a volume");
            let (work, scan) = (foretold.work, report.scan);
            assert!(work.known_bytes <= scan.bytes, "{args:?}: {work:?} {scan:?}");
            // on volumes as small as these, gaps read over weigh most
            assert!(work.bytes / 3 <= scan.bytes && scan.bytes <= work.bytes * 3, "{args:?}: {work:?} {scan:?}");
            assert_eq!((work.inodes, work.directories), (report.counts.inodes, report.counts.directories), "{args:?}");
            assert!((foretold.seconds - work.seconds(&speed)).abs() < 1e-9 && !foretold.measured);
        }
    }
}

#[test]
fn a_speed_is_measured_where_none_is_set() {
    if !need(&["mke2fs"]) {
        return;
    }
    let device = MemoryDevice::from_vec(Image::mke2fs(&["-t", "ext4"], 16 << 20).build().bytes());
    let foretold = estimate(&device, &Options::default(), None).expect("a volume");
    assert!(foretold.measured && foretold.seconds > 0.0 && foretold.speed.bytes_per_second > 0.0);
    assert!(foretold.to_string().contains("measured"));
    let json = serde_json::to_value(foretold).expect("JSON");
    assert!(json["work"]["known_bytes"].as_u64() > Some(0), "{json}");
    assert!(estimate(&MemoryDevice::from_vec(vec![0; 4096]), &Options::default(), None).is_err());
}
