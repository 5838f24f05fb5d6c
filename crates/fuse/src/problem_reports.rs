//! Reports of damage to the user: once for each file, and limited in number.

use fs::DamagedGroup;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::Arc;

/// The maximum number of files reported.
const MOST: usize = 1000;
/// The bit that distinguishes reports of lost data from others; the numbers of inodes have fewer bits.
const LOST: u64 = 1 << 62;

/// Receives one problem, as a sentence without a full stop.
pub(crate) type ProblemSink = Arc<dyn Fn(&str) + Send + Sync>;

/// The files whose problems were reported.
pub(crate) struct ProblemReports {
    sink: ProblemSink,
    reported: Mutex<HashSet<u64>>,
}

impl ProblemReports {
    pub(crate) fn new(sink: ProblemSink) -> Self {
        Self { sink, reported: Mutex::new(HashSet::new()) }
    }

    /// Reports a problem of the volume as a whole, once.
    pub(crate) fn report_volume(&self, problem: &str) {
        // no inode has this number
        if self.reported.lock().insert(u64::MAX) {
            (self.sink)(problem);
        }
    }

    /// Reports the groups in which allocation was disabled, each once.
    pub(crate) fn report_groups(&self, groups: Vec<DamagedGroup>) {
        groups.iter().for_each(|damaged| self.report_group(damaged.group.get(), damaged.what));
    }

    fn report_group(&self, group: u32, why: &str) {
        // no inode has this number either
        let key = u64::MAX - 1 - u64::from(group);
        if self.reported.lock().insert(key) {
            (self.sink)(&format!(
                "group {group} is damaged, allocation in it is disabled: {why}; unmount the volume and run `extant check`"
            ));
        }
    }

    /// Reports a problem with an inode, unless one was reported before.
    pub(crate) fn report(&self, inode: u64, problem: &str) {
        self.report_as(inode, inode, problem);
    }

    /// Reports that data of an inode was lost, once, whether or not another problem was reported.
    pub(crate) fn report_lost(&self, inode: u64, problem: &str) {
        self.report_as(inode | LOST, inode, problem);
    }

    fn report_as(&self, key: u64, inode: u64, problem: &str) {
        let count = {
            let mut reported = self.reported.lock();
            if reported.len() >= MOST || !reported.insert(key) {
                return;
            }
            reported.len()
        };
        (self.sink)(&format!("inode {inode}: {problem}"));
        if count == MOST {
            (self.sink)("problems with further files are not reported");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_is_reported_once_and_not_without_end() {
        let received = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&received);
        let problems = ProblemReports::new(Arc::new(move |text| sink.lock().push(text.to_owned())));
        for inode in [12, 13, 12] {
            problems.report(inode, "corrupt");
        }
        assert_eq!(*received.lock(), ["inode 12: corrupt", "inode 13: corrupt"]);
        problems.report_lost(12, "lost");
        problems.report_lost(12, "lost");
        assert_eq!(received.lock().len(), 3);
        (0..5000).for_each(|inode| problems.report(inode, "corrupt"));
        let received = received.lock();
        assert_eq!(received.len(), MOST + 1);
        assert_eq!(received[MOST], "problems with further files are not reported");
    }
}
