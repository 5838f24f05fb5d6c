//! Generations: whole operations, copies of blocks that are being written, limits, timeouts, failures, threads.

mod engines;
mod support;
mod threads;

use extant_store::{ChangeRecord, CommitReason, Error, Part};
use format::{FsBlock, InodeNo};
use simdev::{Fault, Faulty, Trace};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use support::*;

fn rig(dirty_blocks: usize) -> (Arc<Trace<blockdev::MemoryDevice>>, Rig) {
    let device = Arc::new(Trace::new(memory()));
    (device.clone(), Rig::new(device, Showing::new(dirty_blocks)))
}

#[test]
fn a_generation_holds_what_its_operations_did() {
    let (device, rig) = rig(64);
    assert_eq!(fill(&rig.store, 9, 0xA1), 1);
    assert_eq!(fill(&rig.store, 4, 0xA2), 1);
    assert_eq!(fill(&rig.store, 9, 0xA3), 1);
    assert_eq!(block(&device, 9), 9, "nothing is written before the generation closes");
    rig.store.sync().unwrap();
    assert_eq!(fill(&rig.store, 5, 0xA4), 2);
    assert_eq!((block(&device, 4), block(&device, 9), block(&device, 5)), (0xA2, 0xA3, 5));
    let shown = rig.shown();
    assert_eq!(shown.len(), 1);
    assert_eq!((shown[0].number, shown[0].reason), (1, CommitReason::Sync));
    assert_eq!(shown[0].blocks.iter().map(|w| w.block.get()).collect::<Vec<_>>(), [4, 9]);
    assert_eq!(rig.client.durable.load(Ordering::SeqCst), 1);
    assert_eq!(rig.client.checksums.load(Ordering::SeqCst), 2, "the checksum of each block is set once");
    assert_eq!((rig.store.durable_generation(), rig.store.open_generation()), (1, 2));
}

#[test]
fn closing_adds_what_lies_elsewhere() {
    let (device, rig) = rig(64);
    *rig.client.adds.lock() = Some((200, 0xCC));
    rig.store.sync().unwrap();
    assert_eq!(*rig.client.finished.lock(), [], "nothing changed, nothing to finish");
    fill(&rig.store, 3, 1);
    rig.store.sync().unwrap();
    assert_eq!(*rig.client.finished.lock(), [2]);
    assert_eq!(block(&device, 200), 0xCC);
    let op = rig.store.begin(1).unwrap();
    op.forget(FsBlock(77), 1);
    drop(op);
    rig.store.sync().unwrap();
    assert_eq!(*rig.client.finished.lock(), [2, 3], "a block that was only freed is a change");
}

#[test]
fn what_is_on_its_way_retains_its_content() {
    let (device, rig) = rig(64);
    rig.home.store(false, Ordering::SeqCst);
    for (generation, byte) in [(1, 0xB1), (2, 0xB2), (3, 0xB3)] {
        assert_eq!(fill(&rig.store, 9, byte), generation);
        rig.store.sync().unwrap();
    }
    fill(&rig.store, 9, 0xB4);
    let contents: Vec<u8> = rig.shown().iter().map(|shown| shown.blocks[0].data[0]).collect();
    assert_eq!(contents, [0xB1, 0xB2, 0xB3]);
    assert_eq!(block(&device, 9), 9);
    assert_eq!(rig.store.block(FsBlock(9)).unwrap()[0], 0xB4);
}

#[test]
fn what_is_not_home_stays_in_memory() {
    let (device, rig) = rig(64);
    rig.home.store(false, Ordering::SeqCst);
    for number in 0..60 {
        fill(&rig.store, number, 0xD0);
        if number % 20 == 0 {
            rig.store.sync().unwrap();
        }
    }
    // far more than the capacity of the cache
    (100..250).for_each(|number| drop(rig.store.block(FsBlock(number)).unwrap()));
    let before = device.counters().reads.requests;
    (0..60).for_each(|number| assert_eq!(rig.store.block(FsBlock(number)).unwrap()[0], 0xD0));
    assert_eq!(device.counters().reads.requests, before);
    rig.home.store(true, Ordering::SeqCst);
    rig.store.sync().unwrap();
    (100..250).for_each(|number| drop(rig.store.block(FsBlock(number)).unwrap()));
    (0..60).for_each(|number| assert_eq!(rig.store.block(FsBlock(number)).unwrap()[0], 0xD0));
    assert!(device.counters().reads.requests > before + 150, "blocks that are home can be evicted");
}

#[test]
fn a_freed_block_is_not_written_and_its_place_may_hold_data() {
    let (device, rig) = rig(64);
    let forget = |first, count| rig.store.begin(1).unwrap().forget(FsBlock(first), count);
    fill(&rig.store, 9, 0xE1);
    forget(9, 1);
    forget(30, 5);
    rig.store.sync().unwrap();
    assert!(rig.shown()[0].blocks.is_empty());
    assert_eq!(rig.shown()[0].forgotten, [(9, 1), (30, 5)]);
    assert_eq!(block(&device, 9), 9);

    // freed while an older content is being written: that counts until its pin is removed
    rig.home.store(false, Ordering::SeqCst);
    fill(&rig.store, 10, 0xE2);
    rig.store.sync().unwrap();
    forget(10, 1);
    rig.home.store(true, Ordering::SeqCst);
    rig.store.sync().unwrap();
    rig.store.begin(1).unwrap().write_data(InodeNo(12), FsBlock(10), 0, &[0xE3; SIZE]).unwrap();
    assert_eq!(rig.store.block(FsBlock(10)).unwrap()[0], 0xE3, "the old content was still in the cache");

    // freed and allocated again in one generation
    fill(&rig.store, 11, 0xE4);
    forget(11, 1);
    rig.store.begin(1).unwrap().fresh(FsBlock(11), TAG, |bytes| bytes[1..].fill(0xE5));
    rig.store.sync().unwrap();
    let shown = rig.shown().pop().unwrap();
    assert_eq!((shown.blocks.len(), shown.forgotten), (1, vec![(11, 1)]));
    assert_eq!(shown.blocks[0].data[..2], [0, 0xE5], "a fresh block begins as zeroes");
}

#[test]
fn a_long_run_is_forgotten_at_once() {
    let (_, rig) = rig(64);
    for n in 0..40 {
        fill(&rig.store, n, 0xE0);
    }
    rig.store.begin(1).unwrap().forget(FsBlock(10), 1 << 40);
    rig.store.sync().unwrap();
    let left: Vec<_> = rig.shown()[0].blocks.iter().map(|w| w.block.get()).collect();
    assert_eq!(left, (0..10).collect::<Vec<_>>());
}

#[test]
fn the_limit_closes_generations() {
    let (_, rig) = rig(40);
    assert_eq!(rig.store.max_credits(), 10);
    assert!(matches!(rig.store.begin(11), Err(Error::TooLarge { credits: 11, limit: 40 })));
    for n in 0..200 {
        fill(&rig.store, n, 0xF0);
    }
    let shown = rig.shown();
    assert!(shown.len() >= 4 && shown.iter().all(|s| s.reason == CommitReason::DirtyLimit && s.blocks.len() <= 40));
}

#[test]
fn an_operation_is_extended_while_its_generation_has_space() {
    let (_, rig) = rig(40);
    for n in 0..24 {
        fill(&rig.store, n, 0xF0);
    }
    let mut first = rig.store.begin(4).unwrap();
    assert!(!first.extend(7), "more than the maximum of one operation");
    assert!(first.extend(6));
    let mut second = rig.store.begin(5).unwrap();
    assert!(!second.extend(2), "24 are dirty, and 15 announced");
    assert!(second.extend(1));
    assert_eq!(first.generation(), second.generation());
    drop(first);
    assert!(second.extend(4), "the credits of the first are available again");
    drop(second);
    assert!(rig.shown().is_empty(), "extending never closes a generation");
    // credits were returned: as many fit again
    let operations: Vec<_> = std::iter::repeat_with(|| rig.store.begin(8).unwrap()).take(2).collect();
    assert!(rig.shown().is_empty() && operations.len() == 2);
}

#[test]
fn what_a_close_announces_counts_towards_every_generation() {
    for (credits, most) in [(0, 40), (6, 34), (1000, 30)] {
        let engine = Showing::new(40);
        let shown = Arc::clone(&engine.shown);
        let client = Listener { credits, ..Listener::default() };
        let (store, _client) = start_with(Arc::new(memory()), Box::new(engine), client);
        for n in 0..200 {
            fill(&store, n, 0xF0);
        }
        let shown = shown.lock();
        assert!(shown.len() >= 4 && shown.iter().all(|s| s.blocks.len() <= most), "{credits}");
        assert!(shown.iter().any(|s| s.blocks.len() == most), "{credits}");
    }
}

#[test]
fn time_closes_generations() {
    let (_, rig) = rig(64);
    let tick = |seconds| rig.store.tick(Duration::from_secs(seconds)).unwrap();
    tick(0);
    fill(&rig.store, 1, 1);
    tick(10);
    fill(&rig.store, 2, 1);
    tick(14);
    assert!(rig.shown().is_empty());
    tick(15);
    assert_eq!(
        rig.shown().iter().map(|s| (s.reason, s.blocks.len())).collect::<Vec<_>>(),
        [(CommitReason::Timeout, 2)]
    );
    tick(100);
    assert_eq!(rig.shown().len(), 1, "an empty generation stays open");
}

#[test]
fn file_data_is_flushed_when_asked() {
    let (device, rig) = rig(64);
    let flushes = || device.counters().flushes;
    rig.store.begin(1).unwrap().write_data(InodeNo(12), FsBlock(7), 10, b"abc").unwrap();
    let mut read = [0; 5];
    rig.store.read(FsBlock(7), 9, &mut read).unwrap();
    assert_eq!(read, [7, b'a', b'b', b'c', 7]);
    rig.store.sync_generation(0).unwrap();
    assert_eq!(flushes(), 1);
    rig.store.sync_generation(0).unwrap();
    assert_eq!(flushes(), 1, "nothing has been written since");
    // a generation without a flush does not make it count as flushed
    rig.store.begin(1).unwrap().write_data(InodeNo(12), FsBlock(7), 0, b"abc").unwrap();
    fill(&rig.store, 1, 1);
    rig.store.tick(Duration::ZERO).unwrap();
    rig.store.tick(INTERVAL).unwrap();
    assert!(rig.shown()[0].unflushed);
    assert_eq!(flushes(), 1);
    rig.store.sync_generation(1).unwrap();
    assert_eq!(flushes(), 2);
    rig.store.sync_generation(1).unwrap();
    assert_eq!(flushes(), 2);
    // nor does one without writes
    rig.home.store(false, Ordering::SeqCst);
    rig.store.begin(1).unwrap().write_data(InodeNo(12), FsBlock(7), 0, b"abc").unwrap();
    fill(&rig.store, 1, 1);
    rig.store.tick(INTERVAL * 2).unwrap();
    rig.store.tick(INTERVAL * 3).unwrap();
    assert_eq!((rig.shown().len(), flushes()), (2, 2));
    rig.store.sync_generation(2).unwrap();
    assert_eq!(flushes(), 3);
}

#[test]
fn file_data_is_flushed_in_time() {
    let (device, rig) = rig(64);
    let flushes = || device.counters().flushes;
    rig.store.tick(Duration::ZERO).unwrap();
    rig.store.begin(1).unwrap().write_data(InodeNo(12), FsBlock(7), 0, b"abc").unwrap();
    rig.store.tick(INTERVAL / 2).unwrap();
    rig.store.tick(INTERVAL).unwrap();
    assert_eq!(flushes(), 0, "not open for long enough");
    rig.store.tick(INTERVAL * 3 / 2).unwrap();
    assert_eq!((rig.shown().len(), flushes()), (0, 1), "no generation is needed for it");
    rig.store.tick(INTERVAL * 4).unwrap();
    assert_eq!(flushes(), 1, "once");
}

#[test]
fn journaled_data_is_read_before_it_is_home() {
    let mut engine = Showing::new(64);
    engine.limits.journals_data = true;
    let device = Arc::new(Trace::new(memory()));
    let rig = Rig::new(device.clone(), engine);
    rig.home.store(false, Ordering::SeqCst);
    let data: Vec<u8> = (0..3000u32).map(|n| n as u8).collect();
    rig.store.begin(4).unwrap().write_data(InodeNo(12), FsBlock(7), 500, &data).unwrap();
    let mut expected: Vec<u8> = [[7; SIZE], [8; SIZE], [9; SIZE], [10; SIZE]].concat();
    expected[500..3500].copy_from_slice(&data);
    for _ in 0..2 {
        assert_eq!(device.counters().writes.requests, 0);
        let mut read = vec![0; 4 * SIZE];
        rig.store.read(FsBlock(7), 0, &mut read).unwrap();
        assert!(read == expected);
        rig.store.sync().unwrap();
    }
    rig.store.begin(4).unwrap().forget_data(FsBlock(8), 1);
    let mut read = [0; SIZE];
    rig.store.read(FsBlock(8), 0, &mut read).unwrap();
    assert_eq!(read, [8; SIZE], "a freed block is not shown any more");
}

#[test]
fn a_failed_write_or_flush_ends_writing_for_good() {
    for (what, fault) in
        [("write", Fault::WriteError { range: 9 * 1024..10 * 1024 }), ("flush", Fault::FlushError { flush: 1 })]
    {
        let device = Arc::new(Trace::new(Faulty::new(memory(), vec![fault])));
        let rig = Rig::new(device.clone(), Showing::new(64));
        fill(&rig.store, 3, 1);
        rig.store.sync().unwrap();
        fill(&rig.store, 9, 1);
        assert!(matches!(rig.store.sync(), Err(Error::Device(_))), "{what}");
        let written = device.counters();
        for _ in 0..2 {
            assert!(matches!(rig.store.sync(), Err(Error::Failed(_))));
            assert!(matches!(rig.store.sync_generation(1), Err(Error::Failed(_))));
            assert!(matches!(rig.store.begin(1), Err(Error::Failed(_))));
            assert!(matches!(rig.store.tick(INTERVAL), Err(Error::Failed(_))));
            assert!(matches!(rig.store.stop_writing(), Err(Error::Failed(_))));
        }
        let now = device.counters();
        assert_eq!((now.writes.requests, now.flushes), (written.writes.requests, written.flushes), "{what}");
        assert_eq!(rig.client.durable.load(Ordering::SeqCst), 1);
        assert!(rig.store.failure().is_some());
        assert_eq!(rig.store.block(FsBlock(9)).unwrap()[0], 1, "reads still work");
    }
}

#[test]
fn data_that_cannot_be_written_ends_writing() {
    let fault = Fault::WriteError { range: 9 * 1024..10 * 1024 };
    let rig = Rig::new(Arc::new(Faulty::new(memory(), vec![fault])), Showing::new(64));
    let op = rig.store.begin(1).unwrap();
    assert!(op.write_data(InodeNo(12), FsBlock(9), 0, b"x").is_err());
    drop(op);
    assert!(matches!(rig.store.sync(), Err(Error::Failed(_))));
}

#[test]
fn after_the_end_nothing_begins() {
    let (device, rig) = rig(64);
    fill(&rig.store, 9, 0xAB);
    rig.store.stop_writing().unwrap();
    assert_eq!(block(&device, 9), 0xAB);
    assert!(matches!(rig.store.begin(1), Err(Error::ReadOnly)));
    assert!(matches!(rig.store.sync(), Err(Error::ReadOnly)));
    assert!(rig.store.failure().is_none());
    let never = extant_store::Store::new(Arc::new(memory()), SIZE as u32, 0);
    assert!(matches!(never.begin(1), Err(Error::ReadOnly)));
}

/// An engine whose flush makes the previous generation durable, like one that writes a list of changes before them.
#[test]
fn what_is_durable_is_what_the_plan_says() {
    let mut engine = Showing::new(64);
    engine.lags = true;
    let rig = Rig::new(Arc::new(memory()), engine);
    let durable = || (rig.store.durable_generation(), rig.client.durable.load(Ordering::SeqCst));
    assert_eq!(fill(&rig.store, 1, 7), 1);
    rig.store.tick(Duration::ZERO).unwrap();
    rig.store.tick(INTERVAL).unwrap();
    assert_eq!((rig.shown().len(), durable()), (1, (0, 0)), "executed, and not durable");
    assert_eq!(fill(&rig.store, 2, 7), 2);
    rig.store.sync_generation(1).unwrap();
    assert_eq!((rig.shown().len(), durable()), (2, (1, 1)), "the next one makes it durable");
    rig.store.sync_generation(1).unwrap();
    assert_eq!(rig.shown().len(), 2, "no further plan is needed");
    rig.store.sync_generation(2).unwrap();
    assert_eq!((rig.shown().len(), durable()), (3, (2, 2)));
    rig.store.open_for_transaction().unwrap();
    assert_eq!(durable().0 + 2, rig.store.open_generation(), "everything before the transaction is durable");
    fill(&rig.store, 3, 7);
    rig.store.commit_transaction().unwrap();
    assert!(durable().0 > 3);
    rig.store.stop_writing().unwrap();
}

#[test]
fn blocks_that_were_allocated_in_a_generation_are_fresh_in_it() {
    let rig = Rig::new(Arc::new(memory()), Showing::new(64));
    let op = rig.store.begin(8).unwrap();
    op.fresh(FsBlock(10), TAG, |bytes| bytes.fill(1));
    op.edit(FsBlock(10), TAG, |bytes| bytes.fill(2)).unwrap();
    op.replace(FsBlock(11), TAG, |bytes| bytes.fill(1));
    op.edit(FsBlock(12), TAG, |bytes| bytes.fill(1)).unwrap();
    op.fresh(FsBlock(13), TAG, |bytes| bytes.fill(1));
    op.forget(FsBlock(13), 1);
    op.fresh(FsBlock(14), TAG, |bytes| bytes.fill(1));
    op.forget(FsBlock(14), 1);
    op.fresh(FsBlock(14), TAG, |bytes| bytes.fill(2));
    drop(op);
    rig.store.sync().unwrap();
    let op = rig.store.begin(8).unwrap();
    op.edit(FsBlock(10), TAG, |bytes| bytes.fill(3)).unwrap();
    op.replace(FsBlock(14), TAG, |bytes| bytes.fill(3));
    drop(op);
    rig.store.sync().unwrap();
    let fresh = |n: usize| rig.shown()[n].blocks.iter().map(|w| (w.block.get(), w.fresh)).collect::<Vec<_>>();
    assert_eq!(fresh(0), [(10, true), (11, false), (12, false), (14, true)]);
    assert_eq!(fresh(1), [(10, false), (14, false)], "a durable block may reference them by now");
}

#[test]
fn an_engine_that_wants_notes_gets_them_with_their_generation() {
    let run = |first: u64| ChangeRecord::Run {
        owner: InodeNo(12),
        part: Part::Content(0),
        first: FsBlock(first),
        count: 1,
        allocated: true,
    };
    let mut engine = Showing::new(64);
    engine.limits.wants_change_records = true;
    let rig = Rig::new(Arc::new(memory()), engine);
    for first in [20, 30] {
        let op = rig.store.begin(1).unwrap();
        op.record_change(|| run(first));
        op.record_change(|| run(first + 1));
        op.edit(FsBlock(1), TAG, |bytes| bytes.fill(1)).unwrap();
    }
    rig.store.sync().unwrap();
    fill(&rig.store, 1, 2);
    rig.store.sync().unwrap();
    rig.store.open_for_transaction().unwrap();
    rig.store.begin(1).unwrap().record_change(|| run(40));
    rig.store.discard_transaction().unwrap();
    rig.store.stop_writing().unwrap();
    let change_records: Vec<Vec<ChangeRecord>> = rig.shown().into_iter().map(|shown| shown.change_records).collect();
    assert_eq!(change_records[0], [20, 21, 30, 31].map(run));
    assert!(change_records[1..].iter().all(Vec::is_empty), "those of a rolled-back transaction are discarded");

    let rig = Rig::new(Arc::new(memory()), Showing::new(64));
    rig.store.begin(1).unwrap().record_change(|| unreachable!("this engine wants no change records"));
}
