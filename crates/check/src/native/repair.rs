//! The repairs of a native volume. Metadata has no second copy within a generation, so only four are possible.
//!
//! 1. A volume that was in use without consistency and was not unmounted, but is consistent, is marked clean.
//! 2. Where the newest generation cannot be read (its map, or a block that every mount reads) and the one before is
//!    intact, the volume is rolled back to that one, and the report says so: all later changes are lost. Its blocks may
//!    have been overwritten, so that is seldom possible. Other errors in the newest generation are not repaired.
//! 3. A damaged superblock whose content can be reconstructed is rewritten, if its generation is intact. The number of
//!    snapshots in the active one is corrected whatever other errors there are.
//! 4. Where one of the two superblocks is damaged otherwise, the active one is written over it, if it leads to a map.
//!    Where the other one is valid but has another length or UUID, and the active one has errors of its own, the other
//!    is never overwritten: the volume is rolled back to its generation if that is intact.
//!
//! Each is one write of a superblock, to the inactive block.

use super::copies;
use super::layer::{SIZE, predicate};
use crate::checker::Checker;
use crate::options::{Refusal, Repair};
use crate::problem::Problem;
use crate::report::{Remedy, Report, Reported, exit};
use crate::table::Code;
use blockdev::BlockDevice;
use format::native::superblock::{COPIES, LAST_GENERATION, NativeSuperblock};

/// Checks a native volume and determines the possible repair.
///
/// # Errors
/// [`Refusal`] where no generation can be checked.
pub(crate) fn check(checker: Checker<'_>) -> Result<Report, Refusal> {
    let outcome = checker.check_native();
    if is_settled(&outcome) {
        return outcome;
    }
    let planned = plan(checker, &outcome);
    with_remedy(checker, outcome, planned.as_ref())
}

/// Checks a native volume and repairs what [`Options::repair`](crate::Options::repair) allows.
///
/// # Errors
/// [`Refusal`] where no generation can be checked, and where the device fails.
pub(crate) fn repair(checker: Checker<'_>) -> Result<Report, Refusal> {
    let Checker { device, options, .. } = checker;
    let outcome = checker.check_native();
    if is_settled(&outcome) {
        return outcome;
    }
    let planned = plan(checker, &outcome);
    match planned {
        Some(plan)
            if options.repair == Repair::All || options.repair == Repair::Safe && plan.remedy == Remedy::Safe =>
        {
            write(device, plan.at, &plan.superblock)?;
            Ok(plan.report)
        }
        planned => with_remedy(checker, outcome, planned.as_ref()),
    }
}

/// Whether there is nothing to repair: the volume is clean, or the check was cancelled.
fn is_settled(outcome: &Result<Report, Refusal>) -> bool {
    match outcome {
        Ok(report) => report.clean || report.exit & exit::CANCELLED != 0,
        Err(refusal) => refusal.is_cancelled(),
    }
}

/// The outcome of a check with the repair that is possible and was not made.
fn with_remedy(
    checker: Checker<'_>,
    outcome: Result<Report, Refusal>,
    planned: Option<&Plan>,
) -> Result<Report, Refusal> {
    let mut report = outcome?;
    if checker.progress.cancelled() {
        report.cancel();
    }
    if let Some(state) = &mut report.native {
        state.remedy = Some(planned.map_or(Remedy::Nothing, |plan| plan.remedy));
    }
    Ok(report)
}

/// A repair: one write of a superblock.
struct Plan {
    /// The block that is written.
    at: u64,
    superblock: NativeSuperblock,
    /// The report on the volume after it.
    report: Report,
    remedy: Remedy,
}

/// The repair that is possible after a check. Nothing is written.
fn plan(checker: Checker<'_>, outcome: &Result<Report, Refusal>) -> Option<Plan> {
    let device = checker.device;
    let blocks = copies::read(device);
    let (active, at) = copies::active(device, &blocks).ok()?;
    let recounted = copies::recounted(device, &active);
    let miscounted = recounted.is_some();
    let active = recounted.unwrap_or(active);
    let last = active.last_tried(&blocks);
    if last >= LAST_GENERATION {
        return None;
    }
    let other = COPIES - 1 - at;
    if let Some((restored, _)) = copies::restored(device, &blocks, &active, at) {
        let last = last.max(restored.generation);
        if last >= LAST_GENERATION {
            return None;
        }
        let mut report = clean(checker, &restored)?;
        let found = outcome.iter().flat_map(|report| &report.problems).filter(|problem| is_superblock(problem));
        let complete = |problem: &Reported| problem.text.replace(copies::COMPLETE, copies::COMPLETED);
        let was: Vec<Reported> = found.map(|p| Reported { text: complete(p), ..p.clone() }).collect();
        report.problems.splice(0..0, was);
        report.errors += 1;
        let superblock = next_of(&restored, last);
        return Some(Plan { at: other, superblock, report: all_fixed(report), remedy: Remedy::Safe });
    }
    if let Some(newer) = newer_than(&blocks, &active) {
        return back(checker, &active, (other, last), newer, "it refers to no map");
    }
    // no loss of power leaves such a superblock, so the volume may contain its generation
    let contradictory = copies::block_of(&blocks, other).filter(|block| NativeSuperblock::parse(block).is_err());
    let newer = contradictory.and_then(NativeSuperblock::intact_generation);
    if let Some(newer) = newer.filter(|newer| *newer > active.generation) {
        return back(checker, &active, (other, last), newer, "its superblock contradicts itself");
    }
    // from here on the newest is active
    if !copies::leads_to_a_map(device, &active) {
        return None;
    }
    if active.unordered {
        let calm = NativeSuperblock { unordered: false, ..active.clone() };
        let report = clean(checker, &calm)?;
        let report = all_fixed(outcome.clone().unwrap_or(report));
        return Some(Plan { at: other, superblock: next_of(&active, last), report, remedy: Remedy::Safe });
    }
    let checked = outcome.as_ref().ok().filter(|report| miscounted || !report.is_unchecked());
    let Some(report) = checked.filter(|report| report.problems.iter().any(is_superblock)) else {
        return go_back(checker, &blocks, &active, at, last);
    };
    if miscounted && let Some(plan) = go_back(checker, &blocks, &active, at, last) {
        return Some(plan);
    }
    let alone = report.problems.iter().all(|p| is_superblock(p) || !p.severity.is_error());
    let whole = copies::block_of(&blocks, other).and_then(|block| NativeSuperblock::parse(block).ok());
    let is_older = |whole: &NativeSuperblock| (whole.uuid, whole.layout) == (active.uuid, active.layout);
    if let Some(whole) = whole.filter(|whole| !(alone || miscounted && is_older(whole))) {
        // it may be the right one, so it is never overwritten
        let why = "its superblock contradicts the volume above its map";
        return back(checker, &whole, (at, last), active.generation, why);
    }
    let mut report = report.clone();
    let remedy = if alone { Remedy::Safe } else { Remedy::Superblock };
    if alone {
        report = all_fixed(report);
    } else {
        report.problems.iter_mut().filter(|p| is_superblock(p)).for_each(Reported::set_fixed);
        report.repaired = true;
    }
    // the active one is valid until this is written
    Some(Plan { at: other, superblock: next_of(&active, last), report, remedy })
}

/// Whether a problem is a damaged superblock.
fn is_superblock(problem: &Reported) -> bool {
    problem.code == Code::NativeSuperblockDamaged
}

/// The report on the generation of a superblock, if it has no errors.
fn clean(checker: Checker<'_>, superblock: &NativeSuperblock) -> Option<Report> {
    checker.check_generation(superblock).ok().filter(|report| report.clean)
}

/// The rollback to the generation before the newest one, where that cannot be read and the one before is intact.
fn go_back(checker: Checker<'_>, blocks: &[u8], active: &NativeSuperblock, at: u64, last: u64) -> Option<Plan> {
    let found = whole(blocks);
    let (before, _) = found.get(1)?;
    let (physical, what) = super::read_generation(checker.device, active.clone()).unreadable?;
    let why = format!("block {physical} of the device{}", predicate(&what));
    // over the damaged one: the intact one is valid until this is written
    back(checker, before, (at, last), active.generation, &why)
}

/// The rollback to a generation, if that has no errors, from the generation `from`: the block that is written, and the
/// last generation number used.
fn back(checker: Checker<'_>, to: &NativeSuperblock, (at, last): (u64, u64), from: u64, why: &str) -> Option<Plan> {
    let report = went_back(clean(checker, to)?, from, to.generation, why);
    Some(Plan { at, superblock: next_of(to, last), report, remedy: Remedy::Generation(to.generation) })
}

/// A superblock with the generation number that follows `last`, to be written.
fn next_of(superblock: &NativeSuperblock, last: u64) -> NativeSuperblock {
    NativeSuperblock { generation: last + 1, unordered: false, ..superblock.clone() }
}

/// The generation of the other superblock, where it is valid and newer than the active one: then it leads to no map.
fn newer_than(blocks: &[u8], active: &NativeSuperblock) -> Option<u64> {
    let (newest, _) = NativeSuperblock::newest(blocks).ok()?;
    (newest.generation > active.generation).then_some(newest.generation)
}

/// The report on the generation that the volume was rolled back to. The errors of the newer one are gone.
fn went_back(mut report: Report, from: u64, to: u64, why: &str) -> Report {
    let problem = Problem::new(Code::NativeWentBack).found(from).expected(to).name(why);
    report.problems.insert(0, Reported::from(&problem));
    report.errors += 1;
    all_fixed(report)
}

/// The valid superblocks with the UUID and layout of the newest, the newest first, and their blocks.
fn whole(blocks: &[u8]) -> Vec<(NativeSuperblock, u64)> {
    let copies = blocks.chunks(SIZE as usize).zip(0..);
    let mut found: Vec<_> = copies.filter_map(|(bytes, at)| Some((NativeSuperblock::parse(bytes).ok()?, at))).collect();
    found.sort_by_key(|(superblock, _)| std::cmp::Reverse(superblock.generation));
    let volume = found.first().map(|(newest, _)| (newest.uuid, newest.layout));
    found.retain(|(superblock, _)| Some((superblock.uuid, superblock.layout)) == volume);
    found
}

fn write(device: &dyn BlockDevice, at: u64, superblock: &NativeSuperblock) -> Result<(), Refusal> {
    let written = device.write(at * SIZE, &superblock.to_bytes()).and_then(|()| device.flush());
    written.map_err(|e| Refusal::new(e.to_string()))
}

/// The report with every problem marked as fixed.
fn all_fixed(mut report: Report) -> Report {
    report.problems.iter_mut().filter(|problem| problem.severity.is_error()).for_each(Reported::set_fixed);
    report.exit = exit::REPAIRED;
    report.repaired = true;
    report.clean = true;
    report
}
