//! Measures how many states of a volume an overlay can represent in a second, on one core: each is a clone of one with
//! some changed pages, with five blocks of 4 KiB written on top, and a look-up of its fingerprint among the previous
//! ones. The blocks are written from memory, then the same from a log.
//!
//! `cargo run --release -p extant-simdev --example overlay_states`

use std::collections::HashSet;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use blockdev::{BlockDevice, MemoryDevice, Overlay};
use extant_simdev::Record;

const LEN: u64 = 4 << 20;
const BLOCK: u64 = 4096;

/// Creates states from `parent` for a second; returns their number per second, and how many of them differ.
fn rate(parent: &Overlay, mut write: impl FnMut(u64, &Overlay)) -> (f64, usize) {
    let mut seen = HashSet::new();
    let start = Instant::now();
    let mut states = 0;
    while start.elapsed() < Duration::from_secs(1) {
        for _ in 0..100 {
            let state = parent.clone();
            write(states, &state);
            seen.insert(state.fingerprint());
            states += 1;
        }
    }
    (states as f64 / start.elapsed().as_secs_f64(), seen.len())
}

fn main() -> Result<(), Box<dyn Error>> {
    println!("pages changed before | states a second | from a log | of those different");
    for changed in [0, 16, 128, 1000] {
        let parent = Overlay::new(Arc::new(MemoryDevice::zeroed(LEN)?));
        for n in 0..changed {
            parent.write(n * BLOCK, &[n as u8 | 1; BLOCK as usize])?;
        }
        let mut numbers = fastrand::Rng::with_seed(1);
        let mut block = [7; BLOCK as usize];
        let mut places = || numbers.u64(0..LEN / BLOCK) * BLOCK;
        let (direct, _) = rate(&parent, |n, state| {
            for _ in 0..5 {
                block[..8].copy_from_slice(&n.to_le_bytes());
                state.write(places(), &block).expect("memory can be written");
            }
        });
        let recorded = Record::in_memory(parent.clone());
        for n in 0..100_u64 {
            block[..8].copy_from_slice(&n.to_le_bytes());
            recorded.write(places(), &block)?;
        }
        let log = recorded.log()?;
        let mut numbers = fastrand::Rng::with_seed(2);
        let (logged, different) = rate(&parent, |_, state| {
            for _ in 0..5 {
                log.apply(numbers.usize(0..100), state).expect("memory can be written");
            }
        });
        println!("{changed:>20} | {direct:>15.0} | {logged:>10.0} | {different:>18}");
    }
    Ok(())
}
