//! The effect of rollback and unmounting on inodes with a lookup count: numbers of files that a rollback undid are not
//! reused, sizes that it changed are tracked, and data accepted during unmounting is written; also privilege bits and
//! times after a change.

mod common;

use blockdev::{BlockDevice, MemoryDevice};
use extant_fs::mkfs::{Kind, MkfsOptions, make};
use extant_fs::{
    Error, FileKind, InodeNo, NewFile, OpenOptions, RenameFlags, Result, SetAttributes, Timestamp, Volume, WriteHow,
    WriteOptions, XattrMode,
};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

const ROOT: InodeNo = InodeNo::ROOT;
const LONG: Duration = Duration::from_secs(600);

fn native() -> Arc<dyn BlockDevice> {
    let device = Arc::new(MemoryDevice::zeroed(96 << 20).expect("memory"));
    make(&*device, &MkfsOptions::new(Kind::Extant)).expect("a volume");
    device
}

fn ext4() -> Arc<dyn BlockDevice> {
    let device = Arc::new(MemoryDevice::zeroed(128 << 20).expect("memory"));
    make(&*device, &MkfsOptions::new(Kind::Ext4)).expect("a volume");
    device
}

fn open_with(device: &Arc<dyn BlockDevice>, write: WriteOptions) -> Arc<Volume> {
    let options = OpenOptions { write: Some(write), ..OpenOptions::default() };
    Arc::new(Volume::open(Arc::clone(device), &options).expect("opening"))
}

fn open(device: &Arc<dyn BlockDevice>) -> Arc<Volume> {
    open_with(device, WriteOptions { superuser: true, ..WriteOptions::default() })
}

fn new(kind: FileKind) -> NewFile {
    NewFile { kind, mode: 0o644, umask: 0, uid: 0, gid: 0, device: (0, 0) }
}

fn file(volume: &Volume, name: &str) -> InodeNo {
    volume.create(ROOT, name.as_bytes(), &new(FileKind::Regular)).expect("a file").number
}

fn content(volume: &Volume, number: InodeNo) -> Vec<u8> {
    let size = volume.attributes_of(number).expect("its size").size;
    let mut content = vec![0; size as usize];
    let read = volume.read_at(&volume.inode(number).expect("an inode"), 0, &mut content).expect("reading");
    assert_eq!(read, content.len());
    content
}

fn assert_stale<T>(outcome: Result<T>, what: &str) {
    assert!(matches!(outcome.map(drop), Err(Error::Stale(_))), "{what}");
}

#[test]
fn looked_up_numbers_of_files_that_never_were_stay_unused() {
    let volume = open(&native());
    let free = volume.statfs();
    for round in 0..3 {
        let transaction = volume.transaction(LONG).expect("a transaction");
        let (files, dir) = {
            let _inside = transaction.enter();
            let files: Vec<_> = (0..40).map(|n| file(&volume, &format!("made {n}"))).collect();
            let dir = volume.create(ROOT, b"dir", &new(FileKind::Directory)).expect("a directory").number;
            (files, dir)
        };
        let looked_up: BTreeSet<_> = files.iter().copied().step_by(2).chain([dir]).collect();
        looked_up.iter().for_each(|number| volume.add_lookup(*number));
        transaction.rollback().expect("a rollback");
        assert_eq!(free, volume.statfs(), "round {round}");
        let others: Vec<_> = (0..60).map(|n| file(&volume, &format!("other {n}"))).collect();
        assert!(others.iter().all(|number| !looked_up.contains(number)), "round {round}");
        // numbers without a lookup count are reused, and only those with one are left out
        assert!(files.iter().filter(|number| !looked_up.contains(number)).all(|number| others.contains(number)));
        let (number, other) = (files[0], others[0]);
        assert_stale(volume.inode(number), "the inode");
        assert_stale(volume.attributes_of(number), "its attributes");
        assert_stale(volume.write_at(number, 0, b"x"), "a write");
        assert_stale(volume.truncate(number, 1), "a truncation");
        assert_stale(volume.set_attributes(number, &SetAttributes::default()), "attributes");
        assert_stale(volume.set_xattr(number, b"user.x", b"x", XattrMode::Any), "an extended attribute");
        assert_stale(volume.link(number, ROOT, b"link"), "a link");
        assert_stale(volume.fsync(number, false), "an fsync");
        assert_stale(volume.create(dir, b"x", &new(FileKind::Regular)), "a file in it");
        assert_stale(volume.unlink(dir, b"x"), "a name in it");
        assert_stale(volume.rename(dir, b"x", ROOT, b"y", RenameFlags::default()), "a rename from it");
        assert_stale(volume.rename(ROOT, b"other 0", dir, b"y", RenameFlags::default()), "a rename to it");
        // bitmaps are read again after another rollback
        let transaction = volume.transaction(LONG).expect("a transaction");
        {
            let _inside = transaction.enter();
            let more: Vec<_> = (0..60).map(|n| file(&volume, &format!("more {n}"))).collect();
            assert!(more.iter().all(|number| !looked_up.contains(number)), "round {round}");
            volume.unlink(ROOT, b"other 0").expect("removed");
            let in_its_place = file(&volume, "other 0");
            assert_ne!(in_its_place, other, "a number that a rollback restores was another file's meanwhile");
        }
        transaction.rollback().expect("a rollback");
        let later: Vec<_> = (0..60).map(|n| file(&volume, &format!("later {n}"))).collect();
        assert!(later.iter().all(|number| !looked_up.contains(number)), "round {round}");
        // after they are forgotten they are free
        looked_up.iter().for_each(|number| volume.forget(*number, 1).expect("forget"));
        let last: Vec<_> = (0..60).map(|n| file(&volume, &format!("last {n}"))).collect();
        assert!(last.iter().any(|number| looked_up.contains(number)), "round {round}");
        for (names, count) in [("other", 60), ("later", 60), ("last", 60)] {
            (0..count).for_each(|n| volume.unlink(ROOT, format!("{names} {n}").as_bytes()).expect("removed"));
        }
        volume.sync().expect("a sync");
        assert_eq!(free.files_free, volume.statfs().files_free, "round {round}");
    }
    volume.unmount().expect("unmounting");
}

#[test]
fn what_a_committed_transaction_freed_is_used_again() {
    let volume = open(&native());
    let before: BTreeSet<_> = (0..20).map(|n| file(&volume, &format!("{n}"))).collect();
    let transaction = volume.transaction(LONG).expect("a transaction");
    {
        let _inside = transaction.enter();
        (0..20).for_each(|n| volume.unlink(ROOT, format!("{n}").as_bytes()).expect("removed"));
        // a file that it created itself was not known to others before
        let short = file(&volume, "short");
        volume.unlink(ROOT, b"short").expect("removed");
        assert_eq!(file(&volume, "again"), short);
    }
    transaction.commit().expect("a commit");
    let after: BTreeSet<_> = (0..20).map(|n| file(&volume, &format!("{n}"))).collect();
    assert_eq!(before, after);
    volume.unmount().expect("unmounting");
}

const APPEND: WriteHow<'static> = WriteHow {
    append: true,
    in_any_order: false,
    drop_privileges: None,
    preserve_times: false,
    pages: false,
    whole: false,
};

#[test]
fn who_appends_does_so_at_the_end_whatever_a_rollback_did_to_it() {
    let volume = open(&native());
    for (name, in_it) in [("grown", 295_u64), ("cut", 4)] {
        let number = file(&volume, name);
        volume.write_at(number, 0, &[1; 200]).expect("writing");
        volume.add_lookup(number);
        let roll_back = || {
            let transaction = volume.transaction(LONG).expect("a transaction");
            {
                let _inside = transaction.enter();
                volume.truncate(number, 4).expect("cut");
                volume.write_at(number, 0, &vec![7; in_it as usize]).expect("writing");
            }
            transaction.rollback().expect("a rollback")
        };
        let dirty = roll_back();
        // other files are in use meanwhile, and the file only has a lookup count
        (0..40_000).for_each(|n| volume.flush_delayed(InodeNo(1000 + n)).expect("nothing to flush"));
        assert_eq!(dirty.longer.contains(&number), in_it < 200);
        // the caller that looked it up continues from the size it knows
        let append = |at: u64, bytes: &[u8]| volume.write_with(number, at, bytes, &APPEND).map(|written| written.at);
        assert_eq!(append(in_it, &[2; 30]).expect("appended"), 200);
        assert_eq!(append(in_it + 30, &[3; 30]).expect("appended"), 230);
        let piece = WriteHow { in_any_order: true, ..APPEND };
        let early = volume.write_with(number, in_it + 1000, &[9; 30], &piece);
        assert!(matches!(early, Err(Error::Busy)), "a part that arrives before the first");
        // a separate write is appended at the end whatever size is assumed
        assert_eq!(append(in_it + 1000, &[9; 30]).expect("appended"), 260);
        // until the caller has queried the size
        assert_eq!(append(290, &[4; 40]).expect("appended"), 290);
        let expected = [vec![1; 200], vec![2; 30], vec![3; 30], vec![9; 30], vec![4; 40]].concat();
        assert!(content(&volume, number) == expected, "{name}");
        // two rollbacks have the effect of one, and a caller that sets the size knows it
        volume.truncate(number, 200).expect("cut");
        roll_back();
        roll_back();
        assert_eq!(append(in_it, &[5; 30]).expect("appended"), 200);
        volume.truncate(number, 100).expect("cut");
        assert_eq!(append(100, &[6; 30]).expect("appended"), 100);
        assert_eq!(append(130, &[6; 30]).expect("appended"), 130);
    }
    volume.unmount().expect("unmounting");
}

/// Processes continue to write, create files and read while the volume is unmounted.
#[test]
fn what_is_answered_while_it_is_unmounted_is_there() {
    const SLOTS: u64 = 3000;
    let of = |n: u64| 1 + (n % 251) as u8;
    for device in [native(), ext4()] {
        for round in 0..3 {
            let volume = open(&device);
            // without a name, with a lookup count
            let looked_up: BTreeSet<_> = (0..300)
                .map(|n| {
                    let number = file(&volume, &format!("nameless {round} {n}"));
                    volume.write_at(number, 0, &[1; 5000]).expect("writing");
                    volume.add_lookup(number);
                    volume.unlink(ROOT, format!("nameless {round} {n}").as_bytes()).expect("removed");
                    number
                })
                .collect();
            let written = Mutex::new(Vec::new());
            let count = AtomicU64::new(0);
            std::thread::scope(|scope| {
                for thread in 0..4 {
                    let (volume, written, count) = (&volume, &written, &count);
                    let number = file(volume, &format!("{round} {thread}"));
                    scope.spawn(move || {
                        let mut n = 0;
                        let e = loop {
                            match volume.write_at(number, n % SLOTS * 512, &[of(n); 512]) {
                                Ok(bytes) => assert_eq!(bytes, 512),
                                Err(e) => break e,
                            }
                            n += 1;
                            count.fetch_add(1, Ordering::SeqCst);
                        };
                        assert!(matches!(e, Error::ReadOnly(_)), "{e}");
                        written.lock().push((number, n));
                    });
                }
                let (volume, looked_up) = (&volume, &looked_up);
                let dir = volume.create(ROOT, format!("dir {round}").as_bytes(), &new(FileKind::Directory));
                let dir = dir.expect("a directory").number;
                scope.spawn(move || {
                    for n in 0.. {
                        match volume.create(dir, format!("{n}").as_bytes(), &new(FileKind::Regular)) {
                            Ok(made) => assert!(!looked_up.contains(&made.number), "it is still in use"),
                            Err(Error::ReadOnly(_) | Error::NoSpace) => break,
                            Err(e) => panic!("{e}"),
                        }
                    }
                });
                while count.load(Ordering::SeqCst) < 2000 {
                    std::thread::yield_now();
                }
                volume.unmount().expect("unmounting");
            });
            drop(volume);
            let volume = Volume::open(Arc::clone(&device), &OpenOptions::default()).expect("opening");
            for (number, n) in written.into_inner() {
                let content = content(&volume, number);
                assert_eq!(content.len() as u64, n.min(SLOTS) * 512);
                for slot in 0..n.min(SLOTS) {
                    let last = n - 1 - (n - 1 - slot) % SLOTS;
                    let piece = &content[slot as usize * 512..][..512];
                    assert!(piece.iter().all(|byte| *byte == of(last)), "{last} of {n} is not there");
                }
            }
        }
    }
}

/// The device without any request for durability: content is overwritten in place at once.
#[test]
fn privileges_are_gone_before_the_content_changes() {
    let device = ext4();
    let volume = open(&device);
    let number = file(&volume, "program");
    volume.write_at(number, 0, &[1; 8192]).expect("writing");
    for (mode, in_group, left) in
        [(0o6755, true, 0o755), (0o6745, true, 0o2745), (0o6745, false, 0o745), (0o2767, false, 0o767)]
    {
        volume.set_attributes(number, &SetAttributes { mode: Some(mode), ..SetAttributes::default() }).expect("mode");
        volume.sync().expect("a sync");
        let is_in = move |_| in_group;
        let how = WriteHow { drop_privileges: Some(&is_in), ..WriteHow::default() };
        let bytes = [mode as u8 ^ u8::from(in_group); 4096];
        let written = volume.write_with(number, 0, &bytes, &how).expect("writing");
        assert!(written.dropped && written.at == 0 && written.bytes == bytes.len());
        let mut all = vec![0; device.geometry().len as usize];
        device.read(0, &mut all).expect("reading");
        let crashed = open(&(Arc::new(MemoryDevice::from_vec(all)) as Arc<dyn BlockDevice>));
        assert!(content(&crashed, number)[..4096] == bytes, "it is on the device");
        assert_eq!(crashed.attributes_of(number).expect("attributes").mode & 0o7777, left, "{mode:o}");
        // a file without privilege bits is not changed
        assert!(!volume.write_with(number, 0, &bytes, &how).expect("writing").dropped);
    }
    volume.unmount().expect("unmounting");
}

#[test]
fn times_that_stay_are_those_of_the_moment() {
    let now = Arc::new(AtomicI64::new(1_700_000_000));
    let clock = Arc::clone(&now);
    let time = |seconds| Timestamp { seconds, nanos: 0 };
    let clock = Arc::new(move || Timestamp { seconds: clock.load(Ordering::SeqCst), nanos: 0 });
    let volume = open_with(&ext4(), WriteOptions { clock, ..WriteOptions::default() });
    let number = file(&volume, "file");
    let later = || now.fetch_add(10, Ordering::SeqCst) + 10;
    let times = || volume.attributes_of(number).map(|a| (a.atime, a.mtime, a.ctime)).expect("attributes");
    for length in [10, 5_000, 600_000] {
        let before = times();
        later();
        let how = WriteHow { preserve_times: true, ..WriteHow::default() };
        volume.write_with(number, 0, &vec![1; length], &how).expect("writing");
        assert_eq!(times(), before, "{length}");
        volume.flush_delayed(number).expect("flushed");
        assert_eq!(times(), before, "{length}");
    }
    // recording accesses does not undo concurrent changes of attributes
    std::thread::scope(|scope| {
        let (volume, done) = (&volume, Arc::new(AtomicU64::new(0)));
        let over = Arc::clone(&done);
        scope.spawn(move || {
            let mut n = 0;
            while over.load(Ordering::SeqCst) == 0 {
                n += 1;
                let set = SetAttributes { atime: Some(time(n)), preserve_ctime: true, ..SetAttributes::default() };
                volume.set_attributes(number, &set).expect("an access");
            }
        });
        for n in 0..2000 {
            let changed = later();
            let set = SetAttributes { mode: Some(n % 0o777), ..SetAttributes::default() };
            volume.set_attributes(number, &set).expect("a mode");
            assert!(times().2 >= time(changed), "the change is not in the times");
        }
        done.store(1, Ordering::SeqCst);
    });
    let set = SetAttributes { atime: Some(time(7)), preserve_ctime: true, ..SetAttributes::default() };
    volume.set_attributes_if(number, &set, |inode| inode.raw().atime() == time(3)).expect("not wanted");
    assert_ne!(times().0, time(7));
    let changed = times().2;
    volume.set_attributes_if(number, &set, |inode| inode.raw().ctime() == changed).expect("wanted");
    assert_eq!(times().0, time(7));
    volume.unmount().expect("unmounting");
}
