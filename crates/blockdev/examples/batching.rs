//! Measures the speed of the strategies for batches on a file or device; the defaults of `FileDevice` are based
//! on its figures.
//!
//! `cargo run --release -p extant-blockdev --example batching -- FILE [direct] [random] [cold] [overwrite] [REQUEST
//! [BATCH [TOTAL]]]`
//!
//! Reads TOTAL bytes (454M) of FILE in requests of REQUEST bytes (1M), BATCH (8) at a time; `random` in a random order
//! of requests, `cold` after dropping the file from the page cache; with `overwrite` it writes zeroes instead, and
//! flushes. Seven rounds, the strategies alternating; prints the minimum and the median time of each in milliseconds.

use std::error::Error;
use std::time::Instant;

use extant_blockdev::{AlignedBuf, Batching, BlockDevice, FileDevice, OpenOptions, Read, Write, parse_size};
use rustix::fs::{Advice, fadvise};

const ROUNDS: usize = 7;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("which file?")?;
    let (words, sizes): (Vec<_>, Vec<_>) =
        args.partition(|a| ["direct", "random", "cold", "overwrite"].contains(&a.as_str()));
    let chosen = |word: &str| words.iter().any(|w| w == word);
    let size = |n: usize, default: &str| parse_size(sizes.get(n).map_or(default, String::as_str));
    let (request, batch, total) = (size(0, "1M")? as usize, size(1, "8")? as usize, size(2, "454M")?);

    let write = chosen("overwrite");
    let options = OpenOptions { direct: chosen("direct"), write, ..OpenOptions::default() };
    let mut order: Vec<u64> = {
        let len = FileDevice::open(&path, options)?.geometry().len;
        (0..len / request as u64).map(|n| n * request as u64).collect()
    };
    if chosen("random") {
        let mut seed = 1_u64;
        for i in (1..order.len()).rev() {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            order.swap(i, (seed >> 33) as usize % (i + 1));
        }
    }
    order.truncate((total / request as u64) as usize);

    let ways = [Batching::Serial, Batching::Threads, Batching::Queue];
    let mut times = [const { Vec::new() }; 3];
    let mut memory: Vec<_> = (0..batch).map(|_| AlignedBuf::zeroed(request, 4096)).collect();
    for _ in 0..ROUNDS {
        for (way, times) in ways.into_iter().zip(&mut times) {
            let device = FileDevice::open(&path, options)?.with_batching(way);
            if chosen("cold") {
                fadvise(std::fs::File::open(&path)?, 0, None, Advice::DontNeed)?;
            }
            let start = Instant::now();
            for offsets in order.chunks(batch) {
                if write {
                    let mut writes: Vec<_> =
                        offsets.iter().zip(&memory).map(|(&offset, data)| Write::new(offset, data)).collect();
                    device.write_many(&mut writes);
                    writes.into_iter().try_for_each(|w| w.result)?;
                    continue;
                }
                let mut reads: Vec<_> =
                    offsets.iter().zip(&mut memory).map(|(&offset, buf)| Read::new(offset, buf)).collect();
                device.read_many(&mut reads);
                reads.into_iter().try_for_each(|r| r.result)?;
            }
            if write {
                device.flush()?;
            }
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
    }
    for (way, mut times) in ways.into_iter().zip(times) {
        times.sort_by(f64::total_cmp);
        println!("{way:?}: {:.1} ms, middle {:.1} ms", times[0], times[ROUNDS / 2]);
    }
    Ok(())
}
