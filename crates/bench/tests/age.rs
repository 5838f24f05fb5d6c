//! Aged volumes: consistent, with the requested fill level, and deterministic.

use blockdev::{BlockDevice, MemoryDevice};
use extant_bench::age::{Aged, LARGEST, Options, age};
use fs::mkfs::{Kind, MkfsOptions, make};
use fs::{Consistency, OpenOptions, Timestamp, Volume, WriteOptions};
use std::sync::Arc;
use testkit::{Image, need, oracle};

const LEN: u64 = 96 << 20;

/// A new volume that is aged, and the outcome.
fn aged(kind: Kind, options: &Options, steps: u64) -> (Vec<u8>, Aged) {
    let device = Arc::new(MemoryDevice::zeroed(LEN).expect("memory"));
    let plain = MkfsOptions::new(kind);
    let block_size = (kind != Kind::Extant).then_some(1024);
    make(device.as_ref(), &MkfsOptions { block_size, uuid: [7; 16], ..plain }).expect("mkfs");
    let write = WriteOptions {
        consistency: Some(Consistency::None),
        clock: Arc::new(|| Timestamp { seconds: 1_700_000_000, nanos: 0 }),
        seed: Some(1),
        superuser: true,
        ..WriteOptions::default()
    };
    let open = OpenOptions { write: Some(write), ..OpenOptions::default() };
    let volume = Volume::open(Arc::clone(&device) as Arc<dyn BlockDevice>, &open).expect("opening");
    let mut seen = 0;
    let mut progress = |done, total| {
        assert!(done <= total);
        seen += 1;
        seen < steps
    };
    let done = age(&volume, options, &mut progress).expect("aging");
    volume.unmount().expect("unmount");
    let mut bytes = vec![0; LEN as usize];
    device.read(0, &mut bytes).expect("reading");
    (bytes, done)
}

#[test]
fn an_aged_volume_is_consistent_and_full() {
    if !need(&["e2fsck"]) {
        return;
    }
    let options = Options { seed: 3, fill: 0.9, rounds: 20, largest: LARGEST };
    for kind in [Kind::Ext3, Kind::Ext4, Kind::Rext3] {
        let (bytes, done) = aged(kind, &options, u64::MAX);
        assert!((0.9..0.93).contains(&done.fill), "{kind:?}: {done:?}");
        assert_eq!((done.directories, done.rounds, done.stopped), (12, 20, false), "{kind:?}");
        assert_eq!(done.files, done.created - done.removed, "{kind:?}");
        assert!(done.removed > 0 && done.truncated > 0 && done.appended > 0, "{kind:?}: {done:?}");
        assert!(
            aged(kind, &options, u64::MAX) == (bytes.clone(), done),
            "{kind:?}: the result depends on the seed alone"
        );
        if kind != Kind::Rext3 {
            let verdict = oracle::e2fsck(Image::from_bytes(&bytes).path());
            assert!(verdict.clean, "{kind:?}: {}", verdict.text);
        }
    }
}

#[test]
fn it_ends_in_order_when_it_is_stopped() {
    if !need(&["e2fsck"]) {
        return;
    }
    let (bytes, done) = aged(Kind::Ext3, &Options { seed: 3, fill: 0.9, rounds: 20, largest: LARGEST }, 100);
    assert!(done.stopped && done.fill < 0.9, "{done:?}");
    let verdict = oracle::e2fsck(Image::from_bytes(&bytes).path());
    assert!(verdict.clean, "{}", verdict.text);
}

#[test]
fn a_native_volume_is_as_full_as_asked_of_its_device() {
    let options = Options { seed: 3, fill: 0.6, rounds: 0, largest: LARGEST };
    let (bytes, done) = aged(Kind::Extant, &options, u64::MAX);
    assert!((0.6..0.65).contains(&done.fill), "{done:?}");
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_vec(bytes));
    let volume = Volume::open(device, &OpenOptions::default()).expect("opening");
    let free = volume.statfs().blocks_free * 4096;
    assert!((0.35..=0.4).contains(&(free as f64 / LEN as f64)), "{free} bytes are free");
}
