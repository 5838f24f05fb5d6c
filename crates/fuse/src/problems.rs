//! Telling the user of damage: once for each file, and not for ever.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

/// Files that are told of; a volume with more has been told of enough.
const MOST: usize = 1000;

/// Takes one problem, as a sentence without a full stop.
pub(crate) type Teller = Arc<dyn Fn(&str) + Send + Sync>;

/// The files whose problems were told.
pub(crate) struct Problems {
    report: Teller,
    reported: Mutex<HashSet<u64>>,
}

impl Problems {
    pub(crate) fn new(teller: Teller) -> Self {
        Self { report: teller, reported: Mutex::new(HashSet::new()) }
    }

    /// Tells of what befell the volume as a whole, once.
    pub(crate) fn tell_of_volume(&self, problem: &str) {
        // no inode has this number
        if self.reported.lock().unwrap_or_else(PoisonError::into_inner).insert(u64::MAX) {
            (self.report)(problem);
        }
    }

    /// Reports that a group is not used any more, once.
    pub(crate) fn report_group(&self, group: u32, why: &str) {
        // no inode has this number either
        let key = u64::MAX - 1 - u64::from(group);
        if self.reported.lock().unwrap_or_else(PoisonError::into_inner).insert(key) {
            (self.report)(&format!(
                "group {group} is damaged, and nothing is allocated there: {why}; unmount the volume and run `extant check`"
            ));
        }
    }

    /// Tells of a problem with an inode, unless one was told before.
    pub(crate) fn tell(&self, inode: u64, problem: &str) {
        let count = {
            let mut told = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
            if told.len() >= MOST || !told.insert(inode) {
                return;
            }
            told.len()
        };
        (self.report)(&format!("inode {inode}: {problem}"));
        if count == MOST {
            (self.report)("problems with further files are not told");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_is_told_of_once_and_not_without_end() {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let ears = Arc::clone(&heard);
        let problems = Problems::new(Arc::new(move |text| ears.lock().expect("ears").push(text.to_owned())));
        for inode in [12, 13, 12] {
            problems.tell(inode, "corrupt");
        }
        assert_eq!(*heard.lock().expect("ears"), ["inode 12: corrupt", "inode 13: corrupt"]);
        (0..5000).for_each(|inode| problems.tell(inode, "corrupt"));
        let heard = heard.lock().expect("ears");
        assert_eq!(heard.len(), MOST + 1);
        assert_eq!(heard[MOST], "problems with further files are not told");
    }
}
