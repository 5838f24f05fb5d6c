//! The order in which a repair writes: what another program finds on the volume, or the next run, after an interruption.

use crate::cuts::{recorded, redo};
use crate::repaired::{add_three_transactions, fix, home, journal, put};
use blockdev::MemoryDevice;
use extant_check::report::exit;
use extant_check::{Repair, unfinished};
use format::feature::Incompat;
use format::jbd2::DiskSuperblock as JournalSuperblock;
use format::superblock::{DiskSuperblock, State};
use simdev::Log;
use testkit::oracle::{debugfs, e2fsck};
use testkit::{Image, need};
use zerocopy::FromBytes;

/// Calls `see` with the volume after each write of the log, and with each write torn after its first sector.
fn after_each_write(bytes: &[u8], log: &Log, mut see: impl FnMut(usize, &[u8])) {
    let mut state = bytes.to_vec();
    for n in 0..log.entries().len() {
        let mut torn = state.clone();
        redo(log, n, &mut torn, 1);
        see(n, &torn);
        redo(log, n, &mut state, 1 << 40);
        see(n, &state);
    }
}

fn superblock(bytes: &[u8]) -> DiskSuperblock {
    DiskSuperblock::read_from_bytes(&bytes[1024..2048]).expect("a superblock")
}

/// The journal is replayed and emptied before the first write of the repair itself: another program that replays it
/// would otherwise revert a part of the repair, and remove the pointer to the log. It is emptied only when all its
/// blocks are in their home locations.
#[test]
fn nothing_else_is_written_while_there_is_a_journal_to_replay() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let args = ["-t", "ext4", "-b", "1024", "-J", "size=1"];
    let image = Image::mke2fs(&args, 16 << 20).debugfs(&["mkdir a", "mkdir a/b", "sif a links_count 9"]).build();
    add_three_transactions(&image);
    let (bytes, (at, _)) = (image.bytes(), journal(&image));
    let (repaired, log) = recorded(&bytes).expect("a repair");
    let (mut replaying, mut pointed) = (0, 0);
    after_each_write(&bytes, &log, |n, state| {
        let start = JournalSuperblock::read_from_prefix(&state[at..]).expect("a journal").0.s_start.get();
        let dirty = superblock(state).s_feature_incompat.get() & Incompat::NEEDS_RECOVERY.bits() != 0;
        if start == 0 || !dirty {
            assert_eq!(home(state), [0xA1, 0xA2, 0xA3], "write {n}: emptied before all blocks were home");
        }
        replaying += u32::from(start != 0 && dirty);
        if unfinished(&MemoryDevice::from_vec(state.to_vec())) {
            assert!(start == 0 && !dirty, "write {n}: a pointer to a log beside a journal to replay");
            pointed += 1;
        }
        let mut again = state.to_vec();
        let report = fix(&mut again, Repair::All).unwrap_or_else(|e| panic!("write {n}: {e}"));
        assert_eq!((report.exit & !exit::REPAIRED, home(&again)), (0, [0xA1, 0xA2, 0xA3]), "write {n}");
    });
    assert!(replaying > 3 && pointed > 3, "{replaying} states with a journal, {pointed} with a log");
    image.set_bytes(&repaired);
    assert!(e2fsck(image.path()).clean);
}

/// An error that the kernel recorded in the journal, or in the superblock on the device alone, stays recorded on the way:
/// otherwise a program that comes after an interruption takes the volume for clean.
#[test]
fn a_recorded_error_survives_the_replay() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let args = ["-t", "ext4", "-b", "1024", "-J", "size=1"];
    let image = Image::mke2fs(&args, 16 << 20).debugfs(&["mkdir a", "mkdir a/b", "sif a links_count 9"]).build();
    add_three_transactions(&image);
    let (at, disk) = journal(&image);
    let mut bytes = image.bytes();
    put(&mut bytes, at, JournalSuperblock { s_errno: 5.into(), ..disk });
    let (repaired, log) = recorded(&bytes).expect("a repair");
    let mut emptied = 0;
    after_each_write(&bytes, &log, |n, state| {
        let errno = JournalSuperblock::read_from_prefix(&state[at..]).expect("a journal").0.s_errno.get();
        if errno == 0 && state[1024..2048] != repaired[1024..2048] {
            let marked = State::from_bits_retain(superblock(state).s_state.get()).contains(State::ERROR);
            // the last two writes contain the final state
            let left = superblock(state).s_state.get() == superblock(&repaired).s_state.get();
            assert!(marked || left && n + 4 >= log.entries().len(), "write {n}: the error is recorded nowhere");
            emptied += 1;
        }
    });
    assert!(emptied > 2, "{emptied} states with an empty journal");
}

/// A full volume with two files that share a block, and a block that is marked in use and belongs to no file: the only
/// one that the clone can have. Returns that block, and the content of the shared one.
fn full_volume() -> (Image, usize, Vec<u8>) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let image = Image::mke2fs(&["-t", "ext2", "-b", "1024", "-m", "0"], 2 << 20).build();
    for (name, fill, blocks) in [("a", b'A', 1), ("b", b'B', 2), ("secret", b'X', 1)] {
        std::fs::write(path(name), vec![fill; blocks * 1024]).expect("a file");
        image.debugfs(&[format!("write {} {name}", path(name)).as_str()]);
    }
    let free = |image: &Image| superblock(&image.bytes()).s_free_blocks_count_lo.get() as usize;
    let most = free(&image);
    std::fs::write(path("fill"), vec![b'S'; (most - most / 256 - 4) * 1024]).expect("a file");
    image.debugfs(&[format!("write {} fill", path("fill")).as_str()]);
    for n in 0..free(&image) {
        std::fs::write(path("one"), vec![b'S'; 1024]).expect("a file");
        image.debugfs(&[format!("write {} one{n}", path("one")).as_str()]);
    }
    assert_eq!(free(&image), 0);
    let block = |name: &str, n: u32| {
        let said = debugfs(image.path(), &format!("bmap {name} {n}"));
        said.lines().find_map(|line| line.trim().parse::<usize>().ok()).unwrap_or_else(|| panic!("{said}"))
    };
    let (secret, shared) = (block("secret", 0), block("b", 1));
    image.debugfs(&["rm secret", &format!("setb {secret}")]);
    let shares = [format!("sif a block[1] {shared}"), "sif a size 2048".to_owned(), "sif a blocks 4".to_owned()];
    image.debugfs(&shares.each_ref().map(String::as_str));
    (image, secret, vec![b'B'; 1024])
}

/// Without space for a log the content of a clone is written before the inode that refers to it: the file would
/// otherwise have the content of a deleted one, and no later check could find that.
#[test]
fn clones_are_written_before_their_inodes_where_there_is_no_log() {
    if !need(&["mke2fs", "debugfs", "e2fsck"]) {
        return;
    }
    let (image, block, content) = full_volume();
    let bytes = image.bytes();
    let (repaired, log) = recorded(&bytes).expect("a repair");
    let clone = block * 1024..(block + 1) * 1024;
    assert!(repaired[clone.clone()] == content, "the clone is elsewhere");
    let mut direct = 0;
    after_each_write(&bytes, &log, |n, state| {
        assert!(!unfinished(&MemoryDevice::from_vec(state.to_vec())), "there was space for a log");
        let elsewhere = |at: usize| !clone.contains(&at) && !(1024..2048).contains(&at);
        if (0..state.len()).any(|at| elsewhere(at) && state[at] != bytes[at]) {
            assert!(state[clone.clone()] == content, "write {n}: before the clone");
            direct += 1;
        }
    });
    assert!(direct > 1, "{direct} states with direct writes");
    image.set_bytes(&repaired);
    assert!(e2fsck(image.path()).clean);
}
