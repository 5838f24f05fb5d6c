//! Several threads on the same directories.

mod common;

use common::{assert_valid, manifest, open, open_writable};
use extant_fs::{Error, FileKind, InodeNo, NewFile, RenameFlags, SetAttributes, WriteOptions};
use std::collections::BTreeSet;
use std::sync::Arc;
use testkit::{Image, Rng, need};

const ROOT: InodeNo = InodeNo::ROOT;
const THREADS: u64 = 6;
const STEPS: u64 = 1500;

fn new(kind: FileKind) -> NewFile {
    NewFile { kind, mode: 0o644, umask: 0, uid: 0, gid: 0, device: (0, 0) }
}

#[test]
fn threads_share_directories() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    let shapes: [&[&str]; 4] = [
        &["-t", "ext4", "-b", "1024"],
        &["-t", "ext4", "-b", "4096", "-O", "orphan_file"],
        &["-t", "ext2", "-b", "1024"],
        &["-t", "ext4", "-b", "1024", "-I", "512", "-O", "inline_data"],
    ];
    for args in shapes {
        let image = Image::mke2fs(args, 48 << 20).build();
        // small generations close during the work
        let options = WriteOptions { dirty_bytes: 1 << 20, delayed_bytes: 1 << 20, ..WriteOptions::default() };
        let volume = Arc::new(open_writable(image.path(), options));
        volume.start_background();
        let dirs: Vec<InodeNo> = (0..4)
            .map(|n| {
                volume.create(ROOT, format!("dir{n}").as_bytes(), &new(FileKind::Directory)).expect("mkdir").number
            })
            .collect();
        // each thread has names of its own, and all compete for a few
        let own_names: Vec<BTreeSet<(usize, String)>> = std::thread::scope(|scope| {
            let all: Vec<_> = (0..THREADS)
                .map(|t| {
                    let (volume, dirs) = (&volume, &dirs);
                    scope.spawn(move || {
                        let mut rng = Rng::new(t + 77);
                        let mut own = BTreeSet::new();
                        for n in 0..STEPS {
                            let d = rng.index(dirs.len());
                            let e = rng.index(dirs.len());
                            match rng.below(10) {
                                0..4 => {
                                    let name = format!("own{t}-{n}");
                                    volume.create(dirs[d], name.as_bytes(), &new(FileKind::Regular)).expect("create");
                                    own.insert((d, name));
                                }
                                4..6 => {
                                    let Some((d, name)) = own.iter().nth(rng.index(own.len())).cloned() else {
                                        continue;
                                    };
                                    if rng.chance(50) {
                                        volume.unlink(dirs[d], name.as_bytes()).expect("unlink");
                                        own.remove(&(d, name));
                                    } else {
                                        let new = format!("own{t}-{n}-moved");
                                        let none = RenameFlags::default();
                                        volume
                                            .rename(dirs[d], name.as_bytes(), dirs[e], new.as_bytes(), none)
                                            .expect("rename");
                                        own.remove(&(d, name));
                                        own.insert((e, new));
                                    }
                                }
                                6 => {
                                    let inode = volume.inode(dirs[d]).expect("a directory");
                                    let listed = volume.read_dir(&inode, 0).expect("a directory");
                                    let names: BTreeSet<_> = listed.map(|entry| entry.expect("a name").name).collect();
                                    for (_, name) in own.iter().filter(|(at, _)| *at == d) {
                                        assert!(names.contains(name.as_bytes()), "{name} is not listed");
                                    }
                                }
                                _ => {
                                    let (a, b) = (format!("shared{}", rng.below(5)), format!("shared{}", rng.below(5)));
                                    let flags = RenameFlags { exchange: rng.chance(30), ..RenameFlags::default() };
                                    let result = match rng.below(6) {
                                        0 => volume.create(dirs[d], a.as_bytes(), &new(FileKind::Directory)).map(drop),
                                        1 => volume.create(dirs[d], a.as_bytes(), &new(FileKind::Fifo)).map(drop),
                                        2 => volume.unlink(dirs[d], a.as_bytes()),
                                        3 => volume.rmdir(dirs[d], a.as_bytes()),
                                        4 => {
                                            let set = SetAttributes { mode: Some(0o700), ..SetAttributes::default() };
                                            let inode = volume.inode(dirs[d]).expect("a directory");
                                            let found = volume.lookup(&inode, a.as_bytes());
                                            found.and_then(|number| volume.set_attributes(number, &set)).map(drop)
                                        }
                                        _ => volume.rename(dirs[d], a.as_bytes(), dirs[e], b.as_bytes(), flags),
                                    };
                                    match result {
                                        Ok(())
                                        | Err(
                                            Error::NotFound
                                            | Error::Exists
                                            | Error::NotEmpty
                                            | Error::IsADirectory
                                            | Error::NotADirectory
                                            | Error::Invalid(_),
                                        ) => {}
                                        // it was removed between lookup and change
                                        Err(Error::Stale(_)) => {}
                                        Err(e) => panic!("{e}"),
                                    }
                                }
                            }
                        }
                        own
                    })
                })
                .collect();
            all.into_iter().map(|thread| thread.join().expect("the thread ends")).collect()
        });
        volume.unmount().expect("unmount");
        drop(volume);
        assert_valid(image.path(), &args);
        let manifest = manifest(&open(image.path()));
        let left: BTreeSet<String> =
            manifest.0.keys().map(|path| path.display().to_string()).filter(|path| path.contains("/own")).collect();
        let expected = own_names.iter().flatten().map(|(d, name)| format!("dir{d}/{name}")).collect::<BTreeSet<_>>();
        assert!(left == expected, "{args:?}");
    }
}

/// Directories are moved into each other by several threads: no loop is created, and there is no deadlock.
#[test]
fn directories_move_between_each_other() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    let image = Image::mke2fs(&["-t", "ext4", "-b", "1024"], 16 << 20).build();
    let volume = open_writable(image.path(), WriteOptions::default());
    let dirs: Vec<InodeNo> = (0..8)
        .map(|n| volume.create(ROOT, format!("d{n}").as_bytes(), &new(FileKind::Directory)).expect("mkdir").number)
        .collect();
    std::thread::scope(|scope| {
        for t in 0..THREADS {
            let (volume, dirs) = (&volume, &dirs);
            scope.spawn(move || {
                let mut rng = Rng::new(t);
                for _ in 0..3000 {
                    let all: Vec<InodeNo> = dirs.iter().copied().chain([ROOT]).collect();
                    let (from, to) = (*rng.pick(&all), *rng.pick(&all));
                    let name = format!("d{}", rng.below(8));
                    let flags = RenameFlags { exchange: rng.chance(20), ..RenameFlags::default() };
                    let other = if flags.exchange { format!("d{}", rng.below(8)) } else { name.clone() };
                    match volume.rename(from, name.as_bytes(), to, other.as_bytes(), flags) {
                        Ok(()) | Err(Error::NotFound | Error::Invalid(_) | Error::NotEmpty) => {}
                        Err(e) => panic!("{e}"),
                    }
                }
            });
        }
    });
    volume.unmount().expect("unmount");
    drop(volume);
    assert_valid(image.path(), &"moved");
    let manifest = manifest(&open(image.path()));
    let moved = manifest.0.keys().filter(|path| path.file_name().is_some_and(|name| name.len() == 2)).count();
    assert_eq!(moved, 8);
}
