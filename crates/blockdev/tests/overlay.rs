//! Overlays: each behaves like an array of bytes, whatever is written to its clones and originals.

use std::collections::HashMap;
use std::sync::Arc;

use extant_blockdev::{BlockDevice, MemoryDevice, Overlay, Read, ReadOnly};
use proptest::prelude::*;
use simdev::{Fault, Faulty};
use testkit::Rng;
use testkit::device::{conforms, content};

const LEN: usize = 30_000; // seven pages and a part

#[derive(Debug, Clone)]
enum Step {
    Write(usize, usize, usize, u8),
    Restore(usize, usize, usize),
    Discard(usize, usize, usize),
    Clone(usize),
    Drop(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let place =
        || (prop_oneof![0..LEN, (0..LEN / 4096).prop_map(|n| n * 4096)], prop_oneof![Just(4096), 0..9000_usize]);
    let step = prop_oneof![
        5 => (any::<usize>(), place(), 0..3_u8).prop_map(|(which, (at, len), byte)| Step::Write(which, at, len.min(LEN - at), byte)),
        3 => (any::<usize>(), place()).prop_map(|(which, (at, len))| Step::Restore(which, at, len.min(LEN - at))),
        1 => (any::<usize>(), place()).prop_map(|(which, (at, len))| Step::Discard(which, at, len.min(LEN - at))),
        2 => any::<usize>().prop_map(Step::Clone),
        1 => any::<usize>().prop_map(Step::Drop),
    ];
    proptest::collection::vec(step, 0..60)
}

fn base() -> Vec<u8> {
    let mut bytes = vec![0; LEN];
    bytes[5000..9000].fill(1); // so that some writes change nothing
    bytes[20_000..].fill(2);
    bytes
}

proptest! {
    #[test]
    fn overlays_are_arrays_of_bytes(steps in steps()) {
        let base = base();
        let below = Arc::new(MemoryDevice::from_vec(base.clone()));
        let mut overlays = vec![(Overlay::new(Arc::new(ReadOnly::new(below.clone()))), base.clone())];
        for step in steps {
            let count = overlays.len();
            match step {
                Step::Write(which, at, len, byte) => {
                    let (overlay, model) = &mut overlays[which % count];
                    overlay.write(at as u64, &vec![byte; len]).unwrap();
                    model[at..at + len].fill(byte);
                }
                Step::Restore(which, at, len) => {
                    let (overlay, model) = &mut overlays[which % count];
                    overlay.write(at as u64, &base[at..at + len]).unwrap();
                    model[at..at + len].copy_from_slice(&base[at..at + len]);
                }
                Step::Discard(which, at, len) => {
                    let (overlay, model) = &mut overlays[which % count];
                    overlay.discard(at as u64, len as u64).unwrap();
                    model[at..at + len].fill(0);
                }
                Step::Clone(which) => {
                    let copy = overlays[which % count].clone();
                    overlays.push(copy);
                }
                Step::Drop(which) if count > 1 => drop(overlays.swap_remove(which % count)),
                Step::Drop(_) => {}
            }
        }
        for (overlay, model) in &overlays {
            prop_assert!(content(overlay) == *model);
            let differ = model.chunks(4096).zip(base.chunks(4096)).filter(|(a, b)| a != b).count();
            prop_assert_eq!(overlay.pages(), differ);
            prop_assert_eq!(overlay.fingerprint() == 0, differ == 0);
            for (other, content) in &overlays {
                prop_assert_eq!(overlay.fingerprint() == other.fingerprint(), model == content);
            }
            let mut buffers = [(0, vec![0; 10]), (4090, vec![0; 5000]), (LEN - 1, vec![0; 1]), (LEN, vec![])];
            let mut reads: Vec<_> = buffers.iter_mut().map(|(at, buf)| Read::new(*at as u64, buf)).collect();
            overlay.read_many(&mut reads);
            prop_assert!(reads.iter().all(|r| r.result.is_ok()));
            for (at, bytes) in &buffers {
                prop_assert!(*bytes == model[*at..at + bytes.len()]);
            }
        }
        prop_assert!(content(&below) == base);
    }
}

#[test]
fn an_overlay_is_a_writable_device_over_any_base() {
    let base: Arc<dyn BlockDevice> = Arc::new(ReadOnly::new(MemoryDevice::from_vec(Rng::new(1).bytes(300_001))));
    let before = content(&base);
    let overlay = Overlay::new(base.clone());
    conforms(&overlay);
    conforms(&overlay.clone());
    assert!(content(&base) == before);
}

#[test]
fn the_order_of_equal_pages_counts() {
    let base: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::zeroed(1 << 20).unwrap());
    let mut seen = HashMap::new();
    // two of 256 pages, each with one of two contents, written in either order
    for (first, second, a, b) in (0..256).flat_map(|f| (0..256).step_by(17).map(move |s| (f, s, 1 + f % 2, 1 + s % 3)))
    {
        if first == second {
            continue;
        }
        let overlay = Overlay::new(base.clone());
        overlay.write(first * 4096, &[a as u8; 4096]).unwrap();
        overlay.write(second * 4096, &[b as u8; 4096]).unwrap();
        let key = if first < second { (first, second, a, b) } else { (second, first, b, a) };
        let before = seen.insert(overlay.fingerprint(), key);
        assert!(before.is_none_or(|before| before == key), "{before:?} and {key:?}");
    }
    assert!(seen.len() > 2000);
}

#[test]
fn errors_of_the_base_are_passed_on() {
    let plan = vec![Fault::ReadError { range: 8192..8193 }];
    let base = Arc::new(Faulty::new(MemoryDevice::zeroed(16_384).unwrap(), plan));
    let overlay = Overlay::new(base);
    overlay.read(8000, &mut [0; 400]).unwrap_err();
    overlay.write(8192, &[1]).unwrap_err();
    overlay.write(4096, &[1; 4096]).unwrap();
    overlay.read(4096, &mut [0; 4096]).unwrap();
    assert_eq!(overlay.pages(), 1);
}
