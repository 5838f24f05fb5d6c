//! Many threads at once.

use super::support::*;
use blockdev::BlockDevice;
use format::{FsBlock, InodeNo};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

#[test]
fn operations_are_whole_in_every_generation() {
    let device: Arc<dyn BlockDevice> = Arc::new(memory());
    let rig = Rig::new(Arc::clone(&device), Showing::new(24));
    thread::scope(|scope| {
        for thread in 0..4u64 {
            let store = &rig.store;
            scope.spawn(move || {
                for round in 1..=60u8 {
                    // three blocks that belong together, shared by two threads
                    let first = 10 + thread / 2 * 50;
                    let op = store.begin(3).unwrap();
                    let mut order = None;
                    op.edit(FsBlock(first), TAG, |bytes| {
                        bytes[0] = bytes[0].wrapping_add(1);
                        order = Some(bytes[0]);
                    })
                    .unwrap();
                    for more in [17, 31] {
                        op.edit(FsBlock(first + more), TAG, |bytes| bytes[0] = bytes[0].wrapping_add(1)).unwrap();
                    }
                    drop(op);
                    if round % 16 == 0 {
                        store.sync().unwrap();
                    }
                }
            });
        }
    });
    rig.store.sync().unwrap();
    let shown = rig.shown();
    assert!(shown.len() > 8);
    assert!(shown.windows(2).all(|pair| pair[0].number + 1 == pair[1].number));
    let mut counts = [[0u8; 3]; 2];
    for generation in &shown {
        for (group, first) in [10, 60].into_iter().enumerate() {
            for (n, more) in [0, 17, 31].into_iter().enumerate() {
                if let Some(write) = generation.blocks.iter().find(|w| w.block.get() == first + more) {
                    counts[group][n] = write.data[0].wrapping_sub((first + more) as u8);
                }
            }
            assert!(counts[group].iter().all(|c| *c == counts[group][0]), "generation {}", generation.number);
        }
    }
    assert_eq!(counts, [[120; 3]; 2]);
}

#[test]
fn a_generation_waits_for_its_operations() {
    let rig = Rig::new(Arc::new(memory()), Showing::new(64));
    let op = rig.store.begin(2).unwrap();
    op.edit(FsBlock(1), TAG, |bytes| bytes.fill(1)).unwrap();
    let ended = AtomicBool::new(false);
    let started = Barrier::new(2);
    thread::scope(|scope| {
        scope.spawn(|| {
            started.wait();
            rig.store.sync().unwrap();
            assert!(ended.load(Ordering::SeqCst), "the generation closed while an operation was running");
        });
        started.wait();
        for _ in 0..1000 {
            thread::yield_now();
        }
        op.edit(FsBlock(2), TAG, |bytes| bytes.fill(1)).unwrap();
        ended.store(true, Ordering::SeqCst);
        drop(op);
    });
    assert_eq!(rig.shown()[0].blocks.len(), 2);
}

#[test]
fn who_syncs_together_shares_a_generation() {
    let device = Arc::new(Blocked::new());
    let rig = Rig::new(device.clone(), Showing::new(64));
    fill(&rig.store, 1, 1);
    device.hold();
    let changed = Barrier::new(9);
    thread::scope(|scope| {
        let store = &rig.store;
        scope.spawn(|| store.sync().unwrap());
        device.wait_for_flush(1);
        // operations continue in the next generation while the first is being written
        for n in 0..8 {
            let changed = &changed;
            scope.spawn(move || {
                assert_eq!(fill(store, 10 + n, 1), 2);
                changed.wait();
                store.sync().unwrap();
                assert!(store.durable_generation() >= 2);
            });
        }
        changed.wait();
        device.release();
    });
    assert_eq!(rig.shown().iter().map(|s| s.blocks.len()).collect::<Vec<_>>()[..2], [1, 8]);
    // a thread that saw the open generation after the second had closed closed an empty one
    assert!(rig.shown()[2..].iter().all(|s| s.blocks.is_empty()));
}

#[test]
fn a_flush_under_way_is_not_one_that_is_done() {
    let device = Arc::new(Blocked::new());
    let rig = Rig::new(device.clone(), Showing::new(64));
    rig.store.begin(1).unwrap().write_data(InodeNo(12), FsBlock(7), 0, b"abc").unwrap();
    device.hold();
    let before_flush = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                before_flush.fetch_add(1, Ordering::SeqCst);
                rig.store.sync_generation(0).unwrap();
                assert!(device.returned.load(Ordering::SeqCst) > 0, "returned before any flush");
            });
        }
        device.wait_for_flush(1);
        while before_flush.load(Ordering::SeqCst) < 4 {
            thread::yield_now();
        }
        for _ in 0..1000 {
            thread::yield_now();
        }
        device.release();
    });
    assert_eq!(device.returned.load(Ordering::SeqCst), 1, "one flush was enough for all");
}

#[test]
fn what_a_panic_left_half_done_is_not_written() {
    for in_operation in [true, false] {
        let device: Arc<dyn BlockDevice> = Arc::new(memory());
        let rig = Rig::new(Arc::clone(&device), Showing::new(64));
        let thread = thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let op = rig.store.begin(2).unwrap();
                op.edit(FsBlock(1), TAG, |bytes| bytes.fill(0xAA)).unwrap();
                if in_operation {
                    op.edit(FsBlock(2), TAG, |_| panic!("requested by the test")).unwrap();
                }
                drop(op);
                rig.client.panics.store(true, Ordering::SeqCst);
                rig.store.sync().unwrap();
            });
            thread.join()
        });
        assert!(thread.is_err());
        rig.client.panics.store(false, Ordering::SeqCst);
        let refused = |result: extant_store::Result<()>| {
            assert!(matches!(result, Err(extant_store::Error::Failed(why)) if why.contains("incomplete")));
        };
        refused(rig.store.sync());
        refused(rig.store.tick(INTERVAL * 2));
        refused(rig.store.stop_writing());
        refused(rig.store.begin(1).map(drop));
        assert_eq!(block(&*device, 1), 1);
    }
}

#[test]
fn who_waited_while_the_volume_was_put_away_does_not_begin() {
    let device = Arc::new(Blocked::new());
    let engine = extant_store::engine::Unordered::new(SIZE as u32, 64);
    let (store, _) = start(device.clone(), Box::new(engine));
    device.hold();
    let asked = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| store.stop_writing().unwrap());
        // the first was for the mark at mount
        device.wait_for_flush(2);
        scope.spawn(|| {
            asked.store(true, Ordering::SeqCst);
            assert!(matches!(store.begin(1).map(drop), Err(extant_store::Error::ReadOnly)));
        });
        while !asked.load(Ordering::SeqCst) {
            thread::yield_now();
        }
        for _ in 0..1000 {
            thread::yield_now();
        }
        device.release();
    });
}
