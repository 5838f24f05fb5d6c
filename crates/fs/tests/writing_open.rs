//! Opening for writing: refusals, the marks on the device, and acceptance of the result by e2fsck and the kernel, on
//! volumes of many layouts and with every consistency mode.

mod common;

use blockdev::{BlockDevice, FileDevice, MemoryDevice, ReadOnly};
use common::{assert_valid, content, number, open, open_writable};
use extant_fs::{
    Consistency, DataMode, Error, FileKind, FsBlock, InodeNo, NewFile, OpenOptions, Volume, Warning, WriteOptions,
};
use format::superblock::{DiskSuperblock, State};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use testkit::{Image, Rng, need, oracle, tools};
use zerocopy::{FromBytes, IntoBytes};

/// Variants that record their space in different ways.
const SHAPES: &[&[&str]] = &[
    &["-t", "ext2", "-b", "1024"],
    &["-t", "ext2", "-b", "4096", "-I", "128", "-O", "^resize_inode"],
    &["-t", "ext3", "-b", "1024"],
    &["-t", "ext3", "-b", "4096", "-O", "^sparse_super,^resize_inode"],
    &["-t", "ext4", "-b", "1024"],
    &["-t", "ext4", "-b", "4096"],
    &["-t", "ext4", "-b", "2048", "-O", "^has_journal,^64bit"],
    &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,uninit_bg,^64bit"],
    &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,^uninit_bg,^flex_bg,^extent,^64bit"],
    &["-t", "ext4", "-b", "1024", "-O", "meta_bg,^resize_inode", "-g", "1024"],
    &["-t", "ext4", "-b", "1024", "-O", "sparse_super2,metadata_csum_seed", "-G", "4", "-N", "8000"],
    &["-t", "ext4", "-b", "1024", "-O", "inline_data,orphan_file,ea_inode,large_dir"],
    &["-t", "ext2", "-b", "1024", "-r", "0", "-O", "none"],
    &["-t", "ext3", "-b", "1024", "-O", "none,has_journal"],
];

const CONSISTENCIES: [Consistency; 3] = [Consistency::None, Consistency::DirtyBit, Consistency::Journal];

fn with(consistency: Consistency) -> WriteOptions {
    WriteOptions { consistency: Some(consistency), ..WriteOptions::default() }
}

fn new(kind: FileKind) -> NewFile {
    NewFile { kind, mode: 0o755, umask: 0, uid: 1000, gid: 1000, device: (0, 0) }
}

fn superblock(image: &Path) -> DiskSuperblock {
    let bytes = std::fs::read(image).expect("reading the image");
    DiskSuperblock::read_from_prefix(&bytes[1024..]).expect("a superblock").0
}

fn change_superblock(image: &Path, change: impl FnOnce(&mut DiskSuperblock)) {
    let mut bytes = std::fs::read(image).expect("reading the image");
    let mut sb = superblock(image);
    change(&mut sb);
    sb.set_checksum();
    bytes[1024..2048].copy_from_slice(sb.as_bytes());
    std::fs::write(image, bytes).expect("writing the image");
}

fn is_valid(image: &Path) -> bool {
    State::from_bits_retain(superblock(image).s_state.get()).contains(State::VALID)
}

/// The result of a run: files with their content, at most a few hundred.
type Model = std::collections::BTreeMap<String, Vec<u8>>;

/// Creates, changes and removes files, in top-level directories and deeper ones.
fn work(volume: &Volume, rng: &mut Rng, model: &mut Model, steps: u32) {
    for step in 0..steps {
        let names: Vec<String> = model.keys().cloned().collect();
        if rng.chance(60) || names.is_empty() {
            let top = format!("d{}", rng.below(12));
            let below = format!("{top}/s{}", rng.below(3));
            for (path, parent) in [(&top, ""), (&below, &top[..])] {
                let parent = number(volume, &format!("/{parent}"));
                match volume.create(parent, path.rsplit('/').next().unwrap().as_bytes(), &new(FileKind::Directory)) {
                    Ok(_) | Err(Error::Exists) => {}
                    Err(e) => panic!("{path}: {e}"),
                }
            }
            let (dir, name) = (number(volume, &format!("/{below}")), format!("f{step}-{}", rng.below(1000)));
            let inode = volume.create(dir, name.as_bytes(), &new(FileKind::Regular)).expect("a new file");
            let len = rng.magnitude(120_000) as usize;
            let bytes = rng.bytes(len);
            for (n, part) in bytes.chunks(7_001).enumerate() {
                assert_eq!(volume.write_at(inode.number, n as u64 * 7_001, part).expect("written"), part.len());
            }
            model.insert(format!("{below}/{name}"), bytes);
        } else {
            let path = names[rng.index(names.len())].clone();
            let (dir, name) = path.rsplit_once('/').unwrap();
            let file = number(volume, &format!("/{path}"));
            match rng.below(3) {
                0 => {
                    volume.unlink(number(volume, &format!("/{dir}")), name.as_bytes()).expect("removed");
                    model.remove(&path);
                }
                1 => {
                    let bytes = model.get_mut(&path).unwrap();
                    let len = rng.index(bytes.len() + 1);
                    volume.truncate(file, len as u64).expect("truncated");
                    bytes.truncate(len);
                }
                _ => {
                    let bytes = model.get_mut(&path).unwrap();
                    let more = rng.bytes(3000);
                    volume.write_at(file, bytes.len() as u64, &more).expect("appended");
                    bytes.extend(more);
                }
            }
        }
        if rng.chance(3) {
            volume.sync().expect("sync");
        }
    }
}

fn compare(volume: &Volume, model: &Model, about: &dyn std::fmt::Debug) {
    for (path, bytes) in model {
        assert!(content(volume, number(volume, &format!("/{path}"))) == *bytes, "{about:?}: {path}");
    }
}

#[test]
fn what_is_written_is_consistent_whatever_the_shape() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    for (n, shape) in SHAPES.iter().enumerate() {
        let image = Image::mke2fs(shape, 24 << 20).build();
        let has_journal = open(image.path()).superblock().journal_inode().is_some();
        let mut model = Model::new();
        let mut rng = Rng::new(n as u64);
        for consistency in CONSISTENCIES {
            if consistency == Consistency::Journal && !has_journal {
                continue;
            }
            let about = (shape, consistency);
            let volume = open_writable(image.path(), with(consistency));
            assert_eq!(volume.consistency(), Some(consistency));
            work(&volume, &mut rng, &mut model, 120);
            compare(&volume, &model, &about);
            volume.sync().expect("sync");
            let space = volume.statfs();
            volume.unmount().expect("unmounted");
            assert!(matches!(volume.create(InodeNo::ROOT, b"late", &new(FileKind::Regular)), Err(Error::ReadOnly(_))));
            drop(volume);
            assert_valid(image.path(), &about);
            let read = open(image.path());
            compare(&read, &model, &about);
            assert_eq!(read.statfs(), space, "{about:?}");
            assert_eq!(read.warnings(), []);
        }
    }
}

#[test]
fn the_kernel_goes_on_where_we_stopped_and_we_where_it_did() {
    if !need(&["mke2fs", "e2fsck", "mount", "umount"]) || !tools::has_loop() {
        return;
    }
    for (n, shape) in SHAPES.iter().enumerate() {
        let image = Image::mke2fs(shape, 24 << 20).build();
        let (mut model, mut rng) = (Model::new(), Rng::new(100 + n as u64));
        for round in 0..3 {
            let volume = open_writable(image.path(), WriteOptions::default());
            compare(&volume, &model, shape);
            work(&volume, &mut rng, &mut model, 80);
            volume.unmount().expect("unmounted");
            drop(volume);
            assert_valid(image.path(), shape);
            let mounted = oracle::kernel_mount(image.path(), "").expect("mounted");
            for (path, bytes) in &model {
                assert!(std::fs::read(mounted.path().join(path)).expect("read") == *bytes, "{shape:?}: {path}");
            }
            let dir = mounted.path().join(format!("kernel{round}"));
            std::fs::create_dir(&dir).expect("a directory");
            for file in 0..30 {
                let len = rng.magnitude(60_000) as usize;
                let bytes = rng.bytes(len);
                std::fs::write(dir.join(format!("k{file}")), &bytes).expect("written");
                model.insert(format!("kernel{round}/k{file}"), bytes);
            }
            let gone: Vec<String> = model.keys().filter(|_| rng.chance(20)).cloned().collect();
            for path in gone {
                std::fs::remove_file(mounted.path().join(&path)).expect("removed");
                model.remove(&path);
            }
            mounted.unmount();
            assert_valid(image.path(), shape);
        }
    }
}

#[test]
fn the_superblock_says_how_the_volume_is() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    // nothing is written to a volume open for reading
    let image = Image::mke2fs(&["-t", "ext2"], 8 << 20).build();
    let before = image.bytes();
    let volume = open_writable(image.path(), WriteOptions::default());
    assert_eq!(volume.consistency(), Some(Consistency::DirtyBit));
    volume.tick(Duration::from_secs(60)).expect("tick");
    volume.unmount().expect("unmounted");
    drop(volume);
    assert!(image.bytes() == before);

    // in use, idle, and in use again
    let mounted_at = Some(b"/a/place".to_vec());
    let volume = open_writable(image.path(), WriteOptions { mounted_at, ..WriteOptions::default() });
    volume.create(InodeNo::ROOT, b"one", &new(FileKind::Regular)).expect("a file");
    assert!(is_valid(image.path()), "nothing was written yet");
    volume.sync().expect("sync");
    assert!(!is_valid(image.path()));
    volume.tick(Duration::from_secs(100)).expect("tick");
    volume.tick(Duration::from_secs(102)).expect("tick");
    assert!(is_valid(image.path()), "it has been idle for two seconds");
    assert_valid(image.path(), &"quiet");
    volume.create(InodeNo::ROOT, b"two", &new(FileKind::Regular)).expect("a file");
    volume.sync().expect("sync");
    drop(volume);
    assert!(!is_valid(image.path()), "it was not unmounted");
    let sb = superblock(image.path());
    assert_eq!((sb.s_mnt_count.get(), sb.s_mtime.get(), sb.s_wtime.get()), (1, 1_800_000_000, 1_800_000_000));
    assert_eq!(sb.last_mounted(), "/a/place");
    assert!(sb.s_kbytes_written.get() > 0);

    // now it needs a check, except in a mode without guarantees; and using it does not make it consistent
    let refused = open_for_writing(&image, WriteOptions::default());
    assert!(matches!(&refused, Err(Error::ReadOnly(why)) if why.contains("check")), "{:?}", refused.err());
    let volume = open_writable(image.path(), with(Consistency::None));
    assert_eq!(volume.warnings(), [Warning::NotUnmounted]);
    volume.create(InodeNo::ROOT, b"three", &new(FileKind::Regular)).expect("a file");
    volume.unmount().expect("unmounted");
    drop(volume);
    assert!(!is_valid(image.path()));

    // nor after an error was found
    for shape in ["ext2", "ext4"] {
        let image = Image::mke2fs(&["-t", shape], 16 << 20).build();
        let volume = open_writable(image.path(), WriteOptions::default());
        volume.mark_for_check();
        volume.unmount().expect("unmounted");
        drop(volume);
        let sb = superblock(image.path());
        assert_eq!((sb.s_state.get() & 2, sb.s_error_count.get()), (2, 1), "{shape}");
        assert_eq!(sb.s_first_error_time.get(), 1_800_000_000);
        assert!(open_for_writing(&image, WriteOptions::default()).is_err());
    }

    let image = Image::mke2fs(&["-t", "ext4"], 16 << 20).build();
    let volume = open_writable(image.path(), WriteOptions::default());
    assert_eq!(volume.consistency(), Some(Consistency::Journal));
    volume.create(InodeNo::ROOT, b"one", &new(FileKind::Regular)).expect("a file");
    volume.sync().expect("sync");
    volume.create(InodeNo::ROOT, b"two", &new(FileKind::Regular)).expect("a file");
    drop(volume);
    let sb = superblock(image.path());
    assert!(sb.features().incompat.contains(format::feature::Incompat::NEEDS_RECOVERY) && is_valid(image.path()));
    let volume = open_writable(image.path(), WriteOptions::default());
    assert_eq!(volume.warnings(), [Warning::JournalWrittenHome]);
    assert!(volume.lookup(&volume.inode(InodeNo::ROOT).unwrap(), b"one").is_ok());
    assert!(volume.lookup(&volume.inode(InodeNo::ROOT).unwrap(), b"two").is_err());
    volume.unmount().expect("unmounted");
    drop(volume);
    assert_valid(image.path(), &"replayed");
    assert_eq!(open(image.path()).warnings(), []);
}

fn open_for_writing(image: &Image, write: WriteOptions) -> extant_fs::Result<Volume> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_vec(image.bytes()));
    Volume::open(device, &OpenOptions { write: Some(write), ..OpenOptions::default() })
}

#[test]
fn what_cannot_be_written_is_refused_in_a_sentence() {
    if !need(&["mke2fs", "debugfs"]) {
        return;
    }
    let refused = |image: &Image, options: &OpenOptions, sentence: &str| {
        let options = OpenOptions { write: Some(options.write.clone().unwrap_or_default()), ..options.clone() };
        let before = image.bytes();
        let device = FileDevice::open(image.path(), blockdev::OpenOptions { write: true, ..Default::default() });
        match Volume::open(Arc::new(device.expect("the image")), &options) {
            Err(Error::ReadOnly(why)) => assert!(why.contains(sentence), "{why}"),
            Err(Error::Impossible(why)) => assert!(why.contains(sentence), "{why}"),
            Err(other) => panic!("{sentence}: {other}"),
            Ok(_) => panic!("{sentence}: it was opened"),
        }
        assert!(image.bytes() == before, "{sentence}: a refused volume is not changed");
        let readable = Volume::open(Arc::new(MemoryDevice::from_vec(before)), &OpenOptions { write: None, ..options });
        assert!(readable.is_ok_and(|volume| volume.sync().is_err()), "{sentence}: it can still be read");
    };
    let make = |args: &[&str]| Image::mke2fs(args, 16 << 20).build();
    let plain = OpenOptions::default();
    refused(&make(&["-t", "ext4", "-O", "bigalloc"]), &plain, "bigalloc");
    refused(&make(&["-t", "ext4", "-O", "quota,project"]), &plain, "project");
    refused(&make(&["-t", "ext4", "-O", "verity"]), &plain, "verity");
    let image = make(&["-t", "ext4"]);
    refused(&image, &OpenOptions { superblock: Some(FsBlock(8193)), ..plain.clone() }, "backup superblock");
    refused(&image, &OpenOptions { ignore_journal: true, ..plain.clone() }, "journal");
    let image = make(&["-t", "ext2"]);
    refused(&image, &OpenOptions { write: Some(with(Consistency::Journal)), ..plain.clone() }, "needs a journal");
    change_superblock(image.path(), |sb| sb.s_feature_ro_compat = (sb.s_feature_ro_compat.get() | 1 << 30).into());
    refused(&image, &plain, "writing is not supported with");
    let image = make(&["-t", "ext4"]);
    change_superblock(image.path(), |sb| sb.s_state = 3.into());
    refused(&image, &plain, "errors");
    let image = make(&["-t", "ext4"]);
    let shorter = Image::from_bytes(&image.bytes()[..12 << 20]);
    refused(&shorter, &plain, "ends before");
    let device: Arc<dyn BlockDevice> = Arc::new(ReadOnly::new(MemoryDevice::from_vec(image.bytes())));
    let opened = Volume::open(device, &OpenOptions { write: Some(WriteOptions::default()), ..plain });
    assert!(matches!(opened, Err(Error::ReadOnly(why)) if why.contains("device is read-only")));
}

#[test]
fn a_group_whose_bitmap_is_wrong_is_left_alone() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    for shape in [&["-t", "ext4", "-b", "1024", "-O", "^flex_bg"][..], &["-t", "ext2", "-b", "1024"]] {
        let image = Image::mke2fs(shape, 32 << 20).build();
        let fill = |volume: &Volume| {
            let big = volume.create(InodeNo::ROOT, b"big", &new(FileKind::Regular)).expect("a file");
            let mut at = 0;
            while let Ok(written) = volume.write_at(big.number, at, &[7; 100_000]) {
                at += written as u64;
            }
        };
        // every group has bitmaps of its own
        let volume = open_writable(image.path(), WriteOptions::default());
        fill(&volume);
        volume.unlink(InodeNo::ROOT, b"big").expect("removed");
        volume.unmount().expect("unmounted");
        drop(volume);
        // a free block of group 1 appears to be in use
        let group = open(image.path()).group(extant_fs::GroupNo(1)).expect("a group");
        let mut bytes = image.bytes();
        bytes[group.block_bitmap.get() as usize * 1024 + 700] ^= 0x10;
        let image = Image::from_bytes(&bytes);
        let volume = open_writable(image.path(), WriteOptions::default());
        let (mut model, mut rng) = (Model::new(), Rng::new(5));
        work(&volume, &mut rng, &mut model, 300);
        fill(&volume);
        compare(&volume, &model, &shape);
        let damaged: Vec<u32> = volume.damaged_groups().iter().map(|damaged| damaged.group.get()).collect();
        assert_eq!(damaged, [1]);
        volume.unlink(InodeNo::ROOT, b"big").expect("removed");
        volume.unmount().expect("unmounted");
        drop(volume);
        let after = image.bytes();
        let at = group.block_bitmap.get() as usize * 1024;
        assert!(after[at..at + 1024] == bytes[at..at + 1024], "it is unchanged");
        assert_eq!(superblock(image.path()).s_state.get() & 2, 2, "the volume is marked as having errors");
        assert!(superblock(image.path()).s_error_count.get() > 0);
        compare(&open(image.path()), &model, &shape);
        let fixed = tools::run("e2fsck", &["-fy".as_ref(), image.path().as_os_str()]);
        assert_eq!(fixed.exit, Some(1), "{}", fixed.text());
        compare(&open(image.path()), &model, &shape);
    }
}

#[test]
fn a_full_volume_takes_new_files_as_soon_as_others_are_gone() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    for data in [DataMode::Ordered, DataMode::Journal] {
        let image = Image::mke2fs(&["-t", "ext4", "-b", "1024", "-N", "64"], 12 << 20).build();
        let volume = open_writable(image.path(), WriteOptions { data, ..WriteOptions::default() });
        let fill = |name: &[u8]| {
            let inode = volume.create(InodeNo::ROOT, name, &new(FileKind::Regular)).expect("a file");
            let mut at = 0;
            loop {
                match volume.write_at(inode.number, at, &[at as u8; 50_000]) {
                    Ok(written) => at += written as u64,
                    Err(Error::NoSpace) => return at,
                    Err(e) => panic!("{e}"),
                }
            }
        };
        let first = fill(b"first");
        assert!(first > 5 << 20, "{first}");
        // the old content is free only when its removal is durable; a caller that needs the space waits for that
        for _ in 0..3 {
            volume.unlink(InodeNo::ROOT, b"first").expect("removed");
            let again = fill(b"first");
            assert!(again.abs_diff(first) < 100_000, "{first} {again}");
        }
        // the same for inodes
        let mut made = 0;
        while volume.create(InodeNo::ROOT, format!("n{made}").as_bytes(), &new(FileKind::Regular)).is_ok() {
            made += 1;
        }
        assert_eq!(volume.statfs().files_free, 0);
        volume.unlink(InodeNo::ROOT, b"n0").expect("removed");
        volume.create(InodeNo::ROOT, b"n0", &new(FileKind::Regular)).expect("there is one");
        volume.unmount().expect("unmounted");
        drop(volume);
        assert_valid(image.path(), &data);
    }
}

#[test]
fn the_background_writes_what_is_left_alone() {
    if !need(&["mke2fs"]) {
        return;
    }
    let image = Image::mke2fs(&["-t", "ext4"], 16 << 20).build();
    let commit = Duration::from_millis(150);
    let volume = Arc::new(open_writable(image.path(), WriteOptions { commit, ..WriteOptions::default() }));
    volume.start_background();
    let file = volume.create(InodeNo::ROOT, b"file", &new(FileKind::Regular)).expect("a file");
    volume.write_at(file.number, 0, b"content").expect("written");
    let there = || {
        let volume = Volume::open(Arc::new(MemoryDevice::from_vec(image.bytes())), &OpenOptions::default()).ok()?;
        let number = volume.resolve(b"/file").ok()?;
        (content(&volume, number) == b"content").then_some(())
    };
    // depends on the speed of the machine; without a background thread it would never end
    let mut tries = 0;
    while there().is_none() {
        tries += 1;
        assert!(tries < 600, "it never came");
        std::thread::sleep(Duration::from_millis(50));
    }
    volume.unmount().expect("unmounted");
}

#[test]
fn a_volume_in_use_says_so() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    let image = Image::mke2fs(&["-t", "ext4", "-O", "mmp", "-E", "mmp_update_interval=1"], 16 << 20).build();
    let volume = open_writable(image.path(), WriteOptions::default());
    assert_eq!(volume.warnings(), []);
    volume.create(InodeNo::ROOT, b"file", &new(FileKind::Regular)).expect("a file");
    volume.sync().expect("sync");
    let seen = image.bytes();
    let other = Volume::open(Arc::new(MemoryDevice::from_vec(seen.clone())), &OpenOptions::default()).expect("opened");
    assert!(other.warnings().iter().any(|note| matches!(note, Warning::InUse { .. })), "{:?}", other.warnings());
    volume.tick(Duration::from_secs(2)).expect("tick");
    let at = superblock(image.path()).s_mmp_block.get() as usize * other.superblock().geometry.block_size as usize;
    assert!(image.bytes()[at..at + 1024] != seen[at..at + 1024], "the number changes");
    volume.unmount().expect("unmounted");
    drop(volume);
    assert_valid(image.path(), &"mmp");
    assert_eq!(open(image.path()).warnings(), []);
    // after a crash: no process changes the number any more
    let crashed = Image::from_bytes(&seen);
    let volume = open_writable(crashed.path(), WriteOptions::default());
    // another process writes the block: nothing is written any more
    let mut bytes = std::fs::read(crashed.path()).expect("reading");
    bytes[at + 4] ^= 1;
    let mut mmp = format::mmp::DiskMmp::read_from_prefix(&bytes[at..]).expect("the block").0;
    mmp.mmp_checksum = mmp.checksum(volume.superblock().geometry.checksum_seed).into();
    {
        use std::os::unix::fs::FileExt;
        let file = std::fs::OpenOptions::new().write(true).open(crashed.path()).expect("the image");
        file.write_all_at(mmp.as_bytes(), at as u64).expect("written");
    }
    assert!(volume.tick(Duration::from_secs(10)).is_err());
    assert!(volume.create(InodeNo::ROOT, b"late", &new(FileKind::Regular)).is_err());
    assert_eq!(volume.damaged_groups(), []);
}

#[test]
fn the_same_work_writes_the_same_bytes() {
    if !need(&["mke2fs"]) {
        return;
    }
    for shape in [&["-t", "ext4", "-b", "1024"][..], &["-t", "ext2", "-b", "1024"]] {
        let run = || {
            let image = Image::mke2fs(shape, 16 << 20).build();
            let volume = open_writable(image.path(), WriteOptions::default());
            work(&volume, &mut Rng::new(9), &mut Model::new(), 150);
            volume.tick(Duration::from_secs(9)).expect("tick");
            volume.unmount().expect("unmounted");
            image.bytes()
        };
        assert!(run() == run(), "{shape:?}");
    }
}

#[test]
fn the_superuser_may_use_what_is_reserved() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    let image = Image::mke2fs(&["-t", "ext2", "-b", "1024", "-m", "20"], 8 << 20).build();
    let mut sizes = Vec::new();
    for superuser in [false, true] {
        let volume = open_writable(image.path(), WriteOptions { superuser, ..WriteOptions::default() });
        let name = format!("{superuser}").into_bytes();
        let file = volume.create(InodeNo::ROOT, &name, &new(FileKind::Regular)).expect("a file");
        let mut at = 0;
        while let Ok(written) = volume.write_at(file.number, at, &[1; 10_000]) {
            at += written as u64;
        }
        sizes.push(at);
        volume.sync().expect("sync");
        assert_eq!(volume.statfs().blocks_available, 0);
        volume.unmount().expect("unmounted");
    }
    assert_valid(image.path(), &sizes);
    // a fifth of 8 MiB was reserved
    assert!(sizes[0] > 5 << 20 && (1_500 << 10..1_640 << 10).contains(&sizes[1]), "{sizes:?}");
    assert!(open(image.path()).statfs().blocks_free < 30);
}
