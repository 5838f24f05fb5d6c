//! Journals replayed in memory, compared with e2fsprogs' replay of the same journal.

mod applied;
#[path = "../common/mod.rs"]
mod common;
mod kernel;
mod linked;
mod made;
mod mutated;
mod written;

use blockdev::{BlockDevice, MemoryDevice};
use common::{block_size, content, journal_runs};
use extant_store::recovery::{BlockExtent, JournalLocation, Recovered, Recovery, Replayed, recover};
use format::FsBlock;
use std::collections::BTreeMap;
use std::sync::Arc;
use testkit::{Image, tools};

/// Recovers in memory: returns the recovered journal, and the volume read through it.
fn open(bytes: Vec<u8>, runs: &[BlockExtent]) -> extant_store::Result<(Recovered, Replayed)> {
    let size = block_size(&bytes);
    let blocks = bytes.len() as u64 / u64::from(size);
    let volume: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_vec(bytes));
    let journal = JournalLocation::internal(Arc::clone(&volume), size, runs.iter().copied());
    let recovered = recover(&journal, blocks)?;
    let replayed = Replayed::new(volume, &recovered);
    Ok((recovered, replayed))
}

/// As [`open`], with all bytes of the volume.
fn replay(bytes: &[u8], runs: &[BlockExtent]) -> extant_store::Result<(Recovered, Vec<u8>)> {
    let (recovered, replayed) = open(bytes.to_vec(), runs)?;
    let mut whole = vec![0; bytes.len()];
    replayed.read(0, &mut whole)?;
    Ok((recovered, whole))
}

/// The same volume after debugfs has replayed the journal into it.
fn replayed_by_debugfs(bytes: &[u8]) -> Vec<u8> {
    let image = Image::from_bytes(bytes);
    image.debugfs(&["journal_run"]);
    image.bytes()
}

/// Compares two replayed volumes; panics if they differ anywhere but in the superblock, which a replay on the device
/// changes afterwards, and in the journal's own. Returns how many blocks the replay changed.
fn assert_same(before: &[u8], ours: &[u8], theirs: &[u8], runs: &[BlockExtent]) -> usize {
    let size = block_size(before) as usize;
    let journal = runs[0].first.get() as usize * size;
    let masked = |bytes: &[u8]| {
        let mut bytes = bytes.to_vec();
        bytes[1024..2048].fill(0);
        bytes[journal..journal + size].fill(0);
        bytes
    };
    let (before, ours, theirs) = (masked(before), masked(ours), masked(theirs));
    let differ = |a: &[u8], b: &[u8]| -> Vec<usize> {
        let pairs = a.chunks(size).zip(b.chunks(size)).enumerate();
        pairs.filter(|(_, (a, b))| a != b).map(|(number, _)| number).collect()
    };
    assert_eq!(differ(&ours, &theirs), [], "blocks that differ from debugfs's replay");
    differ(&before, &ours).len()
}

/// A volume of `mib` MiB with a journal, whose last quarter is free.
fn volume(args: &[&str], mib: u64) -> (Image, Vec<BlockExtent>) {
    let image = Image::mke2fs(args, mib << 20).build();
    let runs = journal_runs(&image);
    (image, runs)
}

/// The expected content of the free blocks of a volume, recorded while the log is written.
type Model = BTreeMap<u64, Vec<u8>>;

fn assert_model(model: &Model, ours: &[u8], size: usize) {
    for (&home, data) in model {
        let at = home as usize * size;
        assert!(ours[at..at + size] == data[..], "block {home} is not what the last transaction wrote");
    }
}
