//! The checker's findings: one [`Problem`] each, and [`Problems`], to which all threads report.
//!
//! Invariants
//! 1. Lists, counts and texts depend on the volume alone, never on the order of threads.
//! 2. Memory is bounded by [`Limits`], however damaged the volume is; what is not listed is still counted.
//! 3. The verdict ([`Findings::worst`]) comes from the counts, so that it includes problems that are not listed.
//! 4. Once a check is cancelled no problem is accepted: skipped reads can look like damage.

use crate::table::{Code, Severity};
use format::{FileBlock, FsBlock, GroupNo, InodeNo};
use parking_lot::{Mutex, MutexGuard};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::atomic::{AtomicBool, Ordering as Memory};

/// Longest name in a problem, in bytes: `EXT2_NAME_LEN` of the ext formats.
const NAME_MAX: usize = 255;

/// One finding: which problem, where, and the values in its text.
///
/// Only the fields in the text of its [`Code`] need to be set; the others add detail to the JSON report.
/// Problems order as they are shown: by phase, group, owner (the directory, else the inode), block of the file, block
/// of the volume, code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The row of the problem table.
    pub code: Code,
    /// The inode with the problem, or the one that a directory entry refers to.
    pub inode: Option<InodeNo>,
    /// The directory that contains the problem.
    pub dir: Option<InodeNo>,
    /// Block of the volume.
    pub block: Option<FsBlock>,
    /// Block of the file or directory.
    pub file_block: Option<FileBlock>,
    /// Block group.
    pub group: Option<GroupNo>,
    /// The value on the device.
    pub found: Option<u64>,
    /// The value it should have.
    pub expected: Option<u64>,
    /// A number: blocks of a range, files that share, problems not listed.
    pub count: Option<u64>,
    /// Name of an entry, attribute, field or feature, as on the device; at most 255 bytes.
    pub name: Option<Box<[u8]>>,
    /// Path of the inode, where one is known.
    pub path: Option<String>,
}

impl Problem {
    /// A problem without details.
    #[must_use]
    pub const fn new(code: Code) -> Self {
        Self {
            code,
            inode: None,
            dir: None,
            block: None,
            file_block: None,
            group: None,
            found: None,
            expected: None,
            count: None,
            name: None,
            path: None,
        }
    }

    /// Sets the inode.
    #[must_use]
    pub const fn inode(mut self, inode: InodeNo) -> Self {
        self.inode = Some(inode);
        self
    }

    /// Sets the directory.
    #[must_use]
    pub const fn dir(mut self, dir: InodeNo) -> Self {
        self.dir = Some(dir);
        self
    }

    /// Sets the block of the volume.
    #[must_use]
    pub const fn block(mut self, block: FsBlock) -> Self {
        self.block = Some(block);
        self
    }

    /// Sets the block of the file.
    #[must_use]
    pub const fn file_block(mut self, block: FileBlock) -> Self {
        self.file_block = Some(block);
        self
    }

    /// Sets the group.
    #[must_use]
    pub const fn group(mut self, group: GroupNo) -> Self {
        self.group = Some(group);
        self
    }

    /// Sets the value on the device.
    #[must_use]
    pub const fn found(mut self, value: u64) -> Self {
        self.found = Some(value);
        self
    }

    /// Sets the value it should have.
    #[must_use]
    pub const fn expected(mut self, value: u64) -> Self {
        self.expected = Some(value);
        self
    }

    /// Sets the number.
    #[must_use]
    pub const fn count(mut self, count: u64) -> Self {
        self.count = Some(count);
        self
    }

    /// Sets the name of an entry, attribute, field or feature; bytes beyond 255 are dropped.
    #[must_use]
    pub fn name(mut self, name: impl AsRef<[u8]>) -> Self {
        let name = name.as_ref();
        self.name = Some(name.get(..NAME_MAX).unwrap_or(name).into());
        self
    }

    /// Sets the path.
    #[must_use]
    pub fn path(mut self, path: impl Into<String>) -> Self {
        self.path = Some(path.into());
        self
    }

    /// The inode that the problem belongs to: the directory that contains it, else the inode itself.
    #[must_use]
    pub fn owner(&self) -> Option<InodeNo> {
        self.dir.or(self.inode)
    }

    /// All fields, in the order of sorting.
    #[expect(clippy::type_complexity, reason = "a sort key, used once")]
    fn key(
        &self,
    ) -> (
        (crate::table::Phase, Option<GroupNo>, Option<InodeNo>, Option<FileBlock>, Option<FsBlock>, Code),
        (Option<InodeNo>, Option<u64>, Option<u64>, Option<u64>, Option<&[u8]>, Option<&str>),
    ) {
        (
            (self.code.phase(), self.group, self.owner(), self.file_block, self.block, self.code),
            (self.inode, self.found, self.expected, self.count, self.name.as_deref(), self.path.as_deref()),
        )
    }
}

impl Ord for Problem {
    fn cmp(&self, other: &Self) -> Ordering {
        // `dir` last: two problems with one owner may still name it in different fields
        self.key().cmp(&other.key()).then_with(|| self.dir.cmp(&other.dir))
    }
}

impl PartialOrd for Problem {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The maximum number of problems that are listed; the others are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of problems listed; slightly exceeded where there are more codes than this.
    pub total: usize,
    /// Maximum number of problems listed of one code.
    pub per_code: usize,
}

impl Default for Limits {
    /// 10 000 in all, 1 000 of one code: below 3 MB.
    fn default() -> Self {
        Self { total: 10_000, per_code: 1_000 }
    }
}

impl Limits {
    /// `most` of each code, however many codes there are; 0 for all, so that memory grows with the number of problems.
    #[must_use]
    pub const fn of_each(most: usize) -> Self {
        Self { total: usize::MAX, per_code: if most == 0 { usize::MAX } else { most } }
    }
}

/// Collects the problems of all threads.
///
/// The limit per code halves each time the total is exceeded, and of each code the smallest problems are retained. Both
/// depend on the set of reports only: a limit is exceeded during the scan exactly if the whole set exceeds it.
#[derive(Debug)]
pub struct Problems {
    total: usize,
    listed: Mutex<Listed>,
    closed: AtomicBool,
}

#[derive(Debug)]
struct Listed {
    per_code: usize,
    len: usize,
    of: BTreeMap<Code, OfCode>,
}

/// The problems of one code: their number, and the smallest of them, largest on top.
#[derive(Debug, Default)]
struct OfCode {
    count: u64,
    smallest: BinaryHeap<Problem>,
}

impl Default for Problems {
    fn default() -> Self {
        Self::new(Limits::default())
    }
}

impl Problems {
    /// An empty collection.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        let listed = Listed { per_code: limits.per_code.max(1), len: 0, of: BTreeMap::new() };
        Self { total: limits.total, listed: Mutex::new(listed), closed: AtomicBool::new(false) }
    }

    fn listed(&self) -> MutexGuard<'_, Listed> {
        self.listed.lock()
    }

    /// Rejects all further problems: the check is cancelled.
    pub(crate) fn close(&self) {
        self.closed.store(true, Memory::SeqCst);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Memory::SeqCst)
    }

    /// Adds one problem.
    pub fn report(&self, problem: Problem) {
        let mut guard = self.listed();
        if self.is_closed() {
            return;
        }
        let listed = &mut *guard;
        let of_code = listed.of.entry(problem.code).or_default();
        of_code.count = of_code.count.saturating_add(1);
        if of_code.smallest.len() < listed.per_code {
            of_code.smallest.push(problem);
            listed.len += 1;
            while listed.len > self.total && listed.per_code > 1 {
                listed.halve();
            }
        } else if let Some(mut largest) = of_code.smallest.peek_mut()
            && problem < *largest
        {
            *largest = problem;
        }
    }

    /// The number of problems of this code that were reported so far.
    #[must_use]
    pub fn count(&self, code: Code) -> u64 {
        self.listed().of.get(&code).map_or(0, |of_code| of_code.count)
    }

    /// The highest severity reported so far, if any.
    #[must_use]
    pub fn worst(&self) -> Option<Severity> {
        self.listed().of.keys().map(|code| code.severity()).max()
    }

    /// Whether there are errors.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.worst().is_some_and(Severity::is_error)
    }

    /// Whether a problem that aborts the check was found.
    #[must_use]
    pub fn is_fatal(&self) -> bool {
        self.worst() >= Some(Severity::Fatal)
    }

    /// The problems listed so far, in order.
    pub(crate) fn to_vec(&self) -> Vec<Problem> {
        let mut all: Vec<Problem> = self.listed().of.values().flat_map(|of_code| &of_code.smallest).cloned().collect();
        all.sort_unstable();
        all
    }

    /// The inodes whose problems are listed.
    pub(crate) fn owners(&self) -> BTreeSet<InodeNo> {
        self.listed().of.values().flat_map(|of_code| &of_code.smallest).filter_map(Problem::owner).collect()
    }

    /// Sets the paths of the listed problems to those of their owners.
    pub(crate) fn set_paths(&self, path: impl Fn(InodeNo) -> Option<String>) {
        for of_code in self.listed().of.values_mut() {
            let problems = std::mem::take(&mut of_code.smallest).into_iter();
            of_code.smallest = problems.map(|p| Problem { path: p.owner().and_then(&path), ..p }).collect();
        }
    }

    /// Ends the collection: all listed problems, in order, and a [`Code::TooManyProblems`] for each code with more.
    #[must_use]
    pub fn finish(self) -> Findings {
        let listed = self.listed.into_inner();
        let mut problems = Vec::with_capacity(listed.len);
        let mut counts = BTreeMap::new();
        for (code, OfCode { count, smallest }) in listed.of {
            let dropped = count.saturating_sub(smallest.len() as u64);
            problems.extend(smallest);
            counts.insert(code, count);
            if dropped > 0 {
                problems.push(Problem::new(Code::TooManyProblems).count(dropped).name(format!("{code} {code:?}")));
            }
        }
        problems.sort_unstable();
        Findings { problems, counts }
    }
}

impl Listed {
    fn halve(&mut self) {
        self.per_code /= 2;
        self.len = 0;
        for of_code in self.of.values_mut() {
            while of_code.smallest.len() > self.per_code {
                of_code.smallest.pop();
            }
            of_code.smallest.shrink_to(self.per_code);
            self.len += of_code.smallest.len();
        }
    }
}

/// The findings of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Findings {
    /// The listed problems in the order they are shown; at most as many as [`Limits`] allows, and one for each code
    /// with more.
    pub problems: Vec<Problem>,
    /// The number of reports of each code, listed or not.
    pub counts: BTreeMap<Code, u64>,
}

impl Findings {
    /// The highest severity, if any problem was found.
    #[must_use]
    pub fn worst(&self) -> Option<Severity> {
        self.counts.keys().map(|code| code.severity()).max()
    }

    /// The number of errors that were found, of any severity.
    #[must_use]
    pub fn errors(&self) -> u64 {
        let errors = self.counts.iter().filter(|(code, _)| code.severity().is_error());
        errors.fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }

    /// The number of problems of this severity that were found.
    #[must_use]
    pub fn count(&self, severity: Severity) -> u64 {
        let of_severity = self.counts.iter().filter(|(code, _)| code.severity() == severity);
        of_severity.fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }
}
