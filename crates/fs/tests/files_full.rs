//! Full volumes, and many writers at once.

mod common;

use common::{assert_valid, content, number, open_writable};
use extant_fs::{AllocateMode, Error, InodeNo, Volume, WriteHow, WriteOptions};
use testkit::{Image, Rng, cases, need};

fn volume_with_files(args: &[&str], size: u64, files: usize) -> (Image, Volume, Vec<InodeNo>) {
    let commands: Vec<String> = (0..files).map(|n| format!("write /dev/null f{n}")).collect();
    let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
    let image = Image::mke2fs(args, size).debugfs(&commands).build();
    let volume = open_writable(image.path(), WriteOptions::default());
    let files = (0..files).map(|n| number(&volume, &format!("/f{n}"))).collect();
    (image, volume, files)
}

/// Volumes, and their minimum number of blocks of 1 024 bytes.
const TINY: &[(&[&str], u64)] = &[
    (&["-t", "ext2", "-b", "1024", "-m", "0", "-N", "16"], 1200),
    (&["-t", "ext4", "-b", "1024", "-m", "0", "-N", "16", "-O", "^has_journal"], 1200),
    (&["-t", "ext4", "-b", "1024", "-m", "0", "-N", "16", "-J", "size=1"], 2600),
    (&["-t", "ext4", "-b", "4096", "-m", "0", "-N", "16", "-O", "^has_journal"], 1200),
];

#[test]
fn a_full_volume_refuses_and_stays_consistent() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let mut refused = 0;
    for case in cases("a_full_volume_refuses", 12) {
        let mut rng = case.rng();
        for (args, blocks) in TINY {
            let (image, volume, files) = volume_with_files(args, rng.between(*blocks, blocks + 800) * 1024, 3);
            let mut models = vec![Vec::<u8>::new(); files.len()];
            for _ in 0..120 {
                let n = rng.index(files.len());
                let (file, model) = (files[n], &mut models[n]);
                let offset = rng.below(model.len() as u64 + 200_000);
                let len = if rng.chance(50) { rng.between(50_000, 400_000) } else { rng.magnitude(300_000) };
                match rng.below(10) {
                    0..7 => {
                        let data = rng.bytes(len as usize);
                        match volume.write_at(file, offset, &data) {
                            Ok(done) => {
                                assert!((1..=data.len()).contains(&done));
                                model.resize(model.len().max(offset as usize + done), 0);
                                model[offset as usize..offset as usize + done].copy_from_slice(&data[..done]);
                            }
                            Err(Error::NoSpace) => refused += 1,
                            Err(e) => panic!("{e}"),
                        }
                    }
                    7 => match volume.allocate(file, AllocateMode::KeepSize, offset, len) {
                        Ok(()) | Err(Error::Unsupported(_)) => {}
                        Err(Error::NoSpace) => refused += 1,
                        Err(e) => panic!("{e}"),
                    },
                    8 => {
                        let size = rng.below(model.len() as u64 + 1);
                        volume.truncate(file, size).expect("truncate");
                        model.truncate(size as usize);
                    }
                    _ => match volume.allocate(file, AllocateMode::PunchHole, offset, len) {
                        Ok(()) => {
                            let end = model.len().min((offset + len) as usize);
                            model[end.min(offset as usize)..end].fill(0);
                        }
                        Err(Error::NoSpace) => panic!("a hole needs no space here"),
                        Err(e) => panic!("{e}"),
                    },
                }
                // space for accepted data is reserved: this never fails for lack of space
                if rng.chance(10) {
                    volume.fsync(file, false).expect("fsync");
                }
            }
            for (file, model) in files.iter().zip(&models) {
                assert!(content(&volume, *file) == *model, "{args:?}");
            }
            volume.unmount().expect("unmount");
            drop(volume);
            assert_valid(image.path(), args);
            let again = common::open(image.path());
            for (file, model) in files.iter().zip(&models) {
                assert!(content(&again, *file) == *model, "{args:?}");
            }
        }
    }
    assert!(refused > 20, "{refused} refusals");
}

#[test]
fn small_writes_fill_a_volume_to_the_last_block() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    for (args, blocks) in TINY {
        let (image, volume, files) = volume_with_files(args, (blocks + 800) * 1024, 1);
        let mut size = 0u64;
        let refusal = loop {
            match volume.write_at(files[0], size, &[7; 1000]) {
                Ok(done) => size += done as u64,
                Err(e) => break e,
            }
        };
        assert!(matches!(refusal, Error::NoSpace), "{refusal}");
        volume.sync().expect("sync");
        assert!(volume.statfs().blocks_available <= 8, "{args:?}: {:?}", volume.statfs());
        assert!(content(&volume, files[0]) == vec![7; size as usize]);
        // space again after a part was freed
        volume.truncate(files[0], size / 2).expect("truncate");
        assert_eq!(volume.write_at(files[0], size / 2, &[8; 50_000]).expect("write"), 50_000);
        volume.unmount().expect("unmount");
        drop(volume);
        assert_valid(image.path(), args);
    }
}

#[test]
fn many_threads_write_to_many_files() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    for args in [&["-t", "ext4", "-b", "4096"][..], &["-t", "ext2", "-b", "1024"]] {
        let (image, volume, files) = volume_with_files(args, 64 << 20, 6);
        let models: Vec<Vec<u8>> = std::thread::scope(|scope| {
            let volume = &volume;
            let work = |(n, file): (usize, &InodeNo)| {
                let file = *file;
                scope.spawn(move || {
                    let mut rng = Rng::new(n as u64);
                    let mut model = Vec::new();
                    for _ in 0..200 {
                        let offset = rng.below(model.len() as u64 + 1);
                        match rng.below(10) {
                            0..8 => {
                                let data = rng.bytes(rng.clone().magnitude(600_000) as usize);
                                let end = offset as usize + data.len();
                                if end > 3 << 20 {
                                    continue;
                                }
                                assert_eq!(volume.write_at(file, offset, &data).unwrap(), data.len());
                                model.resize(model.len().max(end), 0);
                                model[offset as usize..end].copy_from_slice(&data);
                            }
                            8 => {
                                volume.truncate(file, offset).unwrap();
                                model.truncate(offset as usize);
                            }
                            _ => volume.fsync(file, offset.is_multiple_of(2)).unwrap(),
                        }
                    }
                    assert!(content(volume, file) == model);
                    model
                })
            };
            let threads: Vec<_> = files.iter().enumerate().map(work).collect();
            threads.into_iter().map(|thread| thread.join().expect("a thread")).collect()
        });
        volume.unmount().expect("unmount");
        drop(volume);
        assert_valid(image.path(), &args);
        let again = common::open(image.path());
        for (file, model) in files.iter().zip(&models) {
            assert!(content(&again, *file) == *model);
        }
    }
}

#[test]
fn readers_see_whole_writes() {
    if !need(&["mke2fs", "debugfs"]) {
        return;
    }
    let (_image, volume, files) = volume_with_files(&["-t", "ext4", "-b", "1024"], 32 << 20, 1);
    let (file, len) = (files[0], 300_000);
    volume.write_at(file, 0, &vec![0; len]).unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..120u8 {
                if round % 3 == 0 {
                    volume.allocate(file, AllocateMode::PunchHole, 0, len as u64).unwrap();
                }
                volume.write_at(file, 0, &vec![round; len]).unwrap();
                if round % 5 == 0 {
                    volume.sync().unwrap();
                }
            }
            done.store(true, std::sync::atomic::Ordering::Release);
        });
        let mut buf = vec![0; len];
        while !done.load(std::sync::atomic::Ordering::Acquire) {
            let inode = volume.inode(file).unwrap();
            assert_eq!(volume.read_at(&inode, 0, &mut buf).unwrap(), len);
            assert!(buf.iter().all(|b| *b == buf[0]), "a write is seen in part");
        }
    });
}

/// A page cache takes a short count for a complete write.
#[test]
fn pages_are_written_whole_or_refused() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    for (args, blocks) in TINY {
        let (image, volume, files) = volume_with_files(args, blocks * 1024, 2);
        let pages = WriteHow { preserve_times: true, pages: true, ..WriteHow::default() };
        let data = vec![0xa5; 100 << 10];
        let mut whole = 0;
        let refused = loop {
            match volume.write_with(files[0], whole, &data, &pages) {
                Ok(written) => assert_eq!(written.bytes, data.len(), "{args:?}"),
                Err(refused) => break refused,
            }
            whole += data.len() as u64;
        };
        assert!(matches!(refused, Error::NoSpace), "{args:?}: {refused}");
        assert!(content(&volume, files[0])[..whole as usize].iter().all(|byte| *byte == 0xa5));
        // other callers get the number of bytes written
        volume.truncate(files[0], whole.saturating_sub(50 << 10)).expect("space for a part");
        let data = [&data[..], &data].concat();
        let part = volume.write_at(files[1], 0, &data).expect("a part");
        assert!(part < data.len(), "{args:?}: {part}");
        volume.unmount().expect("unmounting");
        assert_valid(image.path(), args);
    }
}
