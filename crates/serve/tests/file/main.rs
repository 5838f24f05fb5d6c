//! A device as a file: its behaviour for programs that open it.

use blockdev::{BlockDevice, Geometry, MemoryDevice, Result as DeviceResult};
use extant_serve::{File, FileOptions};
use fuse_wire::{AttachOptions, Session, Unmounter};
use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::Errno;
use std::fs;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

const MIB: u64 = 1 << 20;

/// A device in memory that counts flushes, and fails them on request.
struct Counting {
    memory: MemoryDevice,
    flushes: AtomicU64,
    broken: AtomicBool,
}

impl BlockDevice for Counting {
    fn geometry(&self) -> Geometry {
        self.memory.geometry()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> DeviceResult<()> {
        self.memory.read(offset, buf)
    }

    fn write(&self, offset: u64, data: &[u8]) -> DeviceResult<()> {
        self.memory.write(offset, data)
    }

    fn flush(&self) -> DeviceResult<()> {
        self.flushes.fetch_add(1, Ordering::SeqCst);
        if self.broken.load(Ordering::SeqCst) {
            let source = io::Error::other("out of order");
            return Err(blockdev::Error::Io { op: blockdev::Op::Flush, offset: 0, len: 0, source });
        }
        self.memory.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> DeviceResult<()> {
        self.memory.discard(offset, len)
    }
}

/// A served file.
struct Served {
    device: Arc<Counting>,
    folder: tempfile::TempDir,
    said: Arc<Mutex<Vec<String>>>,
    unmounter: Unmounter,
    thread: JoinHandle<fuse_wire::Result<()>>,
}

impl Served {
    /// Mounts a file; `None` where mounting is impossible here.
    fn new(read_only: bool, punch: bool) -> Option<Self> {
        if !testkit::tools::is_root() || !testkit::tools::has_fuse() {
            testkit::tools::skip("mounting needs root and /dev/fuse");
            return None;
        }
        let memory = MemoryDevice::from_vec(vec![7; 4 * MIB as usize + 512]);
        let device = Arc::new(Counting { memory, flushes: AtomicU64::new(0), broken: AtomicBool::new(false) });
        let said: Arc<Mutex<Vec<String>>> = Arc::default();
        let options = FileOptions { name: "disk".to_owned(), read_only, punch };
        let report = {
            let said = Arc::clone(&said);
            move |what: &str| said.lock().push(what.to_owned())
        };
        let file = Arc::new(File::new(Arc::clone(&device) as Arc<dyn BlockDevice>, options, report));
        let folder = tempfile::tempdir().unwrap();
        let session = Session::mount(file, folder.path(), &AttachOptions::default()).unwrap();
        let unmounter = session.unmounter();
        let thread = std::thread::spawn(|| session.run());
        Some(Self { device, folder, said, unmounter, thread })
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("disk")
    }

    fn open(&self) -> fs::File {
        fs::File::options().read(true).write(true).open(self.path()).unwrap()
    }

    fn flushes(&self) -> u64 {
        self.device.flushes.load(Ordering::SeqCst)
    }

    fn end(self) -> fuse_wire::Result<()> {
        self.unmounter.unmount().unwrap();
        self.thread.join().unwrap()
    }
}

fn number(result: io::Result<impl std::fmt::Debug>) -> Errno {
    Errno::from_io_error(&result.unwrap_err()).unwrap()
}

#[test]
fn what_is_written_is_there_and_fsync_is_a_flush() {
    let Some(served) = Served::new(false, true) else { return };
    let names: Vec<_> = fs::read_dir(served.folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["disk"]);
    let meta = fs::metadata(served.path()).unwrap();
    assert_eq!((meta.len(), meta.mode()), (4 * MIB + 512, 0o100_600));
    let file = served.open();
    file.write_all_at(b"somewhere", 4093).unwrap();
    // the data is on the device at once, without a flush
    let mut bytes = [0; 9];
    served.device.read(4093, &mut bytes).unwrap();
    assert_eq!((&bytes, served.flushes()), (b"somewhere", 0));
    file.sync_data().unwrap();
    assert_eq!(served.flushes(), 1);
    let mut bytes = vec![0; 3 * MIB as usize];
    file.read_exact_at(&mut bytes, 1000).unwrap();
    assert!(bytes[3093..3102] == *b"somewhere" && bytes[..3093].iter().all(|byte| *byte == 7));
    // opened once for synchronous writes
    let sync = rustix::fs::OFlags::DSYNC.bits() as i32;
    let synchronous = fs::File::options().write(true).custom_flags(sync).open(served.path()).unwrap();
    synchronous.write_all_at(b"x", 5).unwrap();
    assert!(served.flushes() >= 2);
    // O_DIRECT has no further requirements
    let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
    let direct = fs::File::options().read(true).custom_flags(direct).open(served.path()).unwrap();
    let mut byte = [0];
    direct.read_exact_at(&mut byte, 5).unwrap();
    assert_eq!(&byte, b"x");
    drop((file, synchronous, direct));
    let before = served.flushes();
    let device = Arc::clone(&served.device);
    served.end().unwrap();
    assert!(device.flushes.load(Ordering::SeqCst) > before, "the end flushes");
}

#[test]
fn its_length_and_its_name_are_for_good() {
    let Some(served) = Served::new(false, true) else { return };
    let len = 4 * MIB + 512;
    let file = served.open();
    assert_eq!(file.write_at(b"123456", len - 3).unwrap(), 3);
    assert_eq!(number(file.write_at(b"1", len)), Errno::NOSPC);
    assert_eq!(file.read_at(&mut [0; 8], len).unwrap(), 0);
    assert_eq!(file.read_at(&mut [0; 8], len - 3).unwrap(), 3);
    assert_eq!(number(file.set_len(0)), Errno::PERM);
    file.set_len(len).unwrap();
    assert_eq!(number(fs::File::create(served.path())), Errno::PERM);
    assert_eq!(number(fs::File::create(served.folder.path().join("other"))), Errno::PERM);
    assert_eq!(number(fs::remove_file(served.path())), Errno::PERM);
    assert_eq!(number(fs::rename(served.path(), served.folder.path().join("other"))), Errno::PERM);
    assert_eq!(number(fs::metadata(served.folder.path().join("other"))), Errno::NOENT);
    assert_eq!(number(fs::metadata(served.path().join("below"))), Errno::NOTDIR);
    drop(file);
    served.end().unwrap();
}

#[test]
fn holes_read_as_zeroes() {
    let Some(served) = Served::new(false, true) else { return };
    let file = served.open();
    let (punch, zero) = (FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, FallocateFlags::ZERO_RANGE);
    fallocate(&file, punch, 1000, 5000).unwrap();
    fallocate(&file, zero, MIB, 2 * MIB).unwrap();
    // limited to the length of the file
    fallocate(&file, punch, 4 * MIB, 8 * MIB).unwrap();
    fallocate(&file, FallocateFlags::empty(), 0, 4 * MIB).unwrap();
    let mut bytes = vec![0; 4 * MIB as usize + 512];
    file.read_exact_at(&mut bytes, 0).unwrap();
    for (at, byte) in bytes.iter().enumerate() {
        let at = at as u64;
        let hole = (1000..6000).contains(&at) || (MIB..3 * MIB).contains(&at) || at >= 4 * MIB;
        assert_eq!(*byte, if hole { 0 } else { 7 }, "byte {at}");
    }
    assert_eq!(fallocate(&file, zero, 4 * MIB, MIB), Err(Errno::NOSPC));
    assert_eq!(fallocate(&file, FallocateFlags::empty(), 0, 5 * MIB), Err(Errno::NOSPC));
    assert_eq!(fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, MIB), Err(Errno::OPNOTSUPP));
    // a device without holes has one after its end
    assert_eq!(seek(&file, SeekFrom::Data(5000)), Ok(5000));
    assert_eq!(seek(&file, SeekFrom::Hole(5000)), Ok(4 * MIB + 512));
    assert_eq!(seek(&file, SeekFrom::Data(4 * MIB + 512)), Err(Errno::NXIO));
    drop(file);
    served.end().unwrap();

    let Some(served) = Served::new(false, false) else { return };
    let file = served.open();
    assert_eq!(fallocate(&file, punch, 0, MIB), Err(Errno::OPNOTSUPP));
    fallocate(&file, zero, 0, MIB).unwrap();
    drop(file);
    served.end().unwrap();
}

#[test]
fn nothing_is_changed_where_that_is_refused() {
    let Some(served) = Served::new(true, true) else { return };
    assert_eq!(fs::metadata(served.path()).unwrap().mode(), 0o100_400);
    assert_eq!(number(fs::File::options().write(true).open(served.path())), Errno::ROFS);
    let file = fs::File::open(served.path()).unwrap();
    let mut bytes = [0; 4];
    file.read_exact_at(&mut bytes, MIB).unwrap();
    assert_eq!(bytes, [7; 4]);
    file.sync_all().unwrap();
    assert_eq!(served.flushes(), 0);
    drop(file);
    served.end().unwrap();
}

#[test]
fn after_a_failed_flush_nothing_is_written() {
    let Some(served) = Served::new(false, true) else { return };
    let file = served.open();
    file.write_all_at(b"lost?", 0).unwrap();
    served.device.broken.store(true, Ordering::SeqCst);
    assert_eq!(number(file.sync_all()), Errno::IO);
    served.device.broken.store(false, Ordering::SeqCst);
    assert_eq!(number(file.sync_all()), Errno::IO);
    assert_eq!(number(file.write_at(b"more", 0)), Errno::IO);
    assert_eq!(file.read_at(&mut [0; 4], 0).unwrap(), 4);
    let said = served.said.lock().clone();
    assert!(said[0].contains("out of order") && said[1].contains("an earlier flush failed"), "{said:?}");
    drop(file);
    assert!(served.end().is_err());
}
