//! Repair: fixes the problems that the checker finds, in memory first, and then on the device so that an interruption
//! at any write is harmless.
//!
//! 1. An iteration checks the volume in an [`Overlay`] and runs the first [`Fixer`] with a problem to repair, and those
//!    after it as long as the structures that they depend on have not changed. Fixers write only to the overlay.
//! 2. Iterations follow until a check finds nothing that can be repaired. So a second run is clean by construction, and
//!    no fixer has to know the consequences of its changes: the next check finds them.
//! 3. The loop ends: a fixer that changed nothing does not run again before another has changed something, and one that
//!    restored an earlier state never runs again. The remaining problems are reported, and the exit status is 4.
//! 4. Only then is the device written, through the redo log ([`redo`]). With [`Repair::Safe`] a problem that the
//!    administrator must decide stops the repair, and only the replay of the journal is written.
//!
//! | module | repairs |
//! | --- | --- |
//! | `work` | common functions: blocks, inodes, free space |
//! | `stopping` | none: where `-p` stops, and what it reports then |
//! | `replay`, `journal`, `orphans`, `release`, `system_inodes` | pending work of the volume, and its system inodes |
//! | `superblock`, `descriptors`, `copies`, `bitmaps`, `space_maps`, `quota` | counts and locations |
//! | `convert` | not a repair: converts block bitmaps into space maps, and back |
//! | `inodes`, `maps`, `attributes`, `inline` | inodes |
//! | `sharing` | multiply-claimed blocks |
//! | `directories`, `entries`, `rebuild`, `renames`, `connections` | directories, their entries and their connections |

mod attributes;
mod bitmaps;
mod clusters;
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
mod stopping;
mod superblock;
mod system_inodes;
mod values;
mod work;

use crate::checker::Checker;
use crate::native;
use crate::options::{Options, Progress, Refusal, Repair};
use crate::phases::superblock::inode_tables::Seeker;
use crate::phases::superblock::{open, primary_is_usable};
use crate::problem::{Limits, Problem, Problems};
use crate::problem_settings::ProblemSettings;
use crate::redo::{self, Finished, FreeBlocks, InterruptedWrite};
use crate::render::sentence;
use crate::report::{ChosenSuperblock, Report, Reported, exit};
use crate::scan::{Counters, Scanner};
use crate::table::{Code, Fixer, Severity};
use crate::view::View;
use blockdev::{BlockDevice, Overlay};
pub use convert::{FreeSpaceForm, convert};
use format::InodeNo;
use format::feature::RoCompat;
use format::superblock::Geometry;
use std::collections::{BTreeSet, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use work::Work;

/// Maximum number of iterations: each one repairs all problems of a kind, so that few volumes need ten.
const ITERATIONS: u32 = 200;
/// Number of files from which on `-y` takes a table that matches hardly any of them for one at a wrong location, although
/// a copy of the descriptors has the same: with fewer, one damaged block of the table explains it.
const CONFIRMED_FILES: u32 = 8;
/// Maximum number of problems that are repaired in one iteration: the others are repaired in the next. Larger limits of
/// the caller replace these, smaller ones do not.
const LIMITS: Limits = Limits { total: 400_000, per_code: 200_000 };

/// Checks the volume on `device` and repairs what [`Options::repair`] allows. `undo` names a file that receives the old
/// content of all changed blocks before the first of them is written; it must not exist.
///
/// The report lists the problems found over all iterations, and which of them were repaired. Its exit status is 0 where
/// nothing had to be repaired, 1 where all was repaired, 4 where errors remain, or 32 where the check was cancelled:
/// nothing is changed then.
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
        // a change of superblocks cannot be undone
        let options = &Options { repair: if undo.is_some() { Repair::No } else { options.repair }, ..options.clone() };
        return native::repair(Checker { name, device: &**device, options, progress });
    }
    let chosen = options.superblock.filter(|_| options.repair == Repair::Safe);
    if let Some(block) = chosen.filter(|_| primary_is_usable(&**device)) {
        // the copy is not up to date, and the volume would be marked as having errors because of it
        return Err(failed(format!(
            "the primary superblock is usable: omit -b, or use -y with -b {block} to replace it; nothing was changed"
        )));
    }
    let mut target = Target::open(device, undo).map_err(failed)?;
    let mut outcome = repair_target(name, &mut target, options, progress);
    // with an undo file it is finished with the further writes, which may have failed, or else now
    let completed = target.was_interrupted && (outcome.is_ok() || undo.is_none() || target.interrupted.is_some());
    target.finish().map_err(failed)?;
    if completed {
        outcome = after_completion(outcome, &options.problem_settings);
    }
    if let (Ok(report), Some(block)) = (&mut outcome, chosen) {
        report.chosen = Some(ChosenSuperblock { block, primary_is_usable: false });
    }
    outcome
}

/// The outcome of a repair before which an interrupted one was completed.
fn after_completion(outcome: Result<Report, Refusal>, settings: &ProblemSettings) -> Result<Report, Refusal> {
    let mut report = outcome.map_err(|refusal| Refusal {
        sentence: format!("an interrupted repair was completed; after that: {}", refusal.sentence),
        exit: refusal.exit,
    })?;
    let mut completed = Reported::from(&Problem::new(Code::RepairUnfinished));
    completed.set_fixed();
    report.problems.insert(0, completed);
    report.errors = report.errors.saturating_add(1);
    report.repaired = true;
    if report.exit == exit::CLEAN && settings.any_fix(&[Code::RepairUnfinished]) {
        report.exit = exit::REPAIRED;
    }
    Ok(report)
}

/// The device that is repaired.
struct Target<'a> {
    device: &'a Arc<dyn BlockDevice>,
    /// The state of the device after an interrupted write is finished.
    finished: Arc<dyn BlockDevice>,
    /// An interrupted write that is not finished yet: with an undo file, which has to cover both, it is finished only
    /// when all further writes are known.
    interrupted: Option<Arc<InterruptedWrite>>,
    undo: Option<&'a Path>,
    /// Whether an earlier write was interrupted.
    was_interrupted: bool,
}

impl<'a> Target<'a> {
    fn open(device: &'a Arc<dyn BlockDevice>, undo: Option<&'a Path>) -> blockdev::Result<Self> {
        let interrupted = if undo.is_some() { redo::interrupted(&**device)?.map(Arc::new) } else { None };
        let was_interrupted = interrupted.is_some() || redo::finish(&**device, None)?;
        let finished: Arc<dyn BlockDevice> = match &interrupted {
            Some(log) => Arc::new(Finished { device: Arc::clone(device), log: Arc::clone(log) }),
            None => Arc::clone(device),
        };
        Ok(Self { device, finished, interrupted, undo, was_interrupted })
    }

    /// Writes the changes in `state`, an overlay of `finished`; before them those of a replayed journal, in two steps,
    /// so that nothing else is written while there is a journal to replay.
    fn write(
        &mut self,
        journal: Option<&[Overlay; 2]>,
        state: &Overlay,
        free: Option<&FreeBlocks>,
    ) -> blockdev::Result<()> {
        let interrupted = self.interrupted.take();
        let (steps, state) = match journal {
            Some([copied, closed]) => (vec![copied.clone(), closed.over(copied)?], &state.over(closed)?),
            None => (Vec::new(), state),
        };
        let before = redo::Before { interrupted: interrupted.as_deref(), finished: &*self.finished, steps };
        redo::write_after(&**self.device, &before, state, free, self.undo)
    }

    /// Finishes an interrupted write, where nothing else was written.
    fn finish(&mut self) -> blockdev::Result<()> {
        match self.interrupted.take() {
            Some(_) => redo::finish(&**self.device, self.undo).map(|_| ()),
            None => Ok(()),
        }
    }
}

/// As [`repair`], but an interrupted write may remain to be finished.
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
        journal: None,
        restore: options.superblock.is_some(),
        empty_tables: options.empty_tables,
        unshare: options.unshare_blocks && options.repair == Repair::All,
        unclaimed: Unclaimed::default(),
    };
    let Limits { total, per_code } = options.limits;
    let limits = Limits { total: total.max(LIMITS.total), per_code: per_code.max(LIMITS.per_code) };
    let caller = options;
    let mut options = Options { limits, ..options.clone() };
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
            // problems that could not be repaired before may be repairable now
            iterations.ineffective.clear();
            if !seen.insert(after) {
                iterations.oscillating.insert(fixer);
            }
        }
    }
    let mut report = report.ok_or_else(|| failed("nothing was checked"))?;
    let stopped = iterations.stops(&report);
    if stopped {
        report =
            iterations.describe_remaining(report, Checker { name, device: &overlay, options: caller, progress })?;
        if report.exit & exit::CANCELLED != 0 {
            return Ok(report);
        }
    }
    iterations.conclude(report, target, stopped)
}

/// Whether the structures that are read without a scan are intact: superblock, group descriptors, journal superblock
/// and orphans. Called before a volume is trusted to be clean.
#[must_use]
pub fn first_sight(device: &dyn BlockDevice, options: &Options, progress: &dyn Progress) -> bool {
    let (counters, cancelled) = (Counters::default(), || progress.cancelled());
    let scanner =
        Scanner { device, threads: 1, gap: options.gap, counters: &counters, cancelled: &cancelled, advanced: &|_| () };
    let problems = Problems::default();
    let opened = open(&scanner, options, false, &problems);
    // e2fsck does not compare the copies, and a problem without a fix is no reason for a full check unless it prevents
    // a mount
    let matters = |p: &Problem| {
        let unusable =
            matches!(p.code, Code::InodeTableElsewhere | Code::JournalInodeElsewhere | Code::JournalInodeRestorable);
        let asked = p.code.number() < 0x0E_0000 || unusable;
        // as no kernel mounts the volume, its state is not that of a clean one
        let rejected = p.code.severity() == Severity::Unmountable
            || p.code.is_read_from_a_copy()
            || matches!(p.code, Code::FirstMetaGroupMisleads | Code::SuperblockFieldMisleads);
        // e2fsck checks the fields of the superblock before it checks whether the volume is clean
        let hopeless = p.code.fixer() == Fixer::None && p.code.severity().is_error();
        hopeless || rejected || asked && p.code.fixer() != Fixer::None && options.problem_settings.is_fix(p.code)
    };
    opened.is_ok() && !problems.to_vec().iter().any(matters)
}

/// The outcome for a journal that was to be replayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replay {
    /// Nothing to replay.
    Nothing,
    /// All committed blocks were copied to their home locations.
    Whole,
    /// Not all of them were: the log is damaged before its end.
    Damaged,
}

/// Replays the journal of the volume on `device`, where that is needed, and checks nothing: `-p` does so before it
/// trusts a clean volume. After an interruption the journal can be replayed again. A damaged one is left to a full
/// [`repair`], and nothing is written.
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
    let work = Work::new(&view, &overlay, 0);
    let replayed = work.with_fixed_blocks(|| replay::copy(&work)).map_err(failed)?;
    let Some(replayed) = replayed else { return Ok(Replay::Nothing) };
    if replayed.damaged {
        return Ok(Replay::Damaged);
    }
    // the journal is emptied only after all blocks are in their home locations
    let copied = overlay.clone();
    replay::close(&Work::new(&view, &overlay, 0), &replayed).map_err(failed)?;
    let steps = vec![copied.clone(), overlay.over(&copied).map_err(failed)?];
    let before = redo::Before { interrupted: None, finished: &**device, steps };
    let nothing_more = overlay.over(&overlay).map_err(failed)?;
    redo::write_after(&**device, &before, &nothing_more, None, None).map_err(failed)?;
    Ok(Replay::Whole)
}

/// Frees the inodes on the orphan list of the volume on `device`, which is marked clean, and checks nothing else, as
/// e2fsck does before it trusts a clean volume. Returns their number; 0 also where a check is required. After an
/// interruption the list is still there, and the next run finds that a check is required.
///
/// # Errors
/// [`Refusal`] where there is no volume, and where the device fails.
pub fn release_orphans(device: &Arc<dyn BlockDevice>, options: &Options) -> Result<usize, Refusal> {
    if !crate::Capabilities::of(&**device).clean_mark || !first_sight(&**device, options, &()) {
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
    /// This fixer ran, and perhaps others after it.
    Worked(Fixer),
    /// Nothing can be repaired before the action in the refusal.
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
    /// Fixers that restored an earlier state of the volume.
    oscillating: BTreeSet<Fixer>,
    /// The problems that fixers handled.
    repaired: Vec<Problem>,
    /// The problem that the administrator must decide.
    stopped: Option<Problem>,
    /// The volume after the journal was replayed and before anything else was repaired.
    replayed: Option<Overlay>,
    /// The volume with all blocks of the journal in their home locations, and then with the journal empty.
    journal: Option<[Overlay; 2]>,
    /// Whether the superblock is a copy that the user chose, which replaces the primary.
    restore: bool,
    /// Whether inode tables that cannot be found are created empty, whatever is lost.
    empty_tables: bool,
    /// Whether blocks shared on purpose are cloned and the feature is cleared.
    unshare: bool,
    /// Blocks that were free in all iterations.
    unclaimed: Unclaimed,
}

/// The blocks that were free in all checks of this repair.
#[derive(Default)]
enum Unclaimed {
    #[default]
    NothingChecked,
    Known(FreeBlocks),
    /// Not all checks determined them, or the geometry differed between checks.
    Unknown,
}

impl Unclaimed {
    /// Excludes the blocks that a check found in use.
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

    /// Records the clusters that an iteration allocated.
    fn record_allocations(&mut self, work: &Work<'_>) {
        if let Self::Known(free) = self {
            free.hand_out(work.handed_out());
            free.allocate(work.allocated());
        }
    }

    /// The free blocks, where all checks were completed with the same geometry.
    fn known(&self) -> Option<&FreeBlocks> {
        match self {
            Self::Known(free) => Some(free),
            Self::NothingChecked | Self::Unknown => None,
        }
    }
}

impl Iterations<'_> {
    /// Runs fixers on the problems that a check found.
    fn iterate(&mut self, view: &View<'_>) -> blockdev::Result<Step> {
        // an incomplete check proves nothing
        if (view.scanner.cancelled)() {
            return Ok(Step::Done);
        }
        self.unclaimed.exclude(view);
        let problems = view.problems.to_vec();
        let too_large = Self::copy_is_too_large(view, &problems).or_else(|| too_large_without_root(view, &problems));
        let obstacle = too_large.map(failed).or_else(|| unknown_journal(&problems));
        if let (Repair::All, Some(refusal)) = (self.mode, obstacle) {
            return Ok(Step::Stuck(refusal));
        }
        let work = Work::new(view, self.overlay, self.now);
        let in_use = maps::beneath_shared(&work);
        let damaged = self.damaged_maps(&problems);
        let work = work.with_used(in_use).with_damaged_maps(damaged);
        let step = self.work_on(&problems, &work);
        self.unclaimed.record_allocations(&work);
        step
    }

    /// Inodes with an error in a map, a size or a count, found by this check or repaired before.
    fn damaged_maps(&self, problems: &[Problem]) -> HashSet<InodeNo> {
        if problems.iter().all(|problem| problem.code.fixer() != Fixer::Sharing) {
            return HashSet::new();
        }
        let errors = problems.iter().chain(&self.repaired);
        let errors = errors.filter(|p| p.code.fixer() == Fixer::Inodes && p.code.severity() >= Severity::Error);
        errors.filter_map(|problem| problem.inode).collect()
    }

    /// Lets fixers work on problems.
    fn work_on(&mut self, problems: &[Problem], work: &Work<'_>) -> blockdev::Result<Step> {
        let view = work.view;
        if std::mem::take(&mut self.restore) && self.mode == Repair::All {
            superblock::restore(work)?;
            return Ok(Step::Worked(Fixer::Superblock));
        }
        // too little of the volume is known to change anything
        if problems.iter().any(|p| p.code.severity() == Severity::Fatal && p.code.fixer() == Fixer::None) {
            return Ok(Step::Done);
        }
        let stopping = problems.iter().find(|p| self.needs_decision(p));
        if let Some(stopping) = stopping.or_else(|| self.wrong_resize_inode(problems))
            && self.mode == Repair::Safe
        {
            self.stopped = Some(stopping.clone());
            return Ok(Step::Done);
        }
        if let Some(outcome) = self.without_table(problems, work) {
            return Ok(outcome);
        }
        journal::forget_error(work)?;
        let mut began = None;
        loop {
            let after = began.map(|(_, last)| last);
            let waiting = problems.iter().filter(|p| self.may_fix(p) && after.is_none_or(|last| p.code.fixer() > last));
            let Some(fixer) = waiting.map(|p| p.code.fixer()).min() else { break };
            let own: Vec<&Problem> = problems.iter().filter(|p| p.code.fixer() == fixer && self.may_fix(p)).collect();
            if self.mode == Repair::Safe
                && let Some(stopping) = self.stopping_among(&own)
            {
                self.stopped = Some(stopping.clone());
                return Ok(Step::Done);
            }
            // the part that is wrong in the volume may be right in a copy
            if fixer == Fixer::Copies && problems.iter().any(preserves_copies) {
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
                Fixer::Sharing if has_shared_blocks(view) => sharing::lacks_space(work),
                _ => None,
            };
            if let Some(sentence) = obstacle {
                return Ok(Step::Stuck(Refusal { exit: exit::LEFT, ..failed(sentence) }));
            }
            run_fixer(fixer, work, &own)?;
            self.repaired.extend(inodes::trusted(own).into_iter().cloned());
            self.repaired.extend(work.take_reported());
            began = Some((began.map_or(fixer, |(first, _)| first), fixer));
            if work.is_stale() {
                break;
            }
        }
        if began.is_none() && self.unshare && has_shared_blocks(view) && view.walk.is_some() {
            work.edit_superblock(|sb| {
                let without = sb.s_feature_ro_compat.get() & !RoCompat::SHARED_BLOCKS.bits();
                sb.s_feature_ro_compat = without.into();
            })?;
            return Ok(Step::Worked(Fixer::Superblock));
        }
        Ok(began.map_or(Step::Done, |(first, _)| Step::Worked(first)))
    }

    /// The outcome where an inode table cannot be found, or its location is unclear: nothing is repaired.
    fn without_table(&mut self, problems: &[Problem], work: &Work<'_>) -> Option<Step> {
        let replays = problems.iter().any(|p| p.code.fixer() == Fixer::Replay && self.may_fix(p));
        // these fixers clear inodes that the bitmap still marks
        let cleared = self.repaired.iter().any(|p| (Fixer::Inodes..Fixer::Copies).contains(&p.code.fixer()));
        if self.mode == Repair::No || replays {
            return None;
        }
        // what was cleared before may be in the table at the other location; one that was moved is not searched for
        let is_moved = |group| self.repaired.iter().any(|p| p.group == group && descriptors::of_table(p.code));
        let is_late = |p: &&Problem| p.code == Code::InodeTableElsewhere && (cleared || is_moved(p.group));
        if let Some(late) = problems.iter().find(is_late) {
            let sentence = format!("{} This shows only after other repairs: nothing was changed", sentence(late));
            return Some(Step::Stuck(Refusal { exit: exit::LEFT, ..failed(sentence) }));
        }
        if cleared || self.empty_tables && self.mode == Repair::All {
            return None;
        }
        let confirmed = if self.mode == Repair::Safe { 1 } else { CONFIRMED_FILES };
        let unclear = problems.iter().find(|p| p.code == Code::InodeTableUnclear).map(|problem| {
            (problem, format!("{} Nothing was changed, as a repair could lose files", sentence(problem)))
        });
        let (problem, sentence) = unclear.or_else(|| descriptors::lost_table(work, problems, confirmed))?;
        if self.mode == Repair::Safe {
            self.stopped = Some(problem.clone());
            return Some(Step::Done);
        }
        Some(Step::Stuck(Refusal { exit: exit::LEFT, ..failed(sentence) }))
    }

    /// The reason why a copy of the superblock does not replace the primary: by the copy the volume is larger than the
    /// device. The copy is older than a resize, or the image was truncated, and the repair would destroy the volume.
    fn copy_is_too_large(view: &View<'_>, problems: &[Problem]) -> Option<String> {
        let beyond = problems.iter().find(|problem| problem.code == Code::BeyondDevice);
        let beyond = beyond.filter(|_| view.volume.is_copy)?;
        let blocks = view.volume.geometry.blocks;
        Some(format!(
            "the copy of the superblock says {blocks} blocks, but the device has {}: it is older than the last resize, or \
             the device was truncated; nothing was changed. Try another copy with -b, or -n",
            beyond.expected.unwrap_or_default()
        ))
    }

    /// Replays the journal; returns a refusal where that is impossible.
    fn replay(&mut self, work: &Work<'_>) -> blockdev::Result<Option<Refusal>> {
        let Some(replayed) = work.with_fixed_blocks(|| replay::copy(work))? else {
            let sentence = "the journal contains fast commits, which only a mount can replay: mount the volume once, \
                            then check it again";
            return Ok(Some(Refusal { exit: exit::LEFT | exit::OPERATIONAL, ..failed(sentence) }));
        };
        let copied = self.overlay.clone();
        replay::close(work, &replayed)?;
        self.journal = Some([copied, self.overlay.clone()]);
        // written even if a later problem stops `-p`, unless the journal itself had to be repaired first
        if self.replayed.is_none() {
            self.replayed = Some(self.overlay.clone());
        }
        if replayed.damaged {
            self.repaired.push(Problem::new(Code::JournalDamaged));
        }
        Ok(None)
    }

    /// The refusal to write a repair after which the primary superblock or descriptors are still unusable, or a
    /// location in them is impossible: all other repairs depend on these.
    fn unknown_layout(&self, report: &Report) -> Option<Refusal> {
        let remains = |p: &&Reported| {
            !p.fixed && (p.code.is_read_from_a_copy() || p.code.is_misplaced()) && !self.problem_settings.never(p.code)
        };
        let problem = report.problems.iter().find(remains).filter(|_| self.mode == Repair::All)?;
        let sentence = format!(
            "{} It could not be repaired, and all other repairs depend on it: nothing was changed; try a copy of the \
             superblock with -b, or -n",
            problem.text
        );
        Some(Refusal { exit: exit::LEFT, ..failed(sentence) })
    }

    /// Whether the problem may be repaired now.
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

    /// Writes the changes to the device and completes the report; `stopped` where they are discarded.
    fn conclude(mut self, mut report: Report, target: &mut Target<'_>, stopped: bool) -> Result<Report, Refusal> {
        let finished = target.was_interrupted;
        let left = self.leaves_errors(&report);
        if left && self.mode != Repair::No {
            (report.clean, report.exit) = (false, report.exit | exit::LEFT);
        }
        if report.cut_short() {
            // most of the volume was not read: neither it nor the state in its superblock is changed
            return Ok(report);
        }
        if let Some(refusal) = self.unknown_layout(&report) {
            return Err(refusal);
        }
        let repaired = self.take_repaired(stopped);
        let before = self.found.fingerprint();
        let final_state = if stopped { self.remaining() } else { self.overlay };
        let was_replayed = self.replayed.as_ref().is_some_and(|after| after.fingerprint() != before);
        if stopped {
            report.stopped_at = self.stopped_at(&report);
            // otherwise the next run would trust the clean flag
            let marked = superblock::mark_errors(final_state).map_err(failed)?;
            if !marked && !was_replayed {
                return Ok(report);
            }
        }
        let mut made_valid = false;
        // the interrupted write came last, and its undo file records the volume after it
        let as_finished =
            finished && repaired.is_empty() && superblock::is_marked(final_state, !left).map_err(failed)?;
        if self.mode != Repair::No && !stopped && !as_finished {
            made_valid = superblock::mark(final_state, self.now, !left).map_err(failed)?;
            if let Some(free) = self.unclaimed.known().filter(|_| !left) {
                copies::refresh(final_state, &*target.finished, free.geometry()).map_err(failed)?;
            }
        }
        // the flag alone needs no log, and with damage present the blocks that seem free may be in use
        let only_marks = stopped && !was_replayed;
        let log_space = self.unclaimed.known().filter(|_| !only_marks);
        let journal = self.journal.as_ref().filter(|_| !stopped || was_replayed);
        target.write(journal, final_state, log_space).map_err(failed)?;

        let still: HashSet<String> = report.problems.iter().map(|p| p.text.clone()).collect();
        let (mut listed, mut separated) = (HashSet::new(), HashSet::new());
        let cleared: HashSet<_> =
            repaired.iter().filter(|p| p.code == Code::InodeUnattachedEmpty).map(|p| p.inode).collect();
        let mut all = Vec::new();
        for problem in &repaired {
            let mut reported = Reported::from(problem);
            let fixed = !still.contains(&reported.text);
            if problem.code == Code::InodeUnattached && cleared.contains(&problem.inode) {
                continue;
            }
            // cloning a shared node of a block map uncovers the blocks beneath it, which were counted with it
            let of_sharing = problem.code.fixer() == Fixer::Sharing;
            let again = fixed && of_sharing && !separated.insert((problem.code, problem.inode));
            if fixed && !again && listed.insert(reported.text.clone()) {
                if reported.severity.is_error() {
                    report.errors = report.errors.saturating_add(1);
                } else {
                    report.advice = report.advice.saturating_add(1);
                }
                reported.set_fixed();
                all.push(reported);
            }
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

/// The refusal to repair a volume whose journal has unknown features, or a superblock of an unknown type: it may contain committed transactions that are
/// not in their home locations, and a program with these features would replay them over the repair. As e2fsck, which
/// aborts with -y too.
fn unknown_journal(problems: &[Problem]) -> Option<Refusal> {
    let (what, field, value) = problems.iter().find_map(|problem| match problem.code {
        Code::JournalTypeUnknown => Some(("a superblock type", "h_blocktype", problem.found)),
        Code::JournalFeatureUnknown => Some(("a feature", "s_feature_incompat", problem.found)),
        Code::JournalReadOnlyFeatureUnknown => Some(("a feature", "s_feature_ro_compat", problem.found)),
        _ => None,
    })?;
    let sentence = format!(
        "the journal has {what} that this version does not support ({field} {:#x}) and may contain transactions that \
         were not replayed; nothing was changed: check the volume with a version that supports it, or with -n",
        value.unwrap_or_default()
    );
    Some(Refusal { exit: exit::LEFT | exit::OPERATIONAL, ..failed(sentence) })
}

/// The reason why nothing is repaired on a volume that extends beyond its device and has no root: its block size or
/// block count is wrong, so that all its structures are searched for in wrong places.
fn too_large_without_root(view: &View<'_>, problems: &[Problem]) -> Option<String> {
    let beyond = problems.iter().find(|problem| problem.code == Code::BeyondDevice)?;
    let View { volume, scanner, .. } = *view;
    let seeker = Seeker { scanner, geometry: &volume.geometry, features: &volume.features };
    (!seeker.finds_root(&volume.groups)).then(|| {
        format!(
            "the superblock says {} blocks of {} bytes, but the device has {} of that size, and the root directory is \
             not where they imply: the block size or the number of blocks is wrong, or the device was truncated; \
             nothing was changed. Try a copy of the superblock with -b, or -n",
            volume.geometry.blocks,
            volume.geometry.block_size,
            beyond.expected.unwrap_or_default()
        )
    })
}

/// Whether the copies of superblock and descriptors are not overwritten in the presence of this problem: until no error
/// remains, a copy may be the only record of the volume.
fn preserves_copies(problem: &Problem) -> bool {
    let code = problem.code;
    code.fixer() != Fixer::Copies && code.severity().is_error()
}

/// Whether the volume has the feature `shared_blocks`.
fn has_shared_blocks(view: &View<'_>) -> bool {
    view.volume.features.ro_compat.contains(RoCompat::SHARED_BLOCKS)
}

fn run_fixer(fixer: Fixer, work: &Work<'_>, problems: &[&Problem]) -> blockdev::Result<()> {
    match fixer {
        // run separately, as no other fixer may run after it fails
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
