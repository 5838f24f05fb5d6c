//! Two instances on one device, like two servers on shared storage: no lock separates them. The one that did not write
//! last notices it before its next group, and acknowledged data of the other one stays.

mod common;

use std::sync::Arc;

use blockdev::{BlockDevice, MemoryDevice};
use common::{format_options, mutated, options};
use extant_kero::{BLOCK, Kero, Mutant, Options, format};
use simdev::{Model, Parameters};
use testkit::cases;

type Device = Arc<MemoryDevice>;
const BYTES: usize = BLOCK as usize;

fn device(log: u64, empty: bool) -> Device {
    let device = Arc::new(MemoryDevice::zeroed(6 << 20).unwrap());
    format(&device, &format_options(log, empty)).unwrap();
    device
}

fn open(device: &Device) -> Kero<Device> {
    Kero::open(device.clone(), Options { by_time: false, ..options() }).unwrap()
}

fn byte(kero: &dyn BlockDevice, block: u64) -> blockdev::Result<u8> {
    let mut byte = [0];
    kero.read(block * BLOCK, &mut byte).map(|()| byte[0])
}

fn put(kero: &dyn BlockDevice, block: u64, byte: u8) -> blockdev::Result<()> {
    kero.write(block * BLOCK, &[byte; BYTES])
}

/// All bytes of the device.
fn all(device: &Device) -> Vec<u8> {
    let mut bytes = vec![0; device.geometry().len as usize];
    device.read(0, &mut bytes).unwrap();
    bytes
}

/// Checks that all calls are refused with the message, and that nothing is written.
fn is_refused(kero: &Kero<Device>) {
    let before = all(kero.device());
    let mut buf = [0];
    let outcomes = [
        put(kero, 7, 9),
        kero.write_fresh(800 * BLOCK, &[9; BYTES]),
        kero.discard(0, 1 << 20),
        kero.flush(),
        kero.idle(64).map(drop).map_err(blockdev_error),
        byte(kero, 7).map(drop),
        {
            let mut reads = [blockdev::Read::new(0, &mut buf)];
            kero.read_many(&mut reads);
            let [read] = reads;
            read.result
        },
    ];
    for outcome in outcomes {
        let said = outcome.unwrap_err().to_string();
        assert!(said.contains("another server writes to the device"), "{said}");
    }
    assert!(all(kero.device()) == before, "something was written");
}

fn blockdev_error(error: extant_kero::Error) -> blockdev::Error {
    let source = std::io::Error::other(error.to_string());
    blockdev::Error::Io { op: blockdev::Op::Write, offset: 0, len: 0, source }
}

#[test]
fn the_first_one_notices_at_its_next_flush() {
    let device = device(512 << 10, false);
    let first = open(&device);
    put(&first, 1, 1).unwrap();
    first.flush().unwrap();
    // both may read
    let second = open(&device);
    assert_eq!(byte(&second, 1).unwrap(), 1);
    put(&first, 2, 1).unwrap();
    put(&second, 2, 2).unwrap();
    second.flush().unwrap();
    let acknowledged = all(&device);
    let said = first.flush().unwrap_err().to_string();
    assert!(said.contains("another server writes to the device"), "{said}");
    assert!(!said.contains('\n') && said.contains("use a device from one place at a time"), "{said}");
    is_refused(&first);
    drop(first);
    assert!(all(&device) == acknowledged, "something was written");
    put(&second, 3, 2).unwrap();
    second.flush().unwrap();
    drop(second);
    let third = open(&device);
    let found: Vec<u8> = (1..4).map(|block| byte(&third, block).unwrap()).collect();
    assert_eq!(found, [1, 2, 2]);
}

#[test]
fn one_that_was_opened_before_the_other_wrote_does_not_begin() {
    let device = device(512 << 10, false);
    let [first, second] = [open(&device), open(&device)];
    for round in 1..20 {
        put(&first, 5, round).unwrap();
        first.flush().unwrap();
    }
    put(&second, 5, 99).unwrap();
    second.flush().unwrap_err();
    is_refused(&second);
    put(&first, 6, 7).unwrap();
    first.flush().unwrap();
    // also if the only change is a group after the same superblock
    let [third, fourth] = [open(&device), open(&device)];
    put(&third, 6, 8).unwrap();
    third.flush().unwrap();
    put(&third, 6, 9).unwrap();
    third.flush().unwrap();
    fourth.discard(1 << 20, 1 << 20).unwrap();
    fourth.flush().unwrap_err();
    is_refused(&fourth);
    assert_eq!((byte(&open(&device), 5).unwrap(), byte(&open(&device), 6).unwrap()), (19, 9));
}

#[test]
fn one_in_the_middle_of_a_group_notices() {
    let device = Arc::new(MemoryDevice::zeroed(300 << 20).unwrap());
    format(&device, &format_options(256 << 20, false)).unwrap();
    let first = open(&device);
    // more than fits into memory: records of the group are written already
    first.write(100 * BLOCK, &vec![1; 5000 * BYTES]).unwrap();
    assert!(first.stats().log_bytes > 0 && first.stats().groups == 0, "{:?}", first.stats());
    let second = open(&device);
    put(&second, 100, 2).unwrap();
    second.flush().unwrap();
    first.flush().unwrap_err();
    is_refused(&first);
    assert_eq!((byte(&open(&device), 100).unwrap(), byte(&open(&device), 101).unwrap()), (2, 0));
}

#[test]
fn one_that_writes_in_place_or_moves_blocks_home_notices_before() {
    for in_place in [false, true] {
        let device = device(256 << 10, true);
        let first = open(&device);
        put(&first, 3, 1).unwrap();
        first.flush().unwrap();
        put(&first, 3, 1).unwrap();
        first.flush().unwrap();
        let second = open(&device);
        for round in 0..120 {
            put(&second, 3, round).unwrap();
            put(&second, 900, round).unwrap();
            second.flush().unwrap();
        }
        if in_place {
            first.write_fresh(900 * BLOCK, &[1; BYTES]).unwrap_err();
        } else {
            first.idle(64).unwrap_err();
        }
        is_refused(&first);
        assert_eq!((byte(&open(&device), 3).unwrap(), byte(&open(&device), 900).unwrap()), (119, 119));
    }
}

/// Three instances that write in random order; one that is refused is opened again. Fails if acknowledged data is
/// missing; returns the number of refusals.
fn race(mutant: Mutant, rng: &mut testkit::Rng) -> Result<u32, String> {
    let device = device(1 << 20, rng.chance(50));
    let again = || Kero::open(device.clone(), Options { by_time: false, ..mutated(mutant) });
    // the writes of each since its last flush, on top of the state that it opened or flushed
    let fresh = || Ok::<_, String>((again().map_err(|e| e.to_string())?, Vec::<(u64, u8)>::new()));
    let mut openings = [fresh()?, fresh()?, fresh()?];
    // before an acknowledgement, data written in place may be visible or not
    let mut durable = [None; 64];
    let mut refused = 0;
    for _ in 0..400 {
        let index = rng.index(openings.len());
        let (kero, pending) = &mut openings[index];
        let block = rng.below(64);
        let value = rng.below(250) as u8 + 1;
        let done = match rng.below(10) {
            // no more than fits into a group
            0..6 if pending.len() < 5 => put(kero, 300 + block, value).map(|()| pending.push((block, value))),
            6 => kero.idle(8).map(drop).map_err(blockdev_error),
            _ => kero.flush().map(|()| {
                for (block, value) in pending.drain(..) {
                    durable[block as usize] = Some(value);
                }
            }),
        };
        if done.is_err() {
            refused += 1;
            openings[index] = fresh()?;
        }
        let look = again().map_err(|e| e.to_string())?;
        for (block, expected) in durable.iter().enumerate() {
            let found = byte(&look, 300 + block as u64).map_err(|e| e.to_string())?;
            if expected.is_some_and(|expected| expected != found) {
                return Err(format!("block {block} is {found}, {expected:?} was acknowledged"));
            }
        }
    }
    Ok(refused)
}

#[test]
fn nothing_that_was_acknowledged_is_lost() {
    for case in cases("three_openings", 12) {
        let refused = race(Mutant::Identity, &mut case.rng()).unwrap();
        assert!(refused > 20, "{refused}");
    }
    let lost = cases("three_openings", 12).any(|case| race(Mutant::NoInstanceCheck, &mut case.rng()).is_err());
    assert!(lost, "without the check acknowledged data is lost");
}

#[test]
fn the_look_takes_a_disk_little() {
    let time = |mutant| {
        let device = Model::new(MemoryDevice::zeroed(64 << 20).unwrap(), &Parameters::named("hdd").unwrap()).unwrap();
        format(&device, &format_options(16 << 20, false)).unwrap();
        let kero = Kero::open(device, mutated(mutant)).unwrap();
        let begun = kero.device().clock();
        for group in 0..400 {
            for block in 0..8 {
                put(&kero, (group * 7919 + block * 131) % 8192, block as u8).unwrap();
            }
            kero.flush().unwrap();
        }
        (kero.device().clock() - begun).as_secs_f64()
    };
    let (with, without) = (time(Mutant::Identity), time(Mutant::NoInstanceCheck));
    println!("400 groups of 8 blocks: {with:.3} s of the disk with the check, {without:.3} s without");
    assert!(with < without * 1.05, "{with} {without}");
}
