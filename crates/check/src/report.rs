//! The result of a check, as JSON (this module) or as text ([`crate::render`]).

use crate::capabilities::Capabilities;
use crate::options::Repair;
use crate::problem::{Findings, Problem};
use crate::render;
use crate::table::{Code, Fixer, Phase, Severity};
use format::inode::FileKind;
use serde::Serialize;
use std::collections::BTreeMap;
use std::ops::AddAssign;

/// Exit statuses of `fsck`, to be combined with `|`; the same as e2fsck's.
pub mod exit {
    /// No errors were found.
    pub const CLEAN: u8 = 0;
    /// Problems were found and repaired.
    pub const REPAIRED: u8 = 1;
    /// Errors remain.
    pub const LEFT: u8 = 4;
    /// The check could not be done, or was aborted.
    pub const OPERATIONAL: u8 = 8;
    /// The command line was wrong.
    pub const USAGE: u8 = 16;
    /// The check was cancelled.
    pub const CANCELLED: u8 = 32;
}

/// The result of one check. Serialises to the JSON of `extant check --json`; fields may be added, never renamed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The device as named by the caller.
    pub device: String,
    /// The format of the volume: `ext2`, `ext3`, `ext4`, ….
    pub format: String,
    /// Whether no errors remain; advice alone leaves the volume clean.
    pub clean: bool,
    /// The exit status, see [`exit`].
    pub exit: u8,
    /// Something was repaired on the device.
    pub repaired: bool,
    /// The number of errors found, listed or not.
    pub errors: u64,
    /// The number of notes, listed or not; [`Code::TooManyProblems`], which stands for problems, is none.
    pub advice: u64,
    /// The problems, by phase.
    pub problems: Vec<Reported>,
    /// The number of problems of each code that were counted and are not in [`Report::problems`].
    #[serde(skip)]
    pub unlisted: BTreeMap<Code, u64>,
    /// Descriptions of the parts that were not checked: the report does not cover them, and the volume does not count
    /// as clean.
    pub not_looked_at: Vec<String>,
    /// The problem at which a repair with [`Repair::Safe`] stopped, in one sentence; the administrator must decide.
    #[serde(skip)]
    pub stopped_at: Option<String>,
    /// Whether the repair would roll back from a generation of a native volume that cannot be read, which only
    /// [`Repair::All`] does.
    #[serde(skip)]
    pub goes_back: bool,
    /// The state of a native volume with errors, from which the next step follows.
    #[serde(skip)]
    pub native: Option<NativeState>,
    /// The requests that the volume's format allows, from which the next step follows.
    #[serde(skip)]
    pub capabilities: Capabilities,
    /// The superblock that the caller chose, where that is not the primary.
    #[serde(skip)]
    pub chosen: Option<ChosenSuperblock>,
    /// The volume was mounted during the check, so that a repair requires unmounting it.
    #[serde(skip)]
    pub mounted: bool,
    /// The folder that the volume is mounted on, where commands take that instead of the device.
    #[serde(skip)]
    pub place: Option<String>,
    /// The requested scope of the repair.
    #[serde(skip)]
    pub asked: Repair,
    /// Cost of the check, in requests, bytes and seconds.
    pub scan: Scan,
    /// Contents of the volume.
    pub counts: Counts,
}

/// The superblock that a caller chose with [`Options::superblock`](crate::Options::superblock).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChosenSuperblock {
    /// Its block.
    pub block: u64,
    /// Whether the primary superblock and its descriptors can be used.
    pub primary_is_usable: bool,
}

/// The state of a native volume with errors.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NativeState {
    /// Whether the newest generation cannot be mounted.
    pub unreadable: bool,
    /// Whether there was no volume to check above its map.
    pub unchecked: bool,
    /// Whether it has the mark of a volume in use without consistency, so that it cannot be rolled back to a snapshot.
    pub unordered: bool,
    /// Whether the newest generation has no errors, apart from a damaged superblock: the others are in snapshots.
    pub live_is_intact: bool,
    /// The snapshots with errors.
    pub damaged: Vec<String>,
    /// Whether one of these may be impossible to delete, as structures that this reads are damaged.
    pub stuck: bool,
    /// The number of snapshots that were read.
    pub snapshots: usize,
    /// The newest snapshot without errors.
    pub intact: Option<String>,
    /// The newest snapshot that can be mounted, whatever other errors it has.
    pub mountable: Option<String>,
    /// The blocks of the device and of the volume, where the device has fewer.
    pub truncated: Option<(u64, u64)>,
    /// The possible repair; `None` where it was not determined, as on a volume in use.
    pub remedy: Option<Remedy>,
}

/// The repair of a native volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remedy {
    /// None is possible.
    Nothing,
    /// [`Repair::Safe`] removes all errors.
    Safe,
    /// [`Repair::All`] rewrites a damaged superblock; other errors remain.
    Superblock,
    /// [`Repair::All`] returns to this generation, which has no errors.
    Generation(u64),
}

/// One problem as the report shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Reported {
    /// e2fsck's number, as `0x01000c`.
    pub code: Code,
    /// The name of the code.
    pub name: String,
    /// The phase that found it.
    pub phase: Phase,
    /// Its severity.
    pub severity: Severity,
    /// The inode that is wrong, or that an entry refers to.
    pub inode: Option<u32>,
    /// The directory that contains it.
    pub dir: Option<u32>,
    /// Block of the volume.
    pub block: Option<u64>,
    /// Block of the file.
    pub file_block: Option<u64>,
    /// Block group.
    pub group: Option<u32>,
    /// The value on the device.
    pub found: Option<u64>,
    /// The value it should have.
    pub expected: Option<u64>,
    /// The number of items the problem is about.
    pub count: Option<u64>,
    /// Path of the inode, where one is known.
    pub path: Option<String>,
    /// The problem in one sentence.
    pub text: String,
    /// Whether it was repaired.
    pub fixed: bool,
    /// The repair in one sentence, if it was repaired.
    pub repair: Option<&'static str>,
}

impl Reported {
    /// Marks the problem as repaired.
    pub(crate) fn set_fixed(&mut self) {
        self.fixed = true;
        self.repair = Some(self.code.repair());
    }
}

/// The number of problems of one code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Kind {
    /// e2fsck's number, as `0x01000c`.
    pub code: Code,
    /// The name of the code.
    pub name: String,
    /// The number found.
    pub found: u64,
    /// The number that is listed.
    pub listed: u64,
}

impl From<&Problem> for Reported {
    fn from(problem: &Problem) -> Self {
        Self {
            code: problem.code,
            name: format!("{:?}", problem.code),
            phase: problem.code.phase(),
            severity: problem.code.severity(),
            inode: problem.inode.map(|inode| inode.get()),
            dir: problem.dir.map(|dir| dir.get()),
            block: problem.block.map(|block| block.get()),
            file_block: problem.file_block.map(|block| block.get()),
            group: problem.group.map(|group| group.get()),
            found: problem.found,
            expected: problem.expected,
            count: problem.count,
            path: problem.path.clone(),
            text: render::sentence(problem),
            fixed: false,
            repair: None,
        }
    }
}

/// Cost of a check.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Scan {
    /// Bytes read from the device.
    pub bytes: u64,
    /// Requests to the device.
    pub reads: u64,
    /// Requests that do not start where the one before them ended.
    pub seeks: u64,
    /// Wall time in seconds.
    pub seconds: f64,
    /// The estimated wall time, in seconds.
    pub estimate_seconds: Option<f64>,
    /// Largest resident memory of the process, in bytes, where the system reports it.
    pub peak_rss_bytes: Option<u64>,
}

impl Scan {
    /// The cost of two checks one after the other.
    #[must_use]
    pub(crate) fn and(&self, next: &Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(next.bytes),
            reads: self.reads.saturating_add(next.reads),
            seeks: self.seeks.saturating_add(next.seeks),
            seconds: self.seconds + next.seconds,
            estimate_seconds: self.estimate_seconds,
            peak_rss_bytes: self.peak_rss_bytes.max(next.peak_rss_bytes),
        }
    }
}

/// Contents of the volume. Each thread counts for itself, and the counts are added.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Inodes in use, the reserved ones included.
    pub inodes: u64,
    /// Inodes the volume has.
    pub inodes_total: u64,
    /// Directories.
    pub directories: u64,
    /// Regular files; like the other types, and as with e2fsck, without system inodes such as that of the journal.
    pub regular: u64,
    /// Character devices.
    pub character_devices: u64,
    /// Block devices.
    pub block_devices: u64,
    /// Named pipes.
    pub fifos: u64,
    /// Sockets.
    pub sockets: u64,
    /// Symbolic links, fast ones included.
    pub symlinks: u64,
    /// Symbolic links with the target in the inode.
    pub fast_symlinks: u64,
    /// Hard links: names of files other than directories, without the first name of each.
    pub links: u64,
    /// Blocks in use, metadata included; of a native volume with all of its metadata regions.
    pub blocks: u64,
    /// Blocks the volume has; a native one as many as its device.
    pub blocks_total: u64,
    /// Blocks in the bad blocks inode.
    pub bad_blocks: u64,
    /// Regular files smaller than a group whose blocks are not contiguous.
    pub fragmented_files: u64,
    /// Directories whose blocks are not contiguous.
    pub fragmented_directories: u64,
    /// Inodes with an extent tree, by its depth: `[0]` has its extents in the inode.
    pub extent_depths: [u64; 6],
    /// Inodes with an indirect block map, by its depth: `[0]` has direct blocks only. System inodes are not included.
    pub indirect_depths: [u64; 4],
    /// Sum of the sizes of all regular files, in bytes, without system inodes.
    pub bytes: u64,
}

impl Counts {
    /// Counts an inode in use; a system inode has no `kind` here.
    pub(crate) fn count_inode(&mut self, kind: Option<FileKind>, size: u64) {
        self.inodes += 1;
        match kind {
            Some(FileKind::Regular) => {
                self.regular += 1;
                self.bytes = self.bytes.saturating_add(size);
            }
            Some(FileKind::Directory) => self.directories += 1,
            Some(FileKind::CharDevice) => self.character_devices += 1,
            Some(FileKind::BlockDevice) => self.block_devices += 1,
            Some(FileKind::Fifo) => self.fifos += 1,
            Some(FileKind::Socket) => self.sockets += 1,
            Some(FileKind::Symlink) => self.symlinks += 1,
            None => {}
        }
    }

    /// Counts a file whose blocks are not contiguous.
    pub(crate) fn count_fragmented(&mut self, kind: Option<FileKind>) {
        match kind {
            Some(FileKind::Regular) => self.fragmented_files += 1,
            Some(FileKind::Directory) => self.fragmented_directories += 1,
            _ => {}
        }
    }
}

impl AddAssign<&Counts> for Counts {
    fn add_assign(&mut self, other: &Counts) {
        // destructured, so that the compiler reports a new field
        let Counts {
            inodes,
            inodes_total,
            directories,
            regular,
            character_devices,
            block_devices,
            fifos,
            sockets,
            symlinks,
            fast_symlinks,
            links,
            blocks,
            blocks_total,
            bad_blocks,
            fragmented_files,
            fragmented_directories,
            extent_depths,
            indirect_depths,
            bytes,
        } = self;
        let scalars = [
            (inodes, other.inodes),
            (inodes_total, other.inodes_total),
            (directories, other.directories),
            (regular, other.regular),
            (character_devices, other.character_devices),
            (block_devices, other.block_devices),
            (fifos, other.fifos),
            (sockets, other.sockets),
            (symlinks, other.symlinks),
            (fast_symlinks, other.fast_symlinks),
            (links, other.links),
            (blocks, other.blocks),
            (blocks_total, other.blocks_total),
            (bad_blocks, other.bad_blocks),
            (fragmented_files, other.fragmented_files),
            (fragmented_directories, other.fragmented_directories),
            (bytes, other.bytes),
        ];
        let extents = extent_depths.iter_mut().zip(other.extent_depths);
        let indirect = indirect_depths.iter_mut().zip(other.indirect_depths);
        // sizes come from the device, so the sum may overflow
        for (sum, more) in scalars.into_iter().chain(extents).chain(indirect) {
            *sum = sum.saturating_add(more);
        }
    }
}

impl Report {
    /// A report on a check that repaired nothing.
    #[must_use]
    pub fn new(device: String, format: String, findings: &Findings, scan: Scan, counts: Counts) -> Self {
        let exit = match findings.worst() {
            None | Some(Severity::Advice | Severity::Unmountable) => exit::CLEAN,
            Some(Severity::Error) => exit::LEFT,
            Some(Severity::Fatal) => exit::LEFT | exit::OPERATIONAL,
        };
        let mut unlisted = findings.counts.clone();
        for problem in &findings.problems {
            if let Some(count) = unlisted.get_mut(&problem.code) {
                *count = count.saturating_sub(1);
            }
        }
        unlisted.retain(|_, count| *count > 0);
        Self {
            device,
            format,
            clean: findings.errors() == 0,
            exit,
            repaired: false,
            errors: findings.errors(),
            advice: findings.count(Severity::Advice),
            problems: findings.problems.iter().map(Reported::from).collect(),
            unlisted,
            not_looked_at: Vec::new(),
            stopped_at: None,
            goes_back: false,
            native: None,
            capabilities: Capabilities::EXT,
            chosen: None,
            mounted: false,
            place: None,
            asked: Repair::No,
            scan,
            counts,
        }
    }

    /// The number of problems of each code, found and listed.
    #[must_use]
    pub fn kinds(&self) -> Vec<Kind> {
        // of each code the number listed, and the number not listed
        let mut numbers: BTreeMap<Code, (u64, u64)> = BTreeMap::new();
        for problem in self.problems.iter().filter(|problem| problem.code != Code::TooManyProblems) {
            numbers.entry(problem.code).or_default().0 += 1;
        }
        for (&code, &count) in &self.unlisted {
            numbers.entry(code).or_default().1 = count;
        }
        let kind = |(code, (listed, unlisted)): (Code, (u64, u64))| {
            let found = listed.saturating_add(unlisted);
            Kind { code, name: format!("{code:?}"), found, listed }
        };
        numbers.into_iter().map(kind).collect()
    }

    /// Reduces the list to the first `most` problems of each code; the others remain counted.
    pub fn list_at_most(&mut self, most: u64) {
        let mut seen: BTreeMap<Code, u64> = BTreeMap::new();
        let unlisted = &mut self.unlisted;
        self.problems.retain(|problem| {
            let seen = seen.entry(problem.code).or_default();
            *seen += 1;
            let fits = *seen <= most || problem.code == Code::TooManyProblems;
            if !fits {
                let count = unlisted.entry(problem.code).or_default();
                *count = count.saturating_add(1);
            }
            fits
        });
    }

    /// Adds the problems of a snapshot's volume, each prefixed with the snapshot's name.
    pub(crate) fn add_snapshot(&mut self, name: &str, checked: Self) {
        self.clean &= checked.clean;
        self.exit |= checked.exit;
        self.errors = self.errors.saturating_add(checked.errors);
        self.advice = self.advice.saturating_add(checked.advice);
        self.scan = self.scan.and(&checked.scan);
        for (code, more) in checked.unlisted {
            let count = self.unlisted.entry(code).or_default();
            *count = count.saturating_add(more);
        }
        self.problems.extend(checked.problems.into_iter().map(|mut problem| {
            problem.text = format!("Snapshot {name}: {}", problem.text);
            problem
        }));
    }

    /// Marks the check as cancelled: the unchecked part may be damaged, so the volume does not count as clean.
    pub fn cancel(&mut self) {
        self.exit |= exit::CANCELLED;
        self.clean = false;
    }

    /// Marks parts of the volume as not checked: they may be damaged, so it does not count as clean.
    pub(crate) fn leave_out(&mut self, parts: Vec<String>) {
        self.exit |= exit::OPERATIONAL;
        self.clean = false;
        self.not_looked_at.extend(parts);
    }

    /// Whether a repair can remove some of the errors that are left.
    #[must_use]
    pub fn is_repairable(&self) -> bool {
        if let Some(remedy) = self.native.as_ref().and_then(|state| state.remedy) {
            return remedy != Remedy::Nothing;
        }
        let mut left = self.problems.iter().filter(|problem| !problem.fixed && problem.severity.is_error());
        let Some(first) = left.next() else { return true };
        std::iter::once(first).chain(left).any(|problem| problem.code.fixer() != Fixer::None)
    }

    /// Whether it is on a native volume whose newest generation has no volume that can be checked.
    pub(crate) fn is_unchecked(&self) -> bool {
        self.native.as_ref().is_some_and(|state| state.unchecked)
    }

    /// Whether the check was aborted, so that there may be further problems.
    #[must_use]
    pub fn cut_short(&self) -> bool {
        self.is_unchecked() || self.exit & exit::OPERATIONAL != 0 && self.not_looked_at.is_empty()
    }
}
