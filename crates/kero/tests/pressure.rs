//! Many callers at once, small logs, large discards, devices that fail in the middle: no accepted data is lost, and
//! nothing ends the layer without need.

mod common;

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use blockdev::{BlockDevice, Geometry, MemoryDevice, Overlay};
use common::{format_options, options};
use extant_kero::{BLOCK, FormatOptions, Kero, format};
use simdev::{Fault, Faulty};
use testkit::Rng;

const BYTES: usize = BLOCK as usize;

/// A large device that takes memory only for written blocks; with flushes that take time, and writes that wait.
#[derive(Default)]
struct Sparse {
    len: u64,
    blocks: Mutex<HashMap<u64, [u8; BYTES]>>,
    flush: Duration,
    /// Writes of this byte wait until `released`.
    blocked: Option<u64>,
    waiting: AtomicBool,
    released: AtomicBool,
}

impl BlockDevice for Sparse {
    fn geometry(&self) -> Geometry {
        Geometry::new(self.len)
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> blockdev::Result<()> {
        let blocks = self.blocks.lock();
        for (at, byte) in (offset..).zip(buf) {
            *byte = blocks.get(&(at / BLOCK)).map_or(0, |block| block[(at % BLOCK) as usize]);
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> blockdev::Result<()> {
        if self.blocked.is_some_and(|blocked| (offset..offset + data.len() as u64).contains(&blocked)) {
            self.waiting.store(true, Ordering::SeqCst);
            while !self.released.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(1));
            }
        }
        let mut blocks = self.blocks.lock();
        for (at, byte) in (offset..).zip(data) {
            blocks.entry(at / BLOCK).or_insert([0; BYTES])[(at % BLOCK) as usize] = *byte;
        }
        Ok(())
    }

    fn flush(&self) -> blockdev::Result<()> {
        thread::sleep(self.flush);
        Ok(())
    }

    fn discard(&self, _: u64, _: u64) -> blockdev::Result<()> {
        Ok(())
    }
}

#[test]
fn many_writers_do_not_fill_a_short_log() {
    let device = Sparse { len: 8 << 20, flush: Duration::from_millis(2), ..Sparse::default() };
    format(&device, &format_options(256 << 10, false)).unwrap();
    let kero = Kero::open(&device, options()).unwrap();
    let threads = 48u64;
    thread::scope(|scope| {
        for thread in 0..threads {
            let kero = &kero;
            scope.spawn(move || {
                let mut rng = Rng::new(thread);
                for round in 0..30u8 {
                    let at = (thread * 8 + rng.below(8)) * BLOCK;
                    kero.write(at, &[round; BYTES]).unwrap();
                    if rng.chance(5) {
                        kero.flush().unwrap();
                    }
                }
                kero.write(thread * 8 * BLOCK, &[thread as u8; 8 * BYTES]).unwrap();
            });
        }
    });
    kero.flush().unwrap();
    drop(kero);
    let kero = Kero::open(&device, options()).unwrap();
    let mut byte = [0];
    for block in 0..threads * 8 {
        kero.read(block * BLOCK, &mut byte).unwrap();
        assert_eq!(u64::from(byte[0]), block / 8, "block {block}");
    }
}

#[test]
fn a_part_of_a_block_waits_for_the_whole_that_is_on_its_way() {
    let device = Sparse { len: 8 << 20, blocked: Some(300 * BLOCK), ..Sparse::default() };
    format(&device, &format_options(512 << 10, false)).unwrap();
    let kero = Kero::open(&device, options()).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| kero.write_fresh(300 * BLOCK, &[7; BYTES]).unwrap());
        while !device.waiting.load(Ordering::SeqCst) {
            thread::yield_now();
        }
        let part = scope.spawn(|| kero.write(300 * BLOCK + 512, &[9; 512]).unwrap());
        thread::sleep(Duration::from_millis(30));
        assert!(!part.is_finished());
        // others need not wait
        kero.write(301 * BLOCK + 1, &[1]).unwrap();
        device.released.store(true, Ordering::SeqCst);
    });
    let mut bytes = [0; BYTES];
    kero.read(300 * BLOCK, &mut bytes).unwrap();
    let expected: Vec<u8> = (0..BYTES).map(|at| if (512..1024).contains(&at) { 9 } else { 7 }).collect();
    assert_eq!(bytes[..], expected);
}

#[test]
fn all_of_a_large_device_is_discarded_with_a_short_log() {
    let device = Sparse { len: 400 << 30, ..Sparse::default() };
    format(&device, &FormatOptions { log: Some(4 << 20), ..FormatOptions::default() }).unwrap();
    let kero = Kero::open(&device, options()).unwrap();
    let (len, far) = (kero.geometry().len, 399 << 30);
    kero.write(far, &[1; BYTES]).unwrap();
    kero.flush().unwrap();
    kero.write(far + BLOCK, &[2; BYTES]).unwrap();
    kero.discard(512, len - 512).unwrap();
    kero.write(far + 2 * BLOCK, &[3; BYTES]).unwrap();
    kero.flush().unwrap();
    assert_eq!(kero.stats().split, 0);
    assert_eq!(kero.stats().in_place_bytes, 0, "the discard was not durable yet");
    kero.write(5 << 30, &[4; BYTES]).unwrap();
    kero.flush().unwrap();
    assert_eq!(kero.stats().in_place_bytes, BLOCK);
    drop(kero);
    let kero = Kero::open(&device, options()).unwrap();
    for (at, expected) in [(far + 2 * BLOCK, 3), (5 << 30, 4), (5 << 29, 0)] {
        let mut bytes = [9; BYTES];
        kero.read(at, &mut bytes).unwrap();
        assert_eq!(bytes, [expected; BYTES], "{at}");
    }
}

#[test]
fn idle_calls_do_not_overfill_the_group() {
    let device = MemoryDevice::zeroed(4 << 20).unwrap();
    format(&device, &format_options(256 << 10, false)).unwrap();
    let kero = Kero::open(&device, options()).unwrap();
    for round in 0..60u8 {
        for block in 0..5u64 {
            kero.write((100 + block + 5 * u64::from(round % 4)) * BLOCK, &[round; BYTES]).unwrap();
        }
        kero.flush().unwrap();
        for _ in 0..3 {
            kero.idle(1 << 20).unwrap();
        }
    }
    let mut byte = [0];
    for block in 0..20 {
        kero.read((100 + block) * BLOCK, &mut byte).unwrap();
        assert_eq!(u64::from(byte[0]), 56 + block / 5);
    }
}

#[test]
fn what_was_written_in_place_is_still_read_when_making_space_fails() {
    let base = Overlay::new(Arc::new(MemoryDevice::zeroed(4 << 20).unwrap()));
    format(&base, &format_options(256 << 10, false)).unwrap();
    // the home of a block that leaves the log
    let device = Faulty::new(base, vec![Fault::WriteError { range: 200 * BLOCK..201 * BLOCK }]);
    let kero = Kero::open(&device, options()).unwrap();
    kero.write(200 * BLOCK, &[1; BYTES]).unwrap();
    let mut failed = None;
    for round in 1..60u8 {
        kero.write(300 * BLOCK, &[round; BYTES]).unwrap();
        if kero.flush().is_err() {
            failed = Some((round, round, round - 1));
            break;
        }
        kero.write_fresh(300 * BLOCK, &[100 + round; BYTES]).unwrap();
        kero.write(400 * BLOCK, &[round; 4 * BYTES]).unwrap();
        if kero.flush().is_err() {
            failed = Some((round, 100 + round, round));
            break;
        }
    }
    let (round, in_place, other) = failed.expect("the log is short");
    println!("round {round}: {in_place}");
    for (block, expected) in [(200, 1), (300, in_place), (400, other)] {
        let mut bytes = [0; BYTES];
        kero.read(block * BLOCK, &mut bytes).unwrap();
        assert_eq!(bytes, [expected; BYTES], "block {block}");
    }
    let why = kero.write(0, &[1]).unwrap_err().to_string();
    assert!(why.contains("reads still work"), "{why}");
}
