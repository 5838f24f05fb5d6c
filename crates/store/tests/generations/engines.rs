//! The engines `none` and `dirty-bit`: the requests to the device, and their order.

use super::support::*;
use extant_store::engine::{DirtyBit, Unordered};
use simdev::Logged;
use std::time::Duration;

/// The requests to the device: the byte of a mark, `w` for a block, `|` for a flush.
fn log_text(device: &simdev::Record<blockdev::MemoryDevice, Vec<u8>>) -> String {
    let log = device.log().unwrap();
    let describe = |(index, entry): (usize, &simdev::Entry)| match entry.what {
        Logged::Write { offset: MARK_AT, .. } => char::from(log.parts(index).next().unwrap().1[0]),
        Logged::Write { .. } => 'w',
        Logged::Flush => '|',
        _ => '?',
    };
    log.entries().iter().enumerate().map(describe).collect()
}

#[test]
fn none_marks_the_volume_from_mount_to_unmount() {
    let device = recorded();
    let (store, _) = start(device.clone(), Box::new(Unordered::new(SIZE as u32, 64)));
    assert_eq!(log_text(&device), "n|");
    fill(&store, 1, 1);
    store.tick(Duration::ZERO).unwrap();
    store.tick(INTERVAL).unwrap();
    fill(&store, 2, 1);
    store.sync().unwrap();
    assert_eq!(log_text(&device), "n|w|w|", "after the interval, and when a caller waits");
    store.stop_writing().unwrap();
    assert_eq!(log_text(&device), "n|w|w|c|");
}

#[test]
fn the_dirty_bit_is_set_before_the_first_write_and_taken_away_when_it_is_quiet() {
    let device = recorded();
    let (store, client) = start(device.clone(), Box::new(DirtyBit::new(SIZE as u32, 64)));
    let tick = |millis| store.tick(Duration::from_millis(millis)).unwrap();
    assert_eq!(log_text(&device), "", "opening writes nothing");
    fill(&store, 1, 1);
    assert_eq!(log_text(&device), "", "no operation waits for the mark");
    store.sync().unwrap();
    assert_eq!(log_text(&device), "n|w|");
    fill(&store, 2, 1);
    store.sync().unwrap();
    assert_eq!(log_text(&device), "n|w|w|", "marked once for a busy period");
    tick(0);
    fill(&store, 3, 1);
    tick(500);
    tick(1400);
    assert_eq!(log_text(&device), "n|w|w|", "not quiet for long enough");
    tick(1500);
    assert_eq!(log_text(&device), "n|w|w|w|", "written after a second without an operation");
    tick(1700);
    assert_eq!(log_text(&device), "n|w|w|w|c|");
    tick(9000);
    store.sync().unwrap();
    assert_eq!(log_text(&device), "n|w|w|w|c|", "a clean volume is not written");
    fill(&store, 4, 1);
    store.stop_writing().unwrap();
    assert_eq!(log_text(&device), "n|w|w|w|c|n|w|c|");
    assert_eq!(client.durable.load(std::sync::atomic::Ordering::SeqCst), store.durable_generation());
}

#[test]
fn what_is_due_next_is_known() {
    let due = |store: &extant_store::Store, millis| {
        let now = Duration::from_millis(millis);
        store.tick(now).unwrap();
        store.next_due(now, false, false)
    };
    let (store, _) = start(recorded(), Box::new(DirtyBit::new(SIZE as u32, 64)));
    let quiet = |millis| Some(Duration::from_millis(millis) + Duration::from_secs(1));
    assert_eq!(due(&store, 0), None, "nothing was done");
    fill(&store, 1, 1);
    assert_eq!(due(&store, 100), quiet(100), "the quiet time ends before the interval");
    fill(&store, 2, 1);
    assert_eq!(due(&store, 600), quiet(600), "it begins anew");
    assert_eq!(due(&store, 1600), quiet(600), "everything is written, but the volume is still marked");
    assert_eq!(due(&store, 1700), None, "the volume is marked clean");
    let (store, _) = start(recorded(), Box::new(Unordered::new(SIZE as u32, 64)));
    assert_eq!(due(&store, 0), None);
    fill(&store, 1, 1);
    assert_eq!(due(&store, 100), Some(Duration::from_millis(100) + INTERVAL));
    store.sync().unwrap();
    assert_eq!(due(&store, 200), None, "a sync wrote it");
}

#[test]
fn work_is_reported_behind_each_operation() {
    let (store, _) = start(recorded(), Box::new(Unordered::new(SIZE as u32, 64)));
    let seen = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counter = std::sync::Arc::clone(&seen);
    store.on_work(Box::new(move || _ = counter.fetch_add(1, std::sync::atomic::Ordering::SeqCst)));
    fill(&store, 1, 1);
    assert_eq!(seen.load(std::sync::atomic::Ordering::SeqCst), 1);
    store.sync().unwrap();
    assert_eq!(seen.load(std::sync::atomic::Ordering::SeqCst), 2, "and after a plan");
}

#[test]
fn a_generation_without_a_waiting_caller_is_flushed_before_the_clean_mark() {
    let device = recorded();
    let (store, _) = start(device.clone(), Box::new(DirtyBit::new(SIZE as u32, 8)));
    for n in 0..16 {
        fill(&store, n * 2, 1);
    }
    let written = log_text(&device);
    assert!(written.starts_with("n|w") && !written.ends_with('|'), "{written}");
    store.stop_writing().unwrap();
    let end = log_text(&device);
    assert!(end.ends_with("w|c|"), "{end}");
}

#[test]
fn a_volume_that_was_only_read_is_not_marked() {
    let device = recorded();
    let (store, _) = start(device.clone(), Box::new(DirtyBit::new(SIZE as u32, 64)));
    store.stop_writing().unwrap();
    assert_eq!(log_text(&device), "");
}
