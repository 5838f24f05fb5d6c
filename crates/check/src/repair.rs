//! Repair: repairs what the checker finds, in memory first, and then on the device so that a cut at any write is
//! harmless.
//!
//! 1. An iteration checks the volume as it stands in an [`Overlay`] and lets the first [`Fixer`] that has something to
//!    do work, and those after it as long as nothing they look at has changed. Fixers write into the overlay alone.
//! 2. Iterations follow until a check finds nothing that can be repaired. So a second run is clean by construction, and
//!    no fixer has to know what its work means for others: the next check finds it.
//! 3. It ends: a fixer that changed nothing is not asked again before another has changed something, and one that led
//!    back to a state that was there before is never asked again. What is left then is said, and the exit status is 4.
//! 4. Only then is the device written, through the redo log ([`redo`]). With [`Repair::Safe`] a problem that a person
//!    has to decide stops everything, and nothing but the journal's replay is written.
//!
//! | module | repairs |
//! | --- | --- |
//! | `work` | what all of them use: blocks, inodes, free space |
//! | `replay`, `journal`, `orphans`, `release`, `system_inodes` | what the volume left undone, and what is its own |
//! | `superblock`, `descriptors`, `bitmaps`, `space_maps`, `quota` | what is counted and where it lies |
//! | `convert` | no problem: block bitmaps into space maps, and back |
//! | `inodes`, `maps`, `attributes`, `inline` | inodes |
//! | `sharing` | blocks claimed more than once |
//! | `directories`, `entries`, `rebuild`, `renames`, `connections` | directories, and what hangs on them |

mod attributes;
mod bitmaps;
mod connections;
mod convert;
mod copies;
mod descriptors;
mod directories;
mod entries;
mod inline;
mod inodes;
mod journal;
mod maps;
mod orphans;
mod quota;
mod rebuild;
mod release;
mod renames;
mod replay;
mod sharing;
mod space_maps;
mod superblock;
mod system_inodes;
mod work;

use crate::checker::Checker;
use crate::native;
use crate::options::{Options, Progress, Refusal, Repair};
use crate::phases::superblock::open;
use crate::problem::{Limits, Problem, Problems};
use crate::problem_settings::ProblemSettings;
use crate::redo::{self, BrokenOff, Finished, FreeBlocks};
use crate::report::{Report, Reported, exit};
use crate::scan::{Counters, Scanner};
use crate::table::{Code, Fixer, Preen, Severity};
use crate::view::View;
use blockdev::{BlockDevice, Overlay};
pub use convert::{FreeSpaceForm, convert};
use format::feature::RoCompat;
use format::superblock::Geometry;
use std::collections::{BTreeSet, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use work::Work;

/// Iterations that are made at most: each one repairs all problems of a kind, so that few volumes need ten.
const ITERATIONS: u32 = 200;
/// Problems that are repaired in one iteration: the rest waits for the next.
const LIMITS: Limits = Limits { total: 400_000, per_code: 200_000 };

/// Checks the volume on `device` and repairs what [`Options::repair`] allows. `undo` names a file that takes in what
/// the changed places hold before the first of them is written; it must not exist.
///
/// The report lists what was found over all iterations, and what of it was repaired. Its exit status is 0 where nothing
/// was to be done, 1 where all was repaired, 4 where errors are left, or 32 where the check was cancelled: nothing is
/// changed then.
///
/// # Errors
/// [`Refusal`] where there is no volume to check, and where the device or the undo file fails.
pub fn repair(
    name: &str,
    device: &Arc<dyn BlockDevice>,
    options: &Options,
    progress: &dyn Progress,
    undo: Option<&Path>,
) -> Result<Report, Refusal> {
    if native::is_native(&**device) {
        // there is no way back from another superblock
        let options = &Options { repair: if undo.is_some() { Repair::No } else { options.repair }, ..options.clone() };
        return native::repair(Checker { name, device: &**device, options, progress });
    }
    let mut target = Target::open(device, undo).map_err(failed)?;
    let outcome = repair_target(name, &mut target, options, progress);
    target.finish().map_err(failed)?;
    outcome
}

/// The device that is repaired.
struct Target<'a> {
    device: &'a Arc<dyn BlockDevice>,
    /// The device as it is when what was broken off is finished.
    finished: Arc<dyn BlockDevice>,
    /// An earlier writing that is not finished yet: with an undo file, which has to cover both, that waits until it is
    /// known what else is written.
    broken_off: Option<Arc<BrokenOff>>,
    undo: Option<&'a Path>,
    /// An earlier writing had been broken off.
    was_broken_off: bool,
}

impl<'a> Target<'a> {
    fn open(device: &'a Arc<dyn BlockDevice>, undo: Option<&'a Path>) -> blockdev::Result<Self> {
        let broken_off = if undo.is_some() { redo::broken_off(&**device)?.map(Arc::new) } else { None };
        let was_broken_off = broken_off.is_some() || redo::finish(&**device, None)?;
        let finished: Arc<dyn BlockDevice> = match &broken_off {
            Some(log) => Arc::new(Finished { device: Arc::clone(device), log: Arc::clone(log) }),
            None => Arc::clone(device),
        };
        Ok(Self { device, finished, broken_off, undo, was_broken_off })
    }

    /// Writes what `state`, above `finished`, changes.
    fn write(&mut self, state: &Overlay, free: Option<&FreeBlocks>) -> blockdev::Result<()> {
        match (self.broken_off.take(), self.undo) {
            (Some(broken_off), Some(undo)) => {
                redo::finish_and_write(&**self.device, &broken_off, &*self.finished, state, free, undo)
            }
            _ => redo::write(&**self.device, state, free, self.undo),
        }
    }

    /// Finishes what was broken off, where nothing else was written.
    fn finish(&mut self) -> blockdev::Result<()> {
        match self.broken_off.take() {
            Some(_) => redo::finish(&**self.device, self.undo).map(|_| ()),
            None => Ok(()),
        }
    }
}

/// As [`repair`], but that what was broken off may be left to finish.
fn repair_target(
    name: &str,
    target: &mut Target<'_>,
    options: &Options,
    progress: &dyn Progress,
) -> Result<Report, Refusal> {
    let now = options.now.unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs()));
    let overlay = Overlay::new(Arc::clone(&target.finished));
    let mut iterations = Iterations {
        overlay: &overlay,
        found: overlay.clone(),
        mode: options.repair,
        problem_settings: &options.problem_settings,
        now,
        ineffective: BTreeSet::new(),
        oscillating: BTreeSet::new(),
        repaired: Vec::new(),
        stopped: None,
        replayed: None,
        restore: options.superblock.is_some(),
        empty_tables: options.empty_tables,
        unshare: options.unshare_blocks && options.repair == Repair::All,
        unclaimed: Unclaimed::default(),
    };
    let mut options = Options { limits: LIMITS, ..options.clone() };
    let mut seen = HashSet::from([overlay.fingerprint()]);
    let mut report: Option<Report> = None;
    for _ in 0..ITERATIONS {
        let before = overlay.fingerprint();
        let (checked, step) =
            Checker { name, device: &overlay, options: &options, progress }.examine(|view| iterations.iterate(view))?;
        if options.repair == Repair::All {
            options.superblock = None;
        }
        let scan = report.as_ref().map(|r| r.scan);
        let cancelled = checked.exit & exit::CANCELLED != 0;
        report = Some(Report { scan: scan.map_or(checked.scan, |before| before.and(&checked.scan)), ..checked });
        if cancelled {
            return report.ok_or_else(|| failed("nothing was checked"));
        }
        let fixer = match step.map_err(failed)? {
            Step::Worked(fixer) => fixer,
            Step::Done => break,
            Step::Stuck(refusal) => return Err(refusal),
        };
        let after = overlay.fingerprint();
        if after == before {
            iterations.ineffective.insert(fixer);
        } else {
            // what could not be repaired before may be possible now
            iterations.ineffective.clear();
            if !seen.insert(after) {
                iterations.oscillating.insert(fixer);
            }
        }
    }
    let report = report.ok_or_else(|| failed("nothing was checked"))?;
    iterations.conclude(report, target)
}

/// Whether nothing is wrong with what can be seen without a scan: superblock, group descriptors, journal superblock and
/// orphans. Who takes a volume at its word asks this first.
#[must_use]
pub fn first_sight(device: &dyn BlockDevice, options: &Options) -> bool {
    let counters = Counters::default();
    let scanner =
        Scanner { device, threads: 1, gap: options.gap, counters: &counters, cancelled: &|| false, advanced: &|_| () };
    let problems = Problems::default();
    let opened = open(&scanner, options, false, &problems);
    // only we ask about the copies, and a problem without a fix is no reason to look further
    // unless the volume cannot be mounted as it is
    let matters = |p: &Problem| {
        let unusable =
            matches!(p.code, Code::InodeTableElsewhere | Code::JournalInodeElsewhere | Code::JournalInodeRestorable);
        let asked = p.code.number() < 0x0E_0000 || unusable;
        // e2fsck asks about the fields of the superblock before it asks whether the volume was left clean
        let hopeless = p.code.fixer() == Fixer::None && p.code.severity() >= Severity::Error;
        hopeless || asked && p.code.fixer() != Fixer::None && options.problem_settings.is_fix(p.code)
    };
    opened.is_ok() && !problems.to_vec().iter().any(matters)
}

/// The outcome for a journal that was to be replayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replay {
    /// There was nothing to replay.
    Nothing,
    /// All that was committed is in its place.
    Whole,
    /// Not all of it: the log is damaged before its end.
    Damaged,
}

/// Replays the journal of the volume on `device`, where it asks for that, and checks nothing: what `-p` does before it
/// takes a volume at its word. A cut at any moment leaves the journal to be replayed again. One that is damaged is left
/// to a whole [`repair`], and nothing is written.
///
/// # Errors
/// [`Refusal`] where there is no volume, and where the device fails.
pub fn replay(device: &Arc<dyn BlockDevice>, options: &Options) -> Result<Replay, Refusal> {
    let counters = Counters::default();
    let scanner =
        Scanner { device, threads: 1, gap: options.gap, counters: &counters, cancelled: &|| false, advanced: &|_| () };
    let problems = Problems::default();
    let volume = open(&scanner, options, false, &problems)?;
    let asked = problems.count(Code::JournalNotReplayed) + problems.count(Code::JournalRecoveryOfNothing);
    if let Some(refusal) = unknown_journal(&problems.to_vec()) {
        return Err(refusal);
    }
    if problems.is_fatal() || asked == 0 {
        return Ok(Replay::Nothing);
    }
    if problems.count(Code::JournalSuperblockBad) > 0 {
        return Ok(Replay::Damaged);
    }
    let view = View { volume: &volume, scanner: &scanner, problems: &problems, walk: None };
    let overlay = Overlay::new(Arc::clone(device));
    let replayed = replay::copy(&Work::new(&view, &overlay, 0)).map_err(failed)?;
    let Some(replayed) = replayed else { return Ok(Replay::Nothing) };
    if replayed.damaged {
        return Ok(Replay::Damaged);
    }
    redo::write_replay(&**device, &overlay).map_err(failed)?;
    // only now that all is in its place
    let overlay = Overlay::new(Arc::clone(device));
    replay::close(&Work::new(&view, &overlay, 0), &replayed).map_err(failed)?;
    redo::write_replay(&**device, &overlay).map_err(failed)?;
    Ok(Replay::Whole)
}

/// Frees what waits on the orphan list of the volume on `device`, which says of itself that it is clean, and checks
/// nothing else: what e2fsck does before it takes a volume at its word. How many there were; 0 too where that takes a
/// check. After a cut the list is still there, and the next run finds that it takes one.
///
/// # Errors
/// [`Refusal`] where there is no volume, and where the device fails.
pub fn release_orphans(device: &Arc<dyn BlockDevice>, options: &Options) -> Result<usize, Refusal> {
    if native::is_native(&**device) || !first_sight(&**device, options) {
        return Ok(0);
    }
    let counters = Counters::default();
    let scanner =
        Scanner { device, threads: 1, gap: options.gap, counters: &counters, cancelled: &|| false, advanced: &|_| () };
    let problems = Problems::default();
    let volume = open(&scanner, options, false, &problems)?;
    if problems.is_fatal() || problems.count(Code::OrphanPending) == 0 {
        return Ok(0);
    }
    let now = options.now.unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs()));
    let view = View { volume: &volume, scanner: &scanner, problems: &problems, walk: None };
    let overlay = Overlay::new(Arc::clone(device));
    let Some(count) = release::list(&Work::new(&view, &overlay, now)).map_err(failed)? else { return Ok(0) };
    redo::write(&**device, &overlay, None, None).map_err(failed)?;
    Ok(count)
}

fn failed(error: impl std::fmt::Display) -> Refusal {
    Refusal { sentence: error.to_string(), exit: exit::OPERATIONAL }
}

/// The outcome of an iteration.
enum Step {
    /// Nothing is left that can be repaired.
    Done,
    /// This fixer began, and perhaps others went on.
    Worked(Fixer),
    /// Something has to be done elsewhere before anything can be repaired.
    Stuck(Refusal),
}

struct Iterations<'a> {
    overlay: &'a Overlay,
    /// The volume before anything was repaired.
    found: Overlay,
    mode: Repair,
    problem_settings: &'a ProblemSettings,
    now: u64,
    /// Fixers that changed nothing.
    ineffective: BTreeSet<Fixer>,
    /// Fixers that led back to where the volume had been.
    oscillating: BTreeSet<Fixer>,
    /// The problems that were worked on.
    repaired: Vec<Problem>,
    /// The problem that a person has to decide.
    stopped: Option<Problem>,
    /// The volume after the journal was replayed and before anything else was repaired.
    replayed: Option<Overlay>,
    /// The superblock is a copy that the user named: it is put in the place of the primary.
    restore: bool,
    /// Inode tables that cannot be found are made anew, whatever is lost with them.
    empty_tables: bool,
    /// Files that share blocks on purpose are separated, and the feature that says so goes.
    unshare: bool,
    /// Blocks that no iteration saw in use.
    unclaimed: Unclaimed,
}

/// The blocks that no check of this repair saw in use.
#[derive(Default)]
enum Unclaimed {
    #[default]
    NothingChecked,
    Known(FreeBlocks),
    /// Not all checks went so far as to know, or they saw volumes of different geometries.
    Unknown,
}

impl Unclaimed {
    /// Takes out what a check found in use.
    fn exclude(&mut self, view: &View<'_>) {
        let geometry = &view.volume.geometry;
        if matches!(self, Self::NothingChecked) {
            *self = Self::Known(FreeBlocks::all(geometry));
        }
        let key = |g: &Geometry| (g.block_size, g.blocks, g.first_data_block, g.blocks_per_group, g.cluster_blocks);
        match (&mut *self, &view.walk) {
            (Self::Known(free), Some(walk)) if key(free.geometry()) == key(geometry) => {
                free.exclude(|group, n| walk.ctx.claims.word(group, n));
                free.take_back(&walk.sharing.conflicts);
            }
            _ => *self = Self::Unknown,
        }
    }

    /// Notes what an iteration allocated.
    fn hand_out(&mut self, clusters: Vec<u64>) {
        if let Self::Known(free) = self {
            free.hand_out(clusters);
        }
    }

    /// The free blocks, where all checks went to their end and saw the same volume.
    fn known(&self) -> Option<&FreeBlocks> {
        match self {
            Self::Known(free) => Some(free),
            Self::NothingChecked | Self::Unknown => None,
        }
    }
}

impl Iterations<'_> {
    /// Lets fixers work on what a check found.
    fn iterate(&mut self, view: &View<'_>) -> blockdev::Result<Step> {
        // what was read in part proves nothing
        if (view.scanner.cancelled)() {
            return Ok(Step::Done);
        }
        self.unclaimed.exclude(view);
        let problems = view.problems.to_vec();
        let obstacle = Self::copy_is_too_large(view, &problems).map(failed).or_else(|| unknown_journal(&problems));
        if let (Repair::All, Some(refusal)) = (self.mode, obstacle) {
            return Ok(Step::Stuck(refusal));
        }
        let work = Work::new(view, self.overlay, self.now);
        let step = self.work_on(&problems, &work);
        self.unclaimed.hand_out(work.handed_out());
        step
    }

    /// Lets fixers work on problems.
    fn work_on(&mut self, problems: &[Problem], work: &Work<'_>) -> blockdev::Result<Step> {
        let view = work.view;
        if std::mem::take(&mut self.restore) && self.mode == Repair::All {
            superblock::restore(work)?;
            return Ok(Step::Worked(Fixer::Superblock));
        }
        // what is known of the volume is not enough to change anything
        if problems.iter().any(|p| p.code.severity() == Severity::Fatal && p.code.fixer() == Fixer::None) {
            return Ok(Step::Done);
        }
        if let Some(grave) = problems.iter().find(|p| self.is_for_a_person(p))
            && self.mode == Repair::Safe
        {
            self.stopped = Some(grave.clone());
            return Ok(Step::Done);
        }
        journal::forget_error(work)?;
        let mut began = None;
        loop {
            let after = began.map(|(_, last)| last);
            let waiting = problems.iter().filter(|p| self.may_fix(p) && after.is_none_or(|last| p.code.fixer() > last));
            let Some(fixer) = waiting.map(|p| p.code.fixer()).min() else { break };
            let own: Vec<&Problem> = problems.iter().filter(|p| p.code.fixer() == fixer && self.may_fix(p)).collect();
            if self.mode == Repair::Safe
                && let Some(grave) =
                    own.iter().find(|p| self.problem_settings.preen(p.code) == Preen::Stops && !goes_anyway(p, &own))
            {
                self.stopped = Some((*grave).clone());
                return Ok(Step::Done);
            }
            // what is not right of the volume may be right in a copy
            let left = |p: &Problem| p.code.severity() >= Severity::Error && !self.may_fix(p);
            if fixer == Fixer::Copies && problems.iter().any(left) {
                break;
            }
            if fixer > Fixer::Replay && self.replayed.is_none() {
                self.replayed = Some(self.overlay.clone());
            }
            if fixer == Fixer::Replay
                && let Some(refusal) = self.replay(work)?
            {
                return Ok(Step::Stuck(refusal));
            }
            let obstacle = match fixer {
                Fixer::Descriptors if !self.empty_tables => descriptors::would_lose(work, &own),
                Fixer::Sharing if shares_on_purpose(view) => sharing::lacks_space(work),
                _ => None,
            };
            if let Some(sentence) = obstacle {
                return Ok(Step::Stuck(Refusal { exit: exit::LEFT, ..failed(sentence) }));
            }
            run_fixer(fixer, work, &own)?;
            self.repaired.extend(own.into_iter().cloned());
            began = Some((began.map_or(fixer, |(first, _)| first), fixer));
            if work.is_stale() {
                break;
            }
        }
        if began.is_none() && self.unshare && shares_on_purpose(view) && view.walk.is_some() {
            work.edit_superblock(|sb| {
                let without = sb.s_feature_ro_compat.get() & !RoCompat::SHARED_BLOCKS.bits();
                sb.s_feature_ro_compat = without.into();
            })?;
            return Ok(Step::Worked(Fixer::Superblock));
        }
        Ok(began.map_or(Step::Done, |(first, _)| Step::Worked(first)))
    }

    /// Why no copy of the superblock is put in the place of the primary: by the copy the volume ends behind the device.
    /// It is older than a resize, or the image was cut short, and the repair would destroy what there is.
    fn copy_is_too_large(view: &View<'_>, problems: &[Problem]) -> Option<String> {
        let beyond = problems.iter().find(|problem| problem.code == Code::BeyondDevice);
        let beyond = beyond.filter(|_| view.volume.is_copy)?;
        let blocks = view.volume.geometry.blocks;
        Some(format!(
            "the copy of the superblock says {blocks} blocks, but the device has {}: it is older than the last resize, or \
             the device was cut short; nothing was changed. Try another copy with -b, or -n",
            beyond.expected.unwrap_or_default()
        ))
    }

    /// Replays the journal; why not, where that cannot be done.
    fn replay(&mut self, work: &Work<'_>) -> blockdev::Result<Option<Refusal>> {
        match replay::repair(work)? {
            Replay::Whole => Ok(None),
            Replay::Damaged => {
                self.repaired.push(Problem::new(Code::JournalDamaged));
                Ok(None)
            }
            Replay::Nothing => {
                let sentence = "the journal holds fast commits, which only a mount can replay: mount the volume once, then \
                                check it again";
                Ok(Some(Refusal { exit: exit::LEFT | exit::OPERATIONAL, ..failed(sentence) }))
            }
        }
    }

    /// Whether `-p` goes no further: that another table of groups is the right one is for a person to say, and so is
    /// which is newer, the volume or a log that it does not ask for, or that cannot be read.
    fn is_for_a_person(&self, problem: &Problem) -> bool {
        match problem.code {
            Code::GroupDescriptorsTryBackup | Code::JournalFeatureUnknown | Code::JournalReadOnlyFeatureUnknown => true,
            code => code == Code::JournalRecoveryFlagMissing && self.problem_settings.preen(code) == Preen::Stops,
        }
    }

    /// Whether the problem is one to work on now.
    fn may_fix(&self, problem: &Problem) -> bool {
        let code = problem.code;
        let forbidden = match self.mode {
            Repair::No => true,
            Repair::Safe => self.problem_settings.preen_leaves(code),
            Repair::All => false,
        };
        !forbidden
            && !self.problem_settings.never(code)
            && code.fixer() != Fixer::None
            && !self.ineffective.contains(&code.fixer())
            && !self.oscillating.contains(&code.fixer())
    }

    /// Writes the device and says what became of the volume.
    fn conclude(self, mut report: Report, target: &mut Target<'_>) -> Result<Report, Refusal> {
        let finished = target.was_broken_off;
        // a volume of which only a copy of the superblock is usable cannot be mounted, whatever else is right with it
        let from_copy = |p: &Reported| p.code.is_read_from_a_copy();
        // nor is one with a log that a person has to decide on
        let undecided = self.stopped.as_ref().is_some_and(|p| p.code == Code::JournalRecoveryFlagMissing);
        if self.mode == Repair::Safe && (undecided || report.problems.iter().any(from_copy)) {
            (report.clean, report.exit) = (false, report.exit | exit::LEFT);
        }
        let left = !report.clean;
        if report.cut_short() {
            // nothing is known of most of the volume: it stays as it is, and so does what its superblock says of it
            return Ok(report);
        }
        let allowed = |p: &Reported| p.severity < Severity::Error || self.problem_settings.never(p.code);
        let stopped = self.mode == Repair::Safe && left && !(report.errors > 0 && report.problems.iter().all(allowed));
        let repaired = if stopped { Vec::new() } else { self.repaired };
        let before = self.found.fingerprint();
        let final_state = if stopped { self.replayed.as_ref().unwrap_or(&self.found) } else { self.overlay };
        let was_replayed = self.replayed.as_ref().is_some_and(|after| after.fingerprint() != before);
        if stopped {
            report.stopped_at = self.stopped.as_ref().map(|problem| Reported::from(problem).text);
            // else the next run would take the volume at its word
            let marked = superblock::mark_errors(final_state).map_err(failed)?;
            if !marked && !was_replayed {
                return Ok(report);
            }
        }
        let mut made_valid = false;
        // what was broken off had the last word, and its undo file knows the volume as that left it
        let as_finished =
            finished && repaired.is_empty() && superblock::is_marked(final_state, !left).map_err(failed)?;
        if self.mode != Repair::No && !stopped && !as_finished {
            made_valid = superblock::mark(final_state, self.now, !left).map_err(failed)?;
            if let Some(free) = self.unclaimed.known() {
                copies::refresh(final_state, &*target.finished, free.geometry()).map_err(failed)?;
            }
        }
        // the mark alone needs no log, and what is damaged may lead to blocks that seem free
        let only_marks = stopped && !was_replayed;
        let log_space = self.unclaimed.known().filter(|_| !only_marks);
        target.write(final_state, log_space).map_err(failed)?;

        let still: HashSet<String> = report.problems.iter().map(|p| p.text.clone()).collect();
        let mut listed = HashSet::new();
        let mut all = Vec::new();
        for problem in &repaired {
            let reported = Reported::from(problem);
            let fixed = !still.contains(&reported.text);
            if fixed && listed.insert(reported.text.clone()) {
                if reported.severity >= Severity::Error {
                    report.errors = report.errors.saturating_add(1);
                } else {
                    report.advice = report.advice.saturating_add(1);
                }
                all.push(Reported { fixed, ..reported });
            }
        }
        if finished {
            all.push(Reported { fixed: true, ..Reported::from(&Problem::new(Code::RepairUnfinished)) });
        }
        let changed = !all.is_empty() || made_valid;
        let codes: Vec<Code> = all.iter().map(|problem| problem.code).collect();
        all.append(&mut report.problems);
        all.sort_by_key(|problem| problem.phase);
        report.problems = all;
        if !left && (made_valid || self.problem_settings.any_fix(&codes)) {
            report.exit = exit::REPAIRED;
        }
        report.repaired = changed;
        Ok(report)
    }
}

/// Why a volume is not repaired whose journal has features that are not known: it may hold what was committed and is not
/// in its place, and a program that knows them would replay that over the repair. As e2fsck, which aborts with -y too.
fn unknown_journal(problems: &[Problem]) -> Option<Refusal> {
    let (field, bits) = problems.iter().find_map(|problem| match problem.code {
        Code::JournalFeatureUnknown => Some(("s_feature_incompat", problem.found)),
        Code::JournalReadOnlyFeatureUnknown => Some(("s_feature_ro_compat", problem.found)),
        _ => None,
    })?;
    let sentence = format!(
        "the journal has a feature that this version does not know ({field} {:#x}) and may hold transactions that are \
         not in their place; nothing was changed: check the volume with a version that knows it, or with -n",
        bits.unwrap_or_default()
    );
    Some(Refusal { exit: exit::LEFT | exit::OPERATIONAL, ..failed(sentence) })
}

/// Whether the volume says that its files share blocks.
fn shares_on_purpose(view: &View<'_>) -> bool {
    view.volume.features.ro_compat.contains(RoCompat::SHARED_BLOCKS)
}

/// Whether an inode without a name is cleared as an empty one before its name is asked about.
fn goes_anyway(problem: &Problem, all: &[&Problem]) -> bool {
    let empty = |p: &&Problem| p.code == Code::InodeUnattachedEmpty && p.inode == problem.inode;
    problem.code == Code::InodeUnattached && all.iter().any(empty)
}

fn run_fixer(fixer: Fixer, work: &Work<'_>, problems: &[&Problem]) -> blockdev::Result<()> {
    match fixer {
        // made by itself, as nothing may follow where it fails
        Fixer::Replay => Ok(()),
        Fixer::Superblock => superblock::repair(work, problems),
        Fixer::Descriptors => descriptors::repair(work, problems),
        Fixer::Journal => journal::repair(work, problems),
        Fixer::SystemInodes => system_inodes::repair(work, problems),
        Fixer::Orphans => orphans::repair(work),
        Fixer::Inodes => inodes::repair(work, problems),
        Fixer::Sharing => sharing::repair(work),
        Fixer::Directories => directories::repair(work, problems),
        Fixer::Connections => connections::connect(work, problems),
        Fixer::Links => connections::count(work, problems),
        Fixer::Bitmaps => bitmaps::repair(work),
        Fixer::Quota => quota::repair(work, problems),
        Fixer::Copies => copies::repair(work, problems),
        Fixer::None => Ok(()),
    }
}
