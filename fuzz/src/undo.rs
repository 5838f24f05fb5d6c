//! Undo files. An input is one byte, what was done to the device and whether the file's checksum is corrected, and then
//! the bytes of an undo file.

use blockdev::{BlockDevice, MemoryDevice, undo as file};
use std::fs;
use tempfile::tempdir;
use testkit::Rng;
use xxhash_rust::xxh3::xxh3_64;

/// Bytes of the device.
const LEN: usize = 16 << 10;
/// The writes to it: offsets and lengths in sectors.
const CHANGES: [(u64, usize); 3] = [(0, 1), (3, 4), (5, 2)];

fn before() -> Vec<u8> {
    Rng::new(3).bytes(LEN)
}

fn changes() -> impl Iterator<Item = file::Planned> {
    CHANGES.iter().map(|(at, sectors)| file::Planned { offset: at * 512, data: vec![*at as u8; sectors * 512] })
}

/// Undo files of one change to the device, whole, cut, and with a byte changed.
pub(crate) fn files() -> Vec<Vec<u8>> {
    let folder = tempdir().expect("a temporary folder");
    let path = folder.path().join("undo");
    let device = MemoryDevice::from_vec(before());
    file::record(&path, &device, changes().map(Ok)).expect("an undo file");
    let whole = fs::read(&path).expect("an undo file");
    let mut rng = Rng::new(4);
    let mut seeds = vec![[&[3], whole.as_slice()].concat()];
    for done in 0..4u8 {
        let mut seed = [&[done | 4], whole.as_slice()].concat();
        let at = rng.index(seed.len());
        seed[at] ^= 1 << rng.below(8);
        seeds.push(seed);
        seeds.push([&[done], &whole[..rng.index(whole.len())]].concat());
    }
    seeds
}

/// Any bytes as an undo file, for a device to which the first of three changes were made. Guarantee: a file that is
/// refused changes nothing, and one that was not forged restores the content from before.
pub fn undo(data: &[u8]) {
    let Some((flags, bytes)) = data.split_first() else { return };
    let (done, forged) = (flags & 3, flags & 4 != 0);
    let mut bytes = bytes.to_vec();
    if let Some((covered, sum)) = bytes.split_last_chunk_mut::<8>().filter(|_| forged) {
        *sum = xxh3_64(covered).to_le_bytes();
    }
    let folder = tempdir().expect("a temporary folder");
    let path = folder.path().join("undo");
    fs::write(&path, &bytes).expect("a temporary file");
    let device = MemoryDevice::from_vec(before());
    for change in changes().take(usize::from(done)) {
        device.write(change.offset, &change.data).expect("memory");
    }
    let contents = |device: &MemoryDevice| {
        let mut bytes = vec![0; LEN];
        device.read(0, &mut bytes).expect("memory");
        bytes
    };
    let changed = contents(&device);
    match file::restore(&path, &device) {
        Ok(_) => assert!(forged || contents(&device) == before(), "not as it was"),
        Err(_) => assert!(contents(&device) == changed, "refused, and changed all the same"),
    }
}
