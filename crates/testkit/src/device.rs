//! The conformance tests of all block devices.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use crate::rng::Rng;
use blockdev::{Batching, BlockDevice, Error, FileDevice, Geometry, MemoryDevice, Op, OpenOptions, Read, Write};

/// The options for writing through the page cache.
pub const WRITE: OpenOptions = OpenOptions {
    write: true,
    direct: false,
    exclusive: false,
    planned: false,
    mounted: false,
    patience: Duration::ZERO,
};
/// The options for writing with O_DIRECT.
pub const DIRECT: OpenOptions = OpenOptions {
    write: true,
    direct: true,
    exclusive: false,
    planned: false,
    mounted: false,
    patience: Duration::ZERO,
};
/// All ways to submit several requests at once.
pub const BATCHINGS: [Batching; 3] = [Batching::Serial, Batching::Threads, Batching::Queue];

/// Opens a file or block device; `None`, with the reason printed, if O_DIRECT is requested and not available.
pub fn open(path: &Path, options: OpenOptions) -> Option<FileDevice> {
    match FileDevice::open(path, options) {
        Err(Error::Open { source, .. }) if options.direct && source.kind() == std::io::ErrorKind::Unsupported => {
            eprintln!("skipped: {}: {source}", path.display());
            None
        }
        opened => Some(opened.unwrap()),
    }
}

/// Reads the whole device.
pub fn content(device: &dyn BlockDevice) -> Vec<u8> {
    let mut bytes = vec![0; device.geometry().len as usize];
    device.read(0, &mut bytes).unwrap();
    bytes
}

/// The conformance test of a writable device of at least 256 KiB, with any content.
pub fn conforms(device: &dyn BlockDevice) {
    let geometry = device.geometry();
    assert!(!geometry.read_only && geometry.sector.is_power_of_two() && geometry.sector >= 512);
    assert!(geometry.len >= 256 << 10);
    let mut model = content(device);
    let mut numbers = Rng::new(7);
    single_requests(device, &mut model, &mut numbers);
    batches(device, &mut model, &mut numbers);
    beyond_the_end(device);
    zeroes(device, &mut model, &mut numbers);
    discards(device, &mut model);
    assert_eq!(content(device), model, "a request that failed changed something");
}

/// A device in memory that reports groups and counts fresh writes.
#[derive(Debug)]
pub struct Grouped {
    bytes: MemoryDevice,
    fresh: AtomicU64,
}

impl Grouped {
    /// Maximum size of its groups in bytes.
    pub const GROUP: u64 = 1 << 20;

    /// A device of `len` zero bytes.
    pub fn zeroed(len: u64) -> Self {
        Self { bytes: MemoryDevice::zeroed(len).expect("memory"), fresh: AtomicU64::new(0) }
    }

    /// The number of fresh writes.
    pub fn fresh(&self) -> u64 {
        self.fresh.load(Ordering::Relaxed)
    }
}

impl BlockDevice for Grouped {
    fn geometry(&self) -> Geometry {
        Geometry { group: Self::GROUP, ..self.bytes.geometry() }
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        self.bytes.read(offset, buf)
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        self.bytes.write(offset, data)
    }

    fn write_fresh(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        self.fresh.fetch_add(1, Ordering::Relaxed);
        self.bytes.write(offset, data)
    }

    fn flush(&self) -> Result<(), Error> {
        self.bytes.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.bytes.discard(offset, len)
    }
}

/// Checks that a device over another one passes on the size of groups and the freshness of writes.
pub fn forwards_groups<D: BlockDevice>(wrap: impl FnOnce(Arc<Grouped>) -> D) {
    let below = Arc::new(Grouped::zeroed(256 << 10));
    let device = wrap(Arc::clone(&below));
    assert_eq!(device.geometry().group, Grouped::GROUP);
    device.write_fresh(4096, &[1; 512]).unwrap();
    device.write(8192, &[2; 512]).unwrap();
    assert_eq!(below.fresh(), 1);
    assert_eq!((content(&device)[4096], content(&below)[8192]), (1, 2));
}

fn single_requests(device: &dyn BlockDevice, model: &mut [u8], numbers: &mut Rng) {
    let end = model.len();
    let places = [
        (0, 512),
        (4096, 4096),
        (1, 1),
        (511, 2),
        (1000, 5000),
        (8192, 4097),
        (end - 1, 1),
        (end - 700, 700),
        (end, 0),
    ];
    for (start, len) in places {
        let data = numbers.bytes(len);
        let write = if len % 2 == 0 { BlockDevice::write } else { BlockDevice::write_fresh };
        write(device, start as u64, &data).unwrap();
        model[start..start + len].copy_from_slice(&data);
        let mut back = vec![0; len];
        device.read(start as u64, &mut back).unwrap();
        assert!(back == data, "{len} bytes at {start} read back wrong");
    }
    device.flush().unwrap();
    assert!(content(device) == model, "a write changed adjacent bytes");
    for (start, len) in places {
        let mut back = vec![0; len];
        device.read(start as u64, &mut back).unwrap();
        assert!(back == model[start..start + len]);
    }
}

fn batches(device: &dyn BlockDevice, model: &mut [u8], numbers: &mut Rng) {
    for requests in [0, 1, 2, 3, 64, 200] {
        // writes that are adjacent and do not overlap, in a mixed order
        let slot = model.len() / requests.max(1);
        let mut data: Vec<_> = (0..requests)
            .map(|n| {
                let start = n * slot + if n % 2 == 0 { 0 } else { numbers.below(slot as u64 / 2) as usize };
                let len = if n % 3 == 0 { (n + 1) * slot - start } else { numbers.below(slot as u64 / 2) as usize };
                (start, numbers.bytes(len.min(3000)))
            })
            .collect();
        for i in (1..data.len()).rev() {
            data.swap(i, numbers.below(i as u64 + 1) as usize);
        }
        let mut writes: Vec<_> = data.iter().map(|(start, bytes)| Write::new(*start as u64, bytes)).collect();
        device.write_many(&mut writes);
        assert!(writes.iter().all(|w| w.result.is_ok()), "{writes:?}");
        for (start, bytes) in &data {
            model[*start..start + bytes.len()].copy_from_slice(bytes);
        }

        let mut buffers: Vec<(usize, Vec<u8>)> = (0..requests)
            .map(|_| {
                let start = numbers.below(model.len() as u64) as usize;
                (start, vec![0; numbers.below(20_000.min((model.len() - start) as u64 + 1)) as usize])
            })
            .collect();
        let mut reads: Vec<_> = buffers.iter_mut().map(|(start, buf)| Read::new(*start as u64, buf)).collect();
        device.read_many(&mut reads);
        assert!(reads.iter().all(|r| r.result.is_ok()), "{reads:?}");
        for (start, bytes) in &buffers {
            assert!(bytes[..] == model[*start..start + bytes.len()], "{} bytes at {start} of {requests}", bytes.len());
        }
    }
    assert!(content(device) == model);
}

fn zeroes(device: &dyn BlockDevice, model: &mut [u8], numbers: &mut Rng) {
    for (offset, len) in [(0, 0), (1, 5), (511, 2), (512, 512), (700, 70_000), (4096, 8192), (100_001, 100_001)] {
        let junk = numbers.bytes(len + 2);
        let from = if offset == 0 { 0 } else { offset - 1 };
        device.write(from as u64, &junk).unwrap();
        model[from..from + junk.len()].copy_from_slice(&junk);
        device.write_zeroes(offset as u64, len as u64).unwrap();
        model[offset..offset + len].fill(0);
        assert!(content(device) == model, "{len} zeroes at {offset}");
    }
    let end = device.geometry().len;
    assert!(matches!(device.write_zeroes(end - 1, 2), Err(Error::OutOfRange { op: Op::Write, .. })));
}

fn beyond_the_end(device: &dyn BlockDevice) {
    let end = device.geometry().len;
    let out = |result: Result<(), Error>, asked: (Op, u64, u64)| {
        let Err(Error::OutOfRange { op, offset, len, end: at }) = result else {
            panic!("{asked:?} returned {result:?}")
        };
        assert_eq!(((op, offset, len), at), (asked, end));
    };
    device.read(end, &mut []).unwrap();
    device.write(end, &[]).unwrap();
    device.discard(end, 0).unwrap();
    for (offset, len) in
        [(end, 1), (end - 1, 2), (end + 1, 0), (0, end + 1), (u64::MAX, 0), (u64::MAX, 1), (u64::MAX - 511, 512)]
    {
        let mut buf = vec![0x5a; len as usize];
        out(device.read(offset, &mut buf), (Op::Read, offset, len));
        out(device.write(offset, &buf), (Op::Write, offset, len));
        out(device.write_fresh(offset, &buf), (Op::Write, offset, len));
        out(device.discard(offset, len), (Op::Discard, offset, len));

        // the other requests of a batch are executed
        let (mut a, mut c) = ([0; 512], [0; 512]);
        let mut reads = [Read::new(0, &mut a), Read::new(offset, &mut buf), Read::new(end - 512, &mut c)];
        device.read_many(&mut reads);
        let [first, wrong, last] = reads;
        first.result.unwrap();
        last.result.unwrap();
        out(wrong.result, (Op::Read, offset, len));
        assert!(buf.iter().all(|&x| x == 0x5a));
        let mut writes = [Write::new(0, &a), Write::new(offset, &buf), Write::new(end - 512, &c)];
        device.write_many(&mut writes);
        let [first, wrong, last] = writes;
        first.result.unwrap();
        last.result.unwrap();
        out(wrong.result, (Op::Write, offset, len));
    }
    for (offset, len) in [(0, u64::MAX), (1, u64::MAX), (u64::MAX, u64::MAX)] {
        out(device.discard(offset, len), (Op::Discard, offset, len));
    }
}

fn discards(device: &dyn BlockDevice, model: &mut [u8]) {
    for (start, len) in [(0, 4096), (5000, 10_000), (20_001, 1), (model.len() - 5000, 5000)] {
        device.discard(start as u64, len as u64).unwrap();
        // discarded bytes may read as anything until written
        let fresh = vec![0xa5; len];
        device.write(start as u64, &fresh).unwrap();
        model[start..start + len].copy_from_slice(&fresh);
        assert!(content(device) == model, "a discard of {len} bytes at {start} reached too far");
    }
    device.flush().unwrap();
}

/// Concurrent writes of partial and whole sectors in the same page, on a device of at least 256 KiB: none may be lost.
pub fn parts_of_sectors_from_many_threads(device: &dyn BlockDevice) {
    const THREADS: usize = 4;
    const UNITS: usize = 256;
    const UNIT: usize = 1024; // a sector written as a whole, and one written in parts
    let owner = |unit: usize, piece: usize| ((unit + piece) % THREADS) as u8 + 1;
    let start = Barrier::new(THREADS);
    thread::scope(|scope| {
        for me in 1..=THREADS as u8 {
            let start = &start;
            scope.spawn(move || {
                start.wait();
                for unit in (0..12 * UNITS).map(|n| n % UNITS) {
                    if owner(unit, 0) == me {
                        device.write((unit * UNIT) as u64, &[me; 512]).unwrap();
                    }
                    for piece in (0..4).filter(|&piece| owner(unit, piece) == me) {
                        device.write((unit * UNIT + 512 + piece * 128) as u64, &[me; 128]).unwrap();
                    }
                }
            });
        }
    });
    for (at, &byte) in content(device)[..UNITS * UNIT].iter().enumerate() {
        let piece = (at % UNIT).saturating_sub(512) / 128;
        assert_eq!(byte, owner(at / UNIT, piece), "byte {at}");
    }
}
