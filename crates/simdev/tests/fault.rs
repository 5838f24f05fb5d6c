//! Tests that faults occur exactly where the plan has them, and nowhere else.

use std::mem::discriminant;

use blockdev::{BlockDevice, Error, MemoryDevice, Op, Read, Write};
use extant_simdev::{Fault, Faulty, Injected};
use proptest::prelude::*;
use rustix::io::Errno;
use testkit::Rng;
use testkit::device::{conforms, content};

const LEN: u64 = 64 << 10;

fn faulty(plan: Vec<Fault>) -> Faulty<MemoryDevice> {
    Faulty::new(MemoryDevice::from_vec(Rng::new(2).bytes(LEN as usize)), plan)
}

/// Checks that a request failed with an input or output error.
#[track_caller]
fn broken(result: Result<(), Error>, request: Op) {
    match result {
        Err(Error::Io { op, source, .. }) => {
            assert_eq!((op, Errno::from_io_error(&source)), (request, Some(Errno::IO)));
        }
        other => panic!("{other:?}"),
    }
}

fn injected<D: BlockDevice>(device: &Faulty<D>) -> Vec<(u64, usize)> {
    device.injected().iter().map(|Injected { request, fault }| (*request, *fault)).collect()
}

#[test]
fn without_a_plan_it_is_a_device_like_another() {
    let device = Faulty::new(MemoryDevice::zeroed(300_001).unwrap(), Vec::new());
    conforms(&device);
    assert!(device.injected().is_empty() && device.requests() > 500);
}

#[test]
fn ranges_that_cannot_be_read_or_written() {
    let device = faulty(vec![Fault::ReadError { range: 1000..1010 }, Fault::WriteError { range: 2000..2001 }]);
    let before = content(&MemoryDevice::from_vec(Rng::new(2).bytes(LEN as usize)));
    for (offset, len, fails) in [(0, 1000, false), (999, 2, true), (1005, 1, true), (1010, 9, false), (1005, 0, false)]
    {
        let result = device.read(offset, &mut vec![0; len]);
        if fails { broken(result, Op::Read) } else { result.unwrap() }
    }
    broken(device.write(1990, &[0; 20]), Op::Write);
    broken(device.write(2000, &[0; 1]), Op::Write);
    device.write(2001, &[7]).unwrap();
    device.write(1999, &[7]).unwrap();
    device.write(1000, &[7; 10]).unwrap();
    broken(device.read(1000, &mut [0; 10]), Op::Read); // still bad
    device.flush().unwrap();
    device.discard(0, 0).unwrap();
    assert_eq!(injected(&device), [(1, 0), (2, 0), (5, 1), (6, 1), (10, 0)]);
    let mut expected = before;
    expected[2001] = 7;
    expected[1999] = 7;
    expected[1000..1010].fill(7);
    assert!(device.into_inner().into_vec() == expected);
}

#[test]
fn a_latent_sector_is_healed_by_a_write_that_covers_it() {
    let device = faulty(vec![Fault::LatentSector { range: 1023..1025 }]); // sectors 1 and 2
    broken(device.read(512, &mut [0; 1]), Op::Read);
    broken(device.read(0, &mut [0; 4096]), Op::Read);
    device.read(0, &mut [0; 512]).unwrap();
    device.read(1536, &mut [0; 512]).unwrap();
    device.write(512, &[1; 511]).unwrap(); // a part of it
    broken(device.read(512, &mut [0; 1]), Op::Read);
    device.write(500, &[2; 600]).unwrap(); // covers sector 1, not 2
    let mut bytes = [0; 512];
    device.read(512, &mut bytes).unwrap();
    assert_eq!(bytes, [2; 512]);
    broken(device.read(1535, &mut [0; 1]), Op::Read);
    device.write(1024, &[3; 512]).unwrap();
    device.read(0, &mut [0; 4096]).unwrap();
}

#[test]
fn single_requests_and_flushes() {
    let device =
        faulty(vec![Fault::RequestError { request: 2 }, Fault::FlushError { flush: 1 }, Fault::Dead { request: 8 }]);
    device.read(0, &mut [0]).unwrap();
    device.flush().unwrap();
    broken(device.discard(0, 10), Op::Discard);
    device.discard(0, 10).unwrap();
    broken(device.flush(), Op::Flush);
    device.flush().unwrap();
    device.write(0, &[1]).unwrap();
    device.read(0, &mut [0]).unwrap();
    for _ in 0..3 {
        broken(device.read(0, &mut [0]), Op::Read);
        broken(device.write(0, &[2]), Op::Write);
        broken(device.flush(), Op::Flush);
        broken(device.discard(0, 1), Op::Discard);
    }
    assert_eq!(device.requests(), 20);
    assert_eq!(injected(&device)[..3], [(2, 0), (4, 1), (8, 2)]);
    assert_eq!(device.into_inner().into_vec()[0], 1);
}

#[test]
fn writes_that_do_not_arrive() {
    let device = faulty(vec![
        Fault::TornWrite { write: 0, sectors: 2, reported: false },
        Fault::TornWrite { write: 1, sectors: 1, reported: true },
        Fault::LostWrite { write: 2 },
        Fault::MisdirectedWrite { write: 3, to: 40_000 },
        Fault::MisdirectedWrite { write: 4, to: u64::MAX },
        Fault::TornWrite { write: 5, sectors: 8, reported: true },
    ]);
    let mut expected = content(&device);
    device.write(4096, &[1; 4096]).unwrap();
    expected[4096..5120].fill(1);
    broken(device.write(8292, &[2; 1000]), Op::Write); // the sector in which it begins ends at 8704
    expected[8292..8704].fill(2);
    device.write(0, &[3; 512]).unwrap();
    device.write(512, &[4; 512]).unwrap();
    expected[40_000..40_512].fill(4);
    device.write(512, &[5; 512]).unwrap();
    expected[LEN as usize - 512..].fill(5);
    device.write(0, &[6; 4096]).unwrap(); // not longer than the part that is written
    expected[..4096].fill(6);
    device.write(100, &[7]).unwrap();
    expected[100] = 7;
    assert_eq!(injected(&device), [(1, 0), (2, 1), (3, 2), (4, 3), (5, 4)]);
    assert!(content(&device) == expected);
}

#[test]
fn a_device_that_shrinks() {
    let device = faulty(vec![Fault::Shrink { request: 2, len: 8192 }, Fault::Shrink { request: 2, len: LEN * 2 }]);
    device.write(LEN - 1, &[1]).unwrap();
    assert_eq!(device.geometry().len, LEN);
    device.read(LEN - 1, &mut [0]).unwrap();
    assert_eq!(device.geometry().len, 8192);
    let Err(Error::OutOfRange { end: 8192, .. }) = device.read(8191, &mut [0; 2]) else { panic!("read beyond") };
    device.read(8191, &mut [0]).unwrap();
    device.write(8192, &[1]).unwrap_err();
    device.discard(8192, 1).unwrap_err();
    device.flush().unwrap();
    device.read(LEN, &mut [0]).unwrap_err(); // was never in range: no fault
    assert_eq!(injected(&device), [(2, 0), (4, 0), (5, 0)]);
}

#[test]
fn batches_meet_the_faults_of_their_requests() {
    let device = faulty(vec![Fault::RequestError { request: 1 }, Fault::LostWrite { write: 2 }]);
    let (mut a, mut b, mut c) = ([9; 4], [9; 4], [9; 4]);
    let mut reads = [Read::new(0, &mut a), Read::new(4, &mut b), Read::new(8, &mut c)];
    device.read_many(&mut reads);
    assert_eq!(reads.each_ref().map(|r| r.result.is_ok()), [true, false, true]);
    let before = content(&device);
    assert!(a == before[..4] && b == [9; 4] && c == before[8..12]);
    let mut writes = [Write::new(0, &[1]), Write::new(1, &[2]), Write::new(2, &[3]), Write::new(LEN, &[4])];
    device.write_many(&mut writes);
    assert_eq!(writes.map(|w| w.result.is_ok()), [true, true, true, false]);
    assert_eq!(content(&device)[..3], [1, 2, before[2]]);
}

/// Runs a small program on a device, continuing after errors: returns its results, and the final content.
fn program(device: &dyn BlockDevice, seed: u64) -> (Vec<bool>, Vec<u8>) {
    let mut numbers = Rng::new(seed);
    let mut found = Vec::new();
    let results = (0..40)
        .map(|n: u8| {
            let offset = numbers.below(LEN - 3000);
            let len = numbers.below(3000);
            match numbers.below(8) {
                0 => device.flush().is_ok(),
                1 => device.discard(offset, len).is_ok(),
                2..5 => {
                    let mut bytes = vec![0; len as usize];
                    let done = device.read(offset, &mut bytes).is_ok();
                    found.extend(bytes);
                    done
                }
                _ => device.write(offset, &vec![n; len as usize]).is_ok(),
            }
        })
        .collect();
    (results, found)
}

#[test]
fn any_one_request_can_be_made_to_fail() {
    let (all_well, _) = program(&faulty(Vec::new()), 1);
    for n in 0..40 {
        let device = faulty(vec![Fault::RequestError { request: n as u64 }]);
        let (results, _) = program(&device, 1);
        let failed: Vec<_> = (0..40).filter(|&i| results[i] != all_well[i]).collect();
        assert_eq!(failed, [n]);
        let dead = faulty(vec![Fault::Dead { request: n as u64 }]);
        let (results, _) = program(&dead, 1);
        assert!(results[..n].iter().all(|ok| *ok) && results[n..].iter().all(|ok| !*ok));
        assert_eq!(dead.injected().len(), 40 - n);
    }
}

#[test]
fn a_sample_has_all_kinds_and_the_same_seed_yields_the_same() {
    let sample = Fault::sample(7, 200, LEN, 100);
    assert_eq!(sample, Fault::sample(7, 200, LEN, 100));
    assert_ne!(sample, Fault::sample(8, 200, LEN, 100));
    let mut kinds: Vec<_> = sample.iter().map(discriminant).collect();
    kinds.sort_by_key(|kind| format!("{kind:?}"));
    kinds.dedup();
    assert_eq!(kinds.len(), 10);
    assert!(Fault::sample(7, 20, 0, 0).len() == 20);
}

proptest! {
    /// For any plan: the same in every run, and a request without an injected fault succeeds.
    #[test]
    fn plans_are_followed(seed: u64, count in 0..12_usize) {
        let plan = Fault::sample(seed, count, LEN, 40);
        let (first, second) = (faulty(plan.clone()), faulty(plan));
        let (results, found) = program(&first, seed);
        prop_assert_eq!(program(&second, seed), (results.clone(), found));
        prop_assert_eq!(first.injected(), second.injected());
        for (n, ok) in results.iter().enumerate() {
            let injected = first.injected().iter().any(|s| s.request == n as u64);
            prop_assert!(*ok || injected, "request {} failed by itself", n);
        }
        prop_assert!(first.into_inner().into_vec() == second.into_inner().into_vec());
    }
}
