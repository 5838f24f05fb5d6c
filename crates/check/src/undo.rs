//! Undo of a repair: while it restores blocks, the superblock of the volume is marked with errors, so that no other
//! program treats a partly restored volume as clean. The superblock is restored last.
//!
//! The undo file states the marked superblock as one more content of its sectors. Files of earlier versions do not: the
//! mark is then identified by its removal, as it changes nothing but the state and the checksum.

use crate::redo::marked_superblock;
use blockdev::undo::{Mark, restore_marked};
use blockdev::{BlockDevice, Result};
use format::superblock::{DiskSuperblock, MAGIC, OFFSET, State};
use std::ops::Range;
use std::path::Path;
use zerocopy::IntoBytes;

/// Restores everything that an undo file of the volume on `device` contains; returns the number of bytes. Can be
/// repeated after an interruption.
///
/// # Errors
/// Those of [`blockdev::undo::restore`].
pub fn undo(path: &Path, device: &dyn BlockDevice) -> Result<u64> {
    restore_marked(path, device, &ErrorMark)
}

/// The state of a volume with errors in the superblock.
struct ErrorMark;

impl Mark for ErrorMark {
    fn place(&self) -> Range<u64> {
        OFFSET..OFFSET + DiskSuperblock::SIZE as u64
    }

    fn marked(&self, content: &[u8]) -> Option<Vec<u8>> {
        marked_superblock(content)
    }

    fn unmarked(&self, content: &[u8]) -> Vec<Vec<u8>> {
        let first = DiskSuperblock::from_slice(content);
        let states = first.into_iter().chain(first.and_then(without_mark));
        // the checksum was set with the mark only where it was right
        let with_checksum = |disk: DiskSuperblock| {
            let mut summed = disk;
            summed.s_checksum = disk.checksum().into();
            [disk, summed]
        };
        states.flat_map(with_checksum).map(|disk| disk.as_bytes().to_vec()).collect()
    }
}

/// A superblock with the state that it had before the mark, but its current checksum.
fn without_mark(mut disk: DiskSuperblock) -> Option<DiskSuperblock> {
    let state = State::from_bits_retain(disk.s_state.get());
    if disk.s_magic.get() != MAGIC || state.contains(State::VALID) || !state.contains(State::ERROR) {
        return None;
    }
    disk.s_state = ((state - State::ERROR) | State::VALID).bits().into();
    Some(disk)
}
