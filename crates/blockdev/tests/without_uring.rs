//! Behaviour without io_uring: here because all file descriptors are in use, as far as a program can arrange that. A
//! program of its own, because the limit is per process.

use std::thread;

use extant_blockdev::{Batching, BlockDevice, Read};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use testkit::Rng;
use testkit::device::{WRITE, conforms, content, open};

#[test]
fn threads_take_over() {
    let bytes = Rng::new(11).bytes(512 << 10);
    let [early, late] = [(); 2].map(|()| {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &bytes).unwrap();
        (open(file.path(), WRITE).unwrap(), file)
    });
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..limit }).unwrap();

    // a device that is opened now works without it
    let device = late.0.with_batching(Batching::Queue);
    assert_eq!(device.batching(), Batching::Threads);
    conforms(&device);

    // a device that has a single ring, and many threads that need one
    let (device, file) = (&early.0, early.1.as_file());
    thread::scope(|scope| {
        for t in 0..4 {
            let bytes = &bytes;
            scope.spawn(move || {
                for round in 0..20 {
                    // not cached, so that reads have to wait
                    rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
                    let mut buffers = vec![vec![0; 4096]; 32];
                    let start = |n: usize| (n * 13 + t * 7 + round) % 100 * 4096;
                    let mut reads: Vec<_> =
                        buffers.iter_mut().enumerate().map(|(n, b)| Read::new(start(n) as u64, b)).collect();
                    device.read_many(&mut reads);
                    assert!(reads.iter().all(|r| r.result.is_ok()), "{reads:?}");
                    for (n, buf) in buffers.iter().enumerate() {
                        assert!(buf[..] == bytes[start(n)..][..4096]);
                    }
                }
            });
        }
    });
    assert!(content(device) == bytes);
    setrlimit(Resource::Nofile, limit).unwrap();
}
