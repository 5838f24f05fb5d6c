//! Random calls compared with an array in memory: reads return the written data, also after reopening, and after
//! `drain`.

mod common;

use std::sync::Arc;
use std::time::Duration;

use blockdev::{BlockDevice, MemoryDevice};
use common::{Model, Step, format_options, options};
use extant_kero::{BLOCK, Kero, Options, drain, format};
use testkit::{Rng, cases};

/// The size of the device in bytes.
const DEVICE: u64 = 4 << 20;

fn run(rng: &mut Rng, log: u64, steps: u64) {
    let device = Arc::new(MemoryDevice::zeroed(DEVICE).unwrap());
    let mut bytes = vec![0; DEVICE as usize];
    rng.fill(&mut bytes[..1 << 20]);
    device.write(0, &bytes).unwrap();
    let empty = rng.chance(30);
    format(&device, &format_options(log, empty)).unwrap();
    let mut kero = Kero::open(device.clone(), options()).unwrap();
    let mut model = Model::new(&bytes, kero.geometry().len, empty);
    for now in 0..steps {
        let step = Step::draw(rng, &model, true);
        match step {
            Step::Reopen => {
                kero.flush().unwrap();
                model.flushed();
                drop(kero);
                kero = Kero::open(device.clone(), options()).unwrap();
            }
            Step::Kill => {
                // without a flush everything since the last one is lost, unless a group was split
                if kero.stats().split == 0 && kero.stats().by_time == 0 {
                    model.killed();
                } else {
                    kero.flush().unwrap();
                    model.flushed();
                }
                drop(kero);
                kero = Kero::open(device.clone(), options()).unwrap();
            }
            Step::Tick => kero.tick(Duration::from_millis(now * 100)).unwrap(),
            _ => step.run(&kero, &mut model).unwrap(),
        }
        let (at, len) = (rng.below(model.len()), rng.magnitude(40 * BLOCK));
        model.check(&kero, at, len);
    }
    kero.flush().unwrap();
    model.check(&kero, 0, model.len());
    let len = model.len();
    drop(kero);
    drain(&device, options()).unwrap();
    model.drained();
    model.check(&device, 0, len);
    assert!(Kero::open(device, options()).is_err());
}

#[test]
fn random_calls_do_what_an_array_does() {
    for case in cases("random_calls", 40) {
        let mut rng = case.rng();
        let log = *rng.pick(&[256 << 10, 512 << 10, 1 << 20]);
        run(&mut rng, log, 400);
    }
}

#[test]
fn short_ones_too() {
    for case in cases("short_calls", 1000) {
        let mut rng = case.rng();
        let steps = rng.between(1, 20);
        run(&mut rng, 256 << 10, steps);
    }
}

#[test]
fn threads_see_their_own_writes() {
    let device = Arc::new(MemoryDevice::zeroed(12 << 20).unwrap());
    format(&device, &format_options(1 << 20, true)).unwrap();
    let kero = Kero::open(device.clone(), options()).unwrap();
    let threads = 4u64;
    let last: Vec<Vec<u8>> = std::thread::scope(|scope| {
        let work = |thread: u64| {
            let kero = &kero;
            move || {
                let mut rng = Rng::new(thread);
                let mut mine = vec![0u8; 200];
                for round in 0..600u64 {
                    let block = rng.below(200);
                    let value = rng.below(255) as u8 + 1;
                    let at = (thread + threads * block) * BLOCK;
                    let bytes = [value; BLOCK as usize];
                    if rng.chance(40) { kero.write_fresh(at, &bytes) } else { kero.write(at, &bytes) }.unwrap();
                    mine[block as usize] = value;
                    match rng.below(10) {
                        0 => kero.flush().unwrap(),
                        1 => drop(kero.idle(8).unwrap()),
                        2 => kero.tick(Duration::from_millis(round * 50)).unwrap(),
                        _ => {}
                    }
                    let block = rng.below(200);
                    let mut byte = [0];
                    kero.read((thread + threads * block) * BLOCK + 77, &mut byte).unwrap();
                    // blocks that were never written have the content of a discarded device
                    assert!(
                        mine[block as usize] == 0 || byte[0] == mine[block as usize],
                        "thread {thread} block {block}"
                    );
                }
                kero.flush().unwrap();
                mine
            }
        };
        let started: Vec<_> = (0..threads).map(|thread| scope.spawn(work(thread))).collect();
        started.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(kero.stats().checkpoints > 0 && kero.stats().hit_bytes > 0);
    drop(kero);
    drain(&device, options()).unwrap();
    for (thread, mine) in (0..).zip(&last) {
        for (block, value) in (0..).zip(mine).filter(|(_, value)| **value != 0) {
            let mut byte = [0];
            device.read((thread + threads * block) * BLOCK + 4095, &mut byte).unwrap();
            assert_eq!(byte[0], *value, "thread {thread} block {block}");
        }
    }
}

/// The number of bytes written to the device for each byte, with groups of `blocks` blocks.
fn factor(empty: bool, groups: u64, blocks: u64, mut address: impl FnMut(u64) -> u64) -> f64 {
    let device = MemoryDevice::zeroed(160 << 20).unwrap();
    format(&device, &format_options(32 << 20, empty)).unwrap();
    let kero = Kero::open(&device, options()).unwrap();
    let mut number = 0;
    for _ in 0..groups {
        for _ in 0..blocks {
            kero.write(address(number) * BLOCK, &[number as u8; BLOCK as usize]).unwrap();
            number += 1;
        }
        kero.flush().unwrap();
    }
    assert_eq!(kero.stats().split, 0);
    kero.stats().write_factor()
}

#[test]
fn each_block_is_written_once_or_twice() {
    let fresh = factor(true, 400, 64, |number| number);
    let hot = factor(false, 1500, 24, |number| number % 240);
    let cold = factor(false, 600, 64, |number| number * 7919 % 30_011);
    assert!(fresh <= 1.02, "{fresh}");
    assert!(hot <= 1.05, "{hot}");
    assert!(cold <= 2.05, "{cold}");
}

#[test]
fn the_location_of_a_block_is_where_the_device_has_its_content() {
    let device = Arc::new(MemoryDevice::zeroed(DEVICE).unwrap());
    format(&device, &format_options(256 << 10, false)).unwrap();
    let kero = Kero::open(device.clone(), options()).unwrap();
    assert_eq!(kero.location(5 * BLOCK + 1), Some(5 * BLOCK));
    kero.write(5 * BLOCK, &[9; BLOCK as usize]).unwrap();
    assert_eq!(kero.location(5 * BLOCK), None, "it is in memory");
    kero.flush().unwrap();
    let at = kero.location(5 * BLOCK).unwrap();
    let mut bytes = [0; BLOCK as usize];
    device.read(at, &mut bytes).unwrap();
    assert!(at >= kero.layout().slot(0) && bytes == [9; BLOCK as usize]);
    assert_eq!(kero.location(DEVICE), None, "it is beyond the data");
}

#[test]
fn large_groups_are_split_in_the_order_of_arrival() {
    let device = Arc::new(MemoryDevice::zeroed(DEVICE).unwrap());
    format(&device, &format_options(512 << 10, false)).unwrap();
    let kero = Kero::open(device.clone(), options()).unwrap();
    let fits = kero.group_bytes() / BLOCK;
    for block in 0..fits {
        kero.write((100 + block) * BLOCK, &[1; BLOCK as usize]).unwrap();
    }
    assert_eq!(kero.stats().split, 0);
    kero.flush().unwrap();
    for block in 0..100 {
        kero.write((100 + block) * BLOCK, &[2; BLOCK as usize]).unwrap();
    }
    assert!(kero.stats().split > 3);
    drop(kero);
    let kero = Kero::open(device, options()).unwrap();
    let mut bytes = vec![0; 100 * BLOCK as usize];
    kero.read(100 * BLOCK, &mut bytes).unwrap();
    let new = bytes.chunks(BLOCK as usize).take_while(|block| block[0] == 2).count();
    assert!((50..100).contains(&new), "{new}");
    assert!(bytes.chunks(BLOCK as usize).skip(new).all(|block| block[0] < 2));
}

#[test]
fn time_ends_a_group() {
    let device = Arc::new(MemoryDevice::zeroed(DEVICE).unwrap());
    format(&device, &format_options(512 << 10, false)).unwrap();
    let kero = Kero::open(device.clone(), options()).unwrap();
    let tenths = |tenths: u64| kero.tick(Duration::from_millis(100 * tenths)).unwrap();
    kero.write(0, &[1]).unwrap();
    tenths(9);
    assert_eq!(kero.stats().by_time, 0);
    tenths(10);
    assert_eq!((kero.stats().by_time, kero.stats().groups), (1, 1));
    for tenth in 11..59 {
        kero.write(0, &[2]).unwrap();
        tenths(tenth);
    }
    assert_eq!(kero.stats().by_time, 1, "never quiet, not old");
    kero.write(0, &[2]).unwrap();
    tenths(60);
    assert_eq!(kero.stats().by_time, 2);
    let again = Kero::open(device, options()).unwrap();
    let mut byte = [0];
    again.read(0, &mut byte).unwrap();
    assert_eq!(byte, [2]);
}

/// Blocks that move home meanwhile are not writes: a file system that sends no flush relies on the quiet second.
#[test]
fn going_home_does_not_delay_the_end_of_a_quiet_group() {
    let device = Arc::new(MemoryDevice::zeroed(DEVICE).unwrap());
    format(&device, &format_options(512 << 10, false)).unwrap();
    let kero = Kero::open(device, options()).unwrap();
    let tenth = |tenth: u64| kero.tick(Duration::from_millis(100 * tenth)).unwrap();
    // more than a quarter of the log is mapped, and cold
    for number in 0..36 {
        kero.write(2 * number * BLOCK, &[1; 4096]).unwrap();
        kero.flush().unwrap();
    }
    tenth(100);
    kero.write(BLOCK, &[2; 4096]).unwrap();
    let mut home = Vec::new();
    for now in 101..110 {
        tenth(now);
        home.push(kero.idle(1).unwrap());
    }
    assert!(home.iter().all(|count| *count > 0), "blocks move home all the time: {home:?}");
    assert_eq!(kero.stats().by_time, 0);
    tenth(110);
    assert_eq!(kero.stats().by_time, 1);
}

#[test]
fn what_fits_a_group_survives_together_whatever_time_it_is() {
    let device = Arc::new(MemoryDevice::zeroed(DEVICE).unwrap());
    format(&device, &format_options(512 << 10, false)).unwrap();
    assert_eq!(Kero::open(device.clone(), options()).unwrap().geometry().group, 0, "time may end a group");
    let open = || Kero::open(device.clone(), Options { by_time: false, ..options() }).unwrap();
    let kero = open();
    let (group, sector) = (kero.geometry().group, u64::from(kero.geometry().sector));
    assert!(group > 0);
    let blocks = || (0..group / sector).map(|number| (100 + 3 * number) * BLOCK);
    let written = |kero: &Kero<Arc<MemoryDevice>>| {
        let byte = |at: &u64| {
            let mut byte = [0];
            kero.read(*at, &mut byte).unwrap();
            byte == [1]
        };
        blocks().filter(byte).count() as u64
    };
    for (number, at) in blocks().enumerate() {
        kero.write(at, &[1; 4096]).unwrap();
        kero.tick(Duration::from_secs(100 * number as u64)).unwrap();
    }
    assert_eq!((written(&kero), written(&open())), (group / sector, 0));
    kero.flush().unwrap();
    assert_eq!(written(&open()), group / sector);
}
