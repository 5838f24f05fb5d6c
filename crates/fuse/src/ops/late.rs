//! Late writes that fail: data from the kernel's page cache, whose program has had its answer.
//!
//! The kernel drops such data and reports that only to msync(2), fsync(2) and, with `writeback_cache`, close(2). The
//! files are recorded here, and reported when the volume is unmounted or becomes read-only. Not recorded is data
//!
//! - of a transaction, which is then rolled back, and reports it;
//! - of a file that became immutable or append-only, which refuses it by design;
//! - of a file without a name: no program can read it later.

use super::{Ops, ROOT};
use fs::{Error, InodeNo};
use fuse_wire::{Answer, Caller, Reply, SYNC, SYNC_ONCE};
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
struct Loss {
    inode: InodeNo,
    /// Distinguishes the file from later ones with its number; `None` where the inode could not be read.
    generation: Option<u32>,
    why: Errno,
    reported: bool,
}

#[derive(Default)]
struct Lost {
    files: Vec<Loss>,
    /// Whether there were more files than are recorded.
    more: bool,
}

/// The files that lost data in late writes.
#[derive(Default)]
pub(super) struct LateWrites(Mutex<Lost>);

impl LateWrites {
    fn add(&self, new: Loss) {
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
    fn list(&self, all: bool) -> (Vec<Loss>, bool) {
        let lost = self.0.lock();
        (lost.files.iter().filter(|loss| all || !loss.reported).copied().collect(), lost.more)
    }

    fn set_reported(&self) {
        self.0.lock().files.iter_mut().for_each(|loss| loss.reported = true);
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
        0 => String::new(),
        1 => format!(" (and {at_least}1 other file)"),
        n => format!(" (and {at_least}{n} other files)"),
    }
}

impl Ops {
    /// Records that a late write to a file failed.
    pub(super) fn record_late_loss(&self, node: u64, why: Errno) {
        // the last two: of a file, or by a process, that a rollback affected
        if matches!(why, Errno::PERM | Errno::STALE | Errno::CANCELED) || self.volume.is_member_of_current() {
            return;
        }
        let Ok(inode) = self.number(node) else { return };
        let generation = self.volume.attributes_of(inode).ok().map(|a| a.generation);
        let loss = Loss { inode, generation, why, reported: false };
        if self.has_name(&loss) {
            self.late.add(loss);
            let why = description(why);
            let problem = format!("written data that the kernel passed on late could not be stored and is lost: {why}");
            self.problems.report_lost(inode.get().into(), &problem);
        }
    }

    /// Whether the file that lost data still exists and has a name.
    fn has_name(&self, loss: &Loss) -> bool {
        match self.volume.attributes_of(loss.inode) {
            Ok(a) => a.links != 0 && loss.generation.is_none_or(|generation| generation == a.generation),
            Err(e) => !matches!(e, Error::Stale(_) | Error::NotFound),
        }
    }

    /// The files that lost data in late writes, as a phrase for a report; without those that were reported, unless
    /// `all`. `None` where there are none.
    pub(crate) fn lost_data(&self, all: bool) -> Option<String> {
        let (mut files, more) = self.late.list(all);
        files.retain(|loss| self.has_name(loss));
        let count = files.len();
        files.truncate(NAMED);
        if files.is_empty() {
            return None;
        }
        let paths = self.paths_of(&files);
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

    /// Removes the record of late writes: their files were replaced by those of a snapshot.
    pub(crate) fn forget_lost_data(&self) {
        *self.late.0.lock() = Lost::default();
    }

    /// Searches the tree for a path of each of these files.
    fn paths_of(&self, files: &[Loss]) -> HashMap<InodeNo, Vec<u8>> {
        let mut paths = HashMap::new();
        for (path, inode) in self.volume.walk(InodeNo::ROOT).take(SEARCHED) {
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

    /// Answers with the value of an extended attribute. That of [`SYNC`] and [`SYNC_ONCE`] contains paths, so it is
    /// empty for users who may not unmount the volume.
    pub(super) fn attribute(
        &self,
        node: u64,
        (name, size): (&[u8], u32),
        caller: &Caller,
        reply: &mut Reply<'_>,
    ) -> Answer<()> {
        let once = name == SYNC_ONCE.as_bytes();
        if node != ROOT || !(once || name == SYNC.as_bytes()) {
            return reply.value(size, &self.getxattr(node, name)?);
        }
        let ended = self.ended.lock().clone();
        ended.map_or_else(|| self.sync(), |how| how.map_err(|_| Errno::IO))?;
        let may_unmount = caller.uid == 0 || caller.uid == rustix::process::getuid().as_raw();
        let lost = if may_unmount { self.lost_data(false) } else { None };
        reply.value(size, lost.unwrap_or_default().as_bytes())?;
        // a request for the length of the value reports nothing yet
        if once && may_unmount && size != 0 {
            self.late.set_reported();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loss(number: u32) -> Loss {
        Loss { inode: InodeNo(number), generation: Some(0), why: Errno::NOSPC, reported: false }
    }

    #[test]
    fn each_file_is_reported_again_only_after_another_loss() {
        let late = LateWrites::default();
        for number in [12, 13, 12] {
            late.add(loss(number));
        }
        assert_eq!(late.list(false), (vec![loss(12), loss(13)], false));
        late.set_reported();
        assert_eq!(late.list(false), (Vec::new(), false));
        assert_eq!(late.list(true).0.len(), 2);
        late.add(loss(13));
        assert_eq!(late.list(false), (vec![loss(13)], false));
    }

    #[test]
    fn the_record_is_limited() {
        let late = LateWrites::default();
        (0..2000).for_each(|number| late.add(loss(number)));
        assert!(late.list(false).0.len() == MOST && late.list(false).1);
        late.set_reported();
        late.add(loss(5000));
        assert_eq!(late.list(false), (vec![loss(5000)], true));
    }

    #[test]
    fn descriptions_have_no_numbers() {
        assert_eq!(description(Errno::NOSPC), "No space left on device");
        assert_eq!([0, 1, 3].map(|n| others(n, false)), ["", " (and 1 other file)", " (and 3 other files)"]);
        assert_eq!(others(997, true), " (and at least 997 other files)");
    }
}
