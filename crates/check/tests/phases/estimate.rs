//! The estimate compared with the actual reads.

use super::ours;
use blockdev::{FileDevice, MemoryDevice, OpenOptions};
use extant_check::{DeviceSpeed, Options, Progress, check, estimate, estimate_if_long};
use format::native::Layout;
use format::native::map::{BlockKind, Entry};
use format::native::superblock::NativeSuperblock;
use simdev::{Model, Parameters, Trace};
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
            let forecast = estimate(&device, &Options::default(), Some(speed), &()).expect("a volume");
            let (work, scan) = (forecast.work, report.scan);
            assert!(work.known_bytes <= scan.bytes, "{args:?}: {work:?} {scan:?}");
            // on small volumes the gaps that are read through matter most
            assert!(work.bytes / 3 <= scan.bytes && scan.bytes <= work.bytes * 3, "{args:?}: {work:?} {scan:?}");
            assert_eq!((work.inodes, work.directories), (report.counts.inodes, report.counts.directories), "{args:?}");
            assert!((forecast.disk_seconds - work.seconds(&speed)).abs() < 1e-9 && !forecast.measured);
            assert!(forecast.processor_seconds > 0.0, "{forecast:?}");
        }
    }
}

/// A native volume has no estimate, and is not searched for copies of an ext superblock.
#[test]
fn a_native_volume_is_not_read_for_an_estimate() {
    let root = Entry { physical: 77, generation: 1, kind: BlockKind::MapNode, owner: 0, checksum: 0 };
    let superblock = NativeSuperblock {
        layout: Layout::new(1 << 14).expect("a layout"),
        uuid: [7; 16],
        generation: 1,
        unordered: false,
        reserved: true,
        root,
        chunks: 1,
        snapshots: 0,
        map_log: Vec::new(),
    };
    let mut bytes = vec![0; 64 << 20];
    bytes[..4096].copy_from_slice(&superblock.to_bytes());
    let device = Trace::new(MemoryDevice::from_vec(bytes));
    assert!(estimate_if_long(&device, &Options::default(), &()).is_none());
    assert!(estimate(&device, &Options::default(), None, &()).is_err());
    let read = device.counters().reads.bytes;
    assert!(read <= 64 << 10, "{read} bytes were read");
}

#[test]
fn a_speed_is_measured_where_none_is_set() {
    if !need(&["mke2fs"]) {
        return;
    }
    let device = MemoryDevice::from_vec(Image::mke2fs(&["-t", "ext4"], 16 << 20).build().bytes());
    let forecast = estimate(&device, &Options::default(), None, &()).expect("a volume");
    assert!(forecast.measured && forecast.seconds > 0.0 && forecast.speed.bytes_per_second > 0.0);
    assert!(forecast.to_string().contains("measured"));
    let json = serde_json::to_value(forecast).expect("JSON");
    assert!(json["work"]["known_bytes"].as_u64() > Some(0), "{json}");
    assert!(estimate(&MemoryDevice::from_vec(vec![0; 4096]), &Options::default(), None, &()).is_err());
}

/// A volume with many files of fourteen blocks in many folders, spread over its groups.
fn filled(args: &[&str]) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a folder");
    for n in 0..200 {
        let inner = folder.path().join(format!("d{n}"));
        std::fs::create_dir(&inner).expect("a folder");
        for m in 0..20 {
            std::fs::write(inner.join(format!("f{m}")), vec![7; 14 << 10]).expect("a file");
        }
    }
    Image::mke2fs(args, 128 << 20).with_folder(folder.path()).build().bytes()
}

/// Compares the estimate with the check by the clock of a modelled disk, which is the same on every machine.
#[test]
fn a_modelled_disk_is_timed_by_its_own_clock() {
    if !need(&["mke2fs"]) {
        return;
    }
    let options = Options { threads: 1, ..Options::default() };
    for args in [
        &["-t", "ext2", "-b", "1024", "-N", "8192"][..],
        &["-t", "ext4", "-b", "1024", "-N", "8192", "-O", "^has_journal"],
    ] {
        let bytes = filled(args);
        let disk = || {
            let parameters = Parameters::named("hdd").expect("a disk");
            Model::new(MemoryDevice::from_vec(bytes.clone()), &parameters).expect("a model")
        };
        let (checked, estimated) = (disk(), disk());
        let report = check("volume", &checked, &options, &()).expect("a volume");
        assert!(report.clean, "{args:?}: {:?}", report.problems);
        let forecast = estimate(&estimated, &options, None, &()).expect("a volume");
        let taken = checked.clock().as_secs_f64();
        let ratio = forecast.disk_seconds / taken;
        assert!((1.0 / 1.5..1.5).contains(&ratio), "{args:?}: {ratio} of {taken} s: {forecast:?}");
        let again = estimate(&disk(), &options, None, &()).expect("a volume");
        assert!((again.disk_seconds - forecast.disk_seconds).abs() < 1e-9, "{args:?}: {again:?} {forecast:?}");
        // processor time is that of this machine
        let sum = forecast.disk_seconds + forecast.processor_seconds;
        assert!(forecast.processor_seconds > 0.0 && (forecast.seconds - sum).abs() < 1e-9, "{args:?}: {forecast:?}");
        // on a large volume the sample is only a part of the reads
        let (sampled, all) = (estimated.report().bytes_read, checked.report().bytes_read);
        assert!(all < 16 << 20 || sampled < all / 2, "{args:?}: {sampled} of {all} bytes");
    }
}

#[test]
fn a_check_is_estimated_where_it_may_take_long() {
    if !need(&["mke2fs"]) {
        return;
    }
    struct Cancelled;
    impl Progress for Cancelled {
        fn cancelled(&self) -> bool {
            true
        }
    }
    let small = MemoryDevice::from_vec(Image::mke2fs(&["-t", "ext4"], 16 << 20).build().bytes());
    assert_eq!(estimate_if_long(&small, &Options::default(), &()), None);
    // very many groups, each of which may be a seek
    let args = ["-t", "ext2", "-b", "4096", "-g", "8192", "-N", "65536", "-O", "^resize_inode"];
    let image = Image::mke2fs(&args, 128 << 30).build();
    let large = FileDevice::open(image.path(), OpenOptions::default()).expect("an image");
    let forecast = estimate_if_long(&large, &Options::default(), &()).expect("many seeks");
    assert!(forecast.measured && forecast.volume_bytes == 128 << 30, "{forecast:?}");
    assert_eq!(estimate_if_long(&large, &Options::default(), &Cancelled), None);
    assert_eq!(estimate_if_long(&MemoryDevice::from_vec(vec![0; 4096]), &Options::default(), &()), None);
}
