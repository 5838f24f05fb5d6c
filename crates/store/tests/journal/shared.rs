//! A journal used by many threads, and alternately by the kernel.

use crate::toy::{Volume, open, tag};
use blockdev::{BlockDevice, MemoryDevice};
use extant_store::Kind;
use extant_store::engine::Journal;
use format::FsBlock;
use simdev::Trace;
use std::io::Write;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Barrier};
use testkit::{Image, need, oracle, tools};

const ARGS: [&str; 6] = ["-t", "ext4", "-b", "1024", "-J", "size=1"];

#[test]
fn threads_that_sync_share_transactions() {
    if !need(&["mke2fs", "debugfs"]) {
        return;
    }
    let volume = Volume::new(&ARGS, 8, 64);
    let trace = Arc::new(Trace::new(MemoryDevice::from_vec(volume.bytes.clone())));
    let device: Arc<dyn BlockDevice> = trace.clone();
    let (toy, store) = open(&volume, &device, volume.options());
    let before = trace.counters().flushes;
    let (threads, rounds) = (8, 20u8);
    let start = Barrier::new(threads);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (store, start, blocks) = (&store, &start, &volume.blocks);
            scope.spawn(move || {
                for round in 0..rounds {
                    start.wait();
                    let op = store.begin(1).unwrap();
                    op.edit(FsBlock(blocks[thread]), tag(Kind::Directory), |bytes| bytes.fill(round)).unwrap();
                    let generation = op.generation();
                    drop(op);
                    // all threads have changed something before one of them syncs
                    start.wait();
                    store.sync_generation(generation).unwrap();
                    assert!(store.durable_generation() >= generation);
                }
            });
        }
    });
    // a round in which the threads' generations differ takes two transactions at most
    let flushes = trace.counters().flushes - before;
    assert!(flushes <= 2 * u64::from(rounds), "{flushes} flushes for {rounds} rounds");
    assert_eq!(toy.durable.load(Ordering::SeqCst), store.durable_generation());
    store.stop_writing().unwrap();
    for thread in 0..threads {
        assert_eq!(volume.read(&*device, volume.blocks[thread]), vec![rounds - 1; volume.size]);
    }
}

/// The kernel, interrupted; then replay and transactions by Extant, interrupted; and so on: each replays the other's
/// log.
#[test]
fn alternating_with_the_kernel() {
    if !need(&["mke2fs", "debugfs", "e2fsck", "mount"]) || !tools::has_loop() {
        return;
    }
    for args in [&ARGS[..], &["-t", "ext3", "-b", "4096", "-J", "size=4"]] {
        let mut volume = Volume::new(args, 16, 40);
        for round in 1..=4u8 {
            // the kernel works, and is interrupted
            let image = Image::from_bytes(&volume.bytes);
            let mounted = oracle::kernel_mount(image.path(), "").unwrap();
            for n in 0..10 {
                std::fs::write(mounted.path().join(format!("kernel{n}")), [round; 5000]).unwrap();
            }
            let mut durable = std::fs::File::create(mounted.path().join(format!("durable{round}"))).unwrap();
            durable.write_all(&[round; 3000]).unwrap();
            durable.sync_all().unwrap();
            volume.bytes = image.bytes();
            drop(durable);
            drop(mounted);

            // replay of its log, then transactions, which are interrupted
            let memory = Arc::new(MemoryDevice::from_vec(volume.bytes.clone()));
            let device: Arc<dyn BlockDevice> = memory.clone();
            assert!(Journal::new(volume.place(Arc::clone(&device)), volume.options()).is_err(), "it must be replayed");
            volume.replay(&device).unwrap();
            let (_, store) = open(&volume, &device, volume.options());
            for block in &volume.blocks[..30] {
                let op = store.begin(1).unwrap();
                op.edit(FsBlock(*block), tag(Kind::Directory), |bytes| bytes.fill(round)).unwrap();
                drop(op);
                if block % 7 == 0 {
                    store.sync().unwrap();
                }
            }
            store.sync().unwrap();
            memory.read(0, &mut volume.bytes).unwrap();
            assert!(volume.read(&*device, volume.blocks[0])[0] != round, "it is home already: nothing to replay");
        }
        // the kernel sees everything
        let image = Image::from_bytes(&volume.bytes);
        let mounted = oracle::kernel_mount(image.path(), "").unwrap();
        for round in 1..=4 {
            let read = std::fs::read(mounted.path().join(format!("durable{round}"))).unwrap();
            assert!(read == [round; 3000]);
        }
        let file = std::fs::read(mounted.path().join("file")).unwrap();
        assert!(file[..30 * volume.size].iter().all(|b| *b == 4));
        assert!(file[30 * volume.size..].iter().all(|b| *b == 0xEE));
        mounted.unmount();
        let verdict = oracle::e2fsck(image.path());
        assert!(verdict.clean, "{}", verdict.text);
    }
}
