//! Page writes that fail: data from the kernel's page cache, whose program has had its answer.
//!
//! The kernel drops such data and reports that only to msync(2), fsync(2) and, with `writeback_cache`, close(2). The
//! files are recorded here, and reported when the volume is unmounted or becomes read-only, also where the program has
//! written the data again: the kernel does not say what it dropped. Not recorded is data
//!
//! - of a transaction, which is then rolled back, and reports it;
//! - of a file that became immutable or append-only, which refuses it by design.
//!
//! Not reported is data of a file that has no name at the end: no program can read it later.

use fs::{Error, InodeNo, Volume};
use fuse_wire::{Caller, SYNC, SYNC_ONCE};
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::HashMap;
use std::io;

/// The maximum number of files recorded.
const MOST: usize = 1000;
/// The maximum number of files named in a report.
const NAMED: usize = 3;
/// The maximum length of a path in a report, in bytes. A file with a longer one is named by its number.
const LONGEST_PATH: usize = 1024;
/// The maximum number of files searched for the paths of a report.
const SEARCHED: usize = 100_000;

/// A file that lost data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileLoss {
    inode: InodeNo,
    /// Distinguishes the file from later ones with its number; `None` where the inode could not be read.
    generation: Option<u32>,
    why: Errno,
    reported: bool,
}

#[derive(Default)]
struct Lost {
    files: Vec<FileLoss>,
    /// Whether there were more files than are recorded, which were not reported.
    more: bool,
    /// Whether a rollback is scheduled, which replaces the files.
    replaced: bool,
}

/// The files that lost data in page writes.
#[derive(Default)]
pub(crate) struct LostPages(Mutex<Lost>);

impl LostPages {
    fn add(&self, new: FileLoss) {
        let mut guard = self.0.lock();
        let lost = &mut *guard;
        if let Some(loss) = lost.files.iter_mut().find(|loss| loss.inode == new.inode) {
            *loss = new;
            return;
        }
        if lost.files.len() < MOST {
            lost.files.push(new);
            return;
        }
        lost.more = true;
        // one of those not reported yet remains
        if let Some(last) = lost.files.last_mut() {
            *last = new;
        }
    }

    /// The files, without those that were reported unless `all`; and whether there were more.
    fn list(&self, all: bool) -> (Vec<FileLoss>, bool) {
        let lost = self.0.lock();
        (lost.files.iter().filter(|loss| all || !loss.reported).copied().collect(), lost.more)
    }

    fn set_reported(&self) {
        let mut lost = self.0.lock();
        lost.files.iter_mut().for_each(|loss| loss.reported = true);
        lost.more = false;
    }
}

/// The description of an error, without its number.
fn description(why: Errno) -> String {
    let text = io::Error::from(why).to_string();
    text.split_once(" (os error").map_or(text.as_str(), |(before, _)| before).to_owned()
}

/// The end of a report: how many files it does not name.
fn others(count: usize, more: bool) -> String {
    let at_least = if more { "at least " } else { "" };
    match count {
        0 if more => " (and others)".to_owned(),
        0 => String::new(),
        1 => format!(" (and {at_least}1 other file)"),
        n => format!(" (and {at_least}{n} other files)"),
    }
}

impl LostPages {
    /// Records that a page write to a file failed. Returns the problem to report, where data is missing of a file that
    /// programs can read.
    pub(super) fn record(&self, volume: &Volume, inode: InodeNo, why: Errno) -> Option<String> {
        // the last two: of a file, or by a process, that a rollback affected
        if matches!(why, Errno::PERM | Errno::STALE | Errno::CANCELED) || volume.is_member_of_current() {
            return None;
        }
        let attributes = volume.attributes_of(inode);
        if matches!(attributes, Err(Error::Stale(_) | Error::NotFound)) {
            return None;
        }
        let generation = attributes.ok().map(|a| a.generation);
        let loss = FileLoss { inode, generation, why, reported: false };
        // one without a name may still be linked
        self.add(loss);
        if !has_name(volume, &loss) {
            return None;
        }
        let why = description(why);
        Some(format!("data in the page cache could not be written back and is lost: {why}"))
    }

    /// The files that lost data in page writes, as a phrase for a report; without those that were reported, unless
    /// `all`. `None` where there are none.
    pub(crate) fn report(&self, volume: &Volume, all: bool) -> Option<String> {
        let (mut files, more) = self.list(all);
        files.retain(|loss| has_name(volume, loss));
        let count = files.len();
        files.truncate(NAMED);
        if files.is_empty() {
            return more.then(|| "more files than are recorded".to_owned());
        }
        let paths = paths_of(volume, &files);
        let named = files.iter().map(|loss| {
            let name = match paths.get(&loss.inode) {
                Some(path) if path.len() <= LONGEST_PATH => format!("/{}", String::from_utf8_lossy(path)),
                _ => format!("inode {}", loss.inode.get()),
            };
            format!("{name}: {}", description(loss.why))
        });
        let named: Vec<String> = named.collect();
        Some(named.join(", ") + &others(count.saturating_sub(named.len()), more))
    }

    /// The value of [`SYNC`] or [`SYNC_ONCE`] for a caller with space for `size` bytes; 0 asks for its length. It
    /// contains paths, so it is empty for users who may not unmount the volume.
    pub(super) fn value(&self, volume: &Volume, (name, size): (&[u8], u32), caller: &Caller) -> Vec<u8> {
        let may_unmount = caller.uid == 0 || caller.uid == rustix::process::getuid().as_raw();
        let replaced = self.0.lock().replaced;
        let lost = if may_unmount && !replaced { self.report(volume, false) } else { None };
        let value = lost.unwrap_or_default().into_bytes();
        if name == SYNC_ONCE.as_bytes() && may_unmount && size as usize >= value.len().max(1) {
            self.set_reported();
        }
        value
    }

    /// Sets whether the files will be replaced by those of a snapshot at unmount, so that nothing is reported then.
    pub(crate) fn set_replaced(&self, replaced: bool) {
        self.0.lock().replaced = replaced;
    }

    /// Removes all records: the files were replaced by those of a snapshot.
    pub(crate) fn clear(&self) {
        *self.0.lock() = Lost::default();
    }
}

/// Whether reading this attribute of the root makes all changes durable.
pub(super) fn is_sync(name: &[u8]) -> bool {
    name == SYNC.as_bytes() || name == SYNC_ONCE.as_bytes()
}

/// Whether the file that lost data still exists and has a name.
fn has_name(volume: &Volume, loss: &FileLoss) -> bool {
    match volume.attributes_of(loss.inode) {
        Ok(a) => a.links != 0 && loss.generation.is_none_or(|generation| generation == a.generation),
        Err(e) => !matches!(e, Error::Stale(_) | Error::NotFound),
    }
}

/// Searches the tree for a path of each of these files.
fn paths_of(volume: &Volume, files: &[FileLoss]) -> HashMap<InodeNo, Vec<u8>> {
    let mut paths = HashMap::new();
    for (path, inode) in volume.walk(InodeNo::ROOT).take(SEARCHED) {
        let Ok(inode) = inode else { continue };
        if files.iter().any(|loss| loss.inode == inode.number) {
            paths.entry(inode.number).or_insert(path);
            if paths.len() == files.len() {
                break;
            }
        }
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loss(number: u32) -> FileLoss {
        FileLoss { inode: InodeNo(number), generation: Some(0), why: Errno::NOSPC, reported: false }
    }

    #[test]
    fn each_file_is_reported_again_only_after_another_loss() {
        let lost = LostPages::default();
        for number in [12, 13, 12] {
            lost.add(loss(number));
        }
        assert_eq!(lost.list(false), (vec![loss(12), loss(13)], false));
        lost.set_reported();
        assert_eq!(lost.list(false), (Vec::new(), false));
        assert_eq!(lost.list(true).0.len(), 2);
        lost.add(loss(13));
        assert_eq!(lost.list(false), (vec![loss(13)], false));
    }

    #[test]
    fn the_record_is_limited() {
        let lost = LostPages::default();
        (0..2000).for_each(|number| lost.add(loss(number)));
        assert!(lost.list(false).0.len() == MOST && lost.list(false).1);
        lost.set_reported();
        assert_eq!(lost.list(false), (Vec::new(), false));
        lost.add(loss(5000));
        assert_eq!(lost.list(false), (vec![loss(5000)], true));
    }

    #[test]
    fn descriptions_have_no_numbers() {
        assert_eq!(description(Errno::NOSPC), "No space left on device");
        assert_eq!([0, 1, 3].map(|n| others(n, false)), ["", " (and 1 other file)", " (and 3 other files)"]);
        assert_eq!(others(997, true), " (and at least 997 other files)");
        assert_eq!(others(0, true), " (and others)");
    }
}
