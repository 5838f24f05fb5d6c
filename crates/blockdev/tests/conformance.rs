//! The conformance test, for every device and for references, boxes and `Arc`s of devices.

use std::sync::Arc;

use extant_blockdev::{BlockDevice, Error, MemoryDevice, Op, Overlay, ReadOnly, Write};
use simdev::Trace;
use tempfile::NamedTempFile;
use testkit::Rng;
use testkit::device::{BATCHINGS, DIRECT, Grouped, WRITE, conforms, content, forwards_groups};

fn file(len: u64) -> NamedTempFile {
    let file = NamedTempFile::new().unwrap();
    std::fs::write(file.path(), Rng::new(len).bytes(len as usize)).unwrap();
    file
}

#[test]
fn memory() {
    conforms(&MemoryDevice::zeroed(300_001).unwrap());
    let device = MemoryDevice::from_vec(Rng::new(1).bytes(262_144));
    conforms(&device);
    let seen = content(&device);
    assert_eq!(device.into_vec(), seen);
}

#[test]
fn files() {
    // the second length is not a multiple of a sector: O_DIRECT alone could neither read nor write its last bytes
    for len in [512 << 10, (300 << 10) + 700] {
        for options in [WRITE, DIRECT] {
            for batching in BATCHINGS {
                let file = file(len);
                let Some(device) = testkit::device::open(file.path(), options) else { return };
                let device = device.with_batching(batching);
                conforms(&device);
                let seen = content(&device);
                drop(device);
                assert!(std::fs::read(file.path()).unwrap() == seen, "{options:?} {batching:?}: not in the file");
            }
        }
    }
}

#[test]
fn wrapped_and_pointed_to() {
    let memory = || MemoryDevice::zeroed(256 << 10).unwrap();
    conforms(&Trace::new(memory()));
    conforms(&Trace::with_events(&memory(), 10));
    let shared: Arc<dyn BlockDevice> = Arc::new(Trace::new(memory()));
    conforms(&Trace::new(shared.clone()));
    let boxed: Box<dyn BlockDevice> = Box::new(memory());
    conforms(&Trace::new(boxed));
    let file = file(256 << 10);
    conforms(&Trace::new(Box::new(testkit::device::open(file.path(), WRITE).unwrap())));
}

#[test]
fn pointers_pass_on_what_a_device_promises() {
    forwards_groups(|below| below);
    forwards_groups(Box::new);
    forwards_groups(|below| -> Arc<dyn BlockDevice> { below });
    // content in memory survives nothing
    let below: Arc<dyn BlockDevice> = Arc::new(Grouped::zeroed(4096));
    assert_eq!(Overlay::new(below).geometry().group, 0);
}

#[test]
fn read_only() {
    let inner = Trace::new(MemoryDevice::from_vec(Rng::new(3).bytes(4096)));
    let before = content(&inner);
    let device = ReadOnly::new(&inner);
    assert!(device.geometry().read_only);
    assert_eq!(content(&device), before);
    inner.reset();
    assert!(matches!(device.write(0, &[1]), Err(Error::ReadOnly(Op::Write))));
    assert!(matches!(device.write_fresh(0, &[1]), Err(Error::ReadOnly(Op::Write))));
    assert!(matches!(device.flush(), Err(Error::ReadOnly(Op::Flush))));
    assert!(matches!(device.discard(0, 512), Err(Error::ReadOnly(Op::Discard))));
    let mut writes = [Write::new(0, &[1]), Write::new(9999, &[1])];
    device.write_many(&mut writes);
    assert!(writes.iter().all(|w| matches!(w.result, Err(Error::ReadOnly(Op::Write)))));
    assert_eq!(inner.counters(), Default::default(), "a change reached the underlying device");
    assert_eq!(content(&inner), before);
}

#[test]
fn a_file_opened_for_reading_is_not_changed() {
    let file = file(4096);
    let before = std::fs::read(file.path()).unwrap();
    let device = testkit::device::open(file.path(), Default::default()).unwrap();
    assert!(device.geometry().read_only);
    assert!(matches!(device.write(0, &[1]), Err(Error::ReadOnly(Op::Write))));
    assert!(matches!(device.flush(), Err(Error::ReadOnly(Op::Flush))));
    assert!(matches!(device.discard(0, 512), Err(Error::ReadOnly(Op::Discard))));
    let mut writes = [Write::new(0, &[1]), Write::new(512, &[1])];
    device.write_many(&mut writes);
    assert!(writes.iter().all(|w| matches!(w.result, Err(Error::ReadOnly(Op::Write)))));
    assert_eq!(std::fs::read(file.path()).unwrap(), before);
}

#[test]
fn memory_that_the_system_lacks_is_refused() {
    for len in [u64::MAX, 1 << 62] {
        assert!(matches!(MemoryDevice::zeroed(len), Err(Error::Open { .. })));
    }
}
