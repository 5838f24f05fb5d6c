//! Files that are rewritten: truncated to nothing, then written anew, without fsync(2).
//!
//! Their new content is delayed, the truncation is not: a sync for another file would make an empty file durable. So
//! their content is written before a generation is closed; ext4 writes it when the file is closed (`auto_da_alloc`). No
//! request informs the server of that, so a file stays recorded until it is freed: however long its rewriting takes,
//! every part of it is protected. If many are recorded, those that were truncated and last written long ago are dropped.

use crate::InodeNo;
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// The number of recorded files above which the older half is dropped, after their content was written.
const MOST: usize = 1024;

/// A file that was truncated to nothing.
struct File {
    /// The number of the last event: the truncation, or content after it.
    at: u64,
    /// Whether it may have delayed content.
    delayed: bool,
}

#[derive(Default)]
struct Record {
    files: BTreeMap<InodeNo, File>,
    /// Events so far.
    events: u64,
    /// The number of files above which it is full, if that is more than [`MOST`].
    most: usize,
    /// The newest generation with content of such a file, 0 if there is none.
    generation: u64,
}

impl Record {
    fn event(&mut self) -> u64 {
        self.events += 1;
        self.events
    }
}

/// Files that were truncated to nothing, probably to be rewritten.
#[derive(Default)]
pub(crate) struct Rewritten(Mutex<Record>);

impl Rewritten {
    /// Records that a file with content was truncated to nothing.
    pub(crate) fn record(&self, number: InodeNo) {
        let mut record = self.0.lock();
        let at = record.event();
        record.files.insert(number, File { at, delayed: false });
    }

    /// Records that content of a file was delayed, if it was truncated before.
    pub(crate) fn record_content(&self, number: InodeNo) {
        let mut record = self.0.lock();
        let at = record.event();
        if let Some(file) = record.files.get_mut(&number) {
            *file = File { at, delayed: true };
        }
    }

    /// Removes a file that was freed.
    pub(crate) fn forget(&self, number: InodeNo) {
        self.0.lock().files.remove(&number);
    }

    /// The files that may have delayed content.
    pub(crate) fn delayed(&self) -> Vec<InodeNo> {
        let record = self.0.lock();
        record.files.iter().filter(|(_, file)| file.delayed).map(|(number, _)| *number).collect()
    }

    /// Records that all delayed content of a file, whose node is locked, was written in `generation`. Not before that:
    /// another thread that closes a generation must wait for it.
    pub(crate) fn record_written(&self, number: InodeNo, generation: u64) {
        let mut record = self.0.lock();
        if let Some(file) = record.files.get_mut(&number) {
            file.delayed = false;
            record.generation = record.generation.max(generation);
        }
    }

    /// The newest generation with content of a rewritten file: an fsync(2) of any file waits for it.
    pub(crate) fn generation(&self) -> u64 {
        self.0.lock().generation
    }

    /// Whether [`Rewritten::drop_oldest`] should be called, after all content was written.
    pub(crate) fn is_full(&self) -> bool {
        let record = self.0.lock();
        record.files.len() > record.most.max(MOST)
    }

    /// Drops the older half of the files, except those whose content could not be written.
    pub(crate) fn drop_oldest(&self) {
        let mut record = self.0.lock();
        let mut events: Vec<_> = record.files.values().map(|file| file.at).collect();
        events.sort_unstable();
        let newest = events.get(events.len() / 2).copied().unwrap_or_default();
        record.files.retain(|_, file| file.delayed || file.at >= newest);
        record.most = 2 * record.files.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(rewritten: &Rewritten) -> Vec<u32> {
        rewritten.0.lock().files.keys().map(|number| number.get()).collect()
    }

    #[test]
    fn the_older_half_is_dropped() {
        let rewritten = Rewritten::default();
        for number in 1..=MOST as u32 {
            rewritten.record(InodeNo(number));
        }
        assert!(!rewritten.is_full());
        rewritten.record_content(InodeNo(3));
        rewritten.record_content(InodeNo(2000));
        assert_eq!(rewritten.delayed(), [InodeNo(3)]);
        rewritten.record_written(InodeNo(3), 5);
        rewritten.record_written(InodeNo(2000), 6);
        assert_eq!((rewritten.delayed().len(), rewritten.generation()), (0, 5));
        rewritten.record_content(InodeNo(5));
        rewritten.record(InodeNo(3000));
        assert!(rewritten.is_full());
        rewritten.drop_oldest();
        let left = numbers(&rewritten);
        assert_eq!(left.len(), MOST / 2 + 1);
        // those with the newest events
        assert!(left.starts_with(&[3, 5]) && left.ends_with(&[MOST as u32, 3000]), "{left:?}");
        assert!(!rewritten.is_full());
        rewritten.forget(InodeNo(3000));
        assert_eq!(numbers(&rewritten).len(), MOST / 2);
    }

    /// Content that cannot be written is limited by the memory for delayed data.
    #[test]
    fn unwritten_content_is_not_dropped() {
        let rewritten = Rewritten::default();
        for number in (1..=2 * MOST as u32).map(InodeNo) {
            rewritten.record(number);
            rewritten.record_content(number);
        }
        assert!(rewritten.is_full());
        rewritten.drop_oldest();
        assert_eq!(rewritten.delayed().len(), 2 * MOST);
        assert!(!rewritten.is_full(), "the next attempt follows after as many");
    }
}
