//! Tests of files: opening, locks, files that shrink, O_DIRECT, and the equivalence of the strategies.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use extant_blockdev::{AlignedBuf, BlockDevice, Error, FileDevice, OpenOptions, Read, Write};
use proptest::prelude::*;
use tempfile::{NamedTempFile, TempDir};
use testkit::Rng;
use testkit::device::{BATCHINGS, DIRECT, WRITE, content, open};

const EXCLUSIVE: OpenOptions = OpenOptions {
    write: false,
    direct: false,
    exclusive: true,
    planned: false,
    mounted: false,
    patience: Duration::ZERO,
};

fn file(bytes: &[u8]) -> NamedTempFile {
    let file = NamedTempFile::new().unwrap();
    fs::write(file.path(), bytes).unwrap();
    file
}

fn refusal(path: &Path, options: OpenOptions) -> (ErrorKind, String) {
    let error = FileDevice::open(path, options).unwrap_err();
    let message = error.to_string();
    let Error::Open { device, source } = error else { panic!("{error:?}") };
    assert_eq!((device.as_str(), &message), (path.to_str().unwrap(), &format!("cannot open {device}: {source}")));
    (source.kind(), source.to_string())
}

#[test]
fn refusals_name_the_reason() {
    let dir = TempDir::new().unwrap();
    let pipe = dir.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap();
    for options in [OpenOptions::default(), WRITE, DIRECT, EXCLUSIVE] {
        assert_eq!(refusal(&dir.path().join("none"), options), (ErrorKind::NotFound, "no such file".into()));
        assert_eq!(refusal(dir.path(), options), (ErrorKind::IsADirectory, "it is a directory".into()));
        for other in [&pipe, Path::new("/dev/null")] {
            assert_eq!(
                refusal(other, options),
                (ErrorKind::Unsupported, "it is neither a regular file nor a block device".into())
            );
        }
    }
}

#[test]
fn an_empty_file_is_a_device_of_no_bytes() {
    let file = file(b"");
    for options in [OpenOptions::default(), WRITE, DIRECT] {
        let Some(device) = open(file.path(), options) else { return };
        assert_eq!(device.geometry().len, 0);
        device.read(0, &mut []).unwrap();
        assert!(matches!(device.read(0, &mut [0]), Err(Error::OutOfRange { .. })));
    }
}

#[test]
fn a_volume_in_use_is_refused() {
    let file = file(&[0; 512]);
    let in_use = (ErrorKind::ResourceBusy, "locked by another process".to_owned());

    let writer = open(file.path(), WRITE).unwrap();
    assert_eq!(refusal(file.path(), WRITE), in_use);
    assert_eq!(refusal(file.path(), EXCLUSIVE), in_use);
    open(file.path(), OpenOptions::default()).unwrap();
    drop(writer);

    let readers = [open(file.path(), EXCLUSIVE), open(file.path(), EXCLUSIVE)];
    assert_eq!(refusal(file.path(), WRITE), in_use);
    drop(readers);
    open(file.path(), WRITE).unwrap();
}

#[test]
fn who_is_patient_gets_a_volume_when_it_is_released() {
    let file = file(&[0; 512]);
    let writer = open(file.path(), WRITE).unwrap();
    std::thread::scope(|scope| {
        // longer than any test runs: the wait ends because the other one releases it
        let patience = Duration::from_secs(3600);
        let path = file.path();
        let waiting = scope.spawn(move || FileDevice::open(path, OpenOptions { patience, ..WRITE }));
        drop(writer);
        waiting.join().unwrap().unwrap();
    });
}

#[test]
fn a_file_that_shrinks_returns_an_error_and_no_bytes() {
    for options in [WRITE, DIRECT] {
        for batching in BATCHINGS {
            let file = file(&[1; 65_536]);
            let Some(device) = open(file.path(), options) else { return };
            let device = device.with_batching(batching);
            file.as_file().set_len(10_000).unwrap();
            assert_eq!(device.geometry().len, 65_536);
            let short = |result: Result<(), Error>| {
                let Err(Error::Io { source, .. }) = result else { panic!("{options:?} {batching:?}: {result:?}") };
                assert_eq!(source.kind(), ErrorKind::UnexpectedEof);
            };
            let mut buf = AlignedBuf::zeroed(4096, 4096);
            short(device.read(8192, &mut buf)); // the first part is still there
            short(device.read(9999, &mut buf[..2]));
            short(device.read(40_960, &mut buf));
            device.read(9999, &mut buf[..1]).unwrap();

            let mut buffers = [const { [0; 100] }; 5];
            let offsets = [0, 9900, 9901, 12_288, 5000];
            let mut reads: Vec<_> = offsets.iter().zip(&mut buffers).map(|(&o, b)| Read::new(o, b)).collect();
            device.read_many(&mut reads);
            let [first, last_whole, cut, beyond, inside] = reads.try_into().unwrap();
            for whole in [first, last_whole, inside] {
                whole.result.unwrap();
                assert_eq!(*whole.buf, [1; 100]);
            }
            short(cut.result);
            short(beyond.result);
        }
    }
}

#[test]
fn a_batch_that_needs_more_buffers_than_allowed_at_once() {
    let bytes = Rng::new(5).bytes(2 << 20);
    let file = file(&bytes);
    for batching in BATCHINGS {
        let Some(device) = open(file.path(), DIRECT) else { return };
        let device = device.with_batching(batching);
        let mut buffers = vec![vec![0; 1 << 20]; 40];
        let mut reads: Vec<_> = buffers.iter_mut().enumerate().map(|(n, b)| Read::new(n as u64 * 1001, b)).collect();
        device.read_many(&mut reads);
        assert!(reads.iter().all(|r| r.result.is_ok()));
        for (n, buf) in buffers.iter().enumerate() {
            assert!(buf[..] == bytes[n * 1001..][..1 << 20]);
        }
    }
}

#[test]
fn parts_of_sectors_from_many_threads() {
    for options in [WRITE, DIRECT] {
        let file = file(&[0; 256 << 10]);
        let Some(device) = open(file.path(), options) else { return };
        testkit::device::parts_of_sectors_from_many_threads(&device);
    }
}

#[test]
fn the_cache_and_direct_io_see_one_another() {
    let file = file(&[0; 8192]);
    let Some(direct) = open(file.path(), DIRECT) else { return };
    let cached = open(file.path(), OpenOptions::default()).unwrap();
    assert_eq!(content(&cached), [0; 8192]);
    direct.write(0, &AlignedBuf::zeroed(4096, 4096)).unwrap();
    direct.write(4095, &[7; 2]).unwrap(); // through the cache
    direct.write(4096, &[9; 4096]).unwrap();
    for device in [&cached, &direct] {
        let seen = content(device);
        assert_eq!((&seen[4094..4097], seen[8191]), (&[0, 7, 9][..], 9));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// One after the other, threads and io_uring, cached and direct, transfer the same bytes and fail alike.
    #[test]
    fn strategies_agree(
        reads in proptest::collection::vec((0_u64..70_000, 0_usize..9_000), 0..150),
        writes in proptest::collection::vec((0_u64..64, 0_usize..1025), 0..100),
        aligned in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let align = |n: u64| if aligned { n / 512 * 512 } else { n };
        let mut numbers = Rng::new(seed);
        let mut model = numbers.bytes(65_536);
        let file = file(&model);
        // at most one write to each location, so that their order does not matter
        let mut writes: Vec<_> = writes
            .into_iter()
            .map(|(slot, len)| (slot * 1024, numbers.bytes(align(len as u64) as usize)))
            .collect();
        writes.sort_by_key(|w| w.0);
        writes.dedup_by_key(|w| w.0);
        for options in [WRITE, DIRECT] {
            for batching in BATCHINGS {
                let Some(device) = open(file.path(), options) else { continue };
                let device = device.with_batching(batching);
                let mut memory: Vec<_> =
                    reads.iter().map(|&(_, len)| AlignedBuf::zeroed(align(len as u64) as usize, 512)).collect();
                let mut batch: Vec<_> =
                    reads.iter().zip(&mut memory).map(|(&(offset, _), buf)| Read::new(align(offset), buf)).collect();
                device.read_many(&mut batch);
                for r in batch {
                    let range = r.offset as usize..r.offset as usize + r.buf.len();
                    match model.get(range) {
                        Some(bytes) => prop_assert!(r.result.is_ok() && *bytes == *r.buf, "{options:?} {batching:?}"),
                        None => prop_assert!(matches!(r.result, Err(Error::OutOfRange { .. })), "beyond the end"),
                    }
                }
                // each strategy writes other bytes
                for (offset, data) in &mut writes {
                    data.iter_mut().for_each(|b| *b = b.wrapping_add(1));
                    model[*offset as usize..*offset as usize + data.len()].copy_from_slice(data);
                }
                let mut batch: Vec<_> = writes.iter().map(|(offset, data)| Write::new(*offset, data)).collect();
                device.write_many(&mut batch);
                prop_assert!(batch.iter().all(|w| w.result.is_ok()));
                prop_assert!(content(&device) == model, "{options:?} {batching:?}: a batch of writes");
            }
        }
    }
}
