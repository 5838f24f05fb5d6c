//! Recorded devices: the log contains exactly the changes, and can be truncated anywhere.

use std::io;

use blockdev::{BlockDevice, Error, MemoryDevice, Op, Write};
use extant_simdev::{Fault, Faulty, Log, Logged, Record};
use proptest::prelude::*;
use tempfile::TempDir;
use testkit::Rng;
use testkit::device::{conforms, content};

const LEN: usize = 70_001; // not a multiple of any unit

#[derive(Debug, Clone)]
enum Change {
    Write(usize, Vec<u8>),
    Batch(Vec<(usize, Vec<u8>)>),
    Flush,
    Discard(usize, usize),
    Mark(String),
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    // runs of few different bytes, so that parts repeat
    (prop_oneof![0..300_usize, Just(4096), 0..20_000_usize], 0..4_u8).prop_map(|(len, byte)| vec![byte; len])
}

fn write() -> impl Strategy<Value = (usize, Vec<u8>)> {
    (prop_oneof![0..LEN, (0..LEN / 4096).prop_map(|n| n * 4096)], bytes()).prop_map(|(at, mut bytes)| {
        bytes.truncate(LEN - at);
        (at, bytes)
    })
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let change = prop_oneof![
        6 => write().prop_map(|(at, bytes)| Change::Write(at, bytes)),
        1 => proptest::collection::vec(write(), 0..5).prop_map(Change::Batch),
        2 => Just(Change::Flush),
        1 => (0..LEN, 0..LEN).prop_map(|(at, len)| Change::Discard(at, len.min(LEN - at))),
        1 => "[a-zé ]{0,9}".prop_map(Change::Mark),
    ];
    proptest::collection::vec(change, 0..30)
}

fn device() -> MemoryDevice {
    MemoryDevice::from_vec(Rng::new(5).bytes(LEN))
}

/// Makes the changes; returns the content after each entry of the log, and first the content before any.
fn make<D: BlockDevice>(device: &Record<D, Vec<u8>>, changes: &[Change]) -> Vec<Vec<u8>> {
    let mut states = vec![content(device)];
    let mut model = states[0].clone();
    for change in changes {
        match change {
            Change::Write(at, bytes) => {
                device.write(*at as u64, bytes).unwrap();
                model[*at..at + bytes.len()].copy_from_slice(bytes);
            }
            Change::Batch(batch) => {
                let mut writes: Vec<_> = batch.iter().map(|(at, bytes)| Write::new(*at as u64, bytes)).collect();
                device.write_many(&mut writes);
                assert!(writes.iter().all(|w| w.result.is_ok()));
                for (n, (at, bytes)) in batch.iter().enumerate() {
                    model[*at..at + bytes.len()].copy_from_slice(bytes);
                    if n + 1 < batch.len() {
                        states.push(model.clone());
                    }
                }
                if batch.is_empty() {
                    continue;
                }
            }
            Change::Flush => device.flush().unwrap(),
            Change::Discard(at, len) => {
                device.discard(*at as u64, *len as u64).unwrap();
                model[*at..at + len].fill(0);
            }
            Change::Mark(text) => device.mark(text).unwrap(),
        }
        states.push(model.clone());
        assert_eq!(device.point() as usize + 1, states.len());
    }
    assert!(content(device) == model);
    states
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn every_state_can_be_made_again(changes in changes()) {
        let recorded = Record::in_memory(device());
        let states = make(&recorded, &changes);
        let log = recorded.log().unwrap();
        prop_assert_eq!((log.device_len(), log.sector(), log.torn()), (LEN as u64, 512, 0));
        prop_assert_eq!(log.entries().len() + 1, states.len());
        for (point, state) in states.iter().enumerate() {
            let again = device();
            log.replay_to(point, &again).unwrap();
            prop_assert!(again.into_vec() == *state, "at point {}", point);
        }
        let marks: Vec<_> = log.entries().iter().filter_map(|e| match &e.what {
            Logged::Mark(text) => Some(text.clone()),
            _ => None,
        }).collect();
        let said: Vec<_> = changes.iter().filter_map(|c| match c {
            Change::Mark(text) => Some(text.clone()),
            _ => None,
        }).collect();
        prop_assert_eq!(marks, said);
        let mut flushes = 0;
        for entry in log.entries() {
            prop_assert_eq!(entry.epoch, flushes);
            flushes += u64::from(entry.what == Logged::Flush);
        }
    }

    #[test]
    fn a_log_cut_off_anywhere_has_the_entries_before(changes in changes(), cuts in proptest::collection::vec(0.0..1.0, 20)) {
        let recorded = Record::in_memory(device());
        make(&recorded, &changes);
        let (_, bytes) = recorded.finish().unwrap();
        let whole = Log::parse(bytes.clone()).unwrap();
        for cut in cuts {
            let cut = (cut * bytes.len() as f64) as usize;
            match Log::parse(bytes[..cut].to_vec()) {
                Ok(log) => {
                    prop_assert!(whole.entries().starts_with(log.entries()));
                    prop_assert!(log.torn() < 4096 + 13 + 1000, "{} bytes torn", log.torn());
                }
                Err(e) => prop_assert!(cut < 32 && matches!(e, Error::Corrupt { .. }), "cut at {}: {}", cut, e),
            }
            // one wrong bit ends the log there
            let mut harmed = bytes.clone();
            let Some(byte) = harmed.get_mut(cut) else { continue };
            *byte ^= 1 << (cut % 8);
            match Log::parse(harmed) {
                Ok(log) => {
                    prop_assert!(log.torn() > 0);
                    prop_assert!(log.entries().len() < whole.entries().len() || log.entries().is_empty());
                    prop_assert!(whole.entries().starts_with(log.entries()));
                }
                Err(_) => prop_assert!(cut < 32),
            }
        }
    }
}

#[test]
fn the_bytes_of_a_write_come_back_in_parts() {
    let recorded = Record::in_memory(device());
    let data = Rng::new(9).bytes(10_000);
    recorded.write(4000, &data).unwrap();
    recorded.flush().unwrap();
    let log = recorded.log().unwrap();
    let parts: Vec<_> = log.parts(0).collect();
    assert_eq!(
        parts.iter().map(|(at, bytes)| (*at, bytes.len())).collect::<Vec<_>>(),
        [(4000, 96), (4096, 4096), (8192, 4096), (12_288, 1712)]
    );
    assert_eq!(parts.iter().flat_map(|(_, bytes)| bytes.to_vec()).collect::<Vec<_>>(), data);
    assert_eq!(log.parts(1).count() + log.parts(2).count(), 0);
}

#[test]
fn what_was_written_before_is_not_stored_again() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("log");
    let recorded = Record::create(device(), &path).unwrap();
    let data = Rng::new(3).bytes(8 * 4096);
    for n in 0..100 {
        recorded.write(n % 3 * 4096, &data).unwrap();
        recorded.flush().unwrap();
    }
    let on_file = std::fs::metadata(&path).unwrap().len(); // before the recorder is closed: a flush reaches the file
    assert!(on_file < 8 * 4096 + 100 * 100, "{on_file}");
    let (below, _) = recorded.finish().unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), on_file);
    let log = Log::open(&path).unwrap();
    assert_eq!((log.entries().len(), log.torn()), (200, 0));
    let again = device();
    log.replay_to(usize::MAX, &again).unwrap();
    assert!(again.into_vec() == below.into_vec());
    let short = MemoryDevice::zeroed(LEN as u64 - 1).unwrap();
    assert!(matches!(log.replay_to(0, &short), Err(Error::OutOfRange { .. })));
    assert!(matches!(Log::open(&dir.path().join("none")), Err(Error::Open { .. })));
    assert!(matches!(Log::parse(b"no log at all, but long enough to be one".to_vec()), Err(Error::Corrupt { .. })));
}

#[test]
fn a_recorded_device_is_a_device() {
    conforms(&Record::in_memory(MemoryDevice::zeroed(300_001).unwrap()));
}

#[test]
fn what_failed_is_not_in_the_log() {
    let plan =
        vec![Fault::RequestError { request: 1 }, Fault::FlushError { flush: 0 }, Fault::RequestError { request: 4 }];
    let recorded = Record::in_memory(Faulty::new(device(), plan));
    recorded.write(0, &[1; 512]).unwrap();
    recorded.write(512, &[2; 512]).unwrap_err();
    recorded.flush().unwrap_err();
    let mut writes = [Write::new(1024, &[3]), Write::new(1025, &[4]), Write::new(1026, &[5])];
    recorded.write_many(&mut writes);
    assert_eq!(writes.map(|w| w.result.is_ok()), [true, false, true]);
    recorded.discard(0, u64::MAX).unwrap_err();
    let log = recorded.log().unwrap();
    let offsets: Vec<_> = log.entries().iter().map(|e| (e.epoch, e.what.clone())).collect();
    let write = |offset, len| (0, Logged::Write { offset, len });
    assert_eq!(offsets, [write(0, 512), write(1024, 1), write(1026, 1)]);
}

/// A sink for this number of bytes and no more.
struct Full(usize);

impl io::Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0 < bytes.len() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.0 -= bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_log_that_cannot_be_written_stops_all_changes() {
    assert!(Record::new(device(), Full(31)).is_err());
    let recorded = Record::new(device(), Full(5000)).unwrap();
    recorded.write(0, &[1; 4096]).unwrap();
    let Err(Error::Io { op: Op::Write, offset: 4096, len: 4096, source }) = recorded.write(4096, &[2; 4096]) else {
        panic!("written without a log")
    };
    assert_eq!(source.kind(), io::ErrorKind::StorageFull);
    // there would be space for these
    recorded.write(0, &[1; 4096]).unwrap_err();
    recorded.flush().unwrap_err();
    recorded.discard(0, 1).unwrap_err();
    recorded.mark("").unwrap_err();
    let mut writes = [Write::new(0, &[9])];
    recorded.write_many(&mut writes);
    assert!(matches!(writes[0].result, Err(Error::Io { op: Op::Write, offset: 0, len: 1, .. })));
    let mut byte = [0];
    recorded.read(0, &mut byte).unwrap();
    assert_eq!(byte, [1]);
    assert!(recorded.finish().is_err());
}
