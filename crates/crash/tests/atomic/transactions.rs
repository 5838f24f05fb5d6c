//! Transactions are atomic through crashes, rollbacks and limits, and changes of others are not lost.

use crate::support::{
    MIB, assert_consistent, assert_same, copy, ground, made, new, open, reading, tree, work, write_options,
};
use blockdev::{BlockDevice, Overlay};
use extant_crash::enumerate::{Limits, states};
use fs::{DataMode, Error, FileKind, InodeNo, OpenOptions, RenameFlags, Volume, WriteOptions};
use simdev::Record;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use testkit::{cases, rounds};

const LONG: Duration = Duration::from_secs(600);

fn file(volume: &Volume, dir: InodeNo, name: &str, content: &[u8]) -> InodeNo {
    let file = volume.create(dir, name.as_bytes(), &new(FileKind::Regular)).expect("a file").number;
    volume.write_at(file, 0, content).expect("writing");
    file
}

#[test]
fn what_is_committed_is_seen_and_durable() {
    let device: Arc<dyn BlockDevice> = made(32 * MIB);
    let volume = open(Arc::clone(&device), DataMode::Ordered);
    let old = file(&volume, InodeNo::ROOT, "old", &[1; 10_000]);
    let transaction = volume.transaction(LONG).expect("a transaction");
    let before = tree(&reading(Arc::clone(&device)));
    assert_same(&before, &tree(&volume), "earlier changes are not durable");
    {
        let _inside = transaction.enter();
        file(&volume, InodeNo::ROOT, "new", &[2; 10_000]);
        volume.write_at(old, 5_000, &[3; 100]).expect("writing");
        // no call has to wait, and no generation closes
        volume.fsync(old, false).expect("an fsync");
        volume.sync().expect("a sync");
    }
    volume.sync().expect("a sync of another process");
    volume.tick(Duration::from_secs(1000)).expect("a tick");
    assert_same(&before, &tree(&reading(Arc::clone(&device))), "the device has the state before");
    assert_ne!(before, tree(&volume), "readers see the changes");
    transaction.commit().expect("a commit");
    assert_same(&tree(&volume), &tree(&reading(copy(&*device))), "after the commit");
    volume.unmount().expect("unmounting");
    drop(volume);
    assert_consistent(&*device, "after unmounting");
}

/// Blocks that a crash, a rollback or a snapshot would restore are not discarded.
#[test]
fn trimming_spares_what_may_come_back() {
    let device: Arc<dyn BlockDevice> = made(48 * MIB);
    let volume = open(Arc::clone(&device), DataMode::Ordered);
    let changed = file(&volume, InodeNo::ROOT, "changed", &[1; 400_000]);
    file(&volume, InodeNo::ROOT, "removed", &[2; 400_000]);
    volume.create_snapshot(b"before").expect("a snapshot");
    let pinned = tree(&volume);
    volume.write_at(changed, 100_000, &[3; 200_000]).expect("writing");
    volume.unlink(InodeNo::ROOT, b"removed").expect("removed");
    file(&volume, InodeNo::ROOT, "not for long", &[4; 400_000]);
    volume.sync().expect("a sync");
    let durable = tree(&volume);
    let of_snapshot = |device: &Arc<dyn BlockDevice>| {
        let options = OpenOptions { snapshot: Some(b"before".to_vec()), ..OpenOptions::default() };
        tree(&Volume::open(copy(&**device), &options).expect("the snapshot"))
    };
    // freed in a generation that a crash would revert
    volume.unlink(InodeNo::ROOT, b"not for long").expect("removed");
    assert!(volume.trim(0, u64::MAX, 0).expect("trimmed") > 10 * MIB);
    assert_same(&durable, &tree(&reading(copy(&*device))), "after a crash");
    assert_same(&pinned, &of_snapshot(&device), "the snapshot");
    // during a transaction its members cannot trim, and all others wait
    volume.sync().expect("a sync");
    let transaction = volume.transaction(LONG).expect("a transaction");
    let before = tree(&volume);
    {
        let _inside = transaction.enter();
        volume.write_at(changed, 0, &[5; 300_000]).expect("writing");
        assert!(matches!(volume.trim(0, u64::MAX, 0), Err(Error::Invalid(_))));
    }
    transaction.rollback().expect("a rollback");
    let free = volume.statfs().blocks_free * u64::from(volume.superblock().geometry.block_size);
    assert_eq!(volume.trim(0, u64::MAX, 0).expect("trimmed"), free);
    assert_same(&before, &tree(&volume), "after a rollback");
    assert_same(&before, &tree(&reading(copy(&*device))), "on the device");
    assert_same(&pinned, &of_snapshot(&device), "the snapshot");
    // metadata numbers are beyond the device, and must not be trimmed
    assert!(matches!(volume.trim(48 * MIB, MIB, 0), Err(Error::Invalid(_))));
    volume.unmount().expect("unmounting");
    drop(volume);
    assert_consistent(&*device, "after unmounting");
}

/// Random work, a transaction of further work that is rolled back, and more work: as without the transaction.
#[test]
fn what_is_rolled_back_was_never_there() {
    for case in cases("what_is_rolled_back_was_never_there", 30) {
        let mut rng = case.rng();
        let data = *rng.pick(&[DataMode::Ordered, DataMode::NewBlocks]);
        let device: Arc<dyn BlockDevice> = made(40 * MIB);
        let other: Arc<dyn BlockDevice> = made(40 * MIB);
        let (volume, never) = (open(Arc::clone(&device), data), open(Arc::clone(&other), data));
        let seed = rng.next_u64();
        for both in [&volume, &never] {
            let mut rng = testkit::Rng::new(seed);
            ground(both);
            (0..60).for_each(|_| work(both, &mut rng));
        }
        for round in 0..3 {
            // a file is referenced, also without a name
            let referenced = rng.chance(50).then(|| volume.resolve(b"/f1").ok()).flatten();
            referenced.into_iter().for_each(|number| volume.add_lookup(number));
            let transaction = volume.transaction(LONG).expect("a transaction");
            let (before, counts) = (tree(&volume), volume.statfs());
            {
                let _inside = transaction.enter();
                let steps = 1 + rng.magnitude(120);
                (0..steps).for_each(|_| work(&volume, &mut rng));
                if let Some(number) = referenced {
                    let removed = volume.unlink(InodeNo::ROOT, b"f1");
                    // the reference is dropped in between
                    if removed.is_ok() && rng.chance(50) {
                        volume.forget(number, 1).expect("forget");
                        volume.add_lookup(number);
                    }
                }
            }
            let dirty = transaction.rollback().expect("a rollback");
            let after = tree(&volume);
            assert_same(&before, &after, &format!("round {round}"));
            assert_eq!(counts, volume.statfs(), "round {round}");
            assert!(dirty.inodes.iter().all(|number| number.get() > 0));
            referenced.into_iter().for_each(|number| volume.forget(number, 1).expect("forget"));
            let seed = rng.next_u64();
            for both in [&volume, &never] {
                let mut rng = testkit::Rng::new(seed);
                (0..25).for_each(|_| work(both, &mut rng));
            }
            assert_same(&tree(&volume), &tree(&never), &format!("further use after round {round}"));
        }
        let left = tree(&volume);
        for (volume, device) in [(volume, device), (never, other)] {
            volume.unmount().expect("unmounting");
            drop(volume);
            assert_consistent(&*device, "after unmounting");
            assert_same(&left, &tree(&reading(device)), "opened again");
        }
    }
}

#[test]
fn what_a_rollback_touches_is_reported() {
    let volume = open(made(24 * MIB), DataMode::Ordered);
    let old = file(&volume, InodeNo::ROOT, "old", b"old");
    let transaction = volume.transaction(LONG).expect("a transaction");
    let made = {
        let _inside = transaction.enter();
        volume.rename(InodeNo::ROOT, b"old", InodeNo::ROOT, b"other", RenameFlags::default()).expect("a rename");
        volume.write_at(old, 0, b"new").expect("writing");
        file(&volume, InodeNo::ROOT, "made", b"")
    };
    let dirty = transaction.rollback().expect("a rollback");
    let names: Vec<_> = dirty.names.iter().map(|(dir, name)| (dir.get(), &name[..])).collect();
    assert_eq!(names, [(2, &b"made"[..]), (2, b"old"), (2, b"other")]);
    assert!([InodeNo::ROOT, old, made].iter().all(|number| dirty.inodes.contains(number)), "{dirty:?}");
}

#[test]
fn a_crash_leaves_all_of_it_or_nothing() {
    for case in cases("a_crash_leaves_all_of_it_or_nothing", 3) {
        let mut rng = case.rng();
        let below: Arc<dyn BlockDevice> = made(32 * MIB);
        let volume = open(Arc::clone(&below), DataMode::Ordered);
        ground(&volume);
        (0..80).for_each(|_| work(&volume, &mut rng));
        volume.unmount().expect("unmounting");
        drop(volume);
        let record = Arc::new(Record::in_memory(Overlay::new(Arc::clone(&below))));
        let volume = open(Arc::<Record<Overlay, Vec<u8>>>::clone(&record), DataMode::Ordered);
        let mut states_of = vec![tree(&volume)];
        for round in 0..4 {
            let transaction = volume.transaction(LONG).expect("a transaction");
            {
                let _inside = transaction.enter();
                (0..40).for_each(|_| work(&volume, &mut rng));
            }
            let done = tree(&volume);
            if round == 2 {
                transaction.rollback().expect("a rollback");
            } else {
                transaction.commit().expect("a commit");
                states_of.push(done);
            }
        }
        let log = record.log().expect("the log");
        let limits = Limits { samples: 16, most: rounds(30) as usize, every_subset: 4, ..Limits::default() };
        let (mut seen, mut met) = (0, std::collections::BTreeSet::new());
        let broken: Option<()> = states(&log, &Overlay::new(below), &limits, |crash| {
            let found = tree(&reading(Arc::new(crash.device.clone())));
            let which = states_of.iter().position(|tree| *tree == found);
            met.insert(which.unwrap_or_else(|| panic!("a part of a transaction: {}", crash.choice)));
            if seen % 16 == 0 {
                assert_consistent(crash.device, &crash.choice.to_string());
            }
            seen += 1;
            ControlFlow::Continue(())
        })
        .expect("the states");
        // of the states with a torn write only a sample is examined
        assert!(broken.is_none() && seen > 100 && met.len() >= 3, "{seen}: {met:?}");
    }
}

#[test]
fn others_wait_and_lose_nothing() {
    let device: Arc<dyn BlockDevice> = made(32 * MIB);
    let volume = open(Arc::clone(&device), DataMode::Ordered);
    let theirs = file(&volume, InodeNo::ROOT, "theirs", &[1; 5_000]);
    for commits in [true, false] {
        let transaction = volume.transaction(LONG).expect("a transaction");
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let others: Vec<_> = (0..3u8)
                .map(|n| {
                    let (volume, over) = (&volume, &over);
                    scope.spawn(move || {
                        let name = format!("{commits}{n}");
                        file(volume, InodeNo::ROOT, &name, &[n; 3_000]);
                        assert!(over.load(Ordering::SeqCst), "it did not wait");
                        volume.write_at(theirs, u64::from(n) * 100, &[n + 10; 100]).expect("writing");
                    })
                })
                .collect();
            {
                let _inside = transaction.enter();
                for n in 0..200 {
                    file(&volume, InodeNo::ROOT, &format!("t{commits}{n}"), &[7; 2_000]);
                }
                volume.write_at(theirs, 4_000, &[9; 500]).expect("writing");
            }
            over.store(true, Ordering::SeqCst);
            if commits {
                transaction.commit().expect("a commit");
            } else {
                transaction.rollback().expect("a rollback");
            }
            others.into_iter().for_each(|other| other.join().expect("the other thread"));
        });
    }
    let seen = tree(&volume);
    for n in 0..3u8 {
        for commits in [true, false] {
            assert_eq!(seen[format!("{commits}{n}").as_bytes()].content, vec![n; 3_000]);
        }
        assert_eq!(seen[&b"theirs"[..]].content[usize::from(n) * 100..][..100], [n + 10; 100]);
    }
    assert_eq!(seen.keys().filter(|path| path.starts_with(b"ttrue")).count(), 200);
    assert_eq!(seen.keys().filter(|path| path.starts_with(b"tfalse")).count(), 0);
    volume.unmount().expect("unmounting");
    drop(volume);
    assert_same(&seen, &tree(&reading(Arc::clone(&device))), "opened again");
    assert_consistent(&*device, "after unmounting");
}

/// Continuous readers see complete files while transactions begin and end.
#[test]
fn who_looks_meets_no_damage() {
    let volume = open(made(32 * MIB), DataMode::Ordered);
    let mut rng = testkit::Rng::new(5);
    ground(&volume);
    (0..100).for_each(|_| work(&volume, &mut rng));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (volume, over) = (&volume, &over);
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(move || {
                    let mut looks = 0;
                    while !over.load(Ordering::SeqCst) {
                        for (_, inode) in volume.walk(InodeNo::ROOT) {
                            // it may have been removed meanwhile
                            let Ok(inode) = inode else { continue };
                            let mut content = vec![0; 50_000];
                            match volume.read_at(&inode, 0, &mut content) {
                                Ok(_) | Err(Error::Stale(_) | Error::IsADirectory | Error::Invalid(_)) => {}
                                Err(e) => panic!("{e}"),
                            }
                            looks += 1;
                        }
                    }
                    looks
                })
            })
            .collect();
        for round in 0..rounds(60) {
            let transaction = volume.transaction(LONG).expect("a transaction");
            {
                let _inside = transaction.enter();
                (0..30).for_each(|_| work(volume, &mut rng));
            }
            if round % 3 == 0 {
                transaction.commit().expect("a commit");
            } else {
                transaction.rollback().expect("a rollback");
            }
        }
        over.store(true, Ordering::SeqCst);
        for reader in readers {
            assert!(reader.join().expect("a reader") > 0);
        }
    });
    assert!(volume.damaged_groups().is_empty());
    volume.unmount().expect("unmounting");
}

#[test]
fn one_that_is_too_large_says_so_and_leaves_nothing() {
    let device: Arc<dyn BlockDevice> = made(24 * MIB);
    let volume = open(Arc::clone(&device), DataMode::Ordered);
    file(&volume, InodeNo::ROOT, "there", &[1; 100]);
    let transaction = volume.transaction(LONG).expect("a transaction");
    let before = tree(&volume);
    let refused = {
        let _inside = transaction.enter();
        let dir = volume.create(InodeNo::ROOT, b"d", &new(FileKind::Directory)).expect("a directory").number;
        let refused = (0..2_000).find_map(|n| {
            let name = format!("a directory takes a block of its own {n}");
            volume.create(dir, name.as_bytes(), &new(FileKind::Directory)).err()
        });
        let again = volume.unlink(InodeNo::ROOT, b"there");
        assert!(matches!(again, Err(Error::TransactionTooLarge { .. })), "{again:?}");
        refused
    };
    assert!(matches!(refused, Some(Error::TransactionTooLarge { limit }) if limit > 50), "{refused:?}");
    let outcome = transaction.commit();
    assert!(matches!(outcome, Err(Error::TransactionTooLarge { .. })), "{outcome:?}");
    assert_same(&before, &tree(&volume), "afterwards");
    file(&volume, InodeNo::ROOT, "later", &[1; 100]);
    volume.unmount().expect("unmounting");
    drop(volume);
    assert_consistent(&*device, "after unmounting");
}

/// Its metadata exceeds the usual dirty limit of so small a volume, and the physical blocks available at its beginning.
#[test]
fn ten_thousand_files_are_replaced_on_a_small_volume() {
    let device: Arc<dyn BlockDevice> = made(256 * MIB);
    let write = WriteOptions { dirty_bytes: 64 << 20, ..write_options(DataMode::Ordered) };
    let options = OpenOptions { write: Some(write), ..OpenOptions::default() };
    let volume = Arc::new(Volume::open(Arc::clone(&device), &options).expect("opening"));
    const FILES: usize = 10_000;
    let name = |n: usize| format!("a file of a hundred in its directory {n}");
    let dirs: Vec<InodeNo> = (0..FILES / 100)
        .map(|n| volume.create(InodeNo::ROOT, name(n).as_bytes(), &new(FileKind::Directory)).expect("made").number)
        .collect();
    let all = || (0..FILES).map(|n| (dirs[n / 100], name(n)));
    let replace = |with: u8| {
        for (dir, name) in all() {
            file(&volume, dir, "new", &[with; 5000]);
            volume.rename(dir, b"new", dir, name.as_bytes(), RenameFlags::default()).expect("replaced");
        }
    };
    replace(1);
    let contents = |volume: &Volume| {
        let mut content = [0; 5000];
        all()
            .map(|(dir, name)| {
                let number = volume.lookup(&volume.inode(dir).expect("a directory"), name.as_bytes()).expect("a file");
                let read = volume.read_at(&volume.inode(number).expect("a file"), 0, &mut content).expect("read");
                assert!(read == 5000 && content.iter().all(|byte| *byte == content[0]), "{name}");
                content[0]
            })
            .collect::<std::collections::BTreeSet<u8>>()
    };
    let free = || volume.statfs().blocks_free;
    // space reserved for completed work is free again
    let settle = || volume.compact().expect("compacted");
    volume.sync().expect("a sync");
    settle();
    let before = free();
    for (commits, found) in [(false, [1]), (true, [2])] {
        let transaction = volume.transaction(LONG).expect("a transaction");
        {
            let _inside = transaction.enter();
            replace(2);
        }
        if commits {
            transaction.commit().expect("a commit");
        } else {
            transaction.rollback().expect("a rollback");
        }
        assert_eq!(contents(&volume), found.into());
        assert_eq!(contents(&reading(Arc::clone(&device))), found.into());
        settle();
        // inode numbers freed in it were not allocated in it: after a commit the inode tables are longer
        let more = if commits { FILES as u64 * 256 / 4096 } else { 0 };
        assert!((before - more.next_multiple_of(512)..=before).contains(&free()), "{before} blocks, then {}", free());
    }
    volume.unmount().expect("unmounting");
    drop(volume);
    assert_consistent(&*device, "after unmounting");
}

#[test]
fn one_that_takes_too_long_is_rolled_back_by_who_waits() {
    let volume = open(made(24 * MIB), DataMode::Ordered);
    // a limit of zero has expired at once, however fast the machine is
    let transaction = volume.transaction(Duration::ZERO).expect("a transaction");
    let before = tree(&volume);
    file(&volume, InodeNo::ROOT, "theirs", b"a process that waited");
    assert!(!transaction.is_running());
    {
        let _inside = transaction.enter();
        let refused = volume.create(InodeNo::ROOT, b"mine", &new(FileKind::Regular)).map(drop);
        assert!(matches!(refused, Err(Error::Cancelled(_))), "{refused:?}");
    }
    let outcome = transaction.commit();
    assert!(matches!(outcome, Err(Error::Cancelled(_))), "{outcome:?}");
    assert_eq!(tree(&volume).len(), before.len() + 1);

    let transaction = volume.transaction(Duration::ZERO).expect("another");
    volume.tick(Duration::ZERO).expect("a tick");
    assert!(!transaction.is_running(), "the time limit was ignored");
    drop(transaction);
    volume.unmount().expect("unmounting");
}

#[test]
fn there_is_one_at_a_time_and_it_ends_with_the_volume() {
    let device: Arc<dyn BlockDevice> = made(24 * MIB);
    let volume = open(Arc::clone(&device), DataMode::Ordered);
    let transaction = volume.transaction(LONG).expect("a transaction");
    assert!(matches!(volume.transaction(LONG).map(drop), Err(Error::Busy)));
    let before = tree(&volume);
    {
        let _inside = transaction.enter();
        file(&volume, InodeNo::ROOT, "mine", b"never");
    }
    volume.unmount().expect("unmounting");
    assert!(!transaction.is_running());
    assert!(matches!(transaction.commit(), Err(Error::Cancelled(_))));
    assert!(volume.transaction(LONG).map(drop).is_err());
    drop(volume);
    assert_same(&before, &tree(&reading(Arc::clone(&device))), "opened again");
    assert_consistent(&*device, "after unmounting");

    let write = WriteOptions { consistency: Some(fs::Consistency::None), ..write_options(DataMode::Ordered) };
    let options = OpenOptions { write: Some(write), ..OpenOptions::default() };
    let volume = Arc::new(Volume::open(device, &options).expect("opening"));
    assert!(matches!(volume.transaction(LONG).map(drop), Err(Error::Unsupported(_))));
    volume.unmount().expect("unmounting");
}

#[test]
fn one_that_finds_no_space_leaves_nothing() {
    let device: Arc<dyn BlockDevice> = made(16 * MIB);
    let volume = open(Arc::clone(&device), DataMode::Ordered);
    file(&volume, InodeNo::ROOT, "large", &vec![1; 3 << 20]);
    let transaction = volume.transaction(LONG).expect("a transaction");
    let (before, counts) = (tree(&volume), volume.statfs());
    {
        let _inside = transaction.enter();
        // the space that it frees is not available before it is durable
        volume.unlink(InodeNo::ROOT, b"large").expect("removing");
        let new = volume.create(InodeNo::ROOT, b"new", &new(FileKind::Regular)).expect("a file").number;
        let full = (0..).find_map(|n| volume.write_at(new, n * 100_000, &[2; 100_000]).err());
        assert!(matches!(full, Some(Error::NoSpace)), "{full:?}");
    }
    transaction.rollback().expect("a rollback");
    assert_same(&before, &tree(&volume), "afterwards");
    assert_eq!(counts, volume.statfs());
    volume.unlink(InodeNo::ROOT, b"large").expect("removing");
    file(&volume, InodeNo::ROOT, "next", &vec![3; 3 << 20]);
    volume.unmount().expect("unmounting");
    drop(volume);
    assert_consistent(&*device, "after unmounting");
}
