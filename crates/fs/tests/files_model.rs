//! Files changed in every way, compared with a model of bytes: reads always return the model's content, e2fsck finds no
//! error in the result, and the kernel reads the same.

mod common;

use common::plain::image;
use common::{assert_valid, content, number, open_writable};
use extant_fs::{AllocateMode, DataMode, Error, FileKind, InodeFlags, InodeNo, NewFile, Volume, WriteOptions};
use rustix::fs::FallocateFlags;
use std::os::unix::fs::FileExt;
use std::path::Path;
use testkit::{Image, Rng, cases, need, oracle, tools};

/// Volumes, their files' block size, and the maximum size of a model file.
const SHAPES: &[(&[&str], u64, u64)] = &[
    (&["-t", "ext2", "-b", "1024"], 1024, 700_000),
    (&["-t", "ext3", "-b", "1024"], 1024, 400_000),
    (&["-t", "ext4", "-b", "4096"], 4096, 1_500_000),
    (&["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,^has_journal"], 1024, 500_000),
    (&["-t", "ext4", "-b", "1024", "-O", "inline_data", "-I", "512"], 1024, 30_000),
    (&["-t", "ext4", "-b", "4096", "-O", "inline_data,^has_journal"], 4096, 200_000),
    (&["-t", "rext3", "-b", "4096"], 4096, 1_500_000),
    (&["-t", "rext3", "-b", "1024", "-O", "^has_journal"], 1024, 400_000),
    (&["-t", "rext3", "-b", "1024", "-O", "extents"], 1024, 500_000),
];
const FILES: usize = 3;

/// A file and its expected content.
struct File {
    number: InodeNo,
    model: Vec<u8>,
}

struct Bed {
    image: Image,
    /// Absent only while it is reopened.
    volume: Option<Volume>,
    files: Vec<File>,
    block_size: u64,
    largest: u64,
    options: WriteOptions,
    args: &'static [&'static str],
}

/// Whether the kernel can mount such a volume here.
fn by_others(args: &[&str]) -> bool {
    !args.contains(&"rext3") && tools::has_loop()
}

fn name(n: usize) -> String {
    format!("/file{n}")
}

/// Makes the kernel write a file in parts, with holes and unwritten blocks.
fn by_kernel(path: &Path, rng: &mut Rng, largest: u64) {
    let file = std::fs::OpenOptions::new().write(true).open(path).expect("opening with the kernel");
    for _ in 0..rng.below(60) {
        let offset = rng.below(largest);
        let len = rng.magnitude(largest - offset);
        match rng.below(8) {
            0..5 => file.write_all_at(&rng.bytes(len.min(20_000) as usize), offset).expect("write"),
            5 => file.set_len(offset).expect("truncate"),
            what => {
                let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                let mode = if what == 6 { punch } else { FallocateFlags::KEEP_SIZE };
                // files without extents cannot have unwritten blocks
                match rustix::fs::fallocate(&file, mode, offset, len) {
                    Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => {}
                    Err(e) => panic!("{e}"),
                }
            }
        }
        if rng.chance(20) {
            file.sync_data().expect("sync");
        }
    }
}

impl Bed {
    fn new(shape: usize, rng: &mut Rng) -> Self {
        let (args, block_size, largest) = SHAPES[shape];
        let image = image(args, 24 << 20);
        let files = open_writable(image.path(), WriteOptions::default());
        for n in 0..FILES {
            let new = NewFile { kind: FileKind::Regular, mode: 0o644, umask: 0, uid: 0, gid: 0, device: (0, 0) };
            files.create(InodeNo::ROOT, &name(n).as_bytes()[1..], &new).expect("create");
        }
        files.unmount().expect("unmount");
        drop(files);
        // sometimes the kernel writes first
        let models = if rng.chance(40) && by_others(args) {
            let mounted = oracle::kernel_mount(image.path(), "").expect("mount");
            (0..FILES).for_each(|n| by_kernel(&mounted.path().join(&name(n)[1..]), rng, largest));
            // the content that the kernel reads after a remount: with inline data it may differ from what it had in
            // memory
            mounted.unmount();
            let mounted = oracle::kernel_mount(image.path(), "ro").expect("mount");
            let read = |n| std::fs::read(mounted.path().join(&name(n)[1..])).expect("reading with the kernel");
            (0..FILES).map(read).collect()
        } else {
            vec![Vec::new(); FILES]
        };
        // sometimes with a very small limit for delayed data
        let dirty_bytes = *rng.pick(&[64 << 20, 1 << 20, 200_000]);
        let data = *rng.pick(&[DataMode::Ordered, DataMode::Writeback, DataMode::Journal]);
        let options = WriteOptions { dirty_bytes, delayed_bytes: dirty_bytes, data, ..WriteOptions::default() };
        let volume = open_writable(image.path(), options.clone());
        let models = models.into_iter().enumerate();
        let files = models.map(|(n, model)| File { number: number(&volume, &name(n)), model }).collect();
        Self { image, volume: Some(volume), files, block_size, largest, options, args }
    }

    fn reopen(&mut self) {
        self.volume().unmount().expect("unmount");
        // the device is released before it is opened again
        self.volume = None;
        self.volume = Some(open_writable(self.image.path(), self.options.clone()));
    }

    fn volume(&self) -> &Volume {
        self.volume.as_ref().expect("it is open")
    }

    /// A range of at most `largest` bytes: small ones and those at block boundaries are frequent.
    fn range(&self, rng: &mut Rng, size: u64) -> (u64, u64) {
        let mut offset = match rng.below(4) {
            0 => size,
            1 => rng.below(self.largest),
            _ => rng.below(size + 1),
        };
        if rng.chance(30) {
            offset -= offset % self.block_size;
        }
        let mut len = rng.magnitude(self.largest - offset.min(self.largest - 1));
        if rng.chance(30) {
            len = len.next_multiple_of(self.block_size);
        }
        (offset, len.min(self.largest.saturating_sub(offset)).max(1))
    }

    fn step(&mut self, rng: &mut Rng) -> String {
        let n = rng.index(FILES);
        let size = self.files[n].model.len() as u64;
        let (offset, len) = self.range(rng, size);
        let (at, end) = (offset as usize, (offset + len) as usize);
        let block = self.block_size;
        let what = rng.below(100);
        let volume = self.volume.as_ref().expect("it is open");
        let file = &mut self.files[n];
        let id = file.number;
        let extents = volume.inode(id).unwrap().raw().flags().intersects(InodeFlags::EXTENTS | InodeFlags::INLINE_DATA);
        let allocate = |mode| match volume.allocate(id, mode, offset, len) {
            Err(Error::Unsupported(_)) if !extents => false,
            outcome => {
                outcome.unwrap_or_else(|e| panic!("{mode:?} {offset} {len} of {size}: {e}"));
                assert!(extents || mode == AllocateMode::PunchHole);
                true
            }
        };
        let grow = |model: &mut Vec<u8>, end: usize| model.resize(model.len().max(end), 0);
        let mut did = format!("file{n} size {size} offset {offset} len {len}: ");
        match what {
            0..45 => {
                let data = rng.bytes(len as usize);
                grow(&mut file.model, end);
                file.model[at..end].copy_from_slice(&data);
                let mut done = 0;
                while done < data.len() {
                    done += volume.write_at(id, offset + done as u64, &data[done..]).expect("write");
                }
                did += "write";
            }
            45..57 => {
                let size = if rng.chance(50) { offset } else { rng.below(size + 1) };
                volume.truncate(id, size).expect("truncate");
                file.model.resize(size as usize, 0);
                did += &format!("truncate to {size}");
            }
            57..65 => {
                allocate(AllocateMode::PunchHole);
                let end = end.min(file.model.len());
                file.model[at.min(end)..end].fill(0);
                did += "punch";
            }
            65..70 => {
                if allocate(AllocateMode::Extend) {
                    grow(&mut file.model, end);
                }
                did += "extend";
            }
            70..74 => {
                allocate(AllocateMode::KeepSize);
                did += "allocate";
            }
            74..79 => {
                let same_size = rng.chance(40);
                if allocate(if same_size { AllocateMode::ZeroKeepSize } else { AllocateMode::Zero }) {
                    if !same_size {
                        grow(&mut file.model, end);
                    }
                    let end = end.min(file.model.len());
                    file.model[at.min(end)..end].fill(0);
                }
                did += "zero";
            }
            79..85 => {
                let (offset, len) = (offset / block * block, len.next_multiple_of(block));
                let outcome = volume.allocate(id, AllocateMode::Collapse, offset, len);
                match outcome {
                    Ok(()) => drop(file.model.drain(offset as usize..(offset + len) as usize)),
                    Err(Error::Invalid(_)) => assert!(offset + len >= size, "{offset} {len} of {size}"),
                    Err(e) => assert!(matches!(e, Error::Unsupported(_)) && !extents, "{e}"),
                }
                did += "collapse";
            }
            85..90 => {
                let (offset, len) = (offset / block * block, rng.below(40) * block);
                if size + len < self.largest && len > 0 {
                    match volume.allocate(id, AllocateMode::Insert, offset, len) {
                        Ok(()) => {
                            let tail = file.model.split_off(offset as usize);
                            file.model.resize((offset + len) as usize, 0);
                            file.model.extend(tail);
                        }
                        Err(Error::Invalid(_)) => assert!(offset >= size, "{offset} of {size}"),
                        Err(e) => assert!(matches!(e, Error::Unsupported(_)) && !extents, "{e}"),
                    }
                }
                did += "insert";
            }
            90..93 => {
                volume.fsync(id, rng.chance(50)).expect("fsync");
                did += "fsync";
            }
            93..95 => {
                volume.sync().expect("sync");
                did += "sync";
            }
            95..97 => {
                self.reopen();
                did += "reopen";
            }
            _ => {
                volume.flush_delayed(id).expect("flush");
                did += "flush";
            }
        }
        self.check(n, rng, &did);
        did
    }

    /// Reads a part of a file, and searches its holes.
    fn check(&self, n: usize, rng: &mut Rng, did: &str) {
        let File { number, model } = &self.files[n];
        let inode = self.volume().inode(*number).unwrap();
        let size = model.len() as u64;
        assert_eq!(self.volume().attributes_of(*number).unwrap().size, size, "{did}");
        let (offset, len) = self.range(rng, size);
        let mut buf = vec![0xAA; len as usize];
        let read = self.volume().read_at(&inode, offset, &mut buf).expect("read");
        let from = model.len().min(offset as usize);
        let expected = &model[from..model.len().min((offset + len) as usize)];
        assert!(buf[..read] == *expected, "{did}: {offset} {len} of {size} reads wrong");
        let at = rng.below(size + 1);
        if let Some(data) = self.volume().seek_data(&inode, at).unwrap() {
            assert!(data >= at && model[at as usize..data as usize].iter().all(|b| *b == 0), "{did}");
        } else {
            assert!(model[at as usize..].iter().all(|b| *b == 0), "{did}: a hole from {at}");
        }
    }

    fn finish(self, log: &[String]) {
        for file in &self.files {
            assert!(content(self.volume(), file.number) == file.model, "{log:#?}");
        }
        self.volume().unmount().expect("unmount");
        drop(self.volume);
        assert_valid(self.image.path(), &log);
        let again = common::open(self.image.path());
        for file in &self.files {
            assert!(content(&again, file.number) == file.model, "after unmount: {log:#?}");
        }
        if by_others(self.args) {
            let mounted = oracle::kernel_mount(self.image.path(), "ro,noload").expect("mount");
            for (n, file) in self.files.iter().enumerate() {
                let bytes = std::fs::read(mounted.path().join(&name(n)[1..])).expect("reading with the kernel");
                assert!(bytes == file.model, "the kernel reads {} differently: {log:#?}", name(n));
            }
        }
    }
}

fn run(shape: usize, count: u64) {
    if !need(&["mke2fs", "debugfs", "e2fsck", "mount", "umount"]) {
        return;
    }
    for case in cases(&format!("files {shape}"), count) {
        let mut rng = case.rng();
        let mut bed = Bed::new(shape, &mut rng);
        let mut log = Vec::new();
        for _ in 0..rng.between(20, 150) {
            let did = bed.step(&mut rng);
            if std::env::var_os("EXTANT_SEED").is_some() {
                eprintln!("{did}");
            }
            log.push(did);
        }
        bed.finish(&log);
    }
}

#[test]
fn ext2_files_are_what_was_written() {
    run(0, 8);
}

#[test]
fn ext3_files_are_what_was_written() {
    run(1, 6);
}

#[test]
fn ext4_files_are_what_was_written() {
    run(2, 8);
}

#[test]
fn ext4_files_of_small_blocks_are_what_was_written() {
    run(3, 8);
}

#[test]
fn inline_files_are_what_was_written() {
    run(4, 8);
}

#[test]
fn inline_files_in_large_blocks_are_what_was_written() {
    run(5, 8);
}

#[test]
fn rext3_files_are_what_was_written() {
    run(6, 8);
}

#[test]
fn rext3_files_of_small_blocks_are_what_was_written() {
    run(7, 8);
}

#[test]
fn rext3_files_with_extents_are_what_was_written() {
    run(8, 8);
}
